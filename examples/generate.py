#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""The C API from Python by ctypes, without a package: open a model, stream an answer, stop it, close.

    python3 generate.py [MODEL [PROMPT [MAX_BYTES]]]

MODEL: a path, a name like Qwen/Qwen3-0.6B, or "-" for the bundled one. SLUICE_LIBRARY names the library
where it is not installed. The structures are those of sluice.h; ctypes lays them out as C does."""
import ctypes as c
import os
import sys

ENCODE_ADD_SPECIAL, FINISH_ABORT = 1, 3


class Error(c.Structure):
    _fields_ = [("code", c.c_int), ("msg", c.c_char * 240), ("file", c.c_char_p), ("line", c.c_int)]


class EngineConfig(c.Structure):
    _fields_ = [(n, c.c_char_p) for n in ("model", "device", "chat_template", "kv_cache_dtype", "cpu_isa", "numa")]
    _fields_ += [("kv_cache_bytes", c.c_uint64), ("gpu_memory_utilization", c.c_float)]
    _fields_ += [(n, c.c_int32) for n in ("n_threads", "max_model_len", "max_num_seqs", "max_num_batched_tokens",
                                          "block_size", "max_queued", "priority_max_wait_ms", "watchdog_s",
                                          "max_itl_ms", "max_loras", "max_lora_rank", "max_cpu_loras")]
    _fields_ += [("enable_lora", c.c_bool), ("room", c.c_char * 256)]  # and more, 0 = default


class Sampling(c.Structure):
    _fields_ = [("temperature", c.c_float), ("top_p", c.c_float), ("min_p", c.c_float), ("top_k", c.c_int32)]
    _fields_ += [(n, c.c_float) for n in ("repetition_penalty", "presence_penalty", "frequency_penalty")]
    _fields_ += [("seed", c.c_uint64)]
    _fields_ += [(n, c.c_bool) for n in ("has_seed", "ignore_eos", "include_stop_str_in_output",
                                         "keep_special_tokens")]
    _fields_ += [("n", c.c_int32), ("max_tokens", c.c_int32), ("room", c.c_char * 512)]  # and more


OnText = c.CFUNCTYPE(c.c_int, c.c_void_p, c.POINTER(c.c_char), c.c_size_t)


class Generate(c.Structure):
    _fields_ = [("prompt", c.c_char_p), ("n_prompt", c.c_size_t), ("encode_flags", c.c_uint),
                ("sampling", c.POINTER(Sampling)), ("constraint", c.c_void_p), ("adapter", c.c_void_p),
                ("adapter_scale", c.c_float), ("on_text", OnText), ("arg", c.c_void_p)]


lib = c.CDLL(os.environ.get("SLUICE_LIBRARY", "libsluice.so.0"))
lib.sl_free.argtypes = [c.c_void_p]
lib.sl_engine_destroy.argtypes = [c.c_void_p]


def call(name: str, *args) -> None:
    """One function of the API; its error becomes an exception with its own words."""
    error = Error()
    if getattr(lib, name)(*args, c.byref(error)) != 0:
        raise RuntimeError(error.msg.decode("utf-8", "replace"))


class Model:
    def __init__(self, name: str | None, device: str = "cpu"):
        path = c.c_void_p()
        call("sl_model_find", name.encode() if name else None, None, c.byref(path))
        config = EngineConfig(model=c.cast(path, c.c_char_p).value, device=device.encode(), max_num_seqs=1)
        lib.sl_free(path)
        self.engine = c.c_void_p()
        call("sl_engine_create", c.byref(config), c.byref(self.engine))

    def generate(self, prompt: str, on_text, max_tokens: int) -> bool:
        """Streams to on_text(bytes) until it returns True. Says whether the answer was cut off by that."""
        sampling, finish = Sampling(), c.c_int()
        lib.sl_engine_sampling_default(self.engine, c.byref(sampling))
        sampling.temperature, sampling.max_tokens = 0, max_tokens
        callback = OnText(lambda _, text, n: int(bool(n and on_text(text[:n]))))
        text = prompt.encode()
        desc = Generate(text, len(text), ENCODE_ADD_SPECIAL, c.pointer(sampling), None, None, 1, callback, None)
        call("sl_generate", self.engine, c.byref(desc), c.byref(finish), None)
        return finish.value == FINISH_ABORT

    def close(self) -> None:
        lib.sl_engine_destroy(self.engine)


def main() -> int:
    args = sys.argv[1:] + ["-", "Once upon a time", str(sys.maxsize)][len(sys.argv) - 1:]
    written = 0

    def show(text: bytes) -> bool:
        nonlocal written
        written += sys.stdout.buffer.write(text)
        sys.stdout.buffer.flush()
        return written >= int(args[2])
    try:
        model = Model(None if args[0] == "-" else args[0])
        cut = model.generate(args[1], show, 32)
        model.close()
    except RuntimeError as e:
        print(f"generate: {e}", file=sys.stderr)
        return 1
    print("\ncancelled" if cut else "\nfinished", file=sys.stderr)
    return 0


if __name__ == "__main__":
    sys.exit(main())
