/* SPDX-License-Identifier: MIT
 * bench_comm - how long a gather between GPUs takes, beside NCCL in the same run.
 *
 * A measurement is a graph of CALLS calls on every rank, each with a thread and a stream of its
 * own, replayed between events; the figure is the median over the replays, divided by the calls, of
 * the slowest rank. A part is `bytes` on each rank, so out has that times the ranks. "behind" is
 * what a gather adds to a kernel that writes the part, as in a step a product does. NCCL's figures
 * are of ncclAllGather of the same parts, and of ncclAllReduce of as many bytes as a part.
 */
#include "cuda/comm/comm.h"

#include "cuda/cuda.h"
#include "cuda/gemm/fuse.h"
#include "cuda/launch.cuh"
#include "cuda/ptx.cuh"

#include <algorithm>
#include <dlfcn.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define MUST(call)                                                        \
    do {                                                                  \
        const cudaError_t must_e = (call);                                \
        if (must_e != cudaSuccess) {                                      \
            fprintf(stderr, "%s:%d: %s: %s\n", __FILE__, __LINE__, #call, \
                    cudaGetErrorString(must_e));                          \
            exit(1);                                                      \
        }                                                                 \
    } while (0)

#define CALLS    100
#define REPLAYS  15
#define MOST     (4u << 20)
#define BLOCKS   64
#define WIDTH    4096  /* of a row that is normed */
#define LINK_BPS 450e9 /* NVLink 4, one way: 18 links of 25 GB/s */

/* ------------------------------------------------------------------ NCCL, if there is one */

struct nccl_id {
    char bytes[128];
};
typedef void *nccl_comm;
#define NCCL_UINT8   1
#define NCCL_FLOAT32 7
#define NCCL_SUM     0

struct nccl {
    int (*version)(int *v);
    int (*unique_id)(nccl_id *id);
    int (*init_rank)(nccl_comm *c, int n, nccl_id id, int rank);
    int (*all_gather)(const void *from, void *to, size_t n, int type, nccl_comm c, cudaStream_t s);
    int (*all_reduce)(const void *from, void *to, size_t n, int type, int op, nccl_comm c,
                      cudaStream_t s);
    const char *(*text)(int rc);
};

static struct nccl nccl;
static nccl_id id_of_all;

template <typename F> static bool find(void *lib, const char *name, F *f)
{
    *f = reinterpret_cast<F>(dlsym(lib, name));
    return *f != nullptr;
}

/* False: it is said why. */
static bool load_nccl(const char *path)
{
    void *lib = dlopen(path, RTLD_NOW);
    if (lib == nullptr) {
        printf("no NCCL: %s (--nccl PATH)\n", dlerror());
        return false;
    }
    int v = 0;
    if (!find(lib, "ncclGetVersion", &nccl.version) ||
        !find(lib, "ncclGetUniqueId", &nccl.unique_id) ||
        !find(lib, "ncclCommInitRank", &nccl.init_rank) ||
        !find(lib, "ncclAllGather", &nccl.all_gather) ||
        !find(lib, "ncclAllReduce", &nccl.all_reduce) ||
        !find(lib, "ncclGetErrorString", &nccl.text)) {
        printf("no NCCL: %s lacks functions\n", path);
        return false;
    }
    nccl.version(&v);
    printf("NCCL %d.%d.%d, NVLink multicast off\n", v / 10000, v / 100 % 100, v % 100);
    fflush(stdout);
    return nccl.unique_id(&id_of_all) == 0;
}

static void must_nccl(int rc)
{
    if (rc != 0) {
        fprintf(stderr, "NCCL: %s\n", nccl.text(rc));
        exit(1);
    }
}

/* ------------------------------------------------------------------ ranks */

/* NORMS: an addition to the residual stream and a norm behind a gather, or a sum, of rows. */
enum what {
    WRITE_ONLY,
    GATHER,
    WRITE_GATHER,
    NCCL_GATHER,
    NCCL_REDUCE,
    NORMS,
    ONE_NORMS,
    SUMS,
    LAYER,
    MANY,
    MIDDLES
};

