/* SPDX-License-Identifier: MIT
 * ebnf_parse.c - GBNF and Lark to rules. Lark: rules and terminals, strings, /regexes/, ranges,
 * ? * + ~n..m, [optional], aliases (ignored), %ignore, %json, %import of Lark's own module common.
 * Templates are refused, and so are other modules.
 * Of llguidance's additions: %llguidance {} and name[capture], which do not change the language.
 */
#include "base/check.h"
#include "base/hash.h"
#include "base/json_load.h"
#include "base/str.h"
#include "base/sys.h"
#include "grammar/ebnf_impl.h"
#include "grammar/regex.h"

#include <string.h>

enum { MAX_DEPTH = 200, MAX_RULES = 100000 };

void sl_ebnf_fail(struct sl_ebnf *g, int code, const char *what, const char *name, size_t n)
{
    if (g->rc == 0)
        g->rc = sl_fail(g->err, code, "grammar: line %u: %s%s%.*s", g->line, what, n > 0 ? " " : "",
                        (int)SL_MIN(n, 60), n > 0 ? name : "");
}

static void ebnf_parse_fail(struct sl_ebnf *g, int code, const char *what)
{
    sl_ebnf_fail(g, code, what, NULL, 0);
}

static struct sl_ebnf_expr *new_expr(struct sl_ebnf *g, enum sl_ebnf_op op)
{
    SL_ASSERT(op <= EBNF_JSON);
    struct sl_ebnf_expr *x = sl_arena_alloc(&g->arena, sizeof *x);
    if (x == NULL)
        ebnf_parse_fail(g, SL_ELIMIT, "the grammar is too large");
    else
        x->op = op;
    return x;
}

static struct sl_ebnf_expr *rx_expr(struct sl_ebnf *g, sl_rx_id rx)
{
    struct sl_ebnf_expr *x = new_expr(g, EBNF_RX);
    if (x != NULL)
        x->rx = rx;
    return x;
}

static void ebnf_parse_add_kid(struct sl_ebnf_expr *x, struct sl_ebnf_expr *kid)
{
    if (x == NULL || kid == NULL)
        return;
    SL_ASSERT(kid != x && kid->next == NULL); /* a tree: every part has one place */
    kid->next = x->kids;
    x->kids = kid;
}

uint32_t sl_ebnf_rule(struct sl_ebnf *g, const char *name, size_t n)
{
    SL_ASSERT(n > 0 && name != NULL);
    if (g->n_rules * 2 >= g->cap_table) {
        uint32_t cap = g->cap_table == 0 ? 256 : g->cap_table * 2, *t = sl_calloc(cap, sizeof *t);
        struct sl_ebnf_rule *r = sl_realloc(g->rules, cap / 2 * sizeof *r);
        if (r != NULL)
            g->rules = r;
        if (t == NULL || r == NULL || g->n_rules > MAX_RULES) {
            sl_free(t);
            ebnf_parse_fail(g, SL_ELIMIT, "too many rules");
            return 0;
        }
        for (uint32_t i = 0; i < g->n_rules; i++) {
            uint64_t h = sl_hash64(g->rules[i].name, g->rules[i].n, 0);
            while (t[h & (cap - 1)] != 0)
                h++;
            t[h & (cap - 1)] = i + 1;
        }
        sl_free(g->table);
        g->table = t;
        g->cap_table = cap;
    }
    uint64_t h = sl_hash64(name, n, 0);
    for (uint32_t i; (i = g->table[h & (g->cap_table - 1)]) != 0; h++)
        if (g->rules[i - 1].n == n && memcmp(g->rules[i - 1].name, name, n) == 0)
            return i - 1;
    SL_ASSERT(g->n_rules < g->cap_table / 2); /* a free place ends every search */
    bool upper = n > 0 && ((name[0] >= 'A' && name[0] <= 'Z') ||
                           (name[0] == '_' && n > 1 && name[1] >= 'A' && name[1] <= 'Z'));
    g->rules[g->n_rules] =
        (struct sl_ebnf_rule){.name = name, .n = n, .terminal = g->lark && upper, .line = g->line};
    g->table[h & (g->cap_table - 1)] = ++g->n_rules;
    return g->n_rules - 1;
}

/* ---------------------------------------------------------------- lexical parts */

