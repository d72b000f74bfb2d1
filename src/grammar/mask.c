/* SPDX-License-Identifier: MIT
 * mask.c - walking the vocabulary with the automaton.
 *
 * Four things make it cheap. Where a state lets any plain character come for a while (the inside
 * of a string), the plain tokens are one precomputed mask by their number of characters. Plain
 * tokens that the lexeme cannot tell apart are walked as one (shape.h). Where it tells too many
 * apart but lets any of a set come (span.h), branches with no other characters are taken whole. And
 * inside a lexeme the walk follows rows of transitions, without making states of the automaton;
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
    sl_free(m->rivals.v);
}

static struct sl_mask_run mask_run_of(struct sl_masks *m, struct sl_auto *a, sl_rx_id id)
{
    struct sl_mask_run *x = &m->runs[id * 2654435761u >> 22];
    if (id == SL_RX_NONE)
        return (struct sl_mask_run){id, SL_RX_RUN_UNKNOWN, false};
    if (x->id != id) {
        x->run = sl_rx_run(&a->rx, id, m->plain, &x->longer);
        x->id = id;
    }
    return *x;
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

/* So many plain characters are sure to be allowed. */
static uint32_t run_chars(const struct sl_mask_run *r)
{
    SL_ASSERT(r->run >= SL_RX_RUN_UNKNOWN);
    return r->run == SL_RX_RUN_UNKNOWN ? 0
           : r->run == SL_RX_INF       ? SL_VOCAB_MAX_RUN
                                       : SL_MIN((uint32_t)r->run, SL_VOCAB_MAX_RUN);
}

/* How many plain characters may follow whatever the stack says. *all: and no more than these. */
static uint32_t plain_run(struct sl_masks *m, struct sl_auto *a, uint32_t state, bool *all)
{
    const struct sl_vec *x = sl_vec_at(a, state);
    uint32_t most = 0;
    *all = false;
    for (uint32_t i = 0; i < x->n && !*all; i += 2) {
        uint32_t lex = x->v[i + 1];
        const struct sl_mask_run r = mask_run_of(m, a, thread_rx(a, lex));
        if (r.run == SL_RX_RUN_UNKNOWN)
            continue;
        most = SL_MAX(most, run_chars(&r));
        /* A bound is exact only if nothing else could take a plain character. */
        *all = most == SL_VOCAB_MAX_RUN ||
               (!r.longer && x->n == 2 && (lex & SL_LEX_TAG) != SL_LEX_KEY);
    }
    return most;
}

struct place {      /* where the walk is at one depth */
    uint32_t state; /* when the walk was at depth `since` */
    sl_rx_id rx;    /* a lexeme of it, here; SL_RX_NONE: state is of here, and all there is */
    uint32_t stack; /* of the lexeme, when it is the only one and JSON's; 0: it is not */
    uint32_t since;
    bool wide;  /* sure to be allowed only while rx is wide */
    bool alone; /* rx is all there is: where it is at its end and cannot end, nothing goes on */
};

struct ahead { /* of the walk at one depth: so many characters of the set are certain to be allowed
                */
    struct sl_plain_set set;
    uint32_t chars;
};

struct walk {
    struct sl_masks *m;
    struct sl_auto *a;
    uint32_t *out, root;  /* root: the state that the walk is about, not blurred */
    uint32_t rivals_of;   /* the state that m->rivals are of, 0: none yet */
    bool run;             /* what is ahead is known from the root, and spans would not say more */
    bool shapes, stopped; /* bytes stand for classes of rx; a place was met that is not rx alone */
    uint8_t bytes[SL_VOCAB_MAX_TOKEN + 1]; /* [depth] that led to the place at depth */
    struct place at[SL_VOCAB_MAX_TOKEN + 1];
    struct ahead ahead[SL_VOCAB_MAX_TOKEN + 1];
};

/* As long as one of its lexemes goes on the state does, whatever becomes of the others: nothing
 * else is followed until that one ends. */
