/* SPDX-License-Identifier: MIT
 * Products and packed weights of src/cuda: every format against the reference decode and a product
 * in double, every kernel against every other bit for bit. Runs in the simulator or on a GPU.
 */
#include "cuda/gemm/spread.h"
#include "cuda/gemm/weight_format.cuh"
#include "cuda/launch.cuh"
#include "cuda/math.cuh"

extern "C" {
#include "base/rng.h"
#include "cpu/kernels.h"
}
#include "device_weight.h"
#include "engine/sample_exp.h"
#include "fused_layer.h"
#include "quant/block_fields.h"
#include "quant/float.h"
#include "quant/int4.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <vector>

#ifdef SL_CUDA_SIM
#include "sim.h"
#endif

static int n_failures;
static long n_bits, n_close; /* outputs compared */

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
static struct sl_cuda cu;
static struct sl_cpu_kernels cpu;

static uint64_t below(uint64_t n)
{
    return sl_rng_below(&rng, n);
}

/* Device memory of exactly this size, so that red zones are close. */
template <typename T> struct dev {
    T *p = nullptr;
    size_t n;
    explicit dev(size_t n_) : n(n_)
    {
        MUST(cudaMalloc((void **)&p, n * sizeof(T)));
    }
    explicit dev(const std::vector<T> &v) : dev(v.size())
    {
        MUST(cudaMemcpy(p, v.data(), n * sizeof(T), cudaMemcpyHostToDevice));
        MUST(
            cudaDeviceSynchronize()); /* it may still be on its way, and the stream does not wait */
    }
    dev(const dev &) = delete;
    ~dev()
    {
        cudaFree(p);
    }
    std::vector<T> get() const
    {
        MUST(cudaStreamSynchronize(cu.stream));
        std::vector<T> v(n);
        MUST(cudaMemcpy(v.data(), p, n * sizeof(T), cudaMemcpyDeviceToHost));
        return v;
    }
};

/* ------------------------------------------------------------------ what the backend gives */

static size_t n_allocated;
static void *pack_buffer;

extern "C" void *sl_cuda_alloc(struct sl_cuda *, size_t n_bytes)
{
    void *p = nullptr;
    if (cudaMalloc(&p, n_bytes) != cudaSuccess)
        return nullptr;
    n_allocated += n_bytes;
    return p;
}
extern "C" void sl_cuda_free(struct sl_cuda *, void *p, size_t n_bytes)
{
    n_allocated -= n_bytes;
    cudaFree(p);
}
extern "C" int sl_cuda_no_memory(struct sl_cuda *, size_t, const char *, struct sl_error *)
{
    return SL_ENOMEM;
}
extern "C" int sl_cuda_report(struct sl_cuda *, struct sl_error *)
{
    return SL_EDEVICE;
}
void sl_cuda_use(struct sl_cuda *)
{
} /* there is one device */
extern "C" void sl_cuda_stage(struct sl_cuda *c, void *dst, const void *src, size_t n)
{
    MUST(cudaMemcpyAsync(dst, src, n, cudaMemcpyHostToDevice, c->stream));
    MUST(cudaStreamSynchronize(c->stream));
}
extern "C" void *sl_cuda_pack_buffer(struct sl_cuda *c, size_t n)
{
    MUST(cudaStreamSynchronize(c->stream));
    cudaFree(pack_buffer);
    MUST(cudaMalloc(&pack_buffer, n));
    return pack_buffer;
}

/* ------------------------------------------------------------------ elementary functions */

static __global__ void math_kernel(const float *x, float *out, int n, int which)
{
    sl_grid_wait();
    int i = static_cast<int>(blockIdx.x * blockDim.x + threadIdx.x);
    if (i >= n)
        return;
    float v = x[i];
    out[i] = which == 0   ? sl_exp(v)
             : which == 1 ? sl_sample_exp(-fabsf(v))
             : which == 2 ? __fmul_rn(sl_act(SL_ACT_SILU, v), 1.0f)
                          : __fmul_rn(sl_act(SL_ACT_GELU_TANH, v), 1.0f);
}

static bool same_bits(float a, float b)
{
    return sl_f32_bits(a) == sl_f32_bits(b) || (isnan(a) && isnan(b));
}

static void test_math()
{
    std::vector<float> x = {0.0f,       -0.0f,   1.0f,    -1.0f,   INFINITY, -INFINITY,
                            NAN,        88.7f,   89.0f,   90.0f,   -87.0f,   -86.99999f,
                            -87.00001f, -103.9f, -104.0f, -105.0f, 1e-45f};
    while (x.size() < 20000) {
        float wide = sl_f32_of_bits((uint32_t)sl_rng_next(&rng));
        x.push_back(wide);
        x.push_back((float)sl_rng_normal(&rng) * 30.0f);
    }
    int n = (int)x.size();
    dev<float> in(x), out(x.size());
    std::vector<float> one(x.size(), 1.0f), want(x.size());
    for (int which = 0; which < 4; which++) {
        sl_launch(&cu, math_kernel, dim3((unsigned)(n + 255) / 256), dim3(256), 0, in.p, out.p, n,
                  which);
        std::vector<float> got = out.get();
        if (which >= 2)
            cpu.act(which == 2 ? SL_ACT_SILU : SL_ACT_GELU_TANH, x.data(), one.data(), n,
                    want.data());
        for (int i = 0; i < n; i++) {
            float w = which == 0 ? cpu.exp(x[i]) : which == 1 ? sl_exp_neg(-fabsf(x[i])) : want[i];
            CHECK(same_bits(got[i], w), "function %d of %a: %a, CPU %a", which, x[i], got[i], w);
            n_bits++;
        }
    }
}

/* ------------------------------------------------------------------ matrices */

struct matrix {
    enum sl_dtype dtype;
    int64_t n, k;
    std::vector<uint8_t> file;
    std::vector<float> value; /* [n, k], as on the device */
    std::vector<float> scale; /* of FP8 */
    struct sl_weight w = {};
    ~matrix()
    {
        sl_cuda_weight_destroy(&cu.base, &w);
    }
    matrix() = default;
    matrix(const matrix &) = delete;
};

