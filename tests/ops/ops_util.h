/* SPDX-License-Identifier: MIT
 * ops_util.h - what the checks and benchmarks of the operations share: backends by instruction set
 * and thread count, buffers between red zones, random matrices of every format, paged sequences.
 */
#ifndef TESTS_OPS_UTIL_H
#define TESTS_OPS_UTIL_H

#include "base/check.h"
#include "base/limits.h"
#include "base/rng.h"
#include "base/sys.h"
#include "cpu/backend.h"
#include "quant/float.h"
#include "quant/int4.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "quant/block_fields.h"

#define RED_FLOATS         64
#define RED_PATTERN        0x7FC0DEADu /* a NaN nothing computes */
#define MAX_THREADS_TESTED 8

/* Each instruction set includes the ones before it; the float operations end with avx512. */
static const char *const isa_names[] = {"c", "avx2", "avx512", "avx512-vnni", "avx512-bf16", "amx"};
static const enum sl_cpu_isa isas[] = {SL_ISA_C,           SL_ISA_AVX2,        SL_ISA_AVX512,
                                       SL_ISA_AVX512_VNNI, SL_ISA_AVX512_BF16, SL_ISA_AMX};
enum { N_ISAS = 6, N_FLOAT_ISAS = 3, ISA_VNNI = 3, ISA_BF16 = 4, ISA_AMX = 5 };

static bool isa_available(int i)
{
    enum sl_cpu_isa isa;
    return sl_cpu_isa_parse(isa_names[i], &isa, NULL) == 0;
}

static inline void say_what_is_skipped(void)
{
    for (int i = 0; i < N_ISAS; i++)
        if (!isa_available(i))
            printf("skip: %s: not on this processor\n", isa_names[i]);
}

static struct sl_backend *backends[2][N_ISAS][MAX_THREADS_TESTED + 1];

/* exact: block formats are multiplied as floats. */
static struct sl_backend *backend_of(int isa, int n_threads, bool exact)
{
    struct sl_backend **be = &backends[exact][isa][n_threads];
    if (*be == NULL) {
        struct sl_error err = {0};
        struct sl_cpu_config cfg = {.n_threads = n_threads, .isa = isas[isa], .exact = exact};
        if (sl_cpu_create(&cfg, be, &err) != 0)
            fail_msg("sl_cpu_create: %s", err.msg);
    }
    return *be;
}

static struct sl_backend *backend(int isa, int n_threads)
{
    return backend_of(isa, n_threads, false);
}

static int destroy_backends(void **state)
{
    (void)state;
    struct sl_backend **all = &backends[0][0][0];
    for (size_t i = 0; i < sizeof backends / sizeof *all; i++)
        if (all[i] != NULL) {
            all[i]->vt->destroy(all[i]);
            all[i] = NULL;
        }
    return 0;
}

/* ---------------------------------------------------------------- buffers */

struct red_buf {
    float *base, *p;
    size_t n;
};

static inline void poison(struct red_buf *b)
{
    for (size_t i = 0; i < b->n + 2 * RED_FLOATS; i++)
        b->base[i] = sl_f32_of_bits(RED_PATTERN);
}

static inline struct red_buf red_alloc(size_t n)
{
    struct red_buf b = {.n = n};
    b.base = sl_malloc((n + 2 * RED_FLOATS) * sizeof(float));
    assert_non_null(b.base);
    b.p = b.base + RED_FLOATS;
    poison(&b);
    return b;
}

/* The zones are untouched and, when all is set, every float between them was written. */
static inline void red_check(const struct red_buf *b, bool all, const char *what)
{
    for (size_t i = 0; i < b->n + 2 * RED_FLOATS; i++) {
        bool inside = i >= RED_FLOATS && i < b->n + RED_FLOATS;
        bool is_red = sl_f32_bits(b->base[i]) == RED_PATTERN;
        if (!inside && !is_red)
            fail_msg("%s: wrote outside at %ld of %zu", what, (long)i - RED_FLOATS, b->n);
        if (inside && all && is_red)
            fail_msg("%s: left %zu of %zu unwritten", what, i - RED_FLOATS, b->n);
    }
}

