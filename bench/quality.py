#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""What a format's arithmetic costs in quality: one file and one text with --exact-weights (every weight as the float it
stands for, float activations, here with KV pages of float32) and as served. Prints perplexity and how far apart the log-probabilities of the text's
tokens are.

    bench/quality.py --format q8_0[,mxfp4,..] [--text FILE] [--tokens 20000]
                                                 the bundled model in these formats (*)
    bench/quality.py --of SMOLLM2.gguf --format iq4_nl    another GGUF file of the llama family, in another format (*)
    bench/quality.py --model FILE.gguf --text FILE        a file as it is
    --reference    also transformers in float32 with the same values, as the gguf package reads them, or as the definition
                   of the format has them: both perplexities of sluice beside its

Formats: those of GGUF (tools/quantise converts); of the bundled model also fp8 (E4M3, a scale for each 128 x 128),
int4 (compressed-tensors, groups of 32). Matrices whose columns are no whole number of blocks are Q8_0.
(*) into build/quality; needs the Python package gguf, with --reference also torch and transformers: a developer's tool.
"""
import argparse
import json
import math
import os
import shutil
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
FP8_BLOCK, INT4_GROUP = 128, 32


# ---------------------------------------------------------------- sources: config.json's keys, tensors by its names

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


def in_halves(w, n_heads):
    d = w.shape[0] // n_heads
    return w.reshape(n_heads, d // 2, 2, w.shape[1]).swapaxes(1, 2).reshape(w.shape)


def n_heads_of(cfg, name):
    return cfg["num_attention_heads"] if "q_proj" in name else cfg["num_key_value_heads"]


def gguf_name(name):
    part = name.split(".")
    if part[1] == "layers":
        return f"blk.{part[2]}.{NAMES['.'.join(part[3:-1])]}.weight"
    return {"embed_tokens": "token_embd", "norm": "output_norm"}[part[1]] + ".weight"


def hf_name(name):
    part = name.split(".")
    if part[0] == "blk":
        return f"model.layers.{part[1]}.{ {v: k for k, v in NAMES.items()}[part[2]]}.weight"
    return {"token_embd": "model.embed_tokens", "output_norm": "model.norm"}[part[0]] + ".weight"


def bundled():
    cfg = json.load(open(os.path.join(BUNDLED, "config.json"), encoding="utf-8"))
    return cfg, dict(read_safetensors(os.path.join(BUNDLED, "model.safetensors")))


def read_gguf(path):
    """A file of the llama family with one tensor for embedding and head; values as the gguf package reads them."""
    import gguf
    reader = gguf.GGUFReader(path)

    def key(name):
        return reader.fields[name].contents()
    cfg = dict(architectures=["LlamaForCausalLM"], model_type="llama", vocab_size=len(reader.fields["tokenizer.ggml.tokens"].data),
               hidden_size=key("llama.embedding_length"), intermediate_size=key("llama.feed_forward_length"),
               num_hidden_layers=key("llama.block_count"), num_attention_heads=key("llama.attention.head_count"),
               num_key_value_heads=key("llama.attention.head_count_kv"), head_dim=key("llama.rope.dimension_count"),
               max_position_embeddings=key("llama.context_length"), rope_theta=key("llama.rope.freq_base"),
               rms_norm_eps=key("llama.attention.layer_norm_rms_epsilon"), tie_word_embeddings=True)
    tensors = {}
    for t in reader.tensors:
        x = gguf.quants.dequantize(t.data, t.tensor_type).reshape([int(n) for n in reversed(t.shape)])
        name = hf_name(t.name)
        tensors[name] = in_halves(x, n_heads_of(cfg, name)) if name.endswith(("q_proj.weight", "k_proj.weight")) else x
    return cfg, tensors


# ---------------------------------------------------------------- files in a format

def blocks_of(x, fmt):
    import numpy as np
    out = subprocess.run([os.path.join(ROOT, "build", "release", "tools", "quantise"), fmt],
                         input=np.ascontiguousarray(x, dtype=np.float32).tobytes(), stdout=subprocess.PIPE, check=True)
    return np.frombuffer(out.stdout, dtype=np.uint8).reshape(x.shape[0], -1)


def add_bundled_keys(w, cfg):
    tok = json.load(open(os.path.join(BUNDLED, "tokenizer.json"), encoding="utf-8"))
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


def copy_keys(w, path):
    import gguf
    for name, field in gguf.GGUFReader(path).fields.items():
        if not name.startswith("GGUF.") and name != "general.architecture":
            array = field.types[0] == gguf.GGUFValueType.ARRAY
            w.add_key_value(name, field.contents(), field.types[0], field.types[-1] if array else None)


def write_gguf(cfg, tensors, fmt, path, keys_of):
    import gguf
    w = gguf.GGUFWriter(path + ".part", "llama")
    if keys_of is None:
        add_bundled_keys(w, cfg)
    else:
        copy_keys(w, keys_of)
    for name, x in tensors.items():
        if name.endswith(("q_proj.weight", "k_proj.weight")):
            x = interleaved(x, n_heads_of(cfg, name))
        if x.ndim == 1:
            w.add_tensor(gguf_name(name), x)
            continue
        kind = gguf.GGMLQuantizationType[fmt.upper()]
        if x.shape[1] % gguf.GGML_QUANT_SIZES[kind][0] != 0:
            kind = gguf.GGMLQuantizationType.Q8_0
        w.add_tensor(gguf_name(name), blocks_of(x, kind.name.lower()), raw_dtype=kind)
    w.write_header_to_file()
    w.write_kv_data_to_file()
    w.write_tensors_to_file()
    w.close()
    os.rename(path + ".part", path)


def to_fp8(x):
    """Tensors by their ends, and what they mean."""
    import torch
    rows, cols = x.shape
    padded = torch.nn.functional.pad(x, (0, -cols % FP8_BLOCK, 0, -rows % FP8_BLOCK))
    tiles = padded.reshape(padded.shape[0] // FP8_BLOCK, FP8_BLOCK, -1, FP8_BLOCK)
    scale = tiles.abs().amax((1, 3), keepdim=True).clamp(min=1e-12) / 448
    codes = (tiles / scale).to(torch.float8_e4m3fn)
    meant = (codes.float() * scale).reshape(padded.shape)[:rows, :cols].contiguous()
    parts = {"weight": codes.reshape(padded.shape)[:rows, :cols].contiguous(), "weight_scale_inv": scale[:, 0, :, 0]}
    return parts, meant


def to_int4(x):
    import torch
    rows, cols = x.shape
    groups = x.reshape(rows, -1, INT4_GROUP)
    scale = (groups.abs().amax(2, keepdim=True) / 7.5).clamp(min=1e-12).to(torch.bfloat16).float()
    codes = (groups / scale).round().clamp(-8, 7)
    words = (codes.reshape(rows, -1, 8).to(torch.int64) + 8 << 4 * torch.arange(8)).sum(2)
    words = torch.where(words >= 1 << 31, words - (1 << 32), words).to(torch.int32)
    parts = {"weight_packed": words, "weight_scale": scale[:, :, 0].to(torch.bfloat16),
             "weight_shape": torch.tensor([rows, cols])}
    return parts, (codes * scale).reshape(rows, cols)


def write_folder(cfg, tensors, fmt, path):
    """The bundled model's folder with its layers' matrices in the format; what they mean."""
    import torch
    from safetensors.torch import save_file
    how = {"fp8": to_fp8, "int4": to_int4}[fmt]
    stored, meant = {}, {}
    for name, x in tensors.items():
        x = torch.from_numpy(x.copy())
        if x.ndim == 1 or "embed" in name:
            stored[name], meant[name] = x.to(torch.bfloat16), x.numpy()
            continue
        parts, value = how(x)
        stored |= {name.removesuffix("weight") + end: t.contiguous() for end, t in parts.items()}
        meant[name] = value.numpy()
    group = dict(targets=["Linear"], weights=dict(type="int", num_bits=4, strategy="group", group_size=INT4_GROUP,
                                                  symmetric=True))
    quant = dict(fp8=dict(quant_method="fp8", fmt="e4m3", activation_scheme="dynamic", weight_block_size=[FP8_BLOCK] * 2),
                 int4=dict(quant_method="compressed-tensors", format="pack-quantized", ignore=["lm_head"],
                           config_groups=dict(group_0=group)))[fmt]
    shutil.rmtree(path, ignore_errors=True)
    os.makedirs(path)
    for name in os.listdir(BUNDLED):
        if name not in ("config.json", "model.safetensors"):
            shutil.copy(os.path.join(BUNDLED, name), path)
    save_file(stored, os.path.join(path, "model.safetensors"), metadata={"format": "pt"})
    with open(os.path.join(path, "config.json"), "w", encoding="utf-8") as f:
        json.dump(cfg | dict(quantization_config=quant), f, indent=1)
    return meant


def in_format(fmt, source):
    """The path of the model in the format; config and values where they are not to be read from it."""
    folder = os.path.join(ROOT, "build", "quality")
    os.makedirs(folder, exist_ok=True)
    stem = "storyteller" if source is None else os.path.basename(source).split(".")[0]
    path = os.path.join(folder, f"{stem}-{fmt}")
    cfg, tensors = bundled() if source is None else read_gguf(source)
    if fmt in ("fp8", "int4"):
        if source is not None:
            sys.exit(f"quality: {fmt} is a format of folders, and {source} has no tokenizer.json")
        return path, (cfg, write_folder(cfg, tensors, fmt, path))
    write_gguf(cfg, tensors, fmt, path + ".gguf", source)
    return path + ".gguf", None


# ---------------------------------------------------------------- log-probabilities

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


def windows(ids, window):
    for i in range(0, len(ids) - 1, window):
        if len(ids[i:i + window]) > 1:
            yield ids[i:i + window]


def logprobs(server, ids, window):
    """Of every token but the first of each window."""
    out = []
    for part in windows(ids, window):
        answer = server.post("/v1/completions", {"prompt": part, "max_tokens": 1, "temperature": 0,
                                                  "prompt_logprobs": 0})
        rows = answer["choices"][0]["prompt_logprobs"]
        out += [row[str(t)]["logprob"] for row, t in zip(rows[1:], part[1:])]
    return out


def reference(cfg, tensors, ids, window):
    """The same of transformers in float32."""
    import torch
    import transformers
    config = transformers.LlamaConfig(**{k: v for k, v in cfg.items() if k != "torch_dtype"})
    model = transformers.LlamaForCausalLM(config).eval().float()
    state = {k: torch.from_numpy(v.copy()) for k, v in tensors.items()}
    missing, unexpected = model.load_state_dict(state, strict=False)
    assert not unexpected and set(missing) <= {"lm_head.weight"}, (missing, unexpected)
    model.tie_weights()
    out = []
    for part in windows(ids, window):
        with torch.no_grad():
            rows = torch.log_softmax(model(torch.tensor([part]), use_cache=False).logits[0].float(), -1)
        out += rows[:-1].gather(1, torch.tensor(part[1:])[:, None])[:, 0].tolist()
    return out


def measure(path, values, args):
    results, ids = {}, []
    text = open(args.text, encoding="utf-8").read(16 * args.tokens)
    for name, flags in (("exact", ["--exact-weights", "--kv-cache-dtype", "f32"]), ("served", [])):
        server = Server(args.sluice, [path, *flags])
        try:
            ids = ids or server.post("/tokenize", {"prompt": text, "add_special_tokens": False})["tokens"][:args.tokens]
            results[name] = logprobs(server, ids, args.window)
        finally:
            server.stop()
    if args.reference:
        results["reference"] = reference(*(values or read_gguf(path)), ids, args.window)
    ppl = {k: math.exp(-sum(r) / len(r)) for k, r in results.items()}
    print(f"{os.path.basename(path)}: {len(results['exact'])} tokens of {os.path.basename(args.text)}")
    against = "reference" if args.reference else "exact"
    for name in results:
        diff = [y - x for x, y in zip(results[against], results[name])]
        rms = math.sqrt(sum(d * d for d in diff) / len(diff))
        print(f"  {name:9} perplexity {ppl[name]:10.4f} ({100 * (ppl[name] / ppl[against] - 1):+.3f} %), log-probability of a "
              f"token: mean difference {sum(diff) / len(diff):+.5f}, rms {rms:.5f}, largest {max(map(abs, diff)):.4f}",
              flush=True)


def main():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("--model", help="a GGUF file as it is")
    p.add_argument("--of", help="a GGUF file whose weights are converted (default: the bundled model)")
    p.add_argument("--format", default="q8_0")
    p.add_argument("--reference", action="store_true")
    p.add_argument("--text", default=os.path.join(ROOT, "..", "shared", "corpus", "wikitext2_valid.txt"))
    p.add_argument("--tokens", type=int, default=20000)
    p.add_argument("--window", type=int, default=512, help="tokens of a prompt")
    p.add_argument("--sluice", default=os.path.join(ROOT, "build", "release", "sluice"))
    args = p.parse_args()
    if not os.path.exists(args.text):
        sys.exit(f"quality: no text at {args.text}; name one with --text")
    if args.model is not None:
        measure(args.model, None, args)
        return
    for fmt in args.format.split(","):
        measure(*in_format(fmt, args.of), args)


if __name__ == "__main__":
    main()
