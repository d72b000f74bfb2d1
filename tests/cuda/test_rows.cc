/* SPDX-License-Identifier: MIT
 * Operations on whole rows of src/cuda: against the reference decodes, doubles, and the documented
 * order of their sums. Every array is an allocation of its exact size, so that red zones are close.
 * Runs in the simulator or on a GPU.
 */
extern "C" {
#include "base/rng.h"
#include "cpu/cpu.h"
#include "quant/float.h"
}
#include "cuda/device.h"
#include "cuda/norm.h"

#include <cuda_bf16.h>

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <vector>

static int n_failures;
static long n_checks;
static struct sl_rng rng;
static struct sl_cuda cu;

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

/* n elements behind `skip` bytes, to the end of the allocation. */
template <typename T> struct dev {
    uint8_t *base = nullptr;
    T *p = nullptr;
    size_t n = 0;
    dev(size_t n_, size_t skip) : n(n_)
    {
        size_t n_bytes = skip + (n > 0 ? n * sizeof(T) : 1);
        if (cudaMalloc((void **)&base, n_bytes) != cudaSuccess ||
            cudaMemset(base, 0xFF, n_bytes) != cudaSuccess) /* some rows stay as they are */
            exit(2);
        p = (T *)(base + skip);
    }
    dev(const std::vector<T> &v, size_t skip = 0) : dev(v.size(), skip)
    {
        cudaMemcpy(p, v.data(), n * sizeof(T), cudaMemcpyHostToDevice);
        cudaDeviceSynchronize(); /* it may still be on its way, and the stream does not wait */
    }
    dev(const dev &) = delete;
    ~dev()
    {
        cudaFree(base);
    }
    std::vector<T> get() const
    {
        std::vector<T> v(n);
        cudaStreamSynchronize(cu.stream);
        cudaMemcpy(v.data(), p, n * sizeof(T), cudaMemcpyDeviceToHost);
        return v;
    }
};

static bool same(float a, float b)
{
    return memcmp(&a, &b, sizeof a) == 0 || (a != a && b != b);
}

/* ------------------------------------------------------------------ embed */

static void embed_case(enum sl_dtype dtype, int64_t n_cols, size_t skip, float scale)
{
    const struct sl_dtype_info *info = sl_dtype_info(dtype);
    const int64_t n_rows = 9;
    const int32_t n = 8;
    size_t row_bytes = (size_t)(n_cols / info->block_elems) * info->block_bytes;
    std::vector<uint8_t> data(row_bytes * (size_t)n_rows);
    for (uint8_t &b : data) /* any bits, NaN and subnormal scales included */
        b = (uint8_t)below(256);
    std::vector<int32_t> prev = {3, -1, 8, 1000000, INT32_MIN};
    std::vector<int32_t> ids = {0, 8, -1, -2, -3, -4, 9, 4};
    const int64_t rows[] = {0, 8, 3, 0, 8, 0, 0, 4};
    dev<uint8_t> d_data(data, skip);
    dev<int32_t> d_prev(prev), d_ids(ids);
    dev<float> out((size_t)(n * n_cols), below(2) ? 4 : 0);
    struct sl_weight w = {};
    w.dtype = dtype;
    w.n_rows = n_rows;
    w.n_cols = n_cols;
    w.data = d_data.p;
    w.row_bytes = row_bytes;
    struct sl_op_embed a = {};
    a.ids = d_ids.p;
    a.n = n;
    a.w = &w;
    a.scale = scale;
    a.out = out.p;
    cu.ids_prev = d_prev.p;
    sl_cuda_embed(&cu.base, &a);
    std::vector<float> got = out.get(), want((size_t)n_cols);
    for (int32_t t = 0; t < n; t++) {
        info->to_f32(data.data() + (size_t)rows[t] * row_bytes, want.data(), n_cols);
        for (int64_t i = 0; i < n_cols; i++) {
            float x = scale != 1.0f ? want[(size_t)i] * scale : want[(size_t)i];
            float y = got[(size_t)(t * n_cols + i)];
            bool plain = info->block_elems == 1 && scale == 1.0f; /* then NaN keeps its bits */
            CHECK(plain ? memcmp(&x, &y, 4) == 0 : same(x, y), "%s row %d col %d: %.9g, not %.9g",
                  info->name, t, (int)i, (double)y, (double)x);
        }
    }
}

static void embeds()
{
    static const int64_t widths[] = {1, 7, 8, 9, 33, 256, 1024, 1025, 2051};
    for (int dtype = 0; dtype < SL_DTYPE_COUNT; dtype++) {
        int64_t block = sl_dtype_info((enum sl_dtype)dtype)->block_elems;
        if (dtype == SL_DTYPE_FP8_E4M3) /* refused when the weight is made */
            continue;
        for (int64_t w : widths) {
            if (block > 1 && w * block > 10000)
                continue;
            size_t skip = dtype == SL_DTYPE_F32 ? 4 * below(4) : 2 * below(8);
            embed_case((enum sl_dtype)dtype, w * block, skip, below(2) ? 1.0f : 11.3137085f);
        }
    }
    cu.ids_prev = NULL;
    std::vector<int32_t> ids = {-1};
    std::vector<float> data = {5.0f, 6.0f};
    dev<int32_t> d_ids(ids);
    dev<float> d_data(data), out(1, 0);
    struct sl_weight w = {};
    w.n_rows = 2;
    w.n_cols = 1;
    w.data = d_data.p;
    w.row_bytes = 4;
    struct sl_op_embed a = {};
    a.ids = d_ids.p;
    a.n = 1;
    a.w = &w;
    a.scale = 1.0f;
    a.out = out.p;
    sl_cuda_embed(&cu.base, &a);
    CHECK(out.get()[0] == 5.0f, "no ids of a step before");
}

