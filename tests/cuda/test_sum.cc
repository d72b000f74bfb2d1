/* SPDX-License-Identifier: MIT
 * Sums over GPUs (cuda/gemm/meet.cu). Ranks have drawn numbers; the host adds them in the order
 * that ops.h says, and one GPU adds that to the residual stream and norms it by the operation for
 * one GPU. Every rank must have those bits: of few tokens, where a norm is behind (one kernel), of
 * many, and alone. Runs in the simulator, and on a machine with as many ranks as it has GPUs.
 */
#include "cuda/comm/comm.h"

#include "cuda/cuda.h"
#include "cuda/gemm/fuse.h"

#ifdef SL_CUDA_SIM
#include "sim.h"
#endif

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <vector>

static int n_passed, n_failed;

#define MUST(call)                                                                 \
    do {                                                                           \
        const cudaError_t must_e = (call);                                         \
        if (must_e != cudaSuccess) {                                               \
            printf("%s:%d: %s\n", __FILE__, __LINE__, cudaGetErrorString(must_e)); \
            exit(2);                                                               \
        }                                                                          \
    } while (0)

#define ROOM_BYTES (8u << 20)
#define EPS        1e-5f

typedef std::vector<float> floats;

enum kind { GATHER, CHAIN, TREE, THERE }; /* of the last y is on all ranks already */

struct trial {
    enum kind kind;
    int n_terms, n, h;
    bool norm, add, logit;
};

static uint32_t state;

static floats draw(size_t n)
{
    floats v(n);
    for (float &x : v) {
        state = state * 1664525u + 1013904223u;
        x = ldexpf(static_cast<float>(static_cast<int32_t>(state)),
                   -33 + static_cast<int>(state >> 8) % 4);
    }
    return v;
}

struct one { /* rank */
    struct sl_backend *be;
    struct sl_rank rank;
    struct sl_cuda_fuse fuse;
    float *x, *y, *w, *add, *logit;
    uint16_t *out;
};

struct group {
    int n;
    struct one of[SL_MAX_RANKS];
    struct sl_comm *comm;
};

#define MOST_FLOATS (1u << 20)

template <typename T> static T *take(size_t n)
{
    T *p = NULL;
    MUST(cudaMalloc(&p, n * sizeof(T)));
    return p;
}

static void open_group(struct group *g, int n)
{
    struct sl_error err = {};
    struct sl_backend *all[SL_MAX_RANKS];
    *g = {};
    g->n = n;
    for (int r = 0; r < n; r++) {
        const struct sl_cuda_config cfg = {r, 1, false};
        if (sl_cuda_create(&cfg, &g->of[r].be, &err) != 0) {
            printf("device %d: %s\n", r, err.msg);
            exit(2);
        }
        all[r] = g->of[r].be;
    }
    if (sl_cuda_comm_create(all, n, ROOM_BYTES, &g->comm, &err) != 0) {
        printf("%d ranks: %s\n", n, err.msg);
        exit(2);
    }
#ifdef SL_CUDA_SIM
    sl_cuda_comm_tune(g->comm, 120 * 1000000000ull, g->comm->small_bytes); /* it is slow */
#endif
    for (int r = 0; r < n; r++) {
        struct one *o = &g->of[r];
        o->rank.comm = g->comm;
        o->rank.idx = r;
        sl_cuda_comm_rooms(g->comm, r, o->rank.room);
        sl_cuda_use(sl_cuda(o->be));
        o->x = take<float>(MOST_FLOATS), o->y = take<float>(MOST_FLOATS);
        o->w = take<float>(1u << 14), o->add = take<float>(MOST_FLOATS);
        o->logit = take<float>(1u << 12), o->out = take<uint16_t>(MOST_FLOATS);
    }
}

static void close_group(struct group *g)
{
    for (int r = 0; r < g->n; r++) {
        struct one *o = &g->of[r];
        sl_cuda_use(sl_cuda(o->be));
        for (void *p : {(void *)o->x, (void *)o->y, (void *)o->w, (void *)o->add, (void *)o->logit,
                        (void *)o->out})
            cudaFree(p);
    }
    sl_cuda_comm_destroy(g->comm);
    for (int r = 0; r < g->n; r++)
        g->of[r].be->vt->destroy(g->of[r].be);
}

/* ------------------------------------------------------------------ what must come out */

