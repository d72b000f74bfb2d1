#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""Writes tests/golden/models/deepseek_v4*/: tiny random checkpoints of DeepSeek V4, in the names of the hub, which
transformers 5.23 does not save, and what transformers says about them (golden.bin as of gen_golden.py).

deepseek_v4 has transformers' spelling of the config, and rows of 4 and 16 tokens; deepseek_v4_hub the hub's, and rows
of 4 and 128; deepseek_v4_fp4 the hub's formats: FP8 in blocks with scales of powers of two, and FP4 of experts. In all of
them an index chooses among more rows than a position may see, and tokens choose the experts of some
layers.

Needs torch, transformers and safetensors; run from the repository root:
    python3 tools/gen_golden_v4.py [name ...]
"""
import json
import pathlib
import struct
import sys
import zlib

import torch
import transformers
from safetensors.torch import save_file

import gen_golden

OUT = pathlib.Path("tests/golden/models")
BLOCK = 16  # rows of a block of scales
FP8 = ("q_a_proj.weight", "q_b_proj.weight", "o_a_proj.weight", "o_b_proj.weight", "self_attn.kv_proj.weight",
       "shared_experts.gate_proj.weight", "shared_experts.up_proj.weight", "shared_experts.down_proj.weight")
FP4 = torch.tensor([0, 0.5, 1, 1.5, 2, 3, 4, 6, 0, -0.5, -1, -1.5, -2, -3, -4, -6])
YARN = dict(rope_type="yarn", factor=4.0, beta_fast=4.0, beta_slow=1.0, original_max_position_embeddings=16)
SLIDING, SPARSE, HEAVY = "sliding_attention", "compressed_sparse_attention", "heavily_compressed_attention"
TINY = dict(
    hidden_size=32, num_attention_heads=4, num_key_value_heads=1, head_dim=24, partial_rotary_factor=8 / 24,
    q_lora_rank=20, o_groups=2, o_lora_rank=12, index_n_heads=16, index_head_dim=12, moe_intermediate_size=16,
    n_routed_experts=6, num_experts_per_tok=2, sliding_window=9, max_position_embeddings=256, swiglu_limit=0.7,
    rope_theta=100.0, compress_rope_theta=500.0, bos_token_id=1, eos_token_id=2, hc_sinkhorn_iters=6, routed_scaling_factor=1.3)
MODELS = {  # name -> arguments, tokens
    "deepseek_v4": (dict(
        TINY, vocab_size=96, num_hidden_layers=5, index_topk=4, layer_types=[SLIDING, SPARSE, HEAVY, SPARSE, SLIDING],
        compress_rates={SPARSE: 4, HEAVY: 16}, mlp_layer_types=["hash_moe", "hash_moe", "moe", "moe", "moe"]), 56),
    "deepseek_v4_hub": (dict(
        TINY, vocab_size=48, num_hidden_layers=3, index_topk=12, layer_types=[SLIDING, SPARSE, HEAVY],
        mlp_layer_types=["hash_moe", "moe", "moe"]), 141),
    "deepseek_v4_fp4": (dict(
        TINY, vocab_size=48, num_hidden_layers=2, index_topk=4, layer_types=[SPARSE, SPARSE], moe_intermediate_size=32,
        n_routed_experts=4, o_lora_rank=BLOCK, mlp_layer_types=["hash_moe", "moe"]), 48),
}


def randomise(model, generator):
    gen_golden.randomise(model, generator)
    with torch.no_grad():
        for name, p in model.named_parameters():
            if name.endswith("base"):
                p.copy_(torch.randn(p.shape, generator=generator) * 0.5)
        for name, b in model.named_buffers():
            if name.endswith("e_score_correction_bias"):
                b.copy_(torch.randn(b.shape, generator=generator) * 0.1)
            if name.endswith("tid2eid"):
                rows = [torch.randperm(model.config.n_routed_experts, generator=generator) for _ in range(b.shape[0])]
                b.copy_(torch.stack(rows)[:, :b.shape[1]])


def hub_name(name):
    for of_class, of_hub in (
            ("model.embed_tokens.", "embed."), ("lm_head.", "head."), ("model.hc_head.hc_", "hc_head_"), ("model.", ""),
            (".self_attn.compressor.indexer.scorer.weights_proj", ".attn.indexer.weights_proj"),
            (".self_attn.compressor.indexer.q_b_proj", ".attn.indexer.wq_b"),
            (".self_attn.compressor.indexer.", ".attn.indexer.compressor."), (".self_attn.", ".attn."),
            (".mlp.", ".ffn."), (".input_layernorm.", ".attn_norm."), (".post_attention_layernorm.", ".ffn_norm."),
            (".attn_hc.", ".hc_attn_"), (".ffn_hc.", ".hc_ffn_"), (".sinks", ".attn_sink"), (".q_a_norm.", ".q_norm."),
            (".compressor.kv_norm.", ".compressor.norm."), (".position_bias", ".ape"), (".q_a_proj.", ".wq_a."),
            (".q_b_proj.", ".wq_b."), (".o_a_proj.", ".wo_a."), (".o_b_proj.", ".wo_b."),
            (".gate.e_score_correction_bias", ".gate.bias"), (".shared_experts.gate_proj.", ".shared_experts.w1."),
            (".shared_experts.down_proj.", ".shared_experts.w2."), (".shared_experts.up_proj.", ".shared_experts.w3."),
            (".compressor.gate_proj.", ".compressor.wgate."), (".kv_proj.", ".wkv.")):
        name = name.replace(of_class, of_hub, 1)
    return name


def hub_tensors(stored):
    out = {}
    for name, t in stored.items():
        stem = hub_name(name).rpartition(".")[0]
        if name.endswith(".experts.gate_up_proj"):
            for e in range(t.shape[0]):
                out[f"{stem}.{e}.w1.weight"], out[f"{stem}.{e}.w3.weight"] = (x.contiguous() for x in t[e].chunk(2))
        elif name.endswith(".experts.down_proj"):
            out |= {f"{stem}.{e}.w2.weight": t[e].contiguous() for e in range(t.shape[0])}
        else:
            out[hub_name(name)] = t
    return out


def powers(largest, top):
    """The least power of two for each that brings it to at most `top`."""
    return 2.0 ** (largest / top).log2().ceil()


def as_fp8(t):
    """Codes of blocks of rows and 128 columns, of which there are no more, their scales, and what they mean."""
    codes, scales = [], []
    for block in t.float().split(BLOCK):
        scales.append(powers(block.abs().max(), 448.0))
        codes.append((block / scales[-1]).to(torch.float8_e4m3fn))
    meant = torch.cat([c.float() * s for c, s in zip(codes, scales)])
    return torch.cat(codes), torch.stack(scales).reshape(-1, 1).to(torch.float8_e8m0fnu), meant


def as_fp4(t):
    """The same of FP4, two codes in a byte, the first in the lower half, and scales of 32 columns."""
    blocks = t.float().reshape(t.shape[0], -1, 32)
    scales = powers(blocks.abs().amax(2, keepdim=True), 6.0)
    codes = ((blocks / scales)[..., None] - FP4).abs().argmin(-1)
    pairs = codes.reshape(t.shape[0], -1, 2)
    packed = (pairs[..., 0] | pairs[..., 1] << 4).to(torch.uint8).view(torch.int8)
    return packed, scales[..., 0].to(torch.float8_e8m0fnu), (FP4[codes] * scales).reshape(t.shape)


def to_codes(stored):
    """Tensors of the hub's formats, and in stored what they mean."""
    packed = {}
    for name, t in stored.items():
        if name.endswith(FP8):
            codes, scales, stored[name] = as_fp8(t)
            packed |= {hub_name(name): codes, hub_name(name).removesuffix("weight") + "scale": scales}
        elif ".experts." in name:
            made = [as_fp4(x) for x in t]
            stored[name] = torch.stack([meant for _, _, meant in made])
            stem = hub_name(name).rpartition(".")[0]
            for e, (codes, scales, _) in enumerate(made):
                words = ("w1", "w3") if "gate_up" in name else ("w2",)
                for word, c, s in zip(words, codes.chunk(len(words)), scales.chunk(len(words))):
                    packed |= {f"{stem}.{e}.{word}.weight": c.contiguous(), f"{stem}.{e}.{word}.scale": s.contiguous()}
    return packed


