/* SPDX-License-Identifier: MIT
 * ERNIE 4.5, dense: as Llama, rotated in pairs of neighbours.
 */
#include "base/check.h"
#include "models/desc.h"
#include "models/tables.h"

static const struct sl_model_name names[] = {
    {.id = "ernie4_5",
     .hf_architecture = "Ernie4_5ForCausalLM",
     .hf_model_type = "ernie4_5",
     .gguf_architecture = "ernie4_5",
     .head_dim = 128},
};

/* clang-format off */
static const struct sl_hparam_desc hparams[] = {
    SL_HPARAMS_TRANSFORMER,
    SL_HPARAM_ACT(SL_ACT_SILU),
    SL_HPARAM_TIED(true),
    /* biases of all linear layers; no published model has them */
    {NULL, {"use_bias"}, SL_HP_BOOL, SL_HP_AT(mlp_bias)},
};

static const struct sl_weight_desc weights[] = {
    SL_WEIGHTS_EMBED_AND_HEAD,
    SL_WEIGHTS_ATTN_NORM,
    SL_WEIGHTS_GQA,
    SL_WEIGHTS_FFN_NORM,
    SL_WEIGHTS_FFN_GATED,
};
/* clang-format on */

static const struct sl_rope_desc ropes[] = {
    {.hf_theta = "rope_theta",
     .gguf_theta = "rope.freq_base",
     .theta = 500000,
     .scaled = true,
     .pairing = SL_ROPE_INTERLEAVED},
};

static int ernie_plan(const struct sl_model_name *name, const struct sl_hparams *hp,
                      struct sl_layer_desc *layers, struct sl_error *err)
{
    (void)name;
    if (hp->mlp_bias)
        return sl_fail(err, SL_EUNSUPPORTED, "config.json: use_bias true is not supported");
    (void)layers;
    return 0;
}

static void ernie_tiny(const struct sl_model_name *name, struct sl_hparams *hp)
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
        .has = name->has,
        .ropes = {{.theta = 500000}},
    };
}

const struct sl_model_desc sl_model_ernie = {
    .id = "ernie",
    SL_MODEL_TABLES,
    SL_MODEL_ROPES(ropes),
    .plan = ernie_plan,
    .tiny = ernie_tiny,
};
