/* SPDX-License-Identifier: MIT
 * Granite with experts, an MLP beside them, windowed layers, sinks and layers that are not rotated
 * (as the dense models of that kind, granite.c). Its tensors are named as transformers has them.
 */
#include "base/check.h"
#include "models/desc.h"
#include "models/tables.h"

static const struct sl_model_name names[] = {
    {.id = "granitemoe_swa",
     .hf_architecture = "GraniteMoeSWAForCausalLM",
     .hf_model_type = "granitemoe_swa",
     .has = SL_HAS_SINKS},
};

/* clang-format off */
static const struct sl_hparam_desc hparams[] = {
    SL_HPARAMS_BLOCKS,
    SL_HPARAMS_EXPERTS,
    {NULL, {"shared_intermediate_size"}, SL_HP_INT, SL_HP_AT(shared_intermediate), .min = 0,
     .max = 4 * SL_MAX_HIDDEN},
    SL_HPARAMS_GRANITE,
    SL_HPARAMS_GRANITE_WINDOWS,
    SL_HPARAM_ACT(SL_ACT_SILU),
    SL_HPARAM_TIED(false),
    {NULL, {"attention_bias"}, SL_HP_HAS, .has = SL_HAS_QKV_BIAS | SL_HAS_O_BIAS},
};

/* A tensor for each expert, too, as quantisers write them. */
#define EXPERTS(s, name, r, c)                                                                    \
    {.slot = SL_SLOT_EXPERTS_##s, .mats = SL_DIM_E, .when = SL_HAS_EXPERTS,                       \
     .hf = "model.layers.*.block_sparse_moe.experts.#." name ".weight", .rows = SL_DIM_##r,       \
     .cols = SL_DIM_##c, .shard = SL_SHARD_ROWS
#define EXPERTS_GATE_UP(idx)                                                                      \
     .hf_fused = "model.layers.*.block_sparse_moe.experts.gate_up_proj",                          \
     .fused = {SL_DIM_I, SL_DIM_I}, .part = idx
#define GATE_UP(s, hf_name, d, idx)                                                               \
    {.slot = SL_SLOT_##s, .hf_fused = "model.layers.*." hf_name,                                  \
     .fused = {SL_DIM_##d, SL_DIM_##d}, .part = idx, .rows = SL_DIM_##d, .cols = SL_DIM_H,        \
     .shard = SL_SHARD_ROWS

static const struct sl_weight_desc weights[] = {
    SL_WEIGHTS_EMBED_AND_HEAD,
    SL_WEIGHTS_ATTN_NORM,
    SL_WEIGHTS_GQA,
    SL_WEIGHTS_QKV_BIAS,
    SL_WEIGHTS_O_BIAS,
    SL_WEIGHTS_SINKS,
    SL_WEIGHTS_FFN_NORM,
    SL_W_LAYER(ROUTER, "block_sparse_moe.router.weight", "ffn_gate_inp.weight", E, H, NONE),
     .when = SL_HAS_EXPERTS},
    EXPERTS(GATE, "gate_proj", I, H), EXPERTS_GATE_UP(0)},
    EXPERTS(UP, "up_proj", I, H), EXPERTS_GATE_UP(1)},
    EXPERTS(DOWN, "down_proj", H, I),
     .hf_fused = "model.layers.*.block_sparse_moe.experts.down_proj", .fused = {SL_DIM_H}},
    GATE_UP(SHARED_GATE, "shared_mlp.input_linear.weight", S, 0), .when = SL_HAS_SHARED},
    GATE_UP(SHARED_UP, "shared_mlp.input_linear.weight", S, 1), .when = SL_HAS_SHARED},
    SL_W_LAYER(SHARED_DOWN, "shared_mlp.output_linear.weight", "ffn_down_shexp.weight", H, S, ROWS),
     .when = SL_HAS_SHARED},
};
/* clang-format on */

static int granite_moe_swa_plan(const struct sl_model_name *name, const struct sl_hparams *hp,
                                struct sl_layer_desc *layers, struct sl_error *err)
{
    (void)name;
    int rc = sl_plan_experts(hp, SL_ROUTE_SOFTMAX, 0, layers, err);
    for (int32_t i = 0; i < hp->n_layers && rc == 0; i++)
        layers[i].route.renormalize = true;
    sl_plan_granite_windows(hp, layers);
    return rc;
}

static void granite_moe_swa_tiny(const struct sl_model_name *name, struct sl_hparams *hp)
{
    *hp = (struct sl_hparams){
        .hidden = 64,
        .intermediate = 96,
        .n_layers = 3,
        .n_heads = 4,
        .n_kv_heads = 2,
        .head_dim = 16,
        .n_vocab = 320,
        .context = 512,
        .norm_eps = 1e-5,
        .has = name->has,
        .ropes = {{.theta = 10000}},
        .n_experts = 7,
        .top_experts = 3,
        .shared_intermediate = 128,
        .embed_scale = 12,
        .residual_scale = 0.22,
        .attn_scale = 0.125,
        .logit_divisor = 8,
        .window = 24,
        .rope_layers = {SL_LAYER_ON, SL_LAYER_OFF, SL_LAYER_ON},
        .layer_theta = 10000,
    };
}

const struct sl_model_desc sl_model_granite_moe_swa = {
    .id = "granite_moe_swa",
    SL_MODEL_TABLES,
    SL_MODEL_ROPES(sl_rope_one),
    .plan = granite_moe_swa_plan,
    .tiny = granite_moe_swa_tiny,
};
