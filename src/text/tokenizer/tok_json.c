/* SPDX-License-Identifier: MIT
 * tok_json.c - tokenizer.json: the file as a whole, its model and its added tokens. The steps of
 * the pipeline are in tok_json_steps.c.
 *
 * Nearly all of such a file is model.vocab and model.merges, up to 20 MB of short strings. A
 * general JSON library spends most of the start-up time of a small model on them, so these two
 * values are read straight from the text into the tables; what is left goes to jansson.
 */
#include "text/tokenizer/tok_json.h"
#include "base/check.h"
#include "base/json_load.h"
#include "base/limits.h"
#include "base/str.h"
#include "base/sys.h"
#include "text/tokenizer/tok.h"

#include <string.h>

/* ---------------------------------------------------------------- a minimal reader */

struct reader {
    const char *s;
    size_t n, i;
    const char *what;   /* the file's name; NULL: tokenizer.json */
    struct sl_buf text; /* the last string, where it had escapes */
    struct sl_error *err;
};

static int malformed(struct reader *r, const char *what)
{
    SL_ASSERT(r->i <= r->n); /* the message names a byte of the file */
    return sl_fail(r->err, SL_EFORMAT, "%s: %s at byte %zu",
                   r->what != NULL ? r->what : "tokenizer.json", what, r->i);
}

static char tok_json_peek(struct reader *r)
{
    SL_DCHECK(r->i <= r->n);
    while (r->i < r->n &&
           (r->s[r->i] == ' ' || r->s[r->i] == '\n' || r->s[r->i] == '\t' || r->s[r->i] == '\r'))
        r->i++;
    return r->i < r->n ? r->s[r->i] : '\0';
}

static bool tok_json_take(struct reader *r, char c)
{
    if (tok_json_peek(r) != c)
        return false;
    r->i++;
    return true;
}

static bool tok_json_hex4(struct reader *r, uint32_t *out)
{
    uint64_t v;
    if (r->n - r->i < 4 || !sl_parse_hex_u64(r->s + r->i, 4, &v))
        return false;
    SL_ASSERT(v <= 0xFFFF);
    *out = (uint32_t)v;
    r->i += 4;
    return true;
}

/* One escape, r->i behind the backslash. Lone surrogates are refused: they are no text. */
static bool tok_json_escape(struct reader *r)
{
    static const char from[] = "\"\\/bfnrt", to[] = "\"\\/\b\f\n\r\t";
    SL_ASSERT(r->i > 0 && r->s[r->i - 1] == '\\');
    char c = r->i < r->n ? r->s[r->i++] : '\0';
    const char *at = c != '\0' ? strchr(from, c) : NULL;
    if (at != NULL) {
        sl_buf_putc(&r->text, to[at - from]);
        return true;
    }
    uint32_t cp, low;
    if (c != 'u' || !tok_json_hex4(r, &cp) || (cp >= 0xDC00 && cp <= 0xDFFF))
        return false;
    if (cp >= 0xD800 && cp <= 0xDBFF) {
        if (r->n - r->i < 6 || r->s[r->i] != '\\' || r->s[r->i + 1] != 'u')
            return false;
        r->i += 2;
        if (!tok_json_hex4(r, &low) || low < 0xDC00 || low > 0xDFFF)
            return false;
        cp = 0x10000 + ((cp & 0x3FF) << 10) + (low & 0x3FF);
    }
    SL_ASSERT(cp < 0xD800 || (cp > 0xDFFF && cp <= 0x10FFFF));
    tok_put_cp(&r->text, cp);
    return true;
}

