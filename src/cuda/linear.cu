/* SPDX-License-Identifier: MIT
 * Matrix products: the operations, and which kernel runs.
 */
#include "cuda/launch.cuh"
#include "cuda/linear.h"
#include "cuda/lora.h"
#include "cuda/math.cuh"
#include "cuda/ptx.cuh"

#define W8A8_KEPT_K64 256 /* steps whose scales few tokens of w8a8 keep (SL_W8_KEPT) */
#define RING_CODED    2   /* tokens up to which codes come through the ring */

/* A layout streams up to 8 tokens, if they fit. Above, tiles as wide as the tokens, and from 65 on
 * the largest, 128 rows x 256 tokens or 256 x 128, where there are no segments to add up. */
#define ROUTE_OF(id, tokens, segs, kind, when, kernel, name)                                    \
    {                                                                                           \
        SL_CUDA_##id, tokens, segs, SL_LIN_##kind, SL_LIN_##when, {}, sl_lin_##kernel##_##name, \
            #kernel "-" #name                                                                   \
    }
#define TILE(id, tokens, segs, kind, blocks, split, kernel, name)                            \
    {                                                                                        \
        SL_CUDA_##id, INT32_MAX, segs, SL_LIN_##kind, SL_LIN_TILED, {tokens, blocks, split}, \
            sl_lin_##kernel##_##name, #kernel "-" #name                                      \
    }
#define ROUTE(id, tokens, segs, kind, kernel, name) \
    ROUTE_OF(id, tokens, segs, kind, ALWAYS, kernel, name)
#define ROUTES_UP_TO_8(id, name)                            \
    ROUTE_OF(id, 8, INT32_MAX, BOTH, DIRECT, direct, name), \
        ROUTE_OF(id, 8, INT32_MAX, BOTH, RING, stream, name)
#define ROUTES_ABOVE(id, name)                                                                   \
    ROUTE(id, 16, INT32_MAX, PLAIN, wg16, name), ROUTE(id, 16, INT32_MAX, GATED, gated16, name), \
        ROUTE(id, 32, INT32_MAX, PLAIN, wg32, name),                                             \
        ROUTE(id, 32, INT32_MAX, GATED, gated32, name),                                          \
        ROUTE(id, 64, INT32_MAX, PLAIN, wg64, name),                                             \
        ROUTE(id, 64, INT32_MAX, GATED, gated64, name),                                          \
        ROUTE_OF(id, INT32_MAX, 1, BOTH, WIDE, wide, name),                                      \
        ROUTE(id, INT32_MAX, 1, BOTH, wg256, name),                                              \
        ROUTE(id, INT32_MAX, INT32_MAX, PLAIN, wg128, name),                                     \
        ROUTE(id, INT32_MAX, INT32_MAX, GATED, gated64, name)
#define CODED(id, name)                                                                \
    ROUTES_UP_TO_8(id, name), ROUTE(id, 16, 1, PLAIN, tall16, name),                   \
        ROUTE(id, 16, 1, GATED, gtall16, name), ROUTE(id, 32, 1, PLAIN, tall32, name), \
        ROUTE(id, 32, 1, GATED, gtall32, name), ROUTE(id, 64, 1, PLAIN, tall64, name), \
        ROUTE(id, 64, 1, GATED, gtall64, name), ROUTES_ABOVE(id, name)

