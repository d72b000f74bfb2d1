/* SPDX-License-Identifier: MIT
 * Work of the host in the middle of a step: experts whose weights lie in its memory.
 *
 * A kernel writes the rows to pinned memory and then the number of the call; a thread of the host
 * looks for that number, computes, and writes its own; a second kernel looks for this one and reads
 * the sums. Neither copies nor functions of the stream take part (cudaLaunchHostFunc: a thread of
 * the driver that has to be woken, 10 to 20 us each way), so a call costs two launches and two ways
 * over PCIe, and a recorded step replays it like other kernels. The numbers count on over all
 * steps, on the device as on the host: a call is never taken for an earlier one.
 *
 * The thread knows how many calls are enqueued. While there are any it looks without pause, since
 * each of them stands in the way of the device; without, it sleeps after a moment.
 *
 * Rows of padding stay on the device: the host would read whole experts for each.
 */
#include "cuda/step/step.h"

#include "cuda/gemm/experts_gate.cuh"
#include "cuda/launch.cuh"
#include "cuda/ptx_host.cuh"

#include <sched.h>

#define HOST_BLOCK   256
#define HOST_BLOCKS  32      /* enough to fill PCIe, and few to look for the host's number */
#define LOOKS_AT     64      /* looks without giving way to other threads of this processor */
#define IDLE_SPIN_NS 300000u /* as workers of the CPU's threads: gaps between steps are shorter */

typedef void (*host_fn)(void *arg, const struct sl_host_rows *rows);

struct host_mail { /* pinned; a line for each writer and what is looked at */
    host_fn fn;
    void *arg;
    int32_t n;
    alignas(64) uint32_t posted; /* calls by the device, wraps round */
    alignas(64) uint32_t done;   /* calls by the host */
};

struct host_counts {  /* device memory */
    uint32_t arrived; /* blocks that have written their part */
    uint32_t posted;
};

struct sl_cuda_host {
    struct host_mail *mail;
    uint8_t *pinned;
    float *x, *out, *weights;
    int32_t *experts;
    struct host_counts *counts;
    pthread_t thread;
    bool started;
    pthread_mutex_t lock;
    pthread_cond_t more;
    uint64_t n_expected;              /* under the lock, and read without it */
    bool stop;                        /* likewise */
    uint64_t n_done, n_rows, busy_ns; /* the thread writes, anyone reads */
};

/* ------------------------------------------------------------------ kernels */

struct host_args {
    const uint2 *x; /* four activations each */
    const int32_t *experts;
    const float *weights;
    int32_t n, h4, top_k;
    const int32_t *n_pad;
    float4 *to_x;
    int32_t *to_experts;
    float *to_weights;
    struct host_mail *mail;
    struct host_counts *counts;
    host_fn fn;
    void *arg;
};

static __global__ void __launch_bounds__(HOST_BLOCK) begin_kernel(const host_args a)
{
    const int64_t first = static_cast<int64_t>(blockIdx.x) * HOST_BLOCK + threadIdx.x;
    const int64_t stride = static_cast<int64_t>(gridDim.x) * HOST_BLOCK;
    sl_grid_launch_dependents();
    sl_grid_wait();
    const int32_t n = a.n - *a.n_pad;
    for (int64_t i = first; i < static_cast<int64_t>(n) * a.h4; i += stride) {
        const uint2 v = a.x[i];
        a.to_x[i] = make_float4(__uint_as_float(v.x << 16), __uint_as_float(v.x & 0xFFFF0000u),
                                __uint_as_float(v.y << 16), __uint_as_float(v.y & 0xFFFF0000u));
    }
    for (int64_t i = first; i < static_cast<int64_t>(n) * a.top_k; i += stride) {
        a.to_experts[i] = a.experts[i];
        a.to_weights[i] = a.weights[i];
    }
    __syncthreads();
    if (threadIdx.x != 0)
        return;
    sl_fence_host();
    if (atomicInc(&a.counts->arrived, gridDim.x - 1) != gridDim.x - 1)
        return;
    const uint32_t number = a.counts->posted + 1;
    a.counts->posted = number;
    a.mail->fn = a.fn;
    a.mail->arg = a.arg;
    a.mail->n = n;
    sl_store_host(&a.mail->posted, number);
}

