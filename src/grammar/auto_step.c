/* SPDX-License-Identifier: MIT
 * auto_step.c - one byte further.
 */
#include "base/check.h"
#include "base/hash.h"
#include "base/sys.h"
#include "grammar/auto_impl.h"

#include <string.h>

enum { MAX_THREADS = 1024, MAX_ENTERED = 20000, MEMO = 1 << 14 };

struct set { /* threads of the state that is being made */
    struct sl_auto *a;
    uint32_t n, n_seen;
    sl_rx_id guard; /* of what is being entered: what its text has to match besides */
    struct sl_thread t[MAX_THREADS];
    uint64_t seen[MAX_THREADS * 4]; /* positions entered for this byte, with their stacks */
    sl_rx_id seen_guard[MAX_THREADS * 4];
};

static void begin_set(struct set *s, struct sl_auto *a)
{
    s->a = a;
    s->n = s->n_seen = 0;
    s->guard = SL_RX_NONE;
}

static void auto_step_add(struct set *s, uint32_t stack, uint32_t lex)
{
    SL_ASSERT(stack != 0 && stack < s->a->n_vecs && s->n <= MAX_THREADS);
    for (uint32_t i = 0; i < s->n; i++)
        if (s->t[i].stack == stack && s->t[i].lex == lex)
            return;
    if (s->n >= SL_MIN(s->a->limits.max_threads, MAX_THREADS)) {
        sl_auto_fail(s->a, SL_ELIMIT, "the grammar is too ambiguous: too many ways to read a text");
        return;
    }
    s->t[s->n++] = (struct sl_thread){stack, lex};
}

/* Before the next token of an object or array. */
static void add_between(struct set *s, uint32_t frame)
{
    sl_rx_id space = frame == 0 ? SL_RX_NONE : sl_space_at(s->a, sl_vec_at(s->a, frame));
    if (space != SL_RX_NONE) /* else a limit was hit */
        auto_step_add(s, frame, SL_LEX_NONE | space);
}

static void resume(struct set *s, uint32_t stack, int depth);

static bool entered(struct set *s, uint32_t pos, uint32_t stack)
{
    SL_ASSERT(s->n_seen <= SL_COUNT(s->seen));
    uint64_t key = (uint64_t)pos << 32 | stack;
    for (uint32_t i = 0; i < s->n_seen; i++)
        if (s->seen[i] == key && s->seen_guard[i] == s->guard)
            return true;
    if (s->n_seen == SL_COUNT(s->seen)) {
        sl_auto_fail(s->a, SL_ELIMIT, "the grammar is too ambiguous: too many ways to read a text");
        return true;
    }
    s->seen_guard[s->n_seen] = s->guard;
    s->seen[s->n_seen++] = key;
    return false;
}

/* A lexeme under a guard: what it may be there, and the guard itself, for what comes behind it. */
static void add_term(struct set *s, uint32_t stack, sl_rx_id id)
{
    if (s->guard == SL_RX_NONE) {
        auto_step_add(s, stack, SL_LEX_RX | id);
        return;
    }
    SL_ASSERT(id != SL_RX_EPS && id != SL_RX_NONE);
    uint32_t v[] = {sl_rx_and2(&s->a->rx, id, s->guard), s->guard};
    if (!sl_rx_alive(&s->a->rx, v[0]))
        return;
    uint32_t tuple = sl_vec_of(s->a, SL_VEC_TUPLE, v, 2);
    if (tuple != 0)
        auto_step_add(s, stack, SL_LEX_TUPLE | tuple);
}

