/* SPDX-License-Identifier: MIT
 * Stages of a pipeline: copies between GPUs, ordered by events between their streams. They stand
 * outside of recorded steps, since an inbox and a slot change from step to step. The host enqueues
 * a step on the first stage, then on the second, and so on; so an event that a stream is made to
 * wait for was recorded for the right step, or never, which is no wait.
 *
 * Few rows are copied by a kernel, as a copy engine takes longer to begin and to be waited for. Of
 * one row of 4,096 floats, 16 KB, two such hand-overs and one of ids were 120 us in a step of 4.2
 * ms by copy engines (bench/results/pipeline-h200.txt).
 */
#include "cuda/comm/pipe.h"

#include "cuda/comm/comm.h"
#include "cuda/cuda.h"
#include "cuda/ptx.cuh"

#define PIPE_ALIGN   ((size_t)256)
#define PIPE_THREADS 256
#define PIPE_FEW     (4u << 20) /* bytes that a kernel copies */

struct pipe_args {
    const uint32_t *from;
    uint32_t *to;
    uint32_t n, n4; /* words; of those that are copied by four, which begin at 16 bytes, so many */
};

static __global__ void __launch_bounds__(PIPE_THREADS)
    pipe_copy_kernel(const __grid_constant__ pipe_args a)
{
    const uint32_t stride = gridDim.x * PIPE_THREADS;
    const uint32_t first = blockIdx.x * PIPE_THREADS + threadIdx.x;
    sl_grid_wait();
    for (uint32_t i = first; i < a.n4; i += stride)
        reinterpret_cast<uint4 *>(a.to)[i] = reinterpret_cast<const uint4 *>(a.from)[i];
    for (uint32_t i = 4 * a.n4 + first; i < a.n; i += stride)
        a.to[i] = a.from[i];
}

static struct sl_pipe_stage *stage_of(struct sl_cuda *cu)
{
    SL_ASSERT(cu->pipe != NULL && cu->pipe->stage[cu->stage].cu == cu);
    return &cu->pipe->stage[cu->stage];
}

static void wait_for(struct sl_cuda *cu, cudaEvent_t event)
{
    sl_cuda_check(cu, cudaStreamWaitEvent(cu->stream, event, 0), "cudaStreamWaitEvent");
}

static void record(struct sl_cuda *cu, cudaEvent_t event)
{
    sl_cuda_check(cu, cudaEventRecord(event, cu->stream), "cudaEventRecord of a stage");
}

/* It begins when all before it has ended: what it waits for may be another GPU's. */
static void copy_few(struct sl_cuda *cu, const struct pipe_args &a)
{
    const uint32_t blocks = SL_CEIL_DIV(a.n, 16u * PIPE_THREADS);
    cudaLaunchConfig_t config = {};
    config.gridDim = dim3(SL_MAX(SL_MIN(blocks, static_cast<uint32_t>(cu->n_sms)), 1u));
    config.blockDim = dim3(PIPE_THREADS);
    config.stream = cu->stream;
    sl_cuda_check(cu, cudaLaunchKernelEx(&config, pipe_copy_kernel, a), "a copy between stages");
}

static void copy(struct sl_cuda *cu, void *to, const void *from, size_t n, const char *what)
{
    const bool whole =
        ((reinterpret_cast<uintptr_t>(to) | reinterpret_cast<uintptr_t>(from)) & 15) == 0;
    const uint32_t words = static_cast<uint32_t>(n / sizeof(uint32_t));
    SL_ASSERT(n % sizeof(uint32_t) == 0);
    if (cu->error != cudaSuccess)
        return;
    if (n <= PIPE_FEW)
        copy_few(cu, {static_cast<const uint32_t *>(from), static_cast<uint32_t *>(to), words,
                      whole ? words / 4 : 0});
    else
        sl_cuda_check(cu, cudaMemcpyAsync(to, from, n, cudaMemcpyDeviceToDevice, cu->stream), what);
}

static bool names_ids(const struct sl_batch *batch)
{
    for (int32_t i = 0; i < batch->n_tokens; i++)
        if (batch->tokens[i] < 0)
            return true;
    return false;
}

