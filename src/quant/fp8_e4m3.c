/* SPDX-License-Identifier: MIT */
#include "quant/fp8_e4m3.h"

void sl_fp8_e4m3_row_to_f32(const void *x, float *out, int64_t n)
{
    const uint8_t *p = x;
    for (int64_t i = 0; i < n; i++)
        out[i] = sl_fp8_e4m3_to_f32(p[i]);
}

void sl_fp8_e4m3_row_from_f32(const float *x, void *out, int64_t n)
{
    uint8_t *p = out;
    for (int64_t i = 0; i < n; i++)
        p[i] = sl_f32_to_fp8_e4m3(x[i]);
}
