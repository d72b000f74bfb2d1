/* SPDX-License-Identifier: MIT
 * Codes of KV pages (quant/kv_codec.h): codes, scales and what they stand for against an oracle in
 * double precision (make_kv_golden.py), and vectors at the edges: ties, zeros, numbers that are too
 * large, too small or not finite, and of one sign.
 */
#include "base/check.h"
#include "base/sys.h"
#include "io/safetensors.h"
#include "quant/fp8_e4m3.h"
#include "quant/kv_codec.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

enum { MAX_DIM = 256, MAX_SCALES = MAX_DIM / SL_KV_CODE_BLOCK };

static const enum sl_dtype formats[] = {SL_KV_TURBO4, SL_KV_TURBO3, SL_KV_INT4_HEAD, SL_KV_NVFP4};
static const int dims[] = {16, 32, 48, 64, 80, 128, 256};

static char *file;
static struct sl_st *st;

static int open_file(void **state)
{
    struct sl_error err = {0};
    size_t n;
    (void)state;
    if (sl_read_file("tests/golden/kv/kv.safetensors", 1 << 20, &file, &n, &err) != 0 ||
        sl_st_open((const uint8_t *)file, n, "kv.safetensors", &st, &err) != 0) {
        printf("%s\n", err.msg);
        return -1;
    }
    return 0;
}

static int close_file(void **state)
{
    (void)state;
    sl_st_close(st);
    sl_free(file);
    return 0;
}

/* A row of a tensor "<dim>.<format>.<part>" (format NULL: "<dim>.x"). */
static const uint8_t *row_of(int dim, const char *format, const char *part, int row, size_t bytes)
{
    char name[64];
    if (format == NULL)
        snprintf(name, sizeof name, "%d.%s", dim, part);
    else
        snprintf(name, sizeof name, "%d.%s.%s", dim, format, part);
    const struct sl_st_tensor *t = sl_st_find(st, name);
    if (t == NULL)
        fail_msg("%s is missing", name);
    return (const uint8_t *)file + t->offset + (size_t)row * bytes;
}

static const float *floats_of(int dim, const char *format, const char *part, int row, int n)
{
    return (const float *)(const void *)row_of(dim, format, part, row, (size_t)n * sizeof(float));
}

/* Scale i of a vector, as the store has them side by side. */
static const uint8_t *scale_at(const struct sl_kv_codec *c, const uint8_t *scales, int d)
{
    return c->kind == SL_KV_BLOCK_E4M3 ? scales + d / SL_KV_CODE_BLOCK : scales;
}

static float value_of(const struct sl_kv_codec *c, uint8_t code, const uint8_t *scale)
{
    return sl_bf16_to_f32(sl_kv_codec_value(c, code, scale));
}

static void check_row(enum sl_dtype format, int dim, int row)
{
    const struct sl_kv_codec *c = sl_kv_codec_of(format);
    const char *name = sl_dtype_info(format)->name;
    const int n_scales = sl_kv_codec_scales(c, dim);
    const uint8_t *want = row_of(dim, name, "codes", row, (size_t)dim);
    const float *scale = floats_of(dim, name, "scales", row, n_scales);
    const float *decoded = floats_of(dim, name, "decoded", row, dim);
    uint8_t codes[MAX_DIM], scales[MAX_SCALES];
    float x[MAX_DIM];
    double err = 0, power = 0;
    memcpy(x, floats_of(dim, NULL, "x", row, dim), (size_t)dim * sizeof *x);
    if (c->rotated)
        sl_kv4_rotate(x, dim);
    c->encode(c->levels, x, dim, codes, scales);
    for (int d = 0; d < dim; d++)
        if (codes[d] != want[d])
            fail_msg("%s of %d, row %d: code %d is %d, not %d", name, dim, row, d, codes[d],
                     want[d]);
    for (int i = 0; i < n_scales; i++) { /* E4M3 and F16 exactly; of a float some bits are lost */
        const float got = sl_kv_codec_scale(c, scales + i * c->scale_bytes);
        assert_true(c->kind == SL_KV_VECTOR_ZERO ? fabsf(got - scale[i]) <= scale[i] * 0x1p-18f
                                                 : got == scale[i]);
    }
    assert_int_equal(sl_kv_codec_zero(c, scales), *floats_of(dim, name, "zero", row, 1));
    for (int d = 0; d < dim; d++)
        x[d] = value_of(c, codes[d], scale_at(c, scales, d));
    if (c->rotated)
        sl_kv4_rotate_back(x, dim);
    for (int d = 0; d < dim; d++) {
        err += pow((double)(x[d] - decoded[d]), 2);
        power += pow((double)decoded[d], 2);
    }
    if (!(err <= power * (c->kind == SL_KV_BLOCK_E4M3 ? 0 : 1e-5))) /* values are BF16 */
        fail_msg("%s of %d, row %d: NMSE %g", name, dim, row, err / power);
}

static void test_golden(void **state)
{
    (void)state;
    for (size_t i = 0; i < SL_COUNT(formats) * SL_COUNT(dims) * 6; i++)
        check_row(formats[i / 6 / SL_COUNT(dims)], dims[i / 6 % SL_COUNT(dims)], (int)(i % 6));
}

/* ---------------------------------------------------------------- edges */

