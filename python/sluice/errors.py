# SPDX-License-Identifier: MIT
"""What can go wrong: every error of the engine is one of these, with its code and the field at fault."""
from __future__ import annotations

import re
from typing import FrozenSet, Optional

from . import _abi

# Names that a message of the C API can begin with: what a request or a configuration may say.
_FIELDS: FrozenSet[str] = frozenset(
    field[0] for struct in (_abi.Sampling, _abi.RequestDesc, _abi.EngineConfig) for field in struct._fields_
) | {"repetition_detection", "bad_words"}
_ALIASES = {"adapter": "lora", "lora_scale": "lora", "constraint": "structured_outputs"}


class SluiceError(Exception):
    """Base of all errors of this package.

    code: name as in sluice.h, for example "ENOMEM"; number: its value there, for example -11;
    http_status: what `sluice serve` answers with; message: one line that says what was wrong."""

    def __init__(self, message: str, number: int = -16) -> None:
        super().__init__(message)
        self.message = message
        self.number = number
        self.code, self.http_status, _ = _abi.ERRORS.get(number, _abi.ERRORS[-16])


class RequestError(SluiceError, ValueError):
    """An argument was wrong: what was asked for cannot be done, now or later.

    field: its name, for example "temperature" or "model"; param is the same, the name that OpenAI's
    API has for it. None where no single argument is at fault.

    >>> from sluice import LLM, SamplingParams, RequestError
    >>> try:
    ...     LLM().generate("Hello", SamplingParams(top_p=2))
    ... except RequestError as error:
    ...     print(error.field, error.code, error.message)
    top_p EINVAL top_p must be in (0, 1], not 2
    """

    def __init__(self, message: str, field: Optional[str] = None, number: int = -1) -> None:
        super().__init__(message, number)
        self.field = field

    @property
    def param(self) -> Optional[str]:
        return self.field


class ServerError(SluiceError):
    """`sluice serve` ended or did not get ready. log: the end of what it wrote; returncode: None if it ran."""

    def __init__(self, message: str, log: str = "", returncode: Optional[int] = None) -> None:
        super().__init__(message + (f"; the end of its log:\n{log}" if log else ""), -12)
        self.log = log
        self.returncode = returncode


def make_error(number: int, message: str, field: Optional[str] = None) -> SluiceError:
    """An error of the C API. Messages begin with the field at fault, else it is `field`."""
    if not 400 <= _abi.ERRORS.get(number, _abi.ERRORS[-16])[1] < 500 or number in (-9, -13, -14):
        return SluiceError(message, number)
    first = re.match(r"[\w-]+", message)
    name = first[0].replace("-", "_") if first else ""
    if name in _FIELDS:
        field = _ALIASES.get(name, name)
    return RequestError(message, field, number)
