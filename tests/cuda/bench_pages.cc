/* SPDX-License-Identifier: MIT
 * bench_pages - KV pages between a GPU and the host.
 *
 *   bench_pages            GB/s of pages in each direction, and both at once, beside plain copies
 * of pinned memory of the same run, and what a copy costs the engine thread bench_pages MODEL [T]
 * time to first token of prompts of T tokens (32,768): computed, and from host memory; tokens/s of
 * decode alone, with a store, beside loads
 */
#include <cuda_runtime_api.h>

#include <algorithm>
#include <atomic>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <thread>
#include <unistd.h>
#include <vector>

extern "C" {
#include "base/check.h"
#include "base/rng.h"
#include "base/sys.h"
#include "cuda/cuda.h"
#include "sluice.h"
}
#include "cuda/device.h"
#include "cuda/launch.cuh"
#include "cuda/ptx.cuh"

#define MUST(rc)                                  \
    do {                                          \
        if ((rc) != 0) {                          \
            printf("bench_pages: %s\n", err.msg); \
            exit(1);                              \
        }                                         \
    } while (0)

#define CUDA(call)                                                          \
    do {                                                                    \
        cudaError_t e_ = (call);                                            \
        if (e_ != cudaSuccess) {                                            \
            printf("bench_pages: %s: %s\n", #call, cudaGetErrorString(e_)); \
            exit(1);                                                        \
        }                                                                   \
    } while (0)

static struct sl_error err;

static double now(void)
{
    return static_cast<double>(sl_now_ns()) * 1e-9;
}

/* ------------------------------------------------------------------ copies */

enum { TOTAL = 1 << 30, PIECE = 64 << 20, ROUNDS = 5 };

struct rig {
    struct sl_backend *be;
    const struct sl_device_vt *dev;
    uint8_t *device, *host, *plain;
    double submit_us; /* of a copy, in the last call */
};

/* Of pages in a scattered order at both ends, as they lie in a pool that has been used. */
static double pages(rig *r, size_t page, bool out, bool in)
{
    struct sl_page_counts over;
    const size_t n = TOTAL / page, half = n / 2;
    const double begin = now();
    double submit = 0;
    size_t n_copies = 0;
    for (size_t i = 0; i < half; i++) {
        const size_t to = i * 7919 % half, from = i * 104729 % half;
        const double t = now();
        if (out)
            MUST(r->dev->page_copy(r->be, SL_PAGES_OUT, r->host + to * page,
                                   r->device + from * page, page, &err));
        if (in)
            MUST(r->dev->page_copy(r->be, SL_PAGES_IN, r->device + (half + to) * page,
                                   r->host + (half + from) * page, page, &err));
        submit += now() - t;
        n_copies += out + in;
        if (i % 64 == 63)
            MUST(r->dev->pages_send(r->be, &err));
    }
    MUST(r->dev->pages_send(r->be, &err));
    MUST(r->dev->pages_over(r->be, true, &over, &err));
    r->submit_us = submit * 1e6 / static_cast<double>(n_copies);
    return static_cast<double>(n_copies * page) / (now() - begin) * 1e-9;
}

/* What could be done instead: the same pages by calls of their own, by batches of the driver's, or
 * by blocks of a kernel that read and write the pinned memory themselves. */
enum instead { BY_CALLS, BY_BATCHES, BY_KERNEL_8, BY_KERNEL_16, BY_KERNEL_32, N_INSTEAD };
enum { AT_ONCE = 64, COPY_BLOCK = 512 };

struct copy_args {
    const uint8_t *src[AT_ONCE];
    uint8_t *dst[AT_ONCE];
    uint32_t n, units; /* pages; 16 bytes of one */
};

static __global__ void __launch_bounds__(COPY_BLOCK) copy_kernel(const copy_args a)
{
    constexpr uint32_t AHEAD = 4;
    const uint32_t total = a.n * a.units, stride = gridDim.x * COPY_BLOCK;
    sl_grid_wait();
    for (uint32_t i = blockIdx.x * COPY_BLOCK + threadIdx.x; i < total; i += AHEAD * stride) {
        float4 x[AHEAD];
#pragma unroll
        for (uint32_t k = 0; k < AHEAD; k++) {
            const uint32_t u = i + k * stride;
            if (u < total)
                x[k] = reinterpret_cast<const float4 *>(a.src[u / a.units])[u % a.units];
        }
#pragma unroll
        for (uint32_t k = 0; k < AHEAD; k++) {
            const uint32_t u = i + k * stride;
            if (u < total)
                reinterpret_cast<float4 *>(a.dst[u / a.units])[u % a.units] = x[k];
        }
    }
}

static void copy_some(rig *r, const copy_args *a, bool out, instead how, cudaStream_t *lanes,
                      size_t turn)
{
    const size_t bytes = static_cast<size_t>(a->units) * 16;
    if (how == BY_BATCHES) {
        cudaMemcpyAttributes attr = {};
        size_t first = 0, sizes[AT_ONCE];
        std::fill_n(sizes, AT_ONCE, bytes);
        attr.srcAccessOrder = cudaMemcpySrcAccessOrderStream;
        CUDA(cudaMemcpyBatchAsync(const_cast<void **>(reinterpret_cast<void *const *>(a->dst)),
                                  reinterpret_cast<const void *const *>(a->src), sizes, a->n, &attr,
                                  &first, 1, lanes[turn % 2]));
    } else if (how == BY_CALLS) {
        for (uint32_t i = 0; i < a->n; i++)
            CUDA(cudaMemcpyAsync(a->dst[i], a->src[i], bytes,
                                 out ? cudaMemcpyDeviceToHost : cudaMemcpyHostToDevice,
                                 lanes[i % 2]));
    } else {
        sl_launch(sl_cuda(r->be), copy_kernel, dim3(8u << (how - BY_KERNEL_8)), dim3(COPY_BLOCK), 0,
                  *a);
    }
}

static double pages_instead(rig *r, size_t page, bool out, instead how, cudaStream_t *lanes)
{
    const size_t n = TOTAL / page / 2;
    const double begin = now();
    for (size_t i = 0; i < n; i += AT_ONCE) {
        copy_args a = {};
        a.units = static_cast<uint32_t>(page / 16);
        for (size_t k = i; k < std::min(n, i + AT_ONCE); k++, a.n++) {
            const size_t to = k * 7919 % n * page, from = k * 104729 % n * page;
            a.dst[a.n] = (out ? r->host : r->device) + to;
            a.src[a.n] = (out ? r->device : r->host) + from;
        }
        copy_some(r, &a, out, how, lanes, i / AT_ONCE);
    }
    CUDA(cudaDeviceSynchronize());
    return static_cast<double>(n * page) / (now() - begin) * 1e-9;
}

static void bench_instead(rig *r, const double best[2])
{
    cudaStream_t lanes[2];
    for (cudaStream_t &s : lanes)
        CUDA(cudaStreamCreateWithFlags(&s, cudaStreamNonBlocking));
    printf("instead, %% of plain, to the host / to the GPU:\n%9s %12s %12s %12s %12s %12s\n",
           "page", "calls", "batches", "8 blocks", "16 blocks", "32 blocks");
    for (size_t kb : {64, 128, 256, 512, 1024, 2048}) {
        printf("%6zu KB", kb);
        for (int how = BY_CALLS; how < N_INSTEAD; how++) {
            double got[2] = {0, 0};
            for (int i = 0; i < 2 * ROUNDS; i++)
                got[i % 2] = std::max(got[i % 2], pages_instead(r, kb << 10, i % 2 == 0,
                                                                static_cast<instead>(how), lanes));
            printf("    %3.0f / %3.0f", 100 * got[0] / best[0], 100 * got[1] / best[1]);
        }
        printf("\n");
    }
    for (cudaStream_t s : lanes)
        CUDA(cudaStreamDestroy(s));
}

static double plain(rig *r, cudaStream_t stream, bool out)
{
    const double begin = now();
    for (size_t at = 0; at < TOTAL / 2; at += PIECE)
        CUDA(cudaMemcpyAsync(out ? r->plain + at : r->device + at,
                             out ? r->device + at : r->plain + at, PIECE,
                             out ? cudaMemcpyDeviceToHost : cudaMemcpyHostToDevice, stream));
    CUDA(cudaStreamSynchronize(stream));
    return TOTAL / 2 / (now() - begin) * 1e-9;
}

static void bench_copies(void)
{
    struct sl_cuda_config cfg = {0, 0, false};
    rig r = {};
    cudaStream_t stream;
    double best[2] = {0, 0};
    MUST(sl_cuda_create(&cfg, &r.be, &err));
    r.dev = r.be->vt->device;
    r.device = static_cast<uint8_t *>(r.be->vt->alloc(r.be, TOTAL));
    r.host = static_cast<uint8_t *>(sl_aligned_alloc(TOTAL));
    SL_ASSERT(r.device != nullptr && r.host != nullptr);
    CUDA(cudaMallocHost(&r.plain, TOTAL / 2));
    CUDA(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking));
    double t = now();
    memset(r.host, 1, TOTAL);
    const double touch = now() - t;
    t = now();
    for (size_t at = 0; at < TOTAL; at += PIECE)
        MUST(r.dev->pin(cfg.device, r.host + at, PIECE, &err));
    printf("1 GB of host memory: touched in %.0f ms, pinned in %.0f ms\n", touch * 1e3,
           (now() - t) * 1e3);
    struct sl_step_limits lim = {};
    lim.max_tokens = lim.max_spans = lim.max_logits = lim.max_table = lim.block_size = 16;
    MUST(r.dev->steps_init(r.be, &lim, &err));
    MUST(r.dev->pages_init(r.be, &err));
    for (int i = 0; i < ROUNDS; i++) {
        best[0] = std::max(best[0], plain(&r, stream, true));
        best[1] = std::max(best[1], plain(&r, stream, false));
    }
    printf("plain pinned copies of 64 MB: to the host %.1f GB/s, to the GPU %.1f GB/s\n", best[0],
           best[1]);
    printf("%9s %26s %26s %14s %10s\n", "page", "to the host GB/s", "to the GPU GB/s", "both GB/s",
           "us a copy");
    for (size_t kb : {64, 128, 256, 512, 1024, 2048, 4096}) {
        double got[3] = {0, 0, 0}, us = 1e9;
        for (int i = 0; i < ROUNDS; i++) {
            got[0] = std::max(got[0], pages(&r, kb << 10, true, false));
            us = std::min(us, r.submit_us);
            got[1] = std::max(got[1], pages(&r, kb << 10, false, true));
        }
        got[2] = pages(&r, kb << 10, true, true);
        printf("%6zu KB %13.1f (%3.0f %%) %17.1f (%3.0f %%) %14.1f %10.2f\n", kb, got[0],
               100 * got[0] / best[0], got[1], 100 * got[1] / best[1], got[2], us);
    }
    bench_instead(&r, best);
    for (size_t at = 0; at < TOTAL; at += PIECE)
        r.dev->unpin(cfg.device, r.host + at);
    sl_aligned_free(r.host, TOTAL);
    CUDA(cudaFreeHost(r.plain));
    CUDA(cudaStreamDestroy(stream));
    r.be->vt->free(r.be, r.device, TOTAL);
    r.be->vt->destroy(r.be);
}