/* All that may be read next at pos of a rule that returns to stack. */
static void enter(struct set *s, uint32_t pos, uint32_t stack, int depth)
{
    struct sl_auto *a = s->a;
    SL_ASSERT(pos < a->n_pos);
    struct sl_pos p = a->pos[pos];
    uint32_t down, guard;
    if (a->failed != NULL || entered(s, pos, stack))
        return;
    if (depth > 1000) {
        sl_auto_fail(a, SL_ELIMIT, "rules are nested too deeply");
        return;
    }
    switch (p.op) {
    case POS_END:
        resume(s, stack, depth + 1);
        return;
    case POS_SPLIT:
        SL_ASSERT(p.next <= a->n_splits && p.a <= a->n_splits - p.next);
        for (uint32_t i = 0; i < p.next; i++)
            enter(s, a->splits[p.a + i], stack, depth + 1);
        return;
    case POS_TERM:
        down = sl_vec_of(a, SL_VEC_RETURN, (uint32_t[]){stack, p.next}, 2);
        if (down != 0 && p.a != SL_RX_EPS && p.a != SL_RX_NONE)
            add_term(s, down, p.a);
        if (sl_rx_nullable(&a->rx, p.a))
            enter(s, p.next, stack, depth + 1);
        return;
    case POS_GUARD:
        guard = s->guard;
        s->guard = p.a;
        enter(s, p.next, stack, depth + 1);
        s->guard = guard;
        return;
    case POS_CALL: /* the last call of a rule needs no place to come back to */
        down = a->pos[p.next].op == POS_END
                   ? stack
                   : sl_vec_of(a, SL_VEC_RETURN, (uint32_t[]){stack, p.next}, 2);
        if (down != 0)
            enter(s, p.a, down, depth + 1);
        return;
    case POS_JSON:
        down = sl_vec_of(a, SL_VEC_RETURN, (uint32_t[]){stack, p.next}, 2);
        down = sl_vec_of(a, SL_VEC_VALUE, (uint32_t[]){down, p.a}, 2);
        if (down != 0)
            auto_step_add(s, down, SL_LEX_NONE);
        return;
    }
}

static void resume(struct set *s, uint32_t stack, int depth)
{
    const struct sl_vec *f = sl_vec_at(s->a, stack);
    SL_ASSERT(f->kind == SL_VEC_ROOT || f->kind == SL_VEC_RETURN);
    if (f->kind == SL_VEC_ROOT)
        auto_step_add(s, stack, SL_LEX_NONE);
    else
        enter(s, f->v[1], f->v[0], depth);
}

/* A JSON value is complete: tells the frame that waits for it. datum: of an array or object. */
static void auto_step_value_done(struct set *s, uint32_t stack, uint64_t truths, uint32_t datum)
{
    const struct sl_vec *f = sl_vec_at(s->a, stack);
    if (f->kind == SL_VEC_ITEM) {
        datum = sl_datum_of(s->a, f->v[1]);
        f = sl_vec_at(s->a, f->v[0]);
    }
    SL_ASSERT(f->kind >= SL_VEC_VALUE && f->kind <= SL_VEC_ARRAY);
    if (f->kind == SL_VEC_VALUE) {
        resume(s, f->v[0], 0);
        return;
    }
    add_between(s, sl_frame_member_done(s->a, sl_frame_plan(s->a, f), f, truths, datum));
}

static uint64_t lex_truths(const struct sl_auto *a, uint32_t lex)
{
    uint64_t out = 0;
    if ((lex & SL_LEX_TAG) == SL_LEX_RX)
        return UINT64_MAX;
    const struct sl_vec *x = sl_vec_at(a, lex & SL_LEX_ID);
    SL_ASSERT(x->kind == SL_VEC_TUPLE && x->n <= MAX_WANTED + 1);
    for (uint32_t i = 1; i < x->n; i++)
        out |= (uint64_t)sl_rx_nullable(&a->rx, x->v[i]) << (i - 1);
    return out;
}

static sl_rx_id lex_rx(const struct sl_auto *a, uint32_t lex)
{
    SL_ASSERT((lex & SL_LEX_TAG) == SL_LEX_RX || (lex & SL_LEX_TAG) == SL_LEX_TUPLE);
    return (lex & SL_LEX_TAG) == SL_LEX_RX ? lex & SL_LEX_ID : sl_vec_at(a, lex & SL_LEX_ID)->v[0];
}

