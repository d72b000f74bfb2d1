/* SPDX-License-Identifier: MIT
 * RWKV-7 (Goose), by the names of flash-linear-attention's checkpoints and of llama.cpp's GGUF
 * files: time mixing (mixer_wkv.c) and an MLP without a gate, both of tokens mixed with the one
 * before. The embedding is normed once. transformers has no class for it.
 *
 * GGUF files have vectors of low rank in the first layer too, which nothing reads.
 */
#include "base/check.h"
#include "models/desc.h"
#include "models/tables.h"

#include <math.h>

static const struct sl_model_name names[] = {
    {.id = "rwkv7",
     .hf_architecture = "RWKV7ForCausalLM",
     .hf_model_type = "rwkv7",
     .gguf_architecture = "rwkv7",
     .has = SL_HAS_STATE,
     .gguf_has = SL_HAS_STATE},
};

enum { DECAY, RATE, VALUE, GATE };

#define RANK(idx, gguf_key, hf_key, by_default)                               \
    {                                                                         \
        "attention." gguf_key, {hf_key}, SL_HP_INT, SL_HP_AT(wkv_ranks[idx]), \
            .hf_def = by_default, .min = 1, .max = SL_MAX_HIDDEN              \
    }

/* clang-format off */
static const struct sl_hparam_desc hparams[] = {
    {"embedding_length", {"hidden_size"}, SL_HP_INT, SL_HP_AT(hidden), .required = true, .min = 1,
     .max = SL_MAX_HIDDEN},
    {"feed_forward_length", {"intermediate_size"}, SL_HP_INT, SL_HP_AT(intermediate), .min = 1,
     .max = 4 * SL_MAX_HIDDEN},
    {NULL, {"hidden_ratio"}, SL_HP_INT, SL_HP_AT(state_expand), .def = 4, .min = 1, .max = 64},
    {"block_count", {"num_hidden_layers"}, SL_HP_INT, SL_HP_AT(n_layers), .required = true,
     .min = 1, .max = SL_MAX_LAYERS},
    {NULL, {"vocab_size"}, SL_HP_INT, SL_HP_AT(n_vocab), .required = true, .min = 1,
     .max = SL_MAX_VOCAB},
    {"context_length", {"max_position_embeddings"}, SL_HP_INT, SL_HP_AT(context), .def = 1 << 20,
     .min = 1, .max = SL_MAX_CONTEXT},
    SL_HPARAM_LAYERNORM_EPS,
    {"wkv.head_size", {"head_dim"}, SL_HP_INT, SL_HP_AT(state_k_dim), .hf_def = 64, .min = 1,
     .max = SL_MAX_STATE_DIM},
    {NULL, {"num_heads"}, SL_HP_INT, SL_HP_AT(state_heads), .min = 1, .max = SL_MAX_HIDDEN},
    {NULL, {"value_dim"}, SL_HP_SAME, SL_HP_AT(state_width), .min = 1, .max = SL_MAX_HIDDEN},
    RANK(DECAY, "decay_lora_rank", "decay_low_rank_dim", 64),
    RANK(RATE, "iclr_lora_rank", "a_low_rank_dim", 64),
    RANK(VALUE, "value_residual_mix_lora_rank", "v_low_rank_dim", 16),
    RANK(GATE, "gate_lora_rank", "gate_low_rank_dim", 128),
    {"token_shift_count", {NULL}, SL_HP_INT, SL_HP_AT(state_groups), .def = 2,
     .min = 2, .max = 2},
    {NULL, {"hidden_act"}, SL_HP_CHOICE, .value = "sqrelu"},
    {NULL, {"attn"}, SL_HP_CHOICE, .value = "rwkv7"}, /* an object: some layers have attention */
    {.hf = {"norm_first"}, .type = SL_HP_ONLY, .def = 1},
    {.hf = {"norm_bias"}, .type = SL_HP_ONLY, .def = 1},
    SL_HPARAM_TIED(false),
};

