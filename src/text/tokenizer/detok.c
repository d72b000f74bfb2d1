/* SPDX-License-Identifier: MIT
 * detok.c - token ids to text, one at a time. Decoding a whole list is the same calls in a loop.
 *
 * Bytes go through three stages: the token's text by its place (first or later), stripping of the
 * output's ends, and UTF-8: a character is held back until it is whole, what cannot become one is
 * U+FFFD.
 */
#include "base/check.h"
#include "base/str.h"
#include "base/sys.h"
#include "sluice.h"
#include "text/tokenizer/tok.h"

#include <string.h>

void sl_detok_init(struct sl_detok *d, const struct sl_tokenizer *tok, bool skip_special)
{
    *d = (struct sl_detok){.tok = tok, .skip_special = skip_special, .at_start = true};
    d->strip_left = tok->decoder.n_strip > 0 ? tok->decoder.strip_start : 0;
}

size_t sl_detok_max_bytes(const struct sl_tokenizer *tok)
{
    /* each byte may be invalid and cost three; then what was held back, and a joining space */
    return 3 * (tok->max_token_bytes + 8) + 4 * ((size_t)tok->decoder.strip_stop + 2);
}

/* Output of one call: where the next byte goes. */
struct sink {
    struct sl_detok *d;
    char *out;
    size_t n;
};

static void detok_put(struct sink *k, const char *s, size_t n)
{
    if (n > 0)
        memcpy(k->out + k->n, s, n);
    k->n += n;
}

/* Resolves what is certain at the head of the pending bytes. */
static void detok_resolve(struct sink *k, bool end)
{
    struct sl_detok *d = k->d;
    while (d->n_pending > 0) {
        size_t len = sl_utf8_valid_len(d->pending, d->n_pending), used = len;
        if (len == 0 && !end && sl_utf8_incomplete_tail(d->pending, d->n_pending) == d->n_pending)
            return;
        if (len > 0) {
            detok_put(k, d->pending, len);
        } else {
            used = 1;
            for (unsigned j = 2; j <= 3 && j <= d->n_pending; j++) {
                if (sl_utf8_incomplete_tail(d->pending, j) == j)
                    used = j;
            }
            detok_put(k, "\xEF\xBF\xBD", 3);
        }
        d->n_pending -= (unsigned)used;
        memmove(d->pending, d->pending + used, d->n_pending);
    }
}

static void put_utf8(struct sink *k, const char *s, size_t n)
{
    struct sl_detok *d = k->d;
    while (n > 0) {
        if (d->n_pending == 0) {
            size_t good = tok_valid_prefix(s, n);
            detok_put(k, s, good);
            s += good;
            n -= good;
            if (n == 0)
                return;
        }
        d->pending[d->n_pending++] = *s++;
        n--;
        detok_resolve(k, false);
    }
}

/* Strips the start of the output. */
static void detok_put_text(struct sink *k, const char *s, size_t n)
{
    struct sl_detok *d = k->d;
    const struct tok_decoder *dec = &d->tok->decoder;
    while (d->strip_left > 0 && n > 0) {
        if (n < dec->n_strip || memcmp(s, dec->strip, dec->n_strip) != 0) {
            d->strip_left = 0;
            break;
        }
        s += dec->n_strip;
        n -= dec->n_strip;
        d->strip_left--;
    }
    put_utf8(k, s, n);
}

/* Takes up to strip_stop characters off the end of the output, which may prove to be its end. */
static void hold_end(struct sink *k)
{
    struct sl_detok *d = k->d;
    const struct tok_decoder *dec = &d->tok->decoder;
    while (d->n_held < dec->strip_stop && k->n >= dec->n_strip &&
           memcmp(k->out + k->n - dec->n_strip, dec->strip, dec->n_strip) == 0) {
        k->n -= dec->n_strip;
        d->n_held++;
    }
}

static void put_first(struct sink *k, const char *s, size_t n, const char *text, size_t n_text)
{
    const struct tok_decoder *dec = &k->d->tok->decoder;
    if (dec->first == FIRST_NO_JOIN) { /* the piece itself: no prefix taken off, no space */
        detok_put_text(k, s, n);
    } else if (dec->first == FIRST_DROP_META) {
        for (size_t i = 0; i < n;) {
            if (n - i >= dec->n_meta && memcmp(s + i, dec->meta, dec->n_meta) == 0) {
                i += dec->n_meta;
                continue;
            }
            size_t from = i++;
            while (i < n && ((uint8_t)s[i] & 0xC0) == 0x80)
                i++;
            detok_put_text(k, s + from, i - from);
        }
    } else {
        detok_put_text(k, text, n_text);
    }
}

