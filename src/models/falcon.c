/* SPDX-License-Identifier: MIT
 * Falcon 7B, 11B, 40B and 180B (Falcon 3 is a Llama): norms with a mean and a bias, an MLP without
 * a gate, both sublayers read the same stream. 7B has one norm for both and one key head; the
 * larger ones (new_decoder_architecture) have groups of heads and mostly a norm for each. q, k and
 * v are one tensor, group by group.
 */
#include "base/check.h"
#include "models/desc.h"
#include "models/tables.h"

static const struct sl_model_name names[] = {
    {.id = "falcon", .hf_architecture = "FalconForCausalLM", .hf_model_type = "falcon"},
};

/* clang-format off */
static const struct sl_hparam_desc hparams[] = {
    {NULL, {"hidden_size", "n_embed"}, SL_HP_INT, SL_HP_AT(hidden), .required = true, .min = 1,
     .max = SL_MAX_HIDDEN},
    {NULL, {"ffn_hidden_size"}, SL_HP_INT, SL_HP_AT(intermediate), .min = 1,
     .max = 4 * SL_MAX_HIDDEN},
    {NULL, {"num_hidden_layers", "n_layer"}, SL_HP_INT, SL_HP_AT(n_layers), .required = true,
     .min = 1, .max = SL_MAX_LAYERS},
    {NULL, {"num_attention_heads", "n_head"}, SL_HP_INT, SL_HP_AT(n_heads), .required = true,
     .min = 1, .max = SL_MAX_HEADS},
    {NULL, {"num_kv_heads", "n_head_kv"}, SL_HP_INT, SL_HP_AT(n_kv_heads), .min = 1,
     .max = SL_MAX_HEADS},
    {NULL, {"new_decoder_architecture"}, SL_HP_BOOL, SL_HP_AT(grouped_heads)},
    {NULL, {"multi_query"}, SL_HP_BOOL, SL_HP_AT(one_key_head), .def = true},
    {NULL, {"num_ln_in_parallel_attn"}, SL_HP_INT, SL_HP_AT(n_norms), .min = 1, .max = 2},
    SL_HPARAM_ONLY("parallel_attn", true),
    SL_HPARAM_ONLY("alibi", false),
    {NULL, {"max_position_embeddings"}, SL_HP_INT, SL_HP_AT(context), .required = true,
     .hf_def = 2048, .min = 1, .max = SL_MAX_CONTEXT},
    {NULL, {"vocab_size"}, SL_HP_INT, SL_HP_AT(n_vocab), .required = true, .min = 1,
     .max = SL_MAX_VOCAB},
    {NULL, {"layer_norm_epsilon"}, SL_HP_FLOAT, SL_HP_AT(norm_eps), .def = 1e-5, .min = 1e-20,
     .max = 1},
    {NULL, {"activation"}, SL_HP_ACT, SL_HP_AT(act), .def = SL_ACT_GELU_ERF},
    {NULL, {"bias"}, SL_HP_HAS,
     .has = SL_HAS_QKV_BIAS | SL_HAS_O_BIAS | SL_HAS_MLP_BIAS},
    SL_HPARAM_TIED(true),
};

