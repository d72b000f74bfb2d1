/* SPDX-License-Identifier: MIT
 * Arcee (AFM-4.5B): as Llama, with an MLP without a gate whose activation is the square of ReLU.
 */
#include "base/check.h"
#include "models/desc.h"
#include "models/tables.h"

static const struct sl_model_name names[] = {
    {.id = "arcee",
     .hf_architecture = "ArceeForCausalLM",
     .hf_model_type = "arcee",
     .gguf_architecture = "arcee"},
};

/* clang-format off */
static const struct sl_hparam_desc hparams[] = {
    SL_HPARAMS_TRANSFORMER,
    SL_HPARAM_ACT(SL_ACT_RELU2),
    SL_HPARAM_TIED(false),
    {NULL, {"attention_bias"}, SL_HP_HAS, .has = SL_HAS_QKV_BIAS | SL_HAS_O_BIAS},
    {NULL, {"mlp_bias"}, SL_HP_BOOL, SL_HP_AT(mlp_bias)},
};

static const struct sl_weight_desc weights[] = {
    SL_WEIGHTS_EMBED_AND_HEAD,
    SL_WEIGHTS_ATTN_NORM,
    SL_WEIGHTS_GQA,
    SL_WEIGHTS_QKV_BIAS,
    SL_WEIGHTS_O_BIAS,
    SL_WEIGHTS_FFN_NORM,
    SL_W_LAYER(UP, "mlp.up_proj.weight", "ffn_up.weight", I, H, ROWS)},
    SL_W_LAYER(DOWN, "mlp.down_proj.weight", "ffn_down.weight", H, I, ROWS)},
    SL_WEIGHT_ROPE_FREQS,
};
/* clang-format on */

static int arcee_plan(const struct sl_model_name *name, const struct sl_hparams *hp,
                      struct sl_layer_desc *layers, struct sl_error *err)
{
    (void)name;
    if (hp->mlp_bias)
        return sl_fail(err, SL_EUNSUPPORTED, "config.json: mlp_bias true is not supported");
    for (int32_t i = 0; i < hp->n_layers; i++)
        layers[i].ffn = SL_FFN_PLAIN;
    return 0;
}

static void arcee_tiny(const struct sl_model_name *name, struct sl_hparams *hp)
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
        .ropes = {{.theta = 10000}},
        .act = SL_ACT_RELU2,
    };
}

const struct sl_model_desc sl_model_arcee = {
    .id = "arcee",
    SL_MODEL_TABLES,
    SL_MODEL_ROPES(sl_rope_one),
    .gguf_interleaved = true,
    .plan = arcee_plan,
    .tiny = arcee_tiny,
};
