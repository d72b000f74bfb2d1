/* SPDX-License-Identifier: MIT
 * Bulk copies to the device: from wherever the bytes lie, mostly the page cache, through a ring of
 * pinned pieces. A few threads copy into the ring while earlier pieces travel; only the caller
 * talks to the runtime, so that pieces leave in order and an error has one place to go. The ring
 * outlives loading, without its threads, for the few small things that are uploaded beside steps:
 * they neither allocate nor wait as long as they are fewer than its pieces.
 *
 * Why so: the runtime copies from memory that is not pinned through one staging buffer and one
 * thread, and pinning a mapping of a file page by page takes longer than copying it. One core reads
 * the page cache at about 10 GB/s, PCIe 5 x16 takes about 50 GB/s: 8 threads are about enough
 * (predicted, to be measured: bytes per second by number of threads and piece size).
 */
#include "cuda/step/step.h"

#include <string.h>

#define N_SLOTS     16 /* twice the threads: half are filled while half travel */
#define N_STREAMS   2  /* so that the end of one piece and the start of the next overlap */
#define SLOT_BYTES  (static_cast<size_t>(2) << 20)
#define PIECE_MIN   (static_cast<size_t>(256) << 10)
#define MAX_THREADS 8

enum slot_state { SLOT_EMPTY, SLOT_WAITING, SLOT_FILLING, SLOT_FULL };

struct stage_slot {
    uint8_t *pinned;
    uint8_t *dst; /* device */
    const uint8_t *src;
    size_t n;
    enum slot_state state;
    cudaEvent_t sent; /* its last copy has arrived */
    bool on_the_way;  /* sent was recorded and not seen yet; caller only */
};

struct sl_cuda_stager {
    pthread_mutex_t lock;
    pthread_cond_t work, filled;
    struct stage_slot slot[N_SLOTS]; /* state and n_waiting under the lock */
    int32_t n_waiting;
    bool stop;
    pthread_t thread[MAX_THREADS];
    int n_threads;
    uint8_t *pinned;
    uint64_t n_used; /* slots ever used: the next copy goes on where the last one ended */
    cudaStream_t stream[N_STREAMS];
    cudaEvent_t before, after[N_STREAMS];
};

/* ------------------------------------------------------------------ threads */

/* Fills the first waiting slot; the lock is held before and after. False: none waits. */
static bool fill_one(struct sl_cuda_stager *st)
{
    for (int i = 0; i < N_SLOTS && st->n_waiting > 0; i++) {
        struct stage_slot *s = &st->slot[i];
        if (s->state != SLOT_WAITING)
            continue;
        s->state = SLOT_FILLING;
        st->n_waiting--;
        pthread_mutex_unlock(&st->lock);
        memcpy(s->pinned, s->src, s->n);
        pthread_mutex_lock(&st->lock);
        s->state = SLOT_FULL;
        pthread_cond_signal(&st->filled);
        return true;
    }
    return false;
}

static void *fill_main(void *arg)
{
    struct sl_cuda_stager *st = static_cast<struct sl_cuda_stager *>(arg);
    pthread_mutex_lock(&st->lock);
    while (!st->stop)
        if (!fill_one(st))
            pthread_cond_wait(&st->work, &st->lock);
    pthread_mutex_unlock(&st->lock);
    return NULL;
}

/* ------------------------------------------------------------------ start and end */

static bool ok(struct sl_cuda *cu, cudaError_t e, const char *what)
{
    sl_cuda_check(cu, e, what);
    return e == cudaSuccess;
}

static bool make_events(struct sl_cuda *cu, struct sl_cuda_stager *st)
{
    const unsigned flags = cudaEventBlockingSync | cudaEventDisableTiming;
    bool good = ok(cu, cudaEventCreateWithFlags(&st->before, flags), "cudaEventCreateWithFlags");
    for (int i = 0; i < N_SLOTS && good; i++)
        good =
            ok(cu, cudaEventCreateWithFlags(&st->slot[i].sent, flags), "cudaEventCreateWithFlags");
    for (int i = 0; i < N_STREAMS && good; i++)
        good = ok(cu, cudaEventCreateWithFlags(&st->after[i], flags), "cudaEventCreateWithFlags") &&
               ok(cu, cudaStreamCreateWithFlags(&st->stream[i], cudaStreamNonBlocking),
                  "cudaStreamCreateWithFlags");
    return good;
}

static bool make_ring(struct sl_cuda *cu, struct sl_cuda_stager *st)
{
    void *p = NULL;
    if (!ok(cu, cudaMallocHost(&p, N_SLOTS * SLOT_BYTES), "cudaMallocHost of the staging ring"))
        return false;
    cu->counts.host_allocs++;
    st->pinned = static_cast<uint8_t *>(p);
    for (int i = 0; i < N_SLOTS; i++)
        st->slot[i].pinned = st->pinned + static_cast<size_t>(i) * SLOT_BYTES;
    return true;
}

