/* SPDX-License-Identifier: MIT
 * Falcon-H1: every layer has attention and a mixer of Mamba 2 side by side, which read the same
 * norm, and then a gated MLP. Nearly everything has a multiplier, which is applied where it is
 * linear: to scores, to what is added to the stream, to the taps of convolutions.
 *
 * GGUF files hold weights that are multiplied already.
 */
#include "base/check.h"
#include "models/desc.h"
#include "models/tables.h"

#include <math.h>

static const struct sl_model_name names[] = {
    {.id = "falcon_h1",
     .hf_architecture = "FalconH1ForCausalLM",
     .hf_model_type = "falcon_h1",
     .gguf_architecture = "falcon-h1"},
};

/* clang-format off */
#define SCALE(key, field)                                                                         \
    {NULL, {key}, SL_HP_FLOAT, SL_HP_AT(field), .def = 1, .min = 1e-9, .max = 1e9}

static const struct sl_hparam_desc hparams[] = {
    SL_HPARAMS_SHAPE,
    {"attention.layer_norm_rms_epsilon", {"rms_norm_eps"}, SL_HP_FLOAT, SL_HP_AT(norm_eps),
     .def = 1e-5, .min = 1e-20, .max = 1},
    SL_HPARAMS_MAMBA2("mamba_d_conv", "mamba_d_state", "mamba_n_groups", "mamba_n_heads",
                      "mamba_d_head", 1),
    {NULL, {"mamba_d_ssm"}, SL_HP_INT, SL_HP_AT(state_width), .hf_def = 1024, .min = 1,
     .max = SL_MAX_HIDDEN},
    {NULL, {"mamba_expand"}, SL_HP_INT, SL_HP_AT(state_expand), .def = 2, .min = 1, .max = 64},
    SL_HPARAMS_DT_LIMIT,
    {NULL, {"mamba_conv_bias"}, SL_HP_HAS, .has = SL_HAS_CONV_BIAS, .def = true},
    {NULL, {"mamba_rms_norm"}, SL_HP_HAS, .has = SL_HAS_STATE_NORM},
    {NULL, {"mamba_norm_before_gate"}, SL_HP_BOOL, SL_HP_AT(norm_before_gate), .def = true},
    SL_HPARAM_ONLY("mamba_proj_bias", false),
    SL_HPARAM_ONLY("projectors_bias", false),
    SL_HPARAM_ONLY("attention_bias", false),
    SL_HPARAM_ONLY("mlp_bias", false),
    SL_HPARAM_ACT(SL_ACT_SILU),
    SL_HPARAM_TIED(false),
    SCALE("embedding_multiplier", embed_scale),
    SCALE("lm_head_multiplier", logit_scale),
    SCALE("mlp_multipliers.0", gate_scale),
    SCALE("mlp_multipliers.1", down_scale),
    SCALE("key_multiplier", key_scale),
    SCALE("attention_in_multiplier", attn_in_scale),
    SCALE("attention_out_multiplier", attn_out_scale),
    SCALE("ssm_in_multiplier", state_in_scale),
    SCALE("ssm_out_multiplier", state_out_scale),
    SCALE("ssm_multipliers.0", state_scales[0]),
    SCALE("ssm_multipliers.1", state_scales[1]),
    SCALE("ssm_multipliers.2", state_scales[2]),
    SCALE("ssm_multipliers.3", state_scales[3]),
    SCALE("ssm_multipliers.4", state_scales[4]),
};

