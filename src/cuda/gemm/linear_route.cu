/* SPDX-License-Identifier: MIT
 * Which kernel computes a product: the table of routes, what each costs, and the choice.
 */
#include "cuda/comm/comm.h"
#include "cuda/gemm/linear.h"
#include "cuda/gemm/spread.h"

#include <string.h>

#define W8A8_KEPT_K64 256 /* steps whose scales few tokens of w8a8 keep (SL_W8_KEPT) */
#define RING_CODED    2   /* tokens up to which codes come through the ring */

/* A layout streams up to 8 tokens, if they fit. Above, tiles as wide as the tokens, and from 65 on
 * the largest, 128 rows x 256 tokens or 256 x 128, where there are no segments to add up; of BF16
 * from 33 tokens on those of the tiles below that cost least. */
#define ROUTE_OF(id, tokens, segs, kind, when, kernel, name)                                    \
    {                                                                                           \
        SL_CUDA_##id, tokens, segs, SL_LIN_##kind, SL_LIN_##when, {}, sl_lin_##kernel##_##name, \
            #kernel "-" #name                                                                   \
    }
#define TILE(segs, kind, kernel, ...)                                              \
    {                                                                              \
        SL_CUDA_BF16, INT32_MAX, segs, SL_LIN_##kind, SL_LIN_TILED, {__VA_ARGS__}, \
            sl_lin_##kernel##_bf16, #kernel "-bf16"                                \
    }
#define ROUTE(id, tokens, segs, kind, kernel, name) \
    ROUTE_OF(id, tokens, segs, kind, ALWAYS, kernel, name)
#define ROUTES_UP_TO_8(id, name)                            \
    ROUTE_OF(id, 8, INT32_MAX, BOTH, DIRECT, direct, name), \
        ROUTE_OF(id, 8, SL_LIN_SEGS, BOTH, RING, stream, name)
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
#define CODED(id, name)                                                                  \
    ROUTES_UP_TO_8(id, name), ROUTE_OF(id, 16, INT32_MAX, BOTH, DIRECT, direct16, name), \
        ROUTE_OF(id, 16, INT32_MAX, PLAIN, TALL, tall16, name),                          \
        ROUTE(id, 16, 1, GATED, gtall16, name),                                          \
        ROUTE_OF(id, 32, INT32_MAX, PLAIN, TALL, tall32, name),                          \
        ROUTE(id, 32, 1, GATED, gtall32, name),                                          \
        ROUTE_OF(id, 64, INT32_MAX, PLAIN, TALL, tall64, name),                          \
        ROUTE(id, 64, 1, GATED, gtall64, name), ROUTES_ABOVE(id, name)

