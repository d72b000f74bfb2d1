/* SPDX-License-Identifier: MIT
 * tok_world.c - RWKV's World vocabulary: byte strings, of which a text takes the longest that it
 * begins with, again and again.
 *
 * The vocabulary file has a line for each token: its id, a literal as Python writes it, and the
 * number of its bytes. Literals are of text ('\u3000' is three bytes) or, with a b in front, of
 * bytes. GGUF files have the inside of such a literal of bytes for every token. Id 0 is in no file:
 * it ends a text.
 */
#include "base/check.h"
#include "base/limits.h"
#include "base/str.h"
#include "base/sys.h"
#include "text/tokenizer/tok.h"

#include <string.h>

static int hex_value(char c)
{
    return c >= '0' && c <= '9'   ? c - '0'
           : c >= 'a' && c <= 'f' ? c - 'a' + 10
           : c >= 'A' && c <= 'F' ? c - 'A' + 10
                                  : -1;
}

/* Characters of an escape behind the backslash at s; 0: it is none. *value: what it stands for. */
static size_t escape(const char *s, size_t n, bool text, uint32_t *value)
{
    static const char names[] = "\\'\"tnrabfv", values[] = "\\'\"\t\n\r\a\b\f\v";
    const char *at = n > 0 && s[0] != '\0' ? strchr(names, s[0]) : NULL;
    if (at != NULL) {
        *value = (uint8_t)values[at - names];
        return 1;
    }
    const size_t digits = n == 0                ? 0
                          : s[0] == 'x'         ? 2
                          : text && s[0] == 'u' ? 4
                          : text && s[0] == 'U' ? 8
                                                : 0;
    if (digits == 0 || n < 1 + digits)
        return 0;
    *value = 0;
    for (size_t i = 1; i <= digits; i++) {
        if (hex_value(s[i]) < 0 || *value > 0xFFFFFFF)
            return 0;
        *value = *value << 4 | (uint32_t)hex_value(s[i]);
    }
    return *value <= 0x10FFFF ? 1 + digits : 0;
}

/* The inside of a literal. text: escapes are characters, not bytes. */
static bool read_literal(const char *s, size_t n, bool text, struct sl_buf *out)
{
    sl_buf_clear(out);
    for (size_t i = 0; i < n; i++) {
        uint32_t value;
        if (s[i] != '\\') {
            sl_buf_putc(out, s[i]);
            continue;
        }
        const size_t k = escape(s + i + 1, n - i - 1, text, &value);
        if (k == 0)
            return false;
        if (text)
            tok_put_cp(out, value);
        else
            sl_buf_putc(out, (char)value);
        i += k;
    }
    return sl_buf_ok(out) && out->n_bytes > 0;
}

static bool is_quote(char c)
{
    return c == '\'' || c == '"';
}

/* id literal length */
static bool split_line(const char *s, size_t n, uint64_t *id, const char **literal,
                       size_t *n_literal, uint64_t *n_bytes)
{
    const char *space = memchr(s, ' ', n);
    size_t end = n;
    while (end > 0 && s[end - 1] != ' ')
        end--;
    if (space == NULL || s + end < space + 4 || !sl_parse_u64(s, (size_t)(space - s), id) ||
        !sl_parse_u64(s + end, n - end, n_bytes))
        return false;
    *literal = space + 1;
    *n_literal = (size_t)(s + end - 1 - *literal);
    const size_t b = **literal == 'b';
    return *n_literal >= b + 2 && is_quote((*literal)[b]) &&
           (*literal)[*n_literal - 1] == (*literal)[b];
}

static int add_line(struct sl_tokenizer *t, const char *s, size_t n, size_t line,
                    struct sl_buf *piece, struct sl_error *err)
{
    const char *literal;
    size_t n_literal;
    uint64_t id, n_bytes;
    if (!split_line(s, n, &id, &literal, &n_literal, &n_bytes))
        return sl_fail(err, SL_EFORMAT, "World vocabulary line %zu: not \"id literal length\"",
                       line);
    const size_t b = *literal == 'b';
    if (!read_literal(literal + b + 1, n_literal - b - 2, b == 0, piece) ||
        piece->n_bytes != n_bytes)
        return sl_fail(err, SL_EFORMAT,
                       "World vocabulary line %zu: the literal is malformed or not as long as it "
                       "says",
                       line);
    int rc = tok_vocab_add(t, id, piece->data, piece->n_bytes, TOK_IN_MODEL, false, err);
    return rc == 0 ? 0 : sl_error_prefix(err, rc, "World vocabulary line %zu", line);
}

