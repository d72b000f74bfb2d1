/* SPDX-License-Identifier: MIT
 * Meetings of GPUs that end in a sum. Of few tokens one kernel sends what a rank has as lines to
 * the others, receives theirs, adds, adds that to the residual stream and norms it for the next
 * product; a cluster of four blocks has a token, as in rows.cu. Two kinds of meetings end so:
 * gathers of columns, which one rank each has whole (a product by rows), and sums of terms that
 * every rank has of all columns (by columns of the weight, or its experts).
 *
 * Sums have the bits of one GPU: terms come unrounded and unadded, and every rank adds them in the
 * same order. No head is said here: each rank's lines reach every other rank, so that who has them
 * knows that the meeting before is over there (comm.cu).
 *
 * Of many tokens, or where no norm is behind, a kernel reads what the others have in their rooms
 * and adds; with more than two ranks each adds some tokens, which are then gathered. What the
 * kernel before has written to all ranks (struct sl_spread) is here when all have said that they
 * are.
 */
#include "cuda/gemm/meet.h"

#include "cuda/comm/comm.cuh"
#include "cuda/gemm/experts_gate.cuh"
#include "cuda/gemm/fuse.h"
#include "cuda/norm.cuh"

/* Most of a kernel with the norm: two H200, rows of 4,096 that are gathered, 32 tokens 6.0 us for
 * 7.0 with a kernel for each, 64 10.9 for 9.7. */
#define SUM_TOKENS 32
/* Bytes that come in from all others: from there on each rank adds some tokens only. */
#define SUM_ALL_BYTES (1u << 20)
#define SUM_UNROLL    2

struct sum_args {
    const float *part;  /* [n_own][n, cols] */
    const float *parts; /* [n_terms][n, h] of all ranks, which are here; NULL: they are not */
    int64_t apart;      /* floats of one of them */
    int32_t n_own;
    int32_t n, h, cols; /* of a gather cols are this rank's share of h */
    int32_t n_terms;    /* of all ranks */
    uint32_t n_lines;   /* that come from a rank */
    bool tree;
    const float *bias; /* of a gather, of this rank's columns; NULL: none */
    const float *add, *add_logit;
    float *x; /* of the norm */
    const float *w;
    __nv_bfloat16 *out;
    float eps;
};

/* v in order, or as a tree of neighbours; n_terms of them are there. */
template <int TOTAL>
static __device__ __forceinline__ float4 sum_add(float4 (&v)[TOTAL], int n_terms, bool tree)
{
    if (!tree) {
#pragma unroll
        for (int i = 1; i < TOTAL; i++)
            if (i < n_terms)
                v[0] = sl_norm_plus(v[0], v[i]);
        return v[0];
    }
#pragma unroll
    for (int step = 1; step < TOTAL; step *= 2)
#pragma unroll
        for (int i = 0; i + step < TOTAL; i += 2 * step)
            if (i + step < n_terms)
                v[i] = sl_norm_plus(v[i], v[i + step]);
    return v[0];
}

/* What else is added to the sum, of four columns. */
static __device__ __forceinline__ float4 sum_beside(const sum_args &s, int token, int64_t at,
                                                    float4 y)
{
    if (s.add == nullptr)
        return y;
    float4 a = *reinterpret_cast<const float4 *>(s.add + at);
    if (s.add_logit != nullptr) {
        const float open = sl_expert_open(s.add_logit, token);
        a = make_float4(__fmul_rn(open, a.x), __fmul_rn(open, a.y), __fmul_rn(open, a.z),
                        __fmul_rn(open, a.w));
    }
    return sl_norm_plus(a, y);
}

/* ------------------------------------------------------------------ few tokens */

/* TOTAL 1: a gather; else a sum of up to so many terms, of which a rank has at most half. */
template <int TOTAL> struct sum_shape {
    static constexpr bool gathers = TOTAL == 1;
    static constexpr int own = TOTAL == 1 ? 1 : TOTAL / 2;
    static constexpr int blocks = TOTAL > 4 ? 1 : 2; /* that fit an SM */
};