struct job {
    enum what what;
    uint32_t bytes, small;
    int blocks;
    bool open;                           /* parts are written to all ranks */
    const struct sl_lin_route *o, *down; /* of a layer's products by columns */
    int how; /* of MANY: parts are read, or written by themselves, or by products; of MIDDLES: gate
                and up alone, or a gather behind them, or they write to all */
    int n;   /* tokens of MIDDLES */
};

struct rank {
    int idx;
    struct sl_backend *be;
    struct sl_rank rank;
    nccl_comm nccl;
    uint8_t *out, *part, *middle; /* middle lies behind out */
    float *x, *w;
    struct sl_cuda_fuse fuse;
    struct sl_weight o, gate, up, down, o_rows, down_rows;
    uint8_t *acts;
    cudaEvent_t from, to;
    double us; /* of the last job */
};

static int n_ranks = 2;
static struct rank ranks[SL_MAX_RANKS];
static pthread_barrier_t all_here;
static struct sl_comm *comm;
static struct job now;
static bool ended, with_nccl, nccl_failed, only_layers;

static __global__ void write_kernel(uint4 *part, uint32_t n, uint32_t with)
{
    sl_grid_launch_dependents();
    sl_grid_wait();
    for (uint32_t i = blockIdx.x * blockDim.x + threadIdx.x; i < n; i += gridDim.x * blockDim.x)
        part[i] = make_uint4(i, with, i, with);
}

static void gather_once(struct rank *r)
{
    struct sl_cuda *cu = sl_cuda(r->be);
    void *part = sl_rank_room(&r->rank);
    if (now.what != GATHER)
        sl_launch(cu, write_kernel, dim3(std::min((now.bytes + 4095) / 4096, 132u)), dim3(256), 0,
                  static_cast<uint4 *>(part), now.bytes / 16, static_cast<uint32_t>(r->rank.turn));
    const struct sl_op_all_gather op = {&r->rank, part,  now.bytes, 1,
                                        r->out,   false, false,     now.open};
    if (now.what != WRITE_ONLY)
        r->be->vt->all_gather(r->be, &op);
}

/* now.bytes of rows of WIDTH: gathered and normed by two kernels or one, or four terms of all ranks
 * added and normed. */
static void norm_once(struct rank *r)
{
    struct sl_cuda *cu = sl_cuda(r->be);
    const int32_t n = static_cast<int32_t>(now.bytes / (WIDTH * sizeof(float)));
    float *part = static_cast<float *>(sl_rank_room(&r->rank)),
          *y = reinterpret_cast<float *>(r->out);
    const size_t row = WIDTH * sizeof(float) / static_cast<size_t>(n_ranks);
    const struct sl_op_all_gather gather = {&r->rank, part, row, n, y, false, true, false};
    struct sl_op_all_reduce sum = {};
    struct sl_op_add_rmsnorm norm = {};
    sum.rank = &r->rank, sum.part = part, sum.out = y;
    sum.n_terms = n_ranks <= 4 ? 4 / n_ranks : 1;
    sum.n = norm.n = n, sum.h = norm.h = WIDTH;
    norm.x = r->x, norm.y = y, norm.w = r->w, norm.out = r->part;
    norm.eps = 1e-5f;
    if (now.what != NORMS)
        sl_cuda_fuse_begin(cu, &r->fuse);
    if (now.what == SUMS)
        r->be->vt->all_reduce(r->be, &sum);
    else
        r->be->vt->all_gather(r->be, &gather);
    r->be->vt->add_rmsnorm(r->be, &norm);
    if (now.what != NORMS)
        sl_cuda_fuse_end(cu);
}

