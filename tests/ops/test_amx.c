/* SPDX-License-Identifier: MIT
 * Kernels on tiles. The same source runs over simulated tiles on any processor with AVX-512 VNNI,
 * bit for bit against plain C (whole numbers) and against the instruction's order of roundings
 * (BF16), with the shapes a processor would refuse refused here too. On a processor with AMX the
 * kernels themselves run, against the simulation.
 */
#include "base/check.h"
#include "base/rng.h"
#include "base/sys.h"
#include "cpu/backend.h"
#include "quant/float.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "ops/tile_sim.h"
#include "quant/block_fields.h"

#if defined(__clang__)
#pragma clang attribute push(                                                          \
    __attribute__((target("avx512f,avx512bw,avx512vl,avx512dq,avx512vnni,fma,f16c"))), \
    apply_to = function)
#else
#pragma GCC push_options
#pragma GCC target("avx512f,avx512bw,avx512vl,avx512dq,avx512vnni,fma,f16c")
#endif
#include "cpu/bf16_amx_tmpl.c"
#include "cpu/i8_amx_tmpl.c"

/* A strip of four-bit codes, the zero point at 8. */
static void split_strip(const uint8_t *strip, const int16_t *scale, uint8_t *hi, uint8_t *lo)
{
    v16i of_16[4];
    scales_of_32(_mm512_load_si512(scale), of_16);
    strip_codes(strip, 0, 3, of_16, hi, lo);
}
#if defined(__clang__)
#pragma clang attribute pop
#else
#pragma GCC pop_options
#endif

#define UNTOUCHED 0x7FC0DEADu

static bool can_simulate(void)
{
    bool yes = sl_cpu_isa_best() >= SL_ISA_AVX512_VNNI;
    if (!yes)
        printf("skip: simulated tiles: the vector code beside them needs AVX-512 with VNNI\n");
    return yes;
}

static bool has_tiles(void)
{
    return sl_cpu_isa_best() >= SL_ISA_AMX;
}

/* Runs since sim.n_dots was reset used tiles, broke no rule and left the tiles released. */
static void check_sim(const char *what)
{
    if (sim.fault != NULL)
        fail_msg("%s: a processor would refuse: %s", what, sim.fault);
    if (sim.n_dots == 0)
        fail_msg("%s: no tile product ran", what);
    if (sim.configured)
        fail_msg("%s: the tiles were not released", what);
    sim.n_dots = 0;
}

/* Outputs of some tokens, and behind them as many as a tile could write in excess. */
#define SPARE 32

static void compare(const char *what, const float *got, const float *want, int n_tok)
{
    for (int i = 0; i < (n_tok + SPARE) * LD_ACC; i++)
        if (sl_f32_bits(got[i]) != sl_f32_bits(want[i]) && !(isnan(got[i]) && isnan(want[i])))
            fail_msg("%s: token %d row %d: %a is not %a", what, i / LD_ACC, i % LD_ACC,
                     (double)got[i], (double)want[i]);
    for (int i = 0; i < SPARE * LD_ACC; i++)
        if (sl_f32_bits(got[n_tok * LD_ACC + i]) != UNTOUCHED)
            fail_msg("%s: wrote behind the last token", what);
}

/* Tiles of more than sixteen tokens may be written to their end. */
static void forget_rest(float *out, int n_tok)
{
    for (int i = n_tok * LD_ACC; n_tok > 16 && i < SL_ROUND_UP(n_tok, 16) * LD_ACC; i++)
        out[i] = sl_f32_of_bits(UNTOUCHED);
}

static float *outputs(int n_tok)
{
    size_t n = (size_t)(n_tok + SPARE) * LD_ACC;
    float *p = sl_aligned_alloc(n * sizeof *p);
    assert_non_null(p);
    for (size_t i = 0; i < n; i++)
        p[i] = sl_f32_of_bits(UNTOUCHED);
    return p;
}

static void outputs_free(float *p, int n_tok)
{
    sl_aligned_free(p, (size_t)(n_tok + SPARE) * LD_ACC * sizeof *p);
}

