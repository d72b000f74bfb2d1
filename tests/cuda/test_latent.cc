/* SPDX-License-Identifier: MIT
 * What latent attention needs of a GPU, src/cuda: attention whose values are a part of its keys,
 * the store of its rows, and products of heads. Against references in double; and against itself: a
 * row must have the same bits whether its token came in a long chunk, a short one, as a decode,
 * with other sequences, with padding, on any number of SMs, or with hardly any workspace. Whatever
 * no row may see is NaN. Runs in the simulator or on a GPU.
 */
#include "attention_scene.h"
#include "cuda/cuda.h"
#include "device_weight.h"

#include <stdlib.h>

#ifdef SL_CUDA_SIM
#include "sim.h"
#endif

/* ---------------------------------------------------------------- attention */

/* scene: keys of one head. Rows of the result have nq * v values. */
struct latent {
    scene s;
    int v;
};

static latent make_latent(int rank, int rope, int nq, int bs, std::vector<int> lens, uint64_t seed,
                          enum sl_dtype format = SL_DTYPE_BF16)
{
    latent x = {{rank + rope, nq, 1, bs, 0, 0.0f, false, lens, seed}, rank};
    x.s.format = format;
    return x;
}

/* slot_rows: rows of partial results that there is room for, -1: all that could be wanted. */
static rows_of run_latent(const latent &x, const std::vector<span_of> &spans, int n_sms,
                          int slot_rows = -1, int layers = 1)
{
    const scene &s = x.s;
    inputs in = make_inputs(s, spans);
    const int n_spans = (int)spans.size(), width = s.nq * x.v + ROW_PAD;
    device d(n_sms);
    dev<uint8_t> pool(in.pages.pool);
    dev<struct sl_span> dspans(in.spans);
    dev<int32_t> tables(in.tables), positions(in.positions);
    dev<float> q(in.q);
    dev<uint16_t> out(std::vector<uint16_t>((size_t)(in.n_tokens * width), 0x4242));
    struct sl_cuda_attention_limits limits = {in.n_tokens, n_spans, slot_rows < 0 ? 20000 : 0,
                                              s.nq,        0,       s.hd};
    size_t bytes = sl_cuda_attention_workspace(&d.cu, &limits);
    const size_t row = ((size_t)(s.hd <= 128 ? 128 : s.hd <= 320 ? 256 : 512) + 2) * 4;
    if (slot_rows >= 0) /* context 0: two slots a row */
        bytes -= ((size_t)(2 * in.n_tokens * s.nq) - (size_t)slot_rows) * row;
    dev<uint8_t> workspace(anything(bytes));
    d.cu.workspace = workspace.p;
    d.cu.workspace_bytes = workspace.n;
    struct sl_batch b = {};
    b.n_tokens = in.n_tokens, b.n_spans = n_spans;
    b.positions = positions.p, b.spans = dspans.p, b.block_tables = tables.p;
    struct sl_op_attention op = make_op(s, in.pages);
    op.batch = &b;
    op.q = q.p;
    op.v_dim = x.v;
    op.v_in_k = true;
    op.ld_out = width;
    op.kv.pool = pool.p;
    op.out = out.p;
    sl_cuda_attention_plan(&d.cu, &b, s.nq, 0, s.hd, false);
    for (int i = 0; i < layers; i++)
        sl_cuda_attention(&d.cu.base, &op);
    CHECK(cudaStreamSynchronize(d.cu.stream) == cudaSuccess && d.cu.error == cudaSuccess, "%s",
          d.cu.error_what ? d.cu.error_what : "synchronize");
    n_runs++;
    latent of = x; /* rows as wide as the result's */
    of.s.hd = x.v;
    return read_rows(of.s, spans, out.get());
}

/* One head of one row in double: the output is wrong by up to 2^-8 of itself, and so are the
 * probabilities, or by 2^-11 in F16. */
