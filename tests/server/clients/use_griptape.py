# SPDX-License-Identifier: MIT
# pip install griptape
"""griptape: an agent, with and without streams, and a structure."""
from griptape.artifacts import TextArtifact
from griptape.drivers.prompt.openai_chat_prompt_driver import OpenAiChatPromptDriver
from griptape.structures import Agent
from griptape.tokenizers import SimpleTokenizer
from griptape.tools import BaseTool
from griptape.utils import Stream
from griptape.utils.decorators import activity
from pydantic import BaseModel, Field
from schema import Literal, Or, Schema

from case import BASE, MODEL, PROMPT, case, done, look, seen


class Dog(BaseModel):
    name: str = Field(max_length=12)
    age: int = Field(ge=0, le=20)


SCHEMA = Schema({Literal("place", description="where"): Or("sun", "moon")})


class Looker(BaseTool):
    @activity(config={"description": "Look at a place.", "schema": SCHEMA})
    def look(self, params: dict) -> TextArtifact:
        return TextArtifact(look(params["values"]["place"]))


def agent(stream=False, **more):
    words = SimpleTokenizer(characters_per_token=4, max_input_tokens=8000, max_output_tokens=100)
    driver = OpenAiChatPromptDriver(model=MODEL, base_url=BASE, api_key="none", tokenizer=words, max_tokens=100,
                                    temperature=0, stream=stream, parallel_tool_calls=False)
    return Agent(prompt_driver=driver, stream=stream, **more)


@case("chat")
def _():
    whole = agent().run(PROMPT).output.value
    parts = [a.value for a in Stream(agent(stream=True)).run(PROMPT)]
    assert whole and "".join(parts).strip() == whole.strip()


@case("typed output")
def _():
    assert isinstance(agent(output_schema=Dog).run(PROMPT).output.value, Dog)


@case("tools")
def _():
    assert agent(tools=[Looker()]).run(PROMPT).output.value and seen


done()
