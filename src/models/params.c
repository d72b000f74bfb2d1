/* SPDX-License-Identifier: MIT
 * Where the parameters of a model stand: one array, in which a stack of matrices, or the pieces of
 * one, are as many neighbours. The first one is empty: slots of layers that the family does not
 * have all share it, so that sl_param always finds one. Layers that share weights find those of the
 * first.
 */
#include "base/check.h"
#include "models/internal.h"

static bool is_there(const struct sl_model *m, const struct sl_weight_desc *w, int32_t layer)
{
    unsigned has = w->slot >= SL_SLOT_FIRST_GLOBAL ? m->hp.has : m->layers[layer].has;
    return (w->when & ~has) == 0;
}

bool sl_param_is_tied(const struct sl_model *m, const struct sl_weight_desc *w, int32_t layer)
{
    return (w->flags & SL_W_TIED) != 0 && m->layers[layer].tied_to != layer;
}

int32_t sl_params_n(const struct sl_model *m, const struct sl_weight_desc *w, int32_t layer)
{
    if (!is_there(m, w, layer))
        return 1;
    if (sl_weight_n_pieces(w) > 0)
        return sl_weight_n_pieces(w);
    if (w->mats == SL_DIM_NONE)
        return 1;
    return (int32_t)sl_layer_dim(&m->hp, &m->layers[layer], w->mats);
}

int sl_params_create(struct sl_model *m, struct sl_error *err)
{
    const size_t n_slots = (size_t)m->hp.n_layers * SL_SLOT_FIRST_GLOBAL + SL_SLOT_COUNT;
    m->first = sl_calloc(n_slots, sizeof *m->first);
    if (m->first == NULL)
        return sl_fail(err, SL_ENOMEM, "out of memory for a model of %d layers", m->hp.n_layers);
    for (size_t i = (size_t)m->hp.n_layers * SL_SLOT_FIRST_GLOBAL; i < n_slots; i++)
        m->first[i] = 1; /* for now: how many */
    for (int32_t i = 0; i < m->desc->n_weights; i++)
        if (m->desc->weights[i].slot >= SL_SLOT_FIRST_GLOBAL)
            m->first[(size_t)m->hp.n_layers * SL_SLOT_FIRST_GLOBAL +
                     (size_t)m->desc->weights[i].slot] =
                (uint32_t)sl_params_n(m, &m->desc->weights[i], 0);
    for (int32_t i = 0; i < m->desc->n_weights; i++)
        for (int32_t l = 0; l < m->hp.n_layers && m->desc->weights[i].slot < SL_SLOT_FIRST_GLOBAL;
             l++)
            if (!sl_param_is_tied(m, &m->desc->weights[i], l))
                m->first[(size_t)l * SL_SLOT_FIRST_GLOBAL + (size_t)m->desc->weights[i].slot] =
                    (uint32_t)sl_params_n(m, &m->desc->weights[i], l);
    m->n_params = 1; /* the empty one */
    for (size_t i = 0; i < n_slots; i++) {
        const uint32_t n = m->first[i];
        m->first[i] = n > 0 ? (uint32_t)m->n_params : 0;
        m->n_params += n;
    }
    for (int32_t i = 0; i < m->desc->n_weights; i++)
        for (int32_t l = 0; l < m->hp.n_layers; l++)
            if (sl_param_is_tied(m, &m->desc->weights[i], l))
                m->first[(size_t)l * SL_SLOT_FIRST_GLOBAL + (size_t)m->desc->weights[i].slot] =
                    m->first[(size_t)m->layers[l].tied_to * SL_SLOT_FIRST_GLOBAL +
                             (size_t)m->desc->weights[i].slot];
    m->params = sl_calloc(m->n_params, sizeof *m->params);
    if (m->params == NULL)
        return sl_fail(err, SL_ENOMEM, "out of memory for %zu tensors", m->n_params);
    return 0;
}

void sl_params_destroy(struct sl_model *m)
{
    for (size_t i = 0; m->params != NULL && i < m->n_params; i++) {
        sl_int4_unbind(&m->params[i]);
        if (m->params[i].scale_exponents)
            sl_free((void *)(uintptr_t)m->params[i].scale);
    }
    sl_free(m->params);
    sl_free(m->first);
    m->params = NULL;
    m->first = NULL;
}
