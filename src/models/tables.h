/* SPDX-License-Identifier: MIT
 * tables.h - rows that families share: the hyper-parameters of a transformer with rotary positions,
 * the tensors of its blocks. A family lists them in its own tables beside what is its own.
 */
#ifndef SL_MODELS_TABLES_H
#define SL_MODELS_TABLES_H

#include "io/json.h"
#include "models/desc.h"

/* clang-format off */
/* What a family's descriptor says of its tables, which have the same names in every file. */
#define SL_MODEL_TABLES                                                                           \
    .names = names, .n_names = SL_COUNT(names), .hparams = hparams,                               \
    .n_hparams = SL_COUNT(hparams), .weights = weights, .n_weights = SL_COUNT(weights)
#define SL_MODEL_ROPES(table) .ropes = table, .n_ropes = SL_COUNT(table)

#define SL_HP_AT(field) .offset = offsetof(struct sl_hparams, field)

#define SL_HPARAMS_SIZES                                                                          \
    {"embedding_length", {"hidden_size"}, SL_HP_INT, SL_HP_AT(hidden), .required = true,          \
     .min = 1, .max = SL_MAX_HIDDEN},                                                             \
    {"feed_forward_length", {"intermediate_size"}, SL_HP_INT, SL_HP_AT(intermediate),             \
     .required = true, .min = 1, .max = 4 * SL_MAX_HIDDEN},                                       \
    {"block_count", {"num_hidden_layers"}, SL_HP_INT, SL_HP_AT(n_layers), .required = true,       \
     .min = 1, .max = SL_MAX_LAYERS},                                                             \
    {"attention.head_count", {"num_attention_heads"}, SL_HP_INT, SL_HP_AT(n_heads),               \
     .required = true, .min = 1, .max = SL_MAX_HEADS}

/* n_vocab of a GGUF comes from the rows of its embedding. */
#define SL_HPARAMS_SHAPE                                                                          \
    SL_HPARAMS_SIZES,                                                                             \
    {"attention.head_count_kv", {"num_key_value_heads"}, SL_HP_INT, SL_HP_AT(n_kv_heads),         \
     .min = 1, .max = SL_MAX_HEADS},                                                              \
    SL_HPARAMS_HEADS

/* In GGUF files of models with recurrent layers: 0 for each of these, or one number for all. */
#define SL_HPARAMS_LAYER_KV_HEADS                                                                 \
    {NULL, {"num_key_value_heads"}, SL_HP_INT, SL_HP_AT(n_kv_heads), .min = 1,                    \
     .max = SL_MAX_HEADS},                                                                        \
    {"attention.head_count_kv", {NULL}, SL_HP_LAYER_INTS, SL_HP_AT(layer_kv_heads), .min = 0,     \
     .max = SL_MAX_HEADS}

#define SL_HPARAMS_HEADS                                                                          \
    {"attention.key_length", {"head_dim"}, SL_HP_INT, SL_HP_AT(head_dim), .min = 2,               \
     .max = SL_MAX_HEAD_DIM},                                                                     \
    {"attention.value_length", {NULL}, SL_HP_INT, SL_HP_AT(v_dim), .min = 1,                      \
     .max = SL_MAX_HEAD_DIM},                                                                     \
    {"rope.dimension_count", {"rotary_dim"}, SL_HP_INT, SL_HP_AT(rope_dims), .min = 2,            \
     .max = SL_MAX_HEAD_DIM},                                                                     \
    {"context_length", {"max_position_embeddings"}, SL_HP_INT, SL_HP_AT(context),                 \
     .required = true, .min = 1, .max = SL_MAX_CONTEXT},                                          \
    {NULL, {"vocab_size"}, SL_HP_INT, SL_HP_AT(n_vocab), .required = true, .min = 1,              \
     .max = SL_MAX_VOCAB}

#define SL_HPARAM_LAYERNORM_EPS                                                                   \
    {"attention.layer_norm_epsilon", {"layer_norm_eps", "norm_epsilon", "norm_eps"}, SL_HP_FLOAT, \
     SL_HP_AT(norm_eps), .def = 1e-5, .min = 1e-20, .max = 1}

#define SL_HPARAMS_BLOCKS                                                                         \
    SL_HPARAMS_SHAPE,                                                                             \
    {"attention.layer_norm_rms_epsilon", {"rms_norm_eps", "norm_eps"}, SL_HP_FLOAT,               \
     SL_HP_AT(norm_eps), .def = 1e-6, .min = 1e-20, .max = 1}

/* by_default: when config.json has none, and of a GGUF. */
#define SL_HPARAM_ACT(by_default)                                                                 \
    {NULL, {"hidden_act", "hidden_activation"}, SL_HP_ACT, SL_HP_AT(act), .def = by_default}

/* by_default: what transformers takes, and leaves out of config.json. */
#define SL_HPARAM_TIED(by_default)                                                                \
    {NULL, {"tie_word_embeddings"}, SL_HP_HAS_NOT, .has = SL_HAS_HEAD, .def = by_default}

#define SL_HPARAM_NO_EXPERTS                                                                      \
    {"expert_count", {"num_local_experts", "num_experts"}, SL_HP_INT, SL_HP_AT(n_experts),        \
     .min = 0, .max = 0}

#define SL_HPARAMS_TRANSFORMER SL_HPARAMS_BLOCKS, SL_HPARAM_NO_EXPERTS

/* With norms that have a mean. */
#define SL_HPARAMS_TRANSFORMER_LAYERNORM                                                          \
    SL_HPARAMS_SHAPE, SL_HPARAM_LAYERNORM_EPS, SL_HPARAM_NO_EXPERTS

#define SL_HPARAMS_EXPERTS                                                                        \
    {"expert_count", {"num_experts", "num_local_experts", "n_routed_experts"}, SL_HP_INT,         \
     SL_HP_AT(n_experts), .required = true, .min = 1, .max = SL_MAX_EXPERTS},                     \
    {"expert_used_count", {"num_experts_per_tok"}, SL_HP_INT, SL_HP_AT(top_experts),              \
     .required = true, .min = 1, .max = SL_MAX_TOP_EXPERTS},                                      \
    {"expert_gating_func", {NULL}, SL_HP_INT, SL_HP_AT(expert_gating), .min = 0, .max = 2}

/* Layers behind the last, which predict further tokens; a GGUF counts them as blocks. */
#define SL_HPARAM_NEXTN                                                                           \
    {"nextn_predict_layers", {"num_nextn_predict_layers", "num_mtp_layers"}, SL_HP_INT,           \
     SL_HP_AT(n_nextn), .min = 0, .max = 16}

/* What a module that predicts further tokens does not have of its own: struct sl_draft_desc. */
#define SL_WEIGHTS_MTP_OF_TARGET                                                                  \
    {.slot = SL_SLOT_EMBED, .rows = SL_DIM_V, .cols = SL_DIM_H, .flags = SL_W_OF_TARGET},         \
    {.slot = SL_SLOT_HEAD, .rows = SL_DIM_DRAFT_V, .cols = SL_DIM_H, .flags = SL_W_OF_TARGET}

/* Its own: norms of embedding and hidden row, their product, the norm behind the layer. GGUF files
 * may leave out the last, which then is the target's. add: flags of the norms. */
#define SL_WEIGHTS_MTP(e, h, join, end, add)                                                      \
    SL_WEIGHTS_MTP_OF_TARGET,                                                                     \
    {.slot = SL_SLOT_DRAFT_EMBED_NORM, .hf = e ".weight", .gguf = "blk.*.nextn.enorm.weight",     \
     .rows = SL_DIM_H, .flags = add},                                                             \
    {.slot = SL_SLOT_DRAFT_HIDDEN_NORM, .hf = h ".weight", .gguf = "blk.*.nextn.hnorm.weight",    \
     .rows = SL_DIM_H, .flags = add},                                                             \
    {.slot = SL_SLOT_DRAFT_JOIN, .hf = join ".weight", .gguf = "blk.*.nextn.eh_proj.weight",      \
     .rows = SL_DIM_H, .cols = SL_DIM_2H},                                                        \
    {.slot = SL_SLOT_FINAL_NORM, .hf = end ".weight",                                             \
     .gguf = "blk.*.nextn.shared_head_norm.weight", .rows = SL_DIM_H,                             \
     .flags = (add) | SL_W_OF_TARGET}

/* The same of a layer behind the model's, as DeepSeek names them. */
#define SL_WEIGHTS_MTP_BEHIND                                                                     \
    SL_WEIGHTS_MTP("model.layers.*.enorm", "model.layers.*.hnorm", "model.layers.*.eh_proj",      \
                   "model.layers.*.shared_head.norm", 0)

/* Which layers have experts, as a list of words. */
#define SL_HPARAM_MLP_TYPES                                                                       \
    {.hf = {"mlp_layer_types"}, .type = SL_HP_LAYER_TYPES, SL_HP_AT(mlp_types),                   \
     .words = {"dense", "sparse"}}

/* Where the size of an expert is not that of the model's MLP. */
#define SL_HPARAM_EXPERT_SIZE                                                                     \
    {"expert_feed_forward_length", {"moe_intermediate_size"}, SL_HP_INT,                          \
     SL_HP_AT(expert_intermediate), .required = true, .min = 1, .max = 4 * SL_MAX_HIDDEN}

/* by_default: when config.json has none. */
#define SL_HPARAM_NORM_TOP_EXPERTS(by_default)                                                    \
    {"expert_weights_norm", {"norm_topk_prob"}, SL_HP_BOOL, SL_HP_AT(norm_top_experts),           \
     .def = by_default}

