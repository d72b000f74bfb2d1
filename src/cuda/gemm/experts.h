/* SPDX-License-Identifier: MIT
 * experts.h - one grouped product of a mixture of experts: what experts.cu hands to the kernels.
 *
 * A pair is a row of the step and one of its experts. Pairs are sorted by expert; a pair's place is
 * where it stands then. A tile is some neighbouring places of one expert, at most as many as a
 * kernel multiplies at once. How pairs are cut into tiles changes no bit: every output has one
 * float accumulator, from +0, to which mma.m16n8k16 (or wgmma, the same bits) adds 16 columns after
 * 16 columns in ascending order.
 */
#ifndef SL_CUDA_EXPERTS_H
#define SL_CUDA_EXPERTS_H

#include "cuda/gemm/weight.h"
#include "cuda/tensor_map.h"

#include <cuda_bf16.h>

#define SL_EXPERTS_MAX   1024
#define SL_EXPERTS_TOP_K 32

struct sl_expert_tile {
    int32_t expert, first, n; /* places first .. first + n - 1 */
};

/* The pairs of a call. Of few rows nobody sorts: every pair is a tile and its own place, and
 * tiles, pair and place are NULL. Pairs whose expert is another rank's have no place and no tile;
 * the last places are empty then. */
struct sl_expert_pairs {
    const int32_t *experts; /* [n_pairs] of each pair, rows after rows */
    int32_t n_pairs, top_k;
    int32_t from, until; /* the experts that are here: from .. until - 1 */
    int32_t most_tiles;  /* that there may be */
    int32_t tile;        /* most places of one */
    int32_t *n_tiles;    /* and behind it the number of places that are not empty */
    struct sl_expert_tile *tiles;
    int32_t *pair, *place; /* [n_pairs] which pair stands at a place, and the reverse; -1: none */
};

/* A stack as the kernels read it; all in device memory, [n_experts]. */
struct sl_expert_stack {
    const CUtensorMap *maps;       /* boxes of four row blocks of a unit */
    const uint8_t *const *streams; /* NULL: of another rank */
};

/* mid = act(gate x) * (up x), or of experts without a gate the square of relu(up x), as BF16; or
 * out = down x, as float; rows of both by place. */
struct sl_expert_product {
    struct sl_expert_pairs pairs;
    struct sl_expert_stack w[2]; /* gate and up, or up or down alone */
    bool first, gated;           /* it makes mid; of gate and up */
    bool by_row;                 /* rows of x are those of the step, else they are by place */
    const __nv_bfloat16 *x;      /* rows k apart */
    int32_t n_rows, n_blocks, k, n_k64, n_experts;
    int64_t block_bytes;  /* from a row block to the next one's */
    const float *bias[2]; /* as w, [n_experts, n_rows]; NULL: none */
    enum sl_act act;
    struct sl_swiglu swiglu;
    const float *in_weights; /* [n_pairs] of the sums of gate and up; NULL: 1 */
    __nv_bfloat16 *mid;      /* rows n_rows apart */
    float *out;              /* NULL where it is the first */
};

/* The last step of few rows: down's products and their sum. */
struct sl_expert_sum {
    const float *weights;               /* [n_pairs]; NULL: 1 */
    const float *shared, *shared_logit; /* as in struct sl_op_experts */
    float *out;                         /* [n, n_rows] */
};

/* The kernels of a layout (tools/cuda_instances). */
#define SL_EXPERTS_DECLARE(name)                                                       \
    void sl_experts_few_##name(struct sl_cuda *cu, const struct sl_expert_product *a); \
    void sl_experts_sum_##name(struct sl_cuda *cu, const struct sl_expert_product *a,  \
                               const struct sl_expert_sum *s, int32_t n);              \
    void sl_experts_wg_##name(struct sl_cuda *cu, const struct sl_expert_product *a, int32_t tile)
SL_EXPERTS_DECLARE(bf16);
SL_EXPERTS_DECLARE(q8_0);
SL_EXPERTS_DECLARE(q4_0);
SL_EXPERTS_DECLARE(q4_k);
SL_EXPERTS_DECLARE(q5_k);
SL_EXPERTS_DECLARE(q6_k);
SL_EXPERTS_DECLARE(fp8);
SL_EXPERTS_DECLARE(int4_g128);
SL_EXPERTS_DECLARE(int4_g32);
SL_EXPERTS_DECLARE(mxfp4);
#undef SL_EXPERTS_DECLARE

/* Places of a tile: of few rows, and the sizes that sl_experts_wg has. Where an expert has one row
 * in the mean, smaller tiles let more blocks onto an SM. */
#define SL_EXPERTS_FEW      8
#define SL_EXPERTS_FEWEST   4
#define SL_EXPERTS_FEW_COLS 9216 /* most columns, whose rows fit shared memory */
enum { SL_EXPERTS_WG16 = 16, SL_EXPERTS_WG32 = 32, SL_EXPERTS_WG64 = 64, SL_EXPERTS_WIDE = 288 };

#endif
