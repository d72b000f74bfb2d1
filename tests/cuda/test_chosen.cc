/* SPDX-License-Identifier: MIT
 * Attention over blocks of positions that each key head chooses, on a GPU, src/cuda/attention. What
 * an index of blocks chooses: against a sort of scores in double, exactly where all sums are whole
 * numbers, ties among them, and within rounding elsewhere; the same in any steps, with hardly any
 * room. Attention over it must have the bits of attention over the same rows side by side, each key
 * head by itself, and of rows that see all those of dense attention. Bounds of pages are those of
 * the stored keys, and pages are chosen as in double, within rounding. Whatever no row may see is
 * NaN. Runs in the simulator or on a GPU.
 */
#include "attention_scene.h"
#include "cuda/cuda.h"

#include <stdlib.h>

#ifdef SL_CUDA_SIM
#include "sim.h"
#endif

/* ---------------------------------------------------------------- attention */

struct blocks {
    scene s;
    int block, n_top;

    int place(int pos) const
    {
        return pos / block < n_top ? pos : (n_top - 1) * block + pos % block;
    }
    /* Blocks of a key head, in ascending order: its own, and those with the smallest numbers. */
    std::vector<int32_t> chosen(int seq, int pos, int head) const
    {
        const int own = pos / block;
        std::vector<int32_t> all;
        for (int i = 0; i < own; i++)
            all.push_back(i);
        if (own >= n_top) {
            std::stable_sort(all.begin(), all.end(), [&](int a, int b) {
                return mix(s.key(4, seq, pos, head) + (uint64_t)a) <
                       mix(s.key(4, seq, pos, head) + (uint64_t)b);
            });
            all.resize((size_t)n_top - 1);
            std::sort(all.begin(), all.end());
        }
        all.push_back(own);
        return all;
    }
};

static blocks make_blocks(int hd, int nq, int nkv, int bs, int block, int n_top,
                          std::vector<int> lens, uint64_t seed, enum sl_dtype format)
{
    blocks x = {{hd, nq, nkv, bs, 0, 0.0f, false, lens, seed}, block, n_top};
    x.s.format = format;
    return x;
}

/* Rows without gaps, as the operation wants them. */
static std::vector<float> queries_of(const scene &s, const inputs &in)
{
    std::vector<float> q;
    const size_t width = (size_t)(s.nq * s.hd);
    for (size_t t = 0; t < (size_t)in.n_tokens; t++)
        q.insert(q.end(), in.q.begin() + (long)(t * (width + ROW_PAD)),
                 in.q.begin() + (long)(t * (width + ROW_PAD) + width));
    return q;
}

/* top empty: dense. room_tokens: that there is room for. Rows of padding are left out. */
static rows_of attend(const blocks &x, const inputs &in, const std::vector<span_of> &spans,
                      const std::vector<int32_t> &top, int n_sms, int layers, int room_tokens)
{
    const scene &s = x.s;
    const int width = s.nq * s.hd, n = in.n_tokens, n_rows = n * s.nkv;
    device d(n_sms);
    dev<uint8_t> pool(in.pages.pool);
    dev<struct sl_span> dspans(in.spans);
    dev<int32_t> tables(in.tables), positions(in.positions), dtop(top);
    dev<float> q(queries_of(s, in));
    dev<uint16_t> out(std::vector<uint16_t>((size_t)(n * width), 0x4242));
    const size_t one = sl_chosen_room(s.nkv, x.n_top, x.block, s.bs);
    dev<uint8_t> room(anything(one * (size_t)room_tokens));
    struct sl_cuda_attention_limits limits = {n, (int)spans.size(), 20000, s.nq, s.nkv, s.hd};
    struct sl_cuda_attention_limits rows = {n_rows,       n_rows, x.n_top * x.block,
                                            s.nq / s.nkv, 1,      s.hd};
    dev<uint8_t> workspace(anything(sl_cuda_attention_workspace(&d.cu, &limits)));
    dev<uint8_t> chosen(anything(sl_cuda_attention_workspace(&d.cu, &rows)));
    d.cu.workspace = workspace.p;
    d.cu.workspace_bytes = workspace.n;
    d.cu.chosen.workspace = chosen.p;
    d.cu.chosen.workspace_bytes = chosen.n;
    struct sl_batch b = {};
    b.n_tokens = n, b.n_spans = (int)spans.size();
    b.positions = positions.p, b.spans = dspans.p, b.block_tables = tables.p;
    struct sl_op_sparse_attention op = {};
    op.all = make_op(s, in.pages);
    op.all.batch = &b;
    op.all.q = q.p;
    op.all.ld_q = op.all.ld_out = width;
    op.all.kv.pool = pool.p;
    op.all.out = out.p;
    op.top = dtop.p, op.top_k = x.n_top, op.block = x.block;
    op.room = room.p, op.room_bytes = room.n;
    sl_cuda_attention_plan(&d.cu, &b, s.nq, s.nkv, s.hd, false);
    for (int i = 0; i < layers; i++) {
        if (top.empty() || i % 2 != 0) /* layers take turns */
            sl_cuda_attention(&d.cu.base, &op.all);
        if (!top.empty())
            sl_cuda_sparse_attention(&d.cu.base, &op);
    }
    CHECK(cudaStreamSynchronize(d.cu.stream) == cudaSuccess && d.cu.error == cudaSuccess, "%s",
          d.cu.error_what ? d.cu.error_what : "synchronize");
    n_runs++;
    rows_of all;
    const std::vector<uint16_t> got = out.get();
    const uint16_t *row = got.data();
    for (const span_of &span : spans)
        for (int t = 0; t < span.n; t++, row += width)
            if (span.seq >= 0)
                all.emplace_back(row, row + width);
    return all;
}

