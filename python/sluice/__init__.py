# SPDX-License-Identifier: MIT
"""sluice: language models in this process, or served from one of their own.

>>> from sluice import LLM, SamplingParams
>>> llm = LLM()  # the model that is inside; LLM("Qwen/Qwen3-0.6B") finds or downloads one
>>> [output] = llm.generate("Once upon a time", SamplingParams(temperature=0, max_tokens=16))
>>> output.outputs[0].text.startswith(", ")
True

Classes and arguments have the names that vLLM has. `python -m sluice` is the sluice program."""
from ._abi import VERSION as __version__
from ._program import find_program, main
from .errors import RequestError, ServerError, SluiceError
from .llm import LLM, AsyncStream, Stream
from .outputs import (ClassificationOutput, ClassificationRequestOutput, CompletionOutput, EmbeddingOutput,
                      EmbeddingRequestOutput, Logprob, PoolingOutput, PoolingRequestOutput, RequestMetrics,
                      RequestOutput, ScoringOutput, ScoringRequestOutput)
from .params import LoRARequest, SamplingParams, StructuredOutputsParams
from .server import Server
from .tokenizer import Tokenizer

__all__ = ["LLM", "AsyncStream", "ClassificationOutput", "ClassificationRequestOutput", "CompletionOutput",
           "EmbeddingOutput", "EmbeddingRequestOutput", "LoRARequest", "Logprob", "PoolingOutput", "PoolingRequestOutput",
           "RequestError", "RequestMetrics", "RequestOutput", "SamplingParams", "ScoringOutput", "ScoringRequestOutput", "Server", "ServerError",
           "SluiceError", "Stream", "StructuredOutputsParams", "Tokenizer", "__version__", "find_program", "main"]
