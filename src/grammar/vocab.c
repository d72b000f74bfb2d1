/* SPDX-License-Identifier: MIT
 * vocab.c - building the trees of a vocabulary.
 */
#include "grammar/vocab.h"

#include "base/check.h"
#include "base/limits.h"
#include "base/str.h"
#include "base/sys.h"
#include "text/tok.h"

#include <stdlib.h>
#include <string.h>

void sl_vocab_special_text(int32_t id, char out[SL_VOCAB_SPECIAL_BYTES])
{
    out[0] = (char)0xFF;
    for (int i = 0; i < 4; i++)
        out[4 - i] = (char)(0x80 | ((uint32_t)id >> 6 * i & 63));
}

/* Characters of a plain token, 0 if it is none. */
static uint32_t plain_chars(const char *s, size_t n)
{
    uint32_t count = 0, cp;
    for (size_t i = 0, k; i < n; i += k, count++) {
        k = sl_utf8_decode(s + i, n - i, &cp);
        if (k == 0 || cp < 0x20 || cp == '"' || cp == '\\' || cp == 0x7F || cp == 0x2028 ||
            cp == 0x2029)
            return 0;
    }
    return count <= SL_VOCAB_MAX_RUN ? count : 0;
}

struct entry {
    const char *s;
    uint32_t n;
    int32_t id;
};

static int by_bytes(const void *a, const void *b)
{
    const struct entry *x = a, *y = b;
    int c = memcmp(x->s, y->s, SL_MIN(x->n, y->n));
    if (c != 0)
        return c;
    return x->n != y->n ? (x->n > y->n) - (x->n < y->n) : (x->id > y->id) - (x->id < y->id);
}

/* The tree of sorted entries; tokens with equal bytes hang on the first one by same. */
static int build(struct sl_vocab_tree *t, const struct entry *e, uint32_t n, int32_t *same)
{
    uint32_t open[SL_VOCAB_MAX_TOKEN + 1], total = 0, depth = 0;
    for (int pass = 0; pass < 2; pass++) {
        uint32_t at = 0;
        depth = 0;
        for (uint32_t i = 0; i < n; i++) {
            uint32_t shared = 0;
            while (i > 0 && shared < SL_MIN(e[i - 1].n, e[i].n) &&
                   e[i - 1].s[shared] == e[i].s[shared])
                shared++;
            for (; depth > shared; depth--)
                if (pass == 1)
                    t->nodes[open[depth]].skip = at - open[depth];
            for (; depth < e[i].n; at++) {
                depth++;
                open[depth] = at;
                if (pass == 1)
                    t->nodes[at] =
                        (struct sl_vocab_node){0, -1, (uint8_t)e[i].s[depth - 1], (uint8_t)depth};
            }
            if (pass == 0)
                continue;
            struct sl_vocab_node *x = &t->nodes[open[depth]];
            if (x->token >= 0) {
                same[e[i].id] = same[x->token];
                same[x->token] = e[i].id;
            } else {
                x->token = e[i].id;
            }
        }
        for (; depth > 0 && pass == 1; depth--)
            t->nodes[open[depth]].skip = at - open[depth];
        if (pass == 0) {
            total = at;
            t->nodes = sl_malloc((total + 1) * sizeof t->nodes[0]);
            if (t->nodes == NULL)
                return SL_ENOMEM;
        }
    }
    t->n = total;
    return 0;
}

static int fill(struct sl_vocab *v, const struct sl_vocab_token *tokens)
{
    struct entry *e = sl_malloc((v->n_tokens + 1) * sizeof *e);
    size_t total = 0;
    uint32_t n = 0, n_rest = 0;
    int rc = SL_ENOMEM;
    for (uint32_t i = 0; i < v->n_tokens; i++)
        total += SL_MAX(tokens[i].n, SL_VOCAB_SPECIAL_BYTES);
    v->bytes = total > UINT32_MAX ? NULL : sl_malloc(total + 1);
    if (e == NULL || v->bytes == NULL)
        goto done;
    total = 0;
    for (uint32_t i = 0; i < v->n_tokens; i++) {
        v->start[i] = (uint32_t)total;
        v->same[i] = -1;
        if (tokens[i].special) {
            sl_vocab_special_text((int32_t)i, v->bytes + total);
            total += SL_VOCAB_SPECIAL_BYTES;
        } else if (tokens[i].n <= SL_VOCAB_MAX_TOKEN) {
            if (tokens[i].n > 0)
                memcpy(v->bytes + total, tokens[i].bytes, tokens[i].n);
            total += tokens[i].n;
        }
    }
    v->start[v->n_tokens] = (uint32_t)total;
    for (uint32_t i = 0; i < v->n_tokens; i++)
        if (v->start[i + 1] > v->start[i])
            e[n++] =
                (struct entry){v->bytes + v->start[i], v->start[i + 1] - v->start[i], (int32_t)i};
    qsort(e, n, sizeof *e, by_bytes);
    rc = build(&v->all, e, n, v->same);
    for (uint32_t i = 0; i < n && rc == 0; i++) {
        uint32_t chars = plain_chars(e[i].s, e[i].n);
        if (chars == 0)
            e[n_rest++] = e[i];
        for (uint32_t k = chars; chars > 0 && k <= SL_VOCAB_MAX_RUN; k++)
            v->plain[k * v->n_words + (uint32_t)e[i].id / 32] |= 1u << (e[i].id & 31);
    }
    /* The chains of equal tokens are made already: only the first of each is needed. */
    uint32_t k = 0;
    for (uint32_t i = 0; i < n_rest && rc == 0; i++)
        if (k == 0 || e[k - 1].n != e[i].n || memcmp(e[k - 1].s, e[i].s, e[i].n) != 0)
            e[k++] = e[i];
    rc = rc == 0 ? build(&v->rest, e, k, v->same) : rc;
done:
    sl_free(e);
    return rc;
}

