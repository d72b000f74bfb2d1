/* SPDX-License-Identifier: MIT
 * bench_step.h - where the time of a decode step goes: the operations of a layer of the model of 8
 * billion parameters one behind the other, as the engine enqueues them, whole and with some left
 * out. What an operation costs in the chain is not what it takes alone: a kernel starts while the
 * one before it ends (launch.cuh), so the differences between the rows are the figures to look at.
 * Layers go round over copies of their weights and pages larger than the cache.
 */
#ifndef SL_TESTS_CUDA_BENCH_STEP_H
#define SL_TESTS_CUDA_BENCH_STEP_H

#include "bench_linear.h"
#include "bench_rows.h"
#include "cuda/gemm/fuse.h"
#include "cuda/gemm/lora.h"

enum step_part {
    STEP_QKV = 1,
    STEP_O = 2,
    STEP_GATE_UP = 4,
    STEP_DOWN = 8,
    STEP_NORM = 16,
    STEP_ROPE = 32,
    STEP_ATTEND = 64,
    STEP_PRODUCTS = 15,
    STEP_ALL = 127,
};

#define STEP_LAYERS 32
#define STEP_TOKENS 2048 /* most */

struct step_bench {
    struct lin_bench lin;
    struct lin_weights w[4]; /* q, k, v; o; gate, up; down */
    struct rows_bench *rows;
    struct attn_case seqs;
    attn_device *on;
    dev<uint16_t> *pool;
    dev<float> *q, *angles;
    struct sl_rope rope;
    int n;
    int width;        /* tokens of a sequence; 0: one */
    bool normed;      /* norms stand between the products */
    bool gated;       /* and gate, up before down */
    dev<uint16_t> *x; /* products' own input and output */
    dev<float> *out;
    const struct bench_adapters *adapters; /* null: none */
    int adapted;                           /* products that have them, as parts */
};

/* Rows' adapters, one for each or the same for all; the layers go round over two sets of matrices,
 * together larger than the cache. */
struct bench_adapters {
    static const int sets = 2, rank = 16;
    dev<uint16_t> *block;
    dev<struct sl_lora_mat> *table;
    dev<int32_t> *adapter;
    dev<float> *scale, *room;
    struct sl_lora_rows rows;
    int first[5]; /* of a product's matrices in a set */

    bench_adapters(const struct lin_shape *shapes, int n, bool same)
    {
        size_t each = 0;
        for (int i = 0; i < 4; i++) {
            first[i] = i == 0 ? 0 : first[i - 1] + shapes[i - 1].n_parts;
            for (int p = 0; p < shapes[i].n_parts; p++)
                each += numbers(&shapes[i], p);
        }
        first[4] = first[3] + shapes[3].n_parts;
        const size_t n_own = same ? 1 : static_cast<size_t>(n);
        block = new dev<uint16_t>(n_own * sets * each);
        fill(block->p, block->n, FILL_BF16, 9);
        std::vector<struct sl_lora_mat> mats;
        std::vector<int32_t> of_row;
        uint16_t *at = block->p;
        for (size_t a = 0; a < n_own * sets; a++)
            for (int i = 0; i < 4; i++)
                for (int p = 0; p < shapes[i].n_parts; p++) {
                    mats.push_back({at, at + rank * shapes[i].k, rank, 0.01f});
                    at += numbers(&shapes[i], p);
                }
        for (int t = 0; t < n; t++)
            of_row.push_back(same ? 0 : t);
        table = new dev<struct sl_lora_mat>(mats);
        adapter = new dev<int32_t>(of_row);
        scale = new dev<float>(std::vector<float>(static_cast<size_t>(n), 1.0f));
        room = new dev<float>(static_cast<size_t>(2048 * 3 * rank));
        rows = {};
        rows.adapter = adapter->p, rows.scale = scale->p, rows.table = table->p;
        rows.n_mats = sets * first[4];
    }
    static size_t numbers(const struct lin_shape *s, int part)
    {
        return static_cast<size_t>(rank) *
               static_cast<size_t>(s->k + SL_ROUND_UP(s->n[part], SL_LORA_PANEL));
    }
    struct sl_op_lora op(int which, int layer) const
    {
        struct sl_op_lora l = {};
        l.rows = &rows, l.mat = layer % sets * first[4] + first[which], l.max_rank = rank;
        l.s = room->p, l.n_s = static_cast<int64_t>(room->n);
        return l;
    }
    ~bench_adapters()
    {
        delete block;
        delete table;
        delete adapter;
        delete scale;
        delete room;
    }
};

