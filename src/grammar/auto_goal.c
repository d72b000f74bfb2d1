/* SPDX-License-Identifier: MIT
 * auto_goal.c - expressions over schema nodes, and goals: what a value must satisfy.
 */
#include "base/check.h"
#include "grammar/auto_impl.h"

#include <string.h>

enum { MAX_SAT_DEPTH = 1000 };

static uint32_t sort_unique(uint32_t *v, uint32_t n)
{
    uint32_t k = 0;
    for (uint32_t i = 1; i < n; i++) {
        uint32_t x = v[i], j = i;
        for (; j > 0 && v[j - 1] > x; j--)
            v[j] = v[j - 1];
        v[j] = x;
    }
    for (uint32_t i = 0; i < n; i++)
        if (k == 0 || v[k - 1] != v[i])
            v[k++] = v[i];
    SL_ASSERT(k <= n);
    return k;
}

uint32_t sl_expr_list(struct sl_auto *a, enum sl_vec_kind kind, uint32_t *v, uint32_t n)
{
    SL_ASSERT(kind == SL_VEC_AND || kind == SL_VEC_OR);
    uint32_t unit = kind == SL_VEC_AND ? EXPR_TRUE : EXPR_FALSE, k = 0;
    uint32_t zero = kind == SL_VEC_AND ? EXPR_FALSE : EXPR_TRUE;
    for (uint32_t i = 0; i < n; i++) {
        if (v[i] == zero)
            return zero;
        if (v[i] != unit)
            v[k++] = v[i];
    }
    k = sort_unique(v, k);
    if (k <= 1)
        return k == 0 ? unit : v[0];
    return EXPR_OF(sl_vec_of(a, kind, v, k));
}

bool sl_expr_true(const struct sl_auto *a, uint32_t expr, const struct sl_goal *g, uint64_t truths)
{
    if (expr == EXPR_FALSE || expr == EXPR_TRUE)
        return expr == EXPR_TRUE;
    if ((expr & 1) != 0) {
        for (uint32_t i = 0; i < g->n_roots; i++)
            if (LEAF(g->roots[i]) == expr)
                return (truths >> i & 1) != 0;
        return false;
    }
    const struct sl_vec *x = sl_vec_at(a, expr >> 1);
    SL_ASSERT(x->kind == SL_VEC_AND || x->kind == SL_VEC_OR);
    bool any = x->kind == SL_VEC_OR;
    for (uint32_t i = 0; i < x->n; i++)
        if (sl_expr_true(a, x->v[i], g, truths) == any)
            return any;
    return !any;
}

static sl_rx_id auto_goal_scalar_of(struct sl_auto *a, uint32_t expr)
{
    if (expr == EXPR_FALSE)
        return SL_RX_NONE;
    if (expr == EXPR_TRUE)
        return a->schema.any_scalar;
    if ((expr & 1) != 0)
        return a->schema.nodes[expr >> 1].scalar;
    const struct sl_vec *x = sl_vec_at(a, expr >> 1);
    SL_ASSERT(x->kind == SL_VEC_AND || x->kind == SL_VEC_OR);
    bool any = x->kind == SL_VEC_OR;
    sl_rx_id out = any ? SL_RX_NONE : SL_RX_ALL;
    for (uint32_t i = 0; i < x->n; i++) {
        sl_rx_id one = auto_goal_scalar_of(a, x->v[i]);
        out = any ? sl_rx_or2(&a->rx, out, one) : sl_rx_and2(&a->rx, out, one);
    }
    return out;
}

/* Is the expression the conjunction of all wanted nodes? */
static bool is_pure(const struct sl_auto *a, uint32_t expr, const uint32_t *roots, uint32_t n)
{
    if (n == 0)
        return true;
    if ((expr & 1) != 0)
        return n == 1 && expr == LEAF(roots[0]);
    const struct sl_vec *x =
        expr == EXPR_FALSE || expr == EXPR_TRUE ? NULL : sl_vec_at(a, expr >> 1);
    if (x == NULL || x->kind != SL_VEC_AND)
        return false;
    for (uint32_t i = 0, k = 0; i < n; i++) {
        while (k < x->n && x->v[k] != LEAF(roots[i]))
            k++;
        if (k == x->n)
            return false;
    }
    return true;
}

