/* SPDX-License-Identifier: MIT
 * bench_experts.h - mixtures of experts in the shapes of published models: router's choice to sum,
 * against the read stream for the experts that are hit and against the rate of a dense product.
 *
 * Rows choose their experts at random, each call others. Bytes are those of the weights that are
 * hit, read once; a row of the step that nobody shares with is a stream of its own.
 */
#ifndef SL_TESTS_CUDA_BENCH_EXPERTS_H
#define SL_TESTS_CUDA_BENCH_EXPERTS_H

#include "bench_linear.h"
#include "cuda/gemm/experts.h"

#define EXPERTS_COPIES 8

struct experts_shape {
    const char *name;
    enum sl_dtype dtype;
    int hidden, intermediate, n_experts, top_k;
};

static const struct experts_shape experts_shapes[] = {
    {"Qwen3-30B-A3B", SL_DTYPE_BF16, 2048, 768, 128, 8},
    {"Qwen3-30B-A3B", SL_DTYPE_FP8_E4M3, 2048, 768, 128, 8},
    {"Qwen3-30B-A3B", SL_DTYPE_Q4_K, 2048, 768, 128, 8},
    {"gpt-oss-20b", SL_DTYPE_MXFP4, 2880, 2880, 32, 4},
    {"Mixtral-8x7B", SL_DTYPE_BF16, 4096, 14336, 8, 2},
};
static const struct experts_shape experts_tiny[] = {
    {"tiny", SL_DTYPE_BF16, 64, 48, 6, 2},
    {"tiny", SL_DTYPE_MXFP4, 64, 64, 6, 2},
};

/* Stacks of one layer: every matrix has the bytes of one file. */
struct experts_bench {
    const struct experts_shape *s;
    std::vector<struct sl_weight> mats[3];
    struct sl_stack stack[3];

    explicit experts_bench(const struct experts_shape *shape) : s(shape)
    {
        struct sl_error err = {};
        for (int k = 0; k < 3; k++) {
            const int64_t n_rows = k < 2 ? s->intermediate : s->hidden;
            const int64_t n_cols = k < 2 ? s->hidden : s->intermediate;
            std::vector<uint8_t> file;
            random_file(file, s->dtype,
                        static_cast<size_t>(n_rows) *
                            file_row_bytes(s->dtype, static_cast<int>(n_cols)));
            for (int e = 0; e < s->n_experts; e++) {
                struct sl_weight w = {};
                CHECK(b.be->vt->weight_create(b.be, SL_USE_LINEAR, s->dtype, n_rows, n_cols,
                                              file.data(), NULL, &w, &err) == 0,
                      "%s", err.msg);
                mats[k].push_back(w);
            }
            CHECK(b.be->vt->stack_create(b.be, mats[k].data(), s->n_experts, &stack[k], &err) == 0,
                  "%s", err.msg);
        }
        CHECK(b.be->vt->device->load_end(b.be, &err) == 0, "%s", err.msg);
    }
    experts_bench(const experts_bench &) = delete;
    ~experts_bench()
    {
        wait_all();
        for (int k = 0; k < 3; k++) {
            b.be->vt->stack_destroy(b.be, &stack[k]);
            for (struct sl_weight &w : mats[k])
                b.be->vt->weight_destroy(b.be, &w);
        }
    }
    double expert_bytes() const
    {
        double n = 0;
        for (int k = 0; k < 3; k++)
            n += static_cast<double>(lin_read_bytes(&mats[k][0]));
        return n;
    }
};

