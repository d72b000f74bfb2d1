# SPDX-License-Identifier: MIT
# pip install mistralai
"""Mistral's own client. Its models.list() wants `type` and `capabilities` in each entry, as in Mistral's catalogue, and reads
no list of OpenAI's form, so it is not tried."""
from mistralai.client import Mistral
from pydantic import BaseModel, Field

from case import MODEL, PROMPT, URL, case, done


class Dog(BaseModel):
    name: str = Field(max_length=12)
    age: int = Field(ge=0, le=20)


HI = [{"role": "user", "content": PROMPT}]
client = Mistral(api_key="none", server_url=URL)
TOOL = {"type": "function", "function": {"name": "look", "parameters": {
    "type": "object", "properties": {"place": {"type": "string", "maxLength": 12}}, "required": ["place"]}}}


@case("chat")
def _():
    r = client.chat.complete(model=MODEL, messages=HI, max_tokens=8, temperature=0)
    assert r.choices[0].message.content and r.usage.completion_tokens == 8 and r.choices[0].finish_reason == "length"
    with client.chat.stream(model=MODEL, messages=HI, max_tokens=8, temperature=0) as events:
        assert "".join(e.data.choices[0].delta.content or "" for e in events if e.data.choices) == r.choices[0].message.content


@case("tools")
def _():
    r = client.chat.complete(model=MODEL, messages=HI, tools=[TOOL], tool_choice="any", parallel_tool_calls=False, max_tokens=100)
    [call] = r.choices[0].message.tool_calls
    assert call.function.name == "look"
    talk = HI + [r.choices[0].message, {"role": "tool", "name": "look", "tool_call_id": call.id, "content": "A dog."}]
    assert client.chat.complete(model=MODEL, messages=talk, tools=[TOOL], max_tokens=8).choices[0].message.content


@case("typed output")
def _():
    r = client.chat.parse(response_format=Dog, model=MODEL, messages=HI, max_tokens=100)
    assert isinstance(r.choices[0].message.parsed, Dog)


done()
