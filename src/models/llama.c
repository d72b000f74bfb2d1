/* SPDX-License-Identifier: MIT
 * Llama 2 and 3.x, Mistral, Ministral and InternLM 3: pre-norm blocks of grouped-query attention
 * and a gated SiLU MLP.
 *
 * Mistral differs by its sliding window, which holds for every layer, Ministral 3 by queries that
 * grow with their position. GGUF files of this family call themselves "llama" ("mistral3" with that
 * temperature) and have the rows of q and k reordered per head for interleaved RoPE; the loader
 * puts them back, so that both containers give the same bits.
 */
#include "base/check.h"
#include "models/desc.h"
#include "models/tables.h"

static const struct sl_model_name names[] = {
    {.id = "llama",
     .hf_architecture = "LlamaForCausalLM",
     .hf_model_type = "llama",
     .gguf_architecture = "llama"},
    {.id = "mistral",
     .hf_architecture = "MistralForCausalLM",
     .hf_model_type = "mistral",
     .gguf_architecture = "llama",
     .all_windowed = true},
    {.id = "ministral", /* 8B of 2024: layer_types says which layers are windowed */
     .hf_architecture = "MinistralForCausalLM",
     .hf_model_type = "ministral",
     .gguf_architecture = "llama",
     .all_windowed = true},
    {.id = "ministral3",
     .hf_architecture = "Ministral3ForCausalLM",
     .hf_model_type = "ministral3",
     .gguf_architecture = "mistral3",
     .head_dim = 128,
     .all_windowed = true,
     .window_absent = true},
    {.id = "mistral3", /* Mistral Small 3.1 and Ministral 3: of a model that also reads images */
     .hf_architecture = "Mistral3ForConditionalGeneration",
     .hf_model_type = "mistral3",
     .gguf_architecture = "mistral3",
     .head_dim = 128,
     .all_windowed = true,
     .window_absent = true,
     .hf_config = "text_config"},
    {.id = "internlm3",
     .hf_architecture = "InternLM3ForCausalLM",
     .hf_model_type = "internlm3",
     .gguf_architecture = "llama",
     .head_dim = 128},
};

static const struct sl_hparam_desc hparams[] = {
    SL_HPARAMS_TRANSFORMER,
    SL_HPARAM_ACT(SL_ACT_SILU),
    SL_HPARAM_TIED(false),
    {.gguf = "attention.sliding_window",
     .hf = {"sliding_window"},
     .type = SL_HP_INT,
     .offset = offsetof(struct sl_hparams, window),
     .hf_def = 4096, /* of transformers; null means none */
     .min = 1,
     .max = SL_MAX_CONTEXT},
    {.gguf = "attention.sliding_window_pattern",
     .hf = {"layer_types"},
     .type = SL_HP_LAYER_TYPES,
     .offset = offsetof(struct sl_hparams, layer_types)},
    {.hf = {"attention_bias", "qkv_bias"},
     .type = SL_HP_HAS,
     .has = SL_HAS_QKV_BIAS | SL_HAS_O_BIAS},
    {.hf = {"mlp_bias", "bias"}, .type = SL_HP_HAS, .has = SL_HAS_MLP_BIAS},
};

static const struct sl_weight_desc weights[] = {
    SL_WEIGHTS_EMBED_AND_HEAD,
    SL_WEIGHTS_ATTN_NORM,
    SL_WEIGHTS_GQA,
    SL_WEIGHTS_QKV_BIAS,
    SL_WEIGHTS_O_BIAS,
    SL_WEIGHTS_FFN_NORM,
    SL_WEIGHTS_FFN_GATED,
    SL_WEIGHTS_MLP_BIAS,
    {.slot = SL_SLOT_ROPE_FREQS,
     .gguf = "rope_freqs.weight",
     .rows = SL_DIM_ROPE,
     .when = SL_HAS_ROPE_FREQS},
};

static int llama_plan(const struct sl_model_name *name, const struct sl_hparams *hp,
                      struct sl_layer_desc *layers, struct sl_error *err)
{
    (void)err;
    /* A GGUF says "llama" for Mistral too, and only a windowed model carries the key. Transformers
     * ignores sliding_window in a Llama config. */
    bool windowed = name->all_windowed || hp->from_gguf;
    for (int32_t i = 0; i < hp->n_layers; i++) {
        layers[i].window = windowed && hp->layer_types[i] != SL_LAYER_OFF ? hp->window : 0;
        layers[i].temperature.beta = (float)hp->ropes[0].q_beta;
        layers[i].temperature.span = (float)hp->ropes[0].original_context;
    }
    return 0;
}

static void llama_tiny(const struct sl_model_name *name, struct sl_hparams *hp)
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
        .window = name->all_windowed ? 24 : 0,
    };
}

const struct sl_model_desc sl_model_llama = {
    .id = "llama",
    SL_MODEL_TABLES,
    SL_MODEL_ROPES(sl_rope_one),
    .gguf_interleaved = true,
    .plan = llama_plan,
    .tiny = llama_tiny,
};
