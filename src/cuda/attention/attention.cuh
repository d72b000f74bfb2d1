/* SPDX-License-Identifier: MIT
 * attention.cuh - what the files of paged attention share: the plan in the workspace, the arguments
 * of the kernels, and the arithmetic that a block and the blocks after it must do alike.
 *
 * Rows. The query vectors of a span that share a key head are its rows: row r is token r / group,
 * head r % group. A tile is all rows of a span, of which there are up to 16 (narrow) or 64
 * (medium), or the next `wide` rows.
 *
 * Canonical order, for each row: keys in tiles of 64 at absolute positions, and splits of two
 * tiles up to 1,024 keys, of four up to 4,096, then of eight. Scores by m16n8k16, one accumulator
 * over the dimensions ascending. The split's sums are relative to a reference m, at first -inf,
 * that rises only where scores would be above it by more than 2^8: with t the maximum of a tile's
 * raw scores and c = scale * log2 e (after a soft cap log2 e), m' = (t - m) c > 8 ? t : m, and a =
 * m' > m ? ex2((m - m') c) : 1, p = ex2(fma(score, c, -(m' c))), o = o a, then o += p v by m16n8k16
 * with p rounded, keys ascending, one accumulator. l: 4 sums a row. Sum t has the keys 16 w + {2t,
 * 2t + 1, 2t + 8, 2t + 9} of each tile, w < 4: s(w) = (p + p) + (p + p), l = fma(l, a, (s(0) +
 * s(1)) + (s(2) + s(3))); at the end of the split over t, neighbours, then pairs. Queries and p are
 * rounded to F16 for pages of F16, else to BF16. The splits of a run, 4,096 keys, combine in
 * ascending order by sl_attn_combine from M = -inf, L = 0, O = 0, where M rises as m does; so do
 * the runs. A split or tile a row sees nothing of changes none of its bits, but for the sign of
 * zeros, which end as +0: the first is left out, the second has a = 1 and p = 0.
 *
 * Runs are there so that blocks that share a long context leave one partial result for each run and
 * not one for each split, an eighth of the memory and of the last combine.
 *
 * Skip-softmax (ops/ops.h): with e = the row's best raw score of the first 16 keys and r = (log2 of
 * the factor - lg2.approx(position + 1)) / c, a row takes in a tile unless all its scores are less
 * than max(e + r, m + r), m as it was before the tile. A tile left out is one it sees nothing of.
 */
#ifndef SL_CUDA_ATTENTION_CUH
#define SL_CUDA_ATTENTION_CUH

#include "cuda/attention/attention.h"
#include "cuda/attention/kv.cuh"
#include "cuda/device.h"
#include "cuda/launch.cuh"

#define SL_ATTN_TILE   64   /* keys */
#define SL_ATTN_NARROW 16   /* rows */
#define SL_ATTN_FEW    8    /* rows that are one operand of the matrix instruction */
#define SL_ATTN_MEDIUM 64   /* rows */
#define SL_ATTN_SLACK  8.0f /* powers of two by which scores may exceed their reference */

/* Latent attention (latent.cuh): a block's threads that multiply; splits and runs are 2^shift times
 * as long. */
#define SL_LATENT_WORKERS 256
#define SL_LATENT_SHIFT   2
/* And of what an index chooses (sparse.cu): 2,048 positions are two splits. A block meets the state
 * once then, and 32 tokens of 128 heads still have work for 128 blocks. */
#define SL_SPARSE_SHIFT 3

/* ---------------------------------------------------------------- division */

/* By a number the host knows, for dividends x with x * by < 2^32. */
struct sl_attn_divisor {
    int32_t by;
    uint32_t inverse; /* 2^32 / by, rounded up; 0 for 1 */
};

static inline struct sl_attn_divisor sl_attn_divisor_of(int32_t by)
{
    struct sl_attn_divisor d = {by, 0};
    if (by > 1)
        d.inverse = static_cast<uint32_t>((1ull << 32) / static_cast<uint32_t>(by)) + 1;
    return d;
}

