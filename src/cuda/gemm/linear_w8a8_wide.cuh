/* SPDX-License-Identifier: MIT
 * linear_w8a8_wide.cuh - GEMMs of FP8 weights and FP8 activations of many tokens: the operands
 * of linear_w8a8_few.cuh exchanged, which changes no bit.
 *
 * Tokens are the 64-row operand, rows of weights the other. So a thread needs the scales of two
 * tokens, not factors for a fourth of all: those would take a quarter of what shared memory gives.
 *
 * A block takes one tile of 128 tokens after another: two consumer warpgroups of 64 tokens each and
 * all R rows of the tile, and a warpgroup of which warp 0 loads weights, in bulk copies of up
 * to 8 KB that lie as they will, warp 1 tokens and warp 2 the scales of both. In a gated product
 * pieces of rows are gate's and up's in turn, so that a thread has both sums of an output. A
 * warpgroup waits for its sum and adds it up while the products of the other run; up to 128 rows
 * (TWO) each has two sums under way, and the warpgroups start theirs in turn: side by side, both
 * would end at the same time and add while nobody multiplies (H200, 4096 x 14336, 256 tokens: 31.9
 * us for 35.6; of 192 rows, where turns are waited for, 67.8 for 65.9).
 *
 * What binds is shared memory: 128 bytes a clock, of which a step of 128 x 128 wants 80 KB in the
 * 512 clocks of its products (measured: 650; without copies 520). So tiles are small only where
 * large ones would leave SMs without any. Of 64 tokens one warpgroup multiplies, and
 * two steps are a stage, for which there is one wait (4096 x 4096, 128 tokens: 8.3 us for 9.0).
 *
 * Outputs leave through shared memory by the copy engine, while the next tile is multiplied: a tile
 * of 128 x 128 takes 2.3 us beside its steps, 4.6 with ordinary stores (H200).
 *
 * CODES: what leaves a gated product is not its activations but what FP8 makes of them, where the
 * product after it multiplies that (fuse.h). 128 rows have one scale, which are two tiles; a block
 * takes them one after the other, and what a thread has of the first one waits in its own places
 * of the box. So a kernel that reads activations and writes codes is saved, and half the writing.
 */
#ifndef SL_CUDA_LINEAR_W8A8_WIDE_CUH
#define SL_CUDA_LINEAR_W8A8_WIDE_CUH

#include "cuda/gemm/linear_w8a8.cuh"

#define SL_W8_TURN 4 /* and the next one: barriers of the turns */

/* R: rows of a tile, of both parts; G: warpgroups that multiply, each 64 tokens of it; U: steps of
 * a stage. */
template <int R_, bool GATED_, bool CODES_ = false, int G_ = 2, int U_ = 1> struct sl_w8_wide {
    static constexpr int R = R_, G = G_, U = U_, tokens = 64 * G, threads = 128 * (G + 1);
    static constexpr bool GATED = GATED_, TWO = R <= 128, TURNS = TWO && G == 2, CODES = CODES_;
    static constexpr int rows = R / (GATED ? 2 : 1); /* of a part */
    static constexpr int halves = CODES ? 2 : 1;     /* tiles that a block takes together */
    /* Rows with one scale: in a gated product gate's and up's in turn. */
    static constexpr int piece = rows % 64 ? 32 : 64, pieces = R / piece;
    static constexpr int w_bytes = R * 128, x_bytes = tokens * 128;
    static constexpr int step = w_bytes + x_bytes, s_step = 4 * (tokens + (pieces + 3) / 4 * 4);
    static constexpr int stage = U * step, s_stage = U * s_step;
    /* What leaves: boxes of 64 tokens and 128 or 64 bytes of rows, some of them at a time. */
    static constexpr int box_rows = GATED ? piece : 32, boxes = rows / box_rows;
    static constexpr bool units = GATED && piece == 32;
    static constexpr int box = 64 * box_rows * (GATED ? 2 : 4), most = units ? 2 : 3;
    static constexpr int box_unit = units ? 4 : 1; /* rows of a value of its description */
    static constexpr int at_once = boxes > most ? most : boxes;
    static constexpr int out_bytes = at_once * box, factors = 8 * R; /* of a group */
    static constexpr int ring = SL_W8_HEADER + G * out_bytes;
    static constexpr int fit = (SL_W8_WHOLE - ring - G * factors) / (stage + s_stage);
    static constexpr int stages = fit > SL_W8_RING ? SL_W8_RING : fit;
    static constexpr int s_offset = ring + stages * stage;
    static constexpr int f_offset = s_offset + stages * s_stage;
    static constexpr int smem = f_offset + G * factors;
    static_assert(stages >= 3 && R <= 192 && R % 32 == 0, "shape");
    static_assert(!CODES || (GATED && rows == 64 && out_bytes == 8192), "halves of a group");
};

