/* SPDX-License-Identifier: MIT
 * BF16 matrices in panels: packing and rounding against their definitions, and the VDPBF16PS kernel
 * bit for bit against the instruction written out in C, which is also held against the instruction
 * itself on operands of every kind. FP8 matrices, which are multiplied by it too: packing, widening
 * of every code, and products with every kind of scales bit for bit.
 */
#include "base/check.h"
#include "base/rng.h"
#include "base/sys.h"
#include "cpu/backend.h"
#include "quant/fp8_e4m3.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>
#include <immintrin.h>

#define LD_ACC    (SL_BF16_PANELS * SL_BF16_PANEL)
#define UNTOUCHED 0x7FC0DEADu

static bool available(void)
{
    bool yes = sl_cpu_isa_best() >= SL_ISA_AVX512_BF16;
    if (!yes)
        printf("skip: avx512-bf16: not on this processor\n");
    return yes;
}

static bool same(float a, float b)
{
    return sl_f32_bits(a) == sl_f32_bits(b) || (isnan(a) && isnan(b));
}

/* ---------------------------------------------------------------- what the instructions do */

static float flush(float x)
{
    return fabsf(x) < 0x1p-126f ? copysignf(0.0f, x) : x;
}

/* VDPBF16PS on one lane: the product of the odd column first. */
static float dot_pair(float c, const uint16_t *a, const uint16_t *b)
{
    for (int j = 1; j >= 0; j--)
        c = flush(fmaf(flush(sl_bf16_to_f32(a[j])), flush(sl_bf16_to_f32(b[j])), flush(c)));
    return c;
}

static uint16_t round_number(float x)
{
    return sl_f32_to_bf16(flush(x));
}

#define INSTRUCTION __attribute__((target("avx512f,avx512bf16")))

INSTRUCTION static float instruction(float c, const uint16_t *a, const uint16_t *b)
{
    uint32_t x = a[0] | (uint32_t)a[1] << 16, y = b[0] | (uint32_t)b[1] << 16;
    __m512 r = _mm512_dpbf16_ps(_mm512_set1_ps(c), (__m512bh)_mm512_set1_epi32((int)x),
                                (__m512bh)_mm512_set1_epi32((int)y));
    return _mm512_cvtss_f32(r);
}

/* A number of a narrow range of exponents, so that sums cancel, or of all. */
static uint32_t bits_around(struct sl_rng *rng, int exponent, uint32_t spread)
{
    uint32_t x = (uint32_t)sl_rng_next(rng);
    if (exponent == 0)
        return x;
    return (x & 0x807FFFFF) | ((uint32_t)exponent + (uint32_t)sl_rng_below(rng, spread)) << 23;
}

static void test_instruction(void **state)
{
    /* exponents of the operands and of the sum: around one, at the small and the large end, any */
    static const struct {
        int operand, sum;
    } kinds[] = {{124, 124}, {62, 1}, {62, 0}, {40, 1}, {1, 120}, {188, 251}, {188, 253}, {0, 0}};
    (void)state;
    if (!available())
        skip();
    struct sl_rng rng = {1, 0};
    for (size_t kind = 0; kind < SL_COUNT(kinds); kind++)
        for (int i = 0; i < 200000; i++) {
            uint16_t n[4];
            for (int j = 0; j < 4; j++)
                n[j] = (uint16_t)(bits_around(&rng, kinds[kind].operand, 6) >> 16);
            float c = sl_f32_of_bits(bits_around(&rng, kinds[kind].sum, 3));
            float got = instruction(c, n, n + 2), want = dot_pair(c, n, n + 2);
            if (!same(got, want))
                fail_msg("kind %zu: %a + (%04x %04x) (%04x %04x): %a is not %a", kind, (double)c,
                         n[0], n[1], n[2], n[3], (double)got, (double)want);
        }
}

/* ---------------------------------------------------------------- the kernel */

static struct sl_bf16_kernels kernels(void)
{
    struct sl_bf16_kernels k = {0};
    sl_bf16_kernels_avx512bf16(&k);
    assert_string_equal(k.name, "bf16-dot");
    return k;
}

