/* SPDX-License-Identifier: MIT
 * notify.h - tells the service manager what the server does, as sd_notify(3) and
 * sd_watchdog_enabled(3) describe it. Nothing happens where no service manager asked for it
 * ($NOTIFY_SOCKET, $WATCHDOG_USEC).
 *
 * While the watchdog is on, it is told twice in an interval that the server is alive, as long as no
 * engine is stalled or broken and the first HTTP thread runs.
 */
#ifndef SL_SERVER_NOTIFY_H
#define SL_SERVER_NOTIFY_H

#include "base/err.h"
#include "server/loop.h"

/* "READY=1", "STOPPING=1", ... Failing to tell is no error: nobody may be listening any more. */
void sl_notify(const char *state);

struct sl_watchdog_timer;

/* *out is NULL where no watchdog is on. */
SL_MUST_CHECK int sl_watchdog_timer_start(const struct sl_server *s, struct event_base *base,
                                          struct sl_watchdog_timer **out, struct sl_error *err);
void sl_watchdog_timer_stop(struct sl_watchdog_timer *t); /* or NULL */

#endif