/* A string; *out lives until the next one is read. */
static int tok_json_read_string(struct reader *r, const char **out, size_t *n_out)
{
    if (!tok_json_take(r, '"'))
        return malformed(r, "expected a string");
    size_t from = r->i;
    bool plain = true;
    sl_buf_clear(&r->text);
    for (;;) {
        while (r->i < r->n && r->s[r->i] != '"' && r->s[r->i] != '\\' &&
               (uint8_t)r->s[r->i] >= 0x20)
            r->i++;
        if (r->i == r->n || (uint8_t)r->s[r->i] < 0x20)
            return malformed(r, "unterminated string");
        if (r->s[r->i] == '"' && plain) {
            *out = r->s + from;
            *n_out = r->i++ - from;
            break;
        }
        sl_buf_put(&r->text, r->s + from, r->i - from);
        if (r->s[r->i++] == '"') {
            *out = r->text.data != NULL ? r->text.data : "";
            *n_out = r->text.n_bytes;
            break;
        }
        plain = false;
        if (!tok_json_escape(r))
            return malformed(r, "malformed escape");
        from = r->i;
    }
    SL_ASSERT(r->i > from && r->i <= r->n && r->s[r->i - 1] == '"');
    if (!sl_buf_ok(&r->text))
        return sl_fail(r->err, SL_ENOMEM, "tokenizer.json");
    if (tok_valid_prefix(*out, *n_out) < *n_out)
        return malformed(r, "invalid UTF-8");
    return 0;
}

static size_t number_length(struct reader *r)
{
    size_t n = 0;
    tok_json_peek(r);
    while (r->i + n < r->n && r->s[r->i + n] != '\0' &&
           strchr("+-.eE0123456789", r->s[r->i + n]) != NULL)
        n++;
    SL_ASSERT(r->i + n <= r->n);
    return n;
}

/* Skips a string: to the first quote that no backslash precedes. */
static bool skip_string(struct reader *r)
{
    SL_ASSERT(r->i < r->n && r->s[r->i] == '"');
    for (r->i++; r->i < r->n; r->i++) {
        if (r->s[r->i] == '"') {
            r->i++;
            return true;
        }
        r->i += r->s[r->i] == '\\';
    }
    r->i = r->n;
    return false;
}

/* Skips one value of any kind. Only nesting is checked: whatever is skipped here is read by
 * another reader later. */
static int skip_value(struct reader *r)
{
    int depth = 0;
    do {
        SL_DCHECK(depth >= 0 && depth <= SL_MAX_JSON_DEPTH);
        char c = tok_json_peek(r);
        if (c == '"') {
            if (!skip_string(r))
                return malformed(r, "unterminated string");
        } else if (c == '{' || c == '[') {
            r->i++;
            if (++depth > SL_MAX_JSON_DEPTH)
                return malformed(r, "nested too deeply");
        } else if (c == '}' || c == ']') {
            r->i++;
            if (--depth < 0)
                return malformed(r, "unbalanced bracket");
        } else if (c == '\0') {
            return malformed(r, "unexpected end");
        } else if (depth > 0 && (c == ',' || c == ':')) {
            r->i++;
        } else {
            size_t from = r->i;
            while (r->i < r->n && r->s[r->i] != '\0' &&
                   strchr(",:]}[{\" \t\r\n", r->s[r->i]) == NULL)
                r->i++;
            if (r->i == from)
                return malformed(r, "unexpected character");
        }
    } while (depth > 0);
    SL_ASSERT(depth == 0 && r->i <= r->n);
    return 0;
}

/* ---------------------------------------------------------------- the two big values */

struct range {
    size_t from, to;
};

/* What find_members looks for: the value's place, or, given `inner`, the places of its members. */
struct member {
    const char *name;
    struct range at;
    struct member *inner;
    size_t n_inner;
};

static int find_members(struct reader *r, struct member *wanted, size_t n)
{
    const char *key;
    size_t n_key;
    int rc;
    if (!tok_json_take(r, '{'))
        return malformed(r, "expected an object");
    if (tok_json_take(r, '}'))
        return 0;
    do {
        if ((rc = tok_json_read_string(r, &key, &n_key)) != 0)
            return rc;
        size_t k = 0;
        while (k < n &&
               (strlen(wanted[k].name) != n_key || memcmp(wanted[k].name, key, n_key) != 0))
            k++;
        if (!tok_json_take(r, ':'))
            return malformed(r, "expected a colon");
        tok_json_peek(r);
        size_t from = r->i;
        if (k < n && wanted[k].at.to != 0)
            return malformed(r, "member listed twice");
        if (k < n && wanted[k].inner != NULL) /* two levels, no more */
            rc = find_members(r, wanted[k].inner, wanted[k].n_inner);
        else
            rc = skip_value(r);
        if (rc != 0)
            return rc;
        SL_ASSERT(from < r->i && r->i <= r->n); /* `to` is not 0: it says that there is one */
        if (k < n)
            wanted[k].at = (struct range){from, r->i};
    } while (tok_json_take(r, ','));
    return tok_json_take(r, '}') ? 0 : malformed(r, "expected a comma or brace");
}

