/* SPDX-License-Identifier: MIT
 * kv_store.cu - queries and keys through their norm and rotation, queries back in place, keys and
 * values into the pages. Where these are F16, which has no larger number, a finite query is at most
 * 65504.
 *
 * A warp has one head of one token: the row goes through shared memory, because the partner of a
 * dimension in the rotation lies at any distance. The sum of squares: a lane adds the squares of
 * dimensions 4 lane .. 4 lane + 3, then those 128 further, as one chain of fma from +0; lanes are
 * added over distances 16, 8, 4, 2, 1. Everything else is as on the CPU: x * (1 / sqrt(sum / n +
 * eps)) * w with two roundings, rotation with separate multiplications and additions.
 *
 * For a few tokens everything is latency: where a row goes is looked up before the wait for the
 * kernel ahead, and row, angles and norm are loaded at once behind it.
 *
 * Bytes of a token: (8 n_heads + 12 n_kv_heads) head_dim (q read and written, k and v read, written
 * at half the size): 59 KB for 32/8 heads of 128, so 8,192 tokens are 480 MB and 0.11 ms at the
 * copy rate of 4.3 TB/s. Predicted: 70 % of that; 1.5 to 2 us for a decode step.
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
    struct sl_attn_divisor by_page; /* of 16 positions */
    bool early; /* the row table was complete before the kernel ahead of this one began */
};

static __device__ __forceinline__ float warp_sum(float x)
{
#pragma unroll
    for (int d = 16; d > 0; d /= 2)
        x = __fadd_rn(x, __shfl_xor_sync(0xFFFFFFFFu, x, d));
    return x;
}

#define STORE_PARTS (STORE_DIM / 128) /* of a row, four dimensions of each a lane's */
#define STORE_PAIRS (STORE_DIM / 64)  /* that a lane rotates */

/* Four dimensions, zeros behind the end. */
static __device__ __forceinline__ float4 load_part(const float *row, int32_t part, int32_t head_dim)
{
    const int32_t d = static_cast<int32_t>(threadIdx.x % 32) * 4 + part * 128;
    return row != nullptr && d < head_dim ? *reinterpret_cast<const float4 *>(row + d)
                                          : make_float4(0.0f, 0.0f, 0.0f, 0.0f);
}

/* The row normed with weights w. */
static __device__ __forceinline__ void norm_row(float4 x[STORE_PARTS], const float4 w[STORE_PARTS],
                                                float eps, int32_t head_dim)
{
    float sum = 0.0f;
#pragma unroll
    for (int i = 0; i < STORE_PARTS; i++) {
        sum = __fmaf_rn(x[i].x, x[i].x, sum);
        sum = __fmaf_rn(x[i].y, x[i].y, sum);
        sum = __fmaf_rn(x[i].z, x[i].z, sum);
        sum = __fmaf_rn(x[i].w, x[i].w, sum);
    }
    float mean = __fdiv_rn(warp_sum(sum), static_cast<float>(head_dim));
    float scale = __fdiv_rn(1.0f, __fsqrt_rn(__fadd_rn(mean, eps)));
#pragma unroll
    for (int i = 0; i < STORE_PARTS; i++) {
        x[i].x = __fmul_rn(__fmul_rn(x[i].x, scale), w[i].x);
        x[i].y = __fmul_rn(__fmul_rn(x[i].y, scale), w[i].y);
        x[i].z = __fmul_rn(__fmul_rn(x[i].z, scale), w[i].z);
        x[i].w = __fmul_rn(__fmul_rn(x[i].w, scale), w[i].w);
    }
}

/* The row in shared memory; cs: cosine and sine of pairs lane, lane + 32, .. */
static __device__ __forceinline__ void rotate_row(const struct store_args &a,
                                                  const float2 cs[STORE_PAIRS], float *x)
{
    const int32_t n = a.n_rotated / 2, lane = static_cast<int32_t>(threadIdx.x % 32);
#pragma unroll
    for (int k = 0; k < STORE_PAIRS; k++) {
        int32_t i = lane + 32 * k;
        if (i >= n)
            break;
        int32_t at = a.interleaved ? 2 * i : i, to = a.interleaved ? 2 * i + 1 : i + n;
        float p = x[at], q = x[to];
        x[at] = __fadd_rn(__fmul_rn(p, cs[k].x), -__fmul_rn(q, cs[k].y));
        x[to] = __fadd_rn(__fmul_rn(q, cs[k].x), __fmul_rn(p, cs[k].y));
    }
    __syncwarp();
}

/* Where a token's row of a key head lies: its 16 positions in a plane, and which of them. */
struct store_place {
    uint64_t tile;
    int32_t slot;
};

template <class KV>
static __device__ __forceinline__ struct store_place place_of(const struct store_args &a,
                                                              int32_t token, int32_t kv_head,
                                                              int32_t dim)
{
    int32_t pos = a.positions[token], table = a.row_table[token];
    int32_t unit = pos / SL_KV_TILE, page_idx = sl_attn_div(unit, a.by_page);
    int32_t tile = unit + (kv_head - page_idx) * a.by_page.by;
    struct store_place p;
    p.tile = static_cast<uint64_t>(a.tables[table + page_idx]) * a.page_bytes +
             static_cast<uint64_t>(tile) * static_cast<uint64_t>(KV::tile_bytes(dim));
    p.slot = pos % SL_KV_TILE;
    return p;
}

/* What a warp has of each token: head h of queries, keys (from n_heads on) or values. */
struct store_head {
    float *q; /* of token 0, or NULL */
    const float *from;
    int64_t ld;
    const float *norm; /* or NULL */
    uint8_t *plane;    /* NULL for queries */
    int32_t kv;
    bool rotated;
};

