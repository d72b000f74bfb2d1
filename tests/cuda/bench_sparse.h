/* SPDX-License-Identifier: MIT
 * bench_sparse.h - sparse attention by an index, of a layer of DeepSeek V3.2: 128 heads, rows of
 * 512 + 64 values, 64 queries of 128 values for the index, 2,048 positions chosen. Beside it dense
 * attention over the same pages, from which a row that sees so many is chosen.
 */
#ifndef SL_TESTS_CUDA_BENCH_SPARSE_H
#define SL_TESTS_CUDA_BENCH_SPARSE_H

#include "bench_latent.h"
#include "cuda/attention/index.cuh"

struct sparse_dims {
    int top_k, n_heads, dim; /* of the index */
};

static struct sparse_dims sparse_dims_of()
{
    if (b.tiny)
        return {32, 8, 64};
    return {2048, 64, 128};
}

/* Of each token top_k positions, one of each equal part of what it sees. */
static std::vector<int32_t> sparse_top(const struct attn_case *c, int top_k)
{
    std::vector<int32_t> top;
    for (size_t t = 0; t < c->positions.size(); t++) {
        const int64_t n = c->positions[t] + 1;
        for (int64_t i = 0; i < top_k; i++) {
            const int64_t from = i * n / top_k, to = (i + 1) * n / top_k;
            top.push_back(static_cast<int32_t>(
                from +
                static_cast<int64_t>(random_bits(t * 4096 + static_cast<size_t>(i)) %
                                     static_cast<uint64_t>(std::max<int64_t>(to - from, 1)))));
        }
    }
    return top;
}

/* The last token's last head, in double, against what is there. */
static void sparse_check(const struct attn_case *c, struct latent_dims d,
                         const std::vector<int32_t> &top, int top_k, const dev<uint16_t> *out)
{
    const int hd = d.rank + d.rope;
    const size_t token = c->positions.size() - 1,
                 row = token * static_cast<size_t>(d.n_heads) + static_cast<size_t>(d.n_heads - 1);
    std::vector<double> sum(static_cast<size_t>(d.rank), 0.0), q, k(static_cast<size_t>(hd));
    std::vector<uint16_t> got(static_cast<size_t>(d.rank));
    double total = 0.0, squares = 0.0;
    for (size_t i = 0; i < static_cast<size_t>(hd); i++)
        q.push_back(attn_query(c, row * static_cast<size_t>(hd) + i));
    for (int j = 0; j < top_k; j++) {
        const int pos = top[token * static_cast<size_t>(top_k) + static_cast<size_t>(j)];
        const size_t page = static_cast<size_t>(
            c->tables[static_cast<size_t>(c->spans.back().table_idx + pos / ATTN_BLOCK)]);
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
        CHECK(fabs(is - want) <= slack, "%d x %d behind %d, chosen: dimension %zu: %g, not %g",
              c->n_seqs, c->n, c->pos, i, is, want);
    }
}

static double sparse_time(const struct attn_case *c, struct latent_dims d, int top_k,
                          const dev<uint16_t> *pool)
{
    const int hd = d.rank + d.rope;
    const size_t n = static_cast<size_t>(c->n_seqs * c->n),
                 rows = n * static_cast<size_t>(d.n_heads);
    const std::vector<int32_t> top = sparse_top(c, top_k);
    attn_device on(*c);
    dev<float> q(rows * static_cast<size_t>(hd));
    dev<uint16_t> out(rows * static_cast<size_t>(d.rank));
    dev<int32_t> chosen(top);
    dev<struct sl_span> room(n);
    fill(q.p, q.n, FILL_F32, ATTN_PASS);
    sl_cuda_attention_plan(b.cu, &on.batch, d.n_heads, 0, hd, false);
    struct sl_op_sparse_attention op = {};
    op.all.batch = &on.batch;
    op.all.q = q.p;
    op.all.ld_q = static_cast<int64_t>(d.n_heads) * hd;
    op.all.ld_out = static_cast<int64_t>(d.n_heads) * d.rank;
    op.all.n_heads = d.n_heads;
    op.all.n_kv_heads = 1;
    op.all.head_dim = hd;
    op.all.v_dim = d.rank;
    op.all.v_in_k = true;
    op.all.scale = static_cast<float>(1.0 / sqrt(static_cast<double>(hd)));
    op.all.out = out.p;
    op.top = chosen.p;
    op.top_k = top_k;
    op.room = room.p;
    op.room_bytes = room.n * sizeof(struct sl_span);
    const double us = time_us(c->n_layers, ROW_MS, [&](int layer) {
        op.all.kv = attn_view(c, pool, 0);
        op.all.kv.k_offset = c->plane * static_cast<size_t>(layer);
        b.be->vt->sparse_attention(b.be, &op);
    });
    sparse_check(c, d, top, top_k, &out);
    return us;
}

