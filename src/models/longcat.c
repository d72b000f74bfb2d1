/* SPDX-License-Identifier: MIT
 * LongCat-Flash: a layer of its files has latent attention and a dense MLP twice. Behind the first
 * attention, experts read what the first MLP reads; what they give is added behind the second MLP,
 * so that they can run beside all that is in between. Here these are two layers: one with experts,
 * whose shared expert is the MLP, and one with an MLP alone. Some experts have no weights and give
 * back what they read. The weights of those that are chosen by softmax and a bias are not divided
 * by their sum.
 *
 * Both rows of latent attention are multiplied by the root of the width divided by their own, which
 * is a factor of the weights of their norms: all that reads these rows is linear.
 */
#include "base/check.h"
#include "models/desc.h"
#include "models/tables.h"

static const struct sl_model_name names[] = {
    {.id = "longcat_flash",
     .hf_architecture = "LongcatFlashForCausalLM",
     .hf_model_type = "longcat_flash",
     .has = SL_HAS_CHOICE_BIAS},
};

/* clang-format off */
static const struct sl_hparam_desc hparams[] = {
    {NULL, {"hidden_size"}, SL_HP_INT, SL_HP_AT(hidden), .required = true, .min = 1,
     .max = SL_MAX_HIDDEN},
    {NULL, {"ffn_hidden_size", "intermediate_size"}, SL_HP_INT, SL_HP_AT(intermediate),
     .required = true, .min = 1, .max = 4 * SL_MAX_HIDDEN},
    {NULL, {"num_layers"}, SL_HP_INT, SL_HP_AT(n_layers), .required = true, .min = 1,
     .max = SL_MAX_LAYERS / 2, .times = 2},
    {NULL, {"num_attention_heads"}, SL_HP_INT, SL_HP_AT(n_heads), .required = true, .min = 1,
     .max = SL_MAX_HEADS},
    {NULL, {"max_position_embeddings"}, SL_HP_INT, SL_HP_AT(context), .required = true, .min = 1,
     .max = SL_MAX_CONTEXT},
    {NULL, {"vocab_size"}, SL_HP_INT, SL_HP_AT(n_vocab), .required = true, .min = 1,
     .max = SL_MAX_VOCAB},
    {NULL, {"rms_norm_eps"}, SL_HP_FLOAT, SL_HP_AT(norm_eps), .def = 1e-5, .min = 1e-20, .max = 1},
    SL_HPARAMS_MLA,
    {NULL, {"n_routed_experts", "num_local_experts"}, SL_HP_INT, SL_HP_AT(n_experts),
     .required = true, .min = 1, .max = SL_MAX_EXPERTS},
    {NULL, {"zero_expert_num"}, SL_HP_INT, SL_HP_AT(n_pass_experts), .required = true, .min = 0,
     .max = SL_MAX_EXPERTS},
    {.hf = {"zero_expert_type"}, .type = SL_HP_CHOICE, .value = "identity"},
    {NULL, {"moe_topk", "num_experts_per_tok"}, SL_HP_INT, SL_HP_AT(top_experts), .required = true,
     .min = 1, .max = SL_MAX_TOP_EXPERTS},
    {NULL, {"expert_ffn_hidden_size", "moe_intermediate_size"}, SL_HP_INT,
     SL_HP_AT(expert_intermediate), .required = true, .min = 1, .max = 4 * SL_MAX_HIDDEN},
    {NULL, {"routed_scaling_factor"}, SL_HP_FLOAT, SL_HP_AT(expert_scale), .hf_def = 6, .min = 0,
     .max = 1e6},
    SL_HPARAM_ACT(SL_ACT_SILU),
    SL_HPARAM_TIED(false),
    {.hf = {"attention_method"}, .type = SL_HP_CHOICE, .value = "MLA"},
    SL_HPARAM_ONLY("attention_bias", false),
    SL_HPARAM_ONLY("router_bias", false),
    SL_HPARAM_ONLY("norm_topk_prob", false),
    SL_HPARAM_ONLY("mla_scale_q_lora", true),
    SL_HPARAM_ONLY("mla_scale_kv_lora", true),
};