static __device__ __forceinline__ int sl_attn_div(int x, const struct sl_attn_divisor &d)
{
    return d.inverse == 0 ? x : static_cast<int>(__umulhi(static_cast<unsigned>(x), d.inverse));
}

/* ---------------------------------------------------------------- splits */

#define SL_ATTN_SPLIT       128 /* keys, at first */
#define SL_ATTN_NEAR        1024
#define SL_ATTN_FAR         4096
#define SL_ATTN_NEAR_SPLITS (SL_ATTN_NEAR / SL_ATTN_SPLIT)
#define SL_ATTN_FAR_SPLITS \
    (SL_ATTN_NEAR_SPLITS + (SL_ATTN_FAR - SL_ATTN_NEAR) / (2 * SL_ATTN_SPLIT))

/* Keys of the split that has the key, a power of two. */
static __device__ __forceinline__ int sl_attn_split_size(int key)
{
    return key < SL_ATTN_NEAR  ? SL_ATTN_SPLIT
           : key < SL_ATTN_FAR ? 2 * SL_ATTN_SPLIT
                               : 4 * SL_ATTN_SPLIT;
}

/* The split that has the key. */
static __host__ __device__ __forceinline__ int sl_attn_split_of(int key)
{
    return key < SL_ATTN_NEAR  ? key / SL_ATTN_SPLIT
           : key < SL_ATTN_FAR ? SL_ATTN_NEAR_SPLITS + (key - SL_ATTN_NEAR) / (2 * SL_ATTN_SPLIT)
                               : SL_ATTN_FAR_SPLITS + (key - SL_ATTN_FAR) / (4 * SL_ATTN_SPLIT);
}

/* Its first key. */
static __host__ __device__ __forceinline__ int sl_attn_split_at(int split)
{
    return split < SL_ATTN_NEAR_SPLITS ? split * SL_ATTN_SPLIT
           : split < SL_ATTN_FAR_SPLITS
               ? SL_ATTN_NEAR + (split - SL_ATTN_NEAR_SPLITS) * (2 * SL_ATTN_SPLIT)
               : SL_ATTN_FAR + (split - SL_ATTN_FAR_SPLITS) * (4 * SL_ATTN_SPLIT);
}

/* Runs: the splits up to SL_ATTN_FAR are the first, then each eight are one. */
#define SL_ATTN_RUN        4096 /* keys */
#define SL_ATTN_RUN_SPLITS (SL_ATTN_RUN / (4 * SL_ATTN_SPLIT))
static_assert(SL_ATTN_RUN == SL_ATTN_FAR, "the first run has the shorter splits");

static __device__ __forceinline__ int sl_attn_run_of(int split)
{
    return split < SL_ATTN_FAR_SPLITS ? 0 : 1 + (split - SL_ATTN_FAR_SPLITS) / SL_ATTN_RUN_SPLITS;
}

/* Its last split, plus 1. */
static __device__ __forceinline__ int sl_attn_run_end(int run)
{
    return SL_ATTN_FAR_SPLITS + run * SL_ATTN_RUN_SPLITS;
}

/* Is a key the first of a run? */
static __device__ __forceinline__ bool sl_attn_begins_run(int key)
{
    return (key & (SL_ATTN_RUN - 1)) == 0;
}

/* ---------------------------------------------------------------- the plan */

/* Classes of tiles, each with a kernel of its own. A span is of one class. */
enum {
    SL_ATTN_CLASS_NARROW, /* decodes: up to SL_ATTN_NARROW rows */
    SL_ATTN_CLASS_WIDE,   /* chunks of prompts */
    SL_ATTN_CLASS_MEDIUM, /* a token and drafts behind it: up to SL_ATTN_MEDIUM rows */
    SL_ATTN_CLASSES
};

