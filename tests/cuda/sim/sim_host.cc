/* SPDX-License-Identifier: MIT
 * sim_host.cc - streams, events, graphs and launches.
 *
 * A stream is a queue that runs when something waits for it; before that it may run a random
 * part of what it holds whenever it is given more. A kernel is begun when the queue reaches it but
 * finished only when the next entry needs it, so that a kernel with programmatic serialization
 * overlaps the one ahead. A kernel whose threads look for what another device will write stays
 * where it is meanwhile, and other streams go on, and other threads of the host.
 */
#include "sim_internal.h"

#include <cuda_runtime_api.h>

#include <deque>
#include <map>
#include <memory>
#include <mutex>
#include <sched.h>
#include <time.h>

enum op_kind { OP_KERNEL, OP_CALL, OP_EVENT, OP_WAIT_EVENT, OP_FENCE };

struct op {
    op_kind kind;
    uint64_t seq;
    std::shared_ptr<sim_kernel> kernel;
    std::function<void()> call;
    cudaEvent_t event;
    uint64_t version;
};

struct sl_sim_graph {
    std::vector<op> ops;
    bool invalid;
};
struct sl_sim_graph_exec {
    std::vector<op> ops;
};
struct sl_sim_stream {
    unsigned flags;
    int device; /* of the default stream: whichever is current */
    std::deque<op> queue;
    sim_grid *pending; /* begun, not finished */
    sim_grid *ahead;   /* begun behind it, if it must end first */
    bool ending;       /* pending is to be finished */
    sl_sim_graph *capture;
    cudaStreamCaptureMode mode;
    bool origin; /* BeginCapture was called on it */
};
struct sl_sim_event {
    unsigned flags;
    int device;
    uint64_t recorded, done; /* versions */
    cudaStream_t stream;     /* of the last record */
    sl_sim_graph *capture;   /* recorded while capturing */
};

static std::recursive_mutex api_lock;
static std::vector<cudaStream_t> streams;
static struct sl_sim_stream default_stream;
static std::map<const void *, int> smem_limits;
static uint64_t next_seq = 1;
static cudaError_t last_error, broken;
static int n_sms = 6, n_devices = 1, fail_launch, break_at;
static thread_local int current_device;
static thread_local bool in_host_func;
static bool eager, can_peer = true;
static uint64_t clock_times = 1;

static cudaError_t fail(cudaError_t e)
{
    if (e != cudaSuccess && e != cudaErrorNotReady)
        last_error = e;
    return e;
}

/* Every call begins with this. */
struct api {
    std::lock_guard<std::recursive_mutex> hold;
    explicit api(const char *name) : hold(api_lock)
    {
        sim_enter();
        if (in_host_func)
            sim_fail("%s in a function of cudaLaunchHostFunc", name);
        if (streams.empty())
            streams.push_back(&default_stream);
    }
};
#define API() api api_guard(__func__)

/* Calls that may not be made while a stream records; they spoil what it has recorded. */
static bool spoils_capture()
{
    bool any = false;
    for (cudaStream_t s : streams)
        if (s->capture && s->mode != cudaStreamCaptureModeRelaxed) {
            s->capture->invalid = true;
            any = true;
        }
    return any;
}

static cudaStream_t stream_of(cudaStream_t s)
{
    if (!s)
        return &default_stream;
    for (cudaStream_t known : streams)
        if (known == s)
            return s;
    sim_fail("a stream that does not exist (destroyed?)");
}

/* --- running --- */

enum progress {
    NOTHING, /* there is nothing to do */
    MOVED,
    POLLS, /* a kernel waits for what others have to do */
};

static progress end_pending(cudaStream_t s)
{
    s->ending = true;
    if (broken) {
        sim_grid_drop(s->pending);
        if (s->ahead)
            sim_grid_drop(s->ahead);
        s->ahead = nullptr;
    } else if (!sim_grid_go_on(s->pending, static_cast<size_t>(n_sms))) {
        return POLLS;
    }
    s->pending = s->ahead;
    s->ahead = nullptr;
    s->ending = false;
    return MOVED;
}

/* The first of the queue, a kernel, is begun. */
static void begin_kernel(cudaStream_t s)
{
    std::shared_ptr<sim_kernel> k = s->queue.front().kernel;
    if (break_at == 1 && !broken && s->pending) {
        s->ending = true; /* and then this one again */
        return;
    }
    s->queue.pop_front();
    if (broken)
        return;
    sim_count.kernels++;
    sim_count.blocks += static_cast<uint64_t>(k->grid.x) * k->grid.y * k->grid.z;
    if (break_at > 0 && --break_at == 0) {
        broken = cudaErrorIllegalAddress;
        return;
    }
    sim_grid *g = sim_grid_start(*k);
    if (s->pending && k->pdl)
        sim_grid_run_ahead(g);
    if (s->pending)
        s->ahead = g;
    else
        s->pending = g;
}

