/* SPDX-License-Identifier: MIT
 * Sparse attention by an index on a GPU, src/cuda/attention. The index: its keys and queries
 * against double; what it chooses against a sort, exactly where all sums are whole numbers, ties
 * among them, and within rounding elsewhere; the same choice in any steps and with hardly any room.
 * Attention over chosen rows must have the bits of attention over the same rows side by side, and
 * of rows that see all those of latent attention. Whatever no row may see is NaN. Runs in the
 * simulator or on a GPU.
 */
#include "attention_scene.h"
#include "cuda/cuda.h"

#include <stdlib.h>

#ifdef SL_CUDA_SIM
#include "sim.h"
#endif

/* ---------------------------------------------------------------- attention over chosen rows */

/* scene: keys of one head. Rows of the result have nq * v values. */
struct sparse {
    scene s;
    int v, top_k;
};

static sparse make_sparse(int rank, int rope, int nq, int bs, int top_k, std::vector<int> lens,
                          uint64_t seed, enum sl_dtype format)
{
    sparse x = {{rank + rope, nq, 1, bs, 0, 0.0f, false, lens, seed}, rank, top_k};
    x.s.format = format;
    return x;
}

/* top_k positions up to pos, of more, in ascending order: those whose number is the smallest. */
static std::vector<int32_t> chosen_of(const sparse &x, int seq, int pos)
{
    std::vector<int32_t> all;
    for (int i = 0; i <= pos; i++)
        all.push_back(i);
    std::stable_sort(all.begin(), all.end(), [&](int a, int b) {
        return mix(x.s.key(4, seq, pos, a % 7) + (uint64_t)a) <
               mix(x.s.key(4, seq, pos, b % 7) + (uint64_t)b);
    });
    all.resize((size_t)x.top_k);
    std::sort(all.begin(), all.end());
    return all;
}

/* top empty: dense. */
static rows_of attend(const sparse &x, const inputs &in, const std::vector<span_of> &spans,
                      const std::vector<int32_t> &top, int n_sms, int layers)
{
    const scene &s = x.s;
    const int n_spans = (int)spans.size(), width = s.nq * x.v + ROW_PAD;
    device d(n_sms);
    dev<uint8_t> pool(in.pages.pool);
    dev<struct sl_span> dspans(in.spans), room((size_t)in.n_tokens);
    dev<int32_t> tables(in.tables), positions(in.positions), dtop(top);
    dev<float> q(in.q);
    dev<uint16_t> out(std::vector<uint16_t>((size_t)(in.n_tokens * width), 0x4242));
    struct sl_cuda_attention_limits limits = {in.n_tokens, in.n_tokens, x.top_k, s.nq, 0, s.hd};
    dev<uint8_t> workspace(anything(sl_cuda_attention_workspace(&d.cu, &limits)));
    d.cu.workspace = workspace.p;
    d.cu.workspace_bytes = workspace.n;
    struct sl_batch b = {};
    b.n_tokens = in.n_tokens, b.n_spans = n_spans;
    b.positions = positions.p, b.spans = dspans.p, b.block_tables = tables.p;
    struct sl_op_sparse_attention op = {};
    op.all = make_op(s, in.pages);
    op.all.batch = &b;
    op.all.q = q.p;
    op.all.v_dim = x.v;
    op.all.v_in_k = true;
    op.all.ld_out = width;
    op.all.kv.pool = pool.p;
    op.all.out = out.p;
    op.top = dtop.p, op.top_k = x.top_k;
    op.room = room.p, op.room_bytes = room.n * sizeof(struct sl_span);
    sl_cuda_attention_plan(&d.cu, &b, s.nq, 0, s.hd, false);
    for (int i = 0; i < layers; i++) {
        if (top.empty())
            sl_cuda_attention(&d.cu.base, &op.all);
        else
            sl_cuda_sparse_attention(&d.cu.base, &op);
    }
    CHECK(cudaStreamSynchronize(d.cu.stream) == cudaSuccess && d.cu.error == cudaSuccess, "%s",
          d.cu.error_what ? d.cu.error_what : "synchronize");
    n_runs++;
    scene of = s; /* rows as wide as the result's */
    of.hd = x.v;
    return read_rows(of, spans, out.get());
}