static void columns_once(struct rank *r, const struct sl_weight *w,
                         const struct sl_lin_route *route)
{
    struct sl_op_linear op = {};
    struct sl_op_all_reduce sum = {};
    struct sl_op_add_rmsnorm norm = {};
    op.x = r->part, op.ld_x = w->n_cols, op.w = w, op.n = 1, op.ld_out = WIDTH, op.apart = true;
    op.out = static_cast<float *>(sl_rank_room(&r->rank));
    struct sl_lin l = sl_cuda_linear_args(&op);
    l.apart = true;
    sl_cuda_linear_run(sl_cuda(r->be), &l, route);
    sum.rank = &r->rank, sum.part = op.out, sum.out = reinterpret_cast<float *>(r->out);
    sum.n_terms = SL_SEGMENTS / n_ranks, sum.n = norm.n = 1, sum.h = norm.h = WIDTH;
    norm.x = r->x, norm.y = sum.out, norm.w = r->w, norm.out = r->part;
    norm.eps = 1e-5f;
    r->be->vt->all_reduce(r->be, &sum);
    r->be->vt->add_rmsnorm(r->be, &norm);
}

/* A layer of 8B for one token, without q, k, v and attention. */
static void layer_once(struct rank *r)
{
    struct sl_op_linear_gated_act gated = {};
    gated.x = r->part, gated.ld_x = WIDTH, gated.gate = &r->gate, gated.up = &r->up, gated.n = 1;
    gated.act = SL_ACT_SILU, gated.out = r->part + WIDTH * 2;
    sl_cuda_fuse_begin(sl_cuda(r->be), &r->fuse);
    columns_once(r, &r->o, now.o);
    r->be->vt->linear_gated_act(r->be, &gated);
    columns_once(r, &r->down, now.down);
    sl_cuda_fuse_end(sl_cuda(r->be));
}

#define TOKENS      256
#define MOST_TOKENS 1024
#define MIDDLE      14336

static void rows_once(struct rank *r, const struct sl_weight *w, float *y)
{
    struct sl_op_linear op = {};
    struct sl_op_all_gather gather = {};
    struct sl_op_add_rmsnorm norm = {};
    const struct sl_spread spread = {&r->rank, y + r->idx * w->n_rows, WIDTH};
    op.x = r->acts, op.ld_x = w->n_cols, op.w = w, op.n = TOKENS, op.ld_out = w->n_rows;
    op.out = static_cast<float *>(sl_rank_room(&r->rank));
    op.spread = now.how == 2 ? &spread : nullptr;
    gather.rank = &r->rank, gather.part = op.out, gather.out = y;
    gather.part_bytes = static_cast<size_t>(w->n_rows) * sizeof(float);
    gather.n = norm.n = TOKENS, norm.h = WIDTH;
    gather.even = true, gather.open = now.how > 0;
    norm.x = r->x, norm.y = y, norm.w = r->w, norm.out = r->part;
    norm.eps = 1e-5f;
    r->be->vt->linear(r->be, &op);
    r->be->vt->all_gather(r->be, &gather);
    r->be->vt->add_rmsnorm(r->be, &norm);
}

static void many_once(struct rank *r)
{
    float *y = reinterpret_cast<float *>(r->out);
    sl_cuda_fuse_begin(sl_cuda(r->be), &r->fuse);
    rows_once(r, &r->o_rows, y);
    rows_once(r, &r->down_rows, y + TOKENS * WIDTH);
    sl_cuda_fuse_end(sl_cuda(r->be));
}

/* Gate and up of many tokens, and what they make on all ranks. */
static void middle_once(struct rank *r)
{
    struct sl_op_linear_gated_act gated = {};
    struct sl_op_all_gather gather = {};
    const size_t each = static_cast<size_t>(r->gate.n_rows) * 2;
    const struct sl_spread spread = {&r->rank, r->middle + static_cast<size_t>(r->idx) * each,
                                     r->gate.n_rows * n_ranks};
    gated.x = r->acts, gated.ld_x = WIDTH, gated.gate = &r->gate, gated.up = &r->up,
    gated.n = now.n;
    gated.act = SL_ACT_SILU, gated.out = sl_rank_room(&r->rank);
    gated.spread = now.how == 2 ? &spread : nullptr;
    r->be->vt->linear_gated_act(r->be, &gated);
    if (now.how == 0)
        return;
    gather.rank = &r->rank, gather.part = gated.out, gather.part_bytes = each, gather.n = now.n;
    gather.out = r->middle, gather.open = true;
    r->be->vt->all_gather(r->be, &gather);
}

