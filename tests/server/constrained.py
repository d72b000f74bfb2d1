#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""Constrained generations over the server, checked by other people's validators: jsonschema, and Python's re. A name
that no schema lists may come twice where nothing counts names; json.loads keeps the last one.

  build/venv/bin/python tests/server/constrained.py 5000         the bundled model and two random ones
  build/venv/bin/python tests/server/constrained.py 60 --model build/m
  build/venv/bin/python tests/server/constrained.py --complete 100     whole answers to strict schemas, nothing else set

Every text is sampled at temperature 1 with a seed of its own, and a penalty on frequent tokens: a small model may not
end a string or an array. A text that ended by `stop` must be valid. One that ended
by `length` must be the beginning of a valid one, which is asked of `sluice grammar`. Prints a table, exits 1 if anything
is invalid. Random models (tools/mkmodel: bytes, and phi-2's tokenizer where the test material is unpacked) choose nearly
evenly among what is allowed, which no trained model does."""
import argparse
import concurrent.futures
import http.client
import json
import os
import re
import subprocess
import sys
import tempfile
import time

import jsonschema

from serverproc import BINARY, ROOT, Server

MKMODEL = os.path.join(ROOT, "build", "release", "tools", "mkmodel")
SEQS = 64
PHI = os.path.join(ROOT, "build", "testdata", "tokenizers", "hf", "phi-2")


def closed(properties: dict, **more) -> dict:
    return {"type": "object", "properties": properties, "required": list(properties), "additionalProperties": False} | more


SCHEMAS = [
    closed({"name": {"type": "string", "maxLength": 12}, "age": {"type": "integer", "minimum": 0, "maximum": 130}}),
    closed({"kind": {"enum": ["cat", "dog", None, 3.5, ["x", {"y": False}]]}, "ok": {"type": "boolean"}}),
    closed({"at": {"type": "string", "format": "date-time"}, "id": {"type": "string", "format": "uuid"}}),
    closed({"ip": {"type": "string", "format": "ipv4"}, "day": {"type": "string", "format": "date"}}),
    closed({"x": {"type": "number", "minimum": -2, "maximum": 2, "multipleOf": 0.125}, "y": {"const": "fixed"}}),
    closed({"n": {"type": "integer", "multipleOf": 7, "exclusiveMinimum": 10, "exclusiveMaximum": 1000}}),
    {"type": "array", "minItems": 2, "maxItems": 4, "items": {"type": "string", "pattern": "^[a-z]{2,5}$"}},
    {"type": "array", "prefixItems": [{"type": "integer", "minimum": 0, "maximum": 9}, {"type": "boolean"}],
     "items": False, "minItems": 2},
    {"type": "array", "maxItems": 5, "items": {"enum": [1, 2, 3]}, "contains": {"const": 2}},
    {"anyOf": [closed({"k": {"const": "a"}, "v": {"type": "integer", "minimum": 0, "maximum": 99}}),
               closed({"k": {"const": "b"}, "v": {"type": "string", "maxLength": 6}})]},
    {"oneOf": [{"type": "integer", "minimum": 0, "maximum": 50}, {"type": "integer", "minimum": 40, "maximum": 99}]},
    {"type": "string", "minLength": 3, "maxLength": 9, "allOf": [{"pattern": "[0-9]"}, {"not": {"pattern": "^[0-9]"}}]},
    {"type": "object", "maxProperties": 3, "minProperties": 1, "propertyNames": {"pattern": "^[a-c]{1,3}$"},
     "additionalProperties": {"type": "null"}},
    {"type": "object", "patternProperties": {"^n_": {"type": "integer", "minimum": 0, "maximum": 9}},
     "properties": {"s": {"type": "string", "maxLength": 4}}, "required": ["s"], "maxProperties": 2,
     "propertyNames": {"maxLength": 5}, "additionalProperties": {"type": "boolean"}},
    {"$ref": "#/$defs/t", "$defs": {"t": closed({"v": {"type": "integer", "minimum": 0, "maximum": 9}, "next": {
        "anyOf": [{"type": "null"}, {"$ref": "#/$defs/t"}]}})}},
    {"if": {"properties": {"a": {"const": 1}}, "required": ["a"]}, "then": {"required": ["b"]}, "type": "object",
     "properties": {"a": {"enum": [1, 2]}, "b": {"type": "boolean"}}, "additionalProperties": False},
    {"type": "object", "properties": {"a": {"const": 1}, "b": {"const": 2}}, "additionalProperties": False,
     "dependentRequired": {"a": ["b"]}},
    {"enum": ["one", "two\n\"three\"", {"four": [5]}, -6.5]},
]
# As clients write them for OpenAI's strict mode. Strings and arrays are bounded: how long others get is up to the model,
# and the bundled one, which has read novels, may not end them.
STRICT = {
    "person": closed({"name": {"type": "string", "maxLength": 40}, "age": {"type": "integer"}, "married": {
        "type": "boolean"}, "email": {"anyOf": [{"type": "string", "maxLength": 40}, {"type": "null"}]}}),
    "order": closed({
        "id": {"type": "integer", "minimum": 1}, "status": {"enum": ["open", "paid", "sent"]},
        "total": {"type": "number"}, "customer": {"$ref": "#/$defs/customer"},
        "items": {"type": "array", "minItems": 1, "maxItems": 4, "items": {"$ref": "#/$defs/item"}}},
        **{"$defs": {"customer": closed({"name": {"type": "string", "maxLength": 40}, "city": {"type": "string",
                                                                                                "maxLength": 20}}),
                     "item": closed({"title": {"type": "string", "maxLength": 30}, "quantity": {"type": "integer"},
                                     "tags": {"type": "array", "items": {"enum": ["new", "used", "gift"]},
                                              "maxItems": 2}})}}),
}
REGEXES = [r"[a-c]{3,5}[0-9]{2}", r"(ha|ho){1,6}!", r"\d{4}-(0[1-9]|1[0-2])-\d{2}", r"[^a-z\n]{4,8}",
           r"(?:yes|no|perhaps)( [a-z]{1,4}){0,3}\.", r"(?=.*[0-9])[a-z0-9]{2,6}", r"\S{1,6}@\w{2,4}\.(com|org)"]
CHOICES = [["red", "green", "blue"], ["yes", "yes sir", "no"], ["日本", "España", "a\tb"]]
# The same in the notation of rules and as a pattern.
RULES = [('root ::= "<" [a-z]{1,3} (" " item){0,3} ">"\nitem ::= [0-9]{1,2} | "x" item?',
          r"<[a-z]{1,3}( (x*[0-9]{1,2}|x+)){0,3}>"),
         ('start: NAME ("," NAME)~0..3 ";"\nNAME: /[a-z]{1,4}/', r"[a-z]{1,4}(,[a-z]{1,4}){0,3};")]


def cases() -> list[tuple[str, dict, str, str, object]]:
    """(name, fields of the request, kind and text for `sluice grammar`, check)"""
    out = []
    for i, s in enumerate(SCHEMAS):
        v = jsonschema.Draft202012Validator(s, format_checker=jsonschema.FormatChecker())
        for compact in (True, False):
            fields = {"structured_outputs": {"json": s, "disable_any_whitespace": compact}}
            out.append((f"schema {i}{' compact' if compact else ''}", fields, "json-schema", json.dumps(s),
                        lambda t, v=v: v.validate(json.loads(t))))
    for r in REGEXES:
        out.append((f"regex {r}", {"structured_outputs": {"regex": r}}, "regex", r, match(r)))
    for c in CHOICES:
        out.append((f"choice {c[0]}", {"guided_choice": c}, "choice", json.dumps(c), match("|".join(map(re.escape, c)))))
    for rules, r in RULES:
        out.append((f"rules {r}", {"grammar": rules}, "ebnf", rules, match(r)))
    return out


def match(pattern: str):
    # As ECMA-262 has them: \d and \w are ASCII, \s is without U+001C to U+001F and U+0085, and with U+FEFF.
    p = re.compile(pattern.replace(r"\d", "[0-9]").replace(r"\w", "[A-Za-z0-9_]").replace(
        r"\S", "[^\t\n\v\f\r \u00a0\u1680\u2000-\u200a\u2028\u2029\u202f\u205f\u3000\ufeff]"))

    def check(text: str) -> None:
        if p.fullmatch(text) is None:
            raise ValueError(f"does not match {pattern}")
    return check


def is_prefix(kind: str, grammar: str, texts: list[str]) -> list[bool]:
    """Of each text: could it go on to a valid one?"""
    out = []
    for i in range(0, len(texts), 16):
        flags = [f for t in texts[i:i + 16] for f in ("-t", t)]
        r = subprocess.run([BINARY, "grammar", "-k", kind, *flags], input=grammar.encode(), capture_output=True,
                           check=False)
        said = r.stdout.decode("utf-8", "replace")
        verdicts = re.findall(r"^(yes  |     not complete at byte|     refused at byte)", said, re.M)
        if r.returncode == 2 or len(verdicts) != len(texts[i:i + 16]):
            raise RuntimeError(f"sluice grammar says of {texts[i:i + 16]!r}: {said} {r.stderr.decode()}")
        out += [not v.startswith("     refused") for v in verdicts]
    return out


def ask(server: Server, body: dict) -> tuple[int, dict]:
    """On a busy machine an answer may take minutes."""
    c = http.client.HTTPConnection("127.0.0.1", server.port, timeout=1200)
    try:
        c.request("POST", "/v1/completions", json.dumps(body))
        r = c.getresponse()
        return r.status, json.loads(r.read())
    finally:
        c.close()


def run_model(name: str, args: list[str], n: int, max_tokens: int) -> tuple[int, int, int, int]:
    """(whole, cut, invalid, tokens) of n generations"""
    todo, whole, invalid, tokens = cases(), 0, 0, 0
    cut: dict[int, list[str]] = {}
    with Server(*args, "--max-num-seqs", str(SEQS)) as server:
        def one(i: int):
            fields = todo[i % len(todo)][1]
            status, reply = ask(server, {"prompt": f"Number {i}:", "temperature": 1, "seed": i,
                                         "frequency_penalty": 0.6, "max_tokens": max_tokens} | fields)
            if status != 200:
                raise RuntimeError(f"{todo[i % len(todo)][0]}: {status} {reply}")
            return i, reply["choices"][0], reply["usage"]["completion_tokens"]
        with concurrent.futures.ThreadPoolExecutor(SEQS) as pool:
            for i, choice, used in pool.map(one, range(n)):
                text, case = choice["text"], i % len(todo)
                tokens += used
                if choice["finish_reason"] == "length":
                    cut.setdefault(case, []).append(text)
                    continue
                try:
                    if choice["finish_reason"] != "stop":
                        raise ValueError(f"finish_reason {choice['finish_reason']}")
                    todo[case][4](text)
                    whole += 1
                except Exception as e:  # pylint: disable=broad-except
                    invalid += 1
                    print(f"INVALID {name}, {todo[case][0]}, seed {i}: {text!r}: {str(e).splitlines()[0]}")
    n_cut = 0
    for case, texts in cut.items():
        for text, good in zip(texts, is_prefix(todo[case][2], todo[case][3], texts)):
            n_cut += good
            invalid += not good
            if not good:
                print(f"INVALID {name}, {todo[case][0]}, cut: {text!r}")
    return whole, n_cut, invalid, tokens


def run_complete(args: list[str], n: int, max_tokens: int) -> dict[str, tuple[int, int]]:
    """{schema: (complete and valid of n answers, tokens)}: chats at temperature 1, each with its own seed"""
    out = {}
    with Server(*args) as server:
        for name, schema in STRICT.items():
            def one(i: int, name=name, schema=schema):
                status, reply = server.json("POST", "/v1/chat/completions", {
                    "messages": [{"role": "user", "content": f"Make up {name} number {i}."}], "temperature": 1,
                    "seed": i, "max_tokens": max_tokens, "response_format": {
                        "type": "json_schema", "json_schema": {"name": name, "strict": True, "schema": schema}}})
                if status != 200:
                    raise RuntimeError(f"{name}: {status} {reply}")
                text, finish = reply["choices"][0]["message"]["content"], reply["choices"][0]["finish_reason"]
                try:
                    if finish != "stop":
                        raise ValueError(f"finish_reason {finish}")
                    jsonschema.validate(json.loads(text), schema, jsonschema.Draft202012Validator)
                    whole = True
                except (ValueError, jsonschema.ValidationError) as e:
                    whole = False
                    print(f"{name}, seed {i}: {str(e).splitlines()[0]}: {text!r}")
                return whole, reply["usage"]["completion_tokens"]
            with concurrent.futures.ThreadPoolExecutor(16) as pool:
                answers = list(pool.map(one, range(n)))
            out[name] = sum(a[0] for a in answers), sum(a[1] for a in answers)
    return out


def main_complete(args: argparse.Namespace) -> int:
    todo = [[m] for m in args.model or []] or [[]]
    bad = 0
    print(f"{'model':<22} {'schema':<8} {'answers':>8} {'complete':>9} {'tokens':>8}")
    for model in todo:
        for name, (whole, tokens) in run_complete([*model, "--threads", args.threads], args.complete, 1000).items():
            bad += whole * 100 < args.complete * 99
            print(f"{' '.join(model) or 'bundled':<22} {name:<8} {args.complete:>8} {whole:>9} {tokens:>8}")
    return 1 if bad else 0


def main() -> int:
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("n", type=int, nargs="?", default=150, help="generations, of all models together (default: 150)")
    p.add_argument("--model", action="append", help="a model (may be repeated; default: bundled and random ones)")
    p.add_argument("--max-tokens", type=int, default=150)
    p.add_argument("--threads", default="2")
    p.add_argument("--complete", type=int, metavar="N", help="N answers to each of the strict schemas instead")
    args = p.parse_args()
    if args.complete:
        return main_complete(args)
    worst = 0
    with tempfile.TemporaryDirectory() as folder:
        models = [(m, [m]) for m in args.model or []]
        if not models:
            models = [("bundled", [])]
            made = [("random, bytes", ["--family", "llama", "--vocab", "bytes"])]
            if os.path.isdir(PHI):
                made.append(("random, 51200 tokens", ["--family", "qwen3", "--vocab", "51200", "--tokenizer", PHI]))
            for i, (name, how) in enumerate(made):
                out = os.path.join(folder, f"m{i}")
                subprocess.run([MKMODEL, *how, "--quiet", "--out", out], check=True)
                models.append((name, [out]))
        print(f"{'model':<22} {'texts':>6} {'whole, valid':>13} {'cut, valid so far':>18} {'invalid':>8} {'tokens':>8} "
              f"{'seconds':>8}")
        for i, (name, model) in enumerate(models):
            n = args.n // len(models) + (i < args.n % len(models))
            t0 = time.monotonic()
            whole, cut, invalid, tokens = run_model(name, [*model, "--threads", args.threads], n, args.max_tokens)
            worst = max(worst, invalid)
            print(f"{name:<22} {n:>6} {whole:>13} {cut:>18} {invalid:>8} {tokens:>8} {time.monotonic() - t0:>8.1f}",
                  flush=True)
    return 1 if worst else 0


if __name__ == "__main__":
    sys.exit(main())
