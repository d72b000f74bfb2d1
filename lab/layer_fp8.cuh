/* SPDX-License-Identifier: MIT
 * layer_fp8.cuh - the kernel of lab/layer_chain.cu for FP8 weights and FP8 activations.
 *
 * A block a multiprocessor: a warpgroup that multiplies as linear_w8a8_few.cuh does, a warp that
 * fills one ring with the weights of all its units, over the ends of products and layers, at most a
 * few slots of it under way, and eight warps that bring inputs: they poll, norm and make the codes.
 * A unit is 64 rows, of gate and up the same 64 of both, or a split of a key head's attention.
 * Units are dealt to blocks once for all layers.
 *
 * Words, polls and who waits for whom: layer_chain.cuh. Codes replace those of another input when
 * all words of the new one are there, which this block's units of before have helped to make.
 */
#ifndef SL_LAB_LAYER_FP8_CUH
#define SL_LAB_LAYER_FP8_CUH

#include "cuda/gemm/linear_w8a8_few.cuh"
#include "layer_chain.cuh"

#define FP8_UNITS   48 /* most of a block in a layer */
#define FP8_THREADS (32 * (CHAIN_WIDE + 1 + SL_NORM_WARPS))

/* U: steps of 128 columns of a plain product in a stage. D: of a head. */
template <int U, int D> struct fp8_chain {
    typedef sl_w8_few<8, false, true, U> plain_shape;
    typedef sl_w8_few<8, true, true, U / 2> gated_shape;
    static constexpr int stage = plain_shape::stage, threads = 32 * CHAIN_WIDE;
    static constexpr int bring_threads = 32 * SL_NORM_WARPS;
    static constexpr int page_bytes = 16 * D, slot_pages = stage / CHAIN_WIDE / page_bytes;
    static_assert(gated_shape::stage == stage && 8 % slot_pages == 0, "");
    /* Behind the barriers of linear_w8a8.cuh, then the ring and what chain_args says. */
    static constexpr int input_at = 448, norm_at = 512, list_at = 576;
    static constexpr int n_list_at = list_at + 8 * FP8_UNITS;

    struct unit {
        int step, item;
    };
    struct weights {
        const uint8_t *codes;      /* of the tile */
        const float *rows, *units; /* scales */
    };

    static __device__ __forceinline__ const unit *list_of(const uint8_t *smem)
    {
        return reinterpret_cast<const unit *>(smem + list_at);
    }
    static __device__ __forceinline__ int n_list(const uint8_t *smem)
    {
        return *reinterpret_cast<const int *>(smem + n_list_at);
    }
    static __device__ __forceinline__ int n_items(const chain_args &a, int step)
    {
        const int32_t *n = a.product[step].blocks;
        return n[0] + n[1] + n[2];
    }
    /* This block's first one; few blocks have two of one product and one of the next. */
    static __device__ __forceinline__ int first(int step)
    {
        const bool back = step == CHAIN_ATTEND || step == CHAIN_DOWN;
        return static_cast<int>(back ? gridDim.x - 1 - blockIdx.x : blockIdx.x);
    }
    static __device__ __forceinline__ uint64_t *input(uint8_t *smem, int step)
    {
        return reinterpret_cast<uint64_t *>(smem + input_at) + step;
    }
    static __device__ void make_list(const chain_args &a, uint8_t *smem)
    {
        unit *list = reinterpret_cast<unit *>(smem + list_at);
        int n = 0;
        for (int step = 0; step < CHAIN_STEPS; step++)
            for (int i = first(step); i < n_items(a, step); i += static_cast<int>(gridDim.x))
                list[n++] = {step, i};
        *reinterpret_cast<int *>(smem + n_list_at) = n;
    }

    static __device__ __forceinline__ const chain_layer &layer_of(const chain_args &a,
                                                                  const uint8_t *smem, int i)
    {
        return reinterpret_cast<const chain_layer *>(smem + a.list)[i];
    }
    static __device__ __forceinline__ weights weights_of(const chain_args &a, const uint8_t *smem,
                                                         int layer, const unit &u, int up)
    {
        const chain_product &p = a.product[u.step];
        int tile = u.item, part = 0, which = u.step == CHAIN_O ? 3 : 6;
        if (u.step == CHAIN_QKV) {
            while (tile >= p.blocks[part])
                tile -= p.blocks[part++];
            which = part;
        } else if (u.step == CHAIN_GATE_UP) {
            which = 4 + up;
        }
        const uint8_t *w = layer_of(a, smem, layer).w[which];
        const int64_t n = static_cast<int64_t>(p.blocks[part]) * p.n_k, at = tile * p.n_k;
        const float *scales = reinterpret_cast<const float *>(w + n * SL_W8_UNIT);
        return {w + at * SL_W8_UNIT, scales + 64 * tile, scales + 64 * p.blocks[part] + at};
    }
    static __device__ __forceinline__ void stamp(const chain_args &a, int row, int i)
    {
        chain_stamp(a, row, i, 2);
    }

    /* -------------------------------------------------------------- filling */

    static __device__ void fill(const chain_args &a, uint8_t *smem)
    {
        const int lane = static_cast<int>(threadIdx.x % 32), n = n_list(smem);
        sl_w8_place at = {0, 1}, there = {0, 0};
        int under_way = 0;
        for (int layer = 0; layer < a.n_layers; layer++)
            for (int i = 0; i < n; i++) {
                const unit u = list_of(smem)[i];
                const int copies = u.step == CHAIN_ATTEND    ? CHAIN_WIDE
                                   : u.step == CHAIN_GATE_UP ? 2
                                                             : 1;
                const int bytes = stage / copies;
                const uint8_t *src = nullptr;
                int stages = 8 / slot_pages;
                if (u.step == CHAIN_ATTEND) {
                    src = layer_of(a, smem, layer).pages +
                          static_cast<int64_t>(CHAIN_WIDE * u.item + lane) * (8 * page_bytes);
                } else {
                    stages = a.product[u.step].n_k * copies / U;
                    src = weights_of(a, smem, layer, u, lane % 2).codes;
                }
                const int items = n_items(a, u.step), grid = static_cast<int>(gridDim.x);
                const int most = a.under[items <= grid / 2];
                for (int k = 0; k < stages; k++) {
                    uint64_t *full = sl_w8_full(smem, at.slot);
                    lab_wait(sl_w8_empty(smem, at.slot), at.parity, 1, a.fault);
                    for (; under_way >= most; under_way--) {
                        lab_wait(sl_w8_full(smem, there.slot), there.parity, 7, a.fault);
                        sl_w8_next(there, a.n_slots);
                    }
                    under_way++;
                    if (lane == 0)
                        sl_mbar_expect_tx(full, stage);
                    __syncwarp();
                    if (lane < copies)
                        sl_bulk_load_once(smem + SL_W8_HEADER + at.slot * stage + lane * bytes, src,
                                          static_cast<uint32_t>(bytes), full);
                    src += bytes;
                    sl_w8_next(at, a.n_slots);
                }
            }
    }

    /* -------------------------------------------------------------- inputs */

    /* Of those that bring inputs, or of those that multiply; one warp asks for all. */
    template <int N, int BAR>
    static __device__ __forceinline__ void nearly(const chain_args &a, int layer, int step)
    {
        const int n = step == CHAIN_ATTEND ? n_items(a, step) / CHAIN_SPLITS : n_items(a, step);
        if (a.early == 0)
            return;
        if (threadIdx.x / 32 == (N == threads ? 0 : CHAIN_WIDE + 1))
            chain_nearly(chain_count_of(a, layer, step), n, a.early, 10, a.fault);
        sl_bar_sync(BAR, N);
    }

    static __device__ __forceinline__ uint8_t *codes_of(const chain_args &a, uint8_t *smem)
    {
        return smem + a.acts[0];
    }
    static __device__ __forceinline__ float *scales_of(const chain_args &a, uint8_t *smem)
    {
        return reinterpret_cast<float *>(smem + a.acts[1]);
    }

    /* Lanes of a group of 128 columns have N pairs each, as they lie. */
    template <int N>
    static __device__ __forceinline__ void make_codes(const chain_args &a, uint8_t *smem,
                                                      const uint32_t (&pair)[N], int column)
    {
        uint32_t most = 0, c[N / 2];
#pragma unroll
        for (int i = 0; i < N; i++)
            most = max(most, max(pair[i] & 0x7FFFu, pair[i] >> 16 & 0x7FFFu));
#pragma unroll
        for (int m = 32 / N; m > 0; m >>= 1)
            most = max(most, __shfl_xor_sync(0xffffffffu, most, m));
        const sl_w8_scale s = sl_w8_scale_of(most);
#pragma unroll
        for (int i = 0; i < N / 2; i++) {
            c[i] = s.codes(pair[2 * i]) | s.codes(pair[2 * i + 1]) << 16;
            *reinterpret_cast<uint32_t *>(codes_of(a, smem) + column + 4 * i) = c[i];
        }
        if (column % 128 == 0)
            scales_of(a, smem)[column / 128 * 8] = s.scale;
    }

    static __device__ __forceinline__ void bring_normed(const chain_args &a, const uint32_t *x,
                                                        const float *weights, uint8_t *smem,
                                                        int warp, int layer, int step)
    {
        constexpr int n = SL_NORM_QUADS, apart = 128 * SL_NORM_WARPS;
        const int from = sl_norm_part::column(warp, 0);
        float *sums = reinterpret_cast<float *>(smem + norm_at);
        sl_norm_part w, part;
        uint4 v[n];
        w.load(weights, warp, a.h);
        if (layer >= 0)
            nearly<bring_threads, 2>(a, layer, step);
        chain_poll<n>(v, x + from, apart, SL_CEIL_DIV(a.h - from, apart), 2, a.fault);
#pragma unroll
        for (int k = 0; k < n; k++)
            part.v[k] = chain_float4(v[k]);
        const float s = part.squares();
        if (threadIdx.x % 32 == 0)
            sums[warp] = s;
        sl_bar_sync(2, bring_threads);
        const float scale = sl_norm_scale_of(sums, a.eps, a.h);
#pragma unroll
        for (int k = 0; k < n; k++) {
            if (from + k * apart >= a.h)
                continue;
            const sl_norm_quad q = sl_norm_of(part.v[k], w.v[k], scale);
            const uint2 bits = *reinterpret_cast<const uint2 *>(&q);
            const uint32_t pair[2] = {bits.x, bits.y};
            make_codes<2>(a, smem, pair, from + k * apart);
        }
    }

    /* n_words of two columns each; or floats, of which `keep` count. */
    template <int N, bool ROUND>
    static __device__ __forceinline__ void bring_plain(const chain_args &a, const uint32_t *x,
                                                       int n_words, int keep, uint8_t *smem,
                                                       int thread)
    {
        uint4 v[N];
        chain_poll<N>(v, x + 4 * thread, 4 * bring_threads,
                      SL_CEIL_DIV(n_words / 4 - thread, bring_threads), 3, a.fault);
        sl_bar_sync(2, bring_threads); /* all is there: what was here is multiplied */
#pragma unroll
        for (int k = 0; k < N; k++) {
            const int at = thread + k * bring_threads;
            if (4 * at >= keep)
                continue;
            if constexpr (ROUND) {
                const float4 f = chain_float4(v[k]);
                const uint32_t pair[2] = {sl_pack_bf16(f.x, f.y), sl_pack_bf16(f.z, f.w)};
                make_codes<2>(a, smem, pair, 4 * at);
            } else {
                const uint32_t pair[4] = {v[k].x, v[k].y, v[k].z, v[k].w};
                make_codes<4>(a, smem, pair, 8 * at);
            }
        }
    }

    static __device__ __forceinline__ void bring_one(const chain_args &a, int layer, int step,
                                                     uint8_t *smem, int thread)
    {
        const uint32_t *w = chain_words_of(a, layer);
        const chain_layer &l = layer_of(a, smem, layer);
        if (step == CHAIN_QKV) {
            bring_normed(a, chain_input_of(a, layer), l.norm[0], smem, thread / 32, layer - 1,
                         CHAIN_DOWN);
        } else if (step == CHAIN_GATE_UP) {
            bring_normed(a, w + a.at.x1, l.norm[1], smem, thread / 32, layer, CHAIN_O);
        } else if (step == CHAIN_DOWN) {
            nearly<bring_threads, 2>(a, layer, CHAIN_GATE_UP);
            bring_plain<7, false>(a, w + a.at.g, a.inner / 2, a.inner / 2, smem, thread);
        } else if (n_items(a, CHAIN_ATTEND) > 0) {
            nearly<bring_threads, 2>(a, layer, CHAIN_ATTEND);
            bring_plain<2, false>(a, w + a.at.att, a.h / 2, a.h / 2, smem, thread);
        } else {
            nearly<bring_threads, 2>(a, layer, CHAIN_QKV);
            bring_plain<6, true>(a, w + a.at.qkv, a.at.part - a.at.qkv, a.h, smem, thread);
        }
        sl_fence_proxy_async();
        sl_mbar_arrive_warp(input(smem, step));
        if (thread == 0)
            stamp(a, layer * CHAIN_STEPS + step, 0);
    }

    /* The life of the warps that bring inputs. */
    static __device__ void bring(const chain_args &a, uint8_t *smem)
    {
        const int thread = static_cast<int>(threadIdx.x) - 32 * (CHAIN_WIDE + 1);
        for (int layer = 0; layer < a.n_layers; layer++) {
            for (int step = 0; step < CHAIN_STEPS; step++)
                if (step != CHAIN_ATTEND && first(step) < n_items(a, step))
                    bring_one(a, layer, step, smem, thread);
            if (a.fault != nullptr)
                chain_clear(a, layer, thread, bring_threads);
        }
    }

    /* -------------------------------------------------------------- units */

    /* Scales of a unit: of this thread's steps and of its rows. */
    struct factors {
        float w[2], f[2][2];

        __device__ __forceinline__ void load(const chain_args &a, const uint8_t *smem, int layer,
                                             const unit &u)
        {
            const int thread = static_cast<int>(threadIdx.x);
            const int row = thread / 32 * 16 + thread % 32 / 4;
            if (u.step == CHAIN_ATTEND)
                return;
#pragma unroll
            for (int mi = 0; mi < 2; mi++) {
                if (mi > 0 && u.step != CHAIN_GATE_UP)
                    break;
                const weights from = weights_of(a, smem, layer, u, mi);
                w[mi] = thread < a.product[u.step].n_k ? from.units[thread] : 0.0f;
                f[mi][0] = from.rows[row];
                f[mi][1] = from.rows[row + 8];
            }
        }
    };

    struct walker {
        uint8_t *smem;
        sl_w8_place at;
        int oldest, odd;
    };
    template <class S>
    static __device__ __forceinline__ sl_w8_few_view<S> view_of(const chain_args &a,
                                                                const walker &k, const float *ws)
    {
        sl_w8_few_view<S> v = {};
        v.smem = k.smem, v.at = k.at, v.oldest = k.oldest, v.stages = a.n_slots, v.tokens = 1;
        v.codes = codes_of(a, k.smem);
        v.xs = scales_of(a, k.smem) + 2 * (threadIdx.x & 3);
        v.ws = ws;
        return v;
    }

    static __device__ __forceinline__ void gate_up(const chain_args &a, int layer, const unit &u,
                                                   walker &k, const float *ws,
                                                   const float (&f)[2][2])
    {
        float acc[2][1][4], out[2];
        sl_w8_few_view<gated_shape> v = view_of<gated_shape>(a, k, ws);
        sl_w8_few_walk<gated_shape>(acc, v, a.product[CHAIN_GATE_UP].n_k);
        k.at = v.at, k.oldest = v.oldest;
        const int lane = static_cast<int>(threadIdx.x % 32);
        const int row = u.item * 64 + static_cast<int>(threadIdx.x / 32) * 16 + lane / 4;
#pragma unroll
        for (int r = 0; r < 2; r++) {
            float gate = __fmul_rn(acc[0][0][2 * r], f[0][r]);
            out[r] = __fmul_rn(sl_act(SL_ACT_SILU, gate), __fmul_rn(acc[1][0][2 * r], f[1][r]));
            float next = __shfl_down_sync(0xffffffffu, out[r], 4);
            if (lane % 8 == 0)
                chain_tell(chain_words_of(a, layer) + a.at.g + (row + 8 * r) / 2,
                           sl_pack_bf16(out[r], next));
        }
    }

    static __device__ __forceinline__ void plain(const chain_args &a, int layer, const unit &u,
                                                 walker &k, const float *ws, const float (&f)[2][2])
    {
        const int lane = static_cast<int>(threadIdx.x % 32);
        const int row = u.item * 64 + static_cast<int>(threadIdx.x / 32) * 16 + lane / 4;
        uint32_t *w = chain_words_of(a, layer), *to = w + a.at.qkv + row;
        const uint32_t *old = nullptr;
        uint32_t before[2] = {};
        if (u.step == CHAIN_DOWN) {
            to = w + a.at.x2 + row;
            old = w + a.at.x1 + row;
        } else if (u.step == CHAIN_O) {
            to = w + a.at.x1 + row;
            old = chain_input_of(a, layer) + row;
        }
        if (old != nullptr && lane % 4 == 0)
            for (int r = 0; r < 2; r++)
                before[r] = const_cast<const volatile uint32_t *>(old)[8 * r];
        float acc[1][1][4];
        sl_w8_few_view<plain_shape> v = view_of<plain_shape>(a, k, ws);
        sl_w8_few_walk<plain_shape>(acc, v, a.product[u.step].n_k);
        k.at = v.at, k.oldest = v.oldest;
        if (lane % 4 != 0)
            return;
#pragma unroll
        for (int r = 0; r < 2; r++) {
            float sum = __fmul_rn(acc[0][0][2 * r], f[0][r]);
            if (old != nullptr)
                sum = sl_add_ftz(__uint_as_float(before[r]), sum);
            chain_tell(to + 8 * r, __float_as_uint(sum));
        }
    }

    /* Pages in the ring. */
    struct pages {
        const chain_args *a;
        walker *k;
        const uint8_t *from;
        __device__ __forceinline__ const uint8_t *enter(int i)
        {
            if (i % slot_pages == 0) {
                lab_wait(sl_w8_full(k->smem, k->at.slot), k->at.parity, 4, a->fault);
                from = k->smem + SL_W8_HEADER + k->at.slot * stage +
                       static_cast<int>(threadIdx.x / 32) * slot_pages * page_bytes;
                sl_w8_next(k->at, a->n_slots);
            }
            return from + i % slot_pages * page_bytes;
        }
        __device__ __forceinline__ void leave(int i)
        {
            if ((i + 1) % slot_pages == 0) {
                sl_mbar_give_warp(sl_w8_empty(k->smem, k->oldest));
                k->oldest = k->oldest + 1 == a->n_slots ? 0 : k->oldest + 1;
            }
        }
    };

    static __device__ void attend(const chain_args &a, int layer, const unit &u, walker &k)
    {
        const int head = u.item / CHAIN_SPLITS, n_heads = a.product[CHAIN_QKV].blocks[1] * 64 / D;
        const int thread = static_cast<int>(threadIdx.x);
        uint32_t *w = chain_words_of(a, layer), *qkv = w + a.at.qkv;
        const chain_rows rows = {qkv + CHAIN_GROUP * D * head, qkv + a.h + D * head,
                                 qkv + a.h + D * (n_heads + head)};
        float out[D / 8][2];
        pages at = {&a, &k, nullptr};
        nearly<threads, 1>(a, layer, CHAIN_QKV);
        chain_attend<D>(out, rows, at, 5, a.fault);
        chain_attend_tell<D>(out, reinterpret_cast<float *>(k.smem + a.pages),
                             w + a.at.part + u.item * CHAIN_GROUP * D, thread / 32, 1);
        if (u.item % CHAIN_SPLITS == CHAIN_SPLITS - 1)
            chain_join<D>(w + a.at.part + head * CHAIN_SPLITS * CHAIN_GROUP * D,
                          w + a.at.att + head * CHAIN_GROUP * D / 2, thread, 6, a.fault);
    }

    static __device__ void consume(const chain_args &a, uint8_t *smem)
    {
        const int thread = static_cast<int>(threadIdx.x), n = n_list(smem);
        walker k = {smem, {0, 0}, 0, 0};
        factors next = {};
        if (n > 0)
            next.load(a, smem, 0, list_of(smem)[0]);
        for (int layer = 0; layer < a.n_layers; layer++) {
            for (int i = 0; i < n; i++) {
                const unit u = list_of(smem)[i];
                const factors now = next;
                float *ws = reinterpret_cast<float *>(smem + a.ring) + k.odd * 2 * SL_W8_KEPT;
                k.odd ^= 1;
                for (int mi = 0; mi < 2; mi++)
                    ws[mi * SL_W8_KEPT + thread] = now.w[mi];
                sl_bar_sync(1, threads);
                const bool last = i + 1 == n;
                if (!last || layer + 1 < a.n_layers)
                    next.load(a, smem, last ? layer + 1 : layer, list_of(smem)[last ? 0 : i + 1]);
                if (u.step != CHAIN_ATTEND && a.fault != nullptr)
                    lab_wait(input(smem, u.step), static_cast<uint32_t>(layer % 2), 6, a.fault);
                if (u.step == CHAIN_ATTEND)
                    attend(a, layer, u, k);
                else if (u.step == CHAIN_GATE_UP)
                    gate_up(a, layer, u, k, ws, now.f);
                else
                    plain(a, layer, u, k, ws, now.f);
                const bool joined = u.item % CHAIN_SPLITS == CHAIN_SPLITS - 1;
                if (thread == 0) {
                    if (u.step != CHAIN_ATTEND || joined)
                        chain_count(chain_count_of(a, layer, u.step));
                    stamp(a, layer * CHAIN_STEPS + u.step, 1);
                }
            }
        }
    }
};

