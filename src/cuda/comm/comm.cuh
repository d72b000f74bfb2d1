/* SPDX-License-Identifier: MIT
 * comm.cuh - how the kernels of ranks meet (comm.cu says the protocol): the number of a meeting,
 * heads, lines, and waiting for them.
 */
#ifndef SL_CUDA_COMM_CUH
#define SL_CUDA_COMM_CUH

#include "cuda/comm/comm.h"
#include "cuda/launch.cuh"
#include "cuda/ptx_host.cuh"
#include "cuda/ptx_peer.cuh"

#define COMM_THREADS 512
#define COMM_BLOCKS  64
#define COMM_UNROLL  4
#define COMM_LOOKS   64 /* at a line, from one look at the clock to the next */
#define COMM_LINES   (SL_COMM_SMALL / 8)
#define COMM_ALIGN   ((size_t)256)
#define COMM_BOUND_S 10
/* Bytes of small parts that come in by lines, of all others together: from about there on the link
 * is busy with them for longer than a second way over it takes (bench/results/ranks-gpu.txt). */
#define COMM_LINES_IN (1u << 20)

struct comm_state {
    unsigned long long turn; /* the gather's number << 32, + blocks that have read it */
    uint32_t lost;           /* 1 + the rank that was waited for in vain */
    uint32_t done;           /* blocks that have written to the others */
};

struct comm_piece { /* the beginning of each rank's piece */
    alignas(256) struct comm_state state;
    alignas(256) ulonglong2 head[2][SL_MAX_RANKS];
};

struct comm_args {
    uint8_t *piece[SL_MAX_RANKS];
    const uint8_t *part;
    uint8_t *out;        /* NULL: nothing is wanted */
    uint32_t *lost_host; /* pinned */
    uint64_t bound_ns;
    uint32_t at; /* of the part in the piece */
    uint32_t part_bytes, n;
    uint32_t small_bytes;
    int32_t rank, n_ranks;
    uint32_t to; /* a bit for each rank that wants the part */
    bool spread; /* kernels before this one have written it to all ranks */
};

struct comm_shared {
    uint32_t number, lost, last;
};

static inline __host__ __device__ size_t lines_at(int parity, int n_ranks, int from)
{
    return sizeof(struct comm_piece) +
           static_cast<size_t>(parity * n_ranks + from) * COMM_LINES * sizeof(ulonglong2);
}

static __device__ __forceinline__ ulonglong2 *comm_lines(const comm_args &a, int owner,
                                                         uint32_t number, int from)
{
    return reinterpret_cast<ulonglong2 *>(a.piece[owner] +
                                          lines_at(static_cast<int>(number & 1), a.n_ranks, from));
}

static __device__ __forceinline__ ulonglong2 *comm_head(const comm_args &a, int owner,
                                                        uint32_t number, int from)
{
    return &reinterpret_cast<comm_piece *>(a.piece[owner])->head[number & 1][from];
}

static __device__ __forceinline__ comm_state *comm_own(const comm_args &a)
{
    return &reinterpret_cast<comm_piece *>(a.piece[a.rank])->state;
}

static __device__ __forceinline__ uint32_t comm_first()
{
    return blockIdx.x * COMM_THREADS + threadIdx.x;
}

static __device__ __forceinline__ uint32_t comm_stride()
{
    return gridDim.x * COMM_THREADS;
}

/* The first of the other ranks. */
static __device__ __forceinline__ int comm_other(const comm_args &a)
{
    return a.rank == 0 && a.n_ranks > 1 ? 1 : 0;
}

/* ------------------------------------------------------------------ waiting */

/* Whether rank `from` will not come any more, or the gather is lost anyway. */
static __device__ __forceinline__ bool comm_gives_up(const comm_args &a, int from, uint64_t *since)
{
    const uint64_t now = sl_clock_ns();
    comm_state *s = comm_own(a);
    if (*since == 0)
        *since = now;
    if (*reinterpret_cast<volatile uint32_t *>(&s->lost) != 0)
        return true;
    if (now - *since < a.bound_ns)
        return false;
    const uint32_t who = static_cast<uint32_t>(from) + 1;
    if (atomicCAS(&s->lost, 0u, who) == 0)
        sl_store_host(a.lost_host, who);
    return true;
}

static __device__ __forceinline__ bool comm_has(const ulonglong2 &line, uint32_t number)
{
    return line.x >> 32 == number && line.y >> 32 == number;
}

