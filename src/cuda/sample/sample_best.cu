/* SPDX-License-Identifier: MIT
 * The best token of each row where ranks have some columns of its logits each: steps in which every
 * row takes its best token of the logits as they are. No logit travels: a rank looks at its own
 * columns, sends 8 bytes a row as one line (comm.cu), and knows the token of every row when it has
 * those of all others, so that no ids have to be sent behind the choice either.
 *
 * Two kernels: blocks look at runs of the rows as fast as memory gives them, then a warp a row adds
 * up and meets the other ranks. The tokens are those of sample.cu: the greatest number of
 * sl_st_pack is the greatest logit and, of equals, the lowest id.
 *
 * Two GPUs, 256 rows of 128,256 tokens: each reads 66 MB of logits where they were made, where rank
 * 0 would fetch 66 MB over NVLink, a fifth of a millisecond or so, and then read 131 MB.
 */
#include "cuda/comm/comm.cuh"
#include "cuda/cuda.h"
#include "cuda/sample/sample.cuh"

#define BEST_RUNS  (SL_BEST_ROOM / (int)sizeof(sl_u64))
#define BEST_STEP  (4 * SL_ST_THREADS) /* columns that a block looks at at once */
#define BEST_BAD   (~(sl_u64)0)        /* NaN or +infinity somewhere; no packed logit */
#define BEST_BATCH 4

static_assert(BEST_RUNS == 32 && SL_ST_THREADS == COMM_THREADS, "a lane has a run");

struct best_args {
    const float *logits; /* [n, cols] */
    sl_u64 *tops;        /* [n, runs] */
    int32_t *ids;
    int32_t n, cols, first; /* id of column 0 */
    int32_t runs, run_n;
};

static __global__ void __launch_bounds__(SL_ST_THREADS, 3)
    sl_best_look(const __grid_constant__ struct best_args a)
{
    SL_SMEM(struct sl_st_room, s);
    const int row = static_cast<int>(blockIdx.y), run = static_cast<int>(blockIdx.x);
    const float *logits = a.logits + static_cast<int64_t>(row) * a.cols;
    const bool aligned = (reinterpret_cast<uintptr_t>(logits) & 15) == 0;
    const int32_t begin = run * a.run_n + 4 * static_cast<int32_t>(threadIdx.x);
    const int32_t end = min((run + 1) * a.run_n, a.cols);
    float best = -INFINITY;
    int32_t at = 0;
    bool bad = false;
    sl_grid_launch_dependents();
    sl_grid_wait();
    for (int32_t from = begin; from < end; from += BEST_BATCH * BEST_STEP) {
        float x[BEST_BATCH][4];
#pragma unroll
        for (int u = 0; u < BEST_BATCH; u++)
            if (from + u * BEST_STEP < end)
                sl_st_load4(logits, aligned, from + u * BEST_STEP, a.cols, x[u]);
#pragma unroll
        for (int u = 0; u < BEST_BATCH; u++) {
            if (from + u * BEST_STEP >= end)
                break;
#pragma unroll
            for (int j = 0; j < 4; j++) { /* the first of equals stays */
                bad |= !(x[u][j] <= FLT_MAX);
                at = x[u][j] > best ? from + u * BEST_STEP + j : at;
                best = x[u][j] > best ? x[u][j] : best;
            }
        }
    }
    const sl_u64 top = sl_st_max_block(s, bad ? BEST_BAD : sl_st_pack(best, a.first + at));
    if (threadIdx.x == 0)
        a.tops[static_cast<int64_t>(row) * a.runs + run] = top;
}

static __device__ __forceinline__ int32_t best_id(sl_u64 top)
{
    const float max = sl_st_unorder(static_cast<uint32_t>(top >> 32));
    return top != BEST_BAD && max >= -FLT_MAX ? sl_st_id(top) : -1;
}

/* A warp has one row after another. */
static __global__ void __launch_bounds__(COMM_THREADS)
    sl_best_meet(const __grid_constant__ comm_args c, const __grid_constant__ best_args a)
{
    SL_SMEM(comm_shared, sh);
    constexpr int warps = COMM_THREADS / 32;
    const int lane = static_cast<int>(threadIdx.x) % 32;
    const int first = static_cast<int>(blockIdx.x) * warps + static_cast<int>(threadIdx.x) / 32;
    sl_grid_launch_dependents();
    sl_grid_wait();
    if (threadIdx.x == 0)
        comm_number(c, sh);
    __syncthreads();
    const uint32_t number = sh->number;
    comm_sweep(c, number, static_cast<uint32_t>(a.n));
    for (int row = first; row < a.n; row += static_cast<int>(gridDim.x) * warps) {
        sl_u64 top = lane < a.runs ? a.tops[static_cast<int64_t>(row) * a.runs + lane] : 0;
        top = sl_st_max_warp(top);
        if (lane < c.n_ranks && lane != c.rank) {
            ulonglong2 line = make_ulonglong2(0, 0);
            comm_put(comm_lines(c, lane, number, c.rank) + row, number, static_cast<uint32_t>(top),
                     static_cast<uint32_t>(top >> 32));
            if (comm_wait(c, comm_lines(c, c.rank, number, lane) + row, number, lane, &line)) {
                const sl_u64 other = static_cast<uint32_t>(line.x) |
                                     static_cast<sl_u64>(static_cast<uint32_t>(line.y)) << 32;
                top = other > top ? other : top;
            }
        }
        __syncwarp();
        top = sl_st_max_warp(top);
        if (lane == 0)
            a.ids[row] = best_id(top);
    }
}

extern "C" void sl_cuda_best_ids(struct sl_backend *be, const struct sl_best_ids *op)
{
    struct sl_cuda *cu = sl_cuda(be);
    const struct sl_comm *c = op->rank->comm;
    struct best_args a = {};
    SL_ASSERT(c != NULL && cu->comm == c && c->rank[op->rank->idx] == cu && cu->ids != NULL);
    SL_ASSERT(op->n >= 0 && op->n <= (int32_t)COMM_LINES && op->n_cols > 0);
    if (op->n == 0)
        return;
    a.logits = op->logits;
    a.tops = static_cast<sl_u64 *>(op->room);
    a.ids = cu->ids;
    a.n = op->n;
    a.cols = op->n_cols;
    a.first = op->first;
    /* Two rounds of the blocks that fit, or what there is. */
    const int32_t most = SL_MIN(BEST_RUNS, SL_CEIL_DIV(a.cols, BEST_STEP));
    a.runs = SL_MAX(SL_MIN(SL_CEIL_DIV(6 * cu->n_sms, a.n), most), 1);
    a.run_n = SL_CEIL_DIV(SL_CEIL_DIV(a.cols, a.runs), BEST_STEP) * BEST_STEP;
    a.runs = SL_CEIL_DIV(a.cols, a.run_n);
    sl_launch(cu, sl_best_look, dim3((unsigned)a.runs, (unsigned)a.n), dim3(SL_ST_THREADS),
              sizeof(struct sl_st_room), a);
    const int32_t blocks = SL_CEIL_DIV(a.n, COMM_THREADS / 32);
    const int32_t fit = SL_MIN(COMM_BLOCKS, SL_MAX(cu->n_sms / 2, 1));
    sl_launch(cu, sl_best_meet, dim3((unsigned)SL_MIN(blocks, fit)), dim3(COMM_THREADS),
              sizeof(struct comm_shared), comm_args_of(c, op->rank->idx), a);
}
