# SPDX-License-Identifier: MIT
# pip install ag2[openai]
"""AG2 (version 1, which is not AutoGen any more), with completions and responses."""
from ag2 import Agent
from ag2.config import OpenAIConfig, OpenAIResponsesConfig
from ag2.tools import tool
from pydantic import BaseModel, Field

from case import BASE, MODEL, PROMPT, case, done, look, seen


class Dog(BaseModel):
    name: str = Field(max_length=12)
    age: int = Field(ge=0, le=20)


for kind, limit in ((OpenAIConfig, "max_tokens"), (OpenAIResponsesConfig, "max_output_tokens")):
    def agent(streaming=False, **more):
        at = {"base_url": BASE, "api_key": "none", "max_retries": 0, "temperature": 0, limit: 100, "streaming": streaming}
        return Agent("a", config=kind(MODEL, **at), **more)
    name = kind.__name__.removesuffix("Config")

    @case(f"chat ({name})")
    async def _():
        whole = (await agent().ask(PROMPT)).body
        assert whole and (await agent(streaming=True).ask(PROMPT)).body == whole

    @case(f"typed output ({name})")
    async def _():
        assert isinstance(await (await agent(response_schema=Dog).ask(PROMPT)).content(), Dog)

    @case(f"tools ({name})")
    async def _():
        for streaming in (False, True):
            seen.clear()
            assert (await agent(streaming, tools=[tool(look)]).ask(PROMPT)).body and seen


done()