/* ------------------------------------------------------------------ norms */

static float warp_tree(const float *s)
{
    float t[32];
    memcpy(t, s, sizeof t);
    for (int m = 16; m > 0; m /= 2) {
        float u[32];
        for (int l = 0; l < 32; l++)
            u[l] = t[l] + t[l ^ m];
        memcpy(t, u, sizeof t);
    }
    return t[0];
}

/* The order that rows.cu documents, written as a loop. */
static float sum_in_order(const float *x, int h)
{
    int nt = h <= 8192 ? 256 : 1024;
    std::vector<float> s((size_t)nt, 0.0f);
    for (int i = 0; i < h; i++)
        s[(size_t)(i / 4 % nt)] = fmaf(x[i], x[i], s[(size_t)(i / 4 % nt)]);
    float warps[32] = {0};
    for (int w = 0; w < nt / 32; w++)
        warps[w] = warp_tree(&s[(size_t)w * 32]);
    return warp_tree(warps);
}

static void norm_row(const float *x, const float *w, int h, float eps, const __nv_bfloat16 *got,
                     const char *name)
{
    float scale = 1.0f / sqrtf(sum_in_order(x, h) / (float)h + eps);
    double sum = 0;
    for (int i = 0; i < h; i++)
        sum += (double)x[i] * (double)x[i];
    double exact = 1.0 / sqrt(sum / h + (double)eps);
    for (int i = 0; i < h; i++) {
        float y = x[i] * scale * w[i], z = __bfloat162float(got[i]);
        double d = (double)x[i] * exact * (double)w[i];
        CHECK(same(z, sl_bf16_to_f32(sl_f32_to_bf16(y))), "%s h %d col %d: %.9g, not %.9g", name, h,
              i, (double)z, (double)y);
        CHECK(fabs((double)z - d) <= fabs(d) * (1.0 / 256 + 1e-5) + 1e-38, "%s h %d col %d: %g, %g",
              name, h, i, (double)z, d);
    }
}

static void norm_case(int h, int n, bool add, size_t skip_x, size_t skip_out)
{
    size_t all = (size_t)(n * h);
    std::vector<float> x(all), y(all), w((size_t)h);
    float width = powf(10.0f, (float)below(7) - 3.0f);
    for (size_t i = 0; i < all; i++) {
        x[i] = (float)sl_rng_normal(&rng) * width;
        y[i] = (float)sl_rng_normal(&rng) * width;
    }
    for (float &v : w)
        v = (float)sl_rng_normal(&rng);
    dev<float> d_x(x, skip_x), d_y(y, skip_x), d_w(w);
    dev<__nv_bfloat16> out(all, skip_out), alone((size_t)h, 0);
    const float eps = 1e-5f;
    if (add) {
        struct sl_op_add_rmsnorm a = {};
        a.x = d_x.p, a.y = d_y.p, a.w = d_w.p, a.eps = eps, a.n = n, a.h = h, a.out = out.p;
        sl_cuda_add_rmsnorm(&cu.base, &a);
        std::vector<float> sum = d_x.get(), y2 = d_y.get();
        for (size_t i = 0; i < all; i++)
            CHECK(same(sum[i], x[i] + y[i]) && same(y[i], y2[i]), "sum at %zu", i);
        x = sum;
    } else {
        struct sl_op_rmsnorm a = {};
        a.x = d_x.p, a.w = d_w.p, a.eps = eps, a.n = n, a.h = h, a.out = out.p;
        sl_cuda_rmsnorm(&cu.base, &a);
        std::vector<float> x2 = d_x.get();
        CHECK(memcmp(x.data(), x2.data(), all * sizeof(float)) == 0, "x is an input");
    }
    std::vector<__nv_bfloat16> got = out.get();
    for (int t = 0; t < n; t++)
        norm_row(&x[(size_t)(t * h)], w.data(), h, eps, &got[(size_t)(t * h)],
                 add ? "add_rmsnorm" : "rmsnorm");
    /* the last row again, alone and at another address: the same bits */
    dev<float> d_row(std::vector<float>(x.end() - h, x.end()));
    struct sl_op_rmsnorm a = {};
    a.x = d_row.p, a.w = d_w.p, a.eps = eps, a.n = 1, a.h = h, a.out = alone.p;
    sl_cuda_rmsnorm(&cu.base, &a);
    std::vector<__nv_bfloat16> one = alone.get();
    CHECK(memcmp(one.data(), &got[(size_t)((n - 1) * h)], (size_t)h * 2) == 0, "alone, h %d", h);
}

static void norms()
{
    static const int widths[] = {1,    3,    4,    64,   255,  1024, 1028,  2048,  3000,
                                 3072, 4096, 5120, 6401, 8192, 8196, 16384, 16385, 20000};
    for (int h : widths)
        for (int add = 0; add < 2; add++) {
            norm_case(h, 1 + (int)below(3), add, 0, 0);
            if (h < 9000)
                norm_case(h, 2, add, 4 * below(4), 2 * below(8));
        }
    norm_case(96, 70, true, 0, 0);
    /* a row with NaN harms no other, a row of zeros stays zero */
    std::vector<float> x(3 * 100, 0.0f), w(100, 1.0f);
    x[5] = NAN;
    x[250] = 1.0f;
    dev<float> d_x(x), d_w(w);
    dev<__nv_bfloat16> out(300, 0);
    struct sl_op_rmsnorm a = {};
    a.x = d_x.p, a.w = d_w.p, a.eps = 1e-6f, a.n = 3, a.h = 100, a.out = out.p;
    sl_cuda_rmsnorm(&cu.base, &a);
    std::vector<__nv_bfloat16> got = out.get();
    for (int i = 0; i < 100; i++) {
        float v = __bfloat162float(got[(size_t)i]), z = __bfloat162float(got[(size_t)(100 + i)]);
        float o = __bfloat162float(got[(size_t)(200 + i)]);
        CHECK(v != v && z == 0.0f && (i == 50 ? fabsf(o - 10.0f) < 0.05f : o == 0.0f), "col %d", i);
    }
}

