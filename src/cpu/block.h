/* SPDX-License-Identifier: MIT
 * block.h - a block of tokens brought to the forms that packed weights want, and products with it:
 * what linear_packed.c and experts.c share.
 */
#ifndef SL_CPU_BLOCK_H
#define SL_CPU_BLOCK_H

#include "cpu/backend.h"

#define SL_ITEM_ROWS (SL_I8_PANELS * SL_I8_PANEL) /* outputs of a call of sl_block_dot, at most */

struct sl_block {
    struct sl_cpu *cpu;
    const float *x; /* the rows, all columns: for matrices as in the file */
    int64_t ld_x;
    int n_t;         /* tokens, 1 to SL_I8_TOKENS */
    int64_t k0, n_k; /* the columns that are placed: all, or a part that begins at a group */
    unsigned wants;  /* 1 << layout of the matrices it meets */
    bool tiles;      /* how x_i8 is placed */
    struct sl_i8_x *x_i8;
    uint16_t *x_bf16;
    uint16_t *x_fp8; /* groups of SL_FP8_GROUP columns as blocks of their own */
};

/* The block will meet w. Before sl_block_cut; n_t is set. */
void sl_block_meet(struct sl_block *b, const struct sl_weight *w);
/* Bytes of its forms, a multiple of 64 if n_t is one of 16; then gives them their places from `at`
 * on. */
size_t sl_block_bytes(const struct sl_block *b);
void sl_block_cut(struct sl_block *b, void *at);
/* Token t's columns, from k0 on, to all forms. */
void sl_block_place(const struct sl_block *b, int t, const float *x);
/* acc [n_t, SL_ITEM_ROWS] = the rows of n_panels panels of w from p on, times the block's tokens;
 * added to what acc holds if k0 > 0, except where w is as in the file: it takes all columns. */
void sl_block_dot(const struct sl_block *b, const struct sl_weight *w, int64_t p, int n_panels,
                  struct sl_aside *aside, float *acc, int thread_idx);

#endif