static void test_round(void **state)
{
    (void)state;
    if (!available())
        skip();
    struct sl_bf16_kernels k = kernels();
    struct sl_rng rng = {2, 0};
    for (int n = 0; n < 300; n++) {
        float x[300];
        uint16_t out[352];
        int n_padded = SL_ROUND_UP(n, SL_BF16_K);
        for (int i = 0; i < n; i++) /* ties too */
            x[i] = sl_f32_of_bits((uint32_t)sl_rng_next(&rng) & (i % 3 == 0   ? 0xFFFF8000u
                                                                 : i % 7 == 0 ? 0x80FFFFFFu
                                                                              : ~0u));
        memset(out, 0xA5, sizeof out);
        k.round(x, n, n_padded, out);
        for (int i = 0; i < n; i++) {
            uint16_t want = round_number(x[i]);
            if (isnan(x[i]) ? !isnan(sl_bf16_to_f32(out[i])) : out[i] != want)
                fail_msg("%d of %d: %a gives %04x, not %04x", i, n, (double)x[i], out[i], want);
        }
        for (int i = n; i < n_padded; i++)
            assert_int_equal(out[i], 0);
        for (size_t i = (size_t)n_padded; i < SL_COUNT(out); i++)
            assert_int_equal(out[i], 0xA5A5);
    }
}

static uint16_t packed_number(const uint8_t *panel, int64_t row, int64_t col)
{
    uint16_t h;
    memcpy(&h, panel + col / 2 * SL_BF16_PAIR + row * 4 + col % 2 * 2, sizeof h);
    return h;
}

static void test_pack(void **state)
{
    (void)state;
    struct sl_rng rng = {3, 0};
    for (int64_t n_cols = 1; n_cols < 100; n_cols += 1 + n_cols % 3)
        for (int64_t n_rows = 1; n_rows < 40; n_rows += 5) {
            size_t n = (size_t)(n_rows * n_cols), panel_bytes = sl_bf16_panel_bytes(n_cols);
            uint8_t *rows = sl_malloc(2 * n + 1), *panel = sl_malloc(panel_bytes + 1);
            assert_true(rows != NULL && panel != NULL);
            for (size_t i = 0; i < 2 * n; i++)
                rows[i + 1] = (uint8_t)sl_rng_next(&rng);
            for (int64_t p = 0; p * SL_BF16_PANEL < n_rows; p++) {
                memset(panel, 0x5A, panel_bytes + 1);
                sl_bf16_pack(n_rows, n_cols, rows + 1, p, panel);
                assert_int_equal(panel[panel_bytes], 0x5A);
                for (int64_t r = 0; r < SL_BF16_PANEL; r++)
                    for (int64_t c = 0; c < SL_ROUND_UP(n_cols, SL_BF16_K); c++) {
                        uint16_t want = 0;
                        int64_t row = p * SL_BF16_PANEL + r;
                        if (row < n_rows && c < n_cols)
                            memcpy(&want, rows + 1 + 2 * (row * n_cols + c), sizeof want);
                        assert_int_equal(packed_number(panel, r, c), want);
                    }
            }
            sl_free(rows);
            sl_free(panel);
        }
}

struct problem {
    int n_panels, n_tok;
    int64_t k, ld_x;
    size_t panel_bytes;
    uint8_t *panels;
    uint16_t *x;
    float *acc, *want;
};

enum kind { ORDINARY, TINY, HUGE, ANY, N_KINDS };

static uint16_t number(struct sl_rng *rng, enum kind kind, int i)
{
    switch (kind) {
    case TINY: /* products and sums around the smallest number */
        return (uint16_t)(bits_around(rng, i % 5 == 0 ? 1 : 60, 8) >> 16);
    case HUGE: /* sums that overflow, seldom a NaN */
        return (uint16_t)(bits_around(rng, 180, 12) >> 16);
    case ANY:
        return (uint16_t)sl_rng_next(rng);
    default:
        return round_number((float)sl_rng_normal(rng));
    }
}

