/* SPDX-License-Identifier: MIT
 * history.h - the last hour of each model's load, sampled every second, for the charts of the page
 * at "/": a page that is opened or loaded again shows what happened before.
 *
 * Samples are taken on the thread of the event base; any thread may read them. Memory is taken at
 * the start only.
 */
#ifndef SL_SERVER_HISTORY_H
#define SL_SERVER_HISTORY_H

#include "base/buf.h"
#include "base/err.h"
#include "server/loop.h"

struct sl_history;

SL_MUST_CHECK int sl_history_start(const struct sl_server *s, struct event_base *base,
                                   struct sl_history **out, struct sl_error *err);
void sl_history_stop(struct sl_history *h); /* or NULL */

/* Two members of a JSON object, "window" and "history", the last with the points whose number is
 * above since; a number that was not given out yet means all of them. */
void sl_history_put(struct sl_history *h, int32_t model, uint64_t since, struct sl_buf *b);

#endif
