#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""What the Triton kernels of flash-linear-attention (fla-core) take on this GPU for the gated delta rule, beside
bench_ops --only state of the same run.

    bench/peer_fla.py          (needs torch, triton, einops and fla-core)

decode   fused_recurrent_gated_delta_rule of one token a sequence, float32 states that are read and written
prompts  chunk_gated_delta_rule, chunks of 64, bf16 q, k and v, float32 state

Heads as in Qwen3.5: 16 of q and k, 32 or 48 of v, all of 128 dimensions; gates are given, l2norm and sigmoid are in
the kernel. Convolution and norm are not counted. Medians over CUDA events around calls in a CUDA graph; inputs of
decode go round a ring larger than L2. A last column of decode has the states' bytes, read and written, in GB/s.
"""
import statistics
import sys

import torch
from fla.ops.gated_delta_rule import chunk_gated_delta_rule, fused_recurrent_gated_delta_rule

DEV, L2, DIM, KEYS = "cuda", 256 << 20, 128, 16


def median_us(calls, n_runs=20):
    """Of a call; calls take turns in one graph."""
    for c in calls:
        c()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        for c in calls:
            c()
    times = []
    for _ in range(n_runs):
        a, b = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        a.record()
        graph.replay()
        b.record()
        b.synchronize()
        times.append(a.elapsed_time(b) * 1000 / len(calls))
    return statistics.median(times)


def inputs(n_seqs, n_tokens, heads):
    """Of n_seqs sequences, for a kernel that reads bf16 rows and writes a float32 state."""
    def normal(n, dim):
        return torch.randn(n_seqs, n_tokens, n, dim, device=DEV, dtype=torch.bfloat16)
    return dict(q=normal(KEYS, DIM), k=normal(KEYS, DIM), v=normal(heads, DIM),
                g=-0.1 * torch.rand(n_seqs, n_tokens, heads, device=DEV),
                beta=torch.rand(n_seqs, n_tokens, heads, device=DEV, dtype=torch.bfloat16),
                initial_state=torch.randn(n_seqs, heads, DIM, DIM, device=DEV),
                output_final_state=True, use_qk_l2norm_in_kernel=True)


def decode(heads):
    print(f"\n== decode, {heads} heads of v: us, GB/s of states\n{'seqs':>6} {'us':>9} {'GB/s':>9}")
    for n in (1, 4, 16, 64, 256):
        n_bytes = 2 * n * heads * DIM * DIM * 4
        sets = [inputs(n, 1, heads) for _ in range(max(1, min(64, -(-2 * L2 // n_bytes))))]
        us = median_us([lambda s=s: fused_recurrent_gated_delta_rule(**s) for s in sets])
        print(f"{n:6} {us:9.2f} {n_bytes / us * 1e-3:9.0f}", flush=True)


def prompts(heads):
    print(f"\n== prompts, {heads} heads of v: us, ns a token\n{'seqs x len':>12} {'us':>9} {'ns/token':>9}")
    for n, length in ((1, 8192), (4, 2048), (1, 512)):
        s = inputs(n, length, heads)
        us = median_us([lambda s=s: chunk_gated_delta_rule(**s)])
        print(f"{n:3} x {length:6} {us:9.1f} {us * 1000 / length:9.1f}", flush=True)


def main():
    if not torch.cuda.is_available():
        print("peer_fla.py: no CUDA device")
        return 2
    import fla
    import triton
    print(f"{torch.cuda.get_device_name()}, torch {torch.__version__}, triton {triton.__version__}, "
          f"fla-core {fla.__version__}")
    with torch.inference_mode():
        for heads in (32, 48):
            decode(heads)
            prompts(heads)
    return 0


if __name__ == "__main__":
    sys.exit(main())
