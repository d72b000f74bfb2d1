# SPDX-License-Identifier: MIT
"""The sluice program that came with this package."""
from __future__ import annotations

import os
import shutil
import sys
import sysconfig
from typing import NoReturn


def find_program() -> str:
    """Its path: $SLUICE_PROGRAM, the one beside this package, or what PATH has."""
    if os.environ.get("SLUICE_PROGRAM"):
        return os.environ["SLUICE_PROGRAM"]
    here = os.path.dirname(os.path.abspath(__file__))
    schemes = [sysconfig.get_path("scripts"), sysconfig.get_path("scripts", f"{os.name}_user")]
    # pip install --target puts scripts beside the package.
    for folder in [*schemes, os.path.join(os.path.dirname(here), "bin")]:
        path = os.path.join(folder, "sluice")
        if os.access(path, os.X_OK):
            return path
    found = shutil.which("sluice")
    if found is None:
        raise FileNotFoundError("the sluice program is neither beside its Python package nor in PATH")
    return found


def main() -> NoReturn:
    """Becomes the program, with this process's arguments."""
    path = find_program()
    os.execv(path, [path, *sys.argv[1:]])
