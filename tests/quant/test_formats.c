/* SPDX-License-Identifier: MIT
 * Block formats: decoding against hashes made with the public reference (make_golden.py), encoding
 * by its error, and both on values that do not fit.
 */
#include "base/check.h"
#include "base/rng.h"
#include "base/sys.h"
#include "quant/dtype.h"
#include "quant/float.h"
#include "quant/q4_k.h"

#include <float.h>
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <string.h>

#include <cmocka.h>

#define N_BLOCKS 64

static const enum sl_dtype block_formats[] = {SL_DTYPE_Q8_0,    SL_DTYPE_Q4_0, SL_DTYPE_Q4_K,
                                              SL_DTYPE_Q5_K,    SL_DTYPE_Q6_K, SL_DTYPE_INT4_G128,
                                              SL_DTYPE_INT4_G32};

/* High bytes of the f16 fields: clearing bit 6 of these makes every scale finite. */
static void make_scales_finite(enum sl_dtype t, uint8_t *block)
{
    block[t == SL_DTYPE_Q6_K ? 209 : 1] &= 0xBF;
    if (t == SL_DTYPE_Q4_K || t == SL_DTYPE_Q5_K)
        block[3] &= 0xBF;
}

static uint64_t fnv(const void *data, size_t n)
{
    const uint8_t *p = data;
    uint64_t h = 0xCBF29CE484222325u;
    for (size_t i = 0; i < n; i++)
        h = (h ^ p[i]) * 0x100000001B3u;
    return h;
}

static void decode_equals_reference(void **state)
{
    (void)state;
    static const struct {
        enum sl_dtype dtype;
        uint64_t hash;
    } golden[] = {
        {SL_DTYPE_Q8_0, 0x3ED63723EBB67B2Cu}, {SL_DTYPE_Q4_0, 0x453E91CAF7689B71u},
        {SL_DTYPE_Q4_K, 0x7EBE3346C9FD00CAu}, {SL_DTYPE_Q5_K, 0x041E6A7182330372u},
        {SL_DTYPE_Q6_K, 0x748758B6EC5E0D7Fu},
    };
    uint8_t raw[N_BLOCKS * 210 + 1];
    float out[N_BLOCKS * 256];
    for (size_t g = 0; g < SL_COUNT(golden); g++) {
        const struct sl_dtype_info *info = sl_dtype_info(golden[g].dtype);
        size_t n_bytes = (size_t)N_BLOCKS * info->block_bytes;
        size_t n_elems = (size_t)N_BLOCKS * info->block_elems;
        uint8_t *p = raw + (g & 1); /* any alignment */
        for (size_t i = 0; i < n_bytes; i++)
            p[i] = (uint8_t)sl_mix64(((uint64_t)(uint32_t)info->gguf_id << 32) + i);
        for (size_t b = 0; b < N_BLOCKS; b++)
            make_scales_finite(golden[g].dtype, p + b * info->block_bytes);
        info->to_f32(p, out, (int64_t)n_elems);
        if (fnv(out, n_elems * sizeof *out) != golden[g].hash)
            fail_msg("%s decodes differently from the reference", info->name);
    }
}

static double nmse(const float *x, const float *y, size_t n)
{
    double error = 0, power = 0;
    for (size_t i = 0; i < n; i++) {
        error += ((double)x[i] - (double)y[i]) * ((double)x[i] - (double)y[i]);
        power += (double)x[i] * (double)x[i];
    }
    return error / power;
}

/* Bounds: 10 % above what the encoders reach on normal data. The public encoder of q8_0 and q4_0
 * has 2.90e-5 and 7.48e-3. */
static void encode_error_is_small(void **state)
{
    (void)state;
    static const double bound[] = {3.0e-5, 7.0e-3, 5.2e-3, 1.35e-3, 3.4e-4, 1.2e-2, 7e-3};
    const size_t n = 256 * 256;
    float *x = sl_calloc(n, sizeof *x), *y = sl_calloc(n, sizeof *y);
    uint8_t *raw = sl_calloc(n, 4);
    assert_true(x != NULL && y != NULL && raw != NULL);
    struct sl_rng rng = {.seed = 1};
    for (size_t i = 0; i < n; i++)
        x[i] = (float)(0.02 * sl_rng_normal(&rng));
    for (size_t f = 0; f < SL_COUNT(block_formats); f++) {
        const struct sl_dtype_info *info = sl_dtype_info(block_formats[f]);
        info->from_f32(x, raw, (int64_t)n);
        info->to_f32(raw, y, (int64_t)n);
        double e = nmse(x, y, n);
        print_message("%s: NMSE %.3g\n", info->name, e);
        assert_true(e < bound[f]);
    }
    sl_free(raw);
    sl_free(y);
    sl_free(x);
}

