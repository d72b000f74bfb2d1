/* SPDX-License-Identifier: MIT
 * tok_added.c - added tokens: entries recognised in the text before the model sees it.
 *
 * Two passes as in the tokenizers library: tokens that ask for the original text, then, in each
 * stretch between them, the normalizers run and the other tokens are looked for in the result. The
 * leftmost match wins, of those the longest. Without SL_ENCODE_PARSE_SPECIAL a match of a special
 * token is passed over as text.
 */
#include "base/check.h"
#include "base/limits.h"
#include "base/sys.h"
#include "sluice.h"
#include "text/tokenizer/tok.h"

#include <string.h>

int tok_added_add(struct sl_tokenizer *t, const struct tok_added_flags *a, struct sl_error *err)
{
    struct tok_added *l = &t->added;
    if (l->n == l->cap) {
        size_t cap = SL_MAX(l->cap * 2, (size_t)16);
        struct tok_added_flags *grown = sl_realloc(l->v, cap * sizeof(*grown));
        if (grown == NULL)
            return sl_fail(err, SL_ENOMEM, "%zu added tokens", cap);
        l->v = grown;
        l->cap = cap;
    }
    l->v[l->n++] = *a;
    t->attr[a->id] |= SL_TOKEN_ADDED | (a->special ? SL_TOKEN_SPECIAL : 0);
    return 0;
}

int tok_added_build(struct sl_tokenizer *t, struct sl_error *err)
{
    struct sl_buf bufs[2] = {{0}, {0}};
    int rc = 0;
    for (size_t i = 0; i < t->added.n && rc == 0; i++) {
        const struct tok_added_flags *a = &t->added.v[i];
        size_t n;
        const char *s = tok_str(&t->pieces, (uint32_t)a->id, &n);
        if (n == 0)
            continue;
        if (!a->normalized) {
            rc = tok_trie_add(&t->added.raw, s, n, (int32_t)i, err);
        } else {
            rc = tok_normalize(t, s, n, bufs, &s, &n, err);
            if (rc == 0 && n > 0)
                rc = tok_trie_add(&t->added.normalized, s, n, (int32_t)i, err);
        }
    }
    sl_buf_deinit(&bufs[0]);
    sl_buf_deinit(&bufs[1]);
    return rc;
}

static bool tok_added_is_word(const char *s, size_t n)
{
    uint32_t cp;
    tok_char(s, n, &cp);
    return tok_uni_prop(cp) & UNI_WORD;
}

/* Start of the character that ends at s[n]. */
static size_t tok_added_char_before(const char *s, size_t n)
{
    size_t i = n - 1;
    while (i > 0 && n - i < 4 && ((uint8_t)s[i] & 0xC0) == 0x80)
        i--;
    uint32_t cp;
    return tok_char(s + i, n - i, &cp) == n - i ? i : n - 1;
}

static bool is_space_at(const char *s, size_t n, size_t *len)
{
    uint32_t cp;
    *len = tok_char(s, n, &cp);
    return tok_uni_prop(cp) & UNI_SPACE;
}

/* Is the match s[start..end) of token a taken? Widens it by the spaces a strips. */
static bool tok_added_accept(const struct tok_enc *e, const struct tok_added_flags *a,
                             const char *s, size_t n, size_t floor, size_t *start, size_t *end)
{
    size_t len;
    if (a->special && !(e->flags & SL_ENCODE_PARSE_SPECIAL))
        return false;
    if (a->single_word) {
        if (*start > 0 && tok_added_is_word(s + tok_added_char_before(s, *start),
                                            *start - tok_added_char_before(s, *start)))
            return false;
        if (*end < n && tok_added_is_word(s + *end, n - *end))
            return false;
    }
    if (a->lstrip) /* of what a token before it took, nothing is left to take */
        *start = SL_MAX(*start, floor);
    while (a->lstrip && *start > floor) {
        size_t before = tok_added_char_before(s, *start);
        if (before < floor || !is_space_at(s + before, *start - before, &len))
            break;
        *start = before;
    }
    while (a->rstrip && *end < n && is_space_at(s + *end, n - *end, &len))
        *end += len;
    return true;
}

static int tok_added_plain(struct tok_enc *e, const char *s, size_t n, bool normalized, bool first);

static int tok_added_scan(struct tok_enc *e, const char *s, size_t n, bool normalized, bool first)
{
    const struct tok_added *l = &e->t->added;
    const struct tok_trie *trie = normalized ? &l->normalized : &l->raw;
    size_t done = 0;
    int rc = 0;
    for (size_t i = 0; trie->n_nodes > 0 && i < n && rc == 0;) {
        size_t len;
        if (!trie->first[(uint8_t)s[i]]) {
            i++;
            continue;
        }
        int32_t k = tok_trie_longest(trie, s + i, n - i, &len);
        if (k < 0) {
            i++;
            continue;
        }
        size_t start = i, end = i + len;
        i = end;
        if (!tok_added_accept(e, &l->v[k], s, n, done, &start, &end) || start >= end)
            continue;
        if (start > done)
            rc = tok_added_plain(e, s + done, start - done, normalized, first && done == 0);
        if (rc == 0)
            rc = tok_push(e, l->v[k].id);
        done = end; /* as in that library, spaces it took may be another token, or begin one */
    }
    if (rc == 0 && done < n)
        rc = tok_added_plain(e, s + done, n - done, normalized, first && done == 0);
    return rc;
}

/* A stretch without added tokens of this pass. The two passes are the only nesting. */
static int tok_added_plain(struct tok_enc *e, const char *s, size_t n, bool normalized, bool first)
{
    if (normalized)
        return tok_pretokenize(e, s, n, first);
    int rc = tok_normalize(e->t, s, n, e->norm, &s, &n, e->err);
    return rc != 0 ? rc : tok_added_scan(e, s, n, true, first);
}

int tok_encode_text(struct tok_enc *e, const char *s, size_t n)
{
    if (!e->t->bytes && tok_valid_prefix(s, n) < n) {
        sl_buf_clear(&e->clean);
        tok_sanitize(&e->clean, s, n);
        if (!sl_buf_ok(&e->clean) || e->clean.n_bytes > UINT32_MAX)
            return sl_fail(e->err, SL_ENOMEM, "text of %zu bytes", n);
        s = e->clean.data;
        n = e->clean.n_bytes;
    }
    return tok_added_scan(e, s, n, false, true);
}
