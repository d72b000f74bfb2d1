/* SPDX-License-Identifier: MIT
 * auto_frame.c - objects and arrays while they are read.
 *
 * Truth has three values: a node is false once no continuation can satisfy it, true once none can
 * fail it, open before that. What decides whether a byte is allowed is that the requirement is not
 * false; what decides whether the value may end is that it is true with nothing more to come.
 */
#include "base/check.h"
#include "base/hash.h"
#include "base/limits.h"
#include "base/sys.h"
#include "grammar/auto_impl.h"

#include <string.h>

enum { MAX_DEPTH = 100 };

struct sl_plan *sl_frame_plan(struct sl_auto *a, const struct sl_vec *f)
{
    struct sl_goal *g = sl_vec_at(a, f->v[FR_REF])->aux;
    SL_ASSERT(f->kind == SL_VEC_OBJECT || f->kind == SL_VEC_ARRAY);
    SL_ASSERT((f->kind == SL_VEC_OBJECT ? g->object : g->array) != NULL);
    return f->kind == SL_VEC_OBJECT ? g->object : g->array;
}

static uint64_t auto_frame_failed_of(const struct sl_vec *f)
{
    return (uint64_t)f->v[FR_FAILED_HI] << 32 | f->v[FR_FAILED_LO];
}

/* Members that are there: complete ones and the one being read. */
static uint32_t members(const struct sl_vec *f)
{
    SL_ASSERT(f->v[FR_PHASE] <= PH_CLOSE);
    bool begun =
        f->v[FR_PHASE] == PH_COLON || (f->kind == SL_VEC_OBJECT && f->v[FR_PHASE] == PH_VALUE);
    return f->v[FR_COUNT] + begun;
}

/* Can nothing that may still come fail the local? */
static bool inert(const struct sl_plan *p, const struct sl_vec *f, const struct sl_schema_node *n,
                  uint32_t l)
{
    SL_ASSERT(p->object && l < p->n_locals);
    if (n->n_patterns > 0 || (n->additional != SL_NODE_NONE && n->additional != SL_NODE_TRUE) ||
        n->names != SL_NODE_NONE || n->uneval_props != SL_NODE_NONE || n->max_props != UINT32_MAX ||
        n->n_deps > 0)
        return false;
    bool reading = f->v[FR_PHASE] == PH_COLON || f->v[FR_PHASE] == PH_VALUE;
    for (uint32_t i = 0; i < p->n_names; i++) {
        uint32_t node = p->props[(size_t)i * p->n_locals + l];
        bool open = !sl_frame_seen(f, i) || (reading && f->v[FR_CLASS] == i);
        if (node != SL_NODE_NONE && node != SL_NODE_TRUE && open)
            return false;
    }
    return true;
}

/* Members that unevaluated* rejected and that nothing else looks at, now that all is known. */
static bool pending_fails(struct sl_auto *a, const struct sl_plan *p, const struct sl_vec *f,
                          uint32_t l)
{
    uint32_t n_words = p->object ? (p->n_names + 31) / 32 + 1 : 1;
    SL_ASSERT(p->word_of[l] != UINT32_MAX && FR_WORDS + p->word_of[l] + n_words <= f->n);
    const uint32_t *w = &f->v[FR_WORDS + p->word_of[l]];
    for (uint32_t i = 0; i < n_words; i++)
        for (uint32_t m = w[i]; m != 0; m &= m - 1) {
            uint32_t bit = (uint32_t)__builtin_ctz(m);
            uint32_t class = p->object && i + 1 == n_words ? p->n_names + bit : i * 32 + bit;
            if (sl_plan_covers(a, p, f, p->locals[l], class, 0) != IS_TRUE)
                return true;
        }
    return false;
}

static enum truth object_truth(struct sl_auto *a, const struct sl_plan *p, const struct sl_vec *f,
                               uint32_t l, bool end)
{
    const struct sl_schema_node *n = &a->schema.nodes[p->locals[l]];
    uint32_t missing = 0, count = members(f);
    SL_ASSERT(p->object && l < p->n_locals);
    if ((auto_frame_failed_of(f) >> l & 1) != 0 || count > n->max_props)
        return IS_FALSE;
    for (uint32_t i = 0; i < n->n_required; i++) {
        uint32_t at = p->asked[l][i];
        if (!sl_frame_seen(f, at)) {
            missing++;
            if (p->name_allowed != NULL && (p->name_allowed[at / 32] >> (at & 31) & 1) == 0)
                return IS_FALSE;
        }
    }
    for (uint32_t i = 0; i < n->n_deps; i++) {
        const uint32_t *at = sl_plan_dep(p, n, l, i);
        for (uint32_t k = 1; k <= n->deps[i].n_required && sl_frame_seen(f, at[0]); k++)
            missing += !sl_frame_seen(f, at[k]);
    }
    if (end)
        return missing > 0 || count < n->min_props ||
                       (n->uneval_props != SL_NODE_NONE && pending_fails(a, p, f, l))
                   ? IS_FALSE
                   : IS_TRUE;
    if (n->max_props != UINT32_MAX && missing > n->max_props - count && n->n_deps == 0)
        return IS_FALSE;
    return missing == 0 && count >= n->min_props && inert(p, f, n, l) ? IS_TRUE : IS_OPEN;
}

static enum truth array_truth(struct sl_auto *a, const struct sl_plan *p, const struct sl_vec *f,
                              uint32_t l, bool end)
{
    const struct sl_schema_node *n = &a->schema.nodes[p->locals[l]];
    uint32_t idx = f->v[FR_COUNT], found = 0;
    uint32_t most = p->indexed ? SL_MIN(n->max_items, (uint32_t)MAX_INDEXED) : n->max_items;
    bool contains = n->contains != SL_NODE_NONE, more = f->v[FR_PHASE] == PH_VALUE;
    SL_ASSERT(!p->object && (!contains || p->word_of[l] + 2 < p->n_words));
    if (contains)
        found = f->v[FR_WORDS + p->word_of[l] + 1];
    if ((auto_frame_failed_of(f) >> l & 1) != 0 || idx + (more && !end) > n->max_items ||
        (contains && found > n->max_contains))
        return IS_FALSE;
    if (end)
        return idx < n->min_items || (contains && found < n->min_contains) ||
                       (n->uneval_items != SL_NODE_NONE && pending_fails(a, p, f, l))
                   ? IS_FALSE
                   : IS_TRUE;
    if (n->min_items > most || (contains && most != UINT32_MAX && found < n->min_contains &&
                                most - SL_MIN(idx, most) < n->min_contains - found))
        return IS_FALSE;
    bool quiet = n->items == SL_NODE_NONE || n->items == SL_NODE_TRUE;
    return quiet && !more && idx >= n->prefix.n && idx >= n->min_items &&
                   n->max_items == UINT32_MAX && n->uneval_items == SL_NODE_NONE &&
                   (!contains || (found >= n->min_contains && n->max_contains == UINT32_MAX))
               ? IS_TRUE
               : IS_OPEN;
}

