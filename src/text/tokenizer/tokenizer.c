/* SPDX-License-Identifier: MIT
 * tokenizer.c - building a tokenizer from its parts, taking it down, and encoding.
 */
#include "text/tokenizer/tokenizer.h"

#include "base/check.h"
#include "base/limits.h"
#include "base/sys.h"
#include "sluice.h"
#include "text/tokenizer/tok.h"

#include <string.h>

#define CACHE_FROM 512 /* bytes of text from which a cache of words pays for itself */

struct sl_tokenizer *tok_create(struct sl_error *err)
{
    struct sl_tokenizer *t = sl_calloc(1, sizeof(*t));
    uint64_t seed;
    if (t == NULL) {
        (void)sl_fail(err, SL_ENOMEM, "tokenizer");
        return NULL;
    }
    if (sl_random(&seed, sizeof(seed), NULL) != 0)
        seed = (uint64_t)(uintptr_t)t;
    /* One seed for all, so that a word is hashed once for the vocabulary and for the cache. */
    t->by_piece.seed = t->by_raw.seed = seed;
    t->bos = t->eos = t->eot = -1;
    t->bpe.unk = t->uni.unk = t->wp.unk = -1;
    return t;
}

void sl_tokenizer_destroy(struct sl_tokenizer *t)
{
    if (t == NULL)
        return;
    tok_strtab_deinit(&t->pieces);
    tok_strtab_deinit(&t->raw);
    tok_strtab_deinit(&t->text);
    sl_free(t->by_piece.slots);
    sl_free(t->by_raw.slots);
    sl_free(t->attr);
    for (size_t i = 0; i < t->n_norm; i++)
        tok_norm_deinit(&t->norm[i]);
    for (size_t i = 0; i < t->n_pre; i++)
        tok_pre_deinit(&t->pre[i]);
    for (size_t i = 0; i < t->n_dec_ops; i++) {
        sl_free(t->dec_ops[i].a);
        sl_free(t->dec_ops[i].b);
        tok_regex_destroy(t->dec_ops[i].re);
    }
    tok_bpe_deinit(&t->bpe);
    tok_unigram_deinit(&t->uni);
    sl_free(t->wp.prefix);
    sl_free(t->wp.initial);
    tok_trie_deinit(&t->user);
    tok_trie_deinit(&t->added.raw);
    tok_trie_deinit(&t->added.normalized);
    sl_free(t->added.v);
    sl_free(t->prefix_ids);
    sl_free(t->suffix_ids);
    sl_free(t);
}

/* ---------------------------------------------------------------- parts */

int tok_dup(char **out, size_t *n_out, const char *s, size_t n, struct sl_error *err)
{
    *out = sl_strndup(s, n);
    if (*out == NULL)
        return sl_fail(err, SL_ENOMEM, "string of %zu bytes", n);
    *n_out = n;
    return 0;
}

struct tok_norm *tok_add_norm(struct sl_tokenizer *t, enum tok_norm_kind kind, struct sl_error *err)
{
    if (t->n_norm == TOK_MAX_STEPS) {
        (void)sl_fail(err, SL_ELIMIT, "normalizer: more than %d steps", TOK_MAX_STEPS);
        return NULL;
    }
    t->norm[t->n_norm].kind = kind;
    return &t->norm[t->n_norm++];
}

struct tok_pre *tok_add_pre(struct sl_tokenizer *t, enum tok_pre_kind kind, struct sl_error *err)
{
    if (t->n_pre == TOK_MAX_STEPS) {
        (void)sl_fail(err, SL_ELIMIT, "pre_tokenizer: more than %d steps", TOK_MAX_STEPS);
        return NULL;
    }
    t->pre[t->n_pre].kind = kind;
    return &t->pre[t->n_pre++];
}

struct tok_dec_op *tok_add_dec(struct sl_tokenizer *t, enum tok_dec_kind kind, struct sl_error *err)
{
    if (t->n_dec_ops == TOK_MAX_STEPS) {
        (void)sl_fail(err, SL_ELIMIT, "decoder: more than %d steps", TOK_MAX_STEPS);
        return NULL;
    }
    t->dec_ops[t->n_dec_ops].kind = kind;
    return &t->dec_ops[t->n_dec_ops++];
}

