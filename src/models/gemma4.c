/* SPDX-License-Identifier: MIT
 * Gemma 4 (text): windowed layers and full ones, whose heads differ in size and whose full kind
 * rotates a quarter of its pairs; scores are not scaled, values are normed without weights, and
 * norms stand on both sides of each sublayer. Larger models make values of full layers from what
 * their keys are made of. Smaller ones have embeddings for each layer, and their last layers read
 * the keys and values of earlier ones.
 */
#include "base/check.h"
#include "models/internal.h"
#include "models/tables.h"

#define HAS (SL_HAS_QK_NORM | SL_HAS_K | SL_HAS_V | SL_HAS_LAYER_SCALE | SL_HAS_DENSE)

static const struct sl_model_name names[] = {
    {.id = "gemma4",
     .hf_architecture = "Gemma4ForCausalLM",
     .hf_model_type = "gemma4_text",
     .gguf_architecture = "gemma4",
     .has = HAS,
     .head_dim = 256},
    {.id =
         "gemma4-text", /* of a model that also reads images and sounds, which this one does not */
     .hf_architecture = "Gemma4ForConditionalGeneration",
     .hf_model_type = "gemma4",
     .gguf_architecture = "gemma4",
     .has = HAS,
     .head_dim = 256,
     .hf_config = "text_config"},
};

/* clang-format off */
static const struct sl_hparam_desc hparams[] = {
    /* A config.json leaves out what is transformers' default, so that all defaults are here. */
    SL_HPARAMS_GEMMA_BY_LAYER(2304, 30, 9216),
    SL_HPARAMS_GEMMA4_HEADS,
    SL_HPARAMS_GEMMA_WINDOWS(131072, 262144),
    {NULL, {"attention_k_eq_v"}, SL_HP_BOOL, SL_HP_AT(k_is_v)},
    {"attention.shared_kv_layers", {"num_kv_shared_layers"}, SL_HP_INT, SL_HP_AT(n_shared_layers),
     .min = 0, .max = SL_MAX_LAYERS},
    {NULL, {"use_double_wide_mlp"}, SL_HP_BOOL, SL_HP_AT(wide_shared)},
    {"embedding_length_per_layer_input", {"hidden_size_per_layer_input"}, SL_HP_INT,
     SL_HP_AT(layer_width), .hf_def = 256, .min = 0, .max = SL_MAX_HIDDEN / SL_MAX_LAYERS},
    {NULL, {"vocab_size_per_layer_input"}, SL_HP_INT, SL_HP_AT(n_layer_vocab), .hf_def = 262144,
     .min = 1, .max = SL_MAX_VOCAB},
    {"final_logit_softcapping", {"final_logit_softcapping"}, SL_HP_FLOAT, SL_HP_AT(logit_softcap),
     .min = 0, .max = 1e6},
    {NULL, {"use_bidirectional_attention"}, SL_HP_CHOICE, .value = "vision"}, /* of images alone */
    {NULL, {"attention_bias"}, SL_HP_HAS, .has = SL_HAS_QKV_BIAS | SL_HAS_O_BIAS},
    {NULL, {"enable_moe_block"}, SL_HP_HAS, .has = SL_HAS_EXPERTS},
    {"expert_count", {"num_experts"}, SL_HP_INT, SL_HP_AT(n_experts), .min = 1,
     .max = SL_MAX_EXPERTS},
    {"expert_used_count", {"top_k_experts"}, SL_HP_INT, SL_HP_AT(top_experts), .min = 1,
     .max = SL_MAX_TOP_EXPERTS},
    {"expert_feed_forward_length", {"moe_intermediate_size"}, SL_HP_INT,
     SL_HP_AT(expert_intermediate), .min = 1, .max = 4 * SL_MAX_HIDDEN},
};

