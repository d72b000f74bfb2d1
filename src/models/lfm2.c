/* SPDX-License-Identifier: MIT
 * LFM2 and LFM2-MoE: most layers mix tokens by a short convolution with two gates in place of
 * attention, whose state is the last inputs of each channel. In the larger models all layers but
 * the first have experts, chosen by sigmoid and a bias.
 */
#include "base/check.h"
#include "models/desc.h"
#include "models/tables.h"

static const struct sl_model_name names[] = {
    {.id = "lfm2",
     .hf_architecture = "Lfm2ForCausalLM",
     .hf_model_type = "lfm2",
     .gguf_architecture = "lfm2",
     .has = SL_HAS_QK_NORM | SL_HAS_DENSE,
     .rope_theta = 1000000},
    {.id = "lfm2moe",
     .hf_architecture = "Lfm2MoeForCausalLM",
     .hf_model_type = "lfm2_moe",
     .gguf_architecture = "lfm2moe",
     .has = SL_HAS_QK_NORM | SL_HAS_EXPERTS,
     .rope_theta = 1000000},
};

/* clang-format off */
static const struct sl_hparam_desc hparams[] = {
    {"embedding_length", {"hidden_size"}, SL_HP_INT, SL_HP_AT(hidden), .required = true, .min = 1,
     .max = SL_MAX_HIDDEN},
    {"feed_forward_length", {"block_ff_dim", "intermediate_size"}, SL_HP_INT,
     SL_HP_AT(intermediate), .required = true, .min = 1, .max = 4 * SL_MAX_HIDDEN},
    {NULL, {"block_auto_adjust_ff_dim"}, SL_HP_BOOL, SL_HP_AT(fit_intermediate), .def = true},
    {NULL, {"block_ffn_dim_multiplier"}, SL_HP_FLOAT, SL_HP_AT(intermediate_scale), .hf_def = 1,
     .min = 1e-3, .max = 1e3},
    {NULL, {"block_multiple_of"}, SL_HP_INT, SL_HP_AT(intermediate_step), .hf_def = 256, .min = 1,
     .max = SL_MAX_HIDDEN},
    {"block_count", {"num_hidden_layers"}, SL_HP_INT, SL_HP_AT(n_layers), .required = true,
     .min = 1, .max = SL_MAX_LAYERS},
    {"attention.head_count", {"num_attention_heads"}, SL_HP_INT, SL_HP_AT(n_heads),
     .required = true, .min = 1, .max = SL_MAX_HEADS},
    SL_HPARAMS_LAYER_KV_HEADS,
    SL_HPARAMS_HEADS,
    {"attention.layer_norm_rms_epsilon", {"norm_eps", "block_norm_eps"}, SL_HP_FLOAT,
     SL_HP_AT(norm_eps), .def = 1e-5, .min = 1e-20, .max = 1},
    {"shortconv.l_cache", {"conv_L_cache"}, SL_HP_INT, SL_HP_AT(state_taps), .def = 3, .min = 2,
     .max = SL_MAX_CONV_TAPS},
    {NULL, {"conv_bias"}, SL_HP_HAS, .has = SL_HAS_CONV_BIAS},
    {NULL, {"full_attn_idxs"}, SL_HP_LAYERS, SL_HP_AT(attn_layers), .def = SL_LAYER_ON},
    {NULL, {"layer_types"}, SL_HP_LAYER_TYPES, SL_HP_AT(attn_layers),
     .words = {"conv", "full_attention"}},
    {NULL, {"tie_embedding", "tie_word_embeddings"}, SL_HP_HAS_NOT, .has = SL_HAS_HEAD,
     .def = true},
    {"expert_count", {"num_experts"}, SL_HP_INT, SL_HP_AT(n_experts), .min = 1,
     .max = SL_MAX_EXPERTS},
    {"expert_used_count", {"num_experts_per_tok"}, SL_HP_INT, SL_HP_AT(top_experts), .min = 1,
     .max = SL_MAX_TOP_EXPERTS},
    {"expert_feed_forward_length", {"moe_intermediate_size"}, SL_HP_INT,
     SL_HP_AT(expert_intermediate), .min = 1, .max = 4 * SL_MAX_HIDDEN},
    {"expert_gating_func", {NULL}, SL_HP_INT, SL_HP_AT(expert_gating), .min = 0, .max = 2},
    {"leading_dense_block_count", {"num_dense_layers"}, SL_HP_INT, SL_HP_AT(n_dense), .hf_def = 2,
     .min = 0, .max = SL_MAX_LAYERS},
    {"expert_weights_scale", {"routed_scaling_factor"}, SL_HP_FLOAT, SL_HP_AT(expert_scale),
     .min = 0, .max = 1e6},
    SL_HPARAM_NORM_TOP_EXPERTS(true),
    {NULL, {"use_expert_bias"}, SL_HP_HAS, .has = SL_HAS_CHOICE_BIAS, .def = true},
};

