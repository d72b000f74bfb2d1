/* SPDX-License-Identifier: MIT
 * mask.c - walking the vocabulary with the automaton.
 *
 * Three things make it cheap. Where a state lets any plain character come for a while (the inside
 * of a string), the plain tokens are one precomputed mask by their number of characters. Where it
 * lets any of a set come (span.h), branches of the tree with no other characters are taken whole.
 * And inside a lexeme the walk follows rows of transitions, without making states of the automaton;
 * only where a lexeme ends do the others and the stack matter.
 */
#include "grammar/mask.h"

#include "base/check.h"
#include "base/sys.h"
#include "grammar/auto_impl.h"
#include "grammar/cset.h"

#include <string.h>

enum { WORTH = 16 }; /* nodes of a branch for which a span is looked up */

int sl_masks_init(struct sl_masks *m, struct sl_auto *a, const struct sl_vocab *vocab,
                  struct sl_error *err)
{
    struct sl_cset set = {0};
    memset(m, 0, sizeof *m);
    m->vocab = vocab;
    for (size_t i = 0; i < SL_MASK_CACHE; i++)
        m->at[i].state = 0;
    for (size_t i = 0; i < SL_PLAIN_RANGES; i++)
        sl_cset_add(&set, sl_plain_ranges[i][0], sl_plain_ranges[i][1]);
    m->plain = sl_cset_rx(&a->rx, &set, SL_SPELL_UTF8);
    bool failed = set.failed;
    sl_cset_deinit(&set);
    return failed ? sl_fail(err, SL_ENOMEM, "grammar: out of memory")
                  : sl_spans_init(&m->spans, &a->rx, err);
}

void sl_masks_deinit(struct sl_masks *m)
{
    for (size_t i = 0; i < SL_MASK_CACHE; i++)
        sl_free(m->at[i].mask);
}

static int32_t run_of(struct sl_masks *m, struct sl_auto *a, sl_rx_id id)
{
    uint32_t at = id * 2654435761u >> 22;
    if (id == SL_RX_NONE)
        return SL_RX_RUN_UNKNOWN;
    if (m->runs[at].id != id) {
        m->runs[at].run = sl_rx_run(&a->rx, id, m->plain);
        m->runs[at].id = id;
    }
    return m->runs[at].run;
}

/* What a thread of JSON or rules is reading, as far as it decides whether a byte may come. Names
 * that are known only add to the others. */
static sl_rx_id thread_rx(const struct sl_auto *a, uint32_t lex)
{
    const uint32_t id = lex & SL_LEX_ID;
    switch (lex & SL_LEX_TAG) {
    case SL_LEX_RX:
        return id;
    case SL_LEX_TUPLE:
        return sl_vec_at(a, id)->v[0];
    case SL_LEX_KEY:
        return sl_vec_at(a, id)->v[3];
    default:
        return SL_RX_NONE;
    }
}

/* How many plain characters may follow whatever the stack says; SL_RX_RUN_UNKNOWN: walk them. */
static int32_t plain_run(struct sl_masks *m, struct sl_auto *a, uint32_t state)
{
    const struct sl_vec *x = sl_vec_at(a, state);
    for (uint32_t i = 0; i < x->n; i += 2) {
        uint32_t lex = x->v[i + 1];
        int32_t run = run_of(m, a, thread_rx(a, lex));
        /* A bound is exact only if nothing else could take a plain character. */
        if (run == SL_RX_INF || (run >= 0 && x->n == 2 && (lex & SL_LEX_TAG) != SL_LEX_KEY))
            return run;
    }
    return SL_RX_RUN_UNKNOWN;
}

struct place {      /* where the walk is at one depth */
    uint32_t state; /* when the walk was at depth `since` */
    sl_rx_id rx;    /* a lexeme of it, here; SL_RX_NONE: state is of here, and all there is */
    uint32_t stack; /* of the lexeme, when it is the only one and JSON's; 0: it is not */
    uint32_t since;
};

struct walk {
    struct sl_masks *m;
    struct sl_auto *a;
    uint32_t *out;
    uint8_t bytes[SL_VOCAB_MAX_TOKEN + 1]; /* [depth] that led to the place at depth */
    struct place at[SL_VOCAB_MAX_TOKEN + 1];
};

/* As long as one of its lexemes goes on the state does, whatever becomes of the others: nothing
 * else is followed until that one ends. */
static struct place place_of(const struct sl_auto *a, uint32_t state, uint32_t depth)
{
    const struct sl_vec *x = sl_vec_at(a, state);
    struct place p = {state, SL_RX_NONE, 0, depth};
    for (uint32_t i = 0; i < x->n && p.rx == SL_RX_NONE; i += 2)
        p.rx = thread_rx(a, x->v[i + 1]);
    if (x->n == 2 && (x->v[1] & SL_LEX_TAG) == SL_LEX_RX &&
        sl_vec_at(a, x->v[0])->kind != SL_VEC_RETURN)
        p.stack = x->v[0];
    return p;
}

