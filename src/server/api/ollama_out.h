/* SPDX-License-Identifier: MIT
 * ollama_out.h - pieces of replies in Ollama's shape, which its files of routes share.
 */
#ifndef SL_SERVER_OLLAMA_OUT_H
#define SL_SERVER_OLLAMA_OUT_H

#include "server/api/task.h"

/* "2026-01-31T12:00:00.123456789Z" without its quotes; ns since 1970. */
void sl_ollama_put_time(struct sl_buf *b, int64_t wall_ns);
/* ,"total_duration":...,"load_duration":...,"prompt_eval_count":...: what all replies end with.
 * Durations are nanoseconds; waiting for a turn counts as load_duration. */
void sl_ollama_put_timing(struct sl_buf *b, const struct sl_call *call);
/* `model` of t->root, in place, without what Ollama's clients add to it. */
SL_MUST_CHECK int sl_ollama_name(struct sl_task *t);
/* The body as an object, and its model by the names that Ollama's clients use: with ":latest" or
 * without, with the host of the hub in front, in `model` or `name`. */
SL_MUST_CHECK int sl_ollama_parse(struct sl_task *t);
/* Keeps the model in memory or gives it up, as the request asks. After it prepare may have to
 * return at once: `later`. */
SL_MUST_CHECK int sl_ollama_wake(struct sl_task *t);
SL_MUST_CHECK int sl_ollama_unload(struct sl_task *t);

#endif
