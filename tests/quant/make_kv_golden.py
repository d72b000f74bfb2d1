"""Writes tests/golden/kv/kv.safetensors: vectors, and what the formats of KV pages make of them, in
double precision from the formulas of their papers and specifications, without a look at the C code.

    make_kv_golden.py OUT

turboquant_4bit_nc, turboquant_3bit_nc (arXiv 2504.19874, mean square error form, norm correction):
the vector times random signs and Sylvester's Hadamard matrix, each number to the nearest of the
Lloyd-Max levels of a normal number, times a scale that gives the vector its length. The signs are
bits of splitmix64 from seed 0 on, the levels rounded to BF16. int4_per_token_head (vLLM): the same
rotation, then fifteen equal steps between the least and the greatest number and a code for zero.
nvfp4: blocks of 16, the scale E4M3 of the block's greatest magnitude / 6, numbers E2M1.

Vectors are drawn again while a number is so near a border between two codes, or a scale between
two numbers of its format, that float arithmetic may decide otherwise.
"""

import math
import sys
from pathlib import Path

import numpy as np
from safetensors.numpy import save_file

SIZES = [16, 32, 48, 64, 80, 128, 256]
ROWS = 6


def bf16(x):
    b = np.asarray(x, np.float32).view(np.uint32)
    return ((b + 0x7FFF + (b >> 16 & 1)) & 0xFFFF0000).astype(np.uint32).view(np.float32).astype(float)


def splitmix64(n):
    out, state, mask = [], 0, 2**64 - 1
    for _ in range(n):
        state = (state + 0x9E3779B97F4A7C15) & mask
        z = state
        z = ((z ^ z >> 30) * 0xBF58476D1CE4E5B9) & mask
        z = ((z ^ z >> 27) * 0x94D049BB133111EB) & mask
        out.append(z ^ z >> 31)
    return out


SIGNS = np.array([1 - 2 * (w >> i & 1) for w in splitmix64(16) for i in range(64)], float)


def hadamard(n):
    h = np.ones((1, 1))
    while len(h) < n:
        h = np.block([[h, h], [h, -h]])
    return h / math.sqrt(n)


def rotation(n):
    """Over the largest power of two from the front, then over as many numbers at the end."""
    p = 2 ** int(math.log2(n))
    first, last = np.eye(n), np.eye(n)
    first[:p, :p] = hadamard(p)
    if p < n:
        last[n - p:, n - p:] = hadamard(p)
    return last @ first @ np.diag(SIGNS[:n])


def lloyd_max(n):
    """Positive levels of the best 2 n for a normal number: each the mean of what is nearest to it."""
    level = np.linspace(0.1, 3, n)
    density = lambda x: math.exp(-x * x / 2) / math.sqrt(2 * math.pi)
    above = lambda x: math.erfc(x / math.sqrt(2)) / 2
    for _ in range(20000):
        border = np.concatenate([[0], (level[1:] + level[:-1]) / 2, [40]])
        level = np.array([(density(a) - density(b)) / (above(a) - above(b))
                          for a, b in zip(border, border[1:])])
    return level


def nearest(levels, x):
    """Indices, and whether each is clear by a part in 10,000 of the step to the second nearest."""
    d = np.abs(x[:, None] - levels[None])
    two = np.sort(d, axis=1)[:, :2]
    return d.argmin(axis=1), bool((two[:, 1] - two[:, 0] > 1e-4 * two.sum(axis=1)).all())


def clear_in(x, grid):
    """Not between two neighbours of an ascending grid."""
    i = min(np.searchsorted(grid, x), len(grid) - 1)
    low, high = grid[max(i - 1, 0)], grid[i]
    return high == low or abs(x - (low + high) / 2) > 1e-3 * (high - low)


def turbo(levels):
    both = np.concatenate([levels, -levels])
    sign = np.array([i % len(levels) + 8 * (i // len(levels)) for i in range(len(both))], np.uint8)

    def encode(x, r):
        y = r @ x
        unit = math.sqrt((y * y).mean())
        i, clear = nearest(both, y / unit)
        scale = math.sqrt((y * y).sum() / (both[i] ** 2).sum())
        half = float(np.float16(scale))
        clear &= abs(abs(scale - half) / np.spacing(np.float16(half)) - 0.5) > 1e-2
        return sign[i], np.array([half]), 0, r.T @ (both[i] * half), clear

    return encode


def whole(x, r):
    y = r @ x
    low, high = min(y.min(), 0), max(y.max(), 0)
    scale = max((high - low) / 15, 1e-6)
    zero = -low / scale
    clear = abs(zero % 1 - 0.5) > 1e-3
    zero = math.floor(zero + 0.5)
    at = y / scale + zero
    clear &= bool((np.abs(at % 1 - 0.5) > 1e-3).all())
    code = np.clip(np.floor(at + 0.5), 0, 15)
    return code.astype(np.uint8), np.array([scale]), zero, r.T @ ((code - zero) * scale), clear


E4M3 = np.array([(m / 8 * 2.0**-6 if e == 0 else (1 + m / 8) * 2.0 ** (e - 7))
                 for e in range(16) for m in range(8)][:127])
E2M1 = np.array([0, 0.5, 1, 1.5, 2, 3, 4, 6])


def blocks(x, _):
    codes, scales, clear = [], [], True
    for b in x.reshape(-1, 16):
        top = np.abs(b).max() / 6
        scale = E4M3[np.abs(E4M3 - top).argmin()]
        clear &= top > E4M3[-1] or clear_in(top, E4M3)
        c = np.zeros(16, int)
        if scale > 0:
            c, ok = nearest(E2M1, np.minimum(np.abs(b) / scale, 6))
            clear &= ok
            c += 8 * np.signbit(b)
        codes.append(c)
        scales.append(scale)
    c = np.concatenate(codes)
    number = np.where(c >= 8, -1, 1) * E2M1[c % 8] * np.repeat(scales, 16)
    return c.astype(np.uint8), np.array(scales), 0, number, clear


def main():
    rng = np.random.default_rng(29)
    codecs = {"turboquant_4bit_nc": turbo(bf16(lloyd_max(8))),
              "turboquant_3bit_nc": turbo(bf16(lloyd_max(4))),
              "int4_per_token_head": whole, "nvfp4": blocks}
    out = {}
    for n in SIZES:
        r, rows = rotation(n), []
        while len(rows) < ROWS:
            x = rng.standard_normal(n) * 2.0 ** rng.integers(-6, 7)
            x[rng.integers(n)] *= 8 if len(rows) % 2 else 1
            if len(rows) == 4:  # scales of nvfp4 in the subnormals, and none
                x[:16] *= 1e-3 if n > 16 else 1
            if len(rows) == 5:  # and too large
                x[-16:] = np.sign(x[-16:]) * 5000 * (1 + rng.random(16))
            x = x.astype(np.float32)
            made = {k: f(x.astype(float), r) for k, f in codecs.items()}
            if all(m[4] for m in made.values()):
                rows.append((x, made))
        out[f"{n}.x"] = np.stack([x for x, _ in rows])
        for k in codecs:
            for i, part in enumerate(["codes", "scales", "zero", "decoded"]):
                a = np.stack([np.asarray(m[k][i]) for _, m in rows])
                out[f"{n}.{k}.{part}"] = a if i == 0 else a.astype(np.float32)
    Path(sys.argv[1]).parent.mkdir(parents=True, exist_ok=True)
    save_file(out, sys.argv[1])


main()
