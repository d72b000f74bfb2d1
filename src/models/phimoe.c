/* SPDX-License-Identifier: MIT
 * Phi-3.5-MoE: norms with a mean and biases, biases of attention, LongRoPE with a factor of its own
 * for each of its lists, experts chosen and weighed by SparseMixer.
 *
 * GGUF files do not say how near logits must be (router_jitter_noise); it is what transformers
 * takes.
 */
#include "base/check.h"
#include "models/desc.h"
#include "models/tables.h"

static const struct sl_model_name names[] = {
    {.id = "phimoe",
     .hf_architecture = "PhiMoEForCausalLM",
     .hf_model_type = "phimoe",
     .gguf_architecture = "phimoe"},
    {.id = "phimoe-transformers", /* whose class has another name */
     .hf_architecture = "PhimoeForCausalLM",
     .hf_model_type = "phimoe",
     .gguf_architecture = "phimoe"},
};

/* clang-format off */
static const struct sl_hparam_desc hparams[] = {
    SL_HPARAMS_BLOCKS,
    SL_HPARAMS_EXPERTS,
    {NULL, {"router_jitter_noise"}, SL_HP_FLOAT, SL_HP_AT(expert_noise), .def = 0.01, .min = 0,
     .max = 1},
    SL_HPARAM_ACT(SL_ACT_SILU),
    SL_HPARAM_TIED(false),
    {"attention.sliding_window", {"sliding_window"}, SL_HP_INT, SL_HP_AT(window), .min = 0,
     .max = SL_MAX_CONTEXT},
    {NULL, {"attention_bias"}, SL_HP_HAS, .has = SL_HAS_QKV_BIAS | SL_HAS_O_BIAS},
    {NULL, {"lm_head_bias"}, SL_HP_HAS, .has = SL_HAS_HEAD_BIAS},
};

static const struct sl_weight_desc weights[] = {
    SL_WEIGHTS_EMBED_AND_HEAD,
    SL_WEIGHTS_FINAL_NORM_BIAS,
    {.slot = SL_SLOT_HEAD_BIAS, .hf = "lm_head.bias", .gguf = "output.bias", .rows = SL_DIM_V,
     .shard = SL_SHARD_ROWS, .when = SL_HAS_HEAD_BIAS},
    SL_WEIGHTS_ATTN_NORM,
    SL_WEIGHTS_ATTN_NORM_BIAS,
    SL_WEIGHTS_GQA,
    SL_WEIGHTS_QKV_BIAS,
    SL_WEIGHTS_O_BIAS,
    SL_WEIGHTS_FFN_NORM,
    SL_WEIGHTS_FFN_NORM_BIAS,
    SL_WEIGHTS_EXPERTS_W123("block_sparse_moe"),
    SL_WEIGHTS_ROPE_FACTORS,
};
/* clang-format on */

static int phimoe_plan(const struct sl_model_name *name, const struct sl_hparams *hp,
                       struct sl_layer_desc *layers, struct sl_error *err)
{
    (void)name;
    int rc = sl_plan_experts(hp, SL_ROUTE_MIXER, 0, layers, err);
    for (int32_t i = 0; i < hp->n_layers && rc == 0; i++) {
        layers[i].norm = SL_NORM_LAYER;
        layers[i].route.near = (float)(2 * hp->expert_noise);
        layers[i].window = hp->window;
    }
    return rc;
}

static const struct sl_rope_desc ropes[] = {
    {.hf_theta = "rope_theta", .gguf_theta = "rope.freq_base", .theta = 1000000, .scaled = true},
};

static void phimoe_tiny(const struct sl_model_name *name, struct sl_hparams *hp)
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
        .has = name->has | SL_HAS_HEAD | SL_HAS_HEAD_BIAS | SL_HAS_QKV_BIAS | SL_HAS_O_BIAS,
        .ropes = {{.theta = 1000000}},
        .n_experts = 7,
        .top_experts = 2,
        .expert_noise = 0.01,
    };
}

const struct sl_model_desc sl_model_phimoe = {
    .id = "phimoe",
    SL_MODEL_TABLES,
    SL_MODEL_ROPES(ropes),
    .plan = phimoe_plan,
    .tiny = phimoe_tiny,
};
