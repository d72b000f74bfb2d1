/* SPDX-License-Identifier: MIT
 * Llama 4, the model of text: Scout and Maverick. Three of four layers see a chunk of the context,
 * are rotated in pairs of neighbours, and norm q and k behind that without weights; the fourth sees
 * everything, knows no positions, and its queries grow with theirs. Experts get their input
 * multiplied by the sigmoid of their logit, beside a shared expert; layers between those with
 * experts may be dense.
 *
 * GGUF files say neither the size of a chunk, which is 8,192 and so are the positions after which
 * queries grow, nor whether q and k are normed: those of 128 experts are not.
 */
#include "base/check.h"
#include "models/desc.h"
#include "models/tables.h"

static const struct sl_model_name names[] = {
    {.id = "llama4",
     .hf_architecture = "Llama4ForCausalLM",
     .hf_model_type = "llama4_text",
     .gguf_architecture = "llama4",
     .gguf_has = SL_HAS_QK_NORM,
     .head_dim = 128},
    {.id = "llama4-text",
     .hf_architecture = "Llama4ForConditionalGeneration",
     .hf_model_type = "llama4",
     .head_dim = 128,
     .hf_config = "text_config"},
};

/* clang-format off */
static const struct sl_hparam_desc hparams[] = {
    SL_HPARAMS_BLOCKS,
    {NULL, {"intermediate_size_mlp"}, SL_HP_INT, SL_HP_AT(dense_intermediate), .min = 1,
     .max = 4 * SL_MAX_HIDDEN},
    SL_HPARAMS_EXPERTS,
    {"expert_feed_forward_length", {NULL}, SL_HP_INT, SL_HP_AT(expert_intermediate), .min = 1,
     .max = 4 * SL_MAX_HIDDEN},
    {"interleave_moe_layer_step", {"interleave_moe_layer_step"}, SL_HP_INT, SL_HP_AT(expert_step),
     .def = 1, .min = 1, .max = SL_MAX_LAYERS},
    {NULL, {"moe_layers"}, SL_HP_LAYERS, SL_HP_AT(mlp_types), .def = SL_LAYER_ON},
    SL_HPARAM_ACT(SL_ACT_SILU),
    SL_HPARAM_TIED(false),
    {NULL, {"no_rope_layers"}, SL_HP_LAYER_FLAGS, SL_HP_AT(rope_layers)},
    {NULL, {"no_rope_layer_interval"}, SL_HP_INT, SL_HP_AT(no_rope_interval), .def = 4, .min = 1,
     .max = SL_MAX_LAYERS},
    {NULL, {"layer_types"}, SL_HP_LAYER_TYPES, SL_HP_AT(layer_types),
     .words = {"full_attention", "chunked_attention"}},
    {NULL, {"attention_chunk_size"}, SL_HP_INT, SL_HP_AT(chunk), .def = 8192, .min = 1,
     .max = SL_MAX_CONTEXT},
    {NULL, {"use_qk_norm"}, SL_HP_HAS, .has = SL_HAS_QK_NORM, .def = true},
    {NULL, {"attn_temperature_tuning"}, SL_HP_SWITCH, SL_HP_AT(q_temperature), .def = true},
    {NULL, {"attn_scale"}, SL_HP_FLOAT, SL_HP_AT(q_temperature_scale), .def = 0.1, .min = 0,
     .max = 10},
    {NULL, {"floor_scale"}, SL_HP_INT, SL_HP_AT(q_temperature_span), .def = 8192, .min = 1,
     .max = SL_MAX_CONTEXT},
    {NULL, {"attention_bias"}, SL_HP_HAS, .has = SL_HAS_QKV_BIAS | SL_HAS_O_BIAS},
};

/* A tensor for each expert, too, as quantisers write them. */
#define LLAMA4_GATE_UP(s, name, gguf_name, idx)                                                    \
    {.slot = SL_SLOT_EXPERTS_##s, .gguf = "blk.*." gguf_name ".weight",                            \
     .hf = "model.layers.*.feed_forward.experts.#." name ".weight",                                \
     .hf_fused = "model.layers.*.feed_forward.experts.gate_up_proj",                               \
     .fused = {SL_DIM_I, SL_DIM_I}, .part = idx, .rows = SL_DIM_I, .cols = SL_DIM_H,               \
     .mats = SL_DIM_E, .shard = SL_SHARD_ROWS, .when = SL_HAS_EXPERTS, .flags = SL_W_TRANSPOSED}

