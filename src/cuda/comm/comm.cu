/* SPDX-License-Identifier: MIT
 * Gathers between GPUs of one process. Every rank's stream runs one kernel for a gather; kernels of
 * a gather find each other by its number, which is counted on the device, since a recorded step has
 * the same arguments every time.
 *
 * A rank first writes its head to all others: how many bytes of a row it has, and where. Small
 * parts are written to the others as lines of 16 bytes, each 8 bytes of the part and twice the
 * gather's number, so that a line that has the number has the data: no fence and no second way over
 * NVLink. Large parts stay in the rank's room, and who wants them reads them there after the head
 * has come.
 *
 * Nothing is said when a rank has taken what it wanted. A rank that sees the heads of gather k + 1
 * knows that all others are done with gather k, since their kernels run one after the other. So
 * there are two sets of heads and lines, for even numbers and odd ones, and two rooms; and every
 * rank waits for every head, also one that wants no rows.
 *
 * Blocks of a kernel depend on each other through the other GPU: they must all fit there at once.
 * They are few, and the kernel ahead ends without them.
 *
 * A number comes back after 2^32 gathers, at a large model's pace after a day. A line that nobody
 * has written since would then pass for a new one; so each gather zeroes one line of each rank that
 * it did not use.
 */
#include "cuda/comm/comm.cuh"
#include "cuda/cuda.h"

/* ------------------------------------------------------------------ rows */

struct comm_rows { /* of one rank in out */
    uint8_t *out;  /* its first byte */
    uint32_t bytes, row_bytes, n;
};

/* The W at byte `at` of a part. */
template <typename W>
static __device__ __forceinline__ W *comm_place(const comm_rows &r, uint32_t at)
{
    const uint32_t row = at / r.bytes;
    return reinterpret_cast<W *>(r.out + static_cast<size_t>(row) * r.row_bytes + at % r.bytes);
}

/* Eight bytes of a part, or those that are left, at `at`. */
template <typename W>
static __device__ __forceinline__ void comm_store_words(const comm_rows &r, uint32_t at, uint64_t v)
{
    const uint32_t end = r.bytes * r.n;
#pragma unroll 1
    for (uint32_t i = 0; i < 8 && at + i < end; i += sizeof(W))
        *comm_place<W>(r, at + i) = static_cast<W>(v >> 8 * i);
}

/* unit: what all sizes and places are multiples of. */
static __device__ __forceinline__ void comm_store8(const comm_rows &r, uint32_t unit, uint32_t at,
                                                   uint64_t v)
{
    if (unit >= 8)
        *comm_place<uint64_t>(r, at) = v;
    else if (unit >= 4)
        comm_store_words<uint32_t>(r, at, v);
    else
        comm_store_words<uint8_t>(r, at, v);
}

/* Eight bytes at `at` of a part of `end` bytes, zeros behind the end. */
static __device__ __forceinline__ uint64_t comm_load8(const uint8_t *part, uint32_t at,
                                                      uint32_t end)
{
    uint64_t v = 0;
    if ((reinterpret_cast<uintptr_t>(part) & 7) == 0 && end - at >= 8)
        return *reinterpret_cast<const uint64_t *>(part + at);
#pragma unroll 1
    for (uint32_t i = 0; i < 8 && at + i < end; i++)
        v |= static_cast<uint64_t>(part[at + i]) << 8 * i;
    return v;
}

/* Copies a part in pieces of W, several loads under way at once. */
template <typename W>
static __device__ __forceinline__ void comm_copy(const comm_rows &r, const uint8_t *part)
{
    const W *from = reinterpret_cast<const W *>(part);
    const uint32_t n = static_cast<uint32_t>(static_cast<uint64_t>(r.bytes) * r.n / sizeof(W));
    const uint32_t stride = comm_stride();
    for (uint32_t i = comm_first(); i < n; i += COMM_UNROLL * stride) {
        W v[COMM_UNROLL] = {};
        for (uint32_t k = 0; k < COMM_UNROLL; k++)
            if (i + k * stride < n)
                v[k] = sl_peer_load(from + i + k * stride);
        for (uint32_t k = 0; k < COMM_UNROLL; k++)
            if (i + k * stride < n)
                *comm_place<W>(r, (i + k * stride) * static_cast<uint32_t>(sizeof(W))) = v[k];
    }
}

