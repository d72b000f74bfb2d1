/* SPDX-License-Identifier: MIT
 * ebnf.c - rules to positions of the automaton.
 */
#include "grammar/ebnf.h"

#include "base/check.h"
#include "base/sys.h"
#include "grammar/ebnf_impl.h"

#include <string.h>

static const struct sl_ebnf_rule *ref(const struct sl_ebnf *g, const struct sl_ebnf_expr *x)
{
    SL_ASSERT(x->op == EBNF_REF && x->rule < g->n_rules);
    return &g->rules[x->rule];
}

static bool ebnf_is_regular(const struct sl_ebnf *g, const struct sl_ebnf_expr *x)
{
    if (x->op == EBNF_JSON)
        return false;
    if (x->op == EBNF_REF)
        return ref(g, x)->regular;
    for (const struct sl_ebnf_expr *k = x->kids; k != NULL; k = k->next)
        if (!ebnf_is_regular(g, k))
            return false;
    return true;
}

/* What may be ignored before a terminal, then the terminal. */
static sl_rx_id spaced(struct sl_ebnf *g, sl_rx_id id, bool inside)
{
    if (inside || g->ignore == SL_RX_NONE)
        return id;
    return sl_rx_cat(&g->a->rx, sl_rx_rep(&g->a->rx, g->ignore, 0, SL_RX_INF), id);
}

/* inside: in a terminal, where nothing is ignored. */
static sl_rx_id ebnf_rx_of(struct sl_ebnf *g, const struct sl_ebnf_expr *x, bool inside)
{
    struct sl_rx *rx = &g->a->rx;
    sl_rx_id id = SL_RX_EPS;
    switch (x->op) {
    case EBNF_RX:
        return spaced(g, x->rx, inside);
    case EBNF_REF:
        SL_ASSERT(ref(g, x)->regular); /* its expression is known before it is used */
        id = ref(g, x)->rx;
        return ref(g, x)->terminal ? spaced(g, id, inside) : id;
    case EBNF_CAT:
        for (const struct sl_ebnf_expr *k = x->kids; k != NULL; k = k->next)
            id = sl_rx_cat(rx, ebnf_rx_of(g, k, inside), id);
        return id;
    case EBNF_ALT: {
        size_t n = 0;
        for (const struct sl_ebnf_expr *k = x->kids; k != NULL; k = k->next)
            n++;
        sl_rx_id *v = sl_malloc((n + 1) * sizeof *v);
        if (v == NULL) {
            sl_ebnf_fail(g, SL_ENOMEM, "out of memory", NULL, 0);
            return SL_RX_NONE;
        }
        n = 0;
        for (const struct sl_ebnf_expr *k = x->kids; k != NULL; k = k->next)
            v[n++] = ebnf_rx_of(g, k, inside);
        id = sl_rx_alt(rx, v, n);
        sl_free(v);
        return id;
    }
    case EBNF_REP:
        SL_ASSERT(x->kids != NULL && x->kids->next == NULL);
        return sl_rx_rep(rx, ebnf_rx_of(g, x->kids, inside), x->lo, x->hi);
    case EBNF_JSON:
        break;
    }
    return SL_RX_NONE;
}

/* ---------------------------------------------------------------- which rules are regular */

struct edge {
    uint32_t from, next; /* rules that use a rule, as a list */
};

struct graph {
    uint32_t *head, *open; /* per rule: users; uses not yet regular */
    struct edge *edges;
    uint32_t n, cap;
};

static void use(struct sl_ebnf *g, struct graph *q, uint32_t from, uint32_t to)
{
    SL_ASSERT(from < g->n_rules && to < g->n_rules);
    if (q->n == q->cap) {
        uint32_t cap = q->cap == 0 ? 256 : q->cap * 2;
        void *p = cap > 1u << 24 ? NULL : sl_realloc(q->edges, cap * sizeof q->edges[0]);
        if (p == NULL) {
            sl_ebnf_fail(g, SL_ELIMIT, "the grammar is too large", NULL, 0);
            return;
        }
        q->edges = p;
        q->cap = cap;
    }
    SL_ASSERT(q->n < q->cap);
    q->edges[q->n] = (struct edge){from, q->head[to]};
    q->head[to] = ++q->n;
    q->open[from]++;
}

