/* SPDX-License-Identifier: MIT
 * Gemma 3n (text): four residual streams (AltUp), two thin matrices beside attention (Laurel),
 * embeddings for each layer, the last layers read the keys and values of earlier ones, and the MLPs
 * of the first ones let only the largest values of their gates through. Otherwise as Gemma 4.
 */
#include "base/check.h"
#include "models/desc.h"
#include "models/tables.h"

#include <math.h>

#define HAS (SL_HAS_QK_NORM | SL_HAS_K | SL_HAS_V)

static const struct sl_model_name names[] = {
    {.id = "gemma3n",
     .hf_architecture = "Gemma3nForCausalLM",
     .hf_model_type = "gemma3n_text",
     .gguf_architecture = "gemma3n",
     .has = HAS,
     .head_dim = 256},
    {.id =
         "gemma3n-text", /* of a model that also reads images and sounds, which this one does not */
     .hf_architecture = "Gemma3nForConditionalGeneration",
     .hf_model_type = "gemma3n",
     .gguf_architecture = "gemma3n",
     .has = HAS,
     .head_dim = 256,
     .hf_config = "text_config"},
};

/* clang-format off */
static const struct sl_hparam_desc hparams[] = {
    /* A config.json leaves out what is transformers' default, so that all defaults are here. */
    SL_HPARAMS_GEMMA_BY_LAYER(2048, 35, 16384),
    {"attention.head_count_kv", {"num_key_value_heads"}, SL_HP_INT, SL_HP_AT(n_kv_heads),
     .hf_def = 2, .min = 1, .max = SL_MAX_HEADS},
    {"attention.key_length", {"head_dim"}, SL_HP_INT, SL_HP_AT(head_dim), .min = 2,
     .max = SL_MAX_HEAD_DIM},
    {"attention.value_length", {NULL}, SL_HP_INT, SL_HP_AT(v_dim), .min = 1,
     .max = SL_MAX_HEAD_DIM},
    SL_HPARAMS_GEMMA_WINDOWS(32768, 262400),
    {"attention.shared_kv_layers", {"num_kv_shared_layers"}, SL_HP_INT, SL_HP_AT(n_shared_layers),
     .hf_def = 15, .min = 0, .max = SL_MAX_LAYERS},
    {"embedding_length_per_layer_input", {"hidden_size_per_layer_input"}, SL_HP_INT,
     SL_HP_AT(layer_width), .required = true, .hf_def = 256, .min = 1,
     .max = SL_MAX_HIDDEN / SL_MAX_LAYERS},
    {NULL, {"vocab_size_per_layer_input"}, SL_HP_INT, SL_HP_AT(n_layer_vocab), .hf_def = 262144,
     .min = 1, .max = SL_MAX_VOCAB},
    {"final_logit_softcapping", {"final_logit_softcapping"}, SL_HP_FLOAT, SL_HP_AT(logit_softcap),
     .def = 30, .min = 0, .max = 1e6},
    {"altup.num_inputs", {"altup_num_inputs"}, SL_HP_INT, SL_HP_AT(n_streams), .required = true,
     .hf_def = 4, .min = 2, .max = SL_MAX_STREAMS},
    {"altup.active_idx", {"altup_active_idx"}, SL_HP_INT, SL_HP_AT(active_stream), .min = 0,
     .max = 0},
    SL_HPARAM_ONLY("altup_correct_scale", true),
    {NULL, {"laurel_rank"}, SL_HP_INT, SL_HP_AT(laurel_rank), .def = 64, .min = 1,
     .max = SL_MAX_HIDDEN},
    {NULL, {"activation_sparsity_pattern"}, SL_HP_LAYER_FLOATS, SL_HP_AT(layer_sparsity),
     .def = -1, .min = -1, .max = 0.9999},
    {"activation_sparsity_scale", {NULL}, SL_HP_LAYER_FLOATS, SL_HP_AT(layer_deviations),
     .min = -INFINITY, .max = 1e3}, /* the former: the gate is not cut */
    {NULL, {"attention_bias"}, SL_HP_HAS, .has = SL_HAS_QKV_BIAS | SL_HAS_O_BIAS},
};

