/* SPDX-License-Identifier: MIT
 * A.X-K1: DeepSeek V3 with a norm of what experts and the shared expert give together.
 *
 * Released checkpoints have no bias of the choice of experts, those that transformers saves do:
 * the file's tensors say it. They also have the norm in layers without experts, which do not use
 * it.
 */
#include "base/check.h"
#include "models/desc.h"
#include "models/tables.h"

static const struct sl_model_name names[] = {
    {.id = "axk1",
     .hf_architecture = "AXK1ForCausalLM",
     .hf_model_type = "axk1",
     .hf_shown = SL_HAS_CHOICE_BIAS},
};

/* clang-format off */
static const struct sl_hparam_desc hparams[] = {
    SL_HPARAMS_DEEPSEEK,
    SL_HPARAM_NORM_TOP_EXPERTS(true),
    {NULL, {"first_k_dense_replace"}, SL_HP_INT, SL_HP_AT(n_dense), .def = 1, .min = 0,
     .max = SL_MAX_LAYERS},
    SL_HPARAM_MLP_TYPES,
    {NULL, {"moe_layer_freq"}, SL_HP_INT, SL_HP_AT(expert_step), .min = 1, .max = 1},
    {NULL, {"n_group"}, SL_HP_INT, SL_HP_AT(n_expert_groups), .hf_def = 8, .min = 0,
     .max = SL_MAX_EXPERTS},
    {NULL, {"topk_group"}, SL_HP_INT, SL_HP_AT(top_expert_groups), .hf_def = 4, .min = 0,
     .max = SL_MAX_EXPERTS},
    {NULL, {"routed_scaling_factor"}, SL_HP_FLOAT, SL_HP_AT(expert_scale), .hf_def = 2.5,
     .min = 0, .max = 1e6},
    {NULL, {"n_shared_experts"}, SL_HP_INT, SL_HP_AT(n_shared_experts), .def = 1, .min = 1,
     .max = 64},
    {.hf = {"scoring_func"}, .type = SL_HP_CHOICE, .value = "sigmoid"},
    SL_HPARAM_ACT(SL_ACT_SILU),
    SL_HPARAM_TIED(false),
    SL_HPARAM_ONLY("attention_bias", false),
    SL_HPARAM_ONLY("rope_interleave", true),
};

static const struct sl_weight_desc weights[] = {
    SL_WEIGHTS_DEEPSEEK,
    SL_W_LAYER(FFN_OUT_NORM, "post_mlp_layernorm.weight", "post_ffw_norm.weight", H, NONE, NONE),
     .when = SL_HAS_EXPERTS},
};
/* clang-format on */

static const struct sl_rope_desc ropes[] = {
    {.hf_theta = "rope_theta",
     .theta = 10000,
     .scaled = true,
     .pairing = SL_ROPE_INTERLEAVED,
     .partial = 1},
};

static int axk1_plan(const struct sl_model_name *name, const struct sl_hparams *hp,
                     struct sl_layer_desc *layers, struct sl_error *err)
{
    (void)name;
    int rc = sl_plan_experts(hp, SL_ROUTE_SIGMOID, 1e-20f, layers, err);
    for (int32_t i = 0; i < hp->n_layers && rc == 0; i++) {
        sl_plan_mla(hp, &layers[i]);
        if (layers[i].ffn == SL_FFN_EXPERTS) /* attention has no such norm in any layer */
            layers[i].norms = SL_NORM_IN | SL_NORM_OUT;
    }
    return rc;
}

static void axk1_tiny(const struct sl_model_name *name, struct sl_hparams *hp)
{
    *hp = (struct sl_hparams){
        .hidden = 64,
        .intermediate = 160,
        .n_layers = 3,
        .n_heads = 4,
        .n_kv_heads = 1,
        .head_dim = 32 + 16,
        .q_rank = 96,
        .kv_rank = 64,
        .nope_dim = 32,
        .rope_dims = 16,
        .value_dim = 32,
        .n_vocab = 320,
        .context = 512,
        .norm_eps = 1e-6,
        .has = name->has | SL_HAS_HEAD,
        .ropes = {{.theta = 10000, .n_dims = 16}},
        .n_experts = 8,
        .top_experts = 3,
        .expert_intermediate = 96,
        .norm_top_experts = true,
        .expert_scale = 2.5,
        .n_dense = 1,
        .n_expert_groups = 4,
        .top_expert_groups = 2,
        .n_shared_experts = 1,
    };
}

const struct sl_model_desc sl_model_axk1 = {
    .id = "axk1",
    SL_MODEL_TABLES,
    SL_MODEL_ROPES(ropes),
    .plan = axk1_plan,
    .tiny = axk1_tiny,
};