/* The token's text by its place in the output. */
static void put_token(struct sink *k, int32_t id, bool last)
{
    struct sl_detok *d = k->d;
    const struct sl_tokenizer *t = d->tok;
    const struct tok_decoder *dec = &t->decoder;
    size_t n, n_text;
    const char *s = tok_str(&t->pieces, (uint32_t)id, &n);
    const char *text = tok_str(t->dec, (uint32_t)id, &n_text);
    for (; d->n_held > 0; d->n_held--)
        detok_put(k, dec->strip, dec->n_strip);
    if (t->unk_is_mark && (t->attr[id] & SL_TOKEN_UNKNOWN))
        d->strip_left = 0;
    if (dec->delay && last) {
        for (size_t i = 0; i < n;) {
            bool skip = n - i >= dec->n_suffix && memcmp(s + i, dec->suffix, dec->n_suffix) == 0;
            if (!skip)
                detok_put_text(k, s + i, 1);
            i += skip ? dec->n_suffix : 1;
        }
    } else if (d->at_start) {
        put_first(k, s, n, text, n_text);
    } else {
        if (t->join_space)
            detok_put_text(k, " ", 1);
        detok_put_text(k, text, n_text);
    }
    d->at_start = false;
    hold_end(k);
}

static bool is_shown(const struct sl_detok *d, int32_t id)
{
    int32_t lo = 0, hi = d->n_shown;
    while (lo < hi) {
        int32_t mid = lo + (hi - lo) / 2;
        if (d->shown[mid] == id)
            return true;
        if (d->shown[mid] < id)
            lo = mid + 1;
        else
            hi = mid;
    }
    return false;
}

size_t sl_detok_push(struct sl_detok *d, int32_t id, char *out)
{
    const struct sl_tokenizer *t = d->tok;
    struct sink k = {d, out, 0};
    if (id < 0 || (uint32_t)id >= t->pieces.n || t->pieces.at[id].len == TOK_HOLE ||
        (d->skip_special && (t->attr[id] & SL_TOKEN_SPECIAL) && !is_shown(d, id)))
        return 0;
    if (t->decoder.delay) {
        int32_t before = d->waiting1 - 1;
        d->waiting1 = id + 1;
        id = before;
    }
    if (id >= 0)
        put_token(&k, id, false);
    return k.n;
}

size_t sl_detok_token(const struct sl_tokenizer *tok, int32_t id, char *out)
{
    size_t n, n_space = tok->join_space ? 1 : 0;
    if (id < 0 || (uint32_t)id >= tok->pieces.n || tok->pieces.at[id].len == TOK_HOLE)
        return 0;
    const char *text = tok_str(tok->dec, (uint32_t)id, &n);
    memcpy(out, " ", n_space);
    if (n > 0)
        memcpy(out + n_space, text, n);
    return n_space + n;
}

size_t sl_detok_finish(struct sl_detok *d, char *out)
{
    const struct tok_decoder *dec = &d->tok->decoder;
    struct sink k = {d, out, 0};
    if (d->waiting1 > 0)
        put_token(&k, d->waiting1 - 1, true);
    d->waiting1 = 0;
    if (d->n_pending > 0) { /* then what was held back is not the end after all */
        for (; d->n_held > 0; d->n_held--)
            detok_put(&k, dec->strip, dec->n_strip);
        detok_resolve(&k, true);
    }
    d->n_held = 0;
    return k.n;
}

int sl_tokenizer_decode(const struct sl_tokenizer *tok, const int32_t *ids, size_t n_ids,
                        bool skip_special, char **text, size_t *n_bytes, struct sl_error *err)
{
    struct sl_detok d;
    struct sl_buf b = {0};
    size_t room = sl_detok_max_bytes(tok);
    sl_detok_init(&d, tok, skip_special);
    for (size_t i = 0; i <= n_ids; i++) {
        if (i < n_ids && (ids[i] < 0 || ids[i] >= sl_tokenizer_n_vocab(tok))) {
            sl_buf_deinit(&b);
            return sl_fail(err, SL_EINVAL, "token id %d is outside the vocabulary of %d", ids[i],
                           sl_tokenizer_n_vocab(tok));
        }
        if (!sl_buf_reserve(&b, room)) {
            sl_buf_deinit(&b);
            return sl_fail(err, SL_ENOMEM, "text of %zu tokens", n_ids);
        }
        b.n_bytes += i < n_ids ? sl_detok_push(&d, ids[i], b.data + b.n_bytes)
                               : sl_detok_finish(&d, b.data + b.n_bytes);
    }
    b.data[b.n_bytes] = '\0';
    *text = sl_buf_steal(&b, n_bytes);
    return 0;
}
