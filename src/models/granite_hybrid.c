/* SPDX-License-Identifier: MIT
 * Granite 4: layers of Mamba 2 and layers of attention, which may have no positions, with the
 * multipliers of Granite. Every layer has the MLP called shared, alone or beside experts. Models
 * of attention alone have these names too.
 *
 * GGUF files of Bamba (bamba.c) say they are of this architecture.
 */
#include "base/check.h"
#include "models/desc.h"
#include "models/tables.h"

static const struct sl_model_name names[] = {
    {.id = "granitemoehybrid",
     .hf_architecture = "GraniteMoeHybridForCausalLM",
     .hf_model_type = "granitemoehybrid",
     .gguf_architecture = "granitehybrid",
     .has = SL_HAS_STATE_NORM},
};

/* clang-format off */
static const struct sl_hparam_desc hparams[] = {
    SL_HPARAMS_SIZES,
    SL_HPARAMS_LAYER_KV_HEADS,
    SL_HPARAMS_HEADS,
    {"attention.layer_norm_rms_epsilon", {"rms_norm_eps"}, SL_HP_FLOAT, SL_HP_AT(norm_eps),
     .def = 1e-6, .min = 1e-20, .max = 1},
    SL_HPARAMS_MAMBA2_LAYERS,
    {NULL, {"layer_types", "layers_block_type"}, SL_HP_LAYER_TYPES, SL_HP_AT(attn_layers),
     .words = {"linear_attention", "full_attention"}},
    {NULL, {"position_embedding_type"}, SL_HP_EITHER, SL_HP_AT(use_rope),
     .words = {"nope", "rope"}},
    {"rope.scaling.finetuned", {NULL}, SL_HP_BOOL, SL_HP_AT(use_rope), .def = true},
    {"expert_count", {"num_local_experts"}, SL_HP_INT, SL_HP_AT(n_experts), .hf_def = 8, .min = 0,
     .max = SL_MAX_EXPERTS},
    {"expert_used_count", {"num_experts_per_tok"}, SL_HP_INT, SL_HP_AT(top_experts), .hf_def = 2,
     .min = 0, .max = SL_MAX_TOP_EXPERTS},
    {"expert_shared_feed_forward_length", {"shared_intermediate_size"}, SL_HP_INT,
     SL_HP_AT(shared_intermediate), .hf_def = 1024, .min = 1, .max = 4 * SL_MAX_HIDDEN},
    SL_HPARAMS_GRANITE,
    SL_HPARAM_ACT(SL_ACT_SILU),
    SL_HPARAM_TIED(false),
    {NULL, {"attention_bias"}, SL_HP_HAS, .has = SL_HAS_QKV_BIAS | SL_HAS_O_BIAS},
};

/* A matrix of its own in a GGUF, the rows of part idx of a tensor in safetensors. */
#define PART(s, hf_name, gguf_name, d, idx)                                                       \
    {.slot = SL_SLOT_##s, .gguf = "blk.*." gguf_name, .hf_fused = "model.layers.*." hf_name,      \
     .fused = {SL_DIM_##d, SL_DIM_##d}, .part = idx, .rows = SL_DIM_##d, .cols = SL_DIM_H,        \
     .shard = SL_SHARD_ROWS

static const struct sl_weight_desc weights[] = {
    SL_WEIGHTS_EMBED_AND_HEAD,
    SL_WEIGHTS_ATTN_NORM,
    SL_WEIGHTS_SOME_GQA("model.layers.*.self_attn"),
    SL_WEIGHTS_MAMBA2("model.layers.*.mamba"),
    SL_WEIGHTS_FFN_NORM,
    SL_W_LAYER(ROUTER, "block_sparse_moe.router.layer.weight", "ffn_gate_inp.weight", E, H, NONE),
     .when = SL_HAS_EXPERTS},
    PART(EXPERTS_GATE, "block_sparse_moe.input_linear.weight", "ffn_gate_exps.weight", I, 0),
     .mats = SL_DIM_E, .when = SL_HAS_EXPERTS},
    PART(EXPERTS_UP, "block_sparse_moe.input_linear.weight", "ffn_up_exps.weight", I, 1),
     .mats = SL_DIM_E, .when = SL_HAS_EXPERTS},
    SL_W_LAYER(EXPERTS_DOWN, "block_sparse_moe.output_linear.weight", "ffn_down_exps.weight", H, I,
               ROWS), .mats = SL_DIM_E, .when = SL_HAS_EXPERTS},
    PART(SHARED_GATE, "shared_mlp.input_linear.weight", "ffn_gate_shexp.weight", S, 0),
     .when = SL_HAS_SHARED},
    PART(SHARED_UP, "shared_mlp.input_linear.weight", "ffn_up_shexp.weight", S, 1),
     .when = SL_HAS_SHARED},
    SL_W_LAYER(SHARED_DOWN, "shared_mlp.output_linear.weight", "ffn_down_shexp.weight", H, S, ROWS),
     .when = SL_HAS_SHARED},
    PART(GATE, "shared_mlp.input_linear.weight", "ffn_gate.weight", I, 0), .when = SL_HAS_DENSE},
    PART(UP, "shared_mlp.input_linear.weight", "ffn_up.weight", I, 1), .when = SL_HAS_DENSE},
    SL_W_LAYER(DOWN, "shared_mlp.output_linear.weight", "ffn_down.weight", H, I, ROWS),
     .when = SL_HAS_DENSE},
};
/* clang-format on */

