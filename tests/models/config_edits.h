/* SPDX-License-Identifier: MIT
 * Edits of config.json, by family: what becomes of a model whose config says something else.
 */
#ifndef SL_TESTS_CONFIG_EDITS_H
#define SL_TESTS_CONFIG_EDITS_H

#include "base/err.h"

#include <stddef.h>

struct edit {
    const char *key, *value; /* JSON, or NULL: the key is removed */
    int code;                /* 0: accepted */
    const char *want;
};

#define INT_ROW(key)                                                                          \
    {key, NULL, SL_EFORMAT, "config.json: " key " is missing"},                               \
        {key, "null", SL_EFORMAT, "config.json: " key " is missing"},                         \
        {key, "0", SL_EFORMAT, "config.json: " key " is 0, must be 1 to"},                    \
        {key, "-64", SL_EFORMAT, "config.json: " key " is -64, must be 1 to"},                \
        {key, "1e300", SL_EFORMAT, "config.json: " key " must be an integer"},                \
        {key, "9223372036854775807", SL_EFORMAT, "config.json: " key " is|must be 1 to"},     \
        {key, "\"64\"", SL_EFORMAT, "config.json: " key " must be an integer, not a string"}, \
        {key, "true", SL_EFORMAT, "config.json: " key " must be an integer, not a boolean"},  \
        {key, "[64]", SL_EFORMAT, "config.json: " key " must be an integer, not a list"},     \
    {                                                                                         \
        key, "{}", SL_EFORMAT, "config.json: " key " must be an integer, not an object"       \
    }

static const struct edit hf_edits[] = {
    INT_ROW("hidden_size"),
    INT_ROW("intermediate_size"),
    INT_ROW("num_hidden_layers"),
    INT_ROW("num_attention_heads"),
    INT_ROW("max_position_embeddings"),
    INT_ROW("vocab_size"),
    {"num_key_value_heads", "0", SL_EFORMAT, "config.json: num_key_value_heads is 0"},
    {"num_key_value_heads", "3", SL_EFORMAT,
     "num_attention_heads (4) is not a multiple of num_key_value_heads (3)"},
    {"num_key_value_heads", "8", SL_EFORMAT, "num_key_value_heads (8)"},
    {"num_key_value_heads", NULL, SL_EFORMAT, "k_proj.weight\" has shape [32, 64]|[64, 64]"},
    {"head_dim", "15", SL_EFORMAT, "head_dim is 15, must be even"},
    {"head_dim", "0", SL_EFORMAT, "config.json: head_dim is 0, must be 2 to"},
    {"head_dim", "4096", SL_EFORMAT, "config.json: head_dim is 4096"},
    {"head_dim", "null", 0, NULL},
    {"head_dim", "32", SL_EFORMAT, "q_proj.weight\" has shape [64, 64], expected [128, 64]"},
    {"num_hidden_layers", "3", SL_EFORMAT,
     "tensor \"model.layers.2.input_layernorm.weight\" is missing"},
    {"num_hidden_layers", "1024", SL_EFORMAT, "is missing"},
    {"num_hidden_layers", "1025", SL_EFORMAT, "num_hidden_layers is 1025, must be 1 to 1024"},
    {"hidden_size", "128", SL_EFORMAT, "has shape [320, 64], expected [320, 128]"},
    {"hidden_size", "1048576", SL_EFORMAT, "expected [320, 1048576]"},
    {"intermediate_size", "161", SL_EFORMAT, "has shape [160, 64], expected [161, 64]"},
    {"vocab_size", "319", SL_EFORMAT, "embed_tokens.weight\" has shape [320, 64]"},
    {"rms_norm_eps", "0", SL_EFORMAT, "config.json: rms_norm_eps is 0"},
    {"rms_norm_eps", "-1e-5", SL_EFORMAT, "config.json: rms_norm_eps is -1e-05"},
    {"rms_norm_eps", "2", SL_EFORMAT, "config.json: rms_norm_eps is 2"},
    {"rms_norm_eps", "\"1e-5\"", SL_EFORMAT, "rms_norm_eps must be a number, not a string"},
    {"rms_norm_eps", NULL, 0, NULL},
    {"hidden_act", "\"mish\"", SL_EUNSUPPORTED,
     "config.json: hidden_act \"mish\" is not supported (supported: silu, gelu, "},
    {"hidden_act", "\"gelu_new\"", 0, NULL},
    {"hidden_act", "7", SL_EFORMAT, "hidden_act must be a string, not an integer"},
    {"tie_word_embeddings", "1", SL_EFORMAT, "tie_word_embeddings must be true or false"},
    {"tie_word_embeddings", "true", 0, NULL},
    {"attention_bias", "true", SL_EFORMAT,
     "tensor \"model.layers.0.self_attn.q_proj.bias\" is missing"},
    {"mlp_bias", "true", SL_EFORMAT, "tensor \"model.layers.0.mlp.gate_proj.bias\" is missing"},
    {"num_local_experts", "8", SL_EUNSUPPORTED, "num_local_experts is 8: not supported"},
    {"architectures", "[\"RwkvForCausalLM\"]", SL_EUNSUPPORTED,
     "config.json: architectures \"RwkvForCausalLM\" is not supported|LlamaForCausalLM|, ..."},
    {"architectures", "[]", SL_EFORMAT, "architectures must be a list of strings"},
    {"architectures", "[7]", SL_EFORMAT, "architectures must be a list of strings"},
    {"architectures", "\"LlamaForCausalLM\"", SL_EFORMAT, "architectures must be a list"},
    {"architectures", "[\"LlamaForCausalLM\\u0000x\"]", SL_EFORMAT, "config.json: line 1"},
    {"architectures", NULL, 0, NULL},
    {"quantization_config", "{\"quant_method\": \"hqq\", \"bits\": 4}", SL_EUNSUPPORTED,
     "quantization_config with quant_method \"hqq\""},
    {"quantization_config", "[]", SL_EUNSUPPORTED, "quantization_config"},
    {"quantization_config", "null", 0, NULL},
    {"eos_token_id", "\"2\"", SL_EFORMAT, "config.json: eos_token_id must be an integer"},
    {"eos_token_id", "[2, \"3\"]", SL_EFORMAT, "config.json: eos_token_id must be an integer"},
    {"eos_token_id", "[1,2,3,4,5,6,7,8,9]", SL_ELIMIT, "config.json: eos_token_id: more than 8"},
    {"eos_token_id", "[-1, 320, 99999999999]", 0, NULL},
    /* RoPE, as transformers 5 spells it */
    {"rope_parameters", "7", SL_EFORMAT, "config.json: rope_parameters must be an object"},
    {"rope_parameters", "{\"rope_type\": \"xdrope\", \"factor\": 2}", SL_EUNSUPPORTED,
     "config.json: rope_parameters.rope_type \"xdrope\" is not supported (supported: default"},
    {"rope_parameters", "{\"rope_type\": \"longrope\"}", SL_EFORMAT,
     "rope_parameters.short_factor is missing"},
    {"rope_parameters", "{\"rope_type\": 3}", SL_EFORMAT, "rope_type must be a string"},
    {"rope_parameters", "{\"rope_type\": \"yarn\"}", SL_EFORMAT,
     "config.json: rope_parameters.factor is missing"},
    {"rope_parameters", "{\"rope_type\": \"yarn\", \"factor\": 0}", SL_EFORMAT,
     "rope_parameters.factor is 0, must be 1 to"},
    {"rope_parameters", "{\"rope_type\": \"yarn\", \"factor\": 4, \"beta_fast\": 0}", SL_EFORMAT,
     "rope_parameters.beta_fast is 0"},
    {"rope_parameters", "{\"rope_type\": \"yarn\", \"factor\": 4, \"truncate\": 1}", SL_EFORMAT,
     "rope_parameters.truncate must be true or false"},
    {"rope_parameters", "{\"rope_type\": \"yarn\", \"factor\": 4}", 0, NULL},
    {"rope_parameters",
     "{\"rope_type\": \"llama3\", \"factor\": 8, \"low_freq_factor\": 4, "
     "\"high_freq_factor\": 1}",
     SL_EFORMAT, "rope_parameters.high_freq_factor (1) must not be below low_freq_factor (4)"},
    {"rope_parameters", "{\"rope_theta\": 1}", SL_EFORMAT, "rope_parameters.rope_theta is 1"},
    {"rope_parameters", "{\"rope_theta\": -5}", SL_EFORMAT, "rope_parameters.rope_theta is -5"},
    {"rope_parameters", "{\"rope_theta\": []}", SL_EFORMAT, "rope_theta must be a number"},
    {"rope_parameters", "{\"partial_rotary_factor\": 0.5}", SL_EUNSUPPORTED,
     "partial_rotary_factor 0.5 is not supported"},
    {"rope_parameters", "{\"full_attention\": {\"rope_theta\": 1e4}}", SL_EUNSUPPORTED,
     "rope_parameters per layer type"},
    {"rope_parameters", NULL, 0, NULL},
    /* and as earlier versions do */
    {"rope_scaling", "{\"type\": \"ntk\"}", SL_EUNSUPPORTED,
     "config.json: rope_scaling.type \"ntk\" is not supported"},
    {"rope_scaling", "{\"type\": \"linear\", \"factor\": \"2\"}", SL_EFORMAT,
     "rope_scaling.factor must be a number"},
    {"rope_scaling", "{\"type\": \"linear\", \"factor\": 2}", 0, NULL},
    {"rope_theta", "\"x\"", SL_EFORMAT, "config.json: rope_theta must be a number"},
};

static const struct edit mistral_edits[] = {
    {"sliding_window", "0", SL_EFORMAT, "config.json: sliding_window is 0, must be 1 to"},
    {"sliding_window", "-1", SL_EFORMAT, "config.json: sliding_window is -1"},
    {"sliding_window", "4.5", SL_EFORMAT, "sliding_window must be an integer"},
    {"sliding_window", "null", 0, NULL},
};

