# SPDX-License-Identifier: MIT
"""Tools that take text, with a grammar: whatever the model passes to them, the lark package parses, or re matches.
The bundled model was never trained to call anything: calls are certain by tool_choice, and what it writes in them is
what the grammar leaves it."""
import itertools
import json
import re
import subprocess

import pytest
from lark import Lark
from lark.exceptions import LarkError

from serverproc import BINARY, Server
from wire import events

# Codex's own, of its tool apply_patch.
PATCH = r"""start: begin_patch hunk+ end_patch
begin_patch: "*** Begin Patch" LF
end_patch: "*** End Patch" LF?

hunk: add_hunk | delete_hunk | update_hunk
add_hunk: "*** Add File: " filename LF add_line+
delete_hunk: "*** Delete File: " filename LF
update_hunk: "*** Update File: " filename LF change_move? change?

filename: /(.+)/
add_line: "+" /(.*)/ LF -> line

change_move: "*** Move to: " filename LF
change: (change_context | change_line)+ eof_line?
change_context: ("@@" | "@@ " /(.+)/) LF
change_line: ("+" | "-" | " ") /(.*)/ LF
eof_line: "*** End of File" LF

%import common.LF
"""
SUM = r"""start: sum
?sum: sum ("+" | "-") item -> binary | item
item: NUMBER | "(" sum ")" | ESCAPED_STRING | "\\" CNAME
%import common (NUMBER, CNAME)
%import common.ESCAPED_STRING
%import common.WS // all of it
%ignore WS
"""
LIST = r"""start: "[" [ item ("," item)~0..3 ] "]"
item: "é"i~2..3 | "\"x\""i | "a".."f" | start | /[^\]\[,]{1,4}/  # as deep as it likes
"""
WORDS = r'"?[a-z\\]{1,5}"?(\n[^a-z\n]{0,3}){1,2}'


def with_lark(grammar):
    """Lark refuses a terminal that may be empty, which OpenAI's API takes."""
    return Lark(grammar.replace("/(.*)/", "(/.+/)?"), parser="earley", lexer="dynamic_complete").parse


def with_re(pattern):
    def check(text):
        assert re.fullmatch(pattern, text), text
    return check


# What makes their texts short.
CASES = {"patch": ("lark", PATCH, with_lark(PATCH), {"\\": 22, "n": 10, "*": 14, "\n": 12, "+": 8, '"': 4}),
         "sum": ("lark", SUM, with_lark(SUM), {'"': 6, ")": 6, "(": -4, "+": -2, "\\": 4, "n": 4, " ": -4, "<": 12, "\n": 6}),
         "list": ("lark", LIST, with_lark(LIST), {"]": 6, "\\": 6, '"': 6}),
         "words": ("regex", WORDS, with_re(WORDS), {"\\": 4, '"': 4})}


@pytest.fixture(scope="module", params=["hermes", "qwen3_coder"])
def server(request):
    with Server("--threads", "1", "--tool-call-parser", request.param) as s:
        s.format = request.param
        s.letters = {c: token(s, c) for c in [chr(i) for i in range(32, 127)] + ["\n", "\t", "é"]}
        yield s
        assert s.process.poll() is None, "the server ended during the tests: " + s.log()


def token(server, text):
    status, r = server.json("POST", "/tokenize", {"prompt": text, "add_special_tokens": False})
    assert status == 200
    return r["tokens"]


def tool(syntax, definition, name="t"):
    return {"type": "custom", "name": name, "description": "d",
            "format": {"type": "grammar", "syntax": syntax, "definition": definition}}


def chat_tool(syntax, definition, name="t"):
    return {"type": "custom", "custom": {"name": name, "description": "d", "format": {
        "type": "grammar", "grammar": {"syntax": syntax, "definition": definition}}}}


def ask(server, tools, likely, want=200, path="/v1/responses", **fields):
    body = {"max_output_tokens": 300, "temperature": 2, "logit_bias": {str(server.letters[c][0]): v
                                                                     for c, v in likely.items()},
            "allowed_token_ids": sorted({t for ids in server.letters.values() for t in ids}),
            "parallel_tool_calls": False, "tools": tools, "tool_choice": {"type": "custom", "name": "t"}}
    status, r = server.json("POST", path, body | fields)
    assert status == want, r
    return r