/* Threads that cannot be started are done without: the caller fills what nobody else does. */
static void load_start_threads(struct sl_cuda_stager *st, int n)
{
    for (int i = 0; i < SL_MIN(n, MAX_THREADS); i++) {
        if (sl_thread_create(&st->thread[i], fill_main, st, "sl-copy", NULL) != 0)
            return;
        st->n_threads++;
    }
}

static struct sl_cuda_stager *stager(struct sl_cuda *cu)
{
    if (cu->stager != NULL)
        return cu->stager;
    struct sl_cuda_stager *st =
        static_cast<struct sl_cuda_stager *>(sl_calloc(1, sizeof(struct sl_cuda_stager)));
    if (st == NULL) {
        sl_cuda_check(cu, cudaErrorMemoryAllocation, "host memory for staging");
        return NULL;
    }
    pthread_mutex_init(&st->lock, NULL);
    pthread_cond_init(&st->work, NULL);
    pthread_cond_init(&st->filled, NULL);
    cu->stager = st;
    if (!make_ring(cu, st) || !make_events(cu, st)) {
        sl_cuda_stager_destroy(cu);
        return NULL;
    }
    load_start_threads(st, cu->n_copy_threads - 1);
    return st;
}

static void stop_threads(struct sl_cuda_stager *st)
{
    pthread_mutex_lock(&st->lock);
    st->stop = true;
    pthread_cond_broadcast(&st->work);
    pthread_mutex_unlock(&st->lock);
    for (int i = 0; i < st->n_threads; i++)
        pthread_join(st->thread[i], NULL);
    st->n_threads = 0;
}

bool sl_cuda_stager_ready(struct sl_cuda *cu)
{
    return stager(cu) != NULL;
}

void sl_cuda_stager_destroy(struct sl_cuda *cu)
{
    struct sl_cuda_stager *st = cu->stager;
    if (st == NULL)
        return;
    stop_threads(st);
    for (int i = 0; i < N_STREAMS; i++) {
        if (st->stream[i] != NULL) {
            cudaStreamSynchronize(st->stream[i]);
            cudaStreamDestroy(st->stream[i]);
        }
        if (st->after[i] != NULL)
            cudaEventDestroy(st->after[i]);
    }
    for (int i = 0; i < N_SLOTS; i++)
        if (st->slot[i].sent != NULL)
            cudaEventDestroy(st->slot[i].sent);
    if (st->before != NULL)
        cudaEventDestroy(st->before);
    if (st->pinned != NULL)
        cudaFreeHost(st->pinned);
    pthread_cond_destroy(&st->filled);
    pthread_cond_destroy(&st->work);
    pthread_mutex_destroy(&st->lock);
    cu->stager = NULL;
    sl_free(st);
}

/* ------------------------------------------------------------------ one copy */

struct stage_copy { /* of one call, cut into pieces; each uses the next slot of the ring */
    struct sl_cuda *cu;
    struct sl_cuda_stager *st;
    uint8_t *dst;
    const uint8_t *src;
    size_t n, piece;
    uint64_t n_pieces, n_put, n_sent;
    int n_streams;
};

/* Pieces small enough that every thread has two, large enough that a copy's start costs little. */
static size_t piece_bytes(size_t n, int n_threads)
{
    if (n_threads == 0)
        return SLOT_BYTES;
    size_t share = SL_CEIL_DIV(n, static_cast<size_t>(2 * (n_threads + 1)));
    share = SL_ROUND_UP(share, static_cast<size_t>(4096));
    return SL_MIN(SL_MAX(share, PIECE_MIN), SLOT_BYTES);
}

static struct stage_slot *load_slot(struct stage_copy *c, uint64_t piece)
{
    return &c->st->slot[(c->st->n_used + piece) % N_SLOTS];
}

/* Is the slot's pinned memory free to be written? wait: sleeps until it is. */
static bool slot_free(struct stage_copy *c, struct stage_slot *s, bool wait)
{
    if (!s->on_the_way)
        return true;
    cudaError_t e = cudaEventQuery(s->sent);
    if (e == cudaErrorNotReady) {
        if (!wait)
            return false;
        c->cu->counts.late_waits += c->cu->steps != NULL;
        e = cudaEventSynchronize(s->sent);
    }
    ok(c->cu, e, "copy to the device");
    s->on_the_way = false;
    return true;
}

