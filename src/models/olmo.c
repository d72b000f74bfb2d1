/* SPDX-License-Identifier: MIT
 * OLMo 2: as Llama, but each norm stands behind its sublayer, so that nothing is normed before the
 * first one, and q and k are normed over all their heads together.
 */
#include "base/check.h"
#include "models/desc.h"
#include "models/tables.h"

#include <string.h>

static const struct sl_model_name names[] = {
    {.id = "olmo2",
     .hf_architecture = "Olmo2ForCausalLM",
     .hf_model_type = "olmo2",
     .gguf_architecture = "olmo2",
     .has = SL_HAS_QK_NORM},
    {.id = "olmo3",
     .hf_architecture = "Olmo3ForCausalLM",
     .hf_model_type = "olmo3",
     .gguf_architecture = "olmo2",
     .has = SL_HAS_QK_NORM},
};

static const struct sl_hparam_desc hparams[] = {
    SL_HPARAMS_TRANSFORMER,
    SL_HPARAM_ACT(SL_ACT_SILU),
    SL_HPARAM_TIED(false),
    {.hf = {"attention_bias"}, .type = SL_HP_HAS, .has = SL_HAS_QKV_BIAS | SL_HAS_O_BIAS},
    {.gguf = "attention.sliding_window",
     .hf = {"sliding_window"},
     .type = SL_HP_INT,
     .offset = offsetof(struct sl_hparams, window),
     .min = 1,
     .max = SL_MAX_CONTEXT},
    {.gguf = "attention.sliding_window_pattern",
     .hf = {"layer_types"},
     .type = SL_HP_LAYER_TYPES,
     .offset = offsetof(struct sl_hparams, layer_types)},
};

/* clang-format off */
static const struct sl_weight_desc weights[] = {
    SL_WEIGHTS_EMBED_AND_HEAD,
    SL_WEIGHTS_GQA,
    SL_WEIGHTS_QKV_BIAS,
    SL_WEIGHTS_O_BIAS,
    SL_WEIGHTS_QK_NORM_ROWS,
    SL_WEIGHTS_OUT_NORMS,
    SL_WEIGHTS_FFN_GATED,
};
/* clang-format on */

enum { GLOBAL, LOCAL }; /* tables of rotations */

static const struct sl_rope_desc ropes[] = {
    [GLOBAL] = {.kind = "full_attention",
                .hf_theta = "rope_theta",
                .gguf_theta = "rope.freq_base",
                .theta = 500000,
                .scaled = true},
    [LOCAL] = {.kind = "sliding_attention",
               .hf_theta = "rope_theta",
               .gguf_theta = "rope.freq_base",
               .theta = 500000},
};

static int olmo_plan(const struct sl_model_name *name, const struct sl_hparams *hp,
                     struct sl_layer_desc *layers, struct sl_error *err)
{
    (void)name;
    (void)err;
    for (int32_t i = 0; i < hp->n_layers; i++) {
        bool windowed = hp->layer_types[i] == SL_LAYER_BY_INDEX ? (i + 1) % 4 != 0
                                                                : hp->layer_types[i] == SL_LAYER_ON;
        windowed = windowed && hp->window > 0;
        layers[i].window = windowed ? hp->window : 0;
        layers[i].rope = windowed ? LOCAL : GLOBAL;
        layers[i].norms = SL_NORM_OUT;
        layers[i].qk_norm = SL_QK_NORM_ROWS;
    }
    return 0;
}

static void olmo_tiny(const struct sl_model_name *name, struct sl_hparams *hp)
{
    const bool windowed = strcmp(name->id, "olmo3") == 0;
    *hp = (struct sl_hparams){
        .hidden = 64,
        .intermediate = 160,
        .n_layers = windowed ? 4 : 2,
        .window = windowed ? 24 : 0,
        .n_heads = 4,
        .n_kv_heads = 2,
        .head_dim = 16,
        .n_vocab = 320,
        .context = 512,
        .norm_eps = 1e-6,
        .has = name->has | SL_HAS_HEAD,
        .ropes = {[GLOBAL] = {.theta = 500000}, [LOCAL] = {.theta = 500000}},
    };
}

const struct sl_model_desc sl_model_olmo = {
    .id = "olmo",
    SL_MODEL_TABLES,
    SL_MODEL_ROPES(ropes),
    .plan = olmo_plan,
    .tiny = olmo_tiny,
};