int tok_add_split(struct sl_tokenizer *t, const char *pattern, size_t n, enum tok_behavior behavior,
                  bool invert, struct sl_error *err)
{
    /* These patterns match every character, so what is not a match is nothing. */
    enum tok_fast fast = tok_fast_kind(pattern, n);
    if ((behavior == SPLIT_ISOLATED && !invert) || (behavior == SPLIT_REMOVED && invert)) {
        if (fast != TOK_FAST_NONE) {
            struct tok_pre *op = tok_add_pre(t, PRE_FAST, err);
            if (op == NULL)
                return SL_ELIMIT;
            op->fast = fast;
            op->behavior = SPLIT_ISOLATED;
            return 0;
        }
    }
    struct tok_pre *op = tok_add_pre(t, PRE_REGEX, err);
    if (op == NULL)
        return SL_ELIMIT;
    op->behavior = behavior;
    op->invert = invert;
    return tok_regex_create(pattern, n, &op->re, err);
}

int tok_add_bert_split(struct sl_tokenizer *t, struct sl_error *err)
{
    struct tok_pre *op = tok_add_pre(t, PRE_CHARS, err);
    if (op == NULL)
        return SL_ELIMIT;
    op->cls = CLASS_SPACE;
    op->behavior = SPLIT_REMOVED;
    if ((op = tok_add_pre(t, PRE_CHARS, err)) == NULL)
        return SL_ELIMIT;
    op->cls = CLASS_PUNCT;
    op->behavior = SPLIT_ISOLATED;
    return 0;
}

int tok_set_affixes(struct sl_tokenizer *t, const int32_t *pre, size_t n_pre, const int32_t *post,
                    size_t n_post, struct sl_error *err)
{
    int32_t *a = sl_malloc((n_pre + 1) * sizeof(*a)), *b = sl_malloc((n_post + 1) * sizeof(*b));
    if (a == NULL || b == NULL) {
        sl_free(a);
        sl_free(b);
        return sl_fail(err, SL_ENOMEM, "post_processor");
    }
    if (n_pre > 0)
        memcpy(a, pre, n_pre * sizeof(*a));
    if (n_post > 0)
        memcpy(b, post, n_post * sizeof(*b));
    sl_free(t->prefix_ids);
    sl_free(t->suffix_ids);
    t->prefix_ids = a;
    t->suffix_ids = b;
    t->n_prefix_ids = n_pre;
    t->n_suffix_ids = n_post;
    return 0;
}

/* ---------------------------------------------------------------- vocabulary */

static int two_ids(const struct sl_tokenizer *t, const char *piece, size_t n, uint64_t id,
                   struct sl_error *err)
{
    return sl_fail(
        err, SL_EFORMAT, "vocabulary: \"%.*s\" is listed twice, with the ids %d and %llu",
        (int)SL_MIN(n, (size_t)64), piece, sl_tokenizer_find(t, piece, n), (unsigned long long)id);
}

int tok_vocab_add(struct sl_tokenizer *t, uint64_t id, const char *piece, size_t n, unsigned attr,
                  bool twice, struct sl_error *err)
{
    int show = (int)SL_MIN(n, (size_t)64);
    if (id >= SL_MAX_VOCAB)
        return sl_fail(err, SL_ELIMIT, "vocabulary: id %llu of \"%.*s\" is beyond %d",
                       (unsigned long long)id, show, piece, SL_MAX_VOCAB);
    if (n > SL_MAX_TOKEN_BYTES)
        return sl_fail(err, SL_ELIMIT, "vocabulary: entry %llu \"%.*s...\" has %zu bytes",
                       (unsigned long long)id, show, piece, n);
    if (id < t->pieces.n && t->pieces.at[id].len != TOK_HOLE) {
        size_t n_other;
        const char *other = tok_str(&t->pieces, (uint32_t)id, &n_other);
        return sl_fail(err, SL_EFORMAT, "vocabulary: \"%.*s\" and \"%.*s\" both have the id %llu",
                       (int)SL_MIN(n_other, (size_t)64), other, show, piece,
                       (unsigned long long)id);
    }
    int rc = tok_strtab_put(&t->pieces, (uint32_t)id, piece, n, err);
    if (rc != 0)
        return rc;
    if (t->pieces.cap > t->cap_attr) {
        uint8_t *grown = sl_realloc(t->attr, t->pieces.cap);
        if (grown == NULL)
            return sl_fail(err, SL_ENOMEM, "vocabulary of %u entries", t->pieces.cap);
        memset(grown + t->cap_attr, SL_TOKEN_UNUSED, t->pieces.cap - t->cap_attr);
        t->attr = grown;
        t->cap_attr = t->pieces.cap;
    }
    t->attr[id] = (uint8_t)attr;
    rc = tok_map_put(&t->by_piece, &t->pieces, (uint32_t)id);
    if (rc < 0)
        return sl_fail(err, SL_ENOMEM, "vocabulary of %u entries", t->pieces.n);
    return rc > 0 || twice ? 0 : two_ids(t, piece, n, id, err);
}

