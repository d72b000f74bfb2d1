#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""vLLM beside `sluice bench`: mixtures of experts in published shapes with random weights, one JSON line a figure.
Greedy, exactly as many tokens as asked for, no prefix cache, no text. Needs vLLM and a GPU; CUDA_VISIBLE_DEVICES says
which one.

    peer_vllm.py SHAPE [--layers N] [--fp8] [--requests 1:128:128:3,256:512:128:3]

--requests: requests at a time, tokens of each prompt, tokens of each answer, repetitions. Rates are those of the
median run. For one request "decode" leaves out the prompt: what a run of one token takes is taken away.
"""
import argparse
import json
import os
import random
import statistics
import tempfile
import time

# Hyper-parameters as the models' config.json files have them.
SHAPES = {
    "qwen3-30b-a3b": dict(
        architectures=["Qwen3MoeForCausalLM"], model_type="qwen3_moe", vocab_size=151936, hidden_size=2048,
        num_hidden_layers=48, num_attention_heads=32, num_key_value_heads=4, head_dim=128, intermediate_size=6144,
        moe_intermediate_size=768, num_experts=128, num_experts_per_tok=8, norm_topk_prob=True, decoder_sparse_step=1,
        mlp_only_layers=[], rms_norm_eps=1e-6, rope_theta=1e6, max_position_embeddings=40960, hidden_act="silu",
        tie_word_embeddings=False, torch_dtype="bfloat16", bos_token_id=151643, eos_token_id=151645),
    "gpt-oss-20b": dict(
        architectures=["GptOssForCausalLM"], model_type="gpt_oss", vocab_size=201088, hidden_size=2880,
        num_hidden_layers=24, num_attention_heads=64, num_key_value_heads=8, head_dim=64, intermediate_size=2880,
        num_local_experts=32, num_experts_per_tok=4, experts_per_token=4, sliding_window=128, swiglu_limit=7.0,
        attention_bias=True, rms_norm_eps=1e-5, max_position_embeddings=131072, hidden_act="silu",
        rope_theta=150000, rope_scaling=dict(rope_type="yarn", factor=32.0, beta_fast=32.0, beta_slow=1.0,
                                             truncate=False, original_max_position_embeddings=4096),
        tie_word_embeddings=False, torch_dtype="bfloat16", eos_token_id=200002, pad_token_id=199999,
        quantization_config=dict(quant_method="mxfp4", modules_to_not_convert=[
            "model.layers.*.self_attn", "model.layers.*.mlp.router", "model.embed_tokens", "lm_head"])),
}


def write_config(folder, shape, n_layers):
    config = dict(SHAPES[shape])
    config["num_hidden_layers"] = n_layers or config["num_hidden_layers"]
    if shape == "gpt-oss-20b":
        kinds = ["sliding_attention", "full_attention"]
        config["layer_types"] = [kinds[i % 2] for i in range(config["num_hidden_layers"])]
    with open(os.path.join(folder, "config.json"), "w", encoding="ascii") as f:
        json.dump(config, f)


class Peer:
    def __init__(self, folder, fp8):
        import vllm
        self.version, self.sampling = vllm.__version__, vllm.SamplingParams
        more = dict(quantization="fp8") if fp8 else {}
        self.llm = vllm.LLM(model=folder, load_format="dummy", dtype="bfloat16", skip_tokenizer_init=True,
                            max_model_len=4096, max_num_seqs=256, enable_prefix_caching=False, seed=0,
                            generation_config="vllm", gpu_memory_utilization=0.9, **more)
        self.random = random.Random(7)

    def seconds(self, n, n_in, n_out):
        prompts = [{"prompt_token_ids": [self.random.randrange(1000, 120000) for _ in range(n_in)]} for _ in range(n)]
        params = self.sampling(temperature=0.0, max_tokens=n_out, ignore_eos=True, detokenize=False)
        begin = time.perf_counter()
        answers = self.llm.generate(prompts, params, use_tqdm=False)
        took = time.perf_counter() - begin
        assert all(len(a.outputs[0].token_ids) == n_out for a in answers)
        return took


def main():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("shape", choices=sorted(SHAPES))
    p.add_argument("--layers", type=int, default=0)
    p.add_argument("--fp8", action="store_true", help="vLLM's own quantisation, a scale for each matrix")
    p.add_argument("--requests", default="1:128:128:3,256:512:128:3")
    args = p.parse_args()
    begin = time.monotonic()

    def say(**facts):
        print(json.dumps({"peer": "vllm", "shape": args.shape, "layers": args.layers, "fp8": args.fp8, **facts,
                          "at_s": round(time.monotonic() - begin, 1)}), flush=True)

    with tempfile.TemporaryDirectory() as folder:
        write_config(folder, args.shape, args.layers)
        peer = Peer(folder, args.fp8)
        say(ready=peer.version)
        peer.seconds(1, 128, 32)
        for part in args.requests.split(","):
            n, n_in, n_out, reps = map(int, part.split(":"))
            peer.seconds(n, n_in, min(n_out, 8))
            took = sorted(peer.seconds(n, n_in, n_out) for _ in range(reps))
            middle = statistics.median(took)
            facts = dict(requests=n, input=n_in, output=n_out, output_tokens_per_s=round(n * n_out / middle, 1),
                         seconds=[round(t, 3) for t in took])
            if n == 1:
                first = statistics.median(peer.seconds(n, n_in, 1) for _ in range(reps))
                facts["decode_tokens_per_s"] = round((n_out - 1) / (middle - first), 1)
            say(**facts)


if __name__ == "__main__":
    main()
