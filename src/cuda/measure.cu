/* SPDX-License-Identifier: MIT
 * What copies reach: inside of a device's memory, to and from pinned memory of the host, and
 * between two devices. No backend takes part; everything is given back.
 */
#include "cuda/cuda.h"

#include "base/check.h"

#include <cuda_runtime.h>
#include <stdio.h>

#define N_COPIES    8
#define CC_MAJOR    9
#define CC_MINOR    0
#define HOST_BYTES  (static_cast<size_t>(256) << 20) /* at most of pinned memory */
#define DEVICE_PART 8                                /* of what is free, at most */

bool sl_cuda_facts(int device, struct sl_cuda_facts *out)
{
    cudaDeviceProp prop;
    if (cudaGetDeviceProperties(&prop, device) != cudaSuccess) {
        cudaGetLastError();
        return false;
    }
    snprintf(out->pci, sizeof out->pci, "%04x:%02x:%02x.0", prop.pciDomainID & 0xffff,
             prop.pciBusID & 0xff, prop.pciDeviceID & 0x1f);
    out->served = prop.major == CC_MAJOR && prop.minor == CC_MINOR;
    return true;
}

/* A stream of a device, and the time of what was enqueued between two events. */
struct clock {
    cudaStream_t stream;
    cudaEvent_t begun, ended;
};

static bool open_clock(int device, struct clock *c)
{
    *c = {};
    return cudaSetDevice(device) == cudaSuccess &&
           cudaStreamCreateWithFlags(&c->stream, cudaStreamNonBlocking) == cudaSuccess &&
           cudaEventCreateWithFlags(&c->begun, cudaEventDefault) == cudaSuccess &&
           cudaEventCreateWithFlags(&c->ended, cudaEventDefault) == cudaSuccess;
}

static void close_clock(struct clock *c)
{
    if (c->ended != NULL)
        cudaEventDestroy(c->ended);
    if (c->begun != NULL)
        cudaEventDestroy(c->begun);
    if (c->stream != NULL)
        cudaStreamDestroy(c->stream);
    cudaGetLastError();
}

/* Bytes copied per second, over some copies behind one that is not counted. */
static double copy_rate(const struct clock *c, void *to, const void *from, size_t n_bytes,
                        cudaMemcpyKind kind)
{
    float ms = 0;
    bool ok = cudaMemcpyAsync(to, from, n_bytes, kind, c->stream) == cudaSuccess &&
              cudaEventRecord(c->begun, c->stream) == cudaSuccess;
    for (int i = 0; ok && i < N_COPIES; i++)
        ok = cudaMemcpyAsync(to, from, n_bytes, kind, c->stream) == cudaSuccess;
    ok = ok && cudaEventRecord(c->ended, c->stream) == cudaSuccess &&
         cudaStreamSynchronize(c->stream) == cudaSuccess &&
         cudaEventElapsedTime(&ms, c->begun, c->ended) == cudaSuccess;
    cudaGetLastError();
    return ok && ms > 0 ? static_cast<double>(n_bytes) * N_COPIES / (static_cast<double>(ms) / 1e3)
                        : 0;
}

/* What may be taken for a measurement beside whatever else uses the device. */
static size_t fitting(size_t n_bytes)
{
    size_t free_bytes = 0, total = 0;
    if (cudaMemGetInfo(&free_bytes, &total) != cudaSuccess)
        return 0;
    return SL_MIN(n_bytes, free_bytes / DEVICE_PART);
}

bool sl_cuda_measure(int device, size_t n_bytes, struct sl_cuda_rates *out)
{
    struct clock c;
    void *a = NULL, *b = NULL, *host = NULL;
    *out = {};
    bool ok = open_clock(device, &c);
    const size_t n = ok ? fitting(n_bytes) : 0, n_host = SL_MIN(n, HOST_BYTES);
    ok = ok && n > 0 && cudaMalloc(&a, n) == cudaSuccess && cudaMalloc(&b, n) == cudaSuccess &&
         cudaMallocHost(&host, n_host) == cudaSuccess &&
         cudaMemsetAsync(a, 0, n, c.stream) == cudaSuccess;
    if (ok) {
        out->memory = 2 * copy_rate(&c, b, a, n, cudaMemcpyDeviceToDevice);
        out->from_host = copy_rate(&c, a, host, n_host, cudaMemcpyHostToDevice);
        out->to_host = copy_rate(&c, host, a, n_host, cudaMemcpyDeviceToHost);
    }
    if (host != NULL)
        cudaFreeHost(host);
    if (b != NULL)
        cudaFree(b);
    if (a != NULL)
        cudaFree(a);
    close_clock(&c);
    return ok;
}

static void *take(int device, size_t n_bytes)
{
    void *p = NULL;
    if (cudaSetDevice(device) != cudaSuccess || cudaMalloc(&p, n_bytes) != cudaSuccess)
        p = NULL;
    return p;
}

double sl_cuda_measure_pair(int from, int to, size_t n_bytes)
{
    struct clock c;
    double rate = 0;
    bool ok = open_clock(from, &c);
    const size_t n_from = ok ? fitting(n_bytes) : 0;
    ok = ok && cudaSetDevice(to) == cudaSuccess;
    const size_t n = ok ? SL_MIN(n_from, fitting(n_bytes)) : 0;
    void *there = n > 0 ? take(to, n) : NULL, *here = n > 0 ? take(from, n) : NULL;
    const cudaError_t e = cudaDeviceEnablePeerAccess(to, 0);
    if (here != NULL && there != NULL &&
        (e == cudaSuccess || e == cudaErrorPeerAccessAlreadyEnabled)) {
        cudaGetLastError();
        if (cudaMemsetAsync(here, 0, n, c.stream) == cudaSuccess)
            rate = copy_rate(&c, there, here, n, cudaMemcpyDeviceToDevice);
    }
    if (there != NULL)
        cudaFree(there);
    if (here != NULL)
        cudaFree(here);
    close_clock(&c);
    return rate;
}
