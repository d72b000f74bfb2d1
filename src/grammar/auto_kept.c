/* SPDX-License-Identifier: MIT
 * auto_kept.c - arrays and objects among items that must differ.
 *
 * Inside an item of such an array every value is kept: a frame holds a chain of its members so far
 * (FR_KEPT), which becomes a datum when it closes. It also holds the data that the value may not
 * be and still could be (FR_AVOID): those earlier items that have had the same members until now.
 * They are fewer with every member, and mostly none after the first.
 *
 * A frame with such data must keep a way to differ. It has one if it may end now and none of them
 * does, or if some member that may come next has more values than there are data with that member.
 * A member's value is kept away from the values behind which no such way would be left. So each
 * step leaves the next one possible, whatever the schema is; how many values a member has is a
 * lower bound, and an array of few possible items may end before the last of them.
 */
#include "base/check.h"
#include "base/limits.h"
#include "base/sys.h"
#include "grammar/auto_impl.h"

#include <string.h>

enum { MAX_DEPTH = 100 };

/* Fields of SL_VEC_KEPT. */
enum { KEPT_PREV, KEPT_NAME, KEPT_DATUM, KEPT_COUNT, KEPT_FIELDS };

static const struct sl_vec *chain(const struct sl_auto *a, uint32_t kept)
{
    const struct sl_vec *x = kept > KEPT_LOST ? sl_vec_at(a, kept) : NULL;
    SL_ASSERT(x == NULL || x->kind == SL_VEC_KEPT);
    return x;
}

static uint32_t auto_kept_count_of(const struct sl_auto *a, uint32_t kept)
{
    const struct sl_vec *x = chain(a, kept);
    return x == NULL ? 0 : x->v[KEPT_COUNT];
}

uint32_t sl_frame_stripped(struct sl_auto *a, uint32_t frame)
{
    const struct sl_vec *f = frame == 0 ? NULL : sl_vec_at(a, frame);
    if (f == NULL || (f->v[FR_KEPT] == 0 && f->v[FR_AVOID] == 0))
        return frame;
    uint32_t *v = sl_malloc(f->n * sizeof *v), id;
    if (v == NULL) {
        sl_auto_fail(a, SL_ENOMEM, "out of memory");
        return frame;
    }
    memcpy(v, f->v, f->n * sizeof *v);
    v[FR_KEPT] = v[FR_AVOID] = 0;
    id = sl_vec_of(a, (enum sl_vec_kind)f->kind, v, f->n);
    sl_free(v);
    return id == 0 ? frame : id; /* a limit: the automaton has failed */
}

/* ---------------------------------------------------------------- chains */

static uint32_t link_of(struct sl_auto *a, uint32_t prev, uint32_t name, uint32_t datum)
{
    if (prev == KEPT_LOST || name == DATUM_UNKNOWN || name == DATUM_OTHER)
        return KEPT_LOST;
    datum = datum == DATUM_OTHER ? DATUM_UNKNOWN : datum;
    uint32_t v[KEPT_FIELDS] = {prev, name, datum, auto_kept_count_of(a, prev) + 1};
    return sl_vec_of(a, SL_VEC_KEPT, v, KEPT_FIELDS);
}

/* The name of a member: as a datum; of the rest of names, what was read. */
static uint32_t name_of(struct sl_auto *a, const struct sl_plan *p, uint32_t class, uint32_t text)
{
    SL_ASSERT(p->object && class < p->n_names + p->n_free);
    if (class < p->n_names)
        return sl_datum_of_bytes(a, p->names[class].text, p->names[class].n);
    return sl_datum_of_name(a, text);
}

uint32_t sl_kept_named(struct sl_auto *a, const struct sl_plan *p, const struct sl_vec *f,
                       uint32_t class, uint32_t text, uint32_t *avoid)
{
    uint32_t name = name_of(a, p, class, text);
    SL_ASSERT(f->kind == SL_VEC_OBJECT && f->v[FR_KEPT] != 0);
    *avoid = f->v[FR_AVOID];
    if (name == DATUM_UNKNOWN || f->v[FR_KEPT] == KEPT_LOST)
        a->unsure = a->unsure || *avoid != 0;
    else if (name == DATUM_OTHER)
        *avoid = 0;
    else
        *avoid = sl_avoid_with(a, *avoid, SL_VEC_OBJECT_DATUM, name, 0);
    return link_of(a, f->v[FR_KEPT], name, 0);
}

