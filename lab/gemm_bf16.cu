/* SPDX-License-Identifier: MIT
 * gemm_bf16.cu - versions of the large BF16 product, side by side, against cuBLASLt.
 *
 *   gemm_bf16 --list             the versions
 *   gemm_bf16 --only NAME        one version: bits at small shapes, then the table (cublas: that)
 *   options: --quick (the two large shapes), --raster N
 *
 * Floor and limits (H200, 132 multiprocessors): 4096 FLOP a clock and multiprocessor, 989 TFLOP/s
 * at 1.83 GHz; shared memory gives 128 bytes a clock, L2 about 6154 a clock to all. For 16 columns
 * of a tile of R rows and T tokens (R T / 128 clocks when the tensor cores never wait):
 *
 *   tile       clocks  wgmma reads  copies write  of 128 B/clk  from L2, 132 alone  with a partner
 *   256 x 128     256       24 KB         12 KB         144 %     6336 B/clk            4224
 *   128 x 256     256       20 KB         12 KB         125 -> 98 %                      as above
 *   128 x 192     192       16 KB         10 KB         106 %     7040                  5280
 *
 * (reads: B once and A once a product of 64 rows; 256 x 128 as two products of 128 tokens each).
 * So the tile of today (256 x 128, weights through registers, alone) is bound by shared memory and
 * by L2 at once; 128 x 256 with one partner is bound by neither.
 *
 * TFLOP/s at 8192^3 / 4096^3, float out: predicted before the first run, then measured (two runs of
 * one H200, 2026-11-22, N(0,1); clusters in the second only).
 *
 *               what                                          predicted   measured
 *   cublas      cuBLASLt 13.1, best of 8 algorithms                       631..685 / 677..737
 *   src/cuda    256 x 128 (before the second run)                         530..620
 *   smem1       128 x 256, 4 stages, alone                     680 / 620  749, 788 / 659..722
 *   boxes1      the same, stores by the copy engine                       771 / 649..762
 *   sharex2     smem1, pairs share tokens                      770 / 680  769 / 690..718
 *   boxes2      the same, stores by the copy engine            780 / 700  777 / 739..761
 *   sharew2     pairs share weights                            740 / 660  first run 482 / 450
 *   regs1       smem1, weights through registers                          755 / 636..746
 *   regs2       sharex2, weights through registers             720 / 640  794 / 661..761
 *   totals1     128 x 192, four segments in turn                          768 / 544..630
 *   totals2     the same in pairs                                - / 600  778 / 627..670
 *   totals1n    128 x 128, four segments in turn                          667 / 605..645
 *   totals2n    the same in pairs                                         737 / 638..703
 *   none2       sharex2 that stores nothing                    +2..4 %    not told apart
 *   mma2        loads and stores nothing                       800..850   906, 1.77 GHz; 845 at 1.6
 *
 * What was learnt:
 * - Power is the limit, as predicted for the pairs, but for all: smem1 holds the tensor cores about
 *   full at 1.37 to 1.48 GHz of 1.98. Runs differ by 5 % with the chip's warmth.
 * - L2 does not bind smem1, against the prediction: 6336 bytes a clock of the multiprocessors are
 *   fewer of L2's, whose clock does not sink with theirs.
 * - Weights through registers cost nothing, so coded formats may hope for the same. BF16 left them
 *   later, for tiles of any number of rows (linear_tile.cuh).
 * - First run: every version with a cluster lost a third (sharex2 534, sharew2 482, regs2 550).
 *   mbarrier.arrive.release.cluster is a fence of the whole device (MEMBAR.ALL.GPU) each time. What
 *   is released is only that wgmma has read, which needs none.
 * - 4096 x 4096, us at 128 / 256 / 512 tokens (cublas 13.9 / 16.1 / 25): half1 16.7 / 16.9 / 33.0,
 *   narrow1 24.0 / 22.8 / 25.8, totals1n 25.5 / 23.8 / 26.0, split2 13.2 / 24.3, split2m 16.1 /
 *   19.6, split4n 18.5 / 30.9. Only 30 clusters of four run at once, so that 32 take two turns; of
 * pairs
 *   66. 4096 x 14336 at 128 / 256 / 512 (cublas 38 / 47 / 94): split2 35.9, split2m 49.4 at 256,
 *   totals1n 80.5 at 512. Segments in the two blocks of a pair are the way for 128 and 256 tokens.
 * - 192 x 256 with three consumers cannot be: ptxas allows 128 registers an instruction in a block
 *   of 512 threads, and m64n256 wants more.
 *
 * What binds src/cuda's tiles beside cuBLASLt's, whose us over ours are 104, 99, 95, 93, 88, 88, 89
 * and 89 % in the mean of layers at 64, 128 .. 8192 tokens (ncu, cold, clocks of a multiprocessor):
 * - 4096 x 4096, 2048 tokens: shared memory. 128 x 128 wants 80 KB a step, 640 clocks of 128 bytes:
 *   four rounds of 64 steps are 163,840, measured 163,144. cuBLASLt's 128 x 256 wants 1,152 for
 *   twice as much, 147,456, measured 151,259; four segments and their total of such a tile do not
 *   fit in registers (totals1 is as wide as they go).
 * - Few tiles of short K (2048 x 2048, 512 tokens; 21,438 clocks for 19,441): L2, 2.25 M sectors
 *   for 1.28 M with clusters of eight that share both operands; the first stage 1 us behind the
 *   end of the kernel ahead.
 * - Gated tiles: 5,000 clocks of activation behind 32 steps, 100 M instructions for 29 M.
 * - 8192^3 and most above 1024 tokens: power. Both run at 720 W and 1.37 to 1.55 GHz.
 */
