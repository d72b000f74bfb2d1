# SPDX-License-Identifier: MIT
"""The LLM class: one model in this process."""
from __future__ import annotations

import asyncio
import ctypes
import functools
import itertools
import json
import math
import operator
import os
from types import TracebackType
from typing import (Any, AsyncIterator, Callable, Dict, Iterator, List, Mapping, Optional, Sequence, Tuple, Type,
                    TypeVar, Union, cast)

from . import _abi
from ._engine import Engine, Job, new_mailbox, raise_error, run_all, take_text
from ._lib import c_string, call, encode_text, interruptible, lib, text_of
from ._progress import Progress, counting, loading
from .errors import RequestError
from .outputs import (ClassificationOutput, ClassificationRequestOutput, EmbeddingOutput, EmbeddingRequestOutput,
                      PoolingOutput, PoolingRequestOutput, RequestOutput, ScoringOutput, ScoringRequestOutput)
from .params import LoRARequest, SamplingParams, check_number
from .tokenizer import Tokenizer

Prompt = Union[str, Sequence[int], Mapping[str, Any]]
Prompts = Union[Prompt, Sequence[Prompt]]
Message = Mapping[str, Any]
Messages = Sequence[Message]
Conversations = Union[Messages, Sequence[Messages]]
Params = Union[SamplingParams, Sequence[SamplingParams], None]
Lora = Union[str, LoRARequest, None]
Self = TypeVar("Self", bound="LLM")
_POOLING_TASKS = {_abi.TASK_EMBED: "embed", _abi.TASK_SCORE: "classify", _abi.TASK_TOKEN_EMBED: "token_embed"}
GENERATE_TOKENS = 16  # of generate() without SamplingParams, as vLLM
_VLLM_ONLY = {"dtype": "auto", "quantization": None,
              "trust_remote_code": None, "enforce_eager": None, "disable_log_stats": None, "swap_space": None}


def _json_text(name: str, value: Optional[Mapping[str, Any]]) -> Optional[str]:
    try:
        return None if value is None else json.dumps(value)
    except (TypeError, ValueError) as e:
        raise RequestError(f"{name}: {e}", name) from None


class Stream(Iterator[str]):
    """The pieces of one text as they come; `output` is what has come so far, whole at the end. Leaving the loop,
    close() or the end of a `with` block ends the generation."""

    def __init__(self, engine: Engine, job: Job) -> None:
        self._engine, self._job = engine, job
        notify, self._wait = new_mailbox()
        job.notify, job.streams = notify, True
        engine.submit(job)

    def __next__(self) -> str:
        while True:
            done = self._job.done  # before the text: what comes with the end must not be missed
            text = take_text(self._job)
            if text:
                return text
            if done:
                raise_error(self._job)
                raise StopIteration
            try:
                self._wait()
            except BaseException:
                self.close()
                raise

    @property
    def output(self) -> RequestOutput:
        return self._job.join_text()

    def close(self) -> None:
        self._engine.cancel(self._job)

    def __enter__(self) -> "Stream":
        return self

    def __exit__(self, *unused: object) -> None:
        self.close()

    def __del__(self) -> None:
        if hasattr(self, "_wait"):
            self.close()


class AsyncStream(AsyncIterator[str]):
    """Stream for `async for`. A task that is cancelled ends its generation."""

    def __init__(self, engine: Engine, make_job: Callable[[], Job]) -> None:
        self._engine, self._make_job = engine, make_job
        self._job: Optional[Job] = None

    async def __anext__(self) -> str:
        if self._job is None:
            self._news = asyncio.Event()
            self._job = await _prepare(self._make_job)
            self._job.notify, self._job.streams = _notifier(self._news), True
            self._engine.submit(self._job)
        while True:
            done = self._job.done
            text = take_text(self._job)
            if text:
                return text
            if done:
                raise_error(self._job)
                raise StopAsyncIteration
            try:
                await self._news.wait()
            except BaseException:
                self._engine.cancel(self._job)
                raise
            self._news.clear()

    @property
    def output(self) -> Optional[RequestOutput]:
        """None before the first piece was asked for."""
        return self._job.join_text() if self._job is not None else None

    async def aclose(self) -> None:
        self.__del__()

    async def __aenter__(self) -> "AsyncStream":
        return self

    async def __aexit__(self, *unused: object) -> None:
        await self.aclose()

    def __del__(self) -> None:
        if getattr(self, "_job", None) is not None:
            self._engine.cancel(cast(Job, self._job))


def _notifier(event: asyncio.Event) -> Callable[[], None]:
    """Sets an event of the running loop from another thread."""
    loop = asyncio.get_running_loop()

    def notify() -> None:
        try:
            loop.call_soon_threadsafe(event.set)
        except RuntimeError:
            pass  # the loop is closed: nobody waits any more
    return notify


async def _prepare(make_job: Callable[[], Any]) -> Any:
    """Tokenising, compiling a schema or reading an adapter must not hold up the event loop."""
    return await asyncio.get_running_loop().run_in_executor(None, make_job)


