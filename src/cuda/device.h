/* SPDX-License-Identifier: MIT
 * device.h - the inside of the CUDA backend, shared by its files: one GPU, one stream, its
 * workspaces and its first error.
 *
 * Engine thread only. Operations enqueue on the stream and never fail, wait or allocate; what goes
 * wrong is recorded once by sl_cuda_check and reported at the end of the step.
 */
#ifndef SL_CUDA_DEVICE_H
#define SL_CUDA_DEVICE_H

#ifdef __cplusplus
#include <pthread.h>
#include <sys/types.h>
extern "C" {
#endif
#include "base/check.h"
#include "base/err.h"
#include "base/sys.h"
#include "ops/ops.h"
#ifdef __cplusplus
}
#endif

#include <cuda_runtime.h>

/* What the step loop must not do, and how often steps went which way. Tests demand that the first
 * four stay as they were after start. */
struct sl_cuda_counts {
    uint64_t device_allocs;   /* device memory taken */
    uint64_t host_allocs;     /* pinned memory taken */
    uint64_t syncs;           /* waits for the whole stream */
    uint64_t late_waits;      /* a step, or an upload beside steps, waited for pinned memory */
    uint64_t eager, replayed; /* steps */
    uint64_t recorded, record_failures; /* recordings, made beside an eager step */
    uint64_t unrecorded;                /* eager for want of room for a recording */
    uint64_t routed;                    /* products for which the table of routes was searched */
};

#define SL_CUDA_ASKS   512  /* a power of two */
#define SL_CUDA_ROUTES 1024 /* likewise */

/* What the route of a product depends on (gemm/linear_route.cu). */
struct sl_lin_shape {
    int32_t n, n_k64, n_segs, seg_k64;
    int32_t n_rows[SL_MAX_LINEAR_PARTS];
    uint8_t layout, n_parts;
    uint8_t gated, mixed, vec_x;
    uint8_t zeros[3];
};

struct sl_lin_route; /* gemm/linear.h */

struct sl_cuda_kept_route {
    struct sl_lin_shape shape;
    const struct sl_lin_route *route; /* NULL: none is kept here */
};

struct sl_cuda_fuse;   /* fuse.h */
struct sl_cuda_stager; /* load.cu */
struct sl_cuda_steps;  /* step.cu */
struct sl_comm;        /* comm/comm.h */
struct sl_pipe;        /* comm/pipe.h */

/* A workspace of its own for attention over what key heads have chosen (attention/chosen.cu), and
 * what the plan there is for, so that layers with and without a choice take turns in a step. */
struct sl_cuda_chosen {
    uint8_t *workspace;
    size_t workspace_bytes;
    int32_t block, n_top, n_kv_heads; /* block 0: there is no plan */
    int32_t plan_heads, plan_dim, plan_narrow;
};

struct sl_cuda {
    struct sl_backend base;
    int device; /* ordinal */
    int n_sms;
    size_t smem_max; /* bytes a block may have */
    cudaStream_t stream;
    cudaError_t error;      /* first failure, cudaSuccess: none */
    const char *error_what; /* a constant string */
    uint8_t *workspace;     /* partial results of attention; device memory, counters zeroed */
    size_t workspace_bytes;
    bool plan_settled; /* a kernel was enqueued behind the plan of attention: the next one may read
                          the plan before that one has ended */
    int32_t plan_heads, plan_kv_heads, plan_dim; /* what that plan is for */
    bool plan_whole;
    int32_t plan_narrow;       /* rows, as sl_attn_narrow_rows had it */
    int32_t plan_top;          /* 0, or it is for rows that see so many positions (sparse.cu) */
    bool plan_fp8, plan_skips; /* attention had pages of FP8, skip-softmax */
    /* For tests and benches, of which all choices have the same bits; 0: chosen by size. */
    int32_t attn_narrow;     /* most rows of a narrow tile of attention */
    int32_t delta_cols;      /* warps with columns in a block of the delta rule for prompts; -1:
                                prompts are prepared, not computed */
    float *lin_partial;      /* of products (linear.h): SL_LIN_PARTIAL_BYTES */
    uint32_t *lin_arrived;   /* SL_LIN_TILES */
    float *lin_mixed;        /* gate and up apart, lin_mixed_bytes */
    const int32_t *ids_prev; /* device: ids the step before chose */