static progress advance(cudaStream_t s, uint64_t seq);

/* What the first of the queue of s has to wait for, of other streams. */
static progress advance_others_of(cudaStream_t s)
{
    const op &o = s->queue.front();
    progress p = NOTHING;
    /* The default stream and the blocking ones keep the order in which they were given work. */
    if (s == &default_stream) {
        for (size_t i = 0; i < streams.size() && p == NOTHING; i++)
            if (streams[i] != s && !(streams[i]->flags & cudaStreamNonBlocking))
                p = advance(streams[i], o.seq);
    } else if (!(s->flags & cudaStreamNonBlocking)) {
        p = advance(&default_stream, o.seq);
    }
    if (p == NOTHING && o.kind == OP_WAIT_EVENT && o.event->done < o.version &&
        !o.event->stream->queue.empty())
        p = advance(o.event->stream, o.event->stream->queue.front().seq + 1);
    return p;
}

/* Goes on a bit with what s was given before seq. */
static progress advance(cudaStream_t s, uint64_t seq)
{
    const bool more = !s->queue.empty() && s->queue.front().seq < seq;
    if (s->pending && (s->ending || s->ahead || !more))
        return end_pending(s);
    if (!more)
        return NOTHING;
    progress p = advance_others_of(s);
    if (p != NOTHING)
        return p;
    if (s->queue.front().kind == OP_KERNEL) {
        begin_kernel(s);
        return MOVED;
    }
    if (s->pending)
        return end_pending(s);
    op o = std::move(s->queue.front());
    s->queue.pop_front();
    if (o.kind == OP_CALL && !broken)
        o.call();
    if (o.kind == OP_EVENT)
        o.event->done = std::max(o.event->done, o.version);
    return MOVED;
}

/* While a kernel waits for others: other streams, or else other threads of the host, go on. */
static void run_others(cudaStream_t s)
{
    bool moved = false;
    for (size_t i = 0; i < streams.size(); i++)
        if (streams[i] != s)
            moved |= advance(streams[i], UINT64_MAX) == MOVED;
    if (moved || !sim_chance(8))
        return;
    const int hidden = sim_hide_memory();
    api_lock.unlock();
    sched_yield();
    api_lock.lock();
    sim_show_memory(hidden);
}

/* Runs what s was given before seq. */
static void run_before(cudaStream_t s, uint64_t seq)
{
    if (s->queue.empty() && !s->pending)
        return;
    sim_open_memory();
    for (progress p; (p = advance(s, seq)) != NOTHING;)
        if (p == POLLS)
            run_others(s);
    sim_close_memory();
}

static void run_stream(cudaStream_t s)
{
    run_before(s, UINT64_MAX);
}

static void run_all()
{
    for (size_t i = 0; i < streams.size(); i++)
        run_stream(streams[i]);
}

/* A few of the next things of s, as far as they go without waiting for others. */
static void run_few(cudaStream_t s, uint64_t n)
{
    if (n == 0 || s->queue.empty())
        return;
    sim_open_memory();
    while (n-- > 0 && !s->queue.empty() && advance(s, UINT64_MAX) == MOVED)
        ;
    sim_close_memory();
}

static void run_some()
{
    cudaStream_t s = streams[sim_rand() % streams.size()];
    run_few(s, sim_rand() % 8);
}

static void enqueue(cudaStream_t s, op o)
{
    if (s->capture) {
        s->capture->ops.push_back(std::move(o));
        return;
    }
    o.seq = next_seq++;
    s->queue.push_back(std::move(o));
    if (eager)
        run_stream(s);
    else if (sim_chance(4))
        run_some();
}

static void enqueue_call(cudaStream_t s, std::function<void()> f)
{
    op o = {};
    o.kind = OP_CALL;
    o.call = std::move(f);
    enqueue(s, std::move(o));
}

/* --- devices --- */

