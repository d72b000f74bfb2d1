/* SPDX-License-Identifier: MIT
 * sample.h - choosing tokens on the GPU (src/ops/sample.h says how). For C and C++.
 */
#ifndef SL_CUDA_SAMPLE_H
#define SL_CUDA_SAMPLE_H

#include "ops/sample.h"

struct sl_backend;

#ifdef __cplusplus
extern "C" {
#endif
/* Bytes of sl_op_sample.scratch for calls of up to max_n rows. */
size_t sl_cuda_sample_scratch(int32_t max_n, int32_t n_vocab);
/* Enqueues the choice; like any operation it neither waits nor fails. */
void sl_cuda_sample(struct sl_backend *be, const struct sl_op_sample *a);
#ifdef __cplusplus
}
#endif

#endif
