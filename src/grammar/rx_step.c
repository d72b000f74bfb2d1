/* SPDX-License-Identifier: MIT
 * rx_step.c - derivatives, rows of transitions, and whether a state can still accept.
 */
#include "base/check.h"
#include "base/sys.h"
#include "grammar/rx_impl.h"

#include <string.h>

enum {
    ALIVE_BUDGET = 3000, /* states a search for an accepting one visits */
    SHORT_BUDGET = 30,
    NEAR = 100, /* states that a search visits in the order in which it met them */
    SEEN = 8192,
};
_Static_assert((int)SEEN > (int)ALIVE_BUDGET, "a free place ends every search");

/* The bytes that no set on the way tells from the one asked for. */
static void rx_step_narrow(struct sl_rx_bytes *same, const struct sl_rx_bytes *set, bool has)
{
    for (int w = 0; w < 4; w++)
        same->w[w] &= has ? set->w[w] : ~set->w[w];
}

static sl_rx_id rx_step_derive(struct sl_rx *rx, sl_rx_id id, uint8_t byte,
                               struct sl_rx_bytes *same);

static sl_rx_id derive_list(struct sl_rx *rx, sl_rx_id id, uint8_t byte, struct sl_rx_bytes *same)
{
    sl_rx_id small[32], *v = small, out;
    struct sl_rx_node n = rx->nodes[id];
    SL_ASSERT((n.op == RX_ALT || n.op == RX_AND) && n.a + n.b <= rx->n_kids);
    if (n.b > SL_COUNT(small)) {
        v = sl_malloc(n.b * sizeof *v);
        if (v == NULL)
            return sl_rx_fail(rx, SL_ENOMEM, "out of memory");
    }
    for (uint32_t i = 0; i < n.b; i++) {
        const struct sl_rx_node *kid = &rx->nodes[rx->kids[n.a + i]];
        if (kid->op == RX_CAT && rx->nodes[kid->a].op == RX_SET) { /* most of a large choice */
            const struct sl_rx_bytes *set = &rx->sets[rx->nodes[kid->a].a];
            bool has = sl_rx_bytes_has(set, byte);
            rx_step_narrow(same, set, has);
            v[i] = has ? kid->b : SL_RX_NONE;
        } else {
            v[i] = rx_step_derive(rx, rx->kids[n.a + i], byte, same);
        }
        if (v[i] == SL_RX_NONE && n.op == RX_AND) {
            out = SL_RX_NONE;
            goto done;
        }
    }
    out = n.op == RX_ALT ? sl_rx_alt(rx, v, n.b) : sl_rx_and(rx, v, n.b);
done:
    if (v != small)
        sl_free(v);
    return out;
}

/* A chain of parts, of which those that may be empty let the byte through to the next. */
static sl_rx_id derive_cat(struct sl_rx *rx, sl_rx_id id, uint8_t byte, struct sl_rx_bytes *same)
{
    sl_rx_id small[64], out = SL_RX_NONE;
    size_t n = 0;
    for (;;) {
        struct sl_rx_node x = rx->nodes[id];
        SL_ASSERT(n < SL_COUNT(small));
        bool chain = x.op == RX_CAT;
        sl_rx_id d = chain ? sl_rx_cat(rx, rx_step_derive(rx, x.a, byte, same), x.b)
                           : rx_step_derive(rx, id, byte, same);
        if (d != SL_RX_NONE)
            small[n++] = d;
        if (n == SL_COUNT(small)) {
            small[0] = sl_rx_alt(rx, small, n);
            n = 1;
        }
        if (!chain || !rx->nodes[x.a].nullable || rx->failed != NULL)
            break;
        id = x.b;
    }
    if (n > 0)
        out = n == 1 ? small[0] : sl_rx_alt(rx, small, n);
    return out;
}

