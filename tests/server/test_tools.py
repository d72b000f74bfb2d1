# SPDX-License-Identifier: MIT
"""Tools over HTTP, with OpenAI's own client and the bundled model, which was never trained to call any: what has to be
called is certain by constraint. What may be called, in text, is walked through by tests/text/test_output_tags.c."""
import json

import jsonschema
import openai
import pytest
from pydantic import BaseModel

from serverproc import Server

WEATHER = {"type": "object", "properties": {"city": {"enum": ["Rome", "Oslo"]}, "days": {"enum": ["1", "two"]},
                                            "metric": {"type": "boolean"}},
           "required": ["city"], "additionalProperties": False}
NOTHING = {"type": "object", "properties": {}, "additionalProperties": False}
SCHEMAS = {"get_weather": WEATHER, "now": NOTHING}
TOOLS = [{"type": "function", "function": {"name": n, "description": "d", "parameters": s}} for n, s in SCHEMAS.items()]
STRICT = [{"type": "function", "function": {"name": n, "strict": True, "parameters": s}} for n, s in SCHEMAS.items()]
ASK = [{"role": "user", "content": "How is the weather?"}]
NAMED = {"type": "function", "function": {"name": "get_weather"}}
FORMATS = ["auto", "hermes", "mistral", "deepseek_v3", "qwen3_coder", "pythonic", "gemma4", "openai"]  # a body each


@pytest.fixture(scope="module", params=FORMATS)
def server(request):
    with Server("--threads", "1", "--tool-call-parser", request.param, "--enable-auto-tool-choice") as s:
        s.format = request.param
        yield s
        assert s.process.poll() is None, "the server ended during the tests: " + s.log()


@pytest.fixture(scope="module")
def client(server):
    return openai.OpenAI(base_url=server.url + "/v1", api_key="unused", max_retries=0, timeout=60)


# White space is barred and ends are likely: the model would go on for ever between the tokens of JSON.
BIAS = {str(i): -100 for i in (202, 203, 206, 209, 225, 302)} | {str(i): 12 for i in (0, 4, 65)}


def ask(client, **fields):
    args = {"model": "storyteller", "messages": ASK, "tools": TOOLS, "max_tokens": 250, "temperature": 1,
            "logit_bias": BIAS} | fields
    return client.chat.completions.create(**args)


def check(calls):
    for call in calls:
        assert call.type == "function" and call.id
        jsonschema.validate(json.loads(call.function.arguments), SCHEMAS[call.function.name])
    assert len({call.id for call in calls}) == len(calls)


def test_required(client):
    """Calls come in any case; a model that knows no end may be cut off in one of them."""
    for seed in range(6):
        r = ask(client, tool_choice="required", seed=seed).choices[0]
        calls = r.message.tool_calls
        if r.finish_reason == "length":
            assert calls
            check(calls[:-1])
        else:
            assert r.finish_reason == "tool_calls" and r.message.content is None and calls
            check(calls)


def test_one_call(client):
    ended = 0
    for seed in range(4):
        r = ask(client, tool_choice="required", parallel_tool_calls=False, seed=seed).choices[0]
        ended += r.finish_reason == "tool_calls"
        if r.finish_reason == "tool_calls":
            assert len(r.message.tool_calls) == 1
            check(r.message.tool_calls)
    assert ended >= 3


def test_named(client):
    for seed in range(4):
        r = ask(client, tool_choice=NAMED, seed=seed).choices[0]
        assert r.finish_reason == "tool_calls" and r.message.content is None
        assert [c.function.name for c in r.message.tool_calls] == ["get_weather"]
        check(r.message.tool_calls)


def gather(stream):
    """The message that the deltas of a stream make, as clients put it together."""
    calls, content, finish, roles = {}, "", None, []
    for chunk in stream:
        for choice in chunk.choices:
            delta = choice.delta
            assert finish is None, "news after the end"
            finish = choice.finish_reason
            content += delta.content or ""
            roles += [delta.role] if delta.role else []
            for c in delta.tool_calls or []:
                if c.index not in calls:
                    assert c.index == len(calls) and c.id and c.function.name and c.type == "function"
                    calls[c.index] = [c.function.name, ""]
                else:
                    assert c.id is None and c.function.name is None
                calls[c.index][1] += c.function.arguments or ""
    assert roles == ["assistant"]
    return [tuple(c) for c in calls.values()], content, finish