/* The rank that has term i of a column. */
template <int TOTAL>
static __device__ __forceinline__ int sum_from(const sum_args &s, int i, int col)
{
    return sum_shape<TOTAL>::gathers ? col / s.cols : i / s.n_own;
}

/* The first of the two lines of four columns; term: of the rank that sends them. */
template <int TOTAL>
static __device__ __forceinline__ uint32_t sum_line(const sum_args &s, int term, int token, int col)
{
    const int row = sum_shape<TOTAL>::gathers ? token : term * s.n + token;
    return 2u * static_cast<uint32_t>((row * s.cols + col % s.cols) / 4);
}

template <int TOTAL>
static __device__ __forceinline__ bool sum_owns(const comm_args &a, const sum_args &s, int col)
{
    return !sum_shape<TOTAL>::gathers || col / s.cols == a.rank;
}

/* What this rank has of four columns. */
template <int TOTAL>
static __device__ __forceinline__ void sum_own(const comm_args &a, const sum_args &s, int token,
                                               int col, float4 (&own)[sum_shape<TOTAL>::own])
{
#pragma unroll
    for (int i = 0; i < sum_shape<TOTAL>::own; i++)
        own[i] = make_float4(0, 0, 0, 0);
    if (col >= s.h || !sum_owns<TOTAL>(a, s, col))
        return;
    const int at = col % s.cols;
    const float *from = s.part + static_cast<int64_t>(token) * s.cols + at;
    if constexpr (sum_shape<TOTAL>::gathers) {
        own[0] = sl_norm_sums(from, s.apart, s.n_own, s.bias != nullptr ? s.bias + at : nullptr);
    } else {
#pragma unroll
        for (int i = 0; i < sum_shape<TOTAL>::own; i++)
            if (i < s.n_own)
                own[i] = *reinterpret_cast<const float4 *>(from + i * s.apart);
    }
}

template <int TOTAL>
static __device__ __forceinline__ void sum_send(const comm_args &a, const sum_args &s,
                                                uint32_t number, int token, int col,
                                                const float4 (&own)[sum_shape<TOTAL>::own])
{
    if (col >= s.h || !sum_owns<TOTAL>(a, s, col))
        return;
#pragma unroll 1
    for (int r = 0; r < a.n_ranks; r++) {
        if (r == a.rank)
            continue;
        ulonglong2 *lines = comm_lines(a, r, number, a.rank);
#pragma unroll
        for (int i = 0; i < sum_shape<TOTAL>::own; i++) {
            if (i >= (sum_shape<TOTAL>::gathers ? 1 : s.n_own))
                continue;
            ulonglong2 *to = lines + sum_line<TOTAL>(s, i, token, col);
            comm_put(to, number, __float_as_uint(own[i].x), __float_as_uint(own[i].y));
            comm_put(to + 1, number, __float_as_uint(own[i].z), __float_as_uint(own[i].w));
        }
    }
}

static __device__ __forceinline__ float4 sum_quad(const ulonglong2 &lo, const ulonglong2 &hi)
{
    return make_float4(
        __uint_as_float(static_cast<uint32_t>(lo.x)), __uint_as_float(static_cast<uint32_t>(lo.y)),
        __uint_as_float(static_cast<uint32_t>(hi.x)), __uint_as_float(static_cast<uint32_t>(hi.y)));
}

/* Four columns of all terms, once they are there: those of others from their lines, all of which
 * are looked at at once. What does not come is as it is: the step has failed. */