/* DeepSeek's names: dense layers in front, groups of experts, a scale. */
#define SL_HPARAMS_DEEPSEEK_ROUTER(n_dense_by_default)                                            \
    {"leading_dense_block_count", {"first_k_dense_replace"}, SL_HP_INT, SL_HP_AT(n_dense),        \
     .def = n_dense_by_default, .min = 0, .max = SL_MAX_LAYERS},                                  \
    {"expert_group_count", {"n_group"}, SL_HP_INT, SL_HP_AT(n_expert_groups), .min = 0,           \
     .max = SL_MAX_EXPERTS},                                                                      \
    {"expert_group_used_count", {"topk_group"}, SL_HP_INT, SL_HP_AT(top_expert_groups), .min = 0, \
     .max = SL_MAX_EXPERTS},                                                                      \
    {"expert_weights_scale", {"routed_scaling_factor"}, SL_HP_FLOAT, SL_HP_AT(expert_scale),      \
     .min = 0, .max = 1e6}

/* And shared experts. */
#define SL_HPARAMS_DEEPSEEK_EXPERTS(n_dense_by_default)                                           \
    SL_HPARAMS_DEEPSEEK_ROUTER(n_dense_by_default),                                               \
    {"expert_shared_count", {"n_shared_experts"}, SL_HP_INT, SL_HP_AT(n_shared_experts),          \
     .min = 0, .max = 64}

/* Latent attention. GGUF files say what is kept of a token as keys (rank and rotated dimensions),
 * and a head's own beside it. */
#define SL_HPARAMS_MLA                                                                            \
    {"attention.q_lora_rank", {"q_lora_rank"}, SL_HP_INT, SL_HP_AT(q_rank), .min = 1,             \
     .max = SL_MAX_HIDDEN},                                                                       \
    {"attention.kv_lora_rank", {"kv_lora_rank"}, SL_HP_INT, SL_HP_AT(kv_rank), .required = true,  \
     .min = 1, .max = SL_MAX_HEAD_DIM},                                                           \
    {NULL, {"qk_nope_head_dim"}, SL_HP_INT, SL_HP_AT(nope_dim), .required = true, .min = 1,       \
     .max = SL_MAX_HEAD_DIM},                                                                     \
    {"rope.dimension_count", {"qk_rope_head_dim"}, SL_HP_INT, SL_HP_AT(rope_dims),                \
     .required = true, .min = 2, .max = SL_MAX_HEAD_DIM},                                         \
    {"attention.value_length_mla", {"v_head_dim"}, SL_HP_INT, SL_HP_AT(value_dim), .min = 1,      \
     .max = SL_MAX_HEAD_DIM},                                                                     \
    {"attention.key_length_mla", {NULL}, SL_HP_INT, SL_HP_AT(mla_dim), .min = 2,                  \
     .max = SL_MAX_HEAD_DIM},                                                                     \
    {"attention.key_length", {NULL}, SL_HP_INT, SL_HP_AT(head_dim), .min = 2,                     \
     .max = SL_MAX_HEAD_DIM},                                                                     \
    {"attention.value_length", {NULL}, SL_HP_INT, SL_HP_AT(v_dim), .min = 1,                      \
     .max = SL_MAX_HEAD_DIM}

/* Of models with latent attention and experts, all that DeepSeek's have in common. */
#define SL_HPARAMS_DEEPSEEK                                                                       \
    SL_HPARAMS_SIZES,                                                                             \
    {"context_length", {"max_position_embeddings"}, SL_HP_INT, SL_HP_AT(context),                 \
     .required = true, .min = 1, .max = SL_MAX_CONTEXT},                                          \
    {NULL, {"vocab_size"}, SL_HP_INT, SL_HP_AT(n_vocab), .required = true, .min = 1,              \
     .max = SL_MAX_VOCAB},                                                                        \
    {"attention.layer_norm_rms_epsilon", {"rms_norm_eps"}, SL_HP_FLOAT, SL_HP_AT(norm_eps),       \
     .def = 1e-6, .min = 1e-20, .max = 1},                                                        \
    SL_HPARAMS_MLA,                                                                               \
    SL_HPARAMS_EXPERTS,                                                                           \
    SL_HPARAM_EXPERT_SIZE

/* The index of sparse attention. A list of layers, or which of so many has one. */
#define SL_HPARAMS_INDEX                                                                          \
    {"attention.indexer.top_k", {"index_topk"}, SL_HP_INT, SL_HP_AT(index_top), .def = 2048,      \
     .min = 1, .max = SL_MAX_INDEX_TOP},                                                          \
    {"attention.indexer.head_count", {"index_n_heads"}, SL_HP_INT, SL_HP_AT(index_heads),         \
     .required = true, .min = 1, .max = SL_MAX_HEADS},                                            \
    {"attention.indexer.key_length", {"index_head_dim"}, SL_HP_INT, SL_HP_AT(index_dim),          \
     .def = 128, .min = 2, .max = SL_MAX_HEAD_DIM},                                               \
    {NULL, {"indexer_types", "index_topk_pattern"}, SL_HP_LAYER_KINDS, SL_HP_AT(index_layers),    \
     .words = {NULL, "shared", "full"}, .letters = "?SF"},                                        \
    {NULL, {"index_topk_freq"}, SL_HP_INT, SL_HP_AT(index_step), .def = 1, .min = 0,              \
     .max = SL_MAX_LAYERS},                                                                       \
    {NULL, {"index_skip_topk_offset"}, SL_HP_INT, SL_HP_AT(index_offset), .def = 2, .min = 0,     \
     .max = SL_MAX_LAYERS},                                                                       \
    {NULL, {"indexer_rope_interleave"}, SL_HP_BOOL, SL_HP_AT(index_neighbours)}

/* A window that counts where a switch says so. 4096 is what transformers takes; null means none,
 * and so does 0, which transformers 5 writes where the switch is off. */
#define SL_HPARAMS_WINDOW_SWITCH                                                                  \
    {NULL, {"sliding_window"}, SL_HP_INT, SL_HP_AT(window), .hf_def = 4096, .min = 0,             \
     .max = SL_MAX_CONTEXT},                                                                      \
    {NULL, {"use_sliding_window"}, SL_HP_BOOL, SL_HP_AT(use_window)}

/* Multipliers of Granite, dense and with experts. */
#define SL_HPARAMS_GRANITE                                                                        \
    {"embedding_scale", {"embedding_multiplier"}, SL_HP_FLOAT, SL_HP_AT(embed_scale),             \
     .min = 1e-6, .max = 1e6},                                                                    \
    {"residual_scale", {"residual_multiplier"}, SL_HP_FLOAT, SL_HP_AT(residual_scale),            \
     .min = 1e-6, .max = 1e6},                                                                    \
    {"attention.scale", {"attention_multiplier"}, SL_HP_FLOAT, SL_HP_AT(attn_scale), .hf_def = 1, \
     .min = 1e-6, .max = 1e6},                                                                    \
    {"logit_scale", {"logits_scaling"}, SL_HP_FLOAT, SL_HP_AT(logit_divisor), .min = 1e-6,        \
     .max = 1e6}

/* Those whose layers but every fourth are windowed, and of which a list says which are rotated. */
#define SL_HPARAMS_GRANITE_WINDOWS                                                                \
    {NULL, {"sliding_window"}, SL_HP_INT, SL_HP_AT(window), .hf_def = 128, .min = 1,              \
     .max = SL_MAX_CONTEXT},                                                                      \
    {NULL, {"layer_types"}, SL_HP_LAYER_TYPES, SL_HP_AT(layer_types)},                            \
    {NULL, {"layer_rope_theta"}, SL_HP_LAYER_THETAS, SL_HP_AT(rope_layers), .min = 2, .max = 1e15}

/* Of a bool only this value is built. */
#define SL_HPARAM_ONLY(key, value) {.hf = {key}, .type = SL_HP_ONLY, .def = value}

/* What all of Gemma's texts have behind their heads. */
#define SL_HPARAMS_GEMMA_TEXT(context_def, vocab_def, window_def)                                 \
    {"context_length", {"max_position_embeddings"}, SL_HP_INT, SL_HP_AT(context),                 \
     .required = true, .hf_def = context_def, .min = 1, .max = SL_MAX_CONTEXT},                   \
    {NULL, {"vocab_size"}, SL_HP_INT, SL_HP_AT(n_vocab), .required = true, .hf_def = vocab_def,   \
     .min = 1, .max = SL_MAX_VOCAB},                                                              \
    {"attention.layer_norm_rms_epsilon", {"rms_norm_eps"}, SL_HP_FLOAT, SL_HP_AT(norm_eps),       \
     .def = 1e-6, .min = 1e-20, .max = 1},                                                        \
    {NULL, {"hidden_activation"}, SL_HP_ACT, SL_HP_AT(act), .def = SL_ACT_GELU_TANH},             \
    SL_HPARAM_TIED(true),                                                                         \
    {"attention.sliding_window", {"sliding_window"}, SL_HP_INT, SL_HP_AT(window),                 \
     .hf_def = window_def, .min = 1, .max = SL_MAX_CONTEXT}

/* Gemma 2 and 3. A config.json leaves out what is transformers' default, so that all defaults are
 * here. */
