# SPDX-License-Identifier: MIT
"""OpenAI's responses over HTTP: its own Python client, unchanged, and what is kept of them."""
import json
import time
from concurrent.futures import ThreadPoolExecutor

import jsonschema
import openai
import pytest
from pydantic import BaseModel

from serverproc import Server

HI = "Once upon a time"
SCHEMA = {"type": "object", "properties": {"city": {"enum": ["Rome", "Oslo"]}}, "required": ["city"],
          "additionalProperties": False}
TOOL = {"type": "function", "name": "get_weather", "description": "d", "parameters": SCHEMA, "strict": False}
# White space is barred and ends are likely: the model would go on for ever between the tokens of JSON.
BIAS = {str(i): -100 for i in (202, 203, 206, 209, 225, 302)} | {str(i): 12 for i in (0, 4, 65)}
# Prints what it is given, so that prompts can be looked at; thinks unless it is told not to.
ECHO = ("{% if tools %}[{{ tools | map(attribute='function') | map(attribute='name') | join(' ') }}]{% endif %}"
        "{% for m in messages %}<{{ m.role }}>{{ m.content }}{% if m.reasoning %}({{ m.reasoning }}){% endif %}"
        "{% for c in m.tool_calls or [] %}{{ c.id }}:{{ c.function.name }}={{ c.function.arguments | tojson }}"
        "{% endfor %}{% endfor %}{% if add_generation_prompt %}<assistant>{% endif %}"
        "{% if enable_thinking is not false %}<think>{% else %}<think></think>{% endif %}")
PLAIN = {"effort": "none"}


@pytest.fixture(scope="module")
def server():
    with Server("--threads", "1", "--reasoning-parser", "deepseek_r1", "--tool-call-parser", "hermes",
                "--chat-template", ECHO) as s:
        yield s
        assert s.process.poll() is None, "the server ended during the tests: " + s.log()


@pytest.fixture(scope="module")
def client(server):
    return openai.OpenAI(base_url=server.url + "/v1", api_key="unused", max_retries=0, timeout=60)


def args(fields):
    extra = {"seed": 3, "ignore_eos": fields.pop("ignore_eos", True)} | fields.pop("extra", {})
    return {"model": "storyteller", "input": HI, "max_output_tokens": 16, "temperature": 0, "reasoning": PLAIN,
            "extra_body": extra} | fields


def ask(client, **fields):
    return client.responses.create(**args(fields))


def same_prompt(server, body, text):
    """The text that a body becomes has as many tokens as the response says its input had."""
    n = server.json("POST", "/tokenize", {"prompt": text, "add_special_tokens": False})[1]["count"]
    status, r = server.json("POST", "/v1/responses", {"max_output_tokens": 1, "reasoning": PLAIN} | body)
    assert status == 200, r
    assert r["usage"]["input_tokens"] == n, text
    return r


def test_response(client):
    r = ask(client, metadata={"a": "b"}, instructions="Be brief", user="u")
    assert r.object == "response" and r.id.startswith("resp_") and r.status == "incomplete"
    assert r.incomplete_details.reason == "max_output_tokens" and r.error is None
    assert [o.type for o in r.output] == ["message"] and r.output[0].role == "assistant"
    assert r.output_text == r.output[0].content[0].text and r.output_text
    assert r.usage.output_tokens == 16 and r.usage.total_tokens == 16 + r.usage.input_tokens
    assert r.metadata == {"a": "b"} and r.instructions == "Be brief" and r.temperature == 0
    assert r.max_output_tokens == 16 and r.reasoning.effort == "none" and r.tools == [] and r.store is True
    word = r.output_text.split()[2]
    s = ask(client, instructions="Be brief", extra={"stop": [word]})
    assert s.status == "completed" and s.incomplete_details is None and word not in s.output_text
    assert s.output[0].status == "completed" and r.output[0].status == "incomplete"


def test_reasoning(client):
    r = ask(client, reasoning={"effort": "high"}, extra={"thinking_token_budget": 5})
    assert [o.type for o in r.output] == ["reasoning", "message"]
    assert r.output[0].content[0].text and r.output[0].summary == [] and r.output_text
    assert 0 < r.usage.output_tokens_details.reasoning_tokens <= 6


