# SPDX-License-Identifier: MIT
"""gpt-oss: conversations through its real template, which shows what an answer with a call thought."""
import pathlib

import pytest

from serverproc import Server

ROOT = pathlib.Path(__file__).resolve().parent.parent.parent
TEMPLATE = ROOT / "build/testdata/templates/jinja/openai-gpt-oss-120b.jinja"
CALL = {"id": "c1", "type": "function", "function": {"name": "weather", "arguments": '{"city": "Oslo"}'}}
TOOLS = [{"type": "function", "function": {"name": "weather", "description": "Weather of a city", "parameters": {
    "type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}}}]
CALLED = '<|start|>assistant to=functions.weather<|channel|>commentary json<|message|>{"city": "Oslo"}<|call|>'
ANSWERED = '<|start|>functions.weather to=assistant<|channel|>commentary<|message|>"rain"<|end|>'


@pytest.fixture(scope="module")
def server():
    if not TEMPLATE.exists():
        pytest.skip(f"{TEMPLATE} is not there")
    with Server("--threads", "1", "--max-model-len", "1024", "--chat-template", str(TEMPLATE)) as s:
        yield s


def prompt(server, answer, *more):
    talk = [{"role": "user", "content": "Rain?"}, {"role": "assistant", "tool_calls": [CALL]} | answer,
            {"role": "tool", "tool_call_id": "c1", "content": "rain"}, *more]
    status, r = server.json("POST", "/apply-template", {"messages": talk, "tools": TOOLS, "reasoning_effort": "high"})
    assert status == 200, r
    return r["prompt"]


@pytest.mark.parametrize("name", ["reasoning", "reasoning_content"])
def test_thoughts_before_a_call(server, name):
    text = prompt(server, {name: "Ask the tool."})
    assert "<|start|>assistant<|channel|>analysis<|message|>Ask the tool.<|end|>" + CALLED + ANSWERED in text
    assert text.endswith(ANSWERED + "<|start|>assistant") and "Reasoning: high" in text
    assert "namespace functions" in text and "type weather = " in text


def test_thoughts_and_content(server):
    """The template refuses both together."""
    text = prompt(server, {"reasoning": "Ask.", "content": "I will look."})
    assert "<|channel|>analysis<|message|>Ask.\n\nI will look.<|end|>" + CALLED in text
    assert "<|channel|>analysis<|message|>I will look.<|end|>" + CALLED in prompt(server, {"content": "I will look."})


def test_thoughts_end_with_the_answer(server):
    """Behind a final answer the thoughts before it are left out, and so is what that answer thought."""
    text = prompt(server, {"reasoning": "Ask."}, {"role": "assistant", "content": "Yes.", "reasoning": "It rains."},
                  {"role": "user", "content": "Thanks"})
    assert "analysis<|message|>" not in text and "<|channel|>final<|message|>Yes.<|end|>" in text


def test_own_thinking_stays(server):
    assert "<|channel|>analysis<|message|>mine<|end|>" + CALLED in prompt(server, {"thinking": "mine", "reasoning": "x"})