/* A block's first tile, the tile after another, and where a tile is. */
template <class S> static __device__ __forceinline__ int sl_w8_wide_first()
{
    return S::halves * static_cast<int>(blockIdx.x);
}

template <class S> static __device__ __forceinline__ int sl_w8_wide_behind(int id)
{
    return S::CODES && id % 2 == 0 ? id + 1
                                   : id + S::halves * (static_cast<int>(gridDim.x) - 1) + 1;
}

template <class S>
static __device__ __forceinline__ sl_w8_unit sl_w8_wide_find(const sl_lin &l, const sl_w8_plan &p,
                                                             int id)
{
    sl_w8_unit u = sl_w8_find(l, p, id / S::halves, S::tokens);
    if constexpr (S::CODES)
        u.tile = 2 * u.tile + id % 2;
    return u;
}

/* The rows of a piece of a tile. */
template <class S>
static __device__ __forceinline__ sl_w8_rows sl_w8_wide_rows(const sl_lin &l, const sl_w8_plan &p,
                                                             const sl_w8_unit &t, int piece)
{
    int row = t.tile * S::rows + (S::GATED ? piece / 2 : piece) * S::piece;
    sl_w8_rows r = sl_w8_rows_of(l.part[S::GATED ? piece % 2 : t.part], p.n_k, row / 64);
    r.codes += row % 64 * 128;
    return r;
}

/* Warp 0: weights, which need not wait for the previous kernels. */
template <class S>
static __device__ __forceinline__ void sl_w8_wide_bring_w(const sl_lin &l, const sl_w8_plan &p,
                                                          uint8_t *smem)
{
    int lane = static_cast<int>(threadIdx.x % 32);
    sl_w8_place at = {0, 1};
    for (int id = sl_w8_wide_first<S>(); id < p.n_units; id = sl_w8_wide_behind<S>(id)) {
        sl_w8_unit t = sl_w8_wide_find<S>(l, p, id);
        const uint8_t *from = sl_w8_wide_rows<S>(l, p, t, min(lane, S::pieces - 1)).codes;
        for (int k = 0; k < p.n_k; k += S::U) {
            uint64_t *full = sl_w8_full(smem, at.slot);
            uint8_t *to = smem + S::ring + at.slot * S::stage + lane * S::piece * 128;
            const int steps = min(S::U, p.n_k - k);
            sl_mbar_wait(sl_w8_empty(smem, at.slot), at.parity);
            if (lane == 0)
                sl_mbar_expect_tx(full, static_cast<uint32_t>(steps * S::w_bytes));
            __syncwarp();
            for (int u = 0; u < steps && lane < S::pieces; u++)
                sl_bulk_load(to + u * S::step, from + static_cast<int64_t>(k + u) * SL_W8_UNIT,
                             S::piece * 128, full);
            sl_w8_next(at, S::stages);
        }
    }
}

/* Warp 1, one lane: tokens. */
template <class S>
static __device__ __forceinline__ void sl_w8_wide_bring_x(const sl_lin &l, const sl_w8_plan &p,
                                                          const CUtensorMap *map, uint8_t *smem)
{
    sl_w8_place at = {0, 1};
    for (int id = sl_w8_wide_first<S>(); id < p.n_units; id = sl_w8_wide_behind<S>(id)) {
        sl_w8_unit t = sl_w8_wide_find<S>(l, p, id);
        for (int k = 0; k < p.n_k; k += S::U) {
            uint64_t *full = sl_w8_full(smem, at.slot);
            uint8_t *to = smem + S::ring + at.slot * S::stage + S::w_bytes;
            const int steps = min(S::U, p.n_k - k);
            sl_mbar_wait(sl_w8_empty(smem, at.slot), at.parity);
            sl_mbar_expect_tx(full, static_cast<uint32_t>(steps * S::x_bytes));
            for (int u = 0; u < steps; u++)
                sl_tensor_load(to + u * S::step, map, (k + u) * 128, t.token0, full);
            sl_w8_next(at, S::stages);
        }
    }
}