static sl_rx_id derive_digits(struct sl_rx *rx, const struct sl_rx_node *n, uint8_t byte,
                              struct sl_rx_bytes *same)
{
    SL_ASSERT(n->op == RX_MOD && n->a > 0 && n->b < n->a && n->lo >= 0);
    struct sl_rx_bytes one = {0};
    sl_rx_bytes_add(&one, byte, byte);
    rx_step_narrow(same, &one, true);
    if (byte == '.')
        return n->hi == 0 ? sl_rx_multiple_of(rx, n->a, n->b, n->lo, 1) : SL_RX_NONE;
    if (byte < '0' || byte > '9')
        return SL_RX_NONE;
    if (n->hi == 1 && n->lo == 0) /* beyond the last digit that counts */
        return byte == '0' ? sl_rx_multiple_of(rx, n->a, n->b, 0, 1) : SL_RX_NONE;
    uint32_t rest = (uint32_t)(((uint64_t)n->b * 10 + byte - '0') % n->a);
    return sl_rx_multiple_of(rx, n->a, rest, n->lo - (n->hi == 1), n->hi);
}

/* Strings are sorted, so that those that go on alike lie together. */
static sl_rx_id derive_strings(struct sl_rx *rx, const struct sl_rx_node *n, uint8_t byte,
                               struct sl_rx_bytes *same)
{
    const struct sl_rx_str *v = rx->lists[n->a].v;
    uint32_t from = UINT32_MAX, to = 0;
    struct sl_rx_bytes set = {0};
    SL_ASSERT(n->op == RX_LIST && n->lo >= 0 && n->hi >= n->lo);
    for (uint32_t i = (uint32_t)n->lo; i <= (uint32_t)n->hi; i++) {
        if (v[i].n <= n->b)
            continue;
        uint8_t c = (uint8_t)v[i].s[n->b];
        from = c == byte && from == UINT32_MAX ? i : from;
        to = c == byte ? i : to;
        sl_rx_bytes_add(&set, c, c);
    }
    if (from == UINT32_MAX) {
        rx_step_narrow(same, &set, false);
        return SL_RX_NONE;
    }
    struct sl_rx_bytes one = {0};
    sl_rx_bytes_add(&one, byte, byte);
    rx_step_narrow(same, &one, true);
    return sl_rx_list_at(rx, n->a, from, to, n->b + 1);
}

bool sl_rx_spend(struct sl_rx *rx, uint64_t n)
{
    rx->n_derived += n;
    if (rx->max_derived != 0 && rx->n_derived > rx->max_derived)
        (void)sl_rx_fail(rx, SL_ELIMIT, "the automaton takes more time than its limit");
    return rx->failed == NULL;
}

static sl_rx_id derive_new(struct sl_rx *rx, sl_rx_id id, uint8_t byte, struct sl_rx_bytes *same)
{
    SL_DCHECK(id < rx->n_nodes);
    struct sl_rx_node n = rx->nodes[id];
    if (rx->failed != NULL)
        return SL_RX_NONE;
    rx->n_derived++;
    switch ((enum sl_rx_op)n.op) {
    case RX_NONE:
    case RX_EPS:
        return SL_RX_NONE;
    case RX_SET: {
        bool has = sl_rx_bytes_has(&rx->sets[n.a], byte);
        rx_step_narrow(same, &rx->sets[n.a], has);
        return has ? SL_RX_EPS : SL_RX_NONE;
    }
    case RX_CAT:
        return derive_cat(rx, id, byte, same);
    case RX_ALT:
    case RX_AND:
        return derive_list(rx, id, byte, same);
    case RX_NOT:
        return sl_rx_not(rx, rx_step_derive(rx, n.a, byte, same));
    case RX_REP: {
        SL_ASSERT(n.hi != 0 && n.lo >= 0);
        sl_rx_id d = rx_step_derive(rx, n.a, byte, same);
        if (d == SL_RX_NONE)
            return d;
        return sl_rx_cat(
            rx, d,
            sl_rx_rep(rx, n.a, n.lo > 0 ? n.lo - 1 : 0, n.hi == SL_RX_INF ? n.hi : n.hi - 1));
    }
    case RX_LIST:
        return derive_strings(rx, &n, byte, same);
    case RX_MOD:
        return derive_digits(rx, &n, byte, same);
    }
    return SL_RX_NONE;
}

