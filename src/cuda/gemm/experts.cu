/* SPDX-License-Identifier: MIT
 * Mixtures of experts: the choice of experts, and products of rows grouped by expert.
 *
 * Nothing of this comes back to the host, so that a step with experts can be recorded: the grids
 * are as large as the most rows could want, and blocks of experts without rows end at once.
 *
 *   route    a warp a row
 *   sort     one block: where the pairs (row, place) of each expert begin, and which they are.
 * Their order inside an expert is any; no result depends on it up       a block for 16 rows of an
 * expert's gate and up, straight from memory as linear_direct.cuh has it: four warps with a quarter
 * of the columns each, 32 pairs at a time. act(gate) * up as BF16, by sorted place down     the
 * same of down; float, by pair combine  each row adds its experts in ascending order
 *
 * A row's bits depend on the row, on its experts and on nothing else: columns are split in four
 * whatever the number of pairs is. Rows pass in slabs of SLAB, which bounds the scratch.
 */
#include "cuda/gemm/weight_format.cuh"
#include "cuda/launch.cuh"
#include "cuda/math.cuh"

#include <math.h>

#define SLAB        1024 /* rows at a time */
#define MAX_EXPERTS 1024
#define MAX_TOP_K   32
#define SORT_BLOCK  1024
#define WARPS       4 /* of a product's block, with a part of the columns each */
#define TILES       4 /* eights of pairs at a time */
#define ROUTE_WARPS 4

/* ------------------------------------------------------------------ route */

struct choice {
    float logit;
    int32_t expert; /* -1: none */
};

/* Of equal logits the lower index; what is not a number comes behind all numbers. */
static __device__ __forceinline__ bool is_better(const choice &a, const choice &b)
{
    if (a.expert < 0 || b.expert < 0)
        return a.expert >= 0;
    const bool a_nan = isnan(a.logit), b_nan = isnan(b.logit);
    if (a_nan || b_nan)
        return a_nan == b_nan ? a.expert < b.expert : b_nan;
    return a.logit > b.logit || (a.logit == b.logit && a.expert < b.expert);
}

static __device__ __forceinline__ choice best_of_warp(choice c)
{
#pragma unroll
    for (int m = 16; m > 0; m /= 2) {
        choice o = {__shfl_xor_sync(0xffffffffu, c.logit, m),
                    __shfl_xor_sync(0xffffffffu, c.expert, m)};
        if (is_better(o, c))
            c = o;
    }
    return c;
}

/* A lane has the experts lane, lane + 32, ...; a bit of `taken` each. */
static __global__ void route_kernel(const sl_op_route a)
{
    const int lane = static_cast<int>(threadIdx.x % 32);
    const int32_t t = static_cast<int32_t>(blockIdx.x * ROUTE_WARPS + threadIdx.x / 32);
    sl_grid_wait();
    if (t >= a.n)
        return;
    const float *logits = a.logits + static_cast<int64_t>(t) * a.n_experts;
    uint32_t taken = 0;
    float first = 0.0f, sum = 0.0f, mine = 0.0f;
    for (int32_t s = 0; s < a.top_k; s++) {
        choice c = {0.0f, -1};
        for (int32_t e = lane, i = 0; e < a.n_experts; e += 32, i++) {
            const choice o = {logits[e], e};
            if ((taken >> i & 1) == 0 && is_better(o, c))
                c = o;
        }
        c = best_of_warp(c);
        first = s == 0 ? c.logit : first;
        if (c.expert % 32 == lane)
            taken |= 1u << c.expert / 32;
        const float w = sl_exp(__fsub_rn(c.logit, first));
        sum = __fadd_rn(sum, w);
        mine = s == lane ? w : mine;
        if (lane == 0)
            a.experts[static_cast<int64_t>(t) * a.top_k + s] = c.expert;
    }
    if (!a.renormalize) {
        sum = 0.0f; /* in the order the CPU has */
        for (int32_t e = 0; e < a.n_experts; e++)
            sum = __fadd_rn(sum, sl_exp(__fsub_rn(logits[e], first)));
    }
    if (lane < a.top_k)
        a.weights[static_cast<int64_t>(t) * a.top_k + lane] = __fdiv_rn(mine, sum);
}

