/* SPDX-License-Identifier: MIT
 * DBRX: norms with a mean and without biases, q, k and v in one tensor and kept within a limit,
 * experts in tensors that hold one below the other.
 *
 * config.json has an object each for attention and MLP, in which theta is too.
 */
#include "base/check.h"
#include "models/desc.h"
#include "models/tables.h"

static const struct sl_model_name names[] = {
    {.id = "dbrx",
     .hf_architecture = "DbrxForCausalLM",
     .hf_model_type = "dbrx",
     .gguf_architecture = "dbrx"},
};

/* clang-format off */
static const struct sl_hparam_desc hparams[] = {
    {"embedding_length", {"d_model", "hidden_size"}, SL_HP_INT, SL_HP_AT(hidden),
     .required = true, .min = 1, .max = SL_MAX_HIDDEN},
    {"feed_forward_length", {"ffn_config.ffn_hidden_size"}, SL_HP_INT, SL_HP_AT(intermediate),
     .required = true, .min = 1, .max = 4 * SL_MAX_HIDDEN},
    {"block_count", {"n_layers", "num_hidden_layers"}, SL_HP_INT, SL_HP_AT(n_layers),
     .required = true, .min = 1, .max = SL_MAX_LAYERS},
    {"attention.head_count", {"n_heads", "num_attention_heads"}, SL_HP_INT, SL_HP_AT(n_heads),
     .required = true, .min = 1, .max = SL_MAX_HEADS},
    {"attention.head_count_kv", {"attn_config.kv_n_heads"}, SL_HP_INT, SL_HP_AT(n_kv_heads),
     .hf_def = 1, .min = 1, .max = SL_MAX_HEADS},
    {"context_length", {"max_seq_len", "max_position_embeddings"}, SL_HP_INT, SL_HP_AT(context),
     .required = true, .min = 1, .max = SL_MAX_CONTEXT},
    {NULL, {"vocab_size"}, SL_HP_INT, SL_HP_AT(n_vocab), .required = true, .min = 1,
     .max = SL_MAX_VOCAB},
    {"attention.layer_norm_epsilon", {NULL}, SL_HP_FLOAT, SL_HP_AT(norm_eps), .def = 1e-5,
     .min = 1e-20, .max = 1},
    {"attention.clamp_kqv", {"attn_config.clip_qkv"}, SL_HP_FLOAT, SL_HP_AT(clip_qkv), .min = 0,
     .max = 1e6},
    {"expert_count", {"ffn_config.moe_num_experts"}, SL_HP_INT, SL_HP_AT(n_experts),
     .required = true, .min = 1, .max = SL_MAX_EXPERTS},
    {"expert_used_count", {"ffn_config.moe_top_k"}, SL_HP_INT, SL_HP_AT(top_experts),
     .required = true, .min = 1, .max = SL_MAX_TOP_EXPERTS},
    {NULL, {"ffn_config.moe_normalize_expert_weights"}, SL_HP_FLOAT, SL_HP_AT(expert_norm),
     .hf_def = 1, .min = 1, .max = 1},
    {NULL, {"ffn_config.ffn_act_fn.name"}, SL_HP_ACT, SL_HP_AT(act), .def = SL_ACT_SILU},
    SL_HPARAM_TIED(false),
};