static enum truth both(enum truth x, enum truth y)
{
    return x < y ? x : y;
}

static enum truth list_truth(struct sl_auto *a, const struct sl_plan *p, const struct sl_vec *f,
                             const struct sl_nodes *list, bool one, bool end, int depth)
{
    uint32_t n_true = 0, n_open = 0;
    for (uint32_t i = 0; i < list->n; i++) {
        enum truth t = sl_frame_truth(a, p, f, list->v[i], end, depth + 1);
        n_true += t == IS_TRUE;
        n_open += t == IS_OPEN;
        if (!one && t == IS_TRUE)
            return IS_TRUE;
    }
    SL_ASSERT(n_true + n_open <= list->n);
    if (n_true > 1 || n_true + n_open == 0)
        return IS_FALSE;
    return n_open == 0 ? IS_TRUE : IS_OPEN;
}

static enum truth node_truth(struct sl_auto *a, const struct sl_plan *p, const struct sl_vec *f,
                             uint32_t node, bool end, int depth)
{
    const struct sl_schema_node *n = &a->schema.nodes[node];
    enum truth t = IS_TRUE;
    uint32_t own = 0;
    for (uint32_t l = 0; l < p->n_locals; l++)
        if (p->locals[l] == node) {
            t = p->object ? object_truth(a, p, f, l, end) : array_truth(a, p, f, l, end);
            own = l;
        }
    for (uint32_t i = 0; i < n->all_of.n && t != IS_FALSE; i++)
        t = both(t, sl_frame_truth(a, p, f, n->all_of.v[i], end, depth + 1));
    if (n->any_of.n > 0 && t != IS_FALSE)
        t = both(t, list_truth(a, p, f, &n->any_of, false, end, depth));
    if (n->one_of.n > 0 && t != IS_FALSE)
        t = both(t, list_truth(a, p, f, &n->one_of, true, end, depth));
    if (n->not_node != SL_NODE_NONE && t != IS_FALSE)
        t = both(t, IS_TRUE - sl_frame_truth(a, p, f, n->not_node, end, depth + 1));
    if (n->if_node != SL_NODE_NONE && t != IS_FALSE) {
        enum truth c = sl_frame_truth(a, p, f, n->if_node, end, depth + 1), yes = IS_TRUE,
                   no = IS_TRUE;
        if (n->then_node != SL_NODE_NONE)
            yes = sl_frame_truth(a, p, f, n->then_node, end, depth + 1);
        if (n->else_node != SL_NODE_NONE)
            no = sl_frame_truth(a, p, f, n->else_node, end, depth + 1);
        t = both(t, c == IS_TRUE ? yes : c == IS_FALSE ? no : yes == no ? yes : IS_OPEN);
    }
    for (uint32_t i = 0; i < n->n_deps && p->object && t != IS_FALSE; i++) {
        if (n->deps[i].node == SL_NODE_NONE)
            continue;
        enum truth d = sl_frame_truth(a, p, f, n->deps[i].node, end, depth + 1);
        bool here = sl_frame_seen(f, sl_plan_dep(p, n, own, i)[0]);
        t = both(t, here ? d : end || d == IS_TRUE ? IS_TRUE : IS_OPEN);
    }
    return t;
}

/* Schemas refer to one another, so a frame is asked for the truth of the same node many times. What
 * is known costs time as well: the callers walk from schema to schema by it, and the paths through
 * schemas that are shared may be exponentially many. */
enum truth sl_frame_truth(struct sl_auto *a, const struct sl_plan *p, const struct sl_vec *f,
                          uint32_t node, bool end, int depth)
{
    SL_ASSERT(node != SL_NODE_NONE && node < a->schema.n_nodes);
    const struct sl_schema_node *n = &a->schema.nodes[node];
    if ((n->types & (p->object ? SL_JSON_OBJECT : SL_JSON_ARRAY)) == 0)
        return IS_FALSE;
    if (!sl_auto_spend(a, 1))
        return IS_FALSE;
    const uint64_t key = (uint64_t)(uintptr_t)f ^ (uint64_t)node << 33 ^ (uint64_t)end << 32;
    struct sl_truth_memo *m = &a->truths[sl_mix64(key) % SL_TRUTH_MEMO];
    if (m->frame == f && m->names == p->name_allowed && m->node == node && m->end == end)
        return (enum truth)m->truth;
    if (depth > MAX_DEPTH) {
        a->n_cut++;
        return IS_FALSE;
    }
    const uint64_t n_cut = a->n_cut;
    if (!sl_auto_spend(a, n->n_required / 16))
        return IS_FALSE;
    const enum truth t = node_truth(a, p, f, node, end, depth);
    if (a->n_cut == n_cut && a->failed == NULL && a->rx.failed == NULL)
        *m = (struct sl_truth_memo){f, p->name_allowed, node, end, (uint8_t)t};
    return t;
}

static enum truth expr_truth(struct sl_auto *a, const struct sl_plan *p, const struct sl_vec *f,
                             uint32_t expr)
{
    if (expr == EXPR_FALSE || expr == EXPR_TRUE)
        return expr == EXPR_TRUE ? IS_TRUE : IS_FALSE;
    if ((expr & 1) != 0)
        return sl_frame_truth(a, p, f, expr >> 1, false, 0);
    const struct sl_vec *x = sl_vec_at(a, expr >> 1);
    SL_ASSERT(x->kind == SL_VEC_AND || x->kind == SL_VEC_OR);
    enum truth out = x->kind == SL_VEC_OR ? IS_FALSE : IS_TRUE;
    for (uint32_t i = 0; i < x->n; i++) {
        enum truth t = expr_truth(a, p, f, x->v[i]);
        out = x->kind == SL_VEC_OR ? (t > out ? t : out) : both(out, t);
    }
    return out;
}

