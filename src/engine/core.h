/* SPDX-License-Identifier: MIT
 * core.h - the engine's inside, shared by the files that implement it.
 *
 * Threads: what is not marked otherwise belongs to the engine thread. Other threads reach it
 * through the inbox (submissions, cancellations), read `stats` under its lock and the atomics.
 */
#ifndef SL_ENGINE_CORE_H
#define SL_ENGINE_CORE_H

#include "engine/adapters.h"
#include "engine/ahead.h"
#include "engine/engine.h"
#include "engine/flight.h"
#include "engine/fund.h"
#include "engine/masker.h"
#include "engine/request.h"
#include "engine/retain.h"
#include "engine/speculative.h"
#include "engine/suffix.h"
#include "engine/tiers.h"
#include "engine/watchdog.h"
#include "kv/feed.h"
#include "sched/sched.h"

/* What other threads tell the engine. Lists run through the requests, so telling never fails; the
 * eventfd is written when the engine may be asleep. */
struct sl_inbox {
    pthread_mutex_t lock;
    struct sl_request *submitted, *submitted_tail;
    struct sl_request *cancelled, *cancelled_tail; /* each holds a reference */
    struct sl_request *called;                     /* likewise; tools, the last one first */
    int32_t n_submitted;
    int event_fd;
    bool signalled, closed;
};

#define SL_MATCH_SIZES 6

struct sl_engine {
    /* constant after start: any thread */
    struct sl_runner runner;
    const struct sl_tokenizer *tokenizer;
    struct sl_model_info info;
    struct sl_sampling sampling;
    struct sl_request_limits limits;
    int32_t *eos_ids;
    int32_t n_eos_ids, max_queued;
    struct sl_speculative speculative;
    const struct sl_mode *drafting;  /* of requests that may draft; NULL: none may */
    uint64_t n_proposals;            /* turns in which it was asked for drafts */
    struct sl_fund fund;             /* what drafts may cost */
    struct sl_ahead ahead;           /* and what keeps steps from following one another */
    struct sl_drafter *drafter;      /* a model that drafts; NULL: there is none */
    struct sl_suffix_corpus *corpus; /* past outputs; NULL: none are kept */
    /* Drafts lately that were right and wrong, by the length of their match: 0 without one, i of
     * 2^(i - 1) tokens or more. */
    float match_right[SL_MATCH_SIZES], match_wrong[SL_MATCH_SIZES];
    double search_s; /* what it takes to look for drafts, lately */
    bool prefix_caching, jump_forward, threaded;
    uint64_t raise_ns, seed;
    int32_t max_raised;
    void *user;
    void (*destroy)(void *user);
    int (*park)(void *user, int level,
                struct sl_error *err); /* NULL: there is nothing to give up */
    int (*unpark)(void *user, const char *path, struct sl_runner *runner, struct sl_error *err);
    pthread_t thread;

    /* load/sleep.c: one at a time puts to sleep and wakes */
    pthread_mutex_t sleep_lock;
    pthread_mutex_t runner_lock; /* while the runner is exchanged, or asked from outside */
    atomic_bool sleep_wanted;    /* refuses requests: asleep, or about to be */
    atomic_bool abort_all;       /* what is in flight is to end */
    atomic_int sleep_level;

    /* any thread */
    struct sl_inbox inbox;
    _Atomic uint64_t n_numbers;          /* requests so far: names and seeds */
    atomic_int n_queued;                 /* submitted and never scheduled yet */
    _Atomic int64_t n_queued_tokens;     /* of their prompts */
    atomic_bool stopping, failed, ended; /* ended: the engine thread touches nothing any more */
    atomic_int n_open;                   /* submitted and not over */
    _Atomic uint64_t n_moves;            /* steps landed: progress */
    atomic_int phase;                    /* enum sl_phase */
    struct sl_watchdog watchdog;
    struct sl_constraints *constraints;  /* NULL: no tokenizer, or no logits */
    struct sl_adapters *adapters;        /* NULL: not enabled */
    struct sl_kv_feed *feed;             /* of KV events; NULL: not enabled */
    struct sl_kv_event_data *event_data; /* what the events read last point to */
    /* Held by the engine thread during a turn, except while it is inside the runner: who else holds
     * it may read all that follows. */
    pthread_mutex_t turn_lock;
    pthread_mutex_t stats_lock;
    struct sl_stats stats_public; /* stats_lock */