static sl_rx_id rx_step_derive(struct sl_rx *rx, sl_rx_id id, uint8_t byte,
                               struct sl_rx_bytes *same)
{
    if (rx->nodes[id].op <= RX_SET)
        return derive_new(rx, id, byte, same);
    /* By its id the one that was used last, as bytes in order mostly have the same; and by both. */
    struct sl_rx_derived *last = &rx->derived[id * 2654435761u % SL_RX_DERIVED], *x = last;
    if (x->id != id || !sl_rx_bytes_has(&x->same, byte)) {
        x = &rx->derived[(id * 2654435761u + byte * 40503u) % SL_RX_DERIVED];
        if (x->id != id || !sl_rx_bytes_has(&x->same, byte)) {
            struct sl_rx_bytes mine = {{~0ull, ~0ull, ~0ull, ~0ull}};
            sl_rx_id to = derive_new(rx, id, byte, &mine);
            if (rx->failed != NULL)
                return SL_RX_NONE;
            *x = (struct sl_rx_derived){id, to, mine};
        }
        *last = *x;
    }
    for (int w = 0; w < 4; w++)
        same->w[w] &= x->same.w[w];
    return x->to;
}

/* Without the search for dead states, which itself walks rows. */
static sl_rx_id raw_step(struct sl_rx *rx, sl_rx_id id, uint8_t byte)
{
    if (rx->nodes[id].row == NULL) {
        if (rx->n_rows >= rx->limits.max_rows)
            return sl_rx_fail(rx, SL_ELIMIT, "the automaton needs more states than its limit");
        if (rx->with_row == NULL)
            rx->with_row = sl_malloc(rx->limits.max_rows * sizeof *rx->with_row);
        if (rx->with_row == NULL)
            return sl_rx_no_room(rx, true);
        uint32_t *row = sl_arena_alloc(&rx->arena, 256 * sizeof *row);
        if (row == NULL)
            return sl_rx_no_room(rx, rx->arena.no_memory);
        memset(row, 0xFF, 256 * sizeof *row);
        rx->nodes[id].row = row;
        rx->with_row[rx->n_rows++] = id;
    }
    if (rx->nodes[id].row[byte] != SL_RX_UNKNOWN)
        return rx->nodes[id].row[byte] & ~SL_RX_UNVERIFIED;
    struct sl_rx_bytes same = {{~0ull, ~0ull, ~0ull, ~0ull}};
    if (!sl_rx_spend(rx, 0))
        return SL_RX_NONE;
    sl_rx_id to = derive_new(rx, id, byte, &same);
    if (rx->failed != NULL)
        return SL_RX_NONE;
    SL_ASSERT(to < rx->n_nodes && sl_rx_bytes_has(&same, byte)); /* or it stays unknown */
    uint32_t *row = rx->nodes[id].row, mark = rx->nodes[to].boolean ? SL_RX_UNVERIFIED : 0;
    for (unsigned w = 0; w < 4; w++)
        for (uint64_t m = same.w[w]; m != 0; m &= m - 1)
            row[w * 64 + (unsigned)__builtin_ctzll(m)] = to | mark;
    return to;
}

struct visit {
    sl_rx_id id;
    uint32_t from; /* index of the visit that led here */
};

struct sl_rx_search { /* kept, as most searches are short */
    struct visit v[ALIVE_BUDGET];
    uint32_t stack[ALIVE_BUDGET];
    struct {
        uint32_t search, at; /* at + 1 in v, of the search with that number */
    } seen[SEEN];
    uint32_t number;
    uint8_t last; /* the byte by which the last search found what it was for */
};

/* Where in seen the id is, or the free place for it. */
static uint32_t seen_at(const struct sl_rx_search *s, sl_rx_id id)
{
    uint32_t h = id * 2654435761u >> 8;
    while (s->seen[h % SEEN].search == s->number && s->v[s->seen[h % SEEN].at].id != id)
        h++;
    return h % SEEN;
}

static uint32_t visit(struct sl_rx_search *s, uint32_t n, sl_rx_id id, uint32_t from)
{
    uint32_t place = seen_at(s, id);
    if (s->seen[place].search == s->number)
        return n;
    s->v[n] = (struct visit){id, from};
    s->seen[place].search = s->number;
    s->seen[place].at = n;
    return n + 1;
}

