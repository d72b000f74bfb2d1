/* SPDX-License-Identifier: MIT
 * bench_rows.h - operations on rows, and the choice of tokens. All move bytes: each input read
 * once, each output written once, over the time, against the read stream. Rows of a few tokens stay
 * in the L2 cache, here as in a step; then the time is what counts.
 */
#ifndef SL_TESTS_CUDA_BENCH_ROWS_H
#define SL_TESTS_CUDA_BENCH_ROWS_H

#include "bench_attention.h"
#include "cuda/sample/sample.h"

#define ROWS_COPIES 16

struct rows_dims {
    int hidden, vocab; /* vocab: rows of the table embed reads */
    int most;          /* tokens */
};

static struct rows_dims rows_dims_of()
{
    if (b.tiny)
        return {256, 100, 20};
    return {4096, 32768, 2048};
}

/* Activations of all copies, [copies, most, hidden]. */
struct rows_bench {
    struct rows_dims d;
    int n_copies;
    dev<float> x, y, w;
    dev<uint16_t> out;

    size_t all() const
    {
        return static_cast<size_t>(n_copies) * stride();
    }
    size_t stride() const
    {
        return static_cast<size_t>(d.most) * static_cast<size_t>(d.hidden);
    }
    explicit rows_bench(struct rows_dims d_)
        : d(d_), n_copies(b.tiny ? 2 : ROWS_COPIES), x(all()), y(all()),
          w(static_cast<size_t>(d_.hidden)), out(all())
    {
        fill(x.p, x.n, FILL_F32, 1);
        fill(y.p, y.n, FILL_F32, x.n);
        fill(w.p, w.n, FILL_F32, 7);
        wait_all();
    }
};

static void rows_row(const char *name, int m, double us, double bytes)
{
    printf("%-22s %6d %9.2f %9.1f %9.1f %8s\n", name, m, us, bytes * 1e-3, gb_s(bytes, us),
           share(bytes / us * 1e6, b.read_bps));
    fflush(stdout);
}

static void rows_norms(struct rows_bench *r, int m)
{
    double cells = static_cast<double>(m) * r->d.hidden;
    double us = time_us(r->n_copies, ROW_MS, [&](int c) {
        struct sl_op_rmsnorm a = {};
        size_t at = r->stride() * static_cast<size_t>(c);
        a.x = r->x.p + at, a.w = r->w.p, a.eps = 1e-5f, a.n = m, a.h = r->d.hidden;
        a.out = r->out.p + at;
        b.be->vt->rmsnorm(b.be, &a);
    });
    rows_row("rmsnorm", m, us, cells * 6 + r->d.hidden * 4.0);
    us = time_us(r->n_copies, ROW_MS, [&](int c) {
        struct sl_op_add_rmsnorm a = {};
        size_t at = r->stride() * static_cast<size_t>(c);
        a.x = r->x.p + at, a.y = r->y.p + at, a.w = r->w.p, a.eps = 1e-5f, a.n = m;
        a.h = r->d.hidden, a.out = r->out.p + at;
        b.be->vt->add_rmsnorm(b.be, &a);
    });
    rows_row("add_rmsnorm", m, us, cells * 14 + r->d.hidden * 4.0);
}

static std::vector<int32_t> random_ids(size_t n, int below)
{
    std::vector<int32_t> ids(n);
    for (size_t i = 0; i < n; i++)
        ids[i] = static_cast<int32_t>(random_bits(i * 3 + 1) % static_cast<uint32_t>(below));
    return ids;
}

static void rows_lookups(struct rows_bench *r, const struct sl_weight *table, int m)
{
    const size_t count = static_cast<size_t>(m);
    dev<int32_t> ids(random_ids(count * static_cast<size_t>(r->n_copies), r->d.vocab));
    dev<int32_t> rows(random_ids(count, r->d.most));
    double cells = static_cast<double>(m) * r->d.hidden;
    double us = time_us(r->n_copies, ROW_MS, [&](int c) {
        struct sl_op_embed a = {};
        a.ids = ids.p + static_cast<size_t>(c) * count, a.n = m, a.w = table, a.scale = 1.0f;
        a.out = r->y.p + r->stride() * static_cast<size_t>(c);
        b.be->vt->embed(b.be, &a);
    });
    rows_row("embed (bf16)", m, us, cells * 6);
    us = time_us(r->n_copies, ROW_MS, [&](int c) {
        struct sl_op_gather_rows a = {};
        size_t at = r->stride() * static_cast<size_t>(c);
        a.x = r->x.p + at, a.rows = rows.p, a.n = m;
        a.row_bytes = static_cast<size_t>(r->d.hidden) * 4;
        a.out = r->y.p + at;
        b.be->vt->gather_rows(b.be, &a);
    });
    rows_row("gather_rows", m, us, cells * 8);
}

