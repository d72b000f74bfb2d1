# SPDX-License-Identifier: MIT
# pip install langgraph langchain-openai
"""LangGraph: an agent with memory, through LangChain's class for chat completions and for responses."""
from langchain_openai import ChatOpenAI
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.prebuilt import create_react_agent

from case import BASE, MODEL, PROMPT, case, done, look, seen

HI = {"messages": [("user", PROMPT)]}
for responses in (False, True):
    def agent():
        llm = ChatOpenAI(base_url=BASE, api_key="none", model=MODEL, temperature=0, max_retries=0,
                         max_completion_tokens=60, use_responses_api=responses, extra_body={"parallel_tool_calls": False})
        return create_react_agent(llm, [look], checkpointer=InMemorySaver())
    AT = {"configurable": {"thread_id": "1"}}
    name = "responses" if responses else "completions"

    @case(f"tool loop with memory ({name})")
    def _():
        a = agent()
        assert [m.type for m in a.invoke(HI, AT)["messages"]] == ["human", "ai", "tool", "ai"]
        assert len(a.invoke(HI, AT)["messages"]) == 8 and len(seen) == 2

    @case(f"stream ({name})")
    def _():
        parts = [m for m, _ in agent().stream(HI, AT, stream_mode="messages")]
        assert {m.type for m in parts} >= {"AIMessageChunk", "tool"} and "".join(m.text for m in parts if m.type != "tool")


done()
