/* SPDX-License-Identifier: MIT
 * kv_store.cu - queries and keys through their norm and rotation, queries back in place, keys and
 * values into the pages.
 *
 * A warp has one head of one token: the row goes through shared memory, because the partner of a
 * dimension in the rotation lies at any distance. The sum of squares: a lane adds the squares of
 * dimensions 4 lane .. 4 lane + 3, then those 128 further, as one chain of fma from +0; lanes are
 * added over distances 16, 8, 4, 2, 1. Everything else is as on the CPU: x * (1 / sqrt(sum / n +
 * eps)) * w with two roundings, rotation with separate multiplications and additions.
 *
 * Bytes of a token: (8 n_heads + 12 n_kv_heads) head_dim (q read and written, k and v read, written
 * at half the size): 59 KB for 32/8 heads of 128, so 8,192 tokens are 480 MB and 0.11 ms at the
 * copy rate of 4.3 TB/s. Predicted: 70 % of that; 2 to 3 us for a decode step, all latency.
 */
#include "cuda/attention.cuh"

#define STORE_WARPS 4
#define STORE_DIM   256 /* largest padded head */

struct store_args {
    float *q;
    const float *k, *v;
    int64_t ld_q, ld_k, ld_v;
    int32_t n_tokens, n_heads, n_kv_heads, head_dim;
    const float *q_norm, *k_norm;
    float eps;
    int32_t n_rotated; /* 0: no rotation */
    bool interleaved;
    const float *angles;
    const int32_t *positions, *row_table, *tables;
    uint8_t *keys, *values; /* the pool, at this layer's planes */
    uint64_t page_bytes;
    int32_t block_size;
};

static __device__ __forceinline__ float warp_sum(float x)
{
#pragma unroll
    for (int d = 16; d > 0; d /= 2)
        x = __fadd_rn(x, __shfl_xor_sync(0xFFFFFFFFu, x, d));
    return x;
}

/* The row to shared memory, normed if w is given, with zeros up to dim. */
static __device__ void load_row(const float *from, const float *w, float eps, int32_t head_dim,
                                int32_t dim, float *x)
{
    const int lane = static_cast<int>(threadIdx.x) % 32;
    float4 part[STORE_DIM / 128];
    float sum = 0.0f;
#pragma unroll
    for (int i = 0; i < STORE_DIM / 128; i++) {
        int d = lane * 4 + i * 128;
        part[i] = make_float4(0.0f, 0.0f, 0.0f, 0.0f);
        if (d < head_dim)
            part[i] = *reinterpret_cast<const float4 *>(from + d);
        sum = __fmaf_rn(part[i].x, part[i].x, sum);
        sum = __fmaf_rn(part[i].y, part[i].y, sum);
        sum = __fmaf_rn(part[i].z, part[i].z, sum);
        sum = __fmaf_rn(part[i].w, part[i].w, sum);
    }
    float scale = 1.0f;
    if (w != nullptr) {
        float mean = __fdiv_rn(warp_sum(sum), static_cast<float>(head_dim));
        scale = __fdiv_rn(1.0f, __fsqrt_rn(__fadd_rn(mean, eps)));
    }
#pragma unroll
    for (int i = 0; i < STORE_DIM / 128; i++) {
        int d = lane * 4 + i * 128;
        if (d >= dim)
            continue;
        float4 y = part[i];
        if (w != nullptr && d < head_dim) {
            const float4 f = *reinterpret_cast<const float4 *>(w + d);
            y.x = __fmul_rn(__fmul_rn(y.x, scale), f.x);
            y.y = __fmul_rn(__fmul_rn(y.y, scale), f.y);
            y.z = __fmul_rn(__fmul_rn(y.z, scale), f.z);
            y.w = __fmul_rn(__fmul_rn(y.w, scale), f.w);
        }
        *reinterpret_cast<float4 *>(x + d) = y;
    }
    __syncwarp();
}

static __device__ void rotate_row(const struct store_args &a, int32_t token, float *x)
{
    const int32_t n = a.n_rotated / 2;
    const float *angles = a.angles + static_cast<int64_t>(token) * a.n_rotated;
    for (int32_t i = static_cast<int32_t>(threadIdx.x % 32); i < n; i += 32) {
        int32_t at = a.interleaved ? 2 * i : i, to = a.interleaved ? 2 * i + 1 : i + n;
        const float2 cs = *reinterpret_cast<const float2 *>(angles + 2 * i);
        float p = x[at], q = x[to];
        x[at] = __fadd_rn(__fmul_rn(p, cs.x), -__fmul_rn(q, cs.y));
        x[to] = __fadd_rn(__fmul_rn(q, cs.x), __fmul_rn(p, cs.y));
    }
    __syncwarp();
}