static void step_norm(const struct step_bench *s)
{
    struct sl_op_add_rmsnorm a = {};
    a.x = s->rows->x.p, a.y = s->rows->y.p, a.w = s->rows->w.p, a.eps = 1e-5f, a.n = s->n;
    a.h = s->rows->d.hidden, a.out = s->rows->out.p;
    b.be->vt->add_rmsnorm(b.be, &a);
}

static void step_product(struct step_bench *s, int which, int layer)
{
    const struct lin_weights *w = &s->w[which];
    size_t copy = static_cast<size_t>(layer % w->n_copies);
    struct sl_op_lora lora;
    s->lin.lora = nullptr;
    if (s->adapters != nullptr && (s->adapted & 1 << which) != 0) {
        lora = s->adapters->op(which, layer);
        s->lin.lora = &lora;
    }
    /* What a norm is between: q, k, v and gate, up read its output, o and down make its input. */
    const bool behind_norm = which % 2 == 0;
    s->lin.x = behind_norm && s->normed ? &s->rows->out : s->x;
    if (which == 3 && s->gated)
        s->lin.x = s->lin.act;
    s->lin.out = !behind_norm && s->normed ? &s->rows->y : s->out;
    lin_call(&s->lin, &s->lin.shapes[which], &w->w[copy * MAX_PARTS], s->n);
}

static void step_rope(const struct step_bench *s, int layer)
{
    const struct attn_dims d = attn_dims_of();
    struct sl_op_qk_norm_rope_kv_store a = {};
    a.batch = &s->on->batch;
    a.q = s->q->p, a.k = a.q + d.n_heads * d.hd, a.v = a.k + d.n_kv * d.hd;
    a.ld_q = a.ld_k = a.ld_v = static_cast<int64_t>(d.n_heads + 2 * d.n_kv) * d.hd;
    a.n_heads = d.n_heads, a.n_kv_heads = d.n_kv, a.head_dim = d.hd;
    a.rope = &s->rope, a.angles = s->angles->p;
    a.kv = attn_view(&s->seqs, s->pool, layer % s->seqs.n_layers);
    b.be->vt->qk_norm_rope_kv_store(b.be, &a);
}

static void step_attend(const struct step_bench *s, int layer)
{
    const struct attn_dims d = attn_dims_of();
    struct sl_op_attention a = {};
    a.batch = &s->on->batch;
    a.q = s->q->p;
    a.ld_q = static_cast<int64_t>(d.n_heads + 2 * d.n_kv) * d.hd;
    a.ld_out = static_cast<int64_t>(d.n_heads) * d.hd;
    a.n_heads = d.n_heads, a.n_kv_heads = d.n_kv, a.head_dim = d.hd;
    a.scale = static_cast<float>(1.0 / sqrt(static_cast<double>(d.hd)));
    a.kv = attn_view(&s->seqs, s->pool, layer % s->seqs.n_layers);
    a.out = s->rows->out.p;
    b.be->vt->attention(b.be, &a);
}

static void step_layer(struct step_bench *s, int parts, int layer)
{
    s->normed = (parts & STEP_NORM) != 0;
    s->gated = (parts & STEP_GATE_UP) != 0;
    if (parts & STEP_QKV)
        step_product(s, 0, layer);
    if (parts & STEP_ROPE)
        step_rope(s, layer);
    if (parts & STEP_ATTEND)
        step_attend(s, layer);
    if (parts & STEP_O)
        step_product(s, 1, layer);
    if (parts & STEP_NORM)
        step_norm(s);
    if (parts & STEP_GATE_UP)
        step_product(s, 2, layer);
    if (parts & STEP_DOWN)
        step_product(s, 3, layer);
    if (parts & STEP_NORM)
        step_norm(s);
}

