/* SPDX-License-Identifier: MIT
 * The CUDA backend: one device, its memory, its first error, and the tables of functions. The
 * operations are in files of their own.
 */
#include "cuda/cuda.h"

#include "cuda/attention/attention.h"
#include "cuda/comm/comm.h"
#include "cuda/gemm/linear.h"
#include "cuda/gemm/weight.h"
#include "cuda/sample/sample.h"
#include "cuda/slab.h"
#include "cuda/step/step.h"

#include <stdio.h>
#include <string.h>

#define CC_MAJOR         9
#define CC_MINOR         0
#define MAX_HOST_THREADS 7 /* beside the caller's, as copies have (load.cu) */

/* ------------------------------------------------------------------ memory and errors */

void sl_cuda_use(struct sl_cuda *cu)
{
    sl_cuda_check(cu, cudaSetDevice(cu->device), "cudaSetDevice");
}

void *sl_cuda_alloc(struct sl_cuda *cu, size_t n_bytes)
{
    void *p = NULL;
    sl_cuda_use(cu);
    cudaError_t e = cudaMalloc(&p, SL_MAX(n_bytes, static_cast<size_t>(1)));
    if (e == cudaSuccess) {
        cu->counts.device_allocs++;
        cu->own_bytes += n_bytes;
        return p;
    }
    if (e == cudaErrorMemoryAllocation)
        cudaGetLastError(); /* the caller says so; the device is well */
    else
        sl_cuda_check(cu, e, "cudaMalloc");
    return NULL;
}

void sl_cuda_free(struct sl_cuda *cu, void *p, size_t n_bytes)
{
    if (p == NULL)
        return;
    sl_cuda_use(cu);
    cu->own_bytes -= n_bytes;
    sl_cuda_check(cu, cudaFree(p), "cudaFree");
}

int sl_cuda_no_memory(struct sl_cuda *cu, size_t wanted, const char *what, struct sl_error *err)
{
    size_t free_bytes = 0, total = 0;
    if (cu->error != cudaSuccess)
        return sl_cuda_report(cu, err);
    if (cudaMemGetInfo(&free_bytes, &total) != cudaSuccess)
        cudaGetLastError();
    return sl_fail(err, SL_ENOMEM,
                   "cuda:%d (%s): out of memory for %s: wanted %.1f MB, free %.1f MB of %.1f MB",
                   cu->device, cu->name, what, static_cast<double>(wanted) / 1e6,
                   static_cast<double>(free_bytes) / 1e6, static_cast<double>(total) / 1e6);
}

int sl_cuda_report(struct sl_cuda *cu, struct sl_error *err)
{
    sl_cuda_comm_check(cu);
    cudaError_t e = cu->error;
    if (e == cudaSuccess)
        return 0;
    int code = SL_EDEVICE;
    if (e == cudaErrorMemoryAllocation) {
        code = SL_ENOMEM;
        cu->error = cudaSuccess;
        cudaGetLastError();
    }
    return sl_fail(err, code, "cuda:%d (%s): %s: %s", cu->device, cu->name, cu->error_what,
                   cudaGetErrorString(e));
}

/* ------------------------------------------------------------------ functions of struct
 * sl_backend_vt */

static void *backend_alloc(struct sl_backend *be, size_t n_bytes)
{
    struct sl_cuda *cu = sl_cuda(be);
    void *p = sl_cuda_alloc(cu, n_bytes);
    if (p != NULL)
        sl_cuda_check(cu, cudaMemsetAsync(p, 0, n_bytes, cu->stream), "cudaMemsetAsync");
    return p;
}

static void backend_free(struct sl_backend *be, void *p, size_t n_bytes)
{
    sl_cuda_free(sl_cuda(be), p, n_bytes);
}

static void backend_upload(struct sl_backend *be, void *dst, const void *src, size_t n_bytes)
{
    sl_cuda_stage(sl_cuda(be), dst, src, n_bytes);
}

static const char *backend_isa(struct sl_backend *be)
{
    (void)be;
    return "sm_90a";
}

static int backend_n_threads(struct sl_backend *be)
{
    (void)be;
    return 1;
}

