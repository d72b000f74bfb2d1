#!/usr/bin/env python3
"""Writes src/quant/iq_grids.inc: the grids of GGUF's IQ formats, from the package gguf (gguf-py).

A grid is part of its format: a list of points of eight values of three levels (IQ2, IQ1) or of four
values of eight levels (IQ3), which files name by number. Points are stored as the numbers of their
levels, two bits each (three of IQ3), the first value lowest. Run with gguf installed:

    python3 tools/gen_iq_grids.py > src/quant/iq_grids.inc
"""

from __future__ import annotations

from gguf import quants

GRIDS = [
    ("iq2_xxs", quants.IQ2_XXS, 2),
    ("iq2_xs", quants.IQ2_XS, 2),
    ("iq2_s", quants.IQ2_S, 2),
    ("iq3_xxs", quants.IQ3_XXS, 3),
    ("iq3_s", quants.IQ3_S, 3),
    ("iq1", quants.IQ1_S, 2),
]


def main() -> None:
    print("/* SPDX-License-Identifier: MIT")
    print(" * Made by tools/gen_iq_grids.py from gguf-py's tables; quant/iq.h says what they are. */")
    print("/* clang-format off */")
    for name, kind, bits in GRIDS:
        kind.init_grid()
        levels = [int(v) for v in kind.grid_map]
        points = kind.grid.reshape(kind.grid_shape).astype(int)
        packed = [
            sum(levels.index(v) << (bits * j) for j, v in enumerate(point)) for point in points
        ]
        print(f"SL_EIGHT_TABLE uint16_t sl_{name}_grid[{len(packed)}] = {{")
        for i in range(0, len(packed), 12):
            print("    " + " ".join(f"0x{p:04X}," for p in packed[i : i + 12]))
        print("};")


if __name__ == "__main__":
    main()