static void step_row(struct step_bench *s, const char *name, int parts)
{
    struct sl_cuda_fuse fuse; /* as in a step */
    double us = time_us(1, 2 * ROW_MS, [&](int) {
        sl_cuda_fuse_begin(b.cu, &fuse);
        for (int layer = 0; layer < STEP_LAYERS; layer++)
            step_layer(s, parts, layer);
        sl_cuda_fuse_end(b.cu);
    });
    double bytes = 0.0;
    for (int i = 0; i < 4; i++)
        if (parts & 1 << i)
            bytes += static_cast<double>(s->w[i].n_bytes);
    if (parts & STEP_ATTEND)
        bytes += static_cast<double>(s->seqs.n_seqs) * (s->seqs.pos + s->seqs.n) *
                 static_cast<double>(attn_pos_bytes(attn_dims_of()));
    us /= STEP_LAYERS;
    printf("%-34s %6d %9.2f %9.0f %8s\n", name, s->n, us, gb_s(bytes, us),
           share(bytes / us * 1e6, b.read_bps));
    fflush(stdout);
}

static void step_plain(struct step_bench *s)
{
    step_row(s, "all", STEP_ALL);
    step_row(s, "without norms", STEP_ALL & ~STEP_NORM);
    step_row(s, "without rotation", STEP_ALL & ~STEP_ROPE);
    step_row(s, "without attention", STEP_ALL & ~STEP_ATTEND);
    step_row(s, "without rotation and attention", STEP_ALL & ~(STEP_ATTEND | STEP_ROPE));
    step_row(s, "products", STEP_PRODUCTS);
    step_row(s, "all but products", STEP_ALL & ~STEP_PRODUCTS);
    step_row(s, "products but q, k, v", STEP_PRODUCTS & ~STEP_QKV);
    step_row(s, "products but o", STEP_PRODUCTS & ~STEP_O);
    step_row(s, "products but gate, up", STEP_PRODUCTS & ~STEP_GATE_UP);
    step_row(s, "products but down", STEP_PRODUCTS & ~STEP_DOWN);
}

/* Tokens of prompts, whose attention is another table's (bench_attention.h). */
static void step_prompts(struct step_bench *s)
{
    step_row(s, "products", STEP_PRODUCTS);
    step_row(s, "products and norms", STEP_PRODUCTS | STEP_NORM);
}

/* GB/s are of the model's own bytes. */
static void step_adapted(struct step_bench *s)
{
    step_row(s, "all", STEP_ALL);
    for (bool same : {true, false}) {
        struct bench_adapters adapters(s->lin.shapes, s->n, same);
        dev<uint8_t> by_row(sl_cuda_lora_rows_bytes(adapters.rows.n_mats));
        sl_cuda_lora_resolve(b.cu, &adapters.rows, s->n, by_row.p);
        wait_all();
        s->adapters = &adapters, s->adapted = STEP_PRODUCTS;
        step_row(s, same ? "all, one adapter" : "all, an adapter for each", STEP_ALL);
        if (!same && s->n <= 64) {
            s->adapted = STEP_QKV;
            step_row(s, "all, for each on q, k, v", STEP_ALL);
            s->adapted = STEP_O;
            step_row(s, "all, for each on o", STEP_ALL);
            s->adapted = STEP_GATE_UP;
            step_row(s, "all, for each on gate, up", STEP_ALL);
            s->adapted = STEP_DOWN;
            step_row(s, "all, for each on down", STEP_ALL);
        }
        wait_all();
        s->adapters = nullptr;
    }
}

static void step_rows(struct step_bench *s, int positions, void (*rows)(struct step_bench *s))
{
    const struct attn_dims d = attn_dims_of();
    const size_t n = static_cast<size_t>(s->n);
    const size_t width = static_cast<size_t>(d.n_heads + 2 * d.n_kv) * static_cast<size_t>(d.hd);
    const int each = std::max(s->width, 1);
    s->seqs = attn_make(d, s->n / each, each, (b.tiny ? 41 : positions) - each, 16);
    attn_device on(s->seqs);
    dev<uint16_t> pool(attn_pool_bytes(&s->seqs) / 2);
    dev<float> q(n * width), angles(n * static_cast<size_t>(d.hd));
    dev<float> inv_freq(std::vector<float>(static_cast<size_t>(d.hd) / 2, 0.1f));
    s->on = &on, s->pool = &pool, s->q = &q, s->angles = &angles;
    s->rope = {};
    s->rope.n_dims = d.hd, s->rope.pairing = SL_ROPE_HALF, s->rope.inv_freq = inv_freq.p;
    s->rope.attn_factor = 1.0f;
    fill(pool.p, pool.n, FILL_F16);
    fill(q.p, q.n, FILL_F32, 5);
    fill(angles.p, angles.n, FILL_F32, 6);
    sl_cuda_attention_plan(b.cu, &on.batch, d.n_heads, d.n_kv, d.hd, false);
    rows(s);
}