struct host_items {
    void (*fn)(void *arg, uint32_t item, int thread_idx);
    void *arg;
    uint32_t n, next; /* next by atomic operations */
};

static void *items_main(void *arg)
{
    struct host_items *h = static_cast<struct host_items *>(arg);
    for (;;) {
        uint32_t i = __atomic_fetch_add(&h->next, 1u, __ATOMIC_RELAXED);
        if (i >= h->n)
            return NULL;
        h->fn(h->arg, i, 0);
    }
}

/* What is left for the host between steps is small, and the caller's thread does it. Before there
 * are steps, weights are loaded, and repacking a matrix is worth threads of its own. */
static void backend_run_items(struct sl_backend *be,
                              void (*fn)(void *arg, uint32_t item, int thread_idx), void *arg,
                              uint32_t n_items)
{
    struct sl_cuda *cu = sl_cuda(be);
    struct host_items h = {fn, arg, n_items, 0};
    pthread_t threads[MAX_HOST_THREADS];
    int n = 0, want = SL_MIN(cu->n_copy_threads - 1, MAX_HOST_THREADS);
    if (cu->steps == NULL && n_items > 1)
        while (n < want && sl_thread_create(&threads[n], items_main, &h, "sl-load", NULL) == 0)
            n++;
    items_main(&h);
    for (int i = 0; i < n; i++)
        pthread_join(threads[i], NULL);
}

static void backend_destroy(struct sl_backend *be)
{
    struct sl_cuda *cu = sl_cuda(be);
    if (cu->stream != NULL)
        sl_cuda_use(cu);
    sl_cuda_steps_deinit(cu);
    sl_cuda_stager_destroy(cu);
    sl_cuda_free(cu, cu->pack_buffer, cu->pack_bytes);
    sl_cuda_free(cu, cu->fp8_room, SL_LIN_FP8_BYTES);
    if (cu->stream != NULL)
        cudaStreamDestroy(cu->stream);
    cudaGetLastError();
    sl_free(cu);
}

/* ------------------------------------------------------------------ functions of struct
 * sl_device_vt */

static int download(struct sl_backend *be, void *dst, const void *src, size_t n_bytes,
                    struct sl_error *err)
{
    struct sl_cuda *cu = sl_cuda(be);
    sl_cuda_use(cu);
    cu->counts.syncs++;
    sl_cuda_check(cu, cudaMemcpyAsync(dst, src, n_bytes, cudaMemcpyDeviceToHost, cu->stream),
                  "cudaMemcpyAsync to the host");
    sl_cuda_check(cu, cudaStreamSynchronize(cu->stream), "cudaStreamSynchronize");
    return sl_cuda_report(cu, err);
}

static int memory(struct sl_backend *be, struct sl_device_memory *out, struct sl_error *err)
{
    struct sl_cuda *cu = sl_cuda(be);
    size_t free_bytes = 0, total = 0;
    *out = {};
    sl_cuda_use(cu);
    sl_cuda_check(cu, cudaMemGetInfo(&free_bytes, &total), "cudaMemGetInfo");
    out->total_bytes = total;
    out->free_bytes = free_bytes;
    out->own_bytes = cu->own_bytes;
    return sl_cuda_report(cu, err);
}

static bool supports(struct sl_backend *be, const struct sl_heads *h, enum sl_dtype kv_dtype)
{
    (void)be;
    if (h->latent == SL_HEADS_ROWS)
        return h->n_kv_heads == 1 && sl_cuda_rows_support(h->head_dim, kv_dtype);
    if (h->latent != 0)
        return h->n_kv_heads == 1 &&
               sl_cuda_latent_supports(h->head_dim, h->v_dim, h->n_heads, kv_dtype);
    return sl_cuda_attention_pages(kv_dtype, h->head_dim) && h->n_kv_heads > 0 &&
           h->n_heads % h->n_kv_heads == 0 && h->v_dim == h->head_dim &&
           sl_cuda_attention_supports(h->head_dim, h->n_heads / h->n_kv_heads);
}

static size_t sample_scratch(struct sl_backend *be, int32_t max_n, int32_t n_vocab)
{
    (void)be;
    return sl_cuda_sample_scratch(max_n, n_vocab);
}

