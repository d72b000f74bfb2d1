/* SPDX-License-Identifier: MIT
 * f16, bf16 and FP8 against arithmetic done another way: every pattern, and every f32 that lies on,
 * just below or just above a rounding border.
 */
#include "quant/fp8_e4m3.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>

#include <cmocka.h>

/* A half by its definition, in double. */
static double half_value(unsigned h)
{
    int exp = (int)(h >> 10 & 31), frac = (int)(h & 1023);
    double mag = exp == 0 ? ldexp(frac, -24) : ldexp(1024 + frac, exp - 25);
    return h & 0x8000u ? -mag : mag;
}

static bool is_nan16(unsigned h, unsigned inf)
{
    return (h & 0x7FFFu) > inf;
}

static void f16_decodes_every_pattern(void **state)
{
    (void)state;
    for (unsigned h = 0; h < 65536; h++) {
        float x = sl_f16_to_f32((uint16_t)h);
        if (is_nan16(h, 0x7C00)) {
            assert_true(isnan(x));
            assert_true((sl_f32_bits(x) & 0x400000u) != 0); /* quiet, as F16C makes it */
            continue;
        }
        if ((h & 0x7FFFu) == 0x7C00)
            assert_true(isinf(x) && (x < 0) == (h >> 15 == 1));
        else
            assert_true((double)x == half_value(h));
        assert_int_equal(sl_f32_bits(x) >> 31, h >> 15); /* also of zero */
        assert_int_equal(sl_f32_to_f16(x), h);
    }
}

static void f16_nan_keeps_payload(void **state)
{
    (void)state;
    assert_int_equal(sl_f32_to_f16(sl_f32_of_bits(0x7FC00000u)), 0x7E00);
    assert_int_equal(sl_f32_to_f16(sl_f32_of_bits(0xFF800001u)), 0xFE00);
    assert_int_equal(sl_f32_to_f16(sl_f32_of_bits(0x7F802000u)), 0x7E01);
    assert_int_equal(sl_f32_to_f16(sl_f32_of_bits(0x7FFFFFFFu)), 0x7FFF);
}

/* Between two neighbouring halves: below the middle goes down, above goes up, the middle to the
 * even one. */
static void f16_rounds_to_nearest_even(void **state)
{
    (void)state;
    for (unsigned h = 0; h < 0x7C00; h++) {
        double lo = half_value(h), hi = h == 0x7BFF ? 65536.0 : half_value(h + 1);
        float mid = (float)((lo + hi) / 2); /* 12 bits: exact */
        assert_int_equal(sl_f32_to_f16(mid), h & 1 ? h + 1 : h);
        assert_int_equal(sl_f32_to_f16(nextafterf(mid, 0)), h);
        assert_int_equal(sl_f32_to_f16(nextafterf(mid, INFINITY)), h + 1);
        assert_int_equal(sl_f32_to_f16(-mid), 0x8000 | (h & 1 ? h + 1 : h));
        assert_int_equal(sl_f32_to_f16(-nextafterf(mid, INFINITY)), 0x8000 | (h + 1));
    }
    assert_int_equal(sl_f32_to_f16(0x1p-149f), 0);
    assert_int_equal(sl_f32_to_f16(3.4e38f), 0x7C00);
    assert_int_equal(sl_f32_to_f16(INFINITY), 0x7C00);
    assert_int_equal(sl_f32_to_f16(-INFINITY), 0xFC00);
}

static void bf16_every_pattern_and_border(void **state)
{
    (void)state;
    for (unsigned h = 0; h < 65536; h++) {
        uint32_t bits = (uint32_t)h << 16;
        assert_int_equal(sl_f32_bits(sl_bf16_to_f32((uint16_t)h)), bits);
        if (is_nan16(h, 0x7F80)) {
            unsigned back = sl_f32_to_bf16(sl_f32_of_bits(bits | 1));
            assert_true(is_nan16(back, 0x7F80)); /* never rounded up to infinity */
            continue;
        }
        assert_int_equal(sl_f32_to_bf16(sl_bf16_to_f32((uint16_t)h)), h);
        if ((h & 0x7FFFu) == 0x7F80)
            continue;
        assert_int_equal(sl_f32_to_bf16(sl_f32_of_bits(bits | 0x7FFFu)), h);
        assert_int_equal(sl_f32_to_bf16(sl_f32_of_bits(bits | 0x8000u)), h & 1 ? h + 1 : h);
        assert_int_equal(sl_f32_to_bf16(sl_f32_of_bits(bits | 0x8001u)), h + 1);
    }
    assert_true(is_nan16(sl_f32_to_bf16(sl_f32_of_bits(0x7F800001u)), 0x7F80));
}

