/* SPDX-License-Identifier: MIT
 * Granite 3.x with experts: the multipliers of Granite, experts in one tensor that holds gate and
 * up after one another, and in "shared" models an MLP beside them.
 */
#include "base/check.h"
#include "models/desc.h"
#include "models/tables.h"

static const struct sl_model_name names[] = {
    {.id = "granitemoe",
     .hf_architecture = "GraniteMoeForCausalLM",
     .hf_model_type = "granitemoe",
     .gguf_architecture = "granitemoe"},
    {.id = "granitemoeshared",
     .hf_architecture = "GraniteMoeSharedForCausalLM",
     .hf_model_type = "granitemoeshared",
     .gguf_architecture = "granitemoe"},
};

/* clang-format off */
static const struct sl_hparam_desc hparams[] = {
    SL_HPARAMS_BLOCKS,
    SL_HPARAMS_EXPERTS,
    {"expert_shared_feed_forward_length", {"shared_intermediate_size"}, SL_HP_INT,
     SL_HP_AT(shared_intermediate), .min = 0, .max = 4 * SL_MAX_HIDDEN},
    SL_HPARAMS_GRANITE,
    SL_HPARAM_ACT(SL_ACT_SILU),
    SL_HPARAM_TIED(false),
    {NULL, {"attention_bias"}, SL_HP_HAS, .has = SL_HAS_QKV_BIAS | SL_HAS_O_BIAS},
};

/* A matrix of its own in a GGUF, the rows of part idx of a tensor in safetensors. */
#define GRANITE_PART(s, hf_name, gguf_name, d, idx)                                               \
    {.slot = SL_SLOT_##s, .gguf = "blk.*." gguf_name, .hf_fused = "model.layers.*." hf_name,      \
     .fused = {SL_DIM_##d, SL_DIM_##d}, .part = idx, .rows = SL_DIM_##d, .cols = SL_DIM_H,        \
     .shard = SL_SHARD_ROWS

static const struct sl_weight_desc weights[] = {
    SL_WEIGHTS_EMBED_AND_HEAD,
    SL_WEIGHTS_ATTN_NORM,
    SL_WEIGHTS_GQA,
    SL_WEIGHTS_QKV_BIAS,
    SL_WEIGHTS_O_BIAS,
    SL_WEIGHTS_FFN_NORM,
    SL_W_LAYER(ROUTER, "block_sparse_moe.router.layer.weight", "ffn_gate_inp.weight", E, H, NONE),
     .when = SL_HAS_EXPERTS},
    GRANITE_PART(EXPERTS_GATE, "block_sparse_moe.input_linear.weight", "ffn_gate_exps.weight", I,
                 0), .mats = SL_DIM_E, .when = SL_HAS_EXPERTS},
    GRANITE_PART(EXPERTS_UP, "block_sparse_moe.input_linear.weight", "ffn_up_exps.weight", I, 1),
     .mats = SL_DIM_E, .when = SL_HAS_EXPERTS},
    SL_W_LAYER(EXPERTS_DOWN, "block_sparse_moe.output_linear.weight", "ffn_down_exps.weight", H, I,
               ROWS), .mats = SL_DIM_E, .when = SL_HAS_EXPERTS},
    GRANITE_PART(SHARED_GATE, "shared_mlp.input_linear.weight", "ffn_gate_shexp.weight", S, 0),
     .when = SL_HAS_SHARED},
    GRANITE_PART(SHARED_UP, "shared_mlp.input_linear.weight", "ffn_up_shexp.weight", S, 1),
     .when = SL_HAS_SHARED},
    SL_W_LAYER(SHARED_DOWN, "shared_mlp.output_linear.weight", "ffn_down_shexp.weight", H, S, ROWS),
     .when = SL_HAS_SHARED},
};
/* clang-format on */

static int granite_moe_plan(const struct sl_model_name *name, const struct sl_hparams *hp,
                            struct sl_layer_desc *layers, struct sl_error *err)
{
    (void)name;
    int rc = sl_plan_experts(hp, SL_ROUTE_SOFTMAX, 0, layers, err);
    for (int32_t i = 0; i < hp->n_layers && rc == 0; i++)
        layers[i].route.renormalize = true;
    return rc;
}

static void granite_moe_tiny(const struct sl_model_name *name, struct sl_hparams *hp)
{
    *hp = (struct sl_hparams){
        .hidden = 64,
        .intermediate = 96,
        .n_layers = 2,
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
        .shared_intermediate = name == &names[1] ? 128 : 0,
        .embed_scale = 12,
        .residual_scale = 0.22,
        .attn_scale = 0.125,
        .logit_divisor = 8,
    };
}

const struct sl_model_desc sl_model_granite_moe = {
    .id = "granite_moe",
    SL_MODEL_TABLES,
    SL_MODEL_ROPES(sl_rope_one),
    .gguf_interleaved = true,
    .plan = granite_moe_plan,
    .tiny = granite_moe_tiny,
};