/* parts[r]: of a gather [n, h / ranks], else [n_terms][n, h]. */
static floats sum_of(const struct trial &t, int n_ranks, const std::vector<floats> &parts,
                     const floats &add, const floats &open)
{
    const size_t n = static_cast<size_t>(t.n), h = static_cast<size_t>(t.h),
                 cols = h / (size_t)n_ranks;
    const bool sums = t.kind == CHAIN || t.kind == TREE;
    floats y(n * h);
    for (size_t i = 0; i < n * h; i++) {
        std::vector<float> v;
        for (size_t r = 0; r < static_cast<size_t>(n_ranks); r++)
            for (size_t k = 0; k < static_cast<size_t>(t.n_terms) && sums; k++)
                v.push_back(parts[r][k * n * h + i]);
        if (!sums)
            v.push_back(parts[i % h / cols][i / h * cols + i % h % cols]);
        while (v.size() > 1) {
            std::vector<float> next;
            if (t.kind != TREE) {
                next = v;
                next.erase(next.begin());
                next[0] = v[0] + v[1];
            }
            for (size_t k = 0; k < v.size() && t.kind == TREE; k += 2)
                next.push_back(k + 1 < v.size() ? v[k] + v[k + 1] : v[k]);
            v = next;
        }
        y[i] = v[0];
        if (t.add)
            y[i] = (t.logit ? open[i / h] * add[i] : add[i]) + v[0];
    }
    return y;
}

static void put(void *to, const void *from, size_t n)
{
    MUST(cudaMemcpy(to, from, n, cudaMemcpyHostToDevice));
}

/* ------------------------------------------------------------------ a trial */

static void enqueue(struct one *o, const struct trial &t, float *part, size_t n_part)
{
    struct sl_cuda *cu = sl_cuda(o->be);
    sl_cuda_use(cu);
    sl_cuda_fuse_begin(cu, &o->fuse);
    if (t.kind == GATHER || t.kind == THERE) {
        struct sl_op_all_gather op = {};
        cu->spread = t.kind == THERE ? part : NULL; /* as a product leaves it */
        op.rank = &o->rank;
        op.part = part;
        op.part_bytes = n_part / static_cast<size_t>(t.n) * sizeof(float);
        op.n = t.n;
        op.out = o->y;
        op.even = true;
        o->be->vt->all_gather(o->be, &op);
    } else {
        struct sl_op_all_reduce op = {};
        op.rank = &o->rank;
        op.part = part;
        op.n_terms = t.n_terms;
        op.n = t.n;
        op.h = t.h;
        op.tree = t.kind == TREE;
        op.add = t.add ? o->add : NULL;
        op.add_logit = t.logit ? o->logit : NULL;
        op.out = o->y;
        o->be->vt->all_reduce(o->be, &op);
    }
    if (t.norm) {
        struct sl_op_add_rmsnorm op = {};
        op.x = o->x, op.y = o->y, op.w = o->w;
        op.eps = EPS;
        op.n = t.n, op.h = t.h;
        op.out = o->out;
        o->be->vt->add_rmsnorm(o->be, &op);
    }
    sl_cuda_fuse_end(cu);
}

/* x + y and its norm by one GPU, of y alone; into x and out of rank 0. */
static void alone(struct group *g, const struct trial &t, const floats &x, const floats &y,
                  floats *sum, std::vector<uint16_t> *out)
{
    struct one *o = &g->of[0];
    struct sl_cuda *cu = sl_cuda(o->be);
    struct sl_op_add_rmsnorm op = {};
    sl_cuda_use(cu);
    put(o->x, x.data(), x.size() * sizeof(float));
    put(o->y, y.data(), y.size() * sizeof(float));
    MUST(cudaDeviceSynchronize());
    op.x = o->x, op.y = o->y, op.w = o->w;
    op.eps = EPS;
    op.n = t.n, op.h = t.h;
    op.out = o->out;
    o->be->vt->add_rmsnorm(o->be, &op);
    MUST(cudaStreamSynchronize(cu->stream));
    MUST(cudaMemcpy(sum->data(), o->x, x.size() * sizeof(float), cudaMemcpyDeviceToHost));
    MUST(cudaMemcpy(out->data(), o->out, x.size() * 2, cudaMemcpyDeviceToHost));
}

static bool matches(struct one *o, const struct trial &t, const floats &y, const floats &sum,
                    const std::vector<uint16_t> &out)
{
    struct sl_cuda *cu = sl_cuda(o->be);
    struct sl_error err = {};
    floats have(y.size());
    std::vector<uint16_t> normed(y.size());
    sl_cuda_use(cu);
    MUST(cudaStreamSynchronize(cu->stream));
    if (sl_cuda_report(cu, &err) != 0) {
        printf("%s\n", err.msg);
        return false;
    }
    MUST(cudaMemcpy(have.data(), t.norm ? o->x : o->y, y.size() * 4, cudaMemcpyDeviceToHost));
    MUST(cudaMemcpy(normed.data(), o->out, y.size() * 2, cudaMemcpyDeviceToHost));
    if (!t.norm)
        return memcmp(have.data(), y.data(), y.size() * 4) == 0;
    return memcmp(have.data(), sum.data(), y.size() * 4) == 0 &&
           memcmp(normed.data(), out.data(), y.size() * 2) == 0;
}