static void experts_row(const struct experts_bench *e, int n)
{
    const struct experts_shape *s = e->s;
    const size_t h = static_cast<size_t>(s->hidden), rows = static_cast<size_t>(n);
    dev<uint16_t> x(rows * h);
    dev<float> logits(rows * static_cast<size_t>(s->n_experts * EXPERTS_COPIES)), out(rows * h),
        weights(rows * static_cast<size_t>(s->top_k));
    dev<int32_t> chosen(rows * static_cast<size_t>(s->top_k));
    dev<uint8_t> room(
        b.be->vt->experts_bytes(b.be, n, s->n_experts, s->top_k, s->hidden, s->intermediate));
    fill(x.p, x.n, FILL_BF16, 3);
    fill(logits.p, logits.n, FILL_F32, 5);
    wait_all();
    const auto route = [&](int c) {
        struct sl_op_route r = {};
        r.logits = logits.p + static_cast<size_t>(c) * rows * static_cast<size_t>(s->n_experts);
        r.n = n, r.n_experts = s->n_experts, r.top_k = s->top_k;
        r.rule.renormalize = true, r.rule.scale = 1.0f;
        r.rule.n_groups = r.rule.top_groups = r.rule.group_top = 1;
        r.experts = chosen.p, r.weights = weights.p;
        b.be->vt->route(b.be, &r);
    };
    const double route_us = time_us(EXPERTS_COPIES, ROW_MS, route);
    const double us = time_us(EXPERTS_COPIES, ROW_MS, [&](int c) {
        route(c);
        struct sl_op_experts a = {};
        a.x = x.p, a.n = n, a.top_k = s->top_k, a.experts = chosen.p, a.weights = weights.p;
        a.gate = &e->stack[0], a.up = &e->stack[1], a.down = &e->stack[2];
        a.act = SL_ACT_SILU, a.scratch = room.p, a.out = out.p;
        b.be->vt->experts(b.be, &a);
    });
    std::vector<int32_t> ids(chosen.n);
    chosen.get(0, ids.data(), ids.size());
    std::sort(ids.begin(), ids.end());
    const double n_hit = static_cast<double>(std::unique(ids.begin(), ids.end()) - ids.begin());
    const double bytes = n_hit * e->expert_bytes();
    const double flops = 6.0 * n * s->top_k * s->hidden * s->intermediate;
    printf("%-14s %-9s %6d %5.0f %7.2f %9.2f %9.1f %7s %9.1f %7s\n", s->name,
           sl_dtype_info(s->dtype)->name, n, n_hit, route_us, us, gb_s(bytes, us),
           share(bytes / us * 1e6, b.read_bps), flops / us * 1e-6,
           share(flops / us * 1e6, b.gemm_flops));
    fflush(stdout);
}

/* Pairs of `each` places of every expert, in order, in tiles of at most `tile` as experts.cu cuts
 * them. */
struct experts_places {
    std::vector<struct sl_expert_tile> list;
    dev<int32_t> n_tiles;
    dev<struct sl_expert_tile> tiles;
    static std::vector<struct sl_expert_tile> cut(int n_experts, int each, int tile)
    {
        std::vector<struct sl_expert_tile> v;
        const int parts = (each + tile - 1) / tile;
        const int part = std::min(((each + parts - 1) / parts + 15) / 16 * 16, tile);
        for (int e = 0; e < n_experts; e++)
            for (int at = 0; at < each; at += part)
                v.push_back({e, e * each + at, std::min(part, each - at)});
        return v;
    }
    experts_places(int n_experts, int each, int tile)
        : list(cut(n_experts, each, tile)),
          n_tiles(std::vector<int32_t>{static_cast<int32_t>(list.size()), n_experts * each}),
          tiles(list)
    {
    }
};

static void (*experts_wide(enum sl_dtype t))(struct sl_cuda *, const struct sl_expert_product *,
                                             int32_t)
{
    return t == SL_DTYPE_BF16       ? sl_experts_wg_bf16
           : t == SL_DTYPE_FP8_E4M3 ? sl_experts_wg_fp8
           : t == SL_DTYPE_Q4_K     ? sl_experts_wg_q4_k
                                    : sl_experts_wg_mxfp4;
}

static struct sl_expert_product experts_product(const struct sl_stack *s,
                                                const struct experts_places &places, int n_pairs,
                                                int tile)
{
    const struct sl_weight *w = &s->mats[0];
    const struct sl_cuda_layout_info *info = sl_cuda_layout_info(w->layout);
    struct sl_expert_product p = {};
    const int32_t n_units = static_cast<int32_t>((w->n_cols + info->unit_k - 1) / info->unit_k);
    p.pairs.n_pairs = n_pairs, p.pairs.top_k = 1, p.pairs.tile = tile;
    p.pairs.most_tiles = static_cast<int32_t>(places.list.size());
    p.pairs.n_tiles = places.n_tiles.p, p.pairs.tiles = places.tiles.p;
    p.w[0].maps = static_cast<const CUtensorMap *>(s->table);
    p.n_rows = static_cast<int32_t>(w->n_rows), p.k = static_cast<int32_t>(w->n_cols);
    p.n_blocks = (p.n_rows + SL_CUDA_ROW_BLOCK - 1) / SL_CUDA_ROW_BLOCK;
    p.n_k64 = n_units * (info->unit_k / 64);
    p.block_bytes = sl_cuda_stream_bytes(w->layout, w->n_cols);
    p.n_experts = s->n, p.act = SL_ACT_SILU;
    return p;
}

