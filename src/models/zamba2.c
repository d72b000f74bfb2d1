/* SPDX-License-Identifier: MIT
 * Zamba 2: layers of Mamba 2. In front of some of them stands one of a few blocks of attention and
 * an MLP, which take turns; each use of a block has thin matrices of its own (shared_block.c). A
 * block's tensors are in the file by the name of the first layer that has it.
 */
#include "base/check.h"
#include "models/desc.h"
#include "models/tables.h"

#include <math.h>

static const struct sl_model_name names[] = {
    {.id = "zamba2",
     .hf_architecture = "Zamba2ForCausalLM",
     .hf_model_type = "zamba2",
     .has = SL_HAS_STATE_NORM | SL_HAS_CONV_BIAS},
};

/* clang-format off */
static const struct sl_hparam_desc hparams[] = {
    {NULL, {"hidden_size"}, SL_HP_INT, SL_HP_AT(hidden), .required = true, .min = 1,
     .max = SL_MAX_HIDDEN},
    {NULL, {"intermediate_size"}, SL_HP_INT, SL_HP_AT(intermediate), .min = 1,
     .max = 4 * SL_MAX_HIDDEN},
    {NULL, {"num_hidden_layers"}, SL_HP_INT, SL_HP_AT(n_layers), .required = true, .min = 1,
     .max = SL_MAX_LAYERS},
    {NULL, {"num_attention_heads"}, SL_HP_INT, SL_HP_AT(n_heads), .required = true, .min = 1,
     .max = SL_MAX_HEADS},
    {NULL, {"num_key_value_heads"}, SL_HP_INT, SL_HP_AT(n_kv_heads), .min = 1,
     .max = SL_MAX_HEADS},
    {NULL, {"vocab_size"}, SL_HP_INT, SL_HP_AT(n_vocab), .required = true, .min = 1,
     .max = SL_MAX_VOCAB},
    {NULL, {"max_position_embeddings"}, SL_HP_INT, SL_HP_AT(context), .def = 4096, .min = 1,
     .max = SL_MAX_CONTEXT},
    {NULL, {"rms_norm_eps"}, SL_HP_FLOAT, SL_HP_AT(norm_eps), .def = 1e-5, .min = 1e-20, .max = 1},
    SL_HPARAM_ACT(SL_ACT_GELU_ERF),
    /* else transformers ties no blocks either, but has a copy in each layer */
    SL_HPARAM_ONLY("tie_word_embeddings", 1),
    SL_HPARAM_ONLY("add_bias_linear", 0),
    {NULL, {"layers_block_type", "layer_types"}, SL_HP_LAYER_TYPES, SL_HP_AT(attn_layers),
     .words = {"linear_attention", "hybrid"}},
    {NULL, {"num_mem_blocks"}, SL_HP_INT, SL_HP_AT(n_shared_blocks), .def = 1, .min = 1,
     .max = SL_MAX_LAYERS},
    {NULL, {"use_shared_attention_adapter"}, SL_HP_HAS, .has = SL_HAS_USE_ADAPTERS},
    {NULL, {"adapter_rank"}, SL_HP_INT, SL_HP_AT(adapter_rank), .def = 128, .min = 1,
     .max = SL_MAX_HIDDEN},
    {NULL, {"use_mem_rope"}, SL_HP_BOOL, SL_HP_AT(use_rope)},
    SL_HPARAMS_MAMBA2("mamba_d_conv", "mamba_d_state", "mamba_ngroups", "n_mamba_heads", NULL, 1),
    {NULL, {"mamba_expand"}, SL_HP_INT, SL_HP_AT(state_expand), .def = 2, .min = 1, .max = 64},
};

