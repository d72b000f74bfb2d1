/* SPDX-License-Identifier: MIT
 * Products in whole-number arithmetic (cpu/i8.h): every instruction set, bit for bit, against an
 * oracle that knows nothing of packed weights: codes and scales straight from the file's blocks,
 * sums in 64-bit integers, the float chain as docs/DETERMINISM.md says.
 */
#include "ops_util.h"

#include "quant/eight.h"
#include "quant/q4_0.h"
#include "quant/q5_k.h"
#include "quant/q6_k.h"

static char what[160]; /* the case at hand, for messages */

/* One of each form and of each way to make whole numbers of scales first; N_FORMS of them. */
static const enum sl_dtype formats[] = {
    SL_DTYPE_Q8_0,    SL_DTYPE_Q4_0,   SL_DTYPE_Q4_K,   SL_DTYPE_Q5_K,    SL_DTYPE_Q6_K,
    SL_DTYPE_Q4_1,    SL_DTYPE_Q5_0,   SL_DTYPE_Q5_1,   SL_DTYPE_Q2_K,    SL_DTYPE_IQ4_NL,
    SL_DTYPE_MXFP4,   SL_DTYPE_Q3_K,   SL_DTYPE_IQ4_XS, SL_DTYPE_TQ1_0,   SL_DTYPE_TQ2_0,
    SL_DTYPE_IQ2_XXS, SL_DTYPE_IQ2_XS, SL_DTYPE_IQ2_S,  SL_DTYPE_IQ3_XXS, SL_DTYPE_IQ3_S,
    SL_DTYPE_IQ1_S,   SL_DTYPE_IQ1_M};
#define N_FORMS 11

/* ---------------------------------------------------------------- oracle */

enum { G = 256 };

struct oracle_group {
    int code[G], scale[G], min[G]; /* of each column: scale * code - min is the whole number */
    float d, dmin;
};

struct oracle_x {
    int q[G];
    float d, outlier[G]; /* 0: the column is none */
};

/* What outliers are above. */
static float oracle_bound(const float *x, int n, float amax)
{
    static const int most[] = {2, 4, 8, 8, 8, 8}; /* columns above a half, a quarter, ... */
    for (int k = (int)SL_COUNT(most); k > 0; k--) {
        int n_above = 0;
        for (int i = 0; i < n; i++)
            n_above += fabsf(x[i]) > amax / (float)(1 << k);
        if (n_above <= most[k - 1])
            return amax / (float)(1 << k);
    }
    return amax;
}

static struct oracle_x oracle_quantize(const float *x, int n)
{
    struct oracle_x o = {.d = 0};
    float amax = 0, bound, rest = 0;
    for (int i = 0; i < n; i++) {
        if (!isfinite(x[i]))
            o.d = NAN;
        amax = fmaxf(amax, fabsf(x[i]));
    }
    if (isnan(o.d) || amax < 0x1p-100f)
        return o;
    bound = oracle_bound(x, n, amax);
    for (int i = 0; i < n; i++) {
        if (fabsf(x[i]) > bound)
            o.outlier[i] = x[i];
        else
            rest = fmaxf(rest, fabsf(x[i]));
    }
    if (rest < 0x1p-100f)
        return o;
    o.d = rest / 127.0f;
    float inv = 127.0f / rest;
    for (int i = 0; i < n; i++)
        o.q[i] = o.outlier[i] != 0 ? 0 : (int)nearbyintf(x[i] * inv);
    return o;
}

static void oracle_q8_0(const struct matrix *m, int64_t at, int n, struct oracle_group *o)
{
    float amax = 0;
    for (int i = 0; i < n; i++) {
        amax = fmaxf(amax, fabsf(m->f32[at + i]));
        if (!isfinite(m->f32[at + i]))
            amax = NAN;
    }
    o->d = amax / 127.0f;
    for (int i = 0; i < n; i++) {
        o->scale[i] = 1;
        o->code[i] = o->d > 0 ? (int)nearbyintf(m->f32[at + i] / o->d) : 0;
    }
}

static void oracle_q4_0(const struct matrix *m, int64_t at, int n, struct oracle_group *o)
{
    const struct sl_q4_0_block *b = (const void *)m->data;
    float amax = 0;
    b += at / 32;
    for (int i = 0; i < n / 32; i++)
        amax = fmaxf(amax, fabsf(sl_q4_0_scale(&b[i])));
    o->d = amax / 2047.0f;
    for (int i = 0; i < n; i++) {
        o->scale[i] = o->d > 0 ? (int)nearbyintf(sl_q4_0_scale(&b[i / 32]) / o->d) : 0;
        o->code[i] = sl_q4_0_code(&b[i / 32], i % 32);
    }
}