int sl_vocab_create(const struct sl_vocab_token *tokens, uint32_t n_tokens, const int32_t *ends,
                    uint32_t n_ends, struct sl_vocab **out, struct sl_error *err)
{
    if (n_tokens == 0 || n_tokens > SL_MAX_VOCAB)
        return sl_fail(err, SL_EINVAL, "vocabulary of %u tokens", n_tokens);
    struct sl_vocab *v = sl_calloc(1, sizeof *v);
    int rc = SL_ENOMEM;
    if (v == NULL)
        return sl_fail(err, rc, "vocabulary: out of memory");
    v->n_tokens = n_tokens;
    v->n_words = (n_tokens + 31) / 32;
    v->plain = sl_calloc((size_t)v->n_words * (SL_VOCAB_MAX_RUN + 1), sizeof v->plain[0]);
    v->same = sl_malloc(n_tokens * sizeof v->same[0]);
    v->start = sl_malloc((n_tokens + 1) * sizeof v->start[0]);
    v->ends = sl_malloc((n_ends + 1) * sizeof v->ends[0]);
    if (v->plain != NULL && v->same != NULL && v->start != NULL && v->ends != NULL) {
        for (uint32_t i = 0; i < n_ends; i++)
            if (ends[i] >= 0 && (uint32_t)ends[i] < n_tokens)
                v->ends[v->n_ends++] = ends[i];
        rc = fill(v, tokens);
    }
    if (rc != 0) {
        sl_vocab_destroy(v);
        return sl_fail(err, rc, "vocabulary: out of memory");
    }
    *out = v;
    return 0;
}

int sl_vocab_with_ends(const struct sl_tokenizer *tok, uint32_t n_tokens, const int32_t *ends,
                       uint32_t n_ends, struct sl_vocab **out, struct sl_error *err)
{
    struct sl_vocab_token *v = sl_calloc(n_tokens + 1, sizeof *v);
    if (v == NULL)
        return sl_fail(err, SL_ENOMEM, "vocabulary: out of memory");
    for (uint32_t i = 0; i < n_tokens && i < tok->pieces.n; i++) {
        unsigned attr = tok->attr[i];
        if (tok->pieces.at[i].len == TOK_HOLE || (attr & (SL_TOKEN_UNUSED | SL_TOKEN_UNKNOWN)) != 0)
            continue;
        v[i].bytes = tok_str(tok->dec, i, &v[i].n);
        v[i].special = (attr & SL_TOKEN_SPECIAL) != 0;
    }
    int rc = sl_vocab_create(v, n_tokens, ends, n_ends, out, err);
    sl_free(v);
    return rc;
}

int sl_vocab_from_tokenizer(const struct sl_tokenizer *tok, uint32_t n_tokens,
                            struct sl_vocab **out, struct sl_error *err)
{
    int32_t ends[2] = {sl_tokenizer_eos(tok), sl_tokenizer_eot(tok)};
    uint32_t n_ends = ends[1] >= 0 && ends[1] != ends[0] ? 2 : 1;
    return sl_vocab_with_ends(tok, n_tokens, ends, n_ends, out, err);
}

void sl_vocab_destroy(struct sl_vocab *v)
{
    if (v == NULL)
        return;
    sl_free(v->all.nodes);
    sl_free(v->rest.nodes);
    sl_free(v->plain);
    sl_free(v->same);
    sl_free(v->start);
    sl_free(v->bytes);
    sl_free(v->ends);
    sl_free(v);
}