static void check_latent_row(const latent &x, int seq, int pos, int head, const uint16_t *got)
{
    const scene &s = x.s;
    std::vector<double> score, sum((size_t)x.v, 0.0), size((size_t)x.v, 0.0);
    std::vector<float> q((size_t)s.hd);
    double top = -INFINITY, l = 0.0;
    for (int d = 0; d < s.hd; d++)
        q[(size_t)d] = rounded(s.format, s.q(seq, pos, head, d));
    for (int j = 0; j <= pos; j++) {
        double dot = 0.0;
        for (int d = 0; d < s.hd; d++)
            dot += (double)q[(size_t)d] * (double)s.k(seq, j, 0, d);
        score.push_back(dot * (double)s.scale());
        top = std::max(top, score.back());
    }
    for (int j = 0; j <= pos; j++) {
        const double p = exp(score[(size_t)j] - top);
        l += p;
        for (int d = 0; d < x.v; d++) {
            const double v = (double)s.k(seq, j, 0, d);
            sum[(size_t)d] += p * v;
            size[(size_t)d] += p * fabs(v);
        }
    }
    for (int d = 0; d < x.v; d++) {
        const double want = sum[(size_t)d] / l, have = (double)from_bf16(got[d]);
        const double p_error = s.format == SL_DTYPE_F16 ? 0x1p-11 : 0x1p-8;
        const double allowed = fabs(want) / 256 + size[(size_t)d] / l * p_error + 1e-6;
        CHECK(fabs(have - want) <= allowed,
              "%d of %d, %d heads, seq %d pos %d head %d d %d: %g, not %g", x.v, s.hd, s.nq, seq,
              pos, head, d, have, want);
    }
    n_rows_checked++;
}

static void check_latent_rows(const latent &x, const std::vector<span_of> &spans,
                              const rows_of &rows, int every)
{
    size_t at = 0;
    for (const span_of &span : spans)
        for (int t = 0; span.seq >= 0 && t < span.n; t++, at++)
            for (int h = 0; h < x.s.nq; h++)
                if ((t * x.s.nq + h) % every == 0 || (t == span.n - 1 && h % 7 == 0))
                    check_latent_row(x, span.seq, span.pos + t, h, &rows[at][(size_t)(h * x.v)]);
}

/* Every row of a against the row of the same sequence and position in b, where there is one. */
static void same_latent_bits(const char *what, const std::vector<span_of> &sa, const rows_of &a,
                             const std::vector<span_of> &sb, const rows_of &b)
{
    size_t at = 0;
    for (const span_of &x : sa)
        for (int t = 0; x.seq >= 0 && t < x.n; t++, at++) {
            size_t bt = 0;
            for (const span_of &y : sb) {
                const int i = x.pos + t - y.pos;
                if (y.seq == x.seq && i >= 0 && i < y.n) {
                    bool same = true; /* a NaN is a NaN */
                    const std::vector<uint16_t> &ra = a[at], &rb = b[bt + (size_t)i];
                    for (size_t c = 0; c < ra.size(); c++)
                        same = same && (ra[c] == rb[c] ||
                                        ((ra[c] & 0x7FFF) > 0x7F80 && (rb[c] & 0x7FFF) > 0x7F80));
                    CHECK(same, "%s: seq %d pos %d", what, x.seq, x.pos + t);
                    n_rows_compared++;
                }
                bt += y.seq >= 0 ? (size_t)y.n : 0;
            }
        }
}

/* Whole prefills (from `from` on) are right, and pieces of them have the same bits. */
static void check_latent(const latent &x, int from, int every, std::vector<int> chunks,
                         std::vector<int> decodes)
{
    std::vector<span_of> whole;
    for (size_t i = 0; i < x.s.lens.size(); i++)
        whole.push_back({(int)i, std::min(from, x.s.lens[i] - 1),
                         x.s.lens[i] - std::min(from, x.s.lens[i] - 1)});
    const rows_of all = run_latent(x, whole, 3);
    if (x.s.odd_pos < 0)
        check_latent_rows(x, whole, all, every);
    for (int chunk : chunks) {
        std::vector<span_of> part;
        for (size_t i = 0; i < x.s.lens.size(); i++) {
            const int n = std::min(chunk, x.s.lens[i]);
            part.push_back({(int)i, x.s.lens[i] - n, n});
        }
        same_latent_bits("chunk", part, run_latent(x, part, chunk % 2 ? 1 : 40), whole, all);
    }
    for (int pos : decodes) {
        std::vector<span_of> part, padded;
        for (size_t i = 0; i < x.s.lens.size(); i++)
            part.push_back({(int)i, std::min(pos, x.s.lens[i] - 1), 1});
        padded = part;
        padded.push_back({-1, 0, 1});
        const rows_of got = run_latent(x, part, 1 + pos % 50);
        same_latent_bits("decode", part, got, whole, all);
        same_latent_bits("padded decode", padded, run_latent(x, padded, 3, pos % 2 ? -1 : 4, 2),
                         part, got);
    }
}