static __device__ __forceinline__ void comm_copy_by(const comm_rows &r, uint32_t unit,
                                                    const uint8_t *part)
{
    if (unit >= 16)
        comm_copy<uint4>(r, part);
    else if (unit >= 4)
        comm_copy<uint32_t>(r, part);
    else
        comm_copy<uint8_t>(r, part);
}

static __device__ __forceinline__ uint32_t comm_unit(uintptr_t all)
{
    return (all & 15) == 0 ? 16 : (all & 7) == 0 ? 8 : (all & 3) == 0 ? 4 : 1;
}

/* ------------------------------------------------------------------ the kernel */

/* A small part to out: this rank's own, of which `own` is what this thread has read, or the lines
 * of another, of which seen.line may be the first that is this thread's. */
static __device__ __forceinline__ void comm_take_small(const comm_args &a, const comm_rows &rows,
                                                       uint32_t unit, uint32_t number, int r,
                                                       const comm_seen &seen, uint64_t own)
{
    const ulonglong2 *lines = comm_lines(a, a.rank, number, r);
    const uint32_t end = rows.bytes * rows.n;
    ulonglong2 v = r == comm_other(a) ? seen.line : make_ulonglong2(0, 0);
#pragma unroll 1
    for (uint32_t i = comm_first(); i < (end + 7) / 8; i += comm_stride()) {
        if (r != a.rank) {
            if (!comm_wait(a, lines + i, number, r, &v))
                return;
            own = (v.x & 0xFFFFFFFFu) | v.y << 32;
            v = make_ulonglong2(0, 0); /* no gather's number */
        } else if (i != comm_first()) {
            own = comm_load8(a.part, 8 * i, end);
        }
        comm_store8(rows, unit, 8 * i, own);
    }
}

/* The parts of all ranks to out. It is one loop, and what is seldom is not unrolled, as a kernel
 * between two others finds nothing of its code in the caches of instructions. */
static __device__ __forceinline__ void comm_take(const comm_args &a, uint32_t number,
                                                 const comm_seen &seen, uint64_t own)
{
    const uint32_t all = 0xFFFFFFFFu;
    const uint32_t row_bytes = __reduce_add_sync(all, seen.bytes);
    const uint32_t places = __reduce_or_sync(all, seen.bytes | seen.at);
    const uint32_t unit = comm_unit(reinterpret_cast<uintptr_t>(a.out) | places);
    const int lane = static_cast<int>(threadIdx.x) % 32;
    comm_rows rows = {nullptr, 0, row_bytes, a.n};
    uint32_t col = 0; /* lane r: where rank r's columns begin */
#pragma unroll 1
    for (int r = 0; r + 1 < a.n_ranks; r++)
        col += __shfl_sync(all, seen.bytes, r) * (r < lane);
    if (static_cast<uint64_t>(seen.bytes) * a.n > a.small_bytes)
        sl_fence_peers();
    __syncwarp();
    /* Lines are on their way meanwhile; large parts are not before somebody reads them. */
    const int own_last = static_cast<uint64_t>(a.part_bytes) * a.n > a.small_bytes;
#pragma unroll 1
    for (int i = own_last; i < a.n_ranks + own_last; i++) {
        const int r = (a.rank + i) % a.n_ranks;
        rows.out = a.out + __shfl_sync(all, col, r);
        rows.bytes = __shfl_sync(all, seen.bytes, r);
        const uint32_t at = __shfl_sync(all, seen.at, r);
        if (static_cast<uint64_t>(rows.bytes) * a.n <= a.small_bytes) {
            comm_take_small(a, rows, unit, number, r, seen, own);
        } else {
            const uint8_t *part = r == a.rank ? a.part : a.piece[r] + at;
            comm_copy_by(rows, comm_unit(reinterpret_cast<uintptr_t>(part) | unit), part);
        }
        __syncwarp();
    }
}

