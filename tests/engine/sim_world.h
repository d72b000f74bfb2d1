/* SPDX-License-Identifier: MIT
 * sim_world.h - what the parts of the simulator (test_sim.c) share: one world, drawn from one seed,
 * on one thread, under a clock that only the world moves.
 *
 * A world is a configuration and a plan: a list of things that happen at given turns. Each draws
 * its details from a seed of its own, and what is up to chance in between (who is late, how many
 * bytes arrive) is a hash of seed, turn and purpose. So a plan with something left out is a world
 * of the same kind, and the minimiser may leave out what a failure does not need.
 */
#ifndef SL_TESTS_SIM_WORLD_H
#define SL_TESTS_SIM_WORLD_H

#include "base/check.h"
#include "base/rng.h"
#include "base/sys.h"
#include "engine/core.h"
#include "engine/fake_store.h"
#include "engine/late_runner.h"
#include "engine/turn.h"
#include "server/server.h"

#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define MAX_VOCAB     48
#define MAX_CLIENTS   48
#define MAX_HTTP      24
#define MAX_LEN       192
#define MAX_SIM_N     4
#define MAX_SIM_DRAFT 6
#define MAX_PAGES     128
#define MAX_ACTS      256
#define MAX_TEXT      1024
#define MAX_SIM_STOP  2
#define N_BASES       4
#define EOS_ID        1
#define STEP_NS       10000000u /* of the device */
#define TURN_NS       1000000u  /* of the world */
#define CLIENT_STOPS  2
#define MAX_SIM_BAD   3 /* bad words, and tokens of one */

enum act_kind {
    ACT_REQUEST, /* somebody in the process submits */
    ACT_HTTP,    /* a client connects */
    ACT_CANCEL,
    ACT_STEP_FAILS,   /* the next step, half way */
    ACT_STEP_NOMEM,   /* likewise: the device is out of memory */
    ACT_DEVICE_DIES,  /* for good */
    ACT_HANG,         /* the next step takes minutes, with or without showing progress */
    ACT_ALLOC_FAILS,  /* one allocation or a run of them, of the server's threads and submitters */
    ACT_NO_FDS,       /* accepting fails for some turns */
    ACT_CLOCK_JUMPS,  /* the monotonic clock, forward: the machine slept */
    ACT_WALL_JUMPS,   /* the wall clock, anywhere */
    ACT_ENGINE_SLOW,  /* the engine thread gets no processor for some turns */
    ACT_SERVER_STOPS, /* as after SIGTERM; a second one aborts */
    ACT_KINDS
};

static const char *const act_names[ACT_KINDS] = {
    "request",          "http client", "cancel",       "step fails", "step out of memory",
    "device dies",      "step hangs",  "alloc fails",  "out of fds", "clock jumps",
    "wall clock jumps", "engine slow", "server stops",
};

struct act {
    enum act_kind kind;
    int32_t at; /* turn */
    uint64_t seed;
    bool dropped;
};

struct config {
    int32_t n_vocab, n_pages, block_size, max_seqs, max_tokens, extra_rows, max_len, max_queued;
    int32_t window, window_pages; /* a group of layers with a window; 0: there is none */
    bool no_full;                 /* and no layers that see everything */
    int32_t state_pages;          /* of a group of recurrent layers; 0: there is none */
    int32_t state_drafts;         /* and for states behind drafts */
    int32_t n_priorities, max_n, nan_every, engine_late_pct, max_wait_ms, watchdog_s;
    int32_t mask_late_pct, constrain_every; /* one request of so many */
    bool token_rules;                       /* bad_words, allowed_token_ids */
    int32_t n_drafts, draft_wrong_pct;      /* most for a sequence, 0: none */
    bool draft_model;                       /* by a model with pages of its own, */
    bool draft_rows;                        /* that reads hidden rows */
    bool tiers;                             /* copies of pages outside the pool, */
    struct fake_faults faults;              /* of a store that has these */
    int32_t n_groups;                       /* of sequences, whose steps are computed at once */
    int32_t retain_pct; /* of pages, for conversations that call tools; 0: none */
    int32_t n_sessions; /* that requests name; 0: none do */
    bool priced;        /* steps are measured: what drafts cost is bounded */
    bool caching, salts, sampling, late, penalties, http, stops;
    /* HTTP */
    int32_t max_conns, header_ms, body_ms, idle_ms, write_ms, request_ms, ping_ms, shutdown_ms;
    int32_t io_noise_pct, sock_cap, n_keys, n_threads;
    uint64_t max_held, max_body;
};