#define SL_HPARAMS_GEMMA(context_def, vocab_def)                                                  \
    {"embedding_length", {"hidden_size"}, SL_HP_INT, SL_HP_AT(hidden), .required = true,          \
     .hf_def = 2304, .min = 1, .max = SL_MAX_HIDDEN},                                             \
    {"feed_forward_length", {"intermediate_size"}, SL_HP_INT, SL_HP_AT(intermediate),             \
     .required = true, .hf_def = 9216, .min = 1, .max = 4 * SL_MAX_HIDDEN},                       \
    {"block_count", {"num_hidden_layers"}, SL_HP_INT, SL_HP_AT(n_layers), .required = true,       \
     .hf_def = 26, .min = 1, .max = SL_MAX_LAYERS},                                               \
    {"attention.head_count", {"num_attention_heads"}, SL_HP_INT, SL_HP_AT(n_heads),               \
     .required = true, .hf_def = 8, .min = 1, .max = SL_MAX_HEADS},                               \
    {"attention.head_count_kv", {"num_key_value_heads"}, SL_HP_INT, SL_HP_AT(n_kv_heads),         \
     .hf_def = 4, .min = 1, .max = SL_MAX_HEADS},                                                 \
    {"attention.key_length", {"head_dim"}, SL_HP_INT, SL_HP_AT(head_dim), .min = 2,               \
     .max = SL_MAX_HEAD_DIM},                                                                     \
    {"attention.value_length", {NULL}, SL_HP_INT, SL_HP_AT(v_dim), .min = 1,                      \
     .max = SL_MAX_HEAD_DIM},                                                                     \
    {"rope.dimension_count", {NULL}, SL_HP_INT, SL_HP_AT(rope_dims), .min = 2,                    \
     .max = SL_MAX_HEAD_DIM},                                                                     \
    SL_HPARAMS_GEMMA_TEXT(context_def, vocab_def, 4096)

/* Mamba 2, whose keys each family calls in its own way: taps, values of a state, groups, heads,
 * values of a head (absent: of state_expand); last, how many groups transformers takes. */
#define SL_HPARAMS_MAMBA2(taps, state, groups, heads, dim, n_groups)                              \
    {"ssm.conv_kernel", {taps}, SL_HP_INT, SL_HP_AT(state_taps), .def = 4, .min = 2,               \
     .max = SL_MAX_CONV_TAPS},                                                                    \
    {"ssm.state_size", {state}, SL_HP_INT, SL_HP_AT(state_k_dim), .required = true, .min = 1,     \
     .max = SL_MAX_STATE_DIM},                                                                    \
    {"ssm.group_count", {groups}, SL_HP_INT, SL_HP_AT(state_groups), .def = 1,                    \
     .hf_def = n_groups, .min = 1, .max = SL_MAX_HEADS},                                          \
    {"ssm.time_step_rank", {heads}, SL_HP_INT, SL_HP_AT(state_heads), .required = true, .min = 1, \
     .max = SL_MAX_HEADS},                                                                        \
    {NULL, {dim}, SL_HP_INT, SL_HP_AT(state_v_dim), .min = 1, .max = SL_MAX_STATE_DIM},           \
    {"ssm.inner_size", {NULL}, SL_HP_INT, SL_HP_AT(state_inner), .required = true, .min = 1,      \
     .max = SL_MAX_HIDDEN}

/* Mamba 1, likewise. */
#define SL_HPARAMS_MAMBA1(taps, state, rank, expand)                                              \
    {"ssm.conv_kernel", {taps}, SL_HP_INT, SL_HP_AT(state_taps), .def = 4, .min = 2,              \
     .max = SL_MAX_CONV_TAPS},                                                                    \
    {"ssm.state_size", {state}, SL_HP_INT, SL_HP_AT(state_k_dim), .def = 16, .min = 1,            \
     .max = SL_MAX_STATE_DIM},                                                                    \
    {"ssm.time_step_rank", {rank}, SL_HP_INT, SL_HP_AT(dt_rank), .min = 1, .max = SL_MAX_HIDDEN}, \
    {"ssm.inner_size", {NULL}, SL_HP_INT, SL_HP_AT(state_inner), .required = true, .min = 1,      \
     .max = SL_MAX_HIDDEN},                                                                       \
    {NULL, {expand}, SL_HP_INT, SL_HP_AT(state_expand), .def = 2, .min = 1, .max = 64}

#define SL_HPARAMS_DT_LIMIT                                                                       \
    {NULL, {"time_step_limit.0"}, SL_HP_FLOAT, SL_HP_AT(dt_min), .min = 0, .max = 1e6},           \
    {NULL, {"time_step_limit.1"}, SL_HP_FLOAT, SL_HP_AT(dt_max), .def = SL_JSON_INFINITY,         \
     .min = 1e-6, .max = SL_JSON_INFINITY}

/* Mamba 2 beside layers of attention, in the names that Bamba gave them. */
#define SL_HPARAMS_MAMBA2_LAYERS                                                                  \
    SL_HPARAMS_MAMBA2("mamba_d_conv", "mamba_d_state", "mamba_n_groups", "mamba_n_heads",         \
                      "mamba_d_head", 1),                                                         \
    {NULL, {"mamba_expand"}, SL_HP_INT, SL_HP_AT(state_expand), .def = 2, .min = 1, .max = 64},   \
    SL_HPARAMS_DT_LIMIT,                                                                          \
    {NULL, {"mamba_conv_bias"}, SL_HP_HAS, .has = SL_HAS_CONV_BIAS, .def = true},                 \
    {NULL, {"mamba_proj_bias"}, SL_HP_HAS, .has = SL_HAS_STATE_BIAS}

/* Models of Mamba alone. Nothing limits the context; a GGUF says this. */
#define SL_HPARAMS_BACKBONE                                                                       \
    {"embedding_length", {"hidden_size"}, SL_HP_INT, SL_HP_AT(hidden), .required = true, .min = 1,\
     .max = SL_MAX_HIDDEN},                                                                       \
    {"block_count", {"num_hidden_layers"}, SL_HP_INT, SL_HP_AT(n_layers), .required = true,       \
     .min = 1, .max = SL_MAX_LAYERS},                                                             \
    {NULL, {"vocab_size"}, SL_HP_INT, SL_HP_AT(n_vocab), .required = true, .min = 1,              \
     .max = SL_MAX_VOCAB},                                                                        \
    {"context_length", {"max_position_embeddings"}, SL_HP_INT, SL_HP_AT(context), .def = 1 << 20, \
     .min = 1, .max = SL_MAX_CONTEXT},                                                            \
    {"attention.layer_norm_rms_epsilon", {"layer_norm_epsilon"}, SL_HP_FLOAT, SL_HP_AT(norm_eps), \
     .def = 1e-5, .min = 1e-20, .max = 1}

/* Gemma 3n and 4, where layers may differ in what an MLP is wide; and what follows their heads. */
#define SL_HPARAMS_GEMMA_BY_LAYER(hidden_def, layers_def, mid_def)                                \
    {"embedding_length", {"hidden_size"}, SL_HP_INT, SL_HP_AT(hidden), .required = true,          \
     .hf_def = hidden_def, .min = 1, .max = SL_MAX_HIDDEN},                                       \
    {"block_count", {"num_hidden_layers"}, SL_HP_INT, SL_HP_AT(n_layers), .required = true,       \
     .hf_def = layers_def, .min = 1, .max = SL_MAX_LAYERS},                                       \
    {"feed_forward_length", {"intermediate_size"}, SL_HP_LAYER_INTS, SL_HP_AT(layer_intermediate),\
     .required = true, .hf_def = mid_def, .min = 1, .max = 4 * SL_MAX_HIDDEN},                    \
    {"attention.head_count", {"num_attention_heads"}, SL_HP_INT, SL_HP_AT(n_heads),               \
     .required = true, .hf_def = 8, .min = 1, .max = SL_MAX_HEADS}
#define SL_HPARAMS_GEMMA_WINDOWS(context_def, vocab_def)                                          \
    SL_HPARAMS_GEMMA_TEXT(context_def, vocab_def, 512),                                           \
    {"attention.sliding_window_pattern", {"layer_types"}, SL_HP_LAYER_TYPES,                      \
     SL_HP_AT(layer_types)}

/* Gemma 4, whose heads differ between windowed layers and full ones: transformers 5.23 writes what
 * differs by layer into per_layer_config, the hub has the rows before those. */
#define SL_HPARAMS_GEMMA4_HEADS                                                                   \
    {NULL, {"num_key_value_heads"}, SL_HP_INT, SL_HP_AT(n_kv_heads), .hf_def = 4, .min = 1,       \
     .max = SL_MAX_HEADS},                                                                        \
    {NULL, {"num_global_key_value_heads"}, SL_HP_INT, SL_HP_AT(full_kv_heads), .min = 1,          \
     .max = SL_MAX_HEADS},                                                                        \
    {"attention.key_length_swa", {"head_dim"}, SL_HP_INT, SL_HP_AT(head_dim), .min = 2,           \
     .max = SL_MAX_HEAD_DIM},                                                                     \
    {"attention.key_length", {"global_head_dim"}, SL_HP_INT, SL_HP_AT(full_head_dim),             \
     .hf_def = 512, .min = 2, .max = SL_MAX_HEAD_DIM},                                            \
    {"attention.head_count_kv", {"per_layer_config"}, SL_HP_LAYER_INTS, SL_HP_AT(layer_kv_heads), \
     .value = "num_key_value_heads", .min = 1, .max = SL_MAX_HEADS},                              \
    {NULL, {"per_layer_config"}, SL_HP_LAYER_INTS, SL_HP_AT(layer_head_dims), .value = "head_dim",\
     .min = 2, .max = SL_MAX_HEAD_DIM}

/* EXAONE, dense and with experts. */
#define SL_HPARAMS_EXAONE_WINDOWS                                                                 \
    {"attention.sliding_window", {"sliding_window"}, SL_HP_INT, SL_HP_AT(window), .hf_def = 4096, \
     .min = 1, .max = SL_MAX_CONTEXT},                                                            \
    {"attention.sliding_window_pattern", {"layer_types", "sliding_window_pattern"},               \
     SL_HP_LAYER_TYPES, SL_HP_AT(layer_types)}

#define SL_HPARAMS_LABELS                                                                         \
    {NULL, {"id2label"}, SL_HP_LABELS, SL_HP_AT(n_labels), .def = 2}

