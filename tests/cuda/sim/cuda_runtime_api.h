/* SPDX-License-Identifier: MIT
 * Stands in for the toolkit's header of this name: what few files call.
 */
#ifndef SL_SIM_CUDA_RUNTIME_API_H
#define SL_SIM_CUDA_RUNTIME_API_H

#include <cuda_runtime.h>

#define cudaHostRegisterPortable 1u

/* Copies of a batch, in the order of the stream, and in any order among themselves. */
#define CUDART_VERSION 13000
enum cudaMemcpySrcAccessOrder { cudaMemcpySrcAccessOrderInvalid, cudaMemcpySrcAccessOrderStream };
enum cudaMemcpyFlags { cudaMemcpyFlagDefault, cudaMemcpyFlagPreferOverlapWithCompute };
struct cudaMemcpyAttributes {
    enum cudaMemcpySrcAccessOrder srcAccessOrder;
    unsigned int flags;
};
cudaError_t cudaMemcpyBatchAsync(void *const *dsts, const void *const *srcs, const size_t *sizes,
                                 size_t count, cudaMemcpyAttributes *attrs, size_t *attrsIdxs,
                                 size_t numAttrs, cudaStream_t stream);

cudaError_t cudaHostRegister(void *p, size_t n, unsigned int flags);
cudaError_t cudaHostUnregister(void *p);

#endif
