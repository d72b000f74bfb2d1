/* SPDX-License-Identifier: MIT
 * page_bounds.cu - attention over the pages whose bounds promise most (ops/ops.h has the rule).
 *
 * Bounds are made by the token that fills a page, from its keys as they are stored: 32 KB of a key
 * head with pages of 128 rows of 128 values, once in as many steps. A choice is then that of an
 * index of blocks whose blocks are pages: a score of each, the largest (chosen_top.cu), and
 * attention over these (chosen.cu).
 *
 * Scores are products on the tensor cores: bounds of 16 pages are rows, the queries of a key head
 * columns, their positive values beside the negative ones; the largest of the columns counts.
 * Bounds come straight from memory, 16 bytes a lane, which is what binds: 512 bytes of a page and a
 * key head of 128 dimensions.
 */
#include "cuda/attention/attention.cuh"
#include "cuda/attention/chosen.cuh"
#include "cuda/ptx.cuh"

/* ---------------------------------------------------------------- bounds */

#define BOUNDS_THREADS 128

struct bounds_args {
    const int32_t *positions, *row_table, *tables;
    uint8_t *pool;
    uint64_t page_bytes, keys_at, bounds_at;
    int32_t block_size, n_kv_heads, dim, tile_bytes;
};

/* What the 16 bytes of a piece of a row are, and which of its dimensions. */
struct bounds_bf16 {
    static constexpr int PER = 8;
    static __device__ __forceinline__ float value(const uint8_t *piece, int i, float)
    {
        return __uint_as_float(static_cast<uint32_t>(reinterpret_cast<const uint16_t *>(piece)[i])
                               << 16);
    }
    static __device__ __forceinline__ int place(int i)
    {
        return i;
    }
};

struct bounds_f16 {
    static constexpr int PER = 8;
    static __device__ __forceinline__ float value(const uint8_t *piece, int i, float)
    {
        return __half2float(reinterpret_cast<const __half *>(piece)[i]);
    }
    static __device__ __forceinline__ int place(int i)
    {
        return i;
    }
};

struct bounds_fp8 {
    static constexpr int PER = 16;
    static __device__ __forceinline__ float value(const uint8_t *piece, int i, float scale)
    {
        const uint32_t code = piece[i];
        return __fmul_rn(__uint_as_float((code & 0x80u) << 24 | (code & 0x7Fu) << 20), scale);
    }
    static __device__ __forceinline__ int place(int i)
    {
        return i / 4 * 2 + (i % 4 / 2) + (i % 2 == 0 ? 8 : 0);
    }
};

/* The bounds of PER dimensions of a key head, of the page at `page`. */
template <class F>
static __device__ __forceinline__ void bounds_of(const struct bounds_args &a, uint8_t *page,
                                                 int32_t head, int32_t piece)
{
    const int32_t n_tiles = a.block_size / SL_KV_TILE;
    const bool codes = F::PER == 16;
    const int32_t row_bytes = codes ? a.dim : 2 * a.dim;
    float most[F::PER], least[F::PER];
#pragma unroll
    for (int i = 0; i < F::PER; i++) {
        most[i] = __int_as_float(static_cast<int>(0xFF800000u));
        least[i] = __int_as_float(0x7F800000);
    }
#pragma unroll 2
    for (int32_t row = 0; row < a.block_size; row++) {
        const uint8_t *tile =
            page + a.keys_at +
            static_cast<int64_t>(head * n_tiles + row / SL_KV_TILE) * a.tile_bytes;
        const int in = row % SL_KV_TILE;
        __align__(16) uint8_t bytes[16];
        *reinterpret_cast<uint4 *>(bytes) =
            *reinterpret_cast<const uint4 *>(tile + sl_kv_piece(row_bytes, in, piece));
        float scale = 0.0f;
        if (codes)
            scale = __uint_as_float(static_cast<uint32_t>(*reinterpret_cast<const uint16_t *>(
                                        tile + SL_KV_TILE * a.dim + 2 * in))
                                    << 16);
#pragma unroll
        for (int i = 0; i < F::PER; i++) {
            const float x = F::value(bytes, i, scale);
            most[i] = x > most[i] ? x : most[i];
            least[i] = x < least[i] ? x : least[i];
        }
    }
    __nv_bfloat16 *to = reinterpret_cast<__nv_bfloat16 *>(page + a.bounds_at) +
                        static_cast<int64_t>(head) * 2 * a.dim + piece * F::PER;
#pragma unroll
    for (int i = 0; i < F::PER; i++) {
        const float quarter = __fmul_rn(0.25f, __fadd_rn(most[i], -least[i]));
        to[F::place(i)] = __float2bfloat16_rn(__fadd_rn(most[i], -quarter));
        to[a.dim + F::place(i)] = __float2bfloat16_rn(__fadd_rn(least[i], quarter));
    }
}

