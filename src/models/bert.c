/* SPDX-License-Identifier: MIT
 * BERT, and with its names MiniLM, BGE, E5 and GTE: post-norm blocks of attention over the whole
 * text and a GELU MLP, biases everywhere, learned positions and token types. Its output is pooled
 * to an embedding, or read by a classifier (cross-encoders).
 *
 * Tensors may or may not begin with "bert.".
 */
#include "base/check.h"
#include "models/desc.h"
#include "models/tables.h"

static const struct sl_model_name names[] = {
    {.id = "bert",
     .hf_architecture = "BertModel",
     .hf_model_type = "bert",
     .gguf_architecture = "bert"},
    {.id = "bert-mlm", /* its own head is not used */
     .hf_architecture = "BertForMaskedLM",
     .hf_model_type = "bert",
     .gguf_architecture = "bert"},
    {.id = "bert-classifier",
     .hf_architecture = "BertForSequenceClassification",
     .hf_model_type = "bert",
     .gguf_architecture = "bert",
     .has = SL_HAS_CLASSIFIER},
};

/* clang-format off */
static const struct sl_hparam_desc hparams[] = {
    {"embedding_length", {"hidden_size"}, SL_HP_INT, SL_HP_AT(hidden), .required = true,
     .min = 1, .max = SL_MAX_HIDDEN},
    {"feed_forward_length", {"intermediate_size"}, SL_HP_INT, SL_HP_AT(intermediate),
     .required = true, .min = 1, .max = 4 * SL_MAX_HIDDEN},
    {"block_count", {"num_hidden_layers"}, SL_HP_INT, SL_HP_AT(n_layers), .required = true,
     .min = 1, .max = SL_MAX_LAYERS},
    {"attention.head_count", {"num_attention_heads"}, SL_HP_INT, SL_HP_AT(n_heads),
     .required = true, .min = 1, .max = SL_MAX_HEADS},
    {"context_length", {"max_position_embeddings"}, SL_HP_INT, SL_HP_AT(context),
     .required = true, .min = 1, .max = SL_MAX_CONTEXT},
    {NULL, {"vocab_size"}, SL_HP_INT, SL_HP_AT(n_vocab), .required = true, .min = 1,
     .max = SL_MAX_VOCAB},
    {NULL, {"type_vocab_size"}, SL_HP_INT, SL_HP_AT(n_types), .def = 2, .min = 2, .max = 16},
    {"attention.layer_norm_epsilon", {"layer_norm_eps"}, SL_HP_FLOAT, SL_HP_AT(norm_eps),
     .def = 1e-12, .min = 1e-20, .max = 1},
    {NULL, {"hidden_act"}, SL_HP_CHOICE, .value = "gelu"},
    {NULL, {"position_embedding_type"}, SL_HP_CHOICE, .value = "absolute"},
    SL_HPARAMS_LABELS,
    {NULL, {"is_decoder"}, SL_HP_BOOL, SL_HP_AT(is_decoder)},
};