static const struct sl_weight_desc weights[] = {
    SL_WEIGHTS_EMBED_AND_HEAD,
    SL_WEIGHTS_LAYER_INPUTS,
    {.slot = SL_SLOT_STREAMS_IN, .hf = "model.altup_projections.#.weight",
     .gguf = "altup_proj.weight", .rows = SL_DIM_H, .cols = SL_DIM_H,
     .mats = SL_DIM_MORE_STREAMS},
    {.slot = SL_SLOT_STREAMS_OUT, .hf = "model.altup_unembed_projections.#.weight",
     .gguf = "altup_unembd_proj.weight", .rows = SL_DIM_H, .cols = SL_DIM_H,
     .mats = SL_DIM_MORE_STREAMS},
    SL_WEIGHTS_SANDWICH,
    SL_W_LAYER(Q, "self_attn.q_proj.weight", "attn_q.weight", Q, H, HEADS)},
    SL_W_LAYER(K, "self_attn.k_proj.weight", "attn_k.weight", K, H, KV_HEADS), .when = SL_HAS_K},
    SL_W_LAYER(V, "self_attn.v_proj.weight", "attn_v.weight", VALUES, H, KV_HEADS),
     .when = SL_HAS_V},
    SL_W_LAYER(O, "self_attn.o_proj.weight", "attn_output.weight", H, ATT, ROWS)},
    SL_W_LAYER(Q_NORM, "self_attn.q_norm.weight", "attn_q_norm.weight", HD, NONE, NONE)},
    SL_W_LAYER(K_NORM, "self_attn.k_norm.weight", "attn_k_norm.weight", HD, NONE, NONE),
     .when = SL_HAS_K},
    SL_WEIGHTS_FFN_GATED,
    SL_W_LAYER(STREAM_NORM, "altup.router_norm.weight", "altup_router_norm.weight", H, NONE, NONE),
     .flags = SL_W_OVER_WIDTH},
    SL_W_LAYER(STREAM_ROUTER, "altup.modality_router.weight", "altup_router.weight", STREAMS, H,
               NONE)},
    SL_W_LAYER(STREAM_PREDICT, "altup.prediction_coefs.weight", "altup_predict_coef.weight",
               STREAMS_2, STREAMS, NONE)},
    SL_W_LAYER(STREAM_CORRECT, "altup.correction_coefs.weight", "altup_correct_coef.weight",
               STREAMS, STREAMS, NONE)},
    SL_W_LAYER(STREAM_SCALE, "altup.correct_output_scale", "altup_correct_scale.weight", H, NONE,
               NONE)},
    SL_W_LAYER(LAUREL_LEFT, "laurel.linear_left.weight", "laurel_l.weight", LAUREL, H, NONE)},
    SL_W_LAYER(LAUREL_RIGHT, "laurel.linear_right.weight", "laurel_r.weight", H, LAUREL, NONE)},
    SL_W_LAYER(LAUREL_NORM, "laurel.post_laurel_norm.weight", "laurel_post_norm.weight", H, NONE,
               NONE)},
};
/* clang-format on */

enum { FULL, LOCAL }; /* tables of rotations */

static const struct sl_rope_desc ropes[] = {
    [FULL] = {.kind = "full_attention",
              .hf_theta = "rope_theta",
              .gguf_theta = "rope.freq_base",
              .theta = 1000000,
              .scaled = true},
    [LOCAL] = {.kind = "sliding_attention",
               .hf_theta = "rope_local_base_freq",
               .gguf_theta = "rope.freq_base_swa",
               .theta = 10000},
};

/* Deviations above the mean below which a share p of normal numbers lies. */
static double gemma3n_quantile(double p)
{
    double low = -10, high = 10;
    for (int i = 0; i < 100; i++) {
        const double mid = (low + high) / 2;
        if (0.5 * erfc(-mid / sqrt(2.0)) < p)
            low = mid;
        else
            high = mid;
    }
    return (low + high) / 2;
}