static void uses_of(struct sl_ebnf *g, struct graph *q, uint32_t rule, const struct sl_ebnf_expr *x)
{
    if (x->op == EBNF_REF)
        use(g, q, rule, x->rule);
    if (x->op == EBNF_JSON)
        q->open[rule]++; /* never regular */
    for (const struct sl_ebnf_expr *k = x->kids; k != NULL && g->rc == 0; k = k->next)
        uses_of(g, q, rule, k);
}

static void visit_ready(struct sl_ebnf *g, struct graph *q, uint32_t *ready)
{
    uint32_t n = 0;
    for (uint32_t i = 0; i < g->n_rules; i++)
        if (q->open[i] == 0)
            ready[n++] = i;
    while (n > 0 && g->rc == 0) {
        uint32_t i = ready[--n];
        struct sl_ebnf_rule *r = &g->rules[i];
        SL_ASSERT(!r->regular && n < g->n_rules); /* no rule is ready twice */
        r->rx = ebnf_rx_of(g, r->body, r->terminal);
        r->regular = true;
        for (uint32_t e = q->head[i]; e != 0; e = q->edges[e - 1].next)
            if (--q->open[q->edges[e - 1].from] == 0)
                ready[n++] = q->edges[e - 1].from;
    }
}

static void find_regular(struct sl_ebnf *g)
{
    struct graph q = {sl_calloc(g->n_rules + 1, 4), sl_calloc(g->n_rules + 1, 4), NULL, 0, 0};
    uint32_t *ready = sl_calloc(g->n_rules + 1, sizeof *ready);
    if (q.head == NULL || q.open == NULL || ready == NULL)
        sl_ebnf_fail(g, SL_ENOMEM, "out of memory", NULL, 0);
    for (uint32_t i = 0; i < g->n_rules && g->rc == 0; i++)
        uses_of(g, &q, i, g->rules[i].body);
    if (g->rc == 0)
        visit_ready(g, &q, ready);
    sl_free(q.head);
    sl_free(q.open);
    sl_free(q.edges);
    sl_free(ready);
}

/* ---------------------------------------------------------------- left recursion */

static bool is_nullable(const struct sl_ebnf *g, const struct sl_ebnf_expr *x)
{
    switch (x->op) {
    case EBNF_RX:
        return sl_rx_nullable(&g->a->rx, x->rx);
    case EBNF_REF:
        return ref(g, x)->regular ? sl_rx_nullable(&g->a->rx, ref(g, x)->rx) : ref(g, x)->nullable;
    case EBNF_JSON:
        return false;
    case EBNF_REP:
        return x->lo == 0 || is_nullable(g, x->kids);
    default:
        for (const struct sl_ebnf_expr *k = x->kids; k != NULL; k = k->next)
            if (is_nullable(g, k) != (x->op == EBNF_CAT))
                return x->op == EBNF_ALT;
        return x->op == EBNF_CAT;
    }
}

/* Does some finite text satisfy it, by what is known of the rules so far? */
static bool can_end(const struct sl_ebnf *g, const struct sl_ebnf_expr *x)
{
    switch (x->op) {
    case EBNF_RX:
        return sl_rx_alive(&g->a->rx, x->rx);
    case EBNF_REF:
        return ref(g, x)->regular ? sl_rx_alive(&g->a->rx, ref(g, x)->rx) : ref(g, x)->ends;
    case EBNF_JSON:
        return true;
    case EBNF_REP:
        return x->lo == 0 || can_end(g, x->kids);
    default:
        for (const struct sl_ebnf_expr *k = x->kids; k != NULL; k = k->next)
            if (can_end(g, k) != (x->op == EBNF_CAT))
                return x->op == EBNF_ALT;
        return x->op == EBNF_CAT;
    }
}

