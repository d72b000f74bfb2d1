/* SPDX-License-Identifier: MIT
 * GEMMs: the operations. linear_route.cu says which kernel runs.
 */
#include "cuda/comm/comm.h"
#include "cuda/gemm/fuse.h"
#include "cuda/gemm/linear.h"
#include "cuda/gemm/lora.h"
#include "cuda/gemm/spread.h"
#include "cuda/launch.cuh"
#include "cuda/math.cuh"
#include "cuda/norm.cuh"
#include "cuda/ptx.cuh"

/* Tokens that every block norms for itself. A layer of 8B in four-bit groups, 6 and 8 sequences of
 * 768 positions: 69.5 and 74.4 us for 70.4 and 74.3 with a kernel for the norm; of BF16 and 6 132.2
 * for 133.3 (H200). With one segment BF16 comes through rings that two blocks share an
 * SM for, each of which would norm: 1 sequence 119.8 for 118.9. */
#define NORM_TOKENS 6

bool sl_cuda_linear_norms(const struct sl_lin_route *r, const struct sl_lin *l)
{
    if (r->layout == SL_CUDA_W8A8) /* with the codes; of one token a block makes them itself */
        return l->n > 1;
    return r->when == SL_LIN_DIRECT && l->n <= NORM_TOKENS && l->k <= SL_NORM_WIDTH &&
           l->norm_y == NULL;
}

void sl_cuda_linear_norm_apart(struct sl_cuda *cu, struct sl_lin *l)
{
    const struct sl_lin_norm *a = &l->norm;
    struct sl_cuda_norm n = {a->x, a->w, a->eps, l->n, l->k, a->out, l->norm_y};
    if (a->x != NULL)
        sl_cuda_norm_run(cu, &n);
    l->norm = {};
    l->norm_y = NULL;
}

bool sl_cuda_linear_adds(const struct sl_lin_route *r)
{
    return r->when != SL_LIN_TILED && (r->layout != SL_CUDA_W8A8 || r->max_tokens <= 64);
}

/* What `sluice inspect` shows: the kernels by the number of tokens, with the weight's layout. */
const char *sl_cuda_weight_route(struct sl_backend *be, const struct sl_weight *w)
{
    (void)be;
    static const char *const names[SL_CUDA_LAYOUTS] = {
        "rows",
        "stream/wgmma-bf16",
        "stream/wgmma-q8_0",
        "stream/wgmma-q4_0",
        "stream/wgmma-q4_k",
        "stream/wgmma-q5_k",
        "stream/wgmma-q6_k",
        "stream/wgmma-fp8",
        "wgmma-w8a8",
        "stream/wgmma-int4_g128",
        "stream/wgmma-int4_g32",
        "stream/wgmma-mxfp4",
    };
    SL_ASSERT(w->layout >= 0 && w->layout < SL_CUDA_LAYOUTS);
    return names[w->layout];
}

typedef sl_op_linear_multi::sl_linear_part linear_part;

static struct sl_lin_part make_part(const struct sl_weight *w, const float *bias, float *out,
                                    int64_t ld_out, int32_t first)
{
    SL_ASSERT(w->layout != SL_CUDA_ROWS);
    struct sl_lin_part p = {};
    p.w = (const uint8_t *)w->data;
    p.bias = bias;
    p.out = out;
    p.ld_out = ld_out;
    p.n_rows = (int32_t)w->n_rows;
    p.n_blocks = (int32_t)SL_CEIL_DIV(w->n_rows, SL_CUDA_ROW_BLOCK);
    p.first = first;
    p.layout = w->layout;
    return p;
}

