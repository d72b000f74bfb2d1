/* SPDX-License-Identifier: MIT
 * Mixtures of experts of src/cuda: products and what a shared expert gave against double, and each
 * row against itself alone and against the sum of ranks that have some of the experts each, bit for
 * bit. Runs in the simulator or on a GPU, where the cases are larger.
 */
#include "cuda/cuda.h"
#include "cuda/gemm/weight.h"

#include <cuda_bf16.h>
#include <cuda_fp16.h>

extern "C" {
#include "base/rng.h"
}
#include "device_array.h"
#include "device_weight.h"
#include "quant/block_fields.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <vector>

#ifdef SL_CUDA_SIM
#include "sim.h"
#define LARGE 1 /* times as large on a GPU */
#else
#define LARGE 4
#endif

static int n_failures;
static long n_checks;
static struct sl_rng rng;
static struct sl_backend *be;

#define CHECK(cond, ...)                                      \
    do {                                                      \
        n_checks++;                                           \
        if (!(cond) && n_failures++ < 20) {                   \
            printf("%s:%d: %s: ", __FILE__, __LINE__, #cond); \
            printf(__VA_ARGS__);                              \
            printf("\n");                                     \
        }                                                     \
    } while (0)

static uint64_t below(uint64_t n)
{
    return sl_rng_below(&rng, n);
}

static float normal()
{
    return (float)sl_rng_normal(&rng);
}

template <typename T> static std::vector<T> result(const dev<T> &d)
{
    cudaStreamSynchronize(sl_cuda(be)->stream);
    return d.get();
}

/* ------------------------------------------------------------------ experts */

struct mixture {
    int32_t n_experts, top_k;
    int64_t h, i;
    std::vector<std::vector<float>>
        values[3]; /* gate, up, down of each expert, as the GPU has them */
    std::vector<struct sl_weight> mats[3];
    std::vector<float> bias[3]; /* of each expert, or none */
    struct sl_swiglu swiglu;
    bool weigh_input = false;
    bool plain = false; /* without a gate, whose matrices nobody reads */

    /* limits: biases, and SwiGLU with limits that many gates and ups are over: of gates, or (2) of
     * what becomes of them */
    mixture(enum sl_dtype t, int64_t h_, int64_t i_, int limits, int32_t n_experts_, int32_t top_k_)
        : n_experts(n_experts_), top_k(top_k_), h(h_), i(i_), swiglu()
    {
        struct sl_error err = {};
        if (limits != 0) {
            swiglu.limit = 0.75f, swiglu.alpha = 1.702f, swiglu.up_plus = 1.0f;
            if (limits == 2)
                swiglu.limit = 0.4f, swiglu.late = true;
            for (int k = 0; k < 3; k++)
                for (int64_t n = n_experts * (k < 2 ? i : h); n > 0; n--)
                    bias[k].push_back(normal());
        }
        for (int k = 0; k < 3; k++)
            for (int32_t e = 0; e < n_experts; e++)
                add(k, t, k < 2 ? i : h, k < 2 ? h : i);
        if (be->vt->device->load_end(be, &err) != 0)
            exit((printf("load_end: %s\n", err.msg), 2));
    }
    ~mixture()
    {
        for (std::vector<struct sl_weight> &all : mats)
            for (struct sl_weight &w : all)
                be->vt->weight_destroy(be, &w);
    }
    void add(int k, enum sl_dtype t, int64_t n_rows, int64_t n_cols)
    {
        const struct sl_dtype_info *info = sl_dtype_info(t);
        const size_t n = (size_t)(n_rows * n_cols);
        std::vector<uint8_t> file(n / info->block_elems * info->block_bytes);
        std::vector<float> v(n);
        for (uint8_t &b : file)
            b = (uint8_t)sl_rng_next(&rng);
        for (size_t at = 0; at < file.size(); at += info->block_bytes) {
            const float small = 0.05f * normal();
            if (info->block_elems == 1 && t != SL_DTYPE_FP8_E4M3)
                info->from_f32(&small, &file[at], 1);
            else if (t == SL_DTYPE_FP8_E4M3)
                file[at] = (uint8_t)(below(0x60) | (below(2) << 7));
            else
                block_put_scales(t, &file[at], sl_f32_to_f16(0.01f * normal()),
                                 sl_f32_to_f16(0.01f * normal()));
        }
        device_values(t, file.data(), v.data(), (int64_t)n);
        struct sl_weight w = {};
        struct sl_error err = {};
        if (be->vt->weight_create(be, SL_USE_LINEAR, t, n_rows, n_cols, file.data(), NULL, &w,
                                  &err) != 0)
            exit((printf("weight_create: %s\n", err.msg), 2));
        values[k].push_back(v);
        mats[k].push_back(w);
    }
};

struct rows {
    std::vector<__nv_bfloat16> x;
    std::vector<int32_t> experts;
    std::vector<float> weights, shared, shared_logit; /* the last two may be empty */

    rows(const mixture &m, int32_t n)
    {
        for (int64_t k = 0; k < n * m.h; k++)
            x.push_back(__float2bfloat16_rn(normal()));
        for (int64_t k = 0; k < n * m.h && n % 3 != 1; k++)
            shared.push_back(normal());
        for (int32_t t = 0; t < n && n % 3 == 2; t++)
            shared_logit.push_back(normal());
        for (int32_t t = 0; t < n; t++) { /* half of the rows have no other than the first four */
            const int32_t all = m.n_experts;
            int32_t first = (int32_t)below((uint64_t)(t % 2 ? all - 1 : all));
            int32_t step = 1 + (int32_t)below((uint64_t)all / 2);
            for (int32_t s = 0; s < m.top_k; s++) {
                experts.push_back((first + s * step) % m.n_experts);
                weights.push_back(normal());
            }
        }
    }
};

static std::vector<float> part(const std::vector<float> &v, size_t at, size_t n)
{
    return v.empty() ? v : std::vector<float>(&v[at], &v[at] + n);
}

/* Of rank `rank` of n_ranks only its experts, without what the shared expert gave. */
static std::vector<float> run(const mixture &m, const rows &r, int32_t from, int32_t n,
                              int rank = 0, int n_ranks = 1)
{
    const int32_t first = m.n_experts * rank / n_ranks, end = m.n_experts * (rank + 1) / n_ranks;
    std::vector<struct sl_weight> here[3];
    struct sl_stack stack[3];
    struct sl_error err = {};
    for (int s = 0; s < 3; s++) {
        here[s] = m.mats[s];
        for (int32_t e = 0; e < m.n_experts; e++)
            if (e < first || e >= end)
                here[s][(size_t)e].data = NULL;
        stack[s] = {};
        if (m.plain && s == 0)
            continue;
        if (be->vt->stack_create(be, here[s].data(), m.n_experts, &stack[s], &err) != 0 ||
            be->vt->device->load_end(be, &err) != 0)
            exit((printf("stack_create: %s\n", err.msg), 2));
    }
    const size_t h = (size_t)m.h, k = (size_t)m.top_k, at = (size_t)from, len = (size_t)n;
    dev<__nv_bfloat16> x(std::vector<__nv_bfloat16>(&r.x[at * h], &r.x[at * h] + len * h));
    dev<int32_t> e(std::vector<int32_t>(&r.experts[at * k], &r.experts[at * k] + len * k));
    dev<float> w(std::vector<float>(&r.weights[at * k], &r.weights[at * k] + len * k));
    dev<float> out(len * h);
    dev<uint8_t> scratch(be->vt->experts_bytes(be, n, m.n_experts, m.top_k, m.h, m.i));
    dev<float> shared(part(r.shared, at * h, len * h)), logit(part(r.shared_logit, at, len));
    struct sl_op_experts a = {};
    a.shared = r.shared.empty() || n_ranks > 1 ? NULL : shared.p;
    a.shared_logit = r.shared_logit.empty() || n_ranks > 1 ? NULL : logit.p;
    a.from = n_ranks > 1 ? first : 0, a.until = n_ranks > 1 ? end : 0;
    a.x = x.p, a.n = n, a.top_k = m.top_k, a.experts = e.p, a.weights = w.p;
    a.gate = m.plain ? &stack[1] : &stack[0], a.up = &stack[1], a.down = &stack[2];
    a.weigh_input = m.weigh_input;
    a.act = m.plain ? SL_ACT_RELU : SL_ACT_SILU, a.swiglu = m.swiglu, a.scratch = scratch.p,
    a.out = out.p;
    dev<float> gate_bias(m.bias[0]), up_bias(m.bias[1]), down_bias(m.bias[2]);
    if (!m.bias[0].empty())
        a.gate_bias = gate_bias.p, a.up_bias = up_bias.p, a.down_bias = down_bias.p;
    be->vt->experts(be, &a);
    const std::vector<float> got = result(out);
    for (struct sl_stack &s : stack)
        if (s.mats != NULL)
            be->vt->stack_destroy(be, &s);
    return got;
}

/* The sum of ranks' parts of all rows, as they add them (all_reduce). */
static std::vector<float> sum_of_ranks(const mixture &m, const rows &r, int32_t n, int n_ranks)
{
    std::vector<std::vector<float>> parts;
    for (int i = 0; i < n_ranks; i++)
        parts.push_back(run(m, r, 0, n, i, n_ranks));
    for (size_t step = 1; step < parts.size(); step *= 2)
        for (size_t i = 0; i + step < parts.size(); i += 2 * step)
            for (size_t k = 0; k < parts[i].size(); k++)
                parts[i][k] += parts[i + step][k];
    return parts[0];
}

static double dot(const std::vector<float> &w, int64_t row, const std::vector<double> &x)
{
    double sum = 0;
    for (size_t k = 0; k < x.size(); k++)
        sum += (double)w[(size_t)row * x.size() + k] * x[k];
    return sum;
}

static double bias_of(const mixture &m, int k, size_t e, int64_t i)
{
    return m.bias[k].empty()
               ? 0.0
               : (double)m.bias[k][e * m.bias[k].size() / (size_t)m.n_experts + (size_t)i];
}

static double gated(const struct sl_swiglu &s, double gate, double up)
{
    const double limit = (double)s.limit;
    if (limit <= 0)
        return gate / (1 + exp(-gate)) * up;
    up = fmin(fmax(up, -limit), limit);
    if (s.late)
        return fmin(gate / (1 + exp(-gate)), limit) * up;
    gate = fmin(gate, limit);
    return gate / (1 + exp(-(double)s.alpha * gate)) * (up + (double)s.up_plus);
}

static std::vector<double> oracle(const mixture &m, const rows &r, int32_t t)
{
    std::vector<double> x((size_t)m.h), mid((size_t)m.i), out((size_t)m.h, 0.0);
    const double open =
        r.shared_logit.empty() ? 1.0 : 1 / (1 + exp(-(double)r.shared_logit[(size_t)t]));
    for (size_t k = 0; k < out.size() && !r.shared.empty(); k++)
        out[k] = open * (double)r.shared[(size_t)t * out.size() + k];
    for (int64_t k = 0; k < m.h; k++)
        x[(size_t)k] = (double)__bfloat162float(r.x[(size_t)(t * m.h + k)]);
    for (int32_t s = 0; s < m.top_k; s++) {
        const size_t at = (size_t)(t * m.top_k + s), e = (size_t)r.experts[at];
        const double w = (double)r.weights[at], in = m.weigh_input ? w : 1.0;
        for (int64_t i = 0; i < m.i; i++) {
            const double g = in * dot(m.values[0][e], i, x) + bias_of(m, 0, e, i);
            const double u = in * dot(m.values[1][e], i, x) + bias_of(m, 1, e, i);
            const double y = m.plain ? fmax(u, 0) * fmax(u, 0) : gated(m.swiglu, g, u);
            mid[(size_t)i] = (double)device_bf16((float)y);
        }
        for (int64_t k = 0; k < m.h; k++)
            out[(size_t)k] +=
                (m.weigh_input ? 1.0 : w) * (dot(m.values[2][e], k, mid) + bias_of(m, 2, e, k));
    }
    return out;
}

static void mixture_case(enum sl_dtype t, int64_t h, int64_t i, int limits,
                         std::vector<int32_t> counts, bool weigh_input = false,
                         int32_t n_experts = 5, int32_t top_k = 3, bool plain = false)
{
    mixture m(t, h, i, limits, n_experts, top_k);
    m.weigh_input = weigh_input;
    m.plain = plain;
    for (int32_t n : counts) {
        const rows r(m, n);
        const std::vector<float> got = run(m, r, 0, n);
        double error = 0, power = 0;
        for (int32_t row = 0; row < n; row += 1 + n / 7) {
            const std::vector<double> want = oracle(m, r, row);
            const std::vector<float> alone = run(m, r, row, 1);
            for (int64_t k = 0; k < h; k++) {
                const float v = got[(size_t)(row * h + k)];
                error += ((double)v - want[(size_t)k]) * ((double)v - want[(size_t)k]);
                power += want[(size_t)k] * want[(size_t)k];
                CHECK(memcmp(&v, &alone[(size_t)k], sizeof v) == 0, "%s: row %d of %d, column %d",
                      sl_dtype_info(t)->name, row, n, (int)k);
            }
        }
        rows bare = r; /* the shared expert is added when ranks are */
        bare.shared.clear();
        bare.shared_logit.clear();
        const std::vector<float> whole = run(m, bare, 0, n);
        for (int n_ranks = 2; n_ranks <= SL_MIN(n_experts, 8); n_ranks *= 2) {
            const std::vector<float> sum = sum_of_ranks(m, r, n, n_ranks);
            CHECK(memcmp(sum.data(), whole.data(), whole.size() * sizeof(float)) == 0,
                  "%s, %d rows: not the bits of %d ranks", sl_dtype_info(t)->name, n, n_ranks);
        }
        CHECK(error <= 1e-5 * power, "%s, %d rows: NMSE %g", sl_dtype_info(t)->name, n,
              error / power);
    }
}

int main(int argc, char **argv)
{
    rng.seed = argc > 1 ? strtoull(argv[1], NULL, 0) : 5;
    struct sl_cuda_config cfg = {0, 1, false};
    struct sl_error err = {};
    if (sl_cuda_create(&cfg, &be, &err) != 0) {
        printf("cannot go on: %s\n", err.msg);
        return 1;
    }
    static const enum sl_dtype formats[] = {
        SL_DTYPE_Q8_0, SL_DTYPE_Q4_0, SL_DTYPE_Q4_K,     SL_DTYPE_Q5_K,
        SL_DTYPE_Q6_K, SL_DTYPE_BF16, SL_DTYPE_FP8_E4M3, SL_DTYPE_MXFP4,
    };
    /* 3/5 of the rows have an expert in the mean: alone, sorted, in tiles of 16, 32, 64, up to 288,
     * of which products have up to 48, 80, 96, 128 or 144 places */
    for (enum sl_dtype t : formats)
        mixture_case(t, 256, 256, t % 3, {1, 2, 7, 13, 28, 60, 110 * LARGE});
    for (int limits = 0; limits < 3; limits++) /* neither whole units nor row blocks */
        mixture_case(SL_DTYPE_BF16, 72, 40, limits, {1, 9, 45, 120, 230 * LARGE});
    mixture_case(SL_DTYPE_F32, 16, 8, 1, {90, 270, 300 * LARGE + 25, 440, 640});
    mixture_case(SL_DTYPE_MXFP4, 64, 64, 1, {90, 160, 270, 440, 600 * LARGE});
    for (enum sl_dtype t : {SL_DTYPE_BF16, SL_DTYPE_MXFP4}) /* several experts of a leaf */
        mixture_case(t, 64, 64, 0, {1, 2, 3, 29 * LARGE}, false, 19, 9);
    for (enum sl_dtype t : {SL_DTYPE_BF16, SL_DTYPE_Q4_K}) /* Llama 4 */
        mixture_case(t, 256, 256, 0, {1, 7, 19, 28 * LARGE}, true);
    /* Nemotron 3: without a gate, alone, sorted, and by tiles of each size */
    for (enum sl_dtype t : {SL_DTYPE_BF16, SL_DTYPE_Q8_0, SL_DTYPE_FP8_E4M3, SL_DTYPE_Q4_K})
        mixture_case(t, 256, 256, 0, {1, 2, 7, 13, 28, 60, 110 * LARGE}, false, 5, 3, true);
    mixture_case(SL_DTYPE_BF16, 72, 40, 0, {1, 9, 45, 120, 230 * LARGE}, false, 5, 3, true);
    mixture_case(SL_DTYPE_BF16, 64, 64, 0, {90, 160, 270, 440}, false, 5, 3, true);
    if (LARGE > 1) /* more than a slab */
        mixture_case(SL_DTYPE_BF16, 8192, 8, 0, {5, 2800});
    be->vt->destroy(be);
    printf("test_experts: %ld checks, %d failures\n", n_checks, n_failures);
    return n_failures != 0;
}