/* Warp 2: the scales of a step, four tokens a lane, and of the units. By ordinary asynchronous
 * copies, which are ahead by the whole ring as all else is: loaded into registers two steps ahead
 * they came late (4096 x 14336, 256 tokens: 43.2 us for 35.6). Were they loaded by the copy
 * engine, whoever has read them would owe it a fence, which takes as long as the products of a
 * step. */
template <class S>
static __device__ __forceinline__ void sl_w8_wide_scales(const sl_lin &l, const sl_w8_plan &p,
                                                         uint8_t *smem)
{
    int lane = static_cast<int>(threadIdx.x % 32);
    sl_w8_place at = {0, 1};
    for (int id = sl_w8_wide_first<S>(); id < p.n_units; id = sl_w8_wide_behind<S>(id)) {
        sl_w8_unit t = sl_w8_wide_find<S>(l, p, id);
        const float *x = p.xs + min(t.token0 + 4 * lane, p.ld_xs - 4);
        const float *w = sl_w8_wide_rows<S>(l, p, t, min(lane, S::pieces - 1)).scales;
        for (int k = 0; k < p.n_k; k += S::U) {
            float *to = reinterpret_cast<float *>(smem + S::s_offset + at.slot * S::s_stage);
            const int steps = min(S::U, p.n_k - k);
            sl_mbar_wait(sl_w8_empty(smem, at.slot), at.parity);
            for (int u = 0; u < steps; u++, to += S::s_step / 4) {
                if (4 * lane < S::tokens)
                    sl_cp_async16(to + 4 * lane, x + static_cast<int64_t>(k + u) * p.ld_xs, true);
                if (lane < S::pieces)
                    sl_cp_async4(to + S::tokens + lane, w + k + u);
            }
            sl_cp_async_arrive(sl_w8_full(smem, at.slot));
            sl_w8_next(at, S::stages);
        }
    }
}

/* ------------------------------------------------------------------ consumers */

template <class S> struct sl_w8_wide_view {
    uint8_t *smem;
    sl_w8_place at; /* the stage to multiply next */
    int32_t oldest; /* the one to give back next */
    int32_t group,
        token; /* of the warpgroup's tokens the first of this thread, the other is 8 on */
};

/* Sums under way, of a stage, and their factors. */
template <class S> struct sl_w8_wide_sums {
    float v[S::U][S::R / 8][4];
    float f[S::U][S::pieces][2];
};

/* Starts the products of the stage of step k, and reads their factors meanwhile. Of a step after
 * the last one what is in the place of the first is multiplied, for nobody. */
template <class S>
static __device__ __forceinline__ void sl_w8_wide_issue(sl_w8_wide_sums<S> &s,
                                                        sl_w8_wide_view<S> &v, int k, int n)
{
    sl_mbar_wait(sl_w8_full(v.smem, v.at.slot), v.at.parity);
    uint8_t *stage = v.smem + S::ring + v.at.slot * S::stage;
    sl_wgmma_fence();
    if constexpr (S::TURNS)
        sl_turn_wait(SL_W8_TURN + v.group, 256);
#pragma unroll
    for (int j = 0; j < 4; j++)
#pragma unroll
        for (int u = 0; u < S::U; u++) {
            uint8_t *at = stage + (u == 0 || k + u < n ? u : 0) * S::step;
            auto w = sl_wgmma_b(at), x = sl_wgmma_b(at + S::w_bytes + v.group * SL_W8_UNIT);
            sl_wgmma_e4m3(s.v[u], x + j * SL_WGMMA_B_K16, w + j * SL_WGMMA_B_K16, j);
        }
    sl_wgmma_commit();
    if constexpr (S::TURNS)
        sl_turn_pass(SL_W8_TURN + 1 - v.group, 256);
    const float *scales =
        reinterpret_cast<const float *>(v.smem + S::s_offset + v.at.slot * S::s_stage);
#pragma unroll
    for (int u = 0; u < S::U; u++, scales += S::s_step / 4) {
        float x0 = scales[64 * v.group + v.token], x1 = scales[64 * v.group + v.token + 8];
#pragma unroll
        for (int q = 0; q < S::pieces; q++) {
            s.f[u][q][0] = __fmul_rn(x0, scales[S::tokens + q]);
            s.f[u][q][1] = __fmul_rn(x1, scales[S::tokens + q]);
        }
    }
    sl_w8_next(v.at, S::stages);
}