static const struct sl_lin_route routes[] = {
    TILE(BF16, 256, 1, PLAIN, 2, false, tile256, bf16),
    TILE(BF16, 192, INT32_MAX, PLAIN, 2, false, total192, bf16),
    TILE(BF16, 128, INT32_MAX, PLAIN, 2, false, total128, bf16),
    TILE(BF16, 256, INT32_MAX, PLAIN, 1, true, split256, bf16),
    TILE(BF16, 128, INT32_MAX, PLAIN, 1, true, split128, bf16),
    TILE(BF16, 256, 1, GATED, 2, false, pairs256, bf16),
    TILE(BF16, 192, INT32_MAX, GATED, 2, false, pairtot192, bf16),
    TILE(BF16, 128, INT32_MAX, GATED, 2, false, pairtot128, bf16),
    TILE(BF16, 256, 1, GATED, 1, false, pairs, bf16),
    TILE(BF16, 256, 1, PLAIN, 1, false, wide, bf16),
    TILE(BF16, 128, INT32_MAX, PLAIN, 1, false, wg128, bf16),
    ROUTE_OF(BF16, 8, INT32_MAX, PLAIN, DEEP, deep, bf16),
    ROUTES_UP_TO_8(BF16, bf16),
    ROUTES_ABOVE(BF16, bf16),
    CODED(Q8_0, q8_0),
    CODED(Q4_0, q4_0),
    CODED(Q4_K, q4_k),
    CODED(Q5_K, q5_k),
    CODED(Q6_K, q6_k),
    CODED(FP8, fp8),
    ROUTE(W8A8, 8, INT32_MAX, BOTH, few, w8a8),
    ROUTE(W8A8, 16, INT32_MAX, BOTH, n16, w8a8),
    ROUTE(W8A8, 32, INT32_MAX, BOTH, n32, w8a8),
    ROUTE(W8A8, 64, INT32_MAX, BOTH, n64, w8a8),
    ROUTE(W8A8, INT32_MAX, INT32_MAX, BOTH, wide, w8a8),
    ROUTE(W8A8, INT32_MAX, INT32_MAX, PLAIN, p192, w8a8),
    ROUTE(W8A8, INT32_MAX, INT32_MAX, PLAIN, r192, w8a8),
    ROUTE(W8A8, INT32_MAX, INT32_MAX, PLAIN, p128, w8a8),
    ROUTE(W8A8, INT32_MAX, INT32_MAX, PLAIN, r64, w8a8),
    ROUTE(W8A8, INT32_MAX, INT32_MAX, GATED, g128, w8a8),
    ROUTE(W8A8, INT32_MAX, INT32_MAX, GATED, gp192, w8a8),
    CODED(INT4_G128, int4_g128),
    CODED(INT4_G32, int4_g32),
};

const struct sl_lin_route *sl_cuda_linear_routes(size_t *n)
{
    *n = SL_COUNT(routes);
    return routes;
}

/* Tiles of rows and tokens, those of rows rounded up to as many as share tokens. */
static int64_t n_tiles(const struct sl_lin_route *r, const struct sl_lin *l)
{
    int64_t rows = 0;
    for (int i = 0; i < (l->gated ? 1 : l->n_parts); i++)
        rows += SL_CEIL_DIV(l->part[i].n_blocks, l->gated ? 4 : 8);
    return SL_ROUND_UP(rows, r->tile.blocks) * SL_CEIL_DIV(l->n, r->tile.tokens);
}

static bool tiles_fit(const struct sl_lin_route *r, const struct sl_lin *l)
{
    bool room = n_tiles(r, l) * r->tile.tokens * SL_LIN_SHELF_TOKEN <= SL_LIN_SHELF_BYTES;
    return l->n > 64 && l->vec_x && (!l->mixed || r->tile.blocks > 1) &&
           (!r->tile.split || (l->n_segs > 1 && room));
}

bool sl_cuda_linear_fits(const struct sl_lin_route *r, const struct sl_lin *l)
{
    bool room =
        r->when != SL_LIN_DIRECT || (int64_t)l->n * (l->n_k64 * 128 + 16) <= SL_LIN_DIRECT_BYTES;
    return r->layout == l->part[0].layout && l->n <= r->max_tokens && l->n_segs <= r->max_segs &&
           (r->kind & (l->gated ? SL_LIN_GATED : SL_LIN_PLAIN)) != 0 && room &&
           (r->when == SL_LIN_TILED ? tiles_fit(r, l) : !l->mixed) &&
           (r->layout != SL_CUDA_W8A8 || r->max_tokens > 64 || l->n_k64 <= W8A8_KEPT_K64);
}

/* Steps from which on matrices of several segments want rings, if all warps have a row block, and
 * in any case. */
#define LONG_K64    128
#define LONGEST_K64 192

/* BF16 of few tokens. Short row blocks come sooner without a ring; of long ones that are one or two
 * for a multiprocessor, one block with deep rings keeps up as tokens become more (4096 x 14336 of 1
 * and 4 tokens: direct 31.4 and 34.6 us, deep 30.6 and 31.0; 4096 x 4096: 10.8, 11.9 and 13.7,
 * 13.0); of more, two blocks (5120 x 25600: deep 73.9 and 78.4, stream 68.2 and 73.6; H200). */
static bool bf16_pays(const struct sl_lin_route *r, const struct sl_lin *l, int n_sms)
{
    int32_t blocks = 0;
    for (int i = 0; i < l->n_parts; i++)
        blocks += l->part[i].n_blocks;
    if (l->n_segs == 1)
        return false;
    if (r->when == SL_LIN_DIRECT)
        return l->n_k64 < (blocks <= n_sms ? LONG_K64 : LONGEST_K64);
    return l->n_k64 >= LONG_K64 && blocks > n_sms && blocks <= n_sms * (8 / l->n_segs);
}

