"""Writes the seed files of fuzz_gguf, fuzz_safetensors and fuzz_json. Needs nothing but Python.

    python3 tests/fuzz/make_corpus_io.py          (from the repository root; always the same bytes)
"""

from __future__ import annotations

import json
import struct
from pathlib import Path

CORPUS = Path(__file__).parent / "corpus"
U8, I8, U16, I16, U32, I32, F32, BOOL, STRING, ARRAY, U64, I64, F64 = range(13)
PACK = {U8: "B", I8: "b", U16: "H", I16: "h", U32: "I", I32: "i", F32: "f", BOOL: "B", U64: "Q",
        I64: "q", F64: "d"}
TYPES = {"f32": (0, 1, 4), "f16": (1, 1, 2), "q4_0": (2, 32, 18), "q8_0": (8, 32, 34),
         "q4_k": (12, 256, 144), "q5_k": (13, 256, 176), "q6_k": (14, 256, 210),
         "iq2_xxs": (16, 256, 66), "bf16": (30, 1, 2)}


def string(text: str | bytes) -> bytes:
    data = text.encode() if isinstance(text, str) else text
    return struct.pack("<Q", len(data)) + data


def value(kind: int, v) -> bytes:
    return string(v) if kind == STRING else struct.pack("<" + PACK[kind], v)


def scalar(key: str, kind: int, v) -> bytes:
    return string(key) + struct.pack("<I", kind) + value(kind, v)


def array(key: str, kind: int, items: list) -> bytes:
    head = string(key) + struct.pack("<IIQ", ARRAY, kind, len(items))
    return head + b"".join(value(kind, v) for v in items)


def gguf(kvs: list[bytes], tensors: list[tuple[str, list[int], str]], version: int = 3,
         align: int = 32) -> bytes:
    out = b"GGUF" + struct.pack("<IQQ", version, len(tensors), len(kvs)) + b"".join(kvs)
    data = b""
    for name, ne, kind in tensors:
        type_id, elems, n_bytes = TYPES[kind]
        n = 1
        for dim in ne:
            n *= dim
        out += string(name) + struct.pack(f"<I{len(ne)}QIQ", len(ne), *ne, type_id, len(data))
        data += bytes(i * 7 & 0x3F for i in range(n // elems * n_bytes))
        data += b"\0" * (-len(data) % align)
    return out + b"\0" * (-len(out) % align if tensors else 0) + data


def safetensors(header: dict | bytes, n_data: int) -> bytes:
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    return struct.pack("<Q", len(text)) + text + bytes(n_data)


def tensor(dtype: str, shape: list[int], begin: int, end: int) -> dict:
    return {"dtype": dtype, "shape": shape, "data_offsets": [begin, end]}


def write(target: str, files: dict[str, bytes]) -> None:
    folder = CORPUS / target
    folder.mkdir(parents=True, exist_ok=True)
    for name, data in files.items():
        (folder / name).write_bytes(data)


def main() -> None:
    every = [scalar(f"k.{k}", k, "text" if k == STRING else 1) for k in range(13) if k != ARRAY]
    arrays = [array(f"a.{k}", k, ["x", "", b"\0\xff"] if k == STRING else [1, 0, 1])
              for k in range(13) if k != ARRAY]
    llama = [scalar("general.architecture", STRING, "llama"), scalar("llama.block_count", U32, 1),
             scalar("llama.rope.freq_base", F32, 1e4),
             array("tokenizer.ggml.tokens", STRING, ["<unk>", "<s>", "a"]),
             array("tokenizer.ggml.scores", F32, [0.0, 0.0, -1.0])]
    align = [scalar("general.alignment", U32, 64)]
    split = [scalar("split.no", U16, 0), scalar("split.count", U16, 1),
             scalar("split.tensors.count", I32, 1)]
    one = [("t", [4], "f32")]
    write("gguf", {
        "empty": gguf([], []),
        "scalars": gguf(every, []),
        "arrays": gguf(arrays, []),
        "llama": gguf(llama, [("token_embd.weight", [8, 3], "f16"), ("blk.0.w", [32, 2], "q8_0")]),
        "align": gguf(align, [("a", [3], "bf16"), ("b", [32], "q4_0")], align=64),
        "k": gguf([], [(k, [256], k) for k in ("q4_k", "q5_k", "q6_k", "iq2_xxs")], version=2),
        "dims": gguf([], [("d", [2, 1, 2, 1], "f32")]),
        "split": gguf(split, one),
        "duplicate": gguf([], one + one),
        "nested": gguf([string("n") + struct.pack("<IIQ", ARRAY, ARRAY, 0)], []),
        "big_endian": b"GGUF" + struct.pack(">IQQ", 3, 0, 0),
        "short": gguf(llama, one)[:-9],
    })
    a, b = tensor("F32", [2], 0, 8), tensor("BF16", [3, 1], 8, 14)
    write("safetensors", {
        "empty": safetensors({}, 0),
        "two": safetensors({"a.weight": a, "b.weight": b}, 14),
        "metadata": safetensors({"__metadata__": {"format": "pt", "k": "v\n"}, "a": a}, 8),
        "null": safetensors({"__metadata__": None, "a": a}, 8),
        "escapes": safetensors(b'{"\\u0061\\ud83d\\ude00\\/":{"dtype":"U8","shape":[],'
                               b'"data_offsets":[0,1]}}  ', 1),
        "many": safetensors({t: tensor(t, [8], 8 * i, 8 * i + 8)
                             for i, t in enumerate(("BOOL", "U8", "I8", "F8_E4M3", "F8_E5M2"))}, 40),
        "wide": safetensors({"w": tensor("C64", [1] * 8, 0, 8), "n": tensor("X1", [9], 8, 9),
                             "f": tensor("F4", [2], 9, 10), "z": tensor("F64", [0], 10, 10)}, 10),
        "gap": safetensors({"a": a, "b": tensor("U8", [1], 9, 10)}, 10),
        "overlap": safetensors({"a": a, "b": tensor("U8", [8], 4, 12)}, 12),
        "overflow": safetensors({"a": tensor("U8", [1 << 32, 1 << 32], 0, 0)}, 0),
        "twice": safetensors(b'{"__metadata__":{},"__metadata__":{}}', 0),
    })
    write("json", {
        "index": json.dumps({"metadata": {"total_size": 8}, "weight_map": {
            "a": "a.safetensors", "b": "b.safetensors"}}).encode(),
        "one": b'{"weight_map":{"a":"a.safetensors"}}',
        "wrong": b'{"weight_map":{"a":"b.safetensors"}}',
        "missing": b'{"weight_map":{"a":"c.safetensors"}}',
        "escape": b'{"weight_map":{"a":"../a.safetensors"}}',
        "config": json.dumps({"model_type": "llama", "hidden_size": 64, "rope_scaling": None,
                              "eos_token_id": [1, 2], "rms_norm_eps": 1e-5}).encode(),
        "deep": b'{"a":' + b"[" * 63 + b"]" * 63 + b"}",
        "deeper": b'{"a":' + b"[" * 64 + b"]" * 64 + b"}",
        "twice": b'{"a":1,"a":2}',
        "escapes": b'{"\\u00e9\\ud83d\\ude00":"\\"[[{{\\\\","x":-0.0e-5}',
        "list": b"[]",
    })


if __name__ == "__main__":
    main()
