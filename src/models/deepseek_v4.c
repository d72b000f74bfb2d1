/* SPDX-License-Identifier: MIT
 * DeepSeek V4 (Flash, Pro): hyper-connections, attention to a window and to rows made of several
 * tokens each (mixer_rows.c), experts whose scores are the root of a softplus, and which tokens
 * choose in the layers in front (hash_route.c).
 *
 * compress_ratios says of each layer how many tokens make a row: 4 (with an index), 128 (without),
 * 0 (the window alone); transformers writes layer_types and compress_rates. Only layers with such
 * rows are rotated by the scaled table. The module that predicts further tokens (mtp.0) has
 * hyper-connections too: it reads all streams of the model, and its layer a window alone. Tensors
 * are named as on the hub.
 */
#include "base/check.h"
#include "models/desc.h"
#include "models/tables.h"

static const struct sl_model_name names[] = {
    {.id = "deepseek_v4",
     .hf_architecture = "DeepseekV4ForCausalLM",
     .hf_model_type = "deepseek_v4",
     .has = SL_HAS_CHOICE_BIAS | SL_HAS_SINKS},
};

/* clang-format off */
static const struct sl_hparam_desc hparams[] = {
    {NULL, {"hidden_size"}, SL_HP_INT, SL_HP_AT(hidden), .required = true, .min = 1,
     .max = SL_MAX_HIDDEN},
    {NULL, {"num_hidden_layers"}, SL_HP_INT, SL_HP_AT(n_layers), .required = true, .min = 1,
     .max = SL_MAX_LAYERS},
    SL_HPARAM_NEXTN,
    {NULL, {"num_attention_heads"}, SL_HP_INT, SL_HP_AT(n_heads), .required = true, .min = 1,
     .max = SL_MAX_HEADS},
    {NULL, {"num_key_value_heads"}, SL_HP_INT, SL_HP_AT(n_kv_heads), .def = 1, .min = 1, .max = 1},
    {NULL, {"head_dim"}, SL_HP_INT, SL_HP_AT(head_dim), .def = 512, .min = 2,
     .max = SL_MAX_HEAD_DIM},
    {NULL, {"qk_rope_head_dim"}, SL_HP_INT, SL_HP_AT(rope_dims), .min = 2, .max = SL_MAX_HEAD_DIM},
    {NULL, {"max_position_embeddings"}, SL_HP_INT, SL_HP_AT(context), .required = true, .min = 1,
     .max = SL_MAX_CONTEXT},
    {NULL, {"vocab_size"}, SL_HP_INT, SL_HP_AT(n_vocab), .required = true, .min = 1,
     .max = SL_MAX_VOCAB},
    {NULL, {"rms_norm_eps"}, SL_HP_FLOAT, SL_HP_AT(norm_eps), .def = 1e-6, .min = 1e-20, .max = 1},
    {NULL, {"q_lora_rank"}, SL_HP_INT, SL_HP_AT(q_rank), .def = 1024, .min = 1,
     .max = SL_MAX_HIDDEN},
    {NULL, {"o_groups"}, SL_HP_INT, SL_HP_AT(o_groups), .def = 8, .min = 1, .max = SL_MAX_HEADS},
    {NULL, {"o_lora_rank"}, SL_HP_INT, SL_HP_AT(o_rank), .def = 1024, .min = 1,
     .max = SL_MAX_HIDDEN},
    {NULL, {"sliding_window"}, SL_HP_INT, SL_HP_AT(window), .def = 128, .min = 1,
     .max = SL_MAX_CONTEXT},
    {NULL, {"compress_ratios"}, SL_HP_LAYER_INTS, SL_HP_AT(layer_ratios), .hf_def = -1, .min = -1,
     .max = SL_MAX_CONTEXT, .longer = true},
    {NULL, {"layer_types"}, SL_HP_LAYER_KINDS, SL_HP_AT(rows_kinds),
     .words = {NULL, "sliding_attention", "compressed_sparse_attention",
               "heavily_compressed_attention"}},
    {NULL, {"compress_rates.compressed_sparse_attention", "compress_rate_csa"}, SL_HP_INT,
     SL_HP_AT(sparse_ratio), .def = 4, .min = 2, .max = SL_MAX_CONTEXT},
    {NULL, {"compress_rates.heavily_compressed_attention", "compress_rate_hca"}, SL_HP_INT,
     SL_HP_AT(heavy_ratio), .def = 128, .min = 2, .max = SL_MAX_CONTEXT},
    {NULL, {"index_topk"}, SL_HP_INT, SL_HP_AT(index_top), .def = 512, .min = 1,
     .max = SL_MAX_INDEX_TOP},
    {NULL, {"index_n_heads"}, SL_HP_INT, SL_HP_AT(index_heads), .def = 64, .min = 1,
     .max = SL_MAX_HEADS},
    {NULL, {"index_head_dim"}, SL_HP_INT, SL_HP_AT(index_dim), .def = 128, .min = 2,
     .max = SL_MAX_HEAD_DIM},
    {NULL, {"hc_mult"}, SL_HP_INT, SL_HP_AT(n_hyper), .def = 4, .min = 2, .max = SL_MAX_STREAMS},
    {NULL, {"hc_sinkhorn_iters"}, SL_HP_INT, SL_HP_AT(hyper_iters), .def = 20, .min = 1,
     .max = 1000},
    {NULL, {"hc_eps"}, SL_HP_FLOAT, SL_HP_AT(hyper_eps), .def = 1e-6, .min = 1e-20, .max = 1},
    {NULL, {"n_routed_experts", "num_local_experts"}, SL_HP_INT, SL_HP_AT(n_experts),
     .required = true, .min = 1, .max = SL_MAX_EXPERTS},
    {NULL, {"num_experts_per_tok"}, SL_HP_INT, SL_HP_AT(top_experts), .required = true, .min = 1,
     .max = SL_MAX_TOP_EXPERTS},
    {NULL, {"moe_intermediate_size"}, SL_HP_INT, SL_HP_AT(expert_intermediate), .required = true,
     .min = 1, .max = 4 * SL_MAX_HIDDEN},
    {NULL, {"n_shared_experts"}, SL_HP_INT, SL_HP_AT(n_shared_experts), .def = 1, .min = 1,
     .max = 1},
    {NULL, {"routed_scaling_factor"}, SL_HP_FLOAT, SL_HP_AT(expert_scale), .def = 1.5, .min = 1e-6,
     .max = 1e6},
    {NULL, {"num_hash_layers"}, SL_HP_INT, SL_HP_AT(n_hashed), .def = 3, .min = 0,
     .max = SL_MAX_LAYERS},
    {NULL, {"mlp_layer_types"}, SL_HP_LAYER_TYPES, SL_HP_AT(hashed_layers),
     .words = {"moe", "hash_moe"}},
    {NULL, {"scoring_func"}, SL_HP_CHOICE, .value = "sqrtsoftplus"},
    {NULL, {"swiglu_limit"}, SL_HP_FLOAT, SL_HP_AT(swiglu_limit), .def = 10, .min = 1e-3,
     .max = 1e6},
    SL_HPARAM_ONLY("norm_topk_prob", true),
    {NULL, {"hidden_act"}, SL_HP_CHOICE, .value = "silu"},
    SL_HPARAM_TIED(false),
    SL_HPARAM_ONLY("attention_bias", false),
};