#define ATTN(s, hf_name, gguf_name, r, c)                                                          \
    {.slot = SL_SLOT_##s, .hf = "model.layers.*.attn." hf_name,                                    \
     .gguf = "blk.*.time_mix_" gguf_name ".weight", .rows = SL_DIM_##r, .cols = SL_DIM_##c
#define LOW(s, name)                                                                               \
    ATTN(WKV_##s##_DOWN, name "_lora.lora.0.weight", name "1", WKV_##s, H)},                       \
    ATTN(WKV_##s##_UP, name "_lora.lora.2.weight", name "2", STATE_ROWS, WKV_##s)}
#define NORM(s, hf_name, gguf_name)                                                                \
    {.slot = SL_SLOT_##s, .hf = hf_name ".weight", .gguf = gguf_name ".weight", .rows = SL_DIM_H}, \
    {.slot = SL_SLOT_##s##_BIAS, .hf = hf_name ".bias", .gguf = gguf_name ".bias",                 \
     .rows = SL_DIM_H}

static const struct sl_weight_desc weights[] = {
    {.slot = SL_SLOT_EMBED, .hf = "model.embeddings.weight", .gguf = "token_embd.weight",
     .rows = SL_DIM_V, .cols = SL_DIM_H},
    NORM(EMBED_NORM, "model.layers.0.pre_norm", "token_embd_norm"),
    NORM(FINAL_NORM, "model.norm", "output_norm"),
    {.slot = SL_SLOT_HEAD, .hf = "lm_head.weight", .gguf = "output.weight", .rows = SL_DIM_V,
     .cols = SL_DIM_H, .when = SL_HAS_HEAD},
    NORM(ATTN_NORM, "model.layers.*.attn_norm", "blk.*.attn_norm"),
    {.slot = SL_SLOT_STATE_SHIFT, .hf = "model.layers.*.attn.x_{r,w,k,v,a,g}",
     .hf_fused = "model.layers.*.attn.x_x", .gguf_fused = "blk.*.time_mix_lerp_fused.weight",
     .fused = {SL_DIM_H, SL_DIM_H, SL_DIM_H, SL_DIM_H, SL_DIM_H, SL_DIM_H},
     .rows = SL_DIM_SHIFTS, .flags = SL_W_FLAT,
     .pieces = {SL_DIM_H, SL_DIM_H, SL_DIM_H, SL_DIM_H, SL_DIM_H, SL_DIM_H}},
    ATTN(WKV_R, "r_proj.weight", "receptance", STATE_ROWS, H)},
    ATTN(WKV_K, "k_proj.weight", "key", STATE_ROWS, H)},
    ATTN(WKV_V, "v_proj.weight", "value", STATE_ROWS, H)},
    ATTN(STATE_OUT, "o_proj.weight", "output", H, STATE_ROWS)},
    LOW(DECAY, "w"),
    ATTN(WKV_DECAY_BIAS, "w_lora.lora.2.bias", "w0", STATE_ROWS, NONE)},
    LOW(RATE, "a"),
    ATTN(WKV_RATE_BIAS, "a_lora.lora.2.bias", "a0", STATE_ROWS, NONE)},
    LOW(VALUE, "v"),
    ATTN(WKV_VALUE_BIAS, "v_lora.lora.2.bias", "v0", WKV_VALUE_BIAS, NONE)},
    LOW(GATE, "g"),
    ATTN(WKV_K_K, "k_k", "k_k", STATE_ROWS, NONE)},
    ATTN(WKV_K_A, "k_a", "k_a", STATE_ROWS, NONE)},
    ATTN(WKV_R_K, "r_k", "r_k", STATE_ROWS, NONE), .flags = SL_W_FLAT},
    ATTN(STATE_NORM, "g_norm.weight", "ln", STATE_ROWS, NONE)},
    {.slot = SL_SLOT_STATE_NORM_BIAS, .hf = "model.layers.*.attn.g_norm.bias",
     .gguf = "blk.*.time_mix_ln.bias", .rows = SL_DIM_STATE_ROWS},
    NORM(FFN_NORM, "model.layers.*.ffn_norm", "blk.*.attn_norm_2"),
    {.slot = SL_SLOT_FFN_SHIFT, .hf = "model.layers.*.ffn.x_k",
     .gguf = "blk.*.channel_mix_lerp_k.weight", .rows = SL_DIM_H, .flags = SL_W_FLAT},
    {.slot = SL_SLOT_UP, .hf = "model.layers.*.ffn.key.weight",
     .gguf = "blk.*.channel_mix_key.weight", .rows = SL_DIM_I, .cols = SL_DIM_H},
    {.slot = SL_SLOT_DOWN, .hf = "model.layers.*.ffn.value.weight",
     .gguf = "blk.*.channel_mix_value.weight", .rows = SL_DIM_H, .cols = SL_DIM_I},
};
/* clang-format on */

