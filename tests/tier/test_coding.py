# SPDX-License-Identifier: MIT
"""Sizes of coded pages against the entropy of their bytes, computed here: of order 0, by planes of words that are
turned by one bit, as src/tier/coding.h has them. What comes back is compared by the tool itself."""
import math
import os
import random
import struct
import subprocess
from collections import Counter

import pytest

ROOT = os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "..")
BUILD = os.path.dirname(os.path.abspath(os.environ.get("SLUICE_BIN", os.path.join(ROOT, "build", "release", "sluice"))))
TOOL = os.path.join(BUILD, "tools", "code_bench")
PAGE = 32768


def bf16(r):
    return b"".join(struct.pack("<f", r.gauss(0, 2.0 ** (i % 7)))[2:] for i in range(PAGE // 2))


def f32(r):
    return b"".join(struct.pack("<f", r.gauss(0, 1)) for _ in range(PAGE // 4))


def fp8(r):
    """E4M3 of normal values, cut off to 3 bits of mantissa."""
    out = bytearray()
    for _ in range(PAGE):
        bits = struct.unpack("<I", struct.pack("<f", r.gauss(0, 8)))[0]
        exponent = max(0, min(15, (bits >> 23 & 255) - 120))
        out.append(bits >> 24 & 128 | exponent << 3 | bits >> 20 & 7)
    return bytes(out)


def noise(r):
    return r.randbytes(PAGE)


def entropy(data):
    return sum(-c * math.log2(c / len(data)) for c in Counter(data).values()) / 8


def planes(page, word):
    bits = 8 * word
    words = [int.from_bytes(page[i:i + word], "little") for i in range(0, len(page), word)]
    if word > 1:
        words = [(x << 1 | x >> bits - 1) & (1 << bits) - 1 for x in words]
    return [bytes(x >> 8 * k & 255 for x in words) for k in range(word)]


@pytest.mark.parametrize("kind, word, least", [(bf16, 2, 1.35), (f32, 4, 1.12), (fp8, 1, 1.1), (noise, 1, 0.99)])
def test_sizes(tmp_path, kind, word, least):
    pages = [kind(random.Random(k)) for k in range(3)]
    path = tmp_path / "pages"
    path.write_bytes(b"".join(pages))
    out = subprocess.run([TOOL, "--sizes", str(path), str(PAGE)], capture_output=True, text=True, check=True).stdout
    sizes = [int(x) for x in out.split()]
    assert len(sizes) == len(pages)
    for size, page in zip(sizes, pages):
        # Below the entropy nobody comes; a share of 12 bits costs a little, and tables and states 16 + 4 + 32 + 2 x
        # values + 128 bytes at most, where a plane is coded.
        split = planes(page, word)
        tables = 16 + sum(4 + 32 + 2 * len(set(p)) + 128 for p in split)
        assert min(sum(map(entropy, planes(page, w))) for w in (1, 2, 4)) <= size
        assert size <= 1.004 * sum(map(entropy, split)) + tables, (size, sum(map(entropy, split)))
        assert PAGE / size >= least, PAGE / size