template <int U, int D>
__global__ void __launch_bounds__(FP8_THREADS, 1)
    fp8_chain_kernel(const __grid_constant__ chain_args a)
{
    SL_SMEM(uint8_t, smem);
    typedef fp8_chain<U, D> C;
    const int warp = __shfl_sync(0xffffffffu, static_cast<int>(threadIdx.x / 32), 0);
    sl_mbar_init_all(sl_w8_full(smem, 0), a.n_slots, 1);
    sl_mbar_init_all(sl_w8_empty(smem, 0), a.n_slots, CHAIN_WIDE * SL_WARP_ARRIVALS);
    sl_mbar_init_all(C::input(smem, 0), CHAIN_STEPS, SL_NORM_WARPS * SL_WARP_ARRIVALS);
    sl_mbar_fence_init();
    sl_grid_wait();
    if (threadIdx.x == 0) {
        C::stamp(a, a.n_layers * CHAIN_STEPS, 0);
        C::stamp(a, a.n_layers * CHAIN_STEPS, 1);
        C::make_list(a, smem);
    }
    for (int i = static_cast<int>(threadIdx.x);
         i < a.n_layers * static_cast<int>(sizeof(chain_layer) / 8); i += FP8_THREADS)
        reinterpret_cast<uint64_t *>(smem + a.list)[i] =
            reinterpret_cast<const uint64_t *>(a.layer)[i];
    __syncthreads();
    if (warp < CHAIN_WIDE)
        C::consume(a, smem);
    else if (warp == CHAIN_WIDE)
        C::fill(a, smem);
    else
        C::bring(a, smem);
}