extern "C" void sl_cuda_route(struct sl_backend *be, const struct sl_op_route *a)
{
    SL_ASSERT(a->top_k >= 1 && a->top_k <= MAX_TOP_K && a->top_k <= a->n_experts);
    SL_ASSERT(a->n_experts <= MAX_EXPERTS);
    sl_launch(sl_cuda(be), route_kernel, dim3((unsigned)SL_CEIL_DIV(a->n, ROUTE_WARPS)),
              dim3(32 * ROUTE_WARPS), 0, *a);
}

/* ------------------------------------------------------------------ stacks */

extern "C" int sl_cuda_stack_create(struct sl_backend *be, const struct sl_weight *mats, int32_t n,
                                    struct sl_stack *out, struct sl_error *err)
{
    struct sl_cuda *cu = sl_cuda(be);
    const void *streams[MAX_EXPERTS];
    *out = {};
    if (n > MAX_EXPERTS)
        return sl_fail(err, SL_EUNSUPPORTED, "%d experts: a GPU runs up to %d", n, MAX_EXPERTS);
    if (mats[0].n_cols % 8 != 0)
        return sl_fail(err, SL_EUNSUPPORTED, "experts with %lld columns: a GPU runs multiples of 8",
                       (long long)mats[0].n_cols);
    for (int32_t i = 0; i < n; i++) {
        if (mats[i].layout != mats[0].layout || mats[i].layout == SL_CUDA_ROWS ||
            mats[i].layout == SL_CUDA_W8A8)
            return sl_fail(err, SL_EUNSUPPORTED, "experts in formats that a GPU does not mix");
        SL_ASSERT(mats[i].n_rows == mats[0].n_rows && mats[i].n_cols == mats[0].n_cols);
        streams[i] = mats[i].data;
    }
    const size_t n_bytes = (size_t)n * sizeof streams[0];
    void *table = sl_cuda_alloc(cu, n_bytes);
    if (table == NULL)
        return sl_cuda_no_memory(cu, n_bytes, "a table of experts", err);
    sl_cuda_stage(cu, table, streams, n_bytes);
    *out = {mats, n, table};
    return 0;
}

extern "C" void sl_cuda_stack_destroy(struct sl_backend *be, struct sl_stack *s)
{
    sl_cuda_free(sl_cuda(be), s->table, (size_t)s->n * sizeof(void *));
    *s = {};
}

/* ------------------------------------------------------------------ sort */

struct pairs_of {   /* of a slab */
    int32_t *first; /* [E + 1] */
    int32_t *pair;  /* [n * top_k] row * top_k + place */
};

static __global__ void __launch_bounds__(SORT_BLOCK)
    sort_kernel(const int32_t *experts, int32_t n_pairs, int32_t n_experts, const pairs_of out)
{
    SL_SMEM(int32_t, place); /* [E + 1] counts, then where the next pair goes */
    const int32_t thread = static_cast<int32_t>(threadIdx.x);
    sl_grid_wait();
    for (int32_t e = thread; e <= n_experts; e += SORT_BLOCK)
        place[e] = 0;
    __syncthreads();
    for (int32_t p = thread; p < n_pairs; p += SORT_BLOCK)
        atomicAdd(&place[experts[p] + 1], 1);
    __syncthreads();
    if (thread == 0)
        for (int32_t e = 0; e < n_experts; e++)
            place[e + 1] += place[e];
    __syncthreads();
    for (int32_t e = thread; e <= n_experts; e += SORT_BLOCK)
        out.first[e] = place[e];
    __syncthreads();
    for (int32_t p = thread; p < n_pairs; p += SORT_BLOCK)
        out.pair[atomicAdd(&place[experts[p]], 1)] = p;
}

/* ------------------------------------------------------------------ products */

struct product {
    const void *const *gate, *const *up; /* [E] streams; up NULL: a plain product, of gate */
    const __nv_bfloat16 *x;              /* rows k apart */
    int32_t n_rows, k;
    int32_t top_k; /* x's row of a pair is pair / top_k; 0: its sorted place */
    const float *bias, *up_bias; /* [E, n_rows] or NULL */
    enum sl_act act;
    sl_swiglu swiglu;
    pairs_of pairs;
    __nv_bfloat16 *mid; /* [sorted place, n_rows] with up */
    float *out;         /* [pair, n_rows] without */
};