/* Does one of the values below `most`, added to rest, make a multiple of k? */
static bool reaches(uint64_t rest, uint64_t most, uint32_t k)
{
    return (k - rest) % k < most;
}

/* Can digits make it a multiple? Before the point so many may follow that every remainder is met;
 * behind it the digits that count must make up exactly what is missing. */
static bool multiple_alive(const struct sl_rx_node *n)
{
    uint64_t rest = n->b, most = 1; /* most: so many values have the digits that follow */
    SL_ASSERT(n->op == RX_MOD && n->a > 0 && n->lo >= 0);
    if (n->hi == 0)
        return true;
    for (int32_t i = 0; i < n->lo; i++) {
        rest = rest * 10 % n->a;
        most = SL_MIN(most * 10, (uint64_t)n->a);
    }
    return reaches(rest, most, n->a);
}

/* The state after any digit, if it is the same for all. */
static bool after_digit(struct sl_rx *rx, sl_rx_id id, sl_rx_id *to)
{
    *to = raw_step(rx, id, '0');
    for (uint8_t c = '1'; c <= '9'; c++)
        if (raw_step(rx, id, c) != *to)
            return false;
    return true;
}

enum { MAX_BESIDE = 8, MAX_DIGITS = 24, MAX_ZEROS = 4 };
enum answer { NO, YES, MAYBE };

static bool all_nullable(const struct sl_rx *rx, const sl_rx_id *v, uint32_t n)
{
    bool yes = true;
    for (uint32_t i = 0; i < n; i++)
        yes = yes && rx->nodes[v[i]].nullable;
    return yes;
}

/* The states after any digit; false: it matters which. */
static bool all_after_digit(struct sl_rx *rx, sl_rx_id *v, uint32_t n)
{
    bool same = true;
    for (uint32_t i = 0; i < n && same; i++) {
        sl_rx_id to;
        same = after_digit(rx, v[i], &to);
        v[i] = to;
    }
    return same;
}

/* May a fraction follow and end the number, whatever its digits are that count? Then come zeros. */
static enum answer fraction(struct sl_rx *rx, const struct sl_rx_node *x, const sl_rx_id *v,
                            uint32_t n)
{
    sl_rx_id at[MAX_BESIDE];
    bool goes_on = true;
    for (uint32_t i = 0; i < n; i++) {
        at[i] = raw_step(rx, v[i], '.');
        goes_on = goes_on && at[i] != SL_RX_NONE;
    }
    if (!goes_on)
        return NO;
    for (int32_t m = 0; m < x->lo; m++)
        if (!all_after_digit(rx, at, n))
            return MAYBE;
    if (x->lo > 0 && all_nullable(rx, at, n))
        return YES;
    for (int zeros = 0; zeros < MAX_ZEROS; zeros++) {
        bool loops = true;
        for (uint32_t i = 0; i < n; i++) {
            sl_rx_id to = raw_step(rx, at[i], '0');
            goes_on = goes_on && to != SL_RX_NONE;
            loops = loops && to == at[i];
            at[i] = to;
        }
        if (goes_on && all_nullable(rx, at, n))
            return YES;
        if (!goes_on) /* fewer digits may do */
            return x->lo > 0 ? MAYBE : NO;
        if (loops)
            return NO;
    }
    return MAYBE;
}

/* A whole number (as far as it is read) that must be a multiple, and what else must match (v), none
 * of which tells one digit from another as far as the number may go: so lengths can be tried
 * instead of values. */
