/* SPDX-License-Identifier: MIT
 * GLM-4 (9B, 32B; 0414) and its predecessor "glm": the first half of a head is rotated, in pairs of
 * neighbours; gate and up are one tensor. GLM-4-0414 norms what attention and MLP give as well.
 *
 * GGUF files of what came before transformers had a class ("chatglm") hold q, k and v fused.
 */
#include "base/check.h"
#include "models/desc.h"
#include "models/tables.h"

static const struct sl_model_name names[] = {
    {.id = "glm4",
     .hf_architecture = "Glm4ForCausalLM",
     .hf_model_type = "glm4",
     .gguf_architecture = "glm4",
     .has = SL_HAS_OUT_NORMS,
     .head_dim = 128},
    {.id = "glm",
     .hf_architecture = "GlmForCausalLM",
     .hf_model_type = "glm",
     .gguf_architecture = "chatglm",
     .head_dim = 128},
};

/* clang-format off */
static const struct sl_hparam_desc hparams[] = {
    SL_HPARAMS_TRANSFORMER,
    SL_HPARAM_ACT(SL_ACT_SILU),
    SL_HPARAM_TIED(false),
    {NULL, {"attention_bias"}, SL_HP_HAS, .has = SL_HAS_QKV_BIAS, .def = true},
};

#define QKV SL_DIM_Q, SL_DIM_K, SL_DIM_VALUES
#define GLM_QKV(s, hf_name, gguf_name, end, r, c, how, idx)                                        \
    SL_W_LAYER(s, hf_name end, gguf_name end, r, c, how), .gguf_fused = "blk.*.attn_qkv" end,      \
     .fused = {QKV}, .part = idx

static const struct sl_weight_desc weights[] = {
    SL_WEIGHTS_EMBED_AND_HEAD,
    SL_WEIGHTS_ATTN_NORM,
    GLM_QKV(Q, "self_attn.q_proj", "attn_q", ".weight", Q, H, HEADS, 0)},
    GLM_QKV(K, "self_attn.k_proj", "attn_k", ".weight", K, H, KV_HEADS, 1)},
    GLM_QKV(V, "self_attn.v_proj", "attn_v", ".weight", VALUES, H, KV_HEADS, 2)},
    SL_W_LAYER(O, "self_attn.o_proj.weight", "attn_output.weight", H, ATT, ROWS)},
    GLM_QKV(Q_BIAS, "self_attn.q_proj", "attn_q", ".bias", Q, NONE, HEADS, 0),
     .when = SL_HAS_QKV_BIAS},
    GLM_QKV(K_BIAS, "self_attn.k_proj", "attn_k", ".bias", K, NONE, KV_HEADS, 1),
     .when = SL_HAS_QKV_BIAS},
    GLM_QKV(V_BIAS, "self_attn.v_proj", "attn_v", ".bias", VALUES, NONE, KV_HEADS, 2),
     .when = SL_HAS_QKV_BIAS},
    SL_W_LAYER(ATTN_OUT_NORM, "post_self_attn_layernorm.weight", "post_attention_norm.weight", H,
               NONE, NONE), .when = SL_HAS_OUT_NORMS},
    SL_WEIGHTS_FFN_NORM,
    SL_WEIGHTS_FFN_GATE_UP,
    SL_W_LAYER(FFN_OUT_NORM, "post_mlp_layernorm.weight", "post_ffw_norm.weight", H, NONE, NONE),
     .when = SL_HAS_OUT_NORMS},
};
/* clang-format on */

static const struct sl_rope_desc ropes[] = {
    {.hf_theta = "rope_theta",
     .gguf_theta = "rope.freq_base",
     .theta = 10000,
     .scaled = true,
     .pairing = SL_ROPE_INTERLEAVED,
     .partial = 0.5},
};

static int glm_plan(const struct sl_model_name *name, const struct sl_hparams *hp,
                    struct sl_layer_desc *layers, struct sl_error *err)
{
    (void)name;
    (void)err;
    for (int32_t i = 0; i < hp->n_layers; i++)
        layers[i].norms = (hp->has & SL_HAS_OUT_NORMS) != 0 ? SL_NORM_IN | SL_NORM_OUT : SL_NORM_IN;
    return 0;
}

static void glm_tiny(const struct sl_model_name *name, struct sl_hparams *hp)
{
    *hp = (struct sl_hparams){
        .hidden = 64,
        .intermediate = 160,
        .n_layers = 2,
        .n_heads = 4,
        .n_kv_heads = 2,
        .head_dim = 32,
        .n_vocab = 320,
        .context = 512,
        .norm_eps = 1.5625e-7,
        .has = name->has | SL_HAS_HEAD | SL_HAS_QKV_BIAS,
        .ropes = {{.theta = 10000, .n_dims = 16}},
    };
}

const struct sl_model_desc sl_model_glm = {
    .id = "glm",
    SL_MODEL_TABLES,
    SL_MODEL_ROPES(ropes),
    .plan = glm_plan,
    .tiny = glm_tiny,
};
