"""Prints the hashes that test_formats.c expects: dequantised values of fixed pseudo-random blocks.

The reference is the `gguf` package. Blocks are bytes of SplitMix64 (the mixing of base/hash.h). The
first formats have the top exponent bit of every f16 cleared, so that all scales are finite; of the
others the first blocks have the scales of EXTREMES. The hash is FNV-1a over the little-endian float
bits, of any NaN those of 0x7FC00000.
"""

from __future__ import annotations

import numpy as np
from gguf import GGMLQuantizationType as T
from gguf.quants import dequantize

MASK = (1 << 64) - 1
EXTREMES = [0x7C00, 0xFC00, 0x7E01, 0x0001, 0x83FF, 0x7BFF, 0xFBFF, 0x0000, 0x8000]
EXPONENTS = [255, 254, 253, 0, 1, 2, 3, 127, 128]  # of MXFP4
N_BLOCKS = 64
FORMATS = [  # type, bytes per block, offsets of the high bytes of its f16 fields
    (T.Q8_0, 34, [1]),
    (T.Q4_0, 18, [1]),
    (T.Q4_K, 144, [1, 3]),
    (T.Q5_K, 176, [1, 3]),
    (T.Q6_K, 210, [209]),
]
EIGHTS = [  # type, bytes per block, offsets of its f16 fields
    (T.Q4_1, 20, [0, 2]),
    (T.Q5_0, 22, [0]),
    (T.Q5_1, 24, [0, 2]),
    (T.Q2_K, 84, [80, 82]),
    (T.Q3_K, 110, [108]),
    (T.IQ4_NL, 18, [0]),
    (T.IQ4_XS, 136, [0]),
    (T.MXFP4, 17, []),
    (T.TQ1_0, 54, [52]),
    (T.TQ2_0, 66, [64]),
    (T.IQ2_XXS, 66, [0]),
    (T.IQ2_XS, 74, [0]),
    (T.IQ2_S, 82, [0]),
    (T.IQ3_XXS, 98, [0]),
    (T.IQ3_S, 110, [0]),
    (T.IQ1_S, 50, [0]),
    (T.IQ1_M, 56, []),
]


def mix64(x: int) -> int:
    x ^= x >> 30
    x = x * 0xBF58476D1CE4E5B9 & MASK
    x ^= x >> 27
    x = x * 0x94D049BB133111EB & MASK
    return x ^ (x >> 31)


def raw_blocks(n_bytes: int, seed: int) -> np.ndarray:
    out = np.frombuffer(bytes(mix64(seed + i) & 255 for i in range(N_BLOCKS * n_bytes)), np.uint8)
    return out.reshape(N_BLOCKS, n_bytes).copy()


def blocks(n_bytes: int, scales: list[int], seed: int) -> np.ndarray:
    out = raw_blocks(n_bytes, seed)
    out[:, scales] &= 0xBF
    return out


def extreme_blocks(kind: T, n_bytes: int, fields: list[int]) -> np.ndarray:
    out = raw_blocks(n_bytes, kind.value << 32)
    for i, (half, exponent) in enumerate(zip(EXTREMES, EXPONENTS)):
        for at in fields:
            out[i, at : at + 2] = half & 255, half >> 8
        if kind == T.MXFP4:
            out[i, 0] = exponent
        if kind == T.IQ1_M:
            for w in range(4):  # a quarter in the upper half of each word's second byte
                out[i, 49 + 2 * w] = out[i, 49 + 2 * w] & 15 | (half >> 4 * w & 15) << 4
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
    for kind, n_bytes, fields in EIGHTS:
        with np.errstate(all="ignore"):
            values = dequantize(extreme_blocks(kind, n_bytes, fields), kind).astype("<f4")
        bits = values.view("<u4").copy()
        bits[np.isnan(values)] = 0x7FC00000
        at = ", ".join(str(f) for f in (fields + [-1, -1])[:2])
        print(f"    {{SL_DTYPE_{kind.name}, {{{at}}}, 0x{fnv(bits.tobytes()):016X}u}},")


if __name__ == "__main__":
    main()
