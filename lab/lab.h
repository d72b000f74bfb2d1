/* SPDX-License-Identifier: MIT
 * lab.h - what the programs of lab/ share beyond tests/cuda/bench_util.h: a backend with nothing
 * but a stream, waits that end, and the comparison of results by bits.
 *
 * A version that hangs must not hold up the others: every wait on a barrier gives up after about a
 * second, leaves its site in pinned memory, and traps. The driver (lab/run) starts each version in
 * a process of its own.
 */
#ifndef SL_LAB_H
#define SL_LAB_H

#include "cuda/bench_cublas.h"

#include <unistd.h>

static struct sl_cuda lab_cu;
static uint32_t *lab_fault; /* pinned: [0] the site of a wait that gave up, [1] its block */

#define LAB_PATIENCE 2000000000ll /* clocks */

static __device__ __forceinline__ bool lab_try_wait(uint64_t *bar, uint32_t parity)
{
#ifdef SL_CUDA_SIM
    sl_mbar_wait(bar, parity);
    return true;
#else
    uint32_t done;
    asm volatile("{\n\t.reg .pred p;\n\t"
                 "mbarrier.try_wait.parity.shared::cta.b64 p, [%1], %2;\n\t"
                 "selp.u32 %0, 1, 0, p;\n\t}"
                 : "=r"(done)
                 : "r"(sl_smem_addr(bar)), "r"(parity)
                 : "memory");
    return done != 0;
#endif
}

/* No function of its own: a call beside wgmma would make the compiler wait for each product. */
static __device__ __forceinline__ void lab_wait(uint64_t *bar, uint32_t parity, uint32_t site,
                                                uint32_t *fault)
{
    if (lab_try_wait(bar, parity))
        return;
#ifdef SL_CUDA_SIM
    (void)site, (void)fault;
#else
    long long from = clock64();
    while (!lab_try_wait(bar, parity)) {
        if (clock64() - from < LAB_PATIENCE)
            continue;
        fault[0] = site;
        fault[1] = blockIdx.x;
        __threadfence_system();
        asm volatile("trap;");
    }
#endif
}

/* Ends the program when the device has failed, with the site of the wait that gave up. */
static void lab_must_be_well(const char *what)
{
    cudaError_t e = cudaStreamSynchronize(lab_cu.stream);
    if (e == cudaSuccess)
        e = cudaGetLastError();
    if (e == cudaSuccess)
        e = lab_cu.error;
    if (e == cudaSuccess)
        return;
    printf("%s: %s", what, cudaGetErrorString(e));
    if (lab_fault[0] != 0)
        printf("; the wait at site %u gave up, block %u", lab_fault[0], lab_fault[1]);
    printf("\n");
    fflush(stdout);
    _exit(1);
}

static void lab_start()
{
    b.cu = &lab_cu;
    MUST(cudaStreamCreateWithFlags(&lab_cu.stream, cudaStreamNonBlocking));
    int smem = 0;
    MUST(cudaDeviceGetAttribute(&lab_cu.n_sms, cudaDevAttrMultiProcessorCount, 0));
    MUST(cudaDeviceGetAttribute(&smem, cudaDevAttrMaxSharedMemoryPerBlockOptin, 0));
    lab_cu.smem_max = static_cast<size_t>(smem);
    MUST(cudaMallocHost((void **)&lab_fault, 4096));
    lab_fault[0] = lab_fault[1] = 0;
#ifdef SL_CUDA_SIM
    b.tiny = true;
#endif
}

/* Counts words that differ. */
static __global__ void lab_differ_kernel(const uint32_t *x, const uint32_t *y, uint64_t n,
                                         unsigned long long *count)
{
    sl_grid_wait();
    unsigned long long bad = 0;
    const uint64_t step = static_cast<uint64_t>(gridDim.x) * blockDim.x;
    for (uint64_t i = static_cast<uint64_t>(blockIdx.x) * blockDim.x + threadIdx.x; i < n;
         i += step)
        bad += x[i] != y[i];
    if (bad > 0)
        atomicAdd(count, bad);
    sl_grid_launch_dependents();
}

static unsigned long long lab_differ(const void *x, const void *y, size_t n_words)
{
    dev<unsigned long long> count(1);
    MUST(cudaMemsetAsync(count.p, 0, 8, lab_cu.stream));
    size_t blocks = std::min((n_words + 255) / 256, static_cast<size_t>(b.tiny ? 4 : 2048));
    sl_launch(&lab_cu, lab_differ_kernel, dim3(static_cast<unsigned>(blocks)), dim3(256), 0,
              (const uint32_t *)x, (const uint32_t *)y, static_cast<uint64_t>(n_words), count.p);
    lab_must_be_well("comparison");
    unsigned long long n = 0;
    count.get(0, &n, 1);
    return n;
}

#endif
