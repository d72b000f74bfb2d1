/* SPDX-License-Identifier: MIT
 * Qwen3.5 (and 3.6, 3.8, which have its architecture) and Qwen3-Next, the text models: three of
 * four layers have the gated delta rule behind a short convolution, the fourth has attention whose
 * output is gated value by value, by rows that lie beside those of q in one tensor. Dense, or with
 * experts and a gated shared one. Qwen3-Next has q, k, v and z of a group of heads side by side,
 * and the two gates too. The module that predicts further tokens (MTP), a layer with attention, is
 * a drafter (draft.c).
 */
#include "base/check.h"
#include "models/desc.h"
#include "models/tables.h"

#include <math.h>
#include <string.h>

#define HAS       (SL_HAS_QK_NORM | SL_HAS_OUT_GATE)
#define HAS_MOE   (HAS | SL_HAS_EXPERTS | SL_HAS_SHARED | SL_HAS_SHARED_GATE)
#define HAS_DENSE (HAS | SL_HAS_DENSE)

static const struct sl_model_name names[] = {
    {.id = "qwen35",
     .hf_architecture = "Qwen3_5ForCausalLM",
     .hf_model_type = "qwen3_5_text",
     .gguf_architecture = "qwen35",
     .has = HAS_DENSE,
     .head_dim = 256},
    {.id = "qwen35-text", /* of a model that also reads images, which this one does not */
     .hf_architecture = "Qwen3_5ForConditionalGeneration",
     .hf_model_type = "qwen3_5",
     .gguf_architecture = "qwen35",
     .has = HAS_DENSE,
     .head_dim = 256,
     .hf_config = "text_config"},
    {.id = "qwen35moe",
     .hf_architecture = "Qwen3_5MoeForCausalLM",
     .hf_model_type = "qwen3_5_moe_text",
     .gguf_architecture = "qwen35moe",
     .has = HAS_MOE,
     .head_dim = 256},
    {.id = "qwen35moe-text",
     .hf_architecture = "Qwen3_5MoeForConditionalGeneration",
     .hf_model_type = "qwen3_5_moe",
     .gguf_architecture = "qwen35moe",
     .has = HAS_MOE,
     .head_dim = 256,
     .hf_config = "text_config"},
    {.id = "qwen3next",
     .hf_architecture = "Qwen3NextForCausalLM",
     .hf_model_type = "qwen3_next",
     .gguf_architecture = "qwen3next",
     .has = HAS_MOE,
     .head_dim = 256},
};