/* Gives the stage of step k back and adds up its sums, which have ended. */
template <class S>
static __device__ __forceinline__ void sl_w8_wide_add(float (&acc)[S::R / 8][4],
                                                      sl_w8_wide_sums<S> &s, sl_w8_wide_view<S> &v,
                                                      int k, int n)
{
#pragma unroll
    for (int u = 0; u < S::U; u++)
        sl_wgmma_done(s.v[u]);
    sl_mbar_arrive_warp(sl_w8_empty(v.smem, v.oldest));
    v.oldest = v.oldest + 1 == S::stages ? 0 : v.oldest + 1;
#pragma unroll
    for (int u = 0; u < S::U; u++) {
        if (u > 0 && k + u >= n)
            break;
#pragma unroll
        for (int i = 0; i < S::R / 8; i++)
#pragma unroll
            for (int e = 0; e < 4; e++)
                acc[i][e] = __fmaf_rn(s.v[u][i][e], s.f[u][i / (S::piece / 8)][e / 2], acc[i][e]);
    }
}

template <class S>
static __device__ __forceinline__ void sl_w8_wide_walk(float (&acc)[S::R / 8][4],
                                                       sl_w8_wide_view<S> &v, int n)
{
    constexpr int U = S::U;
#pragma unroll
    for (int i = 0; i < S::R / 2; i++)
        acc[i / 4][i % 4] = 0.0f;
    if constexpr (!S::TWO) {
#pragma unroll 1
        for (int k = 0; k < n; k += U) {
            sl_w8_wide_sums<S> s;
            sl_w8_wide_issue<S>(s, v, k, n);
            sl_wgmma_wait<0>();
            sl_w8_wide_add<S>(acc, s, v, k, n);
        }
    } else { /* with a loop for what is left the compiler would wait for every product */
        sl_w8_wide_sums<S> even, odd;
        int k = 0;
        sl_w8_wide_issue<S>(even, v, 0, n);
#pragma unroll 1
        for (; k + 2 * U < n; k += 2 * U) {
            sl_w8_wide_issue<S>(odd, v, k + U, n);
            sl_wgmma_wait<1>();
            sl_w8_wide_add<S>(acc, even, v, k, n);
            sl_w8_wide_issue<S>(even, v, k + 2 * U, n);
            sl_wgmma_wait<1>();
            sl_w8_wide_add<S>(acc, odd, v, k + U, n);
        }
        if (k + U < n) {
            sl_w8_wide_issue<S>(odd, v, k + U, n);
            sl_wgmma_wait<1>();
            sl_w8_wide_add<S>(acc, even, v, k, n);
            sl_wgmma_wait<0>();
            sl_w8_wide_add<S>(acc, odd, v, k + U, n);
        } else {
            sl_wgmma_wait<0>();
            sl_w8_wide_add<S>(acc, even, v, k, n);
        }
    }
}

/* ------------------------------------------------------------------ what leaves */

/* The factors of a tile's rows: scales, then biases; of a gated product scales of gate, then of up.
 * Each thread loads its own before the tile, so that nobody waits for them at its end. */
template <class S> struct sl_w8_wide_factors {
    static constexpr int each = (S::R + 127) / 128;
    float scale[each], bias[each];

    __device__ __forceinline__ void load(const sl_lin &l, const sl_w8_plan &p, const sl_w8_unit &u)
    {
#pragma unroll
        for (int j = 0; j < each; j++) {
            int i = static_cast<int>(threadIdx.x % 128) + 128 * j;
            const sl_lin_part &part = l.part[S::GATED ? i / S::rows % 2 : u.part];
            int row = min(u.tile * S::rows + i % S::rows, part.n_rows - 1);
            scale[j] = sl_w8_scales(part, p.n_k)[row];
            bias[j] = !S::GATED && part.bias != nullptr ? part.bias[row] : 0.0f;
        }
    }
    __device__ __forceinline__ void put(float *to) const
    {
#pragma unroll
        for (int j = 0; j < each; j++) {
            int i = static_cast<int>(threadIdx.x % 128) + 128 * j;
            if (i >= S::R)
                break;
            to[i] = scale[j];
            to[S::R + i] = bias[j];
        }
    }
};