/* A: A x | y becomes (y)(x)*. Kids are last first, so the first of a sequence is the last kid. */
static void unroll(struct sl_ebnf *g, uint32_t rule)
{
    struct sl_ebnf_expr *body = g->rules[rule].body, *loop = NULL, *base = NULL, *next;
    bool recursive = false;
    SL_ASSERT(body->op == EBNF_ALT && body->next == NULL);
    for (struct sl_ebnf_expr *k = body->kids; k != NULL; k = next) {
        struct sl_ebnf_expr **at = &k->kids;
        next = k->next;
        while (k->op == EBNF_CAT && *at != NULL && (*at)->next != NULL)
            at = &(*at)->next;
        if (k->op == EBNF_CAT && *at != NULL && (*at)->op == EBNF_REF && (*at)->rule == rule) {
            *at = NULL; /* what follows the rule itself */
            recursive = true;
            k->next = loop;
            loop = k;
        } else {
            k->next = base;
            base = k;
        }
    }
    body->kids = base;
    if (!recursive)
        return;
    struct sl_ebnf_expr *v = sl_arena_array(&g->arena, 4, sizeof *v);
    if (v == NULL) {
        sl_ebnf_fail(g, SL_ELIMIT, "the grammar is too large", NULL, 0);
        return;
    }
    v[0] = (struct sl_ebnf_expr){.op = EBNF_ALT, .kids = base};
    v[1] = (struct sl_ebnf_expr){.op = EBNF_ALT, .kids = loop};
    v[2] = (struct sl_ebnf_expr){.op = EBNF_REP, .hi = SL_RX_INF, .kids = &v[1], .next = &v[0]};
    v[3] = (struct sl_ebnf_expr){.op = EBNF_CAT, .kids = &v[2]};
    body->kids = &v[3];
}

/* Rules with which the expression may begin; true if it may be empty. */
static bool corners(struct sl_ebnf *g, struct graph *q, uint32_t rule, const struct sl_ebnf_expr *x)
{
    const struct sl_ebnf_expr *order[256];
    size_t n = 0;
    bool empty = x->op == EBNF_CAT;
    SL_ASSERT(rule < g->n_rules && !g->rules[rule].regular);
    if (x->op == EBNF_REF && !ref(g, x)->regular)
        use(g, q, rule, x->rule);
    if (x->op == EBNF_RX || x->op == EBNF_REF || x->op == EBNF_JSON)
        return is_nullable(g, x);
    for (const struct sl_ebnf_expr *k = x->kids; k != NULL; k = k->next) {
        if (x->op != EBNF_CAT)
            empty = corners(g, q, rule, k) || empty;
        else
            order[n++ % SL_COUNT(order)] = k; /* the first ones come last: the newest survive */
    }
    for (size_t i = n; i-- > 0 && x->op == EBNF_CAT && n - i <= SL_COUNT(order);)
        if (!corners(g, q, rule, order[i % SL_COUNT(order)]))
            return false;
    return empty || (x->op == EBNF_REP && x->lo == 0);
}

static void check_left(struct sl_ebnf *g)
{
    struct graph q = {sl_calloc(g->n_rules + 1, 4), sl_calloc(g->n_rules + 1, 4), NULL, 0, 0};
    uint32_t *ready = sl_calloc(g->n_rules + 1, sizeof *ready), n = 0;
    bool changed = true;
    if (q.head == NULL || q.open == NULL || ready == NULL)
        sl_ebnf_fail(g, SL_ENOMEM, "out of memory", NULL, 0);
    while (changed && g->rc == 0) {
        changed = false;
        /* There and back, so that a chain of rules takes one pass whichever way it was written. */
        for (uint32_t k = 0; k < 2 * g->n_rules; k++) {
            struct sl_ebnf_rule *r = &g->rules[k < g->n_rules ? k : 2 * g->n_rules - 1 - k];
            if (!r->regular && !r->nullable && is_nullable(g, r->body))
                r->nullable = changed = true;
            if (!r->regular && !r->ends && can_end(g, r->body))
                r->ends = changed = true;
        }
    }
    for (uint32_t i = 0; i < g->n_rules && g->rc == 0; i++)
        if (!g->rules[i].regular)
            (void)corners(g, &q, i, g->rules[i].body);
    for (uint32_t i = 0; i < g->n_rules && g->rc == 0; i++)
        if (q.open[i] == 0)
            ready[n++] = i;
    while (n > 0 && g->rc == 0) {
        uint32_t i = ready[--n];
        SL_ASSERT(n < g->n_rules && q.open[i] == 0);
        q.open[i] = UINT32_MAX;
        for (uint32_t e = q.head[i]; e != 0; e = q.edges[e - 1].next)
            if (--q.open[q.edges[e - 1].from] == 0)
                ready[n++] = q.edges[e - 1].from;
    }
    for (uint32_t i = 0; i < g->n_rules && g->rc == 0; i++)
        if (q.open[i] != UINT32_MAX) {
            g->line = g->rules[i].line;
            sl_ebnf_fail(g, SL_EUNSUPPORTED, "left recursion through other rules, in",
                         g->rules[i].name, g->rules[i].n);
        }
    sl_free(q.head);
    sl_free(q.open);
    sl_free(q.edges);
    sl_free(ready);
}

