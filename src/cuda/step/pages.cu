/* SPDX-License-Identifier: MIT
 * Copies of pages between the device and the host: two streams for each way, ordered against the
 * stream of steps by events, so that a step runs beside them unless it is told to wait. Two, as
 * between two copies of one stream its copy engine stands still for 4 us, a tenth of what 2 MB
 * take.
 *
 * A page is one piece of memory at both ends (kv/layout.h), mostly of 100 KB to some MB, so a copy
 * engine moves it by itself. They are given to the driver many at a time, as between two calls a
 * copy engine stands still for longer than 64 KB take (256 KB: 92 to 95 % of the plain rate, by
 * calls 56 to 60); they wait for each other until the batch is full, or somebody sends or depends
 * on them. Blocks of a kernel that copies are as fast to the host, but to the GPU they are not, and
 * they take their place from the step's. A copy begins behind the steps enqueued
 * before it, which fill the page that leaves, or read what the page held that comes. The first copy
 * of a stream after pages_send waits for the steps, those behind it follow in their stream.
 *
 * The end of some copies is an event. There is room for many of them; if it is used up, the copies
 * sent last get theirs with the next ones.
 *
 * A copy engine does one way's copies in the order in which they came, whatever their streams: the
 * arrays of a step, a few KB, would wait for all pages ahead of them, some ms. While there are any
 * a kernel copies such arrays, which reads and writes the pinned memory itself.
 */
#include "cuda/step/step.h"

#include "cuda/launch.cuh"
#include "cuda/ptx_host.cuh"

#include <cuda_runtime_api.h>

#define MARKS        64        /* events of a way under way, a power of two */
#define SMALL        (1 << 20) /* bytes that a kernel copies, a fifth as fast as a copy engine */
#define SMALL_BLOCK  256
#define BETWEEN      16
#define SMALL_BLOCKS 16 /* few, so that the step ahead has the others */

#define LANES 2          /* streams of a way, by turns */
#define BATCH 64         /* pages given to the driver at a time */
#define ALONE (16 << 20) /* bytes from which on a page is given alone */

struct mark {
    cudaEvent_t events[LANES];
    uint64_t n; /* copies before it */
};

struct lane {
    cudaStream_t stream;
    cudaEvent_t now;    /* its end as of some call, for another stream */
    bool follows_steps; /* so do copies enqueued until the next pages_send */
};

struct batch { /* copies that were begun and not given to the driver yet */
    void *dst[BATCH];
    const void *src[BATCH];
    size_t n_bytes[BATCH];
    int n;
};

struct page_way {
    struct lane lanes[LANES];
    struct batch batch;
    unsigned turn;            /* of the lanes */
    struct mark marks[MARKS]; /* a ring */
    uint32_t first, n_marks;
    uint64_t n_begun, n_marked, n_over; /* copies */
};

struct sl_cuda_pages {
    struct page_way ways[SL_N_PAGE_WAYS];
    cudaEvent_t steps; /* the end of the steps */
    uint8_t *between;  /* device: BETWEEN bytes that nobody reads */
    bool one_by_one;   /* the driver takes no batches */
};

int sl_cuda_pin(int device, void *p, size_t n_bytes, struct sl_error *err)
{
    cudaError_t e = cudaSetDevice(device);
    if (e == cudaSuccess)
        e = cudaHostRegister(p, n_bytes, cudaHostRegisterPortable);
    if (e == cudaSuccess)
        return 0;
    cudaGetLastError();
    return sl_fail(err, SL_ENOMEM, "cuda:%d: %zu bytes of host memory cannot be pinned: %s", device,
                   n_bytes, cudaGetErrorString(e));
}

void sl_cuda_unpin(int device, void *p)
{
    if (cudaSetDevice(device) != cudaSuccess || cudaHostUnregister(p) != cudaSuccess)
        cudaGetLastError(); /* of a lost device */
}

