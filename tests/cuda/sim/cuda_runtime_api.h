/* SPDX-License-Identifier: MIT
 * Stands in for the toolkit's header of this name: what few files call.
 */
#ifndef SL_SIM_CUDA_RUNTIME_API_H
#define SL_SIM_CUDA_RUNTIME_API_H

#include <cuda_runtime.h>

#define cudaHostRegisterPortable 1u

cudaError_t cudaHostRegister(void *p, size_t n, unsigned int flags);
cudaError_t cudaHostUnregister(void *p);

#endif