uint32_t sl_kept_member(struct sl_auto *a, const struct sl_vec *f, uint32_t datum, uint32_t *avoid)
{
    bool object = f->kind == SL_VEC_OBJECT;
    const struct sl_vec *last = object ? chain(a, f->v[FR_KEPT]) : NULL;
    uint32_t prev = last == NULL ? f->v[FR_KEPT] : last->v[KEPT_PREV];
    uint32_t name = last == NULL ? auto_kept_count_of(a, prev) : last->v[KEPT_NAME];
    SL_ASSERT(f->v[FR_KEPT] != 0 && datum != 0);
    *avoid = datum == DATUM_OTHER ? 0 : f->v[FR_AVOID];
    if (f->v[FR_KEPT] == KEPT_LOST || datum == DATUM_UNKNOWN || datum == DATUM_OTHER)
        a->unsure = a->unsure || *avoid != 0;
    else
        *avoid = sl_avoid_with(a, *avoid, object ? SL_VEC_OBJECT_DATUM : SL_VEC_ARRAY_DATUM, name,
                               datum);
    return link_of(a, prev, object ? name : 0, datum);
}

uint32_t sl_kept_datum(struct sl_auto *a, const struct sl_vec *f)
{
    uint32_t kept = f->v[FR_KEPT], n = auto_kept_count_of(a, kept), id;
    bool object = f->kind == SL_VEC_OBJECT, unknown = false;
    if (kept == 0 || kept == KEPT_LOST)
        return DATUM_UNKNOWN;
    uint32_t *v = sl_malloc((1 + (size_t)n * 2) * sizeof *v), at = n;
    if (v == NULL)
        return sl_auto_fail(a, SL_ENOMEM, "out of memory");
    v[0] = n;
    for (const struct sl_vec *x = chain(a, kept); x != NULL; x = chain(a, x->v[KEPT_PREV])) {
        SL_ASSERT(at > 0 && x->v[KEPT_DATUM] != 0);
        unknown = unknown || x->v[KEPT_DATUM] == DATUM_UNKNOWN;
        at--;
        if (!object) {
            v[1 + at] = x->v[KEPT_DATUM];
            continue;
        }
        uint32_t i = at; /* names sorted: those from at + 1 on are */
        for (; i + 1 < n && v[1 + 2 * (i + 1)] < x->v[KEPT_NAME]; i++) {
            v[1 + 2 * i] = v[1 + 2 * (i + 1)];
            v[2 + 2 * i] = v[2 + 2 * (i + 1)];
        }
        v[1 + 2 * i] = x->v[KEPT_NAME];
        v[2 + 2 * i] = x->v[KEPT_DATUM];
    }
    id = unknown ? DATUM_UNKNOWN
                 : sl_vec_of(a, object ? SL_VEC_OBJECT_DATUM : SL_VEC_ARRAY_DATUM, v,
                             1 + n * (object + 1u));
    sl_free(v);
    return id;
}

/* ---------------------------------------------------------------- data to avoid */

/* The member of a datum: by name, or by place; 0: it has none. */
static uint32_t member_of(const struct sl_vec *d, uint32_t name)
{
    if (d->kind == SL_VEC_ARRAY_DATUM)
        return name < d->v[0] ? d->v[1 + name] : 0;
    SL_ASSERT(d->kind == SL_VEC_OBJECT_DATUM && d->n == 1 + 2 * d->v[0]);
    for (uint32_t i = 0; i < d->v[0]; i++)
        if (d->v[1 + 2 * i] == name)
            return d->v[2 + 2 * i];
    return 0;
}

static const struct sl_vec *set_at(const struct sl_auto *a, uint32_t set)
{
    const struct sl_vec *x = set == 0 ? NULL : sl_vec_at(a, set);
    SL_ASSERT(x == NULL || x->kind == SL_VEC_SEEN);
    return x;
}

