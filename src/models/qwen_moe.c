/* SPDX-License-Identifier: MIT
 * Qwen3-MoE and Qwen2-MoE: the attention of Qwen3 or Qwen2, and experts in place of the MLP in all
 * layers, or in those that decoder_sparse_step and mlp_only_layers leave. Qwen2-MoE has a shared
 * expert as well, of its own size and with a gate.
 */
#include "base/check.h"
#include "models/desc.h"
#include "models/tables.h"

static const struct sl_model_name names[] = {
    {.id = "qwen3moe",
     .hf_architecture = "Qwen3MoeForCausalLM",
     .hf_model_type = "qwen3_moe",
     .gguf_architecture = "qwen3moe",
     .has = SL_HAS_QK_NORM},
    {.id = "qwen2moe",
     .hf_architecture = "Qwen2MoeForCausalLM",
     .hf_model_type = "qwen2_moe",
     .gguf_architecture = "qwen2moe",
     .has = SL_HAS_QKV_BIAS | SL_HAS_SHARED | SL_HAS_SHARED_GATE},
};

static const struct sl_hparam_desc hparams[] = {
    SL_HPARAMS_BLOCKS,
    SL_HPARAMS_EXPERTS,
    SL_HPARAM_EXPERT_SIZE,
    SL_HPARAM_NORM_TOP_EXPERTS(false),
    SL_HPARAM_ACT(SL_ACT_SILU),
    SL_HPARAM_TIED(false),
    {.hf = {"decoder_sparse_step"},
     .type = SL_HP_INT,
     .offset = offsetof(struct sl_hparams, expert_step),
     .def = 1,
     .min = 1,
     .max = SL_MAX_LAYERS},
    {.hf = {"mlp_only_layers"},
     .type = SL_HP_LAYERS,
     .offset = offsetof(struct sl_hparams, dense_layers)},
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
    {.gguf = "expert_shared_feed_forward_length",
     .hf = {"shared_expert_intermediate_size"},
     .type = SL_HP_INT,
     .offset = offsetof(struct sl_hparams, shared_intermediate),
     .min = 1,
     .max = 4 * SL_MAX_HIDDEN},
    {.hf = {"attention_bias"}, .type = SL_HP_HAS, .has = SL_HAS_QKV_BIAS | SL_HAS_O_BIAS},
};

/* clang-format off */
static const struct sl_weight_desc weights[] = {
    SL_WEIGHTS_EMBED_AND_HEAD,
    SL_WEIGHTS_ATTN_NORM,
    SL_WEIGHTS_GQA,
    SL_WEIGHTS_QKV_BIAS,
    SL_WEIGHTS_O_BIAS,
    SL_WEIGHTS_QK_NORM,
    SL_W_LAYER(FFN_NORM, "post_attention_layernorm.weight", "ffn_norm.weight", H, NONE, NONE)},
    SL_WEIGHTS_EXPERTS,
    SL_WEIGHTS_SHARED("mlp.shared_expert"),
    SL_W_LAYER(SHARED_LOGIT, "mlp.shared_expert_gate.weight", "ffn_gate_inp_shexp.weight", ONE, H,
               NONE), .when = SL_HAS_SHARED_GATE},
    SL_WEIGHTS_FFN_DENSE,
};
/* clang-format on */

/* transformers windows every other layer of Qwen2-MoE, of those below max_window_layers. */
static bool qwen_moe_is_windowed(bool qwen2, const struct sl_hparams *hp, int32_t layer)
{
    if (!hp->use_window)
        return false;
    if (hp->layer_types[layer] != SL_LAYER_BY_INDEX)
        return hp->layer_types[layer] == SL_LAYER_ON;
    return !qwen2 || (layer % 2 == 0 && layer < hp->max_window_layers);
}

static int qwen_moe_plan(const struct sl_model_name *name, const struct sl_hparams *hp,
                         struct sl_layer_desc *layers, struct sl_error *err)
{
    const bool qwen2 = (name->has & SL_HAS_SHARED) != 0;
    if (qwen2 && hp->shared_intermediate == 0)
        return sl_fail(err, SL_EFORMAT, "%s is missing",
                       hp->from_gguf ? "GGUF: qwen2moe.expert_shared_feed_forward_length"
                                     : "config.json: shared_expert_intermediate_size");
    int rc = sl_plan_experts(hp, SL_ROUTE_SOFTMAX, 0, layers, err);
    for (int32_t i = 0; i < hp->n_layers && rc == 0; i++) {
        layers[i].window = qwen_moe_is_windowed(qwen2, hp, i) ? hp->window : 0;
        layers[i].route.renormalize |= hp->from_gguf && !qwen2; /* which has no key for it */
    }
    return rc;
}

static void qwen_moe_tiny(const struct sl_model_name *name, struct sl_hparams *hp)
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
        .norm_eps = 1e-6,
        .has = name->has,
        .ropes = {{.theta = 1000000}},
        .n_experts = 7,
        .top_experts = 3,
        .expert_intermediate = 96,
        .expert_step = 1,
        .shared_intermediate = (name->has & SL_HAS_SHARED) != 0 ? 128 : 0,
        .max_window_layers = 28,
        .norm_top_experts = (name->has & SL_HAS_SHARED) == 0,
    };
}

const struct sl_model_desc sl_model_qwen_moe = {
    .id = "qwen_moe",
    SL_MODEL_TABLES,
    SL_MODEL_ROPES(sl_rope_one),
    .plan = qwen_moe_plan,
    .tiny = qwen_moe_tiny,
};
