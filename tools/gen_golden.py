#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""Writes tests/golden/models/<name>/: a tiny random checkpoint and what transformers says about it.

Each folder holds config.json, model.safetensors and golden.bin (little endian: int32 n_tokens,
int32 n_vocab, int32 ids[n_tokens], float32 logits[n_tokens][n_vocab]). The logits are computed by
transformers in float32 on the CPU with eager attention. Models that pool hold other numbers in golden.bin (int32
n_texts, int32 width, then for each text int32 n_tokens, int32 second_from, int32 ids[n_tokens], float32
values[width]): embeddings by the pooling of the folder's files, or a classifier's probabilities. Weights are drawn so that attention and
every bias and norm matter: a model at its initial scale would hide most mistakes.

Models with experts also have experts.bin: int32 n_layers (those with experts), n_tokens, top_k, then for each layer and
token uint8 experts[top_k], in ascending order: what the layers chose as they computed these logits.

Needs torch, transformers and safetensors; run from the repository root:
    python3 tools/gen_golden.py [name ...]
"""
import copy
import json
import pathlib
import struct
import sys
import tempfile
import zlib

import torch
import transformers
from safetensors.torch import load_file, save_file

OUT = pathlib.Path("tests/golden/models")
N_TOKENS = 56

SMALL = dict(
    vocab_size=96,
    hidden_size=32,
    intermediate_size=88,
    num_hidden_layers=2,
    num_attention_heads=4,
    num_key_value_heads=2,
    max_position_embeddings=256,
    bos_token_id=1,
    eos_token_id=2,
)


def plain(theta):
    return dict(rope_type="default", rope_theta=theta)


# name -> (config class, arguments, storage dtype, spelling of RoPE in config.json)
MODELS = {
    "llama2": ("Llama", dict(rope_parameters=plain(10000.0)), torch.float32, "new"),
    "llama3": (
        "Llama",
        dict(
            head_dim=16,
            tie_word_embeddings=True,
            rope_parameters=dict(
                rope_type="llama3",
                rope_theta=500.0,
                factor=32.0,
                low_freq_factor=1.0,
                high_freq_factor=4.0,
                original_max_position_embeddings=64,
            ),
        ),
        torch.bfloat16,
        "old",
    ),
    "llama_bias_linear": (
        "Llama",
        dict(
            attention_bias=True,
            num_key_value_heads=4,
            rope_parameters=dict(rope_type="linear", rope_theta=10000.0, factor=2.0),
        ),
        torch.float16,
        "new",
    ),
    "mistral": (
        "Mistral",
        dict(head_dim=16, sliding_window=13, rope_parameters=plain(10000.0)),
        torch.bfloat16,
        "new",
    ),
    "qwen2": (
        "Qwen2",
        dict(tie_word_embeddings=True, rope_parameters=plain(1000000.0)),
        torch.bfloat16,
        "old",
    ),
    "qwen2_window": (
        "Qwen2",
        dict(
            use_sliding_window=True,
            sliding_window=9,
            max_window_layers=1,
            rope_parameters=plain(1000000.0),
        ),
        torch.bfloat16,
        "new",
    ),
    "qwen3": (
        "Qwen3",
        dict(head_dim=16, rope_parameters=plain(1000000.0)),
        torch.bfloat16,
        "new",
    ),
    "qwen3_yarn": (
        "Qwen3",
        dict(
            head_dim=16,
            tie_word_embeddings=True,
            rope_parameters=dict(
                rope_type="yarn",
                rope_theta=10000.0,
                factor=4.0,
                beta_fast=4.0,  # so that rounding the ramp's lower end counts at this size
                beta_slow=1.0,
                original_max_position_embeddings=64,
            ),
        ),
        torch.bfloat16,
        "old",
    ),
}


GPT_OSS = dict(
    head_dim=16,
    num_attention_heads=6,
    num_key_value_heads=2,
    intermediate_size=24,
    num_local_experts=5,
    num_experts_per_tok=3,
    sliding_window=9,
    rope_parameters=dict(  # neither end of the ramp is a whole dimension
        rope_type="yarn",
        rope_theta=1000.0,
        factor=8.0,
        beta_fast=4.0,
        beta_slow=1.0,
        truncate=False,
        original_max_position_embeddings=32,
    ),
)

# name -> (class, arguments, pooling: mean, cls or lasttoken for an embedding, tokens for one of each token, None for a
# classifier)
POOLED = {
    "bert": ("BertModel", dict(), "mean"),
    "bert_cls": ("BertModel", dict(type_vocab_size=2), "cls"),
    "bert_classifier": ("BertForSequenceClassification", dict(num_labels=3), None),
    "qwen3_embed": ("Qwen3Model", dict(head_dim=16, rope_parameters=plain(1000000.0)), "lasttoken"),
    "qwen3_classifier": (
        "Qwen3ForSequenceClassification",
        dict(head_dim=16, num_labels=1, pad_token_id=0, rope_parameters=plain(1000000.0)),
        None,
    ),
}

GEMMA3 = dict(
    head_dim=16,
    num_hidden_layers=4,
    sliding_window=9,
    sliding_window_pattern=3,
    query_pre_attn_scalar=24,
    pad_token_id=0,
    rope_parameters=dict(
        full_attention=dict(rope_type="linear", rope_theta=3000.0, factor=3.0),
        sliding_attention=dict(rope_type="default", rope_theta=100.0),
    ),
)

GEMMA4 = dict(
    intermediate_size=48,
    num_hidden_layers=4,
    head_dim=16,
    global_head_dim=24,
    sliding_window=9,
    pad_token_id=0,
    tie_word_embeddings=True,
    rope_parameters=dict(
        full_attention=dict(rope_type="proportional", rope_theta=3000.0, partial_rotary_factor=0.5, factor=2.0),
        sliding_attention=dict(rope_type="default", rope_theta=100.0),
    ),
)

# As MODELS; at the end of the list, as a model's place in it is its seed.
MORE = {
    "olmo2": (
        "Olmo2",
        dict(rope_parameters=plain(5000.0), pad_token_id=0),
        torch.bfloat16,
        "new",
    ),
    "smollm3": (
        "SmolLM3",
        dict(
            num_hidden_layers=4,  # the last without positions
            pad_token_id=0,
            tie_word_embeddings=True,
            rope_parameters=plain(5000.0),
        ),
        torch.bfloat16,
        "old",
    ),
    "smollm3_window": (
        "SmolLM3",
        dict(
            no_rope_layers=[0, 1],
            use_sliding_window=True,
            sliding_window=11,
            pad_token_id=0,
            tie_word_embeddings=False,
            rope_parameters=plain(5000.0),
        ),
        torch.bfloat16,
        "new",
    ),
    "gemma3": ("Gemma3", GEMMA3, torch.float32, "new"),
    "gemma3_bf16": (  # as a GGUF can say it
        "Gemma3",
        dict(GEMMA3, num_hidden_layers=6, sliding_window_pattern=6, query_pre_attn_scalar=16),
        torch.bfloat16,
        "old",
    ),
    "qwen3_moe": (
        "Qwen3Moe",
        dict(
            head_dim=16,
            num_experts=6,
            num_experts_per_tok=2,
            moe_intermediate_size=24,
            norm_topk_prob=True,
            rope_parameters=plain(1000000.0),
        ),
        torch.bfloat16,
        "old",
    ),
    "qwen3_moe_mixed": (  # a layer in two has experts, whose weights do not add up to 1
        "Qwen3Moe",
        dict(
            head_dim=16,
            num_hidden_layers=4,
            num_experts=5,
            num_experts_per_tok=3,
            moe_intermediate_size=16,
            decoder_sparse_step=2,
            mlp_only_layers=[1],
            norm_topk_prob=False,
            rope_parameters=plain(1000000.0),
        ),
        torch.float32,
        "new",
    ),
    "llama_gelu": ("Llama", dict(hidden_act="gelu", rope_parameters=plain(10000.0)), torch.bfloat16, "new"),
}
LLAMA3 = dict(
    rope_type="llama3",
    rope_theta=500.0,
    factor=16.0,
    low_freq_factor=1.0,
    high_freq_factor=4.0,
    original_max_position_embeddings=64,
)


MINISTRAL3 = dict(  # queries grow at positions 16, 32 and 48
    head_dim=16,
    rope_parameters=dict(
        rope_type="yarn",
        rope_theta=500.0,
        factor=16.0,
        original_max_position_embeddings=16,
        beta_fast=4.0,
        beta_slow=1.0,
        mscale=1.0,
        mscale_all_dim=1.0,
        llama_4_scaling_beta=0.3,
    ),
)


def longrope(original):
    rope = dict(rope_type="longrope", rope_theta=500.0, partial_rotary_factor=0.75, short_factor=[1.0, 1.1, 1.5],
                long_factor=[1.05, 2.5, 7.25], original_max_position_embeddings=original)
    return dict(original_max_position_embeddings=original, pad_token_id=0, tie_word_embeddings=True,
                rope_parameters=rope)


PHIMOE = dict(
    num_experts_per_tok=2,
    num_local_experts=4,
    intermediate_size=24,
    attention_bias=True,
    lm_head_bias=True,
    sliding_window=21,
    rope_parameters=dict(
        rope_type="longrope",
        rope_theta=500.0,
        short_factor=[1.0, 1.1, 1.5, 1.7],
        long_factor=[1.05, 2.5, 7.25, 9.0],
        short_mscale=1.1,
        long_mscale=1.6**0.5,
        original_max_position_embeddings=32,
    ),
)

LLAMA4 = dict(
    head_dim=8,
    num_hidden_layers=4,
    num_local_experts=4,
    num_experts_per_tok=1,
    rope_parameters=dict(  # two factors that are the same, as Scout has them
        rope_type="llama3",
        rope_theta=500.0,
        factor=8.0,
        low_freq_factor=1.0,
        high_freq_factor=1.0,
        original_max_position_embeddings=64,
    ),
)

STEP3 = dict(  # full layers have four heads of which half is rotated, windowed ones six; the first is dense
    head_dim=12,
    num_hidden_layers=4,
    num_sliding_attention_heads=6,
    intermediate_size=40,
    n_routed_experts=5,
    num_experts_per_tok=2,
    moe_intermediate_size=8,
    share_expert_dim=12,
    moe_router_scaling_factor=1.5,
    sliding_window=9,
    layer_types=["full_attention", "sliding_attention", "sliding_attention", "full_attention"],
    mlp_layer_types=["dense"] + ["sparse"] * 3,
    swiglu_limits=[0.0, 0.0, 0.5, 0.4],  # so low that they bend many of the products
    swiglu_limits_shared=[0.6, 0.3, 0.0, 0.5],
    rope_parameters=dict(
        full_attention=dict(
            rope_type="llama3",
            rope_theta=500.0,
            partial_rotary_factor=0.5,
            factor=8.0,
            low_freq_factor=1.0,
            high_freq_factor=4.0,
            original_max_position_embeddings=64,
        ),
        sliding_attention=dict(plain(50.0), partial_rotary_factor=1.0),
    ),
)

# As FAMILIES, with experts.
SPARSE = dict(num_experts_per_tok=2)
MIMO = dict(  # 12 dimensions of a key, of which 4 are rotated, 8 of a value
    SPARSE,
    head_dim=12,
    v_head_dim=8,
    num_hidden_layers=4,
    num_key_value_heads=1,
    intermediate_size=32,
    n_routed_experts=5,
    moe_intermediate_size=8,
    routed_scaling_factor=1.5,
    sliding_window=9,
    layer_types=["full_attention", "sliding_attention", "sliding_attention", "full_attention"],
    attention_bias=True,
    rope_parameters=dict(
        full_attention=dict(plain(500.0), partial_rotary_factor=0.334),
        sliding_attention=dict(plain(30.0), partial_rotary_factor=0.334),
    ),
)
# Of V2.5: q, k and v in one tensor.
MIMO_RANKS = dict(
    MIMO, num_hidden_layers=3, num_key_value_heads=2, attention_bias=False,
    layer_types=["full_attention", "sliding_attention", "full_attention"],
)
MULTIPLIERS = dict(embedding_multiplier=3.0, residual_multiplier=0.6, attention_multiplier=0.2, logits_scaling=2.0)
LATENT = dict(
    SPARSE,
    num_key_value_heads=4,
    intermediate_size=48,
    num_hidden_layers=3,
    kv_lora_rank=24,
    qk_nope_head_dim=12,
    qk_rope_head_dim=8,
    v_head_dim=20,
    n_routed_experts=8,
    moe_intermediate_size=8,
    pad_token_id=0,
)


LATENT_DENSE = {k: v for k, v in LATENT.items() if "expert" not in k and "moe" not in k}


def sharper(factor, m, **more):  # so that scores, cosines or both grow
    return dict(rope_type="yarn", rope_theta=500.0, factor=factor, mscale_all_dim=m, beta_fast=4.0,
                original_max_position_embeddings=16, **more)


EXPERTS = {
    "deepseek_v2": (  # as V2-Lite: one product makes queries, no groups
        "DeepseekV2",
        dict(LATENT, q_lora_rank=None, first_k_dense_replace=1, n_shared_experts=2,
             rope_parameters=sharper(8.0, 0.707, mscale=0.707)),
        torch.bfloat16,
        "old",
    ),
    "deepseek_v2_groups": (
        "DeepseekV2",
        dict(LATENT, q_lora_rank=16, topk_method="group_limited_greedy", n_group=4, topk_group=2, n_shared_experts=1,
             routed_scaling_factor=4.0, num_experts_per_tok=3, rope_parameters=plain(500.0)),
        torch.bfloat16,
        "new",
    ),
    "deepseek_v3": (
        "DeepseekV3",
        dict(LATENT, q_lora_rank=16, first_k_dense_replace=1, n_group=4, topk_group=2, num_experts_per_tok=3,
             rope_parameters=sharper(40.0, 1.0, mscale=1.0)),
        torch.bfloat16,
        "old",
    ),
    "deepseek_v3_fp8": (  # scales of rows
        "DeepseekV3",
        dict(LATENT, q_lora_rank=16, first_k_dense_replace=1, n_group=1, topk_group=1,
             rope_parameters=sharper(4.0, 0.5, mscale=1.0)),
        torch.bfloat16,
        "new",
    ),
    "deepseek_v32": (  # an index chooses what rows behind the 20th see
        "DeepseekV32",
        dict(LATENT, q_lora_rank=16, first_k_dense_replace=1, n_group=4, topk_group=2, num_experts_per_tok=3,
             index_n_heads=16, index_head_dim=20, index_topk=20, rope_parameters=sharper(40.0, 1.0, mscale=1.0)),
        torch.bfloat16,
        "old",
    ),
    "glm_moe_dsa": (  # the third layer sees what the one before it does
        "GlmMoeDsa",
        dict(LATENT, q_lora_rank=12, qk_nope_head_dim=20, v_head_dim=28, kv_lora_rank=16, num_attention_heads=5,
             num_key_value_heads=5, num_hidden_layers=4, first_k_dense_replace=1, n_group=1, topk_group=1,
             rms_norm_eps=0.01, index_n_heads=24, index_head_dim=12, index_topk=17, index_topk_freq=2,
             rope_parameters=plain(500.0)),
        torch.bfloat16,
        "new",
    ),
    "glm4_moe_lite": (
        "Glm4MoeLite",
        dict(LATENT, q_lora_rank=12, qk_nope_head_dim=20, v_head_dim=28, kv_lora_rank=16, num_attention_heads=5,
             num_key_value_heads=5, rms_norm_eps=0.01, rope_parameters=plain(500.0)),
        torch.bfloat16,
        "new",
    ),
    "kimi_k25": (
        "DeepseekV3",
        dict(LATENT, q_lora_rank=20, first_k_dense_replace=1, n_group=1, topk_group=1, routed_scaling_factor=2.827,
             rope_parameters=sharper(32.0, 1.0, mscale=1.0)),
        torch.bfloat16,
        "wrapped",
    ),
    "mistral4_hub": (
        "Mistral4",
        dict(LATENT, q_lora_rank=12, n_group=1, topk_group=1, n_routed_experts=5, num_hidden_layers=2,
             rope_parameters=sharper(4.0, 1.0, mscale=1.0, llama_4_scaling_beta=0.1)),
        torch.bfloat16,
        "wrapped",
    ),
    "mistral4": (
        "Mistral4",
        dict(LATENT, q_lora_rank=16, n_group=2, topk_group=1,
             rope_parameters=sharper(8.0, 1.0, mscale=1.0, llama_4_scaling_beta=0.3)),
        torch.bfloat16,
        "new",
    ),
    "youtu": (
        "Youtu",
        dict(LATENT_DENSE, q_lora_rank=20, num_hidden_layers=2, tie_word_embeddings=False,
             rope_parameters=sharper(16.0, 1.0, mscale=1.0)),
        torch.bfloat16,
        "new",
    ),
    "youtu_tied": (  # one product makes queries
        "Youtu",
        dict(LATENT_DENSE, q_lora_rank=None, num_hidden_layers=2, qk_nope_head_dim=20, v_head_dim=12, kv_lora_rank=16,
             rms_norm_eps=0.01, rope_parameters=plain(500.0)),
        torch.bfloat16,
        "old",
    ),
    "axk1": (  # as released: without a bias of the choice
        "AXK1",
        dict(LATENT, q_lora_rank=16, n_group=4, topk_group=2, num_experts_per_tok=3,
             mlp_layer_types=["dense", "sparse", "sparse"], rope_parameters=sharper(40.0, 1.0, mscale=1.0)),
        torch.bfloat16,
        "released",
    ),
    "axk1_v5": (
        "AXK1",
        dict(LATENT, q_lora_rank=16, n_group=1, topk_group=1, n_routed_experts=5, num_hidden_layers=2, num_attention_heads=3,
             num_key_value_heads=3, mlp_layer_types=["sparse", "dense"], norm_topk_prob=False, rms_norm_eps=0.01,
             rope_parameters=plain(500.0)),
        torch.bfloat16,
        "new",
    ),
    "solar_open": (
        "SolarOpen",
        dict(SPARSE, head_dim=16, num_hidden_layers=2, n_routed_experts=8, moe_intermediate_size=8, n_shared_experts=2,
             n_group=4, topk_group=2, num_experts_per_tok=3, routed_scaling_factor=1.5, attention_bias=True,
             rope_parameters=dict(rope_type="yarn", rope_theta=500.0, factor=8.0, beta_fast=4.0, beta_slow=1.0,
                                  original_max_position_embeddings=16)),
        torch.bfloat16,
        "new",
    ),
    "solar_open_one": (  # as a GGUF can say it, which is one of GLM-4.5
        "SolarOpen",
        dict(SPARSE, head_dim=16, num_hidden_layers=2, n_routed_experts=5, moe_intermediate_size=16, n_shared_experts=1,
             routed_scaling_factor=1.5, rope_parameters=plain(500.0)),
        torch.bfloat16,
        "old",
    ),
    "laguna": (  # windowed layers have more heads; the first is dense
        "Laguna",
        dict(SPARSE, head_dim=16, num_hidden_layers=4, intermediate_size=48, num_experts=5, moe_intermediate_size=8,
             shared_expert_intermediate_size=12, num_attention_heads_per_layer=[4, 6, 6, 4], sliding_window=9,
             layer_types=["full_attention", "sliding_attention", "sliding_attention", "full_attention"],
             moe_routed_scaling_factor=1.5, moe_router_logit_softcapping=1.5,
             rope_parameters=dict(
                 full_attention=dict(rope_type="yarn", rope_theta=500.0, partial_rotary_factor=0.5, factor=4.0, beta_fast=4.0,
                                     beta_slow=1.0, original_max_position_embeddings=16),
                 sliding_attention=plain(100.0))),
        torch.bfloat16,
        "new",
    ),
    "laguna_full": (  # without what has defaults
        "Laguna",
        dict(SPARSE, head_dim=16, num_hidden_layers=2, intermediate_size=40, num_experts=4, moe_intermediate_size=16,
             shared_expert_intermediate_size=8, gating="per-head"),
        torch.bfloat16,
        "bare",
    ),
    "afmoe": (  # three layers are windowed and rotated, the fourth neither
        "Afmoe",
        dict(
            SPARSE,
            head_dim=16,
            num_attention_heads=2,
            num_key_value_heads=1,
            num_hidden_layers=4,
            intermediate_size=32,
            num_experts=4,
            num_shared_experts=2,
            num_dense_layers=1,
            moe_intermediate_size=8,
            route_scale=1.5,
            sliding_window=9,
            mup_enabled=True,
            rope_parameters=plain(500.0),
        ),
        torch.bfloat16,
        "old",
    ),
    "cohere2_moe": (  # the first layer is dense and rotated, the last has no positions
        "Cohere2Moe",
        dict(
            SPARSE,
            head_dim=8,
            intermediate_size=12,
            num_hidden_layers=4,
            num_experts=4,
            num_shared_experts=2,
            prefix_dense_intermediate_size=40,
            mlp_layer_types=["dense"] + ["sparse"] * 3,
            layer_types=["full_attention", "sliding_attention", "sliding_attention", "full_attention"],
            sliding_window=9,
            logit_scale=0.3,
            attention_bias=True,
            tie_word_embeddings=True,
            rope_parameters=plain(500.0),
        ),
        torch.bfloat16,
        "new",
    ),
    "cohere2_moe_sigmoid": (
        "Cohere2Moe",
        dict(
            SPARSE,
            head_dim=16,
            intermediate_size=16,
            num_experts=5,
            num_shared_experts=1,
            shared_expert_combination_strategy="sum",
            expert_selection_fn="sigmoid",
            norm_topk_prob=False,
            rms_norm_eps=1e-4,
            sliding_window=9,
            sliding_window_pattern=2,
            logit_scale=0.3,
            rope_parameters=plain(500.0),
        ),
        torch.bfloat16,
        "old",
    ),
    "dots1": (
        "Dots1",
        dict(
            SPARSE,
            head_dim=16,
            intermediate_size=48,
            n_routed_experts=6,
            n_shared_experts=2,
            moe_intermediate_size=12,
            first_k_dense_replace=1,
            routed_scaling_factor=1.5,
            norm_topk_prob=True,
            n_group=3,
            topk_group=2,
            attention_bias=True,
            sliding_window=13,
            max_window_layers=1,
            rope_parameters=plain(5000.0),
        ),
        torch.bfloat16,
        "old",
    ),
    "dbrx": (
        "Dbrx",
        dict(
            d_model=32,
            n_heads=4,
            n_layers=2,
            max_seq_len=256,
            attn_config=dict(clip_qkv=0.8, kv_n_heads=2, rope_theta=500.0),
            ffn_config=dict(ffn_hidden_size=24, moe_num_experts=5, moe_top_k=2),
            tie_word_embeddings=False,
            rope_parameters=plain(500.0),
        ),
        torch.bfloat16,
        "new",
    ),
    "ernie4_5_moe": (
        "Ernie4_5_Moe",
        dict(
            hidden_size=32,
            intermediate_size=48,
            moe_k=2,
            moe_num_experts=6,
            moe_num_shared_experts=2,
            moe_intermediate_size=12,
            moe_layer_start_index=1,
            rope_parameters=plain(5000.0),
        ),
        torch.bfloat16,
        "old",
    ),
    "exaone_moe": (  # layers 0 to 2 are windowed and rotated, layer 3 neither
        "ExaoneMoe",
        dict(
            SPARSE,
            num_hidden_layers=4,
            intermediate_size=48,
            num_experts=6,
            num_shared_experts=2,
            moe_intermediate_size=8,
            first_k_dense_replace=1,
            n_group=3,
            topk_group=2,
            routed_scaling_factor=1.5,
            sliding_window=11,
            rope_parameters=LLAMA3,
        ),
        torch.bfloat16,
        "new",
    ),
    "exaone_moe_one": (  # as a GGUF can say it
        "ExaoneMoe",
        dict(
            SPARSE,
            num_hidden_layers=4,
            intermediate_size=48,
            num_experts=5,
            num_shared_experts=1,
            moe_intermediate_size=12,
            first_k_dense_replace=1,
            routed_scaling_factor=1.5,
            norm_topk_prob=False,
            sliding_window=11,
            rope_parameters=plain(500.0),
        ),
        torch.bfloat16,
        "old",
    ),
    "flex_olmo": (
        "FlexOlmo",
        dict(SPARSE, num_experts=5, intermediate_size=24, pad_token_id=0, rope_parameters=plain(5000.0)),
        torch.bfloat16,
        "new",
    ),
    "glm4_moe": (
        "Glm4Moe",
        dict(
            SPARSE,
            head_dim=16,
            hidden_size=32,
            num_hidden_layers=3,
            intermediate_size=48,
            n_routed_experts=8,
            n_shared_experts=1,
            moe_intermediate_size=8,
            first_k_dense_replace=1,
            n_group=4,
            topk_group=2,
            routed_scaling_factor=2.5,
            attention_bias=True,
            use_qk_norm=True,
            rope_parameters=dict(plain(500.0), partial_rotary_factor=0.5),
        ),
        torch.bfloat16,
        "old",
    ),
    "glm4_moe_air": (  # as a GGUF can say it
        "Glm4Moe",
        dict(
            SPARSE,
            head_dim=16,
            n_routed_experts=5,
            n_shared_experts=2,
            moe_intermediate_size=12,
            first_k_dense_replace=1,
            routed_scaling_factor=1.5,
            norm_topk_prob=False,
            attention_bias=True,
            rope_parameters=dict(plain(500.0), partial_rotary_factor=0.5),
        ),
        torch.bfloat16,
        "new",
    ),
    "granitemoe_swa": (
        "GraniteMoeSWA",
        dict(
            SPARSE,
            num_hidden_layers=3,
            num_local_experts=4,
            intermediate_size=16,
            shared_intermediate_size=24,
            sliding_window=9,
            layer_rope_theta=[500.0, 0, 500.0],
            rope_parameters=plain(500.0),
            **MULTIPLIERS,
        ),
        torch.bfloat16,
        "new",
    ),
    "granitemoe": (
        "GraniteMoe",
        dict(SPARSE, num_local_experts=5, intermediate_size=20, rope_parameters=plain(5000.0), **MULTIPLIERS),
        torch.bfloat16,
        "old",
    ),
    "granitemoeshared": (
        "GraniteMoeShared",
        dict(
            SPARSE,
            num_local_experts=5,
            intermediate_size=20,
            shared_intermediate_size=28,
            rope_parameters=plain(5000.0),
            **MULTIPLIERS,
        ),
        torch.bfloat16,
        "new",
    ),
    "hunyuan_moe": (
        "HunYuanMoEV1",
        dict(
            head_dim=16,
            intermediate_size=24,
            num_experts=6,
            moe_topk=[2, 2],
            attention_bias=True,
            tie_word_embeddings=True,
            rope_parameters=dict(rope_type="dynamic", rope_theta=100.0, alpha=8.0, factor=1.0),
        ),
        torch.bfloat16,
        "old",
    ),
    "hy_v3": (
        "HYV3",
        dict(
            SPARSE,
            head_dim=16,
            intermediate_size=48,
            num_experts=6,
            moe_intermediate_size=12,
            router_scaling_factor=1.5,
            rope_parameters=plain(5000.0),
        ),
        torch.bfloat16,
        "old",
    ),
    "mimo_v2": ("MiMoV2Flash", MIMO_RANKS, torch.bfloat16, "mimo_v2"),
    "mimo_v2_blocks": ("MiMoV2Flash", MIMO_RANKS, torch.bfloat16, "mimo_v2"),  # of FP8
    "mimo_v2_flash": ("MiMoV2Flash", MIMO, torch.bfloat16, "new"),
    "step3p5": ("Step3p7", STEP3, torch.bfloat16, "step3p5"),
    "step3p7": (  # without limits, and with a router scale of 1
        "Step3p7",
        dict(
            STEP3 | dict(swiglu_limits=None, swiglu_limits_shared=None, moe_router_scaling_factor=1.0),
            layer_types=["sliding_attention", "full_attention", "sliding_attention"],
            mlp_layer_types=["sparse"] * 3,
            num_hidden_layers=3,
            query_pre_attn_scalar=9,
        ),
        torch.bfloat16,
        "hub",
    ),
    "llama4": (  # chunks of 11 positions; the last layer has no positions, its queries grow every 16
        "Llama4",
        dict(
            LLAMA4,
            attention_chunk_size=11,
            floor_scale=16,
            attn_scale=0.3,
            num_experts_per_tok=2,
            intermediate_size=16,
            intermediate_size_mlp=40,
            interleave_moe_layer_step=2,
            attention_bias=True,
        ),
        torch.bfloat16,
        "new",
    ),
    "llama4_hub": (  # in a model that reads images as well, and as a GGUF can say it
        "Llama4",
        dict(LLAMA4, num_hidden_layers=4, num_local_experts=3, intermediate_size=16, intermediate_size_mlp=40,
             interleave_moe_layer_step=2),
        torch.bfloat16,
        "wrapped",
    ),
    "minimax_m2": (
        "MiniMaxM2",
        dict(
            SPARSE,
            head_dim=16,
            num_local_experts=6,
            intermediate_size=20,
            rotary_dim=8,
            rope_parameters=plain(500.0),
        ),
        torch.bfloat16,
        "old",
    ),
    "mixtral": (
        "Mixtral",
        dict(SPARSE, num_local_experts=5, intermediate_size=24, sliding_window=19, rope_parameters=plain(5000.0)),
        torch.bfloat16,
        "old",
    ),
    "olmoe": (
        "Olmoe",
        dict(SPARSE, num_experts=6, intermediate_size=24, pad_token_id=0, rope_parameters=plain(5000.0)),
        torch.bfloat16,
        "old",
    ),
    "olmoe_clip": (
        "Olmoe",
        dict(SPARSE, num_experts=4, intermediate_size=16, pad_token_id=0, clip_qkv=0.8, rope_parameters=plain(5000.0)),
        torch.bfloat16,
        "new",
    ),
    "phimoe": ("Phimoe", PHIMOE, torch.bfloat16, "new"),  # with the long factors, as a GGUF can say it
    "phimoe_near": ("Phimoe", dict(PHIMOE, router_jitter_noise=0.4), torch.bfloat16, "new"),
    "qwen2_moe": (
        "Qwen2Moe",
        dict(
            SPARSE,
            num_hidden_layers=3,
            num_experts=5,
            moe_intermediate_size=16,
            shared_expert_intermediate_size=40,
            mlp_only_layers=[1],
            use_sliding_window=True,
            sliding_window=11,
            max_window_layers=2,
            rope_parameters=plain(1000000.0),
        ),
        torch.bfloat16,
        "old",
    ),
    "qwen2_moe_all": (  # as a GGUF can say it
        "Qwen2Moe",
        dict(
            SPARSE,
            num_experts=5,
            moe_intermediate_size=16,
            shared_expert_intermediate_size=40,
            tie_word_embeddings=True,
            rope_parameters=plain(1000000.0),
        ),
        torch.bfloat16,
        "old",
    ),
}
# As EXPERTS: models with recurrent layers.
LFM2 = dict(
    num_hidden_layers=4,
    layer_types=["conv", "conv", "full_attention", "conv"],
    pad_token_id=0,
    rope_parameters=plain(1000.0),
)
MAMBA2 = dict(mamba_n_heads=4, mamba_d_head=16, mamba_d_state=12, mamba_n_groups=1, pad_token_id=0)
QWEN35 = dict(
    head_dim=16,
    num_hidden_layers=4,  # the last has attention
    linear_num_key_heads=2,
    linear_num_value_heads=4,
    linear_key_head_dim=12,
    linear_value_head_dim=8,
    rope_parameters=dict(plain(1000.0), partial_rotary_factor=0.25),
)
QWEN35_MOE = dict(QWEN35, num_hidden_layers=3, layer_types=["linear_attention", "full_attention", "linear_attention"],
                  num_experts=4, moe_intermediate_size=16, shared_expert_intermediate_size=24, **SPARSE)
OLMO_HYBRID = dict(
    num_hidden_layers=3,
    layer_types=["linear_attention", "full_attention", "linear_attention"],
    linear_num_key_heads=2,
    linear_num_value_heads=4,
    linear_key_head_dim=12,
    linear_value_head_dim=9,
    pad_token_id=0,
)
ZAMBA2 = dict(num_key_value_heads=4, n_mamba_heads=4, mamba_d_state=12, mamba_ngroups=2, adapter_rank=6,
              intermediate_size=40, pad_token_id=0)
FALCON_H1 = dict(
    MAMBA2,
    intermediate_size=40,
    mamba_d_ssm=48,
    mamba_n_heads=4,
    mamba_d_head=12,
    mamba_n_groups=2,
    embedding_multiplier=3.0,
    lm_head_multiplier=0.6,
    mlp_multipliers=[1.7, 0.8],
    key_multiplier=1.3,
    attention_in_multiplier=0.7,
    attention_out_multiplier=1.4,
    ssm_in_multiplier=1.2,
    ssm_out_multiplier=0.9,
    ssm_multipliers=[0.8, 1.3, 0.7, 1.5, 0.6],
    rope_parameters=plain(500.0),
)
NEMOTRON_H = dict(mamba_num_heads=4, mamba_head_dim=16, n_groups=2, ssm_state_size=12, head_dim=12, pad_token_id=0)
NEMOTRON3 = dict(
    layers_block_type=["mamba", "moe", "attention", "moe"],
    n_routed_experts=5,
    moe_intermediate_size=16,
    moe_shared_expert_intermediate_size=24,
    routed_scaling_factor=1.5,
)
RECURRENT = {
    "kimi_linear": (  # the third layer has latent attention
        "KimiLinear",
        {**LATENT, **dict(num_hidden_layers=4, layer_types=["linear_attention"] * 2 + ["full_attention", "linear_attention"],
             mlp_layer_types=["dense"] + ["sparse"] * 3, num_local_experts=8, n_shared_experts=1, n_group=4, topk_group=2,
             num_experts_per_tok=3, linear_head_dim=12, linear_num_heads=4, linear_conv_kernel_dim=3)},
        torch.bfloat16,
        "kimi",
    ),
    "kimi_linear_v5": (  # as transformers spells and calls it
        "KimiLinear",
        {**LATENT, **dict(num_hidden_layers=2, layer_types=["full_attention", "linear_attention"], q_lora_rank=16,
             mlp_layer_types=["sparse", "dense"], num_local_experts=4, n_shared_experts=2, linear_head_dim=8,
             linear_num_heads=2)},
        torch.bfloat16,
        "new",
    ),
    "bailing_hybrid": (  # the third layer has latent attention
        "BailingHybrid",
        {**LATENT, **dict(num_hidden_layers=4, layer_group_size=3, first_k_dense_replace=1, num_local_experts=8,
             n_shared_experts=1, n_group=4, topk_group=2, num_experts_per_tok=3, head_dim=12, short_conv_kernel_size=3, kda_lower_bound=-0.2,
             rope_parameters=sharper(8.0, 1.0, mscale=1.0))},
        torch.bfloat16,
        "new",
    ),
    "bailing_hybrid_open": (  # whose decays have no bound, as the hub spells it
        "BailingHybrid",
        {**LATENT, **dict(num_hidden_layers=2, layer_group_size=2, first_k_dense_replace=0, num_local_experts=5,
             n_shared_experts=2, n_group=1, topk_group=1, head_dim=8, kda_safe_gate=False, norm_topk_prob=False,
             rms_norm_eps=0.01, rope_parameters=plain(500.0))},
        torch.bfloat16,
        "ling",
    ),
    "bamba": (  # layer 1 has attention
        "Bamba",
        dict(MAMBA2, attn_layer_indices=[1], num_hidden_layers=3, intermediate_size=40, rope_parameters=plain(500.0)),
        torch.bfloat16,
        "new",
    ),
    "bamba_bias": (
        "Bamba",
        dict(
            MAMBA2,
            attn_layer_indices=[0],
            intermediate_size=24,
            mamba_n_groups=2,
            mamba_d_conv=3,
            mamba_proj_bias=True,
            mamba_conv_bias=False,
            attention_bias=True,
            mlp_bias=True,
            time_step_limit=(0.4, 0.9),
            tie_word_embeddings=True,
            rope_parameters=dict(plain(500.0), partial_rotary_factor=0.5),
        ),
        torch.bfloat16,
        "old",
    ),
    "falcon_h1": (
        "FalconH1",
        dict(FALCON_H1, mamba_rms_norm=True, mamba_norm_before_gate=True),
        torch.bfloat16,
        "new",
    ),
    "falcon_h1_gate": (  # the norm is behind the gate, as a GGUF can say it
        "FalconH1",
        dict(FALCON_H1, mamba_rms_norm=True, mamba_norm_before_gate=False),
        torch.bfloat16,
        "old",
    ),
    "falcon_h1_bare": (
        "FalconH1",
        dict(FALCON_H1, mamba_rms_norm=False, mamba_conv_bias=False, tie_word_embeddings=True),
        torch.bfloat16,
        "new",
    ),
    "granitemoehybrid": (  # without positions
        "GraniteMoeHybrid",
        dict(
            MAMBA2,
            **SPARSE,
            **MULTIPLIERS,
            num_hidden_layers=3,
            layer_types=["mamba", "attention", "mamba"],
            num_local_experts=4,
            intermediate_size=12,
            shared_intermediate_size=20,
            position_embedding_type="nope",
        ),
        torch.bfloat16,
        "new",
    ),
    "granitehybrid_dense": (  # with positions and without experts
        "GraniteMoeHybrid",
        dict(
            MAMBA2,
            **MULTIPLIERS,
            mamba_n_groups=2,
            mamba_proj_bias=True,
            attention_bias=True,
            layer_types=["attention", "mamba"],
            num_local_experts=0,
            shared_intermediate_size=40,
            position_embedding_type="rope",
            tie_word_embeddings=True,
            rope_parameters=plain(500.0),
        ),
        torch.bfloat16,
        "new",
    ),
    "lfm2": (
        "Lfm2",
        dict(LFM2, conv_L_cache=5, conv_bias=True, block_auto_adjust_ff_dim=False, tie_word_embeddings=False,
             intermediate_size=56),
        torch.bfloat16,
        "new",
    ),
    "lfm2_hub": (  # whose MLP is 64 wide
        "Lfm2",
        dict(LFM2, block_multiple_of=16, block_ffn_dim_multiplier=1.1, layer_types=None, full_attn_idxs=[0, 2]),
        torch.bfloat16,
        "old",
    ),
    "lfm2_moe": (
        "Lfm2Moe",
        dict(LFM2, **SPARSE, num_dense_layers=1, num_experts=5, moe_intermediate_size=16, intermediate_size=56,
             routed_scaling_factor=1.3),
        torch.bfloat16,
        "new",
    ),
    "lfm3": (  # layers 0, 1 and 3 have convolutions, 2 full attention, 4 a window
        "Lfm3",
        dict(
            head_dim=12,
            num_hidden_layers=5,
            intermediate_size=32,
            sliding_window=9,
            pad_token_id=0,
            rope_parameters=dict(
                full_attention=dict(rope_type="proportional", rope_theta=1000.0, partial_rotary_factor=0.5),
                sliding_attention=plain(100.0),
            ),
        ),
        torch.bfloat16,
        "new",
    ),
    "jamba": (  # attention in layer 2, experts in layers 1 and 3
        "Jamba",
        dict(
            SPARSE,
            num_hidden_layers=4,
            num_experts=4,
            intermediate_size=12,
            attn_layer_period=3,
            attn_layer_offset=2,
            expert_layer_period=2,
            expert_layer_offset=1,
            mamba_d_state=8,
            mamba_dt_rank=6,
            mamba_proj_bias=True,
            pad_token_id=0,
        ),
        torch.bfloat16,
        "new",
    ),
    "mamba": ("Mamba", dict(state_size=12, time_step_rank=6, num_hidden_layers=3), torch.bfloat16, "new"),
    "mamba_bias": (
        "Mamba",
        dict(state_size=8, conv_kernel=3, expand=3, use_bias=True, use_conv_bias=False, tie_word_embeddings=False),
        torch.bfloat16,
        "new",
    ),
    "falcon_mamba": (
        "FalconMamba",
        dict(state_size=12, time_step_rank=6, num_hidden_layers=3, mixer_rms_eps=1e-6, tie_word_embeddings=False),
        torch.bfloat16,
        "new",
    ),
    "mamba2": (  # groups of two heads, which norms count apart
        "Mamba2",
        dict(num_heads=8, head_dim=8, state_size=12, n_groups=4, num_hidden_layers=3),
        torch.bfloat16,
        "new",
    ),
    "mamba2_bias": (  # every bias, limits of the time step
        "Mamba2",
        dict(
            num_heads=4,
            head_dim=16,
            state_size=20,
            n_groups=2,
            conv_kernel=3,
            use_bias=True,
            time_step_limit=(0.4, 0.9),
            tie_word_embeddings=True,
        ),
        torch.float32,
        "new",
    ),
    "qwen3_5": (
        "Qwen3_5",
        dict(QWEN35, intermediate_size=48, layer_types=["linear_attention", "full_attention"] * 2),
        torch.bfloat16,
        "new",
    ),
    "qwen3_5_hub": ("Qwen3_5", dict(QWEN35, intermediate_size=48, linear_conv_kernel_dim=3), torch.bfloat16, "hub"),
    "qwen3_5_moe": ("Qwen3_5Moe", QWEN35_MOE, torch.bfloat16, "new"),
    "qwen3_5_moe_hub": ("Qwen3_5Moe", QWEN35_MOE, torch.bfloat16, "hub"),
    "qwen3_next_all": (  # as a GGUF can say it
        "Qwen3Next",
        dict(QWEN35_MOE, num_hidden_layers=2, layer_types=["linear_attention", "full_attention"]),
        torch.bfloat16,
        "new",
    ),
    "qwen3_next_fp8": (  # matrices whose parts take turns, with a scale for each row
        "Qwen3Next",
        dict(QWEN35_MOE, num_hidden_layers=2, layer_types=["linear_attention", "full_attention"]),
        torch.bfloat16,
        "new",
    ),
    "qwen3_next": (
        "Qwen3Next",
        dict(QWEN35_MOE, intermediate_size=40, mlp_only_layers=[1]),
        torch.bfloat16,
        "new",
    ),
    "olmo_hybrid": (  # as save_pretrained writes it: convolutions in three equal pieces; without positions
        "OlmoHybrid",
        dict(OLMO_HYBRID, rope_parameters=dict(rope_type="default", rope_theta=None)),
        torch.bfloat16,
        "new",
    ),
    "olmo_hybrid_rope": (  # by the names of the class, and one convolution
        "OlmoHybrid",
        dict(OLMO_HYBRID, num_hidden_layers=2, layer_types=["full_attention", "linear_attention"], attention_bias=True,
             linear_allow_neg_eigval=False, linear_conv_kernel_dim=3, rope_parameters=plain(500.0)),
        torch.bfloat16,
        "class",
    ),
    "recurrent_gemma": (
        "RecurrentGemma",
        dict(num_hidden_layers=4, block_types=["recurrent", "attention", "recurrent"], lru_width=48,
             num_key_value_heads=1, attention_window_size=9, logits_soft_cap=3.0, rope_parameters=plain(100.0)),
        torch.bfloat16,
        "new",
    ),
    "recurrent_gemma_f32": (  # whose embeddings are multiplied by a number of BF16 all the same; as the hub has it
        "RecurrentGemma",
        dict(num_hidden_layers=3, attention_window_size=24, conv1d_width=3, attention_bias=True,
             hidden_activation="gelu", rope_parameters=plain(100.0)),
        torch.float32,
        "old",
    ),
    "zamba2": (  # three uses of two blocks, with thin matrices beside all of theirs
        "Zamba2",
        dict(ZAMBA2, num_hidden_layers=5, layers_block_type=["mamba", "hybrid", "mamba", "hybrid", "hybrid"],
             num_mem_blocks=2, use_shared_attention_adapter=True, use_mem_rope=True, rope_parameters=plain(100.0)),
        torch.bfloat16,
        "new",
    ),
    "zamba2_one": (  # one block, in the last layer too; without positions
        "Zamba2",
        dict(ZAMBA2, num_hidden_layers=3, layers_block_type=["hybrid", "mamba", "hybrid"], mamba_ngroups=1,
             intermediate_size=None, hidden_act="silu"),
        torch.bfloat16,
        "new",
    ),
    "nemotron_h": (
        "NemotronH",
        dict(NEMOTRON_H, layers_block_type=["mamba", "mlp", "attention", "mlp", "mamba"], mlp_bias=True, use_bias=True,
             intermediate_size=48),
        torch.bfloat16,
        "new",
    ),
    "nemotron3": (  # whose experts work in a narrower space
        "NemotronH",
        dict(NEMOTRON_H, **NEMOTRON3, moe_latent_size=24),
        torch.bfloat16,
        "new",
    ),
    "nemotron3_heads": (  # the same with heads that a GPU has
        "NemotronH",
        dict(NEMOTRON_H | NEMOTRON3, head_dim=16, moe_latent_size=24),
        torch.bfloat16,
        "new",
    ),
    "nemotron3_groups": (
        "NemotronH",
        dict(NEMOTRON_H, **(NEMOTRON3 | dict(n_routed_experts=8, n_group=4, topk_group=2, norm_topk_prob=False))),
        torch.bfloat16,
        "pattern",
    ),
}

# As MODELS, in the order of the alphabet. Here the name gives the seed, so that more may be added anywhere.
FAMILIES = {
    "apertus": (
        "Apertus",
        dict(
            attention_bias=True,
            rope_parameters=dict(
                rope_type="llama3",
                rope_theta=500.0,
                factor=4.0,
                low_freq_factor=1.0,
                high_freq_factor=4.0,
                original_max_position_embeddings=16,
            ),
        ),
        torch.bfloat16,
        "old",
    ),
    "apertus_plain": ("Apertus", dict(), torch.bfloat16, "absent"),
    "arcee": ("Arcee", dict(attention_bias=True, rope_parameters=plain(500.0)), torch.bfloat16, "old"),
    "cohere": (
        "Cohere",
        dict(attention_bias=True, intermediate_size=56, logit_scale=0.3, rope_parameters=plain(1000.0)),
        torch.bfloat16,
        "new",
    ),
    "cohere2": (
        "Cohere2",
        dict(
            intermediate_size=56,
            num_hidden_layers=4,  # the last without positions
            sliding_window=9,
            logit_scale=0.3,
            rope_parameters=plain(1000.0),
        ),
        torch.bfloat16,
        "old",
    ),
    "ernie4_5": (
        "Ernie4_5",
        dict(head_dim=16, tie_word_embeddings=True, rope_parameters=plain(500.0)),
        torch.bfloat16,
        "old",
    ),
    "exaone4": (  # layers 0 to 2 are windowed and rotated, layer 3 neither
        "Exaone4",
        dict(num_hidden_layers=4, intermediate_size=64, sliding_window=11, rope_parameters=LLAMA3),
        torch.bfloat16,
        "new",
    ),
    "exaone4_full": (
        "Exaone4",
        dict(sliding_window=None, layer_types=["full_attention"] * 2, tie_word_embeddings=True,
             rope_parameters=LLAMA3),
        torch.bfloat16,
        "old",
    ),
    "falcon": (  # one key head, one norm
        "Falcon",
        dict(ffn_hidden_size=56, rope_parameters=plain(500.0)),
        torch.bfloat16,
        "old",
    ),
    "falcon_grouped": (
        "Falcon",
        dict(new_decoder_architecture=True, num_kv_heads=2, bias=True, rope_parameters=plain(500.0)),
        torch.bfloat16,
        "new",
    ),
    "gemma": ("Gemma", dict(head_dim=16, hidden_act="gelu", pad_token_id=0, rope_parameters=plain(500.0)), torch.bfloat16, "old"),
    "gpt_neox": (
        "GPTNeoX",
        dict(intermediate_size=56, num_key_value_heads=4, rope_parameters=dict(plain(500.0), partial_rotary_factor=0.5)),
        torch.bfloat16,
        "old",
    ),
    "gpt_neox_serial": (  # attention, then the MLP
        "GPTNeoX",
        dict(
            intermediate_size=56,
            num_key_value_heads=4,
            use_parallel_residual=False,
            attention_bias=False,
            tie_word_embeddings=True,
            rope_parameters=dict(plain(500.0), partial_rotary_factor=0.25),
        ),
        torch.bfloat16,
        "new",
    ),
    "gemma2": (
        "Gemma2",
        dict(
            head_dim=16,
            intermediate_size=56,
            num_hidden_layers=3,
            sliding_window=9,
            query_pre_attn_scalar=16,  # as a GGUF can say it
            attn_logit_softcapping=1.5,  # so low that they bend most scores and logits
            final_logit_softcapping=2.0,
            pad_token_id=0,
            rope_parameters=plain(1000.0),
        ),
        torch.bfloat16,
        "old",
    ),
    "gemma2_types": (
        "Gemma2",
        dict(
            head_dim=16,
            intermediate_size=56,
            sliding_window=9,
            query_pre_attn_scalar=40,
            attn_logit_softcapping=0.7,
            final_logit_softcapping=None,
            layer_types=["full_attention", "sliding_attention"],
            pad_token_id=0,
            tie_word_embeddings=False,
            rope_parameters=plain(1000.0),
        ),
        torch.bfloat16,
        "new",
    ),
    "gemma3n": (  # the last two layers read keys of the two before; the first two cut their gates
        "Gemma3n",
        dict(
            intermediate_size=24,
            num_hidden_layers=4,
            head_dim=16,
            sliding_window=9,
            pad_token_id=0,
            vocab_size_per_layer_input=90,  # ids behind it count as 0
            hidden_size_per_layer_input=8,
            layer_types=["sliding_attention", "full_attention"] * 2,
            num_kv_shared_layers=2,
            laurel_rank=12,
            activation_sparsity_pattern=[0.7, 0.9, 0.0, 0.0],
            final_logit_softcapping=3.0,
            altup_num_inputs=4,
            rope_parameters=dict(full_attention=plain(3000.0), sliding_attention=plain(100.0)),
        ),
        torch.bfloat16,
        "new",
    ),
    "gemma4": (  # values of the full layers are made of what their keys are, which are fewer
        "Gemma4",
        dict(
            GEMMA4,
            layer_types=["full_attention", "sliding_attention", "sliding_attention", "full_attention"],
            attention_k_eq_v=True,
            num_global_key_value_heads=1,
            hidden_size_per_layer_input=0,
            final_logit_softcapping=2.0,
        ),
        torch.bfloat16,
        "new",
    ),
    "gemma4_e2b": (  # embeddings for each layer; the last two layers read keys of the two before
        "Gemma4",
        dict(
            GEMMA4 | dict(intermediate_size=24),
            layer_types=["sliding_attention", "full_attention"] * 2,
            hidden_size_per_layer_input=12,
            vocab_size_per_layer_input=96,
            num_kv_shared_layers=2,
            use_double_wide_mlp=True,
        ),
        torch.bfloat16,
        "hub",
    ),
    "gemma4_moe": (
        "Gemma4",
        dict(
            GEMMA4 | dict(num_hidden_layers=3),
            layer_types=["sliding_attention", "sliding_attention", "full_attention"],
            attention_k_eq_v=True,
            num_global_key_value_heads=2,
            hidden_size_per_layer_input=0,
            enable_moe_block=True,
            num_experts=6,
            top_k_experts=2,
            moe_intermediate_size=16,
        ),
        torch.bfloat16,
        "new",
    ),
    "glm": (
        "Glm",
        dict(head_dim=16, pad_token_id=0, rope_parameters=dict(plain(500.0), partial_rotary_factor=0.5)),
        torch.bfloat16,
        "new",
    ),
    "glm4": (
        "Glm4",
        dict(head_dim=16, pad_token_id=0, rope_parameters=dict(plain(500.0), partial_rotary_factor=0.5)),
        torch.bfloat16,
        "old",
    ),
    "gpt_oss": ("GptOss", dict(GPT_OSS, swiglu_limit=0.9), torch.bfloat16, "old"),
    "gpt_oss_mxfp4": (  # with the limit that a GGUF does not say
        "GptOss",
        dict(
            GPT_OSS,
            hidden_size=64,
            intermediate_size=32,
            num_attention_heads=4,
            num_local_experts=3,
            num_experts_per_tok=2,
        ),
        torch.bfloat16,
        "old",
    ),
    "gpt_oss_experts": (  # a tensor for each expert, as other quantisers write them
        "GptOss",
        dict(GPT_OSS, swiglu_limit=0.9, swiglu_alpha=1.3, layer_types=["full_attention", "sliding_attention"]),
        torch.bfloat16,
        "new",
    ),
    "granite": (
        "Granite",
        dict(
            tie_word_embeddings=True,
            embedding_multiplier=3.5,
            residual_multiplier=0.4,
            attention_multiplier=0.6,
            logits_scaling=2.5,
            rope_parameters=plain(10000.0),
        ),
        torch.bfloat16,
        "old",
    ),
    "granite_bias": (
        "Granite",
        dict(
            attention_bias=True,
            intermediate_size=56,
            mlp_bias=True,
            residual_multiplier=1.7,
            attention_multiplier=0.2,
            rope_parameters=plain(10000.0),
        ),
        torch.float32,
        "new",
    ),
    "granite_swa": (
        "GraniteSWA",
        dict(
            num_hidden_layers=3,
            intermediate_size=40,
            tie_word_embeddings=False,
            sliding_window=9,
            layer_types=["full_attention", "sliding_attention", "full_attention"],
            layer_rope_theta=[500.0, 500.0, 0],
            rope_parameters=plain(10000.0),
            **MULTIPLIERS,
        ),
        torch.bfloat16,
        "new",
    ),
    "hunyuan": (
        "HunYuanDenseV1",
        dict(
            head_dim=16,
            attention_bias=True,
            tie_word_embeddings=True,
            rope_parameters=dict(rope_type="dynamic", rope_theta=100.0, alpha=8.0, factor=1.0),
        ),
        torch.bfloat16,
        "old",
    ),
    "internlm3": (  # whose class is Llama's
        "InternLM3",
        dict(head_dim=12, rope_parameters=dict(rope_type="dynamic", rope_theta=500.0, factor=6.0)),
        torch.bfloat16,
        "old",
    ),
    "ministral": (
        "Ministral",
        dict(
            head_dim=16,
            sliding_window=11,
            layer_types=["full_attention", "sliding_attention"],
            rope_parameters=plain(500.0),
        ),
        torch.bfloat16,
        "new",
    ),
    "ministral3": ("Ministral3", MINISTRAL3, torch.bfloat16, "new"),
    "mistral3_hub": ("Ministral3", dict(MINISTRAL3, tie_word_embeddings=True), torch.bfloat16, "wrapped"),
    "nemotron": (
        "Nemotron",
        dict(head_dim=12, rope_parameters=dict(plain(500.0), partial_rotary_factor=0.5)),
        torch.bfloat16,
        "new",
    ),
    "olmo3": (  # its last layer is full and has YaRN
        "Olmo3",
        dict(
            num_hidden_layers=4,
            intermediate_size=64,
            sliding_window=11,
            pad_token_id=0,
            rope_parameters=dict(
                full_attention=dict(
                    rope_type="yarn",
                    rope_theta=500.0,
                    factor=4.0,
                    beta_fast=4.0,
                    original_max_position_embeddings=64,
                ),
                sliding_attention=plain(500.0),
            ),
        ),
        torch.bfloat16,
        "old",
    ),
    "phi": (
        "Phi",
        dict(rope_parameters=dict(plain(500.0), partial_rotary_factor=0.5)),
        torch.bfloat16,
        "old",
    ),
    "phi3": (  # 6 of 8 dimensions
        "Phi3",
        dict(sliding_window=11, pad_token_id=0, rope_parameters=dict(plain(500.0), partial_rotary_factor=0.75)),
        torch.bfloat16,
        "old",
    ),
    "phi3_long": ("Phi3", longrope(32), torch.bfloat16, "old"),
    "phi3_short": ("Phi3", longrope(64), torch.bfloat16, "new"),  # all tokens are within the original context
    "seed_oss": (
        "SeedOss",
        dict(head_dim=16, attention_out_bias=True, rope_parameters=plain(500.0)),
        torch.bfloat16,
        "new",
    ),
    "stablelm": (
        "StableLm",
        dict(use_qkv_bias=True, rope_parameters=dict(plain(500.0), partial_rotary_factor=0.25)),
        torch.bfloat16,
        "old",
    ),
    "stablelm_parallel": (
        "StableLm",
        dict(use_parallel_residual=True, rope_parameters=dict(plain(500.0), partial_rotary_factor=0.25)),
        torch.bfloat16,
        "new",
    ),
    "starcoder2": (
        "Starcoder2",
        dict(rope_parameters=plain(1000.0)),
        torch.bfloat16,
        "old",
    ),
    "starcoder2_window": (
        "Starcoder2",
        dict(sliding_window=9, use_bias=False, tie_word_embeddings=False, rope_parameters=plain(1000.0)),
        torch.float16,
        "new",
    ),
}
# As POOLED, in the order of the alphabet; the name gives the seed.
ENCODERS = {
    "bert_dense": ("BertModel", dict(), "cls"),
    "colbert": ("HF_ColBERT", dict(), "tokens"),
    "colbert_modernbert": (
        "ModernBertModel",
        dict(
            local_attention=10,
            pad_token_id=0,
            cls_token_id=1,
            sep_token_id=2,
            rope_parameters=dict(full_attention=plain(500.0), sliding_attention=plain(20.0)),
        ),
        "tokens",
    ),
    "embedding_gemma": (  # windows of ten are five keys on each side
        "Gemma3TextModel",
        dict(
            GEMMA3,
            intermediate_size=24,
            num_hidden_layers=6,
            sliding_window=10,
            sliding_window_pattern=6,
            query_pre_attn_scalar=16,
            use_bidirectional_attention=True,
        ),
        "mean",
    ),
    "eurobert": ("EuroBertModel", dict(pad_token_id=0, mask_token_id=3, rope_parameters=plain(500.0)), "mean"),
    "gte": ("GteModel", dict(rope_parameters=plain(500.0)), "cls"),
    "gte_classifier": (
        "GteForSequenceClassification",
        dict(type_vocab_size=0, num_labels=1, rope_parameters=plain(500.0)),
        None,
    ),
    "jina_v3": ("JinaEmbeddingsV3Model", dict(rope_parameters=plain(500.0)), "mean"),
    "modernbert": (  # five keys on each side in two layers of four
        "ModernBertModel",
        dict(
            num_hidden_layers=4,
            local_attention=10,
            pad_token_id=0,
            cls_token_id=1,
            sep_token_id=2,
            rope_parameters=dict(full_attention=plain(500.0), sliding_attention=plain(20.0)),
        ),
        "mean",
    ),
    "nomic_bert": ("NomicBertModel", dict(rope_parameters=plain(100.0)), "mean"),
}
# Matrices behind the pooling: outputs, activation, whether there is a bias.
DENSE = {
    "bert_dense": [(24, "activation.Tanh", True)],
    "colbert": [(12, "linear.Identity", False)],
    "colbert_modernbert": [(12, "linear.Identity", False)],
    "embedding_gemma": [(48, "linear.Identity", False), (32, "linear.Identity", False)],
}
# What reads text in a model that reads images as well: name -> how its tensors are called.
WRAPPED = {"gemma3_hub": "language_model.model.", "gemma3_v5": "model.language_model."}
TEXT_LENGTHS = [1, 2, 17, 40, 5, 33]


def randomise(model, generator):
    """Matrices at about 1.3 / sqrt(K), norms near 1, biases large enough to be seen."""
    zero = ("GemmaFor", "Gemma2For", "Gemma3F", "Gemma3T", "NemotronFor", "Qwen3_5", "RecurrentGemma", "Qwen3Next", "Step3p7")  # whose norms are 1 + w
    one = 0 if type(model).__name__.startswith(zero) else 1
    with torch.no_grad():
        for name, p in model.named_buffers():
            if name.endswith("layer_scalar"):
                p.copy_(0.9 + torch.randn(p.shape, generator=generator) * 0.2)
            elif name.endswith("act_fn.beta"):  # of xIELU, different in each layer
                p.copy_(0.5 + torch.randn(p.shape, generator=generator) * 0.1)
            elif name.endswith("act_fn.eps"):
                p.copy_(-0.1 - torch.rand(p.shape, generator=generator) * 0.1)
        for name, p in model.named_parameters():
            noise = torch.randn(p.shape, generator=generator)
            if name.endswith("e_score_correction_bias"):
                p.copy_(noise * 0.1)
            elif name.endswith(("A_log", "recurrent_param")):  # states that last
                p.copy_(noise - 2)
            elif name.endswith(("conv1d.weight", "conv_1d.weight")):
                p.copy_(noise * 0.6)
            elif name.endswith("bias"):
                p.copy_(noise * 0.3)
            elif name.endswith("q_norm.weight") and type(model).__name__.startswith(("Gemma3n", "Gemma4")):
                p.copy_(0.4 + noise * 0.1)  # scores are not scaled
            elif name.endswith("expert_bias"):
                p.copy_(noise * 0.1)
            elif name.endswith("sinks") and not type(model).__name__.startswith("GptOss"):
                p.copy_(noise)
            elif p.dim() == 1:
                p.copy_((1 if name.endswith("linear_attn.norm.weight") else one) + noise * 0.2)
            elif "shared_transformer.self_attn" in name and any(x in name for x in ("q_", "k_")):
                p.copy_(noise * 0.6 / p.shape[-1] ** 0.5)  # sharper scores would multiply rounding errors
            else:
                p.copy_(noise * 1.3 / p.shape[-1] ** 0.5)
        for name, b in model.named_buffers():  # of which BF16 would make one number
            if name.endswith("feed_forward.expert_bias"):  # LFM2
                b.copy_(torch.randn(b.shape, generator=generator) * 0.1)
            if name.endswith("e_score_correction_bias"):
                b.copy_(8 + torch.randn(b.shape, generator=generator) * 0.03)


def config_json(config, spelling):
    null = {"sliding_window"} if config.model_type == "exaone4" else {}  # what is not the same as absent
    c = {k: v for k, v in config.to_dict().items() if v is not None or k.endswith("softcapping") or k in null}
    for key in ("transformers_version", "dtype", "_name_or_path"):
        c.pop(key, None)
    if c["model_type"] == "gemma4_text":  # which the hub says in two numbers
        full = next(iter(c.pop("per_layer_config").values()))
        c["global_head_dim"] = full["head_dim"]
        c["num_global_key_value_heads"] = full.get("num_key_value_heads")
    if config.model_type == "nemotron_h":  # as older configs say the layers
        c.pop("num_hidden_layers", None)
    if spelling == "pattern":
        c["num_hidden_layers"] = len(c["layers_block_type"])
        kinds = dict(linear_attention="M", full_attention="*", moe="E", mlp="-")
        c["hybrid_override_pattern"] = "".join(kinds[k] for k in c.pop("layers_block_type"))
    if spelling == "step3p5":
        c = step3p5_config(c)
    if spelling == "mimo_v2":
        c = mimo_v2_config(c)
    if spelling == "kimi":  # layers are counted from 1
        kinds = c.pop("layer_types")
        c["linear_attn_config"] = dict(
            full_attn_layers=[i + 1 for i, k in enumerate(kinds) if k == "full_attention"],
            kda_layers=[i + 1 for i, k in enumerate(kinds) if k != "full_attention"],
            head_dim=c.pop("linear_head_dim"), num_heads=c.pop("linear_num_heads"),
            short_conv_kernel_size=c.pop("linear_conv_kernel_dim"))
        c["first_k_dense_replace"] = c.pop("mlp_layer_types").count("dense")
    if spelling == "bare":
        for key in ("rope_parameters", "layer_types", "mlp_layer_types", "num_attention_heads_per_layer", "sliding_window"):
            c.pop(key)
    if spelling == "ling":  # layers by the size of their groups, a head of KDA by its own name
        c["head_dim"] = c.pop("linear_head_dim")
        for key in ("layer_types", "mlp_layer_types", "linear_num_heads", "linear_conv_kernel_dim", "rope_parameters"):
            c.pop(key)
        c["rope_theta"] = config.rope_parameters["rope_theta"]
    if spelling == "hub":  # the model of text in one that reads images as well
        kind = c["model_type"].removesuffix("_text")
        wrapped = [a.replace("ForCausalLM", "ForConditionalGeneration") for a in c.pop("architectures")]
        c = dict(architectures=wrapped, model_type=kind if kind != "step3p5" else "step3p7", text_config=c)
    if spelling == "absent":  # nothing of rotations
        c.pop("rope_parameters")
    if spelling == "old":  # as transformers before 5 wrote it
        rope = dict(c.pop("rope_parameters"))
        if "sliding_attention" in rope:
            if config.model_type.startswith("gemma"):
                c["rope_local_base_freq"] = rope["sliding_attention"]["rope_theta"]
            rope = dict(rope["full_attention"])
            c.pop("layer_types")
        if c["model_type"] in ("cohere2", "cohere2_moe", "gemma2", "lfm2"):
            c.pop("layer_types")
        if c["model_type"] == "lfm2":
            c["block_ff_dim"], c["tie_embedding"] = c["intermediate_size"], c.pop("tie_word_embeddings")
        neox = c["model_type"] == "gpt_neox"
        c["rotary_emb_base" if neox else "rope_theta"] = rope.pop("rope_theta")
        if "partial_rotary_factor" in rope:
            c["rotary_pct" if neox else "partial_rotary_factor"] = rope.pop("partial_rotary_factor")
        c["rope_scaling"] = None if rope["rope_type"] == "default" else rope
    return json.dumps(c, indent=1, sort_keys=True) + "\n"


def step3p5_config(c):
    """As the hub has it: lists by layer, with an entry for one that predicts further tokens, and other names."""
    c = {k: v for k, v in c.items() if k not in ("per_layer_config", "mtp_layer_types", "mtp_mlp_layer_types")}
    kinds = c["layer_types"] + ["sliding_attention"]
    rope, sparse = c.pop("rope_parameters"), c.pop("mlp_layer_types")
    c |= dict(
        architectures=["Step3p5ForCausalLM"],
        num_nextn_predict_layers=1,
        layer_types=kinds,
        rope_theta=[rope[k]["rope_theta"] for k in kinds],
        partial_rotary_factors=[rope[k]["partial_rotary_factor"] for k in kinds],
        rope_scaling={k: v for k, v in rope["full_attention"].items() if k not in ("rope_theta", "partial_rotary_factor")},
        yarn_only_types=["full_attention"],
        moe_layers_enum=",".join(str(i) for i, kind in enumerate(sparse) if kind == "sparse"),
        num_attention_groups=c.pop("num_key_value_heads"),
        attention_other_setting=dict(attention_type="sliding_attention", num_attention_heads=c.pop("num_sliding_attention_heads"),
                                     num_attention_groups=2, head_dim=c["head_dim"]),
        moe_num_experts=c.pop("n_routed_experts"),
        moe_top_k=c.pop("num_experts_per_tok"),
        swiglu_limits=c["swiglu_limits"] + [0.0],
        swiglu_limits_shared=c["swiglu_limits_shared"] + [0.0],
        moe_router_activation="sigmoid",
        norm_expert_weight=True,
        use_head_wise_attn_gate=True,
        use_moe_router_bias=True,
        zero_centered=True,
    )
    c.pop("num_local_experts", None)
    return c


def one_by_one(stored):
    """Experts as the hub has them, a tensor each: transformers keeps them in one."""
    out = {}
    for name, t in stored.items():  # of Gemma 4 in the hub too
        if not name.endswith((".mlp.experts.gate_up_proj", ".mlp.experts.down_proj")):
            out[name] = t
            continue
        stem = name[: name.rindex(".")]
        for e in range(t.shape[0]):
            if name.endswith("down_proj"):
                out[f"{stem}.{e}.down_proj.weight"] = t[e].contiguous()
            else:
                gate, up = t[e].chunk(2, 0)
                out[f"{stem}.{e}.gate_proj.weight"] = gate.contiguous()
                out[f"{stem}.{e}.up_proj.weight"] = up.contiguous()
    return out


def as_hub(model, dtype):
    """The tensors as the hub has them; transformers renames and splits what it keeps in another form."""
    with tempfile.TemporaryDirectory() as folder:
        model.save_pretrained(folder)
        stored = load_file(pathlib.Path(folder) / "model.safetensors")
    exact = ("e_score_correction_bias", "expert_bias", "router_bias")  # which choose experts
    return {k: t if k.endswith(exact) else t.to(dtype) for k, t in stored.items() if "vi" not in k.split(".")[0]}


def gpt_oss_by_expert(stored):
    """One tensor for each matrix and bias of an expert; transformers has columns of gate and up in turns."""
    out = {}
    for name, t in stored.items():
        stem, _, what = name.rpartition(".experts.")
        if not stem:
            out[name] = t
            continue
        end = "bias" if what.endswith("_bias") else "weight"
        for e in range(t.shape[0]):
            x = t[e] if end == "bias" else t[e].T
            parts = dict(gate_proj=x[::2], up_proj=x[1::2]) if "gate_up" in what else dict(down_proj=x)
            for part, y in parts.items():
                out[f"{stem}.experts.{e}.{part}.{end}"] = y.contiguous()
    return out


def to_mxfp4(stored, generator):
    """Random codes and scales in place of the experts' matrices; stored gets transformers' reading of them."""
    from transformers.integrations.mxfp4 import convert_moe_packed_tensors

    packed = {}
    for name, t in list(stored.items()):
        if not name.endswith((".experts.gate_up_proj", ".experts.down_proj")):
            packed[name] = t
            continue
        n, cols, rows = t.shape
        low = 123 if "gate_up" in name else 118  # so that some of the gates are over the limit
        blocks = torch.randint(0, 256, (n, rows, cols // 32, 16), generator=generator, dtype=torch.uint8)
        scales = torch.randint(low, low + 4, (n, rows, cols // 32), generator=generator).to(torch.uint8)
        packed[name + "_blocks"], packed[name + "_scales"] = blocks, scales
        stored[name] = convert_moe_packed_tensors(blocks.clone(), scales.clone(), dtype=torch.float32).contiguous()
        assert stored[name].shape == t.shape
    return packed


def delta_rule_in_double(q, k, v, g, beta, **_):
    """The gated delta rule token by token, from its formula: what float32 makes of it is noise."""
    dtype, share = v.dtype, v.shape[2] // k.shape[2]
    q, k, v, g, beta = (x.double() for x in (q, k, v, g, beta))
    q, k = (x.repeat_interleave(share, 2) for x in (q, k))
    q, k = (x / (x.pow(2).sum(-1, keepdim=True) + 1e-6).sqrt() for x in (q, k))
    state = torch.zeros(v.shape[0], v.shape[2], k.shape[-1], v.shape[-1], dtype=torch.float64)
    out = torch.zeros_like(v)
    for t in range(v.shape[1]):
        state = state * g[:, t, :, None, None].exp()
        new = beta[:, t, :, None] * (v[:, t] - torch.einsum("bhkv,bhk->bhv", state, k[:, t]))
        state = state + torch.einsum("bhk,bhv->bhkv", k[:, t], new)
        out[:, t] = torch.einsum("bhkv,bhk->bhv", state, q[:, t]) / k.shape[-1] ** 0.5
    return out.to(dtype), None


def to_fp8(stored):
    """FP8 codes with a scale for each row in place of the fused matrices; stored gets what they mean."""
    packed = {}
    latent = ("q_b_proj.weight", "kv_a_proj_with_mqa.weight", "kv_b_proj.weight")
    for name, t in stored.items():
        if name.endswith(("self_attn.q_proj.weight", "in_proj_qkvz.weight", "in_proj_ba.weight", *latent)):
            scale = t.float().abs().amax(1, keepdim=True) / 448
            if name.endswith(latent):  # a power of two: part of kv_b becomes BF16 where it is loaded
                scale = 2.0 ** scale.log2().ceil()
            packed[name], packed[name + "_scale"] = (t.float() / scale).to(torch.float8_e4m3fn), scale
            stored[name] = packed[name].float() * scale
    return packed


FP8_ROWS = 16  # of a block of scales: those of a rank of MIMO_RANKS are 2.75 blocks in full layers


def qkv_by_rank(config, stored):
    """q, k and v of a layer in one tensor: those of the first rank, then those of the second one, and so on."""
    ranks, out = config.num_key_value_heads, {}
    for name, t in stored.items():
        if name.endswith("self_attn.q_proj.weight"):
            qkv = [stored[name.replace("q_proj", p)].chunk(ranks) for p in ("q_proj", "k_proj", "v_proj")]
            out[name.replace("q_proj", "qkv_proj")] = torch.cat([x for rank in zip(*qkv) for x in rank])
        elif not name.endswith(("k_proj.weight", "v_proj.weight")):
            out[name] = t
    return out


def of_ranks(config, fused):
    """The same of a fused tensor's parts: q, k, v."""
    dims = (config.num_attention_heads * config.head_dim, config.head_dim, config.v_head_dim)
    rest = fused.shape[0] - dims[0]
    kv = rest // (config.head_dim + config.v_head_dim)
    sizes = [n // config.num_key_value_heads for n in (dims[0], kv * dims[1], kv * dims[2])]
    parts = zip(*(rank.split(sizes) for rank in fused.chunk(config.num_key_value_heads)))
    return dict(zip("qkv", map(torch.cat, parts)))


def to_fp8_blocks(config, stored):
    """Codes and scales of blocks, which begin anew with each rank, of a model's fused q, k and v; stored gets what
    they mean."""
    packed = {}
    for name, fused in qkv_by_rank(config, stored).items():
        if not name.endswith("qkv_proj.weight"):
            continue
        codes, scales, values = [], [], []
        for rank in fused.float().chunk(config.num_key_value_heads):
            for block in rank.split(FP8_ROWS):
                scale = block.abs().max() / 448
                codes.append((block / scale).to(torch.float8_e4m3fn))
                scales.append(scale.reshape(1, 1))
                values.append(codes[-1].float() * scale)
        packed[name], packed[name + "_scale_inv"] = torch.cat(codes), torch.cat(scales)
        for p, t in of_ranks(config, torch.cat(values)).items():
            stored[name.replace("qkv_proj", p + "_proj")] = t
    return packed


def mimo_v2_config(c):
    """As the hub has it: 0 and 1 for each layer, and the keys before a row's own."""
    rope = c.pop("rope_parameters")
    windowed = [int(t == "sliding_attention") for t in c.pop("layer_types")]
    return c | dict(
        architectures=["MiMoV2ForCausalLM"],
        model_type="mimo_v2",
        add_full_attention_sink_bias=False,
        add_swa_attention_sink_bias=True,
        attention_projection_layout="fused_qkv",
        hybrid_layer_pattern=windowed,
        moe_layer_freq=[int(t == "sparse") for t in c.pop("mlp_layer_types")],
        layernorm_epsilon=c.pop("rms_norm_eps"),
        num_nextn_predict_layers=3,
        partial_rotary_factor=0.334,
        rope_parameters=rope["full_attention"],
        rope_theta=rope["full_attention"]["rope_theta"],
        swa_rope_theta=rope["sliding_attention"]["rope_theta"],
        sliding_window=c["sliding_window"] - 1,
        sliding_window_size=c["sliding_window"] - 1,
        swa_head_dim=c["head_dim"],
        swa_num_attention_heads=c["num_attention_heads"],
        swa_num_key_value_heads=2 * c["num_key_value_heads"],
        swa_v_head_dim=c["v_head_dim"],
        scoring_func="sigmoid",
        topk_method="noaux_tc",
        n_shared_experts=None,
    )


def noise_of(model, ids, logits, chunked, module):
    """How far logits move, in their standard deviations, where nothing but rounding differs."""
    step, noise = module.torch_chunk_gated_delta_rule, {}
    nudged = copy.deepcopy(model)
    generator = torch.Generator().manual_seed(1)
    with torch.no_grad():
        for p in nudged.parameters():  # by a rounding error
            p.mul_(1 + torch.randn(p.shape, generator=generator) * 2**-24)
    ways = dict(chunks=(model, chunked), doubles=(model, delta_rule_in_double), nudged=(nudged, step))
    for how, (m, rule) in ways.items():
        module.torch_chunk_gated_delta_rule = rule
        with torch.no_grad():
            error = m(ids, use_cache=False).logits[0].float() - logits
        rows = error.norm(dim=1) / logits.norm(dim=1)  # of which tests allow 1e-5
        noise[how] = float(max(error.abs().max() / logits.std(), 8 * rows.max()))
    module.torch_chunk_gated_delta_rule = chunked
    return noise


def rounding_noise(model, ids, logits):
    """How far logits of a position move, in their length, where each weight does by a rounding error."""
    nudged, generator = copy.deepcopy(model), torch.Generator().manual_seed(1)
    with torch.no_grad():
        for p in nudged.parameters():
            p.mul_(1 + torch.randn(p.shape, generator=generator) * 2**-24)
        error = nudged(ids, use_cache=False).logits[0].float() - logits
    return float((error.norm(dim=1) / logits.norm(dim=1)).max())


def choice_gap(model, ids, top_k, width=N_TOKENS):
    """How near an index comes to choosing otherwise: the least difference between the last score that is chosen and the
    first that is not, in standard deviations of the row's. width: scores of a row."""
    gaps, topk = [], torch.Tensor.topk

    def watched(x, k, *more, **named):
        if k == top_k and x.shape[-1] == width:
            for row in x.reshape(-1, width):
                seen = row[row > torch.finfo(row.dtype).min].double().sort(descending=True).values
                if len(seen) > k:
                    gaps.append(float((seen[k - 1] - seen[k]) / seen.std()))
        return topk(x, k, *more, **named)

    torch.Tensor.topk = watched
    try:
        with torch.no_grad():
            model(ids, use_cache=False)
    finally:
        torch.Tensor.topk = topk
    return min(gaps), len(gaps)


def logits_and_experts(model, ids):
    """Logits of each position, and the experts of each row that layers choose on the way to them."""
    chosen, hooks = [], []
    for m in model.modules():
        kind = type(m).__name__
        if kind == "Llama4Router":
            hooks.append(m.register_forward_hook(lambda m, _, out: chosen.append(out[1].topk(m.top_k).indices)))
        elif kind.endswith("Experts") and kind != "Llama4TextExperts":  # given rows, their experts and weights
            hooks.append(m.register_forward_pre_hook(lambda _, args: chosen.append(args[1])))
    with torch.no_grad():
        logits = model(ids, use_cache=False).logits[0].float()
    for hook in hooks:
        hook.remove()
    return logits, chosen


def write_experts(folder, chosen):
    if not chosen:
        return
    rows = torch.stack([x.reshape(-1, x.shape[-1]).sort(-1).values for x in chosen])
    assert rows.max() < 256
    (folder / "experts.bin").write_bytes(struct.pack("<3i", *rows.shape) + rows.to(torch.uint8).numpy().tobytes())


def generate(name, seed):
    family, args, dtype, spelling = (MODELS | MORE | EXPERTS | RECURRENT | FAMILIES)[name]
    kind = family + "TextConfig" if family in (
        "Gemma3", "Gemma3n", "Gemma4", "Llama4", "Qwen3_5", "Qwen3_5Moe", "Step3p7") else family + "Config"
    mambas = dict.fromkeys(("FalconMamba", "Mamba", "Mamba2"), ("hidden_size", "num_hidden_layers"))
    some = dict(mambas, Dbrx=()).get(family)  # others are their own
    small = SMALL if some is None else {k: SMALL[k] for k in ("vocab_size", "bos_token_id", "eos_token_id", *some)}
    config = getattr(transformers, kind)(**{**small, **args})
    config.architectures = [family + "ForCausalLM"]
    config._attn_implementation = "eager"
    of_class = "LlamaForCausalLM" if family == "InternLM3" else family + "ForCausalLM"
    if family == "Step3p7":  # whose text has no class of its own
        vision = dict(hidden_size=8, intermediate_size=8, num_hidden_layers=1, num_attention_heads=1, image_size=28)
        outer = transformers.Step3p7Config(text_config=config, vision_config=vision)
        outer._attn_implementation = "eager"
        model = transformers.Step3p7ForConditionalGeneration(outer).eval()
    else:
        model = getattr(transformers, of_class)(config).eval()
    generator = torch.Generator().manual_seed(seed)
    randomise(model, generator)
    if spelling == "released":  # A.X-K1: nothing is added to the scores that choose
        for name_of, bias in model.named_buffers():
            if name_of.endswith("e_score_correction_bias"):
                bias.zero_()
    stored = {k: v.to(dtype).contiguous() for k, v in model.state_dict().items()
              if not k.endswith("e_score_correction_bias")}
    packed = to_mxfp4(stored, generator) if name == "gpt_oss_mxfp4" else None
    codes = to_fp8(stored) if name.endswith("_fp8") else {}
    blocks = to_fp8_blocks(config, stored) if name == "mimo_v2_blocks" else {}
    model.load_state_dict({k: v.float() for k, v in stored.items()}, strict=False)
    for embedding in model.modules():
        if hasattr(embedding, "embed_scale"):  # which the model rounds to the format it computes in
            embedding.embed_scale.copy_(embedding.embed_scale.to(dtype).float())
    module = sys.modules[type(model).__module__]
    chunked = getattr(module, "torch_chunk_gated_delta_rule", None)
    if chunked is not None:  # which rounds more than the same rule token by token
        module.torch_chunk_gated_delta_rule = module.torch_recurrent_gated_delta_rule
    if family in ("KimiLinear", "BailingHybrid"):  # likewise
        module.chunk_kimi_delta_attention = module.recurrent_kimi_delta_attention
    for mixer in model.modules():  # Nemotron-H and Zamba 2 limit the time step in the first step of a text alone
        if type(mixer).__name__ in ("NemotronHMamba2Mixer", "Zamba2MambaMixer"):
            mixer.time_step_limit = (0.0, float("inf"))
    if family == "Phimoe":  # whose class in transformers 5.23 forgets to say how long the text is: always short factors
        init = model.model.rotary_emb.rope_init_fn
        model.model.rotary_emb.rope_init_fn = lambda config: init(config, seq_len=N_TOKENS)
    ids = torch.randint(0, config.vocab_size, (1, N_TOKENS), generator=generator)
    logits, chosen = logits_and_experts(model.float(), ids)
    if chunked is not None:
        noise = noise_of(model, ids, logits, chunked, module)
        if max(noise.values()) > 5e-5:  # what transformers itself cannot say any better
            return generate(name, seed + 1)
        print(f"{name}: noise " + ", ".join(f"{how} {x:.1e}" for how, x in noise.items()))
    if family == "BailingHybrid":
        noise = rounding_noise(model, ids, logits)
        print(f"{name}: noise {noise:.1e}")
        if noise > 6e-6:  # of which tests allow 1e-5
            return generate(name, seed + 1)
    if hasattr(config, "index_topk"):
        gap, n_rows = choice_gap(model, ids, config.index_topk)
        if gap < 1e-3:  # another order of sums might choose otherwise
            return generate(name, seed + 1)
        print(f"{name}: {n_rows} choices, the narrowest by {gap:.1e}")
    if config.tie_word_embeddings:
        stored.pop("lm_head.weight", None)
    if family != "GptOss":
        stored = as_hub(model, dtype) if name in EXPERTS | RECURRENT and spelling not in ("class", "hub") else stored if name in RECURRENT else one_by_one(stored)
    elif packed is not None:
        stored = packed
        config.quantization_config = dict(
            quant_method="mxfp4",
            modules_to_not_convert=["model.layers.*.self_attn", "model.layers.*.mlp.router", "lm_head"],
        )
    elif name == "gpt_oss_experts":
        stored = gpt_oss_by_expert(stored)

    if codes:
        stored |= codes
        weights = dict(type="float", num_bits=8, strategy="channel", symmetric=True)
        config.quantization_config = dict(
            quant_method="compressed-tensors", format="float-quantized", ignore=["lm_head"],
            config_groups=dict(group_0=dict(targets=["Linear"], weights=weights)))
    if spelling == "mimo_v2":  # beside parts that are not loaded
        stored = qkv_by_rank(config, stored) | blocks
        stored |= {k: torch.ones(8, dtype=dtype) for k in ("model.mtp.layers.0.enorm.weight", "visual.blocks.0.norm1.weight")}
    if blocks:
        config.quantization_config = dict(
            activation_scheme="dynamic", fmt="e4m3", quant_method="fp8", weight_block_size=[FP8_ROWS, 128])
    if family == "GPTNeoX" and spelling == "old":
        stored = {"embed_out.weight" if k == "lm_head.weight" else k: v for k, v in stored.items()}
    if spelling == "released":  # without it; and with a norm that the dense layer does not use
        stored = {k: v for k, v in stored.items() if not k.endswith("e_score_correction_bias")}
        stored["model.layers.0.post_mlp_layernorm.weight"] = torch.ones(config.hidden_size, dtype=dtype)
    if spelling == "kimi":  # transformers saves the MLP of a layer without experts by the name of those with some
        stored = {k if "experts" in k or "_proj" not in k else k.replace("block_sparse_moe", "mlp"): v
                  for k, v in stored.items()}
    if spelling == "hub":
        stored = {k.replace("model.", "model.language_model.", 1): v for k, v in stored.items()}
    if spelling == "hub" and family.startswith("Qwen"):  # what is not loaded
        stored |= {k: torch.ones(8, dtype=dtype) for k in ("model.visual.merger.norm.weight", "mtp.norm.weight")}
        config.mtp_num_hidden_layers = 1
    folder = OUT / name
    folder.mkdir(parents=True, exist_ok=True)
    text = config_json(config, spelling)
    if spelling == "wrapped":  # within a model that reads images as well, of which a file here has one tensor
        stored = {"language_model." + k: v for k, v in stored.items()}
        stored["vision_tower.ln_pre.weight"] = torch.ones(8, dtype=dtype)
        outer, kind = dict(Llama4=("Llama4", "llama4"), Ministral3=("Mistral3", "mistral3"),
                           Mistral4=("Mistral3", "mistral3"), DeepseekV3=("KimiK25", "kimi_k25"))[family]
        outer = dict(architectures=[outer + "ForConditionalGeneration"], model_type=kind)
        text = json.dumps(outer | dict(text_config=json.loads(text)), indent=1, sort_keys=True) + "\n"
    save_file(stored, folder / "model.safetensors", metadata={"format": "pt"})
    (folder / "config.json").write_text(text)
    with open(folder / "golden.bin", "wb") as f:
        f.write(struct.pack("<2i", N_TOKENS, config.vocab_size))
        f.write(ids[0].to(torch.int32).numpy().tobytes())
        f.write(logits.contiguous().numpy().tobytes())
    write_experts(folder, chosen)
    size = sum(p.stat().st_size for p in folder.iterdir())
    print(f"{name}: {size} bytes, logits std {logits.std():.3f}")


def modules_json(folder, mode, dense, matrices):
    """As sentence-transformers writes them, or PyLate where nothing is pooled."""
    kinds = [("", "sentence_transformers.models.Transformer")]
    if mode != "tokens":
        kinds.append(("1_Pooling", "sentence_transformers.models.Pooling"))
    owner = "pylate.models.Dense" if mode == "tokens" else "sentence_transformers.models"
    for (n_out, activation, bias), (w, b) in zip(dense, matrices):
        kinds.append((f"{len(kinds)}_Dense", owner + ".Dense"))
        at = folder / kinds[-1][0]
        at.mkdir(exist_ok=True)
        (at / "config.json").write_text(json.dumps(
            dict(in_features=w.shape[1], out_features=n_out, bias=bias,
                 activation_function="torch.nn.modules." + activation), indent=1) + "\n")
        tensors = {"linear.weight": w} | ({"linear.bias": b} if bias else {})
        save_file(tensors, at / "model.safetensors", metadata={"format": "pt"})
    if mode != "tokens":
        kinds.append((f"{len(kinds)}_Normalize", "sentence_transformers.models.Normalize"))
    modules = [dict(idx=i, name=str(i), path=path, type=kind) for i, (path, kind) in enumerate(kinds)]
    (folder / "modules.json").write_text(json.dumps(modules, indent=1) + "\n")
    if mode == "tokens":
        return
    (folder / "1_Pooling").mkdir(exist_ok=True)
    names = dict(cls="cls_token", mean="mean_tokens", lasttoken="lasttoken")
    modes = {f"pooling_mode_{v}": k == mode for k, v in names.items()}
    (folder / "1_Pooling" / "config.json").write_text(
        json.dumps(dict(word_embedding_dimension=SMALL["hidden_size"], **modes), indent=1) + "\n")


def pooled(model, ids, types, mode, dense, matrices):
    args = {} if types is None else dict(token_type_ids=types)
    if mode is None:
        logits = model(ids, **args).logits[0].float()
        return torch.sigmoid(logits) if logits.numel() == 1 else torch.softmax(logits, 0)
    rows = model(ids, **args).last_hidden_state[0].float()
    row = rows[0] if mode == "cls" else rows[-1] if mode == "lasttoken" else rows if mode == "tokens" else rows.mean(0)
    for (_, activation, _), (w, b) in zip(dense, matrices):
        row = torch.nn.functional.linear(row, w.float(), b.float())
        row = torch.tanh(row) if activation.endswith("Tanh") else row
    return torch.nn.functional.normalize(row, dim=-1)


def hub_names(model, stored):
    """The tensors as save_pretrained calls and fuses them."""
    model = copy.deepcopy(model)  # which keeps its frequencies in float32
    model.load_state_dict({k: v.float() for k, v in stored.items()}, strict=False)
    with tempfile.TemporaryDirectory() as folder:
        model.to(torch.bfloat16).save_pretrained(folder)
        return load_file(folder + "/model.safetensors")


def generate_pooled(name, seed):
    kind, args, mode = {**POOLED, **ENCODERS}[name]
    dense, first = DENSE.get(name, []), kind == "HF_ColBERT"  # whose matrix is among the encoder's tensors
    kind = "BertModel" if first else kind
    family = kind[: kind.index("Model") if kind.endswith("Model") else kind.index("For")]
    heads = family in ("Bert", "Gte", "JinaEmbeddingsV3", "ModernBert", "NomicBert")  # key heads are no other
    small = {k: v for k, v in SMALL.items() if not heads or k != "num_key_value_heads"}
    config = getattr(transformers, family + "Config")(**{**small, **args})
    config.architectures = ["HF_ColBERT" if first else kind]
    config._attn_implementation = "eager"
    model = getattr(transformers, kind)(config).eval()
    generator = torch.Generator().manual_seed(seed)
    randomise(model, generator)
    matrices, n_in = [], config.hidden_size
    for n_out, _, bias in dense:
        w = torch.randn((n_out, n_in), generator=generator) * 1.3 / n_in**0.5
        b = torch.randn((n_out,), generator=generator) * 0.3 * bias
        matrices.append((w.to(torch.bfloat16), b.to(torch.bfloat16)))
        n_in = n_out
    stored = {k: v.to(torch.bfloat16).contiguous() for k, v in model.state_dict().items() if v.is_floating_point()}
    named = hub_names(model, stored) if name in ENCODERS else stored
    model.load_state_dict({k: v.float() for k, v in stored.items()}, strict=False)
    model = model.float()
    for embedding in model.modules():
        if hasattr(embedding, "embed_scale"):
            embedding.embed_scale.copy_(embedding.embed_scale.to(torch.bfloat16).float())
    folder = OUT / name
    folder.mkdir(parents=True, exist_ok=True)
    out = b""
    for i, n in enumerate(TEXT_LENGTHS):
        ids = torch.randint(3, config.vocab_size, (1, n), generator=generator)
        second = n // 3 if family == "Bert" and mode is None and n > 2 else 0
        types = (torch.arange(n)[None] >= second).long() if second else None
        with torch.no_grad():
            values = pooled(model, ids, types, mode, dense, matrices)
        out += struct.pack("<2i", n, second) + ids[0].to(torch.int32).numpy().tobytes()
        out += values.contiguous().numpy().tobytes()
    if first:
        named = {"bert." + k: v for k, v in named.items()} | {"linear.weight": matrices[0][0]}
    save_file(named, folder / "model.safetensors", metadata={"format": "pt"})
    (folder / "config.json").write_text(config_json(config, "old" if family == "Gemma3Text" else "new"))
    if mode is not None and not first:
        modules_json(folder, mode, dense, matrices)
    (folder / "golden.bin").write_bytes(struct.pack("<2i", len(TEXT_LENGTHS), values.shape[-1]) + out)
    print(f"{name}: {sum(p.stat().st_size for p in folder.rglob('*') if p.is_file())} bytes")


def generate_wrapped(name, seed):
    """Of a Gemma 3 with its tower for images, of which a file here has one tensor, named as in the hub."""
    text = {k: v for k, v in {**SMALL, **GEMMA3}.items() if k not in ("bos_token_id", "eos_token_id")}
    vision = dict(hidden_size=8, intermediate_size=8, num_hidden_layers=1, num_attention_heads=1, image_size=28,
                  patch_size=14)
    config = transformers.Gemma3Config(text_config=text, vision_config=vision, mm_tokens_per_image=4)
    config.architectures = ["Gemma3ForConditionalGeneration"]
    config._attn_implementation = config.text_config._attn_implementation = "eager"
    model = transformers.Gemma3ForConditionalGeneration(config).eval()
    generator = torch.Generator().manual_seed(seed)
    randomise(model, generator)
    inner = "model.language_model."
    stored = {k: v.to(torch.bfloat16).contiguous() for k, v in model.state_dict().items()}
    model.load_state_dict({k: v.float() for k, v in stored.items()})
    embedding = model.get_input_embeddings()
    embedding.embed_scale.copy_(embedding.embed_scale.to(torch.bfloat16).float())
    ids = torch.randint(3, text["vocab_size"], (1, N_TOKENS), generator=generator)
    with torch.no_grad():
        logits = model.float()(input_ids=ids, use_cache=False).logits[0].float()
    kept = {WRAPPED[name] + k[len(inner):]: v for k, v in stored.items() if k.startswith(inner)}
    kept["vision_tower.vision_model.post_layernorm.weight"] = torch.ones(8, dtype=torch.bfloat16)
    folder = OUT / name
    folder.mkdir(parents=True, exist_ok=True)
    save_file(kept, folder / "model.safetensors", metadata={"format": "pt"})
    (folder / "config.json").write_text(config.to_json_string())
    with open(folder / "golden.bin", "wb") as f:
        f.write(struct.pack("<2i", N_TOKENS, text["vocab_size"]))
        f.write(ids[0].to(torch.int32).numpy().tobytes())
        f.write(logits.contiguous().numpy().tobytes())
    print(f"{name}: logits std {logits.std():.3f}")


def main():
    seeds = {name: 1000 + i for i, name in enumerate([*MODELS, *POOLED, *MORE, *WRAPPED])}
    seeds |= {name: zlib.crc32(name.encode()) for name in EXPERTS | RECURRENT | FAMILIES | ENCODERS}
    names = sys.argv[1:] or list(seeds)
    for name in names:
        if name not in seeds:
            sys.exit(f"unknown model {name!r}, choose from {', '.join(seeds)}")
    for name in names:
        how = generate_pooled if name in POOLED | ENCODERS else generate_wrapped if name in WRAPPED else generate
        how(name, seeds[name])


if __name__ == "__main__":
    main()