uint32_t sl_avoid_with(struct sl_auto *a, uint32_t avoid, enum sl_vec_kind kind, uint32_t name,
                       uint32_t datum)
{
    const struct sl_vec *set = set_at(a, avoid);
    uint32_t out[SL_MAX_UNIQUE_ITEMS], n = 0;
    SL_ASSERT(kind == SL_VEC_ARRAY_DATUM || kind == SL_VEC_OBJECT_DATUM);
    for (uint32_t i = 0; set != NULL && i < set->n; i++) {
        const struct sl_vec *d = sl_vec_at(a, set->v[i]);
        uint32_t x = d->kind == (uint32_t)kind ? member_of(d, name) : 0;
        if (x != 0 && (datum == 0 || x == datum) && n < SL_COUNT(out))
            out[n++] = set->v[i];
    }
    return n == 0 ? 0 : sl_vec_of(a, SL_VEC_SEEN, out, n);
}

uint32_t sl_avoid_of_kind(struct sl_auto *a, uint32_t avoid, enum sl_vec_kind kind)
{
    const struct sl_vec *set = set_at(a, avoid);
    uint32_t out[SL_MAX_UNIQUE_ITEMS], n = 0;
    for (uint32_t i = 0; set != NULL && i < set->n; i++)
        if (sl_vec_at(a, set->v[i])->kind == (uint32_t)kind && n < SL_COUNT(out))
            out[n++] = set->v[i];
    return n == 0 ? 0 : sl_vec_of(a, SL_VEC_SEEN, out, n);
}

bool sl_kept_is_avoided(struct sl_auto *a, const struct sl_vec *f)
{
    SL_ASSERT(f->v[FR_AVOID] == 0 || f->v[FR_KEPT] != 0);
    const struct sl_vec *set = set_at(a, f->v[FR_AVOID]);
    if (set != NULL && f->v[FR_KEPT] == KEPT_LOST) {
        a->unsure = true;
        return true;
    }
    for (uint32_t i = 0; set != NULL && i < set->n; i++)
        if (sl_vec_at(a, set->v[i])->v[0] == auto_kept_count_of(a, f->v[FR_KEPT]))
            return true;
    return false;
}

/* ---------------------------------------------------------------- what a known value says */

/* The plan's class of a name. */
static uint32_t auto_kept_class_of(struct sl_auto *a, struct sl_plan *p, uint32_t name)
{
    size_t n;
    const char *s = sl_datum_bytes(a, name, &n);
    uint64_t sig = 0;
    SL_ASSERT(n >= 2 && s[0] == '"');
    s++;
    n -= 2;
    for (uint32_t i = 0; i < p->n_names; i++)
        if (p->names[i].n == n && memcmp(p->names[i].text, s, n) == 0)
            return i;
    for (uint32_t i = 0; i < p->n_patterns; i++) {
        sl_rx_id rx = p->patterns[i].rx;
        for (size_t k = 0; k < n && rx != SL_RX_NONE; k++)
            rx = sl_rx_step(&a->rx, rx, (uint8_t)s[k]);
        if (p->patterns[i].node == SL_NODE_NONE && rx != SL_RX_NONE)
            rx = sl_rx_step(&a->rx, rx, '"');
        sig |= (uint64_t)(rx != SL_RX_NONE && sl_rx_nullable(&a->rx, rx)) << i;
    }
    return sl_plan_free_class(a, p, sig);
}

static bool datum_truths(struct sl_auto *a, struct sl_goal *g, uint32_t datum, uint64_t *truths,
                         int depth);

/* The value of a frame's next member; 0: the schema does not allow it. */
static uint32_t with_member(struct sl_auto *a, struct sl_plan *p, uint32_t frame, uint32_t datum,
                            int depth)
{
    uint64_t truths;
    struct sl_goal *g = frame == 0 ? NULL : sl_frame_member(a, p, sl_vec_at(a, frame));
    return g != NULL && datum_truths(a, g, datum, &truths, depth + 1)
               ? sl_frame_after(a, p, sl_vec_at(a, frame), g, truths, DATUM_UNKNOWN)
               : 0;
}