static char ebnf_parse_peek(const struct sl_ebnf *g)
{
    return g->at < g->size ? g->s[g->at] : 0;
}

static bool looking_at(const struct sl_ebnf *g, const char *s)
{
    size_t n = strlen(s);
    SL_ASSERT(g->at <= g->size);
    return g->size - g->at >= n && memcmp(g->s + g->at, s, n) == 0;
}

static bool ebnf_parse_take(struct sl_ebnf *g, const char *s)
{
    bool yes = looking_at(g, s);
    g->at += yes ? strlen(s) : 0;
    return yes;
}

static void ebnf_parse_skip_space(struct sl_ebnf *g)
{
    for (;;) {
        char c = ebnf_parse_peek(g);
        bool comment = c == '#' || (g->lark && looking_at(g, "//"));
        if (comment)
            while (g->at < g->size && ebnf_parse_peek(g) != '\n')
                g->at++;
        else if (c == '\n' || c == ' ' || c == '\t' || c == '\r')
            g->line += g->s[g->at++] == '\n';
        else
            return;
    }
}

static bool name_char(const struct sl_ebnf *g, char c)
{
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '_' ||
           (c == '-' && !g->lark);
}

static size_t name_len(const struct sl_ebnf *g)
{
    size_t n = 0;
    while (g->at + n < g->size && name_char(g, g->s[g->at + n]))
        n++;
    SL_ASSERT(g->at + n <= g->size);
    return n;
}

/* Is a new rule beginning here? */
static bool at_rule(const struct sl_ebnf *g)
{
    struct sl_ebnf look = *g;
    if (g->lark && ebnf_parse_peek(g) == '%')
        return !looking_at(g, "%json");
    if (g->lark && (ebnf_parse_peek(g) == '?' || ebnf_parse_peek(g) == '!'))
        look.at++;
    size_t n = name_len(&look);
    look.at += n;
    if (g->lark && ebnf_parse_peek(&look) == '.') {
        look.at++;
        look.at += name_len(&look);
    }
    if (g->lark && ebnf_parse_peek(&look) == '[') /* attributes: without a space before them */
        do
            look.at++;
        while (look.at < look.size && strchr("\n[", ebnf_parse_peek(&look)) == NULL &&
               !ebnf_parse_take(&look, "]"));
    while (ebnf_parse_peek(&look) == ' ' || ebnf_parse_peek(&look) == '\t')
        look.at++;
    SL_ASSERT(look.at <= look.size);
    return n > 0 && (g->lark ? ebnf_parse_peek(&look) == ':' : looking_at(&look, "::="));
}

static uint32_t ebnf_parse_hex(struct sl_ebnf *g, size_t n)
{
    uint64_t v = 0;
    SL_ASSERT(n <= 8 && g->at <= g->size);
    if (g->size - g->at < n || !sl_parse_hex_u64(g->s + g->at, n, &v) || v > 0x10FFFF) {
        ebnf_parse_fail(g, SL_EINVAL, "hexadecimal digits are missing");
        return 0;
    }
    g->at += n;
    return (uint32_t)v;
}

static uint32_t character(struct sl_ebnf *g)
{
    uint32_t cp = 0;
    size_t k = sl_utf8_decode(g->s + g->at, g->size - g->at, &cp);
    if (k == 0)
        ebnf_parse_fail(g, SL_EINVAL, "invalid UTF-8");
    g->at += k;
    SL_ASSERT(g->at <= g->size && cp <= 0x10FFFF);
    if (cp == '\n')
        g->line++;
    if (cp != '\\')
        return cp;
    char c = ebnf_parse_peek(g);
    g->at += c != 0;
    switch (c) {
    case 'n':
        return '\n';
    case 'r':
        return '\r';
    case 't':
        return '\t';
    case 'f':
        return '\f';
    case 'x':
        return ebnf_parse_hex(g, 2);
    case 'u':
        return ebnf_parse_hex(g, 4);
    case 'U':
        return ebnf_parse_hex(g, 8);
    default:
        if (c == 0 || (c >= 'a' && c <= 'z') || (c >= '0' && c <= '9'))
            ebnf_parse_fail(g, SL_EINVAL, "unknown escape");
        return (uint8_t)c;
    }
}

