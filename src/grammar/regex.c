/* SPDX-License-Identifier: MIT
 * regex.c - regular expressions: parsing, and the meaning of anchors and look-ahead.
 *
 * A parsed pattern is turned into a language from its end to its start: each part is given the
 * language of all that follows it up to the end of the text. That makes `$` and look-ahead plain
 * operations on languages. `^` needs to know whether anything came before, so each result is a
 * pair: what the rest may be when it begins the text, and when it does not.
 */
#include "grammar/regex.h"

#include "base/check.h"
#include "base/limits.h"
#include "base/str.h"
#include "base/sys.h"
#include "grammar/rx_impl.h"

#include <string.h>

enum { MAX_DEPTH = 200, MAX_NODES = 200000 };

enum part_op { PART_SET, PART_CAT, PART_ALT, PART_REP, PART_START, PART_END, PART_LOOK };

struct part {
    enum part_op op;
    bool asserts, negated; /* asserts: holds START, END or LOOK */
    int32_t lo, hi;
    sl_rx_id set;
    struct part *kids, *next; /* last first */
};

struct parser {
    struct sl_rx *rx;
    struct sl_arena arena;
    const char *s;
    size_t n, at;
    unsigned flags;
    enum sl_spelling spelling;
    int depth;
    uint32_t n_parts;
    struct sl_error *err;
    int rc;
};

#define FAIL(p, code, ...) ((p)->rc = (p)->rc != 0 ? (p)->rc : fail_at((p), (code), __VA_ARGS__))

static int fail_at(struct parser *p, int code, const char *what)
{
    return sl_fail(p->err, code, "regex: %s at character %zu", what, p->at);
}

static struct part *new_part(struct parser *p, enum part_op op)
{
    SL_ASSERT(op <= PART_LOOK);
    struct part *x = p->n_parts++ < MAX_NODES ? sl_arena_alloc(&p->arena, sizeof *x) : NULL;
    if (p->arena.no_memory)
        FAIL(p, SL_ENOMEM, "out of memory");
    if (x == NULL) {
        FAIL(p, SL_ELIMIT, "the pattern is too long");
        return NULL;
    }
    x->op = op;
    x->asserts = op == PART_START || op == PART_END || op == PART_LOOK;
    return x;
}

static void regex_add_kid(struct part *x, struct part *kid)
{
    if (kid == NULL)
        return;
    SL_ASSERT(kid != x && kid->next == NULL); /* a tree: every part has one place */
    kid->next = x->kids;
    x->kids = kid;
    x->asserts = x->asserts || kid->asserts;
}

static bool regex_peek(const struct parser *p, const char *s)
{
    size_t n = strlen(s);
    SL_ASSERT(p->at <= p->n);
    return p->n - p->at >= n && memcmp(p->s + p->at, s, n) == 0;
}

static bool regex_take(struct parser *p, const char *s)
{
    bool yes = regex_peek(p, s);
    p->at += yes ? strlen(s) : 0;
    return yes;
}

static struct part *set_part(struct parser *p, struct sl_cset *set)
{
    struct part *x = new_part(p, PART_SET);
    if (set->failed)
        FAIL(p, SL_ENOMEM, "out of memory");
    if (x != NULL && p->rc == 0) {
        sl_cset_done(set);
        if ((p->flags & SL_REGEX_ICASE) != 0)
            sl_cset_fold_ascii(set);
        SL_ASSERT(!set->failed);
        x->set = sl_cset_rx(p->rx, set, p->spelling);
    }
    sl_cset_deinit(set);
    return x;
}

static bool hex_digits(struct parser *p, size_t n, uint32_t *out)
{
    uint64_t v;
    if (n == 0 || p->n - p->at < n || !sl_parse_hex_u64(p->s + p->at, n, &v) || v > 0x10FFFF)
        return false;
    p->at += n;
    SL_ASSERT(p->at <= p->n);
    *out = (uint32_t)v;
    return true;
}

