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
    {.id = "colbert", /* a vector for each token, by a matrix that is called "linear" */
     .hf_architecture = "HF_ColBERT",
     .hf_model_type = "bert",
     .gguf_architecture = "bert",
     .per_token = true},
    {.id = "bert-classifier",
     .hf_architecture = "BertForSequenceClassification",
     .hf_model_type = "bert",
     .gguf_architecture = "bert",
     .has = SL_HAS_CLASSIFIER},
};

/* clang-format off */
static const struct sl_hparam_desc hparams[] = {
    SL_HPARAMS_ENCODER,
    {NULL, {"type_vocab_size"}, SL_HP_INT, SL_HP_AT(n_types), .def = 2, .min = 2, .max = 16},
};

static const struct sl_weight_desc weights[] = {
    SL_WEIGHTS_ENCODER("bert."),
    {.slot = SL_SLOT_POOLER, .hf = "bert.pooler.dense.weight", .gguf = "cls.weight",
     .rows = SL_DIM_H, .cols = SL_DIM_H, .when = SL_HAS_CLASSIFIER},
    {.slot = SL_SLOT_POOLER_BIAS, .hf = "bert.pooler.dense.bias", .gguf = "cls.bias",
     .rows = SL_DIM_H, .when = SL_HAS_CLASSIFIER},
    {.slot = SL_SLOT_CLASSIFIER, .hf = "classifier.weight", .gguf = "cls.output.weight",
     .rows = SL_DIM_LABELS, .cols = SL_DIM_H, .when = SL_HAS_CLASSIFIER},
    {.slot = SL_SLOT_CLASSIFIER_BIAS, .hf = "classifier.bias", .gguf = "cls.output.bias",
     .rows = SL_DIM_LABELS, .when = SL_HAS_CLASSIFIER},
};
/* clang-format on */

int sl_plan_encoder(const struct sl_model_name *name, const struct sl_hparams *hp,
                    struct sl_layer_desc *layers, struct sl_error *err)
{
    (void)name;
    if (hp->is_decoder)
        return sl_fail(err, SL_EUNSUPPORTED, "config.json: is_decoder true is not supported");
    for (int32_t i = 0; i < hp->n_layers; i++) {
        layers[i].ffn = SL_FFN_PLAIN;
        layers[i].norm = SL_NORM_LAYER;
        layers[i].norms = SL_NORM_SUM;
        layers[i].whole = true;
        layers[i].kv_source =
            0; /* a text is done in one step: a layer writes over the one before */
    }
    return 0;
}

void sl_tiny_encoder(const struct sl_model_name *name, struct sl_hparams *hp)
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
        .act = SL_ACT_GELU_ERF,
    };
}

const struct sl_model_desc sl_model_bert = {
    .id = "bert",
    SL_MODEL_TABLES,
    .encoder = true,
    .plan = sl_plan_encoder,
    .tiny = sl_tiny_encoder,
};
