/* SPDX-License-Identifier: MIT
 * chosen.cuh - attention of tokens over blocks of positions that each key head has chosen for
 * itself, and the choice of the largest scores: what an index of blocks (index_blocks.cu) and the
 * bounds of pages (page_bounds.cu) share.
 */
#ifndef SL_CUDA_CHOSEN_CUH
#define SL_CUDA_CHOSEN_CUH

#include "cuda/device.h"

/* Blocks of `block` positions, n_top for each token and key head: the first `lead` that there are,
 * the last `tail`, and between them those with the largest scores; of equal ones the lower. A token
 * in one of the first n_top has no list. */
struct sl_chosen_rule {
    int32_t block, n_top, lead, tail;
};

/* Tokens first .. first + n - 1 of a step. Scores of a token lie ld apart, of a head ld_head. */
struct sl_chosen_scores {
    const int32_t *positions; /* of the step's tokens */
    const float *scores;
    int64_t ld, ld_head;
    int32_t first, n, n_kv_heads;
};

/* top: [n, n_kv_heads, n_top] blocks in ascending order, of these tokens. */
void sl_chosen_largest(struct sl_cuda *cu, const struct sl_chosen_rule *rule,
                       const struct sl_chosen_scores *scores, int32_t *top);

/* Attention of the tokens first .. first + n - 1 over them, without window, sinks and skipped
 * tiles, q and out rows without gaps. top: of these tokens; room: sl_chosen_room of each. */
void sl_chosen_attend(struct sl_cuda *cu, const struct sl_op_attention *all,
                      const struct sl_chosen_rule *rule, int32_t first, int32_t n,
                      const int32_t *top, void *room);

/* Of an index of blocks: what it chooses (index_blocks.cu), and attention over that. */
void sl_chosen_index(struct sl_cuda *cu, const struct sl_op_index_select *op);
void sl_chosen_blocks(struct sl_cuda *cu, const struct sl_op_sparse_attention *op);

#endif