/* Work a kernel does aside: it may do all of it or less, never more, each row once. */
struct counted {
    struct sl_aside aside;
    int done;
};

static void count_rows(struct sl_aside *a, int n)
{
    assert_true(n > 0);
    ((struct counted *)(void *)a)->done += n;
}

static struct counted counted(int n)
{
    return (struct counted){.aside = {.run = count_rows, .n = n}};
}

static void check_counted(const char *what, const struct counted *c, int n)
{
    if (c->done != n || c->aside.n != 0)
        fail_msg("%s: %d of %d rows done aside", what, c->done, n);
}

/* ---------------------------------------------------------------- whole numbers */

/* One of each form. */
static const enum sl_dtype formats[] = {
    SL_DTYPE_Q8_0, SL_DTYPE_Q4_0, SL_DTYPE_Q4_K, SL_DTYPE_Q5_K,   SL_DTYPE_Q6_K,   SL_DTYPE_Q5_0,
    SL_DTYPE_Q4_1, SL_DTYPE_Q5_1, SL_DTYPE_Q2_K, SL_DTYPE_IQ4_NL, SL_DTYPE_IQ2_XS, SL_DTYPE_MXFP4};

static void random_rows(struct sl_rng *rng, enum sl_dtype t, uint8_t *p, size_t n)
{
    for (size_t i = 0; i < n; i++)
        p[i] = (uint8_t)sl_rng_next(rng);
    for (size_t i = 0; i < n; i += sl_dtype_info(t)->block_bytes) {
        const uint16_t d = sl_f32_to_f16((float)(0.01 * sl_rng_normal(rng)));
        block_put_scales(t, p + i, d, sl_f32_to_f16((float)(0.01 * sl_rng_normal(rng))));
    }
}

struct problem {
    struct sl_weight w;
    int n_tok;
    int64_t n_groups;
    float *x; /* [n_tok, columns] */
};

static struct problem problem_make(struct sl_rng *rng, enum sl_dtype t, int64_t n_rows,
                                   int64_t n_cols, int n_tok)
{
    struct problem p = {.n_tok = n_tok};
    struct sl_i8_layout l = sl_i8_layout(t, n_rows, n_cols);
    uint64_t row_bytes;
    assert_true(sl_dtype_bytes(t, (uint64_t)n_cols, &row_bytes));
    p.w =
        (struct sl_weight){.dtype = t, .layout = SL_LAYOUT_I8, .n_rows = n_rows, .n_cols = n_cols};
    p.w.n_bytes = l.panel_bytes * (size_t)l.n_panels;
    p.n_groups = l.n_groups;
    p.x = sl_malloc((size_t)(n_tok * n_cols) * sizeof *p.x);
    uint8_t *rows = sl_malloc((size_t)n_rows * row_bytes), *data = sl_aligned_alloc(p.w.n_bytes);
    assert_true(p.x != NULL && rows != NULL && data != NULL);
    random_rows(rng, t, rows, (size_t)n_rows * row_bytes);
    for (int64_t i = 0; i < l.n_panels; i++)
        sl_i8_pack(t, n_rows, n_cols, rows, i, data + (size_t)i * l.panel_bytes);
    p.w.data = data;
    for (int i = 0; i < n_tok; i++) {
        float *x = p.x + i * n_cols;
        for (int64_t c = 0; c < n_cols; c++)
            x[c] = i % 11 == 3 ? (i % 2 == 0 ? 1.0f : -1.0f) /* the largest sums there are */
                               : (float)sl_rng_normal(rng);
        if (i % 37 == 5)
            x[n_cols / 2] = NAN;
        if (i % 37 == 6)
            x[n_cols / 3] = -INFINITY;
        for (int64_t c = i % 23; i % 3 == 1 && c < n_cols; c += 30 + i % 200)
            x[c] *= 40; /* outliers */
        for (int64_t c = 0; i % 37 == 7 && c < SL_MIN(n_cols, SL_I8_GROUP); c++)
            x[c] = 0x1p-120f;
    }
    sl_free(rows);
    return p;
}

