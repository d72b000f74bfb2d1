/* SPDX-License-Identifier: MIT
 * layer_chain.cu - layers of one token in one launch, beside the kernels of src/cuda one behind the
 * other: 1B and 8B in BF16, 8B in four-bit groups of 128 and in FP8 with FP8 activations.
 *
 *   layer_chain --list | --only NAME...
 *
 * The idea: at a product's end memory has nothing to do until the next one's first loads are under
 * way. So nobody signals the end of a product, as readers poll its outputs; attention (a stand-in)
 * and norms lie within; and weights are asked for over the ends of products and layers. Three
 * kernels: rings in shared memory, for any format (layer_chain.cuh; names: t teams of four warps, s
 * units in a slot, p pairs of gate and up a unit, f units dealt in turn, not taken by who is free,
 * k slots under way at most, also dealt); codes straight to registers (layer_direct.cuh: r steps of
 * 64 columns by shared memory at the end of a segment, or of pieces of p steps; e: polled when all
 * but 1 / e of the units are counted, else 4); FP8 (layer_fp8.cuh: u steps of 128 columns a stage,
 * k stages under way, h while at most half of the blocks read). Bits are those of the separate
 * kernels: all versions, with attention and without, three launches each, 0 words differ (H200).
 *
 * us a layer with attention's stand-in, products and norms alone in brackets, H200, one run:
 *
 *                     separate      all layers a launch   one a launch   nobody waits   bytes
 *   1b-bf16           48.5 (46.4)                                                        28
 *     t2s2p1f                         38.0 (35.7)         42.0 (40.1)      30.1
 *     t2s2p1k6, k4, k2                37.4, 36.2, 39.1    40.7, 40.1, 43.9 29.6, 29.8, 34.1
 *   8b-bf16          115.9 (111.3)                                                       99
 *     t2s2p1f                        112.3 (109.0)       114.2 (111.3)     97.6
 *     t2s2p1k6, k4                   111.2, 110.1        113.1, 112.2      97.2, 97.9
 *   8b-int4           50.9 (46.1)                                                        27
 *     r0                              48.8 (45.4)         49.3 (46.5)      34.1
 *     r8, r12                         45.8, 45.5          48.5, 47.9       32.6, 31.8
 *     r12e2                           45.0 (41.5)         47.5 (45.0)      32.3
 *     r12p24                          46.7 (42.9)         49.1 (46.5)      31.6
 *   8b-fp8            65.8 (62.6)                                                        50
 *     u2                              67.5 (72.0)         69.9 (71.3)      57.9
 *     u2k4, u2k3                      62.5, 62.6          65.2, 67.6       55.8, 57.4
 *     u2k3h5                          61.3 (58.0)         66.6 (65.6)      55.7
 *     u2k3h8                          63.2 (60.1)         65.7 (67.4)      54.7
 *
 * "Nobody waits": inputs are what lies there, so that only weights, products and the end of units
 * are left. Bytes: over this run's read stream, 4,396 to 4,438 GB/s; bench_ops' finds 4,570 on such
 * chips. More versions of rings of BF16 were measured before (bench/results/cuda-h200.txt).
 *
 * What was learnt:
 * - Fewer slots under way are faster, up to a point: FP8 62.5 us for 67.5 (64.9 to 67.5 in two
 *   runs), of which down, where 64 blocks read, 17.9 for 20.4, attention 4.2 for 5.3, gate and up's
 *   input 2.1 to 3.0 behind the last end for 2.3 to 3.7; BF16 2 us a layer. That queues before
 *   memory are in the way is a guess. Too few (k2 of BF16) starve the products; where half of the
 *   blocks read they want more (h5). FP8 varies by 1 to 4 us from run to run, the others by 0.5.
 * - Codes of FP8 made by the four warps that multiply: inputs 1.8 to 6.0 us behind the last end,
 *   66.4 us with attention; by eight that do nothing else 1.0 to 3.7.
 * - Polls hold up weights as well: groups of 128 polled from the beginning of the wait on, 28 KB a
 *   block and round, took 53.1 us for 47.1 with a count of units asked first (one run); one warp
 *   that asks for all, r8: 45.6 to 46.0. Rings of BF16 did not mind.
 * - Codes straight to registers: 31.8 us for 37 to 39 of rings where nobody waits. Of r12 45.1 us
 *   by stamps, from the last end of a step to the input in the first and the last block, and to the
 *   first and the last end: q, k, v 2.1, 2.5, 4.9, 6.3; attention -, -, 4.4, 4.8; o 0.8, 1.3, 3.3,
 *   4.4; gate and up 1.8, 2.4, 17.0, 20.0; down 0.5, 1.3, 7.1, 9.6. So 10 us are waits, and gate
 * and up, 13.7 us of bytes, take 15 to 18: 14 warps a multiprocessor have 61 KB under way there.
 *   Shared memory asked for in the middle of long segments, too (p), is not faster; by it first or
 *   in the middle of a segment instead of at its end: 47.5 to 51.2 for 45.6.
 * - A join of four warps' sums behind one barrier, not one after the other: attention's
 * stand-in 4.3 to 4.8 us for 6.9 to 7.8. It had been 3 us of each layer before.
 * - setmaxnreg takes from what the block had at its start: 96 registers of 640 threads are not 104
 *   for 512 and 88 for 128, and the kernel stands still.
 * - Taking units as one is free was wrong for few large ones: they meet on some multiprocessors,
 *   whose teams stream them alone (1b-bf16 44.2 us for 38.5 dealt, earlier).
 * - Four products of 8B in BF16 with barriers of the grid between them (once linear_chain.cu) took
 *   115 to 117 us for 115.4 separate, row blocks a unit apart 109.7 to 111.5 for 113.3: 2.4 to 5 us
 *   from a product's last end to the next input, of which the fence before the arrival 0.9 to 4.6;
 * a filling thread needs 180 ns for a copy; two engines of one GPU may wait for each other's blocks
 *   unless the launch is cooperative.
 */