/* ------------------------------------------------------------------ a model */

enum { N_DECODE = 8, DECODE_PROMPT = 256, DECODE_OUT = 512, PACE_MS = 250 };

static std::vector<int32_t> random_prompt(int32_t n, uint64_t seed, int32_t n_vocab)
{
    struct sl_rng rng = {seed, 0};
    std::vector<int32_t> ids(static_cast<size_t>(n));
    for (int32_t &id : ids)
        id = static_cast<int32_t>(sl_rng_below(&rng, static_cast<uint64_t>(n_vocab)));
    return ids;
}

struct result {
    int32_t first_id, n_cached, n_out;
    double ttft, decode_s;
};

static struct sl_request *submit(struct sl_engine *eng, const std::vector<int32_t> &ids,
                                 int32_t n_out)
{
    struct sl_request *req = nullptr;
    struct sl_request_desc d = {};
    d.prompt = ids.data();
    d.n_prompt = static_cast<int32_t>(ids.size());
    sl_sampling_default(&d.sampling);
    d.sampling.temperature = 0;
    d.sampling.max_tokens = n_out;
    d.sampling.ignore_eos = true;
    MUST(sl_request_submit(eng, &d, &req, &err));
    return req;
}

static result finish(struct sl_request *req)
{
    result r = {-1, 0, 0, 0, 0};
    struct sl_chunk c;
    struct sl_usage u;
    while (!sl_request_done(req)) {
        sl_request_wait(req, 100);
        while (sl_request_read(req, &c) == 1) {
            if (c.finish == SL_FINISH_ERROR) {
                printf("bench_pages: %s\n", sl_request_error(req)->msg);
                exit(1);
            }
            if (c.n_tokens > 0 && r.first_id < 0)
                r.first_id = c.tokens[0].id;
        }
    }
    sl_request_usage(req, &u);
    r.n_cached = u.n_cached;
    r.n_out = u.n_output;
    r.ttft = static_cast<double>(u.t_first_ns - u.t_submit_ns) * 1e-9;
    r.decode_s = static_cast<double>(u.t_last_ns - u.t_first_ns) * 1e-9;
    sl_request_release(req);
    return r;
}

