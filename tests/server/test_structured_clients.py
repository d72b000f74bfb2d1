# SPDX-License-Identifier: MIT
"""Libraries that make objects of what a model says, unmodified and with the bundled model: instructor, LangChain,
pydantic-ai, outlines and DSPy, in each of the ways in which they ask a server like this one for structure. The schema is
what pydantic makes of a class; the model has no idea of JSON, so that all of it comes from the constraint."""
import asyncio
import os
import tempfile
from typing import Literal

os.environ["LITELLM_LOCAL_MODEL_COST_MAP"] = "True"  # else it asks the network for a list of prices
os.environ["DSPY_CACHEDIR"] = tempfile.mkdtemp()     # before the import

import dspy  # noqa: E402
import instructor  # noqa: E402
import openai  # noqa: E402
import outlines  # noqa: E402
import pytest  # noqa: E402
from langchain_openai import ChatOpenAI  # noqa: E402
from pydantic import BaseModel, ConfigDict, Field  # noqa: E402
from pydantic_ai import Agent, NativeOutput, ToolOutput  # noqa: E402
from pydantic_ai.models.openai import OpenAIChatModel, OpenAIResponsesModel  # noqa: E402
from pydantic_ai.providers.openai import OpenAIProvider  # noqa: E402

from serverproc import Server  # noqa: E402

PROMPT = "Tell me of a dog."


class Food(BaseModel):
    name: str = Field(max_length=12)
    grams: int


class Dog(BaseModel):
    """Not closed by its schema (extra is ignored), which pydantic's default is."""
    name: str = Field(max_length=16)
    age: int
    size: Literal["small", "large"]
    food: list[Food] = Field(max_length=2)
    owner: str | None = Field(max_length=16)


class Strict(Dog):
    model_config = ConfigDict(extra="forbid")


@pytest.fixture(scope="module")
def server():
    with Server("--threads", "1", "--served-model-name", "m") as s:
        yield s
        assert s.process.poll() is None, "the server ended during the tests: " + s.log()


@pytest.fixture(scope="module")
def client(server):
    return openai.OpenAI(base_url=server.url + "/v1", api_key="none", max_retries=0)


def is_dog(x, kind=Dog):
    assert isinstance(x, kind) and len(x.name) <= 16 and x.size in ("small", "large"), x
    assert isinstance(x.age, int) and all(isinstance(f, Food) for f in x.food)


@pytest.mark.parametrize("kind", [Dog, Strict])
@pytest.mark.parametrize("method", ["parse", "responses"])
def test_openai_parse(client, method, kind):
    if method == "parse":
        r = client.chat.completions.parse(model="m", messages=[{"role": "user", "content": PROMPT}], response_format=kind,
                                          temperature=1, seed=1)
        is_dog(r.choices[0].message.parsed, kind)
    else:
        is_dog(client.responses.parse(model="m", input=PROMPT, text_format=kind, temperature=1).output_parsed, kind)


@pytest.mark.parametrize("mode", ["TOOLS", "JSON_SCHEMA", "RESPONSES_TOOLS"])
def test_instructor(client, mode):
    """Modes that put the schema into the prompt alone (JSON, MD_JSON) need a model that follows it."""
    c = instructor.from_openai(client, mode=instructor.Mode[mode])
    for kind in (Dog, Strict):
        is_dog(c.create(model="m", messages=[{"role": "user", "content": PROMPT}], response_model=kind, max_retries=0,
                        temperature=1), kind)


def test_instructor_streams(client):
    c = instructor.from_openai(client, mode=instructor.Mode.JSON_SCHEMA)
    parts = list(c.create_partial(model="m", messages=[{"role": "user", "content": PROMPT}], response_model=Dog,
                                  max_retries=0, temperature=1, seed=1))
    assert len(parts) > 2
    is_dog(Dog.model_validate(parts[-1].model_dump()))


@pytest.mark.parametrize("kind", [Dog, Strict])
@pytest.mark.parametrize("method", ["json_schema", "function_calling"])
def test_langchain(server, method, kind):
    llm = ChatOpenAI(model="m", base_url=server.url + "/v1", api_key="none", temperature=1, max_retries=0, seed=1)
    for strict in (None, True):
        is_dog(llm.with_structured_output(kind, method=method, strict=strict).invoke(PROMPT), kind)
    raw = llm.with_structured_output(kind.model_json_schema(), method=method).invoke(PROMPT)
    is_dog(kind.model_validate(raw), kind)


@pytest.mark.parametrize("output", [NativeOutput, ToolOutput])
@pytest.mark.parametrize("api", [OpenAIChatModel, OpenAIResponsesModel])
def test_pydantic_ai(server, api, output):
    model = api("m", provider=OpenAIProvider(base_url=server.url + "/v1", api_key="none"))
    agent = Agent(model, output_type=output(Dog), retries=0, model_settings={
        "temperature": 1.0, "parallel_tool_calls": False})  # else this model goes on calling it
    is_dog(agent.run_sync(PROMPT).output)

    async def stream():
        async with agent.run_stream(PROMPT) as r:
            return await r.get_output()
    is_dog(asyncio.run(stream()))


@pytest.mark.parametrize("how", ["openai", "vllm"])
def test_outlines(client, how):
    model = outlines.from_openai(client, "m") if how == "openai" else outlines.from_vllm(client, "m")
    is_dog(Dog.model_validate_json(model(PROMPT, Dog, temperature=1, seed=1)))
    if how == "vllm":
        assert model(PROMPT, Literal["yes", "no"], temperature=1) in ("yes", "no")
        assert model(PROMPT, outlines.types.regex("[a-c]{3}"), temperature=1).strip("abc") == ""
        assert int(model(PROMPT, int, temperature=1, max_tokens=40)) is not None
        gbnf = outlines.types.CFG('start: "x" | "y"')
        assert model(PROMPT, gbnf, temperature=1) in ("x", "y")


class Describe(dspy.Signature):
    """Describe it."""
    text: str = dspy.InputField()
    food: Food = dspy.OutputField()  # not a dog: DSPy's prompt has the schema in it, and the context is 1,024 tokens
    size: Literal["small", "large"] = dspy.OutputField()


@pytest.mark.parametrize("adapter", [dspy.JSONAdapter, dspy.ChatAdapter])
def test_dspy(server, adapter):
    """ChatAdapter first asks for marked text, without a constraint, and as this model writes none takes JSONAdapter. That
    sends a schema where LiteLLM says that the model knows them: for openai/ and hosted_vllm/ with a name it has never
    heard of it sends no response_format at all, for lm_studio/ it does."""
    lm = dspy.LM("lm_studio/m", api_base=server.url + "/v1", api_key="none", temperature=1.0, max_tokens=600, cache=False,
                 num_retries=0)
    with dspy.context(lm=lm, adapter=adapter()):
        r = dspy.Predict(Describe)(text=PROMPT)
    assert isinstance(r.food, Food) and r.size in ("small", "large")