/* Of a span of n tokens; narrow: sl_attn_narrow_rows. */
static __host__ __device__ __forceinline__ int sl_attn_class_of(int64_t n, int group, int narrow)
{
    const int64_t rows = n * group;
    return rows <= narrow           ? SL_ATTN_CLASS_NARROW
           : rows <= SL_ATTN_MEDIUM ? SL_ATTN_CLASS_MEDIUM
                                    : SL_ATTN_CLASS_WIDE;
}

/* Splits from .. to - 1 of a tile, for every key head. A tile of one part needs nothing else. Of
 * several, the first part leaves the state of its splits in a slot. If it is whole runs, so are the
 * others, and these leave a slot for each run; else it is less than a run, and they leave a slot
 * for each split. Slots are combined by the last part of a narrow tile to finish, and by
 * attention_combine_wide.cu those of other tiles. */
struct __align__(16) sl_attn_item
{
    int32_t token, pos, table;   /* of the span's first token; of its first page id */
    int32_t row0, n_rows;        /* of the span's rows, those of the tile */
    int32_t tok_last;            /* of the span's tokens, the tile's last */
    int32_t end;                 /* position after the span's last token */
    int32_t from, to;            /* splits */
    int32_t first, n_splits;     /* of the tile: those of the first part, and all */
    int32_t rows_at;             /* first of the tile's rows of slots; -1: one part, no slots */
    int32_t counter_at, n_parts; /* the tile, of those of several parts */
    int32_t kv, valid;           /* set by the block that takes it */
};

#define SL_ATTN_ITEM_WORDS 16

struct sl_attn_class { /* of tiles */
    int32_t n_items;
    uint32_t taken, done; /* items fetched beyond the blocks' first, blocks that have ended; both
                             are zero between launches */
    int32_t n_cut;        /* tiles of several parts */
    int32_t n_tiles;      /* items that are first parts: the first ones of the list */
};

/* Shape of the kernels for a padded head dimension. */
struct sl_attn_shape {
    int32_t dim;                     /* of values */
    int32_t wide;                    /* rows of a wide tile */
    int32_t n_ctas[SL_ATTN_CLASSES]; /* blocks of an SM */
    /* Of latent attention, where all tiles are wide: dimensions of a row, padded (else 0), and by
     * how many powers of two splits and runs are longer. */
    int32_t keys, shift;
};

/* The workspace of one batch. row_table is first, so that no argument moves it. */
struct sl_attn_layout {
    struct sl_attn_shape shape;
    int32_t group;
    int32_t grid[SL_ATTN_CLASSES];
    struct sl_attn_class *cls;                  /* [SL_ATTN_CLASSES] */
    int32_t *row_table;                         /* [n_tokens] table_idx of the row's span */
    int32_t *first_tile;                        /* [n_spans + 1] while planning */
    struct sl_attn_item *item[SL_ATTN_CLASSES]; /* [cap_items] */
    uint32_t *counters; /* [narrow tiles, n_kv_heads], zero between launches */
    int32_t
        *cut[SL_ATTN_CLASSES]; /* [tiles] of several parts: the first item; not of narrow ones */
    float4 *totals;            /* of the blocks: sl_attn_combine_total */
    float4 *states;            /* and over splits, where shared memory has no room */
    float *slots;              /* [cap_rows, n_kv_heads, dim] partial sums */
    float2 *slot_ml;           /* [cap_rows, n_kv_heads] maximum and sum */
    int32_t cap_items[SL_ATTN_CLASSES];
    int64_t cap_rows;
    size_t list_bytes; /* all before the slots */
};

#define SL_ATTN_ROW_TABLE 256 /* offset in the workspace */

/* false: the head is not supported. n_kv_heads 0: latent attention. workspace_bytes below
 * list_bytes leaves nothing usable. */
