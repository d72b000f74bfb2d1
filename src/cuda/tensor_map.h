/* SPDX-License-Identifier: MIT
 * tensor_map.h - matrices that the copy engine loads in boxes (sl_tensor_load of ptx.cuh).
 */
#ifndef SL_CUDA_TENSOR_MAP_H
#define SL_CUDA_TENSOR_MAP_H

#include <cuda_runtime.h>

#ifdef SL_CUDA_SIM
#include "sim_tensor.h"
#else
#include <cuda.h>
#endif

#include <stdint.h>

#define SL_BOX_COLS 64 /* bf16: rows of 128 bytes */

/* A matrix of bf16 with rows ld elements apart, x and ld * 2 multiples of 16 bytes. Boxes are 64
 * columns x box_rows (at most 256) and lie in shared memory as sl_wgmma_b wants them, from a
 * multiple of 1024 bytes on; what lies outside the matrix is zero. */
cudaError_t sl_tensor_map(CUtensorMap *map, const void *x, int64_t n_rows, int64_t n_cols,
                          int64_t ld, int32_t box_rows);

/* The same of float, 32 columns: for sl_tensor_store too, which leaves out what lies outside. */
cudaError_t sl_tensor_map_float(CUtensorMap *map, const void *x, int64_t n_rows, int64_t n_cols,
                                int64_t ld, int32_t box_rows);

/* Row blocks of packed weights (weight.h), for sl_blocks_load: a box is one unit of each of
 * box_blocks row blocks, one after the other in shared memory from a multiple of 128 bytes on; of
 * row blocks after the last it is zeros. unit_bytes: a multiple of 32, at most 4096. */
cudaError_t sl_tensor_map_blocks(CUtensorMap *map, const void *w, int64_t n_blocks, int64_t n_units,
                                 int32_t unit_bytes, int32_t box_blocks);

/* Units of row blocks (weight.h): block b's unit u lies at w + b * ld_bytes + u * unit_bytes. A
 * box is unit u of box_blocks row blocks from b on, one after the other in shared memory; it is
 * loaded from (row b, column u * unit_bytes / 8). unit_bytes: a multiple of 16, at most 2048. Row
 * blocks after the last are zeros. */
cudaError_t sl_tensor_map_units(CUtensorMap *map, const void *w, int64_t n_blocks, int64_t n_units,
                                int64_t ld_bytes, int32_t unit_bytes, int32_t box_blocks);

#endif
