/* SPDX-License-Identifier: MIT
 * launch.cuh - how every kernel is launched: on the backend's stream, allowed to start while the
 * kernel before it still runs. Every kernel therefore calls sl_grid_wait (ptx.cuh).
 */
#ifndef SL_CUDA_LAUNCH_CUH
#define SL_CUDA_LAUNCH_CUH

#include "cuda/device.h"

#include <cuda_runtime.h>

#define SL_SMEM_DEFAULT 49152 /* bytes of shared memory a kernel may have without asking */

/* Lets the kernel use all shared memory that a block may have, a driver call only the first time.
 * All and not what it wants now: the limit is the kernel's on the device, and another backend there
 * (a second model) that wants less would lower it. */
static inline cudaError_t sl_launch_ask_smem(struct sl_cuda *cu, const void *kernel)
{
    size_t at = (reinterpret_cast<uintptr_t>(kernel) >> 4) % SL_CUDA_ASKS;
    const void **free_place = NULL;
    for (int probe = 0; probe < 8 && free_place == NULL; probe++, at = (at + 1) % SL_CUDA_ASKS) {
        if (cu->asks[at] == kernel)
            return cudaSuccess;
        if (cu->asks[at] == NULL)
            free_place = &cu->asks[at];
    }
    cudaError_t e = cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize,
                                         static_cast<int>(cu->smem_max));
    if (e == cudaSuccess && free_place != NULL)
        *free_place = kernel;
    return e;
}

/* Enqueues kernel(args...), after what waits (fuse.h); a failure is recorded in cu, and until it
 * is reported nothing more is enqueued: a kernel that ran without the one before it would go by
 * what an earlier step left there, and write to pages of others. A grid without blocks is nothing.
 * cluster: so many blocks, a divisor of grid.x of at most 8, run at once and see each other's
 * shared memory. */
template <typename... Params, typename... Args>
static inline void sl_launch_cluster(struct sl_cuda *cu, void (*kernel)(Params...), dim3 grid,
                                     dim3 block, size_t smem, unsigned cluster, const Args &...args)
{
    if (grid.x == 0 || grid.y == 0 || grid.z == 0)
        return;
    if (cu->settle != NULL)
        cu->settle(cu);
    if (cu->error != cudaSuccess)
        return;
    if (smem > SL_SMEM_DEFAULT) {
        cudaError_t e = sl_launch_ask_smem(cu, reinterpret_cast<const void *>(kernel));
        sl_cuda_check(cu, e, "shared memory of a kernel");
        if (e != cudaSuccess)
            return;
    }
    cudaLaunchAttribute attrs[2] = {};
    attrs[0].id = cudaLaunchAttributeProgrammaticStreamSerialization;
    attrs[0].val.programmaticStreamSerializationAllowed = 1;
    attrs[1].id = cudaLaunchAttributeClusterDimension;
    attrs[1].val.clusterDim.x = cluster;
    attrs[1].val.clusterDim.y = attrs[1].val.clusterDim.z = 1;
    cudaLaunchConfig_t cfg = {};
    cfg.gridDim = grid;
    cfg.blockDim = block;
    cfg.dynamicSmemBytes = smem;
    cfg.stream = cu->stream;
    cfg.attrs = attrs;
    cfg.numAttrs = cluster > 1 ? 2 : 1;
    sl_cuda_check(cu, cudaLaunchKernelEx(&cfg, kernel, static_cast<Params>(args)...),
                  "kernel launch");
}

template <typename... Params, typename... Args>
static inline void sl_launch(struct sl_cuda *cu, void (*kernel)(Params...), dim3 grid, dim3 block,
                             size_t smem, const Args &...args)
{
    sl_launch_cluster(cu, kernel, grid, block, smem, 1, args...);
}

#endif
