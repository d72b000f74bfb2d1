/* SPDX-License-Identifier: MIT
 * bench_ask.h - what the load generator asks a server before it measures: which model it has, and
 * which words are how many of its tokens. Blocking, one request at a time.
 */
#ifndef SL_CMD_BENCH_ASK_H
#define SL_CMD_BENCH_ASK_H

#include "cmd/bench_dataset.h"

#define SL_BENCH_DRAFTED 32 /* places of a draft that are told apart */

struct sl_bench_server {
    const char *url;
    const char *api_key; /* or NULL */
    const char *model;   /* NULL until sl_bench_ask_model */
    bool chat;           /* prompts are messages of chat completions */
};

/* The first model of GET /v1/models. SL_EIO with what went wrong. */
SL_MUST_CHECK int sl_bench_ask_model(const struct sl_bench_server *s, char *name, size_t n_name,
                                     struct sl_error *err);

/* Counters of drafts that a server has, by vLLM's names; all 0 where it has none. */
struct sl_bench_drafts {
    double n_drafts, n_tokens, n_accepted;
    double n_at[SL_BENCH_DRAFTED]; /* accepted, by place */
};
SL_MUST_CHECK int sl_bench_ask_drafts(const struct sl_bench_server *s, struct sl_bench_drafts *out,
                                      struct sl_error *err);

/* Makes prompts of d as long as its items say, in tokens of the server: asks POST /tokenize (as
 * vLLM, SGLang and sluice have it, or llama.cpp) which words are one token each and what the
 * template adds. Where too few words are, prompts of completions become token ids. SL_ENOTFOUND
 * where the server cannot tell; d is then as before, and a word counts as a token. */
SL_MUST_CHECK int sl_bench_ask_tokens(const struct sl_bench_server *s, struct sl_bench_dataset *d,
                                      struct sl_error *err);

#endif
