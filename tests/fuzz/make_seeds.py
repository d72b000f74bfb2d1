#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""Writes inputs that a fuzzer would take long to find: whole model files, requests, bodies. What they
reach comes into the committed corpora with

    tests/fuzz/make_seeds.py && tools/fuzz_all --merge --extra build/fuzz/seeds

Needs nothing but Python and writes the same bytes always."""

from __future__ import annotations

import json
import re
import struct
from pathlib import Path

SEEDS = Path(__file__).parent / "../../build/fuzz/seeds"
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
    folder = SEEDS / target
    folder.mkdir(parents=True, exist_ok=True)
    for name, data in files.items():
        (folder / name).write_bytes(data)


def tensor_files() -> None:
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


def vocabulary(model: str, tokens: list[str], extra: list[bytes]) -> bytes:
    t = "tokenizer.ggml."
    return gguf([scalar("general.architecture", STRING, "llama"), scalar(t + "model", STRING, model),
                 array(t + "tokens", STRING, tokens), *extra], [])


def model_files() -> None:
    """The first byte says which file of fuzz_model.c the input is: kind + 4 * family."""
    t = "tokenizer.ggml."
    config = {"architectures": ["LlamaForCausalLM"], "model_type": "llama", "hidden_size": 64,
              "intermediate_size": 160, "num_hidden_layers": 2, "num_attention_heads": 4,
              "num_key_value_heads": 2, "head_dim": 16, "max_position_embeddings": 512, "vocab_size": 320,
              "rms_norm_eps": 1e-05, "hidden_act": "silu", "tie_word_embeddings": False,
              "attention_bias": False, "mlp_bias": False, "bos_token_id": 256, "eos_token_id": 257,
              "rope_parameters": {"rope_type": "default", "rope_theta": 10000}}
    llama3 = {"rope_type": "llama3", "rope_theta": 10000, "factor": 32, "low_freq_factor": 1,
              "high_freq_factor": 4, "original_max_position_embeddings": 16}
    yarn = {"rope_type": "yarn", "rope_theta": 1e6, "factor": 4, "original_max_position_embeddings": 128}
    qwen3 = config | {"architectures": ["Qwen3ForCausalLM"], "model_type": "qwen3", "head_dim": 32,
                      "tie_word_embeddings": True, "use_sliding_window": False, "max_window_layers": 28}
    mistral = config | {"architectures": ["MistralForCausalLM"], "model_type": "mistral",
                        "sliding_window": 24}
    gptq = {"quant_method": "gptq", "bits": 4, "group_size": 32, "desc_act": False, "sym": True,
            "checkpoint_format": "gptq"}
    qwen2 = config | {"architectures": ["Qwen2ForCausalLM"], "model_type": "qwen2"}
    packed = {"quant_method": "compressed-tensors", "format": "pack-quantized", "config_groups": {"a": {
        "weights": {"type": "int", "num_bits": 4, "strategy": "group", "group_size": 32}}}}
    tokens = ["<unk>", "<s>", "</s>", "<0x41>", "a", "b", "ab", "\u2581", "\u2581a", "<0x0A>"]
    scores = [array(t + "scores", F32, [0.0, 0, 0, 0, -1, -2, -3, -4, -5, 0]),
              array(t + "token_type", I32, [2, 3, 3, 6, 1, 1, 1, 1, 1, 6])]
    files = {
        (0, "llama"): config, (0, "llama3"): config | {"rope_parameters": llama3},
        (0, "old_rope"): config | {"rope_parameters": None, "rope_theta": 1e4, "rope_scaling": llama3},
        (4, "qwen3"): qwen3, (4, "yarn"): qwen3 | {"rope_parameters": yarn}, (12, "mistral"): mistral,
        (16, "gptq"): config | {"quantization_config": gptq},
        (16, "awq"): config | {"quantization_config": gptq | {"quant_method": "awq", "version": "gemm"}},
        (20, "packed"): qwen2 | {"quantization_config": packed},
        (1, "generation"): {"eos_token_id": [257, 3, -1], "temperature": 0.6},
        (2, "names"): {"bos_token": {"content": "<|bos|>"}, "eos_token": "<|eos|>", "add_bos_token": True,
                       "chat_template": [{"name": "default", "template": "a"},
                                         {"name": "tool_use", "template": "{{ messages }}"}]},
        (2, "added"): {"chat_template": "{{ bos_token }}", "added_tokens_decoder": {
            "256": {"content": "<|bos|>", "special": True, "lstrip": False}}},
        (3, "spm"): vocabulary("llama", tokens, scores + [
            scalar(t + "bos_token_id", U32, 1), scalar(t + "eos_token_id", U32, 2),
            scalar(t + "unknown_token_id", U32, 0), scalar(t + "add_bos_token", BOOL, 1),
            scalar("tokenizer.chat_template", STRING, "{{ bos_token }}")]),
        (3, "bpe"): vocabulary("gpt2", ["a", "b", "ab", "\u0120", "\u0120a", "<|end|>"], [
            scalar(t + "pre", STRING, "llama-bpe"), array(t + "merges", STRING, ["a b", "\u0120 a"]),
            array(t + "token_type", I32, [1, 1, 1, 1, 1, 3]), scalar(t + "eos_token_id", U32, 5)]),
        (3, "bert"): vocabulary("bert", ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "a", "##b"], [
            scalar(t + "cls_token_id", U32, 2), scalar(t + "seperator_token_id", U32, 3),
            scalar(t + "unknown_token_id", U32, 1)]),
        (3, "t5"): vocabulary("t5", tokens, scores + [
            array(t + "precompiled_charsmap", U8, [4, 0, 0, 0, 1, 0, 0, 0, 65, 0]),
            scalar(t + "remove_extra_whitespaces", BOOL, 1)]),
    }
    write("model", {name: bytes([kind]) + (v if isinstance(v, bytes) else json.dumps(v).encode())
                    for (kind, name), v in files.items()})


def requests() -> None:
    """The first two bytes are where fuzz_http.c cuts the rest."""
    h = b"Host: a\r\n"
    get, post = b"GET / HTTP/1.1\r\n" + h, b"POST /v1/completions HTTP/1.1\r\n" + h
    chunked = post + b"Transfer-Encoding: chunked\r\n\r\n"
    texts = {
        "get": b"GET /v1/models/x?y=1 HTTP/1.1\r\n" + h + b"\r\n",
        "post": post + b"Content-Length: 3\r\n\r\nabc",
        "chunked": chunked + b"3\r\nabc\r\n1;a=b\r\nx\r\n0\r\nT: x\r\n\r\n",
        "three": (get + b"\r\n") * 3,
        "mixed": post + b"Content-Length: 2\r\n\r\nhi" + get + b"\r\n" + chunked + b"0\r\n\r\n"
                 b"GET / HTTP/1.0\r\nConnection: a, keep-alive\r\n\r\n",
        "key": get + b"Authorization: Bearer key-2\r\nOrigin: http://a\r\n\r\n",
        "two_keys": get + b"Authorization: Bearer k\r\nAuthorization: Bearer k\r\n\r\n",
        "expect": b"PUT / HTTP/1.1\r\n" + h + b"Expect: 100-continue\r\nContent-Length: 1\r\n"
                  b"Connection: close\r\n\r\nx",
        "options": b"OPTIONS * HTTP/1.1\r\n" + h + b"Origin: b\r\n\r\n",
        "headers": get + b"a:\r\n" * 99 + b"\r\n",
        "one_more": get + b"a:\r\n" * 100 + b"\r\n",
        "too_large": post + b"Content-Length: 49\r\n\r\n",
        "too_many_chunks": chunked + b"30\r\n" + b"x" * 48 + b"\r\n1\r\n",
        "version": b"GET / HTTP/2.0\r\n" + h + b"\r\n",
        "coding": post + b"Transfer-Encoding: gzip\r\n\r\n",
        "both": post + b"Transfer-Encoding: chunked\r\nContent-Length: 1\r\n\r\n",
    }
    write("http", {name: b" (" + text for name, text in texts.items()})


def bodies() -> None:
    """Every row of server/api/params.c with a value of its kind, and fields that go together."""
    values = {"K_BOOL": "true", "K_INT": "2", "K_FLOAT": "0.5", "K_POSITIVE": "0.25", "K_SEED": "7",
              "K_STRING": '"x"', "K_JSON": "[]", "K_IGNORE": "{}", "K_REFUSE": "1", "K_REFUSE_TRUE": "false",
              "K_REFUSE_FILLED": "[]"}
    table = (Path(__file__).parent / "../../src/server/api/params.c").read_text()
    chat = '"messages":[{"role":"user","content":"hi"}]'
    files = {f"f_{name}": '{%s,"%s":%s}' % (chat, name, values[kind])
             for name, kind in re.findall(r'\{"(\w+)", (K_\w+), ', table)}
    files |= {
        "bias": '{"logit_bias":{"1":2.5,"999":-100}}', "ids": '{"stop_token_ids":[1,2.0,999]}',
        "stop": '{"stop":["a","bc"],"min_tokens":2}', "echo": '{"echo":true,"max_tokens":0,"logprobs":3}',
        "tools": '{%s,"modalities":["text"],"tool_choice":"auto","tools":[{"type":"function","function":'
                 '{"name":"f"}}]}' % chat,
        "stream": '{"stream":true,"stream_options":{"include_usage":true,"continuous_usage_stats":false}}',
        "format": '{"response_format":{"type":"text"}}',
        "continue": '{%s,"continue_final_message":true,"add_generation_prompt":false}' % chat,
        "template": '{%s,"chat_template_kwargs":{"a":1},"documents":[{}],"reasoning_effort":"low"}' % chat,
        "integers": '{"n":3,"top_k":-1,"priority":-5,"truncate_prompt_tokens":-1,"seed":-1,"max_tokens":9}',
        "parts": '{"messages":[{"role":"system","content":[{"type":"text","text":"a"}]},{"role":"assistant",'
                 '"content":null,"tool_calls":[{"function":{"name":"f","arguments":"{\\"x\\":1}"}}]}]}',
    }
    write("http_body", {name: text.encode() for name, text in files.items()})


def answers() -> None:
    """The cases of test_output_parse.c behind the five bytes that fuzz_output.c reads first."""
    root = Path(__file__).parent / "../.."
    table = (root / "src/text/output/output_formats.def").read_text()
    lists = [[n.split() for n in re.findall(rf'^{word}\("([^"]*)"', table, re.M)]
             for word in ("SL_TOOLS", "SL_REASONING")]
    files = {}
    cases = (root / "tests/text/output_cases.txt").read_text().split("\n== ")[1:]
    for i, case in enumerate(cases):
        head, rest = case.split("\n----\n", 1)
        text = rest[:rest.index("====\n")].removesuffix("\n")
        picks = []
        for word, rows in zip(("tools", "reasoning"), lists):
            m = re.search(rf"^{word} (\S+)$", head, re.M)
            picks.append(next(k for k, n in enumerate(rows) if m[1] in n) if m else len(rows))
        m = re.search(r"^start (\w+)$", head, re.M)
        picks += [("auto", "reasoning", "content").index(m[1]) if m else 0, "no schema" not in head, i]
        files[f"case_{i}"] = bytes(picks) + text.encode()
    write("output", files)


def replies() -> None:
    """Pieces of fuzz_hub.c: name, list of files, index of shards, header lines."""
    def listing(*paths: str) -> bytes:
        files = [{"rfilename": p, "size": 3, "blobId": "a" * 40} for p in paths]
        files += [{"rfilename": "w.safetensors", "lfs": {"sha256": "b" * 64, "size": 9}}]
        return json.dumps({"sha": "1234567890abcdef1234567890abcdef12345678", "siblings": files}).encode()
    index = json.dumps({"weight_map": {"a": "w.safetensors"}}).encode()
    head = b"HTTP/1.1 302 x\r\nX-Linked-ETag: \"b1\"\r\nHTTP/1.1 206 y\r\nETag: W/\"c\"\r\nContent-Range: bytes 5-9/10\r\n"
    write("hub", {
        "single": b"\0".join([b"a/b", listing("config.json", "tokenizer.json", "model.safetensors"), b"", head]),
        "sharded": b"\0".join([b"a/b", listing("config.json", "model.safetensors.index.json"), index, b""]),
        "quant": b"\0".join([b"a/b:Q8_0", listing("x-Q8_0.gguf", "x-Q4_K_M.gguf", "d/../x.gguf"), b"", head]),
        "parts": b"\0".join([b"a/b/x-00001-of-00002.gguf",
                             listing("x-00001-of-00002.gguf", "x-00002-of-00002.gguf"), b"", b""]),
        "adapter": b"\0".join([b"a/b", listing("adapter_config.json", "adapter_model.safetensors"), b"",
                               b"x-error-message: no\nx-linked-size: 12\n"]),
    })


def peers() -> None:
    """Of fuzz_redis.c: operation, bytes of four pages less one, answers."""
    page = b"$74\r\n" + bytes(range(74)) + b"\r\n"
    write("redis", {
        "get": b"\0" + b"\x09" * 4 + page + b"$-1\r\n" + page + b"$3\r\nabc\r\n",
        "wrong_type": b"\0" + b"\x09" * 4 + b"-WRONGTYPE it is a list\r\n" + page * 3,
        "probe": b"\1" + bytes(4) + b":1\r\n:0\r\n:1\r\n:1\r\n:1\r\n",
        "put": b"\2" + bytes(4) + b"+OK\r\n-OOM no memory\r\n+OK\r\n+OK\r\n",
        "secret": b"\3" + bytes(4) + b"$-1\r\n$16\r\n0123456789abcdef\r\n",
        "forget": b"\4" + bytes(4) + b":1\r\n"})


def adapters() -> None:
    """The two files of tests/golden/lora behind the byte that fuzz_lora.c reads first, and small wrong ones."""
    files = {}
    for folder in sorted((Path(__file__).parent / "../golden/lora").iterdir()):
        files["config_" + folder.name] = b"\0" + (folder / "adapter_config.json").read_bytes()
    name = "base_model.model.model.layers.%d.%s.lora_%s.weight"

    def tensors(pairs: list) -> bytes:
        head, data = {}, b""
        for key, dtype, shape in pairs:
            n = shape[0] * shape[1] * (4 if dtype == "F32" else 2)
            head[key] = {"dtype": dtype, "shape": shape, "data_offsets": [len(data), len(data) + n]}
            data += bytes(n)
        text = json.dumps(head).encode()
        return b"\1" + struct.pack("<Q", len(text)) + text + data
    for dtype in ("F32", "F16", "BF16"):
        files["pair_" + dtype] = tensors([(name % (0, "self_attn.q_proj", "A"), dtype, [2, 64]),
                                          (name % (0, "self_attn.q_proj", "B"), dtype, [128, 2])])
    files["alone"] = tensors([(name % (1, "mlp.up_proj", "A"), "F16", [2, 64])])
    files["unknown"] = tensors([(name % (9, "mlp.up_proj", "A"), "F16", [2, 64])])
    write("lora", files)


def main() -> None:
    replies()
    peers()
    adapters()
    tensor_files()
    model_files()
    requests()
    bodies()
    answers()


if __name__ == "__main__":
    main()