/* The outputs of rows 8 i + 2 (lane % 4) and the next one: of a token, and of that 8 further. */
template <class S>
static __device__ __forceinline__ void sl_w8_wide_out(float (&out)[4],
                                                      const float (&acc)[S::R / 8][4],
                                                      const float *factors, const sl_lin &l,
                                                      bool biased, int i)
{
    int row = 8 * i + 2 * static_cast<int>(threadIdx.x & 3);
    float2 s = *reinterpret_cast<const float2 *>(factors + row);
    float2 t = *reinterpret_cast<const float2 *>(factors + row + (S::GATED ? S::rows : S::R));
    constexpr int other = S::GATED ? S::piece / 8 : 0; /* from gate's to up's */
    const int at = other > 0 ? i + i / other * other : i;
    const float *v = acc[at];
#pragma unroll
    for (int e = 0; e < 4; e++) {
        out[e] = __fmul_rn(v[e], e % 2 ? s.y : s.x);
        if constexpr (S::GATED)
            out[e] =
                __fmul_rn(sl_act(l.act, out[e]), __fmul_rn(acc[at + other][e], e % 2 ? t.y : t.x));
        else if (biased)
            out[e] = __fadd_rn(out[e], e % 2 ? t.y : t.x);
    }
}

/* Box c of a group: [token][128 bytes], 16-byte pieces at piece ^ (token % 8), so that the stores
 * of a warp hit all banks. */
template <class S>
static __device__ __forceinline__ void sl_w8_wide_fill(const float (&acc)[S::R / 8][4],
                                                       const float *factors, const sl_lin &l,
                                                       bool biased, int c, uint8_t *box)
{
    int lane = static_cast<int>(threadIdx.x % 32), g = lane / 4, t = lane % 4;
    box += (threadIdx.x / 32 % 4 * 16 + g) * (S::box / 64);
#pragma unroll
    for (int i = 0; i < S::box_rows / 8; i++) {
        float out[4];
        sl_w8_wide_out<S>(out, acc, factors, l, biased, c * (S::box_rows / 8) + i);
        if constexpr (S::GATED) {
            uint8_t *at = box + (S::piece == 64 ? i ^ g : i) * 16 + t * 4;
            *reinterpret_cast<__nv_bfloat162 *>(at) = __floats2bfloat162_rn(out[0], out[1]);
            *reinterpret_cast<__nv_bfloat162 *>(at + S::box / 8) =
                __floats2bfloat162_rn(out[2], out[3]);
        } else {
            uint8_t *at = box + ((2 * i + t / 2) ^ g) * 16 + t % 2 * 8;
            *reinterpret_cast<float2 *>(at) = make_float2(out[0], out[1]);
            *reinterpret_cast<float2 *>(at + S::box / 8) = make_float2(out[2], out[3]);
        }
    }
}

/* A tile leaves by the copy engine, while the next one is multiplied. */
template <class S>
static __device__ __forceinline__ void sl_w8_wide_send(const float (&acc)[S::R / 8][4],
                                                       const float *factors, const sl_lin &l,
                                                       const sl_w8_unit &u, const CUtensorMap *map,
                                                       int group, uint8_t *smem)
{
    uint8_t *boxes = smem + SL_W8_HEADER + group * S::out_bytes;
    const int token0 = u.token0 + 64 * group, row0 = u.tile * S::rows;
    const bool first = threadIdx.x % 128 == 0, biased = l.part[u.part].bias != nullptr;
#pragma unroll
    for (int c = 0; c < S::boxes; c++) {
        if (c > 0 && c % S::at_once == 0) {
            if (first)
                sl_tensor_store_wait<0>();
            sl_bar_sync(2 + group, 128);
        }
        sl_w8_wide_fill<S>(acc, factors, l, biased, c, boxes + c % S::at_once * S::box);
        if (c + 1 < S::boxes && (c + 1) % S::at_once != 0)
            continue;
        sl_fence_proxy_async();
        sl_bar_sync(2 + group, 128);
        for (int b = c / S::at_once * S::at_once; first && b <= c; b++)
            if (token0 < l.n && row0 + b * S::box_rows < l.part[u.part].n_rows)
                sl_tensor_store(map, (row0 + b * S::box_rows) / S::box_unit, token0,
                                boxes + b % S::at_once * S::box);
        if (first)
            sl_tensor_store_commit();
    }
}

