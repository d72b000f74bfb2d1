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
#include "cpu/cpu.h"
#include "quant/float.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#define RED_FLOATS         64
#define RED_PATTERN        0x7FC0DEADu /* a NaN nothing computes */
#define MAX_THREADS_TESTED 8

static const char *const isa_names[] = {"c", "avx2", "avx512"};
static const enum sl_cpu_isa isas[] = {SL_ISA_C, SL_ISA_AVX2, SL_ISA_AVX512};

static bool isa_available(int i)
{
    enum sl_cpu_isa isa;
    return sl_cpu_isa_parse(isa_names[i], &isa, NULL) == 0;
}

static struct sl_backend *backends[3][MAX_THREADS_TESTED + 1];

static struct sl_backend *backend(int isa, int n_threads)
{
    struct sl_backend **be = &backends[isa][n_threads];
    if (*be == NULL) {
        struct sl_error err = {0};
        if (sl_cpu_create(n_threads, isas[isa], be, &err) != 0)
            fail_msg("sl_cpu_create: %s", err.msg);
    }
    return *be;
}

static int destroy_backends(void **state)
{
    (void)state;
    for (int i = 0; i < 3; i++)
        for (int t = 0; t <= MAX_THREADS_TESTED; t++)
            if (backends[i][t] != NULL) {
                backends[i][t]->vt->destroy(backends[i][t]);
                backends[i][t] = NULL;
            }
    return 0;
}

/* ---------------------------------------------------------------- buffers */

struct red_buf {
    float *base, *p;
    size_t n;
};

static void poison(struct red_buf *b)
{
    for (size_t i = 0; i < b->n + 2 * RED_FLOATS; i++)
        b->base[i] = sl_f32_of_bits(RED_PATTERN);
}

static struct red_buf red_alloc(size_t n)
{
    struct red_buf b = {.n = n};
    b.base = sl_malloc((n + 2 * RED_FLOATS) * sizeof(float));
    assert_non_null(b.base);
    b.p = b.base + RED_FLOATS;
    poison(&b);
    return b;
}

/* The zones are untouched and, when all is set, every float between them was written. */
static void red_check(const struct red_buf *b, bool all, const char *what)
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

static void red_free(struct red_buf *b)
{
    sl_free(b->base);
    b->base = NULL;
}

static float *floats(struct sl_rng *rng, size_t n, double scale)
{
    float *p = sl_malloc(n * sizeof(float));
    assert_non_null(p);
    for (size_t i = 0; i < n; i++)
        p[i] = (float)(scale * sl_rng_normal(rng));
    return p;
}

/* Equal bits; any NaN equals any NaN. */
static void same_bits(const float *a, const float *b, size_t n, const char *what)
{
    for (size_t i = 0; i < n; i++)
        if (sl_f32_bits(a[i]) != sl_f32_bits(b[i]) && !(isnan(a[i]) && isnan(b[i])))
            fail_msg("%s: element %zu of %zu: %a is not %a", what, i, n, (double)a[i],
                     (double)b[i]);
}

static void near_oracle(const float *a, const double *want, size_t n, double max_nmse,
                        const char *what)
{
    double err = 0, power = 0;
    for (size_t i = 0; i < n; i++) {
        double d = (double)a[i] - want[i];
        err += d * d;
        power += want[i] * want[i];
    }
    if (!(err <= max_nmse * power))
        fail_msg("%s: NMSE %g above %g", what, err / power, max_nmse);
}

/* ---------------------------------------------------------------- matrices */

/* Offset of the f16 scales in a block; random bytes elsewhere reach every code and every scale. */
static void random_blocks(struct sl_rng *rng, enum sl_dtype t, uint8_t *p, size_t n_bytes)
{
    static const int scale_at[SL_DTYPE_COUNT][2] = {[SL_DTYPE_Q8_0] = {0, -1},
                                                    [SL_DTYPE_Q4_0] = {0, -1},
                                                    [SL_DTYPE_Q4_K] = {0, 2},
                                                    [SL_DTYPE_Q5_K] = {0, 2},
                                                    [SL_DTYPE_Q6_K] = {208, -1}};
    const struct sl_dtype_info *info = sl_dtype_info(t);
    if (info->block_elems == 1) {
        for (size_t i = 0; i < n_bytes; i += info->block_bytes) {
            float x = (float)(0.1 * sl_rng_normal(rng));
            info->from_f32(&x, p + i, 1);
        }
        return;
    }
    for (size_t i = 0; i < n_bytes; i++)
        p[i] = (uint8_t)sl_rng_next(rng);
    for (size_t i = 0; i < n_bytes; i += info->block_bytes)
        for (int s = 0; s < 2; s++)
            if (scale_at[t][s] >= 0)
                sl_store_u16(p + i + scale_at[t][s],
                             sl_f32_to_f16((float)(0.01 * sl_rng_normal(rng))));
}

struct matrix { /* at an odd address, as a file may give it */
    uint8_t *base, *data;
    enum sl_dtype dtype;
    int64_t n_rows, n_cols;
    float *f32; /* [n_rows, n_cols] by the reference conversion */
};

static struct matrix matrix_make(struct sl_rng *rng, enum sl_dtype t, int64_t n_rows,
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

static void matrix_free(struct matrix *m)
{
    sl_free(m->base);
    sl_free(m->f32);
}

static struct sl_weight weight_of(struct sl_backend *be, const struct matrix *m)
{
    struct sl_weight w;
    struct sl_error err = {0};
    if (be->vt->weight_create(be, m->dtype, m->n_rows, m->n_cols, m->data, &w, &err) != 0)
        fail_msg("weight_create: %s", err.msg);
    return w;
}

#endif