void sl_cuda_pipe_await(struct sl_cuda *cu, const struct sl_batch *batch)
{
    struct sl_pipe *p = cu->pipe;
    const struct sl_pipe_stage *s = stage_of(cu);
    SL_ASSERT(batch->slot >= 0 && batch->slot < SL_MAX_STAGES);
    if (cu->stage > 0)
        wait_for(cu, p->stage[cu->stage - 1].sent[s->n_steps % SL_PIPE_TURNS]);
    else if (names_ids(batch))
        wait_for(cu, p->chosen[batch->slot]);
}

void sl_cuda_pipe_take(struct sl_cuda *cu, int32_t n)
{
    const struct sl_pipe *p = cu->pipe;
    const struct sl_pipe_stage *s = stage_of(cu);
    const uint64_t turn = s->n_steps % SL_PIPE_TURNS;
    const size_t n_bytes = static_cast<size_t>(n) * p->row_bytes;
    if (cu->stage == 0)
        return;
    SL_ASSERT(s->rows != NULL && n_bytes <= p->inbox_bytes);
    copy(cu, s->rows, s->inbox + turn * p->inbox_bytes, n_bytes, "cudaMemcpyAsync from an inbox");
    record(cu, s->taken[turn]);
}

void sl_cuda_pipe_send(struct sl_cuda *cu, int32_t n)
{
    struct sl_pipe *p = cu->pipe;
    struct sl_pipe_stage *s = stage_of(cu);
    const uint64_t turn = s->n_steps++ % SL_PIPE_TURNS;
    const size_t n_bytes = static_cast<size_t>(n) * p->row_bytes;
    if (sl_pipe_is_last(p, cu->stage))
        return;
    const struct sl_pipe_stage *next = &p->stage[cu->stage + 1];
    SL_ASSERT(s->rows != NULL && n_bytes <= p->inbox_bytes);
    wait_for(cu, next->taken[turn]);
    copy(cu, next->inbox + turn * p->inbox_bytes, s->rows, n_bytes,
         "cudaMemcpyAsync to the next stage");
    record(cu, s->sent[turn]);
}

/* The first stage has read the ids that were there: what was chosen now comes of the step that read
 * them. */
void sl_cuda_pipe_chosen(struct sl_cuda *cu, int32_t slot, int32_t n)
{
    struct sl_pipe *p = cu->pipe;
    SL_ASSERT(sl_pipe_is_last(p, cu->stage) && cu->ids != NULL);
    SL_ASSERT(slot >= 0 && slot < SL_MAX_STAGES && n > 0 && n <= p->max_logits);
    copy(cu, p->ids + static_cast<ptrdiff_t>(slot) * p->max_logits, cu->ids,
         static_cast<size_t>(n) * sizeof(int32_t), "cudaMemcpyAsync to the first stage");
    record(cu, p->chosen[slot]);
}

/* ------------------------------------------------------------------ start and end */

static int make_event(struct sl_cuda *cu, cudaEvent_t *event, struct sl_error *err)
{
    const cudaError_t e = cudaEventCreateWithFlags(event, cudaEventDisableTiming);
    if (e == cudaSuccess)
        return 0;
    *event = NULL;
    sl_cuda_check(cu, e, "cudaEventCreateWithFlags");
    return sl_cuda_report(cu, err);
}

static int make_room(struct sl_pipe *p, int i, struct sl_error *err)
{
    struct sl_pipe_stage *s = &p->stage[i];
    const size_t ids = static_cast<size_t>(SL_MAX_STAGES * p->max_logits) * sizeof(int32_t);
    const size_t n_bytes = i == 0 ? ids : SL_PIPE_TURNS * p->inbox_bytes;
    uint8_t *room = static_cast<uint8_t *>(sl_cuda_alloc(s->cu, n_bytes));
    if (room == NULL)
        return sl_cuda_no_memory(s->cu, n_bytes, "what comes from the stage before", err);
    if (i == 0)
        p->ids = reinterpret_cast<int32_t *>(room);
    else
        s->inbox = room;
    sl_cuda_check(s->cu, cudaMemsetAsync(room, 0, n_bytes, s->cu->stream), "cudaMemsetAsync");
    return sl_cuda_report(s->cu, err);
}

