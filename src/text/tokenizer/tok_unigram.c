/* SPDX-License-Identifier: MIT
 * tok_unigram.c - Unigram: the split of a word with the highest sum of scores (Viterbi), and
 * WordPiece: the longest entry first.
 *
 * Sums are made left to right in the type the reference uses (float in SentencePiece, double in the
 * tokenizers library), because ties are decided by it. A long text without words is cut at
 * metaspaces, where no entry reaches across, so that memory stays bounded.
 */
#include "base/check.h"
#include "base/limits.h"
#include "base/sys.h"
#include "text/tokenizer/tok.h"

#include <float.h>
#include <string.h>

#define UNK_PENALTY 10.0
#define META        "\xE2\x96\x81" /* U+2581 */
#define CHUNK       (1u << 16)

struct step { /* the best way to arrive at a byte */
    double score;
    int32_t id; /* of the piece that ends here */
    uint32_t start, next;
};
enum { NOT_REACHED = -1, UNKNOWN = -2 };

int tok_unigram_finish(struct sl_tokenizer *t, struct sl_error *err)
{
    struct tok_unigram *u = &t->uni;
    int rc = 0;
    for (int i = 0; i < 256; i++)
        u->byte_id[i] = -1;
    for (uint32_t i = 0; i < t->pieces.n && rc == 0; i++) {
        size_t n;
        if (t->pieces.at[i].len == TOK_HOLE)
            continue;
        const char *s = tok_str(&t->pieces, i, &n);
        int byte = u->byte_fallback ? tok_byte_piece(s, n) : -1;
        if (byte >= 0 && u->byte_id[byte] < 0)
            u->byte_id[byte] = (int32_t)i;
        if ((t->attr[i] & TOK_IN_MODEL) && n > 0)
            rc = tok_trie_add(&u->trie, s, n, (int32_t)i, err);
    }
    u->cuts = tok_model_find(t, META, 3) >= 0 && tok_meta_leads(t);
    return rc;
}

void tok_unigram_floor(struct sl_tokenizer *t)
{
    struct tok_unigram *u = &t->uni;
    bool any = false;
    for (uint32_t i = 0; i < t->pieces.n; i++) {
        double x = u->score_f != NULL ? (double)u->score_f[i] : u->score_d[i];
        if (!(t->attr[i] & TOK_IN_MODEL) || (u->score_f != NULL && (t->attr[i] & SL_TOKEN_ADDED)))
            continue;
        u->min_score = any ? SL_MIN(u->min_score, x) : x;
        any = true;
    }
}

void tok_unigram_deinit(struct tok_unigram *u)
{
    sl_free(u->score_f);
    sl_free(u->score_d);
    tok_trie_deinit(&u->trie);
}

static double tok_unigram_add(const struct tok_unigram *u, double a, double b)
{
    return u->score_f != NULL ? (double)((float)a + (float)b) : a + b;
}

static double tok_unigram_score_of(const struct sl_tokenizer *t, uint32_t id, size_t n)
{
    const struct tok_unigram *u = &t->uni;
    if (u->score_d != NULL)
        return u->score_d[id];
    if (t->has_user && (t->attr[id] & SL_TOKEN_ADDED)) /* user-defined: above any probability */
        return (double)(float)(0.1 * (double)(n - 1));
    return (double)u->score_f[id];
}

static void arrive(struct step *at, double score, int32_t id, size_t start)
{
    if (at->id == NOT_REACHED || score > at->score)
        *at = (struct step){score, id, (uint32_t)start, 0};
}

static void viterbi(const struct sl_tokenizer *t, struct step *best, const char *s, size_t n)
{
    const struct tok_unigram *u = &t->uni;
    double unk_score = tok_unigram_add(u, u->min_score, -UNK_PENALTY);
    for (size_t i = 0; i <= n; i++)
        best[i].id = NOT_REACHED;
    best[0] = (struct step){0, 0, 0, 0};
    for (size_t i = 0, len; i < n; i += len) {
        uint32_t cp, node = 0;
        bool single = false;
        double here = best[i].score;
        len = tok_char(s + i, n - i, &cp);
        for (size_t j = i; u->trie.n_nodes > 0 && j < n; j++) {
            node = tok_trie_step(&u->trie, node, (uint8_t)s[j]);
            if (node == 0)
                break;
            int32_t id = u->trie.value[node];
            if (id < 0 || (t->attr[id] & SL_TOKEN_UNUSED))
                continue;
            size_t k = j + 1 - i;
            arrive(&best[j + 1], tok_unigram_add(u, here, tok_unigram_score_of(t, (uint32_t)id, k)),
                   id, i);
            single |= k == len;
        }
        if (!single)
            arrive(&best[i + len], tok_unigram_add(u, here, unk_score), UNKNOWN, i);
    }
}