static const struct sl_weight_desc weights[] = {
    SL_WEIGHTS_EMBED_AND_HEAD,
    SL_WEIGHTS_LAYER_INPUTS,
    SL_WEIGHTS_SANDWICH,
    SL_W_LAYER(Q, "self_attn.q_proj.weight", "attn_q.weight", Q, H, HEADS)},
    SL_W_LAYER(K, "self_attn.k_proj.weight", "attn_k.weight", K, H, KV_HEADS), .when = SL_HAS_K},
    SL_W_LAYER(V, "self_attn.v_proj.weight", "attn_v.weight", VALUES, H, KV_HEADS),
     .when = SL_HAS_V},
    SL_W_LAYER(O, "self_attn.o_proj.weight", "attn_output.weight", H, ATT, ROWS)},
    SL_W_LAYER(Q_NORM, "self_attn.q_norm.weight", "attn_q_norm.weight", HD, NONE, NONE)},
    SL_W_LAYER(K_NORM, "self_attn.k_norm.weight", "attn_k_norm.weight", HD, NONE, NONE),
     .when = SL_HAS_K},
    SL_WEIGHTS_FFN_DENSE,
    /* what is one MLP in a layer without experts */
    SL_W_LAYER(SHARED_GATE, "mlp.gate_proj.weight", "ffn_gate.weight", S, H, ROWS),
     .when = SL_HAS_SHARED},
    SL_W_LAYER(SHARED_UP, "mlp.up_proj.weight", "ffn_up.weight", S, H, ROWS),
     .when = SL_HAS_SHARED},
    SL_W_LAYER(SHARED_DOWN, "mlp.down_proj.weight", "ffn_down.weight", H, S, ROWS),
     .when = SL_HAS_SHARED},
    SL_W_LAYER(SHARED_OUT_NORM, "post_feedforward_layernorm_1.weight", "post_ffw_norm_1.weight", H,
               NONE, NONE), .when = SL_HAS_BRANCHES},
    SL_W_LAYER(EXPERTS_NORM, "pre_feedforward_layernorm_2.weight", "pre_ffw_norm_2.weight", H,
               NONE, NONE), .when = SL_HAS_BRANCHES},
    SL_W_LAYER(EXPERTS_OUT_NORM, "post_feedforward_layernorm_2.weight", "post_ffw_norm_2.weight",
               H, NONE, NONE), .when = SL_HAS_BRANCHES},
    SL_W_LAYER(ROUTER_NORM, "router.scale", "ffn_gate_inp.scale", H, NONE, NONE),
     .when = SL_HAS_BRANCHES, .flags = SL_W_OVER_ROOT},
    SL_W_LAYER(ROUTER, "router.proj.weight", "ffn_gate_inp.weight", E, H, NONE),
     .when = SL_HAS_EXPERTS},
    SL_W_LAYER(EXPERT_SCALE, "router.per_expert_scale", "ffn_down_exps.scale", E, NONE, NONE),
     .when = SL_HAS_EXPERTS},
    SL_W_LAYER(EXPERTS_GATE, "experts.#.gate_proj.weight", "ffn_gate_exps.weight", I, H, ROWS),
     .hf_fused = "model.layers.*.experts.gate_up_proj",
     .gguf_fused = "blk.*.ffn_gate_up_exps.weight", .fused = {SL_DIM_I, SL_DIM_I}, .part = 0,
     .mats = SL_DIM_E, .when = SL_HAS_EXPERTS},
    SL_W_LAYER(EXPERTS_UP, "experts.#.up_proj.weight", "ffn_up_exps.weight", I, H, ROWS),
     .hf_fused = "model.layers.*.experts.gate_up_proj",
     .gguf_fused = "blk.*.ffn_gate_up_exps.weight", .fused = {SL_DIM_I, SL_DIM_I}, .part = 1,
     .mats = SL_DIM_E, .when = SL_HAS_EXPERTS},
    SL_W_LAYER(EXPERTS_DOWN, "experts.#.down_proj.weight", "ffn_down_exps.weight", H, I, ROWS),
     .hf_fused = "model.layers.*.experts.down_proj", .fused = {SL_DIM_H}, .part = 0,
     .mats = SL_DIM_E, .when = SL_HAS_EXPERTS},
    SL_W_LAYER(LAYER_SCALE, "layer_scalar", "layer_output_scale.weight", NONE, NONE, NONE),
     .when = SL_HAS_LAYER_SCALE},
    {.slot = SL_SLOT_ROPE_FREQS, .gguf = "rope_freqs.weight", .rows = SL_DIM_FULL_HD_HALF,
     .when = SL_HAS_ROPE_FREQS},
};
/* clang-format on */

