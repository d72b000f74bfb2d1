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
    /* A config.json leaves out what is transformers' default, so that all defaults are here. */
    {"embedding_length", {"hidden_size"}, SL_HP_INT, SL_HP_AT(hidden), .required = true,
     .hf_def = 2304, .min = 1, .max = SL_MAX_HIDDEN},
    {"feed_forward_length", {"intermediate_size"}, SL_HP_INT, SL_HP_AT(intermediate),
     .required = true, .hf_def = 9216, .min = 1, .max = 4 * SL_MAX_HIDDEN},
    {"block_count", {"num_hidden_layers"}, SL_HP_INT, SL_HP_AT(n_layers), .required = true,
     .hf_def = 26, .min = 1, .max = SL_MAX_LAYERS},
    {"attention.head_count", {"num_attention_heads"}, SL_HP_INT, SL_HP_AT(n_heads),
     .required = true, .hf_def = 8, .min = 1, .max = SL_MAX_HEADS},
    {"attention.head_count_kv", {"num_key_value_heads"}, SL_HP_INT, SL_HP_AT(n_kv_heads),
     .hf_def = 4, .min = 1, .max = SL_MAX_HEADS},
    {"attention.key_length", {"head_dim"}, SL_HP_INT, SL_HP_AT(head_dim), .min = 2,
     .max = SL_MAX_HEAD_DIM},
    {"attention.value_length", {NULL}, SL_HP_INT, SL_HP_AT(v_dim), .min = 1,
     .max = SL_MAX_HEAD_DIM},
    {"rope.dimension_count", {NULL}, SL_HP_INT, SL_HP_AT(rope_dims), .min = 2,
     .max = SL_MAX_HEAD_DIM},
    {"context_length", {"max_position_embeddings"}, SL_HP_INT, SL_HP_AT(context),
     .required = true, .hf_def = 8192, .min = 1, .max = SL_MAX_CONTEXT},
    {NULL, {"vocab_size"}, SL_HP_INT, SL_HP_AT(n_vocab), .required = true, .hf_def = 256000,
     .min = 1, .max = SL_MAX_VOCAB},
    {"attention.layer_norm_rms_epsilon", {"rms_norm_eps"}, SL_HP_FLOAT, SL_HP_AT(norm_eps),
     .def = 1e-6, .min = 1e-20, .max = 1},
    {NULL, {"hidden_activation"}, SL_HP_ACT, SL_HP_AT(act), .def = SL_ACT_GELU_TANH},
    SL_HPARAM_TIED(true),
    {"attention.sliding_window", {"sliding_window"}, SL_HP_INT, SL_HP_AT(window), .hf_def = 4096,
     .min = 1, .max = SL_MAX_CONTEXT},
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
    {.slot = SL_SLOT_EMBED, .hf = "model.embed_tokens.weight", .gguf = "token_embd.weight",
     .rows = SL_DIM_V, .cols = SL_DIM_H},
    {.slot = SL_SLOT_FINAL_NORM, .hf = "model.norm.weight", .gguf = "output_norm.weight",
     .rows = SL_DIM_H, .flags = SL_W_PLUS_ONE},
    {.slot = SL_SLOT_HEAD, .hf = "lm_head.weight", .gguf = "output.weight", .rows = SL_DIM_V,
     .cols = SL_DIM_H, .shard = SL_SHARD_ROWS, .when = SL_HAS_HEAD},
    SL_WEIGHTS_SANDWICH_PLUS_ONE,
    SL_WEIGHTS_GQA,
    SL_WEIGHTS_QKV_BIAS,
    SL_WEIGHTS_O_BIAS,
    SL_WEIGHTS_FFN_GATED,
};
/* clang-format on */

/* What scores are divided by the root of. A GGUF does not say it; it is the head dimension in all
 * models but the one of 46 layers (27B). */
static int32_t query_scalar(const struct sl_hparams *hp)
{
    if (hp->query_scalar > 0)
        return hp->query_scalar;
    return hp->from_gguf && hp->n_layers == 46 ? hp->hidden / hp->n_heads : hp->head_dim;
}

static int plan(const struct sl_model_name *name, const struct sl_hparams *hp,
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
        layers[i].attn_scale = (float)(1.0 / sqrt((double)query_scalar(hp)));
    }
    return 0;
}

static void tiny(const struct sl_model_name *name, struct sl_hparams *hp)
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
    .names = names,
    .hparams = hparams,
    .weights = weights,
    .ropes = sl_rope_one,
    .n_names = SL_COUNT(names),
    .n_hparams = SL_COUNT(hparams),
    .n_weights = SL_COUNT(weights),
    .n_ropes = SL_COUNT(sl_rope_one),
    .scaled_embedding = true,
    .plan = plan,
    .tiny = tiny,
};
