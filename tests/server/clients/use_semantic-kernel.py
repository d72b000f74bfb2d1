# SPDX-License-Identifier: MIT
# pip install semantic-kernel
"""Semantic Kernel: chat completion, a plug-in that it calls by itself, and an agent."""
from typing import Annotated

from openai import AsyncOpenAI
from pydantic import BaseModel, Field
from semantic_kernel import Kernel
from semantic_kernel.agents import ChatCompletionAgent
from semantic_kernel.connectors.ai import FunctionChoiceBehavior
from semantic_kernel.connectors.ai.open_ai import OpenAIChatCompletion, OpenAIChatPromptExecutionSettings
from semantic_kernel.contents import ChatHistory
from semantic_kernel.functions import KernelArguments, kernel_function

from case import BASE, MODEL, PROMPT, case, done, look, seen


class Dog(BaseModel):
    name: str = Field(max_length=12)
    age: int = Field(ge=0, le=20)


class Looker:
    @kernel_function(description="Look at a place.")
    def look(self, place: Annotated[str, "where"]) -> str:
        return look(place)


def service():
    return OpenAIChatCompletion(MODEL, async_client=AsyncOpenAI(base_url=BASE, api_key="none", max_retries=0))


def talk():
    history = ChatHistory()
    history.add_user_message(PROMPT)
    return history


@case("chat")
async def _():
    s = OpenAIChatPromptExecutionSettings(max_tokens=20, temperature=0)
    whole = str(await service().get_chat_message_content(talk(), s))
    parts = service().get_streaming_chat_message_content(talk(), s)
    assert whole and "".join([str(p) async for p in parts]) == whole


@case("typed output")
async def _():
    s = OpenAIChatPromptExecutionSettings(max_tokens=100, temperature=0, response_format=Dog)
    Dog.model_validate_json(str(await service().get_chat_message_content(talk(), s)))


@case("tools")
async def _():
    kernel = Kernel()
    kernel.add_plugin(Looker(), "looker")
    s = OpenAIChatPromptExecutionSettings(max_tokens=100, temperature=0, function_choice_behavior=FunctionChoiceBehavior.Auto(),
                                          parallel_tool_calls=False)
    assert str(await service().get_chat_message_content(talk(), s, kernel=kernel)) and seen


@case("agent")
async def _():
    s = OpenAIChatPromptExecutionSettings(max_tokens=100, temperature=0)
    agent = ChatCompletionAgent(service=service(), name="a", plugins=[Looker()], arguments=KernelArguments(settings=s))
    assert str(await agent.get_response(PROMPT)) and seen


done()