static int vocab_entry(struct sl_tokenizer *t, struct reader *r)
{
    const char *s;
    size_t n, len;
    uint64_t id;
    int rc = tok_json_read_string(r, &s, &n);
    if (rc != 0)
        return rc;
    if (!tok_json_take(r, ':') || (len = number_length(r)) == 0 ||
        !sl_parse_u64(r->s + r->i, len, &id))
        return sl_fail(r->err, SL_EFORMAT, "tokenizer.json: vocab: id of \"%.*s\" is no number",
                       (int)SL_MIN(n, (size_t)64), s);
    r->i += len;
    SL_ASSERT(r->i <= r->n);
    return tok_vocab_add(t, id, s, n, TOK_IN_MODEL, false, r->err);
}

static int read_vocab(struct sl_tokenizer *t, struct reader *r)
{
    int rc;
    if (!tok_json_take(r, '{'))
        return malformed(r, "model.vocab is not an object");
    if (tok_json_take(r, '}'))
        return 0;
    do {
        if ((rc = vocab_entry(t, r)) != 0)
            return rc;
    } while (tok_json_take(r, ','));
    return tok_json_take(r, '}') ? 0 : malformed(r, "expected a comma or brace");
}

/* A decimal number as the library's JSON reader makes it: digits as an integer, then one division
 * or multiplication. That can be one unit in the last place off, which decides between splits of
 * equal score. The text has been checked by sl_parse_double. */
static double scaled_decimal(const char *s, size_t n)
{
    uint64_t digits = 0;
    int exp = 0, e10 = 0;
    bool neg = false, point = false, full = false;
    size_t i = 0;
    for (; i < n && s[i] != 'e' && s[i] != 'E'; i++) {
        if (s[i] == '-')
            neg = true;
        else if (s[i] == '.')
            point = true;
        else if (full || digits > (UINT64_MAX - 9) / 10) {
            full = true;
            exp += !point;
        } else {
            SL_DCHECK(s[i] >= '0' && s[i] <= '9');
            digits = digits * 10 + (uint64_t)(s[i] - '0');
            exp -= point;
        }
    }
    for (bool eneg = false; i < n; i++) {
        if (s[i] == '-')
            eneg = true;
        else if (s[i] >= '0' && s[i] <= '9' && e10 < 1000 && e10 > -1000)
            e10 = e10 * 10 + (eneg ? '0' - s[i] : s[i] - '0');
    }
    double x = (double)digits, p = 1;
    exp += e10;
    int steps = SL_MIN(exp < 0 ? -exp : exp, 308);
    SL_ASSERT(steps >= 0 && steps < 1 << 9); /* nine powers make any of them */
    static const double pow10[] = {1e0, 1e1, 1e2, 1e4, 1e8, 1e16, 1e32, 1e64, 1e128, 1e256};
    if (steps <= 22) { /* every factor exact */
        for (int k = 0; k < steps; k++)
            p *= 10;
    } else {
        for (int b = 0; b < 9; b++)
            p *= steps >> b & 1 ? pow10[b + 1] : 1;
    }
    x = exp < 0 ? x / p : x * p;
    return neg ? -x : x;
}