/* ---------------------------------------------------------------- positions */

static uint32_t split(struct sl_ebnf *g, const uint32_t *v, uint32_t n)
{
    struct sl_auto *a = g->a;
    SL_ASSERT(n > 0);
    if (n == 1)
        return v[0];
    if (a->n_splits + n > a->cap_splits) {
        uint32_t cap = SL_MAX(a->cap_splits * 2, a->n_splits + n + 64);
        void *p = cap > 1u << 22 ? NULL : sl_realloc(a->splits, cap * sizeof a->splits[0]);
        if (p == NULL) {
            sl_ebnf_fail(g, SL_ELIMIT, "the grammar has too many parts", NULL, 0);
            return 0;
        }
        a->splits = p;
        a->cap_splits = cap;
    }
    SL_ASSERT(a->n_splits + n <= a->cap_splits);
    memcpy(a->splits + a->n_splits, v, n * sizeof v[0]);
    a->n_splits += n;
    return sl_auto_add_pos(a, (struct sl_pos){POS_SPLIT, a->n_splits - n, n});
}

static uint32_t ebnf_emit(struct sl_ebnf *g, const struct sl_ebnf_expr *x, uint32_t next);

static uint32_t emit_alt(struct sl_ebnf *g, const struct sl_ebnf_expr *x, uint32_t next)
{
    uint32_t v[1024], n = 0;
    sl_rx_id regular = SL_RX_NONE;
    for (const struct sl_ebnf_expr *k = x->kids; k != NULL && g->rc == 0; k = k->next) {
        if (ebnf_is_regular(g, k))
            regular = sl_rx_or2(&g->a->rx, regular, ebnf_rx_of(g, k, false));
        else if (n < SL_COUNT(v) - 1)
            v[n++] = ebnf_emit(g, k, next);
        else
            sl_ebnf_fail(g, SL_ELIMIT, "more than 1023 alternatives that are not regular", NULL, 0);
    }
    SL_ASSERT(n < SL_COUNT(v));
    if (regular != SL_RX_NONE)
        v[n++] = sl_auto_add_pos(g->a, (struct sl_pos){POS_TERM, regular, next});
    return n == 0 ? sl_auto_add_pos(g->a, (struct sl_pos){POS_TERM, SL_RX_NONE, next})
                  : split(g, v, n);
}

static uint32_t emit_rep(struct sl_ebnf *g, const struct sl_ebnf_expr *x, uint32_t next)
{
    uint32_t pos = next;
    SL_ASSERT(x->lo >= 0 && x->kids != NULL && x->kids->next == NULL);
    if (x->hi == SL_RX_INF) { /* a loop: its split is filled in when its body is known */
        uint32_t v[] = {next, next};
        pos = split(g, v, 2);
        uint32_t at = g->a->n_splits - 2;
        uint32_t body = g->rc == 0 ? ebnf_emit(g, x->kids, pos) : 0;
        SL_ASSERT(g->rc != 0 || at < g->a->n_splits);
        if (g->rc == 0)
            g->a->splits[at] = body;
    }
    if (x->lo > 10000 || (x->hi != SL_RX_INF && x->hi > 10000))
        sl_ebnf_fail(g, SL_ELIMIT, "more than 10000 repetitions of a rule that is not regular",
                     NULL, 0);
    for (int32_t i = x->lo; i < x->hi && g->rc == 0; i++) {
        uint32_t v[] = {ebnf_emit(g, x->kids, pos), next};
        pos = split(g, v, 2);
    }
    for (int32_t i = 0; i < x->lo && g->rc == 0; i++)
        pos = ebnf_emit(g, x->kids, pos);
    return pos;
}