static void oracle_k(const struct matrix *m, int64_t at, struct oracle_group *o)
{
    const struct sl_q4_k_block *b4 = (const struct sl_q4_k_block *)(const void *)m->data + at / G;
    const struct sl_q5_k_block *b5 = (const struct sl_q5_k_block *)(const void *)m->data + at / G;
    const struct sl_q6_k_block *b6 = (const struct sl_q6_k_block *)(const void *)m->data + at / G;
    bool four = m->dtype == SL_DTYPE_Q4_K, five = m->dtype == SL_DTYPE_Q5_K;
    o->d = sl_f16_to_f32(sl_load_u16(four ? b4->d : five ? b5->d : b6->d));
    if (four || five)
        o->dmin = sl_f16_to_f32(sl_load_u16(four ? b4->dmin : b5->dmin));
    for (int i = 0; i < G; i++) {
        uint8_t scale = 0, min = 0;
        if (four || five)
            sl_qk_scale_min(four ? b4->scales : b5->scales, i / 32, &scale, &min);
        o->scale[i] = four || five ? scale : b6->scales[i / 16];
        o->min[i] = min;
        if (four)
            o->code[i] = b4->q[i / 64 * 32 + i % 32] >> i / 32 % 2 * 4 & 15;
        else
            o->code[i] = five ? sl_q5_k_code(b5, i / 32, i % 32) : sl_q6_k_code(b6, i);
    }
}

/* Formats read in eights. Scales of 32 columns become whole numbers. */
static void oracle_eights(const struct matrix *m, int64_t at, int n, struct oracle_group *o)
{
    const struct sl_dtype_info *info = sl_dtype_info(m->dtype);
    const bool runs = info->block_elems == 32;
    const int most = m->dtype == SL_DTYPE_Q4_1     ? 1092
                     : m->dtype == SL_DTYPE_Q5_0   ? 1023
                     : m->dtype == SL_DTYPE_Q5_1   ? 528
                     : m->dtype == SL_DTYPE_IQ4_NL ? 127
                                                   : 64;
    struct sl_eight e[G / 8];
    float top = 0, top_min = 0;
    for (int i = 0; i < n / 8; i++) {
        const int64_t k = at + 8 * i, block = k / info->block_elems;
        info->eight(m->data + block * info->block_bytes, (int)(k % info->block_elems / 8), &e[i]);
        top = fmaxf(top, fabsf(e[i].d));
        top_min = fmaxf(top_min, fabsf(e[i].dmin));
    }
    o->d = runs ? top / (float)most : e[0].d;
    o->dmin = runs ? top_min / 32767.0f : e[0].dmin;
    for (int i = 0; i < n; i++) {
        const struct sl_eight *x = &e[i / 8];
        o->code[i] = x->q[i % 8];
        o->scale[i] = !runs ? x->scale : o->d > 0 ? (int)nearbyintf(x->d / o->d) : 0;
        o->min[i] = !runs ? x->min : o->dmin > 0 ? (int)nearbyintf(x->dmin / o->dmin) : 0;
    }
}

static bool has_minima(enum sl_dtype t)
{
    return t == SL_DTYPE_Q4_K || t == SL_DTYPE_Q5_K || t == SL_DTYPE_Q4_1 || t == SL_DTYPE_Q5_1 ||
           t == SL_DTYPE_Q2_K;
}

static void oracle_linear(const struct matrix *m, const float *x, int64_t ld_x, int n_tok,
                          const float *bias, float *out)
{
    int64_t n_groups = SL_CEIL_DIV(m->n_cols, G);
    struct oracle_x *xs = sl_calloc((size_t)(n_tok * n_groups), sizeof *xs);
    assert_non_null(xs);
    for (int64_t i = 0; i < n_tok * n_groups; i++) {
        int64_t k = i % n_groups * G;
        xs[i] = oracle_quantize(x + i / n_groups * ld_x + k, (int)SL_MIN(m->n_cols - k, G));
    }
    for (int64_t i = 0; i < n_tok * m->n_rows; i++)
        out[i] = 0;
    for (int64_t r = 0; r < m->n_rows; r++)
        for (int64_t g = 0; g < n_groups; g++) {
            struct oracle_group o = {.d = 0};
            int64_t at = r * m->n_cols + g * G;
            int n = (int)SL_MIN(m->n_cols - g * G, G);
            bool has_min = has_minima(m->dtype);
            if (sl_dtype_info(m->dtype)->eight != NULL)
                oracle_eights(m, at, n, &o);
            else if (m->dtype == SL_DTYPE_Q8_0)
                oracle_q8_0(m, at, n, &o);
            else if (m->dtype == SL_DTYPE_Q4_0)
                oracle_q4_0(m, at, n, &o);
            else
                oracle_k(m, at, &o);
            for (int t = 0; t < n_tok; t++) {
                const struct oracle_x *xg = &xs[t * n_groups + g];
                int64_t sum = 0, mins = 0;
                for (int i = 0; i < n; i++) {
                    sum += (int64_t)o.scale[i] * o.code[i] * xg->q[i];
                    mins += (int64_t)o.min[i] * xg->q[i];
                }
                float *a = &out[t * m->n_rows + r];
                *a = fmaf((float)sum, o.d * xg->d, *a);
                if (has_min)
                    *a = fmaf((float)mins, -o.dmin * xg->d, *a);
                for (int i = 0; i < n; i++) {
                    float whole = (float)(o.scale[i] * o.code[i]) * o.d;
                    if (has_min)
                        whole = fmaf((float)o.min[i], -o.dmin, whole);
                    if (xg->outlier[i] != 0)
                        *a = fmaf(whole, xg->outlier[i], *a);
                }
            }
        }
    for (int64_t i = 0; bias != NULL && i < n_tok * m->n_rows; i++)
        out[i] += bias[i % m->n_rows];
    sl_free(xs);
}

