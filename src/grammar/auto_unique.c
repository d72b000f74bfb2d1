/* SPDX-License-Identifier: MIT
 * auto_unique.c - uniqueItems: what the items of an array were, and what the next one may not be.
 *
 * The frame of an array whose items must differ holds a set of data, one for each item that was
 * read: the value without its spelling, so that 1 and 1.0 are one. The next item's language is cut
 * by all texts of those values, hence no text leads to a value that may not be completed.
 *
 * The text of an item is kept while it is read, which makes its states as many as there are texts.
 * A walk over a vocabulary needs not tell them apart: it goes through blurred states, whose text
 * is not known. The item behind it may not be equal to it, which matters only where few values are
 * left (else the text is marked as wide). Where what follows depends on the text, a step says
 * SL_STATE_UNSURE. Of most tokens the walk then knows that they make a text unlike all earlier ones
 * (sl_auto_rivals), for which there is one state; for the others it takes the exact states from its
 * start.
 */
#include "base/check.h"
#include "base/limits.h"
#include "base/sys.h"
#include "grammar/auto_impl.h"
#include "grammar/cset.h"
#include "grammar/regex.h"

#include <stdlib.h>
#include <string.h>

enum {
    MAX_COUNTED = 300, /* states that counting values visits */
    LONG_STRING = 128, /* bytes */
};

struct seen_aux {
    sl_rx_id texts; /* of all values of the set */
};

/* ---------------------------------------------------------------- data */

struct bytes {
    char *s;
    uint32_t n;
    char small[256];
};

static bool auto_unique_room_for(struct sl_auto *a, struct bytes *b, uint32_t n)
{
    SL_ASSERT(n > 0); /* the text of a value */
    b->n = n;
    b->s = n <= sizeof b->small ? b->small : sl_malloc(n);
    if (b->s == NULL)
        sl_auto_fail(a, SL_ENOMEM, "out of memory");
    return b->s != NULL;
}

static void drop(struct bytes *b)
{
    if (b->s != b->small)
        sl_free(b->s);
}

/* The bytes that a chain of SL_VEC_TEXT holds. */
static bool auto_unique_text_of(struct sl_auto *a, uint32_t text, struct bytes *b)
{
    uint32_t n = 0;
    for (uint32_t t = text; t != 0; t = sl_vec_at(a, t)->v[0])
        n++;
    if (!auto_unique_room_for(a, b, n))
        return false;
    for (uint32_t t = text; t != 0; t = sl_vec_at(a, t)->v[0])
        b->s[--n] = (char)sl_vec_at(a, t)->v[1];
    return true;
}

/* A numeral without what does not change its value. */
static uint32_t plain_number(char *s, uint32_t n)
{
    const char *point = memchr(s, '.', n);
    SL_ASSERT(n > 0 && (point == NULL || s[n - 1] != '.')); /* it was a whole numeral */
    while (point != NULL && s[n - 1] == '0')
        n--;
    if (point != NULL && s[n - 1] == '.')
        n--;
    if (n == 2 && s[0] == '-' && s[1] == '0') {
        s[0] = '0';
        n = 1;
    }
    return n;
}

static int hex_of(char c)
{
    SL_ASSERT((c >= '0' && c <= '9') || ((c | 0x20) >= 'a' && (c | 0x20) <= 'f'));
    return c <= '9' ? c - '0' : (c | 0x20) - 'a' + 10;
}

static const char shorts[][2] = {{'b', '\b'}, {'f', '\f'}, {'n', '\n'}, {'r', '\r'}, {'t', '\t'}};

/* The control character that \u00XX at s stands for. */
static char control_of(const char *s)
{
    return (char)(hex_of(s[4]) << 4 | hex_of(s[5]));
}

