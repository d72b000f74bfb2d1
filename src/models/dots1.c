/* SPDX-License-Identifier: MIT
 * dots.llm1: DeepSeek V3's choice of experts (sigmoid, a bias, groups, a shared expert, dense
 * layers in front) with the attention of Qwen3.
 */
#include "base/check.h"
#include "models/desc.h"
#include "models/tables.h"

static const struct sl_model_name names[] = {
    {.id = "dots1",
     .hf_architecture = "Dots1ForCausalLM",
     .hf_model_type = "dots1",
     .gguf_architecture = "dots1",
     .has = SL_HAS_QK_NORM | SL_HAS_CHOICE_BIAS},
};

/* clang-format off */
static const struct sl_hparam_desc hparams[] = {
    SL_HPARAMS_BLOCKS,
    SL_HPARAMS_EXPERTS,
    SL_HPARAM_EXPERT_SIZE,
    SL_HPARAM_NORM_TOP_EXPERTS(false),
    SL_HPARAMS_DEEPSEEK_EXPERTS(0),
    SL_HPARAM_ACT(SL_ACT_SILU),
    SL_HPARAM_TIED(false),
    {NULL, {"sliding_window"}, SL_HP_INT, SL_HP_AT(window), .hf_def = 4096, .min = 1,
     .max = SL_MAX_CONTEXT},
    {NULL, {"max_window_layers"}, SL_HP_INT, SL_HP_AT(max_window_layers), .def = 62, .min = 0,
     .max = SL_MAX_LAYERS},
    {NULL, {"layer_types"}, SL_HP_LAYER_TYPES, SL_HP_AT(layer_types)},
    {NULL, {"attention_bias"}, SL_HP_HAS, .has = SL_HAS_QKV_BIAS | SL_HAS_O_BIAS},
};

static const struct sl_weight_desc weights[] = {
    SL_WEIGHTS_EMBED_AND_HEAD,
    SL_WEIGHTS_ATTN_NORM,
    SL_WEIGHTS_GQA,
    SL_WEIGHTS_QKV_BIAS,
    SL_WEIGHTS_O_BIAS,
    SL_WEIGHTS_QK_NORM,
    SL_WEIGHTS_FFN_NORM,
    SL_WEIGHTS_EXPERTS,
    SL_WEIGHT_CHOICE_BIAS("mlp.gate.e_score_correction_bias"),
    SL_WEIGHTS_SHARED("mlp.shared_experts"),
    SL_WEIGHTS_FFN_DENSE,
};
/* clang-format on */

static int dots1_plan(const struct sl_model_name *name, const struct sl_hparams *hp,
                      struct sl_layer_desc *layers, struct sl_error *err)
{
    (void)name;
    for (int32_t i = 0; i < hp->n_layers; i++) {
        const bool windowed = hp->layer_types[i] == SL_LAYER_BY_INDEX
                                  ? i >= hp->max_window_layers
                                  : hp->layer_types[i] == SL_LAYER_ON;
        layers[i].window = windowed ? hp->window : 0;
    }
    return sl_plan_experts(hp, SL_ROUTE_SIGMOID, 1e-20f, layers, err);
}

static void dots1_tiny(const struct sl_model_name *name, struct sl_hparams *hp)
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
        .norm_eps = 1e-6,
        .has = name->has | SL_HAS_HEAD,
        .ropes = {{.theta = 10000}},
        .n_experts = 7,
        .top_experts = 3,
        .expert_intermediate = 96,
        .expert_gating = SL_GGUF_SIGMOID,
        .norm_top_experts = true,
        .expert_scale = 2.5,
        .n_dense = 1,
        .n_shared_experts = 2,
        .max_window_layers = 62,
    };
}

const struct sl_model_desc sl_model_dots1 = {
    .id = "dots1",
    SL_MODEL_TABLES,
    SL_MODEL_ROPES(sl_rope_one),
    .plan = dots1_plan,
    .tiny = dots1_tiny,
};
