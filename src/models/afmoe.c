/* SPDX-License-Identifier: MIT
 * AfMoE: Trinity. What attention gives is multiplied by the sigmoid of a product of its input;
 * norms stand on both sides of attention and MLP; experts are chosen by sigmoid and a bias, beside
 * a shared expert, with dense layers in front. The last of every four layers sees everything and
 * knows no positions, the others are windowed.
 */
#include "base/check.h"
#include "models/desc.h"
#include "models/tables.h"

static const struct sl_model_name names[] = {
    {.id = "afmoe",
     .hf_architecture = "AfmoeForCausalLM",
     .hf_model_type = "afmoe",
     .gguf_architecture = "afmoe",
     .has = SL_HAS_QK_NORM | SL_HAS_CHOICE_BIAS | SL_HAS_OUT_GATE,
     .gguf_has = SL_HAS_ROOT_EMBED,
     .head_dim = 128},
};

/* clang-format off */
static const struct sl_hparam_desc hparams[] = {
    SL_HPARAMS_BLOCKS,
    SL_HPARAMS_EXPERTS,
    SL_HPARAM_EXPERT_SIZE,
    {"leading_dense_block_count", {"num_dense_layers"}, SL_HP_INT, SL_HP_AT(n_dense), .hf_def = 1,
     .min = 0, .max = SL_MAX_LAYERS},
    {"expert_weights_scale", {"route_scale"}, SL_HP_FLOAT, SL_HP_AT(expert_scale), .min = 0,
     .max = 1e6},
    {"expert_shared_count", {"num_shared_experts"}, SL_HP_INT, SL_HP_AT(n_shared_experts),
     .hf_def = 2, .min = 0, .max = 64},
    {NULL, {"n_group"}, SL_HP_INT, SL_HP_AT(n_expert_groups), .min = 0, .max = SL_MAX_EXPERTS},
    {NULL, {"topk_group"}, SL_HP_INT, SL_HP_AT(top_expert_groups), .min = 0,
     .max = SL_MAX_EXPERTS},
    {NULL, {"score_func"}, SL_HP_CHOICE, .value = "sigmoid"},
    SL_HPARAM_ONLY("route_norm", 1),
    {NULL, {"mup_enabled"}, SL_HP_HAS, .has = SL_HAS_ROOT_EMBED},
    SL_HPARAM_ACT(SL_ACT_SILU),
    SL_HPARAM_TIED(false),
    {"attention.sliding_window", {"sliding_window"}, SL_HP_INT, SL_HP_AT(window), .hf_def = 1024,
     .min = 1, .max = SL_MAX_CONTEXT},
    {"attention.sliding_window_pattern", {"layer_types", "global_attn_every_n_layers"},
     SL_HP_LAYER_TYPES, SL_HP_AT(layer_types)},
    {NULL, {"attention_bias"}, SL_HP_HAS, .has = SL_HAS_QKV_BIAS | SL_HAS_O_BIAS},
};

static const struct sl_weight_desc weights[] = {
    SL_WEIGHTS_EMBED_AND_HEAD,
    SL_WEIGHTS_ATTN_NORM,
    SL_WEIGHTS_GQA,
    SL_WEIGHTS_QKV_BIAS,
    SL_WEIGHTS_O_BIAS,
    SL_WEIGHTS_QK_NORM,
    SL_W_LAYER(OUT_GATE, "self_attn.gate_proj.weight", "attn_gate.weight", ATT, H, HEADS)},
    SL_W_LAYER(ATTN_OUT_NORM, "post_attention_layernorm.weight", "post_attention_norm.weight", H,
               NONE, NONE)},
    SL_W_LAYER(FFN_NORM, "pre_mlp_layernorm.weight", "ffn_norm.weight", H, NONE, NONE)},
    SL_W_LAYER(FFN_OUT_NORM, "post_mlp_layernorm.weight", "post_ffw_norm.weight", H, NONE, NONE)},
    SL_WEIGHTS_EXPERTS_BY("mlp.router.gate.weight"),
    SL_WEIGHT_CHOICE_BIAS("mlp.expert_bias"),
    SL_WEIGHTS_SHARED("mlp.shared_experts"),
    SL_WEIGHTS_FFN_DENSE,
};
/* clang-format on */

static int afmoe_plan(const struct sl_model_name *name, const struct sl_hparams *hp,
                      struct sl_layer_desc *layers, struct sl_error *err)
{
    (void)name;
    int rc = sl_plan_experts(hp, SL_ROUTE_SIGMOID, 1e-20f, layers, err);
    for (int32_t i = 0; i < hp->n_layers && rc == 0; i++) {
        const bool windowed = hp->layer_types[i] == SL_LAYER_BY_INDEX
                                  ? (i + 1) % 4 != 0
                                  : hp->layer_types[i] == SL_LAYER_ON;
        layers[i].norms = SL_NORM_IN | SL_NORM_OUT;
        layers[i].route.renormalize = true;
        layers[i].window = windowed ? hp->window : 0;
        layers[i].rope = windowed ? 0 : -1;
    }
    return rc;
}

static void afmoe_tiny(const struct sl_model_name *name, struct sl_hparams *hp)
{
    *hp = (struct sl_hparams){
        .hidden = 64,
        .intermediate = 160,
        .n_layers = 4,
        .n_heads = 4,
        .n_kv_heads = 2,
        .head_dim = 24,
        .n_vocab = 320,
        .context = 512,
        .norm_eps = 1e-5,
        .has = name->has | SL_HAS_HEAD | SL_HAS_ROOT_EMBED,
        .ropes = {{.theta = 10000}},
        .window = 24,
        .n_experts = 7,
        .top_experts = 3,
        .expert_intermediate = 96,
        .expert_scale = 2.826,
        .expert_gating = SL_GGUF_SIGMOID,
        .n_dense = 1,
        .n_shared_experts = 1,
    };
}

const struct sl_model_desc sl_model_afmoe = {
    .id = "afmoe",
    SL_MODEL_TABLES,
    SL_MODEL_ROPES(sl_rope_one),
    .plan = afmoe_plan,
    .tiny = afmoe_tiny,
};