bool sl_frame_may_end(struct sl_auto *a, const struct sl_plan *p, const struct sl_vec *f,
                      uint64_t *truths)
{
    SL_ASSERT(p->goal->n_roots <= MAX_WANTED);
    *truths = 0;
    if (f->v[FR_AVOID] != 0 && sl_kept_is_avoided(a, f))
        return false;
    for (uint32_t i = 0; i < p->goal->n_roots; i++)
        if (sl_frame_truth(a, p, f, p->goal->roots[i], true, 0) == IS_TRUE)
            *truths |= 1ull << i;
    return sl_expr_true(a, p->goal->req, p->goal, *truths);
}

/* ---------------------------------------------------------------- what a member must satisfy */

struct lift { /* an expression over this value's nodes to one over a member's, or to a language */
    struct sl_auto *a;
    const struct sl_plan *p;
    const struct sl_vec *f;
    uint32_t class;
};

/* The contains of all schemas that may apply with this one. */
static uint32_t all_contains(struct lift *x, uint32_t *out)
{
    uint32_t n = 0;
    for (uint32_t l = 0; l < x->p->n_locals; l++) {
        uint32_t node = x->a->schema.nodes[x->p->locals[l]].contains;
        if (node != SL_NODE_NONE)
            out[n++] = node == SL_NODE_TRUE    ? EXPR_TRUE
                       : node == SL_NODE_FALSE ? EXPR_FALSE
                                               : LEAF(node);
    }
    return n;
}

/* Does anything but contains possibly look at items of that class? */
static bool only_contains(const struct lift *x, uint32_t local)
{
    for (uint32_t l = 0; l < x->p->n_locals; l++) {
        const struct sl_schema_node *n = &x->a->schema.nodes[x->p->locals[l]];
        if (x->class < n->prefix.n || n->items != SL_NODE_NONE ||
            (l != local && n->uneval_items != SL_NODE_NONE))
            return false;
    }
    return sl_plan_covers(x->a, x->p, NULL, x->p->locals[local], x->class, 0) == IS_OPEN;
}

static uint32_t lift_local(struct lift *x, uint32_t l)
{
    uint32_t v[MAX_WANTED + 2], n;
    const struct sl_schema_node *node = &x->a->schema.nodes[x->p->locals[l]];
    if ((auto_frame_failed_of(x->f) >> l & 1) != 0)
        return EXPR_FALSE;
    n = sl_plan_wanted(x->a, x->p, l, x->class, v);
    SL_ASSERT(n < SL_COUNT(v));
    if (!x->p->object && node->contains != SL_NODE_NONE && node->max_items != UINT32_MAX) {
        uint32_t found = x->f->v[FR_WORDS + x->p->word_of[l] + 1];
        if (found < node->min_contains &&
            node->max_items - x->f->v[FR_COUNT] <= node->min_contains - found)
            v[n++] = node->contains; /* no item may be spent on anything else */
    }
    for (uint32_t i = 0; i < n; i++)
        v[i] = v[i] == SL_NODE_TRUE ? EXPR_TRUE : v[i] == SL_NODE_FALSE ? EXPR_FALSE : LEAF(v[i]);
    uint32_t uneval = x->p->object ? SL_NODE_NONE : node->uneval_items;
    if (n == 0 && uneval != SL_NODE_NONE && uneval != SL_NODE_TRUE && only_contains(x, l)) {
        uint32_t some[MAX_WANTED + 1], k = all_contains(x, some);
        some[k++] = uneval == SL_NODE_FALSE ? EXPR_FALSE : LEAF(uneval);
        v[n++] = sl_expr_list(x->a, SL_VEC_OR, some, k); /* nothing else can evaluate it */
    }
    return sl_expr_list(x->a, SL_VEC_AND, v, n);
}

/* The weakest requirement on the member under which the node may still become true. */
static uint32_t lift_node(struct lift *x, uint32_t node, int depth)
{
    const struct sl_schema_node *n = &x->a->schema.nodes[node];
    uint32_t v[MAX_WANTED + 8], k = 0, alts[MAX_WANTED], n_alts, own = 0;
    if (depth > MAX_DEPTH || sl_frame_truth(x->a, x->p, x->f, node, false, 0) == IS_FALSE)
        return EXPR_FALSE;
    for (uint32_t l = 0; l < x->p->n_locals; l++)
        if (x->p->locals[l] == node) {
            v[k++] = lift_local(x, l);
            own = l;
        }
    for (uint32_t i = 0; i < n->all_of.n; i++) {
        v[k++] = lift_node(x, n->all_of.v[i], depth + 1);
        if (k == MAX_WANTED) {
            v[0] = sl_expr_list(x->a, SL_VEC_AND, v, k);
            k = 1;
        }
    }
    for (int which = 0; which < 2; which++) {
        const struct sl_nodes *list = which == 0 ? &n->any_of : &n->one_of;
        n_alts = 0;
        for (uint32_t i = 0; i < list->n; i++) {
            alts[n_alts++] = lift_node(x, list->v[i], depth + 1);
            if (n_alts == MAX_WANTED) {
                alts[0] = sl_expr_list(x->a, SL_VEC_OR, alts, n_alts);
                n_alts = 1;
            }
        }
        if (list->n > 0)
            v[k++] = sl_expr_list(x->a, SL_VEC_OR, alts, n_alts);
    }
    if (n->if_node != SL_NODE_NONE) {
        uint32_t c = lift_node(x, n->if_node, depth + 1), yes = EXPR_TRUE, no = EXPR_TRUE;
        enum truth t = sl_frame_truth(x->a, x->p, x->f, n->if_node, false, 0);
        if (n->then_node != SL_NODE_NONE)
            yes = lift_node(x, n->then_node, depth + 1);
        if (n->else_node != SL_NODE_NONE)
            no = lift_node(x, n->else_node, depth + 1);
        alts[0] = sl_expr_list(x->a, SL_VEC_AND, (uint32_t[]){c, yes}, 2);
        alts[1] = t == IS_TRUE ? EXPR_FALSE : no;
        v[k++] = sl_expr_list(x->a, SL_VEC_OR, alts, 2);
    }
    for (uint32_t i = 0; i < n->n_deps && x->p->object; i++) {
        if (n->deps[i].node == SL_NODE_NONE ||
            !sl_frame_seen(x->f, sl_plan_dep(x->p, n, own, i)[0]))
            continue;
        v[k++] = lift_node(x, n->deps[i].node, depth + 1);
        if (k >= MAX_WANTED) {
            v[0] = sl_expr_list(x->a, SL_VEC_AND, v, k);
            k = 1;
        }
    }
    SL_ASSERT(k <= SL_COUNT(v));
    return sl_expr_list(x->a, SL_VEC_AND, v, k);
}