#define SL_W_LAYER(s, hf_name, gguf_name, r, c, how)                                              \
    {.slot = SL_SLOT_##s, .hf = "model.layers.*." hf_name, .gguf = "blk.*." gguf_name,            \
     .rows = SL_DIM_##r, .cols = SL_DIM_##c, .shard = SL_SHARD_##how

/* Part `idx` of a fused tensor; behind it the rows of all its parts. */
#define SL_W_LAYER_PART(s, hf_name, gguf_name, r, c, how, idx, ...)                               \
    {.slot = SL_SLOT_##s, .hf_fused = "model.layers.*." hf_name,                                  \
     .gguf_fused = "blk.*." gguf_name, .rows = SL_DIM_##r, .cols = SL_DIM_##c,                    \
     .shard = SL_SHARD_##how, .part = idx, .fused = {__VA_ARGS__}

#define SL_WEIGHTS_EMBED_AND_HEAD                                                                 \
    {.slot = SL_SLOT_EMBED, .hf = "model.embed_tokens.weight", .gguf = "token_embd.weight",       \
     .rows = SL_DIM_V, .cols = SL_DIM_H},                                                         \
    {.slot = SL_SLOT_FINAL_NORM, .hf = "model.norm.weight", .gguf = "output_norm.weight",         \
     .rows = SL_DIM_H},                                                                           \
    {.slot = SL_SLOT_HEAD, .hf = "lm_head.weight", .gguf = "output.weight", .rows = SL_DIM_V,     \
     .cols = SL_DIM_H, .shard = SL_SHARD_ROWS, .when = SL_HAS_HEAD}

/* Divisors of frequencies, which a GGUF holds as a tensor. */
#define SL_WEIGHT_ROPE_FREQS                                                                      \
    {.slot = SL_SLOT_ROPE_FREQS, .gguf = "rope_freqs.weight", .rows = SL_DIM_ROPE,                \
     .when = SL_HAS_ROPE_FREQS}

/* Lists of LongRoPE, which a GGUF holds as tensors. */
#define SL_WEIGHTS_ROPE_FACTORS                                                                   \
    {.slot = SL_SLOT_ROPE_SHORT, .gguf = "rope_factors_short.weight", .rows = SL_DIM_ROPE,        \
     .when = SL_HAS_ROPE_FACTORS},                                                                \
    {.slot = SL_SLOT_ROPE_LONG, .gguf = "rope_factors_long.weight", .rows = SL_DIM_ROPE,          \
     .when = SL_HAS_ROPE_FACTORS}

/* The final norm is 1 + w. */
#define SL_WEIGHTS_EMBED_AND_HEAD_PLUS_ONE                                                        \
    {.slot = SL_SLOT_EMBED, .hf = "model.embed_tokens.weight", .gguf = "token_embd.weight",       \
     .rows = SL_DIM_V, .cols = SL_DIM_H},                                                         \
    {.slot = SL_SLOT_FINAL_NORM, .hf = "model.norm.weight", .gguf = "output_norm.weight",         \
     .rows = SL_DIM_H, .flags = SL_W_PLUS_ONE},                                                   \
    {.slot = SL_SLOT_HEAD, .hf = "lm_head.weight", .gguf = "output.weight", .rows = SL_DIM_V,     \
     .cols = SL_DIM_H, .shard = SL_SHARD_ROWS, .when = SL_HAS_HEAD}

#define SL_WEIGHTS_ATTN_NORM                                                                      \
    SL_W_LAYER(ATTN_NORM, "input_layernorm.weight", "attn_norm.weight", H, NONE, NONE)}

#define SL_WEIGHTS_GQA                                                                            \
    SL_W_LAYER(Q, "self_attn.q_proj.weight", "attn_q.weight", Q, H, HEADS),                       \
     .flags = SL_W_ROPE_ROWS},                                                                    \
    SL_W_LAYER(K, "self_attn.k_proj.weight", "attn_k.weight", K, H, KV_HEADS),                    \
     .flags = SL_W_ROPE_ROWS},                                                                    \
    SL_W_LAYER(V, "self_attn.v_proj.weight", "attn_v.weight", VALUES, H, KV_HEADS)},              \
    SL_W_LAYER(O, "self_attn.o_proj.weight", "attn_output.weight", H, ATT, ROWS)}

/* Latent attention; bits: of the layers that have it, 0: all. Behind kv_b each head has the rows
 * of its keys, then those of its values; converters to GGUF store the former transposed. Ranks
 * divide the matrices of heads; what is made of a token for all of them, each has whole. */
#define SL_WEIGHTS_MLA(bits) SL_WEIGHTS_MLA_OF("self_attn", "self_attn.o_proj.weight", bits)
#define SL_WEIGHTS_MLA_OF(stem, o, bits) SL_WEIGHTS_MLA_BY(stem, o, bits, 0)
/* norm_flags: of the norms of both rows. */
#define SL_WEIGHTS_MLA_BY(stem, o, bits, norm_flags)                                              \
    SL_W_LAYER(Q, stem ".q_proj.weight", "attn_q.weight", MLA_Q_ALONE, H, HEADS),                 \
     .when = bits},                                                                               \
    SL_WEIGHTS_MLA_Q_ROW(stem, bits, norm_flags),                                                 \
    SL_W_LAYER(Q, stem ".q_b_proj.weight", "attn_q_b.weight", MLA_Q, MLA_Q_RANK, HEADS),          \
     .when = bits},                                                                               \
    SL_WEIGHTS_MLA_KEPT(stem, o, bits, norm_flags)
/* Of these: what the row is made by that queries come of, */
#define SL_WEIGHTS_MLA_Q_ROW(stem, bits, norm_flags)                                              \
    SL_W_LAYER(MLA_Q_DOWN, stem ".q_a_proj.weight", "attn_q_a.weight", MLA_Q_RANK, H, NONE),      \
     .when = bits},                                                                               \
    SL_W_LAYER(MLA_Q_NORM, stem ".q_a_layernorm.weight", "attn_q_a_norm.weight",                  \
               MLA_Q_RANK, NONE, NONE), .when = bits, .flags = norm_flags}
/* and all that is behind queries. */
#define SL_WEIGHTS_MLA_KEPT(stem, o, bits, norm_flags)                                            \
    SL_W_LAYER_PART(MLA_C, stem ".kv_a_proj_with_mqa.weight", "attn_kv_a_mqa.weight",             \
                    MLA_RANK, H, NONE, 0, SL_DIM_MLA_RANK, SL_DIM_MLA_ROPE), .when = bits},       \
    SL_W_LAYER_PART(MLA_K_ROPE, stem ".kv_a_proj_with_mqa.weight", "attn_kv_a_mqa.weight",        \
                    MLA_ROPE, H, NONE, 1, SL_DIM_MLA_RANK, SL_DIM_MLA_ROPE), .when = bits},       \
    SL_W_LAYER(MLA_C_NORM, stem ".kv_a_layernorm.weight", "attn_kv_a_norm.weight", MLA_RANK,      \
               NONE, NONE), .when = bits, .flags = norm_flags},                                   \
    SL_W_LAYER_PART(MLA_K_UP, stem ".kv_b_proj.weight", "attn_kv_b.weight", MLA_RANK,             \
                    MLA_NOPE, NONE, 0, SL_DIM_MLA_NOPE, SL_DIM_MLA_V),                            \
     .gguf = "blk.*.attn_k_b.weight", .mats = SL_DIM_HEADS, .flags = SL_W_PART_TRANSPOSED,        \
     .when = bits},                                                                               \
    SL_W_LAYER_PART(MLA_V_UP, stem ".kv_b_proj.weight", "attn_kv_b.weight", MLA_V, MLA_RANK,      \
                    NONE, 1, SL_DIM_MLA_NOPE, SL_DIM_MLA_V), .gguf = "blk.*.attn_v_b.weight",     \
     .mats = SL_DIM_HEADS, .when = bits},                                                         \
    SL_W_LAYER(O, o, "attn_output.weight", H, ATT, ROWS), .when = bits}

/* An index of what it attends to. */
#define SL_WEIGHTS_INDEX                                                                          \
    SL_W_LAYER(INDEX_Q, "self_attn.indexer.wq_b.weight", "indexer.attn_q_b.weight", INDEX_Q,      \
               MLA_Q_RANK, NONE), .when = SL_HAS_K},                                              \
    SL_W_LAYER(INDEX_K, "self_attn.indexer.wk.weight", "indexer.attn_k.weight", INDEX_K, H,       \
               NONE), .when = SL_HAS_K},                                                          \
    SL_W_LAYER(INDEX_K_NORM, "self_attn.indexer.k_norm.weight", "indexer.k_norm.weight", INDEX_K, \
               NONE, NONE), .when = SL_HAS_K},                                                    \
    SL_W_LAYER(INDEX_K_NORM_BIAS, "self_attn.indexer.k_norm.bias", "indexer.k_norm.bias",         \
               INDEX_K, NONE, NONE), .when = SL_HAS_K},                                           \
    SL_W_LAYER(INDEX_W, "self_attn.indexer.weights_proj.weight", "indexer.proj.weight",           \
               INDEX_HEADS, H, NONE), .when = SL_HAS_K}

#define SL_WEIGHTS_QKV_BIAS                                                                       \
    SL_W_LAYER(Q_BIAS, "self_attn.q_proj.bias", "attn_q.bias", Q, NONE, HEADS),                   \
     .when = SL_HAS_QKV_BIAS, .flags = SL_W_ROPE_ROWS},                                           \
    SL_W_LAYER(K_BIAS, "self_attn.k_proj.bias", "attn_k.bias", K, NONE, KV_HEADS),                \
     .when = SL_HAS_QKV_BIAS, .flags = SL_W_ROPE_ROWS},                                           \
    SL_W_LAYER(V_BIAS, "self_attn.v_proj.bias", "attn_v.bias", VALUES, NONE, KV_HEADS),           \
     .when = SL_HAS_QKV_BIAS}

#define SL_WEIGHTS_O_BIAS                                                                         \
    SL_W_LAYER(O_BIAS, "self_attn.o_proj.bias", "attn_output.bias", H, NONE, ROWS),               \
     .when = SL_HAS_O_BIAS}

