/* SPDX-License-Identifier: MIT
 * Jet-Nemotron: Qwen 2 in which most layers of attention are JetBlocks, the gated delta rule behind
 * a convolution of the values alone, whose taps each token makes of its own row. The other layers
 * see everything ("attn") or a window ("swa"). transformers has no class; the names are those of
 * NVIDIA's own modelling code.
 */
#include "base/check.h"
#include "models/desc.h"
#include "models/tables.h"

#include <math.h>

static const struct sl_model_name names[] = {
    {.id = "jet_nemotron",
     .hf_architecture = "JetNemotronForCausalLM",
     .hf_model_type = "jet_nemotron",
     .has = SL_HAS_QKV_BIAS},
};

#define JET(key) "efficient_attention_config.jet." key

/* clang-format off */
static const struct sl_hparam_desc hparams[] = {
    SL_HPARAMS_TRANSFORMER,
    SL_HPARAM_TIED(false),
    {NULL, {"hidden_act"}, SL_HP_CHOICE, .value = "silu"},
    {NULL, {"layer_types"}, SL_HP_LAYER_KINDS, SL_HP_AT(layer_kinds), .required = true,
     .words = {"", "jet", "attn", "swa"}},
    {NULL, {"efficient_attention_config.swa.window_size"}, SL_HP_INT, SL_HP_AT(window), .min = 1,
     .max = SL_MAX_CONTEXT},
    {NULL, {JET("conv_size")}, SL_HP_INT, SL_HP_AT(state_taps), .def = 4, .min = 2,
     .max = SL_MAX_CONV_TAPS},
    {NULL, {JET("num_heads")}, SL_HP_INT, SL_HP_AT(state_heads), .def = 6, .min = 1,
     .max = SL_MAX_HEADS},
    {NULL, {JET("head_dim")}, SL_HP_INT, SL_HP_AT(state_k_dim), .def = 256, .min = 1,
     .max = SL_MAX_STATE_DIM},
    {NULL, {JET("expand_v")}, SL_HP_FLOAT, SL_HP_AT(value_expand), .def = 2, .min = 0.001,
     .max = SL_MAX_STATE_DIM},
    {NULL, {JET("dconv_generator_reduction")}, SL_HP_INT, SL_HP_AT(conv_reduction), .def = 8,
     .min = 1, .max = SL_MAX_HIDDEN},
    {NULL, {JET("norm_eps")}, SL_HP_FLOAT, SL_HP_AT(state_norm_eps), .def = 1e-5, .min = 1e-20,
     .max = 1, .spelled = true},
};

#define JET_LAYER(s, name, d) \
    {.slot = SL_SLOT_##s, .hf = "model.layers.*.self_attn." name, .rows = SL_DIM_##d, \
     .when = SL_HAS_STATE

static const struct sl_weight_desc weights[] = {
    SL_WEIGHTS_EMBED_AND_HEAD,
    SL_WEIGHTS_ATTN_NORM,
    SL_WEIGHTS_SOME_GQA("model.layers.*.self_attn"),
    JET_LAYER(STATE_IN, "{q,k,v}_proj.weight", CONV), .cols = SL_DIM_H,
     .pieces = {SL_DIM_STATE_KEYS, SL_DIM_STATE_KEYS, SL_DIM_STATE_ROWS}},
    JET_LAYER(STATE_GATE, "g_proj.weight", STATE_ROWS), .cols = SL_DIM_H},
    JET_LAYER(STATE_DT, "a_proj.weight", STATE_HEADS), .cols = SL_DIM_H},
    JET_LAYER(STATE_BETA, "b_proj.weight", STATE_HEADS), .cols = SL_DIM_H},
    JET_LAYER(CONV_DOWN, "dynamic_conv1d.kernel_generator.w1.weight", CONV_RANK),
     .cols = SL_DIM_H},
    JET_LAYER(CONV_UP, "dynamic_conv1d.kernel_generator.w2.weight", CONV_KERNEL),
     .cols = SL_DIM_CONV_RANK},
    JET_LAYER(CONV_UP_BIAS, "dynamic_conv1d.kernel_generator.w2.bias", CONV_KERNEL)},
    JET_LAYER(STATE_DT_BIAS, "dt_bias", STATE_HEADS)},
    JET_LAYER(STATE_A, "A_log", STATE_HEADS), .flags = SL_W_MINUS_EXP},
    JET_LAYER(STATE_NORM, "o_norm.weight", STATE_V)},
    JET_LAYER(STATE_OUT, "o_proj.weight", H), .cols = SL_DIM_STATE_ROWS},
    SL_WEIGHTS_FFN_NORM,
    SL_WEIGHTS_FFN_GATED,
};
/* clang-format on */