static inline void red_free(struct red_buf *b)
{
    sl_free(b->base);
    b->base = NULL;
}

static inline float *floats(struct sl_rng *rng, size_t n, double scale)
{
    float *p = sl_malloc(n * sizeof(float));
    assert_non_null(p);
    for (size_t i = 0; i < n; i++)
        p[i] = (float)(scale * sl_rng_normal(rng));
    return p;
}

/* Equal bits; any NaN equals any NaN. */
static inline void same_bits(const float *a, const float *b, size_t n, const char *what)
{
    for (size_t i = 0; i < n; i++)
        if (sl_f32_bits(a[i]) != sl_f32_bits(b[i]) && !(isnan(a[i]) && isnan(b[i])))
            fail_msg("%s: element %zu of %zu: %a is not %a", what, i, n, (double)a[i],
                     (double)b[i]);
}

static inline double square_error(const float *a, const double *want, size_t n)
{
    double err = 0;
    for (size_t i = 0; i < n; i++)
        err += ((double)a[i] - want[i]) * ((double)a[i] - want[i]);
    return err;
}

/* Normalised mean square error, which must not be above max_nmse. */
static inline double near_oracle(const float *a, const double *want, size_t n, double max_nmse,
                                 const char *what)
{
    double err = square_error(a, want, n), power = 0;
    for (size_t i = 0; i < n; i++)
        power += want[i] * want[i];
    if (!(err <= max_nmse * power))
        fail_msg("%s: NMSE %g above %g", what, err / power, max_nmse);
    return err / power;
}

/* ---------------------------------------------------------------- matrices */

/* Random bytes but for the scales reach every code and every scale of a run. */
static inline void random_blocks(struct sl_rng *rng, enum sl_dtype t, uint8_t *p, size_t n_bytes)
{
    const struct sl_dtype_info *info = sl_dtype_info(t);
    if (t == SL_DTYPE_FP8_E4M3) { /* every code that is a number */
        for (size_t i = 0; i < n_bytes; i++)
            p[i] = (uint8_t)(sl_rng_below(rng, 127) | (sl_rng_next(rng) & 0x80));
        return;
    }
    if (info->block_elems == 1) {
        for (size_t i = 0; i < n_bytes; i += info->block_bytes) {
            float x = (float)(0.1 * sl_rng_normal(rng));
            info->from_f32(&x, p + i, 1);
        }
        return;
    }
    for (size_t i = 0; i < n_bytes; i++)
        p[i] = (uint8_t)sl_rng_next(rng);
    for (size_t i = 0; i < n_bytes; i += info->block_bytes) {
        if (t == SL_DTYPE_INT4_G128 || t == SL_DTYPE_INT4_G32)
            sl_int4_store_head(
                p + i,
                sl_int4_head(sl_f16_to_f32(sl_f32_to_f16((float)(0.01 * sl_rng_normal(rng)))),
                             (uint32_t)sl_rng_below(rng, 16)));
        const uint16_t d = sl_f32_to_f16((float)(0.01 * sl_rng_normal(rng)));
        block_put_scales(t, p + i, d, sl_f32_to_f16((float)(0.01 * sl_rng_normal(rng))));
        if (t == SL_DTYPE_MXFP4)
            p[i] = (uint8_t)(118 + sl_rng_below(rng, 6));
    }
}

struct matrix { /* at an odd address, as a file may give it */
    uint8_t *base, *data;
    enum sl_dtype dtype;
    int64_t n_rows, n_cols;
    float *f32; /* [n_rows, n_cols] by the reference conversion */
    struct sl_scales scales;
    float *scale; /* its values */
};