/* In the order of the structs: C++17 has no designators, and no two neighbours have one type. */
static const struct sl_device_vt device_vtable = {
    supports,
    sample_scratch,
    sl_cuda_sample,
    sl_cuda_weights_to_come,
    sl_cuda_load_end,
    download,
    memory,
    sl_cuda_steps_bytes,
    sl_cuda_steps_init,
    sl_cuda_extra,
    sl_cuda_extra_host,
    sl_cuda_step,
    sl_cuda_choose,
    sl_cuda_wait,
    sl_cuda_times,
    sl_cuda_host_begin,
    sl_cuda_host_end,
    sl_cuda_forget,
    sl_cuda_share_ids,
    sl_cuda_best_ids,
    sl_cuda_to_record,
    sl_cuda_record,
    sl_cuda_pin,
    sl_cuda_unpin,
    sl_cuda_number,
    sl_cuda_pages_init,
    sl_cuda_page_copy,
    sl_cuda_pages_follow,
    sl_cuda_pages_send,
    sl_cuda_pages_over,
    sl_cuda_pages_await,
};

/* Of the optional operations those that there are. */
#define HAS_layer_inputs         sl_cuda_layer_inputs
#define HAS_cluster_logits       sl_cuda_cluster_logits
#define HAS_chain_state          sl_cuda_chain_state
#define HAS_hyper_read           sl_cuda_hyper_read
#define HAS_hyper_write          sl_cuda_hyper_write
#define HAS_turn_tails           sl_cuda_turn_tails
#define HAS_row_store            sl_cuda_row_store
#define HAS_compress             sl_cuda_compress
#define HAS_compressed_select    sl_cuda_compressed_select
#define HAS_compressed_attention sl_cuda_compressed_attention
#define HAS_mix_streams          nullptr
#define HAS_correct_streams      nullptr
#define HAS_match_rms            nullptr
#define HAS_rglru                sl_cuda_rglru
#define HAS_token_shift          sl_cuda_token_shift
#define HAS_wkv7                 sl_cuda_wkv7
#define HAS_wkv7_out             sl_cuda_wkv7_out
#define HAS_cut_gate             nullptr
#define HAS_pass_experts         nullptr
#define HAS_heads_linear         nullptr
#define HAS_latent_store         nullptr
#define HAS_index_store          sl_cuda_index_store
#define HAS_index_select         sl_cuda_index_select
#define HAS_sparse_attention     sl_cuda_sparse_attention
#define HAS_page_bounds          sl_cuda_page_bounds
#define HAS_page_attention       sl_cuda_page_attention
#define HAS_sum_parts            nullptr /* all_reduce adds */
#define HAS_all_gather           sl_cuda_all_gather
#define HAS_all_reduce           sl_cuda_all_reduce

static const struct sl_backend_vt vtable = {
    "cuda",
#define SL_OP(name)          sl_cuda_##name,
#define SL_OP_OPTIONAL(name) HAS_##name,
#include "ops/ops.def"
#undef SL_OP
    &device_vtable,
    SL_DTYPE_BF16,
    1u << SL_ACT_SILU | 1u << SL_ACT_GELU_TANH, /* at the end of a tile others cost registers */
    backend_alloc,
    backend_free,
    backend_upload,
    SL_DTYPE_F16, /* as fast as BF16, with three bits more */
    sl_cuda_delta_bytes,
    sl_cuda_delta_room,
    sl_cuda_weight_create,
    sl_cuda_weight_bytes,
    sl_cuda_weight_destroy,
    sl_cuda_stack_create,
    sl_cuda_stack_destroy,
    sl_cuda_experts_bytes,
    nullptr, /* experts have fixed places */
    sl_cuda_weight_route,
    backend_isa,
    backend_n_threads,
    backend_run_items,
    backend_destroy,
};

/* ------------------------------------------------------------------ the device */

int sl_cuda_count(void)
{
    int n = 0;
    if (cudaGetDeviceCount(&n) != cudaSuccess) {
        cudaGetLastError();
        return 0;
    }
    return n;
}

static bool attribute(int device, cudaDeviceAttr attr, int *out)
{
    if (cudaDeviceGetAttribute(out, attr, device) == cudaSuccess)
        return true;
    cudaGetLastError();
    return false;
}

