/* SPDX-License-Identifier: MIT
 * bench_util.h - what the parts of bench_ops share: the backend, memory that frees itself, numbers
 * that the host can recompute, and how one measurement is made.
 *
 * A measurement is a graph of many calls, as the engine's steps are, replayed between events; the
 * figure is the median over the replays, divided by the calls. Calls go round over as many copies
 * of their data as exceed the L2 cache. Data are random: a chip that multiplies zeros is faster.
 */
#ifndef SL_TESTS_CUDA_BENCH_UTIL_H
#define SL_TESTS_CUDA_BENCH_UTIL_H

#include "cuda/cuda.h"
#include "cuda/device.h"
#include "cuda/launch.cuh"
#include "cuda/ptx.cuh"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <algorithm>
#include <vector>

struct bench {
    struct sl_backend *be;
    struct sl_cuda *cu;
    bool tiny;
    enum sl_weight_use use; /* of products' weights: with _FP8 those of FP8 meet FP8 activations */
    /* Ceilings, once measured; 0: unknown. */
    double read_bps;   /* bytes a second */
    double rw_bps;     /* the same, of as many bytes read as written */
    double gemm_flops; /* of BF16 products, a second */
};

static struct bench b;

#define MUST(call)                                                                                 \
    do {                                                                                           \
        cudaError_t e_ = (call);                                                                   \
        if (e_ != cudaSuccess) {                                                                   \
            fprintf(stderr, "%s:%d: %s: %s\n", __FILE__, __LINE__, #call, cudaGetErrorString(e_)); \
            exit(1);                                                                               \
        }                                                                                          \
    } while (0)

#define CHECK(cond, ...)                                               \
    do {                                                               \
        if (!(cond)) {                                                 \
            fprintf(stderr, "%s:%d: %s: ", __FILE__, __LINE__, #cond); \
            fprintf(stderr, __VA_ARGS__);                              \
            fprintf(stderr, "\n");                                     \
            exit(1);                                                   \
        }                                                              \
    } while (0)

/* Ends the program if the backend has recorded an error, or the device has one. */
static void must_be_well()
{
    CHECK(b.cu->error == cudaSuccess, "%s: %s", b.cu->error_what, cudaGetErrorString(b.cu->error));
    MUST(cudaGetLastError());
}

static void wait_all()
{
    must_be_well();
    MUST(cudaStreamSynchronize(b.cu->stream));
}

/* Device memory, poisoned: what nobody writes is NaN. */
template <typename T> struct dev {
    T *p = nullptr;
    size_t n;
    explicit dev(size_t n_) : n(n_)
    {
        MUST(cudaMalloc((void **)&p, n * sizeof(T)));
        MUST(cudaMemsetAsync(p, 0xFF, n * sizeof(T), b.cu->stream));
    }
    explicit dev(const std::vector<T> &v) : n(v.size())
    {
        MUST(cudaMalloc((void **)&p, n * sizeof(T)));
        MUST(cudaMemcpy(p, v.data(), n * sizeof(T), cudaMemcpyHostToDevice));
    }
    dev(const dev &) = delete;
    ~dev()
    {
        wait_all();
        MUST(cudaFree(p));
    }
    void get(size_t first, T *to, size_t count) const
    {
        MUST(cudaMemcpy(to, p + first, count * sizeof(T), cudaMemcpyDeviceToHost));
    }
};

/* ------------------------------------------------------------------ numbers */

static __host__ __device__ inline uint32_t random_bits(uint64_t i)
{
    uint32_t x = static_cast<uint32_t>(i) * 0x9E3779B1u ^ static_cast<uint32_t>(i >> 32);
    x ^= x >> 16;
    x *= 0x7FEB352Du;
    x ^= x >> 15;
    x *= 0x846CA68Bu;
    return x ^ x >> 16;
}

/* About normal: four bytes of a hash, centred, and exactly the same on host and device. */
static __host__ __device__ inline float random_normal(uint64_t i)
{
    uint32_t x = random_bits(i);
    int sum = static_cast<int>((x & 255) + (x >> 8 & 255) + (x >> 16 & 255) + (x >> 24));
    return static_cast<float>(sum * 2 - 1020) * (1.0f / 296.0f);
}

static __host__ __device__ inline uint32_t float_bits(float f)
{
    uint32_t u;
    memcpy(&u, &f, 4);
    return u;
}

static __host__ __device__ inline uint16_t to_bf16(float f)
{
    uint32_t u = float_bits(f);
    return static_cast<uint16_t>((u + 0x7FFF + (u >> 16 & 1)) >> 16);
}

static inline float from_bf16(uint16_t h)
{
    uint32_t u = static_cast<uint32_t>(h) << 16;
    float f;
    memcpy(&f, &u, 4);
    return f;
}

/* Of 0 and numbers from 2^-14 to 65504. */
static __host__ __device__ inline uint16_t to_f16(float f)
{
    uint32_t u = float_bits(f), abs = u & 0x7FFFFFFF, r = abs - (112u << 23);
    return static_cast<uint16_t>(u >> 16 & 0x8000) |
           static_cast<uint16_t>(abs == 0 ? 0 : (r + 0xFFF + (r >> 13 & 1)) >> 13);
}

/* Positive and negative E4M3; below its smallest normal number 0. */
static __host__ __device__ inline uint8_t to_e4m3(float f)
{
    uint32_t u = float_bits(f), abs = (u & 0x7FFFFFFF) + (1u << 19);
    int e = static_cast<int>(abs >> 23) - 120;
    uint32_t low = e <= 0 ? 0u : static_cast<uint32_t>(e) << 3 | (abs >> 20 & 7);
    return static_cast<uint8_t>(u >> 31 << 7 | low);
}

enum fill_kind { FILL_F32, FILL_BF16, FILL_F16, FILL_E4M3, FILL_LOGITS, FILL_FLAT };

/* Logits as a language model's: a bulk, and every few thousand a peak. */
static __host__ __device__ inline float random_logit(uint64_t i)
{
    uint32_t peak = random_bits(i ^ 0x5555555555555555u);
    return random_normal(i) * 2.0f +
           (peak % 3200 == 0 ? static_cast<float>(peak >> 16) * (20.0f / 65536.0f) : 0.0f);
}

static __global__ void fill_kernel(void *out, uint64_t n, int kind, uint64_t seed)
{
    sl_grid_wait();
    const uint64_t step = static_cast<uint64_t>(gridDim.x) * blockDim.x;
    for (uint64_t i = static_cast<uint64_t>(blockIdx.x) * blockDim.x + threadIdx.x; i < n;
         i += step) {
        if (kind == FILL_BF16)
            static_cast<uint16_t *>(out)[i] = to_bf16(random_normal(i + seed));
        else if (kind == FILL_F16)
            static_cast<uint16_t *>(out)[i] = to_f16(random_normal(i + seed));
        else if (kind == FILL_E4M3)
            static_cast<uint8_t *>(out)[i] = to_e4m3(random_normal(i + seed));
        else
            static_cast<float *>(out)[i] =
                kind == FILL_LOGITS ? random_logit(i + seed) : random_normal(i + seed);
    }
    sl_grid_launch_dependents();
}

/* Element i becomes the number of i + seed. */
static void fill(void *out, size_t n, int kind, uint64_t seed = 0)
{
    size_t blocks = std::min((n + 255) / 256, static_cast<size_t>(b.tiny ? 4 : 4096));
    sl_launch(b.cu, fill_kernel, dim3(static_cast<unsigned>(blocks)), dim3(256), 0, out, n, kind,
              seed);
    must_be_well();
}

/* ------------------------------------------------------------------ measuring */

/* How many sets of data calls that read n_bytes go round over. One set is enough if it is far
 * larger than the cache. */
static int n_copies_for(size_t n_bytes, int most)
{
    const size_t round = b.tiny ? 1 : 256u << 20;
    if (n_bytes > 2 * round && !b.tiny)
        return 1;
    size_t n = round / std::max(n_bytes, static_cast<size_t>(1)) + 2;
    return static_cast<int>(std::min(n, static_cast<size_t>(most)));
}

static float elapsed_ms(cudaEvent_t from, cudaEvent_t to)
{
    float ms = 0.0f;
    MUST(cudaEventElapsedTime(&ms, from, to));
    return std::max(ms, 1e-6f);
}

/* A graph of the calls op(0) .. op(n_copies - 1), again and again. */
template <class F> static cudaGraphExec_t record(int n_calls, int n_copies, F op)
{
    cudaGraph_t graph;
    cudaGraphExec_t exec;
    MUST(cudaStreamBeginCapture(b.cu->stream, cudaStreamCaptureModeThreadLocal));
    for (int i = 0; i < n_calls; i++)
        op(i % n_copies);
    MUST(cudaStreamEndCapture(b.cu->stream, &graph));
    must_be_well();
    MUST(cudaGraphInstantiate(&exec, graph, 0));
    MUST(cudaGraphDestroy(graph));
    return exec;
}

/* Median microseconds of a call. op(i) enqueues one on copy i of its data; the last one that runs
 * is that on copy n_copies - 1. */
template <class F> static double time_us(int n_copies, double budget_ms, F op)
{
    const double graph_ms = b.tiny ? 0.0 : std::min(3.0, budget_ms / 5);
    const int most_calls = b.tiny ? 2 : 1024, most_runs = b.tiny ? 2 : 40;
    cudaEvent_t event[48];
    for (cudaEvent_t &e : event)
        MUST(cudaEventCreate(&e));
    for (int i = 0; i < n_copies; i++) /* warm, and loads the kernels */
        op(i);
    wait_all();
    MUST(cudaEventRecord(event[0], b.cu->stream));
    for (int i = 0; i < n_copies; i++)
        op(i);
    MUST(cudaEventRecord(event[1], b.cu->stream));
    wait_all();
    double call_ms = elapsed_ms(event[0], event[1]) / n_copies;
    int passes = static_cast<int>(std::min(graph_ms / (call_ms * n_copies), 1024.0)) + 1;
    int n_calls = n_copies * std::max(std::min(passes, most_calls / n_copies), 1);
    cudaGraphExec_t exec = record(n_calls, n_copies, op);
    int runs = static_cast<int>(std::min(budget_ms / (call_ms * n_calls), 1000.0));
    runs = std::min(std::max(runs, b.tiny ? 2 : 5), most_runs);
    MUST(cudaGraphLaunch(exec, b.cu->stream));
    MUST(cudaEventRecord(event[0], b.cu->stream));
    for (int i = 0; i < runs; i++) {
        MUST(cudaGraphLaunch(exec, b.cu->stream));
        MUST(cudaEventRecord(event[i + 1], b.cu->stream));
    }
    wait_all();
    std::vector<double> us;
    for (int i = 0; i < runs; i++)
        us.push_back(elapsed_ms(event[i], event[i + 1]) * 1e3 / n_calls);
    std::nth_element(us.begin(), us.begin() + runs / 2, us.end());
    MUST(cudaGraphExecDestroy(exec));
    for (cudaEvent_t &e : event)
        MUST(cudaEventDestroy(e));
    return us[static_cast<size_t>(runs) / 2];
}

#define ROW_MS 50.0 /* of replays for one row of a table */

/* ------------------------------------------------------------------ printing */

/* "87 %", or "-" without a ceiling. The text stays until eight calls later. */
static inline const char *share(double part, double of)
{
    static char text[8][16];
    static unsigned next;
    char *to = text[next++ % 8];
    if (of > 0.0 && part > 0.0)
        snprintf(to, sizeof text[0], "%.0f %%", 100.0 * part / of);
    else
        snprintf(to, sizeof text[0], "-");
    return to;
}

/* Bytes a call over its microseconds, in GB/s. */
static inline double gb_s(double n_bytes, double us)
{
    return n_bytes / us * 1e-3;
}

#endif