static rows_of run_sparse(const sparse &x, const std::vector<span_of> &spans, int n_sms,
                          int layers = 1)
{
    const inputs in = make_inputs(x.s, spans);
    std::vector<int32_t> top;
    for (const span_of &span : spans)
        for (int i = 0; i < span.n; i++) {
            const int pos = span.pos + i;
            if (span.seq < 0 || pos < x.top_k) /* undefined */
                top.insert(top.end(), (size_t)x.top_k, 0x7FFFFFFF);
            else
                for (int32_t p : chosen_of(x, span.seq, pos))
                    top.push_back(p);
        }
    return attend(x, in, spans, top, n_sms, layers);
}

/* Splits of dense attention are shorter: the same bits up to here. */
static const int first_split = 512;

/* Attention of the row at pos over the rows that it has chosen, as if these were all: dense, or, of
 * several splits, as a row that sees all. */
static rows_of run_compact(const sparse &x, int seq, int pos)
{
    const std::vector<int32_t> top = chosen_of(x, seq, pos);
    sparse small = x;
    small.s.lens = {x.top_k};
    small.s.odd_key = -1;
    const std::vector<span_of> spans = {{0, x.top_k - 1, 1}};
    inputs in = make_inputs(small.s, spans);
    for (int i = 0; i < x.top_k; i++) {
        std::vector<float> k((size_t)x.s.dim());
        for (int d = 0; d < x.s.hd; d++)
            k[(size_t)d] = x.s.k(seq, top[(size_t)i], 0, d);
        uint8_t *page = in.pages.pool.data() +
                        (size_t)in.pages.table[0][(size_t)(i / x.s.bs)] * in.pages.page_bytes;
        put_row(x.s, page + in.pages.k_offset, 0, i, k);
    }
    for (int c = 0; c < x.s.nq * x.s.hd; c++)
        in.q[(size_t)c] = x.s.q(seq, pos, c / x.s.hd, c % x.s.hd);
    std::vector<int32_t> none;
    if (x.top_k > first_split)
        none.assign((size_t)x.top_k, 0x7FFFFFFF);
    return attend(small, in, spans, none, 3, 1);
}

static bool same(const std::vector<uint16_t> &a, const std::vector<uint16_t> &b)
{
    n_rows_compared++;
    return a.size() == b.size() && memcmp(a.data(), b.data(), a.size() * 2) == 0;
}

/* The last `n` rows of each sequence, at once, one by one, and the oracles. */
static void check_attention(const sparse &x, int n, int every)
{
    std::vector<span_of> whole, ones;
    std::vector<rows_of> dense;
    for (size_t i = 0; i < x.s.lens.size(); i++) {
        const int len = x.s.lens[i], m = std::min(n, len);
        whole.push_back({(int)i, len - m, m});
        ones.push_back({(int)i, len - 1, 1});
    }
    const rows_of all = run_sparse(x, whole, 3);
    sparse shorter = x;
    for (int &len : shorter.s.lens)
        len = std::min(len, x.top_k);
    size_t at = 0;
    for (size_t i = 0; i < whole.size(); i++)
        for (int t = 0; t < whole[i].n; t++, at++) {
            const int pos = whole[i].pos + t;
            if (t % every != 0 && t + 1 != whole[i].n)
                continue;
            if (pos >= x.top_k) {
                CHECK(same(all[at], run_compact(x, (int)i, pos)[0]), "seq %zu pos %d of %d", i, pos,
                      x.top_k);
                continue;
            }
            const std::vector<span_of> one = {{(int)i, pos, 1}};
            CHECK(pos >= first_split ||
                      same(all[at], attend(shorter, make_inputs(shorter.s, one), one, {}, 2, 1)[0]),
                  "dense: seq %zu pos %d of %d", i, pos, x.top_k);
        }
    const rows_of last = run_sparse(x, ones, 40, 3);
    std::vector<span_of> padded = ones;
    padded.push_back({-1, 0, 1});
    const rows_of with = run_sparse(x, padded, 1);
    at = 0;
    for (size_t i = 0; i < whole.size(); i++) {
        at += (size_t)whole[i].n;
        CHECK(same(last[i], all[at - 1]), "a decode of seq %zu", i);
        CHECK(same(with[i], all[at - 1]), "a padded decode of seq %zu", i);
    }
}

