/* SPDX-License-Identifier: MIT */
#include "grammar/jump.h"

#include "base/check.h"
#include "base/sys.h"
#include "text/tokenizer/tokenizer.h"

#include <string.h>

#define SPECIAL 0xFFu /* first byte of what stands for a special token */

struct finder {
    const struct sl_jump *j;
    char forced[SL_MAX_JUMP_TEXT];
    size_t n_forced, stable; /* bytes; up to stable nothing that follows changes the tokens */
    int32_t *out;
    uint32_t cap, n;
};

static const char *bytes_of(const struct sl_vocab *v, int32_t id, size_t *n)
{
    SL_ASSERT(id >= 0);
    *n = (uint32_t)id < v->n_tokens ? v->start[id + 1] - v->start[id] : 0;
    return *n > 0 ? v->bytes + v->start[id] : "";
}

/* The first and the last token that may come begin with the same byte: cheap, and false almost
 * everywhere. */
static bool may_be_forced(const struct sl_vocab *v, const uint32_t *mask)
{
    uint32_t first = 0, last = v->n_words;
    while (first < v->n_words && mask[first] == 0)
        first++;
    if (first == v->n_words)
        return false;
    while (mask[last - 1] == 0)
        last--;
    size_t n[2];
    const char *a = bytes_of(v, (int32_t)first * 32 + __builtin_ctz(mask[first]), &n[0]);
    const char *b = bytes_of(v, (int32_t)last * 32 - 1 - __builtin_clz(mask[last - 1]), &n[1]);
    return n[0] > 0 && n[1] > 0 && a[0] == b[0];
}

/* The text of the tokens before it, as far as they are text; *last: the last of them, -1: none. */
static size_t context(const struct sl_jump *j, char *out, int32_t *last)
{
    uint32_t first = j->n_last;
    size_t n, used = 0;
    while (first > 0 && j->n_last - first < SL_JUMP_CONTEXT) {
        const char *s = bytes_of(j->vocab, j->last[first - 1], &n);
        if (n == 0 || (uint8_t)s[0] == SPECIAL)
            break;
        first--;
    }
    *last = first < j->n_last ? j->last[j->n_last - 1] : -1;
    for (; first < j->n_last; first++, used += n) {
        const char *s = bytes_of(j->vocab, j->last[first], &n);
        memcpy(out + used, s, n);
    }
    return used;
}

/* Of ids, made of a context and n bytes of text: where those begin that are exactly the text behind
 * `last`, which the context ends with; -1: there is none. ids->n: nowhere. */
static size_t align(const struct sl_vocab *v, const struct sl_ids *ids, const char *text, size_t n,
                    int32_t last)
{
    size_t at = ids->n, left = n, len;
    while (at > 0 && left > 0) {
        const char *s = bytes_of(v, ids->data[at - 1], &len);
        if (len == 0 || len > left || memcmp(text + left - len, s, len) != 0)
            return ids->n;
        left -= len;
        at--;
    }
    bool joins = last < 0 ? at == 0 : at > 0 && ids->data[at - 1] == last;
    return left == 0 && joins ? at : ids->n;
}

/* Tokens of forced[from, to), text without special tokens: as the tokenizer has them behind the
 * tokens before, or, where it would have made other tokens of those, as it has them by themselves.
 * *all false: not all of them. */
static int add_text(struct finder *f, size_t from, size_t to, bool *all, struct sl_error *err)
{
    char buf[SL_JUMP_CONTEXT * SL_VOCAB_MAX_TOKEN + SL_MAX_JUMP_TEXT];
    const struct sl_vocab *v = f->j->vocab;
    struct sl_ids ids = {0};
    int32_t last = -1;
    size_t n = from == 0 ? context(f->j, buf, &last) : 0, end = from, len;
    memcpy(buf + n, f->forced + from, to - from);
    int rc = sl_tokenizer_encode_into(f->j->tok, buf, n + to - from, 0, &ids, err);
    size_t at = rc == 0 ? align(v, &ids, buf + n, to - from, last) : 0;
    if (rc == 0 && at == ids.n && n > 0) {
        ids.n = 0;
        rc = sl_tokenizer_encode_into(f->j->tok, buf + n, to - from, 0, &ids, err);
        at = rc == 0 ? align(v, &ids, buf + n, to - from, -1) : 0;
    }
    for (; rc == 0 && at < ids.n && f->n < f->cap; at++) {
        (void)bytes_of(v, ids.data[at], &len);
        if (end + len > f->stable)
            break;
        f->out[f->n++] = ids.data[at];
        end += len;
    }
    *all = end == to;
    sl_free(ids.data);
    return rc;
}

/* A special token stands where its five bytes do. False: they are cut off. */
static bool jump_add_special(struct finder *f, size_t *at)
{
    const uint8_t *s = (const uint8_t *)f->forced + *at;
    uint32_t id = 0;
    if (f->n_forced - *at < SL_VOCAB_SPECIAL_BYTES)
        return false;
    for (size_t i = 1; i < SL_VOCAB_SPECIAL_BYTES; i++)
        id = id << 6 | (s[i] & 63u);
    SL_ASSERT(id < f->j->vocab->n_tokens);
    f->out[f->n++] = (int32_t)id;
    *at += SL_VOCAB_SPECIAL_BYTES;
    return true;
}

int sl_jump_find(struct sl_matcher *m, const struct sl_jump *j, int32_t *out, uint32_t cap,
                 uint32_t *n, struct sl_error *err)
{
    struct finder f = {.j = j, .out = out, .cap = SL_MIN(cap, (uint32_t)SL_MAX_JUMP)};
    bool more = may_be_forced(j->vocab, j->mask);
    int rc = 0;
    if (more)
        rc = sl_matcher_forced(m, f.forced, sizeof f.forced, &f.n_forced, err);
    if (more && rc == 0)
        rc = sl_matcher_overlap(m, f.forced, f.n_forced, &f.stable, err);
    for (size_t at = 0; rc == 0 && more && at < f.stable && f.n < f.cap;) {
        const char *special = memchr(f.forced + at, (int)SPECIAL, f.n_forced - at);
        size_t end = special != NULL ? (size_t)(special - f.forced) : f.n_forced;
        if (end > at)
            rc = add_text(&f, at, end, &more, err);
        else
            more = jump_add_special(&f, &end);
        at = end;
    }
    *n = rc == 0 ? f.n : 0;
    return rc;
}
