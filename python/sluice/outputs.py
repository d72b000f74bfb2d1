# SPDX-License-Identifier: MIT
"""What comes back, with vLLM's names."""
from __future__ import annotations

from dataclasses import dataclass, field
from typing import Dict, List, Optional, Union

from .params import LoRARequest


@dataclass
class Logprob:
    """logprob: natural logarithm of the model's probability, before temperature and penalties; rank 1: the best."""

    logprob: float
    rank: Optional[int]
    decoded_token: str


@dataclass
class RequestMetrics:
    """Seconds since the request was submitted; None: not reached."""

    scheduled: Optional[float] = None
    first_token: Optional[float] = None
    finished: Optional[float] = None
    n_preemptions: int = 0


@dataclass
class CompletionOutput:
    """One generated text. finish_reason: "stop", "length", "abort" or, while it runs, None. stop_reason: the stop
    string or the id of the stop token that ended it."""

    index: int
    text: str = ""
    token_ids: List[int] = field(default_factory=list)
    cumulative_logprob: Optional[float] = None
    logprobs: Optional[List[Dict[int, Logprob]]] = None
    finish_reason: Optional[str] = None
    stop_reason: Union[int, str, None] = None


@dataclass
class RequestOutput:
    """One prompt and what was generated for it: `outputs` has SamplingParams.n texts."""

    request_id: str
    prompt: Optional[str]
    prompt_token_ids: List[int]
    outputs: List[CompletionOutput]
    prompt_logprobs: Optional[List[Optional[Dict[int, Logprob]]]] = None
    finished: bool = False
    num_cached_tokens: int = 0
    metrics: RequestMetrics = field(default_factory=RequestMetrics)
    lora_request: Optional[LoRARequest] = None

    @property
    def text(self) -> str:
        """The first text."""
        return self.outputs[0].text


@dataclass
class EmbeddingOutput:
    embedding: List[float]


@dataclass
class EmbeddingRequestOutput:
    request_id: str
    prompt_token_ids: List[int]
    outputs: EmbeddingOutput
    finished: bool = True


@dataclass
class ClassificationOutput:
    probs: List[float]


@dataclass
class ClassificationRequestOutput:
    request_id: str
    prompt_token_ids: List[int]
    outputs: ClassificationOutput
    finished: bool = True


@dataclass
class PoolingOutput:
    data: Union[List[float], List[List[float]]]  # what the model gives: one vector, or one for each token


@dataclass
class PoolingRequestOutput:
    request_id: str
    prompt_token_ids: List[int]
    outputs: PoolingOutput
    finished: bool = True


@dataclass
class ScoringOutput:
    score: float


@dataclass
class ScoringRequestOutput:
    request_id: str
    prompt_token_ids: List[int]
    outputs: ScoringOutput
    finished: bool = True
