/* SPDX-License-Identifier: MIT
 * tok_bpe.c - byte pair encoding: repeatedly merge the pair of neighbours with the lowest rank, the
 * leftmost of equals.
 *
 * Short words are merged here, by scanning; long ones in tok_merge.c, by a queue.
 */
#include "base/check.h"
#include "base/limits.h"
#include "base/sys.h"
#include "text/tokenizer/tok.h"

#include <string.h>

#define META     "\xE2\x96\x81" /* U+2581 */
#define SCAN_MAX 24             /* symbols up to which scanning is faster than the queue */

/* ---------------------------------------------------------------- the merge table */

static uint32_t pair_hash(uint32_t l, uint32_t r)
{
    uint64_t h = ((uint64_t)l << 32 | r) * 0x9E3779B97F4A7C15u;
    return (uint32_t)((h ^ h >> 29) >> 16);
}

int tok_bpe_reserve(struct tok_bpe *b, size_t n_merges, struct sl_error *err)
{
    uint64_t cap = 16;
    while (cap < n_merges + n_merges / 2)
        cap *= 2;
    if (n_merges > (1u << 28))
        return sl_fail(err, SL_ELIMIT, "%zu merges", n_merges);
    b->pairs = sl_malloc(cap * sizeof(*b->pairs));
    if (b->pairs == NULL)
        return sl_fail(err, SL_ENOMEM, "table of %zu merges", n_merges);
    b->id_of_rank = sl_malloc((n_merges + 1) * sizeof(*b->id_of_rank));
    if (b->id_of_rank == NULL)
        return sl_fail(err, SL_ENOMEM, "table of %zu merges", n_merges);
    b->cap_ranks = (uint32_t)n_merges + 1;
    memset(b->pairs, 0xFF, cap * sizeof(*b->pairs));
    b->pair_mask = (uint32_t)(cap - 1);
    return 0;
}

const struct tok_pair *tok_bpe_find_pair(const struct tok_bpe *b, uint32_t l, uint32_t r)
{
    if (b->pairs == NULL)
        return NULL;
    for (uint32_t j = pair_hash(l, r) & b->pair_mask;; j = (j + 1) & b->pair_mask) {
        const struct tok_pair *p = &b->pairs[j];
        if (p->left == TOK_HOLE)
            return NULL;
        if (p->left == l && p->right == r)
            return p;
    }
}

int tok_bpe_add_merge(struct sl_tokenizer *t, const char *l, size_t n_l, const char *r, size_t n_r,
                      uint32_t rank, struct sl_error *err)
{
    struct tok_bpe *b = &t->bpe;
    int32_t left = tok_model_find(t, l, n_l), right = tok_model_find(t, r, n_r);
    char joined[256], *big = NULL, *s = joined;
    if (left < 0 || right < 0)
        return sl_fail(err, SL_EFORMAT, "merge %u: \"%.*s\" is not in the vocabulary", rank,
                       (int)SL_MIN(left < 0 ? n_l : n_r, 64u), left < 0 ? l : r);
    /* "a" + "##b" is "ab": a continuation prefix does not appear in the middle of an entry */
    size_t skip = 0;
    if (b->n_prefix > 0 && n_r >= b->n_prefix && memcmp(r, b->prefix, b->n_prefix) == 0)
        skip = b->n_prefix;
    size_t n = n_l + n_r - skip;
    if (n > sizeof(joined)) {
        s = big = sl_malloc(n);
        if (s == NULL)
            return sl_fail(err, SL_ENOMEM, "merge %u", rank);
    }
    memcpy(s, l, n_l);
    memcpy(s + n_l, r + skip, n_r - skip);
    int32_t id = tok_model_find(t, s, n);
    sl_free(big);
    if (id < 0)
        return sl_fail(err, SL_EFORMAT, "merge %u: \"%.*s\" + \"%.*s\" is not in the vocabulary",
                       rank, (int)SL_MIN(n_l, 64u), l, (int)SL_MIN(n_r, 64u), r);
    if (rank >= b->cap_ranks)
        return sl_fail(err, SL_ELIMIT, "merge %u: table full", rank);
    b->id_of_rank[rank] = (uint32_t)id;
    b->n_ranks = SL_MAX(b->n_ranks, rank + 1);
    uint32_t j = pair_hash((uint32_t)left, (uint32_t)right) & b->pair_mask;
    while (b->pairs[j].left != TOK_HOLE) {
        if (b->pairs[j].left == (uint32_t)left && b->pairs[j].right == (uint32_t)right) {
            b->pairs[j].rank = rank; /* listed twice: the later line counts, as in a map */
            return 0;
        }
        j = (j + 1) & b->pair_mask;
    }
    if (b->n_pairs >= b->pair_mask - b->pair_mask / 8)
        return sl_fail(err, SL_ELIMIT, "merge %u: table full", rank);
    b->pairs[j] = (struct tok_pair){(uint32_t)left, (uint32_t)right, rank, (uint32_t)id};
    b->n_pairs++;
    return 0;
}

