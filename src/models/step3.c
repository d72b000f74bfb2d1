/* SPDX-License-Identifier: MIT
 * Step-3.5 and the text of Step-3.7: windowed layers with more query heads than full ones and a
 * table of rotations of their own; what a head gives is multiplied by the sigmoid of a logit; norms
 * are 1 + w. Experts are chosen by sigmoid and a bias, beside a shared expert, with dense layers in
 * front. In the last layers gates and ups have limits, which are not the same for experts and for
 * the shared one.
 *
 * The hub's files list theta and the rotated share by layer, and name the layers with experts in a
 * string (moe_layers_enum). Layers behind the last, which predict further tokens, are not loaded;
 * lists may count them.
 */
#include "base/check.h"
#include "models/desc.h"
#include "models/tables.h"

#include <math.h>

#define HAS (SL_HAS_QK_NORM | SL_HAS_CHOICE_BIAS | SL_HAS_OUT_GATE)

static const struct sl_model_name names[] = {
    {.id = "step3p5",
     .hf_architecture = "Step3p5ForCausalLM",
     .hf_model_type = "step3p5",
     .gguf_architecture = "step35",
     .has = HAS,
     .head_dim = 128},
    {.id = "step3p7", /* of a model that also reads images, which this one does not */
     .hf_architecture = "Step3p7ForConditionalGeneration",
     .hf_model_type = "step3p7",
     .gguf_architecture = "step35",
     .has = HAS,
     .head_dim = 128,
     .hf_config = "text_config"},
};

/* clang-format off */
static const struct sl_hparam_desc hparams[] = {
    {"embedding_length", {"hidden_size"}, SL_HP_INT, SL_HP_AT(hidden), .required = true,
     .min = 1, .max = SL_MAX_HIDDEN},
    {"feed_forward_length", {"intermediate_size"}, SL_HP_INT, SL_HP_AT(intermediate),
     .required = true, .min = 1, .max = 4 * SL_MAX_HIDDEN},
    {"block_count", {"num_hidden_layers"}, SL_HP_INT, SL_HP_AT(n_layers), .required = true,
     .min = 1, .max = SL_MAX_LAYERS},
    SL_HPARAM_NEXTN,
    {NULL, {"num_attention_heads"}, SL_HP_INT, SL_HP_AT(n_heads), .required = true, .min = 1,
     .max = SL_MAX_HEADS},
    {NULL, {"num_sliding_attention_heads", "attention_other_setting.num_attention_heads"},
     SL_HP_INT, SL_HP_AT(window_heads), .min = 1, .max = SL_MAX_HEADS},
    {"attention.head_count", {"per_layer_config"}, SL_HP_LAYER_INTS, SL_HP_AT(layer_heads),
     .value = "num_attention_heads", .min = 1, .max = SL_MAX_HEADS},
    {NULL, {"num_key_value_heads", "num_attention_groups"}, SL_HP_INT, SL_HP_AT(n_kv_heads),
     .min = 1, .max = SL_MAX_HEADS},
    {NULL, {"attention_other_setting.num_attention_groups"}, SL_HP_INT, SL_HP_AT(window_kv_heads),
     .min = 1, .max = SL_MAX_HEADS},
    {"attention.head_count_kv", {NULL}, SL_HP_LAYER_INTS, SL_HP_AT(layer_kv_heads), .min = 1,
     .max = SL_MAX_HEADS},
    {"attention.key_length", {"head_dim"}, SL_HP_INT, SL_HP_AT(head_dim), .min = 2,
     .max = SL_MAX_HEAD_DIM},
    {"attention.value_length", {NULL}, SL_HP_INT, SL_HP_AT(v_dim), .min = 1,
     .max = SL_MAX_HEAD_DIM},
    {"context_length", {"max_position_embeddings", "max_seq_len"}, SL_HP_INT, SL_HP_AT(context),
     .required = true, .min = 1, .max = SL_MAX_CONTEXT},
    {NULL, {"vocab_size"}, SL_HP_INT, SL_HP_AT(n_vocab), .required = true, .min = 1,
     .max = SL_MAX_VOCAB},
    {"attention.layer_norm_rms_epsilon", {"rms_norm_eps"}, SL_HP_FLOAT, SL_HP_AT(norm_eps),
     .def = 1e-5, .min = 1e-20, .max = 1},
    {"expert_count", {"n_routed_experts", "moe_num_experts", "num_local_experts"}, SL_HP_INT,
     SL_HP_AT(n_experts), .required = true, .min = 1, .max = SL_MAX_EXPERTS},
    {"expert_used_count", {"num_experts_per_tok", "moe_top_k"}, SL_HP_INT, SL_HP_AT(top_experts),
     .required = true, .min = 1, .max = SL_MAX_TOP_EXPERTS},
    {"expert_gating_func", {NULL}, SL_HP_INT, SL_HP_AT(expert_gating), .min = 0, .max = 2},
    SL_HPARAM_EXPERT_SIZE,
    {"expert_shared_feed_forward_length", {"share_expert_dim"}, SL_HP_INT,
     SL_HP_AT(shared_intermediate), .required = true, .min = 1, .max = 4 * SL_MAX_HIDDEN},
    {"expert_weights_scale", {"moe_router_scaling_factor"}, SL_HP_FLOAT, SL_HP_AT(expert_scale),
     .min = 0, .max = 1e6},
    {"expert_weights_norm", {"norm_expert_weight"}, SL_HP_BOOL, SL_HP_AT(norm_top_experts),
     .def = true},
    {"leading_dense_block_count", {NULL}, SL_HP_INT, SL_HP_AT(n_dense), .def = 3, .min = 0,
     .max = SL_MAX_LAYERS},
    {NULL, {"moe_layers_enum"}, SL_HP_LAYERS, SL_HP_AT(mlp_types), .def = SL_LAYER_ON},
    SL_HPARAM_MLP_TYPES,
    {"attention.sliding_window", {"sliding_window"}, SL_HP_INT, SL_HP_AT(window), .min = 1,
     .max = SL_MAX_CONTEXT},
    {"attention.sliding_window_pattern", {"layer_types"}, SL_HP_LAYER_TYPES,
     SL_HP_AT(layer_types)},
    {"swiglu_clamp_exp", {"swiglu_limits"}, SL_HP_LAYER_FLOATS, SL_HP_AT(layer_limits), .min = 0,
     .max = 1e6},
    {"swiglu_clamp_shexp", {"swiglu_limits_shared"}, SL_HP_LAYER_FLOATS,
     SL_HP_AT(layer_mlp_limits), .min = 0, .max = 1e6},
    {NULL, {"query_pre_attn_scalar"}, SL_HP_INT, SL_HP_AT(query_scalar), .min = 1, .max = 1 << 20},
    SL_HPARAM_TIED(false),
    {NULL, {"moe_router_activation"}, SL_HP_CHOICE, .value = "sigmoid"},
    SL_HPARAM_ONLY("use_head_wise_attn_gate", 1),
    SL_HPARAM_ONLY("use_moe_router_bias", 1),
    SL_HPARAM_ONLY("zero_centered", 1),
    SL_HPARAM_ONLY("attention_bias", 0),
    SL_HPARAM_ONLY("mlp_bias", 0),
    SL_HPARAM_ONLY("use_bidirectional_attention", 0),
};

