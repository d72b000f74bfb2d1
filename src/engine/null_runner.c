/* SPDX-License-Identifier: MIT */
#include "base/check.h"
#include "engine/runner.h"

static int null_submit(void *ctx, const struct sl_batch *batch, const struct sl_pick *picks,
                       struct sl_error *err)
{
    struct sl_null_runner *n = ctx;
    (void)picks;
    (void)err;
    SL_ASSERT(batch->n_logits <= SL_MAX_SEQS);
    for (int32_t i = 0; i < batch->n_logits; i++) {
        SL_ASSERT(batch->logit_rows[i] >= 0 && batch->logit_rows[i] < batch->n_tokens);
        int32_t next = batch->tokens[batch->logit_rows[i]] + 1;
        n->ids[i] = next < n->n_vocab ? next : 0;
    }
    n->n = batch->n_logits;
    return 0;
}

static int null_collect(void *ctx, struct sl_picked *out, struct sl_error *err)
{
    const struct sl_null_runner *n = ctx;
    (void)err;
    for (int32_t i = 0; i < n->n; i++)
        out[i] = (struct sl_picked){.id = n->ids[i]};
    return 0;
}

void sl_null_runner_init(struct sl_null_runner *n, int32_t n_vocab, struct sl_runner *out)
{
    SL_ASSERT(n_vocab >= 1);
    n->n_vocab = n_vocab;
    n->n = 0;
    *out = (struct sl_runner){.ctx = n,
                              .n_vocab = n_vocab,
                              .max_flights = 1,
                              .blind = true,
                              .submit = null_submit,
                              .collect = null_collect};
}
