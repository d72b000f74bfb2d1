/* SPDX-License-Identifier: MIT
 * Layers, not models, carry shape: every layer gets what the hyper-parameters say of all alike,
 * then the family's plan() changes what differs. Who binds, loads, runs or writes a model reads the
 * layer.
 */
#include "base/check.h"
#include "models/internal.h"

#include <math.h>

/* What a family may not say, whatever the file says. */
static void check_layer(const struct sl_model_desc *desc, const struct sl_layer_desc *layers,
                        int32_t idx)
{
    const struct sl_layer_desc *l = &layers[idx];
    SL_ASSERT(l->n_kv_heads > 0 && l->n_heads % l->n_kv_heads == 0);
    SL_ASSERT(l->head_dim > 0 && l->v_dim == l->head_dim && l->intermediate > 0);
    SL_ASSERT(l->rope >= -1 && l->rope < desc->n_ropes);
    SL_ASSERT(l->kv_source >= 0 && l->kv_source <= idx && l->window >= 0);
    SL_ASSERT((l->norm == SL_NORM_LAYER) == (l->norms == SL_NORM_SUM)); /* what there are ops for */
    SL_ASSERT((l->ffn == SL_FFN_EXPERTS) == (l->n_experts > 0));
    SL_ASSERT(((l->has & SL_HAS_SHARED) != 0) == (l->shared_intermediate > 0));
    SL_ASSERT(l->n_experts == 0 || sl_route_fits(l->n_experts, l->top_experts, &l->route));
    SL_ASSERT(l->norms != 0 && l->attn_scale > 0 && l->softcap >= 0 && l->residual_scale > 0);
    SL_ASSERT(l->norms != SL_NORM_SUM || l->residual_scale == 1);
}

int sl_plan(const struct sl_model_desc *desc, const struct sl_model_name *name,
            const struct sl_hparams *hp, struct sl_layer_desc *layers, struct sl_error *err)
{
    for (int32_t i = 0; i < hp->n_layers; i++)
        layers[i] = (struct sl_layer_desc){
            .has = hp->has,
            .mixer = SL_MIX_GQA,
            .ffn = SL_FFN_GATED,
            .act = hp->act,
            .norm = SL_NORM_RMS,
            .norms = SL_NORM_IN,
            .qk_norm = (hp->has & SL_HAS_QK_NORM) != 0 ? SL_QK_NORM_HEADS : SL_QK_NORM_NONE,
            .n_heads = hp->n_heads,
            .n_kv_heads = hp->n_kv_heads,
            .head_dim = hp->head_dim,
            .v_dim = hp->head_dim,
            .intermediate = hp->intermediate,
            .rope = desc->n_ropes > 0 ? 0 : -1,
            .kv_source = i,
            .attn_scale =
                (float)(hp->attn_scale != 0 ? hp->attn_scale : 1.0 / sqrt((double)hp->head_dim)),
            .softcap = (float)hp->attn_softcap,
            .residual_scale = hp->residual_scale != 0 ? (float)hp->residual_scale : 1,
        };
    int rc = desc->plan(name, hp, layers, err);
    for (int32_t i = 0; i < hp->n_layers && rc == 0; i++)
        check_layer(desc, layers, i);
    return rc;
}

int64_t sl_layer_dim(const struct sl_hparams *hp, const struct sl_layer_desc *l, enum sl_dim dim)
{
    switch (dim) {
    case SL_DIM_H:
        return hp->hidden;
    case SL_DIM_I:
        return l->intermediate;
    case SL_DIM_E:
        return l->n_experts;
    case SL_DIM_S:
        return l->shared_intermediate;
    case SL_DIM_V:
        return hp->n_vocab;
    case SL_DIM_Q:
        return (int64_t)l->n_heads * l->head_dim;
    case SL_DIM_K:
        return (int64_t)l->n_kv_heads * l->head_dim;
    case SL_DIM_VALUES:
        return (int64_t)l->n_kv_heads * l->v_dim;
    case SL_DIM_ATT:
        return (int64_t)l->n_heads * l->v_dim;
    case SL_DIM_HD:
        return l->head_dim;
    case SL_DIM_ROPE:
        return sl_rope_dims(hp, 0) / 2;
    case SL_DIM_CONTEXT:
        return hp->context;
    case SL_DIM_TYPES:
        return hp->n_types;
    case SL_DIM_LABELS:
        return hp->n_labels;
    case SL_DIM_ONE:
    case SL_DIM_NONE:
        break;
    }
    return 1;
}

int64_t sl_layers_max(const struct sl_hparams *hp, const struct sl_layer_desc *layers,
                      enum sl_dim dim)
{
    int64_t most = 0;
    for (int32_t i = 0; i < hp->n_layers; i++) {
        int64_t n = sl_layer_dim(hp, &layers[i], dim);
        most = SL_MAX(most, n);
    }
    return most;
}
