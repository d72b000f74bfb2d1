#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""Writes tests/golden/gguf/<name>.gguf: models of tests/golden/models as GGUF files. The gguf package says how tensors
and keys are called; what converters change is done here: without the positions in front that RoBERTa does not use,
with vectors and routers as float32, experts in one tensor, Gemma's norms with the 1 that is added, SmolLM3's rows of q and k in the order of interleaved
pairs.

Needs gguf and numpy; run from the repository root:
    python3 tools/gen_golden_gguf.py [name ...]
"""
import json
import math
import pathlib
import re
import statistics
import struct
import sys

import gguf
import numpy as np

MODELS = pathlib.Path("tests/golden/models")
OUT = pathlib.Path("tests/golden/gguf")
POOLING = {"bert": gguf.PoolingType.MEAN, "bert_cls": gguf.PoolingType.CLS, "xlm_roberta": gguf.PoolingType.CLS}


def read_safetensors(path):
    raw = path.read_bytes()
    n = struct.unpack("<Q", raw[:8])[0]
    for name, t in json.loads(raw[8 : 8 + n]).items():
        if name != "__metadata__":
            begin, end = t["data_offsets"]
            kind = dict(BF16=np.uint16, F32=np.float32, U8=np.uint8)[t["dtype"]]
            yield name, np.frombuffer(raw[8 + n + begin : 8 + n + end], kind).reshape(t["shape"])


def write(name, pooling):
    config = json.loads((MODELS / name / "config.json").read_text())
    first = config["pad_token_id"] + 1 if config["model_type"] == "xlm-roberta" else 0
    writer = gguf.GGUFWriter(str(OUT / f"{name}.gguf"), "bert")
    writer.add_context_length(config["max_position_embeddings"] - first)
    writer.add_embedding_length(config["hidden_size"])
    writer.add_feed_forward_length(config["intermediate_size"])
    writer.add_block_count(config["num_hidden_layers"])
    writer.add_head_count(config["num_attention_heads"])
    writer.add_layer_norm_eps(config["layer_norm_eps"])
    writer.add_causal_attention(False)
    writer.add_pooling_type(pooling)
    names = gguf.get_tensor_name_map(gguf.MODEL_ARCH.BERT, config["num_hidden_layers"])
    for hf, bits in read_safetensors(MODELS / name / "model.safetensors"):
        if "pooler" in hf:
            continue
        to = names.get_name(hf, try_suffixes=(".weight", ".bias"))
        assert to, hf
        if to == "position_embd.weight":
            bits = bits[first:]
        if bits.ndim == 1 or to in ("position_embd.weight", "token_types.weight"):
            writer.add_tensor(to, (bits.astype(np.uint32) << 16).view(np.float32))
        else:
            writer.add_tensor(to, np.ascontiguousarray(bits).view(np.uint8), raw_dtype=gguf.GGMLQuantizationType.BF16)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    print(f"{name}: {(OUT / f'{name}.gguf').stat().st_size} bytes")


# Encoders with rotated positions: architecture, and the pooling of the folder.
ENCODERS = {
    "modernbert": (gguf.MODEL_ARCH.MODERN_BERT, gguf.PoolingType.MEAN),
    "nomic_bert": (gguf.MODEL_ARCH.NOMIC_BERT, gguf.PoolingType.MEAN),
    "eurobert": (gguf.MODEL_ARCH.EUROBERT, gguf.PoolingType.MEAN),
}


def write_encoder(name, arch, pooling):
    config = json.loads((MODELS / name / "config.json").read_text())
    writer = gguf.GGUFWriter(str(OUT / f"{name}.gguf"), gguf.MODEL_ARCH_NAMES[arch])
    writer.add_context_length(config["max_position_embeddings"])
    writer.add_embedding_length(config["hidden_size"])
    writer.add_feed_forward_length(config["intermediate_size"])
    writer.add_block_count(config["num_hidden_layers"])
    writer.add_head_count(config["num_attention_heads"])
    if "rms_norm_eps" in config:
        writer.add_layer_norm_rms_eps(config["rms_norm_eps"])
        writer.add_head_count_kv(config["num_key_value_heads"])
    else:
        writer.add_layer_norm_eps(config.get("norm_eps") or config.get("layer_norm_eps"))
    writer.add_causal_attention(False)
    writer.add_pooling_type(pooling)
    rope = config.get("rope_parameters") or config
    if arch == gguf.MODEL_ARCH.MODERN_BERT:
        writer.add_rope_freq_base(rope["full_attention"]["rope_theta"])
        writer.add_rope_freq_base_swa(rope["sliding_attention"]["rope_theta"])
        writer.add_sliding_window(config["local_attention"])
        writer.add_sliding_window_pattern(3)
        writer.add_string("modern-bert.hidden_activation", config["hidden_activation"])
    else:
        writer.add_rope_freq_base(rope["rope_theta"] if "rope_theta" in rope else config["rotary_emb_base"])
    names = gguf.get_tensor_name_map(arch, config["num_hidden_layers"])
    for hf, bits in read_safetensors(MODELS / name / "model.safetensors"):
        to = names.get_name(hf.removeprefix("model.") if arch == gguf.MODEL_ARCH.MODERN_BERT else hf.removeprefix("nomic_bert."),
                            try_suffixes=(".weight", ".bias"))
        assert to, hf
        if bits.ndim == 1 or to == "token_types.weight":
            writer.add_tensor(to, (bits.astype(np.uint32) << 16).view(np.float32))
        else:
            writer.add_tensor(to, np.ascontiguousarray(bits).view(np.uint8), raw_dtype=gguf.GGMLQuantizationType.BF16)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    print(f"{name}: {(OUT / f'{name}.gguf').stat().st_size} bytes")


# What llama.cpp's converters permute, and add to norms.
DECODERS = {
    "cohere": (gguf.MODEL_ARCH.COMMAND_R, False, 0),
    "cohere2": (gguf.MODEL_ARCH.COHERE2, False, 0),
    "gemma": (gguf.MODEL_ARCH.GEMMA, False, 1),
    "gpt_neox": (gguf.MODEL_ARCH.GPTNEOX, False, 0),
    "gpt_neox_serial": (gguf.MODEL_ARCH.GPTNEOX, False, 0),
    "nemotron": (gguf.MODEL_ARCH.NEMOTRON, False, 1),
    "phi": (gguf.MODEL_ARCH.PHI2, False, 0),
    "stablelm": (gguf.MODEL_ARCH.STABLELM, False, 0),
    "stablelm_parallel": (gguf.MODEL_ARCH.STABLELM, False, 0),
    "starcoder2": (gguf.MODEL_ARCH.STARCODER2, False, 0),
    "apertus": (gguf.MODEL_ARCH.APERTUS, False, 0),
    "arcee": (gguf.MODEL_ARCH.ARCEE, True, 0),
    "ernie4_5": (gguf.MODEL_ARCH.ERNIE4_5, False, 0),
    "exaone4": (gguf.MODEL_ARCH.EXAONE4, False, 0),
    "olmo3": (gguf.MODEL_ARCH.OLMO2, False, 0),
    "seed_oss": (gguf.MODEL_ARCH.SEED_OSS, False, 0),
    "olmo2": (gguf.MODEL_ARCH.OLMO2, False, 0),
    "smollm3": (gguf.MODEL_ARCH.SMOLLM3, True, 0),
    "gemma2": (gguf.MODEL_ARCH.GEMMA2, False, 1),
    "gemma3_bf16": (gguf.MODEL_ARCH.GEMMA3, False, 1),
    "glm": (gguf.MODEL_ARCH.CHATGLM, False, 0),
    "glm4": (gguf.MODEL_ARCH.GLM4, False, 0),
    "granite": (gguf.MODEL_ARCH.GRANITE, True, 0),
    "phi3": (gguf.MODEL_ARCH.PHI3, False, 0),
    "phi3_long": (gguf.MODEL_ARCH.PHI3, False, 0),
    "glm4_moe_air": (gguf.MODEL_ARCH.GLM4_MOE, False, 0),
    "solar_open_one": (gguf.MODEL_ARCH.GLM4_MOE, False, 0),
    "minimax_m2": (gguf.MODEL_ARCH.MINIMAXM2, False, 0),
    "mixtral": (gguf.MODEL_ARCH.LLAMA, True, 0),
    "olmoe": (gguf.MODEL_ARCH.OLMOE, False, 0),
    "qwen3_moe": (gguf.MODEL_ARCH.QWEN3MOE, False, 0),
    "ernie4_5_moe": (gguf.MODEL_ARCH.ERNIE4_5_MOE, False, 0),
    "granitemoeshared": (gguf.MODEL_ARCH.GRANITE_MOE, True, 0),
    "qwen2_moe_all": (gguf.MODEL_ARCH.QWEN2MOE, False, 0),
    "afmoe": (gguf.MODEL_ARCH.AFMOE, False, 0),
    "dbrx": (gguf.MODEL_ARCH.DBRX, False, 0),
    "llama4_hub": (gguf.MODEL_ARCH.LLAMA4, False, 0),
    "phimoe": (gguf.MODEL_ARCH.PHIMOE, False, 0),
    "exaone_moe_one": (gguf.MODEL_ARCH.EXAONE_MOE, False, 0),
    "hunyuan_moe": (gguf.MODEL_ARCH.HUNYUAN_MOE, False, 0),
    "hunyuan": (gguf.MODEL_ARCH.HUNYUAN_DENSE, False, 0),
    "ministral3": (gguf.MODEL_ARCH.MISTRAL3, True, 0),
    "embedding_gemma": (gguf.MODEL_ARCH.GEMMA_EMBEDDING, False, 1),
    "gpt_oss_mxfp4": (gguf.MODEL_ARCH.GPT_OSS, False, 0),
    "deepseek_v2": (gguf.MODEL_ARCH.DEEPSEEK2, False, 0),
    "deepseek_v3": (gguf.MODEL_ARCH.DEEPSEEK2, False, 0),
    "glm4_moe_lite": (gguf.MODEL_ARCH.DEEPSEEK2, False, 0),
    "youtu": (gguf.MODEL_ARCH.DEEPSEEK2, False, 0),
    "mistral4": (gguf.MODEL_ARCH.MISTRAL4, False, 0),
    "glm_moe_dsa": (gguf.MODEL_ARCH.GLM_DSA, False, 0),
}
# Of llama.cpp's own gguf-py, ahead of the package: with its folder in PYTHONPATH (llama_cpp_python 0.3.36 carries it).
NEWER = {
    "hy_v3": ("HY_V3", False, 0),
}
DECODERS |= {name: (getattr(gguf.MODEL_ARCH, arch), *how) for name, (arch, *how) in NEWER.items()
             if hasattr(gguf.MODEL_ARCH, arch)}
WHOLE_KV_B = {"deepseek_v2"}  # as files of before 2025-04 are: heads as they would be, kv_b in one


def xielu_to_metadata(writer, tensors):
    """Parameters of the activation are lists of the metadata, by layer, as the tensors have them."""
    values = {}
    for hf, bits in tensors:
        stem, _, key = hf.rpartition(".act_fn.")
        if stem:
            value = (bits.astype(np.uint32) << 16).view(np.float32).reshape(-1)[0]
            values.setdefault(key, {})[int(stem.split(".")[2])] = float(value)
        else:
            yield hf, bits
    for key, by_layer in sorted(values.items()):
        getattr(writer, "add_xielu_" + key)([by_layer[i] for i in sorted(by_layer)])


def latent_keys(writer, config, whole):
    """Of DEEPSEEK2: what is kept of a token is one key head."""
    rank, rope = config["kv_lora_rank"], config["qk_rope_head_dim"]
    key, value = config["qk_nope_head_dim"] + rope, config["v_head_dim"]
    if config.get("q_lora_rank"):
        writer.add_q_lora_rank(config["q_lora_rank"])
    writer.add_kv_lora_rank(rank)
    writer.add_head_count_kv(config["num_attention_heads"] if whole else 1)
    writer.add_key_length(key if whole else rank + rope)
    writer.add_value_length(value if whole else rank)
    if not whole:
        writer.add_key_length_mla(key)
        writer.add_value_length_mla(value)
    writer.add_rope_dimension_count(rope)
    if config.get("n_group"):
        writer.add_expert_group_count(config["n_group"])
        writer.add_expert_group_used_count(config["topk_group"])
    if config["model_type"] not in ("deepseek_v2", "mistral4", "youtu"):
        writer.add_expert_gating_func(gguf.ExpertGatingFuncType.SIGMOID)
    if "index_topk" in config:
        writer.add_indexer_head_count(config["index_n_heads"])
        writer.add_indexer_key_length(config["index_head_dim"])
        writer.add_indexer_top_k(config["index_topk"])
    scaling = config.get("rope_scaling") or config.get("rope_parameters") or {}
    if "mscale_all_dim" in scaling:
        writer.add_rope_scaling_yarn_log_mul(0.1 * scaling["mscale_all_dim"])
    if "llama_4_scaling_beta" in scaling:
        writer.add_attn_temperature_scale(scaling["llama_4_scaling_beta"])


def split_kv_b(config, tensors, whole):
    """The two halves of kv_b, a matrix for each head, that of keys transposed."""
    for name, bits in tensors:
        if whole or "kv_b_proj" not in name:
            yield name, bits
            continue
        heads = bits.reshape(config["num_attention_heads"], -1, config["kv_lora_rank"])
        keys, values = np.split(heads, [config["qk_nope_head_dim"]], 1)
        yield name.replace("kv_b_proj", "k_b_proj"), np.ascontiguousarray(keys.swapaxes(1, 2))
        yield name.replace("kv_b_proj", "v_b_proj"), np.ascontiguousarray(values)


def llama3_divisors(scaling, theta, dim):
    """What frequencies are divided by: nothing for fast ones, the factor for slow ones, between them a mixture."""
    frequencies = 1.0 / theta ** (np.arange(0, dim, 2, dtype=np.float32) / np.float32(dim))
    turns = scaling["original_max_position_embeddings"] * frequencies / np.float32(2 * math.pi)
    low, high = scaling["low_freq_factor"], scaling["high_freq_factor"]
    with np.errstate(divide="ignore"):  # the two may be the same
        share = np.clip((turns - low) / (high - low), 0, 1)
    return (1 / ((1 - share) / scaling["factor"] + share)).astype(np.float32)


FUSED = {"glm"}  # as ChatGLM's own files become: q, k and v in one tensor


def fuse_qkv(tensors):
    out, by_name = {}, dict(tensors)
    for name, bits in tensors:
        if "q_proj" in name:
            parts = [by_name[name.replace("q_proj", p)] for p in ("q_proj", "k_proj", "v_proj")]
            out[name.replace("q_proj", "qkv_proj")] = np.concatenate(parts)
        elif "k_proj" not in name and "v_proj" not in name:
            out[name] = bits
    return out.items()


def parts_in_turn(tensors, n_heads):
    """GPT-NeoX's q, k and v of each head, as its converter orders them: all of q, then k, then v."""
    for name, bits in tensors:
        if "query_key_value" in name:
            bits = bits.reshape(n_heads, 3, bits.shape[0] // 3 // n_heads, *bits.shape[1:]).swapaxes(0, 1)
            bits = np.ascontiguousarray(bits.reshape(-1, *bits.shape[3:]))
        yield name, bits


def add_scales(writer, config):
    if config["model_type"] in ("afmoe", "cohere2", "gemma2"):
        writer.add_sliding_window(config["sliding_window"])
    for key, add in {
        "clip_qkv": writer.add_clamp_kqv,
        "interleave_moe_layer_step": writer.add_interleave_moe_layer_step,
        "attn_logit_softcapping": writer.add_attn_logit_softcapping,
        "final_logit_softcapping": writer.add_final_logit_softcapping,
        "embedding_multiplier": writer.add_embedding_scale,
        "residual_multiplier": writer.add_residual_scale,
        "attention_multiplier": writer.add_attention_scale,
        "logit_scale": writer.add_logit_scale,
        "logits_scaling": writer.add_logit_scale,
    }.items():
        if config.get(key) is not None:
            add(config[key])


def mxfp4_blocks(codes, scales):
    """The file's bytes hold neighbours, GGUF's the elements i and i + 16 of a block."""
    elements = np.stack([codes & 15, codes >> 4], -1).reshape(*codes.shape[:-1], 32)
    blocks = np.concatenate([scales[..., None], elements[..., :16] | elements[..., 16:] << 4], -1)
    table = np.array([0, 0.5, 1, 1.5, 2, 3, 4, 6, 0, -0.5, -1, -1.5, -2, -3, -4, -6], np.float32)
    want = np.ldexp(table[elements], scales[..., None].astype(np.int32) - 127)
    read = gguf.quants.dequantize(blocks.reshape(*blocks.shape[:2], -1), gguf.GGMLQuantizationType.MXFP4)
    assert (read.reshape(want.shape) == want).all()
    return blocks.reshape(*blocks.shape[:-2], -1)


def gpt_oss_tensors(tensors):
    """(name as the map of names has it, bits or MXFP4 blocks): gate and up apart."""
    by_name = dict(tensors)
    for name, bits in tensors:
        stem, _, what = name.rpartition(".experts.")
        if not stem:
            yield (name + ".weight" if name.endswith("sinks") else name), bits
        elif not what.endswith("_scales"):
            end = ".bias" if what.endswith("_bias") else ".weight"
            if end == ".weight":
                scales = by_name[name.replace("_blocks", "_scales")]
            parts = {"gate_proj": np.s_[:, ::2], "up_proj": np.s_[:, 1::2]}
            for part, rows in (parts if "gate_up" in what else {"down_proj": np.s_[:]}).items():
                x = bits[rows] if end == ".bias" else mxfp4_blocks(bits[rows], scales[rows])
                yield f"{stem}.experts.{part}{end}", x


def read_config(name):
    """As other families spell it: the model of text alone, DBRX's objects unpacked."""
    config = json.loads((MODELS / name / "config.json").read_text())
    config = config.get("text_config", config)
    if config["model_type"] == "dbrx":
        attn, ffn = config["attn_config"], config["ffn_config"]
        config |= dict(max_position_embeddings=config["max_seq_len"], hidden_size=config["d_model"],
                       intermediate_size=ffn["ffn_hidden_size"], num_hidden_layers=config["n_layers"],
                       num_attention_heads=config["n_heads"], num_key_value_heads=attn["kv_n_heads"],
                       layer_norm_eps=1e-5, clip_qkv=attn["clip_qkv"], num_experts=ffn["moe_num_experts"],
                       num_experts_per_tok=ffn["moe_top_k"])
    if config["model_type"] == "llama4_text":
        config["moe_intermediate_size"] = config["intermediate_size"]
        config["intermediate_size"] = config["intermediate_size_mlp"]
    return config


def whole_experts(config, tensors):
    """Tensors of all experts of a layer, which some families hold turned or fused, as llama.cpp has them."""
    for name, bits in tensors:
        name = name.removeprefix("language_model.")
        stem, _, what = name.rpartition(".experts.")
        if name.startswith("vision_tower"):
            continue
        if stem and what.startswith("mlp."):
            bits = bits.reshape(config["num_experts"], -1, config["hidden_size"])
            yield name + ".weight", bits.swapaxes(1, 2) if what == "mlp.w2" else bits
        elif stem and what == "gate_up_proj":
            for part, x in zip(("gate_proj", "up_proj"), np.split(bits.swapaxes(1, 2), 2, 1)):
                yield f"{stem}.experts.{part}.weight", x
        elif stem and what == "down_proj":
            yield name + ".weight", bits.swapaxes(1, 2)
        else:
            yield name, bits


def granite_experts(tensors):
    """Gate and up apart, of experts and of the shared one."""
    for name, bits in tensors:
        stem, found, _ = name.rpartition(".input_linear")
        if not found:
            yield name, bits
            continue
        layer, _, kind = stem.rpartition(".")
        inner = {"block_sparse_moe": "mlp.experts", "shared_mlp": "mlp.shared_experts"}[kind]
        for part, half in zip(("gate_proj", "up_proj"), np.split(bits, 2, -2)):
            yield f"{layer}.{inner}.{part}.weight", half


def interleave(bits, n_heads):
    half = bits.reshape(n_heads, 2, bits.shape[0] // n_heads // 2, *bits.shape[1:])
    return half.swapaxes(1, 2).reshape(bits.shape)


EXPERT = re.compile(r"(model\.layers\.\d+)\.(\S+\.experts)\.(\d+)\.(\w+)\.weight")


def stack(tensors, mixtral):
    """A tensor for all experts of a layer in place of one each; Mixtral's as llama.cpp calls them."""
    stacks = {}
    for hf, bits in tensors:
        m = EXPERT.fullmatch(hf)
        if m is None:
            yield hf, bits
            continue
        w123 = mixtral and m[4] in ("w1", "w2", "w3")
        name = f"{m[1][6:]}.feed_forward.experts.{m[4]}" if w123 else f"{m[1]}.{m[2]}.{m[4]}"
        stacks.setdefault(name + ".weight", {})[int(m[3])] = bits
    for name, parts in stacks.items():
        yield name, np.stack([parts[e] for e in range(len(parts))])


def add_experts(writer, config):
    n = next((config[k] for k in ("num_local_experts", "num_experts", "n_routed_experts", "moe_num_experts") if config.get(k)), None)
    if n is None:
        return
    writer.add_expert_count(n)
    top = config.get("moe_topk", config.get("num_experts_per_tok", config.get("moe_k")))
    writer.add_expert_used_count(top[0] if isinstance(top, list) else top)
    if "moe_intermediate_size" in config:
        writer.add_expert_feed_forward_length(config["moe_intermediate_size"])
    if "shared_expert_intermediate_size" in config:
        writer.add_expert_shared_feed_forward_length(config["shared_expert_intermediate_size"])
    if "shared_intermediate_size" in config:
        writer.add_expert_shared_feed_forward_length(config["shared_intermediate_size"])
    if "moe_layer_interval" in config:  # ERNIE 4.5, whose converter takes the shared expert's size from the dense layers'
        writer.add_interleave_moe_layer_step(config["moe_layer_interval"])
        writer.add_leading_dense_block_count(config["moe_layer_start_index"])
        writer.add_expert_shared_count(config["moe_num_shared_experts"])
        writer.add_expert_shared_feed_forward_length(config["intermediate_size"] // config["num_key_value_heads"])
    if config["model_type"] == "hy_v3":
        writer.add_expert_shared_feed_forward_length(config["moe_intermediate_size"] * config["num_shared_experts"])
        writer.add_expert_weights_norm(True)
        writer.add_expert_weights_scale(config["router_scaling_factor"])
        writer.add_expert_gating_func(gguf.ExpertGatingFuncType.SIGMOID)
        return
    shared = config.get("n_shared_experts") or config.get("num_shared_experts")
    if shared:
        writer.add_expert_shared_count(shared)
        writer.add_leading_dense_block_count(config.get("first_k_dense_replace", config.get(
            "num_dense_layers", config.get("mlp_layer_types", []).count("dense"))))
        writer.add_expert_weights_scale(config.get("routed_scaling_factor", config.get("route_scale")))
        writer.add_expert_weights_norm(config.get("norm_topk_prob", True))
    if config["model_type"] in ("afmoe", "exaone_moe", "glm4_moe", "minimax_m2", "solar_open"):
        writer.add_expert_gating_func(gguf.ExpertGatingFuncType.SIGMOID)


GEMMA4 = ("gemma4", "gemma4_e2b", "gemma4_moe")


def gemma4_keys(writer, config):
    """Heads, pages and rotations of windowed and of full layers."""
    windowed = [t == "sliding_attention" for t in config["layer_types"]]
    full, local = (config["rope_parameters"][t] for t in ("full_attention", "sliding_attention"))
    n_layers, shared, dim = len(windowed), config["num_kv_shared_layers"], config["global_head_dim"]
    heads, wide = config["num_attention_heads"], config["use_double_wide_mlp"]
    writer.add_context_length(config["max_position_embeddings"])
    writer.add_embedding_length(config["hidden_size"])
    writer.add_block_count(n_layers)
    writer.add_feed_forward_length(
        [config["intermediate_size"] * (2 if i >= n_layers - shared else 1) for i in range(n_layers)]
        if wide else config["intermediate_size"])
    writer.add_head_count(heads)
    kv = config["num_key_value_heads"]
    of_full = config.get("num_global_key_value_heads")
    writer.add_head_count_kv([kv if w else of_full for w in windowed] if of_full else kv)
    writer.add_layer_norm_rms_eps(config["rms_norm_eps"])
    writer.add_key_length(dim)
    writer.add_value_length(dim)
    writer.add_key_length_swa(config["head_dim"])
    writer.add_value_length_swa(config["head_dim"])
    writer.add_rope_dimension_count(dim)
    writer.add_rope_dimension_count_swa(config["head_dim"])
    writer.add_rope_freq_base(full["rope_theta"])
    writer.add_rope_freq_base_swa(local["rope_theta"])
    writer.add_sliding_window(config["sliding_window"])
    writer.add_sliding_window_pattern(windowed)
    writer.add_shared_kv_layers(shared)
    writer.add_embedding_length_per_layer_input(config["hidden_size_per_layer_input"])
    if config["enable_moe_block"]:
        writer.add_expert_count(config["num_experts"])
        writer.add_expert_used_count(config["top_k_experts"])
        writer.add_expert_feed_forward_length(config["moe_intermediate_size"])
    if config.get("final_logit_softcapping"):
        writer.add_final_logit_softcapping(config["final_logit_softcapping"])
    turning = int(dim * full["partial_rotary_factor"] / 2)
    writer.add_tensor("rope_freqs.weight", np.array(
        [full.get("factor", 1)] * turning + [1e30] * (dim // 2 - turning), np.float32))


def gemma_text(name):
    """Config and tensors of the model of text in a folder, by the names it has alone."""
    config = json.loads((MODELS / name / "config.json").read_text())
    tensors = read_safetensors(MODELS / name / "model.safetensors")
    return config.get("text_config", config), [(k.replace(".language_model", ""), v) for k, v in tensors]


def write_gemma4(name):
    config, tensors = gemma_text(name)
    writer = gguf.GGUFWriter(str(OUT / f"{name}.gguf"), "gemma4")
    gemma4_keys(writer, config)
    names = gguf.get_tensor_name_map(gguf.MODEL_ARCH.GEMMA4, config["num_hidden_layers"])
    for hf, bits in tensors:
        whole = hf.endswith(("layer_scalar", "experts.gate_up_proj", "experts.down_proj"))
        to = names.get_name(hf + ".weight" if whole else hf, try_suffixes=(".weight",))
        if hf.endswith((".router.scale", ".per_expert_scale")):  # as llama.cpp's converter calls them
            layer = hf.split(".")[2]
            to = f"blk.{layer}.ffn_gate_inp.scale" if hf.endswith("router.scale") else f"blk.{layer}.ffn_down_exps.scale"
        assert to, hf
        if bits.ndim == 1:
            writer.add_tensor(to, (bits.astype(np.uint32) << 16).view(np.float32))
        else:
            writer.add_tensor(to, np.ascontiguousarray(bits).view(np.uint8), raw_dtype=gguf.GGMLQuantizationType.BF16)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    print(f"{name}: {(OUT / f'{name}.gguf').stat().st_size} bytes")


def write_step3(name):
    """Of the hub's spelling: heads by layer, one theta for each kind of layer, and divisors of the full ones."""
    config = json.loads((MODELS / name / "config.json").read_text())
    n, other = config["num_hidden_layers"], config["attention_other_setting"]
    windowed = [t == "sliding_attention" for t in config["layer_types"][:n]]
    full = windowed.index(False)
    writer = gguf.GGUFWriter(str(OUT / f"{name}.gguf"), "step35")
    writer.add_context_length(config["max_position_embeddings"])
    writer.add_embedding_length(config["hidden_size"])
    writer.add_feed_forward_length(config["intermediate_size"])
    writer.add_block_count(n)
    writer.add_head_count([other["num_attention_heads"] if w else config["num_attention_heads"] for w in windowed])
    writer.add_head_count_kv([other["num_attention_groups"] if w else config["num_attention_groups"] for w in windowed])
    writer.add_key_length(config["head_dim"])
    writer.add_value_length(config["head_dim"])
    writer.add_layer_norm_rms_eps(config["rms_norm_eps"])
    writer.add_rope_freq_base(config["rope_theta"][full])
    writer.add_rope_freq_base_swa(config["rope_theta"][windowed.index(True)])
    writer.add_sliding_window(config["sliding_window"])
    writer.add_sliding_window_pattern(windowed)
    writer.add_expert_count(config["moe_num_experts"])
    writer.add_expert_used_count(config["moe_top_k"])
    writer.add_expert_feed_forward_length(config["moe_intermediate_size"])
    writer.add_expert_shared_feed_forward_length(config["share_expert_dim"])
    writer.add_expert_weights_scale(config["moe_router_scaling_factor"])
    writer.add_expert_weights_norm(config["norm_expert_weight"])
    writer.add_leading_dense_block_count(int(config["moe_layers_enum"].split(",")[0]))
    writer.add_moe_every_n_layers(1)
    writer.add_swiglu_clamp_exp(config["swiglu_limits"][:n])
    writer.add_swiglu_clamp_shexp(config["swiglu_limits_shared"][:n])
    dim = config["head_dim"]
    factors = llama3_divisors(config["rope_scaling"], config["rope_theta"][full], int(dim * config["partial_rotary_factors"][full]))
    writer.add_tensor("rope_freqs.weight", np.concatenate([factors, np.ones(dim // 2 - len(factors), np.float32)]))
    names = gguf.get_tensor_name_map(gguf.MODEL_ARCH.STEP35, n)
    for hf, bits in read_safetensors(MODELS / name / "model.safetensors"):
        to = names.get_name(hf + ".bias" if hf.endswith("router_bias") else hf, try_suffixes=(".weight", ".bias"))
        assert to, hf
        if bits.dtype == np.float32:
            writer.add_tensor(to, bits)
        elif bits.ndim == 1:
            writer.add_tensor(to, (bits.astype(np.uint32) << 16).view(np.float32) + np.float32(1))  # all are norms
        else:
            writer.add_tensor(to, np.ascontiguousarray(bits).view(np.uint8), raw_dtype=gguf.GGMLQuantizationType.BF16)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    print(f"{name}: {(OUT / f'{name}.gguf').stat().st_size} bytes")


def write_mimo(name):
    """KV heads by layer, the keys before a row's own as window, and a block more whose tensors are not there."""
    config = json.loads((MODELS / name / "config.json").read_text())
    n = config["num_hidden_layers"]
    full, local = (config["rope_parameters"][t] for t in ("full_attention", "sliding_attention"))
    windowed = [int(t == "sliding_attention") for t in config["layer_types"]] + [1]
    kv = config["num_key_value_heads"]
    writer = gguf.GGUFWriter(str(OUT / f"{name}.gguf"), "mimo2")
    writer.add_context_length(config["max_position_embeddings"])
    writer.add_embedding_length(config["hidden_size"])
    writer.add_feed_forward_length(config["intermediate_size"])
    writer.add_block_count(n + 1)
    writer.add_uint32("mimo2.nextn_predict_layers", 1)
    writer.add_head_count(config["num_attention_heads"])
    writer.add_head_count_kv([kv * (2 if w else 1) for w in windowed])
    writer.add_key_length(config["head_dim"])
    writer.add_value_length(config["v_head_dim"])
    writer.add_float32("mimo2.attention.value_scale", config["attention_value_scale"])
    writer.add_layer_norm_rms_eps(config["rms_norm_eps"])
    writer.add_rope_dimension_count(int(config["head_dim"] * full["partial_rotary_factor"]))
    writer.add_rope_freq_base(full["rope_theta"])
    writer.add_rope_freq_base_swa(local["rope_theta"])
    writer.add_sliding_window(config["sliding_window"] - 1)
    writer.add_sliding_window_pattern(windowed)
    add_experts(writer, config)
    writer.add_expert_gating_func(gguf.ExpertGatingFuncType.SIGMOID)
    writer.add_expert_weights_scale(config["routed_scaling_factor"])
    names = gguf.get_tensor_name_map(gguf.MODEL_ARCH.MIMO2, n)
    for hf, bits in stack(read_safetensors(MODELS / name / "model.safetensors"), False):
        hf = hf.replace("e_score_correction_bias", "e_score_correction.bias")
        hf = hf.replace("attention_sink_bias", "sinks.weight")
        to = names.get_name(hf, try_suffixes=(".weight", ".bias"))
        assert to, hf
        if bits.ndim == 1 or "ffn_gate_inp" in to:
            writer.add_tensor(to, floats(bits))
        else:
            writer.add_tensor(to, np.ascontiguousarray(bits).view(np.uint8), raw_dtype=gguf.GGMLQuantizationType.BF16)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    print(f"{name}: {(OUT / f'{name}.gguf').stat().st_size} bytes")


def write_gemma3n(name):
    config, tensors = gemma_text(name)
    writer = gguf.GGUFWriter(str(OUT / f"{name}.gguf"), "gemma3n")
    n_layers = config["num_hidden_layers"]
    windowed = [t == "sliding_attention" for t in config["layer_types"]]
    full, local = (config["rope_parameters"][t] for t in ("full_attention", "sliding_attention"))
    writer.add_context_length(config["max_position_embeddings"])
    writer.add_embedding_length(config["hidden_size"])
    writer.add_block_count(n_layers)
    writer.add_feed_forward_length(config["intermediate_size"])
    writer.add_head_count(config["num_attention_heads"])
    writer.add_head_count_kv(config["num_key_value_heads"])
    writer.add_layer_norm_rms_eps(config["rms_norm_eps"])
    writer.add_key_length(config["head_dim"])
    writer.add_value_length(config["head_dim"])
    writer.add_rope_freq_base(full["rope_theta"])
    writer.add_float32("gemma3n.rope.freq_base_swa", local["rope_theta"])
    writer.add_sliding_window(config["sliding_window"])
    writer.add_sliding_window_pattern(windowed)
    writer.add_shared_kv_layers(config["num_kv_shared_layers"])
    writer.add_embedding_length_per_layer_input(config["hidden_size_per_layer_input"])
    writer.add_altup_active_idx(config["altup_active_idx"])
    writer.add_altup_num_inputs(config["altup_num_inputs"])
    writer.add_final_logit_softcapping(config["final_logit_softcapping"])
    normal = statistics.NormalDist()
    writer.add_activation_sparsity_scale(
        [normal.inv_cdf(s) if s > 0 else -math.inf for s in config["activation_sparsity_pattern"]])
    names = gguf.get_tensor_name_map(gguf.MODEL_ARCH.GEMMA3N, n_layers)
    stacks = {"altup_projections": [], "altup_unembed_projections": []}
    for hf, bits in sorted(tensors):
        whole = hf.split(".")[1]
        if whole in stacks:  # which llama.cpp's converter stacks
            stacks[whole].append(bits)
            continue
        to = names.get_name(hf + ".weight" if hf.endswith("correct_output_scale") else hf, try_suffixes=(".weight",))
        assert to, hf
        if bits.ndim == 1:
            writer.add_tensor(to, (bits.astype(np.uint32) << 16).view(np.float32))
        else:
            writer.add_tensor(to, np.ascontiguousarray(bits).view(np.uint8), raw_dtype=gguf.GGMLQuantizationType.BF16)
    for hf, to in (("altup_projections", "altup_proj.weight"), ("altup_unembed_projections", "altup_unembd_proj.weight")):
        writer.add_tensor(to, np.stack(stacks[hf]).view(np.uint8), raw_dtype=gguf.GGMLQuantizationType.BF16)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    print(f"{name}: {(OUT / f'{name}.gguf').stat().st_size} bytes")


def lfm2_keys(writer, config):
    layers = config.get("layer_types") or [
        "full_attention" if i in config["full_attn_idxs"] else "conv" for i in range(config["num_hidden_layers"])]
    width = config["intermediate_size"]
    if config.get("block_auto_adjust_ff_dim"):
        step = config["block_multiple_of"]
        width = -(-int(config["block_ffn_dim_multiplier"] * int(2 * width / 3)) // step) * step
    writer.add_feed_forward_length(width)
    writer.add_head_count_kv([config["num_key_value_heads"] if t != "conv" else 0 for t in layers])
    writer.add_layer_norm_rms_eps(config["norm_eps"])
    writer.add_shortconv_l_cache(config["conv_L_cache"])
    if config["model_type"] == "lfm2_moe":
        add_experts(writer, config)
        writer.add_leading_dense_block_count(config["num_dense_layers"])
        writer.add_expert_gating_func(gguf.ExpertGatingFuncType.SIGMOID)
        writer.add_expert_weights_scale(config["routed_scaling_factor"])


def as_lfm2(config, tensors):
    for name, bits in tensors:
        if name.endswith("conv.conv.weight"):
            bits = bits.squeeze(1)
        yield name.replace(".expert_bias", ".expert_bias.bias"), bits


def mamba2_shape(config):
    """Heads and groups of them, which families call in their own ways."""
    heads = next(config[n] for n in ("mamba_n_heads", "mamba_num_heads", "num_heads") if n in config)
    return heads, config["mamba_n_groups" if "mamba_n_groups" in config else "n_groups"]


def state_keys(writer, config):
    of = lambda *names: next(config[n] for n in names if n in config)
    heads, groups = mamba2_shape(config)
    writer.add_ssm_conv_kernel(of("mamba_d_conv", "conv_kernel"))
    writer.add_ssm_state_size(of("mamba_d_state", "ssm_state_size", "state_size"))
    writer.add_ssm_inner_size(heads * of("mamba_d_head", "mamba_head_dim", "head_dim"))
    writer.add_ssm_time_step_rank(heads)
    writer.add_ssm_group_count(groups)


def as_mamba2(config, tensors):
    """A in place of its logarithm, a row of the norm for each group."""
    for name, bits in tensors:
        stem, end = name.rpartition(".")[::2]
        if end == "A_log":
            bits = -np.exp(floats(bits))[:, None]
        elif end == "D":
            bits = floats(bits)[:, None]
        elif end == "dt_bias":
            name = stem + ".dt_proj.bias"
        elif name.endswith(("mixer.norm.weight", "mamba.norm.weight")):
            bits = floats(bits).reshape(mamba2_shape(config)[1], -1)
        elif name.endswith("conv1d.weight"):
            bits = bits.squeeze(1)
        yield name, bits


def mamba2_keys(writer, config):
    writer.add_feed_forward_length(0)
    writer.add_layer_norm_rms_eps(config["layer_norm_epsilon"])
    state_keys(writer, config)


def granite_hybrid_keys(writer, config):
    """Of Bamba too, whose files say that they are Granite's."""
    n, kv = config["num_hidden_layers"], config["num_key_value_heads"]
    attends = [i in config["attn_layer_indices"] for i in range(n)] if "attn_layer_indices" in config else [
        t in ("attention", "full_attention") for t in config["layer_types"]]
    bamba = config["model_type"] == "bamba"
    writer.add_feed_forward_length(config["intermediate_size"])
    writer.add_head_count_kv([kv if a else 0 for a in attends])
    writer.add_layer_norm_rms_eps(config["rms_norm_eps"])
    writer.add_rope_scaling_finetuned(bamba or config["position_embedding_type"] == "rope")
    if bamba:
        writer.add_rope_dimension_count(config["hidden_size"] // config["num_attention_heads"] // 2)
    if config.get("num_local_experts"):
        writer.add_expert_count(config["num_local_experts"])
        writer.add_expert_used_count(config["num_experts_per_tok"])
    if "shared_intermediate_size" in config:
        writer.add_expert_shared_feed_forward_length(config["shared_intermediate_size"])
    add_scales(writer, config)
    state_keys(writer, config)


def as_granite_hybrid(config, tensors):
    for name, bits in as_mamba2(config, tensors):
        layer = name.split(".")[2] if ".layers." in name else None
        if "q_proj" in name or "k_proj" in name:
            bits = interleave(bits, config["num_attention_heads" if "q_proj" in name else "num_key_value_heads"])
        elif name.endswith("input_linear.weight"):
            end = "_exps" if "block_sparse_moe" in name else "_shexp" if config["num_local_experts"] else ""
            for part, rows in zip(("gate", "up"), np.split(bits, 2, -2)):
                yield f"blk.{layer}.ffn_{part}{end}.weight", rows
            continue
        elif name.endswith("shared_mlp.output_linear.weight") and not config["num_local_experts"]:
            name = f"blk.{layer}.ffn_down.weight"
        yield name, bits


def qwen35_keys(writer, config):
    writer.add_head_count_kv(config["num_key_value_heads"])
    writer.add_key_length(config["head_dim"])
    writer.add_value_length(config["head_dim"])
    if "intermediate_size" in config:
        writer.add_feed_forward_length(config["intermediate_size"])
    writer.add_layer_norm_rms_eps(config["rms_norm_eps"])
    add_experts(writer, config)
    writer.add_ssm_conv_kernel(config["linear_conv_kernel_dim"])
    writer.add_ssm_state_size(config["linear_key_head_dim"])
    writer.add_ssm_group_count(config["linear_num_key_heads"])
    writer.add_ssm_time_step_rank(config["linear_num_value_heads"])
    writer.add_ssm_inner_size(config["linear_value_head_dim"] * config["linear_num_value_heads"])
    writer.add_full_attention_interval(4)
    writer.add_rope_dimension_count(int(config["head_dim"] * config["rope_parameters"]["partial_rotary_factor"]))
    if config["model_type"] != "qwen3_next":
        writer.add_rope_dimension_sections([11, 11, 10, 0])


def heads_in_tiles(config, bits, axis):
    """Value heads as the converter of Qwen3.5 orders them: the first of each group, then the second of each."""
    groups = config["linear_num_key_heads"]
    share = config["linear_num_value_heads"] // groups
    shape = bits.shape
    bits = bits.reshape(*shape[:axis], groups, share, -1, *shape[axis + 1 :])
    return bits.swapaxes(axis, axis + 1).reshape(shape)


def as_qwen35(config, tensors):
    groups, share = config["linear_num_key_heads"], config["linear_num_value_heads"] // config["linear_num_key_heads"]
    k, v = config["linear_key_head_dim"], config["linear_value_head_dim"]
    keys, tiled = 2 * groups * k, config["model_type"] != "qwen3_next"
    for name, bits in tensors:
        name = name.replace("language_model.", "")
        if name.startswith(("mtp.", "model.visual.")):
            continue
        if name.endswith("A_log"):
            bits = -np.exp(floats(bits))
        elif name.endswith("norm.weight") and not name.endswith("linear_attn.norm.weight"):
            bits = floats(bits) + np.float32(1)
        elif "conv1d" in name:
            bits = bits.squeeze(1)
        if tiled and ("in_proj_qkv" in name or "conv1d" in name):
            bits = np.concatenate([bits[:keys], heads_in_tiles(config, bits[keys:], 0)])
        elif tiled and name.endswith(("in_proj_z.weight", "in_proj_a.weight", "in_proj_b.weight", "A_log", "dt_bias")):
            bits = heads_in_tiles(config, bits, 0)
        elif tiled and "linear_attn.out_proj" in name:
            bits = heads_in_tiles(config, bits, 1)
        if "in_proj_qkvz" in name:
            q, k_, v_, z = np.split(bits.reshape(groups, -1, bits.shape[1]), [k, 2 * k, 2 * k + share * v], 1)
            flat = lambda x: x.reshape(-1, bits.shape[1])  # noqa: E731
            yield name.replace("qkvz", "qkv"), np.concatenate([flat(q), flat(k_), flat(v_)])
            yield name.replace("qkvz", "z"), flat(z)
        else:
            yield name.replace(".dt_bias", ".dt_proj.bias"), bits


def falcon_h1_keys(writer, config):
    head_dim = config["hidden_size"] // config["num_attention_heads"]
    writer.add_feed_forward_length(config["intermediate_size"])
    writer.add_head_count_kv(config["num_key_value_heads"])
    writer.add_key_length(head_dim)
    writer.add_value_length(head_dim)
    writer.add_layer_norm_rms_eps(config["rms_norm_eps"])
    state_keys(writer, config)


def as_falcon_h1(config, tensors):
    """Weights times the model's multipliers."""
    heads, groups = mamba2_shape(config)
    inner, keys = config["mamba_d_ssm"], groups * config["mamba_d_state"]
    rows = np.repeat(config["ssm_multipliers"], [inner, inner, keys, keys, heads])[:, None] * config["ssm_in_multiplier"]
    attn = config["attention_in_multiplier"]
    factors = {
        "down_proj": config["mlp_multipliers"][1],
        "gate_proj": config["mlp_multipliers"][0],
        "k_proj": config["key_multiplier"] * attn,
        "q_proj": attn,
        "v_proj": attn,
        "o_proj": config["attention_out_multiplier"],
        "out_proj": config["ssm_out_multiplier"],
        "in_proj": rows,
        "lm_head": config["lm_head_multiplier"],
        "embed_tokens": config["embedding_multiplier"],
    }
    for name, bits in as_mamba2(config, tensors):
        what = name.removesuffix(".weight").rpartition(".")[2]
        yield name, (floats(bits) * factors[what]).astype(np.float32) if what in factors else bits


def as_mamba1(config, tensors):
    experts = {}
    for name, bits in tensors:
        m = re.fullmatch(r"model\.layers\.(\d+)\.feed_forward\.experts\.(\d+)\.(\w+)_proj\.weight", name)
        if m is not None:
            experts.setdefault(f"blk.{m[1]}.ffn_{m[3]}_exps.weight", {})[int(m[2])] = bits
            continue
        if name.endswith("A_log"):
            bits = -np.exp(floats(bits))
        elif name.endswith("conv1d.weight"):
            bits = bits.squeeze(1)
        yield name, bits
    for name, parts in experts.items():
        yield name, np.stack([parts[e] for e in range(len(parts))])


def mamba1_keys(writer, config):
    writer.add_feed_forward_length(0)
    writer.add_layer_norm_rms_eps(config["layer_norm_epsilon"])
    writer.add_ssm_conv_kernel(config["conv_kernel"])
    writer.add_ssm_inner_size(config["expand"] * config["hidden_size"])
    writer.add_ssm_state_size(config["state_size"])
    writer.add_ssm_time_step_rank(config["time_step_rank"])
    writer.add_ssm_dt_b_c_rms(config["model_type"] == "falcon_mamba")


def jamba_keys(writer, config):
    period, offset = config["attn_layer_period"], config["attn_layer_offset"]
    kv = config["num_key_value_heads"]
    writer.add_feed_forward_length(config["intermediate_size"])
    writer.add_head_count_kv([kv if i % period == offset else 0 for i in range(config["num_hidden_layers"])])
    writer.add_layer_norm_rms_eps(config["rms_norm_eps"])
    writer.add_ssm_conv_kernel(config["mamba_d_conv"])
    writer.add_ssm_inner_size(config["mamba_expand"] * config["hidden_size"])
    writer.add_ssm_state_size(config["mamba_d_state"])
    writer.add_ssm_time_step_rank(config["mamba_dt_rank"])
    writer.add_expert_count(config["num_experts"])
    writer.add_expert_used_count(config["num_experts_per_tok"])


def nemotron_h_keys(writer, config):
    kinds = config["layers_block_type"]
    experts = "moe" in kinds
    width = config["moe_intermediate_size" if experts else "intermediate_size"]
    kv = config["num_key_value_heads"]
    writer.add_feed_forward_length([width if k in ("moe", "mlp") else 0 for k in kinds])
    writer.add_head_count_kv([kv if k == "full_attention" else 0 for k in kinds])
    writer.add_key_length(config["head_dim"])
    writer.add_value_length(config["head_dim"])
    writer.add_layer_norm_rms_eps(config["layer_norm_epsilon"])
    writer.add_rope_scaling_finetuned(False)
    state_keys(writer, config)
    if experts:
        writer.add_expert_count(config["n_routed_experts"])
        writer.add_expert_used_count(config["num_experts_per_tok"])
        writer.add_expert_feed_forward_length(config["moe_intermediate_size"])
        writer.add_expert_shared_feed_forward_length(config["moe_shared_expert_intermediate_size"])
        writer.add_expert_shared_count(config["n_shared_experts"])
        writer.add_expert_weights_norm(config["norm_topk_prob"])
        writer.add_expert_weights_scale(config["routed_scaling_factor"])
        writer.add_expert_group_count(config["n_group"])
        writer.add_moe_latent_size(config["moe_latent_size"])


def as_nemotron_h(config, tensors):
    experts = {}
    for name, bits in as_mamba2(config, tensors):
        m = re.fullmatch(r"backbone\.layers\.(\d+)\.mixer\.experts\.(\d+)\.(\w+)_proj\.weight", name)
        if m is not None:
            experts.setdefault(f"blk.{m[1]}.ffn_{m[3]}_exps.weight", {})[int(m[2])] = bits
            continue
        name = name.replace("e_score_correction_bias", "e_score_correction.bias")
        if name.endswith("dt_proj.bias"):
            name = f"blk.{name.split('.')[2]}.ssm_dt.bias"
        yield name, bits
    for name, parts in experts.items():
        yield name, np.stack([parts[e] for e in range(len(parts))])


def kimi_linear_keys(writer, config):
    linear = config["linear_attn_config"]
    rank, rope = config["kv_lora_rank"], config["qk_rope_head_dim"]
    writer.add_feed_forward_length(config["intermediate_size"])
    writer.add_head_count_kv([int(i + 1 in linear["full_attn_layers"]) for i in range(config["num_hidden_layers"])])
    writer.add_layer_norm_rms_eps(config["rms_norm_eps"])
    writer.add_ssm_conv_kernel(linear["short_conv_kernel_size"])
    writer.add_kda_head_dim(linear["head_dim"])
    writer.add_kv_lora_rank(rank)
    writer.add_rope_dimension_count(rope)
    writer.add_key_length(rank + rope)
    writer.add_value_length(rank)
    writer.add_key_length_mla(config["qk_nope_head_dim"] + rope)
    writer.add_value_length_mla(config["v_head_dim"])
    writer.add_expert_count(config["num_experts"])
    writer.add_expert_used_count(config["num_experts_per_token"])
    writer.add_expert_group_count(config["num_expert_group"])
    writer.add_expert_group_used_count(config["topk_group"])
    writer.add_expert_gating_func(gguf.ExpertGatingFuncType.SIGMOID)
    writer.add_expert_feed_forward_length(config["moe_intermediate_size"])
    writer.add_expert_shared_count(config["num_shared_experts"])
    writer.add_leading_dense_block_count(config["first_k_dense_replace"])
    writer.add_expert_weights_scale(config["routed_scaling_factor"])


def as_kimi_linear(config, tensors):
    for name, bits in split_kv_b(config, tensors, False):
        name = name.replace("e_score_correction_bias", "e_score_correction.bias")
        if name.endswith("A_log"):
            bits = -np.exp(floats(bits))
        elif name.endswith("conv1d.weight"):
            bits = bits.reshape(1, bits.shape[0], 1, bits.shape[-1])
        elif name.endswith("dt_bias"):
            name = name.replace("dt_bias", "dt_proj.bias")
        yield name, bits


def rwkv7_keys(writer, config):
    writer.add_feed_forward_length(config["intermediate_size"])
    writer.add_layer_norm_eps(config["norm_eps"])
    writer.add_wkv_head_size(config["head_dim"])
    writer.add_decay_lora_rank(config["decay_low_rank_dim"])
    writer.add_iclr_lora_rank(config["a_low_rank_dim"])
    writer.add_value_residual_mix_lora_rank(config["v_low_rank_dim"])
    writer.add_gate_lora_rank(config["gate_low_rank_dim"])


def as_rwkv7(config, tensors):
    """By the names of the gguf package for RWKV-7's own files; all mixtures of a layer in one tensor, and matrices for
    values in the first layer, which nothing reads."""
    names, mixtures = gguf.get_tensor_name_map(gguf.MODEL_ARCH.RWKV7, config["num_hidden_layers"]), {}
    for name, bits in tensors:
        if ".attn.x_" in name:
            mixtures.setdefault(name.split(".")[2], {})[name[-1]] = floats(bits)
            continue
        for old, new in (("attn", "attention"), ("ffn", "feed_forward"), ("feed_forward_norm", "ln2"), ("g_norm", "ln_x"),
                         ("_lora.lora.0", "1"), ("_lora.lora.2.weight", "2.weight"), ("_lora.lora.2.bias", "0.weight")):
            name = name.replace(old, new)
        to = names.get_name(name, try_suffixes=(".weight", ".bias"))
        assert to, name
        to = to if to.endswith((".weight", ".bias")) else to + ".weight"
        if "k_k" in to or "k_a" in to or "r_k" in to or bits.ndim == 3:
            bits = bits.reshape(-1)
        if to.startswith("blk.0.time_mix_a"):
            yield to.replace("time_mix_a", "time_mix_v"), bits
        yield to, bits
    for layer, by in mixtures.items():
        yield f"blk.{layer}.time_mix_lerp_fused.weight", np.stack([by[k].reshape(1, 1, -1) for k in "rwkvag"])


# Models with recurrent layers: keys that are not as in others, what becomes of their tensors.
RECURRENT = {
    "lfm2_hub": (gguf.MODEL_ARCH.LFM2, lfm2_keys, as_lfm2),
    "lfm2_moe": (gguf.MODEL_ARCH.LFM2MOE, lfm2_keys, as_lfm2),
    "kimi_linear": (gguf.MODEL_ARCH.KIMI_LINEAR, kimi_linear_keys, as_kimi_linear),
    "bamba": (gguf.MODEL_ARCH.GRANITE_HYBRID, granite_hybrid_keys, as_granite_hybrid),
    "falcon_h1_gate": (gguf.MODEL_ARCH.FALCON_H1, falcon_h1_keys, as_falcon_h1),
    "granitemoehybrid": (gguf.MODEL_ARCH.GRANITE_HYBRID, granite_hybrid_keys, as_granite_hybrid),
    "nemotron_h": (gguf.MODEL_ARCH.NEMOTRON_H, nemotron_h_keys, as_nemotron_h),
    "nemotron3": (gguf.MODEL_ARCH.NEMOTRON_H_MOE, nemotron_h_keys, as_nemotron_h),
    "falcon_mamba": (gguf.MODEL_ARCH.MAMBA, mamba1_keys, as_mamba1),
    "jamba": (gguf.MODEL_ARCH.JAMBA, jamba_keys, as_mamba1),
    "mamba": (gguf.MODEL_ARCH.MAMBA, mamba1_keys, as_mamba1),
    "mamba2": (gguf.MODEL_ARCH.MAMBA2, mamba2_keys, as_mamba2),
    "rwkv7": (gguf.MODEL_ARCH.RWKV7, rwkv7_keys, as_rwkv7),
    "qwen3_5": (gguf.MODEL_ARCH.QWEN35, qwen35_keys, as_qwen35),
    "qwen3_5_moe": (gguf.MODEL_ARCH.QWEN35MOE, qwen35_keys, as_qwen35),
    "qwen3_next_all": (gguf.MODEL_ARCH.QWEN3NEXT, qwen35_keys, as_qwen35),
}


def floats(bits):
    return bits if bits.dtype == np.float32 else (bits.astype(np.uint32) << 16).view(np.float32)


def write_recurrent(name, arch, add_keys, convert):
    config = read_config(name)
    writer = gguf.GGUFWriter(str(OUT / f"{name}.gguf"), gguf.MODEL_ARCH_NAMES[arch])
    rope = config.get("rope_parameters") or config
    writer.add_context_length(config.get("max_position_embeddings", 2**20))
    writer.add_embedding_length(config["hidden_size"])
    n_layers = config.get("num_hidden_layers") or len(config["layers_block_type"])
    writer.add_block_count(n_layers)
    writer.add_head_count(config.get("num_attention_heads", 0))
    if "rope_theta" in rope:
        writer.add_rope_freq_base(rope["rope_theta"])
    add_keys(writer, config)
    names = gguf.get_tensor_name_map(arch, n_layers)
    tensors = stack(read_safetensors(MODELS / name / "model.safetensors"), True)
    for hf, bits in convert(config, tensors):
        to = hf if hf.startswith(("blk.", "output", "token_embd")) else names.get_name(hf, try_suffixes=(".weight", ".bias"))
        assert to, hf
        if bits.ndim == 1 or bits.dtype == np.float32 or any(s in to for s in ("ffn_gate_inp", "conv1d", "shortconv.conv")):
            writer.add_tensor(to, np.ascontiguousarray(floats(bits)))
        else:
            writer.add_tensor(to, np.ascontiguousarray(bits).view(np.uint8), raw_dtype=gguf.GGMLQuantizationType.BF16)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    print(f"{name}: {(OUT / f'{name}.gguf').stat().st_size} bytes")


def write_decoder(name, arch, permuted, plus):
    config = read_config(name)
    writer = gguf.GGUFWriter(str(OUT / f"{name}.gguf"), gguf.MODEL_ARCH_NAMES[arch])
    heads = config["num_attention_heads"]
    kv_heads = config.get("num_key_value_heads", heads)
    head_dim = config.get("head_dim") or config["hidden_size"] // heads
    rope = config.get("rope_parameters") or config
    scaling = config.get("rope_scaling") or rope
    writer.add_context_length(config["max_position_embeddings"])
    writer.add_embedding_length(config["hidden_size"])
    writer.add_feed_forward_length(config["intermediate_size"])
    writer.add_block_count(config["num_hidden_layers"])
    writer.add_head_count(heads)
    latent = arch in (gguf.MODEL_ARCH.DEEPSEEK2, gguf.MODEL_ARCH.GLM_DSA, gguf.MODEL_ARCH.MISTRAL4)
    if latent:
        latent_keys(writer, config, name in WHOLE_KV_B)
    else:
        writer.add_head_count_kv(kv_heads)
        writer.add_key_length(head_dim)
        writer.add_value_length(head_dim)
    if "rms_norm_eps" in config:
        writer.add_layer_norm_rms_eps(config["rms_norm_eps"])
    else:
        writer.add_layer_norm_eps(next(config[k] for k in ("layer_norm_eps", "norm_epsilon", "norm_eps") if k in config))
    alpha = scaling.get("alpha")
    theta = rope["rope_theta"] if "rope_theta" in rope else config["rotary_emb_base"]
    writer.add_rope_freq_base(theta * (alpha ** (head_dim / (head_dim - 2)) if alpha else 1))
    add_experts(writer, config)
    if arch == gguf.MODEL_ARCH.LLAMA and config.get("sliding_window"):
        writer.add_sliding_window(config["sliding_window"])
    if "llama_4_scaling_beta" in scaling and not latent:
        writer.add_rope_scaling_yarn_log_mul(scaling["mscale_all_dim"])
        writer.add_attn_temperature_scale(scaling["llama_4_scaling_beta"])
    partial = rope.get("partial_rotary_factor", config.get("rotary_pct"))
    if arch == gguf.MODEL_ARCH.GPTNEOX:
        writer.add_parallel_residual(config["use_parallel_residual"])
    if partial is not None and not latent:
        writer.add_rope_dimension_count(int(head_dim * partial))
    if arch in (gguf.MODEL_ARCH.PHI3, gguf.MODEL_ARCH.PHIMOE):
        writer.add_sliding_window(config.get("sliding_window") or 0)
    if arch in (gguf.MODEL_ARCH.EXAONE4, gguf.MODEL_ARCH.EXAONE_MOE, gguf.MODEL_ARCH.OLMO2) and config.get("sliding_window"):
        n = config["num_hidden_layers"]
        writer.add_sliding_window(config["sliding_window"])
        writer.add_sliding_window_pattern([(i + 1) % 4 != 0 for i in range(n)])
    if scaling.get("rope_type") == "yarn":
        writer.add_rope_scaling_type(gguf.RopeScalingType.YARN)
        writer.add_rope_scaling_factor(scaling["factor"])
        writer.add_rope_scaling_orig_ctx_len(scaling["original_max_position_embeddings"])
        writer.add_rope_scaling_yarn_beta_fast(scaling.get("beta_fast", 32.0))
        writer.add_rope_scaling_yarn_beta_slow(scaling.get("beta_slow", 1.0))
    if scaling.get("rope_type") == "llama3":
        writer.add_tensor("rope_freqs.weight", llama3_divisors(scaling, rope["rope_theta"], head_dim))
    if "rope_local_base_freq" in config:
        writer.add_sliding_window(config["sliding_window"])
        writer.add_float32(f"{gguf.MODEL_ARCH_NAMES[arch]}.rope.freq_base_swa", config["rope_local_base_freq"])
        writer.add_rope_scaling_type(gguf.RopeScalingType.LINEAR)
        writer.add_rope_scaling_factor(config["rope_scaling"]["factor"])
    add_scales(writer, config)
    if "long_factor" in scaling:
        context, original = config["max_position_embeddings"], config["original_max_position_embeddings"]
        writer.add_rope_scaling_orig_ctx_len(original)
        writer.add_rope_scaling_attn_factors((1 + math.log(context / original) / math.log(original)) ** 0.5)
        for key in ("long", "short"):
            writer.add_tensor(f"rope_factors_{key}.weight", np.array(scaling[f"{key}_factor"], np.float32))
    if arch == gguf.MODEL_ARCH.GPT_OSS:
        writer.add_sliding_window(config["sliding_window"])
        writer.add_expert_count(config["num_local_experts"])
        writer.add_expert_used_count(config["num_experts_per_tok"])
        writer.add_expert_feed_forward_length(config["intermediate_size"])
        writer.add_rope_scaling_type(gguf.RopeScalingType.YARN)
        writer.add_rope_scaling_factor(config["rope_scaling"]["factor"])
        writer.add_rope_scaling_orig_ctx_len(config["rope_scaling"]["original_max_position_embeddings"])
        writer.add_rope_scaling_yarn_beta_fast(config["rope_scaling"]["beta_fast"])
        writer.add_rope_scaling_yarn_beta_slow(config["rope_scaling"]["beta_slow"])
    if arch == gguf.MODEL_ARCH.GEMMA_EMBEDDING:
        writer.add_pooling_type(gguf.PoolingType.MEAN)
        for dense in ("2_Dense", "3_Dense"):
            tensors = read_safetensors(MODELS / name / dense / "model.safetensors")
            w = next(bits for hf, bits in tensors if hf == "linear.weight")
            writer.add_dense_features_dims(f"dense_{dense[0]}", w.shape[1], w.shape[0])
            writer.add_tensor(f"dense_{dense[0]}.weight", (w.astype(np.uint32) << 16).view(np.float32))
    names = gguf.get_tensor_name_map(arch, config["num_hidden_layers"])
    tensors = list(read_safetensors(MODELS / name / "model.safetensors"))
    if arch in (gguf.MODEL_ARCH.DBRX, gguf.MODEL_ARCH.LLAMA4):
        tensors = list(whole_experts(config, tensors))
    tensors = list(stack(tensors, arch != gguf.MODEL_ARCH.PHIMOE))
    if arch == gguf.MODEL_ARCH.GPT_OSS:
        tensors = list(gpt_oss_tensors(tensors))
    if arch == gguf.MODEL_ARCH.GRANITE_MOE:
        tensors = list(granite_experts(tensors))
    if arch == gguf.MODEL_ARCH.GPTNEOX:
        tensors = list(parts_in_turn(tensors, heads))
    if latent:
        tensors = list(split_kv_b(config, tensors, name in WHOLE_KV_B))
    if arch == gguf.MODEL_ARCH.APERTUS:
        tensors = list(xielu_to_metadata(writer, tensors))
    for hf, bits in fuse_qkv(tensors) if name in FUSED else tensors:
        hf = hf.replace("e_score_correction_bias", "e_score_correction.bias")
        hf = hf + ".bias" if hf.endswith(".mlp.expert_bias") else hf
        hf = hf + ".weight" if latent and hf.endswith((".gate_up_proj", "experts.down_proj")) else hf
        to = names.get_name(hf, try_suffixes=(".weight", ".bias"))
        assert to, hf
        if permuted and ("q_proj" in hf or "k_proj" in hf):
            bits = interleave(bits, heads if "q_proj" in hf else kv_heads)
        if bits.dtype == np.uint8:
            writer.add_tensor(to, bits, raw_dtype=gguf.GGMLQuantizationType.MXFP4)
        elif bits.dtype == np.float32:
            writer.add_tensor(to, bits.reshape(-1))
        elif bits.ndim == 1 or hf.endswith(".bias") or "ffn_gate_inp" in to:
            f = (bits.astype(np.uint32) << 16).view(np.float32)
            writer.add_tensor(to, f + np.float32(plus) if hf.endswith("norm.weight") else f)
        else:
            writer.add_tensor(to, np.ascontiguousarray(bits).view(np.uint8), raw_dtype=gguf.GGMLQuantizationType.BF16)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    print(f"{name}: {(OUT / f'{name}.gguf').stat().st_size} bytes")


if __name__ == "__main__":
    OUT.mkdir(parents=True, exist_ok=True)
    names = sys.argv[1:] or [*POOLING, *ENCODERS, *DECODERS, *GEMMA4, *RECURRENT, "gemma3n", "mimo_v2_flash", "step3p5"]
    for model in names:
        if model in POOLING:
            write(model, POOLING[model])
        elif model in ENCODERS:
            write_encoder(model, *ENCODERS[model])
        elif model == "step3p5":
            write_step3(model)
        elif model == "mimo_v2_flash":
            write_mimo(model)
        elif model == "gemma3n":
            write_gemma3n(model)
        elif model in GEMMA4:
            write_gemma4(model)
        elif model in RECURRENT:
            write_recurrent(model, *RECURRENT[model])
        else:
            write_decoder(model, *DECODERS[model])
