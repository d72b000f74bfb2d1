#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""Writes tests/golden/models/minimax_m3{,_mxfp8}/ as tools/gen_golden.py writes the others: a tiny random checkpoint
under the names of the hub, and what transformers says about it. Matrices of the second are MXFP8, made and read with
numpy: transformers computes with what they are worth.

The text is so long that rows choose among more than twice the blocks that they see. A seed is taken only if no choice
is a near thing, which another order of sums might decide otherwise.

Needs torch, transformers and safetensors; run from the repository root:
    python3 tools/gen_golden_sparse.py [name ...]
"""
import json
import pathlib
import struct
import sys
import zlib

import numpy as np
import torch
import transformers
from safetensors.torch import save_file

import gen_golden

OUT = pathlib.Path("tests/golden/models")
N_TOKENS = 120
BLOCK, TOP = 16, 3

CONFIG = dict(
    vocab_size=96,
    hidden_size=32,
    intermediate_size=24,
    dense_intermediate_size=56,
    shared_intermediate_size=40,
    num_hidden_layers=4,
    num_attention_heads=6,
    num_key_value_heads=2,
    head_dim=24,
    rotary_dim=12,
    rms_norm_eps=1e-5,
    max_position_embeddings=256,
    num_local_experts=7,
    num_experts_per_tok=3,
    routed_scaling_factor=1.7,
    swiglu_limit=1.5,  # which some of the values exceed
    swiglu_alpha=1.4,
    layer_types=["full_attention", "minimax_m3_sparse", "full_attention", "minimax_m3_sparse"],
    mlp_layer_types=["dense", "sparse", "sparse", "sparse"],
    index_n_heads=2,
    index_head_dim=20,
    index_block_size=BLOCK,
    index_topk_blocks=TOP,
    index_local_blocks=1,
    rope_parameters=dict(rope_type="default", rope_theta=300.0, partial_rotary_factor=0.5),
    bos_token_id=1,
    eos_token_id=2,
)

SMALLER = dict(  # two blocks in rows of down_proj
    num_hidden_layers=2, dense_intermediate_size=64, intermediate_size=64, num_local_experts=4,
    layer_types=["full_attention", "minimax_m3_sparse"], mlp_layer_types=["dense", "sparse"],
)


def randomise(model, generator):
    """Matrices at about 1.3 / sqrt(K); norms are 1 + w, and w near 0."""
    with torch.no_grad():
        for name, p in list(model.named_parameters()) + list(model.named_buffers()):
            noise = torch.randn(p.shape, generator=generator)
            if name.endswith("e_score_correction_bias"):
                p.copy_(8 + noise * 0.1)
            elif name.endswith("inv_freq"):
                continue
            elif p.dim() == 1:
                p.copy_(noise * 0.2)
            else:
                p.copy_(noise * 1.3 / p.shape[-1] ** 0.5)


def least_gap(model, ids):
    """By how much the last block that is chosen beats the first that is not, in standard deviations of a row's scores,
    where it is least; and how many rows chose."""
    gaps, topk = [], torch.Tensor.topk

    def watched(x, k, *more, **named):
        if k == TOP and x.shape[-1] == -(-N_TOKENS // BLOCK):
            for row in x.reshape(-1, x.shape[-1]).double():
                seen = row[row > -torch.inf].sort(descending=True).values
                if len(seen) > k:
                    gaps.append(float((seen[k - 1] - seen[k]) / seen[seen < torch.inf].std()))
        return topk(x, k, *more, **named)

    torch.Tensor.topk = watched
    try:
        with torch.no_grad():
            logits = model(ids, use_cache=False).logits[0].float()
    finally:
        torch.Tensor.topk = topk
    return min(gaps), len(gaps), logits


def e4m3_values():
    """What each code of E4M3 is worth."""
    c = np.arange(256)
    exponent, mantissa = c >> 3 & 15, c & 7
    x = np.where(exponent == 0, mantissa / 8 * 2.0**-6, (1 + mantissa / 8) * 2.0 ** (exponent - 7.0))
    x[(c & 127) == 127] = np.nan
    return np.where(c >= 128, -x, x)


def to_mxfp8(w):
    """Codes, exponents [rows, cols / 32] and what both are worth, of a matrix."""
    x = w.float().numpy().astype(np.float64).reshape(w.shape[0], -1, 32)
    most = np.abs(x).max(-1, keepdims=True)
    exponents = np.floor(np.log2(most)) - 8 + 127  # so that the largest is at most 448 or cut off there
    scale = 2.0 ** (exponents - 127)
    values = e4m3_values()
    known = np.nan_to_num(values, nan=np.inf)
    codes = np.abs(np.clip(x / scale, -448, 448)[..., None] - known).argmin(-1).astype(np.uint8)
    worth = values[codes] * scale
    return (torch.from_numpy(codes.reshape(w.shape)).view(torch.float8_e4m3fn),
            torch.from_numpy(exponents[..., 0].astype(np.uint8)), torch.from_numpy(worth.reshape(w.shape)).float())


def in_mxfp8(stored, model):
    """Matrices of layers whose rows are whole blocks, but for routers; the model takes what they are worth."""
    out, state, packed = {}, {}, {}
    for name, t in stored.items():
        whole = t.dim() >= 2 and t.shape[-1] % 32 == 0 and ".layers." in name and ".mlp.gate." not in name
        if not whole:
            out[name] = t
            continue
        parts = [to_mxfp8(x) for x in (t if t.dim() == 3 else t[None])]
        codes, exponents, worth = (torch.stack(x) for x in zip(*parts))
        state[name] = worth.reshape(t.shape)
        packed[name] = (codes.reshape(t.shape), exponents if t.dim() == 3 else exponents[0])
    model.load_state_dict(state, strict=False)
    return hub_names({k: c for k, (c, _) in packed.items()} | out) | {
        k.replace(".weight", ".weight_scale_inv"): v
        for k, v in hub_names({k: e for k, (_, e) in packed.items()}).items() if "vision" not in k}


def hub_names(stored):
    """The tensors by the hub's names, an expert's matrices each by themselves, within a model that reads images."""
    out = {"vision_tower.vision_model.pre_layrnorm.weight": torch.ones(8)}
    for name, t in stored.items():
        for old, new in ((".self_attn.indexer.", ".self_attn.index_"), (".mlp.gate.e_score", ".block_sparse_moe.e_score"),
                         (".mlp.gate.", ".block_sparse_moe.gate."), (".mlp.experts.", ".block_sparse_moe.experts."),
                         (".mlp.shared_experts.", ".block_sparse_moe.shared_experts.")):
            name = name.replace(old, new)
        stem, end = name.rsplit(".", 1)
        if end == "down_proj":
            parts = {f"{stem}.{e}.w2.weight": t[e] for e in range(t.shape[0])}
        elif end == "gate_up_proj":
            halves = [t[e].chunk(2, 0) for e in range(t.shape[0])]
            parts = {f"{stem}.{e}.w{1 + 2 * i}.weight": half[i] for e, half in enumerate(halves) for i in range(2)}
        elif stem.endswith("gate_up_proj"):
            stem = stem.removesuffix("gate_up_proj")
            parts = dict(zip((stem + "gate_proj.weight", stem + "up_proj.weight"), t.chunk(2, 0)))
        else:
            parts = {name: t}
        out |= {"language_model." + k: v.contiguous() for k, v in parts.items()}
    return out


def hub_config(config):
    """As the hub's config.json says it: the index in an object of its own, layers in lists of 0 and 1."""
    c = {k: v for k, v in config.to_dict().items() if v is not None}
    for key in ("transformers_version", "dtype", "_name_or_path", "architectures"):
        c.pop(key, None)
    rope = c.pop("rope_parameters")
    c |= dict(rope_theta=rope["rope_theta"], partial_rotary_factor=rope["partial_rotary_factor"], hidden_act="swigluoai",
              n_shared_experts=1, scoring_func="sigmoid", use_routing_bias=True, use_qk_norm=True, use_gemma_norm=True,
              qk_norm_type="per_head", moe_layer_freq=[int(x == "sparse") for x in c.pop("mlp_layer_types")])
    names = dict(index_n_heads="sparse_num_index_heads", index_head_dim="sparse_index_dim",
                 index_block_size="sparse_block_size", index_topk_blocks="sparse_topk_blocks",
                 index_local_blocks="sparse_local_block")
    c["sparse_attention_config"] = dict(
        {new: c.pop(old) for old, new in names.items()}, use_sparse_attention=True, sparse_init_block=0,
        sparse_score_type="max", sparse_attention_freq=[int(x != "full_attention") for x in c.pop("layer_types")])
    return dict(architectures=["MiniMaxM3SparseForConditionalGeneration"], model_type="minimax_m3_vl", text_config=c)