    int32_t *ids;     /* device: where the sampler writes, [max_logits]; ids_prev is the same
                         array, read before it is written in a step */
    char name[64];    /* of the device */
    size_t own_bytes; /* device memory taken through sl_cuda_alloc now */
    struct sl_cuda_slab *slabs; /* of matrices (slab.h) */
    uint64_t weights_to_come;   /* bytes of matrices that are still to be made */
    struct sl_cuda_counts counts;
    const void *asks[SL_CUDA_ASKS]; /* kernels that may have smem_max (launch.cuh), hashed */
    struct sl_cuda_kept_route routes[SL_CUDA_ROUTES]; /* hashed by shape */
    struct sl_cuda_stager *stager;                    /* from the first upload on */
    struct sl_cuda_steps *steps;
    uint8_t *fp8_room; /* activations as FP8 (linear_w8a8.cu), once there is such a matrix */
    int64_t fp8_room_bytes;
    bool act_bf16;     /* activations stay BF16 */
    void *pack_buffer; /* while loading */
    size_t pack_bytes;
    int n_copy_threads;
    int64_t lin_mixed_bytes;              /* SL_LIN_MIXED_BYTES or more */
    const struct sl_lora_rows *lora_rows; /* whose rows lora_by_row has (lora.h); NULL: nobody's */
    const void *lora_by_row;
    const struct sl_comm *comm; /* of whose ranks this is one; NULL: of none */
    const void *spread; /* the part that a product has written to all ranks; NULL: there is none */
    struct sl_pipe *pipe; /* of whose stages this is one, namely this; NULL: none */
    int stage;
    struct sl_cuda_fuse *fuse;          /* in a step, where operations wait (fuse.h) */
    void (*settle)(struct sl_cuda *cu); /* enqueues what waits there; NULL: nothing does */
    struct sl_cuda_chosen chosen;
};

static inline struct sl_cuda *sl_cuda(struct sl_backend *be)
{
    return (struct sl_cuda *)be;
}

/* Records the first error. what: a constant string. */
static inline void sl_cuda_check(struct sl_cuda *cu, cudaError_t e, const char *what)
{
    if (e == cudaSuccess || cu->error != cudaSuccess)
        return;
    cu->error = e;
    cu->error_what = what;
}

#ifdef __cplusplus
extern "C" {
#endif
#define SL_OP(name) void sl_cuda_##name(struct sl_backend *be, const struct sl_op_##name *a);
#include "ops/ops.def"
#undef SL_OP

/* state/delta.cu */
size_t sl_cuda_delta_bytes(int32_t n_heads, int32_t k_dim, int32_t v_dim, bool by_row);
size_t sl_cuda_delta_room(int32_t n, int32_t n_heads, int32_t n_k_heads, int32_t k_dim,
                          bool by_row);

/* backend.cu. Makes the device current for this thread: what starts a backend need not be what runs
 * it. Every function that may be the first a thread calls does this; operations come after one. */
void sl_cuda_use(struct sl_cuda *cu);
/* Device memory, aligned to 256 bytes, not zeroed; NULL when exhausted, which records
 * no error. At start and while loading only: every call is counted. */
void *sl_cuda_alloc(struct sl_cuda *cu, size_t n_bytes);
void sl_cuda_free(struct sl_cuda *cu, void *p, size_t n_bytes);
/* SL_ENOMEM that says how much was wanted for what, how much is free, and on which device. */
int sl_cuda_no_memory(struct sl_cuda *cu, size_t wanted, const char *what, struct sl_error *err);
/* 0, or SL_EDEVICE with the recorded call and what the runtime says about it, from then on always:
 * the device is lost. Only for want of memory it is SL_ENOMEM, once. */
int sl_cuda_report(struct sl_cuda *cu, struct sl_error *err);

/* load.cu. Copies host memory, mapped files included, to the device as if enqueued on cu->stream:
 * after everything enqueued there before, before everything enqueued there later. src may be reused
 * when it returns; errors are recorded. */
void sl_cuda_stage(struct sl_cuda *cu, void *dst_device, const void *src_host, size_t n);
/* A device buffer of at least n bytes that holds rows of a file until a kernel on cu->stream has
 * packed them; the same one every time. NULL when exhausted. Gone after load_end. */
void *sl_cuda_pack_buffer(struct sl_cuda *cu, size_t n_bytes);
#ifdef __cplusplus
}
#endif

#endif