static uint32_t lift_expr(struct lift *x, uint32_t expr)
{
    uint32_t v[MAX_WANTED], k = 0;
    if (expr == EXPR_FALSE || expr == EXPR_TRUE)
        return expr;
    if ((expr & 1) != 0)
        return lift_node(x, expr >> 1, 0);
    const struct sl_vec *e = sl_vec_at(x->a, expr >> 1);
    SL_ASSERT(e->kind == SL_VEC_AND || e->kind == SL_VEC_OR);
    for (uint32_t i = 0; i < e->n; i++) {
        v[k++] = lift_expr(x, e->v[i]);
        if (k == MAX_WANTED) {
            v[0] = sl_expr_list(x->a, (enum sl_vec_kind)e->kind, v, k);
            k = 1;
        }
    }
    return sl_expr_list(x->a, (enum sl_vec_kind)e->kind, v, k);
}

/* Nodes whose truth on the member decides about locals, beyond the requirement. */
static uint32_t watched(struct lift *x, uint32_t l, uint32_t *v)
{
    const struct sl_schema_node *n = &x->a->schema.nodes[x->p->locals[l]];
    uint32_t k = sl_plan_wanted(x->a, x->p, l, x->class, v);
    uint32_t uneval = x->p->object ? n->uneval_props : n->uneval_items;
    if (k == 0 && uneval != SL_NODE_NONE &&
        sl_plan_covers(x->a, x->p, NULL, x->p->locals[l], x->class, 0) == IS_OPEN)
        v[k++] = uneval;
    if (!x->p->object && n->contains != SL_NODE_NONE)
        v[k++] = n->contains;
    SL_ASSERT(k <= MAX_WANTED + 2);
    return k;
}

static struct sl_goal *member_goal(struct sl_auto *a, struct sl_plan *p, const struct sl_vec *f)
{
    uint32_t roots[MAX_WANTED * 3], n = 0, v[MAX_WANTED + 2];
    uint32_t class = p->object ? f->v[FR_CLASS] : f->v[FR_COUNT];
    SL_ASSERT(!p->object || class < p->n_names + p->n_free);
    bool named = p->object && p->simple && class < p->n_names;
    if (named && p->name_goals[class] != NULL)
        return p->name_goals[class];
    struct lift x = {a, p, f, class};
    uint32_t req = lift_expr(&x, p->goal->req);
    for (uint32_t l = 0; l < p->n_locals; l++) {
        if ((auto_frame_failed_of(f) >> l & 1) != 0)
            continue;
        uint32_t k = watched(&x, l, v);
        for (uint32_t i = 0; i < k; i++)
            if (v[i] > SL_NODE_FALSE && n < SL_COUNT(roots)) {
                uint32_t j = 0;
                while (j < n && roots[j] != v[i])
                    j++;
                roots[j] = v[i];
                n += j == n;
            }
    }
    SL_ASSERT(n <= SL_COUNT(roots));
    struct sl_goal *g = sl_goal_of(a, req, roots, n);
    if (named && g != NULL)
        p->name_goals[class] = g;
    return g;
}

/* Asked for every byte that a member might begin with. */
struct sl_goal *sl_frame_member(struct sl_auto *a, struct sl_plan *p, const struct sl_vec *f)
{
    SL_ASSERT(f->kind == SL_VEC_OBJECT || f->kind == SL_VEC_ARRAY);
    struct sl_member_memo *m = &a->members[sl_mix64((uint64_t)(uintptr_t)f) % SL_MEMBER_MEMO];
    if (m->frame == f && m->names == p->name_allowed)
        return m->goal;
    const uint64_t n_cut = a->n_cut;
    struct sl_goal *g = member_goal(a, p, f);
    if (g != NULL && a->n_cut == n_cut && a->failed == NULL && a->rx.failed == NULL)
        *m = (struct sl_member_memo){f, p->name_allowed, g};
    return g;
}

/* Does node hold for the member, by the truths of its goal's roots? */
static bool holds(const struct sl_goal *g, uint32_t node, uint64_t truths)
{
    SL_ASSERT(g->n_roots <= MAX_WANTED);
    if (node <= SL_NODE_FALSE)
        return node == SL_NODE_TRUE;
    for (uint32_t i = 0; i < g->n_roots; i++)
        if (g->roots[i] == node)
            return (truths >> i & 1) != 0;
    return false;
}

/* ---------------------------------------------------------------- moves */

static uint32_t auto_frame_intern(struct sl_auto *a, enum sl_vec_kind kind, const uint32_t *v,
                                  uint32_t n)
{
    return sl_vec_of(a, kind, v, n);
}

/* A copy to change; room for more words. */
static uint32_t *copy_of(struct sl_auto *a, const struct sl_vec *f, uint32_t more)
{
    uint32_t *v = sl_malloc((f->n + more) * sizeof *v);
    if (v == NULL)
        sl_auto_fail(a, SL_ENOMEM, "out of memory");
    else
        memcpy(v, f->v, f->n * sizeof *v);
    return v;
}

uint32_t sl_frame_phase(struct sl_auto *a, const struct sl_vec *f, enum sl_phase phase)
{
    SL_ASSERT(phase <= PH_CLOSE);
    uint32_t *v = copy_of(a, f, 0);
    if (v == NULL)
        return 0;
    v[FR_PHASE] = phase;
    uint32_t id = auto_frame_intern(a, (enum sl_vec_kind)f->kind, v, f->n);
    sl_free(v);
    return id;
}

static bool alive(struct sl_auto *a, struct sl_plan *p, uint32_t frame)
{
    uint64_t truths;
    if (frame != 0 && sl_vec_at(a, frame)->v[FR_AVOID] != 0)
        return sl_kept_has_way(a, p, frame);
    if (frame == 0 || sl_frame_may_end(a, p, sl_vec_at(a, frame), &truths))
        return frame != 0;
    return sl_frame_may_grow(a, p, frame) &&
           (!p->object || !p->exclusive || sl_frame_has_way(a, p, frame));
}