static rows_of run_blocks(const blocks &x, const std::vector<span_of> &spans, int n_sms,
                          int layers = 1, int room_tokens = 1000)
{
    const inputs in = make_inputs(x.s, spans);
    std::vector<int32_t> top;
    for (const span_of &span : spans)
        for (int t = 0; t < span.n; t++)
            for (int h = 0; h < x.s.nkv; h++) {
                const int pos = span.pos + t;
                if (span.seq < 0 || pos / x.block < x.n_top) /* undefined */
                    top.insert(top.end(), (size_t)x.n_top, 0x7FFFFFFF);
                else
                    for (int32_t i : x.chosen(span.seq, pos, h))
                        top.push_back(i);
            }
    return attend(x, in, spans, top, n_sms, layers, room_tokens);
}

/* Dense attention of a key head's queries over the rows that it has chosen, as if these were all.
 */
static std::vector<uint16_t> run_compact(const blocks &x, int seq, int pos, int head)
{
    const int group = x.s.nq / x.s.nkv, n = x.place(pos) + 1, hd = x.s.hd;
    const std::vector<int32_t> top = x.chosen(seq, pos, head);
    blocks small = x;
    small.s.nq = group, small.s.nkv = 1;
    small.s.lens = {n};
    small.s.odd_key = -1;
    const std::vector<span_of> spans = {{0, n - 1, 1}};
    inputs in = make_inputs(small.s, spans);
    for (int i = 0; i < n; i++) {
        const int from = top[(size_t)(i / x.block)] * x.block + i % x.block;
        std::vector<float> k((size_t)x.s.dim()), v((size_t)x.s.dim());
        for (int d = 0; d < hd; d++) {
            k[(size_t)d] = x.s.k(seq, from, head, d);
            v[(size_t)d] = x.s.v(seq, from, head, d);
        }
        uint8_t *page = in.pages.pool.data() +
                        (size_t)in.pages.table[0][(size_t)(i / x.s.bs)] * in.pages.page_bytes;
        put_row(small.s, page + in.pages.k_offset, 0, i, k);
        put_row(small.s, page + in.pages.v_offset, 0, i, v);
    }
    for (int c = 0; c < group * hd; c++)
        in.q[(size_t)c] = x.s.q(seq, pos, head * group + c / hd, c % hd);
    return attend(small, in, spans, {}, 3, 1, 1)[0];
}

static bool same(const uint16_t *a, const uint16_t *b, size_t n)
{
    n_rows_compared++;
    return memcmp(a, b, n * 2) == 0;
}

/* The last n rows of each sequence: at once, in turns, one by one, beside padding, and the oracle.
 */