static void problem_free(struct problem *p)
{
    sl_aligned_free((void *)(uintptr_t)p->w.data, p->w.n_bytes);
    sl_free(p->x);
}

/* Panels [first, first + n), the columns in one part or in parts of part groups. */
static void i8_run(const struct sl_i8_kernels *k, bool tiles, const struct problem *p,
                   int64_t first, int n, int64_t part, const struct sl_i8_shape *shape, float *out)
{
    struct sl_i8_scratch *s = sl_aligned_alloc(sizeof *s);
    size_t n_bytes = (size_t)(p->n_groups * SL_ROUND_UP(p->n_tok, 16)) * sizeof(struct sl_i8_x);
    struct sl_i8_x *block = sl_aligned_alloc(n_bytes);
    assert_true(s != NULL && block != NULL);
    for (int64_t g = 0; g < p->n_groups; g += part) {
        struct counted late = counted((int)g % 2 == 0 ? 77 : 0);
        struct sl_i8_part a = {.w = &p->w,
                               .g0 = g,
                               .n_groups = SL_MIN(p->n_groups - g, part),
                               .x = block,
                               .n_tok = p->n_tok,
                               .tiles = tiles,
                               .shape = shape,
                               .aside = tiles ? &late.aside : NULL};
        int64_t k0 = g * SL_I8_GROUP, n_k = SL_MIN(p->w.n_cols - k0, part * SL_I8_GROUP);
        memset(block, 0x55, n_bytes); /* what lies behind the tokens is not read as anything */
        for (int t = 0; t < p->n_tok; t++)
            k->place(p->x + t * p->w.n_cols + k0, n_k, t, p->n_tok, tiles, block);
        k->dot(&a, first, n, out, s);
        if (tiles)
            check_counted("whole numbers", &late, g % 2 == 0 ? 77 : 0);
    }
    sl_aligned_free(s, sizeof *s);
    sl_aligned_free(block, n_bytes);
}

static void place_simulated(const float *x, int64_t k, int t, int n_tok, bool tiles,
                            struct sl_i8_x *block)
{
    (void)n_tok;
    assert_true(tiles);
    i8_place_tiles(x, k, t, block);
}

/* Every way to order the blocks. */
static const struct sl_i8_shape i8_shapes[] = {
    {.span = 64, .chunk = 4, .units = 2, .depth = 1},
    {.span = 32, .chunk = 1, .units = 1, .depth = 0, .operands = true},
    {.span = 96, .chunk = 2, .units = 2, .depth = 2, .operands = true, .weights = true},
    {.span = 512, .chunk = 16, .units = 1, .depth = 2, .weights = true},
    {.span = 128, .chunk = 16, .units = 2, .depth = 1, .operands = true},
};

static const struct sl_i8_kernels simulated = {.place = place_simulated, .dot = i8_dot_tiles};

static void check_i8(struct sl_rng *rng, enum sl_dtype t, int64_t first, int n_panels,
                     int64_t n_cols, int n_tok)
{
    char what[160];
    struct sl_i8_kernels ref = {0};
    n_cols = SL_ROUND_UP(n_cols, (int64_t)sl_dtype_info(t)->block_elems);
    snprintf(what, sizeof what, "%s, %d panels from %lld, %lld columns, %d tokens",
             sl_dtype_info(t)->name, n_panels, (long long)first, (long long)n_cols, n_tok);
    sl_i8_kernels_c(&ref);
    struct problem p = problem_make(rng, t, (first + n_panels) * SL_I8_PANEL - 5, n_cols, n_tok);
    float *want = outputs(n_tok), *got = outputs(n_tok);
    i8_run(&ref, false, &p, first, n_panels, p.n_groups, NULL, want);
    for (int64_t part = p.n_groups; part > 0; part /= 2) {
        i8_run(&simulated, true, &p, first, n_panels, part, NULL, got);
        check_sim(what);
        compare(what, got, want, n_tok);
    }
    for (size_t i = 0; i < SL_COUNT(i8_shapes); i++) {
        i8_run(&simulated, true, &p, first, n_panels, p.n_groups, &i8_shapes[i], got);
        check_sim(what);
        compare(what, got, want, n_tok);
    }
    if (has_tiles()) {
        struct sl_i8_kernels k = {0};
        sl_i8_kernels_avx512vnni(&k);
        sl_i8_kernels_amx(&k);
        assert_string_equal(k.name, "i8-amx");
        for (int tiles = 0; tiles < 2; tiles++) {
            float *real = outputs(n_tok);
            i8_run(&k, tiles != 0, &p, first, n_panels, (p.n_groups + 1) / 2, NULL, real);
            compare(what, real, want, n_tok);
            outputs_free(real, n_tok);
        }
    }
    outputs_free(want, n_tok);
    outputs_free(got, n_tok);
    problem_free(&p);
}