static int put_unknown(struct tok_enc *e, const char *s, size_t n)
{
    const struct tok_unigram *u = &e->t->uni;
    int rc = 0;
    bool all = u->byte_fallback;
    for (size_t i = 0; i < n && all; i++)
        all = u->byte_id[(uint8_t)s[i]] >= 0;
    if (!all && u->unk < 0)
        return sl_fail(e->err, SL_EFORMAT,
                       "Unigram: a character has no entry and there is no "
                       "unknown token");
    if (!all)
        return tok_push(e, u->unk);
    for (size_t i = 0; i < n && rc == 0; i++)
        rc = tok_push(e, u->byte_id[(uint8_t)s[i]]);
    return rc;
}

static int encode_chunk(struct tok_enc *e, const char *s, size_t n)
{
    const struct tok_unigram *u = &e->t->uni;
    if (n + 1 > e->cap_path) {
        size_t cap = SL_MAX(n + 1, e->cap_path * 2);
        struct step *grown = sl_realloc(e->path, cap * sizeof(*grown));
        if (grown == NULL)
            return sl_fail(e->err, SL_ENOMEM, "word of %zu bytes", n);
        e->path = grown;
        e->cap_path = cap;
    }
    struct step *best = e->path;
    viterbi(e->t, best, s, n);
    for (size_t end = n; end > 0; end = best[end].start)
        best[best[end].start].next = (uint32_t)end;
    int rc = 0;
    for (size_t i = 0, end; i < n && rc == 0; i = end) {
        end = best[i].next;
        if (best[end].id >= 0) {
            rc = tok_push(e, best[end].id);
            continue;
        }
        while (u->fuse_unk && end < n && best[best[end].next].id == UNKNOWN)
            end = best[end].next;
        rc = put_unknown(e, s + i, end - i);
    }
    return rc;
}

static bool meta_at(const char *s)
{
    return memcmp(s, META, 3) == 0;
}

int tok_unigram_encode(struct tok_enc *e, const char *s, size_t n)
{
    int rc = 0;
    size_t from = 0;
    while (rc == 0 && e->t->uni.cuts && n - from > CHUNK) {
        size_t to = from + CHUNK;
        while (to + 3 <= n && !(meta_at(s + to) && !meta_at(s + to - 3)))
            to++;
        if (to + 3 > n)
            break;
        rc = encode_chunk(e, s + from, to - from);
        from = to;
    }
    return rc != 0 ? rc : encode_chunk(e, s + from, n - from);
}

/* ---------------------------------------------------------------- WordPiece */

int tok_wordpiece_encode(struct tok_enc *e, const char *s, size_t n)
{
    const struct sl_tokenizer *t = e->t;
    const struct tok_wordpiece *wp = &t->wp;
    size_t mark = e->out->n, n_chars = 0;
    int rc = 0;
    for (size_t i = 0; i < n; i++)
        n_chars += ((uint8_t)s[i] & 0xC0) != 0x80;
    bool bad = n_chars > wp->max_chars;
    for (size_t i = 0, end; i < n && !bad && rc == 0; i = end) {
        const char *lead = i > 0 ? wp->prefix : wp->initial;
        size_t n_lead = i > 0 ? wp->n_prefix : wp->n_initial;
        int32_t id = -1;
        /* Inside a word a metaspace is a character like others, not the mark of GGUF's initial
         * pieces, so nothing that begins with it matches. */
        bool never = i > 0 && wp->n_initial > 0 && n - i >= wp->n_initial &&
                     memcmp(s + i, wp->initial, wp->n_initial) == 0;
        for (end = never ? i : SL_MIN(n, i + wp->max_len); end > i && id < 0;) {
            sl_buf_clear(&e->word);
            sl_buf_put(&e->word, lead, n_lead);
            sl_buf_put(&e->word, s + i, end - i);
            if (!sl_buf_ok(&e->word))
                return sl_fail(e->err, SL_ENOMEM, "word of %zu bytes", n);
            id = tok_model_find(t, e->word.data, e->word.n_bytes);
            if (id >= 0)
                break;
            do
                end--;
            while (end > i && ((uint8_t)s[end] & 0xC0) == 0x80);
        }
        bad = id < 0;
        if (!bad)
            rc = tok_push(e, id);
    }
    if (!bad || rc != 0)
        return rc;
    e->out->n = mark;
    if (wp->unk < 0)
        return sl_fail(e->err, SL_EFORMAT,
                       "WordPiece: a word has no entry and there is no "
                       "unknown token");
    return tok_push(e, wp->unk);
}