/* ---------------------------------------------------------------- linear */

/* Normal numbers, in two of three rows with columns that are much larger. */
static float *activations(struct sl_rng *rng, int n, int64_t ld)
{
    float *x = floats(rng, (size_t)(n * ld), 1.0);
    for (int64_t i = 0; i < n; i++)
        for (int64_t c = i % 29; i % 3 > 0 && c < ld; c += i % 3 == 1 ? 251 : 17 + (c * 7 + i) % 83)
            x[i * ld + c] *= (float)(1 << (c + i) % 9);
    return x;
}

/* Runs the product on every instruction set and some thread counts, in batches of each size up to
 * n; all must have the oracle's bits. */
static void check_matrix(const struct matrix *m, const float *x, int64_t ld_x, int n,
                         const float *bias)
{
    static const int sizes[] = {1, 2, 3, 4, 5, 6, 7, 8, 9, 13, 31, 64, 257};
    float *want = sl_malloc((size_t)(n * m->n_rows) * sizeof *want);
    assert_non_null(want);
    oracle_linear(m, x, ld_x, n, bias, want);
    for (int isa = 0; isa < N_ISAS; isa++) {
        for (int th = 1; isa_available(isa) && th <= 3; th += 2) {
            struct sl_backend *be = backend(isa, th);
            struct sl_weight w = weight_of(be, m);
            char route[32];
            expected_route(isa, false, m->dtype, route, sizeof route);
            assert_string_equal(be->vt->weight_route(be, &w), route);
            for (size_t i = 0; i < SL_COUNT(sizes) && sizes[i] <= n; i++) {
                int first = n - sizes[i];
                if (isa == 0 && sizes[i] > 9 && sizes[i] != n)
                    continue; /* plain C works token by token */
                snprintf(what, sizeof what, "%s %s %lldx%lld T=%d threads=%d",
                         sl_dtype_info(m->dtype)->name, isa_names[isa], (long long)m->n_rows,
                         (long long)m->n_cols, sizes[i], th);
                struct red_buf out = red_alloc((size_t)(sizes[i] * m->n_rows));
                struct sl_op_linear a = {.x = x + first * ld_x,
                                         .ld_x = ld_x,
                                         .w = &w,
                                         .bias = bias,
                                         .n = sizes[i],
                                         .out = out.p,
                                         .ld_out = m->n_rows};
                be->vt->linear(be, &a);
                red_check(&out, true, what);
                same_bits(out.p, want + first * m->n_rows, out.n, what);
                red_free(&out);
            }
            be->vt->weight_destroy(be, &w);
        }
    }
    sl_free(want);
}

static void test_shapes(void **state)
{
    (void)state;
    static const struct {
        int64_t n_rows, n_cols; /* columns are rounded up to whole blocks */
        int n;
    } cases[] = {{1, 32, 9},   {15, 96, 8},   {16, 256, 257}, {17, 288, 31},  {33, 64, 13},
                 {64, 896, 9}, {65, 512, 64}, {130, 1056, 7}, {200, 320, 31}, {79, 768, 257}};
    for (size_t f = 0; f < SL_COUNT(formats); f++)
        for (size_t i = 0; i < SL_COUNT(cases); i++) {
            if (f >= N_FORMS && i != 3)
                continue;
            struct sl_rng rng = {(uint64_t)i, 0};
            int64_t block = sl_dtype_info(formats[f])->block_elems;
            int64_t n_cols = SL_ROUND_UP(cases[i].n_cols, block), ld_x = n_cols + (int64_t)i % 3;
            struct matrix m = matrix_make(&rng, formats[f], cases[i].n_rows, n_cols);
            float *x = activations(&rng, cases[i].n, ld_x);
            float *bias = floats(&rng, (size_t)cases[i].n_rows, 1.0);
            check_matrix(&m, x, ld_x, cases[i].n, i % 2 == 0 ? bias : NULL);
            matrix_free(&m);
            sl_free(x);
            sl_free(bias);
        }
}

/* Codes, scales and activations at their limits, all of one sign: the sums inside the kernels reach
 * what their words must hold. */