#include "gemm_bf16.cuh"

/* ------------------------------------------------------------------ data and reference */

/* Packs rows of K bf16 into units of 16 rows x 64 columns. regs: fragments of a lane side by side,
 * as src/cuda had them; else the rows one behind the other, pieces of 16 bytes at piece ^ (row %
 * 8).
 */
static __global__ void pack_kernel(const uint32_t *w, uint32_t *out, int n_rows, int n_cols,
                                   int regs)
{
    sl_grid_wait();
    int64_t n = static_cast<int64_t>((n_rows + 15) / 16) * (n_cols / 64) * 512;
    for (int64_t i = static_cast<int64_t>(blockIdx.x) * blockDim.x + threadIdx.x; i < n;
         i += static_cast<int64_t>(gridDim.x) * blockDim.x) {
        int64_t unit = i / 512;
        int at = static_cast<int>(i % 512), row, col; /* of pairs of columns */
        if (regs) {
            int j = at / 128, lane = at / 4 % 32, e = at % 4;
            row = lane / 4 + 8 * (e & 1);
            col = 8 * j + lane % 4 + 4 * (e >> 1);
        } else {
            row = at / 32;
            col = ((at / 4 % 8) ^ (row % 8)) * 4 + at % 4;
        }
        int64_t k = unit % (n_cols / 64) * 32 + col, r = unit / (n_cols / 64) * 16 + row;
        out[i] = r < n_rows ? w[r * (n_cols / 2) + k] : 0;
    }
    sl_grid_launch_dependents();
}