static void test_attention()
{
    check_latent(make_latent(24, 8, 4, 16, {1, 64, 33, 130}, 1), 0, 5, {7}, {0, 63, 64, 129});
    check_latent(make_latent(64, 16, 20, 32, {70, 3}, 2, SL_DTYPE_F16), 0, 7, {2}, {64});
    check_latent(make_latent(256, 64, 3, 16, {140, 65}, 3), 0, 11, {5}, {127, 128});
    check_latent(make_latent(256, 32, 2, 48, {80}, 4, SL_DTYPE_F16), 0, 11, {5}, {79});
    check_latent(make_latent(512, 64, 16, 64, {97, 20}, 5), 80, 17, {3}, {96});
    check_latent(make_latent(512, 64, 128, 16, {90}, 6, SL_DTYPE_F16), 88, 61, {1}, {89});
    latent rises = make_latent(64, 64, 4, 16, {330}, 7); /* references do, in either group */
    rises.s.q_times = 40.0f;
    check_latent(rises, 250, 3, {9}, {200, 329});
}

/* Splits and parts of them end on, before and behind lengths; a run of splits. */
static void test_long()
{
    check_latent(make_latent(24, 8, 4, 16, {1100, 513}, 11), 1000, 9, {64, 2},
                 {511, 512, 1023, 1099});
    check_latent(make_latent(32, 16, 2, 64, {4200}, 12), 4150, 9, {3}, {4095, 4096, 4199});
    check_latent(make_latent(512, 64, 2, 16, {600}, 13), 590, 3, {2}, {599});
    check_latent(make_latent(24, 8, 4, 16, {18500}, 15), 18470, 7, {3},
                 {18480, 18499}); /* two runs, of which the second has two splits */
#ifndef SL_CUDA_SIM
    check_latent(make_latent(512, 64, 128, 16, {4000, 3000}, 14), 3900, 601, {64, 2}, {3999, 2999});
    check_latent(make_latent(512, 64, 16, 64, {33000, 17000}, 16), 32990, 3, {2}, {32999, 16999});
#endif
}

/* Values that are no numbers, which only later rows see. */
static void test_odd()
{
    for (int rank : {64, 512}) {
        latent x = make_latent(rank, 64, 4, 16, {100}, 21);
        x.s.odd_key = 70;
        for (int from : {60, 99}) {
            const std::vector<span_of> some = {{0, from, 100 - from}}, one = {{0, 69, 1}};
            const rows_of rows = run_latent(x, some, 2);
            if (from < 69)
                same_latent_bits("odd", one, run_latent(x, one, 2), some, rows);
            for (size_t t = 0; t < rows.size(); t++)
                for (uint16_t v : rows[t])
                    CHECK(((v & 0x7FFF) > 0x7F80) == (from + (int)t >= 70), "%d: %#x", (int)t, v);
        }
    }
}

/* Pages of FP8: the bits of BF16 pages with the same numbers. */
static void check_fp8(latent x, int from, std::vector<int> chunks)
{
    latent coded = x;
    x.s.held = coded.s.held = SL_DTYPE_FP8_E4M3;
    coded.s.format = SL_DTYPE_FP8_E4M3;
    std::vector<span_of> whole;
    for (size_t i = 0; i < x.s.lens.size(); i++) {
        const int at = std::min(from, x.s.lens[i] - 1);
        whole.push_back({(int)i, at, x.s.lens[i] - at});
    }
    const rows_of want = run_latent(x, whole, 3);
    same_latent_bits("FP8", whole, run_latent(coded, whole, 2), whole, want);
    for (int chunk : chunks) {
        std::vector<span_of> part;
        for (size_t i = 0; i < x.s.lens.size(); i++) {
            const int n = std::min(chunk, x.s.lens[i]);
            part.push_back({(int)i, x.s.lens[i] - n, n});
        }
        same_latent_bits("FP8, a chunk", part, run_latent(coded, part, chunk % 2 ? 1 : 40), whole,
                         want);
    }
}

