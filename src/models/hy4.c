/* SPDX-License-Identifier: MIT
 * Hunyuan 4: latent attention with sinks, a gate of its output and an index (DSA), whose choice
 * layers may share, and hyper-connections around each sublayer. Streams are not mixed there
 * (sl_hparams.hyper_post). Everything is rotated in halves; of the index' queries and keys these
 * are the last dimensions, not the first. Only experts have a limit of their gates and ups, not the
 * shared one and dense layers.
 *
 * Names are those of the hub's files. transformers drops "hc_pre." on reading, so that files
 * without it are read as well.
 */
#include "base/check.h"
#include "models/desc.h"
#include "models/tables.h"

static const struct sl_model_name names[] = {
    {.id = "hy_v4",
     .hf_architecture = "HYV4ForCausalLM",
     .hf_model_type = "hy_v4",
     .has = SL_HAS_CHOICE_BIAS | SL_HAS_K | SL_HAS_OUT_GATE | SL_HAS_SINKS},
};

/* clang-format off */
static const struct sl_hparam_desc hparams[] = {
    SL_HPARAMS_DEEPSEEK,
    {NULL, {"index_topk"}, SL_HP_INT, SL_HP_AT(index_top), .def = 2048, .min = 1,
     .max = SL_MAX_INDEX_TOP},
    {NULL, {"index_n_heads"}, SL_HP_INT, SL_HP_AT(index_heads), .def = 16, .min = 1,
     .max = SL_MAX_HEADS},
    {NULL, {"index_head_dim"}, SL_HP_INT, SL_HP_AT(index_dim), .def = 128, .min = 2,
     .max = SL_MAX_HEAD_DIM},
    {NULL, {"indexer_types"}, SL_HP_LAYER_KINDS, SL_HP_AT(index_layers),
     .words = {NULL, "shared", "full"}},
    {NULL, {NULL}, SL_HP_INT, SL_HP_AT(index_step), .def = 4}, /* without such a list */
    {NULL, {NULL}, SL_HP_INT, SL_HP_AT(index_offset), .def = 2},
    SL_HPARAM_NORM_TOP_EXPERTS(true),
    {NULL, {"first_k_dense_replace"}, SL_HP_INT, SL_HP_AT(n_dense), .def = 1, .min = 0,
     .max = SL_MAX_LAYERS},
    SL_HPARAM_MLP_TYPES,
    {NULL, {"n_group"}, SL_HP_INT, SL_HP_AT(n_expert_groups), .def = 1, .min = 1, .max = 1},
    {NULL, {"topk_group"}, SL_HP_INT, SL_HP_AT(top_expert_groups), .def = 1, .min = 1, .max = 1},
    {NULL, {"routed_scaling_factor"}, SL_HP_FLOAT, SL_HP_AT(expert_scale), .hf_def = 2.827,
     .min = 0, .max = 1e6},
    {NULL, {"n_shared_experts"}, SL_HP_INT, SL_HP_AT(n_shared_experts), .def = 1, .min = 1,
     .max = 64},
    {NULL, {"swiglu_limit"}, SL_HP_FLOAT, SL_HP_AT(swiglu_limit), .hf_def = 10, .min = 0,
     .max = 1e6},
    {NULL, {"hc_mult"}, SL_HP_INT, SL_HP_AT(n_hyper), .def = 4, .min = 2, .max = SL_MAX_STREAMS},
    {NULL, {"hc_magnitude"}, SL_HP_FLOAT, SL_HP_AT(hyper_post), .def = 2, .min = 1e-6, .max = 1e6},
    {NULL, {"hc_eps"}, SL_HP_FLOAT, SL_HP_AT(hyper_eps), .def = 1e-6, .min = 1e-20, .max = 1},
    SL_HPARAM_ACT(SL_ACT_SILU),
    SL_HPARAM_TIED(false),
    SL_HPARAM_ONLY("attention_bias", false),
};