static const struct sl_weight_desc weights[] = {
    SL_WEIGHTS_EMBED_AND_HEAD_PLUS_ONE,
    SL_W_LAYER(ATTN_NORM, "input_layernorm.weight", "attn_norm.weight", H, NONE, NONE),
     .flags = SL_W_PLUS_ONE},
    SL_WEIGHTS_GQA,
    SL_W_LAYER(Q_NORM, "self_attn.q_norm.weight", "attn_q_norm.weight", HD, NONE, NONE),
     .flags = SL_W_PLUS_ONE},
    SL_W_LAYER(K_NORM, "self_attn.k_norm.weight", "attn_k_norm.weight", HD, NONE, NONE),
     .flags = SL_W_PLUS_ONE},
    SL_W_LAYER(OUT_GATE, "self_attn.g_proj.weight", "attn_gate.weight", HEADS, H, HEADS)},
    SL_W_LAYER(FFN_NORM, "post_attention_layernorm.weight", "ffn_norm.weight", H, NONE, NONE),
     .flags = SL_W_PLUS_ONE},
    SL_W_LAYER(ROUTER, "moe.gate.weight", "ffn_gate_inp.weight", E, H, NONE),
     .when = SL_HAS_EXPERTS},
    SL_WEIGHT_CHOICE_BIAS("moe.router_bias"),
    SL_W_LAYER(EXPERTS_GATE, "moe.gate_proj.weight", "ffn_gate_exps.weight", I, H, ROWS),
     .mats = SL_DIM_E, .when = SL_HAS_EXPERTS},
    SL_W_LAYER(EXPERTS_UP, "moe.up_proj.weight", "ffn_up_exps.weight", I, H, ROWS),
     .mats = SL_DIM_E, .when = SL_HAS_EXPERTS},
    SL_W_LAYER(EXPERTS_DOWN, "moe.down_proj.weight", "ffn_down_exps.weight", H, I, ROWS),
     .mats = SL_DIM_E, .when = SL_HAS_EXPERTS},
    SL_WEIGHTS_SHARED("share_expert"),
    SL_WEIGHTS_FFN_DENSE,
    {.slot = SL_SLOT_ROPE_FREQS, .gguf = "rope_freqs.weight", .rows = SL_DIM_FULL_HD_HALF,
     .when = SL_HAS_ROPE_FREQS},
};
/* clang-format on */

