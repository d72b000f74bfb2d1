/* SPDX-License-Identifier: MIT
 * Gemma (1 and 1.1, also CodeGemma): as Llama, with norms of 1 + w, heads of a size of their own
 * and embeddings times the root of their width.
 */
#include "base/check.h"
#include "models/desc.h"
#include "models/tables.h"

static const struct sl_model_name names[] = {
    {.id = "gemma",
     .hf_architecture = "GemmaForCausalLM",
     .hf_model_type = "gemma",
     .gguf_architecture = "gemma",
     .head_dim = 256},
};

/* clang-format off */
static const struct sl_hparam_desc hparams[] = {
    SL_HPARAMS_TRANSFORMER,
    {NULL, {"hidden_act"}, SL_HP_ACT, SL_HP_AT(act), .def = SL_ACT_GELU_TANH},
    SL_HPARAM_TIED(true),
    {NULL, {"attention_bias"}, SL_HP_HAS, .has = SL_HAS_QKV_BIAS | SL_HAS_O_BIAS},
    SL_HPARAM_ONLY("use_bidirectional_attention", false),
};

static const struct sl_weight_desc weights[] = {
    SL_WEIGHTS_EMBED_AND_HEAD_PLUS_ONE,
    SL_W_LAYER(ATTN_NORM, "input_layernorm.weight", "attn_norm.weight", H, NONE, NONE),
     .flags = SL_W_PLUS_ONE},
    SL_WEIGHTS_GQA,
    SL_WEIGHTS_QKV_BIAS,
    SL_WEIGHTS_O_BIAS,
    SL_W_LAYER(FFN_NORM, "post_attention_layernorm.weight", "ffn_norm.weight", H, NONE, NONE),
     .flags = SL_W_PLUS_ONE},
    SL_WEIGHTS_FFN_GATED,
};
/* clang-format on */

static int gemma1_plan(const struct sl_model_name *name, const struct sl_hparams *hp,
                       struct sl_layer_desc *layers, struct sl_error *err)
{
    (void)name;
    (void)err;
    for (int32_t i = 0; i < hp->n_layers; i++)
        if (layers[i].act == SL_ACT_GELU_ERF) /* "gelu" of the first files means the other */
            layers[i].act = SL_ACT_GELU_TANH;
    return 0;
}

static void gemma1_tiny(const struct sl_model_name *name, struct sl_hparams *hp)
{
    *hp = (struct sl_hparams){
        .hidden = 64,
        .intermediate = 160,
        .n_layers = 2,
        .n_heads = 4,
        .n_kv_heads = 1,
        .head_dim = 32,
        .n_vocab = 320,
        .context = 512,
        .norm_eps = 1e-6,
        .has = name->has,
        .act = SL_ACT_GELU_TANH,
        .ropes = {{.theta = 10000}},
    };
}

const struct sl_model_desc sl_model_gemma1 = {
    .id = "gemma1",
    SL_MODEL_TABLES,
    SL_MODEL_ROPES(sl_rope_one),
    .scaled_embedding = true,
    .plan = gemma1_plan,
    .tiny = gemma1_tiny,
};