/* What the goal's nodes say of a value; false: the goal does not allow it. */
static bool datum_truths(struct sl_auto *a, struct sl_goal *g, uint32_t datum, uint64_t *truths,
                         int depth)
{
    const struct sl_vec *d = sl_vec_at(a, datum);
    bool object = d->kind == SL_VEC_OBJECT_DATUM;
    *truths = 0;
    SL_ASSERT(datum > DATUM_OTHER && depth >= 0);
    if (depth > MAX_DEPTH)
        return false;
    if (d->kind == SL_VEC_DATUM) {
        size_t n;
        const char *s = sl_datum_bytes(a, datum, &n);
        for (uint32_t r = 0; r < g->n_roots; r++) {
            sl_rx_id rx = a->schema.nodes[g->roots[r]].scalar;
            for (size_t k = 0; k < n && rx != SL_RX_NONE; k++)
                rx = sl_rx_step(&a->rx, rx, (uint8_t)s[k]);
            *truths |= (uint64_t)(rx != SL_RX_NONE && sl_rx_nullable(&a->rx, rx)) << r;
        }
        return sl_expr_true(a, g->req, g, *truths);
    }
    uint32_t frame = sl_frame_open(a, g, object, 0, 0);
    struct sl_plan *p = frame == 0 ? NULL : sl_frame_plan(a, sl_vec_at(a, frame));
    for (uint32_t i = 0; i < d->v[0] && frame != 0; i++) {
        if (object)
            frame = sl_frame_with_name(a, p, sl_vec_at(a, frame),
                                       auto_kept_class_of(a, p, d->v[1 + 2 * i]), 0);
        else
            frame = sl_frame_phase(a, sl_vec_at(a, frame), PH_VALUE);
        frame = with_member(a, p, frame, d->v[object ? 2 + 2 * i : 1 + i], depth);
    }
    return frame != 0 && sl_frame_may_end(a, p, sl_vec_at(a, frame), truths);
}

uint32_t sl_kept_next(struct sl_auto *a, const struct sl_vec *f, bool name, struct sl_kept_at *at)
{
    const struct sl_vec *set = set_at(a, f->v[FR_AVOID]), *last = chain(a, f->v[FR_KEPT]);
    bool object = f->kind == SL_VEC_OBJECT;
    SL_ASSERT(f->v[FR_KEPT] != 0 && f->v[FR_KEPT] != KEPT_LOST && (!name || object));
    uint32_t member = object && !name ? last->v[KEPT_NAME] : auto_kept_count_of(a, f->v[FR_KEPT]);
    while (set != NULL && at->item < set->n) {
        const struct sl_vec *d = sl_vec_at(a, set->v[at->item]);
        if (name && at->member < d->v[0])
            return d->v[1 + 2 * at->member++];
        at->item++;
        at->member = 0;
        uint32_t x = name ? 0 : member_of(d, member);
        if (x != 0)
            return x;
    }
    return 0;
}

bool sl_kept_may_equal(struct sl_auto *a, const struct sl_vec *f, uint32_t text, bool name)
{
    struct sl_kept_at at = {0, 0};
    if (f->v[FR_KEPT] == KEPT_LOST)
        return true;
    for (uint32_t x; (x = sl_kept_next(a, f, name, &at)) != 0;)
        if (sl_text_begins(a, text, x, name))
            return true;
    return false;
}

/* ---------------------------------------------------------------- a way to differ */

/* How many values the member of a frame has at least, whatever they make true. */
static uint32_t member_values(struct sl_auto *a, struct sl_plan *p, uint32_t frame,
                              struct sl_goal *g)
{
    if (!p->object || !p->exclusive || g->pure)
        return sl_goal_n_values(a, g);
    frame = sl_frame_phase(a, sl_vec_at(a, frame), PH_VALUE);
    uint32_t lex = sl_frame_scalars(a, p, frame, g);
    sl_rx_id id = lex == 0                          ? SL_RX_NONE
                  : (lex & SL_LEX_TAG) == SL_LEX_RX ? lex & SL_LEX_ID
                                                    : sl_vec_at(a, lex & SL_LEX_ID)->v[0];
    return sl_goal_n_scalars(a, g, id);
}