/* clang-format off */
static const struct sl_hparam_desc hparams[] = {
    {"embedding_length", {"hidden_size"}, SL_HP_INT, SL_HP_AT(hidden), .required = true, .min = 1,
     .max = SL_MAX_HIDDEN},
    {"feed_forward_length", {"intermediate_size"}, SL_HP_INT, SL_HP_AT(intermediate), .min = 1,
     .max = 4 * SL_MAX_HIDDEN},
    {"block_count", {"num_hidden_layers"}, SL_HP_INT, SL_HP_AT(n_layers), .required = true,
     .min = 1, .max = SL_MAX_LAYERS},
    {"attention.head_count", {"num_attention_heads"}, SL_HP_INT, SL_HP_AT(n_heads),
     .required = true, .min = 1, .max = SL_MAX_HEADS},
    SL_HPARAMS_LAYER_KV_HEADS,
    SL_HPARAMS_HEADS,
    {"attention.layer_norm_rms_epsilon", {"rms_norm_eps"}, SL_HP_FLOAT, SL_HP_AT(norm_eps),
     .def = 1e-6, .min = 1e-20, .max = 1},
    SL_HPARAM_ACT(SL_ACT_SILU),
    SL_HPARAM_TIED(false),
    SL_HPARAM_ONLY("attention_bias", 0),
    SL_HPARAM_ONLY("attn_output_gate", 1),
    {"full_attention_interval", {"full_attention_interval"}, SL_HP_INT, SL_HP_AT(attn_interval),
     .def = 4, .min = 1, .max = SL_MAX_LAYERS},
    {NULL, {"layer_types"}, SL_HP_LAYER_TYPES, SL_HP_AT(attn_layers),
     .words = {"linear_attention", "full_attention"}},
    {"ssm.conv_kernel", {"linear_conv_kernel_dim"}, SL_HP_INT, SL_HP_AT(state_taps), .def = 4,
     .min = 2, .max = SL_MAX_CONV_TAPS},
    {"ssm.group_count", {"linear_num_key_heads"}, SL_HP_INT, SL_HP_AT(state_groups), .def = 16,
     .min = 1, .max = SL_MAX_HEADS},
    {"ssm.time_step_rank", {"linear_num_value_heads"}, SL_HP_INT, SL_HP_AT(state_heads), .def = 32,
     .min = 1, .max = SL_MAX_HEADS},
    {"ssm.state_size", {"linear_key_head_dim"}, SL_HP_INT, SL_HP_AT(state_k_dim), .def = 128,
     .min = 1, .max = SL_MAX_STATE_DIM},
    {NULL, {"linear_value_head_dim"}, SL_HP_INT, SL_HP_AT(state_v_dim), .hf_def = 128, .min = 1,
     .max = SL_MAX_STATE_DIM},
    {"ssm.inner_size", {NULL}, SL_HP_INT, SL_HP_AT(state_inner), .required = true, .min = 1,
     .max = SL_MAX_HEADS * SL_MAX_STATE_DIM},
    {"nextn_predict_layers", {"mtp_num_hidden_layers"}, SL_HP_INT, SL_HP_AT(n_nextn), .min = 0,
     .max = 16},
    {"expert_count", {"num_experts"}, SL_HP_INT, SL_HP_AT(n_experts), .min = 1,
     .max = SL_MAX_EXPERTS},
    {"expert_used_count", {"num_experts_per_tok"}, SL_HP_INT, SL_HP_AT(top_experts), .min = 1,
     .max = SL_MAX_TOP_EXPERTS},
    {"expert_feed_forward_length", {"moe_intermediate_size"}, SL_HP_INT,
     SL_HP_AT(expert_intermediate), .min = 1, .max = 4 * SL_MAX_HIDDEN},
    {"expert_shared_feed_forward_length", {"shared_expert_intermediate_size"}, SL_HP_INT,
     SL_HP_AT(shared_intermediate), .min = 1, .max = 4 * SL_MAX_HIDDEN},
    SL_HPARAM_NORM_TOP_EXPERTS(true),
    {NULL, {"decoder_sparse_step"}, SL_HP_INT, SL_HP_AT(expert_step), .def = 1, .min = 1,
     .max = SL_MAX_LAYERS},
    {NULL, {"mlp_only_layers"}, SL_HP_LAYERS, SL_HP_AT(dense_layers)},
};

#define DELTA(s, name, gguf_name, r, c)                                                            \
    SL_W_LAYER(s, "linear_attn." name, gguf_name, r, c, NONE), .when = SL_HAS_STATE
/* A part of what Qwen3-Next has in one tensor, in turns of groups. */
#define OF_QKVZ(idx)                                                                               \
    .hf_fused = "model.layers.*.linear_attn.in_proj_qkvz.weight", .part = idx,                     \
    .fused = {SL_DIM_STATE_KEYS, SL_DIM_STATE_KEYS, SL_DIM_STATE_ROWS, SL_DIM_STATE_ROWS},         \
    .turns = SL_DIM_STATE_GROUPS
#define OF_BA(idx)                                                                                 \
    .hf_fused = "model.layers.*.linear_attn.in_proj_ba.weight",                                    \
    .gguf_fused = "blk.*.ssm_ba.weight", .part = idx,                                              \
    .fused = {SL_DIM_STATE_HEADS, SL_DIM_STATE_HEADS}, .turns = SL_DIM_STATE_GROUPS
/* q and what gates the output, in turns of heads. */
#define OF_Q(s, idx)                                                                               \
    SL_W_LAYER_PART(s, "self_attn.q_proj.weight", "attn_q.weight", Q, H, HEADS, idx, SL_DIM_Q,     \
                    SL_DIM_Q), .turns = SL_DIM_HEADS, .when = SL_HAS_ATTN

