/* SPDX-License-Identifier: MIT
 * bench_linear.h - products through the backend's own entry points, in the shapes of a model of 8
 * billion parameters, against the read stream and against cuBLASLt at the same shape in BF16.
 *
 * Every row's result is compared at a few places with a product in double from the file's bytes: a
 * time of something else would say nothing.
 */
#ifndef SL_TESTS_CUDA_BENCH_LINEAR_H
#define SL_TESTS_CUDA_BENCH_LINEAR_H

#include "bench_cublas.h"
#include "cuda/gemm/weight.h"
#include "device_weight.h"
#include "quant/float.h"
#include "quant/fp8_e4m3.h"
#include "quant/int4.h"

#define MAX_PARTS 3
#define LIN_SIZES 12

enum lin_kind { LIN_ONE, LIN_MULTI, LIN_GATED };

struct lin_shape {
    const char *name;
    enum lin_kind kind;
    int n_parts;
    int n[MAX_PARTS];
    int k;
};

static const struct lin_shape lin_shapes[] = {
    {"q, k, v", LIN_MULTI, 3, {4096, 1024, 1024}, 4096}, {"o", LIN_ONE, 1, {4096, 0, 0}, 4096},
    {"gate, up", LIN_GATED, 2, {14336, 14336, 0}, 4096}, {"down", LIN_ONE, 1, {4096, 0, 0}, 14336},
    {"head", LIN_ONE, 1, {128256, 0, 0}, 4096},
};
static const struct lin_shape lin_tiny[] = {
    {"q, k, v", LIN_MULTI, 3, {64, 16, 16}, 256},
    {"o", LIN_ONE, 1, {48, 0, 0}, 256},
    {"gate, up", LIN_GATED, 2, {64, 64, 0}, 256},
    {"head", LIN_ONE, 1, {200, 0, 0}, 512},
};
#define LIN_SHAPES SL_COUNT(lin_shapes)

static int lin_rows(const struct lin_shape *s)
{
    return s->n[0] + s->n[1] + s->n[2];
}

static int lin_tokens(int i)
{
    static const int tiny[] = {1, 20, 70};
    return b.tiny ? tiny[i] : 1 << i;
}

static int lin_sizes()
{
    return b.tiny ? 3 : LIN_SIZES;
}

struct lin_bench {
    const struct lin_shape *shapes;
    size_t n_shapes;
    double cublas_us[LIN_SHAPES][LIN_SIZES];
    dev<uint16_t> *x; /* [tokens, k] is read from its start, whatever k is */
    dev<float> *out;
    std::vector<uint8_t> file;
    const struct sl_op_lora *lora; /* of the next call; null: none */
    dev<uint16_t> *act;            /* where a gated product leaves its output; null: in out */
};

#define LIN_X_SEED (static_cast<uint64_t>(1) << 40)

/* Number i of x. */
static double lin_x(size_t i)
{
    return static_cast<double>(from_bf16(to_bf16(random_normal(i + LIN_X_SEED))));
}

/* ------------------------------------------------------------------ matrices */

/* A prime number of blocks again and again, with scales that are finite and small. */
static void random_file(std::vector<uint8_t> &file, enum sl_dtype dtype, size_t n_bytes)
{
    const struct sl_dtype_info *info = sl_dtype_info(dtype);
    const bool plain = info->block_elems == 1;
    const size_t n_blocks = plain ? 1048573 : 16381, block = info->block_bytes;
    std::vector<uint8_t> pool(n_blocks * block);
    if (plain) {
        std::vector<float> x(n_blocks);
        for (size_t i = 0; i < n_blocks; i++)
            x[i] = random_normal(i);
        info->from_f32(x.data(), pool.data(), static_cast<int64_t>(n_blocks));
    } else {
        size_t scale = dtype == SL_DTYPE_Q6_K ? 208 : 0;
        bool two = dtype == SL_DTYPE_Q4_K || dtype == SL_DTYPE_Q5_K;
        for (size_t i = 0; i < pool.size(); i++)
            pool[i] = static_cast<uint8_t>(random_bits(i) >> 7);
        const bool int4 = dtype == SL_DTYPE_INT4_G128 || dtype == SL_DTYPE_INT4_G32;
        for (size_t i = 0; i < n_blocks && int4; i++)
            sl_int4_store_head(
                &pool[i * block],
                sl_int4_head(from_bf16(to_bf16(random_normal(2 * i) * 0.01f)), i % 16));
        const bool mx = dtype == SL_DTYPE_MXFP4;
        for (size_t i = 0; i < n_blocks && mx; i++)
            pool[i * block] = static_cast<uint8_t>(118 + i % 4);
        for (size_t i = 0; i < n_blocks && !int4 && !mx; i++) {
            sl_store_u16(&pool[i * block + scale], sl_f32_to_f16(random_normal(2 * i) * 0.01f));
            if (two)
                sl_store_u16(&pool[i * block + 2], sl_f32_to_f16(random_normal(2 * i + 1) * 0.01f));
        }
    }
    file.resize(n_bytes);
    for (size_t at = 0; at < n_bytes; at += pool.size())
        memcpy(&file[at], pool.data(), std::min(pool.size(), n_bytes - at));
}

