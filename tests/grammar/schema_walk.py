#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""Walks every JSON schema of a folder at random through the masks of a real vocabulary, to the end, and has the texts
judged by Python's jsonschema.

  build/venv/bin/python tests/grammar/schema_walk.py FOLDER [--walks 4] [--vocab FILE]      (make schema-walk FOLDER=...)

FOLDER holds one schema per .json file, or files of MaskBench (members "schema" and "tests"). The walks are those of
build/release/tests/grammar/test_schema_walk. What counts: a text that jsonschema calls invalid (false accept), a place
from which no token leads on (dead end), an error after the first token (late refusal), and the slowest mask: of each
mask the shorter of two times, by the thread's processor time. Formats are checked as far as the packages of
jsonschema[format-nongpl] are there. Exits 1 if there is a fault, or a mask above --max-mask-us."""
import argparse
import collections
import json
import os
import re
import subprocess
import sys

import jsonschema

ROOT = os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "..")
VOCAB = os.path.join(ROOT, "build", "testdata", "tokenizers", "tiktoken", "llama3.tiktoken")


def validator(schema: object) -> jsonschema.protocols.Validator:
    """Of the draft that sluice reads: draft 6 as 7, 2019-09 as 2020-12, nothing said as 2020-12."""
    uri = schema.get("$schema") if isinstance(schema, dict) else None
    uri = uri if isinstance(uri, str) and "json-schema.org" in uri else ""
    cls = (jsonschema.Draft4Validator if "draft-04" in uri else
           jsonschema.Draft7Validator if "draft-0" in uri else jsonschema.Draft202012Validator)
    return cls(schema, format_checker=cls.FORMAT_CHECKER)


def load(path: str) -> object:
    with open(path, encoding="utf-8-sig") as f:
        doc = json.load(f)
    return doc["schema"] if isinstance(doc, dict) and "schema" in doc and "tests" in doc else doc


def fault_of(v: jsonschema.protocols.Validator, text: str) -> str | None:
    """What jsonschema says against the text. A pattern that Python's re does not know has no say."""
    try:
        value = json.loads(text)
    except ValueError as e:
        return f"not JSON: {e}"
    try:
        error = jsonschema.exceptions.best_match(v.iter_errors(value))
    except re.error:
        return None
    return None if error is None else f"{error.json_path}: {error.message[:150]}"


def reason(message: str) -> str:
    """A refusal without its place."""
    message = re.sub(r"^schema: \S*/(\S+): ", r"\1: ", message)
    return re.sub(r'"[^"]*" leads nowhere', "leads nowhere", re.sub(r" at character \d+", "", message))


def main() -> int:
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("folder")
    p.add_argument("--walks", type=int, default=4, help="texts per schema")
    p.add_argument("--seed", type=int, default=1)
    p.add_argument("--vocab", default=VOCAB, help="a tokenizer")
    p.add_argument("--build", default=os.path.join(ROOT, "build", "release"), help="build folder of test_schema_walk")
    p.add_argument("--max-mask-us", type=float, default=3000)
    p.add_argument("--slowest", type=int, default=5, help="how many schemas with slow masks to name")
    args = p.parse_args()
    program = os.path.join(args.build, "tests", "grammar", "test_schema_walk")
    r = subprocess.run([program, "--folder", args.folder, args.vocab, str(args.walks), str(args.seed)],
                       stdout=subprocess.PIPE, text=True, encoding="utf-8", errors="surrogateescape", check=False)
    lines = [json.loads(line) for line in r.stdout.split("\n") if line]
    if r.returncode != 0 or not lines:
        print(f"{program} exited {r.returncode} with {len(lines)} lines")
        return 1
    count, refused, faults, validators = collections.Counter(), collections.Counter(), [], {}
    for line in lines:
        count[line["outcome"]] += 1
        if line["outcome"] == "refused":
            refused[reason(line["message"])] += 1
        elif line["outcome"] in ("dead end", "late refusal"):
            faults.append((line, line.get("message", "no token may follow")))
        elif line["outcome"] == "complete":
            if line["file"] not in validators:
                validators[line["file"]] = validator(load(os.path.join(args.folder, line["file"])))
            fault = fault_of(validators[line["file"]], line["text"])
            count["false accept"] += fault is not None
            if fault is not None:
                faults.append((line, fault))
    walked = [line for line in lines if "mask_cpu_us" in line]
    for line, what in faults:
        print(f"FAULT {line['file']} seed {line['seed']}: {line['outcome']}: {what}\n      {line['text'][-200:]!r}")
    slow = sorted({line["file"]: line for line in sorted(walked, key=lambda x: x["mask_cpu_us"])}.values(),
                  key=lambda x: -x["mask_cpu_us"])
    print("refused before the first token:")
    for what, n in refused.most_common(12):
        print(f"  {n:5d}  {what}")
    for line in slow[:args.slowest]:
        print(f"slow: {line['mask_cpu_us']:.0f} us of the processor, {line['mask_wall_us']:.0f} by the wall: "
              f"{line['file']} seed {line['seed']} token {line['slowest']}")
    most = slow[0]["mask_cpu_us"] if slow else 0
    print(f"{len({line['file'] for line in lines})} schemas, {len({line['file'] for line in walked})} walked, "
          f"{count['refused']} refused; {len(walked)} texts: {count['complete']} complete, {count['unfinished']} "
          f"unfinished, {count['false accept']} false accepts, {count['dead end']} dead ends, "
          f"{count['late refusal']} late refusals; slowest mask {most:.0f} us")
    return 1 if faults or most > args.max_mask_us else 0


if __name__ == "__main__":
    sys.exit(main())