static void once(struct rank *r)
{
    struct sl_cuda *cu = sl_cuda(r->be);
    if (now.what == MIDDLES) {
        middle_once(r);
        return;
    }
    if (now.what == MANY) {
        many_once(r);
        return;
    }
    if (now.what == LAYER) {
        layer_once(r);
        return;
    }
    if (now.what >= NORMS) {
        norm_once(r);
        return;
    }
    if (now.what == NCCL_GATHER)
        must_nccl(nccl.all_gather(r->part, r->out, now.bytes, NCCL_UINT8, r->nccl, cu->stream));
    else if (now.what == NCCL_REDUCE)
        must_nccl(nccl.all_reduce(r->part, r->out, now.bytes / 4, NCCL_FLOAT32, NCCL_SUM, r->nccl,
                                  cu->stream));
    else
        gather_once(r);
}

/* Of replays of the graph, each from where all ranks are there. */
static double measure(struct rank *r, cudaGraphExec_t exec)
{
    struct sl_cuda *cu = sl_cuda(r->be);
    const struct sl_op_all_gather meet = {&r->rank, r->rank.room[0], 16,    1,
                                          r->out,   false,           false, false};
    double us[REPLAYS];
    for (int i = -3; i < REPLAYS; i++) {
        float ms = 0;
        pthread_barrier_wait(&all_here);
        r->be->vt->all_gather(r->be, &meet);
        MUST(cudaEventRecord(r->from, cu->stream));
        MUST(cudaGraphLaunch(exec, cu->stream));
        MUST(cudaEventRecord(r->to, cu->stream));
        MUST(cudaEventSynchronize(r->to));
        MUST(cudaEventElapsedTime(&ms, r->from, r->to));
        if (i >= 0)
            us[i] = static_cast<double>(ms) * 1e3 / CALLS;
    }
    std::sort(us, us + REPLAYS);
    return us[REPLAYS / 2];
}

static void run_job(struct rank *r)
{
    struct sl_cuda *cu = sl_cuda(r->be);
    cudaGraph_t graph;
    cudaGraphExec_t exec;
    MUST(cudaStreamBeginCapture(cu->stream, cudaStreamCaptureModeThreadLocal));
    for (int i = 0; i < CALLS; i++)
        once(r);
    MUST(cudaStreamEndCapture(cu->stream, &graph));
    MUST(cudaGraphInstantiate(&exec, graph, 0));
    MUST(cudaGraphUpload(exec, cu->stream));
    MUST(cudaStreamSynchronize(cu->stream));
    r->us = measure(r, exec);
    pthread_barrier_wait(&all_here); /* nobody destroys while another runs */
    MUST(cudaGraphExecDestroy(exec));
    MUST(cudaGraphDestroy(graph));
    if (cu->error != cudaSuccess) {
        fprintf(stderr, "rank %d: %s\n", r->idx, cu->error_what);
        exit(1);
    }
}

static void *rank_main(void *arg)
{
    struct rank *r = static_cast<struct rank *>(arg);
    sl_cuda_use(sl_cuda(r->be));
    if (with_nccl) {
        const int rc = nccl.init_rank(&r->nccl, n_ranks, id_of_all, r->idx);
        if (rc != 0) {
            printf("no NCCL: rank %d: %s\n", r->idx, nccl.text(rc));
            __atomic_store_n(&nccl_failed, true, __ATOMIC_RELAXED);
        }
    }
    pthread_barrier_wait(&all_here); /* NCCL is there, or is not */
    for (;;) {
        pthread_barrier_wait(&all_here); /* `now` is there */
        if (ended)
            return nullptr;
        run_job(r);
        pthread_barrier_wait(&all_here); /* its result is */
    }
}