/* A string in quotes, as UTF-8 into out (of the arena). */
static char *string(struct sl_ebnf *g, size_t *n)
{
    size_t cap = 16;
    SL_ASSERT(ebnf_parse_peek(g) == '"');
    char *out = sl_arena_alloc(&g->arena, cap);
    *n = 0;
    g->at++;
    while (g->rc == 0 && ebnf_parse_peek(g) != '"') {
        if (g->at >= g->size) {
            ebnf_parse_fail(g, SL_EINVAL, "a string does not end");
            break;
        }
        if (*n + 4 > cap) {
            char *more = sl_arena_alloc(&g->arena, cap * 2);
            if (more != NULL && out != NULL)
                memcpy(more, out, *n);
            out = more;
            cap *= 2;
        }
        if (out == NULL) {
            ebnf_parse_fail(g, SL_ELIMIT, "the grammar is too large");
            break;
        }
        size_t k = sl_utf8_encode(character(g), out + *n);
        if (k == 0)
            ebnf_parse_fail(g, SL_EINVAL, "half of a surrogate pair is no character");
        *n += k;
        SL_ASSERT(*n <= cap);
    }
    g->at += g->at < g->size;
    return out;
}

/* Text whose letters of ASCII may be of either case. */
static sl_rx_id in_any_case(struct sl_ebnf *g, const char *s, size_t n)
{
    sl_rx_id id = SL_RX_EPS;
    for (size_t at = 0; at < n;) {
        struct sl_cset set = {0};
        uint32_t cp;
        size_t k = sl_utf8_decode(s + at, n - at, &cp);
        SL_ASSERT(k > 0); /* string() wrote it */
        sl_cset_add(&set, cp, cp);
        sl_cset_done(&set);
        sl_cset_fold_ascii(&set);
        if (set.failed)
            ebnf_parse_fail(g, SL_ENOMEM, "out of memory");
        id = sl_rx_cat(&g->a->rx, id, sl_cset_rx(&g->a->rx, &set, g->options->spelling));
        sl_cset_deinit(&set);
        at += k;
    }
    return id;
}

static struct sl_ebnf_expr *ebnf_parse_literal(struct sl_ebnf *g)
{
    struct sl_rx *rx = &g->a->rx;
    size_t n;
    const char *s = string(g, &n);
    if (g->rc != 0)
        return NULL;
    if (g->lark && looking_at(g, "..")) { /* "a".."z" */
        uint32_t lo, hi;
        size_t m;
        g->at += 2;
        if (ebnf_parse_peek(g) != '"') {
            ebnf_parse_fail(g, SL_EINVAL, "a range needs two strings");
            return NULL;
        }
        const char *t = string(g, &m);
        if (g->rc != 0)
            return NULL;
        if (sl_utf8_decode(s, n, &lo) != n || sl_utf8_decode(t, m, &hi) != m || n == 0 || hi < lo) {
            ebnf_parse_fail(g, SL_EINVAL, "a range needs two characters in order");
            return NULL;
        }
        SL_ASSERT(lo <= hi && hi <= 0x10FFFF);
        struct sl_cset set = {0};
        sl_cset_add(&set, lo, hi);
        sl_rx_id id = sl_cset_rx(rx, &set, g->options->spelling);
        sl_cset_deinit(&set);
        return rx_expr(g, id);
    }
    if (g->lark && ebnf_parse_take(g, "i"))
        return rx_expr(g, in_any_case(g, s, n));
    return rx_expr(g, sl_cset_text(rx, s, n, g->options->spelling));
}

static struct sl_ebnf_expr *char_class(struct sl_ebnf *g)
{
    struct sl_cset set = {0};
    SL_ASSERT(ebnf_parse_peek(g) == '[');
    g->at++;
    bool negated = ebnf_parse_take(g, "^");
    while (g->rc == 0 && !ebnf_parse_take(g, "]")) {
        if (g->at >= g->size) {
            ebnf_parse_fail(g, SL_EINVAL, "']' is missing");
            break;
        }
        uint32_t lo = character(g), hi = lo;
        if (ebnf_parse_peek(g) == '-' && g->at + 1 < g->size && g->s[g->at + 1] != ']') {
            g->at++;
            hi = character(g);
        }
        if (hi < lo)
            ebnf_parse_fail(g, SL_EINVAL, "a range runs backwards");
        sl_cset_add(&set, lo, hi);
    }
    if (negated)
        sl_cset_negate(&set);
    if (set.failed)
        ebnf_parse_fail(g, SL_ENOMEM, "out of memory");
    sl_rx_id id = g->rc == 0 ? sl_cset_rx(&g->a->rx, &set, g->options->spelling) : SL_RX_NONE;
    sl_cset_deinit(&set);
    return rx_expr(g, id);
}