enum { FULL, LOCAL }; /* sl_rope_gemma4 */

bool sl_gemma4_windowed(const struct sl_hparams *hp, int32_t layer)
{
    if (layer == hp->n_layers - 1)
        return false; /* whatever the list says, as in transformers */
    return hp->layer_types[layer] == SL_LAYER_BY_INDEX ? (layer + 1) % 6 != 0
                                                       : hp->layer_types[layer] == SL_LAYER_ON;
}

static void plan_full(const struct sl_hparams *hp, int32_t idx, struct sl_layer_desc *l)
{
    l->rope = FULL;
    l->head_dim = hp->full_head_dim != 0 ? hp->full_head_dim : hp->head_dim;
    l->v_is_k = hp->from_gguf ? (hp->layer_has[idx] & SL_HAS_V) == 0 : hp->k_is_v;
    if (hp->full_kv_heads != 0 && hp->k_is_v) /* else the key is not read, as in transformers */
        l->n_kv_heads = hp->full_kv_heads;
}

/* An MLP, or as one branch of two beside the experts. */
static void gemma4_plan_mlp(const struct sl_hparams *hp, int32_t width, struct sl_layer_desc *l)
{
    const unsigned branches = SL_HAS_EXPERTS | SL_HAS_SHARED | SL_HAS_BRANCHES;
    if ((hp->has & SL_HAS_EXPERTS) == 0) {
        l->has = (l->has & ~branches) | SL_HAS_DENSE;
        l->intermediate = width;
        return;
    }
    l->has = (l->has & ~(unsigned)SL_HAS_DENSE) | branches;
    l->shared_intermediate = width;
    l->route.renormalize = true;
}

static int gemma4_plan_layer(const struct sl_hparams *hp, int32_t idx, struct sl_layer_desc *layers,
                             struct sl_error *err)
{
    struct sl_layer_desc *l = &layers[idx];
    const bool shared = idx >= hp->n_layers - hp->n_shared_layers;
    l->norms = SL_NORM_IN | SL_NORM_OUT;
    l->norm_v = true;
    l->attn_scale = 1;
    l->rope = LOCAL;
    gemma4_plan_mlp(hp, hp->layer_intermediate[idx] * (hp->wide_shared && shared ? 2 : 1), l);
    l->window = sl_gemma4_windowed(hp, idx) ? hp->window : 0;
    if (!sl_gemma4_windowed(hp, idx))
        plan_full(hp, idx, l);
    if (hp->layer_head_dims[idx] != 0)
        l->head_dim = hp->layer_head_dims[idx];
    if (hp->layer_kv_heads[idx] != 0)
        l->n_kv_heads = hp->layer_kv_heads[idx];
    int rc = shared ? sl_plan_share_keys(hp, idx, layers, err) : 0;
    if (rc != 0)
        return rc;
    l->v_dim = l->head_dim;
    if (l->v_is_k)
        l->has &= ~(unsigned)SL_HAS_V;
    if (l->n_heads % l->n_kv_heads != 0)
        return sl_fail(err, SL_EFORMAT,
                       "the %d heads of layer %d are no multiple of its %d key "
                       "heads",
                       l->n_heads, idx, l->n_kv_heads);
    bool alike = l->head_dim % 2 == 0;
    for (int32_t i = 0; i < idx; i++)
        alike = alike && (layers[i].rope != l->rope || layers[i].head_dim == l->head_dim);
    return alike ? 0
                 : sl_fail(err, SL_EFORMAT,
                           "layer %d has heads of %d dimensions, must be even and as in other "
                           "layers of its kind",
                           idx, l->head_dim);
}

