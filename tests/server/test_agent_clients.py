# SPDX-License-Identifier: MIT
"""Agent frameworks, unmodified and with the bundled model: OpenAI's Agents SDK, LlamaIndex, AutoGen and guidance. The
model was not trained to call tools. tool_choice makes it call one, and the loop then runs as with any other model: the
framework runs the function and sends its result."""
import asyncio
import os
from typing import Literal

os.environ["OPENAI_AGENTS_DISABLE_TRACING"] = "1"  # else it sends traces to OpenAI

import agents  # noqa: E402
import guidance  # noqa: E402
import pytest  # noqa: E402
from autogen_agentchat.agents import AssistantAgent  # noqa: E402
from autogen_core.models import ModelInfo, UserMessage  # noqa: E402
from autogen_core.tools import FunctionTool  # noqa: E402
from autogen_ext.models.openai import OpenAIChatCompletionClient  # noqa: E402
from guidance.models.experimental import VLLMModel  # noqa: E402
from llama_index.core import Document, VectorStoreIndex  # noqa: E402
from llama_index.core.llms import ChatMessage  # noqa: E402
from llama_index.core.tools import FunctionTool as IndexTool  # noqa: E402
from llama_index.embeddings.openai_like import OpenAILikeEmbedding  # noqa: E402
from llama_index.llms.openai_like import OpenAILike  # noqa: E402
from openai import AsyncOpenAI  # noqa: E402
from pydantic import BaseModel, Field  # noqa: E402

from serverproc import Server  # noqa: E402

PROMPT = "Tell me a story about a dog."
END = {"stop": ["."]}


class Dog(BaseModel):
    name: str = Field(max_length=12)
    age: int = Field(ge=0, le=20)
    size: Literal["small", "large"]


def look(at: Literal["sun", "moon"]) -> str:
    """Look at something."""
    seen.append(at)
    return "It is bright."


seen: list[str] = []


@pytest.fixture(autouse=True)
def none_seen():
    seen.clear()


@pytest.fixture(scope="module")
def server():
    with Server("--threads", "1", "--served-model-name", "m", "--tool-call-parser", "hermes") as s:
        yield s
        assert s.process.poll() is None, "the server ended during the tests: " + s.log()


# ---- OpenAI's Agents SDK

@pytest.mark.parametrize("api", [agents.OpenAIChatCompletionsModel, agents.OpenAIResponsesModel])
def test_openai_agents(server, api):
    """With the Responses API the SDK raises an error when max_tokens ends an answer: here a stop string does."""
    async def run():
        async with AsyncOpenAI(base_url=server.url + "/v1", api_key="none", max_retries=0) as client:
            model = api("m", client)
            once = agents.ModelSettings(temperature=1, tool_choice="required", parallel_tool_calls=False,
                                        extra_body=END | {"seed": 1})
            agent = agents.Agent("a", model=model, tools=[agents.function_tool(look)], model_settings=once)
            whole = await agents.Runner.run(agent, PROMPT)
            assert whole.final_output and len(seen) == 1 and whole.context_wrapper.usage.requests == 2
            assert [i.type for i in whole.new_items] == ["tool_call_item", "tool_call_output_item", "message_output_item"]
            streamed = agents.Runner.run_streamed(agent, PROMPT)
            names = [e.name async for e in streamed.stream_events() if e.type == "run_item_stream_event"]
            assert names == ["tool_called", "tool_output", "message_output_created"] and len(seen) == 2
            assert streamed.final_output == whole.final_output
            typed = agents.Agent("t", model=model, output_type=Dog, model_settings=agents.ModelSettings(temperature=1))
            assert isinstance((await agents.Runner.run(typed, PROMPT)).final_output, Dog)
            plain = agents.Agent("p", model=model, model_settings=agents.ModelSettings(temperature=0, extra_body=END))
            first = agents.Agent("f", model=model, handoffs=[plain], model_settings=once)
            assert (await agents.Runner.run(first, PROMPT)).last_agent is plain
            session = agents.SQLiteSession("s")
            for n in (1, 2):
                await agents.Runner.run(plain, PROMPT, session=session)
                assert len(await session.get_items()) == 2 * n
    asyncio.run(run())


# ---- LlamaIndex

