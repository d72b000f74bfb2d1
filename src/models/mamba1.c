/* SPDX-License-Identifier: MIT
 * Mamba and Falcon-Mamba: layers of the first state space model alone, which has a state for each
 * channel and makes dt, b and c of what left the convolution. Falcon-Mamba norms these, without
 * weights.
 *
 * GGUF files hold A where safetensors hold its logarithm.
 */
#include "base/check.h"
#include "models/desc.h"
#include "models/tables.h"

#include <math.h>

static const struct sl_model_name names[] = {
    {.id = "mamba",
     .hf_architecture = "MambaForCausalLM",
     .hf_model_type = "mamba",
     .gguf_architecture = "mamba",
     .has = SL_HAS_STATE},
    {.id = "falcon_mamba",
     .hf_architecture = "FalconMambaForCausalLM",
     .hf_model_type = "falcon_mamba",
     .gguf_architecture = "mamba",
     .has = SL_HAS_STATE},
};

/* clang-format off */
static const struct sl_hparam_desc hparams[] = {
    SL_HPARAMS_BACKBONE,
    SL_HPARAMS_MAMBA1("conv_kernel", "state_size", "time_step_rank", "expand"),
    {"ssm.dt_b_c_rms", {NULL}, SL_HP_BOOL, SL_HP_AT(norm_x)},
    {NULL, {"mixer_rms_eps"}, SL_HP_FLOAT, SL_HP_AT(norm_x_eps), .def = 1e-6, .min = 1e-20,
     .max = 1},
    {NULL, {"hidden_act"}, SL_HP_CHOICE, .value = "silu"},
    {NULL, {"use_bias"}, SL_HP_HAS, .has = SL_HAS_STATE_BIAS},
    {NULL, {"use_conv_bias"}, SL_HP_HAS, .has = SL_HAS_CONV_BIAS, .def = true},
    SL_HPARAM_TIED(true),
};

static const struct sl_weight_desc weights[] = {
    SL_WEIGHTS_BACKBONE,
    SL_WEIGHTS_MAMBA1("backbone.layers.*.mixer"),
};
/* clang-format on */

int sl_plan_mamba1(const struct sl_hparams *hp, struct sl_layer_desc *l, struct sl_error *err)
{
    const int64_t inner = hp->from_gguf ? hp->state_inner : (int64_t)hp->state_expand * hp->hidden;
    if (inner > SL_MAX_HIDDEN)
        return sl_fail(err, SL_EFORMAT, "config.json: %lld channels of Mamba, must be 1 to %d",
                       (long long)inner, SL_MAX_HIDDEN);
    sl_plan_mixer(SL_MIX_SSM, l);
    l->rope = -1;
    l->state = (struct sl_state_desc){
        .n_taps = hp->state_taps,
        .n_heads = (int32_t)inner,
        .n_groups = 1,
        .k_dim = hp->state_k_dim,
        .v_dim = 1,
        .dt_rank = hp->dt_rank > 0 ? hp->dt_rank : SL_CEIL_DIV(hp->hidden, 16),
        .dt_max = INFINITY,
        .norm_x = hp->norm_x || (l->has & SL_HAS_STATE_NORM) != 0,
        .norm_eps = (float)hp->norm_x_eps,
    };
    return 0;
}

static int mamba1_plan(const struct sl_model_name *name, const struct sl_hparams *hp,
                       struct sl_layer_desc *layers, struct sl_error *err)
{
    int rc = 0;
    for (int32_t i = 0; i < hp->n_layers && rc == 0; i++) {
        layers[i].has &= ~(unsigned)SL_HAS_STATE_NORM;
        layers[i].ffn = SL_FFN_NONE;
        rc = sl_plan_mamba1(hp, &layers[i], err);
        if (!hp->from_gguf)
            layers[i].state.norm_x = name == &names[1];
    }
    return rc;
}

static void mamba1_tiny(const struct sl_model_name *name, struct sl_hparams *hp)
{
    *hp = (struct sl_hparams){
        .hidden = 64,
        .n_layers = 3,
        .n_vocab = 320,
        .context = 512,
        .norm_eps = 1e-5,
        .has = name->has | SL_HAS_CONV_BIAS,
        .state_taps = 4,
        .state_k_dim = 16,
        .state_inner = 128,
        .state_expand = 2,
        .dt_rank = 12,
        .norm_x = name == &names[1],
        .norm_x_eps = 1e-6,
    };
}

const struct sl_model_desc sl_model_mamba1 = {
    .id = "mamba1",
    SL_MODEL_TABLES,
    .plan = mamba1_plan,
    .tiny = mamba1_tiny,
};
