/* SPDX-License-Identifier: MIT
 * context.h - W3C Trace Context: which trace a request belongs to, as its headers say it.
 *
 * What is malformed is as if it were absent, as the recommendation has it: a request is never
 * refused for its traceparent. Sources: W3C Trace Context, level 1 (the headers) and 2 (keys of
 * tracestate that begin with a digit, the random flag). Any thread.
 */
#ifndef SL_TRACE_CONTEXT_H
#define SL_TRACE_CONTEXT_H

#include "base/buf.h"

#include <stdint.h>

#define SL_TRACE_SAMPLED 0x01u
#define SL_TRACE_RANDOM  0x02u /* the last 7 bytes of the trace's id are random */

#define SL_TRACE_MAX_MEMBERS 32 /* of a tracestate */

struct sl_trace_context {
    uint8_t trace_id[16];
    uint8_t span_id[8]; /* of the caller's span */
    uint8_t flags;      /* of those above */
};

/* A traceparent header. false: malformed, *out untouched. */
bool sl_traceparent_parse(const char *s, size_t n, struct sl_trace_context *out);
/* One tracestate header of perhaps several, in their order: appends its members to out. false:
 * malformed; then the caller forgets them all. */
bool sl_tracestate_add(struct sl_buf *out, int *n_members, const char *s, size_t n);

#endif