/* Unigram: [["piece", score], ...], the id is the index. */
static int read_scored(struct sl_tokenizer *t, struct reader *r)
{
    struct tok_unigram *u = &t->uni;
    uint32_t id = 0, cap = 0;
    const char *s;
    size_t n, len;
    int rc;
    if (!tok_json_take(r, '['))
        return malformed(r, "model.vocab is not an array");
    if (tok_json_take(r, ']'))
        return 0;
    do {
        double score;
        if (id == cap) {
            cap = SL_MAX(cap * 2, 1024u);
            double *grown = sl_realloc(u->score_d, cap * sizeof(*grown));
            if (grown == NULL)
                return sl_fail(r->err, SL_ENOMEM, "tokenizer.json: %u scores", cap);
            u->score_d = grown;
        }
        if (!tok_json_take(r, '['))
            return malformed(r, "model.vocab: expected [piece, score]");
        if ((rc = tok_json_read_string(r, &s, &n)) != 0 ||
            (rc = tok_vocab_add(t, id, s, n, TOK_IN_MODEL, true, r->err)) != 0)
            return rc; /* the library takes a piece that is listed twice here, unlike in BPE */
        if (!tok_json_take(r, ',') || (len = number_length(r)) == 0 ||
            !sl_parse_double(r->s + r->i, len, &score))
            return malformed(r, "model.vocab: score is no number");
        SL_ASSERT(id < cap && id < t->pieces.n);
        u->score_d[id++] = scaled_decimal(r->s + r->i, len);
        r->i += len;
        if (!tok_json_take(r, ']'))
            return malformed(r, "model.vocab: expected [piece, score]");
    } while (tok_json_take(r, ','));
    return tok_json_take(r, ']') ? 0 : malformed(r, "expected a comma or bracket");
}

/* The space between the halves of a merge, NULL: there is none, or more than one may be meant. Some
 * files have pieces with spaces in them (the library refuses those and moved to arrays): then it is
 * the only space with an entry on both sides. */
static const char *pair_space(const struct sl_tokenizer *t, const char *s, size_t n)
{
    const char *space = memchr(s, ' ', n), *end = s + n, *found = NULL;
    if (space == NULL || memchr(space + 1, ' ', (size_t)(end - space) - 1) == NULL)
        return space;
    for (; space != NULL; space = memchr(space + 1, ' ', (size_t)(end - space) - 1)) {
        SL_ASSERT(space >= s && space < end);
        if (tok_model_find(t, s, (size_t)(space - s)) < 0 ||
            tok_model_find(t, space + 1, (size_t)(end - space) - 1) < 0)
            continue;
        if (found != NULL)
            return NULL;
        found = space;
    }
    return found;
}

/* A merge is "left right" or ["left", "right"]. */
static int merge_entry(struct sl_tokenizer *t, struct reader *r, uint32_t rank, struct sl_buf *left)
{
    const char *s, *space;
    size_t n;
    int rc;
    if (!tok_json_take(r, '[')) {
        if ((rc = tok_json_read_string(r, &s, &n)) != 0)
            return rc;
        space = pair_space(t, s, n);
        if (space == NULL)
            return sl_fail(r->err, SL_EFORMAT,
                           "tokenizer.json: merge %u \"%.*s\" is not one pair of entries", rank,
                           (int)SL_MIN(n, (size_t)64), s);
        SL_ASSERT(space >= s && space < s + n);
        return tok_bpe_add_merge(t, s, (size_t)(space - s), space + 1, n - (size_t)(space - s) - 1,
                                 rank, r->err);
    }
    if ((rc = tok_json_read_string(r, &s, &n)) != 0)
        return rc;
    sl_buf_clear(left);
    sl_buf_put(left, s, n);
    if (!sl_buf_ok(left))
        return sl_fail(r->err, SL_ENOMEM, "tokenizer.json: merge %u", rank);
    if (!tok_json_take(r, ','))
        return malformed(r, "merge is not a pair");
    if ((rc = tok_json_read_string(r, &s, &n)) != 0)
        return rc;
    if (!tok_json_take(r, ']'))
        return malformed(r, "merge is not a pair");
    return tok_bpe_add_merge(t, left->data != NULL ? left->data : "", left->n_bytes, s, n, rank,
                             r->err);
}

static int read_merges(struct sl_tokenizer *t, struct reader *r, size_t n_bytes)
{
    struct sl_buf left = {0};
    uint32_t rank = 0;
    int rc = 0;
    if (!tok_json_take(r, '['))
        return malformed(r, "model.merges is not an array");
    if (tok_json_take(r, ']'))
        return 0;
    /* The table's size follows from the number of merges: no more than there are brackets, or pairs
     * of quotes. */
    bool pairs = tok_json_peek(r) == '[';
    size_t n = 1;
    for (size_t k = r->i; k < r->i + n_bytes && k < r->n; k++)
        n += r->s[k] == (pairs ? '[' : '"');
    n = pairs ? n : n / 2 + 1;
    SL_ASSERT(n > 0 && n <= n_bytes + 1);
    if ((rc = tok_bpe_reserve(&t->bpe, n, r->err)) != 0)
        return rc;
    do
        rc = merge_entry(t, r, rank++, &left);
    while (rc == 0 && tok_json_take(r, ','));
    sl_buf_deinit(&left);
    if (rc == 0 && !tok_json_take(r, ']'))
        rc = malformed(r, "expected a comma or bracket");
    return rc;
}

