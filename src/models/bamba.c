/* SPDX-License-Identifier: MIT
 * Bamba: layers of Mamba 2 and layers of attention, half of whose heads' dimensions are rotated,
 * each with a gated MLP. GGUF files are read as those of Granite 4.
 */
#include "base/check.h"
#include "models/desc.h"
#include "models/tables.h"

static const struct sl_model_name names[] = {
    {.id = "bamba",
     .hf_architecture = "BambaForCausalLM",
     .hf_model_type = "bamba",
     .gguf_architecture = "granitehybrid",
     .has = SL_HAS_STATE_NORM},
};

/* clang-format off */
static const struct sl_hparam_desc hparams[] = {
    SL_HPARAMS_SIZES,
    SL_HPARAMS_LAYER_KV_HEADS,
    SL_HPARAMS_HEADS,
    {"attention.layer_norm_rms_epsilon", {"rms_norm_eps"}, SL_HP_FLOAT, SL_HP_AT(norm_eps),
     .def = 1e-5, .min = 1e-20, .max = 1},
    SL_HPARAMS_MAMBA2_LAYERS,
    {NULL, {"attn_layer_indices"}, SL_HP_LAYERS, SL_HP_AT(attn_layers), .def = SL_LAYER_ON},
    SL_HPARAM_ACT(SL_ACT_SILU),
    SL_HPARAM_TIED(false),
    {NULL, {"attention_bias"}, SL_HP_HAS, .has = SL_HAS_QKV_BIAS | SL_HAS_O_BIAS},
    {NULL, {"mlp_bias"}, SL_HP_HAS, .has = SL_HAS_MLP_BIAS},
};

static const struct sl_weight_desc weights[] = {
    {.slot = SL_SLOT_EMBED, .hf = "model.embed_tokens.weight", .gguf = "token_embd.weight",
     .rows = SL_DIM_V, .cols = SL_DIM_H},
    {.slot = SL_SLOT_FINAL_NORM, .hf = "model.final_layernorm.weight",
     .gguf = "output_norm.weight", .rows = SL_DIM_H},
    {.slot = SL_SLOT_HEAD, .hf = "lm_head.weight", .gguf = "output.weight", .rows = SL_DIM_V,
     .cols = SL_DIM_H, .shard = SL_SHARD_ROWS, .when = SL_HAS_HEAD},
    SL_WEIGHTS_ATTN_NORM,
    SL_WEIGHTS_SOME_GQA("model.layers.*.self_attn"),
    SL_WEIGHTS_MAMBA2("model.layers.*.mamba"),
    SL_W_LAYER(FFN_NORM, "pre_ff_layernorm.weight", "ffn_norm.weight", H, NONE, NONE)},
    SL_W_LAYER(GATE, "feed_forward.gate_proj.weight", "ffn_gate.weight", I, H, ROWS)},
    SL_W_LAYER(UP, "feed_forward.up_proj.weight", "ffn_up.weight", I, H, ROWS)},
    SL_W_LAYER(DOWN, "feed_forward.down_proj.weight", "ffn_down.weight", H, I, ROWS)},
    SL_W_LAYER(GATE_BIAS, "feed_forward.gate_proj.bias", "ffn_gate.bias", I, NONE, ROWS),
     .when = SL_HAS_MLP_BIAS},
    SL_W_LAYER(UP_BIAS, "feed_forward.up_proj.bias", "ffn_up.bias", I, NONE, ROWS),
     .when = SL_HAS_MLP_BIAS},
    SL_W_LAYER(DOWN_BIAS, "feed_forward.down_proj.bias", "ffn_down.bias", H, NONE, ROWS),
     .when = SL_HAS_MLP_BIAS},
};
/* clang-format on */

static const struct sl_rope_desc ropes[] = {{.hf_theta = "rope_theta",
                                             .gguf_theta = "rope.freq_base",
                                             .theta = 10000,
                                             .scaled = true,
                                             .partial = 0.5}};

static int bamba_plan(const struct sl_model_name *name, const struct sl_hparams *hp,
                      struct sl_layer_desc *layers, struct sl_error *err)
{
    int rc = 0;
    (void)name;
    for (int32_t i = 0; i < hp->n_layers && rc == 0; i++) {
        if (sl_plan_attends(hp, i, false))
            sl_plan_mixer(SL_MIX_GQA, &layers[i]);
        else
            rc = sl_plan_mamba2(hp, &layers[i], err);
    }
    return rc;
}

static void bamba_tiny(const struct sl_model_name *name, struct sl_hparams *hp)
{
    *hp = (struct sl_hparams){
        .hidden = 64,
        .intermediate = 160,
        .n_layers = 3,
        .n_heads = 4,
        .n_kv_heads = 2,
        .head_dim = 16,
        .n_vocab = 320,
        .context = 512,
        .norm_eps = 1e-5,
        .has = name->has | SL_HAS_HEAD | SL_HAS_CONV_BIAS,
        .ropes = {{.theta = 10000, .n_dims = 8}},
        .attn_layers = {SL_LAYER_OFF, SL_LAYER_OFF, SL_LAYER_ON},
        .state_taps = 4,
        .state_heads = 8,
        .state_groups = 2,
        .state_v_dim = 16,
        .state_k_dim = 24,
        .state_inner = 128,
        .state_expand = 2,
        .dt_max = SL_JSON_INFINITY,
    };
}

const struct sl_model_desc sl_model_bamba = {
    .id = "bamba",
    SL_MODEL_TABLES,
    SL_MODEL_ROPES(ropes),
    .gguf_interleaved = true,
    .plan = bamba_plan,
    .tiny = bamba_tiny,
};