static const struct edit qwen_edits[] = {
    {"use_sliding_window", "\"no\"", SL_EFORMAT, "use_sliding_window must be true or false"},
    {"max_window_layers", "-1", SL_EFORMAT, "config.json: max_window_layers is -1"},
    {"layer_types", "[\"full_attention\"]", SL_EFORMAT,
     "layer_types has 1 entries, num_hidden_layers is 2"},
    {"layer_types", "[\"full_attention\", 3]", SL_EFORMAT, "layer_types[1] must be a string"},
    {"layer_types", "[\"full_attention\", \"mamba\"]", SL_EUNSUPPORTED,
     "layer_types[1] \"mamba\" is not supported"},
    {"layer_types", "[\"sliding_attention\", \"full_attention\"]", SL_EFORMAT,
     "layer_types[0] is sliding_attention, but use_sliding_window"},
    {"layer_types", "[\"full_attention\", \"full_attention\"]", 0, NULL},
    {"num_experts", "128", SL_EUNSUPPORTED, "num_experts is 128: not supported"},
};

static const struct edit smollm3_edits[] = {
    {"no_rope_layer_interval", "0", SL_EFORMAT, "no_rope_layer_interval is 0, must be 1 to"},
    {"no_rope_layers", "[1, 1, 1]", SL_EFORMAT, "no_rope_layers has 3 entries"},
    {"no_rope_layers", "[1, 0, 2, 1]", SL_EFORMAT, "no_rope_layers[2] must be 0 or 1"},
    {"no_rope_layers", "\"1\"", SL_EFORMAT,
     "no_rope_layers must be a list of 0 and 1, not a string"},
    {"no_rope_layers", "[1, 0, true, 1, 1]", 0, NULL},
    {"mlp_bias", "true", SL_EFORMAT, "tensor \"model.layers.0.mlp.gate_proj.bias\" is missing"},
    {"tie_word_embeddings", NULL, 0, NULL},
    {"tie_word_embeddings", "false", SL_EFORMAT, "tensor \"lm_head.weight\" is missing"},
};

static const struct {
    const char *family;
    struct edit edit;
} expert_edits[] = {
    {"qwen3moe", {"num_experts", "0", SL_EFORMAT, "num_experts is 0, must be 1 to"}},
    {"qwen3moe",
     {"num_experts", "6", SL_EFORMAT, "mlp.gate.weight\" has shape [7, 64], expected [6, 64]"}},
    {"qwen3moe",
     {"num_experts_per_tok", "8", SL_EFORMAT,
      "num_experts_per_tok (8) is more than the 7 experts"}},
    {"qwen3moe", {"num_experts_per_tok", NULL, SL_EFORMAT, "num_experts_per_tok is missing"}},
    {"qwen3moe",
     {"moe_intermediate_size", "48", SL_EFORMAT,
      "experts.0.gate_proj.weight\" has shape [96, 64], expected [48, 64]"}},
    {"qwen3moe",
     {"mlp_only_layers", "[2]", SL_EFORMAT, "mlp_only_layers[0] must be a layer, 0 to 1"}},
    {"qwen3moe", {"mlp_only_layers", "1", SL_EFORMAT, "mlp_only_layers must be a list of layers"}},
    {"qwen3moe",
     {"mlp_only_layers", "[1]", SL_EFORMAT, "layers.1.mlp.gate_proj.weight\" is missing"}},
    {"qwen3moe",
     {"decoder_sparse_step", "2", SL_EFORMAT, "layers.0.mlp.gate_proj.weight\" is missing"}},
    {"qwen2moe",
     {"shared_expert_intermediate_size", NULL, SL_EFORMAT,
      "config.json: shared_expert_intermediate_size is missing"}},
    {"qwen2moe",
     {"shared_expert_intermediate_size", "64", SL_EFORMAT,
      "shared_expert.gate_proj.weight\" has shape [128, 64], expected [64, 64]"}},
    {"qwen2moe", {"norm_topk_prob", "1", SL_EFORMAT, "norm_topk_prob must be true or false"}},
    {"qwen2moe",
     {"mlp_only_layers", "[1]", SL_EFORMAT, "layers.1.mlp.gate_proj.weight\" is missing"}},
    {"mixtral",
     {"num_experts_per_tok", "6", SL_EFORMAT,
      "num_experts_per_tok (6) is more than the 5 experts"}},
    {"mixtral", {"num_experts_per_tok", NULL, SL_EFORMAT, "num_experts_per_tok is missing"}},
    {"mixtral",
     {"intermediate_size", "80", SL_EFORMAT,
      "experts.0.w1.weight\" has shape [96, 64], expected [80, 64]"}},
    {"olmoe", {"clip_qkv", "-8.0", SL_EFORMAT, "clip_qkv is -8, must be 0 to"}},
    {"olmoe", {"clip_qkv", "8.0", 0, NULL}},
    {"glm4moe",
     {"n_group", "3", SL_EFORMAT, "n_group: 3 of 8 experts cannot be chosen from 2 of 3"}},
    {"glm4moe", {"n_group", "8", SL_EFORMAT, "3 of 8 experts cannot be chosen from 2 of 8 groups"}},
    {"glm4moe", {"topk_group", "1", SL_EFORMAT, "3 of 8 experts cannot be chosen from 1 of 4"}},
    {"glm4moe", {"n_group", NULL, 0, NULL}},
    {"glm4moe",
     {"first_k_dense_replace", "4", SL_EFORMAT, "layers.1.mlp.gate_proj.weight\" is missing"}},
    {"glm4moe",
     {"first_k_dense_replace", "0", SL_EFORMAT, "layers.0.mlp.gate.weight\" is missing"}},
    {"glm4moe",
     {"n_shared_experts", "2", SL_EFORMAT,
      "shared_experts.gate_proj.weight\" has shape [96, 64], expected [192, 64]"}},
    {"glm4moe",
     {"routed_scaling_factor", "-1", SL_EFORMAT, "routed_scaling_factor is -1, must be 0 to"}},
    {"ernie4_5_moe", {"use_bias", "true", SL_EUNSUPPORTED, "use_bias true is not supported"}},
    {"ernie4_5_moe", {"moe_layer_end_index", "1", SL_EUNSUPPORTED, "moe_layer_end_index 1 is not"}},
    {"ernie4_5_moe", {"moe_layer_end_index", "2", 0, NULL}},
    {"exaone_moe", {"mlp_layer_types", "[\"dense\"]", SL_EFORMAT, "mlp_layer_types has 1 entries"}},
    {"exaone_moe",
     {"mlp_layer_types", "[\"dense\", \"moe\", \"sparse\", \"sparse\"]", SL_EUNSUPPORTED,
      "mlp_layer_types[1] \"moe\" is not supported"}},
    {"exaone_moe",
     {"mlp_layer_types", "[\"dense\", \"dense\", \"sparse\", \"sparse\"]", SL_EFORMAT,
      "layers.1.mlp.gate_proj.weight\" is missing"}},
    {"exaone_moe", {"mlp_layer_types", "[\"dense\", \"sparse\", \"sparse\", \"sparse\"]", 0, NULL}},
    {"hunyuan_v1_moe", {"moe_topk", "[3, 3, 3]", 0, NULL}},
    {"hunyuan_v1_moe", {"moe_topk", "[3]", SL_EFORMAT, "moe_topk has 1 entries"}},
    {"hunyuan_v1_moe",
     {"moe_topk", "[3, 2]", SL_EUNSUPPORTED, "moe_topk differs between layers 0 and 1"}},
    {"hunyuan_v1_moe",
     {"num_experts", "[true, true]", SL_EFORMAT, "num_experts must be an integer"}},
    {"hunyuan_v1_moe", {"use_cla", "true", SL_EUNSUPPORTED, "use_cla is true: not supported"}},
    {"hunyuan_v1_moe", {"use_qk_norm", "false", SL_EUNSUPPORTED, "use_qk_norm is false"}},
    {"cohere2_moe",
     {"expert_selection_fn", "\"sinkhorn\"", SL_EUNSUPPORTED,
      "expert_selection_fn \"sinkhorn\" is not supported (supported: softmax, sigmoid)"}},
    {"cohere2_moe",
     {"expert_selection_fn", "7", SL_EFORMAT, "expert_selection_fn must be a string"}},
    {"cohere2_moe",
     {"prefix_dense_intermediate_size", "96", SL_EFORMAT,
      "layers.0.mlp.gate_proj.weight\" has shape [160, 64], expected [96, 64]"}},
    {"phimoe",
     {"router_jitter_noise", "2", SL_EFORMAT, "router_jitter_noise is 2, must be 0 to 1"}},
    {"phimoe", {"lm_head_bias", "false", 0, NULL}},
    {"dbrx",
     {"ffn_config", "{}", SL_EFORMAT, "config.json: ffn_config.ffn_hidden_size is missing"}},
    {"dbrx",
     {"ffn_config", "7", SL_EFORMAT, "config.json: ffn_config must be an object, not an integer"}},
    {"dbrx",
     {"attn_config", "{\"kv_n_heads\": 2, \"clip_qkv\": -1}", SL_EFORMAT,
      "config.json: attn_config.clip_qkv is -1, must be 0 to"}},
    {"dbrx",
     {"attn_config", "{\"kv_n_heads\": 2, \"rope_theta\": 1}", SL_EFORMAT,
      "config.json: attn_config.rope_theta is 1, must be 2 to"}},
    {"dbrx",
     {"ffn_config",
      "{\"ffn_hidden_size\": 96, \"moe_num_experts\": 7, \"moe_top_k\": 3, "
      "\"moe_normalize_expert_weights\": 2}",
      SL_EUNSUPPORTED, "ffn_config.moe_normalize_expert_weights is 2: not supported, must be 1"}},
    {"dbrx",
     {"ffn_config", "{\"ffn_hidden_size\": 48, \"moe_num_experts\": 7, \"moe_top_k\": 3}",
      SL_EFORMAT, "mlp.w1\" has shape [7, 96, 64], expected [7, 48, 64]"}},
    {"afmoe", {"route_norm", "false", SL_EUNSUPPORTED, "route_norm is false: not supported"}},
    {"afmoe", {"score_func", "\"softmax\"", SL_EUNSUPPORTED, "score_func \"softmax\" is not"}},
    {"afmoe", {"mup_enabled", "false", 0, NULL}},
    {"llama4",
     {"attention_chunk_size", "0", SL_EFORMAT, "attention_chunk_size is 0, must be 1 to"}},
    {"llama4", {"no_rope_layers", "[]", 0, NULL}},
    {"llama4", {"attn_temperature_tuning", "4", 0, NULL}}, /* as Scout has it */
    {"llama4",
     {"attn_temperature_tuning", "\"4\"", SL_EFORMAT,
      "attn_temperature_tuning must be true or false"}},
    {"llama4", {"moe_layers", "[4]", SL_EFORMAT, "moe_layers[0] must be a layer, 0 to 3"}},
    {"llama4", {"moe_layers", "[1, 3]", 0, NULL}},
    {"llama4",
     {"moe_layers", "[0, 1]", SL_EFORMAT, "layers.0.feed_forward.router.weight\" is missing"}},
    {"llama4",
     {"layer_types",
      "[\"chunked_attention\", \"sliding_attention\", \"full_attention\", \"full_attention\"]",
      SL_EUNSUPPORTED, "layer_types[1] \"sliding_attention\" is not supported"}},
    {"mimo_v2_flash",
     {"swa_num_key_value_heads", "3", SL_EFORMAT,
      "has 4 heads, which is not a multiple of its 3 KV heads"}},
    {"mimo_v2_flash",
     {"add_full_attention_sink_bias", "true", SL_EUNSUPPORTED,
      "add_full_attention_sink_bias is true: not supported"}},
    {"mimo_v2_flash",
     {"v_head_dim", "8", SL_EFORMAT, "v_proj.weight\" has shape [16, 64], expected [8, 64]"}},
    {"step3p5", {"swiglu_limits", "[0, 1]", SL_EFORMAT, "swiglu_limits has 2 entries"}},
    {"step3p5",
     {"swiglu_limits", "[0, null, -1, 0]", SL_EFORMAT, "swiglu_limits of layer 2 is -1"}},
    {"step3p5", {"swiglu_limits", "[0, null, 7, \"a\"]", SL_EFORMAT, "[3] must be a number"}},
    {"step3p5", {"swiglu_limits", "[0, null, 7, 7]", 0, NULL}},
    {"step3p5", {"swiglu_limits", NULL, 0, NULL}},
    {"step3p5", {"zero_centered", "false", SL_EUNSUPPORTED, "zero_centered is false: not"}},
    {"step3p5", {"use_head_wise_attn_gate", "false", SL_EUNSUPPORTED, "attn_gate is false"}},
    {"step3p5", {"moe_router_activation", "\"softmax\"", SL_EUNSUPPORTED, "\"softmax\" is not"}},
    {"step3p5", {"mlp_layer_types", NULL, 0, NULL}}, /* moe_layers_enum says the same */
    {"step3p5", {"moe_layers_enum", "\"1,2,3\"", 0, NULL}},
    {"step3p5", {"moe_layers_enum", "\"1,x\"", SL_EFORMAT, "moe_layers_enum[1] must be a layer"}},
    {"step3p5", {"moe_layers_enum", "\"1,4\"", SL_EFORMAT, "moe_layers_enum[1] must be a layer"}},
    {"step3p5", {"moe_layers_enum", "1", SL_EFORMAT, "moe_layers_enum must be a list of layers"}},
    {"step3p5",
     {"num_sliding_attention_heads", "8", SL_EFORMAT, "q_proj.weight\" has shape [144, 64]"}},
    {"step3p5",
     {"num_sliding_attention_heads", "5", SL_EFORMAT, "has 5 heads, which is not a multiple"}},
    {"step3p5", {"sliding_window", NULL, SL_EFORMAT, "layer 1 is windowed, but there is no"}},
    {"granite_swa",
     {"layer_rope_theta", "[10000.0, 500.0]", SL_EUNSUPPORTED,
      "layer_rope_theta[1] is 500 where a layer before it has 10000: several thetas"}},
    {"granite_swa",
     {"layer_rope_theta", "[10000, 1]", SL_EFORMAT, "layer_rope_theta[1] must be 0"}},
    {"granite_swa", {"layer_rope_theta", "[0]", SL_EFORMAT, "layer_rope_theta has 1 entries"}},
    {"granite_swa", {"layer_rope_theta", "[0, 500]", 0, NULL}},
    {"hy_v3", {"mlp_bias", "true", SL_EUNSUPPORTED, "mlp_bias true is not supported"}},
    {"minimax_m2",
     {"scoring_func", "\"softmax\"", SL_EUNSUPPORTED, "scoring_func \"softmax\" is not supported"}},
    {"minimax_m2", {"rotary_dim", "34", SL_EFORMAT, "34 dimensions of a head of 32 are rotated"}},
    {"minimax_m2",
     {"shared_intermediate_size", "96", SL_EUNSUPPORTED,
      "shared_intermediate_size is 96: not supported"}},
};

