/* SPDX-License-Identifier: MIT
 * Granite 3.x (dense): as Llama, with a multiplier each for embeddings, for what a sublayer adds to
 * the residual stream and for attention scores, and a divisor of the logits.
 *
 * Models called SWA have windowed layers, sinks, and layers that are not rotated.
 *
 * GGUF files have the rows of q and k reordered, as Llama's, and call the divisor logit_scale.
 */
#include "base/check.h"
#include "models/desc.h"
#include "models/tables.h"

static const struct sl_model_name names[] = {
    {.id = "granite",
     .hf_architecture = "GraniteForCausalLM",
     .hf_model_type = "granite",
     .gguf_architecture = "granite"},
    {.id = "granite_swa",
     .hf_architecture = "GraniteSWAForCausalLM",
     .hf_model_type = "granite_swa",
     .has = SL_HAS_SINKS},
};

/* clang-format off */
static const struct sl_hparam_desc hparams[] = {
    SL_HPARAMS_TRANSFORMER,
    SL_HPARAM_ACT(SL_ACT_SILU),
    SL_HPARAM_TIED(false),
    SL_HPARAMS_GRANITE,
    SL_HPARAMS_GRANITE_WINDOWS,
    {NULL, {"attention_bias"}, SL_HP_HAS, .has = SL_HAS_QKV_BIAS | SL_HAS_O_BIAS},
    {NULL, {"mlp_bias"}, SL_HP_HAS, .has = SL_HAS_MLP_BIAS},
};
/* clang-format on */

static const struct sl_weight_desc weights[] = {
    SL_WEIGHTS_EMBED_AND_HEAD, SL_WEIGHTS_ATTN_NORM, SL_WEIGHTS_GQA,
    SL_WEIGHTS_QKV_BIAS,       SL_WEIGHTS_O_BIAS,    SL_WEIGHTS_FFN_NORM,
    SL_WEIGHTS_FFN_GATED,      SL_WEIGHTS_MLP_BIAS,  SL_WEIGHTS_SINKS,
};

void sl_plan_granite_windows(const struct sl_hparams *hp, struct sl_layer_desc *layers)
{
    for (int32_t i = 0; i < hp->n_layers && (hp->has & SL_HAS_SINKS) != 0; i++) {
        const bool windowed = hp->layer_types[i] == SL_LAYER_BY_INDEX
                                  ? i % 4 != 0
                                  : hp->layer_types[i] == SL_LAYER_ON;
        layers[i].window = windowed ? hp->window : 0;
        layers[i].rope = hp->rope_layers[i] == SL_LAYER_OFF ? -1 : 0;
    }
}

static int granite_plan(const struct sl_model_name *name, const struct sl_hparams *hp,
                        struct sl_layer_desc *layers, struct sl_error *err)
{
    (void)name;
    (void)err;
    sl_plan_granite_windows(hp, layers);
    return 0;
}

static void granite_tiny(const struct sl_model_name *name, struct sl_hparams *hp)
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
        .ropes = {{.theta = 10000}},
        .embed_scale = 12,
        .residual_scale = 0.22,
        .attn_scale = 0.125,
        .logit_divisor = 8,
        .window = (name->has & SL_HAS_SINKS) != 0 ? 24 : 0,
    };
}

const struct sl_model_desc sl_model_granite = {
    .id = "granite",
    SL_MODEL_TABLES,
    SL_MODEL_ROPES(sl_rope_one),
    .gguf_interleaved = true,
    .plan = granite_plan,
    .tiny = granite_tiny,
};