void sl_sim_set_sms(int n)
{
    n_sms = n;
}
void sl_sim_set_devices(int n)
{
    if (n > SIM_DEVICES_MAX)
        sim_fail("%d devices: there are at most %d", n, SIM_DEVICES_MAX);
    n_devices = n;
}
void sl_sim_set_peers(bool can)
{
    can_peer = can;
}
void sl_sim_set_clock(uint64_t times)
{
    clock_times = times;
}
uint64_t sl_sim_clock_ns()
{
    struct timespec ts;
    clock_gettime(CLOCK_MONOTONIC, &ts);
    return (static_cast<uint64_t>(ts.tv_sec) * 1000000000u + static_cast<uint64_t>(ts.tv_nsec)) *
           clock_times;
}
void sl_sim_set_eager(bool on)
{
    eager = on;
}
void sl_sim_fail_launch(int nth)
{
    fail_launch = nth;
}
void sl_sim_break_at(int nth)
{
    break_at = nth;
}
void sl_sim_repair()
{
    API();
    run_all();
    broken = last_error = cudaSuccess;
    break_at = 0;
}

cudaError_t cudaGetDeviceCount(int *n)
{
    API();
    *n = n_devices;
    return fail(n_devices ? cudaSuccess : cudaErrorNoDevice);
}

cudaError_t cudaSetDevice(int device)
{
    API();
    if (device < 0 || device >= n_devices)
        return fail(n_devices ? cudaErrorInvalidDevice : cudaErrorNoDevice);
    current_device = device;
    return cudaSuccess;
}

cudaError_t cudaGetDevice(int *device)
{
    API();
    *device = current_device;
    return cudaSuccess;
}

cudaError_t cudaGetDeviceProperties(cudaDeviceProp *p, int device)
{
    API();
    if (device < 0 || device >= n_devices)
        return fail(cudaErrorInvalidDevice);
    *p = cudaDeviceProp();
    snprintf(p->name, sizeof p->name, "simulated sm_90");
    p->totalGlobalMem = sim_device_total();
    p->sharedMemPerBlock = 48 << 10;
    p->sharedMemPerBlockOptin = SIM_SMEM_MAX;
    p->sharedMemPerMultiprocessor = 228 << 10;
    p->regsPerBlock = 65536;
    p->warpSize = 32;
    p->pciBusID = 16 + device;
    p->maxThreadsPerBlock = SIM_MAX_THREADS;
    p->major = 9;
    p->multiProcessorCount = n_sms;
    p->l2CacheSize = 50 << 20;
    p->maxThreadsPerMultiProcessor = 2048;
    return cudaSuccess;
}

cudaError_t cudaDeviceGetAttribute(int *value, cudaDeviceAttr attr, int device)
{
    cudaDeviceProp p;
    cudaError_t e = cudaGetDeviceProperties(&p, device);
    if (e != cudaSuccess)
        return e;
    switch (attr) {
    case cudaDevAttrMaxThreadsPerBlock:
        *value = p.maxThreadsPerBlock;
        break;
    case cudaDevAttrMaxSharedMemoryPerBlock:
        *value = static_cast<int>(p.sharedMemPerBlock);
        break;
    case cudaDevAttrWarpSize:
        *value = 32;
        break;
    case cudaDevAttrClockRate:
        *value = 1980000;
        break;
    case cudaDevAttrMultiProcessorCount:
        *value = p.multiProcessorCount;
        break;
    case cudaDevAttrL2CacheSize:
        *value = p.l2CacheSize;
        break;
    case cudaDevAttrMaxThreadsPerMultiProcessor:
        *value = p.maxThreadsPerMultiProcessor;
        break;
    case cudaDevAttrComputeCapabilityMajor:
        *value = p.major;
        break;
    case cudaDevAttrComputeCapabilityMinor:
        *value = p.minor;
        break;
    case cudaDevAttrMaxSharedMemoryPerMultiprocessor:
        *value = static_cast<int>(p.sharedMemPerMultiprocessor);
        break;
    case cudaDevAttrMaxSharedMemoryPerBlockOptin:
        *value = static_cast<int>(p.sharedMemPerBlockOptin);
        break;
    default:
        return fail(cudaErrorInvalidValue);
    }
    return cudaSuccess;
}

cudaError_t cudaDeviceCanAccessPeer(int *can, int device, int peer)
{
    API();
    if (device < 0 || device >= n_devices || peer < 0 || peer >= n_devices)
        return fail(cudaErrorInvalidDevice);
    *can = can_peer && device != peer;
    return cudaSuccess;
}

/* Of the current device to that one's memory, all there is and will be. */
cudaError_t cudaDeviceEnablePeerAccess(int peer, unsigned int)
{
    API();
    if (peer < 0 || peer >= n_devices || peer == current_device)
        return fail(cudaErrorInvalidDevice);
    if (!can_peer)
        return fail(cudaErrorPeerAccessUnsupported);
    return fail(sim_add_peer(current_device, peer) ? cudaSuccess
                                                   : cudaErrorPeerAccessAlreadyEnabled);
}