static uint32_t n_with(const struct sl_auto *a, const struct sl_vec *set, uint32_t name)
{
    uint32_t n = 0;
    for (uint32_t i = 0; set != NULL && i < set->n; i++)
        n += member_of(sl_vec_at(a, set->v[i]), name) != 0;
    return n;
}

/* More values than set has of them, for some name of the object or for the array's next item. frame
 * is stripped; *n: of the member that has the most. */
static bool some_member(struct sl_auto *a, struct sl_plan *p, uint32_t frame, uint32_t kept,
                        const struct sl_vec *set, uint32_t *most)
{
    struct sl_vec *f = sl_vec_at(a, frame);
    SL_ASSERT(f->v[FR_KEPT] == 0 && f->v[FR_AVOID] == 0);
    *most = 0;
    if (!p->object) {
        uint32_t next = sl_frame_may_grow(a, p, frame) ? sl_frame_phase(a, f, PH_VALUE) : 0;
        struct sl_goal *g = next == 0 ? NULL : sl_frame_member(a, p, sl_vec_at(a, next));
        uint32_t seen = sl_frame_seen_items(p, f), n_seen = seen == 0 ? 0 : sl_vec_at(a, seen)->n;
        *most = g == NULL ? 0 : sl_goal_n_values(a, g);
        *most -= SL_MIN(*most, n_seen);
        return *most > n_with(a, set, auto_kept_count_of(a, kept));
    }
    const struct sl_frame_aux *x = sl_frame_names(a, p, frame);
    for (uint32_t i = 0; i < p->n_names && x != NULL; i++) {
        if ((x->allowed[i / 32] >> (i & 31) & 1) == 0)
            continue;
        uint32_t id = sl_frame_with_name(a, p, f, i, 0);
        struct sl_goal *g = id == 0 ? NULL : sl_frame_member(a, p, sl_vec_at(a, id));
        uint32_t n = g == NULL ? 0 : member_values(a, p, id, g);
        *most = SL_MAX(*most, n);
        if (set != NULL &&
            n > n_with(a, set, sl_datum_of_bytes(a, p->names[i].text, p->names[i].n)))
            return true;
        if (set == NULL && n > SL_MAX_UNIQUE_ITEMS)
            return true;
    }
    sl_rx_id free = x == NULL ? SL_RX_NONE : x->free;
    if (set != NULL && free != SL_RX_NONE)
        free = sl_rx_and2(&a->rx, free, sl_rx_not(&a->rx, sl_names_of(a, set, kept)));
    if (free != SL_RX_NONE && sl_rx_alive(&a->rx, free))
        *most = SL_MAX(*most, set != NULL              ? 1
                              : sl_rx_is_wide(a, free) ? SL_MAX_UNIQUE_ITEMS + 1
                                                       : 1);
    return set != NULL && free != SL_RX_NONE && sl_rx_alive(&a->rx, free);
}

bool sl_kept_has_way(struct sl_auto *a, struct sl_plan *p, uint32_t frame)
{
    const struct sl_vec *f = sl_vec_at(a, frame), *set = set_at(a, f->v[FR_AVOID]);
    uint64_t truths;
    uint32_t most;
    SL_ASSERT(set != NULL);
    if (sl_frame_may_end(a, p, f, &truths))
        return true;
    uint32_t plain = sl_frame_stripped(a, frame);
    return plain != 0 && some_member(a, p, plain, f->v[FR_KEPT], set, &most);
}

/* Is there a way for the frame to differ from the whole set behind any value that it waits for, as
 * what comes next has more values than the set? One look instead of one for each of the set. */
