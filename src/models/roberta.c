/* SPDX-License-Identifier: MIT
 * RoBERTa and XLM-RoBERTa, and with their names multilingual-e5, bge-m3 and bge-reranker: BERT's
 * blocks, positions that begin behind the padding token's id, one type of token for both of two
 * texts, a classifier of two layers. A GGUF calls them bert, without the positions nobody uses.
 *
 * Tensors may or may not begin with "roberta.".
 */
#include "base/check.h"
#include "models/desc.h"
#include "models/tables.h"

static const struct sl_model_name names[] = {
    {.id = "roberta", .hf_architecture = "RobertaModel", .hf_model_type = "roberta"},
    {.id = "roberta-mlm", .hf_architecture = "RobertaForMaskedLM", .hf_model_type = "roberta"},
    {.id = "roberta-classifier",
     .hf_architecture = "RobertaForSequenceClassification",
     .hf_model_type = "roberta",
     .has = SL_HAS_CLASSIFIER},
    {.id = "xlm-roberta", .hf_architecture = "XLMRobertaModel", .hf_model_type = "xlm-roberta"},
    {.id = "xlm-roberta-mlm",
     .hf_architecture = "XLMRobertaForMaskedLM",
     .hf_model_type = "xlm-roberta"},
    {.id = "xlm-roberta-classifier",
     .hf_architecture = "XLMRobertaForSequenceClassification",
     .hf_model_type = "xlm-roberta",
     .has = SL_HAS_CLASSIFIER},
};

/* clang-format off */
static const struct sl_hparam_desc hparams[] = {
    SL_HPARAMS_ENCODER,
    {NULL, {"type_vocab_size"}, SL_HP_INT, SL_HP_AT(n_types), .def = 2, .min = 1, .max = 16},
    {NULL, {"pad_token_id"}, SL_HP_INT, SL_HP_AT(pad_id), .def = 1, .min = 0,
     .max = SL_MAX_CONTEXT},
};

static const struct sl_weight_desc weights[] = {
    SL_WEIGHTS_ENCODER("roberta."),
    {.slot = SL_SLOT_POOLER, .hf = "classifier.dense.weight", .rows = SL_DIM_H, .cols = SL_DIM_H,
     .when = SL_HAS_CLASSIFIER},
    {.slot = SL_SLOT_POOLER_BIAS, .hf = "classifier.dense.bias", .rows = SL_DIM_H,
     .when = SL_HAS_CLASSIFIER},
    {.slot = SL_SLOT_CLASSIFIER, .hf = "classifier.out_proj.weight", .rows = SL_DIM_LABELS,
     .cols = SL_DIM_H, .when = SL_HAS_CLASSIFIER},
    {.slot = SL_SLOT_CLASSIFIER_BIAS, .hf = "classifier.out_proj.bias", .rows = SL_DIM_LABELS,
     .when = SL_HAS_CLASSIFIER},
};
/* clang-format on */

static int roberta_plan(const struct sl_model_name *name, const struct sl_hparams *hp,
                        struct sl_layer_desc *layers, struct sl_error *err)
{
    if (hp->pad_id + 1 >= hp->context)
        return sl_fail(err, SL_EFORMAT,
                       "config.json: max_position_embeddings %d leaves none behind pad_token_id %d",
                       hp->context, hp->pad_id);
    return sl_plan_encoder(name, hp, layers, err);
}

static void roberta_tiny(const struct sl_model_name *name, struct sl_hparams *hp)
{
    sl_tiny_encoder(name, hp);
    hp->n_types = 1;
    hp->pad_id = 1;
    hp->context = 82;
}

const struct sl_model_desc sl_model_roberta = {
    .id = "roberta",
    SL_MODEL_TABLES,
    .encoder = true,
    .behind_pad = true,
    .plan = roberta_plan,
    .tiny = roberta_tiny,
};
