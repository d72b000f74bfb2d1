/* SPDX-License-Identifier: MIT
 * Descriptions of matrices for the copy engine. The driver makes them; it is asked for its function
 * by name, so that the program needs no library of it to start.
 */
#include "cuda/gemm/weight.h"
#include "cuda/ptx_fp8.cuh"

#ifndef SL_CUDA_SIM

typedef CUresult (*encode_fn)(CUtensorMap *, CUtensorMapDataType, cuuint32_t, void *,
                              const cuuint64_t *, const cuuint64_t *, const cuuint32_t *,
                              const cuuint32_t *, CUtensorMapInterleave, CUtensorMapSwizzle,
                              CUtensorMapL2promotion, CUtensorMapFloatOOBfill);

static cudaError_t find_encode(encode_fn *out)
{
    static encode_fn known; /* the same for every device; any rank's thread asks for it */
    encode_fn encode = __atomic_load_n(&known, __ATOMIC_ACQUIRE);
    if (encode == NULL) {
        void *p = NULL;
        cudaDriverEntryPointQueryResult found;
        cudaError_t e = cudaGetDriverEntryPointByVersion("cuTensorMapEncodeTiled", &p, 12000,
                                                         cudaEnableDefault, &found);
        if (e != cudaSuccess)
            return e;
        if (found != cudaDriverEntryPointSuccess || p == NULL)
            return cudaErrorSymbolNotFound;
        encode = (encode_fn)p;
        __atomic_store_n(&known, encode, __ATOMIC_RELEASE);
    }
    *out = encode;
    return cudaSuccess;
}

/* A matrix of rows of n_cols values, ld bytes apart, in boxes. */
static cudaError_t map_make(CUtensorMap *map, CUtensorMapDataType type, const void *x,
                            int64_t n_rows, int64_t n_cols, int64_t ld, int32_t box_rows,
                            int32_t box_cols, CUtensorMapSwizzle swizzle)
{
    encode_fn encode;
    cudaError_t e = find_encode(&encode);
    if (e != cudaSuccess)
        return e;
    const cuuint64_t dims[2] = {(cuuint64_t)n_cols, (cuuint64_t)n_rows};
    const cuuint64_t strides[1] = {(cuuint64_t)ld};
    const cuuint32_t box[2] = {(cuuint32_t)box_cols, (cuuint32_t)box_rows}, steps[2] = {1, 1};
    CUresult rc =
        encode(map, type, 2, (void *)x, dims, strides, box, steps, CU_TENSOR_MAP_INTERLEAVE_NONE,
               swizzle, CU_TENSOR_MAP_L2_PROMOTION_L2_256B, CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE);
    return rc == CUDA_SUCCESS ? cudaSuccess : cudaErrorInvalidValue;
}

cudaError_t sl_tensor_map(CUtensorMap *map, const void *x, int64_t n_rows, int64_t n_cols,
                          int64_t ld, int32_t box_rows)
{
    return map_make(map, CU_TENSOR_MAP_DATA_TYPE_BFLOAT16, x, n_rows, n_cols, ld * 2, box_rows,
                    SL_BOX_COLS, CU_TENSOR_MAP_SWIZZLE_128B);
}

cudaError_t sl_tensor_map_codes(CUtensorMap *map, const void *x, int64_t n_rows, int64_t n_cols,
                                int64_t ld, int32_t box_rows)
{
    return map_make(map, CU_TENSOR_MAP_DATA_TYPE_UINT8, x, n_rows, n_cols, ld, box_rows,
                    2 * SL_BOX_COLS, CU_TENSOR_MAP_SWIZZLE_128B);
}

cudaError_t sl_tensor_map_float(CUtensorMap *map, const void *x, int64_t n_rows, int64_t n_cols,
                                int64_t ld, int32_t box_rows)
{
    return map_make(map, CU_TENSOR_MAP_DATA_TYPE_FLOAT32, x, n_rows, n_cols, ld * 4, box_rows,
                    SL_BOX_COLS / 2, CU_TENSOR_MAP_SWIZZLE_128B);
}

cudaError_t sl_tensor_map_blocks(CUtensorMap *map, const void *w, int64_t n_blocks, int64_t n_units,
                                 int32_t unit_bytes, int32_t box_blocks)
{
    encode_fn encode;
    cudaError_t e = find_encode(&encode);
    if (e != cudaSuccess)
        return e;
    /* A row of a box has at most 256 values: units are two rows of 8-byte values. */
    const cuuint64_t half = (cuuint64_t)unit_bytes / 2;
    const cuuint64_t dims[3] = {half / 8, 2 * (cuuint64_t)n_units, (cuuint64_t)n_blocks};
    const cuuint64_t strides[2] = {half,
                                   2 * half * (cuuint64_t)sl_cuda_row_units(n_units, unit_bytes)};
    const cuuint32_t box[3] = {(cuuint32_t)(half / 8), 2, (cuuint32_t)box_blocks};
    const cuuint32_t steps[3] = {1, 1, 1};
    CUresult rc = encode(map, CU_TENSOR_MAP_DATA_TYPE_UINT64, 3, (void *)w, dims, strides, box,
                         steps, CU_TENSOR_MAP_INTERLEAVE_NONE, CU_TENSOR_MAP_SWIZZLE_NONE,
                         CU_TENSOR_MAP_L2_PROMOTION_L2_256B, CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE);
    return rc == CUDA_SUCCESS ? cudaSuccess : cudaErrorInvalidValue;
}

cudaError_t sl_tensor_map_units(CUtensorMap *map, const void *w, int64_t n_blocks, int64_t n_units,
                                int64_t ld_bytes, int32_t unit_bytes, int32_t box_blocks)
{
    return map_make(map, CU_TENSOR_MAP_DATA_TYPE_UINT64, w, n_blocks, n_units * (unit_bytes / 8),
                    ld_bytes, box_blocks, unit_bytes / 8, CU_TENSOR_MAP_SWIZZLE_NONE);
}

#endif
