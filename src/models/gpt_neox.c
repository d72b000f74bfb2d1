/* SPDX-License-Identifier: MIT
 * GPT-NeoX: Pythia, GPT-NeoX-20B, Dolly 2. Norms have a mean and a bias, a quarter of each head is
 * rotated, the MLP has no gate, and attention and MLP read the same stream, each by its own norm.
 * q, k and v are one tensor, head by head.
 */
#include "base/check.h"
#include "models/desc.h"
#include "models/tables.h"

static const struct sl_model_name names[] = {
    {.id = "gpt_neox",
     .hf_architecture = "GPTNeoXForCausalLM",
     .hf_model_type = "gpt_neox",
     .gguf_architecture = "gptneox",
     .has = SL_HAS_MLP_BIAS},
};

/* clang-format off */
static const struct sl_hparam_desc hparams[] = {
    SL_HPARAMS_TRANSFORMER_LAYERNORM,
    SL_HPARAM_ACT(SL_ACT_GELU_ERF),
    SL_HPARAM_TIED(false),
    {"use_parallel_residual", {"use_parallel_residual"}, SL_HP_BOOL, SL_HP_AT(parallel),
     .def = true},
    {NULL, {"attention_bias"}, SL_HP_HAS, .has = SL_HAS_QKV_BIAS | SL_HAS_O_BIAS, .def = true},
};

#define NEOX "gpt_neox.layers.*."
#define NEOX_PART(s, end, r, c, how, idx)                                                          \
    {.slot = SL_SLOT_##s, .hf_fused = NEOX "attention.query_key_value" end,                        \
     .gguf_fused = "blk.*.attn_qkv" end, .rows = SL_DIM_##r, .cols = SL_DIM_##c,                   \
     .shard = SL_SHARD_##how, .part = idx, .fused = {SL_DIM_Q, SL_DIM_K, SL_DIM_VALUES}
#define NEOX_LAYER(s, name, gguf_name, r, c, how)                                                  \
    {.slot = SL_SLOT_##s, .hf = NEOX name, .gguf = "blk.*." gguf_name, .rows = SL_DIM_##r,         \
     .cols = SL_DIM_##c, .shard = SL_SHARD_##how

static const struct sl_weight_desc weights[] = {
    {.slot = SL_SLOT_EMBED, .hf = "gpt_neox.embed_in.weight", .gguf = "token_embd.weight",
     .rows = SL_DIM_V, .cols = SL_DIM_H},
    {.slot = SL_SLOT_FINAL_NORM, .hf = "gpt_neox.final_layer_norm.weight",
     .gguf = "output_norm.weight", .rows = SL_DIM_H},
    {.slot = SL_SLOT_FINAL_NORM_BIAS, .hf = "gpt_neox.final_layer_norm.bias",
     .gguf = "output_norm.bias", .rows = SL_DIM_H},
    /* transformers 5 calls it as others do */
    {.slot = SL_SLOT_HEAD, .hf = "embed_out.weight", .hf_fused = "lm_head.weight",
     .fused = {SL_DIM_V}, .gguf = "output.weight", .rows = SL_DIM_V, .cols = SL_DIM_H,
     .shard = SL_SHARD_ROWS, .when = SL_HAS_HEAD},
    NEOX_LAYER(ATTN_NORM, "input_layernorm.weight", "attn_norm.weight", H, NONE, NONE)},
    NEOX_LAYER(ATTN_NORM_BIAS, "input_layernorm.bias", "attn_norm.bias", H, NONE, NONE)},
    NEOX_LAYER(FFN_NORM, "post_attention_layernorm.weight", "ffn_norm.weight", H, NONE, NONE)},
    NEOX_LAYER(FFN_NORM_BIAS, "post_attention_layernorm.bias", "ffn_norm.bias", H, NONE, NONE)},
    NEOX_PART(Q, ".weight", Q, H, HEADS, 0), .turns = SL_DIM_KV_HEADS,
     .flags = SL_W_FOLDER_TURNS},
    NEOX_PART(K, ".weight", K, H, KV_HEADS, 1), .turns = SL_DIM_KV_HEADS,
     .flags = SL_W_FOLDER_TURNS},
    NEOX_PART(V, ".weight", VALUES, H, KV_HEADS, 2), .turns = SL_DIM_KV_HEADS,
     .flags = SL_W_FOLDER_TURNS},
    NEOX_PART(Q_BIAS, ".bias", Q, NONE, HEADS, 0), .turns = SL_DIM_KV_HEADS,
     .flags = SL_W_FOLDER_TURNS,
     .when = SL_HAS_QKV_BIAS},
    NEOX_PART(K_BIAS, ".bias", K, NONE, KV_HEADS, 1), .turns = SL_DIM_KV_HEADS,
     .flags = SL_W_FOLDER_TURNS,
     .when = SL_HAS_QKV_BIAS},
    NEOX_PART(V_BIAS, ".bias", VALUES, NONE, KV_HEADS, 2), .turns = SL_DIM_KV_HEADS,
     .flags = SL_W_FOLDER_TURNS,
     .when = SL_HAS_QKV_BIAS},
    NEOX_LAYER(O, "attention.dense.weight", "attn_output.weight", H, ATT, ROWS)},
    NEOX_LAYER(O_BIAS, "attention.dense.bias", "attn_output.bias", H, NONE, ROWS),
     .when = SL_HAS_O_BIAS},
    NEOX_LAYER(UP, "mlp.dense_h_to_4h.weight", "ffn_up.weight", I, H, ROWS)},
    NEOX_LAYER(UP_BIAS, "mlp.dense_h_to_4h.bias", "ffn_up.bias", I, NONE, ROWS)},
    NEOX_LAYER(DOWN, "mlp.dense_4h_to_h.weight", "ffn_down.weight", H, I, ROWS)},
    NEOX_LAYER(DOWN_BIAS, "mlp.dense_4h_to_h.bias", "ffn_down.bias", H, NONE, ROWS)},
};
/* clang-format on */