static struct sl_ebnf_expr *regex_of(struct sl_ebnf *g, const char *s, size_t n, unsigned flags)
{
    sl_rx_id id = SL_RX_NONE;
    int rc = g->rc;
    if (rc == 0)
        rc = sl_regex_parse(&g->a->rx, s, n, flags, g->options->spelling, &id, g->err);
    if (rc != 0 && g->rc == 0)
        g->rc = sl_error_prefix(g->err, rc, "grammar: line %u", g->line);
    return rx_expr(g, id);
}

static struct sl_ebnf_expr *ebnf_parse_regex(struct sl_ebnf *g)
{
    size_t from = ++g->at;
    bool in_class = false;
    for (; g->at < g->size && (in_class || g->s[g->at] != '/'); g->at++) {
        char c = g->s[g->at];
        if (c == '\\')
            g->at += g->at + 1 < g->size;
        else if (c == '[' || c == ']')
            in_class = c == '[';
        else if (c == '\n')
            break;
    }
    if (g->at >= g->size || g->s[g->at] != '/') {
        ebnf_parse_fail(g, SL_EINVAL, "a regular expression does not end");
        return NULL;
    }
    size_t n = g->at++ - from;
    SL_ASSERT(from + n < g->size && g->at <= g->size);
    unsigned flags = 0;
    for (; ebnf_parse_peek(g) == 'i' || ebnf_parse_peek(g) == 's' || ebnf_parse_peek(g) == 'u';
         g->at++)
        flags |= ebnf_parse_peek(g) == 'i'   ? SL_REGEX_ICASE
                 : ebnf_parse_peek(g) == 's' ? SL_REGEX_DOT_ALL
                                             : 0;
    return regex_of(g, g->s + from, n, flags);
}

/* %json { schema } */
static struct sl_ebnf_expr *json(struct sl_ebnf *g)
{
    json_error_t why;
    struct sl_schema_options options = {0};
    uint32_t node = 0;
    if (g->options->spelling != SL_SPELL_UTF8) {
        ebnf_parse_fail(g, SL_EUNSUPPORTED,
                        "%json is not supported in the content of a JSON string");
        return NULL;
    }
    ebnf_parse_skip_space(g);
    json_t *doc =
        sl_json_load(g->s + g->at, g->size - g->at, JSON_DISABLE_EOF_CHECK | JSON_ALLOW_NUL, &why);
    if (doc == NULL) {
        sl_ebnf_fail(g, SL_EINVAL, "%json:", why.text, strlen(why.text));
        return NULL;
    }
    for (int i = 0; i < why.position && g->at < g->size; i++)
        g->line += g->s[g->at++] == '\n';
    SL_ASSERT(g->at <= g->size);
    int rc = sl_schema_add(&g->a->schema, doc, &options, &node, g->err);
    json_decref(doc);
    struct sl_ebnf_expr *x = new_expr(g, EBNF_JSON);
    if (rc != 0 || x == NULL)
        g->rc = g->rc != 0 ? g->rc : rc;
    else
        x->goal = sl_auto_json_goal(g->a, node);
    return x;
}

/* ---------------------------------------------------------------- expressions */

static struct sl_ebnf_expr *ebnf_parse_alternatives(struct sl_ebnf *g);

static struct sl_ebnf_expr *ebnf_parse_repeat(struct sl_ebnf *g, struct sl_ebnf_expr *kid,
                                              int32_t lo, int32_t hi)
{
    SL_ASSERT(g->rc != 0 || (lo >= 0 && (hi == SL_RX_INF || hi >= lo) && kid != NULL));
    struct sl_ebnf_expr *x = new_expr(g, EBNF_REP);
    if (x == NULL)
        return NULL;
    x->lo = lo;
    x->hi = hi;
    ebnf_parse_add_kid(x, kid);
    return x;
}

