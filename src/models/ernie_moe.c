/* SPDX-License-Identifier: MIT
 * ERNIE 4.5 with experts: chosen by softmax and a bias, dense layers in front, a shared expert,
 * rotated in pairs of neighbours.
 */
#include "base/check.h"
#include "models/desc.h"
#include "models/tables.h"

static const struct sl_model_name names[] = {
    {.id = "ernie4_5_moe",
     .hf_architecture = "Ernie4_5_MoeForCausalLM",
     .hf_model_type = "ernie4_5_moe",
     .gguf_architecture = "ernie4_5-moe",
     .has = SL_HAS_CHOICE_BIAS},
};

/* clang-format off */
static const struct sl_hparam_desc hparams[] = {
    SL_HPARAMS_BLOCKS,
    {"expert_count", {"moe_num_experts"}, SL_HP_INT, SL_HP_AT(n_experts), .required = true,
     .min = 1, .max = SL_MAX_EXPERTS},
    {"expert_used_count", {"moe_k"}, SL_HP_INT, SL_HP_AT(top_experts), .required = true, .min = 1,
     .max = SL_MAX_TOP_EXPERTS},
    {"expert_gating_func", {NULL}, SL_HP_INT, SL_HP_AT(expert_gating), .min = 0, .max = 2},
    SL_HPARAM_EXPERT_SIZE,
    {"leading_dense_block_count", {"moe_layer_start_index"}, SL_HP_INT, SL_HP_AT(n_dense), .def = 1,
     .min = 0, .max = SL_MAX_LAYERS},
    {"interleave_moe_layer_step", {"moe_layer_interval"}, SL_HP_INT, SL_HP_AT(expert_step),
     .def = 1, .min = 1, .max = SL_MAX_LAYERS},
    {NULL, {"moe_layer_end_index"}, SL_HP_INT, SL_HP_AT(last_experts), .def = -1, .min = -1,
     .max = SL_MAX_LAYERS},
    {"expert_shared_count", {"moe_num_shared_experts"}, SL_HP_INT, SL_HP_AT(n_shared_experts),
     .min = 0, .max = 64},
    {"expert_shared_feed_forward_length", {NULL}, SL_HP_INT, SL_HP_AT(shared_intermediate),
     .min = 0, .max = 4 * SL_MAX_HIDDEN},
    {NULL, {"moe_norm_min"}, SL_HP_FLOAT, SL_HP_AT(expert_sum_min), .hf_def = 1e-12, .min = 0,
     .max = 1},
    SL_HPARAM_ACT(SL_ACT_SILU),
    SL_HPARAM_TIED(true),
    {NULL, {"use_bias"}, SL_HP_HAS, .has = SL_HAS_MLP_BIAS},
};

static const struct sl_weight_desc weights[] = {
    SL_WEIGHTS_EMBED_AND_HEAD,
    SL_WEIGHTS_ATTN_NORM,
    SL_WEIGHTS_GQA,
    SL_WEIGHTS_FFN_NORM,
    SL_WEIGHTS_EXPERTS,
    SL_W_LAYER(CHOICE_BIAS, "mlp.moe_statics.e_score_correction_bias", "exp_probs_b.bias", E, NONE,
               NONE), .when = SL_HAS_CHOICE_BIAS, .flags = SL_W_FLAT},
    SL_WEIGHTS_SHARED("mlp.shared_experts"),
    SL_WEIGHTS_FFN_DENSE,
};
/* clang-format on */

static const struct sl_rope_desc ropes[] = {
    {.hf_theta = "rope_theta",
     .gguf_theta = "rope.freq_base",
     .theta = 500000,
     .scaled = true,
     .pairing = SL_ROPE_INTERLEAVED},
};

static int ernie_moe_plan(const struct sl_model_name *name, const struct sl_hparams *hp,
                          struct sl_layer_desc *layers, struct sl_error *err)
{
    (void)name;
    if ((hp->has & SL_HAS_MLP_BIAS) != 0)
        return sl_fail(err, SL_EUNSUPPORTED, "config.json: use_bias true is not supported");
    if (hp->last_experts > 0 && hp->last_experts < hp->n_layers - 1)
        return sl_fail(err, SL_EUNSUPPORTED,
                       "config.json: moe_layer_end_index %d is not supported, must be the last "
                       "layer or -1",
                       hp->last_experts);
    int rc = sl_plan_experts(hp, SL_ROUTE_SOFTMAX, (float)hp->expert_sum_min, layers, err);
    for (int32_t i = 0; i < hp->n_layers && rc == 0; i++)
        layers[i].route.renormalize = true;
    return rc;
}

static void ernie_moe_tiny(const struct sl_model_name *name, struct sl_hparams *hp)
{
    *hp = (struct sl_hparams){
        .hidden = 64,
        .intermediate = 160,
        .n_layers = 3,
        .n_heads = 4,
        .n_kv_heads = 2,
        .head_dim = 16,
        .n_vocab = 320,
        .context = 512,
        .norm_eps = 1e-5,
        .has = name->has,
        .ropes = {{.theta = 500000}},
        .n_experts = 7,
        .top_experts = 3,
        .expert_intermediate = 96,
        .n_dense = 1,
        .expert_step = 1,
        .n_shared_experts = 2,
        .expert_sum_min = 1e-12,
        .last_experts = -1,
    };
}

const struct sl_model_desc sl_model_ernie_moe = {
    .id = "ernie_moe",
    SL_MODEL_TABLES,
    SL_MODEL_ROPES(ropes),
    .plan = ernie_moe_plan,
    .tiny = ernie_moe_tiny,
};
