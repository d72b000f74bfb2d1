/* SPDX-License-Identifier: MIT
 * Youtu-LLM: the latent attention of DeepSeek V3 in a dense model. GGUF files call themselves
 * "deepseek2" and count no experts.
 */
#include "base/check.h"
#include "models/desc.h"
#include "models/tables.h"

static const struct sl_model_name names[] = {
    {.id = "youtu",
     .hf_architecture = "YoutuForCausalLM",
     .hf_model_type = "youtu",
     .gguf_architecture = "deepseek2"},
};

/* clang-format off */
static const struct sl_hparam_desc hparams[] = {
    SL_HPARAMS_SIZES,
    {"context_length", {"max_position_embeddings"}, SL_HP_INT, SL_HP_AT(context),
     .required = true, .min = 1, .max = SL_MAX_CONTEXT},
    {NULL, {"vocab_size"}, SL_HP_INT, SL_HP_AT(n_vocab), .required = true, .min = 1,
     .max = SL_MAX_VOCAB},
    {"attention.layer_norm_rms_epsilon", {"rms_norm_eps"}, SL_HP_FLOAT, SL_HP_AT(norm_eps),
     .def = 1e-6, .min = 1e-20, .max = 1},
    SL_HPARAMS_MLA,
    {"expert_count", {"n_routed_experts"}, SL_HP_INT, SL_HP_AT(n_experts), .min = 0, .max = 0},
    SL_HPARAM_ACT(SL_ACT_SILU),
    SL_HPARAM_TIED(true),
    SL_HPARAM_ONLY("attention_bias", false),
    SL_HPARAM_ONLY("rope_interleave", true),
};

static const struct sl_weight_desc weights[] = {
    SL_WEIGHTS_EMBED_AND_HEAD,
    SL_WEIGHTS_ATTN_NORM,
    SL_WEIGHTS_MLA(0),
    SL_WEIGHTS_FFN_NORM,
    SL_WEIGHTS_FFN_GATED,
};
/* clang-format on */

static const struct sl_rope_desc ropes[] = {
    {.hf_theta = "rope_theta",
     .gguf_theta = "rope.freq_base",
     .theta = 10000,
     .scaled = true,
     .pairing = SL_ROPE_INTERLEAVED,
     .tenth_multiplier = true,
     .partial = 1},
};

static int youtu_plan(const struct sl_model_name *name, const struct sl_hparams *hp,
                      struct sl_layer_desc *layers, struct sl_error *err)
{
    (void)name;
    (void)err;
    for (int32_t i = 0; i < hp->n_layers; i++)
        sl_plan_mla(hp, &layers[i]);
    return 0;
}

static void youtu_tiny(const struct sl_model_name *name, struct sl_hparams *hp)
{
    *hp = (struct sl_hparams){
        .hidden = 64,
        .intermediate = 160,
        .n_layers = 2,
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
        .norm_eps = 1e-6,
        .has = name->has | SL_HAS_HEAD,
        .ropes = {{.theta = 10000, .n_dims = 16}},
    };
}

const struct sl_model_desc sl_model_youtu = {
    .id = "youtu",
    SL_MODEL_TABLES,
    SL_MODEL_ROPES(ropes),
    .plan = youtu_plan,
    .tiny = youtu_tiny,
};
