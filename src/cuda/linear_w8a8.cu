/* SPDX-License-Identifier: MIT
 * Products of FP8 weights and FP8 activations: activations to FP8, then tiles.
 */
#include "cuda/linear_w8a8_few.cuh"
#include "cuda/linear_w8a8_wide.cuh"

#define ROOM_COLS(n_k) ((int64_t)(n_k) * (128 + 4)) /* bytes of a token: codes, scales */

/* Tokens at a time: as many as fit into the room, scales padded to four of them. */
static int32_t tokens_at_once(const struct sl_cuda *cu, int32_t n_k)
{
    int64_t n = (cu->fp8_room_bytes - (int64_t)n_k * 16) / ROOM_COLS(n_k);
    SL_ASSERT(n > 0);
    return (int32_t)(n >= 384 ? n / 384 * 384 : n); /* tiles are 128 or 192 wide */
}

typedef void launch_fn(struct sl_cuda *cu, const sl_lin *given, const uint8_t *q, const float *xs,
                       int32_t ld_xs, int32_t raster);

static void run(struct sl_cuda *cu, const sl_lin *given, launch_fn *launch)
{
    const int32_t n_k = SL_CEIL_DIV(given->k, 128), most = tokens_at_once(cu, n_k);
    for (int32_t t = 0; t < given->n; t += most) {
        sl_lin l = *given;
        l.n = SL_MIN(most, given->n - t);
        l.x += t * l.ld_x;
        for (int32_t i = 0; i < l.n_parts && !l.gated; i++)
            l.part[i].out += t * l.part[i].ld_out;
        if (l.gated)
            l.gated_out += (int64_t)t * l.part[0].n_rows;
        float *xs = (float *)(cu->fp8_room + (int64_t)l.n * n_k * 128);
        sl_w8_quant q = {
            l.x, l.ld_x, l.n, l.k, n_k, l.vec_x, cu->fp8_room, xs, SL_ROUND_UP(l.n, 4)};
        sl_w8_quantise(cu, &q);
        launch(cu, &l, q.q, q.xs, q.ld_xs, SL_W8_RASTER);
    }
}

template <int NT> static void few(struct sl_cuda *cu, const sl_lin *l)
{
    run(cu, l,
        l->gated ? sl_w8_few_launch<sl_w8_few<NT, true>> : sl_w8_few_launch<sl_w8_few<NT, false>>);
}

void sl_lin_n16_w8a8(struct sl_cuda *cu, const struct sl_lin *l)
{
    few<16>(cu, l);
}

void sl_lin_n32_w8a8(struct sl_cuda *cu, const struct sl_lin *l)
{
    few<32>(cu, l);
}

void sl_lin_n64_w8a8(struct sl_cuda *cu, const struct sl_lin *l)
{
    few<64>(cu, l);
}

template <int KEPT> static void own(struct sl_cuda *cu, const sl_lin *l)
{
    if (l->gated)
        sl_w8_few_launch<sl_w8_few<8, true, true, KEPT>>(cu, l, NULL, NULL, 0);
    else
        sl_w8_few_launch<sl_w8_few<8, false, true, KEPT>>(cu, l, NULL, NULL, 0);
}

void sl_lin_few_w8a8(struct sl_cuda *cu, const struct sl_lin *l)
{
    int32_t n_k = SL_CEIL_DIV(l->k, 128);
    if (l->n * n_k > SL_W8_OWN)
        few<8>(cu, l);
    else if (n_k <= SL_W8_OWN_HALF)
        own<SL_W8_OWN_HALF>(cu, l);
    else
        own<SL_W8_OWN>(cu, l);
}

struct wide_kernel {
    int rows;           /* of a tile of 128 tokens */
    int32_t tile, step; /* what they cost, in 10 ns (H200, lab/gemm_fp8.cu) */
    launch_fn *launch;
};

/* The kernel whose last block ends first. */
static const struct wide_kernel *best(const struct sl_cuda *cu, const sl_lin *l,
                                      const struct wide_kernel *k, int n)
{
    const struct wide_kernel *found = k;
    int64_t least = INT64_MAX;
    for (int i = 0; i < n; i++) {
        int64_t tiles = 0;
        for (int32_t part = 0; part < l->n_parts; part++)
            tiles += SL_CEIL_DIV(l->part[part].n_rows, k[i].rows);
        int64_t rounds = SL_CEIL_DIV(tiles * SL_CEIL_DIV(l->n, 128), (int64_t)cu->n_sms);
        int64_t cost = rounds * (k[i].tile + (int64_t)k[i].step * SL_CEIL_DIV(l->k, 128));
        if (cost < least) {
            least = cost;
            found = &k[i];
        }
    }
    return found;
}

void sl_lin_wide_w8a8(struct sl_cuda *cu, const struct sl_lin *l)
{
    static const struct wide_kernel plain[] = {
        {192, 580, 62, sl_w8_wide_launch<sl_w8_wide<2, 3, false>>},
        {128, 460, 40, sl_w8_wide_launch<sl_w8_wide<2, 2, false>>},
        {64, 150, 35, sl_w8_wide_launch<sl_w8_wide<2, 1, false>>},
    };
    if (l->gated)
        run(cu, l, sl_w8_wide_launch<sl_w8_wide<2, 2, true>>);
    else
        run(cu, l, best(cu, l, plain, (int)SL_COUNT(plain))->launch);
}
