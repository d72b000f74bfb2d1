/* SPDX-License-Identifier: MIT
 * StarCoder2: norms with a mean and a bias, an MLP without a gate, biases everywhere, and a window
 * in all layers where config.json has one.
 */
#include "base/check.h"
#include "models/desc.h"
#include "models/tables.h"

static const struct sl_model_name names[] = {
    {.id = "starcoder2",
     .hf_architecture = "Starcoder2ForCausalLM",
     .hf_model_type = "starcoder2",
     .gguf_architecture = "starcoder2"},
};

/* clang-format off */
static const struct sl_hparam_desc hparams[] = {
    SL_HPARAMS_TRANSFORMER_LAYERNORM,
    SL_HPARAM_ACT(SL_ACT_GELU_TANH),
    SL_HPARAM_TIED(true),
    {"attention.sliding_window", {"sliding_window"}, SL_HP_INT, SL_HP_AT(window), .min = 1,
     .max = SL_MAX_CONTEXT},
    {NULL, {"use_bias"}, SL_HP_HAS, .has = SL_HAS_QKV_BIAS | SL_HAS_O_BIAS | SL_HAS_MLP_BIAS,
     .def = true},
};

static const struct sl_weight_desc weights[] = {
    SL_WEIGHTS_EMBED_AND_HEAD,
    SL_WEIGHTS_FINAL_NORM_BIAS,
    SL_WEIGHTS_ATTN_NORM,
    SL_WEIGHTS_ATTN_NORM_BIAS,
    SL_WEIGHTS_GQA,
    SL_WEIGHTS_QKV_BIAS,
    SL_WEIGHTS_O_BIAS,
    SL_WEIGHTS_FFN_NORM,
    SL_WEIGHTS_FFN_NORM_BIAS,
    SL_WEIGHTS_FFN_PLAIN("mlp.c_fc", "mlp.c_proj"),
};
/* clang-format on */

static int starcoder2_plan(const struct sl_model_name *name, const struct sl_hparams *hp,
                           struct sl_layer_desc *layers, struct sl_error *err)
{
    (void)name;
    (void)err;
    for (int32_t i = 0; i < hp->n_layers; i++) {
        layers[i].norm = SL_NORM_LAYER;
        layers[i].ffn = SL_FFN_PLAIN;
        layers[i].window = hp->window;
    }
    return 0;
}

static void starcoder2_tiny(const struct sl_model_name *name, struct sl_hparams *hp)
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
        .has = name->has | SL_HAS_QKV_BIAS | SL_HAS_O_BIAS | SL_HAS_MLP_BIAS,
        .act = SL_ACT_GELU_TANH,
        .ropes = {{.theta = 10000}},
        .window = 24,
    };
}

const struct sl_model_desc sl_model_starcoder2 = {
    .id = "starcoder2",
    SL_MODEL_TABLES,
    SL_MODEL_ROPES(sl_rope_one),
    .plan = starcoder2_plan,
    .tiny = starcoder2_tiny,
};
