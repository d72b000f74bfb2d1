/* SPDX-License-Identifier: MIT
 * GTE (gte-multilingual): BERT's blocks with rotated positions and a gated MLP, of which only the
 * output has a bias. A classifier as BERT's (rerankers).
 *
 * Tensors may or may not begin with "gte.".
 */
#include "base/check.h"
#include "models/desc.h"
#include "models/tables.h"

static const struct sl_model_name names[] = {
    {.id = "gte", .hf_architecture = "GteModel", .hf_model_type = "gte"},
    {.id = "gte-mlm", .hf_architecture = "GteForMaskedLM", .hf_model_type = "gte"},
    {.id = "gte-classifier",
     .hf_architecture = "GteForSequenceClassification",
     .hf_model_type = "gte",
     .has = SL_HAS_CLASSIFIER},
};

/* clang-format off */
static const struct sl_hparam_desc hparams[] = {
    SL_HPARAMS_SIZES,
    SL_HPARAMS_ENCODER_BLOCKS(SL_ACT_GELU_ERF),
    {NULL, {"type_vocab_size"}, SL_HP_INT, SL_HP_AT(n_types), .def = 1, .min = 0, .max = 16},
};

#define GTE   "gte."
#define LAYER "encoder.layer.*."

static const struct sl_weight_desc weights[] = {
    SL_WEIGHTS_ENCODER_WORDS(GTE, "embeddings.LayerNorm"),
    SL_WEIGHTS_ENCODER_QKV(GTE, LAYER "attention.qkv_proj.weight", , "weight", H),
    SL_WEIGHTS_ENCODER_QKV(GTE, LAYER "attention.qkv_proj.bias", _BIAS, "bias", NONE),
    SL_W_ENCODER(GTE, O, LAYER "attention.o_proj.weight", NULL, H, ATT),
    SL_W_ENCODER(GTE, O_BIAS, LAYER "attention.o_proj.bias", NULL, H, NONE),
    SL_WEIGHTS_ENCODER_NORMS(GTE, LAYER "attn_ln", LAYER "mlp_ln"),
    {.slot = SL_SLOT_UP, .hf_fused = GTE LAYER "mlp.up_gate_proj.weight", .rows = SL_DIM_I,
     .cols = SL_DIM_H, .part = 0, .fused = {SL_DIM_I, SL_DIM_I}},
    {.slot = SL_SLOT_GATE, .hf_fused = GTE LAYER "mlp.up_gate_proj.weight", .rows = SL_DIM_I,
     .cols = SL_DIM_H, .part = 1, .fused = {SL_DIM_I, SL_DIM_I}},
    SL_W_ENCODER(GTE, DOWN, LAYER "mlp.down_proj.weight", NULL, H, I),
    SL_W_ENCODER(GTE, DOWN_BIAS, LAYER "mlp.down_proj.bias", NULL, H, NONE),
    {.slot = SL_SLOT_POOLER, .hf = GTE "pooler.dense.weight", .rows = SL_DIM_H,
     .cols = SL_DIM_H, .when = SL_HAS_CLASSIFIER},
    {.slot = SL_SLOT_POOLER_BIAS, .hf = GTE "pooler.dense.bias", .rows = SL_DIM_H,
     .when = SL_HAS_CLASSIFIER},
    {.slot = SL_SLOT_CLASSIFIER, .hf = "classifier.weight", .rows = SL_DIM_LABELS,
     .cols = SL_DIM_H, .when = SL_HAS_CLASSIFIER},
    {.slot = SL_SLOT_CLASSIFIER_BIAS, .hf = "classifier.bias", .rows = SL_DIM_LABELS,
     .when = SL_HAS_CLASSIFIER},
};
/* clang-format on */

static const struct sl_rope_desc ropes[] = {
    {.hf_theta = "rope_theta", .gguf_theta = "rope.freq_base", .theta = 160000, .scaled = true},
};

static int gte_plan(const struct sl_model_name *name, const struct sl_hparams *hp,
                    struct sl_layer_desc *layers, struct sl_error *err)
{
    int rc = sl_plan_encoder(name, hp, layers, err);
    for (int32_t i = 0; i < hp->n_layers && rc == 0; i++)
        layers[i].ffn = SL_FFN_GATED;
    return rc;
}

static void gte_tiny(const struct sl_model_name *name, struct sl_hparams *hp)
{
    sl_tiny_encoder(name, hp);
    hp->ropes[0].theta = 160000;
}

const struct sl_model_desc sl_model_gte = {
    .id = "gte",
    SL_MODEL_TABLES,
    SL_MODEL_ROPES(ropes),
    .encoder = true,
    .plan = gte_plan,
    .tiny = gte_tiny,
};
