/* SPDX-License-Identifier: MIT
 * mask.c - walking the vocabulary with the automaton.
 *
 * Two things make it cheap. Where a state lets any plain character come for a while (the inside of
 * a string), the plain tokens are one precomputed mask by their number of characters, and only the
 * others are walked. And inside one lexeme the walk follows rows of transitions, without making
 * states of the automaton; only where a lexeme ends does the stack matter.
 */
#include "grammar/mask.h"

#include "base/check.h"
#include "base/sys.h"
#include "grammar/auto_impl.h"
#include "grammar/cset.h"

#include <string.h>

int sl_masks_init(struct sl_masks *m, struct sl_auto *a, const struct sl_vocab *vocab,
                  struct sl_error *err)
{
    struct sl_cset set = {0};
    memset(m, 0, sizeof *m);
    m->vocab = vocab;
    for (size_t i = 0; i < SL_MASK_CACHE; i++)
        m->at[i].state = 0;
    sl_cset_add(&set, 0x20, 0x21);
    sl_cset_add(&set, 0x23, 0x5B);
    sl_cset_add(&set, 0x5D, 0x7E);
    sl_cset_add(&set, 0x80, 0x2027);
    sl_cset_add(&set, 0x202A, 0x10FFFF);
    m->plain = sl_cset_rx(&a->rx, &set, SL_SPELL_UTF8);
    bool failed = set.failed;
    sl_cset_deinit(&set);
    return failed ? sl_fail(err, SL_ENOMEM, "grammar: out of memory") : sl_rx_check(&a->rx, err);
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

/* How many plain characters may follow whatever the stack says; SL_RX_RUN_UNKNOWN: walk them. */
static int32_t plain_run(struct sl_masks *m, struct sl_auto *a, uint32_t state)
{
    const struct sl_vec *x = sl_vec_at(a, state);
    for (uint32_t i = 0; i < x->n; i += 2) {
        uint32_t lex = x->v[i + 1], tag = lex & SL_LEX_TAG;
        if (tag == SL_LEX_NONE)
            continue;
        const struct sl_vec *y = tag == SL_LEX_RX ? NULL : sl_vec_at(a, lex & SL_LEX_ID);
        int32_t run = run_of(m, a,
                             tag == SL_LEX_RX      ? lex & SL_LEX_ID
                             : tag == SL_LEX_TUPLE ? y->v[0]
                                                   : y->v[3]);
        /* A bound is exact only if nothing else could take a plain character. */
        if (run == SL_RX_INF || (run >= 0 && x->n == 2 && tag != SL_LEX_KEY))
            return run;
    }
    return SL_RX_RUN_UNKNOWN;
}

struct place {      /* where the walk is at one depth */
    uint32_t state; /* 0: inside a lexeme of one thread */
    uint32_t stack;
    sl_rx_id rx;
};

static struct place place_of(const struct sl_auto *a, uint32_t state)
{
    struct place p = {state, 0, sl_auto_lexeme(a, state)};
    if (p.rx != SL_RX_NONE) {
        p.stack = sl_vec_at(a, state)->v[0];
        p.state = 0;
    }
    return p;
}

static bool step(struct sl_auto *a, struct place *p, uint8_t byte)
{
    if (p->state == 0) {
        sl_rx_id to = sl_rx_step(&a->rx, p->rx, byte);
        bool ends = sl_rx_nullable(&a->rx, p->rx),
             json = sl_vec_at(a, p->stack)->kind != SL_VEC_RETURN;
        if (to != SL_RX_NONE && to != SL_RX_EPS && (json || !sl_rx_nullable(&a->rx, to))) {
            p->rx = to;
            return true;
        }
        if (to == SL_RX_NONE && !(json && ends))
            return false;
        p->state = sl_vec_of(a, SL_VEC_STATE, (uint32_t[]){p->stack, SL_LEX_RX | p->rx}, 2);
        if (p->state == 0)
            return false;
    }
    uint32_t to = sl_auto_step(a, p->state, byte);
    if (to != 0)
        *p = place_of(a, to);
    return to != 0;
}

static void walk(struct sl_auto *a, const struct sl_vocab *v, const struct sl_vocab_tree *t,
                 uint32_t state, uint32_t *out)
{
    struct place at[SL_VOCAB_MAX_TOKEN + 1];
    at[0] = place_of(a, state);
    for (uint32_t i = 0; i < t->n;) {
        const struct sl_vocab_node *x = &t->nodes[i];
        struct place p = at[x->depth - 1];
        if (!step(a, &p, x->byte)) {
            i += x->skip;
            continue;
        }
        at[x->depth] = p;
        for (int32_t id = x->token; id >= 0; id = v->same[id])
            out[(uint32_t)id / 32] |= 1u << (id & 31);
        i++;
    }
}

static void compute(struct sl_masks *m, struct sl_auto *a, uint32_t state, uint32_t *out)
{
    const struct sl_vocab *v = m->vocab;
    int32_t run = plain_run(m, a, state);
    size_t n_bytes = v->n_words * sizeof out[0];
    if (run == SL_RX_RUN_UNKNOWN) {
        memset(out, 0, n_bytes);
    } else {
        uint32_t n = run == SL_RX_INF ? SL_VOCAB_MAX_RUN : SL_MIN((uint32_t)run, SL_VOCAB_MAX_RUN);
        memcpy(out, v->plain + (size_t)n * v->n_words, n_bytes);
    }
    walk(a, v, run == SL_RX_RUN_UNKNOWN ? &v->all : &v->rest, state, out);
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