/* us[0]: scores and the largest; us[1]: the largest alone. */
static void sparse_index_times(const struct attn_case *c, struct sparse_dims x, double us[2])
{
    const size_t n = static_cast<size_t>(c->n_seqs * c->n);
    const int64_t ld = sl_index_scores(c->pos + c->n);
    const size_t rows = std::min(n, std::max<size_t>((1u << 25) / static_cast<size_t>(ld), 1));
    struct attn_case keys = *c;
    keys.plane = sl_kv_tile_bytes(SL_DTYPE_BF16, x.dim);
    keys.page_bytes = keys.plane;
    attn_device on(keys);
    dev<uint16_t> pool(keys.tables.size() * keys.page_bytes / 2),
        q(n * static_cast<size_t>(x.n_heads * x.dim * 2));
    dev<float> w(n * static_cast<size_t>(x.n_heads)), scores(rows * static_cast<size_t>(ld));
    dev<int32_t> top(n * static_cast<size_t>(x.top_k));
    fill(pool.p, pool.n, FILL_BF16);
    fill(q.p, q.n, FILL_BF16, ATTN_PASS);
    fill(w.p, w.n, FILL_F32, 3);
    struct sl_op_index_select op = {};
    op.batch = &on.batch;
    op.q = reinterpret_cast<const float *>(q.p);
    op.w = w.p;
    op.n_heads = x.n_heads, op.dim = x.dim, op.top_k = x.top_k;
    op.n_most = c->pos + c->n;
    op.kv = attn_view(&keys, &pool, 0);
    op.kv.dtype = SL_DTYPE_BF16;
    op.scores = scores.p;
    op.n_scores = static_cast<int64_t>(scores.n);
    op.top = top.p;
    us[0] = time_us(1, ROW_MS, [&](int) { b.be->vt->index_select(b.be, &op); });
    const struct sl_index_rows at = {on.batch.positions,         scores.p, ld,   0,
                                     static_cast<int32_t>(rows), x.top_k,  top.p};
    us[1] = time_us(1, ROW_MS, [&](int) { sl_index_largest(b.cu, &at); }) * static_cast<double>(n) /
            static_cast<double>(rows);
}

static void sparse_row(enum sl_dtype dtype, const dev<uint16_t> *pool, int n_seqs, int n, int pos,
                       bool dense)
{
    struct latent_dims d = latent_dims_of(128);
    const struct sparse_dims x = sparse_dims_of();
    d.dtype = dtype;
    const struct attn_case c = latent_make(d, n_seqs, n, pos);
    if (attn_pool_bytes(&c) > pool->n * 2) {
        printf("%5d %6d %8d   left out: %.1f GB of pages\n", n_seqs, n, pos,
               static_cast<double>(attn_pool_bytes(&c)) * 1e-9);
        return;
    }
    double index[2];
    const double us = sparse_time(&c, d, x.top_k, pool);
    sparse_index_times(&c, x, index);
    const double tokens = n_seqs * n, seen = pos + 0.5 * (n + 1.0);
    const double flops = 2.0 * (2 * d.rank + d.rope) * d.n_heads * tokens * x.top_k;
    const double bytes = tokens * x.top_k * static_cast<double>(latent_pos_bytes(d));
    const double score_flops = 2.0 * x.n_heads * x.dim * tokens * seen;
    const double key_bytes = 2.0 * x.dim * n_seqs * static_cast<double>(pos + n);
    printf("%5d %6d %8d %9.1f %8.1f %7.0f %9.1f %8.1f %7.0f %8.1f", n_seqs, n, pos, us,
           flops / us * 1e-6, bytes / us * 1e-3, index[0] - index[1],
           score_flops / (index[0] - index[1]) * 1e-6, key_bytes / (index[0] - index[1]) * 1e-3,
           index[1]);
    if (dense) {
        const double all = latent_time(&c, d, pool);
        printf(" %9.1f %6.2f", all, all / (us + index[0]));
    }
    printf("\n");
    fflush(stdout);
}

static void run_sparse()
{
    size_t free_bytes = 0, total = 0;
    MUST(cudaMemGetInfo(&free_bytes, &total));
    const size_t want = b.tiny ? static_cast<size_t>(4) << 20 : static_cast<size_t>(5) << 30;
    dev<uint16_t> pool(std::min(want, free_bytes / 2) / 2);
    static const struct {
        int n_seqs, n, pos;
        bool dense;
    } real[] = {{64, 1, 32767, true}, {1, 1, 131071, true},  {16, 1, 131071, true},
                {8, 1, 8191, true},   {128, 2, 8190, false}, {1, 512, 32768, false},
                {1, 512, 8192, true}};
    static const int tiny[][3] = {{1, 1, 299}, {3, 2, 90}};
    for (enum sl_dtype dtype : {SL_DTYPE_BF16, SL_DTYPE_FP8_E4M3}) {
        const struct latent_dims d = latent_dims_of(128);
        attn_fill(reinterpret_cast<uint8_t *>(pool.p), pool.n * 2,
                  {d.n_heads, 1, d.rank + d.rope, dtype});
        printf("\n== sparse attention: rows of 512 + 64 values, %s; what is chosen counts\n",
               dtype == SL_DTYPE_BF16 ? "bf16" : "fp8");
        printf("%5s %6s %8s %9s %8s %7s %9s %8s %7s %8s %9s %6s\n", "seqs", "tokens", "behind",
               "us", "TFLOP/s", "GB/s", "score us", "TFLOP/s", "GB/s", "top us", "dense us",
               "times");
        for (const auto &x : real)
            if (!b.tiny)
                sparse_row(dtype, &pool, x.n_seqs, x.n, x.pos, x.dense);
        for (const auto &x : tiny)
            if (b.tiny)
                sparse_row(dtype, &pool, x[0], x[1], x[2], true);
    }
}

#endif
