/* SPDX-License-Identifier: MIT
 * tok_regex.c - pre-tokenizer patterns on PCRE2.
 *
 * Patterns come from model files, so a match may not take for ever: PCRE2's limits end exponential
 * ones, and looking for the next match goes on in steps of SEARCH_STEP start positions with a
 * budget of time that grows with the text, which ends quadratic ones. Three spellings mean
 * something else to PCRE2 than to the engines patterns are written for and are rewritten: \s (PCRE2
 * counts U+180E), \w (PCRE2 leaves marks out) and \p{Han} (PCRE2 takes script extensions).
 */
#include "base/check.h"
#include "base/limits.h"
#include "base/str.h"
#include "base/sys.h"
#include "text/tokenizer/tok.h"

#include <string.h>

#define PCRE2_CODE_UNIT_WIDTH 8
#include <pcre2.h>

#define SEARCH_STEP    64
#define MATCH_LIMIT    20000000u
#define HEAP_LIMIT_KB  (256u << 10)
#define DEPTH_LIMIT    1000000u
#define JIT_STACK_MAX  (4u << 20)
#define BUDGET_NS      2000000000u /* plus BUDGET_NS_BYTE for each byte of text */
#define BUDGET_NS_BYTE 2000u

struct tok_regex {
    pcre2_general_context *general;
    pcre2_code *code;
    bool jit;
};

static void *re_alloc(size_t n, void *arg)
{
    (void)arg;
    return sl_malloc(n);
}

static void re_free(void *p, void *arg)
{
    (void)arg;
    sl_free(p);
}

/* Inside of a character class that says what \s or \w is; NULL for other escapes. */
static const char *class_of_escape(char c)
{
    if (c == 's' || c == 'S')
        return "\\x{09}-\\x{0d}\\x{85}\\p{Z}";
    if (c == 'w' || c == 'W')
        /* with the superscripts and fractions of Latin-1, as Oniguruma has it */
        return "\\p{L}\\p{M}\\p{Nd}\\p{Nl}\\p{Pc}\\x{b2}\\x{b3}\\x{b9}\\x{bc}-\\x{be}"
               "\\x{24b6}-\\x{24e9}\\x{1f130}-\\x{1f149}\\x{1f150}-\\x{1f169}"
               "\\x{1f170}-\\x{1f189}";
    return NULL;
}

/* Rewrites the spellings that differ; everything else stays as it is. A negated escape inside a
 * class has no such spelling and stays too. Returns false for classes within classes, which PCRE2
 * would read as something else without a word. */
static bool translate(struct sl_buf *out, const char *p, size_t n)
{
    bool in_class = false;
    for (size_t i = 0; i < n; i++) {
        if (p[i] == '\\' && i + 1 < n) {
            const char *inside = class_of_escape(p[i + 1]);
            bool negated = p[i + 1] == 'S' || p[i + 1] == 'W';
            if (inside != NULL && !(negated && in_class)) {
                sl_buf_puts(out, in_class ? "" : negated ? "[^" : "[");
                sl_buf_puts(out, inside);
                sl_buf_puts(out, in_class ? "" : "]");
                i++;
            } else if (n - i >= 7 && memcmp(p + i, "\\p{Han}", 7) == 0) {
                sl_buf_puts(out, "\\p{sc:Han}");
                i += 6;
            } else {
                sl_buf_put(out, p + i, 2);
                i++;
            }
            continue;
        }
        bool named = p[i] == '[' && i + 1 < n && p[i + 1] == ':';
        if (in_class && ((p[i] == '[' && !named) || (n - i >= 2 && memcmp(p + i, "&&", 2) == 0)))
            return false;
        if (named && in_class) { /* [:alpha:] goes over whole */
            const char *end = memmem(p + i, n - i, ":]", 2);
            size_t len = end != NULL ? (size_t)(end - p) + 2 - i : 1;
            sl_buf_put(out, p + i, len);
            i += len - 1;
            continue;
        }
        sl_buf_putc(out, p[i]);
        if (p[i] == '[') {
            in_class = true;
            if (i + 1 < n && p[i + 1] == '^')
                sl_buf_putc(out, p[++i]);
            if (i + 1 < n && p[i + 1] == ']') /* the first one is a character */
                sl_buf_putc(out, p[++i]);
        } else if (p[i] == ']') {
            in_class = false;
        }
    }
    return true;
}

