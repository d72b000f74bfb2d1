/* SPDX-License-Identifier: MIT
 * attention_skip.cu - what skip-softmax saves: src/cuda's attention over keys of which a share of
 * the tiles lies far below the first ones, with the option off, with it on and nothing below the
 * limit, and with it on. Pages of 16 positions of F16, 32 heads of 128 dimensions over 8 key heads.
 *
 *   attention_skip        bits, then the tables
 *
 * Expected before the first run: a decode reads half of what it read of a tile left out, so 1.4 to
 * 1.5 at 70 %, as scores and waits stay; a prompt's tile left out costs its scores, a third of a
 * whole one, so 1.6 to 1.8; with nothing left out 1 to 2 % more than without in decodes, and 5 to
 * 10 % in prompts, where products no longer run beside exponentials of the same warpgroup.
 *
 * Seen (one H200, 2026-11-23), at some 70 % of what kernels can leave out: decodes 64 x 8,192 1.53,
 * 16 x 32,768 1.51, 1 x 131,072 1.48, 1 x 8,192 1.27; with nothing left out up to 0.4 % more, 1 x
 * 8,192 1.5 to 2.9 %. (Before, with tiles of 16 rows as for drafts: 1.50, 1.50, 1.45 and 1.08; 0.6
 * to 1.6 %, and 18 %.)
 *
 * Prompts, us without the option, with it and nothing left out, gain with 70 % short (one H200, one
 * run of all; keys of length x where they are not short):
 *
 *                                     2,048 behind 8,192   8,192         2,048 behind 30,720
 *   x 2, none short                   590, 750  +27 %   1,170, 1,390  +19 %   1,980, 2,415  +22 %
 *     steps one after the other            859  +45 %          1,854  +59 %          3,161  +60 %
 *   x 2, 70 % short                   854, 755  -12 %   1,470, 1,344   -9 %   2,750, 2,570   -7 %
 *     steps one after the other            937  +10 %          1,718  +17 %          3,322  +21 %
 *     gain, and of the steps           1.33, 1.16           1.07, 0.89           1.28, 1.19
 *   x 8, 70 % short                   882, 763  -14 %   1,490, 1,374   -8 %
 *     steps one after the other            943   +7 %          1,732  +16 %
 *     gain, and of the steps           1.47, 1.44           1.32, 1.31
 *   x 8, none short                 1,166, 792  -32 %
 *
 * (Of 8,192 with x 2 only 14 % can be left out.) The kernel without the option takes 590 to 1,166
 * us for the first as long keys raise references between the two tiles of a pair, and then it does
 * their product again by mma.sync; that with it does the tiles apart and is the faster one. Where
 * no reference rises it is not: 19 to 27 % are left of 45 to 60, of which the decision itself is
 * the half (one version had no votes and multiplied all: 8 to 12 % with the choice of tiles below).
 * D = 64: +24 to 26 % (+32 to 42), gain 1.19, 1.14 (1.27, 1.28), as it spills.
 *
 * Tried: votes by a barrier of the group in the midst of a step, or at its end, and no one vote
 * that says that all take all: 19 to 31 % and 1.30, 1.26. Values brought only where they are
 * wanted, once nothing was of one or two slots before: gain 1.25 and 1.29 for 1.31. A split's first
 * references without factors: +28 to 35 %, not understood. Zeros put in the scores' place of tiles
 * left out instead of in the probabilities': C7511, all products serialised.
 */
#include "lab.h"

#include "cuda/attention/attention_tmpl.cuh"
#include "cuda/bench_attention.h"

void sl_attn_run_f16_128(struct sl_cuda *cu, const struct sl_attn_args *a, int cls, int32_t grid)
{
    sl_attn_run<struct sl_kv_f16, 128>(cu, a, cls, grid);
}

/* What attention.cu could start besides. */
#define NONE(name)                                                         \
    void name(struct sl_cuda *, const struct sl_attn_args *, int, int32_t) \
    {                                                                      \
    }                                                                      \
    static_assert(true, "")
NONE(sl_attn_run_f16_64);
NONE(sl_attn_run_16);
NONE(sl_attn_run_32);
NONE(sl_attn_run_64);
NONE(sl_attn_run_80);
NONE(sl_attn_run_96);
NONE(sl_attn_run_128);
NONE(sl_attn_run_256);
NONE(sl_attn_run_f16_16);
NONE(sl_attn_run_f16_32);
NONE(sl_attn_run_f16_80);
NONE(sl_attn_run_f16_96);
NONE(sl_attn_run_f16_256);
NONE(sl_attn_run_fp8_16);
NONE(sl_attn_run_fp8_32);
NONE(sl_attn_run_fp8_64);
NONE(sl_attn_run_fp8_80);
NONE(sl_attn_run_fp8_96);
NONE(sl_attn_run_fp8_128);
NONE(sl_attn_run_fp8_256);