int sl_cuda_number(struct sl_backend *be)
{
    return sl_cuda(be)->device;
}

/* ------------------------------------------------------------------ start and end */

static bool make_event(struct sl_cuda *cu, cudaEvent_t *event)
{
    cudaError_t e = cudaEventCreateWithFlags(event, cudaEventDisableTiming | cudaEventBlockingSync);
    if (e != cudaSuccess)
        *event = NULL;
    sl_cuda_check(cu, e, "cudaEventCreateWithFlags");
    return e == cudaSuccess;
}

static bool make_way(struct sl_cuda *cu, struct page_way *w)
{
    bool good = true;
    for (int k = 0; k < LANES && good; k++) {
        struct lane *l = &w->lanes[k];
        cudaError_t e = cudaStreamCreateWithFlags(&l->stream, cudaStreamNonBlocking);
        if (e != cudaSuccess)
            l->stream = NULL;
        sl_cuda_check(cu, e, "cudaStreamCreateWithFlags");
        good = e == cudaSuccess && make_event(cu, &l->now);
    }
    for (int i = 0; i < MARKS * LANES && good; i++)
        good = make_event(cu, &w->marks[i / LANES].events[i % LANES]);
    return good;
}

int sl_cuda_pages_init(struct sl_backend *be, struct sl_error *err)
{
    struct sl_cuda *cu = sl_cuda(be);
    SL_ASSERT(cu->steps != NULL && cu->steps->pages == NULL);
    sl_cuda_use(cu);
    cu->steps->pages =
        static_cast<struct sl_cuda_pages *>(sl_calloc(1, sizeof(struct sl_cuda_pages)));
    if (cu->steps->pages == NULL)
        return sl_fail(err, SL_ENOMEM, "cuda:%d: out of memory for copies of pages", cu->device);
    cu->steps->pages->between = static_cast<uint8_t *>(sl_cuda_alloc(cu, BETWEEN));
    if (cu->steps->pages->between == NULL)
        return sl_cuda_no_memory(cu, BETWEEN, "copies of pages", err);
    bool good = make_event(cu, &cu->steps->pages->steps);
    for (int i = 0; i < SL_N_PAGE_WAYS && good; i++)
        good = make_way(cu, &cu->steps->pages->ways[i]);
    int rc = sl_cuda_report(cu, err);
    if (rc != 0)
        sl_cuda_pages_deinit(cu, cu->steps);
    return rc;
}

static void destroy_event(cudaEvent_t event)
{
    if (event != NULL)
        cudaEventDestroy(event);
}

void sl_cuda_pages_deinit(struct sl_cuda *cu, struct sl_cuda_steps *s)
{
    struct sl_cuda_pages *p = s->pages;
    if (p == NULL)
        return;
    for (int i = 0; i < SL_N_PAGE_WAYS; i++) {
        struct page_way *w = &p->ways[i];
        for (int k = 0; k < LANES; k++) {
            if (w->lanes[k].stream != NULL) {
                cudaStreamSynchronize(w->lanes[k].stream);
                cudaStreamDestroy(w->lanes[k].stream);
            }
            destroy_event(w->lanes[k].now);
        }
        for (int k = 0; k < MARKS * LANES; k++)
            destroy_event(w->marks[k / LANES].events[k % LANES]);
    }
    destroy_event(p->steps);
    sl_cuda_free(cu, p->between, BETWEEN);
    s->pages = NULL;
    sl_free(p);
}

/* ------------------------------------------------------------------ copies */

/* What is enqueued on `to` from now on runs behind all that is enqueued on `from`. */
static void follow(struct sl_cuda *cu, cudaStream_t to, cudaStream_t from, cudaEvent_t event)
{
    sl_cuda_check(cu, cudaEventRecord(event, from), "cudaEventRecord");
    sl_cuda_check(cu, cudaStreamWaitEvent(to, event, 0), "cudaStreamWaitEvent");
}

