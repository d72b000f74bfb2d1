# SPDX-License-Identifier: MIT
"""One engine, the requests in it, and who reads them.

The engine's own threads never call into Python: they put news of requests into an outbox. One Python thread, the
reader, submits requests, reads the outbox and releases what is over; callers wait for it. As signals are handled in
the main thread, Ctrl-C interrupts a caller but never the reader, so no request of C is lost between two lines of
Python. The GIL is free whenever a thread waits or C works."""
from __future__ import annotations

import ctypes
import functools
import os
import queue
import select
import threading
import weakref
from collections import deque
from typing import Callable, Deque, Dict, List, Optional, Tuple

from . import _abi
from ._lib import Borrowed, Handle, call, interruptible, lib
from .errors import RequestError, SluiceError, make_error
from .outputs import CompletionOutput, Logprob, RequestMetrics, RequestOutput
from .params import LoRARequest, SamplingParams, StructuredOutputsParams, fill_sampling, id_array
from .tokenizer import Tokenizer

_FINISH = {_abi.FINISH_STOP: "stop", _abi.FINISH_LENGTH: "length", _abi.FINISH_ABORT: "abort",
           _abi.FINISH_ERROR: "error", _abi.FINISH_CACHE: "cache_threshold"}
BUSY_WAIT_MS = 10  # before another try where the engine's queue is full and nothing of ours will end


