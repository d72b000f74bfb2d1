/* SPDX-License-Identifier: MIT
 * sample_scratch.cuh - the scratch memory of sampling on the GPU: what its kernels leave for each
 * other. No device code, so that tests may look into it.
 */
#ifndef SL_CUDA_SAMPLE_SCRATCH_CUH
#define SL_CUDA_SAMPLE_SCRATCH_CUH

#include "cuda/sample.h"

#include <stdint.h>

typedef unsigned long long sl_u64; /* the type of 64-bit atomics */

#define SL_ST_THREADS  256
#define SL_ST_TILE     2048 /* logits */
#define SL_ST_BLOCK    256  /* logits that share one sum, as SL_ROW_BLOCK of the CPU */
#define SL_ST_STRIDE   260  /* of such a block in shared memory: its chains then miss no bank */
#define SL_ST_GROUPS   128  /* of a tile: 16 logits whose maximum finds a cut */
#define SL_ST_PARTS    64   /* of a row, at most */
#define SL_ST_CANDS    2048 /* candidates that are sorted at once */
#define SL_ST_BUCKETS  1024
#define SL_ST_MAX_K    1024 /* larger top_k takes the slow way */
#define SL_ST_P_GROUPS 512  /* groups above the cut for top_p */

enum sl_st_mode { SL_ST_DONE, SL_ST_ANY, SL_ST_FILTERED };

struct sl_st_state { /* of a row; counters are 0 between calls */
    uint32_t mode;
    float max, raw_max, inv_t;
    float scale; /* bucket of y = -y * scale */
    int32_t cut; /* last bucket of the candidates; -1: no list is made */
    uint32_t n_cands;
    uint32_t n_arrived[3];
    int32_t n_kept; /* what the draw came to, for tests: tokens cannot show the last bit */
    uint32_t pad;
    double total, kept;
};
static_assert(sizeof(struct sl_st_state) == 64, "rows do not share more than they must");

struct sl_st_part {
    sl_u64 best;  /* packed, after changes; later a count */
    uint32_t raw; /* ordered maximum before changes; UINT32_MAX: NaN or infinity somewhere */
    uint32_t pad;
};

struct sl_st_args {
    struct sl_op_sample op;
    int32_t n_tiles, n_parts, part_tiles;
    struct sl_st_state *state; /* [max_n] */
    struct sl_st_part *parts;  /* [max_n, SL_ST_PARTS] */
    double *sums;              /* [max_n, n_tiles * 8] */
    sl_u64 *cands;             /* [max_n, SL_ST_CANDS] */
    sl_u64 *tops;              /* [max_n, SL_ST_PARTS, SL_SAMPLE_MAX_TOP] */
    float *groups;             /* [max_n, n_tiles * SL_ST_GROUPS] */
};

/* Lays scratch out and gives its size; a->op may be empty but for max_n and n_vocab. */
static inline size_t sl_st_lay_out(struct sl_st_args *a)
{
    uintptr_t base = reinterpret_cast<uintptr_t>(a->op.scratch), at = 0;
    size_t rows = (size_t)a->op.max_n;
    a->n_tiles = (a->op.n_vocab + SL_ST_TILE - 1) / SL_ST_TILE;
    size_t tiles = (size_t)a->n_tiles;
    auto take = [&](size_t n_bytes) {
        uintptr_t from = base + at;
        at += (n_bytes + 255) / 256 * 256;
        return from;
    };
    a->state = reinterpret_cast<struct sl_st_state *>(take(rows * sizeof *a->state));
    a->parts = reinterpret_cast<struct sl_st_part *>(take(rows * SL_ST_PARTS * sizeof *a->parts));
    a->sums = reinterpret_cast<double *>(
        take(rows * tiles * (SL_ST_TILE / SL_ST_BLOCK) * sizeof *a->sums));
    a->cands = reinterpret_cast<sl_u64 *>(take(rows * SL_ST_CANDS * sizeof *a->cands));
    a->tops =
        reinterpret_cast<sl_u64 *>(take(rows * SL_ST_PARTS * SL_SAMPLE_MAX_TOP * sizeof *a->tops));
    a->groups = reinterpret_cast<float *>(take(rows * tiles * SL_ST_GROUPS * sizeof *a->groups));
    return at;
}

#endif