static void step_format(struct step_bench *s, enum sl_dtype dtype)
{
    static const int real_n[] = {1, 4, 16, 64, 256}, tiny_n[] = {1, 2, 3, 5, 7};
    static const int real_adapted[] = {1, 8, 32}, tiny_adapted[] = {1, 3, 5};
    static const int real_prompts[] = {512, STEP_TOKENS}, tiny_prompts[] = {5, 20};
    size_t most = 0;
    for (int i = 0; i < 4; i++)
        most = std::max(most, file_bytes(dtype, &s->lin.shapes[i]));
    random_file(s->lin.file, dtype, most);
    for (int i = 0; i < 4; i++)
        s->w[i] = lin_create(&s->lin, &s->lin.shapes[i], dtype);
    printf("\n== a layer of a decode step, %s, sequences of 768 positions\n",
           sl_dtype_info(dtype)->name);
    printf("%-34s %6s %9s %9s %8s\n", "", "seqs", "us", "GB/s", "of read");
    for (int n : b.tiny ? tiny_n : real_n) {
        s->n = n;
        step_rows(s, 768, step_plain);
    }
    printf("\n== the same of tokens of prompts\n");
    for (int n : b.tiny ? tiny_prompts : real_prompts) {
        s->n = n;
        step_prompts(s);
    }
    printf("\n== the same with adapters of rank 16 on all matrices, sequences of 96 positions\n");
    for (int n : b.tiny ? tiny_adapted : real_adapted) {
        s->n = n;
        step_rows(s, 96, step_adapted);
    }
    wait_all();
    for (int i = 0; i < 4; i++)
        lin_destroy(&s->w[i]);
    struct sl_error err = {};
    CHECK(b.be->vt->device->load_end(b.be, &err) == 0, "load_end");
}

/* The step of sequences with drafts behind their token, whole and in parts. */
static void step_drafts(struct step_bench *s)
{
    step_row(s, "all", STEP_ALL);
    step_row(s, "without attention", STEP_ALL & ~STEP_ATTEND);
    step_row(s, "products", STEP_PRODUCTS);
}

static void step_widths(struct step_bench *s, enum sl_dtype dtype)
{
    static const int real_seqs[] = {1, 8, 32}, tiny_seqs[] = {1, 2, 1};
    size_t most = 0;
    for (int i = 0; i < 4; i++)
        most = std::max(most, file_bytes(dtype, &s->lin.shapes[i]));
    random_file(s->lin.file, dtype, most);
    for (int i = 0; i < 4; i++)
        s->w[i] = lin_create(&s->lin, &s->lin.shapes[i], dtype);
    for (int context : {1024, 8192})
        for (int seqs : b.tiny ? tiny_seqs : real_seqs)
            for (int width : {1, 2, 3, 5, 8}) {
                printf("\n== a layer of a step, %s, %d x %d tokens, %d positions\n",
                       sl_dtype_info(dtype)->name, seqs, width, context);
                s->width = width, s->n = seqs * width;
                step_rows(s, context, step_drafts);
            }
    wait_all();
    for (int i = 0; i < 4; i++)
        lin_destroy(&s->w[i]);
    struct sl_error err = {};
    CHECK(b.be->vt->device->load_end(b.be, &err) == 0, "load_end");
}

/* each: what is measured of a format. */
static void run_step(const std::vector<enum sl_dtype> &formats,
                     void (*each)(struct step_bench *s, enum sl_dtype dtype) = step_format)
{
    struct step_bench s = {};
    struct rows_bench rows(rows_dims_of());
    const size_t widest = b.tiny ? 4096 : 28672;
    dev<uint16_t> x(STEP_TOKENS * widest), act(STEP_TOKENS * widest);
    dev<float> out(STEP_TOKENS * widest);
    fill(x.p, x.n, FILL_BF16, 3);
    fill(act.p, act.n, FILL_BF16, 4);
    s.lin.shapes = b.tiny ? lin_tiny : lin_shapes;
    s.x = s.lin.x = &x, s.out = s.lin.out = &out, s.lin.act = &act;
    s.rows = &rows;
    for (enum sl_dtype dtype : formats)
        each(&s, dtype);
}

#endif