/* x += y or its norm, times `by`; x times x_scale; and the norm of that or itself, step by step in
 * the documented order. */
static void join_case(int h, int n, bool norm_y, bool norm_x, bool add, size_t skip,
                      float by = 1.0f, float x_scale = 0.0f)
{
    const size_t all = static_cast<size_t>(n * h);
    const float eps = 1e-5f;
    std::vector<float> x(all), y(all), wx((size_t)h), wy((size_t)h);
    for (size_t i = 0; i < all; i++) {
        x[i] = (float)sl_rng_normal(&rng);
        y[i] = (float)sl_rng_normal(&rng) * 3.0f;
    }
    for (int i = 0; i < h; i++) {
        wx[(size_t)i] = (float)sl_rng_normal(&rng);
        wy[(size_t)i] = (float)sl_rng_normal(&rng);
    }
    dev<float> d_x(x, skip), d_y(y, skip), d_wx(wx), d_wy(wy);
    dev<__nv_bfloat16> out(all, skip / 2);
    if (add) {
        struct sl_op_add_rmsnorm a = {};
        a.x = d_x.p, a.y = d_y.p, a.w = norm_x ? d_wx.p : nullptr, a.eps = eps, a.n = n, a.h = h;
        a.out = out.p, a.w_y = norm_y ? d_wy.p : nullptr, a.y_scale = by == 1.0f ? 0.0f : by;
        a.x_scale = x_scale;
        sl_cuda_add_rmsnorm(&cu.base, &a);
    } else {
        struct sl_op_rmsnorm a = {};
        a.x = d_x.p, a.w = norm_x ? d_wx.p : nullptr, a.eps = eps, a.n = n, a.h = h, a.out = out.p;
        sl_cuda_rmsnorm(&cu.base, &a);
    }
    const std::vector<__nv_bfloat16> got = out.get();
    const std::vector<float> stream = d_x.get();
    for (int t = 0; t < n; t++) {
        float *xr = &x[(size_t)(t * h)];
        const float *yr = &y[(size_t)(t * h)];
        const float scale = norm_y ? 1.0f / sqrtf(sum_in_order(yr, h) / (float)h + eps) : 1.0f;
        for (int i = 0; add && i < h; i++)
            xr[i] += by * (norm_y ? yr[i] * scale * wy[(size_t)i] : yr[i]);
        for (int i = 0; x_scale != 0.0f && i < h; i++)
            xr[i] *= x_scale;
        for (int i = 0; i < h; i++)
            CHECK(same(stream[(size_t)(t * h + i)], xr[i]), "stream h %d col %d", h, i);
        for (int i = 0; !norm_x && i < h; i++)
            CHECK(same(__bfloat162float(got[(size_t)(t * h + i)]),
                       sl_bf16_to_f32(sl_f32_to_bf16(xr[i]))),
                  "input h %d col %d", h, i);
        if (norm_x)
            norm_row(xr, wx.data(), h, eps, &got[(size_t)(t * h)], "join");
    }
}

/* The order that norm_rows.cu documents. */
static float plain_sum_in_order(const std::vector<float> &x)
{
    const int h = (int)x.size(), nt = h <= 8192 ? 256 : 1024;
    std::vector<float> s((size_t)nt, 0.0f);
    for (int i = 0; i < h; i++) {
        float &at = s[(size_t)(i / 4 % nt)];
        at += x[(size_t)i];
    }
    float warps[32] = {0};
    for (int w = 0; w < nt / 32; w++)
        warps[w] = warp_tree(&s[(size_t)w * 32]);
    return warp_tree(warps);
}