bool sl_attn_layout_of(uint8_t *workspace, size_t workspace_bytes, int32_t n_sms, int32_t n_tokens,
                       int32_t n_spans, int32_t n_heads, int32_t n_kv_heads, int32_t head_dim,
                       struct sl_attn_layout *out);

/* Plans again if the last plan of the step was for other heads, other keys or other narrow tiles.
 */
void sl_attn_plan_layer(struct sl_cuda *cu, const struct sl_batch *batch, int32_t n_heads,
                        int32_t n_kv_heads, int32_t head_dim, bool whole);

/* The same of latent attention by rows that see no more than top_k positions each (sparse.cu): b's
 * spans are its tokens, with the last of these in place of their positions. */
void sl_attn_plan_rows(struct sl_cuda *cu, const struct sl_batch *b, int32_t n_heads,
                       int32_t head_dim, int32_t top_k);

/* Most rows of a narrow tile of the step, up to SL_ATTN_NARROW: spans of more are medium. A choice
 * of speed alone. n_kv_heads 0: latent attention. */
int32_t sl_attn_narrow_rows(const struct sl_cuda *cu, const struct sl_batch *b, int32_t n_kv_heads,
                            int32_t head_dim);

/* Which classes of tiles the batch may have, as far as the host knows: spans are device memory. */
void sl_attn_classes_of(const struct sl_batch *b, const struct sl_attn_layout *l, int32_t narrow,
                        bool has[SL_ATTN_CLASSES]);

/* ---------------------------------------------------------------- kernels */

struct sl_attn_args {
    const float *q;
    __nv_bfloat16 *out;
    int64_t ld_q, ld_out;
    const float *sinks; /* NULL: none */
    const int32_t *tables;
    const uint8_t *keys, *values; /* the pool, at this layer's planes */
    uint64_t page_bytes;
    int32_t block_size, n_kv_heads, group, head_dim, window;
    bool chunks;   /* windows do not slide */
    int32_t ahead; /* keys after its own that a row sees, if the span has them: 0 if causal */
    struct sl_attn_divisor by_kv, by_group, by_page; /* of 16 positions */
    float scale2; /* a raw score times this is its exponent of two */
    float cap_in; /* soft cap: raw = cap * tanh(score * cap_in) */
    float cap;    /* 0: none */
    struct sl_attn_class *cls;
    const struct sl_attn_item *items;
    int32_t cap_items;
    uint32_t *counters;
    const int32_t *cut;
    float4 *totals, *states;
    float *slots;
    float2 *slot_ml;
    /* Skip-softmax: log2 of the factor, -inf: none; a raw score for a power of two. */
    float skip_log2, skip_per;
    struct sl_skip_counts *skip_counts; /* of the class, or NULL */
    bool few;                           /* narrow: no tile has more than SL_ATTN_FEW rows */
    bool early;                         /* the plan was complete before the previous kernel began */
    /* Of latent attention: dimensions of values, and by how many powers of two splits are longer;
     * else 0. */
    int32_t v_dim, shift;
};

/* Launchers, one per format of the pages and padded dimension: enqueue a class's kernel. */
typedef void sl_attn_run_fn(struct sl_cuda *cu, const struct sl_attn_args *a, int cls,
                            int32_t grid);
sl_attn_run_fn sl_attn_run_bf16_16, sl_attn_run_bf16_32, sl_attn_run_bf16_64, sl_attn_run_bf16_80,
    sl_attn_run_bf16_96, sl_attn_run_bf16_128, sl_attn_run_bf16_256;
sl_attn_run_fn sl_attn_run_f16_16, sl_attn_run_f16_32, sl_attn_run_f16_64, sl_attn_run_f16_80,
    sl_attn_run_f16_96, sl_attn_run_f16_128, sl_attn_run_f16_256;
sl_attn_run_fn sl_attn_run_fp8_16, sl_attn_run_fp8_32, sl_attn_run_fp8_64, sl_attn_run_fp8_80,
    sl_attn_run_fp8_96, sl_attn_run_fp8_128, sl_attn_run_fp8_256;
