/* SPDX-License-Identifier: MIT
 * engine.h - starts the engine core on parts that were opened elsewhere: a runner, the size of its
 * page pool, a tokenizer, limits.
 *
 * sl_engine_create (load/load.c) opens a checkpoint, fills struct sl_engine_parts and calls
 * sl_engine_start; tests start it on fake parts. The core owns scheduling, the prefix cache,
 * sampling, stopping and delivery, and implements every function of sluice.h on requests, outboxes
 * and statistics, and sl_engine_destroy/info/tokenizer/healthy/sampling_default.
 *
 * Threads: one engine thread, asleep while there is nothing to do. Pages hold no state of their
 * own: the core recomputes what was lost (bits are the same by promise), and copies pages only to
 * and from tiers (tiers.h).
 */
#ifndef SL_ENGINE_ENGINE_H
#define SL_ENGINE_ENGINE_H

#include "engine/runner.h"
#include "engine/speculative.h"
#include "engine/tiers.h"
#include "kv/kv.h"

struct sl_engine_parts {
    struct sl_runner runner;              /* copied */
    const struct sl_tokenizer *tokenizer; /* borrowed until destroy; NULL: chunks have no text */
    const int32_t *eos_ids;               /* copied */
    int32_t n_eos_ids;
    /* Copied, its strings borrowed until destroy. The core uses n_vocab (bound of prompt ids),
     * max_model_len, block_size, n_pages, max_num_seqs, max_num_batched_tokens, all of which must
     * be set, and kv_groups: tables of a batch are in that order. A max_model_len beyond the tokens
     * of all blocks is lowered to it in sl_engine_info. */
    struct sl_model_info info;
    struct sl_hash128 kv_root; /* names model and layout: the names of cached blocks begin here */
    struct sl_adapters *adapters; /* NULL: none; else the runner knows batch->lora. Closed by the
                                     engine before destroy is called */
    struct sl_sampling sampling;  /* defaults of this model, without arrays; see
                                     sl_engine_sampling_default */
    struct sl_speculative speculative;
    int32_t max_queued;           /* 0 = 4096 */
    int32_t priority_max_wait_ms; /* 0 = 30000 */
    int32_t watchdog_s; /* requests are open and nothing moves for so long: see watchdog.h;
                           0 = 120, below 0 = never */
    int32_t max_itl_ms; /* how long a prompt may keep what generates waiting: see sched.h; 0 = any
                           time */
    bool no_prefix_caching;
    double kv_retention;  /* share of the pool that is kept for programs that wait for tools; 0 =
                             none */
    bool no_jump_forward; /* tokens that a grammar forces are chosen like all others */
    bool kv_events;       /* sl_engine_kv_events may be called */
    bool no_thread;       /* the caller drives the engine with sl_engine_step: tests */
    uint64_t seed;        /* keys block hashes and the seeds of requests without one; 0 = random */
    /* Optional: give up memory while the engine sleeps, and take it again, which gives another
     * runner. path: other weights, or NULL. Nothing runs meanwhile. */
    int (*park)(void *user, int level, struct sl_error *err);
    int (*unpark)(void *user, const char *path, struct sl_runner *runner, struct sl_error *err);
    /* Pages of the first group, a FULL one, share memory with those of other engines, floor for at
     * least max_model_len tokens; NULL: they do not. discard(user, page): see kv.h. The share
     * outlives the engine. */
    struct sl_share *share;
    void (*discard)(void *user, int32_t page);
    struct sl_tiers_config tiers; /* of pages outside the pool; needs a runner that copies them */
    void *user;                   /* for sl_engine_user: the loader's own data (template, model) */
    void (*destroy)(void *user);  /* called last by sl_engine_destroy, may be NULL */
};

/* On failure nothing was taken over: the caller still owns the parts and destroy is not called. */
SL_MUST_CHECK int sl_engine_start(const struct sl_engine_parts *parts, struct sl_engine **out,
                                  struct sl_error *err);
void *sl_engine_user(const struct sl_engine *eng);

/* One turn of the engine thread: takes what was submitted and cancelled, runs at most one step.
 * Returns true while work is left. Only with parts.no_thread. */
bool sl_engine_step(struct sl_engine *eng);

#endif