/* A block has a token, which has something to do if it fills a page. */
template <class F>
static __global__ void __launch_bounds__(BOUNDS_THREADS)
    page_bounds_kernel(const __grid_constant__ struct bounds_args a)
{
    const int32_t token = static_cast<int32_t>(blockIdx.x), n = a.dim / F::PER;
    sl_grid_launch_dependents();
    sl_grid_wait();
    const int32_t pos = a.positions[token];
    if ((pos + 1) % a.block_size != 0)
        return;
    uint8_t *page =
        a.pool +
        static_cast<uint64_t>(a.tables[a.row_table[token] + pos / a.block_size]) * a.page_bytes;
    for (int32_t i = static_cast<int32_t>(threadIdx.x); i < a.n_kv_heads * n; i += BOUNDS_THREADS)
        bounds_of<F>(a, page, i / n, i % n);
}

extern "C" void sl_cuda_page_bounds(struct sl_backend *be, const struct sl_op_page_bounds *op)
{
    struct sl_cuda *cu = sl_cuda(be);
    const struct sl_batch *b = op->batch;
    static const struct {
        enum sl_dtype dtype;
        void (*kernel)(struct bounds_args);
    } formats[] = {{SL_DTYPE_BF16, page_bounds_kernel<bounds_bf16>},
                   {SL_DTYPE_F16, page_bounds_kernel<bounds_f16>},
                   {SL_DTYPE_FP8_E4M3, page_bounds_kernel<bounds_fp8>}};
    const struct bounds_args a = {
        b->positions,
        reinterpret_cast<const int32_t *>(cu->workspace + SL_ATTN_ROW_TABLE),
        sl_batch_tables(b, op->kv.group),
        op->kv.pool,
        op->kv.page_bytes,
        op->kv.k_offset,
        op->bounds_offset,
        op->kv.block_size,
        op->n_kv_heads,
        sl_kv_padded_dim(op->head_dim),
        static_cast<int32_t>(sl_kv_tile_bytes(op->kv.dtype, op->head_dim))};
    for (const auto &f : formats)
        if (f.dtype == op->kv.dtype) {
            sl_launch(cu, f.kernel, dim3(static_cast<unsigned>(b->n_tokens)), dim3(BOUNDS_THREADS),
                      0, a);
            return;
        }
    sl_cuda_check(cu, cudaErrorInvalidValue, "format of pages with bounds");
}

/* ---------------------------------------------------------------- scores */

#define SCORE_WARPS   8
#define SCORE_THREADS (SCORE_WARPS * 32)
#define SCORE_PAGES   (SCORE_WARPS * 16) /* of an item */
#define SCORE_ROOM    128                /* bytes of shared memory before the queries */

struct page_score_args {
    const float *q;
    int64_t ld_q;
    int32_t group, n_kv_heads, head_dim, dim; /* dim: padded */
    const int32_t *positions, *row_table, *tables;
    int32_t block_size, n_top, lead, tail;
    const uint8_t *bounds; /* the pool, at this layer's */
    uint64_t page_bytes;
    float *scores;
    int64_t ld, ld_head;
    int32_t first, n; /* tokens at hand */
};

