/* SPDX-License-Identifier: MIT
 * linear_small.cu - the product with 1 to 16 tokens: what decoding a weight may cost.
 *
 *   linear_small --list | --only NAME
 *
 * Budget: 132 multiprocessors x 4 schedulers x 1.755 GHz are 927 G warp instructions a second; at
 * 4.7 TB/s of weights one warp instruction must dispose of 5.1 bytes, so a lane has
 *
 *             bytes a weight   instructions a weight at 100 % issue   at 75 %
 *   BF16          2                   12.6                               9.5
 *   FP8           1.03                 6.5                               4.9
 *   Q8_0          1.0625               6.7                               5.0
 *   Q4_K          0.5625               3.5                               2.7
 *
 * and src/cuda spends, with all around it, about 3.5 on Q8_0 and 7 to 8 on Q4_K: 1.64 TB/s of Q4_K
 * weights on the largest matrix (36 % of read) is its issue slots, Q8_0's 88 % there is not; what
 * is below on smaller matrices is the fixed 5 us of a launch of its streaming kernel.
 *
 * Shared memory: a k64 step of Q4_K reads 512 + 256 bytes of weights and scales and 1 KB of tokens,
 * and 576 more are written by copies: 2.3 KB for 576 bytes, 71 % of 128 bytes a clock at 4.7 TB/s.
 * Here weights go from global memory to registers, 2 x 256 columns ahead in each of 16 warps (74 KB
 * under way, 36 wanted), which leaves the tokens: 1 KB for 576 bytes.
 *
 * Share of 4.7 TB/s with 1 token: predicted for 28672 x 4096, then measured there, on the largest
 * matrix (128256 x 4096) and on 4096 x 14336 (H200, 2026-11-22). src/cuda on the same three: BF16
 * 86, 95, 83 %, Q8_0 71, 88, 60 %, Q4_K 28, 36, 29 % of its own run's ceiling of 4.57.
 *
 *                                                                   predicted  measured       error
 *   bf16      no decode                                                 88 %   84  91  87 % 2e-11
 *   q8        as src/cuda: byte to float, fma, pack: 2.5 a weight       85 %   79  90  67 % 3e-06
 *   q8_bf16   d as bf16: 2.25 with packed fma                           86 %   83  92  69 % 5e-06
 *   q8_after  codes as bf16 (1.75), d behind the products               86 %   85  93  72 % 4e-14
 *   q4k       as src/cuda was: 3.5 and the scales 1, with all 6 (gone)  45 %   37  44  31 % 4e-06
 *   q4k_fold  the subtraction of 128 folded into the minimum: 5         55 %   43  52  39 % 4e-06
 *   q4k_bf16  scale and minimum as bf16, packed fma: 3.4                75 %   53  65  45 % 9e-06
 *   q4k_after codes as bf16, scales behind the products: 2.7            85 %   55  69  41 % 7e-14
 *
 * `error` is the square error against double over the square; q8, q4k and bf16 have the bits of
 * src/cuda, q4k_fold differs from them where 128 r + m is not exact, the others always.
 *
 * What was learnt:
 * - Instructions bind Q4_K: each version with fewer is faster, in the order of the count. None gets
 * to 85 %: the scales, which the four lanes of a row compute four times, and what is around are as
 * many as the codes. 16 warps with one 8-token tile hide no more.
 * - Weights straight to registers instead of through shared memory are worth 20 to 27 % with the
 * same decoding (gate and up: q4k 38 us for 52, q8 33.5 for 38.6) and more on small matrices (4096
 * x 4096: bf16 9.3 for 12.5, q8 7.6 for 8.5, q4k 7.8 for 9.4).
 * - With 8 and 16 tokens this kernel loses: each block brings all of them first (4096 x 4096, 16
 *   tokens: 13.8 us for 11.5).
 * - In a step (bench_ops --only step, 8B in BF16, one sequence) the four products of a layer take
 *   114.8 us one behind the other, as long as each alone in turn; their bytes are 93 us. What is
 *   missing is 3 us at each start and 4 % of the stream. Asking L2 for the next product's weights
 *   behind the last own ones (cp.async.bulk.prefetch.L2, 8 to 40 MB) made steps 0.4 to 2.4 %
 *   slower: L2 gives little more than memory does, so what is late must already be on the
 *   multiprocessor. A ring of weights that runs on over the ends of products would have it there.
 * - Scales behind the products are faster and 8 orders of magnitude nearer to double, as codes lose
 *   nothing. For many tokens every 32 columns cost a multiplication of all sums then: for Q8_0 half
 *   the issue slots beside full tensor cores, for Q4_K more.
 * - Tried in src/cuda and not landed (H200, bench_ops --only linear, 1 token): FP8 and four-bit
 *   groups of 128 with scales behind the products. 128256 x 4096: four-bit groups 87 us for 136 to
 *   147, FP8 127; 28672 x 4096 gated: 24.0 for 37.2, 32.7. But 2,048 tokens of gate and up:
 *   four-bit groups 448 TFLOP/s for 595 and FP8 373, as wgmma waits for each group to be scaled.
 *   With four-bit groups, which read at 69 %: rings of cp.async in shared memory, twice as deep,
 *   92.7 us for 87.2; the sums of two groups side by side 0 to 3 %; two tiles of 8 tokens for 16
 *   instead of wgmma 104 for 129 there, but 4096 x 4096 15.3 for 8.6; 64 registers and half the
 *   shared memory, so that the next kernel fits beside: alone 6.6 for 7.3, four products of a layer
 *   75.9 for 58.3; asking for the next kernel late: 0 to 17 % slower. Shifts, logic, permutations
 *   and conversions have half the lanes, and were most of decoding.
 * - Landed: codes as pairs by one logic instruction, the rest in packed arithmetic, for Q4_K,
 *   groups and FP8 (bench/results/cuda-h200.txt): as fast as scales behind the products, and
 *   prompts gain. Then what was in the way was not depth but when it is asked for: 256 columns at
 *   once, behind the products of 256, left each load as long as 256 columns take; 64 behind those
 *   of 64, into the same registers, leave it twice that. Groups 75 us, gate and up 21; Q4_K 86 and
 *   23. What remains there is arithmetic: half-rate pipes take turns.
 */