/* The lexeme after byte, 0 if it cannot go on. */
static uint32_t lex_step(struct sl_auto *a, uint32_t lex, uint8_t byte)
{
    uint32_t v[MAX_WANTED + 1];
    if ((lex & SL_LEX_TAG) == SL_LEX_RX) {
        sl_rx_id to = sl_rx_step(&a->rx, lex & SL_LEX_ID, byte);
        return to == SL_RX_NONE ? 0 : SL_LEX_RX | to;
    }
    const struct sl_vec *x = sl_vec_at(a, lex & SL_LEX_ID);
    SL_ASSERT(x->kind == SL_VEC_TUPLE && x->n <= SL_COUNT(v));
    for (uint32_t i = 0; i < x->n; i++) {
        v[i] = sl_rx_step(&a->rx, x->v[i], byte);
        if (v[0] == SL_RX_NONE)
            return 0;
    }
    uint32_t id = sl_vec_of(a, SL_VEC_TUPLE, v, x->n);
    return id == 0 ? 0 : SL_LEX_TUPLE | id;
}

/* A scalar goes on to `lex`, or ends there if nothing can follow. */
static void scalar_at(struct set *s, uint32_t stack, uint32_t lex)
{
    if (lex == 0)
        return;
    if (lex_rx(s->a, lex) == SL_RX_EPS)
        auto_step_value_done(s, stack, lex_truths(s->a, lex), DATUM_UNKNOWN);
    else
        auto_step_add(s, stack, lex);
}

static uint32_t depth_of(const struct sl_auto *a, uint32_t stack)
{
    const struct sl_vec *f = sl_vec_at(a, stack);
    return f->kind == SL_VEC_VALUE ? 0 : f->v[FR_DEPTH];
}

/* The stack of an item of which so much was read. */
static uint32_t item_with(struct sl_auto *a, uint32_t parent, uint32_t text, uint8_t byte)
{
    if (text == 0 || text > TEXT_OTHER)
        text = sl_vec_of(a, SL_VEC_TEXT, (uint32_t[]){text, byte}, 2);
    return sl_vec_of(a, SL_VEC_ITEM, (uint32_t[]){parent, text}, 2);
}

static struct sl_goal *compound_goal(struct sl_auto *a, struct sl_plan *p, uint32_t stack,
                                     struct sl_goal *g)
{
    const struct sl_vec *f = sl_vec_at(a, sl_frame_stripped(a, stack));
    return sl_frame_compound(a, p, f, f, g);
}

/* An array or object begins; stack waits for it. */
static uint32_t begin_compound(struct sl_auto *a, struct sl_goal *g, uint32_t stack, uint32_t depth,
                               uint8_t byte)
{
    const struct sl_vec *f = sl_vec_at(a, stack);
    struct sl_plan *p = f->kind == SL_VEC_VALUE ? NULL : sl_frame_plan(a, f);
    if (p == NULL || !sl_frame_keeps(p, f))
        return sl_frame_open(a, g, byte == '{', stack, depth);
    uint32_t avoid = sl_frame_avoid(a, p, f, g);
    if (sl_seen_has(a, avoid, DATUM_UNKNOWN)) {
        uint32_t id = sl_kept_open_unknown(a, g, byte == '{', stack, depth);
        a->unsure = a->unsure || id == 0;
        return a->unsure ? 0 : id;
    }
    avoid = sl_avoid_of_kind(a, avoid, byte == '{' ? SL_VEC_OBJECT_DATUM : SL_VEC_ARRAY_DATUM);
    return a->unsure ? 0 : sl_frame_open_kept(a, g, byte == '{', stack, depth, KEPT_EMPTY, avoid);
}

