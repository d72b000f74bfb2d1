/* SPDX-License-Identifier: MIT
 * masker.h - masks of the tokens that may come next, made on threads beside the engine thread.
 *
 * A sequence with a constraint needs a mask before its next token is chosen. When its last token is
 * known, the sequence goes to a masker thread, which advances its matcher and fills the mask. Until
 * the engine takes the sequence back nothing more is planned for it (seq.waits), and all other
 * sequences go on. Sequences that run go before those that start. The engine waits a while for what
 * it has given, then goes on without: a grammar whose masks take long, or that runs into its
 * limits, therefore costs its own requests only. Masks of sequences whose last one was quick are
 * made by the engine itself, while it waits, where no device computes meanwhile. With a mask come
 * those after the drafts for the next step, as far as the constraint allows the drafts.
 *
 * Automata grow while they are walked, so masks are made with the guard against allocations of the
 * engine thread off. Without threads (tests) all the work is done where it would be waited for.
 * Engine thread only, but for what is said to be under `lock`.
 */
#ifndef SL_ENGINE_MASKER_H
#define SL_ENGINE_MASKER_H

#include "engine/request.h"

#define SL_MAX_MASKERS 4

struct sl_masker_queue {
    struct sl_rseq *first, *last;
};

struct sl_masker {
    pthread_mutex_t lock;
    pthread_cond_t work, idle;
    struct sl_masker_queue running, starting; /* lock: the threads' */
    struct sl_masker_queue quick;             /* lock: the engine's own */
    struct sl_rseq *done;                     /* lock */
    int32_t n_busy;                           /* lock: queued or worked on */
    int32_t n_awaited;                        /* lock: of them, those of this round that run */
    uint64_t n_masks;                         /* lock */
    struct sl_hist mask_s;                    /* lock */
    bool stopping;                            /* lock */
    pthread_t threads[SL_MAX_MASKERS];
    int32_t n_threads;
    int32_t n_open;         /* sequences given and not taken back */
    int32_t n_awaited_most; /* given in this round, those that run */
    uint64_t round;         /* one more after each wait */
    uint64_t pushed_ns;     /* when the last one was given */
    uint64_t n_late;        /* not ready when they were waited for */
    /* Without threads, instead of doing all the work: calls sl_masker_work as often as it likes. */
    void (*simulate)(void *ctx, struct sl_engine *eng);
    void *simulate_ctx;
};

SL_MUST_CHECK int sl_masker_start(struct sl_engine *eng, struct sl_error *err);
void sl_masker_deinit(struct sl_engine *eng);
void sl_masker_stop(struct sl_engine *eng); /* joins; what was not begun is done with an error */
/* token: the last one chosen, of n_new since the last mask; -1: none yet, for all sequences of the
 * request. */
void sl_masker_push(struct sl_engine *eng, struct sl_rseq *rs, int32_t token, int32_t n_new);
/* Is there something to wait for? */
static inline bool sl_masker_owes(const struct sl_masker *m)
{
    return m->n_awaited_most > 0 || (m->n_threads == 0 && m->n_open > 0);
}
/* Ends a round: waits for the masks given in it to sequences that run, at most until then. */
void sl_masker_wait(struct sl_engine *eng, uint64_t until_ns);
/* Makes one mask in the calling thread; false: none was to be made. */
bool sl_masker_work(struct sl_engine *eng);
/* Those whose masks are ready, or failed, linked by mask_next. Each holds a reference to its
 * request, which the caller gives back. */
struct sl_rseq *sl_masker_take(struct sl_engine *eng);
void sl_masker_stats(struct sl_engine *eng, struct sl_stats *out);

#endif
