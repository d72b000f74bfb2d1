# SPDX-License-Identifier: MIT
"""What a request may say, under the names that vLLM has."""
from __future__ import annotations

import ctypes
import json as json_module
from dataclasses import dataclass
from typing import Any, Dict, List, Optional, Sequence, Tuple, Union

from . import _abi
from ._lib import encode_text
from .errors import RequestError


@dataclass
class StructuredOutputsParams:
    """What the generated text must be. Exactly one of the first six:

    json: a JSON schema (a dict, or its text), or a class with `model_json_schema`, such as pydantic's
    regex: the whole text matches it
    choice: one of these strings
    grammar: GBNF or Lark
    json_object: any JSON object
    structural_tag: structural tags as vLLM has them (a dict, or its text)
    disable_any_whitespace: JSON without white space between its tokens
    whitespace_pattern: a regular expression for the white space there; None: at most a space or a line
    disable_additional_properties: False leaves objects open that do not say additionalProperties

    >>> from sluice import LLM, SamplingParams, StructuredOutputsParams
    >>> weather = StructuredOutputsParams(choice=["sunny", "cloudy"])
    >>> [answer] = LLM().generate("The day was", SamplingParams(structured_outputs=weather))
    >>> answer.outputs[0].text in ("sunny", "cloudy")
    True
    """

    json: Union[str, Dict[str, Any], type, None] = None
    regex: Optional[str] = None
    choice: Optional[Sequence[str]] = None
    grammar: Optional[str] = None
    json_object: Optional[bool] = None
    structural_tag: Union[str, Dict[str, Any], None] = None
    disable_any_whitespace: bool = False
    whitespace_pattern: Optional[str] = None
    disable_additional_properties: bool = True

    def _style(self) -> _abi.JsonStyle:
        """How JSON is written, for sl_constraint_open."""
        pattern = None if self.whitespace_pattern is None else encode_text(self.whitespace_pattern, "whitespace_pattern")
        if self.disable_any_whitespace and pattern:
            raise RequestError("structured_outputs: disable_any_whitespace and whitespace_pattern cannot be combined",
                               "structured_outputs")
        return _abi.JsonStyle(b"" if self.disable_any_whitespace else pattern, not self.disable_additional_properties)

    def _compiled(self) -> Tuple[int, bytes]:
        """Kind and text for sl_constraint_open."""
        choices: Tuple[Tuple[int, Any], ...] = (
            (_abi.GRAMMAR_JSON_SCHEMA, self.json), (_abi.GRAMMAR_REGEX, self.regex),
            (_abi.GRAMMAR_CHOICE, self.choice), (_abi.GRAMMAR_EBNF, self.grammar),
            (_abi.GRAMMAR_JSON_OBJECT, self.json_object or None), (_abi.GRAMMAR_STRUCTURAL, self.structural_tag))
        given = [(kind, value) for kind, value in choices if value is not None]
        if len(given) != 1:
            raise RequestError("structured_outputs needs exactly one of json, regex, choice, grammar, json_object "
                               f"and structural_tag, not {len(given)}", "structured_outputs")
        kind, value = given[0]
        if kind == _abi.GRAMMAR_JSON_OBJECT:
            value = ""
        elif kind == _abi.GRAMMAR_CHOICE:
            value = json_module.dumps(list(value) if not isinstance(value, str) else [value])
        elif kind in (_abi.GRAMMAR_JSON_SCHEMA, _abi.GRAMMAR_STRUCTURAL) and not isinstance(value, str):
            schema = getattr(value, "model_json_schema", None)
            value = schema() if schema is not None else value
            try:
                value = json_module.dumps(value)
            except (TypeError, ValueError) as e:
                raise RequestError(f"structured_outputs: json must be a schema, or a class with model_json_schema: {e}",
                                   "structured_outputs") from None
        return kind, encode_text(value, "structured_outputs")


@dataclass
class SamplingParams:
    """How tokens are chosen and when a text ends, with vLLM's names, defaults and meanings.

    temperature 0 is greedy. max_tokens None: as long as the context allows. logprobs k: each token's
    log probability and the k best instead. repetition_detection: max_pattern_size, min_pattern_size,
    min_count.

    >>> SamplingParams(temperature=0, max_tokens=32, stop=["\\n"]).max_tokens
    32
    """

    n: int = 1
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    repetition_penalty: float = 1.0
    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = 0
    min_p: float = 0.0
    seed: Optional[int] = None
    stop: Union[str, Sequence[str], None] = None
    stop_token_ids: Optional[Sequence[int]] = None
    bad_words: Optional[Sequence[str]] = None
    ignore_eos: bool = False
    max_tokens: Optional[int] = 16
    min_tokens: int = 0
    logprobs: Optional[int] = None
    prompt_logprobs: Optional[int] = None
    logprob_token_ids: Optional[Sequence[int]] = None
    skip_special_tokens: bool = True
    include_stop_str_in_output: bool = False
    logit_bias: Optional[Dict[int, float]] = None
    allowed_token_ids: Optional[Sequence[int]] = None
    repetition_detection: Optional[Dict[str, int]] = None
    structured_outputs: Optional[StructuredOutputsParams] = None


