/* SPDX-License-Identifier: MIT
 * Kimi-Linear: three of four layers have a recurrent state (KDA), the others latent attention
 * without positions; experts as DeepSeek V3 has them.
 *
 * KDA is the gated delta rule with a decay for each row of the state. Decay and output gate are
 * products by way of a row of low rank, as wide as a head.
 */
#include "base/check.h"
#include "models/desc.h"
#include "models/tables.h"

#include <math.h>

static const struct sl_model_name names[] = {
    {.id = "kimi_linear",
     .hf_architecture = "KimiLinearForCausalLM",
     .hf_model_type = "kimi_linear",
     .gguf_architecture = "kimi-linear",
     .has = SL_HAS_CHOICE_BIAS},
};

/* clang-format off */
static const struct sl_hparam_desc hparams[] = {
    SL_HPARAMS_SIZES,
    {"context_length", {"model_max_length", "max_position_embeddings"}, SL_HP_INT,
     SL_HP_AT(context), .required = true, .min = 1, .max = SL_MAX_CONTEXT},
    {NULL, {"vocab_size"}, SL_HP_INT, SL_HP_AT(n_vocab), .required = true, .min = 1,
     .max = SL_MAX_VOCAB},
    {"attention.layer_norm_rms_epsilon", {"rms_norm_eps"}, SL_HP_FLOAT, SL_HP_AT(norm_eps),
     .def = 1e-5, .min = 1e-20, .max = 1},
    SL_HPARAMS_MLA,
    {"expert_count", {"num_experts", "n_routed_experts"}, SL_HP_INT, SL_HP_AT(n_experts),
     .required = true, .min = 1, .max = SL_MAX_EXPERTS},
    {"expert_used_count", {"num_experts_per_token", "num_experts_per_tok"}, SL_HP_INT,
     SL_HP_AT(top_experts), .required = true, .min = 1, .max = SL_MAX_TOP_EXPERTS},
    SL_HPARAM_EXPERT_SIZE,
    {"expert_weights_norm", {"moe_renormalize", "norm_topk_prob"}, SL_HP_BOOL,
     SL_HP_AT(norm_top_experts), .def = true},
    {"expert_group_count", {"num_expert_group", "n_group"}, SL_HP_INT,
     SL_HP_AT(n_expert_groups), .min = 0, .max = SL_MAX_EXPERTS},
    {"expert_group_used_count", {"topk_group"}, SL_HP_INT, SL_HP_AT(top_expert_groups), .min = 0,
     .max = SL_MAX_EXPERTS},
    {"expert_weights_scale", {"routed_scaling_factor"}, SL_HP_FLOAT,
     SL_HP_AT(expert_scale), .min = 0, .max = 1e6},
    {"expert_shared_count", {"num_shared_experts", "n_shared_experts"}, SL_HP_INT,
     SL_HP_AT(n_shared_experts), .min = 0, .max = 64},
    {"leading_dense_block_count", {"first_k_dense_replace"}, SL_HP_INT, SL_HP_AT(n_dense),
     .def = 1, .min = 0, .max = SL_MAX_LAYERS},
    SL_HPARAM_MLP_TYPES,
    {NULL, {"moe_layer_freq"}, SL_HP_INT, SL_HP_AT(expert_step), .min = 1, .max = 1},
    {.hf = {"moe_router_activation_func"}, .type = SL_HP_CHOICE, .value = "sigmoid"},
    SL_HPARAM_ONLY("mla_use_nope", true),
    SL_HPARAM_ONLY("attention_bias", false),
    {NULL, {"hidden_act"}, SL_HP_CHOICE, .value = "silu"}, /* of convolutions too */
    SL_HPARAM_TIED(false),
    {NULL, {"linear_attn_config.full_attn_layers"}, SL_HP_LAYERS, SL_HP_AT(attn_layers),
     .def = SL_LAYER_ON, .from_one = true},
    {NULL, {"layer_types"}, SL_HP_LAYER_TYPES, SL_HP_AT(attn_layers),
     .words = {"linear_attention", "full_attention"}},
    {"attention.head_count_kv", {NULL}, SL_HP_LAYER_INTS, SL_HP_AT(layer_kv_heads), .min = 0,
     .max = SL_MAX_HEADS},
    {NULL, {"linear_attn_config.num_heads", "linear_num_heads"}, SL_HP_INT,
     SL_HP_AT(state_heads), .required = true, .hf_def = 32, .min = 1, .max = SL_MAX_HEADS},
    {"kda.head_dim", {"linear_attn_config.head_dim", "linear_head_dim"}, SL_HP_INT,
     SL_HP_AT(state_v_dim), .required = true, .hf_def = 128, .min = 1, .max = SL_MAX_STATE_DIM},
    {"ssm.conv_kernel", {"linear_attn_config.short_conv_kernel_size", "linear_conv_kernel_dim"},
     SL_HP_INT, SL_HP_AT(state_taps), .def = 4, .min = 2, .max = SL_MAX_CONV_TAPS},
};

