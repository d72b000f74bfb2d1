/* SPDX-License-Identifier: MIT
 * MiniMax M2: experts chosen by sigmoid and a bias, q and k normed over all their heads together,
 * part of a head rotated.
 */
#include "base/check.h"
#include "models/desc.h"
#include "models/tables.h"

static const struct sl_model_name names[] = {
    {.id = "minimax_m2",
     .hf_architecture = "MiniMaxM2ForCausalLM",
     .hf_model_type = "minimax_m2",
     .gguf_architecture = "minimax-m2",
     .has = SL_HAS_QK_NORM | SL_HAS_CHOICE_BIAS},
};

/* clang-format off */
static const struct sl_hparam_desc hparams[] = {
    SL_HPARAMS_BLOCKS,
    SL_HPARAMS_EXPERTS,
    {"expert_feed_forward_length", {NULL}, SL_HP_INT, SL_HP_AT(expert_intermediate), .min = 1,
     .max = 4 * SL_MAX_HIDDEN},
    {NULL, {"shared_intermediate_size"}, SL_HP_INT, SL_HP_AT(shared_intermediate), .min = 0,
     .max = 0},
    {NULL, {"scoring_func"}, SL_HP_CHOICE, .value = "sigmoid"},
    {NULL, {"qk_norm_type"}, SL_HP_CHOICE, .value = "per_layer"},
    SL_HPARAM_ACT(SL_ACT_SILU),
    SL_HPARAM_TIED(false),
};

static const struct sl_weight_desc weights[] = {
    SL_WEIGHTS_EMBED_AND_HEAD,
    SL_WEIGHTS_ATTN_NORM,
    SL_WEIGHTS_GQA,
    SL_WEIGHTS_QK_NORM_ROWS,
    SL_WEIGHTS_FFN_NORM,
    SL_WEIGHTS_EXPERTS_W123("block_sparse_moe"),
    SL_WEIGHT_CHOICE_BIAS("block_sparse_moe.e_score_correction_bias"),
};
/* clang-format on */

static const struct sl_rope_desc ropes[] = {
    {.hf_theta = "rope_theta",
     .gguf_theta = "rope.freq_base",
     .theta = 5000000,
     .scaled = true,
     .partial = 1},
};

static int minimax_plan(const struct sl_model_name *name, const struct sl_hparams *hp,
                        struct sl_layer_desc *layers, struct sl_error *err)
{
    (void)name;
    int rc = sl_plan_experts(hp, SL_ROUTE_SIGMOID, 1e-20f, layers, err);
    for (int32_t i = 0; i < hp->n_layers && rc == 0; i++) {
        layers[i].qk_norm = SL_QK_NORM_ROWS;
        layers[i].route.renormalize = true;
    }
    return rc;
}

static void minimax_tiny(const struct sl_model_name *name, struct sl_hparams *hp)
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
        .norm_eps = 1e-6,
        .has = name->has | SL_HAS_HEAD,
        .ropes = {{.theta = 5000000, .n_dims = 16}},
        .n_experts = 7,
        .top_experts = 3,
        .expert_gating = SL_GGUF_SIGMOID,
    };
}

const struct sl_model_desc sl_model_minimax = {
    .id = "minimax",
    SL_MODEL_TABLES,
    SL_MODEL_ROPES(ropes),
    .plan = minimax_plan,
    .tiny = minimax_tiny,
};