#include "layer_direct.cuh"
#include "layer_fp8.cuh"

enum model_kind { M1B, M8B, M8B_INT4, M8B_FP8, MODELS };

struct model {
    const char *name;
    int32_t layout, h, kv, inner, dim, n_layers;
};

static const struct model models[MODELS] = {
    {"1b-bf16", SL_CUDA_BF16, 2048, 512, 8192, 64, 16},
    {"8b-bf16", SL_CUDA_BF16, 4096, 1024, 14336, 128, 32},
    {"8b-int4", SL_CUDA_INT4_G128, 4096, 1024, 14336, 128, 32},
    {"8b-fp8", SL_CUDA_W8A8, 4096, 1024, 14336, 128, 32},
};

/* The same in the simulator: few heads, few columns, all that decides how matrices are cut. */
static const struct model tiny[MODELS] = {
    {"1b-bf16", SL_CUDA_BF16, 1024, 256, 6144, 64, 2},
    {"8b-bf16", SL_CUDA_BF16, 1024, 256, 6400, 128, 2},
    {"8b-int4", SL_CUDA_INT4_G128, 1024, 256, 8192, 128, 2},
    {"8b-fp8", SL_CUDA_W8A8, 1024, 256, 4096, 128, 2},
};

struct version {
    const char *name;
    enum model_kind model;
    void (*run)(chain_args a);
    int teams;
    bool fixed;
    int early = 16, under = 64, under_few = 64, piece = 64; /* see chain_args */
};

static const struct version versions[] = {
    {"1b-bf16/now", M1B, nullptr, 0, false},
    {"1b-bf16/t2s2p1", M1B, chain_launch<sl_wf_bf16, 2, 2, 1, 64>, 2, false},
    {"1b-bf16/t2s2p1f", M1B, chain_launch<sl_wf_bf16, 2, 2, 1, 64>, 2, true},
    {"1b-bf16/t2s2p1k6", M1B, chain_launch<sl_wf_bf16, 2, 2, 1, 64>, 2, true, 16, 3},
    {"1b-bf16/t2s2p1k4", M1B, chain_launch<sl_wf_bf16, 2, 2, 1, 64>, 2, true, 16, 2},
    {"1b-bf16/t2s2p1k2", M1B, chain_launch<sl_wf_bf16, 2, 2, 1, 64>, 2, true, 16, 1},
    {"1b-bf16/t2s2p2", M1B, chain_launch<sl_wf_bf16, 2, 2, 2, 64>, 2, false},
    {"1b-bf16/t2s2p2f", M1B, chain_launch<sl_wf_bf16, 2, 2, 2, 64>, 2, true},
    {"1b-bf16/t3s2p1", M1B, chain_launch<sl_wf_bf16, 3, 2, 1, 64>, 3, false},
    {"1b-bf16/t3s2p1f", M1B, chain_launch<sl_wf_bf16, 3, 2, 1, 64>, 3, true},
    {"1b-bf16/t4s2p1", M1B, chain_launch<sl_wf_bf16, 4, 2, 1, 64>, 4, false},
    {"1b-bf16/t4s2p1f", M1B, chain_launch<sl_wf_bf16, 4, 2, 1, 64>, 4, true},
    {"8b-bf16/now", M8B, nullptr, 0, false},
    {"8b-bf16/t2s2p1", M8B, chain_launch<sl_wf_bf16, 2, 2, 1, 128>, 2, false},
    {"8b-bf16/t2s2p1f", M8B, chain_launch<sl_wf_bf16, 2, 2, 1, 128>, 2, true},
    {"8b-bf16/t2s2p1k6", M8B, chain_launch<sl_wf_bf16, 2, 2, 1, 128>, 2, true, 16, 3},
    {"8b-bf16/t2s2p1k4", M8B, chain_launch<sl_wf_bf16, 2, 2, 1, 128>, 2, true, 16, 2},
    {"8b-bf16/t3s2p1", M8B, chain_launch<sl_wf_bf16, 3, 2, 1, 128>, 3, false},
    {"8b-bf16/t3s2p1f", M8B, chain_launch<sl_wf_bf16, 3, 2, 1, 128>, 3, true},
    {"8b-int4/now", M8B_INT4, nullptr, 0, false},
    {"8b-int4/t3s2p1", M8B_INT4, chain_launch<sl_wf_int4_g128, 3, 2, 1, 128>, 3, false},
    {"8b-int4/t3s2p1f", M8B_INT4, chain_launch<sl_wf_int4_g128, 3, 2, 1, 128>, 3, true},
    {"8b-int4/t3s2p2", M8B_INT4, chain_launch<sl_wf_int4_g128, 3, 2, 2, 128>, 3, false},
    {"8b-int4/r0", M8B_INT4, direct_launch<sl_wf_int4_g128, 0, 128>, 1, true, 4},
    {"8b-int4/r8", M8B_INT4, direct_launch<sl_wf_int4_g128, 8, 128>, 1, true, 4},
    {"8b-int4/r12", M8B_INT4, direct_launch<sl_wf_int4_g128, 12, 128>, 1, true, 4},
    {"8b-int4/r12e2", M8B_INT4, direct_launch<sl_wf_int4_g128, 12, 128>, 1, true, 2},
    {"8b-int4/r12p24", M8B_INT4, direct_launch<sl_wf_int4_g128, 12, 128>, 1, true, 4, 64, 64, 24},
    {"8b-fp8/now", M8B_FP8, nullptr, 0, false},
    {"8b-fp8/u2", M8B_FP8, fp8_chain_launch<2, 128>, 1, true, 4},
    {"8b-fp8/u2k4", M8B_FP8, fp8_chain_launch<2, 128>, 1, true, 4, 4, 4},
    {"8b-fp8/u2k3", M8B_FP8, fp8_chain_launch<2, 128>, 1, true, 4, 3, 3},
    {"8b-fp8/u2k3h5", M8B_FP8, fp8_chain_launch<2, 128>, 1, true, 4, 3, 5},
    {"8b-fp8/u2k3h8", M8B_FP8, fp8_chain_launch<2, 128>, 1, true, 4, 3, 8},
    {"8b-int4/t3s2p2f", M8B_INT4, chain_launch<sl_wf_int4_g128, 3, 2, 2, 128>, 3, true},
};