static uint32_t ebnf_emit(struct sl_ebnf *g, const struct sl_ebnf_expr *x, uint32_t next)
{
    if (g->rc != 0 || g->a->failed != NULL)
        return 0;
    if (!can_end(g, x)) /* else its first part could be read, and then nothing more */
        return sl_auto_add_pos(g->a, (struct sl_pos){POS_TERM, SL_RX_NONE, next});
    if (ebnf_is_regular(g, x))
        return sl_auto_add_pos(g->a, (struct sl_pos){POS_TERM, ebnf_rx_of(g, x, false), next});
    SL_ASSERT(x->op != EBNF_RX); /* always regular */
    switch (x->op) {
    case EBNF_REF: /* the rule, until its position is known */
        return sl_auto_add_pos(g->a, (struct sl_pos){POS_CALL, x->rule, next});
    case EBNF_JSON:
        next = sl_auto_add_pos(g->a, (struct sl_pos){POS_JSON, x->goal, next});
        return g->ignore == SL_RX_NONE
                   ? next
                   : sl_auto_add_pos(g->a,
                                     (struct sl_pos){POS_TERM, spaced(g, SL_RX_EPS, false), next});
    case EBNF_ALT:
        return emit_alt(g, x, next);
    case EBNF_REP:
        return emit_rep(g, x, next);
    default: /* CAT: neighbours that are regular become one expression */
        for (const struct sl_ebnf_expr *k = x->kids; k != NULL && g->rc == 0;) {
            sl_rx_id id = SL_RX_EPS;
            for (; k != NULL && ebnf_is_regular(g, k); k = k->next)
                id = sl_rx_cat(&g->a->rx, ebnf_rx_of(g, k, false), id);
            if (id != SL_RX_EPS)
                next = sl_auto_add_pos(g->a, (struct sl_pos){POS_TERM, id, next});
            if (k != NULL) {
                next = ebnf_emit(g, k, next);
                k = k->next;
            }
        }
        return next;
    }
}

static uint32_t emit_rules(struct sl_ebnf *g, uint32_t root, uint32_t next)
{
    struct sl_auto *a = g->a;
    SL_ASSERT(root < g->n_rules);
    uint32_t from = a->n_pos, end = sl_auto_add_pos(a, (struct sl_pos){POS_END, 0, 0});
    if (g->ignore != SL_RX_NONE)
        next = sl_auto_add_pos(a, (struct sl_pos){POS_TERM, spaced(g, SL_RX_EPS, false), next});
    struct sl_ebnf_expr start = {.op = EBNF_REF, .rule = root};
    for (uint32_t i = 0; i < g->n_rules && g->rc == 0; i++)
        if (!g->rules[i].regular)
            g->rules[i].start = ebnf_emit(g, g->rules[i].body, end);
    uint32_t pos = ebnf_emit(g, &start, next);
    for (uint32_t i = from; i < a->n_pos && g->rc == 0; i++)
        if (a->pos[i].op == POS_CALL)
            a->pos[i].a = g->rules[a->pos[i].a].start;
    return pos;
}

static bool has_json(const struct sl_ebnf_expr *x)
{
    for (const struct sl_ebnf_expr *k = x->kids; k != NULL; k = k->next)
        if (has_json(k))
            return true;
    return x->op == EBNF_JSON;
}

/* Recursive rules under a guard, which their lexemes carry on. */
static uint32_t emit_guarded(struct sl_ebnf *g, uint32_t root, uint32_t next)
{
    struct sl_rx *rx = &g->a->rx;
    bool json = false;
    SL_ASSERT(!g->rules[root].regular && g->options->except != SL_RX_NONE);
    for (uint32_t i = 0; i < g->n_rules; i++)
        json = json || has_json(g->rules[i].body);
    if (json || !g->options->except_parts) {
        sl_ebnf_fail(g, SL_EUNSUPPORTED,
                     json ? "%json where a text may not have"
                          : "rules that lead back to themselves, where a text must match",
                     g->options->except_name, strlen(g->options->except_name));
        return next;
    }
    next = sl_auto_add_pos(g->a, (struct sl_pos){POS_GUARD, SL_RX_NONE, next});
    next = emit_rules(g, root, next);
    return sl_auto_add_pos(g->a,
                           (struct sl_pos){POS_GUARD, sl_rx_not(rx, g->options->except), next});
}

