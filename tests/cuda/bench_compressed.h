/* SPDX-License-Identifier: MIT
 * bench_compressed.h - attention to a window and to rows made of several tokens each, of a layer of
 * DeepSeek V4 Flash: 64 heads of 512 dimensions, a window of 128; rows of 4 tokens, of which an
 * index of 64 queries of 128 values chooses 512, or of 128, or none; hyper-connections of four
 * streams of 4,096. Nothing is checked here: tests/cuda/test_compressed.cc does that.
 */
#ifndef SL_TESTS_CUDA_BENCH_COMPRESSED_H
#define SL_TESTS_CUDA_BENCH_COMPRESSED_H

#include "bench_util.h"

#define COMPRESSED_BLOCK 64
#define COMPRESSED_MS    60

struct compressed_case {
    int n_seqs, n, pos, ratio, top_k; /* top_k 0: all rows are seen */
};

enum { COMPRESSED_NEAR, COMPRESSED_FAR, COMPRESSED_STATE };

struct compressed_dims {
    int n_heads, dim, window, index_heads, index_dim, rope, hidden;
};

static struct compressed_dims compressed_dims_of()
{
    if (b.tiny)
        return {4, 64, 24, 8, 32, 16, 64};
    return {64, 512, 128, 64, 128, 64, 4096};
}

/* Each sequence's pages, in groups as enumerated; near ones are a window's, in turns. */
struct compressed_batch {
    std::vector<struct sl_span> spans;
    std::vector<int32_t> positions, tables;
    int n_blocks, near_pages, stride;

    explicit compressed_batch(const struct compressed_case &c, int window)
    {
        n_blocks = (c.pos + c.n + COMPRESSED_BLOCK - 1) / COMPRESSED_BLOCK;
        near_pages = (window + c.n) / COMPRESSED_BLOCK + 2;
        stride = n_blocks * c.n_seqs;
        for (int s = 0; s < c.n_seqs; s++) {
            spans.push_back({s * c.n, c.n, c.pos, s * n_blocks, 0});
            for (int i = 0; i < c.n; i++)
                positions.push_back(c.pos + i);
        }
        for (int group = COMPRESSED_NEAR; group <= COMPRESSED_STATE; group++)
            for (int s = 0; s < c.n_seqs; s++)
                for (int i = 0; i < n_blocks; i++)
                    tables.push_back(page(group, s, i, c.pos));
    }
    int32_t page(int group, int s, int i, int pos) const
    {
        if (group == COMPRESSED_NEAR)
            return s * near_pages + i % near_pages;
        if (group == COMPRESSED_FAR)
            return s * n_blocks + i;
        return i == n_blocks - 1 || i == (pos - 1) / COMPRESSED_BLOCK ? s : -1;
    }
};

static struct sl_rows_view compressed_view(const dev<uint16_t> *pool, size_t page_bytes,
                                           size_t offset, int group)
{
    struct sl_rows_view v = {};
    v.pool = reinterpret_cast<uint8_t *>(pool->p);
    v.page_bytes = page_bytes, v.offset = offset;
    v.dtype = SL_DTYPE_BF16, v.block_size = COMPRESSED_BLOCK, v.group = group;
    return v;
}

