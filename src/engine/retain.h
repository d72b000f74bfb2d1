/* SPDX-License-Identifier: MIT
 * retain.h - programs: conversations that call tools and go on with the results. What they go on
 * from is kept for a while, and they keep their place in the queue.
 *
 * A turn that ends in a tool call leaves a mark: the last node of its text in the prefix tree. How
 * long it pays to keep that text is decided from the times that the tool took so far (tool_times.h)
 * and from how fast the cache gives up pages; it is leased for so long (kv/lease.h), within a share
 * of the pool. Of several, the one is worth least for which the time to compute it again, times the
 * probability that it is asked for, is least for each block. A request goes on from a mark if its
 * prompt is longer and begins with that of the turn, or if it names the same session. The answer is
 * not asked for: templates may write a call otherwise than the model did. Then the tool's
 * time is known, and the lease lasts until the request is admitted, however long it waits.
 *
 * Such a request waits with the arrival of the first request of its program (first come, first
 * served among programs, after Continuum, arXiv 2511.02230); so does one that names a session that
 * has run before. Only one request of a session at a time does, and who is passed over for
 * priority_max_wait_ms goes first all the same (sl_engine_raise_overdue).
 *
 * What clients say is a name, of a session and of a tool, and only its hash is kept; times are
 * measured here. Engine thread only; nothing is allocated after init.
 */
#ifndef SL_ENGINE_RETAIN_H
#define SL_ENGINE_RETAIN_H

#include "base/err.h"
#include "base/hash.h"
#include "base/limits.h"
#include "engine/tool_times.h"

#include <stdbool.h>

struct sl_engine;
struct sl_request;
struct sl_rseq;

struct sl_mark {  /* a turn that ended in a tool call */
    int32_t leaf; /* its last node; SL_NO_NODE: this place is free */
    int32_t base; /* the last one of its prompt */
    struct sl_hash128 name, base_name;
    int32_t n_prompt;
    uint64_t tool, session; /* session 0: none was named */
    uint64_t arrival;       /* of its program */
    uint64_t ended_ns;
    int32_t lease;   /* -1: none was given */
    uint64_t serial; /* of the lease; it may be over */
    bool returned;   /* a request has come that goes on from it, and waits */
};

struct sl_session {
    uint64_t key, arrival, used; /* used 0: the place is free */
    int32_t n_open;              /* of its requests */
};

struct sl_retain {
    struct sl_mark marks[SL_MAX_KV_LEASES];
    struct sl_session *sessions; /* [SL_MAX_SESSIONS] */
    int32_t *mark_of;            /* [n_nodes] the last mark with this base, -1: none */
    int32_t n_marks, looked_at;  /* the mark that was looked at last, whether it is forgotten */
    uint64_t n_serials;
    struct sl_tool_times tools;
    double price; /* share of what is cached that others take in a second */
    uint64_t price_ns, n_taken;
};

SL_MUST_CHECK int sl_retain_init(struct sl_engine *eng, double share, struct sl_error *err);
void sl_retain_deinit(struct sl_engine *eng);
/* A request arrived, and has its own arrival: gives it its program's. */
void sl_retain_begin(struct sl_engine *eng, struct sl_request *req);
/* It was admitted, or ended before. */
void sl_retain_started(struct sl_engine *eng, struct sl_request *req);
void sl_retain_end(struct sl_engine *eng, struct sl_request *req); /* all of it is over */
/* A sequence ends and gives its blocks back: remembers the last one that others can find. */
void sl_retain_note(struct sl_engine *eng, struct sl_rseq *rs);
/* A sequence that has ended asked for a tool. */
void sl_retain_call(struct sl_engine *eng, struct sl_request *req);
void sl_retain_turn(struct sl_engine *eng); /* leases end */

#endif