static void test_fp8()
{
    check_fp8(make_latent(24, 8, 4, 16, {1, 64, 33, 130}, 31), 0, {1, 7});
    check_fp8(make_latent(64, 16, 20, 32, {70, 3}, 32), 60, {1, 2});
    check_fp8(make_latent(256, 64, 3, 16, {140, 65}, 33), 120, {1, 5});
    check_fp8(make_latent(256, 32, 2, 48, {80}, 34), 70, {3});
    check_fp8(make_latent(512, 64, 16, 64, {97, 20}, 35), 90, {1, 3});
    check_fp8(make_latent(512, 24, 2, 16, {600}, 36), 590, {2});
    latent odd = make_latent(512, 64, 4, 16, {100}, 37);
    odd.s.odd_key = 70;
    check_fp8(odd, 60, {1, 40});
#ifndef SL_CUDA_SIM
    check_fp8(make_latent(512, 64, 128, 16, {700, 600}, 38), 690, {8, 1});
#endif
}

/* ---------------------------------------------------------------- the store */

/* Five tokens of a sequence, and what the operation gets. */
struct store_case {
    int rank, rope_dim, nq;
    bool interleaved;
    float beta;
    enum sl_dtype format;
    std::vector<int> pos = {0, 31, 32, 37, 60};
    std::vector<float> c, k, norm, q, head_q, angles;

    int hd() const
    {
        return rank + rope_dim;
    }
    int width() const /* of a head of head_q, whose end is rotated */
    {
        return 16 + rope_dim;
    }
    void make()
    {
        const int n = (int)pos.size();
        auto some = [](int count, uint64_t seed) {
            std::vector<float> x;
            for (int i = 0; i < count; i++)
                x.push_back(normal((uint64_t)i + seed));
            return x;
        };
        c = some(n * rank, 1000), k = some(n * rope_dim, 90000), norm = some(rank, 7);
        q = some(n * nq * hd(), 200000), head_q = some(n * nq * width(), 500000);
        for (int i = 0; i < n * rope_dim / 2; i++) {
            angles.push_back(cosf((float)i));
            angles.push_back(sinf((float)i));
        }
    }
    /* Dimension i of what is rotated of token t. */
    float turned(const float *x, int t, int i) const
    {
        const int pair = interleaved ? i / 2 : i % (rope_dim / 2);
        const bool second = interleaved ? i % 2 != 0 : i >= rope_dim / 2;
        const float cs = angles[(size_t)(t * rope_dim + 2 * pair)],
                    sn = angles[(size_t)(t * rope_dim + 2 * pair + 1)];
        const float u = x[interleaved ? 2 * pair : pair],
                    w = x[interleaved ? 2 * pair + 1 : pair + rope_dim / 2];
        const float a = second ? w * cs : u * cs, e = second ? u * sn : w * sn;
        return second ? a + e : a - e;
    }
};

/* The row of token t in its page. */
static void check_kept(const store_case &x, const scene &s, const pages_of &p,
                       const std::vector<uint8_t> &got, int t)
{
    const int pos = x.pos[(size_t)t];
    const size_t page = (size_t)p.table[0][(size_t)(pos / s.bs)] * p.page_bytes + p.k_offset;
    const uint8_t *tile = got.data() + page + (size_t)(pos % s.bs / 16) * tile_bytes(s);
    const bool fp8 = x.format == SL_DTYPE_FP8_E4M3;
    uint16_t scale = 0;
    if (fp8)
        memcpy(&scale, tile + 16 * s.dim() + 2 * (pos % 16), 2);
    const double one = ldexp(1.0, (scale >> 7) - 247); /* of FP8, what a code of 1 is worth */
    auto value = [&](int i) {
        uint16_t u;
        const int in = i % 16, byte = in % 8 / 2 * 4 + in % 2 * 2 + (in < 8);
        if (fp8)
            return sl_fp8_e4m3_to_f32(tile[sl_kv_piece(s.dim(), pos % 16, i / 16) + byte]) *
                   (float)one;
        memcpy(&u, tile + sl_kv_piece(s.dim() * 2, pos % 16, i / 8) + i % 8 * 2, 2);
        return x.format == SL_DTYPE_F16 ? sl_f16_to_f32(u) : from_bf16(u);
    };
    double squares = 0;
    for (int i = 0; i < x.rank; i++)
        squares += (double)x.c[(size_t)(t * x.rank + i)] * (double)x.c[(size_t)(t * x.rank + i)];
    const double by = 1 / sqrt(squares / x.rank + 1e-6);
    for (int i = 0; i < x.rank; i++) {
        const double want = (double)x.c[(size_t)(t * x.rank + i)] * by * (double)x.norm[(size_t)i];
        CHECK(fabs((double)value(i) - want) <=
                  (fp8 ? fabs(want) / 15.9 + one / 1000 : fabs(want) / 250 + 1e-7),
              "%d of token %d: %g, not %g", i, t, (double)value(i), want);
    }
    for (int i = 0; i < x.rope_dim; i++) {
        const float turned = x.turned(&x.k[(size_t)(t * x.rope_dim)], t, i);
        CHECK(fp8 ? fabsf(value(x.rank + i) - turned) <= fabsf(turned) / 15.9f + (float)one / 1000
                  : value(x.rank + i) == rounded(x.format, turned),
              "rotated %d of token %d", i, t);
    }
    for (int i = x.hd(); i < s.dim(); i++)
        CHECK(value(i) == 0.0f, "behind a row");
}

