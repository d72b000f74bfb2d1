/* SPDX-License-Identifier: MIT
 * kv_codec.h - the formats whose KV pages hold codes of three or four bits: one row each. A row
 * says what a code stands for, which scales a vector has, and whether vectors are rotated before
 * they are stored. Everything else (store, attention, pages' sizes) goes by these rows; the layout
 * in pages is ops.h's.
 *
 *   TURBO4, TURBO3  TurboQuant (quant/kv4.h)
 *   INT4_HEAD       a rotated vector between its least and its greatest number, 0 among them, in
 *                   fifteen equal steps: (code - zero) * scale, where zero is the code of 0. The
 *                   scale is a float whose lowest four bits are that code, as vLLM has it in
 *                   int4_per_token_head
 *   NVFP4           E2M1 numbers of the OCP's microscaling formats (0, 0.5, 1, 1.5, 2, 3, 4, 6, and
 *                   a sign) times a scale of E4M3 for 16 of them; the tensor's own scale, which
 *                   TensorRT-LLM and vLLM take from a calibration, is 1
 *
 * A vector with a number that is not finite reads as NaN (NVFP4: the 16 numbers with it), and what
 * is too large for its scale is stored smaller. A vector's codes and scales depend on nothing else.
 */
#ifndef SL_QUANT_KV_CODEC_H
#define SL_QUANT_KV_CODEC_H

#include "quant/kv4.h"

#ifdef __cplusplus
extern "C" {
#endif

#define SL_KV_CODE_BLOCK 16 /* numbers that share a scale of NVFP4 */

enum sl_kv_scale_kind {
    SL_KV_VECTOR_F16,  /* of a vector; scores take that of keys */
    SL_KV_VECTOR_ZERO, /* the same, a float with the code of zero in its lowest four bits */
    SL_KV_BLOCK_E4M3,  /* of a block */
    SL_KV_SCALE_KINDS
};

struct sl_kv_codec {
    bool rotated; /* by sl_kv4_rotate */
    uint8_t bits; /* of a code: 3 or 4. Three have no magnitudes but the lowest four */
    uint8_t kind; /* enum sl_kv_scale_kind */
    uint8_t scale_bytes;
    const struct sl_kv4 *levels; /* what codes stand for; NULL: whole numbers */
    /* Codes of n numbers, a byte each and n a multiple of 16, and their scales. */
    void (*encode)(const struct sl_kv4 *levels, const float *x, int n, uint8_t *codes,
                   uint8_t *scales);
};

/* Of the vectors of a format; NULL if they are not codes of this kind. */
const struct sl_kv_codec *sl_kv_codec_of(enum sl_dtype dtype);

/* Scales of a vector of n numbers. */
static inline int32_t sl_kv_codec_scales(const struct sl_kv_codec *c, int32_t n)
{
    return c->kind == SL_KV_BLOCK_E4M3 ? n / SL_KV_CODE_BLOCK : 1;
}

/* Bytes of a vector of n numbers: its codes, and its scales. */
static inline size_t sl_kv_codec_code_bytes(const struct sl_kv_codec *c, int32_t n)
{
    return (size_t)n * c->bits / 8;
}

static inline size_t sl_kv_codec_bytes(const struct sl_kv_codec *c, int32_t n)
{
    return sl_kv_codec_code_bytes(c, n) + (size_t)sl_kv_codec_scales(c, n) * c->scale_bytes;
}

/* The scale, without the code of zero, and that code (0 where zero is none). */
float sl_kv_codec_scale(const struct sl_kv_codec *c, const uint8_t *scale);
int sl_kv_codec_zero(const struct sl_kv_codec *c, const uint8_t *scale);

/* The number of a code, as keys have it (that of SL_KV_VECTOR_* without its scale) and as values
 * do: BF16. */
uint16_t sl_kv_codec_key(const struct sl_kv_codec *c, uint8_t code, const uint8_t *scale);
uint16_t sl_kv_codec_value(const struct sl_kv_codec *c, uint8_t code, const uint8_t *scale);

#ifdef __cplusplus
}
#endif

#endif
