/* SPDX-License-Identifier: MIT
 * Edits of config.json for families with layers of Mamba.
 */
#ifndef SL_TESTS_MAMBA_EDITS_H
#define SL_TESTS_MAMBA_EDITS_H

#include "models/config_edits.h"

static const struct {
    const char *family;
    struct edit edit;
} mamba_edits[] = {
    {"mamba2", {"num_heads", NULL, SL_EFORMAT, "config.json: num_heads is missing"}},
    {"mamba2", {"num_heads", "7", SL_EFORMAT, "(7) is not a multiple of the number of groups (4)"}},
    {"mamba2", {"num_heads", "4", SL_EFORMAT, "in_proj.weight\" has shape [456, 64], expected"}},
    {"mamba2", {"num_heads", "1025", SL_EFORMAT, "num_heads is 1025, must be 1 to 1024"}},
    {"mamba2", {"n_groups", NULL, SL_EFORMAT, "has shape [456, 64], expected [648, 64]"}}, /* 8 */
    {"mamba2", {"n_groups", "0", SL_EFORMAT, "n_groups is 0, must be 1 to"}},
    {"mamba2", {"head_dim", "257", SL_EFORMAT, "head_dim is 257, must be 1 to 256"}},
    {"mamba2", {"head_dim", NULL, 0, NULL}}, /* twice the width by 8 heads */
    {"mamba2", {"head_dim", "\"auto\"", 0, NULL}},
    {"mamba2", {"state_size", "257", SL_EFORMAT, "state_size is 257, must be 1 to 256"}},
    {"mamba2", {"conv_kernel", "9", SL_EFORMAT, "conv_kernel is 9, must be 2 to 8"}},
    {"mamba2", {"conv_kernel", "1", SL_EFORMAT, "conv_kernel is 1, must be 2 to 8"}},
    {"mamba2", {"conv_kernel", "3", SL_EFORMAT, "conv1d.weight\" has shape [320, 4], expected"}},
    {"mamba2", {"hidden_act", "\"gelu\"", SL_EUNSUPPORTED, "hidden_act \"gelu\" is not supported"}},
    {"mamba2", {"use_conv_bias", "false", 0, NULL}},
    {"mamba2", {"use_bias", "true", SL_EFORMAT, "mixer.in_proj.bias\" is missing"}},
    {"mamba2", {"time_step_limit", "[0.5, 0.5]", SL_EFORMAT, "time_step_limit is 0.5 to 0.5"}},
    {"mamba2", {"time_step_limit", "[-1, 1]", SL_EFORMAT, "time_step_limit.0 is -1, must be 0 to"}},
    {"mamba2", {"time_step_limit", "[0, \"x\"]", SL_EFORMAT, "time_step_limit.1 must be a number"}},
    {"mamba2", {"time_step_limit", "[0.25]", 0, NULL}},
    {"mamba2", {"time_step_limit", "[0, {\"__float__\": \"Infinity\"}]", 0, NULL}},
    {"mamba2",
     {"time_step_limit", "[0, {\"__float__\": \"NaN\"}]", SL_EFORMAT,
      "time_step_limit.1 must be a number, not an object"}},
    {"mamba2", {"max_position_embeddings", NULL, 0, NULL}},
    {"granitemoehybrid",
     {"layer_types", "[\"mamba\", \"attention\", \"mamba\"]", 0,
      NULL}}, /* as before transformers 5 */
    {"granitemoehybrid",
     {"layer_types", "[\"mamba\", \"mamba\", \"mamba\"]", SL_EFORMAT,
      "layers.1.mamba.in_proj.weight\" is missing"}},
    {"granitemoehybrid", {"layer_types", NULL, SL_EFORMAT, "layers.1.mamba.in_proj.weight\" is"}},
    {"granitemoehybrid",
     {"layer_types", "[\"mamba\", \"conv\", \"mamba\"]", SL_EUNSUPPORTED,
      "layer_types[1] \"conv\" is not supported"}},
    {"granitemoehybrid",
     {"position_embedding_type", "\"alibi\"", SL_EUNSUPPORTED,
      "position_embedding_type \"alibi\" is not supported (supported: nope, rope)"}},
    {"granitemoehybrid", {"position_embedding_type", "\"rope\"", 0, NULL}},
    {"granitemoehybrid",
     {"num_experts_per_tok", "0", SL_EFORMAT, "num_experts_per_tok is 0, there are 7 experts"}},
    {"granitemoehybrid", {"mamba_d_head", "\"auto\"", 0, NULL}},
    {"granitemoehybrid", {"mamba_expand", "3", 0, NULL}}, /* mamba_d_head says it */
    {"bamba", {"attn_layer_indices", "[3]", SL_EFORMAT, "attn_layer_indices[0] must be a layer"}},
    {"bamba", {"attn_layer_indices", "[1]", SL_EFORMAT, "layers.1.self_attn.q_proj.weight\" is"}},
    {"bamba", {"mamba_d_head", NULL, 0, NULL}},
    {"bamba", {"mamba_n_heads", "6", SL_EFORMAT, "in_proj.weight\" has shape|expected"}},
    {"nemotron_h", {"layers_block_type", "[\"mamba\", \"mlp\", \"attention\", \"mlp\"]", 0, NULL}},
    {"nemotron_h", {"layers_block_type", NULL, SL_EFORMAT, "layers_block_type is missing"}},
    {"nemotron_h",
     {"layers_block_type", "4", SL_EFORMAT, "must be a list of strings, or a string"}},
    {"nemotron_h", {"layers_block_type", "true", SL_EFORMAT, "must be an integer or a list"}},
    {"nemotron_h", {"layers_block_type", "\"M-*-\"", 0, NULL}},
    {"nemotron_h", {"layers_block_type", "\"M-*\"", 0, NULL}},
    {"nemotron_h",
     {"layers_block_type", "\"M-*X\"", SL_EUNSUPPORTED,
      "layers_block_type: what it says of layer 3 is not supported"}},
    {"nemotron_h",
     {"layers_block_type", "\"M-M-\"", SL_EFORMAT, "layers.2.mixer.in_proj.weight\""}},
    {"nemotron_h",
     {"layers_block_type", "\"M-E-\"", SL_EFORMAT, "layers.2.mixer.gate.weight\" is"}},
    {"nemotron_h",
     {"layers_block_type", "[7, \"mlp\"]", SL_EUNSUPPORTED, "says of layer 0 is not"}},
    {"nemotron_h", {"mlp_hidden_act", "\"silu\"", 0, NULL}},
    {"nemotron_h", {"mlp_bias", "true", SL_EFORMAT, "layers.1.mixer.up_proj.bias\" is missing"}},
    {"nemotron_h", {"attention_bias", "true", SL_EUNSUPPORTED, "attention_bias is true"}},
    {"nemotron_h", {"tie_word_embeddings", "true", SL_EUNSUPPORTED, "tie_word_embeddings is true"}},
    {"nemotron_h_moe",
     {"mlp_hidden_act", "\"silu\"", SL_EUNSUPPORTED,
      "mlp_hidden_act \"silu\" of experts without a gate is not supported (supported: relu2)"}},
    {"nemotron_h_moe",
     {"mlp_bias", "true", SL_EUNSUPPORTED, "mlp_bias true is not supported with experts"}},
    {"nemotron_h_moe",
     {"moe_latent_size", NULL, SL_EFORMAT, "experts.0.up_proj.weight\" has shape [96, 32]"}},
    {"nemotron_h_moe",
     {"moe_latent_size", "48", SL_EFORMAT, "experts.0.up_proj.weight\" has shape [96, 32]"}},
    {"falcon_h1", {"mamba_d_ssm", "80", 0, NULL}}, /* mamba_d_head says it */
    {"falcon_h1", {"mamba_d_head", "\"auto\"", 0, NULL}},
    {"falcon_h1", {"mamba_rms_norm", "false", 0, NULL}},
    {"falcon_h1", {"attention_bias", "true", SL_EUNSUPPORTED, "attention_bias is true"}},
    {"falcon_h1", {"mamba_proj_bias", "true", SL_EUNSUPPORTED, "mamba_proj_bias is true"}},
    {"falcon_h1", {"key_multiplier", "0", SL_EFORMAT, "key_multiplier is 0, must be 1e-09 to"}},
    {"falcon_h1",
     {"ssm_multipliers", "[1, 1, -1, 1, 1]", SL_EFORMAT, "ssm_multipliers.2 is -1, must be 1e-09"}},
    {"falcon_h1",
     {"mlp_multipliers", "[1, \"x\"]", SL_EFORMAT, "mlp_multipliers.1 must be a number"}},
};

#endif