#define FULL "{\"full_attention\": {\"rope_theta\": 1e6, \"rope_type\": "
static const struct edit gemma3_edits[] = {
    {"final_logit_softcapping", "30", SL_EUNSUPPORTED, "final_logit_softcapping is 30"},
    {"attn_logit_softcapping", "50", SL_EUNSUPPORTED, "attn_logit_softcapping is 50"},
    {"use_bidirectional_attention", "true", SL_EUNSUPPORTED, "use_bidirectional_attention true"},
    {"hidden_activation", "\"mish\"", SL_EUNSUPPORTED, "hidden_activation \"mish\" is not"},
    {"query_pre_attn_scalar", "0", SL_EFORMAT, "query_pre_attn_scalar is 0, must be 1 to"},
    {"sliding_window_pattern", "0", SL_EFORMAT, "sliding_window_pattern is 0, must be 1 to"},
    {"layer_types", "[\"full_attention\"]", SL_EFORMAT, "layer_types has 1 entries"},
    {"rope_parameters", FULL "\"yarn\"}}", SL_EFORMAT, "full_attention.factor is missing"},
    {"rope_parameters", FULL "7}}", SL_EFORMAT, "full_attention.rope_type must be a string"},
    {"rope_parameters", "{\"full_attention\": {}, \"sliding_attention\": 7}", SL_EFORMAT,
     "rope_parameters.sliding_attention must be an object"},
    {"rope_parameters", FULL "\"linear\", \"factor\": 8}}", 0, NULL},
    {"rope_local_base_freq", "1", SL_EFORMAT, "rope_local_base_freq is 1, must be 2 to"},
    {"tie_word_embeddings", NULL, 0, NULL},
    /* what is left out is transformers' default, which this model has not */
    {"num_attention_heads", NULL, SL_EFORMAT, "q_proj.weight\" has shape [64, 64], expected [128"},
    {"hidden_size", NULL, SL_EFORMAT, "expected [320, 2304]"},
};

/* Six layers, of which every second is full and the last two read keys of the two before. */
static const struct edit gemma4_edits[] = {
    {"use_bidirectional_attention", "\"all\"", SL_EUNSUPPORTED,
     "use_bidirectional_attention \"all\" is not supported"},
    {"use_bidirectional_attention", "\"vision\"", 0, NULL},
    {"attention_bias", "true", SL_EUNSUPPORTED, "attention_bias true is not supported"},
    {"enable_moe_block", "true", SL_EFORMAT,
     "num_experts, top_k_experts or moe_intermediate_size is"},
    {"num_kv_shared_layers", "6", SL_EFORMAT, "num_kv_shared_layers is 6, must be less than"},
    {"num_kv_shared_layers", "-1", SL_EFORMAT, "num_kv_shared_layers is -1, must be 0 to"},
    {"num_kv_shared_layers", "1", SL_EFORMAT, "layers.4.self_attn.k_proj.weight\" is missing"},
    {"layer_types",
     "[\"full_attention\", \"full_attention\", \"full_attention\", \"full_attention\", "
     "\"sliding_attention\", \"full_attention\"]",
     SL_EFORMAT, "layer 4 shares keys with a layer of its kind, but none of the first 4"},
    {"global_head_dim", "31", SL_EFORMAT, "layer 1 has heads of 31 dimensions, must be even"},
    {"global_head_dim", "64", SL_EFORMAT, "layers.1.self_attn.q_proj.weight\" has shape [128, 64]"},
    {"num_global_key_value_heads", "3", SL_EFORMAT,
     "4 heads of layer 1 are no multiple of its 3 key heads"},
    {"attention_k_eq_v", "false", SL_EFORMAT, "layers.1.self_attn.k_proj.weight\" has shape"},
    {"per_layer_config", "{\"1\": {\"head_dim\": 32}, \"3\": {\"head_dim\": 32}}", 0, NULL},
    {"per_layer_config", "{\"1\": {\"head_dim\": 16}}", SL_EFORMAT,
     "layer 3 has heads of 32 dimensions, must be even and as in other layers of its kind"},
    {"per_layer_config", "{\"1\": {\"head_dim\": true}}", SL_EFORMAT,
     "per_layer_config[\"1\"].head_dim must be an integer"},
    {"per_layer_config", "{\"1\": {\"num_key_value_heads\": 0}}", SL_EFORMAT,
     "per_layer_config of layer 1 is 0, must be 1 to"},
    {"per_layer_config", "[]", SL_EFORMAT, "per_layer_config must be an object, not a list"},
    {"intermediate_size", "[160, 160]", SL_EFORMAT, "intermediate_size has 2 entries"},
    {"intermediate_size", "[1, 2, 3, 4, 5, \"6\"]", SL_EFORMAT,
     "intermediate_size must be an integer or a list of integers"},
    {"intermediate_size", "0", SL_EFORMAT, "intermediate_size of layer 0 is 0, must be 1 to"},
    {"hidden_size_per_layer_input", "16", SL_EFORMAT, "has shape [320, 192], expected [320, 96]"},
    {"hidden_size_per_layer_input", "0", 0, NULL},
    {"vocab_size_per_layer_input", "319", SL_EFORMAT,
     "vocab_size_per_layer_input (319) is less than vocab_size (320)"},
    {"rope_parameters", FULL "\"proportional\", \"partial_rotary_factor\": 2}}", SL_EFORMAT,
     "full_attention.partial_rotary_factor is 2, must be 0 to 1"},
};