static void test_i8_shapes(void **state)
{
    static const int toks[] = {1, 2, 15, 16, 17, 31, 32, 33, 47, 48, 49, 64, 65, 95};
    static const int64_t cols[] = {32, 64, 96, 160, 224, 256, 288, 512, 576, 768};
    (void)state;
    if (!can_simulate())
        skip();
    struct sl_rng rng = {1, 0};
    for (size_t f = 0; f < SL_COUNT(formats); f++)
        for (size_t t = 0; t < SL_COUNT(toks); t++)
            check_i8(&rng, formats[f], (int64_t)(t % 3), 1 + (int)((t + f) % SL_I8_PANELS),
                     cols[(t + f) % SL_COUNT(cols)], toks[t]);
}

static void test_i8_blocks(void **state)
{
    (void)state;
    if (!can_simulate())
        skip();
    struct sl_rng rng = {2, 0};
    for (size_t f = 0; f < SL_COUNT(formats); f++)
        for (int n_panels = 1; n_panels <= SL_I8_PANELS; n_panels++)
            check_i8(&rng, formats[f], 1, n_panels, 512, n_panels == 4 ? 257 : 70);
}

/* hi and lo of every weight a format can hold, at their extremes. */
static void test_i8_split(void **state)
{
    (void)state;
    if (!can_simulate())
        skip();
    struct sl_rng rng = {3, 0};
    for (int round = 0; round < 64; round++) {
        _Alignas(64) uint8_t strip[512], hi[1024], lo[1024];
        _Alignas(64) int16_t scale[32];
        for (size_t i = 0; i < sizeof strip; i++)
            strip[i] = (uint8_t)sl_rng_next(&rng);
        for (int i = 0; i < 32; i++)
            scale[i] = (int16_t)(i % 3 == 0 ? -2047 : i % 3 == 1 ? 2047 : round * 64 - 2047);
        split_strip(strip, scale, hi, lo);
        for (int q = 0; q < 16; q++)
            for (int b = 0; b < 64; b++) {
                int code = strip[64 * (q % 8) + b] >> q / 8 * 4 & 15;
                int want = scale[b / 4 * 2 + q / 8] * (code - 8);
                assert_int_equal(128 * (int8_t)hi[64 * q + b] + (int8_t)lo[64 * q + b], want);
            }
    }
}

/* ---------------------------------------------------------------- BF16 */

static float number_of(const uint8_t *panel, int row, int64_t col)
{
    uint16_t h;
    memcpy(&h, panel + col / 2 * SL_BF16_PAIR + row * 4 + col % 2 * 2, sizeof h);
    return sim_flush(sl_bf16_to_f32(h));
}

/* One output as docs/DETERMINISM.md says, written without tiles. */
static float bf16_output(const uint8_t *panel, int row, const uint16_t *x, int64_t k)
{
    float c = 0;
    for (int64_t i = 0; i < k; i += SL_BF16_K) {
        float even = 0, odd = 0;
        for (int64_t j = i; j < i + SL_BF16_K; j += 2) {
            even = sim_flush(fmaf(number_of(panel, row, j), sim_flush(sl_bf16_to_f32(x[j])), even));
            odd = sim_flush(
                fmaf(number_of(panel, row, j + 1), sim_flush(sl_bf16_to_f32(x[j + 1])), odd));
        }
        c = sim_flush(c + sim_flush(even + odd));
    }
    return c;
}

