/* SPDX-License-Identifier: MIT
 * The experts of a loaded layer as its operation reads them: for each product the matrices of all
 * experts in one row, and what the backend makes of that. Those that other ranks have are of the
 * same shape, without data.
 */
#include "base/check.h"
#include "models/internal.h"

static const enum sl_slot slots[] = {SL_SLOT_EXPERTS_GATE, SL_SLOT_EXPERTS_UP,
                                     SL_SLOT_EXPERTS_DOWN};

/* relu2(x) is relu(x) x: without a gate, up is that as well. */
static bool has_no(const struct sl_model *m, int32_t layer, enum sl_slot slot)
{
    return m->layers[layer].plain_experts && slot == SL_SLOT_EXPERTS_GATE;
}

void sl_experts_refresh(struct sl_model *m, int32_t layer)
{
    const int32_t n = m->layers[layer].n_experts;
    int32_t one = 0; /* that is here */
    while (!sl_rank_has_expert(m, layer, one, m->rank))
        one++;
    SL_ASSERT(one < n);
    for (size_t k = 0; k < SL_COUNT(slots); k++) {
        if (has_no(m, layer, slots[k]))
            continue;
        struct sl_weight *mats = m->experts[layer].mats + k * (size_t)n;
        const struct sl_param *of = sl_param(m, layer, slots[k]);
        for (int32_t e = 0; e < n; e++) {
            const bool here = sl_rank_has_expert(m, layer, e, m->rank);
            mats[e] = of[here ? e : one].mat;
            if (!here)
                mats[e].data = NULL;
        }
    }
}

static int create_layer(struct sl_model *m, int32_t layer, struct sl_error *err)
{
    const int32_t n = m->layers[layer].n_experts;
    struct sl_expert_stacks *s = &m->experts[layer];
    struct sl_stack *stacks[] = {&s->gate, &s->up, &s->down};
    struct sl_backend *be = sl_experts_on_host(m, layer) ? m->host : m->be;
    s->mats = sl_calloc(SL_COUNT(slots) * (size_t)n, sizeof *s->mats);
    if (s->mats == NULL)
        return sl_fail(err, SL_ENOMEM, "out of memory for %d experts", n);
    int rc = 0;
    sl_experts_refresh(m, layer);
    for (size_t k = 0; k < SL_COUNT(slots) && rc == 0; k++) {
        if (has_no(m, layer, slots[k]))
            continue;
        const struct sl_weight *mats = s->mats + k * (size_t)n;
        if (be->vt->device != NULL && mats[0].n_cols % 8 != 0)
            return sl_fail(err, SL_EUNSUPPORTED,
                           "experts with %lld columns: a GPU runs multiples of 8",
                           (long long)mats[0].n_cols);
        rc = be->vt->stack_create(be, mats, n, stacks[k], err);
    }
    return rc;
}

int sl_experts_create(struct sl_model *m, struct sl_error *err)
{
    int rc = 0;
    if (sl_layers_max(&m->hp, m->layers, SL_DIM_E) == 0)
        return 0;
    m->experts = sl_calloc((size_t)m->hp.n_layers, sizeof *m->experts);
    if (m->experts == NULL)
        return sl_fail(err, SL_ENOMEM, "out of memory for experts");
    for (int32_t l = sl_stage_first(m); l < sl_stage_end(m) && rc == 0; l++)
        if (m->layers[l].ffn == SL_FFN_EXPERTS)
            rc = create_layer(m, l, err);
    return rc;
}

void sl_experts_destroy(struct sl_model *m)
{
    for (int32_t l = 0; m->experts != NULL && l < m->hp.n_layers; l++) {
        struct sl_expert_stacks *s = &m->experts[l];
        struct sl_stack *stacks[] = {&s->gate, &s->up, &s->down};
        struct sl_backend *be = sl_experts_on_host(m, l) ? m->host : m->be;
        for (size_t k = 0; k < SL_COUNT(stacks); k++)
            if (stacks[k]->mats != NULL)
                be->vt->stack_destroy(be, stacks[k]);
        sl_free(s->mats);
    }
    sl_free(m->experts);
    m->experts = NULL;
}
