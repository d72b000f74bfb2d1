/* SPDX-License-Identifier: MIT
 * auto.c - the table of interned vectors; starting.
 */
#include "grammar/auto.h"

#include "base/check.h"
#include "base/hash.h"
#include "base/sys.h"
#include "grammar/auto_impl.h"

#include <string.h>

enum { MEMO = 1 << 14, TRUTHS_OF_DERIVATIVE = 8 };

uint32_t sl_auto_fail(struct sl_auto *a, int code, const char *what)
{
    SL_ASSERT(code < 0);
    if (a->failed == NULL) {
        a->failed = what;
        a->fail_code = code;
    }
    return 0;
}

uint32_t sl_auto_too_many(struct sl_auto *a, const char *what)
{
    a->too_many = a->start != 0;
    return a->too_many ? 0 : sl_auto_fail(a, SL_ELIMIT, what);
}

uint32_t sl_auto_no_room(struct sl_auto *a)
{
    return a->arena.no_memory
               ? sl_auto_fail(a, SL_ENOMEM, "out of memory")
               : sl_auto_fail(a, SL_ELIMIT, "the automaton needs more memory than its limit");
}

int sl_auto_check(const struct sl_auto *a, struct sl_error *err)
{
    if (a->failed != NULL)
        return sl_fail(err, a->fail_code, "grammar: %s", a->failed);
    return sl_rx_check(&a->rx, err);
}

bool sl_auto_spend(struct sl_auto *a, uint32_t n)
{
    uint64_t before = a->n_truths / TRUTHS_OF_DERIVATIVE;
    a->n_truths += n;
    return sl_rx_spend(&a->rx, a->n_truths / TRUTHS_OF_DERIVATIVE - before);
}

static uint64_t vec_hash(enum sl_vec_kind kind, const uint32_t *v, uint32_t n)
{
    if (n == 2)
        return sl_mix64(((uint64_t)v[0] << 32 | v[1]) * 31 + (uint64_t)kind);
    return sl_hash64(v, n * sizeof v[0], (uint64_t)kind);
}

uint32_t sl_vec_of(struct sl_auto *a, enum sl_vec_kind kind, const uint32_t *v, uint32_t n)
{
    if (a->failed != NULL)
        return 0;
    /* A stack's frames are older than what stands on them, so no stack is a ring. */
    SL_ASSERT(n > 0 && (kind < SL_VEC_RETURN || kind > SL_VEC_ARRAY || v[0] < a->n_vecs));
    struct sl_intern_at at = sl_intern_find(vec_hash(kind, v, n));
    for (uint32_t i; (i = sl_intern_next(&a->index, &at)) != 0;) {
        const struct sl_vec *x = a->vecs[i];
        if (x->kind == (uint32_t)kind && x->n == n && memcmp(x->v, v, n * sizeof v[0]) == 0)
            return i;
    }
    if (a->n_vecs == a->cap_vecs) {
        uint32_t cap = a->cap_vecs * 2;
        void *p = sl_realloc(a->vecs, cap * sizeof a->vecs[0]);
        if (p == NULL)
            return sl_auto_fail(a, SL_ENOMEM, "out of memory");
        a->vecs = p;
        a->cap_vecs = cap;
    }
    if (!sl_intern_room(&a->index))
        return sl_auto_fail(a, SL_ENOMEM, "out of memory");
    struct sl_vec *x = a->n_vecs >= a->limits.max_states
                           ? NULL
                           : sl_arena_alloc(&a->arena, sizeof *x + n * sizeof v[0]);
    if (x == NULL)
        return sl_auto_no_room(a);
    x->kind = kind;
    x->n = n;
    memcpy(x->v, v, n * sizeof v[0]);
    sl_intern_add(&a->index, &at, a->n_vecs);
    SL_ASSERT(a->n_vecs < a->cap_vecs);
    a->vecs[a->n_vecs] = x;
    return a->n_vecs++;
}

/* Values whose only constraint is their type may be spelled in every way that JSON allows. */
static void free_texts(struct sl_auto *a)
{
    const struct sl_schema *s = &a->schema;
    struct sl_rx *rx = &a->rx;
    for (unsigned t = 0; t < SL_COUNT(a->free_of); t++) {
        sl_rx_id from[6] = {SL_RX_NONE}, to[6] = {SL_RX_NONE};
        if ((t & SL_JSON_NULL) != 0)
            from[0] = to[0] = sl_rx_lit(rx, "null", 4);
        if ((t & SL_JSON_BOOL) != 0) {
            from[1] = to[1] = sl_rx_lit(rx, "true", 4);
            from[2] = to[2] = sl_rx_lit(rx, "false", 5);
        }
        if ((t & SL_JSON_INT) != 0)
            from[3] = to[3] = s->integer;
        if ((t & SL_JSON_FRACTION) != 0) {
            from[3] = s->number;
            to[3] = s->free_number;
        }
        if ((t & SL_JSON_STRING) != 0) {
            from[4] = s->string;
            to[4] = s->free_string;
        }
        a->free_from[t] = sl_rx_alt(rx, from, SL_COUNT(from));
        a->free_of[t] = sl_rx_alt(rx, to, SL_COUNT(to));
    }
}