cudaError_t cudaDriverGetVersion(int *version)
{
    *version = 13000;
    return cudaSuccess;
}

cudaError_t cudaRuntimeGetVersion(int *version)
{
    *version = 13000;
    return cudaSuccess;
}

cudaError_t cudaDeviceSynchronize()
{
    API();
    if (spoils_capture())
        return fail(cudaErrorStreamCaptureUnsupported);
    sim_count.syncs++;
    run_all();
    return fail(broken);
}

cudaError_t cudaDeviceReset()
{
    API();
    run_all();
    sim_free_all();
    broken = last_error = cudaSuccess;
    return cudaSuccess;
}

/* --- memory --- */

cudaError_t sl_sim_malloc(void **p, size_t n)
{
    API();
    if (broken)
        return fail(broken);
    if (spoils_capture())
        return fail(cudaErrorStreamCaptureUnsupported);
    *p = nullptr;
    if (n == 0)
        return cudaSuccess;
    return fail(sim_device_alloc(p, n, current_device, __builtin_return_address(0))
                    ? cudaSuccess
                    : cudaErrorMemoryAllocation);
}

cudaError_t cudaFree(void *p)
{
    API();
    if (!p)
        return cudaSuccess;
    if (spoils_capture())
        return fail(cudaErrorStreamCaptureUnsupported);
    run_all();
    if (!sim_device_free(p))
        sim_fail("cudaFree of %p, which cudaMalloc did not give", p);
    return fail(broken);
}

cudaError_t sl_sim_malloc_host(void **p, size_t n)
{
    API();
    if (broken)
        return fail(broken);
    if (spoils_capture())
        return fail(cudaErrorStreamCaptureUnsupported);
    return fail(sim_host_alloc(p, n, __builtin_return_address(0)) ? cudaSuccess
                                                                  : cudaErrorMemoryAllocation);
}

cudaError_t cudaFreeHost(void *p)
{
    API();
    if (!p)
        return cudaSuccess;
    run_all();
    if (!sim_host_free(p))
        sim_fail("cudaFreeHost of %p, which cudaMallocHost did not give", p);
    return fail(broken);
}

cudaError_t cudaHostRegister(void *p, size_t n, unsigned int)
{
    API();
    if (broken)
        return fail(broken);
    if (!p || n == 0)
        return fail(cudaErrorInvalidValue);
    return fail(sim_host_pin(p, n, __builtin_return_address(0)) ? cudaSuccess
                                                                : cudaErrorInvalidValue);
}

/* What still reads or writes it is waited for. */
cudaError_t cudaHostUnregister(void *p)
{
    API();
    run_all();
    if (!sim_host_unpin(p))
        return fail(cudaErrorInvalidValue);
    return fail(broken);
}

cudaError_t cudaMemGetInfo(size_t *free_bytes, size_t *total)
{
    API();
    *total = sim_device_total();
    *free_bytes = *total - sim_device_used(current_device);
    return fail(broken);
}

/* One end of a copy: device memory must be one allocation, and what the kind says. */
static void check_end(const char *what, const void *p, size_t n, bool device)
{
    if (sim_is_arena(p)) {
        if (!sl_sim_is_device(p, n))
            sim_fail("%s: %zu bytes at %p are not one allocation of device memory", what, n, p);
        if (!device)
            sim_fail("%s: %p is device memory, but the kind says host", what, p);
        return;
    }
    if (device)
        sim_fail("%s: %p is host memory, but the kind says device", what, p);
    if (sim_poisoned(p, n))
        sim_fail("%s: %zu bytes at %p are not valid host memory", what, n, p);
}

static void check_copy(const char *what, void *dst, const void *src, size_t n, cudaMemcpyKind kind)
{
    bool to = kind == cudaMemcpyHostToDevice || kind == cudaMemcpyDeviceToDevice;
    bool from = kind == cudaMemcpyDeviceToHost || kind == cudaMemcpyDeviceToDevice;
    if (kind == cudaMemcpyDefault) {
        to = sim_is_arena(dst);
        from = sim_is_arena(src);
    }
    check_end(what, dst, n, to);
    check_end(what, src, n, from);
}