/* A block whose scale is 1 (its greatest magnitude is 6) is codes of E2M1. */
static void test_e2m1(void **state)
{
    static const float from[16] = {6.0f,  0.25f, 0.26f, 0.74f, 0.75f, 1.25f, 1.26f, 1.75f,
                                   -2.5f, -2.6f, 3.49f, 3.5f,  5.0f,  5.01f, -0.0f, -0.2f};
    static const float to[16] = {6.0f,  0.0f,  0.5f, 0.5f, 1.0f, 1.0f, 1.5f, 2.0f,
                                 -2.0f, -3.0f, 3.0f, 4.0f, 4.0f, 6.0f, 0.0f, 0.0f};
    const struct sl_kv_codec *c = sl_kv_codec_of(SL_KV_NVFP4);
    uint8_t codes[16], scale;
    float x[16];
    (void)state;
    for (int e = -9; e <= 8; e++) { /* also of scales that are subnormal */
        for (int i = 0; i < 16; i++)
            x[i] = ldexpf(from[i], e);
        c->encode(c->levels, x, 16, codes, &scale);
        assert_true(sl_fp8_e4m3_to_f32(scale) == ldexpf(1.0f, e));
        for (int i = 0; i < 16; i++)
            if (value_of(c, codes[i], &scale) != ldexpf(to[i], e))
                fail_msg("%a became %a", (double)x[i], (double)value_of(c, codes[i], &scale));
    }
    for (uint8_t code = 0; code < 16; code++) /* every number times every scale is BF16 */
        for (int s = 0; s < 127; s++) {
            const uint8_t byte = (uint8_t)s;
            assert_true(value_of(c, code, &byte) ==
                        sl_kv4_level(c->levels, code) * sl_fp8_e4m3_to_f32(byte));
            assert_int_equal(sl_kv_codec_key(c, code, &byte), sl_kv_codec_value(c, code, &byte));
        }
}

/* Zeros, and numbers that no scale is small or large enough for. */
static void test_sizes(void **state)
{
    static const float tops[] = {0.0f, 1e-30f, 1e-8f, 1e5f, 1e30f, 3.4e38f};
    (void)state;
    for (size_t i = 0; i < SL_COUNT(formats) * SL_COUNT(tops); i++) {
        const struct sl_kv_codec *c = sl_kv_codec_of(formats[i / SL_COUNT(tops)]);
        const float top = tops[i % SL_COUNT(tops)];
        uint8_t codes[32], scales[MAX_SCALES];
        float x[32];
        for (int d = 0; d < 32; d++)
            x[d] = d % 2 == 0 ? top : -top;
        c->encode(c->levels, x, 32, codes, scales);
        for (int d = 0; d < 32; d++) {
            const float got = value_of(c, codes[d], scale_at(c, scales, d));
            assert_true(isfinite(got) && fabsf(got) <= top * 1.3f + 1e-5f);
            assert_true(top < 1.0f || (got > 0) == (x[d] > 0));
        }
    }
}

static void test_not_finite(void **state)
{
    static const float odd[] = {NAN, INFINITY, -INFINITY};
    (void)state;
    for (size_t i = 0; i < SL_COUNT(formats) * SL_COUNT(odd); i++) {
        const struct sl_kv_codec *c = sl_kv_codec_of(formats[i / SL_COUNT(odd)]);
        uint8_t codes[32], scales[MAX_SCALES];
        float x[32] = {1, 2, -3};
        x[19] = odd[i % SL_COUNT(odd)];
        c->encode(c->levels, x, 32, codes, scales);
        for (int d = 0; d < 32; d++)
            assert_int_equal(isnan(value_of(c, codes[d], scale_at(c, scales, d))) != 0,
                             c->kind != SL_KV_BLOCK_E4M3 || d >= 16);
    }
}

/* Whole numbers of one sign: 0 is among what they stand for, so none is far off. */
static void test_one_sign(void **state)
{
    const struct sl_kv_codec *c = sl_kv_codec_of(SL_KV_INT4_HEAD);
    (void)state;
    for (int sign = -1; sign <= 1; sign += 2) {
        uint8_t codes[16], scale[4];
        float x[16];
        for (int d = 0; d < 16; d++)
            x[d] = (float)sign * (100.0f + (float)d / 16);
        c->encode(c->levels, x, 16, codes, scale);
        assert_int_equal(sl_kv_codec_zero(c, scale), sign > 0 ? 0 : 15);
        for (int d = 0; d < 16; d++)
            assert_true(fabsf(value_of(c, codes[d], scale) - x[d]) < 101.0f / 30 + 0.5f);
    }
}

/* The formats are those of the names, and no other has a row. */
static void test_rows(void **state)
{
    (void)state;
    for (int t = 0; t < SL_KV_DTYPES_END; t++) {
        bool coded = false;
        for (size_t i = 0; i < SL_COUNT(formats); i++)
            coded |= formats[i] == (enum sl_dtype)t;
        assert_int_equal(sl_kv_codec_of((enum sl_dtype)t) != NULL, coded);
    }
    for (size_t i = 0; i < SL_COUNT(formats); i++) {
        static const size_t bytes[] = {66, 50, 68, 72}; /* of 128 numbers */
        assert_int_equal(sl_kv_codec_bytes(sl_kv_codec_of(formats[i]), 128), bytes[i]);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_rows),       cmocka_unit_test(test_golden),
        cmocka_unit_test(test_e2m1),       cmocka_unit_test(test_sizes),
        cmocka_unit_test(test_not_finite), cmocka_unit_test(test_one_sign),
    };
    return cmocka_run_group_tests(tests, open_file, close_file);
}