static void check_attention(const blocks &x, int n, int every)
{
    std::vector<span_of> whole, ones;
    for (size_t i = 0; i < x.s.lens.size(); i++) {
        const int len = x.s.lens[i], m = std::min(n, len);
        whole.push_back({(int)i, len - m, m});
        ones.push_back({(int)i, len - 1, 1});
    }
    const rows_of all = run_blocks(x, whole, 3);
    const size_t part = (size_t)(x.s.nq / x.s.nkv * x.s.hd);
    size_t at = 0;
    for (size_t i = 0; i < whole.size(); i++)
        for (int t = 0; t < whole[i].n; t++, at++)
            for (int h = 0; h < x.s.nkv && (t % every == 0 || t + 1 == whole[i].n); h++) {
                const int pos = whole[i].pos + t;
                const std::vector<uint16_t> want = run_compact(x, (int)i, pos, h);
                CHECK(same(&all[at][(size_t)h * part], want.data(), part),
                      "seq %zu pos %d head %d, %d blocks of %d", i, pos, h, x.n_top, x.block);
            }
    CHECK(run_blocks(x, whole, 2, 3) == all, "layers in turns");
    CHECK(run_blocks(x, whole, 2, 2, 2) == all, "room for two tokens");
    n_rows_compared += 2 * (long)all.size();
    const rows_of last = run_blocks(x, ones, 40, 3);
    std::vector<span_of> padded = ones;
    padded.push_back({-1, 0, 1});
    const rows_of with = run_blocks(x, padded, 1);
    at = 0;
    for (size_t i = 0; i < whole.size(); i++) {
        at += (size_t)whole[i].n;
        CHECK(last[i] == all[at - 1], "a decode of seq %zu", i);
        CHECK(with[i] == all[at - 1], "a padded decode of seq %zu", i);
        n_rows_compared += 2;
    }
}

/* Rows that see all have the bits of dense attention, of all heads at once. */
static void check_dense(const blocks &x)
{
    std::vector<span_of> spans;
    for (size_t i = 0; i < x.s.lens.size(); i++)
        spans.push_back({(int)i, 0, std::min(x.s.lens[i], x.n_top * x.block)});
    const rows_of some = run_blocks(x, spans, 4),
                  all = attend(x, make_inputs(x.s, spans), spans, {}, 4, 1, 1);
    n_rows_compared += (long)all.size();
    CHECK(some == all, "rows that see all");
}

static void test_attention()
{
    for (enum sl_dtype f : {SL_DTYPE_BF16, SL_DTYPE_F16, SL_DTYPE_FP8_E4M3}) {
        check_attention(make_blocks(32, 6, 2, 16, 16, 3, {100, 47, 48, 49, 5}, 1, f), 5, 2);
        check_attention(make_blocks(64, 4, 1, 64, 16, 4, {150, 64}, 2, f), 3, 2);
        check_attention(make_blocks(24, 4, 2, 16, 64, 2, {300}, 3, f), 3, 2);
    }
    check_attention(make_blocks(128, 16, 2, 48, 32, 3, {201}, 4, SL_DTYPE_BF16), 2, 1);
    check_attention(make_blocks(32, 40, 2, 32, 32, 2, {130}, 5, SL_DTYPE_BF16), 1, 1);
    check_dense(make_blocks(32, 4, 2, 32, 16, 4, {64, 30}, 6, SL_DTYPE_BF16));
#ifndef SL_CUDA_SIM
    check_attention(make_blocks(128, 64, 4, 64, 128, 16, {9000, 2048, 2049}, 7, SL_DTYPE_BF16), 9,
                    4);
    check_attention(make_blocks(128, 64, 4, 16, 128, 16, {12000}, 8, SL_DTYPE_FP8_E4M3), 3, 1);
    check_attention(make_blocks(128, 32, 8, 64, 64, 100, {9000}, 9, SL_DTYPE_BF16), 2, 1);
#endif
}

/* ---------------------------------------------------------------- the choice */

/* An index of one sequence. whole: all numbers are small and whole, so that every sum is exact. */
struct index_case {
    int n_heads, dim, block, top_k, n_local, bs, len;
    uint64_t seed;
    bool whole;