static void test_attention()
{
    const enum sl_dtype formats[] = {SL_DTYPE_BF16, SL_DTYPE_F16, SL_DTYPE_FP8_E4M3};
    for (enum sl_dtype f : formats) {
        check_attention(make_sparse(24, 8, 4, 16, 24, {40, 3, 24, 25, 130}, 1, f), 9, 2);
        check_attention(make_sparse(64, 16, 20, 32, 70, {200, 70}, 2, f), 3, 2);
        check_attention(make_sparse(256, 64, 3, 16, 130, {260, 131}, 3, f), 2, 1);
        check_attention(make_sparse(512, 64, 16, 64, 96, {300}, 4, f), 2, 1);
    }
    check_attention(make_sparse(24, 8, 2, 16, 1100, {1500, 1100}, 5, SL_DTYPE_BF16), 2, 1);
    check_attention(make_sparse(512, 64, 80, 16, 64, {90}, 6, SL_DTYPE_BF16), 1, 1);
#ifndef SL_CUDA_SIM
    for (enum sl_dtype f : formats) {
        check_attention(make_sparse(512, 64, 128, 64, 2048, {5000, 2048, 3000}, 7, f), 3, 1);
        check_attention(make_sparse(512, 64, 16, 16, 2048, {20000}, 8, f), 9, 4);
    }
#endif
}

/* Rows of FP8 that pairs of blocks load, of the last n tokens: the bits of single blocks (an odd
 * number of multiprocessors), of tiles in parts and whole ones. */
static void check_pairs(int top_k, const std::vector<int> &lens, int n, uint64_t seed)
{
    const sparse x = make_sparse(512, 64, 128, 16, top_k, lens, seed, SL_DTYPE_FP8_E4M3);
    std::vector<span_of> spans;
    for (size_t i = 0; i < lens.size(); i++)
        spans.push_back({(int)i, lens[i] - n, n});
    const rows_of want = run_sparse(x, spans, 3);
    for (int n_sms : {2, 40}) {
        const rows_of got = run_sparse(x, spans, n_sms);
        for (size_t i = 0; i < want.size(); i++)
            CHECK(same(got[i], want[i]), "pairs of %d: row %zu of %d", n_sms, i, top_k);
    }
}

static void test_pairs()
{
    check_pairs(150, {90, 200, 31, 400, 160}, 1, 31);
    check_pairs(100, {90, 130}, 2, 32);
    check_pairs(1300, {1400}, 1, 33); /* two splits */
#ifndef SL_CUDA_SIM
    check_pairs(2048, {5000, 2048, 3000, 700}, 1, 34);
    check_pairs(2048, {2600}, 140, 35); /* several rounds */
#endif
}

/* Rows that are no numbers, which are not chosen. */
static void test_odd()
{
    for (enum sl_dtype f : {SL_DTYPE_BF16, SL_DTYPE_FP8_E4M3}) {
        sparse x = make_sparse(64, 64, 4, 16, 40, {150}, 21, f);
        const std::vector<int32_t> top = chosen_of(x, 0, 149);
        for (int key = 0; key < 150; key += 7) {
            x.s.odd_key = key;
            const bool seen = std::find(top.begin(), top.end(), key) != top.end();
            const rows_of rows = run_sparse(x, {{0, 149, 1}}, 2);
            for (uint16_t v : rows[0])
                CHECK(((v & 0x7FFF) > 0x7F80) == seen, "%d: %#x", key, v);
        }
    }
}

/* ---------------------------------------------------------------- the choice */

/* An index of one sequence. whole: all numbers are small and whole, so that every sum is exact. */
struct index_case {
    int n_heads, dim, top_k, bs, len;
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
        return whole && pos % 3 == 1 ? some(1, pos / 2, d) : some(1, pos, d); /* some are equal */
    }
    float w(int pos, int head) const
    {
        return some(2, pos, head);
    }
    /* All keys, and the scores of the row at pos. */
    std::vector<float> keys() const
    {
        std::vector<float> all;
        for (int pos = 0; pos < len; pos++)
            for (int d = 0; d < dim; d++)
                all.push_back(k(pos, d));
        return all;
    }
    std::vector<double> scores(int pos, const std::vector<float> &all) const
    {
        std::vector<double> sums;
        std::vector<float> query;
        for (int i = 0; i < n_heads * dim; i++)
            query.push_back(q(pos, i / dim, i % dim));
        for (int key = 0; key <= pos; key++) {
            const float *row = &all[(size_t)(key * dim)];
            double sum = 0;
            for (int h = 0; h < n_heads; h++) {
                double dot = 0;
                for (int d = 0; d < dim; d++)
                    dot += (double)query[(size_t)(h * dim + d)] * (double)row[d];
                sum += (double)w(pos, h) * std::max(dot, 0.0);
            }
            sums.push_back(sum);
        }
        return sums;
    }
};