/* A warp for 16 rows and 8 tokens, straight from the rows. */
static __global__ void __launch_bounds__(128)
    reference_kernel(const uint32_t *w, const uint32_t *x, float *out, int n_rows, int n_cols,
                     int n_tokens, int seg_cols, int token_step)
{
    sl_grid_wait();
    int warp = static_cast<int>(threadIdx.x / 32), lane = static_cast<int>(threadIdx.x % 32);
    int row = (static_cast<int>(blockIdx.x) * 4 + warp) * 16 + lane / 4;
    int token = static_cast<int>(blockIdx.y) * token_step, t = token + lane / 4, ld = n_cols / 2;
    float sum[4] = {}, acc[4];
    for (int from = 0; from < n_cols; from += seg_cols) {
        for (float &v : acc)
            v = 0.0f;
        for (int k = from; k < min(from + seg_cols, n_cols); k += 16) {
            uint32_t a[4], xb[2];
            for (int i = 0; i < 4; i++) {
                int r = row + 8 * (i & 1);
                int64_t at = static_cast<int64_t>(r) * ld + k / 2 + lane % 4 + 4 * (i >> 1);
                a[i] = r < n_rows ? w[at] : 0;
            }
            for (int i = 0; i < 2; i++) {
                int64_t at = static_cast<int64_t>(t) * ld + k / 2 + lane % 4 + 4 * i;
                xb[i] = t < n_tokens ? x[at] : 0;
            }
            sl_mma_bf16(acc, a, xb);
        }
        for (int i = 0; i < 4; i++)
            sum[i] = from == 0 ? acc[i] : __fadd_rn(sum[i], acc[i]);
    }
    for (int i = 0; i < 4; i++) {
        int r = row + 8 * (i >> 1), to = token + 2 * (lane % 4) + (i & 1);
        if (r < n_rows && to < n_tokens)
            out[static_cast<int64_t>(to) * n_rows + r] = sum[i];
    }
    sl_grid_launch_dependents();
}

/* ------------------------------------------------------------------ versions */

struct version {
    const char *name, *what;
    void (*run)(const gemm_product &);
    gemm_operand operand;
    int segs; /* it adds up so many; 0: any */
    int most_tokens;
};

#define VERSION(name, what, segs, most, operand, ...)                         \
    {                                                                         \
        name, what, gemm_launch<gemm_shape<__VA_ARGS__>>, operand, segs, most \
    }
static const struct version versions[] = {
    VERSION("smem1", "128 x 256", 1, 1 << 20, FROM_SMEM, 2, 256, 1, ALONE, false, FROM_SMEM),
    VERSION("sharex2", "128 x 256, pairs share tokens", 1, 1 << 20, FROM_SMEM, 2, 256, 2, SHARE_X,
            false, FROM_SMEM),
    VERSION("boxes2", "sharex2, stores by the copy engine", 1, 1 << 20, FROM_SMEM, 2, 256, 2,
            SHARE_X, false, FROM_SMEM, STORE_BOXES),
    VERSION("boxes1", "smem1, stores by the copy engine", 1, 1 << 20, FROM_SMEM, 2, 256, 1, ALONE,
            false, FROM_SMEM, STORE_BOXES),
    VERSION("regs1", "smem1, weights through registers", 1, 1 << 20, FROM_REGS, 2, 256, 1, ALONE,
            false, FROM_REGS),
    VERSION("sharew2", "128 x 256, pairs share weights", 1, 1 << 20, FROM_SMEM, 2, 256, 2, SHARE_W,
            false, FROM_SMEM),
    VERSION("regs2", "sharex2, weights through registers", 1, 1 << 20, FROM_REGS, 2, 256, 2,
            SHARE_X, false, FROM_REGS),
    VERSION("narrow1", "128 x 128", 1, 512, FROM_SMEM, 2, 128, 1, ALONE, false, FROM_SMEM),
    VERSION("narrow2", "192 x 128, pairs share tokens", 1, 512, FROM_SMEM, 3, 128, 2, SHARE_X,
            false, FROM_SMEM),
    VERSION("totals1", "128 x 192, 4 segments in turn", 4, 1 << 20, FROM_SMEM, 2, 192, 1, ALONE,
            true, FROM_SMEM),
    VERSION("totals1n", "128 x 128, 4 segments in turn", 4, 1 << 20, FROM_SMEM, 2, 128, 1, ALONE,
            true, FROM_SMEM),
    VERSION("half1", "64 x 128", 1, 512, FROM_SMEM, 1, 128, 1, ALONE, false, FROM_SMEM),
    VERSION("half1w", "64 x 256", 1, 512, FROM_SMEM, 1, 256, 1, ALONE, false, FROM_SMEM),
    VERSION("totals2", "128 x 192, 4 segments in turn", 4, 1 << 20, FROM_SMEM, 2, 192, 2, SHARE_X,
            true, FROM_SMEM),
    VERSION("totals2n", "128 x 128, 4 segments in turn", 4, 1 << 20, FROM_SMEM, 2, 128, 2, SHARE_X,
            true, FROM_SMEM),
    VERSION("totals2w", "192 x 128, 4 segments in turn", 4, 1 << 20, FROM_SMEM, 3, 128, 2, SHARE_X,
            true, FROM_SMEM),
    VERSION("split4", "128 x 256, 4 segments at once", 4, 1024, FROM_SMEM, 2, 256, 4, SPLIT, false,
            FROM_SMEM),
    VERSION("split4m", "128 x 128, 4 segments at once", 4, 1024, FROM_SMEM, 2, 128, 4, SPLIT, false,
            FROM_SMEM),
    VERSION("split4n", "192 x 128, 4 segments at once", 4, 1024, FROM_SMEM, 3, 128, 4, SPLIT, false,
            FROM_SMEM),
    VERSION("split4r", "192 x 128, the same, through registers", 4, 1024, FROM_REGS, 3, 128, 4,
            SPLIT, false, FROM_REGS),
    VERSION("split2", "64 x 128, pairs, 2 segments each", 4, 1024, FROM_SMEM, 1, 128, 2, SPLIT2,
            false, FROM_SMEM),
    VERSION("split2m", "128 x 128, pairs, 2 segments each", 4, 1024, FROM_SMEM, 2, 128, 2, SPLIT2,
            false, FROM_SMEM),
    VERSION("none2", "sharex2, nothing stored", -1, 1 << 20, FROM_SMEM, 2, 256, 2, SHARE_X, false,
            FROM_SMEM, STORE_NONE),
    VERSION("mma2", "sharex2, nothing loaded or stored", -1, 1 << 20, FROM_SMEM, 2, 256, 2, SHARE_X,
            false, FROM_SMEM, STORE_NONE, false),
};