    float some(int what, int pos, int i) const
    {
        const uint64_t key = ((seed * 8 + (uint64_t)what) * 65536 + (uint64_t)pos) * 65536;
        if (whole)
            return (float)(int)(mix(key + (uint64_t)i) % 5) - 2.0f;
        return from_bf16(to_bf16(normal(key + (uint64_t)i)));
    }
    float q(int pos, int head, int d) const
    {
        return some(0, pos, head * dim + d);
    }
    float k(int pos, int d) const
    {
        return whole ? some(1, pos % (3 * block), d) : some(1, pos, d); /* some blocks are equal */
    }
    /* Scores of the blocks of a head of the row at pos. */
    std::vector<double> scores(int pos, int head, const std::vector<float> &keys) const
    {
        std::vector<double> all((size_t)(pos / block + 1), -INFINITY);
        std::vector<float> query;
        for (int d = 0; d < dim; d++)
            query.push_back(q(pos, head, d));
        for (int key = 0; key <= pos; key++) {
            double dot = 0;
            for (int d = 0; d < dim; d++)
                dot += (double)query[(size_t)d] * (double)keys[(size_t)(key * dim + d)];
            all[(size_t)(key / block)] = std::max(all[(size_t)(key / block)], dot);
        }
        for (int i = 0; i < n_local; i++)
            all[all.size() - 1 - (size_t)i] = INFINITY;
        return all;
    }
};

static inputs step_of(const std::vector<span_of> &spans, const pages_of &p, int bs)
{
    inputs in;
    for (const span_of &x : spans) {
        in.spans.push_back({in.n_tokens, x.n, x.pos, (int32_t)in.tables.size(), 0});
        for (int i = 0; i < (x.pos + x.n + bs - 1) / bs; i++)
            in.tables.push_back(x.seq < 0 ? 0 : p.table[0][(size_t)i]);
        for (int i = 0; i < x.n; i++)
            in.positions.push_back(x.pos + i);
        in.n_tokens += x.n;
    }
    return in;
}

/* [rows][n_heads * top_k] of spans of the sequence, some of them padding; rows_of_scores: that
 * there is room for. */
static std::vector<std::vector<int32_t>> choose(const index_case &x,
                                                const std::vector<span_of> &spans, int n_sms,
                                                int rows_of_scores)
{
    scene s = {x.dim, 1, 1, x.bs, 0, 0.0f, false, {x.len}, x.seed};
    pages_of p = make_pages(s, {0}); /* all is NaN */
    const inputs in = step_of(spans, p, x.bs);
    for (int pos = 0; pos < x.len; pos++) {
        std::vector<float> k((size_t)s.dim());
        for (int d = 0; d < x.dim; d++)
            k[(size_t)d] = x.k(pos, d);
        put_row(
            s, p.pool.data() + (size_t)p.table[0][(size_t)(pos / x.bs)] * p.page_bytes + p.k_offset,
            0, pos, k);
    }
    std::vector<uint16_t> q; /* in the first half of floats' place */
    for (const span_of &span : spans)
        for (int t = 0; t < span.n; t++)
            for (int h = 0; h < x.n_heads; h++) {
                for (int d = 0; d < x.dim; d++)
                    q.push_back(to_bf16(x.q(span.pos + t, h, d)));
                q.insert(q.end(), (size_t)(x.dim % 8), 0); /* zeros up to eight values */
                q.insert(q.end(), (size_t)(x.dim - x.dim % 8), 0x7FC0);
            }
    const int n_most = x.len + 100, width = x.n_heads * x.top_k;
    const int64_t ld = sl_index_block_scores(n_most, x.block, x.n_heads);
    device d(n_sms);
    dev<uint8_t> pool(p.pool);
    dev<struct sl_span> dspans(in.spans);
    dev<int32_t> tables(in.tables), positions(in.positions);
    dev<int32_t> top(std::vector<int32_t>((size_t)(in.n_tokens * width), -1));
    dev<uint16_t> dq(q);
    dev<float> scores((size_t)(rows_of_scores * ld));
    struct sl_batch b = {};
    b.n_tokens = in.n_tokens, b.n_spans = (int)spans.size();
    b.positions = positions.p, b.spans = dspans.p, b.block_tables = tables.p;
    struct sl_op_index_select op = {};
    op.batch = &b;
    op.q = (const float *)dq.p;
    op.n_heads = x.n_heads, op.dim = x.dim, op.top_k = x.top_k, op.n_most = n_most;
    op.block = x.block, op.n_local = x.n_local;
    op.kv.pool = pool.p, op.kv.page_bytes = p.page_bytes, op.kv.k_offset = p.k_offset;
    op.kv.dtype = SL_DTYPE_BF16, op.kv.block_size = x.bs;
    op.scores = scores.p, op.n_scores = (int64_t)scores.n, op.top = top.p;
    sl_cuda_index_select(&d.cu.base, &op);
    CHECK(cudaStreamSynchronize(d.cu.stream) == cudaSuccess && d.cu.error == cudaSuccess, "%s",
          d.cu.error_what ? d.cu.error_what : "synchronize");
    n_runs++;
    const std::vector<int32_t> got = top.get();
    std::vector<std::vector<int32_t>> rows;
    size_t at = 0;
    for (const span_of &span : spans)
        for (int t = 0; t < span.n; t++, at++)
            if (span.seq >= 0)
                rows.emplace_back(got.begin() + (long)at * width,
                                  got.begin() + (long)(at + 1) * width);
    return rows;
}

