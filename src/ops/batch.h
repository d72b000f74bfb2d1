/* SPDX-License-Identifier: MIT
 * batch.h - the ragged batch of one step: for each scheduled sequence a span of token positions.
 *
 * A span is 1 token for a decode, a chunk for a prefill. Arrays are borrowed until the step
 * returns. This header compiles as C11 and C++17.
 */
#ifndef SL_OPS_BATCH_H
#define SL_OPS_BATCH_H

#include <stdint.h>

struct sl_span {
    int32_t first; /* its first token's index in tokens[] */
    int32_t n;     /* tokens, >= 1 */
    int32_t pos;   /* absolute position of its first token = KV entries written before this step */
    int32_t table_idx; /* its first page id's index in each group's table */
    int32_t n_drafts;  /* of its tokens, the last ones, may be rolled back (struct sl_state_view);
                          not set where there are no recurrent layers */
};

struct sl_lora_rows;

struct sl_batch {
    int32_t n_tokens, n_spans, n_logits;
    const int32_t *tokens;       /* [T] ids; -1 - row: what the last step of the same slot that had
                                    logits chose from that row */
    const int32_t *positions;    /* [T] absolute */
    const struct sl_span *spans; /* [n_spans], in order of first; together they cover 0..T-1 */
    /* Page ids, a table for each group of layers (struct sl_kv_view); a span uses
     * ceil((pos + n) / block_size) of each, below 0: none of its rows sees that block. n_drafts
     * more follow, which mean something in the group of recurrent layers only. */
    const int32_t *block_tables;
    int32_t n_tables, table_stride; /* ids from one group's table to the next */
    const int32_t *logit_rows; /* [n_logits] token indexes whose logits are wanted, ascending */
    /* ops/lora.h: the adapters of tokens, and of wanted rows; NULL: nobody has one. */
    const struct sl_lora_rows *lora, *logit_lora;
    const int32_t *second_from; /* [n_spans] the position where the second text of a pair begins;
                                   NULL: there are no pairs */
    int32_t slot;               /* of what it chooses; 0: there is one */
    /* Where spans is device memory, what the host knows of them: bit n is set if a span has n
     * tokens, the last bit if one has as many or more; 0: nothing is known. */
    uint64_t span_sizes;
    int32_t n_long; /* likewise, so many have more than SL_BATCH_SHORT tokens; 0: none has, or it is
                       not known */
};

#define SL_BATCH_SIZES 64 /* bits */
#define SL_BATCH_SHORT 8

static inline uint64_t sl_batch_sizes_of(const struct sl_span *spans, int32_t n)
{
    uint64_t sizes = 0;
    for (int32_t i = 0; i < n; i++)
        sizes |= (uint64_t)1 << (spans[i].n < SL_BATCH_SIZES ? spans[i].n : SL_BATCH_SIZES - 1);
    return sizes;
}

static inline int32_t sl_batch_n_long(const struct sl_span *spans, int32_t n)
{
    int32_t n_long = 0;
    for (int32_t i = 0; i < n; i++)
        n_long += spans[i].n > SL_BATCH_SHORT;
    return n_long;
}

/* A group's table. */
static inline const int32_t *sl_batch_tables(const struct sl_batch *b, int32_t group)
{
    return b->block_tables + (int64_t)group * b->table_stride;
}

#endif
