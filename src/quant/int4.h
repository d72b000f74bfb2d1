/* SPDX-License-Identifier: MIT
 * int4.h - four-bit codes in groups of 32 or 128 with a scale and a zero point: x = (q - z) *
 * scale, exactly. What GPTQ, AWQ and compressed-tensors checkpoints become while they are loaded
 * (int4_repack.h); no file holds it. 4.25 bits per weight (128) or 5 (32).
 *
 * A block is a group: four bytes, little endian, are the scale as a float whose low eight bits are
 * the zero point, 0..15. Scales come from f16 or bf16, which leave those bits of a float clear, so
 * that nothing is lost; a product of 16 bits and the five of q - z is exact in float. Behind them
 * 16 bytes for 32 codes: byte j holds element j in its low half and element j + 16 in its high half
 * (as q4_0 does).
 */
#ifndef SL_QUANT_INT4_H
#define SL_QUANT_INT4_H

#include "quant/float.h"

#define SL_INT4_RUN  32 /* elements of 16 bytes */
#define SL_INT4_HEAD 4  /* bytes before the codes */

static inline uint32_t sl_int4_load_head(const uint8_t *p)
{
    uint32_t v;
    memcpy(&v, p, sizeof v);
    return v;
}

static inline void sl_int4_store_head(uint8_t *p, uint32_t head)
{
    memcpy(p, &head, sizeof head);
}

static inline float sl_int4_scale(uint32_t head)
{
    return sl_f32_of_bits(head & 0xFFFFFF00u);
}

static inline int sl_int4_zero(uint32_t head)
{
    return (int)(head & 0xFFu);
}

/* The head of a group; scale must have come from f16 or bf16. */
static inline uint32_t sl_int4_head(float scale, uint32_t zero)
{
    return (sl_f32_bits(scale) & 0xFFFFFF00u) | zero;
}

void sl_int4_g128_to_f32(const void *x, float *out, int64_t n);
void sl_int4_g128_from_f32(const float *x, void *out, int64_t n);
void sl_int4_g32_to_f32(const void *x, float *out, int64_t n);
void sl_int4_g32_from_f32(const float *x, void *out, int64_t n);

#endif