/* What one request must give, computed without pages, batches or queues. */
struct oracle_seq {
    uint64_t hash, seed;
    int32_t tokens[MAX_LEN];
    int32_t n, n_ends;
    char text[MAX_TEXT]; /* as shown to the reader */
    size_t n_text;
};

struct oracle {
    struct sl_request_desc desc;
    int32_t prompt[MAX_LEN];
    int32_t stop_ids[CLIENT_STOPS];
    const char *stops[MAX_SIM_STOP];
    struct sl_logit_bias bias[2];
    struct sl_bad_word bad[MAX_SIM_BAD];
    int32_t bad_ids[MAX_SIM_BAD][MAX_SIM_BAD];
    int32_t allowed_ids[MAX_VOCAB];
    int32_t max_out, salt;
    bool constrained, forcing; /* to SIM_FREE, or to SIM_FORCING */
    struct oracle_seq seqs[MAX_SIM_N];
};

struct client {             /* somebody in the process */
    struct sl_request *req; /* NULL: the place is free */
    struct oracle o;
    bool cancelled, ended;
    int read_every; /* turns between reads */
    uint64_t cancelled_turn;
    int32_t n_preempted[MAX_SIM_N]; /* after the last step */
    bool was_running[MAX_SIM_N];
};

struct hclient; /* sim_http.h */

struct world {
    uint64_t seed_no;
    struct config cfg;
    struct act acts[MAX_ACTS];
    int32_t n_acts, n_done; /* acts that happened */
    struct sl_engine *eng;
    struct sl_tokenizer *tok;  /* shared by all worlds */
    struct sl_sampler sampler; /* the oracle's */
    uint64_t hash_key;

    uint64_t turn, n_draws; /* n_draws: of this turn */
    bool engine_more;       /* the last turn of the engine said that work is left */
    uint64_t engine_slow_until, no_fds_until;
    uint64_t busy_turn; /* the last one in which the engine had an open request */
    bool calm;          /* everything happened: no more faults, everybody does his part */
    uint64_t calm_turn;

    /* device */
    struct store {                    /* the pages of a group */
        bool state;                   /* of recurrent layers */
        int32_t window, n_pages;      /* window 0: none */
        int32_t *token, *pos, *space; /* [n_pages, block_size] twice; [n_pages] who wrote it */
        uint64_t *hash;               /* [n_pages] of all tokens, a state */
    } stores[3], drafter;
    int32_t fed[2]; /* steps of the drafter, and of those that failed */
    struct {        /* [max_tokens] whose each token of the last step was */
        const struct sl_rseq *rs;
        int32_t token, pos;
    } * step;
    const struct sl_rseq **draft_rows_of; /* [max_seqs] of the drafter's last step */
    uint64_t *states;                     /* [tokens of a step] behind each of them */
    int32_t *n_begun; /* [state_pages + state_drafts] spans of the step that begin at this state */
    int32_t n_stores;
    float *rows;
    struct late_runner late;
    struct sl_host_runner *host;
    int32_t fail_steps, fail_code, hang_s; /* what the next steps do */
    bool hang_moves, dead;
    uint64_t n_progress;
    uint64_t n_steps, n_preemptions, n_turns_engine;
    uint64_t failed_turn; /* of the engine, when a step was made that fails */
    bool orphans; /* a request was released before its end: its salt is not known any more */

    struct client clients[MAX_CLIENTS];
    struct hclient *https; /* [MAX_HTTP] */
    int32_t bases[N_BASES][MAX_LEN];
    int32_t last[MAX_LEN]; /* a conversation that may go on */
    int32_t n_last;
    int32_t n_seqs_accepted, n_direct_seqs;
    uint64_t n_ended[5];