static struct sl_lin linear_make(const void *x, int64_t ld_x, int32_t n, const struct sl_weight *w)
{
    struct sl_lin l = {};
    int32_t unit_k = sl_cuda_layout_info(w->layout)->unit_k;
    l.x = (const __nv_bfloat16 *)x;
    l.ld_x = ld_x;
    l.n = n;
    l.k = (int32_t)w->n_cols;
    l.n_k64 = (int32_t)(SL_CEIL_DIV(w->n_cols, (int64_t)unit_k) * (unit_k / 64));
    bool whole = SL_MAX(w->n_rows, static_cast<int64_t>(w->of_rows)) >= SL_LIN_SEG_ROWS ||
                 w->layout == SL_CUDA_W8A8;
    const int32_t of_k64 = w->of_cols > 0 ? w->of_cols / 64 : l.n_k64;
    bool more_pay = sl_lin_quick_codes(w->layout) && of_k64 >= SL_LIN_LONG_K64;
    int32_t more = more_pay ? SL_LIN_SEGS_LONG : SL_LIN_SEGS;
    int32_t segs = whole ? 1 : more;
    l.seg_k64 = SL_ROUND_UP(SL_CEIL_DIV(of_k64, segs), 4);
    l.n_segs = SL_CEIL_DIV(l.n_k64, l.seg_k64);
    l.vec_x = (uintptr_t)x % 16 == 0 && ld_x % 8 == 0;
    return l;
}

static void add_part(struct sl_lin *l, const linear_part *a)
{
    const struct sl_lin_part *before = l->n_parts == 0 ? NULL : &l->part[l->n_parts - 1];
    int32_t first = before == NULL ? 0 : before->first + before->n_blocks;
    SL_ASSERT(a->w->n_cols == l->k);
    struct sl_lin_part *p = &l->part[l->n_parts++];
    *p = make_part(a->w, a->bias, a->out, a->ld_out, first);
    struct sl_lin own = linear_make(l->x, l->ld_x, l->n, a->w);
    p->seg_k64 = own.seg_k64;
    l->mixed = l->mixed || own.n_segs != l->n_segs;
    if (own.n_segs > l->n_segs) {
        l->n_segs = own.n_segs;
        l->seg_k64 = own.seg_k64;
    }
}

void sl_cuda_linear_run(struct sl_cuda *cu, const struct sl_lin *l, const struct sl_lin_route *r)
{
    if (l->n <= 0)
        return;
    if (r == NULL)
        r = sl_cuda_linear_route_of(cu, l);
    SL_ASSERT(r != NULL && sl_cuda_linear_fits(r, l) && (!l->add || sl_cuda_linear_adds(r)));
    if (l->norm.x == NULL || sl_cuda_linear_norms(r, l)) {
        r->run(cu, l);
        return;
    }
    struct sl_lin normed = *l;
    sl_cuda_linear_norm_apart(cu, &normed);
    r->run(cu, &normed);
}

struct sl_lin sl_cuda_linear_args(const struct sl_op_linear *a)
{
    struct sl_lin l = linear_make(a->x, a->ld_x, a->n, a->w);
    linear_part p = {a->w, a->bias, a->out, a->ld_out};
    add_part(&l, &p);
    return l;
}

struct sl_lin sl_cuda_linear_gated_args(const struct sl_op_linear_gated_act *a)
{
    struct sl_lin l = linear_make(a->x, a->ld_x, a->n, a->gate);
    linear_part gate = {a->gate, NULL, NULL, 0}, up = {a->up, NULL, NULL, 0};
    add_part(&l, &gate);
    add_part(&l, &up);
    l.gated = true;
    l.act = a->act;
    l.gated_out = (__nv_bfloat16 *)a->out;
    l.gated_ld = a->gate->n_rows;
    return l;
}

static struct sl_cuda_lora lora_of(const struct sl_op_lora *lora, const void *x, int64_t ld_x,
                                   int32_t first, int32_t n)
{
    struct sl_cuda_lora l = {};
    l.lora = lora;
    l.x = x;
    l.ld_x = ld_x;
    l.first = first;
    l.n = n;
    return l;
}

/* Of many tokens products write to all ranks what is gathered next. */
#define SPREAD_TOKENS 32 /* more than those */