/* A step of spans of the one sequence. */
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

/* Of spans of the sequence, some of them padding; rows_of_scores: that there is room for. */
static std::vector<std::vector<int32_t>> choose(const index_case &x,
                                                const std::vector<span_of> &spans, int n_sms,
                                                int rows_of_scores)
{
    scene s = {x.dim, 1, 1, x.bs, 0, 0.0f, false, {x.len}, x.seed};
    pages_of p = make_pages(s, {0});
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
    std::vector<float> w;
    for (const span_of &span : spans)
        for (int t = 0; t < span.n; t++)
            for (int h = 0; h < x.n_heads; h++) {
                for (int d = 0; d < x.dim; d++)
                    q.push_back(to_bf16(x.q(span.pos + t, h, d)));
                q.insert(q.end(), (size_t)(x.dim % 8), 0); /* zeros up to eight values */
                q.insert(q.end(), (size_t)(x.dim - x.dim % 8), 0x7FC0);
                w.push_back(x.w(span.pos + t, h));
            }
    const int n_most = x.len + 100;
    const int64_t ld = sl_index_scores(n_most);
    device d(n_sms);
    dev<uint8_t> pool(p.pool);
    dev<struct sl_span> dspans(in.spans);
    dev<int32_t> tables(in.tables), positions(in.positions);
    dev<int32_t> top(std::vector<int32_t>((size_t)(in.n_tokens * x.top_k), -1));
    dev<uint16_t> dq(q);
    dev<float> dw(w), scores((size_t)(rows_of_scores * ld));
    struct sl_batch b = {};
    b.n_tokens = in.n_tokens, b.n_spans = (int)spans.size();
    b.positions = positions.p, b.spans = dspans.p, b.block_tables = tables.p;
    struct sl_op_index_select op = {};
    op.batch = &b;
    op.q = (const float *)dq.p, op.w = dw.p;
    op.n_heads = x.n_heads, op.dim = x.dim, op.top_k = x.top_k, op.n_most = n_most;
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
                rows.emplace_back(got.begin() + (long)at * x.top_k,
                                  got.begin() + (long)(at + 1) * x.top_k);
    return rows;
}

/* What a row at pos has chosen, against scores in double. */
static void check_choice(const index_case &x, const std::vector<float> &keys, int pos,
                         const std::vector<int32_t> &got)
{
    std::vector<std::pair<double, int>> all;
    n_rows_checked++;
    if (pos < x.top_k) {
        for (int32_t i : got)
            CHECK(i == -1, "a row at %d has chosen", pos);
        return;
    }
    const std::vector<double> scores = x.scores(pos, keys);
    for (int key = 0; key <= pos; key++) /* of equal scores the lower position first */
        all.push_back({-scores[(size_t)key], key});
    std::vector<std::pair<double, int>> sorted = all;
    std::sort(sorted.begin(), sorted.end());
    const double least = sorted[(size_t)x.top_k - 1].first, near = x.whole ? 0 : 1e-3;
    std::vector<bool> in((size_t)pos + 1, false);
    for (size_t i = 0; i < got.size(); i++) {
        CHECK(got[i] >= 0 && got[i] <= pos && (i == 0 || got[i] > got[i - 1]), "order at %zu", i);
        if (got[i] < 0 || got[i] > pos)
            return;
        in[(size_t)got[i]] = true;
    }
    for (int i = 0; i <= pos; i++) {
        const double score = all[(size_t)i].first;
        const bool wanted = all[(size_t)i] <= sorted[(size_t)x.top_k - 1];
        CHECK(in[(size_t)i] == wanted || (!x.whole && fabs(score - least) <= near),
              "%d queries of %d, row %d: position %d, score %g, least %g", x.n_heads, x.dim, pos, i,
              -score, -least);
    }
}

static void check_index(const index_case &x, int from, int every)
{
    const std::vector<span_of> whole = {{0, from, x.len - from}};
    const std::vector<float> keys = x.keys();
    const auto all = choose(x, whole, 3, x.len - from);
    for (int t = 0; t < (int)all.size(); t++)
        if (t % every == 0 || t + 1 == (int)all.size())
            check_choice(x, keys, from + t, all[(size_t)t]);
    const auto tight = choose(x, whole, 1, 1); /* a row at a time */
    const auto some = choose(x, whole, 2, 7);
    n_rows_compared += 2 * (long)all.size();
    CHECK(tight == all && some == all, "room for a few rows");
    std::vector<span_of> parts; /* many spans of the sequence, with padding */
    for (int pos = from, n = 1; pos < x.len; pos += n, n = n % 5 + 1) {
        parts.push_back({0, pos, std::min(n, x.len - pos)});
        if (parts.size() == 3)
            parts.push_back({-1, 0, 1});
    }
    n_rows_compared += (long)all.size();
    CHECK(choose(x, parts, 5, 64) == all, "in parts");
    for (int n : {1, 4}) { /* rows that blocks of a cluster share */
        const auto last = choose(x, {{0, x.len - n, n}}, n == 1 ? 5 : 33, n);
        CHECK(std::equal(last.begin(), last.end(), all.end() - n), "the last %d", n);
        n_rows_compared += n;
    }
}