/* The whole grammar as one expression, without the texts that are left out. */
static uint32_t emit_except(struct sl_ebnf *g, uint32_t root, uint32_t next)
{
    struct sl_rx *rx = &g->a->rx;
    struct sl_ebnf_expr start = {.op = EBNF_REF, .rule = root};
    SL_ASSERT(root < g->n_rules && g->options->except_name != NULL);
    g->line = g->rules[root].line;
    if (!g->rules[root].regular)
        return emit_guarded(g, root, next);
    sl_rx_id id = ebnf_rx_of(g, &start, false);
    if (g->ignore != SL_RX_NONE)
        id = sl_rx_cat(rx, id, spaced(g, SL_RX_EPS, false));
    id = sl_rx_and2(rx, id, sl_rx_not(rx, g->options->except));
    if (!sl_rx_alive(rx, id))
        sl_ebnf_fail(g, SL_EINVAL, "no text satisfies it without", g->options->except_name,
                     strlen(g->options->except_name));
    return sl_auto_add_pos(g->a, (struct sl_pos){POS_TERM, id, next});
}

static void ebnf_compile(struct sl_ebnf *g, uint32_t next, uint32_t *start)
{
    const char *name = g->lark ? "start" : "root";
    if (sl_ebnf_parse(g) != 0)
        return;
    SL_ASSERT(g->at == g->size && g->depth == 0);
    uint32_t root = sl_ebnf_rule(g, name, strlen(name)), ignore = g->n_rules;
    for (uint32_t i = 0; i < g->n_rules && g->rc == 0; i++) {
        g->line = g->rules[i].line;
        if (g->rules[i].body == NULL)
            sl_ebnf_fail(g, SL_EINVAL, "no such rule:", g->rules[i].name, g->rules[i].n);
        else
            unroll(g, i);
        if (g->rules[i].n == 7 && memcmp(g->rules[i].name, "%ignore", 7) == 0)
            ignore = i;
    }
    if (g->rc == 0)
        find_regular(g);
    SL_ASSERT(g->rc != 0 || (root < g->n_rules && ignore <= g->n_rules));
    if (g->rc == 0 && ignore < g->n_rules) {
        if (!g->rules[ignore].regular)
            sl_ebnf_fail(g, SL_EUNSUPPORTED, "%ignore of a rule that is not regular", NULL, 0);
        g->ignore = g->rules[ignore].rx;
        for (uint32_t i = 0; i < g->n_rules; i++)
            g->rules[i].regular = false;
        find_regular(g); /* again, with what is ignored between terminals */
    }
    if (g->rc == 0)
        check_left(g);
    struct sl_ebnf_expr whole = {.op = EBNF_REF, .rule = root};
    if (g->rc == 0 && !can_end(g, &whole)) {
        g->line = g->rules[root].line;
        sl_ebnf_fail(g, SL_EINVAL, "no text satisfies rule", name, strlen(name));
    }
    if (g->rc == 0)
        *start = g->options->except != SL_RX_NONE ? emit_except(g, root, next)
                                                  : emit_rules(g, root, next);
    if (g->rc == 0)
        g->rc = sl_auto_check(g->a, g->err);
}

int sl_ebnf_compile(struct sl_auto *a, const char *text, size_t n,
                    const struct sl_ebnf_options *options, uint32_t next, uint32_t *start,
                    struct sl_error *err)
{
    struct sl_ebnf g = {.a = a,
                        .options = options,
                        .s = text,
                        .size = n,
                        .line = 1,
                        .err = err,
                        .arena.max_bytes = 64u << 20};
    bool gbnf = options->syntax == SL_EBNF_GBNF;
    for (size_t i = 0; i + 3 <= n && !gbnf && options->syntax == SL_EBNF_ANY; i++)
        gbnf = memcmp(text + i, "::=", 3) == 0;
    g.lark = !gbnf;
    ebnf_compile(&g, next, start);
    sl_arena_deinit(&g.arena);
    sl_free(g.rules);
    sl_free(g.table);
    return g.rc;
}
