/* SPDX-License-Identifier: MIT
 * auto_ahead.c - whether an object can still end well where a schema may have to be false.
 *
 * Truth of three values calls a requirement open while one of its parts is open, although each way
 * of closing that part may break another one: `if` asks for a name that `then` forbids. So for
 * objects with not, if or oneOf a way to the end is searched. A step adds a member that some schema
 * requires, or one that makes a schema false that may be false; other members never help. The
 * search is bounded, and what it does not settle counts as possible.
 */
#include "base/check.h"
#include "base/sys.h"
#include "grammar/auto_impl.h"

#include <string.h>

enum {
    MAX_STEPS = 128,   /* frames that one search looks at */
    MAX_MARKED = 4096, /* nodes */
    MAX_DEPTH = 100,
    MAX_ROOTS = 4, /* nodes of which all sets of truths are looked at */
    MAX_SETS = MAX_WANTED + 2,
};

/* ---------------------------------------------------------------- the plan's part */

struct marking {
    struct sl_auto *a;
    struct sl_plan *p;
    uint32_t left;
};

static void mark(struct marking *m, uint32_t id, bool test, int depth)
{
    const struct sl_schema_node *n = &m->a->schema.nodes[id];
    SL_ASSERT(id != SL_NODE_NONE && id < m->a->schema.n_nodes);
    SL_ASSERT(m->p->n_locals <= 64); /* a bit each in tests */
    if (depth > MAX_DEPTH || m->left == 0 || (n->types & SL_JSON_OBJECT) == 0)
        return;
    m->left--;
    for (uint32_t l = 0; l < m->p->n_locals && test; l++)
        if (m->p->locals[l] == id)
            m->p->tests |= 1ull << l;
    for (uint32_t i = 0; i < n->all_of.n; i++)
        mark(m, n->all_of.v[i], test, depth + 1);
    for (uint32_t i = 0; i < n->any_of.n; i++)
        mark(m, n->any_of.v[i], test, depth + 1);
    for (uint32_t i = 0; i < n->one_of.n; i++) /* only one may hold */
        mark(m, n->one_of.v[i], true, depth + 1);
    for (uint32_t i = 0; i < n->n_deps; i++)
        if (n->deps[i].node != SL_NODE_NONE)
            mark(m, n->deps[i].node, test, depth + 1);
    const uint32_t kids[] = {n->not_node, n->if_node, n->then_node, n->else_node};
    for (size_t i = 0; i < SL_COUNT(kids); i++)
        if (kids[i] != SL_NODE_NONE)
            mark(m, kids[i], test || i < 2, depth + 1);
}

/* Does a schema ask for the name, or have something to say of its value and may be false? */
static bool matters(const struct sl_auto *a, const struct sl_plan *p, uint32_t name)
{
    SL_ASSERT(name < p->n_names && p->n_locals <= SL_COUNT(p->locals));
    for (uint32_t l = 0; l < p->n_locals; l++) {
        const struct sl_schema_node *n = &a->schema.nodes[p->locals[l]];
        uint32_t node = p->props[(size_t)name * p->n_locals + l], n_asked = n->n_required;
        if ((p->tests >> l & 1) != 0 && node != SL_NODE_NONE && node != SL_NODE_TRUE)
            return true;
        for (uint32_t i = 0; i < n->n_deps; i++)
            n_asked += 1 + n->deps[i].n_required;
        for (uint32_t i = 0; i < n_asked; i++)
            if (p->asked[l][i] == name)
                return true;
    }
    return false;
}

void sl_plan_mark_tests(struct sl_auto *a, struct sl_plan *p)
{
    struct marking m = {a, p, MAX_MARKED};
    SL_ASSERT(p->object && p->exclusive);
    for (uint32_t i = 0; i < p->goal->n_roots; i++)
        mark(&m, p->goal->roots[i], !p->goal->pure, 0);
    p->settled = true;
    p->matters = sl_arena_array(&a->arena, (p->n_names + 31) / 32 + 1, sizeof p->matters[0]);
    if (p->matters == NULL) {
        sl_auto_no_room(a);
        return;
    }
    for (uint32_t i = 0; i < p->n_names; i++)
        p->matters[i / 32] |= (uint32_t)matters(a, p, i) << (i & 31);
    for (uint32_t l = 0; l < p->n_locals; l++) {
        const struct sl_schema_node *n = &a->schema.nodes[p->locals[l]];
        p->settled = p->settled && n->n_deps == 0 && n->max_props == UINT32_MAX;
    }
}

