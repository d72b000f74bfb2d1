#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""Writes a cut DeepSeek V4 Flash with random weights in the hub's formats, to measure with: the layers' own sizes, but 6
of them and 32 experts each (4 GB). Layers have a window alone, rows of 4 tokens, rows of 128, in turns.

    cut_v4.py FOLDER
"""
import json
import math
import os
import random
import struct
import sys

HIDDEN, VOCAB, EXPERTS, INTERMEDIATE, TOP = 4096, 32768, 32, 2048, 6
HEAD_DIM, HEADS, Q_RANK, GROUPS, O_RANK, INDEX_HEADS, INDEX_DIM, STREAMS = 512, 64, 1024, 8, 1024, 64, 128, 4
RATIOS = [0, 4, 128, 4, 128, 4]
SIZES = {"BF16": 2, "F8_E4M3": 1, "F8_E8M0": 1, "I8": 1, "I64": 8}

CONFIG = dict(
    architectures=["DeepseekV4ForCausalLM"], model_type="deepseek_v4", vocab_size=VOCAB, hidden_size=HIDDEN,
    num_hidden_layers=len(RATIOS), num_attention_heads=HEADS, num_key_value_heads=1, head_dim=HEAD_DIM, qk_rope_head_dim=64,
    q_lora_rank=Q_RANK, o_groups=GROUPS, o_lora_rank=O_RANK, index_n_heads=INDEX_HEADS, index_head_dim=INDEX_DIM,
    index_topk=512, sliding_window=128, compress_ratios=RATIOS + [0], compress_rope_theta=160000.0, rope_theta=10000.0,
    rope_scaling=dict(type="yarn", factor=4.0, beta_fast=32.0, beta_slow=1.0, original_max_position_embeddings=16384),
    max_position_embeddings=65536, moe_intermediate_size=INTERMEDIATE, n_routed_experts=EXPERTS, n_shared_experts=1,
    num_experts_per_tok=TOP, norm_topk_prob=True, num_hash_layers=1, routed_scaling_factor=1.5, scoring_func="sqrtsoftplus",
    swiglu_limit=10.0, hc_mult=STREAMS, hc_eps=1e-6, hc_sinkhorn_iters=20, rms_norm_eps=1e-6, hidden_act="silu",
    tie_word_embeddings=False, attention_bias=False, bos_token_id=1, eos_token_id=2, num_nextn_predict_layers=0,
    quantization_config=dict(quant_method="fp8", fmt="e4m3", scale_fmt="ue8m0", weight_block_size=[128, 128],
                             activation_scheme="dynamic"))
TOKENIZER = {
    "model": {"type": "BPE", "vocab": {"a": 0, "b": 1}, "merges": []},
    "pre_tokenizer": {"type": "ByteLevel", "add_prefix_space": False}, "decoder": {"type": "ByteLevel"}, "added_tokens": []}


class Tensors:
    """Names, formats and shapes; values repeat a megabyte of random ones."""

    def __init__(self):
        numbers = random.Random(1)
        self.raw = numbers.randbytes(1 << 20)
        self.fp8 = bytes(b if b & 127 != 127 else 0 for b in self.raw)
        self.small = b"".join(struct.pack("<H", numbers.getrandbits(1) << 15 | numbers.randrange(0x3C00, 0x3CC0))
                              for _ in range(1 << 19))
        self.one = struct.pack("<H", 0x3F80) * (1 << 16)
        self.all = []

    def bf16(self, name, *shape):
        self.all.append((name, "BF16", shape, self.small))

    def ones(self, name, *shape):
        self.all.append((name, "BF16", shape, self.one))

    def eights(self, name, rows, cols):
        self.all.append((name + ".weight", "F8_E4M3", (rows, cols), self.fp8))
        self.all.append((name + ".scale", "F8_E8M0", (-(-rows // 128), -(-cols // 128)), bytes([114]) * 4096))

    def fours(self, name, rows, cols):
        self.all.append((name + ".weight", "I8", (rows, cols // 2), self.raw))
        self.all.append((name + ".scale", "F8_E8M0", (rows, cols // 32), bytes([120]) * 4096))

    def write(self, path):
        head, at = {}, 0
        for name, dtype, shape, _ in self.all:
            end = at + math.prod(shape) * SIZES[dtype]
            head[name] = {"dtype": dtype, "shape": list(shape), "data_offsets": [at, end]}
            at = end
        text = json.dumps(head).encode()
        text += b" " * (-len(text) % 8)
        with open(path, "wb", buffering=1 << 24) as f:
            f.write(struct.pack("<Q", len(text)) + text)
            for name, _, _, pool in self.all:
                begin, end = head[name]["data_offsets"]
                for i in range(begin, end, len(pool)):
                    f.write(pool[:end - i])


def rows(t, name, ratio, dim):
    width = dim * (2 if ratio == 4 else 1)
    t.bf16(name + "wkv.weight", width, HIDDEN)
    t.bf16(name + "wgate.weight", width, HIDDEN)
    t.bf16(name + "ape", ratio, width)
    t.ones(name + "norm.weight", dim)


def attention(t, name, ratio):
    t.eights(name + "wq_a", Q_RANK, HIDDEN)
    t.ones(name + "q_norm.weight", Q_RANK)
    t.eights(name + "wq_b", HEADS * HEAD_DIM, Q_RANK)
    t.eights(name + "wkv", HEAD_DIM, HIDDEN)
    t.ones(name + "kv_norm.weight", HEAD_DIM)
    t.bf16(name + "attn_sink", HEADS)
    t.eights(name + "wo_a", GROUPS * O_RANK, HEADS * HEAD_DIM // GROUPS)
    t.eights(name + "wo_b", HIDDEN, GROUPS * O_RANK)
    if ratio > 0:
        rows(t, name + "compressor.", ratio, HEAD_DIM)
    if ratio == 4:
        t.eights(name + "indexer.wq_b", INDEX_HEADS * INDEX_DIM, Q_RANK)
        t.bf16(name + "indexer.weights_proj.weight", INDEX_HEADS, HIDDEN)
        rows(t, name + "indexer.compressor.", ratio, INDEX_DIM)


def feed_forward(t, name, hashed):
    t.bf16(name + "gate.weight", EXPERTS, HIDDEN)
    if hashed:
        table = b"".join(struct.pack("<q", (5 * token + i) % EXPERTS) for token in range(VOCAB) for i in range(TOP))
        t.all.append((name + "gate.tid2eid", "I64", (VOCAB, TOP), table))
    else:
        t.bf16(name + "gate.bias", EXPERTS)
    for e in range(EXPERTS):
        t.fours(f"{name}experts.{e}.w1", INTERMEDIATE, HIDDEN)
        t.fours(f"{name}experts.{e}.w3", INTERMEDIATE, HIDDEN)
        t.fours(f"{name}experts.{e}.w2", HIDDEN, INTERMEDIATE)
    t.eights(name + "shared_experts.w1", INTERMEDIATE, HIDDEN)
    t.eights(name + "shared_experts.w3", INTERMEDIATE, HIDDEN)
    t.eights(name + "shared_experts.w2", HIDDEN, INTERMEDIATE)


def main():
    if len(sys.argv) != 2:
        sys.exit(__doc__)
    t, folder = Tensors(), sys.argv[1]
    os.makedirs(folder, exist_ok=True)
    t.bf16("embed.weight", VOCAB, HIDDEN)
    t.bf16("head.weight", VOCAB, HIDDEN)
    t.ones("norm.weight", HIDDEN)
    t.bf16("hc_head_base", STREAMS)
    t.bf16("hc_head_fn", STREAMS, STREAMS * HIDDEN)
    t.ones("hc_head_scale", 1)
    for layer, ratio in enumerate(RATIOS):
        name = f"layers.{layer}."
        for part in ("attn", "ffn"):
            t.bf16(f"{name}hc_{part}_fn", (2 + STREAMS) * STREAMS, STREAMS * HIDDEN)
            t.bf16(f"{name}hc_{part}_base", (2 + STREAMS) * STREAMS)
            t.ones(f"{name}hc_{part}_scale", 3)
            t.ones(f"{name}{part}_norm.weight", HIDDEN)
        attention(t, name + "attn.", ratio)
        feed_forward(t, name + "ffn.", layer == 0)
    t.write(os.path.join(folder, "model.safetensors"))
    for file, content in (("config.json", CONFIG), ("tokenizer.json", TOKENIZER)):
        with open(os.path.join(folder, file), "w", encoding="ascii") as f:
            json.dump(content, f)


if __name__ == "__main__":
    main()
