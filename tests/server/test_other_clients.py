# SPDX-License-Identifier: MIT
"""LiteLLM and LangChain as their users have them, pointed at this server by its address and by nothing else. They pin a
version of OpenAI's client of their own, hence an environment of their own (requirements-clients.txt)."""
import asyncio
import json
import os
import time

os.environ["LITELLM_LOCAL_MODEL_COST_MAP"] = "True"  # else it asks the network for a list of prices

import langchain_core.exceptions  # noqa: E402
import litellm  # noqa: E402
import openai  # noqa: E402
import pytest  # noqa: E402
from langchain_core.messages import AIMessage, HumanMessage, SystemMessage, ToolMessage  # noqa: E402
from langchain_core.tools import tool  # noqa: E402
from langchain_openai import ChatOpenAI, OpenAI, OpenAIEmbeddings  # noqa: E402
from pydantic import BaseModel, ConfigDict, Field  # noqa: E402
from typing import Literal  # noqa: E402

from serverproc import Server  # noqa: E402

HI = [{"role": "user", "content": "Tell me a story about a dog."}]
KEY = "sk-of-the-test"
# Ends are likely, so that calls are few.
BIAS = {str(i): 12 for i in (0, 4, 65)}
LOOK = {"type": "function", "function": {"name": "look", "parameters": {
    "type": "object", "properties": {"at": {"enum": ["sun", "moon"]}}, "required": ["at"],
    "maxProperties": 1}}}  # additionalProperties does not come through all of the clients


class Story(BaseModel):
    """What the model is to say of a story: bounded, so that a model that only tells stories comes to an end."""
    model_config = ConfigDict(extra="forbid")
    pages: int = Field(ge=1, le=9)
    kind: Literal["sad", "funny"]


@tool
def look(at: Literal["sun", "moon"]) -> str:
    """Look at something."""
    return "bright: " + at


@pytest.fixture(scope="module")
def server():
    with Server("--threads", "1", "--served-model-name", "m", "--api-key", KEY) as s:
        s.headers = {"Authorization": "Bearer " + KEY}
        yield s
        assert s.process.poll() is None, "the server ended during the tests: " + s.log()


@pytest.fixture(scope="module")
def vectors():
    with Server("--threads", "1", "--served-model-name", "m", "--runner", "pooling", "--convert", "embed") as s:
        yield s


def plain(server, path="/v1/chat/completions", **more):
    """What the server says to the same request from no client at all."""
    status, body = server.json("POST", path, {"max_tokens": 8, "temperature": 0} | more, server.headers)
    assert status == 200, body
    return body


# ---- LiteLLM, by its ways to such a server

@pytest.fixture(params=["openai/m", "hosted_vllm/m"])
def lite(request, server):
    return {"model": request.param, "api_base": server.url + "/v1", "api_key": KEY, "max_tokens": 8, "temperature": 0,
            "num_retries": 0}


def test_litellm_chat(lite, server):
    want = plain(server, messages=HI)
    text = want["choices"][0]["message"]["content"]
    r = litellm.completion(messages=HI, **lite)
    assert r.choices[0].message.content == text and text and r.choices[0].finish_reason == "length"
    assert r.usage.completion_tokens == 8 and r.usage.prompt_tokens == want["usage"]["prompt_tokens"]
    later = asyncio.run(litellm.acompletion(messages=HI, **lite))
    assert later.choices[0].message.content == text
    more = litellm.completion(messages=HI, logprobs=True, top_logprobs=2, n=2, seed=3, stop=["zzz"], **lite)
    assert len(more.choices) == 2 and len(more.choices[1].logprobs.content) == 8
    assert len(more.choices[0].logprobs.content[0].top_logprobs) == 2


def test_litellm_streams(lite, server):
    want = plain(server, messages=HI)
    chunks = list(litellm.completion(messages=HI, stream=True, stream_options={"include_usage": True}, **lite))
    assert "".join(c.choices[0].delta.content or "" for c in chunks if c.choices) == want["choices"][0]["message"]["content"]
    assert sum(getattr(c, "usage", None) is not None for c in chunks) == 1
    assert chunks[-1].usage.completion_tokens == 8 and chunks[-1].usage.prompt_tokens == want["usage"]["prompt_tokens"]
    whole = litellm.stream_chunk_builder(chunks, messages=HI)
    assert whole.choices[0].message.content == want["choices"][0]["message"]["content"]
    assert whole.choices[0].finish_reason == "length"

    async def collect():
        stream = await litellm.acompletion(messages=HI, stream=True, **lite)
        return "".join([c.choices[0].delta.content or "" async for c in stream])
    assert asyncio.run(collect()) == want["choices"][0]["message"]["content"]


