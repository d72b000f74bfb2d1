/* SPDX-License-Identifier: MIT
 * span.c - finding spans: breadth first, until the states repeat or one refuses too much.
 *
 * All states that strings of n characters lead to are looked at before those of n + 1, so whatever
 * ends the search, strings up to the length reached are certain. A state that refuses some of the
 * characters costs the set these, or those that lead to it; if that is most of the set, the span
 * ends there.
 */
#include "grammar/span.h"

#include "base/check.h"
#include "grammar/cset.h"
#include "grammar/rx_impl.h"

#include <string.h>

enum {
    MAX_STATES = 192, /* of one search */
    MAX_PARTS = 64,   /* states inside characters, of one state */
    MAX_ROUNDS = 12,  /* searches begun anew with a smaller set */
    MAX_CHARS = 32,   /* hardly a token is longer */
    MASK_STATES = 500,
    MOST = 80,        /* plain characters, of 94 */
    FEW = 16,         /* characters have small branches, walked as fast */
    MAX_ROWS = 10000, /* of the automaton: beyond, only walks may add to it */
    MASK_DERIVATIVES = 100000
};

struct visit {
    sl_rx_id id;
    uint16_t level;
    uint8_t from; /* index of the visit that led here */
    uint8_t live; /* characters of the set that the search began with */
};

struct search {
    struct sl_rx *rx;
    struct sl_spans *spans;
    struct visit v[MAX_STATES];
    uint16_t seen[MAX_STATES * 4]; /* hash of ids to index in v + 1 */
    uint32_t n;
    bool back; /* a string leads to a state that a shorter one leads to */
    struct {
        sl_rx_id id, other;
    } parts[MAX_PARTS];
    uint32_t n_parts;
    sl_rx_id ends[MAX_PARTS]; /* after a character beyond ASCII */
    uint32_t n_ends;
};

int sl_spans_init(struct sl_spans *s, struct sl_rx *rx, struct sl_error *err)
{
    struct sl_cset set = {0};
    memset(s, 0, sizeof *s);
    for (size_t i = 0; i < SL_PLAIN_RANGES; i++)
        if (sl_plain_ranges[i][0] >= 0x80)
            sl_cset_add(&set, sl_plain_ranges[i][0], sl_plain_ranges[i][1]);
    s->others = sl_cset_rx(rx, &set, SL_SPELL_UTF8);
    bool failed = set.failed;
    sl_cset_deinit(&set);
    return failed ? sl_fail(err, SL_ENOMEM, "grammar: out of memory") : sl_rx_check(rx, err);
}

void sl_spans_begin(struct sl_spans *s, const struct sl_rx *rx)
{
    s->budget = MASK_STATES;
    s->max_derived = rx->n_derived + MASK_DERIVATIVES;
}

static bool span_add(struct search *x, sl_rx_id id, uint32_t from)
{
    uint32_t h = id * 2654435761u >> 20;
    for (;; h++) {
        uint16_t at = x->seen[h % SL_COUNT(x->seen)];
        if (at == 0)
            break;
        if (x->v[at - 1].id == id) {
            x->back = x->back || x->v[at - 1].level <= x->v[from].level;
            return true;
        }
    }
    if (x->n == MAX_STATES)
        return false;
    uint16_t level = x->n == 0 ? 0 : (uint16_t)(x->v[from].level + 1);
    x->v[x->n++] = (struct visit){id, level, (uint8_t)from, 0};
    x->seen[h % SL_COUNT(x->seen)] = (uint16_t)x->n;
    return true;
}

static bool inside(sl_rx_id to)
{
    return to != SL_RX_NONE && to != SL_RX_EPS;
}

/* Does every character beyond ASCII stay inside, and where do they lead? other: the rest of one. */
static bool others_stay(struct search *x, sl_rx_id id, sl_rx_id other)
{
    sl_rx_id last = SL_RX_NONE, last_other = SL_RX_NONE;
    for (uint32_t i = 0; i < x->n_parts; i++)
        if (x->parts[i].id == id && x->parts[i].other == other)
            return true;
    if (x->n_parts == MAX_PARTS)
        return false;
    x->parts[x->n_parts].id = id;
    x->parts[x->n_parts++].other = other;
    for (unsigned b = 0x80; b < 0xF5; b++) {
        sl_rx_id rest = sl_rx_step(x->rx, other, (uint8_t)b);
        if (rest == SL_RX_NONE)
            continue;
        sl_rx_id to = sl_rx_step(x->rx, id, (uint8_t)b);
        if (!inside(to))
            return false;
        if (to == last && rest == last_other)
            continue;
        last = to;
        last_other = rest;
        if (rest != SL_RX_EPS) {
            if (!others_stay(x, to, rest))
                return false;
            continue;
        }
        uint32_t k = 0;
        while (k < x->n_ends && x->ends[k] != to)
            k++;
        if (k == MAX_PARTS)
            return false;
        x->ends[k] = to;
        x->n_ends = SL_MAX(x->n_ends, k + 1);
    }
    return true;
}