def gather(stream):
    """Checks the order of a stream's events; gives its last response and the texts of deltas by item."""
    texts, open_items, kinds, last = {}, {}, [], None
    for n, e in enumerate(stream):
        assert e.sequence_number == n and last is None
        kinds.append(e.type)
        if e.type == "response.output_item.added":
            assert not open_items and e.output_index == len(texts)
            open_items[e.item.id] = e.item.type
            texts[e.item.id] = ""
            assert e.item.status == "in_progress"
        elif e.type.endswith(".delta"):
            assert e.item_id in open_items and e.delta
            texts[e.item_id] += e.delta
        elif e.type in ("response.output_text.done", "response.reasoning_text.done"):
            assert e.text == texts[e.item_id]
        elif e.type == "response.function_call_arguments.done":
            assert e.arguments == texts[e.item_id]
        elif e.type == "response.output_item.done":
            assert open_items.pop(e.item.id) == e.item.type
        elif e.type in ("response.completed", "response.incomplete"):
            last = e.response
    assert kinds[:2] == ["response.created", "response.in_progress"] and not open_items
    assert [o.id for o in last.output] == list(texts)
    return last, texts


def test_stream_equals_whole(client):
    for fields in ({}, {"reasoning": {"effort": "low"}, "extra": {"thinking_token_budget": 4}},
                   {"include": ["message.output_text.logprobs"], "top_logprobs": 2},
                   {"tools": [TOOL], "tool_choice": "required", "temperature": 1, "max_output_tokens": 120,
                    "ignore_eos": False, "extra": {"logit_bias": BIAS}}):
        whole = ask(client, **fields)
        last, texts = gather(ask(client, stream=True, **fields))
        assert last.status == whole.status
        assert [o.type for o in last.output] == [o.type for o in whole.output]
        for a, b in zip(last.output, whole.output):
            if a.type == "function_call":
                assert (a.name, a.arguments, texts[a.id]) == (b.name, b.arguments, b.arguments)
            else:
                assert a.content == b.content and texts[a.id] == a.content[0].text


def test_logprobs(client):
    r = ask(client, include=["message.output_text.logprobs"], top_logprobs=2)
    content = r.output[0].content[0]
    assert "".join(t.token for t in content.logprobs).strip() == content.text.strip()
    assert all(len(t.top_logprobs) == 2 and t.logprob <= 0 for t in content.logprobs)
    assert ask(client).output[0].content[0].logprobs == []


@pytest.mark.parametrize("together", [1, 2, 3, 7, 16])
def test_logprobs_are_of_the_text(client, together):
    """Tokens of reasoning and of its markers have none in a message, however many come at a time."""
    fields = {"include": ["message.output_text.logprobs"], "reasoning": {}}
    whole = ask(client, extra={"thinking_token_budget": 4}, **fields).output[1].content[0]
    last, _ = gather(ask(client, stream=True, extra={"thinking_token_budget": 4, "stream_interval": together}, **fields))
    content = last.output[1].content[0]
    assert content.text == whole.text and len(content.logprobs) > 3
    assert [t.token for t in content.logprobs] == [t.token for t in whole.logprobs]
    assert "".join(t.token for t in content.logprobs).strip() == content.text.strip()


def test_logprobs_of_held_text(client):
    """A message's first tokens look like a stop string, so that their text comes later than they do."""
    fields = {"include": ["message.output_text.logprobs"]}
    text = ask(client).output_text
    r = ask(client, extra={"stop": [text[:9] + "#"]}, **fields)
    content = r.output[0].content[0]
    assert content.text == text
    assert "".join(t.token for t in content.logprobs).strip() == text.strip()


@pytest.mark.parametrize("text", ["<b>bold</b>", "< think", "\U0001F600 hi", "\u00e9", "  a"])
def test_logprobs_of_what_may_be_a_marker(client, text):
    """A message's first tokens, which the parser holds back, or which are half a character."""
    fields = {"include": ["message.output_text.logprobs"], "max_output_tokens": 60, "ignore_eos": False}
    r = ask(client, extra={"structured_outputs": {"choice": [text]}}, **fields)
    content = r.output[0].content[0]
    assert content.text == text.strip()
    assert b"".join(bytes(t.bytes) for t in content.logprobs).decode().strip() == text.strip()
    last, _ = gather(ask(client, stream=True, extra={"structured_outputs": {"choice": [text]}}, **fields))
    assert last.output[0].content[0] == content