#define FALCON "transformer.h.*."
#define FALCON_PART(s, end, r, c, how, idx)                                                        \
    {.slot = SL_SLOT_##s, .hf_fused = FALCON "self_attention.query_key_value" end,                 \
     .rows = SL_DIM_##r, .cols = SL_DIM_##c, .shard = SL_SHARD_##how, .part = idx,                 \
     .fused = {SL_DIM_Q, SL_DIM_K, SL_DIM_VALUES}, .turns = SL_DIM_KV_HEADS,                   \
     .flags = SL_W_FOLDER_TURNS
#define FALCON_LAYER(s, name, r, c, how)                                                           \
    {.slot = SL_SLOT_##s, .hf = FALCON name, .rows = SL_DIM_##r, .cols = SL_DIM_##c,               \
     .shard = SL_SHARD_##how

static const struct sl_weight_desc weights[] = {
    {.slot = SL_SLOT_EMBED, .hf = "transformer.word_embeddings.weight", .rows = SL_DIM_V,
     .cols = SL_DIM_H},
    {.slot = SL_SLOT_FINAL_NORM, .hf = "transformer.ln_f.weight", .rows = SL_DIM_H},
    {.slot = SL_SLOT_FINAL_NORM_BIAS, .hf = "transformer.ln_f.bias", .rows = SL_DIM_H},
    {.slot = SL_SLOT_HEAD, .hf = "lm_head.weight", .rows = SL_DIM_V, .cols = SL_DIM_H,
     .shard = SL_SHARD_ROWS, .when = SL_HAS_HEAD},
    /* ln_attn: where the MLP has a norm of its own */
    FALCON_LAYER(ATTN_NORM, "input_layernorm.weight", H, NONE, NONE),
     .hf_fused = FALCON "ln_attn.weight", .fused = {SL_DIM_H}},
    FALCON_LAYER(ATTN_NORM_BIAS, "input_layernorm.bias", H, NONE, NONE),
     .hf_fused = FALCON "ln_attn.bias", .fused = {SL_DIM_H}},
    FALCON_LAYER(FFN_NORM, "ln_mlp.weight", H, NONE, NONE), .when = SL_HAS_FFN_NORM},
    FALCON_LAYER(FFN_NORM_BIAS, "ln_mlp.bias", H, NONE, NONE), .when = SL_HAS_FFN_NORM},
    FALCON_PART(Q, ".weight", Q, H, HEADS, 0)},
    FALCON_PART(K, ".weight", K, H, KV_HEADS, 1)},
    FALCON_PART(V, ".weight", VALUES, H, KV_HEADS, 2)},
    FALCON_PART(Q_BIAS, ".bias", Q, NONE, HEADS, 0), .when = SL_HAS_QKV_BIAS},
    FALCON_PART(K_BIAS, ".bias", K, NONE, KV_HEADS, 1), .when = SL_HAS_QKV_BIAS},
    FALCON_PART(V_BIAS, ".bias", VALUES, NONE, KV_HEADS, 2), .when = SL_HAS_QKV_BIAS},
    FALCON_LAYER(O, "self_attention.dense.weight", H, ATT, ROWS)},
    FALCON_LAYER(O_BIAS, "self_attention.dense.bias", H, NONE, ROWS), .when = SL_HAS_O_BIAS},
    FALCON_LAYER(UP, "mlp.dense_h_to_4h.weight", I, H, ROWS)},
    FALCON_LAYER(UP_BIAS, "mlp.dense_h_to_4h.bias", I, NONE, ROWS), .when = SL_HAS_MLP_BIAS},
    FALCON_LAYER(DOWN, "mlp.dense_4h_to_h.weight", H, I, ROWS)},
    FALCON_LAYER(DOWN_BIAS, "mlp.dense_4h_to_h.bias", H, NONE, ROWS), .when = SL_HAS_MLP_BIAS},
};
/* clang-format on */

static int falcon_plan(const struct sl_model_name *name, const struct sl_hparams *hp,
                       struct sl_layer_desc *layers, struct sl_error *err)
{
    (void)name;
    (void)err;
    const bool own_norms = hp->grouped_heads && hp->n_norms != 1;
    for (int32_t i = 0; i < hp->n_layers; i++) {
        layers[i].norm = SL_NORM_LAYER;
        layers[i].parallel = true;
        layers[i].ffn = SL_FFN_PLAIN;
        layers[i].has |= own_norms ? SL_HAS_FFN_NORM : 0;
        if (!hp->grouped_heads && hp->one_key_head)
            layers[i].n_kv_heads = 1;
        if (hp->intermediate == 0)
            layers[i].intermediate = 4 * hp->hidden;
    }
    return 0;
}

static void falcon_tiny(const struct sl_model_name *name, struct sl_hparams *hp)
{
    *hp = (struct sl_hparams){
        .hidden = 64,
        .intermediate = 160,
        .n_layers = 2,
        .n_heads = 4,
        .n_kv_heads = 2,
        .head_dim = 16,
        .n_vocab = 320,
        .context = 512,
        .norm_eps = 1e-5,
        .has = name->has,
        .act = SL_ACT_GELU_ERF,
        .grouped_heads = true,
        .one_key_head = true,
        .n_norms = 2,
        .ropes = {{.theta = 10000}},
    };
}

const struct sl_model_desc sl_model_falcon = {
    .id = "falcon",
    SL_MODEL_TABLES,
    SL_MODEL_ROPES(sl_rope_one),
    .plan = falcon_plan,
    .tiny = falcon_tiny,
};