    struct sl_kv kv;
    struct sl_tiers tiers;
    struct sl_retain retain;
    struct sl_sched sched;
    struct sl_flight flights[SL_MAX_FLIGHTS]; /* a ring; in flight: n_flights from first_flight */
    int32_t max_flights, first_flight, n_flights;
    struct sl_masker masker;
    uint64_t step_ns;   /* what the last step took, from its launch or the end of the one before */
    uint64_t landed_ns; /* when the last step did */
    uint64_t waited_ns; /* for masks, of the step that lands next */
    double busy_s;      /* of the device, when the last step landed */
    bool starved;       /* everything that could be planned waits for masks */
    char *text;         /* room for one token's text */
    struct sl_request *live, *live_oldest, *news, *news_tail;
    int32_t n_raised; /* sequences that go first because they waited too long */
    uint64_t n_arrivals, n_seqs_taken;
    int32_t idle_cursor; /* the page that the check of an idle engine saw last */
    uint64_t now_ns;     /* when the last step landed */
    uint64_t part_ns;    /* since when the time belongs to part */
    enum sl_time_part part;
    uint64_t n_mallocs_before;
    struct sl_stats stats;
    struct sl_error error; /* why failed */
};

/* turn.c: one turn; true while work is left. */
bool sl_engine_turn(struct sl_engine *eng);
void sl_engine_cancel_all(struct sl_engine *eng);
/* What follows on the engine thread is of this part. */
void sl_engine_part(struct sl_engine *eng, enum sl_time_part part);
/* request.c: a prompt of so many tokens was scheduled for the first time, or ended before. */
void sl_engine_unqueue(struct sl_engine *eng, int32_t n_prompt);
/* Around every call of the runner, which may take for ever: the turn lock is free meanwhile. */
void sl_engine_leave(struct sl_engine *eng);
void sl_engine_return(struct sl_engine *eng);

/* invariants.c: walks everything between two turns. SL_EINTERNAL: the message names the invariant
 * and the numbers. */
SL_MUST_CHECK int sl_engine_check(struct sl_engine *eng, struct sl_error *err);
/* At the end of a turn. Debug builds walk everything and assert; all builds look at an idle engine,
 * with bounded work. False: an invariant is broken. */
SL_MUST_CHECK bool sl_engine_verify(struct sl_engine *eng, bool work, struct sl_error *err);

/* load/sleep.c */
int sl_engine_is_asleep(struct sl_error *err); /* SL_EASLEEP */

/* kv_events.c */
SL_MUST_CHECK int sl_engine_feed_init(struct sl_engine *eng, struct sl_error *err);
void sl_engine_feed_deinit(struct sl_engine *eng);

/* watchdog.c: the engine thread gives the lock up between turns and while it is in the runner. If
 * it spins in its own code it does not: false after some 200 ms. */
SL_MUST_CHECK bool sl_engine_lock_turn(struct sl_engine *eng);

/* inbox.c */
SL_MUST_CHECK int sl_inbox_init(struct sl_inbox *in, struct sl_error *err);
void sl_inbox_deinit(struct sl_inbox *in);
SL_MUST_CHECK bool sl_inbox_submit(struct sl_inbox *in, struct sl_request *req); /* false: closed */
void sl_inbox_cancel(struct sl_inbox *in, struct sl_request *req);
void sl_inbox_call(struct sl_inbox *in, struct sl_request *req);
void sl_inbox_wake(struct sl_inbox *in);
void sl_inbox_close(struct sl_inbox *in);
void sl_inbox_wait(struct sl_inbox *in, int timeout_ms); /* until there is something */
/* The lists, linked by inbox_next, cancel_next and call_next. */
void sl_inbox_take(struct sl_inbox *in, struct sl_request **submitted,
                   struct sl_request **cancelled, struct sl_request **called);
int32_t sl_inbox_count(struct sl_inbox *in);

static inline struct sl_rseq *sl_rseq_of(struct sl_seq *seq)
{
    return (struct sl_rseq *)seq;
}

#endif