static const struct sl_lin_route routes[] = {
    TILE(1, PLAIN, tile256, 128, 256, SL_SHARE_W),
    TILE(INT32_MAX, PLAIN, tile192, 128, 192, SL_SHARE_W),
    TILE(INT32_MAX, PLAIN, tile160, 128, 160, SL_SHARE_X),
    TILE(INT32_MAX, PLAIN, tile128, 128, 128, SL_SHARE_X),
    TILE(INT32_MAX, PLAIN, tile96, 128, 96, SL_SHARE_X),
    TILE(INT32_MAX, PLAIN, tile64, 128, 64, SL_SHARE_X),
    TILE(INT32_MAX, PLAIN, tile128w, 128, 128, SL_SHARE_W),
    TILE(INT32_MAX, PLAIN, tile64w, 128, 64, SL_SHARE_W),
    TILE(INT32_MAX, PLAIN, half160, 128, 160, SL_SHARE_TILE),
    TILE(INT32_MAX, PLAIN, half128, 128, 128, SL_SHARE_TILE),
    TILE(INT32_MAX, PLAIN, half96, 128, 96, SL_SHARE_TILE),
    TILE(INT32_MAX, PLAIN, half64, 128, 64, SL_SHARE_TILE),
    TILE(INT32_MAX, PLAIN, half32, 128, 32, SL_SHARE_TILE),
    TILE(INT32_MAX, PLAIN, quad96, 128, 96, SL_SHARE_QUARTERS),
    TILE(INT32_MAX, PLAIN, quad64, 128, 64, SL_SHARE_QUARTERS),
    TILE(INT32_MAX, GATED, ghalf128, 128, 128, SL_SHARE_TILE),
    TILE(INT32_MAX, PLAIN, fewhalf96, 64, 96, SL_SHARE_TILE),
    TILE(INT32_MAX, PLAIN, fewhalf64, 64, 64, SL_SHARE_TILE),
    TILE(INT32_MAX, PLAIN, fewquad96, 64, 96, SL_SHARE_QUARTERS),
    TILE(INT32_MAX, PLAIN, fewquad64, 64, 64, SL_SHARE_QUARTERS),
    TILE(INT32_MAX, PLAIN, few96, 64, 96, SL_SHARE_X),
    TILE(INT32_MAX, PLAIN, few64, 64, 64, SL_SHARE_X),
    TILE(INT32_MAX, PLAIN, few48, 64, 48, SL_SHARE_X),
    TILE(INT32_MAX, PLAIN, few32, 64, 32, SL_SHARE_X),
    TILE(1, GATED, gate256, 128, 256, SL_SHARE_W),
    TILE(INT32_MAX, GATED, gate128, 128, 128, SL_SHARE_X),
    TILE(INT32_MAX, GATED, gate128w, 128, 128, SL_SHARE_W),
    TILE(INT32_MAX, GATED, gate64, 128, 64, SL_SHARE_X),
    TILE(INT32_MAX, GATED, fewgate, 64, 64, SL_SHARE_X),
    TILE(1, GATED, pairs, 256, 128, SL_SHARE_NONE),
    TILE(1, PLAIN, wide, 256, 128, SL_SHARE_NONE),
    TILE(INT32_MAX, PLAIN, wg128, 128, 128, SL_SHARE_NONE),
    ROUTE_OF(BF16, 8, INT32_MAX, BOTH, DIRECT, direct, bf16),
    ROUTE_OF(BF16, 8, INT32_MAX, PLAIN, DEEP, deep, bf16),
    ROUTE_OF(BF16, 8, INT32_MAX, BOTH, RING, stream, bf16),
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
    ROUTE(W8A8, INT32_MAX, INT32_MAX, PLAIN, r192, w8a8),
    ROUTE(W8A8, INT32_MAX, INT32_MAX, PLAIN, r128, w8a8),
    ROUTE(W8A8, INT32_MAX, INT32_MAX, PLAIN, r96, w8a8),
    ROUTE(W8A8, INT32_MAX, INT32_MAX, PLAIN, r64, w8a8),
    ROUTE(W8A8, INT32_MAX, INT32_MAX, PLAIN, t64, w8a8),
    ROUTE(W8A8, INT32_MAX, INT32_MAX, GATED, g128, w8a8),
    CODED(INT4_G128, int4_g128),
    CODED(INT4_G32, int4_g32),
    CODED(MXFP4, mxfp4),
};

const struct sl_lin_route *sl_cuda_linear_routes(size_t *n)
{
    *n = SL_COUNT(routes);
    return routes;
}

/* Work of blocks: tiles, those that share rounded up to two, or halves of tiles. Parts side by side
 * have rows that come together. */
static int64_t n_units(const struct sl_lin_route *r, const struct sl_lin *l)
{
    const struct sl_lin_tile *t = &r->tile;
    int64_t rows = 0, cols = SL_CEIL_DIV(l->n, t->tokens);
    bool whole = t->share == SL_SHARE_NONE || (t->tokens == 64 && t->rows % 64);
    int32_t apart = whole ? t->rows : t->rows % 64 ? 32 : 64;
    for (int i = 0; i < l->n_parts; i++)
        rows += SL_ROUND_UP(l->part[i].n_rows, apart);
    rows = SL_CEIL_DIV(rows, (int64_t)t->rows);
    if (t->share == SL_SHARE_X)
        rows = SL_ROUND_UP(rows, 2);
    if (t->share == SL_SHARE_W)
        cols = SL_ROUND_UP(cols, 2);
    return rows * cols * (t->share == SL_SHARE_TILE ? 2 : t->share == SL_SHARE_QUARTERS ? 4 : 1);
}

static bool tiles_fit(const struct sl_lin_route *r, const struct sl_lin *l)
{
    bool size = r->tile.tokens == 64 ? l->n > 32 && l->n <= 64 : l->n > 64;
    bool joins = r->tile.share == SL_SHARE_TILE || r->tile.share == SL_SHARE_QUARTERS;
    return size && l->vec_x && (r->tile.share < SL_SHARE_TILE || !l->mixed) &&
           (!joins || l->n_segs > 2);
}