static void make_ranks()
{
    struct sl_error err = {};
    struct sl_backend *be[SL_MAX_RANKS];
    for (int i = 0; i < n_ranks; i++) {
        const struct sl_cuda_config cfg = {i, 1, false};
        if (sl_cuda_create(&cfg, &be[i], &err) != 0) {
            fprintf(stderr, "%s\n", err.msg);
            exit(2);
        }
    }
    if (sl_cuda_comm_create(be, n_ranks, MOST_TOKENS * MIDDLE * 2, &comm, &err) != 0) {
        fprintf(stderr, "%s\n", err.msg);
        exit(2);
    }
    for (int i = 0; i < n_ranks; i++) {
        struct rank *r = &ranks[i];
        r->idx = i;
        r->be = be[i];
        r->rank.comm = comm;
        r->rank.idx = i;
        sl_cuda_comm_rooms(comm, i, r->rank.room);
        sl_cuda_use(sl_cuda(r->be));
        const size_t outs = static_cast<size_t>(n_ranks) * MOST;
        MUST(cudaMalloc(&r->out, outs + MOST_TOKENS * MIDDLE * 2));
        r->middle = r->out + outs;
        MUST(cudaMalloc(&r->part, MOST));
        MUST(cudaMalloc(&r->x, MOST));
        MUST(cudaMalloc(&r->w, WIDTH * sizeof(float)));
        MUST(cudaMemset(r->x, 0, MOST));
        MUST(cudaMemset(r->w, 0, WIDTH * sizeof(float)));
        MUST(cudaMemset(r->part, 0, MOST));
        MUST(cudaEventCreate(&r->from));
        MUST(cudaEventCreate(&r->to));
        MUST(cudaDeviceSynchronize());
    }
    for (int i = 0; i < n_ranks; i++)
        for (int k = 0; k < n_ranks; k++)
            ranks[i].rank.mem[k] = ranks[k].out;
}

/* Microseconds of a call; below 0: it cannot be. */
static double time_of(enum what what, uint32_t bytes, uint32_t small, int blocks, bool open = false)
{
    double us = 0;
    if ((what == NCCL_GATHER || what == NCCL_REDUCE) && !with_nccl)
        return -1;
    if (small > 0 && bytes > small && what < NORMS) /* lines would not do */
        return -1;
    now.what = what, now.bytes = bytes, now.small = small, now.blocks = blocks, now.open = open;
    comm->most_blocks = blocks;
    sl_cuda_comm_tune(comm, comm->bound_ns, small);
    pthread_barrier_wait(&all_here);
    for (int i = 0; i < 3 + REPLAYS + 1; i++) /* as many as run_job has */
        pthread_barrier_wait(&all_here);
    pthread_barrier_wait(&all_here);
    for (int i = 0; i < n_ranks; i++)
        us = std::max(us, ranks[i].us);
    return us;
}

static void cell(double us)
{
    if (us < 0)
        printf(" %8s", "-");
    else
        printf(" %8.2f", us);
}

static uint32_t next_size(uint32_t bytes)
{
    return bytes * (bytes == 16384 ? 4 : 2);
}

static void table_of_gathers()
{
    printf("%8s %8s %8s %8s %8s %8s %8s | in place, blocks %8s %8s\n", "bytes", "limit", "lines",
           "behind", "in place", "behind", "written", "16", "32");
    for (uint32_t bytes = 4096; bytes <= MOST; bytes = next_size(bytes)) {
        const double write = time_of(WRITE_ONLY, bytes, 0, BLOCKS);
        printf("%8u", bytes);
        cell((n_ranks - 1) * static_cast<double>(bytes) / LINK_BPS * 1e6);
        for (uint32_t small = SL_COMM_SMALL;; small = 0) {
            cell(time_of(GATHER, bytes, small, BLOCKS));
            const double both = time_of(WRITE_GATHER, bytes, small, BLOCKS);
            cell(both < 0 ? both : both - write);
            if (small == 0)
                break;
        }
        cell(time_of(GATHER, bytes, 0, BLOCKS, true));
        printf(" |                 ");
        for (int blocks = 16; blocks <= 32 && bytes >= 65536; blocks *= 2)
            cell(time_of(GATHER, bytes, 0, blocks));
        printf("\n");
        fflush(stdout);
    }
}

