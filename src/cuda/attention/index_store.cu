/* SPDX-License-Identifier: MIT
 * index_store.cu - the keys of an index to their pages, in BF16, and its queries, in BF16 too: each
 * in the first half of the floats that it was, with zeros behind it up to eight values.
 *
 * A warp has the key of a token or one of its queries, in shared memory. Norms: norm.cuh's order,
 * in which a row of up to 128 values is one warp's. Bytes of a token with 64 queries of 128 values:
 * 33 KB read, 16.6 KB written.
 */
#include "cuda/attention/attention.cuh"
#include "cuda/attention/index.cuh"
#include "cuda/norm.cuh"

#define INDEX_WARPS 8
#define INDEX_DIM   SL_DEVICE_INDEX_DIM
#define INDEX_EACH  (INDEX_DIM / 32) /* values of a lane */

struct index_store_args {
    float *q;
    const float *k, *norm, *bias; /* bias NULL: the key's norm is an RMSNorm */
    const float *q_norm, *angles; /* NULL: queries are not normed; nothing is rotated */
    float eps;
    int32_t n_heads, dim, n_rotated, rotated_from;
    bool interleaved;
    const int32_t *positions, *row_table, *tables;
    uint8_t *keys;
    uint64_t page_bytes;
    struct sl_attn_divisor by_page; /* of 16 positions */
};

/* The first n_rotated values there. */
static __device__ __forceinline__ void index_rotate(const struct index_store_args &a, int32_t token,
                                                    float *row)
{
    const int32_t n = a.n_rotated / 2;
    if (a.angles == nullptr)
        return;
    for (int32_t i = static_cast<int32_t>(threadIdx.x % 32); i < n; i += 32) {
        const int32_t x = a.interleaved ? 2 * i : i, y = a.interleaved ? 2 * i + 1 : i + n;
        const float2 cs = *reinterpret_cast<const float2 *>(
            a.angles + static_cast<int64_t>(token) * a.n_rotated + 2 * i);
        const float p = row[x], q = row[y];
        row[x] = __fadd_rn(__fmul_rn(p, cs.x), -__fmul_rn(q, cs.y));
        row[y] = __fadd_rn(__fmul_rn(q, cs.x), __fmul_rn(p, cs.y));
    }
}

/* Eight values of a row from d on. */
static __device__ __forceinline__ uint4 index_pack(const float *row, int32_t d)
{
    const float4 lo = *reinterpret_cast<const float4 *>(row + d);
    const float4 hi = *reinterpret_cast<const float4 *>(row + d + 4);
    return make_uint4(sl_pack_bf16(lo.x, lo.y), sl_pack_bf16(lo.z, lo.w), sl_pack_bf16(hi.x, hi.y),
                      sl_pack_bf16(hi.z, hi.w));
}

/* The RMSNorm of the row. */
static __device__ __forceinline__ void index_rms(const struct index_store_args &a, const float *w,
                                                 float *row)
{
    const int32_t d = INDEX_EACH * static_cast<int32_t>(threadIdx.x % 32);
    float x[INDEX_EACH], squares = 0.0f;
#pragma unroll
    for (int i = 0; i < INDEX_EACH; i++) {
        x[i] = d + i < a.dim ? row[d + i] : 0.0f;
        squares = __fmaf_rn(x[i], x[i], squares);
    }
    const float by = sl_norm_scale(sl_norm_sum_warp(squares), a.eps, a.dim);
#pragma unroll
    for (int i = 0; i < INDEX_EACH; i++)
        if (d + i < a.dim)
            row[d + i] = __fmul_rn(__fmul_rn(x[i], by), w[d + i]);
}

static __device__ __forceinline__ void index_query(const struct index_store_args &a, int32_t token,
                                                   int32_t head, float *row)
{
    const int32_t d = 8 * static_cast<int32_t>(threadIdx.x % 32);
    float *q = a.q + (static_cast<int64_t>(token) * a.n_heads + head) * a.dim;
    if (d < a.dim) {
        *reinterpret_cast<float4 *>(row + d) = *reinterpret_cast<const float4 *>(q + d);
        *reinterpret_cast<float4 *>(row + d + 4) =
            d + 4 < a.dim ? *reinterpret_cast<const float4 *>(q + d + 4) : make_float4(0, 0, 0, 0);
    }
    __syncwarp();
    if (a.q_norm != nullptr) {
        index_rms(a, a.q_norm, row);
        __syncwarp();
    }
    index_rotate(a, token, row + a.rotated_from);
    __syncwarp();
    if (d < a.dim)
        *reinterpret_cast<uint4 *>(reinterpret_cast<__nv_bfloat16 *>(q) + d) = index_pack(row, d);
}