bool tok_meta_leads(const struct sl_tokenizer *t)
{
    for (uint32_t i = 0; i < t->pieces.n; i++) {
        size_t n, k = 0;
        if (t->pieces.at[i].len == TOK_HOLE || !(t->attr[i] & TOK_IN_MODEL) ||
            (t->attr[i] & (SL_TOKEN_SPECIAL | SL_TOKEN_BYTE | SL_TOKEN_UNKNOWN)))
            continue;
        const char *s = tok_str(&t->pieces, i, &n);
        while (k + 3 <= n && memcmp(s + k, META, 3) == 0)
            k += 3;
        for (; k + 3 <= n; k++) {
            if (memcmp(s + k, META, 3) == 0)
                return false;
        }
    }
    return true;
}

void tok_bpe_finish(struct sl_tokenizer *t)
{
    struct tok_bpe *b = &t->bpe;
    const struct tok_strtab *tab = b->bytes ? &t->raw : &t->pieces;
    const struct tok_map *map = b->bytes ? &t->by_raw : &t->by_piece;
    if (t->raw_pieces) {
        tab = &t->pieces;
        map = &t->by_piece;
    }
    for (int i = 0; i < 256; i++) {
        char c = (char)i, name[8];
        static const char hex[] = "0123456789ABCDEF";
        memcpy(name, "<0x00>", 7);
        name[3] = hex[i >> 4];
        name[4] = hex[i & 15];
        b->byte_id[i] = b->bytes           ? tok_map_get(map, tab, &c, 1)
                        : b->byte_fallback ? tok_map_get(&t->by_piece, &t->pieces, name, 6)
                                           : -1;
    }
    b->all_bytes = b->bytes;
    for (int i = 0; i < 256; i++)
        b->all_bytes &= b->byte_id[i] >= 0;
    for (uint32_t i = 0; i < tab->n; i++) {
        if (tab->at[i].len != TOK_HOLE && (t->attr[i] & TOK_IN_MODEL))
            b->max_len = SL_MAX(b->max_len, tab->at[i].len);
    }
    if (b->by_concat && b->rank == NULL)
        b->n_ranks = tab->n;
    /* With a prefix or suffix the place of a character in its word matters. */
    b->unit_cut = !b->bytes && b->n_prefix == 0 && b->n_suffix == 0 && !b->whole_first &&
                  !t->has_user && tok_model_find(t, META, 3) >= 0 && tok_meta_leads(t);
}

void tok_bpe_deinit(struct tok_bpe *b)
{
    sl_free(b->pairs);
    sl_free(b->id_of_rank);
    sl_free(b->rank);
    sl_free(b->prefix);
    sl_free(b->suffix);
}

/* ---------------------------------------------------------------- one word */

/* Finds what symbols i and j make together. */
static inline void rate(const struct tok_word *w, struct tok_sym *i, const struct tok_sym *j)
{
    i->rank = TOK_HOLE;
    if (w->b->by_concat) {
        size_t n = (size_t)i->len + j->len;
        if (n > w->b->max_len)
            return;
        int32_t id = tok_map_get(w->map, w->tab, w->s + i->off, n);
        if (id >= 0 && (w->t->attr[id] & TOK_IN_MODEL)) {
            i->rank = w->b->rank != NULL ? w->b->rank[id] : (uint32_t)id;
            i->to = id;
        }
    } else if (i->id >= 0 && j->id >= 0) {
        const struct tok_pair *p = tok_bpe_find_pair(w->b, (uint32_t)i->id, (uint32_t)j->id);
        if (p != NULL) {
            i->rank = p->rank;
            i->to = (int32_t)p->id;
        }
    }
}

static size_t merge_scan(const struct tok_word *w)
{
    struct tok_sym *y = w->y;
    size_t n = w->n;
    for (size_t i = 0; i + 1 < n; i++)
        rate(w, &y[i], &y[i + 1]);
    y[n - 1].rank = TOK_HOLE;
    for (;;) {
        size_t best = 0;
        for (size_t i = 1; i < n; i++) {
            if (y[i].rank < y[best].rank)
                best = i;
        }
        if (y[best].rank == TOK_HOLE)
            return n;
        y[best].id = y[best].to;
        y[best].len += y[best + 1].len;
        y[best].rank = TOK_HOLE;
        n--;
        memmove(&y[best + 1], &y[best + 2], (n - best - 1) * sizeof(*y));
        if (best + 1 < n)
            rate(w, &y[best], &y[best + 1]);
        if (best > 0)
            rate(w, &y[best - 1], &y[best]);
    }
}

