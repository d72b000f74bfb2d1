/* SPDX-License-Identifier: MIT
 * Hunyuan 3: experts chosen by sigmoid and a bias, scaled, with a shared expert; the first layer is
 * dense.
 */
#include "base/check.h"
#include "models/desc.h"
#include "models/tables.h"

static const struct sl_model_name names[] = {
    {.id = "hy_v3",
     .hf_architecture = "HYV3ForCausalLM",
     .hf_model_type = "hy_v3",
     .gguf_architecture = "hy_v3",
     .has = SL_HAS_QK_NORM | SL_HAS_CHOICE_BIAS},
};

/* clang-format off */
static const struct sl_hparam_desc hparams[] = {
    SL_HPARAMS_BLOCKS,
    SL_HPARAM_NEXTN,
    SL_HPARAMS_EXPERTS,
    SL_HPARAM_EXPERT_SIZE,
    {NULL, {"first_k_dense_replace"}, SL_HP_INT, SL_HP_AT(n_dense), .def = 1, .min = 0,
     .max = SL_MAX_LAYERS},
    {"expert_weights_scale", {"router_scaling_factor"}, SL_HP_FLOAT, SL_HP_AT(expert_scale),
     .hf_def = 2.826, .min = 1e-6, .max = 1e6},
    {NULL, {"num_shared_experts"}, SL_HP_INT, SL_HP_AT(n_shared_experts), .def = 1, .min = 1,
     .max = 64},
    {"expert_shared_feed_forward_length", {NULL}, SL_HP_INT, SL_HP_AT(shared_intermediate),
     .min = 1, .max = 4 * SL_MAX_HIDDEN},
    SL_HPARAM_ACT(SL_ACT_SILU),
    SL_HPARAM_TIED(false),
    {NULL, {"attention_bias"}, SL_HP_HAS, .has = SL_HAS_QKV_BIAS | SL_HAS_O_BIAS},
    {NULL, {"mlp_bias"}, SL_HP_HAS, .has = SL_HAS_MLP_BIAS},
};

static const struct sl_weight_desc weights[] = {
    SL_WEIGHTS_EMBED_AND_HEAD,
    SL_WEIGHTS_ATTN_NORM,
    SL_WEIGHTS_GQA,
    SL_WEIGHTS_QKV_BIAS,
    SL_WEIGHTS_O_BIAS,
    SL_WEIGHTS_QK_NORM,
    SL_WEIGHTS_FFN_NORM,
    SL_WEIGHTS_EXPERTS_BY("mlp.router.gate.weight"),
    SL_WEIGHT_CHOICE_BIAS("mlp.expert_bias"),
    SL_WEIGHTS_SHARED("mlp.shared_mlp"),
    SL_WEIGHTS_FFN_DENSE,
};
/* clang-format on */

static int hy3_plan(const struct sl_model_name *name, const struct sl_hparams *hp,
                    struct sl_layer_desc *layers, struct sl_error *err)
{
    (void)name;
    if ((hp->has & SL_HAS_MLP_BIAS) != 0)
        return sl_fail(err, SL_EUNSUPPORTED, "config.json: mlp_bias true is not supported");
    int rc = sl_plan_experts(hp, SL_ROUTE_SIGMOID, 1e-20f, layers, err);
    for (int32_t i = 0; i < hp->n_layers && rc == 0; i++)
        layers[i].route.renormalize = true;
    return rc;
}

static void hy3_tiny(const struct sl_model_name *name, struct sl_hparams *hp)
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
        .has = name->has | SL_HAS_HEAD,
        .ropes = {{.theta = 11158840}},
        .n_experts = 7,
        .top_experts = 3,
        .expert_intermediate = 96,
        .expert_scale = 2.826,
        .n_dense = 1,
        .n_shared_experts = 1,
    };
}

const struct sl_model_desc sl_model_hy3 = {
    .id = "hy3",
    SL_MODEL_TABLES,
    SL_MODEL_ROPES(sl_rope_one),
    .plan = hy3_plan,
    .tiny = hy3_tiny,
};
