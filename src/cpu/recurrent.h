/* SPDX-License-Identifier: MIT
 * recurrent.h - the inner loops of layers with a recurrent state. A call computes some columns (or
 * rows) of n tokens of a span, of which no state is stored but the one behind the last; recurrent.c
 * cuts spans so and finds the pages. Every version gives the same bits (docs/DETERMINISM.md).
 *
 * begin, end: a layer's part of a page, where the columns' state is read (NULL: zeros) and stored;
 * they may be the same.
 */
#ifndef SL_CPU_RECURRENT_H
#define SL_CPU_RECURRENT_H

#include "cpu/cpu.h"

#define SL_REC_CONV 512 /* channels of a call, at most */
#define SL_REC_SSM  64  /* likewise, of state space models */
#define SL_REC_LRU  256 /* of linear recurrent units */
#define SL_REC_ROWS 256 /* of rows made of several tokens */

struct sl_rec_kernels {
    void (*conv)(const struct sl_op_short_conv *a, int64_t row, int32_t n, int32_t first,
                 int32_t n_channels, const float *begin, float *end);
    /* In place: unit vectors, decays and factors of a row. */
    void (*delta_inputs)(const struct sl_op_delta_rule *a, int64_t row);
    void (*delta)(const struct sl_op_delta_rule *a, int64_t row, int32_t n, int32_t head,
                  int32_t first, int32_t n_columns, const float *begin, float *end);
    /* Channels of one group. */
    void (*ssm)(const struct sl_op_ssm *a, int64_t row, int32_t n, int32_t first,
                int32_t n_channels, const float *begin, float *end);
    void (*rglru)(const struct sl_op_rglru *a, int64_t row, int32_t n, int32_t first,
                  int32_t n_channels, const float *begin, float *end);
    /* Columns of what several tokens make; pos: the position of the first. The rows that end go to
     * the first half of their last token's kv. */
    void (*compress)(const struct sl_op_compress *a, int64_t row, int32_t n, int32_t pos,
                     int32_t first, int32_t n_columns, const float *begin, float *end);
    void (*gated_norm)(const struct sl_op_gated_norm *a, int64_t row, int32_t group);
    /* RWKV-7: tokens mixed with those before them; in place, what the recurrence reads of a row;
     * columns of a head; a head of a row of what comes out. */
    void (*shift)(const struct sl_op_token_shift *a, int64_t row, int32_t n, int32_t first,
                  int32_t n_channels, const float *begin, float *end);
    void (*wkv_inputs)(const struct sl_op_wkv7 *a, int64_t row);
    void (*wkv)(const struct sl_op_wkv7 *a, int64_t row, int32_t n, int32_t head, int32_t first,
                int32_t n_columns, const float *begin, float *end);
    void (*wkv_out)(const struct sl_op_wkv7_out *a, int64_t row, int32_t head);
};

void sl_rec_kernels_c(struct sl_rec_kernels *k);
void sl_rec_kernels_avx2(struct sl_rec_kernels *k);
void sl_rec_kernels_avx512(struct sl_rec_kernels *k);

#endif
