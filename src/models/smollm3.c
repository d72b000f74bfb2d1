/* SPDX-License-Identifier: MIT
 * SmolLM3: as Llama, but every fourth layer, or those that no_rope_layers names, knows no
 * positions.
 *
 * GGUF files reorder the rows of q and k in all layers, also where nothing is rotated, and have no
 * key for which layers those are: the last of every four.
 */
#include "base/check.h"
#include "models/desc.h"
#include "models/tables.h"

static const struct sl_model_name names[] = {
    {.id = "smollm3",
     .hf_architecture = "SmolLM3ForCausalLM",
     .hf_model_type = "smollm3",
     .gguf_architecture = "smollm3"},
};

/* clang-format off */
static const struct sl_hparam_desc hparams[] = {
    SL_HPARAMS_TRANSFORMER,
    SL_HPARAM_ACT(SL_ACT_SILU),
    SL_HPARAM_TIED(true),
    {NULL, {"no_rope_layer_interval"}, SL_HP_INT, SL_HP_AT(no_rope_interval), .def = 4, .min = 1,
     .max = SL_MAX_LAYERS},
    {NULL, {"no_rope_layers"}, SL_HP_LAYER_FLAGS, SL_HP_AT(rope_layers)},
    {NULL, {"sliding_window"}, SL_HP_INT, SL_HP_AT(window), .min = 1, .max = SL_MAX_CONTEXT},
    {NULL, {"use_sliding_window"}, SL_HP_BOOL, SL_HP_AT(use_window)},
    {NULL, {"layer_types"}, SL_HP_LAYER_TYPES, SL_HP_AT(layer_types)},
    {NULL, {"attention_bias"}, SL_HP_HAS, .has = SL_HAS_QKV_BIAS | SL_HAS_O_BIAS},
    {NULL, {"mlp_bias"}, SL_HP_HAS, .has = SL_HAS_MLP_BIAS},
};
/* clang-format on */

static const struct sl_weight_desc weights[] = {
    SL_WEIGHTS_EMBED_AND_HEAD, SL_WEIGHTS_ATTN_NORM, SL_WEIGHTS_GQA,       SL_WEIGHTS_QKV_BIAS,
    SL_WEIGHTS_O_BIAS,         SL_WEIGHTS_FFN_NORM,  SL_WEIGHTS_FFN_GATED, SL_WEIGHTS_MLP_BIAS,
};

static const struct sl_rope_desc ropes[] = {
    {.hf_theta = "rope_theta", .gguf_theta = "rope.freq_base", .theta = 2000000, .scaled = true},
};

static int smollm3_plan(const struct sl_model_name *name, const struct sl_hparams *hp,
                        struct sl_layer_desc *layers, struct sl_error *err)
{
    (void)name;
    (void)err;
    for (int32_t i = 0; i < hp->n_layers; i++) {
        bool rotated = hp->rope_layers[i] == SL_LAYER_BY_INDEX ? (i + 1) % hp->no_rope_interval != 0
                                                               : hp->rope_layers[i] == SL_LAYER_ON;
        bool windowed =
            hp->layer_types[i] == SL_LAYER_BY_INDEX ? !rotated : hp->layer_types[i] == SL_LAYER_ON;
        layers[i].rope = rotated ? 0 : -1;
        layers[i].window = windowed && hp->use_window ? hp->window : 0;
    }
    return 0;
}

static void smollm3_tiny(const struct sl_model_name *name, struct sl_hparams *hp)
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
        .norm_eps = 1e-6,
        .has = name->has,
        .ropes = {{.theta = 2000000}},
        .no_rope_interval = 4,
    };
}

const struct sl_model_desc sl_model_smollm3 = {
    .id = "smollm3",
    SL_MODEL_TABLES,
    SL_MODEL_ROPES(ropes),
    .gguf_interleaved = true,
    .plan = smollm3_plan,
    .tiny = smollm3_tiny,
};
