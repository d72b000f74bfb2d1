/* SPDX-License-Identifier: MIT
 * eight_format.cuh - the formats of quant/eight.h on the device: their functions of eight as types,
 * for lookups (rows.cu) and for packing (weight_pack.cuh).
 */
#ifndef SL_CUDA_EIGHT_FORMAT_CUH
#define SL_CUDA_EIGHT_FORMAT_CUH

#include "cuda/device.h"

#include <cuda_fp16.h>

#include "quant/iq.h"
#include "quant/iq4.h"
#include "quant/q2_k.h"
#include "quant/q4_1.h"
#include "quant/tq.h"

/* Elements k .. k + 7 of a row of the file, k a multiple of eight. */
#define SL_DTYPE(id, name, elems, bytes, gguf, st)
#define SL_EIGHT(id, fmt, elems, block_bytes, gguf)                                              \
    struct sl_eight_##fmt {                                                                      \
        static constexpr int block = elems;                                                      \
        static constexpr int bytes = block_bytes;                                                \
        static __device__ __forceinline__ void load(const uint8_t *row, int64_t k, sl_eight *e)  \
        {                                                                                        \
            sl_##fmt##_eight(row + k / elems * block_bytes, static_cast<int>(k % elems / 8), e); \
        }                                                                                        \
    };
#include "quant/dtypes.def"
#undef SL_DTYPE

#endif