sl_attn_run_fn sl_attn_run_turbo4_64, sl_attn_run_turbo4_128, sl_attn_run_turbo4_256;

/* Those of latent attention: by format and padded dimensions of a row. */
typedef void sl_latent_run_fn(struct sl_cuda *cu, const struct sl_attn_args *a, int32_t grid);
sl_latent_run_fn sl_latent_run_bf16_128, sl_latent_run_bf16_320, sl_latent_run_bf16_576,
    sl_latent_run_f16_128, sl_latent_run_f16_320, sl_latent_run_f16_576;

/* Those that load row by row (latent_gather.cuh): pages of FP8, and rows that an index has chosen.
 */
struct sl_gather_args {
    struct sl_attn_args a;
    /* A token at top_k or behind it sees the positions top[token * top_k ..], as if they were 0 ..
     * top_k - 1; NULL: all tokens see what lies there. */
    const int32_t *top, *positions;
    int32_t top_k;
};
typedef void sl_gather_run_fn(struct sl_cuda *cu, const struct sl_gather_args *g, int32_t grid);
sl_gather_run_fn sl_gather_run_bf16_128, sl_gather_run_bf16_320, sl_gather_run_bf16_576,
    sl_gather_run_f16_128, sl_gather_run_f16_320, sl_gather_run_f16_576, sl_gather_run_fp8_128,
    sl_gather_run_fp8_320, sl_gather_run_fp8_576;
sl_gather_run_fn sl_pair_run_fp8_576; /* latent_pair.cuh */

/* Of what is common to latent attention, dense or sparse: false, it is not supported, which is
 * recorded. n_spans: of the plan. */
bool sl_latent_args_of(struct sl_cuda *cu, const struct sl_op_attention *op, int32_t n_spans,
                       struct sl_attn_layout *l, struct sl_attn_args *a);
/* Enqueues one of them for the operation. */
void sl_gather_launch(struct sl_cuda *cu, const struct sl_op_attention *op,
                      const struct sl_attn_layout *l, const struct sl_gather_args *g);

/* Pages of four-bit codes: rotates the operation's output back, in place. */
void sl_attn_rotate_back(struct sl_cuda *cu, const struct sl_op_attention *op);

/* Combines the parts of tiles of up to so many rows: attention_combine_wide.cu. */
void sl_attn_combine_wide(struct sl_cuda *cu, const struct sl_attn_args *a, int32_t dim,
                          int32_t rows);

/* ---------------------------------------------------------------- the combine */

struct sl_attn_combine {
    float top, a, b;
};

/* Factors of the state (M, L, O) and of a split (m, l, o), and the new M. A split a row sees
 * nothing of (m = -inf) leaves the state as it is, but for the sign of a zero. The first one
 * becomes the state. */
static __device__ __forceinline__ struct sl_attn_combine sl_attn_combine_of(float top, float m,
                                                                            float c)
{
    struct sl_attn_combine j;
    bool far = __fmul_rn(__fadd_rn(m, -top), c) > SL_ATTN_SLACK;
    j.top = far ? m : top;
    float safe = j.top == __int_as_float(static_cast<int>(0xFF800000u)) ? 0.0f : j.top;
    j.a = far ? sl_ex2_approx(__fmul_rn(__fadd_rn(top, -safe), c)) : 1.0f;
    j.b = sl_ex2_approx(__fmul_rn(__fadd_rn(m, -safe), c));
    return j;
}

/* The new L, or one of the new O. The sign of a zero may depend on tiles whose keys a row does not
 * see; nothing but another zero's sign depends on it. */
static __device__ __forceinline__ float sl_attn_combined(const struct sl_attn_combine &j,
                                                         float state, float part)
{
    return __fmaf_rn(part, j.b, __fmul_rn(state, j.a));
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
