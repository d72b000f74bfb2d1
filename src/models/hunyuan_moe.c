/* SPDX-License-Identifier: MIT
 * Hunyuan v1 with experts (Hunyuan-A13B): the attention of the dense one, which norms q and k
 * behind the rotation, experts chosen by softmax and renormalised, a shared expert.
 *
 * config.json gives some numbers as a list with one for each layer; all must be the same. As in
 * dense models it calls a fixed change of theta "dynamic" (alpha); GGUF files hold the changed
 * theta.
 */
#include "base/check.h"
#include "models/desc.h"
#include "models/tables.h"

static const struct sl_model_name names[] = {
    {.id = "hunyuan_v1_moe",
     .hf_architecture = "HunYuanMoEV1ForCausalLM",
     .hf_model_type = "hunyuan_v1_moe",
     .gguf_architecture = "hunyuan-moe",
     .has = SL_HAS_QK_NORM},
};

/* clang-format off */
static const struct sl_hparam_desc hparams[] = {
    SL_HPARAMS_BLOCKS,
    {"expert_count", {"num_experts"}, SL_HP_SAME, SL_HP_AT(n_experts), .required = true, .min = 1,
     .max = SL_MAX_EXPERTS},
    {"expert_used_count", {"moe_topk"}, SL_HP_SAME, SL_HP_AT(top_experts), .required = true,
     .min = 1, .max = SL_MAX_TOP_EXPERTS},
    {"expert_feed_forward_length", {"moe_intermediate_size"}, SL_HP_SAME,
     SL_HP_AT(expert_intermediate), .min = 1, .max = 4 * SL_MAX_HIDDEN},
    {"expert_shared_count", {"num_shared_expert"}, SL_HP_SAME, SL_HP_AT(n_shared_experts),
     .def = 1, .min = 1, .max = 64},
    {NULL, {"moe_layer_num_skipped"}, SL_HP_INT, SL_HP_AT(n_dense), .min = 0, .max = 0},
    SL_HPARAM_ONLY("use_cla", 0),
    SL_HPARAM_ONLY("use_qk_norm", 1),
    SL_HPARAM_ACT(SL_ACT_SILU),
    SL_HPARAM_TIED(false),
    {NULL, {"attention_bias"}, SL_HP_HAS, .has = SL_HAS_QKV_BIAS | SL_HAS_O_BIAS},
};

static const struct sl_weight_desc weights[] = {
    SL_WEIGHTS_EMBED_AND_HEAD,
    SL_WEIGHTS_HUNYUAN_ATTENTION,
    SL_WEIGHTS_EXPERTS_BY("mlp.gate.wg.weight"),
    SL_WEIGHTS_SHARED("mlp.shared_mlp"),
};
/* clang-format on */

static int hunyuan_moe_plan(const struct sl_model_name *name, const struct sl_hparams *hp,
                            struct sl_layer_desc *layers, struct sl_error *err)
{
    (void)name;
    int rc = sl_plan_experts(hp, SL_ROUTE_SOFTMAX, 0, layers, err);
    for (int32_t i = 0; i < hp->n_layers && rc == 0; i++) {
        layers[i].qk_norm_after = true;
        layers[i].route.renormalize = true;
        layers[i].shared_intermediate = hp->intermediate * hp->n_shared_experts;
    }
    return rc;
}

static void hunyuan_moe_tiny(const struct sl_model_name *name, struct sl_hparams *hp)
{
    *hp = (struct sl_hparams){
        .hidden = 64,
        .intermediate = 160,
        .n_layers = 2,
        .n_heads = 4,
        .n_kv_heads = 2,
        .head_dim = 32,
        .n_vocab = 320,
        .context = 512,
        .norm_eps = 1e-5,
        .has = name->has | SL_HAS_HEAD,
        .ropes = {{.theta = 10000}},
        .n_experts = 7,
        .top_experts = 3,
        .expert_intermediate = 96,
        .n_shared_experts = 1,
    };
}

const struct sl_model_desc sl_model_hunyuan_moe = {
    .id = "hunyuan_moe",
    SL_MODEL_TABLES,
    SL_MODEL_ROPES(sl_rope_one),
    .plan = hunyuan_moe_plan,
    .tiny = hunyuan_moe_tiny,
};