static uint16_t random_bf16(struct sl_rng *rng, int kind, int64_t i)
{
    uint32_t r = (uint32_t)sl_rng_next(rng);
    if (kind == 1) /* products and sums around the smallest number */
        return (uint16_t)((r & 0x807F) | ((i % 7 == 0 ? r >> 16 & 1 : 60 + (r >> 16 & 7)) << 7));
    if (kind == 2) /* sums that overflow */
        return (uint16_t)((r & 0x807F) | (180 + (r >> 16 & 7)) << 7);
    return sl_f32_to_bf16((float)sl_rng_normal(rng));
}

/* Every way to order the blocks. */
static const struct sl_bf16_shape bf16_shapes[] = {
    {.span = 512, .strips = 64},
    {.span = 512, .strips = 64, .ahead = 3, .weights = true},
    {.span = 64, .strips = 4, .ahead = 1},
    {.span = 512, .strips = 6, .ahead = 2, .weights = true},
    {.span = 96, .strips = 3, .wide = true, .ahead = 4, .weights = true},
    {.span = 512, .strips = 1, .wide = true, .weights = true},
};

typedef void (*bf16_dot_fn)(const struct sl_bf16_part *a, float *acc);

/* a: all columns of its panels; x [n_tok, k] in parts of so many columns. */
static void bf16_run_parts(bf16_dot_fn dot, const struct sl_bf16_part *a, int64_t part, float *out)
{
    struct sl_bf16_part b = *a;
    const int n_tok = a->n_tok;
    size_t n_bytes = (size_t)(part * SL_ROUND_UP(n_tok, 16)) * sizeof *a->x;
    uint16_t *block = sl_aligned_alloc(n_bytes);
    assert_non_null(block);
    b.x = block;
    for (int64_t k0 = 0; k0 < a->k; k0 += part) {
        b.k = SL_MIN(a->k - k0, part);
        memset(block, 0x7F, n_bytes);
        for (int t = 0; t < n_tok; t++)
            for (int64_t i = 0; i < b.k; i += SL_BF16_K)
                memcpy(bf16_row(block, b.k, t, n_tok, i / SL_BF16_K), a->x + t * a->k + k0 + i,
                       SL_BF16_K * sizeof *block);
        b.panels = a->panels + k0 / 2 * SL_BF16_PAIR;
        b.first = k0 == 0;
        struct counted late = counted(91);
        b.aside = &late.aside;
        dot(&b, out);
        check_counted("bf16", &late, 91);
    }
    forget_rest(out, n_tok);
    sl_aligned_free(block, n_bytes);
}

/* place rounds as round does. */
static void check_place(const struct sl_bf16_kernels *amx, struct sl_rng *rng, int64_t n_cols,
                        int n_tok)
{
    int64_t k = SL_ROUND_UP(n_cols, SL_BF16_K);
    size_t n_bytes = (size_t)(k * SL_ROUND_UP(n_tok, 16)) * sizeof(uint16_t);
    uint16_t *block = sl_aligned_alloc(n_bytes), *want = sl_malloc((size_t)k * sizeof *want);
    float *x = sl_malloc((size_t)n_cols * sizeof *x);
    assert_true(block != NULL && want != NULL && x != NULL);
    for (int t = 0; t < n_tok; t++) {
        for (int64_t i = 0; i < n_cols; i++)
            x[i] = sl_f32_of_bits((uint32_t)sl_rng_next(rng) & (i % 7 == 0 ? 0x80FFFFFFu : ~0u));
        amx->round(x, n_cols, k, want);
        amx->place(x, n_cols, t, n_tok, block);
        for (int64_t i = 0; i < k; i += SL_BF16_K)
            assert_memory_equal(bf16_row(block, k, t, n_tok, i / SL_BF16_K), want + i,
                                SL_BF16_K * sizeof *want);
    }
    sl_aligned_free(block, n_bytes);
    sl_free(want);
    sl_free(x);
}