/* A string in one spelling: \n where there is such a name, else \u00 and small letters. */
static uint32_t plain_string(char *s, uint32_t n)
{
    uint32_t k = 0;
    for (uint32_t i = 0; i < n; i++) {
        s[k++] = s[i];
        if (s[i] != '\\' || i + 1 == n)
            continue;
        const bool code = s[i + 1] == 'u' && i + 5 < n; /* s[i + 1] is written over below */
        size_t m = code ? 0 : SL_COUNT(shorts);
        while (m < SL_COUNT(shorts) && shorts[m][1] != control_of(s + i))
            m++;
        bool named = m < SL_COUNT(shorts);
        s[k++] = named ? shorts[m][0] : s[i + 1];
        if (code) {
            memmove(s + k, s + i + 2, named ? 0 : 4);
            k += named ? 0 : 4;
            s[k - 1] = named ? s[k - 1] : (char)(s[k - 1] | 0x20); /* digits have that bit */
            i += 4;
        }
        i++;
    }
    SL_ASSERT(k <= n); /* no spelling is shorter */
    return k;
}

/* Are there no control characters, which have several spellings? */
static bool one_spelling(const char *s, size_t n)
{
    for (size_t i = 0; i + 1 < n; i++)
        if (s[i] == '\\' && s[++i] != '"' && s[i] != '\\')
            return false;
    return true;
}

/* All spellings of a string; of a long one, whatever begins like it is left out as well. */
static sl_rx_id spellings(struct sl_auto *a, const char *s, uint32_t n)
{
    char raw[LONG_STRING + 1];
    uint32_t k = 0, i = 1;
    for (; i + 1 < n && (k < LONG_STRING - 4 || ((uint8_t)s[i] & 0xC0) == 0x80); i++) {
        raw[k] = s[i];
        if (s[i] == '\\' && s[i + 1] == 'u') {
            raw[k] = control_of(s + i);
            i += 5;
        } else if (s[i] == '\\') {
            raw[k] = s[++i];
            for (size_t m = 0; m < SL_COUNT(shorts); m++)
                raw[k] = shorts[m][0] == s[i] ? shorts[m][1] : raw[k];
        }
        k++;
    }
    SL_ASSERT(k <= LONG_STRING);
    sl_rx_id q = sl_rx_range(&a->rx, '"', '"');
    sl_rx_id id = sl_cset_text(&a->rx, raw, k, SL_SPELL_JSON);
    return sl_rx_cat(&a->rx, q, sl_rx_cat(&a->rx, id, i + 1 < n ? SL_RX_ALL : q));
}

uint32_t sl_datum_of(struct sl_auto *a, uint32_t text)
{
    struct bytes b;
    uint32_t id = 0;
    a->unsure = a->unsure || text == TEXT_WIDE;
    if (text == TEXT_BLURRED || text == TEXT_WIDE)
        return DATUM_UNKNOWN;
    if (text == TEXT_OTHER)
        return DATUM_OTHER;
    SL_ASSERT(text != 0);
    if (!auto_unique_text_of(a, text, &b))
        return 0;
    if (b.s[0] == '"')
        b.n = plain_string(b.s, b.n);
    else if (b.s[0] == '-' || (b.s[0] >= '0' && b.s[0] <= '9'))
        b.n = plain_number(b.s, b.n);
    uint32_t n_words = 1 + (b.n + 3) / 4, *v = sl_calloc(n_words, sizeof *v);
    if (v == NULL) {
        sl_auto_fail(a, SL_ENOMEM, "out of memory");
    } else {
        v[0] = b.n;
        memcpy(v + 1, b.s, b.n);
        id = sl_vec_of(a, SL_VEC_DATUM, v, n_words);
    }
    sl_free(v);
    drop(&b);
    return id;
}

static uint32_t datum_with_quotes(struct sl_auto *a, const char *s, size_t n)
{
    uint32_t n_words = 1 + (uint32_t)(n + 2 + 3) / 4, *v = sl_calloc(n_words, sizeof *v), id = 0;
    if (v == NULL)
        return sl_auto_fail(a, SL_ENOMEM, "out of memory");
    char *to = (char *)(v + 1);
    SL_ASSERT(n + 2 <= (n_words - 1) * sizeof *v);
    v[0] = (uint32_t)n + 2;
    to[0] = to[n + 1] = '"';
    memcpy(to + 1, s, n);
    id = sl_vec_of(a, SL_VEC_DATUM, v, n_words);
    sl_free(v);
    return id;
}

uint32_t sl_datum_of_bytes(struct sl_auto *a, const char *s, size_t n)
{
    return datum_with_quotes(a, s, n);
}