static __device__ __forceinline__ struct store_head head_of(const struct store_args &a, int32_t h)
{
    struct store_head r = {};
    int32_t kv = h - a.n_heads;
    if (kv < 0) {
        r.q = a.q + static_cast<int64_t>(h) * a.head_dim;
        r.from = r.q;
        r.ld = a.ld_q;
        r.norm = a.q_norm;
    } else {
        bool key = kv < a.n_kv_heads;
        r.kv = key ? kv : kv - a.n_kv_heads;
        r.from = (key ? a.k : a.v) + static_cast<int64_t>(r.kv) * a.head_dim;
        r.ld = key ? a.ld_k : a.ld_v;
        r.norm = key ? a.k_norm : nullptr;
        r.plane = key ? a.keys : a.values;
    }
    r.rotated = a.n_rotated > 0 && kv < a.n_kv_heads;
    return r;
}

/* A token's row, where: of keys and values. */
template <class KV>
static __device__ __forceinline__ void store_token(const struct store_args &a,
                                                   const struct store_head &r, int32_t token,
                                                   const float4 w[STORE_PARTS],
                                                   const struct store_place &where, float *x)
{
    const int32_t lane = static_cast<int32_t>(threadIdx.x % 32), dim = (a.head_dim + 15) / 16 * 16;
    float4 part[STORE_PARTS];
    float2 cs[STORE_PAIRS];
#pragma unroll
    for (int i = 0; i < STORE_PARTS; i++)
        part[i] = load_part(r.from + token * r.ld, i, a.head_dim);
    const float2 *angles =
        reinterpret_cast<const float2 *>(a.angles + static_cast<int64_t>(token) * a.n_rotated);
#pragma unroll
    for (int k = 0; k < STORE_PAIRS; k++)
        cs[k] = r.rotated && lane + 32 * k < a.n_rotated / 2 ? angles[lane + 32 * k]
                                                             : make_float2(0.0f, 0.0f);
    if (r.norm != nullptr)
        norm_row(part, w, a.eps, a.head_dim);
#pragma unroll
    for (int i = 0; i < STORE_PARTS; i++)
        if (lane * 4 + i * 128 < dim)
            *reinterpret_cast<float4 *>(x + lane * 4 + i * 128) = part[i];
    __syncwarp();
    if (r.rotated)
        rotate_row(a, cs, x);
    if (r.plane != nullptr) {
        KV::store(x, dim, r.plane + where.tile, where.slot);
        return;
    }
#pragma unroll
    for (int i = 0; i < STORE_PARTS; i++)
        if (lane * 4 + i * 128 < a.head_dim)
            *reinterpret_cast<float4 *>(r.q + token * r.ld + lane * 4 + i * 128) =
                sl_kv_bounded<typename KV::elem>(
                    *reinterpret_cast<const float4 *>(x + lane * 4 + i * 128));
}

template <class KV>
static __global__ void __launch_bounds__(STORE_WARPS * 32)
    store_kernel(const __grid_constant__ struct store_args a)
{
    SL_SMEM(float, smem);
    const int32_t warp = static_cast<int32_t>(threadIdx.x / 32);
    const int32_t h = static_cast<int32_t>(blockIdx.x) * STORE_WARPS + warp;
    const int32_t dim = (a.head_dim + 15) / 16 * 16;
    const struct store_head r = head_of(a, h);
    const bool any = h < a.n_heads + 2 * a.n_kv_heads;
    int32_t token = static_cast<int32_t>(blockIdx.y);
    float *x = smem + warp * STORE_DIM;
    float4 w[STORE_PARTS];
    struct store_place where = {0, 0};
    sl_grid_launch_dependents();
#pragma unroll
    for (int i = 0; i < STORE_PARTS; i++)
        w[i] = load_part(any ? r.norm : nullptr, i, a.head_dim);
    if (!a.early)
        sl_grid_wait();
    if (any && r.plane != nullptr)
        where = place_of<KV>(a, token, r.kv, dim);
    sl_grid_wait();
    if (!any)
        return;
#pragma unroll 1
    for (;;) {
        store_token<KV>(a, r, token, w, where, x);
        token += static_cast<int32_t>(gridDim.y);
        if (token >= a.n_tokens)
            return;
        if (r.plane != nullptr)
            where = place_of<KV>(a, token, r.kv, dim);
        __syncwarp(); /* x is written anew */
    }
}

static decltype(&store_kernel<sl_kv_bf16>) kernel_of(enum sl_dtype dtype)
{
    switch (dtype) {
    case SL_DTYPE_F16:
        return store_kernel<sl_kv_f16>;
    case SL_DTYPE_FP8_E4M3:
        return store_kernel<sl_kv_fp8>;
    default:
        return store_kernel<sl_kv_bf16>;
    }
}

void sl_cuda_qk_norm_rope_kv_store(struct sl_backend *be,
                                   const struct sl_op_qk_norm_rope_kv_store *op)
{
    struct sl_cuda *cu = sl_cuda(be);
    const struct sl_batch *b = op->batch;
    if (!sl_cuda_attention_pages(op->kv.dtype) || !sl_cuda_attention_supports(op->head_dim, 1)) {
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
    a.by_page = sl_attn_divisor_of(op->kv.block_size / SL_KV_TILE);
    a.early = cu->plan_settled;
    int32_t across = SL_CEIL_DIV(op->n_heads + 2 * op->n_kv_heads, STORE_WARPS);
    int32_t down = SL_MIN(b->n_tokens, SL_MAX(cu->n_sms * 16 / across, 1));
    sl_launch(cu, kernel_of(op->kv.dtype),
              dim3(static_cast<unsigned>(across), static_cast<unsigned>(down)),
              dim3(STORE_WARPS * 32), STORE_WARPS * STORE_DIM * sizeof(float), a);
    cu->plan_settled = true;
}