/* l writes to s, and so to all ranks: true, if its kernel does. */
static bool spread(struct sl_cuda *cu, struct sl_lin *l, const struct sl_spread *s, const void *out)
{
    if (s == NULL || l->n <= SPREAD_TOKENS || cu->comm == NULL || !cu->comm->alike ||
        cu->comm->n_ranks - 1 > SL_LIN_PEERS)
        return false;
    const struct sl_lin_route *r = sl_cuda_linear_spread_of(cu, l);
    if (!sl_cuda_linear_spreads(r))
        return false;
    const int32_t me = s->rank->idx;
    for (int i = 0; i < cu->comm->n_ranks; i++) {
        if (s->rank->mem[i] == NULL)
            return false;
        if (i != me)
            l->to_peer[l->n_peers++] = s->rank->mem[i] - s->rank->mem[me];
    }
    if (l->gated) {
        l->gated_out = static_cast<__nv_bfloat16 *>(s->whole);
        l->gated_ld = s->ld;
    } else {
        l->part[0].out = static_cast<float *>(s->whole);
        l->part[0].ld_out = s->ld;
    }
    SL_ASSERT(cu->spread == NULL); /* gathers follow at once */
    sl_cuda_linear_run(cu, l, r);
    cu->spread = out;
    return true;
}

extern "C" void sl_cuda_linear(struct sl_backend *be, const struct sl_op_linear *a)
{
    struct sl_lin l = sl_cuda_linear_args(a);
    struct sl_cuda_lora add = lora_of(a->lora, a->x, a->ld_x, 0, a->n);
    if (a->apart) {
        SL_ASSERT(a->n <= SL_APART_ROWS && a->bias == NULL && a->lora == NULL);
        SL_ASSERT(a->ld_out == a->w->n_rows);
        l.apart = true;
        sl_cuda_fuse_take(sl_cuda(be), &l);
    } else if (a->lora == NULL) {
        sl_cuda_fuse_take(sl_cuda(be), &l);
        if (spread(sl_cuda(be), &l, a->spread, a->out) || sl_cuda_fuse_linear(sl_cuda(be), &l))
            return;
    } else {
        add.n_parts = 1;
        add.part[0] = {a->w, a->out, a->ld_out};
        sl_cuda_lora_shrink(sl_cuda(be), &add);
    }
    sl_cuda_linear_run(sl_cuda(be), &l, NULL);
    if (a->lora != NULL)
        sl_cuda_lora_expand(sl_cuda(be), &add);
}

/* Kernels that walk through all segments have parts of different ones side by side. */
static bool may_mix(const struct sl_lin *l)
{
    return l->part[0].layout == SL_CUDA_BF16 && l->n > 64 && l->vec_x;
}

/* One launch for the parts of a layout and as many segments. */
static void run_parts(struct sl_cuda *cu, const struct sl_op_linear_multi *a)
{
    SL_ASSERT(a->n_parts <= SL_MAX_LINEAR_PARTS);
    bool done[SL_MAX_LINEAR_PARTS] = {};
    for (int32_t i = 0; i < a->n_parts; i++) {
        if (done[i])
            continue;
        struct sl_lin l = linear_make(a->x, a->ld_x, a->n, a->part[i].w);
        for (int32_t j = i; j < a->n_parts; j++) {
            const struct sl_weight *w = a->part[j].w;
            bool same = linear_make(a->x, a->ld_x, a->n, w).n_segs == l.n_segs;
            if (w->layout != a->part[i].w->layout || !(same || may_mix(&l)))
                continue;
            add_part(&l, &a->part[j]);
            done[j] = true;
        }
        sl_cuda_fuse_take(cu, &l); /* the first product leaves it to the others */
        sl_cuda_linear_run(cu, &l, NULL);
    }
}

