/* SPDX-License-Identifier: MIT */
#include "quant/kv_codec.h"

#include "base/check.h"
#include "quant/fp8_e4m3.h"

#include <math.h>

#define STEPS    15       /* between the least and the greatest whole number */
#define LEAST    1e-6f    /* scale of whole numbers, also of a vector of zeros */
#define GREATEST 0x1p126f /* magnitude; a step more is a finite BF16 number too */
#define E2M1_MAX 6.0f

static const struct sl_kv4 e2m1 = {{0x0000, 0x3F00, 0x3F80, 0x3FC0, 0x4000, 0x4040, 0x4080, 0x40C0},
                                   8};

/* ---------------------------------------------------------------- encoding */

static void encode_levels(const struct sl_kv4 *levels, const float *x, int n, uint8_t *codes,
                          uint8_t *scales)
{
    sl_store_u16(scales, sl_kv4_encode(levels, x, n, codes));
}

static int nearest_code(float x)
{
    const int c = (int)(x + 0.5f);
    return SL_MIN(SL_MAX(c, 0), STEPS);
}

static void encode_whole(const struct sl_kv4 *levels, const float *x, int n, uint8_t *codes,
                         uint8_t *scales)
{
    float lo = 0.0f, hi = 0.0f;
    bool finite = true;
    (void)levels;
    for (int i = 0; i < n; i++) {
        lo = SL_MIN(lo, SL_MAX(x[i], -GREATEST));
        hi = SL_MAX(hi, SL_MIN(x[i], GREATEST));
        finite &= fabsf(x[i]) <= 3.4028235e38f;
    }
    const float step = SL_MAX((hi - lo) / STEPS, LEAST);
    const uint32_t bits = sl_f32_bits(finite ? step : NAN) & ~15u;
    const float scale = sl_f32_of_bits(bits);
    const int zero = finite ? nearest_code(-lo / scale) : 0;
    for (int i = 0; i < n; i++)
        codes[i] = (uint8_t)(finite ? nearest_code(x[i] / scale + (float)zero) : 0);
    const uint32_t stored = bits | (uint32_t)zero;
    memcpy(scales, &stored, sizeof stored);
}

/* To the nearest magnitude, from a tie to that whose code is even. Borders times a scale of E4M3
 * are exact, so no quotient is rounded before. */
static uint8_t e2m1_code(float x, float scale)
{
    static const float even[] = {0.25f, 1.25f, 2.5f, 5.0f}, odd[] = {0.75f, 1.75f, 3.5f};
    const float a = fabsf(x);
    int code = 0;
    for (size_t i = 0; i < SL_COUNT(even); i++)
        code += a > even[i] * scale;
    for (size_t i = 0; i < SL_COUNT(odd); i++)
        code += a >= odd[i] * scale;
    return (uint8_t)(code | (int)(sl_f32_bits(x) >> 31) * SL_KV4_SIGN);
}

static void encode_blocks(const struct sl_kv4 *levels, const float *x, int n, uint8_t *codes,
                          uint8_t *scales)
{
    (void)levels;
    for (int b = 0; b < n / SL_KV_CODE_BLOCK; b++, x += SL_KV_CODE_BLOCK) {
        float top = 0.0f;
        bool finite = true;
        for (int i = 0; i < SL_KV_CODE_BLOCK; i++) {
            top = SL_MAX(top, fabsf(x[i]));
            finite &= fabsf(x[i]) <= 3.4028235e38f;
        }
        scales[b] = sl_f32_to_fp8_e4m3(finite ? top / E2M1_MAX : NAN);
        const float scale = sl_fp8_e4m3_to_f32(scales[b]);
        for (int i = 0; i < SL_KV_CODE_BLOCK; i++) /* any code times a scale of zero or NaN */
            codes[b * SL_KV_CODE_BLOCK + i] = scale > 0.0f ? e2m1_code(x[i], scale) : 0;
    }
}

/* ---------------------------------------------------------------- the rows */

static const struct sl_kv_codec turbo4 = {true,         4, SL_KV_VECTOR_F16, 2, &sl_kv4_turbo4,
                                          encode_levels};
static const struct sl_kv_codec turbo3 = {true,         3, SL_KV_VECTOR_F16, 2, &sl_kv4_turbo3,
                                          encode_levels};
static const struct sl_kv_codec int4_head = {true, 4, SL_KV_VECTOR_ZERO, 4, NULL, encode_whole};
static const struct sl_kv_codec nvfp4 = {false, 4, SL_KV_BLOCK_E4M3, 1, &e2m1, encode_blocks};

const struct sl_kv_codec *sl_kv_codec_of(enum sl_dtype dtype)
{
    static const struct sl_kv_codec *const rows[SL_KV_DTYPES_END] = {[SL_KV_TURBO4] = &turbo4,
                                                                     [SL_KV_TURBO3] = &turbo3,
                                                                     [SL_KV_INT4_HEAD] = &int4_head,
                                                                     [SL_KV_NVFP4] = &nvfp4};
    SL_ASSERT((unsigned)dtype < SL_KV_DTYPES_END);
    return rows[dtype];
}

/* ---------------------------------------------------------------- decoding */

float sl_kv_codec_scale(const struct sl_kv_codec *c, const uint8_t *scale)
{
    if (c->kind == SL_KV_BLOCK_E4M3)
        return sl_fp8_e4m3_to_f32(*scale);
    if (c->kind == SL_KV_VECTOR_F16)
        return sl_f16_to_f32(sl_load_u16(scale));
    uint32_t bits;
    memcpy(&bits, scale, sizeof bits);
    return sl_f32_of_bits(bits & ~15u);
}

int sl_kv_codec_zero(const struct sl_kv_codec *c, const uint8_t *scale)
{
    return c->kind == SL_KV_VECTOR_ZERO ? scale[0] & 15 : 0;
}

static float number_of(const struct sl_kv_codec *c, uint8_t code, const uint8_t *scale)
{
    return c->levels != NULL ? sl_kv4_level(c->levels, code)
                             : (float)(code - sl_kv_codec_zero(c, scale));
}

uint16_t sl_kv_codec_key(const struct sl_kv_codec *c, uint8_t code, const uint8_t *scale)
{
    const float x = number_of(c, code, scale);
    return sl_f32_to_bf16(c->kind == SL_KV_BLOCK_E4M3 ? x * sl_kv_codec_scale(c, scale) : x);
}

uint16_t sl_kv_codec_value(const struct sl_kv_codec *c, uint8_t code, const uint8_t *scale)
{
    return sl_f32_to_bf16(number_of(c, code, scale) * sl_kv_codec_scale(c, scale));
}