/* The lexeme that was followed has ended, or was never there: from the state, byte by byte. */
static bool step_state(struct walk *w, struct place *p, uint32_t depth)
{
    struct sl_auto *a = w->a;
    uint32_t state = p->state, from = p->since + 1;
    if (p->stack != 0) {
        if (sl_rx_step(&a->rx, p->rx, w->bytes[depth]) == SL_RX_NONE &&
            !sl_rx_nullable(&a->rx, p->rx))
            return false;
        state = sl_vec_of(a, SL_VEC_STATE, (uint32_t[]){p->stack, SL_LEX_RX | p->rx}, 2);
        from = depth;
    }
    for (uint32_t d = from; d <= depth && state != 0; d++)
        state = sl_auto_step(a, state, w->bytes[d]);
    if (state != 0)
        *p = place_of(a, state, depth);
    return state != 0;
}

static inline bool step(struct walk *w, struct place *p, uint32_t depth)
{
    if (p->rx != SL_RX_NONE) {
        sl_rx_id to = sl_rx_step(&w->a->rx, p->rx, w->bytes[depth]);
        if (to > SL_RX_EPS) {
            p->rx = to;
            return true;
        }
    }
    return step_state(w, p, depth);
}

/* Does every text of up to that many characters of the set stay allowed? */
static bool leads_on(const struct walk *w, const struct place *p, const struct sl_plain_set *set,
                     uint32_t chars)
{
    if (p->rx == SL_RX_NONE)
        return false;
    const struct sl_char_span *span = sl_span_of(&w->m->spans, &w->a->rx, p->rx);
    return span->chars >= chars && sl_span_has(span, set);
}

static void set_all(const struct sl_vocab_tree *t, uint32_t from, uint32_t to, uint32_t *out)
{
    for (uint32_t k = from; k < to; k++)
        out[(uint32_t)t->ids[k] / 32] |= 1u << (t->ids[k] & 31);
}

/* done: plain tokens of up to that many characters are in the mask already. */
static void walk(struct walk *w, const struct sl_vocab_tree *t, uint32_t done)
{
    for (uint32_t i = 0; i < t->n;) {
        const struct sl_vocab_node *x = &t->nodes[i], *after = x + x->skip;
        struct place p = w->at[x->depth - 1];
        w->bytes[x->depth] = x->byte;
        if (x->longest <= done || !step(w, &p, x->depth)) {
            i += x->skip;
            continue;
        }
        w->at[x->depth] = p;
        bool whole = x->skip > WORTH && x->below > 0 && leads_on(w, &p, &t->sets[i], x->below);
        set_all(t, x->first, whole ? after->first : x[1].first, w->out);
        i += whole ? x->skip : 1;
    }
}

/* Plain tokens of up to how many characters may come; *all: and no longer ones. */
static uint32_t plain_tokens(const struct walk *w, uint32_t state, bool *all)
{
    const struct sl_vocab_tree *t = &w->m->vocab->plain;
    int32_t run = plain_run(w->m, w->a, state);
    *all = run != SL_RX_RUN_UNKNOWN;
    if (*all)
        return run == SL_RX_INF ? SL_VOCAB_MAX_RUN : SL_MIN((uint32_t)run, SL_VOCAB_MAX_RUN);
    for (uint32_t n = SL_VOCAB_MAX_RUN; n >= 4; n /= 2)
        if (leads_on(w, &w->at[0], &t->all, n)) {
            *all = n == SL_VOCAB_MAX_RUN;
            return n;
        }
    return 0;
}

static void compute(struct sl_masks *m, struct sl_auto *a, uint32_t state, uint32_t *out)
{
    const struct sl_vocab *v = m->vocab;
    struct walk w;
    bool all;
    w.m = m;
    w.a = a;
    w.out = out;
    w.at[0] = place_of(a, state, 0);
    sl_spans_begin(&m->spans, &a->rx);
    uint32_t done = plain_tokens(&w, state, &all);
    memcpy(out, v->up_to + (size_t)done * v->n_words, v->n_words * sizeof out[0]);
    if (!all)
        walk(&w, &v->plain, done);
    walk(&w, &v->rest, 0);
    if (sl_auto_accepts(a, state))
        for (uint32_t i = 0; i < v->n_ends; i++)
            out[(uint32_t)v->ends[i] / 32] |= 1u << (v->ends[i] & 31);
}

int sl_masks_fill(struct sl_masks *m, struct sl_auto *a, uint32_t state, uint32_t *out,
                  struct sl_error *err)
{
    size_t n_bytes = m->vocab->n_words * sizeof out[0];
    uint32_t at = (state * 2654435761u >> 16) % (SL_MASK_CACHE / 4) * 4, oldest = at;
    m->clock++;
    for (uint32_t i = at; i < at + 4; i++) {
        if (m->at[i].state == state && m->at[i].mask != NULL) {
            m->at[i].used = m->clock;
            memcpy(out, m->at[i].mask, n_bytes);
            return 0;
        }
        if (m->at[i].used < m->at[oldest].used)
            oldest = i;
    }
    compute(m, a, state, out);
    int rc = sl_auto_check(a, err);
    if (rc != 0)
        return rc;
    if (m->at[oldest].mask == NULL)
        m->at[oldest].mask = sl_malloc(n_bytes);
    if (m->at[oldest].mask != NULL) { /* without memory the cache stays smaller */
        memcpy(m->at[oldest].mask, out, n_bytes);
        m->at[oldest].state = state;
        m->at[oldest].used = m->clock;
    }
    return 0;
}