static void check_query(const store_case &x, const std::vector<float> &got, int t, int h)
{
    const size_t at = (size_t)(t * x.nq + h), hd = (size_t)x.hd();
    const float spans = floorf((float)x.pos[(size_t)t] / 20.0f);
    const float warm = x.beta == 0.0f ? 1.0f : 1.0f + x.beta * logf(1.0f + spans);
    for (size_t i = 0; i < (size_t)x.rank; i++)
        CHECK(fabsf(got[at * hd + i] - x.q[at * hd + i] * warm) <= 1e-5f, "q %zu", i);
    for (int i = 0; i < x.rope_dim; i++) {
        const float want = x.turned(&x.head_q[at * (size_t)x.width() + 16], t, i) * warm;
        CHECK(fabsf(got[at * hd + (size_t)(x.rank + i)] - want) <= 1e-5f, "rotated q %d", i);
    }
}

static struct sl_op_latent_store store_op(const store_case &x)
{
    struct sl_op_latent_store op = {};
    op.eps = 1e-6f;
    op.ld_q_rope = x.nq * x.width(), op.step_q_rope = x.width();
    op.n_heads = x.nq, op.rank = x.rank, op.rope_dim = x.rope_dim;
    op.temperature.beta = x.beta, op.temperature.span = 20.0f;
    return op;
}

static void check_store(store_case x)
{
    const int n = (int)x.pos.size(), bs = 32;
    scene s = {x.hd(), x.nq, 1, bs, 0, 0.0f, false, {64}, 99};
    s.format = x.format;
    x.make();
    device d(4);
    pages_of p = make_pages(s, {0});
    dev<uint8_t> pool(p.pool);
    dev<float> c(x.c), k(x.k), norm(x.norm), q(x.q), head_q(x.head_q), angles(x.angles);
    std::vector<struct sl_span> spans;
    std::vector<int32_t> tables;
    for (int i = 0; i < n; i++) {
        spans.push_back({i, 1, x.pos[(size_t)i], (int32_t)tables.size(), 0});
        for (int b = 0; b <= x.pos[(size_t)i] / bs; b++)
            tables.push_back(p.table[0][(size_t)b]);
    }
    dev<struct sl_span> dspans(spans);
    dev<int32_t> dtables(tables), positions(std::vector<int32_t>(x.pos.begin(), x.pos.end()));
    struct sl_cuda_attention_limits limits = {n, n, 64, x.nq, 0, x.hd()};
    dev<uint8_t> workspace(anything(sl_cuda_attention_workspace(&d.cu, &limits)));
    d.cu.workspace = workspace.p;
    d.cu.workspace_bytes = workspace.n;
    struct sl_batch b = {};
    b.n_tokens = b.n_spans = n;
    b.positions = positions.p, b.spans = dspans.p, b.block_tables = dtables.p;
    struct sl_rope rope = {};
    rope.n_dims = x.rope_dim;
    rope.pairing = x.interleaved ? SL_ROPE_INTERLEAVED : SL_ROPE_HALF;
    struct sl_op_latent_store op = store_op(x);
    op.batch = &b;
    op.c = c.p, op.k_rope = k.p, op.norm = norm.p, op.q_rope = head_q.p + 16, op.q = q.p;
    op.rope = &rope, op.angles = angles.p;
    op.kv = make_op(s, p).kv;
    op.kv.pool = pool.p;
    sl_cuda_latent_store(&d.cu.base, &op);
    CHECK(cudaStreamSynchronize(d.cu.stream) == cudaSuccess && d.cu.error == cudaSuccess, "store");
    const std::vector<float> got_q = q.get();
    const std::vector<uint8_t> got = pool.get();
    for (int t = 0; t < n; t++) {
        check_kept(x, s, p, got, t);
        for (int h = 0; h < x.nq; h++)
            check_query(x, got_q, t, h);
    }
    n_rows_checked += n * (x.nq + 1);
}