int32_t tok_model_find(const struct sl_tokenizer *t, const char *piece, size_t n)
{
    int32_t id = tok_map_get(&t->by_piece, &t->pieces, piece, n);
    return id >= 0 && (t->attr[id] & TOK_IN_MODEL) ? id : -1;
}

int tok_byte_piece(const char *s, size_t n)
{
    int v = 0;
    if (n != 6 || memcmp(s, "<0x", 3) != 0 || s[5] != '>')
        return -1;
    for (int i = 3; i < 5; i++) {
        char c = s[i];
        int d = c >= '0' && c <= '9' ? c - '0' : c >= 'A' && c <= 'F' ? c - 'A' + 10 : -1;
        if (d < 0)
            return -1;
        v = v * 16 + d;
    }
    return v;
}

/* The bytes each byte-level piece stands for. A piece with a character outside the alphabet stands
 * for itself and is nothing BPE can reach. */
static int build_raw(struct sl_tokenizer *t, struct sl_error *err)
{
    int rc = tok_map_reserve(&t->by_raw, t->pieces.n, err);
    char small[256];
    for (uint32_t i = 0; i < t->pieces.n && rc == 0; i++) {
        size_t n, k = 0;
        if (t->pieces.at[i].len == TOK_HOLE)
            continue;
        const char *s = tok_str(&t->pieces, i, &n);
        char *buf = n <= sizeof(small) ? small : sl_malloc(n);
        if (buf == NULL)
            return sl_fail(err, SL_ENOMEM, "vocabulary entry of %zu bytes", n);
        bool ok = true;
        for (size_t j = 0, len; j < n && ok; j += len) {
            uint32_t cp;
            len = tok_char(s + j, n - j, &cp);
            int byte = tok_byte_of_cp(cp);
            ok = byte >= 0;
            buf[k++] = (char)byte;
        }
        rc = tok_strtab_put(&t->raw, i, ok ? buf : s, ok ? k : n, err);
        if (buf != small)
            sl_free(buf);
        if (rc == 0 && ok && (t->attr[i] & TOK_IN_MODEL) && tok_map_put(&t->by_raw, &t->raw, i) < 0)
            rc = sl_fail(err, SL_ENOMEM, "vocabulary index");
    }
    return rc;
}

static int32_t find_any(const struct sl_tokenizer *t, const char *const *names, size_t n)
{
    for (size_t i = 0; i < n; i++) {
        int32_t id = sl_tokenizer_find(t, names[i], strlen(names[i]));
        if (id >= 0 && (t->attr[id] & (SL_TOKEN_SPECIAL | SL_TOKEN_ADDED)))
            return id;
    }
    return -1;
}

static void find_ends(struct sl_tokenizer *t)
{
    static const char *const eot[] = {"<|eot_id|>", "<|im_end|>", "<end_of_turn>", "<turn|>",
                                      "<|end|>",    "<|return|>", "<|eot|>",       "<EOT>"};
    static const char *const eos[] = {"</s>", "<|end_of_text|>", "<|endoftext|>", "<eos>",
                                      ("<\xEF\xBD\x9C"
                                       "end\xE2\x96\x81of\xE2\x96\x81sentence\xEF\xBD\x9C>")};
    if (t->bos < 0 && t->n_prefix_ids > 0)
        t->bos = t->prefix_ids[0];
    if (t->eos < 0)
        t->eos = find_any(t, eos, SL_COUNT(eos));
    if (t->eot < 0)
        t->eot = find_any(t, eot, SL_COUNT(eot));
}