static const struct sl_rope_desc ropes[] = {
    {.hf_theta = "rope_theta", .gguf_theta = "rope.freq_base", .theta = 10000, .scaled = true}};

/* As the list's words. */
enum kind { UNSAID, JET_BLOCK, FULL, WINDOWED };

static int jet_nemotron_state_of(const struct sl_hparams *hp, struct sl_state_desc *s,
                                 struct sl_error *err)
{
    const double v_dim = hp->state_k_dim * hp->value_expand;
    const int32_t width = (int32_t)((double)hp->state_heads * v_dim);
    *s = (struct sl_state_desc){
        .n_taps = hp->state_taps,
        .n_heads = hp->state_heads,
        .n_groups = hp->state_heads,
        .k_dim = hp->state_k_dim,
        .v_dim = (int32_t)v_dim,
        .beta_scale = 1,
        .norm_eps = (float)hp->state_norm_eps,
        .norm = true,
        .norm_heads = true,
    };
    if (s->v_dim < 1 || s->v_dim > SL_MAX_STATE_DIM || width != s->n_heads * s->v_dim)
        return sl_fail(err, SL_EFORMAT,
                       "config.json: " JET("expand_v") " makes %.9g values of the %d dimensions "
                                                       "of a head, must be a whole number, 1 to %d",
                       v_dim, s->k_dim, SL_MAX_STATE_DIM);
    s->conv_rank = width / hp->conv_reduction;
    if (s->conv_rank < 1)
        return sl_fail(err, SL_EFORMAT,
                       "config.json: " JET("dconv_generator_reduction") " is %d, more than the "
                                                                        "%d values of a layer",
                       hp->conv_reduction, width);
    return 0;
}

static int jet_nemotron_plan(const struct sl_model_name *name, const struct sl_hparams *hp,
                             struct sl_layer_desc *layers, struct sl_error *err)
{
    struct sl_state_desc state;
    int rc = jet_nemotron_state_of(hp, &state, err);
    (void)name;
    for (int32_t i = 0; i < hp->n_layers && rc == 0; i++) {
        struct sl_layer_desc *l = &layers[i];
        const enum kind kind = (enum kind)hp->layer_kinds[i];
        if (kind == WINDOWED && hp->window == 0)
            return sl_fail(err, SL_EFORMAT,
                           "config.json: layer %d is windowed, and "
                           "efficient_attention_config.swa.window_size is missing",
                           (int)i);
        l->window = kind == WINDOWED ? hp->window : 0;
        sl_plan_mixer(kind == JET_BLOCK ? SL_MIX_DELTA : SL_MIX_GQA, l);
        if (kind != JET_BLOCK)
            continue;
        l->rope = -1;
        l->state = state;
        l->attn_scale = 1 / sqrtf((float)state.k_dim);
    }
    return rc;
}

static void jet_nemotron_tiny(const struct sl_model_name *name, struct sl_hparams *hp)
{
    static const uint8_t kinds[] = {JET_BLOCK, FULL, JET_BLOCK, WINDOWED};
    *hp = (struct sl_hparams){
        .hidden = 64,
        .intermediate = 160,
        .n_layers = 5,
        .n_heads = 4,
        .n_kv_heads = 2,
        .head_dim = 16,
        .n_vocab = 320,
        .context = 512,
        .norm_eps = 1e-6,
        .has = name->has,
        .ropes = {{.theta = 1000000, .factor = 1}},
        .window = 24,
        .state_taps = 4,
        .state_heads = 3,
        .state_k_dim = 24,
        .value_expand = 1.3333333334,
        .conv_reduction = 8,
        .state_norm_eps = 1e-5,
    };
    for (int32_t i = 0; i < SL_MAX_LAYERS; i++)
        hp->layer_kinds[i] = kinds[i % 4];
}

const struct sl_model_desc sl_model_jet_nemotron = {
    .id = "jet_nemotron",
    SL_MODEL_TABLES,
    SL_MODEL_ROPES(ropes),
    .plan = jet_nemotron_plan,
    .tiny = jet_nemotron_tiny,
};