/* ---------------------------------------------------------------- symbols of a word */

static int sym_room(struct tok_enc *e, size_t n)
{
    if (n <= e->cap_syms)
        return 0;
    size_t cap = SL_MAX(n, SL_MAX(e->cap_syms * 2, (size_t)64)), bytes;
    struct tok_sym *grown = NULL;
    if (sl_mul_size(cap, sizeof(*grown), &bytes) && cap <= INT32_MAX)
        grown = sl_realloc(e->syms, bytes);
    if (grown == NULL)
        return sl_fail(e->err, SL_ENOMEM, "word of %zu symbols", n);
    e->syms = grown;
    e->cap_syms = cap;
    return 0;
}

static void put_sym(struct tok_enc *e, size_t *n, int32_t id, size_t off, size_t len)
{
    struct tok_sym *y = &e->syms[(*n)++];
    y->id = id;
    y->off = (uint32_t)off;
    y->len = (uint32_t)len;
}

/* The entry of the character s, with the prefix or suffix its place asks for; -1 if there is none.
 */
static int32_t char_entry(struct tok_enc *e, const char *s, size_t n, bool first, bool last)
{
    const struct tok_bpe *b = &e->t->bpe;
    if ((first || b->n_prefix == 0) && (!last || b->n_suffix == 0))
        return tok_model_find(e->t, s, n);
    struct sl_buf *w = &e->word;
    sl_buf_clear(w);
    if (!first)
        sl_buf_put(w, b->prefix, b->n_prefix);
    sl_buf_put(w, s, n);
    if (last)
        sl_buf_put(w, b->suffix, b->n_suffix);
    return sl_buf_ok(w) && w->n_bytes > 0 ? tok_model_find(e->t, w->data, w->n_bytes) : -1;
}

static bool have_bytes(const struct tok_bpe *b, const char *s, size_t n)
{
    for (size_t i = 0; i < n; i++) {
        if (b->byte_id[(uint8_t)s[i]] < 0)
            return false;
    }
    return true;
}

/* Characters as the tokenizers library splits them before merging. An unknown character waits, so
 * that the ones after it can join it. */
static int char_syms(struct tok_enc *e, const char *s, size_t n, size_t *n_syms)
{
    const struct tok_bpe *b = &e->t->bpe;
    size_t k = 0;
    bool pending = false;
    for (size_t i = 0, len; i < n; i += len) {
        uint32_t cp;
        len = tok_char(s + i, n - i, &cp);
        int32_t id = char_entry(e, s + i, len, i == 0, i + len == n);
        if (id >= 0) {
            if (pending)
                put_sym(e, &k, b->unk, i, 1);
            pending = false;
            put_sym(e, &k, id, i, len);
        } else if (b->byte_fallback && have_bytes(b, s + i, len)) {
            for (size_t j = 0; j < len; j++)
                put_sym(e, &k, b->byte_id[(uint8_t)s[i + j]], i + j, 1);
        } else if (b->unk >= 0) {
            if (pending && !b->fuse_unk)
                put_sym(e, &k, b->unk, i, 1);
            pending = true;
        }
    }
    if (pending)
        put_sym(e, &k, b->unk, n - 1, 1);
    *n_syms = k;
    return 0;
}

/* Symbols of SentencePiece: user-defined ones whole, else characters, known or not. */
static int spm_syms(struct tok_enc *e, const char *s, size_t n, size_t *n_syms)
{
    size_t k = 0;
    for (size_t i = 0, len; i < n; i += len) {
        uint32_t cp;
        int32_t id = e->t->has_user ? tok_trie_longest(&e->t->user, s + i, n - i, &len) : -1;
        if (id < 0) {
            len = tok_char(s + i, n - i, &cp);
            id = -1;
        }
        put_sym(e, &k, id, i, len);
    }
    *n_syms = k;
    return 0;
}

/* A user-defined symbol never merges: its rank with its neighbours is none. Cutting the word at it
 * says the same and leaves the merge loops alone. */
