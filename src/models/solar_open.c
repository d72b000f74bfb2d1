/* SPDX-License-Identifier: MIT
 * Solar Open: experts in every layer, chosen by sigmoid and a bias, with a shared expert. GGUF
 * files call themselves "glm4moe" and are read as such (glm_moe.c).
 */
#include "base/check.h"
#include "models/desc.h"
#include "models/tables.h"

static const struct sl_model_name names[] = {
    {.id = "solar_open",
     .hf_architecture = "SolarOpenForCausalLM",
     .hf_model_type = "solar_open",
     .has = SL_HAS_CHOICE_BIAS,
     .head_dim = 128},
};

/* clang-format off */
static const struct sl_hparam_desc hparams[] = {
    {NULL, {"hidden_size"}, SL_HP_INT, SL_HP_AT(hidden), .required = true, .min = 1,
     .max = SL_MAX_HIDDEN},
    {NULL, {"num_hidden_layers"}, SL_HP_INT, SL_HP_AT(n_layers), .required = true, .min = 1,
     .max = SL_MAX_LAYERS},
    {NULL, {"num_attention_heads"}, SL_HP_INT, SL_HP_AT(n_heads), .required = true, .min = 1,
     .max = SL_MAX_HEADS},
    {NULL, {"num_key_value_heads"}, SL_HP_INT, SL_HP_AT(n_kv_heads), .hf_def = 8, .min = 1,
     .max = SL_MAX_HEADS},
    SL_HPARAMS_HEADS,
    {NULL, {"rms_norm_eps"}, SL_HP_FLOAT, SL_HP_AT(norm_eps), .def = 1e-5, .min = 1e-20,
     .max = 1},
    SL_HPARAMS_EXPERTS,
    SL_HPARAM_EXPERT_SIZE,
    SL_HPARAM_NORM_TOP_EXPERTS(true),
    {NULL, {"n_group"}, SL_HP_INT, SL_HP_AT(n_expert_groups), .min = 0, .max = SL_MAX_EXPERTS},
    {NULL, {"topk_group"}, SL_HP_INT, SL_HP_AT(top_expert_groups), .min = 0,
     .max = SL_MAX_EXPERTS},
    {NULL, {"routed_scaling_factor"}, SL_HP_FLOAT, SL_HP_AT(expert_scale), .min = 0, .max = 1e6},
    {NULL, {"n_shared_experts"}, SL_HP_INT, SL_HP_AT(n_shared_experts), .def = 1, .min = 1,
     .max = 64},
    {NULL, {"first_k_dense_replace"}, SL_HP_INT, SL_HP_AT(n_dense), .min = 0, .max = 0},
    SL_HPARAM_ONLY("use_qk_norm", false),
    SL_HPARAM_ACT(SL_ACT_SILU),
    SL_HPARAM_TIED(false),
    {NULL, {"attention_bias"}, SL_HP_HAS, .has = SL_HAS_QKV_BIAS},
};

static const struct sl_weight_desc weights[] = {
    SL_WEIGHTS_EMBED_AND_HEAD,
    SL_WEIGHTS_ATTN_NORM,
    SL_WEIGHTS_GQA,
    SL_WEIGHTS_QKV_BIAS,
    SL_WEIGHTS_FFN_NORM,
    SL_WEIGHTS_EXPERTS,
    SL_WEIGHT_CHOICE_BIAS("mlp.gate.e_score_correction_bias"),
    SL_WEIGHTS_SHARED("mlp.shared_experts"),
};
/* clang-format on */

static const struct sl_rope_desc ropes[] = {
    {.hf_theta = "rope_theta", .theta = 1e6, .scaled = true},
};

static int solar_open_plan(const struct sl_model_name *name, const struct sl_hparams *hp,
                           struct sl_layer_desc *layers, struct sl_error *err)
{
    (void)name;
    return sl_plan_experts(hp, SL_ROUTE_SIGMOID, 1e-20f, layers, err);
}

static void solar_open_tiny(const struct sl_model_name *name, struct sl_hparams *hp)
{
    *hp = (struct sl_hparams){
        .hidden = 64,
        .intermediate = 96,
        .n_layers = 2,
        .n_heads = 4,
        .n_kv_heads = 2,
        .head_dim = 32,
        .n_vocab = 320,
        .context = 512,
        .norm_eps = 1e-5,
        .has = name->has | SL_HAS_HEAD,
        .ropes = {{.theta = 1e6}},
        .n_experts = 8,
        .top_experts = 3,
        .expert_intermediate = 96,
        .norm_top_experts = true,
        .expert_scale = 1.5,
        .n_expert_groups = 1,
        .top_expert_groups = 1,
        .n_shared_experts = 1,
    };
}

const struct sl_model_desc sl_model_solar_open = {
    .id = "solar_open",
    SL_MODEL_TABLES,
    SL_MODEL_ROPES(ropes),
    .plan = solar_open_plan,
    .tiny = solar_open_tiny,
};