static void layernorm_case(int h, int n, bool add, bool bias, bool keep, float by, size_t skip)
{
    const size_t all = static_cast<size_t>(n * h);
    const float eps = 1e-5f;
    std::vector<float> x(all), y(all), w((size_t)h), b((size_t)h);
    for (size_t i = 0; i < all; i++) {
        x[i] = (float)sl_rng_normal(&rng) + 20.0f;
        y[i] = (float)sl_rng_normal(&rng) * 3.0f;
    }
    for (int i = 0; i < h; i++) {
        w[(size_t)i] = (float)sl_rng_normal(&rng);
        b[(size_t)i] = (float)sl_rng_normal(&rng);
    }
    dev<float> d_x(x, skip), d_y(y, skip), d_w(w), d_b(b);
    dev<__nv_bfloat16> out(all, skip / 2);
    struct sl_op_layernorm a = {};
    a.x = d_x.p, a.y = add ? d_y.p : nullptr, a.w = d_w.p, a.b = bias ? d_b.p : nullptr;
    a.eps = eps, a.n = n, a.h = h, a.out = out.p, a.y_scale = by == 1.0f ? 0.0f : by, a.keep = keep;
    sl_cuda_layernorm(&cu.base, &a);
    const std::vector<__nv_bfloat16> got = out.get();
    const std::vector<float> stream = d_x.get();
    for (int t = 0; t < n; t++) {
        std::vector<float> row(x.begin() + t * h, x.begin() + (t + 1) * h), d((size_t)h);
        double exact_mean = 0, exact_var = 0;
        for (int i = 0; i < h; i++) {
            const float scaled = by * y[(size_t)(t * h + i)];
            row[(size_t)i] += add ? scaled : 0.0f;
            exact_mean += (double)row[(size_t)i] / h;
        }
        const float mean = plain_sum_in_order(row) / (float)h;
        for (int i = 0; i < h; i++) {
            d[(size_t)i] = row[(size_t)i] - mean;
            exact_var += pow((double)row[(size_t)i] - exact_mean, 2) / h;
        }
        const float scale = 1.0f / sqrtf(sum_in_order(d.data(), h) / (float)h + eps);
        for (int i = 0; i < h; i++) {
            const float z = fmaf(d[(size_t)i] * scale, w[(size_t)i], bias ? b[(size_t)i] : 0.0f);
            const double want = ((double)row[(size_t)i] - exact_mean) /
                                    sqrt(exact_var + (double)eps) * (double)w[(size_t)i] +
                                (bias ? (double)b[(size_t)i] : 0.0);
            const size_t at = (size_t)(t * h + i);
            CHECK(same(stream[at], keep ? z : row[(size_t)i]), "stream h %d col %d", h, i);
            CHECK(same(__bfloat162float(got[at]), sl_bf16_to_f32(sl_f32_to_bf16(z))),
                  "layernorm h %d col %d", h, i);
            CHECK(fabs((double)z - want) <= 1e-4 * (1 + fabs(want)),
                  "layernorm h %d col %d: %g, %g", h, i, (double)z, want);
        }
    }
}

static void layernorms()
{
    static const int widths[] = {3, 64, 255, 1028, 4096, 8196};
    for (int h : widths) {
        layernorm_case(h, 2, true, true, false, 1.0f, 0);
        layernorm_case(h, 1, true, false, false, 0.22f, 4 * below(4));
        layernorm_case(h, 2, true, true, true, 1.0f, 0);
        layernorm_case(h, 1, false, true, false, 1.0f, 0);
    }
    layernorm_case(96, 70, true, false, false, 1.0f, 0);
}

static void joins()
{
    static const int widths[] = {1, 64, 255, 1028, 4096, 8196};
    for (int h : widths) {
        join_case(h, 2, true, true, true, 0);
        join_case(h, 1, true, false, true, 0);
        join_case(h, 1, true, false, true, 0, 1.0f, 0.7f);
        join_case(h, 2, false, true, true, 0, 0.5f, 1.3f);
        join_case(h, 2, false, false, true, 4 * below(4));
        join_case(h, 1, false, false, false, 0);
    }
    join_case(96, 70, true, true, true, 0);
    join_case(255, 2, true, true, true, 0, 0.22f);
    join_case(1028, 3, false, true, true, 0, 1.7f);
}

/* All heads of q and k together. */
static void norm_two_case(int n, int hq, int hk, int ld_q)
{
    const float eps = 1e-6f;
    std::vector<float> q((size_t)(n * ld_q)), k((size_t)(n * hk)), wq((size_t)hq), wk((size_t)hk);
    for (std::vector<float> *v : {&q, &k, &wq, &wk})
        for (float &f : *v)
            f = (float)sl_rng_normal(&rng);
    dev<float> d_q(q), d_k(k), d_wq(wq), d_wk(wk);
    const struct sl_cuda_norm_row rows[2] = {{d_q.p, ld_q, d_wq.p, hq}, {d_k.p, hk, d_wk.p, hk}};
    sl_cuda_norm_two(&cu, rows, n, eps);
    const std::vector<float> got_q = d_q.get(), got_k = d_k.get();
    for (int t = 0; t < n; t++) {
        const float *row = &q[(size_t)(t * ld_q)], *key = &k[(size_t)(t * hk)];
        const float sq = 1.0f / sqrtf(sum_in_order(row, hq) / (float)hq + eps);
        const float sk = 1.0f / sqrtf(sum_in_order(key, hk) / (float)hk + eps);
        for (int i = 0; i < ld_q; i++)
            CHECK(
                same(got_q[(size_t)(t * ld_q + i)], i < hq ? row[i] * sq * wq[(size_t)i] : row[i]),
                "q of %d, col %d", hq, i);
        for (int i = 0; i < hk; i++)
            CHECK(same(got_k[(size_t)(t * hk + i)], key[i] * sk * wk[(size_t)i]), "k of %d, col %d",
                  hk, i);
    }
}

/* ------------------------------------------------------------------ activations */