static void test_limits(void **state)
{
    (void)state;
    enum { ROWS = 20, COLS = 512, N = 7 };
    static const uint8_t fills[] = {0xFF, 0x00, 0x80, 0x7F, 0x81};
    float x[N * COLS];
    for (int i = 0; i < N * COLS; i++)
        x[i] = i / COLS == 0 ? 1.0f : i / COLS == 1 ? -1.0f : (i + i / 2) % 2 == 0 ? 1.0f : -1.0f;
    for (size_t f = 0; f < SL_COUNT(formats); f++)
        for (size_t i = f < N_FORMS ? 0 : 4; i < SL_COUNT(fills); i++) {
            struct sl_rng rng = {f, i};
            const struct sl_dtype_info *info = sl_dtype_info(formats[f]);
            struct matrix m = matrix_make(&rng, formats[f], ROWS, COLS);
            size_t n_bytes = ROWS * COLS / info->block_elems * info->block_bytes;
            memset(m.data, fills[i], n_bytes);
            for (size_t b = 0; b < n_bytes; b += info->block_bytes)
                block_put_scales(formats[f], m.data + b, 0x2C00, 0x2800);
            info->to_f32(m.data, m.f32, ROWS * COLS);
            check_matrix(&m, x, COLS, N, NULL);
            matrix_free(&m);
        }
}

/* Scales of a file that are zero, negative, subnormal, infinite or NaN. */
static void test_odd_scales(void **state)
{
    (void)state;
    enum { ROWS = 18, COLS = 512, N = 6 };
    static const uint16_t scales[] = {0x0000, 0x8000, 0x0001, 0xFBFF, 0x7C00, 0x7E00, 0xBC00};
    for (size_t f = 0; f < SL_COUNT(formats); f++) {
        struct sl_rng rng = {f, 5};
        const struct sl_dtype_info *info = sl_dtype_info(formats[f]);
        struct matrix m = matrix_make(&rng, formats[f], ROWS, COLS);
        float *x = floats(&rng, N * COLS, 1.0), out[N * ROWS], want[N * ROWS];
        size_t n_blocks = ROWS * COLS / info->block_elems;
        for (size_t b = 0; b < n_blocks && formats[f] != SL_DTYPE_MXFP4; b += 3)
            block_put_scales(formats[f], m.data + b * info->block_bytes,
                             scales[b / 3 % SL_COUNT(scales)], 0x2800);
        info->to_f32(m.data, m.f32, ROWS * COLS);
        for (int isa = 0; isa < N_ISAS; isa++) {
            if (!isa_available(isa))
                continue;
            struct sl_backend *be = backend(isa, 1);
            struct sl_weight w = weight_of(be, &m);
            struct sl_op_linear a = {
                .x = x, .ld_x = COLS, .w = &w, .n = N, .out = out, .ld_out = ROWS};
            be->vt->linear(be, &a);
            snprintf(what, sizeof what, "odd scales %s %s", info->name, isa_names[isa]);
            if (isa == 0)
                memcpy(want, out, sizeof want);
            same_bits(out, want, N * ROWS, what);
            be->vt->weight_destroy(be, &w);
        }
        for (int r = 0; r < ROWS; r++) { /* what the file says is no number stays none */
            bool finite = true;
            for (int k = 0; k < COLS; k++)
                finite = finite && isfinite(m.f32[r * COLS + k]);
            for (int t = 0; t < N; t++)
                assert_true(isfinite(want[t * ROWS + r]) == finite);
        }
        matrix_free(&m);
        sl_free(x);
    }
}

/* ---------------------------------------------------------------- activations */

static void check_quantize(const float *x, int k)
{
    struct sl_i8_x got[4];
    int n_groups = SL_CEIL_DIV(k, G);
    for (int isa = 0; isa < N_ISAS; isa++) {
        if (!isa_available(isa))
            continue;
        memset(got, 0x5A, sizeof got);
        sl_cpu(backend(isa, 1))->i8.quantize(x, k, got);
        for (int g = 0; g < n_groups; g++) {
            struct oracle_x o = oracle_quantize(x + g * G, SL_MIN(k - g * G, G));
            int sums[28] = {0};
            same_bits(&got[g].d, &o.d, 1, isa_names[isa]);
            for (int i = 0; i < G; i++) {
                assert_int_equal(got[g].q[i], o.q[i]);
                sums[i / 16] += o.q[i];
                sums[16 + i / 32] += o.q[i];
                sums[24 + i / 128] += o.q[i];
            }
            for (int i = 0; i < 16; i++)
                assert_int_equal(got[g].sum16[i], sums[i]);
            for (int i = 0; i < 8; i++)
                assert_int_equal(got[g].sum32[i], sums[16 + i]);
            for (int i = 0; i < 2; i++)
                assert_int_equal(got[g].sum128[i], sums[24 + i]);
            int n = 0;
            for (int i = 0; i < G; i++) {
                if (o.outlier[i] == 0)
                    continue;
                assert_true(n < got[g].outliers.n && got[g].outliers.col[n] == i);
                same_bits(&got[g].outliers.x[n++], &o.outlier[i], 1, isa_names[isa]);
            }
            assert_int_equal(got[g].outliers.n, n);
        }
        for (size_t i = 0; i < sizeof got[0]; i++)
            assert_int_equal(((uint8_t *)&got[n_groups])[i], 0x5A);
    }
}

