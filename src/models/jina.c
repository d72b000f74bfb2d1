/* SPDX-License-Identifier: MIT
 * Jina embeddings v3: XLM-RoBERTa's blocks with rotated positions and one type of token. Adapters
 * for tasks are LoRA files of their own.
 *
 * Tensors may or may not begin with "roberta.".
 */
#include "base/check.h"
#include "models/desc.h"
#include "models/tables.h"

static const struct sl_model_name names[] = {
    {.id = "jina-v3",
     .hf_architecture = "JinaEmbeddingsV3Model",
     .hf_model_type = "jina_embeddings_v3",
     .gguf_architecture = "jina-bert-v3"},
};

/* clang-format off */
static const struct sl_hparam_desc hparams[] = {
    SL_HPARAMS_SIZES,
    SL_HPARAMS_ENCODER_BLOCKS(SL_ACT_GELU_ERF),
    {NULL, {"type_vocab_size"}, SL_HP_INT, SL_HP_AT(n_types), .def = 1, .min = 0, .max = 16},
};

#define JINA  "roberta."
#define LAYER "encoder.layers.*."

static const struct sl_weight_desc weights[] = {
    SL_WEIGHTS_ENCODER_WORDS(JINA, "emb_ln"),
    SL_WEIGHTS_ENCODER_QKV(JINA, LAYER "mixer.Wqkv.weight", , "weight", H),
    SL_WEIGHTS_ENCODER_QKV(JINA, LAYER "mixer.Wqkv.bias", _BIAS, "bias", NONE),
    SL_W_ENCODER(JINA, O, LAYER "mixer.out_proj.weight", "blk.*.attn_output.weight", H, ATT),
    SL_W_ENCODER(JINA, O_BIAS, LAYER "mixer.out_proj.bias", "blk.*.attn_output.bias", H, NONE),
    SL_WEIGHTS_ENCODER_NORMS(JINA, LAYER "norm1", LAYER "norm2"),
    SL_W_ENCODER(JINA, UP, LAYER "mlp.fc1.weight", "blk.*.ffn_up.weight", I, H),
    SL_W_ENCODER(JINA, UP_BIAS, LAYER "mlp.fc1.bias", "blk.*.ffn_up.bias", I, NONE),
    SL_W_ENCODER(JINA, DOWN, LAYER "mlp.fc2.weight", "blk.*.ffn_down.weight", H, I),
    SL_W_ENCODER(JINA, DOWN_BIAS, LAYER "mlp.fc2.bias", "blk.*.ffn_down.bias", H, NONE),
};
/* clang-format on */

static const struct sl_rope_desc ropes[] = {
    {.hf_theta = "rope_theta", .gguf_theta = "rope.freq_base", .theta = 20000, .scaled = true},
};

static void jina_tiny(const struct sl_model_name *name, struct sl_hparams *hp)
{
    sl_tiny_encoder(name, hp);
    hp->n_types = 1;
    hp->ropes[0].theta = 20000;
}

const struct sl_model_desc sl_model_jina = {
    .id = "jina",
    SL_MODEL_TABLES,
    SL_MODEL_ROPES(ropes),
    .encoder = true,
    .plan = sl_plan_encoder,
    .tiny = jina_tiny,
};