/* ---------------------------------------------------------------- model */

static int optional_piece(struct sl_tokenizer *t, const json_t *o, const char *key, int32_t *id,
                          struct sl_error *err)
{
    const json_t *v = json_object_get(o, key);
    if (v == NULL || json_is_null(v))
        return 0;
    if (!json_is_string(v))
        return sl_fail(err, SL_EFORMAT, "tokenizer.json: model.%s is not a string", key);
    *id = tok_model_find(t, json_string_value(v), json_string_length(v));
    SL_ASSERT(*id >= -1 && *id < (int32_t)t->pieces.n);
    return 0;
}

static int check_dropout(const json_t *model, struct sl_error *err)
{
    const json_t *d = json_object_get(model, "dropout");
    if (d == NULL || json_is_null(d) || (json_is_number(d) && !(json_number_value(d) > 0)))
        return 0;
    return sl_fail(err, SL_EUNSUPPORTED, "tokenizer.json: model.dropout");
}

static int model_bpe(struct sl_tokenizer *t, const json_t *model, struct reader *r,
                     const struct range *merges, struct sl_error *err)
{
    struct tok_bpe *b = &t->bpe;
    SL_ASSERT(b->prefix == NULL && b->suffix == NULL && b->pairs == NULL);
    int rc = check_dropout(model, err);
    if (rc == 0)
        rc = tok_json_string(model, "continuing_subword_prefix", "", &b->prefix, &b->n_prefix, err);
    if (rc == 0)
        rc = tok_json_string(model, "end_of_word_suffix", "", &b->suffix, &b->n_suffix, err);
    if (rc == 0)
        rc = tok_json_bool(model, "fuse_unk", false, &b->fuse_unk, err);
    if (rc == 0)
        rc = tok_json_bool(model, "byte_fallback", false, &b->byte_fallback, err);
    if (rc == 0)
        rc = tok_json_bool(model, "ignore_merges", false, &b->whole_first, err);
    if (rc == 0)
        rc = optional_piece(t, model, "unk_token", &b->unk, err);
    if (rc == 0 && merges->to == 0)
        rc = sl_fail(err, SL_EFORMAT, "tokenizer.json: model.merges is missing");
    if (rc != 0)
        return rc;
    SL_ASSERT(merges->from < merges->to && merges->to <= r->n);
    t->model = MODEL_BPE;
    r->i = merges->from;
    return read_merges(t, r, merges->to - merges->from);
}

static int model_unigram(struct sl_tokenizer *t, const json_t *model, struct sl_error *err)
{
    const json_t *unk = json_object_get(model, "unk_id");
    int rc = tok_json_bool(model, "byte_fallback", false, &t->uni.byte_fallback, err);
    if (rc != 0)
        return rc;
    t->model = MODEL_UNIGRAM;
    t->uni.fuse_unk = true;
    if (json_is_integer(unk)) {
        json_int_t id = json_integer_value(unk);
        if (id < 0 || id >= (json_int_t)t->pieces.n)
            return sl_fail(err, SL_EFORMAT, "tokenizer.json: model.unk_id %lld of %u entries",
                           (long long)id, t->pieces.n);
        t->uni.unk = (int32_t)id;
    }
    SL_ASSERT(t->uni.unk < (int32_t)t->pieces.n);
    tok_unigram_floor(t);
    return 0;
}