/* STEPS: of 32 values of a page's bounds. */
template <int STEPS> struct page_score_block {
    static constexpr int ROW = STEPS * 64; /* bytes of a query in shared memory */
    const struct page_score_args &a;
    uint8_t *queries; /* [whole eights of group][ROW] */
    int lane;

    static __device__ __forceinline__ int place(int column, int piece)
    {
        return column * ROW + (piece ^ (column & 1) << 2) * 16; /* two columns share no bank */
    }

    /* Values 8 piece .. of a column: first the positive ones of a query, then the negative. */
    __device__ __forceinline__ void load_queries(int32_t token, int32_t head)
    {
        const int n_pieces = a.dim / 4, columns = (a.group + 7) / 8 * 8;
        for (int i = static_cast<int>(threadIdx.x); i < columns * STEPS * 4; i += SCORE_THREADS) {
            const int column = i / (STEPS * 4), piece = i % (STEPS * 4);
            const bool low = piece >= n_pieces / 2;
            const int from = (low ? piece - n_pieces / 2 : piece) * 8;
            const float *q =
                a.q + token * a.ld_q + static_cast<int64_t>(head * a.group + column) * a.head_dim;
            uint32_t to[4];
#pragma unroll
            for (int k = 0; k < 4; k++) {
                float x[2];
#pragma unroll
                for (int e = 0; e < 2; e++) {
                    const int d = from + 2 * k + e;
                    const bool there = column < a.group && piece < n_pieces && d < a.head_dim;
                    const float v = there ? q[d] : 0.0f;
                    x[e] = (v > 0.0f) != low ? v : 0.0f;
                }
                to[k] = sl_pack_bf16(x[0], x[1]);
            }
            *reinterpret_cast<uint4 *>(queries + place(column, piece)) =
                make_uint4(to[0], to[1], to[2], to[3]);
        }
    }

    /* Scores of the 16 pages from `from` on, of those up to `end`. */
    __device__ __forceinline__ void pages(const int32_t *table, int32_t head, int32_t from,
                                          int32_t end, float *scores)
    {
        uint4 x[2][STEPS];
        float most[2] = {__int_as_float(static_cast<int>(0xFF800000u)),
                         __int_as_float(static_cast<int>(0xFF800000u))};
#pragma unroll
        for (int half = 0; half < 2; half++) {
            const int32_t page = min(from + 8 * half + lane / 4, end - 1);
            const uint8_t *row = a.bounds +
                                 static_cast<uint64_t>(__ldg(table + page)) * a.page_bytes +
                                 static_cast<int64_t>(head) * a.dim * 4;
#pragma unroll
            for (int s = 0; s < STEPS; s++) {
                const int piece = 4 * s + lane % 4;
                x[half][s] = make_uint4(0, 0, 0, 0);
                if (piece < a.dim / 4)
                    x[half][s] = __ldcg(reinterpret_cast<const uint4 *>(row) + piece);
            }
        }
#pragma unroll 1
        for (int column = 0; column < a.group; column += 8) {
            float c[4] = {};
#pragma unroll
            for (int s = 0; s < STEPS; s++) {
                const uint4 q = *reinterpret_cast<const uint4 *>(
                    queries + place(column + lane / 4, 4 * s + lane % 4));
                const uint4 y = x[0][s], z = x[1][s];
                const uint32_t a0[4] = {y.x, z.x, y.y, z.y}, a1[4] = {y.z, z.z, y.w, z.w};
                const uint32_t b0[2] = {q.x, q.y}, b1[2] = {q.z, q.w};
                sl_mma_bf16(c, a0, b0);
                sl_mma_bf16(c, a1, b1);
            }
#pragma unroll
            for (int e = 0; e < 4; e++)
                if (column + lane % 4 * 2 + e % 2 < a.group)
                    most[e / 2] = fmaxf(most[e / 2], c[e]);
        }
#pragma unroll
        for (int half = 0; half < 2; half++) {
            float m = fmaxf(most[half], __shfl_xor_sync(0xFFFFFFFFu, most[half], 1));
            m = fmaxf(m, __shfl_xor_sync(0xFFFFFFFFu, m, 2));
            const int32_t page = from + 8 * half + lane / 4;
            if (lane % 4 == 0 && page < end)
                scores[page] = m;
        }
    }

    /* Pages chunk * SCORE_PAGES .. of those that a token may choose, of a key head. */
    __device__ __forceinline__ void item(int32_t row, int32_t head, int32_t chunk)
    {
        const int32_t token = a.first + row, n = a.positions[token] / a.block_size + 1;
        const int32_t begin = a.lead + chunk * SCORE_PAGES, end = n - a.tail;
        const int32_t from = begin + static_cast<int32_t>(threadIdx.x / 32) * 16;
        if (n <= a.n_top || begin >= end)
            return;
        __syncthreads();
        load_queries(token, head);
        __syncthreads();
        if (from < end)
            pages(a.tables + a.row_table[token], head, from, end,
                  a.scores + row * a.ld + head * a.ld_head);
    }
};

/* The most pages that a token at hand sees. */
static __device__ __forceinline__ int32_t page_score_longest(const struct page_score_args &a,
                                                             int32_t *room)
{
    int32_t most = 0;
    for (int32_t i = static_cast<int32_t>(threadIdx.x); i < a.n; i += SCORE_THREADS)
        most = max(most, a.positions[a.first + i] / a.block_size + 1);
    most = __reduce_max_sync(0xFFFFFFFFu, most);
    if (threadIdx.x % 32 == 0)
        room[threadIdx.x / 32] = most;
    __syncthreads();
    return __reduce_max_sync(0xFFFFFFFFu,
                             threadIdx.x % 32 < SCORE_WARPS ? room[threadIdx.x % 32] : 0);
}