uint32_t sl_datum_of_name(struct sl_auto *a, uint32_t text)
{
    struct bytes b;
    if (text == TEXT_BLURRED || text == TEXT_OTHER)
        return text == TEXT_OTHER ? DATUM_OTHER : DATUM_UNKNOWN;
    if (text == 0)
        return datum_with_quotes(a, "", 0);
    if (!auto_unique_text_of(a, text, &b))
        return 0;
    uint32_t id = datum_with_quotes(a, b.s, b.n);
    drop(&b);
    return id;
}

const char *sl_datum_bytes(const struct sl_auto *a, uint32_t datum, size_t *n)
{
    const struct sl_vec *x = sl_vec_at(a, datum);
    SL_ASSERT(x->kind == SL_VEC_DATUM && x->v[0] > 0 && x->v[0] <= (x->n - 1) * 4);
    *n = x->v[0];
    return (const char *)(x->v + 1);
}

bool sl_text_begins(struct sl_auto *a, uint32_t text, uint32_t datum, size_t from)
{
    struct bytes b;
    size_t n;
    const struct sl_vec *x = sl_vec_at(a, datum);
    if (x->kind != SL_VEC_DATUM)
        return false;
    const char *s = sl_datum_bytes(a, datum, &n) + from;
    SL_ASSERT(n >= from && (from == 0 || s[-1] == '"'));
    n -= from;
    if (text == 0)
        return true;
    if (!auto_unique_text_of(a, text, &b))
        return true;
    /* Numbers and control characters have several spellings. */
    bool may = from == 0 && (memchr(b.s, '\\', b.n) != NULL ||
                             ((b.s[0] == '-' || (b.s[0] >= '0' && b.s[0] <= '9')) && s[0] != '"'));
    may = may || (b.n <= n && memcmp(b.s, s, b.n) == 0);
    drop(&b);
    return may;
}

uint32_t sl_text_of_bytes(struct sl_auto *a, const char *s, size_t n)
{
    uint32_t text = 0;
    for (size_t i = 0; i < n; i++)
        text = sl_vec_of(a, SL_VEC_TEXT, (uint32_t[]){text, (uint8_t)s[i]}, 2);
    return text;
}

/* All texts of a value, as they are spelled under constraints. */
static sl_rx_id auto_unique_texts_of(struct sl_auto *a, uint32_t datum)
{
    struct sl_rx *rx = &a->rx;
    const struct sl_vec *x = sl_vec_at(a, datum);
    const char *s = (const char *)(x->v + 1);
    uint32_t n = x->v[0];
    SL_ASSERT(x->kind == SL_VEC_DATUM && n > 0 && n <= (x->n - 1) * 4);
    if (s[0] == '"')
        return spellings(a, s, n);
    if (s[0] != '-' && (s[0] < '0' || s[0] > '9'))
        return sl_rx_lit(rx, s, n);
    sl_rx_id zeros = sl_rx_rep(rx, sl_rx_range(rx, '0', '0'), 1, SL_RX_INF), id;
    if (memchr(s, '.', n) != NULL)
        id = sl_rx_cat(rx, sl_rx_lit(rx, s, n), sl_rx_opt(rx, zeros));
    else
        id = sl_rx_cat(rx, sl_rx_lit(rx, s, n),
                       sl_rx_opt(rx, sl_rx_cat(rx, sl_rx_range(rx, '.', '.'), zeros)));
    return n == 1 && s[0] == '0' ? sl_rx_cat(rx, sl_rx_opt(rx, sl_rx_range(rx, '-', '-')), id) : id;
}

/* ---------------------------------------------------------------- sets */

static uint32_t n_seen(const struct sl_auto *a, uint32_t seen)
{
    return seen == 0 ? 0 : sl_vec_at(a, seen)->n;
}

static bool has_unknown(const struct sl_auto *a, uint32_t seen)
{
    return seen != 0 && sl_vec_at(a, seen)->v[0] == DATUM_UNKNOWN;
}

bool sl_seen_has(const struct sl_auto *a, uint32_t seen, uint32_t datum)
{
    for (uint32_t i = 0; i < n_seen(a, seen); i++)
        if (sl_vec_at(a, seen)->v[i] == datum)
            return true;
    return false;
}