/* A JSON value that must satisfy g begins with byte; stack waits for it. */
static void begin_value(struct set *s, struct sl_goal *g, uint32_t stack, uint8_t byte)
{
    if (g == NULL)
        return;
    const struct sl_vec *f = sl_vec_at(s->a, stack);
    struct sl_plan *p = f->kind == SL_VEC_VALUE ? NULL : sl_frame_plan(s->a, f);
    if (byte == '{' || byte == '[') {
        uint32_t depth = depth_of(s->a, stack) + 1;
        if (p != NULL && p->object && p->exclusive)
            g = compound_goal(s->a, p, stack, g);
        if (g != NULL)
            add_between(s, begin_compound(s->a, g, stack, depth, byte));
        return;
    }
    if (p == NULL || !sl_frame_keeps(p, f)) {
        uint32_t all = p == NULL ? g->lex : sl_frame_scalars(s->a, p, stack, g);
        scalar_at(s, stack, all == 0 ? 0 : lex_step(s->a, all, byte));
        return;
    }
    uint32_t avoid = sl_frame_avoid(s->a, p, f, g);
    sl_rx_id part = g->scalar;
    if (p->object && p->exclusive && !g->pure) {
        uint32_t cut = sl_frame_scalars(s->a, p, sl_frame_stripped(s->a, stack), g);
        part = cut == 0 ? SL_RX_NONE : lex_rx(s->a, cut);
    }
    uint32_t lex = sl_goal_lex_without(s->a, g, part, avoid);
    lex = lex_step(s->a, lex, byte);
    uint32_t item = lex == 0 ? 0 : sl_item_begin(s->a, stack, avoid, byte, lex);
    if (item != 0)
        scalar_at(s, item, lex);
}

/* ---------------------------------------------------------------- property names */

static bool any_allowed(const struct sl_frame_aux *x, uint32_t lo, uint32_t hi)
{
    SL_ASSERT(lo <= hi);
    for (uint32_t i = lo; i < hi; i++) {
        if ((i & 31) == 0 && x->allowed[i / 32] == 0) {
            i += 31;
            continue;
        }
        if ((x->allowed[i / 32] >> (i & 31) & 1) != 0)
            return true;
    }
    return false;
}

static void begin_key(struct set *s, uint32_t stack)
{
    struct sl_auto *a = s->a;
    struct sl_plan *p = sl_frame_plan(a, sl_vec_at(a, stack));
    const struct sl_frame_aux *x = sl_frame_names(a, p, stack);
    uint32_t v[KEY_PATTERNS + 64] = {0, p->n_names, 0, 0, 0};
    if (x == NULL || !x->any)
        return;
    /* Whether another name was there already is not known. */
    a->unsure =
        a->unsure || (sl_vec_at(a, stack)->v[FR_KEPT] == KEPT_LOST && x->free != SL_RX_NONE);
    v[KEY_FREE] = x->free;
    SL_ASSERT(p->n_patterns <= 64); /* so many places behind KEY_PATTERNS */
    for (uint32_t i = 0; i < p->n_patterns; i++)
        v[KEY_PATTERNS + i] = p->patterns[i].rx;
    uint32_t id = sl_vec_of(a, SL_VEC_KEY, v, KEY_PATTERNS + p->n_patterns);
    if (id != 0)
        auto_step_add(s, stack, SL_LEX_KEY | id);
}