static __global__ void __launch_bounds__(COMM_THREADS)
    gather_kernel(const __grid_constant__ comm_args a)
{
    SL_SMEM(comm_shared, sh);
    sl_grid_launch_dependents();
    sl_grid_wait();
    const uint64_t total = static_cast<uint64_t>(a.part_bytes) * a.n;
    const bool small = total <= a.small_bytes && !a.spread;
    const uint32_t end = static_cast<uint32_t>(total);
    const uint32_t n_lines = small ? (end + 7) / 8 : 0;
    uint64_t own = 0;
    if (comm_first() < n_lines)
        own = comm_load8(a.part, 8 * comm_first(), end);
    if (threadIdx.x == 0)
        comm_number(a, sh);
    __syncthreads();
    const uint32_t number = sh->number;
    if (sh->lost != 0)
        return;
    comm_say(a, number, small);
#pragma unroll 1
    for (uint32_t i = comm_first(); i < n_lines; i += comm_stride()) {
        const uint64_t v = i == comm_first() ? own : comm_load8(a.part, 8 * i, end);
#pragma unroll 1
        for (int r = 0; r < a.n_ranks; r++)
            if (a.to >> r & 1)
                comm_put(comm_lines(a, r, number, a.rank) + i, number, static_cast<uint32_t>(v),
                         static_cast<uint32_t>(v >> 32));
    }
    /* One warp waits for the others even if no row is wanted. */
    if (a.out == nullptr && (blockIdx.x != 0 || threadIdx.x >= 32))
        return;
    comm_seen seen;
    if (!comm_hear(a, number, comm_lines(a, a.rank, number, comm_other(a)) + comm_first(), &seen))
        return;
    const uint64_t come = static_cast<uint64_t>(seen.bytes) * a.n;
    comm_sweep(a, number,
               a.out != nullptr && come <= a.small_bytes ? static_cast<uint32_t>(come + 7) / 8 : 0);
    if (a.out != nullptr)
        comm_take(a, number, seen, own);
    else if (a.spread)
        sl_fence_peers(); /* kernels behind this one read what the others have written */
}

/* ------------------------------------------------------------------ to all ranks */

#define PUSH_BLOCKS 32 /* two H200, 1 and 4 MB: 7.2 and 18.4 us, of 64 blocks 7.7 and 19.2 */

struct comm_push {
    uint8_t *out[SL_MAX_RANKS]; /* this rank's columns of the first row, on each rank */
    uint32_t row_bytes;         /* of a row of out */
};

/* Writes the rank's part to all ranks, and says so when all blocks have: one way over NVLink, where
 * a part that others read takes two. */
