/* SPDX-License-Identifier: MIT
 * MiniMax M3, its model of text: some layers have an index that chooses which blocks of positions a
 * row sees, for each key head by itself (mixer_index.c). q and k are normed by head and partly
 * rotated, norms are 1 + w, gates and ups are limited everywhere, dense layers stand in front,
 * experts are chosen by sigmoid and a bias beside a shared one.
 *
 * The hub's config.json says what the index is in an object of its own, and which layers have one
 * in a list of 0 and 1; transformers writes both flat. The checkpoint is of a model that also reads
 * images, which is not loaded.
 */
#include "base/check.h"
#include "models/desc.h"
#include "models/tables.h"

#define MINIMAX_M3_HAS (SL_HAS_QK_NORM | SL_HAS_CHOICE_BIAS)

static const struct sl_model_name names[] = {
    {.id = "minimax_m3",
     .hf_architecture = "MiniMaxM3SparseForConditionalGeneration",
     .hf_model_type = "minimax_m3_vl",
     .has = MINIMAX_M3_HAS,
     .head_dim = 128,
     .hf_config = "text_config"},
    {.id = "minimax_m3-text",
     .hf_architecture = "MiniMaxM3VLForCausalLM",
     .hf_model_type = "minimax_m3_vl_text",
     .has = MINIMAX_M3_HAS,
     .head_dim = 128},
};

/* clang-format off */
#define SPARSE(key) "sparse_attention_config." key

static const struct sl_hparam_desc hparams[] = {
    SL_HPARAMS_BLOCKS,
    SL_HPARAMS_EXPERTS,
    {NULL, {"dense_intermediate_size"}, SL_HP_INT, SL_HP_AT(dense_intermediate), .hf_def = 12288,
     .min = 1, .max = 4 * SL_MAX_HIDDEN},
    {NULL, {"shared_intermediate_size"}, SL_HP_INT, SL_HP_AT(shared_intermediate), .hf_def = 3072,
     .min = 1, .max = 4 * SL_MAX_HIDDEN},
    {NULL, {"n_shared_experts"}, SL_HP_INT, SL_HP_AT(n_shared_experts), .def = 1, .min = 1,
     .max = 1},
    {NULL, {"routed_scaling_factor"}, SL_HP_FLOAT, SL_HP_AT(expert_scale), .hf_def = 2,
     .min = 1e-6, .max = 1e6},
    SL_HPARAM_MLP_TYPES,
    {NULL, {"moe_layer_freq"}, SL_HP_LAYER_FLAGS, SL_HP_AT(mlp_types)},
    {NULL, {"swiglu_limit"}, SL_HP_FLOAT, SL_HP_AT(swiglu_limit), .def = 7, .min = 1e-3,
     .max = 1e6},
    {NULL, {"swiglu_alpha"}, SL_HP_FLOAT, SL_HP_AT(swiglu_alpha), .def = 1.702, .min = 1e-3,
     .max = 1e3},
    {.hf = {"hidden_act"}, .type = SL_HP_EITHER, SL_HP_AT(oai_act), .words = {"silu", "swigluoai"}},
    {NULL, {"index_topk_blocks", SPARSE("sparse_topk_blocks")}, SL_HP_INT, SL_HP_AT(index_top),
     .def = 16, .min = 1, .max = SL_MAX_INDEX_TOP / SL_INDEX_BLOCK},
    {NULL, {"index_n_heads", SPARSE("sparse_num_index_heads")}, SL_HP_INT, SL_HP_AT(index_heads),
     .def = 4, .min = 1, .max = SL_MAX_HEADS},
    {NULL, {"index_head_dim", SPARSE("sparse_index_dim")}, SL_HP_INT, SL_HP_AT(index_dim),
     .def = 128, .min = 2, .max = SL_MAX_HEAD_DIM},
    {NULL, {"index_block_size", SPARSE("sparse_block_size")}, SL_HP_INT, SL_HP_AT(index_block),
     .def = 128, .min = 1, .max = SL_MAX_CONTEXT},
    {NULL, {"index_local_blocks", SPARSE("sparse_local_block")}, SL_HP_INT, SL_HP_AT(index_local),
     .def = 1, .min = 1, .max = SL_MAX_INDEX_TOP},
    {NULL, {SPARSE("sparse_init_block")}, SL_HP_INT, SL_HP_AT(index_first), .min = 0, .max = 0},
    {NULL, {SPARSE("sparse_score_type")}, SL_HP_CHOICE, .value = "max"},
    {NULL, {"layer_types"}, SL_HP_LAYER_TYPES, SL_HP_AT(index_layers),
     .words = {"full_attention", "minimax_m3_sparse"}},
    {NULL, {SPARSE("sparse_attention_freq")}, SL_HP_LAYER_FLAGS, SL_HP_AT(index_layers)},
    {NULL, {"scoring_func"}, SL_HP_CHOICE, .value = "sigmoid"},
    {NULL, {"qk_norm_type"}, SL_HP_CHOICE, .value = "per_head"},
    SL_HPARAM_ONLY("use_gemma_norm", true),
    SL_HPARAM_ONLY("use_qk_norm", true),
    SL_HPARAM_ONLY("use_routing_bias", true),
    SL_HPARAM_TIED(false),
};

