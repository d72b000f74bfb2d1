/* SPDX-License-Identifier: MIT
 * Cohere: Command R (cohere) and Command R7B and A (cohere2). One norm, with a mean and without a
 * bias, feeds attention and MLP, which are added to the stream together; pairs of neighbours are
 * rotated; logits have a multiplier. In Cohere 2 the last of every four layers sees everything and
 * knows no positions, the others are windowed.
 */
#include "base/check.h"
#include "models/desc.h"
#include "models/tables.h"

static const struct sl_model_name names[] = {
    {.id = "cohere",
     .hf_architecture = "CohereForCausalLM",
     .hf_model_type = "cohere",
     .rope_theta = 500000,
     .gguf_architecture = "command-r"},
    {.id = "cohere2",
     .hf_architecture = "Cohere2ForCausalLM",
     .hf_model_type = "cohere2",
     .gguf_architecture = "cohere2",
     .all_windowed = true},
};

/* clang-format off */
static const struct sl_hparam_desc hparams[] = {
    SL_HPARAMS_TRANSFORMER_LAYERNORM,
    SL_HPARAM_ACT(SL_ACT_SILU),
    SL_HPARAM_TIED(true),
    {"logit_scale", {"logit_scale"}, SL_HP_FLOAT, SL_HP_AT(logit_scale), .hf_def = 0.0625,
     .min = 1e-6, .max = 1e6},
    {"attention.sliding_window", {"sliding_window"}, SL_HP_INT, SL_HP_AT(window), .hf_def = 4096,
     .min = 1, .max = SL_MAX_CONTEXT},
    {NULL, {"sliding_window_pattern", "_sliding_window_pattern"}, SL_HP_INT,
     SL_HP_AT(window_pattern), .def = 4, .min = 1, .max = SL_MAX_LAYERS},
    {NULL, {"layer_types"}, SL_HP_LAYER_TYPES, SL_HP_AT(layer_types)},
    {NULL, {"attention_bias"}, SL_HP_HAS, .has = SL_HAS_QKV_BIAS | SL_HAS_O_BIAS},
    {NULL, {"use_qk_norm"}, SL_HP_HAS, .has = SL_HAS_QK_NORM},
};

static const struct sl_weight_desc weights[] = {
    SL_WEIGHTS_EMBED_AND_HEAD,
    SL_WEIGHTS_ATTN_NORM,
    SL_WEIGHTS_GQA,
    SL_WEIGHTS_QKV_BIAS,
    SL_WEIGHTS_O_BIAS,
    SL_WEIGHTS_QK_NORM, /* only to be refused */
    SL_WEIGHTS_FFN_GATED,
};
/* clang-format on */

static const struct sl_rope_desc ropes[] = {
    {.hf_theta = "rope_theta",
     .gguf_theta = "rope.freq_base",
     .theta = 10000,
     .scaled = true,
     .pairing = SL_ROPE_INTERLEAVED},
};

static int cohere_plan(const struct sl_model_name *name, const struct sl_hparams *hp,
                       struct sl_layer_desc *layers, struct sl_error *err)
{
    const bool second = name->all_windowed;
    if ((hp->has & SL_HAS_QK_NORM) != 0)
        return sl_fail(err, SL_EUNSUPPORTED, "%s: norms of q and k with a mean are not supported",
                       hp->from_gguf ? "GGUF: blk.0.attn_q_norm.weight"
                                     : "config.json: use_qk_norm true");
    for (int32_t i = 0; i < hp->n_layers; i++) {
        bool windowed = hp->layer_types[i] == SL_LAYER_BY_INDEX ? (i + 1) % hp->window_pattern != 0
                                                                : hp->layer_types[i] == SL_LAYER_ON;
        layers[i].norm = SL_NORM_LAYER;
        layers[i].parallel = true;
        /* transformers and vLLM rotate where there is a window: with sliding_window null nowhere */
        layers[i].window = second && windowed ? hp->window : 0;
        layers[i].rope = second && layers[i].window == 0 ? -1 : 0;
    }
    return 0;
}

static void cohere_tiny(const struct sl_model_name *name, struct sl_hparams *hp)
{
    *hp = (struct sl_hparams){
        .hidden = 64,
        .intermediate = 160,
        .n_layers = name->all_windowed ? 4 : 2,
        .n_heads = 4,
        .n_kv_heads = 2,
        .head_dim = 16,
        .n_vocab = 320,
        .context = 512,
        .norm_eps = 1e-5,
        .has = name->has,
        .ropes = {{.theta = 10000}},
        .logit_scale = 0.25,
        .window = name->all_windowed ? 24 : 0,
        .window_pattern = 4,
    };
}

const struct sl_model_desc sl_model_cohere = {
    .id = "cohere",
    SL_MODEL_TABLES,
    SL_MODEL_ROPES(ropes),
    .plan = cohere_plan,
    .tiny = cohere_tiny,
};
