# SPDX-License-Identifier: MIT
"""Codex and Claude Code: their requests, as the programs sent them (recorded/*.json, long texts cut), and loops of
tools as they run them, with the bundled model. It was never trained to call anything, so that calls are certain by
tool_choice; that a result reaches the model shows in what it holds likely."""
import json
import os
import re

import pytest

from serverproc import Server
from wire import events

HERE = os.path.dirname(os.path.abspath(__file__))
# Prints what it is given, so that prompts can be looked at.
ECHO = ("{% if tools %}[{{ tools | map(attribute='function') | map(attribute='name') | join(' ') }}]{% endif %}"
        "{% for m in messages %}{{ m.content }} {% for c in m.tool_calls or [] %}{{ c.function.name }}="
        "{{ c.function.arguments | tojson }} {% endfor %}{% endfor %}")
BIAS = {str(i): -100 for i in (202, 203, 206, 209, 225, 302)} | {str(i): 12 for i in (0, 4, 65)}


@pytest.fixture(scope="module")
def server():
    with Server("--threads", "1", "--tool-call-parser", "hermes", "--chat-template", ECHO,
                *[f"--served-model-name={n}" for n in ("storyteller", "m", "gpt-6.1-sol", "claude-opus-5-5")]) as s:
        yield s
        assert s.process.poll() is None, "the server ended during the tests: " + s.log()


def recorded(name):
    with open(os.path.join(HERE, "recorded", name), encoding="utf-8") as f:
        return json.load(f)


def prompt(server, body):
    """The text that the model is shown, by the number of its tokens: that of the text which the test expects."""
    status, reply = server.json("POST", "/v1/responses/input_tokens", body)
    assert status == 200 and reply["object"] == "response.input_tokens", reply
    return reply["input_tokens"]


def n_tokens(server, text):
    return server.json("POST", "/tokenize", {"prompt": text, "add_special_tokens": False})[1]["count"]


def send(server, r, **fields):
    status, headers, data = server.request("POST", r["path"], json.dumps(r["body"] | fields).encode(), r["headers"])
    assert status == 200, data
    return headers, events(data)


def ask(server, want=200, **fields):
    status, r = server.json("POST", "/v1/responses", {
        "input": "hi", "max_output_tokens": 200, "parallel_tool_calls": False, "temperature": 1, "seed": 1,
        "logit_bias": BIAS} | fields)
    assert status == want, r
    return r


# ---- Codex

@pytest.mark.parametrize("i", range(4))
def test_codex_requests(server, i):
    """Unchanged, but for how much is generated."""
    r = recorded("codex-0.163.json")[i]
    headers, got = send(server, r, max_output_tokens=4)
    assert got[0]["type"] == "response.created" and got[-1]["type"] == "response.incomplete"
    assert [e["sequence_number"] for e in got] == list(range(len(got)))
    fallback = "tools" in r["body"]  # what Codex sends for a model that it does not know
    assert ("tools.web_search" in headers["X-Ignored-Fields"]) == fallback
    assert got[-1]["response"].get("ignored_tools") == (["web_search"] if fallback else None)
    shown = [t["type"] for t in got[-1]["response"]["tools"]]
    assert shown == [t["type"] for t in r["body"].get("tools", []) if t["type"] != "web_search"]


def test_codex_prompt(server):
    """Every tool is shown, those of a namespace by both names, and every item is where it was."""
    body = recorded("codex-0.163.json")[1]["body"]
    names = [n for t in body["tools"] if t["type"] != "web_search" for n in (
        [f"{t['name']}__{f['name']}" for f in t["tools"]] if t["type"] == "namespace" else [t["name"]])]
    assert "multi_agent_v1__spawn_agent" in names and "exec_command" in names
    texts = ["\n\n".join("\n".join(p["text"] for p in m["content"]) for m in body["input"][:2]),
             *["\n".join(p["text"] for p in m["content"]) for m in body["input"][2:4]]]
    call, result = body["input"][4:]
    text = f"[{' '.join(names)}]" + "".join(t + " " for t in texts)
    text += f" exec_command={call['arguments']} {result['output']} "
    assert prompt(server, body) == n_tokens(server, text)


def run(server, body, choice, stream=False):
    r = {"path": "/v1/responses", "headers": {}, "body": body}
    extra = {"tool_choice": choice, "max_output_tokens": 300, "temperature": 1, "seed": 1, "logit_bias": BIAS,
             "parallel_tool_calls": False, "stream": stream}
    if stream:
        got = send(server, r, **extra)[1]
        done = [e["item"] for e in got if e["type"] == "response.output_item.done"]
        assert done == got[-1]["response"]["output"]
        return got, done
    return None, server.json("POST", "/v1/responses", body | extra)[1]["output"]