/* ---------------------------------------------------------------- the search */

struct search {
    struct sl_auto *a;
    struct sl_plan *p;
    uint32_t n_left; /* frames that may still be looked at */
};

static uint64_t auto_ahead_failed_of(const struct sl_vec *f)
{
    return (uint64_t)f->v[FR_FAILED_HI] << 32 | f->v[FR_FAILED_LO];
}

/* Would another member, whatever its name, possibly make a schema false that may be false, or is
 * one missing by number? */
static bool any_name_helps(const struct sl_auto *a, const struct sl_plan *p, const struct sl_vec *f)
{
    SL_ASSERT(p->n_locals <= 64 && f->n > FR_FAILED_HI); /* a bit each */
    for (uint32_t l = 0; l < p->n_locals; l++) {
        const struct sl_schema_node *n = &a->schema.nodes[p->locals[l]];
        if ((auto_ahead_failed_of(f) >> l & 1) != 0)
            continue;
        if (n->min_props > f->v[FR_COUNT])
            return true;
        bool others = n->n_patterns > 0 || n->names != SL_NODE_NONE || n->n_deps > 0 ||
                      (n->additional != SL_NODE_NONE && n->additional != SL_NODE_TRUE) ||
                      n->uneval_props != SL_NODE_NONE || n->max_props != UINT32_MAX;
        if ((p->tests >> l & 1) != 0 && others)
            return true;
    }
    return false;
}

/* Does a schema that has not failed ask for the name, which is not there? */
static bool is_asked(const struct sl_auto *a, const struct sl_plan *p, const struct sl_vec *f,
                     uint32_t name)
{
    SL_ASSERT(name < p->n_names && !sl_frame_seen(f, name));
    for (uint32_t l = 0; l < p->n_locals; l++) {
        const struct sl_schema_node *n = &a->schema.nodes[p->locals[l]];
        if ((auto_ahead_failed_of(f) >> l & 1) != 0)
            continue;
        for (uint32_t i = 0; i < n->n_required; i++)
            if (p->asked[l][i] == name)
                return true;
        for (uint32_t i = 0; i < n->n_deps; i++) {
            const uint32_t *at = sl_plan_dep(p, n, l, i);
            for (uint32_t k = 1; k <= n->deps[i].n_required; k++)
                if (at[k] == name && sl_frame_seen(f, at[0]))
                    return true;
        }
    }
    return false;
}

/* Has a schema that may be false, and is not yet, something to say of the name's value? */
static bool is_tested(const struct sl_plan *p, const struct sl_vec *f, uint32_t name)
{
    SL_ASSERT(name < p->n_names && f->kind == SL_VEC_OBJECT);
    for (uint32_t l = 0; l < p->n_locals; l++) {
        uint32_t node = p->props[(size_t)name * p->n_locals + l];
        bool open = (p->tests >> l & 1) != 0 && (auto_ahead_failed_of(f) >> l & 1) == 0;
        if (open && node != SL_NODE_NONE && node != SL_NODE_TRUE)
            return true;
    }
    return false;
}

/* Does the node allow all arrays and objects? */
static bool allows_all(const struct sl_schema_node *n)
{
    const uint32_t compound = SL_JSON_ARRAY | SL_JSON_OBJECT;
    return (n->types & compound) == compound && !sl_node_has_say(n, true) &&
           !sl_node_has_say(n, false) && n->all_of.n + n->any_of.n + n->one_of.n == 0 &&
           n->not_node == SL_NODE_NONE && n->if_node == SL_NODE_NONE;
}

/* The nodes that hold of every array or object of the goal: those that the requirement names
 * without a choice, and those that allow everything. */
static uint64_t surely(const struct sl_auto *a, const struct sl_goal *g)
{
    const struct sl_vec *x = (g->req & 1) != 0 || g->req == EXPR_TRUE || g->req == EXPR_FALSE
                                 ? NULL
                                 : sl_vec_at(a, g->req >> 1);
    uint64_t out = 0;
    SL_ASSERT(g->n_roots <= MAX_WANTED);
    for (uint32_t r = 0; r < g->n_roots; r++) {
        bool in = g->req == LEAF(g->roots[r]) || allows_all(&a->schema.nodes[g->roots[r]]);
        for (uint32_t i = 0; x != NULL && x->kind == SL_VEC_AND && i < x->n; i++)
            in = in || x->v[i] == LEAF(g->roots[r]);
        out |= (uint64_t)in << r;
    }
    return out;
}

