/* SPDX-License-Identifier: MIT
 * Gemma 2: norms of 1 + w before and behind each sublayer, embeddings times the root of their
 * width, scores and logits capped by tanh, and every second layer windowed, from the first one on.
 */
#include "base/check.h"
#include "models/desc.h"
#include "models/tables.h"

#include <math.h>

static const struct sl_model_name names[] = {
    {.id = "gemma2",
     .hf_architecture = "Gemma2ForCausalLM",
     .hf_model_type = "gemma2",
     .gguf_architecture = "gemma2",
     .head_dim = 256},
};

/* clang-format off */
static const struct sl_hparam_desc hparams[] = {
    SL_HPARAMS_GEMMA(8192, 256000),
    {NULL, {"layer_types"}, SL_HP_LAYER_TYPES, SL_HP_AT(layer_types)},
    {NULL, {"query_pre_attn_scalar"}, SL_HP_INT, SL_HP_AT(query_scalar), .hf_def = 256, .min = 1,
     .max = SL_MAX_HIDDEN},
    {"attn_logit_softcapping", {"attn_logit_softcapping"}, SL_HP_FLOAT, SL_HP_AT(attn_softcap),
     .hf_def = 50, .min = 1e-3, .max = 1e6},
    {"final_logit_softcapping", {"final_logit_softcapping"}, SL_HP_FLOAT, SL_HP_AT(logit_softcap),
     .hf_def = 30, .min = 1e-3, .max = 1e6},
    {NULL, {"use_bidirectional_attention"}, SL_HP_BOOL, SL_HP_AT(bidirectional)},
    {NULL, {"attention_bias"}, SL_HP_HAS, .has = SL_HAS_QKV_BIAS | SL_HAS_O_BIAS},
};

static const struct sl_weight_desc weights[] = {
    SL_WEIGHTS_EMBED_AND_HEAD_PLUS_ONE,
    SL_WEIGHTS_SANDWICH_PLUS_ONE,
    SL_WEIGHTS_GQA,
    SL_WEIGHTS_QKV_BIAS,
    SL_WEIGHTS_O_BIAS,
    SL_WEIGHTS_FFN_GATED,
};
/* clang-format on */

/* What scores are divided by the root of. A GGUF does not say it; it is the head dimension in all
 * models but the one of 46 layers (27B). */
static int32_t gemma2_query_scalar(const struct sl_hparams *hp)
{
    if (hp->query_scalar > 0)
        return hp->query_scalar;
    return hp->from_gguf && hp->n_layers == 46 ? hp->hidden / hp->n_heads : hp->head_dim;
}

static int gemma2_plan(const struct sl_model_name *name, const struct sl_hparams *hp,
                       struct sl_layer_desc *layers, struct sl_error *err)
{
    (void)name;
    if (hp->bidirectional)
        return sl_fail(err, SL_EUNSUPPORTED,
                       "config.json: use_bidirectional_attention true is not supported");
    /* The first converter left them out; without them results are wrong. */
    if (hp->from_gguf && (hp->attn_softcap == 0 || hp->logit_softcap == 0 || hp->window == 0))
        return sl_fail(err, SL_EFORMAT,
                       "GGUF: gemma2.%s is missing: convert the model again with a newer converter",
                       hp->attn_softcap == 0    ? "attn_logit_softcapping"
                       : hp->logit_softcap == 0 ? "final_logit_softcapping"
                                                : "attention.sliding_window");
    for (int32_t i = 0; i < hp->n_layers; i++) {
        bool windowed = hp->layer_types[i] == SL_LAYER_BY_INDEX ? i % 2 == 0
                                                                : hp->layer_types[i] == SL_LAYER_ON;
        layers[i].norms = SL_NORM_IN | SL_NORM_OUT;
        layers[i].window = windowed ? hp->window : 0;
        layers[i].attn_scale = (float)(1.0 / sqrt((double)gemma2_query_scalar(hp)));
    }
    return 0;
}

static void gemma2_tiny(const struct sl_model_name *name, struct sl_hparams *hp)
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
        .norm_eps = 1e-6,
        .has = name->has,
        .act = SL_ACT_GELU_TANH,
        .ropes = {{.theta = 10000}},
        .window = 24,
        .query_scalar = 16,
        .attn_softcap = 5,
        .logit_softcap = 3,
    };
}

const struct sl_model_desc sl_model_gemma2 = {
    .id = "gemma2",
    SL_MODEL_TABLES,
    SL_MODEL_ROPES(sl_rope_one),
    .scaled_embedding = true,
    .plan = gemma2_plan,
    .tiny = gemma2_tiny,
};