static int tok_bpe_emit(struct tok_enc *e, const struct tok_word *w, size_t n)
{
    const struct tok_bpe *b = w->b;
    bool was_unknown = false;
    int rc = 0;
    for (size_t i = 0; i < n && rc == 0; i++) {
        const struct tok_sym *y = &w->y[i];
        int32_t id = y->id;
        const char *s = w->s + y->off;
        if (id < 0 && b->by_concat && !b->bytes)
            id = tok_model_find(w->t, s, y->len);
        if (id >= 0) {
            rc = tok_push(e, id);
            was_unknown = false;
        } else if (b->byte_fallback && have_bytes(b, s, y->len)) {
            for (size_t j = 0; j < y->len && rc == 0; j++)
                rc = tok_push(e, b->byte_id[(uint8_t)s[j]]);
            was_unknown = false;
        } else if (b->unk >= 0) {
            if (!was_unknown || !b->fuse_unk)
                rc = tok_push(e, b->unk);
            was_unknown = true;
        }
    }
    return rc;
}

static int merge_and_emit(struct tok_enc *e, struct tok_word *w)
{
    size_t n = w->n;
    int rc = 0;
    if (n == 0)
        return 0;
    if (n <= SCAN_MAX)
        n = merge_scan(w);
    else if (w->b->n_ranks > 0)
        rc = tok_merge_long(e, w, &n);
    return rc != 0 ? rc : tok_bpe_emit(e, w, n);
}

static int encode_symbols(struct tok_enc *e, const char *s, size_t n)
{
    const struct sl_tokenizer *t = e->t;
    const struct tok_bpe *b = &t->bpe;
    bool raw = b->bytes && !t->raw_pieces;
    struct tok_word w = {t,    b, raw ? &t->raw : &t->pieces, raw ? &t->by_raw : &t->by_piece, s,
                         NULL, 0};
    if (b->all_bytes && n > SCAN_MAX && b->n_ranks > 0) {
        w.n = n;
        return tok_merge_long(e, &w, &n);
    }
    int rc = sym_room(e, n + 1);
    if (rc != 0)
        return rc;
    if (b->bytes) {
        for (size_t i = 0; i < n; i++) {
            int32_t id = b->byte_id[(uint8_t)s[i]];
            if (id >= 0 || b->unk >= 0)
                put_sym(e, &w.n, id >= 0 ? id : b->unk, i, 1);
        }
    } else if ((rc = b->by_concat ? spm_syms(e, s, n, &w.n) : char_syms(e, s, n, &w.n)) != 0) {
        return rc;
    }
    w.y = e->syms;
    if (!t->has_user)
        return merge_and_emit(e, &w);
    size_t from = 0, n_all = w.n;
    struct tok_sym *all = w.y;
    for (size_t i = 0; i < n_all && rc == 0; i++) {
        if (all[i].id < 0)
            continue;
        w.y = all + from;
        w.n = i - from;
        rc = merge_and_emit(e, &w);
        if (rc == 0)
            rc = tok_push(e, all[i].id);
        from = i + 1;
    }
    w.y = all + from;
    w.n = n_all - from;
    return rc != 0 ? rc : merge_and_emit(e, &w);
}

static int encode_cached(struct tok_enc *e, const char *s, size_t n)
{
    const struct sl_tokenizer *t = e->t;
    const struct tok_bpe *b = &t->bpe;
    uint32_t hash = 0;
    if (b->whole_first || (e->cache != NULL && n <= sizeof(e->cache->key)))
        hash = tok_hash(t->by_piece.seed, s, n);
    if (b->whole_first) {
        bool raw = b->bytes && !t->raw_pieces;
        int32_t id = n > b->max_len ? -1
                                    : tok_map_get_hashed(raw ? &t->by_raw : &t->by_piece,
                                                         raw ? &t->raw : &t->pieces, s, n, hash);
        if (id >= 0 && (t->attr[id] & TOK_IN_MODEL))
            return tok_push(e, id);
    }
    if (e->cache == NULL || n > sizeof(e->cache->key))
        return encode_symbols(e, s, n);
    int rc = 0;
    if (tok_cache_find(e, s, n, hash, &rc))
        return rc;
    size_t at = e->out->n;
    rc = encode_symbols(e, s, n);
    if (rc == 0)
        tok_cache_put(e, s, n, hash, at);
    return rc;
}

int tok_bpe_encode(struct tok_enc *e, const char *s, size_t n)
{
    int rc = 0;
    if (n == 0)
        return 0;
    if (!e->t->bpe.unit_cut)
        return encode_cached(e, s, n);
    size_t from = 0;
    bool in_meta = true;
    for (size_t i = 0; i < n && rc == 0; i++) {
        bool meta = (uint8_t)s[i] == 0xE2 && n - i >= 3 && (uint8_t)s[i + 1] == 0x96 &&
                    (uint8_t)s[i + 2] == 0x81;
        if (meta && !in_meta) {
            rc = encode_cached(e, s + from, i - from);
            from = i;
        }
        in_meta = meta;
        i += meta ? 2 : 0;
    }
    return rc != 0 ? rc : encode_cached(e, s + from, n - from);
}
