/* SPDX-License-Identifier: MIT
 * A.X-K2: DeepSeek V3.2 with gated norms. What the norm in front of attention gives, and the one in
 * front of experts, is multiplied by a gate that comes of it. Queries are made of their latent row
 * as it is normed and, behind that, as it was, in one tensor with what gates the output, head by
 * head; the index reads the normed one alone. Names of tensors are the hub's, which transformers
 * writes too.
 *
 * Groups of experts are refused: the scores of those that are left out count as 0 there, not as
 * nothing, so that a biased score below 0 loses to them.
 */
#include "base/check.h"
#include "models/desc.h"
#include "models/tables.h"

static const struct sl_model_name names[] = {
    {.id = "axk2",
     .hf_architecture = "AXK2ForCausalLM",
     .hf_model_type = "axk2",
     .has = SL_HAS_CHOICE_BIAS | SL_HAS_K | SL_HAS_OUT_GATE},
};

/* clang-format off */
static const struct sl_hparam_desc hparams[] = {
    SL_HPARAMS_DEEPSEEK,
    SL_HPARAMS_INDEX,
    SL_HPARAM_NORM_TOP_EXPERTS(true),
    {NULL, {"gated_norm_rank"}, SL_HP_INT, SL_HP_AT(norm_rank), .hf_def = 16, .min = 1,
     .max = SL_MAX_HIDDEN},
    {NULL, {"first_k_dense_replace"}, SL_HP_INT, SL_HP_AT(n_dense), .def = 1, .min = 0,
     .max = SL_MAX_LAYERS},
    SL_HPARAM_MLP_TYPES,
    {NULL, {"moe_layer_freq"}, SL_HP_INT, SL_HP_AT(expert_step), .min = 1, .max = 1},
    {NULL, {"n_group"}, SL_HP_INT, SL_HP_AT(n_expert_groups), .min = 1, .max = 1},
    {NULL, {"topk_group"}, SL_HP_INT, SL_HP_AT(top_expert_groups), .min = 1, .max = 1},
    {NULL, {"routed_scaling_factor"}, SL_HP_FLOAT, SL_HP_AT(expert_scale), .hf_def = 2.5,
     .min = 0, .max = 1e6},
    {NULL, {"n_shared_experts"}, SL_HP_INT, SL_HP_AT(n_shared_experts), .def = 1, .min = 1,
     .max = 64},
    {.hf = {"scoring_func"}, .type = SL_HP_CHOICE, .value = "sigmoid"},
    {.hf = {"topk_method"}, .type = SL_HP_CHOICE, .value = "noaux_tc"},
    SL_HPARAM_ACT(SL_ACT_SILU),
    SL_HPARAM_TIED(false),
    SL_HPARAM_ONLY("attention_bias", false),
    SL_HPARAM_ONLY("rope_interleave", true),
};

/* A part of the tensor that queries and gates of the output are in. */
#define AXK2_Q_PART(s, r, idx)                                                                    \
    SL_W_LAYER_PART(s, "self_attn.q_b_proj.weight", "attn_q_b.weight", r, MLA_Q_IN, NONE, idx,    \
                    SL_DIM_MLA_Q, SL_DIM_ATT), .turns = SL_DIM_HEADS