int tok_regex_create(const char *pattern, size_t n, struct tok_regex **out, struct sl_error *err)
{
    struct sl_buf text = {0};
    int code = 0, rc = 0;
    PCRE2_SIZE at = 0;
    PCRE2_UCHAR why[120];
    if (n > SL_MAX_REGEX)
        return sl_fail(err, SL_ELIMIT, "pre-tokenizer pattern of %zu bytes", n);
    struct tok_regex *re = sl_calloc(1, sizeof(*re));
    if (re == NULL)
        return sl_fail(err, SL_ENOMEM, "pre-tokenizer pattern");
    re->general = pcre2_general_context_create(re_alloc, re_free, NULL);
    if (!translate(&text, pattern, n)) {
        rc = sl_fail(err, SL_EUNSUPPORTED, "pre-tokenizer pattern: a class within a class");
        goto fail;
    }
    if (re->general == NULL || !sl_buf_ok(&text)) {
        rc = sl_fail(err, SL_ENOMEM, "pre-tokenizer pattern");
        goto fail;
    }
    pcre2_compile_context *cc = pcre2_compile_context_create(re->general);
    if (cc != NULL) {
        pcre2_set_parens_nest_limit(cc, 100);
        re->code =
            pcre2_compile((PCRE2_SPTR)(text.data != NULL ? text.data : ""), text.n_bytes,
                          PCRE2_UTF | PCRE2_UCP | PCRE2_USE_OFFSET_LIMIT | PCRE2_NEVER_BACKSLASH_C,
                          &code, &at, cc);
        pcre2_compile_context_free(cc);
    }
    if (re->code == NULL) {
        why[0] = '\0';
        pcre2_get_error_message(code, why, sizeof(why));
        rc = cc == NULL || code == PCRE2_ERROR_HEAP_FAILED
                 ? sl_fail(err, SL_ENOMEM, "pre-tokenizer pattern")
                 : sl_fail(err, SL_EUNSUPPORTED, "pre-tokenizer pattern: %s at byte %zu",
                           (const char *)why, (size_t)at);
        goto fail;
    }
    /* Without JIT (hardened kernels refuse executable memory) the interpreter does the same. */
    re->jit = pcre2_jit_compile(re->code, PCRE2_JIT_COMPLETE) == 0;
    sl_buf_deinit(&text);
    *out = re;
    return 0;
fail:
    sl_buf_deinit(&text);
    tok_regex_destroy(re);
    return rc;
}

void tok_regex_destroy(struct tok_regex *re)
{
    if (re == NULL)
        return;
    pcre2_code_free(re->code);
    pcre2_general_context_free(re->general);
    sl_free(re);
}

/* The text with U+FFFD for each invalid byte, and where those bytes are; and with stand-ins, which
 * move nothing, for characters that PCRE2 may know as something else. */
struct patched {
    struct sl_buf text;
    struct sl_buf at; /* size_t each: offset in the patched text */
    size_t i;         /* next entry when translating offsets, which only grow */
};

static bool needs_patch(const char *s, size_t n)
{
    for (size_t i = 0, len; i < n; i += len) {
        uint32_t cp;
        len = 1;
        if ((uint8_t)s[i] < 0x80)
            continue;
        len = sl_utf8_decode(s + i, n - i, &cp);
        if (len == 0 || tok_uni_stand_in(cp) != cp)
            return true;
    }
    return false;
}

static void put_stand_ins(struct sl_buf *out, const char *s, size_t n)
{
    size_t from = 0;
    for (size_t i = 0, len; i < n; i += len) {
        uint32_t cp;
        len = tok_char(s + i, n - i, &cp);
        uint32_t to = tok_uni_stand_in(cp);
        if (to == cp)
            continue;
        size_t before = out->n_bytes;
        sl_buf_put(out, s + from, i - from);
        tok_put_cp(out, to);
        SL_DCHECK(!sl_buf_ok(out) || out->n_bytes == before + (i - from) + len);
        from = i + len;
    }
    sl_buf_put(out, s + from, n - from);
}

static int patch(struct patched *p, const char *s, size_t n, struct sl_error *err)
{
    while (n > 0) {
        size_t good = tok_valid_prefix(s, n);
        put_stand_ins(&p->text, s, good);
        s += good;
        n -= good;
        if (n == 0)
            break;
        size_t at = p->text.n_bytes;
        sl_buf_put(&p->at, &at, sizeof(at));
        sl_buf_put(&p->text, "\xEF\xBF\xBD", 3);
        s++;
        n--;
    }
    if (!sl_buf_ok(&p->text) || !sl_buf_ok(&p->at))
        return sl_fail(err, SL_ENOMEM, "text of %zu bytes", n);
    return 0;
}

static size_t unpatch(struct patched *p, size_t off)
{
    const char *at = p->at.data;
    size_t n = p->at.n_bytes / sizeof(size_t), v;
    for (; p->i < n; p->i++) {
        memcpy(&v, at + p->i * sizeof(v), sizeof(v));
        if (v >= off)
            break;
    }
    return off - 2 * p->i;
}

struct tok_search { /* belongs to one call of encode: matching allocates, but not per word */
    pcre2_general_context *general;
    pcre2_match_data *md;
    pcre2_match_context *mc;
    pcre2_jit_stack *stack;
    uint64_t deadline_ns;
};

