/* SPDX-License-Identifier: MIT
 * attention_scene.h - sequences with their pages, of one layer, and a run of attention over them,
 * for test_attention.cc.
 */
#ifndef SL_TESTS_CUDA_ATTENTION_SCENE_H
#define SL_TESTS_CUDA_ATTENTION_SCENE_H

#include "cuda/attention/attention.h"
#include "cuda/attention/kv.cuh"
#include "cuda/device.h"
#include "device_array.h"
#include "quant/float.h"
#include "quant/fp8_e4m3.h"
#include "quant/kv4.h"

#include <float.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

#include <algorithm>
#include <vector>

static int n_failures;
static long n_rows_checked, n_rows_compared, n_runs;

#define CHECK(cond, ...)                                      \
    do {                                                      \
        if (!(cond) && n_failures++ < 20) {                   \
            printf("%s:%d: %s: ", __FILE__, __LINE__, #cond); \
            printf(__VA_ARGS__);                              \
            printf("\n");                                     \
        }                                                     \
    } while (0)

/* ---------------------------------------------------------------- numbers */

static uint64_t mix(uint64_t x)
{
    x += 0x9E3779B97F4A7C15u;
    x = (x ^ (x >> 30)) * 0xBF58476D1CE4E5B9u;
    x = (x ^ (x >> 27)) * 0x94D049BB133111EBu;
    return x ^ (x >> 31);
}

/* About normal, a function of its key. */
static float normal(uint64_t key)
{
    float sum = 0.0f;
    for (int i = 0; i < 4; i++)
        sum += (float)(mix(key * 4 + (uint64_t)i) >> 40) * 0x1p-24f - 0.5f;
    return sum * 1.7320508f;
}

static uint16_t to_bf16(float f)
{
    uint32_t u;
    memcpy(&u, &f, 4);
    if (f != f)
        return (uint16_t)(u >> 16 | 0x40);
    return (uint16_t)((u + 0x7FFF + (u >> 16 & 1)) >> 16);
}

static float from_bf16(uint16_t h)
{
    uint32_t u = (uint32_t)h << 16;
    float f;
    memcpy(&f, &u, 4);
    return f;
}

/* ---------------------------------------------------------------- a scene */

struct span_of {
    int seq, pos, n; /* seq -1: padding */
};

/* A finite number as F16 has one. */
static float bounded(float x)
{
    return fabsf(x) <= FLT_MAX ? fminf(fmaxf(x, -65504.0f), 65504.0f) : x;
}

/* As pages of this format, FP8 aside, hold a number. */
static float rounded(enum sl_dtype format, float x)
{
    if (format != SL_DTYPE_F16)
        return from_bf16(to_bf16(x));
    return sl_f16_to_f32(sl_f32_to_f16(bounded(x)));
}

/* Sequences with their pages, of one layer. Values are functions of (seed, sequence, position). */
struct scene {
    int hd, nq, nkv, bs, window;
    float softcap;
    bool sinks;
    std::vector<int> lens;
    uint64_t seed;
    /* values that are no numbers: of sequence 0 at this position, -1: none */
    int odd_pos = -1;
    int odd_key = -1;                     /* the same of keys, all of them */
    enum sl_dtype format = SL_DTYPE_BF16; /* of the pages */
    /* keys and values are numbers that pages of this format hold: FP8_E4M3 or KV_TURBO4 */
    enum sl_dtype held = SL_DTYPE_BF16;
    float q_times = 1.0f;
    float skip = 0.0f;   /* factor of skip-softmax; then some tiles are met well, some badly */
    bool chunks = false; /* windows that do not slide */
    bool whole = false;  /* rows see keys behind their own, of spans that are whole sequences */

    int seen_from(int pos) const
    {
        if (chunks)
            return pos / window * window;
        return window > 0 ? std::max(0, pos - window + 1) : 0;
    }
    int seen_last(int seq, int pos) const
    {
        const int last = lens[(size_t)seq] - 1;
        return !whole ? pos : window > 0 ? std::min(pos + window - 1, last) : last;
    }
    int dim() const
    {
        return (hd + 15) / 16 * 16;
    }
    int pages(int seq) const
    {
        return (lens[(size_t)seq] + bs - 1) / bs;
    }
    uint64_t key(int what, int seq, int pos, int head) const
    {
        return ((((seed * 8 + (uint64_t)what) * 64 + (uint64_t)seq) * 4096 + (uint64_t)pos) * 128 +
                (uint64_t)head) *
               256;
    }
    float q(int seq, int pos, int head, int d) const
    {
        return normal(key(0, seq, pos, head) + (uint64_t)d) * q_times;
    }
    float k(int seq, int pos, int head, int d) const
    {
        if (seq == 0 && pos == odd_key)
            return NAN;
        const float x = normal(key(1, seq, pos, head) + (uint64_t)d), of[] = {8, 1, 1, 16, 1};
        return rounded(format, skip > 0.0f ? (pos < 16 ? 2.0f : of[pos / 64 % 5] / 8) * x : x);
    }
    float v(int seq, int pos, int head, int d) const
    {
        if (seq == 0 && pos == odd_pos && d % 5 == 1)
            return d % 2 ? NAN : -INFINITY;
        return rounded(format, normal(key(2, seq, pos, head) + (uint64_t)d));
    }
    float sink(int head) const
    {
        return 2.0f * normal(key(3, 0, 0, head));
    }
    float scale() const
    {
        return 2.0f / sqrtf((float)hd);
    }
};

/* A row of one head as pages of FP8 hold it, by the text of quant/fp8_e4m3.h. */
struct fp8_row {
    std::vector<uint8_t> codes;
    int e;
    bool finite;
};

static fp8_row fp8_of(const std::vector<float> &x)
{
    fp8_row r = {std::vector<uint8_t>(x.size()), 0, true};
    float top = 0.0f;
    for (float v : x) {
        r.finite = r.finite && fabsf(v) <= FLT_MAX;
        top = fmaxf(top, fabsf(v));
    }
    r.e = sl_fp8_e4m3_exponent(r.finite ? top : 0.0f);
    for (size_t i = 0; i < x.size() && r.finite; i++)
        r.codes[i] = sl_f32_to_fp8_e4m3(ldexpf(x[i], -r.e));
    return r;
}

static std::vector<float> fp8_values(const std::vector<float> &x)
{
    fp8_row r = fp8_of(x);
    std::vector<float> v(x.size(), NAN);
    for (size_t i = 0; i < x.size() && r.finite; i++)
        v[i] = ldexpf(sl_fp8_e4m3_to_f32(r.codes[i]), r.e);
    return v;
}

/* The same of four-bit codes of numbers that have been rotated: by quant/kv4.h, and what kv4.cuh
 * makes of them. */
struct kv4_row {
    std::vector<uint8_t> codes;
    uint16_t scale;
};

static kv4_row kv4_of(const std::vector<float> &x)
{
    kv4_row r = {std::vector<uint8_t>(x.size()), 0};
    r.scale = sl_kv4_encode(sl_kv4_of(SL_KV_TURBO4), x.data(), (int)x.size(), r.codes.data());
    return r;
}

static std::vector<float> kv4_values(const std::vector<float> &x)
{
    const kv4_row r = kv4_of(x);
    const float scale = from_bf16(to_bf16(sl_f16_to_f32(r.scale)));
    std::vector<float> v;
    for (uint8_t c : r.codes)
        v.push_back(from_bf16(to_bf16(sl_kv4_level(sl_kv4_of(SL_KV_TURBO4), c) * scale)));
    return v;
}

/* A row of keys or values as the scene has it: codes of four bits are made of it as it is. */
static std::vector<float> held_by(const scene &s, const std::vector<float> &x)
{
    if (s.held == SL_DTYPE_FP8_E4M3)
        return fp8_values(x);
    return s.held == SL_KV_TURBO4 && s.format != SL_KV_TURBO4 ? kv4_values(x) : x;
}

static size_t tile_bytes(const scene &s)
{
    return sl_kv_tile_bytes(s.format, s.hd);
}

/* Magnitude of j at bit 4 j of an element, signs at 7, 15, 3, 11: the text of kv4.cuh. */
static void put_kv4(uint8_t *tile, int dim, int slot, const std::vector<float> &x)
{
    static const int signs[] = {7, 15, 3, 11};
    const kv4_row r = kv4_of(x);
    for (int e = 0; e < dim / 4; e++) {
        uint16_t bits = 0;
        for (int j = 0; j < 4; j++) {
            const unsigned code = r.codes[(size_t)(e / 8 * 32 + e % 8 + 8 * j)];
            bits = (uint16_t)(bits | (code & 7) << 4 * j | code >> 3 << signs[j]);
        }
        memcpy(tile + sl_kv_piece(dim / 2, slot, e / 8) + e % 8 * 2, &bits, 2);
    }
    memcpy(tile + 8 * dim + 2 * slot, &r.scale, 2);
}

/* A row x [dim] of a key head to its place in a plane of a page; of four-bit codes, rotated. */
static void put_row(const scene &s, uint8_t *plane, int head, int pos, const std::vector<float> &x)
{
    int dim = s.dim(), slot = pos % 16;
    uint8_t *tile = plane + (size_t)(head * (s.bs / 16) + pos % s.bs / 16) * tile_bytes(s);
    if (s.format == SL_KV_TURBO4) {
        put_kv4(tile, dim, slot, x);
        return;
    }
    if (s.format != SL_DTYPE_FP8_E4M3) {
        for (int d = 0; d < dim; d++) {
            float f = rounded(s.format, x[(size_t)d]);
            uint16_t u = s.format != SL_DTYPE_F16 ? to_bf16(f) : f != f ? 0x7FFF : sl_f32_to_f16(f);
            memcpy(tile + sl_kv_piece(dim * 2, slot, d / 8) + d % 8 * 2, &u, 2);
        }
        return;
    }
    fp8_row r = fp8_of(x);
    for (int d = 0; d < dim; d++) { /* word w of 16 dimensions: 2w + 8, 2w, 2w + 9, 2w + 1 */
        int in = d % 16, byte = in % 8 / 2 * 4 + in % 2 * 2 + (in < 8);
        tile[sl_kv_piece(dim, slot, d / 16) + byte] = r.codes[(size_t)d];
    }
    uint16_t scale = r.finite ? (uint16_t)((247 + r.e) << 7) : 0x7FC0;
    memcpy(tile + 16 * dim + 2 * slot, &scale, 2);
}

struct pages_of { /* host copy */
    size_t page_bytes, k_offset, v_offset;
    std::vector<uint8_t> pool;
    std::vector<std::vector<int32_t>> table; /* by sequence */
};

/* Page 0 is the scratch page. written: positions of each sequence that are there. */
static pages_of make_pages(const scene &s, const std::vector<int> &written)
{
    pages_of p;
    size_t plane = tile_bytes(s) * (size_t)(s.bs / 16 * s.nkv);
    p.k_offset = 48;
    p.v_offset = p.k_offset + plane + 16;
    p.page_bytes = p.v_offset + plane + 32;
    int n_pages = 1;
    for (size_t i = 0; i < s.lens.size(); i++)
        n_pages += s.pages((int)i) + 1;
    p.pool.assign((size_t)n_pages * p.page_bytes, 0xFF);
    std::vector<int32_t> ids;
    for (int i = 1; i < n_pages; i++)
        ids.push_back(i);
    for (size_t i = ids.size(); i > 1; i--)
        std::swap(ids[i - 1], ids[mix(s.seed * 77 + i) % i]);
    size_t next = 0;
    for (size_t seq = 0; seq < s.lens.size(); seq++) {
        p.table.emplace_back(ids.begin() + (long)next,
                             ids.begin() + (long)next + s.pages((int)seq));
        next += (size_t)s.pages((int)seq);
        for (int pos = 0; pos < written[seq]; pos++)
            for (int h = 0; h < s.nkv; h++) {
                uint8_t *page =
                    p.pool.data() + (size_t)p.table[seq][(size_t)(pos / s.bs)] * p.page_bytes;
                std::vector<float> x((size_t)s.dim()), y((size_t)s.dim());
                for (int d = 0; d < s.hd; d++) {
                    x[(size_t)d] = s.k((int)seq, pos, h, d);
                    y[(size_t)d] = s.v((int)seq, pos, h, d);
                }
                put_row(s, page + p.k_offset, h, pos, held_by(s, x));
                put_row(s, page + p.v_offset, h, pos, held_by(s, y));
            }
    }
    return p;
}

struct device {
    struct sl_cuda cu;
    explicit device(int n_sms) : cu()
    {
        cudaStreamCreateWithFlags(&cu.stream, cudaStreamNonBlocking);
        cu.n_sms = n_sms;
        cu.smem_max = 227 * 1024;
    }
    ~device()
    {
        cudaStreamDestroy(cu.stream);
    }
};

/* Rows of the batch in order, [nq * hd] bits each; the rows of padding are left out. */
typedef std::vector<std::vector<uint16_t>> rows_of;

#define ROW_PAD 8 /* elements between rows */

struct inputs {
    pages_of pages;
    std::vector<struct sl_span> spans;
    std::vector<int32_t> tables, positions;
    std::vector<float> q, sinks;
    int n_tokens = 0;
};

static inputs make_inputs(const scene &s, const std::vector<span_of> &spans)
{
    inputs in;
    std::vector<int> written(s.lens.size(), 0);
    for (const span_of &x : spans)
        if (x.seq >= 0)
            written[(size_t)x.seq] = std::max(written[(size_t)x.seq], x.pos + x.n);
    in.pages = make_pages(s, written);
    for (const span_of &x : spans) {
        struct sl_span d = {in.n_tokens, x.n, x.pos, (int32_t)in.tables.size(), 0};
        in.spans.push_back(d);
        /* Pages that no row of the span sees were given up. */
        const int seen = s.seen_from(x.pos) / s.bs;
        for (int i = 0; i < (x.pos + x.n + s.bs - 1) / s.bs; i++)
            in.tables.push_back(i < seen    ? -1
                                : x.seq < 0 ? 0
                                            : in.pages.table[(size_t)x.seq][(size_t)i]);
        in.tables.push_back(0x7FFFFFFF); /* nobody's */
        for (int i = 0; i < x.n; i++) {
            in.positions.push_back(x.pos + i);
            for (int c = 0; c < s.nq * s.hd; c++)
                in.q.push_back(x.seq < 0 ? 1.0f : s.q(x.seq, x.pos + i, c / s.hd, c % s.hd));
            in.q.insert(in.q.end(), ROW_PAD, NAN);
        }
        in.n_tokens += x.n;
    }
    for (int h = 0; h < s.nq; h++)
        in.sinks.push_back(s.sink(h));
    return in;
}

static struct sl_op_attention make_op(const scene &s, const pages_of &p)
{
    struct sl_op_attention op = {};
    op.ld_q = op.ld_out = s.nq * s.hd + ROW_PAD;
    op.n_heads = s.nq;
    op.n_kv_heads = s.nkv;
    op.head_dim = s.hd;
    op.scale = s.scale();
    op.whole = s.whole;
    op.window = s.window;
    op.chunks = s.chunks;
    op.softcap = s.softcap;
    op.skip_factor = s.skip;
    op.kv.page_bytes = p.page_bytes;
    op.kv.k_offset = p.k_offset;
    op.kv.v_offset = p.v_offset;
    op.kv.dtype = s.format;
    op.kv.block_size = s.bs;
    return op;
}

static rows_of read_rows(const scene &s, const std::vector<span_of> &spans,
                         const std::vector<uint16_t> &got)
{
    rows_of rows;
    const uint16_t *row = got.data();
    for (const span_of &x : spans)
        for (int t = 0; t < x.n; t++, row += s.nq * s.hd + ROW_PAD) {
            for (int c = 0; c < ROW_PAD; c++)
                CHECK(row[s.nq * s.hd + c] == 0x4242, "written behind a row");
            if (x.seq >= 0)
                rows.emplace_back(row, row + s.nq * s.hd);
        }
    return rows;
}

/* What lies in a workspace at first. */
static std::vector<uint8_t> anything(size_t n_bytes)
{
    return std::vector<uint8_t>(n_bytes, 0xcd);
}

/* slot_rows: rows of partial results the workspace holds besides the lists, -1: all that could be
 * wanted. layers: times the operation is called on one plan, which must not change anything. */
static struct sl_skip_counts n_skipped[2]; /* of all runs */
/* Most rows of a narrow tile, by the number of multiprocessors: it changes no bit. */
static const int narrows[] = {0, 0, 8, 0, 1, 4, 0};

[[maybe_unused]] static rows_of run(const scene &s, const std::vector<span_of> &spans, int n_sms,
                                    int slot_rows = -1, int layers = 1)
{
    inputs in = make_inputs(s, spans);
    const int n_spans = (int)spans.size();
    device d(n_sms);
    dev<uint8_t> pool(in.pages.pool);
    dev<struct sl_span> dspans(in.spans);
    dev<int32_t> tables(in.tables), positions(in.positions);
    dev<float> q(in.q), sinks(in.sinks);
    dev<uint16_t> out(std::vector<uint16_t>(in.q.size(), 0x4242));
    struct sl_cuda_attention_limits limits = {in.n_tokens, n_spans, slot_rows < 0 ? 20000 : 0,
                                              s.nq,        s.nkv,   s.hd};
    size_t bytes = sl_cuda_attention_workspace(&d.cu, &limits), row = ((size_t)s.dim() + 2) * 4;
    if (slot_rows >= 0) /* context 0: two slots a row */
        bytes -= ((size_t)(2 * in.n_tokens * s.nq) - (size_t)(slot_rows * s.nkv)) * row;
    dev<uint8_t> workspace(anything(bytes));
    d.cu.workspace = workspace.p;
    d.cu.workspace_bytes = workspace.n;
    struct sl_batch b = {};
    b.n_tokens = in.n_tokens, b.n_spans = n_spans;
    b.positions = positions.p, b.spans = dspans.p, b.block_tables = tables.p;
    if (n_sms % 2 == 0) /* what the host knows of spans changes no bit */
        b.span_sizes = sl_batch_sizes_of(in.spans.data(), n_spans);
    d.cu.attn_narrow = narrows[n_sms % SL_COUNT(narrows)];
    struct sl_op_attention op = make_op(s, in.pages);
    op.batch = &b;
    op.q = q.p;
    op.sinks = s.sinks ? sinks.p : nullptr;
    op.kv.pool = pool.p;
    op.out = out.p;
    dev<struct sl_skip_counts> counts(std::vector<struct sl_skip_counts>(n_skipped, n_skipped + 2));
    op.skip_counts = counts.p;
    sl_cuda_attention_plan(&d.cu, &b, s.nq, s.nkv, s.hd, s.whole);
    for (int i = 0; i < layers; i++)
        sl_cuda_attention(&d.cu.base, &op);
    CHECK(cudaStreamSynchronize(d.cu.stream) == cudaSuccess && d.cu.error == cudaSuccess, "%s",
          d.cu.error_what ? d.cu.error_what : "synchronize");
    n_runs++;
    memcpy(n_skipped, counts.get().data(), sizeof n_skipped);
    return read_rows(s, spans, out.get());
}

#endif