class LLM:
    """A model in this process, with the methods of vLLM's class of that name.

    model: a folder, a .gguf file, a name like "Qwen/Qwen3-0.6B" or "org/name:Q4_K_M" (looked up in the Hugging Face
    cache, downloaded where it lacks it), or None: a small model that is inside the library, to try things with.

    device: "auto" (a Hopper GPU if there is one), "cpu", "cuda", "cuda:N" or "cuda:N,N,..". The others are those of
    `sluice serve --help` and of vLLM. progress: False, True (a line on stderr), or a function that is called with
    what is done, how much and of how much; None: a line where stderr is a terminal. seed: requests without a seed of
    their own get one that follows from it and from how many there were before.

    All methods may be called from several threads, and the requests of all of them run together. An LLM does not
    survive a fork: use it in the process that made it. `close()`, `with`, or the collector free its memory.

    >>> from sluice import LLM, SamplingParams
    >>> with LLM() as llm:
    ...     [output] = llm.generate("Once upon a time", SamplingParams(temperature=0, max_tokens=8))
    >>> output.outputs[0].finish_reason
    'length'
    """

    def __init__(self, model: Optional[str] = None, *, device: str = "auto", revision: Optional[str] = None,
                 download_dir: Optional[str] = None, offline: bool = False, max_model_len: Optional[int] = None,
                 max_num_seqs: Optional[int] = None, max_num_batched_tokens: Optional[int] = None,
                 block_size: Optional[int] = None, max_state_slots: Optional[int] = None,
                 gpu_memory_utilization: float = 0.9,
                 cpu_offload_experts: Union[int, str, None] = None,
                 offload_folder: Optional[str] = None, weights_memory_bytes: Optional[int] = None,
                 kv_cache_memory_bytes: Optional[int] = None, kv_cache_dtype: str = "auto",
                 kv_cache_dtype_skip_layers: Optional[str] = None,
                 kv_offloading_size: Optional[float] = None, kv_offloading_backend: Optional[str] = None,
                 kv_cache_dir: Optional[str] = None, kv_cache_disk_size: Optional[float] = None, kv_cache_coding: Optional[str] = None,
                 kv_remote_url: Optional[str] = None,
                 kv_transfer_config: Optional[Mapping[str, Any]] = None,
                 enable_prefix_caching: bool = True, enable_lora: bool = False, max_loras: int = 8,
                 max_lora_rank: int = 16, max_cpu_loras: Optional[int] = None, runner: str = "auto",
                 convert: str = "auto", chat_template: Optional[str] = None, threads: Optional[int] = None,
                 tensor_parallel_size: int = 1, enable_expert_parallel: bool = False,
                 enable_eplb: bool = False, eplb_config: Optional[Mapping[str, Any]] = None,
                 divide_only_experts: bool = False,
                 pipeline_parallel_size: int = 1, decode_context_parallel_size: int = 1,
                 speculative_config: Optional[Mapping[str, Any]] = None,
                 seed: Optional[int] = None, progress: Union[bool, Progress, None] = None, **vllm: Any) -> None:
        for name, value in vllm.items():
            if name not in _VLLM_ONLY:
                raise RequestError(f"LLM has no argument '{name}'", name)
            if _VLLM_ONLY[name] is not None and value not in (_VLLM_ONLY[name], None):
                raise RequestError(f"{name} can only be {_VLLM_ONLY[name]!r}", name)
            if name == "quantization" and value is not None:
                raise RequestError("quantization follows from the checkpoint: leave it out", name)
        with loading(progress) as (on_hub, on_load):
            hub = _abi.HubConfig(c_string(revision, "revision"), c_string(download_dir, "download_dir"), bool(offline))
            hub.progress = on_hub
            path = interruptible(lambda: _find(model, hub))
            drafts = interruptible(lambda: _find_drafter(speculative_config, hub))
            config = _abi.EngineConfig(
                model=path, device=c_string(device, "device"), chat_template=c_string(chat_template, "chat_template"),
                kv_cache_dtype=c_string(kv_cache_dtype, "kv_cache_dtype"),
                kv_cache_dtype_skip_layers=c_string(kv_cache_dtype_skip_layers,
                                                    "kv_cache_dtype_skip_layers"),
                runner=c_string(runner, "runner"),
                convert=c_string(convert, "convert"), enable_lora=bool(enable_lora),
                enable_expert_parallel=bool(enable_expert_parallel),
                enable_eplb=bool(enable_eplb),
                divide_only_experts=bool(divide_only_experts),
                eplb_config=c_string(json.dumps(eplb_config) if eplb_config else None,
                                     "eplb_config"),
                cpu_offload_experts=c_string(None if cpu_offload_experts is None else str(cpu_offload_experts),
                                             "cpu_offload_experts"),
                speculative_config=c_string(json.dumps(drafts) if drafts else None,
                                            "speculative_config"),
                offload_folder=c_string(offload_folder, "offload_folder"),
                weights_memory_bytes=weights_memory_bytes or 0,
                kv_offloading_size=check_number("kv_offloading_size", kv_offloading_size or 0, False),
                kv_offloading_backend=c_string(kv_offloading_backend, "kv_offloading_backend"),
                kv_cache_dir=c_string(kv_cache_dir, "kv_cache_dir"),
                kv_cache_coding=c_string(kv_cache_coding, "kv_cache_coding"),
                kv_cache_disk_size=check_number("kv_cache_disk_size", kv_cache_disk_size or 0, False),
                kv_remote_url=c_string(kv_remote_url, "kv_remote_url"),
                kv_transfer_config=c_string(_json_text("kv_transfer_config", kv_transfer_config),
                                            "kv_transfer_config"),
                no_prefix_caching=not enable_prefix_caching, kv_cache_bytes=kv_cache_memory_bytes or 0,
                gpu_memory_utilization=check_number("gpu_memory_utilization", gpu_memory_utilization, False))
            for name, value in (("max_model_len", max_model_len), ("max_num_seqs", max_num_seqs),
                                ("max_num_batched_tokens", max_num_batched_tokens), ("block_size", block_size),
                                ("max_state_slots", max_state_slots),
                                ("max_loras", max_loras), ("max_lora_rank", max_lora_rank),
                                ("max_cpu_loras", max_cpu_loras), ("n_threads", threads),
                                ("tensor_parallel_size", tensor_parallel_size),
                                ("pipeline_parallel_size", pipeline_parallel_size),
                                ("decode_context_parallel_size", decode_context_parallel_size)):
                setattr(config, name, check_number(name, value or 0, True))
            config.progress = on_load
            self._engine = Engine(config)
        self._ids = itertools.count()
        self._seed = check_number("seed", seed, True) if seed is not None else None

    # ---- text

    def generate(self, prompts: Prompts, sampling_params: Params = None, *, use_tqdm: bool = False, lora: Lora = None,
                 lora_request: Lora = None, priority: Union[int, Sequence[int]] = 0) -> List[RequestOutput]:
        """Continues one prompt or all of a list, together; outputs come in the order of the prompts.

        A prompt is a text, a list of token ids, or a dict with `prompt` or `prompt_token_ids`, and `cache_salt`.
        sampling_params: one for all or one each; None: the model's own settings and 16 tokens, as in vLLM.
        lora: the folder of an adapter, the name of one that is loaded, or a LoRARequest; lora_request is the same.

        >>> from sluice import LLM, SamplingParams
        >>> outputs = LLM().generate(["Once upon a time", "The little dog"], SamplingParams(max_tokens=4))
        >>> [len(output.outputs[0].token_ids) for output in outputs]
        [4, 4]
        """
        jobs = self._generate_jobs(prompts, sampling_params, lora or lora_request, priority)
        with counting(use_tqdm, len(jobs)) as on_done:
            run_all(self._engine, jobs, on_done)
        return [job.output for job in jobs]

    def chat(self, messages: Conversations, sampling_params: Params = None, *, use_tqdm: bool = False,
             lora: Lora = None, lora_request: Lora = None, tools: Optional[Sequence[Mapping[str, Any]]] = None,
             add_generation_prompt: bool = True, continue_final_message: bool = False,
             chat_template_kwargs: Optional[Mapping[str, Any]] = None,
             priority: Union[int, Sequence[int]] = 0) -> List[RequestOutput]:
        """Answers a conversation, or each of a list of them, by the model's chat template.

        sampling_params None: the model's own settings, and an answer as long as the model makes it.
        chat_template_kwargs: further variables of the template, for example {"enable_thinking": False}.

        >>> from sluice import LLM, SamplingParams
        >>> llm = LLM(chat_template="{% for m in messages %}{{ m.content }}{% endfor %}")
        >>> [output] = llm.chat([{"role": "user", "content": "Once upon a time"}], SamplingParams(max_tokens=4))
        >>> output.prompt
        'Once upon a time'
        """
        jobs = self._chat_jobs(messages, sampling_params, lora or lora_request, tools, add_generation_prompt,
                               continue_final_message, chat_template_kwargs, priority)
        with counting(use_tqdm, len(jobs)) as on_done:
            run_all(self._engine, jobs, on_done)
        return [job.output for job in jobs]

    def stream(self, prompt: Prompt, sampling_params: Optional[SamplingParams] = None, *, lora: Lora = None,
               priority: int = 0) -> Stream:
        """generate() for one prompt and one text, piece by piece.

        >>> from sluice import LLM, SamplingParams
        >>> with LLM().stream("Once upon a time", SamplingParams(temperature=0, max_tokens=8)) as pieces:
        ...     text = "".join(pieces)
        >>> text == pieces.output.text
        True
        """
        return Stream(self._engine, self._stream_job(prompt, sampling_params, lora, priority, GENERATE_TOKENS))

    def stream_chat(self, messages: Messages, sampling_params: Optional[SamplingParams] = None, *, lora: Lora = None,
                    tools: Optional[Sequence[Mapping[str, Any]]] = None, add_generation_prompt: bool = True,
                    continue_final_message: bool = False, chat_template_kwargs: Optional[Mapping[str, Any]] = None,
                    priority: int = 0) -> Stream:
        """chat() for one conversation and one text, piece by piece."""
        text = self.render_chat(messages, tools=tools, add_generation_prompt=add_generation_prompt,
                                continue_final_message=continue_final_message,
                                chat_template_kwargs=chat_template_kwargs)
        return Stream(self._engine, self._stream_job(_Rendered(text), sampling_params, lora, priority, None))

    # ---- asyncio

    async def agenerate(self, prompts: Prompts, sampling_params: Params = None, *, lora: Lora = None,
                        priority: Union[int, Sequence[int]] = 0) -> List[RequestOutput]:
        """generate() for asyncio. Cancelling the task ends the generation.

        >>> import asyncio
        >>> from sluice import LLM, SamplingParams
        >>> async def both(llm: LLM) -> int:
        ...     asked = [llm.agenerate(text, SamplingParams(max_tokens=4)) for text in ("A cat", "A dog")]
        ...     return len(await asyncio.gather(*asked))
        >>> asyncio.run(both(LLM()))
        2
        """
        jobs = await self._arun(functools.partial(self._generate_jobs, prompts, sampling_params, lora, priority))
        return [job.output for job in jobs]

    async def achat(self, messages: Conversations, sampling_params: Params = None, *, lora: Lora = None,
                    tools: Optional[Sequence[Mapping[str, Any]]] = None, add_generation_prompt: bool = True,
                    continue_final_message: bool = False, chat_template_kwargs: Optional[Mapping[str, Any]] = None,
                    priority: Union[int, Sequence[int]] = 0) -> List[RequestOutput]:
        """chat() for asyncio."""
        jobs = await self._arun(functools.partial(
            self._chat_jobs, messages, sampling_params, lora, tools, add_generation_prompt, continue_final_message,
            chat_template_kwargs, priority))
        return [job.output for job in jobs]

    def astream(self, prompt: Prompt, sampling_params: Optional[SamplingParams] = None, *, lora: Lora = None,
                priority: int = 0) -> AsyncStream:
        """stream() for `async for`.

        >>> import asyncio
        >>> from sluice import LLM
        >>> async def tell(llm: LLM) -> str:
        ...     return "".join([piece async for piece in llm.astream("Once upon a time")])
        >>> len(asyncio.run(tell(LLM()))) > 0
        True
        """
        return AsyncStream(self._engine, functools.partial(self._stream_job, prompt, sampling_params, lora, priority,
                                                           GENERATE_TOKENS))

    def astream_chat(self, messages: Messages, sampling_params: Optional[SamplingParams] = None, *, lora: Lora = None,
                     tools: Optional[Sequence[Mapping[str, Any]]] = None, add_generation_prompt: bool = True,
                     continue_final_message: bool = False, chat_template_kwargs: Optional[Mapping[str, Any]] = None,
                     priority: int = 0) -> AsyncStream:
        """stream_chat() for `async for`."""
        def make() -> Job:
            text = self.render_chat(messages, tools=tools, add_generation_prompt=add_generation_prompt,
                                    continue_final_message=continue_final_message,
                                    chat_template_kwargs=chat_template_kwargs)
            return self._stream_job(_Rendered(text), sampling_params, lora, priority, None)
        return AsyncStream(self._engine, make)

    async def aembed(self, prompts: Prompts, *, dimensions: Optional[int] = None,
                     truncate_prompt_tokens: int = 0) -> List[EmbeddingRequestOutput]:
        """embed() for asyncio."""
        return self._vectors(await self._arun(lambda: self._embed_jobs(prompts, dimensions, truncate_prompt_tokens)),
                             dimensions)

    async def ascore(self, data_1: Union[str, Sequence[str]], data_2: Union[str, Sequence[str]], *,
                     truncate_prompt_tokens: int = 0) -> List[ScoringRequestOutput]:
        """score() for asyncio."""
        return self._scores(await self._arun(lambda: self._score_jobs(data_1, data_2, truncate_prompt_tokens)),
                            data_1)

    async def _arun(self, make_jobs: Callable[[], List[Job]]) -> List[Job]:
        jobs: List[Job] = await _prepare(make_jobs)
        news = asyncio.Event()
        notify = _notifier(news)
        try:
            for job in jobs:
                job.notify = notify
                self._engine.submit(job)
            for i, job in enumerate(jobs):
                while not job.done:
                    await news.wait()
                    news.clear()
                raise_error(job, i, len(jobs))
        except BaseException:
            for job in jobs:
                self._engine.cancel(job)
            raise
        return jobs

    # ---- vectors and scores

    def embed(self, prompts: Prompts, *, dimensions: Optional[int] = None,
              truncate_prompt_tokens: int = 0) -> List[EmbeddingRequestOutput]:
        """A vector for each text, of a model of embeddings (or of any, with LLM(..., runner="pooling")).

        dimensions: the first so many of them, of length 1 again where the model's are. truncate_prompt_tokens: cut
        longer texts to so many tokens, -1: to what the model takes; 0: refuse those that are too long."""
        return self._vectors(self._pool(self._embed_jobs(prompts, dimensions, truncate_prompt_tokens)), dimensions)

    def classify(self, prompts: Prompts, *, truncate_prompt_tokens: int = 0) -> List[ClassificationRequestOutput]:
        """A number for each label of a classifier, for each text."""
        self._need(_abi.TASK_SCORE, "classes")
        jobs = self._pool([self._pool_job(p, None, truncate_prompt_tokens) for p in _list_of_prompts(prompts)])
        return [ClassificationRequestOutput(job.output.request_id, job.output.prompt_token_ids,
                                            ClassificationOutput(job.pooled)) for job in jobs]

    def encode(self, prompts: Prompts, *, pooling_task: Optional[str] = None,
               truncate_prompt_tokens: int = 0) -> List[PoolingRequestOutput]:
        """What the model gives for each text, whatever that is: a vector, a number for each label, or of models like
        ColBERT a vector for each token. pooling_task: its name (embed, classify, token_embed), to be sure."""
        return self._data(self._pool(self._encode_jobs(prompts, pooling_task, truncate_prompt_tokens)))

    def score(self, data_1: Union[str, Sequence[str]], data_2: Union[str, Sequence[str]], *,
              truncate_prompt_tokens: int = 0) -> List[ScoringRequestOutput]:
        """How well texts go together, one of data_1 with all of data_2, or in pairs: a reranker's score, with a model
        of embeddings the cosine of their vectors, or of vectors for each token their late interaction (MaxSim)."""
        return self._scores(self._pool(self._score_jobs(data_1, data_2, truncate_prompt_tokens)), data_1)

    # ---- tokens and templates

    def get_tokenizer(self) -> Tokenizer:
        """The model's tokenizer, for as long as this LLM is open."""
        return self._engine.tokenizer

    def tokenize(self, text: str, add_special_tokens: bool = True) -> List[int]:
        """Token ids of a text.

        >>> from sluice import LLM
        >>> llm = LLM()
        >>> llm.detokenize(llm.tokenize("Once upon a time"))
        'Once upon a time'
        """
        return self._engine.tokenizer.encode(text, add_special_tokens)

    def detokenize(self, ids: Sequence[int], skip_special_tokens: bool = True) -> str:
        """The text of token ids."""
        return self._engine.tokenizer.decode(ids, skip_special_tokens)

    def count_tokens(self, prompt: Union[Prompt, Messages], **chat: Any) -> int:
        """Tokens of a prompt, or of a conversation by the chat template (chat: what render_chat takes)."""
        if _is_messages(prompt):
            return len(self._encode(_Rendered(self.render_chat(cast(Messages, prompt), **chat)))[1])
        return len(self._encode(cast(Prompt, prompt))[1])

    def render_chat(self, messages: Messages, *, tools: Optional[Sequence[Mapping[str, Any]]] = None,
                    add_generation_prompt: bool = True, continue_final_message: bool = False,
                    chat_template_kwargs: Optional[Mapping[str, Any]] = None) -> str:
        """The prompt that the model's chat template makes of a conversation."""
        if not _is_messages(messages):
            raise RequestError("messages must be a list of dicts with role and content", "messages")
        last = messages[-1].get("content")
        if continue_final_message and not (isinstance(last, str) and last):
            raise RequestError("continue_final_message: the last message has no text to continue", "messages")
        context: Dict[str, Any] = {**(chat_template_kwargs or {}), "messages": list(messages),
                                   "add_generation_prompt": add_generation_prompt and not continue_final_message}
        if tools is not None:
            context["tools"] = list(tools)
        try:
            data = json.dumps(context).encode()
        except (TypeError, ValueError) as e:
            raise RequestError(f"messages must be what JSON can hold: {e}", "messages") from None
        text = text_of("sl_engine_render_chat", self._engine.use(), data, len(data), field="messages")
        if not continue_final_message:
            return text
        end = text.rfind(cast(str, last).strip())
        if end < 0:
            raise RequestError("continue_final_message: the chat template does not show the last message", "messages")
        return text[:end + len(cast(str, last).strip())]

    def get_default_sampling_params(self) -> SamplingParams:
        """The model's own settings (its generation_config.json) as SamplingParams."""
        s = _abi.Sampling()
        lib().sl_engine_sampling_default(self._engine.use(), ctypes.byref(s))
        return SamplingParams(temperature=s.temperature, top_p=s.top_p, top_k=s.top_k, min_p=s.min_p,
                              repetition_penalty=s.repetition_penalty)

    # ---- adapters, memory, life

    def load_lora(self, name: str, path: Union[str, "os.PathLike[str]"]) -> None:
        """Reads an adapter (a folder as PEFT writes it), to be named by `lora=`."""
        call("sl_adapter_load", self._engine.use(), c_string(name, "lora"), os.fsencode(path), True, field="lora")

    def unload_lora(self, name: str) -> None:
        """Forgets an adapter; requests that have it keep it."""
        call("sl_adapter_unload", self._engine.use(), c_string(name, "lora"), field="lora")

    def list_loras(self) -> List[str]:
        """Names of the adapters, in the order they were loaded."""
        names: List[str] = []

        def each(_: object, info: Any) -> None:
            names.append(info[0].name.decode("utf-8", "replace"))
        lib().sl_adapter_each(self._engine.use(), _abi.FUNCTIONS["sl_adapter_each"][1][1](each), None)
        return names

    def sleep(self, level: int = 1) -> None:
        """Gives memory back until wake_up(): 1: the KV cache's, on a GPU all; 2: the weights' too. Waits for what
        runs, at most a minute."""
        call("sl_engine_sleep", self._engine.use(), check_number("level", level, True), False, 60000, field="level")

    def wake_up(self) -> None:
        call("sl_engine_wake", self._engine.use())

    @property
    def info(self) -> Dict[str, Any]:
        """Facts of the model and the engine: architecture, max_model_len, weight_dtype and so on."""
        return dict(self._engine.facts)

    def stats(self) -> Dict[str, Union[int, float]]:
        """Counters since the engine began, those of struct sl_stats in sluice_stats.h."""
        stats = _abi.Stats()
        lib().sl_engine_stats(self._engine.use(), ctypes.byref(stats))
        values = {f[0]: getattr(stats, f[0]) for f in _abi.Stats._fields_}
        return {k: v for k, v in values.items() if isinstance(v, (int, float))}

    def close(self) -> None:
        """Ends what still runs and frees all memory."""
        self._engine.close()

    def __enter__(self: Self) -> Self:
        return self

    def __exit__(self, kind: Optional[Type[BaseException]], value: Optional[BaseException],
                 trace: Optional[TracebackType]) -> None:
        self.close()

    # ---- from arguments to jobs

    def _next_id(self) -> str:
        return str(next(self._ids))

    def _encode(self, prompt: Any) -> Tuple[Optional[str], List[int], Optional[str]]:
        """Text, token ids and cache salt of a prompt."""
        salt = None
        if isinstance(prompt, Mapping):
            unknown = set(prompt) - {"prompt", "prompt_token_ids", "cache_salt"}
            if unknown or ("prompt" in prompt) == ("prompt_token_ids" in prompt):
                raise RequestError("a prompt that is a dict has either prompt or prompt_token_ids"
                                   + (f", not {sorted(map(str, unknown))}" if unknown else ""), "prompt")
            salt = prompt.get("cache_salt")
            prompt = prompt["prompt"] if "prompt" in prompt else prompt["prompt_token_ids"]
        if isinstance(prompt, _Rendered):
            text = prompt.text
            return text, self._engine.tokenizer.encode(text, False, True), salt
        if isinstance(prompt, str):
            encode_text(prompt, "prompt")
            return prompt, self._engine.tokenizer.encode(prompt), salt
        if isinstance(prompt, (bytes, bytearray)) or not isinstance(prompt, Sequence):
            raise RequestError(f"a prompt must be a string, a list of token ids or a dict, not {type(prompt).__name__}",
                               "prompt")
        return None, [check_number("prompt", i, True) for i in prompt], salt

    def _job(self, prompt: Any, params: Optional[SamplingParams], lora: Optional[LoRARequest], priority: int,
             max_tokens: Optional[int]) -> Job:
        if params is not None and not isinstance(params, SamplingParams):
            raise RequestError(f"sampling_params must be SamplingParams, not {type(params).__name__}",
                               "sampling_params")
        text, ids, salt = self._encode(prompt)
        job = Job(self._next_id(), text, ids)
        job.desc.priority = check_number("priority", priority, True)
        job.desc.cache_salt = c_string(salt, "cache_salt")
        job.set_generation(self._engine, params, max_tokens, lora)
        if self._seed is not None and not job.desc.sampling.has_seed:
            job.desc.sampling.seed = (self._seed * 0x9E3779B97F4A7C15 + int(job.output.request_id)) % 2**64
            job.desc.sampling.has_seed = True
        return job

    def _lora(self, lora: Lora) -> Optional[LoRARequest]:
        if lora is None or isinstance(lora, LoRARequest):
            return lora
        if not isinstance(lora, str):
            raise RequestError(f"lora must be a folder, a name or a LoRARequest, not {type(lora).__name__}", "lora")
        return LoRARequest(lora, lora_path=lora if os.path.isdir(lora) else "")

    def _jobs(self, prompts: Sequence[Any], params: Params, lora: Lora, priority: Union[int, Sequence[int]],
              max_tokens: Optional[int]) -> List[Job]:
        n = len(prompts)
        each = [params] * n if params is None or isinstance(params, SamplingParams) else list(params)
        order = [priority] * n if isinstance(priority, int) else list(priority)
        for name, values in (("sampling_params", each), ("priority", order)):
            if len(values) != n:
                raise RequestError(f"{name} has {len(values)} entries for {n} prompts", name)
        adapter = self._lora(lora)
        return [self._job(p, s, adapter, k, max_tokens) for p, s, k in zip(prompts, each, order)]

    def _generate_jobs(self, prompts: Prompts, params: Params, lora: Lora,
                       priority: Union[int, Sequence[int]]) -> List[Job]:
        return self._jobs(_list_of_prompts(prompts), params, lora, priority, GENERATE_TOKENS)

    def _chat_jobs(self, messages: Conversations, params: Params, lora: Lora,
                   tools: Optional[Sequence[Mapping[str, Any]]], add_generation_prompt: bool,
                   continue_final_message: bool, kwargs: Optional[Mapping[str, Any]],
                   priority: Union[int, Sequence[int]]) -> List[Job]:
        several = [messages] if _is_messages(messages) else messages
        if isinstance(several, (str, Mapping)) or not isinstance(several, Sequence):
            raise RequestError("messages must be a list of dicts with role and content", "messages")
        prompts = [_Rendered(self.render_chat(cast(Messages, m), tools=tools,
                                              add_generation_prompt=add_generation_prompt,
                                              continue_final_message=continue_final_message,
                                              chat_template_kwargs=kwargs)) for m in several]
        return self._jobs(prompts, params, lora, priority, None)

    def _stream_job(self, prompt: Any, params: Optional[SamplingParams], lora: Lora, priority: int,
                    max_tokens: Optional[int]) -> Job:
        job = self._job(prompt, params, self._lora(lora), priority, max_tokens)
        if job.desc.sampling.n != 1:
            raise RequestError(f"n must be 1 for a stream, not {job.desc.sampling.n}", "n")
        return job

    # ---- pooling

    def _need(self, task: int, what: str) -> None:
        if self._engine.info.task != task:
            raise RequestError(f"this model gives no {what}" + (
                ": LLM(..., runner=\"pooling\") makes vectors of a decoder's"
                if self._engine.info.task == _abi.TASK_GENERATE else ""), "model", -5)

    def _pool_job(self, prompt: Any, pair: Optional[str], truncate: int) -> Job:
        info, second = self._engine.info, 0
        most = info.max_model_len if truncate < 0 else check_number("truncate_prompt_tokens", truncate, True)
        if isinstance(prompt, str):
            ids, second = self._engine.tokenizer.encode_input(prompt, pair, most)
            text: Optional[str] = prompt
        else:
            text, ids, _ = self._encode(prompt)
        job = Job(self._next_id(), text, ids)
        job.desc.pooling, job.desc.second_from = True, second
        return job

    def _embed_jobs(self, prompts: Prompts, dimensions: Optional[int], truncate: int) -> List[Job]:
        self._need(_abi.TASK_EMBED, "embeddings")
        n = self._engine.info.n_pooled
        if dimensions is not None and not 1 <= check_number("dimensions", dimensions, True) <= n:
            raise RequestError(f"dimensions must be in [1, {n}], not {dimensions}", "dimensions")
        return [self._pool_job(p, None, truncate) for p in _list_of_prompts(prompts)]

    def _vectors(self, jobs: List[Job], dimensions: Optional[int]) -> List[EmbeddingRequestOutput]:
        out = []
        for job in jobs:
            vector = job.pooled
            if dimensions is not None and dimensions < len(vector):
                vector = vector[:dimensions]
                length = math.hypot(*vector) if self._engine.info.normalized else 1.0
                vector = [x / length for x in vector] if length > 0 else vector
            out.append(EmbeddingRequestOutput(job.output.request_id, job.output.prompt_token_ids,
                                              EmbeddingOutput(vector)))
        return out

    def _encode_jobs(self, prompts: Prompts, task: Optional[str], truncate: int) -> List[Job]:
        has = _POOLING_TASKS.get(self._engine.info.task)
        if has is None:
            self._need(_abi.TASK_EMBED, "embeddings")
        if task not in (None, has):
            raise RequestError(f"pooling_task must be {has!r}, which is what this model gives, not {task!r}",
                               "pooling_task")
        return [self._pool_job(p, None, truncate) for p in _list_of_prompts(prompts)]

    def _by_token(self, job: Job) -> List[List[float]]:
        n = self._engine.info.n_pooled
        return [job.pooled[i:i + n] for i in range(0, len(job.pooled), n)]

    def _data(self, jobs: List[Job]) -> List[PoolingRequestOutput]:
        by_token = self._engine.info.task == _abi.TASK_TOKEN_EMBED
        return [PoolingRequestOutput(job.output.request_id, job.output.prompt_token_ids,
                                     PoolingOutput(self._by_token(job) if by_token else job.pooled)) for job in jobs]

    def _score_jobs(self, data_1: Union[str, Sequence[str]], data_2: Union[str, Sequence[str]],
                    truncate: int) -> List[Job]:
        """Pairs, or of a model of vectors the firsts and behind them the seconds."""
        firsts, seconds = _list_of_texts("data_1", data_1), _list_of_texts("data_2", data_2)
        if len(firsts) not in (1, len(seconds)):
            raise RequestError(f"data_1 has {len(firsts)} texts, must be 1 or as many as data_2, {len(seconds)}",
                               "data_1")
        if self._engine.info.task in (_abi.TASK_EMBED, _abi.TASK_TOKEN_EMBED):
            return [self._pool_job(t, None, truncate) for t in firsts + seconds]
        self._need(_abi.TASK_SCORE, "scores")
        return [self._pair_job(one, two, truncate)
                for one, two in zip(firsts * len(seconds) if len(firsts) == 1 else firsts, seconds)]

    def _scores(self, jobs: List[Job], data_1: Union[str, Sequence[str]]) -> List[ScoringRequestOutput]:
        if self._engine.info.task in (_abi.TASK_EMBED, _abi.TASK_TOKEN_EMBED):
            n = len(_list_of_texts("data_1", data_1))
            a, jobs = jobs[:n], jobs[n:]
            pairs = [(a[i if n > 1 else 0], job) for i, job in enumerate(jobs)]
            if self._engine.info.task == _abi.TASK_EMBED:
                scores = [_cosine(one.pooled, two.pooled) for one, two in pairs]
            else:
                scores = [_max_sim(self._by_token(one), self._by_token(two)) for one, two in pairs]
        else:
            scores = [job.pooled[-1] for job in jobs]  # of two labels, "relevant" or "entailment"
        return [ScoringRequestOutput(job.output.request_id, job.output.prompt_token_ids, ScoringOutput(score))
                for job, score in zip(jobs, scores)]

    def _pair_job(self, one: str, two: str, truncate: int) -> Job:
        """A reranker reads two texts; a decoder reads one, which its chat template makes of them."""
        if self._engine.info.scores_pairs:
            return self._pool_job(one, two, truncate)
        has_template = lib().sl_engine_has_chat_template(self._engine.use())
        if not has_template:
            return self._pool_job(one + two, None, truncate)
        text = self.render_chat([{"role": "query", "content": one}, {"role": "document", "content": two}])
        if one not in text or two not in text:
            raise RequestError("the chat template does not show messages of the roles query and document: "
                               "give LLM a chat_template that does", "chat_template", -5)
        return self._pool_job(text, None, truncate)

    def _pool(self, jobs: List[Job]) -> List[Job]:
        run_all(self._engine, jobs)
        return jobs


