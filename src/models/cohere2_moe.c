/* SPDX-License-Identifier: MIT
 * Cohere 2 with experts: as Cohere 2, where one norm feeds attention and MLP, which are added to
 * the stream together. Experts are chosen by their logits and weighed by softmax or sigmoid of
 * those alone; what they and a shared expert give may be averaged. Dense layers may stand in front,
 * which are rotated although they see everything.
 *
 * A config that gives rms_norm_eps has norms without a mean.
 */
#include "base/check.h"
#include "models/desc.h"
#include "models/tables.h"

static const struct sl_model_name names[] = {
    {.id = "cohere2_moe",
     .hf_architecture = "Cohere2MoeForCausalLM",
     .hf_model_type = "cohere2_moe",
     .head_dim = 128},
};

/* clang-format off */
static const struct sl_hparam_desc hparams[] = {
    SL_HPARAMS_SHAPE,
    {NULL, {"rms_norm_eps", "layer_norm_eps"}, SL_HP_FLOAT, SL_HP_AT(norm_eps), .def = 1e-5,
     .min = 1e-20, .max = 1},
    {NULL, {"rms_norm_eps"}, SL_HP_FLOAT, SL_HP_AT(rms_norm_eps), .min = 1e-20, .max = 1},
    SL_HPARAMS_EXPERTS,
    {NULL, {"num_shared_experts"}, SL_HP_INT, SL_HP_AT(n_shared_experts), .min = 0, .max = 64},
    {NULL, {"prefix_dense_intermediate_size"}, SL_HP_INT, SL_HP_AT(dense_intermediate), .min = 1,
     .max = 4 * SL_MAX_HIDDEN},
    {NULL, {"first_k_dense_replace"}, SL_HP_INT, SL_HP_AT(n_dense), .min = 0,
     .max = SL_MAX_LAYERS},
    {NULL, {"prefix_dense_sliding_window_pattern"}, SL_HP_INT, SL_HP_AT(dense_window_pattern),
     .def = 1, .min = 1, .max = SL_MAX_LAYERS},
    {NULL, {"shared_expert_combination_strategy"}, SL_HP_EITHER, SL_HP_AT(average_shared),
     .def = 1, .words = {"sum", "average"}},
    {NULL, {"expert_selection_fn"}, SL_HP_EITHER, SL_HP_AT(sigmoid_experts),
     .words = {"softmax", "sigmoid"}},
    SL_HPARAM_NORM_TOP_EXPERTS(true),
    SL_HPARAM_MLP_TYPES,
    SL_HPARAM_ACT(SL_ACT_SILU),
    SL_HPARAM_TIED(true),
    {NULL, {"logit_scale"}, SL_HP_FLOAT, SL_HP_AT(logit_scale), .hf_def = 0.0625, .min = 1e-6,
     .max = 1e6},
    {NULL, {"sliding_window"}, SL_HP_INT, SL_HP_AT(window), .hf_def = 4096, .min = 1,
     .max = SL_MAX_CONTEXT},
    {NULL, {"sliding_window_pattern", "_sliding_window_pattern"}, SL_HP_INT,
     SL_HP_AT(window_pattern), .def = 4, .min = 1, .max = SL_MAX_LAYERS},
    {NULL, {"layer_types"}, SL_HP_LAYER_TYPES, SL_HP_AT(layer_types)},
    {NULL, {"attention_bias"}, SL_HP_HAS, .has = SL_HAS_QKV_BIAS | SL_HAS_O_BIAS},
};

static const struct sl_weight_desc weights[] = {
    SL_WEIGHTS_EMBED_AND_HEAD,
    SL_WEIGHTS_ATTN_NORM,
    SL_WEIGHTS_GQA,
    SL_WEIGHTS_QKV_BIAS,
    SL_WEIGHTS_O_BIAS,
    SL_WEIGHTS_EXPERTS,
    SL_WEIGHTS_SHARED("mlp.shared_experts"),
    SL_WEIGHTS_FFN_DENSE,
};
/* clang-format on */

static const struct sl_rope_desc ropes[] = {
    {.hf_theta = "rope_theta",
     .gguf_theta = "rope.freq_base",
     .theta = 10000,
     .scaled = true,
     .pairing = SL_ROPE_INTERLEAVED},
};

/* Layers behind the dense ones in front count from there. */
static bool cohere2_moe_is_windowed(const struct sl_hparams *hp, int32_t layer)
{
    if (hp->window == 0 || hp->layer_types[layer] != SL_LAYER_BY_INDEX)
        return hp->window != 0 && hp->layer_types[layer] == SL_LAYER_ON;
    return layer < hp->n_dense ? (layer + 1) % hp->dense_window_pattern != 0
                               : (layer - hp->n_dense + 1) % hp->window_pattern != 0;
}

static int cohere2_moe_plan(const struct sl_model_name *name, const struct sl_hparams *hp,
                            struct sl_layer_desc *layers, struct sl_error *err)
{
    (void)name;
    int rc = sl_plan_experts(hp, hp->sigmoid_experts ? SL_ROUTE_SIGMOID : SL_ROUTE_SOFTMAX, 0,
                             layers, err);
    for (int32_t i = 0; i < hp->n_layers && rc == 0; i++) {
        struct sl_layer_desc *l = &layers[i];
        const bool experts = (l->has & SL_HAS_EXPERTS) != 0,
                   windowed = cohere2_moe_is_windowed(hp, i);
        l->norm = hp->rms_norm_eps != 0 ? SL_NORM_RMS : SL_NORM_LAYER;
        l->parallel = true;
        l->rope = windowed || (!experts && hp->dense_window_pattern == 1) ? 0 : -1;
        l->window = windowed ? hp->window : 0;
        if (!experts)
            continue;
        l->route.renormalize = hp->norm_top_experts || !hp->sigmoid_experts;
        if (hp->average_shared && hp->n_shared_experts > 0)
            l->mlp_scale = 0.5f;
    }
    return rc;
}

static void cohere2_moe_tiny(const struct sl_model_name *name, struct sl_hparams *hp)
{
    *hp = (struct sl_hparams){
        .hidden = 64,
        .intermediate = 96,
        .n_layers = 5,
        .n_heads = 4,
        .n_kv_heads = 2,
        .head_dim = 16,
        .n_vocab = 320,
        .context = 512,
        .norm_eps = 1e-5,
        .has = name->has,
        .ropes = {{.theta = 10000}},
        .logit_scale = 0.25,
        .window = 24,
        .window_pattern = 4,
        .n_experts = 7,
        .top_experts = 3,
        .norm_top_experts = true,
        .n_dense = 1,
        .dense_window_pattern = 1,
        .dense_intermediate = 160,
        .n_shared_experts = 2,
        .average_shared = true,
    };
}

const struct sl_model_desc sl_model_cohere2_moe = {
    .id = "cohere2_moe",
    SL_MODEL_TABLES,
    SL_MODEL_ROPES(ropes),
    .plan = cohere2_moe_plan,
    .tiny = cohere2_moe_tiny,
};