/* A tile of 256 tokens is a fifth faster than two of 128, unless the second half is empty. Codes
 * cost instructions, of which reading weights directly wants fewer; BF16 of many rows streams as
 * fast through shared memory, which leaves room for the kernel behind. Where tokens of codes do not
 * fit, eight warps decode too slowly: 4096 x 14336, 8 tokens, Q4_K 23.4 us by wgmma for 34.5 (H200;
 * the number of tokens from which this holds was not looked for). */
static bool pays(const struct sl_lin_route *r, const struct sl_lin *l, int n_sms)
{
    if (r->when == SL_LIN_WIDE)
        return 5 * (int64_t)SL_ROUND_UP(l->n, 256) <= 6 * (int64_t)SL_ROUND_UP(l->n, 128);
    if ((r->when == SL_LIN_DIRECT || r->when == SL_LIN_DEEP) && r->layout == SL_CUDA_BF16)
        return bf16_pays(r, l, n_sms);
    if (r->when == SL_LIN_RING)
        return r->layout == SL_CUDA_BF16 || l->n <= RING_CODED;
    return true;
}

/* What a tile costs in clocks of 1.9 GHz: a step, the end, and a step where the chip's power is the
 * limit, spread over all multiprocessors. Fitted to 126 products of the layers of four models, 128
 * to 8192 tokens, on an H200 (7 % off in the mean). */
static const struct tile_cost {
    void (*run)(struct sl_cuda *cu, const struct sl_lin *l);
    int32_t step, end, power;
} costs[] = {
    {sl_lin_tile256_bf16, 1479, 7270, 1609},    {sl_lin_total192_bf16, 985, 7021, 1310},
    {sl_lin_total128_bf16, 739, 6280, 1005},    {sl_lin_split256_bf16, 1355, 23062, 2039},
    {sl_lin_split128_bf16, 831, 13416, 1203},   {sl_lin_pairs256_bf16, 1455, 3508, 1802},
    {sl_lin_pairtot192_bf16, 1188, 6319, 1252}, {sl_lin_pairtot128_bf16, 563, 3000, 1051},
    {sl_lin_wg128_bf16, 661, 7192, 963},        {sl_lin_wide_bf16, 1479, 7270, 1450},
    {sl_lin_pairs_bf16, 1440, 6000, 1676},
};

/* Sums so many that they fill L2 several times leave faster as ordinary stores, unless the tiles
 * are long. */
#define WIDE_BYTES ((int64_t)200 << 20)
#define WIDE_K64   96

static int64_t cost(const struct sl_lin_route *r, const struct sl_lin *l, int n_sms)
{
    const struct tile_cost *c = costs;
    while (c->run != r->run)
        c++;
    int64_t units = n_tiles(r, l), steps = l->n_k64, rows = 0;
    for (int i = 0; i < l->n_parts; i++)
        rows += l->part[i].n_rows;
    if (r->run == sl_lin_wide_bf16 && (rows * l->n * 4 < WIDE_BYTES || steps > WIDE_K64))
        return INT64_MAX;
    bool apart = r->tile.split;
    if (r->run == sl_lin_wg128_bf16) /* decides for itself */
        apart =
            l->n_segs > 1 && SL_CEIL_DIV(units * l->n_segs, (int64_t)n_sms) * (l->seg_k64 + 20) <
                                 SL_CEIL_DIV(units, (int64_t)n_sms) * steps;
    if (apart) {
        units *= l->n_segs;
        steps = l->seg_k64 + (r->tile.split ? 0 : 20);
    }
    int64_t quick = SL_CEIL_DIV(units, (int64_t)n_sms) * (steps * c->step + c->end);
    return SL_MAX(quick, units * steps * c->power / n_sms);
}

