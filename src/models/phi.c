/* SPDX-License-Identifier: MIT
 * Phi 1, 1.5 and 2: one norm, with a mean and a bias, feeds attention and an MLP without a gate;
 * a part of each head is rotated; biases everywhere, also of the logits.
 */
#include "base/check.h"
#include "models/desc.h"
#include "models/tables.h"

static const struct sl_model_name names[] = {
    {.id = "phi",
     .hf_architecture = "PhiForCausalLM",
     .hf_model_type = "phi",
     .gguf_architecture = "phi2",
     .has = SL_HAS_QKV_BIAS | SL_HAS_O_BIAS | SL_HAS_MLP_BIAS},
};

/* clang-format off */
static const struct sl_hparam_desc hparams[] = {
    SL_HPARAMS_TRANSFORMER_LAYERNORM,
    SL_HPARAM_ACT(SL_ACT_GELU_TANH),
    SL_HPARAM_TIED(false),
    {NULL, {"qk_layernorm"}, SL_HP_HAS, .has = SL_HAS_QK_NORM},
};

static const struct sl_weight_desc weights[] = {
    {.slot = SL_SLOT_EMBED, .hf = "model.embed_tokens.weight", .gguf = "token_embd.weight",
     .rows = SL_DIM_V, .cols = SL_DIM_H},
    {.slot = SL_SLOT_FINAL_NORM, .hf = "model.final_layernorm.weight",
     .gguf = "output_norm.weight", .rows = SL_DIM_H},
    {.slot = SL_SLOT_FINAL_NORM_BIAS, .hf = "model.final_layernorm.bias",
     .gguf = "output_norm.bias", .rows = SL_DIM_H},
    {.slot = SL_SLOT_HEAD, .hf = "lm_head.weight", .gguf = "output.weight", .rows = SL_DIM_V,
     .cols = SL_DIM_H, .shard = SL_SHARD_ROWS, .when = SL_HAS_HEAD},
    {.slot = SL_SLOT_HEAD_BIAS, .hf = "lm_head.bias", .gguf = "output.bias", .rows = SL_DIM_V,
     .shard = SL_SHARD_ROWS},
    SL_WEIGHTS_ATTN_NORM,
    SL_WEIGHTS_ATTN_NORM_BIAS,
    SL_W_LAYER(Q, "self_attn.q_proj.weight", "attn_q.weight", Q, H, HEADS),
     .flags = SL_W_ROPE_ROWS},
    SL_W_LAYER(K, "self_attn.k_proj.weight", "attn_k.weight", K, H, KV_HEADS),
     .flags = SL_W_ROPE_ROWS},
    SL_W_LAYER(V, "self_attn.v_proj.weight", "attn_v.weight", VALUES, H, KV_HEADS)},
    SL_W_LAYER(O, "self_attn.dense.weight", "attn_output.weight", H, ATT, ROWS)},
    SL_WEIGHTS_QKV_BIAS,
    SL_W_LAYER(O_BIAS, "self_attn.dense.bias", "attn_output.bias", H, NONE, ROWS)},
    SL_WEIGHTS_FFN_PLAIN("mlp.fc1", "mlp.fc2"),
};
/* clang-format on */

static const struct sl_rope_desc ropes[] = {
    {.hf_theta = "rope_theta",
     .gguf_theta = "rope.freq_base",
     .theta = 10000,
     .scaled = true,
     .partial = 0.5},
};

static int phi_plan(const struct sl_model_name *name, const struct sl_hparams *hp,
                    struct sl_layer_desc *layers, struct sl_error *err)
{
    (void)name;
    if ((hp->has & SL_HAS_QK_NORM) != 0)
        return sl_fail(err, SL_EUNSUPPORTED, "config.json: qk_layernorm true is not supported");
    for (int32_t i = 0; i < hp->n_layers; i++) {
        layers[i].norm = SL_NORM_LAYER;
        layers[i].parallel = true;
        layers[i].ffn = SL_FFN_PLAIN;
    }
    return 0;
}

static void phi_tiny(const struct sl_model_name *name, struct sl_hparams *hp)
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
        .act = SL_ACT_GELU_TANH,
        .ropes = {{.theta = 10000, .n_dims = 8}},
    };
}

const struct sl_model_desc sl_model_phi = {
    .id = "phi",
    SL_MODEL_TABLES,
    SL_MODEL_ROPES(ropes),
    .plan = phi_plan,
    .tiny = phi_tiny,
};