#define W_GLOBAL(s, hf_name, gguf_name, r, c)                                                     \
    {.slot = SL_SLOT_##s, .hf = "bert." hf_name, .gguf = gguf_name, .rows = SL_DIM_##r,           \
     .cols = SL_DIM_##c
#define W_BLOCK(s, hf_name, gguf_name, r, c)                                                      \
    W_GLOBAL(s, "encoder.layer.*." hf_name, "blk.*." gguf_name, r, c)

static const struct sl_weight_desc weights[] = {
    W_GLOBAL(EMBED, "embeddings.word_embeddings.weight", "token_embd.weight", V, H)},
    W_GLOBAL(POSITIONS, "embeddings.position_embeddings.weight", "position_embd.weight", CONTEXT,
             H)},
    W_GLOBAL(TYPES, "embeddings.token_type_embeddings.weight", "token_types.weight", TYPES, H)},
    W_GLOBAL(EMBED_NORM, "embeddings.LayerNorm.weight", "token_embd_norm.weight", H, NONE)},
    W_GLOBAL(EMBED_NORM_BIAS, "embeddings.LayerNorm.bias", "token_embd_norm.bias", H, NONE)},
    W_BLOCK(Q, "attention.self.query.weight", "attn_q.weight", Q, H)},
    W_BLOCK(K, "attention.self.key.weight", "attn_k.weight", KV, H)},
    W_BLOCK(V, "attention.self.value.weight", "attn_v.weight", KV, H)},
    W_BLOCK(O, "attention.output.dense.weight", "attn_output.weight", H, Q)},
    W_BLOCK(Q_BIAS, "attention.self.query.bias", "attn_q.bias", Q, NONE)},
    W_BLOCK(K_BIAS, "attention.self.key.bias", "attn_k.bias", KV, NONE)},
    W_BLOCK(V_BIAS, "attention.self.value.bias", "attn_v.bias", KV, NONE)},
    W_BLOCK(O_BIAS, "attention.output.dense.bias", "attn_output.bias", H, NONE)},
    W_BLOCK(ATTN_NORM, "attention.output.LayerNorm.weight", "attn_output_norm.weight", H, NONE)},
    W_BLOCK(ATTN_NORM_BIAS, "attention.output.LayerNorm.bias", "attn_output_norm.bias", H, NONE)},
    W_BLOCK(UP, "intermediate.dense.weight", "ffn_up.weight", I, H)},
    W_BLOCK(UP_BIAS, "intermediate.dense.bias", "ffn_up.bias", I, NONE)},
    W_BLOCK(DOWN, "output.dense.weight", "ffn_down.weight", H, I)},
    W_BLOCK(DOWN_BIAS, "output.dense.bias", "ffn_down.bias", H, NONE)},
    W_BLOCK(FFN_NORM, "output.LayerNorm.weight", "layer_output_norm.weight", H, NONE)},
    W_BLOCK(FFN_NORM_BIAS, "output.LayerNorm.bias", "layer_output_norm.bias", H, NONE)},
    W_GLOBAL(POOLER, "pooler.dense.weight", "cls.weight", H, H), .need = SL_HAS_CLASSIFIER},
    W_GLOBAL(POOLER_BIAS, "pooler.dense.bias", "cls.bias", H, NONE), .need = SL_HAS_CLASSIFIER},
    {.slot = SL_SLOT_CLASSIFIER, .hf = "classifier.weight", .gguf = "cls.output.weight",
     .rows = SL_DIM_LABELS, .cols = SL_DIM_H, .need = SL_HAS_CLASSIFIER},
    {.slot = SL_SLOT_CLASSIFIER_BIAS, .hf = "classifier.bias", .gguf = "cls.output.bias",
     .rows = SL_DIM_LABELS, .need = SL_HAS_CLASSIFIER},
};
/* clang-format on */

static int plan(const struct sl_model_name *name, const struct sl_hparams *hp,
                struct sl_layer_desc *layers, struct sl_error *err)
{
    (void)name;
    if (hp->is_decoder)
        return sl_fail(err, SL_EUNSUPPORTED, "config.json: is_decoder true is not supported");
    for (int32_t i = 0; i < hp->n_layers; i++)
        layers[i] = (struct sl_layer_desc){.mixer = SL_MIX_WHOLE,
                                           .ffn = SL_FFN_PLAIN,
                                           .kv_kind = SL_KV_STEP,
                                           .act = SL_ACT_GELU_ERF,
                                           .attn_scale = (float)(1.0 / sqrt((double)hp->head_dim))};
    return 0;
}

static void tiny(const struct sl_model_name *name, struct sl_hparams *hp)
{
    *hp = (struct sl_hparams){
        .hidden = 48,
        .intermediate = 112,
        .n_layers = 2,
        .n_heads = 4,
        .n_kv_heads = 4,
        .head_dim = 12,
        .n_vocab = 320,
        .n_types = 2,
        .n_labels = 3,
        .context = 80,
        .norm_eps = 1e-12,
        .has = name->has,
    };
}

const struct sl_model_desc sl_model_bert = {
    .id = "bert",
    .names = names,
    .hparams = hparams,
    .weights = weights,
    .n_names = SL_COUNT(names),
    .n_hparams = SL_COUNT(hparams),
    .n_weights = SL_COUNT(weights),
    .encoder = true,
    .plan = plan,
    .tiny = tiny,
};