#define DBRX_QKV(s, r, how, idx)                                                                   \
    {.slot = SL_SLOT_##s, .hf_fused = "transformer.blocks.*.norm_attn_norm.attn.Wqkv.weight",      \
     .gguf_fused = "blk.*.attn_qkv.weight", .rows = SL_DIM_##r, .cols = SL_DIM_H,                  \
     .shard = SL_SHARD_##how, .part = idx, .fused = {SL_DIM_Q, SL_DIM_K, SL_DIM_VALUES}}
#define DBRX(s, hf_name, gguf_name, r, c, how)                                                     \
    {.slot = SL_SLOT_##s, .hf = "transformer.blocks.*." hf_name ".weight",                         \
     .gguf = "blk.*." gguf_name ".weight", .rows = SL_DIM_##r, .cols = SL_DIM_##c,                 \
     .shard = SL_SHARD_##how}
#define DBRX_EXPERTS(s, hf_name, gguf_name)                                                        \
    {.slot = SL_SLOT_EXPERTS_##s, .hf = "transformer.blocks.*.ffn.experts.mlp." hf_name,           \
     .gguf = "blk.*." gguf_name ".weight", .rows = SL_DIM_I, .cols = SL_DIM_H, .mats = SL_DIM_E,   \
     .shard = SL_SHARD_ROWS, .when = SL_HAS_EXPERTS}

static const struct sl_weight_desc weights[] = {
    {.slot = SL_SLOT_EMBED, .hf = "transformer.wte.weight", .gguf = "token_embd.weight",
     .rows = SL_DIM_V, .cols = SL_DIM_H},
    {.slot = SL_SLOT_FINAL_NORM, .hf = "transformer.norm_f.weight", .gguf = "output_norm.weight",
     .rows = SL_DIM_H},
    {.slot = SL_SLOT_HEAD, .hf = "lm_head.weight", .gguf = "output.weight", .rows = SL_DIM_V,
     .cols = SL_DIM_H, .shard = SL_SHARD_ROWS, .when = SL_HAS_HEAD},
    DBRX(ATTN_NORM, "norm_attn_norm.norm_1", "attn_norm", H, NONE, NONE),
    DBRX_QKV(Q, Q, HEADS, 0),
    DBRX_QKV(K, K, KV_HEADS, 1),
    DBRX_QKV(V, VALUES, KV_HEADS, 2),
    DBRX(O, "norm_attn_norm.attn.out_proj", "attn_output", H, ATT, ROWS),
    DBRX(FFN_NORM, "norm_attn_norm.norm_2", "attn_output_norm", H, NONE, NONE),
    DBRX(ROUTER, "ffn.router.layer", "ffn_gate_inp", E, H, NONE),
    DBRX_EXPERTS(GATE, "w1", "ffn_gate_exps"),
    DBRX_EXPERTS(UP, "v1", "ffn_up_exps"),
    {.slot = SL_SLOT_EXPERTS_DOWN, .hf_fused = "transformer.blocks.*.ffn.experts.mlp.w2",
     .fused = {SL_DIM_H}, .gguf = "blk.*.ffn_down_exps.weight", .rows = SL_DIM_H, .cols = SL_DIM_I,
     .mats = SL_DIM_E, .shard = SL_SHARD_ROWS, .when = SL_HAS_EXPERTS, .flags = SL_W_TRANSPOSED},
};
/* clang-format on */

static const struct sl_rope_desc ropes[] = {
    {.hf_theta = "attn_config.rope_theta",
     .gguf_theta = "rope.freq_base",
     .theta = 10000,
     .scaled = true},
};

static int dbrx_plan(const struct sl_model_name *name, const struct sl_hparams *hp,
                     struct sl_layer_desc *layers, struct sl_error *err)
{
    (void)name;
    int rc = sl_plan_experts(hp, SL_ROUTE_SOFTMAX, 0, layers, err);
    for (int32_t i = 0; i < hp->n_layers && rc == 0; i++) {
        layers[i].norm = SL_NORM_LAYER;
        layers[i].clip = (float)hp->clip_qkv;
        layers[i].route.renormalize = hp->from_gguf || hp->expert_norm != 0;
    }
    return rc;
}

static void dbrx_tiny(const struct sl_model_name *name, struct sl_hparams *hp)
{
    *hp = (struct sl_hparams){
        .hidden = 64,
        .intermediate = 96,
        .n_layers = 2,
        .n_heads = 4,
        .n_kv_heads = 2,
        .head_dim = 16,
        .n_vocab = 320,
        .context = 512,
        .norm_eps = 1e-5,
        .has = name->has | SL_HAS_HEAD,
        .ropes = {{.theta = 500000}},
        .n_experts = 7,
        .top_experts = 3,
        .expert_norm = 1,
        .clip_qkv = 1,
    };
}

const struct sl_model_desc sl_model_dbrx = {
    .id = "dbrx",
    SL_MODEL_TABLES,
    SL_MODEL_ROPES(ropes),
    .plan = dbrx_plan,
    .tiny = dbrx_tiny,
};