/* Sets of truths that the goal's nodes may have of an array or object, smaller ones first: all of
 * few nodes, else those that must hold, with each of the others and with all. */
static uint32_t compound_truths(const struct sl_auto *a, const struct sl_goal *g,
                                uint64_t out[MAX_SETS])
{
    uint64_t all = g->n_roots == 64 ? UINT64_MAX : (1ull << g->n_roots) - 1, sure = surely(a, g);
    bool few = g->n_roots <= MAX_ROOTS;
    uint32_t n = 0, n_sets = few ? 1u << g->n_roots : g->n_roots + 2;
    SL_ASSERT(g->n_roots <= MAX_WANTED);
    for (uint32_t i = 0; i < n_sets; i++) {
        uint64_t t = few ? i : i == 0 ? sure : i <= g->n_roots ? sure | 1ull << (i - 1) : all;
        if ((t & sure) == sure && sl_expr_true(a, g->req, g, t))
            out[n++] = t;
    }
    SL_ASSERT(n <= MAX_SETS);
    return n;
}

/* What the wanted nodes may say of a value of the goal; 0: too many sets of truths. */
static uint32_t truths_of(struct sl_auto *a, struct sl_goal *g, uint64_t out[MAX_CASES + MAX_SETS])
{
    const struct scalar_case *c = NULL;
    out[0] = UINT64_MAX;
    if (g->pure)
        return 1;
    uint32_t n = sl_scalar_cases(a, g, &c);
    if (n == 0 && g->scalar != SL_RX_NONE)
        return 0;
    for (uint32_t i = 0; i < n; i++)
        out[i] = c[i].truths;
    return n + (g->compound != 0 ? compound_truths(a, g, out + n) : 0);
}

/* The frame as far as the search can tell: most members differ in nothing but names that no schema
 * asks for or tests, so few searches are made. */
static uint32_t plain_frame(struct sl_auto *a, const struct sl_plan *p, const struct sl_vec *f)
{
    uint32_t *v = sl_malloc(f->n * sizeof *v), n = FR_WORDS + p->n_words;
    SL_ASSERT(f->kind == SL_VEC_OBJECT && n <= f->n);
    if (v == NULL)
        return sl_auto_fail(a, SL_ENOMEM, "out of memory");
    memcpy(v, f->v, n * sizeof *v);
    v[FR_PARENT] = v[FR_DEPTH] = v[FR_CLASS] = v[FR_KEPT] = v[FR_AVOID] = 0;
    v[FR_PHASE] = PH_CLOSE;
    for (uint32_t i = 0; i < (p->n_names + 31) / 32; i++)
        v[FR_WORDS + i] &= p->matters[i];
    uint32_t id = sl_vec_of(a, SL_VEC_OBJECT, v, n);
    sl_free(v);
    return id;
}

static bool has_way(struct search *s, uint32_t frame);

/* Does a member of that name, which some schema asks for or tests, lead on? */
static bool name_leads_on(struct search *s, const struct sl_vec *f, uint32_t name, bool asked)
{
    struct sl_auto *a = s->a;
    struct sl_plan *p = s->p;
    uint64_t truths[MAX_CASES + MAX_SETS];
    SL_ASSERT(!sl_frame_seen(f, name) && f->v[FR_PHASE] == PH_CLOSE);
    uint32_t named = sl_frame_with_name(a, p, f, name, 0);
    struct sl_goal *g = named == 0 ? NULL : sl_frame_member(a, p, sl_vec_at(a, named));
    if (g == NULL || !sl_goal_sat(a, g))
        return false;
    uint32_t n = truths_of(a, g, truths);
    bool tested = is_tested(p, f, name); /* else the more is true, the better: these come last */
    for (uint32_t k = 0; k < n; k++) {
        uint64_t t = truths[tested ? k : n - 1 - k];
        uint32_t to = sl_frame_after(a, p, sl_vec_at(a, named), g, t, DATUM_UNKNOWN);
        uint64_t fails =
            to == 0 ? 0 : auto_ahead_failed_of(sl_vec_at(a, to)) & ~auto_ahead_failed_of(f);
        if (to != 0 && (asked || (fails & p->tests) != 0) && has_way(s, to))
            return true;
    }
    return n == 0;
}