static void check_head(const index_case &x, int pos, int head, const std::vector<double> &scores,
                       const int32_t *got)
{
    std::vector<std::pair<double, int>> sorted;
    for (int i = 0; i < (int)scores.size(); i++) /* of equal scores the lower block first */
        sorted.push_back({-scores[(size_t)i], i});
    std::sort(sorted.begin(), sorted.end());
    const double least = -sorted[(size_t)x.top_k - 1].first, near = x.whole ? 0 : 1e-3;
    std::vector<bool> in(scores.size(), false);
    for (int i = 0; i < x.top_k; i++) {
        CHECK(got[i] >= 0 && got[i] <= pos / x.block && (i == 0 || got[i] > got[i - 1]),
              "order at %d", i);
        if (got[i] < 0 || got[i] > pos / x.block)
            return;
        in[(size_t)got[i]] = true;
    }
    for (size_t i = 0; i < scores.size(); i++) {
        const bool wanted =
            std::pair<double, int>(-scores[i], (int)i) <= sorted[(size_t)x.top_k - 1];
        CHECK(in[i] == wanted || (!x.whole && fabs(scores[i] - least) <= near),
              "%d queries of %d, row %d, head %d: block %zu, score %g, least %g", x.n_heads, x.dim,
              pos, head, i, scores[i], least);
    }
}

static void check_choice(const index_case &x, const std::vector<float> &keys, int pos,
                         const std::vector<int32_t> &got)
{
    n_rows_checked++;
    for (int h = 0; h < x.n_heads; h++) {
        const int32_t *mine = &got[(size_t)(h * x.top_k)];
        if (pos / x.block >= x.top_k)
            check_head(x, pos, h, x.scores(pos, h, keys), mine);
        for (int i = 0; i < x.top_k && pos / x.block < x.top_k; i++)
            CHECK(mine[i] == -1, "a row at %d has chosen", pos);
    }
}

static void check_index(const index_case &x, int from, int every)
{
    const std::vector<span_of> whole = {{0, from, x.len - from}};
    std::vector<float> keys;
    for (int pos = 0; pos < x.len; pos++)
        for (int d = 0; d < x.dim; d++)
            keys.push_back(x.k(pos, d));
    const auto all = choose(x, whole, 3, x.len - from);
    for (int t = 0; t < (int)all.size(); t++)
        if (t % every == 0 || t + 1 == (int)all.size())
            check_choice(x, keys, from + t, all[(size_t)t]);
    CHECK(choose(x, whole, 1, 1) == all, "room for a row");
    CHECK(choose(x, whole, 2, 7) == all, "room for seven rows");
    std::vector<span_of> parts; /* many spans of the sequence, with padding */
    for (int pos = from, n = 1; pos < x.len; pos += n, n = n % 5 + 1) {
        parts.push_back({0, pos, std::min(n, x.len - pos)});
        if (parts.size() == 3)
            parts.push_back({-1, 0, 1});
    }
    CHECK(choose(x, parts, 5, 64) == all, "in parts");
    std::vector<span_of> ones;
    for (int pos = std::max(from, x.len - 6); pos < x.len; pos++)
        ones.push_back({0, pos, 1});
    const auto last = choose(x, ones, 4, 64);
    CHECK(std::equal(last.begin(), last.end(), all.end() - (long)last.size()), "decodes");
    n_rows_compared += 3 * (long)all.size() + (long)last.size();
}