/* The products of 16 rows of an expert with 8 * TILES pairs, over a warp's part of the columns. */
template <class F>
static __device__ __forceinline__ void multiply(float (&acc)[TILES][4], const product &a,
                                                const uint8_t *stream,
                                                const __nv_bfloat16 *const (&x)[TILES])
{
    constexpr int subs = F::unit_k / 64;
    const int lane = static_cast<int>(threadIdx.x % 32), warp = static_cast<int>(threadIdx.x / 32);
    const int32_t n_units = (a.k + F::unit_k - 1) / F::unit_k;
    const int32_t from = n_units * warp / WARPS, to = n_units * (warp + 1) / WARPS;
    for (int32_t step = from * subs; step < to * subs; step++) {
        typename F::raw raw;
        F::template load<true>(raw, stream + static_cast<int64_t>(step / subs) * F::unit_bytes,
                               step % subs, lane);
#pragma unroll
        for (int j = 0; j < 4; j++) {
            const int32_t col = 64 * step + 16 * j + 2 * (lane % 4);
            uint32_t w[4];
            F::frag(raw, j, w);
#pragma unroll
            for (int t = 0; t < TILES; t++) {
                uint32_t b[2];
#pragma unroll
                for (int h = 0; h < 2; h++)
                    b[h] = x[t] != nullptr && col + 8 * h < a.k
                               ? *reinterpret_cast<const uint32_t *>(x[t] + col + 8 * h)
                               : 0;
                sl_mma_bf16(acc[t], w, b);
            }
        }
    }
    sl_wf_restore<F>(acc);
}

/* Element i of tile t of this lane: row and pair of the block. */
static __device__ __forceinline__ int row_of(int i)
{
    return static_cast<int>(threadIdx.x % 32) / 4 + 8 * (i / 2);
}

static __device__ __forceinline__ int pair_of(int t, int i)
{
    return 8 * t + 2 * (static_cast<int>(threadIdx.x) % 4) + i % 2;
}

/* Adds up the warps' parts in their order; the sums are in the first warp. */
static __device__ __forceinline__ void add_parts(float (&acc)[TILES][4], float *room)
{
    const int lane = static_cast<int>(threadIdx.x % 32), warp = static_cast<int>(threadIdx.x / 32);
    __syncthreads();
    if (warp > 0) {
#pragma unroll
        for (int i = 0; i < 4 * TILES; i++)
            room[((warp - 1) * 4 * TILES + i) * 32 + lane] = acc[i / 4][i % 4];
    }
    __syncthreads();
    if (warp > 0)
        return;
    for (int w = 0; w < WARPS - 1; w++) {
#pragma unroll
        for (int i = 0; i < 4 * TILES; i++)
            acc[i / 4][i % 4] = __fadd_rn(acc[i / 4][i % 4], room[(w * 4 * TILES + i) * 32 + lane]);
    }
}

static __device__ __forceinline__ float biased(float v, const float *bias, int64_t at)
{
    return bias != nullptr ? __fadd_rn(v, bias[at]) : v;
}

/* As the CPU's swiglu, in the same steps. */
static __device__ __forceinline__ float gated(const product &a, float gate, float up)
{
    const float limit = a.swiglu.limit;
    if (limit <= 0.0f)
        return __fmul_rn(sl_act(a.act, gate), up);
    const float g = gate > limit ? limit : gate; /* NaN stays */
    const float u = up > limit ? limit : up < -limit ? -limit : up;
    const float d = __fadd_rn(1.0f, sl_exp(-__fmul_rn(g, a.swiglu.alpha)));
    return __fmul_rn(__fdiv_rn(g, d), __fadd_rn(u, a.swiglu.up_plus));
}

#define ROOM_BYTES ((WARPS - 1) * 4 * TILES * 32 * (int)sizeof(float))

