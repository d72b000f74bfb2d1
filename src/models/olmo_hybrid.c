/* SPDX-License-Identifier: MIT
 * OLMo Hybrid: layers of the gated delta rule with norms before their sublayers, and layers of
 * attention with norms behind them, as OLMo 3 has them. q, k and v of the delta rule and the
 * convolutions behind them are three tensors each. beta goes to 2, so that a step may also turn a
 * direction of the state around. Released models have no positions: their rope_theta is null.
 */
#include "base/check.h"
#include "models/desc.h"
#include "models/tables.h"

#include <math.h>

static const struct sl_model_name names[] = {
    {.id = "olmo_hybrid",
     .hf_architecture = "OlmoHybridForCausalLM",
     .hf_model_type = "olmo_hybrid",
     .has = SL_HAS_QK_NORM},
};

/* clang-format off */
static const struct sl_hparam_desc hparams[] = {
    SL_HPARAMS_TRANSFORMER,
    SL_HPARAM_TIED(false),
    {NULL, {"hidden_act"}, SL_HP_CHOICE, .value = "silu"}, /* of convolutions too */
    {NULL, {"attention_bias"}, SL_HP_HAS, .has = SL_HAS_QKV_BIAS | SL_HAS_O_BIAS},
    {NULL, {"rope_theta", "rope_parameters.rope_theta"}, SL_HP_FLOAT, SL_HP_AT(layer_theta),
     .hf_def = 10000, .min = 2, .max = 1e15}, /* null: no positions */
    {NULL, {"layer_types"}, SL_HP_LAYER_TYPES, SL_HP_AT(attn_layers),
     .words = {"linear_attention", "full_attention"}},
    {NULL, {"linear_conv_kernel_dim"}, SL_HP_INT, SL_HP_AT(state_taps), .def = 4, .min = 2,
     .max = SL_MAX_CONV_TAPS},
    {NULL, {"linear_num_key_heads"}, SL_HP_INT, SL_HP_AT(state_groups), .min = 1,
     .max = SL_MAX_HEADS},
    {NULL, {"linear_num_value_heads"}, SL_HP_INT, SL_HP_AT(state_heads), .min = 1,
     .max = SL_MAX_HEADS},
    {NULL, {"linear_key_head_dim"}, SL_HP_INT, SL_HP_AT(state_k_dim), .min = 1,
     .max = SL_MAX_STATE_DIM},
    {NULL, {"linear_value_head_dim"}, SL_HP_INT, SL_HP_AT(state_v_dim), .min = 1,
     .max = SL_MAX_STATE_DIM},
    {NULL, {"linear_allow_neg_eigval"}, SL_HP_BOOL, SL_HP_AT(wide_beta), .def = true},
};

/* A norm by its name in files, or as transformers' class calls it. */
#define NORM(s, name, class_name)                                                                  \
    {.slot = SL_SLOT_##s, .hf = "model.layers.*." name ".weight",                                  \
     .hf_fused = "model.layers.*." class_name ".weight", .fused = {SL_DIM_H}, .rows = SL_DIM_H
#define QKV {SL_DIM_STATE_KEYS, SL_DIM_STATE_KEYS, SL_DIM_STATE_ROWS}

static const struct sl_weight_desc weights[] = {
    SL_WEIGHTS_EMBED_AND_HEAD,
    NORM(ATTN_NORM, "attention_layer_norm", "input_layernorm"), .when = SL_HAS_STATE},
    SL_WEIGHTS_SOME_GQA("model.layers.*.self_attn"),
    {.slot = SL_SLOT_Q_NORM, .hf = "model.layers.*.self_attn.q_norm.weight", .rows = SL_DIM_Q,
     .when = SL_HAS_ATTN},
    {.slot = SL_SLOT_K_NORM, .hf = "model.layers.*.self_attn.k_norm.weight", .rows = SL_DIM_K,
     .when = SL_HAS_ATTN},
    {.slot = SL_SLOT_STATE_IN, .hf = "model.layers.*.linear_attn.{q,k,v}_proj.weight",
     .rows = SL_DIM_CONV, .cols = SL_DIM_H, .pieces = QKV, .when = SL_HAS_STATE},
    {.slot = SL_SLOT_STATE_GATE, .hf = "model.layers.*.linear_attn.g_proj.weight",
     .rows = SL_DIM_STATE_ROWS, .cols = SL_DIM_H, .when = SL_HAS_STATE},
    {.slot = SL_SLOT_STATE_DT, .hf = "model.layers.*.linear_attn.a_proj.weight",
     .rows = SL_DIM_STATE_HEADS, .cols = SL_DIM_H, .when = SL_HAS_STATE},
    {.slot = SL_SLOT_STATE_BETA, .hf = "model.layers.*.linear_attn.b_proj.weight",
     .rows = SL_DIM_STATE_HEADS, .cols = SL_DIM_H, .when = SL_HAS_STATE},
    {.slot = SL_SLOT_CONV, .hf = "model.layers.*.linear_attn.{q,k,v}_conv1d.weight",
     .hf_fused = "model.layers.*.linear_attn.conv1d.weight", .fused = QKV, .rows = SL_DIM_CONV,
     .cols = SL_DIM_TAPS, .pieces = QKV, .flags = SL_W_VALUES, .when = SL_HAS_STATE},
    {.slot = SL_SLOT_STATE_DT_BIAS, .hf = "model.layers.*.linear_attn.dt_bias",
     .rows = SL_DIM_STATE_HEADS, .when = SL_HAS_STATE},
    {.slot = SL_SLOT_STATE_A, .hf = "model.layers.*.linear_attn.A_log",
     .rows = SL_DIM_STATE_HEADS, .flags = SL_W_MINUS_EXP, .when = SL_HAS_STATE},
    {.slot = SL_SLOT_STATE_NORM, .hf = "model.layers.*.linear_attn.o_norm.weight",
     .rows = SL_DIM_STATE_V, .when = SL_HAS_STATE},
    {.slot = SL_SLOT_STATE_OUT, .hf = "model.layers.*.linear_attn.o_proj.weight",
     .rows = SL_DIM_H, .cols = SL_DIM_STATE_ROWS, .when = SL_HAS_STATE},
    NORM(FFN_NORM, "feedforward_layer_norm", "post_attention_layernorm"), .when = SL_HAS_STATE},
    /* transformers 5 saves this one too by the name that it has in the other layers */
    NORM(ATTN_OUT_NORM, "post_attention_layernorm", "feedforward_layer_norm"),
     .when = SL_HAS_ATTN},
    {.slot = SL_SLOT_FFN_OUT_NORM, .hf = "model.layers.*.post_feedforward_layernorm.weight",
     .rows = SL_DIM_H, .when = SL_HAS_ATTN},
    SL_WEIGHTS_FFN_GATED,
};
/* clang-format on */