/* One prompt of m tokens: the angles, and its queries, keys and values through the rotation. */
static void rows_rope(struct rows_bench *r, int m)
{
    const struct attn_dims d = attn_dims_of();
    const int n_copies = std::min(r->n_copies, b.tiny ? 2 : 8);
    struct attn_case c = attn_make(d, 1, m, 0, 1);
    c.n_layers = n_copies;
    c.page_bytes = 2 * c.plane * static_cast<size_t>(n_copies);
    attn_device on(c);
    const size_t half = static_cast<size_t>(d.hd) / 2;
    std::vector<float> freq(half);
    for (size_t i = 0; i < half; i++)
        freq[i] =
            powf(500000.0f, -static_cast<float>(i) / static_cast<float>(half)); /* as the models */
    dev<float> inv_freq(freq), angles(static_cast<size_t>(m) * half * 2);
    dev<uint16_t> pool(attn_pool_bytes(&c) / 2);
    const int64_t ld = static_cast<int64_t>(d.n_heads + 2 * d.n_kv) * d.hd;
    const size_t stride = static_cast<size_t>(ld) * static_cast<size_t>(m);
    dev<float> qkv(stride * static_cast<size_t>(n_copies));
    fill(qkv.p, qkv.n, FILL_F32, 99);
    struct sl_rope rope = {};
    rope.n_dims = d.hd, rope.pairing = SL_ROPE_HALF, rope.inv_freq = inv_freq.p;
    rope.attn_factor = 1.0f;
    double us = time_us(1, ROW_MS, [&](int) {
        struct sl_op_rope_angles a = {on.batch.positions, m, &rope, angles.p};
        b.be->vt->rope_angles(b.be, &a);
    });
    rows_row("rope_angles", m, us, m * (d.hd * 4.0 + 4));
    sl_cuda_attention_plan(b.cu, &on.batch, d.n_heads, d.n_kv, d.hd, false);
    us = time_us(n_copies, ROW_MS, [&](int i) {
        struct sl_op_qk_norm_rope_kv_store a = {};
        a.batch = &on.batch;
        a.q = qkv.p + stride * static_cast<size_t>(i);
        a.k = a.q + d.n_heads * d.hd, a.v = a.k + d.n_kv * d.hd;
        a.ld_q = a.ld_k = a.ld_v = ld;
        a.n_heads = d.n_heads, a.n_kv_heads = d.n_kv, a.head_dim = d.hd;
        a.rope = &rope, a.angles = angles.p, a.kv = attn_view(&c, &pool, i);
        b.be->vt->qk_norm_rope_kv_store(b.be, &a);
    });
    /* queries read and written, keys and values read as float and written as bf16, angles */
    double cells = d.hd * (d.n_heads * 8.0 + 2 * d.n_kv * 6.0) + d.hd * 4.0;
    rows_row("rope_kv_store", m, us, m * cells);
}

static void run_rows()
{
    static const int real_m[] = {1, 64, 2048}, tiny_m[] = {1, 3, 20};
    struct rows_bench r(rows_dims_of());
    const size_t cells = static_cast<size_t>(r.d.vocab) * static_cast<size_t>(r.d.hidden);
    std::vector<uint16_t> table(cells);
    for (size_t i = 0; i < cells; i++)
        table[i] = to_bf16(random_normal(i));
    struct sl_weight w = {};
    struct sl_error err = {};
    CHECK(b.be->vt->weight_create(b.be, SL_USE_ROWS, SL_DTYPE_BF16, r.d.vocab, r.d.hidden,
                                  table.data(), nullptr, &w, &err) == 0,
          "weight_create of the table");
    wait_all();
    printf("\n== rows: %d wide; few rows stay in L2, as in a step\n", r.d.hidden);
    printf("%-22s %6s %9s %9s %9s %8s\n", "", "M", "us", "kB", "GB/s", "of read");
    for (int m : b.tiny ? tiny_m : real_m) {
        rows_norms(&r, m);
        rows_lookups(&r, &w, m);
        rows_rope(&r, m);
    }
    wait_all();
    b.be->vt->weight_destroy(b.be, &w);
}