uint32_t sl_seen_with(struct sl_auto *a, uint32_t seen, uint32_t datum)
{
    uint32_t n = n_seen(a, seen), i = 0, *v = sl_malloc((n + 1) * sizeof *v);
    if (v == NULL)
        return sl_auto_fail(a, SL_ENOMEM, "out of memory");
    SL_ASSERT(n <= SL_MAX_UNIQUE_ITEMS && datum != 0);
    const uint32_t *old = seen == 0 ? NULL : sl_vec_at(a, seen)->v;
    for (; i < n && old[i] < datum; i++)
        v[i] = old[i];
    v[i] = datum;
    for (; i < n; i++)
        v[i + 1] = old[i];
    uint32_t id = sl_vec_of(a, SL_VEC_SEEN, v, n + 1);
    sl_free(v);
    return id;
}

static int auto_unique_by_bytes(const void *x, const void *y)
{
    const struct sl_rx_str *s = x, *t = y;
    int c = memcmp(s->s, t->s, SL_MIN(s->n, t->n));
    return c != 0 ? c : (s->n > t->n) - (s->n < t->n);
}

/* The texts of all values of a set: strings as one tree. */
static sl_rx_id texts_of_all(struct sl_auto *a, uint32_t seen)
{
    struct sl_vec *set = sl_vec_at(a, seen);
    SL_ASSERT(set->kind == SL_VEC_SEEN);
    if (set->aux != NULL)
        return ((struct seen_aux *)set->aux)->texts;
    struct seen_aux *x = sl_arena_alloc(&a->arena, sizeof *x);
    struct sl_rx_str *plain = sl_arena_array(&a->arena, set->n, sizeof *plain);
    if (x == NULL || plain == NULL) {
        sl_auto_no_room(a);
        return SL_RX_NONE;
    }
    sl_rx_id out = SL_RX_NONE;
    size_t n = 0;
    for (uint32_t i = 0; i < set->n; i++) {
        const struct sl_vec *d = sl_vec_at(a, set->v[i]);
        if (set->v[i] == DATUM_UNKNOWN || d->kind != SL_VEC_DATUM)
            continue;
        const char *s = (const char *)(d->v + 1);
        if (s[0] == '"' && one_spelling(s, d->v[0]))
            plain[n++] = (struct sl_rx_str){s, d->v[0]};
        else
            out = sl_rx_or2(&a->rx, out, auto_unique_texts_of(a, set->v[i]));
    }
    if (n > 0) {
        qsort(plain, n, sizeof *plain, auto_unique_by_bytes);
        out = sl_rx_or2(&a->rx, out, sl_rx_list(&a->rx, plain, n));
    }
    x->texts = out;
    set->aux = x;
    return out;
}

/* ---------------------------------------------------------------- what may come */

/* Texts of the goal's scalars that can be told apart by their values: a numeral with a fraction has
 * no more digits than a double keeps, or two of them might be read as one number. */
static sl_rx_id distinct_scalars(struct sl_auto *a, struct sl_goal *g)
{
    struct sl_rx *rx = &a->rx;
    if (g->distinct != SL_RX_ALL)
        return g->distinct;
    struct sl_rx_bytes set = {0};
    sl_rx_bytes_add(&set, '0', '9');
    sl_rx_bytes_add(&set, '.', '.');
    sl_rx_id first = sl_rx_set(rx, &set), point = sl_rx_range(rx, '.', '.');
    sl_rx_bytes_add(&set, '-', '-');
    sl_rx_id all = sl_rx_cat(rx, sl_rx_set(rx, &set), SL_RX_ALL);
    sl_rx_id minus = sl_rx_opt(rx, sl_rx_range(rx, '-', '-'));
    sl_rx_id few = sl_rx_cat(rx, minus, sl_rx_rep(rx, first, 1, 16));
    sl_rx_id whole = sl_rx_not(rx, sl_rx_cat(rx, SL_RX_ALL, sl_rx_cat(rx, point, SL_RX_ALL)));
    sl_rx_id out = sl_rx_or2(rx, sl_rx_not(rx, all), sl_rx_or2(rx, few, whole));
    out = sl_rx_and2(rx, g->scalar, out);
    g->distinct = sl_rx_alive(rx, out) ? out : SL_RX_NONE;
    return g->distinct;
}

