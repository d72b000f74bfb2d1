/* SPDX-License-Identifier: MIT
 * pull.h - downloads of models into the cache on behalf of clients (POST /api/pull, --allow-pull):
 * one at a time, on a thread of its own, given up when its client leaves or the server stops. What
 * has arrived is kept for the next one.
 *
 * A connection and its download meet in the connection's thread alone, which the download wakes.
 */
#ifndef SL_SERVER_PULL_H
#define SL_SERVER_PULL_H

#include "base/err.h"

struct sl_conn;
struct sl_loop;
struct sl_puller;
struct sl_server;

SL_MUST_CHECK int sl_puller_create(struct sl_server *s, struct sl_puller **out,
                                   struct sl_error *err);
void sl_puller_destroy(struct sl_puller *p); /* after the loops have ended; NULL is fine */
/* Writes what is new of the download to its connection, if that is one of this thread's. */
void sl_pull_collect(struct sl_loop *loop);
void sl_pull_leave(struct sl_conn *c); /* the connection ends */

#endif