static cudaError_t copy_async(const char *what, void *dst, const void *src, size_t n,
                              cudaMemcpyKind kind, cudaStream_t s)
{
    if (broken)
        return fail(broken);
    if (n == 0)
        return cudaSuccess;
    check_copy(what, dst, src, n, kind);
    sim_count.copies++;
    if (sim_is_arena(dst) && !sim_is_arena(src) && !sim_is_pinned(src, n) && !s->capture) {
        /* Pageable memory is read before the call returns. */
        auto held = std::make_shared<std::vector<char>>(static_cast<const char *>(src),
                                                        static_cast<const char *>(src) + n);
        enqueue_call(s, [=] { memcpy(dst, held->data(), n); });
        return cudaSuccess;
    }
    bool pageable = sim_is_arena(src) && !sim_is_arena(dst) && !sim_is_pinned(dst, n);
    enqueue_call(s, [=] {
        check_copy(what, dst, src, n, kind);
        memmove(dst, src, n);
    });
    if (pageable && !s->capture)
        run_stream(s); /* as the device does */
    return cudaSuccess;
}

cudaError_t cudaMemcpyAsync(void *dst, const void *src, size_t n, cudaMemcpyKind kind,
                            cudaStream_t stream)
{
    API();
    return copy_async("cudaMemcpyAsync", dst, src, n, kind, stream_of(stream));
}

cudaError_t cudaMemcpyBatchAsync(void *const *dsts, const void *const *srcs, const size_t *sizes,
                                 size_t count, cudaMemcpyAttributes *attrs, size_t *attrsIdxs,
                                 size_t numAttrs, cudaStream_t stream)
{
    API();
    if (count == 0 || stream == nullptr || numAttrs != 1 || attrsIdxs[0] != 0 ||
        attrs->srcAccessOrder != cudaMemcpySrcAccessOrderStream)
        return fail(cudaErrorInvalidValue);
    if (stream_of(stream)->capture)
        return fail(cudaErrorStreamCaptureUnsupported);
    for (size_t i = count; i-- > 0;) { /* not in their order */
        cudaError_t e = copy_async("cudaMemcpyBatchAsync", dsts[i], srcs[i], sizes[i],
                                   cudaMemcpyDefault, stream_of(stream));
        if (e != cudaSuccess)
            return e;
    }
    return cudaSuccess;
}

cudaError_t cudaMemcpy(void *dst, const void *src, size_t n, cudaMemcpyKind kind)
{
    API();
    if (spoils_capture())
        return fail(cudaErrorStreamCaptureUnsupported);
    cudaError_t e = copy_async("cudaMemcpy", dst, src, n, kind, &default_stream);
    run_stream(&default_stream);
    sim_count.syncs++;
    return e != cudaSuccess ? e : fail(broken);
}

cudaError_t cudaMemcpy2DAsync(void *dst, size_t dst_pitch, const void *src, size_t src_pitch,
                              size_t width, size_t height, cudaMemcpyKind kind, cudaStream_t stream)
{
    API();
    cudaStream_t s = stream_of(stream);
    if (width > dst_pitch || width > src_pitch)
        return fail(cudaErrorInvalidValue);
    for (size_t i = 0; i < height; i++) {
        cudaError_t e = copy_async("cudaMemcpy2DAsync", static_cast<char *>(dst) + i * dst_pitch,
                                   static_cast<const char *>(src) + i * src_pitch, width, kind, s);
        if (e != cudaSuccess)
            return e;
    }
    return cudaSuccess;
}

static cudaError_t set_async(const char *what, void *dst, int value, size_t n, cudaStream_t s)
{
    if (broken)
        return fail(broken);
    if (n == 0)
        return cudaSuccess;
    check_end(what, dst, n, true);
    sim_count.memsets++;
    enqueue_call(s, [=] {
        check_end(what, dst, n, true);
        memset(dst, value, n);
    });
    return cudaSuccess;
}

cudaError_t cudaMemsetAsync(void *dst, int value, size_t n, cudaStream_t stream)
{
    API();
    return set_async("cudaMemsetAsync", dst, value, n, stream_of(stream));
}

cudaError_t cudaMemset(void *dst, int value, size_t n)
{
    API();
    if (spoils_capture())
        return fail(cudaErrorStreamCaptureUnsupported);
    return set_async("cudaMemset", dst, value, n, &default_stream); /* may return before it ends */
}

/* --- streams and events --- */

cudaError_t cudaStreamCreateWithFlags(cudaStream_t *stream, unsigned int flags)
{
    API();
    if (broken)
        return fail(broken);
    *stream = new sl_sim_stream();
    (*stream)->flags = flags;
    (*stream)->device = current_device;
    streams.push_back(*stream);
    return cudaSuccess;
}