class _Rendered:
    """A prompt that a chat template made, which wrote the special tokens itself."""

    def __init__(self, text: str) -> None:
        self.text = text


def _find(model: Optional[str], hub: _abi.HubConfig) -> Optional[bytes]:
    path = ctypes.c_void_p()
    call("sl_model_find", c_string(model, "model"), ctypes.byref(hub), ctypes.byref(path), field="model")
    try:
        return ctypes.string_at(path.value) if path.value else None
    finally:
        lib().sl_free(path)


def _find_drafter(config: Optional[Mapping[str, Any]], hub: _abi.HubConfig) -> Optional[Mapping[str, Any]]:
    """The configuration with the place of the model that drafts, if it names one."""
    name = config.get("model") if config else None
    if not config or not isinstance(name, str) or name == "(bundled)":
        return config
    return {**config, "model": os.fsdecode(_find(name, hub) or b"")}


def _is_messages(value: Any) -> bool:
    return (isinstance(value, Sequence) and not isinstance(value, str) and len(value) > 0
            and all(isinstance(m, Mapping) and "role" in m for m in value))


def _list_of_prompts(prompts: Any) -> List[Any]:
    """One prompt becomes a list of one."""
    if isinstance(prompts, (str, Mapping)):
        return [prompts]
    if not isinstance(prompts, Sequence):
        raise RequestError(f"prompts must be a prompt or a list of them, not {type(prompts).__name__}", "prompts")
    return [prompts] if len(prompts) > 0 and all(type(i) is int for i in prompts) else list(prompts)


def _list_of_texts(name: str, texts: Any) -> List[str]:
    out = [texts] if isinstance(texts, str) else list(texts)
    for text in out:
        encode_text(text, name)
    return out


def _cosine(a: Sequence[float], b: Sequence[float]) -> float:
    size = math.hypot(*a) * math.hypot(*b)
    return math.fsum(x * y for x, y in zip(a, b)) / size if size > 0 else 0.0


def _max_sim(query: List[List[float]], document: List[List[float]]) -> float:
    """Over the tokens of the query, the sum of each one's best product with a token of the document."""
    return math.fsum(max(math.fsum(map(operator.mul, q, d)) for d in document) for q in query)