bool sl_cuda_linear_fits(const struct sl_lin_route *r, const struct sl_lin *l)
{
    int64_t most = r->layout == SL_CUDA_BF16 ? SL_LIN_DIRECT_BF16 : SL_LIN_DIRECT_BYTES;
    bool room = r->when != SL_LIN_DIRECT || (int64_t)l->n * (l->n_k64 * 128 + 16) <= most;
    return r->layout == l->part[0].layout && l->n <= r->max_tokens && l->n_segs <= r->max_segs &&
           (r->kind & (l->gated ? SL_LIN_GATED : SL_LIN_PLAIN)) != 0 && room &&
           (r->when == SL_LIN_TILED ? tiles_fit(r, l) : !l->mixed) &&
           (r->layout != SL_CUDA_W8A8 || r->max_tokens > 64 || l->n_k64 <= W8A8_KEPT_K64);
}

#define DEEP_K64 128 /* steps of matrices that want deep rings, at least */

static int32_t n_row_blocks(const struct sl_lin *l)
{
    int32_t blocks = 0;
    for (int i = 0; i < l->n_parts; i++)
        blocks += l->part[i].n_blocks;
    return blocks;
}

/* Long row blocks that are one or two for each team of an SM: a block with deep rings
 * keeps up as tokens become more (4096 x 14336 of 4 and 8 tokens: deep 31.0 and 32.9 us,
 * stream 34.8 and 37.7); of more, two blocks do (5120 x 25600 of 8: deep 93.4, stream 77.2; H200).
 */
static bool deep_pays(const struct sl_lin *l, int n_sms)
{
    int32_t blocks = n_row_blocks(l);
    return l->n_segs > 1 && l->n_k64 >= DEEP_K64 && blocks > n_sms &&
           blocks <= n_sms * (8 / l->n_segs);
}

/* 9 to 16 tokens. 128256 x 4096, 16 tokens: of all formats 81 to 192 us for 102 to 214 by wgmma,
 * but gate and up of 28672 x 4096 (H200): groups of 128 25.9 for 26.7, Q4_K 28.2 for 29.8, FP8 39.3
 * for 35.3, Q8_0 43.2 for 36.4, Q6_K 53.8 for 44.6. */
static bool two_eights_pay(const struct sl_lin *l, int n_sms)
{
    bool quick = sl_lin_quick_codes(l->part[0].layout);
    if (l->n_segs > 1)
        return quick && n_row_blocks(l) > 2 * n_sms;
    return quick || !l->gated;
}

/* Tiles of 256 rows, whose warps are twice those of 128: where these would take more rounds of all
 * SMs, each some two thirds of a round of the higher ones. */
static bool tall_pays(const struct sl_lin *l, int n_sms)
{
    int32_t blocks = n_row_blocks(l);
    int32_t tall = SL_CEIL_DIV(SL_CEIL_DIV(blocks, 16) * l->n_segs, n_sms);
    int32_t low = SL_CEIL_DIV(SL_CEIL_DIV(blocks, 8) * l->n_segs, n_sms);
    return l->n_segs == 1 || 2 * low > 3 * tall;
}

/* A tile of 256 tokens is a fifth faster than two of 128, unless the second half is empty. Codes
 * cost instructions, of which reading weights directly wants fewer; BF16 of many rows streams as
 * fast through shared memory, which leaves room for the next kernel. Where tokens of codes do not
 * fit, eight warps decode too slowly: 4096 x 14336, 8 tokens, Q4_K 23.4 us by wgmma for 34.5 (H200;
 * the number of tokens from which this holds was not looked for). */
static bool pays(const struct sl_lin_route *r, const struct sl_lin *l, int n_sms)
{
    switch (r->when) {
    case SL_LIN_WIDE:
        return 5 * (int64_t)SL_ROUND_UP(l->n, 256) <= 6 * (int64_t)SL_ROUND_UP(l->n, 128);
    case SL_LIN_DIRECT:
        if (l->n > 8)
            return two_eights_pay(l, n_sms);
        return r->layout != SL_CUDA_BF16 || l->n_segs > 1;
    case SL_LIN_TALL:
        return tall_pays(l, n_sms);
    case SL_LIN_DEEP:
        return deep_pays(l, n_sms);
    case SL_LIN_RING:
        return r->layout == SL_CUDA_BF16 || l->n <= RING_CODED;
    default:
        return true;
    }
}

