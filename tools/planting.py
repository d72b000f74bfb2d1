# SPDX-License-Identifier: MIT
"""What tools/mutants and tools/bugs share: lists of edits, a copy of the tree, and planting one edit
in it at a time. The old lines of an edit must occur exactly once in its file, so that a list that no
longer describes the tree makes the script fail instead of proving nothing."""
import contextlib
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator

ROOT = os.path.abspath(os.path.join(os.path.dirname(os.path.abspath(__file__)), ".."))
COPIED = ["Makefile", "include", "src", "assets", "tools/embed", "tools/cuda_instances",
          "tools/synth"]


class Entry:
    """One edit: pairs of old and new lines, each of some file. `fields` are lines of other kinds."""

    def __init__(self, name: str, where: str) -> None:
        self.name = name
        self.where = where
        self.pairs: list[tuple[str, str, str]] = []
        self.fields: dict[str, list[str]] = {}


def read_list(path: str, kinds: str = "") -> list[Entry]:
    """Entries of a list. Lines begin with `== ` (a name), `@ ` (a file), `-` or `+` (old and new lines),
    `#` (a comment), or one of `kinds` and a space."""
    entries: list[Entry] = []
    file, state = "", ""
    with open(os.path.join(ROOT, path), encoding="utf-8") as f:
        lines = f.read().split("\n")
    for n, line in enumerate(lines, 1):
        kind = line[:1]
        if line.startswith("== "):
            entries.append(Entry(line[3:], f"{path}:{n}"))
        elif kind == "@":
            file = line[2:]
        elif kind == "-":
            if state != "-":
                entries[-1].pairs.append((file, "", ""))
            _, old, new = entries[-1].pairs[-1]
            entries[-1].pairs[-1] = (file, old + line[1:] + "\n", new)
        elif kind == "+":
            _, old, new = entries[-1].pairs[-1]
            entries[-1].pairs[-1] = (file, old, new + line[1:] + "\n")
        elif kind and kind in kinds and line[1:2] == " ":
            entries[-1].fields.setdefault(kind, []).append(line[2:])
        elif line and kind != "#":
            sys.exit(f"{path}:{n}: neither name, file, old nor new line: {line}")
        state = kind
    return entries


def edited(e: Entry, tree: str) -> dict[str, tuple[str, str]]:
    """The files that an entry changes: what they hold, and what they hold with the edit."""
    files: dict[str, tuple[str, str]] = {}
    for path, old, new in e.pairs:
        if path not in files:
            with open(os.path.join(tree, path), encoding="utf-8") as f:
                text = f.read()
            files[path] = (text, text)
        before, now = files[path]
        old, new = old.rstrip("\n"), new.rstrip("\n")
        if now.count(old) != 1:
            sys.exit(f"{e.where}: '{e.name}': the old lines occur {now.count(old)} times in {path}")
        files[path] = (before, now.replace(old, new))
    return files


@contextlib.contextmanager
def planted(e: Entry, tree: str) -> Iterator[None]:
    files = edited(e, tree)
    try:
        for path, (_, new) in files.items():
            write(os.path.join(tree, path), new)
        yield
    finally:
        for path, (old, _) in files.items():
            write(os.path.join(tree, path), old)


def write(path: str, text: str) -> None:
    with open(path, "w", encoding="utf-8") as f:
        f.write(text)


def copy(source: str, target: str) -> None:
    """Writes only what differs, so that only that is compiled; takes away what is not there any more."""
    if os.path.isdir(source):
        os.makedirs(target, exist_ok=True)
        names = set(os.listdir(source))
        for name in set(os.listdir(target)) - names:
            gone = os.path.join(target, name)
            shutil.rmtree(gone) if os.path.isdir(gone) else os.remove(gone)
        for name in names:
            copy(os.path.join(source, name), os.path.join(target, name))
        return
    with open(source, "rb") as f:
        data = f.read()
    if os.path.exists(target):
        with open(target, "rb") as f:
            if f.read() == data:
                return
    os.makedirs(os.path.dirname(target), exist_ok=True)
    with open(target, "wb") as f:
        f.write(data)
    shutil.copymode(source, target)


def copy_tree(tree: str, extra: list[str]) -> str:
    tree = os.path.abspath(tree)
    for path in COPIED + extra:
        copy(os.path.join(ROOT, path), os.path.join(tree, path))
    return tree


def build(tree: str, cfg: str, jobs: int, programs: list[str]) -> None:
    """Programs of build/<cfg>, by their paths below it; without the kernels for a device."""
    r = subprocess.run(["make", "-C", tree, "-s", f"-j{jobs}", f"CFG={cfg}", "WARN=", "WITH_GPU=",
                        *(f"build/{cfg}/{p}" for p in programs)],
                       stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False)
    if r.returncode:
        sys.exit(f"does not build:\n{r.stdout[-3000:]}")