/* The bits of the CPU, rounded once. */
static void activations()
{
    struct sl_backend *cpu = nullptr;
    struct sl_error err = {};
    struct sl_cpu_config cfg = {};
    cfg.n_threads = 1;
    cfg.isa = SL_ISA_C;
    if (sl_cpu_create(&cfg, &cpu, &err) != 0)
        exit(2);
    const size_t n = 3001;
    std::vector<float> x(n), up(n), want(n);
    for (size_t i = 0; i < n; i++) {
        x[i] = (float)sl_rng_normal(&rng) * powf(10.0f, (float)below(4) - 2.0f);
        up[i] = (float)sl_rng_normal(&rng);
    }
    x[0] = 0.0f, x[1] = -0.0f, x[2] = 100.0f, x[3] = -100.0f, x[4] = NAN;
    dev<float> d_x(x), d_up(up);
    for (int act = 0; act < SL_ACT_COUNT; act++)
        for (int gated = 0; gated < (act == SL_ACT_XIELU ? 1 : 4); gated++) {
            dev<__nv_bfloat16> out(n, 0);
            struct sl_op_activate a = {};
            a.xielu = {0.8f, 1.3f, 0.5f, -1e-6f};
            a.x = x.data(), a.act = (enum sl_act)act, a.n = (int64_t)n, a.out = want.data();
            a.up = gated ? up.data() : nullptr;
            if (gated > 1)
                a.swiglu.limit = 0.7f, a.swiglu.alpha = 1.702f, a.swiglu.late = gated == 3;
            cpu->vt->activate(cpu, &a);
            a.x = d_x.p, a.out = out.p, a.up = gated ? d_up.p : nullptr;
            sl_cuda_activate(&cu.base, &a);
            const std::vector<__nv_bfloat16> got = out.get();
            for (size_t i = 0; i < n; i++) {
                const float have = __bfloat162float(got[i]);
                CHECK(want[i] != want[i] ? have != have
                                         : same(have, sl_bf16_to_f32(sl_f32_to_bf16(want[i]))),
                      "act %d of %.9g: %.9g, not %.9g", act, (double)x[i], (double)have,
                      (double)want[i]);
            }
        }
    cpu->vt->destroy(cpu);
}

/* The gate of what attention gives, a logit for each value or for each head: the CPU's value,
 * rounded. */
static void gates()
{
    for (int way = 0; way < 4; way++) {
        const bool by_head = way % 2 != 0, softplus = way >= 2;
        const int32_t n = 1 + (int32_t)below(9), heads = 1 + (int32_t)below(5);
        const int32_t dim = 8 * (1 + (int32_t)below(16));
        const size_t n_x = (size_t)(n * heads * dim), n_gate = by_head ? (size_t)(n * heads) : n_x;
        std::vector<float> gate(n_gate);
        std::vector<__nv_bfloat16> x(n_x);
        for (float &v : gate)
            v = 4.0f * (float)sl_rng_normal(&rng);
        for (__nv_bfloat16 &v : x)
            v = __float2bfloat16_rn((float)sl_rng_normal(&rng));
        gate[0] = softplus ? 80.0f : INFINITY, gate[n_gate - 1] = -INFINITY;
        dev<float> d_gate(gate);
        dev<__nv_bfloat16> d_x(x);
        struct sl_op_gate_heads a = {d_x.p, d_gate.p, n, heads, dim, by_head, softplus};
        sl_cuda_gate_heads(&cu.base, &a);
        const std::vector<__nv_bfloat16> got = d_x.get();
        for (size_t i = 0; i < n_x; i++) {
            const double g = (double)gate[by_head ? i / (size_t)dim : i];
            const double open = softplus ? log1p(exp(g)) : 1 / (1 + exp(-g));
            const double want = (double)__bfloat162float(x[i]) * open;
            CHECK(fabs((double)__bfloat162float(got[i]) - want) <= 0x1p-8 * fabs(want) + 1e-30,
                  "gate %.9g: %.9g, not %.9g", g, (double)__bfloat162float(got[i]), want);
        }
    }
}

/* Against the functions of the C library in double. */
static void logits()
{
    static const float scales[] = {1.0f, 0.0625f, 5.0f}, caps[] = {0.0f, 2.0f, 30.0f};
    for (float scale : scales)
        for (float cap : caps) {
            const size_t n = 1 + below(3000);
            std::vector<float> x(n);
            for (float &v : x)
                v = (float)sl_rng_normal(&rng) * powf(10.0f, (float)below(4) - 1.0f);
            dev<float> d_x(x, 4 * below(4));
            struct sl_op_scale_logits a = {};
            a.x = d_x.p, a.n = (int64_t)n, a.scale = scale, a.cap = cap;
            sl_cuda_scale_logits(&cu.base, &a);
            const std::vector<float> got = d_x.get();
            for (size_t i = 0; i < n; i++) {
                const double s = (double)x[i] * (double)scale;
                const double want = cap > 0 ? (double)cap * tanh(s / (double)cap) : s;
                CHECK(fabs((double)got[i] - want) <= 1e-6 * fabs(want), "%.9g: %.9g, not %.9g",
                      (double)x[i], (double)got[i], want);
            }
        }
}

/* ------------------------------------------------------------------ angles */

static void angles()
{
    static const int dims[] = {2, 6, 64, 128, 130};
    for (int n_dims : dims) {
        int n = 1 + (int)below(9), half = n_dims / 2;
        std::vector<int32_t> pos((size_t)n);
        std::vector<float> freq((size_t)half);
        for (int32_t &p : pos)
            p = below(3) ? (int32_t)below(200000) : (int32_t)below(4);
        for (int i = 0; i < half; i++)
            freq[(size_t)i] = powf(10000.0f, -2.0f * (float)i / (float)n_dims);
        dev<int32_t> d_pos(pos);
        dev<float> d_freq(freq), out((size_t)(n * n_dims), 0);
        struct sl_rope rope = {};
        rope.n_dims = n_dims;
        rope.inv_freq = d_freq.p;
        rope.attn_factor = below(2) ? 1.0f : 1.1386294f;
        struct sl_op_rope_angles a = {};
        a.positions = d_pos.p, a.n = n, a.rope = &rope, a.out = out.p;
        sl_cuda_rope_angles(&cu.base, &a);
        std::vector<float> got = out.get();
        for (int t = 0; t < n; t++)
            for (int i = 0; i < half; i++) {
                double angle = (double)((float)pos[(size_t)t] * freq[(size_t)i]);
                float c = (float)cos(angle) * rope.attn_factor;
                float s = (float)sin(angle) * rope.attn_factor;
                const float *g = &got[(size_t)(t * n_dims + 2 * i)];
                /* two libraries may differ in the last bit of a double, seldom that of a float */
                CHECK(fabsf(g[0] - c) <= 2e-7f * fabsf(c) && fabsf(g[1] - s) <= 2e-7f * fabsf(s),
                      "pos %d freq %d: %.9g %.9g", pos[(size_t)t], i, (double)g[0], (double)g[1]);
#ifdef SL_CUDA_SIM
                CHECK(same(g[0], c) && same(g[1], s), "bits at pos %d freq %d", pos[(size_t)t], i);
#endif
            }
    }
}

