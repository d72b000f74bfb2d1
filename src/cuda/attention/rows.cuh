/* SPDX-License-Identifier: MIT
 * rows.cuh - what the kernels of attention to a window and to rows made of several tokens share
 * (DeepSeek V4): which span a token is in, where rows lie, their last dimensions' rotation.
 *
 * Rows lie in their pages one behind the other, their numbers in order: [row][dim rounded up to 16]
 * in BF16 or F16. Of `ratio` tokens that make one, row r is in the page of its last token.
 */
#ifndef SL_CUDA_ROWS_CUH
#define SL_CUDA_ROWS_CUH

#include "cuda/attention/kv.cuh"
#include "cuda/device.h"
#include "cuda/launch.cuh"

#define SL_ROWS_DIM 512 /* most dimensions of a row; a multiple of 8 */

/* The span of token t, where no span is empty: each lane looks at one of 32 that are evenly spread,
 * and then at those between two of them. All lanes of a warp call it. */
static __device__ __forceinline__ int32_t sl_rows_span(const struct sl_span *spans, int32_t n_spans,
                                                       int32_t n_tokens, int32_t t)
{
    if (n_spans == n_tokens) /* a token each */
        return t;
    const int32_t lane = static_cast<int32_t>(threadIdx.x % 32);
    int32_t from = 0, n = n_spans;
    while (n > 1) {
        const int32_t step = (n + 31) / 32, i = from + lane * step;
        const bool begun = lane * step < n && spans[i].first <= t;
        const uint32_t all = __ballot_sync(0xFFFFFFFFu, begun);
        const int32_t skip = (__popc(all) - 1) * step; /* the first has begun */
        from += skip;
        n = min(step, n - skip);
    }
    return from;
}

/* A view of rows, for a kernel. */
struct sl_rows_at {
    uint8_t *rows; /* with the layer's offset */
    const int32_t *tables;
    uint64_t page_bytes;
    int32_t block_size, ratio, row_bytes;

    /* The row of the tokens up to position pos; table: the span's. */
    __device__ __forceinline__ uint8_t *row(int32_t table, int32_t pos) const
    {
        const int32_t page = tables[table + pos / block_size];
        return rows + static_cast<uint64_t>(page) * page_bytes +
               static_cast<uint32_t>(pos % block_size / ratio * row_bytes);
    }
};

static inline struct sl_rows_at sl_rows_at_of(const struct sl_batch *b,
                                              const struct sl_rows_view *v, int32_t ratio,
                                              int32_t dim)
{
    return {v->pool + v->offset,
            sl_batch_tables(b, v->group),
            v->page_bytes,
            v->block_size,
            ratio,
            static_cast<int32_t>(sl_row_bytes(v->dtype, dim))};
}

/* Can kernels read and write such rows? Else an error is recorded. */
static inline bool sl_rows_fit(struct sl_cuda *cu, const struct sl_rope *rope, int32_t dim,
                               enum sl_dtype dtype)
{
    const bool fits = dim >= 8 && dim <= SL_ROWS_DIM && dim % 4 == 0 &&
                      (dtype == SL_DTYPE_F16 || dtype == SL_DTYPE_BF16) &&
                      (rope == NULL || (rope->pairing == SL_ROPE_INTERLEAVED &&
                                        rope->n_dims % 2 == 0 && rope->n_dims <= dim));
    if (!fits)
        sl_cuda_check(cu, cudaErrorInvalidValue, "format or size of rows of several tokens");
    return fits;
}

/* Neighbours p and q by an angle whose cosine and sine are cs. */
static __device__ __forceinline__ float2 sl_rows_turn(float p, float q, float2 cs)
{
    return make_float2(__fadd_rn(__fmul_rn(p, cs.x), -__fmul_rn(q, cs.y)),
                       __fadd_rn(__fmul_rn(q, cs.x), __fmul_rn(p, cs.y)));
}

/* Four numbers of a row to the page, from d on. */
template <class E>
static __device__ __forceinline__ void sl_rows_put4(uint8_t *row, int32_t d, float4 x)
{
    x = sl_kv_bounded<E>(x);
    *reinterpret_cast<uint2 *>(row + 2 * d) = make_uint2(E::pack(x.x, x.y), E::pack(x.z, x.w));
}

#endif