static struct place mask_place_of(const struct sl_auto *a, uint32_t state, uint32_t depth)
{
    const struct sl_vec *x = sl_vec_at(a, state);
    struct place p = {state, SL_RX_NONE, 0, depth, sl_auto_is_wide(a, state), false};
    for (uint32_t i = 0; i < x->n && p.rx == SL_RX_NONE; i += 2)
        p.rx = thread_rx(a, x->v[i + 1]);
    if (x->n == 2 && sl_vec_at(a, x->v[0])->kind != SL_VEC_RETURN) {
        const uint32_t tag = x->v[1] & SL_LEX_TAG;
        p.alone = (tag == SL_LEX_RX || tag == SL_LEX_TUPLE) && !p.wide;
        p.stack = tag == SL_LEX_RX ? x->v[0] : 0;
    }
    return p;
}

/* By the texts that blurred states leave out. */
static bool step_exact(struct walk *w, struct place *p, uint32_t depth)
{
    uint32_t state = w->root;
    for (uint32_t d = 1; d <= depth && state != 0; d++)
        state = sl_auto_step(w->a, state, w->bytes[d]);
    if (state != 0)
        *p = mask_place_of(w->a, sl_auto_blur(w->a, state), depth);
    return state != 0;
}

/* What follows the text that the place is reading depends on it, and it ends here. Of most tokens
 * it suffices to know that it is none of those that matter. Exact states are as many as texts. */
static uint32_t step_other(struct walk *w, const struct place *p, uint32_t depth)
{
    struct sl_auto *a = w->a;
    struct sl_rivals *r = &w->m->rivals;
    uint32_t exact = w->root, from = p->since + 1;
    SL_ASSERT(depth >= from && depth <= SL_VOCAB_MAX_TOKEN);
    for (uint32_t d = 1; d < from && exact > SL_STATE_UNSURE; d++)
        exact = sl_auto_step(a, exact, w->bytes[d]);
    if (exact <= SL_STATE_UNSURE)
        return SL_STATE_UNSURE;
    if (w->rivals_of != exact)
        sl_auto_rivals(a, exact, r);
    w->rivals_of = exact;
    if (r->other == 0 || sl_rivals_have(r, &w->bytes[from], depth + 1 - from))
        return SL_STATE_UNSURE;
    uint32_t state = r->other;
    if (p->stack != 0) {
        const uint32_t *v = sl_vec_at(a, state)->v;
        state = sl_vec_of(a, SL_VEC_STATE, (uint32_t[]){v[0], SL_LEX_RX | p->rx}, 2);
        from = depth;
    }
    for (uint32_t d = from; d <= depth && state > SL_STATE_UNSURE; d++)
        state = sl_auto_step(a, state, w->bytes[d]);
    return state;
}

/* The lexeme that was followed has ended, or was never there: from the state, byte by byte. */
static bool step_state(struct walk *w, struct place *p, uint32_t depth)
{
    struct sl_auto *a = w->a;
    if (p->wide)
        return step_exact(w, p, depth);
    uint32_t state = p->state, from = p->since + 1;
    if (p->stack != 0) {
        state = sl_vec_of(a, SL_VEC_STATE, (uint32_t[]){p->stack, SL_LEX_RX | p->rx}, 2);
        from = depth;
    }
    for (uint32_t d = from; d <= depth && state > SL_STATE_UNSURE; d++)
        state = sl_auto_step(a, state, w->bytes[d]);
    if (state == SL_STATE_UNSURE)
        state = step_other(w, p, depth);
    if (state == SL_STATE_UNSURE)
        return step_exact(w, p, depth);
    if (state != 0)
        *p = mask_place_of(a, sl_auto_blur(a, state), depth);
    return state != 0;
}