def checked(r, check):
    """1 if the call is complete, and then its input must be right."""
    (call,) = r["output"]
    assert call["type"] == "custom_tool_call" and call["name"] == "t"
    if r["status"] == "completed":
        check(call["input"])
    return r["status"] == "completed"


@pytest.mark.parametrize("case", CASES)
def test_every_input_is_of_the_grammar(server, case):
    syntax, grammar, check, likely = CASES[case]
    n = 4
    done = sum(checked(ask(server, [tool(syntax, grammar)], likely, input="Once", seed=seed), check) for seed in range(n))
    assert done >= 1, f"{done} of {n} were complete"


def test_streams(server):
    """The input comes as one delta, the same as in the item, and is right."""
    _, grammar, check, likely = CASES["words"]
    body = {"input": "Once", "max_output_tokens": 260, "seed": 3, "stream": True, "tools": [tool("regex", grammar)],
            "tool_choice": {"type": "custom", "name": "t"}, "parallel_tool_calls": False}
    status, _, data = server.request("POST", "/v1/responses", json.dumps(body).encode(), {})
    got = events(data)
    assert status == 200 and got[-1]["type"] == "response.completed"
    (item,) = got[-1]["response"]["output"]
    (delta,) = [e["delta"] for e in got if e["type"] == "response.custom_tool_call_input.delta"]
    check(item["input"])
    assert delta == item["input"]
    assert "ignored_formats" not in got[-1]["response"]


def test_chat_completions(server):
    """OpenAI's own client: calls of both kinds, whole and streamed, and the conversation after them."""
    openai = pytest.importorskip("openai")
    client = openai.OpenAI(base_url=server.url + "/v1", api_key="none")
    _, grammar, check, _ = CASES["words"]
    function = {"type": "function", "function": {"name": "f", "parameters": {
        "type": "object", "properties": {"n": {"enum": [1, 2]}}, "required": ["n"], "additionalProperties": False}}}
    said = [{"role": "user", "content": "Once"}]
    ask = {"model": "storyteller", "messages": said, "tools": [function, chat_tool("regex", grammar)], "seed": 5,
           "max_completion_tokens": 260, "parallel_tool_calls": False}
    custom = {"type": "custom", "custom": {"name": "t"}}
    r = client.chat.completions.create(**ask, tool_choice=custom).choices[0]
    assert r.finish_reason == "tool_calls"
    (call,) = r.message.tool_calls
    assert call.type == "custom" and call.custom.name == "t"
    check(call.custom.input)
    chunks = list(client.chat.completions.create(**ask, tool_choice=custom, stream=True))
    deltas = [c.choices[0].delta.tool_calls[0].to_dict() for c in chunks if c.choices[0].delta.tool_calls]
    assert deltas[0]["type"] == "custom" and deltas[0]["custom"] == {"name": "t", "input": ""}
    assert "".join(d["custom"]["input"] for d in deltas) == call.custom.input
    r = client.chat.completions.create(**ask, tool_choice={"type": "function", "function": {"name": "f"}}).choices[0]
    assert json.loads(r.message.tool_calls[0].function.arguments)["n"] in (1, 2)
    result = {"role": "tool", "tool_call_id": call.id, "content": "done"}
    after = said + [{"role": "assistant", "content": None, "tool_calls": [call.to_dict()]}, result]
    as_function = {"id": call.id, "type": "function", "function": {
        "name": "t", "arguments": json.dumps({"input": call.custom.input})}}
    same = said + [{"role": "assistant", "content": None, "tool_calls": [as_function]}, result]
    tokens = {json.dumps(m): server.json("POST", "/tokenize", {"messages": m}) for m in (after, same)}
    assert len({json.dumps(t) for t in tokens.values()}) == 1 and next(iter(tokens.values()))[0] == 200


def test_an_input_that_is_cut_off(server):
    """What was written so far is the input, without the JSON around it."""
    r = ask(server, [tool("regex", r'(a"\\\n){400}')], {}, input="Once", max_output_tokens=150)
    (call,) = r["output"]
    assert r["status"] == "incomplete" and len(call["input"]) > 20
    assert ('a"\\\n' * 400).startswith(call["input"])


