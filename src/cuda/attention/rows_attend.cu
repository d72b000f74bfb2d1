/* SPDX-License-Identifier: MIT
 * rows_attend.cu - attention of a token to the rows made of several tokens that it sees, or has
 * chosen, and behind them to its window (struct sl_op_compressed_attention). All heads share the
 * keys, which are values too, and are read where they lie.
 *
 * A block has up to 64 heads of a token, the rows of its products, or 16 of them where tokens are
 * too few for all multiprocessors. 64 keys are a tile: eight warps share its scores by keys, and
 * its sums of values by dimensions, with all heads or half of them each; probabilities go through
 * shared memory. The next tile's rows are on their way meanwhile (cp.async, 16 bytes a lane), and
 * where those behind them lie is looked up.
 *
 * Canonical order, for each row: keys side by side as the operation says, in tiles of 64. Scores by
 * m16n8k16, one accumulator over the dimensions ascending. m is the largest raw score so far, c =
 * scale * log2 e: a = ex2((m before the tile - m) c), p = ex2(fma(score, c, -(m c))); o = o a, then
 * o += p v by m16n8k16 with p rounded, keys ascending, one accumulator. l: 32 sums a row, of the
 * keys 8 w + {2t, 2t + 1} of each tile: l = fma(l, a, p + p); in the end over t, neighbours, then
 * pairs, then over w ascending. Queries and p are rounded to the pages' format. There are no
 * splits: a token's bits are its own whatever the step has beside it, and how many heads a block
 * has changes none.
 *
 * Work for a token of 64 heads of 512 dimensions and 640 keys: 84 MFLOP and 655 KB from L2. What
 * binds is shared memory, some 4,400 clk a tile: 2.5 us where the tensor cores would need 1.1. A
 * block goes through all of a token's keys, so that 64 tokens leave half of 132 multiprocessors
 * idle, and one token of a text of 1 million tokens, with rows of 128, takes 131 tiles of 1.3 us.
 */
#include "cuda/attention/attention.h"
#include "cuda/attention/rows.cuh"
#include "cuda/ptx.cuh"

#include <math.h>

#define ATTEND_WARPS   8
#define ATTEND_THREADS (ATTEND_WARPS * 32)
#define ATTEND_KEYS    64
#define ATTEND_EIGHTS  (ATTEND_KEYS / 8)

struct attend_args {
    const float *q, *sinks, *angles;
    int32_t n_tokens, n_heads, dim, n_dims, n_tiles; /* n_tiles: of heads */
    int32_t window, top_k;
    const int32_t *top; /* NULL: all are seen */
    float scale2;       /* scale * log2 e */
    const struct sl_span *spans;
    int32_t n_spans;
    struct sl_rows_at near, far; /* far.ratio 0: there are none */
    __nv_bfloat16 *out;
};

/* DIM: dimensions, padded. HEADS of a block: 16 or 64. */
template <int DIM, int HEADS> struct attend_shape {
    static constexpr int BY_ROWS = HEADS == 64 ? 2 : 1; /* warps that share heads, */
    static constexpr int BY_COLS = ATTEND_WARPS / BY_ROWS;
    static constexpr int M = HEADS / 16 / BY_ROWS;    /* 16s of heads of a warp, */
    static constexpr int N = ATTEND_EIGHTS / BY_COLS; /* its eights of keys, */
    static constexpr int D = DIM / BY_COLS / 8;       /* and of dimensions */
    static constexpr int ROW = DIM * 2;               /* bytes */
    static constexpr int PIECES = ROW / 16;
    static constexpr int TILE = ATTEND_KEYS * ROW;
    static constexpr int QUERIES = HEADS * ROW;
    static constexpr int PROBS = HEADS * ATTEND_KEYS * 2;
    /* queries, two tiles of keys, probabilities, where two tiles' rows lie, maxima, sums */
    static constexpr int PLACES = QUERIES + 2 * TILE + PROBS;
    static constexpr int MAXIMA = PLACES + 2 * ATTEND_KEYS * 8;
    static constexpr int SUMS = MAXIMA + BY_COLS * HEADS * 4;
    static constexpr int SMEM = SUMS + ATTEND_EIGHTS * HEADS * 4;
    static_assert(N == 1 || N == 2, "how keys are loaded");
    static_assert(D % 2 == 0 && DIM % 32 == 0, "pairs");
};