static enum answer whole_alive(struct sl_rx *rx, const struct sl_rx_node *x, sl_rx_id *v,
                               uint32_t n)
{
    uint64_t rest = x->b, most = 1, scale = 1; /* most: so many values have the digits tried */
    enum answer out = NO;
    SL_ASSERT(n <= MAX_BESIDE && x->op == RX_MOD && x->hi == 0);
    for (int32_t i = 0; i < x->lo; i++)
        scale = SL_MIN(scale * 10, (uint64_t)x->a);
    for (int32_t m = 0; m < MAX_DIGITS && rx->failed == NULL; m++) {
        bool complete = all_nullable(rx, v, n), goes_on = true, loops = true;
        enum answer point = fraction(rx, x, v, n);
        uint64_t with = rest;
        for (int32_t i = 0; i < x->lo; i++)
            with = with * 10 % x->a;
        bool fits = reaches(with, SL_MIN(most * scale, (uint64_t)x->a), x->a);
        if ((complete && reaches(rest, most, x->a)) || (point == YES && fits))
            return YES;
        if (point == MAYBE && fits)
            out = MAYBE;
        for (uint32_t i = 0; i < n; i++) {
            sl_rx_id to;
            if (!after_digit(rx, v[i], &to))
                return MAYBE;
            goes_on = goes_on && to != SL_RX_NONE;
            loops = loops && to == v[i];
            v[i] = to;
        }
        if (goes_on && loops) /* with enough digits every remainder is met */
            return complete || point == YES ? YES : point == MAYBE ? MAYBE : out;
        if (!goes_on)
            return out;
        rest = rest * 10 % x->a;
        most = SL_MIN(most * 10, (uint64_t)x->a);
    }
    return MAYBE;
}

/* Behind the point, where some value of the digits that count makes a multiple. */
static enum answer fraction_alive(struct sl_rx *rx, const struct sl_rx_node *x, sl_rx_id *v,
                                  uint32_t n)
{
    SL_ASSERT(n <= MAX_BESIDE && x->op == RX_MOD && x->hi == 1);
    for (int32_t m = 0; m < x->lo; m++)
        if (!all_after_digit(rx, v, n))
            return MAYBE;
    return all_nullable(rx, v, n) ? YES : MAYBE;
}

/* What can be said of a multiple without a search, which would visit one remainder after the other.
 */
static enum answer alive_at_once(struct sl_rx *rx, sl_rx_id id)
{
    struct sl_rx_node n = rx->nodes[id], multiple = {0};
    sl_rx_id v[MAX_BESIDE];
    uint32_t n_beside = 0;
    if (n.op == RX_MOD)
        return multiple_alive(&n) ? YES : NO;
    if (n.op != RX_AND || n.b > MAX_BESIDE)
        return MAYBE;
    for (uint32_t i = n.a; i < n.a + n.b; i++) {
        const struct sl_rx_node *kid = &rx->nodes[rx->kids[i]];
        if (kid->op != RX_MOD) {
            v[n_beside++] = rx->kids[i];
            continue;
        }
        if (!multiple_alive(kid))
            return NO;
        multiple = *kid;
    }
    if (n_beside + 1 != n.b)
        return MAYBE;
    return multiple.hi == 0 ? whole_alive(rx, &multiple, v, n_beside)
                            : fraction_alive(rx, &multiple, v, n_beside);
}

/* Any characters of a JSON string, from lo to hi of them, and with the closing quote or without. */
static bool is_length(const struct sl_rx *rx, sl_rx_id id, int32_t *lo, int32_t *hi)
{
    const struct sl_rx_node *x = &rx->nodes[id], *rep = x->op == RX_CAT ? &rx->nodes[x->a] : x;
    SL_ASSERT(id < rx->n_nodes && rx->any_chars < rx->n_nodes);
    if (rx->any_chars == SL_RX_NONE || rep->op != RX_REP || rep->a != rx->nodes[rx->any_chars].a)
        return false;
    const struct sl_rx_node *quote = &rx->nodes[x->b];
    if (x->op == RX_CAT && (quote->op != RX_SET || quote->texts != SL_RX_TEXT))
        return false;
    *lo = rep->lo;
    *hi = rep->hi == SL_RX_INF ? INT32_MAX : rep->hi;
    return true;
}

/* What can be said without a search of strings of a length that must match: a pattern that may
 * match anywhere has as many states as there are sets of places in it, each with each length. */
