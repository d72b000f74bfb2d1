/* SPDX-License-Identifier: MIT
 * latent_store.cu - what latent attention keeps of a token, to its page: the RMSNorm of its latent
 * values and behind them the rotated ones; and the rotated part of queries, behind what came out of
 * the product with keys' matrices.
 *
 * A warp has the row of a token, or a head of its query. Bytes of a token with 128 heads of 64
 * rotated dimensions: 64 KB read and written, of which the kept row is 3.5 KB.
 *
 * Sums of squares, rounding and rotation: kv_store.cu, which has 128 dimensions after 128, too.
 */
#include "cuda/attention/attention.cuh"

#define LATENT_WARPS 8
#define LATENT_PARTS 4   /* of 128 dimensions that are normed */
#define LATENT_ROW   576 /* most dimensions of a row */

struct latent_args {
    const float *c, *k_rope, *norm, *q_rope, *angles; /* angles NULL: nothing is rotated */
    float *q;
    int64_t ld_q_rope, step_q_rope;
    float eps;
    int32_t n_heads, rank, rope_dim;
    bool interleaved;
    struct sl_q_temperature temperature;
    const int32_t *positions, *row_table, *tables;
    uint8_t *keys;
    uint64_t page_bytes;
    struct sl_attn_divisor by_page; /* of 16 positions */
};

/* Lane i: pairs i, i + 32, ... of a row, rotated; times factor. `to` may be `from`. */
static __device__ __forceinline__ void latent_rotate(const struct latent_args &a, int32_t token,
                                                     const float *from, float *to, float factor)
{
    const int32_t n = a.rope_dim / 2;
    for (int32_t i = static_cast<int32_t>(threadIdx.x % 32); i < n; i += 32) {
        const int32_t x = a.interleaved ? 2 * i : i, y = a.interleaved ? 2 * i + 1 : i + n;
        float p = from[x], q = from[y];
        if (a.angles != nullptr) {
            const float2 cs = *reinterpret_cast<const float2 *>(
                a.angles + static_cast<int64_t>(token) * a.rope_dim + 2 * i);
            const float was = p;
            p = __fadd_rn(__fmul_rn(was, cs.x), -__fmul_rn(q, cs.y));
            q = __fadd_rn(__fmul_rn(q, cs.x), __fmul_rn(was, cs.y));
        }
        to[x] = __fmul_rn(p, factor);
        to[y] = __fmul_rn(q, factor);
    }
}

/* What the token's queries are multiplied by. */
static __device__ __forceinline__ float latent_warmth(const struct latent_args &a, int32_t token)
{
    const struct sl_q_temperature &t = a.temperature;
    const float spans = floorf(__fdiv_rn(static_cast<float>(a.positions[token] + t.first), t.span));
    return __fadd_rn(1.0f, __fmul_rn(t.beta, logf(__fadd_rn(1.0f, spans))));
}

static __device__ __forceinline__ void latent_query(const struct latent_args &a, int32_t token,
                                                    int32_t head)
{
    float *q = a.q + (static_cast<int64_t>(token) * a.n_heads + head) * (a.rank + a.rope_dim);
    const float factor = a.temperature.beta != 0.0f ? latent_warmth(a, token) : 1.0f;
    latent_rotate(a, token, a.q_rope + token * a.ld_q_rope + head * a.step_q_rope, q + a.rank,
                  factor);
    if (a.temperature.beta == 0.0f)
        return;
    for (int32_t i = static_cast<int32_t>(threadIdx.x % 32); i < a.rank; i += 32)
        q[i] = __fmul_rn(q[i], factor);
}

static __device__ __forceinline__ float latent_square(float4 x, float sum)
{
    sum = __fmaf_rn(x.x, x.x, sum);
    sum = __fmaf_rn(x.y, x.y, sum);
    sum = __fmaf_rn(x.z, x.z, sum);
    return __fmaf_rn(x.w, x.w, sum);
}

/* The normed values of a token to row. */
static __device__ __forceinline__ void latent_norm(const struct latent_args &a, int32_t token,
                                                   float *row)
{
    const int32_t lane = static_cast<int32_t>(threadIdx.x % 32);
    float4 x[LATENT_PARTS];
    float sum = 0.0f;
#pragma unroll
    for (int i = 0; i < LATENT_PARTS; i++) {
        const int32_t d = lane * 4 + i * 128;
        x[i] =
            d < a.rank
                ? *reinterpret_cast<const float4 *>(a.c + static_cast<int64_t>(token) * a.rank + d)
                : make_float4(0.0f, 0.0f, 0.0f, 0.0f);
        sum = latent_square(x[i], sum);
    }
#pragma unroll
    for (int d = 16; d > 0; d /= 2)
        sum = __fadd_rn(sum, __shfl_xor_sync(0xFFFFFFFFu, sum, d));
    const float mean = __fdiv_rn(sum, static_cast<float>(a.rank));
    const float by = __fdiv_rn(1.0f, __fsqrt_rn(__fadd_rn(mean, a.eps)));
#pragma unroll
    for (int i = 0; i < LATENT_PARTS; i++) {
        const int32_t d = lane * 4 + i * 128;
        if (d >= a.rank)
            break;
        const float4 w = *reinterpret_cast<const float4 *>(a.norm + d);
        *reinterpret_cast<float4 *>(row + d) = make_float4(
            __fmul_rn(__fmul_rn(x[i].x, by), w.x), __fmul_rn(__fmul_rn(x[i].y, by), w.y),
            __fmul_rn(__fmul_rn(x[i].z, by), w.z), __fmul_rn(__fmul_rn(x[i].w, by), w.w));
    }
}