/* The lock is held. */
static void load_put_piece(struct stage_copy *c)
{
    struct stage_slot *s = load_slot(c, c->n_put);
    size_t at = static_cast<size_t>(c->n_put) * c->piece;
    s->dst = c->dst + at;
    s->src = c->src + at;
    s->n = SL_MIN(c->piece, c->n - at);
    s->state = SLOT_WAITING;
    c->st->n_waiting++;
    c->n_put++;
    pthread_cond_signal(&c->st->work);
}

static void send_piece(struct stage_copy *c)
{
    struct stage_slot *s = load_slot(c, c->n_sent);
    cudaStream_t stream = c->n_streams > 1
                              ? c->st->stream[c->n_sent % static_cast<uint64_t>(c->n_streams)]
                              : c->cu->stream;
    s->state = SLOT_EMPTY;
    ok(c->cu, cudaMemcpyAsync(s->dst, s->pinned, s->n, cudaMemcpyHostToDevice, stream),
       "cudaMemcpyAsync to the device");
    s->on_the_way = ok(c->cu, cudaEventRecord(s->sent, stream), "cudaEventRecord");
    c->n_sent++;
}

/* Sends what is full, hands out what fits, fills when there is nothing better to do, and sleeps
 * only when the others have all the work. The lock is held except where something may take long. */
static void copy_pieces(struct stage_copy *c)
{
    struct sl_cuda_stager *st = c->st;
    pthread_mutex_lock(&st->lock);
    while (c->n_sent < c->n_pieces) {
        bool in_ring = c->n_sent < c->n_put;
        if (in_ring && load_slot(c, c->n_sent)->state == SLOT_FULL) {
            send_piece(c);
            continue;
        }
        if (c->n_put < c->n_pieces && c->n_put - c->n_sent < N_SLOTS &&
            slot_free(c, load_slot(c, c->n_put), !in_ring)) {
            load_put_piece(c);
            continue;
        }
        if (!fill_one(st))
            pthread_cond_wait(&st->filled, &st->lock);
    }
    st->n_used += c->n_pieces;
    pthread_mutex_unlock(&st->lock);
}

/* The copy streams start after what cu->stream holds now, and it goes on after them. */
static void join_before(struct stage_copy *c)
{
    ok(c->cu, cudaEventRecord(c->st->before, c->cu->stream), "cudaEventRecord");
    for (int i = 0; i < c->n_streams; i++)
        ok(c->cu, cudaStreamWaitEvent(c->st->stream[i], c->st->before, 0), "cudaStreamWaitEvent");
}

static void join_after(struct stage_copy *c)
{
    for (int i = 0; i < c->n_streams; i++) {
        ok(c->cu, cudaEventRecord(c->st->after[i], c->st->stream[i]), "cudaEventRecord");
        ok(c->cu, cudaStreamWaitEvent(c->cu->stream, c->st->after[i], 0), "cudaStreamWaitEvent");
    }
}

void sl_cuda_stage(struct sl_cuda *cu, void *dst_device, const void *src_host, size_t n)
{
    if (n == 0 || cu->error != cudaSuccess)
        return;
    sl_cuda_use(cu);
    struct sl_cuda_stager *st = stager(cu);
    if (st == NULL)
        return;
    struct stage_copy c = {};
    c.cu = cu;
    c.st = st;
    c.dst = static_cast<uint8_t *>(dst_device);
    c.src = static_cast<const uint8_t *>(src_host);
    c.n = n;
    c.piece = piece_bytes(n, st->n_threads);
    c.n_pieces = SL_CEIL_DIV(n, c.piece);
    c.n_streams = c.n_pieces > 1 ? N_STREAMS : 1;
    if (c.n_streams > 1)
        join_before(&c);
    copy_pieces(&c);
    if (c.n_streams > 1)
        join_after(&c);
}

void *sl_cuda_pack_buffer(struct sl_cuda *cu, size_t n_bytes)
{
    if (n_bytes <= cu->pack_bytes)
        return cu->pack_buffer;
    sl_cuda_free(cu, cu->pack_buffer, cu->pack_bytes); /* waits for the kernels that read it */
    cu->pack_buffer = sl_cuda_alloc(cu, n_bytes);
    cu->pack_bytes = cu->pack_buffer != NULL ? n_bytes : 0;
    return cu->pack_buffer;
}

int sl_cuda_load_end(struct sl_backend *be, struct sl_error *err)
{
    struct sl_cuda *cu = sl_cuda(be);
    sl_cuda_use(cu);
    cu->counts.syncs++;
    sl_cuda_check(cu, cudaStreamSynchronize(cu->stream), "cudaStreamSynchronize after loading");
    if (cu->stager != NULL)
        stop_threads(cu->stager);
    sl_cuda_free(cu, cu->pack_buffer, cu->pack_bytes);
    cu->pack_buffer = NULL;
    cu->pack_bytes = 0;
    return sl_cuda_report(cu, err);
}
