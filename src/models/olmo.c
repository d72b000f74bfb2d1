/* SPDX-License-Identifier: MIT
 * OLMo 2: as Llama, but each norm stands behind its sublayer, so that nothing is normed before the
 * first one, and q and k are normed over all their heads together.
 */
#include "base/check.h"
#include "models/desc.h"
#include "models/tables.h"

static const struct sl_model_name names[] = {
    {.id = "olmo2",
     .hf_architecture = "Olmo2ForCausalLM",
     .hf_model_type = "olmo2",
     .gguf_architecture = "olmo2",
     .has = SL_HAS_QK_NORM},
};

static const struct sl_hparam_desc hparams[] = {
    SL_HPARAMS_TRANSFORMER,
    SL_HPARAM_ACT(SL_ACT_SILU),
    SL_HPARAM_TIED(false),
    {.hf = {"attention_bias"}, .type = SL_HP_HAS, .has = SL_HAS_QKV_BIAS | SL_HAS_O_BIAS},
};

/* clang-format off */
static const struct sl_weight_desc weights[] = {
    SL_WEIGHTS_EMBED_AND_HEAD,
    SL_WEIGHTS_GQA,
    SL_WEIGHTS_QKV_BIAS,
    SL_WEIGHTS_O_BIAS,
    SL_WEIGHTS_QK_NORM_ROWS,
    SL_W_LAYER(ATTN_OUT_NORM, "post_attention_layernorm.weight", "post_attention_norm.weight", H,
               NONE, NONE)},
    SL_WEIGHTS_FFN_GATED,
    SL_W_LAYER(FFN_OUT_NORM, "post_feedforward_layernorm.weight", "post_ffw_norm.weight", H, NONE,
               NONE)},
};
/* clang-format on */

static int plan(const struct sl_model_name *name, const struct sl_hparams *hp,
                struct sl_layer_desc *layers, struct sl_error *err)
{
    (void)name;
    (void)err;
    for (int32_t i = 0; i < hp->n_layers; i++) {
        layers[i].norms = SL_NORM_OUT;
        layers[i].qk_norm = SL_QK_NORM_ROWS;
    }
    return 0;
}

static void tiny(const struct sl_model_name *name, struct sl_hparams *hp)
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
        .norm_eps = 1e-6,
        .has = name->has | SL_HAS_HEAD,
        .ropes = {{.theta = 500000}},
    };
}

const struct sl_model_desc sl_model_olmo = {
    .id = "olmo",
    .names = names,
    .hparams = hparams,
    .weights = weights,
    .ropes = sl_rope_one,
    .n_names = SL_COUNT(names),
    .n_hparams = SL_COUNT(hparams),
    .n_weights = SL_COUNT(weights),
    .n_ropes = SL_COUNT(sl_rope_one),
    .plan = plan,
    .tiny = tiny,
};
