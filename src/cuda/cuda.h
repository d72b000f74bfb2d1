/* SPDX-License-Identifier: MIT
 * cuda.h - the backend for an NVIDIA GPU of compute capability 9.0. No CUDA type leaves this
 * folder.
 *
 * The driver is looked for at run time: without one, or in a build without nvcc, there are 0
 * devices and sl_cuda_create says why.
 */
#ifndef SL_CUDA_CUDA_H
#define SL_CUDA_CUDA_H

#ifdef __cplusplus
extern "C" {
#endif
#include "ops/device.h"

struct sl_cuda_config {
    int device;         /* ordinal */
    int n_copy_threads; /* threads that read a file into pinned memory while loading, the caller
                           among them; 0: half the cores, at most 8 */
    bool act_bf16;      /* products of FP8 weights take BF16 activations, whatever the model says */
};

/* Devices of any kind; 0 without a driver, and then it costs a tenth of a millisecond. */
int sl_cuda_count(void);
/* Ordinal of the first device this build has kernels for; -1: none. */
int sl_cuda_find(void);
int sl_cuda_find_nth(int nth); /* likewise the nth of those, from 0 on */
/* Errors: SL_EUNSUPPORTED no such device, or one of another compute capability, or no driver;
 * SL_ENOMEM; SL_EDEVICE. */
SL_MUST_CHECK int sl_cuda_create(const struct sl_cuda_config *cfg, struct sl_backend **out,
                                 struct sl_error *err);

/* What n_ranks backends of this process share, each on a GPU of its own: memory that the others
 * reach over NVLink. backends[i] is rank i's, and nothing runs on them. room_bytes: of each of a
 * rank's two rooms (struct sl_rank.room), which the comm owns. Errors: SL_EUNSUPPORTED names two
 * devices without peer access, or one device given twice; SL_ENOMEM; SL_EDEVICE.
 *
 * Operations on a comm are enqueued by a thread for each rank. A kernel of one rank waits on its
 * GPU for the others'; a call of the driver that waits for a GPU (module loading, cudaMalloc,
 * cudaFree) while it holds what the other thread's calls need would never end: so kernels that such
 * a step has are loaded before the first one (CUDA_MODULE_LOADING=EAGER, before the first call of
 * CUDA), or by a step of the same kind that has been waited for. A kernel that has waited for 10 s
 * gives up: the rank's steps fail with SL_EDEVICE and name the rank that did not come.
 *
 * Two gathers in a row must not have their parts in the same room: so every forward begins with the
 * same struct sl_rank.turn and has an even number of gathers, or ends with share_ids
 * or best_ids. */
SL_MUST_CHECK int sl_cuda_comm_create(struct sl_backend *const *backends, int n_ranks,
                                      size_t room_bytes, struct sl_comm **out,
                                      struct sl_error *err);
void sl_cuda_comm_rooms(const struct sl_comm *c, int rank, void *rooms[2]);
/* When no backend has work enqueued, and before they are destroyed. NULL is fine. */
void sl_cuda_comm_destroy(struct sl_comm *c);

/* What n stages of a pipeline share (comm/pipe.cu): stages[i] is the backend of the i-th, each on a
 * GPU of its own. A step of a stage begins with the rows of row_bytes that the one before has left
 * for its tokens, at most max_tokens; what the last one chooses, at most max_logits ids, comes to
 * the first, where the next step of the same struct sl_batch.slot finds it. All of it is ordered by
 * events between the streams of the GPUs: neither the host waits for it, nor a kernel.
 * Before the first step sl_cuda_pipe_stream says where a stage's rows are. Errors: as above. */
struct sl_pipe;
SL_MUST_CHECK int sl_cuda_pipe_create(struct sl_backend *const *stages, int n, size_t row_bytes,
                                      int32_t max_tokens, int32_t max_logits, struct sl_pipe **out,
                                      struct sl_error *err);
void sl_cuda_pipe_stream(struct sl_pipe *p, int stage, void *rows);
/* Device memory of a stage that has one before it. */
uint64_t sl_cuda_pipe_bytes(size_t row_bytes, int32_t max_tokens);
/* When nothing runs, and before the backends are destroyed. NULL is fine. */
void sl_cuda_pipe_destroy(struct sl_pipe *p);

/* measure.cu: for reports about a machine. False, or 0: it cannot be found out. */
struct sl_cuda_facts {
    char pci[16]; /* 0000:1b:00.0 */
    bool served;  /* this build has kernels for it */
};
struct sl_cuda_rates {         /* bytes per second */
    double memory;             /* read and written by copies inside of it */
    double from_host, to_host; /* of pinned memory */
};
bool sl_cuda_facts(int device, struct sl_cuda_facts *out);
bool sl_cuda_measure(int device, size_t n_bytes, struct sl_cuda_rates *out);
/* Copies from one device's memory to another's, which it can reach. */
double sl_cuda_measure_pair(int from, int to, size_t n_bytes);

#ifdef __cplusplus
}
#endif

#endif
