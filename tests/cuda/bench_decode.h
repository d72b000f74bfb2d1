/* SPDX-License-Identifier: MIT
 * bench_decode.h - what is wanted of decode attention: the share of the read stream for formats of
 * the pages and sizes of the groups, of one long context, and that no batch size falls behind.
 */
#ifndef SL_TESTS_CUDA_BENCH_DECODE_H
#define SL_TESTS_CUDA_BENCH_DECODE_H

#include "bench_attention.h"

#define SWEEP_MS   4.0 /* of replays for one batch size */
#define SWEEP_LINE 20  /* batch sizes of a line */

static const char *decode_pages(enum sl_dtype dtype)
{
    return dtype == SL_KV_TURBO4        ? "4bit"
           : dtype == SL_DTYPE_FP8_E4M3 ? "fp8"
           : dtype == SL_DTYPE_BF16     ? "bf16"
                                        : "f16";
}

/* Bytes a second of a decode of `batch` sequences; 0: the pool cannot hold their pages. */
static double decode_rate(struct attn_dims d, const dev<uint16_t> *pool, int batch, int context,
                          double budget_ms, bool check, struct attn_times *t)
{
    struct attn_case c = attn_make(d, batch, 1, context - 1, b.tiny ? 2 : 16);
    if (attn_pool_bytes(&c) > pool->n * 2)
        return 0.0;
    *t = attn_time(&c, d, pool, budget_ms, check);
    return static_cast<double>(batch) * context * static_cast<double>(attn_pos_bytes(d)) / t->us *
           1e6;
}

static void decode_shapes(struct attn_dims d, const dev<uint16_t> *pool)
{
    static const int real[][2] = {{1, 4096},  {1, 32768}, {1, 131072}, {4, 8192},
                                  {16, 4096}, {17, 8192}, {64, 8192}};
    static const int tiny[][2] = {{1, 300}, {3, 40}};
    for (int i = 0; i < (b.tiny ? 2 : 7); i++) {
        const int batch = b.tiny ? tiny[i][0] : real[i][0];
        const int context = b.tiny ? tiny[i][1] : real[i][1];
        struct attn_times t = {};
        double rate = decode_rate(d, pool, batch, context, ROW_MS, true, &t);
        printf("%5s %2d/%d %6d %8d %9.1f %10.1f %8.0f %8s\n", decode_pages(d.dtype), d.n_heads,
               d.n_kv, batch, context, t.plan_us, t.us, rate * 1e-9, share(rate, b.read_bps));
        fflush(stdout);
    }
}

/* Every batch size from 1 on: the share of each, the slowest and the fastest byte, and the largest
 * step between neighbours. */
static void decode_sweep(struct attn_dims d, const dev<uint16_t> *pool, int most, int context)
{
    std::vector<double> rate;
    int slow = 0, fast = 0, step = 1;
    printf(
        "\n== every batch size, context %d, pages of %s, %d heads of %d: %% of the read stream\n",
        context, decode_pages(d.dtype), d.n_heads, d.n_kv);
    for (int batch = 1; batch <= most; batch++) {
        struct attn_times t = {};
        double r = decode_rate(d, pool, batch, context, SWEEP_MS, false, &t);
        if (r == 0.0)
            break;
        const int i = batch - 1;
        rate.push_back(r);
        slow = r < rate[static_cast<size_t>(slow)] ? i : slow;
        fast = r > rate[static_cast<size_t>(fast)] ? i : fast;
        auto cliff = [&](int at) {
            return fabs(log(rate[static_cast<size_t>(at)] / rate[static_cast<size_t>(at) - 1]));
        };
        if (i > 1 && cliff(i) > cliff(step))
            step = i;
        if (i % SWEEP_LINE == 0)
            printf("%s%4d:", i > 0 ? "\n" : "", batch);
        printf(" %s", b.read_bps > 0.0 ? share(r, b.read_bps) : share(r, 4.8e12));
        fflush(stdout);
    }
    if (rate.size() < 2)
        return;
    const double low = rate[static_cast<size_t>(slow)], high = rate[static_cast<size_t>(fast)];
    const double from = rate[static_cast<size_t>(step) - 1], to = rate[static_cast<size_t>(step)];
    printf("\nslowest %d: %.0f GB/s, fastest %d: %.0f GB/s (%.1f %% more time for a byte); worst "
           "neighbours %d, %d: %+.1f %%\n",
           slow + 1, low * 1e-9, fast + 1, high * 1e-9, 100.0 * (high / low - 1.0), step, step + 1,
           100.0 * (to / from - 1.0));
}