static enum answer fits_length(const struct sl_rx *rx, sl_rx_id id)
{
    const struct sl_rx_node *n = &rx->nodes[id], *other = NULL;
    int32_t lo = 0, hi = INT32_MAX, kid_lo, kid_hi;
    uint32_t n_others = 0, texts = 0, least = 0;
    SL_ASSERT(n->op == RX_AND && n->a + n->b <= rx->n_kids);
    for (uint32_t i = n->a; i < n->a + n->b; i++) {
        const struct sl_rx_node *kid = &rx->nodes[rx->kids[i]];
        texts |= kid->texts;
        least = SL_MAX(least, kid->least);
        if (is_length(rx, rx->kids[i], &kid_lo, &kid_hi)) {
            lo = SL_MAX(lo, kid_lo);
            hi = SL_MIN(hi, kid_hi);
        } else {
            other = kid;
            n_others++;
        }
    }
    if (hi < INT32_MAX && least > (uint32_t)hi)
        return NO;
    bool simple = n_others == 1 && !other->boolean && other->exact;
    if (!simple || texts != other->texts || other->least < (uint32_t)lo)
        return MAYBE;
    return other->least <= (uint32_t)hi ? YES : MAYBE;
}

static bool surely_alive(const struct sl_rx *rx, sl_rx_id id)
{
    const struct sl_rx_node *x = &rx->nodes[id];
    return id != SL_RX_NONE && (x->nullable || x->alive == 1 || !x->boolean);
}

static void look_at(struct sl_rx *rx, sl_rx_id id);

/* Without a search. */
static enum answer alive_at_sight(struct sl_rx *rx, sl_rx_id id)
{
    const struct sl_rx_node n = rx->nodes[id];
    if (n.boolean == 2)
        return alive_at_once(rx, id);
    if (n.op == RX_AND)
        return fits_length(rx, id);
    if (n.op != RX_CAT || rx->nodes[n.b].boolean != 0)
        return MAYBE;
    look_at(rx, n.a); /* a closing quote stands behind it */
    return rx->nodes[n.a].alive == 2 ? NO : surely_alive(rx, n.a) ? YES : MAYBE;
}

/* Writes down what can be said. */
static void look_at(struct sl_rx *rx, sl_rx_id id)
{
    if (rx->nodes[id].alive != 0 || rx->nodes[id].boolean == 0)
        return;
    enum answer is = alive_at_sight(rx, id);
    rx->nodes[id].alive = is == MAYBE ? 0 : is == YES ? 1 : 2;
}

/* raw_step, of which most are known. */
static inline sl_rx_id quick_step(struct sl_rx *rx, sl_rx_id id, uint8_t byte)
{
    SL_DCHECK(id < rx->n_nodes);
    const uint32_t *row = rx->nodes[id].row;
    return row != NULL && row[byte] != SL_RX_UNKNOWN ? row[byte] & ~SL_RX_UNVERIFIED
                                                     : raw_step(rx, id, byte);
}

/* At first in breadth, as most states are near an accepting one; then depth first, so that one is
 * found in as many steps as its string is long. Many states accept behind the same byte, as strings
 * do behind a quote: that one is tried first. */
static bool search(struct sl_rx *rx, sl_rx_id id)
{
    uint32_t budget = rx->nodes[id].boolean == 2 ? SHORT_BUDGET : ALIVE_BUDGET;
    uint32_t n = 0, first = 0, n_stack = 0, found = UINT32_MAX;
    if (rx->search == NULL)
        rx->search = sl_calloc(1, sizeof *rx->search);
    struct sl_rx_search *s = rx->search;
    bool gave_up = s == NULL;
    if (gave_up) {
        rx->nodes[id].alive = 1;
        return true;
    }
    if (++s->number == 0) {
        memset(s->seen, 0, sizeof s->seen);
        s->number = 1;
    }
    n = visit(s, n, id, UINT32_MAX);
    s->stack[n_stack++] = 0;
    while (n_stack > first && found == UINT32_MAX && !gave_up) {
        uint32_t at = first < NEAR ? s->stack[first++] : s->stack[--n_stack];
        SL_ASSERT(at < n && n <= budget);
        sl_rx_id last = SL_RX_UNKNOWN;
        if (surely_alive(rx, quick_step(rx, s->v[at].id, s->last)))
            found = at;
        for (unsigned b = 0; b < 256 && found == UINT32_MAX && !gave_up; b++) {
            sl_rx_id to = quick_step(rx, s->v[at].id, (uint8_t)b);
            if (to == last || to == SL_RX_NONE || rx->nodes[to].alive == 2)
                continue;
            last = to;
            look_at(rx, to);
            if (rx->nodes[to].alive == 2)
                continue;
            if (surely_alive(rx, to)) {
                found = at;
                s->last = (uint8_t)b;
                break;
            }
            gave_up = n == budget || rx->failed != NULL;
            if (gave_up)
                break;
            uint32_t more = visit(s, n, to, at);
            if (more > n)
                s->stack[n_stack++] = n;
            if (more > n && b < 0x80 && surely_alive(rx, quick_step(rx, to, s->last)))
                found = n;
            n = more;
        }
    }
    if (found != UINT32_MAX)
        for (uint32_t i = found; i != UINT32_MAX; i = s->v[i].from)
            rx->nodes[s->v[i].id].alive = 1;
    else /* all that was met is dead; or taken for alive, or each would give up for itself */
        for (uint32_t i = 0; i < n; i++)
            rx->nodes[s->v[i].id].alive = gave_up ? 1 : 2;
    SL_ASSERT(rx->nodes[id].alive != 0); /* nobody searches for it again */
    return rx->nodes[id].alive == 1;
}