static const struct attn_dims DIMS = {32, 8, 128};

/* Keys of page i of the pool, of all its layers, times by[i]. */
static __global__ void scale_keys(uint16_t *pool, const float *by, uint64_t page_bytes,
                                  uint64_t plane, int n_layers)
{
    sl_grid_wait();
    const float x = by[blockIdx.x];
    for (int layer = 0; layer < n_layers; layer++) {
        __half *keys =
            reinterpret_cast<__half *>(reinterpret_cast<uint8_t *>(pool) + blockIdx.x * page_bytes +
                                       2 * plane * static_cast<uint64_t>(layer));
        for (uint64_t i = threadIdx.x; i < plane / 2; i += blockDim.x)
            keys[i] = __float2half_rn(__half2float(keys[i]) * x);
    }
    sl_grid_launch_dependents();
}

/* The first tile's keys and those of some others are long, the rest are short: `share` of them. */
static void prepare(const struct attn_case &c, dev<uint16_t> *pool, double share, float length)
{
    const size_t pages = c.tables.size() / static_cast<size_t>(c.n_seqs);
    std::vector<float> by(c.tables.size());
    for (size_t i = 0; i < by.size(); i++) {
        const size_t tile = i % pages / 4;
        const bool low = tile > 0 && random_bits(i / pages * 65536 + tile) * 0x1p-32 < share;
        by[static_cast<size_t>(c.tables[i])] = low ? 0x1p-6f : length;
    }
    dev<float> dby(by);
    fill(pool->p, attn_pool_bytes(&c) / 2, FILL_F16);
    sl_launch(&lab_cu, scale_keys, dim3(static_cast<unsigned>(by.size())), dim3(256), 0, pool->p,
              (const float *)dby.p, static_cast<uint64_t>(c.page_bytes),
              static_cast<uint64_t>(c.plane), c.n_layers);
    lab_must_be_well("keys");
}

/* Calls f(op, out, n) with a planned case. */
template <class F> static void with(const struct attn_case &c, F f)
{
    const size_t n = static_cast<size_t>(c.n_seqs) * static_cast<size_t>(c.n) *
                     static_cast<size_t>(DIMS.n_heads) * static_cast<size_t>(DIMS.hd);
    struct sl_cuda_attention_limits m = {c.n_seqs * c.n, c.n_seqs,  c.pos + c.n,
                                         DIMS.n_heads,   DIMS.n_kv, DIMS.hd};
    attn_device on(c);
    dev<uint8_t> workspace(sl_cuda_attention_workspace(&lab_cu, &m));
    dev<float> q(n);
    dev<uint16_t> out(n);
    fill(q.p, n, FILL_F32, ATTN_PASS);
    lab_cu.workspace = workspace.p;
    lab_cu.workspace_bytes = workspace.n;
    struct sl_op_attention op = {};
    op.batch = &on.batch;
    op.q = q.p;
    op.ld_q = op.ld_out = static_cast<int64_t>(DIMS.n_heads) * DIMS.hd;
    op.n_heads = DIMS.n_heads;
    op.n_kv_heads = DIMS.n_kv;
    op.head_dim = DIMS.hd;
    op.scale = static_cast<float>(1.0 / sqrt(static_cast<double>(DIMS.hd)));
    op.out = out.p;
    sl_cuda_attention_plan(&lab_cu, &on.batch, DIMS.n_heads, DIMS.n_kv, DIMS.hd);
    f(op, &out, n);
    lab_must_be_well("case");
}

/* So that a tile of short keys is below the limit of every row and one of long keys of hardly any.
 */
static float factor_of(const struct attn_case &c)
{
    return c.pos > 0 ? 0.5f * static_cast<float>(c.pos + 1) : 250.0f;
}

