/* SPDX-License-Identifier: MIT
 * StableLM 2 and 3B: as Llama, but norms have a mean and a bias and a quarter of each head is
 * rotated; attention and MLP may be fed by one norm (use_parallel_residual).
 */
#include "base/check.h"
#include "models/desc.h"
#include "models/tables.h"

static const struct sl_model_name names[] = {
    {.id = "stablelm",
     .hf_architecture = "StableLmForCausalLM",
     .hf_model_type = "stablelm",
     .gguf_architecture = "stablelm"},
};

/* clang-format off */
static const struct sl_hparam_desc hparams[] = {
    SL_HPARAMS_TRANSFORMER_LAYERNORM,
    SL_HPARAM_ACT(SL_ACT_SILU),
    SL_HPARAM_TIED(false),
    {NULL, {"use_parallel_residual"}, SL_HP_BOOL, SL_HP_AT(parallel)},
    {NULL, {"use_qkv_bias"}, SL_HP_HAS, .has = SL_HAS_QKV_BIAS},
    {NULL, {"qk_layernorm"}, SL_HP_HAS, .has = SL_HAS_QK_NORM},
};

static const struct sl_weight_desc weights[] = {
    SL_WEIGHTS_EMBED_AND_HEAD,
    SL_WEIGHTS_FINAL_NORM_BIAS,
    SL_WEIGHTS_ATTN_NORM,
    SL_WEIGHTS_ATTN_NORM_BIAS,
    SL_WEIGHTS_GQA,
    SL_WEIGHTS_QKV_BIAS,
    SL_WEIGHTS_QK_NORM, /* only to be refused */
    SL_W_LAYER(FFN_NORM, "post_attention_layernorm.weight", "ffn_norm.weight", H, NONE, NONE),
     .when = SL_HAS_FFN_NORM},
    SL_W_LAYER(FFN_NORM_BIAS, "post_attention_layernorm.bias", "ffn_norm.bias", H, NONE, NONE),
     .when = SL_HAS_FFN_NORM},
    SL_WEIGHTS_FFN_GATED,
};
/* clang-format on */

static const struct sl_rope_desc ropes[] = {
    {.hf_theta = "rope_theta",
     .gguf_theta = "rope.freq_base",
     .theta = 10000,
     .scaled = true,
     .partial = 0.25},
};

static int stablelm_plan(const struct sl_model_name *name, const struct sl_hparams *hp,
                         struct sl_layer_desc *layers, struct sl_error *err)
{
    (void)name;
    if ((hp->has & SL_HAS_QK_NORM) != 0)
        return sl_fail(err, SL_EUNSUPPORTED, "%s: norms of q and k with a mean are not supported",
                       hp->from_gguf ? "GGUF: blk.0.attn_q_norm.weight"
                                     : "config.json: qk_layernorm true");
    /* What a GGUF says is its tensors': those with a norm for each are not parallel. */
    const bool parallel = hp->from_gguf ? (hp->has & SL_HAS_FFN_NORM) == 0 : hp->parallel;
    for (int32_t i = 0; i < hp->n_layers; i++) {
        layers[i].norm = SL_NORM_LAYER;
        layers[i].parallel = parallel;
        layers[i].has |= parallel ? 0u : (unsigned)SL_HAS_FFN_NORM;
    }
    return 0;
}

static void stablelm_tiny(const struct sl_model_name *name, struct sl_hparams *hp)
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
        .has = name->has | SL_HAS_HEAD | SL_HAS_QKV_BIAS | SL_HAS_FFN_NORM,
        .ropes = {{.theta = 10000, .n_dims = 4}},
    };
}

const struct sl_model_desc sl_model_stablelm = {
    .id = "stablelm",
    SL_MODEL_TABLES,
    SL_MODEL_ROPES(ropes),
    .plan = stablelm_plan,
    .tiny = stablelm_tiny,
};
