# SPDX-License-Identifier: MIT
"""What the scripts of this folder share. Each uses one client library in the ways that it has; try_clients.py starts it
in an environment that has only this library."""
import asyncio
import inspect
import os
import sys
import traceback
from typing import Any, Callable

URL = os.environ["SLUICE_URL"]  # http://127.0.0.1:PORT
BASE = URL + "/v1"
MODEL = "m"
PROMPT = "Tell me a story about a dog."
seen: list[str] = []  # the arguments of look()
failed: list[str] = []


def look(place: str) -> str:
    """Look at a place.

    Args:
        place: the place to look at
    """
    seen.append(place)
    return "A dog sleeps there."


def case(name: str) -> Callable[[Callable[[], Any]], None]:
    """Runs the decorated function at once. A case that fails does not keep the next one from running."""
    def run(function: Callable[[], Any]) -> None:
        seen.clear()
        try:
            result = function()
            if inspect.iscoroutine(result):
                asyncio.run(result)
            print("ok", name, flush=True)
        except Exception:
            failed.append(name)
            print("FAIL", name, flush=True)
            traceback.print_exc()
    return run


def done() -> None:
    sys.stdout.flush()
    os._exit(1 if failed else 0)  # some libraries leave threads that do not end
