/* SPDX-License-Identifier: MIT
 * FlexOlmo: OLMo 2 with experts in place of the MLP, so that norms stand behind the sublayers.
 */
#include "base/check.h"
#include "models/desc.h"
#include "models/tables.h"

static const struct sl_model_name names[] = {
    {.id = "flex_olmo",
     .hf_architecture = "FlexOlmoForCausalLM",
     .hf_model_type = "flex_olmo",
     .has = SL_HAS_QK_NORM},
};

/* clang-format off */
static const struct sl_hparam_desc hparams[] = {
    SL_HPARAMS_BLOCKS,
    SL_HPARAMS_EXPERTS,
    SL_HPARAM_NORM_TOP_EXPERTS(false),
    SL_HPARAM_ACT(SL_ACT_SILU),
    SL_HPARAM_TIED(false),
    {NULL, {"attention_bias"}, SL_HP_HAS, .has = SL_HAS_QKV_BIAS | SL_HAS_O_BIAS},
};

static const struct sl_weight_desc weights[] = {
    SL_WEIGHTS_EMBED_AND_HEAD,
    SL_WEIGHTS_GQA,
    SL_WEIGHTS_QKV_BIAS,
    SL_WEIGHTS_O_BIAS,
    SL_WEIGHTS_QK_NORM_ROWS,
    SL_W_LAYER(ATTN_OUT_NORM, "post_attention_layernorm.weight", "post_attention_norm.weight", H,
               NONE, NONE)},
    SL_WEIGHTS_EXPERTS,
    SL_W_LAYER(FFN_OUT_NORM, "post_feedforward_layernorm.weight", "post_ffw_norm.weight", H, NONE,
               NONE)},
};
/* clang-format on */

static const struct sl_rope_desc ropes[] = {
    {.hf_theta = "rope_theta", .gguf_theta = "rope.freq_base", .theta = 500000, .scaled = true},
};

static int flex_olmo_plan(const struct sl_model_name *name, const struct sl_hparams *hp,
                          struct sl_layer_desc *layers, struct sl_error *err)
{
    (void)name;
    for (int32_t i = 0; i < hp->n_layers; i++) {
        layers[i].norms = SL_NORM_OUT;
        layers[i].qk_norm = SL_QK_NORM_ROWS;
    }
    return sl_plan_experts(hp, SL_ROUTE_SOFTMAX, 0, layers, err);
}

static void flex_olmo_tiny(const struct sl_model_name *name, struct sl_hparams *hp)
{
    *hp = (struct sl_hparams){
        .hidden = 64,
        .intermediate = 96,
        .n_layers = 2,
        .n_heads = 4,
        .n_kv_heads = 2,
        .head_dim = 16,
        .n_vocab = 320,
        .context = 512,
        .norm_eps = 1e-6,
        .has = name->has | SL_HAS_HEAD,
        .ropes = {{.theta = 500000}},
        .n_experts = 7,
        .top_experts = 3,
    };
}

const struct sl_model_desc sl_model_flex_olmo = {
    .id = "flex_olmo",
    SL_MODEL_TABLES,
    SL_MODEL_ROPES(ropes),
    .plan = flex_olmo_plan,
    .tiny = flex_olmo_tiny,
};
