/* SPDX-License-Identifier: MIT
 * fuse.h - operations of few tokens that are fused into one kernel with the next one.
 *
 * Between two products of a decode step lie an addition to the residual stream and a norm: 1.5 us
 * and more, of which most is a launch and a way to L2 and back. So in a step (sl_cuda_fuse_begin to
 * _end) a product without adapters waits for the operation after it. If that is add_rmsnorm of its
 * output, it adds to the residual stream itself; or, where the blocks of its segments would meet in
 * memory, the norm's kernel adds their sums up. And a norm waits for the product after it, which
 * may norm its input itself; of FP8 activations the norm's kernel then makes the codes, of any
 * number of tokens, and adds first what is still to be added. Likewise a gated product of FP8
 * activations of many tokens waits for the product of its output, for which it then makes codes.
 * Between GPUs a gather or a sum of few tokens waits for the addition and norm behind it, which are
 * then its kernel's; the product that makes its part may leave sums to that, too (meet.cu).
 * What does not fit together is enqueued as it would have been: by the next operation of these
 * kinds, by any launch (sl_launch), at the end.
 *
 * H200, a layer of a step of 8B, sequences of 768 positions, us without and with this:
 *
 *                          1            4            16           64
 *   BF16              122.0 118.9  128.6 127.2  143.9 142.4  191.7 191.8
 *   FP8 both           72.8  71.9   82.4  78.2   89.8  88.0  146.8 143.4
 *   groups of 128      56.6  54.6   67.2  63.5   92.7  88.7  156.6 143.9
 *
 * The bits are those of the separate kernels. What is different: y of an add_rmsnorm that was fused
 * keeps what it had. The norm's output is written by the product. Of a gated activation that became
 * codes nothing is written: who reads it all the same is stopped.
 */
#ifndef SL_CUDA_FUSE_H
#define SL_CUDA_FUSE_H

#include "cuda/gemm/linear.h"
#include "cuda/gemm/meet.h"

struct sl_cuda_norm { /* out = rmsnorm(x), rows h apart */
    const float *x, *w;
    float eps;
    int32_t n, h;
    __nv_bfloat16 *out;
    const float *y; /* x += y first; NULL: nothing is added */
};

struct sl_cuda_fuse {
    bool has_gated, has_lin, has_norm; /* one of them, if any; or a product after a gated one */
    bool has_meet;                     /* alone, or after the product that makes its part */
    struct sl_cuda_meet meet;
    struct sl_lin gated, lin;
    const struct sl_lin_route *route; /* of lin */
    struct sl_cuda_norm norm;
    const void *unwritten; /* where a gated activation would be that became codes; or NULL */
};

/* Until _end, operations may wait in `room`. */
static inline void sl_cuda_fuse_begin(struct sl_cuda *cu, struct sl_cuda_fuse *room)
{
    SL_ASSERT(cu->settle == NULL);
    room->has_gated = room->has_lin = room->has_norm = room->has_meet = false;
    room->unwritten = NULL;
    cu->fuse = room;
}

static inline void sl_cuda_fuse_end(struct sl_cuda *cu)
{
    if (cu->settle != NULL)
        cu->settle(cu);
    cu->fuse = NULL;
}

/* rows.cu. Enqueues it. */
void sl_cuda_norm_run(struct sl_cuda *cu, const struct sl_cuda_norm *a);

struct sl_w8_quant; /* linear_w8a8.cuh */
/* The same, and what FP8 makes of its output. */
void sl_cuda_norm_codes(struct sl_cuda *cu, const struct sl_cuda_norm *a,
                        const struct sl_w8_quant *q);

/* A gated product waits for the product after it, if it may. */
bool sl_cuda_fuse_gated(struct sl_cuda *cu, const struct sl_lin *l);
/* linear_w8a8.cu. Whether it should. */
bool sl_cuda_linear_pair_pays(const struct sl_cuda *cu, const struct sl_lin *gated);
/* Enqueues both; behind has the output of gated, which is not written, as input. */
void sl_cuda_linear_pair(struct sl_cuda *cu, const struct sl_lin *gated,
                         const struct sl_lin *behind);
/* The gated activation was enqueued another way: it may be read again. */
void sl_cuda_fuse_written(struct sl_cuda *cu, const void *gated_out);

/* A product waits for the operation after it, if it may. */
bool sl_cuda_fuse_linear(struct sl_cuda *cu, const struct sl_lin *l);
/* What is left of x += y, of which y is what the product that waits makes. */
struct sl_cuda_sum {
    bool fused; /* else all of it is */
    struct sl_lin_left left;
    const float *bias; /* after the sums */
};

/* may_leave: sums of segments may be left to the caller. */
struct sl_cuda_sum sl_cuda_fuse_add(struct sl_cuda *cu, const struct sl_op_add_rmsnorm *a,
                                    bool may_leave);
/* A meeting of ranks waits for an addition to the residual stream, if it may. */
bool sl_cuda_fuse_meet(struct sl_cuda *cu, const struct sl_cuda_meet *m);
/* If what waits is a meeting that gives a's y, all is enqueued as one kernel: true. */
bool sl_cuda_fuse_meet_norm(struct sl_cuda *cu, const struct sl_cuda_norm *a);
/* The norm waits for a product, if it may. */
bool sl_cuda_fuse_norm(struct sl_cuda *cu, const struct sl_cuda_norm *a);
/* l's norm becomes the one that waits, if that makes l's input. For every product. */
void sl_cuda_fuse_take(struct sl_cuda *cu, struct sl_lin *l);

#endif