/* The lane whose turn it is. Its copies begin behind the steps. */
static cudaStream_t next_lane(struct sl_cuda *cu, struct page_way *w)
{
    struct lane *l = &w->lanes[w->turn++ % LANES];
    if (!l->follows_steps)
        follow(cu, l->stream, cu->stream, cu->steps->pages->steps);
    l->follows_steps = true;
    return l->stream;
}

static void copy(struct sl_cuda *cu, enum sl_page_way way, void *dst, const void *src,
                 size_t n_bytes)
{
    const cudaMemcpyKind kind =
        way == SL_PAGES_OUT ? cudaMemcpyDeviceToHost : cudaMemcpyHostToDevice;
    cudaStream_t stream = next_lane(cu, &cu->steps->pages->ways[way]);
    sl_cuda_check(cu, cudaMemcpyAsync(dst, src, n_bytes, kind, stream),
                  "cudaMemcpyAsync of a page");
}

/* False: the driver does not do so. */
static bool copy_batch(struct sl_cuda *cu, struct page_way *w)
{
#if CUDART_VERSION >= 13000
    cudaMemcpyAttributes how = {};
    size_t first = 0;
    struct batch *b = &w->batch;
    how.srcAccessOrder = cudaMemcpySrcAccessOrderStream;
    how.flags = cudaMemcpyFlagPreferOverlapWithCompute;
    SL_ASSERT(b->n > 0 && b->n <= BATCH);
    const cudaError_t e = cudaMemcpyBatchAsync(
        b->dst, b->src, b->n_bytes, static_cast<size_t>(b->n), &how, &first, 1, next_lane(cu, w));
    if (e == cudaErrorCallRequiresNewerDriver || e == cudaErrorNotSupported ||
        e == cudaErrorInvalidValue) { /* an older driver, or memory that is not pinned */
        cudaGetLastError();
        return false;
    }
    sl_cuda_check(cu, e, "cudaMemcpyBatchAsync of pages");
    return true;
#else
    (void)cu;
    (void)w;
    return false;
#endif
}

/* Gives the batch to the driver. */
static void flush(struct sl_cuda *cu, enum sl_page_way way)
{
    struct sl_cuda_pages *p = cu->steps->pages;
    struct page_way *w = &p->ways[way];
    struct batch *b = &w->batch;
    SL_ASSERT(b->n >= 0 && b->n <= BATCH);
    const bool done = b->n > 1 && !p->one_by_one && copy_batch(cu, w);
    p->one_by_one |= b->n > 1 && !done;
    for (int i = 0; i < b->n && !done; i++)
        copy(cu, way, b->dst[i], b->src[i], b->n_bytes[i]);
    b->n = 0;
}

static void flush_all(struct sl_cuda *cu)
{
    for (int i = 0; i < SL_N_PAGE_WAYS; i++)
        flush(cu, static_cast<enum sl_page_way>(i));
}

int sl_cuda_page_copy(struct sl_backend *be, enum sl_page_way way, void *dst, const void *src,
                      size_t n_bytes, struct sl_error *err)
{
    struct sl_cuda *cu = sl_cuda(be);
    SL_ASSERT(cu->steps->pages != NULL && n_bytes > 0 && way < SL_N_PAGE_WAYS);
    struct page_way *w = &cu->steps->pages->ways[way];
    struct batch *b = &w->batch;
    sl_cuda_use(cu);
    if (n_bytes >= ALONE) {
        copy(cu, way, dst, src, n_bytes);
    } else {
        b->dst[b->n] = dst;
        b->src[b->n] = src;
        b->n_bytes[b->n++] = n_bytes;
        if (b->n == BATCH)
            flush(cu, way);
    }
    w->n_begun++;
    return sl_cuda_report(cu, err);
}

