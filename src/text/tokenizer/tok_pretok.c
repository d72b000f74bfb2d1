/* SPDX-License-Identifier: MIT
 * tok_pretok.c - pre-tokenizers: from normalised text to the words the model sees.
 *
 * Each step turns a list of spans into a longer one; some also rewrite the text. A first step that
 * is a fast pattern runs a window of words ahead, so that the lists stay short whatever the text's
 * length, and the usual pipeline of one fast pattern makes no list at all.
 */
#include "text/tokenizer/tok.h"
#include "base/check.h"
#include "base/limits.h"
#include "base/sys.h"

#include <string.h>

#define WINDOW 4096 /* words of the first step in flight */

void tok_pre_deinit(struct tok_pre *op)
{
    sl_free(op->str);
    tok_regex_destroy(op->re);
}

static int span_put(struct tok_spans *l, size_t off, size_t len, struct sl_error *err)
{
    if (len == 0)
        return 0;
    if (l->n == l->cap) {
        size_t cap = SL_MAX(l->cap * 2, (size_t)64);
        struct tok_span *grown = sl_realloc(l->v, cap * sizeof(*grown));
        if (grown == NULL)
            return sl_fail(err, SL_ENOMEM, "%zu words", cap);
        l->v = grown;
        l->cap = cap;
    }
    l->v[l->n++] = (struct tok_span){(uint32_t)off, (uint32_t)len};
    return 0;
}

/* ---------------------------------------------------------------- splitting by matches */

/* Receives matches from left to right and puts out pieces by the behaviour. */
struct splitter {
    struct tok_spans *out;
    struct sl_error *err;
    enum tok_behavior behavior;
    bool invert;
    size_t base; /* offset of the piece being split */
    size_t pos;  /* end of what was seen */
    size_t held, held_len;
    bool has_held, held_match, prev_match;
};

static int split_flush(struct splitter *p)
{
    bool had = p->has_held;
    p->has_held = false;
    return had ? span_put(p->out, p->held, p->held_len, p->err) : 0;
}

static int split_hold(struct splitter *p, size_t off, size_t len, bool match)
{
    int rc = split_flush(p);
    p->has_held = true;
    p->held = off;
    p->held_len = len;
    p->held_match = match;
    return rc;
}

static int split_piece(struct splitter *p, size_t start, size_t end, bool match)
{
    size_t off = p->base + start, len = end - start;
    bool join = false;
    match ^= p->invert;
    switch (p->behavior) {
    case SPLIT_ISOLATED:
        return span_put(p->out, off, len, p->err);
    case SPLIT_REMOVED:
        return match ? 0 : span_put(p->out, off, len, p->err);
    case SPLIT_MERGE_PREVIOUS:
        join = match && !p->prev_match && p->has_held;
        break;
    case SPLIT_MERGE_NEXT:
        join = !match && p->has_held && p->held_match;
        break;
    case SPLIT_CONTIGUOUS:
        join = p->has_held && match == p->prev_match;
        break;
    }
    p->prev_match = match;
    if (!join)
        return split_hold(p, off, len, match);
    p->held_len += len;
    p->held_match = match;
    return 0;
}

static int split_match(void *arg, size_t start, size_t end)
{
    struct splitter *p = arg;
    int rc = 0;
    if (start > p->pos)
        rc = split_piece(p, p->pos, start, false);
    p->pos = end;
    return rc != 0 ? rc : split_piece(p, start, end, true);
}

static int split_end(struct splitter *p, size_t n)
{
    int rc = 0;
    if (n > p->pos)
        rc = split_piece(p, p->pos, n, false);
    return rc != 0 ? rc : split_flush(p);
}

static bool in_class(const struct tok_pre *op, uint32_t cp)
{
    unsigned prop = tok_uni_prop(cp);
    switch (op->cls) {
    case CLASS_SPACE:
        return prop & UNI_SPACE;
    case CLASS_NUMERIC:
        return prop & UNI_NUMERIC;
    case CLASS_PUNCT: /* as BERT: all of ASCII that is neither letter, digit, space nor control */
        return prop & UNI_PUNCT;
    case CLASS_DELIMITER:
        break;
    }
    return cp == op->cp;
}

