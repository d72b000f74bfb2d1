/* SPDX-License-Identifier: MIT
 * layer_chain.cu - layers of one token in one launch, beside the kernels of src/cuda one behind the
 * other: 1B and 8B in BF16, 8B in four-bit groups of 128.
 *
 *   layer_chain --list | --only NAME...
 *
 * The idea, after lab/linear_chain.cu, whose stamps said where its time went: nobody signals the
 * end of a product, as readers poll its outputs; attention (a stand-in) and norms lie within, so
 * that rings run on over all layers of a step; and units of work are taken by who is free, a ring
 * ahead, or (f) dealt in turn. Names: t teams of four warps, s units in a slot, p pairs of gate and
 * up a unit. Bits are those of the separate kernels: all versions, with attention and without,
 * three launches each, 0 words differ (H200, simulator).
 *
 * us a layer with attention's stand-in, products and norms alone in brackets, H200, one run:
 *
 *                     separate      all layers a launch   one a launch   nobody waits   bytes
 *   1b-bf16           48.9 (46.1)                                                        27
 *     t2s2p1f                         38.5 (35.8)         42.5 (40.1)      29.2
 *     t2s2p2f                         38.5 (35.8)         42.3 (39.8)      28.4
 *     t3s2p1f, t4s2p1f                41.3, 43.8          45.1, 46.4       29.5, 30.4
 *     t2s2p1, t2s2p2                  44.2, 49.2          48.3, 47.4       28.9, 28.4
 *     t3s2p1, t4s2p1                  48.8, 55.6          47.2, 49.9       28.8, 29.3
 *   8b-bf16           116.6 (111.3)                                                      96
 *     t2s2p1f                        116.0 (108.8)       117.7 (111.3)     96.9
 *     t3s2p1f                        119.2 (112.0)       122.5 (114.9)     99.2
 *     t2s2p1, t3s2p1                 126.3, 122.9        129.6, 130.2      96.7, 98.5
 *   8b-int4           52.0 (46.1)                                                        26
 *     t3s2p2f                         51.7 (44.3)         55.9 (49.3)      38.8
 *     t3s2p1f                         60.8 (53.5)         65.7 (58.8)      50.7
 *     t3s2p2, t3s2p1                  75.0, 71.1          74.8, 71.2       37.2, 45.7
 *
 * "Nobody waits": inputs are what lies there, so that only rings, products and the end of units
 * are left. Bytes: over 4,570 GB/s, bench_ops' read stream on such chips; this program's finds
 * 4,362 to 4,417.
 *
 * What was learnt:
 * - Rings and products do not bind BF16: 4.36 and 4.55 TB/s over all ends of products and layers.
 *   Of groups they do, 37 us at best with 12 warps that multiply (16 have 96 registers and were at
 *   41.7 and 47.3): below 40 us a layer is not to be had in this form.
 * - Handing over is cheap: from the last unit's end to the input in the first and the last block
 *   0.9 and 1.4 us normed, 0.3 and 1.0 plain (1b-bf16, polled from the beginning of the wait on);
 *   linear_chain had 2.4 to 5. Polls only when a count says that all but a sixteenth of the units
 *   are done, as now, leave the layer as it was (t2s2p1 44.6 before, t4s2p1 54.6) and cost 0.2 to
 *   0.4 us of latency: so polls do not hold up weights, and the count is not needed.
 * - Taking units as one is free was wrong for few large ones: they meet on some multiprocessors,
 *   whose teams stream them alone. 1b-bf16, t2s2p1, from the last end of the step before to the
 *   first and the last unit's end: q, k, v 2.8 to 5.3, down 9.2 to 17.5; dealt in turn 3.5 to 4.1
 *   and 8.4 to 10.0 (its bytes are 7.3).
 * - What is left of 1b-bf16, t2s2p1f, last end to last end: q, k, v 4.1, attention 4.1, o 3.2, gate
 *   and up 16.6, down 10.0. In the first three, 11.4 us, rings can take no more than 24 MB, 5.3 us
 *   of reading: that is what 36 us lack.
 */
#include "layer_chain.cuh"

enum model_kind { M1B, M8B, M8B_INT4, MODELS };

struct model {
    const char *name;
    int32_t layout, h, kv, inner, dim, n_layers;
};

