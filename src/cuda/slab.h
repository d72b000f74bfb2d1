/* SPDX-License-Identifier: MIT
 * slab.h - device memory of matrices. The driver gives memory in whole pieces of 2 MB: with an
 * allocation for each, an expert's matrix of 3.1 MB would take 4. So matrices lie side by side in
 * slabs of up to 256 MB, of which the last is no larger than what is still to be loaded.
 */
#ifndef SL_CUDA_SLAB_H
#define SL_CUDA_SLAB_H

#include "cuda/device.h"

#ifdef __cplusplus
extern "C" {
#endif

/* Matrices of about n_bytes in all are made next. Without it each takes what it takes alone. */
void sl_cuda_weights_to_come(struct sl_backend *be, uint64_t n_bytes);

/* As sl_cuda_alloc and sl_cuda_free, for matrices. */
void *sl_cuda_weight_alloc(struct sl_cuda *cu, size_t n_bytes);
void sl_cuda_weight_free(struct sl_cuda *cu, void *p, size_t n_bytes);

#ifdef __cplusplus
}
#endif

#endif