static bool capability(int device, int *major, int *minor)
{
    return attribute(device, cudaDevAttrComputeCapabilityMajor, major) &&
           attribute(device, cudaDevAttrComputeCapabilityMinor, minor);
}

int sl_cuda_find(void)
{
    return sl_cuda_find_nth(0);
}

int sl_cuda_find_nth(int nth)
{
    int n = sl_cuda_count(), major, minor;
    for (int i = 0; i < n; i++)
        if (capability(i, &major, &minor) && major == CC_MAJOR && minor == CC_MINOR && nth-- == 0)
            return i;
    return -1;
}

static int refuse(const struct sl_cuda_config *cfg, struct sl_error *err)
{
    int n = 0;
    cudaError_t e = cudaGetDeviceCount(&n);
    if (e != cudaSuccess) {
        int driver = 0, runtime = 0;
        cudaDriverGetVersion(&driver);
        cudaRuntimeGetVersion(&runtime);
        cudaGetLastError();
        if (driver == 0)
            return sl_fail(err, SL_EUNSUPPORTED, "cuda:%d: this machine has no NVIDIA driver",
                           cfg->device);
        return sl_fail(err, SL_EUNSUPPORTED,
                       "cuda:%d: %s (the driver is for CUDA %d.%d, this build for %d.%d)",
                       cfg->device, cudaGetErrorString(e), driver / 1000, driver % 1000 / 10,
                       runtime / 1000, runtime % 1000 / 10);
    }
    if (cfg->device < 0 || cfg->device >= n)
        return sl_fail(err, SL_EUNSUPPORTED, "cuda:%d: this machine has %d CUDA device%s",
                       cfg->device, n, n == 1 ? "" : "s");
    return 0;
}

static int open_device(struct sl_cuda *cu, struct sl_error *err)
{
    int major = 0, minor = 0, smem = 0;
    cudaDeviceProp prop;
    if (cudaGetDeviceProperties(&prop, cu->device) == cudaSuccess)
        snprintf(cu->name, sizeof cu->name, "%.63s", prop.name);
    if (!capability(cu->device, &major, &minor) || major != CC_MAJOR || minor != CC_MINOR)
        return sl_fail(err, SL_EUNSUPPORTED,
                       "cuda:%d (%s) has compute capability %d.%d: this build has kernels for "
                       "%d.%d (Hopper) only",
                       cu->device, cu->name, major, minor, CC_MAJOR, CC_MINOR);
    sl_cuda_use(cu);
    sl_cuda_check(cu,
                  cudaDeviceGetAttribute(&cu->n_sms, cudaDevAttrMultiProcessorCount, cu->device),
                  "cudaDeviceGetAttribute");
    sl_cuda_check(
        cu, cudaDeviceGetAttribute(&smem, cudaDevAttrMaxSharedMemoryPerBlockOptin, cu->device),
        "cudaDeviceGetAttribute");
    cu->smem_max = static_cast<size_t>(smem);
    if (cu->error == cudaSuccess)
        sl_cuda_check(cu, cudaStreamCreateWithFlags(&cu->stream, cudaStreamNonBlocking),
                      "cudaStreamCreateWithFlags");
    return sl_cuda_report(cu, err);
}

int sl_cuda_create(const struct sl_cuda_config *cfg, struct sl_backend **out, struct sl_error *err)
{
    *out = NULL;
    int rc = refuse(cfg, err);
    if (rc != 0)
        return rc;
    struct sl_cuda *cu = static_cast<struct sl_cuda *>(sl_calloc(1, sizeof(struct sl_cuda)));
    if (cu == NULL)
        return sl_fail(err, SL_ENOMEM, "cuda:%d: out of memory for the backend", cfg->device);
    cu->device = cfg->device;
    cu->act_bf16 = cfg->act_bf16;
    cu->n_copy_threads =
        cfg->n_copy_threads > 0 ? cfg->n_copy_threads : SL_MAX(SL_MIN(sl_cpu_count() / 2, 8), 1);
    cu->base.vt = &vtable;
    rc = open_device(cu, err);
    if (rc != 0) {
        backend_destroy(&cu->base);
        return rc;
    }
    *out = &cu->base;
    return 0;
}