def test_tools(client):
    for choice in ("required", {"type": "function", "name": "get_weather"}):
        r = ask(client, tools=[TOOL, {"type": "web_search"}], tool_choice=choice, max_output_tokens=200, temperature=1,
                ignore_eos=False, parallel_tool_calls=False, extra={"logit_bias": BIAS})
        assert r.status == "completed" and [o.type for o in r.output] == ["function_call"]
        call = r.output[0]
        assert call.name == "get_weather" and call.call_id and call.status == "completed"
        jsonschema.validate(json.loads(call.arguments), SCHEMA)
        assert [t.name for t in r.tools] == ["get_weather"]  # who searches the web is nowhere here
    back = [{"role": "user", "content": HI}, *[o.model_dump() for o in r.output],
            {"type": "function_call_output", "call_id": call.call_id, "output": "21 degrees"}]
    assert ask(client, input=back, tools=[TOOL]).output_text
    again = ask(client, input=back[-1:], previous_response_id=r.id, tools=[TOOL])
    assert again.output_text == ask(client, input=back, tools=[TOOL]).output_text


def test_structured(client):
    class City(BaseModel):
        city: bool

    r = client.responses.parse(**args({"text_format": City, "max_output_tokens": 100, "temperature": 1,
                                       "ignore_eos": False, "extra": {"logit_bias": BIAS}}))
    assert isinstance(r.output_parsed, City)
    r = ask(client, text={"format": {"type": "json_schema", "name": "n", "schema": SCHEMA}}, max_output_tokens=100,
            temperature=1, ignore_eos=False, extra={"logit_bias": BIAS})
    jsonschema.validate(json.loads(r.output_text), SCHEMA)
    assert r.text.format.name == "n"


def test_prompts(server):
    """What items become in front of the template."""
    end = "<assistant><think></think>"
    same_prompt(server, {"input": HI}, "<user>" + HI + end)
    same_prompt(server, {"input": HI, "instructions": "Be"}, "<system>Be<user>" + HI + end)
    same_prompt(server, {"input": [{"role": "developer", "content": "brief"}, {"role": "user", "content": [
        {"type": "input_text", "text": "a"}, {"type": "input_text", "text": "b"}]}], "instructions": "Be"},
        "<system>Be\n\nbrief<user>a\nb" + end)
    talk = [{"type": "message", "role": "user", "content": "a"},
            {"type": "reasoning", "summary": [], "content": [{"type": "reasoning_text", "text": "hm"}]},
            {"type": "message", "role": "assistant", "id": "m", "status": "completed", "content": [
                {"type": "output_text", "text": "b", "annotations": []}]},
            {"type": "function_call", "call_id": "c1", "name": "f", "arguments": '{"q": 1}'},
            {"type": "function_call", "call_id": "c2", "name": "g", "arguments": "{}"},
            {"type": "function_call_output", "call_id": "c1", "output": "d"},
            {"type": "function_call_output", "call_id": "c2", "output": [{"type": "input_text", "text": "e"}]},
            {"role": "user", "content": "f"}]
    same_prompt(server, {"input": talk}, '<user>a<assistant>b(hm)c1:f={"q": 1}c2:g={}<tool>d<tool>e<user>f' + end)
    same_prompt(server, {"input": talk[:1], "tools": [TOOL, {"type": "web_search_preview"}]},
                "[get_weather]<user>a" + end)
    same_prompt(server, {"input": "a", "reasoning": {}}, "<user>a<assistant><think>")


def test_conversation(server):
    """previous_response_id: earlier messages stand in front, earlier instructions do not."""
    first = same_prompt(server, {"input": "a", "instructions": "one"}, "<system>one<user>a<assistant><think></think>")
    said = first["output"][0]["content"][0]["text"] if first["output"] else ""
    second = same_prompt(server, {"input": "b", "instructions": "two", "previous_response_id": first["id"]},
                         f"<system>two<user>a<assistant>{said}<user>b<assistant><think></think>")
    assert second["previous_response_id"] == first["id"]
    said2 = second["output"][0]["content"][0]["text"] if second["output"] else ""
    third = f"<user>a<assistant>{said}<user>b<assistant>{said2}<user>c<assistant><think></think>"
    same_prompt(server, {"input": "c", "previous_response_id": second["id"]}, third)
    assert server.json("DELETE", "/v1/responses/" + first["id"])[0] == 200  # its turn lives on in those behind it
    same_prompt(server, {"input": "c", "previous_response_id": second["id"]}, third)