/* The same by ordinary stores, for outputs that the copy engine cannot write. */
template <class S>
static __device__ __forceinline__ void sl_w8_wide_store(const float (&acc)[S::R / 8][4],
                                                        const float *factors, const sl_lin &l,
                                                        const sl_w8_unit &u, int token)
{
    const sl_lin_part &part = l.part[u.part];
    const int64_t ld = S::GATED ? part.n_rows : part.ld_out;
#pragma unroll
    for (int i = 0; i < S::rows / 8; i++) {
        float out[4];
        sl_w8_wide_out<S>(out, acc, factors, l, part.bias != nullptr, i);
        int row = u.tile * S::rows + 8 * i + 2 * static_cast<int>(threadIdx.x & 3);
#pragma unroll
        for (int e = 0; e < 4; e++) {
            int64_t at = (token + 4 * (e & 2)) * ld + row + e % 2;
            if (token + 4 * (e & 2) >= l.n || row + e % 2 >= part.n_rows)
                continue;
            if constexpr (S::GATED)
                sl_lin_put(l.gated_out + at, out[e]);
            else
                sl_lin_put(part.out + at, out[e]);
        }
    }
}

/* Descriptions for the copy engine. */
struct sl_w8_wide_maps {
    bool boxes; /* outputs leave by it */
    CUtensorMap x, out[SL_MAX_LINEAR_PARTS];
    float *xs; /* of codes that leave: scales, */
    int32_t ld_xs;
};

/* A thread's activations of a tile, as pairs of rows 8 i + 2 (lane % 4) and the next: [2 i] of a
 * token, [2 i + 1] of that 8 further; zeros after the last row. */
template <class S>
static __device__ __forceinline__ void sl_w8_wide_pairs(uint32_t (&w)[16],
                                                        const float (&acc)[S::R / 8][4],
                                                        const float *factors, const sl_lin &l,
                                                        const sl_w8_unit &u)
{
#pragma unroll
    for (int i = 0; i < 8; i++) {
        float out[4];
        sl_w8_wide_out<S>(out, acc, factors, l, false, i);
#pragma unroll
        for (int r = 0; r < 2; r++) {
            __nv_bfloat162 pair = __floats2bfloat162_rn(out[2 * r], out[2 * r + 1]);
            w[2 * i + r] = *reinterpret_cast<const uint32_t *>(&pair);
        }
    }
    const int left = l.part[0].n_rows - u.tile * S::rows;
    if (left >= S::rows)
        return;
#pragma unroll
    for (int i = 0; i < 16; i++) {
        int here = left - i / 2 * 8 - 2 * static_cast<int>(threadIdx.x & 3);
        w[i] &= here > 1 ? 0xFFFFFFFFu : here == 1 ? 0xFFFFu : 0u;
    }
}

/* The scale of both halves of a token, which four lanes have; r: of its pairs. */
static __device__ __forceinline__ sl_w8_scale sl_w8_wide_scale(const uint32_t (&a)[16],
                                                               const uint32_t (&b)[16], int r)
{
    uint32_t both = 0;
#pragma unroll
    for (int i = r; i < 16; i += 2)
        both = sl_max_u16x2(sl_max_u16x2(both, a[i] & 0x7FFF7FFFu), b[i] & 0x7FFF7FFFu);
    uint32_t most = max(both & 0xFFFFu, both >> 16);
    most = max(most, __shfl_xor_sync(0xffffffffu, most, 1));
    most = max(most, __shfl_xor_sync(0xffffffffu, most, 2));
    return sl_w8_scale_of(most);
}

/* The codes of one half into the box, whose 16-byte pieces lie at piece ^ (token % 8). */
static __device__ __forceinline__ void sl_w8_wide_codes(const uint32_t (&w)[16],
                                                        const sl_w8_scale (&s)[2], int half,
                                                        uint8_t *box)
{
    int lane = static_cast<int>(threadIdx.x % 32), g = lane / 4, t = lane % 4;
    box += (threadIdx.x / 32 % 4 * 16 + g) * 128;
#pragma unroll
    for (int i = 0; i < 16; i++) {
        uint8_t *at = box + i % 2 * 8 * 128 + ((4 * half + i / 4) ^ g) * 16 + i / 2 % 2 * 8 + 2 * t;
        *reinterpret_cast<uint16_t *>(at) = static_cast<uint16_t>(s[i % 2].codes(w[i]));
    }
}

