/* SPDX-License-Identifier: MIT
 * tok_decode.c - decoders, compiled at load into one text per token and a few rules about the
 * first token and the ends of the output.
 *
 * Every decoder of current tokenizers comes down to that: it rewrites tokens one by one, and what
 * depends on neighbours is a space here or there. So decoding and streaming are the same code, and
 * a chain that does not come down to it is refused when it is loaded. Bytes that are not UTF-8
 * become U+FFFD per maximal part in all kinds (the tokenizers library does that for ByteLevel; for
 * ByteFallback it replaces a whole run of byte tokens if any part of it is invalid).
 */
#include "base/check.h"
#include "base/limits.h"
#include "base/sys.h"
#include "text/tokenizer/tok.h"

#include <string.h>

#define MAX_STRIP_STOP 16

static int tok_decode_unsupported(struct sl_error *err, const char *what)
{
    return sl_fail(err, SL_EUNSUPPORTED, "decoder: %s", what);
}

static bool one_char(const char *s, size_t n)
{
    uint32_t cp;
    return n > 0 && tok_char(s, n, &cp) == n;
}

/* Does op rewrite each token for itself? */
static bool is_local(const struct tok_dec_op *op, bool fused)
{
    return op->kind == DEC_REPLACE || op->kind == DEC_REPLACE_RE || op->kind == DEC_METASPACE ||
           op->kind == DEC_WORDPIECE || op->kind == DEC_BYTE_FALLBACK || op->kind == DEC_BPE ||
           op->kind == DEC_BYTE_LEVEL || (op->kind == DEC_STRIP && !fused);
}

static int check_op(struct sl_tokenizer *t, const struct tok_dec_op *op, bool *fused, bool *placed,
                    struct sl_error *err)
{
    struct tok_decoder *d = &t->decoder;
    bool positional = op->kind == DEC_METASPACE || op->kind == DEC_WORDPIECE || op->kind == DEC_BPE;
    if (*placed && op->kind != DEC_FUSE)
        return tok_decode_unsupported(err, "a step after Metaspace, WordPiece or BPEDecoder");
    if (*fused && (positional || op->kind == DEC_REPLACE_RE || op->kind == DEC_BYTE_LEVEL ||
                   op->kind == DEC_BYTE_FALLBACK))
        return tok_decode_unsupported(err, "a step by token after Fuse");
    if (*fused && op->kind == DEC_REPLACE && !one_char(op->a, op->n_a))
        return tok_decode_unsupported(err, "Replace of more than one character after Fuse");
    switch (op->kind) {
    case DEC_FUSE:
    case DEC_BYTE_LEVEL:
        *fused = true;
        break;
    case DEC_STRIP:
        if (!*fused)
            break;
        if (d->n_strip > 0 || !one_char(op->a, op->n_a) || op->stop > MAX_STRIP_STOP)
            return tok_decode_unsupported(err, "Strip");
        memcpy(d->strip, op->a, op->n_a);
        d->n_strip = (uint8_t)op->n_a;
        d->strip_start = op->start;
        d->strip_stop = op->stop;
        break;
    case DEC_METASPACE:
        if (op->scheme != PREPEND_NEVER) {
            d->first = FIRST_DROP_META;
            memcpy(d->meta, op->a, op->n_a);
            d->n_meta = (uint8_t)op->n_a;
        }
        break;
    case DEC_WORDPIECE:
        d->first = FIRST_NO_JOIN;
        break;
    case DEC_BPE:
        if (op->n_a == 0 || op->n_a >= sizeof(d->suffix))
            return tok_decode_unsupported(err, "BPEDecoder suffix");
        d->delay = true;
        memcpy(d->suffix, op->a, op->n_a);
        d->n_suffix = (uint8_t)op->n_a;
        break;
    default:
        break;
    }
    *placed |= positional;
    return 0;
}

/* ---------------------------------------------------------------- one token's text */

static void put_replaced(struct sl_buf *out, const char *s, size_t n, const char *a, size_t n_a,
                         const char *b, size_t n_b)
{
    size_t i = 0;
    while (n_a > 0 && n - i >= n_a) {
        const char *hit = memmem(s + i, n - i, a, n_a);
        if (hit == NULL)
            break;
        sl_buf_put(out, s + i, (size_t)(hit - s) - i);
        sl_buf_put(out, b, n_b);
        i = (size_t)(hit - s) + n_a;
    }
    sl_buf_put(out, s + i, n - i);
}

struct replacing {
    const struct tok_dec_op *op;
    const char *s;
    size_t pos;
    struct sl_buf *out;
};

static int tok_decode_replace_match(void *arg, size_t start, size_t end)
{
    struct replacing *r = arg;
    sl_buf_put(r->out, r->s + r->pos, start - r->pos);
    sl_buf_put(r->out, r->op->b, r->op->n_b);
    r->pos = end;
    return 0;
}

static void put_stripped(struct sl_buf *out, const struct tok_dec_op *op, const char *s, size_t n)
{
    for (uint32_t i = 0; i < op->start && n >= op->n_a && memcmp(s, op->a, op->n_a) == 0; i++) {
        s += op->n_a;
        n -= op->n_a;
    }
    for (uint32_t i = 0;
         i < op->stop && n >= op->n_a && memcmp(s + n - op->n_a, op->a, op->n_a) == 0; i++)
        n -= op->n_a;
    sl_buf_put(out, s, n);
}

