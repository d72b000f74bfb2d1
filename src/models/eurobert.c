/* SPDX-License-Identifier: MIT
 * EuroBERT: the blocks of Llama with attention in both directions, as an encoder.
 */
#include "base/check.h"
#include "models/desc.h"
#include "models/tables.h"

static const struct sl_model_name names[] = {
    {.id = "eurobert",
     .hf_architecture = "EuroBertModel",
     .hf_model_type = "eurobert",
     .gguf_architecture = "eurobert"},
    {.id = "eurobert-mlm", /* its own head is not used */
     .hf_architecture = "EuroBertForMaskedLM",
     .hf_model_type = "eurobert",
     .gguf_architecture = "eurobert"},
};

/* clang-format off */
static const struct sl_hparam_desc hparams[] = {
    SL_HPARAMS_SHAPE,
    {"attention.layer_norm_rms_epsilon", {"rms_norm_eps"}, SL_HP_FLOAT, SL_HP_AT(norm_eps),
     .def = 1e-5, .min = 1e-20, .max = 1},
    SL_HPARAM_ACT(SL_ACT_SILU),
    {NULL, {"attention_bias"}, SL_HP_HAS, .has = SL_HAS_QKV_BIAS | SL_HAS_O_BIAS},
    {NULL, {"mlp_bias"}, SL_HP_HAS, .has = SL_HAS_MLP_BIAS},
};

static const struct sl_weight_desc weights[] = {
    {.slot = SL_SLOT_EMBED, .hf = "model.embed_tokens.weight", .gguf = "token_embd.weight",
     .rows = SL_DIM_V, .cols = SL_DIM_H},
    {.slot = SL_SLOT_FINAL_NORM, .hf = "model.norm.weight", .gguf = "output_norm.weight",
     .rows = SL_DIM_H},
    SL_WEIGHTS_ATTN_NORM,
    SL_WEIGHTS_GQA,
    SL_WEIGHTS_QKV_BIAS,
    SL_WEIGHTS_O_BIAS,
    SL_WEIGHTS_FFN_NORM,
    SL_WEIGHTS_FFN_GATED,
    SL_WEIGHTS_MLP_BIAS,
};
/* clang-format on */

static int eurobert_plan(const struct sl_model_name *name, const struct sl_hparams *hp,
                         struct sl_layer_desc *layers, struct sl_error *err)
{
    (void)name;
    (void)err;
    for (int32_t i = 0; i < hp->n_layers; i++) {
        layers[i].whole = true;
        layers[i].kv_source = 0; /* a text is done in one step */
    }
    return 0;
}

static void eurobert_tiny(const struct sl_model_name *name, struct sl_hparams *hp)
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
        .norm_eps = 1e-5,
        .has = name->has,
        .act = SL_ACT_SILU,
        .ropes = {{.theta = 10000}},
    };
}

const struct sl_model_desc sl_model_eurobert = {
    .id = "eurobert",
    SL_MODEL_TABLES,
    SL_MODEL_ROPES(sl_rope_one),
    .encoder = true,
    .plan = eurobert_plan,
    .tiny = eurobert_tiny,
};