static void try_one(struct group *g, const struct trial &t)
{
    const size_t n = static_cast<size_t>(t.n), h = static_cast<size_t>(t.h);
    const size_t n_part =
        t.kind == GATHER || t.kind == THERE ? n * h / (size_t)g->n : (size_t)t.n_terms * n * h;
    const floats x = draw(n * h), w = draw(h), add = draw(n * h);
    const floats logit(n, 0.0f), open(n, 0.5f); /* of which the host has the sigmoid exactly */
    std::vector<floats> parts;
    for (int r = 0; r < g->n; r++)
        parts.push_back(draw(n_part));
    const floats y = sum_of(t, g->n, parts, add, open);
    floats sum(n * h);
    std::vector<uint16_t> out(n * h);
    for (int r = 0; r < g->n; r++) {
        sl_cuda_use(sl_cuda(g->of[r].be));
        put(g->of[r].w, w.data(), h * 4);
        MUST(cudaDeviceSynchronize());
    }
    alone(g, t, x, y, &sum, &out);
    std::vector<float *> at;
    for (int r = 0; r < g->n; r++) {
        struct one *o = &g->of[r];
        sl_cuda_use(sl_cuda(o->be));
        at.push_back(static_cast<float *>(sl_rank_room(&o->rank)));
        put(at.back(), parts[static_cast<size_t>(r)].data(), n_part * 4);
        put(o->x, x.data(), n * h * 4);
        put(o->add, add.data(), n * h * 4);
        put(o->logit, logit.data(), n * 4);
        MUST(cudaMemset(o->out, 0xff, n * h * 2));
        MUST(cudaMemset(o->y, 0xff, n * h * 4));
        if (t.kind == THERE)
            put(o->y, y.data(), n * h * 4);
        MUST(cudaDeviceSynchronize());
    }
    for (int r = 0; r < g->n; r++)
        enqueue(&g->of[r], t, at[static_cast<size_t>(r)], n_part);
    for (int r = 0; r < g->n; r++) {
        const bool ok = matches(&g->of[r], t, y, sum, out);
        n_passed += ok;
        n_failed += !ok;
        if (!ok)
            printf("FAIL: rank %d of %d: kind %d, %d terms, %d x %d%s%s\n", r, g->n, t.kind,
                   t.n_terms, t.n, t.h, t.norm ? ", norm" : "", t.add ? ", beside" : "");
    }
}

int main()
{
    static const int counts[] = {2, 3, 4, 8}, tokens[] = {1, 3, 17, 64, 90};
#ifdef SL_CUDA_SIM
    sl_sim_set_devices(SL_MAX_RANKS);
    sl_sim_set_eager(false); /* one thread enqueues for all ranks */
#else
    setenv("CUDA_MODULE_LOADING", "EAGER", 0);
#endif
    const int devices = SL_MIN(sl_cuda_count(), SL_MAX_RANKS);
    for (int n : counts) {
        struct group g;
        if (n > devices)
            continue;
        open_group(&g, n);
        for (int k : tokens) {
            const int wide = k > 17 ? 64 * n : 4096, odd = k > 17 ? 96 : 4608;
            const int terms = SL_REDUCE_TERMS / n;
            if (n > 4 && k > 3)
                continue; /* in the simulator this takes its time */
            try_one(&g, {GATHER, 1, k, 16 * n, true, false, false});
            try_one(&g, {GATHER, 1, k, n == 3 ? 4800 : wide, true, false, false});
            try_one(&g, {GATHER, 1, k, 32 * n, false, false, false});
            try_one(&g, {THERE, 1, k, n == 3 ? 4800 : wide, true, false, false});
            try_one(&g, {THERE, 1, k, 32 * n, false, false, false});
            try_one(&g, {CHAIN, terms, k, 256, true, false, false});
            try_one(&g, {CHAIN, 1, k, odd, true, true, true});
            try_one(&g, {CHAIN, terms, k, 512, false, true, false});
            try_one(&g, {TREE, 1, k, wide, true, true, false});
            try_one(&g, {TREE, 1, k, 5120, false, false, false});
        }
        try_one(&g, {TREE, 1, 128, 2048, true, false, false}); /* each rank adds some tokens */
        try_one(&g, {TREE, 1, 1, 4096, true, false, false});
        close_group(&g);
        printf("test_sum: %d ranks: %d passed, %d failed\n", n, n_passed, n_failed);
        fflush(stdout);
    }
    if (devices < 2)
        printf("test_sum: %d device(s): nothing to test\n", devices);
    return n_failed > 0;
}