static int begin(struct sl_pipe *p, int i, struct sl_error *err)
{
    struct sl_pipe_stage *s = &p->stage[i];
    int rc = 0;
    sl_cuda_use(s->cu);
    if (i + 1 < p->n)
        rc = sl_cuda_reach(s->cu, p->stage[i + 1].cu, err);
    else
        rc = sl_cuda_reach(s->cu, p->stage[0].cu, err);
    for (int k = 0; k < SL_PIPE_TURNS && rc == 0; k++) {
        rc = make_event(s->cu, &s->sent[k], err);
        if (rc == 0)
            rc = make_event(s->cu, &s->taken[k], err);
    }
    for (int k = 0; k < SL_MAX_STAGES && rc == 0 && i + 1 == p->n; k++)
        rc = make_event(s->cu, &p->chosen[k], err);
    return rc != 0 ? rc : make_room(p, i, err);
}

static size_t inbox_bytes(size_t row_bytes, int32_t max_tokens)
{
    return SL_ROUND_UP(static_cast<size_t>(max_tokens) * row_bytes, PIPE_ALIGN);
}

uint64_t sl_cuda_pipe_bytes(size_t row_bytes, int32_t max_tokens)
{
    return SL_PIPE_TURNS * inbox_bytes(row_bytes, max_tokens);
}

int sl_cuda_pipe_create(struct sl_backend *const *stages, int n, size_t row_bytes,
                        int32_t max_tokens, int32_t max_logits, struct sl_pipe **out,
                        struct sl_error *err)
{
    int rc = 0;
    SL_ASSERT(n > 1 && n <= SL_MAX_STAGES && max_tokens > 0 && max_logits > 0);
    struct sl_pipe *p = *out = static_cast<struct sl_pipe *>(sl_calloc(1, sizeof *p));
    if (p == NULL)
        return sl_fail(err, SL_ENOMEM, "out of memory for %d stages", n);
    p->n = n;
    p->row_bytes = row_bytes;
    p->inbox_bytes = inbox_bytes(row_bytes, max_tokens);
    p->max_logits = max_logits;
    for (int i = 0; i < n; i++)
        p->stage[i].cu = sl_cuda(stages[i]);
    for (int i = 0; i < n && rc == 0; i++)
        rc = begin(p, i, err);
    for (int i = 0; i < n && rc == 0; i++) {
        struct sl_cuda *cu = p->stage[i].cu;
        SL_ASSERT(cu->pipe == NULL && cu->steps == NULL);
        cu->pipe = p;
        cu->stage = i;
    }
    if (rc != 0) {
        sl_cuda_pipe_destroy(p);
        *out = NULL;
    }
    return rc;
}

void sl_cuda_pipe_stream(struct sl_pipe *p, int stage, void *rows)
{
    SL_ASSERT(stage >= 0 && stage < p->n && rows != NULL);
    p->stage[stage].rows = static_cast<uint8_t *>(rows);
    p->stage[stage].n_steps = 0; /* of all stages, before a first step */
}

static void end(struct sl_pipe *p, int i)
{
    struct sl_pipe_stage *s = &p->stage[i];
    const size_t ids = static_cast<size_t>(SL_MAX_STAGES * p->max_logits) * sizeof(int32_t);
    sl_cuda_use(s->cu);
    for (int k = 0; k < SL_PIPE_TURNS; k++) {
        if (s->sent[k] != NULL)
            cudaEventDestroy(s->sent[k]);
        if (s->taken[k] != NULL)
            cudaEventDestroy(s->taken[k]);
    }
    for (int k = 0; k < SL_MAX_STAGES && i + 1 == p->n; k++)
        if (p->chosen[k] != NULL)
            cudaEventDestroy(p->chosen[k]);
    if (i == 0)
        sl_cuda_free(s->cu, p->ids, ids);
    else
        sl_cuda_free(s->cu, s->inbox, SL_PIPE_TURNS * p->inbox_bytes);
    if (s->cu->pipe == p)
        s->cu->pipe = NULL;
}

void sl_cuda_pipe_destroy(struct sl_pipe *p)
{
    if (p == NULL)
        return;
    for (int i = 0; i < p->n; i++)
        end(p, i);
    sl_free(p);
}
