/* SPDX-License-Identifier: MIT
 * cuda.h - the backend for an NVIDIA GPU of compute capability 9.0. No CUDA type leaves this
 * folder.
 *
 * The driver is looked for at run time: without one, or in a build without nvcc, there are 0
 * devices and sl_cuda_create says why.
 */
#ifndef SL_CUDA_CUDA_H
#define SL_CUDA_CUDA_H

#ifdef __cplusplus
extern "C" {
#endif
#include "ops/device.h"

struct sl_cuda_config {
    int device;         /* ordinal */
    int n_copy_threads; /* threads that read a file into pinned memory while loading, the caller
                           among them; 0: half the cores, at most 8 */
    bool act_bf16;      /* products of FP8 weights take BF16 activations, whatever the model says */
};

/* Devices of any kind; 0 without a driver, and then it costs a tenth of a millisecond. */
int sl_cuda_count(void);
/* Ordinal of the first device this build has kernels for; -1: none. */
int sl_cuda_find(void);
/* Errors: SL_EUNSUPPORTED no such device, or one of another compute capability, or no driver;
 * SL_ENOMEM; SL_EDEVICE. */
SL_MUST_CHECK int sl_cuda_create(const struct sl_cuda_config *cfg, struct sl_backend **out,
                                 struct sl_error *err);

#ifdef __cplusplus
}
#endif

#endif