static const struct edit glm4_edits[] = {
    /* heads of 32 */
    {"rope_parameters", "{\"partial_rotary_factor\": 0.47}", SL_EFORMAT,
     "15 dimensions of a head of 32 are rotated, must be even and 2 to 32"},
    {"rope_parameters", "{\"partial_rotary_factor\": 0}", SL_EFORMAT, "0 dimensions of a head"},
    {"rope_parameters", "{\"partial_rotary_factor\": 1.5}", SL_EFORMAT,
     "partial_rotary_factor is 1.5, must be 0 to 1"},
    {"rope_parameters", "{\"partial_rotary_factor\": 0.25}", 0, NULL},
    {"rope_parameters", NULL, 0, NULL}, /* a half */
    {"intermediate_size", "161", SL_EFORMAT,
     "gate_up_proj.weight\" has shape [320, 64], expected [322, 64]"},
};

#define LONG(more) "{\"rope_type\": \"longrope\", \"partial_rotary_factor\": 0.5, " more "}"
#define SHORTS     "\"short_factor\": [1, 1, 1, 1], "
static const struct edit phi3_edits[] = {
    {"rope_scaling", LONG(SHORTS "\"long_factor\": [1, 2, 3, 4]"), 0, NULL},
    {"rope_scaling", LONG("\"short_factor\": [1, 1]"), SL_EFORMAT,
     "rope_scaling.short_factor must be a list of 4 numbers"},
    {"rope_scaling", LONG("\"short_factor\": 1"), SL_EFORMAT, "short_factor must be a list of 4"},
    {"rope_scaling", LONG(SHORTS "\"factor\": 4"), SL_EFORMAT, "long_factor is missing"},
    {"rope_scaling", LONG(SHORTS "\"long_factor\": [1, 2, 0, 4]"), SL_EFORMAT,
     "rope_scaling.long_factor[2] must be a number, 0.001 to"},
    {"rope_scaling", LONG(SHORTS "\"long_factor\": [1, 2, \"3\", 4]"), SL_EFORMAT,
     "rope_scaling.long_factor[2] must be a number"},
    {"rope_scaling", LONG(SHORTS "\"original_max_position_embeddings\": 0"), SL_EFORMAT,
     "original_max_position_embeddings is 0, must be 1 to"},
    {"original_max_position_embeddings", "\"4k\"", 0, NULL}, /* nothing needs it */
    {"rope_parameters", "{\"partial_rotary_factor\": 0.5}", 0, NULL},
    {"sliding_window", "-1", SL_EFORMAT, "sliding_window is -1, must be 0 to"},
    {"sliding_window", "null", 0, NULL},
    {"num_key_value_heads", "4", SL_EFORMAT,
     "qkv_proj.weight\" has shape [128, 64], expected [192, 64]"},
};

static const struct edit gemma2_edits[] = {
    {"final_logit_softcapping", "0", SL_EFORMAT, "final_logit_softcapping is 0, must be 0.001 to"},
    {"attn_logit_softcapping", "-1", SL_EFORMAT, "attn_logit_softcapping is -1, must be 0.001 to"},
    {"attn_logit_softcapping", "null", 0, NULL},
    {"use_bidirectional_attention", "true", SL_EUNSUPPORTED, "use_bidirectional_attention true"},
    {"layer_types", "[\"full_attention\"]", SL_EFORMAT, "layer_types has 1 entries"},
    {"num_attention_heads", NULL, SL_EFORMAT, "q_proj.weight\" has shape [64, 64], expected [128"},
};

static const struct edit granite_edits[] = {
    {"embedding_multiplier", "0", SL_EFORMAT, "embedding_multiplier is 0, must be 1e-06 to"},
    {"residual_multiplier", "-1", SL_EFORMAT, "residual_multiplier is -1, must be 1e-06 to"},
    {"attention_multiplier", "\"1\"", SL_EFORMAT, "attention_multiplier must be a number"},
    {"logits_scaling", "0", SL_EFORMAT, "logits_scaling is 0, must be 1e-06 to"},
    {"mlp_bias", "true", SL_EFORMAT, "mlp.gate_proj.bias\" is missing"},
};

static const struct edit exaone4_edits[] = {
    /* four layers, three of them windowed */
    {"sliding_window_pattern", "\"LLLG\"", 0, NULL},
    {"sliding_window_pattern", "2", 0, NULL},
    {"sliding_window_pattern", "\"\"", SL_EFORMAT, "must be letters L and G"},
    {"sliding_window_pattern", "\"LXG\"", SL_EFORMAT, "\"LXG\" must be letters L and G"},
    {"sliding_window_pattern", "0", SL_EFORMAT, "sliding_window_pattern is 0, must be 1 to"},
    {"sliding_window_pattern", "1.5", SL_EFORMAT, "must be a list of strings"},
    {"layer_types", "[\"full_attention\", 3]", SL_EFORMAT, "layer_types has 2 entries"},
    {"sliding_window", "0", SL_EFORMAT, "sliding_window is 0, must be 1 to"},
    {"sliding_window", "null", 0, NULL},
};

static const struct edit ernie_edits[] = {
    {"use_bias", "true", SL_EUNSUPPORTED, "config.json: use_bias true is not supported"},
    {"rope_parameters", "{\"rope_type\": \"dynamic\", \"factor\": 6}", 0, NULL},
};

static const struct edit apertus_edits[] = {
    {"hidden_act", "\"silu\"", SL_EUNSUPPORTED,
     "hidden_act \"silu\" is not supported (supported: xielu)"},
    {"hidden_act", NULL, 0, NULL},
    {"attention_bias", "true", SL_EFORMAT, "self_attn.q_proj.bias\" is missing"},
    {"num_hidden_layers", "3", SL_EFORMAT, "layers.2.attention_layernorm.weight\" is missing"},
};

static const struct edit arcee_edits[] = {
    {"mlp_bias", "true", SL_EUNSUPPORTED, "config.json: mlp_bias true is not supported"},
    {"attention_bias", "true", SL_EFORMAT, "q_proj.bias\" is missing"},
};

static const struct edit seed_oss_edits[] = {
    {"mlp_bias", "true", SL_EUNSUPPORTED, "config.json: mlp_bias true is not supported"},
    {"attention_out_bias", "true", SL_EFORMAT, "o_proj.bias\" is missing"},
    {"attention_bias", "1", SL_EFORMAT, "attention_bias must be true or false, not an integer"},
};

static const struct edit starcoder2_edits[] = {
    {"layer_norm_eps", "0", SL_EFORMAT, "layer_norm_eps is 0, must be 1e-20 to 1"},
    {"use_bias", "1", SL_EFORMAT, "use_bias must be true or false"},
    {"use_bias", NULL, 0, NULL},
    {"sliding_window", "null", 0, NULL},
    {"tie_word_embeddings", "false", SL_EFORMAT, "tensor \"lm_head.weight\" is missing"},
};

static const struct edit gemma1_edits[] = {
    {"hidden_act", "\"gelu\"", 0, NULL},
    {"use_bidirectional_attention", "true", SL_EUNSUPPORTED, "must be false"},
    {"attention_bias", "true", SL_EFORMAT, "self_attn.q_proj.bias\" is missing"},
};

static const struct edit gemma3n_edits[] = {
    {"altup_num_inputs", "5", SL_EFORMAT, "altup_num_inputs is 5, must be 2 to 4"},
    {"altup_num_inputs", "4", SL_EFORMAT, "altup_projections.2.weight\" is missing"},
    {"altup_active_idx", "1", SL_EUNSUPPORTED, "altup_active_idx is 1: not supported, must be 0"},
    {"altup_correct_scale", "false", SL_EUNSUPPORTED, "altup_correct_scale is false"},
    {"activation_sparsity_pattern", "0.5", 0, NULL},
    {"activation_sparsity_pattern", "null", 0, NULL},
    {"activation_sparsity_pattern", "[0.5]", SL_EFORMAT, "has 1 entries, num_hidden_layers is 6"},
    {"activation_sparsity_pattern", "[0, 0, 0, 0, 0, 1]", SL_EFORMAT, "of layer 5 is 1, must be"},
    {"activation_sparsity_pattern", "[0, 0, 0, 0, 0, \"a\"]", SL_EFORMAT, "[5] must be a number"},
    {"activation_sparsity_pattern", "\"a\"", SL_EFORMAT, "must be a number or a list"},
    {"num_kv_shared_layers", "6", SL_EFORMAT, "must be less than the number of layers, 6"},
    {"num_kv_shared_layers", "5", SL_EFORMAT, "shares keys with a layer of its kind"},
    {"laurel_rank", "33", SL_EFORMAT, "laurel.linear_left.weight"},
    {"attention_bias", "true", SL_EUNSUPPORTED, "attention_bias true is not supported"},
};