/* The norm of the token's key, to row. */
static __device__ __forceinline__ void index_norm(const struct index_store_args &a, int32_t token,
                                                  float *row)
{
    const int32_t d = INDEX_EACH * static_cast<int32_t>(threadIdx.x % 32);
    const float *k = a.k + static_cast<int64_t>(token) * a.dim;
    float x[INDEX_EACH], sum = 0.0f, squares = 0.0f;
    if (a.bias == nullptr) {
#pragma unroll
        for (int i = 0; i < INDEX_EACH; i++)
            row[d + i] = d + i < a.dim ? k[d + i] : 0.0f;
        index_rms(a, a.norm, row); /* of the lane's own values */
        return;
    }
#pragma unroll
    for (int i = 0; i < INDEX_EACH; i++) {
        x[i] = d + i < a.dim ? k[d + i] : 0.0f;
        sum = __fadd_rn(sum, x[i]);
    }
    const float mean = __fdiv_rn(sl_norm_sum_warp(sum), static_cast<float>(a.dim));
#pragma unroll
    for (int i = 0; i < INDEX_EACH; i++) {
        x[i] = d + i < a.dim ? __fadd_rn(x[i], -mean) : 0.0f;
        squares = __fmaf_rn(x[i], x[i], squares);
    }
    const float by = sl_norm_scale(sl_norm_sum_warp(squares), a.eps, a.dim);
#pragma unroll
    for (int i = 0; i < INDEX_EACH; i++) /* zeros behind the end */
        row[d + i] =
            d + i < a.dim ? __fmaf_rn(__fmul_rn(x[i], by), a.norm[d + i], a.bias[d + i]) : 0.0f;
}

static __device__ __forceinline__ void index_key(const struct index_store_args &a, int32_t token,
                                                 float *row)
{
    const int32_t dim = (a.dim + 15) / 16 * 16, d = 8 * static_cast<int32_t>(threadIdx.x % 32);
    const int32_t unit = a.positions[token] / SL_KV_TILE, slot = a.positions[token] % SL_KV_TILE;
    const int32_t page = sl_attn_div(unit, a.by_page);
    uint8_t *tile =
        a.keys + static_cast<uint64_t>(a.tables[a.row_table[token] + page]) * a.page_bytes +
        static_cast<uint64_t>((unit - page * a.by_page.by) * sl_kv_bf16::tile_bytes(dim));
    index_norm(a, token, row);
    __syncwarp();
    index_rotate(a, token, row + a.rotated_from);
    __syncwarp();
    if (d < dim)
        *reinterpret_cast<uint4 *>(tile + sl_kv_piece(sl_kv_bf16::row_bytes(dim), slot, d / 8)) =
            index_pack(row, d);
}

static __global__ void __launch_bounds__(INDEX_WARPS * 32)
    index_store_kernel(const __grid_constant__ struct index_store_args a)
{
    SL_SMEM(float, rows);
    const int32_t token = static_cast<int32_t>(blockIdx.x);
    const int32_t warp = static_cast<int32_t>(threadIdx.x / 32);
    const int32_t i = static_cast<int32_t>(blockIdx.y * INDEX_WARPS) + warp;
    float *row = rows + warp * INDEX_DIM;
    sl_grid_launch_dependents();
    sl_grid_wait();
    if (i == 0)
        index_key(a, token, row);
    else if (i <= a.n_heads)
        index_query(a, token, i - 1, row);
}

extern "C" void sl_cuda_index_store(struct sl_backend *be, const struct sl_op_index_store *op)
{
    struct sl_cuda *cu = sl_cuda(be);
    const struct sl_batch *b = op->batch;
    if (op->kv.dtype != SL_DTYPE_BF16 || op->dim > INDEX_DIM || op->dim % 4 != 0 || op->dim < 8 ||
        op->n_heads > SL_DEVICE_INDEX_HEADS ||
        (op->rope != nullptr &&
         (op->rope_from + op->rope->n_dims > op->dim || op->rope->n_dims % 2 != 0))) {
        sl_cuda_check(cu, cudaErrorInvalidValue, "format or size of an index");
        return;
    }
    struct index_store_args a = {};
    a.q = op->q;
    a.k = op->k;
    a.norm = op->norm;
    a.bias = op->norm_bias;
    a.q_norm = op->q_norm;
    a.angles = op->rope != nullptr ? op->angles : nullptr;
    a.eps = op->eps;
    a.n_heads = op->n_heads;
    a.dim = op->dim;
    a.n_rotated = op->rope != nullptr ? op->rope->n_dims : 0;
    a.rotated_from = op->rope_from;
    a.interleaved = op->rope != nullptr && op->rope->pairing == SL_ROPE_INTERLEAVED;
    a.positions = b->positions;
    a.row_table = reinterpret_cast<const int32_t *>(cu->workspace + SL_ATTN_ROW_TABLE);
    a.tables = sl_batch_tables(b, op->kv.group);
    a.keys = op->kv.pool + op->kv.k_offset;
    a.page_bytes = op->kv.page_bytes;
    a.by_page = sl_attn_divisor_of(op->kv.block_size / SL_KV_TILE);
    const dim3 grid(static_cast<unsigned>(b->n_tokens),
                    static_cast<unsigned>(SL_CEIL_DIV(op->n_heads + 1, INDEX_WARPS)));
    sl_launch(cu, index_store_kernel, grid, dim3(INDEX_WARPS * 32),
              INDEX_WARPS * INDEX_DIM * sizeof(float), a);
    cu->plan_settled = true;
}