static int split_chars(const struct tok_pre *op, struct splitter *p, const char *s, size_t n)
{
    int rc = 0;
    for (size_t i = 0, len; i < n && rc == 0; i += len) {
        uint32_t cp;
        len = tok_char(s + i, n - i, &cp);
        if (in_class(op, cp))
            rc = split_match(p, i, i + len);
    }
    return rc;
}

static int split_string(const struct tok_pre *op, struct splitter *p, const char *s, size_t n)
{
    int rc = 0;
    if (op->n_str == 0)
        return 0;
    for (size_t i = 0; rc == 0 && n - i >= op->n_str;) {
        const char *hit = memmem(s + i, n - i, op->str, op->n_str);
        if (hit == NULL)
            break;
        i = (size_t)(hit - s);
        rc = split_match(p, i, i + op->n_str);
        i += op->n_str;
    }
    return rc;
}

/* \w+|[^\w\s]+ */
static int split_words(struct splitter *p, const char *s, size_t n)
{
    size_t start = 0, i = 0, len;
    int kind = 0, rc = 0; /* 0 space, 1 word, 2 other */
    for (; i < n && rc == 0; i += len) {
        uint32_t cp;
        len = tok_char(s + i, n - i, &cp);
        unsigned prop = tok_uni_prop(cp);
        int k = prop & UNI_WORD ? 1 : prop & UNI_SPACE ? 0 : 2;
        if (k != kind) {
            if (kind != 0)
                rc = split_match(p, start, i);
            start = i;
            kind = k;
        }
    }
    return rc == 0 && kind != 0 ? split_match(p, start, n) : rc;
}

static int split_fast(enum tok_fast kind, struct splitter *p, const char *s, size_t n)
{
    int rc = 0;
    for (size_t i = 0, end; i < n && rc == 0; i = end) {
        end = tok_fast_next(kind, s, n, i);
        rc = split_match(p, i, end);
    }
    return rc;
}

static int split_by(struct tok_enc *e, const struct tok_pre *op, const char *s, size_t off,
                    size_t n, struct tok_spans *out)
{
    struct splitter p = {
        .out = out, .err = e->err, .behavior = op->behavior, .invert = op->invert, .base = off};
    int rc;
    switch (op->kind) {
    case PRE_FAST:
        rc = split_fast(op->fast, &p, s + off, n);
        break;
    case PRE_REGEX:
        if (e->search == NULL && (e->search = tok_search_create(e->n_bytes, e->err)) == NULL)
            return SL_ENOMEM;
        rc = tok_regex_each(op->re, e->search, s + off, n, split_match, &p, e->err);
        break;
    case PRE_STRING:
        rc = split_string(op, &p, s + off, n);
        break;
    case PRE_WORDS:
        rc = split_words(&p, s + off, n);
        break;
    default:
        rc = split_chars(op, &p, s + off, n);
        break;
    }
    return rc != 0 ? rc : split_end(&p, n);
}

/* ---------------------------------------------------------------- rewriting steps */

static int rewrite_metaspace(struct tok_enc *e, const struct tok_pre *op, const char *s,
                             struct tok_span in, bool first, struct sl_buf *text,
                             struct tok_spans *out)
{
    size_t start = text->n_bytes;
    const char *p = s + in.off;
    bool begins = in.len >= op->n_str && memcmp(p, op->str, op->n_str) == 0;
    if (in.len > 0 && p[0] == ' ')
        begins = true;
    if (!begins && (op->scheme == PREPEND_ALWAYS || (op->scheme == PREPEND_FIRST && first)))
        sl_buf_put(text, op->str, op->n_str);
    for (size_t i = 0; i < in.len;) {
        const char *space = memchr(p + i, ' ', in.len - i);
        size_t run = space != NULL ? (size_t)(space - p) - i : in.len - i;
        sl_buf_put(text, p + i, run);
        i += run;
        if (space != NULL) {
            sl_buf_put(text, op->str, op->n_str);
            i++;
        }
    }
    if (!sl_buf_ok(text) || text->n_bytes > UINT32_MAX)
        return sl_fail(e->err, SL_ENOMEM, "text of %zu bytes", text->n_bytes);
    if (!op->split)
        return span_put(out, start, text->n_bytes - start, e->err);
    struct tok_pre by = {
        .kind = PRE_STRING, .behavior = SPLIT_MERGE_NEXT, .str = op->str, .n_str = op->n_str};
    return split_by(e, &by, text->data, start, text->n_bytes - start, out);
}

