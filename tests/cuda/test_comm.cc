/* SPDX-License-Identifier: MIT
 * Gathers between GPUs of one process (cuda/comm). Parts are bytes that depend on the rank, the
 * round, the row and the column; a kernel on every rank compares what has arrived with all of them,
 * and what lies behind it with what lay there. So every round has other contents, replays of a
 * recorded step too. Runs in the simulator with 8 devices, and on a machine with as many ranks as
 * it has GPUs.
 */
#include "cuda/comm/comm.h"

#include "cuda/cuda.h"
#include "cuda/launch.cuh"
#include "cuda/ptx.cuh"

#ifdef SL_CUDA_SIM
#include "sim.h"
#endif

#include <cmath>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>
#include <vector>

static int n_passed, n_failed;

#define CHECK(cond)                                                              \
    do {                                                                         \
        if (cond) {                                                              \
            n_passed++;                                                          \
        } else {                                                                 \
            n_failed++;                                                          \
            printf("FAIL %s:%d: %s: %s\n", __FILE__, __LINE__, __func__, #cond); \
        }                                                                        \
    } while (0)

#define MUST(call)                                                                 \
    do {                                                                           \
        const cudaError_t must_e = (call);                                         \
        if (must_e != cudaSuccess) {                                               \
            printf("%s:%d: %s\n", __FILE__, __LINE__, cudaGetErrorString(must_e)); \
            exit(2);                                                               \
        }                                                                          \
    } while (0)

#define ROOM_BYTES (4u << 20)
#define OUT_BYTES  (SL_MAX_RANKS * ROOM_BYTES)
#define GUARD      64 /* bytes behind out that stay */
#define GUARD_BYTE 0xA5
#define OUT_SPACE  (OUT_BYTES + 256) /* of which there are two in turns: others may write there */
#define MOST_IDS   1000

/* ------------------------------------------------------------------ what is gathered */

struct shape {
    uint32_t n, bytes[SL_MAX_RANKS]; /* of a row */
    bool first_only;
};

struct tally { /* of one rank, in its memory */
    uint32_t round, bad;
};

static inline __host__ __device__ uint8_t byte_of(uint32_t rank, uint32_t round, uint32_t row,
                                                  uint32_t col)
{
    uint32_t h = rank * 0x9E3779B1u + round * 0x85EBCA77u + row * 0xC2B2AE3Du + col * 0x27D4EB2Fu;
    h = (h ^ h >> 15) * 0x2C1B3C6Du;
    h = (h ^ h >> 12) * 0x297A2D39u;
    return static_cast<uint8_t>(h >> 24);
}

static __global__ void fill_kernel(uint8_t *part, const shape s, uint32_t rank, const tally *t)
{
    sl_grid_launch_dependents();
    sl_grid_wait();
    const uint32_t bytes = s.bytes[rank];
    for (uint32_t i = blockIdx.x * blockDim.x + threadIdx.x; i < s.n * bytes;
         i += gridDim.x * blockDim.x)
        part[i] = byte_of(rank, t->round, i / bytes, i % bytes);
}

static __global__ void check_kernel(uint8_t *out, const shape s, uint32_t n_ranks, tally *t)
{
    sl_grid_launch_dependents();
    sl_grid_wait();
    uint32_t row_bytes = 0, bad = 0;
    for (uint32_t r = 0; r < n_ranks; r++)
        row_bytes += s.bytes[r];
    const uint32_t total = s.n * row_bytes;
    for (uint32_t i = blockIdx.x * blockDim.x + threadIdx.x; i < total + GUARD;
         i += gridDim.x * blockDim.x) {
        if (i >= total) {
            bad += out[i] != GUARD_BYTE;
            continue;
        }
        uint32_t col = i % row_bytes, rank = 0;
        while (col >= s.bytes[rank])
            col -= s.bytes[rank++];
        bad += out[i] != byte_of(rank, t->round, i / row_bytes, col);
        out[i] = GUARD_BYTE; /* the next round has to write it again */
    }
    if (bad > 0)
        atomicAdd(&t->bad, bad);
}

static __global__ void next_kernel(tally *t)
{
    sl_grid_launch_dependents();
    sl_grid_wait();
    if (threadIdx.x == 0)
        t->round++;
}

/* ------------------------------------------------------------------ ranks */

struct group {
    int n;
    struct sl_backend *be[SL_MAX_RANKS];
    struct sl_comm *comm;
    struct sl_rank rank[SL_MAX_RANKS];
    uint8_t *out[SL_MAX_RANKS];
    uint32_t turn[SL_MAX_RANKS];
    tally *tallies[SL_MAX_RANKS];
    int32_t *ids[SL_MAX_RANKS];
};

static int device_count()
{
    return SL_MIN(sl_cuda_count(), SL_MAX_RANKS);
}

static void take(struct group *g, int r)
{
    struct sl_cuda *cu = sl_cuda(g->be[r]);
    sl_cuda_use(cu);
    MUST(cudaMalloc(&g->out[r], 2 * OUT_SPACE));
    MUST(cudaMalloc(&g->tallies[r], sizeof(tally)));
    MUST(cudaMalloc(&g->ids[r], MOST_IDS * sizeof(int32_t)));
    MUST(cudaMemsetAsync(g->out[r], GUARD_BYTE, 2 * OUT_SPACE, cu->stream));
    MUST(cudaMemsetAsync(g->tallies[r], 0, sizeof(tally), cu->stream));
    MUST(cudaMemsetAsync(g->ids[r], 0, MOST_IDS * sizeof(int32_t), cu->stream));
    MUST(cudaStreamSynchronize(cu->stream));
    cu->ids = g->ids[r];
}

static void open_group(struct group *g, int n)
{
    struct sl_error err = {};
    *g = {};
    g->n = n;
    for (int r = 0; r < n; r++) {
        const struct sl_cuda_config cfg = {r, 1, false};
        if (sl_cuda_create(&cfg, &g->be[r], &err) != 0) {
            printf("device %d: %s\n", r, err.msg);
            exit(2);
        }
    }
    if (sl_cuda_comm_create(g->be, n, ROOM_BYTES, &g->comm, &err) != 0) {
        printf("%d ranks: %s\n", n, err.msg);
        exit(2);
    }
#ifdef SL_CUDA_SIM
    sl_cuda_comm_tune(g->comm, 120 * 1000000000ull, SL_COMM_SMALL); /* it is slow */
#endif
    for (int r = 0; r < n; r++) {
        g->rank[r].comm = g->comm;
        g->rank[r].idx = r;
        sl_cuda_comm_rooms(g->comm, r, g->rank[r].room);
        take(g, r);
    }
    for (int r = 0; r < n; r++)
        for (int i = 0; i < n; i++)
            g->rank[r].mem[i] = g->out[i];
}

static void close_group(struct group *g)
{
    for (int r = 0; r < g->n; r++) {
        sl_cuda_use(sl_cuda(g->be[r]));
        cudaFree(g->out[r]);
        cudaFree(g->tallies[r]);
        cudaFree(g->ids[r]);
    }
    sl_cuda_comm_destroy(g->comm);
    for (int r = 0; r < g->n; r++)
        g->be[r]->vt->destroy(g->be[r]);
}

/* One round of one rank, enqueued. */
static void enqueue(struct group *g, int r, const struct shape *s)
{
    struct sl_cuda *cu = sl_cuda(g->be[r]);
    sl_cuda_use(cu);
    uint8_t *part = static_cast<uint8_t *>(sl_rank_room(&g->rank[r]));
    const bool wants = !s->first_only || r == 0;
    uint8_t *out = g->out[r] + g->turn[r]++ % 2 * (size_t)OUT_SPACE;
    bool alike = !s->first_only;
    for (int i = 0; i < g->n; i++)
        alike = alike && s->bytes[i] == s->bytes[0];
    const struct sl_op_all_gather op = {
        &g->rank[r],        part,          s->bytes[r], static_cast<int32_t>(s->n),
        wants ? out : NULL, s->first_only, false,       alike};
    sl_launch(cu, fill_kernel, dim3(4), dim3(256), 0, part, *s, r, g->tallies[r]);
    g->be[r]->vt->all_gather(g->be[r], &op);
    if (wants)
        sl_launch(cu, check_kernel, dim3(4), dim3(256), 0, out, *s, g->n, g->tallies[r]);
    sl_launch(cu, next_kernel, dim3(1), dim3(32), 0, g->tallies[r]);
}

static void enqueue_all(struct group *g, const struct shape *s)
{
    for (int r = 0; r < g->n; r++)
        enqueue(g, r, s);
}

/* Bytes that were wrong on any rank since the last call; all has run then. */
static uint32_t settle(struct group *g)
{
    uint32_t bad = 0;
    for (int r = 0; r < g->n; r++) {
        struct sl_cuda *cu = sl_cuda(g->be[r]);
        struct sl_error err = {};
        tally t;
        sl_cuda_use(cu);
        MUST(cudaStreamSynchronize(cu->stream));
        if (sl_cuda_report(cu, &err) != 0) {
            printf("rank %d: %s\n", r, err.msg);
            bad++;
            continue;
        }
        MUST(cudaMemcpy(&t, g->tallies[r], sizeof t, cudaMemcpyDeviceToHost));
        bad += t.bad;
        t.bad = 0;
        MUST(cudaMemcpy(g->tallies[r], &t, sizeof t, cudaMemcpyHostToDevice));
        MUST(cudaDeviceSynchronize());
    }
    return bad;
}

static struct shape even(int n_ranks, uint32_t n, uint32_t bytes)
{
    struct shape s = {};
    s.n = n;
    for (int r = 0; r < n_ranks; r++)
        s.bytes[r] = bytes;
    return s;
}

/* ------------------------------------------------------------------ tests */

/* The test itself: a byte that is wrong is counted. */
static void test_finds(int n)
{
    struct group g;
    open_group(&g, n);
    struct shape s = even(n, 3, 20), wrong = s;
    enqueue_all(&g, &s);
    CHECK(settle(&g) == 0);
    wrong.n = 2; /* what is checked lies behind what was gathered */
    struct sl_cuda *cu = sl_cuda(g.be[0]);
    sl_cuda_use(cu);
    MUST(cudaMemset(g.out[0], 0, 200));
    MUST(cudaDeviceSynchronize());
    sl_launch(cu, check_kernel, dim3(1), dim3(256), 0, g.out[0], wrong, n, g.tallies[0]);
    CHECK(settle(&g) > 0);
    close_group(&g);
}

static void test_sizes(int n)
{
    static const uint32_t sizes[][2] = {
        /* rows, bytes */
        {1, 4},      {1, 8},     {1, 1},      {3, 7},       {5, 12},      {2, 100},    {64, 64},
        {1, 4096},   {8, 8192},  {33, 1028},  {16, 16384},  {1, 524288},  {1, 524292}, {128, 4096},
        {31, 20000}, {3, 99991}, {64, 32768}, {2, 1048576}, {2049, 1022}, {7, 16}};
    static const uint32_t smalls[] = {SL_COMM_SMALL, 0, 4096};
    struct group g;
    open_group(&g, n);
    for (size_t k = 0; k < SL_COUNT(smalls); k++) {
        CHECK(settle(&g) == 0);
        sl_cuda_comm_tune(g.comm, g.comm->bound_ns, smalls[k]);
        for (size_t i = 0; i < SL_COUNT(sizes); i++) {
            struct shape s = even(n, sizes[i][0], sizes[i][1]);
            if (n == 8 && s.n * s.bytes[0] > 100000) /* in the simulator this takes its time */
                continue;
            enqueue_all(&g, &s);
            const uint32_t bad = settle(&g);
            if (bad != 0)
                printf("%d ranks, %u rows of %u bytes, lines up to %u\n", n, s.n, s.bytes[0],
                       smalls[k]);
            CHECK(bad == 0);
        }
    }
    close_group(&g);
}

/* Ranks with other sizes, none at all among them, some of them by lines and some where they lie. */
static void test_different(int n)
{
    static const uint32_t units[] = {16, 8, 4, 2, 1};
    struct group g;
    open_group(&g, n);
    for (uint32_t i = 0; i < 20; i++) {
        struct shape s = {};
        s.n = 1 + i * 7 % 40;
        s.first_only = i % 3 == 1;
        for (int r = 0; r < n; r++)
            s.bytes[r] = units[i % 5] * ((i * 31 + static_cast<uint32_t>(r) * 57) % 97);
        if (i % 4 == 3)
            s.bytes[i % static_cast<uint32_t>(n)] = (SL_COMM_SMALL / s.n + 16) / 16 * 16;
        if (i == 10)
            s.bytes[0] = 0;
        uint32_t sum = 0;
        for (int r = 0; r < n; r++)
            sum += s.bytes[r];
        if (sum == 0)
            continue;
        enqueue_all(&g, &s);
        const uint32_t bad = settle(&g);
        if (bad != 0)
            printf("%d ranks, case %u: %u rows\n", n, i, s.n);
        CHECK(bad == 0);
    }
    close_group(&g);
}

static struct shape of_round(int n, uint32_t i)
{
    static const uint32_t sizes[] = {256, 8, 4096, 20, 1, 1024, 300, 65536};
    struct shape s = even(n, 1 + i % 5, sizes[i % SL_COUNT(sizes)]);
    s.bytes[n - 1] += 8 * (i % 3);
    s.first_only = i % 7 == 6;
    return s;
}

static void test_many(int n)
{
    struct group g;
    open_group(&g, n);
    for (uint32_t small = SL_COMM_SMALL; small > 0; small = small > 2000 ? 2000 : 0) {
        sl_cuda_comm_tune(g.comm, g.comm->bound_ns, small);
        for (uint32_t i = 0; i < (n == 8 ? 14u : 40u); i++) {
            const struct shape s = of_round(n, i);
            enqueue_all(&g, &s);
        }
        CHECK(settle(&g) == 0);
    }
    close_group(&g);
}

/* Steps are recorded with an even number of gathers and replayed, with steps in between that are
 * not; ranks are sometimes a step apart. */
static void test_recorded(int n)
{
    struct group g;
    cudaGraph_t graph;
    cudaGraphExec_t exec[SL_MAX_RANKS];
    open_group(&g, n);
    for (int r = 0; r < n; r++) {
        struct sl_cuda *cu = sl_cuda(g.be[r]);
        sl_cuda_use(cu);
        MUST(cudaStreamBeginCapture(cu->stream, cudaStreamCaptureModeThreadLocal));
        for (uint32_t i = 0; i < 6; i++) {
            const struct shape s = of_round(n, i);
            enqueue(&g, r, &s);
        }
        MUST(cudaStreamEndCapture(cu->stream, &graph));
        MUST(cudaGraphInstantiate(&exec[r], graph, 0));
        MUST(cudaGraphDestroy(graph));
    }
    const struct shape s = even(n, 2, 500);
    for (int i = 0; i < (n == 8 ? 3 : 10); i++) {
        for (int r = 0; r < n; r++) {
            sl_cuda_use(sl_cuda(g.be[r]));
            MUST(cudaGraphLaunch(exec[r], sl_cuda(g.be[r])->stream));
            if (r % 2 == 0)
                MUST(cudaGraphLaunch(exec[r], sl_cuda(g.be[r])->stream));
        }
        for (int r = 1; r < n; r += 2) {
            sl_cuda_use(sl_cuda(g.be[r]));
            MUST(cudaGraphLaunch(exec[r], sl_cuda(g.be[r])->stream));
        }
        enqueue_all(&g, &s);
        enqueue_all(&g, &s);
    }
    CHECK(settle(&g) == 0);
    for (int r = 0; r < n; r++)
        MUST(cudaGraphExecDestroy(exec[r]));
    close_group(&g);
}

struct runner {
    struct group *g;
    int rank;
    bool late;
};

static void nap(long ms)
{
    const struct timespec t = {ms / 1000, ms % 1000 * 1000000};
    nanosleep(&t, NULL);
}

static void *run_rank(void *arg)
{
    const struct runner *a = static_cast<const struct runner *>(arg);
    for (uint32_t i = 0; i < (a->g->n == 8 ? 12u : 30u); i++) {
        const struct shape s = of_round(a->g->n, i);
        if (a->late && i % 10 == 0)
            nap(20);
        enqueue(a->g, a->rank, &s);
        if (i % 4 == 3)
            MUST(cudaStreamSynchronize(sl_cuda(a->g->be[a->rank])->stream));
    }
    return NULL;
}

/* A thread for each rank, as an engine has, some of them late. */
static void test_threads(int n)
{
    struct group g;
    struct runner runners[SL_MAX_RANKS];
    pthread_t threads[SL_MAX_RANKS];
    open_group(&g, n);
    for (int r = 0; r < n; r++) {
        runners[r] = {&g, r, r % 2 == 1};
        if (pthread_create(&threads[r], NULL, run_rank, &runners[r]) != 0)
            exit(2);
    }
    for (int r = 0; r < n; r++)
        pthread_join(threads[r], NULL);
    CHECK(settle(&g) == 0);
    close_group(&g);
}

/* The last rank is as far ahead as it can be when the others begin, though nothing that it gathers
 * is for it. */
static void test_ahead(int n)
{
    struct group g;
    open_group(&g, n);
    struct shape s = even(n, 1, 4096);
    s.first_only = true;
    for (int i = 0; i < 4; i++)
        enqueue(&g, n - 1, &s);
    for (int i = 0; i < 50; i++) {
        cudaStreamQuery(sl_cuda(g.be[n - 1])->stream);
        nap(1);
    }
    for (int i = 0; i < 4; i++)
        for (int r = 0; r < n - 1; r++)
            enqueue(&g, r, &s);
    CHECK(settle(&g) == 0);
    close_group(&g);
}

/* What rank 0 chose arrives, between gathers too; nothing behind it changes. */
static void test_ids(int n)
{
    struct group g;
    int32_t want[MOST_IDS] = {}, got[MOST_IDS];
    open_group(&g, n);
    const struct shape s = even(n, 3, 96);
    for (int32_t i = 0, n_ids = 1; n_ids < MOST_IDS; i++, n_ids = n_ids * 3 + 1) {
        for (int32_t k = 0; k < n_ids; k++)
            want[k] = 1000 * i + k;
        sl_cuda_use(sl_cuda(g.be[0]));
        MUST(cudaMemcpy(g.ids[0], want, sizeof want, cudaMemcpyHostToDevice));
        MUST(cudaDeviceSynchronize());
        for (int r = 0; r < n; r++) {
            sl_cuda_use(sl_cuda(g.be[r]));
            g.be[r]->vt->device->share_ids(g.be[r], &g.rank[r], n_ids);
        }
        enqueue_all(&g, &s);
        CHECK(settle(&g) == 0);
        for (int r = 0; r < n; r++) {
            MUST(cudaMemcpy(got, g.ids[r], sizeof got, cudaMemcpyDeviceToHost));
            CHECK(memcmp(got, want, static_cast<size_t>(n_ids) * sizeof *got) == 0);
            CHECK(r == 0 || got[n_ids] == 0);
        }
    }
    close_group(&g);
}

/* ------------------------------------------------------------------ best tokens */

#define BEST_ROWS 19
#define BEST_COLS 2300 /* of rank 0; others have 16 more each */

static int32_t best_cols(int r)
{
    return BEST_COLS + 16 * r;
}

/* Logits of a few values, so that every rank has many of the greatest, and rows in which nothing
 * may be chosen: with NaN or +infinity in one place, or of -infinity alone. */
static float best_logit(int row, int32_t id, int32_t n_vocab)
{
    const uint32_t h = byte_of(7, static_cast<uint32_t>(row), static_cast<uint32_t>(id), 3);
    if (row % 6 == 2)
        return id == n_vocab - 1 - row ? 5.0f : -INFINITY;
    if (row % 6 == 3)
        return -INFINITY;
    if (row % 6 == 4 && id == row * 97 % n_vocab)
        return row % 12 == 4 ? NAN : INFINITY;
    if (row % 6 == 5) /* the best one is alone */
        return id == row * 331 % n_vocab ? -0.5f : -1.0f - static_cast<float>(h);
    return row % 6 == 1 && h < 128 ? -0.0f : static_cast<float>(h / 128) - (row % 6 == 1 ? 1 : 0);
}

static int32_t best_want(int row, int32_t n_vocab)
{
    int32_t best = -1;
    for (int32_t i = 0; i < n_vocab; i++) {
        const float x = best_logit(row, i, n_vocab);
        if (!(x < INFINITY))
            return -1;
        if (x > -INFINITY && (best < 0 || x > best_logit(row, best, n_vocab)))
            best = i;
    }
    return best;
}

/* Every rank finds the first of the greatest, wherever it lies; between gathers, too. */
static void test_best(int n)
{
    struct group g;
    int32_t got[MOST_IDS], first[SL_MAX_RANKS + 1] = {};
    float *logits[SL_MAX_RANKS];
    open_group(&g, n);
    for (int r = 0; r < n; r++)
        first[r + 1] = first[r] + best_cols(r);
    for (int r = 0; r < n; r++) {
        const int32_t cols = best_cols(r);
        std::vector<float> host(static_cast<size_t>(BEST_ROWS * cols));
        for (int i = 0; i < BEST_ROWS; i++)
            for (int32_t k = 0; k < cols; k++)
                host[static_cast<size_t>(i * cols + k)] = best_logit(i, first[r] + k, first[n]);
        const size_t size = host.size() * sizeof(float);
        sl_cuda_use(sl_cuda(g.be[r]));
        MUST(cudaMalloc(&logits[r], size + BEST_ROWS * SL_BEST_ROOM));
        MUST(cudaMemcpy(logits[r], host.data(), size, cudaMemcpyHostToDevice));
    }
    const struct shape s = even(n, 3, 96);
    for (int rows : {BEST_ROWS, 1}) {
        enqueue_all(&g, &s);
        for (int r = 0; r < n; r++) {
            const int32_t cols = best_cols(r);
            const struct sl_best_ids op = {&g.rank[r], logits[r], rows,
                                           cols,       first[r],  logits[r] + BEST_ROWS * cols};
            sl_cuda_use(sl_cuda(g.be[r]));
            MUST(cudaMemsetAsync(g.ids[r], 0x55, MOST_IDS * sizeof(int32_t),
                                 sl_cuda(g.be[r])->stream));
            g.be[r]->vt->device->best_ids(g.be[r], &op);
        }
        enqueue_all(&g, &s);
        CHECK(settle(&g) == 0);
        for (int r = 0; r < n; r++) {
            MUST(cudaMemcpy(got, g.ids[r], sizeof got, cudaMemcpyDeviceToHost));
            for (int i = 0; i < rows; i++)
                CHECK(got[i] == best_want(i, first[n]));
            CHECK(got[rows] == 0x55555555);
        }
    }
    for (int r = 0; r < n; r++) {
        sl_cuda_use(sl_cuda(g.be[r]));
        cudaFree(logits[r]);
    }
    close_group(&g);
}

/* Numbers go round, and what an earlier round of them left passes for nothing. */
static void test_wrap(int n)
{
    struct group g;
    open_group(&g, n);
    const size_t lines = 512, size = g.comm->piece_bytes - 2 * ROOM_BYTES - lines;
    uint8_t *host = static_cast<uint8_t *>(malloc(size));
    for (int r = 0; r < n; r++) {
        const unsigned long long turn = 0xFFFFFFFBull << 32;
        sl_cuda_use(sl_cuda(g.be[r]));
        MUST(cudaMemcpy(g.comm->piece[r], &turn, sizeof turn, cudaMemcpyHostToDevice));
        MUST(cudaMemset(g.comm->piece[r] + lines, 1, size));
        MUST(cudaDeviceSynchronize());
    }
    for (uint32_t i = 0; i < 12; i++) {
        const struct shape s = even(n, 1, 8); /* one line */
        enqueue_all(&g, &s);
    }
    CHECK(settle(&g) == 0);
    for (int r = 0; r < n && n > 1; r++) {
        MUST(cudaMemcpy(host, g.comm->piece[r] + lines, size, cudaMemcpyDeviceToHost));
        size_t zeros = 0; /* of lines; the last of each set and rank is left */
        for (size_t i = 0; i < size; i += 16) {
            static const uint8_t none[16] = {};
            zeros += memcmp(host + i, none, 16) == 0;
        }
        CHECK(zeros >= static_cast<size_t>(n - 1) * 8);
    }
    free(host);
    close_group(&g);
}

/* Rank n - 1 never comes: the others end, and say so, and so do their next steps at once. */
static void test_lost(int n)
{
    struct group g;
    struct sl_error err = {};
    char who[40];
    open_group(&g, n);
    sl_cuda_comm_tune(g.comm, 200 * 1000000ull, SL_COMM_SMALL);
    snprintf(who, sizeof who, "waiting for rank %d of", n - 1);
    const struct shape s = even(n, 2, 64);
    enqueue_all(&g, &s);
    CHECK(settle(&g) == 0);
    for (int i = 0; i < 50; i++)
        for (int r = 0; r < n - 1; r++)
            enqueue(&g, r, &s);
    for (int r = 0; r < n - 1; r++) {
        struct sl_cuda *cu = sl_cuda(g.be[r]);
        sl_cuda_use(cu);
        MUST(cudaStreamSynchronize(cu->stream));
        CHECK(sl_cuda_report(cu, &err) == SL_EDEVICE);
        CHECK(strstr(err.msg, who) != NULL);
        if (strstr(err.msg, who) == NULL)
            printf("rank %d: %s\n", r, err.msg);
    }
    close_group(&g);
}

static void test_refused()
{
    struct sl_error err = {};
    struct sl_backend *be[2] = {};
    struct sl_comm *comm = NULL;
    const struct sl_cuda_config cfg[2] = {{0, 1, false}, {1, 1, false}};
    CHECK(sl_cuda_create(&cfg[0], &be[0], &err) == 0);
    CHECK(sl_cuda_create(&cfg[1], &be[1], &err) == 0);
    struct sl_backend *twice[2] = {be[0], be[0]};
    CHECK(sl_cuda_comm_create(twice, 2, 100, &comm, &err) == SL_EUNSUPPORTED && comm == NULL);
    CHECK(strstr(err.msg, "cuda:0 is given twice") != NULL);
    CHECK(sl_cuda_comm_create(be, 2, (size_t)4 << 30, &comm, &err) == SL_EUNSUPPORTED);
#ifdef SL_CUDA_SIM
    sl_sim_set_peers(false);
    CHECK(sl_cuda_comm_create(be, 2, 100, &comm, &err) == SL_EUNSUPPORTED && comm == NULL);
    CHECK(strstr(err.msg, "cannot reach the memory of cuda:1") != NULL);
    sl_sim_set_peers(true);
    for (int i = 1; i <= 2; i++) {
        sl_sim_fail_malloc(i);
        CHECK(sl_cuda_comm_create(be, 2, 100, &comm, &err) == SL_ENOMEM && comm == NULL);
    }
    sl_sim_fail_malloc_host(1);
    CHECK(sl_cuda_comm_create(be, 2, 100, &comm, &err) == SL_ENOMEM && comm == NULL);
    sl_sim_fail_launch(2);
    CHECK(sl_cuda_comm_create(be, 2, 100, &comm, &err) == SL_EDEVICE && comm == NULL);
#endif
    for (int i = 0; i < 2; i++)
        be[i]->vt->destroy(be[i]);
}

int main()
{
#ifdef SL_CUDA_SIM
    sl_sim_set_devices(SL_MAX_RANKS);
    sl_sim_set_eager(false); /* one thread enqueues for all ranks */
#else
    setenv("CUDA_MODULE_LOADING", "EAGER", 0);
#endif
    static const int counts[] = {1, 2, 3, 8};
    if (device_count() < 2) {
        printf("test_comm: %d device(s): nothing to test\n", device_count());
        return 0;
    }
    for (size_t i = 0; i < SL_COUNT(counts); i++) {
        const int n = counts[i];
        if (n > device_count())
            continue;
        test_finds(n);
        test_sizes(n);
        test_different(n);
        test_many(n);
        test_recorded(n);
        test_threads(n);
        test_ahead(n);
        test_ids(n);
        test_best(n);
        test_wrap(n);
        if (n > 1)
            test_lost(n);
        printf("test_comm: %d ranks: %d passed, %d failed\n", n, n_passed, n_failed);
        fflush(stdout);
    }
    test_refused();
    printf("test_comm: %d passed, %d failed\n", n_passed, n_failed);
    return n_failed > 0;
}