static void end_key(struct set *s, uint32_t stack, const struct sl_vec *k)
{
    struct sl_auto *a = s->a;
    const struct sl_vec *f = sl_vec_at(a, stack);
    struct sl_plan *p = sl_frame_plan(a, f);
    const struct sl_frame_aux *x = sl_frame_names(a, p, stack);
    uint32_t class, lo = k->v[KEY_LO];
    uint64_t sig = 0;
    SL_ASSERT(k->kind == SL_VEC_KEY && k->n == KEY_PATTERNS + p->n_patterns);
    SL_ASSERT(k->v[KEY_HI] <= p->n_names);
    if (x == NULL)
        return;
    if (lo < k->v[KEY_HI] && p->names[lo].n == k->v[KEY_DEPTH]) {
        if ((x->allowed[lo / 32] >> (lo & 31) & 1) == 0)
            return;
        class = lo;
    } else {
        if (k->v[KEY_FREE] == SL_RX_NONE ||
            !sl_rx_nullable(&a->rx, sl_rx_step(&a->rx, k->v[KEY_FREE], '"')))
            return;
        for (uint32_t i = 0; i < p->n_patterns; i++) {
            sl_rx_id rx = k->v[KEY_PATTERNS + i];
            if (p->patterns[i].node == SL_NODE_NONE)
                rx = sl_rx_step(&a->rx, rx, '"');
            sig |= (uint64_t)sl_rx_nullable(&a->rx, rx) << i;
        }
        class = sl_plan_free_class(a, p, sig);
    }
    add_between(s, sl_frame_named(a, p, f, class, k->v[KEY_TEXT]));
}

/* Does the name so far end in a backslash that escapes what follows? */
static bool auto_step_escaped(const struct sl_plan *p, const struct sl_vec *k)
{
    uint32_t n = k->v[KEY_DEPTH], count = 0;
    SL_ASSERT(k->v[KEY_LO] < p->n_names && n <= p->names[k->v[KEY_LO]].n);
    while (count < n && p->names[k->v[KEY_LO]].text[n - 1 - count] == '\\')
        count++;
    return (count & 1) != 0;
}

static void step_key(struct set *s, uint32_t stack, uint32_t key, uint8_t byte)
{
    struct sl_auto *a = s->a;
    const struct sl_vec *k = sl_vec_at(a, key);
    struct sl_plan *p = sl_frame_plan(a, sl_vec_at(a, stack));
    uint32_t v[KEY_PATTERNS + 64], lo = k->v[KEY_LO], hi = k->v[KEY_HI], d = k->v[KEY_DEPTH];
    SL_ASSERT(k->kind == SL_VEC_KEY && k->n <= SL_COUNT(v) && lo <= hi && hi <= p->n_names);
    sl_rx_id free_to =
        k->v[KEY_FREE] == SL_RX_NONE ? SL_RX_NONE : sl_rx_step(&a->rx, k->v[KEY_FREE], byte);
    if (byte == '"' && (lo >= hi || !auto_step_escaped(p, k)) &&
        (free_to == SL_RX_NONE || sl_rx_nullable(&a->rx, free_to))) {
        end_key(s, stack, k);
        return;
    }
    while (lo < hi && (p->names[lo].n <= d || (uint8_t)p->names[lo].text[d] < byte))
        lo++;
    uint32_t end = lo;
    while (end < hi && (uint8_t)p->names[end].text[d] == byte)
        end++;
    const struct sl_frame_aux *x = sl_frame_names(a, p, stack);
    if (x == NULL || (free_to == SL_RX_NONE && !any_allowed(x, lo, end)))
        return;
    memcpy(v, k->v, k->n * sizeof v[0]);
    v[KEY_LO] = lo < end ? lo : 0;
    v[KEY_HI] = lo < end ? end : 0;
    v[KEY_DEPTH] = lo < end ? d + 1 : 0;
    v[KEY_FREE] = free_to;
    bool kept = sl_vec_at(a, stack)->v[FR_KEPT] != 0;
    if (p->track_keys || (kept && (k->v[KEY_TEXT] == 0 || k->v[KEY_TEXT] > TEXT_OTHER)))
        v[KEY_TEXT] = sl_vec_of(a, SL_VEC_TEXT, (uint32_t[]){k->v[KEY_TEXT], byte}, 2);
    for (uint32_t i = 0; i < p->n_patterns; i++)
        v[KEY_PATTERNS + i] = sl_rx_step(&a->rx, k->v[KEY_PATTERNS + i], byte);
    uint32_t id = sl_vec_of(a, SL_VEC_KEY, v, k->n);
    if (id != 0)
        auto_step_add(s, stack, SL_LEX_KEY | id);
}