bool sl_rx_alive(struct sl_rx *rx, sl_rx_id id)
{
    const struct sl_rx_node *x = &rx->nodes[id];
    if (!x->boolean || x->nullable)
        return id != SL_RX_NONE;
    look_at(rx, id);
    x = &rx->nodes[id];
    return x->alive == 0 ? search(rx, id) : x->alive == 1;
}

sl_rx_id sl_rx_step_slow(struct sl_rx *rx, sl_rx_id id, uint8_t byte)
{
    sl_rx_id to = raw_step(rx, id, byte);
    SL_ASSERT(to < rx->n_nodes);
    uint32_t *row = rx->nodes[id].row;
    if (!rx->nodes[to].boolean || row == NULL)
        return to;
    sl_rx_id end = sl_rx_alive(rx, to) ? to : SL_RX_NONE;
    for (unsigned b = 0; b < 256; b++)
        if (row[b] == (to | SL_RX_UNVERIFIED))
            row[b] = end;
    return end;
}

void sl_rx_trim(struct sl_rx *rx, uint32_t max_rows)
{
    if (rx->n_rows <= max_rows)
        return;
    SL_ASSERT(rx->with_row != NULL && rx->n_rows <= rx->limits.max_rows);
    size_t max_bytes = rx->arena.max_bytes;
    for (uint32_t i = 0; i < rx->n_rows; i++)
        rx->nodes[rx->with_row[i]].row = NULL;
    sl_arena_deinit(&rx->arena);
    rx->arena.max_bytes = max_bytes;
    rx->n_rows = 0;
}

bool sl_rx_matches(struct sl_rx *rx, sl_rx_id id, const char *text, size_t n)
{
    for (size_t i = 0; i < n && id != SL_RX_NONE; i++)
        id = sl_rx_step(rx, id, (uint8_t)text[i]);
    return rx->nodes[id].nullable;
}

/* Does x match each plain character, and nothing longer that begins with one? */
static bool is_plain_char(struct sl_rx *rx, sl_rx_id x, sl_rx_id plain)
{
    sl_rx_id missing = sl_rx_and2(rx, plain, sl_rx_not(rx, x));
    sl_rx_id more = sl_rx_cat(rx, plain, sl_rx_cat(rx, sl_rx_range(rx, 0, 255), SL_RX_ALL));
    return !sl_rx_alive(rx, missing) && !sl_rx_alive(rx, sl_rx_and2(rx, x, more));
}

/* A part of the language, SL_RX_NONE: none was found, from which no plain character leads away:
 * behind each the part is still there. So it is of x.y if x is any number of plain characters, as
 * in a pattern that may match anywhere. If it has any string it has more than any number, so the
 * complement of finitely many strings, however far they are read, leaves some of them: where all
 * else is such a part, it counts as everything. */