template <int TOTAL>
static __device__ __forceinline__ void sum_receive(const comm_args &a, const sum_args &s,
                                                   uint32_t number, int token, int col,
                                                   const float4 (&own)[sum_shape<TOTAL>::own],
                                                   float4 (&v)[TOTAL])
{
    ulonglong2 line[TOTAL][2];
    uint64_t since = 0;
#pragma unroll
    for (int i = 0; i < TOTAL; i++) {
        const int term = i - a.rank * s.n_own;
        v[i] = own[0];
        if (!sum_shape<TOTAL>::gathers && term >= 0 && term < s.n_own) /* from the cache */
            v[i] = *reinterpret_cast<const float4 *>(s.part + term * s.apart +
                                                     static_cast<int64_t>(token) * s.cols + col);
    }
    for (uint32_t looks = 1;; looks++) {
        int waits_for = -1;
#pragma unroll
        for (int i = 0; i < TOTAL; i++) {
            const int from = sum_from<TOTAL>(s, i, col);
            if (i >= s.n_terms || from == a.rank)
                continue;
            const ulonglong2 *at = comm_lines(a, a.rank, number, from) +
                                   sum_line<TOTAL>(s, i - from * s.n_own, token, col);
            line[i][0] = sl_peer_load2(at);
            line[i][1] = sl_peer_load2(at + 1);
        }
#pragma unroll
        for (int i = 0; i < TOTAL; i++) {
            const int from = sum_from<TOTAL>(s, i, col);
            if (i >= s.n_terms || from == a.rank)
                continue;
            if (!comm_has(line[i][0], number) || !comm_has(line[i][1], number))
                waits_for = from;
        }
        if (waits_for < 0 || (looks % COMM_LOOKS == 0 && comm_gives_up(a, waits_for, &since)))
            break;
        sl_peer_pause();
    }
#pragma unroll
    for (int i = 0; i < TOTAL; i++)
        if (i < s.n_terms && sum_from<TOTAL>(s, i, col) != a.rank)
            v[i] = sum_quad(line[i][0], line[i][1]);
}

/* A cluster has one token after another; all clusters are on the GPU at once. */
template <int QUADS, int TOTAL>
static __global__ void __launch_bounds__(SL_NORM_CLUSTER_THREADS, sum_shape<TOTAL>::blocks)
    sum_norm_kernel(const __grid_constant__ comm_args a, const __grid_constant__ sum_args s)
{
    SL_SMEM(float4, smem);
    sl_norm_cluster<QUADS> c(smem);
    comm_shared *sh = reinterpret_cast<comm_shared *>(c.room + SL_NORM_WARPS);
    float4 w[QUADS], v[QUADS], own[QUADS][sum_shape<TOTAL>::own];
    const int stride = static_cast<int>(gridDim.x) / SL_NORM_CLUSTER;
    int token = static_cast<int>(blockIdx.x) / SL_NORM_CLUSTER;
#pragma unroll
    for (int j = 0; j < QUADS; j++)
        w[j] = sl_norm_load4<true>(s.w, c.column(j), s.h);
    sl_cluster_sync(); /* all are there */
    sl_grid_launch_dependents();
    sl_grid_wait();
    if (threadIdx.x == 0)
        comm_number(a, sh);
#pragma unroll
    for (int j = 0; j < QUADS; j++)
        sum_own<TOTAL>(a, s, token, c.column(j), own[j]);
    __syncthreads();
    const uint32_t number = sh->number;
    comm_sweep(a, number, s.n_lines);
    for (;;) {
        const int64_t row = static_cast<int64_t>(token) * s.h;
#pragma unroll
        for (int j = 0; j < QUADS; j++) {
            sum_send<TOTAL>(a, s, number, token, c.column(j), own[j]);
            v[j] = sl_norm_load4<true>(s.x + row, c.column(j), s.h);
        }
#pragma unroll
        for (int j = 0; j < QUADS; j++) {
            const int i = c.column(j);
            float4 terms[TOTAL];
            if (i >= s.h)
                continue;
            sum_receive<TOTAL>(a, s, number, token, i, own[j], terms);
            const float4 y = sum_add<TOTAL>(terms, s.n_terms, s.tree);
            v[j] = sl_norm_add4(v[j], sum_beside(s, token, row + i, y));
            sl_norm_store4<true>(s.x + row, i, s.h, v[j]);
        }
        const float scale = c.scale(v, s.eps, s.h);
#pragma unroll
        for (int j = 0; j < QUADS; j++)
            sl_norm_store<true>(s.out + row, c.column(j), s.h, v[j], w[j], scale);
        token += stride;
        if (token >= s.n)
            break;
#pragma unroll
        for (int j = 0; j < QUADS; j++)
            sum_own<TOTAL>(a, s, token, c.column(j), own[j]);
        sl_cluster_sync(); /* the sums of squares have been read */
    }
}