static sl_rx_id scalars_without(struct sl_auto *a, struct sl_goal *g, uint32_t seen)
{
    SL_ASSERT(seen == 0 || sl_vec_at(a, seen)->kind == SL_VEC_SEEN);
    sl_rx_id id = distinct_scalars(a, g);
    if (seen != 0)
        id = sl_rx_and2(&a->rx, id, sl_rx_not(&a->rx, texts_of_all(a, seen)));
    return sl_rx_alive(&a->rx, id) ? id : SL_RX_NONE;
}

struct counting {
    struct sl_auto *a;
    uint32_t n;
    struct {
        sl_rx_id id;
        uint32_t texts; /* 0: being counted, a text that comes here again may go round for ever */
    } at[MAX_COUNTED];
};

/* At least so many texts has the language, of which every state can accept. */
static uint32_t count_texts(struct counting *c, sl_rx_id id)
{
    const uint32_t enough = SL_MAX_UNIQUE_ITEMS + 1;
    uint32_t i = 0, n = sl_rx_nullable(&c->a->rx, id);
    while (i < c->n && c->at[i].id != id)
        i++;
    if (i < c->n)
        return c->at[i].texts == 0 ? enough : c->at[i].texts;
    if (c->n == MAX_COUNTED)
        return 1;
    c->at[c->n].id = id;
    c->at[c->n++].texts = 0;
    for (unsigned b = 0; b < 256 && n < enough; b++) {
        sl_rx_id to = sl_rx_step(&c->a->rx, id, (uint8_t)b);
        n += to != SL_RX_NONE ? count_texts(c, to) : 0;
    }
    SL_ASSERT(i < c->n && c->n <= MAX_COUNTED);
    return c->at[i].texts = SL_MIN(n, enough);
}

uint32_t sl_goal_n_scalars(struct sl_auto *a, struct sl_goal *g, sl_rx_id all)
{
    struct sl_rx *rx = &a->rx;
    struct sl_error err;
    sl_rx_id number;
    static const char plain[] = "(0|-?[1-9]\\d*|-?(0|[1-9]\\d*)\\.\\d*[1-9])";
    if (all == g->scalar && g->n_scalars != UINT32_MAX)
        return g->n_scalars;
    if (all == SL_RX_NONE ||
        sl_regex_parse(rx, plain, sizeof plain - 1, 0, SL_SPELL_UTF8, &number, &err) != 0)
        return 0;
    /* The texts that have a value for themselves: strings without \u00XX, plain numbers, names. */
    struct sl_rx_bytes first = {0};
    sl_rx_bytes_add(&first, 'a', 'z');
    sl_rx_id u = sl_rx_cat(rx, SL_RX_ALL, sl_rx_cat(rx, sl_rx_lit(rx, "\\u", 2), SL_RX_ALL));
    sl_rx_id string = sl_rx_cat(rx, sl_rx_range(rx, '"', '"'), SL_RX_ALL);
    sl_rx_id one[] = {number, sl_rx_cat(rx, sl_rx_set(rx, &first), SL_RX_ALL),
                      sl_rx_and2(rx, string, sl_rx_not(rx, u))};
    sl_rx_id id = sl_rx_and2(rx, distinct_scalars(a, g), sl_rx_alt(rx, one, SL_COUNT(one)));
    id = all == g->scalar ? id : sl_rx_and2(rx, id, all);
    struct counting *c = sl_malloc(sizeof *c);
    if (c == NULL)
        return sl_auto_fail(a, SL_ENOMEM, "out of memory");
    c->a = a;
    c->n = 0;
    uint32_t n = sl_rx_alive(rx, id) ? count_texts(c, id) : 0;
    sl_free(c);
    g->n_scalars = all == g->scalar ? n : g->n_scalars;
    return n;
}

