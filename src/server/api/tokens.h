/* SPDX-License-Identifier: MIT
 * tokens.h - tokens in replies: their text and bytes, and the shapes logprobs take.
 */
#ifndef SL_SERVER_TOKENS_H
#define SL_SERVER_TOKENS_H

#include "server/loop.h"

#include "base/buf.h"

/* How token strings are written: text, or "token_id:17" (return_tokens_as_token_ids). */
struct sl_token_style {
    struct sl_loop *loop;           /* for its scratch buffer */
    const struct sl_served *served; /* for its tokenizer */
    bool as_ids;
};

/* The bytes a token stands for between others; lives in the loop's scratch buffer until the next
 * call. */
const char *sl_token_bytes(struct sl_token_style style, int32_t id, size_t *n);
/* A JSON string; returns how many characters of text it stands for. */
size_t sl_put_token_string(struct sl_buf *b, struct sl_token_style style, int32_t id);
/* Chat: {"token":..,"logprob":..,"bytes":[..],"top_logprobs":[..]} per token, comma-separated. */
void sl_put_chat_logprobs(struct sl_buf *b, struct sl_token_style style, const struct sl_token *t,
                          size_t n, int32_t n_top);
/* {"token": logprob, ...} of the best n_top and the chosen one */
void sl_put_top_map(struct sl_buf *b, struct sl_token_style style, const struct sl_token *t,
                    int32_t n_top);
/* vLLM's prompt_logprobs: [null, {"id": {"logprob","rank","decoded_token"}}, ...] */
void sl_put_prompt_logprobs(struct sl_buf *b, struct sl_token_style style,
                            const struct sl_token *tokens, size_t n);

#endif
