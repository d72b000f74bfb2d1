# SPDX-License-Identifier: MIT
# pip install chatlas[openai]
"""chatlas, with its class for completions and the one for responses."""
from chatlas import ChatOpenAI, ChatOpenAICompletions
from pydantic import BaseModel, Field

from case import BASE, MODEL, PROMPT, case, done, look, seen


class Dog(BaseModel):
    name: str = Field(max_length=12)
    age: int = Field(ge=0, le=20)


for kind, name in ((ChatOpenAICompletions, "completions"), (ChatOpenAI, "responses")):
    def chat():
        c = kind(model=MODEL, base_url=BASE, api_key="none")
        c.set_model_params(max_tokens=100, temperature=0)
        return c

    @case(f"chat ({name})")
    def _():
        whole = str(chat().chat(PROMPT, stream=False, echo="none"))
        assert whole and "".join(chat().stream(PROMPT)) == whole

    @case(f"typed output ({name})")
    def _():
        assert isinstance(chat().chat_structured(PROMPT, data_model=Dog), Dog)

    @case(f"tools ({name})")
    def _():
        c = chat()
        c.register_tool(look)
        assert str(c.chat(PROMPT, echo="none")) and seen


done()
