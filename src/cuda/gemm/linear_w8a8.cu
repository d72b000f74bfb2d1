/* SPDX-License-Identifier: MIT
 * GEMMs of FP8 weights and FP8 activations: activations to FP8, then tiles.
 */
#include "cuda/gemm/fuse.h"
#include "cuda/gemm/linear_w8a8_few.cuh"
#include "cuda/gemm/linear_w8a8_wide.cuh"

#define ROOM_COLS(n_k) ((int64_t)(n_k) * (128 + 4)) /* bytes of a token: codes, scales */

/* Tokens at a time, of n_k groups of columns each: parts of much the same size that fit into the
 * room, where scales are padded to four of them. */
static int32_t tokens_at_once(const struct sl_cuda *cu, int32_t n_k, int32_t n)
{
    int64_t most = (cu->fp8_room_bytes - (int64_t)n_k * 16) / ROOM_COLS(n_k);
    SL_ASSERT(most > 0);
    if (n <= most)
        return n;
    int64_t each = SL_CEIL_DIV((int64_t)n, SL_CEIL_DIV((int64_t)n, most));
    if (most >= 128) /* whole tiles */
        each = SL_MIN(SL_ROUND_UP(each, (int64_t)128), most / 128 * 128);
    return (int32_t)each;
}

/* n tokens from t on. */
static sl_lin w8a8_part(const sl_lin *given, int32_t t, int32_t n)
{
    sl_lin l = *given;
    l.n = n;
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
    return l;
}

static int32_t groups_of(const sl_lin *l)
{
    return SL_CEIL_DIV(l->k, 128);
}

struct quant_room { /* what is left of it */
    uint8_t *codes;
    float *xs;
};

/* Of n tokens with n_k groups of columns. */
static struct quant_room w8a8_room(const struct sl_cuda *cu, int32_t n, int32_t n_k)
{
    return {cu->fp8_room, (float *)(cu->fp8_room + (int64_t)n * n_k * 128)};
}

/* What FP8 makes of a product's input, and where. */
static sl_w8_quant w8a8_take_room(struct quant_room *room, const sl_lin *l)
{
    sl_w8_quant q = {l->x,        l->ld_x,      l->n,
                     l->k,        groups_of(l), l->vec_x,
                     room->codes, room->xs,     SL_ROUND_UP(l->n, 4)};
    room->codes += (int64_t)q.n * q.n_k * 128;
    room->xs += (int64_t)q.n_k * q.ld_xs;
    return q;
}

static void make_codes(struct sl_cuda *cu, const sl_lin *l, const sl_w8_quant *q)
{
    const struct sl_lin_norm *a = &l->norm;
    struct sl_cuda_norm norm = {a->x, a->w, a->eps, l->n, l->k, a->out, l->norm_y};
    if (a->x != NULL)
        sl_cuda_norm_codes(cu, &norm, q);
    else
        sl_w8_quantise(cu, q);
}

typedef void launch_fn(struct sl_cuda *cu, const sl_lin *given, const uint8_t *q, const float *xs,
                       int32_t ld_xs, int32_t raster);

static void w8a8_run(struct sl_cuda *cu, const sl_lin *given, launch_fn *launch)
{
    const int32_t n_k = groups_of(given), most = tokens_at_once(cu, n_k, given->n);
    for (int32_t t = 0; t < given->n; t += most) {
        sl_lin l = w8a8_part(given, t, SL_MIN(most, given->n - t));
        struct quant_room room = w8a8_room(cu, l.n, n_k);
        sl_w8_quant q = w8a8_take_room(&room, &l);
        make_codes(cu, &l, &q);
        launch(cu, &l, q.q, q.xs, q.ld_xs, SL_W8_RASTER);
    }
}