/* ------------------------------------------------------------------ the separate stand-in */

struct attend_args {
    const uint32_t *qkv;
    uint32_t *part, *att;
    const uint8_t *pages;
    int32_t h, n_heads;
    uint32_t *fault;
};

#define ATTEND_SUMS 65536 /* where they lie in shared memory */

template <int D> struct whole_pages {
    const uint8_t *at;
    __device__ __forceinline__ const uint8_t *enter(int i) const
    {
        return at + i * 16 * D;
    }
    __device__ __forceinline__ void leave(int) const
    {
    }
};

/* A split of a key head, as in the chain. */
template <int D>
__global__ void __launch_bounds__(32 * CHAIN_WIDE)
    attend_kernel(const __grid_constant__ attend_args a)
{
    SL_SMEM(uint8_t, smem);
    const int warp = static_cast<int>(threadIdx.x / 32), bytes = CHAIN_WIDE * 128 * D;
    const int item = static_cast<int>(blockIdx.x), head = item / CHAIN_SPLITS;
    const uint8_t *from = a.pages + static_cast<int64_t>(item) * bytes;
    for (int i = 16 * static_cast<int>(threadIdx.x); i < bytes; i += 16 * 32 * CHAIN_WIDE)
        sl_cp_async16(smem + i, from + i, true);
    sl_cp_async_commit();
    sl_grid_launch_dependents();
    sl_cp_async_wait<0>();
    __syncthreads();
    sl_grid_wait();
    const chain_rows rows = {a.qkv + CHAIN_GROUP * D * head, a.qkv + a.h + D * head,
                             a.qkv + a.h + D * (a.n_heads + head)};
    float out[D / 8][2];
    whole_pages<D> pages = {smem + warp * 128 * D};
    chain_attend<D>(out, rows, pages, 8, a.fault);
    chain_attend_tell<D>(out, reinterpret_cast<float *>(smem + ATTEND_SUMS),
                         a.part + item * CHAIN_GROUP * D, warp, 1);
}

template <int D>
__global__ void __launch_bounds__(32 * CHAIN_WIDE)
    join_kernel(const __grid_constant__ attend_args a)
{
    const int head = static_cast<int>(blockIdx.x);
    sl_grid_launch_dependents();
    sl_grid_wait();
    chain_join<D>(a.part + head * CHAIN_SPLITS * CHAIN_GROUP * D,
                  a.att + head * CHAIN_GROUP * D / 2, static_cast<int>(threadIdx.x), 9, a.fault);
}

static __global__ void cast_kernel(const float *x, __nv_bfloat16 *out, int n)
{
    sl_grid_launch_dependents();
    sl_grid_wait();
    int i = static_cast<int>(blockIdx.x * blockDim.x + threadIdx.x);
    if (i < n)
        out[i] = __float2bfloat16_rn(x[i]);
}

/* ------------------------------------------------------------------ weights */

