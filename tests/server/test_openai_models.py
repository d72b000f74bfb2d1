# SPDX-License-Identifier: MIT
"""Every response of the endpoints that OpenAI has, against OpenAI's own description of them: the models of its Python
package, which are generated from its OpenAPI document. The package itself builds them without looking; here Pydantic
validates in strict mode, so that a missing field, a string for a number or a value outside an enumeration fails. What a
response has beyond its model must be listed below."""
import json

import pydantic
import pytest
from openai.types import Completion, CreateEmbeddingResponse, Model
from openai.types.chat import ChatCompletion, ChatCompletionChunk
from openai.types.responses import Response, ResponseStreamEvent

from serverproc import Server

HI = [{"role": "user", "content": "Tell me a story."}]
TOOL = {"type": "function", "function": {"name": "look", "parameters": {
    "type": "object", "properties": {"at": {"enum": ["sun", "moon"]}}, "required": ["at"], "additionalProperties": False}}}
FLAT_TOOL = {"type": "function", "name": "look", "strict": True, "parameters": TOOL["function"]["parameters"]}
SCHEMA = {"type": "object", "properties": {"n": {"type": "integer"}}, "required": ["n"], "additionalProperties": False}

# What vLLM and llama.cpp have besides, and this server too.
MORE = {"stop_reason", "token_ids", "prompt_token_ids", "prompt_logprobs", "prompt_text", "timings", "reasoning",
        "reasoning_content", "max_model_len", "root", "parent", "permission", "aliases", "system_fingerprint", "store",
        "bytes"}
OF_EMBEDDINGS = {"id", "created"}


@pytest.fixture(scope="module")
def server():
    with Server("--threads", "1", "--no-webui") as s:
        yield s
        assert s.process.poll() is None, "the server ended during the tests: " + s.log()


def unlisted(value):
    """Names of fields that no model of the tree knows, and MORE does not list."""
    found = set()
    if isinstance(value, pydantic.BaseModel):
        found |= set(value.model_extra or {}) - MORE
        for name in type(value).model_fields:
            found |= unlisted(getattr(value, name, None))
    elif isinstance(value, (list, tuple)):
        for item in value:
            found |= unlisted(item)
    return found


def check(model, data):
    value = pydantic.TypeAdapter(model).validate_json(json.dumps(data), strict=True)
    more = OF_EMBEDDINGS if model is CreateEmbeddingResponse else set()
    if isinstance(data, dict) and data.get("type") == "response.function_call_arguments.done":
        more = {"name"}  # which the API sends, and later versions of the package list
    assert unlisted(value) <= more, data


def without_first(data):
    """OpenAI's own answers have null where nothing came before, at the first token of an echo; its description has not."""
    for choice in data.get("choices", []):
        columns = choice.get("logprobs") or {}
        for name in ("token_logprobs", "top_logprobs"):
            if columns.get(name, [0])[:1] == [None]:
                del columns[name][0]


def whole(server, path, model, body):
    status, data = server.json("POST", path, body)
    assert status == 200, data
    if body.get("echo"):
        without_first(data)
    check(model, data)


CHATS = [
    {}, {"n": 2}, {"logprobs": True, "top_logprobs": 3}, {"stop": ["a"], "max_tokens": 60}, {"max_completion_tokens": 3},
    {"tools": [TOOL], "tool_choice": "required", "max_tokens": 40}, {"tools": [TOOL]},
    {"response_format": {"type": "json_schema", "json_schema": {"name": "a", "schema": SCHEMA}}, "max_tokens": 30},
    {"prompt_logprobs": 1}, {"return_token_ids": True, "timings_per_token": True}, {"service_tier": "auto", "user": "a"},
]


@pytest.mark.parametrize("fields", CHATS, ids=str)
def test_chat(server, fields):
    body = {"messages": HI, "max_tokens": 5, "seed": 1} | fields
    whole(server, "/v1/chat/completions", ChatCompletion, body)
    if "prompt_logprobs" in fields:
        return
    with server.stream("/v1/chat/completions", body | {"stream_options": {"include_usage": True}}) as events:
        n = 0
        for event in events:
            check(ChatCompletionChunk, event)
            n += 1
    assert n > 2


@pytest.mark.parametrize("fields", [
    {}, {"n": 2}, {"logprobs": 3}, {"echo": True, "logprobs": 1}, {"logprobs": 0},
    {"echo": True, "logprobs": 0}, {"stop": " "}, {"best_of": 3}, {"max_tokens": 0, "echo": True},
    {"prompt": ["a", "b"]}, {"return_token_ids": True, "timings_per_token": True}], ids=str)
def test_completions(server, fields):
    body = {"prompt": "Once upon a time", "max_tokens": 5, "seed": 1} | fields
    if fields == {"stop": " "}:
        body["max_tokens"] = 60
    whole(server, "/v1/completions", Completion, body)
    if "best_of" in fields:
        return
    with server.stream("/v1/completions", body) as events:
        for event in events:
            if event["choices"] and event["choices"][0]["finish_reason"] is None:
                event["choices"][0]["finish_reason"] = "stop"  # the model of whole replies serves streams too
            if fields.get("echo"):
                without_first(event)
            check(Completion, event)


@pytest.mark.parametrize("fields", [
    {}, {"instructions": "Be kind.", "temperature": 0, "top_p": 0.5}, {"include": ["message.output_text.logprobs"]},
    {"tools": [FLAT_TOOL], "tool_choice": "required", "max_output_tokens": 40}, {"metadata": {"a": "b"}, "store": False},
    {"text": {"format": {"type": "json_schema", "name": "a", "schema": SCHEMA}}, "max_output_tokens": 30}], ids=str)
def test_responses(server, fields):
    body = {"input": "Tell me a story.", "max_output_tokens": 16} | fields
    status, data = server.json("POST", "/v1/responses", body)
    assert status == 200, data
    check(Response, data)
    if body.get("store", True):
        check(Response, server.json("GET", "/v1/responses/" + data["id"])[1])
    with server.stream("/v1/responses", body) as events:
        kinds = []
        for event in events:
            check(ResponseStreamEvent, event)
            kinds.append(event["type"])
    assert kinds[0] == "response.created" and kinds[-1] in ("response.completed", "response.incomplete")


def test_models(server):
    _, data = server.json("GET", "/v1/models")
    assert data["object"] == "list"
    for one in data["data"]:
        check(Model, one)
        check(Model, server.json("GET", "/v1/models/" + one["id"])[1])


def test_embeddings():
    with Server("--runner", "pooling", "--convert", "embed", "--threads", "1") as s:
        for fields in ({}, {"dimensions": 8}, {"input": ["a", "b"]}):
            whole(s, "/v1/embeddings", CreateEmbeddingResponse, {"input": "a", "model": "storyteller"} | fields)


def test_errors(server):
    """OpenAI's Error: code and param may be null, message and type may not."""
    for path, body in (("/v1/chat/completions", {}), ("/v1/completions", {"prompt": 1}), ("/v1/responses", {"input": 1}),
                       ("/v1/completions", {"prompt": "a", "model": "x"}), ("/v1/nothing", {})):
        status, data = server.json("POST", path, body)
        assert status in (400, 404) and set(data) == {"error"}
        e = data["error"]
        assert set(e) == {"message", "type", "param", "code"}
        assert all(isinstance(e[k], str) and e[k] for k in ("message", "type"))
        assert all(e[k] is None or isinstance(e[k], str) for k in ("param", "code"))