static bool any_value_leads_on(struct sl_auto *a, struct sl_plan *p, const struct sl_vec *f,
                               const struct sl_goal *g, const struct sl_vec *set)
{
    uint32_t id, most, kept = f->v[FR_KEPT];
    SL_ASSERT(kept != 0 && kept != KEPT_LOST);
    if (!g->pure || p->unique)
        return false;
    uint32_t *v = sl_malloc(f->n * sizeof *v);
    if (v == NULL)
        return sl_auto_fail(a, SL_ENOMEM, "out of memory") != 0;
    memcpy(v, f->v, f->n * sizeof *v);
    v[FR_PARENT] = v[FR_DEPTH] = v[FR_KEPT] = v[FR_AVOID] = 0;
    id = sl_vec_of(a, (enum sl_vec_kind)f->kind, v, f->n);
    sl_free(v);
    id = id == 0 ? 0 : sl_frame_after(a, p, sl_vec_at(a, id), g, UINT64_MAX, DATUM_UNKNOWN);
    if (id != 0 && !p->object)
        kept = link_of(a, kept, 0, DATUM_UNKNOWN);
    return id != 0 && some_member(a, p, id, kept, set, &most);
}

uint32_t sl_frame_avoid(struct sl_auto *a, struct sl_plan *p, const struct sl_vec *f,
                        struct sl_goal *g)
{
    uint32_t out = sl_frame_seen_items(p, f);
    const struct sl_vec *set = set_at(a, f->v[FR_AVOID]);
    const struct sl_vec *last = p->object ? chain(a, f->v[FR_KEPT]) : NULL;
    SL_ASSERT(set == NULL || f->v[FR_KEPT] != 0);
    if (set != NULL && f->v[FR_KEPT] == KEPT_LOST) {
        a->unsure = true; /* of the member that is being read it is not known which it is */
        return out;
    }
    if (set != NULL && any_value_leads_on(a, p, f, g, set))
        return out;
    uint32_t name = last != NULL ? last->v[KEPT_NAME] : auto_kept_count_of(a, f->v[FR_KEPT]),
             done = 0;
    for (uint32_t i = 0; set != NULL && i < set->n; i++) {
        uint32_t x = member_of(sl_vec_at(a, set->v[i]), name);
        uint64_t truths = UINT64_MAX;
        if (x == 0 || x == done || (!g->pure && !datum_truths(a, g, x, &truths, 0)))
            continue;
        done = x; /* often the same one for all */
        if (sl_frame_member_done(a, p, f, truths, x) == 0 && !sl_seen_has(a, out, x))
            out = sl_seen_with(a, out, x);
    }
    return out;
}

uint32_t sl_goal_n_compound(struct sl_auto *a, struct sl_goal *g, bool object)
{
    uint64_t truths;
    uint32_t most, frame = sl_frame_open(a, g, object, 0, 0);
    SL_ASSERT(a->sat_depth > 0);
    struct sl_plan *p = frame == 0 ? NULL : sl_frame_plan(a, sl_vec_at(a, frame));
    if (p == NULL)
        return 0;
    bool end = sl_frame_may_end(a, p, sl_vec_at(a, frame), &truths);
    (void)some_member(a, p, frame, KEPT_EMPTY, NULL, &most);
    return SL_MAX(1u, most + end);
}

/* It may if some member has more values than there are items, whatever they are. */
uint32_t sl_kept_open_unknown(struct sl_auto *a, struct sl_goal *g, bool object, uint32_t parent,
                              uint32_t depth)
{
    uint32_t most = 0, plain = sl_frame_open(a, g, object, 0, 0);
    if (plain != 0)
        (void)some_member(a, sl_frame_plan(a, sl_vec_at(a, plain)), plain, KEPT_EMPTY, NULL, &most);
    if (most <= SL_MAX_UNIQUE_ITEMS)
        return 0;
    uint32_t id = sl_frame_open(a, g, object, parent, depth);
    const struct sl_vec *f = id == 0 ? NULL : sl_vec_at(a, id);
    uint32_t *v = f == NULL ? NULL : sl_malloc(f->n * sizeof *v);
    SL_ASSERT(f == NULL || (f->v[FR_KEPT] == 0 && f->v[FR_AVOID] == 0));
    if (v == NULL)
        return 0;
    memcpy(v, f->v, f->n * sizeof *v);
    v[FR_KEPT] = KEPT_LOST;
    v[FR_AVOID] = sl_seen_with(a, 0, DATUM_UNKNOWN);
    id = sl_vec_of(a, (enum sl_vec_kind)f->kind, v, f->n);
    sl_free(v);
    return id;
}