uint32_t sl_goal_n_values(struct sl_auto *a, struct sl_goal *g)
{
    const uint32_t enough = SL_MAX_UNIQUE_ITEMS + 1;
    if (g->n_values != UINT32_MAX)
        return g->n_values;
    if (a->sat_depth >= MAX_COUNTED) /* a lower bound, not kept */
        return 0;
    a->sat_depth++;
    g->n_values = 0; /* met again on the way: not counted */
    uint32_t n = sl_goal_n_scalars(a, g, g->scalar);
    if (n < enough && (g->compound & SL_JSON_OBJECT) != 0)
        n += sl_goal_n_compound(a, g, true);
    if (n < enough && (g->compound & SL_JSON_ARRAY) != 0)
        n += sl_goal_n_compound(a, g, false);
    g->n_values = SL_MIN(n, enough);
    a->sat_depth--;
    return g->n_values;
}

bool sl_rx_is_wide(struct sl_auto *a, sl_rx_id id)
{
    uint32_t at = id * 2654435761u >> 22;
    _Static_assert(SL_COUNT(a->wide) == 1u << 10, "the hash has as many values");
    if (a->wide[at].id == id)
        return a->wide[at].yes;
    struct counting *c = sl_malloc(sizeof *c);
    if (c == NULL)
        return sl_auto_fail(a, SL_ENOMEM, "out of memory") != 0;
    c->a = a;
    c->n = 0;
    bool yes = id != SL_RX_NONE && count_texts(c, id) > SL_MAX_UNIQUE_ITEMS;
    sl_free(c);
    a->wide[at].id = id;
    a->wide[at].yes = yes;
    return yes;
}

bool sl_goal_sat_without(struct sl_auto *a, struct sl_goal *g, uint32_t seen)
{
    uint32_t n = n_seen(a, seen);
    if (g == NULL || n >= SL_MAX_UNIQUE_ITEMS)
        return false;
    if (sl_goal_n_values(a, g) > n)
        return true;
    a->unsure = a->unsure || has_unknown(a, seen);
    if (scalars_without(a, g, seen) != SL_RX_NONE)
        return true;
    uint32_t objects = sl_avoid_of_kind(a, seen, SL_VEC_OBJECT_DATUM);
    if ((g->compound & SL_JSON_OBJECT) != 0 &&
        sl_frame_open_kept(a, g, true, 0, 0, KEPT_EMPTY, objects) != 0)
        return true;
    uint32_t arrays = sl_avoid_of_kind(a, seen, SL_VEC_ARRAY_DATUM);
    return (g->compound & SL_JSON_ARRAY) != 0 &&
           sl_frame_open_kept(a, g, false, 0, 0, KEPT_EMPTY, arrays) != 0;
}

uint32_t sl_goal_lex_without(struct sl_auto *a, struct sl_goal *g, sl_rx_id part, uint32_t seen)
{
    uint32_t key[MAX_WANTED + 1];
    sl_rx_id id = scalars_without(a, g, seen);
    if (part != g->scalar) {
        id = sl_rx_and2(&a->rx, id, part);
        id = sl_rx_alive(&a->rx, id) ? id : SL_RX_NONE;
    }
    if (g->pure)
        return SL_LEX_RX | id;
    key[0] = id;
    for (uint32_t i = 0; i < g->n_roots; i++) {
        key[i + 1] = sl_rx_and2(&a->rx, id, a->schema.nodes[g->roots[i]].scalar);
        if (!sl_rx_alive(&a->rx, key[i + 1]))
            key[i + 1] = SL_RX_NONE;
    }
    return SL_LEX_TUPLE | sl_vec_of(a, SL_VEC_TUPLE, key, g->n_roots + 1);
}

uint32_t sl_item_begin(struct sl_auto *a, uint32_t array, uint32_t seen, uint8_t byte, uint32_t lex)
{
    uint32_t text;
    SL_ASSERT(sl_vec_at(a, array)->kind == SL_VEC_ARRAY ||
              sl_vec_at(a, array)->kind == SL_VEC_OBJECT);
    SL_ASSERT(lex != 0);
    if (!has_unknown(a, seen)) {
        text = sl_vec_of(a, SL_VEC_TEXT, (uint32_t[]){0, byte}, 2);
    } else { /* the one value that is not known is no hindrance to a string with many others */
        sl_rx_id id =
            (lex & SL_LEX_TAG) == SL_LEX_RX ? lex & SL_LEX_ID : sl_vec_at(a, lex & SL_LEX_ID)->v[0];
        a->unsure = a->unsure || byte != '"' || !sl_rx_is_wide(a, id);
        text = TEXT_WIDE;
    }
    return a->unsure || text == 0 ? 0 : sl_vec_of(a, SL_VEC_ITEM, (uint32_t[]){array, text}, 2);
}