static sl_rx_id lasting_part(struct sl_rx *rx, sl_rx_id id, sl_rx_id plain, int depth)
{
    SL_ASSERT(id < rx->n_nodes && depth >= 0);
    const struct sl_rx_node n = rx->nodes[id];
    sl_rx_id part = SL_RX_NONE, v[4];
    uint32_t n_parts = 0;
    if (depth > 8 || rx->failed != NULL)
        return SL_RX_NONE;
    switch ((enum sl_rx_op)n.op) {
    case RX_REP:
        return n.lo == 0 && n.hi == SL_RX_INF && is_plain_char(rx, n.a, plain) ? id : SL_RX_NONE;
    case RX_CAT:
        part = lasting_part(rx, n.a, plain, depth + 1);
        return part == SL_RX_NONE ? part : sl_rx_cat(rx, part, n.b);
    case RX_ALT:
        for (uint32_t i = 0; i < SL_MIN(n.b, 16u) && part == SL_RX_NONE; i++)
            part = lasting_part(rx, rx->kids[n.a + i], plain, depth + 1);
        return part;
    case RX_AND:
        for (uint32_t i = 0; i < n.b; i++) {
            const sl_rx_id kid = rx->kids[n.a + i];
            if (depth == 0 && rx->nodes[kid].op == RX_NOT && rx->nodes[rx->nodes[kid].a].finite)
                continue;
            part = lasting_part(rx, kid, plain, depth + 1);
            if (n_parts == SL_COUNT(v) || part == SL_RX_NONE)
                return SL_RX_NONE;
            v[n_parts++] = part;
        }
        return n_parts == 0 ? SL_RX_NONE : sl_rx_and(rx, v, n_parts);
    default:
        return SL_RX_NONE;
    }
}

/* The same of strings that have a bounded length besides: as long as the part fits into what is
 * left of the length, no plain character leads away. -1: not of that form. */
static int32_t lasting_run(struct sl_rx *rx, sl_rx_id id, sl_rx_id plain)
{
    const struct sl_rx_node top = rx->nodes[id], n = top.op == RX_CAT ? rx->nodes[top.a] : top;
    int32_t lo = 0, hi = INT32_MAX;
    uint32_t n_parts = 0;
    sl_rx_id part = SL_RX_NONE;
    SL_ASSERT(id < rx->n_nodes);
    for (uint32_t i = n.a; n.op == RX_AND && i < n.a + n.b; i++) {
        int32_t kid_lo, kid_hi;
        if (is_length(rx, rx->kids[i], &kid_lo, &kid_hi)) {
            lo = SL_MAX(lo, kid_lo);
            hi = SL_MIN(hi, kid_hi);
        } else if (n_parts++ > 0) {
            return -1;
        } else {
            part = lasting_part(rx, rx->kids[i], plain, 0);
        }
    }
    const struct sl_rx_node *x = &rx->nodes[part];
    if (part == SL_RX_NONE || x->texts == 0 || !x->exact || x->boolean || lo > hi)
        return -1;
    return (uint32_t)hi < x->least ? -1 : hi - (int32_t)x->least;
}

int32_t sl_rx_run(struct sl_rx *rx, sl_rx_id id, sl_rx_id plain, bool *longer)
{
    int64_t total = 0;
    const sl_rx_id lasts = lasting_part(rx, id, plain, 0);
    *longer = false;
    if (lasts != SL_RX_NONE && sl_rx_alive(rx, lasts))
        return SL_RX_INF;
    int32_t run = lasting_run(rx, id, plain);
    *longer = run >= 0;
    if (*longer)
        return run;
    for (;;) {
        struct sl_rx_node x = rx->nodes[id], rep = x;
        sl_rx_id rest = SL_RX_EPS;
        if (x.op == RX_CAT) {
            rep = rx->nodes[x.a];
            rest = x.b;
        }
        if (rep.op != RX_REP || !is_plain_char(rx, rep.a, plain))
            break;
        SL_ASSERT(rep.hi != 0 && total >= 0);
        if (rep.hi == SL_RX_INF)
            return SL_RX_INF;
        total = SL_MIN(total + rep.hi, INT32_MAX);
        id = rest;
    }
    if (total == 0)
        return SL_RX_RUN_UNKNOWN;
    sl_rx_id more = sl_rx_and2(rx, id, sl_rx_cat(rx, plain, SL_RX_ALL));
    return sl_rx_alive(rx, more) ? SL_RX_RUN_UNKNOWN : (int32_t)total;
}