template <int TOTAL>
static void sum_norm(struct sl_cuda *cu, const struct comm_args &a, const struct sum_args &s)
{
    const bool wide = s.h > SL_NORM_CLUSTER_COLS;
    const int bytes = wide ? sl_norm_cluster<2>::bytes : sl_norm_cluster<1>::bytes;
    /* Of 132 SMs a tenth find no cluster of four. */
    const int places = cu->n_sms * sum_shape<TOTAL>::blocks;
    const int fit = SL_MAX(places / (SL_NORM_CLUSTER + 1), 1);
    const int clusters = SL_MIN(s.n, fit);
    sl_launch_cluster(cu, wide ? sum_norm_kernel<2, TOTAL> : sum_norm_kernel<1, TOTAL>,
                      dim3((unsigned)(clusters * SL_NORM_CLUSTER)), dim3(SL_NORM_CLUSTER_THREADS),
                      (size_t)bytes + sizeof(struct comm_shared), SL_NORM_CLUSTER, a, s);
}

/* ------------------------------------------------------------------ many tokens */

/* Reads the terms of quads from .. to of all ranks where they lie, and adds them. out: of quad from
 * on. */
template <int TOTAL>
static __global__ void __launch_bounds__(COMM_THREADS)
    sum_kernel(const __grid_constant__ comm_args a, const __grid_constant__ sum_args s, float4 *out,
               uint32_t from, uint32_t to)
{
    SL_SMEM(comm_shared, sh);
    sl_grid_launch_dependents();
    sl_grid_wait();
    if (threadIdx.x == 0)
        comm_number(a, sh);
    __syncthreads();
    const uint32_t number = sh->number;
    if (sh->lost != 0)
        return;
    comm_say(a, number, false);
    comm_seen seen;
    if (!comm_hear(a, number, comm_lines(a, a.rank, number, comm_other(a)), &seen))
        return;
    comm_sweep(a, number, 0);
    sl_fence_peers();
    const uint4 *term[TOTAL];
#pragma unroll
    for (int i = 0; i < TOTAL; i++) {
        const int r = i < s.n_terms ? i / s.n_own : a.rank;
        const uint32_t at = __shfl_sync(0xFFFFFFFFu, seen.at, r);
        term[i] = reinterpret_cast<const uint4 *>(
            a.piece[r] + at + (i - r * s.n_own) * s.apart * static_cast<int64_t>(sizeof(float)));
        if (s.parts != nullptr)
            term[i] = reinterpret_cast<const uint4 *>(s.parts + (i < s.n_terms ? i : 0) * s.apart);
    }
    const uint32_t stride = comm_stride(), quads = static_cast<uint32_t>(s.h) / 4;
    for (uint32_t i = from + comm_first(); i < to; i += SUM_UNROLL * stride) {
        uint4 v[SUM_UNROLL][TOTAL];
#pragma unroll
        for (int k = 0; k < SUM_UNROLL; k++)
#pragma unroll
            for (int t = 0; t < TOTAL; t++)
                if (t < s.n_terms && i + k * stride < to)
                    v[k][t] = sl_peer_load(term[t] + i + k * stride);
#pragma unroll
        for (int k = 0; k < SUM_UNROLL; k++) {
            const uint32_t q = i + k * stride;
            if (q >= to)
                continue;
            float4 f[TOTAL];
#pragma unroll
            for (int t = 0; t < TOTAL; t++)
                f[t] = t < s.n_terms
                           ? make_float4(__uint_as_float(v[k][t].x), __uint_as_float(v[k][t].y),
                                         __uint_as_float(v[k][t].z), __uint_as_float(v[k][t].w))
                           : make_float4(0, 0, 0, 0);
            const float4 y = sum_add<TOTAL>(f, s.n_terms, s.tree);
            out[q - from] = sum_beside(s, static_cast<int>(q / quads), 4 * (int64_t)q, y);
        }
    }
}