/* A row of any length to its place. */
template <class KV>
static __device__ __forceinline__ void latent_put(const float *row, int32_t dim, uint8_t *tile,
                                                  int32_t slot)
{
    typedef typename KV::elem elem;
    for (int32_t d = static_cast<int32_t>(threadIdx.x % 32) * 8; d < dim; d += 256) {
        const float4 lo = sl_kv_bounded<elem>(*reinterpret_cast<const float4 *>(row + d));
        const float4 hi = sl_kv_bounded<elem>(*reinterpret_cast<const float4 *>(row + d + 4));
        *reinterpret_cast<uint4 *>(tile + sl_kv_piece(KV::row_bytes(dim), slot, d / 8)) =
            make_uint4(elem::pack(lo.x, lo.y), elem::pack(lo.z, lo.w), elem::pack(hi.x, hi.y),
                       elem::pack(hi.z, hi.w));
    }
}

/* row: room in shared memory, of the warp. */
template <class KV>
static __device__ __forceinline__ void latent_keep(const struct latent_args &a, int32_t token,
                                                   float *row)
{
    const int32_t lane = static_cast<int32_t>(threadIdx.x % 32), n = a.rank + a.rope_dim;
    const int32_t dim = (n + 15) / 16 * 16;
    const int32_t unit = a.positions[token] / SL_KV_TILE, slot = a.positions[token] % SL_KV_TILE;
    const int32_t page = sl_attn_div(unit, a.by_page);
    uint8_t *tile = a.keys +
                    static_cast<uint64_t>(a.tables[a.row_table[token] + page]) * a.page_bytes +
                    static_cast<uint64_t>((unit - page * a.by_page.by) * KV::tile_bytes(dim));
    latent_norm(a, token, row);
    latent_rotate(a, token, a.k_rope + static_cast<int64_t>(token) * a.rope_dim, row + a.rank,
                  1.0f);
    for (int32_t d = n + lane; d < dim; d += 32)
        row[d] = 0.0f;
    __syncwarp();
    if constexpr (KV::scaled)
        KV::store(row, dim, tile, slot);
    else
        latent_put<KV>(row, dim, tile, slot);
}

template <class KV>
static __global__ void __launch_bounds__(LATENT_WARPS * 32)
    latent_store_kernel(const __grid_constant__ struct latent_args a)
{
    SL_SMEM(float, row);
    const int32_t token = static_cast<int32_t>(blockIdx.x);
    const int32_t i = static_cast<int32_t>(blockIdx.y * LATENT_WARPS + threadIdx.x / 32);
    sl_grid_launch_dependents();
    sl_grid_wait();
    if (i == 0)
        latent_keep<KV>(a, token, row);
    else if (i <= a.n_heads)
        latent_query(a, token, i - 1);
}

void sl_cuda_latent_store(struct sl_backend *be, const struct sl_op_latent_store *op)
{
    struct sl_cuda *cu = sl_cuda(be);
    const struct sl_batch *b = op->batch;
    const int32_t head_dim = op->rank + op->rope_dim;
    if (op->rope_dim % 2 != 0 || (op->rope != nullptr && op->rope->n_dims != op->rope_dim) ||
        !sl_cuda_latent_supports(head_dim, op->rank, op->n_heads, op->kv.dtype)) {
        sl_cuda_check(cu, cudaErrorInvalidValue, "format or head of latent pages");
        return;
    }
    if (!op->by_row || cu->plan_top == 0) /* any plan of the step knows the tables of its tokens */
        sl_attn_plan_layer(cu, b, op->n_heads, 0, head_dim, false);
    struct latent_args a = {};
    a.c = op->c;
    a.k_rope = op->k_rope;
    a.norm = op->norm;
    a.q_rope = op->q_rope;
    a.angles = op->rope != nullptr ? op->angles : nullptr;
    a.q = op->q;
    a.ld_q_rope = op->ld_q_rope;
    a.step_q_rope = op->step_q_rope;
    a.eps = op->eps;
    a.n_heads = op->n_heads;
    a.rank = op->rank;
    a.rope_dim = op->rope_dim;
    a.interleaved = op->rope != nullptr && op->rope->pairing == SL_ROPE_INTERLEAVED;
    a.temperature = op->temperature;
    a.positions = b->positions;
    a.row_table = reinterpret_cast<const int32_t *>(cu->workspace + SL_ATTN_ROW_TABLE);
    a.tables = sl_batch_tables(b, op->kv.group);
    a.keys = op->kv.pool + op->kv.k_offset;
    a.page_bytes = op->kv.page_bytes;
    a.by_page = sl_attn_divisor_of(op->kv.block_size / SL_KV_TILE);
    const dim3 grid(static_cast<unsigned>(b->n_tokens),
                    static_cast<unsigned>(SL_CEIL_DIV(op->n_heads + 1, LATENT_WARPS)));
    sl_launch(cu,
              op->kv.dtype == SL_DTYPE_F16        ? latent_store_kernel<sl_kv_f16>
              : op->kv.dtype == SL_DTYPE_FP8_E4M3 ? latent_store_kernel<sl_kv_fp8>
                                                  : latent_store_kernel<sl_kv_bf16>,
              grid, dim3(LATENT_WARPS * 32), LATENT_ROW * sizeof(float), a);
    cu->plan_settled = true;
}