static __global__ void __launch_bounds__(COMM_THREADS)
    push_kernel(const __grid_constant__ comm_args a, const __grid_constant__ comm_push p)
{
    SL_SMEM(comm_shared, sh);
    sl_grid_launch_dependents();
    sl_grid_wait();
    if (threadIdx.x == 0)
        comm_number(a, sh);
    const uint4 *part = reinterpret_cast<const uint4 *>(a.part);
    const uint32_t n = static_cast<uint32_t>(static_cast<uint64_t>(a.part_bytes) * a.n / 16);
    const uint32_t stride = comm_stride();
    for (uint32_t i = comm_first(); i < n; i += COMM_UNROLL * stride) {
        uint4 v[COMM_UNROLL] = {};
        for (uint32_t k = 0; k < COMM_UNROLL; k++)
            if (i + k * stride < n)
                v[k] = part[i + k * stride];
#pragma unroll 1
        for (int r = 0; r < a.n_ranks; r++) {
            const comm_rows rows = {p.out[(a.rank + 1 + r) % a.n_ranks], a.part_bytes, p.row_bytes,
                                    a.n};
            for (uint32_t k = 0; k < COMM_UNROLL; k++)
                if (i + k * stride < n)
                    *comm_place<uint4>(rows, (i + k * stride) * 16) = v[k];
        }
    }
    __syncthreads();
    const uint32_t number = sh->number;
    if (threadIdx.x == 0) {
        sl_fence_peers();
        comm_state *s = comm_own(a);
        sh->last = atomicAdd(&s->done, 1u) == gridDim.x - 1;
        if (sh->last != 0)
            s->done = 0;
    }
    __syncthreads();
    comm_sweep(a, number, 0);
    if (sh->last == 0 || sh->lost != 0 || threadIdx.x >= 32)
        return;
    const int other = static_cast<int>(threadIdx.x);
    sl_fence_peers(); /* what the other blocks have written comes first */
    if (other < a.n_ranks && other != a.rank)
        comm_put(comm_head(a, other, number, a.rank), number, a.part_bytes, a.at);
    comm_seen seen;
    __syncwarp();
    if (comm_hear(a, number, comm_lines(a, a.rank, number, comm_other(a)), &seen))
        sl_fence_peers();
}

/* Whether large parts go that way: the others' out lies where this rank's lies in its own memory.
 */
static bool pushes(const struct sl_comm *c, const struct sl_op_all_gather *op, uint64_t total)
{
    bool can = op->open && !op->first_only && total > c->small_bytes && op->part_bytes % 16 == 0 &&
               ((uintptr_t)op->part | (uintptr_t)op->out) % 16 == 0;
    for (int i = 0; i < c->n_ranks; i++)
        can = can && op->rank->mem[i] != NULL;
    return can;
}

static void push(struct sl_cuda *cu, const struct sl_comm *c, const struct sl_op_all_gather *op,
                 struct comm_args *a, uint64_t total)
{
    const int32_t rank = op->rank->idx;
    struct comm_push p = {};
    const int64_t at = static_cast<uint8_t *>(op->out) - op->rank->mem[rank] +
                       rank * static_cast<int64_t>(op->part_bytes);
    for (int i = 0; i < c->n_ranks; i++)
        p.out[i] = op->rank->mem[i] + at;
    p.row_bytes = static_cast<uint32_t>(op->part_bytes) * static_cast<uint32_t>(c->n_ranks);
    a->part = static_cast<const uint8_t *>(op->part);
    a->part_bytes = static_cast<uint32_t>(op->part_bytes);
    a->n = static_cast<uint32_t>(op->n);
    const uint64_t blocks = SL_CEIL_DIV(total, (uint64_t)(32 * COMM_THREADS));
    const uint64_t fit = static_cast<uint64_t>(SL_MIN(PUSH_BLOCKS, SL_MAX(cu->n_sms / 2, 1)));
    sl_launch(cu, push_kernel, dim3((unsigned)SL_MIN(blocks, fit)), dim3(COMM_THREADS),
              sizeof(struct comm_shared), *a, p);
}

/* ------------------------------------------------------------------ operations */

/* most: bytes of the largest part that this rank has to do with. */
static void gather(struct sl_cuda *cu, const struct comm_args &a, int most_blocks, uint64_t most)
{
    const uint64_t each = most <= a.small_bytes ? 8 * COMM_THREADS : 32 * COMM_THREADS;
    const uint64_t blocks = SL_CEIL_DIV(most, each);
    const uint64_t fit = static_cast<uint64_t>(SL_MIN(most_blocks, SL_MAX(cu->n_sms / 2, 1)));
    const dim3 grid(static_cast<unsigned>(SL_MAX(SL_MIN(blocks, fit), (uint64_t)1)));
    sl_launch(cu, gather_kernel, grid, dim3(COMM_THREADS), sizeof(struct comm_shared), a);
}