BAD = [("lark", 'start: "a"\n\nrest: thing\n', "line 3: no such rule: thing"),
       ("lark", 'start: "a" b\nb: b "x"\n', "line 1: no text satisfies"),
       ("lark", 'start: /a/\n  | /(b/\n', "line 2"),
       ("lark", "start: NAME\n%import common.NAME\n", "line 2: module common has no terminal NAME"),
       ("lark", "%import python (NAME)\nstart: NAME\n", "line 1: %import"),
       ("lark", "", "no such rule: start"), ("regex", "a(b", "')' is missing"), ("regex", r"(a)\1", "back-reference"),
       ("regex", "a(?!b)b", "no text satisfies")]


@pytest.mark.parametrize("syntax, grammar, message", BAD)
def test_refusals(server, syntax, grammar, message):
    """With the tool's name, on both endpoints, and whether it must be called or may be."""
    other = tool("regex", "a", "other")
    for choice in ({"type": "custom", "name": "patch"}, "required", "auto"):
        e = ask(server, [other, tool(syntax, grammar, "patch")], {}, 400, input="Once", tool_choice=choice)["error"]
        assert e["param"] == "tools" and "patch" in e["message"] and message in e["message"], e
    e = ask(server, [chat_tool(syntax, grammar, "patch")], {}, 400, path="/v1/chat/completions", tool_choice="required",
            messages=[{"role": "user", "content": "Once"}])["error"]
    assert e["param"] == "tools" and "patch" in e["message"] and message in e["message"], e


def test_refused_shapes(server):
    for custom, param in (({}, "tools[0].custom"), ({"name": "a", "format": {"type": "xml"}}, "tools[0].custom.format"),
                          ({"name": "a", "format": {"type": "grammar", "grammar": {"syntax": "lark"}}},
                           "tools[0].custom.format"), ({"name": "a b"}, "tools[0].custom.name")):
        e = ask(server, [{"type": "custom", "custom": custom}], {}, 400, path="/v1/chat/completions",
                messages=[{"role": "user", "content": "Once"}], tool_choice="auto")["error"]
        assert e["param"] == param, e
    twice = [chat_tool("regex", "a"), chat_tool("regex", "b")]
    e = ask(server, twice, {}, 400, path="/v1/chat/completions", messages=[{"role": "user", "content": "Once"}],
            tool_choice="auto")["error"]
    assert "has the name of tools[0]" in e["message"]


# Characters that the terminals of module common tell apart.
COMMON = {"DIGIT": "07a", "HEXDIGIT": "0aFg", "INT": "01-", "SIGNED_INT": "0+-", "DECIMAL": "0.1", "FLOAT": "0.eE-",
          "SIGNED_FLOAT": "0.e+", "NUMBER": "0.e-", "SIGNED_NUMBER": "0.e-", "ESCAPED_STRING": '"\\a\n', "LCASE_LETTER": "azA",
          "UCASE_LETTER": "AZa", "LETTER": "aZ_", "WORD": "aB1", "CNAME": "a_1-", "WS_INLINE": " \t\n", "WS": " \f\r\nx",
          "CR": "\r\n", "LF": "\r\n", "NEWLINE": "\r\n ", "SH_COMMENT": "#a\n", "CPP_COMMENT": "/a\n", "C_COMMENT": "/*a",
          "SQL_COMMENT": "-a\n"}


@pytest.mark.parametrize("name", COMMON)
def test_common_terminals(name):
    """Every short text of these characters, and whether Lark's lexer reads it as one terminal."""
    grammar = f"start: {name}\n%import common.{name}\n"
    parse = Lark(grammar, parser="lalr", lexer="basic").parse
    texts = ["".join(t) for n in range(1, 6 if len(COMMON[name]) < 4 else 5)
             for t in itertools.product(COMMON[name], repeat=n)]
    said = []
    for at in range(0, len(texts), 60):
        tests = [a for t in texts[at:at + 60] for a in ("-t", t)]
        out = subprocess.run([BINARY, "grammar", "-k", "ebnf", *tests], input=grammar.encode(), capture_output=True,
                             check=False).stdout.decode()
        said += [line == "yes" for line in re.findall("^(yes|no) ", out, re.M)]
    want = []
    for text in texts:
        try:
            want.append(bool(parse(text)))
        except LarkError:
            want.append(False)
    assert len(said) == len(texts) and any(want)
    assert [t for t, a, b in zip(texts, said, want, strict=True) if a != b] == []
