/* SPDX-License-Identifier: MIT
 * Ling 3.0: five of six layers have a recurrent state (KDA), the sixth has latent attention with
 * positions and a gate of each head's output; experts as DeepSeek V3 has them.
 *
 * KDA is that of Kimi-Linear, but decay and output gate are one product each, and the logarithm of
 * the decay is bounded (kda_safe_gate). Layers behind the last (num_nextn_predict_layers) are not
 * loaded.
 */
#include "base/check.h"
#include "models/desc.h"
#include "models/tables.h"

#include <math.h>

static const struct sl_model_name names[] = {
    {.id = "bailing_hybrid",
     .hf_architecture = "BailingHybridForCausalLM",
     .hf_model_type = "bailing_hybrid",
     .has = SL_HAS_CHOICE_BIAS | SL_HAS_OUT_GATE},
};

/* clang-format off */
static const struct sl_hparam_desc hparams[] = {
    SL_HPARAMS_SIZES,
    {NULL, {"model_max_length", "max_position_embeddings"}, SL_HP_INT, SL_HP_AT(context),
     .required = true, .min = 1, .max = SL_MAX_CONTEXT},
    {NULL, {"vocab_size"}, SL_HP_INT, SL_HP_AT(n_vocab), .required = true, .min = 1,
     .max = SL_MAX_VOCAB},
    {NULL, {"rms_norm_eps"}, SL_HP_FLOAT, SL_HP_AT(norm_eps), .def = 1e-6, .min = 1e-20,
     .max = 1},
    SL_HPARAMS_MLA,
    {NULL, {"num_experts"}, SL_HP_INT, SL_HP_AT(n_experts), .required = true, .min = 1,
     .max = SL_MAX_EXPERTS},
    {NULL, {"num_experts_per_token", "num_experts_per_tok"}, SL_HP_INT, SL_HP_AT(top_experts),
     .required = true, .min = 1, .max = SL_MAX_TOP_EXPERTS},
    SL_HPARAM_EXPERT_SIZE,
    {NULL, {"moe_renormalize", "norm_topk_prob"}, SL_HP_BOOL, SL_HP_AT(norm_top_experts),
     .def = true},
    {NULL, {"num_expert_group", "n_group"}, SL_HP_INT, SL_HP_AT(n_expert_groups), .hf_def = 8,
     .min = 0, .max = SL_MAX_EXPERTS},
    {NULL, {"topk_group"}, SL_HP_INT, SL_HP_AT(top_expert_groups), .hf_def = 4, .min = 0,
     .max = SL_MAX_EXPERTS},
    {NULL, {"routed_scaling_factor"}, SL_HP_FLOAT, SL_HP_AT(expert_scale), .hf_def = 2.5,
     .min = 0, .max = 1e6},
    {NULL, {"num_shared_experts", "n_shared_experts"}, SL_HP_INT, SL_HP_AT(n_shared_experts),
     .def = 1, .min = 1, .max = 64},
    {NULL, {"first_k_dense_replace"}, SL_HP_INT, SL_HP_AT(n_dense), .def = 2, .min = 0,
     .max = SL_MAX_LAYERS},
    SL_HPARAM_MLP_TYPES,
    SL_HPARAM_NEXTN,
    SL_HPARAM_ONLY("attention_bias", false),
    {NULL, {"hidden_act"}, SL_HP_CHOICE, .value = "silu"}, /* of convolutions too */
    SL_HPARAM_TIED(false),
    {NULL, {"layer_types"}, SL_HP_LAYER_TYPES, SL_HP_AT(attn_layers),
     .words = {"linear_attention", "full_attention"}},
    {NULL, {"layer_group_size"}, SL_HP_INT, SL_HP_AT(attn_interval), .def = 6, .min = 1,
     .max = SL_MAX_LAYERS},
    {NULL, {"linear_num_heads", "num_attention_heads"}, SL_HP_INT, SL_HP_AT(state_heads),
     .required = true, .min = 1, .max = SL_MAX_HEADS},
    {NULL, {"linear_head_dim", "head_dim"}, SL_HP_INT, SL_HP_AT(state_v_dim), .def = 128,
     .min = 1, .max = SL_MAX_STATE_DIM},
    {NULL, {"linear_conv_kernel_dim", "short_conv_kernel_size"}, SL_HP_INT, SL_HP_AT(state_taps),
     .def = 4, .min = 2, .max = SL_MAX_CONV_TAPS},
    {NULL, {"kda_safe_gate"}, SL_HP_BOOL, SL_HP_AT(bounds_decay), .def = true},
    {NULL, {"kda_lower_bound"}, SL_HP_FLOAT, SL_HP_AT(decay_bound), .def = -5, .min = -80,
     .max = -1e-6},
};