/* Whatever the items before one that must come are, is there a value left for it? */
static bool enough_values(struct sl_auto *a, struct sl_plan *p, uint32_t frame)
{
    const struct sl_vec *f = sl_vec_at(a, frame);
    uint32_t *v = copy_of(a, f, 0), n_prefix = 0;
    bool ok = v != NULL;
    SL_ASSERT(p->unique && f->kind == SL_VEC_ARRAY);
    for (uint32_t l = 0; l < p->n_locals; l++)
        n_prefix = SL_MAX(n_prefix, a->schema.nodes[p->locals[l]].prefix.n);
    for (uint32_t i = 0; i < p->min_items && ok; i++) {
        if (i >= n_prefix && i + 1 < p->min_items)
            continue; /* the same goal as the last one's */
        v[FR_PHASE] = PH_VALUE;
        v[FR_COUNT] = i;
        uint32_t at = auto_frame_intern(a, SL_VEC_ARRAY, v, f->n);
        struct sl_goal *g = at == 0 ? NULL : sl_frame_member(a, p, sl_vec_at(a, at));
        ok = i == 0 ? sl_goal_sat(a, g) : g != NULL && sl_goal_n_values(a, g) > i;
    }
    sl_free(v);
    return ok;
}

uint32_t sl_frame_open(struct sl_auto *a, struct sl_goal *g, bool object, uint32_t parent,
                       uint32_t depth)
{
    return sl_frame_open_kept(a, g, object, parent, depth, 0, 0);
}

uint32_t sl_frame_open_kept(struct sl_auto *a, struct sl_goal *g, bool object, uint32_t parent,
                            uint32_t depth, uint32_t kept, uint32_t avoid)
{
    struct sl_plan *p = sl_plan_of(a, g, object);
    SL_ASSERT(parent < a->n_vecs);
    if (p == NULL || depth > a->limits.max_depth)
        return 0;
    uint32_t n = FR_WORDS + p->n_words, *v = sl_calloc(n, sizeof *v);
    if (v == NULL)
        return sl_auto_fail(a, SL_ENOMEM, "out of memory");
    v[FR_PARENT] = parent;
    v[FR_REF] = g->id;
    v[FR_PHASE] = PH_OPEN;
    v[FR_DEPTH] = depth;
    v[FR_KEPT] = kept;
    v[FR_AVOID] = avoid;
    uint32_t id = auto_frame_intern(a, object ? SL_VEC_OBJECT : SL_VEC_ARRAY, v, n);
    sl_free(v);
    if (id != 0 && object) /* knows then which required names can be given at all */
        (void)sl_frame_names(a, p, sl_frame_stripped(a, id));
    if (id == 0 || expr_truth(a, p, sl_vec_at(a, id), g->req) == IS_FALSE)
        return 0;
    if (!object && p->unique && !enough_values(a, p, id))
        return 0;
    return alive(a, p, id) ? id : 0;
}

uint32_t sl_frame_with_name(struct sl_auto *a, struct sl_plan *p, const struct sl_vec *f,
                            uint32_t class, uint32_t text)
{
    SL_ASSERT(p->object && class < p->n_names + p->n_free);
    bool keep = p->track_keys && class >= p->n_names;
    uint32_t *v = copy_of(a, f, 1), n = f->n;
    if (v == NULL)
        return 0;
    uint64_t failed = auto_frame_failed_of(f);
    uint64_t sig = class < p->n_names ? p->names[class].patterns : p->free_sigs[class - p->n_names];
    for (uint32_t i = 0; i < p->n_patterns; i++)
        if (p->patterns[i].node == SL_NODE_NONE && (sig >> i & 1) == 0)
            failed |= 1ull << p->patterns[i].local;
    v[FR_PHASE] = PH_COLON;
    v[FR_CLASS] = class;
    v[FR_FAILED_LO] = (uint32_t)failed;
    v[FR_FAILED_HI] = (uint32_t)(failed >> 32);
    if (class < p->n_names)
        v[FR_WORDS + class / 32] |= 1u << (class & 31);
    for (uint32_t i = FR_WORDS + p->n_words; i < f->n && keep; i++)
        if (f->v[i] == text) {
            sl_free(v);
            return 0;
        }
    if (keep)
        v[n++] = text;
    if (f->v[FR_KEPT] != 0)
        v[FR_KEPT] = sl_kept_named(a, p, f, class, text, &v[FR_AVOID]);
    uint32_t id = auto_frame_intern(a, SL_VEC_OBJECT, v, n);
    sl_free(v);
    return id == 0 || expr_truth(a, p, sl_vec_at(a, id), p->goal->req) == IS_FALSE ? 0 : id;
}

uint32_t sl_frame_named(struct sl_auto *a, struct sl_plan *p, const struct sl_vec *f,
                        uint32_t class, uint32_t text)
{
    uint32_t id = sl_frame_with_name(a, p, f, class, text);
    struct sl_goal *g = id == 0 ? NULL : sl_frame_member(a, p, sl_vec_at(a, id));
    if (g == NULL || !sl_goal_sat(a, g))
        return 0;
    uint32_t avoid = sl_vec_at(a, id)->v[FR_AVOID];
    if (avoid != 0 && sl_goal_n_values(a, g) <= sl_vec_at(a, avoid)->n &&
        !sl_goal_sat_without(a, g, sl_frame_avoid(a, p, sl_vec_at(a, id), g)))
        return 0;
    return !p->exclusive || sl_frame_value_leads_on(a, p, f, id, g) ? id : 0;
}