/* The last tokens of a sequence as a chunk and as decodes, and a factor that nothing is below. */
static void check(dev<uint16_t> *pool, int n, int pos)
{
    const struct attn_case chunk = attn_make(DIMS, 1, n, pos, 1);
    const size_t row = static_cast<size_t>(DIMS.n_heads) * static_cast<size_t>(DIMS.hd);
    std::vector<uint16_t> want(row * static_cast<size_t>(n)), got(row);
    prepare(chunk, pool, 0.6, 8.0f);
    with(chunk, [&](struct sl_op_attention op, dev<uint16_t> *out, size_t n_out) {
        dev<uint16_t> dense(n_out);
        op.kv = attn_view(&chunk, pool, 0);
        op.out = dense.p;
        sl_cuda_attention(&lab_cu.base, &op);
        op.out = out->p;
        op.skip_factor = 1e-30f;
        sl_cuda_attention(&lab_cu.base, &op);
        lab_must_be_well("chunk");
        unsigned long long bad = lab_differ(out->p, dense.p, n_out / 2);
        op.skip_factor = factor_of(chunk);
        sl_cuda_attention(&lab_cu.base, &op);
        lab_must_be_well("chunk");
        out->get(0, want.data(), want.size());
        printf("%5d behind %6d: nothing left out: %llu words differ; left out: %llu do\n", n, pos,
               bad, lab_differ(out->p, dense.p, n_out / 2));
        if (bad > 0)
            exit(2);
    });
    for (int i : {0, n / 2, n - 1}) {
        struct attn_case one = attn_make(DIMS, 1, 1, pos + i, 1);
        one.tables = chunk.tables;
        one.plane = chunk.plane;
        one.page_bytes = chunk.page_bytes;
        with(one, [&](struct sl_op_attention op, dev<uint16_t> *out, size_t) {
            dev<float> q(row);
            fill(q.p, row, FILL_F32, ATTN_PASS + static_cast<uint64_t>(i) * row);
            op.q = q.p;
            op.kv = attn_view(&one, pool, 0);
            op.skip_factor = factor_of(chunk);
            sl_cuda_attention(&lab_cu.base, &op);
            lab_must_be_well("decode");
            out->get(0, got.data(), row);
        });
        size_t bad = 0;
        for (size_t k = 0; k < row; k++)
            bad += got[k] != want[static_cast<size_t>(i) * row + k];
        printf("      token %5d decoded: %zu of %zu differ\n", i, bad, row);
        if (bad > 0)
            exit(2);
    }
    fflush(stdout);
}

static void measure(dev<uint16_t> *pool, int seqs, int n, int pos, double share, float length,
                    double ms)
{
    struct attn_case c = attn_make(DIMS, seqs, n, pos, 8);
    CHECK(attn_pool_bytes(&c) <= pool->n * 2, "pool");
    prepare(c, pool, share, length);
    with(c, [&](struct sl_op_attention op, dev<uint16_t> *, size_t) {
        const float factors[] = {0.0f, 1e-30f, factor_of(c)};
        double us[3];
        struct sl_skip_counts n_left[2] = {};
        for (int i = 0; i < 3; i++) {
            op.skip_factor = factors[i];
            us[i] = time_us(c.n_layers, ms, [&](int layer) {
                op.kv = attn_view(&c, pool, layer);
                sl_cuda_attention(&lab_cu.base, &op);
            });
        }
        dev<struct sl_skip_counts> counts(std::vector<struct sl_skip_counts>(n_left, n_left + 2));
        op.skip_counts = counts.p;
        sl_cuda_attention(&lab_cu.base, &op);
        lab_must_be_well("counts");
        counts.get(0, n_left, 2);
        const struct sl_skip_counts *x = &n_left[n == 1];
        printf(
            "%3d x %5d behind %6d  %2.0f  %5.1f %% %5.1f %%  %9.1f %9.1f %+5.1f %%  %9.1f %5.2f\n",
            seqs, n, pos, static_cast<double>(length),
            100.0 * (double)x->skipped / (double)x->tiles,
            100.0 * (double)x->units_skipped / (double)x->units, us[0], us[1],
            100.0 * (us[1] / us[0] - 1.0), us[2], us[0] / us[2]);
        fflush(stdout);
    });
}

int main()
{
    lab_start();
    dev<uint16_t> pool(b.tiny ? static_cast<size_t>(4) << 20 : static_cast<size_t>(3) << 30);
    check(&pool, 40, 1000);
    if (b.tiny)
        return 0;
    check(&pool, 700, 3000);
    check(&pool, 9, 20000);
    printf("%27s  %2s  %7s %7s  %9s %9s %7s  %9s %5s\n", "", "x", "rows", "units", "off us",
           "none us", "", "on us", "");
    for (double share : {0.0, 0.5, 0.7, 0.9}) {
        measure(&pool, 64, 1, 8191, share, 8.0f, 30.0);
        measure(&pool, 16, 1, 32767, share, 8.0f, 30.0);
        measure(&pool, 1, 1, 131071, share, 8.0f, 20.0);
        measure(&pool, 1, 1, 8191, share, 8.0f, 10.0);
        for (float length : {2.0f, 8.0f}) {
            measure(&pool, 1, 2048, 8192, share, length, 60.0);
            measure(&pool, 1, 8192, 0, share, length, 60.0);
            measure(&pool, 1, 2048, 30720, share, length, 60.0);
        }
    }
    return 0;
}