    /* server */
    struct sl_server_config server;
    bool serving, stop_sent, no_thread; /* no_thread: one could not be started */
    int n_stops;
    bool golden_sent; /* the last request, which must be answered */

    /* faults */
    int32_t alloc_skip, alloc_fail; /* fail the alloc_fail allocations after the next alloc_skip */
    int32_t max_fds;                /* sockets that the server may have open, until no_fds_until */
    int32_t no_fds_allocs; /* allocations that fail, each after one that was not accepted */
    bool own;              /* the simulator's own code runs: nothing fails */
    uint64_t n_alloc_faults;
    int64_t blocks; /* of heap held by the code under test */
};

struct totals {
    uint64_t steps, preemptions, hits, tokens, overlaps, deep;
    uint64_t http, http_ok, http_refused, http_cut;
    uint64_t alloc_faults, step_faults, stalls, raised, halves, late_masks, forced;
    uint64_t fed, fed_ahead; /* steps of a model that drafts; of the other, ahead beside it */
    uint64_t drafted, accepted, state_drafted, state_accepted;
    uint64_t window_evictions, state_evictions;
    uint64_t loaded; /* pages from outside the pool */
    uint64_t let_in; /* ranks that were done without */
    uint64_t lease_falls, lease_ends;
};

static struct world *sim; /* the world that is alive */
static struct totals total;
static uint64_t virtual_ns;
static int64_t wall_offset_ns;
static bool trace;
static const char *replay_args = ""; /* what else the command that replays needs */

__attribute__((format(printf, 2, 3), noreturn)) static void violation(const struct world *w,
                                                                      const char *fmt, ...)
{
    va_list ap;
    va_start(ap, fmt);
    printf("sim: seed %llu, turn %llu, step %llu: ", (unsigned long long)w->seed_no,
           (unsigned long long)w->turn, (unsigned long long)w->n_steps);
    vprintf(fmt, ap);
    va_end(ap);
    printf("\nreplay: make sim SEED=%llu%s\nsmaller: make sim MINIMISE=%llu\n",
           (unsigned long long)w->seed_no, replay_args, (unsigned long long)w->seed_no);
    fflush(stdout);
    _exit(1);
}

__attribute__((format(printf, 1, 2))) static void say(const char *fmt, ...)
{
    if (!trace)
        return;
    va_list ap;
    va_start(ap, fmt);
    vprintf(fmt, ap);
    va_end(ap);
}

/* ------------------------------------------------------------------ chance */

static int32_t below(struct sl_rng *r, int32_t n)
{
    return (int32_t)sl_rng_below(r, (uint64_t)n);
}

static int32_t between(struct sl_rng *r, int32_t lo, int32_t hi)
{
    return lo + below(r, hi - lo + 1);
}

static bool chance(struct sl_rng *r, int32_t pct)
{
    return below(r, 100) < pct;
}

/* Chance that no plan writes down: it does not depend on what other parts of the world drew. */
static int32_t noise(struct world *w, uint64_t purpose, int32_t n)
{
    uint64_t h = sl_mix64(w->seed_no * 0x9E3779B97F4A7C15u ^ w->turn << 20 ^ purpose << 8);
    return (int32_t)(sl_mix64(h + ++w->n_draws) >> 33) % n;
}

static bool now_and_then(struct world *w, uint64_t purpose, int32_t pct)
{
    return pct > 0 && !w->calm && noise(w, purpose, 100) < pct;
}

static bool has_act(const struct world *w, enum act_kind kind)
{
    for (int32_t i = 0; i < w->n_acts; i++)
        if (w->acts[i].kind == kind && !w->acts[i].dropped)
            return true;
    return false;
}

/* Did anything happen, or will, for which a request may fail that is not to blame? */
static bool steps_may_fail(const struct world *w)
{
    return has_act(w, ACT_STEP_FAILS) || has_act(w, ACT_STEP_NOMEM) || has_act(w, ACT_DEVICE_DIES);
}

#endif