static int gemma4_plan(const struct sl_model_name *name, const struct sl_hparams *hp,
                       struct sl_layer_desc *layers, struct sl_error *err)
{
    (void)name;
    if ((hp->has & SL_HAS_QKV_BIAS) != 0)
        return sl_fail(err, SL_EUNSUPPORTED, "config.json: attention_bias true is not supported");
    if (hp->n_shared_layers >= hp->n_layers)
        return sl_fail(err, SL_EFORMAT, "%s is %d, must be less than the number of layers, %d",
                       hp->from_gguf ? "GGUF: attention.shared_kv_layers"
                                     : "config.json: num_kv_shared_layers",
                       hp->n_shared_layers, hp->n_layers);
    if (hp->layer_width > 0 && hp->n_layer_vocab < hp->n_vocab)
        return sl_fail(err, SL_EFORMAT,
                       "config.json: vocab_size_per_layer_input (%d) is less than vocab_size (%d)",
                       hp->n_layer_vocab, hp->n_vocab);
    const bool experts = (hp->has & SL_HAS_EXPERTS) != 0;
    if (experts && (hp->n_experts == 0 || hp->top_experts == 0 || hp->expert_intermediate == 0))
        return sl_fail(err, SL_EFORMAT, "%s is missing",
                       hp->from_gguf ? "GGUF: expert_count, expert_used_count or "
                                       "expert_feed_forward_length"
                                     : "config.json: num_experts, top_k_experts or "
                                       "moe_intermediate_size");
    int rc = experts ? sl_plan_experts(hp, SL_ROUTE_SOFTMAX, 0, layers, err) : 0;
    for (int32_t i = 0; i < hp->n_layers && rc == 0; i++)
        rc = gemma4_plan_layer(hp, i, layers, err);
    return rc;
}

/* Of the name for larger models with experts, so that both kinds are tried. */
static void gemma4_tiny(const struct sl_model_name *name, struct sl_hparams *hp)
{
    enum { N_LAYERS = 6 };
    *hp = (struct sl_hparams){
        .hidden = 64,
        .intermediate = 160,
        .n_layers = N_LAYERS,
        .n_heads = 4,
        .n_kv_heads = 2,
        .head_dim = 16,
        .full_head_dim = 32,
        .full_kv_heads = 1,
        .n_vocab = 320,
        .context = 512,
        .norm_eps = 1e-6,
        .has = name->has | SL_HAS_LAYER_INPUTS,
        .act = SL_ACT_GELU_TANH,
        .ropes = {[FULL] = {.theta = 1000000,
                            .scaling = SL_ROPE_PROPORTIONAL,
                            .factor = 1,
                            .turning = 0.25},
                  [LOCAL] = {.theta = 10000}},
        .window = 24,
        .k_is_v = true,
        .n_shared_layers = 2,
        .layer_width = 32,
        .n_layer_vocab = 320,
    };
    if (name->hf_config != NULL) {
        hp->has |= SL_HAS_EXPERTS;
        hp->n_experts = 7;
        hp->top_experts = 3;
        hp->expert_intermediate = 96;
    }
    for (int32_t i = 0; i < N_LAYERS; i++) {
        const bool full = i % 2 == 1;
        hp->layer_types[i] = full ? SL_LAYER_OFF : SL_LAYER_ON;
        hp->layer_kv_heads[i] = full ? hp->full_kv_heads : hp->n_kv_heads;
        hp->layer_intermediate[i] = hp->intermediate * (i < N_LAYERS - 2 ? 1 : 2);
        hp->layer_has[i] = full ? 0 : SL_HAS_V;
    }
}

const struct sl_model_desc sl_model_gemma4 = {
    .id = "gemma4",
    SL_MODEL_TABLES,
    SL_MODEL_ROPES(sl_rope_gemma4),
    .scaled_embedding = true,
    .plan = gemma4_plan,
    .tiny = gemma4_tiny,
};