/* What a format can hold comes back; encoding what was decoded changes (almost) nothing. */
static void encode_keeps_exact_values(void **state)
{
    (void)state;
    float x[256], y[256];
    uint8_t raw[256];
    for (size_t f = 0; f < SL_COUNT(block_formats); f++) {
        const struct sl_dtype_info *info = sl_dtype_info(block_formats[f]);
        int64_t n = info->block_elems;
        memset(x, 0, sizeof x);
        info->from_f32(x, raw, n); /* zeros */
        info->to_f32(raw, y, n);
        assert_memory_equal(x, y, (size_t)n * sizeof *x);
        for (int i = 0; i < 256; i++)
            x[i] = 0.5f * (float)(i % 16 - 8); /* 16 steps from -8: every format holds these */
        info->from_f32(x, raw, n);
        info->to_f32(raw, y, n);
        /* q8_0 scales by 127 and q6_k by 128 * 32: their grids miss these values by a little */
        float tolerance = block_formats[f] == SL_DTYPE_Q4_0 ? 0.0f : 0.04f;
        for (int64_t i = 0; i < n; i++)
            assert_true(fabsf(x[i] - y[i]) <= tolerance);
    }
}

static void constant_and_one_sided_blocks(void **state)
{
    (void)state;
    static const float values[] = {1.0f, -1.0f, 0.37f, -0.02f, 1000.0f, -60000.0f, 0.01f};
    float x[256], y[256];
    uint8_t raw[256];
    for (size_t f = 0; f < SL_COUNT(block_formats); f++) {
        const struct sl_dtype_info *info = sl_dtype_info(block_formats[f]);
        int64_t n = info->block_elems;
        for (size_t v = 0; v < SL_COUNT(values); v++) {
            for (int i = 0; i < 256; i++)
                x[i] = values[v];
            info->from_f32(x, raw, n);
            info->to_f32(raw, y, n);
            for (int64_t i = 0; i < n; i++)
                assert_true(fabsf(y[i] - x[i]) <= 0.02f * fabsf(x[i]));
        }
    }
}

/* Hostile values: never undefined (the sanitizer build watches), finite out for finite in, and the
 * bytes are always the same. */
static void encode_survives_anything(void **state)
{
    (void)state;
    static const float odd[] = {NAN,    INFINITY, -INFINITY, FLT_MAX, -FLT_MAX, FLT_MIN,
                                1e-45f, -0.0f,    70000.0f,  -1e30f,  1.0f};
    struct sl_rng rng = {.seed = 9};
    for (size_t f = 0; f < SL_COUNT(block_formats); f++) {
        const struct sl_dtype_info *info = sl_dtype_info(block_formats[f]);
        int64_t n = info->block_elems;
        for (int round = 0; round < 2000; round++) {
            float x[256], y[256];
            uint8_t raw[256], again[256];
            bool finite = true;
            for (int i = 0; i < n; i++) {
                uint64_t r = sl_rng_next(&rng);
                x[i] = r % 3 == 0   ? odd[(r >> 8) % SL_COUNT(odd)]
                       : r % 3 == 1 ? sl_f32_of_bits((uint32_t)(r >> 16))
                                    : (float)(int32_t)(r >> 32) * 1e-9f;
                if (round % 2 == 0 && !isfinite(x[i]))
                    x[i] = 0;
                finite = finite && isfinite(x[i]);
            }
            info->from_f32(x, raw, n);
            info->from_f32(x, again, n);
            assert_memory_equal(raw, again, info->block_bytes);
            info->to_f32(raw, y, n);
            for (int i = 0; i < n; i++)
                assert_true(!finite || isfinite(y[i]));
        }
    }
}

/* Neither direction touches a byte past the blocks it was asked for. */
static void nothing_is_written_past_the_end(void **state)
{
    (void)state;
    float x[3 * 256], y[3 * 256];
    uint8_t raw[4 * 256];
    for (int i = 0; i < 3 * 256; i++)
        x[i] = (float)(i % 13) - 6;
    for (int t = 0; t < SL_DTYPE_COUNT; t++) {
        const struct sl_dtype_info *info = sl_dtype_info((enum sl_dtype)t);
        int64_t n = 2 * (int64_t)info->block_elems;
        memset(raw, 0xA5, sizeof raw);
        memset(y, 0xA5, sizeof y);
        info->from_f32(x, raw, n);
        for (size_t i = 2 * info->block_bytes; i < sizeof raw; i++)
            assert_int_equal(raw[i], 0xA5);
        info->to_f32(raw, y, n);
        for (int64_t i = n; i < 3 * 256; i++)
            assert_int_equal(sl_f32_bits(y[i]), 0xA5A5A5A5u);
        info->from_f32(x, raw, 0);
        info->to_f32(raw, y, 0);
    }
}

static void scale_packing_is_invertible(void **state)
{
    (void)state;
    struct sl_rng rng = {.seed = 5};
    for (int round = 0; round < 10000; round++) {
        uint8_t scale[8], min[8], packed[SL_QK_SCALE_BYTES];
        for (int j = 0; j < 8; j++) {
            scale[j] = (uint8_t)sl_rng_below(&rng, 64);
            min[j] = (uint8_t)sl_rng_below(&rng, 64);
        }
        sl_qk_pack_scales(scale, min, packed);
        for (int j = 0; j < 8; j++) {
            uint8_t s, m;
            sl_qk_scale_min(packed, j, &s, &m);
            assert_int_equal(s, scale[j]);
            assert_int_equal(m, min[j]);
        }
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(decode_equals_reference),
        cmocka_unit_test(encode_error_is_small),
        cmocka_unit_test(encode_keeps_exact_values),
        cmocka_unit_test(constant_and_one_sided_blocks),
        cmocka_unit_test(encode_survives_anything),
        cmocka_unit_test(scale_packing_is_invertible),
        cmocka_unit_test(nothing_is_written_past_the_end),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