static int model_wordpiece(struct sl_tokenizer *t, const json_t *model, bool pieces,
                           struct sl_error *err)
{
    const json_t *max = json_object_get(model, "max_input_chars_per_word");
    int rc = tok_json_string(model, "continuing_subword_prefix", "##", &t->wp.prefix,
                             &t->wp.n_prefix, err);
    if (rc == 0)
        rc = optional_piece(t, model, "unk_token", &t->wp.unk, err);
    if (rc == 0)
        rc = tok_dup(&t->wp.initial, &t->wp.n_initial, "", 0, err);
    t->model = pieces ? MODEL_WORDPIECE : MODEL_WORDLEVEL;
    t->wp.max_chars = 100;
    if (json_is_integer(max)) {
        json_int_t n = json_integer_value(max);
        t->wp.max_chars = n < 0 ? 0 : n > SL_MAX_TEXT ? SL_MAX_TEXT : (uint32_t)n;
    }
    SL_ASSERT(t->wp.max_chars <= SL_MAX_TEXT);
    SL_ASSERT(rc != 0 || (t->wp.prefix != NULL && t->wp.initial != NULL));
    return rc;
}

static int tok_json_load_model(struct sl_tokenizer *t, const json_t *model, struct reader *r,
                               const struct range *vocab, const struct range *merges,
                               struct sl_error *err)
{
    const json_t *kind = json_object_get(model, "type");
    const char *type = json_string_value(kind);
    if (kind != NULL && type == NULL && !json_is_null(kind))
        return sl_fail(err, SL_EFORMAT, "tokenizer.json: model.type is not a string");
    if (type == NULL) /* old files name no type: the members tell */
        type = merges->to != 0                                              ? "BPE"
               : json_object_get(model, "unk_id") != NULL                   ? "Unigram"
               : json_object_get(model, "max_input_chars_per_word") != NULL ? "WordPiece"
                                                                            : "WordLevel";
    bool unigram = strcmp(type, "Unigram") == 0;
    if (vocab->to == 0)
        return sl_fail(err, SL_EFORMAT, "tokenizer.json: model.vocab is missing");
    SL_ASSERT(vocab->from < vocab->to && vocab->to <= r->n && t->pieces.n == 0);
    r->i = vocab->from;
    int rc = tok_map_reserve(
        &t->by_piece, (uint32_t)SL_MIN((vocab->to - vocab->from) / 24, (size_t)1 << 18), err);
    if (rc == 0)
        rc = unigram ? read_scored(t, r) : read_vocab(t, r);
    if (rc != 0)
        return rc;
    if (strcmp(type, "BPE") == 0)
        return model_bpe(t, model, r, merges, err);
    if (unigram)
        return model_unigram(t, model, err);
    if (strcmp(type, "WordPiece") == 0 || strcmp(type, "WordLevel") == 0)
        return model_wordpiece(t, model, type[4] == 'P', err);
    return sl_fail(err, SL_EUNSUPPORTED, "tokenizer.json: model type \"%.60s\"", type);
}

/* ---------------------------------------------------------------- added tokens */

/* An id that belongs to another entry is refused; a token the model knows keeps the model's id. */
static int add_token(struct sl_tokenizer *t, const json_t *o, uint64_t id, struct sl_error *err)
{
    const json_t *content = json_object_get(o, "content");
    struct tok_added_flags a = {0};
    const char *s = json_string_value(content);
    size_t n = json_string_length(content);
    int rc;
    if (s == NULL)
        return sl_fail(err, SL_EFORMAT, "tokenizer.json: added token %llu has no content",
                       (unsigned long long)id);
    if ((rc = tok_json_bool(o, "special", false, &a.special, err)) != 0 ||
        (rc = tok_json_bool(o, "single_word", false, &a.single_word, err)) != 0 ||
        (rc = tok_json_bool(o, "lstrip", false, &a.lstrip, err)) != 0 ||
        (rc = tok_json_bool(o, "rstrip", false, &a.rstrip, err)) != 0 ||
        (rc = tok_json_bool(o, "normalized", !a.special, &a.normalized, err)) != 0)
        return rc;
    int32_t known = sl_tokenizer_find(t, s, n);
    if (known < 0) {
        if ((rc = tok_vocab_add(t, id, s, n, 0, false, err)) != 0)
            return sl_error_prefix(err, rc, "tokenizer.json: added token");
        known = (int32_t)id;
    } else if (t->attr[known] & SL_TOKEN_ADDED) {
        return 0; /* the library keeps the first */
    }
    SL_ASSERT(known >= 0 && (uint32_t)known < t->pieces.n);
    a.id = known;
    return tok_added_add(t, &a, err);
}