class Job:
    """One request from its arguments to its output. Of a job that streams, `text` has what nobody took yet."""

    def __init__(self, request_id: str, prompt: Optional[str], ids: List[int]) -> None:
        self.desc = _abi.RequestDesc(adapter_scale=1.0)
        self.desc.prompt = id_array("prompt", ids)
        self.desc.n_prompt = len(ids)
        lib().sl_sampling_default(ctypes.byref(self.desc.sampling))
        self.request = 0
        self.held: List[Handle] = []  # constraint and adapter, until a submitted request holds them itself
        self.output = RequestOutput(request_id, prompt, ids, [])
        self.pooled: List[float] = []
        self.text: Deque[str] = deque()
        self.error: Optional[SluiceError] = None
        self.done = False
        self.notify: Callable[[], None] = lambda: None  # called by the reader at the end
        self.streams = False  # and after each piece of text, too
        self._parts: List[List[str]] = []  # of each sequence's text: adding to a string would copy it each time
        self._n_logprobs: Optional[int] = None
        self._n_prompt_logprobs: Optional[int] = None
        self._tokenizer: Optional[Tokenizer] = None

    def set_generation(self, engine: Engine, params: Optional[SamplingParams], max_tokens: Optional[int],
                       lora: Optional[LoRARequest]) -> None:
        """Without params: the model's own, and at most max_tokens."""
        sampling = self.desc.sampling
        self._tokenizer = engine.tokenizer
        if params is None:
            lib().sl_engine_sampling_default(engine.use(), ctypes.byref(sampling))
            sampling.max_tokens = max_tokens or 0
        else:
            fill_sampling(params, sampling, lambda text: engine.tokenizer.encode(text, add_special_tokens=False))
            self._n_logprobs, self._n_prompt_logprobs = params.logprobs, params.prompt_logprobs
            if params.structured_outputs is not None:
                self._set_constraint(engine, params.structured_outputs)
        if lora is not None:
            self._set_adapter(engine, lora)
        self.output.outputs = [CompletionOutput(i) for i in range(sampling.n)]
        self._parts = [[] for _ in range(sampling.n)]
        for out in self.output.outputs if self._n_logprobs is not None else []:
            out.logprobs, out.cumulative_logprob = [], 0.0

    def _set_constraint(self, engine: Engine, structured: StructuredOutputsParams) -> None:
        kind, text = structured._compiled()
        desc = _abi.ConstraintDesc(kind, text, len(text), structured._style())
        out = ctypes.c_void_p()
        call("sl_constraint_open", engine.use(), ctypes.byref(desc), ctypes.byref(out), field="structured_outputs")
        self.held.append(Handle(out.value, "sl_constraint_release"))
        self.desc.constraint = out

    def _set_adapter(self, engine: Engine, lora: LoRARequest) -> None:
        name, path = lora.lora_name.encode(), os.fsencode(lora.lora_path)
        handle = engine.use()
        if path and not lib().sl_adapter_known(handle, name):
            try:
                call("sl_adapter_load", handle, name, path, False, field="lora")
            except SluiceError:
                if not lib().sl_adapter_known(handle, name):  # else another thread was first
                    raise
        out = ctypes.c_void_p()
        call("sl_adapter_open", handle, name, True, ctypes.byref(out), field="lora")
        self.held.append(Handle(out.value, "sl_adapter_release"))
        self.desc.adapter = out
        self.desc.adapter_scale = lora.scale
        self.output.lora_request = lora

    def submit(self, handle: Handle) -> bool:
        """False: the engine's queue is full, try again."""
        error, request = _abi.Error(), ctypes.c_void_p()
        code = lib().sl_request_submit(handle, ctypes.byref(self.desc), ctypes.byref(request), ctypes.byref(error))
        if code == -9:
            return False
        self.held.clear()
        if code != 0:
            raise make_error(code, error.msg.decode("utf-8", "replace"), "prompt")
        self.request = request.value or 0
        return True

    # ---- reading

    def read(self) -> None:
        """Takes what is new; at the end the rest of the output."""
        c, chunk = lib(), _abi.Chunk()
        text_at = ctypes.c_void_p.from_buffer(chunk, getattr(_abi.Chunk, "text").offset)
        tokens_at = ctypes.c_void_p.from_buffer(chunk, getattr(_abi.Chunk, "tokens").offset)
        while c.sl_request_read(self.request, ctypes.byref(chunk)) == 1:
            out = self.output.outputs[chunk.seq_idx] if self.output.outputs else None
            if out is not None and chunk.n_text:
                piece = ctypes.string_at(text_at.value or 0, chunk.n_text).decode("utf-8", "replace")
                self._parts[chunk.seq_idx].append(piece)
                if self.streams:
                    self.text.append(piece)
            if out is not None and chunk.n_tokens:
                self._take_tokens(out, tokens_at.value or 0, chunk.n_tokens)
            if out is not None and chunk.finish != _abi.RUNNING:
                out.finish_reason = _FINISH[chunk.finish]
                if chunk.stop_str is not None:
                    out.stop_reason = chunk.stop_str.decode("utf-8", "replace")
                elif chunk.stop_token_id >= 0 and self._is_own_stop(chunk.stop_token_id):
                    out.stop_reason = chunk.stop_token_id
        if c.sl_request_done(self.request):
            self._finish()

    def join_text(self) -> RequestOutput:
        """The output with the text that has come so far."""
        for out, parts in zip(self.output.outputs, self._parts):
            out.text = "".join(parts)
        return self.output

    def _is_own_stop(self, token: int) -> bool:
        s = self.desc.sampling
        return token in s.stop_token_ids[:s.n_stop_token_ids] if s.n_stop_token_ids else False

    def _take_tokens(self, out: CompletionOutput, at: int, n: int) -> None:
        if out.logprobs is None:  # ids only: one copy in C
            stride = ctypes.sizeof(_abi.Token) // 4
            out.token_ids += (ctypes.c_int32 * (n * stride)).from_address(at)[::stride]
            return
        for token in (_abi.Token * n).from_address(at):
            out.token_ids.append(token.id)
            out.logprobs.append(self._logprobs_of(token))
            out.cumulative_logprob = (out.cumulative_logprob or 0.0) + token.logprob

    def _logprobs_of(self, token: _abi.Token) -> Dict[int, Logprob]:
        found = {token.id: Logprob(token.logprob, token.rank, self._piece(token.id))}
        for i in range(token.n_top):
            top = token.top[i]
            if top.id not in found:
                found[top.id] = Logprob(top.logprob, None if self.desc.sampling.n_logprob_token_ids else i + 1,
                                        self._piece(top.id))
        return found

    def _piece(self, token: int) -> str:
        tokenizer = self._tokenizer
        if tokenizer is None or token >= tokenizer.vocab_size:
            return ""
        return tokenizer.decode([token], skip_special_tokens=False)

    def _finish(self) -> None:
        c, usage, n = lib(), _abi.Usage(), ctypes.c_int32()
        self.join_text()
        c.sl_request_usage(self.request, ctypes.byref(usage))
        out = self.output
        out.num_cached_tokens = usage.n_cached

        def seconds(t: int) -> Optional[float]:
            return (t - usage.t_submit_ns) / 1e9 if t else None
        out.metrics = RequestMetrics(seconds(usage.t_scheduled_ns), seconds(usage.t_first_ns),
                                     seconds(usage.t_last_ns), usage.n_preemptions)
        if self._n_prompt_logprobs is not None:
            tokens = c.sl_request_prompt_logprobs(self.request)
            if tokens:
                out.prompt_logprobs = [self._logprobs_of(tokens[i]) if i else None
                                       for i in range(len(out.prompt_token_ids))]
        if self.desc.pooling:
            values = c.sl_request_pooled(self.request, ctypes.byref(n))
            self.pooled = values[:n.value] if values else []
        error = c.sl_request_error(self.request)[0]
        if error.code != 0:
            self.error = make_error(error.code, error.msg.decode("utf-8", "replace"))
        elif self.desc.pooling and not self.pooled:
            self.error = SluiceError("cancelled", -13)
        out.finished = self.done = True


