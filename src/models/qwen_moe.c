/* SPDX-License-Identifier: MIT
 * Qwen3-MoE: the attention of Qwen3, and experts in place of the MLP in all layers, or in those
 * that decoder_sparse_step and mlp_only_layers leave.
 */
#include "base/check.h"
#include "models/desc.h"
#include "models/tables.h"

static const struct sl_model_name names[] = {
    {.id = "qwen3moe",
     .hf_architecture = "Qwen3MoeForCausalLM",
     .hf_model_type = "qwen3_moe",
     .gguf_architecture = "qwen3moe",
     .has = SL_HAS_QK_NORM},
};

static const struct sl_hparam_desc hparams[] = {
    SL_HPARAMS_BLOCKS,
    SL_HPARAMS_EXPERTS,
    SL_HPARAM_ACT(SL_ACT_SILU),
    SL_HPARAM_TIED(false),
    {.hf = {"norm_topk_prob"},
     .type = SL_HP_BOOL,
     .offset = offsetof(struct sl_hparams, norm_top_experts)},
    {.hf = {"decoder_sparse_step"},
     .type = SL_HP_INT,
     .offset = offsetof(struct sl_hparams, expert_step),
     .def = 1,
     .min = 1,
     .max = SL_MAX_LAYERS},
    {.hf = {"mlp_only_layers"},
     .type = SL_HP_LAYERS,
     .offset = offsetof(struct sl_hparams, dense_layers)},
    SL_HPARAMS_WINDOW_SWITCH,
    {.hf = {"attention_bias"}, .type = SL_HP_HAS, .has = SL_HAS_QKV_BIAS | SL_HAS_O_BIAS},
};

/* clang-format off */
static const struct sl_weight_desc weights[] = {
    SL_WEIGHTS_EMBED_AND_HEAD,
    SL_WEIGHTS_ATTN_NORM,
    SL_WEIGHTS_GQA,
    SL_WEIGHTS_QKV_BIAS,
    SL_WEIGHTS_O_BIAS,
    SL_WEIGHTS_QK_NORM,
    SL_W_LAYER(FFN_NORM, "post_attention_layernorm.weight", "ffn_norm.weight", H, NONE, NONE)},
    SL_WEIGHTS_EXPERTS,
    SL_W_LAYER(GATE, "mlp.gate_proj.weight", "ffn_gate.weight", I, H, ROWS), .when = SL_HAS_DENSE},
    SL_W_LAYER(UP, "mlp.up_proj.weight", "ffn_up.weight", I, H, ROWS), .when = SL_HAS_DENSE},
    SL_W_LAYER(DOWN, "mlp.down_proj.weight", "ffn_down.weight", H, I, ROWS), .when = SL_HAS_DENSE},
};
/* clang-format on */

static void plan_experts(const struct sl_hparams *hp, struct sl_layer_desc *l)
{
    l->ffn = SL_FFN_EXPERTS;
    l->intermediate = hp->expert_intermediate;
    l->n_experts = hp->n_experts;
    l->top_experts = hp->top_experts;
    l->norm_top_experts = hp->norm_top_experts || hp->from_gguf; /* which has no key for it */
}

static int plan(const struct sl_model_name *name, const struct sl_hparams *hp,
                struct sl_layer_desc *layers, struct sl_error *err)
{
    (void)name;
    if (hp->top_experts > hp->n_experts)
        return sl_fail(
            err, SL_EFORMAT, "%s (%d) is more than %s (%d)",
            hp->from_gguf ? "GGUF: expert_used_count" : "config.json: num_experts_per_tok",
            hp->top_experts, hp->from_gguf ? "expert_count" : "num_experts", hp->n_experts);
    for (int32_t i = 0; i < hp->n_layers; i++) {
        const bool dense =
            hp->dense_layers[i] != 0 || (hp->expert_step > 1 && (i + 1) % hp->expert_step != 0);
        layers[i].window = hp->use_window ? hp->window : 0;
        layers[i].has &= ~(unsigned)(SL_HAS_DENSE | SL_HAS_EXPERTS);
        layers[i].has |= dense ? SL_HAS_DENSE : SL_HAS_EXPERTS;
        if (!dense)
            plan_experts(hp, &layers[i]);
    }
    return 0;
}

static void tiny(const struct sl_model_name *name, struct sl_hparams *hp)
{
    *hp = (struct sl_hparams){
        .hidden = 64,
        .intermediate = 160,
        .n_layers = 2,
        .n_heads = 4,
        .n_kv_heads = 2,
        .head_dim = 32,
        .n_vocab = 320,
        .context = 512,
        .norm_eps = 1e-6,
        .has = name->has,
        .ropes = {{.theta = 1000000}},
        .n_experts = 7,
        .top_experts = 3,
        .expert_intermediate = 96,
        .expert_step = 1,
        .norm_top_experts = true,
    };
}

const struct sl_model_desc sl_model_qwen_moe = {
    .id = "qwen_moe",
    .names = names,
    .hparams = hparams,
    .weights = weights,
    .ropes = sl_rope_one,
    .n_names = SL_COUNT(names),
    .n_hparams = SL_COUNT(hparams),
    .n_weights = SL_COUNT(weights),
    .n_ropes = SL_COUNT(sl_rope_one),
    .plan = plan,
    .tiny = tiny,
};