/* Others read a large part where it lies, which must be in a room: one from elsewhere is copied
 * there. NULL: a small one goes from where it is. */
static const uint8_t *part_in_room(struct sl_cuda *cu, const struct sl_comm *c,
                                   const struct sl_op_all_gather *op, uint64_t total)
{
    const uint8_t *part = static_cast<const uint8_t *>(op->part), *piece = c->piece[op->rank->idx];
    if (part >= piece && part + total <= piece + c->piece_bytes)
        return part;
    if (total <= c->small_bytes)
        return NULL;
    void *room = sl_rank_room(op->rank);
    SL_ASSERT(total <= c->room_bytes);
    if (cu->settle != NULL)
        cu->settle(cu);
    sl_cuda_check(cu, cudaMemcpyAsync(room, part, total, cudaMemcpyDeviceToDevice, cu->stream),
                  "cudaMemcpyAsync to a room");
    return static_cast<const uint8_t *>(room);
}

void sl_cuda_gather_there(struct sl_cuda *cu, const struct sl_rank *rank)
{
    struct comm_args a = comm_args_of(rank->comm, rank->idx);
    a.spread = true;
    gather(cu, a, 1, 1);
}

void sl_cuda_gather_run(struct sl_cuda *cu, const struct sl_op_all_gather *op)
{
    const struct sl_comm *c = op->rank->comm;
    const int32_t rank = op->rank->idx;
    const uint64_t total = static_cast<uint64_t>(op->part_bytes) * static_cast<uint64_t>(op->n);
    struct comm_args a = comm_args_of(c, rank);
    if (pushes(c, op, total)) {
        push(cu, c, op, &a, total);
        return;
    }
    const uint8_t *part = part_in_room(cu, c, op, total);
    a.part = part != NULL ? part : static_cast<const uint8_t *>(op->part);
    a.at = part != NULL ? static_cast<uint32_t>(part - c->piece[rank]) : 0;
    a.part_bytes = static_cast<uint32_t>(op->part_bytes);
    a.n = static_cast<uint32_t>(op->n);
    a.out = static_cast<uint8_t *>(op->out);
    a.to = (op->first_only ? 1u : (1u << c->n_ranks) - 1) & ~(1u << rank);
    gather(cu, a, c->most_blocks, total);
}

extern "C" void sl_cuda_share_ids(struct sl_backend *be, struct sl_rank *rank, int32_t n)
{
    struct sl_cuda *cu = sl_cuda(be);
    const struct sl_comm *c = rank->comm;
    const uint64_t n_bytes = static_cast<uint64_t>(n) * sizeof(int32_t);
    SL_ASSERT(c != NULL && cu->comm == c && c->rank[rank->idx] == cu);
    SL_ASSERT(cu->ids != NULL && n >= 0 && n_bytes <= SL_COMM_SMALL);
    if (n == 0)
        return;
    struct comm_args a = comm_args_of(c, rank->idx);
    a.small_bytes = SL_COMM_SMALL; /* what is not in a room always goes as lines */
    a.n = 1;
    if (rank->idx == 0) {
        a.part = reinterpret_cast<const uint8_t *>(cu->ids);
        a.part_bytes = static_cast<uint32_t>(n_bytes);
        a.to = ((1u << c->n_ranks) - 1) & ~1u;
    } else {
        a.out = reinterpret_cast<uint8_t *>(cu->ids);
    }
    gather(cu, a, c->most_blocks, n_bytes);
}

/* ------------------------------------------------------------------ start and end */

void sl_cuda_comm_tune(struct sl_comm *c, uint64_t bound_ns, uint32_t small_bytes)
{
    SL_ASSERT(bound_ns > 0 && small_bytes <= SL_COMM_SMALL);
    c->bound_ns = bound_ns;
    c->small_bytes = small_bytes;
}