/* ---------------------------------------------------------------- names */

/* The names of a set's objects, each once. */
static uint32_t distinct_names(const struct sl_auto *a, const struct sl_vec *set,
                               uint32_t out[SL_MAX_UNIQUE_ITEMS])
{
    uint32_t n = 0;
    for (uint32_t i = 0; set != NULL && i < set->n; i++) {
        const struct sl_vec *d = sl_vec_at(a, set->v[i]);
        for (uint32_t k = 0; k < d->v[0] && n < SL_MAX_UNIQUE_ITEMS; k++) {
            uint32_t j = 0;
            while (j < n && out[j] != d->v[1 + 2 * k])
                j++;
            out[j] = d->v[1 + 2 * k];
            n += j == n;
        }
    }
    return n;
}

sl_rx_id sl_names_of(struct sl_auto *a, const struct sl_vec *set, uint32_t kept)
{
    struct sl_rx *rx = &a->rx;
    sl_rx_id out = SL_RX_NONE;
    size_t n;
    for (const struct sl_vec *x = chain(a, kept); x != NULL; x = chain(a, x->v[KEPT_PREV])) {
        const char *s = sl_datum_bytes(a, x->v[KEPT_NAME], &n);
        SL_ASSERT(n >= 2 && s[n - 1] == '"');
        out = sl_rx_or2(rx, out, sl_rx_lit(rx, s + 1, n - 1));
    }
    uint32_t names[SL_MAX_UNIQUE_ITEMS], n_names = distinct_names(a, set, names);
    for (uint32_t i = 0; i < n_names; i++) {
        const char *s = sl_datum_bytes(a, names[i], &n);
        out = sl_rx_or2(rx, out, sl_rx_lit(rx, s + 1, n - 1));
    }
    return out;
}

/* Of the data to avoid, names behind which no value is left that differs. */
static sl_rx_id hopeless(struct sl_auto *a, struct sl_plan *p, const struct sl_vec *f)
{
    const struct sl_vec *set = set_at(a, f->v[FR_AVOID]);
    sl_rx_id out = SL_RX_NONE;
    uint32_t names[SL_MAX_UNIQUE_ITEMS], n_names = distinct_names(a, set, names);
    for (uint32_t i = 0; i < n_names; i++) {
        size_t n;
        uint32_t class = auto_kept_class_of(a, p, names[i]);
        const char *s = sl_datum_bytes(a, names[i], &n);
        uint32_t text = class < p->n_names ? 0 : sl_text_of_bytes(a, s + 1, n - 2);
        if (class >= p->n_names && sl_frame_named(a, p, f, class, text) == 0)
            out = sl_rx_or2(&a->rx, out, sl_rx_lit(&a->rx, s + 1, n - 1));
    }
    return out;
}

sl_rx_id sl_kept_names(struct sl_auto *a, struct sl_plan *p, const struct sl_vec *f, sl_rx_id names)
{
    struct sl_rx *rx = &a->rx;
    sl_rx_id key =
        sl_rx_cat(rx, sl_rx_rep(rx, a->schema.key_char, 0, SL_RX_INF), sl_rx_range(rx, '"', '"'));
    SL_ASSERT(f->v[FR_KEPT] != 0);
    if (p->n_names == 0 && p->n_patterns == 0) /* else names have one spelling anyway */
        names = sl_rx_and2(rx, names, key);
    names = sl_rx_and2(rx, names, sl_rx_not(rx, sl_names_of(a, NULL, f->v[FR_KEPT])));
    if (f->v[FR_AVOID] != 0)
        names = sl_rx_and2(rx, names, sl_rx_not(rx, hopeless(a, p, f)));
    return sl_rx_alive(rx, names) ? names : SL_RX_NONE;
}
