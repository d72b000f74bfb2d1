/* SPDX-License-Identifier: MIT
 * activity.h - a line of the log for each interval in which a model worked, in vLLM's words, so
 * that what reads vLLM's log reads this one. An idle server writes none.
 *
 * On the thread of the event base; memory is taken at the start only.
 */
#ifndef SL_SERVER_ACTIVITY_H
#define SL_SERVER_ACTIVITY_H

#include "base/err.h"
#include "server/loop.h"

struct sl_activity;

/* interval_s > 0. */
SL_MUST_CHECK int sl_activity_start(const struct sl_server *s, struct event_base *base,
                                    int32_t interval_s, struct sl_activity **out,
                                    struct sl_error *err);
void sl_activity_stop(struct sl_activity *a); /* or NULL */

#endif