static inline struct matrix matrix_make(struct sl_rng *rng, enum sl_dtype t, int64_t n_rows,
                                        int64_t n_cols)
{
    struct matrix m = {.dtype = t, .n_rows = n_rows, .n_cols = n_cols};
    uint64_t n_bytes;
    assert_true(sl_dtype_bytes(t, (uint64_t)(n_rows * n_cols), &n_bytes));
    m.base = sl_malloc(n_bytes + 1);
    m.f32 = sl_malloc((size_t)(n_rows * n_cols) * sizeof(float));
    assert_true(m.base != NULL && m.f32 != NULL);
    m.data = m.base + 1;
    random_blocks(rng, t, m.data, n_bytes);
    sl_dtype_info(t)->to_f32(m.data, m.f32, n_rows * n_cols);
    return m;
}

/* Scales in blocks, for a format that has none of its own. */
static inline void matrix_scale(struct sl_rng *rng, struct matrix *m, int32_t rows, int32_t cols)
{
    int64_t n_r = SL_CEIL_DIV(m->n_rows, rows), n_c = SL_CEIL_DIV(m->n_cols, cols);
    m->scale = sl_malloc((size_t)(n_r * n_c) * sizeof(float));
    assert_non_null(m->scale);
    for (int64_t i = 0; i < n_r * n_c; i++)
        m->scale[i] = (float)exp(-5.0 + sl_rng_normal(rng));
    m->scales = (struct sl_scales){.values = m->scale, .rows = rows, .cols = cols};
    for (int64_t i = 0; i < m->n_rows * m->n_cols; i++)
        m->f32[i] *= m->scale[i / m->n_cols / rows * n_c + i % m->n_cols / cols];
}

/* The same for every kind of blocks in turn; other formats stay as they are. */
static inline void matrix_scale_some(struct sl_rng *rng, struct matrix *m, uint64_t kind)
{
    const int32_t n_rows = (int32_t)m->n_rows, n_cols = (int32_t)m->n_cols;
    if (m->dtype != SL_DTYPE_FP8_E4M3 || kind % 5 == 0)
        return;
    const int32_t blocks[][2] = {{n_rows, n_cols}, {1, n_cols}, {128, 128}, {7, 256}};
    matrix_scale(rng, m, blocks[kind % 5 - 1][0], blocks[kind % 5 - 1][1]);
}

static inline void matrix_free(struct matrix *m)
{
    sl_free(m->scale);
    sl_free(m->base);
    sl_free(m->f32);
}

static inline struct sl_weight weight_for(struct sl_backend *be, enum sl_weight_use use,
                                          const struct matrix *m)
{
    struct sl_weight w;
    struct sl_error err = {0};
    if (be->vt->weight_create(be, use, m->dtype, m->n_rows, m->n_cols, m->data, &m->scales, &w,
                              &err) != 0)
        fail_msg("weight_create: %s", err.msg);
    return w;
}

static inline struct sl_weight weight_of(struct sl_backend *be, const struct matrix *m)
{
    return weight_for(be, SL_USE_LINEAR, m);
}

/* What weight_route should say of a product's matrix. */
static inline void expected_route(int isa, bool exact, enum sl_dtype t, char *out, size_t n)
{
    static const char *const i8[] = {"i8-c",    "i8-avx2", "i8-avx512",
                                     "i8-vnni", "i8-vnni", "i8-amx"};
    if (!exact && sl_i8_form_of(t) != SL_I8_NONE)
        snprintf(out, n, "%s", i8[isa]);
    else if (!exact && t == SL_DTYPE_BF16 && isa >= ISA_BF16)
        snprintf(out, n, "%s", isa >= ISA_AMX ? "bf16-amx" : "bf16-dot");
    else if (!exact && t == SL_DTYPE_FP8_E4M3 && isa >= ISA_BF16)
        snprintf(out, n, "%s", isa >= ISA_AMX ? "fp8-amx" : "fp8-dot");
    else if (sl_dtype_info(t)->eight != NULL) /* decoded by the reference */
        snprintf(out, n, "%s_c", sl_dtype_info(t)->name);
    else
        snprintf(out, n, "%s_%s", sl_dtype_info(t)->name, isa_names[SL_MIN(isa, N_FLOAT_ISAS - 1)]);
}

#endif