static void rows_at_any_address(void **state)
{
    (void)state;
    uint8_t raw[2 * 37 + 1], back[2 * 37 + 1];
    float out[37];
    for (size_t i = 0; i < sizeof raw; i++)
        raw[i] = (uint8_t)(i * 7 & 0x3F);
    sl_f16_row_to_f32(raw + 1, out, 37);
    sl_f16_row_from_f32(out, back + 1, 37);
    assert_memory_equal(raw + 1, back + 1, 2 * 37);
    sl_bf16_row_to_f32(raw + 1, out, 37);
    sl_bf16_row_from_f32(out, back + 1, 37);
    assert_memory_equal(raw + 1, back + 1, 2 * 37);
    float same[37];
    sl_f32_row_to_f32(out, same, 37);
    assert_memory_equal(out, same, sizeof out);
    sl_f32_row_from_f32(same, out, 0); /* nothing */
}

/* E4M3 by its definition, in double. */
static double fp8_value(unsigned code)
{
    int exp = (int)(code >> 3 & 15), frac = (int)(code & 7);
    double mag = exp == 0 ? ldexp(frac, -9) : ldexp(8 + frac, exp - 10);
    return code & 0x80u ? -mag : mag;
}

static void fp8_decodes_every_pattern(void **state)
{
    (void)state;
    uint64_t hash = 0xCBF29CE484222325u;
    for (unsigned c = 0; c < 256; c++) {
        float x = sl_fp8_e4m3_to_f32((uint8_t)c);
        bool nan = (c & 0x7Fu) == 0x7F;
        assert_true(nan ? isnan(x) : (double)x == fp8_value(c));
        assert_int_equal(sl_f32_bits(x) >> 31, c >> 7); /* also of zero */
        assert_int_equal(sl_f32_to_fp8_e4m3(x), c);
        for (int i = 0; i < 4; i++) /* FNV-1a of the bits, 0 for NaN */
            hash = (hash ^ ((nan ? 0 : sl_f32_bits(x)) >> 8 * i & 255)) * 0x100000001B3u;
    }
    /* the same of np.arange(256, dtype=np.uint8).view(ml_dtypes.float8_e4m3fn) */
    assert_true(hash == 0x854CABD1DEFE4645u);
}

/* Between two neighbouring codes below goes down, above goes up, the middle to the even one; what
 * is too large stays the largest. */
static void fp8_rounds_to_nearest_even(void **state)
{
    (void)state;
    for (unsigned c = 0; c < 0x7E; c++) {
        float middle = (float)((fp8_value(c) + fp8_value(c + 1)) / 2); /* exact */
        uint32_t bits = sl_f32_bits(middle);
        assert_int_equal(sl_f32_to_fp8_e4m3(middle), c + (c & 1));
        assert_int_equal(sl_f32_to_fp8_e4m3(-middle), 0x80 | (c + (c & 1)));
        assert_int_equal(sl_f32_to_fp8_e4m3(sl_f32_of_bits(bits - 1)), c);
        assert_int_equal(sl_f32_to_fp8_e4m3(sl_f32_of_bits(bits + 1)), c + 1);
    }
    static const float large[] = {447.9f, 448.0f, 463.9f, 464.0f, 465.0f, 1e9f, 3e38f, INFINITY};
    for (size_t i = 0; i < sizeof large / sizeof *large; i++) {
        assert_int_equal(sl_f32_to_fp8_e4m3(large[i]), 0x7E);
        assert_int_equal(sl_f32_to_fp8_e4m3(-large[i]), 0xFE);
    }
    assert_int_equal(sl_f32_to_fp8_e4m3(1e-45f), 0);
    assert_int_equal(sl_f32_to_fp8_e4m3(-1e-45f), 0x80);
    assert_int_equal(sl_f32_to_fp8_e4m3(sl_f32_of_bits(0x7F800001u)), 0x7F);
    assert_int_equal(sl_f32_to_fp8_e4m3(sl_f32_of_bits(0xFFC00000u)), 0xFF);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(f16_decodes_every_pattern),
        cmocka_unit_test(f16_nan_keeps_payload),
        cmocka_unit_test(f16_rounds_to_nearest_even),
        cmocka_unit_test(rows_at_any_address),
        cmocka_unit_test(bf16_every_pattern_and_border),
        cmocka_unit_test(fp8_decodes_every_pattern),
        cmocka_unit_test(fp8_rounds_to_nearest_even),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