def test_litellm_tools(lite):
    args = lite | {"max_tokens": 90, "messages": HI, "tools": [LOOK], "tool_choice": "required", "logit_bias": BIAS,
                   "parallel_tool_calls": False}
    r = litellm.completion(**args)
    call = r.choices[0].message.tool_calls[0]
    assert call.function.name == "look" and r.choices[0].finish_reason == "tool_calls"
    assert json.loads(call.function.arguments) in ({"at": "sun"}, {"at": "moon"})
    parts = litellm.stream_chunk_builder(list(litellm.completion(stream=True, **args)))
    assert parts.choices[0].message.tool_calls[0].function == call.function
    talk = HI + [r.choices[0].message.model_dump(), {"role": "tool", "tool_call_id": call.id, "content": "bright"}]
    assert litellm.completion(**lite | {"messages": talk}).choices[0].message.content


def test_litellm_structured_output(lite):
    for form in (Story, {"type": "json_schema", "json_schema": {"name": "s", "schema": Story.model_json_schema()}}):
        r = litellm.completion(messages=HI, response_format=form, logit_bias=BIAS, **lite | {"max_tokens": 60})
        assert Story.model_validate_json(r.choices[0].message.content)


def test_litellm_errors(lite):
    with pytest.raises(litellm.BadRequestError, match="n must be between"):
        litellm.completion(messages=HI, n=1000, **lite)
    with pytest.raises(litellm.NotFoundError):
        litellm.completion(messages=HI, **lite | {"model": lite["model"] + "x"})
    with pytest.raises(litellm.AuthenticationError):
        litellm.completion(messages=HI, **lite | {"api_key": "wrong"})
    with pytest.raises(litellm.ContextWindowExceededError):
        litellm.completion(messages=[{"role": "user", "content": "dog " * 5000}], **lite)


def test_litellm_other_endpoints(server, vectors):
    at = {"api_base": server.url + "/v1", "api_key": KEY, "temperature": 0}
    want = plain(server, "/v1/completions", prompt="Once upon a time")["choices"][0]["text"]
    r = litellm.text_completion(model="text-completion-openai/m", prompt="Once upon a time", max_tokens=8, **at)
    assert r.choices[0].text == want
    parts = litellm.text_completion(model="text-completion-openai/m", prompt="Once upon a time", max_tokens=8, stream=True,
                                    **at)
    assert "".join(p.choices[0].text or "" for p in parts) == want
    r = litellm.responses(model="openai/m", input="Tell me a story.", max_output_tokens=16, **at)
    assert r.output[0].content[0].text and r.usage.output_tokens == 16
    for provider in ("openai", "hosted_vllm"):
        for more in ({}, {"encoding_format": "float"}, {"encoding_format": "base64"}):
            e = litellm.embedding(model=provider + "/m", input=["a", "b"], api_base=vectors.url + "/v1", api_key="unused",
                                  **more)
            assert len(e.data) == 2 and len(e.data[0]["embedding"]) == len(e.data[1]["embedding"]) > 0


def test_litellm_as_anthropic(server):
    """Its route to Anthropic, whose base has no /v1."""
    at = {"model": "anthropic/m", "api_base": server.url, "api_key": KEY, "max_tokens": 8, "temperature": 0}
    want = plain(server, messages=HI)["choices"][0]["message"]["content"]
    r = litellm.completion(messages=HI, **at)
    assert r.choices[0].message.content == want and r.usage.completion_tokens == 8 and r.choices[0].finish_reason == "length"
    parts = list(litellm.completion(messages=HI, stream=True, **at))
    assert "".join(p.choices[0].delta.content or "" for p in parts) == want
    called = litellm.completion(messages=HI, tools=[LOOK], tool_choice="required", **at | {"max_tokens": 90, "extra_body": {"logit_bias": BIAS}})
    assert called.choices[0].message.tool_calls[0].function.name == "look"
    with pytest.raises(litellm.AuthenticationError):
        litellm.completion(messages=HI, **at | {"api_key": "wrong"})
    with pytest.raises(litellm.NotFoundError):
        litellm.completion(messages=HI, **at | {"model": "anthropic/x"})
    with pytest.raises(litellm.ContextWindowExceededError):
        litellm.completion(messages=[{"role": "user", "content": "dog " * 5000}], **at)


def test_litellm_batches(tmp_path):
    lines = [json.dumps({"custom_id": str(i), "method": "POST", "url": "/v1/chat/completions",
                         "body": {"messages": HI, "max_tokens": 2}}) for i in range(3)]
    with Server("--threads", "1", "--file-storage-path", str(tmp_path)) as s:
        at = {"custom_llm_provider": "openai", "api_base": s.url + "/v1", "api_key": "unused"}
        given = litellm.create_file(file=("in.jsonl", "\n".join(lines).encode()), purpose="batch", **at)
        batch = litellm.create_batch(input_file_id=given.id, endpoint="/v1/chat/completions", completion_window="24h", **at)
        deadline = time.monotonic() + 30
        while (batch := litellm.retrieve_batch(batch_id=batch.id, **at)).status != "completed":
            assert time.monotonic() < deadline
            time.sleep(0.02)
        got = litellm.file_content(file_id=batch.output_file_id, **at).content.splitlines()
        assert [json.loads(x)["custom_id"] for x in got] == ["0", "1", "2"]
        assert batch.id in [b.id for b in litellm.list_batches(**at).data]


