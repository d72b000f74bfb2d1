/* SPDX-License-Identifier: MIT
 * Hunyuan v1, dense: as Llama, with q and k normed by head behind the rotation.
 *
 * config.json calls a fixed change of theta "dynamic" (alpha); GGUF files hold the changed theta.
 */
#include "base/check.h"
#include "models/desc.h"
#include "models/tables.h"

static const struct sl_model_name names[] = {
    {.id = "hunyuan_v1_dense",
     .hf_architecture = "HunYuanDenseV1ForCausalLM",
     .hf_model_type = "hunyuan_v1_dense",
     .gguf_architecture = "hunyuan-dense",
     .has = SL_HAS_QK_NORM},
};

/* clang-format off */
static const struct sl_hparam_desc hparams[] = {
    SL_HPARAMS_TRANSFORMER,
    SL_HPARAM_ACT(SL_ACT_SILU),
    SL_HPARAM_TIED(false),
    {NULL, {"attention_bias"}, SL_HP_HAS, .has = SL_HAS_QKV_BIAS | SL_HAS_O_BIAS},
};

static const struct sl_weight_desc weights[] = {
    SL_WEIGHTS_EMBED_AND_HEAD,
    SL_WEIGHTS_HUNYUAN_ATTENTION,
    SL_WEIGHTS_FFN_GATED,
};
/* clang-format on */

static int hunyuan_plan(const struct sl_model_name *name, const struct sl_hparams *hp,
                        struct sl_layer_desc *layers, struct sl_error *err)
{
    (void)name;
    (void)err;
    for (int32_t i = 0; i < hp->n_layers; i++)
        layers[i].qk_norm_after = true;
    return 0;
}

static void hunyuan_tiny(const struct sl_model_name *name, struct sl_hparams *hp)
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
        .norm_eps = 1e-5,
        .has = name->has | SL_HAS_HEAD,
        .ropes = {{.theta = 10000}},
    };
}

const struct sl_model_desc sl_model_hunyuan = {
    .id = "hunyuan",
    SL_MODEL_TABLES,
    SL_MODEL_ROPES(sl_rope_one),
    .plan = hunyuan_plan,
    .tiny = hunyuan_tiny,
};