/* Codes of all values, scales of 0.02, zeros of 8. */
static __global__ void fill_int4_kernel(uint32_t *out, uint64_t n_units, uint64_t seed)
{
    const uint64_t words = 1088 / 4, step = static_cast<uint64_t>(gridDim.x) * blockDim.x;
    sl_grid_wait();
    for (uint64_t i = static_cast<uint64_t>(blockIdx.x) * blockDim.x + threadIdx.x;
         i < n_units * words; i += step) {
        uint32_t at = static_cast<uint32_t>(i % words);
        float scale = at % 2 == 0 ? 0x1p101f : 0x1p97f, m = -0.16f * 0x1p-32f;
        out[i] = at < 256 ? random_bits(i + seed)
                          : to_bf16(m) | static_cast<uint32_t>(to_bf16(0.02f * scale)) << 16;
    }
    sl_grid_launch_dependents();
}

/* Codes below 2, then scales. */
static __global__ void fill_fp8_kernel(uint32_t *out, uint64_t n_codes, uint64_t n, uint64_t seed)
{
    const uint64_t step = static_cast<uint64_t>(gridDim.x) * blockDim.x;
    sl_grid_wait();
    for (uint64_t i = static_cast<uint64_t>(blockIdx.x) * blockDim.x + threadIdx.x; i < n;
         i += step) {
        const uint32_t bits = random_bits(i + seed);
        out[i] = i < n_codes ? bits & 0xBFBFBFBFu
                             : __float_as_uint(0.1f + 0.1f * static_cast<float>(bits % 8));
    }
    sl_grid_launch_dependents();
}

struct matrix {
    int32_t rows, cols;
    uint8_t *data;
};

static matrix make_matrix(int32_t layout, int32_t rows, int32_t cols, uint64_t seed)
{
    void *p = nullptr;
    const int64_t all = layout == SL_CUDA_W8A8 ? sl_cuda_w8a8_bytes(rows, cols)
                                               : rows / 16 * sl_cuda_stream_bytes(layout, cols);
    const size_t bytes = static_cast<size_t>(all);
    MUST(cudaMalloc(&p, bytes));
    if (layout == SL_CUDA_BF16)
        fill(p, bytes / 2, FILL_BF16, seed);
    else if (layout == SL_CUDA_W8A8)
        sl_launch(b.cu, fill_fp8_kernel, dim3(b.tiny ? 4 : 2048), dim3(256), 0,
                  static_cast<uint32_t *>(p),
                  static_cast<uint64_t>(rows) * static_cast<uint64_t>(cols) / 4,
                  static_cast<uint64_t>(bytes / 4), seed);
    else
        sl_launch(b.cu, fill_int4_kernel, dim3(b.tiny ? 4 : 2048), dim3(256), 0,
                  static_cast<uint32_t *>(p), static_cast<uint64_t>(bytes / 1088), seed);
    return {rows, cols, static_cast<uint8_t *>(p)};
}

static struct sl_weight weight_of(int32_t layout, const matrix &m)
{
    struct sl_weight w = {};
    w.layout = layout;
    w.n_rows = m.rows;
    w.n_cols = m.cols;
    w.data = m.data;
    return w;
}

struct layer {
    matrix w[7]; /* q, k, v, o, gate, up, down */
    float *norm[2];
    uint8_t *pages;
};

static layer make_layer(const model &m, uint64_t seed)
{
    const int32_t rows[] = {m.h, m.kv, m.kv, m.h, m.inner, m.inner, m.h};
    layer l;
    for (int i = 0; i < 7; i++)
        l.w[i] = make_matrix(m.layout, rows[i], i == 6 ? m.inner : m.h,
                             (seed * 8 + static_cast<uint64_t>(i)) << 30);
    for (int i = 0; i < 2; i++) {
        MUST(cudaMalloc((void **)&l.norm[i], static_cast<size_t>(m.h) * 4));
        fill(l.norm[i], static_cast<size_t>(m.h), FILL_F32, seed + 999 + static_cast<uint64_t>(i));
    }
    size_t n = static_cast<size_t>(m.kv) * CHAIN_SPLITS * 256;
    MUST(cudaMalloc((void **)&l.pages, n * 2));
    fill(l.pages, n, FILL_F16, seed << 40);
    return l;
}

static void free_layer(const layer &l)
{
    for (const matrix &w : l.w)
        MUST(cudaFree(w.data));
    for (float *n : l.norm)
        MUST(cudaFree(n));
    MUST(cudaFree(l.pages));
}

static double bytes_of(const model &m, bool attention)
{
    double n = 0, h = m.h;
    double units = m.layout == SL_CUDA_BF16   ? 2.0
                   : m.layout == SL_CUDA_W8A8 ? 1.0 + 4.0 / SL_W8_UNIT
                                              : 1088.0 / 2048.0;
    n += (2.0 * h * h + 2.0 * h * m.kv + 3.0 * h * m.inner) * units;
    return n + (attention ? 2.0 * 2 * 128 * CHAIN_SPLITS * m.kv : 0.0);
}

/* ------------------------------------------------------------------ separate kernels */

struct bench_run {
    const model *m;
    std::vector<layer> layers;
    dev<float> *x0, *x, *qkv, *part;
    dev<uint16_t> *normed, *att, *g;
};

