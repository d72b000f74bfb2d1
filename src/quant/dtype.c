/* SPDX-License-Identifier: MIT */
#include "quant/dtype.h"

#include "base/check.h"
#include "quant/float.h"
#include "quant/fp8_e4m3.h"
#include "quant/int4.h"
#include "quant/iq.h"
#include "quant/iq4.h"
#include "quant/q2_k.h"
#include "quant/q4_0.h"
#include "quant/q4_1.h"
#include "quant/q4_k.h"
#include "quant/q5_k.h"
#include "quant/q6_k.h"
#include "quant/q8_0.h"
#include "quant/tq.h"

#include <string.h>

/* The conversions of each row; a new row in dtypes.def does not compile before it has its line. */
#define CODEC_F32       sl_f32_row_to_f32, sl_f32_row_from_f32
#define CODEC_F16       sl_f16_row_to_f32, sl_f16_row_from_f32
#define CODEC_BF16      sl_bf16_row_to_f32, sl_bf16_row_from_f32
#define CODEC_FP8_E4M3  sl_fp8_e4m3_row_to_f32, sl_fp8_e4m3_row_from_f32
#define CODEC_Q8_0      sl_q8_0_to_f32, sl_q8_0_from_f32
#define CODEC_Q4_0      sl_q4_0_to_f32, sl_q4_0_from_f32
#define CODEC_Q4_K      sl_q4_k_to_f32, sl_q4_k_from_f32
#define CODEC_Q5_K      sl_q5_k_to_f32, sl_q5_k_from_f32
#define CODEC_Q6_K      sl_q6_k_to_f32, sl_q6_k_from_f32
#define CODEC_INT4_G128 sl_int4_g128_to_f32, sl_int4_g128_from_f32
#define CODEC_INT4_G32  sl_int4_g32_to_f32, sl_int4_g32_from_f32

/* The functions of eight as functions with an address. */
#define SL_DTYPE(id, name, elems, bytes, gguf, st)
#define SL_EIGHT(id, fmt, elems, bytes, gguf)                                \
    static void fmt##_eight(const uint8_t *block, int i, struct sl_eight *e) \
    {                                                                        \
        sl_##fmt##_eight(block, i, e);                                       \
    }
#include "quant/dtypes.def"
#undef SL_DTYPE

/* More rows than formats of tensors: SL_DTYPE_COUNT stands for "a format this build cannot read",
 * and behind it are those of KV pages only, by the names that vLLM gave them. */
static const struct sl_dtype_info dtypes[SL_KV_DTYPES_END] = {
#define SL_DTYPE(id, name, elems, bytes, gguf, st) {name, elems, bytes, gguf, st, CODEC_##id, NULL},
#define SL_EIGHT(id, fmt, elems, bytes, gguf) \
    {#fmt, elems, bytes, gguf, NULL, sl_##fmt##_to_f32, sl_##fmt##_from_f32, fmt##_eight},
#include "quant/dtypes.def"
#undef SL_DTYPE
    {"unsupported", 1, 0, -1, NULL, NULL, NULL, NULL},
    [SL_KV_TURBO4] = {"turboquant_4bit_nc", 1, 0, -1, NULL, NULL, NULL, NULL},
    [SL_KV_K8V4] = {"turboquant_k8v4", 1, 0, -1, NULL, NULL, NULL, NULL},
    [SL_KV_TURBO3] = {"turboquant_3bit_nc", 1, 0, -1, NULL, NULL, NULL, NULL},
    [SL_KV_INT4_HEAD] = {"int4_per_token_head", 1, 0, -1, NULL, NULL, NULL, NULL},
    [SL_KV_NVFP4] = {"nvfp4", 1, 0, -1, NULL, NULL, NULL, NULL},
};

const struct sl_dtype_info *sl_dtype_info(enum sl_dtype t)
{
    SL_ASSERT((unsigned)t < SL_KV_DTYPES_END);
    return &dtypes[t];
}

int sl_dtype_from_gguf(uint32_t gguf_id)
{
    for (int t = 0; t < SL_DTYPE_COUNT; t++) {
        if (dtypes[t].gguf_id >= 0 && (uint32_t)dtypes[t].gguf_id == gguf_id)
            return t;
    }
    return -1;
}

int sl_dtype_from_st(const char *name, size_t n)
{
    for (int t = 0; t < SL_DTYPE_COUNT; t++) {
        const char *st = dtypes[t].st_name;
        if (st != NULL && strlen(st) == n && memcmp(st, name, n) == 0)
            return t;
    }
    return -1;
}

int sl_dtype_from_name(const char *name)
{
    for (int t = 0; t < SL_DTYPE_COUNT; t++) {
        if (strcmp(dtypes[t].name, name) == 0)
            return t;
    }
    return -1;
}

bool sl_dtype_bytes(enum sl_dtype t, uint64_t n_elems, uint64_t *out)
{
    const struct sl_dtype_info *info = sl_dtype_info(t);
    if (t == SL_DTYPE_COUNT || n_elems % info->block_elems != 0)
        return false;
    return sl_mul_u64(n_elems / info->block_elems, info->block_bytes, out);
}
