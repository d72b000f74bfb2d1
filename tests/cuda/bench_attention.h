/* SPDX-License-Identifier: MIT
 * bench_attention.h - attention over pages: batches of decodes, which read keys and values, and
 * chunks of prompts, which multiply. Layers go round: their pages are the copies.
 */
#ifndef SL_TESTS_CUDA_BENCH_ATTENTION_H
#define SL_TESTS_CUDA_BENCH_ATTENTION_H

#include "bench_util.h"
#include "cuda/attention/attention.h"
#include "cuda/attention/kv.cuh"
#include "quant/float.h"
#include "quant/fp8_e4m3.h"
#include "quant/kv4.h"

#define ATTN_BLOCK 16                               /* positions of a page */
#define ATTN_PASS  (static_cast<uint64_t>(1) << 44) /* seed of the queries */

struct attn_dims {
    int n_heads, n_kv, hd;
    enum sl_dtype dtype = SL_DTYPE_F16; /* of the pages: this, BF16, FP8_E4M3 or KV_TURBO4 */
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
    return 2 * static_cast<size_t>(d.n_kv) * (sl_kv_tile_bytes(d.dtype, d.hd) / SL_KV_TILE);
}

/* n_seqs sequences, each with n tokens to do behind pos. */
struct attn_case {
    int n_seqs, n, pos;
    int n_layers;
    enum sl_dtype dtype;
    size_t plane, page_bytes;
    std::vector<struct sl_span> spans;
    std::vector<int32_t> tables, positions;
};

static struct attn_case attn_make(struct attn_dims d, int n_seqs, int n, int pos, int most_layers)
{
    struct attn_case c = {};
    c.n_seqs = n_seqs, c.n = n, c.pos = pos, c.dtype = d.dtype;
    int pages = (pos + n + ATTN_BLOCK - 1) / ATTN_BLOCK;
    size_t layer = static_cast<size_t>(n_seqs) * static_cast<size_t>(pos + n) * attn_pos_bytes(d);
    c.n_layers = n_copies_for(layer, most_layers);
    c.plane = attn_pos_bytes(d) / 2 * ATTN_BLOCK;
    c.page_bytes = 2 * c.plane * static_cast<size_t>(c.n_layers);
    for (int s = 0; s < n_seqs; s++) {
        c.spans.push_back({s * n, n, pos, s * pages, 0});
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
    kv.dtype = c->dtype;
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
        batch.span_sizes = sl_batch_sizes_of(c.spans.data(), c.n_seqs);
    }
};

/* What queries are rounded to. */
static double attn_query(const struct attn_case *c, uint64_t i)
{
    float x = random_normal(ATTN_PASS + i);
    return static_cast<double>(c->dtype == SL_DTYPE_F16 ? sl_f16_to_f32(to_f16(x))
                                                        : from_bf16(to_bf16(x)));
}

static __global__ void attn_scales_kernel(uint8_t *pool, uint64_t n_tiles, int tile_bytes,
                                          uint16_t one)
{
    sl_grid_wait();
    const uint64_t step = static_cast<uint64_t>(gridDim.x) * blockDim.x;
    for (uint64_t i = static_cast<uint64_t>(blockIdx.x) * blockDim.x + threadIdx.x;
         i < n_tiles * SL_KV_TILE; i += step) {
        uint8_t *end = pool + (i / SL_KV_TILE + 1) * static_cast<uint64_t>(tile_bytes);
        reinterpret_cast<uint16_t *>(end)[static_cast<int>(i % SL_KV_TILE) - SL_KV_TILE] = one;
    }
    sl_grid_launch_dependents();
}

/* Fills n_bytes with pages of the format: element i is random_normal of i. FP8: byte i is the code
 * of that, and all scales are 1; so of codes of four bits, of which that is two. */
static void attn_fill(uint8_t *pool, size_t n_bytes, struct attn_dims d)
{
    const bool four = d.dtype == SL_KV_TURBO4;
    if (d.dtype != SL_DTYPE_FP8_E4M3 && !four) {
        fill(pool, n_bytes / 2, d.dtype == SL_DTYPE_F16 ? FILL_F16 : FILL_BF16);
        return;
    }
    const size_t tile = sl_kv_tile_bytes(d.dtype, d.hd);
    fill(pool, n_bytes, FILL_E4M3);
    sl_launch(b.cu, attn_scales_kernel, dim3(b.tiny ? 4 : 4096), dim3(256), 0, pool,
              static_cast<uint64_t>(n_bytes / tile), static_cast<int>(tile),
              static_cast<uint16_t>(four ? 0x3C00 : 247 << 7));
    must_be_well();
}

