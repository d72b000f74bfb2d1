/* SPDX-License-Identifier: MIT
 * OLMoE: as Llama, but with experts in place of the MLP, and q and k are normed over all their
 * heads together.
 */
#include "base/check.h"
#include "models/desc.h"
#include "models/tables.h"

static const struct sl_model_name names[] = {
    {.id = "olmoe",
     .hf_architecture = "OlmoeForCausalLM",
     .hf_model_type = "olmoe",
     .gguf_architecture = "olmoe",
     .has = SL_HAS_QK_NORM},
};

/* clang-format off */
static const struct sl_hparam_desc hparams[] = {
    SL_HPARAMS_BLOCKS,
    SL_HPARAMS_EXPERTS,
    SL_HPARAM_NORM_TOP_EXPERTS(false),
    SL_HPARAM_ACT(SL_ACT_SILU),
    SL_HPARAM_TIED(false),
    {"attention.clamp_kqv", {"clip_qkv"}, SL_HP_FLOAT, SL_HP_AT(clip_qkv), .min = 0, .max = 1e6},
    {NULL, {"attention_bias"}, SL_HP_HAS, .has = SL_HAS_QKV_BIAS | SL_HAS_O_BIAS},
};

static const struct sl_weight_desc weights[] = {
    SL_WEIGHTS_EMBED_AND_HEAD,
    SL_WEIGHTS_ATTN_NORM,
    SL_WEIGHTS_GQA,
    SL_WEIGHTS_QKV_BIAS,
    SL_WEIGHTS_O_BIAS,
    SL_WEIGHTS_QK_NORM_ROWS,
    SL_WEIGHTS_FFN_NORM,
    SL_WEIGHTS_EXPERTS,
};
/* clang-format on */

static int olmoe_plan(const struct sl_model_name *name, const struct sl_hparams *hp,
                      struct sl_layer_desc *layers, struct sl_error *err)
{
    (void)name;
    for (int32_t i = 0; i < hp->n_layers; i++) {
        layers[i].qk_norm = SL_QK_NORM_ROWS;
        layers[i].clip = (float)hp->clip_qkv;
    }
    return sl_plan_experts(hp, SL_ROUTE_SOFTMAX, 0, layers, err);
}

static void olmoe_tiny(const struct sl_model_name *name, struct sl_hparams *hp)
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
        .norm_eps = 1e-5,
        .has = name->has | SL_HAS_HEAD,
        .ropes = {{.theta = 10000}},
        .n_experts = 7,
        .top_experts = 3,
    };
}

const struct sl_model_desc sl_model_olmoe = {
    .id = "olmoe",
    SL_MODEL_TABLES,
    SL_MODEL_ROPES(sl_rope_one),
    .plan = olmoe_plan,
    .tiny = olmoe_tiny,
};