def test_llama_index(server):
    def llm(**more):
        return OpenAILike(**{"model": "m", "api_base": server.url + "/v1", "api_key": "none", "is_chat_model": True,
                             "is_function_calling_model": True, "max_tokens": 8, "temperature": 0, "max_retries": 0,
                             "context_window": 1024} | more)
    talk = [ChatMessage(role="user", content=PROMPT)]
    whole = llm().chat(talk).message.content
    assert whole and "".join(c.delta or "" for c in llm().stream_chat(talk)) == whole
    assert asyncio.run(llm().achat(talk)).message.content == whole
    text = llm(is_chat_model=False)
    assert text.complete("Once upon a time").text == "".join(c.delta for c in text.stream_complete("Once upon a time")) != ""
    many = {"max_tokens": 300, "temperature": 1, "additional_kwargs": {"seed": 1}}
    for form in (False, True):  # by a tool, by response_format
        dog = llm(should_use_structured_outputs=form, **many).as_structured_llm(Dog).complete(PROMPT).raw
        assert isinstance(dog, Dog)
    said = llm(**many).predict_and_call([IndexTool.from_defaults(look)], PROMPT, tool_required=True,
                                        allow_parallel_tool_calls=False)
    assert len(seen) == 1 and str(said) == "It is bright."


def test_llama_index_retrieves(server):
    with Server("--threads", "1", "--served-model-name", "e", "--runner", "pooling", "--convert", "embed") as vectors:
        embed = OpenAILikeEmbedding(model_name="e", api_base=vectors.url + "/v1", api_key="none")
        texts = ["The dog ran to the park.", "Stars are far away."]
        index = VectorStoreIndex.from_documents([Document(text=t) for t in texts], embed_model=embed)
        assert [index.as_retriever(similarity_top_k=1).retrieve(t)[0].text for t in texts] == texts
        llm = OpenAILike(model="m", api_base=server.url + "/v1", api_key="none", is_chat_model=True, max_tokens=8)
        assert str(index.as_query_engine(llm=llm, similarity_top_k=1).query("Where is the dog?"))


# ---- AutoGen

def test_autogen(server):
    info = ModelInfo(vision=False, function_calling=True, json_output=True, family="unknown", structured_output=True)

    async def run():
        client = OpenAIChatCompletionClient(model="m", base_url=server.url + "/v1", api_key="none", model_info=info,
                                            max_tokens=300, temperature=1, seed=1, max_retries=0, parallel_tool_calls=False)
        tool = FunctionTool(look, "Look at something.", strict=True)
        asked = [UserMessage(content=PROMPT, source="user")]
        whole = await client.create(asked, tools=[tool], tool_choice="required")
        assert whole.finish_reason == "function_calls" and whole.content[0].name == "look"
        streamed = [c async for c in client.create_stream(asked, tools=[tool], tool_choice="required")]
        assert streamed[-1].content[0].arguments == whole.content[0].arguments
        agent = AssistantAgent("a", model_client=client, output_content_type=Dog)
        assert isinstance((await agent.run(task=PROMPT)).messages[-1].content, Dog)
        talk = AssistantAgent("b", model_client=client, model_client_stream=True)
        *parts, last = [e async for e in talk.run_stream(task=PROMPT)]
        text = "".join(e.content for e in parts if e.type == "ModelClientStreamingChunkEvent")
        assert text and last.messages[-1].content == text
        await client.close()
    asyncio.run(run())


# ---- guidance

def test_guidance(server):
    """Its client of OpenAI sends schemas, its client of vLLM Lark, and reads the answer again by its own grammar. The
    latter's JSON has one order of members only (x-guidance in the schema), which is not implemented here."""
    at = {"base_url": server.url + "/v1", "api_key": "none", "echo": False}

    def ask(model, what):
        with guidance.user():
            model += PROMPT
        with guidance.assistant():
            model += what
        return model["x"]
    one = guidance.models.OpenAI("m", **at)
    assert ask(one, guidance.gen("x", max_tokens=8, temperature=0))
    Dog.model_validate_json(ask(one, guidance.json("x", schema=Dog)))
    vllm = VLLMModel("m", **at)
    assert ask(vllm, guidance.select(["yes", "no"], name="x")) in ("yes", "no")
    assert ask(vllm, "It is " + guidance.gen("x", regex="[a-c]{3}") + ".").strip("abc") == ""
