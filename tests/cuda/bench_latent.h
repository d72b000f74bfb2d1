/* SPDX-License-Identifier: MIT
 * bench_latent.h - latent attention of a layer of DeepSeek V3 (128 heads, rows of 512 + 64 values),
 * and of one of 20 heads: decodes, prompts, and the products of heads and the store around them.
 */
#ifndef SL_TESTS_CUDA_BENCH_LATENT_H
#define SL_TESTS_CUDA_BENCH_LATENT_H

#include "bench_attention.h"

struct latent_dims {
    int n_heads, rank, rope;
    enum sl_dtype dtype;
};

static struct latent_dims latent_dims_of(int n_heads)
{
    if (b.tiny)
        return {4, 64, 16, SL_DTYPE_BF16};
    return {n_heads, 512, 64, SL_DTYPE_BF16};
}

static size_t latent_pos_bytes(struct latent_dims d)
{
    return sl_kv_tile_bytes(d.dtype, d.rank + d.rope) / SL_KV_TILE;
}

static struct attn_case latent_make(struct latent_dims d, int n_seqs, int n, int pos)
{
    struct attn_case c = attn_make({d.n_heads, 1, d.rank + d.rope, d.dtype}, n_seqs, n, pos, 64);
    c.plane = latent_pos_bytes(d) * ATTN_BLOCK;
    c.page_bytes = c.plane * static_cast<size_t>(c.n_layers);
    return c;
}

/* The last token of sequence 0 with one head, in double, against what is there. */
static void latent_check(const struct attn_case *c, struct latent_dims d, const dev<uint16_t> *out,
                         int head)
{
    const int hd = d.rank + d.rope;
    const size_t row = static_cast<size_t>((c->n - 1) * d.n_heads + head);
    std::vector<double> sum(static_cast<size_t>(d.rank), 0.0), q, k(static_cast<size_t>(hd));
    std::vector<uint16_t> got(static_cast<size_t>(d.rank));
    double total = 0.0, squares = 0.0;
    for (size_t i = 0; i < static_cast<size_t>(hd); i++)
        q.push_back(attn_query(c, row * static_cast<size_t>(hd) + i));
    for (int pos = 0; pos < c->pos + c->n; pos++) {
        const size_t page = static_cast<size_t>(c->tables[static_cast<size_t>(pos / ATTN_BLOCK)]);
        const size_t at = page * c->page_bytes + c->plane * static_cast<size_t>(c->n_layers - 1);
        double score = 0.0;
        for (size_t i = 0; i < k.size(); i++) {
            k[i] = attn_number(c, hd, at, pos % ATTN_BLOCK, static_cast<int>(i));
            score += q[i] * k[i];
        }
        const double p = exp(score / sqrt(static_cast<double>(hd)));
        for (size_t i = 0; i < sum.size(); i++)
            sum[i] += p * k[i];
        total += p;
        squares += p * p;
    }
    wait_all();
    out->get(row * static_cast<size_t>(d.rank), got.data(), got.size());
    for (size_t i = 0; i < sum.size(); i++) {
        const double want = sum[i] / total, is = static_cast<double>(from_bf16(got[i]));
        const double slack = fabs(want) / 128 + 0.03 * sqrt(squares) / total;
        CHECK(fabs(is - want) <= slack, "%d x %d behind %d: head %d, dimension %zu: %g, not %g",
              c->n_seqs, c->n, c->pos, head, i, is, want);
    }
}

static double latent_time(const struct attn_case *c, struct latent_dims d,
                          const dev<uint16_t> *pool)
{
    const int hd = d.rank + d.rope;
    const size_t rows = static_cast<size_t>(c->n_seqs * c->n * d.n_heads);
    attn_device on(*c);
    dev<float> q(rows * static_cast<size_t>(hd));
    dev<uint16_t> out(rows * static_cast<size_t>(d.rank));
    fill(q.p, q.n, FILL_F32, ATTN_PASS);
    sl_cuda_attention_plan(b.cu, &on.batch, d.n_heads, 0, hd, false);
    struct sl_op_attention op = {};
    op.batch = &on.batch;
    op.q = q.p;
    op.ld_q = static_cast<int64_t>(d.n_heads) * hd;
    op.ld_out = static_cast<int64_t>(d.n_heads) * d.rank;
    op.n_heads = d.n_heads;
    op.n_kv_heads = 1;
    op.head_dim = hd;
    op.v_dim = d.rank;
    op.v_in_k = true;
    op.scale = static_cast<float>(1.0 / sqrt(static_cast<double>(hd)));
    op.out = out.p;
    const double us = time_us(c->n_layers, ROW_MS, [&](int layer) {
        op.kv = attn_view(c, pool, 0);
        op.kv.k_offset = c->plane * static_cast<size_t>(layer);
        b.be->vt->attention(b.be, &op);
    });
    if (c->pos + c->n <= 16384)
        latent_check(c, d, &out, d.n_heads - 1);
    return us;
}

