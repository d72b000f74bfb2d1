/* SPDX-License-Identifier: MIT
 * Qwen2, Qwen2.5 and Qwen3 (dense): as Llama, with biases on q, k and v (Qwen2) or an RMSNorm of
 * every head of q and k before RoPE (Qwen3).
 *
 * MiMo-7B is a Qwen2 whose checkpoints have a module that predicts further tokens. It reads
 * [hidden row, embedding], where others read them in the other order.
 *
 * With use_sliding_window the layers from max_window_layers on are windowed, unless layer_types
 * names each layer's kind.
 */
#include "base/check.h"
#include "models/desc.h"
#include "models/tables.h"

static const struct sl_model_name names[] = {
    {.id = "qwen2",
     .hf_architecture = "Qwen2ForCausalLM",
     .hf_model_type = "qwen2",
     .gguf_architecture = "qwen2",
     .has = SL_HAS_QKV_BIAS},
    {.id = "mimo", /* MiMo-7B: a Qwen2 with a module that predicts further tokens */
     .hf_architecture = "MiMoForCausalLM",
     .hf_model_type = "mimo",
     .has = SL_HAS_QKV_BIAS},
    {.id = "qwen3",
     .hf_architecture = "Qwen3ForCausalLM",
     .hf_model_type = "qwen3",
     .gguf_architecture = "qwen3",
     .has = SL_HAS_QK_NORM,
     .head_dim = 128},
    {.id = "qwen3-base", /* without a head: embeddings */
     .hf_architecture = "Qwen3Model",
     .hf_model_type = "qwen3",
     .gguf_architecture = "qwen3",
     .has = SL_HAS_QK_NORM,
     .no_head = true,
     .head_dim = 128},
    {.id = "qwen3-classifier",
     .hf_architecture = "Qwen3ForSequenceClassification",
     .hf_model_type = "qwen3",
     .gguf_architecture = "qwen3",
     .has = SL_HAS_QK_NORM | SL_HAS_CLASSIFIER,
     .head_dim = 128},
};

static const struct sl_hparam_desc hparams[] = {
    SL_HPARAMS_TRANSFORMER,
    SL_HPARAM_ACT(SL_ACT_SILU),
    SL_HPARAM_TIED(false),
    SL_HPARAMS_WINDOW_SWITCH,
    {.hf = {"max_window_layers"},
     .type = SL_HP_INT,
     .offset = offsetof(struct sl_hparams, max_window_layers),
     .def = 28,
     .min = 0,
     .max = SL_MAX_LAYERS},
    {.hf = {"layer_types"},
     .type = SL_HP_LAYER_TYPES,
     .offset = offsetof(struct sl_hparams, layer_types)},
    SL_HPARAMS_LABELS,
    SL_HPARAM_NEXTN,
    {.hf = {"attention_bias"}, .type = SL_HP_HAS, .has = SL_HAS_QKV_BIAS | SL_HAS_O_BIAS},
};

static const struct sl_weight_desc weights[] = {
    SL_WEIGHTS_EMBED_AND_HEAD,
    SL_WEIGHTS_ATTN_NORM,
    SL_WEIGHTS_GQA,
    SL_WEIGHTS_QKV_BIAS,
    SL_WEIGHTS_O_BIAS,
    SL_WEIGHTS_QK_NORM,
    SL_WEIGHTS_FFN_NORM,
    SL_WEIGHTS_FFN_GATED,
    {.slot = SL_SLOT_CLASSIFIER,
     .hf = "score.weight",
     .rows = SL_DIM_LABELS,
     .cols = SL_DIM_H,
     .when = SL_HAS_CLASSIFIER},
};

static const struct sl_weight_desc mtp_weights[] = {
    SL_WEIGHTS_MTP("model.mtp_layers.*.token_layernorm", "model.mtp_layers.*.hidden_layernorm",
                   "model.mtp_layers.*.input_proj", "model.mtp_layers.*.final_layernorm", 0),
};

static const struct sl_draft_desc mtp = {.weights = mtp_weights,
                                         .n_weights = SL_COUNT(mtp_weights),
                                         .hf_layers = "model.mtp_layers.*.",
                                         .hidden_first = true};

static int qwen_plan(const struct sl_model_name *name, const struct sl_hparams *hp,
                     struct sl_layer_desc *layers, struct sl_error *err)
{
    (void)name;
    int32_t window = hp->use_window ? hp->window : 0;
    for (int32_t i = 0; i < hp->n_layers; i++) {
        bool on = hp->layer_types[i] == SL_LAYER_ON ||
                  (hp->layer_types[i] == SL_LAYER_BY_INDEX && i >= hp->max_window_layers);
        if (hp->layer_types[i] == SL_LAYER_ON && window == 0)
            return sl_fail(err, SL_EFORMAT,
                           "config.json: layer_types[%d] is sliding_attention, but "
                           "use_sliding_window or sliding_window is not set",
                           i);
        layers[i].window = on ? window : 0;
    }
    return 0;
}

static void qwen_tiny(const struct sl_model_name *name, struct sl_hparams *hp)
{
    *hp = (struct sl_hparams){
        .hidden = 64,
        .intermediate = 160,
        .n_layers = 2,
        .n_heads = 4,
        .n_kv_heads = 2,
        .head_dim = name->head_dim ? 32 : 16,
        .n_vocab = 320,
        .context = 512,
        .norm_eps = 1e-6,
        .has = name->has,
        .ropes = {{.theta = 1000000}},
        .max_window_layers = 28,
        .n_labels = (name->has & SL_HAS_CLASSIFIER) != 0 ? 3 : 0,
    };
}

const struct sl_model_desc sl_model_qwen = {
    .id = "qwen",
    SL_MODEL_TABLES,
    SL_MODEL_ROPES(sl_rope_one),
    .mtp = &mtp,
    .plan = qwen_plan,
    .tiny = qwen_tiny,
};
