/* SPDX-License-Identifier: MIT
 * Mamba 2: layers of a state space model alone, without attention and without MLPs. Groups of heads
 * share b and c, and what comes out is gated and then normed by group.
 *
 * GGUF files hold A where safetensors hold its logarithm, and the norm as a matrix of a row for
 * each group.
 */
#include "base/check.h"
#include "models/desc.h"
#include "models/tables.h"

#include <math.h>

static const struct sl_model_name names[] = {
    {.id = "mamba2",
     .hf_architecture = "Mamba2ForCausalLM",
     .hf_model_type = "mamba2",
     .gguf_architecture = "mamba2",
     .has = SL_HAS_STATE | SL_HAS_STATE_NORM},
};

/* clang-format off */
static const struct sl_hparam_desc hparams[] = {
    SL_HPARAMS_BACKBONE,
    {NULL, {"expand"}, SL_HP_INT, SL_HP_AT(state_expand), .def = 2, .min = 1, .max = 64},
    SL_HPARAMS_MAMBA2("conv_kernel", "state_size", "n_groups", "num_heads", "head_dim", 8),
    SL_HPARAMS_DT_LIMIT,
    {NULL, {"hidden_act"}, SL_HP_CHOICE, .value = "silu"},
    {NULL, {"use_bias"}, SL_HP_HAS, .has = SL_HAS_STATE_BIAS},
    {NULL, {"use_conv_bias"}, SL_HP_HAS, .has = SL_HAS_CONV_BIAS, .def = true},
    SL_HPARAM_TIED(false),
};

static const struct sl_weight_desc weights[] = {
    SL_WEIGHTS_BACKBONE,
    SL_WEIGHTS_MAMBA2("backbone.layers.*.mixer"),
};
/* clang-format on */

/* Values of a head; 0: refused. */
static int32_t head_dim(const struct sl_hparams *hp, struct sl_error *err)
{
    const char *key = hp->from_gguf ? "GGUF: ssm.inner_size" : "config.json: the width of Mamba";
    const int64_t inner = hp->from_gguf         ? hp->state_inner
                          : hp->state_width > 0 ? hp->state_width
                                                : (int64_t)hp->state_expand * hp->hidden;
    if (!hp->from_gguf && hp->state_v_dim > 0)
        return hp->state_v_dim;
    if (inner > 0 && inner % hp->state_heads == 0 && inner / hp->state_heads <= SL_MAX_STATE_DIM)
        return (int32_t)(inner / hp->state_heads);
    sl_fail(err, SL_EFORMAT, "%s (%lld) must be a multiple of its %d heads, at most %d times that",
            key, (long long)inner, hp->state_heads, SL_MAX_STATE_DIM);
    return 0;
}

int sl_plan_mamba2(const struct sl_hparams *hp, struct sl_layer_desc *l, struct sl_error *err)
{
    const char *key = hp->from_gguf ? "GGUF: ssm.time_step_rank" : "config.json: heads of Mamba";
    if (hp->state_heads % hp->state_groups != 0)
        return sl_fail(err, SL_EFORMAT, "%s (%d) is not a multiple of the number of groups (%d)",
                       key, hp->state_heads, hp->state_groups);
    if (hp->dt_max != 0 && !(hp->dt_max > hp->dt_min))
        return sl_fail(err, SL_EFORMAT, "config.json: time_step_limit is %g to %g", hp->dt_min,
                       hp->dt_max);
    const int32_t dim = head_dim(hp, err);
    if (dim == 0)
        return err->code;
    sl_plan_mixer(SL_MIX_SSM, l);
    l->rope = -1;
    l->state = (struct sl_state_desc){
        .n_taps = hp->state_taps,
        .n_heads = hp->state_heads,
        .n_groups = hp->state_groups,
        .k_dim = hp->state_k_dim,
        .v_dim = dim,
        .dt_min = (float)hp->dt_min,
        .dt_max = hp->dt_max > 0 && hp->dt_max < SL_JSON_INFINITY ? (float)hp->dt_max : INFINITY,
        .norm_eps = (float)hp->norm_eps,
        .norm = (l->has & SL_HAS_STATE_NORM) != 0,
        .gate_first = true,
    };
    return 0;
}

static int mamba_plan(const struct sl_model_name *name, const struct sl_hparams *hp,
                      struct sl_layer_desc *layers, struct sl_error *err)
{
    int rc = 0;
    (void)name;
    for (int32_t i = 0; i < hp->n_layers && rc == 0; i++) {
        layers[i].ffn = SL_FFN_NONE;
        rc = sl_plan_mamba2(hp, &layers[i], err);
    }
    return rc;
}

static void mamba_tiny(const struct sl_model_name *name, struct sl_hparams *hp)
{
    *hp = (struct sl_hparams){
        .hidden = 64,
        .n_layers = 3,
        .n_vocab = 320,
        .context = 512,
        .norm_eps = 1e-5,
        .has = name->has | SL_HAS_HEAD | SL_HAS_CONV_BIAS,
        .state_taps = 4,
        .state_heads = 8,
        .state_groups = 4,
        .state_v_dim = 16,
        .state_k_dim = 24,
        .state_inner = 128,
        .dt_max = SL_JSON_INFINITY,
    };
}

const struct sl_model_desc sl_model_mamba = {
    .id = "mamba",
    SL_MODEL_TABLES,
    .plan = mamba_plan,
    .tiny = mamba_tiny,
};