template <class F, bool GATED>
static __device__ __forceinline__ void product_of(const product &a, int32_t e, int32_t block,
                                                  int32_t at, int32_t end, float *room)
{
    const int lane = static_cast<int>(threadIdx.x % 32);
    const int64_t offset =
        block * F::unit_bytes * sl_cuda_row_units((a.k + F::unit_k - 1) / F::unit_k, F::unit_bytes);
    const __nv_bfloat16 *x[TILES];
    float acc[TILES][4] = {}, other[TILES][4] = {};
#pragma unroll
    for (int t = 0; t < TILES; t++) {
        const int32_t place = at + 8 * t + lane / 4;
        x[t] = nullptr;
        if (place < end)
            x[t] = a.x +
                   static_cast<int64_t>(a.top_k > 0 ? a.pairs.pair[place] / a.top_k : place) * a.k;
    }
    multiply<F>(acc, a, static_cast<const uint8_t *>(a.gate[e]) + offset, x);
    add_parts(acc, room);
    if (GATED) {
        multiply<F>(other, a, static_cast<const uint8_t *>(a.up[e]) + offset, x);
        add_parts(other, room);
    }
    if (threadIdx.x >= 32)
        return;
#pragma unroll
    for (int i = 0; i < 4 * TILES; i++) {
        const int32_t place = at + pair_of(i / 4, i % 4);
        const int32_t row = block * SL_CUDA_ROW_BLOCK + row_of(i % 4);
        if (place >= end || row >= a.n_rows)
            continue;
        const int64_t param = static_cast<int64_t>(e) * a.n_rows + row;
        const float v = biased(acc[i / 4][i % 4], a.bias, param);
        if (GATED)
            a.mid[static_cast<int64_t>(place) * a.n_rows + row] = __float2bfloat16_rn(
                gated(a, v, biased(other[i / 4][i % 4], a.up_bias, param)));
        else
            a.out[static_cast<int64_t>(a.pairs.pair[place]) * a.n_rows + row] = v;
    }
}

template <class F, bool GATED>
static __global__ void __launch_bounds__(32 * WARPS) product_kernel(const product a)
{
    SL_SMEM(float, room);
    const int32_t block = static_cast<int32_t>(blockIdx.x), e = static_cast<int32_t>(blockIdx.y);
    sl_grid_wait();
    const int32_t end = a.pairs.first[e + 1];
    for (int32_t at = a.pairs.first[e]; at < end; at += 8 * TILES)
        product_of<F, GATED>(a, e, block, at, end, room);
}

template <class F>
static void launch_format(struct sl_cuda *cu, const product &a, int32_t n_experts)
{
    const dim3 grid((unsigned)SL_CEIL_DIV(a.n_rows, SL_CUDA_ROW_BLOCK), (unsigned)n_experts);
    if (a.up != nullptr)
        sl_launch(cu, product_kernel<F, true>, grid, dim3(32 * WARPS), ROOM_BYTES, a);
    else
        sl_launch(cu, product_kernel<F, false>, grid, dim3(32 * WARPS), ROOM_BYTES, a);
}

static void launch_product(struct sl_cuda *cu, int32_t layout, const product &a, int32_t n_experts)
{
    switch (layout) {
#define FORMAT(id, name)                               \
    case SL_CUDA_##id:                                 \
        launch_format<sl_wf_##name>(cu, a, n_experts); \
        return;
        FORMAT(BF16, bf16)
        FORMAT(Q8_0, q8_0)
        FORMAT(Q4_0, q4_0)
        FORMAT(Q4_K, q4_k)
        FORMAT(Q5_K, q5_k)
        FORMAT(Q6_K, q6_k)
        FORMAT(FP8, fp8)
        FORMAT(INT4_G128, int4_g128)
        FORMAT(INT4_G32, int4_g32)
#undef FORMAT
    default:
        SL_ASSERT(false); /* stack_create refuses it */
    }
}

/* ------------------------------------------------------------------ combine */

static __global__ void combine_kernel(const int32_t *experts, const float *weights, const float *y,
                                      int32_t top_k, int32_t h, float *out)
{
    SL_SMEM(int32_t, order); /* [top_k] places by ascending expert */
    const int64_t t = blockIdx.x;
    const int32_t s = static_cast<int32_t>(threadIdx.x);
    sl_grid_wait();
    if (s < top_k) {
        int32_t n_before = 0;
        for (int32_t o = 0; o < top_k; o++)
            n_before += experts[t * top_k + o] < experts[t * top_k + s];
        order[n_before] = s;
    }
    __syncthreads();
    for (int32_t i = s; i < h; i += static_cast<int32_t>(blockDim.x)) {
        float sum = 0.0f;
        for (int32_t o = 0; o < top_k; o++) {
            const int64_t pair = t * top_k + order[o];
            sum = __fadd_rn(sum, __fmul_rn(weights[pair], y[pair * h + i]));
        }
        out[t * h + i] = sum;
    }
}

