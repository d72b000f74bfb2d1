#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""Writes tests/text/world_golden.h: a part of RWKV's World vocabulary, as its file and as a GGUF has it, and what the
tokenizer of the rwkv package makes of some texts with it.

  pip download rwkv --no-deps; PYTHONPATH=<where it is unpacked> tools/gen_golden_world.py
"""
import ast
import importlib.util
import pathlib
import random
import sys
import tempfile
import textwrap

spec = next(pathlib.Path(p) / "rwkv" for p in sys.path if (pathlib.Path(p) / "rwkv" / "rwkv_tokenizer.py").exists())
loader = importlib.util.spec_from_file_location("rwkv_tokenizer", spec / "rwkv_tokenizer.py")
module = importlib.util.module_from_spec(loader)
loader.loader.exec_module(module)

TEXTS = ["", "Hello, world!\n\nUser: hi", "  two  spaces\tand a tab\r\n", "naïve — 你好 🙂", "'\"\\ quotes\\n",
         "aaaaaaaaaaaaaaaa 123456 0x1F", "\u3000\u00a0\x00\x7f", "for (int i = 0; i < n; i++) {\n    return;\n}"]


def c_string(b: bytes) -> str:
    return '"' + "".join(f"\\{x:03o}" if x < 32 or x > 126 or x in b'"\\?' else chr(x) for x in b) + '"'


def main() -> None:
    lines = (spec / "rwkv_vocab_v20230424.txt").read_text(encoding="utf-8").splitlines()
    tokens = {}
    for line in lines:
        literal = ast.literal_eval(line[line.index(" "):line.rindex(" ")].strip())
        tokens[int(line[:line.index(" ")])] = (literal.encode() if isinstance(literal, str) else literal, line)
    all_texts = "".join(TEXTS).encode()
    rng = random.Random(1)
    wanted = sorted(i for i, (b, _) in tokens.items() if len(b) == 1 or b in all_texts or rng.random() < 0.002)
    kept = [tokens[i][1] for i in wanted]
    numbered = [f"{k + 1}{line[line.index(' '):]}" for k, line in enumerate(kept)]
    with tempfile.NamedTemporaryFile("w", suffix=".txt", encoding="utf-8") as f:
        f.write("\n".join(numbered) + "\n")
        f.flush()
        oracle = module.TRIE_TOKENIZER(f.name)
    out = ["/* SPDX-License-Identifier: MIT", " * Made by tools/gen_golden_world.py; do not edit.", " */",
           "/* clang-format off */", "static const char world_file[] ="]
    out += [f"    {c_string((line + chr(10)).encode())}" for line in numbered]
    out[-1] += ";"
    out.append("/* As GGUF files have them: the inside of a literal of bytes. */")
    out.append("static const char *const world_gguf[] = {")
    out += [f"    {c_string(repr(tokens[i][0])[2:-1].encode())}," for i in wanted]
    out += ["};", "static const struct {", "    const char *text;", "    size_t n_text, n;", "    int32_t ids[64];",
            "} world_texts[] = {"]
    for text in TEXTS:
        ids = oracle.encode(text)
        assert oracle.decode(ids) == text and len(ids) <= 64
        body = ", ".join(map(str, ids)) or "0"
        out.append(f"    {{{c_string(text.encode())},")
        out += textwrap.wrap(f"{len(text.encode())}, {len(ids)}, {{{body}}}}},", 90, initial_indent="     ",
                             subsequent_indent="     ")
    out += ["};", "/* clang-format on */"]
    pathlib.Path("tests/text/world_golden.h").write_text("\n".join(out) + "\n")
    print(f"{len(wanted)} tokens, {len(TEXTS)} texts")


main()
