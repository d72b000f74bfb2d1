#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""What PyTorch and the libraries behind it reach on this GPU, for the tables of bench/results/cuda-h200.txt.

    bench/peer_torch.py [prefill] [decode] [gemm] [step]     (all of them without a name)

prefill   causal attention of one sequence and of several packed ones: cuDNN and FlashAttention, as
          scaled_dot_product_attention has them; 32 heads over 8 key heads, dimensions 64, 128, 256
decode    one query a sequence over a long context (not paged), by the same two
gemm      BF16 and FP8 products, the latter with scales of rows and of tokens
step      a decode step of one sequence in the shape of Llama-3.1-8B, compiled with CUDA graphs

N(0,1) data, inputs go round a ring larger than L2, medians over CUDA events around batches of calls. Causal attention
counts what the mask leaves, 2 x 2 x heads x dimension x pairs.
"""
import statistics
import sys
import time

import torch
import torch.nn.functional as F
from torch.nn.attention import SDPBackend, sdpa_kernel

L2 = 128 << 20
DEV = "cuda"


def median_us(calls, seconds=0.25):
    """Median time of a call; calls: functions without arguments, taken in turn."""
    for c in calls[:2]:
        c()
    torch.cuda.synchronize()
    times, n, end = [], max(1, 8 // len(calls)) * len(calls), time.time() + seconds
    while not times or time.time() < end:
        a, b = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        a.record()
        for i in range(n):
            calls[i % len(calls)]()
        b.record()
        b.synchronize()
        times.append(a.elapsed_time(b) * 1000 / n)
    return statistics.median(times)


def ring(make, size):
    return [make() for _ in range(max(1, min(16, -(-2 * L2 // size))))]


BACKENDS = {"cuDNN": SDPBackend.CUDNN_ATTENTION, "Flash": SDPBackend.FLASH_ATTENTION}


def attend(q, k, v, causal):
    return F.scaled_dot_product_attention(q, k, v, is_causal=causal, enable_gqa=True)


def try_us(backend, sets, causal):
    """The time, or the reason why this backend does not do it."""
    try:
        with sdpa_kernel([backend]):
            return median_us([lambda s=s: attend(*s, causal) for s in sets]), ""
    except RuntimeError as e:
        return None, str(e).split("\n")[0][:80]


def prefill():
    print("\n== attention, prompts, causal, BF16, 32 heads over 8 (TFLOP/s)")
    for d in (64, 128, 256):
        for batch, n in ((1, 2048), (1, 8192), (1, 32768), (16, 512), (4, 2048)):
            make = lambda h: torch.randn(batch, h, n, d, device=DEV, dtype=torch.bfloat16)
            sets = ring(lambda: (make(32), make(8), make(8)), batch * n * d * 2 * 48)
            flop = 4 * 32 * d * batch * n * (n + 1) / 2
            row = f"d {d:3} {batch:3} x {n:5}"
            for name, b in BACKENDS.items():
                us, why = try_us(b, sets, True)
                row += f"   {name} {flop / us / 1e6:6.0f} ({us:8.1f} us)" if us else f"   {name}: {why}"
            print(row, flush=True)
            del sets


def decode():
    print("\n== attention, decode, BF16, dimension 128 (GB/s of keys and values)")
    for heads, batch, n in ((32, 1, 32768), (32, 1, 131072), (32, 64, 8192), (64, 64, 8192), (32, 256, 4096)):
        def make():
            kv = [torch.randn(batch, 8, n, 128, device=DEV, dtype=torch.bfloat16) for _ in range(2)]
            return (torch.randn(batch, heads, 1, 128, device=DEV, dtype=torch.bfloat16), *kv)
        size = batch * 8 * n * 128 * 4
        sets = ring(make, size)
        row = f"GQA {heads // 8} {batch:3} x {n:6}"
        for name, b in BACKENDS.items():
            us, why = try_us(b, sets, False)
            row += f"   {name} {size / us / 1e3:6.0f} ({us:8.1f} us)" if us else f"   {name}: {why}"
        print(row, flush=True)
        del sets


def gemm():
    print("\n== products (TFLOP/s), out BF16; FP8 with a scale for each token and row")
    for m, n, k in ((8192, 8192, 8192), (4096, 4096, 4096), (4096, 4096, 2048), (2048, 28672, 4096),
                    (512, 6144, 4096), (1, 28672, 4096)):
        def make():
            a, b = (torch.randn(x, k, device=DEV, dtype=torch.bfloat16) for x in (m, n))
            return a, b.t()
        sets = ring(make, (m + n) * k * 2)
        us = median_us([lambda s=s: torch.mm(*s) for s in sets])
        row = f"{m:5} x {n:5} x {k:5}   BF16 {2 * m * n * k / us / 1e6:6.0f} ({us:7.1f} us)"
        if m >= 16:
            ones = [torch.ones(m, 1, device=DEV), torch.ones(1, n, device=DEV)]
            f8 = [(a.to(torch.float8_e4m3fn), b.t().to(torch.float8_e4m3fn).t()) for a, b in sets]
            for fast in (False, True):
                us = median_us([lambda s=s: torch._scaled_mm(*s, *ones, out_dtype=torch.bfloat16,
                                                             use_fast_accum=fast) for s in f8])
                row += f"   FP8{' fast' if fast else ''} {2 * m * n * k / us / 1e6:6.0f}"
        print(row, flush=True)
        del sets


class Layer(torch.nn.Module):
    """A layer of Llama-3.1-8B for one token; the cache is a tensor of fixed length."""

    def __init__(self, context):
        super().__init__()
        lin = lambda i, o: torch.nn.Linear(i, o, bias=False, dtype=torch.bfloat16, device=DEV)
        self.qkv, self.o = lin(4096, 6144), lin(4096, 4096)
        self.gate_up, self.down = lin(4096, 28672), lin(14336, 4096)
        self.norm = [torch.ones(4096, dtype=torch.bfloat16, device=DEV) for _ in range(2)]
        self.k, self.v = (torch.randn(1, 8, context, 128, dtype=torch.bfloat16, device=DEV) for _ in range(2))

    def forward(self, x, cos, sin, at):
        h = F.rms_norm(x, (4096,), self.norm[0])
        q, k, v = self.qkv(h).view(1, 48, 1, 128).split((32, 8, 8), 1)
        turn = lambda t: t * cos + torch.cat((-t[..., 64:], t[..., :64]), -1) * sin
        self.k.index_copy_(2, at, turn(k))
        self.v.index_copy_(2, at, v)
        y = F.scaled_dot_product_attention(turn(q), self.k, self.v, enable_gqa=True)
        x = x + self.o(y.reshape(1, 4096))
        g, u = self.gate_up(F.rms_norm(x, (4096,), self.norm[1])).chunk(2, -1)
        return x + self.down(F.silu(g) * u)


def step():
    print("\n== a decode step of one sequence, shape of Llama-3.1-8B, BF16, 768 positions, torch.compile")
    with torch.no_grad():
        layers = [Layer(768) for _ in range(32)]
        head = torch.nn.Linear(4096, 128256, bias=False, dtype=torch.bfloat16, device=DEV)
        ring_ = torch.randn(4096, dtype=torch.bfloat16, device=DEV)

        def model(x, cos, sin, at):
            for layer in layers:
                x = layer(x, cos, sin, at)
            return head(F.rms_norm(x, (4096,), ring_)).argmax(-1)

        fn = torch.compile(model, mode="max-autotune-no-cudagraphs" if "--tune" in sys.argv else "default")
        x = torch.randn(1, 4096, dtype=torch.bfloat16, device=DEV)
        cos, sin = (torch.randn(128, dtype=torch.bfloat16, device=DEV) for _ in range(2))
        at = torch.tensor([700], device=DEV)
        start = time.time()
        stream = torch.cuda.Stream()
        with torch.cuda.stream(stream):
            for _ in range(3):
                fn(x, cos, sin, at)
        torch.cuda.synchronize()
        compiled = time.time() - start
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            fn(x, cos, sin, at)
        us = median_us([graph.replay], 1.0)
    print(f"{us:.0f} us, {1e6 / us:.1f} tokens/s; compiled in {compiled:.0f} s")


def main():
    names = [a for a in sys.argv[1:] if not a.startswith("-")] or ["prefill", "decode", "gemm", "step"]
    known = {"prefill": prefill, "decode": decode, "gemm": gemm, "step": step}
    for name in names:
        if name not in known:
            sys.exit(f"peer_torch.py: no part {name!r}: {', '.join(known)}")
    p = torch.cuda.get_device_properties(0)
    print(f"{p.name}, torch {torch.__version__}, cuDNN {torch.backends.cudnn.version()}")
    torch.manual_seed(1)
    for name in names:
        known[name]()


if __name__ == "__main__":
    main()