/* A tile of CODES: the first half of a group is kept, with the second one both leave. */
template <class S>
static __device__ __forceinline__ void sl_w8_wide_group(const float (&acc)[S::R / 8][4],
                                                        const float *factors, const sl_lin &l,
                                                        const sl_w8_unit &u,
                                                        const sl_w8_wide_maps &maps, int group,
                                                        uint8_t *smem)
{
    uint8_t *box = smem + SL_W8_HEADER + group * S::out_bytes;
    uint4 *kept = reinterpret_cast<uint4 *>(box) + threadIdx.x % 128;
    const int token0 = u.token0 + 64 * group, of = u.tile / 2;
    uint32_t w[16], first[16];
    sl_w8_wide_pairs<S>(w, acc, factors, l, u);
    if (u.tile % 2 == 0) {
#pragma unroll
        for (int j = 0; j < 4; j++)
            kept[128 * j] = make_uint4(w[4 * j], w[4 * j + 1], w[4 * j + 2], w[4 * j + 3]);
        sl_bar_sync(2 + group, 128); /* all have read the factors */
        return;
    }
#pragma unroll
    for (int j = 0; j < 4; j++) {
        uint4 q = kept[128 * j];
        first[4 * j] = q.x, first[4 * j + 1] = q.y, first[4 * j + 2] = q.z, first[4 * j + 3] = q.w;
    }
    const sl_w8_scale s[2] = {sl_w8_wide_scale(first, w, 0), sl_w8_wide_scale(first, w, 1)};
    sl_bar_sync(2 + group, 128); /* all have what they kept */
    sl_w8_wide_codes(first, s, 0, box);
    sl_w8_wide_codes(w, s, 1, box);
    sl_fence_proxy_async();
    sl_bar_sync(2 + group, 128);
    if (threadIdx.x % 128 == 0) {
        if (token0 < l.n)
            sl_tensor_store(&maps.out[0], of * 128, token0, box);
        sl_tensor_store_commit();
    }
    int token = token0 + static_cast<int>(threadIdx.x / 32 % 4 * 16 + threadIdx.x % 32 / 4);
    float *to = maps.xs + static_cast<int64_t>(of) * maps.ld_xs + token;
#pragma unroll
    for (int r = 0; r < 2; r++)
        if (threadIdx.x % 4 == 0 && token + 8 * r < l.n)
            to[8 * r] = s[r].scale;
}

template <class S>
static __device__ __forceinline__ void sl_w8_wide_consume(const sl_lin &l, const sl_w8_plan &p,
                                                          const sl_w8_wide_maps &maps,
                                                          uint8_t *smem)
{
    sl_w8_wide_view<S> v = {};
    v.smem = smem;
    v.group = __shfl_sync(0xffffffffu, static_cast<int>(threadIdx.x / 128), 0) - 1;
    v.token = static_cast<int>(threadIdx.x / 32 % 4) * 16 + static_cast<int>(threadIdx.x % 32) / 4;
    float *factors = reinterpret_cast<float *>(smem + S::f_offset + v.group * S::factors);
    if (S::TURNS && v.group == 1)
        sl_turn_pass(SL_W8_TURN, 256); /* the other one begins */
    for (int id = sl_w8_wide_first<S>(); id < p.n_units; id = sl_w8_wide_behind<S>(id)) {
        sl_w8_unit u = sl_w8_wide_find<S>(l, p, id);
        sl_w8_wide_factors<S> f;
        f.load(l, p, u);
        float acc[S::R / 8][4];
        sl_w8_wide_walk<S>(acc, v, p.n_k);
        if (threadIdx.x % 128 == 0)
            sl_tensor_store_wait<0>(); /* boxes of the tile before have left */
        f.put(factors);
        sl_bar_sync(2 + v.group, 128);
        if constexpr (S::CODES) {
            sl_w8_wide_group<S>(acc, factors, l, u, maps, v.group, smem);
        } else if (maps.boxes) {
            sl_w8_wide_send<S>(acc, factors, l, u, &maps.out[u.part], v.group, smem);
        } else {
            sl_w8_wide_store<S>(acc, factors, l, u, u.token0 + 64 * v.group + v.token);
            sl_bar_sync(2 + v.group, 128); /* all have read the factors */
        }
    }
    if (S::TURNS && v.group == 0)
        sl_turn_wait(SL_W8_TURN, 256);
    if (threadIdx.x % 128 == 0)
        sl_tensor_store_wait<0>(); /* the end of the grid waits for what they write */
}

