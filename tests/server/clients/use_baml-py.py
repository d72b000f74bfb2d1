# SPDX-License-Identifier: MIT
# pip install baml-py pydantic
"""BAML: a client in Rust, called by the Python code that its generator writes. It puts the schema into the prompt and
sends no response_format, so that answers of a type that a story is not depend on the model: only strings are tried."""
import asyncio
import importlib.metadata
import os
import subprocess
import sys
import tempfile

from case import BASE, MODEL, PROMPT, case, done

folder = tempfile.mkdtemp()
os.mkdir(os.path.join(folder, "baml_src"))
with open(os.path.join(folder, "baml_src", "main.baml"), "w", encoding="utf-8") as f:
    f.write('''
generator target {
  output_type "python/pydantic"
  output_dir "../"
  version "%s"
}
client<llm> Here {
  provider openai-generic
  options {
    base_url "%s"
    model "%s"
    api_key "none"
    max_tokens 8
    temperature 0.0
  }
}
client<llm> HereResponses {
  provider openai-responses
  options {
    base_url "%s"
    model "%s"
    api_key "none"
    max_output_tokens 16
    temperature 0.0
  }
}
function Tell(what: string) -> string {
  client Here
  prompt #"{{ _.role("user") }}{{ what }}"#
}
function TellAgain(what: string) -> string {
  client HereResponses
  prompt #"{{ _.role("user") }}{{ what }}"#
}
''' % (importlib.metadata.version("baml-py"), BASE, MODEL, BASE, MODEL))
subprocess.run(["baml-cli", "generate"], cwd=folder, check=True)
sys.path.insert(0, folder)

from baml_client.async_client import b as later  # noqa: E402
from baml_client.sync_client import b  # noqa: E402


@case("chat")
def _():
    whole = b.Tell(PROMPT)
    stream = b.stream.Tell(PROMPT)
    parts = list(stream)
    assert whole and len(parts) > 1 and stream.get_final_response() == whole
    assert asyncio.run(later.Tell(PROMPT)) == whole


@case("responses")
def _():
    assert b.TellAgain(PROMPT)


done()