/* `name` alone, or behind "hc_pre.". */
#define HY4_HYPER_ONE(s, stem, name, r, c)                                                        \
    {.slot = SL_SLOT_##s, .hf = stem ".hc_pre." name, .hf_fused = stem "." name,                  \
     .rows = SL_DIM_##r, .cols = SL_DIM_##c, .fused = {SL_DIM_##r}}
#define HY4_HYPER(s, stem)                                                                        \
    HY4_HYPER_ONE(s, stem, "hc_fn", HYPER_W, HYPER_H),                                            \
    HY4_HYPER_ONE(s##_BASE, stem, "hc_base", HYPER_W, NONE),                                      \
    HY4_HYPER_ONE(s##_SCALE, stem, "hc_scale", HYPER_SCALES, NONE)

static const struct sl_weight_desc weights[] = {
    SL_WEIGHTS_DEEPSEEK,
    SL_WEIGHTS_INDEX,
    SL_W_LAYER(OUT_GATE, "self_attn.linear_gate.weight", "attn_gate.weight", ATT, H, NONE),
     .when = SL_HAS_OUT_GATE},
    SL_W_LAYER(SINKS, "self_attn.learnable_sink_param", "attn_sinks.weight", HEADS, NONE, NONE),
     .when = SL_HAS_SINKS},
    HY4_HYPER(HYPER_ATTN, "model.layers.*.hc_attn_layer"),
    HY4_HYPER(HYPER_FFN, "model.layers.*.hc_mlp_layer"),
    HY4_HYPER_ONE(HYPER_HEAD, "model.hc_head", "hc_head_fn", HYPER, HYPER_H),
    HY4_HYPER_ONE(HYPER_HEAD_BASE, "model.hc_head", "hc_head_base", HYPER, NONE),
    HY4_HYPER_ONE(HYPER_HEAD_SCALE, "model.hc_head", "hc_head_scale", ONE, NONE),
};
/* clang-format on */

static const struct sl_rope_desc ropes[] = {
    {.hf_theta = "rope_theta",
     .theta = 10000,
     .scaled = true,
     .pairing = SL_ROPE_HALF,
     .partial = 1},
};

static int hy4_plan(const struct sl_model_name *name, const struct sl_hparams *hp,
                    struct sl_layer_desc *layers, struct sl_error *err)
{
    (void)name;
    int rc = sl_plan_experts(hp, SL_ROUTE_SIGMOID, 1e-20f, layers, err);
    for (int32_t i = 0; i < hp->n_layers && rc == 0; i++) {
        sl_plan_mla(hp, &layers[i]);
        layers[i].swiglu = (struct sl_swiglu){.limit = (float)hp->swiglu_limit, .alpha = 1};
    }
    if (rc == 0)
        rc = sl_plan_index(hp, SL_ROPE_HALF, layers, err);
    for (int32_t i = 0; i < hp->n_layers && rc == 0; i++) {
        struct sl_index_desc *x = &layers[i].index;
        x->norm_eps = (float)hp->norm_eps;
        x->rope_from = SL_MAX(x->dim - hp->rope_dims, 0);
    }
    return rc;
}

static void hy4_tiny(const struct sl_model_name *name, struct sl_hparams *hp)
{
    *hp = (struct sl_hparams){
        .hidden = 64,
        .intermediate = 160,
        .n_layers = 4,
        .n_heads = 4,
        .n_kv_heads = 1,
        .head_dim = 32 + 16,
        .q_rank = 96,
        .kv_rank = 64,
        .nope_dim = 32,
        .rope_dims = 16,
        .value_dim = 24,
        .n_vocab = 320,
        .context = 512,
        .norm_eps = 1e-5,
        .has = name->has | SL_HAS_HEAD,
        .ropes = {{.theta = 10000, .n_dims = 16}},
        .index_top = 24,
        .index_heads = 20,
        .index_dim = 40,
        .n_experts = 8,
        .top_experts = 3,
        .expert_intermediate = 96,
        .norm_top_experts = true,
        .expert_scale = 2.827,
        .n_dense = 1,
        .n_shared_experts = 1,
        .swiglu_limit = 0.7,
        .n_hyper = 3,
        .hyper_post = 1.5,
        .hyper_eps = 1e-6,
    };
    for (int32_t i = 0; i < hp->n_layers; i++)
        hp->index_layers[i] = i % 2 != 0 ? SL_LAYER_OFF : SL_LAYER_ON;
}

const struct sl_model_desc sl_model_hy4 = {
    .id = "hy4",
    SL_MODEL_TABLES,
    SL_MODEL_ROPES(ropes),
    .plan = hy4_plan,
    .tiny = hy4_tiny,
};