static void test_index()
{
    check_index({2, 24, 16, 2, 1, 16, 130, 1, true}, 0, 1);
    check_index({2, 24, 16, 3, 2, 64, 130, 2, false}, 0, 1);
    check_index({4, 128, 32, 4, 1, 16, 400, 3, true}, 330, 3);
    check_index({4, 128, 128, 2, 1, 64, 600, 4, false}, 580, 3);
    check_index({1, 64, 64, 3, 3, 32, 420, 5, true}, 400, 3);
    check_index({12, 20, 16, 5, 1, 16, 200, 6, true}, 150, 7);
    check_index({40, 40, 256, 1, 1, 16, 800, 7, true}, 790, 3);
#ifndef SL_CUDA_SIM
    check_index({4, 128, 128, 16, 1, 64, 9000, 8, false}, 8980, 9);
    check_index({4, 128, 16, 100, 1, 16, 50000, 9, true}, 49996, 2);
#endif
}

/* ---------------------------------------------------------------- pages by their bounds */

/* The pages of a scene with a place for bounds behind each. */
struct bounded_pages {
    pages_of p;
    size_t bounds_at;
};

static bounded_pages with_bounds(const scene &s, const pages_of &p)
{
    bounded_pages x = {p, p.page_bytes};
    const size_t n = sl_page_bounds_bytes(s.format, s.nkv, s.hd),
                 n_pages = p.pool.size() / p.page_bytes;
    x.p.page_bytes += n;
    x.p.pool.assign(n_pages * x.p.page_bytes, 0xFF);
    for (size_t i = 0; i < n_pages; i++)
        memcpy(&x.p.pool[i * x.p.page_bytes], &p.pool[i * p.page_bytes], p.page_bytes);
    return x;
}

/* A bound of a page, as it lies there: which 0 is the upper one. */
static double bound_of(const scene &s, const bounded_pages &x, const std::vector<uint8_t> &pool,
                       int seq, int page, int head, int which, int d)
{
    uint16_t u;
    memcpy(&u,
           &pool[(size_t)x.p.table[(size_t)seq][(size_t)page] * x.p.page_bytes + x.bounds_at +
                 (size_t)((head * 2 + which) * s.dim() + d) * 2],
           2);
    return (double)from_bf16(u);
}

static void check_bounds(const scene &s, const bounded_pages &x, const std::vector<uint8_t> &pool,
                         int seq, int page)
{
    for (int h = 0; h < s.nkv; h++) {
        std::vector<float> most((size_t)s.dim(), -INFINITY), least((size_t)s.dim(), INFINITY);
        for (int pos = page * s.bs; pos < (page + 1) * s.bs; pos++) {
            std::vector<float> k((size_t)s.dim());
            for (int d = 0; d < s.hd; d++)
                k[(size_t)d] = s.k(seq, pos, h, d);
            if (s.format == SL_DTYPE_FP8_E4M3)
                k = fp8_values(k);
            for (size_t d = 0; d < k.size(); d++) {
                most[d] = fmaxf(most[d], k[d]);
                least[d] = fminf(least[d], k[d]);
            }
        }
        for (int d = 0; d < s.dim(); d++) {
            const float quarter = 0.25f * (most[(size_t)d] - least[(size_t)d]);
            const float want[] = {most[(size_t)d] - quarter, least[(size_t)d] + quarter};
            for (int which = 0; which < 2; which++) {
                const double have = bound_of(s, x, pool, seq, page, h, which, d);
                CHECK(have == (double)from_bf16(to_bf16(want[which])),
                      "bound %d of page %d, head %d, dimension %d: %g, not %g", which, page, h, d,
                      have, (double)want[which]);
            }
        }
    }
}

