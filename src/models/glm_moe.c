/* SPDX-License-Identifier: MIT
 * GLM-4.5, 4.6 and 4.7: experts chosen by sigmoid and a bias, a shared expert, dense layers in
 * front, half of a head rotated.
 *
 * Layers behind the last (num_nextn_predict_layers) predict further tokens: the first one is a
 * drafter (draft.c).
 */
#include "base/check.h"
#include "models/desc.h"
#include "models/tables.h"

static const struct sl_model_name names[] = {
    {.id = "glm4moe",
     .hf_architecture = "Glm4MoeForCausalLM",
     .hf_model_type = "glm4_moe",
     .gguf_architecture = "glm4moe",
     .has = SL_HAS_CHOICE_BIAS},
};

/* clang-format off */
static const struct sl_hparam_desc hparams[] = {
    SL_HPARAMS_BLOCKS,
    SL_HPARAMS_EXPERTS,
    SL_HPARAM_EXPERT_SIZE,
    SL_HPARAM_NORM_TOP_EXPERTS(true),
    SL_HPARAMS_DEEPSEEK_EXPERTS(1),
    SL_HPARAM_NEXTN,
    SL_HPARAM_ACT(SL_ACT_SILU),
    SL_HPARAM_TIED(false),
    {NULL, {"attention_bias"}, SL_HP_HAS, .has = SL_HAS_QKV_BIAS},
    {NULL, {"use_qk_norm"}, SL_HP_HAS, .has = SL_HAS_QK_NORM},
};

static const struct sl_weight_desc weights[] = {
    SL_WEIGHTS_EMBED_AND_HEAD,
    SL_WEIGHTS_ATTN_NORM,
    SL_WEIGHTS_GQA,
    SL_WEIGHTS_QKV_BIAS,
    SL_WEIGHTS_QK_NORM,
    SL_W_LAYER(FFN_NORM, "post_attention_layernorm.weight", "post_attention_norm.weight", H, NONE,
               NONE)},
    SL_WEIGHTS_EXPERTS,
    SL_WEIGHT_CHOICE_BIAS("mlp.gate.e_score_correction_bias"),
    SL_WEIGHTS_SHARED("mlp.shared_experts"),
    SL_WEIGHTS_FFN_DENSE,
};

static const struct sl_weight_desc mtp_weights[] = {
    SL_WEIGHTS_MTP_BEHIND,
};
/* clang-format on */

static const struct sl_draft_desc mtp = {
    .weights = mtp_weights, .n_weights = SL_COUNT(mtp_weights), .experts = SL_LAYER_ON};

static const struct sl_rope_desc ropes[] = {
    {.hf_theta = "rope_theta",
     .gguf_theta = "rope.freq_base",
     .theta = 10000,
     .scaled = true,
     .partial = 0.5},
};

static int glm_moe_plan(const struct sl_model_name *name, const struct sl_hparams *hp,
                        struct sl_layer_desc *layers, struct sl_error *err)
{
    (void)name;
    return sl_plan_experts(hp, SL_ROUTE_SIGMOID, 1e-20f, layers, err);
}

static void glm_moe_tiny(const struct sl_model_name *name, struct sl_hparams *hp)
{
    *hp = (struct sl_hparams){
        .hidden = 64,
        .intermediate = 160,
        .n_layers = 3,
        .n_heads = 4,
        .n_kv_heads = 2,
        .head_dim = 32,
        .n_vocab = 320,
        .context = 512,
        .norm_eps = 1e-5,
        .has = name->has | SL_HAS_HEAD | SL_HAS_QKV_BIAS | SL_HAS_QK_NORM,
        .ropes = {{.theta = 10000, .n_dims = 16}},
        .n_experts = 8,
        .top_experts = 3,
        .expert_intermediate = 96,
        .norm_top_experts = true,
        .expert_scale = 2.5,
        .expert_gating = SL_GGUF_SIGMOID,
        .n_dense = 1,
        .n_expert_groups = 4,
        .top_expert_groups = 2,
        .n_shared_experts = 1,
    };
}

const struct sl_model_desc sl_model_glm_moe = {
    .id = "glm_moe",
    SL_MODEL_TABLES,
    SL_MODEL_ROPES(ropes),
    .mtp = &mtp,
    .plan = glm_moe_plan,
    .tiny = glm_moe_tiny,
};