/* The row, rounded, to a position's row of a plane. */
static __device__ void store_row(const struct store_args &a, int32_t token, int32_t kv_head,
                                 int32_t dim, const float *x, uint8_t *plane)
{
    int32_t pos = a.positions[token];
    int32_t page = a.tables[a.row_table[token] + pos / a.block_size];
    uint8_t *to = plane + static_cast<uint64_t>(page) * a.page_bytes +
                  (static_cast<uint64_t>(sl_kv_tile_at(kv_head, a.block_size, pos)) * SL_KV_TILE +
                   static_cast<uint64_t>(pos % SL_KV_TILE)) *
                      static_cast<uint64_t>(sl_kv_bf16::row_bytes(dim));
    int d = static_cast<int>(threadIdx.x % 32) * 8;
    if (d >= dim)
        return;
    float4 lo = *reinterpret_cast<const float4 *>(x + d);
    float4 hi = *reinterpret_cast<const float4 *>(x + d + 4);
    *reinterpret_cast<uint4 *>(to + d * 2) =
        make_uint4(sl_pack_bf16(lo.x, lo.y), sl_pack_bf16(lo.z, lo.w), sl_pack_bf16(hi.x, hi.y),
                   sl_pack_bf16(hi.z, hi.w));
}

static __global__ void __launch_bounds__(STORE_WARPS * 32) store_kernel(const struct store_args a)
{
    SL_SMEM(float, smem);
    const int32_t warp = static_cast<int32_t>(threadIdx.x / 32);
    const int32_t lane = static_cast<int32_t>(threadIdx.x % 32);
    const int32_t per_token = a.n_heads + 2 * a.n_kv_heads, dim = (a.head_dim + 15) / 16 * 16;
    const int64_t n = static_cast<int64_t>(a.n_tokens) * per_token;
    float *x = smem + warp * STORE_DIM;
    sl_grid_wait();
    for (int64_t i = static_cast<int64_t>(blockIdx.x) * STORE_WARPS + warp; i < n;
         i += static_cast<int64_t>(gridDim.x) * STORE_WARPS) {
        int32_t token = static_cast<int32_t>(i / per_token);
        int32_t h = static_cast<int32_t>(i % per_token), kv = h - a.n_heads;
        if (kv >= a.n_kv_heads) {
            kv -= a.n_kv_heads;
            const float *v = a.v + token * a.ld_v + static_cast<int64_t>(kv) * a.head_dim;
            load_row(v, nullptr, 0.0f, a.head_dim, dim, x);
            store_row(a, token, kv, dim, x, a.values);
        } else if (kv >= 0) {
            const float *k = a.k + token * a.ld_k + static_cast<int64_t>(kv) * a.head_dim;
            load_row(k, a.k_norm, a.eps, a.head_dim, dim, x);
            rotate_row(a, token, x);
            store_row(a, token, kv, dim, x, a.keys);
        } else {
            float *q = a.q + token * a.ld_q + static_cast<int64_t>(h) * a.head_dim;
            load_row(q, a.q_norm, a.eps, a.head_dim, dim, x);
            rotate_row(a, token, x);
            for (int32_t d = lane * 4; d < a.head_dim; d += 128)
                *reinterpret_cast<float4 *>(q + d) = *reinterpret_cast<const float4 *>(x + d);
        }
        __syncwarp(); /* x is written anew */
    }
    sl_grid_launch_dependents();
}

void sl_cuda_qk_norm_rope_kv_store(struct sl_backend *be,
                                   const struct sl_op_qk_norm_rope_kv_store *op)
{
    struct sl_cuda *cu = sl_cuda(be);
    const struct sl_batch *b = op->batch;
    if (op->kv.dtype != SL_DTYPE_BF16 || !sl_cuda_attention_supports(op->head_dim, 1)) {
        sl_cuda_check(cu, cudaErrorInvalidValue, "format or head of the pages");
        return;
    }
    struct store_args a = {};
    a.q = op->q;
    a.k = op->k;
    a.v = op->v;
    a.ld_q = op->ld_q;
    a.ld_k = op->ld_k;
    a.ld_v = op->ld_v;
    a.n_tokens = b->n_tokens;
    a.n_heads = op->n_heads;
    a.n_kv_heads = op->n_kv_heads;
    a.head_dim = op->head_dim;
    a.q_norm = op->q_norm;
    a.k_norm = op->k_norm;
    a.eps = op->eps;
    if (op->rope != nullptr) {
        a.n_rotated = op->rope->n_dims;
        a.interleaved = op->rope->pairing == SL_ROPE_INTERLEAVED;
        a.angles = op->angles;
    }
    a.positions = b->positions;
    a.row_table = reinterpret_cast<const int32_t *>(cu->workspace + SL_ATTN_ROW_TABLE);
    a.tables = b->block_tables;
    a.keys = op->kv.pool + op->kv.k_offset;
    a.values = op->kv.pool + op->kv.v_offset;
    a.page_bytes = op->kv.page_bytes;
    a.block_size = op->kv.block_size;
    int64_t rows = static_cast<int64_t>(b->n_tokens) * (op->n_heads + 2 * op->n_kv_heads);
    int64_t blocks = SL_MIN(SL_CEIL_DIV(rows, STORE_WARPS), static_cast<int64_t>(cu->n_sms) * 16);
    sl_launch(cu, store_kernel, dim3(static_cast<unsigned>(blocks)), dim3(STORE_WARPS * 32),
              STORE_WARPS * STORE_DIM * sizeof(float), a);
}