static uint16_t random_scale()
{
    return sl_f32_to_f16((float)(sl_rng_unit(sl_rng_next(&rng)) - 0.5) * 0.02f);
}

/* Bytes of every kind, but scales that are finite and small. */
static void random_blocks(enum sl_dtype dtype, uint8_t *p, size_t n_bytes)
{
    for (size_t i = 0; i < n_bytes; i++)
        p[i] = (uint8_t)sl_rng_next(&rng);
    for (size_t b = 0; b < n_bytes; b += sl_dtype_info(dtype)->block_bytes) {
        uint16_t d = random_scale();
        block_put_scales(dtype, p + b, d, random_scale());
        if (dtype == SL_DTYPE_MXFP4)
            p[b] = (uint8_t)(112 + below(16));
    }
}

/* The same with heads of groups of four-bit codes. */
static void random_groups(uint8_t *p, size_t n_bytes, size_t block)
{
    for (size_t i = 0; i < n_bytes; i++)
        p[i] = (uint8_t)sl_rng_next(&rng);
    for (size_t b = 0; b < n_bytes; b += block)
        sl_int4_store_head(p + b, sl_int4_head(sl_f16_to_f32(random_scale()), (uint32_t)below(16)));
}

static void random_file(matrix &m, size_t row_bytes)
{
    m.file.resize(row_bytes * (size_t)m.n);
    uint8_t *p = m.file.data();
    switch (m.dtype) {
    case SL_DTYPE_F32:
    case SL_DTYPE_F16:
    case SL_DTYPE_BF16: {
        std::vector<float> x((size_t)(m.n * m.k));
        for (float &v : x) {
            v = (float)sl_rng_normal(&rng);
            v = below(100) == 0 ? 0.0f : below(100) == 0 ? v * 1e-7f : v;
        }
        sl_dtype_info(m.dtype)->from_f32(x.data(), p, (int64_t)x.size());
        return;
    }
    case SL_DTYPE_FP8_E4M3: /* every code that is a number */
        for (uint8_t &b : m.file)
            b = (uint8_t)(below(127) | (sl_rng_next(&rng) & 0x80));
        return;
    case SL_DTYPE_INT4_G128:
        return random_groups(p, m.file.size(), 68);
    case SL_DTYPE_INT4_G32:
        return random_groups(p, m.file.size(), 20);
    default:
        return random_blocks(m.dtype, p, m.file.size());
    }
}

/* Scales of FP8, every kind of blocks in turn, and none. */
static struct sl_scales make_scales(matrix &m)
{
    static int kind;
    const int32_t blocks[][2] = {
        {(int32_t)m.n, (int32_t)m.k}, {1, (int32_t)m.k}, {128, 128}, {5, 256}, {1, 128}};
    struct sl_scales s = {NULL, 0, 0, 0};
    if (m.dtype != SL_DTYPE_FP8_E4M3 || kind++ % 6 == 5)
        return s;
    s.rows = blocks[(kind - 1) % 6][0];
    s.cols = blocks[(kind - 1) % 6][1];
    m.scale.resize((size_t)(SL_CEIL_DIV(m.n, s.rows) * SL_CEIL_DIV(m.k, s.cols)));
    for (float &v : m.scale)
        v = (float)exp(-5.0 + sl_rng_normal(&rng));
    s.values = m.scale.data();
    for (int64_t i = 0; i < m.n * m.k; i++)
        m.value[(size_t)i] = device_fp8(m.value[(size_t)i], sl_scale_at(&s, m.k, i / m.k, i % m.k));
    return s;
}

static void make_matrix(matrix &m, enum sl_dtype dtype, int64_t n, int64_t k)
{
    m.dtype = dtype;
    m.n = n;
    m.k = k;
    uint64_t row_bytes;
    if (!sl_dtype_bytes(dtype, (uint64_t)k, &row_bytes))
        exit(2);
    random_file(m, row_bytes);
    m.value.resize((size_t)(n * k));
    device_values(dtype, m.file.data(), m.value.data(), n * k);
    struct sl_scales scales = make_scales(m);
    struct sl_error err;
    size_t before = n_allocated;
    int rc = sl_cuda_weight_create(&cu.base, SL_USE_LINEAR, dtype, n, k, m.file.data(), &scales,
                                   &m.w, &err);
    CHECK(rc == 0, "create %s: %d", sl_dtype_info(dtype)->name, rc);
    uint64_t bytes = sl_cuda_weight_bytes(&cu.base, SL_USE_LINEAR, dtype, n, k);
    CHECK(n_allocated - before == bytes && m.w.n_bytes == bytes, "%zu of %llu bytes",
          n_allocated - before, (unsigned long long)bytes);
    MUST(cudaStreamSynchronize(cu.stream)); /* as after loading: products fetch weights early */
    /* The file's data are not needed any more. */
    memset(m.file.data(), 0xA5, m.file.size());
    for (float &v : m.scale)
        v = NAN;
}

/* A packed matrix as bf16 [row blocks x 16][padded columns]; one warp per row block. */
template <class F>
static __global__ void unpack_kernel(const uint8_t *w, int n_units, uint16_t *out)
{
    sl_grid_wait();
    int lane = static_cast<int>(threadIdx.x);
    int64_t ld = static_cast<int64_t>(n_units) * F::unit_k;
    for (int s = 0; s < n_units * F::unit_k / 64; s++) {
        typename F::raw raw;
        const uint8_t *unit =
            w + (blockIdx.x * sl_cuda_row_units(n_units, F::unit_bytes) + s * 64 / F::unit_k) *
                    F::unit_bytes;
        F::load(raw, unit, s % (F::unit_k / 64), lane);
        for (int j = 0; j < 4; j++) {
            uint32_t a[4];
            F::frag(raw, j, a);
            for (int e = 0; e < 8; e++) {
                int row = 16 * static_cast<int>(blockIdx.x) + lane / 4 + 8 * (e / 2 % 2);
                int col = 64 * s + 16 * j + 2 * (lane % 4) + e % 2 + 8 * (e / 4);
                float v = __uint_as_float(a[e / 2] >> 16 * (e % 2) << 16);
                out[row * ld + col] = __bfloat16_as_ushort(__float2bfloat16_rn(v * F::factor));
            }
        }
    }
}