struct shape {
    int n_rows, n_cols, n_tokens;
};

struct data {
    dev<uint16_t> *w, *x;
    dev<float> *out, *want;
    std::vector<void *> packed;
};

static int n_blocks_for(size_t n)
{
    return static_cast<int>(std::min((n + 255) / 256, static_cast<size_t>(b.tiny ? 4 : 8192)));
}

static size_t packed_bytes(const struct shape &s)
{
    return static_cast<size_t>((s.n_rows + 15) / 16 * 16) * static_cast<size_t>(s.n_cols) * 2;
}

static int seg_cols(const struct shape &s, int n_segs)
{
    int n = s.n_cols / 64;
    return ((n + n_segs - 1) / n_segs + 3) / 4 * 4 * 64;
}

/* Tokens of which the reference makes the sums: eight of each `step`. */
static int token_step(const struct shape &s)
{
    double flops = 2.0 * s.n_rows * s.n_cols * s.n_tokens;
    return flops < 3e10 ? 8 : 8 * static_cast<int>(flops / 3e10 + 1);
}

/* Bits of what is in out against the reference; the sum of differences. */
static unsigned long long compare(const struct data &d, const struct shape &s, int n_segs)
{
    int step = token_step(s);
    unsigned rows = static_cast<unsigned>((s.n_rows + 63) / 64);
    unsigned tokens = static_cast<unsigned>((s.n_tokens + step - 1) / step);
    MUST(cudaMemsetAsync(d.want->p, 0xFF, d.want->n * 4, lab_cu.stream));
    sl_launch(&lab_cu, reference_kernel, dim3(rows, tokens), dim3(128), 0, (const uint32_t *)d.w->p,
              (const uint32_t *)d.x->p, d.want->p, s.n_rows, s.n_cols, s.n_tokens,
              seg_cols(s, n_segs), step);
    unsigned long long bad = 0;
    if (step == 8)
        return lab_differ(d.out->p, d.want->p,
                          static_cast<size_t>(s.n_rows) * static_cast<size_t>(s.n_tokens));
    for (int t = 0; t < s.n_tokens; t += step) {
        size_t at = static_cast<size_t>(t) * static_cast<size_t>(s.n_rows);
        size_t n = static_cast<size_t>(std::min(8, s.n_tokens - t)) * static_cast<size_t>(s.n_rows);
        bad += lab_differ(d.out->p + at, d.want->p + at, n);
    }
    return bad;
}