/* Layers with a block are those with SL_HAS_ATTN, others those with SL_HAS_STATE. */
#define BLOCK(s, name, r, c)                                                                       \
    {.slot = SL_SLOT_BLOCK_##s, .hf = "model.layers.*.shared_transformer." name ".weight",         \
     .rows = SL_DIM_##r, .cols = SL_DIM_##c, .when = SL_HAS_ATTN, .flags = SL_W_TIED}
#define GATE_UP(s, name, c, idx)                                                                   \
    {.slot = SL_SLOT_##s,                                                                          \
     .hf_fused = "model.layers.*.shared_transformer.feed_forward." name ".weight",                 \
     .fused = {SL_DIM_I, SL_DIM_I}, .part = idx, .rows = SL_DIM_I, .cols = SL_DIM_##c,             \
     .when = SL_HAS_ATTN
#define QKV_USE(s, name, r)                                                                        \
    {.slot = SL_SLOT_USE_##s##_DOWN, .hf = "model.layers.*.shared_transformer.self_attn.linear_"   \
     name "_adapter_list.#.0.weight", .rows = SL_DIM_ADAPTER, .cols = SL_DIM_2H,                   \
     .when = SL_HAS_ATTN | SL_HAS_USE_ADAPTERS, .flags = SL_W_OF_USE},                             \
    {.slot = SL_SLOT_USE_##s##_UP, .hf = "model.layers.*.shared_transformer.self_attn.linear_"     \
     name "_adapter_list.#.1.weight", .rows = SL_DIM_##r, .cols = SL_DIM_ADAPTER,                  \
     .when = SL_HAS_ATTN | SL_HAS_USE_ADAPTERS, .flags = SL_W_OF_USE}

static const struct sl_weight_desc weights[] = {
    {.slot = SL_SLOT_EMBED, .hf = "model.embed_tokens.weight", .rows = SL_DIM_V, .cols = SL_DIM_H},
    {.slot = SL_SLOT_FINAL_NORM, .hf = "model.final_layernorm.weight", .rows = SL_DIM_H},
    {.slot = SL_SLOT_HEAD, .hf = "lm_head.weight", .rows = SL_DIM_V, .cols = SL_DIM_H,
     .when = SL_HAS_HEAD},
    {.slot = SL_SLOT_ATTN_NORM, .hf = "model.layers.*.input_layernorm.weight", .rows = SL_DIM_H,
     .when = SL_HAS_STATE},
    {.slot = SL_SLOT_ATTN_NORM, .hf = "model.layers.*.mamba_decoder.input_layernorm.weight",
     .rows = SL_DIM_H, .when = SL_HAS_ATTN},
    SL_WEIGHTS_MAMBA2_OF("model.layers.*.mamba", SL_HAS_STATE),
    SL_WEIGHTS_MAMBA2_OF("model.layers.*.mamba_decoder.mamba", SL_HAS_ATTN),
    BLOCK(NORM, "input_layernorm", 2H, NONE),
    BLOCK(Q, "self_attn.q_proj", Q, 2H),
    BLOCK(K, "self_attn.k_proj", K, 2H),
    BLOCK(V, "self_attn.v_proj", VALUES, 2H),
    BLOCK(O, "self_attn.o_proj", H, Q),
    {.slot = SL_SLOT_FFN_NORM, .hf = "model.layers.*.shared_transformer.pre_ff_layernorm.weight",
     .rows = SL_DIM_H, .when = SL_HAS_ATTN, .flags = SL_W_TIED},
    GATE_UP(BLOCK_GATE, "gate_up_proj", H, 0), .flags = SL_W_TIED},
    GATE_UP(BLOCK_UP, "gate_up_proj", H, 1), .flags = SL_W_TIED},
    BLOCK(DOWN, "feed_forward.down_proj", H, I),
    {.slot = SL_SLOT_BLOCK_END, .hf = "model.layers.*.linear.weight", .rows = SL_DIM_H,
     .cols = SL_DIM_H, .when = SL_HAS_ATTN},
    QKV_USE(Q, "q", Q),
    QKV_USE(K, "k", K),
    QKV_USE(V, "v", VALUES),
    {.slot = SL_SLOT_USE_MLP_DOWN,
     .hf = "model.layers.*.shared_transformer.feed_forward.gate_up_proj_adapter_list.#.0.weight",
     .rows = SL_DIM_ADAPTER, .cols = SL_DIM_H, .when = SL_HAS_ATTN, .flags = SL_W_OF_USE},
    GATE_UP(USE_GATE_UP, "gate_up_proj_adapter_list.#.1", ADAPTER, 0), .flags = SL_W_OF_USE},
    GATE_UP(USE_UP_UP, "gate_up_proj_adapter_list.#.1", ADAPTER, 1), .flags = SL_W_OF_USE},
};
/* clang-format on */

