/* SPDX-License-Identifier: MIT
 * sim_tensor.h - the simulator's description of a matrix for the copy engine (cuda/tensor_map.h).
 */
#ifndef SL_SIM_TENSOR_H
#define SL_SIM_TENSOR_H

#include <cuda_runtime.h>

struct CUtensorMap {
    const char *x;
    int64_t n_rows, n_cols, ld; /* of values */
    int32_t box_rows, box_cols;
    int32_t value_bytes;
    bool swizzled; /* pieces of 16 bytes lie at piece ^ (row % 8) */
};

/* Refuses what the driver refuses. */
cudaError_t sl_tensor_map(CUtensorMap *map, const void *x, int64_t n_rows, int64_t n_cols,
                          int64_t ld, int32_t box_rows);
cudaError_t sl_tensor_map_float(CUtensorMap *map, const void *x, int64_t n_rows, int64_t n_cols,
                                int64_t ld, int32_t box_rows);
cudaError_t sl_tensor_map_blocks(CUtensorMap *map, const void *w, int64_t n_blocks, int64_t n_units,
                                 int32_t unit_bytes, int32_t box_blocks);
cudaError_t sl_tensor_map_units(CUtensorMap *map, const void *w, int64_t n_blocks, int64_t n_units,
                                int64_t ld_bytes, int32_t unit_bytes, int32_t box_blocks);

#endif