/* ------------------------------------------------------------------ gather */

static void gathers()
{
    static const size_t bytes[] = {4, 12, 16, 20, 64, 4096, 4100, 16384, 16400, 40000};
    for (size_t row_bytes : bytes) {
        for (size_t skip = 0; skip < 8; skip += 4) {
            size_t words = row_bytes / 4, n_from = 7;
            int32_t n = 1 + (int32_t)below(9);
            std::vector<uint32_t> x(words * n_from);
            std::vector<int32_t> rows((size_t)n);
            for (uint32_t &v : x)
                v = (uint32_t)sl_rng_next(&rng);
            for (int32_t &r : rows)
                r = (int32_t)below(n_from);
            dev<uint32_t> d_x(x, skip), out(words * (size_t)n, below(2) * 4);
            dev<int32_t> d_rows(rows);
            struct sl_op_gather_rows a = {};
            a.x = d_x.p, a.rows = d_rows.p, a.n = n, a.row_bytes = row_bytes, a.out = out.p;
            sl_cuda_gather_rows(&cu.base, &a);
            std::vector<uint32_t> got = out.get();
            for (int32_t i = 0; i < n; i++)
                CHECK(memcmp(&got[(size_t)i * words], &x[(size_t)rows[(size_t)i] * words],
                             row_bytes) == 0,
                      "%zu bytes, row %d", row_bytes, i);
        }
    }
}

/* Between floats and activations, as the host rounds them, where rows are asked for by number too;
 * what lies between the rows stays as it was. */
static void copies_case(int32_t h, bool x_act, bool out_act, bool by_number, size_t skip)
{
    const size_t n_from = 7, gap = skip != 0 ? 3 : 8;
    const int32_t n = by_number ? 9 : 5;
    const size_t ld_x = (size_t)h + gap, ld_out = 2 * (size_t)h + gap;
    std::vector<float> x(ld_x * n_from);
    std::vector<uint16_t> x16(x.size());
    std::vector<int32_t> rows((size_t)n);
    for (size_t i = 0; i < x.size(); i++) {
        x[i] = (float)below(20001) / 5000.0f - 2.0f;
        x16[i] = sl_f32_to_bf16(x[i]);
        if (x_act)
            x[i] = sl_bf16_to_f32(x16[i]);
    }
    for (int32_t &r : rows)
        r = (int32_t)below(n_from);
    dev<float> d_x(x, skip), out(ld_out * (size_t)n, skip);
    dev<uint16_t> d_x16(x16, skip), out16(ld_out * (size_t)n, skip);
    dev<int32_t> d_rows(rows);
    struct sl_op_copy_rows a = {};
    a.x = x_act ? (const void *)d_x16.p : d_x.p;
    a.ld_x = (int64_t)ld_x, a.rows = by_number ? d_rows.p : NULL, a.n = n, a.h = h;
    a.x_act = x_act, a.out_act = out_act, a.ld_out = (int64_t)ld_out;
    a.out = out_act ? (void *)out16.p : out.p;
    const std::vector<float> was = out.get();
    const std::vector<uint16_t> was16 = out16.get();
    sl_cuda_copy_rows(&cu.base, &a);
    const std::vector<float> got = out.get();
    const std::vector<uint16_t> got16 = out16.get();
    for (int32_t i = 0; i < n; i++)
        for (size_t c = 0; c < ld_out; c++) {
            const size_t at = (size_t)i * ld_out + c;
            const size_t from = by_number ? (size_t)rows[(size_t)i] : (size_t)i;
            const bool in = c < (size_t)h;
            const float v = in ? x[from * ld_x + c] : 0.0f;
            const float want = in && !out_act ? v : was[at];
            const uint16_t want16 = in && out_act ? sl_f32_to_bf16(v) : was16[at];
            CHECK(memcmp(&got[at], &want, sizeof want) == 0 && got16[at] == want16,
                  "copy of %d columns, %d to %d, row %d, column %zu", h, x_act, out_act, i, c);
        }
}

static void copies()
{
    for (int32_t h : {1, 6, 8, 64, 1030, 4096})
        for (int k = 0; k < 16; k++)
            if (h < 1000 || k % 3 == 0)
                copies_case(h, k % 2 != 0, k / 2 % 2 != 0, k / 4 % 2 != 0, k < 8 ? 0 : 4);
}

/* ------------------------------------------------------------------ encoders */

