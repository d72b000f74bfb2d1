/* SPDX-License-Identifier: MIT */
#include "quant/float.h"

void sl_f32_row_to_f32(const void *x, float *out, int64_t n)
{
    memcpy(out, x, (size_t)n * sizeof *out);
}

void sl_f32_row_from_f32(const float *x, void *out, int64_t n)
{
    memcpy(out, x, (size_t)n * sizeof *x);
}

void sl_f16_row_to_f32(const void *x, float *out, int64_t n)
{
    const uint8_t *p = x;
    for (int64_t i = 0; i < n; i++)
        out[i] = sl_f16_to_f32(sl_load_u16(p + 2 * i));
}

void sl_f16_row_from_f32(const float *x, void *out, int64_t n)
{
    uint8_t *p = out;
    for (int64_t i = 0; i < n; i++)
        sl_store_u16(p + 2 * i, sl_f32_to_f16(x[i]));
}

void sl_bf16_row_to_f32(const void *x, float *out, int64_t n)
{
    const uint8_t *p = x;
    for (int64_t i = 0; i < n; i++)
        out[i] = sl_bf16_to_f32(sl_load_u16(p + 2 * i));
}

void sl_bf16_row_from_f32(const float *x, void *out, int64_t n)
{
    uint8_t *p = out;
    for (int64_t i = 0; i < n; i++)
        sl_store_u16(p + 2 * i, sl_f32_to_bf16(x[i]));
}
