/* SPDX-License-Identifier: MIT
 * tracing.h - OpenTelemetry spans of a request that asked for work: the request itself, and inside
 * it the queue, prefill and decode. Names are those of OpenTelemetry's conventions for generative
 * AI and, where it has others, vLLM's. Never a prompt or an answer.
 */
#ifndef SL_SERVER_TRACING_H
#define SL_SERVER_TRACING_H

#include "server/conn.h"

/* When the request is over and its call, if there was one, still there. Status as it is logged.
 * Nothing if there are no traces or this one is not sampled. Never waits. */
void sl_tracing_put(const struct sl_conn *c, int status);

#endif
