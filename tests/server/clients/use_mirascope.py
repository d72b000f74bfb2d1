# SPDX-License-Identifier: MIT
# pip install mirascope[openai]
"""mirascope, through its provider for chat completions and the one for responses. The former sends no temperature
for a model that it does not know, so two answers differ."""
from mirascope import llm
from pydantic import BaseModel, Field

from case import BASE, MODEL, PROMPT, case, done, look, seen


class Dog(BaseModel):
    name: str = Field(max_length=12)
    age: int = Field(ge=0, le=20)


for api in ("completions", "responses"):
    llm.register_provider(f"openai:{api}", scope="here/", base_url=BASE, api_key="none")
    tell = llm.Model(f"here/{MODEL}", max_tokens=100, temperature=0)

    @case(f"chat ({api})")
    def _():
        parts = list(tell.stream(PROMPT).text_stream(sep=""))
        assert len(parts) > 1 and tell.call(PROMPT).text() and "".join(parts)

    @case(f"typed output ({api})")
    def _():
        for mode in ("strict", "tool"):
            assert isinstance(tell.call(PROMPT, format=llm.format(Dog, mode=mode)).parse(), Dog)

    @case(f"tool loop ({api})")
    def _():
        r = tell.call(PROMPT, tools=[llm.tool(look)])
        assert r.tool_calls and r.resume(r.execute_tools()).text() and seen


done()