static const struct sl_weight_desc weights[] = {
    SL_WEIGHTS_EMBED_AND_HEAD,
    SL_WEIGHTS_ATTN_NORM,
    SL_WEIGHTS_GQA,
    SL_WEIGHTS_QKV_BIAS,
    SL_WEIGHTS_O_BIAS,
    SL_WEIGHTS_FFN_NORM,
    SL_W_LAYER(ROUTER, "feed_forward.router.weight", "ffn_gate_inp.weight", E, H, NONE),
     .when = SL_HAS_EXPERTS},
    LLAMA4_GATE_UP(GATE, "gate_proj", "ffn_gate_exps", 0),
    LLAMA4_GATE_UP(UP, "up_proj", "ffn_up_exps", 1),
    {.slot = SL_SLOT_EXPERTS_DOWN, .gguf = "blk.*.ffn_down_exps.weight",
     .hf = "model.layers.*.feed_forward.experts.#.down_proj.weight",
     .hf_fused = "model.layers.*.feed_forward.experts.down_proj", .fused = {SL_DIM_H},
     .rows = SL_DIM_H, .cols = SL_DIM_I, .mats = SL_DIM_E, .shard = SL_SHARD_ROWS,
     .when = SL_HAS_EXPERTS, .flags = SL_W_TRANSPOSED},
    SL_WEIGHTS_SHARED("feed_forward.shared_expert"),
    SL_W_LAYER(GATE, "feed_forward.gate_proj.weight", "ffn_gate.weight", I, H, ROWS),
     .when = SL_HAS_DENSE},
    SL_W_LAYER(UP, "feed_forward.up_proj.weight", "ffn_up.weight", I, H, ROWS),
     .when = SL_HAS_DENSE},
    SL_W_LAYER(DOWN, "feed_forward.down_proj.weight", "ffn_down.weight", H, I, ROWS),
     .when = SL_HAS_DENSE},
    SL_WEIGHT_ROPE_FREQS,
};
/* clang-format on */

static const struct sl_rope_desc ropes[] = {
    {.hf_theta = "rope_theta",
     .gguf_theta = "rope.freq_base",
     .theta = 500000,
     .scaled = true,
     .pairing = SL_ROPE_INTERLEAVED},
};

static void plan_attention(const struct sl_hparams *hp, int32_t layer, bool normed,
                           struct sl_layer_desc *l)
{
    const bool rotated = hp->rope_layers[layer] == SL_LAYER_BY_INDEX
                             ? (layer + 1) % hp->no_rope_interval != 0
                             : hp->rope_layers[layer] == SL_LAYER_ON;
    const bool chunked = hp->layer_types[layer] == SL_LAYER_BY_INDEX
                             ? rotated
                             : hp->layer_types[layer] == SL_LAYER_ON;
    l->rope = rotated ? 0 : -1;
    l->qk_norm = rotated && normed ? SL_QK_NORM_BARE : SL_QK_NORM_NONE;
    l->qk_norm_after = rotated && normed;
    l->window = chunked ? hp->chunk : 0;
    l->chunks = l->window > 0;
    if (!rotated && (hp->q_temperature || hp->from_gguf))
        l->temperature = (struct sl_q_temperature){.beta = (float)hp->q_temperature_scale,
                                                   .span = (float)hp->q_temperature_span,
                                                   .first = 1};
}

static int llama4_plan(const struct sl_model_name *name, const struct sl_hparams *hp,
                       struct sl_layer_desc *layers, struct sl_error *err)
{
    const bool normed = (hp->has & SL_HAS_QK_NORM) != 0 && !(hp->from_gguf && hp->n_experts == 128);
    (void)name;
    int rc = sl_plan_experts(hp, SL_ROUTE_SIGMOID, 0, layers, err);
    for (int32_t i = 0; i < hp->n_layers && rc == 0; i++) {
        struct sl_layer_desc *l = &layers[i];
        plan_attention(hp, i, normed, l);
        if ((l->has & SL_HAS_EXPERTS) == 0)
            continue;
        l->weigh_input = true;
        l->has |= SL_HAS_SHARED;
        l->shared_intermediate = l->intermediate;
    }
    return rc;
}

static void llama4_tiny(const struct sl_model_name *name, struct sl_hparams *hp)
{
    *hp = (struct sl_hparams){
        .hidden = 64,
        .intermediate = 96,
        .n_layers = 4,
        .n_heads = 4,
        .n_kv_heads = 2,
        .head_dim = 16,
        .n_vocab = 320,
        .context = 512,
        .norm_eps = 1e-5,
        .has = name->has | SL_HAS_HEAD | SL_HAS_QK_NORM,
        .ropes = {{.theta = 500000}},
        .n_experts = 5,
        .top_experts = 1,
        .expert_step = 2,
        .dense_intermediate = 160,
        .no_rope_interval = 4,
        .chunk = 40,
        .q_temperature = true,
        .q_temperature_scale = 0.1,
        .q_temperature_span = 32,
    };
}

const struct sl_model_desc sl_model_llama4 = {
    .id = "llama4",
    SL_MODEL_TABLES,
    SL_MODEL_ROPES(ropes),
    .plan = llama4_plan,
    .tiny = llama4_tiny,
};
