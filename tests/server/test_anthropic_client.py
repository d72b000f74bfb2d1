# SPDX-License-Identifier: MIT
"""Anthropic's API over HTTP: its own Python client, unchanged, and the shapes on the wire. The bundled model was never
trained to think or to call, so templates and constraints make it."""
import json

import anthropic
import jsonschema
import pytest

from serverproc import Server

HI = [{"role": "user", "content": "Once upon a time"}]
SCHEMA = {"type": "object", "properties": {"city": {"enum": ["Rome", "Oslo"]}}, "required": ["city"],
          "additionalProperties": False}
TOOLS = [{"name": "get_weather", "description": "d", "input_schema": SCHEMA},
         {"name": "now", "input_schema": {"type": "object", "properties": {}, "additionalProperties": False}}]
# Prints what it is given, so that prompts can be looked at; thinks when asked to.
ECHO = ("{% if tools %}[{{ tools | map(attribute='function') | map(attribute='name') | join(' ') }}]{% endif %}"
        "{% for m in messages %}<{{ m.role }}>{{ m.content }}{% if m.reasoning %}({{ m.reasoning }}){% endif %}"
        "{% for c in m.tool_calls or [] %}{{ c.id }}:{{ c.function.name }}={{ c.function.arguments | tojson }}"
        "{% endfor %}{% endfor %}{% if add_generation_prompt %}<assistant>{% endif %}"
        "{% if enable_thinking %}<think>{% elif enable_thinking is defined %}<think></think>{% endif %}")


@pytest.fixture(scope="module")
def server():
    with Server("--threads", "1", "--reasoning-parser", "deepseek_r1", "--tool-call-parser", "hermes",
                "--chat-template", ECHO) as s:
        yield s
        assert s.process.poll() is None, "the server ended during the tests: " + s.log()


@pytest.fixture(scope="module")
def client(server):
    return anthropic.Anthropic(base_url=server.url, api_key="unused", max_retries=0, timeout=60)


# The text that a body becomes: /v1/messages/count_tokens counts the same tokens.
def same_prompt(server, body, text):
    n = server.json("POST", "/tokenize", {"prompt": text, "add_special_tokens": False})[1]["count"]
    status, r = server.json("POST", "/v1/messages/count_tokens", body)
    assert status == 200 and r == {"input_tokens": n}, (r, n)


def ask(client, seed=None, **fields):
    """Greedy, or with a seed: the client knows neither field."""
    extra = {"temperature": 0} if seed is None else {"temperature": 1, "seed": seed, "logit_bias": BIAS}
    args = {"model": "storyteller", "max_tokens": 24, "messages": HI, "thinking": {"type": "disabled"},
            "extra_body": extra} | fields
    return client.messages.create(**args)


def ask_stream(client, seed=None, **fields):
    extra = {"temperature": 0} if seed is None else {"temperature": 1, "seed": seed, "logit_bias": BIAS}
    with client.messages.stream(**({"model": "storyteller", "max_tokens": 24, "messages": HI, "extra_body": extra,
                                    "thinking": {"type": "disabled"}} | fields)) as stream:
        return stream.get_final_message()


def test_message(client):
    m = ask(client)
    assert m.type == "message" and m.role == "assistant" and m.id.startswith("msg_") and m.model == "storyteller"
    assert [b.type for b in m.content] == ["text"] and m.content[0].text
    assert m.stop_reason == "max_tokens" and m.stop_sequence is None
    assert m.usage.output_tokens == 24 and m.usage.input_tokens > 0
    again = ask(client)
    assert again.content == m.content and again.usage.cache_read_input_tokens >= 0
    total = again.usage.input_tokens + again.usage.cache_read_input_tokens
    assert total == m.usage.input_tokens + m.usage.cache_read_input_tokens


def test_stop_sequences(client):
    m = ask(client)
    word = m.content[0].text.split()[3]
    s = ask(client, stop_sequences=["no such text", word])
    assert s.stop_reason == "stop_sequence" and s.stop_sequence == word
    assert m.content[0].text.startswith(s.content[0].text) and word not in s.content[0].text


def test_empty_and_warm(client):
    """max_tokens 0 fills the prefix cache and says nothing."""
    m = ask(client, max_tokens=0)
    assert m.content == [] and m.stop_reason == "max_tokens" and m.usage.output_tokens == 0