#define SL_WEIGHTS_SINKS                                                                          \
    SL_W_LAYER(SINKS, "self_attn.sinks", "attn_sinks.weight", HEADS, NONE, HEADS),                \
     .when = SL_HAS_SINKS}

#define SL_WEIGHTS_QK_NORM                                                                        \
    SL_WEIGHTS_QK_NORM_CALLED("self_attn.q_norm.weight", "self_attn.k_norm.weight")

#define SL_WEIGHTS_QK_NORM_CALLED(q, k)                                                           \
    SL_W_LAYER(Q_NORM, q, "attn_q_norm.weight", HD, NONE, NONE), .when = SL_HAS_QK_NORM},         \
    SL_W_LAYER(K_NORM, k, "attn_k_norm.weight", HD, NONE, NONE), .when = SL_HAS_QK_NORM}

/* Of all heads together. */
#define SL_WEIGHTS_QK_NORM_ROWS                                                                   \
    SL_W_LAYER(Q_NORM, "self_attn.q_norm.weight", "attn_q_norm.weight", Q, NONE, HEADS)},         \
    SL_W_LAYER(K_NORM, "self_attn.k_norm.weight", "attn_k_norm.weight", K, NONE, KV_HEADS)}

/* Norms of what attention and MLP give, and none before them. */
#define SL_WEIGHTS_OUT_NORMS                                                                      \
    SL_W_LAYER(ATTN_OUT_NORM, "post_attention_layernorm.weight", "post_attention_norm.weight", H, \
               NONE, NONE)},                                                                      \
    SL_W_LAYER(FFN_OUT_NORM, "post_feedforward_layernorm.weight", "post_ffw_norm.weight", H,      \
               NONE, NONE)}

/* Norms before and behind attention and MLP. */
#define SL_WEIGHTS_SANDWICH_PLUS_ONE                                                              \
    SL_W_LAYER(ATTN_NORM, "input_layernorm.weight", "attn_norm.weight", H, NONE, NONE),           \
     .flags = SL_W_PLUS_ONE},                                                                     \
    SL_W_LAYER(ATTN_OUT_NORM, "post_attention_layernorm.weight", "post_attention_norm.weight", H, \
               NONE, NONE), .flags = SL_W_PLUS_ONE},                                              \
    SL_W_LAYER(FFN_NORM, "pre_feedforward_layernorm.weight", "ffn_norm.weight", H, NONE, NONE),   \
     .flags = SL_W_PLUS_ONE},                                                                     \
    SL_W_LAYER(FFN_OUT_NORM, "post_feedforward_layernorm.weight", "post_ffw_norm.weight", H,      \
               NONE, NONE), .flags = SL_W_PLUS_ONE}

#define SL_WEIGHTS_SANDWICH                                                                       \
    SL_W_LAYER(ATTN_NORM, "input_layernorm.weight", "attn_norm.weight", H, NONE, NONE)},          \
    SL_W_LAYER(ATTN_OUT_NORM, "post_attention_layernorm.weight", "post_attention_norm.weight", H, \
               NONE, NONE)},                                                                      \
    SL_W_LAYER(FFN_NORM, "pre_feedforward_layernorm.weight", "ffn_norm.weight", H, NONE, NONE)},  \
    SL_W_LAYER(FFN_OUT_NORM, "post_feedforward_layernorm.weight", "post_ffw_norm.weight", H,      \
               NONE, NONE)}

/* Embeddings for each layer, beside the one of the residual stream. */
#define SL_WEIGHTS_LAYER_INPUTS                                                                   \
    {.slot = SL_SLOT_LAYER_EMBED, .hf = "model.embed_tokens_per_layer.weight",                    \
     .gguf = "per_layer_token_embd.weight", .rows = SL_DIM_V_LAYERS, .cols = SL_DIM_LAYERS_W,     \
     .when = SL_HAS_LAYER_INPUTS},                                                                \
    {.slot = SL_SLOT_LAYER_PROJ, .hf = "model.per_layer_model_projection.weight",                 \
     .gguf = "per_layer_model_proj.weight", .rows = SL_DIM_LAYERS_W, .cols = SL_DIM_H,            \
     .when = SL_HAS_LAYER_INPUTS},                                                                \
    {.slot = SL_SLOT_LAYER_PROJ_NORM, .hf = "model.per_layer_projection_norm.weight",             \
     .gguf = "per_layer_proj_norm.weight", .rows = SL_DIM_W, .when = SL_HAS_LAYER_INPUTS},        \
    SL_W_LAYER(INPUT_GATE, "per_layer_input_gate.weight", "inp_gate.weight", W, H, NONE),         \
     .when = SL_HAS_LAYER_INPUTS},                                                                \
    SL_W_LAYER(INPUT_OUT, "per_layer_projection.weight", "proj.weight", H, W, NONE),              \
     .when = SL_HAS_LAYER_INPUTS},                                                                \
    SL_W_LAYER(INPUT_OUT_NORM, "post_per_layer_input_norm.weight", "post_norm.weight", H, NONE,   \
               NONE), .when = SL_HAS_LAYER_INPUTS}

#define SL_WEIGHTS_FFN_NORM                                                                       \
    SL_W_LAYER(FFN_NORM, "post_attention_layernorm.weight", "ffn_norm.weight", H, NONE, NONE)}

/* Hunyuan, dense and with experts: up to its MLP. */
#define SL_WEIGHTS_HUNYUAN_ATTENTION                                                              \
    SL_WEIGHTS_ATTN_NORM,                                                                         \
    SL_WEIGHTS_GQA,                                                                               \
    SL_WEIGHTS_QKV_BIAS,                                                                          \
    SL_WEIGHTS_O_BIAS,                                                                            \
    SL_WEIGHTS_QK_NORM_CALLED("self_attn.query_layernorm.weight",                                 \
                              "self_attn.key_layernorm.weight"),                                  \
    SL_WEIGHTS_FFN_NORM

/* Biases of norms that have a mean. */
#define SL_WEIGHTS_FINAL_NORM_BIAS                                                                \
    {.slot = SL_SLOT_FINAL_NORM_BIAS, .hf = "model.norm.bias", .gguf = "output_norm.bias",        \
     .rows = SL_DIM_H}
#define SL_WEIGHTS_ATTN_NORM_BIAS                                                                 \
    SL_W_LAYER(ATTN_NORM_BIAS, "input_layernorm.bias", "attn_norm.bias", H, NONE, NONE)}
#define SL_WEIGHTS_FFN_NORM_BIAS                                                                  \
    SL_W_LAYER(FFN_NORM_BIAS, "post_attention_layernorm.bias", "ffn_norm.bias", H, NONE, NONE)}

/* An MLP without a gate. */
#define SL_WEIGHTS_FFN_PLAIN(up, down)                                                            \
    SL_W_LAYER(UP, up ".weight", "ffn_up.weight", I, H, ROWS)},                                   \
    SL_W_LAYER(UP_BIAS, up ".bias", "ffn_up.bias", I, NONE, ROWS), .when = SL_HAS_MLP_BIAS},      \
    SL_W_LAYER(DOWN, down ".weight", "ffn_down.weight", H, I, ROWS)},                             \
    SL_W_LAYER(DOWN_BIAS, down ".bias", "ffn_down.bias", H, NONE, ROWS), .when = SL_HAS_MLP_BIAS}

#define SL_WEIGHTS_FFN_GATED                                                                      \
    SL_W_LAYER(GATE, "mlp.gate_proj.weight", "ffn_gate.weight", I, H, ROWS)},                     \
    SL_W_LAYER(UP, "mlp.up_proj.weight", "ffn_up.weight", I, H, ROWS)},                           \
    SL_W_LAYER(DOWN, "mlp.down_proj.weight", "ffn_down.weight", H, I, ROWS)}

/* Gate and up in one tensor. */
#define SL_WEIGHTS_FFN_GATE_UP                                                                    \
    SL_W_LAYER_PART(GATE, "mlp.gate_up_proj.weight", "ffn_up.weight", I, H, ROWS, 0, SL_DIM_I,    \
                    SL_DIM_I)},                                                                   \
    SL_W_LAYER_PART(UP, "mlp.gate_up_proj.weight", "ffn_up.weight", I, H, ROWS, 1, SL_DIM_I,      \
                    SL_DIM_I)},                                                                   \
    SL_W_LAYER(DOWN, "mlp.down_proj.weight", "ffn_down.weight", H, I, ROWS)}

#define SL_WEIGHTS_MLP_BIAS                                                                       \
    SL_W_LAYER(GATE_BIAS, "mlp.gate_proj.bias", "ffn_gate.bias", I, NONE, ROWS),                  \
     .when = SL_HAS_MLP_BIAS},                                                                    \
    SL_W_LAYER(UP_BIAS, "mlp.up_proj.bias", "ffn_up.bias", I, NONE, ROWS),                        \
     .when = SL_HAS_MLP_BIAS},                                                                    \
    SL_W_LAYER(DOWN_BIAS, "mlp.down_proj.bias", "ffn_down.bias", H, NONE, ROWS),                  \
     .when = SL_HAS_MLP_BIAS}

#define SL_WEIGHTS_EXPERTS SL_WEIGHTS_EXPERTS_BY("mlp.gate.weight")

/* router: how safetensors call its matrix. */
#define SL_WEIGHTS_EXPERTS_BY(router)                                                             \
    SL_W_LAYER(ROUTER, router, "ffn_gate_inp.weight", ROUTED, H, NONE),                           \
     .when = SL_HAS_EXPERTS},                                                                     \
    SL_W_LAYER(EXPERTS_GATE, "mlp.experts.#.gate_proj.weight", "ffn_gate_exps.weight", I, H,      \
               ROWS), .mats = SL_DIM_E, .when = SL_HAS_EXPERTS},                                  \
    SL_W_LAYER(EXPERTS_UP, "mlp.experts.#.up_proj.weight", "ffn_up_exps.weight", I, H,            \
               ROWS), .mats = SL_DIM_E, .when = SL_HAS_EXPERTS},                                  \
    SL_W_LAYER(EXPERTS_DOWN, "mlp.experts.#.down_proj.weight", "ffn_down_exps.weight", H, I,      \
               ROWS), .mats = SL_DIM_E, .when = SL_HAS_EXPERTS}

