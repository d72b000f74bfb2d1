# SPDX-License-Identifier: MIT
"""Tools that take text, with a grammar: whatever the model passes to them, the lark package parses, or re matches.
The bundled model was never trained to call anything: calls are certain by tool_choice, and what it writes in them is
what the grammar leaves it."""
import json
import os
import re

import pytest
from lark import Lark
from lark.exceptions import LarkError

from serverproc import Server
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
LINES = r"""start: LINE~1..4 "\t"? END
LINE: /[^\n]{0,9}/ "\n"
END: "</END>" | /"\\/
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
         "sum": ("lark", SUM, with_lark(SUM), {'"': 6, ")": 6, "(": -4, "+": -2, "\\": 4, "n": 4, " ": -4}),
         "list": ("lark", LIST, with_lark(LIST), {"]": 6, "\\": 6, '"': 6}),
         "words": ("regex", WORDS, with_re(WORDS), {"\\": 4, '"': 4})}


@pytest.fixture(scope="module", params=["hermes", "qwen3_coder", "pythonic"])
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
    body = {"max_output_tokens": 200, "temperature": 2, "logit_bias": {str(server.letters[c][0]): v
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
    if server.format == "qwen3_coder" and case in ("sum", "list"):
        e = ask(server, [tool(syntax, grammar)], {}, 400, input="Once")["error"]
        assert "tool t" in e["message"] and "</parameter>" in e["message"]
        return
    n = 6
    done = sum(checked(ask(server, [tool(syntax, grammar)], likely, input="Once", seed=seed), check) for seed in range(n))
    assert done >= 1, f"{done} of {n} were complete"