static inline bool mask_step(struct walk *w, struct place *p, uint32_t depth)
{
    if (p->rx != SL_RX_NONE) {
        sl_rx_id to = sl_rx_step(&w->a->rx, p->rx, w->bytes[depth]);
        if (to > SL_RX_EPS && (!p->wide || sl_rx_is_wide(w->a, to))) {
            p->rx = to;
            return true;
        }
        if (to == SL_RX_NONE && p->alone && !sl_rx_nullable(&w->a->rx, p->rx))
            return false;
    }
    w->stopped = w->stopped || w->shapes;
    return !w->shapes && step_state(w, p, depth);
}

static bool has_all(const struct sl_plain_set *x, const struct sl_plain_set *set)
{
    return ((set->w[0] & ~x->w[0]) | (set->w[1] & ~x->w[1])) == 0;
}

/* Does every text of up to that many characters of the set stay allowed? Asks for the state's own
 * span only where what is known from before it does not say so. */
static bool leads_on(const struct walk *w, const struct place *p, struct ahead *ahead,
                     const struct sl_plain_set *set, uint32_t chars)
{
    if (ahead->chars >= chars && has_all(&ahead->set, set))
        return true;
    if (p->rx == SL_RX_NONE || p->wide || w->run)
        return false;
    const struct sl_mask_run r = mask_run_of(w->m, w->a, p->rx);
    const uint32_t run = run_chars(&r);
    if (run > ahead->chars)
        *ahead = (struct ahead){{{~0ull, ~0ull}}, run};
    if (run >= chars)
        return true;
    const struct sl_char_span *span = sl_span_of(&w->m->spans, &w->a->rx, p->rx);
    if (span->chars > ahead->chars || (span->chars > 0 && has_all(&span->set, &ahead->set)))
        *ahead = (struct ahead){span->set, span->chars};
    return span->chars >= chars && sl_span_has(span, set);
}

/* What is known behind one more byte of a plain token. */
static struct ahead behind(struct ahead x, uint8_t byte)
{
    unsigned bit = byte < 0x80 ? byte : SL_PLAIN_OTHERS;
    if ((byte & 0xC0) == 0x80) /* in the middle of a character */
        return x;
    SL_ASSERT(x.chars <= SL_VOCAB_MAX_RUN);
    if (x.chars == 0 || (x.set.w[bit / 64] >> (bit & 63) & 1) == 0)
        return (struct ahead){{{0, 0}}, 0};
    x.chars -= x.chars < SL_VOCAB_MAX_RUN;
    return x;
}

static void set_all(const struct sl_vocab_tree *t, uint32_t from, uint32_t to, uint32_t *out)
{
    for (uint32_t k = from; k < to; k++)
        out[(uint32_t)t->ids[k] / 32] |= 1u << (t->ids[k] & 31);
}

/* Are the node's tokens and those below it certain, by what is known behind it? Then none of them
 * needs a step. */
static bool is_certain(const struct sl_vocab_tree *t, const struct sl_vocab_node *x,
                       const struct ahead *known)
{
    const struct sl_plain_set *set = &t->sets[x - t->nodes];
    if ((known->set.w[0] | known->set.w[1]) == 0) /* not even the node's own character */
        return false;
    if (x->skip == 1)
        return true;
    return x->below > 0 && known->chars >= x->below && has_all(&known->set, set);
}

/* done: plain tokens of up to that many characters are in the mask already. False: it
 * stopped; what it allowed is allowed. */
static bool walk(struct walk *w, const struct sl_vocab_tree *t, uint32_t done)
{
    w->stopped = false;
    for (uint32_t i = 0; i < t->n && !w->stopped;) {
        const struct sl_vocab_node *x = &t->nodes[i], *after = x + x->skip;
        struct ahead *ahead = &w->ahead[x->depth];
        bool may = x->longest > done, whole = false;
        w->bytes[x->depth] = x->byte;
        if (may && t->sets != NULL) {
            *ahead = behind(w->ahead[x->depth - 1], x->byte);
            whole = is_certain(t, x, ahead);
        }
        if (may && !whole) {
            struct place *p = &w->at[x->depth];
            *p = w->at[x->depth - 1];
            may = mask_step(w, p, x->depth);
            whole = may && x->skip > WORTH && x->below > 0 &&
                    leads_on(w, p, ahead, &t->sets[i], x->below);
        }
        if (may)
            set_all(t, x->first, whole ? after->first : x[1].first, w->out);
        i += whole || !may ? x->skip : 1;
    }
    return !w->stopped;
}