/* transformers 5 saves the MLP of a layer without experts by another name than the hub has. */
#define DENSE(s, name, gguf_name, r, c)                                                           \
    {.slot = SL_SLOT_##s, .hf = "model.layers.*.mlp." name ".weight",                             \
     .gguf = "blk.*." gguf_name ".weight", .rows = SL_DIM_##r, .cols = SL_DIM_##c,                \
     .shard = SL_SHARD_ROWS, .hf_fused = "model.layers.*.block_sparse_moe." name ".weight",       \
     .fused = {SL_DIM_##r}, .when = SL_HAS_DENSE
#define KDA(s, name, gguf_name, r, c)                                                             \
    {.slot = SL_SLOT_##s, .hf = "model.layers.*.self_attn." name, .gguf = "blk.*." gguf_name,     \
     .rows = SL_DIM_##r, .cols = SL_DIM_##c, .when = SL_HAS_STATE
#define QKV {SL_DIM_STATE_KEYS, SL_DIM_STATE_KEYS, SL_DIM_STATE_ROWS}

static const struct sl_weight_desc weights[] = {
    SL_WEIGHTS_EMBED_AND_HEAD,
    SL_WEIGHTS_ATTN_NORM,
    SL_WEIGHTS_MLA(SL_HAS_ATTN),
    KDA(STATE_IN, "{q,k,v}_proj.weight", "attn_{q,k,v}.weight", CONV, H), .pieces = QKV},
    KDA(STATE_GATE_DOWN, "g_a_proj.weight", "ssm_g_a.weight", STATE_LOW, H)},
    KDA(STATE_GATE, "g_b_proj.weight", "ssm_g_b.weight", STATE_ROWS, STATE_LOW)},
    KDA(STATE_DT_DOWN, "f_a_proj.weight", "ssm_f_a.weight", STATE_LOW, H)},
    KDA(STATE_DT, "f_b_proj.weight", "ssm_f_b.weight", STATE_DT, STATE_LOW)},
    KDA(STATE_BETA, "b_proj.weight", "ssm_beta.weight", STATE_HEADS, H)},
    KDA(CONV, "{q,k,v}_conv1d.weight", "ssm_conv1d_{q,k,v}.weight", CONV, TAPS), .pieces = QKV,
     .flags = SL_W_VALUES},
    KDA(STATE_DT_BIAS, "dt_bias", "ssm_dt.bias", STATE_DT, NONE)},
    KDA(STATE_A, "A_log", "ssm_a", STATE_HEADS, NONE), .flags = SL_W_MINUS_EXP | SL_W_FLAT},
    KDA(STATE_NORM, "o_norm.weight", "ssm_norm.weight", STATE_V, NONE)},
    KDA(STATE_OUT, "o_proj.weight", "attn_output.weight", H, STATE_ROWS)},
    SL_WEIGHTS_FFN_NORM,
    SL_WEIGHTS_EXPERTS_W123("block_sparse_moe"),
    SL_WEIGHT_CHOICE_BIAS("block_sparse_moe.gate.e_score_correction_bias"),
    SL_WEIGHTS_SHARED("block_sparse_moe.shared_experts"),
    DENSE(GATE, "gate_proj", "ffn_gate", I, H)},
    DENSE(UP, "up_proj", "ffn_up", I, H)},
    DENSE(DOWN, "down_proj", "ffn_down", H, I)},
};
/* clang-format on */

/* A GGUF has no key heads in recurrent layers; the tensors of both kinds have the same names. */
static bool kimi_linear_attends(const struct sl_hparams *hp, int32_t idx)
{
    return hp->from_gguf ? hp->layer_kv_heads[idx] > 0
                         : sl_plan_attends(hp, idx, idx > 0 && idx % 4 == 0);
}

static int kimi_linear_plan(const struct sl_model_name *name, const struct sl_hparams *hp,
                            struct sl_layer_desc *layers, struct sl_error *err)
{
    const int32_t heads = hp->state_heads != 0 ? hp->state_heads : hp->n_heads; /* GGUF: as many */
    (void)name;
    for (int32_t i = 0; i < hp->n_layers; i++) {
        struct sl_layer_desc *l = &layers[i];
        if (kimi_linear_attends(hp, i)) {
            sl_plan_mla(hp, l);
            continue;
        }
        sl_plan_mixer(SL_MIX_DELTA, l);
        l->state = (struct sl_state_desc){
            .n_taps = hp->state_taps,
            .n_heads = heads,
            .n_groups = heads,
            .k_dim = hp->state_v_dim,
            .v_dim = hp->state_v_dim,
            .low_rank = hp->state_v_dim,
            .by_row = true,
            .beta_scale = 1,
            .norm_eps = (float)hp->norm_eps,
            .norm = true,
            .norm_heads = true,
            .sigmoid_gate = true,
        };
        l->attn_scale = 1 / sqrtf((float)hp->state_v_dim);
    }
    return sl_plan_experts(hp, SL_ROUTE_SIGMOID, 1e-20f, layers, err);
}

static void kimi_linear_tiny(const struct sl_model_name *name, struct sl_hparams *hp)
{
    *hp = (struct sl_hparams){
        .hidden = 64,
        .intermediate = 160,
        .n_layers = 4,
        .n_heads = 4,
        .n_kv_heads = 1,
        .head_dim = 32 + 16,
        .kv_rank = 64,
        .nope_dim = 32,
        .rope_dims = 16,
        .value_dim = 32,
        .n_vocab = 320,
        .context = 512,
        .norm_eps = 1e-5,
        .has = name->has | SL_HAS_HEAD,
        .n_experts = 8,
        .top_experts = 3,
        .expert_intermediate = 96,
        .norm_top_experts = true,
        .expert_scale = 2.5,
        .n_dense = 1,
        .n_shared_experts = 1,
        .state_taps = 4,
        .state_heads = 4,
        .state_v_dim = 24,
    };
    for (int32_t i = 0; i < SL_MAX_LAYERS; i++)
        hp->attn_layers[i] = i % 4 == 2 ? SL_LAYER_ON : SL_LAYER_OFF;
}

const struct sl_model_desc sl_model_kimi_linear = {
    .id = "kimi_linear",
    SL_MODEL_TABLES,
    .plan = kimi_linear_plan,
    .tiny = kimi_linear_tiny,
};