static void pack_all(struct data *d, const struct shape &s, gemm_operand operand, int copies)
{
    for (int i = 0; i < copies; i++) {
        void *p = nullptr;
        MUST(cudaMalloc(&p, packed_bytes(s)));
        sl_launch(&lab_cu, pack_kernel,
                  dim3(static_cast<unsigned>(n_blocks_for(packed_bytes(s) / 4))), dim3(256), 0,
                  (const uint32_t *)d->w->p, (uint32_t *)p, s.n_rows, s.n_cols,
                  operand == FROM_REGS ? 1 : 0);
        d->packed.push_back(p);
    }
    lab_must_be_well("packing");
}

static void free_packed(struct data *d)
{
    for (void *p : d->packed)
        MUST(cudaFree(p));
    d->packed.clear();
}

static gemm_product product(const struct data &d, const struct shape &s, int n_segs, int raster)
{
    gemm_product p = {};
    p.x = d.x->p;
    p.out = d.out->p;
    p.n_rows = s.n_rows;
    p.n_cols = s.n_cols;
    p.n_tokens = s.n_tokens;
    p.n_segs = n_segs;
    p.raster = raster;
    return p;
}

/* Edges in every direction, several units a block. */
static void check_small(const struct version &v, struct data *d)
{
    static const struct shape full[] = {{1000, 1024, 300}, {4112, 1920, 520}, {272, 4096, 77}};
    static const struct shape tiny[] = {{400, 896, 300}, {80, 1024, 20}, {900, 1024, 72}};
    for (const struct shape &s : b.tiny ? tiny : full) {
        fill(d->w->p, static_cast<size_t>(s.n_rows) * static_cast<size_t>(s.n_cols), FILL_BF16, 1);
        MUST(cudaMemsetAsync(d->out->p, 0xFF, d->out->n * 4, lab_cu.stream));
        pack_all(d, s, v.operand, 1);
        gemm_product p = product(*d, s, std::max(v.segs, 1), 2);
        p.w = d->packed[0];
        v.run(p);
        lab_must_be_well(v.name);
        unsigned long long bad = v.segs < 0 ? 0 : compare(*d, s, std::max(v.segs, 1));
        printf("%-9s %5d x %-5d %5d tokens: %llu values differ\n", v.name, s.n_rows, s.n_cols,
               s.n_tokens, bad);
        fflush(stdout);
        free_packed(d);
        if (bad > 0)
            exit(2);
    }
}

#define SHARE_MS 20.0

static void time_one(const struct version &v, struct data *d, const struct shape &s, int raster)
{
    const int n_segs = std::max(v.segs, 1);
    MUST(cudaMemsetAsync(d->out->p, 0xFF, d->out->n * 4, lab_cu.stream));
    gemm_product p = product(*d, s, n_segs, raster);
    double us = time_us(static_cast<int>(d->packed.size()), SHARE_MS, [&](int i) {
        gemm_product q = p;
        q.w = d->packed[static_cast<size_t>(i)];
        v.run(q);
    });
    lab_must_be_well(v.name);
    unsigned long long bad = v.segs < 0 ? 0 : compare(*d, s, n_segs);
    double flops = 2.0 * s.n_rows * s.n_cols * s.n_tokens;
    const volatile uint64_t *clocks = reinterpret_cast<volatile uint64_t *>(lab_fault + 4);
    double ghz = static_cast<double>(clocks[0]) / std::max(static_cast<double>(clocks[1]), 1.0);
    printf("%-9s %6d x %-6d %5d %9.1f us %6.0f TFLOP/s  %.2f GHz%s\n", v.name, s.n_rows, s.n_cols,
           s.n_tokens, us, flops / us * 1e-6, ghz, bad > 0 ? "  WRONG BITS" : "");
    fflush(stdout);
}

