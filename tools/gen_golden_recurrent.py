#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""Writes tests/ops/recurrent_golden.h: what flash-linear-attention's naive functions and transformers' torch forms
give for the gated delta rule (Qwen3-Next) and KDA (Kimi Linear), on numbers that the test makes in the same way. The
forms of each rule, token after token and in chunks, have to agree in double before anything is written.

  pip install torch transformers==5.23 fla-core einops && tools/gen_golden_recurrent.py
"""
import inspect
import os

import torch
import torch.nn.functional as F
from fla.ops.gated_delta_rule.naive import naive_chunk_gated_delta_rule, naive_recurrent_gated_delta_rule
from fla.ops.kda.gate import naive_kda_gate
from fla.ops.kda.naive import naive_chunk_kda, naive_recurrent_kda
from transformers.models.qwen3_next import modeling_qwen3_next as qwen

OUT = os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "tests", "ops", "recurrent_golden.h")
T, HK, HV, K, V = 11, 2, 4, 8, 5


def number(i: int, salt: int) -> float:
    """Within -1 .. 1, of 24 bits; golden_number in the test is the same."""
    x = (i * 2654435761 + salt * 40503) & 0xFFFFFFFF
    x = ((x ^ (x >> 15)) * 0x85EBCA6B) & 0xFFFFFFFF
    return (x >> 8) / 8388608 - 1


def numbers(salt: int, *shape: int) -> torch.Tensor:
    n = torch.Size(shape).numel()
    return torch.tensor([number(i, salt) for i in range(n)], dtype=torch.float64).reshape(1, *shape)


def unit(x: torch.Tensor) -> torch.Tensor:
    return x * torch.rsqrt((x * x).sum(-1, keepdim=True) + 1e-6)


def agree(what: str, a: tuple, b: tuple) -> None:
    for x, y in zip(a, b):
        err = ((x - y).abs().max() / y.abs().max()).item()
        print(f"{what}: {err:.1e}")
        assert err < 2e-6, what  # some of these functions compute in float32


def table(name: str, x: torch.Tensor) -> str:
    values = [f"{v:.9e}" for v in x.flatten().tolist()]
    rows = [", ".join(values[i:i + 5]) for i in range(0, len(values), 5)]
    return f"static const double {name}[] = {{\n    " + ",\n    ".join(rows) + "};\n"


def delta() -> str:
    q, k, v = numbers(1, T, HK, K), numbers(2, T, HK, K), numbers(3, T, HV, V)
    rate, bias = -numbers(4, HV)[0].exp(), numbers(5, HV)[0]
    g = rate * F.softplus(numbers(6, T, HV) + bias)
    beta = numbers(7, T, HV).sigmoid()
    shared = {"q": q.repeat_interleave(HV // HK, 2), "k": k.repeat_interleave(HV // HK, 2), "v": v, "g": g,
              "beta": beta}
    more = {"initial_state": None, "output_final_state": True}
    units = dict(shared, q=unit(shared["q"]), k=unit(shared["k"]))
    want = naive_recurrent_gated_delta_rule(**units, **more)
    agree("delta rule, fla in chunks", naive_chunk_gated_delta_rule(**units, **more), want)
    # transformers would call fla's kernels, which need a GPU, in place of these
    for name in ("torch_recurrent_gated_delta_rule", "torch_chunk_gated_delta_rule"):
        form = inspect.unwrap(getattr(qwen, name))
        agree("delta rule, " + name, form(shared["q"], shared["k"], v, g=g, beta=beta, **more,
                                          use_qk_l2norm_in_kernel=True), want)
    return table("golden_delta_out", want[0]) + table("golden_delta_state", want[1])


def kda() -> str:
    q, k, v = numbers(1, T, HK, K), numbers(2, T, HK, K), numbers(3, T, HK, V)
    g = naive_kda_gate(numbers(6, T, HK, K).float(), numbers(4, HK)[0].float(), numbers(5, HK * K)[0].float())
    args = {"q": unit(q), "k": unit(k), "v": v, "g": g.double(), "beta": numbers(7, T, HK).sigmoid(),
            "output_final_state": True}
    want = naive_recurrent_kda(**args)
    agree("KDA, fla in chunks", naive_chunk_kda(**args, chunk_size=T), want)
    return table("golden_kda_out", want[0]) + table("golden_kda_state", want[1])


def main() -> None:
    with open(OUT, "w", encoding="utf-8") as f:
        f.write("/* SPDX-License-Identifier: MIT\n * Made by tools/gen_golden_recurrent.py. */\n"
                f"enum {{ GOLDEN_T = {T}, GOLDEN_HK = {HK}, GOLDEN_HV = {HV}, GOLDEN_K = {K}, GOLDEN_V = {V} }};\n"
                "/* clang-format off */\n" + delta() + kda() + "/* clang-format on */\n")


if __name__ == "__main__":
    main()
