#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""Compares sluice's chat templates with Python's jinja2 as transformers configures it.

  template_oracle.py golden DIR OUT     render every DIR/*.jinja over the conversations below and the
                                        snippets of template_snippets.txt; write tests/golden/...
  template_oracle.py check DIR BATCH    the same, compared at once with the program template_batch
  template_oracle.py random BATCH N     N random expressions, compared likewise

Needs jinja2 and transformers. The clock stands still at NOW, in UTC.
"""
import copy
import datetime
import glob
import json
import os
import random
import resource
import signal
import subprocess
import sys
import warnings

from transformers.utils import chat_template_utils

NOW = 1752148800  # 2025-07-10 12:00:00 UTC
warnings.simplefilter("ignore")
HERE = os.path.dirname(os.path.abspath(__file__))

WEATHER = {"type": "function", "function": {
    "name": "get_weather", "description": "Get the weather at a place.",
    "parameters": {"type": "object", "properties": {
        "location": {"type": "string", "description": "City, e.g. \"Paris, FR\""},
        "unit": {"type": "string", "enum": ["celsius", "fahrenheit"]},
        "days": {"type": "integer", "default": 1, "description": "How many"}},
        "required": ["location"]}}}
COMPLEX = {"type": "function", "function": {
    "name": "book", "description": "Books <things> & more\nover two lines.",
    "parameters": {"type": "object", "properties": {
        "who": {"type": "object", "description": "Person", "properties": {
            "name": {"type": "string"}, "age": {"type": ["integer", "null"]},
            "tags": {"type": "array", "items": {"type": "string"}, "description": "Tags"}},
            "required": ["name"]},
        "price": {"type": "number", "minimum": 0.5, "maximum": 1e16, "nullable": True},
        "flags": {"type": "array", "items": {"type": "object", "properties": {
            "on": {"type": "boolean", "default": False}}}},
        "any": {"anyOf": [{"type": "string"}, {"type": "null"}], "default": None},
        "ref": {"$ref": "#/$defs/x"}, "free": {"description": "no type"}},
        "required": ["who", "price"], "additionalProperties": False},
    "return": {"type": "string", "description": "A receipt"}, "strict": True}}
NO_ARGS = {"type": "function", "function": {
    "name": "ping", "description": "", "parameters": {"type": "object", "properties": {}}}}


def call(name, args, ident=None):
    c = {"type": "function", "function": {"name": name, "arguments": args}}
    if ident is not None:
        c["id"] = ident
    return c


def msg(role, content, **more):
    return {"role": role, "content": content, **more}


def tool_turns(args, ident):
    more = {} if ident is None else {"tool_call_id": ident}
    return [
        msg("system", "Be brief."),
        msg("user", "Weather in Paris?"),
        msg("assistant", "", tool_calls=[call("get_weather", args, ident)]),
        msg("tool", "{\"temp\": 21.5, \"sky\": \"clear\"}", name="get_weather", **more),
        msg("assistant", "It is 21.5 degrees."),
        msg("user", "And tomorrow?"),
    ]


def conversations():
    user = [msg("user", "Hello, how are you?")]
    multi = [msg("system", "You are a pirate."), msg("user", "Hi"), msg("assistant", "Arr!"),
             msg("user", "Who are you?")]
    think = [msg("user", "2+2?"),
             msg("assistant", "4", reasoning_content="Two and two are four."),
             msg("user", "3+3?")]
    c = {
        "user": {"messages": user},
        "user_no_prompt": {"messages": user, "add_generation_prompt": False},
        "multi": {"messages": multi},
        "multi_no_prompt": {"messages": multi, "add_generation_prompt": False},
        "ends_with_assistant": {"messages": multi[:3], "add_generation_prompt": False},
        "thinking_on": {"messages": multi, "enable_thinking": True, "thinking": True},
        "thinking_off": {"messages": multi, "enable_thinking": False, "thinking": False},
        "reasoning": {"messages": think},
        "reasoning_off": {"messages": think, "enable_thinking": False},
        "reasoning_last": {"messages": think[:2], "add_generation_prompt": False},
        "reasoning_in_text": {"messages": [
            msg("user", "2+2?"),
            msg("assistant", "<think>\nTwo and two.\n</think>\n\n4"), msg("user", "Sure?")]},
        "effort": {"messages": multi, "reasoning_effort": "high", "date_string": "01 Jan 2025"},
        "tools": {"messages": multi, "tools": [WEATHER]},
        "tools_no_system": {"messages": user, "tools": [WEATHER, NO_ARGS]},
        "tools_complex": {"messages": user, "tools": [COMPLEX, WEATHER]},
        "tool_call": {"messages": tool_turns({"location": "Paris, FR", "days": 2}, None),
                      "tools": [WEATHER]},
        "tool_call_id": {"messages": tool_turns({"location": "Paris, FR"}, "abcdef123"),
                         "tools": [WEATHER]},
        "tool_call_text": {"messages": tool_turns("{\"location\": \"Paris, FR\"}", "call_0"),
                           "tools": [WEATHER]},
        "tool_result_last": {"messages": tool_turns({"location": "Paris"}, "abcdef123")[:4],
                             "tools": [WEATHER]},
        "tool_parallel": {"messages": [
            msg("user", "Weather in Rome and Oslo? <b>&'\""),
            msg("assistant", "Let me see.", reasoning_content="Two calls.", tool_calls=[
                call("get_weather", {"location": "Rome", "unit": "celsius"}, "aaaaaaaa1"),
                call("book", {"who": {"name": "Zoë", "age": None, "tags": ["a", "b"]},
                              "price": 1.0, "ok": True, "n": -3}, "aaaaaaaa2")]),
            msg("tool", "1", name="get_weather", tool_call_id="aaaaaaaa1"),
            msg("tool", "2", name="book", tool_call_id="aaaaaaaa2"),
            msg("assistant", "Done.")], "tools": [WEATHER, COMPLEX],
            "add_generation_prompt": False},
        "tool_content_none": {"messages": [
            msg("user", "x"),
            msg("assistant", None, tool_calls=[call("ping", {}, "aaaaaaaa1")]),
            msg("tool", "pong", name="ping", tool_call_id="aaaaaaaa1")], "tools": [NO_ARGS]},
        "tool_result_dict": {"messages": [
            msg("user", "x"), msg("assistant", "", tool_calls=[call("ping", {}, "aaaaaaaa1")]),
            msg("tool", {"pong": [1, 2.5, None, True]}, name="ping", tool_call_id="aaaaaaaa1")]},
        "parts": {"messages": [
            msg("system", [{"type": "text", "text": "Sys."}]),
            msg("user", [{"type": "text", "text": "One "}, {"type": "text", "text": "two"}]),
            msg("assistant", [{"type": "text", "text": "Three"}]),
            msg("user", [{"type": "text", "text": ""}])]},
        "empty": {"messages": [msg("system", ""), msg("user", ""), msg("assistant", ""),
                               msg("user", "\n")]},
        "spaces": {"messages": [msg("system", "  a \n"), msg("user", "\tb\n\n"),
                                msg("assistant", " c "), msg("user", " \u00a0d\u2003 ")]},
        "unicode": {"messages": [msg("user", "Grüße, Ωmega, Привет, 你好, 🤗 \u200b\u0001\x7f"),
                                 msg("assistant", "ÄÖÜ <|im_end|> </s>"), msg("user", "'\"\\")]},
        "developer": {"messages": [msg("developer", "Obey."), msg("user", "Hi")]},
        "no_messages": {"messages": []},
        "assistant_first": {"messages": [msg("assistant", "Hello"), msg("user", "Hi")]},
        "two_users": {"messages": [msg("user", "a"), msg("user", "b")]},
        "late_system": {"messages": [msg("user", "a"), msg("system", "b"), msg("user", "c")]},
        "odd_role": {"messages": [msg("user", "a"), msg("critic", "b")]},
        "no_content": {"messages": [{"role": "user"}]},
        "documents": {"messages": multi, "documents": [
            {"title": "T1", "text": "First."}, {"title": "T2", "text": "Second.", "n": 2}]},
        "options": {"messages": multi, "tools": [WEATHER], "tools_in_user_message": False,
                    "builtin_tools": ["wolfram_alpha", "code_interpreter"],
                    "custom_tools": [WEATHER], "citation_mode": "fast", "xml_tools": [WEATHER],
                    "controls": {"length": "short"}, "clear_thinking": False,
                    "model_identity": "You are X.", "strip_think": True},
        "long": {"messages": [msg("system", "S")] + [
            msg("user" if i % 2 == 0 else "assistant", "turn %d %s" % (i, "x" * (i % 7)))
            for i in range(41)]},
    }
    for v in c.values():
        v.setdefault("add_generation_prompt", True)
        v.setdefault("bos_token", "<s>")
        v.setdefault("eos_token", "</s>")
        v.setdefault("tools", None)
        v.setdefault("documents", None)
        v.setdefault("unk_token", "<unk>")
        v.setdefault("pad_token", "<pad>")
    return c


def strftime_now(fmt):
    return datetime.datetime.fromtimestamp(NOW, datetime.timezone.utc).replace(
        tzinfo=None).strftime(fmt)


def render(source, variables):
    """The text, or None when jinja2 raises."""
    signal.alarm(5)
    try:
        t = chat_template_utils._compile_jinja_template(source)
        t.globals["strftime_now"] = strftime_now
        out = t.render(**copy.deepcopy(variables))  # |indent appends to a list
        out.encode()
        return out
    except Exception:
        return None
    finally:
        signal.alarm(0)


def snippets():
    """Blocks of template_snippets.txt: an optional line of JSON beginning with "# ", the source."""
    with open(os.path.join(HERE, "template_snippets.txt"), encoding="utf-8", newline="") as f:
        for block in f.read().split("\n===\n"):
            variables = {}
            if block.startswith("# "):
                head, block = block.split("\n", 1)
                variables = json.loads(head[2:])
            yield block, variables


def fnv(text):
    h = 0xCBF29CE484222325
    for b in text.encode():
        h = (h ^ b) * 0x100000001B3 & 0xFFFFFFFFFFFFFFFF
    return "%016x" % h


def templates(folder):
    for path in sorted(glob.glob(os.path.join(folder, "*.jinja"))):
        with open(path, encoding="utf-8", newline="") as f:
            yield os.path.basename(path), f.read()


def golden(folder, out_path):
    conv = conversations()
    results = {}
    for name, source in templates(folder):
        rows = {}
        for cname, variables in conv.items():
            text = render(source, variables)
            rows[cname] = None if text is None else [len(text.encode()), fnv(text)]
        results[name] = rows
    snips = [[s, v, render(s, v)] for s, v in snippets()]
    with open(out_path, "w", encoding="utf-8") as f:
        f.write('{"now": %d,\n"conversations": {\n' % NOW)
        f.write(",\n".join("%s: %s" % (json.dumps(k), json.dumps(v)) for k, v in conv.items()))
        f.write('},\n"templates": {\n')
        f.write(",\n".join("%s: %s" % (json.dumps(k), json.dumps(v, separators=(",", ":")))
                           for k, v in results.items()))
        f.write('},\n"snippets": [\n')
        f.write(",\n".join(json.dumps(s) for s in snips))
        f.write("]}\n")
    n = sum(len(r) for r in results.values())
    errors = sum(v is None for r in results.values() for v in r.values())
    print(f"{len(results)} templates, {n} renderings ({errors} raise), {len(snips)} snippets")


def run_batch(program, jobs):
    text = "".join(json.dumps(j) + "\n" for j in jobs)
    p = subprocess.run([program], input=text, capture_output=True, text=True, check=False)
    if p.returncode != 0:
        sys.exit(f"{program}: exit status {p.returncode}\n{p.stderr[-3000:]}")
    return [json.loads(line) for line in p.stdout.splitlines()]


# random expressions: what jinja2 computes while compiling may give an undefined instead of failing,
# generators are lazy there, and its integers have no end
KNOWN = ("cannot be sliced", "item pairs from", "integer overflow", "too long", "too many steps",
         "too much memory", "complex numbers")


def compare(program, cases, show):
    got = run_batch(program, [{"template": s, "vars": v, "now": NOW} for _, s, v, _ in cases])
    bad = 0
    for (name, source, _, want), have in zip(cases, got):
        text = have.get("out")
        if text == want or (name == "random" and any(k in have.get("error", "") for k in KNOWN)):
            continue
        bad += 1
        if bad > show:
            continue
        if text is None or want is None:
            print(f"--- {name}: {source[-200:] if len(source) < 400 else ''}\n"
                  f"   want {want if want is None else repr(want)[:300]}\n   have {have}"[:1500])
            continue
        at = next((i for i, (a, b) in enumerate(zip(text, want)) if a != b),
                  min(len(text), len(want)))
        print(f"--- {name}: {source if len(source) < 300 else ''}\n"
              f"   want {want[max(0, at - 40):at + 60]!r}\n   have {text[max(0, at - 40):at + 60]!r}")
    print(f"{len(cases) - bad} of {len(cases)} agree")
    return bad == 0


def check(folder, program):
    cases = [(f"{n} / {c}", s, v, render(s, v))
             for n, s in templates(folder) for c, v in conversations().items()]
    ok = compare(program, cases, 40)
    ok &= compare(program, [("snippet", s, v, render(s, v)) for s, v in snippets()], 60)
    return ok


# ---------------------------------------------------------------- random expressions

ATOMS = ["0", "1", "-1", "2", "7", "1.5", "-0.5", "2.0", "1e20", "true", "false", "none", "''", "'a'",
         "'Hello World'", "' x y '", "'äÖß'", "'a,b,c'", "'%s-%d'", "'line1\\nline2\\n'", "'3'", "'0x1f'",
         "[]", "[1, 2, 3]", "['b', 'A', 'c']", "[3, 1.5, true]", "[[1, 2], [3, 4]]", "(1, 2)", "('a',)",
         "{}", "{'a': 1, 'b': 'x'}", "{'k': [1, {'z': none}]}", "range(5)", "range(1, 10, 3)", "undef",
         "s", "n", "f", "l", "d", "ld", "s2", "big"]
BINARY = ["+", "-", "*", "/", "//", "%", "**", "~", "==", "!=", "<", "<=", ">", ">=", "and", "or",
          "in", "not in"]
FILTERS = ["abs", "capitalize", "center(12)", "count", "d('x')", "default(1, true)", "dictsort",
           "dictsort(by='value')", "e", "first", "float", "float(2.5)", "format(1, 2)", "indent",
           "indent(2, true)", "indent('>', blank=true)", "int", "int(7)", "int(base=16)", "items",
           "items|list", "join", "join(', ')", "last", "length", "list", "lower", "map('upper')|list",
           "map('int')|list", "map(attribute='a')|list", "max", "min", "reject('odd')|list",
           "rejectattr('a')|list", "replace('a', 'b')", "replace('l', '', 1)", "reverse",
           "reverse|list", "round", "round(1)", "round(2, 'ceil')", "round(-1)", "safe",
           "select|list", "select('string')|list", "selectattr('a', 'gt', 1)|list", "slice(2)|list",
           "sort", "sort(reverse=true)", "sort(attribute='a')", "string", "striptags", "sum",
           "sum(attribute='a')", "title", "tojson", "tojson(indent=2)", "tojson(sort_keys=true)",
           "trim", "trim('a')", "truncate(5)", "truncate(5, true, '')", "unique|list", "upper",
           "urlencode", "wordcount", "wordwrap(5)", "batch(2)|list", "batch(2, 0)|list",
           "groupby('a')", "attr('x')", "xmlattr", "filesizeformat", "tojson(separators=(',', ':'))",
           "forceescape", "map('string')|join('|')"]
TESTS = ["defined", "undefined", "none", "string", "number", "integer", "float", "boolean", "mapping",
         "iterable", "sequence", "true", "false", "odd", "even", "divisibleby 3", "eq 1", "ne 'a'",
         "lt 2", "ge 1", "in [1, 'a']", "sameas none", "lower", "upper", "callable", "escaped",
         "divisibleby(0)", "filter", "test", "not none", "gt(1)"]
POSTFIX = [".a", "['a']", "[0]", "[-1]", "[1:]", "[:-1]", "[::-1]", "[::2]", "[5]", "[-3:-1]",
           ".upper()", ".lower()", ".strip()", ".split()", ".split(',')", ".split(' ', 1)",
           ".rsplit(None, 1)", ".title()", ".capitalize()", ".swapcase()", ".startswith('a')",
           ".endswith(('a', 'd'))", ".replace('l', 'L')", ".find('o')", ".rfind('o')", ".index('o')",
           ".count('l')", ".count(1)", ".join(['x', 'y'])", ".isdigit()", ".isalpha()", ".isspace()",
           ".isupper()", ".islower()", ".istitle()", ".zfill(6)", ".center(9, '*')", ".ljust(7)",
           ".rjust(7, 'ü')", ".splitlines()", ".partition(' ')", ".rpartition('l')",
           ".removeprefix('a')", ".removesuffix('d')", ".items()", ".keys()", ".values()",
           ".get('a')", ".get('q', 5)", ".items()|list", ".index(1)", ".append(1)", ".pop('a')",
           ".format(1, 2)", ".expandtabs()", ".casefold()", ".lstrip('aH')", ".rstrip()",
           ".isidentifier()", ".isalnum()", ".is_integer()", ".b", ".x.y", "['k'][1].z", ".copy()"]
VARS = {"s": "The quick <b>brown</b> fox", "s2": "ΑΣ straße ŉ 12½", "n": -17, "f": 3.14159,
        "l": ["x", 2, None, 4.5], "d": {"a": 1, "c": "z", "n": None},
        "ld": [{"a": 2, "b": "q"}, {"a": 1, "b": "P"}, {"a": 2, "b": "r"}], "big": 10**15}


def random_expr(r, depth):
    pick = r.random()
    if depth <= 0 or pick < 0.15:
        return r.choice(ATOMS)
    sub = random_expr(r, depth - 1)
    if pick < 0.40:
        return f"({sub})|{r.choice(FILTERS)}"
    if pick < 0.65:
        return f"({sub}){r.choice(POSTFIX)}"
    if pick < 0.75:
        return f"({sub}) is {r.choice(TESTS)}"
    if pick < 0.93:
        return f"({sub}) {r.choice(BINARY)} ({random_expr(r, depth - 1)})"
    if pick < 0.97:
        return f"({sub}) if ({random_expr(r, depth - 1)}) else ({random_expr(r, depth - 1)})"
    return f"'%5s|%-6r|%03d' % (({sub}), ({sub}), 5)"


def random_check(program, count):
    r = random.Random(int(os.environ.get("SEED", "1")))
    cases = []
    while len(cases) < count:
        source = "{{ " + random_expr(r, r.randint(1, 4)) + " }}"
        want = render(source, VARS)
        # addresses, and integers beyond 64 bits, are known differences
        if want is not None and (" at 0x" in want or "object" in want or "built-in" in want):
            continue
        cases.append(("random", source, VARS, want))
    return compare(program, cases, int(os.environ.get("SHOW", "40")))


def too_slow(*_):
    raise TimeoutError


def main(argv):
    # jinja2 itself has no bounds: {{ [1] * 10**9 }} would take the machine down
    resource.setrlimit(resource.RLIMIT_AS, (4 << 30, 4 << 30))
    signal.signal(signal.SIGALRM, too_slow)
    if len(argv) == 4 and argv[1] == "golden":
        golden(argv[2], argv[3])
        return 0
    if len(argv) == 4 and argv[1] == "check":
        return 0 if check(argv[2], argv[3]) else 1
    if len(argv) == 4 and argv[1] == "random":
        return 0 if random_check(argv[2], int(argv[3])) else 1
    print(__doc__, file=sys.stderr)
    return 2


if __name__ == "__main__":
    sys.exit(main(sys.argv))