static struct problem problem_make(struct sl_rng *rng, int n_panels, int n_tok, int64_t k,
                                   enum kind kind)
{
    struct problem p = {.n_panels = n_panels, .n_tok = n_tok, .k = k};
    p.ld_x = SL_ROUND_UP(k, SL_BF16_K);
    p.panel_bytes = sl_bf16_panel_bytes(k);
    p.panels = sl_aligned_alloc(p.panel_bytes * (size_t)n_panels);
    p.x = sl_aligned_alloc((size_t)(p.ld_x * n_tok) * sizeof *p.x);
    p.acc = sl_aligned_alloc((size_t)n_tok * LD_ACC * sizeof *p.acc);
    p.want = sl_aligned_alloc((size_t)n_tok * LD_ACC * sizeof *p.want);
    int64_t n_rows = n_panels * SL_BF16_PANEL - 3;
    uint16_t *rows = sl_malloc((size_t)(n_rows * k) * sizeof *rows);
    assert_true(p.panels != NULL && p.x != NULL && p.acc != NULL && p.want != NULL && rows != NULL);
    for (int64_t i = 0; i < n_rows * k; i++)
        rows[i] = number(rng, kind, (int)(i % 1000));
    for (int i = 0; i < n_panels; i++)
        sl_bf16_pack(n_rows, k, (const uint8_t *)rows, i, p.panels + (size_t)i * p.panel_bytes);
    for (int64_t i = 0; i < p.ld_x * n_tok; i++)
        p.x[i] = i % p.ld_x < k ? number(rng, kind, (int)(i % 1000)) : 0;
    for (size_t i = 0; i < (size_t)n_tok * LD_ACC; i++)
        p.acc[i] = p.want[i] = sl_f32_of_bits(UNTOUCHED);
    sl_free(rows);
    return p;
}

static void problem_free(struct problem *p)
{
    sl_aligned_free(p->panels, p->panel_bytes * (size_t)p->n_panels);
    sl_aligned_free(p->x, (size_t)(p->ld_x * p->n_tok) * sizeof *p->x);
    sl_aligned_free(p->acc, (size_t)p->n_tok * LD_ACC * sizeof *p->acc);
    sl_aligned_free(p->want, (size_t)p->n_tok * LD_ACC * sizeof *p->want);
}

static void check_dot(const struct sl_bf16_kernels *k, struct sl_rng *rng, int n_panels, int n_tok,
                      int64_t n_cols, enum kind kind)
{
    struct problem p = problem_make(rng, n_panels, n_tok, n_cols, kind);
    for (int t = 0; t < n_tok; t++)
        for (int r = 0; r < n_panels * SL_BF16_PANEL; r++) {
            const uint8_t *panel = p.panels + (size_t)(r / 16) * p.panel_bytes;
            float c = 0;
            for (int64_t i = 0; i < SL_ROUND_UP(n_cols, SL_BF16_K); i += 2) {
                uint16_t w[2] = {packed_number(panel, r % 16, i),
                                 packed_number(panel, r % 16, i + 1)};
                c = dot_pair(c, p.x + t * p.ld_x + i, w);
            }
            p.want[t * LD_ACC + r] = c;
        }
    struct sl_bf16_part a = {.panels = p.panels,
                             .panel_bytes = p.panel_bytes,
                             .n_panels = n_panels,
                             .k = n_cols,
                             .x = p.x,
                             .n_tok = n_tok,
                             .first = true};
    k->dot(&a, p.acc);
    for (int i = 0; i < n_tok * LD_ACC; i++) {
        uint32_t got = sl_f32_bits(p.acc[i]);
        bool skipped = i % LD_ACC >= n_panels * SL_BF16_PANEL;
        if (skipped ? got != UNTOUCHED : got == UNTOUCHED || !same(p.acc[i], p.want[i]))
            fail_msg("%d panels, %d tokens, %lld columns, kind %d: token %d row %d: %a is not %a",
                     n_panels, n_tok, (long long)n_cols, (int)kind, i / LD_ACC, i % LD_ACC,
                     (double)p.acc[i], (double)p.want[i]);
    }
    problem_free(&p);
}

