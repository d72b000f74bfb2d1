/* SPDX-License-Identifier: MIT
 * ModernBERT (also gte-modernbert): an encoder with norms before its sublayers, rotated positions,
 * q, k and v in one tensor and gate and up in another. Of every three layers the first sees all of
 * a text, the others what is at most half of local_attention away, on both sides. The first layer's
 * attention has no norm: it follows that of the embeddings.
 *
 * GGUF files leave q, k and v, and gate and up, as they are.
 */
#include "base/check.h"
#include "models/desc.h"
#include "models/tables.h"

static const struct sl_model_name names[] = {
    {.id = "modernbert",
     .hf_architecture = "ModernBertModel",
     .hf_model_type = "modernbert",
     .gguf_architecture = "modern-bert"},
    {.id = "modernbert-mlm", /* its own head is not used */
     .hf_architecture = "ModernBertForMaskedLM",
     .hf_model_type = "modernbert",
     .gguf_architecture = "modern-bert"},
};

/* clang-format off */
static const struct sl_hparam_desc hparams[] = {
    SL_HPARAMS_SIZES,
    {"context_length", {"max_position_embeddings"}, SL_HP_INT, SL_HP_AT(context), .required = true,
     .min = 1, .max = SL_MAX_CONTEXT},
    {NULL, {"vocab_size"}, SL_HP_INT, SL_HP_AT(n_vocab), .required = true, .min = 1,
     .max = SL_MAX_VOCAB},
    {"attention.layer_norm_epsilon", {"norm_eps"}, SL_HP_FLOAT, SL_HP_AT(norm_eps), .def = 1e-5,
     .min = 1e-20, .max = 1},
    {"hidden_activation", {"hidden_act", "hidden_activation"}, SL_HP_ACT, SL_HP_AT(act),
     .def = SL_ACT_GELU_ERF},
    {"attention.sliding_window", {"local_attention"}, SL_HP_INT, SL_HP_AT(window), .def = 128,
     .min = 1, .max = SL_MAX_CONTEXT},
    {"attention.sliding_window_pattern", {"global_attn_every_n_layers"}, SL_HP_INT,
     SL_HP_AT(window_pattern), .def = 3, .min = 1, .max = SL_MAX_LAYERS},
    {NULL, {"layer_types"}, SL_HP_LAYER_TYPES, SL_HP_AT(layer_types)},
    SL_HPARAM_ONLY("attention_bias", false),
    SL_HPARAM_ONLY("mlp_bias", false),
    SL_HPARAM_ONLY("norm_bias", false),
};

#define MODERN_LAYER(s, hf_name, gguf_name, r, c)                                                  \
    {.slot = SL_SLOT_##s, .hf = "model.layers.*." hf_name,                                         \
     .gguf = "blk.*." gguf_name ".weight", .rows = SL_DIM_##r, .cols = SL_DIM_##c
#define MODERN_PART(s, hf_name, gguf_name, r, idx, ...)                                            \
    {.slot = SL_SLOT_##s, .hf_fused = "model.layers.*." hf_name,                                   \
     .gguf_fused = "blk.*." gguf_name ".weight", .rows = SL_DIM_##r, .cols = SL_DIM_H,             \
     .part = idx, .fused = {__VA_ARGS__}}
#define MODERN_QKV(s, r, idx)                                                                      \
    MODERN_PART(s, "attn.Wqkv.weight", "attn_qkv", r, idx, SL_DIM_Q, SL_DIM_K, SL_DIM_VALUES)

static const struct sl_weight_desc weights[] = {
    {.slot = SL_SLOT_EMBED, .hf = "model.embeddings.tok_embeddings.weight",
     .gguf = "token_embd.weight", .rows = SL_DIM_V, .cols = SL_DIM_H},
    {.slot = SL_SLOT_EMBED_NORM, .hf = "model.embeddings.norm.weight",
     .gguf = "token_embd_norm.weight", .rows = SL_DIM_H},
    {.slot = SL_SLOT_FINAL_NORM, .hf = "model.final_norm.weight", .gguf = "output_norm.weight",
     .rows = SL_DIM_H},
    MODERN_LAYER(ATTN_NORM, "attn_norm.weight", "attn_norm", H, NONE), .when = SL_HAS_ATTN_NORM},
    MODERN_QKV(Q, Q, 0),
    MODERN_QKV(K, K, 1),
    MODERN_QKV(V, VALUES, 2),
    MODERN_LAYER(O, "attn.Wo.weight", "attn_output", H, ATT)},
    MODERN_LAYER(FFN_NORM, "mlp_norm.weight", "ffn_norm", H, NONE)},
    MODERN_PART(GATE, "mlp.Wi.weight", "ffn_up", I, 0, SL_DIM_I, SL_DIM_I),
    MODERN_PART(UP, "mlp.Wi.weight", "ffn_up", I, 1, SL_DIM_I, SL_DIM_I),
    MODERN_LAYER(DOWN, "mlp.Wo.weight", "ffn_down", H, I)},
};
/* clang-format on */

enum { GLOBAL, LOCAL }; /* tables of rotations */

static const struct sl_rope_desc ropes[] = {
    [GLOBAL] = {.kind = "full_attention",
                .hf_theta = "global_rope_theta",
                .gguf_theta = "rope.freq_base",
                .theta = 160000},
    [LOCAL] = {.kind = "sliding_attention",
               .hf_theta = "local_rope_theta",
               .gguf_theta = "rope.freq_base_swa",
               .theta = 10000},
};

static int modernbert_plan(const struct sl_model_name *name, const struct sl_hparams *hp,
                           struct sl_layer_desc *layers, struct sl_error *err)
{
    (void)name;
    (void)err;
    for (int32_t i = 0; i < hp->n_layers; i++) {
        bool windowed = hp->layer_types[i] == SL_LAYER_BY_INDEX ? i % hp->window_pattern != 0
                                                                : hp->layer_types[i] == SL_LAYER_ON;
        layers[i].norm = SL_NORM_LAYER;
        layers[i].whole = true;
        layers[i].kv_source = 0; /* a text is done in one step */
        layers[i].rope = windowed ? LOCAL : GLOBAL;
        layers[i].window = windowed ? hp->window / 2 + 1 : 0; /* half on each side, and itself */
        if (i > 0)
            layers[i].has |= SL_HAS_ATTN_NORM;
        else
            layers[i].has &= ~(unsigned)SL_HAS_ATTN_NORM;
    }
    return 0;
}

static void modernbert_tiny(const struct sl_model_name *name, struct sl_hparams *hp)
{
    sl_tiny_encoder(name, hp);
    hp->n_layers = 4;
    hp->n_types = 0;
    hp->norm_eps = 1e-5;
    hp->window = 12;
    hp->window_pattern = 3;
    hp->ropes[GLOBAL].theta = 160000;
    hp->ropes[LOCAL].theta = 10000;
}

const struct sl_model_desc sl_model_modernbert = {
    .id = "modernbert",
    SL_MODEL_TABLES,
    SL_MODEL_ROPES(ropes),
    .encoder = true,
    .plan = modernbert_plan,
    .tiny = modernbert_tiny,
};