/* What a row has chosen of the pages between the first and the last ones, by bounds in double. */
static void check_pages(const blocks &x, const bounded_pages &on, const std::vector<uint8_t> &pool,
                        int seq, int pos, int head, const int32_t *got)
{
    const int n = pos / x.block + 1, group = x.s.nq / x.s.nkv;
    std::vector<std::pair<double, int>> all;
    std::vector<bool> in((size_t)n, false);
    for (int page = SL_TOP_PAGES_FIRST; page < n - SL_TOP_PAGES_LAST; page++) {
        double best = -INFINITY;
        for (int q = head * group; q < (head + 1) * group; q++) {
            double sum = 0;
            for (int d = 0; d < x.s.hd; d++) {
                const double v = (double)from_bf16(to_bf16(x.s.q(seq, pos, q, d)));
                sum += v * bound_of(x.s, on, pool, seq, page, head, v > 0 ? 0 : 1, d);
            }
            best = std::max(best, sum);
        }
        all.push_back({-best, page});
    }
    std::vector<std::pair<double, int>> sorted = all;
    std::sort(sorted.begin(), sorted.end());
    const size_t middle = (size_t)(x.n_top - SL_TOP_PAGES_FIRST - SL_TOP_PAGES_LAST);
    for (int i = 0; i < x.n_top; i++) {
        CHECK(got[i] >= 0 && got[i] < n && (i == 0 || got[i] > got[i - 1]), "order at %d", i);
        if (got[i] < 0 || got[i] >= n)
            return;
        in[(size_t)got[i]] = true;
    }
    CHECK(in[0] && got[x.n_top - SL_TOP_PAGES_LAST] == n - SL_TOP_PAGES_LAST, "the ends");
    for (const auto &page : all)
        CHECK(in[(size_t)page.second] == (page <= sorted[middle - 1]) ||
                  fabs(page.first - sorted[middle - 1].first) <= 1e-3,
              "seq %d pos %d head %d: page %d, %g, least %g", seq, pos, head, page.second,
              -page.first, -sorted[middle - 1].first);
    n_rows_checked++;
}

/* A step; room: that of the operation, where lists of all rows lie behind their ids. Bounds are
 * made by a step of all that was written. */
static rows_of run_pages(const blocks &x, const std::vector<span_of> &spans, int n_sms,
                         int room_tokens, bool check)
{
    const scene &s = x.s;
    inputs in = make_inputs(s, spans), before;
    const bounded_pages on = with_bounds(s, in.pages);
    const int width = s.nq * s.hd, n = in.n_tokens, n_rows = n * s.nkv, n_most = 2000;
    for (size_t i = 0; i < s.lens.size(); i++) {
        before.spans.push_back({before.n_tokens, s.lens[i], 0, (int32_t)before.tables.size(), 0});
        before.tables.insert(before.tables.end(), on.p.table[i].begin(), on.p.table[i].end());
        for (int pos = 0; pos < s.lens[i]; pos++)
            before.positions.push_back(pos);
        before.n_tokens += s.lens[i];
    }
    device d(n_sms);
    dev<uint8_t> pool(on.p.pool);
    dev<struct sl_span> spans0(before.spans), spans1(in.spans);
    dev<int32_t> tables0(before.tables), positions0(before.positions);
    dev<int32_t> tables1(in.tables), positions1(in.positions);
    dev<float> q(queries_of(s, in));
    dev<uint16_t> out(std::vector<uint16_t>((size_t)(n * width), 0x4242));
    const size_t ids = sl_chosen_room(s.nkv, x.n_top, s.bs, s.bs);
    const size_t one = ids + sl_page_room(s.nkv, x.n_top, (n_most + s.bs - 1) / s.bs);
    dev<uint8_t> room(anything(one * (size_t)room_tokens));
    struct sl_cuda_attention_limits limits = {
        before.n_tokens + n, before.n_tokens + n, 20000, s.nq, s.nkv, s.hd};
    struct sl_cuda_attention_limits rows = {n_rows, n_rows, 2000, s.nq / s.nkv, 1, s.hd};
    dev<uint8_t> workspace(anything(sl_cuda_attention_workspace(&d.cu, &limits)));
    dev<uint8_t> chosen(anything(sl_cuda_attention_workspace(&d.cu, &rows)));
    d.cu.workspace = workspace.p;
    d.cu.workspace_bytes = workspace.n;
    d.cu.chosen.workspace = chosen.p;
    d.cu.chosen.workspace_bytes = chosen.n;
    struct sl_batch b0 = {}, b = {};
    b0.n_tokens = before.n_tokens, b0.n_spans = (int)before.spans.size();
    b0.positions = positions0.p, b0.spans = spans0.p, b0.block_tables = tables0.p;
    b.n_tokens = n, b.n_spans = (int)spans.size();
    b.positions = positions1.p, b.spans = spans1.p, b.block_tables = tables1.p;
    struct sl_op_page_bounds bounds = {};
    bounds.batch = &b0;
    bounds.n_kv_heads = s.nkv, bounds.head_dim = s.hd, bounds.bounds_offset = on.bounds_at;
    struct sl_op_page_attention op = {};
    op.all = make_op(s, on.p);
    op.all.batch = &b;
    op.all.q = q.p, op.all.out = out.p;
    op.all.ld_q = op.all.ld_out = width;
    op.all.kv.pool = pool.p;
    bounds.kv = op.all.kv;
    op.top_pages = x.n_top, op.bounds_offset = on.bounds_at, op.n_most = n_most;
    op.room = room.p, op.room_bytes = room.n;
    sl_cuda_attention_plan(&d.cu, &b0, s.nq, s.nkv, s.hd, false);
    sl_cuda_page_bounds(&d.cu.base, &bounds);
    sl_cuda_attention_plan(&d.cu, &b, s.nq, s.nkv, s.hd, false);
    sl_cuda_page_attention(&d.cu.base, &op);
    CHECK(cudaStreamSynchronize(d.cu.stream) == cudaSuccess && d.cu.error == cudaSuccess, "%s",
          d.cu.error_what ? d.cu.error_what : "synchronize");
    n_runs++;
    const std::vector<uint8_t> after = pool.get(), lists = room.get();
    std::vector<int32_t> top((size_t)(n_rows * x.n_top));
    memcpy(top.data(), &lists[(size_t)n * ids], check ? top.size() * 4 : 0);
    rows_of all;
    const std::vector<uint16_t> got = out.get();
    size_t row = 0;
    for (const span_of &span : spans)
        for (int t = 0; t < span.n; t++, row++) {
            if (span.seq < 0)
                continue;
            all.emplace_back(got.begin() + (long)row * width,
                             got.begin() + (long)(row + 1) * width);
            for (int h = 0; check && h < s.nkv && (span.pos + t) / s.bs >= x.n_top; h++)
                check_pages(x, on, after, span.seq, span.pos + t, h,
                            &top[(row * (size_t)s.nkv + (size_t)h) * (size_t)x.n_top]);
        }
    for (size_t i = 0; check && i < s.lens.size(); i++)
        for (int page = 0; page < s.lens[i] / s.bs; page++)
            check_bounds(s, on, after, (int)i, page);
    if (check) { /* attention: that over blocks, which has an oracle, by the same lists */
        CHECK(attend(x, in, spans, top, 2, 1, n) == all, "attention over what was chosen");
        n_rows_compared += (long)all.size();
    }
    return all;
}

