# SPDX-License-Identifier: MIT
# pip install strands-agents[openai]
"""Strands: its model classes for chat completions and for responses, and an agent of each."""
from pydantic import BaseModel, Field
from strands import Agent, tool
from strands.models.openai import OpenAIModel
from strands.models.openai_responses import OpenAIResponsesModel

from case import BASE, MODEL, PROMPT, case, done, look, seen


class Dog(BaseModel):
    """A dog."""
    name: str = Field(max_length=12)
    age: int = Field(ge=0, le=20)


for kind, more in ((OpenAIModel, {"max_tokens": 100, "stop": ["."]}),
                   (OpenAIResponsesModel, {"max_output_tokens": 100, "extra_body": {"stop": ["."]}})):
    def agent(*tools):
        at = {"base_url": BASE, "api_key": "none"}
        return Agent(model=kind(client_args=at, model_id=MODEL, params=more | {"temperature": 0}), tools=list(tools),
                     callback_handler=None)
    name = kind.__name__

    @case(f"chat ({name})")
    async def _():
        whole = str(agent()(PROMPT)).strip()
        parts = [e["data"] async for e in agent().stream_async(PROMPT) if "data" in e]
        assert whole and "".join(parts).strip() == whole

    @case(f"typed output ({name})")
    def _():
        assert isinstance(agent().structured_output(Dog, PROMPT), Dog)

    @case(f"tools ({name})")
    def _():
        assert str(agent(tool(look))(PROMPT)) and seen


done()