/* So many columns at each distance from the rest, on the bound and beside it. */
static void check_outliers(struct sl_rng *rng, float *x)
{
    for (int n = 1; n <= 10; n++)
        for (int k = 0; k <= 7; k++) {
            for (int i = 0; i < 3 * G; i++)
                x[i] = (float)((int)(sl_rng_next(rng) % 2001) - 1000) / 1000;
            x[5] = x[G + 5] = x[2 * G + 5] = 1.0f;
            for (int i = 0; i < n; i++) {
                x[20 * i] = (float)(1 << k);
                x[G + 25 * i] = -(float)(1 << k) * (1.0f + (float)i / 8);
                x[2 * G + 16 * i + 3] = (float)(1 << (i + k) % 8) + (i == 1 ? 0x1p-15f : 0);
            }
            check_quantize(x, 3 * G);
        }
}

static void test_quantize(void **state)
{
    (void)state;
    static const int ks[] = {1, 15, 16, 32, 33, 255, 256, 257, 300, 512, 768};
    static const float odd[] = {NAN,       -NAN,      INFINITY,  -INFINITY, 3.4e38f, -3.4e38f,
                                0x1p-100f, 0x1p-149f, 0x1p-101f, -0.0f,     1e-30f};
    struct sl_rng rng = {1, 2};
    float *x = floats(&rng, 3 * G, 2.0);
    for (size_t i = 0; i < SL_COUNT(ks); i++)
        check_quantize(x, ks[i]);
    for (int i = 0; i < 2 * G; i++) /* halves: to even */
        x[i] = i == 0 ? 127.0f : (float)(i % 254) - 126.5f;
    check_quantize(x, 2 * G);
    check_outliers(&rng, x);
    memset(x, 0, 3 * G * sizeof *x);
    check_quantize(x, 3 * G);
    x[G + 9] = -1.0f; /* alone: an outlier, and nothing else */
    check_quantize(x, 3 * G);
    for (size_t i = 0; i < SL_COUNT(odd); i++) {
        for (int j = 0; j < 2 * G; j++)
            x[j] = j < G ? (float)j * 0x1p-110f : (float)j;
        x[77] = x[G + 3] = odd[i];
        check_quantize(x, 2 * G);
    }
    sl_free(x);
}

static void test_nan_stays_in_its_row(void **state)
{
    (void)state;
    enum { ROWS = 40, COLS = 768, T = 9 };
    for (size_t f = 0; f < SL_COUNT(formats); f++) {
        struct sl_rng rng = {4, f};
        struct matrix m = matrix_make(&rng, formats[f], ROWS, COLS);
        float *x = activations(&rng, T, COLS), clean[T * ROWS], out[T * ROWS];
        oracle_linear(&m, x, COLS, T, NULL, clean);
        x[4 * COLS + 767] = NAN;
        x[6 * COLS] = INFINITY;
        for (int isa = 0; isa < N_ISAS; isa++) {
            if (!isa_available(isa))
                continue;
            struct sl_backend *be = backend(isa, 1);
            struct sl_weight w = weight_of(be, &m);
            struct sl_op_linear a = {
                .x = x, .ld_x = COLS, .w = &w, .n = T, .out = out, .ld_out = ROWS};
            be->vt->linear(be, &a);
            for (int i = 0; i < T * ROWS; i++) {
                if (i / ROWS == 4 || i / ROWS == 6)
                    assert_true(isnan(out[i]));
                else
                    assert_true(sl_f32_bits(out[i]) == sl_f32_bits(clean[i]));
            }
            be->vt->weight_destroy(be, &w);
        }
        matrix_free(&m);
        sl_free(x);
    }
}

/* ---------------------------------------------------------------- accuracy */

/* Against the product of the same weights and unrounded activations in double. Weights are
 * quantised from normal numbers, as a file's would be. */
static void test_accuracy(void **state)
{
    (void)state;
    enum { ROWS = 64, COLS = 4096, N = 16 };
    static const double bound[] = {2e-4, 1e-4}; /* the others' as the second */
    double *want = sl_malloc(ROWS * N * sizeof *want);
    float *out = sl_malloc(ROWS * N * sizeof *out);
    assert_true(want != NULL && out != NULL);
    for (size_t f = 0; f < N_FORMS; f++) {
        struct sl_rng rng = {11, f};
        struct matrix m = matrix_make(&rng, formats[f], ROWS, COLS);
        float *x = floats(&rng, N * COLS, 1.0), *w32 = floats(&rng, ROWS * COLS, 0.02);
        sl_dtype_info(formats[f])->from_f32(w32, m.data, ROWS * COLS);
        sl_dtype_info(formats[f])->to_f32(m.data, m.f32, ROWS * COLS);
        for (int i = 0; i < N * ROWS; i++) {
            want[i] = 0;
            for (int k = 0; k < COLS; k++)
                want[i] += (double)x[i / ROWS * COLS + k] * (double)m.f32[i % ROWS * COLS + k];
        }
        int best = 0;
        for (int isa = 0; isa < N_ISAS; isa++)
            best = isa_available(isa) ? isa : best;
        struct sl_backend *be = backend(best, 1);
        struct sl_weight w = weight_of(be, &m);
        struct sl_op_linear a = {.x = x, .ld_x = COLS, .w = &w, .n = N, .out = out, .ld_out = ROWS};
        be->vt->linear(be, &a);
        printf("accuracy %-5s NMSE %.2e (at most %.0e)\n", sl_dtype_info(formats[f])->name,
               near_oracle(out, want, N * ROWS, bound[SL_MIN(f, 1u)], "accuracy"),
               bound[SL_MIN(f, 1u)]);
        be->vt->weight_destroy(be, &w);
        matrix_free(&m);
        sl_free(x);
        sl_free(w32);
    }
    sl_free(want);
    sl_free(out);
}

