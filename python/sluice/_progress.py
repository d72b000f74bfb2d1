# SPDX-License-Identifier: MIT
"""What is shown while a model is downloaded and loaded, and while many prompts are worked through."""
from __future__ import annotations

import sys
import time
from contextlib import contextmanager
from typing import Any, Callable, Iterator, List, Optional, Tuple, Union

from . import _abi

Progress = Callable[[str, int, int], None]
STEP_S = 0.1  # between two drawings


class _Line:
    """One line on stderr that is drawn again and again, and wiped at the end."""

    def __init__(self) -> None:
        self._last = 0.0
        self._drawn = False

    def __call__(self, what: str, done: int, total: int) -> None:
        now = time.monotonic()
        if now - self._last < STEP_S:
            return
        self._last, self._drawn = now, True
        unit, text = (1e6, "{:.1f} of {:.1f} MB") if total >= 1000000 else (1, "{:.0f} of {:.0f}")
        share = f"{100 * done / total:3.0f}%, " if total else ""
        sys.stderr.write(f"\r{what}: {share}{text.format(done / unit, total / unit)}\x1b[K")
        sys.stderr.flush()

    def wipe(self) -> None:
        if self._drawn:
            sys.stderr.write("\r\x1b[K")
            sys.stderr.flush()


@contextmanager
def loading(progress: Union[bool, Progress, None]) -> Iterator[Tuple[Any, Any]]:
    """Callbacks of the C API for downloads and for loading. They come in the thread that called C. What the user's
    function raises is raised when C is done, as it cannot go through C."""
    line = _Line()
    show = progress if callable(progress) else line
    quiet = progress is False or (progress is None and not sys.stderr.isatty())
    raised: List[BaseException] = []
    over = False

    def tell(what: str, done: int, total: int) -> None:
        if over or raised:
            return
        try:
            show(what, done, total)
        except BaseException as e:
            raised.append(e)

    def on_hub(_: object, p: Any) -> None:
        p = p[0]
        if not p.note:
            tell(f"downloading {(p.repo or b'').decode('utf-8', 'replace')}", p.done_bytes, p.total_bytes)

    def on_load(_: object, what: Optional[bytes], done: int, total: int) -> None:
        tell((what or b"").decode("utf-8", "replace"), done, total)
    try:
        kinds: List[Any] = [f[1] for s in (_abi.HubConfig, _abi.EngineConfig) for f in s._fields_ if f[0] == "progress"]
        yield (kinds[0](), kinds[1]()) if quiet else (kinds[0](on_hub), kinds[1](on_load))
        if raised:
            raise raised[0]
    finally:
        over = True
        line.wipe()


@contextmanager
def counting(wanted: bool, n: int) -> Iterator[Optional[Callable[[int], None]]]:
    """A line with how many of n prompts are done."""
    line = _Line()
    try:
        yield (lambda done: line("prompts", done, n)) if wanted else None
    finally:
        line.wipe()
