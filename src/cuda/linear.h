/* SPDX-License-Identifier: MIT
 * linear.h - one matrix product on the device: what linear.cu hands to the kernels.
 *
 * For every output there is one float accumulator, from +0, to which mma.m16n8k16 adds 16 columns
 * after 16 columns in ascending order, up to the packed width (K rounded up to the layout's unit,
 * zeros behind K); then the bias. Weights are the 16-row operand, tokens the 8-column one, for one
 * token and for a thousand. All kernels do this, so which one runs changes no bit.
 */
#ifndef SL_CUDA_LINEAR_H
#define SL_CUDA_LINEAR_H

#include "cuda/weight.h"

#include <cuda_bf16.h>

struct sl_lin_part {
    const uint8_t *w; /* row blocks */
    const float *bias;
    float *out; /* not of a gated product */
    int64_t ld_out;
    int32_t n_rows, n_blocks;
    int32_t first; /* first work item or tile: the kernel's own numbering */
    int32_t layout;
};

struct sl_lin {
    const __nv_bfloat16 *x;
    int64_t ld_x;
    int32_t n, k;  /* tokens > 0, columns */
    int32_t n_k64; /* steps of 64 columns in a row block's stream */
    int32_t n_parts;
    bool gated; /* parts 0 and 1 are gate and up, of the same shape */
    bool vec_x; /* rows of x start at multiples of 16 bytes */
    enum sl_act act;
    __nv_bfloat16 *gated_out; /* rows n_rows of part 0 apart */
    struct sl_lin_part part[SL_MAX_LINEAR_PARTS];
};

#define SL_STREAM_TOKENS 64 /* most tokens of the streaming kernels */

/* The kernels of a layout, in the files linear_<layout>.cu: n_tiles 1, 2, 4 or 8 columns of eight
 * tokens. All parts have the layout. */
#define SL_LIN_DECLARE(name)                                                              \
    void sl_lin_stream1_##name(struct sl_cuda *cu, const struct sl_lin *l); /* n <= 8 */  \
    void sl_lin_stream2_##name(struct sl_cuda *cu, const struct sl_lin *l); /* n <= 16 */ \
    void sl_lin_stream4_##name(struct sl_cuda *cu, const struct sl_lin *l); /* n <= 32 */ \
    void sl_lin_stream8_##name(struct sl_cuda *cu, const struct sl_lin *l); /* n <= 64 */ \
    void sl_lin_tile64_##name(struct sl_cuda *cu, const struct sl_lin *l);                \
    void sl_lin_tile256_##name(struct sl_cuda *cu, const struct sl_lin *l)
SL_LIN_DECLARE(bf16);
SL_LIN_DECLARE(q8_0);
SL_LIN_DECLARE(q4_0);
SL_LIN_DECLARE(q4_k);
SL_LIN_DECLARE(q5_k);
SL_LIN_DECLARE(q6_k);
/* Gate and up of different layouts, n <= 64. */
void sl_lin_stream8_mixed(struct sl_cuda *cu, const struct sl_lin *l);
#undef SL_LIN_DECLARE

struct sl_lin_route {
    int32_t layout;
    int32_t max_tokens;
    int64_t max_cells; /* row blocks x tokens, up to which this one is taken; 0: any */
    void (*run)(struct sl_cuda *cu, const struct sl_lin *l);
    const char *name;
};

/* The routes, in the order they are tried: the first whose limits hold is taken. */
const struct sl_lin_route *sl_cuda_linear_routes(size_t *n);
const struct sl_lin_route *sl_cuda_linear_route(int32_t layout, int64_t n_tokens, int64_t n_blocks);
/* Runs one product by a given route (tests), or by the table (NULL). */
void sl_cuda_linear_run(struct sl_cuda *cu, const struct sl_lin *l, const struct sl_lin_route *r);
/* The product of an op's arguments; for tests, which pin routes. */
struct sl_lin sl_cuda_linear_args(const struct sl_op_linear *a);

#endif