/* The line once it has this number, which it may have had before. False: it does not come. */
static __device__ __forceinline__ bool comm_wait(const comm_args &a, const ulonglong2 *line,
                                                 uint32_t number, int from, ulonglong2 *v)
{
    uint64_t since = 0;
    for (uint32_t looks = 1; !comm_has(*v, number); looks++) {
        *v = sl_peer_load2(line);
        if (looks % COMM_LOOKS == 0 && comm_gives_up(a, from, &since))
            return false;
        sl_peer_pause();
    }
    return true;
}

static __device__ __forceinline__ void comm_put(ulonglong2 *line, uint32_t number, uint32_t x,
                                                uint32_t y)
{
    const uint64_t high = static_cast<uint64_t>(number) << 32;
    sl_peer_store2(line, high | x, high | y);
}

/* The gather's number. Every block asks once; the last one makes it the next. */
static __device__ __forceinline__ void comm_number(const comm_args &a, comm_shared *sh)
{
    comm_state *s = comm_own(a);
    const unsigned long long turn = atomicAdd(&s->turn, 1ull);
    const uint32_t number = static_cast<uint32_t>(turn >> 32);
    if (static_cast<uint32_t>(turn) == gridDim.x - 1) {
        const uint32_t next = number + 1 == 0 ? 2 : number + 1; /* 0: what was never written */
        s->turn = static_cast<unsigned long long>(next) << 32;
    }
    sh->number = number;
    sh->lost = *reinterpret_cast<volatile uint32_t *>(&s->lost);
}

/* This rank's head to rank threadIdx.x. */
static __device__ __forceinline__ void comm_say(const comm_args &a, uint32_t number, bool small)
{
    const int other = static_cast<int>(threadIdx.x);
    if (blockIdx.x != 0 || other >= a.n_ranks || other == a.rank)
        return;
    if (!small) /* the others read what kernels before this one have written */
        sl_fence_peers();
    comm_put(comm_head(a, other, number, a.rank), number, a.part_bytes, a.at);
}

struct comm_seen {      /* by a lane */
    uint32_t bytes, at; /* lane r: the head of rank r */
    ulonglong2 line;    /* its first one of the first other rank, which may have come meanwhile */
};

/* Every warp waits for all heads. False: one does not come. */
static __device__ __forceinline__ bool comm_hear(const comm_args &a, uint32_t number,
                                                 const ulonglong2 *line, comm_seen *seen)
{
    const int lane = static_cast<int>(threadIdx.x) % 32;
    const bool waits = lane < a.n_ranks && lane != a.rank;
    const ulonglong2 *head = comm_head(a, a.rank, number, waits ? lane : a.rank);
    uint64_t since = 0;
    bool here = !waits;
    seen->bytes = lane == a.rank ? a.part_bytes : 0;
    seen->at = lane == a.rank ? a.at : 0;
    for (uint32_t looks = 1;; looks++) {
        const ulonglong2 v = sl_peer_load2(head);
        seen->line = sl_peer_load2(line); /* both are under way at once */
        if (waits && comm_has(v, number)) {
            seen->bytes = static_cast<uint32_t>(v.x);
            seen->at = static_cast<uint32_t>(v.y);
            here = true;
        }
        if (__all_sync(0xFFFFFFFFu, here))
            return true;
        if (looks % COMM_LOOKS == 0 &&
            __any_sync(0xFFFFFFFFu, !here && comm_gives_up(a, lane, &since)))
            return false;
        sl_peer_pause();
    }
}

/* Zeroes one of the lines that nobody has written this time. used: lines of each other rank. */
static __device__ __forceinline__ void comm_sweep(const comm_args &a, uint32_t number,
                                                  uint32_t used)
{
    const int other = static_cast<int>(threadIdx.x);
    const uint32_t line = number / 2 % COMM_LINES;
    if (blockIdx.x != 0 || other >= a.n_ranks || other == a.rank || line < used)
        return;
    sl_peer_store2(comm_lines(a, a.rank, number, other) + line, 0, 0);
}

/* What all kernels of a rank have. */
static inline struct comm_args comm_args_of(const struct sl_comm *c, int32_t rank)
{
    struct comm_args a = {};
    for (int i = 0; i < c->n_ranks; i++)
        a.piece[i] = c->piece[i];
    a.lost_host = &c->lost[rank];
    a.bound_ns = c->bound_ns;
    a.small_bytes = c->small_bytes;
    a.rank = rank;
    a.n_ranks = c->n_ranks;
    return a;
}

#endif