def test_context_is_too_short():
    with Server("--threads", "1", "--max-model-len", "32") as s:
        c = anthropic.Anthropic(base_url=s.url, api_key="k", max_retries=0)
        m = c.messages.create(model="storyteller", max_tokens=25, messages=[{"role": "user", "content": "a"}],
                              extra_body={"ignore_eos": True, "temperature": 0})
        assert m.stop_reason in ("max_tokens", "model_context_window_exceeded")
        assert (m.usage.output_tokens < 25) == (m.stop_reason == "model_context_window_exceeded")


def test_thinking(client):
    m = ask(client, thinking={"type": "enabled", "budget_tokens": 5}, max_tokens=24)
    assert [b.type for b in m.content] == ["thinking", "text"]
    assert m.content[0].thinking and m.content[0].signature and m.content[1].text
    got = ask_stream(client, thinking={"type": "enabled", "budget_tokens": 5})
    assert [b.type for b in got.content] == ["thinking", "text"]
    assert got.content[0].thinking == m.content[0].thinking and got.content[1].text == m.content[1].text


def test_tools(client):
    for choice, name in (({"type": "any", "disable_parallel_tool_use": True}, None),
                         ({"type": "tool", "name": "get_weather"}, "get_weather")):
        m = ask(client, tools=TOOLS, tool_choice=choice, max_tokens=200, seed=3)
        assert m.stop_reason == "tool_use" and [b.type for b in m.content] == ["tool_use"]
        call = m.content[0]
        assert call.id and call.name == (name or call.name)
        jsonschema.validate(call.input, {t["name"]: t["input_schema"] for t in TOOLS}[call.name])
        got = ask_stream(client, tools=TOOLS, tool_choice=choice, max_tokens=200, seed=3)
        assert got.stop_reason == "tool_use"
        assert [(b.name, b.input) for b in got.content] == [(call.name, call.input)]


def test_input_is_what_the_model_wrote(client):
    """A number of 26 digits, which a reader of JSON may refuse."""
    schema = {"type": "object", "properties": {"n": {"type": "integer", "minimum": 1e25, "maximum": 9e25}},
              "required": ["n"], "additionalProperties": False}
    args = {"tools": [{"name": "f", "input_schema": schema}], "tool_choice": {"type": "tool", "name": "f"},
            "max_tokens": 100}
    no_dot = {"extra_body": {"temperature": 1, "seed": 1, "logit_bias": BIAS | {"18": -100}}}
    m, got = ask(client, **args, **no_dot), ask_stream(client, **args, **no_dot)
    assert m.stop_reason == got.stop_reason == "tool_use"
    assert 10**25 <= m.content[0].input["n"] == got.content[0].input["n"]


def test_tool_loop(client):
    """The answer goes back as the client has it, with the tool's result."""
    messages = list(HI)
    for turn in range(2):
        m = ask(client, messages=messages, tools=TOOLS, tool_choice={"type": "tool", "name": "get_weather"},
                max_tokens=200, seed=turn)
        assert m.stop_reason == "tool_use"
        messages += [{"role": "assistant", "content": m.content},
                     {"role": "user", "content": [{"type": "tool_result", "tool_use_id": m.content[0].id,
                                                   "content": "21 degrees"}]}]
    assert ask(client, messages=messages, tools=TOOLS, tool_choice={"type": "none"}).content[0].type == "text"


# White space is barred and ends are likely: the model would go on for ever between the tokens of JSON.
BIAS = {str(i): -100 for i in (202, 203, 206, 209, 225, 302)} | {str(i): 12 for i in (0, 4, 65)}


def test_structured_output(client):
    m = ask(client, output_config={"format": {"type": "json_schema", "schema": SCHEMA}}, max_tokens=100, seed=1)
    jsonschema.validate(json.loads(m.content[0].text), SCHEMA)


