/* SPDX-License-Identifier: MIT
 * bench_drafts.h - what the load generator says of speculative decoding, in vLLM's words; by
 * category, what the replies' usage tells (OpenAI's accepted_prediction_tokens).
 */
#ifndef SL_CMD_BENCH_DRAFTS_H
#define SL_CMD_BENCH_DRAFTS_H

#include "cmd/bench_ask.h"

struct sl_bench_kind { /* replies of a category */
    int64_t n, n_output, n_accepted, n_rejected;
};

struct sl_bench_draft_report {
    struct sl_bench_drafts before, after; /* of the server */
    struct sl_bench_kind kinds[SL_BENCH_MAX_KINDS];
};

/* Each prints nothing if nothing was drafted. */
void sl_bench_drafts_table(const struct sl_bench_draft_report *r, const struct sl_bench_dataset *d);
void sl_bench_drafts_json(const struct sl_bench_draft_report *r, const struct sl_bench_dataset *d);

#endif