static store_case make_store(int rank, int rope_dim, int nq, bool interleaved, float beta,
                             enum sl_dtype format)
{
    store_case x = {};
    x.rank = rank, x.rope_dim = rope_dim, x.nq = nq;
    x.interleaved = interleaved, x.beta = beta, x.format = format;
    return x;
}

static void test_store()
{
    check_store(make_store(24, 8, 3, false, 0.0f, SL_DTYPE_BF16));
    check_store(make_store(64, 16, 9, true, 0.1f, SL_DTYPE_F16));
    check_store(make_store(512, 64, 2, true, 0.0f, SL_DTYPE_F16));
    check_store(make_store(256, 64, 17, false, 0.1f, SL_DTYPE_BF16));
    check_store(make_store(24, 8, 3, false, 0.0f, SL_DTYPE_FP8_E4M3));
    check_store(make_store(512, 64, 2, true, 0.1f, SL_DTYPE_FP8_E4M3));
}

/* ---------------------------------------------------------------- products of heads */

struct heads {
    struct sl_backend *be;
    int n_heads, rows, cols;
    std::vector<std::vector<float>> values; /* of each head, as the GPU has them */
    std::vector<struct sl_weight> mats;
    struct sl_stack stack;

    heads(enum sl_dtype t, int n, int n_rows, int n_cols)
        : be(nullptr), n_heads(n), rows(n_rows), cols(n_cols), stack()
    {
        struct sl_error err = {};
        struct sl_cuda_config cfg = {0, 0, false};
        if (sl_cuda_create(&cfg, &be, &err) != 0)
            exit((printf("sl_cuda_create: %s\n", err.msg), 2));
        const struct sl_dtype_info *info = sl_dtype_info(t);
        const size_t all = (size_t)(rows * cols);
        for (int h = 0; h < n; h++) {
            std::vector<float> row(all), v(all);
            std::vector<uint8_t> file(all / info->block_elems * info->block_bytes);
            for (size_t i = 0; i < all; i++)
                row[i] = normal((uint64_t)h * 1000003 + i) * 0.1f;
            info->from_f32(row.data(), file.data(), (int64_t)all);
            device_values(t, file.data(), v.data(), (int64_t)all);
            struct sl_weight w = {};
            if (be->vt->weight_create(be, SL_USE_LINEAR, t, rows, cols, file.data(), NULL, &w,
                                      &err) != 0)
                exit((printf("weight_create: %s\n", err.msg), 2));
            values.push_back(v);
            mats.push_back(w);
        }
        if (be->vt->stack_create(be, mats.data(), n, &stack, &err) != 0 ||
            be->vt->device->load_end(be, &err) != 0)
            exit((printf("stack_create: %s\n", err.msg), 2));
    }
    ~heads()
    {
        be->vt->stack_destroy(be, &stack);
        for (struct sl_weight &w : mats)
            be->vt->weight_destroy(be, &w);
        be->vt->destroy(be);
    }
    /* Tokens from .. from + n - 1; rows of what comes out have a gap. */
    std::vector<float> run(int from, int n)
    {
        const int step_x = cols + (cols % 8 == 0 ? 8 : 3), ld_x = n_heads * step_x + 16,
                  ld_out = n_heads * (rows + 4);
        std::vector<uint16_t> x((size_t)(n * ld_x), 0x7FC0);
        for (int t = 0; t < n; t++)
            for (int h = 0; h < n_heads; h++)
                for (int k = 0; k < cols; k++)
                    x[(size_t)(t * ld_x + h * step_x + k)] = to_bf16(value(from + t, h, k));
        dev<uint16_t> dx(x);
        dev<float> out(std::vector<float>((size_t)(n * ld_out), -1.0f));
        struct sl_op_heads_linear op = {dx.p, ld_x, step_x, &stack, n, out.p, ld_out, rows + 4};
        be->vt->heads_linear(be, &op);
        CHECK(cudaStreamSynchronize(sl_cuda(be)->stream) == cudaSuccess &&
                  sl_cuda(be)->error == cudaSuccess,
              "heads_linear");
        std::vector<float> got = out.get(), packed;
        for (int i = 0; i < n * n_heads; i++) {
            const float *row = &got[(size_t)(i / n_heads * ld_out + i % n_heads * (rows + 4))];
            for (int r = 0; r < 4; r++)
                CHECK(row[rows + r] == -1.0f, "behind a row");
            packed.insert(packed.end(), row, row + rows);
        }
        return packed;
    }
    static float value(int t, int h, int k)
    {
        return normal(((uint64_t)t * 331 + (uint64_t)h) * 4099 + (uint64_t)k + 77);
    }
    void check(int n)
    {
        const std::vector<float> all = run(0, n);
        for (int t = 0; t < n; t++)
            for (int h = 0; h < n_heads; h++)
                for (int r = 0; r < rows; r++) {
                    double want = 0, size = 0;
                    for (int k = 0; k < cols; k++) {
                        const double p = (double)from_bf16(to_bf16(value(t, h, k))) *
                                         (double)values[(size_t)h][(size_t)(r * cols + k)];
                        want += p;
                        size += fabs(p);
                    }
                    const double have = (double)all[(size_t)((t * n_heads + h) * rows + r)];
                    CHECK(fabs(have - want) <= size * 1e-5, "token %d head %d row %d: %g, not %g",
                          t, h, r, have, want);
                }
        for (int from : {0, n / 2, n - 1}) { /* alone, and with fewer */
            const int m = std::min(n - from, from == 0 ? 1 : 3);
            const std::vector<float> some = run(from, m);
            CHECK(memcmp(some.data(), &all[(size_t)(from * n_heads * rows)],
                         some.size() * sizeof some[0]) == 0,
                  "token %d beside %d, or %d", from, n, m);
            n_rows_compared += m * n_heads;
        }
        n_rows_checked += n * n_heads;
    }
};

