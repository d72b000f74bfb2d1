/* SPDX-License-Identifier: MIT
 * MiMo-V2-Flash and the text of MiMo-V2.5: values are narrower than keys and have a scale; windowed
 * layers have twice as many key heads, a table of rotations of their own and sinks; a third of a
 * head is rotated; experts are chosen by sigmoid and a bias. The first layer and every sixth see
 * everything, the first is dense.
 *
 * The hub's files list the layers as 0 and 1 (hybrid_layer_pattern, moe_layer_freq), and
 * sliding_window_size counts the keys before a row's own; GGUF files have the same number. V2.5
 * has q, k and v in one tensor, ordered for as many ranks as full layers have key heads: the q, k
 * and v rows of a rank lie together, and its blocks of FP8 scales begin anew. GGUF converters
 * undo that.
 */
#include "base/check.h"
#include "models/desc.h"
#include "models/tables.h"

static const struct sl_model_name names[] = {
    {.id = "mimo_v2_flash",
     .hf_architecture = "MiMoV2FlashForCausalLM",
     .hf_model_type = "mimo_v2_flash",
     .gguf_architecture = "mimo2",
     .has = SL_HAS_CHOICE_BIAS | SL_HAS_SINKS,
     .head_dim = 192},
    {.id = "mimo_v2", /* it also reads images and sounds, which this one does not */
     .hf_architecture = "MiMoV2ForCausalLM",
     .hf_model_type = "mimo_v2",
     .gguf_architecture = "mimo2",
     .has = SL_HAS_CHOICE_BIAS | SL_HAS_SINKS,
     .head_dim = 192,
     .other_parts = true},
};

/* clang-format off */
static const struct sl_hparam_desc hparams[] = {
    SL_HPARAMS_SIZES,
    SL_HPARAM_NEXTN,
    {NULL, {"num_key_value_heads"}, SL_HP_INT, SL_HP_AT(n_kv_heads), .min = 1,
     .max = SL_MAX_HEADS},
    {"attention.head_count_kv", {NULL}, SL_HP_LAYER_INTS, SL_HP_AT(layer_kv_heads), .min = 1,
     .max = SL_MAX_HEADS},
    {NULL, {"swa_num_attention_heads"}, SL_HP_INT, SL_HP_AT(window_heads), .min = 1,
     .max = SL_MAX_HEADS},
    {NULL, {"swa_num_key_value_heads"}, SL_HP_INT, SL_HP_AT(window_kv_heads), .min = 1,
     .max = SL_MAX_HEADS},
    {"attention.key_length", {"head_dim"}, SL_HP_INT, SL_HP_AT(head_dim), .min = 2,
     .max = SL_MAX_HEAD_DIM},
    {"attention.value_length", {"v_head_dim"}, SL_HP_INT, SL_HP_AT(value_dim), .hf_def = 128,
     .min = 1, .max = SL_MAX_HEAD_DIM},
    {"rope.dimension_count", {NULL}, SL_HP_INT, SL_HP_AT(rope_dims), .min = 2,
     .max = SL_MAX_HEAD_DIM},
    {"attention.value_scale", {"attention_value_scale"}, SL_HP_FLOAT, SL_HP_AT(value_scale),
     .hf_def = 0.707, .min = 1e-3, .max = 1e3},
    {"context_length", {"max_position_embeddings"}, SL_HP_INT, SL_HP_AT(context),
     .required = true, .min = 1,
     .max = SL_MAX_CONTEXT},
    {NULL, {"vocab_size"}, SL_HP_INT, SL_HP_AT(n_vocab), .required = true, .min = 1,
     .max = SL_MAX_VOCAB},
    {"attention.layer_norm_rms_epsilon", {"rms_norm_eps", "layernorm_epsilon"}, SL_HP_FLOAT,
     SL_HP_AT(norm_eps), .def = 1e-5,
     .min = 1e-20, .max = 1},
    SL_HPARAMS_EXPERTS,
    SL_HPARAM_EXPERT_SIZE,
    SL_HPARAM_NORM_TOP_EXPERTS(true),
    {"expert_group_count", {"n_group"}, SL_HP_INT, SL_HP_AT(n_expert_groups), .min = 0,
     .max = SL_MAX_EXPERTS},
    {"expert_group_used_count", {"topk_group"}, SL_HP_INT, SL_HP_AT(top_expert_groups), .min = 0,
     .max = SL_MAX_EXPERTS},
    {"expert_weights_scale", {"routed_scaling_factor"}, SL_HP_FLOAT, SL_HP_AT(expert_scale),
     .min = 0, .max = 1e6},
    {"expert_shared_count", {"n_shared_experts"}, SL_HP_INT, SL_HP_AT(n_shared_experts),
     .min = 0, .max = 0},
    {NULL, {"scoring_func"}, SL_HP_CHOICE, .value = "sigmoid"},
    SL_HPARAM_MLP_TYPES,
    {NULL, {"moe_layer_freq"}, SL_HP_LAYER_FLAGS, SL_HP_AT(mlp_types)},
    SL_HPARAM_ACT(SL_ACT_SILU),
    SL_HPARAM_TIED(false),
    {NULL, {"sliding_window"}, SL_HP_INT, SL_HP_AT(window), .def = 129, .min = 1,
     .max = SL_MAX_CONTEXT},
    {"attention.sliding_window", {"sliding_window_size"}, SL_HP_INT, SL_HP_AT(window_before),
     .min = 1,
     .max = SL_MAX_CONTEXT - 1},
    {"attention.sliding_window_pattern", {"layer_types"}, SL_HP_LAYER_TYPES, SL_HP_AT(layer_types)},
    {NULL, {"hybrid_layer_pattern"}, SL_HP_LAYER_FLAGS, SL_HP_AT(layer_types)},
    SL_HPARAM_ONLY("add_full_attention_sink_bias", 0),
    SL_HPARAM_ONLY("add_swa_attention_sink_bias", 1),
    {NULL, {"attention_bias"}, SL_HP_HAS, .has = SL_HAS_QKV_BIAS},
};