/* The plain characters that stay inside. */
static struct sl_plain_set stays(struct search *x, sl_rx_id id, bool others)
{
    struct sl_plain_set out = {{0, 0}};
    for (unsigned c = 0x20; c < 0x7F; c++)
        if (c != '"' && c != '\\' && inside(sl_rx_step(x->rx, id, (uint8_t)c)))
            out.w[c / 64] |= 1ull << (c & 63);
    x->n_parts = x->n_ends = 0;
    if (others && others_stay(x, id, x->spans->others))
        out.w[1] |= 1ull << (SL_PLAIN_OTHERS & 63);
    return out;
}

static bool has_others(const struct sl_plain_set *set)
{
    return (set->w[1] >> (SL_PLAIN_OTHERS & 63) & 1) != 0;
}

/* Where the characters of the set lead to from v[i], of which stays was just told. */
static bool add_next(struct search *x, uint32_t i, const struct sl_plain_set *set)
{
    sl_rx_id last = SL_RX_NONE, id = x->v[i].id;
    for (unsigned c = 0x20; c < 0x7F; c++) {
        if ((set->w[c / 64] >> (c & 63) & 1) == 0)
            continue;
        sl_rx_id to = sl_rx_step(x->rx, id, (uint8_t)c);
        if (to != last && !span_add(x, to, i))
            return false;
        last = to;
    }
    for (uint32_t k = 0; has_others(set) && k < x->n_ends; k++)
        if (!span_add(x, x->ends[k], i))
            return false;
    return true;
}

static uint32_t span_size_of(const struct sl_plain_set *set)
{
    return (uint32_t)(__builtin_popcountll(set->w[0]) + __builtin_popcountll(set->w[1]));
}

static bool gave_up(const struct search *x)
{
    const struct sl_rx *rx = x->rx;
    return rx->failed != NULL || x->spans->budget == 0 || rx->n_rows > MAX_ROWS ||
           rx->n_derived > x->spans->max_derived;
}

/* v[i] refuses some of the set: leaves out these, or what leads to v[i], whatever are fewer.
 * False: both are too many. */
static bool span_narrow(struct search *x, uint32_t i, struct sl_plain_set *set,
                        const struct sl_plain_set *now)
{
    sl_rx_id from = x->v[x->v[i].from].id, id = x->v[i].id;
    struct sl_plain_set to = stays(x, from, has_others(set));
    bool others = false;
    for (uint32_t k = 0; k < x->n_ends && !others; k++)
        others = x->ends[k] == id;
    for (unsigned c = 0x20; c < 0x7F; c++)
        if (sl_rx_step(x->rx, from, (uint8_t)c) == id)
            to.w[c / 64] &= ~(1ull << (c & 63));
    if (others)
        to.w[1] &= ~(1ull << (SL_PLAIN_OTHERS & 63));
    to.w[0] &= set->w[0];
    to.w[1] &= set->w[1];
    const struct sl_plain_set *best = span_size_of(now) >= span_size_of(&to) ? now : &to;
    if (span_size_of(best) * 2 < span_size_of(set) || gave_up(x))
        return false;
    *set = *best;
    return true;
}

/* Do v[i] and all other states as many characters away refuse every plain one? */
static bool all_refuse(struct search *x, uint32_t i)
{
    SL_ASSERT(i > 0 && i < x->n);
    if (x->back) /* so these are not all */
        return false;
    for (uint32_t k = i; k < x->n; k++) {
        struct sl_plain_set now = stays(x, x->v[k].id, false);
        if (x->v[k].level != x->v[i].level || span_size_of(&now) != 0 || gave_up(x))
            return false;
        for (unsigned b = 0x80; b < 0xF5; b++)
            if (inside(sl_rx_step(x->rx, x->v[k].id, (uint8_t)b)))
                return false;
    }
    return true;
}

