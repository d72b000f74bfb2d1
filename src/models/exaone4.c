/* SPDX-License-Identifier: MIT
 * EXAONE 4.0: norms behind the sublayers only, q and k normed by head. The 32B model has three
 * windowed layers to each full one, which knows no positions; without a window all are full and
 * rotated.
 */
#include "base/check.h"
#include "models/desc.h"
#include "models/tables.h"

static const struct sl_model_name names[] = {
    {.id = "exaone4",
     .hf_architecture = "Exaone4ForCausalLM",
     .hf_model_type = "exaone4",
     .gguf_architecture = "exaone4",
     .has = SL_HAS_QK_NORM},
};

/* clang-format off */
static const struct sl_hparam_desc hparams[] = {
    SL_HPARAMS_TRANSFORMER,
    SL_HPARAM_ACT(SL_ACT_SILU),
    SL_HPARAM_TIED(false),
    SL_HPARAMS_EXAONE_WINDOWS,
};

static const struct sl_weight_desc weights[] = {
    SL_WEIGHTS_EMBED_AND_HEAD,
    SL_WEIGHTS_GQA,
    SL_WEIGHTS_QK_NORM,
    SL_WEIGHTS_OUT_NORMS,
    SL_WEIGHTS_FFN_GATED,
    SL_WEIGHT_ROPE_FREQS,
};
/* clang-format on */

static int exaone4_plan(const struct sl_model_name *name, const struct sl_hparams *hp,
                        struct sl_layer_desc *layers, struct sl_error *err)
{
    (void)name;
    (void)err;
    for (int32_t i = 0; i < hp->n_layers; i++) {
        const bool windowed = hp->layer_types[i] == SL_LAYER_BY_INDEX
                                  ? (i + 1) % 4 != 0
                                  : hp->layer_types[i] == SL_LAYER_ON;
        layers[i].norms = SL_NORM_OUT;
        layers[i].window = windowed ? hp->window : 0;
        layers[i].rope = windowed || hp->window == 0 ? 0 : -1;
    }
    return 0;
}

static void exaone4_tiny(const struct sl_model_name *name, struct sl_hparams *hp)
{
    *hp = (struct sl_hparams){
        .hidden = 64,
        .intermediate = 160,
        .n_layers = 4,
        .n_heads = 4,
        .n_kv_heads = 2,
        .head_dim = 16,
        .n_vocab = 320,
        .context = 512,
        .norm_eps = 1e-5,
        .has = name->has | SL_HAS_HEAD,
        .ropes = {{.theta = 10000}},
        .window = 24,
    };
}

const struct sl_model_desc sl_model_exaone4 = {
    .id = "exaone4",
    SL_MODEL_TABLES,
    SL_MODEL_ROPES(sl_rope_one),
    .plan = exaone4_plan,
    .tiny = exaone4_tiny,
};