enum { FULL, LOCAL }; /* tables of rotations */

static const struct sl_rope_desc ropes[] = {
    {.kind = "full_attention",
     .hf_theta = "rope_theta",
     .gguf_theta = "rope.freq_base",
     .hf_partial = "partial_rotary_factors",
     .theta = 10000,
     .scaled = true,
     .partial = 1,
     .gguf_partial = 0.5},
    {.kind = "sliding_attention",
     .hf_theta = "rope_theta",
     .gguf_theta = "rope.freq_base_swa",
     .hf_partial = "partial_rotary_factors",
     .theta = 10000,
     .partial = 1},
};

static struct sl_swiglu step3_late(double limit)
{
    return (struct sl_swiglu){.limit = (float)limit, .late = true};
}

static int step3_plan(const struct sl_model_name *name, const struct sl_hparams *hp,
                      struct sl_layer_desc *layers, struct sl_error *err)
{
    (void)name;
    int rc = sl_plan_experts(hp, SL_ROUTE_SIGMOID, 0, layers, err);
    for (int32_t i = 0; i < hp->n_layers && rc == 0; i++) {
        struct sl_layer_desc *l = &layers[i];
        const bool windowed = hp->layer_types[i] == SL_LAYER_ON;
        if (windowed && hp->window == 0)
            return sl_fail(err, SL_EFORMAT, "layer %d is windowed, but there is no sliding_window",
                           i);
        l->window = windowed ? hp->window : 0;
        l->rope = windowed ? LOCAL : FULL;
        if (windowed && hp->window_heads != 0)
            l->n_heads = hp->window_heads;
        if (windowed && hp->window_kv_heads != 0)
            l->n_kv_heads = hp->window_kv_heads;
        if (hp->layer_heads[i] != 0)
            l->n_heads = hp->layer_heads[i];
        if (hp->layer_kv_heads[i] != 0)
            l->n_kv_heads = hp->layer_kv_heads[i];
        if (l->n_heads % l->n_kv_heads != 0)
            return sl_fail(err, SL_EFORMAT,
                           "layer %d has %d heads, which is not a multiple of its %d KV heads", i,
                           l->n_heads, l->n_kv_heads);
        if (hp->query_scalar != 0)
            l->attn_scale = (float)(1 / sqrt((double)hp->query_scalar));
        l->swiglu = step3_late(hp->layer_limits[i]);
        l->mlp_swiglu = step3_late(hp->layer_mlp_limits[i]);
    }
    return rc;
}

static void step3_tiny(const struct sl_model_name *name, struct sl_hparams *hp)
{
    *hp = (struct sl_hparams){
        .hidden = 64,
        .intermediate = 160,
        .n_layers = 4,
        .n_heads = 4,
        .window_heads = 6,
        .n_kv_heads = 2,
        .head_dim = 24,
        .n_vocab = 320,
        .context = 512,
        .norm_eps = 1e-5,
        .has = name->has | SL_HAS_HEAD,
        .ropes = {{.theta = 50000, .n_dims = 12}, {.theta = 10000}},
        .window = 25,
        .n_experts = 7,
        .top_experts = 3,
        .expert_intermediate = 96,
        .shared_intermediate = 128,
        .norm_top_experts = true,
        .expert_scale = 2.5,
        .n_dense = 1,
    };
    for (int32_t i = 0; i < hp->n_layers; i++) {
        hp->layer_types[i] = i % 3 == 0 ? SL_LAYER_OFF : SL_LAYER_ON;
        hp->mlp_types[i] = i == 0 ? SL_LAYER_OFF : SL_LAYER_ON;
        hp->layer_heads[i] = i % 3 == 0 ? hp->n_heads : hp->window_heads;
        hp->layer_kv_heads[i] = hp->n_kv_heads;
        hp->layer_limits[i] = i < 2 ? 0 : 0.5;
        hp->layer_mlp_limits[i] = i % 2 == 0 ? 0.25 : 0;
    }
}

const struct sl_model_desc sl_model_step3 = {
    .id = "step3",
    SL_MODEL_TABLES,
    SL_MODEL_ROPES(ropes),
    .plan = step3_plan,
    .tiny = step3_tiny,
};