#define KDA(s, name, r, c)                                                                        \
    {.slot = SL_SLOT_##s, .hf = "model.layers.*.attention." name, .rows = SL_DIM_##r,             \
     .cols = SL_DIM_##c, .when = SL_HAS_STATE
#define QKV {SL_DIM_STATE_KEYS, SL_DIM_STATE_KEYS, SL_DIM_STATE_ROWS}

static const struct sl_weight_desc weights[] = {
    {.slot = SL_SLOT_EMBED, .hf = "model.word_embeddings.weight", .rows = SL_DIM_V,
     .cols = SL_DIM_H},
    {.slot = SL_SLOT_FINAL_NORM, .hf = "model.norm.weight", .rows = SL_DIM_H},
    {.slot = SL_SLOT_HEAD, .hf = "lm_head.weight", .rows = SL_DIM_V, .cols = SL_DIM_H,
     .shard = SL_SHARD_ROWS, .when = SL_HAS_HEAD},
    SL_WEIGHTS_ATTN_NORM,
    SL_WEIGHTS_MLA_OF("attention", "attention.dense.weight", SL_HAS_ATTN),
    SL_W_LAYER(OUT_GATE, "attention.g_proj.weight", "attn_gate.weight", HEADS, H, HEADS),
     .when = SL_HAS_ATTN | SL_HAS_OUT_GATE},
    KDA(STATE_IN, "{q,k,v}_proj.weight", CONV, H), .pieces = QKV},
    KDA(STATE_GATE, "g_proj.weight", STATE_ROWS, H)},
    KDA(STATE_DT, "f_proj.weight", STATE_DT, H)},
    KDA(STATE_BETA, "b_proj.weight", STATE_HEADS, H)},
    KDA(CONV, "{q,k,v}_conv1d.weight", CONV, TAPS), .pieces = QKV, .flags = SL_W_VALUES},
    KDA(STATE_DT_BIAS, "dt_bias", STATE_DT, NONE)},
    KDA(STATE_A, "A_log", STATE_HEADS, NONE), .flags = SL_W_MINUS_EXP | SL_W_FLAT},
    KDA(STATE_NORM, "o_norm.weight", STATE_V, NONE)},
    KDA(STATE_OUT, "dense.weight", H, STATE_ROWS)},
    SL_WEIGHTS_FFN_NORM,
    SL_WEIGHTS_EXPERTS,
    SL_WEIGHT_CHOICE_BIAS("mlp.gate.expert_bias"),
    SL_WEIGHTS_SHARED("mlp.shared_experts"),
    SL_WEIGHTS_FFN_DENSE,
};
/* clang-format on */

static const struct sl_rope_desc ropes[] = {
    {.hf_theta = "rope_theta",
     .theta = 6e6,
     .scaled = true,
     .pairing = SL_ROPE_INTERLEAVED,
     .partial = 1},
};

static int bailing_hybrid_plan(const struct sl_model_name *name, const struct sl_hparams *hp,
                               struct sl_layer_desc *layers, struct sl_error *err)
{
    (void)name;
    for (int32_t i = 0; i < hp->n_layers; i++) {
        struct sl_layer_desc *l = &layers[i];
        if (sl_plan_attends(hp, i, (i + 1) % hp->attn_interval == 0)) {
            sl_plan_mla(hp, l);
            continue;
        }
        sl_plan_mixer(SL_MIX_DELTA, l);
        l->rope = -1;
        l->state = (struct sl_state_desc){
            .n_taps = hp->state_taps,
            .n_heads = hp->state_heads,
            .n_groups = hp->state_heads,
            .k_dim = hp->state_v_dim,
            .v_dim = hp->state_v_dim,
            .by_row = true,
            .bound = hp->bounds_decay ? (float)hp->decay_bound : 0,
            .beta_scale = 1,
            .norm_eps = (float)hp->norm_eps,
            .norm = true,
            .norm_heads = true,
            .sigmoid_gate = true,
        };
        l->attn_scale = 1 / sqrtf((float)hp->state_v_dim);
    }
    return sl_plan_experts(hp, SL_ROUTE_SIGMOID, 1e-20f, layers, err);
}

static void bailing_hybrid_tiny(const struct sl_model_name *name, struct sl_hparams *hp)
{
    *hp = (struct sl_hparams){
        .hidden = 64,
        .intermediate = 160,
        .n_layers = 4,
        .n_heads = 4,
        .n_kv_heads = 1,
        .head_dim = 32 + 16,
        .kv_rank = 64,
        .nope_dim = 32,
        .rope_dims = 16,
        .value_dim = 32,
        .n_vocab = 320,
        .context = 512,
        .norm_eps = 1e-6,
        .has = name->has | SL_HAS_HEAD,
        .ropes = {{.theta = 6e6, .n_dims = 16}},
        .n_experts = 8,
        .top_experts = 3,
        .expert_intermediate = 96,
        .norm_top_experts = true,
        .expert_scale = 2.5,
        .n_dense = 1,
        .n_expert_groups = 4,
        .top_expert_groups = 2,
        .n_shared_experts = 1,
        .attn_interval = 3,
        .state_taps = 4,
        .state_heads = 4,
        .state_v_dim = 24,
        .bounds_decay = true,
        .decay_bound = -5,
    };
}

const struct sl_model_desc sl_model_bailing_hybrid = {
    .id = "bailing_hybrid",
    SL_MODEL_TABLES,
    SL_MODEL_ROPES(ropes),
    .plan = bailing_hybrid_plan,
    .tiny = bailing_hybrid_tiny,
};