template <int TOTAL>
static void sum_many(struct sl_cuda *cu, const struct comm_args &a, const struct sum_args &s,
                     float *out, uint32_t from, uint32_t to)
{
    const uint32_t blocks = SL_CEIL_DIV(to - from, (uint32_t)(SUM_UNROLL * COMM_THREADS));
    const uint32_t fit = (uint32_t)SL_MIN(COMM_BLOCKS, SL_MAX(cu->n_sms / 2, 1));
    sl_launch(cu, sum_kernel<TOTAL>, dim3(SL_MAX(SL_MIN(blocks, fit), 1u)), dim3(COMM_THREADS),
              sizeof(struct comm_shared), a, s, reinterpret_cast<float4 *>(out), from, to);
}

/* ------------------------------------------------------------------ what is there */

#define THERE_THREADS 256
#define THERE_BLOCKS  2 /* of an SM, at least */

/* Products have written y to all ranks: the ranks meet, and every block goes on with its row. All
 * blocks are on the GPU at once, so that the one that says that this rank is there is among them.
 * The order of sums is that of rows.cu for rows of up to 8,192. */
template <int VEC>
static __global__ void __launch_bounds__(THERE_THREADS, THERE_BLOCKS)
    there_norm_kernel(const __grid_constant__ comm_args a, const __grid_constant__ sum_args s)
{
    SL_SMEM(float, room);
    comm_shared *sh = reinterpret_cast<comm_shared *>(room + 32);
    const int64_t at = static_cast<int64_t>(blockIdx.x) * s.h;
    const int32_t first = 4 * static_cast<int32_t>(threadIdx.x);
    float4 v[VEC], w[VEC];
#pragma unroll
    for (int k = 0; k < VEC; k++)
        w[k] = sl_norm_load4<true>(s.w, first + 4 * THERE_THREADS * k, s.h);
    sl_grid_launch_dependents();
    sl_grid_wait();
    if (threadIdx.x == 0)
        comm_number(a, sh);
#pragma unroll
    for (int k = 0; k < VEC; k++)
        v[k] = sl_norm_load4<true>(s.x + at, first + 4 * THERE_THREADS * k, s.h);
    __syncthreads();
    const uint32_t number = sh->number;
    comm_say(a, number, false);
    comm_sweep(a, number, 0);
    if (threadIdx.x < 32) {
        comm_seen seen;
        if (comm_hear(a, number, comm_lines(a, a.rank, number, comm_other(a)), &seen))
            sl_fence_peers();
    }
    __syncthreads();
    float sum = 0.0f;
#pragma unroll
    for (int k = 0; k < VEC; k++) {
        const int32_t i = first + 4 * THERE_THREADS * k;
        uint4 y = make_uint4(0, 0, 0, 0);
        if (i < s.h)
            y = sl_peer_load(reinterpret_cast<const uint4 *>(s.part + at + i));
        v[k] = sl_norm_add4(v[k], make_float4(__uint_as_float(y.x), __uint_as_float(y.y),
                                              __uint_as_float(y.z), __uint_as_float(y.w)));
        sl_norm_store4<true>(s.x + at, i, s.h, v[k]);
    }
#pragma unroll
    for (int k = 0; k < VEC; k++)
        sum = sl_norm_squares(sum, v[k]);
    const float scale = sl_norm_scale(sl_norm_sum_block<THERE_THREADS>(sum, room), s.eps, s.h);
#pragma unroll
    for (int k = 0; k < VEC; k++)
        sl_norm_store<true>(s.out + at, first + 4 * THERE_THREADS * k, s.h, v[k], w[k], scale);
}

template <int VEC>
static void there_launch(struct sl_cuda *cu, const struct comm_args &a, const struct sum_args &s)
{
    sl_launch(cu, there_norm_kernel<VEC>, dim3((unsigned)s.n), dim3(THERE_THREADS),
              32 * sizeof(float) + sizeof(struct comm_shared), a, s);
}

static void there_norm(struct sl_cuda *cu, const struct comm_args &a, const struct sl_cuda_norm *n)
{
    struct sum_args s = {};
    s.part = n->y;
    s.x = const_cast<float *>(n->x);
    s.w = n->w;
    s.out = n->out;
    s.eps = n->eps;
    s.n = n->n;
    s.h = n->h;
    if (n->h <= 1024)
        there_launch<1>(cu, a, s);
    else if (n->h <= 2048)
        there_launch<2>(cu, a, s);
    else if (n->h <= 4096)
        there_launch<4>(cu, a, s);
    else
        there_launch<8>(cu, a, s);
}