int tok_finish(struct sl_tokenizer *t, struct sl_error *err)
{
    bool byte_decoder = false;
    int rc = 0;
    if (t->pieces.n == 0)
        return sl_fail(err, SL_EFORMAT, "vocabulary is empty");
    for (size_t i = 0; i < t->n_dec_ops; i++)
        byte_decoder |= t->dec_ops[i].kind == DEC_BYTE_LEVEL;
    if (!t->raw_pieces && ((t->model == MODEL_BPE && t->bpe.bytes) || byte_decoder))
        rc = build_raw(t, err);
    if (rc == 0)
        rc = tok_decoder_finish(t, err);
    for (uint32_t i = 0; rc == 0 && i < t->pieces.n; i++) {
        if (t->pieces.at[i].len != TOK_HOLE)
            t->max_token_bytes = SL_MAX(
                t->max_token_bytes, SL_MAX((size_t)t->pieces.at[i].len, (size_t)t->dec->at[i].len));
    }
    t->wp.max_len = t->max_token_bytes;
    if (rc == 0 && t->model == MODEL_BPE)
        tok_bpe_finish(t);
    if (rc == 0 && t->model == MODEL_UNIGRAM)
        rc = tok_unigram_finish(t, err);
    if (rc == 0 && t->model == MODEL_WORLD)
        rc = tok_world_finish(t, err);
    if (rc == 0)
        rc = tok_added_build(t, err);
    find_ends(t);
    return rc;
}

/* ---------------------------------------------------------------- encoding */

int tok_push_slow(struct tok_enc *e, int32_t id)
{
    struct sl_ids *o = e->out;
    size_t cap = SL_MAX(o->cap + o->cap / 2, o->n + 64), bytes;
    int32_t *grown = NULL;
    if (sl_mul_size(cap, sizeof(*grown), &bytes))
        grown = sl_realloc(o->data, bytes);
    if (grown == NULL)
        return sl_fail(e->err, SL_ENOMEM, "%zu tokens", cap);
    o->data = grown;
    o->cap = cap;
    o->data[o->n++] = id;
    return 0;
}

static int word_level(struct tok_enc *e, const char *w, size_t n)
{
    int32_t id = tok_model_find(e->t, w, n);
    if (id < 0)
        id = e->t->wp.unk;
    return id < 0 ? sl_fail(e->err, SL_EFORMAT,
                            "WordLevel: a word has no entry and there is no "
                            "unknown token")
                  : tok_push(e, id);
}

static int encode_word(struct tok_enc *e, const char *w, size_t n)
{
    switch (e->t->model) {
    case MODEL_BPE:
        return tok_bpe_encode(e, w, n);
    case MODEL_UNIGRAM:
        return tok_unigram_encode(e, w, n);
    case MODEL_WORDPIECE:
        return tok_wordpiece_encode(e, w, n);
    case MODEL_WORLD:
        return tok_world_encode(e, w, n);
    case MODEL_WORDLEVEL:
        break;
    }
    return word_level(e, w, n);
}

/* BPE looks at its vocabulary first and may cut words further, so it does this for itself. */
int tok_model_encode(struct tok_enc *e, const char *w, size_t n)
{
    if (n == 0)
        return 0;
    if (e->cache == NULL || n > sizeof(e->cache->key) || e->t->model == MODEL_BPE)
        return encode_word(e, w, n);
    uint32_t hash = tok_hash(e->t->by_piece.seed, w, n);
    int rc = 0;
    if (tok_cache_find(e, w, n, hash, &rc))
        return rc;
    size_t at = e->out->n;
    rc = encode_word(e, w, n);
    if (rc == 0)
        tok_cache_put(e, w, n, hash, at);
    return rc;
}

/* A word seen before in this call: its ids are already in the output. */
bool tok_cache_find(struct tok_enc *e, const char *w, size_t n, uint32_t hash, int *rc)
{
    const struct tok_cached *c = &e->cache[hash & (TOK_CACHE_SIZE - 1)];
    if (c->len != n || memcmp(c->key, w, n) != 0)
        return false;
    for (uint32_t i = 0; i < c->n_ids && *rc == 0; i++)
        *rc = tok_push(e, e->out->data[c->at + i]);
    return true;
}

void tok_cache_put(struct tok_enc *e, const char *w, size_t n, uint32_t hash, size_t at)
{
    struct tok_cached *c = &e->cache[hash & (TOK_CACHE_SIZE - 1)];
    if (at >= UINT32_MAX)
        return;
    c->at = (uint32_t)at;
    c->n_ids = (uint32_t)(e->out->n - at);
    c->len = (uint8_t)n;
    memcpy(c->key, w, n);
}

