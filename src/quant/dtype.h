/* SPDX-License-Identifier: MIT
 * dtype.h - tensor formats: their rows (dtypes.def), sizes, and reference conversion to and from
 * float.
 *
 * Each format's layout and its conversion live in one file pair, quant/<format>.h and .c. The
 * reference conversion is what every kernel's decode must equal bit for bit.
 */
#ifndef SL_QUANT_DTYPE_H
#define SL_QUANT_DTYPE_H

#include "base/err.h"

#ifdef __cplusplus
extern "C" {
#endif

enum sl_dtype {
#define SL_DTYPE(id, name, elems, bytes, gguf, st) SL_DTYPE_##id,
#include "quant/dtypes.def"
#undef SL_DTYPE
    SL_DTYPE_COUNT,
    /* Of KV pages only (ops.h); no tensor has them, and they have a name and no conversions. Their
     * codes are rows of quant/kv_codec.h. */
    SL_KV_TURBO4,    /* keys and values of four bits, rotated */
    SL_KV_K8V4,      /* keys of FP8, values as those */
    SL_KV_TURBO3,    /* of three bits, rotated */
    SL_KV_INT4_HEAD, /* whole numbers of four bits, rotated, a scale for a vector */
    SL_KV_NVFP4,     /* E2M1, a scale for 16 numbers */
    SL_KV_DTYPES_END
};

struct sl_eight;

struct sl_dtype_info {
    const char *name;
    uint32_t block_elems, block_bytes;
    int32_t gguf_id;     /* -1 if it has none */
    const char *st_name; /* safetensors spelling, NULL if it has none */
    /* n elements, a multiple of block_elems; x is 64-byte aligned or not. */
    void (*to_f32)(const void *x, float *out, int64_t n);
    void (*from_f32)(const float *x, void *out, int64_t n);
    /* Elements 8 i .. 8 i + 7 of a block as whole numbers (quant/eight.h), or NULL. */
    void (*eight)(const uint8_t *block, int i, struct sl_eight *out);
};

/* SL_DTYPE_COUNT, which marks a tensor of a format this build cannot read, has a row too:
 * "unsupported", no conversions; so have the formats of KV pages. */
const struct sl_dtype_info *sl_dtype_info(enum sl_dtype t);
/* Lookups return -1 for what this build does not know. */
int sl_dtype_from_gguf(uint32_t gguf_id);
int sl_dtype_from_st(const char *name, size_t n);
int sl_dtype_from_name(const char *name);
/* Bytes of n_elems in format t; false when not a whole number of blocks or on overflow. */
bool sl_dtype_bytes(enum sl_dtype t, uint64_t n_elems, uint64_t *out);

#ifdef __cplusplus
}
#endif

#endif
