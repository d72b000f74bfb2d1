/* SPDX-License-Identifier: MIT
 * Descriptions of matrices for the copy engine. The driver makes them; it is asked for its function
 * by name, so that the program needs no library of it to start.
 */
#include "cuda/tensor_map.h"

#ifndef SL_CUDA_SIM

typedef CUresult (*encode_fn)(CUtensorMap *, CUtensorMapDataType, cuuint32_t, void *,
                              const cuuint64_t *, const cuuint64_t *, const cuuint32_t *,
                              const cuuint32_t *, CUtensorMapInterleave, CUtensorMapSwizzle,
                              CUtensorMapL2promotion, CUtensorMapFloatOOBfill);

static cudaError_t find_encode(encode_fn *out)
{
    static encode_fn known; /* the same for every device; asked for by the engine's thread */
    if (known == NULL) {
        void *p = NULL;
        cudaDriverEntryPointQueryResult found;
        cudaError_t e = cudaGetDriverEntryPointByVersion("cuTensorMapEncodeTiled", &p, 12000,
                                                         cudaEnableDefault, &found);
        if (e != cudaSuccess)
            return e;
        if (found != cudaDriverEntryPointSuccess || p == NULL)
            return cudaErrorSymbolNotFound;
        known = (encode_fn)p;
    }
    *out = known;
    return cudaSuccess;
}

cudaError_t sl_tensor_map(CUtensorMap *map, const void *x, int64_t n_rows, int64_t n_cols,
                          int64_t ld, int32_t box_rows)
{
    encode_fn encode;
    cudaError_t e = find_encode(&encode);
    if (e != cudaSuccess)
        return e;
    const cuuint64_t dims[2] = {(cuuint64_t)n_cols, (cuuint64_t)n_rows};
    const cuuint64_t strides[1] = {(cuuint64_t)ld * 2};
    const cuuint32_t box[2] = {SL_BOX_COLS, (cuuint32_t)box_rows}, steps[2] = {1, 1};
    CUresult rc = encode(map, CU_TENSOR_MAP_DATA_TYPE_BFLOAT16, 2, (void *)x, dims, strides, box,
                         steps, CU_TENSOR_MAP_INTERLEAVE_NONE, CU_TENSOR_MAP_SWIZZLE_128B,
                         CU_TENSOR_MAP_L2_PROMOTION_L2_256B, CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE);
    return rc == CUDA_SUCCESS ? cudaSuccess : cudaErrorInvalidValue;
}

#endif