/* A piece of 16 bytes of a row in shared memory: that of eight neighbours is in different banks. */
template <int ROW> static __device__ __forceinline__ int attend_piece(int row, int piece)
{
    return row * ROW + ((piece ^ row) & 7) * 16 + (piece & ~7) * 16;
}

template <class E, class S> struct attend_block {
    const struct attend_args &a;
    uint8_t *smem;
    int32_t token, head;          /* the first */
    int32_t table, pos, n_far, n; /* keys */
    const int32_t *chosen;        /* NULL: row i is row i */
    int warp_row, warp_col, lane;
    float o[S::M][S::D][4], m[S::M][2], l[S::M][2][S::N];

    __device__ __forceinline__ attend_block(const struct attend_args &args, uint8_t *memory)
        : a(args), smem(memory)
    {
    }
    __device__ __forceinline__ unsigned long long *places(int tile) const
    {
        return reinterpret_cast<unsigned long long *>(smem + S::PLACES) + (tile & 1) * ATTEND_KEYS;
    }
    __device__ __forceinline__ uint8_t *keys(int tile) const
    {
        return smem + S::QUERIES + (tile & 1) * S::TILE;
    }
    __device__ __forceinline__ float *maxima() const
    {
        return reinterpret_cast<float *>(smem + S::MAXIMA);
    }
    __device__ __forceinline__ float *sums() const
    {
        return reinterpret_cast<float *>(smem + S::SUMS);
    }
    /* The warp's 16s of heads. */
    __device__ __forceinline__ int row(int i) const
    {
        return (warp_row * S::M + i) * 16;
    }

    __device__ __forceinline__ void begin(int32_t t, int32_t first_head)
    {
        const struct sl_span span = a.spans[sl_rows_span(a.spans, a.n_spans, a.n_tokens, t)];
        token = t;
        head = first_head;
        table = span.table_idx;
        pos = span.pos + t - span.first;
        n_far = a.far.ratio > 0 ? (pos + 1) / a.far.ratio : 0;
        chosen = nullptr;
        if (a.top != nullptr && n_far > a.top_k) {
            n_far = a.top_k;
            chosen = a.top + static_cast<int64_t>(t) * a.top_k;
        }
        n = n_far + min(pos + 1, a.window);
        lane = static_cast<int>(threadIdx.x % 32);
        warp_row = static_cast<int>(threadIdx.x / 32) % S::BY_ROWS;
        warp_col = static_cast<int>(threadIdx.x / 32) / S::BY_ROWS;
#pragma unroll
        for (int i = 0; i < S::M; i++) {
#pragma unroll
            for (int h = 0; h < 2; h++) {
                m[i][h] = -INFINITY;
#pragma unroll
                for (int k = 0; k < S::N; k++)
                    l[i][h][k] = 0.0f;
            }
#pragma unroll
            for (int d = 0; d < S::D; d++)
#pragma unroll
                for (int k = 0; k < 4; k++)
                    o[i][d][k] = 0.0f;
        }
    }

    /* Queries to shared memory; zeros behind the last head and dimension. */
    __device__ __forceinline__ void load_queries()
    {
        const float *q = a.q + (static_cast<int64_t>(token) * a.n_heads + head) * a.dim;
        for (int i = static_cast<int>(threadIdx.x); i < S::QUERIES / 16; i += ATTEND_THREADS) {
            const int h = i / S::PIECES, piece = i % S::PIECES;
            uint4 v = make_uint4(0, 0, 0, 0);
            if (head + h < a.n_heads && piece * 8 < a.dim) {
                const float *from = q + static_cast<int64_t>(h) * a.dim + piece * 8;
                const float4 lo = sl_kv_bounded<E>(*reinterpret_cast<const float4 *>(from));
                const float4 hi = sl_kv_bounded<E>(*reinterpret_cast<const float4 *>(from + 4));
                v = make_uint4(E::pack(lo.x, lo.y), E::pack(lo.z, lo.w), E::pack(hi.x, hi.y),
                               E::pack(hi.z, hi.w));
            }
            *reinterpret_cast<uint4 *>(smem + attend_piece<S::ROW>(h, piece)) = v;
        }
    }

    /* Where the rows of a tile lie; 0: there is none. */
    __device__ __forceinline__ void look_up(int tile)
    {
        const int32_t i = tile * ATTEND_KEYS + static_cast<int32_t>(threadIdx.x);
        const uint8_t *at = nullptr;
        if (threadIdx.x >= ATTEND_KEYS)
            return;
        if (i < n_far) {
            const int32_t r = chosen != nullptr ? chosen[i] : i;
            at = a.far.row(table, (r + 1) * a.far.ratio - 1);
        } else if (i < n) {
            at = a.near.row(table, pos + 1 - (n - i));
        }
        places(tile)[threadIdx.x] = reinterpret_cast<unsigned long long>(at);
    }

    __device__ __forceinline__ void load_keys(int tile)
    {
        const unsigned long long *from = places(tile);
        uint8_t *to = keys(tile);
#pragma unroll 4
        for (int i = static_cast<int>(threadIdx.x); i < ATTEND_KEYS * S::PIECES;
             i += ATTEND_THREADS) {
            const int r = i / S::PIECES, piece = i % S::PIECES;
            const uint8_t *at = reinterpret_cast<const uint8_t *>(from[r]);
            const bool there = at != nullptr && piece * 16 < a.near.row_bytes;
            sl_cp_async16(to + attend_piece<S::ROW>(r, piece),
                          there ? at + piece * 16 : reinterpret_cast<const uint8_t *>(a.q), there);
        }
    }

    /* Scores of the warp's heads and keys. */
    __device__ __forceinline__ void score(int tile, float (&s)[S::M][S::N][4]) const
    {
        const uint8_t *k = keys(tile);
        const int first = warp_col * S::N * 8;
#pragma unroll
        for (int i = 0; i < S::M; i++)
#pragma unroll
            for (int j = 0; j < S::N; j++)
#pragma unroll
                for (int e = 0; e < 4; e++)
                    s[i][j][e] = 0.0f;
#pragma unroll 4
        for (int d = 0; d < S::PIECES; d += 4) { /* two products of 16 dimensions */
            uint32_t b[2][S::N][2];
            if (S::N == 1) {
                uint32_t r[4];
                sl_ldmatrix_x4(r, k + attend_piece<S::ROW>(first + (lane & 7), d + (lane >> 3)));
                b[0][0][0] = r[0], b[0][0][1] = r[1], b[1][0][0] = r[2], b[1][0][1] = r[3];
            } else {
#pragma unroll
                for (int h = 0; h < 2; h++) {
                    uint32_t r[4];
                    sl_ldmatrix_x4(r, k + attend_piece<S::ROW>(first + (lane & 7) + (lane >> 4) * 8,
                                                               d + 2 * h + (lane >> 3 & 1)));
                    b[h][0][0] = r[0], b[h][0][1] = r[1];
                    b[h][S::N - 1][0] = r[2], b[h][S::N - 1][1] = r[3];
                }
            }
#pragma unroll
            for (int h = 0; h < 2; h++)
#pragma unroll
                for (int i = 0; i < S::M; i++) {
                    uint32_t q[4];
                    sl_ldmatrix_x4(q, smem + attend_piece<S::ROW>(row(i) + (lane & 15),
                                                                  d + 2 * h + (lane >> 4)));
#pragma unroll
                    for (int j = 0; j < S::N; j++)
                        E::mma(s[i][j], q, b[h][j]);
                }
        }
    }

    /* Those of keys behind the last become -inf; the largest of each head, of the warp's keys, to
     * shared memory. */
    __device__ __forceinline__ void find_maxima(int tile, float (&s)[S::M][S::N][4]) const
    {
        const int32_t key = tile * ATTEND_KEYS + warp_col * S::N * 8 + lane % 4 * 2;
#pragma unroll
        for (int i = 0; i < S::M; i++)
#pragma unroll
            for (int h = 0; h < 2; h++) {
                float most = -INFINITY;
#pragma unroll
                for (int j = 0; j < S::N; j++)
#pragma unroll
                    for (int e = 0; e < 2; e++) {
                        float &x = s[i][j][2 * h + e];
                        x = key + 8 * j + e < n ? x : -INFINITY;
                        most = fmaxf(most, x);
                    }
                most = fmaxf(most, __shfl_xor_sync(0xFFFFFFFFu, most, 1));
                most = fmaxf(most, __shfl_xor_sync(0xFFFFFFFFu, most, 2));
                if (lane % 4 == 0)
                    maxima()[warp_col * (16 * S::M * S::BY_ROWS) + row(i) + 8 * h + lane / 4] =
                        most;
            }
    }

    /* Probabilities to shared memory; sums of values are brought to the new reference. */
    __device__ __forceinline__ void weigh(const float (&s)[S::M][S::N][4])
    {
        uint8_t *probs = smem + S::QUERIES + 2 * S::TILE;
#pragma unroll
        for (int i = 0; i < S::M; i++)
#pragma unroll
            for (int h = 0; h < 2; h++) {
                const int r = row(i) + 8 * h + lane / 4;
                float most = m[i][h];
#pragma unroll
                for (int w = 0; w < S::BY_COLS; w++)
                    most = fmaxf(most, maxima()[w * (16 * S::M * S::BY_ROWS) + r]);
                /* a row without a number: all of it becomes NaN */
                const float from = most == -INFINITY ? 0.0f : most;
                const float by = sl_ex2_approx(__fmul_rn(__fadd_rn(m[i][h], -from), a.scale2));
                const float less = -__fmul_rn(from, a.scale2);
                m[i][h] = most;
#pragma unroll
                for (int j = 0; j < S::N; j++) {
                    const float p0 = sl_ex2_approx(__fmaf_rn(s[i][j][2 * h], a.scale2, less));
                    const float p1 = sl_ex2_approx(__fmaf_rn(s[i][j][2 * h + 1], a.scale2, less));
                    l[i][h][j] = __fmaf_rn(l[i][h][j], by, __fadd_rn(p0, p1));
                    *reinterpret_cast<uint32_t *>(
                        probs + attend_piece<ATTEND_KEYS * 2>(r, warp_col * S::N + j) +
                        lane % 4 * 4) = E::pack(p0, p1);
                }
#pragma unroll
                for (int d = 0; d < S::D; d++) {
                    o[i][d][2 * h] = __fmul_rn(o[i][d][2 * h], by);
                    o[i][d][2 * h + 1] = __fmul_rn(o[i][d][2 * h + 1], by);
                }
            }
    }

    __device__ __forceinline__ void add_values(int tile)
    {
        const uint8_t *v = keys(tile), *probs = smem + S::QUERIES + 2 * S::TILE;
#pragma unroll 1
        for (int k = 0; k < ATTEND_KEYS; k += 16) {
            uint32_t p[S::M][4];
#pragma unroll
            for (int i = 0; i < S::M; i++)
                sl_ldmatrix_x4(p[i], probs + attend_piece<ATTEND_KEYS * 2>(row(i) + (lane & 15),
                                                                           k / 8 + (lane >> 4)));
#pragma unroll
            for (int d = 0; d < S::D; d += 2) {
                uint32_t b[4];
                sl_ldmatrix_x4_trans(b,
                                     v + attend_piece<S::ROW>(k + (lane & 7) + (lane >> 3 & 1) * 8,
                                                              warp_col * S::D + d + (lane >> 4)));
#pragma unroll
                for (int i = 0; i < S::M; i++) {
                    E::mma(o[i][d], p[i], b);
                    E::mma(o[i][d + 1], p[i], b + 2);
                }
            }
        }
    }

    __device__ __forceinline__ void run()
    {
        const int n_tiles = (n + ATTEND_KEYS - 1) / ATTEND_KEYS;
        look_up(0);
        load_queries();
        __syncthreads();
        load_keys(0);
        sl_cp_async_commit();
        look_up(1);
#pragma unroll 1
        for (int t = 0; t < n_tiles; t++) {
            float s[S::M][S::N][4];
            __syncthreads(); /* the other tile was multiplied, and the next one's places are known
                              */
            if (t + 1 < n_tiles)
                load_keys(t + 1);
            sl_cp_async_commit();
            look_up(t + 2);
            sl_cp_async_wait<1>();
            __syncthreads();
            score(t, s);
            find_maxima(t, s);
            __syncthreads();
            weigh(s);
            __syncthreads();
            add_values(t);
        }
    }

    /* Adds up l, with the sink: what the sums of values are multiplied by. */
    __device__ __forceinline__ float inverse(int i, int h) const
    {
        const int r = row(i) + 8 * h + lane / 4;
        float sum = 0.0f;
#pragma unroll
        for (int w = 0; w < ATTEND_EIGHTS; w++)
            sum = __fadd_rn(sum, sums()[w * (16 * S::M * S::BY_ROWS) + r]);
        if (head + r >= a.n_heads)
            return 0.0f;
        const float exponent = __fmul_rn(m[i][h], a.scale2);
        const float sink = __fmul_rn(a.sinks[head + r], 0x1.715476p0f);
        const float most = fmaxf(exponent, sink);
        const float factor = sl_ex2_approx(__fadd_rn(exponent, -most));
        sum = __fmaf_rn(sum, factor, sl_ex2_approx(__fadd_rn(sink, -most)));
        return __fdiv_rn(factor, sum);
    }

    __device__ __forceinline__ void finish()
    {
#pragma unroll
        for (int i = 0; i < S::M; i++)
#pragma unroll
            for (int h = 0; h < 2; h++)
#pragma unroll
                for (int j = 0; j < S::N; j++) {
                    float x = l[i][h][j];
                    x = __fadd_rn(x, __shfl_xor_sync(0xFFFFFFFFu, x, 1));
                    x = __fadd_rn(x, __shfl_xor_sync(0xFFFFFFFFu, x, 2));
                    if (lane % 4 == 0)
                        sums()[(warp_col * S::N + j) * (16 * S::M * S::BY_ROWS) + row(i) + 8 * h +
                               lane / 4] = x;
                }
        __syncthreads();
#pragma unroll
        for (int i = 0; i < S::M; i++)
#pragma unroll
            for (int h = 0; h < 2; h++)
                write(i, h, inverse(i, h));
    }

    /* A row of the output, its last dimensions rotated back. */
    __device__ __forceinline__ void write(int i, int h, float by)
    {
        const int r = row(i) + 8 * h + lane / 4;
        const float *angles = a.angles + static_cast<int64_t>(token) * a.n_dims;
        __nv_bfloat16 *out = a.out + (static_cast<int64_t>(token) * a.n_heads + head + r) * a.dim;
        if (head + r >= a.n_heads)
            return;
#pragma unroll
        for (int d = 0; d < S::D; d++) {
            const int at = (warp_col * S::D + d) * 8 + lane % 4 * 2,
                      turned = at - (a.dim - a.n_dims);
            float2 x =
                make_float2(__fmul_rn(o[i][d][2 * h], by), __fmul_rn(o[i][d][2 * h + 1], by));
            if (at >= a.dim)
                break;
            if (turned >= 0) {
                const float2 cs = *reinterpret_cast<const float2 *>(angles + turned);
                x = sl_rows_turn(x.x, x.y, make_float2(cs.x, -cs.y));
            }
            *reinterpret_cast<__nv_bfloat162 *>(out + at) = __floats2bfloat162_rn(x.x, x.y);
        }
    }
};