static size_t file_row_bytes(enum sl_dtype dtype, int k)
{
    uint64_t n = 0;
    CHECK(sl_dtype_bytes(dtype, static_cast<uint64_t>(k), &n), "%d columns", k);
    return n;
}

static size_t file_bytes(enum sl_dtype dtype, const struct lin_shape *s)
{
    return static_cast<size_t>(lin_rows(s)) * file_row_bytes(dtype, s->k);
}

/* The parts of a shape, in copies: the first made by the backend, the others of its bytes. */
struct lin_weights {
    std::vector<struct sl_weight> w; /* [copies, MAX_PARTS] */
    int n_copies, n_parts;
    size_t n_bytes; /* of one copy */
};

/* What products read of it: all but the gaps. */
static size_t lin_read_bytes(const struct sl_weight *w)
{
    const struct sl_cuda_layout_info *info = sl_cuda_layout_info(w->layout);
    const int64_t blocks = SL_CEIL_DIV(w->n_rows, (int64_t)SL_CUDA_ROW_BLOCK);
    return static_cast<size_t>(blocks * SL_CEIL_DIV(w->n_cols, (int64_t)info->unit_k) *
                               info->unit_bytes);
}

static struct lin_weights lin_create(const struct lin_bench *l, const struct lin_shape *s,
                                     enum sl_dtype dtype)
{
    struct lin_weights r = {};
    size_t at = 0;
    r.n_parts = s->n_parts;
    struct sl_weight first[MAX_PARTS] = {};
    for (int i = 0; i < s->n_parts; i++) {
        struct sl_error err = {};
        int rc = b.be->vt->weight_create(b.be, b.use, dtype, s->n[i], s->k, &l->file[at], nullptr,
                                         &first[i], &err);
        CHECK(rc == 0, "%s: %s", s->name, err.msg);
        at += static_cast<size_t>(s->n[i]) * file_row_bytes(dtype, s->k);
        r.n_bytes += lin_read_bytes(&first[i]);
    }
    r.n_copies = n_copies_for(r.n_bytes, 64);
    for (int c = 0; c < r.n_copies; c++)
        for (int i = 0; i < MAX_PARTS; i++) {
            struct sl_weight w = first[i];
            void *p = nullptr;
            if (c > 0 && i < s->n_parts) {
                MUST(cudaMalloc(&p, w.n_bytes));
                MUST(cudaMemcpyAsync(p, w.data, w.n_bytes, cudaMemcpyDeviceToDevice, b.cu->stream));
                w.data = p;
            }
            r.w.push_back(w);
        }
    wait_all(); /* products fetch weights early */
    return r;
}

static void lin_destroy(struct lin_weights *r)
{
    wait_all();
    for (size_t i = 0; i < r->w.size(); i++) {
        if (i < MAX_PARTS && r->w[i].data != nullptr)
            b.be->vt->weight_destroy(b.be, &r->w[i]);
        else if (r->w[i].data != nullptr)
            MUST(cudaFree(const_cast<void *>(r->w[i].data)));
    }
}