template <int NT> static void few(struct sl_cuda *cu, const sl_lin *l)
{
    w8a8_run(cu, l,
             l->gated ? sl_w8_few_launch<sl_w8_few<NT, true>>
                      : sl_w8_few_launch<sl_w8_few<NT, false>>);
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

/* Kernels of many tokens: a name, what a tile and a step of 128 columns cost in 10 ns (H200,
 * lab/gemm_fp8.cu), and the shape (sl_w8_wide). */
#define WIDE_KERNELS(X)                     \
    X(r192, 300, 61, 192, false)            \
    X(r128, 200, 44, 128, false)            \
    X(r96, 260, 36, 96, false)              \
    X(r64, 150, 27, 64, false)              \
    X(t64, 110, 19, 64, false, false, 1, 2) \
    X(g128, 290, 44, 128, true)

#define RUN(name, tile, step, ...)                                        \
    void sl_lin_##name##_w8a8(struct sl_cuda *cu, const struct sl_lin *l) \
    {                                                                     \
        w8a8_run(cu, l, sl_w8_wide_launch<sl_w8_wide<__VA_ARGS__>>);      \
    }
WIDE_KERNELS(RUN)

struct wide_kernel {
    bool gated;
    int32_t rows, tokens; /* of a part in a tile */
    int32_t tile, step;
    launch_fn *launch;
};

static int64_t w8a8_cost(const struct wide_kernel *k, const sl_lin *l, int n_sms)
{
    int64_t tiles = 0;
    for (int32_t part = 0; part < (l->gated ? 1 : l->n_parts); part++)
        tiles += SL_CEIL_DIV(l->part[part].n_rows, k->rows);
    int64_t rounds = SL_CEIL_DIV(tiles * SL_CEIL_DIV(l->n, k->tokens), (int64_t)n_sms);
    return rounds * (k->tile + (int64_t)k->step * SL_CEIL_DIV(l->k, 128));
}

#define KERNEL(name, tile, step, ...) \
    {sl_w8_wide<__VA_ARGS__>::GATED,  \
     sl_w8_wide<__VA_ARGS__>::rows,   \
     sl_w8_wide<__VA_ARGS__>::tokens, \
     tile,                            \
     step,                            \
     sl_w8_wide_launch<sl_w8_wide<__VA_ARGS__>>},
static const struct wide_kernel kernels[] = {WIDE_KERNELS(KERNEL)};

/* The kernel whose last block ends first. */
static const struct wide_kernel *cheapest(const struct sl_cuda *cu, const sl_lin *l)
{
    const struct wide_kernel *best = NULL;
    for (size_t i = 0; i < SL_COUNT(kernels); i++) {
        const struct wide_kernel *k = &kernels[i];
        if (k->gated == l->gated &&
            (best == NULL || w8a8_cost(k, l, cu->n_sms) < w8a8_cost(best, l, cu->n_sms)))
            best = k;
    }
    return best;
}

void sl_lin_wide_w8a8(struct sl_cuda *cu, const struct sl_lin *l)
{
    w8a8_run(cu, l, cheapest(cu, l)->launch);
}

/* ------------------------------------------------------------------ two products */

typedef sl_w8_wide<128, true, true> codes_kernel; /* g128, two tiles together */

/* Tiles by twos may take a round more. The kernel that makes codes apart takes a launch, and reads
 * BF16 and writes codes at 4 TB/s. */
bool sl_cuda_linear_pair_pays(const struct sl_cuda *cu, const struct sl_lin *gated)
{
    const struct wide_kernel *one = cheapest(cu, gated);
    const struct wide_kernel two = {true,          2 * one->rows, one->tokens,
                                    2 * one->tile, 2 * one->step, NULL};
    const int64_t apart = 150 + 3 * (int64_t)gated->n * gated->part[0].n_rows / 40000;
    return w8a8_cost(&two, gated, cu->n_sms) <= w8a8_cost(one, gated, cu->n_sms) + apart;
}

void sl_cuda_linear_pair(struct sl_cuda *cu, const struct sl_lin *gated,
                         const struct sl_lin *behind)
{
    const int32_t n_k = groups_of(gated) + groups_of(behind);
    const int32_t most = tokens_at_once(cu, n_k, gated->n);
    for (int32_t t = 0; t < gated->n; t += most) {
        const int32_t n = SL_MIN(most, gated->n - t);
        sl_lin first = w8a8_part(gated, t, n), second = w8a8_part(behind, t, n);
        struct quant_room room = w8a8_room(cu, n, n_k);
        sl_w8_quant x = w8a8_take_room(&room, &first), act = w8a8_take_room(&room, &second);
        make_codes(cu, &first, &x);
        sl_w8_wide_launch_to<codes_kernel>(cu, &first, x.q, x.xs, x.ld_xs, SL_W8_RASTER, &act);
        cheapest(cu, &second)->launch(cu, &second, act.q, act.xs, act.ld_xs, SL_W8_RASTER);
    }
}
