# SPDX-License-Identifier: MIT
# pip install haystack-ai
"""Haystack: its generators for chat completions and for responses, and an agent."""
import json

from haystack.components.agents import Agent
from haystack.components.generators.chat import OpenAIChatGenerator, OpenAIResponsesChatGenerator
from haystack.dataclasses import ChatMessage
from haystack.tools import create_tool_from_function
from haystack.utils import Secret
from pydantic import BaseModel, Field

from case import BASE, MODEL, PROMPT, case, done, look, seen


class Dog(BaseModel):
    name: str = Field(max_length=12)
    age: int = Field(ge=0, le=20)


HI = [ChatMessage.from_user(PROMPT)]
for kind, limit in ((OpenAIChatGenerator, "max_tokens"), (OpenAIResponsesChatGenerator, "max_output_tokens")):
    def generator(**more):
        return kind(api_key=Secret.from_token("none"), model=MODEL, api_base_url=BASE, max_retries=0,
                    generation_kwargs={limit: 60, "temperature": 0} | more)
    name = kind.__name__

    @case(f"chat ({name})")
    def _():
        whole, parts = generator().run(HI)["replies"][0].text, []
        streamed = generator().run(HI, streaming_callback=lambda c: parts.append(c.content or ""))["replies"][0].text
        assert whole and streamed == whole and "".join(parts) == whole

    @case(f"typed output ({name})")
    def _():
        field = "response_format" if kind is OpenAIChatGenerator else "text_format"
        Dog(**json.loads(generator(**{field: Dog}).run(HI)["replies"][0].text))

    @case(f"agent ({name})")
    def _():
        agent = Agent(chat_generator=generator(parallel_tool_calls=False), tools=[create_tool_from_function(look)])
        assert agent.run(messages=HI)["messages"][-1].text and seen


done()
