/* SPDX-License-Identifier: MIT
 * Experts of ranks that are placed by their load: a layer has places for its experts and for some
 * replicas more, as many on each rank. Which expert is in which place all ranks know alike; it may
 * change between two steps, when what is missing has been loaded beside them (eplb.c says where).
 *
 * Ranks may be absent: their places stand empty, and others compute what they would have. That
 * takes a replica elsewhere of each of their experts (sl_model_places_cover).
 *
 * A rank has an expert once, in however many places it is there: they only weigh what part of its
 * rows comes to that rank.
 */
#include "base/check.h"
#include "models/internal.h"

#include <string.h>

void sl_model_balance_experts(struct sl_model *m, int32_t n_redundant)
{
    SL_ASSERT(n_redundant >= 0 && n_redundant <= SL_MAX_REDUNDANT);
    sl_model_divide_experts(m);
    m->balanced = true;
    m->n_redundant = n_redundant;
}

void sl_places_destroy(struct sl_model *m)
{
    for (int32_t l = 0; m->places != NULL && l < m->hp.n_layers; l++)
        sl_free(m->places[l].slots);
    sl_free(m->places);
    m->places = NULL;
}

static bool is_absent(const struct sl_model *m, int32_t layer, int32_t place)
{
    const int32_t of_rank = m->places[layer].n / m->n_ranks;
    return (m->absent >> (place / of_rank) & 1) != 0;
}

/* Replicas of an expert in the order of their places. */
static void set_list(const struct sl_model *m, int32_t layer, const int32_t *list)
{
    struct sl_layer_places *p = &m->places[layer];
    const int32_t n_experts = m->layers[layer].n_experts, of_rank = p->n / m->n_ranks;
    if (list != p->slots)
        memcpy(p->slots, list, (size_t)p->n * sizeof *list);
    memset(p->first, 0, (size_t)(n_experts + 1) * sizeof *p->first);
    for (int32_t i = 0; i < p->n; i++) {
        SL_ASSERT(list[i] >= 0 && list[i] < n_experts);
        p->first[list[i] + 1] += !is_absent(m, layer, i);
    }
    for (int32_t e = 0; e < n_experts; e++) {
        SL_ASSERT(p->first[e + 1] > 0);
        p->first[e + 1] += p->first[e];
    }
    for (int32_t i = 0; i < p->n; i++)
        if (!is_absent(m, layer, i))
            p->rank[p->first[list[i]]++] = (uint8_t)(i / of_rank);
    for (int32_t e = n_experts; e > 0; e--)
        p->first[e] = p->first[e - 1];
    p->first[0] = 0;
}

static int create_places(struct sl_model *m, int32_t layer, struct sl_error *err)
{
    const int32_t n_experts = m->layers[layer].n_experts, n = n_experts + m->n_redundant;
    struct sl_layer_places *p = &m->places[layer];
    if (n % m->n_ranks != 0)
        return sl_fail(err, SL_EINVAL,
                       "eplb_config: %d experts of layer %d and num_redundant_experts %d cannot be "
                       "divided evenly among %d ranks",
                       n_experts, layer, m->n_redundant, m->n_ranks);
    if (m->n_redundant > n_experts * (m->n_ranks - 1))
        return sl_fail(err, SL_EINVAL,
                       "eplb_config: num_redundant_experts %d is more than each of %d ranks having "
                       "all %d experts of layer %d takes",
                       m->n_redundant, m->n_ranks, n_experts, layer);
    int32_t *ints =
        sl_calloc((size_t)(n + n_experts + 1) + SL_CEIL_DIV((size_t)n, sizeof *ints), sizeof *ints);
    if (ints == NULL)
        return sl_fail(err, SL_ENOMEM, "out of memory for places of experts");
    *p = (struct sl_layer_places){
        .n = n, .slots = ints, .first = ints + n, .rank = (uint8_t *)(ints + n + n_experts + 1)};
    p->of = (struct sl_expert_places){.first = p->first, .rank = p->rank};
    for (int32_t i = 0; i < n; i++)
        p->slots[i] = i % n_experts;
    set_list(m, layer, p->slots);
    return 0;
}

int sl_places_create(struct sl_model *m, struct sl_error *err)
{
    int rc = 0;
    SL_ASSERT(m->balanced && m->n_ranks > 1);
    sl_places_destroy(m);
    m->places = sl_calloc((size_t)m->hp.n_layers, sizeof *m->places);
    if (m->places == NULL)
        return sl_fail(err, SL_ENOMEM, "out of memory for places of experts");
    for (int32_t l = 0; l < m->hp.n_layers && rc == 0; l++)
        if (m->layers[l].ffn == SL_FFN_EXPERTS)
            rc = create_places(m, l, err);
    return rc;
}

bool sl_places_have(const struct sl_model *m, int32_t layer, int32_t expert, int32_t rank)
{
    const struct sl_layer_places *p = &m->places[layer];
    for (int32_t i = p->first[expert]; i < p->first[expert + 1]; i++)
        if (p->rank[i] == rank)
            return true;
    return false;
}

bool sl_model_places_cover(const struct sl_model *m, int32_t layer, const int32_t *list,
                           uint32_t absent)
{
    uint64_t has[SL_CEIL_DIV(SL_MAX_EXPERTS, 64)] = {0};
    const int32_t n_experts = m->layers[layer].n_experts, n = m->places[layer].n;
    int32_t n_has = 0;
    for (int32_t i = 0; i < n; i++) {
        if ((absent >> (i / (n / m->n_ranks)) & 1) != 0)
            continue;
        uint64_t *word = &has[list[i] / 64];
        const uint64_t bit = 1ull << list[i] % 64;
        n_has += (*word & bit) == 0;
        *word |= bit;
    }
    return n_has == n_experts;
}