cudaError_t cudaStreamCreate(cudaStream_t *stream)
{
    return cudaStreamCreateWithFlags(stream, cudaStreamDefault);
}

cudaError_t cudaStreamCreateWithPriority(cudaStream_t *stream, unsigned int flags, int)
{
    return cudaStreamCreateWithFlags(stream, flags);
}

cudaError_t cudaStreamDestroy(cudaStream_t stream)
{
    API();
    cudaStream_t s = stream_of(stream);
    run_stream(s);
    for (size_t i = 0; i < streams.size(); i++)
        if (streams[i] == s && s != &default_stream) {
            streams.erase(streams.begin() + static_cast<long>(i));
            delete s;
            break;
        }
    return fail(broken);
}

cudaError_t cudaStreamSynchronize(cudaStream_t stream)
{
    API();
    cudaStream_t s = stream_of(stream);
    if (s->capture) {
        s->capture->invalid = true;
        return fail(cudaErrorStreamCaptureUnsupported);
    }
    sim_count.syncs++;
    run_stream(s);
    return fail(broken);
}

cudaError_t cudaStreamQuery(cudaStream_t stream)
{
    API();
    cudaStream_t s = stream_of(stream);
    run_few(s, sim_chance(4) ? UINT64_MAX : 2);
    if (s->queue.empty() && s->pending) {
        sim_open_memory();
        advance(s, UINT64_MAX);
        sim_close_memory();
    }
    if (broken)
        return fail(broken);
    return s->queue.empty() && !s->pending ? cudaSuccess : cudaErrorNotReady;
}

cudaError_t cudaLaunchHostFunc(cudaStream_t stream, cudaHostFn_t fn, void *arg)
{
    API();
    if (broken)
        return fail(broken);
    enqueue_call(stream_of(stream), [=] {
        int hidden = sim_hide_memory();
        in_host_func = true;
        fn(arg);
        in_host_func = false;
        sim_show_memory(hidden);
    });
    return cudaSuccess;
}

cudaError_t cudaEventCreateWithFlags(cudaEvent_t *event, unsigned int flags)
{
    API();
    if (broken)
        return fail(broken);
    *event = new sl_sim_event();
    (*event)->flags = flags;
    (*event)->device = current_device;
    return cudaSuccess;
}

cudaError_t cudaEventCreate(cudaEvent_t *event)
{
    return cudaEventCreateWithFlags(event, cudaEventDefault);
}

cudaError_t cudaEventDestroy(cudaEvent_t event)
{
    API();
    run_all(); /* queues may name it */
    delete event;
    return fail(broken);
}

cudaError_t cudaEventRecord(cudaEvent_t event, cudaStream_t stream)
{
    API();
    if (broken)
        return fail(broken);
    cudaStream_t s = stream_of(stream);
    if (s != &default_stream && s->device != event->device)
        return fail(cudaErrorInvalidResourceHandle);
    event->capture = s->capture;
    if (s->capture)
        return cudaSuccess; /* a dependency of the graph, which keeps the order of the calls */
    event->stream = s;
    op o = {};
    o.kind = OP_EVENT;
    o.event = event;
    o.version = ++event->recorded;
    enqueue(s, std::move(o));
    return cudaSuccess;
}

cudaError_t cudaStreamWaitEvent(cudaStream_t stream, cudaEvent_t event, unsigned int)
{
    API();
    if (broken)
        return fail(broken);
    cudaStream_t s = stream_of(stream);
    if (event->capture) { /* joins what is recorded */
        s->capture = event->capture;
        s->mode = cudaStreamCaptureModeRelaxed;
        return cudaSuccess;
    }
    if (!event->recorded)
        return cudaSuccess;
    op o = {};
    o.kind = OP_WAIT_EVENT;
    o.event = event;
    o.version = event->recorded;
    enqueue(s, std::move(o));
    return cudaSuccess;
}

static void run_to_event(cudaEvent_t event)
{
    while (event->done < event->recorded && !event->stream->queue.empty())
        run_before(event->stream, event->stream->queue.front().seq + 1);
}

cudaError_t cudaEventSynchronize(cudaEvent_t event)
{
    API();
    sim_count.syncs++;
    run_to_event(event);
    return fail(broken);
}

cudaError_t cudaEventQuery(cudaEvent_t event)
{
    API();
    if (event->done < event->recorded) {
        const bool all = sim_chance(4);
        for (int i = 0; i < (all ? 1000 : 2) && event->done < event->recorded; i++)
            run_few(event->stream, 1);
    }
    if (broken)
        return fail(broken);
    return event->done < event->recorded ? cudaErrorNotReady : cudaSuccess;
}