static struct sl_lin plain(const model &m, const matrix &w, const uint16_t *x, float *out)
{
    struct sl_weight weight = weight_of(m.layout, w);
    struct sl_op_linear a = {};
    a.x = x, a.ld_x = w.cols, a.n = 1, a.w = &weight, a.out = out, a.ld_out = w.rows;
    return sl_cuda_linear_args(&a);
}

/* Of one row, for products of FP8, which do not norm one themselves. */
static __global__ void __launch_bounds__(32 * SL_NORM_WARPS)
    norm_kernel(const float *x, const float *w, float eps, int32_t h, __nv_bfloat16 *out)
{
    SL_SMEM(float, sums);
    const int warp = static_cast<int>(threadIdx.x / 32);
    sl_norm_part v, weights;
    sl_grid_launch_dependents();
    weights.load(w, warp, h);
    sl_grid_wait();
    v.load(x, warp, h);
    const float s = v.squares();
    if (threadIdx.x % 32 == 0)
        sums[warp] = s;
    __syncthreads();
    const float scale = sl_norm_scale_of(sums, eps, h);
    for (int k = 0; k < SL_NORM_QUADS; k++) {
        const int i = sl_norm_part::column(warp, k);
        if (i < h)
            *reinterpret_cast<sl_norm_quad *>(out + i) = sl_norm_of(v.v[k], weights.v[k], scale);
    }
}

static void normed(struct sl_lin *l, const bench_run &r, const float *w)
{
    if (r.m->layout == SL_CUDA_W8A8) {
        sl_launch(b.cu, norm_kernel, dim3(1), dim3(32 * SL_NORM_WARPS),
                  sizeof(float) * SL_NORM_WARPS, r.x->p, w, 1e-5f, r.m->h,
                  reinterpret_cast<__nv_bfloat16 *>(r.normed->p));
        return;
    }
    l->norm.x = r.x->p, l->norm.w = w, l->norm.eps = 1e-5f;
    l->norm.out = reinterpret_cast<__nv_bfloat16 *>(r.normed->p);
}

static void run_attention(const bench_run &r, const layer &l)
{
    const model &m = *r.m;
    unsigned heads = static_cast<unsigned>(m.kv / m.dim);
    attend_args a = {reinterpret_cast<const uint32_t *>(r.qkv->p),
                     reinterpret_cast<uint32_t *>(r.part->p),
                     reinterpret_cast<uint32_t *>(r.att->p),
                     l.pages,
                     m.h,
                     m.kv / m.dim,
                     lab_fault};
    const dim3 threads(32 * CHAIN_WIDE), items(heads * CHAIN_SPLITS);
    const size_t smem = ATTEND_SUMS + 4 * CHAIN_SUMS(128);
    if (m.dim == 128) {
        sl_launch(b.cu, attend_kernel<128>, items, threads, smem, a);
        sl_launch(b.cu, join_kernel<128>, dim3(heads), threads, 0, a);
    } else {
        sl_launch(b.cu, attend_kernel<64>, items, threads, smem, a);
        sl_launch(b.cu, join_kernel<64>, dim3(heads), threads, 0, a);
    }
}

enum attention_kind { ATT_NONE, ATT_CAST, ATT_STAND_IN };

static void separate(const bench_run &r, const layer &w, enum attention_kind attention)
{
    const model &m = *r.m;
    struct sl_lin l = {};
    int rows = 0, blocks = 0;
    for (int i = 0; i < 3; i++) {
        struct sl_lin part = plain(m, w.w[i], r.normed->p, r.qkv->p + rows);
        if (i == 0)
            l = part;
        l.part[i] = part.part[0];
        l.part[i].first = blocks;
        rows += w.w[i].rows;
        blocks += part.part[0].n_blocks;
    }
    l.n_parts = 3;
    normed(&l, r, w.norm[0]);
    sl_cuda_linear_run(b.cu, &l, NULL);
    if (attention == ATT_STAND_IN)
        run_attention(r, w);
    else if (attention == ATT_CAST)
        sl_launch(b.cu, cast_kernel, dim3(static_cast<unsigned>(m.h / 256)), dim3(256), 0, r.qkv->p,
                  reinterpret_cast<__nv_bfloat16 *>(r.att->p), m.h);
    l = plain(m, w.w[3], r.att->p, r.x->p);
    l.add = true;
    sl_cuda_linear_run(b.cu, &l, NULL);
    struct sl_weight gate = weight_of(m.layout, w.w[4]), up = weight_of(m.layout, w.w[5]);
    struct sl_op_linear_gated_act ga = {};
    ga.x = r.normed->p, ga.ld_x = m.h, ga.gate = &gate, ga.up = &up, ga.n = 1, ga.out = r.g->p;
    ga.act = SL_ACT_SILU;
    l = sl_cuda_linear_gated_args(&ga);
    normed(&l, r, w.norm[1]);
    sl_cuda_linear_run(b.cu, &l, NULL);
    l = plain(m, w.w[6], r.g->p, r.x->p);
    l.add = true;
    sl_cuda_linear_run(b.cu, &l, NULL);
}

/* ------------------------------------------------------------------ the chain */