static int rewrite(struct tok_enc *e, const struct tok_pre *op, const char *s, struct tok_span in,
                   bool first, struct sl_buf *text, struct tok_spans *out)
{
    size_t start = text->n_bytes;
    if (op->kind == PRE_METASPACE)
        return rewrite_metaspace(e, op, s, in, first, text, out);
    if (op->kind == PRE_PREFIX_SPACE) {
        if (in.len > 0 && s[in.off] != ' ')
            sl_buf_putc(text, ' ');
        sl_buf_put(text, s + in.off, in.len);
    } else {
        for (size_t i = 0; i < in.len; i++)
            tok_put_cp(text, tok_cp_of_byte((uint8_t)s[in.off + i]));
    }
    if (!sl_buf_ok(text) || text->n_bytes > UINT32_MAX)
        return sl_fail(e->err, SL_ENOMEM, "text of %zu bytes", text->n_bytes);
    return span_put(out, start, text->n_bytes - start, e->err);
}

static bool rewrites(const struct tok_pre *op)
{
    return op->kind == PRE_METASPACE || op->kind == PRE_BYTE_LEVEL || op->kind == PRE_PREFIX_SPACE;
}

/* ---------------------------------------------------------------- the pipeline */

/* Runs steps from..n_pre over the spans in e->spans[0] of text s and feeds the model. */
static int run_steps(struct tok_enc *e, size_t from, const char *s, bool first)
{
    const struct sl_tokenizer *t = e->t;
    struct tok_spans *in = &e->spans[0], *out = &e->spans[1];
    int rc = 0, buf = 0;
    for (size_t k = from; k < t->n_pre && rc == 0; k++) {
        const struct tok_pre *op = &t->pre[k];
        struct sl_buf *text = &e->stage[buf];
        bool new_text = rewrites(op);
        out->n = 0;
        if (new_text)
            sl_buf_clear(text);
        for (size_t i = 0; i < in->n && rc == 0; i++) {
            struct tok_span sp = in->v[i];
            rc = new_text ? rewrite(e, op, s, sp, first && sp.off == 0, text, out)
                          : split_by(e, op, s, sp.off, sp.len, out);
        }
        if (new_text) {
            s = text->data;
            buf ^= 1; /* a later rewriting reads this one */
        }
        struct tok_spans tmp = *in;
        *in = *out;
        *out = tmp;
    }
    for (size_t i = 0; i < in->n && rc == 0; i++)
        rc = tok_model_encode(e, s + in->v[i].off, in->v[i].len);
    return rc;
}

int tok_pretokenize(struct tok_enc *e, const char *s, size_t n, bool first)
{
    const struct sl_tokenizer *t = e->t;
    size_t i = 0, end;
    int rc = 0;
    if (n == 0)
        return 0;
    if (t->n_pre == 0)
        return tok_model_encode(e, s, n);
    enum tok_fast fast =
        t->pre[0].kind == PRE_FAST && !t->pre[0].invert && t->pre[0].behavior == SPLIT_ISOLATED
            ? t->pre[0].fast
            : TOK_FAST_NONE;
    if (fast == TOK_FAST_NONE) {
        e->spans[0].n = 0;
        rc = span_put(&e->spans[0], 0, n, e->err);
        return rc != 0 ? rc : run_steps(e, 0, s, first);
    }
    if (t->n_pre == 1) {
        for (; i < n && rc == 0; i = end) {
            end = tok_fast_next(fast, s, n, i);
            rc = tok_model_encode(e, s + i, end - i);
        }
        return rc;
    }
    while (i < n && rc == 0) {
        e->spans[0].n = 0;
        for (; i < n && e->spans[0].n < WINDOW && rc == 0; i = end) {
            end = tok_fast_next(fast, s, n, i);
            rc = span_put(&e->spans[0], i, end - i, e->err);
        }
        if (rc == 0)
            rc = run_steps(e, 1, s, first);
    }
    return rc;
}