class Reader:
    """The thread that owns the engine and its requests. It knows nothing of Engine, so that one can be collected."""

    def __init__(self, handle: Handle) -> None:
        self.handle: Optional[Handle] = handle  # None: the end
        self._box = ctypes.c_void_p()
        call("sl_outbox_create", ctypes.byref(self._box))
        self._bell, self._bell_in = os.pipe()
        os.set_blocking(self._bell, False)
        os.set_blocking(self._bell_in, False)
        self._orders: Deque[Tuple[str, Optional[Job]]] = deque()
        self._running: Dict[int, Job] = {}
        self._waiting: Deque[Job] = deque()
        self._thread = threading.Thread(target=self._run, name="sluice-reader", daemon=True)
        self._thread.start()

    def __del__(self) -> None:
        for fd in (self._bell, self._bell_in):  # not before: a late order must not be written somewhere else
            os.close(fd)

    # ---- for any thread

    def submit(self, job: Job) -> None:
        """Refusals become job.error. Where the engine's queue is full the job waits for room."""
        self._order("submit", job)
        if self.handle is None:  # nobody may have read the order
            self._end(job, SluiceError("this LLM is closed", -10))

    def cancel(self, job: Job) -> None:
        if not job.done:
            self._order("cancel", job)

    def stop(self, pid: int) -> None:
        """Releases all requests and the engine, and ends the thread; what was not over has an error."""
        if os.getpid() != pid:
            return
        self._order("stop", None)
        if threading.current_thread() is not self._thread:  # where the last reference to an Engine went
            self._thread.join()

    def _order(self, what: str, job: Optional[Job]) -> None:
        self._orders.append((what, job))
        try:
            os.write(self._bell_in, b"x")
        except OSError:
            pass  # it rings already, or nobody listens any more

    # ---- the reader's thread

    def _run(self) -> None:
        why = SluiceError("this LLM is closed", -10)
        poll = select.poll()
        poll.register(lib().sl_outbox_fd(self._box), select.POLLIN)
        poll.register(self._bell, select.POLLIN)
        try:
            while self._obey():
                self._read_news()
                self._submit_waiting()
                poll.poll(BUSY_WAIT_MS if self._waiting and not self._running else None)
        except Exception as e:  # nobody may wait for a thread that is gone
            why = SluiceError(f"the thread that reads results failed: {e!r}")
        handle, self.handle = self.handle, None
        while self._orders:  # what came behind the order to stop
            job = self._orders.popleft()[1]
            if job is not None and not job.done:
                self._end(job, why)
        for job in [*self._waiting, *self._running.values()]:
            self._end(job, why)
        lib().sl_outbox_destroy(self._box)
        del handle  # the engine ends here, or in the thread that is calling it

    def _obey(self) -> bool:
        """False: stop."""
        try:
            os.read(self._bell, 4096)
        except BlockingIOError:
            pass
        while self._orders:
            what, job = self._orders.popleft()
            if job is None:
                return False
            if what == "submit":
                job.desc.outbox = self._box
                self._waiting.append(job)
            elif not job.done:
                if job in self._waiting:
                    self._waiting.remove(job)
                self._end(job, SluiceError("cancelled", -13))
        return True

    def _read_news(self) -> None:
        request = lib().sl_outbox_next(self._box)
        while request:
            job = self._running[request]
            try:
                job.read()
            except Exception as e:  # a bug, or no memory: it must not end the thread that all wait for
                self._end(job, SluiceError(f"cannot read the output: {e!r}"))
            else:
                if job.done:
                    self._end(job, job.error)
                elif job.streams:
                    job.notify()
            request = lib().sl_outbox_next(self._box)

    def _submit_waiting(self) -> None:
        while self._waiting:
            job = self._waiting[0]
            try:
                if self.handle is None or not job.submit(self.handle):
                    return
            except SluiceError as e:
                self._end(job, e)
            else:
                self._running[job.request] = job
            self._waiting.popleft()

    def _end(self, job: Job, error: Optional[SluiceError]) -> None:
        if self._running.pop(job.request, None) is not None:
            lib().sl_request_release(job.request)  # which cancels what still runs
        job.error, job.done = error, True
        job.notify()