cudaError_t cudaEventElapsedTime(float *ms, cudaEvent_t from, cudaEvent_t to)
{
    API();
    if ((from->flags | to->flags) & cudaEventDisableTiming)
        return fail(cudaErrorInvalidResourceHandle);
    if (from->done < from->recorded || to->done < to->recorded)
        return cudaErrorNotReady;
    *ms = 1.0f;
    return cudaSuccess;
}

/* --- graphs --- */

cudaError_t cudaStreamBeginCapture(cudaStream_t stream, cudaStreamCaptureMode mode)
{
    API();
    if (broken)
        return fail(broken);
    cudaStream_t s = stream_of(stream);
    if (s == &default_stream || s->capture)
        return fail(cudaErrorStreamCaptureUnsupported);
    s->capture = new sl_sim_graph();
    s->mode = mode;
    s->origin = true;
    return cudaSuccess;
}

cudaError_t cudaStreamEndCapture(cudaStream_t stream, cudaGraph_t *graph)
{
    API();
    cudaStream_t s = stream_of(stream);
    *graph = nullptr;
    if (!s->capture || !s->origin)
        return fail(cudaErrorInvalidValue);
    sl_sim_graph *g = s->capture;
    for (cudaStream_t other : streams)
        if (other->capture == g)
            other->capture = nullptr;
    s->origin = false;
    if (g->invalid || broken) {
        delete g;
        return fail(broken ? broken : cudaErrorStreamCaptureInvalidated);
    }
    *graph = g;
    return cudaSuccess;
}

cudaError_t cudaStreamIsCapturing(cudaStream_t stream, cudaStreamCaptureStatus *status)
{
    API();
    cudaStream_t s = stream_of(stream);
    *status = !s->capture           ? cudaStreamCaptureStatusNone
              : s->capture->invalid ? cudaStreamCaptureStatusInvalidated
                                    : cudaStreamCaptureStatusActive;
    return cudaSuccess;
}

cudaError_t cudaGraphInstantiate(cudaGraphExec_t *exec, cudaGraph_t graph, unsigned long long)
{
    API();
    if (broken)
        return fail(broken);
    *exec = new sl_sim_graph_exec();
    (*exec)->ops = graph->ops;
    return cudaSuccess;
}

cudaError_t cudaGraphUpload(cudaGraphExec_t, cudaStream_t stream)
{
    API();
    stream_of(stream);
    return fail(broken);
}

cudaError_t cudaGraphLaunch(cudaGraphExec_t exec, cudaStream_t stream)
{
    API();
    if (broken)
        return fail(broken);
    if (fail_launch > 0 && --fail_launch == 0)
        return fail(cudaErrorLaunchOutOfResources);
    cudaStream_t s = stream_of(stream);
    sim_count.graph_launches++;
    op fence = {};
    fence.kind = OP_FENCE; /* a graph begins when all before it has ended, and the same behind it */
    enqueue(s, fence);
    for (const op &o : exec->ops)
        enqueue(s, o);
    enqueue(s, fence);
    return cudaSuccess;
}

cudaError_t cudaGraphExecDestroy(cudaGraphExec_t exec)
{
    API();
    delete exec;
    return fail(broken);
}

cudaError_t cudaGraphDestroy(cudaGraph_t graph)
{
    API();
    delete graph;
    return fail(broken);
}

/* --- launches --- */

cudaError_t sl_sim_func_set_attribute(const void *fn, cudaFuncAttribute attr, int value)
{
    API();
    if (broken)
        return fail(broken);
    if (attr != cudaFuncAttributeMaxDynamicSharedMemorySize)
        return cudaSuccess;
    if (value < 0 || static_cast<unsigned>(value) > SIM_SMEM_MAX)
        return fail(cudaErrorInvalidValue);
    smem_limits[fn] = value;
    return cudaSuccess;
}

