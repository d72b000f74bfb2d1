/* SPDX-License-Identifier: MIT
 * Gemma 3 (text): norms of 1 + w before and behind each sublayer, q and k normed by head,
 * embeddings times the root of their width, and five windowed layers to each full one, with a table
 * of rotations for each kind. EmbeddingGemma is the same model with attention in both directions,
 * whose windows are half as long on each side.
 */
#include "base/check.h"
#include "models/desc.h"
#include "models/tables.h"

#include <math.h>

static const struct sl_model_name names[] = {
    {.id = "gemma3",
     .hf_architecture = "Gemma3ForCausalLM",
     .hf_model_type = "gemma3_text",
     .gguf_architecture = "gemma3",
     .has = SL_HAS_QK_NORM,
     .head_dim = 256},
    {.id = "embeddinggemma", /* every token sees all of its text; a vector comes out */
     .hf_architecture = "Gemma3TextModel",
     .hf_model_type = "gemma3_text",
     .gguf_architecture = "gemma-embedding",
     .has = SL_HAS_QK_NORM,
     .head_dim = 256,
     .no_head = true},
    {.id = "gemma3-text", /* of a model that also reads images, which this one does not */
     .hf_architecture = "Gemma3ForConditionalGeneration",
     .hf_model_type = "gemma3",
     .gguf_architecture = "gemma3",
     .has = SL_HAS_QK_NORM,
     .head_dim = 256,
     .hf_config = "text_config"},
};

/* clang-format off */
static const struct sl_hparam_desc hparams[] = {
    SL_HPARAMS_GEMMA(131072, 262208),
    {NULL, {"sliding_window_pattern", "_sliding_window_pattern"}, SL_HP_INT,
     SL_HP_AT(window_pattern), .def = 6, .min = 1, .max = SL_MAX_LAYERS},
    {NULL, {"layer_types"}, SL_HP_LAYER_TYPES, SL_HP_AT(layer_types)},
    {NULL, {"query_pre_attn_scalar"}, SL_HP_INT, SL_HP_AT(query_scalar), .hf_def = 256, .min = 1,
     .max = SL_MAX_HIDDEN},
    {"attn_logit_softcapping", {"attn_logit_softcapping"}, SL_HP_FLOAT, SL_HP_AT(attn_softcap),
     .min = 0, .max = 0},
    {"final_logit_softcapping", {"final_logit_softcapping"}, SL_HP_FLOAT, SL_HP_AT(logit_softcap),
     .min = 0, .max = 0},
    {NULL, {"use_bidirectional_attention"}, SL_HP_BOOL, SL_HP_AT(bidirectional)},
    {NULL, {"attention_bias"}, SL_HP_HAS, .has = SL_HAS_QKV_BIAS | SL_HAS_O_BIAS},
};

static const struct sl_weight_desc weights[] = {
    SL_WEIGHTS_EMBED_AND_HEAD_PLUS_ONE,
    SL_WEIGHTS_SANDWICH_PLUS_ONE,
    SL_WEIGHTS_GQA,
    SL_WEIGHTS_QKV_BIAS,
    SL_WEIGHTS_O_BIAS,
    SL_W_LAYER(Q_NORM, "self_attn.q_norm.weight", "attn_q_norm.weight", HD, NONE, NONE),
     .flags = SL_W_PLUS_ONE},
    SL_W_LAYER(K_NORM, "self_attn.k_norm.weight", "attn_k_norm.weight", HD, NONE, NONE),
     .flags = SL_W_PLUS_ONE},
    SL_WEIGHTS_FFN_GATED,
};
/* clang-format on */

enum { GLOBAL, LOCAL }; /* tables of rotations */

static const struct sl_rope_desc ropes[] = {
    [GLOBAL] = {.kind = "full_attention",
                .hf_theta = "rope_theta",
                .gguf_theta = "rope.freq_base",
                .theta = 1000000,
                .scaled = true},
    [LOCAL] = {.kind = "sliding_attention",
               .hf_theta = "rope_local_base_freq",
               .gguf_theta = "rope.freq_base_swa",
               .theta = 10000},
};

/* What scores are divided by the root of. A GGUF does not say it; it is the head dimension in all
 * models but the one of 62 layers (27B). */
static int32_t gemma_query_scalar(const struct sl_hparams *hp)
{
    if (hp->query_scalar > 0)
        return hp->query_scalar;
    return hp->from_gguf && hp->n_layers == 62 ? hp->hidden / hp->n_heads : hp->head_dim;
}

static int gemma_plan(const struct sl_model_name *name, const struct sl_hparams *hp,
                      struct sl_layer_desc *layers, struct sl_error *err)
{
    const bool whole = hp->bidirectional || (hp->from_gguf && name->no_head);
    if (hp->bidirectional && !name->no_head)
        return sl_fail(err, SL_EUNSUPPORTED,
                       "config.json: use_bidirectional_attention true is not supported by a model "
                       "that generates");
    for (int32_t i = 0; i < hp->n_layers; i++) {
        bool windowed = hp->layer_types[i] == SL_LAYER_BY_INDEX ? (i + 1) % hp->window_pattern != 0
                                                                : hp->layer_types[i] == SL_LAYER_ON;
        layers[i].norms = SL_NORM_IN | SL_NORM_OUT;
        layers[i].rope = windowed ? LOCAL : GLOBAL;
        layers[i].window = windowed ? hp->window : 0;
        if (whole) { /* half of the window on each side, and itself */
            layers[i].whole = true;
            layers[i].kv_source = 0; /* a text is done in one step */
            layers[i].window = windowed && hp->window > 0 ? hp->window / 2 + 1 : 0;
        }
        layers[i].attn_scale = (float)(1.0 / sqrt((double)gemma_query_scalar(hp)));
    }
    return 0;
}

static void gemma_tiny(const struct sl_model_name *name, struct sl_hparams *hp)
{
    *hp = (struct sl_hparams){
        .hidden = 64,
        .intermediate = 160,
        .n_layers = 6,
        .n_heads = 4,
        .n_kv_heads = 2,
        .head_dim = 16,
        .n_vocab = 320,
        .context = 512,
        .norm_eps = 1e-6,
        .has = name->has,
        .act = SL_ACT_GELU_TANH,
        .ropes = {[GLOBAL] = {.theta = 1000000}, [LOCAL] = {.theta = 10000}},
        .window = 24,
        .window_pattern = 6,
        .query_scalar = 16,
        .bidirectional = name->no_head,
    };
}

const struct sl_model_desc sl_model_gemma = {
    .id = "gemma",
    SL_MODEL_TABLES,
    SL_MODEL_ROPES(ropes),
    .scaled_embedding = true,
    .plan = gemma_plan,
    .tiny = gemma_tiny,
};
