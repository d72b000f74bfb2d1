/* SPDX-License-Identifier: MIT */
#include "server/api/tokens.h"

#include "base/check.h"
#include "base/str.h"
#include "server/http/sse.h"
#include "text/tokenizer/tokenizer.h"

const char *sl_token_bytes(struct sl_token_style style, int32_t id, size_t *n)
{
    *n = sl_detok_token(sl_engine_tokenizer(style.served->eng), id, style.loop->token_buf);
    return style.loop->token_buf;
}

static size_t tokens_count_chars(const char *s, size_t n)
{
    size_t chars = 0;
    for (size_t i = 0; i < n; i++)
        chars += ((unsigned char)s[i] & 0xC0) != 0x80;
    return chars;
}

size_t sl_put_token_string(struct sl_buf *b, struct sl_token_style style, int32_t id)
{
    size_t n;
    const char *bytes = sl_token_bytes(style, id, &n);
    if (style.as_ids) {
        SL_PUT(b, "\"token_id:");
        sl_put_i64(b, id);
        sl_buf_putc(b, '"');
    } else {
        sl_buf_json_string(b, bytes, n);
    }
    return tokens_count_chars(bytes, n);
}

/* {"token":..,"logprob":..,"bytes":[..] without the closing brace */
static void put_chat_entry(struct sl_buf *b, struct sl_token_style style, int32_t id, float logprob)
{
    size_t n;
    SL_PUT(b, "{\"token\":");
    sl_put_token_string(b, style, id);
    SL_PUT(b, ",\"logprob\":");
    sl_put_logprob(b, logprob);
    SL_PUT(b, ",\"bytes\":[");
    const char *bytes = sl_token_bytes(style, id, &n);
    for (size_t i = 0; i < n; i++) {
        if (i > 0)
            sl_buf_putc(b, ',');
        sl_put_u64(b, (unsigned char)bytes[i]);
    }
    sl_buf_putc(b, ']');
}

void sl_put_chat_logprobs(struct sl_buf *b, struct sl_token_style style, const struct sl_token *t,
                          size_t n, int32_t n_top)
{
    for (size_t i = 0; i < n; i++) {
        if (i > 0)
            sl_buf_putc(b, ',');
        put_chat_entry(b, style, t[i].id, t[i].logprob);
        SL_PUT(b, ",\"top_logprobs\":[");
        for (int32_t k = 0; k < SL_MIN(t[i].n_top, n_top); k++) {
            if (k > 0)
                sl_buf_putc(b, ',');
            put_chat_entry(b, style, t[i].top[k].id, t[i].top[k].logprob);
            sl_buf_putc(b, '}');
        }
        SL_PUT(b, "]}");
    }
}

void sl_put_top_map(struct sl_buf *b, struct sl_token_style style, const struct sl_token *t,
                    int32_t n_top)
{
    bool has_chosen = false;
    int32_t n = SL_MIN(t->n_top, n_top);
    sl_buf_putc(b, '{');
    for (int32_t k = 0; k < n; k++) {
        if (k > 0)
            sl_buf_putc(b, ',');
        has_chosen |= t->top[k].id == t->id;
        sl_put_token_string(b, style, t->top[k].id);
        sl_buf_putc(b, ':');
        sl_put_logprob(b, t->top[k].logprob);
    }
    if (!has_chosen) {
        if (n > 0)
            sl_buf_putc(b, ',');
        sl_put_token_string(b, style, t->id);
        sl_buf_putc(b, ':');
        sl_put_logprob(b, t->logprob);
    }
    sl_buf_putc(b, '}');
}

static void put_prompt_entry(struct sl_buf *b, struct sl_token_style style, int32_t id,
                             float logprob, int32_t rank)
{
    style.as_ids = false;
    sl_buf_putc(b, '"');
    sl_put_i64(b, id);
    SL_PUT(b, "\":{\"logprob\":");
    sl_put_logprob(b, logprob);
    SL_PUT(b, ",\"rank\":");
    sl_put_i64(b, rank);
    SL_PUT(b, ",\"decoded_token\":");
    sl_put_token_string(b, style, id);
    sl_buf_putc(b, '}');
}

void sl_put_prompt_logprobs(struct sl_buf *b, struct sl_token_style style,
                            const struct sl_token *tokens, size_t n)
{
    sl_buf_putc(b, '[');
    for (size_t i = 0; i < n; i++) {
        const struct sl_token *t = &tokens[i];
        bool has_chosen = false;
        if (i > 0)
            sl_buf_putc(b, ',');
        if (t->rank == 0) { /* nothing came before the first token */
            SL_PUT(b, "null");
            continue;
        }
        sl_buf_putc(b, '{');
        for (int32_t k = 0; k < t->n_top; k++) {
            if (k > 0)
                sl_buf_putc(b, ',');
            has_chosen |= t->top[k].id == t->id;
            put_prompt_entry(b, style, t->top[k].id, t->top[k].logprob, k + 1);
        }
        if (!has_chosen) {
            if (t->n_top > 0)
                sl_buf_putc(b, ',');
            put_prompt_entry(b, style, t->id, t->logprob, t->rank);
        }
        sl_buf_putc(b, '}');
    }
    sl_buf_putc(b, ']');
}