static struct sl_ebnf_expr *nested(struct sl_ebnf *g, const char *close)
{
    g->at++;
    if (++g->depth > MAX_DEPTH)
        ebnf_parse_fail(g, SL_ELIMIT, "groups are nested too deeply");
    struct sl_ebnf_expr *x = g->rc == 0 ? ebnf_parse_alternatives(g) : NULL;
    SL_ASSERT(g->depth > 0);
    g->depth--;
    if (g->rc == 0 && !ebnf_parse_take(g, close))
        sl_ebnf_fail(g, SL_EINVAL, "missing", close, 1);
    return x;
}

static struct sl_ebnf_expr *atom(struct sl_ebnf *g)
{
    char c = ebnf_parse_peek(g);
    if (c == '"')
        return ebnf_parse_literal(g);
    if (c == '(')
        return nested(g, ")");
    if (c == '[' && g->lark)
        return ebnf_parse_repeat(g, nested(g, "]"), 0, 1);
    if (c == '[')
        return char_class(g);
    if (c == '/' && g->lark)
        return ebnf_parse_regex(g);
    if (ebnf_parse_take(g, "%json"))
        return json(g);
    if (c == '.' && !g->lark) {
        g->at++;
        return rx_expr(g, sl_cset_any(&g->a->rx, g->options->spelling));
    }
    size_t n = name_len(g);
    if (n == 0) {
        sl_ebnf_fail(g, SL_EINVAL, "unexpected", g->s + g->at, g->at < g->size);
        return NULL;
    }
    struct sl_ebnf_expr *x = new_expr(g, EBNF_REF);
    SL_ASSERT(g->at + n <= g->size);
    if (x != NULL)
        x->rule = sl_ebnf_rule(g, g->s + g->at, n);
    g->at += n;
    if (g->lark && ebnf_parse_peek(g) == '{')
        ebnf_parse_fail(g, SL_EUNSUPPORTED, "templates are not supported");
    return x;
}

static bool ebnf_parse_number(struct sl_ebnf *g, int32_t *out)
{
    size_t n = 0;
    uint64_t v;
    while (g->at + n < g->size && g->s[g->at + n] >= '0' && g->s[g->at + n] <= '9')
        n++;
    if (!sl_parse_u64(g->s + g->at, n, &v))
        return false;
    g->at += n;
    if (v > INT32_MAX - 1)
        ebnf_parse_fail(g, SL_ELIMIT, "a count of more than 2147483646");
    *out = (int32_t)SL_MIN(v, INT32_MAX - 1);
    SL_ASSERT(*out >= 0 && *out < INT32_MAX);
    return true;
}

static struct sl_ebnf_expr *ebnf_parse_quantified(struct sl_ebnf *g)
{
    struct sl_ebnf_expr *x = atom(g);
    int32_t lo = 0, hi = SL_RX_INF;
    size_t back = g->at;
    while (g->lark && (ebnf_parse_peek(g) == ' ' || ebnf_parse_peek(g) == '\t'))
        g->at++;
    if (g->rc != 0)
        return x;
    if (ebnf_parse_take(g, "*"))
        return ebnf_parse_repeat(g, x, 0, SL_RX_INF);
    if (ebnf_parse_take(g, "+"))
        return ebnf_parse_repeat(g, x, 1, SL_RX_INF);
    if (ebnf_parse_take(g, "?"))
        return ebnf_parse_repeat(g, x, 0, 1);
    if (g->lark ? ebnf_parse_take(g, "~") : ebnf_parse_take(g, "{")) {
        ebnf_parse_skip_space(g);
        bool ok = ebnf_parse_number(g, &lo), open = false;
        hi = lo;
        if (g->lark ? ebnf_parse_take(g, "..") : ebnf_parse_take(g, ",")) {
            ebnf_parse_skip_space(g);
            open = !ebnf_parse_number(g, &hi);
            hi = open ? SL_RX_INF : hi;
        }
        ebnf_parse_skip_space(g);
        if (!ok || (g->lark ? open : !ebnf_parse_take(g, "}")) || (hi != SL_RX_INF && hi < lo))
            ebnf_parse_fail(g, SL_EINVAL, "a count is malformed");
        return ebnf_parse_repeat(g, x, lo, hi);
    }
    g->at = back;
    return x;
}