const struct sl_lin_route *sl_cuda_linear_route(const struct sl_lin *l, int n_sms)
{
    const struct sl_lin_route *best = NULL;
    int64_t least = 0;
    for (size_t i = 0; i < SL_COUNT(routes); i++) {
        const struct sl_lin_route *r = &routes[i];
        if (!sl_cuda_linear_fits(r, l) || !pays(r, l, n_sms))
            continue;
        if (r->when != SL_LIN_TILED)
            return best != NULL ? best : r;
        int64_t c = cost(r, l, n_sms);
        if (best == NULL || c < least)
            best = r, least = c;
    }
    return best;
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

static struct sl_lin make(const void *x, int64_t ld_x, int32_t n, const struct sl_weight *w)
{
    struct sl_lin l = {};
    int32_t unit_k = sl_cuda_layout_info(w->layout)->unit_k;
    l.x = (const __nv_bfloat16 *)x;
    l.ld_x = ld_x;
    l.n = n;
    l.k = (int32_t)w->n_cols;
    l.n_k64 = (int32_t)(SL_CEIL_DIV(w->n_cols, (int64_t)unit_k) * (unit_k / 64));
    bool whole = w->n_rows >= SL_LIN_SEG_ROWS || w->layout == SL_CUDA_W8A8;
    int32_t segs = whole ? 1 : SL_LIN_SEGS;
    l.seg_k64 = SL_ROUND_UP(SL_CEIL_DIV(l.n_k64, segs), 4);
    l.n_segs = SL_CEIL_DIV(l.n_k64, l.seg_k64);
    l.vec_x = (uintptr_t)x % 16 == 0 && ld_x % 8 == 0;
    return l;
}

static void add_part(struct sl_lin *l, const linear_part *a)
{
    const struct sl_lin_part *before = &l->part[l->n_parts - 1];
    int32_t first = l->n_parts == 0 ? 0 : before->first + before->n_blocks;
    SL_ASSERT(a->w->n_cols == l->k);
    struct sl_lin_part *p = &l->part[l->n_parts++];
    *p = make_part(a->w, a->bias, a->out, a->ld_out, first);
    struct sl_lin own = make(l->x, l->ld_x, l->n, a->w);
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
        r = sl_cuda_linear_route(l, cu->n_sms);
    SL_ASSERT(r != NULL && sl_cuda_linear_fits(r, l));
    r->run(cu, l);
}

struct sl_lin sl_cuda_linear_args(const struct sl_op_linear *a)
{
    struct sl_lin l = make(a->x, a->ld_x, a->n, a->w);
    linear_part p = {a->w, a->bias, a->out, a->ld_out};
    add_part(&l, &p);
    return l;
}

struct sl_lin sl_cuda_linear_gated_args(const struct sl_op_linear_gated_act *a)
{
    struct sl_lin l = make(a->x, a->ld_x, a->n, a->gate);
    linear_part gate = {a->gate, NULL, NULL, 0}, up = {a->up, NULL, NULL, 0};
    add_part(&l, &gate);
    add_part(&l, &up);
    l.gated = true;
    l.act = a->act;
    l.gated_out = (__nv_bfloat16 *)a->out;
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

extern "C" void sl_cuda_linear(struct sl_backend *be, const struct sl_op_linear *a)
{
    struct sl_lin l = sl_cuda_linear_args(a);
    struct sl_cuda_lora add = lora_of(a->lora, a->x, a->ld_x, 0, a->n);
    if (a->lora != NULL) {
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
        struct sl_lin l = make(a->x, a->ld_x, a->n, a->part[i].w);
        for (int32_t j = i; j < a->n_parts; j++) {
            const struct sl_weight *w = a->part[j].w;
            bool same = make(a->x, a->ld_x, a->n, w).n_segs == l.n_segs;
            if (w->layout != a->part[i].w->layout || !(same || may_mix(&l)))
                continue;
            add_part(&l, &a->part[j]);
            done[j] = true;
        }
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
    act_kernel(const float *g, const float *u, __nv_bfloat16 *out, int64_t n, enum sl_act act)
{
    sl_grid_wait();
    int64_t i = static_cast<int64_t>(blockIdx.x) * ACT_THREADS + threadIdx.x;
    if (i < n)
        out[i] = __float2bfloat16_rn(__fmul_rn(sl_act(act, g[i]), u[i]));
}

/* Gate and up of different layouts, which model files do not have but may, or with adapters: two
 * products into memory, as many tokens as fit there, and what follows them.
 * Their sums have the bits of the gated kernels' (docs/DETERMINISM.md), so that rows without
 * adapter are what they are elsewhere. */
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
            sl_launch(cu, act_kernel, dim3((unsigned)grid), dim3(ACT_THREADS), 0, (const float *)g,
                      (const float *)u, out, n * n_rows, a->act);
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
        return;
    }
    struct sl_lin l = sl_cuda_linear_gated_args(a);
    sl_cuda_linear_run(sl_cuda(be), &l, NULL);
}