struct end_args {
    const float4 *sums; /* the host's */
    const float4 *shared;
    const float *shared_logit;
    float4 *out;
    int32_t n, h4;
    const int32_t *n_pad;
    const struct host_mail *mail;
    const struct host_counts *counts;
};

static __global__ void __launch_bounds__(HOST_BLOCK) end_kernel(const end_args a)
{
    const int64_t first = static_cast<int64_t>(blockIdx.x) * HOST_BLOCK + threadIdx.x;
    const int64_t stride = static_cast<int64_t>(gridDim.x) * HOST_BLOCK;
    sl_grid_launch_dependents();
    sl_grid_wait();
    if (threadIdx.x == 0)
        while (sl_load_host(&a.mail->done) != a.counts->posted)
            sl_host_pause();
    __syncthreads();
    const int64_t n_real = static_cast<int64_t>(a.n - *a.n_pad) * a.h4;
    for (int64_t i = first; i < static_cast<int64_t>(a.n) * a.h4; i += stride) {
        float4 v = make_float4(0.0f, 0.0f, 0.0f, 0.0f);
        if (i < n_real)
            v = sl_load_host4(&a.sums[i]);
        if (a.shared != nullptr) {
            const float open = sl_expert_open(a.shared_logit, static_cast<int32_t>(i / a.h4));
            const float4 s = a.shared[i];
            v = make_float4(
                __fadd_rn(__fmul_rn(open, s.x), v.x), __fadd_rn(__fmul_rn(open, s.y), v.y),
                __fadd_rn(__fmul_rn(open, s.z), v.z), __fadd_rn(__fmul_rn(open, s.w), v.w));
        }
        a.out[i] = v;
    }
}

static dim3 host_grid(int32_t n, int32_t h4)
{
    const int64_t blocks = SL_CEIL_DIV(static_cast<int64_t>(n) * h4, (int64_t)HOST_BLOCK);
    return dim3(static_cast<unsigned>(SL_MAX(SL_MIN(blocks, (int64_t)HOST_BLOCKS), (int64_t)1)));
}

/* ------------------------------------------------------------------ the thread */

static bool host_stops(struct sl_cuda_host *h)
{
    return __atomic_load_n(&h->stop, __ATOMIC_ACQUIRE);
}

static bool host_has_calls(struct sl_cuda_host *h)
{
    return __atomic_load_n(&h->n_expected, __ATOMIC_ACQUIRE) != h->n_done || host_stops(h);
}

/* Returns when a call is enqueued, or nothing will come any more. */
static void host_sleep(struct sl_cuda_host *h)
{
    const uint64_t end_ns = sl_now_ns() + IDLE_SPIN_NS;
    for (uint32_t i = 0; !host_has_calls(h) && sl_now_ns() < end_ns; i++)
        if (i % LOOKS_AT == LOOKS_AT - 1)
            sched_yield();
    pthread_mutex_lock(&h->lock);
    while (!host_has_calls(h))
        pthread_cond_wait(&h->more, &h->lock);
    pthread_mutex_unlock(&h->lock);
}

/* False: it never will. */
static bool host_await(struct sl_cuda_host *h, uint32_t number)
{
    for (uint32_t i = 0; __atomic_load_n(&h->mail->posted, __ATOMIC_ACQUIRE) != number; i++) {
        if (host_stops(h))
            return false;
        if (i % LOOKS_AT == LOOKS_AT - 1)
            sched_yield();
        else
            __builtin_ia32_pause();
    }
    return true;
}