static struct sl_ebnf_expr *ebnf_parse_alternatives(struct sl_ebnf *g)
{
    struct sl_ebnf_expr *alt = new_expr(g, EBNF_ALT);
    do {
        struct sl_ebnf_expr *cat = new_expr(g, EBNF_CAT);
        ebnf_parse_skip_space(g);
        while (g->rc == 0 && g->at < g->size && strchr("|)]", ebnf_parse_peek(g)) == NULL &&
               !at_rule(g)) {
            size_t from = g->at;
            if (g->lark && ebnf_parse_take(g, "->")) { /* an alias: only trees have names */
                ebnf_parse_skip_space(g);
                g->at += name_len(g);
            } else {
                ebnf_parse_add_kid(cat, ebnf_parse_quantified(g));
            }
            SL_ASSERT(g->at > from || g->rc != 0); /* or this goes on for ever */
            ebnf_parse_skip_space(g);
        }
        if (g->rc == 0 && ebnf_parse_peek(g) == ']' && !g->lark)
            ebnf_parse_fail(g, SL_EINVAL, "unexpected ]");
        ebnf_parse_add_kid(alt, cat);
    } while (g->rc == 0 && ebnf_parse_take(g, "|"));
    return alt;
}

/* The language of an expression that has no rules in it, for %ignore. */
static void ignore(struct sl_ebnf *g)
{
    uint32_t rule = sl_ebnf_rule(g, "%ignore", 7);
    struct sl_ebnf_expr *x = ebnf_parse_alternatives(g);
    if (g->rc != 0)
        return;
    g->rules[rule].terminal = true;
    SL_ASSERT(x != NULL && x->op == EBNF_ALT && x->kids != NULL);
    if (g->rules[rule].body == NULL)
        g->rules[rule].body = x;
    else
        for (struct sl_ebnf_expr *k = x->kids, *next; k != NULL; k = next) {
            next = k->next;
            k->next = NULL;
            ebnf_parse_add_kid(g->rules[rule].body, k);
        }
}

/* One terminal of module common, under its own name or another one. */
static void import_one(struct sl_ebnf *g, bool may_rename)
{
    const char *name = g->s + g->at, *as = name;
    size_t n = name_len(g), n_as = n;
    g->at += n;
    const char *pattern = sl_ebnf_common(name, n);
    if (pattern == NULL) {
        sl_ebnf_fail(g, SL_EINVAL, "module common has no terminal", name, n);
        return;
    }
    if (may_rename) {
        ebnf_parse_skip_space(g);
        if (ebnf_parse_take(g, "->")) {
            ebnf_parse_skip_space(g);
            as = g->s + g->at;
            n_as = name_len(g);
            g->at += n_as;
        }
    }
    if (n_as == 0) {
        ebnf_parse_fail(g, SL_EINVAL, "a name is missing behind ->");
        return;
    }
    SL_ASSERT(g->at <= g->size);
    uint32_t rule = sl_ebnf_rule(g, as, n_as);
    SL_ASSERT(g->rc != 0 || rule < g->n_rules);
    struct sl_ebnf_expr *x = regex_of(g, pattern, strlen(pattern), 0);
    struct sl_ebnf_expr *alt = new_expr(g, EBNF_ALT), *cat = new_expr(g, EBNF_CAT);
    if (g->rc == 0 && g->rules[rule].body != NULL)
        sl_ebnf_fail(g, SL_EINVAL, "defined twice:", as, n_as);
    if (g->rc != 0)
        return;
    ebnf_parse_add_kid(cat, x);
    ebnf_parse_add_kid(alt, cat);
    g->rules[rule].body = alt;
    g->rules[rule].terminal = true;
}

/* %import common.NAME, common.NAME -> OTHER, common (NAME, NAME) */
static void import(struct sl_ebnf *g)
{
    ebnf_parse_skip_space(g);
    if (ebnf_parse_take(g, "common.")) {
        import_one(g, true);
        return;
    }
    size_t n = name_len(g);
    bool common = n == 6 && looking_at(g, "common");
    if (common) {
        g->at += n;
        ebnf_parse_skip_space(g);
    }
    if (!common || !ebnf_parse_take(g, "(")) {
        ebnf_parse_fail(g, SL_EUNSUPPORTED, "%import knows the terminals of module common only");
        return;
    }
    do {
        ebnf_parse_skip_space(g);
        import_one(g, false);
        ebnf_parse_skip_space(g);
    } while (g->rc == 0 && ebnf_parse_take(g, ","));
    if (g->rc == 0 && !ebnf_parse_take(g, ")"))
        ebnf_parse_fail(g, SL_EINVAL, "missing )");
}