/* One search. False: the set became smaller, another one is worth while. */
static bool search_round(struct search *x, sl_rx_id id, bool last, struct sl_char_span *out)
{
    x->n = 0;
    x->back = false;
    memset(x->seen, 0, sizeof x->seen);
    (void)span_add(x, id, 0);
    for (uint32_t i = 0; i < x->n; i++) {
        struct visit at = x->v[i];
        out->chars = at.level;
        if (at.level == MAX_CHARS || gave_up(x))
            return true;
        x->spans->budget--;
        struct sl_plain_set now = stays(x, at.id, has_others(&out->set));
        x->v[i].live = (uint8_t)span_size_of(&now);
        now.w[0] &= out->set.w[0];
        now.w[1] &= out->set.w[1];
        out->ends =
            i > 0 && span_size_of(&now) == 0 && x->v[i - 1].level < at.level && all_refuse(x, i);
        if (out->ends)
            return true;
        if (i > 0 && span_size_of(&now) < span_size_of(&out->set))
            return last || !span_narrow(x, i, &out->set, &now);
        out->set = now;
        if (i == 0 && span_size_of(&now) < FEW) {
            out->set = (struct sl_plain_set){{0, 0}};
            return true;
        }
        if (gave_up(x) || !add_next(x, i, &now))
            return true;
    }
    out->chars = SL_VOCAB_MAX_RUN;
    return true;
}

static uint32_t slot(sl_rx_id id)
{
    return (id * 2654435761u >> 16) % SL_SPAN_CACHE;
}

/* What the search says of the states that it met, where that is nearly all they allow. */
static void span_share(const struct search *x, const struct sl_char_span *found)
{
    uint32_t size = span_size_of(&found->set);
    for (uint32_t i = 1; i < x->n; i++) {
        const struct visit *v = &x->v[i];
        uint32_t at = slot(v->id);
        bool ever = found->chars == SL_VOCAB_MAX_RUN;
        if (v->live == 0 || size * 4 < v->live * 3 ||
            (!ever && v->level + MAX_CHARS / 2u > found->chars))
            continue;
        if (x->spans->at[at].id == v->id)
            continue;
        x->spans->at[at].id = v->id;
        x->spans->at[at].span = *found;
        x->spans->at[at].span.chars -= ever ? 0 : v->level;
        x->spans->at[at].span.ends = false; /* it may lead to fewer of the last states */
    }
}

static bool repeats(const struct sl_rx *rx, sl_rx_id id)
{
    const struct sl_rx_node *x = &rx->nodes[id];
    return x->op == RX_CAT && rx->nodes[x->a].op == RX_REP && rx->nodes[x->a].hi == SL_RX_INF;
}

const struct sl_char_span *sl_span_of(struct sl_spans *s, struct sl_rx *rx, sl_rx_id id)
{
    static const struct sl_char_span nothing = {{{0, 0}}, 0, false};
    uint32_t at = slot(id);
    if (s->at[at].id == id)
        return &s->at[at].span;
    struct search x;
    struct sl_char_span out = {{{~0ull, ~0ull}}, 0, false};
    x.rx = rx;
    x.spans = s;
    x.n = 0;
    if (gave_up(&x) || id <= SL_RX_EPS)
        return &nothing;
    /* A choice allows what each of its parts does: one that repeats itself may do for all. */
    struct sl_rx_node n = rx->nodes[id];
    for (uint32_t i = 0; n.op == RX_ALT && i < n.b && out.chars == 0; i++) {
        sl_rx_id kid = rx->kids[n.a + i];
        const struct sl_char_span *y = repeats(rx, kid) ? sl_span_of(s, rx, kid) : &nothing;
        if (y->chars == SL_VOCAB_MAX_RUN && span_size_of(&y->set) >= MOST)
            out = *y;
    }
    bool known = out.chars > 0;
    for (int i = 1; !known; i++)
        known = search_round(&x, id, i == MAX_ROUNDS, &out);
    if (span_size_of(&out.set) == 0)
        out.chars = 0;
    if (gave_up(&x)) /* it may be more another time */
        return &nothing;
    span_share(&x, &out);
    s->at[at].id = id;
    s->at[at].span = out;
    return &s->at[at].span;
}
