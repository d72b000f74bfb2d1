/* SPDX-License-Identifier: MIT
 * RecurrentGemma (Griffin): two layers of a real-gated linear recurrent unit behind a short
 * convolution, then one of attention within a window, which rotates half of a head. The unit's
 * gates are products of each head's own channels. What gates its output is activated as the MLPs
 * are, whose width config.json doubles.
 */
#include "base/check.h"
#include "models/desc.h"
#include "models/tables.h"

static const struct sl_model_name names[] = {
    {.id = "recurrent_gemma",
     .hf_architecture = "RecurrentGemmaForCausalLM",
     .hf_model_type = "recurrent_gemma",
     .has = SL_HAS_O_BIAS | SL_HAS_MLP_BIAS},
};

/* clang-format off */
static const struct sl_hparam_desc hparams[] = {
    SL_HPARAMS_SIZES,
    {NULL, {"num_key_value_heads"}, SL_HP_INT, SL_HP_AT(n_kv_heads), .min = 1,
     .max = SL_MAX_HEADS},
    {NULL, {"vocab_size"}, SL_HP_INT, SL_HP_AT(n_vocab), .required = true, .min = 1,
     .max = SL_MAX_VOCAB},
    {NULL, {"max_position_embeddings"}, SL_HP_INT, SL_HP_AT(context), .def = 1 << 20, .min = 1,
     .max = SL_MAX_CONTEXT}, /* which no config.json says */
    {NULL, {"rms_norm_eps"}, SL_HP_FLOAT, SL_HP_AT(norm_eps), .def = 1e-6, .min = 1e-20, .max = 1},
    {NULL, {"hidden_activation"}, SL_HP_ACT, SL_HP_AT(act), .def = SL_ACT_GELU_TANH},
    SL_HPARAM_TIED(true),
    SL_HPARAM_ONLY("embeddings_scale_by_sqrt_dim", 1),
    {NULL, {"attention_bias"}, SL_HP_HAS, .has = SL_HAS_QKV_BIAS},
    {NULL, {"attention_window_size"}, SL_HP_INT, SL_HP_AT(window), .def = 2048, .min = 1,
     .max = SL_MAX_CONTEXT},
    {NULL, {"block_types"}, SL_HP_LAYER_TYPES, SL_HP_AT(attn_layers),
     .words = {"recurrent", "attention"}, .repeats = true},
    {NULL, {"lru_width"}, SL_HP_INT, SL_HP_AT(state_width), .min = 1, .max = SL_MAX_HIDDEN},
    {NULL, {"conv1d_width"}, SL_HP_INT, SL_HP_AT(state_taps), .def = 4, .min = 2,
     .max = SL_MAX_CONV_TAPS},
    {NULL, {"logits_soft_cap"}, SL_HP_FLOAT, SL_HP_AT(logit_softcap), .def = 30, .min = 1e-6,
     .max = 1e6},
};

#define BLOCK(s, name, r, c)                                                                       \
    {.slot = SL_SLOT_##s, .hf = "model.layers.*.temporal_block." name, .rows = SL_DIM_##r,         \
     .cols = SL_DIM_##c, .when = SL_HAS_STATE
/* A matrix for each head, of columns: what comes out is in its last dimension. */
#define GATES(s, name)                                                                             \
    {.slot = SL_SLOT_LRU_##s, .hf_fused = "model.layers.*.temporal_block.rg_lru." name "_weight",  \
     .fused = {SL_DIM_STATE_V}, .rows = SL_DIM_STATE_V, .cols = SL_DIM_STATE_V,                    \
     .mats = SL_DIM_STATE_HEADS, .when = SL_HAS_STATE, .flags = SL_W_TRANSPOSED},                  \
    BLOCK(LRU_##s##_BIAS, "rg_lru." name "_bias", STATE_ROWS, NONE), .flags = SL_W_FLAT}
#define NORM(s, name)                                                                              \
    {.slot = SL_SLOT_##s, .hf = "model." name ".weight", .rows = SL_DIM_H, .flags = SL_W_PLUS_ONE}
#define MLP(s, name, r, c)                                                                         \
    {.slot = SL_SLOT_##s, .hf = "model.layers.*.mlp_block." name ".weight", .rows = SL_DIM_##r,    \
     .cols = SL_DIM_##c},                                                                          \
    {.slot = SL_SLOT_##s##_BIAS, .hf = "model.layers.*.mlp_block." name ".bias",                   \
     .rows = SL_DIM_##r}

static const struct sl_weight_desc weights[] = {
    {.slot = SL_SLOT_EMBED, .hf = "model.embed_tokens.weight", .rows = SL_DIM_V, .cols = SL_DIM_H},
    NORM(FINAL_NORM, "final_norm"),
    {.slot = SL_SLOT_HEAD, .hf = "lm_head.weight", .rows = SL_DIM_V, .cols = SL_DIM_H,
     .when = SL_HAS_HEAD},
    NORM(ATTN_NORM, "layers.*.temporal_pre_norm"),
    SL_WEIGHTS_SOME_GQA("model.layers.*.temporal_block"),
    BLOCK(STATE_IN, "linear_x.weight", STATE_ROWS, H)},
    BLOCK(STATE_IN_BIAS, "linear_x.bias", STATE_ROWS, NONE)},
    BLOCK(STATE_GATE, "linear_y.weight", STATE_ROWS, H)},
    BLOCK(STATE_GATE_BIAS, "linear_y.bias", STATE_ROWS, NONE)},
    BLOCK(CONV, "conv_1d.weight", CONV, TAPS), .flags = SL_W_VALUES},
    BLOCK(CONV_BIAS, "conv_1d.bias", CONV, NONE)},
    GATES(IN, "input_gate"),
    GATES(DECAY, "recurrent_gate"),
    BLOCK(STATE_A, "rg_lru.recurrent_param", STATE_ROWS, NONE), .flags = SL_W_LRU_RATE},
    BLOCK(STATE_OUT, "linear_out.weight", H, STATE_ROWS)},
    BLOCK(STATE_OUT_BIAS, "linear_out.bias", H, NONE)},
    NORM(FFN_NORM, "layers.*.channel_pre_norm"),
    MLP(GATE, "gate_proj", I, H),
    MLP(UP, "up_proj", I, H),
    MLP(DOWN, "down_proj", H, I),
};
/* clang-format on */

