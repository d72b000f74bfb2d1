#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""What the whole-number products cost in quality: the same GGUF file and text with --exact-weights (every weight as
the float it stands for, float activations) and as served. Prints perplexity and how far apart the log-probabilities
of the text's tokens are.

    bench/quality.py --format q8_0 [--text FILE] [--tokens 20000]      the bundled model, quantised for this (*)
    bench/quality.py --model FILE.gguf --text FILE

(*) into build/quality, by the Python package gguf (pip install gguf; a developer's tool, nothing else needs it).
"""
import argparse
import json
import math
import os
import subprocess
import sys
import tempfile
import time
import urllib.request

ROOT = os.path.abspath(os.path.join(os.path.dirname(os.path.abspath(__file__)), ".."))
BUNDLED = os.path.join(ROOT, "assets", "storyteller")
NAMES = {"self_attn.q_proj": "attn_q", "self_attn.k_proj": "attn_k", "self_attn.v_proj": "attn_v",
         "self_attn.o_proj": "attn_output", "mlp.gate_proj": "ffn_gate", "mlp.up_proj": "ffn_up",
         "mlp.down_proj": "ffn_down", "input_layernorm": "attn_norm", "post_attention_layernorm": "ffn_norm"}


def read_safetensors(path):
    import numpy as np
    with open(path, "rb") as f:
        n = int.from_bytes(f.read(8), "little")
        header = json.loads(f.read(n))
        data = f.read()
    for name, t in header.items():
        if name == "__metadata__":
            continue
        assert t["dtype"] == "BF16", name
        a, b = t["data_offsets"]
        bits = np.frombuffer(data[a:b], dtype=np.uint16).astype(np.uint32) << 16
        yield name, bits.view(np.float32).reshape(t["shape"])


def interleaved(w, n_heads):
    """Rows of q and k as GGUF files of the family have them: pairs that are rotated together side by side."""
    d = w.shape[0] // n_heads
    return w.reshape(n_heads, 2, d // 2, w.shape[1]).swapaxes(1, 2).reshape(w.shape)


def quantise_bundled(fmt, path):
    import gguf
    cfg = json.load(open(os.path.join(BUNDLED, "config.json"), encoding="utf-8"))
    tok = json.load(open(os.path.join(BUNDLED, "tokenizer.json"), encoding="utf-8"))
    kind = gguf.GGMLQuantizationType[fmt.upper()]
    w = gguf.GGUFWriter(path + ".part", "llama")
    w.add_block_count(cfg["num_hidden_layers"])
    w.add_context_length(cfg["max_position_embeddings"])
    w.add_embedding_length(cfg["hidden_size"])
    w.add_feed_forward_length(cfg["intermediate_size"])
    w.add_head_count(cfg["num_attention_heads"])
    w.add_head_count_kv(cfg["num_key_value_heads"])
    w.add_key_length(cfg["head_dim"])
    w.add_value_length(cfg["head_dim"])
    w.add_rope_dimension_count(cfg["head_dim"])
    w.add_rope_freq_base(cfg["rope_theta"])
    w.add_layer_norm_rms_eps(cfg["rms_norm_eps"])
    vocab = dict(tok["model"]["vocab"])
    vocab.update({t["content"]: t["id"] for t in tok["added_tokens"]})
    tokens = sorted(vocab, key=vocab.get)
    special = {t["content"] for t in tok["added_tokens"]}
    w.add_tokenizer_model("gpt2")
    w.add_tokenizer_pre("gpt-2")
    w.add_token_list(tokens)
    w.add_token_types([3 if t in special else 1 for t in tokens])
    w.add_token_merges([m if isinstance(m, str) else " ".join(m) for m in tok["model"]["merges"]])
    w.add_bos_token_id(cfg["bos_token_id"])
    w.add_eos_token_id(cfg["eos_token_id"][0])
    for name, x in read_safetensors(os.path.join(BUNDLED, "model.safetensors")):
        if name.endswith(("q_proj.weight", "k_proj.weight")):
            x = interleaved(x, cfg["num_attention_heads" if "q_proj" in name else "num_key_value_heads"])
        part = name.split(".")
        if part[1] == "layers":
            name = f"blk.{part[2]}.{NAMES['.'.join(part[3:-1])]}.weight"
        else:
            name = {"embed_tokens": "token_embd", "norm": "output_norm"}[part[1]] + ".weight"
        if x.ndim == 1:
            w.add_tensor(name, x)
        else:
            w.add_tensor(name, gguf.quants.quantize(x, kind), raw_dtype=kind)
    w.write_header_to_file()
    w.write_kv_data_to_file()
    w.write_tensors_to_file()
    w.close()
    os.rename(path + ".part", path)


class Server:
    def __init__(self, binary, flags):
        self.dir = tempfile.TemporaryDirectory()
        port_file = os.path.join(self.dir.name, "port")
        self.process = subprocess.Popen([binary, "serve", *flags, "--port", "0", "--port-file", port_file],
                                        stderr=subprocess.DEVNULL)
        end = time.monotonic() + 120
        while not os.path.exists(port_file) or not open(port_file, encoding="ascii").read().strip():
            if time.monotonic() > end or self.process.poll() is not None:
                sys.exit(f"quality: sluice serve {' '.join(flags)} did not start")
            time.sleep(0.02)
        self.url = "http://127.0.0.1:" + open(port_file, encoding="ascii").read().strip()

    def post(self, path, body):
        r = urllib.request.Request(self.url + path, json.dumps(body).encode(), {"Content-Type": "application/json"})
        with urllib.request.urlopen(r, timeout=600) as answer:
            return json.load(answer)

    def stop(self):
        self.process.terminate()
        self.process.wait(30)
        self.dir.cleanup()


def logprobs(server, ids, window):
    """Of every token but the first of each window."""
    out = []
    for i in range(0, len(ids) - 1, window):
        part = ids[i:i + window]
        if len(part) < 2:
            break
        answer = server.post("/v1/completions", {"prompt": part, "max_tokens": 1, "temperature": 0,
                                                  "prompt_logprobs": 0})
        rows = answer["choices"][0]["prompt_logprobs"]
        out += [row[str(t)]["logprob"] for row, t in zip(rows[1:], part[1:])]
    return out


def main():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("--model", help="a GGUF file (default: the bundled model, quantised)")
    p.add_argument("--format", default="q8_0", choices=["q8_0", "q4_0"])
    p.add_argument("--text", default=os.path.join(ROOT, "..", "shared", "corpus", "wikitext2_valid.txt"))
    p.add_argument("--tokens", type=int, default=20000)
    p.add_argument("--window", type=int, default=512, help="tokens of a prompt")
    p.add_argument("--sluice", default=os.path.join(ROOT, "build", "release", "sluice"))
    args = p.parse_args()
    path = args.model
    if path is None:
        os.makedirs(os.path.join(ROOT, "build", "quality"), exist_ok=True)
        path = os.path.join(ROOT, "build", "quality", f"storyteller-{args.format}.gguf")
        if not os.path.exists(path):
            quantise_bundled(args.format, path)
    if not os.path.exists(args.text):
        sys.exit(f"quality: no text at {args.text}; name one with --text")
    text = open(args.text, encoding="utf-8").read(16 * args.tokens)
    results = {}
    ids = []
    for name, flags in (("exact", ["--exact-weights"]), ("served", [])):
        server = Server(args.sluice, [path, *flags])
        try:
            ids = ids or server.post("/tokenize", {"prompt": text, "add_special_tokens": False})["tokens"]
            ids = ids[:args.tokens]
            results[name] = logprobs(server, ids, args.window)
        finally:
            server.stop()
    a, b = results["exact"], results["served"]
    n = len(a)
    ppl = [math.exp(-sum(r) / n) for r in (a, b)]
    diff = [y - x for x, y in zip(a, b)]
    rms = math.sqrt(sum(d * d for d in diff) / n)
    print(f"{os.path.basename(path)}: {n} tokens of {os.path.basename(args.text)}")
    print(f"perplexity exact {ppl[0]:.4f}, served {ppl[1]:.4f} ({100 * (ppl[1] / ppl[0] - 1):+.3f} %)")
    print(f"log-probability of a token: mean difference {sum(diff) / n:+.5f}, rms {rms:.5f}, "
          f"largest {max(map(abs, diff)):.4f}")


if __name__ == "__main__":
    main()