/* ---------------------------------------------------------------- blurred states */

static uint32_t blurred_key(struct sl_auto *a, const struct sl_vec *f, uint32_t key)
{
    const struct sl_vec *k = sl_vec_at(a, key);
    uint32_t v[KEY_PATTERNS + 64], text = k->v[KEY_TEXT];
    if (text != 0 && text <= TEXT_OTHER)
        return SL_LEX_KEY | key;
    SL_ASSERT(k->kind == SL_VEC_KEY && k->n <= SL_COUNT(v));
    memcpy(v, k->v, k->n * sizeof v[0]);
    bool other = f->v[FR_AVOID] != 0 && !sl_kept_may_equal(a, f, text, true);
    v[KEY_TEXT] = other ? TEXT_OTHER : TEXT_BLURRED;
    return SL_LEX_KEY | sl_vec_of(a, SL_VEC_KEY, v, k->n);
}

static uint32_t with_other_text(struct sl_auto *a, const struct sl_vec *x, bool name)
{
    uint32_t v[KEY_PATTERNS + 64], to[2] = {x->v[0], x->v[1]};
    SL_ASSERT(x->kind == SL_VEC_STATE && x->n == 2);
    if (name) {
        const struct sl_vec *k = sl_vec_at(a, x->v[1] & SL_LEX_ID);
        SL_ASSERT(k->kind == SL_VEC_KEY && k->n <= SL_COUNT(v));
        memcpy(v, k->v, k->n * sizeof v[0]);
        v[KEY_TEXT] = TEXT_OTHER;
        to[1] = SL_LEX_KEY | sl_vec_of(a, SL_VEC_KEY, v, k->n);
    } else {
        to[0] = sl_vec_of(a, SL_VEC_ITEM, (uint32_t[]){sl_vec_at(a, x->v[0])->v[0], TEXT_OTHER}, 2);
    }
    return sl_vec_of(a, SL_VEC_STATE, to, 2);
}

/* The frame for which a state reads a text that must be told apart from earlier ones; *name: the
 * text is of a name. NULL: there is no such text. */
static const struct sl_vec *auto_unique_read_text(const struct sl_auto *a, const struct sl_vec *x,
                                                  uint32_t *text, bool *name)
{
    const struct sl_vec *f = sl_vec_at(a, x->v[0]);
    SL_ASSERT(x->kind == SL_VEC_STATE && x->n % 2 == 0);
    *name = (x->v[1] & SL_LEX_TAG) == SL_LEX_KEY;
    if (x->n != 2 || (!*name && f->kind != SL_VEC_ITEM))
        return NULL;
    *text = *name ? sl_vec_at(a, x->v[1] & SL_LEX_ID)->v[KEY_TEXT] : f->v[1];
    f = *name ? f : sl_vec_at(a, f->v[0]);
    bool blurred = *text != 0 && *text <= TEXT_OTHER;
    return blurred || f->v[FR_AVOID] == 0 || f->v[FR_KEPT] == KEPT_LOST ? NULL : f;
}

