/* SPDX-License-Identifier: MIT
 * Nemotron-H and Nemotron 3: each layer is one thing, behind one norm: a mixer of Mamba 2,
 * attention without positions, an MLP without a gate, or experts without gates beside a shared one,
 * which may work in a narrower space. The time step has no limits.
 *
 * GGUF files say by a layer's tensors which it is.
 */
#include "base/check.h"
#include "models/desc.h"
#include "models/tables.h"

static const struct sl_model_name names[] = {
    {.id = "nemotron_h",
     .hf_architecture = "NemotronHForCausalLM",
     .hf_model_type = "nemotron_h",
     .gguf_architecture = "nemotron_h",
     .has = SL_HAS_STATE_NORM | SL_HAS_HEAD},
    {.id = "nemotron_h_moe",
     .hf_architecture = "NemotronHForCausalLM",
     .hf_model_type = "nemotron_h",
     .gguf_architecture = "nemotron_h_moe",
     .has = SL_HAS_STATE_NORM | SL_HAS_HEAD},
};

/* clang-format off */
static const struct sl_hparam_desc hparams[] = {
    {"embedding_length", {"hidden_size"}, SL_HP_INT, SL_HP_AT(hidden), .required = true, .min = 1,
     .max = SL_MAX_HIDDEN},
    {"block_count", {"layers_block_type", "hybrid_override_pattern", "layer_types"}, SL_HP_COUNT,
     SL_HP_AT(n_layers), .required = true, .min = 1, .max = SL_MAX_LAYERS},
    {NULL, {"layers_block_type", "hybrid_override_pattern", "layer_types"}, SL_HP_LAYER_KINDS,
     SL_HP_AT(layer_kinds), .words = {"linear_attention", "full_attention", "moe", "mlp"},
     .letters = "M*E-"},
    SL_HPARAM_NEXTN,
    {NULL, {"intermediate_size"}, SL_HP_INT, SL_HP_AT(intermediate), .hf_def = 21504, .min = 1,
     .max = 4 * SL_MAX_HIDDEN},
    {"feed_forward_length", {NULL}, SL_HP_LAYER_INTS, SL_HP_AT(layer_intermediate), .min = 0,
     .max = 4 * SL_MAX_HIDDEN},
    {"attention.head_count", {"num_attention_heads"}, SL_HP_INT, SL_HP_AT(n_heads),
     .required = true, .min = 1, .max = SL_MAX_HEADS},
    SL_HPARAMS_LAYER_KV_HEADS,
    SL_HPARAMS_HEADS,
    {"attention.layer_norm_rms_epsilon", {"layer_norm_epsilon", "norm_eps"}, SL_HP_FLOAT,
     SL_HP_AT(norm_eps), .def = 1e-5, .min = 1e-20, .max = 1},
    SL_HPARAMS_MAMBA2("conv_kernel", "ssm_state_size", "n_groups", "mamba_num_heads",
                      "mamba_head_dim", 8),
    {NULL, {"mamba_hidden_act"}, SL_HP_CHOICE, .value = "silu"},
    {NULL, {"use_conv_bias"}, SL_HP_HAS, .has = SL_HAS_CONV_BIAS, .def = true},
    {NULL, {"use_bias"}, SL_HP_HAS, .has = SL_HAS_STATE_BIAS},
    {NULL, {"mlp_bias"}, SL_HP_HAS, .has = SL_HAS_MLP_BIAS},
    SL_HPARAM_ONLY("attention_bias", false),
    {NULL, {"sliding_window"}, SL_HP_INT, SL_HP_AT(window), .min = 0, .max = 0},
    {NULL, {"mlp_hidden_act"}, SL_HP_ACT, SL_HP_AT(act), .def = SL_ACT_RELU2},
    SL_HPARAM_ONLY("tie_word_embeddings", false), /* transformers does not look */
    {"expert_count", {"n_routed_experts"}, SL_HP_INT, SL_HP_AT(n_experts), .hf_def = 8, .min = 1,
     .max = SL_MAX_EXPERTS},
    {"expert_used_count", {"num_experts_per_tok"}, SL_HP_INT, SL_HP_AT(top_experts), .hf_def = 2,
     .min = 1, .max = SL_MAX_TOP_EXPERTS},
    {"expert_feed_forward_length", {"moe_intermediate_size"}, SL_HP_INT,
     SL_HP_AT(expert_intermediate), .hf_def = 7688, .min = 1, .max = 4 * SL_MAX_HIDDEN},
    {"expert_shared_feed_forward_length", {"moe_shared_expert_intermediate_size"}, SL_HP_INT,
     SL_HP_AT(shared_intermediate), .hf_def = 7688, .min = 1, .max = 4 * SL_MAX_HIDDEN},
    {"moe_latent_size", {"moe_latent_size"}, SL_HP_INT, SL_HP_AT(latent), .min = 1,
     .max = SL_MAX_HIDDEN},
    {"expert_group_count", {"n_group"}, SL_HP_INT, SL_HP_AT(n_expert_groups), .min = 0,
     .max = SL_MAX_EXPERTS},
    {"expert_group_used_count", {"topk_group"}, SL_HP_INT, SL_HP_AT(top_expert_groups), .min = 0,
     .max = SL_MAX_EXPERTS},
    {"expert_weights_scale", {"routed_scaling_factor"}, SL_HP_FLOAT, SL_HP_AT(expert_scale),
     .min = 0, .max = 1e6},
    SL_HPARAM_NORM_TOP_EXPERTS(true),
};

