# SPDX-License-Identifier: MIT
# pip install any-llm-sdk[openai,anthropic,ollama]
"""any-llm, as each kind of server that this one can stand for."""
import any_llm
from pydantic import BaseModel, Field

from case import BASE, MODEL, PROMPT, URL, case, done, look


class Dog(BaseModel):
    name: str = Field(max_length=12)
    age: int = Field(ge=0, le=20)


HI = [{"role": "user", "content": PROMPT}]
for provider, base in (("openai", BASE), ("vllm", BASE), ("llamacpp", BASE), ("llamafile", BASE), ("anthropic", URL), ("ollama", URL)):
    at = {"provider": provider, "api_base": base, "api_key": "none", "max_tokens": 100, "temperature": 0}

    @case(f"{provider}: chat")
    def _():
        whole = any_llm.completion(MODEL, HI, **at).choices[0].message.content
        parts = any_llm.completion(MODEL, HI, stream=True, **at)
        assert whole and "".join(p.choices[0].delta.content or "" for p in parts if p.choices) == whole

    if provider != "llamafile":  # any-llm itself refuses both
        @case(f"{provider}: tools")
        def _():
            [call, *_] = any_llm.completion(MODEL, HI, tools=[look], **at).choices[0].message.tool_calls
            assert call.function.name == "look"

        @case(f"{provider}: typed output")
        def _():
            r = any_llm.completion(MODEL, HI, response_format=Dog, **at).choices[0].message
            Dog.model_validate_json(r.content)

    @case(f"{provider}: models")
    def _():
        assert [m.id for m in any_llm.list_models(provider, api_base=base, api_key="none")][0].startswith(MODEL)


@case("openai: responses")
def _():
    r = any_llm.responses(MODEL, PROMPT, provider="openai", api_base=BASE, api_key="none", max_output_tokens=16)
    assert r.output_text


done()