static void latent_attention_row(struct latent_dims d, const dev<uint16_t> *pool, int n_seqs, int n,
                                 int pos)
{
    const struct attn_case c = latent_make(d, n_seqs, n, pos);
    if (attn_pool_bytes(&c) > pool->n * 2) {
        printf("%5d %6d %8d   left out: %.1f GB of pages\n", n_seqs, n, pos,
               static_cast<double>(attn_pool_bytes(&c)) * 1e-9);
        return;
    }
    const double us = latent_time(&c, d, pool);
    const double pairs = n_seqs * (static_cast<double>(n) * pos + 0.5 * n * (n + 1.0));
    const double flops = 2.0 * (2 * d.rank + d.rope) * d.n_heads * pairs;
    const double bytes =
        static_cast<double>(n_seqs) * (pos + n) * static_cast<double>(latent_pos_bytes(d));
    printf("%5d %6d %8d %10.1f %9.1f %8s %8.0f %8s\n", n_seqs, n, pos, us, flops / us * 1e-6,
           share(flops / us * 1e6, b.gemm_flops), gb_s(bytes, us),
           share(bytes / us * 1e6, b.read_bps));
    fflush(stdout);
}

/* ------------------------------------------------------------------ around it */

static void latent_heads_row(const char *what, int n_heads, int rows, int cols, int n)
{
    struct sl_error err = {};
    const size_t n_elems = static_cast<size_t>(rows * cols);
    std::vector<uint16_t> file(n_elems);
    std::vector<struct sl_weight> mats(static_cast<size_t>(n_heads));
    struct sl_stack stack = {};
    for (size_t i = 0; i < n_elems; i++)
        file[i] = to_bf16(random_normal(i) * 0.1f);
    for (struct sl_weight &w : mats)
        CHECK(b.be->vt->weight_create(b.be, SL_USE_LINEAR, SL_DTYPE_BF16, rows, cols, file.data(),
                                      nullptr, &w, &err) == 0,
              "%s", err.msg);
    CHECK(b.be->vt->stack_create(b.be, mats.data(), n_heads, &stack, &err) == 0, "%s", err.msg);
    CHECK(b.be->vt->device->load_end(b.be, &err) == 0, "%s", err.msg);
    dev<uint16_t> x(static_cast<size_t>(n * n_heads * cols));
    dev<float> out(static_cast<size_t>(n * n_heads * rows));
    fill(x.p, x.n, FILL_BF16, 7);
    const struct sl_op_heads_linear op = {
        x.p,   static_cast<int64_t>(n_heads) * cols, cols, &stack, n,
        out.p, static_cast<int64_t>(n_heads) * rows, rows};
    const double us = time_us(1, ROW_MS / 5, [&](int) { b.be->vt->heads_linear(b.be, &op); });
    const double bytes = 2.0 * n_heads * static_cast<double>(n_elems) +
                         2.0 * static_cast<double>(x.n) + 4.0 * static_cast<double>(out.n);
    const double flops = 2.0 * n * n_heads * static_cast<double>(n_elems);
    printf("%-8s %6d %10.1f %9.1f %8s %8.0f %8s\n", what, n, us, flops / us * 1e-6,
           share(flops / us * 1e6, b.gemm_flops), gb_s(bytes, us),
           share(bytes / us * 1e6, b.read_bps));
    wait_all();
    b.be->vt->stack_destroy(b.be, &stack);
    for (struct sl_weight &w : mats)
        b.be->vt->weight_destroy(b.be, &w);
}

static void run_latent()
{
    size_t free_bytes = 0, total = 0;
    MUST(cudaMemGetInfo(&free_bytes, &total));
    const size_t want = b.tiny ? static_cast<size_t>(4) << 20 : static_cast<size_t>(8) << 30;
    dev<uint16_t> pool(std::min(want, free_bytes / 2) / 2);
    fill(pool.p, pool.n, FILL_BF16);
    static const struct {
        int heads, n_seqs, n, pos;
    } real[] = {{128, 64, 1, 8191}, {128, 16, 1, 32767}, {128, 1, 1, 8191}, {128, 132, 1, 4095},
                {128, 16, 4, 8188}, {128, 1, 512, 8192}, {128, 4, 1, 1023}, {20, 64, 1, 8191},
                {20, 1, 1, 8191},   {20, 256, 1, 2047}};
    static const int tiny[][3] = {{1, 1, 299}, {3, 2, 20}, {1, 40, 17}};
    printf(
        "\n== latent attention: rows of 512 + 64 values, bf16; only what the mask leaves counts\n");
    printf("%5s %6s %8s %10s %9s %8s %8s %8s\n", "seqs", "tokens", "behind", "us", "TFLOP/s",
           "of BLAS", "GB/s", "of read");
    int heads = 0;
    for (const auto &x : real) {
        if (b.tiny)
            break;
        if (x.heads != heads)
            printf("%d heads\n", heads = x.heads);
        latent_attention_row(latent_dims_of(x.heads), &pool, x.n_seqs, x.n, x.pos);
    }
    for (const auto &x : tiny)
        if (b.tiny)
            latent_attention_row(latent_dims_of(4), &pool, x[0], x[1], x[2]);
    printf("\n== products of heads: %s\n", b.tiny ? "4 heads" : "128 heads, rank 512");
    printf("%-8s %6s %10s %9s %8s %8s %8s\n", "matrix", "tokens", "us", "TFLOP/s", "of BLAS",
           "GB/s", "of read");
    static const int tokens[] = {1, 8, 64, 512, 2048};
    for (int n : tokens) {
        if (b.tiny && n > 8)
            break;
        latent_heads_row("k_up", b.tiny ? 4 : 128, b.tiny ? 64 : 512, b.tiny ? 32 : 128, n);
        latent_heads_row("v_up", b.tiny ? 4 : 128, b.tiny ? 32 : 128, b.tiny ? 64 : 512, n);
    }
}

#endif
