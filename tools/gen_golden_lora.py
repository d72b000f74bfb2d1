#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""Writes tests/golden/lora/<name>/: a random PEFT adapter of a model of tests/golden/models, and what
transformers with that adapter says.

Each folder holds adapter_config.json and adapter_model.safetensors as peft saves them, and golden.bin in
the form of tools/gen_golden.py, computed in float32 on the CPU from the adapter as saved (peft loads it
again). The number of the merged model's greatest difference is printed as a check of peft itself.

Needs torch, transformers, peft and safetensors; run from the repository root:
    python3 tools/gen_golden_lora.py [name ...]
"""
import pathlib
import struct
import sys

import peft
import torch
import transformers

MODELS = pathlib.Path("tests/golden/models")
OUT = pathlib.Path("tests/golden/lora")
N_TOKENS = 56
ATTENTION = ["q_proj", "k_proj", "v_proj", "o_proj"]

# name -> (model, arguments of LoraConfig, storage dtype)
ADAPTERS = {
    "llama3_all": ("llama3", dict(r=4, lora_alpha=8, target_modules="all-linear"), torch.float32),
    "qwen3_rslora": (
        "qwen3",
        dict(r=16, lora_alpha=6, use_rslora=True, target_modules=["q_proj", "v_proj"]),
        torch.bfloat16,
    ),
    "llama2_patterns": (
        "llama2",
        dict(
            r=3,
            lora_alpha=5,
            target_modules=ATTENTION + ["down_proj"],
            rank_pattern={"k_proj": 7, r"layers\.1\.mlp.*": 17, "model.layers.0.self_attn.o_proj": 1},
            alpha_pattern={"v_proj": 2, r".*\.1\.self_attn\.q_proj": 9},
        ),
        torch.float16,
    ),
    "llama_bias_layers": (
        "llama_bias_linear",
        dict(r=8, lora_alpha=16, target_modules=["gate_proj", "up_proj", "o_proj"],
             layers_to_transform=[1]),
        torch.float32,
    ),
    "phi3_fused": ("phi3", dict(r=4, lora_alpha=8, target_modules="all-linear"), torch.bfloat16),
}


def generate(name, seed):
    base, args, dtype = ADAPTERS[name]
    folder = OUT / name
    generator = torch.Generator().manual_seed(seed)
    load = lambda: transformers.AutoModelForCausalLM.from_pretrained(  # noqa: E731
        MODELS / base, dtype=torch.float32, attn_implementation="eager").eval()
    model = peft.get_peft_model(load(), peft.LoraConfig(task_type="CAUSAL_LM", **args))
    with torch.no_grad():
        for key, p in model.named_parameters():
            if "lora_" in key:
                scale = 1.0 if "lora_A" in key else 0.25
                p.copy_(torch.randn(p.shape, generator=generator) * scale / p.shape[1] ** 0.5)
    for key, p in model.named_parameters():
        if "lora_" in key:
            p.data = p.data.to(dtype)
    model.peft_config["default"].base_model_name_or_path = base
    model.save_pretrained(folder)
    (folder / "README.md").unlink(missing_ok=True)
    model = peft.PeftModel.from_pretrained(load(), folder).float().eval()
    ids = torch.randint(0, model.config.vocab_size, (1, N_TOKENS), generator=generator)
    with torch.no_grad():
        plain = load()(ids, use_cache=False).logits[0]
        logits = model(ids, use_cache=False).logits[0].float()
        merged = model.merge_and_unload()(ids, use_cache=False).logits[0]
    with open(folder / "golden.bin", "wb") as f:
        f.write(struct.pack("<2i", N_TOKENS, logits.shape[1]))
        f.write(ids[0].to(torch.int32).numpy().tobytes())
        f.write(logits.contiguous().numpy().tobytes())
    size = sum(p.stat().st_size for p in folder.iterdir())
    print(f"{name}: {size} bytes, logits std {logits.std():.3f}, the adapter changes them by "
          f"{(logits - plain).std():.3f}, merging by at most {(logits - merged).abs().max():.2e}")


def main():
    names = sys.argv[1:] or list(ADAPTERS)
    for name in names:
        if name not in ADAPTERS:
            sys.exit(f"unknown adapter {name!r}, choose from {', '.join(ADAPTERS)}")
    for name in names:
        generate(name, seed=2000 + list(ADAPTERS).index(name))


if __name__ == "__main__":
    main()