static const struct edit gpt_neox_edits[] = {
    {"num_key_value_heads", "2", SL_EUNSUPPORTED, "2 key heads that differ from the 4 heads"},
    {"rotary_pct", "0.2", SL_EFORMAT, "3 dimensions of a head of 16 are rotated"},
    {"intermediate_size", "161", SL_EFORMAT, "mlp.dense_h_to_4h.weight"},
};

static const struct edit falcon_edits[] = {
    {"alibi", "true", SL_EUNSUPPORTED, "alibi is true: not supported, must be false"},
    {"parallel_attn", "false", SL_EUNSUPPORTED, "parallel_attn is false: not supported"},
    {"num_kv_heads", "3", SL_EFORMAT, "not a multiple"},
    {"new_decoder_architecture", "false", SL_EFORMAT, "query_key_value.weight\" has shape"},
};

static const struct edit eurobert_edits[] = {
    {"attention_bias", "true", SL_EFORMAT, "self_attn.q_proj.bias\" is missing"},
    {"num_key_value_heads", "3", SL_EFORMAT, "not a multiple"},
};

static const struct edit cohere_edits[] = {
    {"use_qk_norm", "true", SL_EUNSUPPORTED, "use_qk_norm true: norms of q and k with a mean"},
    {"logit_scale", "0", SL_EFORMAT, "logit_scale is 0, must be 1e-06 to"},
    {"attention_bias", "true", SL_EFORMAT, "self_attn.q_proj.bias\" is missing"},
};

static const struct edit cohere2_edits[] = {
    {"sliding_window_pattern", "0", SL_EFORMAT, "sliding_window_pattern is 0, must be 1 to"},
    {"layer_types", "[\"full_attention\"]", SL_EFORMAT, "layer_types has 1 entries"},
};

static const struct edit phi_edits[] = {
    {"qk_layernorm", "true", SL_EUNSUPPORTED, "qk_layernorm true is not supported"},
    {"rope_parameters", "{\"partial_rotary_factor\": 0.4}", 0, NULL},
    {"rope_parameters", "{\"partial_rotary_factor\": 0.2}", SL_EFORMAT,
     "3 dimensions of a head of 16 are rotated"},
};

static const struct edit stablelm_edits[] = {
    {"qk_layernorm", "true", SL_EUNSUPPORTED, "qk_layernorm true: norms of q and k with a mean"},
    {"use_parallel_residual", "\"no\"", SL_EFORMAT, "use_parallel_residual must be true or false"},
    {"use_qkv_bias", "1", SL_EFORMAT, "use_qkv_bias must be true or false"},
};

static const struct edit nemotron_edits[] = {
    {"mlp_bias", "true", SL_EFORMAT, "mlp.up_proj.bias\" is missing"},
    {"attention_bias", "true", SL_EFORMAT, "self_attn.q_proj.bias\" is missing"},
};

static const struct edit lfm2_edits[] = {
    {"conv_L_cache", "1", SL_EFORMAT, "conv_L_cache is 1, must be 2 to 8"},
    {"conv_L_cache", "9", SL_EFORMAT, "conv_L_cache is 9, must be 2 to 8"},
    {"conv_L_cache", "4", SL_EFORMAT, "conv.conv.weight\" has shape [64, 3], expected [64, 4]"},
    {"conv_bias", "true", SL_EFORMAT, "conv.in_proj.bias\" is missing"},
    {"layer_types", "[\"conv\"]", SL_EFORMAT, "layer_types has 1 entries"},
    {"layer_types", "[\"conv\", \"conv\", \"mamba\", \"conv\"]", SL_EUNSUPPORTED,
     "layer_types[2] \"mamba\" is not supported"},
    {"layer_types", "[\"full_attention\", \"conv\", \"full_attention\", \"conv\"]", SL_EFORMAT,
     "layers.0.self_attn.q_proj.weight\" is missing"},
    {"full_attn_idxs", "[4]", SL_EFORMAT, "full_attn_idxs[0] must be a layer, 0 to 3"},
    {"layer_types", NULL, 0, ""}, /* full_attn_idxs says the same */
    {"block_auto_adjust_ff_dim", NULL, SL_EFORMAT,
     "feed_forward.w1.weight\" has shape [160, 64], expected [256, 64]"},
    {"block_auto_adjust_ff_dim", "1", SL_EFORMAT, "block_auto_adjust_ff_dim must be true or false"},
    {"tie_embedding", "false", SL_EFORMAT, "\"lm_head.weight\" is missing"},
};

static const struct edit lfm2moe_edits[] = {
    {"num_experts", NULL, SL_EFORMAT, "num_experts, num_experts_per_tok or|is missing"},
    {"num_experts_per_tok", "8", SL_EFORMAT, "num_experts_per_tok (8) is more than the 7 experts"},
    {"use_expert_bias", "false", 0, ""},
    {"num_dense_layers", "0", SL_EFORMAT, "layers.0.feed_forward.gate.weight\" is missing"},
    {"block_auto_adjust_ff_dim", "true", 0, ""}, /* of the other model */
};

static const struct edit lfm3_edits[] = {
    {"layer_types", "\"ccfcs\"", SL_EFORMAT, "layer_types must be a list of strings"},
    {"layer_types", NULL, 0, ""}, /* as they are without a list */
    {"layer_types", "[\"conv\", \"conv\", \"sliding_attention\", \"conv\", \"full_attention\"]", 0,
     ""},
    {"layer_types", "[\"conv\", \"conv\", \"chunked_attention\", \"conv\", \"conv\"]",
     SL_EUNSUPPORTED, "layer_types: what it says of layer 2 is not supported"},
    {"use_attention_gate", "1", SL_EFORMAT, "use_attention_gate must be true or false"},
    {"attention_bias", "true", SL_EFORMAT, "self_attn.q_proj.bias\" is missing"},
    {"conv_L_cache", "8", SL_EFORMAT, "conv.conv.weight\" has shape [64, 7], expected [64, 8]"},
};

static const struct edit qwen35_edits[] = {
    {"linear_num_value_heads", "3", SL_EFORMAT,
     "linear_num_value_heads (3) is not a multiple of linear_num_key_heads (2)"},
    {"linear_key_head_dim", "257", SL_EFORMAT, "linear_key_head_dim is 257, must be 1 to 256"},
    {"linear_value_head_dim", "32", SL_EFORMAT,
     "linear_attn.in_proj_qkv.weight\" has shape [160, 64], expected [224, 64]"},
    {"linear_conv_kernel_dim", "9", SL_EFORMAT, "linear_conv_kernel_dim is 9, must be 2 to 8"},
    {"attn_output_gate", "false", SL_EUNSUPPORTED, "attn_output_gate is false: not supported"},
    {"attention_bias", "true", SL_EUNSUPPORTED, "attention_bias is true: not supported"},
    {"layer_types", "[\"linear_attention\", \"sliding_attention\", \"full_attention\", \"conv\"]",
     SL_EUNSUPPORTED, "layer_types[1] \"sliding_attention\" is not supported"},
    {"layer_types", NULL, 0, ""}, /* the last of four */
    {"full_attention_interval", "0", SL_EFORMAT, "full_attention_interval is 0, must be 1 to"},
    {"intermediate_size", NULL, SL_EFORMAT, "intermediate_size is missing"},
    {"rope_parameters",
     "{\"rope_type\": \"default\", \"rope_theta\": 10000000, \"partial_rotary_factor\": 0.25, "
     "\"mrope_interleaved\": true, \"mrope_section\": [11, 11, 10]}",
     0, ""},
    {"mamba_ssm_dtype", "\"float32\"", 0, ""},
};

static const struct edit qwen35moe_edits[] = {
    {"intermediate_size", NULL, 0, ""}, /* of no layer */
    {"num_experts_per_tok", "8", SL_EFORMAT, "num_experts_per_tok (8) is more than the 7 experts"},
    {"shared_expert_intermediate_size", NULL, SL_EFORMAT,
     "shared_expert_intermediate_size is missing"},
    {"mlp_only_layers", "[2]", SL_EFORMAT, "layers.2.mlp.gate_proj.weight\" is missing"},
};

#define JET "efficient_attention_config.jet."
static const struct edit jet_nemotron_edits[] = {
    {JET "num_heads", "4", SL_EFORMAT,
     "self_attn.q_proj.weight\" has shape [72, 64], expected [96, 64]"},
    {JET "conv_size", "3", SL_EFORMAT,
     "kernel_generator.w2.weight\" has shape [384, 12], expected [288, 12]"},
    {JET "dconv_generator_reduction", "4", SL_EFORMAT,
     "kernel_generator.w1.weight\" has shape [12, 64], expected [24, 64]"},
    {JET "dconv_generator_reduction", "97", SL_EFORMAT,
     "is 97, more than the 96 values of a layer"},
    {JET "expand_v", "1.35", SL_EFORMAT,
     "expand_v makes 32.4 values of the 24 dimensions of a head"},
    {JET "norm_eps", "\"1e-5\"", 0, ""}, /* as released models have it */
    {JET "norm_eps", "\"small\"", SL_EFORMAT, "norm_eps must be a number"},
    {"layer_types", NULL, SL_EFORMAT, "layer_types is missing"},
    {"layer_types", "[\"jet\", \"attn\", \"jet\", \"gla\", \"jet\"]", SL_EUNSUPPORTED,
     "layer_types: what it says of layer 3 is not supported"},
    {"efficient_attention_config.swa.window_size", NULL, SL_EFORMAT,
     "layer 3 is windowed, and efficient_attention_config.swa.window_size is missing"},
};
#undef JET

