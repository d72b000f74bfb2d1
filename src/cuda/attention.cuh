/* SPDX-License-Identifier: MIT
 * attention.cuh - what the files of paged attention share: the plan in the workspace, the arguments
 * of the kernels, and the arithmetic that a block and the blocks after it must do alike.
 *
 * Rows. The query vectors of a span that share a key head are its rows: row r is token r / group,
 * head r % group. A tile is up to 16 rows (narrow: all rows of the span) or the next `wide` rows.
 *
 * Canonical order, for each row: keys in splits of 256 at absolute positions; in a split tiles of
 * 64 keys in order. Scores by m16n8k16, one accumulator over the dimensions ascending. With m the
 * running maximum of raw scores and c = scale * log2 e (after a soft cap log2 e):
 *   m' = max(m, scores), a = ex2((m - m') c), p = ex2(fma(score, c, -(m' c))), o = o a,
 *   then o += p v by m16n8k16 with p rounded to BF16, keys ascending, one accumulator.
 *   l: 16 sums a row. Sum (w, t) has the keys 16 w + {2t, 2t + 1, 2t + 8, 2t + 9} of each tile:
 *   l = fma(l, a, (p + p) + (p + p)); at the end of the split first over t (neighbours, then
 *   pairs), then (w0 + w1) + (w2 + w3).
 * Splits join in ascending order by sl_attn_join from M = -inf, L = 0, O = 0. A split or tile a row
 * sees nothing of changes none of its bits: the first is left out, the second has a = 1 and p = 0.
 */
#ifndef SL_CUDA_ATTENTION_CUH
#define SL_CUDA_ATTENTION_CUH

#include "cuda/attention.h"
#include "cuda/device.h"
#include "cuda/kv.cuh"
#include "cuda/launch.cuh"

#define SL_ATTN_SPLIT       256 /* keys */
#define SL_ATTN_TILE        64
#define SL_ATTN_TILES       (SL_ATTN_SPLIT / SL_ATTN_TILE)
#define SL_ATTN_FOLD        32 /* splits that one block joins at a time */
#define SL_ATTN_NARROW      16 /* rows */
#define SL_ATTN_STATE_SLOTS 2  /* before the slots of the splits */

/* ---------------------------------------------------------------- the plan */

/* Splits from .. to - 1 of a tile, for every key head. The first part of a tile is `first` splits
 * long and joins them itself. If there are others, it leaves its state in a slot; they leave one
 * slot for each split, and whoever is the last to finish of SL_ATTN_FOLD splits and the state
 * before them joins those. */
struct __align__(16) sl_attn_item
{
    int32_t span, tile;
    int32_t from, to;
    int32_t first, n_splits; /* of the tile */
    int32_t rows_at;         /* first of the tile's rows of slots; -1: one part, no slots */
    int32_t groups_at;       /* first of its counters */
};

struct sl_attn_class { /* of tiles: [0] narrow, [1] wide */
    int32_t n_items;
    int32_t step;         /* splits of a part after the first, a power of two <= SL_ATTN_FOLD */
    uint32_t taken, done; /* items fetched beyond one per block, blocks that have ended; both are
                             zero between launches */
};

/* Shape of the kernels for a padded head dimension. */
struct sl_attn_shape {
    int32_t dim;
    int32_t wide;      /* rows of a wide tile */
    int32_t n_ctas[2]; /* blocks of an SM, by class */
};

/* The workspace of one batch. row_table is first, so that no argument moves it. */
struct sl_attn_layout {
    struct sl_attn_shape shape;
    int32_t group;
    int32_t grid[2];
    struct sl_attn_class *cls;    /* [2] */
    int32_t *row_table;           /* [n_tokens] table_idx of the row's span */
    int32_t *first_tile;          /* [n_spans + 1] while planning */
    struct sl_attn_item *item[2]; /* [cap_items] */
    uint32_t *counters;           /* [cap_groups, n_kv_heads], zero between launches */
    float *slots;                 /* [cap_rows, n_kv_heads, dim] partial sums */
    float2 *slot_ml;              /* [cap_rows, n_kv_heads] maximum and sum */
    int32_t cap_items[2], cap_groups;
    int64_t cap_rows;
    size_t list_bytes; /* all before the slots */
};