static const struct sl_weight_desc weights[] = {
    SL_WEIGHTS_EMBED_AND_HEAD_PLUS_ONE,
    SL_W_LAYER(ATTN_NORM, "input_layernorm.weight", "attn_norm.weight", H, NONE, NONE),
     .flags = SL_W_PLUS_ONE},
    SL_WEIGHTS_GQA,
    SL_W_LAYER(Q_NORM, "self_attn.q_norm.weight", "attn_q_norm.weight", HD, NONE, NONE),
     .flags = SL_W_PLUS_ONE},
    SL_W_LAYER(K_NORM, "self_attn.k_norm.weight", "attn_k_norm.weight", HD, NONE, NONE),
     .flags = SL_W_PLUS_ONE},
    SL_W_LAYER(INDEX_Q, "self_attn.index_q_proj.weight", "indexer.q_proj.weight", INDEX_Q, H,
               NONE)},
    SL_W_LAYER(INDEX_K, "self_attn.index_k_proj.weight", "indexer.k_proj.weight", INDEX_K, H,
               NONE)},
    SL_W_LAYER(INDEX_Q_NORM, "self_attn.index_q_norm.weight", "indexer.q_norm.weight", INDEX_K,
               NONE, NONE), .flags = SL_W_PLUS_ONE},
    SL_W_LAYER(INDEX_K_NORM, "self_attn.index_k_norm.weight", "indexer.k_norm.weight", INDEX_K,
               NONE, NONE), .flags = SL_W_PLUS_ONE},
    SL_W_LAYER(FFN_NORM, "post_attention_layernorm.weight", "ffn_norm.weight", H, NONE, NONE),
     .flags = SL_W_PLUS_ONE},
    SL_WEIGHTS_EXPERTS_W123("block_sparse_moe"),
    SL_WEIGHT_CHOICE_BIAS("block_sparse_moe.e_score_correction_bias"),
    SL_WEIGHTS_SHARED("block_sparse_moe.shared_experts"),
    SL_WEIGHTS_FFN_DENSE,
};
/* clang-format on */

static const struct sl_rope_desc ropes[] = {
    {.hf_theta = "rope_theta",
     .gguf_theta = "rope.freq_base",
     .theta = 5000000,
     .scaled = true,
     .partial = 0.5},
};

static int minimax_m3_plan(const struct sl_model_name *name, const struct sl_hparams *hp,
                           struct sl_layer_desc *layers, struct sl_error *err)
{
    const struct sl_swiglu limited = {
        .limit = (float)hp->swiglu_limit, .alpha = (float)hp->swiglu_alpha, .up_plus = 1};
    (void)name;
    int rc = sl_plan_experts(hp, SL_ROUTE_SIGMOID, 1e-20f, layers, err);
    for (int32_t i = 0; i < hp->n_layers && rc == 0; i++) {
        layers[i].route.renormalize = true;
        layers[i].swiglu = layers[i].mlp_swiglu = limited;
    }
    return rc == 0 ? sl_plan_index_blocks(hp, layers, err) : rc;
}

static void minimax_m3_tiny(const struct sl_model_name *name, struct sl_hparams *hp)
{
    *hp = (struct sl_hparams){
        .hidden = 64,
        .intermediate = 96,
        .n_layers = 3,
        .n_heads = 6,
        .n_kv_heads = 2,
        .head_dim = 32,
        .n_vocab = 320,
        .context = 512,
        .norm_eps = 1e-6,
        .has = name->has | SL_HAS_HEAD,
        .ropes = {{.theta = 5000000, .n_dims = 16}},
        .n_experts = 7,
        .top_experts = 3,
        .expert_scale = 2,
        .dense_intermediate = 160,
        .shared_intermediate = 128,
        .n_shared_experts = 1,
        .swiglu_limit = 7,
        .swiglu_alpha = 1.702,
        .index_top = 2,
        .index_heads = 2,
        .index_dim = 24,
        .index_block = 16,
        .index_local = 1,
    };
    for (int32_t i = 0; i < hp->n_layers; i++)
        hp->mlp_types[i] = hp->index_layers[i] = i > 0 ? SL_LAYER_ON : SL_LAYER_OFF;
}

const struct sl_model_desc sl_model_minimax_m3 = {
    .id = "minimax_m3",
    SL_MODEL_TABLES,
    SL_MODEL_ROPES(ropes),
    .plan = minimax_m3_plan,
    .tiny = minimax_m3_tiny,
};