/* ------------------------------------------------------------------ the call, and is it right */

static void lin_call(const struct lin_bench *l, const struct lin_shape *s,
                     const struct sl_weight *w, int m)
{
    if (s->kind == LIN_ONE) {
        struct sl_op_linear a = {};
        a.x = l->x->p, a.ld_x = s->k, a.w = w, a.n = m, a.out = l->out->p, a.ld_out = s->n[0];
        a.lora = l->lora;
        b.be->vt->linear(b.be, &a);
    } else if (s->kind == LIN_GATED) {
        struct sl_op_linear_gated_act a = {};
        a.x = l->x->p, a.ld_x = s->k, a.gate = w, a.up = w + 1, a.n = m;
        a.act = SL_ACT_SILU, a.lora = l->lora, a.out = l->out->p;
        if (l->act != nullptr)
            a.out = l->act->p;
        b.be->vt->linear_gated_act(b.be, &a);
    } else {
        struct sl_op_linear_multi a = {};
        a.x = l->x->p, a.ld_x = s->k, a.n = m, a.n_parts = s->n_parts, a.lora = l->lora;
        float *out = l->out->p;
        for (int i = 0; i < s->n_parts; i++) {
            a.part[i].w = w + i;
            a.part[i].out = out;
            a.part[i].ld_out = s->n[i];
            out += static_cast<size_t>(m) * static_cast<size_t>(s->n[i]);
        }
        b.be->vt->linear_multi(b.be, &a);
    }
}

struct lin_sum {
    double sum, size;
};

/* Do activations become FP8 on the way? */
static bool lin_w8a8(enum sl_dtype dtype)
{
    return b.use == SL_USE_LINEAR_FP8 && dtype == SL_DTYPE_FP8_E4M3;
}

/* x of 128 columns as codes times their scale. */
static void lin_codes(std::vector<double> &x)
{
    for (size_t from = 0; from < x.size(); from += 128) {
        const size_t to = std::min(from + 128, x.size());
        float amax = 0.0f;
        for (size_t i = from; i < to; i++)
            amax = std::max(amax, fabsf(static_cast<float>(x[i])));
        for (size_t i = from; i < to; i++) {
            uint8_t code = sl_f32_to_fp8_e4m3(static_cast<float>(x[i]) * (448.0f / amax));
            x[i] =
                static_cast<double>(sl_fp8_e4m3_to_f32(code)) * static_cast<double>(amax / 448.0f);
        }
    }
}

/* Row `row` of the file (over all parts) times token t. */
static struct lin_sum lin_reference(const struct lin_bench *l, const struct lin_shape *s,
                                    enum sl_dtype dtype, int row, int t)
{
    std::vector<float> w(static_cast<size_t>(s->k));
    size_t row_bytes = file_row_bytes(dtype, s->k);
    device_values(dtype, &l->file[static_cast<size_t>(row) * row_bytes], w.data(), s->k);
    std::vector<double> x(static_cast<size_t>(s->k));
    for (size_t i = 0; i < x.size(); i++)
        x[i] = lin_x(static_cast<size_t>(t) * x.size() + i);
    if (lin_w8a8(dtype))
        lin_codes(x);
    struct lin_sum r = {0.0, 0.0};
    for (size_t i = 0; i < x.size(); i++) {
        double p = x[i] * static_cast<double>(w[i]);
        r.sum += p;
        r.size += fabs(p);
    }
    return r;
}

