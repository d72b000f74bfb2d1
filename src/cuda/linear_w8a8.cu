/* SPDX-License-Identifier: MIT
 * Products of FP8 weights and FP8 activations: activations to FP8, then tiles.
 */
#include "cuda/fuse.h"
#include "cuda/linear_w8a8_few.cuh"
#include "cuda/linear_w8a8_wide.cuh"

#define ROOM_COLS(n_k) ((int64_t)(n_k) * (128 + 4)) /* bytes of a token: codes, scales */

/* Tokens at a time: as many as fit into the room, scales padded to four of them. */
static int32_t tokens_at_once(const struct sl_cuda *cu, int32_t n_k)
{
    int64_t n = (cu->fp8_room_bytes - (int64_t)n_k * 16) / ROOM_COLS(n_k);
    SL_ASSERT(n > 0);
    return (int32_t)(n >= 128 ? n / 128 * 128 : n); /* whole tiles */
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
        if (l.norm.x != NULL) {
            l.norm.x += (int64_t)t * l.k;
            l.norm.out += (int64_t)t * l.k;
        }
        if (l.norm_y != NULL)
            l.norm_y += (int64_t)t * l.k;
        for (int32_t i = 0; i < l.n_parts && !l.gated; i++)
            l.part[i].out += t * l.part[i].ld_out;
        if (l.gated)
            l.gated_out += (int64_t)t * l.part[0].n_rows;
        float *xs = (float *)(cu->fp8_room + (int64_t)l.n * n_k * 128);
        sl_w8_quant q = {
            l.x, l.ld_x, l.n, l.k, n_k, l.vec_x, cu->fp8_room, xs, SL_ROUND_UP(l.n, 4)};
        if (l.norm.x == NULL) {
            sl_w8_quantise(cu, &q);
        } else {
            struct sl_cuda_norm norm = {l.norm.x, l.norm.w,   l.norm.eps, l.n,
                                        l.k,      l.norm.out, l.norm_y};
            sl_cuda_norm_codes(cu, &norm, &q);
            l.norm = {};
        }
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

void sl_lin_few_w8a8(struct sl_cuda *cu, const struct sl_lin *l)
{
    if (l->norm.x != NULL || l->n * SL_CEIL_DIV(l->k, 128) > SL_W8_OWN)
        few<8>(cu, l);
    else if (l->gated)
        sl_w8_few_launch<sl_w8_few<8, true, true>>(cu, l, NULL, NULL, 0);
    else
        sl_w8_few_launch<sl_w8_few<8, false, true>>(cu, l, NULL, NULL, 0);
}

/* Kernels of many tokens: a name, the shape (sl_w8_wide), and what a tile and a step of 128 columns
 * cost in 10 ns (H200, lab/gemm_fp8.cu). */
#define WIDE_KERNELS(X)        \
    X(r192, 3, false, 300, 61) \
    X(r128, 2, false, 200, 44) \
    X(r64, 1, false, 150, 27)  \
    X(g128, 2, true, 290, 44)

#define RUN(name, q, gated, tile, step)                                   \
    void sl_lin_##name##_w8a8(struct sl_cuda *cu, const struct sl_lin *l) \
    {                                                                     \
        run(cu, l, sl_w8_wide_launch<sl_w8_wide<q, gated>>);              \
    }
WIDE_KERNELS(RUN)

struct wide_kernel {
    bool gated;
    int32_t rows; /* of a part in a tile */
    int32_t tile, step;
    void (*run)(struct sl_cuda *cu, const struct sl_lin *l);
};

static int64_t cost(const struct wide_kernel *k, const sl_lin *l, int n_sms)
{
    int64_t tiles = 0;
    for (int32_t part = 0; part < (l->gated ? 1 : l->n_parts); part++)
        tiles += SL_CEIL_DIV(l->part[part].n_rows, k->rows);
    int64_t rounds = SL_CEIL_DIV(tiles * SL_CEIL_DIV(l->n, 128), (int64_t)n_sms);
    return rounds * (k->tile + (int64_t)k->step * SL_CEIL_DIV(l->k, 128));
}

/* The kernel whose last block ends first. */
void sl_lin_wide_w8a8(struct sl_cuda *cu, const struct sl_lin *l)
{
#define KERNEL(name, q, gated, tile, step) \
    {gated, sl_w8_wide<q, gated>::rows, tile, step, sl_lin_##name##_w8a8},
    static const struct wide_kernel kernels[] = {WIDE_KERNELS(KERNEL)};
    const struct wide_kernel *best = NULL;
    for (size_t i = 0; i < SL_COUNT(kernels); i++) {
        const struct wide_kernel *k = &kernels[i];
        if (k->gated == l->gated &&
            (best == NULL || cost(k, l, cu->n_sms) < cost(best, l, cu->n_sms)))
            best = k;
    }
    best->run(cu, l);
}