def test_codex_tool_loop(server):
    """The model calls, the client runs it and sends the whole conversation again, and the model goes by the result."""
    body = json.loads(json.dumps(recorded("codex-0.163.json")[0]["body"]))
    tool = body["tools"][0]
    tool["parameters"] = {"type": "object", "properties": {"cmd": {"enum": ["cat name.txt"]}}, "required": ["cmd"],
                          "additionalProperties": False}
    for stream in (False, True):
        _, items = run(server, body, {"type": "function", "name": "exec_command"}, stream)
        (call,) = items
        assert call["type"] == "function_call" and call["name"] == "exec_command" and call["status"] == "completed"
        assert json.loads(call["arguments"]) == {"cmd": "cat name.txt"}
    names = ["Tom", "Lily", "Max", "Anna", "Ben"]
    for name in names:
        likely = {}
        for told in names:
            output = {"type": "function_call_output", "call_id": call["call_id"],
                      "output": f"Output:\nHer brother's name was {told}. {told} was happy.\n"}
            more = {"role": "user", "content": [{"type": "input_text", "text": "Everybody loved"}]}
            r = ask(server, input=[*body["input"], call, output, more], tools=body["tools"], logit_bias={},
                    tool_choice="none", include=["message.output_text.logprobs"], structured_outputs={"choice": [name]})
            part = r["output"][0]["content"][0]
            assert part["text"] == name
            likely[told] = sum(t["logprob"] for t in part["logprobs"])
        assert max(likely, key=likely.get) == name, likely


def test_codex_free_form_tools(server):
    """`exec` comes in an item of the input, in the namespace that stands for none."""
    body = recorded("codex-0.163.json")[2]["body"]
    assert body["input"][0]["type"] == "additional_tools"
    _, items = run(server, body, {"type": "custom", "name": "exec"})
    (call,) = items
    assert call["type"] == "custom_tool_call" and call["name"] == "exec" and call["namespace"] == "functions"
    assert isinstance(call["input"], str) and call["id"].startswith("ctc_")
    output = {"type": "custom_tool_call_output", "call_id": call["call_id"],
              "output": [{"type": "input_text", "text": "Script completed"}, {"type": "input_text", "text": "42"}]}
    before, after = (prompt(server, body | {"input": body["input"] + more}) for more in ([], [call, output]))
    said = f" exec={json.dumps({'input': call['input']})} Script completed\n42 "
    assert abs(after - before - n_tokens(server, said)) <= 12  # quotes and borders


TOOLS = [{"type": "custom", "name": "word", "format": {"type": "grammar", "syntax": "regex", "definition": "[a-c]{3,6}"}},
         {"type": "namespace", "name": "mcp__files__", "description": "d", "tools": [
             {"type": "function", "name": "get", "parameters": {"type": "object", "properties": {"n": {"enum": [1, 2]}},
                                                                "required": ["n"], "additionalProperties": False}}]},
         {"type": "tool_search", "execution": "client", "description": "d", "parameters": {
             "type": "object", "properties": {"query": {"enum": ["q"]}}, "required": ["query"],
             "additionalProperties": False}},
         {"type": "local_shell"}, {"type": "shell", "environment": {"type": "local"}}, {"type": "apply_patch"}]