/* Tokens a second of the slowest of some sequences, all of them together. */
static double decode(struct sl_engine *eng, uint64_t seed, int32_t n_vocab)
{
    std::vector<struct sl_request *> reqs;
    double most = 0;
    for (int i = 0; i < N_DECODE; i++)
        reqs.push_back(
            submit(eng, random_prompt(DECODE_PROMPT, seed + static_cast<uint64_t>(i), n_vocab),
                   DECODE_OUT));
    for (struct sl_request *req : reqs)
        most = std::max(most, finish(req).decode_s);
    return N_DECODE * (DECODE_OUT - 1) / most;
}

/* The same beside a prompt every PACE_MS, one of these in turn. */
static double decode_beside(struct sl_engine *eng, uint64_t seed, int32_t n_vocab,
                            const std::vector<const std::vector<int32_t> *> &prompts, int *n)
{
    std::atomic<bool> stop(false);
    std::thread other([&] {
        for (size_t i = 0; !stop; i++) {
            const double next = now() + PACE_MS * 1e-3;
            (void)finish(submit(eng, *prompts[i % prompts.size()], 1));
            ++*n;
            while (!stop && now() < next)
                usleep(500);
        }
    });
    const double got = decode(eng, seed, n_vocab);
    stop = true;
    other.join();
    return got;
}

