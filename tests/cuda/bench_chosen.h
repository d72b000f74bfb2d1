/* SPDX-License-Identifier: MIT
 * bench_chosen.h - attention over blocks that each key head has chosen, of a layer of MiniMax M3:
 * 64 heads, 4 key heads of 128 dimensions, an index of 4 queries of 128 values, 16 blocks of 128
 * positions; and over pages that are chosen by their bounds. Beside both dense attention over the
 * same pages.
 */
#ifndef SL_TESTS_CUDA_BENCH_CHOSEN_H
#define SL_TESTS_CUDA_BENCH_CHOSEN_H

#include "bench_attention.h"

struct chosen_dims {
    struct attn_dims heads;
    int block, n_top, index_dim;
};

static struct chosen_dims chosen_dims_of()
{
    if (b.tiny)
        return {{4, 2, 64, SL_DTYPE_BF16}, 32, 3, 64};
    return {{64, 4, 128, SL_DTYPE_BF16}, 128, 16, 128};
}

/* Of each token and key head n_top blocks, one of each equal part of those that it sees, the last
 * one its own. */
static std::vector<int32_t> chosen_blocks(const struct attn_case *c, struct chosen_dims d)
{
    std::vector<int32_t> top;
    for (size_t t = 0; t < c->positions.size(); t++)
        for (int h = 0; h < d.heads.n_kv; h++) {
            const int n = c->positions[t] / d.block;
            for (int i = 0; i + 1 < d.n_top; i++) {
                const int from = i * n / (d.n_top - 1), to = (i + 1) * n / (d.n_top - 1);
                const uint64_t at = t * 4096 + static_cast<uint64_t>(h * 64 + i);
                top.push_back(from +
                              static_cast<int>(random_bits(at) % static_cast<uint64_t>(to - from)));
            }
            top.push_back(n);
        }
    return top;
}

/* The last token's last head, in double, against what is there. */
static void chosen_check(const struct attn_case *c, struct chosen_dims d,
                         const std::vector<int32_t> &top, const dev<uint16_t> *out)
{
    const size_t hd = static_cast<size_t>(d.heads.hd), token = c->positions.size() - 1;
    const size_t row = (token + 1) * static_cast<size_t>(d.heads.n_heads) - 1;
    const int32_t *blocks = &top[top.size() - static_cast<size_t>(d.n_top)];
    std::vector<double> sum(hd, 0.0), q;
    std::vector<uint16_t> got(hd);
    double total = 0.0, squares = 0.0;
    for (size_t i = 0; i < hd; i++)
        q.push_back(attn_query(c, row * hd + i));
    for (int j = 0; j < d.n_top * d.block; j++) {
        const int pos = blocks[j / d.block] * d.block + j % d.block;
        if (pos > c->positions[token])
            break;
        const size_t page = static_cast<size_t>(
            c->tables[static_cast<size_t>(c->spans.back().table_idx + pos / ATTN_BLOCK)]);
        const size_t at =
            page * c->page_bytes + 2 * c->plane * static_cast<size_t>(c->n_layers - 1) +
            static_cast<size_t>(d.heads.n_kv - 1) * sl_kv_tile_bytes(c->dtype, d.heads.hd);
        double score = 0.0;
        for (size_t i = 0; i < hd; i++)
            score += q[i] * attn_number(c, d.heads.hd, at, pos % ATTN_BLOCK, static_cast<int>(i));
        const double p = exp(score / sqrt(static_cast<double>(hd)));
        for (size_t i = 0; i < hd; i++)
            sum[i] += p * attn_number(c, d.heads.hd, c->plane + at, pos % ATTN_BLOCK,
                                      static_cast<int>(i));
        total += p;
        squares += p * p;
    }
    wait_all();
    out->get(row * hd, got.data(), hd);
    for (size_t i = 0; i < hd; i++) {
        const double want = sum[i] / total, is = static_cast<double>(from_bf16(got[i]));
        const double slack = fabs(want) / 128 + 0.03 * sqrt(squares) / total;
        CHECK(fabs(is - want) <= slack, "%d x %d behind %d, chosen: dimension %zu: %g, not %g",
              c->n_seqs, c->n, c->pos, i, is, want);
    }
}