template <class E, class S>
static __global__ void __launch_bounds__(ATTEND_THREADS, 1)
    rows_attend_kernel(const __grid_constant__ struct attend_args a)
{
    SL_SMEM(uint8_t, smem);
    attend_block<E, S> x(a, smem);
    sl_grid_launch_dependents();
    sl_grid_wait();
    x.begin(static_cast<int32_t>(blockIdx.x) / a.n_tiles,
            static_cast<int32_t>(blockIdx.x) % a.n_tiles * (16 * S::M * S::BY_ROWS));
    x.run();
    x.finish();
}

template <class E, int DIM, int HEADS> static void attend(struct sl_cuda *cu, struct attend_args *a)
{
    typedef attend_shape<DIM, HEADS> shape;
    a->n_tiles = SL_CEIL_DIV(a->n_heads, HEADS);
    sl_launch(cu, rows_attend_kernel<E, shape>,
              dim3(static_cast<unsigned>(a->n_tiles) * static_cast<unsigned>(a->n_tokens)),
              dim3(ATTEND_THREADS), shape::SMEM, *a);
}

/* 64 heads of a block are as fast as three times 16: so many only where they fill the device. */
template <class E, int DIM> static void attend(struct sl_cuda *cu, struct attend_args *a)
{
    if (static_cast<int64_t>(a->n_tokens) * SL_CEIL_DIV(a->n_heads, 64) * 3 <= cu->n_sms)
        attend<E, DIM, 16>(cu, a);
    else
        attend<E, DIM, 64>(cu, a);
}