/* Formats of the pages in turns: decodes that memory binds, and prompts. */
static void formats_turn(struct attn_dims d, const dev<uint16_t> *pool, const int x[3], bool check)
{
    const int n_seqs = x[0], n = x[1], pos = x[2];
    for (enum sl_dtype dtype : {SL_DTYPE_BF16, SL_DTYPE_FP8_E4M3, SL_KV_TURBO4}) {
        d.dtype = dtype;
        struct attn_case c = attn_make(d, n_seqs, n, pos, b.tiny ? 2 : 16);
        if (attn_pool_bytes(&c) > pool->n * 2)
            continue;
        attn_fill(reinterpret_cast<uint8_t *>(pool->p), pool->n * 2, d);
        const struct attn_times t = attn_time(&c, d, pool, ROW_MS, check);
        const double bytes =
            static_cast<double>(n_seqs) * (pos + n) * static_cast<double>(attn_pos_bytes(d));
        printf("%5s %2d/%d %6d x %4d %8d %10.1f %8.0f\n", decode_pages(dtype), d.n_heads, d.n_kv,
               n_seqs, n, pos, t.us, gb_s(bytes, t.us));
        fflush(stdout);
    }
}

static void run_formats()
{
    static const int real[][3] = {{64, 1, 8191}, {16, 1, 32767}, {1, 1, 8191},
                                  {1, 2048, 0},  {1, 512, 8192}, {16, 4, 8188}};
    static const int tiny[][3] = {{2, 1, 300}, {1, 40, 17}, {2, 4, 90}};
    struct attn_dims d = attn_dims_of();
    size_t free_bytes = 0, total = 0;
    MUST(cudaMemGetInfo(&free_bytes, &total));
    const size_t most = static_cast<size_t>(1) << (b.tiny ? 24 : 35);
    dev<uint16_t> pool(std::min(most, free_bytes / 2) / 2);
    printf("\n== formats of pages: %d dimensions, pages of %d positions\n", d.hd, ATTN_BLOCK);
    printf("%5s %4s %13s %8s %10s %8s\n", "pages", "heads", "rows", "behind", "us", "GB/s");
    for (int group : {4, 8})
        for (int i = 0; i < (b.tiny ? 3 : 6); i++)
            for (int turn = 0; turn < (b.tiny ? 1 : 2); turn++) {
                const int *x = b.tiny ? tiny[i] : real[i];
                d.n_heads = d.n_kv * group;
                formats_turn(d, &pool, x, turn == 0 && x[2] < 10000);
            }
}

static void run_decode()
{
    const int most = b.tiny ? 4 : 300, context = b.tiny ? 200 : 32768;
    struct attn_dims d = attn_dims_of();
    size_t free_bytes = 0, total = 0;
    d.dtype = SL_DTYPE_BF16;
    MUST(cudaMemGetInfo(&free_bytes, &total));
    const size_t want = static_cast<size_t>(most) * static_cast<size_t>(context) *
                        attn_pos_bytes(d) * (b.tiny ? 4 : 1);
    dev<uint16_t> pool(std::min(want, free_bytes / 2) / 2);
    for (enum sl_dtype dtype : {SL_DTYPE_BF16, SL_DTYPE_FP8_E4M3}) {
        d.dtype = dtype;
        attn_fill(reinterpret_cast<uint8_t *>(pool.p), pool.n * 2, d);
        printf("\n== decode: %d dimensions, pages of %d positions\n", d.hd, ATTN_BLOCK);
        printf("%5s %4s %6s %8s %9s %10s %8s %8s\n", "pages", "heads", "batch", "context",
               "plan us", "us", "GB/s", "of read");
        for (int group : {4, 8}) {
            d.n_heads = d.n_kv * group;
            decode_shapes(d, &pool);
        }
        d.n_heads = d.n_kv * 4;
        decode_sweep(d, &pool, most, context);
    }
}

#endif
