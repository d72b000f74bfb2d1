# SPDX-License-Identifier: MIT
"""Random texts that the masks allow, against Python's jsonschema: schemas of what is hard to enforce, and a slice of
MaskBench where it is unpacked. The whole of any folder: tests/grammar/schema_walk.py FOLDER."""
import json
import os
import shutil
import subprocess
import sys

import pytest

HERE = os.path.dirname(os.path.abspath(__file__))
ROOT = os.path.join(HERE, "..", "..")
BUILD = os.path.dirname(os.path.abspath(os.environ.get("SLUICE_BIN", os.path.join(ROOT, "build", "release", "sluice"))))
MASKBENCH = os.path.join(ROOT, "build", "testdata", "structured", "maskbench")
VOCAB = os.path.join(ROOT, "build", "testdata", "tokenizers", "tiktoken", "llama3.tiktoken")


def closed(**properties: object) -> dict:
    return {"type": "object", "properties": properties, "required": list(properties), "additionalProperties": False}


def unique(items: dict, **more: object) -> dict:
    return {"type": "array", "items": items, "uniqueItems": True} | more


SCHEMAS = {
    "strings": unique({"type": "string"}, minItems=3),
    "short": unique({"type": "string", "maxLength": 2, "pattern": "^[ab]*$"}, minItems=4),
    "numbers": unique({"type": "number", "minimum": -3, "maximum": 3}, minItems=3),
    "integers": unique({"type": "integer"}, minItems=2),
    "enumerated": unique({"enum": ["a", "ab", "b", 1, None, True]}, minItems=5),
    "booleans": unique({"type": "boolean"}, minItems=2),
    "in_members": {"type": "object", "additionalProperties": unique({"type": "string"}), "minProperties": 1},
    "with_contains": unique({"type": "string"}, contains={"const": "x"}),
    "unevaluated": {"type": "array", "prefixItems": [{"type": "integer"}], "contains": {"type": "string"},
                    "unevaluatedItems": {"type": "null"}},
    "unevaluated_all": {"type": "array", "allOf": [{"contains": {"enum": [2, 4]}}, {"contains": {"enum": [3, 9]}}],
                        "unevaluatedItems": {"const": 5}},
    "contains_twice": {"type": "array", "contains": {"const": 1}, "minContains": 2,
                       "unevaluatedItems": {"type": "null"}},
    "one_of_two": {"type": "object", "properties": {"a": {"type": "null"}, "b": {"type": "null"}},
                   "additionalProperties": False, "oneOf": [{"required": ["a"]}, {"required": ["b"]}]},
    "excluded": {"type": "object", "properties": {"k": {"enum": ["x", "xy"]}, "a": {"type": "null"}},
                 "required": ["k"], "additionalProperties": False,
                 "if": {"properties": {"k": {"const": "x"}}}, "then": {"properties": {"a": False}}},
    # items that are arrays and objects: equal in any order of names, with few values left, in one another
    "unique_objects": unique(closed(k={"type": "string", "maxLength": 1}, v={"type": "boolean"}), minItems=3),
    "unique_few": unique(closed(k={"enum": ["x", "y", "z"]}, v={"type": "boolean"}), minItems=3),
    "unique_optional": unique({"type": "object", "properties": {k: {"type": "null"} for k in "abc"},
                               "additionalProperties": False}, minItems=2),
    "unique_any": unique({}, minItems=3),
    "unique_arrays": unique({"type": "array", "items": {"enum": [1, 2, "n"]}, "maxItems": 3}, minItems=4),
    "unique_nested": unique(unique({"type": "object", "properties": {"a": {"type": "integer"}}}, maxItems=2), minItems=2),
    "unique_maps": unique({"type": "object", "additionalProperties": {"type": "boolean"}, "maxProperties": 2}, minItems=3),
    "unique_names": unique({"type": "object", "patternProperties": {"^[ab]$": {"type": "null"}},
                            "additionalProperties": False}, minItems=2),
    "unique_kinds": unique({"oneOf": [{"enum": ["a", "b"]}, closed(t={"const": 1}, s={"type": "string"}),
                                      closed(t={"const": 2}, n={"enum": [1, 2]}), {"type": "array", "maxItems": 1}]},
                           minItems=4),
    "unique_condition": unique({"type": "object", "required": ["t"], "properties": {
        "t": {"enum": ["m", "n"]}, "v": {"type": "boolean"}}, "if": {"properties": {"t": {"const": "m"}}},
        "then": {"required": ["v"]}, "else": {"properties": {"v": False}}}, minItems=2),
    "unique_tree": {"$ref": "#/$defs/t", "$defs": {"t": {"type": "object", "required": ["n"], "properties": {
        "n": {"type": "string", "maxLength": 1}, "kids": unique({"$ref": "#/$defs/t"}, maxItems=3)}}}},
    # names that no value may follow: each value of `b` breaks `not`, each value of `t` breaks a `then`
    "no_value_left": {"type": "object", "properties": {k: {"enum": [1, "1"]} for k in "ab"} | {"c": {"type": "null"}},
                      "additionalProperties": False,
                      "not": {"properties": {k: {"enum": [1, "1"]} for k in "ab"}, "required": ["a", "b"]}},
    "no_kind_left": {"type": "array", "minItems": 2, "items": {
        "type": "object", "required": ["t"], "properties": {"t": {"enum": ["m", "n"]}}, "allOf": [
            {"if": {"properties": {"t": {"const": t}}},
             "then": closed(t={"const": t}, **{v: {"type": ["object", "string"], "minLength": 1, "properties": {
                 t: {"type": "null"}}, "required": [t], "additionalProperties": False}})} for t, v in ("mv", "nw")]}},
    "no_name_left": {"type": "object", "properties": {"i": {"type": "boolean"}}, "allOf": [
        {"if": {"properties": {"i": {"const": False}}}, "then": closed(a={"type": "array"}) | {
            "properties": {"i": {}, "a": {"type": "array", "items": {"type": "null"}}}}},
        {"if": {"properties": {"i": {"const": True}}, "required": ["i"]},
         "then": {"additionalProperties": False, "properties": {"i": {}, "b": {"type": ["string", "null"]}}}}]},
    # objects that are closed by default, by what several schemas say of them
    "branches": {"type": "object", "oneOf": [
        {"properties": {"k": {"const": "x"}, "l": unique({"enum": [1, 2, 3]}, minItems=3)}, "required": ["k", "l"]},
        {"properties": {"k": {"const": 10**25 + 7}, "m": {"type": "integer", "minimum": 2**64}},
         "required": ["k", "m"]}]},
    "parts": {"type": "object", "allOf": [
        {"properties": {"a": unique({"type": "boolean"}, minItems=2)}, "required": ["a"]},
        {"$ref": "#/$defs/b"}], "$defs": {"b": {"required": ["b"], "properties": {"b": {
            "type": "array", "contains": {"const": 10**20}, "unevaluatedItems": {"type": "null"}}}}}},
    "excluded_by_default": {"type": "object", "required": ["k"], "properties": {
        "k": {"enum": ["x", "xy"]}, "a": {"type": "null"}, "u": unique({"type": "integer"}, minItems=2)},
        "if": {"properties": {"k": {"const": "x"}}}, "then": {"properties": {"a": False}, "required": ["u"]}},
    "not_large": closed(a={"type": "integer", "not": {"maximum": 2**70}}, b={"contains": {"const": -2**65},
                                                                            "type": "array", "maxItems": 3}),
    "large": closed(a={"type": "integer", "minimum": 2**64 + 1, "maximum": 2**64 + 3}, b={"const": 10**25 + 7}),
} | {name: closed(a={"type": "string", "format": name})
     for name in ("regex", "uri-template", "idn-email", "date", "date-time", "email", "ipv6", "uuid")}


def walk(folder: str, walks: int) -> str:
    if not os.path.exists(VOCAB):
        pytest.skip("build/testdata/tokenizers is not unpacked")
    r = subprocess.run([sys.executable, os.path.join(HERE, "schema_walk.py"), folder, "--walks", str(walks), "--build",
                        BUILD, "--max-mask-us", "1e9"], capture_output=True, text=True, check=False)
    print(r.stdout)
    assert r.returncode == 0, r.stdout[-3000:]
    return r.stdout


def test_hard_schemas(tmp_path) -> None:
    for name, schema in SCHEMAS.items():
        (tmp_path / f"{name}.json").write_text(json.dumps(schema), encoding="utf-8")
    out = walk(str(tmp_path), 4)
    assert f"{len(SCHEMAS)} schemas, {len(SCHEMAS)} walked, 0 refused" in out


def test_maskbench_slice(tmp_path) -> None:
    if not os.path.isdir(MASKBENCH):
        pytest.skip("build/testdata/structured is not unpacked")
    for name in sorted(os.listdir(MASKBENCH))[::40]:
        shutil.copy(os.path.join(MASKBENCH, name), tmp_path)
    walk(str(tmp_path), 1)