/* %llguidance {options}: they would change what is accepted, so that only none of them will do. */
static void llguidance_options(struct sl_ebnf *g)
{
    SL_ASSERT(g->lark && g->rc == 0);
    ebnf_parse_skip_space(g);
    bool empty = ebnf_parse_take(g, "{");
    if (empty)
        ebnf_parse_skip_space(g);
    if (!empty || !ebnf_parse_take(g, "}"))
        ebnf_parse_fail(g, SL_EUNSUPPORTED,
                        "options are not supported: %llguidance must be followed by {}");
}

/* llguidance's attributes of a rule: a capture names the rule's text for the client. Others limit
 * or change what is generated. */
static void attributes(struct sl_ebnf *g)
{
    size_t n_ignored;
    SL_ASSERT(g->at > 0 && g->s[g->at - 1] == '[');
    do {
        ebnf_parse_skip_space(g);
        size_t n = name_len(g);
        if (n != 7 || memcmp(g->s + g->at, "capture", 7) != 0) {
            sl_ebnf_fail(g, SL_EUNSUPPORTED, "attribute is not supported:", g->s + g->at, n);
            return;
        }
        g->at += n;
        ebnf_parse_skip_space(g);
        if (ebnf_parse_take(g, "=")) {
            ebnf_parse_skip_space(g);
            if (ebnf_parse_peek(g) != '"')
                ebnf_parse_fail(g, SL_EINVAL, "the attribute's value must be a string");
            else
                (void)string(g, &n_ignored);
            ebnf_parse_skip_space(g);
        }
    } while (g->rc == 0 && ebnf_parse_take(g, ","));
    if (g->rc == 0 && !ebnf_parse_take(g, "]"))
        ebnf_parse_fail(g, SL_EINVAL, "] is expected after the attributes");
}

int sl_ebnf_parse(struct sl_ebnf *g)
{
    for (ebnf_parse_skip_space(g); g->rc == 0 && g->at < g->size; ebnf_parse_skip_space(g)) {
        if (g->lark && ebnf_parse_take(g, "%ignore")) {
            ignore(g);
            continue;
        }
        if (g->lark && ebnf_parse_take(g, "%import")) {
            import(g);
            continue;
        }
        if (g->lark && ebnf_parse_take(g, "%llguidance")) {
            llguidance_options(g);
            continue;
        }
        if (g->lark && ebnf_parse_peek(g) == '%') {
            g->at++;
            sl_ebnf_fail(g, SL_EUNSUPPORTED, "not supported: %", g->s + g->at, name_len(g));
            break;
        }
        if (!at_rule(g)) {
            ebnf_parse_fail(g, SL_EINVAL,
                            g->lark ? "a rule (name: ...) is expected"
                                    : "a rule (name ::= ...) is expected");
            break;
        }
        g->at += g->lark && (ebnf_parse_peek(g) == '?' || ebnf_parse_peek(g) == '!');
        size_t n = name_len(g);
        uint32_t rule = sl_ebnf_rule(g, g->s + g->at, n);
        g->at += n;
        if (g->lark && ebnf_parse_take(g, "."))
            g->at += name_len(g);
        if (g->lark && ebnf_parse_take(g, "["))
            attributes(g);
        if (g->rc != 0)
            break;
        ebnf_parse_skip_space(g);
        g->at += g->lark ? 1 : 3;
        SL_ASSERT(g->at <= g->size && (g->rc != 0 || rule < g->n_rules));
        if (g->rc == 0 && g->rules[rule].body != NULL)
            sl_ebnf_fail(g, SL_EINVAL, "defined twice:", g->rules[rule].name, n);
        struct sl_ebnf_expr *body = g->rc == 0 ? ebnf_parse_alternatives(g) : NULL;
        if (g->rc == 0 && (ebnf_parse_peek(g) == ')' || ebnf_parse_peek(g) == ']'))
            ebnf_parse_fail(g, SL_EINVAL, "unbalanced bracket");
        if (g->rc == 0)
            g->rules[rule].body = body;
    }
    return g->rc;
}