static void *host_main(void *arg)
{
    struct sl_cuda_host *h = static_cast<struct sl_cuda_host *>(arg);
    for (;;) {
        const uint32_t number = static_cast<uint32_t>(h->n_done + 1);
        host_sleep(h);
        if (!host_await(h, number))
            return NULL;
        const uint64_t start_ns = sl_now_ns();
        const struct sl_host_rows rows = {h->mail->n, h->x, h->experts, h->weights, h->out};
        h->mail->fn(h->mail->arg, &rows);
        __atomic_store_n(&h->mail->done, number, __ATOMIC_RELEASE);
        __atomic_fetch_add(&h->busy_ns, sl_now_ns() - start_ns, __ATOMIC_RELAXED);
        __atomic_fetch_add(&h->n_rows, static_cast<uint64_t>(rows.n), __ATOMIC_RELAXED);
        __atomic_fetch_add(&h->n_done, 1u, __ATOMIC_RELAXED);
    }
}

void sl_cuda_host_expect(struct sl_cuda_host *h, int32_t n_calls)
{
    if (n_calls == 0)
        return;
    pthread_mutex_lock(&h->lock);
    __atomic_fetch_add(&h->n_expected, static_cast<uint64_t>(n_calls), __ATOMIC_RELEASE);
    pthread_cond_signal(&h->more);
    pthread_mutex_unlock(&h->lock);
}

/* ------------------------------------------------------------------ start and end */

static size_t host_part(size_t *at, uint64_t n_bytes)
{
    const size_t offset = *at;
    *at += SL_ROUND_UP(static_cast<size_t>(n_bytes), static_cast<size_t>(SL_CUDA_ALIGN));
    return offset;
}

/* The pinned memory: the mail, and rows of the largest step. */
static int host_memory(struct sl_cuda *cu, struct sl_cuda_host *h, const struct sl_step_limits *lim,
                       struct sl_error *err)
{
    const uint64_t n = static_cast<uint64_t>(lim->max_tokens);
    const uint64_t row = static_cast<uint64_t>(lim->host_hidden) * sizeof(float);
    const uint64_t top = static_cast<uint64_t>(lim->host_top_k) * sizeof(float);
    size_t n_bytes = 0;
    const size_t mail = host_part(&n_bytes, sizeof *h->mail), x = host_part(&n_bytes, n * row),
                 out = host_part(&n_bytes, n * row), experts = host_part(&n_bytes, n * top),
                 weights = host_part(&n_bytes, n * top);
    void *p = NULL;
    cudaError_t e = cudaMallocHost(&p, n_bytes);
    if (e != cudaSuccess) {
        cudaGetLastError();
        return sl_fail(err, SL_ENOMEM,
                       "cuda:%d: no pinned memory for rows of experts on the host: wanted %.1f MB: "
                       "%s (--max-num-batched-tokens lowers it)",
                       cu->device, static_cast<double>(n_bytes) / 1e6, cudaGetErrorString(e));
    }
    cu->counts.host_allocs++;
    h->pinned = static_cast<uint8_t *>(p);
    h->mail = reinterpret_cast<struct host_mail *>(h->pinned + mail);
    *h->mail = {};
    h->x = reinterpret_cast<float *>(h->pinned + x);
    h->out = reinterpret_cast<float *>(h->pinned + out);
    h->experts = reinterpret_cast<int32_t *>(h->pinned + experts);
    h->weights = reinterpret_cast<float *>(h->pinned + weights);
    h->counts = static_cast<struct host_counts *>(sl_cuda_alloc(cu, SL_CUDA_ALIGN));
    if (h->counts == NULL)
        return sl_cuda_no_memory(cu, SL_CUDA_ALIGN, "counts of the host's calls", err);
    sl_cuda_check(cu, cudaMemsetAsync(h->counts, 0, sizeof *h->counts, cu->stream),
                  "cudaMemsetAsync");
    return 0;
}