static const struct sl_weight_desc weights[] = {
    SL_WEIGHTS_EMBED_AND_HEAD_PLUS_ONE,
    SL_W_LAYER(ATTN_NORM, "input_layernorm.weight", "attn_norm.weight", H, NONE, NONE),
     .flags = SL_W_PLUS_ONE},
    OF_Q(Q, 0)},
    OF_Q(OUT_GATE, 1)},
    SL_W_LAYER(K, "self_attn.k_proj.weight", "attn_k.weight", K, H, KV_HEADS),
     .when = SL_HAS_ATTN},
    SL_W_LAYER(V, "self_attn.v_proj.weight", "attn_v.weight", VALUES, H, KV_HEADS),
     .when = SL_HAS_ATTN},
    SL_W_LAYER(O, "self_attn.o_proj.weight", "attn_output.weight", H, ATT, ROWS),
     .when = SL_HAS_ATTN},
    SL_W_LAYER(Q_NORM, "self_attn.q_norm.weight", "attn_q_norm.weight", HD, NONE, NONE),
     .when = SL_HAS_ATTN, .flags = SL_W_PLUS_ONE},
    SL_W_LAYER(K_NORM, "self_attn.k_norm.weight", "attn_k_norm.weight", HD, NONE, NONE),
     .when = SL_HAS_ATTN, .flags = SL_W_PLUS_ONE},
    DELTA(STATE_IN, "in_proj_qkv.weight", "attn_qkv.weight", CONV, H), OF_QKVZ(0)},
    DELTA(STATE_GATE, "in_proj_z.weight", "attn_gate.weight", STATE_ROWS, H), OF_QKVZ(3)},
    DELTA(STATE_BETA, "in_proj_b.weight", "ssm_beta.weight", STATE_HEADS, H), OF_BA(0)},
    DELTA(STATE_DT, "in_proj_a.weight", "ssm_alpha.weight", STATE_HEADS, H), OF_BA(1)},
    DELTA(CONV, "conv1d.weight", "ssm_conv1d.weight", CONV, TAPS), .flags = SL_W_VALUES},
    DELTA(STATE_DT_BIAS, "dt_bias", "ssm_dt.bias", STATE_HEADS, NONE)},
    DELTA(STATE_A, "A_log", "ssm_a", STATE_HEADS, NONE), .flags = SL_W_MINUS_EXP},
    DELTA(STATE_NORM, "norm.weight", "ssm_norm.weight", STATE_V, NONE)},
    DELTA(STATE_OUT, "out_proj.weight", "ssm_out.weight", H, ATT)},
    SL_W_LAYER(FFN_NORM, "post_attention_layernorm.weight", "post_attention_norm.weight", H, NONE,
               NONE), .flags = SL_W_PLUS_ONE},
    SL_WEIGHTS_FFN_DENSE,
    SL_WEIGHTS_EXPERTS_OR_FUSED,
    SL_WEIGHTS_SHARED("mlp.shared_expert"),
    SL_W_LAYER(SHARED_LOGIT, "mlp.shared_expert_gate.weight", "ffn_gate_inp_shexp.weight", ONE, H,
               NONE), .when = SL_HAS_SHARED_GATE},
};

static const struct sl_weight_desc mtp_weights[] = {
    SL_WEIGHTS_MTP("mtp.pre_fc_norm_embedding", "mtp.pre_fc_norm_hidden", "mtp.fc", "mtp.norm",
                   SL_W_PLUS_ONE),
};
/* clang-format on */

static const struct sl_draft_desc mtp = {.weights = mtp_weights,
                                         .n_weights = SL_COUNT(mtp_weights),
                                         .hf_layers = "mtp.layers.*.",
                                         .attends = SL_LAYER_ON,
                                         .experts = SL_LAYER_ON};

static const struct sl_rope_desc ropes[] = {
    {.hf_theta = "rope_theta",
     .gguf_theta = "rope.freq_base",
     .theta = 10000,
     .scaled = true,
     .partial = 0.25},
};

static int qwen35_plan_mlps(const struct sl_model_name *name, const struct sl_hparams *hp,
                            struct sl_layer_desc *layers, struct sl_error *err)
{
    if ((name->has & SL_HAS_EXPERTS) == 0)
        return hp->intermediate > 0 ? 0
                                    : sl_fail(err, SL_EFORMAT, "%s is missing",
                                              hp->from_gguf ? "GGUF: qwen35.feed_forward_length"
                                                            : "config.json: intermediate_size");
    if (hp->n_experts == 0 || hp->top_experts == 0 || hp->expert_intermediate == 0 ||
        hp->shared_intermediate == 0)
        return sl_fail(err, SL_EFORMAT, "%s is missing",
                       hp->from_gguf
                           ? "GGUF: one of expert_count, expert_used_count, "
                             "expert_feed_forward_length, expert_shared_feed_forward_length"
                           : "config.json: one of num_experts, num_experts_per_tok, "
                             "moe_intermediate_size, shared_expert_intermediate_size");
    return sl_plan_experts(hp, SL_ROUTE_SOFTMAX, 0, layers, err);
}