/* ---------------------------------------------------------------- two matrices */

/* The gated product is the two products and the activation, however each matrix is kept. */
static void check_pair(enum sl_dtype tg, enum sl_dtype tu, int isa, int threads, int n)
{
    enum { ROWS = 83, COLS = 512 };
    struct sl_rng rng = {99, (uint64_t)n};
    struct matrix g = matrix_make(&rng, tg, ROWS, COLS), u = matrix_make(&rng, tu, ROWS, COLS);
    matrix_scale_some(&rng, &g, 3);
    matrix_scale_some(&rng, &u, 2);
    float *x = floats(&rng, (size_t)(n * COLS), 1.0);
    size_t n_out = (size_t)(n * ROWS);
    float *both = sl_malloc(2 * n_out * sizeof *both), *want = sl_malloc(n_out * sizeof *want);
    assert_true(both != NULL && want != NULL);
    struct sl_backend *be = backend(isa, threads);
    struct sl_weight w[2] = {weight_of(be, &g), weight_of(be, &u)};
    for (int i = 0; i < 2; i++) {
        struct sl_op_linear a = {.x = x,
                                 .ld_x = COLS,
                                 .w = &w[i],
                                 .n = n,
                                 .out = both + (size_t)i * n_out,
                                 .ld_out = ROWS};
        be->vt->linear(be, &a);
    }
    sl_cpu(be)->k.act(SL_ACT_SILU, both, both + n_out, (int)n_out, want);
    struct red_buf out = red_alloc(n_out);
    struct sl_op_linear_gated_act a = {
        .x = x, .ld_x = COLS, .gate = &w[0], .up = &w[1], .act = SL_ACT_SILU, .n = n, .out = out.p};
    be->vt->linear_gated_act(be, &a);
    snprintf(what, sizeof what, "gate %s up %s %s T=%d", sl_dtype_info(tg)->name,
             sl_dtype_info(tu)->name, isa_names[isa], n);
    red_check(&out, true, what);
    same_bits(out.p, want, n_out, what);
    red_free(&out);
    be->vt->weight_destroy(be, &w[0]);
    be->vt->weight_destroy(be, &w[1]);
    matrix_free(&g);
    matrix_free(&u);
    sl_free(x);
    sl_free(both);
    sl_free(want);
}

static void test_pairs(void **state)
{
    (void)state;
    static const enum sl_dtype pairs[][2] = {
        {SL_DTYPE_Q4_K, SL_DTYPE_Q4_K},     {SL_DTYPE_Q4_K, SL_DTYPE_Q6_K},
        {SL_DTYPE_Q8_0, SL_DTYPE_F16},      {SL_DTYPE_F32, SL_DTYPE_Q5_K},
        {SL_DTYPE_BF16, SL_DTYPE_Q8_0},     {SL_DTYPE_BF16, SL_DTYPE_F32},
        {SL_DTYPE_BF16, SL_DTYPE_BF16},     {SL_DTYPE_FP8_E4M3, SL_DTYPE_FP8_E4M3},
        {SL_DTYPE_FP8_E4M3, SL_DTYPE_BF16}, {SL_DTYPE_Q6_K, SL_DTYPE_FP8_E4M3}};
    static const int ns[] = {1, 4, 7, 130, 259};
    for (size_t p = 0; p < SL_COUNT(pairs); p++)
        for (size_t i = 0; i < SL_COUNT(ns); i++)
            for (int isa = 0; isa < N_ISAS; isa++)
                if (isa_available(isa) && (isa != 0 || ns[i] < 200))
                    check_pair(pairs[p][0], pairs[p][1], isa, 1 + (int)i % 3, ns[i]);
}

/* ---------------------------------------------------------------- several matrices */

struct parts {
    int n;
    enum sl_dtype dtype[SL_MAX_LINEAR_PARTS];
    int64_t n_rows[SL_MAX_LINEAR_PARTS], n_cols;
    int n_tok;
};

/* Several projections in one job are the products one by one, bit for bit, and write nothing else.
 */
