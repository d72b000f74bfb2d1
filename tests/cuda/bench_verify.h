/* SPDX-License-Identifier: MIT
 * bench_verify.h - what verifying drafts costs: attention where each sequence has a token and
 * drafts behind it, and products of the few rows that such steps have, against the step of one row.
 */
#ifndef SL_TESTS_CUDA_BENCH_VERIFY_H
#define SL_TESTS_CUDA_BENCH_VERIFY_H

#include "bench_decode.h"
#include "bench_linear.h"

#define VERIFY_MS 12.0 /* of replays */
#define CHOICE_MS 3.0

/* One line: the rows of a sequence from 1 on, us and the share of the read stream that reading each
 * key and value once is; behind that the time of one row. */
static void verify_line(struct attn_dims d, const dev<uint16_t> *pool, int batch, int context)
{
    static const int real[] = {1, 2, 3, 5, 8, 16}, tiny[] = {1, 5, 9};
    const int n_widths = b.tiny ? 3 : 6;
    double one = 0.0;
    printf("%5s %2d/%d %4d %6d", decode_pages(d.dtype), d.n_heads, d.n_kv, batch, context);
    for (int i = 0; i < n_widths; i++) {
        const int n = b.tiny ? tiny[i] : real[i];
        struct attn_case c = attn_make(d, batch, n, context - n, b.tiny ? 2 : 16);
        if (attn_pool_bytes(&c) > pool->n * 2)
            continue;
        const struct attn_times t = attn_time(&c, d, pool, VERIFY_MS, batch == 1);
        const double rate = static_cast<double>(batch) * context *
                            static_cast<double>(attn_pos_bytes(d)) / t.us * 1e6;
        one = i == 0 ? t.us : one;
        printf(" | %6.1f %5.0f %4s %4.2f", t.us, rate * 1e-9, share(rate, b.read_bps), t.us / one);
        fflush(stdout);
    }
    printf("\n");
}

static void run_verify()
{
    const int batches[] = {1, b.tiny ? 2 : 32, b.tiny ? 3 : 64};
    const int contexts[] = {b.tiny ? 50 : 1024, b.tiny ? 300 : 8192};
    struct attn_dims d = attn_dims_of();
    size_t free_bytes = 0, total = 0;
    MUST(cudaMemGetInfo(&free_bytes, &total));
    const size_t want = (b.tiny ? static_cast<size_t>(4) << 20 : static_cast<size_t>(16) << 30);
    dev<uint16_t> pool(std::min(want, free_bytes / 2) / 2);
    printf("\n== attention of a token and drafts: rows of a sequence 1, 2, 3, 5, 8, 16; each: us, "
           "GB/s "
           "of keys and values\n   read once, of the read stream, over one row; %d dimensions\n"
           "pages heads  seqs context\n",
           d.hd);
    for (enum sl_dtype dtype : {SL_DTYPE_F16, SL_DTYPE_FP8_E4M3}) {
        d.dtype = dtype;
        attn_fill(reinterpret_cast<uint8_t *>(pool.p), pool.n * 2, d);
        for (int group : {4, 8})
            for (int batch : batches)
                for (int context : contexts) {
                    d.n_heads = d.n_kv * group;
                    verify_line(d, &pool, batch, context);
                }
    }
}

/* Up to 16 rows of a sequence: us of the narrow kernel, of the medium one, and of the one that is
 * chosen, at several contexts. */
static void choice_line(struct attn_dims d, const dev<uint16_t> *pool, int batch, int n)
{
    static const int real[] = {1024, 4096, 8192, 32768}, tiny[] = {50, 300};
    const int32_t ways[] = {16, 1, 0};
    printf("%5s %2d/%d x %3d %3d %4d", decode_pages(d.dtype), d.n_heads, d.n_kv, d.hd,
           n * d.n_heads / d.n_kv, batch);
    for (int i = 0; i < (b.tiny ? 2 : 4); i++) {
        const int context = b.tiny ? tiny[i] : real[i];
        struct attn_case c = attn_make(d, batch, n, context - n, b.tiny ? 2 : 8);
        if (attn_pool_bytes(&c) > pool->n * 2)
            continue;
        double us[3];
        for (int way = 0; way < 3; way++) {
            b.cu->attn_narrow = ways[way];
            us[way] = attn_time(&c, d, pool, CHOICE_MS, b.tiny).us;
        }
        printf(" | %7.1f %7.1f %4.2f %c", us[0], us[1], us[1] / us[0],
               fabs(us[2] - us[0]) <= fabs(us[2] - us[1]) ? 'n' : 'm');
        fflush(stdout);
    }
    b.cu->attn_narrow = 0;
    printf("\n");
}

