/* SPDX-License-Identifier: MIT
 * A hand-over is a gather to which one stage brings rows and the others nothing: so the link's
 * order of messages, its patience and its losses are those of tensor parallelism. Who neither has
 * the rows nor needs them only comes to it. Over TCP, where rank 0 has the connections, rows
 * between two others pass through its own, which are not begun yet: it is the last stage.
 */
#include "engine/rank_stage.h"

#include "base/check.h"

#include <string.h>

static size_t row_bytes_of(const struct sl_model *model)
{
    return (size_t)sl_model_facts(model)->hidden * sizeof(float);
}

size_t sl_rank_stage_room(const struct sl_model *model, int32_t max_tokens)
{
    SL_ASSERT(max_tokens > 0);
    return (size_t)max_tokens * row_bytes_of(model);
}

static int hand_over(struct sl_link *link, void *stream, size_t row_bytes, int from, int to,
                     int32_t n)
{
    const int rank = link->cfg.rank;
    struct sl_link_part parts[SL_MAX_RANKS];
    const struct sl_link_gather g = {.part = stream,
                                     .part_bytes = rank == from ? row_bytes : 0,
                                     .n = n,
                                     .out = rank == 0 || rank == to ? stream : NULL,
                                     .first_only = true,
                                     .also = to};
    SL_ASSERT(from > 0 && from != to);
    int rc = sl_link_all_gather(link, &g, parts);
    if (rc != 0 || rank != to)
        return rc;
    if (parts[from].bytes != row_bytes)
        return sl_link_fail(link, "rank %d hands over rows of %zu bytes instead of %zu", from,
                            parts[from].bytes, row_bytes);
    if (parts[from].rows != NULL) /* else they are there */
        memcpy(stream, parts[from].rows, (size_t)n * row_bytes);
    return 0;
}

int sl_rank_stage_step(struct sl_link *link, const struct sl_model *model, struct sl_run *run,
                       const struct sl_batch *batch, const float **rows)
{
    const struct sl_model_facts *f = sl_model_facts(model);
    const int32_t n = f->n_stages;
    int rc = 0;
    SL_ASSERT(n == link->cfg.n_ranks && sl_model_part(f->stage, 0, 1, n) == link->cfg.rank);
    for (int32_t s = 0; s < n && rc == 0; s++) {
        if (s == f->stage)
            *rows = sl_run_enqueue(run, batch);
        if (s + 1 < n)
            rc = hand_over(link, sl_run_stream(run), row_bytes_of(model), sl_model_part(s, 0, 1, n),
                           sl_model_part(s + 1, 0, 1, n), batch->n_tokens);
    }
    return rc;
}