/* How much of a layer's gate is cut off. */
static void plan_gate(const struct sl_hparams *hp, int32_t idx, struct sl_layer_desc *l)
{
    double share = hp->layer_sparsity[idx];
    if (share < 0) /* not said: transformers' default */
        share = hp->n_layers > 10 && idx < 10 ? 0.95 : 0;
    l->cuts_gate = hp->from_gguf ? isfinite(hp->layer_deviations[idx]) : share > 0;
    if (hp->from_gguf && hp->layer_deviations[idx] == 0)
        l->cuts_gate = false; /* the file has no such key */
    if (l->cuts_gate)
        l->gate_deviations =
            (float)(hp->from_gguf ? hp->layer_deviations[idx] : gemma3n_quantile(share));
}

static int gemma3n_plan(const struct sl_model_name *name, const struct sl_hparams *hp,
                        struct sl_layer_desc *layers, struct sl_error *err)
{
    (void)name;
    int rc = 0;
    if ((hp->has & SL_HAS_QKV_BIAS) != 0)
        return sl_fail(err, SL_EUNSUPPORTED, "config.json: attention_bias true is not supported");
    if (hp->n_shared_layers >= hp->n_layers)
        return sl_fail(err, SL_EFORMAT, "%s is %d, must be less than the number of layers, %d",
                       hp->from_gguf ? "GGUF: attention.shared_kv_layers"
                                     : "config.json: num_kv_shared_layers",
                       hp->n_shared_layers, hp->n_layers);
    for (int32_t i = 0; i < hp->n_layers && rc == 0; i++) {
        struct sl_layer_desc *l = &layers[i];
        const bool windowed = hp->layer_types[i] == SL_LAYER_BY_INDEX
                                  ? (i + 1) % 5 != 0
                                  : hp->layer_types[i] == SL_LAYER_ON;
        l->norms = SL_NORM_IN | SL_NORM_OUT;
        l->norm_v = true;
        l->attn_scale = 1;
        l->attn_end_scale = (float)sqrt(0.5);
        l->intermediate = hp->layer_intermediate[i];
        l->rope = windowed ? LOCAL : FULL;
        l->window = windowed ? hp->window : 0;
        plan_gate(hp, i, l);
        if (i >= hp->n_layers - hp->n_shared_layers)
            rc = sl_plan_share_keys(hp, i, layers, err);
    }
    return rc;
}

static void gemma3n_tiny(const struct sl_model_name *name, struct sl_hparams *hp)
{
    enum { N_LAYERS = 6 };
    *hp = (struct sl_hparams){
        .hidden = 64,
        .intermediate = 160,
        .n_layers = N_LAYERS,
        .n_heads = 4,
        .n_kv_heads = 2,
        .head_dim = 16,
        .n_vocab = 320,
        .context = 512,
        .norm_eps = 1e-6,
        .has = name->has | SL_HAS_LAYER_INPUTS,
        .act = SL_ACT_GELU_TANH,
        .ropes = {[FULL] = {.theta = 1000000}, [LOCAL] = {.theta = 10000}},
        .window = 24,
        .n_shared_layers = 2,
        .layer_width = 32,
        .n_layer_vocab = 320,
        .logit_softcap = 30,
        .n_streams = 3,
        .laurel_rank = 32,
    };
    for (int32_t i = 0; i < N_LAYERS; i++) {
        hp->layer_types[i] = i % 2 == 1 ? SL_LAYER_OFF : SL_LAYER_ON;
        hp->layer_intermediate[i] = hp->intermediate;
        hp->layer_sparsity[i] = i < 2 ? 0.75 : 0;
    }
}

const struct sl_model_desc sl_model_gemma3n = {
    .id = "gemma3n",
    SL_MODEL_TABLES,
    SL_MODEL_ROPES(ropes),
    .scaled_embedding = true,
    .plan = gemma3n_plan,
    .tiny = gemma3n_tiny,
};