def hub_config(config):
    """As the hub has it: an entry of compress_ratios for the module that predicts further tokens, too."""
    c = json.loads(gen_golden.config_json(config, "new"))
    kinds, hashed = c.pop("layer_types"), c.pop("mlp_layer_types").count("hash_moe")
    for key in ("rope_parameters", "compress_rates", "partial_rotary_factor", "mlp_bias"):
        c.pop(key, None)
    scaling = {("type" if k == "rope_type" else k): v for k, v in YARN.items()}
    return json.dumps(c | dict(
        compress_ratios=[{SLIDING: 0, SPARSE: 4, HEAVY: 128}[k] for k in kinds] + [0], num_hash_layers=hashed,
        qk_rope_head_dim=config.qk_rope_head_dim, rope_scaling=scaling, num_nextn_predict_layers=1), indent=1,
        sort_keys=True) + "\n"


def choice_gap(model, ids, top_k, n_rows):
    """The least difference between the last score that an index chooses and the first that it does not, in standard
    deviations of the scores."""
    gaps, topk = [], torch.Tensor.topk

    def watched(x, k, *more, **named):
        if k == top_k and x.shape[-1] == n_rows:
            for row in x.reshape(-1, n_rows):
                seen = row[row > torch.finfo(row.dtype).min].double().sort(descending=True).values
                if len(seen) > k:
                    gaps.append(float((seen[k - 1] - seen[k]) / seen.std()))
        return topk(x, k, *more, **named)

    torch.Tensor.topk = watched
    try:
        with torch.no_grad():
            model(ids, use_cache=False)
    finally:
        torch.Tensor.topk = topk
    return min(gaps), len(gaps)


