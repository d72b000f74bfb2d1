/* SPDX-License-Identifier: MIT
 * Apertus: as Llama with norms of q and k by head, and an MLP without a gate whose activation,
 * xIELU, has parameters in each layer: tensors of one value, in a GGUF lists of its metadata.
 */
#include "base/check.h"
#include "models/desc.h"
#include "models/tables.h"

static const struct sl_model_name names[] = {
    {.id = "apertus",
     .hf_architecture = "ApertusForCausalLM",
     .hf_model_type = "apertus",
     .gguf_architecture = "apertus",
     .has = SL_HAS_QK_NORM},
};

/* clang-format off */
#define XIELU(gguf_name, idx, lowest)                                                             \
    {".xielu." gguf_name, {NULL}, SL_HP_LAYER_FLOATS, SL_HP_AT(xielu[idx]), .required = true,     \
     .min = lowest, .max = 1e4}

static const struct sl_hparam_desc hparams[] = {
    SL_HPARAMS_SHAPE,
    {"attention.layer_norm_rms_epsilon", {"rms_norm_eps"}, SL_HP_FLOAT, SL_HP_AT(norm_eps),
     .def = 1e-5, .min = 1e-20, .max = 1},
    SL_HPARAM_NO_EXPERTS,
    {NULL, {"hidden_act"}, SL_HP_CHOICE, .value = "xielu"},
    XIELU("alpha_p", 0, -1e4),
    XIELU("alpha_n", 1, -1e4),
    XIELU("beta", 2, -1e4),
    XIELU("eps", 3, -1),
    SL_HPARAM_TIED(false),
    {NULL, {"attention_bias"}, SL_HP_HAS, .has = SL_HAS_QKV_BIAS | SL_HAS_O_BIAS},
};

#define ACT(s, name)                                                                              \
    {.slot = SL_SLOT_XIELU_##s, .hf = "model.layers.*.mlp.act_fn." name, .rows = SL_DIM_ONE}

static const struct sl_weight_desc weights[] = {
    SL_WEIGHTS_EMBED_AND_HEAD,
    SL_W_LAYER(ATTN_NORM, "attention_layernorm.weight", "attn_norm.weight", H, NONE, NONE)},
    SL_WEIGHTS_GQA,
    SL_WEIGHTS_QKV_BIAS,
    SL_WEIGHTS_O_BIAS,
    SL_WEIGHTS_QK_NORM,
    SL_W_LAYER(FFN_NORM, "feedforward_layernorm.weight", "ffn_norm.weight", H, NONE, NONE)},
    SL_W_LAYER(UP, "mlp.up_proj.weight", "ffn_up.weight", I, H, ROWS)},
    SL_W_LAYER(DOWN, "mlp.down_proj.weight", "ffn_down.weight", H, I, ROWS)},
    ACT(ALPHA_P, "alpha_p"),
    ACT(ALPHA_N, "alpha_n"),
    ACT(BETA, "beta"),
    ACT(EPS, "eps"),
    SL_WEIGHT_ROPE_FREQS,
};
/* clang-format on */

/* What transformers takes where config.json says nothing, a rope_theta by itself included. */
static const struct sl_rope_params absent = {
    .scaling = SL_ROPE_LLAMA3,
    .theta = 12000000,
    .factor = 8,
    .original_context = 8192,
    .low_freq_factor = 1,
    .high_freq_factor = 4,
};
static const struct sl_rope_desc ropes[] = {{.hf_theta = "rope_theta",
                                             .gguf_theta = "rope.freq_base",
                                             .theta = 12000000,
                                             .scaled = true,
                                             .hf_absent = &absent}};

static int apertus_plan(const struct sl_model_name *name, const struct sl_hparams *hp,
                        struct sl_layer_desc *layers, struct sl_error *err)
{
    (void)name;
    (void)err;
    for (int32_t i = 0; i < hp->n_layers; i++) {
        layers[i].ffn = SL_FFN_PLAIN;
        layers[i].act = SL_ACT_XIELU;
    }
    return 0;
}

static void apertus_tiny(const struct sl_model_name *name, struct sl_hparams *hp)
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
        .has = name->has | SL_HAS_HEAD,
        .ropes = {absent},
        .xielu = {{0.25, -0.5}, {-1, 0.125}, {0.5, 0.5}, {-0.0625, -0.03125}},
    };
}

const struct sl_model_desc sl_model_apertus = {
    .id = "apertus",
    SL_MODEL_TABLES,
    SL_MODEL_ROPES(ropes),
    .plan = apertus_plan,
    .tiny = apertus_tiny,
};
