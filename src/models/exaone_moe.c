/* SPDX-License-Identifier: MIT
 * K-EXAONE: EXAONE with experts chosen by sigmoid and a bias, a shared expert, dense layers in
 * front. q and k are normed by head; three of four layers are windowed and rotated, the fourth
 * neither. Unlike EXAONE 4.0 it has its norms before the sublayers.
 *
 * Layers behind the last (num_nextn_predict_layers) predict further tokens and are not loaded.
 */
#include "base/check.h"
#include "models/desc.h"
#include "models/tables.h"

static const struct sl_model_name names[] = {
    {.id = "exaone_moe",
     .hf_architecture = "ExaoneMoEForCausalLM",
     .hf_model_type = "exaone_moe",
     .gguf_architecture = "exaone-moe",
     .has = SL_HAS_QK_NORM | SL_HAS_CHOICE_BIAS},
    {.id = "exaone_moe-transformers", /* whose class has another name */
     .hf_architecture = "ExaoneMoeForCausalLM",
     .hf_model_type = "exaone_moe",
     .gguf_architecture = "exaone-moe",
     .has = SL_HAS_QK_NORM | SL_HAS_CHOICE_BIAS},
};

/* clang-format off */
static const struct sl_hparam_desc hparams[] = {
    SL_HPARAMS_BLOCKS,
    SL_HPARAMS_EXPERTS,
    SL_HPARAM_EXPERT_SIZE,
    SL_HPARAM_NORM_TOP_EXPERTS(true),
    SL_HPARAMS_DEEPSEEK_ROUTER(1),
    {"expert_shared_count", {"num_shared_experts"}, SL_HP_INT, SL_HP_AT(n_shared_experts),
     .hf_def = 1, .min = 1, .max = 64},
    SL_HPARAM_NEXTN,
    SL_HPARAM_MLP_TYPES,
    SL_HPARAM_ACT(SL_ACT_SILU),
    SL_HPARAM_TIED(false),
    SL_HPARAMS_EXAONE_WINDOWS,
};

static const struct sl_weight_desc weights[] = {
    SL_WEIGHTS_EMBED_AND_HEAD,
    SL_WEIGHTS_ATTN_NORM,
    SL_WEIGHTS_GQA,
    SL_WEIGHTS_QK_NORM,
    SL_WEIGHTS_FFN_NORM,
    SL_WEIGHTS_EXPERTS,
    SL_WEIGHT_CHOICE_BIAS("mlp.e_score_correction_bias"),
    SL_WEIGHTS_SHARED("mlp.shared_experts"),
    SL_WEIGHTS_FFN_DENSE,
    SL_WEIGHT_ROPE_FREQS,
};
/* clang-format on */

static int exaone_moe_plan(const struct sl_model_name *name, const struct sl_hparams *hp,
                           struct sl_layer_desc *layers, struct sl_error *err)
{
    (void)name;
    for (int32_t i = 0; i < hp->n_layers; i++) {
        const bool windowed = hp->layer_types[i] == SL_LAYER_BY_INDEX
                                  ? (i + 1) % 4 != 0
                                  : hp->layer_types[i] == SL_LAYER_ON;
        layers[i].window = windowed ? hp->window : 0;
        layers[i].rope = windowed || hp->window == 0 ? 0 : -1;
    }
    return sl_plan_experts(hp, SL_ROUTE_SIGMOID, 1e-20f, layers, err);
}

static void exaone_moe_tiny(const struct sl_model_name *name, struct sl_hparams *hp)
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
        .norm_eps = 1e-5,
        .has = name->has | SL_HAS_HEAD,
        .ropes = {{.theta = 10000}},
        .window = 24,
        .n_experts = 8,
        .top_experts = 3,
        .expert_intermediate = 96,
        .norm_top_experts = true,
        .expert_scale = 2.5,
        .expert_gating = SL_GGUF_SIGMOID,
        .n_dense = 1,
        .n_shared_experts = 1,
    };
}

const struct sl_model_desc sl_model_exaone_moe = {
    .id = "exaone_moe",
    SL_MODEL_TABLES,
    SL_MODEL_ROPES(sl_rope_one),
    .plan = exaone_moe_plan,
    .tiny = exaone_moe_tiny,
};
