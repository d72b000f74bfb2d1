# SPDX-License-Identifier: MIT
"""Which page a tier gives up, page by page, against a model of ARC written down from the paper (Megiddo and Modha,
FAST 2003, figure 4), and against a list by last use. Traces: random, skewed, with scans, with loops."""
import os
import random
import subprocess
from collections import OrderedDict

import pytest

ROOT = os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "..")
BUILD = os.path.dirname(os.path.abspath(os.environ.get("SLUICE_BIN", os.path.join(ROOT, "build", "release", "sluice"))))
TOOL = os.path.join(BUILD, "tools", "tier_trace")


class Arc:
    """T1, T2 and B1, B2 with their most recently used page at the end."""
    def __init__(self, c):
        self.c, self.p = c, 0.0
        self.t1, self.t2, self.b1, self.b2 = (OrderedDict() for _ in range(4))

    def replace(self, x):
        if self.t1 and (len(self.t1) > self.p or (x in self.b2 and len(self.t1) == self.p)):
            old, _ = self.t1.popitem(last=False)
            self.b1[old] = None
        else:
            old, _ = self.t2.popitem(last=False)
            self.b2[old] = None
        return old

    def ask(self, x):
        """None: x is there; else what goes for it, "-" if nothing does."""
        t1, t2, b1, b2, c = self.t1, self.t2, self.b1, self.b2, self.c
        if x in t1 or x in t2:
            t1.pop(x, None)
            t2.pop(x, None)
            t2[x] = None
            return None
        old = "-"
        if x in b1:
            self.p = min(float(c), self.p + max(1.0, len(b2) / len(b1)))
            old = self.replace(x)
            del b1[x]
            t2[x] = None
            return old
        if x in b2:
            self.p = max(0.0, self.p - max(1.0, len(b1) / len(b2)))
            old = self.replace(x)
            del b2[x]
            t2[x] = None
            return old
        if len(t1) + len(b1) == c:
            if len(t1) < c:
                b1.popitem(last=False)
                old = self.replace(x)
            else:
                old, _ = t1.popitem(last=False)
        elif len(t1) + len(t2) + len(b1) + len(b2) >= c:
            if len(t1) + len(t2) + len(b1) + len(b2) == 2 * c:
                b2.popitem(last=False)
            old = self.replace(x)
        t1[x] = None
        assert len(t1) + len(t2) <= c and len(t1) + len(b1) <= c
        return old


class Lru:
    def __init__(self, c):
        self.c, self.pages = c, OrderedDict()

    def ask(self, x):
        if x in self.pages:
            self.pages.move_to_end(x)
            return None
        old = self.pages.popitem(last=False)[0] if len(self.pages) == self.c else "-"
        self.pages[x] = None
        return old


def uniform(r, n):
    return [r.randrange(60) for _ in range(n)]


def skewed(r, n):
    return [min(int(r.paretovariate(0.7)), 5000) for _ in range(n)]


def scans(r, n):
    """A few pages that many ask for, between runs of pages that come once, or twice."""
    out, fresh = [], 10000
    while len(out) < n:
        out += [r.randrange(25) for _ in range(r.randrange(40))]
        run = list(range(fresh, fresh + r.randrange(60)))
        fresh += len(run)
        out += run * r.choice([1, 1, 2])
    return out[:n]


def loops(r, n):
    """Loops a little longer or shorter than the room; their length changes."""
    out = []
    while len(out) < n:
        out += list(range(r.randrange(3, 50))) * r.randrange(1, 6)
    return out[:n]


def decisions(path, policy, room):
    out = subprocess.run([TOOL, "--decisions", policy, path, str(room)], capture_output=True, text=True, check=True)
    return out.stdout.splitlines()


@pytest.mark.parametrize("trace", [uniform, skewed, scans, loops])
@pytest.mark.parametrize("policy, model", [("arc", Arc), ("lru", Lru)])
def test_same_decisions(tmp_path, trace, policy, model):
    for seed, room in enumerate([2, 3, 7, 16, 31, 40]):
        pages = trace(random.Random(seed), 6000)
        path = tmp_path / "trace"
        path.write_text("".join(f"{x}\n" for x in pages))
        m = model(room)
        want = ["H" if old is None else f"M {old}" for old in map(m.ask, pages)]
        assert decisions(str(path), policy, room) == want, (trace, seed, room)
        assert any(d != "M -" and d[0] == "M" for d in want)
        if policy == "arc" and trace is scans and room > 3:
            assert m.p > 0 or m.b2  # it has adapted


def test_scans_are_resisted(tmp_path):
    """What it is for: pages that many ask for stay while others come once."""
    pages = scans(random.Random(1), 20000)
    path = tmp_path / "trace"
    path.write_text("".join(f"{x}\n" for x in pages))
    hits = {p: decisions(str(path), p, 40).count("H") for p in ("lru", "arc")}
    assert hits["arc"] > 1.2 * hits["lru"], hits
