# SPDX-License-Identifier: MIT
"""libsluice.so: found, loaded once, and called so that its errors become exceptions."""
from __future__ import annotations

import ctypes
import os
import queue
import threading
from typing import Any, Callable, List, Optional, Tuple, TypeVar

from . import _abi
from .errors import SluiceError, make_error

T = TypeVar("T")
_lock = threading.Lock()
_loaded: Optional[ctypes.CDLL] = None


def lib() -> Any:
    """The library: $SLUICE_LIBRARY, what came with the package, or what the system's loader finds."""
    global _loaded
    if _loaded is not None:
        return _loaded
    with _lock:
        if _loaded is None:
            own = os.path.join(os.path.dirname(os.path.abspath(__file__)), "libsluice.so.0")
            path = os.environ.get("SLUICE_LIBRARY") or (own if os.path.exists(own) else "libsluice.so.0")
            try:
                library = ctypes.CDLL(path)
                for name, (result, arguments) in _abi.FUNCTIONS.items():
                    function = getattr(library, name)
                    function.restype, function.argtypes = result, arguments
            except (OSError, AttributeError) as e:
                raise SluiceError(f"cannot use the library {path}: {e}") from e
            _loaded = library
    return _loaded


def call(name: str, *args: Any, field: Optional[str] = None) -> None:
    """A function of the API that can fail. ctypes lets other Python threads run meanwhile."""
    error = _abi.Error()
    code = getattr(lib(), name)(*args, ctypes.byref(error))
    if code != 0:
        raise make_error(code, error.msg.decode("utf-8", "replace"), field)


def text_of(function: str, *args: Any, field: Optional[str] = None) -> str:
    """Of functions whose last arguments are `char **out, size_t *n`: the text, freed."""
    out, n = ctypes.c_void_p(), ctypes.c_size_t()
    call(function, *args, ctypes.byref(out), ctypes.byref(n), field=field)
    try:
        return ctypes.string_at(out.value or 0, n.value).decode("utf-8", "replace")
    finally:
        lib().sl_free(out)


def encode_text(text: str, field: str) -> bytes:
    """UTF-8. Half of a surrogate pair, which no UTF-8 can hold, is refused."""
    if not isinstance(text, str):
        raise make_error(-1, f"{field} must be a string, not {type(text).__name__}", field)
    try:
        return text.encode("utf-8")
    except UnicodeEncodeError as e:
        raise make_error(-1, f"{field} is not valid Unicode: {e.reason} at {e.start}", field) from None


def c_string(text: Optional[str], field: str) -> Optional[bytes]:
    """A C string, for names and paths."""
    if text is None:
        return None
    data = encode_text(text, field)
    if b"\0" in data:
        raise make_error(-1, f"{field} has a NUL character", field)
    return data


class Handle:
    """Something of C, released when its last reference goes: also a call in another thread has one."""

    def __init__(self, value: Optional[int], release: str) -> None:
        self._as_parameter_ = ctypes.c_void_p(value)  # so that it can be an argument
        self._release = release
        self._pid = os.getpid()

    def __del__(self) -> None:
        if os.getpid() == self._pid:
            getattr(lib(), self._release)(self)


class Borrowed:
    """What lives as long as a handle."""

    def __init__(self, value: Optional[int], owner: Handle) -> None:
        self._as_parameter_ = ctypes.c_void_p(value)
        self._owner = owner


def interruptible(function: Callable[[], T]) -> T:
    """Calls what blocks for long inside C. In the main thread Ctrl-C is heard meanwhile: the call then goes on
    in a thread of its own, and its result is dropped there."""
    if threading.current_thread() is not threading.main_thread():
        return function()
    # Not a threading.Event: its Python code is not safe against an exception from a signal's handler.
    results: "queue.SimpleQueue[Tuple[Optional[BaseException], List[T]]]" = queue.SimpleQueue()

    def work() -> None:
        try:
            result = [function()]
        except BaseException as e:  # handed to the caller
            results.put((e, []))
        else:
            results.put((None, result))

    threading.Thread(target=work, name="sluice-load", daemon=True).start()
    error, result = results.get()
    if error is not None:
        raise error
    return result[0]