static const struct sl_weight_desc weights[] = {
    {.slot = SL_SLOT_EMBED, .hf = "model.embed_tokens.weight", .gguf = "token_embd.weight",
     .rows = SL_DIM_V, .cols = SL_DIM_H},
    {.slot = SL_SLOT_FINAL_NORM, .hf = "model.embedding_norm.weight",
     .gguf = "token_embd_norm.weight", .rows = SL_DIM_H},
    {.slot = SL_SLOT_HEAD, .hf = "lm_head.weight", .gguf = "output.weight", .rows = SL_DIM_V,
     .cols = SL_DIM_H, .shard = SL_SHARD_ROWS, .when = SL_HAS_HEAD},
    SL_W_LAYER(ATTN_NORM, "operator_norm.weight", "attn_norm.weight", H, NONE, NONE)},
    SL_W_LAYER(Q, "self_attn.q_proj.weight", "attn_q.weight", Q, H, HEADS), .when = SL_HAS_ATTN},
    SL_W_LAYER(K, "self_attn.k_proj.weight", "attn_k.weight", K, H, KV_HEADS),
     .when = SL_HAS_ATTN},
    SL_W_LAYER(V, "self_attn.v_proj.weight", "attn_v.weight", VALUES, H, KV_HEADS),
     .when = SL_HAS_ATTN},
    SL_W_LAYER(O, "self_attn.out_proj.weight", "attn_output.weight", H, ATT, ROWS),
     .when = SL_HAS_ATTN},
    SL_W_LAYER(Q_NORM, "self_attn.q_layernorm.weight", "attn_q_norm.weight", HD, NONE, NONE),
     .when = SL_HAS_ATTN},
    SL_W_LAYER(K_NORM, "self_attn.k_layernorm.weight", "attn_k_norm.weight", HD, NONE, NONE),
     .when = SL_HAS_ATTN},
    SL_WEIGHTS_SHORT_CONV,
    SL_W_LAYER(FFN_NORM, "ffn_norm.weight", "ffn_norm.weight", H, NONE, NONE)},
    SL_W_LAYER(GATE, "feed_forward.w1.weight", "ffn_gate.weight", I, H, ROWS),
     .when = SL_HAS_DENSE},
    SL_W_LAYER(UP, "feed_forward.w3.weight", "ffn_up.weight", I, H, ROWS), .when = SL_HAS_DENSE},
    SL_W_LAYER(DOWN, "feed_forward.w2.weight", "ffn_down.weight", H, I, ROWS),
     .when = SL_HAS_DENSE},
    SL_WEIGHTS_EXPERTS_W123("feed_forward"),
    SL_WEIGHT_CHOICE_BIAS("feed_forward.expert_bias"),
};
/* clang-format on */

static int plan_experts(const struct sl_hparams *hp, struct sl_layer_desc *layers,
                        struct sl_error *err)
{
    if (hp->n_experts == 0 || hp->top_experts == 0 || hp->expert_intermediate == 0)
        return sl_fail(err, SL_EFORMAT,
                       hp->from_gguf ? "GGUF: lfm2moe.expert_count, expert_used_count or "
                                       "expert_feed_forward_length is missing"
                                     : "config.json: num_experts, num_experts_per_tok or "
                                       "moe_intermediate_size is missing");
    return sl_plan_experts(hp, SL_ROUTE_SIGMOID, 1e-6f, layers, err);
}

static int lfm2_plan(const struct sl_model_name *name, const struct sl_hparams *hp,
                     struct sl_layer_desc *layers, struct sl_error *err)
{
    const bool experts = (name->has & SL_HAS_EXPERTS) != 0;
    int rc = experts ? plan_experts(hp, layers, err) : 0;
    for (int32_t i = 0; i < hp->n_layers && rc == 0; i++) {
        struct sl_layer_desc *l = &layers[i];
        l->state.n_taps = hp->state_taps;
        sl_plan_mixer(sl_plan_attends(hp, i, true) ? SL_MIX_GQA : SL_MIX_CONV, l);
        if (!experts)
            l->has &= ~(unsigned)SL_HAS_CHOICE_BIAS;
    }
    return rc;
}

static void lfm2_tiny(const struct sl_model_name *name, struct sl_hparams *hp)
{
    const bool experts = (name->has & SL_HAS_EXPERTS) != 0;
    *hp = (struct sl_hparams){
        .hidden = 64,
        .intermediate = 160,
        .n_layers = 4,
        .n_heads = 4,
        .n_kv_heads = 2,
        .head_dim = 16,
        .n_vocab = 320,
        .context = 512,
        .norm_eps = 1e-5,
        .has = name->has | (experts ? SL_HAS_CHOICE_BIAS : 0),
        .ropes = {{.theta = 1000000}},
        .state_taps = 3,
        .n_experts = experts ? 7 : 0,
        .top_experts = experts ? 3 : 0,
        .expert_intermediate = experts ? 96 : 0,
        .n_dense = experts ? 1 : 0,
        .expert_gating = experts ? SL_GGUF_SIGMOID : 0,
        .norm_top_experts = experts,
    };
    for (int32_t i = 0; i < SL_MAX_LAYERS; i++)
        hp->attn_layers[i] = i % 3 == 2 ? SL_LAYER_ON : SL_LAYER_OFF;
}

const struct sl_model_desc sl_model_lfm2 = {
    .id = "lfm2",
    SL_MODEL_TABLES,
    SL_MODEL_ROPES(sl_rope_one),
    .plan = lfm2_plan,
    .tiny = lfm2_tiny,
};