uint32_t sl_frame_after(struct sl_auto *a, struct sl_plan *p, const struct sl_vec *f,
                        const struct sl_goal *g, uint64_t truths, uint32_t datum)
{
    uint32_t class = p->object ? f->v[FR_CLASS] : f->v[FR_COUNT], wanted[MAX_WANTED + 2];
    uint32_t *v = g == NULL ? NULL : copy_of(a, f, 0);
    uint64_t failed = auto_frame_failed_of(f);
    if (v == NULL)
        return 0;
    for (uint32_t l = 0; l < p->n_locals; l++) {
        const struct sl_schema_node *n = &a->schema.nodes[p->locals[l]];
        if ((failed >> l & 1) != 0)
            continue;
        uint32_t k = sl_plan_wanted(a, p, l, class, wanted);
        SL_ASSERT(k <= SL_COUNT(wanted));
        for (uint32_t i = 0; i < k; i++)
            if (!holds(g, wanted[i], truths))
                failed |= 1ull << l;
        uint32_t *w = p->word_of[l] == UINT32_MAX ? NULL : &v[FR_WORDS + p->word_of[l]];
        bool contained = !p->object && n->contains != SL_NODE_NONE && holds(g, n->contains, truths);
        SL_ASSERT(!contained || w != NULL);
        if (contained && f->v[FR_COUNT] < MAX_INDEXED)
            w[2] |= 1u << f->v[FR_COUNT];
        if (contained && w[1] < UINT32_MAX)
            w[1] =
                SL_MIN(w[1] + 1, SL_MAX(n->min_contains,
                                        n->max_contains == UINT32_MAX ? 0 : n->max_contains + 1));
        uint32_t uneval = p->object ? n->uneval_props : n->uneval_items;
        if (k == 0 && uneval != SL_NODE_NONE && !holds(g, uneval, truths) && !contained &&
            sl_plan_covers(a, p, NULL, p->locals[l], class, 0) == IS_OPEN) {
            uint32_t words = (p->n_names + 31) / 32, other = class - p->n_names;
            uint32_t bit = p->object ? (class < p->n_names ? class : words * 32 + other) : class;
            if ((p->object && class >= p->n_names && other > 31) || (!p->object && class > 31)) {
                sl_free(v);
                return 0; /* more than there are bits for: refused rather than forgotten */
            }
            SL_ASSERT(w != NULL && w + bit / 32 < v + f->n);
            w[bit / 32] |= 1u << (bit & 31);
        }
    }
    v[FR_FAILED_LO] = (uint32_t)failed;
    v[FR_FAILED_HI] = (uint32_t)(failed >> 32);
    v[FR_PHASE] = PH_NEXT;
    v[FR_CLASS] = 0;
    v[FR_COUNT] = SL_MIN(f->v[FR_COUNT] + 1, p->cap);
    if (p->unique)
        v[FR_WORDS + p->seen_word] = sl_seen_with(a, sl_frame_seen_items(p, f),
                                                  datum == DATUM_OTHER ? DATUM_UNKNOWN : datum);
    if (f->v[FR_KEPT] != 0)
        v[FR_KEPT] = sl_kept_member(a, f, datum, &v[FR_AVOID]);
    uint32_t id = auto_frame_intern(a, (enum sl_vec_kind)f->kind, v, f->n);
    sl_free(v);
    return id == 0 || expr_truth(a, p, sl_vec_at(a, id), p->goal->req) == IS_FALSE ? 0 : id;
}

uint32_t sl_frame_member_done(struct sl_auto *a, struct sl_plan *p, const struct sl_vec *f,
                              uint64_t truths, uint32_t datum)
{
    uint32_t id = sl_frame_after(a, p, f, sl_frame_member(a, p, f), truths, datum);
    return alive(a, p, id) ? id : 0;
}

/* ---------------------------------------------------------------- scalars of a member */

static uint32_t part_scalars(struct sl_auto *a, const struct sl_goal *g, struct scalar_case *c)
{
    struct sl_rx *rx = &a->rx;
    uint32_t n = g->scalar != SL_RX_NONE;
    c[0] = (struct scalar_case){g->scalar, 0};
    if (g->n_roots > MAX_CASES) /* each of which is likely to make a part of its own */
        return 0;
    for (uint32_t r = 0; r < g->n_roots; r++) {
        sl_rx_id node = a->schema.nodes[g->roots[r]].scalar;
        for (uint32_t i = 0, end = n; i < end; i++) {
            sl_rx_id in = sl_rx_and2(rx, c[i].rx, node);
            if (!sl_rx_alive(rx, in))
                continue;
            sl_rx_id out = sl_rx_and2(rx, c[i].rx, sl_rx_not(rx, node));
            bool both = sl_rx_alive(rx, out);
            if (both && n == MAX_CASES)
                return 0;
            if (both)
                c[n++] = (struct scalar_case){out, c[i].truths};
            c[i] = (struct scalar_case){in, c[i].truths | 1ull << r};
        }
    }
    return n;
}

uint32_t sl_scalar_cases(struct sl_auto *a, struct sl_goal *g, const struct scalar_case **out)
{
    struct scalar_case c[MAX_CASES];
    if (g->cases == NULL) {
        g->n_cases = part_scalars(a, g, c);
        g->cases = sl_arena_array(&a->arena, g->n_cases + 1, sizeof c[0]);
        if (g->cases == NULL)
            return sl_auto_no_room(a);
        memcpy(g->cases, c, g->n_cases * sizeof c[0]);
    }
    *out = g->cases;
    return g->n_cases;
}

/* Of a member that is a scalar only those may come behind which the frame can still end well. */
uint32_t sl_frame_scalars(struct sl_auto *a, struct sl_plan *p, uint32_t frame, struct sl_goal *g)
{
    struct sl_vec *f = frame == 0 ? NULL : sl_vec_at(a, frame);
    if (g->scalar == SL_RX_NONE)
        return 0;
    if (g->pure || !p->exclusive || f == NULL)
        return g->lex;
    SL_ASSERT(f->v[FR_PHASE] == PH_VALUE);
    if (f->aux != NULL)
        return *(uint32_t *)f->aux;
    uint32_t *lex = sl_arena_alloc(&a->arena, sizeof *lex), n, key[MAX_WANTED + 1];
    if (lex == NULL)
        return sl_auto_no_room(a);
    const struct scalar_case *c = NULL;
    sl_rx_id dead = SL_RX_NONE;
    n = sl_scalar_cases(a, g, &c);
    SL_ASSERT(n <= MAX_CASES && (g->lex & SL_LEX_TAG) == SL_LEX_TUPLE);
    for (uint32_t i = 0; i < n; i++)
        if (p->object ? !sl_frame_leads_on(a, p, f, f, g, c[i].truths)
                      : sl_frame_member_done(a, p, f, c[i].truths, DATUM_UNKNOWN) == 0)
            dead = sl_rx_or2(&a->rx, dead, c[i].rx);
    *lex = g->lex;
    if (dead != SL_RX_NONE) {
        const struct sl_vec *tuple = sl_vec_at(a, g->lex & SL_LEX_ID);
        memcpy(key, tuple->v, tuple->n * sizeof key[0]);
        key[0] = sl_rx_and2(&a->rx, key[0], sl_rx_not(&a->rx, dead));
        uint32_t id = sl_rx_alive(&a->rx, key[0]) ? sl_vec_of(a, SL_VEC_TUPLE, key, tuple->n) : 0;
        *lex = id == 0 ? 0 : SL_LEX_TUPLE | id;
    }
    f->aux = lex;
    return *lex;
}

