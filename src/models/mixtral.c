/* SPDX-License-Identifier: MIT
 * Mixtral: Llama with experts in place of the MLP, two of which a token goes to.
 *
 * Its GGUF files call themselves "llama"; that they have experts tells them apart.
 */
#include "base/check.h"
#include "models/desc.h"
#include "models/tables.h"

static const struct sl_model_name names[] = {
    {.id = "mixtral",
     .hf_architecture = "MixtralForCausalLM",
     .hf_model_type = "mixtral",
     .gguf_architecture = "llama",
     .gguf_experts = true},
};

/* clang-format off */
static const struct sl_hparam_desc hparams[] = {
    SL_HPARAMS_BLOCKS,
    SL_HPARAMS_EXPERTS,
    SL_HPARAM_ACT(SL_ACT_SILU),
    SL_HPARAM_TIED(false),
    {"attention.sliding_window", {"sliding_window"}, SL_HP_INT, SL_HP_AT(window), .min = 1,
     .max = SL_MAX_CONTEXT},
};

static const struct sl_weight_desc weights[] = {
    SL_WEIGHTS_EMBED_AND_HEAD,
    SL_WEIGHTS_ATTN_NORM,
    SL_WEIGHTS_GQA,
    SL_WEIGHTS_FFN_NORM,
    SL_WEIGHTS_EXPERTS_W123("block_sparse_moe"),
    SL_WEIGHT_ROPE_FREQS,
};
/* clang-format on */

static int mixtral_plan(const struct sl_model_name *name, const struct sl_hparams *hp,
                        struct sl_layer_desc *layers, struct sl_error *err)
{
    (void)name;
    int rc = sl_plan_experts(hp, SL_ROUTE_SOFTMAX, 0, layers, err);
    for (int32_t i = 0; i < hp->n_layers && rc == 0; i++) {
        layers[i].route.renormalize = true;
        layers[i].window = hp->window;
    }
    return rc;
}

static void mixtral_tiny(const struct sl_model_name *name, struct sl_hparams *hp)
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
        .has = name->has | SL_HAS_HEAD,
        .ropes = {{.theta = 1000000}},
        .n_experts = 5,
        .top_experts = 2,
    };
}

static const struct sl_rope_desc ropes[] = {
    {.hf_theta = "rope_theta", .gguf_theta = "rope.freq_base", .theta = 1000000, .scaled = true},
};

const struct sl_model_desc sl_model_mixtral = {
    .id = "mixtral",
    SL_MODEL_TABLES,
    SL_MODEL_ROPES(ropes),
    .gguf_interleaved = true,
    .plan = mixtral_plan,
    .tiny = mixtral_tiny,
};
