/* SPDX-License-Identifier: MIT
 * bench_attention.h - attention over pages: batches of decodes, which read keys and values, and
 * chunks of prompts, which multiply. Layers go round: their pages, of F16, are the copies.
 */
#ifndef SL_TESTS_CUDA_BENCH_ATTENTION_H
#define SL_TESTS_CUDA_BENCH_ATTENTION_H

#include "bench_util.h"
#include "cuda/attention.h"
#include "cuda/kv.cuh"
#include "quant/float.h"

#define ATTN_BLOCK 16                               /* positions of a page */
#define ATTN_PASS  (static_cast<uint64_t>(1) << 44) /* seed of the queries */

struct attn_dims {
    int n_heads, n_kv, hd;
};

static struct attn_dims attn_dims_of()
{
    if (b.tiny)
        return {4, 2, 64};
    return {32, 8, 128};
}

/* Bytes of a position's keys and values of one layer. */
static size_t attn_pos_bytes(struct attn_dims d)
{
    return static_cast<size_t>(d.n_kv) * static_cast<size_t>(d.hd) * 4;
}

/* n_seqs sequences, each with n tokens to do behind pos. */
struct attn_case {
    int n_seqs, n, pos;
    int n_layers;
    size_t plane, page_bytes;
    std::vector<struct sl_span> spans;
    std::vector<int32_t> tables, positions;
};

static struct attn_case attn_make(struct attn_dims d, int n_seqs, int n, int pos, int most_layers)
{
    struct attn_case c = {};
    c.n_seqs = n_seqs, c.n = n, c.pos = pos;
    int pages = (pos + n + ATTN_BLOCK - 1) / ATTN_BLOCK;
    size_t layer = static_cast<size_t>(n_seqs) * static_cast<size_t>(pos + n) * attn_pos_bytes(d);
    c.n_layers = n_copies_for(layer, most_layers);
    c.plane = attn_pos_bytes(d) / 2 * ATTN_BLOCK;
    c.page_bytes = 2 * c.plane * static_cast<size_t>(c.n_layers);
    for (int s = 0; s < n_seqs; s++) {
        c.spans.push_back({s * n, n, pos, s * pages});
        for (int i = 0; i < n; i++)
            c.positions.push_back(pos + i);
    }
    for (int i = 0; i < n_seqs * pages; i++)
        c.tables.push_back(i);
    for (size_t i = c.tables.size(); i > 1; i--) /* pages are not in order */
        std::swap(c.tables[i - 1], c.tables[random_bits(i) % i]);
    return c;
}

static size_t attn_pool_bytes(const struct attn_case *c)
{
    return c->tables.size() * c->page_bytes;
}

static struct sl_kv_view attn_view(const struct attn_case *c, const dev<uint16_t> *pool, int layer)
{
    struct sl_kv_view kv = {};
    kv.pool = reinterpret_cast<uint8_t *>(pool->p);
    kv.page_bytes = c->page_bytes;
    kv.k_offset = 2 * c->plane * static_cast<size_t>(layer);
    kv.v_offset = kv.k_offset + c->plane;
    kv.dtype = SL_DTYPE_F16;
    kv.block_size = ATTN_BLOCK;
    return kv;
}

struct attn_device {
    dev<struct sl_span> spans;
    dev<int32_t> tables, positions;
    struct sl_batch batch;

    explicit attn_device(const struct attn_case &c)
        : spans(c.spans), tables(c.tables), positions(c.positions), batch()
    {
        batch.n_tokens = c.n_seqs * c.n;
        batch.n_spans = c.n_seqs;
        batch.positions = positions.p;
        batch.spans = spans.p;
        batch.block_tables = tables.p;
    }
};

static double attn_number(uint64_t i)
{
    return static_cast<double>(sl_f16_to_f32(to_f16(random_normal(i))));
}

/* Attention of the last token of sequence 0 with one head, in double, against what is there. The
 * pool holds random_normal of each element's place. */
static void attn_check(const struct attn_case *c, struct attn_dims d, const dev<uint16_t> *out,
                       int head)
{
    const size_t hd = static_cast<size_t>(d.hd), row = static_cast<size_t>(d.n_heads) * hd;
    const size_t kv_head = static_cast<size_t>(head / (d.n_heads / d.n_kv));
    const size_t q_at = static_cast<size_t>(c->n - 1) * row + static_cast<size_t>(head) * hd;
    const size_t layer = 2 * c->plane * static_cast<size_t>(c->n_layers - 1);
    std::vector<double> sum(hd, 0.0);
    std::vector<uint16_t> got(hd);
    double total = 0.0, squares = 0.0;
    for (int pos = 0; pos < c->pos + c->n; pos++) {
        size_t page = static_cast<size_t>(c->tables[static_cast<size_t>(pos / ATTN_BLOCK)]);
        size_t at = page * c->page_bytes + layer + kv_head * ATTN_BLOCK * hd * 2;
        auto place = [&](size_t i) {
            return (at + static_cast<size_t>(
                             sl_kv_piece(d.hd * 2, pos % ATTN_BLOCK, static_cast<int>(i / 8)))) /
                       2 +
                   i % 8;
        };
        double score = 0.0;
        for (size_t i = 0; i < hd; i++)
            score += attn_number(ATTN_PASS + q_at + i) * attn_number(place(i));
        double p = exp(score / sqrt(static_cast<double>(d.hd)));
        for (size_t i = 0; i < hd; i++)
            sum[i] += p * attn_number(c->plane / 2 + place(i));
        total += p;
        squares += p * p;
    }
    wait_all();
    out->get(q_at, got.data(), hd);
    for (size_t i = 0; i < hd; i++) {
        double want = sum[i] / total, is = static_cast<double>(from_bf16(got[i]));
        double slack = fabs(want) / 128 + 0.03 * sqrt(squares) / total;
        CHECK(fabs(is - want) <= slack, "%d x %d behind %d: head %d, dimension %zu: %g, not %g",
              c->n_seqs, c->n, c->pos, head, i, is, want);
    }
}