/* ---------------------------------------------------------------- between lexemes */

static void close_frame(struct set *s, const struct sl_vec *f)
{
    uint64_t truths;
    if (sl_frame_may_end(s->a, sl_frame_plan(s->a, f), f, &truths))
        auto_step_value_done(s, f->v[FR_PARENT], truths, sl_kept_datum(s->a, f));
}

static void to_phase(struct set *s, const struct sl_vec *f, enum sl_phase phase)
{
    add_between(s, sl_frame_phase(s->a, f, phase));
}

static void step_object(struct set *s, uint32_t stack, uint8_t byte)
{
    struct sl_auto *a = s->a;
    const struct sl_vec *f = sl_vec_at(a, stack);
    struct sl_plan *p = sl_frame_plan(a, f);
    enum sl_phase phase = (enum sl_phase)f->v[FR_PHASE];
    SL_ASSERT(f->kind == SL_VEC_OBJECT && phase <= PH_CLOSE);
    if (phase == PH_VALUE)
        begin_value(s, sl_frame_member(a, p, f), stack, byte);
    else if (phase == PH_COLON && byte == ':')
        to_phase(s, f, PH_VALUE);
    else if ((phase == PH_OPEN || phase == PH_KEY) && byte == '"')
        begin_key(s, stack);
    else if ((phase == PH_OPEN || phase >= PH_NEXT) && byte == '}')
        close_frame(s, f);
    else if (phase == PH_NEXT && byte == ',' && sl_frame_may_grow(a, p, stack))
        to_phase(s, f, PH_KEY);
}

static void step_array(struct set *s, uint32_t stack, uint8_t byte)
{
    struct sl_auto *a = s->a;
    const struct sl_vec *f = sl_vec_at(a, stack);
    struct sl_plan *p = sl_frame_plan(a, f);
    enum sl_phase phase = (enum sl_phase)f->v[FR_PHASE];
    SL_ASSERT(f->kind == SL_VEC_ARRAY && phase <= PH_CLOSE);
    if (byte == ']' && phase != PH_VALUE) {
        close_frame(s, f);
    } else if (phase >= PH_NEXT) {
        if (byte == ',' && phase == PH_NEXT && sl_frame_may_grow(a, p, stack))
            to_phase(s, f, PH_VALUE);
    } else if (phase == PH_VALUE || sl_frame_may_grow(a, p, stack)) {
        uint32_t item = phase == PH_VALUE ? stack : sl_frame_phase(a, f, PH_VALUE);
        if (item != 0)
            begin_value(s, sl_frame_member(a, p, sl_vec_at(a, item)), item, byte);
    }
}

/* By default a line that ends behind a member is the last one: a comma would be before its end. */
static void step_space(struct set *s, struct sl_thread t, uint8_t byte)
{
    struct sl_auto *a = s->a;
    const struct sl_vec *f = sl_vec_at(a, t.stack);
    sl_rx_id to = sl_rx_step(&a->rx, t.lex & SL_LEX_ID, byte);
    uint32_t stack = t.stack;
    uint64_t truths;
    SL_ASSERT((t.lex & SL_LEX_TAG) == SL_LEX_NONE && (t.lex & SL_LEX_ID) != SL_RX_NONE);
    if (to == SL_RX_NONE)
        return;
    if (a->space == SL_RX_NONE && byte == '\n' && f->v[FR_PHASE] == PH_NEXT)
        stack = sl_frame_may_end(a, sl_frame_plan(a, f), f, &truths)
                    ? sl_frame_phase(a, f, PH_CLOSE)
                    : 0;
    if (stack != 0)
        auto_step_add(s, stack, SL_LEX_NONE | to);
}

