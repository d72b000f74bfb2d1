#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""Writes tests/golden/models/: tiny random checkpoints of families with latent attention whose tensors transformers
5.23 does not save by the names of the hub, and what transformers says about them (golden.bin as of gen_golden.py).

longcat_flash has two attentions and MLPs in a layer of its file, experts that are added behind the second, and some
that give back what they read. axk2 has gates of norms, and one of the output beside the queries. hy_v4 has
hyper-connections that do not mix streams, sinks, and a limit of its experts. glm5_next is the model of text of one that
reads images: KDA, and latent attention whose index chooses groups of four tokens. Where there is an index, it chooses
among more positions than rows may see.

Needs torch, transformers and safetensors; run from the repository root:
    python3 tools/gen_golden_latent.py [name ...]
"""
import json
import pathlib
import re
import struct
import sys
import zlib

import torch
import transformers
from safetensors.torch import save_file

import gen_golden

OUT = pathlib.Path("tests/golden/models")
COMMON = dict(vocab_size=48, hidden_size=32, num_attention_heads=4, num_key_value_heads=4, kv_lora_rank=24,
              qk_nope_head_dim=12, qk_rope_head_dim=8, v_head_dim=20, max_position_embeddings=256, bos_token_id=1,
              eos_token_id=2, pad_token_id=0)
LONGCAT = dict(COMMON, head_dim=8, num_layers=2, ffn_hidden_size=28, q_lora_rank=12, n_routed_experts=5, zero_expert_num=4, moe_topk=3,
               expert_ffn_hidden_size=8, routed_scaling_factor=2.5, rope_parameters=gen_golden.plain(500.0))
AXK2 = dict(COMMON, num_hidden_layers=2, intermediate_size=36, q_lora_rank=12, moe_intermediate_size=8, n_routed_experts=6,
            n_shared_experts=1, num_experts_per_tok=2, index_n_heads=16, index_head_dim=12, index_topk=17, gated_norm_rank=5,
            mlp_layer_types=["sparse", "dense"], rope_parameters=gen_golden.sharper(8.0, 1.0, mscale=1.0))
HY4 = dict(COMMON, num_hidden_layers=3, v_head_dim=10, intermediate_size=36, q_lora_rank=12, moe_intermediate_size=8, n_routed_experts=4,
           n_shared_experts=1, num_experts_per_tok=2, index_n_heads=16, index_head_dim=12, index_topk=17, hc_mult=3,
           hc_magnitude=1.5, swiglu_limit=0.7, rms_norm_eps=0.01, routed_scaling_factor=1.3,
           mlp_layer_types=["dense", "sparse", "sparse"], indexer_types=["full", "shared", "full"],
           rope_parameters=gen_golden.plain(500.0))
GLM5_NEXT = dict(COMMON, num_hidden_layers=3, intermediate_size=36, q_lora_rank=12, qk_rope_head_dim=0, v_head_dim=10,
                 moe_intermediate_size=8, n_routed_experts=4, n_shared_experts=1, num_experts_per_tok=2, index_n_heads=16,
                 index_head_dim=12, index_topk=16, index_kpool=4, linear_num_heads=3, linear_head_dim=8,
                 linear_conv_kernel_dim=3, linear_lower_bound=-4.0, hc_mult=3, hc_sinkhorn_iters=6, swiglu_limit=0.7,
                 rms_norm_eps=0.01, routed_scaling_factor=1.3,
                 layer_types=["indexed_attention", "linear_attention", "indexed_attention"],
                 mlp_layer_types=["dense", "sparse", "sparse"])
MODELS = {  # name -> family, arguments, what scores of experts are about, in which biases are told apart
    "longcat_flash": ("LongcatFlash", LONGCAT, 0.1),
    "axk2": ("AXK2", AXK2, 0.2),
    "hy_v4": ("HYV4", HY4, 0.2),
    "glm5_next": ("Glm5Next", GLM5_NEXT, 0.2),
}


def randomise(model, spread, generator):
    gen_golden.randomise(model, generator)
    with torch.no_grad():
        for name, b in model.named_buffers():
            if name.endswith("e_score_correction_bias"):
                b.copy_(torch.randn(b.shape, generator=generator) * spread)
        for name, p in model.named_parameters():
            if name.endswith(("_hc.base", "hc_head.hc_base")):  # weights of streams
                p.copy_(torch.randn(p.shape, generator=generator) * 0.5)
            elif name.endswith("forget_gate.dt_bias"):  # states that last, although the bound is near
                p.copy_(torch.randn(p.shape, generator=generator) - 2)
            elif name.endswith("forget_gate.A_log"):
                p.copy_(torch.randn(p.shape, generator=generator) * 0.3 + 0.5)


def hy4_name(name):
    """transformers reads all of these; "hc_pre." may be absent, as it is of one kind here."""
    for of_class, of_hub in ((".attn_hc.", ".hc_attn_layer.hc_pre.hc_"), (".ffn_hc.", ".hc_mlp_layer.hc_"),
                             (".hc_head.hc_", ".hc_head.hc_head_"), (".self_attn.sinks", ".self_attn.learnable_sink_param"),
                             (".self_attn.gate_proj.", ".self_attn.linear_gate.")):
        name = name.replace(of_class, of_hub, 1)
    return name


def hub_tensors(model, stored):
    """By the names of the hub, experts one by one and only those that have weights."""
    out = {}
    if model.config.model_type in ("axk2", "glm5_next"):  # which transformers knows
        stored = gen_golden.as_hub(model, torch.bfloat16)
    for name, t in gen_golden.one_by_one(stored).items():
        if ".visual." in name and not name.endswith("post_layernorm.weight"):  # of which nothing is read
            continue
        number = re.search(r"\.experts\.(\d+)\.", name)
        if number is None or int(number[1]) < model.config.get_text_config().n_routed_experts:
            out[hy4_name(name) if model.config.model_type == "hy_v4" else name] = t
    return out


def hub_config(config):
    if config.model_type == "glm5_next":
        text = config.text_config.to_diff_dict()  # what the class has as defaults is left out
        text.pop("transformers_version", None)
        c = dict(architectures=config.architectures, model_type=config.model_type, text_config=text)
        return json.dumps(c, indent=1, sort_keys=True) + "\n"
    c = gen_golden.config_json(config, "old" if config.model_type == "longcat_flash" else "new")
    if config.model_type == "longcat_flash":
        c = c.replace("{\n", '{\n "attention_method": "MLA",\n "mla_scale_kv_lora": true,\n "mla_scale_q_lora": true,\n'
                      ' "router_bias": false,\n "zero_expert_type": "identity",\n', 1)
    return c


def build(family, args):
    """The model, and the config of its text."""
    if family == "Glm5Next":  # whose text has no class of its own
        vision = dict(hidden_size=8, intermediate_size=8, depth=1, num_heads=2, image_size=28, out_hidden_size=8,
                      projection_intermediate_size=8)
        outer = transformers.Glm5NextConfig(text_config=args, vision_config=vision)
        outer.architectures = [family + "ForConditionalGeneration"]
        outer._attn_implementation = "eager"
        return transformers.Glm5NextForConditionalGeneration(outer).eval(), outer.text_config
    config = getattr(transformers, family + "Config")(**args)
    config.architectures = [family + "ForCausalLM"]
    config._attn_implementation = "eager"
    return getattr(transformers, family + "ForCausalLM")(config).eval(), config


def generate(name, seed):
    family, args, spread = MODELS[name]
    model, config = build(family, args)
    model.set_experts_implementation("eager")
    generator = torch.Generator().manual_seed(seed)
    randomise(model, spread, generator)
    exact = ("e_score_correction_bias",)
    stored = {k: v.contiguous() if k.endswith(exact) else v.to(torch.bfloat16).contiguous()
              for k, v in model.state_dict().items()}
    model.load_state_dict({k: v.float() for k, v in stored.items()})
    ids = torch.randint(0, config.vocab_size, (1, gen_golden.N_TOKENS), generator=generator)
    logits, chosen = gen_golden.logits_and_experts(model.float(), ids)
    if hasattr(config, "index_topk"):
        pool = getattr(config, "index_kpool", 1)
        gap, n_rows = gen_golden.choice_gap(model, ids, config.index_topk // pool, gen_golden.N_TOKENS // pool)
        if gap < 1e-3:  # another order of sums might choose otherwise
            return generate(name, seed + 1)
        print(f"{name}: {n_rows} choices, the narrowest by {gap:.1e}")
    folder = OUT / name
    folder.mkdir(parents=True, exist_ok=True)
    save_file(hub_tensors(model, stored), folder / "model.safetensors", metadata={"format": "pt"})
    (folder / "config.json").write_text(hub_config(model.config))
    with open(folder / "golden.bin", "wb") as f:
        f.write(struct.pack("<2i", gen_golden.N_TOKENS, config.vocab_size))
        f.write(ids[0].to(torch.int32).numpy().tobytes())
        f.write(logits.contiguous().numpy().tobytes())
    gen_golden.write_experts(folder, chosen)
    size = sum(p.stat().st_size for p in folder.iterdir())
    print(f"{name}: {size} bytes, logits std {logits.std():.3f}")


def main():
    for name in sys.argv[1:] or list(MODELS):
        generate(name, zlib.crc32(name.encode()))


if __name__ == "__main__":
    main()