static void table_of_norms()
{
    printf("rows of %d  two kernels   one kernel   sum of 4 terms, one kernel\n", WIDTH);
    for (uint32_t n = 1; n <= 64; n *= n < 4 ? 4 : 2) {
        const uint32_t bytes = n * WIDTH * static_cast<uint32_t>(sizeof(float));
        printf("%8u", n);
        for (enum what w : {NORMS, ONE_NORMS, SUMS})
            cell(time_of(w, bytes, comm->small_bytes, BLOCKS));
        printf("\n");
        fflush(stdout);
    }
}

static void make_weight(struct rank *r, struct sl_weight *w, int64_t n_rows, int64_t n_cols,
                        const void *data)
{
    struct sl_error err = {};
    sl_cuda_use(sl_cuda(r->be));
    if (r->be->vt->weight_create(r->be, SL_USE_LINEAR, SL_DTYPE_BF16, n_rows, n_cols, data, nullptr,
                                 w, &err) != 0) {
        fprintf(stderr, "%s\n", err.msg);
        exit(1);
    }
}

static const struct sl_lin_route *route_named(const char *name)
{
    size_t n;
    const struct sl_lin_route *all = sl_cuda_linear_routes(&n);
    for (size_t i = 0; i < n; i++)
        if (strcmp(all[i].name, name) == 0)
            return &all[i];
    fprintf(stderr, "no route %s\n", name);
    exit(1);
}

/* Which kernels should have products by columns. */
static void table_of_layers()
{
    static const char *const names[][2] = {
        {"direct-bf16", "direct-bf16"}, {"deep-bf16", "deep-bf16"},
        {"stream-bf16", "stream-bf16"}, {"direct-bf16", "deep-bf16"},
        {"stream-bf16", "deep-bf16"},   {"direct-bf16", "stream-bf16"}};
    void *zeros = calloc(WIDTH * static_cast<size_t>(MIDDLE), 2);
    for (int i = 0; i < n_ranks && zeros != nullptr; i++) {
        struct rank *r = &ranks[i];
        make_weight(r, &r->o, WIDTH, WIDTH / n_ranks, zeros);
        make_weight(r, &r->gate, MIDDLE / n_ranks, WIDTH, zeros);
        make_weight(r, &r->up, MIDDLE / n_ranks, WIDTH, zeros);
        make_weight(r, &r->down, WIDTH, MIDDLE / n_ranks, zeros);
        make_weight(r, &r->o_rows, WIDTH / n_ranks, WIDTH, zeros);
        make_weight(r, &r->down_rows, WIDTH / n_ranks, MIDDLE, zeros);
        r->o_rows.of_rows = r->down_rows.of_rows = WIDTH;
        MUST(cudaMalloc(&r->acts, MOST_TOKENS * MIDDLE * 2));
        MUST(cudaMemset(r->acts, 0, MOST_TOKENS * MIDDLE * 2));
        r->o.of_cols = WIDTH, r->down.of_cols = MIDDLE;
        r->gate.of_rows = r->up.of_rows = MIDDLE;
        MUST(cudaStreamSynchronize(sl_cuda(r->be)->stream));
    }
    free(zeros);
    printf("o, sum, norm, gate and up, down, sum, norm of one token; kernels of o and down\n");
    for (const auto &name : names) {
        now.o = route_named(name[0]), now.down = route_named(name[1]);
        printf("%12s %12s", name[0], name[1]);
        cell(time_of(LAYER, 16, comm->small_bytes, BLOCKS));
        printf("\n");
        fflush(stdout);
    }
    printf("gate and up of tokens; and a gather of what they make; the same written by them\n");
    for (now.n = 64; now.n <= MOST_TOKENS; now.n *= now.n < 256 ? 2 : 4) {
        printf("%8d", now.n);
        for (now.how = 0; now.how < 3; now.how++)
            cell(time_of(MIDDLES, 16, comm->small_bytes, BLOCKS, now.how > 0));
        printf("\n");
        fflush(stdout);
    }
    printf("o and down of %d tokens, norms; parts read, written, written by products", TOKENS);
    for (now.how = 0; now.how < 3; now.how++)
        cell(time_of(MANY, 16, comm->small_bytes, BLOCKS));
    printf("\n");
}