/* May the expression hold of an array or object, by the nodes' types alone? */
static bool type_possible(const struct sl_auto *a, uint32_t expr, uint32_t type)
{
    SL_ASSERT(type == SL_JSON_OBJECT || type == SL_JSON_ARRAY);
    if (expr == EXPR_FALSE || expr == EXPR_TRUE)
        return expr == EXPR_TRUE;
    if ((expr & 1) != 0)
        return (a->schema.nodes[expr >> 1].types & type) != 0;
    const struct sl_vec *x = sl_vec_at(a, expr >> 1);
    bool any = x->kind == SL_VEC_OR;
    for (uint32_t i = 0; i < x->n; i++)
        if (type_possible(a, x->v[i], type) == any)
            return any;
    return !any;
}

struct sl_goal *sl_goal_of(struct sl_auto *a, uint32_t req, uint32_t *roots, uint32_t n_roots)
{
    uint32_t key[MAX_WANTED + 1];
    n_roots = sort_unique(roots, n_roots);
    if (n_roots > MAX_WANTED) {
        sl_auto_too_many(a, "more than 64 schemas apply to one value");
        return NULL;
    }
    key[0] = req;
    memcpy(key + 1, roots, n_roots * sizeof key[0]);
    uint32_t id = sl_vec_of(a, SL_VEC_GOAL, key, n_roots + 1);
    if (id == 0)
        return NULL;
    struct sl_vec *x = sl_vec_at(a, id);
    SL_ASSERT(x->kind == SL_VEC_GOAL && x->n == n_roots + 1);
    if (x->aux != NULL)
        return x->aux;
    struct sl_goal *g = sl_arena_alloc(&a->arena, sizeof *g);
    if (g == NULL) {
        sl_auto_no_room(a);
        return NULL;
    }
    g->id = id;
    g->req = req;
    g->n_roots = n_roots;
    g->roots = x->v + 1;
    g->pure = is_pure(a, req, g->roots, n_roots);
    g->scalar = auto_goal_scalar_of(a, req);
    if (!sl_rx_alive(&a->rx, g->scalar))
        g->scalar = SL_RX_NONE;
    SL_ASSERT(g->scalar <= SL_LEX_ID); /* a lexeme keeps it beside its tag */
    g->lex = SL_LEX_RX | g->scalar;
    g->distinct = SL_RX_ALL;
    g->n_values = g->n_scalars = UINT32_MAX;
    if (g->pure) {
        for (size_t t = 1; t < SL_COUNT(a->free_of); t++)
            if (g->scalar == a->free_from[t])
                g->lex = SL_LEX_RX | a->free_of[t];
    } else {
        key[0] = g->scalar;
        for (uint32_t i = 0; i < n_roots; i++) {
            key[i + 1] = sl_rx_and2(&a->rx, g->scalar, a->schema.nodes[roots[i]].scalar);
            if (!sl_rx_alive(&a->rx, key[i + 1]))
                key[i + 1] = SL_RX_NONE;
        }
        g->lex = SL_LEX_TUPLE | sl_vec_of(a, SL_VEC_TUPLE, key, n_roots + 1);
    }
    for (uint32_t t = SL_JSON_ARRAY; t <= SL_JSON_OBJECT; t *= 2)
        g->compound |= (uint8_t)(type_possible(a, req, t) ? t : 0);
    x->aux = g;
    return g;
}

bool sl_goal_sat(struct sl_auto *a, struct sl_goal *g)
{
    if (g == NULL)
        return false;
    if (g->sat != 0)
        return g->sat != 3;
    if (a->sat_depth == MAX_SAT_DEPTH) { /* a schema may go deeper than the stack does */
        a->sat_cut = true;
        return true;
    }
    a->sat_depth++;
    g->sat = 1; /* met again on the way: taken for possible */
    bool sat = g->scalar != SL_RX_NONE;
    if ((g->compound & SL_JSON_OBJECT) != 0 && sl_frame_open(a, g, true, 0, 0) == 0)
        g->compound &= (uint8_t)~SL_JSON_OBJECT;
    if ((g->compound & SL_JSON_ARRAY) != 0 && sl_frame_open(a, g, false, 0, 0) == 0)
        g->compound &= (uint8_t)~SL_JSON_ARRAY;
    SL_ASSERT(g->sat == 1);
    g->sat = sat || g->compound != 0 ? 2 : 3;
    a->sat_depth--;
    return g->sat != 3;
}