static void step_none(struct set *s, struct sl_thread t, uint8_t byte)
{
    const struct sl_vec *f = sl_vec_at(s->a, t.stack);
    bool space = byte == ' ' || byte == '\n' || byte == '\t' || byte == '\r';
    if (f->kind == SL_VEC_VALUE) {
        begin_value(s, sl_vec_at(s->a, f->v[1])->aux, t.stack, byte);
    } else if (f->kind == SL_VEC_ROOT) {
        return;
    } else if (space) {
        step_space(s, t, byte);
    } else if (!sl_rx_nullable(&s->a->rx, t.lex & SL_LEX_ID)) {
        return;
    } else if (f->kind == SL_VEC_OBJECT) {
        step_object(s, t.stack, byte);
    } else {
        step_array(s, t.stack, byte);
    }
}

static void step_thread(struct set *s, struct sl_thread t, uint8_t byte)
{
    struct sl_auto *a = s->a;
    uint32_t tag = t.lex & SL_LEX_TAG;
    if (tag == SL_LEX_NONE) {
        step_none(s, t, byte);
        return;
    }
    if (tag == SL_LEX_KEY) {
        step_key(s, t.stack, t.lex & SL_LEX_ID, byte);
        return;
    }
    uint32_t lex = lex_step(a, t.lex, byte);
    if (sl_vec_at(a, t.stack)->kind == SL_VEC_RETURN) {
        if (lex == 0)
            return;
        if (lex_rx(a, lex) != SL_RX_EPS)
            auto_step_add(s, t.stack, lex);
        if (sl_rx_nullable(&a->rx, lex_rx(a, lex))) {
            bool guarded = (lex & SL_LEX_TAG) == SL_LEX_TUPLE;
            s->guard = guarded ? sl_vec_at(a, lex & SL_LEX_ID)->v[1] : SL_RX_NONE;
            resume(s, t.stack, 0);
            s->guard = SL_RX_NONE;
        }
        return;
    }
    if (lex != 0) {
        const struct sl_vec *f = sl_vec_at(a, t.stack);
        uint32_t stack = f->kind == SL_VEC_ITEM ? item_with(a, f->v[0], f->v[1], byte) : t.stack;
        if (stack != 0)
            scalar_at(s, stack, lex);
        return;
    }
    if (!sl_rx_nullable(&a->rx, lex_rx(a, t.lex)))
        return;
    /* A number ends where something else begins. */
    uint32_t from = s->n;
    auto_step_value_done(s, t.stack, lex_truths(a, t.lex), DATUM_UNKNOWN);
    uint32_t n = s->n - from;
    SL_ASSERT(s->n >= from);
    struct sl_thread small[16],
        *ended = n <= SL_COUNT(small) ? small : sl_malloc(n * sizeof *ended);
    if (ended == NULL) {
        sl_auto_fail(a, SL_ENOMEM, "out of memory");
        return;
    }
    memcpy(ended, &s->t[from], n * sizeof *ended);
    s->n = from;
    for (uint32_t i = 0; i < n; i++)
        step_thread(s, ended[i], byte);
    if (ended != small)
        sl_free(ended);
}

static uint32_t state_of(struct set *s)
{
    for (uint32_t i = 1; i < s->n; i++) {
        struct sl_thread x = s->t[i];
        uint32_t j = i;
        for (; j > 0 && (s->t[j - 1].stack > x.stack ||
                         (s->t[j - 1].stack == x.stack && s->t[j - 1].lex > x.lex));
             j--)
            s->t[j] = s->t[j - 1];
        s->t[j] = x;
    }
    if (s->n == 0 || s->a->failed != NULL || s->a->rx.failed != NULL)
        return 0;
    SL_ASSERT(s->n <= MAX_THREADS);
    return sl_vec_of(s->a, SL_VEC_STATE, (const uint32_t *)s->t, s->n * 2);
}