static cudaError_t check_launch(const cudaLaunchConfig_t *cfg, const void *fn)
{
    dim3 g = cfg->gridDim, b = cfg->blockDim;
    uint64_t threads = static_cast<uint64_t>(b.x) * b.y * b.z;
    if (!g.x || !g.y || !g.z || g.x > 0x7fffffffu || g.y > 65535 || g.z > 65535 || !threads ||
        threads > SIM_MAX_THREADS || b.z > 64)
        return cudaErrorInvalidConfiguration;
    if (threads % 32)
        sim_fail("launch of %s with %llu threads, not a multiple of 32", sim_symbol(fn).c_str(),
                 static_cast<unsigned long long>(threads));
    if (static_cast<uint64_t>(g.x) * g.y * g.z > 1u << 28)
        sim_fail("launch of %s with too many blocks to simulate", sim_symbol(fn).c_str());
    auto limit = smem_limits.find(fn);
    size_t allowed = limit == smem_limits.end() ? 48u << 10 : static_cast<size_t>(limit->second);
    if (cfg->dynamicSmemBytes > std::max(allowed, size_t(48) << 10))
        return cudaErrorInvalidValue;
    return cudaSuccess;
}

cudaError_t sl_sim_launch(const cudaLaunchConfig_t *cfg, const void *kernel,
                          std::function<void()> call)
{
    API();
    if (broken)
        return fail(broken);
    if (fail_launch > 0 && --fail_launch == 0)
        return fail(cudaErrorLaunchOutOfResources);
    cudaError_t e = check_launch(cfg, kernel);
    if (e == cudaSuccess && cfg->stream && stream_of(cfg->stream)->device != current_device)
        e = cudaErrorInvalidResourceHandle; /* of another device than the current one */
    if (e != cudaSuccess)
        return fail(e);
    op o = {};
    o.kind = OP_KERNEL;
    o.kernel = std::make_shared<sim_kernel>();
    o.kernel->fn = kernel;
    o.kernel->grid = cfg->gridDim;
    o.kernel->block = cfg->blockDim;
    o.kernel->smem = cfg->dynamicSmemBytes;
    o.kernel->cluster = 1;
    o.kernel->device = current_device;
    for (unsigned i = 0; i < cfg->numAttrs; i++) {
        const cudaLaunchAttribute *a = &cfg->attrs[i];
        if (a->id == cudaLaunchAttributeProgrammaticStreamSerialization)
            o.kernel->pdl = a->val.programmaticStreamSerializationAllowed != 0;
        if (a->id == cudaLaunchAttributeClusterDimension) {
            o.kernel->cluster = a->val.clusterDim.x;
            if (a->val.clusterDim.x - 1u >= SIM_CLUSTER_MAX || a->val.clusterDim.y != 1 ||
                a->val.clusterDim.z != 1 || cfg->gridDim.x % a->val.clusterDim.x != 0)
                return fail(cudaErrorInvalidConfiguration);
        }
    }
    o.kernel->call = std::move(call);
    enqueue(stream_of(cfg->stream), std::move(o));
    return cudaSuccess;
}

/* --- errors --- */

cudaError_t cudaGetLastError()
{
    API();
    cudaError_t e = broken ? broken : last_error;
    last_error = cudaSuccess;
    return e;
}

cudaError_t cudaPeekAtLastError()
{
    API();
    return broken ? broken : last_error;
}

const char *cudaGetErrorName(cudaError_t e)
{
    switch (e) {
    case cudaSuccess:
        return "cudaSuccess";
    case cudaErrorInvalidValue:
        return "cudaErrorInvalidValue";
    case cudaErrorMemoryAllocation:
        return "cudaErrorMemoryAllocation";
    case cudaErrorInvalidConfiguration:
        return "cudaErrorInvalidConfiguration";
    case cudaErrorInvalidDevice:
        return "cudaErrorInvalidDevice";
    case cudaErrorNoDevice:
        return "cudaErrorNoDevice";
    case cudaErrorNotReady:
        return "cudaErrorNotReady";
    case cudaErrorIllegalAddress:
        return "cudaErrorIllegalAddress";
    case cudaErrorLaunchOutOfResources:
        return "cudaErrorLaunchOutOfResources";
    case cudaErrorInvalidResourceHandle:
        return "cudaErrorInvalidResourceHandle";
    case cudaErrorPeerAccessUnsupported:
        return "cudaErrorPeerAccessUnsupported";
    case cudaErrorPeerAccessAlreadyEnabled:
        return "cudaErrorPeerAccessAlreadyEnabled";
    case cudaErrorLaunchTimeout:
        return "cudaErrorLaunchTimeout";
    case cudaErrorLaunchFailure:
        return "cudaErrorLaunchFailure";
    case cudaErrorStreamCaptureUnsupported:
        return "cudaErrorStreamCaptureUnsupported";
    case cudaErrorStreamCaptureInvalidated:
        return "cudaErrorStreamCaptureInvalidated";
    default:
        return "cudaErrorUnknown";
    }
}

const char *cudaGetErrorString(cudaError_t e)
{
    return cudaGetErrorName(e);
}
