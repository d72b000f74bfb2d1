/* SPDX-License-Identifier: MIT
 * comm.h - what the ranks of a comm share: for each a piece of its GPU's memory that the others
 * write to and read from over NVLink.
 *
 * A piece holds, in this order: the state of the rank; for each parity of the gathers' numbers and
 * each rank a head, in which that rank says what it has; likewise the lines of small parts; the two
 * rooms.
 */
#ifndef SL_CUDA_COMM_H
#define SL_CUDA_COMM_H

#include "cuda/device.h"

#define SL_COMM_SMALL (512u << 10) /* bytes of a part that fit in lines */

struct sl_comm {
    int n_ranks;
    bool alike;           /* GPUs have as many SMs, so that they choose the same kernels */
    int most_blocks;      /* of a kernel */
    uint32_t small_bytes; /* parts of up to so many bytes go as lines, at most SL_COMM_SMALL */
    size_t room_bytes, piece_bytes;
    struct sl_cuda *rank[SL_MAX_RANKS];
    uint8_t *piece[SL_MAX_RANKS];
    uint32_t *lost; /* pinned, [SL_MAX_RANKS]: 0, or 1 + the rank that this one waited for */
    uint64_t bound_ns;
};

/* The bound of a wait, and from which size on parts are read where they lie: for tests and
 * measurements, before the first gather. */
void sl_cuda_comm_tune(struct sl_comm *c, uint64_t bound_ns, uint32_t small_bytes);
/* Makes the memory of `to` reachable for kernels and copies of `from`, the current device. */
int sl_cuda_reach(const struct sl_cuda *from, const struct sl_cuda *to, struct sl_error *err);
/* Records that another rank did not come, if a kernel of this one has given up. */
void sl_cuda_comm_check(struct sl_cuda *cu);

/* A gather on its own (all_gather: gemm/meet.cu). */
void sl_cuda_gather_run(struct sl_cuda *cu, const struct sl_op_all_gather *op);
/* Of what products have written to all ranks: they meet. */
void sl_cuda_gather_there(struct sl_cuda *cu, const struct sl_rank *rank);

extern "C" void sl_cuda_share_ids(struct sl_backend *be, struct sl_rank *rank, int32_t n);
/* sample/sample_best.cu */
struct sl_best_ids;
extern "C" void sl_cuda_best_ids(struct sl_backend *be, const struct sl_best_ids *a);

#endif