template <class F> static void unpack(const matrix &m, dev<uint16_t> &out, int n_units)
{
    int64_t blocks = (m.n + 15) / 16;
    sl_launch(&cu, unpack_kernel<F>, dim3((unsigned)blocks), dim3(32), 0, (const uint8_t *)m.w.data,
              n_units, out.p);
}

static void test_packing(const matrix &m)
{
    const struct sl_cuda_layout_info *info = sl_cuda_layout_info(m.w.layout);
    int n_units = (int)((m.k + info->unit_k - 1) / info->unit_k);
    int64_t ld = n_units * info->unit_k, blocks = (m.n + 15) / 16;
    CHECK((int64_t)m.w.n_bytes ==
              blocks * sl_cuda_row_units(n_units, info->unit_bytes) * info->unit_bytes,
          "%zu", m.w.n_bytes);
    dev<uint16_t> out((size_t)(blocks * 16 * ld));
    switch (m.w.layout) {
    case SL_CUDA_BF16:
        unpack<sl_wf_bf16>(m, out, n_units);
        break;
    case SL_CUDA_Q8_0:
        unpack<sl_wf_q8_0>(m, out, n_units);
        break;
    case SL_CUDA_Q4_0:
        unpack<sl_wf_q4_0>(m, out, n_units);
        break;
    case SL_CUDA_Q4_K:
        unpack<sl_wf_q4_k>(m, out, n_units);
        break;
    case SL_CUDA_Q5_K:
        unpack<sl_wf_q5_k>(m, out, n_units);
        break;
    case SL_CUDA_FP8:
        unpack<sl_wf_fp8>(m, out, n_units);
        break;
    case SL_CUDA_INT4_G128:
        unpack<sl_wf_int4_g128>(m, out, n_units);
        break;
    case SL_CUDA_INT4_G32:
        unpack<sl_wf_int4_g32>(m, out, n_units);
        break;
    case SL_CUDA_MXFP4:
        unpack<sl_wf_mxfp4>(m, out, n_units);
        break;
    default:
        unpack<sl_wf_q6_k>(m, out, n_units);
    }
    std::vector<uint16_t> got = out.get();
    for (int64_t r = 0; r < blocks * 16; r++) {
        for (int64_t c = 0; c < ld; c++) {
            bool in = r < m.n && c < m.k;
            float want = in ? m.value[(size_t)(r * m.k + c)] : 0.0f;
            float v = sl_bf16_to_f32(got[(size_t)(r * ld + c)]);
            /* == : a zero may have either sign */
            CHECK(v == want, "%s (%d, %d): %a, not %a", info->name, (int)r, (int)c, v, want);
            n_bits++;
        }
    }
}

/* ------------------------------------------------------------------ products */

struct input { /* [m][ld] on the device, NaN in what nobody may read */
    int m;
    int64_t k, ld, skew;
    std::vector<float> x; /* [m][k] */
    dev<uint16_t> mem;
    static std::vector<uint16_t> lay(const std::vector<float> &x, int m, int64_t k, int64_t ld,
                                     int64_t skew)
    {
        std::vector<uint16_t> v((size_t)(skew + (m - 1) * ld + k), 0x7FC0);
        for (int t = 0; t < m; t++)
            for (int64_t c = 0; c < k; c++)
                v[(size_t)(skew + t * ld + c)] = sl_f32_to_bf16(x[(size_t)(t * k + c)]);
        return v;
    }
    input(const std::vector<float> &x_, int m_, int64_t k_, int64_t pad, int64_t skew_)
        : m(m_), k(k_), ld(k_ + pad), skew(skew_), x(x_.begin(), x_.begin() + m_ * k_),
          mem(lay(x_, m_, k_, k_ + pad, skew_))
    {
    }
    const void *p() const
    {
        return mem.p + skew;
    }
};

static std::vector<float> random_x(int m, int64_t k)
{
    std::vector<float> x((size_t)(m * k));
    for (float &v : x)
        v = sl_bf16_to_f32(sl_f32_to_bf16((float)sl_rng_normal(&rng)));
    return x;
}

#define POISON 0x7FABCDEFu

/* Runs a product by a route (NULL: the table's) into poisoned memory with `pad` floats between
 * rows, checks that nothing else was written, and returns [m][n]. */
