# SPDX-License-Identifier: MIT
# pip install magentic
"""magentic: functions whose body is a prompt. Structured answers are tool calls, streamed as they are written."""
from magentic import FunctionCall, OpenaiChatModel, StreamedStr, prompt, prompt_chain
from pydantic import BaseModel, Field

from case import BASE, MODEL, PROMPT, case, done, look, seen


class Dog(BaseModel):
    name: str = Field(max_length=12)
    age: int = Field(ge=0, le=20)


model = OpenaiChatModel(MODEL, api_key="none", base_url=BASE, max_tokens=100, temperature=0)


@case("chat")
def _():
    @prompt(PROMPT, model=model)
    def whole() -> str: ...

    @prompt(PROMPT, model=model)
    def parts() -> StreamedStr: ...
    assert whole() and "".join(parts()) == whole()


@case("typed output")
def _():
    @prompt(PROMPT, model=model)
    def dog() -> Dog: ...
    assert isinstance(dog(), Dog)


@case("tools")
def _():
    @prompt(PROMPT, functions=[look], model=model)
    def call() -> FunctionCall[str]: ...
    assert call()() and len(seen) == 1


@case("tool loop")
def _():
    @prompt_chain(PROMPT, functions=[look], model=model)
    def answer() -> str: ...
    assert answer() and seen


done()
