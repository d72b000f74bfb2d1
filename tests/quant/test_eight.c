/* SPDX-License-Identifier: MIT
 * Formats read by a function of eight (quant/eight.h): decoding against hashes made with gguf-py
 * (make_golden.py), extreme scales among them; encoding by its error and on values that do not fit.
 */
#include "base/check.h"
#include "base/rng.h"
#include "base/sys.h"
#include "quant/dtype.h"
#include "quant/eight.h"

#include <float.h>
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <string.h>

#include <cmocka.h>

#define N_BLOCKS 64

static const struct {
    enum sl_dtype dtype;
    int field[2]; /* offsets of f16 fields */
    uint64_t hash;
    double nmse; /* of encoded normal numbers: 10 % above what is reached */
} formats[] = {
    {SL_DTYPE_Q4_1, {0, 2}, 0x2A232AFF5F2A1FE4u, 0.0068},
    {SL_DTYPE_Q5_0, {0, -1}, 0x207A9D3B7842CF9Cu, 0.0018},
    {SL_DTYPE_Q5_1, {0, 2}, 0xBF0D7FC44F598BCAu, 0.0016},
    {SL_DTYPE_Q2_K, {80, 82}, 0x2C892C5FA43E8E1Eu, 0.08},
    {SL_DTYPE_Q3_K, {108, -1}, 0xCF39A819D838C1FFu, 0.023},
    {SL_DTYPE_IQ4_NL, {0, -1}, 0xFE41D611C9D358D1u, 0.0063},
    {SL_DTYPE_IQ4_XS, {0, -1}, 0xAA4D961BB415A2F1u, 0.0064},
    {SL_DTYPE_MXFP4, {-1, -1}, 0x730C7E53CD3DC380u, 0.014},
    {SL_DTYPE_TQ1_0, {52, -1}, 0xC9E2CBFDBA4C08BEu, 0.69},
    {SL_DTYPE_TQ2_0, {64, -1}, 0xFC1890DF1BEF8F94u, 0.69},
    {SL_DTYPE_IQ2_XXS, {0, -1}, 0x006332CD44A505B6u, 0.14},
    {SL_DTYPE_IQ2_XS, {0, -1}, 0xF1A70E166F4E7D61u, 0.1},
    {SL_DTYPE_IQ2_S, {0, -1}, 0xA76F2D6A7C8F08E8u, 0.077},
    {SL_DTYPE_IQ3_XXS, {0, -1}, 0xB73EBDB406F55319u, 0.038},
    {SL_DTYPE_IQ3_S, {0, -1}, 0x7D38680FFF5FA8D2u, 0.02},
    {SL_DTYPE_IQ1_S, {0, -1}, 0x16419898AB4A5D17u, 0.37},
    {SL_DTYPE_IQ1_M, {-1, -1}, 0x9836C69D23C2BCA7u, 0.27},
};

static uint64_t fnv(const void *data, size_t n)
{
    const uint8_t *p = data;
    uint64_t h = 0xCBF29CE484222325u;
    for (size_t i = 0; i < n; i++)
        h = (h ^ p[i]) * 0x100000001B3u;
    return h;
}

/* The blocks of make_golden.py. */
static void make_blocks(size_t f, uint8_t *p)
{
    static const uint16_t halves[] = {0x7C00, 0xFC00, 0x7E01, 0x0001, 0x83FF,
                                      0x7BFF, 0xFBFF, 0x0000, 0x8000};
    static const uint8_t exponents[] = {255, 254, 253, 0, 1, 2, 3, 127, 128};
    const struct sl_dtype_info *info = sl_dtype_info(formats[f].dtype);
    for (size_t i = 0; i < N_BLOCKS * (size_t)info->block_bytes; i++)
        p[i] = (uint8_t)sl_mix64(((uint64_t)(uint32_t)info->gguf_id << 32) + i);
    for (size_t b = 0; b < SL_COUNT(halves); b++, p += info->block_bytes) {
        for (int i = 0; i < 2; i++)
            if (formats[f].field[i] >= 0)
                sl_store_u16(p + formats[f].field[i], halves[b]);
        if (formats[f].dtype == SL_DTYPE_MXFP4)
            p[0] = exponents[b];
        for (int w = 0; w < 4 && formats[f].dtype == SL_DTYPE_IQ1_M; w++)
            p[49 + 2 * w] = (uint8_t)((p[49 + 2 * w] & 15) | (halves[b] >> 4 * w & 15) << 4);
    }
}

static void decode_equals_reference(void **state)
{
    (void)state;
    uint8_t raw[N_BLOCKS * 136 + 1];
    float out[N_BLOCKS * 256];
    for (size_t f = 0; f < SL_COUNT(formats); f++) {
        const struct sl_dtype_info *info = sl_dtype_info(formats[f].dtype);
        const size_t n = (size_t)N_BLOCKS * info->block_elems;
        uint8_t *p = raw + (f & 1); /* any alignment */
        make_blocks(f, p);
        info->to_f32(p, out, (int64_t)n);
        for (size_t i = 0; i < n; i++)
            out[i] = isnan(out[i]) ? sl_f32_of_bits(0x7FC00000) : out[i];
        if (fnv(out, n * sizeof *out) != formats[f].hash)
            fail_msg("%s decodes differently from the reference", info->name);
    }
}

/* All formats of dtypes.def that are read so are in the table above. */
static void every_format_is_here(void **state)
{
    (void)state;
    for (int t = 0; t < SL_DTYPE_COUNT; t++) {
        size_t found = 0;
        for (size_t f = 0; f < SL_COUNT(formats); f++)
            found += formats[f].dtype == (enum sl_dtype)t;
        assert_int_equal(found, sl_dtype_info((enum sl_dtype)t)->eight != NULL);
    }
}

static void encode_error_is_small(void **state)
{
    (void)state;
    enum { N = 16 * 256 };
    static float x[N], y[N];
    static uint8_t raw[N];
    struct sl_rng rng = {.seed = 1};
    for (size_t i = 0; i < N; i++)
        x[i] = (float)(0.02 * sl_rng_normal(&rng));
    for (size_t f = 0; f < SL_COUNT(formats); f++) {
        const struct sl_dtype_info *info = sl_dtype_info(formats[f].dtype);
        double error = 0, power = 0;
        info->from_f32(x, raw, N);
        info->to_f32(raw, y, N);
        for (size_t i = 0; i < N; i++) {
            error += ((double)x[i] - (double)y[i]) * ((double)x[i] - (double)y[i]);
            power += (double)x[i] * (double)x[i];
        }
        print_message("%s: NMSE %.3g\n", info->name, error / power);
        assert_true(error / power < formats[f].nmse);
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
    for (size_t f = 0; f < SL_COUNT(formats); f++) {
        const struct sl_dtype_info *info = sl_dtype_info(formats[f].dtype);
        const int n = (int)info->block_elems;
        for (int round = 0; round < 60; round++) {
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
                if (finite && !isfinite(y[i]))
                    fail_msg("%s: %a becomes %a", info->name, (double)x[i], (double)y[i]);
        }
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(decode_equals_reference),
        cmocka_unit_test(every_format_is_here),
        cmocka_unit_test(encode_error_is_small),
        cmocka_unit_test(encode_survives_anything),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