static void test_dot(void **state)
{
    static const int64_t cols[] = {1, 2, 31, 32, 33, 64, 65, 127, 128, 129, 200, 256, 300, 520};
    static const int toks[] = {1, 2, 3, 4, 5, 6, 7, 11, 12, 13, 16, 33};
    (void)state;
    if (!available())
        skip();
    struct sl_bf16_kernels k = kernels();
    struct sl_rng rng = {4, 0};
    for (size_t c = 0; c < SL_COUNT(cols); c++)
        for (size_t t = 0; t < SL_COUNT(toks); t++)
            check_dot(&k, &rng, 1 + (int)((c + t) % SL_BF16_PANELS), toks[t], cols[c],
                      (enum kind)((c + t / 2) % N_KINDS));
    for (int n_panels = 1; n_panels <= SL_BF16_PANELS; n_panels++)
        for (int n_tok = 1; n_tok <= 13; n_tok++)
            check_dot(&k, &rng, n_panels, n_tok, 160, (enum kind)(n_tok % N_KINDS));
    check_dot(&k, &rng, SL_BF16_PANELS, SL_BF16_TOKENS, 300, ORDINARY);
    check_dot(&k, &rng, SL_BF16_PANELS, SL_BF16_TOKENS + 1, 130, TINY);
}

/* A token's sums do not depend on who stands beside it. */
static void test_alone(void **state)
{
    (void)state;
    if (!available())
        skip();
    struct sl_bf16_kernels k = kernels();
    struct sl_rng rng = {5, 0};
    struct problem p = problem_make(&rng, SL_BF16_PANELS, 40, 1000, ORDINARY);
    struct sl_bf16_part a = {.panels = p.panels,
                             .panel_bytes = p.panel_bytes,
                             .n_panels = p.n_panels,
                             .k = p.k,
                             .x = p.x,
                             .n_tok = p.n_tok,
                             .first = true};
    k.dot(&a, p.acc);
    a.n_tok = 1;
    for (int t = 0; t < p.n_tok; t++, a.x += p.ld_x)
        k.dot(&a, p.want + t * LD_ACC);
    assert_memory_equal(p.acc, p.want, (size_t)p.n_tok * LD_ACC * sizeof *p.acc);
    problem_free(&p);
}

/* ---------------------------------------------------------------- FP8 */

static float random_scale(struct sl_rng *rng)
{
    return (float)exp(-4.0 + 2.0 * sl_rng_normal(rng));
}

struct fp8_matrix {
    int64_t n_rows, n_cols;
    uint8_t *codes;
    float *values; /* of scales */
    struct sl_scales scales;
};

static struct fp8_matrix fp8_make(struct sl_rng *rng, int64_t n_rows, int64_t n_cols, int32_t rows,
                                  int32_t cols)
{
    struct fp8_matrix m = {.n_rows = n_rows, .n_cols = n_cols};
    const int64_t n_scales = SL_CEIL_DIV(n_rows, rows) * SL_CEIL_DIV(n_cols, cols);
    m.codes = sl_malloc((size_t)(n_rows * n_cols));
    m.values = sl_malloc((size_t)n_scales * sizeof *m.values);
    assert_true(m.codes != NULL && m.values != NULL);
    for (int64_t i = 0; i < n_rows * n_cols; i++)
        m.codes[i] = (uint8_t)(sl_rng_below(rng, 127) | (sl_rng_next(rng) & 0x80));
    for (int64_t i = 0; i < n_scales; i++)
        m.values[i] = random_scale(rng);
    m.scales = (struct sl_scales){.values = m.values, .rows = rows, .cols = cols};
    return m;
}

static void fp8_free(struct fp8_matrix *m)
{
    sl_free(m->codes);
    sl_free(m->values);
}

