# SPDX-License-Identifier: MIT
# pip install kani[openai]
"""kani, with a tokenizer given: it would else ask for one of OpenAI's. With responses it raises an error when
max_output_tokens ends an answer (`response.incomplete`), so a stop string does."""
from typing import Annotated

from kani import AIParam, Kani, ai_function
from kani.engines.openai import OpenAIEngine

from case import BASE, MODEL, PROMPT, case, done, look, seen


class Words:
    def encode(self, text):
        return text.split()


class Agent(Kani):
    @ai_function()
    def look(self, place: Annotated[str, AIParam(desc="where")]):
        """Look at a place."""
        return look(place)


for api in ("chat_completions", "responses"):
    def engine():
        return OpenAIEngine("none", MODEL, 8000, api_base=BASE, api_type=api, tokenizer=Words(), temperature=0, extra_body={"stop": ["."]},
                            **{"max_tokens" if api == "chat_completions" else "max_output_tokens": 60})

    @case(f"chat ({api})")
    async def _():
        whole = await Kani(engine()).chat_round_str(PROMPT)
        assert whole and "".join([t async for t in Kani(engine()).chat_round_stream(PROMPT)]) == whole

    @case(f"tools ({api})")
    async def _():
        said = [m async for m in Agent(engine()).full_round(PROMPT)]
        assert seen and said[-1].text and len(said) == 3, said


done()
