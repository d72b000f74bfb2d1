/* SPDX-License-Identifier: MIT
 * device_weight.h - the numbers that matrices of a file stand for in products of src/cuda, as
 * cuda/gemm/weight.h says them.
 */
#ifndef SL_TESTS_CUDA_DEVICE_WEIGHT_H
#define SL_TESTS_CUDA_DEVICE_WEIGHT_H

#include "quant/dtype.h"
#include "quant/eight.h"
#include "quant/float.h"
#include "quant/int4.h"

#include <math.h>
#include <string.h>

static inline float device_bf16(float v)
{
    return sl_bf16_to_f32(sl_f32_to_bf16(v));
}

/* v rounded to bf16, once: a float between, if not exact, is odd. */
static inline float device_round(double v)
{
    float f = static_cast<float>(v);
    if (static_cast<double>(f) != v && isfinite(f)) {
        if (fabs(static_cast<double>(f)) > fabs(v))
            f = nextafterf(f, 0.0f);
        f = sl_f32_of_bits(sl_f32_bits(f) | 1u);
    }
    return device_bf16(f);
}

static inline float device_fma(float a, float b, float c)
{
    return device_round(static_cast<double>(a) * static_cast<double>(b) + static_cast<double>(c));
}

/* 256 values of Q4_K, 144 bytes (quant/q4_k.h). */
static inline void device_q4_k(const uint8_t *b, float *out)
{
    float d = sl_f16_to_f32(sl_load_u16(b)), dmin = sl_f16_to_f32(sl_load_u16(b + 2));
    for (int i = 0; i < 256; i++) {
        const uint8_t *f = b + 4 + i / 32;
        int scale = f[0] & 63, min = f[4] & 63, q = b[16 + i / 64 * 32 + i % 32];
        if (i >= 128) {
            scale = (f[4] & 15) | f[-4] >> 6 << 4;
            min = f[4] >> 4 | f[0] >> 6 << 4;
        }
        float r = d * static_cast<float>(scale);
        float m = 8.0f * r - dmin * static_cast<float>(min) - 8.0f * device_bf16(r);
        out[i] = device_fma(static_cast<float>(q >> 4 * (i / 32 % 2) & 15), device_bf16(r),
                            device_bf16(m));
    }
}

/* A group of four-bit codes (quant/int4.h): the reference decode of scale 1 and zero 0 has codes.
 */
static inline void device_int4(enum sl_dtype dtype, const uint8_t *block, float *out)
{
    uint8_t copy[SL_INT4_HEAD + 64];
    const struct sl_dtype_info *info = sl_dtype_info(dtype);
    uint32_t head = sl_int4_load_head(block);
    float scale = device_bf16(sl_int4_scale(head));
    float m = device_bf16(static_cast<float>(-sl_int4_zero(head)) * scale);
    memcpy(copy, block, info->block_bytes);
    sl_int4_store_head(copy, sl_int4_head(1.0f, 0));
    info->to_f32(copy, out, info->block_elems);
    for (int64_t i = 0; i < info->block_elems; i++)
        out[i] = device_fma(out[i], scale, m);
}

/* Eight values of a format of quant/eight.h, by the layout it has. */
static inline void device_eight(enum sl_dtype dtype, const struct sl_eight *e, float *out)
{
    const float d = sl_f16_to_f32(sl_f32_to_f16(e->d * static_cast<float>(e->scale)));
    const float scale = device_bf16(e->d);
    const int shrink = dtype == SL_DTYPE_IQ3_XXS ? 2 : 1;
    const float sixth = sl_f16_to_f32(sl_f32_to_f16(e->d * static_cast<float>(shrink)));
    for (int j = 0; j < 8; j++) {
        const float q = static_cast<float>(e->q[j]);
        switch (dtype) {
        case SL_DTYPE_Q4_1: /* int4_g32 */
            out[j] = device_fma(q, scale, device_bf16(8.0f * e->d - e->dmin - 8.0f * scale));
            break;
        case SL_DTYPE_Q5_0: /* q8_0 */
        case SL_DTYPE_IQ4_NL:
        case SL_DTYPE_IQ4_XS:
        case SL_DTYPE_IQ2_XXS:
            out[j] = device_bf16(d * q);
            break;
        case SL_DTYPE_MXFP4: /* exact */
        case SL_DTYPE_Q5_1:  /* bf16 */
        case SL_DTYPE_Q2_K:
        case SL_DTYPE_IQ2_XS:
        case SL_DTYPE_IQ2_S:
            out[j] = device_bf16(e->d * static_cast<float>(e->scale) * q -
                                 e->dmin * static_cast<float>(e->min));
            break;
        default: /* q6_k */
            out[j] = device_bf16(sixth * static_cast<float>(e->scale * e->q[j] / shrink));
        }
    }
}

/* n values; of FP8 the codes. */
static inline void device_values(enum sl_dtype dtype, const void *file, float *out, int64_t n)
{
    const struct sl_dtype_info *info = sl_dtype_info(dtype);
    const uint8_t *block = static_cast<const uint8_t *>(file);
    struct sl_eight e;
    for (int64_t i = 0; info->eight != NULL && i < n; i += 8) {
        const int64_t b = i / info->block_elems;
        info->eight(block + b * info->block_bytes, (int)(i % info->block_elems / 8), &e);
        device_eight(dtype, &e, out + i);
    }
    if (info->eight != NULL)
        return;
    if (dtype == SL_DTYPE_Q4_K || dtype == SL_DTYPE_INT4_G128 || dtype == SL_DTYPE_INT4_G32) {
        for (int64_t i = 0; i < n; i += info->block_elems, block += info->block_bytes)
            if (dtype == SL_DTYPE_Q4_K)
                device_q4_k(block, out + i);
            else
                device_int4(dtype, block, out + i);
        return;
    }
    info->to_f32(file, out, n);
    for (int64_t i = 0; i < n; i++)
        out[i] = device_bf16(out[i]);
}

/* A code of FP8 with its scale. */
static inline float device_fp8(float code, float scale)
{
    float hi = device_bf16(scale), lo = device_bf16(scale - hi);
    return device_fma(code, hi, device_fma(code, lo, 0.0f));
}

#endif