static void compressed_row(const struct compressed_case &c)
{
    const struct compressed_dims d = compressed_dims_of();
    const struct compressed_batch at(c, d.window);
    const size_t n = at.positions.size(), ratio = static_cast<size_t>(std::max(c.ratio, 2));
    const size_t rows = (COMPRESSED_BLOCK + ratio - 1) / ratio,
                 row = sl_row_bytes(SL_DTYPE_BF16, d.dim),
                 far = rows * (row + sl_row_bytes(SL_DTYPE_BF16, d.index_dim)),
                 near = COMPRESSED_BLOCK * row, w = static_cast<size_t>(d.dim) * 2,
                 state = sl_compress_state(d.dim, true);
    const int n_far = c.ratio > 0 ? (c.pos + c.n) / c.ratio : 0;
    dev<struct sl_span> spans(at.spans);
    dev<int32_t> tables(at.tables), positions(at.positions), seen(n),
        top(n * static_cast<size_t>(std::max(c.top_k, 1)));
    dev<uint16_t> near_pool(static_cast<size_t>(at.near_pages * c.n_seqs) * near / 2),
        far_pool(at.tables.size() / 3 * far / 2),
        state_pool(static_cast<size_t>(c.n_seqs) * state / 2),
        out(n * static_cast<size_t>(d.n_heads * d.dim));
    dev<float> q(out.n), sinks(static_cast<size_t>(d.n_heads)), kv(n * w), gate(n * w),
        bias(ratio * w), norm(w), angles(n * static_cast<size_t>(d.rope)),
        freq(static_cast<size_t>(d.rope)),
        index_q(n * static_cast<size_t>(d.index_heads * d.index_dim)),
        index_w(n * static_cast<size_t>(d.index_heads)), scores(1u << 25);
    for (const dev<uint16_t> *p : {&near_pool, &far_pool})
        fill(p->p, p->n, FILL_BF16);
    for (const dev<float> *p :
         {&q, &sinks, &kv, &gate, &bias, &norm, &angles, &freq, &index_q, &index_w})
        fill(p->p, p->n, FILL_F32, p->n);
    fill(state_pool.p, state_pool.n / 2, FILL_F32, 9);
    struct sl_batch batch = {};
    batch.n_tokens = static_cast<int32_t>(n), batch.n_spans = c.n_seqs, batch.n_tables = 3;
    batch.spans = spans.p, batch.positions = positions.p, batch.block_tables = tables.p;
    batch.table_stride = at.stride;
    struct sl_rope rope = {d.rope, SL_ROPE_INTERLEAVED, freq.p, 1.0f};

    struct sl_op_compressed_attention a = {};
    a.batch = &batch, a.q = q.p, a.n_heads = d.n_heads, a.dim = d.dim, a.window = d.window;
    a.scale = 0.04f, a.sinks = sinks.p, a.ratio = c.ratio, a.top_k = c.top_k;
    a.near = compressed_view(&near_pool, near, 0, COMPRESSED_NEAR);
    a.far = compressed_view(&far_pool, far, 0, COMPRESSED_FAR);
    a.top = c.top_k > 0 ? top.p : nullptr, a.rope = &rope, a.angles = angles.p, a.out = out.p;
    struct sl_op_compressed_select s = {};
    s.batch = &batch, s.q = index_q.p, s.w = index_w.p, s.n_heads = d.index_heads;
    s.dim = d.index_dim, s.top_k = c.top_k, s.ratio = c.ratio, s.n_most = n_far;
    s.rows = compressed_view(&far_pool, far, rows * row, COMPRESSED_FAR);
    s.scores = scores.p, s.n_scores = static_cast<int64_t>(scores.n), s.seen = seen.p,
    s.top = top.p;
    struct sl_op_compress m = {};
    m.batch = &batch, m.kv = kv.p, m.gate = gate.p, m.bias = bias.p, m.norm = norm.p, m.eps = 1e-6f;
    m.dim = d.dim, m.ratio = c.ratio, m.overlap = c.top_k > 0, m.rope = &rope;
    m.state.pool = reinterpret_cast<uint8_t *>(state_pool.p), m.state.page_bytes = state;
    m.state.block_size = COMPRESSED_BLOCK, m.state.group = COMPRESSED_STATE;
    m.rows = a.far;
    const double select_us =
        c.top_k > 0 ? time_us(1, COMPRESSED_MS, [&](int) { b.be->vt->compressed_select(b.be, &s); })
                    : 0;
    const double attend_us =
        time_us(1, COMPRESSED_MS, [&](int) { b.be->vt->compressed_attention(b.be, &a); });
    const double compress_us =
        c.ratio > 0 ? time_us(1, COMPRESSED_MS, [&](int) { b.be->vt->compress(b.be, &m); }) : 0;
    const double keys =
        std::min(d.window, c.pos + 1) + (c.top_k > 0 ? std::min(c.top_k, n_far) : n_far);
    const double flops = 4.0 * d.n_heads * d.dim * keys * static_cast<double>(n);
    printf("%5d %6d %8d %6d %9.1f %8.1f %10.1f %10.1f\n", c.n_seqs, c.n, c.pos, c.ratio, attend_us,
           flops / attend_us * 1e-6, select_us, compress_us);
    fflush(stdout);
}

static void compressed_hyper(int n)
{
    const int h = compressed_dims_of().hidden;
    const size_t rows = static_cast<size_t>(n), width = static_cast<size_t>(4 * h);
    dev<float> x(rows * width), w(rows * 24), base(24), scale(4),
        out(rows * static_cast<size_t>(h));
    dev<uint16_t> act(rows * width);
    for (const dev<float> *p : {&x, &w, &base, &scale, &out})
        fill(p->p, p->n, FILL_F32, p->n);
    struct sl_op_hyper_read r = {};
    r.x = x.p, r.w = w.p, r.base = base.p, r.scale = scale.p, r.norm_eps = r.eps = 1e-6f;
    r.n_iters = 20, r.n = n, r.n_streams = 4, r.h = h, r.out = out.p;
    struct sl_op_hyper_write wr = {};
    wr.x = x.p, wr.y = out.p, wr.w = w.p, wr.n = n, wr.n_streams = 4, wr.h = h, wr.act = act.p;
    const double read = time_us(1, COMPRESSED_MS, [&](int) { b.be->vt->hyper_read(b.be, &r); });
    const double write = time_us(1, COMPRESSED_MS, [&](int) { b.be->vt->hyper_write(b.be, &wr); });
    const double row = 4.0 * static_cast<double>(width) * n;
    printf("%6d %9.1f %7.0f %9.1f %7.0f\n", n, read, row * 1.25 / read * 1e-3, write,
           row * 2.75 / write * 1e-3);
}

static void run_compressed()
{
    static const struct compressed_case real[] = {
        {1, 1, 32767, 4, 512},  {64, 1, 32767, 4, 512}, {1, 2048, 30720, 4, 512},
        {1, 1, 32767, 128, 0},  {64, 1, 32767, 128, 0}, {1, 2048, 30720, 128, 0},
        {1, 1, 131071, 4, 512}, {1, 1, 131071, 128, 0}, {64, 1, 32767, 0, 0}};
    static const struct compressed_case tiny[] = {{2, 1, 299, 4, 16}, {1, 3, 90, 16, 0}};
    printf(
        "\n== rows of several tokens: 64 heads of 512, window 128, 512 chosen rows of 4 tokens\n");
    printf("%5s %6s %8s %6s %9s %8s %10s %10s\n", "seqs", "tokens", "behind", "ratio", "attend us",
           "TFLOP/s", "select us", "compress us");
    for (const struct compressed_case &c : real)
        if (!b.tiny)
            compressed_row(c);
    for (const struct compressed_case &c : tiny)
        if (b.tiny)
            compressed_row(c);
    printf("%6s %9s %7s %9s %7s  of hyper-connections\n", "rows", "read us", "GB/s", "write us",
           "GB/s");
    for (int n : {1, 64, 2048})
        if (!b.tiny || n == 1)
            compressed_hyper(n);
}

#endif
