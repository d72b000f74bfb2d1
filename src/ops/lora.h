/* SPDX-License-Identifier: MIT
 * lora.h - adapters as operations see them: a pair of thin matrices beside a matrix of the model.
 *
 * What a row gains from its adapter: out[n] += d, d = sum over j of s[j] * B[n, j] from j = 0 on,
 * s[j] = (A x)[j] * scale. One order per row, whatever rows stand beside it (docs/DETERMINISM.md).
 * This header compiles as C11 and C++17.
 */
#ifndef SL_OPS_LORA_H
#define SL_OPS_LORA_H

#include "quant/dtype.h"

#include <stddef.h>
#include <stdint.h>

#define SL_LORA_PANEL 16 /* rows of B that lie together */
#define SL_LORA_SEG   64 /* most rows of a segment */

struct sl_lora_mat { /* of one matrix [N, K] of the model */
    const void *a;   /* [rank, K] */
    const void *b;   /* [ceil(N / SL_LORA_PANEL), rank, SL_LORA_PANEL], zeros behind the last row */
    int32_t rank;    /* 0: the adapter leaves this matrix alone */
    float scale;
};

/* An adapter's matrices, in one block of host memory. Immutable. */
struct sl_lora_weights {
    uint64_t id;         /* no other weights ever have it */
    enum sl_dtype dtype; /* of a and b: F32, F16 or BF16 */
    int32_t n_mats, max_rank;
    const struct sl_lora_mat *mats;
    const void *block; /* what a and b of all mats point into */
    size_t n_bytes;
    /* [ranks - 1] the same adapter for the other ranks of a model that is divided among them, each
     * with the rows of B that are its own; NULL: one rank has all rows */
    const struct sl_lora_weights *others;
};

static inline const struct sl_lora_weights *sl_lora_of_rank(const struct sl_lora_weights *w,
                                                            int32_t rank)
{
    return rank == 0 ? w : &w->others[rank - 1];
}

struct sl_lora_seg { /* rows next to each other with the same adapter */
    int32_t first, n;
    int32_t adapter;
};

/* Which rows of a step have which adapter. Borrowed as the rest of the batch. */
struct sl_lora_rows {
    int32_t n_segs, max_rank;       /* of the adapters here */
    const struct sl_lora_seg *segs; /* rows without adapter are in none */
    const int32_t *adapter;         /* [T] index in weights, -1: none */
    const float *scale;             /* [T] the request's factor */
    const struct sl_lora_weights *const *weights;
    /* On a device instead of segs and weights: adapter is the index in [n_adapters, n_mats] mats
     * whose pointers are the device's. */
    const struct sl_lora_mat *table;
    int32_t n_mats;
};

struct sl_op_lora {                  /* with a product: what adapters add to it */
    const struct sl_lora_rows *rows; /* of x */
    const int32_t *gathered; /* device: rows of x are these of the step; NULL: all of them */
    int32_t mat;             /* index of the first part's matrix in mats; the others follow */
    int32_t max_rank;        /* of any adapter: rows of s are n_parts * max_rank apart */
    float *s;                /* [T, n_parts, max_rank] room */
    int64_t n_s;             /* numbers that there is room for */
};

#endif
