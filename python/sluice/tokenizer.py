# SPDX-License-Identifier: MIT
"""Text to token ids and back."""
from __future__ import annotations

import ctypes
from typing import Any, Callable, List, Optional, Sequence, Tuple, Union

from . import _abi
from ._lib import Borrowed, Handle, c_string, call, encode_text, lib, text_of
from .params import id_array

Get = Callable[[], Union[Handle, Borrowed]]


class Tokenizer:
    """The tokenizer of a model, without its weights; any thread may use it.

    model: a path (folder, tokenizer.json, GGUF, .tiktoken, SentencePiece .model), a name like
    Qwen/Qwen3-0.6B, or None for the bundled model.

    >>> from sluice import Tokenizer
    >>> tokenizer = Tokenizer()
    >>> ids = tokenizer.encode("Once upon a time", add_special_tokens=False)
    >>> tokenizer.decode(ids)
    'Once upon a time'
    """

    def __init__(self, model: Optional[str] = None) -> None:
        path, handle = ctypes.c_void_p(), ctypes.c_void_p()
        hub = _abi.HubConfig(text_only=True)
        call("sl_model_find", c_string(model, "model"), ctypes.byref(hub), ctypes.byref(path), field="model")
        try:
            call("sl_tokenizer_open", ctypes.cast(path, ctypes.c_char_p), ctypes.byref(handle), field="model")
        finally:
            lib().sl_free(path)
        owned = Handle(handle.value, "sl_tokenizer_close")
        self._get: Get = lambda: owned

    @classmethod
    def _of_engine(cls, get: Get) -> "Tokenizer":
        """Of an engine, which must be open: get raises where it is not."""
        self = cls.__new__(cls)
        self._get = get
        return self

    def encode(self, text: str, add_special_tokens: bool = True, parse_special_tokens: bool = False) -> List[int]:
        """Token ids. add_special_tokens: what the model puts around a text; parse_special_tokens: "<|im_end|>" in
        the text becomes that token, and not the letters of it."""
        data = encode_text(text, "text")
        flags = (_abi.ENCODE_ADD_SPECIAL * bool(add_special_tokens)
                 | _abi.ENCODE_PARSE_SPECIAL * bool(parse_special_tokens))
        ids, n = ctypes.POINTER(ctypes.c_int32)(), ctypes.c_size_t()
        call("sl_tokenizer_encode", self._get(), data, len(data), flags, ctypes.byref(ids), ctypes.byref(n),
             field="text")
        return _take(ids, n)

    def encode_input(self, text: str, pair: Optional[str] = None, max_tokens: int = 0) -> Tuple[List[int], int]:
        """Ids of what is embedded or scored, cut to max_tokens (0: not at all), and where the pair begins in them."""
        a, b = encode_text(text, "text"), encode_text(pair, "text") if pair is not None else None
        ids, n, second = ctypes.POINTER(ctypes.c_int32)(), ctypes.c_size_t(), ctypes.c_int32()
        call("sl_tokenizer_encode_input", self._get(), a, len(a), b, len(b or b""), max_tokens, ctypes.byref(ids),
             ctypes.byref(n), ctypes.byref(second), field="text")
        return _take(ids, n), second.value

    def decode(self, ids: Sequence[int], skip_special_tokens: bool = True) -> str:
        """The text of token ids; what is not whole UTF-8 becomes U+FFFD."""
        array = id_array("ids", ids)
        return text_of("sl_tokenizer_decode", self._get(), array, len(array), bool(skip_special_tokens), field="ids")

    @property
    def vocab_size(self) -> int:
        return int(lib().sl_tokenizer_n_vocab(self._get()))

    def __len__(self) -> int:
        return self.vocab_size


def _take(ids: Any, n: ctypes.c_size_t) -> List[int]:
    out: List[int] = ids[:n.value]
    lib().sl_free(ids)
    return out
