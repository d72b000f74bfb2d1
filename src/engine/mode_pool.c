/* SPDX-License-Identifier: MIT
 * Embeddings and scores: a prompt is computed, its values are the result.
 */
#include "engine/turn.h"

#include <math.h>
#include <string.h>

/* The prompt is computed: its values go to the request, which is over. */
static void take_values(struct sl_engine *eng, const struct sl_flight *f,
                        const struct sl_flight_seq *fs)
{
    struct sl_request *req = fs->rs->req;
    const float *row = f->picked[fs->row].pooled;
    SL_ASSERT(row != NULL && req->pooled != NULL && req->n_pooled % eng->limits.n_pooled == 0);
    SL_ASSERT(fs->rs->seq.n_pending == 1 && fs->pos + fs->n == req->n_prompt);
    fs->rs->seq.n_pending--;
    for (int32_t i = 0; i < req->n_pooled; i++) {
        struct sl_error err;
        if (isfinite(row[i]))
            continue;
        sl_fail(&err, SL_EINTERNAL, "the model's output has a value that is not a number");
        sl_engine_fail(eng, req, &err);
        return;
    }
    memcpy(req->pooled, row, (size_t)req->n_pooled * sizeof *row);
    req->usage_now.t_first_ns = req->usage_now.t_last_ns = eng->now_ns;
    sl_engine_end_seq(eng, fs->rs, SL_FINISH_STOP, false, false);
}

static void pool_consume(struct sl_engine *eng, const struct sl_flight *f,
                         const struct sl_flight_seq *fs)
{
    struct sl_seq *seq = &fs->rs->seq;
    if (seq->state == SL_SEQ_RUNNING && seq->n_preempted == fs->epoch)
        sl_sched_publish(&eng->sched, seq, fs->pos + fs->n);
    if (fs->n_picks > 0)
        take_values(eng, f, fs);
}

const struct sl_mode sl_mode_pool = {.consume = pool_consume};
