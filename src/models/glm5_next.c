/* SPDX-License-Identifier: MIT
 * GLM-5.3-Flash, its model of text: three of four layers have a recurrent state (KDA), the fourth
 * latent attention without positions and with an index whose keys are made of several tokens each.
 * All have hyper-connections, whose streams the head reads as their mean; experts as DeepSeek V3
 * has them, with limits of gates and ups everywhere.
 *
 * KDA is that of Kimi-Linear with a bounded decay (bailing_hybrid.c). Other than in DeepSeek's
 * models both rows of latent attention are normed with rms_norm_eps. The checkpoint is of a model
 * that also reads images, which is not loaded; nor is the layer behind the last, which predicts
 * further tokens.
 */
#include "base/check.h"
#include "models/desc.h"
#include "models/tables.h"

#include <math.h>

static const struct sl_model_name names[] = {
    {.id = "glm5_next",
     .hf_architecture = "Glm5NextForConditionalGeneration",
     .hf_model_type = "glm5_next",
     .has = SL_HAS_CHOICE_BIAS,
     .hf_config = "text_config"},
    {.id = "glm5_next-text",
     .hf_architecture = "Glm5NextForCausalLM",
     .hf_model_type = "glm5_next_text",
     .has = SL_HAS_CHOICE_BIAS},
};

/* clang-format off */
#define LINEAR(key) "linear_attn_config." key

static const struct sl_hparam_desc hparams[] = {
    SL_HPARAMS_SIZES,
    {NULL, {"max_position_embeddings"}, SL_HP_INT, SL_HP_AT(context), .required = true, .min = 1,
     .max = SL_MAX_CONTEXT},
    {NULL, {"vocab_size"}, SL_HP_INT, SL_HP_AT(n_vocab), .required = true, .min = 1,
     .max = SL_MAX_VOCAB},
    {NULL, {"rms_norm_eps"}, SL_HP_FLOAT, SL_HP_AT(norm_eps), .def = 1e-5, .min = 1e-20, .max = 1},
    {NULL, {"q_lora_rank"}, SL_HP_INT, SL_HP_AT(q_rank), .required = true, .min = 1,
     .max = SL_MAX_HIDDEN},
    {NULL, {"kv_lora_rank"}, SL_HP_INT, SL_HP_AT(kv_rank), .required = true, .min = 1,
     .max = SL_MAX_HEAD_DIM},
    {NULL, {"qk_nope_head_dim"}, SL_HP_INT, SL_HP_AT(nope_dim), .required = true, .min = 1,
     .max = SL_MAX_HEAD_DIM},
    {NULL, {"qk_rope_head_dim"}, SL_HP_INT, SL_HP_AT(rope_dims), .min = 0, .max = 0},
    {NULL, {"v_head_dim"}, SL_HP_INT, SL_HP_AT(value_dim), .required = true, .min = 1,
     .max = SL_MAX_HEAD_DIM},
    {NULL, {"index_topk"}, SL_HP_INT, SL_HP_AT(index_top), .def = 2048, .min = 1,
     .max = SL_MAX_INDEX_TOP},
    {NULL, {"index_n_heads"}, SL_HP_INT, SL_HP_AT(index_heads), .def = 32, .min = 1,
     .max = SL_MAX_HEADS},
    {NULL, {"index_head_dim"}, SL_HP_INT, SL_HP_AT(index_dim), .def = 128, .min = 2,
     .max = SL_MAX_HEAD_DIM},
    {NULL, {"index_kpool"}, SL_HP_INT, SL_HP_AT(sparse_ratio), .def = 16, .min = 2,
     .max = SL_MAX_INDEX_TOP},
    SL_HPARAM_ONLY("index_kpool_always_select_tail", true),
    {NULL, {"indexer_types", "index_topk_pattern"}, SL_HP_LAYER_KINDS, SL_HP_AT(index_layers),
     .words = {NULL, "shared", "full"}, .letters = "?SF"},
    {NULL, {"index_topk_freq"}, SL_HP_INT, SL_HP_AT(index_step), .def = 1, .min = 0,
     .max = SL_MAX_LAYERS},
    {NULL, {"index_skip_topk_offset"}, SL_HP_INT, SL_HP_AT(index_offset), .def = 2, .min = 0,
     .max = SL_MAX_LAYERS},
    {NULL, {"layer_types"}, SL_HP_LAYER_KINDS, SL_HP_AT(attn_layers),
     .words = {NULL, "linear_attention", "indexed_attention", "full_attention"}},
    {NULL, {"linear_num_heads", LINEAR("num_heads")}, SL_HP_INT, SL_HP_AT(state_heads), .def = 64,
     .min = 1, .max = SL_MAX_HEADS},
    {NULL, {"linear_head_dim", LINEAR("head_dim")}, SL_HP_INT, SL_HP_AT(state_v_dim), .def = 128,
     .min = 1, .max = SL_MAX_STATE_DIM},
    {NULL, {"linear_conv_kernel_dim", LINEAR("short_conv_kernel_size")}, SL_HP_INT,
     SL_HP_AT(state_taps), .def = 4, .min = 2, .max = SL_MAX_CONV_TAPS},
    /* with it a bound that is null is -5, without it there is none */
    {NULL, {LINEAR("safe_gate")}, SL_HP_BOOL, SL_HP_AT(bounds_decay)},
    {NULL, {"linear_lower_bound", LINEAR("gate_lower_bound")}, SL_HP_FLOAT, SL_HP_AT(decay_bound),
     .hf_def = -5, .min = -80, .max = -1e-6},
    SL_HPARAMS_EXPERTS,
    SL_HPARAM_EXPERT_SIZE,
    SL_HPARAM_NORM_TOP_EXPERTS(true),
    {NULL, {"first_k_dense_replace"}, SL_HP_INT, SL_HP_AT(n_dense), .def = 3, .min = 0,
     .max = SL_MAX_LAYERS},
    SL_HPARAM_MLP_TYPES,
    {NULL, {"n_group"}, SL_HP_INT, SL_HP_AT(n_expert_groups), .def = 1, .min = 1,
     .max = SL_MAX_EXPERTS},
    {NULL, {"topk_group"}, SL_HP_INT, SL_HP_AT(top_expert_groups), .def = 1, .min = 1,
     .max = SL_MAX_EXPERTS},
    {NULL, {"routed_scaling_factor"}, SL_HP_FLOAT, SL_HP_AT(expert_scale), .def = 2.5, .min = 1e-6,
     .max = 1e6},
    {NULL, {"n_shared_experts"}, SL_HP_INT, SL_HP_AT(n_shared_experts), .def = 1, .min = 1,
     .max = 64},
    {NULL, {"swiglu_limit"}, SL_HP_FLOAT, SL_HP_AT(swiglu_limit), .def = 10, .min = 1e-3,
     .max = 1e6},
    {NULL, {"hc_mult"}, SL_HP_INT, SL_HP_AT(n_hyper), .def = 4, .min = 2, .max = SL_MAX_STREAMS},
    {NULL, {"hc_sinkhorn_iters"}, SL_HP_INT, SL_HP_AT(hyper_iters), .def = 20, .min = 1,
     .max = 1000},
    {NULL, {"hc_eps"}, SL_HP_FLOAT, SL_HP_AT(hyper_eps), .def = 1e-6, .min = 1e-20, .max = 1},
    SL_HPARAM_NEXTN,
    {NULL, {"hidden_act"}, SL_HP_CHOICE, .value = "silu"}, /* of convolutions too */
    SL_HPARAM_TIED(false),
    SL_HPARAM_ONLY("attention_bias", false),
};