static bool has_way(struct search *s, uint32_t frame)
{
    static bool answers[2] = {false, true};
    struct sl_auto *a = s->a;
    struct sl_plan *p = s->p;
    uint64_t truths;
    SL_ASSERT(frame != 0 && s->n_left <= MAX_STEPS);
    frame = plain_frame(a, p, sl_vec_at(a, frame));
    struct sl_vec *f = frame == 0 ? NULL : sl_vec_at(a, frame);
    if (f == NULL || s->n_left == 0)
        return true;
    if (f->aux != NULL)
        return *(bool *)f->aux;
    s->n_left--;
    bool yes = sl_frame_may_end(a, p, f, &truths) || any_name_helps(a, p, f);
    for (uint32_t i = 0; i < p->n_names && !yes; i++) {
        bool asked = !sl_frame_seen(f, i) && is_asked(a, p, f, i);
        if (asked || (!sl_frame_seen(f, i) && is_tested(p, f, i)))
            yes = name_leads_on(s, f, i, asked);
    }
    f->aux = &answers[yes];
    return yes;
}

bool sl_frame_has_way(struct sl_auto *a, struct sl_plan *p, uint32_t frame)
{
    struct search s = {a, p, MAX_STEPS};
    SL_ASSERT(p->object && p->exclusive);
    return has_way(&s, frame);
}

bool sl_frame_leads_on(struct sl_auto *a, struct sl_plan *p, const struct sl_vec *before,
                       const struct sl_vec *named, struct sl_goal *g, uint64_t truths)
{
    uint32_t class = named->v[FR_CLASS], to = sl_frame_after(a, p, named, g, truths, DATUM_UNKNOWN);
    SL_ASSERT(p->object && p->exclusive && named->v[FR_CLASS] < p->n_names + p->n_free);
    if (to == 0)
        return false;
    /* A member that fails nothing, is not left for unevaluatedProperties to judge, and that no test
     * looks at leaves the way that was there. */
    const uint32_t names = (p->n_names + 31) / 32, *now = sl_vec_at(a, to)->v;
    bool same = p->settled &&
                auto_ahead_failed_of(sl_vec_at(a, to)) == auto_ahead_failed_of(before) &&
                memcmp(now + FR_WORDS + names, before->v + FR_WORDS + names,
                       (p->n_words - names) * sizeof now[0]) == 0 &&
                (class >= p->n_names || !is_tested(p, before, class));
    return same || sl_frame_has_way(a, p, to);
}

struct sl_goal *sl_frame_compound(struct sl_auto *a, struct sl_plan *p, const struct sl_vec *before,
                                  const struct sl_vec *named, struct sl_goal *g)
{
    uint32_t any[MAX_SETS], n = 0, all[MAX_WANTED];
    uint64_t truths[MAX_SETS], least[MAX_SETS];
    SL_ASSERT(p->object && p->exclusive);
    if (g->compound == 0 || g->pure)
        return g;
    uint32_t n_sets = compound_truths(a, g, truths), n_dead = 0;
    for (uint32_t i = 0; i < n_sets; i++) {
        bool covered = false; /* by a smaller set */
        for (uint32_t k = 0; k < n; k++)
            covered = covered || (truths[i] & least[k]) == least[k];
        if (covered)
            continue;
        if (!sl_frame_leads_on(a, p, before, named, g, truths[i])) {
            n_dead++;
            continue;
        }
        uint32_t k = 0;
        for (uint32_t r = 0; r < g->n_roots; r++)
            if ((truths[i] >> r & 1) != 0)
                all[k++] = LEAF(g->roots[r]);
        least[n] = truths[i];
        any[n++] = sl_expr_list(a, SL_VEC_AND, all, k);
    }
    if (n_dead == 0 || (n == 0 && g->n_roots > MAX_ROOTS))
        return g;
    memcpy(all, g->roots, g->n_roots * sizeof all[0]);
    return sl_goal_of(a, sl_expr_list(a, SL_VEC_OR, any, n), all, g->n_roots);
}

bool sl_frame_value_leads_on(struct sl_auto *a, struct sl_plan *p, const struct sl_vec *before,
                             uint32_t id, struct sl_goal *g)
{
    const struct scalar_case *c = NULL;
    const struct sl_vec *named = sl_vec_at(a, sl_frame_stripped(a, id));
    if (g->pure)
        return sl_frame_leads_on(a, p, before, named, g, UINT64_MAX);
    uint32_t n = sl_scalar_cases(a, g, &c);
    if (n == 0 && g->scalar != SL_RX_NONE)
        return true;
    for (uint32_t i = 0; i < n; i++)
        if (sl_frame_leads_on(a, p, before, named, g, c[i].truths))
            return true;
    struct sl_goal *compound = sl_frame_compound(a, p, before, named, g);
    return compound != NULL && sl_goal_sat(a, compound) && compound->compound != 0;
}