int sl_cuda_host_create(struct sl_cuda *cu, const struct sl_step_limits *lim,
                        struct sl_cuda_host **out, struct sl_error *err)
{
    struct sl_cuda_host *h =
        static_cast<struct sl_cuda_host *>(sl_calloc(1, sizeof(struct sl_cuda_host)));
    *out = h;
    if (h == NULL)
        return sl_fail(err, SL_ENOMEM, "cuda:%d: out of memory for the host's calls", cu->device);
    pthread_mutex_init(&h->lock, NULL);
    pthread_cond_init(&h->more, NULL);
    int rc = host_memory(cu, h, lim, err);
    if (rc == 0)
        rc = sl_thread_create(&h->thread, host_main, h, "sl-experts", err);
    h->started = rc == 0;
    return rc;
}

void sl_cuda_host_destroy(struct sl_cuda *cu, struct sl_cuda_host *h)
{
    if (h == NULL)
        return;
    if (h->started) {
        pthread_mutex_lock(&h->lock);
        __atomic_store_n(&h->stop, true, __ATOMIC_RELEASE);
        pthread_cond_signal(&h->more);
        pthread_mutex_unlock(&h->lock);
        pthread_join(h->thread, NULL);
    }
    sl_cuda_free(cu, h->counts, SL_CUDA_ALIGN);
    if (h->pinned != NULL)
        cudaFreeHost(h->pinned);
    pthread_cond_destroy(&h->more);
    pthread_mutex_destroy(&h->lock);
    sl_free(h);
}

void sl_cuda_host_times(const struct sl_cuda_host *h, struct sl_device_times *out)
{
    if (h == NULL)
        return;
    out->n_host_calls = __atomic_load_n(&h->n_done, __ATOMIC_RELAXED);
    out->n_host_rows = __atomic_load_n(&h->n_rows, __ATOMIC_RELAXED);
    out->host_ms = static_cast<double>(__atomic_load_n(&h->busy_ns, __ATOMIC_RELAXED)) / 1e6;
}

/* ------------------------------------------------------------------ the two halves of a call */

extern "C" void sl_cuda_host_begin(struct sl_backend *be, const struct sl_host_experts *a)
{
    struct sl_cuda *cu = sl_cuda(be);
    struct sl_cuda_steps *s = cu->steps;
    SL_ASSERT(s != NULL && s->host != NULL && a->n <= s->lim.max_tokens);
    SL_ASSERT(a->h <= s->lim.host_hidden && a->h % 4 == 0 && a->top_k <= s->lim.host_top_k);
    host_args k = {};
    k.x = static_cast<const uint2 *>(a->x);
    k.experts = a->experts;
    k.weights = a->weights;
    k.n = a->n;
    k.h4 = a->h / 4;
    k.top_k = a->top_k;
    k.n_pad = s->n_pad;
    k.to_x = reinterpret_cast<float4 *>(s->host->x);
    k.to_experts = s->host->experts;
    k.to_weights = s->host->weights;
    k.mail = s->host->mail;
    k.counts = s->host->counts;
    k.fn = a->fn;
    k.arg = a->arg;
    if (s->recording)
        s->n_host_calls++;
    else
        sl_cuda_host_expect(s->host, 1);
    sl_launch(cu, begin_kernel, host_grid(k.n, k.h4), dim3(HOST_BLOCK), 0, k);
}

extern "C" void sl_cuda_host_end(struct sl_backend *be, const struct sl_host_experts *a)
{
    struct sl_cuda *cu = sl_cuda(be);
    const struct sl_cuda_steps *s = cu->steps;
    end_args k = {};
    k.sums = reinterpret_cast<const float4 *>(s->host->out);
    k.shared = reinterpret_cast<const float4 *>(a->shared);
    k.shared_logit = a->shared_logit;
    k.out = reinterpret_cast<float4 *>(a->out);
    k.n = a->n;
    k.h4 = a->h / 4;
    k.n_pad = s->n_pad;
    k.mail = s->host->mail;
    k.counts = s->host->counts;
    sl_launch(cu, end_kernel, host_grid(k.n, k.h4), dim3(HOST_BLOCK), 0, k);
}
