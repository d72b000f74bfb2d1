#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""Writes tests/golden/models/<name>/: a tiny random checkpoint and what transformers says about it.

Each folder holds config.json, model.safetensors and golden.bin (little endian: int32 n_tokens,
int32 n_vocab, int32 ids[n_tokens], float32 logits[n_tokens][n_vocab]). The logits are computed by
transformers in float32 on the CPU with eager attention. Weights are drawn so that attention and
every bias and norm matter: a model at its initial scale would hide most mistakes.

Needs torch, transformers and safetensors; run from the repository root:
    python3 tools/gen_golden.py [name ...]
"""
import json
import pathlib
import struct
import sys

import torch
import transformers
from safetensors.torch import save_file

OUT = pathlib.Path("tests/golden/models")
N_TOKENS = 56

SMALL = dict(
    vocab_size=96,
    hidden_size=32,
    intermediate_size=88,
    num_hidden_layers=2,
    num_attention_heads=4,
    num_key_value_heads=2,
    max_position_embeddings=256,
    bos_token_id=1,
    eos_token_id=2,
)


def plain(theta):
    return dict(rope_type="default", rope_theta=theta)


# name -> (config class, arguments, storage dtype, spelling of RoPE in config.json)
MODELS = {
    "llama2": ("Llama", dict(rope_parameters=plain(10000.0)), torch.float32, "new"),
    "llama3": (
        "Llama",
        dict(
            head_dim=16,
            tie_word_embeddings=True,
            rope_parameters=dict(
                rope_type="llama3",
                rope_theta=500.0,
                factor=32.0,
                low_freq_factor=1.0,
                high_freq_factor=4.0,
                original_max_position_embeddings=64,
            ),
        ),
        torch.bfloat16,
        "old",
    ),
    "llama_bias_linear": (
        "Llama",
        dict(
            attention_bias=True,
            num_key_value_heads=4,
            rope_parameters=dict(rope_type="linear", rope_theta=10000.0, factor=2.0),
        ),
        torch.float16,
        "new",
    ),
    "mistral": (
        "Mistral",
        dict(head_dim=16, sliding_window=13, rope_parameters=plain(10000.0)),
        torch.bfloat16,
        "new",
    ),
    "qwen2": (
        "Qwen2",
        dict(tie_word_embeddings=True, rope_parameters=plain(1000000.0)),
        torch.bfloat16,
        "old",
    ),
    "qwen2_window": (
        "Qwen2",
        dict(
            use_sliding_window=True,
            sliding_window=9,
            max_window_layers=1,
            rope_parameters=plain(1000000.0),
        ),
        torch.bfloat16,
        "new",
    ),
    "qwen3": (
        "Qwen3",
        dict(head_dim=16, rope_parameters=plain(1000000.0)),
        torch.bfloat16,
        "new",
    ),
    "qwen3_yarn": (
        "Qwen3",
        dict(
            head_dim=16,
            tie_word_embeddings=True,
            rope_parameters=dict(
                rope_type="yarn",
                rope_theta=10000.0,
                factor=4.0,
                beta_fast=4.0,  # so that rounding the ramp's lower end counts at this size
                beta_slow=1.0,
                original_max_position_embeddings=64,
            ),
        ),
        torch.bfloat16,
        "old",
    ),
}


def randomise(model, generator):
    """Matrices at about 1.3 / sqrt(K), norms near 1, biases large enough to be seen."""
    with torch.no_grad():
        for name, p in model.named_parameters():
            noise = torch.randn(p.shape, generator=generator)
            if name.endswith("bias"):
                p.copy_(noise * 0.3)
            elif p.dim() == 1:
                p.copy_(1 + noise * 0.2)
            else:
                p.copy_(noise * 1.3 / p.shape[1] ** 0.5)


def config_json(config, spelling):
    c = {k: v for k, v in config.to_dict().items() if v is not None}
    for key in ("transformers_version", "dtype", "_name_or_path"):
        c.pop(key, None)
    if spelling == "old":  # as transformers before 5 wrote it
        rope = dict(c.pop("rope_parameters"))
        c["rope_theta"] = rope.pop("rope_theta")
        c["rope_scaling"] = None if rope["rope_type"] == "default" else rope
    return json.dumps(c, indent=1, sort_keys=True) + "\n"


def generate(name, seed):
    family, args, dtype, spelling = MODELS[name]
    config = getattr(transformers, family + "Config")(**{**SMALL, **args})
    config.architectures = [family + "ForCausalLM"]
    config._attn_implementation = "eager"
    model = getattr(transformers, family + "ForCausalLM")(config).eval()
    generator = torch.Generator().manual_seed(seed)
    randomise(model, generator)
    stored = {k: v.to(dtype).contiguous() for k, v in model.state_dict().items()}
    model.load_state_dict({k: v.float() for k, v in stored.items()})
    ids = torch.randint(0, config.vocab_size, (1, N_TOKENS), generator=generator)
    with torch.no_grad():
        logits = model.float()(ids, use_cache=False).logits[0].float()
    if config.tie_word_embeddings:
        stored.pop("lm_head.weight", None)

    folder = OUT / name
    folder.mkdir(parents=True, exist_ok=True)
    save_file(stored, folder / "model.safetensors", metadata={"format": "pt"})
    (folder / "config.json").write_text(config_json(config, spelling))
    with open(folder / "golden.bin", "wb") as f:
        f.write(struct.pack("<2i", N_TOKENS, config.vocab_size))
        f.write(ids[0].to(torch.int32).numpy().tobytes())
        f.write(logits.contiguous().numpy().tobytes())
    size = sum(p.stat().st_size for p in folder.iterdir())
    print(f"{name}: {size} bytes, logits std {logits.std():.3f}")


def main():
    names = sys.argv[1:] or list(MODELS)
    for name in names:
        if name not in MODELS:
            sys.exit(f"unknown model {name!r}, choose from {', '.join(MODELS)}")
    for name in names:
        generate(name, seed=1000 + list(MODELS).index(name))


if __name__ == "__main__":
    main()