#define KDA(s, name, r, c)                                                                        \
    {.slot = SL_SLOT_##s, .hf = "model.layers.*.self_attn." name, .rows = SL_DIM_##r,             \
     .cols = SL_DIM_##c, .when = SL_HAS_STATE
#define QKV {SL_DIM_STATE_KEYS, SL_DIM_STATE_KEYS, SL_DIM_STATE_ROWS}
#define INDEX(s, name, r, c)                                                                      \
    {.slot = SL_SLOT_##s, .hf = "model.layers.*.self_attn.indexer." name, .rows = SL_DIM_##r,     \
     .cols = SL_DIM_##c
#define HYPER(s, name)                                                                            \
    {.slot = SL_SLOT_##s, .hf = "model.layers.*." name "_fn", .rows = SL_DIM_HYPER_W,             \
     .cols = SL_DIM_HYPER_H},                                                                     \
    {.slot = SL_SLOT_##s##_BASE, .hf = "model.layers.*." name "_base", .rows = SL_DIM_HYPER_W},   \
    {.slot = SL_SLOT_##s##_SCALE, .hf = "model.layers.*." name "_scale",                          \
     .rows = SL_DIM_HYPER_SCALES}

static const struct sl_weight_desc weights[] = {
    SL_WEIGHTS_EMBED_AND_HEAD,
    HYPER(HYPER_ATTN, "hc_attn"),
    SL_WEIGHTS_ATTN_NORM,
    SL_WEIGHTS_MLA(SL_HAS_ATTN),
    INDEX(INDEX_Q, "wq_b.weight", INDEX_Q, MLA_Q_RANK)},
    INDEX(INDEX_W, "weights_proj.weight", INDEX_HEADS, H)},
    INDEX(INDEX_ROWS_KV, "wk.weight", INDEX_ROWS_KV, H)},
    INDEX(INDEX_ROWS_GATE, "index_kpool_compress_gate", INDEX_ROWS_KV, H)},
    INDEX(INDEX_ROWS_BIAS, "index_kpool_compress_ape", INDEX_ROWS_BIAS, NONE), .flags = SL_W_FLAT},
    INDEX(INDEX_K_NORM, "k_norm.weight", INDEX_K, NONE)},
    INDEX(INDEX_K_NORM_BIAS, "k_norm.bias", INDEX_K, NONE)},
    KDA(STATE_IN, "{q,k,v}_proj.weight", CONV, H), .pieces = QKV},
    KDA(STATE_GATE_DOWN, "g_a_proj.weight", STATE_LOW, H)},
    KDA(STATE_GATE, "g_b_proj.weight", STATE_ROWS, STATE_LOW)},
    KDA(STATE_DT_DOWN, "f_a_proj.weight", STATE_LOW, H)},
    KDA(STATE_DT, "f_b_proj.weight", STATE_DT, STATE_LOW)},
    KDA(STATE_BETA, "b_proj.weight", STATE_HEADS, H)},
    KDA(CONV, "{q,k,v}_conv1d.weight", CONV, TAPS), .pieces = QKV, .flags = SL_W_VALUES},
    KDA(STATE_DT_BIAS, "dt_bias", STATE_DT, NONE)},
    KDA(STATE_A, "A_log", STATE_HEADS, NONE), .flags = SL_W_MINUS_EXP | SL_W_FLAT},
    KDA(STATE_NORM, "o_norm.weight", STATE_V, NONE)},
    KDA(STATE_OUT, "o_proj.weight", H, STATE_ROWS)},
    HYPER(HYPER_FFN, "hc_ffn"),
    SL_WEIGHTS_FFN_NORM,
    SL_WEIGHTS_EXPERTS_OR_FUSED,
    SL_WEIGHT_CHOICE_BIAS("mlp.gate.e_score_correction_bias"),
    SL_WEIGHTS_SHARED("mlp.shared_experts"),
    SL_WEIGHTS_FFN_DENSE,
};
/* clang-format on */

