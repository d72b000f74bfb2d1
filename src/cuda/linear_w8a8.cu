/* SPDX-License-Identifier: MIT
 * Products of FP8 weights and FP8 activations: activations to FP8, then tiles.
 */
#include "cuda/linear_w8a8.cuh"

#define ROOM_COLS(n_k) ((int64_t)(n_k) * (128 + 4)) /* bytes of a token: codes, scales */

/* Tokens at a time: as many as fit into the room, scales padded to four of them. */
static int32_t tokens_at_once(const struct sl_cuda *cu, int32_t n_k)
{
    int64_t n = (cu->fp8_room_bytes - (int64_t)n_k * 16) / ROOM_COLS(n_k);
    SL_ASSERT(n > 0);
    return (int32_t)(n >= 384 ? n / 384 * 384 : n); /* tiles are 128 or 192 wide */
}

template <class S> static void run(struct sl_cuda *cu, const sl_lin *given)
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
        sl_w8_launch<S>(cu, &l, q.q, q.xs, q.ld_xs);
    }
}

#define KERNELS(name, tokens, groups, gated_groups, cluster)              \
    void sl_lin_##name##_w8a8(struct sl_cuda *cu, const struct sl_lin *l) \
    {                                                                     \
        if (l->gated)                                                     \
            run<sl_w8_shape<tokens, gated_groups, cluster, true>>(cu, l); \
        else                                                              \
            run<sl_w8_shape<tokens, groups, cluster, false>>(cu, l);      \
    }
KERNELS(few, 8, 1, 1, 1)
KERNELS(n16, 16, 1, 1, 1)
KERNELS(n32, 32, 1, 1, 1)
KERNELS(n64, 64, 1, 2, 1)
KERNELS(n128, 128, 2, 2, 1)

/* Tiles of 192 rows are an eighth faster than those of 128, unless more multiprocessors wait at the
 * end. */
static bool high_pays(const struct sl_cuda *cu, const sl_lin *l)
{
    int64_t cost[2];
    for (int i = 0; i < 2; i++) {
        int rows = 128 + 64 * i;
        int64_t tiles = 0;
        for (int32_t part = 0; part < l->n_parts; part++)
            tiles += SL_CEIL_DIV(l->part[part].n_rows, rows);
        cost[i] = SL_CEIL_DIV(tiles * SL_CEIL_DIV(l->n, 128), (int64_t)cu->n_sms) * rows;
    }
    return 8 * cost[1] <= 9 * cost[0];
}

void sl_lin_wide_w8a8(struct sl_cuda *cu, const struct sl_lin *l)
{
    if (!l->gated && high_pays(cu, l))
        run<sl_w8_shape<128, 3, 1, false>>(cu, l);
    else
        sl_lin_n128_w8a8(cu, l);
}
