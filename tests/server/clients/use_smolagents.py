# SPDX-License-Identifier: MIT
# pip install smolagents[openai]
"""smolagents. An agent ends when the model calls `final_answer`, which this model does only when it is made to."""
from smolagents import OpenAIModel, ToolCallingAgent, tool

from case import BASE, MODEL, PROMPT, case, done, look, seen


def model(**more):
    return OpenAIModel(MODEL, api_base=BASE, api_key="none", max_tokens=60, temperature=0, **more)


HI = [{"role": "user", "content": [{"type": "text", "text": PROMPT}]}]
DOG = {"type": "object", "properties": {"name": {"type": "string", "maxLength": 12}}, "required": ["name"]}


@case("chat")
def _():
    whole = model().generate(HI)
    assert whole.content and whole.token_usage.output_tokens
    assert "".join(d.content or "" for d in model().generate_stream(HI)) == whole.content
    assert "dog" not in model().generate(HI, stop_sequences=["dog"]).content


@case("typed output")
def _():
    form = {"type": "json_schema", "json_schema": {"name": "dog", "schema": DOG}}
    assert model().generate(HI, response_format=form).content.startswith("{")


@case("tools")
def _():

    agent = ToolCallingAgent([tool(look)], model(), max_steps=2, verbosity_level=0)
    agent.run(PROMPT)
    assert seen


done()