def test_prompts(server):
    """What blocks become in front of the template."""
    base = {"model": "storyteller"}
    same_prompt(server, base | {"messages": HI}, "<user>Once upon a time<assistant>")
    same_prompt(server, base | {"messages": HI, "system": "Be brief"},
                "<system>Be brief<user>Once upon a time<assistant>")
    same_prompt(server, base | {"messages": HI, "system": [
        {"type": "text", "text": "x-anthropic-billing-header: cc_version=1; cch=abc;"},
        {"type": "text", "text": "Be", "cache_control": {"type": "ephemeral"}}, {"type": "text", "text": "brief"}]},
        "<system>Be\nbrief<user>Once upon a time<assistant>")
    same_prompt(server, base | {"messages": HI, "system": ""}, "<user>Once upon a time<assistant>")
    same_prompt(server, base | {"messages": HI, "tools": TOOLS}, "[get_weather now]<user>Once upon a time<assistant>")
    talk = [{"role": "user", "content": [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]},
            {"role": "assistant", "content": [{"type": "thinking", "thinking": "hm", "signature": "x"},
                                              {"type": "redacted_thinking", "data": "zz"},
                                              {"type": "text", "text": "c"},
                                              {"type": "tool_use", "id": "t1", "name": "now", "input": {"q": [1, None]}},
                                              {"type": "tool_use", "id": "t2", "name": "now", "input": {}}]},
            {"role": "user", "content": [{"type": "tool_result", "tool_use_id": "t1", "content": [
                {"type": "text", "text": "d"}, {"type": "text", "text": "e"}]},
                {"type": "tool_result", "tool_use_id": "t2", "is_error": True}, {"type": "text", "text": "f"}]}]
    same_prompt(server, base | {"messages": talk},
                '<user>a\nb<assistant>c(hm)t1:now={"q": [1, null]}t2:now={}<tool>d\ne<tool><user>f<assistant>')
    same_prompt(server, base | {"messages": HI + [{"role": "assistant", "content": "there was"}]},
                "<user>Once upon a time<assistant>there was")
    same_prompt(server, base | {"messages": HI, "thinking": {"type": "adaptive"}},
                "<user>Once upon a time<assistant><think>")
    same_prompt(server, base | {"messages": HI, "thinking": {"type": "enabled", "budget_tokens": 2000},
                                "chat_template_kwargs": {"enable_thinking": False}},
                "<user>Once upon a time<assistant><think></think>")


def test_event_order(server):
    _, headers, data = server.request("POST", "/v1/messages?beta=true", {
        "model": "storyteller", "max_tokens": 24, "messages": HI, "stream": True, "temperature": 0,
        "thinking": {"type": "enabled", "budget_tokens": 5}}, {"anthropic-version": "2023-06-01"})
    assert headers["Content-Type"].startswith("text/event-stream")
    events = []
    for block in data.decode().strip("\n").split("\n\n"):
        name, payload = block.split("\n")
        e = json.loads(payload.removeprefix("data: "))
        assert name == "event: " + e["type"]
        events.append(e)
    kinds = [e["type"] for e in events]
    squeezed = [k for i, k in enumerate(kinds) if i == 0 or k != kinds[i - 1]]
    assert squeezed == ["message_start", *["content_block_start", "content_block_delta", "content_block_stop"] * 2,
                        "message_delta", "message_stop"]
    assert events[0]["message"]["content"] == [] and events[0]["message"]["stop_reason"] is None
    deltas = [e["delta"]["type"] for e in events if e["type"] == "content_block_delta" and e["index"] == 0]
    assert set(deltas[:-1]) == {"thinking_delta"} and deltas[-1] == "signature_delta"
    assert [e["index"] for e in events if e["type"] == "content_block_start"] == [0, 1]
    assert events[-2]["delta"] == {"stop_reason": "max_tokens", "stop_sequence": None}
    assert events[-2]["usage"]["output_tokens"] == 24


def test_ping():
    """A stream that waits says that it lives: by a comment before it began, by an event afterwards."""
    with Server("--sse-ping-interval", "1", "--max-num-seqs", "1", "--threads", "1") as s:
        import socket
        busy = {"prompt": "a", "max_tokens": 100, "n": 128, "ignore_eos": True}
        body = json.dumps(busy).encode()
        with socket.create_connection(("127.0.0.1", s.port)) as c:
            c.sendall(b"POST /v1/completions HTTP/1.1\r\nHost: a\r\nContent-Length: %d\r\n\r\n%s" % (len(body), body))
            s.wait_metric("vllm:num_requests_running", 1.0)
            body = json.dumps({"max_tokens": 2, "messages": HI, "stream": True}).encode()
            with socket.create_connection(("127.0.0.1", s.port), timeout=20) as d:
                d.sendall(b"POST /v1/messages HTTP/1.1\r\nHost: a\r\nContent-Length: %d\r\n\r\n%s" % (len(body), body))
                got = b""
                while b"event:" not in got and b": keep-alive" not in got:
                    part = d.recv(4096)
                    assert part
                    got += part
                assert got.startswith(b"HTTP/1.1 200 OK")