void sl_model_places_leave(struct sl_model *m, uint32_t absent)
{
    SL_ASSERT(m->places != NULL && (absent >> m->rank & 1) == 0);
    m->absent = absent;
    for (int32_t l = sl_stage_first(m); l < sl_stage_end(m); l++)
        if (m->places[l].n > 0)
            set_list(m, l, m->places[l].slots);
}

/* ---------------------------------------------------------------- memory */

size_t sl_places_room_bytes(const struct sl_model *m, int32_t max_tokens)
{
    size_t most = 0;
    for (int32_t l = 0; m->places != NULL && l < m->hp.n_layers; l++)
        most = SL_MAX(most, (size_t)m->layers[l].top_experts);
    return most * (size_t)SL_MIN(max_tokens, SL_PLACED_ROWS) * (size_t)m->hp.hidden * sizeof(float);
}

size_t sl_places_exchange_bytes(const struct sl_model *m, const struct sl_backend *be,
                                int32_t max_tokens)
{
    size_t most = 0;
    if (m->places == NULL || be->vt->placed_bytes == NULL)
        return 0;
    for (int32_t l = 0; l < m->hp.n_layers; l++) {
        const struct sl_layer_desc *d = &m->layers[l];
        if (m->places[l].n > 0)
            most = SL_MAX(most, be->vt->placed_bytes(max_tokens, d->n_experts, d->top_experts,
                                                     m->hp.hidden, m->n_ranks));
    }
    return most;
}

uint64_t sl_places_spare_bytes(const struct sl_model *m, struct sl_backend *be)
{
    uint64_t most = 0;
    for (int32_t l = sl_stage_first(m); m->places != NULL && l < sl_stage_end(m); l++)
        if (m->places[l].n > 0) {
            const uint64_t n = (uint64_t)(m->places[l].n / m->n_ranks);
            most = SL_MAX(most, n * sl_load_expert_bytes(m, be, l, 0));
        }
    return most;
}

int sl_places_counts(const struct sl_model *m, struct sl_expert_counts **out, struct sl_error *err)
{
    size_t n = 0;
    *out = NULL;
    if (m->places == NULL)
        return 0;
    for (int32_t l = 0; l < m->hp.n_layers; l++)
        n += (size_t)m->layers[l].n_experts;
    const size_t head = (size_t)m->hp.n_layers * sizeof **out;
    struct sl_expert_counts *c = sl_calloc(1, head + n * sizeof *c->tokens);
    if (c == NULL)
        return sl_fail(err, SL_ENOMEM, "out of memory for counts of experts");
    uint64_t *at = (uint64_t *)(void *)((uint8_t *)c + head);
    for (int32_t l = 0; l < m->hp.n_layers; at += m->layers[l].n_experts, l++)
        c[l].tokens = at;
    *out = c;
    return 0;
}

/* ---------------------------------------------------------------- what others ask for */

int32_t sl_model_places(const struct sl_model *m, int32_t layer, int32_t *n_experts)
{
    const bool here = layer >= sl_stage_first(m) && layer < sl_stage_end(m);
    *n_experts = here && m->places != NULL ? m->layers[layer].n_experts : 0;
    return here && m->places != NULL ? m->places[layer].n : 0;
}

const int32_t *sl_model_place_list(const struct sl_model *m, int32_t layer)
{
    return m->places[layer].slots;
}

int sl_model_places_load(struct sl_model *m, struct sl_backend *be, int32_t layer,
                         const int32_t *list, int32_t *n_loaded, struct sl_error *err)
{
    const int32_t of_rank = m->places[layer].n / m->n_ranks;
    int rc = 0;
    *n_loaded = 0;
    SL_ASSERT(be->vt->device == NULL && m->be != NULL);
    for (int32_t i = m->rank * of_rank; i < (m->rank + 1) * of_rank && rc == 0; i++) {
        if (sl_param(m, layer, SL_SLOT_EXPERTS_DOWN)[list[i]].loaded)
            continue;
        rc = sl_load_expert(m, be, layer, list[i], err);
        *n_loaded += rc == 0;
    }
    return rc;
}

void sl_model_places_switch(struct sl_model *m, int32_t layer, const int32_t *list)
{
    SL_ASSERT(m->be != NULL && m->places[layer].n > 0);
    set_list(m, layer, list);
    sl_experts_refresh(m, layer);
}

void sl_model_places_drop(struct sl_model *m, int32_t layer)
{
    for (int32_t e = 0; e < m->layers[layer].n_experts; e++)
        if (sl_param(m, layer, SL_SLOT_EXPERTS_DOWN)[e].loaded &&
            !sl_places_have(m, layer, e, m->rank))
            sl_unload_expert(m, layer, e);
}

const struct sl_expert_counts *sl_run_expert_counts(const struct sl_run *r)
{
    return r->expert_counts;
}

int32_t sl_run_least(struct sl_run *r, int32_t value)
{
    int32_t all[SL_MAX_RANKS], least = value;
    const int32_t n_absent = __builtin_popcount(r->m->absent);
    int32_t *own = sl_rank_room(&r->rank);
    SL_ASSERT(r->m->n_ranks > 1 && r->m->be->vt->device == NULL);
    *own = value;
    sl_rank_begin(r);
    sl_run_exchange(r, own, 1, sizeof *own, 1, all);
    for (int32_t i = 0; i < r->m->n_ranks - n_absent && !r->rank.lost; i++)
        least = SL_MIN(least, all[i]);
    return r->rank.lost ? -1 : least;
}