static void check_parts(const struct parts *c, int isa, int threads, int64_t pad)
{
    struct sl_rng rng = {123, (uint64_t)c->n_tok};
    struct sl_backend *be = backend(isa, threads);
    const int64_t ld_x = c->n_cols + pad;
    float *x = floats(&rng, (size_t)(c->n_tok * ld_x), 1.0);
    struct matrix m[SL_MAX_LINEAR_PARTS];
    struct sl_weight w[SL_MAX_LINEAR_PARTS];
    struct red_buf one[SL_MAX_LINEAR_PARTS], out[SL_MAX_LINEAR_PARTS];
    float *bias[SL_MAX_LINEAR_PARTS];
    struct sl_op_linear_multi a = {.x = x, .ld_x = ld_x, .n = c->n_tok, .n_parts = c->n};
    for (int i = 0; i < c->n; i++) {
        m[i] = matrix_make(&rng, c->dtype[i], c->n_rows[i], c->n_cols);
        matrix_scale_some(&rng, &m[i], (uint64_t)(i + c->n_tok));
        w[i] = weight_of(be, &m[i]);
        bias[i] = floats(&rng, (size_t)c->n_rows[i], 1.0);
        one[i] = red_alloc((size_t)(c->n_tok * c->n_rows[i]));
        out[i] = red_alloc((size_t)(c->n_tok * c->n_rows[i]));
        struct sl_op_linear l = {.x = x,
                                 .ld_x = ld_x,
                                 .w = &w[i],
                                 .bias = (i + c->n_tok) % 2 == 0 ? bias[i] : NULL,
                                 .n = c->n_tok,
                                 .out = one[i].p,
                                 .ld_out = c->n_rows[i]};
        be->vt->linear(be, &l);
        a.part[i] = (struct sl_linear_part){&w[i], l.bias, out[i].p, c->n_rows[i]};
    }
    be->vt->linear_multi(be, &a);
    for (int i = 0; i < c->n; i++) {
        snprintf(what, sizeof what, "part %d of %d: %s %lldx%lld %s T=%d threads=%d", i, c->n,
                 sl_dtype_info(c->dtype[i])->name, (long long)c->n_rows[i], (long long)c->n_cols,
                 isa_names[isa], c->n_tok, threads);
        red_check(&out[i], true, what);
        same_bits(out[i].p, one[i].p, out[i].n, what);
        red_free(&out[i]);
        red_free(&one[i]);
        be->vt->weight_destroy(be, &w[i]);
        matrix_free(&m[i]);
        sl_free(bias[i]);
    }
    sl_free(x);
}

static void test_parts(void **state)
{
    (void)state;
    static const enum sl_dtype all[] = {SL_DTYPE_F32,  SL_DTYPE_F16,  SL_DTYPE_BF16,
                                        SL_DTYPE_Q8_0, SL_DTYPE_Q4_0, SL_DTYPE_Q4_K,
                                        SL_DTYPE_Q5_K, SL_DTYPE_Q6_K, SL_DTYPE_FP8_E4M3};
    static const int ns[] = {1, 3, 5, 24, 33, 259};
    static const struct parts mixed[] = {
        {3, {SL_DTYPE_Q4_K, SL_DTYPE_Q4_K, SL_DTYPE_Q6_K}, {130, 33, 17}, 512, 0},
        {3, {SL_DTYPE_Q8_0, SL_DTYPE_BF16, SL_DTYPE_F16}, {65, 7, 80}, 288, 0},
        {2, {SL_DTYPE_F32, SL_DTYPE_BF16}, {1, 513}, 96, 0},
        {4, {SL_DTYPE_Q4_0, SL_DTYPE_F32, SL_DTYPE_Q8_0, SL_DTYPE_Q5_K}, {16, 16, 16, 300}, 768, 0},
        {1, {SL_DTYPE_Q6_K}, {50}, 256, 0},
        {4,
         {SL_DTYPE_FP8_E4M3, SL_DTYPE_Q8_0, SL_DTYPE_BF16, SL_DTYPE_F32},
         {65, 9, 70, 5},
         416,
         0},
        {3, {SL_DTYPE_FP8_E4M3, SL_DTYPE_FP8_E4M3, SL_DTYPE_BF16}, {70, 5, 33}, 300, 0},
    };
    for (int isa = 0; isa < N_ISAS; isa++)
        for (size_t i = 0; i < SL_COUNT(ns); i++) {
            if (!isa_available(isa) || (isa == 0 && ns[i] > 100))
                continue;
            const int threads = 1 + (int)i % 3;
            for (size_t f = 0; f < SL_COUNT(all); f++) {
                struct parts c = {3, {all[f], all[f], all[f]}, {96, 24, 23}, 512, ns[i]};
                check_parts(&c, isa, threads, (int64_t)f % 2);
            }
            for (size_t p = 0; p < SL_COUNT(mixed); p++) {
                struct parts c = mixed[p];
                c.n_tok = ns[i];
                check_parts(&c, isa, threads, 0);
            }
        }
}

/* So many columns that the activations are worked on in parts: what waits in between is kept apart
 * from what is whole at once. */