/* ------------------------------------------------------------------ host */

template <int U, int D> static void fp8_chain_launch(chain_args a)
{
    typedef fp8_chain<U, D> C;
    static bool asked;
    const uint32_t n_k = static_cast<uint32_t>(std::max(a.h, a.inner) / 128);
    const uint32_t codes = 128 * n_k + 128, xs = 32 * n_k, ws = 4 * SL_W8_KEPT * 4;
    const uint32_t sums = CHAIN_SUMS(D) * 4;
    const uint32_t table = static_cast<uint32_t>(a.n_layers) * sizeof(chain_layer);
    const uint32_t rest = SL_W8_HEADER + codes + xs + ws + sums + table;
    a.n_slots = std::min(static_cast<int>((CHAIN_SMEM - rest) / C::stage), SL_W8_RING);
    a.acts[0] = SL_W8_HEADER + static_cast<uint32_t>(a.n_slots * C::stage);
    a.acts[1] = a.acts[0] + codes;
    a.ring = a.acts[1] + xs; /* scales of units */
    a.pages = a.ring + ws;   /* sums of attention */
    a.list = a.pages + sums; /* layers */
    CHECK(a.n_slots >= 3 && n_k <= SL_W8_KEPT, "%d stages", a.n_slots);
    for (int i : {CHAIN_QKV, CHAIN_O, CHAIN_GATE_UP, CHAIN_DOWN})
        CHECK(a.product[i].n_k % U == 0, "%d steps", a.product[i].n_k);
    for (int32_t &n : a.under)
        n = std::min(n, a.n_slots);
    CHECK(a.inner <= 8 * 7 * C::bring_threads, "inner");
    int most = 0;
    for (const chain_product &p : a.product)
        most += SL_CEIL_DIV(p.blocks[0] + p.blocks[1] + p.blocks[2], b.cu->n_sms);
    CHECK(most <= FP8_UNITS, "%d units", most);
    if (!asked)
        MUST(cudaFuncSetAttribute(fp8_chain_kernel<U, D>,
                                  cudaFuncAttributeMaxDynamicSharedMemorySize, CHAIN_SMEM));
    asked = true;
    chain_launch_together(fp8_chain_kernel<U, D>, a, FP8_THREADS);
}

#endif