/* The same, or all experts of a layer in one tensor, their gates and ups as well. */
#define SL_W_EXPERTS_OR_FUSED(s, name, gguf_name, r, c, fused_name, gguf_fused_name, idx, ...)    \
    SL_W_LAYER(s, "mlp.experts.#." name, gguf_name, r, c, ROWS),                                  \
     .hf_fused = "model.layers.*.mlp.experts." fused_name, .gguf_fused = gguf_fused_name,         \
     .part = idx, .fused = {__VA_ARGS__}, .mats = SL_DIM_E, .when = SL_HAS_EXPERTS}
#define SL_WEIGHTS_EXPERTS_OR_FUSED                                                               \
    SL_W_LAYER(ROUTER, "mlp.gate.weight", "ffn_gate_inp.weight", E, H, NONE),                     \
     .when = SL_HAS_EXPERTS},                                                                     \
    SL_W_EXPERTS_OR_FUSED(EXPERTS_GATE, "gate_proj.weight", "ffn_gate_exps.weight", I, H,         \
                          "gate_up_proj", "blk.*.ffn_gate_up_exps.weight", 0, SL_DIM_I,           \
                          SL_DIM_I),                                                              \
    SL_W_EXPERTS_OR_FUSED(EXPERTS_UP, "up_proj.weight", "ffn_up_exps.weight", I, H,               \
                          "gate_up_proj", "blk.*.ffn_gate_up_exps.weight", 1, SL_DIM_I,           \
                          SL_DIM_I),                                                              \
    SL_W_EXPERTS_OR_FUSED(EXPERTS_DOWN, "down_proj.weight", "ffn_down_exps.weight", H, I,         \
                          "down_proj", NULL, 0, SL_DIM_H)

#define SL_WEIGHTS_FFN_DENSE                                                                      \
    SL_W_LAYER(GATE, "mlp.gate_proj.weight", "ffn_gate.weight", I, H, ROWS),                      \
     .when = SL_HAS_DENSE},                                                                       \
    SL_W_LAYER(UP, "mlp.up_proj.weight", "ffn_up.weight", I, H, ROWS), .when = SL_HAS_DENSE},     \
    SL_W_LAYER(DOWN, "mlp.down_proj.weight", "ffn_down.weight", H, I, ROWS), .when = SL_HAS_DENSE}

/* Mamba 1. stem: "backbone.layers.*.mixer" */
#define SL_W_MAMBA1_PART(s, hf_name, gguf_name, dim, n_cols, idx, ...)                            \
    {.slot = SL_SLOT_STATE_##s, .hf_fused = hf_name, .gguf_fused = "blk.*." gguf_name,            \
     .rows = SL_DIM_##dim, .cols = SL_DIM_##n_cols, .part = idx, .fused = {__VA_ARGS__}

#define SL_WEIGHTS_MAMBA1(stem)                                                                   \
    SL_W_MAMBA1_PART(IN, stem ".in_proj.weight", "ssm_in.weight", STATE_ROWS, H, 0,               \
     SL_DIM_STATE_ROWS, SL_DIM_STATE_ROWS), .when = SL_HAS_STATE},                                \
    SL_W_MAMBA1_PART(GATE, stem ".in_proj.weight", "ssm_in.weight", STATE_ROWS, H, 1,             \
     SL_DIM_STATE_ROWS, SL_DIM_STATE_ROWS), .when = SL_HAS_STATE},                                \
    SL_W_MAMBA1_PART(IN_BIAS, stem ".in_proj.bias", "ssm_in.bias", STATE_ROWS, NONE, 0,           \
     SL_DIM_STATE_ROWS, SL_DIM_STATE_ROWS), .when = SL_HAS_STATE | SL_HAS_STATE_BIAS},            \
    SL_W_MAMBA1_PART(GATE_BIAS, stem ".in_proj.bias", "ssm_in.bias", STATE_ROWS, NONE, 1,         \
     SL_DIM_STATE_ROWS, SL_DIM_STATE_ROWS), .when = SL_HAS_STATE | SL_HAS_STATE_BIAS},            \
    SL_W_STATE(CONV, stem ".conv1d.weight", "ssm_conv1d.weight", CONV, TAPS), .flags =            \
     SL_W_VALUES, .when = SL_HAS_STATE},                                                          \
    SL_W_STATE(CONV_BIAS, stem ".conv1d.bias", "ssm_conv1d.bias", CONV, NONE), .when =            \
     SL_HAS_STATE | SL_HAS_CONV_BIAS},                                                            \
    SL_W_MAMBA1_PART(X, stem ".x_proj.weight", "ssm_x.weight", STATE_RANK, STATE_ROWS, 0,         \
     SL_DIM_STATE_RANK, SL_DIM_STATE_K, SL_DIM_STATE_K), .when = SL_HAS_STATE},                   \
    SL_W_MAMBA1_PART(B, stem ".x_proj.weight", "ssm_x.weight", STATE_K, STATE_ROWS, 1,            \
     SL_DIM_STATE_RANK, SL_DIM_STATE_K, SL_DIM_STATE_K), .when = SL_HAS_STATE},                   \
    SL_W_MAMBA1_PART(C, stem ".x_proj.weight", "ssm_x.weight", STATE_K, STATE_ROWS, 2,            \
     SL_DIM_STATE_RANK, SL_DIM_STATE_K, SL_DIM_STATE_K), .when = SL_HAS_STATE},                   \
    SL_W_STATE(STATE_DT_UP, stem ".dt_proj.weight", "ssm_dt.weight", STATE_ROWS, STATE_RANK),     \
     .when = SL_HAS_STATE},                                                                       \
    SL_W_STATE(STATE_DT_BIAS, stem ".dt_proj.bias", "ssm_dt.bias", STATE_ROWS, NONE), .when =     \
     SL_HAS_STATE},                                                                               \
    SL_W_STATE(STATE_A, stem ".A_log", "ssm_a", STATE_ROWS, STATE_K), .flags = SL_W_VALUES |      \
     SL_W_MINUS_EXP, .when = SL_HAS_STATE},                                                       \
    SL_W_STATE(STATE_D, stem ".D", "ssm_d", STATE_ROWS, NONE), .when = SL_HAS_STATE},             \
    SL_W_STATE(STATE_RANK_NORM, stem ".dt_layernorm.weight", "ssm_dt_norm.weight",                \
     STATE_RANK, NONE), .when = SL_HAS_STATE | SL_HAS_STATE_NORM},                                \
    SL_W_STATE(STATE_B_NORM, stem ".b_layernorm.weight", "ssm_b_norm.weight", STATE_K, NONE),     \
     .when = SL_HAS_STATE | SL_HAS_STATE_NORM},                                                   \
    SL_W_STATE(STATE_C_NORM, stem ".c_layernorm.weight", "ssm_c_norm.weight", STATE_K, NONE),     \
     .when = SL_HAS_STATE | SL_HAS_STATE_NORM},                                                   \
    SL_W_STATE(STATE_OUT, stem ".out_proj.weight", "ssm_out.weight", H, STATE_ROWS), .when =      \
     SL_HAS_STATE},                                                                               \
    SL_W_STATE(STATE_OUT_BIAS, stem ".out_proj.bias", "ssm_out.bias", H, NONE), .when =           \
     SL_HAS_STATE | SL_HAS_STATE_BIAS}

/* Attention where some layers have none. stem: "model.layers.*.self_attn" */
#define SL_W_SOME_ATTN(s, hf_name, gguf_name, r, c, how)                                          \
    {.slot = SL_SLOT_##s, .hf = hf_name, .gguf = "blk.*." gguf_name, .rows = SL_DIM_##r,          \
     .cols = SL_DIM_##c, .shard = SL_SHARD_##how

#define SL_WEIGHTS_SOME_GQA(stem)                                                                 \
    SL_W_SOME_ATTN(Q, stem ".q_proj.weight", "attn_q.weight", Q, H, HEADS),                       \
     .flags = SL_W_ROPE_ROWS, .when = SL_HAS_ATTN},                                               \
    SL_W_SOME_ATTN(K, stem ".k_proj.weight", "attn_k.weight", K, H, KV_HEADS),                    \
     .flags = SL_W_ROPE_ROWS, .when = SL_HAS_ATTN},                                               \
    SL_W_SOME_ATTN(V, stem ".v_proj.weight", "attn_v.weight", VALUES, H, KV_HEADS),               \
     .when = SL_HAS_ATTN},                                                                        \
    SL_W_SOME_ATTN(O, stem ".o_proj.weight", "attn_output.weight", H, ATT, ROWS),                 \
     .when = SL_HAS_ATTN},                                                                        \
    SL_W_SOME_ATTN(Q_BIAS, stem ".q_proj.bias", "attn_q.bias", Q, NONE, HEADS),                   \
     .when = SL_HAS_ATTN | SL_HAS_QKV_BIAS, .flags = SL_W_ROPE_ROWS},                             \
    SL_W_SOME_ATTN(K_BIAS, stem ".k_proj.bias", "attn_k.bias", K, NONE, KV_HEADS),                \
     .when = SL_HAS_ATTN | SL_HAS_QKV_BIAS, .flags = SL_W_ROPE_ROWS},                             \
    SL_W_SOME_ATTN(V_BIAS, stem ".v_proj.bias", "attn_v.bias", VALUES, NONE, KV_HEADS),           \
     .when = SL_HAS_ATTN | SL_HAS_QKV_BIAS},                                                      \
    SL_W_SOME_ATTN(O_BIAS, stem ".o_proj.bias", "attn_output.bias", H, NONE, ROWS),               \
     .when = SL_HAS_ATTN | SL_HAS_O_BIAS}