static const struct edit olmo_hybrid_edits[] = {
    {"linear_num_value_heads", "3", SL_EFORMAT,
     "linear_num_value_heads (3) is not a multiple of linear_num_key_heads (2)"},
    {"linear_num_value_heads", NULL, 0, ""}, /* as many as attention has: 4 */
    {"linear_num_key_heads", NULL, SL_EFORMAT,
     "linear_attn.q_proj.weight\" has shape [48, 64], expected [96, 64]"},
    {"linear_key_head_dim", NULL, 0, ""}, /* three quarters of the width by the heads: 24 */
    {"linear_value_head_dim", NULL, SL_EFORMAT,
     "linear_attn.v_proj.weight\" has shape [64, 64], expected [192, 64]"},
    {"linear_key_head_dim", "257", SL_EFORMAT, "linear_key_head_dim is 257, must be 1 to 256"},
    {"linear_key_head_dim", "16", SL_EFORMAT,
     "linear_attn.q_proj.weight\" has shape [48, 64], expected [32, 64]"},
    {"linear_conv_kernel_dim", "3", SL_EFORMAT,
     "linear_attn.q_conv1d.weight\" has shape [48, 4], expected [48, 3]"},
    {"hidden_act", "\"gelu\"", SL_EUNSUPPORTED, "hidden_act \"gelu\" is not supported"},
    {"layer_types", NULL, SL_EFORMAT, "layers.2.attention_layer_norm.weight\" is missing"},
    {"layer_types", "[\"linear_attention\", \"full_attention\"]", SL_EFORMAT, "layer_types"},
    {"attention_bias", "true", SL_EFORMAT, "layers.2.self_attn.q_proj.bias\" is missing"},
    {"linear_allow_neg_eigval", "2", SL_EFORMAT, "linear_allow_neg_eigval must be true or false"},
    {"rope_parameters", "{\"rope_type\": \"default\", \"rope_theta\": null}", 0, ""},
    {"rope_parameters", "{\"rope_type\": \"default\", \"rope_theta\": 1}", SL_EFORMAT,
     "rope_theta is 1, must be 2 to"},
};

static const struct edit rwkv7_edits[] = {
    {"head_dim", "24", SL_EFORMAT, "hidden_size (64) is not a multiple of head_dim (24)"},
    {"head_dim", "512", SL_EFORMAT, "head_dim is 512, must be 1 to 256"},
    {"value_dim", "[64, 64, 64]", 0, ""},
    {"value_dim", "128", SL_EUNSUPPORTED, "value_dim (128) that differs from hidden_size (64)"},
    {"value_dim", "[64, 64, 128]", SL_EUNSUPPORTED, "value_dim"},
    {"decay_low_rank_dim", "16", SL_EFORMAT, "w_lora.lora.0.weight\" has shape [32, 64]"},
    {"decay_low_rank_dim", "null", 0, ""}, /* as wide as the width makes it: 32 */
    {"gate_low_rank_dim", NULL, SL_EFORMAT, "has shape [24, 64], expected [128, 64]"},
    {"hidden_act", "\"relu\"", SL_EUNSUPPORTED, "hidden_act \"relu\" is not supported"},
    {"norm_first", "false", SL_EUNSUPPORTED, "norm_first is false: not supported"},
    {"norm_bias", "false", SL_EUNSUPPORTED, "norm_bias is false: not supported"},
    {"attn", "{\"layers\": [1], \"num_heads\": 4}", SL_EFORMAT, "attn must be a string"},
    {"attn", "null", 0, ""},
    {"intermediate_size", "null", SL_EFORMAT, "has shape [160, 64], expected [256, 64]"},
};

static const struct edit deepseek_v4_edits[] = {
    {"o_groups", "3", SL_EFORMAT, "num_attention_heads (4) is not a multiple of o_groups (3)"},
    {"o_groups", "4", SL_EFORMAT, "wo_a.weight\" has shape [2, 40, 96], expected"},
    {"index_head_dim", "8", SL_EFORMAT, "index_head_dim is 8, must be at least the 16 rotated"},
    {"num_key_value_heads", "2", SL_EUNSUPPORTED,
     "num_key_value_heads is 2: not supported, must be 1"},
    {"hc_mult", "5", SL_EFORMAT, "hc_mult is 5, must be 2 to 4"},
    {"hc_mult", "3", SL_EFORMAT, "hc_head_fn\" has shape [4, 256], expected [3, 192]"},
    {"scoring_func", "\"sigmoid\"", SL_EUNSUPPORTED, "scoring_func \"sigmoid\" is not supported"},
    {"norm_topk_prob", "false", SL_EUNSUPPORTED, "norm_topk_prob is false: not supported"},
    {"n_shared_experts", "2", SL_EUNSUPPORTED, "n_shared_experts is 2: not supported, must be 1"},
    {"layer_types", "[\"full_attention\"]", SL_EFORMAT, "layer_types has 1 entries"},
    {"mlp_layer_types", NULL, SL_EFORMAT, "layers.2.ffn.gate.tid2eid\" must be I64 or I32"},
    {"num_experts_per_tok", "2", SL_EFORMAT,
     "layers.0.ffn.gate.tid2eid\" must be I64 or I32 of shape [320, 2]"},
    {"compress_ratios", "[0, 4, 20]", SL_EFORMAT, "compress_ratios has 3 entries"},
    {"compress_ratios", "[0, 4, 20, 4, 20, 0]", 0, ""}, /* one more, of a module behind */
    {"compress_ratios", "[0, 4, 20, 4, 7]", SL_EUNSUPPORTED,
     "compress_ratios[4] is 7, must be 0, 4 or 20"},
};

static const struct edit recurrent_gemma_edits[] = {
    {"lru_width", "98", SL_EFORMAT, "lru_width (98) must be a multiple of num_attention_heads (4)"},
    {"lru_width", "2048", SL_EFORMAT, "lru_width (2048) must be a multiple|at most 256 times"},
    {"lru_width", NULL, SL_EFORMAT, "linear_x.weight\" has shape [96, 64], expected [64, 64]"},
    {"lru_width", "128", SL_EFORMAT, "linear_x.weight\" has shape [96, 64], expected [128, 64]"},
    {"block_types", NULL, 0, ""}, /* two of three */
    {"block_types", "[\"recurrent\", \"recurrent\", \"attention\", \"attention\"]", 0, ""},
    {"block_types", "[\"recurrent\"]", SL_EFORMAT,
     "layers.2.temporal_block.linear_x.weight\" is missing"},
    {"block_types", "[]", SL_EFORMAT, "block_types has 0 entries"},
    {"block_types", "[\"recurrent\", \"mamba\"]", SL_EUNSUPPORTED,
     "block_types[1] \"mamba\" is not supported"},
    {"conv1d_width", "3", SL_EFORMAT, "conv_1d.weight\" has shape [96, 4], expected [96, 3]"},
    {"attention_window_size", "0", SL_EFORMAT, "attention_window_size is 0, must be 1 to"},
    {"attention_bias", "true", SL_EFORMAT, "temporal_block.q_proj.bias\" is missing"},
    {"intermediate_size", "1", SL_EFORMAT, "intermediate_size is 1, must be 2 or more"},
    {"intermediate_size", "321", 0, ""}, /* half of it, rounded down */
    {"intermediate_size", "160", SL_EFORMAT, "has shape [160, 64], expected [80, 64]"},
    {"embeddings_scale_by_sqrt_dim", "false", SL_EUNSUPPORTED,
     "embeddings_scale_by_sqrt_dim is false: not supported"},
    {"logits_soft_cap", "0", SL_EFORMAT, "logits_soft_cap is 0, must be 1e-06 to"},
    {"max_position_embeddings", NULL, 0, ""},
    {"rope_parameters", "{\"rope_type\": \"linear\", \"rope_theta\": 10000, \"factor\": 2}",
     SL_EUNSUPPORTED, "rope_type other than \"default\" is not supported"},
};

static const struct edit zamba2_edits[] = {
    {"layers_block_type", NULL, SL_EFORMAT, "layers_block_type is missing"},
    {"layers_block_type", "[\"mamba\", \"hybrid\", \"hybrid\", \"mamba\", \"hybrid\", \"mamba\"]",
     0, ""},
    {"layers_block_type", "[\"mamba\", \"hybrid\", \"mamba\", \"mamba\", \"hybrid\", \"mamba\"]",
     SL_EFORMAT, "layers.2.input_layernorm.weight\" is missing"},
    {"layers_block_type", "[\"mamba\", \"mamba\", \"mamba\", \"mamba\", \"mamba\", \"mamba\"]",
     SL_EUNSUPPORTED, "layers_block_type has no layer that is \"hybrid\""},
    {"layers_block_type", "[\"mamba\", \"attention\"]", SL_EFORMAT, "layers_block_type has 2"},
    {"num_mem_blocks", "1", SL_EFORMAT,
     "layers.1.shared_transformer.self_attn.linear_q_adapter_list.1.0.weight\" is missing"},
    {"num_mem_blocks", "3", SL_EFORMAT,
     "layers.4.shared_transformer.input_layernorm.weight\" is missing"},
    {"num_mem_blocks", "0", SL_EFORMAT, "num_mem_blocks is 0, must be 1 to"},
    {"use_shared_attention_adapter", "false", 0, ""},
    {"adapter_rank", "16", SL_EFORMAT, "0.0.weight\" has shape [24, 128], expected [16, 128]"},
    {"add_bias_linear", "true", SL_EUNSUPPORTED, "add_bias_linear is true: not supported"},
    {"num_attention_heads", "3", SL_EFORMAT, "num_attention_heads (3)"},
    {"num_key_value_heads", "2", SL_EFORMAT, "k_proj.weight\" has shape [128, 128], expected [64"},
    {"n_mamba_heads", "4", SL_EFORMAT, "in_proj.weight\" has shape"},
    {"intermediate_size", NULL, SL_EFORMAT,
     "gate_up_proj.weight\" has shape [320, 64], expected [512, 64]"},
    {"use_mem_rope", "false", 0, ""},
    {"tie_word_embeddings", "false", SL_EUNSUPPORTED,
     "tie_word_embeddings is false: not supported"},
};