/* A later token of WordPiece: glued on without its prefix, or a new word with a space. */
static bool put_wordpiece(struct sl_buf *out, const struct tok_dec_op *op, const char *s, size_t n)
{
    static const char *const fixes[][2] = {{" .", "."},     {" ?", "?"},           {" !", "!"},
                                           {" ,", ","},     {" ' ", "'"},          {" n't", "n't"},
                                           {" 'm", "'m"},   {" do not", " don't"}, {" 's", "'s"},
                                           {" 've", "'ve"}, {" 're", "'re"}};
    struct sl_buf a = {0}, b = {0};
    if (op->n_a > 0 && n >= op->n_a && memcmp(s, op->a, op->n_a) == 0) {
        sl_buf_put(&a, s + op->n_a, n - op->n_a);
    } else {
        sl_buf_putc(&a, ' ');
        sl_buf_put(&a, s, n);
    }
    for (size_t i = 0; op->cleanup && i < SL_COUNT(fixes); i++) {
        sl_buf_clear(&b);
        put_replaced(&b, a.data, a.n_bytes, fixes[i][0], strlen(fixes[i][0]), fixes[i][1],
                     strlen(fixes[i][1]));
        struct sl_buf swap = a;
        a = b;
        b = swap;
    }
    bool ok = sl_buf_ok(&a) && sl_buf_ok(&b);
    if (ok)
        sl_buf_put(out, a.data != NULL ? a.data : "", a.n_bytes);
    sl_buf_deinit(&a);
    sl_buf_deinit(&b);
    return ok;
}

static void tok_decode_put_bytes(struct sl_buf *out, const char *s, size_t n)
{
    size_t start = out->n_bytes;
    for (size_t i = 0, len; i < n; i += len) {
        uint32_t cp;
        len = tok_char(s + i, n - i, &cp);
        int byte = tok_byte_of_cp(cp);
        if (byte < 0) { /* not of the alphabet: the token stands for itself */
            out->n_bytes = start;
            sl_buf_put(out, s, n);
            return;
        }
        sl_buf_putc(out, (char)byte);
    }
}

static int apply(const struct tok_dec_op *op, const char *s, size_t n, struct sl_buf *out,
                 struct sl_error *err)
{
    struct replacing r = {op, s, 0, out};
    int rc = 0, byte;
    switch (op->kind) {
    case DEC_REPLACE:
        put_replaced(out, s, n, op->a, op->n_a, op->b, op->n_b);
        break;
    case DEC_METASPACE:
    case DEC_BPE:
        put_replaced(out, s, n, op->a, op->n_a, " ", 1);
        break;
    case DEC_REPLACE_RE:
        rc = tok_regex_each(op->re, NULL, s, n, tok_decode_replace_match, &r, err);
        sl_buf_put(out, s + r.pos, n - r.pos);
        break;
    case DEC_BYTE_LEVEL:
        tok_decode_put_bytes(out, s, n);
        break;
    case DEC_BYTE_FALLBACK:
        byte = tok_byte_piece(s, n);
        if (byte >= 0)
            sl_buf_putc(out, (char)byte);
        else
            sl_buf_put(out, s, n);
        break;
    case DEC_STRIP:
        put_stripped(out, op, s, n);
        break;
    case DEC_WORDPIECE:
        if (!put_wordpiece(out, op, s, n))
            rc = sl_fail(err, SL_ENOMEM, "decoder");
        break;
    default:
        sl_buf_put(out, s, n);
        break;
    }
    return rc;
}

static int token_text(struct sl_tokenizer *t, uint32_t id, struct sl_buf bufs[2],
                      struct sl_error *err)
{
    size_t n;
    const char *s = tok_str(&t->pieces, id, &n);
    bool fused = false;
    int which = 0, rc = 0;
    for (size_t k = 0; k < t->n_dec_ops && rc == 0; k++) {
        const struct tok_dec_op *op = &t->dec_ops[k];
        if (is_local(op, fused)) {
            struct sl_buf *out = &bufs[which];
            sl_buf_clear(out);
            rc = apply(op, s, n, out, err);
            if (rc == 0 && !sl_buf_ok(out))
                rc = sl_fail(err, SL_ENOMEM, "decoder");
            s = out->n_bytes > 0 ? out->data : "";
            n = out->n_bytes;
            which ^= 1;
        }
        fused |= op->kind == DEC_FUSE || op->kind == DEC_BYTE_LEVEL;
    }
    return rc != 0 ? rc : tok_strtab_put(&t->text, id, s, n, err);
}

int tok_decoder_finish(struct sl_tokenizer *t, struct sl_error *err)
{
    bool fused = false, placed = false, local = false;
    struct sl_buf bufs[2] = {{0}, {0}};
    int rc = 0;
    t->join_space = t->n_dec_ops == 0 && !t->raw_pieces;
    if (t->join_space)
        t->decoder.first = FIRST_NO_JOIN;
    for (size_t k = 0; k < t->n_dec_ops; k++) {
        if ((rc = check_op(t, &t->dec_ops[k], &fused, &placed, err)) != 0)
            return rc;
        local |= t->dec_ops[k].kind != DEC_FUSE;
    }
    t->dec = &t->pieces;
    if (!local)
        return 0;
    if (t->n_dec_ops == 1 && t->dec_ops[0].kind == DEC_BYTE_LEVEL && t->raw.n == t->pieces.n) {
        t->dec = &t->raw;
        return 0;
    }
    for (uint32_t i = 0; i < t->pieces.n && rc == 0; i++) {
        if (t->pieces.at[i].len != TOK_HOLE)
            rc = token_text(t, i, bufs, err);
    }
    sl_buf_deinit(&bufs[0]);
    sl_buf_deinit(&bufs[1]);
    t->dec = &t->text;
    return rc;
}