/* Column `col` of part `part`, token t, of what the last call left. */
static void lin_check_one(const struct lin_bench *l, const struct lin_shape *s, enum sl_dtype dtype,
                          int m, int part, int col, int t)
{
    size_t before = 0;
    for (int i = 0; i < part; i++)
        before += static_cast<size_t>(s->n[i]);
    size_t at = static_cast<size_t>(t) * static_cast<size_t>(s->n[part]) + static_cast<size_t>(col);
    struct lin_sum y = lin_reference(l, s, dtype, static_cast<int>(before) + col, t);
    const double off = lin_w8a8(dtype) ? 0x1p-9 : 2e-4; /* sums of FP8 keep about 14 bits */
    double want = y.sum, slack = off * y.size, got;
    if (s->kind == LIN_GATED) {
        struct lin_sum up = lin_reference(l, s, dtype, s->n[0] + col, t);
        double act = y.sum / (1.0 + exp(-y.sum));
        want = act * up.sum;
        slack =
            0.005 * fabs(want) + 1.1 * off * (y.size * fabs(up.sum) + fabs(act) * up.size) + 1e-6;
        uint16_t h = 0;
        MUST(cudaMemcpy(&h, reinterpret_cast<uint16_t *>(l->out->p) + at, 2,
                        cudaMemcpyDeviceToHost));
        got = static_cast<double>(from_bf16(h));
    } else {
        float f = 0.0f;
        l->out->get(static_cast<size_t>(m) * before + at, &f, 1);
        got = static_cast<double>(f);
    }
    CHECK(fabs(got - want) <= slack,
          "%s, %s, %d tokens: column %d of part %d, token %d: %g, not %g", s->name,
          sl_dtype_info(dtype)->name, m, col, part, t, got, want);
}

static void lin_check(const struct lin_bench *l, const struct lin_shape *s, enum sl_dtype dtype,
                      int m)
{
    int parts = s->kind == LIN_GATED ? 1 : s->n_parts;
    wait_all();
    for (int part = 0; part < parts; part++)
        for (int t : {0, m - 1})
            for (int col : {0, s->n[part] / 2 + 3, s->n[part] - 1})
                lin_check_one(l, s, dtype, m, part, col, t);
}

/* ------------------------------------------------------------------ tables */

/* The first output of the last product: weights are the numbers from `seed` on. */
static void lin_check_cublas(const struct lin_bench *l, const struct lin_shape *s, uint64_t seed)
{
    struct lin_sum r = {0.0, 0.0};
    for (size_t i = 0; i < static_cast<size_t>(s->k); i++) {
        double p = lin_x(i) * static_cast<double>(from_bf16(to_bf16(random_normal(seed + i))));
        r.sum += p;
        r.size += fabs(p);
    }
    float got = 0.0f;
    wait_all();
    l->out->get(0, &got, 1);
    if (s->kind == LIN_GATED) /* BF16 */
        got = from_bf16(static_cast<uint16_t>(float_bits(got)));
    CHECK(fabs(static_cast<double>(got) - r.sum) <= 2e-4 * r.size + 0.005 * fabs(r.sum),
          "cuBLASLt, %s: %g, not %g", s->name, static_cast<double>(got), r.sum);
}

/* Matrices for cuBLASLt, all parts as one: the numbers from 0 on, from n on, and so forth. */
static std::vector<void *> lin_plain(const struct lin_shape *s)
{
    const size_t n = static_cast<size_t>(lin_rows(s)) * static_cast<size_t>(s->k);
    std::vector<void *> copies;
    for (int i = 0; i < n_copies_for(n * 2, 64); i++) {
        void *p = nullptr;
        MUST(cudaMalloc(&p, n * 2));
        fill(p, n, FILL_BF16, n * static_cast<size_t>(i));
        copies.push_back(p);
    }
    return copies;
}

/* cuBLASLt at a shape, outputs as large as ours (gate and up: BF16). */
static void lin_cublas(struct lin_bench *l, size_t shape_idx)
{
    const struct lin_shape *s = &l->shapes[shape_idx];
    const size_t n = static_cast<size_t>(lin_rows(s)) * static_cast<size_t>(s->k);
    std::vector<void *> copies = lin_plain(s);
    for (int i = 0; i < lin_sizes(); i++)
        l->cublas_us[shape_idx][i] =
            lt_time(lin_tokens(i), lin_rows(s), s->k, LT_BF16,
                    s->kind == LIN_GATED ? LT_BF16 : LT_F32, copies, l->x->p, l->out->p, ROW_MS);
    if (l->cublas_us[shape_idx][0] > 0.0)
        lin_check_cublas(l, s, n * (copies.size() - 1));
    wait_all();
    for (void *p : copies)
        MUST(cudaFree(p));
}