/* ------------------------------------------------------------------ sampling */

struct sample_kind {
    const char *name;
    float temperature, top_p, min_p;
    int32_t top_k;
    bool flat;
};

/* flat: normal logits, of which most of the vocabulary is needed for nine tenths. */
static const struct sample_kind sample_kinds[] = {
    {"greedy", 0.0f, 1.0f, 0.0f, 0, false},
    {"temperature 1", 1.0f, 1.0f, 0.0f, 0, false},
    {"top-p 0.9", 1.0f, 0.9f, 0.0f, 0, false},
    {"top-k 50", 1.0f, 1.0f, 0.0f, 50, false},
    {"all filters", 1.0f, 0.9f, 0.01f, 50, false},
    {"top-p 0.9, flat", 1.0f, 0.9f, 0.0f, 0, true},
    {"all filters, flat", 1.0f, 0.9f, 0.01f, 50, true},
};

static void sample_row(const struct sample_kind *k, int n, int vocab, const dev<float> &logits)
{
    const size_t stride = static_cast<size_t>(n) * static_cast<size_t>(vocab);
    const int n_copies = static_cast<int>(std::min(logits.n / stride, static_cast<size_t>(512)));
    std::vector<struct sl_sample_row> rows(static_cast<size_t>(n));
    for (size_t i = 0; i < rows.size(); i++) {
        rows[i].seed = i + 1, rows[i].pos = 100 + i;
        rows[i].temperature = k->temperature;
        rows[i].top_p = k->top_p, rows[i].top_k = k->top_k;
        rows[i].min_p = k->min_p, rows[i].floor = sl_sample_floor(k->min_p);
        rows[i].repetition_penalty = 1.0f;
        rows[i].n_top = -1;
    }
    dev<struct sl_sample_row> on_device(rows);
    dev<int32_t> ids(rows.size());
    size_t scratch_bytes = b.be->vt->device->sample_scratch(b.be, n, vocab);
    dev<uint8_t> scratch(scratch_bytes);
    MUST(cudaMemsetAsync(scratch.p, 0, scratch_bytes, b.cu->stream));
    struct sl_op_sample a = {};
    a.ld = vocab, a.n = n, a.n_vocab = vocab;
    a.rows = on_device.p, a.ids = ids.p, a.scratch = scratch.p, a.max_n = n;
    a.draws = sl_sample_draws(&rows[0]);
    double us = time_us(n_copies, ROW_MS, [&](int i) {
        a.logits = logits.p + stride * static_cast<size_t>(i);
        b.be->vt->device->sample(b.be, &a);
    });
    std::vector<int32_t> got(rows.size());
    ids.get(0, got.data(), got.size());
    for (int32_t id : got)
        CHECK(id >= 0 && id < vocab, "%s: chose %d", k->name, id);
    rows_row(k->name, n, us, static_cast<double>(stride) * 4);
}

static void run_sample()
{
    static const int real_n[] = {1, 32, 256}, tiny_n[] = {1, 2, 3};
    const int vocab = b.tiny ? 3000 : 128256;
    const size_t most = static_cast<size_t>(b.tiny ? 6 : 512) * static_cast<size_t>(vocab);
    dev<float> peaked(most), flat(most);
    fill(peaked.p, most, FILL_LOGITS, 5);
    fill(flat.p, most, FILL_F32, 11);
    printf("\n== sampling: %d tokens to choose from, batches go round over %.0f MB of logits\n",
           vocab, static_cast<double>(most) * 4e-6);
    printf("%-22s %6s %9s %9s %9s %8s\n", "", "batch", "us", "kB", "GB/s", "of read");
    for (int n : b.tiny ? tiny_n : real_n)
        for (const struct sample_kind &k : sample_kinds)
            sample_row(&k, n, vocab, k.flat ? flat : peaked);
}

#endif