static const struct sl_rope_desc ropes[] = {
    {.hf_theta = "rope_theta", .gguf_theta = "rope.freq_base", .theta = 10000, .scaled = true}};

/* Where config.json says nothing, the last of four layers has attention, and of fewer the last. */
static bool olmo_hybrid_attends(const struct sl_hparams *hp, int32_t idx)
{
    return sl_plan_attends(hp, idx, idx % 4 == 3 || (hp->n_layers < 4 && idx == hp->n_layers - 1));
}

/* The shape of all its recurrent layers; what config.json does not say follows from the rest. */
static int olmo_hybrid_state_of(const struct sl_hparams *hp, struct sl_state_desc *s,
                                struct sl_error *err)
{
    *s = (struct sl_state_desc){
        .n_taps = hp->state_taps,
        .n_heads = hp->state_heads > 0 ? hp->state_heads : hp->n_heads,
        .n_groups = hp->state_groups > 0 ? hp->state_groups : hp->n_heads,
        .beta_scale = hp->wide_beta ? 2 : 1,
        .norm_eps = 1e-5f, /* config.json's is not for this norm */
        .norm = true,
        .norm_heads = true,
    };
    s->k_dim = hp->state_k_dim > 0 ? hp->state_k_dim
                                   : (int32_t)(0.75 * hp->hidden / SL_MAX(s->n_groups, 1));
    s->v_dim = hp->state_v_dim > 0 ? hp->state_v_dim : 2 * s->k_dim;
    if (s->n_heads % s->n_groups != 0)
        return sl_fail(err, SL_EFORMAT,
                       "config.json: linear_num_value_heads (%d) is not a multiple of "
                       "linear_num_key_heads (%d)",
                       s->n_heads, s->n_groups);
    if (s->k_dim < 1 || s->k_dim > SL_MAX_STATE_DIM || s->v_dim > SL_MAX_STATE_DIM)
        return sl_fail(err, SL_EFORMAT,
                       "config.json: linear_key_head_dim is %d and linear_value_head_dim %d, must "
                       "be 1 to %d",
                       s->k_dim, s->v_dim, SL_MAX_STATE_DIM);
    return 0;
}

static int olmo_hybrid_plan(const struct sl_model_name *name, const struct sl_hparams *hp,
                            struct sl_layer_desc *layers, struct sl_error *err)
{
    struct sl_state_desc state;
    int rc = olmo_hybrid_state_of(hp, &state, err);
    (void)name;
    for (int32_t i = 0; i < hp->n_layers && rc == 0; i++) {
        struct sl_layer_desc *l = &layers[i];
        if (olmo_hybrid_attends(hp, i)) {
            sl_plan_mixer(SL_MIX_GQA, l);
            l->norms = SL_NORM_OUT;
            l->qk_norm = SL_QK_NORM_ROWS;
            l->rope = hp->layer_theta != 0 ? 0 : -1;
            continue;
        }
        sl_plan_mixer(SL_MIX_DELTA, l);
        l->rope = -1;
        l->state = state;
        l->attn_scale = 1 / sqrtf((float)state.k_dim);
    }
    return rc;
}

static void olmo_hybrid_tiny(const struct sl_model_name *name, struct sl_hparams *hp)
{
    *hp = (struct sl_hparams){
        .hidden = 64,
        .intermediate = 160,
        .n_layers = 4,
        .n_heads = 4,
        .n_kv_heads = 2,
        .head_dim = 16,
        .n_vocab = 320,
        .context = 512,
        .norm_eps = 1e-6,
        .has = name->has | SL_HAS_HEAD,
        .ropes = {{.theta = 500000}},
        .state_taps = 4,
        .state_heads = 4,
        .state_groups = 2,
        .state_k_dim = 24,
        .state_v_dim = 16,
        .wide_beta = true,
    };
    for (int32_t i = 0; i < SL_MAX_LAYERS; i++)
        hp->attn_layers[i] = i % 4 == 2 ? SL_LAYER_ON : SL_LAYER_OFF;
}

const struct sl_model_desc sl_model_olmo_hybrid = {
    .id = "olmo_hybrid",
    SL_MODEL_TABLES,
    SL_MODEL_ROPES(ropes),
    .plan = olmo_hybrid_plan,
    .tiny = olmo_hybrid_tiny,
};