/* The tree of shapes for the lexeme at the root; NULL: there is none. */
static const struct sl_vocab_tree *shapes_for(struct walk *w)
{
    struct sl_masks *m = w->m;
    const sl_rx_id rx = w->at[0].rx;
    const uint32_t at = (rx * 2654435761u >> 16) % SL_COUNT(m->shapes);
    if (!w->at[0].alone)
        return NULL;
    if (m->shapes[at].id != rx) {
        m->shapes[at].id = rx;
        m->shapes[at].which = sl_shapes_for(&w->a->rx, rx);
    }
    const uint32_t which = m->shapes[at].which;
    SL_ASSERT(which <= SL_VOCAB_SHAPES);
    return which < SL_VOCAB_SHAPES ? &m->vocab->shapes[which] : NULL;
}

static bool walk_shapes(struct walk *w, const struct sl_vocab_tree *t)
{
    SL_ASSERT(w->at[0].alone && !w->shapes);
    w->shapes = true;
    bool ok = walk(w, t, 0);
    w->shapes = false;
    return ok;
}

/* Plain tokens of up to how many characters may come by the lexeme's span; *all: and no longer
 * ones.
 */
static uint32_t by_span(struct walk *w, bool *all)
{
    const struct sl_vocab_tree *t = &w->m->vocab->plain;
    const struct place *p = &w->at[0];
    if (p->wide || p->rx == SL_RX_NONE)
        return 0;
    const struct sl_char_span *span = sl_span_of(&w->m->spans, &w->a->rx, p->rx);
    w->ahead[0] = (struct ahead){span->set, span->chars};
    if (!sl_span_has(span, &t->all))
        return 0;
    *all = span->chars >= SL_VOCAB_MAX_RUN || (span->ends && p->stack != 0);
    return SL_MIN(span->chars, SL_VOCAB_MAX_RUN);
}

static void allow_up_to(const struct walk *w, uint32_t chars)
{
    const struct sl_vocab *v = w->m->vocab;
    SL_ASSERT(chars <= SL_VOCAB_MAX_RUN);
    memcpy(w->out, v->up_to + (size_t)chars * v->n_words, v->n_words * sizeof w->out[0]);
}

static void plain_tokens(struct walk *w, uint32_t state)
{
    const struct sl_vocab_tree *t = &w->m->vocab->plain;
    bool all;
    uint32_t done = plain_run(w->m, w->a, state, &all);
    allow_up_to(w, done);
    if (all)
        return;
    const struct sl_vocab_tree *shapes = shapes_for(w);
    if (shapes != NULL && walk_shapes(w, shapes))
        return;
    if (done > 0) {
        w->ahead[0] = (struct ahead){{{~0ull, ~0ull}}, done};
        w->run = true;
    } else {
        done = by_span(w, &all);
    }
    allow_up_to(w, done);
    if (!all)
        (void)walk(w, t, done);
}

static void compute(struct sl_masks *m, struct sl_auto *a, uint32_t state, uint32_t *out)
{
    const struct sl_vocab *v = m->vocab;
    struct walk w;
    w.m = m;
    w.a = a;
    w.out = out;
    w.root = state;
    w.shapes = w.run = false;
    w.rivals_of = 0;
    w.ahead[0] = (struct ahead){{{0, 0}}, 0};
    w.at[0] = mask_place_of(a, sl_auto_blur(a, state), 0);
    sl_spans_begin(&m->spans, &a->rx);
    plain_tokens(&w, state);
    w.run = false;
    (void)walk(&w, &v->rest, 0);
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