/* ------------------------------------------------------------------ operations */

static struct sum_args reduce_args(const struct sl_op_all_reduce *op, int n_ranks)
{
    struct sum_args s = {};
    s.part = op->part;
    s.apart = (int64_t)op->n * op->h;
    s.n_own = op->n_terms;
    s.n = op->n;
    s.h = s.cols = op->h;
    s.n_terms = op->n_terms * n_ranks;
    s.n_lines = (uint32_t)(s.n_own * s.apart / 2);
    s.tree = op->tree;
    s.add = op->add;
    s.add_logit = op->add_logit;
    return s;
}

static void reduce_run(struct sl_cuda *cu, const struct sl_op_all_reduce *op)
{
    const struct sl_comm *c = op->rank->comm;
    const int rank = op->rank->idx, n_ranks = c->n_ranks;
    const uint8_t *part = reinterpret_cast<const uint8_t *>(op->part);
    struct sum_args s = reduce_args(op, n_ranks);
    struct comm_args a = comm_args_of(c, rank);
    if (cu->spread != NULL) {
        SL_ASSERT(cu->spread == op->part && op->parts != NULL && op->n_terms == 1);
        cu->spread = NULL;
        s.parts = op->parts;
    }
    SL_ASSERT(part >= c->piece[rank] &&
              part + s.n_own * s.apart * 4 <= c->piece[rank] + c->piece_bytes);
    a.at = (uint32_t)(part - c->piece[rank]);
    const uint32_t quads = (uint32_t)(s.apart / 4);
    const uint64_t come = (uint64_t)(n_ranks - 1) * (uint64_t)(s.n_own * s.apart) * 4;
    const bool slices = n_ranks > 2 && come > SUM_ALL_BYTES && s.parts == NULL;
    uint32_t from = 0, to = quads;
    float *out = op->out;
    if (slices) {
        from = (uint32_t)((uint64_t)quads * (uint32_t)rank / (uint32_t)n_ranks);
        to = (uint32_t)((uint64_t)quads * (uint32_t)(rank + 1) / (uint32_t)n_ranks);
        out = static_cast<float *>(sl_rank_room(op->rank));
        SL_ASSERT((uint64_t)(to - from) * 16 <= c->room_bytes);
    }
    if (s.n_terms <= 2)
        sum_many<2>(cu, a, s, out, from, to);
    else if (s.n_terms <= 4)
        sum_many<4>(cu, a, s, out, from, to);
    else
        sum_many<8>(cu, a, s, out, from, to);
    if (!slices)
        return;
    struct sl_op_all_gather all = {};
    all.rank = op->rank;
    all.part = out;
    all.part_bytes = (size_t)(to - from) * 16;
    all.n = 1;
    all.out = op->out;
    sl_cuda_gather_run(cu, &all);
}

void sl_cuda_meet_run(struct sl_cuda *cu, const struct sl_cuda_meet *m)
{
    if (m->reduces)
        reduce_run(cu, &m->reduce);
    else if (m->there)
        sl_cuda_gather_there(cu, m->gather.rank);
    else
        sl_cuda_gather_run(cu, &m->gather);
}

bool sl_cuda_meet_small(const struct sl_cuda *cu, const struct sl_cuda_meet *m)
{
    const struct sl_rank *rank = m->reduces ? m->reduce.rank : m->gather.rank;
    const int32_t n = m->reduces ? m->reduce.n : m->gather.n;
    const uint64_t bytes =
        m->reduces ? (uint64_t)m->reduce.n_terms * (uint64_t)m->reduce.h * 4 : m->gather.part_bytes;
    if (m->there)
        return m->gather.even && n <= THERE_BLOCKS * cu->n_sms;
    return n <= SUM_TOKENS && bytes * (uint64_t)n <= rank->comm->small_bytes &&
           (m->reduces || (m->gather.even && !m->gather.first_only));
}

