/* SPDX-License-Identifier: MIT
 * LFM3: the short convolutions of LFM2, longer, between layers of attention that are windowed or
 * full, each kind with a table of rotations; what attention gives is gated by head, and norms stand
 * on both sides of each sublayer.
 */
#include "base/check.h"
#include "models/desc.h"
#include "models/tables.h"

static const struct sl_model_name names[] = {
    {.id = "lfm3",
     .hf_architecture = "Lfm3ForCausalLM",
     .hf_model_type = "lfm3",
     .has = SL_HAS_QK_NORM,
     .head_dim = 128},
};

/* clang-format off */
static const struct sl_hparam_desc hparams[] = {
    SL_HPARAMS_SIZES,
    {NULL, {"num_key_value_heads"}, SL_HP_INT, SL_HP_AT(n_kv_heads), .min = 1,
     .max = SL_MAX_HEADS},
    SL_HPARAMS_HEADS,
    {NULL, {"norm_eps", "rms_norm_eps"}, SL_HP_FLOAT, SL_HP_AT(norm_eps), .def = 1e-5,
     .min = 1e-20, .max = 1},
    {NULL, {"conv_L_cache"}, SL_HP_INT, SL_HP_AT(state_taps), .def = 7, .min = 2,
     .max = SL_MAX_CONV_TAPS},
    {NULL, {"conv_bias"}, SL_HP_HAS, .has = SL_HAS_CONV_BIAS},
    {NULL, {"layer_types"}, SL_HP_LAYER_KINDS, SL_HP_AT(layer_kinds),
     .words = {"", "conv", "full_attention", "sliding_attention"}},
    {NULL, {"sliding_window"}, SL_HP_INT, SL_HP_AT(window), .hf_def = 256, .min = 1,
     .max = SL_MAX_CONTEXT},
    {NULL, {"use_sandwich_norm"}, SL_HP_HAS, .has = SL_HAS_OUT_NORMS, .def = true},
    {NULL, {"use_attention_gate"}, SL_HP_HAS, .has = SL_HAS_OUT_GATE, .def = true},
    {NULL, {"attention_bias"}, SL_HP_HAS, .has = SL_HAS_QKV_BIAS | SL_HAS_O_BIAS},
    SL_HPARAM_TIED(true),
};

static const struct sl_weight_desc weights[] = {
    {.slot = SL_SLOT_EMBED, .hf = "model.embed_tokens.weight", .rows = SL_DIM_V, .cols = SL_DIM_H},
    {.slot = SL_SLOT_FINAL_NORM, .hf = "model.embedding_norm.weight", .rows = SL_DIM_H},
    {.slot = SL_SLOT_HEAD, .hf = "lm_head.weight", .rows = SL_DIM_V, .cols = SL_DIM_H,
     .shard = SL_SHARD_ROWS, .when = SL_HAS_HEAD},
    SL_W_LAYER(ATTN_NORM, "operator_norm.weight", "attn_norm.weight", H, NONE, NONE)},
    SL_W_LAYER(ATTN_OUT_NORM, "post_operator_norm.weight", "post_attention_norm.weight", H, NONE,
               NONE), .when = SL_HAS_OUT_NORMS},
    SL_WEIGHTS_SOME_GQA("model.layers.*.self_attn"),
    /* transformers calls it g_proj */
    SL_W_LAYER(OUT_GATE, "self_attn.gate_proj.weight", "attn_gate.weight", HEADS, H, HEADS),
     .hf_fused = "model.layers.*.self_attn.g_proj.weight", .fused = {SL_DIM_HEADS},
     .when = SL_HAS_ATTN | SL_HAS_OUT_GATE},
    SL_W_LAYER(Q_NORM, "self_attn.q_norm.weight", "attn_q_norm.weight", HD, NONE, NONE),
     .when = SL_HAS_ATTN},
    SL_W_LAYER(K_NORM, "self_attn.k_norm.weight", "attn_k_norm.weight", HD, NONE, NONE),
     .when = SL_HAS_ATTN},
    SL_WEIGHTS_SHORT_CONV,
    SL_W_LAYER(FFN_NORM, "ffn_norm.weight", "ffn_norm.weight", H, NONE, NONE)},
    SL_W_LAYER(FFN_OUT_NORM, "post_ffn_norm.weight", "post_ffw_norm.weight", H, NONE, NONE),
     .when = SL_HAS_OUT_NORMS},
    SL_W_LAYER(GATE, "feed_forward.w1.weight", "ffn_gate.weight", I, H, ROWS)},
    SL_W_LAYER(UP, "feed_forward.w3.weight", "ffn_up.weight", I, H, ROWS)},
    SL_W_LAYER(DOWN, "feed_forward.w2.weight", "ffn_down.weight", H, I, ROWS)},
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

/* As the list's words. */
enum kind { BY_INDEX, CONV, FULL_ATTENTION, WINDOWED };

static enum kind lfm3_kind_of(int32_t layer)
{
    static const enum kind kinds[] = {WINDOWED, CONV, FULL_ATTENTION, CONV};
    return layer == 0 ? CONV : kinds[layer % 4];
}

static int lfm3_plan(const struct sl_model_name *name, const struct sl_hparams *hp,
                     struct sl_layer_desc *layers, struct sl_error *err)
{
    (void)name;
    (void)err;
    for (int32_t i = 0; i < hp->n_layers; i++) {
        struct sl_layer_desc *l = &layers[i];
        const enum kind kind =
            hp->layer_kinds[i] != BY_INDEX ? (enum kind)hp->layer_kinds[i] : lfm3_kind_of(i);
        l->state.n_taps = hp->state_taps;
        l->norms = SL_NORM_IN | ((hp->has & SL_HAS_OUT_NORMS) != 0 ? SL_NORM_OUT : 0u);
        l->rope = kind == WINDOWED ? LOCAL : FULL;
        l->window = kind == WINDOWED ? hp->window : 0;
        sl_plan_mixer(kind == CONV ? SL_MIX_CONV : SL_MIX_GQA, l);
    }
    return 0;
}

static void lfm3_tiny(const struct sl_model_name *name, struct sl_hparams *hp)
{
    *hp = (struct sl_hparams){
        .hidden = 64,
        .intermediate = 160,
        .n_layers = 5,
        .n_heads = 4,
        .n_kv_heads = 2,
        .head_dim = 24,
        .n_vocab = 320,
        .context = 512,
        .norm_eps = 1e-5,
        .has = name->has | SL_HAS_OUT_NORMS | SL_HAS_OUT_GATE,
        .ropes = {[FULL] = {.theta = 1000000,
                            .scaling = SL_ROPE_PROPORTIONAL,
                            .turning = 0.5,
                            .factor = 1},
                  [LOCAL] = {.theta = 10000}},
        .window = 24,
        .state_taps = 7,
    };
    for (int32_t i = 0; i < SL_MAX_LAYERS; i++)
        hp->layer_kinds[i] = (uint8_t)lfm3_kind_of(i);
}

const struct sl_model_desc sl_model_lfm3 = {
    .id = "lfm3",
    SL_MODEL_TABLES,
    SL_MODEL_ROPES(ropes),
    .plan = lfm3_plan,
    .tiny = lfm3_tiny,
};
