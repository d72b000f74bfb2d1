# SPDX-License-Identifier: MIT
"""Every block of README.md that a reader would paste into a shell works as it stands. tools/readme_blocks runs them, here on
the built tree; by hand in a clean root."""
import os
import subprocess

import pytest

BIN = os.environ.get("SLUICE_BIN", "build/release/sluice")
pytestmark = pytest.mark.skipif(BIN != "build/release/sluice", reason="the blocks use the release build")


def test_blocks_of_the_readme():
    r = subprocess.run(["tools/readme_blocks"], capture_output=True, text=True, timeout=600)
    assert r.returncode == 0, r.stdout + r.stderr
    assert r.stdout.rstrip().endswith("3 blocks, 0 failed"), r.stdout


def test_the_chart_is_what_the_table_says():
    assert subprocess.run(["tools/chart.py", "--check"]).returncode == 0