static void time_cublas(struct data *d, const struct shape &s)
{
    double flops = 2.0 * s.n_rows * s.n_cols * s.n_tokens, us[2];
    for (int i = 0; i < 2; i++)
        us[i] = lt_time(s.n_tokens, s.n_rows, s.n_cols, LT_BF16, i == 0 ? LT_F32 : LT_BF16,
                        d->packed, d->x->p, d->out->p, SHARE_MS);
    printf("%-9s %6d x %-6d %5d %9.1f us %6.0f TFLOP/s   bf16 out %9.1f us %6.0f TFLOP/s\n",
           "cublas", s.n_rows, s.n_cols, s.n_tokens, us[0], flops / us[0] * 1e-6, us[1],
           flops / us[1] * 1e-6);
    fflush(stdout);
}

struct matrix {
    int n_rows, n_cols;
};
static const struct matrix layers[] = {{6144, 4096}, {4096, 4096}, {28672, 4096}, {4096, 14336}};

/* All shapes with the same weights, one after the other. v: NULL is cuBLASLt. */
static void time_all(const struct version *v, struct data *d, bool quick, int raster)
{
    auto with = [&](int n_rows, int n_cols, std::vector<int> tokens) {
        struct shape s = {n_rows, n_cols, 0};
        fill(d->w->p, static_cast<size_t>(n_rows) * static_cast<size_t>(n_cols), FILL_BF16, 1);
        pack_all(d, s, v != nullptr ? v->operand : FROM_SMEM, n_copies_for(packed_bytes(s), 64));
        for (int m : tokens) {
            s.n_tokens = m;
            if (v != nullptr && m <= v->most_tokens)
                time_one(*v, d, s, raster);
            else if (v == nullptr)
                time_cublas(d, s);
        }
        free_packed(d);
    };
    if (b.tiny) {
        with(400, 1024, {300});
        return;
    }
    with(8192, 8192, {8192});
    with(4096, 4096, {4096});
    for (const struct matrix &m : layers)
        if (!quick)
            with(m.n_rows, m.n_cols, {128, 256, 512, 1024, 2048, 4096});
}

static int usage()
{
    fprintf(stderr, "gemm_bf16 --list | --only NAME [--quick] [--raster N]\n");
    return 2;
}

int main(int argc, char **argv)
{
    const char *only = nullptr;
    bool quick = false, found = false;
    int raster = 8;
    for (int i = 1; i < argc; i++) {
        if (!strcmp(argv[i], "--list")) {
            for (const struct version &v : versions)
                printf("%-9s %s\n", v.name, v.what);
            printf("cublas    cuBLASLt\n");
            return 0;
        } else if (!strcmp(argv[i], "--only") && i + 1 < argc) {
            only = argv[++i];
        } else if (!strcmp(argv[i], "--raster") && i + 1 < argc) {
            raster = atoi(argv[++i]);
        } else if (!strcmp(argv[i], "--quick")) {
            quick = true;
        } else {
            return usage();
        }
    }
    if (only == nullptr)
        return usage();
    lab_start();
    size_t most_w = b.tiny ? 1 << 20 : 28672 * 4096, most_x = b.tiny ? 1 << 20 : 8192 * 14336;
    size_t most_out = b.tiny ? 1 << 18 : 8192ull * 28672;
    {
        dev<uint16_t> w(most_w), x(most_x);
        dev<float> out(most_out), want(most_out);
        struct data d = {&w, &x, &out, &want, {}};
        fill(x.p, most_x, FILL_BF16, static_cast<uint64_t>(1) << 40);
        if (!strcmp(only, "cublas")) {
            found = true;
            if (lt_load(nullptr))
                time_all(nullptr, &d, quick, raster);
        }
        for (const struct version &v : versions) {
            if (strcmp(only, v.name) != 0)
                continue;
            found = true;
            check_small(v, &d);
            time_all(&v, &d, quick, raster);
        }
    }
    return found ? 0 : usage();
}