void sl_cuda_comm_check(struct sl_cuda *cu)
{
    static const char *const what[] = {
        "waiting for rank 0 of tensor parallelism", "waiting for rank 1 of tensor parallelism",
        "waiting for rank 2 of tensor parallelism", "waiting for rank 3 of tensor parallelism",
        "waiting for rank 4 of tensor parallelism", "waiting for rank 5 of tensor parallelism",
        "waiting for rank 6 of tensor parallelism", "waiting for rank 7 of tensor parallelism"};
    static_assert(SL_COUNT(what) == SL_MAX_RANKS, "a text for each rank");
    if (cu->comm == NULL)
        return;
    const struct sl_comm *c = cu->comm;
    for (int i = 0; i < c->n_ranks; i++) {
        const uint32_t lost = __atomic_load_n(&c->lost[i], __ATOMIC_ACQUIRE);
        if (c->rank[i] == cu && lost != 0)
            sl_cuda_check(cu, cudaErrorLaunchTimeout, what[lost - 1]);
    }
}

int sl_cuda_reach(const struct sl_cuda *from, const struct sl_cuda *to, struct sl_error *err)
{
    int can = 0;
    if (from->device == to->device)
        return sl_fail(err, SL_EUNSUPPORTED,
                       "cuda:%d is given twice: each rank has a GPU of its own", from->device);
    cudaError_t e = cudaDeviceCanAccessPeer(&can, from->device, to->device);
    if (e == cudaSuccess && can == 0)
        return sl_fail(
            err, SL_EUNSUPPORTED,
            "cuda:%d (%s) cannot reach the memory of cuda:%d (%s): ranks need NVLink, or "
            "PCIe with peer access",
            from->device, from->name, to->device, to->name);
    /* Access stays for the life of the process. */
    static uint64_t given[64];
    const bool known = from->device < 64 && to->device < 64;
    const uint64_t bit = known ? (uint64_t)1 << to->device : 0;
    if (known && (__atomic_load_n(&given[from->device], __ATOMIC_RELAXED) & bit) != 0)
        return 0;
    if (e == cudaSuccess)
        e = cudaDeviceEnablePeerAccess(to->device, 0);
    if (e == cudaSuccess && known)
        __atomic_fetch_or(&given[from->device], bit, __ATOMIC_RELAXED);
    if (e == cudaErrorPeerAccessAlreadyEnabled) {
        cudaGetLastError();
        e = cudaSuccess;
    }
    if (e == cudaSuccess)
        return 0;
    cudaGetLastError();
    return sl_fail(err, SL_EDEVICE, "cuda:%d (%s): no access to the memory of cuda:%d: %s",
                   from->device, from->name, to->device, cudaGetErrorString(e));
}

static int join(struct sl_comm *c, int rank, struct sl_error *err)
{
    struct sl_cuda *cu = c->rank[rank];
    int rc = 0;
    sl_cuda_use(cu);
    for (int i = 0; i < c->n_ranks && rc == 0; i++)
        if (i != rank)
            rc = sl_cuda_reach(cu, c->rank[i], err);
    if (rc != 0)
        return rc;
    c->piece[rank] = static_cast<uint8_t *>(sl_cuda_alloc(cu, c->piece_bytes));
    if (c->piece[rank] == NULL)
        return sl_cuda_no_memory(cu, c->piece_bytes, "the rooms of a rank", err);
    sl_cuda_check(cu, cudaMemsetAsync(c->piece[rank], 0, c->piece_bytes, cu->stream),
                  "cudaMemsetAsync");
    return sl_cuda_report(cu, err);
}

/* A gather of each rank with nobody: loads the kernel, for which the driver may wait for all that
 * runs, while nothing does; and leaves 1 as the next number, on every rank. */
