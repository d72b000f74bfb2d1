/* SPDX-License-Identifier: MIT
 * masker.h - which tokens may come next, found beside the engine thread.
 *
 * A sequence with a constraint needs a mask before its next token is chosen. When its last token is
 * known, the sequence goes to a masker thread, which tells its matcher and fills the mask; until it
 * is taken back nothing is planned for it (seq.waits), and everybody else goes on. A grammar whose
 * masks take long, or that runs into its limits, therefore costs its own requests only.
 *
 * Automata grow while they are walked, so a masker allocates; the engine thread does not. Without
 * threads (tests) the work is done in the call. Engine thread only, but for what is said to be
 * under `lock`.
 */
#ifndef SL_ENGINE_MASKER_H
#define SL_ENGINE_MASKER_H

#include "engine/request.h"

#define SL_MAX_MASKERS 4

struct sl_masker {
    pthread_mutex_t lock;
    pthread_cond_t work, idle;
    struct sl_rseq *queue, *queue_tail, *done; /* lock */
    int32_t n_busy;                            /* lock: queued or worked on */
    uint64_t n_masks;                          /* lock */
    struct sl_hist mask_s;                     /* lock */
    bool stopping;                             /* lock */
    pthread_t threads[SL_MAX_MASKERS];
    int32_t n_threads;
    int32_t n_open;     /* sequences given and not taken back */
    int32_t n_running;  /* of them, those that would be in the next step */
    uint64_t pushed_ns; /* when the last one was given */
    uint64_t n_late;    /* not ready when the next step was planned */
};

SL_MUST_CHECK int sl_masker_start(struct sl_engine *eng, struct sl_error *err);
void sl_masker_deinit(struct sl_engine *eng);
void sl_masker_stop(struct sl_engine *eng); /* joins; what was not begun is done with an error */
/* token: the last one chosen, -1: none yet, for all sequences of the request. */
void sl_masker_push(struct sl_engine *eng, struct sl_rseq *rs, int32_t token);
/* Waits until nobody is worked on, at most until then. */
void sl_masker_wait(struct sl_engine *eng, uint64_t until_ns);
/* Those whose masks are ready, or failed, linked by mask_next. Each holds a reference to its
 * request, which the caller gives back. */
struct sl_rseq *sl_masker_take(struct sl_engine *eng);
void sl_masker_stats(struct sl_engine *eng, struct sl_stats *out);

#endif