static void test_index()
{
    check_index({20, 40, 24, 16, 90, 1, true}, 0, 1);
    check_index({20, 40, 24, 16, 90, 2, false}, 0, 1);
    check_index({5, 24, 7, 32, 300, 3, true}, 200, 9);
    check_index({16, 20, 8, 16, 40, 9, true}, 0, 1);
    check_index({64, 128, 100, 64, 400, 4, false}, 370, 11);
    check_index({3, 64, 250, 16, 620, 5, true}, 600, 3);
    check_index({128, 72, 300, 16, 310, 6, true}, 290, 7);
#ifndef SL_CUDA_SIM
    check_index({64, 128, 2048, 64, 9000, 7, false}, 8980, 9);
    check_index({32, 128, 2048, 16, 70000, 8, true}, 69996, 2);
#endif
}

/* ---------------------------------------------------------------- the store */

struct index_store {
    int n_heads, dim, n_rotated;
    bool interleaved;
    std::vector<int> pos = {0, 31, 32, 37, 60};
    std::vector<float> q, k, norm, bias, angles;

    void make()
    {
        const int n = (int)pos.size();
        auto some = [](int count, uint64_t seed) {
            std::vector<float> x;
            for (int i = 0; i < count; i++)
                x.push_back(normal((uint64_t)i + seed));
            return x;
        };
        q = some(n * n_heads * dim, 1000), k = some(n * dim, 900000);
        norm = some(dim, 7), bias = some(dim, 5000);
        for (int i = 0; i < n * n_rotated / 2; i++) {
            angles.push_back(cosf((float)i));
            angles.push_back(sinf((float)i));
        }
    }
    /* Value d of a row of token t, rotated. */
    double turned(const std::vector<double> &row, int t, int d) const
    {
        const int half = n_rotated / 2;
        if (d >= n_rotated)
            return row[(size_t)d];
        const int pair = interleaved ? d / 2 : d % half;
        const bool second = interleaved ? d % 2 != 0 : d >= half;
        const double c = (double)angles[(size_t)(t * n_rotated + 2 * pair)],
                     s = (double)angles[(size_t)(t * n_rotated + 2 * pair + 1)];
        const double a = row[(size_t)(interleaved ? 2 * pair : pair)],
                     b = row[(size_t)(interleaved ? 2 * pair + 1 : pair + half)];
        return second ? b * c + a * s : a * c - b * s;
    }
    std::vector<double> normed(int t) const
    {
        std::vector<double> row;
        double mean = 0, squares = 0;
        for (int d = 0; d < dim; d++)
            mean += (double)k[(size_t)(t * dim + d)] / dim;
        for (int d = 0; d < dim; d++)
            squares += pow((double)k[(size_t)(t * dim + d)] - mean, 2) / dim;
        for (int d = 0; d < dim; d++)
            row.push_back(((double)k[(size_t)(t * dim + d)] - mean) / sqrt(squares + 1e-6) *
                              (double)norm[(size_t)d] +
                          (double)bias[(size_t)d]);
        return row;
    }
};

static void check_stored(const char *what, double want, uint16_t got, int t, int d)
{
    const double have = (double)from_bf16(got);
    CHECK(fabs(have - want) <= fabs(want) / 250 + 1e-5, "%s %d of token %d: %g, not %g", what, d, t,
          have, want);
}