#define V4(s, hf_name, r, c)                                                                      \
    {.slot = SL_SLOT_##s, .hf = "model.layers.*." hf_name, .rows = SL_DIM_##r,                    \
     .cols = SL_DIM_##c}
#define V4_ROWS(s, d, hf_name)                                                                    \
    V4(s##_KV, hf_name ".wkv.weight", d##_KV, H),                                                 \
    V4(s##_GATE, hf_name ".wgate.weight", d##_KV, H),                                             \
    {.slot = SL_SLOT_##s##_BIAS, .hf = "model.layers.*." hf_name ".ape", .rows = SL_DIM_##d##_BIAS,\
     .flags = SL_W_FLAT},                                                                         \
    V4(s##_NORM, hf_name ".norm.weight", d, NONE)
#define V4_HYPER(s, hf_name)                                                                      \
    V4(s, hf_name "_fn", HYPER_W, HYPER_H), V4(s##_BASE, hf_name "_base", HYPER_W, NONE),         \
    V4(s##_SCALE, hf_name "_scale", HYPER_SCALES, NONE)
#define V4_EXPERTS(s, w, r, c)                                                                    \
    {.slot = SL_SLOT_EXPERTS_##s, .hf = "model.layers.*.ffn.experts.#." w ".weight",              \
     .rows = SL_DIM_##r, .cols = SL_DIM_##c, .mats = SL_DIM_E}

static const struct sl_weight_desc weights[] = {
    {.slot = SL_SLOT_EMBED, .hf = "embed.weight", .rows = SL_DIM_V, .cols = SL_DIM_H},
    {.slot = SL_SLOT_FINAL_NORM, .hf = "model.norm.weight", .rows = SL_DIM_H},
    {.slot = SL_SLOT_HEAD, .hf = "head.weight", .rows = SL_DIM_V, .cols = SL_DIM_H,
     .when = SL_HAS_HEAD},
    {.slot = SL_SLOT_HYPER_HEAD, .hf = "hc_head_fn", .rows = SL_DIM_HYPER, .cols = SL_DIM_HYPER_H},
    {.slot = SL_SLOT_HYPER_HEAD_BASE, .hf = "hc_head_base", .rows = SL_DIM_HYPER},
    {.slot = SL_SLOT_HYPER_HEAD_SCALE, .hf = "hc_head_scale", .rows = SL_DIM_ONE},
    V4_HYPER(HYPER_ATTN, "hc_attn"),
    V4(ATTN_NORM, "attn_norm.weight", H, NONE),
    V4(MLA_Q_DOWN, "attn.wq_a.weight", MLA_Q_RANK, H),
    V4(MLA_Q_NORM, "attn.q_norm.weight", MLA_Q_RANK, NONE),
    V4(Q, "attn.wq_b.weight", Q, MLA_Q_RANK),
    V4(K, "attn.wkv.weight", K, H),
    V4(K_NORM, "attn.kv_norm.weight", HD, NONE),
    V4(SINKS, "attn.attn_sink", HEADS, NONE),
    {.slot = SL_SLOT_O_DOWN, .hf = "model.layers.*.attn.wo_a.weight", .rows = SL_DIM_O_RANK,
     .cols = SL_DIM_O_IN, .mats = SL_DIM_O_GROUPS},
    V4(O, "attn.wo_b.weight", H, O_LOW),
    V4_ROWS(ROWS, ROWS, "attn.compressor"),
    V4(INDEX_Q, "attn.indexer.wq_b.weight", INDEX_Q, MLA_Q_RANK),
    V4(INDEX_W, "attn.indexer.weights_proj.weight", INDEX_HEADS, H),
    V4_ROWS(INDEX_ROWS, INDEX_ROWS, "attn.indexer.compressor"),
    V4_HYPER(HYPER_FFN, "hc_ffn"),
    V4(FFN_NORM, "ffn_norm.weight", H, NONE),
    V4(ROUTER, "ffn.gate.weight", E, H),
    {.slot = SL_SLOT_CHOICE_BIAS, .hf = "model.layers.*.ffn.gate.bias", .rows = SL_DIM_E,
     .when = SL_HAS_CHOICE_BIAS},
    V4_EXPERTS(GATE, "w1", I, H),
    V4_EXPERTS(UP, "w3", I, H),
    V4_EXPERTS(DOWN, "w2", H, I),
    V4(SHARED_GATE, "ffn.shared_experts.w1.weight", S, H),
    V4(SHARED_UP, "ffn.shared_experts.w3.weight", S, H),
    V4(SHARED_DOWN, "ffn.shared_experts.w2.weight", H, S),
};

#define MTP(s, name, r, c)                                                                        \
    {.slot = SL_SLOT_##s, .hf = "mtp.*." name, .rows = SL_DIM_##r, .cols = SL_DIM_##c}

static const struct sl_weight_desc mtp_weights[] = {
    SL_WEIGHTS_MTP_OF_TARGET,
    MTP(DRAFT_EMBED_NORM, "enorm.weight", H, NONE),
    MTP(DRAFT_HIDDEN_NORM, "hnorm.weight", H, NONE),
    MTP(DRAFT_EMBED_IN, "e_proj.weight", H, H),
    MTP(DRAFT_JOIN, "h_proj.weight", H, H),
    MTP(HYPER_HEAD, "hc_head_fn", HYPER, HYPER_H),
    MTP(HYPER_HEAD_BASE, "hc_head_base", HYPER, NONE),
    MTP(HYPER_HEAD_SCALE, "hc_head_scale", ONE, NONE),
    MTP(FINAL_NORM, "norm.weight", H, NONE),
};
/* clang-format on */

static const struct sl_draft_desc mtp = {.weights = mtp_weights,
                                         .n_weights = SL_COUNT(mtp_weights),
                                         .hf_layers = "mtp.*.",
                                         .experts = SL_LAYER_ON};

static const struct sl_rope_desc ropes[] = {
    {.kind = "main",
     .hf_theta = "rope_theta",
     .theta = 10000,
     .pairing = SL_ROPE_INTERLEAVED,
     .partial = 0.125},
    {.kind = "compress",
     .hf_theta = "compress_rope_theta",
     .theta = 160000,
     .scaled = true,
     .pairing = SL_ROPE_INTERLEAVED,
     .plain_factor = true,
     .partial = 0.125},
};

/* Which rows a layer has, as enum sl_rows_kind. */
static int v4_kind(const struct sl_hparams *hp, int32_t idx)
{
    const int32_t listed = hp->layer_ratios[idx];
    if (hp->rows_kinds[idx] != SL_ROWS_BY_INDEX)
        return hp->rows_kinds[idx];
    if (listed > 0)
        return listed == hp->sparse_ratio ? SL_ROWS_SPARSE : SL_ROWS_HEAVY;
    if (listed == 0)
        return SL_ROWS_NONE;
    return idx < 2 || idx % 2 == 0 ? SL_ROWS_HEAVY : SL_ROWS_SPARSE; /* as Pro has them */
}

static int v4_check(const struct sl_hparams *hp, struct sl_error *err)
{
    if (hp->n_heads % hp->o_groups != 0)
        return sl_fail(err, SL_EFORMAT,
                       "config.json: num_attention_heads (%d) is not a multiple of o_groups (%d)",
                       hp->n_heads, hp->o_groups);
    if (hp->index_dim < hp->ropes[1].n_dims)
        return sl_fail(err, SL_EFORMAT,
                       "config.json: index_head_dim is %d, must be at least the %d rotated "
                       "dimensions of a head",
                       hp->index_dim, hp->ropes[1].n_dims);
    for (int32_t i = 0; i < hp->n_layers; i++)
        if (hp->layer_ratios[i] > 0 && hp->layer_ratios[i] != hp->sparse_ratio &&
            hp->layer_ratios[i] != hp->heavy_ratio)
            return sl_fail(err, SL_EUNSUPPORTED,
                           "config.json: compress_ratios[%d] is %d, must be 0, %d or %d", i,
                           hp->layer_ratios[i], hp->sparse_ratio, hp->heavy_ratio);
    return 0;
}

static void v4_layer(const struct sl_hparams *hp, int32_t idx, struct sl_layer_desc *l)
{
    const int kind = v4_kind(hp, idx);
    const bool sparse = kind == SL_ROWS_SPARSE;
    l->mixer = SL_MIX_ROWS;
    l->rows.ratio = kind == SL_ROWS_NONE ? 0 : sparse ? hp->sparse_ratio : hp->heavy_ratio;
    l->rows.overlap = sparse;
    l->rows.o_groups = hp->o_groups;
    l->rows.o_rank = hp->o_rank;
    l->mla = (struct sl_mla_desc){
        .q_rank = hp->q_rank, .rope_dim = hp->ropes[0].n_dims, .norm_eps = (float)hp->norm_eps};
    if (l->mla.rope_dim == 0)
        l->mla.rope_dim = hp->head_dim;
    l->qk_norm = SL_QK_NORM_NONE; /* the mixer's own */
    l->window = hp->window;
    l->rope = l->rows.ratio > 0 ? 1 : 0;
    if (sparse)
        l->index = (struct sl_index_desc){
            .top_k = hp->index_top, .n_heads = hp->index_heads, .dim = hp->index_dim};
    l->hashed = hp->hashed_layers[idx] == SL_LAYER_BY_INDEX ? idx < hp->n_hashed
                                                            : hp->hashed_layers[idx] == SL_LAYER_ON;
    if (l->hashed)
        l->has &= ~(unsigned)SL_HAS_CHOICE_BIAS;
    l->route.renormalize = true;
    l->swiglu = l->mlp_swiglu = (struct sl_swiglu){.limit = (float)hp->swiglu_limit, .alpha = 1};
}

static int deepseek_v4_plan(const struct sl_model_name *name, const struct sl_hparams *hp,
                            struct sl_layer_desc *layers, struct sl_error *err)
{
    (void)name;
    int rc = v4_check(hp, err);
    if (rc == 0)
        rc = sl_plan_experts(hp, SL_ROUTE_ROOT_SOFTPLUS, 1e-20f, layers, err);
    for (int32_t i = 0; i < hp->n_layers && rc == 0; i++)
        v4_layer(hp, i, &layers[i]);
    return rc;
}

static void deepseek_v4_tiny(const struct sl_model_name *name, struct sl_hparams *hp)
{
    *hp = (struct sl_hparams){
        .hidden = 64,
        .n_layers = 5,
        .n_heads = 4,
        .n_kv_heads = 1,
        .head_dim = 48,
        .rope_dims = 16,
        .q_rank = 96,
        .o_groups = 2,
        .o_rank = 40,
        .n_vocab = 320,
        .context = 512,
        .norm_eps = 1e-6,
        .has = name->has | SL_HAS_HEAD,
        .ropes = {{.theta = 10000, .n_dims = 16}, {.theta = 160000, .n_dims = 16}},
        .window = 24,
        .rows_kinds = {SL_ROWS_NONE, SL_ROWS_SPARSE, SL_ROWS_HEAVY, SL_ROWS_SPARSE, SL_ROWS_HEAVY},
        .sparse_ratio = 4,
        .heavy_ratio = 20,
        .index_top = 6,
        .index_heads = 20,
        .index_dim = 40,
        .n_hyper = 4,
        .hyper_iters = 20,
        .hyper_eps = 1e-6,
        .n_experts = 8,
        .top_experts = 3,
        .expert_intermediate = 96,
        .n_shared_experts = 1,
        .expert_scale = 1.5,
        .hashed_layers = {SL_LAYER_ON, SL_LAYER_ON, SL_LAYER_OFF, SL_LAYER_OFF, SL_LAYER_OFF},
        .swiglu_limit = 10,
    };
}

const struct sl_model_desc sl_model_deepseek_v4 = {
    .id = "deepseek_v4",
    SL_MODEL_TABLES,
    SL_MODEL_ROPES(ropes),
    .mtp = &mtp,
    .plan = deepseek_v4_plan,
    .tiny = deepseek_v4_tiny,
};