static bool glm5_next_attends(const struct sl_hparams *hp, int32_t idx)
{
    return hp->attn_layers[idx] == SL_LAYER_BY_INDEX ? idx % 4 == 3
                                                     : hp->attn_layers[idx] != SL_LAYER_OFF;
}

static void glm5_next_layer(const struct sl_hparams *hp, int32_t idx, struct sl_layer_desc *l)
{
    const bool bounded = hp->bounds_decay && hp->decay_bound == 0;
    l->swiglu = l->mlp_swiglu = (struct sl_swiglu){.limit = (float)hp->swiglu_limit, .alpha = 1};
    l->rope = -1;
    if (glm5_next_attends(hp, idx)) {
        sl_plan_mla(hp, l);
        l->mla.norm_eps = (float)hp->norm_eps;
        return;
    }
    sl_plan_mixer(SL_MIX_DELTA, l);
    l->state = (struct sl_state_desc){
        .n_taps = hp->state_taps,
        .n_heads = hp->state_heads,
        .n_groups = hp->state_heads,
        .k_dim = hp->state_v_dim,
        .v_dim = hp->state_v_dim,
        .low_rank = hp->state_v_dim,
        .by_row = true,
        .bound = bounded ? -5 : (float)hp->decay_bound,
        .beta_scale = 1,
        .norm_eps = (float)hp->norm_eps,
        .norm = true,
        .norm_heads = true,
        .sigmoid_gate = true,
    };
    l->attn_scale = 1 / sqrtf((float)hp->state_v_dim);
}

static int glm5_next_plan(const struct sl_model_name *name, const struct sl_hparams *hp,
                          struct sl_layer_desc *layers, struct sl_error *err)
{
    (void)name;
    for (int32_t i = 0; i < hp->n_layers; i++)
        glm5_next_layer(hp, i, &layers[i]);
    const int rc = sl_plan_experts(hp, SL_ROUTE_SIGMOID, 1e-20f, layers, err);
    return rc == 0 ? sl_plan_index_rows(hp, layers, err) : rc;
}

static void glm5_next_tiny(const struct sl_model_name *name, struct sl_hparams *hp)
{
    *hp = (struct sl_hparams){
        .hidden = 64,
        .intermediate = 160,
        .n_layers = 4,
        .n_heads = 4,
        .n_kv_heads = 1,
        .head_dim = 32,
        .q_rank = 96,
        .kv_rank = 64,
        .nope_dim = 32,
        .value_dim = 24,
        .n_vocab = 320,
        .context = 512,
        .norm_eps = 1e-5,
        .has = name->has | SL_HAS_HEAD,
        .index_top = 24,
        .index_heads = 20,
        .index_dim = 40,
        .sparse_ratio = 4,
        .n_experts = 8,
        .top_experts = 3,
        .expert_intermediate = 96,
        .norm_top_experts = true,
        .expert_scale = 2.5,
        .n_dense = 1,
        .n_expert_groups = 1,
        .top_expert_groups = 1,
        .n_shared_experts = 1,
        .swiglu_limit = 0.7,
        .n_hyper = 4,
        .hyper_iters = 20,
        .hyper_eps = 1e-6,
        .state_taps = 4,
        .state_heads = 4,
        .state_v_dim = 24,
        .decay_bound = -5,
    };
    for (int32_t i = 0; i < hp->n_layers; i++) {
        hp->attn_layers[i] = i % 2 != 0 ? SL_LAYER_ON : SL_LAYER_OFF;
        hp->index_layers[i] = SL_LAYER_ON;
    }
}

const struct sl_model_desc sl_model_glm5_next = {
    .id = "glm5_next",
    SL_MODEL_TABLES,
    .plan = glm5_next_plan,
    .tiny = glm5_next_tiny,
};