# ---- LangChain

def chat(server, **more):
    return ChatOpenAI(**{"base_url": server.url + "/v1", "api_key": KEY, "model": "m", "temperature": 0, "max_retries": 0,
                         "max_completion_tokens": 8} | more)


TALK = [SystemMessage("Be kind."), HumanMessage("hi"), AIMessage("hello"), HumanMessage("Tell me a story.")]


def test_langchain_chat(server):
    llm = chat(server)
    whole = llm.invoke(TALK)
    assert whole.content and whole.usage_metadata["output_tokens"] == 8
    assert whole.response_metadata["finish_reason"] == "length" and whole.response_metadata["model_name"] == "m"
    parts = list(llm.stream(TALK, stream_usage=True))
    assert "".join(c.content for c in parts) == whole.content
    assert [c.usage_metadata["output_tokens"] for c in parts if c.usage_metadata] == [8]
    assert [r.content for r in llm.batch([TALK, TALK])] == [whole.content] * 2
    assert asyncio.run(llm.ainvoke(TALK)).content == whole.content
    said = chat(server, logprobs=True, top_logprobs=2).invoke(TALK)
    assert len(said.response_metadata["logprobs"]["content"]) == 8


def test_langchain_responses(server):
    llm = chat(server, max_completion_tokens=16, use_responses_api=True)
    whole = llm.invoke(TALK)
    assert whole.text and whole.usage_metadata["output_tokens"] == 16
    assert "".join(c.text for c in llm.stream(TALK)) == whole.text
    assert isinstance(chat(server, max_completion_tokens=100, use_responses_api=True, extra_body={"logit_bias": BIAS}).with_structured_output(
        Story, method="json_schema").invoke("a story"), Story)


@pytest.mark.parametrize("method", ["json_schema", "function_calling"])
def test_langchain_structured_output(server, method):
    llm = chat(server, max_completion_tokens=100, logit_bias=BIAS)
    assert isinstance(llm.with_structured_output(Story, method=method).invoke("a story"), Story)
    got = llm.with_structured_output(Story, method=method, include_raw=True, strict=True).invoke("a story")
    assert isinstance(got["parsed"], Story) and got["parsing_error"] is None


def test_langchain_json_mode(server):
    """The object may be any: only a short one is sure to end."""
    llm = chat(server, max_completion_tokens=100, logit_bias=BIAS | {"97": 50})
    assert isinstance(llm.with_structured_output(method="json_mode").invoke("a story as JSON"), dict)


def test_langchain_tools(server):
    llm = chat(server, max_completion_tokens=90, logit_bias=BIAS).bind_tools([look], tool_choice="required", strict=True)
    asked = llm.invoke("look at the sun")
    assert asked.tool_calls[0]["name"] == "look" and asked.tool_calls[0]["args"]["at"] in ("sun", "moon")
    parts = None
    for chunk in llm.stream("look at the sun"):
        parts = chunk if parts is None else parts + chunk
    assert parts.tool_calls[0]["args"] == asked.tool_calls[0]["args"]
    answer = look.invoke(asked.tool_calls[0])
    assert isinstance(answer, ToolMessage) and answer.tool_call_id == asked.tool_calls[0]["id"]
    assert chat(server).invoke([HumanMessage("look"), asked, answer]).content


def test_langchain_errors(server):
    with pytest.raises(openai.BadRequestError, match="n must be between"):
        chat(server, n=1000).invoke("hi")
    with pytest.raises(openai.NotFoundError):
        chat(server, model="x").invoke("hi")
    with pytest.raises(openai.AuthenticationError):
        chat(server, api_key="wrong").invoke("hi")
    with pytest.raises(langchain_core.exceptions.ContextOverflowError):
        chat(server).invoke("dog " * 5000)


def test_langchain_text_and_embeddings(server, vectors):
    text = OpenAI(base_url=server.url + "/v1", api_key=KEY, model="m", temperature=0, max_tokens=5)
    assert text.invoke("Once upon a time") == "".join(text.stream("Once upon a time")) != ""
    e = OpenAIEmbeddings(base_url=vectors.url + "/v1", api_key="unused", model="m", check_embedding_ctx_length=False)
    one, two = e.embed_documents(["a", "b"])
    assert e.embed_query("a") == pytest.approx(one) and one != two
