#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""Draws docs/images/cpu.svg from the table "CPUs against llama.cpp" of docs/FIGURES.md: tools/chart.py. With --check
it says whether the picture is what the table has."""
import os
import re
import sys

ROOT = os.path.join(os.path.dirname(os.path.abspath(__file__)), "..")
ROWS = [("prefill 512, Q8_0, tokens/s", "prefill, Q8_0"), ("prefill 512, Q4_K", "prefill, Q4_K"),
        ("prefill 512, BF16", "prefill, BF16"), ("decode, Q8_0", "decode, Q8_0"), ("decode, Q4_K", "decode, Q4_K"),
        ("16 chats over HTTP, 512 in, 128 out, Q8_0, output tokens/s", "16 chats at a time")]
STYLE = """text{font:13px system-ui,sans-serif;fill:#24292f}.t{font-weight:600;font-size:14px}.n{fill:#57606a}
.a{fill:#2f81f7}.b{fill:#9ecbff}.one{stroke:#8b949e;stroke-dasharray:3 3}
@media(prefers-color-scheme:dark){text{fill:#e6edf3}.n{fill:#9198a1}.b{fill:#1f4b8f}}"""
LEFT, SCALE, BAR, ROW = 150, 40, 12, 40


def ratios(text: str) -> dict[str, tuple[float, float]]:
    """{row: ratio on the EPYC, on the Xeon}; of a range the lower end."""
    part = text[text.index("## CPUs against llama.cpp"):]
    found = {}
    for line in part.split("\n"):
        cells = [c.strip() for c in line.strip("|").split("|")]
        if len(cells) == 5 and re.match(r"[\d.]+", cells[2]):
            found[cells[0]] = tuple(float(re.match(r"[\d.]+", cells[i])[0]) for i in (2, 4))
    return found


def bar(y: int, kind: str, x: float) -> str:
    width = x * SCALE
    return (f'<rect class="{kind}" x="{LEFT}" y="{y}" width="{width:.0f}" height="{BAR}" rx="2"/>'
            f'<text class="n" x="{LEFT + width + 6:.0f}" y="{y + 11}">{x:g}</text>')


def draw(found: dict[str, tuple[float, float]]) -> str:
    height = 78 + ROW * len(ROWS)
    out = [f'<svg xmlns="http://www.w3.org/2000/svg" width="680" height="{height}" role="img" '
           'aria-label="Tokens per second of sluice over those of llama.cpp">', f"<style>{STYLE}</style>",
           '<text class="t" x="0" y="16">tokens/s of sluice over llama.cpp, Llama-3.2-1B shape</text>',
           '<rect class="a" x="0" y="28" width="12" height="12" rx="2"/><text x="18" y="39">Xeon with AMX, 16 threads</text>',
           '<rect class="b" x="210" y="28" width="12" height="12" rx="2"/><text x="228" y="39">EPYC (Zen 4), 2 cores</text>']
    for i, (name, label) in enumerate(ROWS):
        epyc, xeon = found[name]
        y = 58 + ROW * i
        out += [f'<text x="{LEFT - 10}" y="{y + 18}" text-anchor="end">{label}</text>', bar(y, "a", xeon),
                bar(y + BAR + 2, "b", epyc)]
    x = LEFT + SCALE
    out += [f'<line class="one" x1="{x}" x2="{x}" y1="50" y2="{height - 22}"/>',
            f'<text class="n" x="{x}" y="{height - 6}" text-anchor="middle">llama.cpp = 1</text>', "</svg>", ""]
    return "\n".join(out)


def main() -> int:
    os.chdir(ROOT)
    with open("docs/FIGURES.md", encoding="utf-8") as f:
        svg = draw(ratios(f.read()))
    path = "docs/images/cpu.svg"
    if sys.argv[1:] == ["--check"]:
        with open(path, encoding="utf-8") as f:
            return 0 if f.read() == svg else 1
    with open(path, "w", encoding="utf-8") as f:
        f.write(svg)
    return 0


if __name__ == "__main__":
    sys.exit(main())