static chain_product product_of(const model &m, std::initializer_list<int> rows, int cols)
{
    chain_product p = {};
    if (m.layout == SL_CUDA_W8A8) {
        int part = 0;
        for (int n : rows)
            p.blocks[part++] = n / SL_CUDA_W8A8_ROWS;
        p.n_k = cols / 128;
        return p;
    }
    const matrix any = {*rows.begin(), cols, nullptr};
    const struct sl_lin l = plain(m, any, nullptr, nullptr);
    int unit_k = m.layout == SL_CUDA_BF16 ? 64 : 128, i = 0;
    for (int n : rows)
        p.blocks[i++] = n / 16;
    p.n_segs = l.n_segs;
    p.seg_k = l.seg_k64 * 64 / unit_k;
    p.n_k = cols / unit_k;
    p.row_bytes = static_cast<int32_t>(sl_cuda_stream_bytes(m.layout, cols));
    return p;
}

struct chain_run {
    chain_args a = {};
    std::vector<chain_layer> table;
    dev<chain_layer> *layers;
    dev<uint32_t> *words, *taken;
    dev<uint64_t> *stamps;
    const version *v;
    int turn = 0, n_heads;

    chain_run(const bench_run &r, const version &which)
    {
        const model &m = *r.m;
        v = &which;
        n_heads = m.kv / m.dim;
        a.fixed = which.fixed;
        a.early = which.early, a.piece = which.piece;
        a.under[0] = which.under, a.under[1] = which.under_few;
        for (const layer &l : r.layers) {
            chain_layer t = {};
            for (int i = 0; i < 7; i++)
                t.w[i] = l.w[i].data;
            t.norm[0] = l.norm[0], t.norm[1] = l.norm[1], t.pages = l.pages;
            table.push_back(t);
        }
        layers = new dev<chain_layer>(table);
        a.product[CHAIN_QKV] = product_of(m, {m.h, m.kv, m.kv}, m.h);
        a.product[CHAIN_O] = product_of(m, {m.h}, m.h);
        a.product[CHAIN_GATE_UP] = product_of(m, {m.inner}, m.h);
        a.product[CHAIN_DOWN] = product_of(m, {m.h}, m.inner);
        a.at.part = a.at.qkv + m.h + 2 * m.kv;
        a.at.att = a.at.part + CHAIN_SPLITS * m.h;
        a.at.x1 = a.at.att + m.h / 2;
        a.at.g = a.at.x1 + m.h;
        a.at.x2 = a.at.g + m.inner / 2;
        a.at.count = a.at.x2 + m.h;
        a.at.all = a.at.count + CHAIN_STEPS * CHAIN_APART;
        a.h = m.h, a.inner = m.inner, a.eps = 1e-5f, a.x0 = r.x0->p, a.fault = lab_fault;
        const size_t n = r.layers.size();
        words = new dev<uint32_t>(2 * n * static_cast<size_t>(a.at.all));
        taken = new dev<uint32_t>(2);
        MUST(cudaMemsetAsync(taken->p, 0, 8, b.cu->stream));
        stamps = new dev<uint64_t>(static_cast<size_t>(b.cu->n_sms) * (n * CHAIN_STEPS + 1) *
                                   static_cast<size_t>(1 + which.teams));
    }
    ~chain_run()
    {
        delete layers;
        delete words;
        delete taken;
        delete stamps;
    }
    const uint32_t *last_words(int layer) const
    {
        return words->p +
               (static_cast<size_t>(turn ^ 1) * table.size() + static_cast<size_t>(layer)) *
                   static_cast<size_t>(a.at.all);
    }
    /* Layers from..from + n - 1. Words and counters of the turns are for as many layers as one
     * launch has, so n is the same from one launch to the next. */
    void run(int from, int n, bool attention, bool stamped)
    {
        const size_t half = table.size() * static_cast<size_t>(a.at.all);
        a.layer = layers->p + from;
        a.n_layers = n;
        a.product[CHAIN_ATTEND].blocks[0] = attention ? n_heads * CHAIN_SPLITS : 0;
        for (int i = 0; i < 2; i++) {
            a.words[i] = words->p + static_cast<size_t>(turn ^ i) * half;
            a.taken[i] = taken->p + (turn ^ i);
        }
        a.stamps = stamped ? stamps->p : nullptr;
        v->run(a);
        turn ^= 1;
    }
    /* Before launches of another number of layers. */
    void forget()
    {
        MUST(cudaMemsetAsync(words->p, 0xFF, words->n * 4, b.cu->stream));
    }
};

/* ------------------------------------------------------------------ figures */

/* Reads n pieces, for the time. */
static __global__ void __launch_bounds__(512) read_kernel(const uint4 *x, uint64_t n, unsigned *sum)
{
    const uint64_t step = static_cast<uint64_t>(gridDim.x) * (8 * 512);
    unsigned s = 0;
    sl_grid_wait();
    for (uint64_t from = blockIdx.x * (8ull * 512) + threadIdx.x; from < n; from += step) {
        uint4 v[8];
#pragma unroll
        for (int i = 0; i < 8; i++)
            v[i] = sl_ldg_stream16(x + from + i * 512);
#pragma unroll
        for (int i = 0; i < 8; i++)
            s += v[i].x + v[i].y + v[i].z + v[i].w;
    }
    sl_grid_launch_dependents();
    if (s == 12345)
        *sum = s;
}