static void test_heads()
{
    heads(SL_DTYPE_BF16, 3, 24, 8).check(5);
    heads(SL_DTYPE_BF16, 3, 20, 12).check(10);
    heads(SL_DTYPE_BF16, 2, 80, 72).check(70);
    heads(SL_DTYPE_F16, 2, 64, 128).check(9);
    heads(SL_DTYPE_Q8_0, 2, 48, 64).check(9);
    heads(SL_DTYPE_FP8_E4M3, 2, 32, 128).check(3);
    heads(SL_DTYPE_BF16, 2, 32, 512).check(66);
#ifndef SL_CUDA_SIM
    heads(SL_DTYPE_BF16, 16, 512, 128).check(200);
    heads(SL_DTYPE_BF16, 16, 128, 512).check(65);
#endif
}

/* ---------------------------------------------------------------- supports */

static void test_supports()
{
    CHECK(sl_cuda_latent_supports(576, 512, 128, SL_DTYPE_BF16), "V3");
    CHECK(sl_cuda_latent_supports(320, 256, 32, SL_DTYPE_F16), "rank 256");
    CHECK(sl_cuda_latent_supports(576, 512, 128, SL_DTYPE_FP8_E4M3), "FP8");
    CHECK(!sl_cuda_latent_supports(576, 512, 128, SL_DTYPE_F32), "pages");
    CHECK(!sl_cuda_latent_supports(584, 512, 128, SL_DTYPE_BF16), "long");
    CHECK(!sl_cuda_latent_supports(576, 576, 128, SL_DTYPE_BF16), "values");
    CHECK(!sl_cuda_latent_supports(36, 28, 4, SL_DTYPE_BF16), "not a multiple of 8");
    CHECK(!sl_cuda_latent_supports(576, 512, 257, SL_DTYPE_BF16), "heads");
}

static void part(const char *name, void (*test)())
{
    printf("%s\n", name);
    test();
}

int main()
{
    setvbuf(stdout, nullptr, _IOLBF, 0);
    part("supports", test_supports);
    part("store", test_store);
    part("products of heads", test_heads);
    part("attention", test_attention);
    part("numbers that are none", test_odd);
    part("pages of FP8", test_fp8);
    part("long", test_long);
    printf("%ld rows checked, %ld compared bit for bit, in %ld runs: %d failures\n", n_rows_checked,
           n_rows_compared, n_runs, n_failures);
    return n_failures != 0;
}
