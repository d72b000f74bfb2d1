/* SPDX-License-Identifier: MIT
 * none.c - cuda.h of a build without nvcc: no device, and a refusal that says so.
 */
#include "cuda/cuda.h"

int sl_cuda_count(void)
{
    return 0;
}

int sl_cuda_find(void)
{
    return -1;
}

int sl_cuda_find_nth(int nth)
{
    (void)nth;
    return -1;
}

int sl_cuda_create(const struct sl_cuda_config *cfg, struct sl_backend **out, struct sl_error *err)
{
    *out = NULL;
    return sl_fail(err, SL_EUNSUPPORTED,
                   "cuda:%d: this build has no CUDA (it was made without nvcc)", cfg->device);
}

/* No backend comes from here, so nobody has ranks to join. */
int sl_cuda_comm_create(struct sl_backend *const *backends, int n_ranks, size_t room_bytes,
                        struct sl_comm **out, struct sl_error *err)
{
    (void)backends;
    (void)room_bytes;
    *out = NULL;
    return sl_fail(err, SL_EUNSUPPORTED,
                   "%d ranks on GPUs: this build has no CUDA (it was made without nvcc)", n_ranks);
}

int sl_cuda_pipe_create(struct sl_backend *const *stages, int n, size_t row_bytes,
                        int32_t max_tokens, int32_t max_logits, struct sl_pipe **out,
                        struct sl_error *err)
{
    (void)stages;
    (void)row_bytes;
    (void)max_tokens;
    (void)max_logits;
    *out = NULL;
    return sl_fail(err, SL_EUNSUPPORTED,
                   "%d stages on GPUs: this build has no CUDA (it was made without nvcc)", n);
}

void sl_cuda_pipe_stream(struct sl_pipe *p, int stage, void *rows)
{
    (void)p;
    (void)stage;
    (void)rows;
}

uint64_t sl_cuda_pipe_bytes(size_t row_bytes, int32_t max_tokens)
{
    (void)row_bytes;
    (void)max_tokens;
    return 0;
}

void sl_cuda_pipe_destroy(struct sl_pipe *p)
{
    (void)p;
}

void sl_cuda_comm_rooms(const struct sl_comm *c, int rank, void *rooms[2])
{
    (void)c;
    (void)rank;
    rooms[0] = rooms[1] = NULL;
}

void sl_cuda_comm_destroy(struct sl_comm *c)
{
    (void)c;
}

bool sl_cuda_facts(int device, struct sl_cuda_facts *out)
{
    (void)device;
    (void)out;
    return false;
}

bool sl_cuda_measure(int device, size_t n_bytes, struct sl_cuda_rates *out)
{
    (void)device;
    (void)n_bytes;
    (void)out;
    return false;
}

double sl_cuda_measure_pair(int from, int to, size_t n_bytes)
{
    (void)from;
    (void)to;
    (void)n_bytes;
    return 0;
}