/* ---------------------------------------------------------------- what may come */

/* The language of names, closing quote included, that no local knows. */
static sl_rx_id names_local(struct lift *x, uint32_t l)
{
    struct sl_rx *rx = &x->a->rx;
    const struct sl_schema_node *n = &x->a->schema.nodes[x->p->locals[l]];
    sl_rx_id out = SL_RX_ALL, q = sl_rx_range(rx, '"', '"'), some = SL_RX_NONE;
    if ((auto_frame_failed_of(x->f) >> l & 1) != 0)
        return SL_RX_NONE;
    for (uint32_t i = 0; i < n->n_patterns; i++) {
        sl_rx_id one = sl_rx_cat(rx, n->patterns[i].rx, q);
        if (n->patterns[i].node == SL_NODE_FALSE)
            out = sl_rx_and2(rx, out, sl_rx_not(rx, one));
        else
            some = sl_rx_or2(rx, some, one);
    }
    if (n->additional == SL_NODE_FALSE)
        out = sl_rx_and2(rx, out, some);
    if (n->names != SL_NODE_NONE)
        out = sl_rx_and2(rx, out, sl_rx_step(rx, x->a->schema.nodes[n->names].scalar, '"'));
    return out;
}

static sl_rx_id names_node(struct lift *x, uint32_t node, int depth)
{
    struct sl_rx *rx = &x->a->rx;
    const struct sl_schema_node *n = &x->a->schema.nodes[node];
    sl_rx_id out = SL_RX_ALL;
    if (depth > MAX_DEPTH || sl_frame_truth(x->a, x->p, x->f, node, false, 0) == IS_FALSE)
        return SL_RX_NONE;
    for (uint32_t l = 0; l < x->p->n_locals; l++)
        if (x->p->locals[l] == node)
            out = names_local(x, l);
    for (uint32_t i = 0; i < n->all_of.n; i++)
        out = sl_rx_and2(rx, out, names_node(x, n->all_of.v[i], depth + 1));
    for (int which = 0; which < 2; which++) {
        const struct sl_nodes *list = which == 0 ? &n->any_of : &n->one_of;
        sl_rx_id some = SL_RX_NONE;
        for (uint32_t i = 0; i < list->n; i++)
            some = sl_rx_or2(rx, some, names_node(x, list->v[i], depth + 1));
        if (list->n > 0)
            out = sl_rx_and2(rx, out, some);
    }
    return out;
}

static sl_rx_id names_expr(struct lift *x, uint32_t expr)
{
    if (expr == EXPR_FALSE || expr == EXPR_TRUE)
        return expr == EXPR_TRUE ? SL_RX_ALL : SL_RX_NONE;
    if ((expr & 1) != 0)
        return names_node(x, expr >> 1, 0);
    const struct sl_vec *e = sl_vec_at(x->a, expr >> 1);
    SL_ASSERT(e->kind == SL_VEC_AND || e->kind == SL_VEC_OR);
    bool any = e->kind == SL_VEC_OR;
    sl_rx_id out = any ? SL_RX_NONE : SL_RX_ALL;
    for (uint32_t i = 0; i < e->n; i++) {
        sl_rx_id one = names_expr(x, e->v[i]);
        out = any ? sl_rx_or2(&x->a->rx, out, one) : sl_rx_and2(&x->a->rx, out, one);
    }
    return out;
}

/* Names of one class, by the patterns that they match: of none, or of one that is given. */
static sl_rx_id names_of_class(struct sl_auto *a, const struct sl_plan *p, uint32_t pattern)
{
    struct sl_rx *rx = &a->rx;
    sl_rx_id out = SL_RX_ALL, q = sl_rx_range(rx, '"', '"');
    for (uint32_t i = 0; i < p->n_patterns; i++) {
        bool names = p->patterns[i].node == SL_NODE_NONE;
        sl_rx_id one = names ? p->patterns[i].rx : sl_rx_cat(rx, p->patterns[i].rx, q);
        out = sl_rx_and2(rx, out, names || i == pattern ? one : sl_rx_not(rx, one));
    }
    return out;
}

/* Other names without those behind which no value can come. */
static sl_rx_id names_with_value(struct sl_auto *a, struct sl_plan *p, const struct sl_vec *f,
                                 sl_rx_id names)
{
    uint64_t must = 0;
    for (uint32_t i = 0; i < p->n_patterns; i++)
        must |= (uint64_t)(p->patterns[i].node == SL_NODE_NONE) << i;
    for (uint32_t i = 0; i <= p->n_patterns && names != SL_RX_NONE && a->failed == NULL; i++) {
        if (i < p->n_patterns && (must >> i & 1) != 0)
            continue;
        uint64_t sig = must | (i < p->n_patterns ? 1ull << i : 0);
        if (sl_frame_named(a, p, f, sl_plan_free_class(a, p, sig), 0) == 0)
            names = sl_rx_and2(&a->rx, names, sl_rx_not(&a->rx, names_of_class(a, p, i)));
    }
    return names;
}

static sl_rx_id other_names(struct sl_auto *a, struct sl_plan *p, const struct sl_vec *f)
{
    struct sl_rx *rx = &a->rx;
    struct lift x = {a, p, f, 0};
    if (p->free_known)
        return p->free_lang;
    bool open = p->n_names == 0 && p->n_patterns == 0 && !p->track_keys;
    sl_rx_id c = open ? a->schema.free_char : a->schema.key_char;
    sl_rx_id all = sl_rx_cat(rx, sl_rx_rep(rx, c, 0, SL_RX_INF), sl_rx_range(rx, '"', '"'));
    sl_rx_id out = sl_rx_and2(rx, all, names_expr(&x, p->goal->req));
    if (out != SL_RX_NONE && (p->exclusive || (p->static_keys && p->n_patterns > 0)))
        out = names_with_value(a, p, f, sl_rx_alive(rx, out) ? out : SL_RX_NONE);
    if (!sl_rx_alive(rx, out))
        out = SL_RX_NONE;
    if (p->static_keys) {
        p->free_lang = out;
        p->free_known = true;
    }
    return out;
}

