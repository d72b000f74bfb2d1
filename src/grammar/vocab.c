/* SPDX-License-Identifier: MIT
 * vocab.c - building the trees of a vocabulary.
 */
#include "grammar/vocab.h"

#include "base/check.h"
#include "base/limits.h"
#include "base/str.h"
#include "base/sys.h"
#include "grammar/shape.h"
#include "text/tokenizer/tok.h"

#include <stdlib.h>
#include <string.h>

void sl_vocab_special_text(int32_t id, char out[SL_VOCAB_SPECIAL_BYTES])
{
    out[0] = (char)0xFF;
    for (int i = 0; i < 4; i++)
        out[4 - i] = (char)(0x80 | ((uint32_t)id >> 6 * i & 63));
}

const uint32_t sl_plain_ranges[SL_PLAIN_RANGES][2] = {
    {0x20, 0x21},     {0x23, 0x5B},     {0x5D, 0x7E},     {0x80, 0x9F},
    {0xA1, 0x167F},   {0x1681, 0x1FFF}, {0x200B, 0x2027}, {0x202A, 0x202E},
    {0x2030, 0x205E}, {0x2060, 0x2FFF}, {0x3001, 0xFEFE}, {0xFF00, 0x10FFFF}};

static bool vocab_is_plain(uint32_t cp)
{
    size_t i = 0;
    while (i + 1 < SL_PLAIN_RANGES && cp > sl_plain_ranges[i][1])
        i++;
    return cp >= sl_plain_ranges[i][0];
}

/* Characters of a plain token, 0 if it is none. */
static uint32_t plain_chars(const char *s, size_t n)
{
    uint32_t count = 0, cp;
    for (size_t i = 0, k; i < n; i += k, count++) {
        k = sl_utf8_decode(s + i, n - i, &cp);
        if (k == 0 || !vocab_is_plain(cp))
            return 0;
    }
    return count <= SL_VOCAB_MAX_RUN ? count : 0;
}

struct entry {
    const char *s;
    uint32_t n;
    int32_t id;
};

static int vocab_by_bytes(const void *a, const void *b)
{
    const struct entry *x = a, *y = b;
    int c = memcmp(x->s, y->s, SL_MIN(x->n, y->n));
    if (c != 0)
        return c;
    return x->n != y->n ? (x->n > y->n) - (x->n < y->n) : (x->id > y->id) - (x->id < y->id);
}

static uint32_t count_nodes(const struct entry *e, uint32_t n)
{
    uint32_t total = 0;
    for (uint32_t i = 0; i < n; i++) {
        uint32_t shared = 0;
        while (i > 0 && shared < SL_MIN(e[i - 1].n, e[i].n) && e[i - 1].s[shared] == e[i].s[shared])
            shared++;
        total += e[i].n - shared;
    }
    return total;
}

struct branch { /* the nodes from the root to the entry that is being added */
    struct sl_vocab_tree *t;
    uint32_t at[SL_VOCAB_MAX_TOKEN + 1]; /* by depth */
    uint32_t depth;
};

static void plain_set_add(struct sl_plain_set *set, uint8_t byte)
{
    unsigned bit = byte < 0x80 ? byte : SL_PLAIN_OTHERS;
    set->w[bit / 64] |= 1ull << (bit & 63);
}

/* Leaves the branch's nodes deeper than depth: all below them is known. */
static void leave(struct branch *b, uint32_t depth, uint32_t n_nodes)
{
    struct sl_vocab_tree *t = b->t;
    for (; b->depth > depth; b->depth--) {
        uint32_t i = b->at[b->depth];
        struct sl_plain_set *up = b->depth == 1 ? &t->all : NULL;
        t->nodes[i].skip = n_nodes - i;
        if (t->sets == NULL)
            continue;
        up = up == NULL ? &t->sets[b->at[b->depth - 1]] : up;
        up->w[0] |= t->sets[i].w[0];
        up->w[1] |= t->sets[i].w[1];
        plain_set_add(up, t->nodes[i].byte);
    }
}

static void vocab_count_chars(struct branch *b, const struct entry *e, uint32_t chars)
{
    uint32_t here = 0;
    for (uint32_t d = 1; d <= e->n; d++) {
        struct sl_vocab_node *x = &b->t->nodes[b->at[d]];
        here += ((uint8_t)e->s[d - 1] & 0xC0) != 0x80;
        x->longest = (uint8_t)SL_MAX(x->longest, chars);
        if (d == e->n || ((uint8_t)e->s[d] & 0xC0) != 0x80)
            x->below = (uint8_t)SL_MAX(x->below, chars - here);
    }
}

