/* SPDX-License-Identifier: MIT
 * Seed-OSS: as Llama, with biases of q, k and v, and of the output projection where a switch of its
 * own says so.
 */
#include "base/check.h"
#include "models/desc.h"
#include "models/tables.h"

static const struct sl_model_name names[] = {
    {.id = "seed_oss",
     .hf_architecture = "SeedOssForCausalLM",
     .hf_model_type = "seed_oss",
     .gguf_architecture = "seed_oss",
     .head_dim = 128},
};

/* clang-format off */
static const struct sl_hparam_desc hparams[] = {
    SL_HPARAMS_TRANSFORMER,
    SL_HPARAM_ACT(SL_ACT_SILU),
    SL_HPARAM_TIED(false),
    {NULL, {"attention_bias"}, SL_HP_HAS, .has = SL_HAS_QKV_BIAS, .def = true},
    {NULL, {"attention_out_bias"}, SL_HP_HAS, .has = SL_HAS_O_BIAS},
    {NULL, {"mlp_bias"}, SL_HP_BOOL, SL_HP_AT(mlp_bias)},
};

static const struct sl_weight_desc weights[] = {
    SL_WEIGHTS_EMBED_AND_HEAD,
    SL_WEIGHTS_ATTN_NORM,
    SL_WEIGHTS_GQA,
    SL_WEIGHTS_QKV_BIAS,
    SL_WEIGHTS_O_BIAS,
    SL_W_LAYER(FFN_NORM, "post_attention_layernorm.weight", "post_attention_norm.weight", H, NONE,
               NONE)},
    SL_WEIGHTS_FFN_GATED,
};
/* clang-format on */

static const struct sl_rope_desc ropes[] = {
    {.hf_theta = "rope_theta", .gguf_theta = "rope.freq_base", .theta = 10000, .scaled = true},
};

static int seed_oss_plan(const struct sl_model_name *name, const struct sl_hparams *hp,
                         struct sl_layer_desc *layers, struct sl_error *err)
{
    (void)name;
    if (hp->mlp_bias)
        return sl_fail(err, SL_EUNSUPPORTED, "config.json: mlp_bias true is not supported");
    (void)layers;
    return 0;
}

static void seed_oss_tiny(const struct sl_model_name *name, struct sl_hparams *hp)
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
        .norm_eps = 1e-5,
        .has = name->has | SL_HAS_HEAD | SL_HAS_QKV_BIAS,
        .ropes = {{.theta = 10000}},
    };
}

const struct sl_model_desc sl_model_seed_oss = {
    .id = "seed_oss",
    SL_MODEL_TABLES,
    SL_MODEL_ROPES(ropes),
    .plan = seed_oss_plan,
    .tiny = seed_oss_tiny,
};