template <int STEPS>
static __global__ void __launch_bounds__(SCORE_THREADS)
    page_score_kernel(const __grid_constant__ struct page_score_args a)
{
    SL_SMEM(uint8_t, smem);
    int32_t *room = reinterpret_cast<int32_t *>(smem);
    struct page_score_block<STEPS> x = {
        a, smem + SCORE_ROOM, static_cast<int>(threadIdx.x % 32)
    };
    sl_grid_launch_dependents();
    sl_grid_wait();
    const int32_t longest = page_score_longest(a, room) - a.lead - a.tail;
    const int32_t n_chunks = max(longest + SCORE_PAGES - 1, 0) / SCORE_PAGES;
    const int64_t n = static_cast<int64_t>(a.n) * a.n_kv_heads * n_chunks;
#pragma unroll 1
    for (int64_t i = blockIdx.x; i < n; i += gridDim.x) {
        const int32_t row = static_cast<int32_t>(i / n_chunks);
        x.item(row / a.n_kv_heads, row % a.n_kv_heads, static_cast<int32_t>(i % n_chunks));
    }
}

static void score(struct sl_cuda *cu, const struct sl_op_page_attention *op,
                  const struct sl_chosen_rule *rule, const struct sl_chosen_scores *s, float *to)
{
    const struct sl_op_attention *all = &op->all;
    const struct sl_batch *b = all->batch;
    struct page_score_args a = {};
    a.q = all->q;
    a.ld_q = all->ld_q;
    a.group = all->n_heads / all->n_kv_heads;
    a.n_kv_heads = all->n_kv_heads;
    a.head_dim = all->head_dim;
    a.dim = sl_kv_padded_dim(all->head_dim);
    a.positions = b->positions;
    a.row_table = reinterpret_cast<const int32_t *>(cu->workspace + SL_ATTN_ROW_TABLE);
    a.tables = sl_batch_tables(b, all->kv.group);
    a.block_size = rule->block;
    a.n_top = rule->n_top;
    a.lead = rule->lead;
    a.tail = rule->tail;
    a.bounds = all->kv.pool + op->bounds_offset;
    a.page_bytes = all->kv.page_bytes;
    a.scores = to;
    a.ld = s->ld;
    a.ld_head = s->ld_head;
    a.first = s->first;
    a.n = s->n;
    const int at = a.dim <= 64 ? 0 : a.dim <= 128 ? 1 : 2;
    static void (*const kernels[])(struct page_score_args) = {
        page_score_kernel<4>, page_score_kernel<8>, page_score_kernel<16>};
    const size_t smem =
        SCORE_ROOM + static_cast<size_t>(SL_CEIL_DIV(a.group, 8) * 8) * (256u << at);
    sl_launch(cu, kernels[at], dim3(static_cast<unsigned>(4 * cu->n_sms)), dim3(SCORE_THREADS),
              smem, a);
}

/* ---------------------------------------------------------------- the operation */

extern "C" void sl_cuda_page_attention(struct sl_backend *be, const struct sl_op_page_attention *op)
{
    struct sl_cuda *cu = sl_cuda(be);
    const struct sl_op_attention *all = &op->all;
    const int32_t n_tokens = all->batch->n_tokens, bs = all->kv.block_size, kv = all->n_kv_heads;
    const struct sl_chosen_rule rule = {bs, op->top_pages, SL_TOP_PAGES_FIRST, SL_TOP_PAGES_LAST};
    const int32_t n_pages = SL_CEIL_DIV(op->n_most, bs);
    const size_t lists = static_cast<size_t>(kv) * static_cast<size_t>(op->top_pages) * 4;
    const size_t scores = static_cast<size_t>(kv) * static_cast<size_t>(n_pages) * 4;
    const size_t ids = sl_chosen_room(kv, op->top_pages, bs, bs);
    const int32_t most = static_cast<int32_t>(
        SL_MIN(op->room_bytes / (ids + lists + scores), static_cast<size_t>(n_tokens)));
    if (n_pages <= op->top_pages) { /* nobody sees more */
        sl_cuda_attention(be, all);
        return;
    }
    if (n_tokens > 0 && (most == 0 || sl_kv_padded_dim(all->head_dim) > 256)) {
        sl_cuda_check(cu, cudaErrorInvalidValue, "attention over chosen pages");
        return;
    }
    for (int32_t first = 0; first < n_tokens; first += most) {
        const int32_t n = SL_MIN(most, n_tokens - first);
        uint8_t *room = static_cast<uint8_t *>(op->room);
        int32_t *top = reinterpret_cast<int32_t *>(room + static_cast<size_t>(n) * ids);
        float *to = reinterpret_cast<float *>(top + static_cast<int64_t>(n) * kv * op->top_pages);
        const struct sl_chosen_scores s = {
            all->batch->positions, to, static_cast<int64_t>(kv) * n_pages, n_pages, first, n, kv};
        score(cu, op, &rule, &s, to);
        sl_chosen_largest(cu, &rule, &s, top);
        sl_chosen_attend(cu, all, &rule, first, n, top, room);
    }
}