def test_a_long_conversation_holds_nobody_up():
    """A body of a few bytes that goes on from megabytes: others are answered while it is prepared."""
    with Server("--threads", "1", "--max-model-len", "64", "--chat-template", ECHO) as s, ThreadPoolExecutor(1) as pool:
        body = {"max_output_tokens": 1, "truncation": "auto"}
        _, first = s.json("POST", "/v1/responses", body | {"input": "Once upon a time. " * 50000})
        reply = pool.submit(s.json, "POST", "/v1/responses", body | {"input": "a", "previous_response_id": first["id"]})
        times = [time.monotonic()]
        while not reply.done():
            assert s.request("GET", "/health")[0] == 200
            times.append(time.monotonic())
        status, r = reply.result()
        assert status == 200 and r["usage"]["input_tokens"] == 63
        assert max(b - a for a, b in zip(times, times[1:])) < (times[-1] - times[0]) * 3 / 4


def test_store(client, server):
    r = ask(client)
    assert client.responses.retrieve(r.id) == r
    with client.responses.stream(**args({"ignore_eos": False, "extra": {"guided_choice": ["yes", "no"]}})) as stream:
        streamed = stream.get_final_response()
    assert streamed.output_text in ("yes", "no")
    assert client.responses.retrieve(streamed.id).output_text == streamed.output_text
    client.responses.delete(r.id)
    for call in (client.responses.retrieve, client.responses.delete, client.responses.cancel):
        with pytest.raises(openai.NotFoundError):
            call(r.id)
    with pytest.raises(openai.BadRequestError) as e:
        ask(client, previous_response_id=r.id)
    assert e.value.code == "previous_response_not_found" and e.value.param == "previous_response_id"
    with pytest.raises(openai.BadRequestError):
        client.responses.cancel(streamed.id)  # it has ended
    gone = ask(client, store=False)
    assert gone.store is False
    with pytest.raises(openai.NotFoundError):
        client.responses.retrieve(gone.id)
    for path in ("/v1/responses/", "/v1/responses/x/y", "/v1/responses/" + "x" * 100, f"/v1/responses/{streamed.id}/"):
        assert server.request("GET", path)[0] == 404
    assert server.request("POST", "/v1/responses/" + streamed.id, b"{}")[0] == 404


def test_cancel(client):
    """Another connection ends a response that is under way."""
    with client.responses.create(**args({"stream": True, "max_output_tokens": 400})) as stream:
        first = next(stream)
        assert client.responses.retrieve(first.response.id).status == "in_progress"
        assert client.responses.cancel(first.response.id).id == first.response.id
        last = [e for e in stream][-1]
    if last.response.status == "cancelled":  # a quick machine may have been done already
        assert last.response.usage.output_tokens < 400
        assert client.responses.retrieve(first.response.id).status == "cancelled"


def test_who_leaves_leaves_nothing(client, server):
    with client.responses.create(**args({"stream": True, "max_output_tokens": 400})) as stream:
        first = next(stream)
    deadline = time.monotonic() + 10
    while server.request("GET", "/v1/responses/" + first.response.id)[0] == 200 and time.monotonic() < deadline:
        time.sleep(0.02)
    # either it was taken to its end before the client left, or it is gone
    status, r = server.json("GET", "/v1/responses/" + first.response.id)
    assert status == 404 or r["status"] != "in_progress"