extern "C" bool sl_cuda_rows_support(int32_t head_dim, enum sl_dtype pages)
{
    return head_dim >= 8 && head_dim <= SL_ROWS_DIM && head_dim % 8 == 0 &&
           (pages == SL_DTYPE_BF16 || pages == SL_DTYPE_F16);
}

extern "C" void sl_cuda_compressed_attention(struct sl_backend *be,
                                             const struct sl_op_compressed_attention *op)
{
    struct sl_cuda *cu = sl_cuda(be);
    const struct sl_batch *b = op->batch;
    if (!sl_rows_fit(cu, op->rope, op->dim, op->near.dtype) || b->n_tokens == 0)
        return;
    if (!sl_cuda_rows_support(op->dim, op->near.dtype) || op->window < 1 || op->sinks == NULL) {
        sl_cuda_check(cu, cudaErrorInvalidValue, "heads of attention to rows of several tokens");
        return;
    }
    struct attend_args a = {};
    a.q = op->q;
    a.sinks = op->sinks;
    a.angles = op->angles;
    a.n_tokens = b->n_tokens;
    a.n_heads = op->n_heads;
    a.dim = op->dim;
    a.n_dims = op->rope->n_dims;
    a.window = op->window;
    a.top_k = op->top_k;
    a.top = op->top;
    a.scale2 = op->scale * 0x1.715476p0f;
    a.spans = b->spans;
    a.n_spans = b->n_spans;
    a.near = sl_rows_at_of(b, &op->near, 1, op->dim);
    if (op->ratio > 0)
        a.far = sl_rows_at_of(b, &op->far, op->ratio, op->dim);
    a.out = static_cast<__nv_bfloat16 *>(op->out);
    const bool f16 = op->near.dtype == SL_DTYPE_F16;
    if (op->dim <= 128)
        f16 ? attend<sl_elem_f16, 128>(cu, &a) : attend<sl_elem_bf16, 128>(cu, &a);
    else
        f16 ? attend<sl_elem_f16, SL_ROWS_DIM>(cu, &a) : attend<sl_elem_bf16, SL_ROWS_DIM>(cu, &a);
}