int sl_cuda_pages_follow(struct sl_backend *be, enum sl_page_way way, struct sl_error *err)
{
    struct sl_cuda *cu = sl_cuda(be);
    SL_ASSERT(cu->steps->pages != NULL && way < SL_N_PAGE_WAYS);
    sl_cuda_use(cu);
    flush_all(cu);
    for (int i = 0; i < SL_N_PAGE_WAYS * LANES; i++) {
        struct page_way *w = &cu->steps->pages->ways[i / LANES];
        for (int k = 0; k < LANES && w->n_over < w->n_begun; k++) {
            const struct lane *l = &cu->steps->pages->ways[way].lanes[k];
            if (l != &w->lanes[i % LANES])
                follow(cu, l->stream, w->lanes[i % LANES].stream, w->lanes[i % LANES].now);
        }
    }
    return sl_cuda_report(cu, err);
}

static void record(struct sl_cuda *cu, const struct page_way *w, const cudaEvent_t *events)
{
    for (int k = 0; k < LANES; k++)
        sl_cuda_check(cu, cudaEventRecord(events[k], w->lanes[k].stream), "cudaEventRecord");
}

int sl_cuda_pages_send(struct sl_backend *be, struct sl_error *err)
{
    struct sl_cuda *cu = sl_cuda(be);
    SL_ASSERT(cu->steps->pages != NULL);
    sl_cuda_use(cu);
    flush_all(cu);
    for (int i = 0; i < SL_N_PAGE_WAYS; i++) {
        struct page_way *w = &cu->steps->pages->ways[i];
        for (int k = 0; k < LANES; k++)
            w->lanes[k].follows_steps = false;
        if (w->n_marked == w->n_begun || w->n_marks == MARKS)
            continue;
        struct mark *m = &w->marks[(w->first + w->n_marks++) % MARKS];
        m->n = w->n_marked = w->n_begun;
        record(cu, w, m->events);
    }
    return sl_cuda_report(cu, err);
}

/* Are all copies before the mark over? */
static bool is_over(struct sl_cuda *cu, const struct mark *m)
{
    cudaError_t e = cudaSuccess;
    for (int k = 0; k < LANES && e == cudaSuccess; k++)
        e = cudaEventQuery(m->events[k]);
    if (e != cudaErrorNotReady)
        sl_cuda_check(cu, e, "cudaEventQuery of copies of pages");
    return e == cudaSuccess;
}

static void look(struct sl_cuda *cu, struct page_way *w)
{
    while (w->n_marks > 0 && is_over(cu, &w->marks[w->first])) {
        const struct mark *m = &w->marks[w->first];
        SL_ASSERT(m->n > w->n_over && m->n <= w->n_begun);
        w->n_over = m->n;
        w->first = (w->first + 1) % MARKS;
        w->n_marks--;
    }
}

int sl_cuda_pages_over(struct sl_backend *be, bool wait, struct sl_page_counts *over,
                       struct sl_error *err)
{
    struct sl_cuda *cu = sl_cuda(be);
    SL_ASSERT(cu->steps->pages != NULL);
    sl_cuda_use(cu);
    if (wait)
        flush_all(cu);
    for (int i = 0; i < SL_N_PAGE_WAYS; i++) {
        struct page_way *w = &cu->steps->pages->ways[i];
        for (int k = 0; k < LANES && wait && w->n_over < w->n_begun; k++)
            sl_cuda_check(cu, cudaStreamSynchronize(w->lanes[k].stream), "cudaStreamSynchronize");
        look(cu, w);
        if (wait && cu->error == cudaSuccess)
            w->n_over = w->n_marked = w->n_begun;
        over->n[i] = w->n_over;
    }
    return sl_cuda_report(cu, err);
}