/* The products alone: every expert has as many places, which lie in order. limits: gates as gpt-oss
 * has them, with biases. */
static void experts_products(const struct experts_bench *e, int each, int tile, bool limits)
{
    const struct experts_shape *s = e->s;
    const int n_pairs = each * s->n_experts;
    const size_t pairs = static_cast<size_t>(n_pairs);
    const experts_places places(s->n_experts, each, tile);
    dev<__nv_bfloat16> x(pairs * static_cast<size_t>(s->hidden)),
        mid(pairs * static_cast<size_t>(s->intermediate));
    dev<float> out(pairs * static_cast<size_t>(s->hidden));
    fill(x.p, x.n, FILL_BF16, 3);
    fill(mid.p, mid.n, FILL_BF16, 4);
    wait_all();
    struct sl_expert_product up = experts_product(&e->stack[0], places, n_pairs, tile);
    up.w[1].maps = static_cast<const CUtensorMap *>(e->stack[1].table);
    up.gated = true, up.x = x.p, up.mid = mid.p;
    dev<float> bias(static_cast<size_t>(s->n_experts) * static_cast<size_t>(s->intermediate));
    fill(bias.p, bias.n, FILL_F32, 6);
    wait_all();
    if (limits) {
        up.bias[0] = up.bias[1] = bias.p;
        up.swiglu.limit = 7.0f, up.swiglu.alpha = 1.702f, up.swiglu.up_plus = 1.0f;
    }
    struct sl_expert_product down = experts_product(&e->stack[2], places, n_pairs, tile);
    down.x = mid.p, down.out = out.p;
    const auto run = experts_wide(s->dtype);
    const double first = time_us(1, ROW_MS, [&](int) { run(b.cu, &up, tile); });
    const double last = time_us(1, ROW_MS, [&](int) { run(b.cu, &down, tile); });
    const double flops = 2.0 * n_pairs * s->hidden * s->intermediate;
    printf("%-14s %-9s %6d %4d%s %9.2f %9.1f %7s %9.2f %9.1f %7s %7s\n", s->name,
           sl_dtype_info(s->dtype)->name, each, tile, limits ? "+" : " ", first,
           2 * flops / first * 1e-6, share(2 * flops / first * 1e6, b.gemm_flops), last,
           flops / last * 1e-6, share(flops / last * 1e6, b.gemm_flops),
           share(3 * flops / (first + last) * 1e6, b.gemm_flops));
    fflush(stdout);
}

static void run_products(const struct experts_bench *e)
{
    static const struct {
        int places, tile;
        bool limits;
    } cases[] = {
        {16, 16, false},   {16, 32, false},   {32, 32, false},   {32, 64, false},
        {64, 64, false},   {64, 288, false},  {128, 288, false}, {192, 288, false},
        {256, 288, false}, {272, 288, false}, {288, 288, false}, {512, 288, false},
        {512, 288, true},  {256, 288, false}, /* once more: by how much a warm chip is slower */
    };
    printf("products alone, as many places of each expert; +: with biases and limits\n"
           "%-14s %-9s %6s %5s %9s %9s %7s %9s %9s %7s %7s\n",
           "shape", "format", "places", "tile", "gate, up", "TFLOP/s", "GEMM", "down", "TFLOP/s",
           "GEMM", "both");
    for (const auto &c : cases)
        if (!b.tiny || c.places <= 64)
            experts_products(e, c.places, c.tile, c.limits);
}

/* model: shapes of this name only; NULL: all. */
static void run_experts(const char *model)
{
    static const int sizes[] = {1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024, 2048, 4096};
    printf("\nexperts: route to sum; bytes of the experts that are hit\n%-14s %-9s %6s %5s %7s %9s "
           "%9s "
           "%7s %9s %7s\n",
           "shape", "format", "rows", "hit", "route", "us", "GB/s", "read", "TFLOP/s", "GEMM");
    const struct experts_shape *shapes = b.tiny ? experts_tiny : experts_shapes;
    for (size_t i = 0; i < (b.tiny ? SL_COUNT(experts_tiny) : SL_COUNT(experts_shapes)); i++) {
        if (model != nullptr && strcmp(model, shapes[i].name) != 0)
            continue;
        const experts_bench e(&shapes[i]);
        for (int n : sizes)
            if (!b.tiny || n <= 32)
                experts_row(&e, n);
        if (shapes[i].n_experts >= 32 || b.tiny) /* Mixtral's would want gigabytes */
            run_products(&e);
    }
}

#endif
