# SPDX-License-Identifier: MIT
"""Programs that call tools, over HTTP: what a call leaves is kept until its result comes, by the prompt alone or by
the session that a header or a field names, and nothing is kept where the server was told so. The bundled model was
never trained to call anything: calls are certain by tool_choice."""
import json

import pytest

from serverproc import Server

# White space is barred and ends are likely: the model would go on for ever between the tokens of JSON.
BIAS = {str(i): -100 for i in (202, 203, 206, 209, 225, 302)} | {str(i): 12 for i in (0, 4, 65)}
TOOLS = [{"type": "function", "function": {"name": "look", "parameters": {
    "type": "object", "properties": {"what": {"enum": ["cat", "dog"]}}, "required": ["what"]}}}]
HI = [{"role": "user", "content": "Once upon a time there was a small dog and a red ball. " * 8}]


@pytest.fixture(scope="module")
def server():
    with Server("--threads", "1", "--tool-call-parser", "hermes", "--enable-auto-tool-choice") as s:
        yield s
        assert s.process.poll() is None, "the server ended during the tests: " + s.log()
        assert s.metric("sluice:invariant_violations_total") == 0
        assert s.metric("sluice:step_mallocs_total") == 0


def chat(server, messages, headers=None, **fields):
    status, _, data = server.request("POST", "/v1/chat/completions", json.dumps(
        {"messages": messages, "max_tokens": 200, "temperature": 1, "logit_bias": BIAS, "seed": 3} | fields).encode(),
        {"Content-Type": "application/json"} | (headers or {}))
    assert status == 200, data
    r = json.loads(data)
    return r["choices"][0], r["usage"]["prompt_tokens_details"]["cached_tokens"]


def call(server, name, headers=None, **fields):
    """A turn that ends in a call, and the messages behind it with the tool's result."""
    messages = [{"role": "system", "content": name}] + HI
    choice, _ = chat(server, messages, headers, tools=TOOLS, tool_choice="required", parallel_tool_calls=False,
                     **fields)
    assert choice["finish_reason"] == "tool_calls", choice
    return messages + [choice["message"], {"role": "tool", "tool_call_id": choice["message"]["tool_calls"][0]["id"],
                                           "content": "a dog"}]


def returns(server):
    return server.metric("sluice:tool_returns_total")


def test_a_call_is_kept_until_its_result_comes(server):
    before = returns(server)
    messages = call(server, "by the prompt alone")
    server.wait_metric("sluice:kv_leases", 1.0)
    assert server.metric("sluice:kv_leased_pages") >= 8
    choice, cached = chat(server, messages, tools=TOOLS, max_tokens=2)
    assert cached >= 128  # not the call: what tool_choice forces has other spaces than the template's
    server.wait_metric("sluice:kv_leases", 0.0)
    assert returns(server) == before + 1


@pytest.mark.parametrize("headers, fields", [
    ({"X-Session-ID": "two"}, {}), ({"X-Claude-Code-Session-ID": "two"}, {}), ({}, {"session_id": "two"}),
    ({}, {"nvext": {"agent_context": {"session_id": "two"}, "agent_hints": {"priority": 3}}})])
def test_names_of_sessions(server, headers, fields):
    before = returns(server)
    call(server, "names " + repr((headers, fields)), headers, **fields)
    server.wait_metric("sluice:kv_leases", 1.0)
    chat(server, HI, headers, max_tokens=2, **({"session_id": "else"} if "session_id" in fields else {}))
    if "session_id" in fields:  # another session, and another text
        assert server.metric("sluice:kv_leases") == 1.0 and returns(server) == before
    chat(server, HI, headers, max_tokens=2, **fields)
    server.wait_metric("sluice:kv_leases", 0.0)
    assert returns(server) == before + 1


@pytest.mark.parametrize("what", [{"session_id": "x" * 257}, {"session_id": 7}, {"nvext": 1}, {"nvext": {}},
                                  {"nvext": {"agent_context": {"session_id": []}, "agent_hints": {"priority": "a"}}}])
def test_what_is_no_name_is_ignored(server, what):
    chat(server, HI, max_tokens=2, **what)


def test_an_answer_without_a_call_leaves_nothing(server):
    chat(server, HI, {"X-Session-ID": "three"}, max_tokens=2)
    assert server.metric("sluice:kv_leases") == 0


def test_nothing_is_kept_without_a_share():
    with Server("--threads", "1", "--tool-call-parser", "hermes", "--enable-auto-tool-choice",
                "--kv-retention", "-1") as s:
        messages = call(s, "no share")
        assert s.metric("sluice:kv_leases") == 0
        chat(s, messages, tools=TOOLS, max_tokens=2)
        assert s.metric("sluice:kv_leases") == 0