/* Steps run behind the first n copies. */
static void await(struct sl_cuda *cu, const struct page_way *w, uint64_t n)
{
    const struct mark *m = NULL;
    for (uint32_t i = 0; i < w->n_marks && m == NULL; i++)
        if (w->marks[(w->first + i) % MARKS].n >= n)
            m = &w->marks[(w->first + i) % MARKS];
    for (int k = 0; k < LANES; k++) {
        const struct lane *l = &w->lanes[k];
        if (m == NULL)
            follow(cu, cu->stream, l->stream, l->now);
        else
            sl_cuda_check(cu, cudaStreamWaitEvent(cu->stream, m->events[k], 0),
                          "cudaStreamWaitEvent");
    }
}

int sl_cuda_pages_await(struct sl_backend *be, const struct sl_page_counts *n, struct sl_error *err)
{
    struct sl_cuda *cu = sl_cuda(be);
    SL_ASSERT(cu->steps->pages != NULL);
    sl_cuda_use(cu);
    flush_all(cu);
    for (int i = 0; i < SL_N_PAGE_WAYS; i++) {
        const struct page_way *w = &cu->steps->pages->ways[i];
        SL_ASSERT(n->n[i] <= w->n_begun);
        if (n->n[i] > w->n_over)
            await(cu, w, n->n[i]);
    }
    return sl_cuda_report(cu, err);
}

/* ------------------------------------------------------------------ small copies beside them */

struct small_args {
    void *dst;
    const void *src;
    int32_t n; /* of 16 bytes, or of 4 */
};

template <bool WIDE>
static __global__ void __launch_bounds__(SMALL_BLOCK) small_copy_kernel(const small_args a)
{
    const int32_t first =
        static_cast<int32_t>(blockIdx.x) * SMALL_BLOCK + static_cast<int32_t>(threadIdx.x);
    sl_grid_launch_dependents();
    sl_grid_wait();
    for (int32_t i = first; i < a.n; i += static_cast<int32_t>(gridDim.x) * SMALL_BLOCK) {
        if (WIDE)
            static_cast<float4 *>(a.dst)[i] = sl_load_host4(static_cast<const float4 *>(a.src) + i);
        else
            static_cast<uint32_t *>(a.dst)[i] =
                *(static_cast<const volatile uint32_t *>(a.src) + i);
    }
}

void sl_cuda_small_copy(struct sl_cuda *cu, enum sl_page_way way, void *dst, const void *src,
                        size_t n_bytes, const char *what)
{
    const struct sl_cuda_pages *p = cu->steps->pages;
    const uintptr_t ends = reinterpret_cast<uintptr_t>(dst) | reinterpret_cast<uintptr_t>(src);
    SL_ASSERT(n_bytes > 0 && way < SL_N_PAGE_WAYS);
    if (p == NULL || p->ways[way].n_over == p->ways[way].n_begun || n_bytes > SMALL ||
        ((ends | n_bytes) & 3) != 0) {
        sl_cuda_check(
            cu,
            cudaMemcpyAsync(dst, src, n_bytes,
                            way == SL_PAGES_OUT ? cudaMemcpyDeviceToHost : cudaMemcpyHostToDevice,
                            cu->stream),
            what);
        return;
    }
    const bool wide = ((ends | n_bytes) & 15) == 0;
    const small_args a = {dst, src, static_cast<int32_t>(n_bytes / (wide ? 16 : 4))};
    const int32_t n_blocks = SL_MIN(SL_CEIL_DIV(a.n, SMALL_BLOCK), SMALL_BLOCKS);
    sl_launch(cu, wide ? small_copy_kernel<true> : small_copy_kernel<false>,
              dim3(static_cast<unsigned>(n_blocks)), dim3(SMALL_BLOCK), 0, a);
    /* Kernels of the step may begin beside the one ahead of them and read the step's arrays at
     * once, as they could behind a copy: so they can behind this, which nothing overlaps. */
    if (way == SL_PAGES_IN)
        sl_cuda_check(cu, cudaMemsetAsync(p->between, 0, BETWEEN, cu->stream), "cudaMemsetAsync");
}
