/* SPDX-License-Identifier: MIT
 * rank_step.h - a step's batch as bytes, for ranks in processes of their own.
 *
 * What is read back was sent by another process, so nothing in it is relied on: every index is
 * within what the step has, every page within the pool, every position within the context.
 */
#ifndef SL_ENGINE_RANK_STEP_H
#define SL_ENGINE_RANK_STEP_H

#include "base/err.h"
#include "base/limits.h"
#include "ops/batch.h"
#include "ops/lora.h"

#include <stddef.h>

struct sl_rank_bounds { /* of every step */
    int32_t max_tokens, max_seqs, max_logits, max_model_len, block_size, n_vocab;
    int32_t max_loras, max_lora_rank; /* adapters of a step, and slots of each rank; 0: none */
    int32_t n_groups, n_pages[SL_MAX_KV_GROUPS];
    int32_t window[SL_MAX_KV_GROUPS]; /* 0: rows see all before them */
    bool chunks[SL_MAX_KV_GROUPS];    /* the window does not slide */
    bool states[SL_MAX_KV_GROUPS];    /* of recurrent layers */
};

struct sl_rank_step { /* room to read one into */
    struct sl_rank_bounds bounds;
    struct sl_batch batch; /* its arrays are below */
    struct sl_span *spans;
    int32_t *tokens, *positions, *logit_rows, *tables;
    struct sl_rank_rows { /* those with adapters, of tokens and of logits */
        struct sl_lora_rows rows;
        struct sl_lora_seg *segs;
        int32_t *adapter;
        float *scale;
    } lora[2];
};

size_t sl_rank_step_bytes(const struct sl_rank_bounds *b); /* of the largest step */
/* Returns how many bytes of out a batch of generated text takes: without pairs. slots: where other
 * ranks have the step's adapters, NULL if it has none. */
size_t sl_rank_step_put(const struct sl_rank_bounds *b, const struct sl_batch *batch,
                        const int32_t *slots, uint8_t *out);

SL_MUST_CHECK int sl_rank_step_init(struct sl_rank_step *s, const struct sl_rank_bounds *b,
                                    struct sl_error *err);
void sl_rank_step_deinit(struct sl_rank_step *s);
/* weights: [max_loras] what this rank has in its slots, NULL in those that have nothing. */
SL_MUST_CHECK int sl_rank_step_get(struct sl_rank_step *s, const uint8_t *data, size_t n,
                                   const struct sl_lora_weights *const *weights,
                                   struct sl_error *err);

#endif
