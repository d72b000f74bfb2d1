#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""Writes tests/golden/models/rwkv7: a tiny random RWKV-7, with the logits of flash-linear-attention's model. What that
has kernels for is replaced by its own reference functions in torch (dplr_recurrence and those called _ref), so that it
runs on a CPU, in float32.

  pip install torch transformers==5.23 safetensors einops fla-core==0.6.0 flash-linear-attention==0.6.0 triton
  tools/gen_golden_rwkv7.py
"""
import json
import pathlib
import struct
import sys
import zlib

import torch
from safetensors.torch import save_file

import fla.layers.rwkv7 as layer
import fla.models.rwkv7.modeling_rwkv7 as modeling
from fla.models.rwkv7 import RWKV7Config
from fla.modules.token_shift import token_shift_ref
from fla.ops.generalized_delta_rule.dplr.naive import dplr_recurrence
from fla.ops.rwkv7.fused_k_update import k_update_ref
from fla.ops.rwkv7.gate_output_correction import gate_output_correction_ref

OUT = pathlib.Path("tests/golden/models")
N_TOKENS = 40


def shift(x, cu_seqlens=None, cache=None, output_cache=False):
    delta = token_shift_ref(x, cu_seqlens)
    return (delta, x[:, -1]) if output_cache else delta


def mixtures(x, delta, *factors):
    return [torch.addcmul(x, delta, f) for f in factors]


def recurrence(r, w, k, v, a, b, scale, **_):
    r, w, k, v, a, b = (x.transpose(1, 2) for x in (r, w, k, v, a, b))
    o, state = dplr_recurrence(r * (scale * r.shape[-1] ** 0.5), k, v, a, b, w)  # which divides by that root
    return o.transpose(1, 2), state


def recurrence_of_parts(r, w, k, v, kk, a, scale, **_):
    return recurrence(r, w, k, v, -kk, kk * a, scale)


layer.token_shift = modeling.token_shift = shift
layer.fused_addcmul_rwkv7 = mixtures
layer.chunk_rwkv7 = recurrence
layer.fused_mul_recurrent_rwkv7 = recurrence_of_parts
layer.fused_k_rwkv7 = k_update_ref
layer.gate_output_correction = gate_output_correction_ref
modeling.ACT2FN = {"sqrelu": lambda x: torch.relu(x).square()}

MODELS = {
    "rwkv7": dict(hidden_size=48, head_dim=16, intermediate_size=72, num_hidden_layers=3, decay_low_rank_dim=12,
                  gate_low_rank_dim=10, a_low_rank_dim=7, v_low_rank_dim=5),
    # widths that the config leaves to the class, heads that are not a multiple of the lanes
    "rwkv7_null": dict(hidden_size=40, head_dim=20, intermediate_size=None, hidden_ratio=3, num_hidden_layers=2,
                       decay_low_rank_dim=None, gate_low_rank_dim=None, a_low_rank_dim=None, v_low_rank_dim=None),
}


def randomise(model, generator):
    with torch.no_grad():
        for name, p in model.named_parameters():
            noise = torch.randn(p.shape, generator=generator)
            if ".x_" in name:  # shares of the token before
                p.copy_(torch.rand(p.shape, generator=generator))
            elif name.endswith("lora.2.bias"):
                p.copy_(noise * 0.5 - (2 if "w_lora" in name else 0))
            elif name.endswith((".bias", "r_k")):
                p.copy_(noise * 0.3)
            elif p.dim() == 1:
                p.copy_(1 + noise * 0.2)
            else:
                p.copy_(noise * 1.3 / p.shape[-1] ** 0.5)


def generate(name):
    config = RWKV7Config(vocab_size=96, max_position_embeddings=256, fuse_norm=False, fuse_cross_entropy=False,
                         use_l2warp=False, **MODELS[name])
    config.architectures = ["RWKV7ForCausalLM"]
    model = modeling.RWKV7ForCausalLM(config).eval()
    generator = torch.Generator().manual_seed(zlib.crc32(name.encode()))
    randomise(model, generator)
    stored = {k: v.to(torch.bfloat16).contiguous() for k, v in model.state_dict().items()}
    model.load_state_dict({k: v.float() for k, v in stored.items()})
    ids = torch.randint(0, config.vocab_size, (1, N_TOKENS), generator=generator)
    with torch.no_grad():
        logits = model.float()(ids, use_cache=False).logits[0].float()
    folder = OUT / name
    folder.mkdir(parents=True, exist_ok=True)
    save_file(stored, folder / "model.safetensors", metadata={"format": "pt"})
    text = {k: v for k, v in config.to_dict().items() if k not in ("transformers_version", "dtype", "_name_or_path")}
    (folder / "config.json").write_text(json.dumps(text, indent=1, sort_keys=True) + "\n")
    with open(folder / "golden.bin", "wb") as f:
        f.write(struct.pack("<2i", N_TOKENS, config.vocab_size))
        f.write(ids[0].to(torch.int32).numpy().tobytes())
        f.write(logits.contiguous().numpy().tobytes())
    print(f"{name}: logits std {logits.std():.3f}")


for model in sys.argv[1:] or list(MODELS):
    generate(model)