static const struct edit gpt_oss_edits[] = {
    {"swiglu_limit", "0", SL_EFORMAT, "swiglu_limit is 0, must be 0.001 to"},
    {"swiglu_alpha", "-1", SL_EFORMAT, "swiglu_alpha is -1, must be 0.001 to"},
    {"swiglu_limit", NULL, 0, NULL},
    {"hidden_act", "\"gelu\"", SL_EUNSUPPORTED, "hidden_act \"gelu\" is not supported"},
    {"num_experts_per_tok", "8", SL_EFORMAT, "num_experts_per_tok (8) is more than the 7 experts"},
    {"num_local_experts", "8", SL_EFORMAT,
     "mlp.router.weight\" has shape [7, 64], expected [8, 64]"},
    {"layer_types", "[\"full_attention\", \"chunked\"]", SL_EUNSUPPORTED, "layer_types"},
    {"attention_bias", "true", 0, NULL},
    {"attention_bias", NULL, 0, NULL},
    {"quantization_config", "{\"quant_method\": \"mxfp4\"}", 0, NULL},
    {"quantization_config", "{\"quant_method\": \"mxfp6\"}", SL_EUNSUPPORTED,
     "quant_method \"mxfp6\" is not supported|mxfp4"},
};

static const struct edit bert_edits[] = {
    INT_ROW("max_position_embeddings"),
    {"hidden_act", "\"gelu_python\"", SL_EUNSUPPORTED, "hidden_act \"gelu_python\" is not"},
    {"hidden_act", "\"relu\"", 0, NULL},
    {"position_embedding_type", "\"relative_key\"", SL_EUNSUPPORTED,
     "position_embedding_type \"relative_key\" is not supported"},
    {"is_decoder", "true", SL_EUNSUPPORTED, "is_decoder true is not supported"},
    {"type_vocab_size", "1", SL_EFORMAT, "type_vocab_size is 1, must be 2 to 16"},
    {"id2label", "[\"a\"]", SL_EFORMAT, "id2label must be an object, not a list"},
    {"id2label", "{}", SL_EFORMAT, "id2label has 0 labels"},
    {"id2label", "{\"0\": \"a\"}", SL_EFORMAT,
     "classifier.weight\" has shape [3, 48], expected [1, 48]"},
    {"sbert_ce_default_activation_function", "\"torch.nn.ReLU\"", SL_EUNSUPPORTED,
     "\"torch.nn.ReLU\" is not supported"},
    {"sbert_ce_default_activation_function", "\"torch.nn.modules.linear.Identity\"", 0, NULL},
};

static const struct edit nomic_edits[] = {
    {"prenorm", "true", SL_EUNSUPPORTED, "prenorm is true: not supported, must be false"},
    {"prenorm", "false", 0, NULL},
    {"prenorm", "0", SL_EFORMAT, "prenorm must be true or false"},
    {"rotary_emb_interleaved", "true", SL_EUNSUPPORTED, "must be false"},
    {"qkv_proj_bias", "true", SL_EUNSUPPORTED, "must be false"},
    {"mlp_fc1_bias", "true", SL_EUNSUPPORTED, "must be false"},
    {"mlp_fc2_bias", "true", SL_EUNSUPPORTED, "must be false"},
    {"use_rms_norm", "true", SL_EUNSUPPORTED, "must be false"},
    {"causal", "true", SL_EUNSUPPORTED, "must be false"},
    {"activation_function", "\"gelu\"", SL_EUNSUPPORTED, "supported: swiglu"},
    {"type_vocab_size", "17", SL_EFORMAT, "must be 0 to 16"},
};

static const struct edit deepseek_v2_edits[] = {
    {"attention_bias", "true", SL_EUNSUPPORTED, "attention_bias is true: not supported"},
    {"rope_interleave", "false", SL_EUNSUPPORTED, "rope_interleave is false: not supported"},
    {"moe_layer_freq", "2", SL_EUNSUPPORTED, "moe_layer_freq is 2: not supported, must be 1"},
    {"topk_method", "\"best\"", SL_EUNSUPPORTED, "topk_method"},
    {"kv_lora_rank", "null", SL_EFORMAT, "kv_lora_rank is missing"},
    {"kv_lora_rank", "1020", SL_EFORMAT, "a rank of 1020"},
    {"kv_lora_rank", "32", SL_EFORMAT,
     "kv_a_proj_with_mqa.weight\" has shape [80, 64], expected [48, 64]"},
    {"qk_rope_head_dim", "7", SL_EFORMAT, "heads of 32 + 7 dimensions"},
    {"qk_nope_head_dim", "16", SL_EFORMAT,
     "q_proj.weight\" has shape [192, 64], expected [128, 64]"},
    {"v_head_dim", "16", SL_EFORMAT,
     "kv_b_proj.weight\" has shape [256, 64], expected [4, 48, 64]"},
    {"v_head_dim", "null", SL_EFORMAT, "values of 0"},
    {"q_lora_rank", "16", SL_EFORMAT, "q_a_proj.weight\" is missing"},
};

static const struct edit bailing_hybrid_edits[] = {
    {"layer_types", NULL, 0, NULL}, /* layer_group_size is 3: the same */
    {"layer_types", "[\"linear_attention\"]", SL_EFORMAT, "layer_types has 1 entries"},
    {"kda_lower_bound", "0", SL_EFORMAT, "kda_lower_bound is 0, must be -80 to"},
    {"kda_safe_gate", "\"yes\"", SL_EFORMAT, "kda_safe_gate must be true or false"},
    {"kda_safe_gate", "false", 0, NULL},
    {"linear_head_dim", "20", SL_EFORMAT, "has shape [96, 64], expected [80, 64]"},
    {"attention_bias", "true", SL_EUNSUPPORTED, "attention_bias is true: not supported"},
    {"q_lora_rank", "16", SL_EFORMAT, "attention.q_a_proj.weight\" is missing"},
};

static const struct edit laguna_edits[] = {
    {"gating", "\"per-element\"", SL_EUNSUPPORTED, "gating \"per-element\" is not supported"},
    {"gating", "true", 0, NULL},
    {"gating", "\"per-head\"", 0, NULL},
    {"gating", "false", SL_EFORMAT, "gating must be a string"},
    {"moe_apply_router_weight_on_input", "true", SL_EUNSUPPORTED, "is true: not supported"},
    {"num_attention_heads_per_layer", "[4, 5, 6, 4]", SL_EFORMAT, "layer 1 has 5 heads"},
    {"num_attention_heads_per_layer", "[4, 6]", SL_EFORMAT, "num_attention_heads_per_layer"},
    {"mlp_layer_types", NULL, 0, NULL}, /* the first is dense */
    {"layer_types", NULL, 0, NULL},     /* none is windowed */
    {"attention_bias", "true", SL_EUNSUPPORTED, "attention_bias is true: not supported"},
};

static const struct edit youtu_edits[] = {
    {"n_routed_experts", "8", SL_EUNSUPPORTED, "n_routed_experts is 8: not supported"},
    {"rope_interleave", "false", SL_EUNSUPPORTED, "rope_interleave is false: not supported"},
    {"attention_bias", "true", SL_EUNSUPPORTED, "attention_bias is true: not supported"},
    {"tie_word_embeddings", NULL, 0, NULL}, /* tied; the file's head is not used */
};

static const struct edit axk1_edits[] = {
    {"scoring_func", "\"softmax\"", SL_EUNSUPPORTED, "scoring_func"},
    {"moe_layer_freq", "2", SL_EUNSUPPORTED, "moe_layer_freq is 2: not supported, must be 1"},
    {"n_group", NULL, SL_EFORMAT,
     "config.json: n_group: 3 of 8 experts cannot be chosen from 2 of 8"},
    {"mlp_layer_types", "[\"sparse\", \"sparse\", \"sparse\"]", SL_EFORMAT,
     "\"model.layers.0.mlp.gate.weight\" is missing"},
};

static const struct edit axk2_edits[] = {
    {"n_group", "2", SL_EUNSUPPORTED, "n_group is 2: not supported, must be 1"},
    {"n_group", "null", 0, NULL},
    {"gated_norm_rank", "0", SL_EFORMAT, "gated_norm_rank is 0, must be 1 to"},
    {"gated_norm_rank", NULL, SL_EFORMAT,
     "input_layernorm.W_down.weight\" has shape [20, 64], expected [16, 64]"},
    {"q_lora_rank", "null", SL_EFORMAT, "an index needs q_lora_rank"},
    {"index_head_dim", "8", SL_EFORMAT, "index_head_dim is 8, must be at least"},
    {"mlp_layer_types", "[\"sparse\", \"sparse\", \"sparse\"]", SL_EFORMAT,
     "\"model.layers.0.post_attention_layernorm.norm.weight\" is missing"},
};

static const struct edit longcat_flash_edits[] = {
    {"num_layers", NULL, SL_EFORMAT, "num_layers is missing"},
    {"num_layers", "3", SL_EFORMAT, "\"model.layers.2.input_layernorm.0.weight\" is missing"},
    {"zero_expert_num", NULL, SL_EFORMAT, "zero_expert_num is missing"},
    {"zero_expert_num", "4", SL_EFORMAT,
     "router.classifier.weight\" has shape [13, 64], expected [12, 64]"},
    {"zero_expert_num", "1020", SL_EUNSUPPORTED,
     "8 experts and 1020 that give back what they read are more than 1024"},
    {"zero_expert_type", "\"copy\"", SL_EUNSUPPORTED, "zero_expert_type \"copy\" is not supported"},
    {"moe_topk", "9", SL_EFORMAT, "(9) is more than the 8 experts"},
    {"router_bias", "true", SL_EUNSUPPORTED, "router_bias is true: not supported"},
    {"norm_topk_prob", "true", SL_EUNSUPPORTED, "norm_topk_prob is true: not supported"},
    {"mla_scale_q_lora", "false", SL_EUNSUPPORTED, "mla_scale_q_lora is false: not supported"},
    {"q_lora_rank", "null", SL_EFORMAT, "q_lora_rank is missing"},
};