#define MIXER "backbone.layers.*.mixer"
#define PART(s, hf_name, gguf_name, r, c, bits)                                                   \
    {.slot = SL_SLOT_##s, .hf = MIXER "." hf_name, .gguf = "blk.*." gguf_name,                    \
     .rows = SL_DIM_##r, .cols = SL_DIM_##c, .when = bits

static const struct sl_weight_desc weights[] = {
    {.slot = SL_SLOT_EMBED, .hf = "backbone.embeddings.weight", .gguf = "token_embd.weight",
     .rows = SL_DIM_V, .cols = SL_DIM_H},
    {.slot = SL_SLOT_FINAL_NORM, .hf = "backbone.norm_f.weight", .gguf = "output_norm.weight",
     .rows = SL_DIM_H},
    {.slot = SL_SLOT_HEAD, .hf = "lm_head.weight", .gguf = "output.weight", .rows = SL_DIM_V,
     .cols = SL_DIM_H, .shard = SL_SHARD_ROWS, .when = SL_HAS_HEAD},
    {.slot = SL_SLOT_ATTN_NORM, .hf = "backbone.layers.*.norm.weight",
     .gguf = "blk.*.attn_norm.weight", .rows = SL_DIM_H},
    SL_WEIGHTS_SOME_GQA(MIXER),
    SL_WEIGHTS_MAMBA2(MIXER),
    PART(UP, "up_proj.weight", "ffn_up.weight", I, H, SL_HAS_DENSE)},
    PART(UP_BIAS, "up_proj.bias", "ffn_up.bias", I, NONE, SL_HAS_DENSE | SL_HAS_MLP_BIAS)},
    PART(DOWN, "down_proj.weight", "ffn_down.weight", H, I, SL_HAS_DENSE)},
    PART(DOWN_BIAS, "down_proj.bias", "ffn_down.bias", H, NONE, SL_HAS_DENSE | SL_HAS_MLP_BIAS)},
    PART(ROUTER, "gate.weight", "ffn_gate_inp.weight", E, H, SL_HAS_EXPERTS)},
    PART(CHOICE_BIAS, "gate.e_score_correction_bias", "exp_probs_b.bias", E, NONE,
         SL_HAS_EXPERTS | SL_HAS_CHOICE_BIAS)},
    PART(EXPERTS_UP, "experts.#.up_proj.weight", "ffn_up_exps.weight", I, EXPERT_H,
         SL_HAS_EXPERTS), .mats = SL_DIM_E},
    PART(EXPERTS_DOWN, "experts.#.down_proj.weight", "ffn_down_exps.weight", EXPERT_H, I,
         SL_HAS_EXPERTS), .mats = SL_DIM_E},
    PART(LATENT_DOWN, "fc1_latent_proj.weight", "ffn_latent_down.weight", LATENT, H,
         SL_HAS_EXPERTS)},
    PART(LATENT_UP, "fc2_latent_proj.weight", "ffn_latent_up.weight", H, LATENT, SL_HAS_EXPERTS)},
    PART(SHARED_UP, "shared_experts.up_proj.weight", "ffn_up_shexp.weight", S, H, SL_HAS_SHARED)},
    PART(SHARED_DOWN, "shared_experts.down_proj.weight", "ffn_down_shexp.weight", H, S,
         SL_HAS_SHARED)},
};
/* clang-format on */

static enum sl_layer_kind nemotron_h_kind_of(const struct sl_hparams *hp, int32_t idx)
{
    const unsigned has = hp->layer_has[idx];
    if (!hp->from_gguf)
        return (enum sl_layer_kind)hp->layer_kinds[idx];
    return (has & SL_HAS_STATE) != 0     ? SL_LAYER_STATE
           : (has & SL_HAS_ATTN) != 0    ? SL_LAYER_ATTN
           : (has & SL_HAS_EXPERTS) != 0 ? SL_LAYER_EXPERTS
                                         : SL_LAYER_MLP;
}

static const unsigned of_experts = SL_HAS_EXPERTS | SL_HAS_CHOICE_BIAS | SL_HAS_SHARED;

