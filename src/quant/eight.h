/* SPDX-License-Identifier: MIT
 * eight.h - eight neighbouring elements of a block as whole numbers and scales:
 *
 *     x[j] = (d * scale) * q[j] - dmin * min
 *
 * All formats of GGUF that have no decode of their own in the kernels are described this way, once:
 * their reference conversion, the CPU's packing (cpu/i8_pack.c) and the lookups and packing of the
 * GPU (which compiles these functions for the device) read blocks through one function a format.
 * The eight share a scale in every format. d * scale is exact in float, and so is its product with
 * q; the subtraction rounds once. Formats without a minimum have dmin = +0 and min = 0, which
 * changes no bit of the product.
 */
#ifndef SL_QUANT_EIGHT_H
#define SL_QUANT_EIGHT_H

#include "quant/float.h"

#ifdef __device__ /* nvcc, and the simulator of tests/cuda/sim */
#define SL_EIGHT_FN    static __device__ __forceinline__
#define SL_EIGHT_TABLE static __device__ const
#else
#define SL_EIGHT_FN    static inline
#define SL_EIGHT_TABLE static const
#endif

struct sl_eight {
    float d, dmin;
    int scale, min;
    int q[8];
};

SL_EIGHT_FN float sl_eight_f16(const uint8_t *p)
{
    const uint32_t h = p[0] | (uint32_t)p[1] << 8;
#ifdef __device__
    return __half2float(__ushort_as_half((unsigned short)h));
#else
    return sl_f16_to_f32((uint16_t)h);
#endif
}

SL_EIGHT_FN uint32_t sl_eight_u32(const uint8_t *p)
{
    return p[0] | (uint32_t)p[1] << 8 | (uint32_t)p[2] << 16 | (uint32_t)p[3] << 24;
}

SL_EIGHT_FN void sl_eight_values(const struct sl_eight *e, float *out)
{
#ifdef __device__
    const float r = __fmul_rn(e->d, (float)e->scale), m = __fmul_rn(e->dmin, (float)e->min);
    for (int j = 0; j < 8; j++)
        out[j] = __fsub_rn(__fmul_rn(r, (float)e->q[j]), m);
#else
    const float r = e->d * (float)e->scale, m = e->dmin * (float)e->min;
    for (int j = 0; j < 8; j++)
        out[j] = r * (float)e->q[j] - m;
#endif
}

/* The reference conversion of a format with its function of eight. */
#define SL_EIGHT_TO_F32(fmt, elems, bytes)                       \
    void sl_##fmt##_to_f32(const void *x, float *out, int64_t n) \
    {                                                            \
        const uint8_t *b = x;                                    \
        struct sl_eight e;                                       \
        for (int64_t k = 0; k < n; k += (elems), b += (bytes)) { \
            for (int i = 0; i < (elems) / 8; i++) {              \
                sl_##fmt##_eight(b, i, &e);                      \
                sl_eight_values(&e, out + k + 8 * (int64_t)i);   \
            }                                                    \
        }                                                        \
    }

/* What dtypes.def's rows of such a format need. */
#define SL_EIGHT_ROW(fmt)                                         \
    void sl_##fmt##_to_f32(const void *x, float *out, int64_t n); \
    void sl_##fmt##_from_f32(const float *x, void *out, int64_t n);

#endif