static int tok_json_add_tokens(struct sl_tokenizer *t, const json_t *list, struct sl_error *err)
{
    int rc = 0;
    if (list == NULL || json_is_null(list))
        return 0;
    if (!json_is_array(list))
        return sl_fail(err, SL_EFORMAT, "tokenizer.json: added_tokens is not an array");
    for (size_t i = 0; i < json_array_size(list) && rc == 0; i++) {
        const json_t *o = json_array_get(list, i), *id = json_object_get(o, "id");
        if (!json_is_integer(id) || json_integer_value(id) < 0)
            return sl_fail(err, SL_EFORMAT, "tokenizer.json: added_tokens[%zu] has no id", i);
        rc = add_token(t, o, (uint64_t)json_integer_value(id), err);
    }
    return rc;
}

/* ---------------------------------------------------------------- tokenizer_config.json */

static int32_t named_token(const struct sl_tokenizer *t, const json_t *config, const char *key)
{
    const json_t *v = json_object_get(config, key);
    if (json_is_object(v))
        v = json_object_get(v, "content");
    return json_is_string(v) ? sl_tokenizer_find(t, json_string_value(v), json_string_length(v))
                             : -1;
}

/* add_bos_token and add_eos_token, where they are said, overrule the post-processor. */
static int config_affixes(struct sl_tokenizer *t, const json_t *config, struct sl_error *err)
{
    const json_t *add_bos = json_object_get(config, "add_bos_token");
    const json_t *add_eos = json_object_get(config, "add_eos_token");
    int32_t pre[TOK_MAX_STEPS], post[TOK_MAX_STEPS];
    size_t n_pre = 0, n_post = 0;
    bool has_bos = t->n_prefix_ids > 0 && t->prefix_ids[0] == t->bos;
    bool has_eos = t->n_suffix_ids > 0 && t->suffix_ids[t->n_suffix_ids - 1] == t->eos;
    bool bos = json_is_boolean(add_bos) ? json_is_true(add_bos) : has_bos;
    bool eos = json_is_boolean(add_eos) ? json_is_true(add_eos) : has_eos;
    if ((bos == has_bos || t->bos < 0) && (eos == has_eos || t->eos < 0))
        return 0;
    if (bos && t->bos >= 0)
        pre[n_pre++] = t->bos;
    for (size_t i = has_bos; i < t->n_prefix_ids && n_pre < SL_COUNT(pre); i++)
        pre[n_pre++] = t->prefix_ids[i];
    for (size_t i = 0; i + has_eos < t->n_suffix_ids && n_post + 1 < SL_COUNT(post); i++)
        post[n_post++] = t->suffix_ids[i];
    if (eos && t->eos >= 0)
        post[n_post++] = t->eos;
    SL_ASSERT(n_pre <= SL_COUNT(pre) && n_post <= SL_COUNT(post));
    return tok_set_affixes(t, pre, n_pre, post, n_post, err);
}

static int apply_config(struct sl_tokenizer *t, const char *text, size_t n, struct sl_error *err)
{
    json_t *config = NULL;
    const char *key;
    json_t *o;
    int rc = tok_json_load("tokenizer_config.json", text, n, &config, err);
    if (rc != 0)
        return rc;
    json_object_foreach(json_object_get(config, "added_tokens_decoder"), key, o)
    {
        uint64_t id;
        if (rc == 0 && sl_parse_u64(key, strlen(key), &id) &&
            (id >= t->pieces.n || t->pieces.at[id].len == TOK_HOLE))
            rc = add_token(t, o, id, err);
    }
    t->bos = named_token(t, config, "bos_token");
    t->eos = named_token(t, config, "eos_token");
    if (rc == 0)
        rc = config_affixes(t, config, err);
    json_decref(config);
    return rc;
}

/* ---------------------------------------------------------------- the file */

