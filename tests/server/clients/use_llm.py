# SPDX-License-Identifier: MIT
# pip install llm
"""llm, as a library and as the program, with the file in which its users name other servers."""
import json
import os
import subprocess
import tempfile

folder = os.environ["LLM_USER_PATH"] = tempfile.mkdtemp()

from case import BASE, MODEL, PROMPT, case, done, look, seen  # noqa: E402

with open(os.path.join(folder, "extra-openai-models.yaml"), "w", encoding="utf-8") as f:
    f.write(f"- model_id: here\n  model_name: {MODEL}\n  api_base: {BASE}\n  supports_schema: true\n  supports_tools: true\n")

import llm  # noqa: E402

model = llm.get_model("here")
model.key = "none"
DOG = {"type": "object", "properties": {"name": {"type": "string", "maxLength": 12}, "age": {"enum": [1, 2, 3]}},
       "required": ["name", "age"]}


@case("chat")
def _():
    whole = model.prompt(PROMPT, stream=False, max_tokens=8, temperature=0)
    assert whole.text() and whole.usage().output == 8
    assert "".join(model.prompt(PROMPT, max_tokens=8, temperature=0)) == whole.text()


@case("conversation")
def _():
    talk = model.conversation()
    assert talk.prompt(PROMPT, max_tokens=8).text() and talk.prompt("Go on.", max_tokens=8).text()


@case("typed output")
def _():
    for stream in (False, True):
        assert set(json.loads(model.prompt(PROMPT, schema=DOG, stream=stream, max_tokens=100).text())) == {"name", "age"}


@case("tools")
def _():
    for stream in (False, True):
        seen.clear()
        assert model.chain(PROMPT, tools=[look], stream=stream, options={"max_tokens": 100}).text() and seen


@case("program")
def _():
    args = ["-m", "here", "--key", "none", "-o", "max_tokens", "8", PROMPT]
    assert subprocess.run(["llm", *args], stdout=subprocess.PIPE, check=True).stdout.strip()


done()