/* After \u: four digits, a pair of surrogates, or {digits}. */
static bool unicode_escape(struct parser *p, uint32_t *cp)
{
    if (regex_take(p, "{")) {
        const char *end = memchr(p->s + p->at, '}', p->n - p->at);
        return end != NULL && hex_digits(p, (size_t)(end - (p->s + p->at)), cp) &&
               regex_take(p, "}");
    }
    if (!hex_digits(p, 4, cp))
        return false;
    uint32_t low;
    size_t back = p->at;
    if (*cp >= 0xD800 && *cp < 0xDC00 && regex_take(p, "\\u") && hex_digits(p, 4, &low) &&
        low >= 0xDC00 && low < 0xE000)
        *cp = 0x10000 + ((*cp - 0xD800) << 10) + (low - 0xDC00);
    else
        p->at = back;
    return true;
}

/* One character of the pattern, after a backslash: into *cp, or a class into set (then *cp is
 * UINT32_MAX). */
static void regex_escape(struct parser *p, struct sl_cset *set, uint32_t *cp)
{
    static const char names[] = "tnrfv0", values[] = "\t\n\r\f\v";
    _Static_assert(sizeof names - 1 == sizeof values, "\\0 is what ends the values");
    *cp = UINT32_MAX;
    if (p->at >= p->n) {
        FAIL(p, SL_EINVAL, "nothing follows the backslash");
        return;
    }
    char c = p->s[p->at++];
    if (strchr("dDwWsS", c) != NULL && c != 0) {
        sl_cset_add_class(set, c);
    } else if (c == 'p' || c == 'P') {
        const char *end = memchr(p->s + p->at, '}', p->n - p->at);
        if (!regex_take(p, "{") || end == NULL ||
            !sl_cset_add_property(set, p->s + p->at, (size_t)(end - (p->s + p->at)), c == 'P'))
            FAIL(p, SL_EUNSUPPORTED, "\\p knows general categories, Any and ASCII only");
        else
            p->at = (size_t)(end - p->s) + 1;
    } else if (c != 0 && strchr(names, c) != NULL) {
        *cp = (uint8_t)values[strchr(names, c) - names];
    } else if (c == 'x' ? !hex_digits(p, 2, cp) : c == 'u' ? !unicode_escape(p, cp) : false) {
        FAIL(p, SL_EINVAL, "hexadecimal digits are missing");
    } else if (c == 'x' || c == 'u') {
        return;
    } else if (c == 'c' && p->at < p->n && ((p->s[p->at] | 0x20) >= 'a') &&
               ((p->s[p->at] | 0x20) <= 'z')) {
        *cp = (uint8_t)p->s[p->at++] & 31u;
    } else if (c >= '1' && c <= '9') {
        FAIL(p, SL_EUNSUPPORTED, "a back-reference is not regular");
    } else if ((c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || c == '_' || c == 0) {
        p->at--;
        FAIL(p, SL_EUNSUPPORTED, "this escape is not supported");
    } else {
        p->at--;
        size_t k = sl_utf8_decode(p->s + p->at, p->n - p->at, cp);
        p->at += k;
    }
}

static uint32_t regex_next_char(struct parser *p)
{
    uint32_t cp = 0;
    size_t k = sl_utf8_decode(p->s + p->at, p->n - p->at, &cp);
    if (k == 0)
        FAIL(p, SL_EINVAL, "invalid UTF-8");
    p->at += k;
    SL_ASSERT(p->at <= p->n);
    return cp;
}

static struct part *class_part(struct parser *p)
{
    struct sl_cset set = {0};
    bool negated = regex_take(p, "^");
    while (p->rc == 0 && !regex_take(p, "]")) {
        uint32_t lo = 0, hi;
        struct sl_cset named = {0};
        if (p->at >= p->n) {
            FAIL(p, SL_EINVAL, "']' is missing");
            break;
        }
        if (regex_peek(p, "\\b")) {
            p->at += 2;
            lo = '\b';
        } else if (regex_take(p, "\\")) {
            regex_escape(p, &named, &lo);
        } else {
            lo = regex_next_char(p);
        }
        hi = lo;
        if (p->rc == 0 && lo != UINT32_MAX && regex_peek(p, "-") && !regex_peek(p, "-]") &&
            p->at + 1 < p->n) {
            p->at++;
            if (regex_take(p, "\\"))
                regex_escape(p, &named, &hi);
            else
                hi = regex_next_char(p);
            if (hi == UINT32_MAX) { /* [a-\d]: the three things it is written with */
                sl_cset_add(&set, '-', '-');
                hi = lo;
            } else if (hi < lo) {
                FAIL(p, SL_EINVAL, "a range runs backwards");
            }
        }
        if (lo != UINT32_MAX)
            sl_cset_add(&set, lo, hi);
        sl_cset_add_all(&set, &named, false);
        sl_cset_deinit(&named);
    }
    if ((p->flags & SL_REGEX_ICASE) != 0) {
        sl_cset_done(&set);
        sl_cset_fold_ascii(&set); /* before it is negated */
    }
    if (negated)
        sl_cset_negate(&set);
    return set_part(p, &set);
}

static struct part *parse_alt(struct parser *p);

static struct part *group_part(struct parser *p)
{
    struct part *x = NULL;
    bool look = false, negated = false;
    if (regex_take(p, "?=") || (negated = regex_take(p, "?!"))) {
        look = true;
    } else if (regex_peek(p, "?<=") || regex_peek(p, "?<!")) {
        FAIL(p, SL_EUNSUPPORTED, "look-behind is not supported");
    } else if (regex_take(p, "?P<") || regex_take(p, "?<")) {
        const char *end = memchr(p->s + p->at, '>', p->n - p->at);
        if (end == NULL)
            FAIL(p, SL_EINVAL, "'>' is missing");
        else
            p->at = (size_t)(end - p->s) + 1;
    } else if (!regex_take(p, "?:") && regex_peek(p, "?")) {
        FAIL(p, SL_EUNSUPPORTED, "this kind of group is not supported");
    }
    if (++p->depth > MAX_DEPTH)
        FAIL(p, SL_ELIMIT, "groups are nested too deeply");
    if (p->rc == 0)
        x = parse_alt(p);
    p->depth--;
    SL_ASSERT(p->depth >= 0 && p->depth <= MAX_DEPTH);
    if (p->rc == 0 && !regex_take(p, ")"))
        FAIL(p, SL_EINVAL, "')' is missing");
    if (look && p->rc == 0) {
        struct part *l = new_part(p, PART_LOOK);
        if (l != NULL) {
            l->negated = negated;
            regex_add_kid(l, x);
        }
        return l;
    }
    return x;
}

static struct part *atom_part(struct parser *p)
{
    struct sl_cset set = {0};
    uint32_t cp;
    if (regex_take(p, "("))
        return group_part(p);
    if (regex_take(p, "["))
        return class_part(p);
    if (regex_take(p, "^") || regex_take(p, "\\A"))
        return new_part(p, PART_START);
    if (regex_take(p, "$") || regex_take(p, "\\Z") || regex_take(p, "\\z"))
        return new_part(p, PART_END);
    if (regex_peek(p, "\\b") || regex_peek(p, "\\B")) {
        FAIL(p, SL_EUNSUPPORTED, "\\b and \\B are not supported");
    } else if (regex_take(p, "\\")) {
        regex_escape(p, &set, &cp);
        if (cp != UINT32_MAX)
            sl_cset_add(&set, cp, cp);
    } else if (regex_take(p, ".")) {
        if ((p->flags & SL_REGEX_DOT_ALL) != 0)
            sl_cset_add(&set, 0, 0x10FFFF);
        else
            sl_cset_add_class(&set, '.');
    } else if (regex_peek(p, "*") || regex_peek(p, "+") || regex_peek(p, "?")) {
        FAIL(p, SL_EINVAL, "nothing to repeat");
    } else {
        cp = regex_next_char(p);
        sl_cset_add(&set, cp, cp);
    }
    return set_part(p, &set);
}

static bool regex_number(struct parser *p, size_t *at, int32_t *out)
{
    size_t from = *at;
    uint64_t v;
    while (*at < p->n && p->s[*at] >= '0' && p->s[*at] <= '9')
        ++*at;
    SL_ASSERT(*at <= p->n);
    if (!sl_parse_u64(p->s + from, *at - from, &v))
        return false;
    if (v > INT32_MAX - 1)
        FAIL(p, SL_ELIMIT, "a count of more than 2147483646");
    *out = (int32_t)SL_MIN(v, INT32_MAX - 1);
    return true;
}

/* {2} {2,} {2,5}; anything else after '{' is text. */
static bool braces(struct parser *p, int32_t *lo, int32_t *hi)
{
    size_t at = p->at + 1;
    if (!regex_peek(p, "{") || !regex_number(p, &at, lo))
        return false;
    *hi = *lo;
    if (at < p->n && p->s[at] == ',') {
        at++;
        if (!regex_number(p, &at, hi))
            *hi = SL_RX_INF;
    }
    if (at >= p->n || p->s[at] != '}')
        return false;
    p->at = at + 1;
    SL_ASSERT(p->at <= p->n);
    return true;
}

static struct part *regex_quantified(struct parser *p)
{
    struct part *x = atom_part(p);
    while (x != NULL && p->rc == 0) {
        int32_t lo = 0, hi = SL_RX_INF;
        if (regex_take(p, "?"))
            hi = 1;
        else if (regex_take(p, "+"))
            lo = 1;
        else if (!regex_take(p, "*") && !braces(p, &lo, &hi))
            break;
        if (regex_take(p, "+"))
            FAIL(p, SL_EUNSUPPORTED, "a possessive quantifier is not supported");
        regex_take(p, "?");
        if (hi != SL_RX_INF && hi < lo)
            FAIL(p, SL_EINVAL, "a quantifier's bounds run backwards");
        if (x->asserts)
            FAIL(p, SL_EUNSUPPORTED, "an assertion cannot be repeated");
        struct part *r = new_part(p, PART_REP);
        if (r == NULL || p->rc != 0)
            return NULL;
        SL_ASSERT(lo >= 0 && (hi == SL_RX_INF || hi >= lo) && !x->asserts);
        r->lo = lo;
        r->hi = hi;
        regex_add_kid(r, x);
        x = r;
        if (++p->depth > MAX_DEPTH)
            FAIL(p, SL_ELIMIT, "quantifiers are nested too deeply");
        if (!regex_peek(p, "{") && !regex_peek(p, "*") && !regex_peek(p, "?")) {
            p->depth--;
            break;
        }
        p->depth--;
        FAIL(p, SL_EINVAL, "nothing to repeat");
    }
    return x;
}

static struct part *parse_alt(struct parser *p)
{
    struct part *alt = new_part(p, PART_ALT);
    do {
        struct part *cat = new_part(p, PART_CAT);
        while (p->rc == 0 && p->at < p->n && !regex_peek(p, "|") && !regex_peek(p, ")"))
            regex_add_kid(cat, regex_quantified(p));
        if (p->rc == 0)
            regex_add_kid(alt, cat);
    } while (p->rc == 0 && regex_take(p, "|"));
    return alt;
}

static sl_rx_id regex_plain(struct sl_rx *rx, const struct part *x);

/* All alternatives at once: one by one would sort the list anew for each. */
static sl_rx_id plain_alt(struct sl_rx *rx, const struct part *x)
{
    size_t n = 0, i = 0;
    for (const struct part *k = x->kids; k != NULL; k = k->next)
        n++;
    sl_rx_id *ids = sl_malloc((n + 1) * sizeof *ids);
    if (ids == NULL)
        return sl_rx_fail(rx, SL_ENOMEM, "out of memory");
    for (const struct part *k = x->kids; k != NULL; k = k->next)
        ids[i++] = regex_plain(rx, k);
    SL_ASSERT(i == n);
    sl_rx_id id = sl_rx_alt(rx, ids, n);
    sl_free(ids);
    return id;
}

/* The language of a part without assertions. */
static sl_rx_id regex_plain(struct sl_rx *rx, const struct part *x)
{
    sl_rx_id id = SL_RX_EPS;
    SL_ASSERT(!x->asserts);
    switch (x->op) {
    case PART_SET:
        return x->set;
    case PART_CAT:
        for (const struct part *k = x->kids; k != NULL; k = k->next)
            id = sl_rx_cat(rx, regex_plain(rx, k), id);
        return id;
    case PART_ALT:
        return plain_alt(rx, x);
    case PART_REP:
        SL_ASSERT(x->kids != NULL && x->kids->next == NULL);
        return sl_rx_rep(rx, regex_plain(rx, x->kids), x->lo, x->hi);
    default:
        return SL_RX_NONE;
    }
}

struct suffix {
    sl_rx_id at_start, later; /* what may follow here, at the start of the text and after it */
};

static struct suffix regex_build(struct sl_rx *rx, const struct part *x, struct suffix rest,
                                 sl_rx_id any)
{
    struct suffix out = {SL_RX_NONE, SL_RX_NONE};
    switch (x->op) {
    case PART_START:
        out.at_start = rest.at_start;
        return out;
    case PART_END:
        out.at_start = sl_rx_nullable(rx, rest.at_start) ? SL_RX_EPS : SL_RX_NONE;
        out.later = sl_rx_nullable(rx, rest.later) ? SL_RX_EPS : SL_RX_NONE;
        return out;
    case PART_LOOK: {
        SL_ASSERT(x->kids != NULL && x->kids->next == NULL);
        struct suffix in = regex_build(rx, x->kids, (struct suffix){any, any}, any);
        if (x->negated) {
            in.at_start = sl_rx_not(rx, in.at_start);
            in.later = sl_rx_not(rx, in.later);
        }
        out.at_start = sl_rx_and2(rx, rest.at_start, in.at_start);
        out.later = sl_rx_and2(rx, rest.later, in.later);
        return out;
    }
    case PART_CAT:
        for (const struct part *k = x->kids; k != NULL; k = k->next)
            rest = regex_build(rx, k, rest, any);
        return rest;
    case PART_ALT:
        if (!x->asserts)
            break;
        for (const struct part *k = x->kids; k != NULL; k = k->next) {
            struct suffix one = regex_build(rx, k, rest, any);
            out.at_start = sl_rx_or2(rx, out.at_start, one.at_start);
            out.later = sl_rx_or2(rx, out.later, one.later);
        }
        return out;
    default:
        break;
    }
    SL_ASSERT(!x->asserts && x->op != PART_CAT);
    sl_rx_id id = regex_plain(rx, x);
    out.later = sl_rx_cat(rx, id, rest.later);
    out.at_start = out.later;
    /* Where the part is empty, the start is still ahead. */
    if (rest.at_start != rest.later && sl_rx_nullable(rx, id)) {
        sl_rx_id some = sl_rx_and2(rx, id, sl_rx_not(rx, SL_RX_EPS));
        out.at_start = sl_rx_or2(rx, rest.at_start, sl_rx_cat(rx, some, rest.later));
    }
    return out;
}

int sl_regex_parse(struct sl_rx *rx, const char *pattern, size_t n, unsigned flags,
                   enum sl_spelling spelling, sl_rx_id *out, struct sl_error *err)
{
    struct parser p = {.rx = rx,
                       .s = pattern,
                       .n = n,
                       .flags = flags,
                       .spelling = spelling,
                       .err = err,
                       .arena.max_bytes = 32u << 20};
    *out = SL_RX_NONE;
    if (n > SL_MAX_REGEX)
        return sl_fail(err, SL_ELIMIT, "regex: %zu bytes, more than %u", n, SL_MAX_REGEX);
    while (regex_peek(&p, "(?i)") || regex_peek(&p, "(?s)")) {
        p.flags |= regex_peek(&p, "(?i)") ? SL_REGEX_ICASE : SL_REGEX_DOT_ALL;
        p.at += 4;
    }
    struct part *x = parse_alt(&p);
    if (p.rc == 0 && p.at < n)
        FAIL(&p, SL_EINVAL, "unbalanced ')'");
    SL_ASSERT(p.rc != 0 || (p.at == n && p.depth == 0 && x != NULL));
    if (p.rc == 0) {
        bool search = (flags & SL_REGEX_SEARCH) != 0;
        sl_rx_id c = sl_cset_any(rx, spelling), any = sl_rx_rep(rx, c, 0, SL_RX_INF);
        sl_rx_id end = search ? any : SL_RX_EPS;
        struct suffix s = regex_build(rx, x, (struct suffix){end, end}, any);
        *out = s.at_start;
        if (search) {
            bool same = s.at_start == s.later;
            s.later = sl_rx_behind_any(rx, c, s.later);
            s.at_start = same ? s.later : s.at_start;
        }
        if (search && s.at_start == s.later)
            *out = sl_rx_cat(rx, any, s.later);
        else if (search)
            *out = sl_rx_or2(rx, *out, sl_rx_cat(rx, sl_rx_rep(rx, c, 1, SL_RX_INF), s.later));
        p.rc = sl_rx_check(rx, err);
    }
    sl_arena_deinit(&p.arena);
    return p.rc;
}