static const struct sl_rope_desc ropes[] = {
    {.hf_theta = "rope_theta", .gguf_theta = "rope.freq_base", .theta = 10000, .scaled = true}};

/* The block of a layer, which is use `use` of all. */
static void plan_block(const struct sl_hparams *hp, int32_t use, int32_t tied_to,
                       struct sl_layer_desc *l)
{
    l->mixer = SL_MIX_BLOCK;
    l->has = (l->has & ~(unsigned)SL_HAS_STATE) | SL_HAS_ATTN;
    l->has |= hp->has & SL_HAS_USE_ADAPTERS;
    l->rope = hp->use_rope ? 0 : -1;
    l->use = use;
    l->tied_to = tied_to;
}

static int zamba2_plan(const struct sl_model_name *name, const struct sl_hparams *hp,
                       struct sl_layer_desc *layers, struct sl_error *err)
{
    const int32_t head_dim = 2 * hp->hidden / hp->n_heads;
    int32_t n_uses = 0;
    int32_t users[SL_MAX_LAYERS];
    (void)name;
    if (hp->attn_layers[0] == SL_LAYER_BY_INDEX)
        return sl_fail(err, SL_EFORMAT, "config.json: layers_block_type is missing");
    if (head_dim % 2 != 0 || head_dim > SL_MAX_HEAD_DIM || head_dim * hp->n_heads != 2 * hp->hidden)
        return sl_fail(err, SL_EFORMAT,
                       "config.json: twice hidden_size (%d) divided by num_attention_heads (%d) "
                       "must be even, at most %d",
                       hp->hidden, hp->n_heads, SL_MAX_HEAD_DIM);
    for (int32_t i = 0; i < hp->n_layers; i++) {
        struct sl_layer_desc *l = &layers[i];
        l->ffn = SL_FFN_NONE;
        l->head_dim = l->v_dim = head_dim;
        l->attn_scale = 1 / sqrtf((float)head_dim / 2);
        if (hp->intermediate == 0)
            l->intermediate = 4 * hp->hidden;
        int rc = sl_plan_mamba2(hp, l, err);
        if (rc != 0)
            return rc;
        l->state.norm_eps = 1e-5f; /* config.json's is not for this norm */
        if (hp->attn_layers[i] != SL_LAYER_ON)
            continue;
        users[n_uses] = i;
        plan_block(hp, n_uses, users[n_uses % hp->n_shared_blocks], l);
        n_uses++;
    }
    if (n_uses == 0)
        return sl_fail(err, SL_EUNSUPPORTED,
                       "config.json: layers_block_type has no layer that is \"hybrid\": a model of "
                       "Mamba 2 alone is not supported by this family");
    return 0;
}

static void zamba2_tiny(const struct sl_model_name *name, struct sl_hparams *hp)
{
    *hp = (struct sl_hparams){
        .hidden = 64,
        .intermediate = 160,
        .n_layers = 6,
        .n_heads = 4,
        .n_kv_heads = 4,
        .head_dim = 16,
        .n_vocab = 320,
        .context = 512,
        .norm_eps = 1e-5,
        .act = SL_ACT_GELU_ERF,
        .has = name->has | SL_HAS_USE_ADAPTERS,
        .ropes = {{.theta = 10000}},
        .attn_layers = {SL_LAYER_OFF, SL_LAYER_ON, SL_LAYER_ON, SL_LAYER_OFF, SL_LAYER_ON,
                        SL_LAYER_OFF},
        .n_shared_blocks = 2,
        .adapter_rank = 24,
        .use_rope = true,
        .state_taps = 4,
        .state_heads = 8,
        .state_groups = 2,
        .state_k_dim = 24,
        .state_expand = 2,
    };
}

const struct sl_model_desc sl_model_zamba2 = {
    .id = "zamba2",
    SL_MODEL_TABLES,
    SL_MODEL_ROPES(ropes),
    .plan = zamba2_plan,
    .tiny = zamba2_tiny,
};