def test_bounded():
    """The one not used for longest goes first; without room nothing is kept, and all is answered."""
    body = {"input": "a " * 200, "max_output_tokens": 1}
    with Server("--null-model", "--max-stored-bytes", "20000") as s:
        ids = [s.json("POST", "/v1/responses", body)[1]["id"] for _ in range(40)]
        kept = [s.request("GET", "/v1/responses/" + i)[0] == 200 for i in ids]
        assert kept[-1] and not kept[0] and kept == sorted(kept) and 3 <= sum(kept) <= 30
        assert s.request("GET", "/v1/responses/" + ids[kept.index(True)])[0] == 200  # used: not the next to go
        s.json("POST", "/v1/responses", body)
        assert s.request("GET", "/v1/responses/" + ids[kept.index(True)])[0] == 200
        last = ids[-1]
        for _ in range(60):  # one conversation: what falls out of the table lives on as long as it is gone on from
            status, r = s.json("POST", "/v1/responses", {"input": "b", "max_output_tokens": 1,
                                                         "previous_response_id": last})
            assert status == 200
            last = r["id"]
    with Server("--null-model", "--max-stored-bytes", "0") as s:
        status, r = s.json("POST", "/v1/responses", body)
        assert status == 200 and r["store"] is False and s.request("GET", "/v1/responses/" + r["id"])[0] == 404


def test_keys_see_their_own():
    with Server("--null-model", "--api-key", "one,two") as s:
        one, two = {"Authorization": "Bearer one"}, {"Authorization": "Bearer two"}
        r = s.json("POST", "/v1/responses", {"input": "a", "max_output_tokens": 1}, one)[1]
        path = "/v1/responses/" + r["id"]
        assert s.request("GET", path, headers=two)[0] == s.request("DELETE", path, headers=two)[0] == 404
        assert s.request("POST", path + "/cancel", b"", two)[0] == 404
        status, e = s.json("POST", "/v1/responses", {"input": "b", "previous_response_id": r["id"]}, two)
        assert status == 400 and e["error"]["code"] == "previous_response_not_found"
        assert s.request("GET", path, headers=one)[0] == 200
        assert s.json("POST", "/v1/responses", {"input": "b", "previous_response_id": r["id"]}, one)[0] == 200


def test_ids_are_the_servers(server):
    """A client's name for its request does not choose the id by which others could find the response."""
    headers = {"X-Request-Id": "mine"}
    a = server.json("POST", "/v1/responses", {"input": "a", "max_output_tokens": 1, "request_id": "x"}, headers)[1]
    assert "mine" not in a["id"] and len(a["id"]) == len("resp_") + 32


def test_errors(server):
    for fields, param in [
            ({"input": []}, "input"), ({"input": None}, "input"), ({"input": [1]}, "input[0]"),
            ({"input": [{"role": "user", "content": [{"type": "input_image"}]}]}, "input[0].content[0]"),
            ({"input": [{"role": "tool", "content": "a"}]}, "input[0].role"),
            ({"input": [{"type": "item_reference", "id": "a"}]}, "input[0]"),
            ({"input": [{"type": "function_call", "name": "f", "arguments": "{}"}]}, "input[0].call_id"),
            ({"tools": [TOOL, TOOL]}, "tools[1]"), ({"tools": [{"type": "mcp"}]}, "tools"), ({"tools": [{"type": "who"}]}, "tools[0]"),
            ({"tools": [{"type": "function", "name": "a b"}]}, "tools[0].name"),
            ({"tools": [TOOL], "tool_choice": {"type": "function", "name": "no"}}, "tool_choice"),
            ({"text": {"format": {"type": "json_schema", "name": "n"}}}, "text.format.schema"),
            ({"include": ["everything"]}, "include"), ({"truncation": "some"}, "truncation"),
            ({"background": True}, "background"), ({"conversation": "c"}, "conversation"),
            ({"prompt": {"id": "p"}}, "prompt"), ({"max_output_tokens": 0}, "max_output_tokens"),
            ({"instructions": ["a"]}, "instructions"), ({"reasoning": {"effort": 3}}, "reasoning.effort")]:
        status, e = server.json("POST", "/v1/responses", {"input": HI, "max_output_tokens": 1} | fields)
        assert status == 400 and e["error"]["param"] == param, (fields, e)


def test_truncation(server):
    n = 2000
    body = {"input": "the dog " * n, "max_output_tokens": 1}
    assert server.json("POST", "/v1/responses", body)[0] == 400
    status, r = server.json("POST", "/v1/responses", body | {"truncation": "auto"})
    assert status == 200 and r["truncation"] == "auto"


def test_nothing_is_left(server):
    server.wait_metric("vllm:num_requests_running", 0.0)
    assert server.metric("sluice:step_mallocs_total") == 0