/* What work costs in clocks of 1.9 GHz: a step, the end, and a step where the chip's power is the
 * limit, spread over all SMs. Fitted to the routes of 115 products of the layers of
 * four models, 64 to 4096 tokens, on an H200 (all routes up to 512 tokens, above the five most
 * likely in two runs), so that the one chosen costs little more than the best: in the mean 0.9 % of
 * 64 tokens, at most 0.3 % up to 2048, 1.0 % of 4096. */
static const struct tile_cost {
    void (*run)(struct sl_cuda *cu, const struct sl_lin *l);
    int32_t step, end, power;
} costs[] = {
    {sl_lin_tile256_bf16, 1181, 6178, 1255},  {sl_lin_tile192_bf16, 1152, 3352, 1226},
    {sl_lin_tile160_bf16, 954, 9701, 1000},   {sl_lin_tile128_bf16, 758, 4102, 830},
    {sl_lin_tile96_bf16, 634, 3461, 751},     {sl_lin_tile64_bf16, 529, 2614, 596},
    {sl_lin_tile128w_bf16, 772, 2667, 891},   {sl_lin_tile64w_bf16, 461, 1515, 550},
    {sl_lin_half160_bf16, 992, 11782, 1175},  {sl_lin_half128_bf16, 863, 5217, 960},
    {sl_lin_half96_bf16, 653, 3471, 925},     {sl_lin_half64_bf16, 492, 3414, 611},
    {sl_lin_half32_bf16, 396, 2446, 1},       {sl_lin_quad96_bf16, 521, 6619, 1127},
    {sl_lin_quad64_bf16, 394, 5464, 856},     {sl_lin_ghalf128_bf16, 809, 11708, 801},
    {sl_lin_few96_bf16, 480, 6386, 720},      {sl_lin_few64_bf16, 193, 6178, 608},
    {sl_lin_few48_bf16, 290, 1163, 386},      {sl_lin_few32_bf16, 303, 1498, 1},
    {sl_lin_gate256_bf16, 1700, 9044, 1742},  {sl_lin_gate128_bf16, 823, 5915, 843},
    {sl_lin_gate128w_bf16, 694, 5771, 791},   {sl_lin_gate64_bf16, 572, 1848, 426},
    {sl_lin_fewgate_bf16, 342, 5375, 537},    {sl_lin_pairs_bf16, 1424, 6191, 1717},
    {sl_lin_wide_bf16, 1473, 9778, 1632},     {sl_lin_wg128_bf16, 945, 5101, 709},
    {sl_lin_fewhalf96_bf16, 302, 4058, 1022}, {sl_lin_fewhalf64_bf16, 219, 3458, 565},
    {sl_lin_fewquad96_bf16, 525, 3937, 702},  {sl_lin_fewquad64_bf16, 327, 3011, 681},
};

#define LAUNCH     2500 /* what all cost once */
#define JOIN_STEPS 20   /* of a tile whose segments' sums go through memory (linear_wg.cuh) */

static int64_t linear_cost(const struct sl_lin_route *r, const struct sl_lin *l, int n_sms)
{
    const struct tile_cost *c = costs;
    while (c->run != r->run)
        c++;
    int64_t units = n_units(r, l), steps = l->n_k64, sms = n_sms;
    if (r->tile.share == SL_SHARE_TILE)
        steps = SL_CEIL_DIV(steps, 2);
    if (r->tile.share == SL_SHARE_QUARTERS) /* 30 clusters of four run at once on 132 */
        steps = l->seg_k64, sms = SL_MAX(sms * 10 / 11, 1);
    if (r->tile.share == SL_SHARE_NONE && l->n_segs > 1) { /* wg128 */
        int64_t apart = SL_CEIL_DIV(units * l->n_segs, sms) * (l->seg_k64 + JOIN_STEPS);
        if (apart < SL_CEIL_DIV(units, sms) * steps) {
            units *= l->n_segs;
            steps = l->seg_k64 + JOIN_STEPS;
        }
    }
    int64_t quick = LAUNCH + SL_CEIL_DIV(units, sms) * (steps * c->step + c->end);
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
        int64_t c = linear_cost(r, l, n_sms);
        if (best == NULL || c < least)
            best = r, least = c;
    }
    return best;
}