static struct sl_engine *open_engine(const char *path, int32_t n_tokens, float host_gib)
{
    struct sl_engine_config cfg = {};
    struct sl_engine *eng = nullptr;
    cfg.model = path;
    cfg.device = "cuda:0";
    cfg.max_model_len = n_tokens + 256;
    cfg.max_num_seqs = 16;
    cfg.kv_cache_bytes = 0;
    cfg.kv_offloading_size = host_gib;
    /* one prompt and what decodes beside it, not two prompts; 128 KB a token of an 8B shape in f16,
     * which other shapes correct below */
    cfg.kv_cache_bytes = static_cast<uint64_t>(n_tokens + 8192) * (UINT64_C(128) << 10);
    const double t = now();
    MUST(sl_engine_create(&cfg, &eng, &err));
    printf("ready in %.1f s with %.1f GB of host memory for pages; %llu bytes of KV a token, %d "
           "blocks\n",
           now() - t, (double)host_gib * 1.073741824,
           static_cast<unsigned long long>(sl_engine_info(eng)->kv_bytes_per_token),
           sl_engine_info(eng)->n_pages);
    return eng;
}

static void tell_tiers(struct sl_engine *eng)
{
    struct sl_stats s;
    sl_engine_stats(eng, &s);
    printf(
        "  %llu of %llu tokens came from host memory; %llu pages stored, %llu dropped; %llu heap "
        "calls in steps\n",
        static_cast<unsigned long long>(s.tier_hits),
        static_cast<unsigned long long>(s.tier_queries),
        static_cast<unsigned long long>(s.kv_tiers[0].stored),
        static_cast<unsigned long long>(s.kv_tiers[0].dropped),
        static_cast<unsigned long long>(s.step_mallocs));
}

