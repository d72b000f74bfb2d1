/* SPDX-License-Identifier: MIT
 * Jamba: layers of Mamba 1, whose dt, b and c are normed, and one of attention without positions in
 * every so many; an MLP each, or experts in every so many.
 */
#include "base/check.h"
#include "models/desc.h"
#include "models/tables.h"

static const struct sl_model_name names[] = {
    {.id = "jamba",
     .hf_architecture = "JambaForCausalLM",
     .hf_model_type = "jamba",
     .gguf_architecture = "jamba",
     .has = SL_HAS_STATE_NORM},
};

/* clang-format off */
static const struct sl_hparam_desc hparams[] = {
    SL_HPARAMS_SIZES,
    SL_HPARAMS_LAYER_KV_HEADS,
    SL_HPARAMS_HEADS,
    {"attention.layer_norm_rms_epsilon", {"rms_norm_eps"}, SL_HP_FLOAT, SL_HP_AT(norm_eps),
     .def = 1e-6, .min = 1e-20, .max = 1},
    SL_HPARAMS_MAMBA1("mamba_d_conv", "mamba_d_state", "mamba_dt_rank", "mamba_expand"),
    {NULL, {"mamba_conv_bias"}, SL_HP_HAS, .has = SL_HAS_CONV_BIAS, .def = true},
    {NULL, {"mamba_proj_bias"}, SL_HP_HAS, .has = SL_HAS_STATE_BIAS},
    {NULL, {"attn_layer_period"}, SL_HP_INT, SL_HP_AT(attn_interval), .def = 8, .min = 1,
     .max = SL_MAX_LAYERS},
    {NULL, {"attn_layer_offset"}, SL_HP_INT, SL_HP_AT(attn_offset), .hf_def = 4, .min = 0,
     .max = SL_MAX_LAYERS},
    {NULL, {"expert_layer_period"}, SL_HP_INT, SL_HP_AT(expert_step), .def = 2, .min = 1,
     .max = SL_MAX_LAYERS},
    {NULL, {"expert_layer_offset"}, SL_HP_INT, SL_HP_AT(expert_offset), .hf_def = 1, .min = 0,
     .max = SL_MAX_LAYERS},
    {"expert_count", {"num_experts"}, SL_HP_INT, SL_HP_AT(n_experts), .hf_def = 16, .min = 0,
     .max = SL_MAX_EXPERTS},
    {"expert_used_count", {"num_experts_per_tok"}, SL_HP_INT, SL_HP_AT(top_experts), .hf_def = 2,
     .min = 0, .max = SL_MAX_TOP_EXPERTS},
    SL_HPARAM_ACT(SL_ACT_SILU),
    SL_HPARAM_TIED(false),
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
    SL_WEIGHTS_MAMBA1("model.layers.*.mamba"),
    SL_W_LAYER(FFN_NORM, "pre_ff_layernorm.weight", "ffn_norm.weight", H, NONE, NONE)},
    SL_W_LAYER(GATE, "feed_forward.gate_proj.weight", "ffn_gate.weight", I, H, ROWS),
     .when = SL_HAS_DENSE},
    SL_W_LAYER(UP, "feed_forward.up_proj.weight", "ffn_up.weight", I, H, ROWS),
     .when = SL_HAS_DENSE},
    SL_W_LAYER(DOWN, "feed_forward.down_proj.weight", "ffn_down.weight", H, I, ROWS),
     .when = SL_HAS_DENSE},
    SL_W_LAYER(ROUTER, "feed_forward.router.weight", "ffn_gate_inp.weight", E, H, NONE),
     .when = SL_HAS_EXPERTS},
    SL_W_LAYER(EXPERTS_GATE, "feed_forward.experts.#.gate_proj.weight", "ffn_gate_exps.weight", I,
               H, ROWS), .mats = SL_DIM_E, .when = SL_HAS_EXPERTS},
    SL_W_LAYER(EXPERTS_UP, "feed_forward.experts.#.up_proj.weight", "ffn_up_exps.weight", I, H,
               ROWS), .mats = SL_DIM_E, .when = SL_HAS_EXPERTS},
    SL_W_LAYER(EXPERTS_DOWN, "feed_forward.experts.#.down_proj.weight", "ffn_down_exps.weight", H,
               I, ROWS), .mats = SL_DIM_E, .when = SL_HAS_EXPERTS},
};
/* clang-format on */

static bool jamba_has_experts(const struct sl_hparams *hp, int32_t idx)
{
    if (hp->from_gguf)
        return (hp->layer_has[idx] & SL_HAS_EXPERTS) != 0;
    return hp->n_experts > 1 && idx % hp->expert_step == hp->expert_offset;
}

static int jamba_plan_mlps(const struct sl_hparams *hp, struct sl_layer_desc *layers,
                           struct sl_error *err)
{
    int rc = 0;
    if (hp->n_experts > 1 && hp->top_experts == 0)
        return sl_fail(err, SL_EFORMAT,
                       "config.json: num_experts_per_tok is 0, there are %d experts",
                       hp->n_experts);
    if (hp->n_experts > 1)
        rc = sl_plan_experts(hp, SL_ROUTE_SOFTMAX, 0, layers, err);
    for (int32_t i = 0; i < hp->n_layers && rc == 0; i++) {
        struct sl_layer_desc *l = &layers[i];
        if (hp->n_experts > 1 && jamba_has_experts(hp, i))
            continue;
        l->has = (l->has & ~(unsigned)SL_HAS_EXPERTS) | SL_HAS_DENSE;
        l->ffn = SL_FFN_GATED;
        l->n_experts = l->top_experts = 0;
    }
    return rc;
}

static int jamba_plan(const struct sl_model_name *name, const struct sl_hparams *hp,
                      struct sl_layer_desc *layers, struct sl_error *err)
{
    int rc = jamba_plan_mlps(hp, layers, err);
    (void)name;
    for (int32_t i = 0; i < hp->n_layers && rc == 0; i++) {
        struct sl_layer_desc *l = &layers[i];
        l->rope = -1;
        if (sl_plan_attends(hp, i, i % SL_MAX(hp->attn_interval, 1) == hp->attn_offset)) {
            sl_plan_mixer(SL_MIX_GQA, l);
            continue;
        }
        rc = sl_plan_mamba1(hp, l, err);
        l->state.norm_eps = (float)hp->norm_eps;
    }
    return rc;
}

static void jamba_tiny(const struct sl_model_name *name, struct sl_hparams *hp)
{
    *hp = (struct sl_hparams){
        .hidden = 64,
        .intermediate = 96,
        .n_layers = 4,
        .n_heads = 4,
        .n_kv_heads = 2,
        .layer_kv_heads = {0, 0, 2, 0},
        .head_dim = 16,
        .n_vocab = 320,
        .context = 512,
        .norm_eps = 1e-6,
        .has = name->has | SL_HAS_HEAD | SL_HAS_CONV_BIAS,
        .attn_interval = 3,
        .attn_offset = 2,
        .expert_step = 2,
        .expert_offset = 1,
        .n_experts = 7,
        .top_experts = 3,
        .state_taps = 4,
        .state_k_dim = 16,
        .state_inner = 128,
        .state_expand = 2,
        .dt_rank = 12,
    };
}

const struct sl_model_desc sl_model_jamba = {
    .id = "jamba",
    SL_MODEL_TABLES,
    .plan = jamba_plan,
    .tiny = jamba_tiny,
};
