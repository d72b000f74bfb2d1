/* SPDX-License-Identifier: MIT */
#include "engine/runner.h"

#include <stddef.h>

/* ctx carries the vocabulary size as a number, so that nothing has to be freed. */
static int null_step_ids(void *ctx, const struct sl_batch *batch, int32_t *ids,
                         struct sl_error *err)
{
    (void)err;
    int32_t n_vocab = (int32_t)(intptr_t)ctx;
    for (int32_t i = 0; i < batch->n_logits; i++) {
        int32_t next = batch->tokens[batch->logit_rows[i]] + 1;
        ids[i] = next < n_vocab ? next : 0;
    }
    return 0;
}

void sl_null_runner_init(struct sl_runner *runner, int32_t n_vocab)
{
    *runner = (struct sl_runner){
        .ctx = (void *)(intptr_t)n_vocab, .n_vocab = n_vocab, .step_ids = null_step_ids};
}
