/* SPDX-License-Identifier: MIT
 * sample_scratch.cuh - the scratch memory of sampling on the GPU: what its kernels leave for each
 * other, and how a row is shared out. No device code, so that tests may look into it.
 */
#ifndef SL_CUDA_SAMPLE_SCRATCH_CUH
#define SL_CUDA_SAMPLE_SCRATCH_CUH

#include "cuda/sample/sample.h"

#include <stdint.h>

typedef unsigned long long sl_u64; /* the type of 64-bit atomics */

#define SL_ST_THREADS  512
#define SL_ST_WARPS    (SL_ST_THREADS / 32)
#define SL_ST_STEP     128    /* logits that a warp takes at once, four a lane */
#define SL_ST_CLUSTER  8      /* blocks that share a row, at most */
#define SL_ST_DIGITS   1024   /* of a key: its bits from 19, then from 9, then from 0 on */
#define SL_ST_ROW_ROOM 180224 /* bytes of a row that a block keeps in shared memory, at most */
#define SL_ST_TILE     4096   /* logits that a block of the report takes at once */
#define SL_ST_PARTS    32     /* blocks of the report that share a row, at most */
#define SL_ST_RUNS     8      /* blocks that look at a row */
#define SL_ST_FEW_ROWS 8      /* calls of at least so many rows look for those with few tokens */

struct sl_st_state { /* of a row; the counter is 0 between calls */
    float raw_max;   /* before changes */
    uint32_t n_arrived;
    uint32_t key; /* what the filters keep, for tests, as tokens cannot show the last bit: tokens of
                     lower keys, and of this one those up to id; and what all of them weigh */
    int32_t id;
    sl_u64 mass;
    uint32_t open, pad; /* not 0: the kernels for few tokens left the row to the other */
};
static_assert(sizeof(struct sl_st_state) == 32, "whole words");

struct sl_st_run { /* of a row, what a block of the look found; for struct scanned */
    sl_u64 best, raw;
};

struct sl_st_part { /* of the report */
    sl_u64 mass;
    uint32_t n_before, pad;
};

struct sl_st_args {
    struct sl_op_sample op;
    int32_t n_tiles, n_parts, part_tiles; /* of the report */
    int32_t cluster, warp_n;   /* blocks that share a row; logits of each of their warps */
    struct sl_st_state *state; /* [max_n] */
    struct sl_st_part *parts;  /* [max_n, SL_ST_PARTS] */
    sl_u64 *tops;              /* [max_n, SL_ST_PARTS, SL_SAMPLE_MAX_TOP] */
    bool after_few;            /* some rows are done */
    int32_t run_n;             /* logits that a block of the look has, each thread whole fours */
    struct sl_st_run *runs;    /* [max_n, SL_ST_RUNS]; NULL: too few rows for it */
    float *highs;              /* [max_n, SL_ST_RUNS, SL_ST_THREADS] the largest of each thread */
    float *wide; /* [max_n, cluster * SL_ST_WARPS * warp_n] rows that shared memory cannot hold;
                    NULL: it can */
};

/* Every block of a row's cluster has a run of the vocabulary, every warp of it a run of that. */
static inline void sl_st_share_out(struct sl_st_args *a)
{
    int32_t v = a->op.n_vocab;
    a->cluster = 1;
    while (a->cluster < SL_ST_CLUSTER && v > 1024 * a->cluster)
        a->cluster *= 2;
    int32_t round = SL_ST_STEP * SL_ST_WARPS * a->cluster;
    a->warp_n = (v + round - 1) / round * SL_ST_STEP;
}

static inline bool sl_st_is_wide(const struct sl_st_args *a)
{
    return a->warp_n > SL_ST_ROW_ROOM / 4 / SL_ST_WARPS;
}

/* Lays scratch out and gives its size; a->op may be empty but for scratch, max_n and n_vocab. */
static inline size_t sl_st_lay_out(struct sl_st_args *a)
{
    uintptr_t base = reinterpret_cast<uintptr_t>(a->op.scratch), at = 0;
    size_t rows = (size_t)a->op.max_n;
    sl_st_share_out(a);
    a->n_tiles = (a->op.n_vocab + SL_ST_TILE - 1) / SL_ST_TILE;
    auto take = [&](size_t n_bytes) {
        uintptr_t from = base + at;
        at += (n_bytes + 255) / 256 * 256;
        return from;
    };
    a->state = reinterpret_cast<struct sl_st_state *>(take(rows * sizeof *a->state));
    a->parts = reinterpret_cast<struct sl_st_part *>(take(rows * SL_ST_PARTS * sizeof *a->parts));
    a->tops =
        reinterpret_cast<sl_u64 *>(take(rows * SL_ST_PARTS * SL_SAMPLE_MAX_TOP * sizeof *a->tops));
    if (a->op.max_n >= SL_ST_FEW_ROWS) {
        int32_t round = SL_ST_RUNS * SL_ST_THREADS * 4;
        a->run_n = (a->op.n_vocab + round - 1) / round * SL_ST_THREADS * 4;
        a->runs = reinterpret_cast<struct sl_st_run *>(take(rows * SL_ST_RUNS * sizeof *a->runs));
        a->highs =
            reinterpret_cast<float *>(take(rows * SL_ST_RUNS * SL_ST_THREADS * sizeof *a->highs));
    }
    size_t row_n = (size_t)a->cluster * SL_ST_WARPS * (size_t)a->warp_n;
    if (sl_st_is_wide(a))
        a->wide = reinterpret_cast<float *>(take(rows * row_n * sizeof(float)));
    return at;
}

#endif