static const struct sl_rope_desc ropes[] = {
    {.hf_theta = "rotary_emb_base",
     .hf_partial = "rotary_pct",
     .gguf_theta = "rope.freq_base",
     .theta = 10000,
     .scaled = true,
     .partial = 0.25},
};

static int gpt_neox_plan(const struct sl_model_name *name, const struct sl_hparams *hp,
                         struct sl_layer_desc *layers, struct sl_error *err)
{
    (void)name;
    if (hp->n_kv_heads != hp->n_heads)
        return sl_fail(err, SL_EUNSUPPORTED,
                       "%d key heads that differ from the %d heads are not supported by this "
                       "family",
                       hp->n_kv_heads, hp->n_heads);
    for (int32_t i = 0; i < hp->n_layers; i++) {
        layers[i].norm = SL_NORM_LAYER;
        layers[i].parallel = hp->parallel;
        layers[i].ffn = SL_FFN_PLAIN;
    }
    return 0;
}

static void gpt_neox_tiny(const struct sl_model_name *name, struct sl_hparams *hp)
{
    *hp = (struct sl_hparams){
        .hidden = 64,
        .intermediate = 160,
        .n_layers = 2,
        .n_heads = 4,
        .n_kv_heads = 4,
        .head_dim = 16,
        .n_vocab = 320,
        .context = 512,
        .norm_eps = 1e-5,
        .has = name->has | SL_HAS_HEAD | SL_HAS_QKV_BIAS | SL_HAS_O_BIAS,
        .act = SL_ACT_GELU_ERF,
        .parallel = true,
        .ropes = {{.theta = 10000, .n_dims = 4}},
    };
}

const struct sl_model_desc sl_model_gpt_neox = {
    .id = "gpt_neox",
    SL_MODEL_TABLES,
    SL_MODEL_ROPES(ropes),
    .plan = gpt_neox_plan,
    .tiny = gpt_neox_tiny,
};