/* Words, types and positions, each of another format: the sums of the CPU. */
static void embed_positions_case(enum sl_dtype words, int64_t h, bool one_type, bool pairs)
{
    const enum sl_dtype formats[3] = {words, SL_DTYPE_F16, SL_DTYPE_F32};
    const int64_t n_rows[3] = {11, 2, 40};
    std::vector<struct sl_span> spans = {{0, 5, 0, 0, 0}, {5, 1, 0, 0, 0}, {6, 9, 0, 0, 0}};
    std::vector<int32_t> ids, positions, second = {3, INT32_MAX, 0};
    for (const struct sl_span &s : spans)
        for (int32_t i = 0; i < s.n; i++) {
            ids.push_back((int32_t)below(11));
            positions.push_back(i);
        }
    const int32_t n = (int32_t)ids.size();
    std::vector<std::vector<float>> values;
    struct sl_weight w[3] = {};
    std::vector<dev<uint8_t> *> tables;
    for (int k = 0; k < 3; k++) {
        const struct sl_dtype_info *info = sl_dtype_info(formats[k]);
        const size_t row_bytes = (size_t)(h / info->block_elems) * info->block_bytes;
        std::vector<uint8_t> data(row_bytes * (size_t)n_rows[k]);
        std::vector<float> x((size_t)(h * n_rows[k]));
        for (float &f : x)
            f = (float)below(2001) / 500.0f - 2.0f;
        for (int64_t r = 0; r < n_rows[k]; r++)
            info->from_f32(&x[(size_t)(r * h)], data.data() + (size_t)r * row_bytes, h);
        for (int64_t r = 0; r < n_rows[k]; r++)
            info->to_f32(data.data() + (size_t)r * row_bytes, &x[(size_t)(r * h)], h);
        values.push_back(x);
        tables.push_back(new dev<uint8_t>(data));
        w[k].dtype = formats[k], w[k].n_rows = n_rows[k], w[k].n_cols = h;
        w[k].data = tables.back()->p, w[k].row_bytes = row_bytes;
    }
    dev<struct sl_span> d_spans(spans);
    dev<int32_t> d_ids(ids), d_positions(positions), d_second(second);
    dev<float> out((size_t)(n * h), 0);
    struct sl_batch b = {};
    b.n_tokens = n, b.n_spans = 3, b.tokens = d_ids.p, b.positions = d_positions.p;
    b.spans = d_spans.p, b.second_from = pairs ? d_second.p : NULL;
    struct sl_op_embed_positions a = {};
    a.batch = &b, a.word = &w[0], a.type = &w[1], a.position = &w[2];
    a.first = 2, a.one_type = one_type, a.out = out.p;
    sl_cuda_embed_positions(&cu.base, &a);
    std::vector<float> got = out.get();
    for (int s = 0; s < 3; s++)
        for (int32_t i = 0; i < spans[(size_t)s].n; i++) {
            const int32_t t = spans[(size_t)s].first + i;
            const bool type = pairs && !one_type && i >= second[(size_t)s];
            for (int64_t c = 0; c < h; c++) {
                float x = values[0][(size_t)(ids[(size_t)t] * h + c)];
                x = x + values[1][(size_t)((int64_t)type * h + c)];
                x = x + values[2][(size_t)((2 + i) * h + c)];
                CHECK(same(x, got[(size_t)(t * h + c)]), "%s text %d token %d col %d",
                      sl_dtype_info(words)->name, s, i, (int)c);
            }
        }
    for (dev<uint8_t> *t : tables)
        delete t;
}

/* The same tree as a norm's, of values or of their squares. */
static float tree_of(const std::vector<float> &x, bool squares)
{
    const size_t nt = x.size() <= 8192 ? 256 : 1024;
    std::vector<float> s(nt, 0.0f);
    for (size_t i = 0; i < x.size(); i++)
        s[i / 4 % nt] = squares ? fmaf(x[i], x[i], s[i / 4 % nt]) : s[i / 4 % nt] + x[i];
    float warps[32] = {0};
    for (size_t k = 0; k < nt / 32; k++)
        warps[k] = warp_tree(&s[k * 32]);
    return warp_tree(warps);
}

/* A large mean, around which there is little, and rows that begin anywhere. */
static void layernorm_case(int32_t h, bool add, size_t skip)
{
    const int32_t n = 3;
    const float eps = 1e-12f;
    std::vector<float> x((size_t)(n * h)), y(x), w((size_t)h), b((size_t)h);
    for (size_t i = 0; i < x.size(); i++) {
        x[i] = (i / (size_t)h == 1 ? 100.0f : 0.0f) + (float)below(2001) / 1000.0f - 1.0f;
        y[i] = (float)below(2001) / 1000.0f - 1.0f;
    }
    for (size_t i = 0; i < w.size(); i++) {
        w[i] = (float)below(1000) / 500.0f;
        b[i] = (float)below(1000) / 500.0f - 1.0f;
    }
    dev<float> dx(x, skip), dy(y, skip), dw(w, skip), db(b, skip);
    dev<__nv_bfloat16> out((size_t)(n * h), skip / 2);
    struct sl_op_layernorm a = {};
    a.x = dx.p, a.y = add ? dy.p : NULL, a.w = dw.p, a.b = db.p;
    a.eps = eps, a.n = n, a.h = h, a.out = out.p;
    a.keep = true;
    sl_cuda_layernorm(&cu.base, &a);
    std::vector<float> got = dx.get();
    std::vector<__nv_bfloat16> acts = out.get();
    for (int32_t t = 0; t < n; t++) {
        std::vector<float> z((size_t)h);
        double sum = 0, var = 0;
        for (int32_t i = 0; i < h; i++) {
            const size_t at = (size_t)(t * h + i);
            z[(size_t)i] = add ? x[at] + y[at] : x[at];
            sum += (double)z[(size_t)i];
        }
        const float mean = tree_of(z, false) / (float)h;
        for (float &f : z) {
            var += ((double)f - sum / h) * ((double)f - sum / h);
            f = f - mean;
        }
        const float scale = 1.0f / sqrtf(tree_of(z, true) / (float)h + eps);
        for (int32_t i = 0; i < h; i++) {
            const size_t at = (size_t)(t * h + i);
            volatile float d = z[(size_t)i] * scale;
            const float v = fmaf(d, w[(size_t)i], b[(size_t)i]);
            const double exact = (double)(add ? x[at] + y[at] : x[at]);
            const double e =
                (exact - sum / h) / sqrt(var / h + (double)eps) * (double)w[(size_t)i] +
                (double)b[(size_t)i];
            CHECK(same(v, got[at]), "h %d row %d col %d: %.9g, not %.9g", h, t, i, (double)got[at],
                  (double)v);
            CHECK(h == 1 || fabs((double)v - e) < 1e-3, "h %d row %d col %d: %g, not %g", h, t, i,
                  (double)v, e);
            CHECK(same(__bfloat162float(acts[at]), sl_bf16_to_f32(sl_f32_to_bf16(v))),
                  "h %d row %d col %d: activation", h, t, i);
        }
    }
}