/* What experts have is in l already. */
static int nemotron_h_plan_layer(const struct sl_hparams *hp, int32_t idx, struct sl_layer_desc *l,
                                 struct sl_error *err)
{
    const enum sl_layer_kind kind = nemotron_h_kind_of(hp, idx);
    l->rope = -1;
    if (kind != SL_LAYER_EXPERTS) {
        l->has &= ~of_experts;
        l->ffn = SL_FFN_NONE;
        l->n_experts = l->top_experts = l->shared_intermediate = 0;
    }
    if (kind != SL_LAYER_MLP)
        l->has &= ~(unsigned)(SL_HAS_DENSE | SL_HAS_MLP_BIAS);
    switch (kind) {
    case SL_LAYER_STATE:
        return sl_plan_mamba2(hp, l, err);
    case SL_LAYER_ATTN:
        sl_plan_mixer(SL_MIX_GQA, l);
        return 0;
    case SL_LAYER_EXPERTS:
        sl_plan_mixer(SL_MIX_NONE, l);
        l->has |= SL_HAS_CHOICE_BIAS;
        l->plain_experts = true;
        l->latent = hp->latent;
        return 0;
    case SL_LAYER_MLP:
        break;
    }
    sl_plan_mixer(SL_MIX_NONE, l);
    l->has |= SL_HAS_DENSE;
    l->ffn = SL_FFN_PLAIN;
    l->intermediate = hp->from_gguf ? hp->layer_intermediate[idx] : hp->intermediate;
    return l->intermediate > 0
               ? 0
               : sl_fail(err, SL_EFORMAT, "GGUF: feed_forward_length of layer %d, an MLP, is 0",
                         idx);
}

static int nemotron_h_plan(const struct sl_model_name *name, const struct sl_hparams *hp,
                           struct sl_layer_desc *layers, struct sl_error *err)
{
    int rc = 0;
    bool experts = false;
    (void)name;
    for (int32_t i = 0; i < hp->n_layers; i++)
        experts = experts || nemotron_h_kind_of(hp, i) == SL_LAYER_EXPERTS;
    if (experts && (hp->n_experts == 0 || hp->top_experts == 0 || hp->expert_intermediate == 0 ||
                    hp->shared_intermediate == 0))
        return sl_fail(err, SL_EFORMAT,
                       "GGUF: expert_count, expert_used_count, expert_feed_forward_length or "
                       "expert_shared_feed_forward_length is missing");
    if (experts && hp->act != SL_ACT_RELU2)
        return sl_fail(err, SL_EUNSUPPORTED,
                       "config.json: mlp_hidden_act \"%s\" of experts without a gate is not "
                       "supported (supported: relu2)",
                       sl_act_hf_name(hp->act));
    if (experts && (hp->has & SL_HAS_MLP_BIAS) != 0)
        return sl_fail(err, SL_EUNSUPPORTED,
                       "config.json: mlp_bias true is not supported with experts");
    if (experts)
        rc = sl_plan_experts(hp, SL_ROUTE_SIGMOID, 1e-20f, layers, err);
    for (int32_t i = 0; i < hp->n_layers && rc == 0; i++)
        rc = nemotron_h_plan_layer(hp, i, &layers[i], err);
    return rc;
}

static void nemotron_h_tiny(const struct sl_model_name *name, struct sl_hparams *hp)
{
    const bool experts = name == &names[1];
    *hp = (struct sl_hparams){
        .hidden = 64,
        .n_layers = 4,
        .layer_kinds = {SL_LAYER_STATE, experts ? SL_LAYER_EXPERTS : SL_LAYER_MLP, SL_LAYER_ATTN,
                        experts ? SL_LAYER_EXPERTS : SL_LAYER_MLP},
        .intermediate = 160,
        .layer_intermediate = {0, experts ? 96 : 160, 0, experts ? 96 : 160},
        .n_heads = 4,
        .n_kv_heads = 2,
        .layer_kv_heads = {0, 0, 2, 0},
        .head_dim = 24,
        .n_vocab = 320,
        .context = 512,
        .norm_eps = 1e-5,
        .act = SL_ACT_RELU2,
        .has = name->has | SL_HAS_CONV_BIAS,
        .state_taps = 4,
        .state_heads = 8,
        .state_groups = 2,
        .state_v_dim = 16,
        .state_k_dim = 24,
        .state_inner = 128,
        .dt_max = SL_JSON_INFINITY,
    };
    if (!experts)
        return;
    hp->n_experts = 7;
    hp->top_experts = 3;
    hp->expert_intermediate = 96;
    hp->shared_intermediate = 128;
    hp->latent = 32;
    hp->n_expert_groups = 1;
    hp->top_expert_groups = 1;
    hp->expert_scale = 2.5;
    hp->norm_top_experts = true;
}

const struct sl_model_desc sl_model_nemotron_h = {
    .id = "nemotron_h",
    SL_MODEL_TABLES,
    .plan = nemotron_h_plan,
    .tiny = nemotron_h_tiny,
};