/* Strings only, and those without other spellings: else there is no other state. */
void sl_auto_rivals(struct sl_auto *a, uint32_t state, struct sl_rivals *r)
{
    const struct sl_vec *x = sl_vec_at(a, state);
    struct sl_kept_at at = {0, 0};
    struct bytes b = {0};
    uint32_t text = 0;
    bool name;
    r->n = r->other = 0;
    const struct sl_vec *f = auto_unique_read_text(a, x, &text, &name);
    if (f == NULL || (text != 0 && !auto_unique_text_of(a, text, &b)))
        return;
    bool ok = name || b.s[0] == '"';
    for (uint32_t i = 0; i < b.n && ok; i++)
        ok = b.s[i] != '\\' || (++i < b.n && (b.s[i] == '"' || b.s[i] == '\\'));
    for (uint32_t d; ok && (d = sl_kept_next(a, f, name, &at)) != 0;) {
        size_t n;
        const struct sl_vec *value = sl_vec_at(a, d);
        if (value->kind != SL_VEC_DATUM)
            continue;
        const char *s = sl_datum_bytes(a, d, &n) + name;
        n -= name;
        if (n < b.n || (b.n > 0 && memcmp(s, b.s, b.n) != 0))
            continue;
        if (r->n == r->cap) {
            uint32_t cap = r->cap == 0 ? 64 : r->cap * 2;
            void *p = sl_realloc(r->v, cap * sizeof r->v[0]);
            ok = p != NULL; /* without memory exact states do it */
            if (!ok)
                break;
            r->v = p;
            r->cap = cap;
        }
        r->v[r->n++] = (struct sl_rx_str){s + b.n, (uint32_t)(n - b.n)};
    }
    if (text != 0)
        drop(&b);
    if (!ok)
        return;
    SL_ASSERT(r->n <= r->cap);
    if (r->n > 1)
        qsort(r->v, r->n, sizeof r->v[0], auto_unique_by_bytes);
    r->other = with_other_text(a, x, name);
}

bool sl_rivals_have(const struct sl_rivals *r, const uint8_t *s, size_t n)
{
    uint32_t lo = 0, hi = r->n;
    SL_ASSERT(r->other != 0 && n > 0);
    if (!one_spelling((const char *)s, n))
        return true;
    while (lo < hi) { /* the first one that is not less */
        uint32_t mid = lo + (hi - lo) / 2;
        int c = memcmp(r->v[mid].s, s, SL_MIN(r->v[mid].n, n));
        if (c < 0 || (c == 0 && r->v[mid].n < n))
            lo = mid + 1;
        else
            hi = mid;
    }
    return lo < r->n && r->v[lo].n >= n && memcmp(r->v[lo].s, s, n) == 0;
}

uint32_t sl_auto_blur(struct sl_auto *a, uint32_t state)
{
    const struct sl_vec *x = state <= SL_STATE_UNSURE ? NULL : sl_vec_at(a, state);
    struct sl_thread small[16];
    bool any = false;
    if (x == NULL || x->n > 2 * SL_COUNT(small))
        return state;
    SL_ASSERT(x->kind == SL_VEC_STATE && x->n % 2 == 0);
    for (uint32_t i = 0; i < x->n; i += 2) {
        const struct sl_vec *f = sl_vec_at(a, x->v[i]);
        small[i / 2] = (struct sl_thread){x->v[i], x->v[i + 1]};
        if ((x->v[i + 1] & SL_LEX_TAG) == SL_LEX_KEY && f->v[FR_KEPT] != 0) {
            small[i / 2].lex = blurred_key(a, f, x->v[i + 1] & SL_LEX_ID);
            any = any || small[i / 2].lex != x->v[i + 1];
        }
        if (f->kind != SL_VEC_ITEM || f->v[1] <= TEXT_OTHER)
            continue;
        const struct sl_vec *frame = sl_vec_at(a, f->v[0]);
        bool other = frame->v[FR_AVOID] != 0 && !sl_kept_may_equal(a, frame, f->v[1], false);
        uint32_t text = other ? TEXT_OTHER : TEXT_BLURRED;
        small[i / 2].stack = sl_vec_of(a, SL_VEC_ITEM, (uint32_t[]){f->v[0], text}, 2);
        any = true;
    }
    return any ? sl_vec_of(a, SL_VEC_STATE, (const uint32_t *)small, x->n) : state;
}

bool sl_auto_is_wide(const struct sl_auto *a, uint32_t state)
{
    const struct sl_vec *x = sl_vec_at(a, state);
    SL_ASSERT(x->kind == SL_VEC_STATE && x->n % 2 == 0);
    for (uint32_t i = 0; i < x->n; i += 2) {
        const struct sl_vec *f = sl_vec_at(a, x->v[i]);
        if (f->kind == SL_VEC_ITEM && f->v[1] == TEXT_WIDE)
            return true;
    }
    return false;
}