static void run_choice()
{
    static const int batches[] = {1, 2, 4, 8, 16, 32, 64};
    /* heads of a key head, tokens, key heads, dimensions */
    static const int shapes[][4] = {{4, 2, 8, 128}, {4, 4, 8, 128}, {8, 1, 8, 128}, {1, 8, 32, 128},
                                    {8, 2, 4, 128}, {4, 4, 8, 64},  {8, 2, 2, 256}, {4, 4, 4, 256},
                                    {4, 2, 4, 256}, {16, 1, 2, 128}};
    struct attn_dims d = attn_dims_of();
    size_t free_bytes = 0, total = 0;
    MUST(cudaMemGetInfo(&free_bytes, &total));
    const size_t want = (b.tiny ? static_cast<size_t>(8) << 20 : static_cast<size_t>(16) << 30);
    dev<uint16_t> pool(std::min(want, free_bytes / 2) / 2);
    printf("\n== attention of up to 16 rows, contexts %s: narrow us, medium us, over narrow, and "
           "which is\n   chosen\npages heads x dimensions rows seqs\n",
           b.tiny ? "50, 300" : "1,024, 4,096, 8,192, 32,768");
    for (enum sl_dtype dtype : {SL_DTYPE_F16, SL_DTYPE_FP8_E4M3})
        for (const auto &shape : shapes) {
            d.dtype = dtype;
            d.n_kv = b.tiny ? d.n_kv : shape[2];
            d.n_heads = d.n_kv * shape[0];
            d.hd = b.tiny ? d.hd : shape[3];
            attn_fill(reinterpret_cast<uint8_t *>(pool.p), pool.n * 2, d);
            for (int batch : batches)
                if (!b.tiny || batch <= 2)
                    choice_line(d, &pool, batch, shape[1]);
        }
}

/* ------------------------------------------------------------------ products */

static void few_row(const struct lin_bench *l, const struct lin_shape *s, enum sl_dtype dtype,
                    double *sums)
{
    static const int real[] = {1, 2, 3, 4, 5, 6, 8, 9, 12, 16, 17, 20, 32, 40, 48, 64, 80, 96, 160};
    const int n_sizes = b.tiny ? 3 : static_cast<int>(SL_COUNT(real));
    struct lin_weights w = lin_create(l, s, dtype);
    double one = 0.0;
    printf("%-9s %7d x %-6d", s->name, lin_rows(s), s->k);
    for (int i = 0; i < n_sizes; i++) {
        const int m = real[i];
        const double us = time_us(w.n_copies, VERIFY_MS, [&](int c) {
            lin_call(l, s, &w.w[static_cast<size_t>(c) * MAX_PARTS], m);
        });
        one = i == 0 ? us : one;
        sums[i] += us;
        printf(" | %3d %6.1f %4.2f", m, us, us / one);
        fflush(stdout);
    }
    printf("\n");
    lin_destroy(&w);
}

/* Matrices of a model of 8 billion parameters by the number of rows: us, and over one row. */
static void run_few(const std::vector<enum sl_dtype> &formats)
{
    struct lin_bench l = {};
    l.shapes = b.tiny ? lin_tiny : lin_shapes;
    l.n_shapes = b.tiny ? SL_COUNT(lin_tiny) : LIN_SHAPES;
    size_t most_x = 0, most_out = 0;
    for (size_t i = 0; i < l.n_shapes; i++) {
        most_x = std::max(most_x, static_cast<size_t>(160 * l.shapes[i].k));
        most_out = std::max(most_out, 160 * static_cast<size_t>(lin_rows(&l.shapes[i])));
    }
    dev<uint16_t> x(most_x);
    dev<float> out(most_out);
    fill(x.p, most_x, FILL_BF16, LIN_X_SEED);
    l.x = &x;
    l.out = &out;
    wait_all();
    for (enum sl_dtype dtype : formats) {
        size_t most = 0;
        double sums[32] = {};
        for (size_t i = 0; i < l.n_shapes; i++)
            most = std::max(most, file_bytes(dtype, &l.shapes[i]));
        random_file(l.file, dtype, most);
        printf("\n== products of few rows, %s: rows, us, over one row\n",
               sl_dtype_info(dtype)->name);
        for (size_t i = 0; i < l.n_shapes; i++)
            few_row(&l, &l.shapes[i], dtype, sums);
        printf("%-26s", "sum, over one row");
        for (int i = 0; sums[i] > 0.0; i++)
            printf(" | %15.3f", sums[i] / sums[0]);
        printf("\n");
        struct sl_error err = {};
        CHECK(b.be->vt->device->load_end(b.be, &err) == 0, "load_end");
    }
}

#endif
