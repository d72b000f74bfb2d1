/* SPDX-License-Identifier: MIT
 * q4_k.h - 256 four-bit codes in 8 runs of 32, each run with a 6-bit scale and a 6-bit minimum:
 * x = d * scale * q - dmin * min. 4.5 bits per weight.
 *
 * Runs come in pairs: 32 bytes hold run 2c in their low halves and run 2c + 1 in their high
 * halves. The 8 scales and 8 minima are packed into 12 bytes b: for j < 4, scale j is the low six
 * bits of b[j] and minimum j those of b[j + 4]; for j >= 4 the low four bits are the halves of
 * b[j + 4] (scale low, minimum high) and the upper two are the top bits of b[j - 4] and b[j]. The
 * same packing serves q5_k.
 */
#ifndef SL_QUANT_Q4_K_H
#define SL_QUANT_Q4_K_H

#include "quant/float.h"

#define SL_QK_ELEMS       256 /* elements of every K format's block */
#define SL_QK_SCALE_BYTES 12

struct sl_q4_k_block { /* bytes only, so that any address will do */
    uint8_t d[2];      /* f16 */
    uint8_t dmin[2];   /* f16 */
    uint8_t scales[SL_QK_SCALE_BYTES];
    uint8_t q[128];
};
_Static_assert(sizeof(struct sl_q4_k_block) == 144, "layout of the file format");

/* Scale and minimum of run j, 0..7. */
static inline void sl_qk_scale_min(const uint8_t *b, int j, uint8_t *scale, uint8_t *min)
{
    if (j < 4) {
        *scale = b[j] & 63;
        *min = b[j + 4] & 63;
    } else {
        *scale = (uint8_t)((b[j + 4] & 15) | (b[j - 4] >> 6) << 4);
        *min = (uint8_t)(b[j + 4] >> 4 | (b[j] >> 6) << 4);
    }
}

/* Packs 8 scales and 8 minima, each 0..63; the inverse of sl_qk_scale_min. */
void sl_qk_pack_scales(const uint8_t scale[8], const uint8_t min[8], uint8_t *b);

/* Chooses the f16 super scales and the 6-bit scales and minima of one block of 256 values for codes
 * 0..q_max, and writes all codes. Shared by q4_k and q5_k. */
struct sl_qk_fit {
    uint16_t d, dmin; /* f16 */
    uint8_t scale[8], min[8];
    uint8_t code[SL_QK_ELEMS];
};
void sl_qk_fit(const float *x, int q_max, struct sl_qk_fit *out);

void sl_q4_k_to_f32(const void *x, float *out, int64_t n);
void sl_q4_k_from_f32(const float *x, void *out, int64_t n);

#endif