class Engine:
    """The C engine, for as long as its Reader runs or a call into it lasts."""

    def __init__(self, config: _abi.EngineConfig) -> None:
        def create() -> Handle:
            out = ctypes.c_void_p()
            call("sl_engine_create", ctypes.byref(config), ctypes.byref(out), field="model")
            return Handle(out.value, "sl_engine_destroy")
        handle = interruptible(create)
        self._pid = os.getpid()
        self._closed = False
        self.info = _abi.ModelInfo.from_buffer_copy(lib().sl_engine_info(handle)[0])
        facts = {f[0]: getattr(self.info, f[0]) for f in _abi.ModelInfo._fields_}
        self.facts = {k: v.decode("utf-8", "replace") if isinstance(v, bytes) else v for k, v in facts.items()}
        self.reader = Reader(handle)
        self._finalizer = weakref.finalize(self, self.reader.stop, self._pid)

    def use(self) -> Handle:
        """The engine, for a call."""
        if os.getpid() != self._pid:
            raise SluiceError(f"this LLM was made in process {self._pid} and its threads are there: make another "
                              "after the fork, or start processes with the method 'spawn'")
        handle = self.reader.handle
        if handle is None or self._closed:
            raise SluiceError("this LLM is closed", -10)
        return handle

    @property
    def tokenizer(self) -> Tokenizer:
        """Made anew, as one that is kept would make a cycle: then only the collector would free an engine."""
        return Tokenizer._of_engine(self._use_tokenizer)

    def _use_tokenizer(self) -> Borrowed:
        handle = self.use()
        return Borrowed(lib().sl_engine_tokenizer(handle), handle)

    def submit(self, job: Job) -> None:
        self.use()
        self.reader.submit(job)

    def cancel(self, job: Job) -> None:
        if os.getpid() == self._pid:
            self.reader.cancel(job)

    def close(self) -> None:
        """Ends what still runs and frees all memory; whoever waits for an answer gets a SluiceError."""
        if os.getpid() == self._pid:
            self._closed = True
            self._finalizer()


def new_mailbox() -> "Tuple[Callable[[], None], Callable[[], None]]":
    """(notify, wait): of one thread that waits for others. A SimpleQueue is C, so an exception of a signal's handler
    leaves it whole; threading.Event's Python code is not safe against one."""
    box: "queue.SimpleQueue[None]" = queue.SimpleQueue()
    return functools.partial(box.put, None), box.get


def run_all(engine: Engine, jobs: List[Job], on_done: Optional[Callable[[int], None]] = None) -> None:
    """Submits all, then waits until all have ended. An error, or Ctrl-C, ends the others."""
    notify, wait = new_mailbox()
    try:
        for job in jobs:
            job.notify = notify
            engine.submit(job)
        left = deque(enumerate(jobs))
        while left:
            wait()
            while left and left[0][1].done:
                i, job = left.popleft()
                raise_error(job, i, len(jobs))
                if on_done is not None:
                    on_done(i + 1)
    except BaseException:
        for job in jobs:
            engine.cancel(job)
        raise


def raise_error(job: Job, i: int = 0, n: int = 1) -> None:
    """The job's error, if it has one, with the number of the prompt where there are several."""
    e = job.error
    if n > 1 and isinstance(e, RequestError):
        e = RequestError(f"prompt {i}: {e.message}", e.field, e.number)
    if e is not None:
        raise e


def take_text(job: Job) -> str:
    """All text that has come and was not taken. Another thread may add some meanwhile."""
    parts = []
    while job.text:
        parts.append(job.text.popleft())
    return "".join(parts)