/* Every code in every place of a group, as the number it is. */
static void test_fp8_widen(void **state)
{
    (void)state;
    if (!available())
        skip();
    enum { ROWS = 16, COLS = 128 };
    struct sl_fp8_kernels k;
    sl_fp8_kernels_avx512(&k);
    static uint8_t codes[ROWS * COLS];
    _Alignas(64) static uint8_t group[SL_FP8_GROUP_BYTES];
    _Alignas(64) static uint16_t panel[SL_FP8_CODES + 32];
    for (int shift = 0; shift < 256; shift++) {
        for (int i = 0; i < ROWS * COLS; i++)
            codes[i] = (uint8_t)(i + shift);
        sl_fp8_pack(ROWS, COLS, codes, NULL, 0, group);
        memset(panel, 0xA5, sizeof panel);
        k.widen(group, group, panel);
        for (int i = 0; i < ROWS * COLS; i++) {
            uint16_t got = packed_number((const uint8_t *)panel, i / COLS, i % COLS);
            uint16_t want = sl_f32_to_bf16(sl_fp8_e4m3_to_f32(codes[i]));
            if ((codes[i] & 0x7F) == 0x7F) /* the scale says so */
                assert_true(isnan(sl_fp8_scales(group)[i / COLS]));
            else if (got != want)
                fail_msg("code %02x in row %d column %d: %04x is not %04x", codes[i], i / COLS,
                         i % COLS, got, want);
        }
        for (int i = 0; i < 32; i++)
            assert_int_equal(panel[SL_FP8_CODES + i], 0xA5A5);
    }
}

static void test_fp8_pack(void **state)
{
    (void)state;
    static const int64_t cols[] = {1, 2, 3, 127, 128, 129, 300};
    struct sl_rng rng = {6, 0};
    for (size_t i = 0; i < SL_COUNT(cols); i++)
        for (int64_t n_rows = 1; n_rows < 40; n_rows += 6) {
            struct fp8_matrix m = fp8_make(&rng, n_rows, cols[i], 1 + (int32_t)n_rows % 3, 128);
            size_t panel_bytes = sl_fp8_panel_bytes(cols[i]);
            uint8_t *panel = sl_aligned_alloc(panel_bytes + 1);
            assert_non_null(panel);
            for (int64_t p = 0; p * SL_BF16_PANEL < n_rows; p++) {
                memset(panel, 0x5A, panel_bytes + 1);
                sl_fp8_pack(n_rows, cols[i], m.codes, &m.scales, p, panel);
                assert_int_equal(panel[panel_bytes], 0x5A);
                int64_t n_codes = 0, n_nonzero = 0; /* all codes are there, and nothing else */
                for (int64_t r = p * 16; r < SL_MIN(n_rows, p * 16 + 16); r++)
                    for (int64_t c = 0; c < cols[i]; c++)
                        n_codes += m.codes[r * cols[i] + c] != 0;
                for (size_t b = 0; b < panel_bytes; b++)
                    n_nonzero += b % SL_FP8_GROUP_BYTES < SL_FP8_CODES && panel[b] != 0;
                assert_int_equal(n_codes, n_nonzero);
                for (int64_t c = 0; c < cols[i]; c += 128)
                    for (int64_t r = p * 16; r < SL_MIN(n_rows, p * 16 + 16); r++)
                        assert_true(sl_fp8_scales(panel + c / 128 * SL_FP8_GROUP_BYTES)[r % 16] ==
                                    sl_scale_at(&m.scales, cols[i], r, c));
            }
            fp8_free(&m);
            sl_aligned_free(panel, panel_bytes + 1);
        }
}

/* An output by the definition in docs/DETERMINISM.md. */
static float fp8_output(const struct fp8_matrix *m, int64_t row, const float *x)
{
    float acc = 0.0f;
    for (int64_t k = 0; k < m->n_cols; k += SL_FP8_GROUP) {
        float sum = 0.0f;
        for (int64_t c = k; c < SL_MIN(k + SL_FP8_GROUP, m->n_cols); c += 2) {
            uint16_t w[2] = {0}, y[2] = {0};
            for (int64_t i = 0; i < SL_MIN(m->n_cols - c, 2); i++) {
                w[i] = sl_f32_to_bf16(sl_fp8_e4m3_to_f32(m->codes[row * m->n_cols + c + i]));
                y[i] = round_number(x[c + i]);
            }
            sum = dot_pair(sum, y, w);
        }
        acc = fmaf(sum, sl_scale_at(&m->scales, m->n_cols, row, k), acc);
    }
    return acc;
}