#include "linear_small.cuh"

/* ------------------------------------------------------------------ reference: weights as double
 */

enum small_format {
    SMALL_BF16,
    SMALL_Q8,
    SMALL_Q8_SIGNED,
    SMALL_Q4K,
    SMALL_Q4K_PAIRS,
    SMALL_Q4K_16
};

struct small_info {
    int unit_k, unit_bytes;
};
static __host__ __device__ inline struct small_info small_info_of(int format)
{
    if (format == SMALL_BF16)
        return {64, 2048};
    if (format == SMALL_Q8 || format == SMALL_Q8_SIGNED)
        return {64, 1088};
    return {256, 2304};
}

/* Element e of step j of a lane's word of nibbles. */
static __device__ inline uint32_t small_nibble(uint32_t w, int format, int e)
{
    if (format == SMALL_Q4K)
        return w >> (e < 4 ? 8 * e : 8 * (e - 4) + 4) & 15;
    int pair = e / 2, upper = e & 1;
    if (format == SMALL_Q4K_PAIRS)
        return w >> (4 * pair + 16 * upper) & 15;
    if (pair == 3) /* turned by four: its halves have changed places */
        return (w << 4 | w >> 28) >> (3 + 16 * upper) & 15;
    return w >> (3 + 4 * pair + 16 * upper) & 15;
}

