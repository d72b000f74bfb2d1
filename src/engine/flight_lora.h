/* SPDX-License-Identifier: MIT
 * flight_lora.h - which rows of a step have which adapter. Engine thread only.
 */
#ifndef SL_ENGINE_FLIGHT_LORA_H
#define SL_ENGINE_FLIGHT_LORA_H

#include "ops/lora.h"
#include "sched/sched.h"

struct sl_lora_list { /* of a step's tokens, or of its wanted rows */
    int32_t *adapter;
    float *scale;
    struct sl_lora_seg *segs;
    struct sl_lora_rows rows;
};

struct sl_flight_lora {
    const struct sl_lora_weights **weights; /* [max_adapters] of the step */
    int32_t n_weights, max_adapters;
    struct sl_lora_list tokens, logits;
    struct sl_seq **order; /* [max_seqs] */
    int32_t *index;        /* [max_seqs] of the plan's sequences, -1: none */
    int32_t *next;         /* [max_adapters + 2] */
    bool any;
};

SL_MUST_CHECK int sl_flight_lora_init(struct sl_flight_lora *l, int32_t max_adapters,
                                      int32_t max_tokens, int32_t max_logits, int32_t max_seqs,
                                      struct sl_error *err);
void sl_flight_lora_deinit(struct sl_flight_lora *l);
/* Sequences with one adapter come to stand together in the plan, those without first; else their
 * order stays. A row's bits do not depend on where it stands. */
void sl_flight_lora_order(struct sl_flight_lora *l, struct sl_sched *sched);
/* Rows of the plan's i-th sequence, which follow those put before. */
void sl_flight_lora_put(struct sl_flight_lora *l, struct sl_lora_list *list, int32_t first,
                        int32_t n, const struct sl_sched *sched, int32_t i);
/* All rows are put: what the batch gets. NULL: nobody has an adapter. */
const struct sl_lora_rows *sl_flight_lora_rows(struct sl_flight_lora *l,
                                               const struct sl_lora_list *list);

#endif