/* A part of Mamba 2's input projection. stem: "backbone.layers.*.mixer" */
#define SL_W_MAMBA2_IN(s, stem, end, dim, n_cols, idx)                                            \
    {.slot = SL_SLOT_STATE_##s, .hf_fused = stem ".in_proj." end,                                 \
     .gguf_fused = "blk.*.ssm_in." end, .rows = SL_DIM_##dim, .cols = SL_DIM_##n_cols,            \
     .part = idx, .fused = {SL_DIM_STATE_ROWS, SL_DIM_CONV, SL_DIM_STATE_HEADS}
#define SL_W_STATE(s, hf_name, gguf_name, dim, n_cols)                                            \
    {.slot = SL_SLOT_##s, .hf = hf_name, .gguf = "blk.*." gguf_name, .rows = SL_DIM_##dim,        \
     .cols = SL_DIM_##n_cols

/* layers: bits of those that have it. */
#define SL_WEIGHTS_MAMBA2_OF(stem, layers)                                                        \
    SL_W_MAMBA2_IN(GATE, stem, "weight", STATE_ROWS, H, 0), .when = (layers)},                    \
    SL_W_MAMBA2_IN(IN, stem, "weight", CONV, H, 1), .when = (layers)},                            \
    SL_W_MAMBA2_IN(DT, stem, "weight", STATE_HEADS, H, 2), .when = (layers)},                     \
    SL_W_MAMBA2_IN(GATE_BIAS, stem, "bias", STATE_ROWS, NONE, 0),                                 \
     .when = (layers) | SL_HAS_STATE_BIAS},                                                       \
    SL_W_MAMBA2_IN(IN_BIAS, stem, "bias", CONV, NONE, 1),                                         \
     .when = (layers) | SL_HAS_STATE_BIAS},                                                       \
    SL_W_MAMBA2_IN(DT_IN_BIAS, stem, "bias", STATE_HEADS, NONE, 2),                               \
     .when = (layers) | SL_HAS_STATE_BIAS},                                                       \
    SL_W_STATE(CONV, stem ".conv1d.weight", "ssm_conv1d.weight", CONV, TAPS),                     \
     .flags = SL_W_VALUES, .when = (layers)},                                                     \
    SL_W_STATE(CONV_BIAS, stem ".conv1d.bias", "ssm_conv1d.bias", CONV, NONE),                    \
     .when = (layers) | SL_HAS_CONV_BIAS},                                                        \
    SL_W_STATE(STATE_DT_BIAS, stem ".dt_bias", "ssm_dt.bias", STATE_HEADS, NONE),                 \
     .when = (layers)},                                                                           \
    SL_W_STATE(STATE_A, stem ".A_log", "ssm_a", STATE_HEADS, NONE),                               \
     .flags = SL_W_MINUS_EXP | SL_W_FLAT, .when = (layers)},                                      \
    SL_W_STATE(STATE_D, stem ".D", "ssm_d", STATE_HEADS, NONE), .flags = SL_W_FLAT,               \
     .when = (layers)},                                                                           \
    SL_W_STATE(STATE_NORM, stem ".norm.weight", "ssm_norm.weight", STATE_ROWS, NONE),             \
     .flags = SL_W_FLAT, .when = (layers) | SL_HAS_STATE_NORM},                                   \
    SL_W_STATE(STATE_OUT, stem ".out_proj.weight", "ssm_out.weight", H, STATE_ROWS),              \
     .when = (layers)},                                                                           \
    SL_W_STATE(STATE_OUT_BIAS, stem ".out_proj.bias", "ssm_out.bias", H, NONE),                   \
     .when = (layers) | SL_HAS_STATE_BIAS}
#define SL_WEIGHTS_MAMBA2(stem) SL_WEIGHTS_MAMBA2_OF(stem, SL_HAS_STATE)

/* Models of Mamba alone: what stands around the mixers. */
#define SL_WEIGHTS_BACKBONE                                                                       \
    {.slot = SL_SLOT_EMBED, .hf = "backbone.embeddings.weight", .gguf = "token_embd.weight",      \
     .rows = SL_DIM_V, .cols = SL_DIM_H},                                                         \
    {.slot = SL_SLOT_FINAL_NORM, .hf = "backbone.norm_f.weight", .gguf = "output_norm.weight",    \
     .rows = SL_DIM_H},                                                                           \
    {.slot = SL_SLOT_HEAD, .hf = "lm_head.weight", .gguf = "output.weight", .rows = SL_DIM_V,     \
     .cols = SL_DIM_H, .shard = SL_SHARD_ROWS, .when = SL_HAS_HEAD},                              \
    {.slot = SL_SLOT_ATTN_NORM, .hf = "backbone.layers.*.norm.weight",                            \
     .gguf = "blk.*.attn_norm.weight", .rows = SL_DIM_H}

/* The short convolutions of LFM2 and LFM3. */
#define SL_WEIGHTS_SHORT_CONV                                                                     \
    SL_W_LAYER(STATE_IN, "conv.in_proj.weight", "shortconv.in_proj.weight", CONV_IN, H, NONE),    \
     .when = SL_HAS_STATE},                                                                       \
    SL_W_LAYER(STATE_IN_BIAS, "conv.in_proj.bias", "shortconv.in_proj.bias", CONV_IN, NONE, NONE),\
     .when = SL_HAS_STATE | SL_HAS_CONV_BIAS},                                                    \
    SL_W_LAYER(CONV, "conv.conv.weight", "shortconv.conv.weight", CONV, TAPS, NONE),              \
     .when = SL_HAS_STATE, .flags = SL_W_VALUES},                                                 \
    SL_W_LAYER(CONV_BIAS, "conv.conv.bias", "shortconv.conv.bias", CONV, NONE, NONE),             \
     .when = SL_HAS_STATE | SL_HAS_CONV_BIAS},                                                    \
    SL_W_LAYER(STATE_OUT, "conv.out_proj.weight", "shortconv.out_proj.weight", H, ATT, NONE),     \
     .when = SL_HAS_STATE},                                                                       \
    SL_W_LAYER(STATE_OUT_BIAS, "conv.out_proj.bias", "shortconv.out_proj.bias", H, NONE, NONE),   \
     .when = SL_HAS_STATE | SL_HAS_CONV_BIAS}

/* stem: "block_sparse_moe"; w1 is the gate, w3 is up. */
#define SL_WEIGHTS_EXPERTS_W123(stem)                                                             \
    SL_W_LAYER(ROUTER, stem ".gate.weight", "ffn_gate_inp.weight", E, H, NONE),                   \
     .when = SL_HAS_EXPERTS},                                                                     \
    SL_W_LAYER(EXPERTS_GATE, stem ".experts.#.w1.weight", "ffn_gate_exps.weight", I, H, ROWS),    \
     .mats = SL_DIM_E, .when = SL_HAS_EXPERTS},                                                   \
    SL_W_LAYER(EXPERTS_UP, stem ".experts.#.w3.weight", "ffn_up_exps.weight", I, H, ROWS),        \
     .mats = SL_DIM_E, .when = SL_HAS_EXPERTS},                                                   \
    SL_W_LAYER(EXPERTS_DOWN, stem ".experts.#.w2.weight", "ffn_down_exps.weight", H, I, ROWS),    \
     .mats = SL_DIM_E, .when = SL_HAS_EXPERTS}

/* stem: "mlp.shared_expert" */
#define SL_WEIGHTS_SHARED(stem)                                                                   \
    SL_W_LAYER(SHARED_GATE, stem ".gate_proj.weight", "ffn_gate_shexp.weight", S, H, ROWS),       \
     .when = SL_HAS_SHARED},                                                                      \
    SL_W_LAYER(SHARED_UP, stem ".up_proj.weight", "ffn_up_shexp.weight", S, H, ROWS),             \
     .when = SL_HAS_SHARED},                                                                      \
    SL_W_LAYER(SHARED_DOWN, stem ".down_proj.weight", "ffn_down_shexp.weight", H, S, ROWS),       \
     .when = SL_HAS_SHARED}

#define SL_WEIGHT_CHOICE_BIAS(hf_name)                                                            \
    SL_W_LAYER(CHOICE_BIAS, hf_name, "exp_probs_b.bias", ROUTED, NONE, NONE),                     \
     .when = SL_HAS_CHOICE_BIAS}

/* Of models with latent attention and experts, all that DeepSeek's have in common. */
#define SL_WEIGHTS_DEEPSEEK                                                                       \
    SL_WEIGHTS_EMBED_AND_HEAD,                                                                    \
    SL_WEIGHTS_ATTN_NORM,                                                                         \
    SL_WEIGHTS_MLA(0),                                                                            \
    SL_WEIGHTS_FFN_NORM,                                                                          \
    SL_WEIGHTS_EXPERTS_OR_FUSED,                                                                  \
    SL_WEIGHT_CHOICE_BIAS("mlp.gate.e_score_correction_bias"),                                    \
    SL_WEIGHTS_SHARED("mlp.shared_experts"),                                                      \
    SL_WEIGHTS_FFN_DENSE

/* Encoders with norms behind their sublayers. by_default: the activation. */
#define SL_HPARAMS_ENCODER_BLOCKS(by_default)                                                     \
    {"context_length", {"max_position_embeddings", "max_trained_positions"}, SL_HP_INT,           \
     SL_HP_AT(context), .required = true, .min = 1, .max = SL_MAX_CONTEXT},                       \
    {NULL, {"vocab_size"}, SL_HP_INT, SL_HP_AT(n_vocab), .required = true, .min = 1,              \
     .max = SL_MAX_VOCAB},                                                                        \
    {"attention.layer_norm_epsilon", {"layer_norm_eps", "layer_norm_epsilon"}, SL_HP_FLOAT,       \
     SL_HP_AT(norm_eps), .def = 1e-12, .min = 1e-20, .max = 1},                                   \
    SL_HPARAM_ACT(by_default),                                                                    \
    SL_HPARAMS_LABELS

