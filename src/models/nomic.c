/* SPDX-License-Identifier: MIT
 * NomicBERT (nomic-embed-text): BERT's blocks with rotated positions and a gated MLP, without
 * biases. config.json spells hyper-parameters as transformers or as GPT-2 does.
 *
 * Tensors may or may not begin with "nomic_bert.".
 */
#include "base/check.h"
#include "models/desc.h"
#include "models/tables.h"

static const struct sl_model_name names[] = {
    {.id = "nomic-bert",
     .hf_architecture = "NomicBertModel",
     .hf_model_type = "nomic_bert",
     .gguf_architecture = "nomic-bert"},
};

/* clang-format off */
static const struct sl_hparam_desc hparams[] = {
    {"embedding_length", {"hidden_size", "n_embd"}, SL_HP_INT, SL_HP_AT(hidden),
     .required = true, .min = 1, .max = SL_MAX_HIDDEN},
    {"feed_forward_length", {"intermediate_size", "n_inner"}, SL_HP_INT,
     SL_HP_AT(intermediate), .required = true, .min = 1, .max = 4 * SL_MAX_HIDDEN},
    {"block_count", {"num_hidden_layers", "n_layer"}, SL_HP_INT, SL_HP_AT(n_layers),
     .required = true, .min = 1, .max = SL_MAX_LAYERS},
    {"attention.head_count", {"num_attention_heads", "n_head"}, SL_HP_INT,
     SL_HP_AT(n_heads), .required = true, .min = 1, .max = SL_MAX_HEADS},
    SL_HPARAMS_ENCODER_BLOCKS(SL_ACT_SILU),
    {NULL, {"type_vocab_size"}, SL_HP_INT, SL_HP_AT(n_types), .def = 2, .min = 0, .max = 16},
    /* What files in GPT-2's spelling say besides. */
    {NULL, {"activation_function"}, SL_HP_CHOICE, .value = "swiglu"},
    SL_HPARAM_ONLY("rotary_emb_interleaved", false),
    SL_HPARAM_ONLY("prenorm", false),
    SL_HPARAM_ONLY("use_rms_norm", false),
    SL_HPARAM_ONLY("causal", false),
    SL_HPARAM_ONLY("qkv_proj_bias", false),
    SL_HPARAM_ONLY("mlp_fc1_bias", false),
    SL_HPARAM_ONLY("mlp_fc2_bias", false),
};

#define NOMIC "nomic_bert."
#define LAYER "encoder.layers.*."

static const struct sl_weight_desc weights[] = {
    SL_WEIGHTS_ENCODER_WORDS(NOMIC, "emb_ln"),
    SL_WEIGHTS_ENCODER_QKV(NOMIC, LAYER "attn.Wqkv.weight", , "weight", H),
    SL_W_ENCODER(NOMIC, O, LAYER "attn.out_proj.weight", "blk.*.attn_output.weight", H, ATT),
    SL_WEIGHTS_ENCODER_NORMS(NOMIC, LAYER "norm1", LAYER "norm2"),
    SL_W_ENCODER(NOMIC, UP, LAYER "mlp.fc11.weight", "blk.*.ffn_up.weight", I, H),
    SL_W_ENCODER(NOMIC, GATE, LAYER "mlp.fc12.weight", "blk.*.ffn_gate.weight", I, H),
    SL_W_ENCODER(NOMIC, DOWN, LAYER "mlp.fc2.weight", "blk.*.ffn_down.weight", H, I),
};
/* clang-format on */

static const struct sl_rope_desc ropes[] = {
    {.hf_theta = "rotary_emb_base", .gguf_theta = "rope.freq_base", .theta = 1000, .scaled = true},
};

static int nomic_plan(const struct sl_model_name *name, const struct sl_hparams *hp,
                      struct sl_layer_desc *layers, struct sl_error *err)
{
    int rc = sl_plan_encoder(name, hp, layers, err);
    for (int32_t i = 0; i < hp->n_layers && rc == 0; i++)
        layers[i].ffn = SL_FFN_GATED;
    return rc;
}

static void nomic_tiny(const struct sl_model_name *name, struct sl_hparams *hp)
{
    sl_tiny_encoder(name, hp);
    hp->act = SL_ACT_SILU;
    hp->ropes[0].theta = 1000;
}

const struct sl_model_desc sl_model_nomic = {
    .id = "nomic",
    SL_MODEL_TABLES,
    SL_MODEL_ROPES(ropes),
    .encoder = true,
    .plan = nomic_plan,
    .tiny = nomic_tiny,
};