/* What others are given behind a product, by a kernel of its own (comm.cu): its launch and meeting,
 * and bytes of a clock. Two H200, 4 and 18.4 us of 4 MB. */
#define PUSH       7600
#define PUSH_BYTES 160

bool sl_cuda_linear_spreads(const struct sl_lin_route *r)
{
    return r->when == SL_LIN_TILED && r->tile.share != SL_SHARE_NONE;
}

const struct sl_lin_route *sl_cuda_linear_spread(const struct sl_lin *l, int n_sms, int n_peers)
{
    const struct sl_lin_route *own = sl_cuda_linear_route(l, n_sms), *best = own;
    if (own->when != SL_LIN_TILED || sl_cuda_linear_spreads(own))
        return own;
    const int64_t each = l->gated ? (int64_t)sizeof(__nv_bfloat16) : (int64_t)sizeof(float);
    const int64_t push = n_peers * each * l->n * l->part[0].n_rows / PUSH_BYTES;
    int64_t least = linear_cost(own, l, n_sms) + PUSH + push;
    for (size_t i = 0; i < SL_COUNT(routes); i++) {
        const struct sl_lin_route *r = &routes[i];
        if (!sl_cuda_linear_spreads(r) || !sl_cuda_linear_fits(r, l))
            continue;
        /* What the last tiles write is not beside products. */
        const int64_t units = n_units(r, l), last = SL_MIN(units, (int64_t)n_sms);
        const int64_t c = linear_cost(r, l, n_sms) + push * last / units;
        if (c < least)
            best = r, least = c;
    }
    return best;
}

/* All that the choice depends on. */
static struct sl_lin_shape shape_of(const struct sl_lin *l)
{
    struct sl_lin_shape s = {};
    s.n = l->n;
    s.n_k64 = l->n_k64;
    s.n_segs = l->n_segs;
    s.seg_k64 = l->seg_k64;
    for (int i = 0; i < l->n_parts; i++)
        s.n_rows[i] = l->part[i].n_rows;
    s.layout = (uint8_t)l->part[0].layout;
    s.n_parts = (uint8_t)l->n_parts;
    s.gated = l->gated;
    s.mixed = l->mixed;
    s.vec_x = l->vec_x;
    return s;
}

#define KEPT_PROBES 4

/* spread: the route of a product whose output all ranks want. */
static const struct sl_lin_route *kept_route(struct sl_cuda *cu, const struct sl_lin *l,
                                             bool spread)
{
    struct sl_lin_shape s = shape_of(l);
    s.zeros[0] = spread;
    static_assert(sizeof s == 40, "padding would be compared");
    uint64_t words[sizeof s / 8], h = 0;
    memcpy(words, &s, sizeof s);
    for (size_t i = 0; i < SL_COUNT(words); i++)
        h = (h ^ words[i]) * 0x9e3779b97f4a7c15u, h ^= h >> 32;
    struct sl_cuda_kept_route *to = NULL;
    for (uint64_t i = 0; i < KEPT_PROBES; i++) {
        struct sl_cuda_kept_route *k = &cu->routes[(h + i) % SL_CUDA_ROUTES];
        if (k->route == NULL) {
            to = k;
            break;
        }
        if (memcmp(&k->shape, &s, sizeof s) == 0)
            return k->route;
    }
    if (to == NULL) /* all are taken: which one makes room changes, so that two do not fight */
        to = &cu->routes[(h + cu->counts.routed % KEPT_PROBES) % SL_CUDA_ROUTES];
    cu->counts.routed++;
    to->shape = s;
    to->route = spread ? sl_cuda_linear_spread(l, cu->n_sms, cu->comm->n_ranks - 1)
                       : sl_cuda_linear_route(l, cu->n_sms);
    return to->route;
}

const struct sl_lin_route *sl_cuda_linear_route_of(struct sl_cuda *cu, const struct sl_lin *l)
{
    return kept_route(cu, l, false);
}

const struct sl_lin_route *sl_cuda_linear_spread_of(struct sl_cuda *cu, const struct sl_lin *l)
{
    return kept_route(cu, l, true);
}