@dataclass(frozen=True)
class LoRARequest:
    """An adapter (a folder as PEFT writes it) for requests: `llm.generate(text, lora=LoRARequest("sql", 1, path))`.

    lora_int_id is there because vLLM has it; adapters are told apart by name. scale 0.5 adds half of it."""

    lora_name: str
    lora_int_id: int = 1
    lora_path: str = ""
    scale: float = 1.0


def check_number(name: str, value: Any, integer: bool) -> Any:
    """The value, if C can hold it."""
    if isinstance(value, int) and (not integer or -2**31 <= value < 2**31):
        return value
    if not integer and isinstance(value, float):
        return value
    what = f"{value}" if isinstance(value, int) else type(value).__name__
    raise RequestError(f"{name} must be {'an integer of 32 bits' if integer else 'a number'}, not {what}", name)


def id_array(name: str, ids: Any) -> Any:
    """Token ids as C has them."""
    if isinstance(ids, (str, bytes)) or not hasattr(ids, "__iter__"):
        raise RequestError(f"{name} must be a list of token ids, not {type(ids).__name__}", name)
    ids = list(ids)
    for i in ids:
        if type(i) is not int or not -2**31 <= i < 2**31:
            check_number(name, i, True)
    return (ctypes.c_int32 * len(ids))(*map(int, ids))


def _set_lists(p: SamplingParams, s: _abi.Sampling) -> None:
    if p.stop is not None and not isinstance(p.stop, (str, list, tuple)):
        raise RequestError(f"stop must be a string or a list of strings, not {type(p.stop).__name__}", "stop")
    stops = [p.stop] if isinstance(p.stop, str) else list(p.stop or [])
    encoded = [encode_text(text, "stop") for text in stops]
    if any(b"\0" in text for text in encoded):
        raise RequestError("stop has a NUL character", "stop")
    s.stop = (ctypes.c_char_p * len(stops))(*encoded)
    s.n_stop = len(stops)
    for name in ("stop_token_ids", "allowed_token_ids", "logprob_token_ids"):
        ids = getattr(p, name)
        if ids is None:
            continue
        array = id_array(name, ids)
        if len(array) == 0 and name != "stop_token_ids":
            raise RequestError(f"{name} must not be empty", name)
        setattr(s, name, array)
        setattr(s, "n_" + name, len(array))
    if p.logit_bias:
        pairs = [_abi.LogitBias(check_number("logit_bias", int(k), True), check_number("logit_bias", v, False))
                 for k, v in p.logit_bias.items()]
        s.logit_bias = (_abi.LogitBias * len(pairs))(*pairs)
        s.n_logit_bias = len(pairs)


def _set_bad_words(p: SamplingParams, s: _abi.Sampling, encode: Any) -> None:
    """As vLLM: each word where a text begins and, where that is another first token and as many, behind a space."""
    words: List[Any] = []
    for word in p.bad_words or []:
        if not isinstance(word, str) or not word.strip(" "):
            raise RequestError("bad_words must be strings that are not empty", "bad_words")
        plain, behind = encode(word.lstrip(" ")), encode(" " + word.lstrip(" "))
        words.append(plain)
        if behind and plain and behind[0] != plain[0] and len(behind) == len(plain):
            words.append(behind)
    arrays = [id_array("bad_words", ids) for ids in words]
    s.bad_words = (_abi.BadWord * len(words))(
        *[_abi.BadWord(ctypes.cast(a, ctypes.POINTER(ctypes.c_int32)), len(a)) for a in arrays])
    s.n_bad_words = len(words)


def fill_sampling(p: SamplingParams, s: _abi.Sampling, encode: Any) -> None:
    """Writes p over s, which has neutral values. encode: a text's ids. s keeps the arrays alive."""
    for name in ("temperature", "top_p", "min_p", "repetition_penalty", "presence_penalty", "frequency_penalty"):
        setattr(s, name, check_number(name, getattr(p, name), False))
    for name in ("n", "top_k", "min_tokens"):
        setattr(s, name, check_number(name, getattr(p, name), True))
    if p.max_tokens is not None:
        s.max_tokens = check_number("max_tokens", p.max_tokens, True)
        if s.max_tokens < 1:
            raise RequestError(f"max_tokens must be at least 1, not {p.max_tokens}", "max_tokens")
    for name in ("logprobs", "prompt_logprobs"):
        if getattr(p, name) is not None:
            setattr(s, name, check_number(name, getattr(p, name), True))
    if p.seed is not None:
        if not isinstance(p.seed, int) or not -2**63 <= p.seed < 2**64:
            raise RequestError("seed must be an integer of 64 bits", "seed")
        s.seed, s.has_seed = p.seed & (2**64 - 1), True
    s.ignore_eos = bool(p.ignore_eos)
    s.include_stop_str_in_output = bool(p.include_stop_str_in_output)
    s.keep_special_tokens = not p.skip_special_tokens
    _set_lists(p, s)
    if p.bad_words:
        _set_bad_words(p, s, encode)
    if p.repetition_detection:
        known = {"max_pattern_size": "max_size", "min_pattern_size": "min_size", "min_count": "min_count"}
        s.repetition.min_size = 1
        for key, value in p.repetition_detection.items():
            if key not in known:
                raise RequestError(f"repetition_detection: unknown member '{key}'", "repetition_detection")
            setattr(s.repetition, known[key], check_number("repetition_detection", value, True))