/* Could a member without a known name be added, counting it? */
static bool room_for_other(struct sl_auto *a, struct sl_plan *p, const struct sl_vec *f)
{
    uint32_t *v = copy_of(a, f, 0);
    if (v == NULL)
        return false;
    v[FR_PHASE] = PH_COLON;
    uint32_t id = auto_frame_intern(a, SL_VEC_OBJECT, v, f->n);
    sl_free(v);
    return id != 0 && expr_truth(a, p, sl_vec_at(a, id), p->goal->req) != IS_FALSE;
}

static void know_static_names(struct sl_auto *a, struct sl_plan *p, const struct sl_vec *f)
{
    uint32_t n = (p->n_names + 31) / 32, *v = sl_arena_array(&a->arena, n + 1, sizeof *v);
    for (uint32_t i = 0; i < p->n_names && v != NULL; i++)
        if (sl_frame_named(a, p, f, i, 0) != 0)
            v[i / 32] |= 1u << (i & 31);
    p->name_allowed = v;
}

/* The object as far as it says which names may come: the same ones after '{' and after ',', and
 * wherever the object is. */
static uint32_t before_name(struct sl_auto *a, const struct sl_vec *f)
{
    uint32_t *v = copy_of(a, f, 0);
    SL_ASSERT(f->kind == SL_VEC_OBJECT && f->n >= FR_WORDS);
    if (v == NULL)
        return 0;
    v[FR_PARENT] = v[FR_DEPTH] = 0;
    v[FR_PHASE] = PH_KEY;
    uint32_t id = auto_frame_intern(a, SL_VEC_OBJECT, v, f->n);
    sl_free(v);
    return id;
}

/* Where it is not known what the object must differ from: its names if each of them leaves more
 * values than there are items, so that it does not matter. */
static struct sl_frame_aux *names_of_unknown(struct sl_auto *a, struct sl_plan *p, uint32_t frame)
{
    const uint32_t plain = sl_frame_stripped(a, frame);
    SL_ASSERT(p->object && plain < a->n_vecs);
    struct sl_frame_aux *x = plain == frame ? NULL : sl_frame_names(a, p, plain);
    bool ok = x != NULL && x->free == SL_RX_NONE;
    for (uint32_t i = 0; i < p->n_names && ok; i++) {
        if ((x->allowed[i / 32] >> (i & 31) & 1) == 0)
            continue;
        uint32_t id = sl_frame_with_name(a, p, sl_vec_at(a, plain), i, 0);
        struct sl_goal *g = id == 0 ? NULL : sl_frame_member(a, p, sl_vec_at(a, id));
        ok = g != NULL && g->pure && sl_goal_n_values(a, g) > SL_MAX_UNIQUE_ITEMS;
    }
    a->unsure = a->unsure || !ok;
    return ok ? x : NULL;
}

struct sl_frame_aux *sl_frame_names(struct sl_auto *a, struct sl_plan *p, uint32_t frame)
{
    struct sl_vec *asked = sl_vec_at(a, frame), *f = asked;
    SL_ASSERT(p->object && asked->kind == SL_VEC_OBJECT);
    if (asked->aux != NULL)
        return asked->aux;
    if (asked->v[FR_KEPT] == KEPT_LOST && asked->v[FR_AVOID] != 0)
        return names_of_unknown(a, p, frame);
    frame = before_name(a, asked);
    if (frame == 0)
        return NULL;
    f = sl_vec_at(a, frame);
    if (f->aux != NULL) {
        asked->aux = f->aux;
        return f->aux;
    }
    uint32_t n = (p->n_names + 31) / 32;
    struct sl_frame_aux *x = sl_arena_alloc(&a->arena, sizeof *x);
    if (x != NULL)
        x->allowed = sl_arena_array(&a->arena, n + 1, sizeof x->allowed[0]);
    if (x == NULL || x->allowed == NULL) {
        sl_auto_no_room(a);
        return NULL;
    }
    if (p->static_keys && p->name_allowed == NULL)
        know_static_names(a, p, sl_vec_at(a, sl_frame_stripped(a, frame)));
    bool fixed = p->static_keys && p->name_allowed != NULL && f->v[FR_AVOID] == 0;
    for (uint32_t i = 0; i < p->n_names; i++) {
        bool may = !sl_frame_seen(f, i) && (fixed ? (p->name_allowed[i / 32] >> (i & 31) & 1) != 0
                                                  : sl_frame_named(a, p, f, i, 0) != 0);
        x->allowed[i / 32] |= (uint32_t)may << (i & 31);
        x->any = x->any || may;
    }
    const struct sl_vec *plain = sl_vec_at(a, sl_frame_stripped(a, frame));
    x->free = room_for_other(a, p, plain) ? other_names(a, p, plain) : SL_RX_NONE;
    if (f->v[FR_KEPT] != 0 && x->free != SL_RX_NONE)
        x->free = sl_kept_names(a, p, f, x->free);
    x->any = x->any || x->free != SL_RX_NONE;
    f->aux = asked->aux = x;
    return x;
}

bool sl_frame_may_grow(struct sl_auto *a, struct sl_plan *p, uint32_t frame)
{
    const struct sl_vec *f = sl_vec_at(a, frame);
    SL_ASSERT(p->object == (f->kind == SL_VEC_OBJECT));
    if (p->object) {
        const struct sl_frame_aux *x = sl_frame_names(a, p, frame);
        return x != NULL && x->any;
    }
    if (p->indexed && f->v[FR_COUNT] >= MAX_INDEXED)
        return false;
    uint32_t next = sl_frame_phase(a, f, PH_VALUE);
    if (next == 0 || expr_truth(a, p, sl_vec_at(a, next), p->goal->req) == IS_FALSE)
        return false;
    struct sl_goal *g = sl_frame_member(a, p, sl_vec_at(a, next));
    if (!p->unique && f->v[FR_AVOID] == 0)
        return sl_goal_sat(a, g);
    return g != NULL && sl_goal_sat(a, g) &&
           sl_goal_sat_without(a, g, sl_frame_avoid(a, p, sl_vec_at(a, next), g));
}