def test_every_type_of_tool(server):
    for stream in (False, True):
        body = {"input": "hi", "tools": TOOLS}
        got, (word,) = run(server, body, {"type": "custom", "name": "word"}, stream)
        assert word["type"] == "custom_tool_call" and re.fullmatch("[a-c]{3,6}", word["input"]), word
        if stream:
            types = [e["type"] for e in got]
            at = types.index("response.custom_tool_call_input.done")
            assert got[at]["input"] == word["input"] == "".join(
                e["delta"] for e in got if e["type"] == "response.custom_tool_call_input.delta")
            assert types[at + 1] == "response.output_item.done"
        _, (get,) = run(server, body, {"type": "function", "name": "get", "namespace": "mcp__files__"}, stream)
        assert (get["type"], get["name"], get["namespace"]) == ("function_call", "get", "mcp__files__")
        _, (search,) = run(server, body, {"type": "tool_search"}, stream)
        assert search["type"] == "tool_search_call" and search["arguments"] == {"query": "q"}
        assert search["execution"] == "client" and search["call_id"]
        for tool, kind, member in (("local_shell", "local_shell_call", "action"), ("shell", "shell_call", "action"),
                                   ("apply_patch", "apply_patch_call", "operation")):
            _, (item,) = run(server, body, {"type": tool}, stream)
            assert item["type"] == kind and isinstance(item[member], dict), item
    found = {"type": "tool_search_output", "call_id": search["call_id"], "execution": "client", "status": "completed",
             "tools": [{"type": "function", "name": "found", "defer_loading": True, "parameters": {"type": "object"}}]}
    back = [{"role": "user", "content": "hi"}, word, {"type": "custom_tool_call_output", "call_id": word["call_id"],
                                                     "output": "w"}, get,
            {"type": "function_call_output", "call_id": get["call_id"], "output": "g"}, search, found,
            {"type": "local_shell_call", "id": "l", "call_id": "l", "status": "completed",
             "action": {"type": "exec", "command": ["ls"], "env": {}}},
            {"type": "local_shell_call_output", "id": "l", "output": "x"},
            {"type": "shell_call", "call_id": "s", "action": {"commands": ["ls"]}},
            {"type": "shell_call_output", "call_id": "s", "output": [
                {"stdout": "x", "stderr": "", "outcome": {"type": "exit", "exit_code": 0}}]},
            {"type": "apply_patch_call", "call_id": "p", "status": "completed",
             "operation": {"type": "delete_file", "path": "a"}},
            {"type": "apply_patch_call_output", "call_id": "p", "status": "completed"}]
    hidden = [{"type": "function", "name": "later", "defer_loading": True, "parameters": {"type": "object"}}]
    text = ("[word mcp__files__get tool_search local_shell shell apply_patch found]hi  word={\"input\": \""
            + word["input"] + "\"} w  mcp__files__get=" + get["arguments"] + " g  tool_search={\"query\": \"q\"} "
            "Found tools: found  local_shell={\"command\": [\"ls\"], \"env\": {}} x  shell={\"commands\": [\"ls\"]} "
            "[{\"stdout\": \"x\", \"stderr\": \"\", \"outcome\": {\"type\": \"exit\", \"exit_code\": 0}}]  "
            "apply_patch={\"operation\": {\"type\": \"delete_file\", \"path\": \"a\"}} completed ")
    assert abs(prompt(server, {"input": back, "tools": TOOLS + hidden}) - n_tokens(server, text)) <= 6


def test_allowed_tools(server):
    choice = {"type": "allowed_tools", "mode": "required", "tools": [{"type": "custom", "name": "word"}]}
    r = ask(server, tools=TOOLS, tool_choice=choice)
    assert [o["name"] for o in r["output"]] == ["word"]


def test_hosted_tools_are_named(server):
    for tool in ("web_search", "web_search_preview", "file_search", "code_interpreter", "image_generation", "mcp"):
        r = ask(server, tools=[{"type": tool}, TOOLS[0]], tool_choice="none", max_output_tokens=1)
        assert r["ignored_tools"] == [tool] and [t["type"] for t in r["tools"]] == ["custom"]
        e = ask(server, 400, tools=[{"type": tool}])["error"]
        assert e["param"] == "tools" and tool in e["message"]
        e = ask(server, 400, tools=[{"type": tool}, TOOLS[0]], tool_choice={"type": tool})["error"]
        assert e["param"] == "tool_choice.type" and tool in e["message"]
    r = ask(server, input=[{"type": "web_search_call", "id": "w", "status": "completed"}, {"role": "user", "content": "hi"}],
            max_output_tokens=1)
    assert r["ignored_items"] == ["web_search_call"]


def test_refusals(server):
    for tool, param in [
            ({"type": "custom"}, "tools[0].name"), ({"type": "custom", "name": "a b"}, "tools[0].name"),
            ({"type": "custom", "name": "a", "format": {"type": "xml"}}, "tools[0].format"),
            ({"type": "custom", "name": "a", "format": {"type": "grammar", "syntax": "peg", "definition": "a"}},
             "tools[0].format"),
            ({"type": "namespace", "name": "n"}, "tools[0]"),
            ({"type": "namespace", "name": "n", "tools": [{"type": "mcp"}]}, "tools[0].tools[0]"),
            ({"type": "namespace", "name": "n", "tools": [TOOLS[0], TOOLS[0]]}, "tools[0].tools[1]"),
            ({"type": "function", "name": "f", "parameters": 1}, "tools[0].parameters"), ({"type": "new"}, "tools[0]")]:
        assert ask(server, 400, tools=[tool])["error"]["param"] == param, tool
    for choice in ({"type": "custom", "name": "no"}, {"type": "function", "name": "word"}, {"type": "allowed_tools"}):
        assert ask(server, 400, tools=TOOLS, tool_choice=choice)["error"]["param"] == "tool_choice"
    for item in ({"type": "compaction", "encrypted_content": "x"}, {"type": "custom_tool_call", "name": "a", "input": ""},
                 {"type": "local_shell_call", "call_id": "a"}, {"type": "custom_tool_call_output", "output": "a"}):
        assert ask(server, 400, input=[item])["error"]["param"].startswith("input[0]"), item