static const struct model models[MODELS] = {
    {"1b-bf16", SL_CUDA_BF16, 2048, 512, 8192, 64, 16},
    {"8b-bf16", SL_CUDA_BF16, 4096, 1024, 14336, 128, 32},
    {"8b-int4", SL_CUDA_INT4_G128, 4096, 1024, 14336, 128, 32},
};

/* The same in the simulator: few heads, few columns, all that decides how matrices are cut. */
static const struct model tiny[MODELS] = {
    {"1b-bf16", SL_CUDA_BF16, 1024, 256, 6144, 64, 2},
    {"8b-bf16", SL_CUDA_BF16, 1024, 256, 6400, 128, 2},
    {"8b-int4", SL_CUDA_INT4_G128, 1024, 256, 8192, 128, 2},
};

struct version {
    const char *name;
    enum model_kind model;
    void (*run)(chain_args a);
    int teams;
    bool fixed;
};

static const struct version versions[] = {
    {"1b-bf16/now", M1B, nullptr, 0, false},
    {"1b-bf16/t2s2p1", M1B, chain_launch<sl_wf_bf16, 2, 2, 1, 64>, 2, false},
    {"1b-bf16/t2s2p1f", M1B, chain_launch<sl_wf_bf16, 2, 2, 1, 64>, 2, true},
    {"1b-bf16/t2s2p2", M1B, chain_launch<sl_wf_bf16, 2, 2, 2, 64>, 2, false},
    {"1b-bf16/t2s2p2f", M1B, chain_launch<sl_wf_bf16, 2, 2, 2, 64>, 2, true},
    {"1b-bf16/t3s2p1", M1B, chain_launch<sl_wf_bf16, 3, 2, 1, 64>, 3, false},
    {"1b-bf16/t3s2p1f", M1B, chain_launch<sl_wf_bf16, 3, 2, 1, 64>, 3, true},
    {"1b-bf16/t4s2p1", M1B, chain_launch<sl_wf_bf16, 4, 2, 1, 64>, 4, false},
    {"1b-bf16/t4s2p1f", M1B, chain_launch<sl_wf_bf16, 4, 2, 1, 64>, 4, true},
    {"8b-bf16/now", M8B, nullptr, 0, false},
    {"8b-bf16/t2s2p1", M8B, chain_launch<sl_wf_bf16, 2, 2, 1, 128>, 2, false},
    {"8b-bf16/t2s2p1f", M8B, chain_launch<sl_wf_bf16, 2, 2, 1, 128>, 2, true},
    {"8b-bf16/t3s2p1", M8B, chain_launch<sl_wf_bf16, 3, 2, 1, 128>, 3, false},
    {"8b-bf16/t3s2p1f", M8B, chain_launch<sl_wf_bf16, 3, 2, 1, 128>, 3, true},
    {"8b-int4/now", M8B_INT4, nullptr, 0, false},
    {"8b-int4/t3s2p1", M8B_INT4, chain_launch<sl_wf_int4_g128, 3, 2, 1, 128>, 3, false},
    {"8b-int4/t3s2p1f", M8B_INT4, chain_launch<sl_wf_int4_g128, 3, 2, 1, 128>, 3, true},
    {"8b-int4/t3s2p2", M8B_INT4, chain_launch<sl_wf_int4_g128, 3, 2, 2, 128>, 3, false},
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

struct matrix {
    int32_t rows, cols;
    uint8_t *data;
};

static matrix make_matrix(int32_t layout, int32_t rows, int32_t cols, uint64_t seed)
{
    void *p = nullptr;
    size_t bytes =
        static_cast<size_t>(rows / 16) * static_cast<size_t>(sl_cuda_stream_bytes(layout, cols));
    MUST(cudaMalloc(&p, bytes));
    if (layout == SL_CUDA_BF16)
        fill(p, bytes / 2, FILL_BF16, seed);
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
    double units = m.layout == SL_CUDA_BF16 ? 2.0 : 1088.0 / 2048.0;
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

static void normed(struct sl_lin *l, const bench_run &r, const float *w)
{
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
    const size_t smem = ATTEND_SUMS + 2048;
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
    int turn = 0;

    chain_run(const bench_run &r, const version &which)
    {
        const model &m = *r.m;
        v = &which;
        a.fixed = which.fixed;
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
        a.product[CHAIN_ATTEND].blocks[0] =
            attention ? a.product[CHAIN_QKV].blocks[1] * 16 / dim() * CHAIN_SPLITS : 0;
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
    int dim() const
    {
        return models[v->model].dim;
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
                if (s != CHAIN_ATTEND) {
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