/* Of texts that are one row, a few, and more than the warps of a block have at a time. */
static void pool_case(int32_t h, enum sl_pool_kind kind, bool normalize, bool whole)
{
    const std::vector<struct sl_span> spans = {{0, 1, 0, 0, 0}, {1, 7, 0, 0, 0}, {8, 75, 0, 0, 0}};
    const int32_t n = 3, n_rows = whole ? 83 : 3;
    std::vector<__nv_bfloat16> x((size_t)(n_rows * h));
    for (__nv_bfloat16 &v : x)
        v = __float2bfloat16_rn((float)below(2001) / 1000.0f - 1.0f);
    dev<__nv_bfloat16> dx(x, below(2) * 2);
    dev<struct sl_span> d_spans(spans);
    dev<float> out((size_t)(n * h), below(4) * 4);
    struct sl_op_pool a = {};
    a.x = dx.p, a.spans = whole ? d_spans.p : NULL, a.n = n, a.h = h, a.kind = kind;
    a.normalize = normalize, a.out = out.p;
    sl_cuda_pool(&cu.base, &a);
    std::vector<float> got = out.get();
    for (int32_t s = 0; s < n; s++) {
        struct sl_span span = whole ? spans[(size_t)s] : sl_span{s, 1, 0, 0, 0};
        if (kind == SL_POOL_CLS || kind == SL_POOL_LAST) {
            span.first += kind == SL_POOL_LAST ? span.n - 1 : 0;
            span.n = 1;
        }
        std::vector<float> want((size_t)h);
        for (int32_t c = 0; c < h; c++) {
            float part[8];
            for (int32_t k = 0; k < 8; k++) {
                part[k] = kind == SL_POOL_MAX ? -INFINITY : 0.0f;
                for (int32_t i = k; i < span.n; i += 8) {
                    const float v = __bfloat162float(x[(size_t)((span.first + i) * h + c)]);
                    part[k] = kind == SL_POOL_MAX ? fmaxf(part[k], v) : part[k] + v;
                }
            }
            for (int m = 4; m > 0; m /= 2)
                for (int k = 0; k < m; k++)
                    part[k] = kind == SL_POOL_MAX ? fmaxf(part[2 * k], part[2 * k + 1])
                                                  : part[2 * k] + part[2 * k + 1];
            want[(size_t)c] = part[0];
            if (kind == SL_POOL_MEAN && span.n > 1)
                want[(size_t)c] = part[0] * (1.0f / (float)span.n);
        }
        if (normalize) {
            const float length = sqrtf(tree_of(want, true));
            for (float &f : want)
                f = f / (length > 1e-12f ? length : 1e-12f);
        }
        for (int32_t c = 0; c < h; c++)
            CHECK(got[(size_t)(s * h + c)] == want[(size_t)c],
                  "h %d kind %d text %d col %d: %g, %g", h, kind, s, c,
                  (double)got[(size_t)(s * h + c)], (double)want[(size_t)c]);
    }
}

static void encoders()
{
    for (enum sl_dtype d : {SL_DTYPE_F32, SL_DTYPE_BF16})
        for (int64_t h : {7, 48, 1032})
            for (int k = 0; k < 4; k++)
                embed_positions_case(d, h, k == 2, k != 1);
    embed_positions_case(SL_DTYPE_Q8_0, 96, false, true);
    for (int32_t h : {1, 3, 48, 384, 1025, 4096, 8196})
        for (int k = 0; k < 4; k++)
            layernorm_case(h, k % 2 != 0, k < 2 ? 0 : 4);
    for (int32_t h : {1, 48, 65, 384, 8300})
        for (int kind = 0; kind < SL_POOL_COUNT; kind++)
            for (int k = 0; k < 4; k++)
                if (h < 8000 || (kind == SL_POOL_CLS && k == 3))
                    pool_case(h, (enum sl_pool_kind)kind, k % 2 != 0, k >= 2);
    pool_case(65, SL_POOL_MEAN, false, false);
}

int main(int argc, char **argv)
{
    rng.seed = argc > 1 ? (uint64_t)atoi(argv[1]) : 3;
    memset(&cu, 0, sizeof cu);
    cu.n_sms = 6;
    cu.smem_max = 232448;
    cudaStreamCreate(&cu.stream);
    embeds();
    norms();
    joins();
    layernorms();
    activations();
    gates();
    logits();
    norm_two_case(5, 64, 32, 64);
    norm_two_case(2, 4096, 1024, 4112);
    norm_two_case(1, 8448, 256, 8448);
    angles();
    gathers();
    copies();
    encoders();
    CHECK(cu.error == cudaSuccess, "%s", cu.error_what);
    cudaStreamDestroy(cu.stream);
    printf("test_rows: %ld checks, %d failures\n", n_checks, n_failures);
    return n_failures != 0;
}