def generate(name, seed):
    args, n_tokens = MODELS[name]
    config = transformers.DeepseekV4Config(**args, rope_parameters=dict(YARN))  # which it changes
    config.architectures = ["DeepseekV4ForCausalLM"]
    config._attn_implementation = "eager"
    model = transformers.DeepseekV4ForCausalLM(config).eval()
    model.set_experts_implementation("eager")
    generator = torch.Generator().manual_seed(seed)
    randomise(model, generator)
    exact = ("tid2eid", "e_score_correction_bias")
    stored = {k: v.contiguous() if k.endswith(exact) else v.to(torch.bfloat16).contiguous()
              for k, v in model.state_dict().items()}
    packed = to_codes(stored) if name.endswith("_fp4") else {}
    if packed:
        config.quantization_config = dict(
            activation_scheme="dynamic", fmt="e4m3", quant_method="fp8", scale_fmt="ue8m0",
            weight_block_size=[BLOCK, 128])
    model.load_state_dict({k: v.float() if v.is_floating_point() else v for k, v in stored.items()})
    ids = torch.randint(0, config.vocab_size, (1, n_tokens), generator=generator)
    logits, chosen = gen_golden.logits_and_experts(model.float(), ids)
    gap, n_rows = choice_gap(model, ids, config.index_topk, n_tokens // 4)
    if gap < 1e-3:  # another order of sums might choose otherwise
        return generate(name, seed + 1)
    folder = OUT / name
    folder.mkdir(parents=True, exist_ok=True)
    save_file(hub_tensors(stored) | packed, folder / "model.safetensors", metadata={"format": "pt"})
    (folder / "config.json").write_text(
        hub_config(config) if name.endswith(("_hub", "_fp4")) else gen_golden.config_json(config, "new"))
    with open(folder / "golden.bin", "wb") as f:
        f.write(struct.pack("<2i", n_tokens, config.vocab_size))
        f.write(ids[0].to(torch.int32).numpy().tobytes())
        f.write(logits.contiguous().numpy().tobytes())
    gen_golden.write_experts(folder, chosen)
    size = sum(p.stat().st_size for p in folder.iterdir())
    print(f"{name}: {size} bytes, logits std {logits.std():.3f}, {n_rows} choices, the narrowest by {gap:.1e}")


def main():
    for name in sys.argv[1:] or list(MODELS):
        generate(name, zlib.crc32(name.encode()))


if __name__ == "__main__":
    main()