uint32_t sl_auto_step(struct sl_auto *a, uint32_t state, uint8_t byte)
{
    uint64_t key = ((uint64_t)state << 8 | byte) + 1;
    uint32_t at = (uint32_t)(sl_mix64(key) & (MEMO - 1));
    if (a->memo[at] == key)
        return a->memo_to[at];
    struct set s;
    begin_set(&s, a);
    a->unsure = false;
    const struct sl_vec *x = sl_vec_at(a, state);
    SL_ASSERT(x->kind == SL_VEC_STATE && x->n % 2 == 0);
    for (uint32_t i = 0; i < x->n; i += 2)
        step_thread(&s, (struct sl_thread){x->v[i], x->v[i + 1]}, byte);
    uint32_t to = state_of(&s);
    to = a->unsure ? SL_STATE_UNSURE : to;
    if (a->failed == NULL && a->rx.failed == NULL) {
        a->memo[at] = key;
        a->memo_to[at] = to;
    }
    return to;
}

bool sl_auto_accepts(struct sl_auto *a, uint32_t state)
{
    const struct sl_vec *x = sl_vec_at(a, state);
    SL_ASSERT(x->kind == SL_VEC_STATE && x->n % 2 == 0);
    for (uint32_t i = 0; i < x->n; i += 2) {
        const struct sl_vec *f = sl_vec_at(a, x->v[i]);
        uint32_t tag = x->v[i + 1] & SL_LEX_TAG;
        if (f->kind == SL_VEC_ROOT)
            return true;
        if (f->kind != SL_VEC_VALUE || (tag != SL_LEX_RX && tag != SL_LEX_TUPLE) ||
            !sl_rx_nullable(&a->rx, lex_rx(a, x->v[i + 1])))
            continue;
        struct set s;
        begin_set(&s, a);
        auto_step_value_done(&s, x->v[i], lex_truths(a, x->v[i + 1]), DATUM_UNKNOWN);
        for (uint32_t k = 0; k < s.n; k++)
            if (sl_vec_at(a, s.t[k].stack)->kind == SL_VEC_ROOT)
                return true;
    }
    return false;
}

sl_rx_id sl_auto_lexeme(const struct sl_auto *a, uint32_t state)
{
    const struct sl_vec *x = sl_vec_at(a, state);
    SL_ASSERT(x->kind == SL_VEC_STATE && x->n % 2 == 0);
    return x->n == 2 && (x->v[1] & SL_LEX_TAG) == SL_LEX_RX ? x->v[1] & SL_LEX_ID : SL_RX_NONE;
}

static int started(struct sl_auto *a, struct set *s, struct sl_error *err)
{
    a->start = state_of(s);
    int rc = sl_auto_check(a, err);
    if (rc == 0 && a->start == 0)
        rc = sl_fail(err, SL_EINVAL, "grammar: no text satisfies it");
    return rc;
}

int sl_auto_start_json(struct sl_auto *a, uint32_t node, struct sl_error *err)
{
    struct set s;
    begin_set(&s, a);
    uint32_t goal = sl_auto_json_goal(a, node);
    uint32_t root = sl_vec_of(a, SL_VEC_ROOT, (uint32_t[]){0, 0, 0}, 3);
    uint32_t value = sl_vec_of(a, SL_VEC_VALUE, (uint32_t[]){root, goal}, 2);
    if (value != 0 && goal != 0 && sl_goal_sat(a, sl_vec_at(a, goal)->aux))
        auto_step_add(&s, value, SL_LEX_NONE);
    return started(a, &s, err);
}

int sl_auto_start_pos(struct sl_auto *a, uint32_t pos, struct sl_error *err)
{
    struct set s;
    begin_set(&s, a);
    uint32_t root = sl_vec_of(a, SL_VEC_ROOT, (uint32_t[]){0, 0, 0}, 3);
    if (root != 0)
        enter(&s, pos, root, 0);
    return started(a, &s, err);
}