/* The tree of sorted entries, all of them plain or none. */
static int vocab_build(struct sl_vocab_tree *t, const struct entry *e, uint32_t n, bool plain)
{
    struct branch b = {.t = t};
    uint32_t n_nodes = count_nodes(e, n), at = 0;
    t->nodes = sl_malloc((n_nodes + 1) * sizeof t->nodes[0]);
    t->ids = sl_malloc((n + 1) * sizeof t->ids[0]);
    t->sets = plain ? sl_calloc(n_nodes + 1, sizeof t->sets[0]) : NULL;
    if (t->nodes == NULL || t->ids == NULL || (plain && t->sets == NULL))
        return SL_ENOMEM;
    for (uint32_t i = 0; i < n; i++) {
        uint32_t shared = 0;
        while (shared < SL_MIN(b.depth, e[i].n) &&
               t->nodes[b.at[shared + 1]].byte == (uint8_t)e[i].s[shared])
            shared++;
        leave(&b, shared, at);
        for (; b.depth < e[i].n; at++) {
            b.at[++b.depth] = at;
            t->nodes[at] = (struct sl_vocab_node){.first = i,
                                                  .byte = (uint8_t)e[i].s[b.depth - 1],
                                                  .depth = (uint8_t)b.depth,
                                                  .longest = plain ? 0 : UINT8_MAX};
        }
        if (plain)
            vocab_count_chars(&b, &e[i], plain_chars(e[i].s, e[i].n));
        t->ids[i] = e[i].id;
    }
    leave(&b, 0, at);
    t->nodes[at] = (struct sl_vocab_node){.first = n};
    t->n = at;
    t->n_ids = n;
    return 0;
}

static bool vocab_is_end(const struct sl_vocab *v, uint32_t id)
{
    for (uint32_t i = 0; i < v->n_ends; i++)
        if ((uint32_t)v->ends[i] == id)
            return true;
    return false;
}

static int vocab_fill(struct sl_vocab *v, const struct sl_vocab_token *tokens)
{
    struct entry *e = sl_malloc((v->n_tokens + 1) * sizeof *e), *rest;
    size_t total = 0;
    uint32_t n = 0, n_plain = 0, n_rest = 0;
    int rc = SL_ENOMEM;
    for (uint32_t i = 0; i < v->n_tokens; i++)
        total += SL_MAX(tokens[i].n, SL_VOCAB_SPECIAL_BYTES);
    rest = sl_malloc((v->n_tokens + 1) * sizeof *rest);
    v->bytes = total > UINT32_MAX ? NULL : sl_malloc(total + 1);
    if (e == NULL || rest == NULL || v->bytes == NULL)
        goto done;
    total = 0;
    for (uint32_t i = 0; i < v->n_tokens; i++) {
        v->start[i] = (uint32_t)total;
        if (tokens[i].special && vocab_is_end(v, i)) {
            continue; /* ends a text and is never part of one */
        } else if (tokens[i].special) {
            sl_vocab_special_text((int32_t)i, v->bytes + total);
            total += SL_VOCAB_SPECIAL_BYTES;
        } else if (tokens[i].n > 0 && tokens[i].n <= SL_VOCAB_MAX_TOKEN &&
                   memchr(tokens[i].bytes, 0xFF, tokens[i].n) == NULL) {
            /* No text has that byte, and no token may spell what stands for a special one. */
            memcpy(v->bytes + total, tokens[i].bytes, tokens[i].n);
            total += tokens[i].n;
        }
    }
    v->start[v->n_tokens] = (uint32_t)total;
    for (uint32_t i = 0; i < v->n_tokens; i++)
        if (v->start[i + 1] > v->start[i])
            e[n++] =
                (struct entry){v->bytes + v->start[i], v->start[i + 1] - v->start[i], (int32_t)i};
    qsort(e, n, sizeof *e, vocab_by_bytes);
    for (uint32_t i = 0; i < n; i++) {
        uint32_t chars = plain_chars(e[i].s, e[i].n);
        for (uint32_t k = chars; chars > 0 && k <= SL_VOCAB_MAX_RUN; k++)
            v->up_to[k * v->n_words + (uint32_t)e[i].id / 32] |= 1u << (e[i].id & 31);
        if (chars == 0)
            rest[n_rest++] = e[i];
        else
            e[n_plain++] = e[i];
    }
    rc = vocab_build(&v->plain, e, n_plain, true);
    rc = rc == 0 ? vocab_build(&v->rest, rest, n_rest, false) : rc;
done:
    sl_free(e);
    sl_free(rest);
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
    v->up_to = sl_calloc((size_t)v->n_words * (SL_VOCAB_MAX_RUN + 1), sizeof v->up_to[0]);
    v->start = sl_malloc((n_tokens + 1) * sizeof v->start[0]);
    v->ends = sl_malloc((n_ends + 1) * sizeof v->ends[0]);
    if (v->up_to != NULL && v->start != NULL && v->ends != NULL) {
        for (uint32_t i = 0; i < n_ends; i++)
            if (ends[i] >= 0 && (uint32_t)ends[i] < n_tokens)
                v->ends[v->n_ends++] = ends[i];
        rc = vocab_fill(v, tokens);
        rc = rc == 0 ? sl_shapes_make(v) : rc;
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
    for (size_t i = 0; i < 2 + SL_VOCAB_SHAPES; i++) {
        const struct sl_vocab_tree *t = i == 0 ? &v->plain : i == 1 ? &v->rest : &v->shapes[i - 2];
        sl_free(t->nodes);
        sl_free(t->sets);
        sl_free(t->ids);
    }
    sl_free(v->up_to);
    sl_free(v->start);
    sl_free(v->bytes);
    sl_free(v->ends);
    sl_free(v);
}