static void measure_reading()
{
    dev<uint4> x(b.tiny ? 1u << 14 : 1u << 28);
    dev<unsigned> sum(1);
    fill(x.p, x.n * 4, FILL_F32);
    double us = time_us(1, b.tiny ? 1 : 40, [&](int) {
        sl_launch(b.cu, read_kernel, dim3(2u * static_cast<unsigned>(b.cu->n_sms)), dim3(512), 0,
                  x.p, static_cast<uint64_t>(x.n), sum.p);
    });
    b.read_bps = static_cast<double>(x.n) * 16 / us * 1e6;
    printf("read stream %.0f GB/s\n", b.read_bps * 1e-9);
}

static double median(std::vector<double> v)
{
    std::sort(v.begin(), v.end());
    return v.empty() ? 0.0 : v[v.size() / 2];
}

/* From the last block's end of the step before: when the input is there in the first and the last
 * block; from then on, the ends of the first and the last team's last unit. Medians over layers. */
static void print_stamps(const chain_run &c, bool attention)
{
    static const char *const names[] = {"q, k, v", "attention", "o", "gate, up", "down"};
    const size_t teams = static_cast<size_t>(c.v->teams), n = c.table.size();
    const size_t rows = n * CHAIN_STEPS + 1, blocks = static_cast<size_t>(b.cu->n_sms);
    std::vector<uint64_t> t(c.stamps->n);
    c.stamps->get(0, t.data(), t.size());
    auto at = [&](size_t block, size_t row, size_t i) {
        return t[(block * rows + row) * (1 + teams) + i];
    };
    uint64_t start = UINT64_MAX;
    double ring = 0, first_ring = 1e9;
    for (size_t i = 0; i < blocks; i++)
        start = std::min(start, at(i, rows - 1, 0));
    for (size_t i = 0; i < blocks; i++)
        for (size_t k = 1; k <= teams; k++) {
            double us = static_cast<double>(at(i, rows - 1, k) - start) * 1e-3;
            ring = std::max(ring, us);
            first_ring = std::min(first_ring, us);
        }
    printf("   rings asked for after %.2f to %.2f us\n", first_ring, ring);
    std::vector<double> v[CHAIN_STEPS][4], whole;
    uint64_t before = start, layer_end = start;
    for (size_t l = 0; l < n; l++) {
        for (size_t s = 0; s < CHAIN_STEPS; s++) {
            if (s == CHAIN_ATTEND && !attention)
                continue;
            uint64_t in[2] = {UINT64_MAX, 0}, done[2] = {UINT64_MAX, 0};
            for (size_t i = 0; i < blocks; i++) {
                uint64_t there = at(i, l * CHAIN_STEPS + s, 0);
                if (s != CHAIN_ATTEND && there != 0) {
                    in[0] = std::min(in[0], there);
                    in[1] = std::max(in[1], there);
                }
                for (size_t k = 1; k <= teams; k++) {
                    uint64_t e = at(i, l * CHAIN_STEPS + s, k);
                    if (e != 0)
                        done[0] = std::min(done[0], e), done[1] = std::max(done[1], e);
                }
            }
            if (s == CHAIN_ATTEND)
                in[0] = in[1] = before;
            const uint64_t what[] = {in[0], in[1], done[0], done[1]};
            for (int i = 0; i < 4; i++)
                if (l > 0)
                    v[s][i].push_back(static_cast<double>(static_cast<int64_t>(what[i] - before)) *
                                      1e-3);
            if (l == 0)
                printf("   first layer, %-9s from the start: input %.2f %.2f done %.2f %.2f\n",
                       names[s], static_cast<double>(in[0] - start) * 1e-3,
                       static_cast<double>(in[1] - start) * 1e-3,
                       static_cast<double>(done[0] - start) * 1e-3,
                       static_cast<double>(done[1] - start) * 1e-3);
            before = done[1];
        }
        if (l > 0)
            whole.push_back(static_cast<double>(before - layer_end) * 1e-3);
        layer_end = before;
    }
    for (int s = 0; s < CHAIN_STEPS; s++)
        printf("   %-9s from the last end: input %6.2f %6.2f  done %6.2f %6.2f\n", names[s],
               median(v[s][0]), median(v[s][1]), median(v[s][2]), median(v[s][3]));
    printf("   a layer %.2f\n", median(whole));
}

static void start_residual(const bench_run &r)
{
    MUST(cudaMemcpyAsync(r.x->p, r.x0->p, r.x->n * 4, cudaMemcpyDeviceToDevice, b.cu->stream));
}

/* Words that differ after all layers, in three launches. */
static unsigned long long compare(const bench_run &r, chain_run &c, bool attention)
{
    const int n = static_cast<int>(r.layers.size());
    start_residual(r);
    for (const layer &l : r.layers)
        separate(r, l, attention ? ATT_STAND_IN : ATT_CAST);
    lab_must_be_well("separate");
    unsigned long long bad = 0;
    for (int i = 0; i < 3; i++) {
        c.run(0, n, attention, false);
        lab_must_be_well(c.v->name);
        const uint32_t *w = c.last_words(n - 1);
        bad += lab_differ(w + c.a.at.qkv, r.qkv->p, r.qkv->n);
        bad += lab_differ(w + c.a.at.g, r.g->p, r.g->n / 2);
        bad += lab_differ(w + c.a.at.x2, r.x->p, r.x->n);
    }
    return bad;
}