static double chosen_time(const struct attn_case *c, struct chosen_dims d,
                          const dev<uint16_t> *pool)
{
    const size_t n = static_cast<size_t>(c->n_seqs * c->n),
                 width = static_cast<size_t>(d.heads.n_heads * d.heads.hd);
    const std::vector<int32_t> top = chosen_blocks(c, d);
    attn_device on(*c);
    dev<float> q(n * width);
    dev<uint16_t> out(n * width);
    dev<int32_t> chosen(top);
    dev<uint8_t> room(n * sl_chosen_room(d.heads.n_kv, d.n_top, d.block, ATTN_BLOCK));
    fill(q.p, q.n, FILL_F32, ATTN_PASS);
    sl_cuda_attention_plan(b.cu, &on.batch, d.heads.n_heads, d.heads.n_kv, d.heads.hd, false);
    struct sl_op_sparse_attention op = {};
    op.all.batch = &on.batch;
    op.all.q = q.p;
    op.all.ld_q = op.all.ld_out = static_cast<int64_t>(width);
    op.all.n_heads = d.heads.n_heads;
    op.all.n_kv_heads = d.heads.n_kv;
    op.all.head_dim = d.heads.hd;
    op.all.scale = static_cast<float>(1.0 / sqrt(static_cast<double>(d.heads.hd)));
    op.all.out = out.p;
    op.top = chosen.p;
    op.top_k = d.n_top;
    op.block = d.block;
    op.room = room.p;
    op.room_bytes = room.n;
    const double us = time_us(c->n_layers, ROW_MS, [&](int layer) {
        op.all.kv = attn_view(c, pool, layer);
        b.be->vt->sparse_attention(b.be, &op);
    });
    chosen_check(c, d, top, &out);
    return us;
}

/* Scores of blocks and the largest, over keys of their own. */
static double chosen_index_time(const struct attn_case *c, struct chosen_dims d)
{
    const size_t n = static_cast<size_t>(c->n_seqs * c->n),
                 n_heads = static_cast<size_t>(d.heads.n_kv);
    const int64_t ld = sl_index_block_scores(c->pos + c->n, d.block, d.heads.n_kv);
    const size_t rows = std::min(n, std::max<size_t>((1u << 25) / static_cast<size_t>(ld), 1));
    struct attn_case keys = *c;
    keys.plane = sl_kv_tile_bytes(SL_DTYPE_BF16, d.index_dim);
    keys.page_bytes = keys.plane * static_cast<size_t>(c->n_layers);
    attn_device on(keys);
    dev<uint16_t> pool(keys.tables.size() * keys.page_bytes / 2),
        q(n * n_heads * static_cast<size_t>(d.index_dim * 2));
    dev<float> scores(rows * static_cast<size_t>(ld));
    dev<int32_t> top(n * n_heads * static_cast<size_t>(d.n_top));
    fill(pool.p, pool.n, FILL_BF16);
    fill(q.p, q.n, FILL_BF16, ATTN_PASS);
    struct sl_op_index_select op = {};
    op.batch = &on.batch;
    op.q = reinterpret_cast<const float *>(q.p);
    op.n_heads = d.heads.n_kv, op.dim = d.index_dim, op.top_k = d.n_top;
    op.block = d.block, op.n_local = 1;
    op.n_most = c->pos + c->n;
    op.scores = scores.p;
    op.n_scores = static_cast<int64_t>(scores.n);
    op.top = top.p;
    return time_us(c->n_layers, ROW_MS, [&](int layer) {
        op.kv = attn_view(&keys, &pool, 0);
        op.kv.k_offset = keys.plane * static_cast<size_t>(layer);
        op.kv.dtype = SL_DTYPE_BF16;
        b.be->vt->index_select(b.be, &op);
    });
}

static void chosen_row(struct chosen_dims d, const dev<uint16_t> *pool, int n_seqs, int n, int pos)
{
    const struct attn_case c = attn_make(d.heads, n_seqs, n, pos, b.tiny ? 2 : 16);
    if (attn_pool_bytes(&c) > pool->n * 2) {
        printf("%5d %6d %8d   left out: %.1f GB of keys and values\n", n_seqs, n, pos + n,
               static_cast<double>(attn_pool_bytes(&c)) * 1e-9);
        return;
    }
    const double index = chosen_index_time(&c, d), us = chosen_time(&c, d, pool);
    const double dense = attn_time(&c, d.heads, pool, ROW_MS, false).us;
    const double keys = 2.0 * d.index_dim * n_seqs * (pos + n);
    printf("%5d %6d %8d %6d %9.1f %7.0f %9.1f %9.1f %8.3f\n", n_seqs, n, pos + n, c.n_layers, index,
           keys / index * 1e-3, us, dense, (index + us) / dense);
    fflush(stdout);
}

/* ------------------------------------------------------------------ pages by their bounds */