/* BERT and what has its names. */
#define SL_HPARAMS_ENCODER                                                                        \
    SL_HPARAMS_SIZES,                                                                             \
    SL_HPARAMS_ENCODER_BLOCKS(SL_ACT_GELU_ERF),                                                   \
    {NULL, {"position_embedding_type"}, SL_HP_CHOICE, .value = "absolute"},                       \
    {NULL, {"is_decoder"}, SL_HP_BOOL, SL_HP_AT(is_decoder)}

#define SL_W_ENCODER(P, s, hf_name, gguf_name, r, c)                                              \
    {.slot = SL_SLOT_##s, .hf = P hf_name, .gguf = gguf_name, .rows = SL_DIM_##r,                 \
     .cols = SL_DIM_##c}
#define SL_W_ENCODER_LAYER(P, s, hf_name, gguf_name, r, c)                                        \
    SL_W_ENCODER(P, s, "encoder.layer.*." hf_name, "blk.*." gguf_name, r, c)

/* Part `idx` of three of a fused q, k and v. */
#define SL_W_ENCODER_QKV(P, s, hf_name, gguf_name, r, c, idx)                                     \
    {.slot = SL_SLOT_##s, .hf_fused = P hf_name, .gguf_fused = "blk.*.attn_qkv." gguf_name,       \
     .rows = SL_DIM_##r, .cols = SL_DIM_##c, .part = idx,                                         \
     .fused = {SL_DIM_Q, SL_DIM_K, SL_DIM_VALUES}}

/* P: what tensors may begin with. */
#define SL_WEIGHTS_ENCODER(P)                                                                     \
    SL_W_ENCODER(P, EMBED, "embeddings.word_embeddings.weight", "token_embd.weight", V, H),       \
    SL_W_ENCODER(P, POSITIONS, "embeddings.position_embeddings.weight",                           \
                 "position_embd.weight", CONTEXT, H),                                             \
    SL_W_ENCODER(P, TYPES, "embeddings.token_type_embeddings.weight",                             \
                 "token_types.weight", TYPES, H),                                                 \
    SL_W_ENCODER(P, EMBED_NORM, "embeddings.LayerNorm.weight",                                    \
                 "token_embd_norm.weight", H, NONE),                                              \
    SL_W_ENCODER(P, EMBED_NORM_BIAS, "embeddings.LayerNorm.bias",                                 \
                 "token_embd_norm.bias", H, NONE),                                                \
    SL_W_ENCODER_LAYER(P, Q, "attention.self.query.weight", "attn_q.weight", Q, H),               \
    SL_W_ENCODER_LAYER(P, K, "attention.self.key.weight", "attn_k.weight", K, H),                 \
    SL_W_ENCODER_LAYER(P, V, "attention.self.value.weight", "attn_v.weight", VALUES, H),          \
    SL_W_ENCODER_LAYER(P, O, "attention.output.dense.weight", "attn_output.weight", H, ATT),      \
    SL_W_ENCODER_LAYER(P, Q_BIAS, "attention.self.query.bias", "attn_q.bias", Q, NONE),           \
    SL_W_ENCODER_LAYER(P, K_BIAS, "attention.self.key.bias", "attn_k.bias", K, NONE),             \
    SL_W_ENCODER_LAYER(P, V_BIAS, "attention.self.value.bias", "attn_v.bias", VALUES, NONE),      \
    SL_W_ENCODER_LAYER(P, O_BIAS, "attention.output.dense.bias", "attn_output.bias", H, NONE),    \
    SL_W_ENCODER_LAYER(P, ATTN_NORM, "attention.output.LayerNorm.weight",                         \
                       "attn_output_norm.weight", H, NONE),                                       \
    SL_W_ENCODER_LAYER(P, ATTN_NORM_BIAS, "attention.output.LayerNorm.bias",                      \
                       "attn_output_norm.bias", H, NONE),                                         \
    SL_W_ENCODER_LAYER(P, UP, "intermediate.dense.weight", "ffn_up.weight", I, H),                \
    SL_W_ENCODER_LAYER(P, UP_BIAS, "intermediate.dense.bias", "ffn_up.bias", I, NONE),            \
    SL_W_ENCODER_LAYER(P, DOWN, "output.dense.weight", "ffn_down.weight", H, I),                  \
    SL_W_ENCODER_LAYER(P, DOWN_BIAS, "output.dense.bias", "ffn_down.bias", H, NONE),              \
    SL_W_ENCODER_LAYER(P, FFN_NORM, "output.LayerNorm.weight",                                    \
                       "layer_output_norm.weight", H, NONE),                                      \
    SL_W_ENCODER_LAYER(P, FFN_NORM_BIAS, "output.LayerNorm.bias",                                 \
                       "layer_output_norm.bias", H, NONE)
/* clang-format on */

/* plan.c: layer idx has no keys of its own but reads those of the last layer with its table of
 * rotations that has. */
int sl_plan_share_keys(const struct sl_hparams *hp, int32_t idx, struct sl_layer_desc *layers,
                       struct sl_error *err);
/* plan.c: of a model with recurrent layers, whether layer idx has attention: as config.json's list
 * or a GGUF's tensors say; otherwise: where neither does. */
bool sl_plan_attends(const struct sl_hparams *hp, int32_t idx, bool otherwise);
/* plan.c: gives a layer that mixer, and the bits of the tensors that go with it. */
void sl_plan_mixer(enum sl_mixer mixer, struct sl_layer_desc *l);
/* granite.c: windows, rotations and sinks of the models that have them. */
void sl_plan_granite_windows(const struct sl_hparams *hp, struct sl_layer_desc *layers);

/* mamba1.c: gives it the mixer of Mamba 1, as hp says. */
int sl_plan_mamba1(const struct sl_hparams *hp, struct sl_layer_desc *l, struct sl_error *err);
/* mamba.c: gives it the mixer of Mamba 2, as hp says. */
int sl_plan_mamba2(const struct sl_hparams *hp, struct sl_layer_desc *l, struct sl_error *err);

/* moe.c: gives each layer experts or one MLP, as hp says and the files' families do: the score,
 * the least sum that weights are divided by. */
int sl_plan_experts(const struct sl_hparams *hp, enum sl_route_score score, float sum_min,
                    struct sl_layer_desc *layers, struct sl_error *err);

/* clang-format off */
/* Encoders with rotated positions: words, types, and the norm of their sum, which is called `norm`;
 * a layer's tensors, called `L` and what follows. */
#define SL_WEIGHTS_ENCODER_WORDS(P, norm)                                                         \
    SL_W_ENCODER(P, EMBED, "embeddings.word_embeddings.weight", "token_embd.weight", V, H),       \
    SL_W_ENCODER(P, TYPES, "embeddings.token_type_embeddings.weight", "token_types.weight",       \
                 TYPES, H),                                                                       \
    SL_W_ENCODER(P, EMBED_NORM, norm ".weight", "token_embd_norm.weight", H, NONE),               \
    SL_W_ENCODER(P, EMBED_NORM_BIAS, norm ".bias", "token_embd_norm.bias", H, NONE)

#define SL_WEIGHTS_ENCODER_QKV(P, L, kind, gguf_kind, c)                                          \
    SL_W_ENCODER_QKV(P, Q##kind, L, gguf_kind, Q, c, 0),                                          \
    SL_W_ENCODER_QKV(P, K##kind, L, gguf_kind, K, c, 1),                                          \
    SL_W_ENCODER_QKV(P, V##kind, L, gguf_kind, VALUES, c, 2)

#define SL_WEIGHTS_ENCODER_NORMS(P, attn, ffn)                                                    \
    SL_W_ENCODER(P, ATTN_NORM, attn ".weight", "blk.*.attn_output_norm.weight", H, NONE),         \
    SL_W_ENCODER(P, ATTN_NORM_BIAS, attn ".bias", "blk.*.attn_output_norm.bias", H, NONE),        \
    SL_W_ENCODER(P, FFN_NORM, ffn ".weight", "blk.*.layer_output_norm.weight", H, NONE),          \
    SL_W_ENCODER(P, FFN_NORM_BIAS, ffn ".bias", "blk.*.layer_output_norm.bias", H, NONE)
/* clang-format on */

/* mixer_mla.c: latent attention of the shape that hp says. Scores are divided by the root of a
 * head's dimensions, and sharpened where YaRN's mscale_all_dim says so. */
void sl_plan_mla(const struct sl_hparams *hp, struct sl_layer_desc *l);
/* mixer_index.c: the index of layers with latent attention, whose queries and keys are rotated in
 * such pairs. */
SL_MUST_CHECK int sl_plan_index(const struct sl_hparams *hp, enum sl_rope_pairing pairing,
                                struct sl_layer_desc *layers, struct sl_error *err);
/* The same of blocks, of layers with grouped heads: those whose index_layers are SL_LAYER_ON. */
SL_MUST_CHECK int sl_plan_index_blocks(const struct sl_hparams *hp, struct sl_layer_desc *layers,
                                       struct sl_error *err);
/* The same of rows of hp->sparse_ratio tokens each, of all layers with latent attention. */
SL_MUST_CHECK int sl_plan_index_rows(const struct sl_hparams *hp, struct sl_layer_desc *layers,
                                     struct sl_error *err);
/* bert.c: of both its kinds. */
int sl_plan_encoder(const struct sl_model_name *name, const struct sl_hparams *hp,
                    struct sl_layer_desc *layers, struct sl_error *err);
void sl_tiny_encoder(const struct sl_model_name *name, struct sl_hparams *hp);

#endif