static const struct sl_weight_desc weights[] = {
    {.slot = SL_SLOT_EMBED, .hf = "model.embed_tokens.weight", .gguf = "token_embd.weight",
     .rows = SL_DIM_V, .cols = SL_DIM_H},
    {.slot = SL_SLOT_FINAL_NORM, .hf = "model.final_layernorm.weight",
     .gguf = "output_norm.weight", .rows = SL_DIM_H},
    {.slot = SL_SLOT_HEAD, .hf = "lm_head.weight", .gguf = "output.weight", .rows = SL_DIM_V,
     .cols = SL_DIM_H, .shard = SL_SHARD_ROWS, .when = SL_HAS_HEAD},
    SL_WEIGHTS_ATTN_NORM,
    SL_WEIGHTS_SOME_GQA("model.layers.*.self_attn"),
    SL_WEIGHTS_MAMBA2("model.layers.*.mamba"),
    SL_W_LAYER(FFN_NORM, "pre_ff_layernorm.weight", "ffn_norm", H, NONE, NONE)}, /* no suffix */
    SL_W_LAYER(GATE, "feed_forward.gate_proj.weight", "ffn_gate.weight", I, H, ROWS)},
    SL_W_LAYER(UP, "feed_forward.up_proj.weight", "ffn_up.weight", I, H, ROWS)},
    SL_W_LAYER(DOWN, "feed_forward.down_proj.weight", "ffn_down.weight", H, I, ROWS)},
};
/* clang-format on */

/* 0: there is nothing to multiply. */
static float or_none(double scale)
{
    return scale == 1 ? 0 : (float)scale;
}

static int falcon_h1_plan_layer(const struct sl_hparams *hp, struct sl_layer_desc *l,
                                struct sl_error *err)
{
    const double *by = hp->state_scales, in = hp->state_in_scale, attn = hp->attn_in_scale;
    int rc = sl_plan_mamba2(hp, l, err);
    sl_plan_mixer(SL_MIX_BOTH, l);
    l->rope = 0;
    l->state.gate_first = hp->from_gguf || !hp->norm_before_gate;
    l->state.gate_scale = or_none(in * by[0]);
    l->state.dt_scale = or_none(in * by[4]);
    for (int k = 0; k < 3; k++)
        l->state.in_scale[k] = (float)(in * by[1 + k]);
    l->state.out_scale = (float)hp->state_out_scale;
    l->attn_scale = (float)(attn * attn * hp->key_scale / sqrt((double)l->head_dim));
    l->value_scale = (float)(attn * hp->attn_out_scale);
    l->gate_scale = or_none(hp->gate_scale);
    l->mlp_scale = (float)hp->down_scale;
    return rc;
}

static int falcon_h1_plan(const struct sl_model_name *name, const struct sl_hparams *hp,
                          struct sl_layer_desc *layers, struct sl_error *err)
{
    int rc = 0;
    (void)name;
    for (int32_t i = 0; i < hp->n_layers && rc == 0; i++) {
        layers[i].has |= SL_HAS_ATTN | SL_HAS_STATE;
        rc = falcon_h1_plan_layer(hp, &layers[i], err);
    }
    return rc;
}

static void falcon_h1_tiny(const struct sl_model_name *name, struct sl_hparams *hp)
{
    *hp = (struct sl_hparams){
        .hidden = 64,
        .intermediate = 160,
        .n_layers = 2,
        .n_heads = 4,
        .n_kv_heads = 2,
        .head_dim = 16,
        .n_vocab = 320,
        .context = 512,
        .norm_eps = 1e-5,
        .has = name->has | SL_HAS_HEAD | SL_HAS_CONV_BIAS | SL_HAS_STATE_NORM,
        .ropes = {{.theta = 10000}},
        .state_taps = 4,
        .state_heads = 6,
        .state_groups = 2,
        .state_v_dim = 16,
        .state_k_dim = 24,
        .state_inner = 96,
        .state_width = 96,
        .state_expand = 2,
        .dt_max = SL_JSON_INFINITY,
        .gate_scale = 1,
        .down_scale = 1,
        .key_scale = 1,
        .attn_in_scale = 1,
        .attn_out_scale = 1,
        .state_in_scale = 1,
        .state_out_scale = 1,
        .state_scales = {1, 1, 1, 1, 1},
    };
}

const struct sl_model_desc sl_model_falcon_h1 = {
    .id = "falcon_h1",
    SL_MODEL_TABLES,
    SL_MODEL_ROPES(sl_rope_one),
    .plan = falcon_h1_plan,
    .tiny = falcon_h1_tiny,
};
