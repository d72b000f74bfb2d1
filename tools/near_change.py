# SPDX-License-Identifier: MIT
"""Which tests are near a change: what `make check-fast` runs besides the short programs."""
import os
import subprocess
import sys

# What a slow test looks at besides its own layer.
ALSO = {"package/test_python.py": ("python/", "include/", "tools/pyabi", "tools/mkwheel", "docs/PYTHON.md", "examples/"),
        "models/test_models": ("tools/synth/",)}
# Parts of file names that say nothing about the subject.
COMMON = {"test", "api", "in", "out", "impl", "tmpl", "hostile", "client"}


def git_lines(*words: str) -> list[str]:
    r = subprocess.run(["git", *words], capture_output=True, text=True, check=False)
    return r.stdout.splitlines() if r.returncode == 0 else []


def changed_files(since: str) -> list[str]:
    """Files that differ from a revision, and files git does not track yet. The default revision is where the
    branch left its upstream; without an upstream, HEAD; in a clean tree, the commit before HEAD."""
    untracked = git_lines("ls-files", "--others", "--exclude-standard")
    base = since or "".join(git_lines("merge-base", "HEAD", "@{upstream}"))
    if not base:
        base = "HEAD" if untracked or git_lines("diff", "--name-only", "HEAD") else "HEAD~1"
    if not git_lines("rev-parse", "--verify", "--quiet", base + "^{commit}"):
        sys.exit(f"run_tests: unknown revision {base}")
    return sorted(set(git_lines("diff", "--name-only", base) + untracked))


def subjects(path: str) -> set[str]:
    """The words of a file's name: src/server/api/api_batches.c -> {"batche"}, as tests/server/test_batches.py."""
    stem = os.path.basename(path).split(".")[0]
    return {word.rstrip("s") for word in stem.split("_")} - COMMON


def is_near(test: str, changed: list[str], slow: bool) -> bool:
    """A test is near a change of itself. A short one is near any change of its layer, a slow one only if the
    file's name shares a word with its own."""
    own = test.split("tests/")[-1]
    layer = os.path.dirname(own)
    for path in changed:
        if os.path.splitext(path)[0] == "tests/" + os.path.splitext(own)[0]:
            return True
        if path.startswith(ALSO.get(own, ())):
            return True
        if path.startswith((f"src/{layer}/", f"tests/{layer}/")):
            if not slow or subjects(own) & subjects(path):
                return True
    return False