struct tok_search *tok_search_create(size_t n_bytes, struct sl_error *err)
{
    struct tok_search *f = sl_calloc(1, sizeof(*f));
    if (f != NULL && (f->general = pcre2_general_context_create(re_alloc, re_free, NULL)) != NULL) {
        f->md = pcre2_match_data_create(1, f->general);
        f->mc = pcre2_match_context_create(f->general);
    }
    if (f == NULL || f->md == NULL || f->mc == NULL) {
        tok_search_destroy(f);
        (void)sl_fail(err, SL_ENOMEM, "pre-tokenizer pattern");
        return NULL;
    }
    pcre2_set_match_limit(f->mc, MATCH_LIMIT);
    pcre2_set_heap_limit(f->mc, HEAP_LIMIT_KB);
    pcre2_set_depth_limit(f->mc, DEPTH_LIMIT);
    f->stack = pcre2_jit_stack_create(32 << 10, JIT_STACK_MAX, f->general);
    if (f->stack != NULL)
        pcre2_jit_stack_assign(f->mc, NULL, f->stack);
    f->deadline_ns = sl_now_ns() + BUDGET_NS + n_bytes * BUDGET_NS_BYTE;
    return f;
}

void tok_search_destroy(struct tok_search *f)
{
    if (f == NULL)
        return;
    pcre2_jit_stack_free(f->stack);
    pcre2_match_context_free(f->mc);
    pcre2_match_data_free(f->md);
    pcre2_general_context_free(f->general);
    sl_free(f);
}

/* 1: a match, 0: none from pos on, or an error. */
static int search_next(struct tok_search *f, const struct tok_regex *re, const char *s, size_t n,
                       size_t pos, size_t *start, size_t *end, struct sl_error *err)
{
    while (pos <= n) {
        size_t last = SL_MIN(n, pos + SEARCH_STEP);
        while (last < n && ((uint8_t)s[last] & 0xC0) == 0x80)
            last++;
        pcre2_set_offset_limit(f->mc, last);
        int rc = pcre2_match(re->code, (PCRE2_SPTR)s, n, pos, PCRE2_NO_UTF_CHECK, f->md, f->mc);
        if (rc == PCRE2_ERROR_JIT_STACKLIMIT)
            rc = pcre2_match(re->code, (PCRE2_SPTR)s, n, pos, PCRE2_NO_UTF_CHECK | PCRE2_NO_JIT,
                             f->md, f->mc);
        if (rc >= 0) {
            const PCRE2_SIZE *ov = pcre2_get_ovector_pointer(f->md);
            *start = ov[0];
            *end = ov[1];
            if (*start > *end || *start < pos) /* \K in a look-ahead */
                return sl_fail(err, SL_EUNSUPPORTED, "pre-tokenizer pattern matches backwards");
            return 1;
        }
        if (rc != PCRE2_ERROR_NOMATCH) {
            PCRE2_UCHAR why[120];
            pcre2_get_error_message(rc, why, sizeof(why));
            return sl_fail(err, rc == PCRE2_ERROR_NOMEMORY ? SL_ENOMEM : SL_ELIMIT,
                           "pre-tokenizer pattern: %s", (const char *)why);
        }
        if (last >= n)
            return 0;
        pos = last + 1;
        while (pos < n && ((uint8_t)s[pos] & 0xC0) == 0x80)
            pos++;
        if (sl_now_ns() > f->deadline_ns)
            return sl_fail(err, SL_ELIMIT, "pre-tokenizer pattern takes too long");
    }
    return 0;
}

int tok_regex_each(const struct tok_regex *re, struct tok_search *search, const char *s, size_t n,
                   tok_match_fn fn, void *arg, struct sl_error *err)
{
    struct patched p = {0};
    struct tok_search *f = search != NULL ? search : tok_search_create(n, err);
    bool patched = needs_patch(s, n);
    size_t pos = 0, start = 0, end = 0, last_end = SIZE_MAX, n_matches = 0;
    int rc = 0;
    if (f == NULL)
        return SL_ENOMEM;
    if (patched) {
        if ((rc = patch(&p, s, n, err)) != 0)
            goto out;
        s = p.text.data;
        n = p.text.n_bytes;
    }
    while (pos <= n && (rc = search_next(f, re, s, n, pos, &start, &end, err)) > 0) {
        pos = end;
        if (start == end) {
            pos++;
            while (pos < n && ((uint8_t)s[pos] & 0xC0) == 0x80)
                pos++;
        }
        rc = 0;
        if (end > start || last_end != end) { /* no empty match right behind another match */
            size_t a = patched ? unpatch(&p, start) : start;
            size_t b = patched ? unpatch(&p, end) : end;
            if ((rc = fn(arg, a, b)) != 0)
                break;
        }
        last_end = end;
        if ((++n_matches & 1023) == 0 && sl_now_ns() > f->deadline_ns) {
            rc = sl_fail(err, SL_ELIMIT, "pre-tokenizer pattern takes too long");
            break;
        }
    }
out:
    if (search == NULL)
        tok_search_destroy(f);
    sl_buf_deinit(&p.text);
    sl_buf_deinit(&p.at);
    return rc;
}
