/* SPDX-License-Identifier: MIT
 * Nemotron 3 and 4, Minitron: norms of 1 + w with a mean and a bias, an MLP of squared ReLU without
 * a gate, half of each head rotated.
 */
#include "base/check.h"
#include "models/desc.h"
#include "models/tables.h"

static const struct sl_model_name names[] = {
    {.id = "nemotron",
     .hf_architecture = "NemotronForCausalLM",
     .hf_model_type = "nemotron",
     .gguf_architecture = "nemotron"},
};

/* clang-format off */
static const struct sl_hparam_desc hparams[] = {
    SL_HPARAMS_TRANSFORMER_LAYERNORM,
    SL_HPARAM_ACT(SL_ACT_RELU2),
    SL_HPARAM_TIED(false),
    {NULL, {"attention_bias"}, SL_HP_HAS, .has = SL_HAS_QKV_BIAS | SL_HAS_O_BIAS},
    {NULL, {"mlp_bias"}, SL_HP_HAS, .has = SL_HAS_MLP_BIAS},
};

static const struct sl_weight_desc weights[] = {
    {.slot = SL_SLOT_EMBED, .hf = "model.embed_tokens.weight", .gguf = "token_embd.weight",
     .rows = SL_DIM_V, .cols = SL_DIM_H},
    {.slot = SL_SLOT_FINAL_NORM, .hf = "model.norm.weight", .gguf = "output_norm.weight",
     .rows = SL_DIM_H, .flags = SL_W_PLUS_ONE},
    SL_WEIGHTS_FINAL_NORM_BIAS,
    {.slot = SL_SLOT_HEAD, .hf = "lm_head.weight", .gguf = "output.weight", .rows = SL_DIM_V,
     .cols = SL_DIM_H, .shard = SL_SHARD_ROWS, .when = SL_HAS_HEAD},
    SL_W_LAYER(ATTN_NORM, "input_layernorm.weight", "attn_norm.weight", H, NONE, NONE),
     .flags = SL_W_PLUS_ONE},
    SL_WEIGHTS_ATTN_NORM_BIAS,
    SL_WEIGHTS_GQA,
    SL_WEIGHTS_QKV_BIAS,
    SL_WEIGHTS_O_BIAS,
    SL_W_LAYER(FFN_NORM, "post_attention_layernorm.weight", "ffn_norm.weight", H, NONE, NONE),
     .flags = SL_W_PLUS_ONE},
    SL_WEIGHTS_FFN_NORM_BIAS,
    SL_WEIGHTS_FFN_PLAIN("mlp.up_proj", "mlp.down_proj"),
};
/* clang-format on */

static const struct sl_rope_desc ropes[] = {
    {.hf_theta = "rope_theta",
     .gguf_theta = "rope.freq_base",
     .theta = 10000,
     .scaled = true,
     .partial = 0.5},
};

static int nemotron_plan(const struct sl_model_name *name, const struct sl_hparams *hp,
                         struct sl_layer_desc *layers, struct sl_error *err)
{
    (void)name;
    (void)err;
    for (int32_t i = 0; i < hp->n_layers; i++) {
        layers[i].norm = SL_NORM_LAYER;
        layers[i].ffn = SL_FFN_PLAIN;
    }
    return 0;
}

static void nemotron_tiny(const struct sl_model_name *name, struct sl_hparams *hp)
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
        .act = SL_ACT_RELU2,
        .ropes = {{.theta = 10000, .n_dims = 8}},
    };
}

const struct sl_model_desc sl_model_nemotron = {
    .id = "nemotron",
    SL_MODEL_TABLES,
    SL_MODEL_ROPES(ropes),
    .plan = nemotron_plan,
    .tiny = nemotron_tiny,
};