static int begin(struct sl_comm *c, int rank, struct sl_error *err)
{
    struct sl_cuda *cu = c->rank[rank];
    struct comm_args a = {};
    a.piece[0] = c->piece[rank];
    a.lost_host = &c->lost[rank];
    a.n_ranks = 1;
    sl_cuda_use(cu);
    gather(cu, a, 1, 1);
    sl_cuda_check(cu, cudaStreamSynchronize(cu->stream), "cudaStreamSynchronize");
    cu->counts.syncs++;
    return sl_cuda_report(cu, err);
}

int sl_cuda_comm_create(struct sl_backend *const *backends, int n_ranks, size_t room_bytes,
                        struct sl_comm **out, struct sl_error *err)
{
    SL_ASSERT(n_ranks >= 1 && n_ranks <= SL_MAX_RANKS);
    const size_t room = SL_ROUND_UP(SL_MAX(room_bytes, (size_t)1), COMM_ALIGN);
    struct sl_comm *c = *out = static_cast<struct sl_comm *>(sl_calloc(1, sizeof *c));
    if (c == NULL)
        return sl_fail(err, SL_ENOMEM, "out of memory for %d ranks", n_ranks);
    c->n_ranks = n_ranks;
    c->room_bytes = room;
    c->piece_bytes = lines_at(2, n_ranks, 0) + 2 * room;
    c->small_bytes =
        SL_MIN(SL_COMM_SMALL, COMM_LINES_IN / static_cast<uint32_t>(SL_MAX(n_ranks - 1, 1)));
    c->most_blocks = COMM_BLOCKS;
    c->bound_ns = COMM_BOUND_S * 1000000000ull;
    int rc = 0;
    if (c->piece_bytes > UINT32_MAX) /* heads say where a part is in 32 bits */
        rc =
            sl_fail(err, SL_EUNSUPPORTED, "rooms of %zu bytes for the parts of a rank", room_bytes);
    void *lost = NULL;
    if (rc == 0 && cudaHostAlloc(&lost, SL_MAX_RANKS * sizeof *c->lost, cudaHostAllocPortable) !=
                       cudaSuccess) {
        cudaGetLastError();
        rc = sl_fail(err, SL_ENOMEM, "no pinned memory for %d ranks", n_ranks);
    }
    c->lost = static_cast<uint32_t *>(lost);
    for (int i = 0; i < SL_MAX_RANKS && rc == 0; i++)
        c->lost[i] = 0;
    c->alike = true;
    for (int i = 0; i < n_ranks; i++) {
        c->rank[i] = sl_cuda(backends[i]);
        c->alike = c->alike && c->rank[i]->n_sms == c->rank[0]->n_sms;
    }
    for (int i = 0; i < n_ranks && rc == 0; i++)
        rc = join(c, i, err);
    for (int i = 0; i < n_ranks && rc == 0; i++)
        rc = begin(c, i, err);
    for (int i = 0; i < n_ranks && rc == 0; i++) {
        SL_ASSERT(c->rank[i]->comm == NULL);
        c->rank[i]->comm = c;
    }
    if (rc == 0)
        sl_cuda_use(c->rank[0]);
    if (rc != 0) {
        sl_cuda_comm_destroy(c);
        *out = NULL;
    }
    return rc;
}

void sl_cuda_comm_rooms(const struct sl_comm *c, int rank, void *rooms[2])
{
    uint8_t *at = c->piece[rank] + lines_at(2, c->n_ranks, 0);
    SL_ASSERT(rank >= 0 && rank < c->n_ranks);
    rooms[0] = at;
    rooms[1] = at + c->room_bytes;
}

void sl_cuda_comm_destroy(struct sl_comm *c)
{
    if (c == NULL)
        return;
    for (int i = 0; i < c->n_ranks; i++) {
        if (c->rank[i]->comm == c)
            c->rank[i]->comm = NULL;
        sl_cuda_free(c->rank[i], c->piece[i], c->piece_bytes);
    }
    if (c->lost != NULL)
        cudaFreeHost(c->lost);
    sl_free(c);
}