extern "C" void sl_cuda_linear_multi(struct sl_backend *be, const struct sl_op_linear_multi *a)
{
    struct sl_cuda_lora add = lora_of(a->lora, a->x, a->ld_x, 0, a->n);
    if (a->lora != NULL) {
        add.n_parts = a->n_parts;
        for (int32_t i = 0; i < a->n_parts; i++)
            add.part[i] = {a->part[i].w, a->part[i].out, a->part[i].ld_out};
        sl_cuda_lora_shrink(sl_cuda(be), &add);
    }
    run_parts(sl_cuda(be), a);
    if (a->lora != NULL)
        sl_cuda_lora_expand(sl_cuda(be), &add);
}

#define ACT_THREADS 256

/* out = act(g) * u, as the gated kernels have it. */
static __global__ void __launch_bounds__(ACT_THREADS)
    linear_act_kernel(const float *g, const float *u, __nv_bfloat16 *out, int64_t n,
                      enum sl_act act)
{
    sl_grid_wait();
    int64_t i = static_cast<int64_t>(blockIdx.x) * ACT_THREADS + threadIdx.x;
    if (i < n)
        out[i] = __float2bfloat16_rn(__fmul_rn(sl_act(act, g[i]), u[i]));
}

/* Gate and up of different layouts, which model files do not have but may, or with adapters: two
 * GEMMs into memory, as many tokens at a time as fit there, then the activation. Their sums have
 * the bits of the gated kernels' (docs/DETERMINISM.md), so rows without an adapter are what they
 * are elsewhere. */
static void run_mixed(struct sl_cuda *cu, const struct sl_op_linear_gated_act *a)
{
    int64_t n_rows = a->gate->n_rows;
    int32_t most = (int32_t)SL_MIN((int64_t)a->n, cu->lin_mixed_bytes / 8 / n_rows);
    SL_ASSERT(most > 0 || a->n == 0);
    for (int32_t t = 0; t < a->n; t += most) {
        int32_t n = SL_MIN(most, a->n - t);
        float *g = cu->lin_mixed, *u = g + n * n_rows;
        const __nv_bfloat16 *x = (const __nv_bfloat16 *)a->x + t * a->ld_x;
        __nv_bfloat16 *out = (__nv_bfloat16 *)a->out + t * n_rows;
        struct sl_op_linear_multi both = {};
        both.x = x;
        both.ld_x = a->ld_x;
        both.n = n;
        both.n_parts = 2;
        both.part[0] = {a->gate, NULL, g, n_rows};
        both.part[1] = {a->up, NULL, u, n_rows};
        if (a->lora == NULL) {
            int64_t grid = SL_CEIL_DIV(n * n_rows, (int64_t)ACT_THREADS);
            run_parts(cu, &both);
            sl_launch(cu, linear_act_kernel, dim3((unsigned)grid), dim3(ACT_THREADS), 0,
                      (const float *)g, (const float *)u, out, n * n_rows, a->act);
            continue;
        }
        struct sl_cuda_lora add = lora_of(a->lora, x, a->ld_x, t, n);
        add.n_parts = 2;
        add.part[0] = {a->gate, g, n_rows};
        add.part[1] = {a->up, u, n_rows};
        add.gated_out = out;
        add.act = a->act;
        sl_cuda_lora_shrink(cu, &add);
        run_parts(cu, &both);
        sl_cuda_lora_expand(cu, &add);
    }
}

extern "C" void sl_cuda_linear_gated_act(struct sl_backend *be,
                                         const struct sl_op_linear_gated_act *a)
{
    SL_ASSERT(a->gate->n_rows == a->up->n_rows && a->gate->n_cols == a->up->n_cols);
    if (a->gate->layout != a->up->layout || a->lora != NULL) {
        run_mixed(sl_cuda(be), a);
        sl_cuda_fuse_written(sl_cuda(be), a->out);
        return;
    }
    struct sl_lin l = sl_cuda_linear_gated_args(a);
    sl_cuda_fuse_take(sl_cuda(be), &l);
    if (!spread(sl_cuda(be), &l, a->spread, a->out) && !sl_cuda_fuse_gated(sl_cuda(be), &l))
        sl_cuda_linear_run(sl_cuda(be), &l, NULL);
}