/* Where config.json says null: as wide as a head and the model make it. */
static int32_t rwkv7_rank_of(const struct sl_hparams *hp, int idx, int32_t head_dim)
{
    static const double by_root[] = {2.5, 2.5, 1.7, 5};
    const double by_head = idx == GATE ? 1 : head_dim / 64.0;
    if (hp->wkv_ranks[idx] != 0)
        return hp->wkv_ranks[idx];
    return SL_MAX(32, 32 * (int32_t)rint(by_root[idx] * sqrt((double)hp->hidden) * by_head / 32));
}

static int rwkv7_plan(const struct sl_model_name *name, const struct sl_hparams *hp,
                      struct sl_layer_desc *layers, struct sl_error *err)
{
    const int32_t dim = hp->state_k_dim != 0   ? hp->state_k_dim
                        : hp->state_heads != 0 ? hp->hidden / hp->state_heads
                                               : 64;
    const int64_t wide = 32 * SL_CEIL_DIV((int64_t)hp->hidden * hp->state_expand, 32);
    (void)name;
    if (dim < 1 || dim > SL_MAX_STATE_DIM || hp->hidden % dim != 0)
        return sl_fail(err, SL_EFORMAT, "%s (%d) is not a multiple of %s (%d)",
                       hp->from_gguf ? "GGUF: embedding_length" : "config.json: hidden_size",
                       hp->hidden, hp->from_gguf ? "wkv.head_size" : "head_dim", dim);
    if (hp->state_width != 0 && hp->state_width != hp->hidden)
        return sl_fail(err, SL_EUNSUPPORTED,
                       "config.json: value_dim (%d) that differs from hidden_size (%d) is not "
                       "supported",
                       hp->state_width, hp->hidden);
    for (int32_t i = 0; i < hp->n_layers; i++) {
        struct sl_layer_desc *l = &layers[i];
        sl_plan_mixer(SL_MIX_WKV, l);
        l->norm = SL_NORM_LAYER;
        l->rope = -1;
        l->ffn = SL_FFN_PLAIN;
        l->act = SL_ACT_RELU2;
        l->shifts_ffn = true;
        if (l->intermediate == 0)
            l->intermediate = (int32_t)SL_MIN(wide, 4 * SL_MAX_HIDDEN);
        l->state = (struct sl_state_desc){
            .n_taps = 2,
            .n_heads = hp->hidden / dim,
            .n_groups = hp->hidden / dim,
            .k_dim = dim,
            .v_dim = dim,
            .by_row = true,
            .norm_eps = (float)(dim * hp->norm_eps),
            .norm = true,
        };
        for (int k = 0; k < SL_WKV_RANKS; k++)
            l->state.ranks[k] = k == VALUE && i == 0 ? 0 : rwkv7_rank_of(hp, k, dim);
    }
    return 0;
}

static void rwkv7_tiny(const struct sl_model_name *name, struct sl_hparams *hp)
{
    *hp = (struct sl_hparams){
        .hidden = 64,
        .intermediate = 160,
        .state_expand = 4,
        .n_layers = 3,
        .n_vocab = 320,
        .context = 512,
        .norm_eps = 1e-5,
        .has = name->has | SL_HAS_HEAD,
        .state_k_dim = 16,
        .wkv_ranks = {32, 40, 8, 24},
        .state_groups = 2,
    };
}

const struct sl_model_desc sl_model_rwkv7 = {
    .id = "rwkv7",
    SL_MODEL_TABLES,
    .plan = rwkv7_plan,
    .tiny = rwkv7_tiny,
};