static void table_of_nccl()
{
    printf("%8s %8s %8s\n", "bytes", "NCCL ag", "NCCL ar");
    for (uint32_t bytes = 4096; bytes <= MOST; bytes = next_size(bytes)) {
        printf("%8u", bytes);
        cell(time_of(NCCL_GATHER, bytes, 0, BLOCKS));
        cell(time_of(NCCL_REDUCE, bytes, 0, BLOCKS));
        printf("\n");
        fflush(stdout);
    }
}

static void tables()
{
    cudaDeviceProp prop;
    MUST(cudaGetDeviceProperties(&prop, 0));
    printf("%d x %s, us of a call in a graph of %d; limit: %d parts over %.0f GB/s\n", n_ranks,
           prop.name, CALLS, n_ranks - 1, LINK_BPS / 1e9);
    const uint32_t lines = comm->small_bytes;
    sl_cuda_comm_tune(comm, comm->bound_ns, lines);
    if (n_ranks == 2 || n_ranks == 4)
        table_of_layers();
    if (only_layers)
        return;
    table_of_norms();
    table_of_gathers();
    if (with_nccl)
        table_of_nccl();
}

int main(int argc, char **argv)
{
    const char *path = "libnccl.so.2";
    pthread_t threads[SL_MAX_RANKS];
    setenv("CUDA_MODULE_LOADING", "EAGER", 0);
    setenv("NCCL_NVLS_ENABLE", "0", 1);
    for (int i = 1; i + 1 < argc; i += 2) {
        only_layers = only_layers || strcmp(argv[i], "--only") == 0; /* layers */
        if (strcmp(argv[i], "--ranks") == 0)
            n_ranks = static_cast<int>(strtol(argv[i + 1], nullptr, 10));
        else if (strcmp(argv[i], "--nccl") == 0)
            path = argv[i + 1];
    }
    if (n_ranks < 1 || n_ranks > SL_MAX_RANKS || sl_cuda_count() < n_ranks) {
        fprintf(stderr, "bench_comm: %d ranks, %d devices\n", n_ranks, sl_cuda_count());
        return 2;
    }
    with_nccl = !only_layers && load_nccl(path);
    make_ranks();
    pthread_barrier_init(&all_here, nullptr, static_cast<unsigned>(n_ranks) + 1);
    for (int i = 0; i < n_ranks; i++)
        if (pthread_create(&threads[i], nullptr, rank_main, &ranks[i]) != 0)
            return 2;
    pthread_barrier_wait(&all_here);
    with_nccl = with_nccl && !nccl_failed;
    tables();
    ended = true;
    pthread_barrier_wait(&all_here);
    for (int i = 0; i < n_ranks; i++)
        pthread_join(threads[i], nullptr);
    for (int i = 0; i < n_ranks; i++) {
        sl_cuda_use(sl_cuda(ranks[i].be));
        MUST(cudaFree(ranks[i].out));
        MUST(cudaFree(ranks[i].part));
        MUST(cudaEventDestroy(ranks[i].from));
        MUST(cudaEventDestroy(ranks[i].to));
    }
    sl_cuda_comm_destroy(comm);
    for (int i = 0; i < n_ranks; i++)
        ranks[i].be->vt->destroy(ranks[i].be);
    return 0;
}