struct attn_times {
    double us, plan_us;
};

static struct attn_times attn_time(const struct attn_case *c, struct attn_dims d,
                                   const dev<uint16_t> *pool)
{
    const size_t n = static_cast<size_t>(c->n_seqs) * static_cast<size_t>(c->n) *
                     static_cast<size_t>(d.n_heads) * static_cast<size_t>(d.hd);
    attn_device on(*c);
    dev<float> q(n);
    dev<uint16_t> out(n);
    struct attn_times t;
    fill(q.p, n, FILL_F32, ATTN_PASS);
    t.plan_us = time_us(1, ROW_MS / 5, [&](int) {
        sl_cuda_attention_plan(b.cu, &on.batch, d.n_heads, d.n_kv, d.hd);
    });
    struct sl_op_attention op = {};
    op.batch = &on.batch;
    op.q = q.p;
    op.ld_q = op.ld_out = static_cast<int64_t>(d.n_heads) * d.hd;
    op.n_heads = d.n_heads;
    op.n_kv_heads = d.n_kv;
    op.head_dim = d.hd;
    op.scale = static_cast<float>(1.0 / sqrt(static_cast<double>(d.hd)));
    op.out = out.p;
    t.us = time_us(c->n_layers, ROW_MS, [&](int layer) {
        op.kv = attn_view(c, pool, layer);
        b.be->vt->attention(b.be, &op);
    });
    attn_check(c, d, &out, 0);
    attn_check(c, d, &out, d.n_heads - 1);
    return t;
}

/* ------------------------------------------------------------------ tables */

static void attn_decodes(struct attn_dims d, const dev<uint16_t> *pool, int most_layers)
{
    static const int real_batch[] = {1, 16, 64, 256}, real_context[] = {512, 4096, 32768};
    static const int tiny_batch[] = {1, 3}, tiny_context[] = {20, 300};
    printf("\n== attention, decode: %d heads, %d key heads, %d dimensions\n", d.n_heads, d.n_kv,
           d.hd);
    printf("%5s %8s %7s %9s %10s %8s %8s\n", "batch", "context", "copies", "plan us", "us", "GB/s",
           "of read");
    for (int i = 0; i < (b.tiny ? 2 : 4); i++)
        for (int j = 0; j < (b.tiny ? 2 : 3); j++) {
            int batch = b.tiny ? tiny_batch[i] : real_batch[i];
            int context = b.tiny ? tiny_context[j] : real_context[j];
            struct attn_case c = attn_make(d, batch, 1, context - 1, most_layers);
            if (attn_pool_bytes(&c) > pool->n * 2) {
                printf("%5d %8d   left out: %.1f GB of keys and values\n", batch, context,
                       static_cast<double>(attn_pool_bytes(&c)) * 1e-9);
                continue;
            }
            struct attn_times t = attn_time(&c, d, pool);
            double bytes =
                static_cast<double>(batch) * context * static_cast<double>(attn_pos_bytes(d));
            printf("%5d %8d %7d %9.1f %10.1f %8.0f %8s\n", batch, context, c.n_layers, t.plan_us,
                   t.us, gb_s(bytes, t.us), share(bytes / t.us * 1e6, b.read_bps));
            fflush(stdout);
        }
}

static void attn_prefills(struct attn_dims d, const dev<uint16_t> *pool, int most_layers)
{
    static const int real_n[] = {512, 2048}, real_pos[] = {0, 2048, 8192};
    static const int tiny_n[] = {5, 40}, tiny_pos[] = {0, 17, 280};
    printf("\n== attention, prefill: only what the mask leaves is counted\n");
    printf("%7s %7s %7s %9s %10s %8s %8s\n", "queries", "behind", "copies", "plan us", "us",
           "TFLOP/s", "of BLAS");
    for (int i = 0; i < 2; i++)
        for (int j = 0; j < 3; j++) {
            int n = b.tiny ? tiny_n[i] : real_n[i], pos = b.tiny ? tiny_pos[j] : real_pos[j];
            struct attn_case c = attn_make(d, 1, n, pos, most_layers);
            if (attn_pool_bytes(&c) > pool->n * 2)
                continue;
            struct attn_times t = attn_time(&c, d, pool);
            double pairs = static_cast<double>(n) * pos + 0.5 * n * (n + 1.0);
            double flops = 4.0 * d.hd * d.n_heads * pairs;
            printf("%7d %7d %7d %9.1f %10.1f %8.1f %8s\n", n, pos, c.n_layers, t.plan_us, t.us,
                   flops / t.us * 1e-6, share(flops / t.us * 1e6, b.gemm_flops));
            fflush(stdout);
        }
}

static void run_attention()
{
    const struct attn_dims d = attn_dims_of();
    size_t free_bytes = 0, total = 0;
    MUST(cudaMemGetInfo(&free_bytes, &total));
    /* 256 sequences of 32,768 positions, or what half of the memory holds. */
    size_t want = b.tiny ? static_cast<size_t>(4) << 20 : static_cast<size_t>(35) << 30;
    dev<uint16_t> pool(std::min(want, free_bytes / 2) / 2);
    fill(pool.p, pool.n, FILL_F16);
    attn_decodes(d, &pool, b.tiny ? 2 : 128);
    attn_prefills(d, &pool, b.tiny ? 2 : 128);
}

#endif