def generate(name, seed):
    mx = name.endswith("_mxfp8")
    config = transformers.MiniMaxM3VLTextConfig(**(CONFIG | SMALLER if mx else CONFIG))
    config._attn_implementation = "eager"
    model = transformers.MiniMaxM3VLForCausalLM(config).eval()
    generator = torch.Generator().manual_seed(seed)
    randomise(model, generator)
    stored = {k: v if k.endswith("e_score_correction_bias") else v.to(torch.bfloat16)
              for k, v in model.state_dict().items()}
    model.load_state_dict({k: v.float() for k, v in stored.items()})
    files = in_mxfp8(stored, model) if mx else hub_names(stored)
    ids = torch.randint(0, config.vocab_size, (1, N_TOKENS), generator=generator)
    gap, n_rows, logits = least_gap(model, ids)
    if gap < 1e-3:
        return generate(name, seed + 1)
    print(f"{name}: {n_rows} choices, the narrowest by {gap:.1e}")
    folder = OUT / name
    folder.mkdir(parents=True, exist_ok=True)
    save_file(files, folder / "model.safetensors", metadata={"format": "pt"})
    c = hub_config(config)
    if mx:
        c["quantization_config"] = dict(quant_method="mxfp8", fmt="e4m3", scale_fmt="ue8m0", weight_block_size=[1, 32],
                                        activation_scheme="dynamic", ignored_layers=["lm_head"])
    (folder / "config.json").write_text(json.dumps(c, indent=1, sort_keys=True) + "\n")
    with open(folder / "golden.bin", "wb") as f:
        f.write(struct.pack("<2i", N_TOKENS, config.vocab_size))
        f.write(ids[0].to(torch.int32).numpy().tobytes())
        f.write(logits.contiguous().numpy().tobytes())
    gen_golden.write_experts(folder, gen_golden.logits_and_experts(model, ids)[1])
    size = sum(p.stat().st_size for p in folder.iterdir())
    print(f"{name}: {size} bytes, logits std {logits.std():.3f}")


if __name__ == "__main__":
    for which in sys.argv[1:] or ["minimax_m3", "minimax_m3_mxfp8"]:
        generate(which, zlib.crc32(which.encode()))