static const struct sl_weight_desc weights[] = {
    SL_WEIGHTS_EMBED_AND_HEAD,
    SL_W_LAYER(ATTN_NORM, "input_layernorm.norm.weight", "attn_norm.weight", H, NONE, NONE)},
    SL_W_LAYER(ATTN_NORM_DOWN, "input_layernorm.W_down.weight", "attn_norm_down.weight",
               ATTN_NORM_RANK, H, NONE)},
    SL_W_LAYER(ATTN_NORM_UP, "input_layernorm.W_up.weight", "attn_norm_up.weight", H,
               ATTN_NORM_RANK, NONE)},
    SL_WEIGHTS_MLA_Q_ROW("self_attn", 0, 0),
    AXK2_Q_PART(Q, MLA_Q, 0)},
    AXK2_Q_PART(OUT_GATE, ATT, 1), .when = SL_HAS_OUT_GATE},
    SL_WEIGHTS_MLA_KEPT("self_attn", "self_attn.o_proj.weight", 0, 0),
    SL_WEIGHTS_INDEX,
    SL_W_LAYER(FFN_NORM, "post_attention_layernorm.norm.weight", "ffn_norm.weight", H, NONE,
               NONE), .when = SL_HAS_EXPERTS},
    SL_W_LAYER(FFN_NORM, "post_attention_layernorm.weight", "ffn_norm.weight", H, NONE, NONE),
     .when = SL_HAS_DENSE},
    SL_W_LAYER(FFN_NORM_DOWN, "post_attention_layernorm.W_down.weight", "ffn_norm_down.weight",
               FFN_NORM_RANK, H, NONE)},
    SL_W_LAYER(FFN_NORM_UP, "post_attention_layernorm.W_up.weight", "ffn_norm_up.weight", H,
               FFN_NORM_RANK, NONE)},
    SL_WEIGHTS_EXPERTS_OR_FUSED,
    SL_WEIGHT_CHOICE_BIAS("mlp.gate.e_score_correction_bias"),
    SL_WEIGHTS_SHARED("mlp.shared_experts"),
    SL_WEIGHTS_FFN_DENSE,
};
/* clang-format on */

static const struct sl_rope_desc ropes[] = {
    {.hf_theta = "rope_theta",
     .theta = 10000,
     .scaled = true,
     .pairing = SL_ROPE_INTERLEAVED,
     .partial = 1},
};

static int axk2_plan(const struct sl_model_name *name, const struct sl_hparams *hp,
                     struct sl_layer_desc *layers, struct sl_error *err)
{
    (void)name;
    int rc = sl_plan_experts(hp, SL_ROUTE_SIGMOID, 1e-20f, layers, err);
    for (int32_t i = 0; i < hp->n_layers && rc == 0; i++) {
        sl_plan_mla(hp, &layers[i]);
        layers[i].mla.both_q = hp->q_rank > 0; /* else the index refuses the model */
        layers[i].attn_norm_rank = hp->norm_rank;
        if (layers[i].ffn == SL_FFN_EXPERTS)
            layers[i].ffn_norm_rank = hp->norm_rank;
    }
    return rc != 0 ? rc : sl_plan_index(hp, SL_ROPE_HALF, layers, err);
}

static void axk2_tiny(const struct sl_model_name *name, struct sl_hparams *hp)
{
    *hp = (struct sl_hparams){
        .hidden = 64,
        .intermediate = 160,
        .n_layers = 3,
        .n_heads = 4,
        .n_kv_heads = 1,
        .head_dim = 32 + 16,
        .q_rank = 96,
        .kv_rank = 64,
        .nope_dim = 32,
        .rope_dims = 16,
        .value_dim = 24,
        .norm_rank = 20,
        .n_vocab = 320,
        .context = 512,
        .norm_eps = 1e-6,
        .has = name->has | SL_HAS_HEAD,
        .ropes = {{.theta = 10000, .n_dims = 16}},
        .index_top = 24,
        .index_heads = 20,
        .index_dim = 40,
        .n_experts = 8,
        .top_experts = 3,
        .expert_intermediate = 96,
        .norm_top_experts = true,
        .expert_scale = 2.5,
        .n_dense = 1,
        .n_shared_experts = 1,
    };
    for (int32_t i = 0; i < hp->n_layers; i++)
        hp->index_layers[i] = SL_LAYER_ON;
}

const struct sl_model_desc sl_model_axk2 = {
    .id = "axk2",
    SL_MODEL_TABLES,
    SL_MODEL_ROPES(ropes),
    .plan = axk2_plan,
    .tiny = axk2_tiny,
};