static void lin_row(const struct lin_bench *l, size_t shape_idx, enum sl_dtype dtype,
                    const struct lin_weights *r, int size_idx)
{
    const struct lin_shape *s = &l->shapes[shape_idx];
    const int m = lin_tokens(size_idx);
    MUST(cudaMemsetAsync(l->out->p, 0xFF, l->out->n * 4, b.cu->stream));
    double us = time_us(r->n_copies, ROW_MS, [&](int c) {
        lin_call(l, s, &r->w[static_cast<size_t>(c) * MAX_PARTS], m);
    });
    lin_check(l, s, dtype, m);
    double out_bytes = s->kind == LIN_GATED ? s->n[0] * 2.0 : lin_rows(s) * 4.0;
    double bytes = static_cast<double>(r->n_bytes) + m * (s->k * 2.0 + out_bytes);
    double flops = 2.0 * m * lin_rows(s) * s->k, other = l->cublas_us[shape_idx][size_idx];
    char text[3][16] = {"-", "-", "-"};
    if (m <= 64)
        snprintf(text[0], sizeof text[0], "%.0f", gb_s(bytes, us));
    if (m >= 64)
        snprintf(text[1], sizeof text[1], "%.0f", flops / us * 1e-6);
    if (other > 0.0)
        snprintf(text[2], sizeof text[2], "%.1f", other);
    printf("%-9s %7d x %-6d %5d %9.1f %7s %8s %10s %7s %8s\n", s->name, lin_rows(s), s->k, m, us,
           text[0], text[1], text[2], m <= 64 ? share(bytes / us * 1e6, b.read_bps) : "-",
           share(other, us));
    fflush(stdout);
}

static void lin_heading(enum sl_dtype dtype, const char *route)
{
    printf("\n== products, %s, by %s\n", sl_dtype_info(dtype)->name, route);
    printf("%-9s %7s x %-6s %5s %9s %7s %8s %10s %7s %8s\n", "", "rows", "cols", "M", "us", "GB/s",
           "TFLOP/s", "cuBLASLt", "of read", "of BLAS");
}

static void lin_format(struct lin_bench *l, enum sl_dtype dtype)
{
    size_t most = 0;
    for (size_t i = 0; i < l->n_shapes; i++)
        most = std::max(most, file_bytes(dtype, &l->shapes[i]));
    random_file(l->file, dtype, most);
    for (size_t i = 0; i < l->n_shapes; i++) {
        struct lin_weights r = lin_create(l, &l->shapes[i], dtype);
        if (i == 0)
            lin_heading(dtype, b.be->vt->weight_route(b.be, &r.w[0]));
        for (int size = 0; size < lin_sizes(); size++)
            lin_row(l, i, dtype, &r, size);
        lin_destroy(&r);
    }
    struct sl_error err = {};
    CHECK(b.be->vt->device->load_end(b.be, &err) == 0, "load_end");
}

static void run_linear(const std::vector<enum sl_dtype> &formats)
{
    struct lin_bench l = {};
    l.shapes = b.tiny ? lin_tiny : lin_shapes;
    l.n_shapes = b.tiny ? SL_COUNT(lin_tiny) : LIN_SHAPES;
    size_t most_x = 0, most_out = 0, m = static_cast<size_t>(lin_tokens(lin_sizes() - 1));
    for (size_t i = 0; i < l.n_shapes; i++) {
        most_x = std::max(most_x, m * static_cast<size_t>(l.shapes[i].k));
        most_out = std::max(most_out, m * static_cast<size_t>(lin_rows(&l.shapes[i])));
    }
    dev<uint16_t> x(most_x);
    dev<float> out(most_out);
    fill(x.p, most_x, FILL_BF16, LIN_X_SEED);
    l.x = &x;
    l.out = &out;
    wait_all();
    for (size_t i = 0; i < l.n_shapes; i++)
        lin_cublas(&l, i);
    printf(
        "\nProducts: GB/s and the share of the read stream count weights, inputs and outputs once,"
        " up to 64 tokens.\nColumn cuBLASLt is its us for the same product in BF16, float out"
        " (gate, up: BF16 out); \"of BLAS\" is that over ours.\n");
    for (enum sl_dtype dtype : formats)
        lin_format(&l, dtype);
}

#endif
