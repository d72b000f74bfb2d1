/* SPDX-License-Identifier: MIT
 * Products of FP8 weights and FP8 activations: against the arithmetic of docs/DETERMINISM.md in
 * double, which activations and scales are checked by to the bit; every kernel against every other
 * bit for bit, for any number of tokens. Runs in the simulator or on a GPU.
 */
#include "cuda/cuda.h"
#include "cuda/gemm/linear.h"

extern "C" {
#include "base/rng.h"
}
#include "fused_layer.h"
#include "quant/float.h"
#include "quant/fp8_e4m3.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <vector>

#ifdef SL_CUDA_SIM
#include "sim.h"
#endif

static int n_failures;
static long n_bits, n_close;

#define CHECK(cond, ...)                                      \
    do {                                                      \
        if (!(cond) && n_failures++ < 20) {                   \
            printf("%s:%d: %s: ", __FILE__, __LINE__, #cond); \
            printf(__VA_ARGS__);                              \
            printf("\n");                                     \
        }                                                     \
    } while (0)
#define MUST(call)                                                             \
    do {                                                                       \
        cudaError_t e_ = (call);                                               \
        if (e_ != cudaSuccess) {                                               \
            printf("%s:%d: %s\n", __FILE__, __LINE__, cudaGetErrorString(e_)); \
            exit(2);                                                           \
        }                                                                      \
    } while (0)

static struct sl_rng rng;
static struct sl_backend *be;
static struct sl_cuda *cu;

static uint64_t below(uint64_t n)
{
    return sl_rng_below(&rng, n);
}

/* Device memory of exactly this size, so that red zones are close. */
template <typename T> struct dev {
    T *p = nullptr;
    size_t n;
    explicit dev(const std::vector<T> &v) : n(v.size())
    {
        MUST(cudaMalloc((void **)&p, n * sizeof(T)));
        MUST(cudaMemcpy(p, v.data(), n * sizeof(T), cudaMemcpyHostToDevice));
        MUST(cudaDeviceSynchronize());
    }
    dev(const dev &) = delete;
    ~dev()
    {
        cudaFree(p);
    }
    std::vector<T> get() const
    {
        MUST(cudaStreamSynchronize(cu->stream));
        std::vector<T> v(n);
        MUST(cudaMemcpy(v.data(), p, n * sizeof(T), cudaMemcpyDeviceToHost));
        return v;
    }
};

static bool same_bits(float a, float b)
{
    return sl_f32_bits(a) == sl_f32_bits(b) || (isnan(a) && isnan(b));
}

/* ------------------------------------------------------------------ matrices and tokens */

struct matrix {
    int n, k;
    std::vector<uint8_t> codes;
    std::vector<float> values; /* of the scales */
    struct sl_scales scales = {};
    struct sl_weight w = {};
    /* rows, cols: of a block of scales; 0: there are none. */
    matrix(int n_, int k_, int rows, int cols, int32_t layout = SL_CUDA_W8A8)
        : n(n_), k(k_), codes((size_t)(n_ * k_))
    {
        for (uint8_t &c : codes)
            c = (uint8_t)(below(127) | (sl_rng_next(&rng) & 0x80));
        if (rows > 0) {
            values.resize((size_t)(SL_CEIL_DIV(n, rows) * SL_CEIL_DIV(k, cols)));
            for (float &v : values)
                v = (float)exp(-5.0 + sl_rng_normal(&rng));
            scales = {values.data(), rows, cols, 0};
        }
        create(layout);
    }
    /* Device memory but for what all matrices share. */
    static size_t own()
    {
        return cu->own_bytes - cu->pack_bytes - (cu->fp8_room != NULL ? SL_LIN_FP8_BYTES : 0);
    }
    void create(int32_t layout)
    {
        struct sl_error err = {};
        std::vector<uint8_t> file = codes; /* not needed behind weight_create */
        size_t before = own();
        int rc = sl_cuda_weight_create(be, SL_USE_LINEAR_FP8, SL_DTYPE_FP8_E4M3, n, k, file.data(),
                                       &scales, &w, &err);
        CHECK(rc == 0 && w.layout == layout, "%d, layout %d: %s", rc, w.layout, err.msg);
        uint64_t took = own() - before;
        CHECK(took == w.n_bytes &&
                  took == sl_cuda_weight_bytes(be, SL_USE_LINEAR_FP8, SL_DTYPE_FP8_E4M3, n, k),
              "%d x %d: %llu bytes, not %llu", n, k, (unsigned long long)took,
              (unsigned long long)w.n_bytes);
        MUST(cudaStreamSynchronize(cu->stream));
        memset(file.data(), 0xA5, file.size());
    }
    double scale(int r, int c) const
    {
        return (double)sl_scale_at(&scales, k, r, c);
    }
    ~matrix()
    {
        sl_cuda_weight_destroy(be, &w);
    }
    matrix(const matrix &) = delete;
};

struct tokens { /* [m][k] in bf16, rows ld apart on the device, NaN in what nobody may read */
    int m, k;
    int64_t ld, skew;
    std::vector<float> x;
    dev<uint16_t> mem;
    static std::vector<uint16_t> lay(const std::vector<float> &x, int m, int k, int64_t ld,
                                     int64_t skew)
    {
        std::vector<uint16_t> v((size_t)(skew + (m - 1) * ld + k), 0x7FC0);
        for (int t = 0; t < m; t++)
            for (int c = 0; c < k; c++)
                v[(size_t)(skew + t * ld + c)] = sl_f32_to_bf16(x[(size_t)(t * k + c)]);
        return v;
    }
    tokens(const std::vector<float> &all, int m_, int k_, int64_t pad = 0, int64_t skew_ = 0)
        : m(m_), k(k_), ld(k_ + pad), skew(skew_), x(all.begin(), all.begin() + m_ * k_),
          mem(lay(x, m_, k_, k_ + pad, skew_))
    {
    }
    const void *p() const
    {
        return mem.p + skew;
    }
};

/* Normal numbers of very different sizes, here and there a group of zeros or of next to nothing. */
static std::vector<float> random_x(int m, int k)
{
    std::vector<float> x((size_t)(m * k));
    float size = 1.0f;
    for (size_t i = 0; i < x.size(); i++) {
        if (i % 64 == 0)
            size = below(9) == 0 ? 0.0f : below(9) == 0 ? 1e-33f : (float)exp(sl_rng_normal(&rng));
        x[i] = sl_bf16_to_f32(sl_f32_to_bf16((float)sl_rng_normal(&rng) * size));
    }
    return x;
}

/* What a token's 128 columns become: code * scale, in double. */
static void quantised(const float *x, int n, double *out)
{
    float amax = 0.0f;
    for (int i = 0; i < n; i++)
        amax = fmaxf(amax, fabsf(x[i]));
    for (int i = 0; i < n; i++) {
        bool live = amax >= 0x1p-100f;
        uint8_t code = live ? sl_f32_to_fp8_e4m3(x[i] * (448.0f / amax)) : 0;
        out[i] = (double)sl_fp8_e4m3_to_f32(code) * (double)(live ? amax / 448.0f : 0.0f);
    }
}

/* ------------------------------------------------------------------ products */

#define POISON 0x7FABCDEFu

/* By a route (NULL: the table's) into poisoned memory with `pad` floats between rows. */
static std::vector<float> product(const tokens &in, const matrix &w, const float *bias, int64_t pad,
                                  const struct sl_lin_route *r)
{
    int64_t ld = w.n + pad;
    dev<float> out(std::vector<float>((size_t)((in.m - 1) * ld + w.n), sl_f32_of_bits(POISON)));
    struct sl_op_linear a = {in.p(), in.ld, &w.w, bias, in.m, out.p, ld, nullptr, nullptr, false};
    struct sl_lin l = sl_cuda_linear_args(&a);
    if (r == nullptr)
        sl_cuda_linear(be, &a);
    else
        sl_cuda_linear_run(cu, &l, r);
    CHECK(cu->error == cudaSuccess, "%s: %s", cu->error_what, cudaGetErrorString(cu->error));
    std::vector<float> got = out.get(), y((size_t)(in.m * w.n));
    for (size_t i = 0; i < got.size(); i++) {
        int64_t t = (int64_t)i / ld, c = (int64_t)i % ld;
        if (c < w.n)
            y[(size_t)(t * w.n + c)] = got[i];
        else
            CHECK(sl_f32_bits(got[i]) == POISON, "token %d wrote behind its row", (int)t);
    }
    return y;
}

static void expect_rows(const std::vector<float> &a, const std::vector<float> &b, const char *what,
                        int m, const matrix &w)
{
    for (size_t i = 0; i < a.size(); i++) {
        CHECK(same_bits(a[i], b[i]), "%s, %d x %d, %d tokens: token %d row %d: %a, not %a", what,
              w.n, w.k, m, (int)(i / (size_t)w.n), (int)(i % (size_t)w.n), a[i], b[i]);
        n_bits++;
    }
}

/* A chip's sum of 128 columns keeps about 14 bits of its largest product, so that each may be off
 * by that much of all of them. */
static void expect_close(const std::vector<float> &y, const tokens &in, const matrix &w,
                         const std::vector<float> &bias)
{
    std::vector<double> x((size_t)w.k);
    double error = 0, power = 0;
    for (int t = 0; t < in.m; t++) {
        for (int c = 0; c < w.k; c += 128)
            quantised(&in.x[(size_t)(t * w.k + c)], SL_MIN(128, w.k - c), &x[(size_t)c]);
        for (int r = 0; r < w.n; r++) {
            double sum = bias.empty() ? 0.0 : (double)bias[(size_t)r], mag = fabs(sum);
            for (int c = 0; c < w.k; c++) {
                double code = (double)sl_fp8_e4m3_to_f32(w.codes[(size_t)(r * w.k + c)]);
                double p = code * w.scale(r, c) * x[(size_t)c];
                sum += p;
                mag += fabs(p);
            }
            double got = (double)y[(size_t)(t * w.n + r)];
            CHECK(fabs(got - sum) <= 0x1p-9 * mag, "%d x %d, token %d row %d: %g, not %g of %g",
                  w.n, w.k, t, r, got, sum, mag);
            error += (got - sum) * (got - sum);
            power += sum * sum;
            n_close++;
        }
    }
    CHECK(error <= 1e-5 * power, "%d x %d: NMSE %.2e", w.n, w.k, error / power);
}

static void test_products(const matrix &w, const std::vector<int> &ms, bool every_route = true)
{
    int top = ms.back();
    std::vector<float> x = random_x(top, w.k), bias((size_t)w.n);
    for (float &b : bias)
        b = (float)sl_rng_normal(&rng);
    dev<float> dbias(bias);
    tokens whole(x, top, w.k);
    std::vector<float> all = product(whole, w, dbias.p, 0, nullptr);
    expect_close(all, whole, w, bias);
    size_t n_routes;
    const struct sl_lin_route *routes = sl_cuda_linear_routes(&n_routes);
    for (int m : ms) {
        tokens in(x, m, w.k, below(2) ? (int64_t)below(9) : 8, below(3) == 0);
        cu->n_sms = 1 + (int)below(8);
        expect_rows(product(in, w, dbias.p, (int64_t)below(4), nullptr), all, "table", m, w);
        for (size_t i = 0; every_route && i < n_routes; i++) {
            struct sl_op_linear a = {in.p(),  in.ld, &w.w,    nullptr, m,
                                     nullptr, w.n,   nullptr, nullptr, false};
            struct sl_lin l = sl_cuda_linear_args(&a);
            /* Those of many tokens take few as they take one. */
            const bool wide = routes[i].max_tokens == INT32_MAX;
            if (sl_cuda_linear_fits(&routes[i], &l) && (!wide || m == 1 || m > 64))
                expect_rows(product(in, w, dbias.p, (int64_t)below(4), &routes[i]), all,
                            routes[i].name, m, w);
        }
        cu->n_sms = 6;
    }
    /* The room for tokens, and so how many of them go at once, is free. */
    cu->fp8_room_bytes = SL_CEIL_DIV(w.k, 128) * (16 + 132 * (7 + (int)below(20)));
    expect_rows(product(whole, w, dbias.p, 0, nullptr), all, "in parts", top, w);
    cu->fp8_room_bytes = SL_LIN_FP8_BYTES;
    std::vector<float> plain = product(whole, w, nullptr, 0, nullptr);
    for (size_t i = 0; i < plain.size(); i++)
        CHECK(same_bits(plain[i] + bias[i % (size_t)w.n], all[i]), "bias of output %zu", i);
}

/* What is not finite in a token stays in it; a code that is NaN stays in its row. */
static void test_poison(int m)
{
    matrix w(100, 300, 1, 300);
    std::vector<float> x = random_x(m, w.k);
    tokens clean(x, m, w.k);
    int bad = m / 2, row = (int)below(100);
    x[(size_t)(bad * w.k) + below((uint64_t)w.k)] = below(2) ? NAN : -INFINITY;
    tokens dirty(x, m, w.k);
    std::vector<float> a = product(clean, w, nullptr, 0, nullptr);
    std::vector<float> b = product(dirty, w, nullptr, 0, nullptr);
    sl_cuda_weight_destroy(be, &w.w);
    w.codes[(size_t)(row * w.k) + below((uint64_t)w.k)] = below(2) ? 0x7F : 0xFF;
    w.create(SL_CUDA_W8A8);
    std::vector<float> c = product(clean, w, nullptr, 0, nullptr);
    for (int i = 0; i < m * w.n; i++) {
        bool of_bad = i / w.n == bad, of_row = i % w.n == row;
        size_t at = (size_t)i;
        CHECK(of_bad ? isnan(b[at]) : same_bits(a[at], b[at]), "token %d: %a", i / w.n, b[at]);
        CHECK(of_row ? isnan(c[at]) : same_bits(a[at], c[at]), "row %d: %a", i % w.n, c[at]);
    }
}

/* One kernel for gate and up, and one for each and what follows: the same bits. */
static void test_gated(const matrix &gate, const matrix &up, int m, enum sl_act act)
{
    std::vector<float> x = random_x(m, gate.k);
    tokens in(x, m, gate.k, below(2) ? 0 : 5);
    std::vector<float> g = product(in, gate, nullptr, 0, nullptr);
    std::vector<float> u = product(in, up, nullptr, 0, nullptr);
    dev<uint16_t> out(std::vector<uint16_t>(g.size(), 0x7FC0));
    struct sl_op_linear_gated_act a = {in.p(), in.ld, &gate.w, &up.w,  act,
                                       m,      out.p, nullptr, nullptr};
    cu->n_sms = 1 + (int)below(8);
    sl_cuda_linear_gated_act(be, &a);
    cu->n_sms = 6;
    std::vector<uint16_t> got = out.get();
    for (size_t i = 0; i < got.size(); i++) {
        double y = (double)g[i], z = y;
        if (act == SL_ACT_GELU_TANH)
            z = 2 * sqrt(2 / M_PI) * (y + 0.044715 * y * y * y);
        double want = y / (1 + exp(-z)) * (double)u[i];
        CHECK(fabs((double)sl_bf16_to_f32(got[i]) - want) <= 0x1.01p-8 * fabs(want) + 1e-30,
              "%d x %d, %d tokens, output %zu: %a, not %a", gate.n, gate.k, m, i,
              (double)sl_bf16_to_f32(got[i]), want);
        n_close++;
    }
    struct sl_lin l = sl_cuda_linear_gated_args(&a);
    size_t n_routes;
    const struct sl_lin_route *routes = sl_cuda_linear_routes(&n_routes);
    for (size_t r = 0; r < n_routes; r++) {
        if (!sl_cuda_linear_fits(&routes[r], &l))
            continue;
        dev<uint16_t> by(std::vector<uint16_t>(g.size(), 0x7FC0));
        l.gated_out = reinterpret_cast<__nv_bfloat16 *>(by.p);
        sl_cuda_linear_run(cu, &l, &routes[r]);
        std::vector<uint16_t> same = by.get();
        for (size_t i = 0; i < same.size(); i++) {
            CHECK(same[i] == got[i], "%s, %d tokens: %04x, not %04x", routes[r].name, m, same[i],
                  got[i]);
            n_bits++;
        }
    }
    /* With room for less, gate and up come apart: as where adapters add to them. */
    struct sl_op_linear_gated_act one = a;
    for (int t = 0; t < m; t += 3) {
        dev<uint16_t> some(std::vector<uint16_t>(3 * (size_t)gate.n, 0x7FC0));
        one.x = static_cast<const uint16_t *>(in.p()) + t * in.ld;
        one.n = SL_MIN(3, m - t);
        one.out = some.p;
        sl_cuda_linear_gated_act(be, &one);
        std::vector<uint16_t> few = some.get();
        for (size_t i = 0; i < (size_t)(one.n * gate.n); i++) {
            CHECK(few[i] == got[(size_t)(t * gate.n) + i], "%d tokens: %04x, not %04x", m, few[i],
                  got[(size_t)(t * gate.n) + i]);
            n_bits++;
        }
    }
}

/* q, k, v of one input in one launch, and beside a matrix of another layout in two. */
static void test_multi(const matrix *const w[3], int m)
{
    std::vector<float> x = random_x(m, w[0]->k), bias((size_t)w[1]->n, 0.5f);
    tokens in(x, m, w[0]->k, 8);
    dev<float> dbias(bias);
    std::vector<dev<float> *> out;
    struct sl_op_linear_multi a = {in.p(), in.ld, m, 3, {}, nullptr};
    for (int i = 0; i < 3; i++) {
        out.push_back(new dev<float>(std::vector<float>((size_t)(m * w[i]->n))));
        a.part[i] = {&w[i]->w, i == 1 ? dbias.p : nullptr, out.back()->p, w[i]->n};
    }
    sl_cuda_linear_multi(be, &a);
    for (int i = 0; i < 3; i++) {
        expect_rows(out[(size_t)i]->get(),
                    product(in, *w[i], i == 1 ? dbias.p : nullptr, 0, nullptr), "multi", m, *w[i]);
        delete out[(size_t)i];
    }
}

/* A feed-forward part, nothing waiting between its kernels: each must wait for what it reads; the
 * same with codes that the first product makes. */
static void test_chain(const matrix &gate, const matrix &up, const matrix &down, int m)
{
    std::vector<float> x = random_x(m, gate.k);
    tokens in(x, m, gate.k, 8);
    std::vector<float> y[3];
    std::vector<uint16_t>
        act[2]; /* of a product that does not wait, and of one that does in vain */
    for (int way = 0; way < 3; way++) {
        struct sl_cuda_fuse room;
        dev<uint16_t> mid(std::vector<uint16_t>((size_t)(m * gate.n), 0x7FC0));
        dev<float> out(std::vector<float>((size_t)(m * down.n)));
        struct sl_op_linear_gated_act a = {in.p(), in.ld, &gate.w, &up.w,  SL_ACT_SILU,
                                           m,      mid.p, nullptr, nullptr};
        struct sl_op_linear b = {mid.p, gate.n, &down.w, nullptr, m,
                                 out.p, down.n, nullptr, nullptr, false};
        const struct sl_lin first = sl_cuda_linear_gated_args(&a), second = sl_cuda_linear_args(&b);
        if (way == 1)
            sl_cuda_fuse_begin(cu, &room);
        if (way == 2)
            sl_cuda_linear_pair(cu, &first, &second);
        else
            sl_cuda_linear_gated_act(be, &a);
        if (way == 1) {
            sl_cuda_fuse_end(cu);
            MUST(cudaStreamSynchronize(cu->stream));
        }
        if (way < 2)
            sl_cuda_linear(be, &b);
        y[way] = out.get();
        if (way < 2)
            act[way] = mid.get();
    }
    expect_rows(y[0], y[1], "chain", m, down);
    expect_rows(y[2], y[1], "chain of codes", m, down);
    CHECK(act[0] == act[1], "%d tokens", m);
}

/* The scales of the first 128 rows times f. */
static void make_tiny(matrix &w, float f)
{
    sl_cuda_weight_destroy(be, &w.w);
    for (int i = 0; i < SL_CEIL_DIV(w.k, 128); i++)
        w.values[(size_t)i] *= f;
    w.create(SL_CUDA_W8A8);
}

/* Additions and norms inside products, beside kernels of their own. Of many tokens the room is too
 * small for all. What is added to token 1 is around the end of the normal range, in the rows of
 * make_tiny. */
static void test_fused(const matrix &o, const matrix &gate, const matrix &up, const matrix &down,
                       int m)
{
    std::vector<float> v = random_x(m, o.k), x0 = random_x(m, o.n), norm_w = random_x(1, o.n);
    for (int i = 0; i < o.k && m > 1; i++)
        v[(size_t)(o.k + i)] *= 0x1p-90f;
    for (int i = 0; i < 128 && m > 1; i++)
        x0[(size_t)(o.n + i)] = sl_f32_of_bits((uint32_t)below(1 << 24));
    for (float &w : norm_w)
        w += 1.0f;
    tokens att(v, m, o.k);
    dev<float> d_norm(norm_w);
    const size_t all = (size_t)(m * o.n), wide = (size_t)(m * gate.n);
    std::vector<float> sums[2], next[2];
    std::vector<uint16_t> half[2];
    for (int fused = 0; fused < 2; fused++) {
        dev<float> x(x0), y{std::vector<float>(all)}, out{std::vector<float>(wide)};
        dev<uint16_t> norm{std::vector<uint16_t>(all)}, mid{std::vector<uint16_t>(wide)},
            last{std::vector<uint16_t>(all)};
        const struct fused_layer l = {&o.w, &gate.w, &up.w, &down.w, m,     att.p(), d_norm.p,
                                      x.p,  y.p,     out.p, norm.p,  mid.p, last.p};
        if (fused == 1 && m > 64)
            cu->fp8_room_bytes = 5 * (16 + 132 * (30 + (int)below(20)));
        cu->n_sms = 2; /* where two tiles for each are a round, as those by twos */
        fused_layer_run(cu, &l, fused == 1);
        cu->n_sms = 6;
        cu->fp8_room_bytes = SL_LIN_FP8_BYTES;
        sums[fused] = x.get();
        next[fused] = out.get();
        half[fused] = norm.get();
        for (uint16_t h : last.get())
            half[fused].push_back(h);
        for (uint16_t h : mid.get()) /* of many tokens codes take its place */
            half[fused].push_back(m <= 64 ? h : 0);
    }
    expect_rows(sums[1], sums[0], "fused, the residual stream", m, o);
    expect_rows(next[1], next[0], "fused, the product behind", m, gate);
    for (size_t i = 0; i < half[0].size(); i++)
        CHECK(half[0][i] == half[1][i], "fused, activation %zu of %d tokens", i, m);
    n_bits += (long)half[0].size();
}

/* A norm that several matrices read, of several layouts, in one operation and in two. */
static void test_fused_multi(const matrix *const w[2], int m)
{
    const int k = w[0]->k;
    dev<float> x(random_x(m, k)), norm_w(random_x(1, k));
    std::vector<float> y[3][2];
    for (int way = 0; way < 3; way++) {
        struct sl_cuda_fuse room;
        dev<uint16_t> norm(std::vector<uint16_t>((size_t)(m * k), 0x7FC0));
        dev<float> first(std::vector<float>((size_t)(m * w[0]->n))),
            second(std::vector<float>((size_t)(m * w[1]->n)));
        const struct sl_op_rmsnorm a = {x.p, norm_w.p, 1e-5f, m, k, norm.p};
        struct sl_op_linear_multi b = {norm.p, k, m, 2, {}, nullptr};
        b.part[0] = {&w[0]->w, nullptr, first.p, w[0]->n};
        b.part[1] = {&w[1]->w, nullptr, second.p, w[1]->n};
        const struct sl_op_linear c = {norm.p,  k,       &w[0]->w, nullptr, m,
                                       first.p, w[0]->n, nullptr,  nullptr, false};
        const struct sl_op_linear d = {norm.p,   k,       &w[1]->w, nullptr, m,
                                       second.p, w[1]->n, nullptr,  nullptr, false};
        if (way > 0)
            sl_cuda_fuse_begin(cu, &room);
        sl_cuda_rmsnorm(be, &a);
        if (way < 2)
            sl_cuda_linear_multi(be, &b);
        if (way == 2) {
            sl_cuda_linear(be, &c);
            sl_cuda_linear(be, &d);
        }
        if (way > 0)
            sl_cuda_fuse_end(cu);
        y[way][0] = first.get();
        y[way][1] = second.get();
    }
    for (int way = 1; way < 3; way++)
        for (int i = 0; i < 2; i++)
            expect_rows(y[way][i], y[0][i], "fused, several matrices", m, *w[i]);
}

/* In one step, an activation that becomes codes, then one of matrices of two layouts at its place.
 */
static void test_written_again(const matrix &gate, const matrix &up, const matrix &other,
                               const matrix &down, int m)
{
    std::vector<float> x = random_x(m, gate.k);
    tokens in(x, m, gate.k, 0);
    std::vector<float> y[2];
    for (int fused = 0; fused < 2; fused++) {
        struct sl_cuda_fuse room;
        dev<uint16_t> mid(std::vector<uint16_t>((size_t)(m * gate.n), 0x7FC0));
        dev<float> out(std::vector<float>((size_t)(m * down.n)));
        struct sl_op_linear_gated_act a = {in.p(), in.ld, &gate.w, &up.w,  SL_ACT_SILU,
                                           m,      mid.p, nullptr, nullptr};
        const struct sl_op_linear b = {mid.p, gate.n, &down.w, nullptr, m,
                                       out.p, down.n, nullptr, nullptr, false};
        if (fused)
            sl_cuda_fuse_begin(cu, &room);
        sl_cuda_linear_gated_act(be, &a);
        sl_cuda_linear(be, &b);
        a.up = &other.w;
        sl_cuda_linear_gated_act(be, &a);
        sl_cuda_linear(be, &b);
        if (fused)
            sl_cuda_fuse_end(cu);
        y[fused] = out.get();
    }
    expect_rows(y[1], y[0], "written again", m, down);
}

/* Which scales the layout can have, and who asks for BF16. */
static void test_layouts()
{
    matrix five(20, 512, 5, 256, SL_CUDA_FP8), row_block(20, 512, 1, 128, SL_CUDA_FP8);
    matrix all(20, 512, 20, 512), rows(20, 512, 5, 512), high(200, 512, 128, 256);
    matrix short_one(20, 512, 128, 128), none(20, 512, 0, 0);
    const matrix *mixed[3] = {&all, &five, &rows};
    test_multi(mixed, 5);
    for (int m : {3, 66})
        test_fused_multi(mixed, m);
    for (const matrix *w : {&rows, &high, &short_one, &none})
        test_products(*w, {1, 3}, false);
    cu->act_bf16 = true;
    struct sl_weight w;
    struct sl_error err = {};
    int rc = sl_cuda_weight_create(be, SL_USE_LINEAR_FP8, SL_DTYPE_FP8_E4M3, 20, 512,
                                   all.codes.data(), NULL, &w, &err);
    CHECK(rc == 0 && w.layout == SL_CUDA_FP8, "%d", rc);
    CHECK(w.n_bytes == sl_cuda_weight_bytes(be, SL_USE_LINEAR_FP8, SL_DTYPE_FP8_E4M3, 20, 512),
          "%zu", w.n_bytes);
    sl_cuda_weight_destroy(be, &w);
    cu->act_bf16 = false;
}

int main(int argc, char **argv)
{
    uint64_t seed = argc > 1 ? strtoull(argv[1], NULL, 0) : 1;
    rng.seed = seed;
#ifdef SL_CUDA_SIM
    sl_sim_seed(seed);
#endif
    struct sl_cuda_config cfg = {0, 1, false};
    struct sl_error err = {};
    if (sl_cuda_create(&cfg, &be, &err) != 0) {
        printf("cannot go on: %s\n", err.msg);
        return 1;
    }
    cu = sl_cuda(be);
    cu->n_sms = 6;
    uint8_t *products;
    MUST(cudaMalloc((void **)&products, SL_LIN_BYTES));
    MUST(cudaMemset(products, 0, SL_LIN_BYTES));
    sl_cuda_linear_memory(cu, products);
    {
        matrix tensor(16, 384, 16, 384), row(37, 101, 1, 101), block(200, 384, 128, 128);
        matrix q(150, 640, 128, 128), k(40, 640, 1, 640), v(33, 640, 33, 640);
        test_products(tensor, {1, 9, 33, 66, 130});
        test_products(row, {7, 16, 64});
        test_products(block, {3, 150});
        test_products(q, {1, 70}, false);
        for (int m : {1, 66}) {
            const matrix *qkv[3] = {&q, &k, &v};
            test_multi(qkv, m);
        }
        for (int m : {3, 20})
            test_poison(m);
        matrix gate(84, 256, 128, 128), up(84, 256, 1, 256), down(90, 84, 90, 84);
        for (int m : {1, 9, 17, 40, 130})
            test_gated(gate, up, m, m % 2 ? SL_ACT_SILU : SL_ACT_GELU_TANH);
        matrix gate_whole(160, 384, 128, 128), up_whole(160, 384, 128, 128);
        test_gated(gate_whole, up_whole, 150, SL_ACT_SILU);
        for (int m : {1, 5, 24, 64, 1, 2, 66})
            test_chain(gate, up, down, m);
        matrix less_gate(40, 128, 128, 128), less_up(40, 128, 1, 128), less_down(24, 40, 24, 40);
        test_chain(less_gate, less_up, less_down, 130);
        matrix o(200, 256, 128, 128), wide_gate(200, 200, 128, 128), wide_up(200, 200, 1, 200),
            back(200, 200, 128, 128);
        make_tiny(o, 0x1p-40f);
        make_tiny(back, 0x1p-140f);
        matrix a_gate(200, 256, 128, 128), a_up(200, 256, 1, 256);
        matrix other(200, 256, 5, 128, SL_CUDA_FP8), a_down(24, 200, 24, 200);
        cu->n_sms = 2; /* where tiles by twos take no round more */
        test_written_again(a_gate, a_up, other, a_down, 70);
        cu->n_sms = 6;
        for (int m : {1, 3, 20, 70})
            test_fused(o, wide_gate, wide_up, back, m);
        test_layouts();
    }
    be->vt->destroy(be);
    cudaFree(products);
    printf("%ld values compared by bits, %ld with double; %d failures\n", n_bits, n_close,
           n_failures);
    return n_failures != 0;
}
