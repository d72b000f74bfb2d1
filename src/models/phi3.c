/* SPDX-License-Identifier: MIT
 * Phi-3, Phi-3.5 and Phi-4 (mini too): as Llama, with q, k and v in one tensor and gate and up in
 * another. Phi-4-mini rotates three quarters of a head; those with 128k of context have LongRoPE.
 *
 * A GGUF has LongRoPE if it has its factors, and does not name it.
 */
#include "base/check.h"
#include "models/desc.h"
#include "models/tables.h"

static const struct sl_model_name names[] = {
    {.id = "phi3",
     .hf_architecture = "Phi3ForCausalLM",
     .hf_model_type = "phi3",
     .gguf_architecture = "phi3"},
};

/* clang-format off */
static const struct sl_hparam_desc hparams[] = {
    SL_HPARAMS_TRANSFORMER,
    SL_HPARAM_ACT(SL_ACT_SILU),
    SL_HPARAM_TIED(false),
    /* GGUF files without a window say 0. */
    {"attention.sliding_window", {"sliding_window"}, SL_HP_INT, SL_HP_AT(window), .min = 0,
     .max = SL_MAX_CONTEXT},
};

#define PHI3_QKV(s, r, how, idx)                                                                   \
    SL_W_LAYER_PART(s, "self_attn.qkv_proj.weight", "attn_qkv.weight", r, H, how, idx, SL_DIM_Q,   \
                    SL_DIM_K, SL_DIM_VALUES)}

static const struct sl_weight_desc weights[] = {
    SL_WEIGHTS_EMBED_AND_HEAD,
    SL_WEIGHTS_ATTN_NORM,
    PHI3_QKV(Q, Q, HEADS, 0),
    PHI3_QKV(K, K, KV_HEADS, 1),
    PHI3_QKV(V, VALUES, KV_HEADS, 2),
    SL_W_LAYER(O, "self_attn.o_proj.weight", "attn_output.weight", H, ATT, ROWS)},
    SL_WEIGHTS_FFN_NORM,
    SL_WEIGHTS_FFN_GATE_UP,
    SL_WEIGHTS_ROPE_FACTORS,
};
/* clang-format on */

static const struct sl_rope_desc ropes[] = {
    {.hf_theta = "rope_theta",
     .gguf_theta = "rope.freq_base",
     .theta = 10000,
     .scaled = true,
     .partial = 1},
};

static int phi3_plan(const struct sl_model_name *name, const struct sl_hparams *hp,
                     struct sl_layer_desc *layers, struct sl_error *err)
{
    (void)name;
    (void)err;
    for (int32_t i = 0; i < hp->n_layers; i++)
        layers[i].window = hp->window;
    return 0;
}

static void phi3_tiny(const struct sl_model_name *name, struct sl_hparams *hp)
{
    *hp = (struct sl_hparams){
        .hidden = 64,
        .intermediate = 160,
        .n_layers = 2,
        .n_heads = 4,
        .n_kv_heads = 2,
        .head_dim = 16,
        .n_vocab = 320,
        .context = 512,
        .norm_eps = 1e-5,
        .has = name->has | SL_HAS_HEAD,
        .ropes = {{.theta = 10000, .n_dims = 12}},
        .window = 24,
    };
}

const struct sl_model_desc sl_model_phi3 = {
    .id = "phi3",
    SL_MODEL_TABLES,
    SL_MODEL_ROPES(ropes),
    .plan = phi3_plan,
    .tiny = phi3_tiny,
};