/* Weight (row, k) of the packed matrix, as the reference decode has it. */
static __device__ inline float small_weight(const uint8_t *w, int format, int n_cols, int row,
                                            int k)
{
    struct small_info f = small_info_of(format);
    const uint8_t *unit =
        w + (static_cast<int64_t>(row / 16) * (n_cols / f.unit_k) + k / f.unit_k) * f.unit_bytes;
    int r = row % 16, c = k % f.unit_k, step = c / 16, in = c % 16;
    int lane = r % 8 * 4 + in % 8 / 2, e = (in & 1) + (r / 8) * 2 + in / 8 * 4;
    if (format == SMALL_BF16) {
        const uint16_t *p = reinterpret_cast<const uint16_t *>(unit + 512 * step + 16 * lane);
        return __uint_as_float(static_cast<uint32_t>(p[e]) << 16);
    }
    if (format == SMALL_Q8 || format == SMALL_Q8_SIGNED) {
        const uint8_t *p = unit + 512 * (step / 2) + 16 * lane + 8 * (step & 1);
        const uint16_t *d = reinterpret_cast<const uint16_t *>(unit + 1024 + 8 * (r % 8));
        float scale = sl_half_bits(d[2 * (r / 8) + step / 2]);
        if (format == SMALL_Q8)
            return __fmul_rn(scale, static_cast<float>(static_cast<int>(p[e]) - 128));
        /* pairs of elements 0, 1 and 2, 3 are bytes 0, 2 and 1, 3 of a word */
        int at = 4 * (e / 4) + (e / 2 & 1) + 2 * (e & 1);
        return __fmul_rn(scale, static_cast<float>(static_cast<int8_t>(p[at])));
    }
    int sub = c / 64, half = c / 32 & 1;
    uint32_t word =
        *reinterpret_cast<const uint32_t *>(unit + 512 * sub + 16 * lane + 4 * (step % 4));
    uint4 row16 = *reinterpret_cast<const uint4 *>(unit + 2048 + 16 * r);
    uint32_t fields = sl_qk_fields(row16, sub);
    float d = __fmul_rn(sl_half_bits(row16.x), static_cast<float>(fields >> 8 * half & 255));
    float m =
        __fmul_rn(sl_half_bits(row16.x >> 16), static_cast<float>(fields >> 8 * (2 + half) & 255));
    return __fmaf_rn(d, static_cast<float>(small_nibble(word, format, e)), -m);
}