def test_compaction(server):
    """What the user said stays, and a summary that only this server reads takes the place of the rest."""
    talk = [{"type": "message", "role": "user", "content": "Tell me a story."}, {"role": "assistant", "content": "Once"}]
    status, r = server.json("POST", "/v1/responses/compact", {"model": "m", "input": talk, "instructions": "Be brief.",
                                                              "max_output_tokens": 12})
    assert status == 200 and r["object"] == "response.compaction" and r["usage"]["output_tokens"] == 12
    assert r["output"][0] == talk[0] and [o["type"] for o in r["output"]] == ["message", "compaction"]
    summary = r["output"][1]["encrypted_content"].split(":", 1)[1]
    more = {"role": "user", "content": "Go on."}
    text = f"Tell me a story. Summary of the conversation so far:\n{summary} Go on. "
    assert prompt(server, {"input": [*r["output"], more]}) == n_tokens(server, text)
    for stream in (False, True):
        r = {"path": "/v1/responses", "headers": {}, "body": {
            "input": [*talk, {"type": "compaction_trigger"}], "max_output_tokens": 8, "stream": stream}}
        output = (send(server, r)[1][-1]["response"] if stream else server.json("POST", r["path"], r["body"])[1])["output"]
        assert [o["type"] for o in output] == ["compaction"]
    assert server.json("POST", "/v1/responses/compact", {"input": []})[0] == 400
    assert server.json("GET", "/v1/responses/compact")[0] == 405


# ---- Claude Code

@pytest.mark.parametrize("i", range(2))
def test_claude_code_requests(server, i):
    headers, got = send(server, recorded("claude-code-2.1.332.json")[i], max_tokens=4)
    assert "X-Ignored-Fields" not in headers  # thinking that is to be kept is kept
    assert [got[0]["type"], got[-2]["type"], got[-1]["type"]] == ["message_start", "message_delta", "message_stop"]
    assert got[-2]["delta"]["stop_reason"] == "max_tokens"


def test_claude_code_tools(server):
    """A tool that is to be searched for is shown once the client has found it; what Anthropic runs is named."""
    body = recorded("claude-code-2.1.332.json")[1]["body"]
    names = [t["name"] for t in body["tools"]]
    late = {"name": "Late", "input_schema": {"type": "object"}, "defer_loading": True}

    def count(messages, tools):
        status, r = server.json("POST", "/v1/messages/count_tokens", {"messages": messages, "tools": tools})
        assert status == 200, r
        return r["input_tokens"]
    assert "DeferredToolPlaceholder" in names
    hi = [{"role": "user", "content": "hi"}]
    shown = " ".join(n for n in names if n != "DeferredToolPlaceholder")
    assert count(hi, body["tools"] + [late]) == n_tokens(server, f"[{shown}]hi ")
    found = [*hi, {"role": "assistant", "content": [{"type": "tool_use", "id": "t", "name": "ToolSearch", "input": {}}]},
             {"role": "user", "content": [{"type": "tool_result", "tool_use_id": "t", "content": [
                 {"type": "tool_reference", "tool_name": "Late"}]}]}]
    assert count(found, [late]) == n_tokens(server, "[Late]hi  ToolSearch={} Found tool: Late ")
    search = {"type": "tool_search_tool_regex_20251119", "name": "tool_search_tool_regex"}
    assert count(hi, [search, late]) == n_tokens(server, "[Late]hi ")
    known = [{"type": "bash_20250124", "name": "bash"}, {"type": "text_editor_20250728", "name": "str_replace_based_edit_tool"},
             {"type": "memory_20250818", "name": "memory"}]
    assert count(hi, known) == n_tokens(server, "[bash str_replace_based_edit_tool memory]hi ")
    web = {"type": "web_search_20250305", "name": "web_search", "max_uses": 8}
    status, headers, _ = server.request("POST", "/v1/messages", json.dumps(
        {"messages": hi, "max_tokens": 1, "tools": [web, *known], "context_management": {
            "edits": [{"type": "clear_tool_uses_20250919"}, {"type": "clear_thinking_20251015", "keep": "all"}]}}).encode())
    assert status == 200 and set(headers["X-Ignored-Fields"].split(", ")) == {
        "tools.web_search_20250305", "context_management.clear_tool_uses_20250919"}
    status, r = server.json("POST", "/v1/messages", {"messages": hi, "max_tokens": 1, "tools": [web]})
    assert status == 400 and "tools[0]: this server cannot run web_search_20250305" in r["error"]["message"]
    server_side = [*hi, {"role": "assistant", "content": [
        {"type": "server_tool_use", "id": "s", "name": "web_search", "input": {"query": "q"}},
        {"type": "web_search_tool_result", "tool_use_id": "s", "content": [
            {"type": "web_search_result", "title": "T", "encrypted_content": "zzz"}]}, {"type": "text", "text": "A."}]}, *hi]
    assert count(server_side, []) == n_tokens(
        server, 'hi  web_search={"query": "q"} [{"type": "web_search_result", "title": "T"}] A. hi ')
