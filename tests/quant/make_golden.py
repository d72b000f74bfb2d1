"""Prints the hashes that test_formats.c expects: dequantised values of fixed pseudo-random blocks.

The reference is the `gguf` package. Blocks are bytes of SplitMix64 (the mixing of base/hash.h) with
the top exponent bit of every f16 cleared, so that all scales are finite. The hash is FNV-1a over
the little-endian float bits.
"""

from __future__ import annotations

import numpy as np
from gguf import GGMLQuantizationType as T
from gguf.quants import dequantize

MASK = (1 << 64) - 1
N_BLOCKS = 64
FORMATS = [  # type, bytes per block, offsets of the high bytes of its f16 fields
    (T.Q8_0, 34, [1]),
    (T.Q4_0, 18, [1]),
    (T.Q4_K, 144, [1, 3]),
    (T.Q5_K, 176, [1, 3]),
    (T.Q6_K, 210, [209]),
]


def mix64(x: int) -> int:
    x ^= x >> 30
    x = x * 0xBF58476D1CE4E5B9 & MASK
    x ^= x >> 27
    x = x * 0x94D049BB133111EB & MASK
    return x ^ (x >> 31)


def blocks(n_bytes: int, scales: list[int], seed: int) -> np.ndarray:
    out = np.frombuffer(bytes(mix64(seed + i) & 255 for i in range(N_BLOCKS * n_bytes)), np.uint8)
    out = out.reshape(N_BLOCKS, n_bytes).copy()
    out[:, scales] &= 0xBF
    return out


def fnv(data: bytes) -> int:
    h = 0xCBF29CE484222325
    for byte in data:
        h = (h ^ byte) * 0x100000001B3 & MASK
    return h


def main() -> None:
    for kind, n_bytes, scales in FORMATS:
        values = dequantize(blocks(n_bytes, scales, kind.value << 32), kind)
        print(f"    {{SL_DTYPE_{kind.name}, 0x{fnv(values.astype('<f4').tobytes()):016X}u}},")


if __name__ == "__main__":
    main()