/* Depth is checked before jansson, whose own parser recurses, sees the text. */
int tok_json_load(const char *what, const char *text, size_t n, json_t **out, struct sl_error *err)
{
    struct reader r = {.s = text, .n = n, .what = what, .err = err};
    json_error_t why;
    int rc = skip_value(&r);
    SL_ASSERT(r.i <= n && r.text.data == NULL); /* nothing that is skipped is copied */
    sl_buf_deinit(&r.text);
    if (rc != 0)
        return rc;
    *out = sl_json_load(text, n, JSON_REJECT_DUPLICATES | JSON_ALLOW_NUL, &why);
    if (*out == NULL && sl_json_no_memory(&why))
        return sl_fail(err, SL_ENOMEM, "%s: out of memory", what);
    if (*out == NULL)
        return sl_fail(err, SL_EFORMAT, "%s: line %d: %s", what, why.line, why.text);
    if (json_is_object(*out))
        return 0;
    json_decref(*out);
    *out = NULL;
    return sl_fail(err, SL_EFORMAT, "%s: not an object", what);
}

/* The text with null in place of the big values. */
static int small_part(const char *json, size_t n, const struct range *big, size_t n_big,
                      json_t **root, struct sl_error *err)
{
    struct sl_buf b = {0};
    size_t at = 0;
    while (at < n) { /* in the order of the text */
        const struct range *next = NULL;
        for (size_t k = 0; k < n_big; k++) {
            if (big[k].to != 0 && big[k].from >= at && (next == NULL || big[k].from < next->from))
                next = &big[k];
        }
        SL_ASSERT(next == NULL || (next->from < next->to && next->to <= n));
        sl_buf_put(&b, json + at, (next != NULL ? next->from : n) - at);
        if (next != NULL)
            sl_buf_puts(&b, "null");
        at = next != NULL ? next->to : n;
    }
    int rc = sl_buf_ok(&b) ? tok_json_load("tokenizer.json", b.data != NULL ? b.data : "",
                                           b.n_bytes, root, err)
                           : sl_fail(err, SL_ENOMEM, "tokenizer.json");
    sl_buf_deinit(&b);
    return rc;
}

static int load(struct sl_tokenizer *t, const char *json, size_t n, const char *config,
                size_t n_config, struct sl_error *err)
{
    struct reader r = {.s = json, .n = n, .err = err};
    struct member inner[] = {{.name = "vocab"}, {.name = "merges"}};
    struct member top[] = {{.name = "model", .inner = inner, .n_inner = SL_COUNT(inner)},
                           {.name = "config"},
                           {.name = "vocab"}};
    const struct range *model = &top[0].at;
    json_t *root = NULL;
    int rc = find_members(&r, top, SL_COUNT(top));
    SL_ASSERT(rc != 0 || r.i <= n);
    SL_ASSERT(rc != 0 || (inner[0].at.to <= model->to && inner[1].at.to <= model->to));
    struct range big[] = {inner[0].at, inner[1].at};
    if (rc == 0 && model->to == 0) {
        sl_buf_deinit(&r.text);
        return top[1].at.to != 0 && top[2].at.to != 0
                   ? tok_tekken_load(t, json, n, err) /* Mistral's own format */
                   : sl_fail(err, SL_EFORMAT, "tokenizer.json: model is missing");
    }
    if (rc == 0)
        rc = small_part(json, n, big, SL_COUNT(big), &root, err);
    if (rc == 0)
        rc = tok_json_load_model(t, json_object_get(root, "model"), &r, &big[0], &big[1], err);
    if (rc == 0)
        rc = tok_json_add_tokens(t, json_object_get(root, "added_tokens"), err);
    if (rc == 0)
        rc = tok_json_steps(t, root, err);
    if (rc == 0 && config != NULL)
        rc = apply_config(t, config, n_config, err);
    if (rc == 0)
        rc = tok_finish(t, err);
    json_decref(root);
    sl_buf_deinit(&r.text);
    return rc;
}

int sl_tokenizer_from_json(const char *json, size_t n_json, const char *config, size_t n_config,
                           struct sl_tokenizer **out, struct sl_error *err)
{
    if (n_json > SL_MAX_JSON_FILE || n_config > SL_MAX_JSON_FILE)
        return sl_fail(err, SL_ELIMIT, "tokenizer.json of %zu bytes", SL_MAX(n_json, n_config));
    struct sl_tokenizer *t = tok_create(err);
    if (t == NULL)
        return SL_ENOMEM;
    int rc = load(t, json, n_json, config, n_config, err);
    if (rc != 0) {
        sl_tokenizer_destroy(t);
        return rc;
    }
    *out = t;
    return 0;
}