static void bench_model(const char *path, int32_t n_tokens)
{
    const double gib = 3.6 * n_tokens * 131072.0 / 1073741824.0;
    struct sl_engine *eng = open_engine(path, n_tokens, 0);
    const int32_t n_vocab = sl_engine_info(eng)->n_vocab;
    (void)decode(eng, 1, n_vocab);
    const double without = std::max(decode(eng, 100, n_vocab), decode(eng, 200, n_vocab));
    sl_engine_destroy(eng);

    eng = open_engine(path, n_tokens, static_cast<float>(gib));
    (void)decode(eng, 1, n_vocab);
    const double alone = std::max(decode(eng, 300, n_vocab), decode(eng, 400, n_vocab));
    /* Three prompts, of which the pool has room for one and a bit: none of one is left there when
     * its turn comes again. */
    std::vector<int32_t> prompts[3];
    result r[9];
    struct sl_stats before = {}, after = {};
    for (int i = 0; i < 9; i++) {
        if (i < 3)
            prompts[i] = random_prompt(n_tokens, 7 + static_cast<uint64_t>(i), n_vocab);
        if (i == 3)
            sl_engine_stats(eng, &before);
        r[i] = finish(submit(eng, prompts[i % 3], 1));
        usleep(300000);
    }
    sl_engine_stats(eng, &after);
    const double computed = std::min({r[0].ttft, r[1].ttft, r[2].ttft});
    double loaded = 1e9, worst = 0;
    bool same = true;
    for (int i = 3; i < 9; i++) {
        loaded = std::min(loaded, r[i].ttft);
        worst = std::max(worst, r[i].ttft);
        same = same && r[i].first_id == r[i % 3].first_id;
    }
    const double each = static_cast<double>(after.tier_hits - before.tier_hits) / 6;
    printf("first token of %d tokens: computed %.1f ms; %.0f of them from host memory %.1f to %.1f "
           "ms: ratio %.3f (bar 0.1), %.1f GB/s; same tokens: %s\n",
           n_tokens, computed * 1e3, each, loaded * 1e3, worst * 1e3, worst / computed,
           each * static_cast<double>(sl_engine_info(eng)->kv_bytes_per_token) / loaded * 1e-9,
           same ? "yes" : "NO");
    tell_tiers(eng);

    /* Requests at the same rate whose prompts are found in the pool cost what they compute. */
    int n_found = 0, n_loads = 0;
    (void)finish(submit(eng, prompts[0], 1));
    const double found = decode_beside(eng, 500, n_vocab, {&prompts[0]}, &n_found);
    const double beside =
        decode_beside(eng, 600, n_vocab, {&prompts[0], &prompts[1], &prompts[2]}, &n_loads);
    printf("decode of %d sequences, tokens/s: no store %.0f, with a store %.0f (%+.1f %%); beside "
           "prompts of %d tokens every %d ms: %d found in the pool %.0f, %d from host memory %.0f "
           "(%+.1f %%)\n",
           N_DECODE, without, alone, 100 * (alone / without - 1), n_tokens, PACE_MS, n_found, found,
           n_loads, beside, 100 * (beside / found - 1));
    tell_tiers(eng);
    sl_engine_destroy(eng);
}

int main(int argc, char **argv)
{
    setvbuf(stdout, nullptr, _IOLBF, 0);
    if (argc < 2)
        bench_copies();
    else
        bench_model(argv[1], argc > 2 ? atoi(argv[2]) : 32768);
    return 0;
}