static void check_bf16(struct sl_rng *rng, int n_panels, int64_t n_cols, int n_tok, int kind)
{
    char what[120];
    snprintf(what, sizeof what, "bf16, %d panels, %lld columns, %d tokens, kind %d", n_panels,
             (long long)n_cols, n_tok, kind);
    int64_t k = SL_ROUND_UP(n_cols, SL_BF16_K);
    int64_t n_rows = n_panels * SL_BF16_PANEL - 3;
    size_t panel_bytes = sl_bf16_panel_bytes(n_cols), x_bytes = (size_t)(k * n_tok) * 2;
    uint16_t *rows = sl_malloc((size_t)(n_rows * n_cols) * 2), *x = sl_aligned_alloc(x_bytes);
    uint8_t *panels = sl_aligned_alloc(panel_bytes * (size_t)n_panels);
    float *want = outputs(n_tok), *got = outputs(n_tok), *real = outputs(n_tok);
    assert_true(rows != NULL && x != NULL && panels != NULL);
    for (int64_t i = 0; i < n_rows * n_cols; i++)
        rows[i] = random_bf16(rng, kind, i);
    for (int64_t i = 0; i < k * n_tok; i++)
        x[i] = i % k < n_cols ? random_bf16(rng, kind, i) : 0;
    for (int p = 0; p < n_panels; p++)
        sl_bf16_pack(n_rows, n_cols, (const uint8_t *)rows, p, panels + (size_t)p * panel_bytes);
    for (int t = 0; t < n_tok; t++)
        for (int r = 0; r < n_panels * SL_BF16_PANEL; r++)
            want[t * LD_ACC + r] =
                bf16_output(panels + (size_t)(r / 16) * panel_bytes, r % 16, x + t * k, k);
    struct sl_bf16_part a = {.panels = panels,
                             .panel_bytes = panel_bytes,
                             .n_panels = n_panels,
                             .k = k,
                             .x = x,
                             .n_tok = n_tok};
    for (int64_t part = k; part >= SL_BF16_K; part = part / 64 * SL_BF16_K) {
        bf16_run_parts(bf16_dot, &a, part, got);
        check_sim(what);
        compare(what, got, want, n_tok);
    }
    for (size_t i = 0; i < SL_COUNT(bf16_shapes); i++) {
        a.shape = &bf16_shapes[i];
        bf16_run_parts(bf16_dot, &a, k, got);
        check_sim(what);
        compare(what, got, want, n_tok);
    }
    a.shape = NULL;
    if (has_tiles()) {
        struct sl_bf16_kernels amx = {0};
        sl_bf16_kernels_avx512bf16(&amx);
        sl_bf16_kernels_amx(&amx);
        assert_string_equal(amx.name, "bf16-amx");
        bf16_run_parts(amx.dot, &a, k, real);
        compare(what, real, want, n_tok);
        check_place(&amx, rng, n_cols, n_tok);
    }
    sl_free(rows);
    sl_aligned_free(x, x_bytes);
    sl_aligned_free(panels, panel_bytes * (size_t)n_panels);
    outputs_free(want, n_tok);
    outputs_free(got, n_tok);
    outputs_free(real, n_tok);
}

static void test_bf16(void **state)
{
    static const int toks[] = {1, 2, 3, 7, 15, 16, 17, 31, 32, 33, 48, 63, 65};
    static const int64_t cols[] = {1, 31, 33, 100, 256, 257, 520, 800};
    (void)state;
    if (!can_simulate())
        skip();
    struct sl_rng rng = {5, 0};
    for (size_t t = 0; t < SL_COUNT(toks); t++)
        for (int n_panels = 1; n_panels <= SL_BF16_PANELS; n_panels++)
            check_bf16(&rng, n_panels, cols[(t + (size_t)n_panels * 3) % SL_COUNT(cols)], toks[t],
                       (int)(t + (size_t)n_panels) % 3);
    check_bf16(&rng, 4, 160, SL_BF16_TOKENS + 1, 0);
}

int main(void)
{
    if (!has_tiles())
        printf("skip: amx: not on this processor\nskip: tiles are simulated only\n");
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_i8_shapes),
        cmocka_unit_test(test_i8_blocks),
        cmocka_unit_test(test_i8_split),
        cmocka_unit_test(test_bf16),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
