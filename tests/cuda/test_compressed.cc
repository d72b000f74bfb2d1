/* SPDX-License-Identifier: MIT
 * Hyper-connections, and attention to a window and to rows made of several tokens each, on a GPU:
 * against the CPU's operations, which tests/ops/test_rows.c compares with formulas in double; and
 * the same bits in steps of any lengths, beside another sequence, with drafts, and whatever number
 * of heads a block has. What nobody may read is NaN. Runs in the simulator or on a GPU.
 */
#include "cuda/cuda.h"
#include "cuda/device.h"

extern "C" {
#include "base/rng.h"
#include "cpu/cpu.h"
}
#include "device_array.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <vector>

#ifdef SL_CUDA_SIM
#include "sim.h"
#endif

#define BLOCK  48
#define PAGES  6
#define PAGE   (168 << 10) /* bytes */
#define TURNED 12
#define WINDOW 21

static int n_failures;
static long n_checks;
static struct sl_backend *be, *cpu;

#define CHECK(cond, ...)                                      \
    do {                                                      \
        n_checks++;                                           \
        if (!(cond) && n_failures++ < 20) {                   \
            printf("%s:%d: %s: ", __FILE__, __LINE__, #cond); \
            printf(__VA_ARGS__);                              \
            printf("\n");                                     \
        }                                                     \
    } while (0)

static bool near(float a, float b, float tolerance)
{
    return fabsf(a - b) <= tolerance * (1.0f + fabsf(b));
}

/* grid > 0: multiples of 1 / grid, below 4, which pages hold as they are. */
static std::vector<float> numbers(uint64_t seed, size_t n, int grid = 0)
{
    struct sl_rng rng = {seed, 0};
    std::vector<float> v(n);
    for (float &x : v) {
        x = (float)sl_rng_normal(&rng);
        if (grid > 0)
            x = roundf(fminf(fmaxf(x, -3.0f), 3.0f) * (float)grid) / (float)grid;
    }
    return v;
}

static void wait()
{
    const struct sl_cuda *cu = sl_cuda(be);
    CHECK(cudaStreamSynchronize(cu->stream) == cudaSuccess && cu->error == cudaSuccess, "%s",
          cu->error_what != NULL ? cu->error_what : "synchronize");
}

static float bf16_of(uint16_t bits)
{
    const uint32_t u = (uint32_t)bits << 16;
    float f;
    memcpy(&f, &u, sizeof f);
    return f;
}

static float f16_of(uint16_t bits)
{
    const float m = ldexpf((float)(bits & 1023) + ((bits >> 10 & 31) != 0 ? 1024.0f : 0.0f),
                           ((bits >> 10 & 31) != 0 ? (bits >> 10 & 31) : 1) - 25);
    return bits >> 15 != 0 ? -m : m;
}

static float number_of(enum sl_dtype dtype, const uint8_t *row, int d)
{
    float f;
    uint16_t bits;
    memcpy(&bits, row + 2 * d, 2);
    if (dtype == SL_DTYPE_F32)
        memcpy(&f, row + 4 * d, sizeof f);
    else
        f = dtype == SL_DTYPE_F16 ? f16_of(bits) : bf16_of(bits);
    return f;
}

static void put_number(enum sl_dtype dtype, uint8_t *row, int d, float x)
{
    uint32_t u;
    memcpy(&u, &x, sizeof u);
    uint16_t bits = (uint16_t)(u >> 16); /* exact, as numbers are of a grid */
    if (dtype == SL_DTYPE_F32) {
        memcpy(row + 4 * d, &x, sizeof x);
        return;
    }
    if (dtype == SL_DTYPE_F16) {
        const int e = (int)(u >> 23 & 255) - 127;
        bits = (uint16_t)((u >> 16 & 0x8000) | (x == 0 ? 0 : (uint32_t)(e + 15) << 10) |
                          (u >> 13 & 1023));
    }
    memcpy(row + 2 * d, &bits, 2);
}

/* ---------------------------------------------------------------- hyper-connections */

static void hyper_case(int n, int n_streams, int h, bool last)
{
    const int width = n_streams * h, n_w = last ? n_streams : sl_hyper_weights(n_streams);
    const float scale[3] = {0.7f, 1.2f, 0.9f};
    std::vector<float> x = numbers(1, (size_t)(n * width)), w = numbers(2, (size_t)(n * n_w)),
                       base = numbers(3, (size_t)n_w), y = numbers(4, (size_t)(n * h)),
                       out((size_t)(n * h));
    dev<float> dx(x), dw(w), dbase(base), dy(y), dout(out.size()),
        dscale(std::vector<float>(scale, scale + 3));
    dev<uint16_t> dact(x.size());
    struct sl_op_hyper_read r = {};
    r.x = x.data(), r.w = w.data(), r.base = base.data(), r.scale = scale, r.last = last;
    r.norm_eps = 1e-5f, r.eps = 1e-4f, r.n_iters = 9, r.n = n, r.n_streams = n_streams, r.h = h;
    r.out = out.data();
    cpu->vt->hyper_read(cpu, &r);
    r.x = dx.p, r.w = dw.p, r.base = dbase.p, r.scale = dscale.p, r.out = dout.p;
    be->vt->hyper_read(be, &r);
    struct sl_op_hyper_write wr = {};
    wr.n = n, wr.n_streams = n_streams, wr.h = h;
    if (!last) {
        wr.x = x.data(), wr.y = y.data(), wr.w = w.data();
        cpu->vt->hyper_write(cpu, &wr);
        wr.x = dx.p, wr.y = dy.p, wr.w = dw.p, wr.act = dact.p;
        be->vt->hyper_write(be, &wr);
    }
    wait();
    const std::vector<float> w2 = dw.get(), out2 = dout.get(), x2 = dx.get();
    const std::vector<uint16_t> act = dact.get();
    for (size_t i = 0; i < w.size(); i++)
        CHECK(near(w2[i], w[i], 2e-6f), "weight %zu: %.9g, not %.9g", i, (double)w2[i],
              (double)w[i]);
    for (size_t i = 0; i < out.size(); i++)
        CHECK(near(out2[i], out[i], 4e-6f), "read %zu: %.9g, not %.9g", i, (double)out2[i],
              (double)out[i]);
    for (size_t i = 0; i < x.size() && !last; i++) {
        CHECK(near(x2[i], x[i], 4e-6f), "stream %zu: %.9g, not %.9g", i, (double)x2[i],
              (double)x[i]);
        CHECK(fabsf(bf16_of(act[i]) - x2[i]) <= fabsf(x2[i]) / 256, "act %zu", i);
    }
}

/* ---------------------------------------------------------------- rows of several tokens */

static std::vector<float> inv_freq;
static struct sl_rope rope, d_rope;

/* Steps of one sequence of n tokens, beside it the first `other` of another one with the same
 * numbers. Tables: sequence s has pages in an order of its own. */
struct step {
    std::vector<struct sl_span> spans;
    std::vector<int32_t> tables, positions;
    int n_tokens = 0;

    void add(int seq, int pos, int n, int n_drafts)
    {
        const struct sl_span s = {n_tokens, n, pos, (int32_t)tables.size(), n_drafts};
        spans.push_back(s);
        for (int i = 0; i < (pos + n + BLOCK - 1) / BLOCK; i++)
            tables.push_back(page(seq, i));
        for (int i = 0; i < n_drafts; i++)
            tables.push_back(2 * PAGES + i);
        for (int i = 0; i < n; i++)
            positions.push_back(pos + i);
        n_tokens += n;
    }
    static int page(int seq, int i)
    {
        return seq < 0 ? -1 : seq * PAGES + (i * 5 + 1) % PAGES;
    }
};

struct rows_case {
    int dim, ratio;
    bool overlap;
    enum sl_dtype dtype;
};

/* Of the values of n tokens from `from` on, those of a step. */
static std::vector<float> part(const std::vector<float> &all, const step &s, int width)
{
    std::vector<float> v;
    for (const struct sl_span &span : s.spans)
        v.insert(v.end(), all.begin() + (long)span.pos * width,
                 all.begin() + (long)(span.pos + span.n) * width);
    return v;
}

struct texts {
    std::vector<float> kv, gate, bias, norm;
};

static void compress(struct sl_backend *b, const rows_case &c, const texts &x, const step &s,
                     std::vector<uint8_t> *pool, const dev<uint8_t> *d_pool)
{
    const int w = c.dim * (c.overlap ? 2 : 1);
    std::vector<float> kv = part(x.kv, s, w), gate = part(x.gate, s, w);
    struct sl_batch batch = {};
    batch.n_tokens = s.n_tokens, batch.n_spans = (int32_t)s.spans.size(), batch.n_tables = 1;
    struct sl_op_compress a = {};
    a.batch = &batch, a.eps = 1e-5f, a.dim = c.dim, a.ratio = c.ratio, a.overlap = c.overlap;
    a.state.page_bytes = a.rows.page_bytes = PAGE;
    a.state.block_size = a.rows.block_size = BLOCK;
    a.rows.offset = sl_compress_state(c.dim, c.overlap);
    a.rows.dtype = c.dtype;
    if (pool != nullptr) {
        batch.spans = s.spans.data(), batch.block_tables = s.tables.data();
        a.kv = kv.data(), a.gate = gate.data(), a.bias = x.bias.data(), a.norm = x.norm.data();
        a.rope = &rope, a.state.pool = a.rows.pool = pool->data();
        b->vt->compress(b, &a);
        return;
    }
    dev<struct sl_span> spans(s.spans);
    dev<int32_t> tables(s.tables);
    dev<float> d_kv(kv), d_gate(gate), bias(x.bias), norm(x.norm);
    batch.spans = spans.p, batch.block_tables = tables.p;
    a.kv = d_kv.p, a.gate = d_gate.p, a.bias = bias.p, a.norm = norm.p;
    a.rope = &d_rope, a.state.pool = a.rows.pool = d_pool->p;
    b->vt->compress(b, &a);
    wait();
}

/* All of n tokens in steps of `chunk`; the other sequence is as far as it can be. */
static std::vector<uint8_t> compress_steps(const rows_case &c, const texts &x, int n, int chunk,
                                           bool other)
{
    dev<uint8_t> pool(std::vector<uint8_t>((size_t)(2 * PAGES + 4) * PAGE, 0xFF));
    for (int at = 0; at < n; at += chunk) {
        step s;
        if (other && at > 0)
            s.add(1, at - chunk, chunk, 0);
        s.add(0, at, SL_MIN(chunk, n - at), 0);
        compress(be, c, x, s, nullptr, &pool);
    }
    return pool.get();
}

static const uint8_t *row_at(const std::vector<uint8_t> &pool, const rows_case &c, int seq, int r)
{
    const int last = (r + 1) * c.ratio - 1;
    return pool.data() + (size_t)step::page(seq, last / BLOCK) * PAGE +
           sl_compress_state(c.dim, c.overlap) +
           (size_t)(last % BLOCK / c.ratio) * sl_row_bytes(c.dtype, c.dim);
}

static void compare_rows(const rows_case &c, const std::vector<uint8_t> &have,
                         const std::vector<uint8_t> &want, int n, int n_state)
{
    rows_case plain = c;
    plain.dtype = SL_DTYPE_F32;
    const float tolerance = c.dtype == SL_DTYPE_F16 ? 6e-4f : 4.5e-3f;
    for (int r = 0; r < n / c.ratio; r++)
        for (int d = 0; d < c.dim; d++) {
            const float x = number_of(c.dtype, row_at(have, c, 0, r), d);
            const float y = number_of(SL_DTYPE_F32, row_at(want, plain, 0, r), d);
            CHECK(near(x, y, tolerance), "row %d, %d: %g, not %g", r, d, (double)x, (double)y);
        }
    for (int block = 0; block <= (n - 1) / BLOCK; block++)
        for (int i = 0; i < n_state; i++) {
            float x, y;
            const size_t at = (size_t)step::page(0, block) * PAGE + (size_t)i * sizeof x;
            memcpy(&x, have.data() + at, sizeof x);
            memcpy(&y, want.data() + at, sizeof y);
            CHECK(x == y || near(x, y, 1e-6f), "state %d of block %d: %g, not %g", i, block,
                  (double)x, (double)y);
        }
}

/* With drafts behind token n: their states are those of steps that have these tokens. */
static void compress_drafts(const rows_case &c, const texts &x, int n, int n_drafts, int n_state)
{
    dev<uint8_t> pool(std::vector<uint8_t>((size_t)(2 * PAGES + 4) * PAGE, 0xFF));
    step first, second;
    first.add(0, 0, n - 2, 0);
    second.add(0, n - 2, 2 + n_drafts, n_drafts);
    compress(be, c, x, first, nullptr, &pool);
    compress(be, c, x, second, nullptr, &pool);
    const std::vector<uint8_t> have = pool.get();
    for (int i = 0; i <= n_drafts; i++) {
        const std::vector<uint8_t> want = compress_steps(c, x, n + i, 1 << 20, false);
        const int id = i == 0 ? step::page(0, (n - 1) / BLOCK) : 2 * PAGES + i - 1;
        CHECK(memcmp(have.data() + (size_t)id * PAGE,
                     want.data() + (size_t)step::page(0, (n + i - 1) / BLOCK) * PAGE,
                     (size_t)n_state * sizeof(float)) == 0,
              "state behind draft %d of %d", i, n_drafts);
    }
}

static void rows_test(const rows_case &c)
{
    const int n = c.dim > 256 ? 66 : 110, w = c.dim * (c.overlap ? 2 : 1), n_state = 3 * w;
    const texts x = {numbers(11, (size_t)(n * w)), numbers(12, (size_t)(n * w)),
                     numbers(13, (size_t)(c.ratio * w)), numbers(14, (size_t)c.dim)};
    rows_case plain = c;
    plain.dtype = SL_DTYPE_F32;
    std::vector<uint8_t> want((size_t)(2 * PAGES + 4) * PAGE, 0xFF);
    step all;
    all.add(0, 0, n, 0);
    compress(cpu, plain, x, all, &want, nullptr);
    const std::vector<uint8_t> whole = compress_steps(c, x, n, n, false);
    compare_rows(c, whole, want, n, n_state);
    static const int chunks[] = {1, 7, 25};
    for (int chunk : chunks) {
        const std::vector<uint8_t> have = compress_steps(c, x, n, chunk, chunk != 25);
        CHECK(memcmp(have.data(), whole.data(), (size_t)PAGES * PAGE) == 0,
              "rows of %d tokens of %d in steps of %d", c.ratio, c.dim, chunk);
    }
    compress_drafts(c, x, BLOCK - 1, 3, n_state);
    compress_drafts(c, x, 61, 3, n_state);
}

/* ---------------------------------------------------------------- attention */

struct attention_case {
    int n, dim, n_heads, ratio, index_heads, index_dim, top_k; /* top_k 0: all rows are seen */
    enum sl_dtype dtype;
};

struct attention_text {
    std::vector<float> near_rows, far_rows, index_rows, q, index_q, w, sinks;
};

/* Pages of rows: near ones from 0 on, then far ones, then those of the index. */
static size_t far_at(const attention_case &c, enum sl_dtype dtype)
{
    return BLOCK * sl_row_bytes(dtype, c.dim);
}

static size_t index_at(const attention_case &c, enum sl_dtype dtype)
{
    return far_at(c, dtype) +
           (size_t)sl_rows_of_block(BLOCK, SL_MAX(c.ratio, 2)) * sl_row_bytes(dtype, c.dim);
}

static void put_row(std::vector<uint8_t> *pool, enum sl_dtype dtype, size_t at, int dim, int ratio,
                    int r, const float *x)
{
    const int last = (r + 1) * ratio - 1;
    uint8_t *to = pool->data() + (size_t)step::page(0, last / BLOCK) * PAGE + at +
                  (size_t)(last % BLOCK / ratio) * sl_row_bytes(dtype, dim);
    for (int d = 0; d < sl_kv_padded_dim(dim); d++)
        put_number(dtype, to, d, d < dim ? x[d] : 0.0f);
}

static std::vector<uint8_t> pages_of(const attention_case &c, const attention_text &x,
                                     enum sl_dtype dtype)
{
    std::vector<uint8_t> pool((size_t)(2 * PAGES) * PAGE, 0xFF);
    for (int t = 0; t < c.n; t++)
        put_row(&pool, dtype, 0, c.dim, 1, t, &x.near_rows[(size_t)(t * c.dim)]);
    for (int r = 0; c.ratio > 0 && r < c.n / c.ratio; r++) {
        put_row(&pool, dtype, far_at(c, dtype), c.dim, c.ratio, r,
                &x.far_rows[(size_t)(r * c.dim)]);
        put_row(&pool, sl_index_dtype(dtype), index_at(c, dtype), c.index_dim, c.ratio, r,
                &x.index_rows[(size_t)(r * c.index_dim)]);
    }
    return pool;
}

static struct sl_rows_view view_of(uint8_t *pool, size_t at, enum sl_dtype dtype)
{
    struct sl_rows_view v = {};
    v.pool = pool, v.page_bytes = PAGE, v.offset = at, v.dtype = dtype, v.block_size = BLOCK;
    return v;
}

static struct sl_op_compressed_select select_of(const attention_case &c, struct sl_batch *b,
                                                enum sl_dtype dtype, uint8_t *pool)
{
    struct sl_op_compressed_select a = {};
    a.batch = b, a.n_heads = c.index_heads, a.dim = c.index_dim, a.top_k = c.top_k;
    a.ratio = c.ratio, a.n_most = c.n / c.ratio, a.n_scores = 3 * 256;
    a.rows = view_of(pool, index_at(c, dtype), sl_index_dtype(dtype));
    return a;
}

static struct sl_op_compressed_attention attention_of(const attention_case &c, struct sl_batch *b,
                                                      enum sl_dtype dtype, uint8_t *pool)
{
    struct sl_op_compressed_attention a = {};
    a.batch = b, a.n_heads = c.n_heads, a.dim = c.dim, a.window = WINDOW;
    a.scale = 1.0f / sqrtf((float)c.dim), a.ratio = c.ratio, a.top_k = c.top_k;
    a.near = view_of(pool, 0, dtype), a.far = view_of(pool, far_at(c, dtype), dtype);
    a.n_most = WINDOW + (c.ratio == 0 ? 0 : c.top_k > 0 ? c.top_k : c.n / c.ratio);
    return a;
}

/* The CPU's results of all tokens; top: [n, top_k]. */
static std::vector<float> attend_cpu(const attention_case &c, const attention_text &x,
                                     std::vector<int32_t> *top)
{
    std::vector<uint8_t> pool = pages_of(c, x, SL_DTYPE_F32);
    std::vector<float> out((size_t)(c.n * c.n_heads * c.dim)), scores(3 * 256),
        angles((size_t)(c.n * TURNED));
    step s;
    s.add(0, 0, c.n, 0);
    struct sl_batch b = {};
    b.n_tokens = c.n, b.n_spans = 1, b.n_tables = 1;
    b.spans = s.spans.data(), b.block_tables = s.tables.data();
    struct sl_op_rope_angles r = {s.positions.data(), c.n, &rope, angles.data()};
    cpu->vt->rope_angles(cpu, &r);
    if (c.top_k > 0) {
        struct sl_op_compressed_select a = select_of(c, &b, SL_DTYPE_F32, pool.data());
        a.q = x.index_q.data(), a.w = x.w.data(), a.scores = scores.data(), a.top = top->data();
        cpu->vt->compressed_select(cpu, &a);
    }
    struct sl_op_compressed_attention a = attention_of(c, &b, SL_DTYPE_F32, pool.data());
    const size_t room_bytes = sl_compressed_room(SL_DTYPE_F32, c.dim, a.n_most, 4);
    void *room = sl_aligned_alloc(room_bytes);
    memset(room, 0, room_bytes);
    a.q = x.q.data(), a.sinks = x.sinks.data(), a.top = c.top_k > 0 ? top->data() : NULL;
    a.room = room, a.room_bytes = room_bytes, a.rope = &rope, a.angles = angles.data();
    a.out = out.data();
    cpu->vt->compressed_attention(cpu, &a);
    sl_aligned_free(room, room_bytes);
    return out;
}

/* A step of ours; what it gives is put where its tokens are in out and top. */
static void attend_step(const attention_case &c, const attention_text &x, const step &s,
                        const dev<uint8_t> &pool, std::vector<uint16_t> *out,
                        std::vector<int32_t> *top)
{
    const int width = c.n_heads * c.dim, asks = c.index_heads * c.index_dim;
    dev<struct sl_span> spans(s.spans);
    dev<int32_t> tables(s.tables), positions(s.positions), seen((size_t)s.n_tokens),
        d_top(std::vector<int32_t>((size_t)(s.n_tokens * SL_MAX(c.top_k, 1)), 0x7FFFFFFF));
    dev<float> q(part(x.q, s, width)), index_q(part(x.index_q, s, asks)),
        w(part(x.w, s, c.index_heads)), sinks(x.sinks), scores(3 * 256),
        angles((size_t)(s.n_tokens * TURNED));
    dev<uint16_t> d_out((size_t)(s.n_tokens * width));
    struct sl_batch b = {};
    b.n_tokens = s.n_tokens, b.n_spans = (int32_t)s.spans.size(), b.n_tables = 1;
    b.spans = spans.p, b.block_tables = tables.p, b.positions = positions.p;
    struct sl_op_rope_angles r = {positions.p, s.n_tokens, &d_rope, angles.p};
    be->vt->rope_angles(be, &r);
    if (c.top_k > 0) {
        struct sl_op_compressed_select a = select_of(c, &b, c.dtype, pool.p);
        a.q = index_q.p, a.w = w.p, a.scores = scores.p, a.top = d_top.p, a.seen = seen.p;
        be->vt->compressed_select(be, &a);
    }
    struct sl_op_compressed_attention a = attention_of(c, &b, c.dtype, pool.p);
    a.q = q.p, a.sinks = sinks.p, a.top = c.top_k > 0 ? d_top.p : NULL;
    a.rope = &d_rope, a.angles = angles.p, a.out = d_out.p;
    be->vt->compressed_attention(be, &a);
    wait();
    const std::vector<uint16_t> rows = d_out.get();
    const std::vector<int32_t> chosen = d_top.get();
    size_t at = 0;
    for (const struct sl_span &span : s.spans)
        for (int i = 0; i < span.n; i++, at++) {
            memcpy(&(*out)[(size_t)((span.pos + i) * width)], &rows[at * (size_t)width],
                   (size_t)width * 2);
            for (int k = 0; k < c.top_k; k++)
                (*top)[(size_t)((span.pos + i) * c.top_k + k)] =
                    chosen[at * (size_t)c.top_k + (size_t)k];
        }
}

static void attention_test(const attention_case &c)
{
    const int width = c.n_heads * c.dim, n_far = c.ratio > 0 ? c.n / c.ratio : 0;
    attention_text x = {numbers(21, (size_t)(c.n * c.dim), 8),
                        numbers(22, (size_t)(n_far * c.dim), 8),
                        numbers(23, (size_t)(n_far * c.index_dim), 1),
                        numbers(24, (size_t)(c.n * width), 8),
                        numbers(25, (size_t)(c.n * c.index_heads * c.index_dim), 1),
                        numbers(26, (size_t)(c.n * c.index_heads), 1),
                        numbers(27, (size_t)c.n_heads)};
    std::vector<int32_t> want_top((size_t)(c.n * c.top_k)), top(want_top.size()),
        again(want_top.size());
    const std::vector<float> want = attend_cpu(c, x, &want_top);
    std::vector<uint16_t> out((size_t)(c.n * width)), other(out.size());
    const dev<uint8_t> pool(pages_of(c, x, c.dtype));
    step all;
    all.add(0, 0, c.n, 0);
    attend_step(c, x, all, pool, &out, &top);
    for (size_t i = 0; i < out.size(); i++)
        CHECK(near(bf16_of(out[i]), want[i], 1.2e-2f), "token %zu, %zu: %g, not %g",
              i / (size_t)width, i % (size_t)width, (double)bf16_of(out[i]), (double)want[i]);
    for (int t = 0; t < c.n && c.top_k > 0; t++)
        for (int k = 0; k < c.top_k && (t + 1) / c.ratio > c.top_k; k++)
            CHECK(top[(size_t)(t * c.top_k + k)] == want_top[(size_t)(t * c.top_k + k)],
                  "token %d chooses %d, not %d", t, top[(size_t)(t * c.top_k + k)],
                  want_top[(size_t)(t * c.top_k + k)]);
    static const int chunks[] = {1, 9};
    const int n_sms = sl_cuda(be)->n_sms;
    for (int chunk : chunks) {
        std::vector<uint16_t> have(out.size());
        sl_cuda(be)->n_sms = chunk == 9 ? 1000 : n_sms; /* few heads of a block, or many */
        for (int at = c.n - (chunk == 1 ? 3 : 13); at < c.n; at += chunk) {
            step s;
            s.add(0, at, SL_MIN(chunk, c.n - at), 0);
            if (chunk == 1) /* the same pages, at another position */
                s.add(0, at / 2, 2, 0);
            attend_step(c, x, s, pool, &have, &again);
            const int n = SL_MIN(chunk, c.n - at);
            CHECK(memcmp(&have[(size_t)(at * width)], &out[(size_t)(at * width)],
                         (size_t)(n * width) * 2) == 0,
                  "%d dimensions in steps of %d, at %d", c.dim, chunk, at);
            CHECK(chunk != 1 || memcmp(&have[(size_t)(at / 2 * width)],
                                       &out[(size_t)(at / 2 * width)], (size_t)width * 4) == 0,
                  "%d dimensions beside another, at %d", c.dim, at / 2);
        }
        sl_cuda(be)->n_sms = n_sms;
    }
}

/* ---------------------------------------------------------------- rows of tokens, and tails */

static void store_test(int dim, enum sl_dtype dtype)
{
    const int n = 60;
    const std::vector<float> x = numbers(31, (size_t)(n * dim)), norm = numbers(32, (size_t)dim);
    std::vector<float> angles((size_t)(n * TURNED)), y = x;
    std::vector<uint8_t> pool((size_t)(2 * PAGES) * PAGE, 0xFF);
    step s;
    s.add(0, 0, n, 0);
    struct sl_op_rope_angles r = {s.positions.data(), n, &rope, angles.data()};
    cpu->vt->rope_angles(cpu, &r);
    struct sl_batch b = {};
    b.n_tokens = n, b.n_spans = 1, b.n_tables = 1;
    b.spans = s.spans.data(), b.block_tables = s.tables.data();
    struct sl_op_row_store a = {};
    a.batch = &b, a.x = x.data(), a.norm = norm.data(), a.eps = 1e-5f, a.dim = dim;
    a.rope = &rope, a.angles = angles.data(), a.rows = view_of(pool.data(), 0, SL_DTYPE_F32);
    cpu->vt->row_store(cpu, &a);
    struct sl_op_turn_tails t = {};
    t.x = y.data(), t.n = n / 4, t.n_heads = 4, t.dim = dim, t.norm = true, t.eps = 1e-5f;
    t.rope = &rope, t.angles = angles.data();
    cpu->vt->turn_tails(cpu, &t);
    dev<struct sl_span> spans(s.spans);
    dev<int32_t> tables(s.tables);
    dev<float> dx(x), dnorm(norm), dangles(angles);
    dev<uint8_t> dpool(std::vector<uint8_t>(pool.size(), 0xFF));
    b.spans = spans.p, b.block_tables = tables.p;
    a.x = dx.p, a.norm = dnorm.p, a.angles = dangles.p, a.rope = &d_rope;
    a.rows = view_of(dpool.p, 0, dtype);
    be->vt->row_store(be, &a);
    t.x = dx.p, t.angles = dangles.p, t.rope = &d_rope;
    be->vt->turn_tails(be, &t);
    wait();
    const std::vector<uint8_t> have = dpool.get();
    const std::vector<float> turned = dx.get();
    for (int i = 0; i < n * dim; i++) {
        const size_t at = (size_t)step::page(0, i / dim / BLOCK) * PAGE;
        const size_t row = (size_t)(i / dim % BLOCK);
        const float u =
            number_of(dtype, have.data() + at + row * sl_row_bytes(dtype, dim), i % dim);
        const float v = number_of(
            SL_DTYPE_F32, pool.data() + at + row * sl_row_bytes(SL_DTYPE_F32, dim), i % dim);
        CHECK(near(u, v, dtype == SL_DTYPE_F16 ? 6e-4f : 4.5e-3f), "row %d, %d: %g, not %g",
              i / dim, i % dim, (double)u, (double)v);
        CHECK(near(turned[(size_t)i], y[(size_t)i], 2e-6f), "tail %d: %g, not %g", i,
              (double)turned[(size_t)i], (double)y[(size_t)i]);
    }
}

int main()
{
    struct sl_cuda_config cfg = {0, 1, false};
    struct sl_cpu_config cpu_cfg = {};
    struct sl_error err = {};
    cpu_cfg.n_threads = 1;
    if (sl_cuda_create(&cfg, &be, &err) != 0 || sl_cpu_create(&cpu_cfg, &cpu, &err) != 0) {
        printf("cannot go on: %s\n", err.msg);
        return 1;
    }
    for (int i = 0; i < TURNED / 2; i++)
        inv_freq.push_back(powf(50.0f, -2.0f * (float)i / TURNED));
    {
        const dev<float> freq(inv_freq);
        rope.n_dims = d_rope.n_dims = TURNED;
        rope.pairing = d_rope.pairing = SL_ROPE_INTERLEAVED;
        rope.attn_factor = d_rope.attn_factor = 1.0f;
        rope.inv_freq = inv_freq.data(), d_rope.inv_freq = freq.p;
        for (int last = 0; last < 2; last++) {
            hyper_case(6, 4, 52, last != 0);
            hyper_case(3, 3, 1284, last != 0);
            hyper_case(2, 2, 2052, last != 0);
        }
        store_test(40, SL_DTYPE_F16);
        store_test(512, SL_DTYPE_BF16);
        rows_test({40, 4, true, SL_DTYPE_BF16});
        rows_test({24, 20, false, SL_DTYPE_F16});
        rows_test({512, 4, true, SL_DTYPE_F16});
        rows_test({136, 64, false, SL_DTYPE_BF16});
        attention_test({46, 40, 5, 4, 20, 40, 7, SL_DTYPE_BF16});
        attention_test({34, 128, 5, 2, 5, 12, 7, SL_DTYPE_F16});
        attention_test({45, 24, 70, 20, 1, 8, 0, SL_DTYPE_F16});
        attention_test({30, 48, 3, 0, 1, 8, 0, SL_DTYPE_BF16});
        attention_test({22, 512, 3, 2, 64, 128, 9, SL_DTYPE_F16});
#ifndef SL_CUDA_SIM
        attention_test({200, 512, 64, 4, 64, 128, 31, SL_DTYPE_F16});
        attention_test({200, 512, 128, 2, 64, 128, 50, SL_DTYPE_BF16});
        attention_test({200, 512, 64, 2, 1, 8, 0, SL_DTYPE_BF16});
#endif
    }
    be->vt->destroy(be);
    cpu->vt->destroy(cpu);
    printf("test_compressed: %ld checks, %d failures\n", n_checks, n_failures);
    return n_failures != 0;
}