/* The same of four-bit codes: kv4.cuh. */
static double attn_level(int hd, size_t tile, int pos, int d)
{
    static const int signs[] = {7, 15, 3, 11};
    const int in = d % 32, j = in / 8;
    const size_t at = tile + static_cast<size_t>(sl_kv_piece(hd / 2, pos, d / 32) + in % 8 * 2);
    const unsigned upper = to_e4m3(random_normal(at + 1));
    const unsigned bits = to_e4m3(random_normal(at)) | upper << 8;
    const unsigned code = (bits >> 4 * j & 7) | (bits >> signs[j] & 1) * SL_KV4_SIGN;
    return static_cast<double>(sl_kv4_level(sl_kv4_of(SL_KV_TURBO4), static_cast<uint8_t>(code)));
}

/* Element d of the position in a tile at byte `tile` of such a pool. */
static double attn_number(const struct attn_case *c, int hd, size_t tile, int pos, int d)
{
    int in = d % 16; /* where FP8 has it: kv.cuh */
    if (c->dtype == SL_KV_TURBO4)
        return attn_level(hd, tile, pos, d);
    size_t at = tile;
    if (c->dtype == SL_DTYPE_FP8_E4M3) {
        at += static_cast<size_t>(sl_kv_piece(hd, pos, d / 16) + in % 8 / 2 * 4 + in % 2 * 2 +
                                  (in < 8));
        return static_cast<double>(sl_fp8_e4m3_to_f32(to_e4m3(random_normal(at))));
    }
    at = (at + static_cast<size_t>(sl_kv_piece(hd * 2, pos, d / 8))) / 2;
    float x = random_normal(at + static_cast<size_t>(d % 8));
    return static_cast<double>(c->dtype == SL_DTYPE_F16 ? sl_f16_to_f32(to_f16(x))
                                                        : from_bf16(to_bf16(x)));
}

/* Attention of the last token of sequence 0 with one head, in double, against what is there. */
static void attn_check(const struct attn_case *c, struct attn_dims d, const dev<uint16_t> *out,
                       int head)
{
    const size_t hd = static_cast<size_t>(d.hd), row = static_cast<size_t>(d.n_heads) * hd;
    const size_t kv_head = static_cast<size_t>(head / (d.n_heads / d.n_kv));
    const size_t q_at = static_cast<size_t>(c->n - 1) * row + static_cast<size_t>(head) * hd;
    const size_t layer = 2 * c->plane * static_cast<size_t>(c->n_layers - 1);
    std::vector<double> sum(hd, 0.0), q;
    std::vector<uint16_t> got(hd);
    double total = 0.0, squares = 0.0;
    for (size_t i = 0; i < hd; i++)
        q.push_back(attn_query(c, q_at + i));
    for (int pos = 0; pos < c->pos + c->n; pos++) {
        size_t page = static_cast<size_t>(c->tables[static_cast<size_t>(pos / ATTN_BLOCK)]);
        size_t at = page * c->page_bytes + layer + kv_head * sl_kv_tile_bytes(c->dtype, d.hd);
        double score = 0.0;
        for (size_t i = 0; i < hd; i++)
            score += q[i] * attn_number(c, d.hd, at, pos % ATTN_BLOCK, static_cast<int>(i));
        double p = exp(score / sqrt(static_cast<double>(d.hd)));
        for (size_t i = 0; i < hd; i++)
            sum[i] +=
                p * attn_number(c, d.hd, c->plane + at, pos % ATTN_BLOCK, static_cast<int>(i));
        total += p;
        squares += p * p;
    }
    if (c->dtype == SL_KV_TURBO4) { /* values are rotated ones */
        std::vector<float> back;
        for (double x : sum)
            back.push_back(static_cast<float>(x));
        sl_kv4_rotate_back(back.data(), d.hd);
        sum.assign(back.begin(), back.end());
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

/* budget_ms: of replays. check: compare two heads with what they should be, which takes a while. */
static struct attn_times attn_time(const struct attn_case *c, struct attn_dims d,
                                   const dev<uint16_t> *pool, double budget_ms = ROW_MS,
                                   bool check = true)
{
    const size_t n = static_cast<size_t>(c->n_seqs) * static_cast<size_t>(c->n) *
                     static_cast<size_t>(d.n_heads) * static_cast<size_t>(d.hd);
    attn_device on(*c);
    dev<float> q(n);
    dev<uint16_t> out(n);
    struct attn_times t;
    fill(q.p, n, FILL_F32, ATTN_PASS);
    t.plan_us = time_us(1, budget_ms / 5, [&](int) {
        sl_cuda_attention_plan(b.cu, &on.batch, d.n_heads, d.n_kv, d.hd, false);
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
    t.us = time_us(c->n_layers, budget_ms, [&](int layer) {
        op.kv = attn_view(c, pool, layer);
        b.be->vt->attention(b.be, &op);
    });
    if (check) {
        attn_check(c, d, &out, 0);
        attn_check(c, d, &out, d.n_heads - 1);
    }
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
