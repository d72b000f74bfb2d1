# SPDX-License-Identifier: MIT
# pip install agno openai
"""agno, with its classes for servers like OpenAI's, vLLM and the Responses API."""
from agno.agent import Agent
from agno.models.openai import OpenAILike, OpenResponses
from agno.models.vllm import VLLM
from pydantic import BaseModel, Field

from case import BASE, MODEL, PROMPT, case, done, look, seen


class Dog(BaseModel):
    name: str = Field(max_length=12)
    age: int = Field(ge=0, le=20)


for kind in (OpenAILike, VLLM, OpenResponses):
    def model():
        limit = {"max_output_tokens" if kind is OpenResponses else "max_tokens": 100}
        return kind(id=MODEL, base_url=BASE, api_key="none", temperature=0, **limit)
    name = kind.__name__

    @case(f"chat ({name})")
    def _():
        whole = Agent(model=model(), telemetry=False).run(PROMPT).content
        events = Agent(model=model(), telemetry=False).run(PROMPT, stream=True)
        assert whole and "".join(e.content or "" for e in events if e.event == "RunContent") == whole

    @case(f"typed output ({name})")
    def _():
        assert isinstance(Agent(model=model(), output_schema=Dog, telemetry=False).run(PROMPT).content, Dog)

    @case(f"tools ({name})")
    def _():
        assert Agent(model=model(), tools=[look], telemetry=False).run(PROMPT).content and seen


done()