static void test_parts_wide(void **state)
{
    (void)state;
    static const struct parts c[] = {
        {3, {SL_DTYPE_Q8_0, SL_DTYPE_BF16, SL_DTYPE_F16}, {35, 18, 9}, 16384, 140},
        {3, {SL_DTYPE_FP8_E4M3, SL_DTYPE_BF16, SL_DTYPE_F16}, {70, 18, 9}, 16384, 140},
    };
    for (int isa = 1; isa < N_ISAS; isa++)
        for (size_t i = 0; isa_available(isa) && i < SL_COUNT(c); i++)
            check_parts(&c[i], isa, 2, 0);
}

/* Outputs that are put while the thread's next item is multiplied, as where there are tiles, are
 * those that are put at once. */
static void check_late(enum sl_dtype tg, enum sl_dtype tu, int isa, int threads, int n)
{
    enum { ROWS = 419, COLS = 512 };
    struct sl_rng rng = {7, (uint64_t)n};
    struct matrix g = matrix_make(&rng, tg, ROWS, COLS), u = matrix_make(&rng, tu, ROWS, COLS);
    float *x = floats(&rng, (size_t)(n * COLS), 1.0), *bias = floats(&rng, ROWS, 1.0);
    struct sl_backend *be = backend(isa, threads);
    struct sl_cpu *cpu = sl_cpu(be);
    const struct sl_i8_shape *own_i8 = cpu->i8.shape;
    const struct sl_bf16_shape *own_bf16 = cpu->bf16.shape;
    /* Kernels of tiles walk a block as their own shape says; the others only need late and tokens.
     */
    struct sl_i8_shape i8 = own_i8 != NULL ? *own_i8 : (struct sl_i8_shape){0};
    struct sl_bf16_shape bf16 = own_bf16 != NULL ? *own_bf16 : (struct sl_bf16_shape){0};
    i8.tokens = 96;
    bf16.tokens = 512;
    struct sl_weight w[2] = {weight_of(be, &g), weight_of(be, &u)};
    struct red_buf out[2][3];
    for (int late = 0; late < 2; late++) {
        i8.late = bf16.late = late != 0;
        cpu->i8.shape = late != 0 || own_i8 != NULL ? &i8 : NULL;
        cpu->bf16.shape = late != 0 || own_bf16 != NULL ? &bf16 : NULL;
        for (int i = 0; i < 3; i++)
            out[late][i] = red_alloc((size_t)(n * ROWS));
        struct sl_op_linear_gated_act a = {.x = x,
                                           .ld_x = COLS,
                                           .gate = &w[0],
                                           .up = &w[1],
                                           .act = SL_ACT_SILU,
                                           .n = n,
                                           .out = out[late][0].p};
        be->vt->linear_gated_act(be, &a);
        struct sl_op_linear_multi b = {.x = x, .ld_x = COLS, .n = n, .n_parts = 2};
        for (int i = 0; i < 2; i++)
            b.part[i] =
                (struct sl_linear_part){&w[i], i == 0 ? bias : NULL, out[late][1 + i].p, ROWS};
        be->vt->linear_multi(be, &b);
    }
    cpu->i8.shape = own_i8;
    cpu->bf16.shape = own_bf16;
    for (int i = 0; i < 3; i++) {
        snprintf(what, sizeof what, "late %s %s %s T=%d output %d", sl_dtype_info(tg)->name,
                 sl_dtype_info(tu)->name, isa_names[isa], n, i);
        red_check(&out[1][i], true, what);
        same_bits(out[1][i].p, out[0][i].p, out[0][i].n, what);
        red_free(&out[0][i]);
        red_free(&out[1][i]);
    }
    for (int i = 0; i < 2; i++)
        be->vt->weight_destroy(be, &w[i]);
    matrix_free(&g);
    matrix_free(&u);
    sl_free(x);
    sl_free(bias);
}

static void test_late(void **state)
{
    (void)state;
    for (int isa = ISA_VNNI; isa < N_ISAS; isa++)
        for (int n = 65; isa_available(isa) && n < 600; n += 131) {
            check_late(SL_DTYPE_Q8_0, SL_DTYPE_Q8_0, isa, 1 + n % 3, n);
            check_late(SL_DTYPE_Q4_K, SL_DTYPE_BF16, isa, 1 + n % 2, n);
            check_late(SL_DTYPE_BF16, SL_DTYPE_BF16, isa, 1 + n % 4, n);
            check_late(SL_DTYPE_Q6_K, SL_DTYPE_F16, isa, 1, n);
            check_late(SL_DTYPE_FP8_E4M3, SL_DTYPE_BF16, isa, 2, n);
        }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_quantize),
        cmocka_unit_test(test_shapes),
        cmocka_unit_test(test_limits),
        cmocka_unit_test(test_odd_scales),
        cmocka_unit_test(test_nan_stays_in_its_row),
        cmocka_unit_test(test_accuracy),
        cmocka_unit_test(test_pairs),
        cmocka_unit_test(test_parts),
        cmocka_unit_test(test_parts_wide),
        cmocka_unit_test(test_late),
    };
    say_what_is_skipped();
    return cmocka_run_group_tests(tests, NULL, destroy_backends);
}