def test_stream_equals_whole(client):
    for seed in range(2):
        for choice in ("required", NAMED, "auto"):
            args = {"tool_choice": choice, "seed": seed, "max_tokens": 120, "tools": STRICT}
            whole = ask(client, **args).choices[0]
            calls, content, finish = gather(ask(client, stream=True, **args))
            assert finish == whole.finish_reason
            assert content == (whole.message.content or "")
            assert calls == [(c.function.name, c.function.arguments) for c in whole.message.tool_calls or []]


def test_tool_loop(client):
    """The answer goes back as it came, with the tools' results, and the conversation goes on."""
    messages = list(ASK)
    for turn in range(3):
        r = ask(client, messages=messages, tool_choice="required", parallel_tool_calls=False, seed=turn).choices[0]
        assert r.finish_reason == "tool_calls"
        messages.append(r.message)
        for call in r.message.tool_calls:
            messages.append({"role": "tool", "tool_call_id": call.id, "content": '{"ok": true}'})
    r = ask(client, messages=messages, tool_choice="none", max_tokens=8, logit_bias={})
    assert r.choices[0].message.tool_calls is None and r.choices[0].message.content


def test_auto_calls_are_strict(server, client):
    """Free to call or to answer in the form that is asked for, a model that begins with a marker's first byte can only
    go on to a call, and behind the marker the tool's own schema holds."""
    first = {str(server.json("POST", "/tokenize", {"prompt": c, "add_special_tokens": False})[1]["tokens"][-1]): 60
             for c in "<["}
    n_calls = n_answers = 0
    for seed in range(4):
        for stream, bias in ((False, BIAS | first), (True, BIAS | first), (False, BIAS)):
            args = {"tool_choice": "auto", "parallel_tool_calls": False, "tools": STRICT, "seed": seed,
                    "logit_bias": bias, "stream": stream, "response_format": {"type": "json_schema", "json_schema": {
                        "name": "n", "strict": True, "schema": {"enum": ["zz", "zzz"]}}}}
            if stream:
                calls, content, finish = gather(ask(client, **args))
            else:
                r = ask(client, **args).choices[0]
                calls = [(c.function.name, c.function.arguments) for c in r.message.tool_calls or []]
                content, finish = r.message.content or "", r.finish_reason
            assert finish == ("tool_calls" if calls else "stop") or finish == "length"
            for name, arguments in calls if finish != "length" else []:
                jsonschema.validate(json.loads(arguments), SCHEMAS[name])
                n_calls += 1
            if not calls and finish == "stop":
                assert content in ('"zz"', '"zzz"')
                n_answers += 1
    assert n_calls + n_answers > 0
    if server.format not in ("auto", "openai"):  # no marker of theirs begins so, or it leads on to text
        assert n_calls >= 6


def test_auto_leaves_text_alone(client):
    """Where no marker comes, nothing is constrained, and nothing is taken for a call."""
    r = ask(client, tools=STRICT, seed=3, max_tokens=30, logit_bias={}).choices[0]
    plain = ask(client, tools=TOOLS, seed=3, max_tokens=30, logit_bias={}).choices[0]
    assert r.message.content == plain.message.content and not plain.message.tool_calls


def test_parse_with_pydantic(client):
    class Point(BaseModel):
        x: bool
        name: None

    class GetWeather(BaseModel):
        metric: bool

    r = client.beta.chat.completions.parse(model="storyteller", messages=ASK, max_tokens=300, temperature=1, seed=5, logit_bias=BIAS,
                                           response_format=Point)
    assert isinstance(r.choices[0].message.parsed, Point)
    r = client.beta.chat.completions.parse(model="storyteller", messages=ASK, max_tokens=300, temperature=1, seed=5, logit_bias=BIAS,
                                           tools=[openai.pydantic_function_tool(GetWeather)], tool_choice={
                                               "type": "function", "function": {"name": "GetWeather"}})
    call = r.choices[0].message.tool_calls[0]
    assert isinstance(call.function.parsed_arguments, GetWeather)
    r = client.beta.chat.completions.parse(model="storyteller", messages=ASK, max_tokens=300, temperature=1, seed=6, logit_bias=BIAS,
                                           tools=[openai.pydantic_function_tool(GetWeather)], response_format=Point,
                                           parallel_tool_calls=False)
    m = r.choices[0].message
    assert m.tool_calls or isinstance(m.parsed, Point)


