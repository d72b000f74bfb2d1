/* SPDX-License-Identifier: MIT
 * gpt-oss: every second layer is windowed, attention has a learned logit for each head that only
 * takes part in the softmax's sum, all layers have experts with biases and SwiGLU with limits, and
 * weights that are the softmax of the chosen logits.
 *
 * Folders have the experts of a layer in two tensors: gate and up with their rows in turns, and
 * down. In BF16 both are transposed, in MXFP4 they are not. Checkpoints of other quantisers have a
 * tensor for each expert.
 */
#include "base/check.h"
#include "models/desc.h"
#include "models/tables.h"

static const struct sl_model_name names[] = {
    {.id = "gpt-oss",
     .hf_architecture = "GptOssForCausalLM",
     .hf_model_type = "gpt_oss",
     .gguf_architecture = "gpt-oss",
     .head_dim = 64},
};

/* clang-format off */
static const struct sl_hparam_desc hparams[] = {
    SL_HPARAMS_BLOCKS,
    {NULL, {"hidden_act"}, SL_HP_CHOICE, .value = "silu"},
    SL_HPARAM_TIED(false),
    {"expert_count", {"num_local_experts", "num_experts"}, SL_HP_INT, SL_HP_AT(n_experts),
     .required = true, .min = 1, .max = SL_MAX_EXPERTS},
    {"expert_used_count", {"num_experts_per_tok", "experts_per_token"}, SL_HP_INT,
     SL_HP_AT(top_experts), .required = true, .min = 1, .max = SL_MAX_TOP_EXPERTS},
    {"expert_feed_forward_length", {NULL}, SL_HP_INT, SL_HP_AT(expert_intermediate), .min = 1,
     .max = 4 * SL_MAX_HIDDEN},
    {"attention.sliding_window", {"sliding_window"}, SL_HP_INT, SL_HP_AT(window), .hf_def = 128,
     .min = 1, .max = SL_MAX_CONTEXT},
    {NULL, {"layer_types"}, SL_HP_LAYER_TYPES, SL_HP_AT(layer_types)},
    {NULL, {"swiglu_limit"}, SL_HP_FLOAT, SL_HP_AT(swiglu_limit), .def = 7, .min = 1e-3,
     .max = 1e6},
    {NULL, {"swiglu_alpha"}, SL_HP_FLOAT, SL_HP_AT(swiglu_alpha), .def = 1.702, .min = 1e-3,
     .max = 1e3},
    {NULL, {"attention_bias"}, SL_HP_HAS, .has = SL_HAS_QKV_BIAS | SL_HAS_O_BIAS, .def = true},
};

#define EXPERTS(s, hf_name, hf_end, gguf_name, r, c)                                               \
    {.slot = SL_SLOT_EXPERTS_##s, .hf = "model.layers.*.mlp.experts.#." hf_name hf_end,            \
     .gguf = "blk.*." gguf_name hf_end, .rows = SL_DIM_##r, .cols = SL_DIM_##c,                    \
     .mats = SL_DIM_E, .shard = SL_SHARD_ROWS
#define GATE_UP(end, idx)                                                                          \
     .hf_fused = "model.layers.*.mlp.experts.gate_up_proj" end, .fused = {SL_DIM_I, SL_DIM_I},     \
     .part = idx
#define DOWN(end)                                                                                  \
     .hf_fused = "model.layers.*.mlp.experts.down_proj" end, .fused = {SL_DIM_H}

static const struct sl_weight_desc weights[] = {
    SL_WEIGHTS_EMBED_AND_HEAD,
    SL_WEIGHTS_ATTN_NORM,
    SL_WEIGHTS_GQA,
    SL_WEIGHTS_QKV_BIAS,
    SL_WEIGHTS_O_BIAS,
    SL_W_LAYER(SINKS, "self_attn.sinks", "attn_sinks.weight", HEADS, NONE, HEADS)},
    SL_W_LAYER(FFN_NORM, "post_attention_layernorm.weight", "post_attention_norm.weight", H, NONE,
               NONE)},
    SL_W_LAYER(ROUTER, "mlp.router.weight", "ffn_gate_inp.weight", E, H, NONE)},
    SL_W_LAYER(ROUTER_BIAS, "mlp.router.bias", "ffn_gate_inp.bias", E, NONE, NONE)},
    EXPERTS(GATE, "gate_proj", ".weight", "ffn_gate_exps", I, H), GATE_UP("", 0),
     .flags = SL_W_TURNS | SL_W_TRANSPOSED},
    EXPERTS(UP, "up_proj", ".weight", "ffn_up_exps", I, H), GATE_UP("", 1),
     .flags = SL_W_TURNS | SL_W_TRANSPOSED},
    EXPERTS(DOWN, "down_proj", ".weight", "ffn_down_exps", H, I), DOWN(""),
     .flags = SL_W_TRANSPOSED},
    EXPERTS(GATE_BIAS, "gate_proj", ".bias", "ffn_gate_exps", I, NONE), GATE_UP("_bias", 0),
     .flags = SL_W_TURNS},
    EXPERTS(UP_BIAS, "up_proj", ".bias", "ffn_up_exps", I, NONE), GATE_UP("_bias", 1),
     .flags = SL_W_TURNS},
    EXPERTS(DOWN_BIAS, "down_proj", ".bias", "ffn_down_exps", H, NONE), DOWN("_bias")},
};
/* clang-format on */

/* No converter writes whether YaRN's ramp is rounded; these models were trained without. */
static const struct sl_rope_desc ropes[] = {{.hf_theta = "rope_theta",
                                             .gguf_theta = "rope.freq_base",
                                             .theta = 150000,
                                             .scaled = true,
                                             .unrounded = true}};

static int gpt_oss_plan(const struct sl_model_name *name, const struct sl_hparams *hp,
                        struct sl_layer_desc *layers, struct sl_error *err)
{
    (void)name;
    int rc = sl_plan_experts(hp, SL_ROUTE_SOFTMAX, 0, layers, err);
    for (int32_t i = 0; i < hp->n_layers && rc == 0; i++) {
        struct sl_layer_desc *l = &layers[i];
        const bool windowed = hp->layer_types[i] == SL_LAYER_BY_INDEX
                                  ? i % 2 == 0
                                  : hp->layer_types[i] == SL_LAYER_ON;
        l->window = windowed ? hp->window : 0;
        l->route.renormalize = true; /* as a softmax of the chosen ones */
        l->swiglu = (struct sl_swiglu){
            .limit = (float)hp->swiglu_limit, .alpha = (float)hp->swiglu_alpha, .up_plus = 1};
    }
    return rc;
}

static void gpt_oss_tiny(const struct sl_model_name *name, struct sl_hparams *hp)
{
    *hp = (struct sl_hparams){
        .hidden = 64,
        .intermediate = 96,
        .n_layers = 2,
        .n_heads = 4,
        .n_kv_heads = 2,
        .head_dim = 32,
        .n_vocab = 320,
        .context = 512,
        .norm_eps = 1e-5,
        .has = name->has | SL_HAS_HEAD | SL_HAS_QKV_BIAS | SL_HAS_O_BIAS,
        .ropes = {{.theta = 150000}},
        .n_experts = 7,
        .top_experts = 3,
        .window = 24,
        .swiglu_limit = 7,
        .swiglu_alpha = 1.702,
    };
}

const struct sl_model_desc sl_model_gpt_oss = {
    .id = "gpt_oss",
    SL_MODEL_TABLES,
    SL_MODEL_ROPES(ropes),
    .plan = gpt_oss_plan,
    .tiny = gpt_oss_tiny,
};