static void check_fp8(struct sl_backend *be, struct sl_rng *rng, const struct fp8_matrix *m,
                      int n_tok)
{
    const int64_t n_rows = m->n_rows;
    float *x = sl_malloc((size_t)(n_tok * m->n_cols) * sizeof *x);
    float *out = sl_malloc((size_t)(n_tok * n_rows) * sizeof *out);
    assert_true(x != NULL && out != NULL);
    for (int64_t i = 0; i < n_tok * m->n_cols; i++)
        x[i] = (float)sl_rng_normal(rng);
    struct sl_weight w;
    struct sl_error err = {0};
    if (be->vt->weight_create(be, SL_USE_LINEAR, SL_DTYPE_FP8_E4M3, n_rows, m->n_cols, m->codes,
                              &m->scales, &w, &err) != 0)
        fail_msg("%s", err.msg);
    assert_true(w.owned && w.n_bytes == be->vt->weight_bytes(be, SL_USE_LINEAR, SL_DTYPE_FP8_E4M3,
                                                             n_rows, m->n_cols));
    struct sl_op_linear a = {
        .x = x, .ld_x = m->n_cols, .w = &w, .n = n_tok, .out = out, .ld_out = n_rows};
    be->vt->linear(be, &a);
    for (int t = 0; t < n_tok; t++)
        for (int64_t r = 0; r < n_rows; r++) {
            float got = out[t * n_rows + r], want = fp8_output(m, r, x + t * m->n_cols);
            if (!same(got, want))
                fail_msg("%lld x %lld, scales %d x %d, token %d of %d, row %lld: %a is not %a",
                         (long long)n_rows, (long long)m->n_cols, m->scales.rows, m->scales.cols, t,
                         n_tok, (long long)r, (double)got, (double)want);
        }
    be->vt->weight_destroy(be, &w);
    sl_free(x);
    sl_free(out);
}

static void test_fp8_products(void **state)
{
    static const int64_t cols[] = {1, 33, 128, 200, 256, 643};
    static const int toks[] = {1, 3, 4, 7, 8, 9, 70, 300};
    (void)state;
    if (!available())
        skip();
    struct sl_backend *be;
    struct sl_error err = {0};
    struct sl_rng rng = {7, 0};
    if (sl_cpu_create(&(struct sl_cpu_config){.n_threads = 2, .isa = SL_ISA_AVX512_BF16}, &be,
                      &err) != 0)
        fail_msg("%s", err.msg);
    for (size_t c = 0; c < SL_COUNT(cols); c++)
        for (size_t t = 0; t < SL_COUNT(toks); t++) {
            const int64_t n_rows = 1 + (int64_t)(37 * c + 29 * t) % 150;
            const int32_t blocks[][2] = {
                {(int32_t)n_rows, (int32_t)cols[c]}, {1, (int32_t)cols[c]}, {128, 128}, {3, 256}};
            const int32_t *b = blocks[(c + t) % 4];
            struct fp8_matrix m = fp8_make(&rng, n_rows, cols[c], b[0], b[1]);
            check_fp8(be, &rng, &m, toks[t]);
            if (t == 1) { /* a NaN reaches its row alone */
                m.codes[0] = 0x7F;
                m.codes[n_rows * cols[c] - 1] = 0xFF;
                check_fp8(be, &rng, &m, toks[t]);
            }
            fp8_free(&m);
        }
    be->vt->destroy(be);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_instruction), cmocka_unit_test(test_round),
        cmocka_unit_test(test_pack),        cmocka_unit_test(test_dot),
        cmocka_unit_test(test_alone),       cmocka_unit_test(test_fp8_widen),
        cmocka_unit_test(test_fp8_pack),    cmocka_unit_test(test_fp8_products),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
