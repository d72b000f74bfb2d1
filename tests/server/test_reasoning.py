# SPDX-License-Identifier: MIT
"""Reasoning over HTTP: the template opens the block, a budget closes it, a constraint waits for its end."""
import json
import re

import openai
import pytest

from serverproc import Server
from wire import events

ASK = [{"role": "user", "content": "Once upon"}]
THINKS = "{{ messages[0].content }}{% if enable_thinking is not false %}<think>{% else %}<think></think>{% endif %}"


@pytest.fixture(scope="module")
def server():
    with Server("--threads", "1", "--reasoning-parser", "deepseek_r1", "--chat-template", THINKS) as s:
        yield s
        assert s.process.poll() is None, "the server ended during the tests: " + s.log()


def chat(server, **fields):
    status, r = server.json("POST", "/v1/chat/completions", {"messages": ASK, "max_tokens": 24, "temperature": 1,
                                                             "seed": 3} | fields)
    assert status == 200, r
    return r["choices"]


def n_tokens(server, text):
    return server.json("POST", "/tokenize", {"prompt": text, "add_special_tokens": False})[1]["count"]


def test_fields(server):
    m = chat(server)[0]["message"]
    assert m["reasoning"] == m["reasoning_content"] and m["content"] is None
    m = chat(server, chat_template_kwargs={"enable_thinking": False})[0]["message"]
    assert m["content"] and "reasoning" not in m
    m = chat(server, include_reasoning=False, thinking_token_budget=4)[0]["message"]
    assert m["content"] and "reasoning" not in m and "</think>" not in m["content"]


def test_budget(server):
    whole = chat(server)[0]["message"]["reasoning"]
    for budget in (0, 1, 5, 9):
        m = chat(server, thinking_token_budget=budget)[0]["message"]
        reasoning = m.get("reasoning") or ""
        assert whole.startswith(reasoning) and m["content"] and "<" not in m["content"][:2]
        assert n_tokens(server, reasoning) <= budget + 1  # cut elsewhere, the same text may take one more
        assert (budget == 0) == (reasoning == "")
    assert chat(server, thinking_token_budget=-1)[0]["message"]["reasoning"] == whole


def thought(server, ids):
    """How many tokens up to the one that ends the block."""
    for n in range(1, len(ids) + 1):
        if "</think>" in server.json("POST", "/detokenize", {"tokens": ids[:n]})[1]["prompt"]:
            return n
    return len(ids)


def test_usage(server):
    """Tokens of reasoning are counted, its end included, whatever is shown and however the text comes."""
    for form in ({}, {"thinking_token_budget": 5}, {"thinking_token_budget": 0, "guided_choice": ["yes", "no"]},
                 {"thinking_token_budget": 6, "n": 3, "include_reasoning": False},
                 {"thinking_token_budget": 9, "stop": ["Timmy zzz", "</thinking"], "n": 2}):
        body = {"messages": ASK, "max_tokens": 24, "temperature": 1, "seed": 3, "return_token_ids": True} | form
        status, r = server.json("POST", "/v1/chat/completions", body)
        assert status == 200, r
        want = sum(thought(server, c["token_ids"]) for c in r["choices"])
        assert r["usage"]["completion_tokens_details"] == {"reasoning_tokens": want}
        for every in (False, True):
            _, _, data = server.request("POST", "/v1/chat/completions", body | {
                "stream": True, "stream_options": {"include_usage": True, "continuous_usage_stats": every},
                "return_token_ids": every})
            counts = [e["usage"]["completion_tokens_details"]["reasoning_tokens"] for e in events(data)
                      if e.get("usage")]
            assert counts[-1] == want and counts == sorted(counts) and (len(counts) > 1) == every, (form, counts, want)
    status, r = server.json("POST", "/v1/chat/completions", {
        "messages": ASK, "max_tokens": 9, "chat_template_kwargs": {"enable_thinking": False}})
    assert r["usage"]["completion_tokens_details"] == {"reasoning_tokens": 0}
    assert "completion_tokens_details" not in server.json(
        "POST", "/v1/completions", {"prompt": "a", "max_tokens": 2})[1]["usage"]