/* GGUF files of Bamba rotate a part of a head. */
static const struct sl_rope_desc ropes[] = {{.hf_theta = "rope_theta",
                                             .gguf_theta = "rope.freq_base",
                                             .theta = 10000,
                                             .scaled = true,
                                             .partial = 1}};

static int granite_hybrid_plan_mlp(const struct sl_hparams *hp, struct sl_layer_desc *layers,
                                   struct sl_error *err)
{
    if (hp->n_experts > 0 && hp->top_experts == 0)
        return sl_fail(err, SL_EFORMAT,
                       "config.json: num_experts_per_tok is 0, there are %d experts",
                       hp->n_experts);
    if (hp->n_experts > 0)
        return sl_plan_experts(hp, SL_ROUTE_SOFTMAX, 0, layers, err);
    for (int32_t i = 0; i < hp->n_layers; i++) {
        layers[i].has =
            (layers[i].has & ~(unsigned)(SL_HAS_EXPERTS | SL_HAS_SHARED)) | SL_HAS_DENSE;
        if (hp->shared_intermediate > 0)
            layers[i].intermediate = hp->shared_intermediate;
    }
    return 0;
}

static int granite_hybrid_plan(const struct sl_model_name *name, const struct sl_hparams *hp,
                               struct sl_layer_desc *layers, struct sl_error *err)
{
    (void)name;
    int rc = granite_hybrid_plan_mlp(hp, layers, err);
    for (int32_t i = 0; i < hp->n_layers && rc == 0; i++) {
        struct sl_layer_desc *l = &layers[i];
        l->route.renormalize = true;
        l->rope = hp->use_rope ? 0 : -1;
        if (sl_plan_attends(hp, i, false))
            sl_plan_mixer(SL_MIX_GQA, l);
        else
            rc = sl_plan_mamba2(hp, l, err);
    }
    return rc;
}

static void granite_hybrid_tiny(const struct sl_model_name *name, struct sl_hparams *hp)
{
    *hp = (struct sl_hparams){
        .hidden = 64,
        .intermediate = 96,
        .n_layers = 3,
        .n_heads = 4,
        .n_kv_heads = 2,
        .head_dim = 16,
        .n_vocab = 320,
        .context = 512,
        .norm_eps = 1e-5,
        .has = name->has | SL_HAS_CONV_BIAS,
        .ropes = {{.theta = 10000}},
        .attn_layers = {SL_LAYER_OFF, SL_LAYER_ON, SL_LAYER_OFF},
        .n_experts = 7,
        .top_experts = 3,
        .shared_intermediate = 128,
        .embed_scale = 12,
        .residual_scale = 0.22,
        .attn_scale = 0.125,
        .logit_divisor = 8,
        .state_taps = 4,
        .state_heads = 8,
        .state_groups = 1,
        .state_v_dim = 16,
        .state_k_dim = 24,
        .state_inner = 128,
        .state_expand = 2,
        .dt_max = SL_JSON_INFINITY,
    };
}

const struct sl_model_desc sl_model_granite_hybrid = {
    .id = "granite_hybrid",
    SL_MODEL_TABLES,
    SL_MODEL_ROPES(ropes),
    .gguf_interleaved = true,
    .plan = granite_hybrid_plan,
    .tiny = granite_hybrid_tiny,
};