static void check_by_bounds(const blocks &x, int n)
{
    std::vector<span_of> spans, ones;
    for (size_t i = 0; i < x.s.lens.size(); i++) {
        const int m = std::min(n, x.s.lens[i]);
        spans.push_back({(int)i, x.s.lens[i] - m, m});
        ones.push_back({(int)i, x.s.lens[i] - 1, 1});
    }
    const rows_of all = run_pages(x, spans, 3, 1000, true);
    CHECK(run_pages(x, spans, 2, 2, false) == all, "room for two tokens");
    ones.push_back({-1, 0, 1});
    const rows_of last = run_pages(x, ones, 5, 1000, false);
    size_t at = 0;
    for (size_t i = 0; i < spans.size(); i++) {
        at += (size_t)spans[i].n;
        CHECK(last[i] == all[at - 1], "a decode of seq %zu", i);
    }
    n_rows_compared += (long)(all.size() + last.size());
}

static void test_pages()
{
    for (enum sl_dtype f : {SL_DTYPE_BF16, SL_DTYPE_F16, SL_DTYPE_FP8_E4M3}) {
        check_by_bounds(make_blocks(32, 6, 2, 16, 16, 8, {230, 128, 129, 40}, 11, f), 5);
        check_by_bounds(make_blocks(80, 3, 1, 32, 32, 9, {400}, 12, f), 3);
    }
    check_by_bounds(make_blocks(128, 24, 2, 16, 16, 10, {300}, 13, SL_DTYPE_BF16), 2);
    check_by_bounds(make_blocks(256, 4, 1, 16, 16, 8, {200}, 14, SL_DTYPE_BF16), 2);
}

static void part(const char *name, void (*test)())
{
    printf("%s\n", name);
    test();
}

int main()
{
    setvbuf(stdout, nullptr, _IOLBF, 0);
    part("index", test_index);
    part("attention", test_attention);
    part("pages", test_pages);
    printf("%ld rows checked, %ld compared bit for bit, in %ld runs: %d failures\n", n_rows_checked,
           n_rows_compared, n_runs, n_failures);
    return n_failures != 0;
}