def test_refusals(server):
    bad = {"type": "function", "function": {"name": "f", "parameters": {
        "type": "object", "properties": {"a": {"type": "array", "$recursiveRef": "#"}}, "required": ["a"]}}}
    for fields, param, word in [
            ({"tools": [bad], "tool_choice": "required"}, "tools", "$recursiveRef"),
            ({"tools": TOOLS, "tool_choice": "required", "guided_json": {"type": "object"}}, "guided_json", "tool_choice"),
            ({"tools": TOOLS, "tool_choice": {"type": "function", "function": {"name": "no"}}}, "tool_choice.function",
             "no"),
            ({"tools": TOOLS + TOOLS}, "tools[2].function", "get_weather")]:
        status, e = server.json("POST", "/v1/chat/completions", {"messages": ASK, "max_tokens": 4} | fields)
        assert status == 400 and e["error"]["param"] == param and word in e["error"]["message"], e
    status, _ = server.json("POST", "/v1/chat/completions", {"messages": ASK, "max_tokens": 4, "tools": [bad]})
    assert status == 200  # not strict, and nothing has to be called
    # A response_format is for answers without calls; instructor sends one beside the tool that it wants called.
    status, r = server.json("POST", "/v1/chat/completions", {
        "messages": ASK, "tools": TOOLS, "tool_choice": "required", "parallel_tool_calls": False, "seed": 1,
        "response_format": {"type": "json_schema", "json_schema": {"name": "n", "schema": {"type": "null"}}}})
    assert status == 200 and r["choices"][0]["message"]["tool_calls"], r


def test_any_is_required(server):
    """The word of Mistral's API, which mistralai sends."""
    fields = {"messages": ASK, "tools": TOOLS, "max_tokens": 250, "seed": 2, "logit_bias": BIAS}
    status, want = server.json("POST", "/v1/chat/completions", fields | {"tool_choice": "required"})
    assert status == 200
    status, r = server.json("POST", "/v1/chat/completions", fields | {"tool_choice": "any"})
    assert status == 200, r
    called, wanted = ([c["function"] for c in x["choices"][0]["message"].get("tool_calls") or []] for x in (r, want))
    assert called == wanted and (called or r["choices"][0]["finish_reason"] == "length")


def test_how_arguments_are_written():
    """structured_outputs beside tools says how JSON is written."""
    fields = {"messages": ASK, "tools": TOOLS, "tool_choice": NAMED, "max_tokens": 200, "seed": 3, "logit_bias": BIAS}
    with Server("--threads", "1", "--tool-call-parser", "hermes") as s:
        for style, start in (({"disable_any_whitespace": True}, '{"'), ({"whitespace_pattern": " "}, '{ "')):
            status, r = s.json("POST", "/v1/chat/completions", fields | {"structured_outputs": style})
            assert status == 200, r
            text = r["choices"][0]["message"]["tool_calls"][0]["function"]["arguments"]
            assert text.startswith(start) and json.loads(text), text
            assert text == json.dumps(json.loads(text), separators=(",", ":")) or start == '{ "', text
        status, r = s.json("POST", "/v1/chat/completions", fields | {"structured_outputs": {"whitespace_pattern": "x"}})
        assert status == 400 and r["error"]["param"] == "tools" and "whitespace" in r["error"]["message"], r


def test_nothing_is_left(server):
    server.wait_metric("sluice:grammar_matchers", 0)  # the engine lets go of a request just after its reply
    assert server.metric("sluice:step_mallocs_total") == 0


def test_unknown_parser():
    for flag in ("--tool-call-parser", "--reasoning-parser"):
        with pytest.raises(RuntimeError, match="did you mean"):
            with Server(flag, "hermess" if "tool" in flag else "qwen33"):
                pass