bool sl_cuda_meet_norms(const struct sl_cuda_meet *m, const struct sl_cuda_norm *a)
{
    const uintptr_t all = (uintptr_t)a->x | (uintptr_t)a->w | (uintptr_t)a->out;
    const int n_ranks = (m->reduces ? m->reduce.rank : m->gather.rank)->comm->n_ranks;
    const bool same =
        m->reduces ? m->reduce.out == a->y && m->reduce.n == a->n && m->reduce.h == a->h &&
                         m->reduce.n_terms * n_ranks <= SL_REDUCE_TERMS
                   : m->gather.out == a->y && m->gather.n == a->n &&
                         m->gather.part_bytes * (size_t)n_ranks == (size_t)a->h * sizeof(float);
    return same && n_ranks > 1 && a->w != NULL && a->h % 4 == 0 &&
           a->h <= 2 * SL_NORM_CLUSTER_COLS && all % 16 == 0;
}

void sl_cuda_meet_norm(struct sl_cuda *cu, const struct sl_cuda_meet *m,
                       const struct sl_lin_left *left, const float *bias,
                       const struct sl_cuda_norm *n)
{
    const struct sl_rank *rank = m->reduces ? m->reduce.rank : m->gather.rank;
    const struct comm_args a = comm_args_of(rank->comm, rank->idx);
    struct sum_args s = {};
    if (m->there) {
        there_norm(cu, a, n);
        return;
    }
    if (m->reduces) {
        SL_ASSERT(left->sums == NULL);
        s = reduce_args(&m->reduce, a.n_ranks);
    } else {
        s.part = left->sums != NULL ? left->sums : static_cast<const float *>(m->gather.part);
        s.n_own = left->sums != NULL ? left->n_segs : 1;
        s.n = n->n;
        s.h = n->h;
        s.cols = n->h / a.n_ranks;
        s.apart = (int64_t)s.n * s.cols;
        s.n_terms = 1;
        s.n_lines = (uint32_t)(s.apart / 2);
        s.bias = left->sums != NULL ? bias : NULL;
    }
    SL_ASSERT(s.n_lines <= COMM_LINES && s.cols % 4 == 0 && s.n_own <= SL_NORM_SUMS);
    s.x = const_cast<float *>(n->x);
    s.w = n->w;
    s.out = n->out;
    s.eps = n->eps;
    if (s.n_terms == 1)
        sum_norm<1>(cu, a, s);
    else if (s.n_terms == 2)
        sum_norm<2>(cu, a, s);
    else if (s.n_terms <= 4)
        sum_norm<4>(cu, a, s);
    else
        sum_norm<8>(cu, a, s);
}

extern "C" void sl_cuda_all_gather(struct sl_backend *be, const struct sl_op_all_gather *op)
{
    struct sl_cuda *cu = sl_cuda(be);
    const struct sl_comm *c = op->rank->comm;
    struct sl_cuda_meet m = {};
    SL_ASSERT(c != NULL && cu->comm == c && c->rank[op->rank->idx] == cu);
    if (op->n == 0)
        return;
    m.gather = *op;
    m.there = cu->spread != NULL;
    SL_ASSERT(!m.there || (cu->spread == op->part && !op->first_only));
    cu->spread = NULL;
    if (!sl_cuda_fuse_meet(cu, &m))
        sl_cuda_meet_run(cu, &m);
}

extern "C" void sl_cuda_all_reduce(struct sl_backend *be, const struct sl_op_all_reduce *op)
{
    struct sl_cuda *cu = sl_cuda(be);
    const struct sl_comm *c = op->rank->comm;
    struct sl_cuda_meet m = {};
    SL_ASSERT(c != NULL && cu->comm == c && c->rank[op->rank->idx] == cu);
    SL_ASSERT(op->n_terms > 0 && op->n_terms * c->n_ranks <= SL_REDUCE_TERMS && op->h % 4 == 0);
    SL_ASSERT(!op->tree || op->n_terms == 1);
    if (op->n == 0)
        return;
    m.reduces = true;
    m.reduce = *op;
    if (!sl_cuda_fuse_meet(cu, &m))
        reduce_run(cu, op);
}