/* A warp for 16 rows and 8 tokens: bits that src/cuda promises, of weights rounded to bf16. */
static __global__ void __launch_bounds__(128)
    reference_kernel(const uint8_t *w, const uint32_t *x, float *out, int format, int n_rows,
                     int n_cols, int n_tokens, int seg_cols)
{
    sl_grid_wait();
    int warp = static_cast<int>(threadIdx.x / 32), lane = static_cast<int>(threadIdx.x % 32);
    int row = (static_cast<int>(blockIdx.x) * 4 + warp) * 16 + lane / 4;
    int token = static_cast<int>(blockIdx.y) * 8, t = token + lane / 4;
    float sum[4] = {}, acc[4];
    for (int from = 0; from < n_cols; from += seg_cols) {
        for (float &v : acc)
            v = 0.0f;
        for (int k = from; k < min(from + seg_cols, n_cols); k += 16) {
            uint32_t a[4] = {}, xb[2] = {};
            for (int i = 0; i < 4; i++) {
                int r = row + 8 * (i & 1), c = k + lane % 4 * 2 + 8 * (i >> 1);
                if (r < n_rows)
                    a[i] = sl_pack_bf16(small_weight(w, format, n_cols, r, c),
                                        small_weight(w, format, n_cols, r, c + 1));
            }
            for (int i = 0; i < 2; i++)
                if (t < n_tokens)
                    xb[i] = x[(static_cast<int64_t>(t) * n_cols + k) / 2 + lane % 4 + 4 * i];
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

/* Sums of (out - right)^2 and right^2 over some rows. */
static __global__ void error_kernel(const uint8_t *w, const uint16_t *x, const float *out,
                                    int format, int n_rows, int n_cols, int n_tokens, int step,
                                    double *sums)
{
    sl_grid_wait();
    int i = static_cast<int>(blockIdx.x * blockDim.x + threadIdx.x);
    int row = i / n_tokens * step, token = i % n_tokens;
    if (row < n_rows) {
        double y = 0.0;
        for (int k = 0; k < n_cols; k++)
            y += static_cast<double>(small_weight(w, format, n_cols, row, k)) *
                 static_cast<double>(__uint_as_float(
                     static_cast<uint32_t>(x[static_cast<int64_t>(token) * n_cols + k]) << 16));
        double e = static_cast<double>(out[static_cast<int64_t>(token) * n_rows + row]) - y;
        sums[2 * i] = e * e;
        sums[2 * i + 1] = y * y;
    }
    sl_grid_launch_dependents();
}

/* Random codes; scales that are small, positive and never the same. */
static __global__ void fill_units_kernel(uint8_t *w, int64_t n_units, int format, uint64_t seed)
{
    sl_grid_wait();
    struct small_info f = small_info_of(format);
    for (int64_t i = static_cast<int64_t>(blockIdx.x) * blockDim.x + threadIdx.x;
         i < n_units * f.unit_bytes / 4; i += static_cast<int64_t>(gridDim.x) * blockDim.x) {
        uint32_t v = random_bits(static_cast<uint64_t>(i) + seed);
        int at = static_cast<int>(i * 4 % f.unit_bytes);
        uint32_t half = 0x1C00 + (v & 0x3FF), half2 = 0x1C00 + (v >> 16 & 0x3FF);
        if (format == SMALL_BF16)
            v = to_bf16(random_normal(2 * static_cast<uint64_t>(i) + seed)) |
                static_cast<uint32_t>(to_bf16(random_normal(2 * static_cast<uint64_t>(i) + 1)))
                    << 16;
        else if ((f.unit_k == 64 && at >= 1024) || (f.unit_k == 256 && at >= 2048 && at % 16 == 0))
            v = half | half2 << 16;
        reinterpret_cast<uint32_t *>(w)[i] = v;
    }
    sl_grid_launch_dependents();
}

/* ------------------------------------------------------------------ versions */

struct version {
    const char *name, *what;
    small_format format;
    bool exact;                            /* the bits of src/cuda */
    bool (*run[2])(const small_product &); /* up to 8 and 16 tokens */
};

#define VERSION(name, what, format, exact, ...)                  \
    {                                                            \
        name, what, format, exact,                               \
        {                                                        \
            small_run<__VA_ARGS__, 1>, small_run<__VA_ARGS__, 2> \
        }                                                        \
    }
typedef small_plain<sl_wf_bf16, 128> plain_bf16;
typedef small_plain<sl_wf_q8_0, 256> plain_q8;
static const struct version versions[] = {
    VERSION("bf16", "no decode", SMALL_BF16, true, plain_bf16),
    VERSION("q8", "as src/cuda", SMALL_Q8, true, plain_q8),
    VERSION("q8_bf16", "d as bf16", SMALL_Q8_SIGNED, false, small_q8<Q8_BF16>),
    VERSION("q8_after", "d behind the products", SMALL_Q8_SIGNED, false, small_q8<Q8_AFTER>),
    VERSION("q4k_fold", "128 folded into the minimum", SMALL_Q4K, false, small_q4k<Q4K_FOLD>),
    VERSION("q4k_bf16", "scale and minimum as bf16", SMALL_Q4K_PAIRS, false, small_q4k<Q4K_BF16>),
    VERSION("q4k_after", "scales behind the products", SMALL_Q4K_16, false, small_q4k<Q4K_AFTER>),
};

struct shape {
    int n_rows, n_cols, n_segs;
};

static size_t weight_bytes(const struct version &v, const struct shape &s)
{
    struct small_info f = small_info_of(v.format);
    return static_cast<size_t>((s.n_rows + 15) / 16) * static_cast<size_t>(s.n_cols / f.unit_k) *
           static_cast<size_t>(f.unit_bytes);
}

struct data {
    dev<uint16_t> *x;
    dev<float> *out, *want;
    dev<double> *sums;
    std::vector<void *> w;
};

static void fill_units(const struct version &v, void *p, size_t n_bytes, uint64_t seed)
{
    struct small_info f = small_info_of(v.format);
    size_t n = std::min(n_bytes / 1024 + 1, static_cast<size_t>(b.tiny ? 4 : 4096));
    sl_launch(&lab_cu, fill_units_kernel, dim3(static_cast<unsigned>(n)), dim3(256), 0,
              (uint8_t *)p, static_cast<int64_t>(n_bytes / static_cast<size_t>(f.unit_bytes)),
              static_cast<int>(v.format), seed);
}

/* Prints how what lies in out compares, and ends the program when exact bits are not. */
static void check(const struct version &v, const struct data &d, const struct shape &s, int m,
                  const void *w)
{
    unsigned rows = static_cast<unsigned>((s.n_rows + 63) / 64);
    int seg_cols = SL_ROUND_UP(SL_CEIL_DIV(s.n_cols, s.n_segs), 256);
    unsigned long long bad = 0;
    if (v.exact) {
        MUST(cudaMemsetAsync(d.want->p, 0xFF, d.want->n * 4, lab_cu.stream));
        sl_launch(&lab_cu, reference_kernel, dim3(rows, static_cast<unsigned>((m + 7) / 8)),
                  dim3(128), 0, (const uint8_t *)w, (const uint32_t *)d.x->p, d.want->p,
                  static_cast<int>(v.format), s.n_rows, s.n_cols, m, seg_cols);
        bad =
            lab_differ(d.out->p, d.want->p, static_cast<size_t>(s.n_rows) * static_cast<size_t>(m));
    }
    int step = std::max(1, s.n_rows / 256), n = (s.n_rows + step - 1) / step * m;
    sl_launch(&lab_cu, error_kernel, dim3(static_cast<unsigned>((n + 63) / 64)), dim3(64), 0,
              (const uint8_t *)w, (const uint16_t *)d.x->p, (const float *)d.out->p,
              static_cast<int>(v.format), s.n_rows, s.n_cols, m, step, d.sums->p);
    lab_must_be_well(v.name);
    std::vector<double> sums(static_cast<size_t>(2 * n));
    d.sums->get(0, sums.data(), sums.size());
    double e = 0.0, y = 0.0;
    for (int i = 0; i < n; i++)
        e += sums[static_cast<size_t>(2 * i)], y += sums[static_cast<size_t>(2 * i + 1)];
    printf("  error %.1e%s%s\n", e / y,
           bad > 0   ? "  WRONG BITS"
           : v.exact ? "  same bits"
                     : "",
           e / y < 1e-4 ? "" : "  WRONG");
    fflush(stdout);
}

static void one(const struct version &v, struct data *d, const struct shape &s, int m)
{
    small_product p = {nullptr, d->x->p, d->out->p, s.n_rows, s.n_cols, m, s.n_segs};
    auto run = v.run[m > 8];
    p.w = d->w[0];
    MUST(cudaMemsetAsync(d->out->p, 0xFF, d->out->n * 4, lab_cu.stream));
    if (!run(p))
        return; /* the tokens do not fit */
    double us = time_us(static_cast<int>(d->w.size()), 15.0, [&](int i) {
        small_product q = p;
        q.w = d->w[static_cast<size_t>(i)];
        run(q);
    });
    lab_must_be_well(v.name);
    double bytes = static_cast<double>(weight_bytes(v, s)) + m * (s.n_cols * 2.0 + s.n_rows * 4.0);
    printf("%-9s %6d x %-6d %3d %8.1f us %6.0f GB/s %5.1f %% of 4.7", v.name, s.n_rows, s.n_cols, m,
           us, bytes / us * 1e-3, bytes / us * 1e-3 / 47.0);
    check(v, *d, s, m, d->w.back());
}

static void all(const struct version &v, struct data *d)
{
    static const std::vector<struct shape> full = {{1000, 2048, 4},  {4096, 4096, 4},
                                                   {6144, 4096, 4},  {28672, 4096, 1},
                                                   {4096, 14336, 4}, {128256, 4096, 1}};
    static const std::vector<struct shape> tiny = {{200, 1024, 4}, {300, 512, 1}};
    for (const struct shape &s : b.tiny ? tiny : full) {
        size_t n = weight_bytes(v, s);
        for (int i = 0; i < n_copies_for(n, 64); i++) {
            void *p = nullptr;
            MUST(cudaMalloc(&p, n));
            fill_units(v, p, n, static_cast<uint64_t>(i) << 33);
            d->w.push_back(p);
        }
        for (int m : {1, 2, 4, 8, 16})
            if (!b.tiny || m == 1 || m == 16)
                one(v, d, s, m);
        lab_must_be_well(v.name);
        for (void *p : d->w)
            MUST(cudaFree(p));
        d->w.clear();
    }
}

int main(int argc, char **argv)
{
    bool list = argc == 2 && !strcmp(argv[1], "--list");
    if (!list && (argc != 3 || strcmp(argv[1], "--only") != 0)) {
        fprintf(stderr, "linear_small --list | --only NAME\n");
        return 2;
    }
    if (list) {
        for (const struct version &v : versions)
            printf("%-9s %s\n", v.name, v.what);
        return 0;
    }
    lab_start();
    {
        dev<uint16_t> x(16 * 14336);
        dev<float> out(b.tiny ? 16 * 512 : 16 * 128256), want(out.n);
        dev<double> sums(2 * 16 * 1024);
        struct data d = {&x, &out, &want, &sums, {}};
        fill(x.p, x.n, FILL_BF16, static_cast<uint64_t>(1) << 40);
        for (const struct version &v : versions)
            if (!strcmp(argv[2], v.name))
                all(v, &d);
    }
    return 0;
}