int sl_auto_init(struct sl_auto *a, const struct sl_rx_limits *rx_limits,
                 const struct sl_auto_limits *limits, const struct sl_json_style *style,
                 struct sl_error *err)
{
    memset(a, 0, sizeof *a);
    a->limits = *limits;
    a->arena.max_bytes = limits->max_bytes;
    int rc = sl_rx_init(&a->rx, rx_limits, err);
    if (rc != 0)
        return rc;
    SL_ASSERT(limits->max_depth <= SL_AUTO_MAX_DEPTH);
    rc = sl_schema_init(&a->schema, &a->rx, style, err);
    if (rc != 0) {
        sl_rx_deinit(&a->rx);
        return rc;
    }
    a->cap_vecs = 256;
    a->vecs = sl_malloc(a->cap_vecs * sizeof a->vecs[0]);
    a->memo = sl_calloc(MEMO, sizeof a->memo[0]);
    a->memo_to = sl_calloc(MEMO, sizeof a->memo_to[0]);
    if (a->vecs == NULL || a->memo == NULL || a->memo_to == NULL) {
        sl_auto_deinit(a);
        return sl_fail(err, SL_ENOMEM, "grammar: out of memory");
    }
    a->vecs[0] = NULL;
    a->n_vecs = 1; /* 0 is no state, 1 is EXPR_TRUE and SL_STATE_UNSURE, 1 to 3 mark texts */
    for (uint32_t i = 0; i < TEXT_OTHER; i++)
        (void)sl_vec_of(a, SL_VEC_NONE, (uint32_t[]){0, i}, 2);
    SL_ASSERT(a->failed != NULL || a->n_vecs == TEXT_OTHER + 1);
    free_texts(a);
    rc = sl_auto_check(a, err);
    if (rc == 0)
        rc = sl_space_init(a, style->whitespace, err);
    if (rc != 0)
        sl_auto_deinit(a);
    return rc;
}

void sl_auto_deinit(struct sl_auto *a)
{
    for (uint32_t i = 1; i < a->n_vecs && a->vecs != NULL; i++)
        if (a->vecs[i]->kind == SL_VEC_GOAL && a->vecs[i]->aux != NULL) {
            const struct sl_goal *g = a->vecs[i]->aux;
            if (g->object != NULL)
                sl_free(g->object->free_sigs);
        }
    sl_schema_deinit(&a->schema);
    sl_rx_deinit(&a->rx);
    sl_arena_deinit(&a->arena);
    sl_free(a->vecs);
    sl_intern_deinit(&a->index);
    sl_free(a->pos);
    sl_free(a->splits);
    sl_free(a->memo);
    sl_free(a->memo_to);
    memset(a, 0, sizeof *a);
}

uint32_t sl_auto_add_pos(struct sl_auto *a, struct sl_pos pos)
{
    SL_ASSERT(pos.op <= POS_GUARD && a->n_pos <= a->cap_pos);
    if (a->n_pos == a->cap_pos) {
        uint32_t cap = a->cap_pos == 0 ? 64 : a->cap_pos * 2;
        void *p = cap > 1u << 20 ? NULL : sl_realloc(a->pos, cap * sizeof a->pos[0]);
        if (p == NULL)
            return sl_auto_fail(a, SL_ELIMIT, "the grammar has too many parts");
        a->pos = p;
        a->cap_pos = cap;
    }
    a->pos[a->n_pos] = pos;
    return a->n_pos++;
}

/* Names that no schema lists lead to values that nobody has looked at: of those that match no
 * pattern, and of those that match one. What their schemas run into shows before the first byte. */
static void look_at_other_names(struct sl_auto *a, struct sl_goal *g)
{
    struct sl_plan *p = g->object;
    bool any = false; /* else such values are all allowed, or none */
    SL_ASSERT(p != NULL && p->object);
    for (uint32_t l = 0; l < p->n_locals; l++) {
        const struct sl_schema_node *n = &a->schema.nodes[p->locals[l]];
        any = any || n->n_patterns > 0 || n->additional > SL_NODE_FALSE ||
              n->uneval_props > SL_NODE_FALSE;
    }
    uint32_t id = any ? sl_frame_open(a, g, true, 0, 0) : 0;
    for (uint32_t k = 0; id != 0 && k <= p->n_patterns && a->failed == NULL; k++) {
        uint32_t class = sl_plan_free_class(a, p, k == 0 ? 0 : 1ull << (k - 1));
        if (a->failed == NULL)
            (void)sl_frame_named(a, p, sl_vec_at(a, id), class, 0);
    }
}

uint32_t sl_auto_json_goal(struct sl_auto *a, uint32_t node)
{
    SL_ASSERT(node != SL_NODE_NONE && node < a->schema.n_nodes);
    uint32_t roots[] = {node};
    uint32_t req = node == SL_NODE_TRUE    ? EXPR_TRUE
                   : node == SL_NODE_FALSE ? EXPR_FALSE
                                           : LEAF(node);
    struct sl_goal *g = sl_goal_of(a, req, roots, node > SL_NODE_FALSE);
    if (g != NULL)
        (void)sl_goal_sat(a, g); /* looks into all of it: what is not supported shows here */
    for (uint32_t i = 1; i < a->n_vecs && a->sat_cut && a->failed == NULL; i++)
        if (a->vecs[i]->kind == SL_VEC_GOAL && a->vecs[i]->aux != NULL)
            (void)sl_goal_sat(a, a->vecs[i]->aux);
    for (uint32_t i = 1; i < a->n_vecs && a->failed == NULL && a->rx.failed == NULL; i++) {
        struct sl_goal *x = a->vecs[i]->kind == SL_VEC_GOAL ? a->vecs[i]->aux : NULL;
        if (x != NULL && x->object != NULL)
            look_at_other_names(a, x);
    }
    return g == NULL ? 0 : g->id;
}