template <class S>
__global__ void __launch_bounds__(S::threads, 1)
    sl_w8_wide_kernel(const __grid_constant__ sl_lin l, const __grid_constant__ sl_w8_plan p,
                      const __grid_constant__ sl_w8_wide_maps maps)
{
    SL_SMEM(uint8_t, smem);
    sl_mbar_init_all(sl_w8_full(smem, 0), S::stages, 2 + 32);
    sl_mbar_init_all(sl_w8_empty(smem, 0), S::stages, 4 * S::G * SL_WARP_ARRIVALS);
    sl_mbar_fence_init();
    __syncthreads();
    sl_grid_launch_dependents();
    if (__shfl_sync(0xffffffffu, static_cast<int>(threadIdx.x / 128), 0) == 0) {
        if constexpr (S::G == 2)
            sl_regs_give<40>();
        if (threadIdx.x < 32)
            sl_w8_wide_bring_w<S>(l, p, smem);
        sl_grid_wait();
        if (threadIdx.x == 32)
            sl_w8_wide_bring_x<S>(l, p, &maps.x, smem);
        else if (threadIdx.x / 32 == 2)
            sl_w8_wide_scales<S>(l, p, smem);
        __syncwarp();
    } else {
        if constexpr (S::G == 2)
            sl_regs_take<232>();
        sl_grid_wait();
        sl_w8_wide_consume<S>(l, p, maps, smem);
    }
}

/* ------------------------------------------------------------------ host */

/* q: codes of the tokens; to: of what leaves. */
template <class S>
static inline cudaError_t sl_w8_wide_describe(sl_w8_wide_maps *maps, const sl_lin &l,
                                              const uint8_t *q, int64_t n_cols,
                                              const sl_w8_quant *to)
{
    const int64_t rows = l.part[0].n_rows, to_cols = S::CODES ? to->n_k * 128 : 0;
    cudaError_t e = sl_tensor_map_codes(&maps->x, q, l.n, n_cols, n_cols, S::tokens);
    if (S::CODES) {
        maps->xs = to->xs;
        maps->ld_xs = to->ld_xs;
        return e != cudaSuccess
                   ? e
                   : sl_tensor_map_codes(&maps->out[0], to->q, l.n, to_cols, to_cols, 64);
    }
    maps->boxes = sl_lin_boxes(l, S::units ? 32 : 8);
    if (e != cudaSuccess || !maps->boxes)
        return e;
    if (l.gated && S::piece == 64)
        return sl_tensor_map(&maps->out[0], l.gated_out, l.n, rows, rows, 64);
    if (l.gated)
        return sl_tensor_map_units(&maps->out[0], l.gated_out, l.n, rows / 32, 2 * rows, 64, 64);
    for (int i = 0; i < l.n_parts && e == cudaSuccess; i++)
        e = sl_tensor_map_float(&maps->out[i], l.part[i].out, l.n, l.part[i].n_rows,
                                l.part[i].ld_out, 64);
    return e;
}

/* q: codes of the tokens, [n][n_k * 128]; ld_xs a multiple of 4. to: where codes that leave go. */
template <class S>
static void sl_w8_wide_launch_to(struct sl_cuda *cu, const sl_lin *given, const uint8_t *q,
                                 const float *xs, int32_t ld_xs, int32_t raster,
                                 const sl_w8_quant *to)
{
    sl_lin l = *given;
    sl_w8_wide_maps maps = {};
    sl_w8_plan p = sl_w8_plan_of(&l, xs, ld_xs, S::halves * S::rows, S::tokens, raster);
    sl_cuda_check(cu, sl_w8_wide_describe<S>(&maps, l, q, (int64_t)p.n_k * 128, to),
                  "cuTensorMapEncodeTiled");
    unsigned grid = (unsigned)SL_MIN(p.n_units, cu->n_sms);
    p.n_units *= S::halves;
    sl_launch(cu, sl_w8_wide_kernel<S>, dim3(grid), dim3(S::threads), S::smem, l, p, maps);
}

template <class S>
static void sl_w8_wide_launch(struct sl_cuda *cu, const sl_lin *given, const uint8_t *q,
                              const float *xs, int32_t ld_xs, int32_t raster = SL_W8_RASTER)
{
    sl_w8_wide_launch_to<S>(cu, given, q, xs, ld_xs, raster, NULL);
}

#endif