static int qwen35_check_state(const struct sl_hparams *hp, struct sl_error *err)
{
    if (hp->state_heads % hp->state_groups != 0)
        return sl_fail(err, SL_EFORMAT, "%s (%d) is not a multiple of %s (%d)",
                       hp->from_gguf ? "GGUF: ssm.time_step_rank"
                                     : "config.json: linear_num_value_heads",
                       hp->state_heads, hp->from_gguf ? "ssm.group_count" : "linear_num_key_heads",
                       hp->state_groups);
    if (hp->from_gguf && (hp->state_inner % hp->state_heads != 0 ||
                          hp->state_inner / hp->state_heads > SL_MAX_STATE_DIM))
        return sl_fail(err, SL_EFORMAT,
                       "GGUF: ssm.inner_size (%d) is not ssm.time_step_rank (%d) times 1 to %d",
                       hp->state_inner, hp->state_heads, SL_MAX_STATE_DIM);
    return 0;
}

/* tiled: GGUF files of Qwen3.5 have first the first value head of each group, then the second of
 * each. */
static void plan_delta(const struct sl_hparams *hp, bool tiled, struct sl_layer_desc *l)
{
    sl_plan_mixer(SL_MIX_DELTA, l);
    l->state = (struct sl_state_desc){
        .n_taps = hp->state_taps,
        .n_heads = hp->state_heads,
        .n_groups = hp->state_groups,
        .k_dim = hp->state_k_dim,
        .v_dim = hp->from_gguf ? hp->state_inner / hp->state_heads : hp->state_v_dim,
        .tiled = tiled,
        .beta_scale = 1,
        .norm_eps = (float)hp->norm_eps,
        .norm = true,
        .norm_heads = true,
    };
    l->attn_scale = 1 / sqrtf((float)hp->state_k_dim);
}

static int qwen35_plan(const struct sl_model_name *name, const struct sl_hparams *hp,
                       struct sl_layer_desc *layers, struct sl_error *err)
{
    const bool next = strcmp(name->id, "qwen3next") == 0;
    int rc = qwen35_plan_mlps(name, hp, layers, err);
    if (rc == 0)
        rc = qwen35_check_state(hp, err);
    for (int32_t i = 0; i < hp->n_layers && rc == 0; i++) {
        if (sl_plan_attends(hp, i, (i + 1) % hp->attn_interval == 0))
            sl_plan_mixer(SL_MIX_GQA, &layers[i]);
        else
            plan_delta(hp, hp->from_gguf && !next, &layers[i]);
    }
    return rc;
}

static void qwen35_tiny(const struct sl_model_name *name, struct sl_hparams *hp)
{
    const bool experts = (name->has & SL_HAS_EXPERTS) != 0;
    *hp = (struct sl_hparams){
        .hidden = 64,
        .intermediate = 160,
        .n_layers = 4,
        .n_heads = 4,
        .n_kv_heads = 2,
        .head_dim = 32,
        .n_vocab = 320,
        .context = 512,
        .norm_eps = 1e-6,
        .has = name->has,
        .ropes = {{.theta = 1000000, .n_dims = 8}},
        .attn_interval = 4,
        .state_taps = 4,
        .state_heads = 4,
        .state_groups = 2,
        .state_k_dim = 24,
        .state_v_dim = 16,
        .n_experts = experts ? 7 : 0,
        .top_experts = experts ? 3 : 0,
        .expert_intermediate = experts ? 96 : 0,
        .shared_intermediate = experts ? 128 : 0,
        .expert_step = 1,
        .norm_top_experts = experts,
    };
    for (int32_t i = 0; i < SL_MAX_LAYERS; i++)
        hp->attn_layers[i] = i % 4 == 3 ? SL_LAYER_ON : SL_LAYER_OFF;
}

const struct sl_model_desc sl_model_qwen35 = {
    .id = "qwen35",
    SL_MODEL_TABLES,
    SL_MODEL_ROPES(ropes),
    .mtp = &mtp,
    .plan = qwen35_plan,
    .tiny = qwen35_tiny,
};