#define SL_ATTN_ROW_TABLE 256 /* offset in the workspace */

/* false: the head is not supported. workspace_bytes below list_bytes leaves nothing usable. */
bool sl_attn_layout_of(uint8_t *workspace, size_t workspace_bytes, int32_t n_sms, int32_t n_tokens,
                       int32_t n_spans, int32_t n_heads, int32_t n_kv_heads, int32_t head_dim,
                       struct sl_attn_layout *out);

/* ---------------------------------------------------------------- kernels */

struct sl_attn_args {
    const float *q;
    __nv_bfloat16 *out;
    int64_t ld_q, ld_out;
    const float *sinks; /* NULL: none */
    const struct sl_span *spans;
    const int32_t *tables;
    const uint8_t *keys, *values; /* the pool, at this layer's planes */
    uint64_t page_bytes;
    int32_t block_size, n_kv_heads, group, head_dim, window;
    float scale2; /* a raw score times this is its exponent of two */
    float cap_in; /* soft cap: raw = cap * tanh(score * cap_in) */
    float cap;    /* 0: none */
    struct sl_attn_class *cls;
    const struct sl_attn_item *items;
    uint32_t *counters;
    float *slots;
    float2 *slot_ml;
};

/* Launchers, one per padded dimension: enqueue the narrow or the wide kernel. */
void sl_attn_run_16(struct sl_cuda *cu, const struct sl_attn_args *a, int cls, int32_t grid);
void sl_attn_run_32(struct sl_cuda *cu, const struct sl_attn_args *a, int cls, int32_t grid);
void sl_attn_run_64(struct sl_cuda *cu, const struct sl_attn_args *a, int cls, int32_t grid);
void sl_attn_run_80(struct sl_cuda *cu, const struct sl_attn_args *a, int cls, int32_t grid);
void sl_attn_run_96(struct sl_cuda *cu, const struct sl_attn_args *a, int cls, int32_t grid);
void sl_attn_run_128(struct sl_cuda *cu, const struct sl_attn_args *a, int cls, int32_t grid);
void sl_attn_run_256(struct sl_cuda *cu, const struct sl_attn_args *a, int cls, int32_t grid);

/* ---------------------------------------------------------------- the join */

struct sl_attn_join {
    float top, a, b;
};

/* Factors of the state (M, L, O) and of a split (m, l, o), and the new M. */
static __device__ __forceinline__ struct sl_attn_join sl_attn_join_of(float top, float m, float c)
{
    struct sl_attn_join j;
    j.top = fmaxf(top, m);
    j.a = sl_ex2_approx(__fmul_rn(__fadd_rn(top, -j.top), c));
    j.b = sl_ex2_approx(__fmul_rn(__fadd_rn(m, -j.top), c));
    return j;
}

/* The new L, or one of the new O. + 0: a sum of -0 counts as +0, since a tile whose keys a row does
 * not see may turn the one into the other. */
static __device__ __forceinline__ float sl_attn_joined(const struct sl_attn_join &j, float state,
                                                       float part)
{
    return __fmaf_rn(__fadd_rn(part, 0.0f), j.b, __fmul_rn(state, j.a));
}

/* What O is multiplied with in the end. */
static __device__ __forceinline__ float sl_attn_inverse(const struct sl_attn_args &a, float top,
                                                        float sum, int head)
{
    if (a.sinks == nullptr)
        return __fdiv_rn(1.0f, sum);
    float exponent = __fmul_rn(top, a.scale2), sink = __fmul_rn(a.sinks[head], 0x1.715476p0f);
    float most = fmaxf(exponent, sink);
    float factor = sl_ex2_approx(__fadd_rn(exponent, -most));
    sum = __fmaf_rn(sum, factor, sl_ex2_approx(__fadd_rn(sink, -most)));
    return __fdiv_rn(factor, sum);
}

#endif
