/* SPDX-License-Identifier: MIT
 * kv4.h - codes of up to four bits of the vectors in KV pages: a sign and one of up to eight
 * magnitudes, times a scale for the vector. The formats that have them are rows of kv_codec.h, the
 * layout in pages is ops.h's.
 *
 * TurboQuant (arXiv 2504.19874) without its residual: a vector is rotated by signs and Hadamard
 * matrices, after which its numbers are nearly normal, and each takes the nearest of the levels
 * that have the least mean square error for a normal number (Lloyd-Max). The scale gives what is
 * read the length of what was stored (norm correction, "nc").
 *
 * Levels are BF16 numbers, so that kernels multiply them as such. Everything here is exact or a
 * chain of float and double operations in one order: the same bits on every processor.
 */
#ifndef SL_QUANT_KV4_H
#define SL_QUANT_KV4_H

#include "quant/dtype.h"
#include "quant/float.h"

#ifdef __cplusplus
extern "C" {
#endif

#define SL_KV4_LEVELS 8 /* magnitudes */
#define SL_KV4_SIGN   8 /* the bit of a code that is its sign */

/* Levels of SL_KV_TURBO4, of a normal number of variance 1, to BF16: 0.12840, 0.38805, 0.65676,
 * 0.94234, 1.25623, 1.61805, 2.06902, 2.73259. */
#define SL_KV4_TURBO4                                                  \
    {                                                                  \
        0x3E03, 0x3EC7, 0x3F28, 0x3F71, 0x3FA1, 0x3FCF, 0x4004, 0x402F \
    }

/* The same of SL_KV_TURBO3: 0.24509, 0.75601, 1.34391, 2.15195. */
#define SL_KV4_TURBO3                  \
    {                                  \
        0x3E7B, 0x3F42, 0x3FAC, 0x400A \
    }

struct sl_kv4 {
    uint16_t levels[SL_KV4_LEVELS]; /* BF16, ascending, none below 0; zeros from n on */
    int32_t n;
};

extern const struct sl_kv4 sl_kv4_turbo4, sl_kv4_turbo3;

/* Of the vectors of a format, or NULL if their codes are none of these. */
const struct sl_kv4 *sl_kv4_of(enum sl_dtype dtype);

/* Codes of n rotated numbers, n a multiple of 16, and their scale as F16. A vector with a number
 * that is not finite reads as NaN; what is too large for the scale is stored smaller. */
uint16_t sl_kv4_encode(const struct sl_kv4 *kv4, const float *x, int n, uint8_t *codes);

/* The number that a code stands for, as keys have it: its scale is applied to scores. */
static inline float sl_kv4_level(const struct sl_kv4 *kv4, uint8_t code)
{
    const uint16_t level = kv4->levels[code % SL_KV4_LEVELS];
    return sl_bf16_to_f32((uint16_t)(level | (code & SL_KV4_SIGN) << 12));
}

/* The same of values, which are a BF16 number with their scale. */
static inline uint16_t sl_kv4_value(const struct sl_kv4 *kv4, uint8_t code, float scale)
{
    return sl_f32_to_bf16(sl_kv4_level(kv4, code) * scale);
}

/* n numbers, n a multiple of 16, times signs and Hadamard matrices, which is a rotation; and
 * back. */
void sl_kv4_rotate(float *x, int n);
void sl_kv4_rotate_back(float *x, int n);
/* The signs, for kernels that rotate: bit i % 32 of word i / 32, set where number i is negated. */
const uint32_t *sl_kv4_signs(void);

#ifdef __cplusplus
}
#endif

#endif