#define MIMO_QKV(s, word, dim, how, idx)                                                          \
    SL_W_LAYER(s, "self_attn." word "_proj.weight", "attn_" word ".weight", dim, H, how),         \
     .hf_fused = "model.layers.*.self_attn.qkv_proj.weight",                                      \
     .gguf_fused = "blk.*.attn_qkv.weight", .part = idx,                                          \
     .fused = {SL_DIM_Q, SL_DIM_K, SL_DIM_VALUES}, .turns = SL_DIM_MODEL_KV_HEADS

static const struct sl_weight_desc weights[] = {
    SL_WEIGHTS_EMBED_AND_HEAD,
    SL_WEIGHTS_ATTN_NORM,
    MIMO_QKV(Q, "q", Q, HEADS, 0), .flags = SL_W_ROPE_ROWS | SL_W_FOLDER_TURNS},
    MIMO_QKV(K, "k", K, KV_HEADS, 1), .flags = SL_W_ROPE_ROWS | SL_W_FOLDER_TURNS},
    MIMO_QKV(V, "v", VALUES, KV_HEADS, 2), .flags = SL_W_FOLDER_TURNS},
    SL_W_LAYER(O, "self_attn.o_proj.weight", "attn_output.weight", H, ATT, ROWS)},
    SL_WEIGHTS_QKV_BIAS,
    SL_W_LAYER(SINKS, "self_attn.attention_sink_bias", "attn_sinks.weight", HEADS, NONE, HEADS),
     .when = SL_HAS_SINKS},
    SL_WEIGHTS_FFN_NORM,
    SL_WEIGHTS_EXPERTS,
    SL_WEIGHT_CHOICE_BIAS("mlp.gate.e_score_correction_bias"),
    SL_WEIGHTS_FFN_DENSE,
};
/* clang-format on */

static const struct sl_rope_desc ropes[] = {
    {.kind = "full_attention",
     .hf_theta = "rope_theta",
     .gguf_theta = "rope.freq_base",
     .theta = 5000000,
     .scaled = true,
     .partial = 0.334},
    {.kind = "sliding_attention",
     .hf_theta = "swa_rope_theta",
     .gguf_theta = "rope.freq_base_swa",
     .theta = 10000,
     .partial = 0.334},
};

static int mimo_plan(const struct sl_model_name *name, const struct sl_hparams *hp,
                     struct sl_layer_desc *layers, struct sl_error *err)
{
    const int32_t kv_heads = hp->window_kv_heads != 0 ? hp->window_kv_heads : 2 * hp->n_kv_heads;
    (void)name;
    int rc = sl_plan_experts(hp, SL_ROUTE_SIGMOID, 1e-20f, layers, err);
    for (int32_t i = 0; i < hp->n_layers && rc == 0; i++) {
        struct sl_layer_desc *l = &layers[i];
        const bool windowed = hp->layer_types[i] == SL_LAYER_BY_INDEX
                                  ? i != 0 && (i + 1) % 6 != 0
                                  : hp->layer_types[i] == SL_LAYER_ON;
        l->v_dim = hp->value_dim != 0 ? hp->value_dim : hp->head_dim;
        l->value_scale = hp->value_scale != 0 ? (float)hp->value_scale : 1;
        l->rope = windowed ? 1 : 0;
        if (!windowed) {
            l->has &= ~(unsigned)SL_HAS_SINKS;
            continue;
        }
        if (hp->window_heads != 0)
            l->n_heads = hp->window_heads;
        l->n_kv_heads = hp->layer_kv_heads[i] != 0 ? hp->layer_kv_heads[i] : kv_heads;
        if (l->n_heads % l->n_kv_heads != 0)
            return sl_fail(err, SL_EFORMAT,
                           "layer %d has %d heads, which is not a multiple of its %d KV heads", i,
                           l->n_heads, l->n_kv_heads);
        l->window = hp->window_before != 0 ? hp->window_before + 1 : hp->window;
    }
    return rc;
}

static void mimo_tiny(const struct sl_model_name *name, struct sl_hparams *hp)
{
    *hp = (struct sl_hparams){
        .hidden = 64,
        .intermediate = 160,
        .n_layers = 4,
        .n_heads = 4,
        .n_kv_heads = 1,
        .head_dim = 24,
        .value_dim = 16,
        .value_scale = 0.7,
        .n_vocab = 320,
        .context = 512,
        .norm_eps = 1e-5,
        .has = name->has | SL_HAS_HEAD,
        .ropes = {{.theta = 5000000, .n_dims = 8}, {.theta = 10000, .n_dims = 8}},
        .window = 25,
        .window_before = 24,
        .n_experts = 7,
        .top_experts = 3,
        .expert_intermediate = 96,
        .norm_top_experts = true,
    };
    for (int32_t i = 0; i < hp->n_layers; i++) {
        hp->mlp_types[i] = i == 0 ? SL_LAYER_OFF : SL_LAYER_ON;
        hp->layer_types[i] = i % 3 == 0 ? SL_LAYER_OFF : SL_LAYER_ON;
        hp->layer_kv_heads[i] = hp->n_kv_heads * (i % 3 == 0 ? 1 : 2);
    }
}

const struct sl_model_desc sl_model_mimo = {
    .id = "mimo",
    SL_MODEL_TABLES,
    SL_MODEL_ROPES(ropes),
    .plan = mimo_plan,
    .tiny = mimo_tiny,
};