static std::vector<float> product(const input &in, const matrix &w, const float *bias, int64_t pad,
                                  const struct sl_lin_route *r)
{
    int64_t ld = w.n + pad;
    std::vector<float> fill((size_t)((in.m - 1) * ld + w.n), sl_f32_of_bits(POISON));
    dev<float> out(fill);
    struct sl_op_linear a = {in.p(), in.ld, &w.w, bias, in.m, out.p, ld, nullptr, nullptr, false};
    if (r == nullptr) {
        sl_cuda_linear(&cu.base, &a);
    } else {
        struct sl_lin l = sl_cuda_linear_args(&a);
        sl_cuda_linear_run(&cu, &l, r);
    }
    CHECK(cu.error == cudaSuccess, "%s: %s", cu.error_what, cudaGetErrorString(cu.error));
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

/* The first m rows of b are a. */
static void expect_rows(const std::vector<float> &a, const std::vector<float> &b, const char *what,
                        int m, const matrix &w)
{
    for (size_t i = 0; i < a.size(); i++) {
        CHECK(same_bits(a[i], b[i]), "%s, %s %d x %d, %d tokens: token %d row %d: %a, not %a", what,
              sl_dtype_info(w.dtype)->name, (int)w.n, (int)w.k, m, (int)(i / (size_t)w.n),
              (int)(i % (size_t)w.n), a[i], b[i]);
        n_bits++;
    }
}

/* Against the sum in double. Every one of the padded K additions rounds a partial sum, none of
 * which exceeds the sum of magnitudes, by at most 2^-24 of it (2^-23 where a chip truncates); the
 * bias is one more. */
static void expect_close(const std::vector<float> &y, const input &in, const matrix &w,
                         const std::vector<float> &bias)
{
    for (int t = 0; t < in.m; t++) {
        for (int64_t r = 0; r < w.n; r++) {
            double sum = 0, mag = 0;
            for (int64_t c = 0; c < w.k; c++) {
                double p = (double)w.value[(size_t)(r * w.k + c)] * in.x[(size_t)(t * w.k + c)];
                sum += p;
                mag += fabs(p);
            }
            double b = bias.empty() ? 0.0 : bias[(size_t)r];
            double limit = 0x1p-23 * ((double)(w.k + 1) * mag + fabs(b)),
                   got = y[(size_t)(t * w.n + r)];
            CHECK(fabs(got - (sum + b)) <= limit,
                  "%s %d x %d, token %d row %d: %g, not %g, limit %g", sl_dtype_info(w.dtype)->name,
                  (int)w.n, (int)w.k, t, (int)r, got, sum + b, limit);
            n_close++;
        }
    }
}

static void test_products(const matrix &w, const std::vector<int> &ms, bool every_route)
{
    int top = ms.back();
    std::vector<float> x = random_x(top, w.k), bias((size_t)w.n);
    for (float &b : bias)
        b = (float)sl_rng_normal(&rng);
    dev<float> dbias(bias);
    input whole(x, top, w.k, 0, 0);
    std::vector<float> all = product(whole, w, dbias.p, 0, nullptr);
    expect_close(all, whole, w, bias);
    size_t n_routes;
    const struct sl_lin_route *routes = sl_cuda_linear_routes(&n_routes);
    for (int m : ms) {
        int64_t pad = below(2) ? (int64_t)below(9) : 8, skew = below(3) == 0 ? 1 : 0;
        input in(x, m, w.k, pad, skew);
        cu.n_sms = 1 + (int)below(8);
        expect_rows(product(in, w, dbias.p, (int64_t)below(4), nullptr), all, "table", m, w);
        for (size_t i = 0; every_route && i < n_routes; i++) {
            struct sl_op_linear a = {in.p(),  in.ld, &w.w,    nullptr, m,
                                     nullptr, w.n,   nullptr, nullptr, false};
            struct sl_lin l = sl_cuda_linear_args(&a);
            if (sl_cuda_linear_fits(&routes[i], &l))
                expect_rows(product(in, w, dbias.p, (int64_t)below(4), &routes[i]), all,
                            routes[i].name, m, w);
        }
    }
    cu.n_sms = 6;
    /* Without a bias: a sum, to which the bias adds with one rounding. */
    std::vector<float> plain = product(whole, w, nullptr, 0, nullptr);
    for (size_t i = 0; i < plain.size(); i++)
        CHECK(same_bits(plain[i] + bias[i % (size_t)w.n], all[i]), "bias of output %zu", i);
}

/* What is not finite in a token stays in it. */
static void test_poison(const matrix &w, int m)
{
    std::vector<float> x = random_x(m, w.k);
    input clean(x, m, w.k, 3, 0);
    int bad = m / 2;
    x[(size_t)(bad * w.k) + below((uint64_t)w.k)] = below(2) ? NAN : INFINITY;
    input dirty(x, m, w.k, 3, 0);
    std::vector<float> a = product(clean, w, nullptr, 0, nullptr);
    std::vector<float> b = product(dirty, w, nullptr, 0, nullptr);
    for (int t = 0; t < m; t++) {
        int finite = 0;
        for (int64_t r = 0; r < w.n; r++) {
            size_t i = (size_t)(t * w.n + r);
            finite += isfinite(b[i]);
            CHECK(t == bad || same_bits(a[i], b[i]), "token %d saw token %d", t, bad);
        }
        CHECK(t != bad || finite == 0, "%d outputs of the bad token are finite", finite);
    }
}

/* q, k, v of one input, in different formats, as three products. */
static void test_multi(const matrix *const w[3], int m)
{
    std::vector<float> x = random_x(m, w[0]->k), bias((size_t)w[1]->n, 0.5f);
    input in(x, m, w[0]->k, 8, 0);
    dev<float> dbias(bias);
    dev<float> out0((size_t)(m * w[0]->n)), out1((size_t)(m * w[1]->n)),
        out2((size_t)(m * w[2]->n));
    struct sl_op_linear_multi a = {in.p(), in.ld, m, 3, {}, nullptr};
    a.part[0] = {&w[0]->w, nullptr, out0.p, w[0]->n};
    a.part[1] = {&w[1]->w, dbias.p, out1.p, w[1]->n};
    a.part[2] = {&w[2]->w, nullptr, out2.p, w[2]->n};
    sl_cuda_linear_multi(&cu.base, &a);
    expect_rows(out0.get(), product(in, *w[0], nullptr, 0, nullptr), "multi 0", m, *w[0]);
    expect_rows(out1.get(), product(in, *w[1], dbias.p, 0, nullptr), "multi 1", m, *w[1]);
    expect_rows(out2.get(), product(in, *w[2], nullptr, 0, nullptr), "multi 2", m, *w[2]);
}

/* By a route, or by the table (NULL). */
static std::vector<uint16_t> gated(const input &in, const matrix &gate, const matrix &up,
                                   enum sl_act act, const struct sl_lin_route *r)
{
    dev<uint16_t> out((size_t)(in.m * gate.n));
    struct sl_op_linear_gated_act a = {in.p(), in.ld, &gate.w, &up.w,  act,
                                       in.m,   out.p, nullptr, nullptr};
    cu.n_sms = 1 + (int)below(8);
    if (r == nullptr) {
        sl_cuda_linear_gated_act(&cu.base, &a);
    } else {
        struct sl_lin l = sl_cuda_linear_gated_args(&a);
        if (!sl_cuda_linear_fits(r, &l))
            return {};
        sl_cuda_linear_run(&cu, &l, r);
    }
    cu.n_sms = 6;
    return out.get();
}

static void test_gated(const matrix &gate, const matrix &up, int m, enum sl_act act,
                       bool every_route = true)
{
    std::vector<float> x = random_x(m, gate.k);
    input in(x, m, gate.k, below(2) ? 0 : 5, 0);
    std::vector<float> g = product(in, gate, nullptr, 0, nullptr);
    std::vector<float> u = product(in, up, nullptr, 0, nullptr), want(g.size());
    cpu.act(act, g.data(), u.data(), (int)g.size(), want.data());
    size_t n_routes;
    const struct sl_lin_route *routes = sl_cuda_linear_routes(&n_routes);
    for (size_t r = every_route && gate.dtype == up.dtype ? 0 : n_routes; r <= n_routes; r++) {
        const struct sl_lin_route *route = r < n_routes ? &routes[r] : nullptr;
        std::vector<uint16_t> got = gated(in, gate, up, act, route);
        for (size_t i = 0; i < got.size(); i++) {
            CHECK(got[i] == sl_f32_to_bf16(want[i]),
                  "%s, gated %s and %s, %d x %d, %d tokens, output %zu: %04x, not %04x",
                  route != nullptr ? route->name : "table", sl_dtype_info(gate.dtype)->name,
                  sl_dtype_info(up.dtype)->name, (int)gate.n, (int)gate.k, m, i, got[i],
                  sl_f32_to_bf16(want[i]));
            n_bits++;
        }
    }
}

/* A feed-forward part, nothing waiting between its kernels: each must wait for what it reads. */
static void test_chain(const matrix &gate, const matrix &up, const matrix &down, int m)
{
    std::vector<float> x = random_x(m, gate.k);
    input in(x, m, gate.k, 8, 0);
    std::vector<float> y[2];
    for (int synced = 0; synced < 2; synced++) {
        dev<uint16_t> mid(std::vector<uint16_t>((size_t)(m * gate.n), 0x7FC0));
        dev<float> out((size_t)(m * down.n));
        struct sl_op_linear_gated_act a = {in.p(), in.ld, &gate.w, &up.w,  SL_ACT_SILU,
                                           m,      mid.p, nullptr, nullptr};
        struct sl_op_linear b = {mid.p, gate.n, &down.w, nullptr, m,
                                 out.p, down.n, nullptr, nullptr, false};
        sl_cuda_linear_gated_act(&cu.base, &a);
        if (synced)
            MUST(cudaStreamSynchronize(cu.stream));
        sl_cuda_linear(&cu.base, &b);
        y[synced] = out.get();
    }
    CHECK(isfinite(y[1][0]), "%a", y[1][0]);
    expect_rows(y[0], y[1], "chain", m, down);
}

/* What a layer leaves behind attention, with or without operations that are one kernel. */
struct layer_sums {
    std::vector<float> x;
    std::vector<uint16_t> norm, mid, last;
    std::vector<float> head;
};

struct layer_weights {
    matrix o, gate, up, down;
    layer_weights(enum sl_dtype t, int64_t h, int64_t wide)
    {
        make_matrix(o, t, h, wide);
        make_matrix(gate, t, wide, h);
        make_matrix(up, t, wide, h);
        make_matrix(down, t, h, wide);
    }
};

static layer_sums run_layer(const layer_weights &w, const std::vector<float> &x0, const input &att,
                            const dev<float> &norm_w, bool fused)
{
    const int m = att.m;
    const size_t all = (size_t)(m * w.o.n);
    dev<float> x(x0), y(all), out((size_t)(m * w.gate.n));
    dev<uint16_t> norm(all), mid((size_t)(m * w.gate.n)), last(all);
    const struct fused_layer l = {&w.o.w, &w.gate.w, &w.up.w, &w.down.w, m,     att.p(), norm_w.p,
                                  x.p,    y.p,       out.p,   norm.p,    mid.p, last.p};
    fused_layer_run(&cu, &l, fused);
    CHECK(cu.error == cudaSuccess, "%s: %s", cu.error_what, cudaGetErrorString(cu.error));
    return {x.get(), norm.get(), mid.get(), last.get(), out.get()};
}

static void expect_same(const std::vector<uint16_t> &a, const std::vector<uint16_t> &b,
                        const char *what, int m)
{
    for (size_t i = 0; i < a.size(); i++)
        CHECK(a[i] == b[i], "%s of %d tokens, %zu: %04x, not %04x", what, m, i, a[i], b[i]);
    n_bits += (long)a.size();
}

/* Additions and norms inside products, beside kernels of their own. */
static void test_fused(const layer_weights &w, int m)
{
    const int64_t h = w.o.n;
    std::vector<float> x = random_x(m, h), norm_w((size_t)h);
    for (float &v : norm_w)
        v = (float)sl_rng_normal(&rng);
    for (size_t i = 0; i < x.size(); i += 37)
        x[i] = sl_f32_of_bits((uint32_t)below(1 << 24)); /* around the end of the normal range */
    dev<float> d_norm(norm_w);
    std::vector<float> v = random_x(m, w.o.k);
    for (size_t i = 0; i < v.size() && m > 1; i++)
        v[i] = i / (size_t)w.o.k == 1 ? v[i] * 0x1p-120f : v[i];
    input att(v, m, w.o.k, 0, 0);
    cu.n_sms = 1 + (int)below(5);
    layer_sums a = run_layer(w, x, att, d_norm, false), b = run_layer(w, x, att, d_norm, true);
    cu.n_sms = 6;
    expect_rows(b.x, a.x, "fused, the residual stream", m, w.o);
    expect_same(b.norm, a.norm, "fused, the first norm", m);
    expect_same(b.mid, a.mid, "fused, gate and up", m);
    expect_same(b.last, a.last, "fused, the second norm", m);
    expect_rows(b.head, a.head, "fused, the product behind", m, w.gate);
}

/* ------------------------------------------------------------------ cases */

static const enum sl_dtype formats[] = {SL_DTYPE_F32,       SL_DTYPE_F16,      SL_DTYPE_BF16,
                                        SL_DTYPE_Q8_0,      SL_DTYPE_Q4_0,     SL_DTYPE_Q4_K,
                                        SL_DTYPE_Q5_K,      SL_DTYPE_Q6_K,     SL_DTYPE_FP8_E4M3,
                                        SL_DTYPE_INT4_G128, SL_DTYPE_INT4_G32, SL_DTYPE_MXFP4};

/* A format of quant/eight.h: how it is packed; the kernels are those of its layout. */
static void test_eight(enum sl_dtype t)
{
    static const int64_t shapes[][2] = {{16, 256}, {1, 32}, {37, 96}, {100, 608}};
    for (auto &s : shapes) {
        matrix w;
        make_matrix(w, t, s[0], SL_ROUND_UP(s[1], (int64_t)sl_dtype_info(t)->block_elems));
        test_packing(w);
        if (s[0] == 37)
            test_products(w, {1, 9, 70}, false);
    }
}

static void test_format(enum sl_dtype t)
{
    static const std::vector<int> ms = {1, 2, 7, 8, 9, 16, 17, 64, 65, 130};
    int64_t block = sl_dtype_info(t)->block_elems;
    /* F32 and F16 are packed as BF16, which goes through all routes of that layout. */
    const bool every_route = t != SL_DTYPE_F32 && t != SL_DTYPE_F16;
    struct {
        int64_t n, k; /* k in blocks of formats that have them */
    } shapes[] = {{16, 256}, {1, 32}, {37, 96}, {100, 608}, {7, 1}};
    for (auto &s : shapes) {
        int64_t k = block == 1 ? s.k + (s.n == 37 ? 5 : 0) : SL_ROUND_UP(s.k, block);
        matrix w;
        make_matrix(w, t, s.n, k);
        test_packing(w);
        test_products(w, ms, every_route);
        if (s.n == 37)
            test_poison(w, 17);
        if (s.n == 100)
            test_poison(w, 70);
    }
    matrix gate, up;
    make_matrix(gate, t, 52, SL_ROUND_UP(320, block));
    make_matrix(up, t, 52, SL_ROUND_UP(320, block));
    for (int m : {1, 9, 17, 40, 70, 300})
        test_gated(gate, up, m, m % 2 ? SL_ACT_SILU : SL_ACT_GELU_TANH, every_route);
    matrix short_gate, short_up; /* one segment: the largest tiles, high and wide */
    make_matrix(short_gate, t, 84, 256);
    make_matrix(short_up, t, 84, 256);
    for (int m : {130, 300, 420})
        test_gated(short_gate, short_up, m, SL_ACT_SILU, every_route);
}

/* More row blocks than one round of warps has, and activations that do not stay. */
static void test_rounds(enum sl_dtype t)
{
    matrix w;
    make_matrix(w, t, 700, 1024);
    test_products(w, {1, 33, 64}, false);
    matrix deep;
    make_matrix(deep, t, 20, 8192);
    test_products(deep, {1, 8, 40, 70}, true);
    matrix several;
    make_matrix(several, t, 300, 1024);
    test_products(several, {3, 8}, true);
    matrix up;
    make_matrix(up, t, 700, 1024);
    for (int m : {8, 64})
        test_gated(w, up, m, SL_ACT_SILU);
}

/* Eight segments. */
static void test_long(enum sl_dtype t)
{
    matrix w, up;
    make_matrix(w, t, 20, 9216);
    test_products(w, {1, 10, 40, 70}, true);
    make_matrix(up, t, 20, 9216);
    test_gated(w, up, 3, SL_ACT_SILU);
}

/* Tiles of many tokens: several of rows and of tokens, all kinds of ends, one segment and four. */
static void test_tiles(enum sl_dtype t)
{
    static const int64_t shapes[][2] = {{290, 256}, {130, 512}, {140, 320}};
    for (auto &s : shapes) {
        matrix w, up;
        make_matrix(w, t, s[0], s[1]);
        make_matrix(up, t, s[0], s[1]);
        std::vector<float> x = random_x(260, w.k);
        for (int64_t i = 0; i < w.k; i++) /* sums of zeros of either sign */
            x[(size_t)i] = 0.0f, x[(size_t)(w.k + i)] = -0.0f;
        for (int m : {260, 70}) {
            std::vector<float> few, y;
            for (int at = 0; at < m; at += 64) {
                std::vector<float> part(x.begin() + at * w.k, x.begin() + SL_MIN(at + 64, m) * w.k);
                input in(part, SL_MIN(64, m - at), w.k, 0, 0);
                std::vector<float> got = product(in, w, nullptr, 0, nullptr);
                few.insert(few.end(), got.begin(), got.end());
            }
            input in(x, m, w.k, 8, 0);
            size_t n_routes;
            const struct sl_lin_route *routes = sl_cuda_linear_routes(&n_routes);
            for (size_t i = 0; i < n_routes; i++) {
                struct sl_op_linear a = {in.p(),  in.ld, &w.w,    nullptr, m,
                                         nullptr, w.n,   nullptr, nullptr, false};
                struct sl_lin l = sl_cuda_linear_args(&a);
                if (!sl_cuda_linear_fits(&routes[i], &l))
                    continue;
                cu.n_sms = 1 + (int)below(12);
                expect_rows(product(in, w, nullptr, 4 * (int64_t)below(2) + 2, &routes[i]), few,
                            routes[i].name, m, w);
                cu.n_sms = 6;
            }
        }
        test_gated(w, up, 140, SL_ACT_SILU);
    }
}

static void test_mixes()
{
    matrix m[6];
    static const enum sl_dtype kinds[6] = {SL_DTYPE_Q4_K, SL_DTYPE_Q4_K, SL_DTYPE_Q6_K,
                                           SL_DTYPE_F16,  SL_DTYPE_Q8_0, SL_DTYPE_FP8_E4M3};
    static const int64_t rows[6] = {96, 33, 40, 40, 40, 40};
    for (int i = 0; i < 6; i++)
        make_matrix(m[i], kinds[i], rows[i], 512);
    const matrix *same[3] = {&m[0], &m[1], &m[0]}, *mixed[3] = {&m[0], &m[3], &m[1]};
    for (int tokens : {1, 12, 66}) {
        test_multi(same, tokens);
        test_multi(mixed, tokens);
    }
    for (int a = 2; a < 6; a++)
        for (int b = 2; b < 6; b++)
            test_gated(m[a], m[b], a == b ? 3 : 60 + 7 * b, SL_ACT_SILU);
}

/* A code that is NaN makes its row NaN, and no other. Lookups have no scales, so no FP8. */
static void test_fp8_nan()
{
    std::vector<uint8_t> file(40 * 300);
    for (uint8_t &b : file)
        b = (uint8_t)(below(127) | (sl_rng_next(&rng) & 0x80));
    struct sl_error err;
    std::vector<float> x = random_x(3, 300);
    input in(x, 3, 300, 8, 0);
    for (int at : {0, 127, 128, 299}) {
        matrix m;
        m.dtype = SL_DTYPE_FP8_E4M3;
        m.n = 40;
        m.k = 300;
        for (int row : {3, 11, 39})
            file[(size_t)(row * 300 + at)] = at % 2 ? 0x7F : 0xFF;
        int rc = sl_cuda_weight_create(&cu.base, SL_USE_LINEAR, m.dtype, m.n, m.k, file.data(),
                                       NULL, &m.w, &err);
        CHECK(rc == 0, "%d", rc);
        MUST(cudaStreamSynchronize(cu.stream));
        std::vector<float> y = product(in, m, nullptr, 0, nullptr);
        for (int i = 0; i < 120; i++) {
            int row = i % 40;
            CHECK((isnan(y[i]) != 0) == (row == 3 || row == 11 || row == 39), "row %d: %a", row,
                  y[i]);
        }
        for (int row : {3, 11, 39})
            file[(size_t)(row * 300 + at)] = 0;
    }
    struct sl_weight w;
    int rc = sl_cuda_weight_create(&cu.base, SL_USE_ROWS, SL_DTYPE_FP8_E4M3, 40, 300, file.data(),
                                   NULL, &w, &err);
    CHECK(rc == SL_EUNSUPPORTED, "%d", rc);
}

static void test_chains()
{
    matrix gate, up, down;
    make_matrix(gate, SL_DTYPE_Q4_0, 256, 96);
    make_matrix(up, SL_DTYPE_Q4_0, 256, 96);
    make_matrix(down, SL_DTYPE_Q6_K, 90, 256);
    for (int m : {1, 5, 16, 24, 64, 65, 90, 1, 2, 3})
        test_chain(gate, up, down, m);
}

static void test_fusing()
{
    const layer_weights bf16(SL_DTYPE_BF16, 392, 320), ring(SL_DTYPE_BF16, 256, 256),
        int4(SL_DTYPE_INT4_G128, 384, 1024);
    for (const layer_weights *w : {&bf16, &ring, &int4})
        for (int m : {1, 4, 5, 20, 33})
            test_fused(*w, m);
    test_fused(ring, 70);
}

/* Products of n_shapes shapes in turn: each has the route that the table gives, and from the second
 * time on it is found without the table. */
static uint64_t expect_kept(int n_shapes, int rounds)
{
    uint64_t first = 0;
    const uint64_t before = cu.counts.routed;
    for (int i = 0; i < n_shapes * rounds; i++) {
        const int shape = i % n_shapes;
        sl_rng own = {};
        own.seed = (uint64_t)shape + 1;
        struct sl_lin l = {};
        l.n = 1 + (int)(sl_rng_next(&own) % (shape % 3 == 0 ? 16 : 700));
        l.n_parts = 1 + (int)(sl_rng_next(&own) % 3);
        l.gated = l.n_parts == 2 && sl_rng_next(&own) % 2;
        l.n_k64 = 4 * (1 + (int)(sl_rng_next(&own) % 64));
        l.n_segs = 1 + (int)(sl_rng_next(&own) % 4);
        l.seg_k64 = SL_ROUND_UP(SL_CEIL_DIV(l.n_k64, l.n_segs), 4);
        l.vec_x = sl_rng_next(&own) % 4;
        for (int j = 0; j < l.n_parts; j++) {
            l.part[j].layout = 1 + shape % (SL_CUDA_LAYOUTS - 1);
            l.part[j].n_rows = 64 * (1 + (int)(sl_rng_next(&own) % 200));
            l.part[j].n_blocks = l.part[j].n_rows / SL_CUDA_ROW_BLOCK;
        }
        const struct sl_lin_route *want = sl_cuda_linear_route(&l, cu.n_sms);
        const struct sl_lin_route *got = sl_cuda_linear_route_of(&cu, &l);
        CHECK(got == want, "shape %d of %d: %s, the table says %s", shape, n_shapes, got->name,
              want->name);
        if (i == n_shapes - 1)
            first = cu.counts.routed - before;
    }
    return cu.counts.routed - before - first;
}

static void test_kept_routes()
{
    memset(cu.routes, 0, sizeof cu.routes);
    uint64_t again = expect_kept(120, 5);
    CHECK(again == 0, "%d shapes were searched for again", (int)again);
    expect_kept(3000, 2); /* more than are kept; those that come back make room for themselves */
    again = expect_kept(120, 5);
    CHECK(again < 120, "%d of 480 were searched for again", (int)again);
    /* Operations, too: a model's layers search the table once for each shape. */
    matrix m[2];
    for (matrix &w : m)
        make_matrix(w, SL_DTYPE_BF16, 48, 64);
    input in(random_x(5, 64), 5, 64, 0, 0);
    product(in, m[0], nullptr, 0, nullptr);
    const uint64_t before = cu.counts.routed;
    for (int i = 0; i < 4; i++)
        product(in, m[i % 2], nullptr, 0, nullptr);
    CHECK(cu.counts.routed == before, "the table was searched for a known shape");
}

/* Gate and up of 8B on one of n_ranks GPUs. */
static struct sl_lin gate_of_rank(int32_t n, int n_ranks)
{
    struct sl_lin l = {};
    l.n = n;
    l.k = 4096;
    l.n_k64 = l.seg_k64 = 64;
    l.n_segs = 1;
    l.n_parts = 2;
    l.gated = l.vec_x = true;
    for (int i = 0; i < 2; i++) {
        l.part[i].n_rows = 14336 / n_ranks;
        l.part[i].n_blocks = l.part[i].n_rows / SL_CUDA_ROW_BLOCK;
        l.part[i].layout = SL_CUDA_BF16;
        l.part[i].seg_k64 = 64;
    }
    return l;
}

/* What all ranks want is written by the product, also where the cheapest kernel cannot; a kernel
 * that can is taken as it is; and where none can, the choice is the same. */
static void test_spread_routes()
{
    for (int32_t n = 33; n <= 4096; n += n / 4) {
        const struct sl_lin l = gate_of_rank(n, 2);
        const struct sl_lin_route *own = sl_cuda_linear_route(&l, 132);
        const struct sl_lin_route *r = sl_cuda_linear_spread(&l, 132, 1);
        CHECK(sl_cuda_linear_spreads(r) && sl_cuda_linear_fits(r, &l), "%d tokens: %s", n, r->name);
        CHECK(r == own || !sl_cuda_linear_spreads(own), "%d tokens: %s, not %s", n, r->name,
              own->name);
    }
    struct sl_lin l = gate_of_rank(256, 2);
    CHECK(!sl_cuda_linear_spreads(sl_cuda_linear_route(&l, 132)), "one round of large tiles");
    l.part[0].layout = l.part[1].layout = SL_CUDA_Q8_0;
    const struct sl_lin_route *own = sl_cuda_linear_route(&l, 132);
    CHECK(sl_cuda_linear_spread(&l, 132, 1) == own && !sl_cuda_linear_spreads(own), "%s",
          own->name);
}

static void test_rest()
{
    /* Rows for lookups lie as in the file. */
    std::vector<uint8_t> file(7 * 34 * 3);
    for (uint8_t &b : file)
        b = (uint8_t)sl_rng_next(&rng);
    struct sl_weight w;
    struct sl_error err;
    int rc = sl_cuda_weight_create(&cu.base, SL_USE_ROWS, SL_DTYPE_Q8_0, 7, 96, file.data(), NULL,
                                   &w, &err);
    CHECK(rc == 0 && w.layout == SL_CUDA_ROWS && w.n_bytes == file.size(), "%d", rc);
    std::vector<uint8_t> back(file.size());
    MUST(cudaStreamSynchronize(cu.stream));
    MUST(cudaMemcpy(back.data(), w.data, back.size(), cudaMemcpyDeviceToHost));
    CHECK(back == file, "rows are not the file's");
    CHECK(strcmp(sl_cuda_weight_route(&cu.base, &w), "rows") == 0, "route");
    sl_cuda_weight_destroy(&cu.base, &w);
    /* Half a block is no matrix. */
    rc = sl_cuda_weight_create(&cu.base, SL_USE_LINEAR, SL_DTYPE_Q8_0, 7, 40, file.data(), NULL, &w,
                               &err);
    CHECK(rc == SL_EUNSUPPORTED, "%d", rc);
    /* No tokens, no work. */
    matrix m;
    make_matrix(m, SL_DTYPE_BF16, 16, 16);
    struct sl_op_linear a = {nullptr, 16, &m.w, nullptr, 0, nullptr, 16, nullptr, nullptr, false};
    sl_cuda_linear(&cu.base, &a);
    /* Every layout has a route for every number of tokens, plain and gated, whatever its shape. */
    for (int i = 0; i < SL_CUDA_LAYOUTS * 64; i++) {
        struct sl_lin l = {};
        l.part[0].layout = 1 + i % (SL_CUDA_LAYOUTS - 1);
        l.n = 1 << i / SL_CUDA_LAYOUTS % 13;
        l.n_segs = 1 + (int)below(4);
        l.gated = below(2);
        const struct sl_lin_route *r = sl_cuda_linear_route(&l, 132);
        CHECK(r != nullptr && sl_cuda_linear_fits(r, &l), "layout %d, %d", l.part[0].layout, l.n);
    }
    test_spread_routes();
    struct sl_op_linear few = {nullptr, 16, &m.w,    nullptr, 200,
                               nullptr, 16, nullptr, nullptr, false};
    struct sl_lin l = sl_cuda_linear_args(&few);
    CHECK(l.n_segs == 1 && l.seg_k64 == 4, "%d segments of %d", l.n_segs, l.seg_k64);
    m.w.n_cols = 1300;
    l = sl_cuda_linear_args(&few);
    CHECK(l.n_segs == 3 && l.seg_k64 == 8 && l.n_k64 == 21, "%d segments of %d", l.n_segs,
          l.seg_k64);
    m.w.n_rows = 6144;
    l = sl_cuda_linear_args(&few);
    CHECK(l.n_segs == 1 && l.seg_k64 == 24, "%d segments of %d", l.n_segs, l.seg_k64);
}

int main(int argc, char **argv)
{
    uint64_t seed = argc > 1 ? strtoull(argv[1], NULL, 0) : 1;
    rng.seed = seed;
#ifdef SL_CUDA_SIM
    sl_sim_seed(seed);
#endif
    cu.n_sms = 6;
    cu.smem_max = 232448;
    MUST(cudaStreamCreateWithFlags(&cu.stream, cudaStreamNonBlocking));
    sl_cpu_kernels_c(&cpu);
    void *products;
    MUST(cudaMalloc(&products, SL_LIN_BYTES));
    MUST(cudaMemset(products, 0, SL_LIN_BYTES));
    sl_cuda_linear_memory(&cu, (uint8_t *)products);
    test_math();
    for (enum sl_dtype t : formats) {
        test_format(t);
        printf("%s: %d failures\n", sl_dtype_info(t)->name, n_failures);
        fflush(stdout);
    }
    for (int t = 0; t < SL_DTYPE_COUNT; t++) {
        if (sl_dtype_info((enum sl_dtype)t)->eight == NULL)
            continue;
        test_eight((enum sl_dtype)t);
        printf("%s: %d failures\n", sl_dtype_info((enum sl_dtype)t)->name, n_failures);
        fflush(stdout);
    }
    for (enum sl_dtype t : {SL_DTYPE_BF16, SL_DTYPE_Q8_0, SL_DTYPE_Q6_K})
        test_rounds(t);
    test_tiles(SL_DTYPE_BF16);
    test_long(SL_DTYPE_INT4_G128);
    test_fp8_nan();
    test_mixes();
    test_chains();
    test_fusing();
    test_kept_routes();
    test_rest();
    cudaFree(pack_buffer);
    cudaFree(products);
    MUST(cudaStreamDestroy(cu.stream));
    CHECK(n_allocated == 0, "%zu bytes left", n_allocated);
    printf("%ld values compared by bits, %ld with double; %d failures\n", n_bits, n_close,
           n_failures);
    return n_failures != 0;
}
