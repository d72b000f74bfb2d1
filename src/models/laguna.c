/* SPDX-License-Identifier: MIT
 * Laguna: full and windowed layers, each kind with a table of rotations of its own; layers may have
 * more or fewer query heads; what a head gives is multiplied by the softplus of a logit. Experts
 * are chosen by sigmoid and a bias, beside a shared expert, with a dense layer in front.
 */
#include "base/check.h"
#include "models/desc.h"
#include "models/tables.h"

static const struct sl_model_name names[] = {
    {.id = "laguna",
     .hf_architecture = "LagunaForCausalLM",
     .hf_model_type = "laguna",
     .has = SL_HAS_QK_NORM | SL_HAS_CHOICE_BIAS | SL_HAS_OUT_GATE,
     .head_dim = 128},
};

/* clang-format off */
static const struct sl_hparam_desc hparams[] = {
    SL_HPARAMS_BLOCKS,
    {NULL, {"num_attention_heads_per_layer"}, SL_HP_LAYER_INTS, SL_HP_AT(layer_heads), .min = 1,
     .max = SL_MAX_HEADS},
    SL_HPARAMS_EXPERTS,
    SL_HPARAM_EXPERT_SIZE,
    {NULL, {"shared_expert_intermediate_size"}, SL_HP_INT, SL_HP_AT(shared_intermediate),
     .required = true, .hf_def = 512, .min = 1, .max = 4 * SL_MAX_HIDDEN},
    {NULL, {"moe_routed_scaling_factor"}, SL_HP_FLOAT, SL_HP_AT(expert_scale), .min = 0,
     .max = 1e6},
    {NULL, {"moe_router_logit_softcapping"}, SL_HP_FLOAT, SL_HP_AT(router_softcap), .min = 0,
     .max = 1e6},
    SL_HPARAM_ONLY("moe_apply_router_weight_on_input", false),
    SL_HPARAM_MLP_TYPES,
    {NULL, {"sliding_window"}, SL_HP_INT, SL_HP_AT(window), .hf_def = 512, .min = 1,
     .max = SL_MAX_CONTEXT},
    {NULL, {"layer_types"}, SL_HP_LAYER_TYPES, SL_HP_AT(layer_types)},
    {NULL, {"gating"}, SL_HP_CHOICE, .value = "per-head", .or_true = true},
    SL_HPARAM_ACT(SL_ACT_SILU),
    SL_HPARAM_TIED(false),
    SL_HPARAM_ONLY("attention_bias", false),
};

static const struct sl_weight_desc weights[] = {
    SL_WEIGHTS_EMBED_AND_HEAD,
    SL_WEIGHTS_ATTN_NORM,
    SL_WEIGHTS_GQA,
    SL_WEIGHTS_QK_NORM,
    SL_W_LAYER(OUT_GATE, "self_attn.g_proj.weight", "attn_gate.weight", HEADS, H, HEADS)},
    SL_WEIGHTS_FFN_NORM,
    SL_WEIGHTS_EXPERTS,
    SL_WEIGHT_CHOICE_BIAS("mlp.experts.e_score_correction_bias"),
    SL_WEIGHTS_SHARED("mlp.shared_expert"),
    SL_WEIGHTS_FFN_DENSE,
};
/* clang-format on */

enum { FULL, LOCAL }; /* tables of rotations */

static const struct sl_rope_desc ropes[] = {
    {.kind = "full_attention",
     .hf_theta = "rope_theta",
     .theta = 5e5,
     .scaled = true,
     .partial = 0.5},
    {.kind = "sliding_attention",
     .hf_theta = "rope_local_base_freq",
     .theta = 10000,
     .scaled = true,
     .partial = 1},
};

static int laguna_plan(const struct sl_model_name *name, const struct sl_hparams *hp,
                       struct sl_layer_desc *layers, struct sl_error *err)
{
    (void)name;
    struct sl_hparams by_layer = *hp;
    if (hp->mlp_types[0] == SL_LAYER_BY_INDEX)
        by_layer.n_dense = 1;
    int rc = sl_plan_experts(&by_layer, SL_ROUTE_SIGMOID, 0, layers, err);
    for (int32_t i = 0; i < hp->n_layers && rc == 0; i++) {
        struct sl_layer_desc *l = &layers[i];
        const bool windowed = hp->layer_types[i] == SL_LAYER_ON;
        l->window = windowed ? hp->window : 0;
        l->rope = windowed ? LOCAL : FULL;
        l->n_heads = hp->layer_heads[i] != 0 ? hp->layer_heads[i] : hp->n_heads;
        l->softplus_gate = true;
        l->route.renormalize = true;
        l->router_softcap = (float)hp->router_softcap;
        if (l->n_heads % l->n_kv_heads != 0)
            return sl_fail(err, SL_EFORMAT,
                           "layer %d has %d heads, which is not a multiple of its %d KV heads", i,
                           l->n_heads, l->n_kv_heads);
    }
    return rc;
}

static void laguna_tiny(const struct sl_model_name *name, struct sl_hparams *hp)
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
        .norm_eps = 1e-6,
        .has = name->has | SL_HAS_HEAD,
        .ropes = {{.theta = 5e5, .n_dims = 12}, {.theta = 10000}},
        .window = 25,
        .n_experts = 7,
        .top_experts = 3,
        .expert_intermediate = 96,
        .shared_intermediate = 128,
        .expert_scale = 1.5,
        .router_softcap = 3,
    };
    for (int32_t i = 0; i < hp->n_layers; i++) {
        hp->layer_types[i] = i % 3 == 0 ? SL_LAYER_OFF : SL_LAYER_ON;
        hp->mlp_types[i] = i == 0 ? SL_LAYER_OFF : SL_LAYER_ON;
        hp->layer_heads[i] = i % 3 == 0 ? 4 : 6;
    }
}

const struct sl_model_desc sl_model_laguna = {
    .id = "laguna",
    SL_MODEL_TABLES,
    SL_MODEL_ROPES(ropes),
    .plan = laguna_plan,
    .tiny = laguna_tiny,
};
