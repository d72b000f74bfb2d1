/* SPDX-License-Identifier: MIT
 * loading.h - who answers while models are loaded: the port is open from the first moment, so that
 * a second server on it fails at once and a probe learns what is going on.
 *
 * A thread of its own accepts connections and answers every request with 503 "Loading model", in
 * llama-server's words, but GET /livez with 200: the process lives, and is not to be restarted.
 * Bounded: SL_LOADING_CONNS at a time, each for a few seconds. With --ssl-certfile it speaks TLS.
 */
#ifndef SL_SERVER_LOADING_H
#define SL_SERVER_LOADING_H

#include "base/err.h"

struct sl_listeners;
struct sl_loading;
struct sl_server_config;

#define SL_LOADING_CONNS 64

/* listeners stay the caller's, open until sl_loading_stop. Of cfg: certificate and key, which are
 * read here. */
SL_MUST_CHECK int sl_loading_start(const struct sl_listeners *listeners,
                                   const struct sl_server_config *cfg, struct sl_loading **out,
                                   struct sl_error *err);
/* No connection is taken from here on: what comes now waits for the server. NULL is fine. */
void sl_loading_stop(struct sl_loading *l);

#endif