def test_errors(server, client):
    tool = {"name": "f", "input_schema": {}}
    for fields, word in [
            ({"messages": [{"role": "user", "content": [{"type": "image", "source": {}}]}]}, "messages[0].content[0]"),
            ({"messages": [{"role": "tool", "content": "a"}]}, "messages[0].role"),
            ({"messages": [{"role": "user", "content": [{"type": "tool_use", "id": "a", "name": "b", "input": {}}]}]},
             "messages[0].content[0]"),
            ({"messages": [{"role": "assistant", "content": [{"type": "tool_use", "id": "a", "name": "b", "input": "c"}]}]},
             "messages[0].content[0].input"),
            ({"messages": HI + [{"role": "user", "content": [{"type": "tool_result", "content": "a"}]}]},
             "messages[1].content[0].tool_use_id"),
            ({"system": 3}, "system"), ({"system": [{"type": "image"}]}, "system[0]"),
            ({"tools": [tool, tool]}, "tools[1]"), ({"tools": [{"name": "f"}]}, "tools[0].input_schema"),
            ({"tools": [{"type": "web_search_20250305", "name": "web_search"}]}, "tools[0]: this server cannot run web_search"),
            ({"tools": [{"name": "a b", "input_schema": {}}]}, "tools[0].name"),
            ({"tool_choice": {"type": "any"}}, "tool_choice"),
            ({"tools": [tool], "tool_choice": {"type": "tool", "name": "g"}}, "no tool named g"),
            ({"tools": [tool], "tool_choice": "auto"}, "tool_choice must be an object"),
            ({"stop_sequences": [""]}, "stop_sequences"), ({"stop_sequences": 1}, "stop_sequences"),
            ({"temperature": "hot"}, "temperature"), ({"max_tokens": -1}, "max_tokens"),
            ({"thinking": {"type": "enabled"}}, "thinking.budget_tokens"), ({"thinking": {"type": "much"}}, "thinking.type"),
            ({"output_config": {"format": {"type": "xml"}}}, "output_config.format.type"),
            ({"mcp_servers": [{"url": "http://a"}]}, "mcp_servers")]:
        status, r = server.json("POST", "/v1/messages", {"max_tokens": 4, "messages": HI} | fields)
        assert status == 400 and r["type"] == "error" and r["error"]["type"] == "invalid_request_error", fields
        assert word in r["error"]["message"], (word, r)
    with pytest.raises(anthropic.NotFoundError) as e:
        ask(client, model="claude")
    assert e.value.body["error"]["type"] == "not_found_error"
    status, r = server.json("POST", "/v1/messages", {"messages": HI})
    assert status == 400 and "max_tokens" in r["error"]["message"]
    assert server.json("GET", "/v1/messages")[1]["type"] == "error"


def test_keys():
    with Server("--api-key", "right", "--api-key", "other", "--threads", "1") as s:
        for options in ({"api_key": "right"}, {"auth_token": "right"}):
            c = anthropic.Anthropic(base_url=s.url, max_retries=0, **options)
            assert c.messages.count_tokens(model="storyteller", messages=HI).input_tokens > 0
        body = {"max_tokens": 1, "messages": HI}
        for headers, ok in [({"x-api-key": "right"}, True), ({"X-Api-Key": "wrong"}, False), ({}, False),
                            ({"x-api-key": "right", "Authorization": "Bearer right"}, True),
                            ({"x-api-key": "right", "Authorization": "Bearer other"}, False),
                            ({"x-api-key": "wrong", "Authorization": "Bearer right"}, False),
                            ({"x-api-key": ""}, False), ({"x-api-key": "Bearer right"}, False)]:
            status, r = s.json("POST", "/v1/messages", body, headers)
            assert status == (200 if ok else 401), headers
            if not ok:
                assert r["type"] == "error" and r["error"]["type"] == "authentication_error"


def test_models(client, server):
    models = client.models.list()
    assert [m.id for m in models] == ["storyteller"] and models.data[0].type == "model" and models.has_more is False
    assert client.models.retrieve("storyteller").display_name == "storyteller"
    assert server.json("GET", "/v1/models")[1]["object"] == "list"


def test_nothing_is_left(server):
    server.wait_metric("vllm:num_requests_running", 0.0)
    assert server.metric("sluice:step_mallocs_total") == 0