static void print_row(const char *name, const char *what, double us, double bytes)
{
    printf("%-16s %-34s %8.2f us a layer, bytes %6.2f us, %3.0f %%\n", name, what, us,
           bytes / b.read_bps * 1e6, 100.0 * bytes / b.read_bps * 1e6 / us);
    fflush(stdout);
}

static void time_separate(const bench_run &r, const version &v)
{
    const int n = static_cast<int>(r.layers.size());
    for (int att = 0; att < 2; att++) {
        auto one = [&](int i) {
            separate(r, r.layers[static_cast<size_t>(i)], att ? ATT_STAND_IN : ATT_NONE);
        };
        double us = time_us(n, 40.0, one);
        print_row(v.name, att ? "with attention's stand-in" : "products and norms", us,
                  bytes_of(*r.m, att != 0));
    }
}

static void time_chain(const bench_run &r, const version &v)
{
    const int n = static_cast<int>(r.layers.size());
    const int pairs = n_copies_for(2 * static_cast<size_t>(bytes_of(*r.m, true)), n / 2);
    chain_run c(r, v);
    for (int att = 0; att < 2; att++) {
        unsigned long long bad = compare(r, c, att != 0);
        printf("%-16s attention %d: %llu words differ\n", v.name, att, bad);
        fflush(stdout);
        if (bad > 0)
            exit(1);
    }
    for (int att = 0; att < 2; att++)
        for (int each : {n, 1}) {
            /* Two launches a call, so that turns are as recorded. */
            auto one = [&](int i) {
                for (int k = 0; k < 2; k++)
                    c.run(each == 1 ? 2 * i + k : 0, each, att != 0, false);
            };
            c.forget();
            double us = time_us(each == 1 ? pairs : 1, 40.0, one) / (2 * each);
            lab_must_be_well(v.name);
            print_row(v.name,
                      each == 1
                          ? (att ? "a layer a launch, stand-in" : "a layer a launch, products")
                          : (att ? "all layers, stand-in" : "all layers, products"),
                      us, bytes_of(*r.m, att != 0));
        }
    fill(c.words->p, c.words->n, FILL_F32, 3);
    c.a.fault = nullptr;
    auto free_run = [&](int) {
        for (int k = 0; k < 2; k++)
            c.run(0, n, true, false);
    };
    print_row(v.name, "all layers, nobody waits", time_us(1, 40.0, free_run) / (2 * n),
              bytes_of(*r.m, true));
    c.a.fault = lab_fault;
    if (b.tiny)
        return;
    for (int att = 0; att < 2; att++) {
        c.forget();
        for (int i = 0; i < 4; i++) {
            MUST(cudaMemsetAsync(c.stamps->p, 0, c.stamps->n * 8, b.cu->stream));
            c.run(0, n, att != 0, true);
        }
        lab_must_be_well(v.name);
        print_stamps(c, att != 0);
    }
}

static void run_model(int which, int n_names, char **names)
{
    bool any = false;
    for (const version &v : versions)
        for (int i = 0; i < n_names; i++)
            any = any || (v.model == which && !strcmp(names[i], v.name));
    if (!any)
        return;
    bench_run r;
    const model &m = b.tiny ? tiny[which] : models[which];
    const size_t h = static_cast<size_t>(m.h), kv = static_cast<size_t>(m.kv);
    const size_t inner = static_cast<size_t>(m.inner);
    r.m = &m;
    dev<float> x0(h), x(h), qkv(h + 2 * kv), part(h * CHAIN_SPLITS);
    dev<uint16_t> norm(h), att(h), g(inner);
    r.x0 = &x0, r.x = &x, r.qkv = &qkv, r.part = &part, r.normed = &norm, r.att = &att, r.g = &g;
    fill(x0.p, h, FILL_F32, 5);
    fill(att.p, h, FILL_BF16, 6);
    start_residual(r);
    for (int i = 0; i < m.n_layers; i++)
        r.layers.push_back(make_layer(m, static_cast<uint64_t>(i + 1)));
    lab_must_be_well("weights");
    for (int i = 0; i < n_names; i++)
        for (const version &v : versions)
            if (v.model == which && !strcmp(names[i], v.name)) {
                if (v.run == nullptr)
                    time_separate(r, v);
                else
                    time_chain(r, v);
            }
    for (const layer &l : r.layers)
        free_layer(l);
}

int main(int argc, char **argv)
{
    if (argc == 2 && !strcmp(argv[1], "--list")) {
        for (const struct version &v : versions)
            printf("%s\n", v.name);
        return 0;
    }
    if (argc < 3 || strcmp(argv[1], "--only") != 0) {
        fprintf(stderr, "layer_chain --list | --only NAME...\n");
        return 2;
    }
    lab_start();
    measure_reading();
    for (int i = 0; i < MODELS; i++)
        run_model(i, argc - 2, argv + 2);
    return 0;
}