static void check_store(index_store x)
{
    const int n = (int)x.pos.size(), bs = 32;
    const scene s = {x.dim, x.n_heads, 1, bs, 0, 0.0f, false, {64}, 99};
    x.make();
    device d(4);
    pages_of p = make_pages(s, {0});
    dev<uint8_t> pool(p.pool);
    dev<float> q(x.q), k(x.k), norm(x.norm), bias(x.bias), angles(x.angles);
    std::vector<struct sl_span> spans;
    std::vector<int32_t> tables;
    for (int i = 0; i < n; i++) {
        spans.push_back({i, 1, x.pos[(size_t)i], (int32_t)tables.size(), 0});
        for (int b = 0; b <= x.pos[(size_t)i] / bs; b++)
            tables.push_back(p.table[0][(size_t)b]);
    }
    dev<struct sl_span> dspans(spans);
    dev<int32_t> dtables(tables), positions(std::vector<int32_t>(x.pos.begin(), x.pos.end()));
    struct sl_cuda_attention_limits limits = {n, n, 64, 4, 0, 32};
    dev<uint8_t> workspace(anything(sl_cuda_attention_workspace(&d.cu, &limits)));
    d.cu.workspace = workspace.p;
    d.cu.workspace_bytes = workspace.n;
    struct sl_batch b = {};
    b.n_tokens = b.n_spans = n;
    b.positions = positions.p, b.spans = dspans.p, b.block_tables = dtables.p;
    sl_cuda_attention_plan(&d.cu, &b, 4, 0, 32, false);
    struct sl_rope rope = {};
    rope.n_dims = x.n_rotated;
    rope.pairing = x.interleaved ? SL_ROPE_INTERLEAVED : SL_ROPE_HALF;
    struct sl_op_index_store op = {};
    op.batch = &b;
    op.q = q.p, op.k = k.p, op.norm = norm.p, op.norm_bias = bias.p, op.eps = 1e-6f;
    op.n_heads = x.n_heads, op.dim = x.dim;
    op.rope = x.n_rotated > 0 ? &rope : nullptr, op.angles = angles.p;
    op.kv.pool = pool.p, op.kv.page_bytes = p.page_bytes, op.kv.k_offset = p.k_offset;
    op.kv.dtype = SL_DTYPE_BF16, op.kv.block_size = bs;
    sl_cuda_index_store(&d.cu.base, &op);
    CHECK(cudaStreamSynchronize(d.cu.stream) == cudaSuccess && d.cu.error == cudaSuccess, "store");
    const std::vector<float> got_q = q.get();
    const std::vector<uint8_t> got = pool.get();
    for (int t = 0; t < n; t++) {
        const int pos = x.pos[(size_t)t];
        const uint8_t *tile = got.data() + (size_t)p.table[0][(size_t)(pos / bs)] * p.page_bytes +
                              p.k_offset + (size_t)(pos % bs / 16) * tile_bytes(s);
        const std::vector<double> key = x.normed(t);
        for (int i = 0; i < s.dim(); i++) {
            uint16_t u;
            memcpy(&u, tile + sl_kv_piece(s.dim() * 2, pos % 16, i / 8) + i % 8 * 2, 2);
            check_stored("key", i < x.dim ? x.turned(key, t, i) : 0.0, u, t, i);
        }
        for (int h = 0; h < x.n_heads; h++) {
            const size_t at = (size_t)((t * x.n_heads + h) * x.dim);
            const std::vector<double> row(&x.q[at], &x.q[at] + x.dim);
            std::vector<uint16_t> have((size_t)x.dim);
            memcpy(have.data(), &got_q[at], have.size() * 2);
            for (int i = 0; i < x.dim; i++)
                check_stored("query", x.turned(row, t, i), have[(size_t)i], t, i);
        }
    }
    n_rows_checked += n * (x.n_heads + 1);
}

static void test_store()
{
    index_store x = {};
    x.n_heads = 20, x.dim = 40, x.n_rotated = 16, x.interleaved = false;
    check_store(x);
    x.n_heads = 3, x.dim = 128, x.n_rotated = 64, x.interleaved = true;
    check_store(x);
    x.n_heads = 16, x.dim = 20, x.n_rotated = 8, x.interleaved = true;
    check_store(x);
    x.n_heads = 0, x.dim = 64, x.n_rotated = 0; /* a step without choices */
    check_store(x);
}

static void part(const char *name, void (*test)())
{
    printf("%s\n", name);
    test();
}

int main()
{
    setvbuf(stdout, nullptr, _IOLBF, 0);
    part("store", test_store);
    part("index", test_index);
    part("attention", test_attention);
    part("pairs of blocks", test_pairs);
    part("numbers that are none", test_odd);
    printf("%ld rows checked, %ld compared bit for bit, in %ld runs: %d failures\n", n_rows_checked,
           n_rows_compared, n_runs, n_failures);
    return n_failures != 0;
}