static const struct sl_weight_desc weights[] = {
    SL_WEIGHTS_EMBED_AND_HEAD,
    SL_W_LAYER(ATTN_NORM, "input_layernorm.@.weight", "attn_norm.weight", H, NONE, NONE)},
    SL_WEIGHTS_MLA_BY("self_attn.@", "self_attn.@.o_proj.weight", 0, SL_W_TO_WIDTH),
    SL_W_LAYER(FFN_NORM, "post_attention_layernorm.@.weight", "ffn_norm.weight", H, NONE, NONE)},
    SL_WEIGHTS_EXPERTS_BY("mlp.router.classifier.weight"),
    SL_WEIGHT_CHOICE_BIAS("mlp.router.e_score_correction_bias"),
    SL_WEIGHTS_SHARED("mlps.@"),
    SL_W_LAYER(GATE, "mlps.@.gate_proj.weight", "ffn_gate.weight", I, H, ROWS),
     .when = SL_HAS_DENSE},
    SL_W_LAYER(UP, "mlps.@.up_proj.weight", "ffn_up.weight", I, H, ROWS), .when = SL_HAS_DENSE},
    SL_W_LAYER(DOWN, "mlps.@.down_proj.weight", "ffn_down.weight", H, I, ROWS),
     .when = SL_HAS_DENSE},
};
/* clang-format on */

static const struct sl_rope_desc ropes[] = {
    {.hf_theta = "rope_theta",
     .theta = 1e7,
     .scaled = true,
     .pairing = SL_ROPE_INTERLEAVED,
     .partial = 1},
};

static int longcat_plan(const struct sl_model_name *name, const struct sl_hparams *hp,
                        struct sl_layer_desc *layers, struct sl_error *err)
{
    (void)name;
    if (hp->q_rank == 0)
        return sl_fail(err, SL_EFORMAT, "config.json: q_lora_rank is missing");
    int rc = sl_plan_experts(hp, SL_ROUTE_SOFTMAX, 0, layers, err);
    for (int32_t i = 0; i < hp->n_layers && rc == 0; i++) {
        struct sl_layer_desc *l = &layers[i];
        sl_plan_mla(hp, l);
        if (i % 2 == 0) {
            l->has |= SL_HAS_SHARED;
            l->shared_intermediate = hp->intermediate;
            l->late_experts = true;
            continue;
        }
        l->has = (l->has & ~(unsigned)(SL_HAS_EXPERTS | SL_HAS_CHOICE_BIAS)) | SL_HAS_DENSE;
        l->ffn = SL_FFN_GATED;
        l->intermediate = hp->intermediate;
        l->n_experts = l->top_experts = l->n_pass = 0;
    }
    return rc;
}

static void longcat_tiny(const struct sl_model_name *name, struct sl_hparams *hp)
{
    *hp = (struct sl_hparams){
        .hidden = 64,
        .intermediate = 160,
        .n_layers = 4,
        .n_heads = 4,
        .n_kv_heads = 1,
        .head_dim = 32 + 16,
        .q_rank = 96,
        .kv_rank = 64,
        .nope_dim = 32,
        .rope_dims = 16,
        .value_dim = 32,
        .n_vocab = 320,
        .context = 512,
        .norm_eps = 1e-5,
        .has = name->has | SL_HAS_HEAD,
        .ropes = {{.theta = 1e7, .n_dims = 16}},
        .n_experts = 8,
        .n_pass_experts = 5,
        .top_experts = 4,
        .expert_intermediate = 96,
        .expert_scale = 6,
    };
}

const struct sl_model_desc sl_model_longcat = {
    .id = "longcat",
    SL_MODEL_TABLES,
    SL_MODEL_ROPES(ropes),
    .hf_layers = "model.layers.%.",
    .plan = longcat_plan,
    .tiny = longcat_tiny,
};