/* A decode of every sequence; what is chosen is test_chosen's business. */
static double chosen_pages_time(const struct attn_case *c, struct attn_dims d, int n_top,
                                size_t bounds_bytes, const dev<uint16_t> *pool)
{
    const size_t n = static_cast<size_t>(c->n_seqs),
                 width = static_cast<size_t>(d.n_heads) * static_cast<size_t>(d.hd);
    const int n_pages = c->pos / ATTN_BLOCK + 1;
    attn_device on(*c);
    dev<float> q(n * width);
    dev<uint16_t> out(n * width);
    dev<uint8_t> room(n * (sl_chosen_room(d.n_kv, n_top, ATTN_BLOCK, ATTN_BLOCK) +
                           sl_page_room(d.n_kv, n_top, n_pages)));
    fill(q.p, q.n, FILL_F32, ATTN_PASS);
    sl_cuda_attention_plan(b.cu, &on.batch, d.n_heads, d.n_kv, d.hd, false);
    struct sl_op_page_attention op = {};
    op.all.batch = &on.batch;
    op.all.q = q.p;
    op.all.ld_q = op.all.ld_out = static_cast<int64_t>(width);
    op.all.n_heads = d.n_heads;
    op.all.n_kv_heads = d.n_kv;
    op.all.head_dim = d.hd;
    op.all.scale = static_cast<float>(1.0 / sqrt(static_cast<double>(d.hd)));
    op.all.out = out.p;
    op.top_pages = n_top;
    op.n_most = c->pos + 1;
    op.room = room.p;
    op.room_bytes = room.n;
    return time_us(c->n_layers, ROW_MS, [&](int layer) {
        op.all.kv = attn_view(c, pool, layer);
        op.bounds_offset = 2 * c->plane * static_cast<size_t>(c->n_layers) +
                           bounds_bytes * static_cast<size_t>(layer);
        b.be->vt->page_attention(b.be, &op);
    });
}

static void chosen_pages_row(struct attn_dims d, const dev<uint16_t> *pool, int n_seqs, int pos,
                             int n_top)
{
    const size_t bounds = sl_page_bounds_bytes(d.dtype, d.n_kv, d.hd);
    struct attn_case c = attn_make(d, n_seqs, 1, pos, b.tiny ? 2 : 16);
    c.page_bytes += bounds * static_cast<size_t>(c.n_layers);
    if (attn_pool_bytes(&c) > pool->n * 2) {
        printf("%5d %8d   left out: %.1f GB of pages\n", n_seqs, pos + 1,
               static_cast<double>(attn_pool_bytes(&c)) * 1e-9);
        return;
    }
    const double us = chosen_pages_time(&c, d, n_top, bounds, pool);
    const double dense = attn_time(&c, d, pool, ROW_MS, false).us;
    printf("%5d %8d %6d %6d %9.1f %9.1f %8.3f\n", n_seqs, pos + 1, c.n_layers, n_top, us, dense,
           us / dense);
    fflush(stdout);
}

static void run_chosen_pages(const dev<uint16_t> *pool)
{
    struct attn_dims d = attn_dims_of();
    d.dtype = SL_DTYPE_BF16;
    fill(pool->p, pool->n, FILL_BF16);
    printf("\n== pages by their bounds: %d heads, %d key heads of %d, pages of %d in bf16\n",
           d.n_heads, d.n_kv, d.hd, ATTN_BLOCK);
    printf("%5s %8s %6s %6s %9s %9s %8s\n", "seqs", "context", "copies", "pages", "us", "dense us",
           "of dense");
    if (b.tiny) {
        chosen_pages_row(d, pool, 2, 299, 8);
        return;
    }
    static const int real[][3] = {{1, 65535, 256},  {1, 131071, 256}, {1, 131071, 1024},
                                  {16, 65535, 256}, {8, 131071, 256}, {8, 131071, 1024}};
    for (const auto &x : real)
        chosen_pages_row(d, pool, x[0], x[1], x[2]);
}

static void run_chosen()
{
    struct chosen_dims d = chosen_dims_of();
    size_t free_bytes = 0, total = 0;
    MUST(cudaMemGetInfo(&free_bytes, &total));
    const size_t want = b.tiny ? static_cast<size_t>(4) << 20 : static_cast<size_t>(20) << 30;
    dev<uint16_t> pool(std::min(want, free_bytes / 2) / 2);
    static const int real[][3] = {{1, 1, 65535},   {1, 1, 131071}, {16, 1, 65535},
                                  {16, 1, 131071}, {64, 1, 32767}, {1, 2048, 63488}};
    static const int tiny[][3] = {{1, 1, 299}, {3, 2, 190}};
    for (enum sl_dtype dtype : {SL_DTYPE_BF16, SL_DTYPE_FP8_E4M3}) {
        d.heads.dtype = dtype;
        attn_fill(reinterpret_cast<uint8_t *>(pool.p), pool.n * 2, d.heads);
        printf("\n== blocks that key heads choose: %d heads, %d key heads of %d, %d blocks of %d, "
               "pages of %s\n",
               d.heads.n_heads, d.heads.n_kv, d.heads.hd, d.n_top, d.block,
               dtype == SL_DTYPE_BF16 ? "bf16" : "fp8");
        printf("%5s %6s %8s %6s %9s %7s %9s %9s %8s\n", "seqs", "tokens", "context", "copies",
               "index us", "GB/s", "attend us", "dense us", "of dense");
        for (const auto &x : real)
            if (!b.tiny)
                chosen_row(d, &pool, x[0], x[1], x[2]);
        for (const auto &x : tiny)
            if (b.tiny)
                chosen_row(d, &pool, x[0], x[1], x[2]);
    }
    run_chosen_pages(&pool);
}

#endif