static const struct edit hy_v4_edits[] = {
    {"n_group", "2", SL_EUNSUPPORTED, "n_group is 2: not supported, must be 1"},
    {"hc_mult", "5", SL_EFORMAT, "hc_mult is 5, must be 2 to 4"},
    {"hc_mult", "2", SL_EFORMAT, "hc_pre.hc_fn\" has shape [6, 192], expected [4, 128]"},
    {"hc_magnitude", "0", SL_EFORMAT, "hc_magnitude is 0, must be 1e-06 to"},
    {"indexer_types", "[\"shared\", \"full\", \"full\", \"full\"]", SL_EFORMAT,
     "layer 0 shares the choice of an index before it"},
    {"index_head_dim", "8", SL_EFORMAT, "index_head_dim is 8, must be at least"},
    {"swiglu_limit", "-1", SL_EFORMAT, "swiglu_limit is -1, must be 0 to"},
};

static const struct edit glm5_next_edits[] = {
    {"index_kpool", "5", SL_EFORMAT, "index_topk is 24, must be a multiple of index_kpool, 5"},
    {"index_kpool", "1", SL_EFORMAT, "index_kpool is 1, must be 2 to"},
    {"index_kpool", "8", SL_EFORMAT,
     "indexer.index_kpool_compress_ape\" has shape [160], expected [320]"},
    {"index_kpool_always_select_tail", "false", SL_EUNSUPPORTED, "is false: not supported"},
    {"index_head_dim", "8", SL_EFORMAT,
     "indexer.wq_b.weight\" has shape [800, 96], expected [160, 96]"},
    {"indexer_types", "[\"full\", \"full\", \"full\", \"shared\"]", SL_EUNSUPPORTED,
     "layer 3 shares the choice of an index before it"},
    {"indexer_types", "[\"full\", \"full\", \"shared\", \"full\"]", 0, NULL}, /* layer 2 has none */
    {"indexer_types", NULL, 0, NULL},
    {"qk_rope_head_dim", "8", SL_EUNSUPPORTED, "qk_rope_head_dim is 8: not supported, must be 0"},
    {"q_lora_rank", "null", SL_EFORMAT, "q_lora_rank is missing"},
    {"layer_types",
     "[\"linear_attention\", \"full_attention\", \"linear_attention\", \"indexed_attention\"]", 0,
     NULL},
    {"layer_types", NULL, SL_EFORMAT, "layers.1.self_attn.q_proj.weight\" is missing"},
    {"linear_lower_bound", "null", 0, NULL}, /* decays are not bounded */
    {"linear_lower_bound", "1", SL_EFORMAT, "linear_lower_bound is 1, must be -80 to"},
    {"linear_num_heads", "2", SL_EFORMAT, "q_proj.weight\" has shape [96, 64], expected [48, 64]"},
    {"hc_mult", "3", SL_EFORMAT, "hc_attn_fn\" has shape [24, 256], expected [15, 192]"},
    {"attention_bias", "true", SL_EUNSUPPORTED, "attention_bias is true: not supported"},
};

static const struct edit solar_open_edits[] = {
    {"first_k_dense_replace", "1", SL_EUNSUPPORTED, "first_k_dense_replace is 1: not supported"},
    {"use_qk_norm", "true", SL_EUNSUPPORTED, "use_qk_norm is true: not supported"},
    {"attention_bias", "true", SL_EFORMAT, "q_proj.bias\" is missing"},
    {"rope_parameters", "{\"partial_rotary_factor\": 0.5}", SL_EUNSUPPORTED,
     "partial_rotary_factor"},
    {"intermediate_size", NULL, 0, NULL},
};

static const struct edit glm_moe_dsa_edits[] = {
    {"index_topk", "0", SL_EFORMAT, "index_topk is 0, must be 1 to"},
    {"index_n_heads", "null", SL_EFORMAT, "index_n_heads is missing"},
    {"index_n_heads", "10", SL_EFORMAT,
     "indexer.wq_b.weight\" has shape [800, 96], expected [400, 96]"},
    {"index_head_dim", "8", SL_EFORMAT, "index_head_dim is 8, must be at least"},
    {"q_lora_rank", "null", SL_EFORMAT, "an index needs q_lora_rank"},
    {"scoring_func", "\"softmax\"", SL_EUNSUPPORTED, "scoring_func"},
    {"topk_method", "\"greedy\"", SL_EUNSUPPORTED, "topk_method"},
    {"indexer_types", "[\"full\"]", SL_EFORMAT, "indexer_types has 1 entries, there are 4 layers"},
    {"indexer_types", "[\"shared\", \"shared\", \"full\", \"shared\"]", SL_EFORMAT,
     "layer 0 shares"},
    {"indexer_types", "\"FSFS\"", 0, NULL},
    {"indexer_types", "\"FSFT\"", SL_EUNSUPPORTED, "layer 3 is not supported"},
    {"indexer_types", "null", SL_EFORMAT,
     "layers.1.self_attn.indexer.wq_b.weight\" is missing"}, /* all have one */
};

static const struct edit minimax_m3_edits[] = {
    {"index_topk_blocks", "0", SL_EFORMAT, "index_topk_blocks is 0, must be 1 to"},
    {"index_topk_blocks", "1", 0, NULL},
    {"index_n_heads", "6", SL_EUNSUPPORTED, "one for each of the 2 key heads"},
    {"index_head_dim", "8", SL_EFORMAT, "must be at least the 16 dimensions that are rotated"},
    {"index_head_dim", "32", SL_EFORMAT,
     "index_q_proj.weight\" has shape [48, 64], expected [64, 64]"},
    {"index_block_size", "48", SL_EUNSUPPORTED, "must be a power of two from 16 to 256"},
    {"index_block_size", "512", SL_EUNSUPPORTED, "must be a power of two from 16 to 256"},
    {"index_local_blocks", "3", SL_EFORMAT, "index_local_blocks is 3, must be at most the 2"},
    {"index_local_blocks", "0", SL_EFORMAT, "index_local_blocks is 0, must be 1 to"},
    {"sparse_attention_config", "{\"sparse_init_block\": 1}", SL_EUNSUPPORTED,
     "sparse_init_block is 1: not supported"},
    {"sparse_attention_config", "{\"sparse_score_type\": \"mean\"}", SL_EUNSUPPORTED,
     "sparse_score_type"},
    {"sparse_attention_config", "{\"sparse_attention_freq\": [1, 1]}", SL_EFORMAT,
     "sparse_attention_freq has 2 entries"},
    {"layer_types", "[\"full_attention\", \"sliding_attention\", \"full_attention\"]",
     SL_EUNSUPPORTED, "layer_types[1] \"sliding_attention\" is not supported"},
    {"layer_types", "null", 0, NULL}, /* rows see everything */
    {"hidden_act", "\"gelu\"", SL_EUNSUPPORTED, "hidden_act"},
    {"hidden_act", "\"swigluoai\"", 0, NULL},
    {"n_shared_experts", "2", SL_EUNSUPPORTED, "n_shared_experts is 2: not supported"},
    {"scoring_func", "\"softmax\"", SL_EUNSUPPORTED, "scoring_func"},
    {"use_gemma_norm", "false", SL_EUNSUPPORTED, "use_gemma_norm is false: not supported"},
};

static const struct edit kimi_linear_edits[] = {
    {"mla_use_nope", "false", SL_EUNSUPPORTED, "mla_use_nope is false: not supported"},
    {"moe_router_activation_func", "\"softmax\"", SL_EUNSUPPORTED, "moe_router_activation_func"},
    {"linear_attn_config", "{\"full_attn_layers\": [0]}", SL_EFORMAT,
     "full_attn_layers[0] must be a layer, 1 to 4"},
    {"linear_attn_config", "{\"full_attn_layers\": [5]}", SL_EFORMAT,
     "full_attn_layers[0] must be a layer, 1 to 4"},
    {"linear_attn_config", "[]", SL_EFORMAT, "linear_attn_config"},
};

static const struct edit modernbert_edits[] = {
    {"attention_bias", "true", SL_EUNSUPPORTED, "attention_bias is true: not supported"},
    {"mlp_bias", "true", SL_EUNSUPPORTED, "mlp_bias is true: not supported"},
    {"norm_bias", "true", SL_EUNSUPPORTED, "norm_bias is true: not supported"},
    {"local_attention", "0", SL_EFORMAT, "local_attention is 0, must be 1 to"},
    {"local_attention", "128", 0, NULL},
    {"layer_types", "[\"full_attention\"]", SL_EFORMAT, "layer_types has 1 entries"},
};

static const struct edit roberta_edits[] = {
    INT_ROW("max_position_embeddings"),
    {"max_position_embeddings", "2", SL_EFORMAT,
     "max_position_embeddings 2 leaves none behind pad_token_id 1"},
    {"pad_token_id", "81", SL_EFORMAT, "max_position_embeddings 82 leaves none behind"},
    {"pad_token_id", "-1", SL_EFORMAT, "pad_token_id is -1, must be 0 to"},
    {"type_vocab_size", "0", SL_EFORMAT, "type_vocab_size is 0, must be 1 to 16"},
    {"id2label", "{\"0\": \"a\"}", SL_EFORMAT,
     "classifier.out_proj.weight\" has shape [3, 48], expected [1, 48]"},
};

#endif