@pytest.mark.parametrize("form,regex", [({"guided_regex": "[ab]{3}"}, "[ab]{3}"),
                                        ({"guided_choice": ["yes", "no"]}, "yes|no"),
                                        ({"response_format": {"type": "json_schema", "json_schema": {
                                            "name": "n", "schema": {"enum": [1, True]}}}}, "1|true|1.0+"),
                                        ({"structured_outputs": {"grammar": 'root ::= "x" "y"?'}}, "xy?")])
def test_the_form_waits(server, form, regex):
    for choice in chat(server, thinking_token_budget=6, n=3, max_tokens=40, **form):
        assert re.fullmatch(regex, choice["message"]["content"]) and choice["finish_reason"] == "stop"
        assert choice["message"]["reasoning"]
    m = chat(server, chat_template_kwargs={"enable_thinking": False}, **form)[0]["message"]
    assert re.fullmatch(regex, m["content"])
    m = chat(server, max_tokens=8, **form)[0]  # it never ends to think
    assert m["finish_reason"] == "length" and m["message"]["content"] is None and m["message"]["reasoning"]


def test_same_bits(server):
    """What is forced hangs on the sequence's own tokens: neighbours and streams change nothing."""
    args = {"thinking_token_budget": 7, "guided_choice": ["yes", "no"], "n": 4}
    want = chat(server, **args)
    assert chat(server, **args) == want
    _, _, data = server.request("POST", "/v1/chat/completions", {"messages": ASK, "max_tokens": 24, "temperature": 1,
                                                                 "seed": 3, "stream": True} | args)
    got = [["", ""] for _ in want]
    for e in events(data):
        for c in e["choices"]:
            got[c["index"]][0] += c["delta"].get("reasoning") or ""
            got[c["index"]][1] += c["delta"].get("content") or ""
            assert c["delta"].get("reasoning") == c["delta"].get("reasoning_content")
    assert got == [[c["message"]["reasoning"], c["message"]["content"]] for c in want]


def test_a_call_behind_it(server):
    client = openai.OpenAI(base_url=server.url + "/v1", api_key="unused", max_retries=0, timeout=60)
    tool = {"type": "function", "function": {"name": "f", "parameters": {
        "type": "object", "properties": {"a": {"enum": ["x"]}}, "required": ["a"], "additionalProperties": False}}}
    for seed in range(3):
        r = client.chat.completions.create(
            model="storyteller", messages=ASK, tools=[tool], tool_choice="required", parallel_tool_calls=False,
            max_tokens=120, temperature=1, seed=seed, extra_body={"thinking_token_budget": 5},
            logit_bias={str(i): -100 for i in (202, 203, 206, 209, 225, 302)} | {"65": 12})
        m = r.choices[0].message
        assert r.choices[0].finish_reason == "tool_calls" and m.content is None and m.reasoning
        assert json.loads(m.tool_calls[0].function.arguments) == {"a": "x"}


def test_history(server):
    for names in ({"reasoning": "hm"}, {"reasoning_content": "hm"}):
        messages = ASK + [{"role": "assistant", "content": "a"} | names, {"role": "user", "content": "b"}]
        assert chat(server, messages=messages)
    status, e = server.json("POST", "/v1/chat/completions", {"messages": ASK + [{"role": "assistant", "content": "a",
                                                                                  "reasoning": 1}]})
    assert status == 400 and e["error"]["param"] == "messages[1].reasoning"


def test_refused_without_a_parser():
    with Server("--threads", "1") as s:
        for path, body in (("/v1/chat/completions", {"messages": ASK}), ("/v1/completions", {"prompt": "a"})):
            status, e = s.json("POST", path, body | {"thinking_token_budget": 3})
            assert status == 400 and e["error"]["param"] == "thinking_token_budget"


def test_nothing_is_left(server):
    server.wait_metric("sluice:grammar_matchers", 0)  # the engine lets go of a request just after its reply
    assert server.metric("sluice:step_mallocs_total") == 0