bool tok_is_world(const char *data, size_t n)
{
    const char *nl = memchr(data, '\n', n), *literal;
    const size_t len = nl != NULL ? (size_t)(nl - data) : n;
    size_t n_literal;
    uint64_t id, n_bytes;
    return len > 0 &&
           split_line(data, len - (data[len - 1] == '\r'), &id, &literal, &n_literal, &n_bytes);
}

static int add_end(struct sl_tokenizer *t, const char *name, struct sl_error *err)
{
    const struct tok_added_flags a = {.id = 0, .special = true};
    int rc = tok_vocab_add(t, 0, name, strlen(name), SL_TOKEN_SPECIAL, false, err);
    return rc != 0 ? rc : tok_added_add(t, &a, err);
}

void tok_world_begin(struct sl_tokenizer *t)
{
    t->model = MODEL_WORLD;
    t->bytes = t->raw_pieces = true;
}

int sl_tokenizer_from_world(const char *data, size_t n, struct sl_tokenizer **out,
                            struct sl_error *err)
{
    struct sl_tokenizer *t = tok_create(err);
    struct sl_buf piece = {0};
    size_t line = 1;
    if (t == NULL)
        return SL_ENOMEM;
    tok_world_begin(t);
    int rc = add_end(t, "<|endoftext|>", err);
    for (size_t i = 0; i < n && rc == 0; line++) {
        const char *nl = memchr(data + i, '\n', n - i);
        const size_t end = nl != NULL ? (size_t)(nl - data) : n;
        const size_t len = end - i - (end > i && data[end - 1] == '\r');
        if (len > 0)
            rc = add_line(t, data + i, len, line, &piece, err);
        i = end + 1;
    }
    sl_buf_deinit(&piece);
    t->bos = t->eos = 0;
    if (rc != 0 || (rc = tok_finish(t, err)) != 0) {
        sl_tokenizer_destroy(t);
        return rc;
    }
    *out = t;
    return 0;
}

int tok_world_add_gguf(struct sl_tokenizer *t, uint32_t id, const char *s, size_t n,
                       struct sl_error *err)
{
    struct sl_buf piece = {0};
    int rc = read_literal(s, n, false, &piece)
                 ? tok_vocab_add(t, id, piece.data, piece.n_bytes, TOK_IN_MODEL, true, err)
                 : sl_fail(err, SL_EFORMAT, "tokenizer.ggml.tokens[%u] is no literal of bytes", id);
    sl_buf_deinit(&piece);
    return rc;
}

int tok_world_finish(struct sl_tokenizer *t, struct sl_error *err)
{
    int rc = 0;
    for (uint32_t i = 0; i < t->pieces.n && rc == 0; i++) {
        size_t n = 0;
        const char *s = t->pieces.at[i].len != TOK_HOLE ? tok_str(&t->pieces, i, &n) : NULL;
        if ((t->attr[i] & TOK_IN_MODEL) != 0 && n > 0)
            rc = tok_trie_add(&t->uni.trie, s, n, (int32_t)i, err);
    }
    return rc;
}

int tok_world_encode(struct tok_enc *e, const char *s, size_t n)
{
    const struct tok_trie *trie = &e->t->uni.trie;
    int rc = 0;
    for (size_t i = 0, len = 0; i < n && rc == 0; i += len) {
        const int32_t id = tok_trie_longest(trie, s + i, n - i, &len);
        if (id < 0)
            return sl_fail(e->err, SL_EFORMAT, "World: byte %u is no token", (uint8_t)s[i]);
        rc = tok_push(e, id);
    }
    return rc;
}
