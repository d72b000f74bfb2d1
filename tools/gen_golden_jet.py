#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""Writes tests/golden/models/jet_nemotron: a tiny random Jet-Nemotron, with the logits of NVIDIA's modelling code. What
that has kernels for is replaced: the delta rule by flash-linear-attention's naive function, the norm with a gate by its
formula, the convolution by the code's own naive one. So it runs on a CPU, in float32.

  git clone https://github.com/NVlabs/Jet-Nemotron
  pip install torch transformers==4.51.3 fla-core==0.6.0 safetensors einops
  tools/gen_golden_jet.py Jet-Nemotron/jetai/modeling
"""
import importlib.util
import json
import pathlib
import struct
import sys
import types
import zlib

import torch
from safetensors.torch import save_file

OUT = pathlib.Path("tests/golden/models")
N_TOKENS = 70  # more than a window, and than 64, from which on the code has another function


def load_naive():
    """The file alone: its package wants a newer transformers."""
    root = next(pathlib.Path(p) / "fla/ops/gated_delta_rule/naive.py" for p in sys.path
                if (pathlib.Path(p) / "fla/ops/gated_delta_rule/naive.py").exists())
    spec = importlib.util.spec_from_file_location("naive", root)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module.naive_recurrent_gated_delta_rule


naive_rule = load_naive()


def unit(x):
    return x * torch.rsqrt((x * x).sum(-1, keepdim=True) + 1e-6)


def rule(q, k, v, g, beta, initial_state=None, output_final_state=False, **_):
    return naive_rule(unit(q), unit(k), v, beta, g, initial_state=initial_state, output_final_state=output_final_state)


class GatedNorm(torch.nn.Module):
    def __init__(self, size, eps, **_):
        super().__init__()
        self.weight = torch.nn.Parameter(torch.ones(size))
        self.eps = eps

    def forward(self, x, gate):
        x = x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + self.eps) * self.weight
        return x * torch.nn.functional.silu(gate)


def stand_in(name, **members):
    module = types.ModuleType(name)
    module.__dict__.update(members)
    sys.modules[name] = module


for package in ("fla", "fla.layers", "fla.ops"):
    stand_in(package, __path__=[])
stand_in("fla.layers.utils", get_unpad_data=lambda mask: (torch.arange(mask.numel()), None, mask.numel()),
         index_first_axis=lambda x, rows: x[rows], pad_input=lambda x, rows, n, length: x.view(n, length, -1))
stand_in("fla.modules", FusedRMSNormGated=GatedNorm)
stand_in("fla.ops.gated_delta_rule", chunk_gated_delta_rule=rule, fused_recurrent_gated_delta_rule=rule)
for name in ("dconv_fwdbwd", "dconv_fwd_cache", "dconv_step"):
    stand_in(f"hf.{name}", dynamic_conv_triton_autograd=None, dynamic_conv_triton_cache=None, causal_conv_step_triton=None)

JET = {"conv_size": 4, "dconv_generator_reduction": 8, "dconv_implementation": "naive", "expand_v": 1.3333333334,
       "head_dim": 24, "mode": "chunk", "norm_eps": "1e-5", "num_heads": 3}
MODELS = {
    "jet_nemotron": dict(hidden_size=64, intermediate_size=160, num_hidden_layers=5, num_attention_heads=4,
                         num_key_value_heads=2, rope_theta=1000000.0, layer_types=["jet", "attn", "jet", "swa", "jet"],
                         efficient_attention_config={"jet": JET, "swa": {"window_size": 24}}, tie_word_embeddings=True),
    "jet_nemotron_head": dict(hidden_size=48, intermediate_size=96, num_hidden_layers=2, num_attention_heads=3,
                              num_key_value_heads=1, layer_types=["jet", "attn"], tie_word_embeddings=False,
                              efficient_attention_config={"jet": {**JET, "conv_size": 3, "expand_v": 2.0, "head_dim": 20,
                                                                  "num_heads": 2, "norm_eps": 1e-6}}),
}


def randomise(model, generator):
    with torch.no_grad():
        for name, p in model.named_parameters():
            noise = torch.randn(p.shape, generator=generator)
            if name.endswith("A_log"):
                p.copy_(torch.rand(p.shape, generator=generator) * 2)
            elif name.endswith("dt_bias"):
                p.copy_(noise - 2)
            elif name.endswith("w2.bias"):
                p.copy_(noise * 0.5)
            elif name.endswith("bias"):
                p.copy_(noise * 0.3)
            elif p.dim() == 1:
                p.copy_(1 + noise * 0.2)
            else:
                p.copy_(noise * 1.3 / p.shape[-1] ** 0.5)


def generate(modeling, name):
    config = modeling.JetNemotronConfig(vocab_size=96, max_position_embeddings=256, **MODELS[name])
    config.architectures = ["JetNemotronForCausalLM"]
    config._attn_implementation = "sdpa"
    model = modeling.JetNemotronForCausalLM(config).eval()
    generator = torch.Generator().manual_seed(zlib.crc32(name.encode()))
    randomise(model, generator)
    tied = config.tie_word_embeddings
    stored = {k: v.to(torch.bfloat16).contiguous() for k, v in model.state_dict().items()
              if not (tied and k == "lm_head.weight")}
    model.load_state_dict({k: v.float() for k, v in stored.items()}, strict=not tied)
    if tied:
        model.tie_weights()
    ids = torch.randint(0, config.vocab_size, (1, N_TOKENS), generator=generator)
    # Without a mask the code makes one that is a column too wide, and its windowed layers see other keys.
    with torch.no_grad():
        logits = model.float()(ids, attention_mask=torch.ones_like(ids), use_cache=False).logits[0].float()
    folder = OUT / name
    folder.mkdir(parents=True, exist_ok=True)
    save_file(stored, folder / "model.safetensors", metadata={"format": "pt"})
    text = {k: v for k, v in config.to_dict().items() if k not in ("transformers_version", "torch_dtype", "_name_or_path",
                                                                   "_attn_implementation_autoset")}
    (folder / "config.json").write_text(json.dumps(text, indent=1, sort_keys=True) + "\n")
    with open(folder / "golden.bin", "wb") as f:
        f.write(struct.pack("<2i", N_TOKENS, config.vocab_size))
        f.write(ids[0].to(torch.int32).numpy().tobytes())
        f.write(logits.contiguous().numpy().tobytes())
    print(f"{name}: logits std {logits.std():.3f}")


def main():
    sys.path.insert(0, sys.argv[1])
    import hf.modeling_jet_nemotron as modeling
    for name in sys.argv[2:] or list(MODELS):
        generate(modeling, name)


main()