static void enc_deinit(struct tok_enc *e)
{
    sl_buf_deinit(&e->clean);
    sl_buf_deinit(&e->word);
    for (int i = 0; i < 2; i++) {
        sl_buf_deinit(&e->norm[i]);
        sl_buf_deinit(&e->stage[i]);
        sl_free(e->spans[i].v);
    }
    sl_free(e->syms);
    sl_free(e->cache);
    sl_free(e->path);
    tok_bucketq_destroy(e->queue);
    tok_search_destroy(e->search);
}

int sl_tokenizer_encode_into(const struct sl_tokenizer *tok, const char *text, size_t n_bytes,
                             unsigned flags, struct sl_ids *out, struct sl_error *err)
{
    struct tok_enc e = {.t = tok, .out = out, .err = err, .flags = flags, .n_bytes = n_bytes};
    bool affixes = flags & SL_ENCODE_ADD_SPECIAL;
    size_t mark = out->n;
    int rc = 0;
    if (n_bytes > SL_MAX_TEXT)
        return sl_fail(err, SL_ELIMIT, "text of %zu bytes, at most %u", n_bytes, SL_MAX_TEXT);
    for (size_t i = 0; affixes && i < tok->n_prefix_ids && rc == 0; i++)
        rc = tok_push(&e, tok->prefix_ids[i]);
    if (n_bytes >= CACHE_FROM)
        e.cache = sl_calloc(TOK_CACHE_SIZE, sizeof(*e.cache)); /* without it only slower */
    if (rc == 0)
        rc = tok_encode_text(&e, text, n_bytes);
    for (size_t i = 0; affixes && i < tok->n_suffix_ids && rc == 0; i++)
        rc = tok_push(&e, tok->suffix_ids[i]);
    enc_deinit(&e);
    if (rc != 0)
        out->n = mark;
    return rc;
}

int sl_tokenizer_encode(const struct sl_tokenizer *tok, const char *text, size_t n_bytes,
                        unsigned flags, int32_t **ids, size_t *n_ids, struct sl_error *err)
{
    struct sl_ids out = {0};
    int rc = sl_tokenizer_encode_into(tok, text, n_bytes, flags, &out, err);
    if (rc == 0 && out.data == NULL) {
        out.data = sl_malloc(sizeof(*out.data));
        if (out.data == NULL)
            rc = sl_fail(err, SL_ENOMEM, "tokens");
    }
    if (rc != 0) {
        sl_free(out.data);
        return rc;
    }
    *ids = out.data;
    *n_ids = out.n;
    return 0;
}

/* ---------------------------------------------------------------- questions */

int32_t sl_tokenizer_n_vocab(const struct sl_tokenizer *tok)
{
    return (int32_t)tok->pieces.n;
}

unsigned sl_tokenizer_attr(const struct sl_tokenizer *tok, int32_t id)
{
    if (id < 0 || (uint32_t)id >= tok->pieces.n || tok->pieces.at[id].len == TOK_HOLE)
        return SL_TOKEN_UNUSED;
    return tok->attr[id] & ~TOK_IN_MODEL;
}

const char *sl_tokenizer_piece(const struct sl_tokenizer *tok, int32_t id, size_t *n_bytes)
{
    if (id < 0 || (uint32_t)id >= tok->pieces.n || tok->pieces.at[id].len == TOK_HOLE)
        return NULL;
    return tok_str(&tok->pieces, (uint32_t)id, n_bytes);
}

int32_t sl_tokenizer_find(const struct sl_tokenizer *tok, const char *piece, size_t n)
{
    return tok_map_get(&tok->by_piece, &tok->pieces, piece, n);
}

int32_t sl_tokenizer_bos(const struct sl_tokenizer *tok)
{
    return tok->bos;
}

int32_t sl_tokenizer_eos(const struct sl_tokenizer *tok)
{
    return tok->eos;
}

int32_t sl_tokenizer_eot(const struct sl_tokenizer *tok)
{
    return tok->eot;
}

size_t sl_tokenizer_max_token_bytes(const struct sl_tokenizer *tok)
{
    return tok->max_token_bytes;
}