static const struct sl_rope_desc ropes[] = {{.hf_theta = "rope_theta",
                                             .gguf_theta = "rope.freq_base",
                                             .theta = 10000,
                                             .scaled = true,
                                             .partial = 0.5}};

static int recurrent_gemma_plan(const struct sl_model_name *name, const struct sl_hparams *hp,
                                struct sl_layer_desc *layers, struct sl_error *err)
{
    const int32_t width = hp->state_width > 0 ? hp->state_width : hp->hidden, n = hp->n_heads;
    (void)name;
    if (width % n != 0 || width / n > SL_MAX_STATE_DIM)
        return sl_fail(err, SL_EFORMAT,
                       "config.json: lru_width (%d) must be a multiple of num_attention_heads "
                       "(%d), at most %d times that",
                       width, n, SL_MAX_STATE_DIM);
    if (hp->intermediate < 2)
        return sl_fail(err, SL_EFORMAT, "config.json: intermediate_size is %d, must be 2 or more",
                       hp->intermediate);
    if (hp->ropes[0].scaling != SL_ROPE_PLAIN)
        return sl_fail(err, SL_EUNSUPPORTED,
                       "config.json: rope_parameters with a rope_type other than \"default\" is "
                       "not supported by this family");
    for (int32_t i = 0; i < hp->n_layers; i++) {
        struct sl_layer_desc *l = &layers[i];
        l->intermediate = hp->intermediate / 2;
        if (sl_plan_attends(hp, i, i % 3 == 2)) {
            sl_plan_mixer(SL_MIX_GQA, l);
            l->window = hp->window;
            continue;
        }
        sl_plan_mixer(SL_MIX_LRU, l);
        l->rope = -1;
        l->state = (struct sl_state_desc){
            .n_taps = hp->state_taps, .n_heads = n, .n_groups = n, .k_dim = 1, .v_dim = width / n};
    }
    return 0;
}

static void recurrent_gemma_tiny(const struct sl_model_name *name, struct sl_hparams *hp)
{
    *hp = (struct sl_hparams){
        .hidden = 64,
        .intermediate = 320,
        .n_layers = 3,
        .n_heads = 4,
        .n_kv_heads = 1,
        .head_dim = 16,
        .n_vocab = 320,
        .context = 512,
        .norm_eps = 1e-6,
        .act = SL_ACT_GELU_TANH,
        .has = name->has,
        .ropes = {{.theta = 10000, .n_dims = 8}},
        .window = 24,
        .logit_softcap = 30,
        .state_taps = 4,
        .state_width = 96,
    };
}

const struct sl_model_desc sl_model_recurrent_gemma = {
    .id = "recurrent_gemma",
    SL_MODEL_TABLES,
    SL_MODEL_ROPES(ropes),
    .scaled_embedding = true,
    .scaled_as_bf16 = true,
    .plan = recurrent_gemma_plan,
    .tiny = recurrent_gemma_tiny,
};