/* ------------------------------------------------------------------ experts */

struct room_of { /* the scratch, in its parts */
    size_t pair, mid, y, n_bytes;
};

static struct room_of room_for(int32_t n, int32_t n_experts, int32_t top_k, int64_t h, int64_t i)
{
    const size_t pairs = (size_t)SL_MIN(n, SLAB) * (size_t)top_k, align = 256;
    struct room_of r;
    r.pair = SL_ROUND_UP(((size_t)n_experts + 1) * sizeof(int32_t), align);
    r.mid = r.pair + SL_ROUND_UP(pairs * sizeof(int32_t), align);
    r.y = r.mid + SL_ROUND_UP(pairs * (size_t)i * sizeof(__nv_bfloat16), align);
    r.n_bytes = r.y + pairs * (size_t)h * sizeof(float);
    return r;
}

extern "C" size_t sl_cuda_experts_bytes(struct sl_backend *be, int32_t n, int32_t n_experts,
                                        int32_t top_k, int64_t hidden, int64_t intermediate)
{
    (void)be;
    return room_for(n, n_experts, top_k, hidden, intermediate).n_bytes;
}

static const void *const *streams_of(const struct sl_stack *s)
{
    return static_cast<const void *const *>(s->table);
}

static void run_slab(struct sl_cuda *cu, const struct sl_op_experts *a, int32_t from, int32_t n)
{
    const struct sl_weight *gate = &a->gate->mats[0], *down = &a->down->mats[0];
    const int32_t n_experts = a->gate->n, h = (int32_t)gate->n_cols, i = (int32_t)gate->n_rows;
    const struct room_of r = room_for(n, n_experts, a->top_k, h, i);
    uint8_t *at = static_cast<uint8_t *>(a->scratch);
    const int32_t *experts = a->experts + (int64_t)from * a->top_k;
    const pairs_of pairs = {reinterpret_cast<int32_t *>(at),
                            reinterpret_cast<int32_t *>(at + r.pair)};
    __nv_bfloat16 *mid = reinterpret_cast<__nv_bfloat16 *>(at + r.mid);
    float *y = reinterpret_cast<float *>(at + r.y);
    sl_launch(cu, sort_kernel, dim3(1), dim3(SORT_BLOCK), (size_t)(n_experts + 1) * sizeof(int32_t),
              experts, n * a->top_k, n_experts, pairs);
    product p = {streams_of(a->gate),
                 streams_of(a->up),
                 static_cast<const __nv_bfloat16 *>(a->x) + (int64_t)from * h,
                 i,
                 h,
                 a->top_k,
                 a->gate_bias,
                 a->up_bias,
                 a->act,
                 a->swiglu,
                 pairs,
                 mid,
                 nullptr};
    launch_product(cu, gate->layout, p, n_experts);
    p = {streams_of(a->down),
         nullptr,
         mid,
         h,
         i,
         0,
         a->down_bias,
         nullptr,
         a->act,
         a->swiglu,
         pairs,
         nullptr,
         y};
    launch_product(cu, down->layout, p, n_experts);
    sl_launch(cu, combine_kernel, dim3((unsigned)n), dim3(256), MAX_TOP_K * sizeof(int32_t),
              experts, a->weights + (int64_t)from * a->top_k, y, a->top_k, h,
              a->out + (int64_t)from * h);
}

extern "C" void sl_cuda_experts(struct sl_backend *be, const struct sl_op_experts *a)
{
    SL_ASSERT(a->top_k >= 1 && a->top_k <= MAX_TOP_K);
    SL_ASSERT(a->gate->mats[0].layout == a->up->mats[0].layout);
    SL_ASSERT((a->gate_bias != NULL) == (a->up_bias != NULL));
    SL_ASSERT(a->down->mats[0].n_rows == a->gate->mats[0].n_cols);
    SL_ASSERT(a->down->mats[0].n_cols == a->gate->mats[0].n_rows);
    for (int32_t from = 0; from < a->n; from += SLAB)
        run_slab(sl_cuda(be), a, from, SL_MIN(a->n - from, SLAB));
}
