/* SPDX-License-Identifier: MIT
 * layer_direct.cuh - the other kernel of lab/layer_chain.cu, for codes: weights go straight to
 * registers, as in linear_direct.cuh, over the ends of products and layers.
 *
 * A block a multiprocessor, of 16 warps that multiply and four that bring inputs. A warp has one
 * way through all segments of row blocks that are dealt to it. It holds 512 columns of codes; as
 * soon as 64 are multiplied, their registers are asked for the 64 behind all these, of the next
 * product too. The last TAIL steps of 64 columns of each piece of a segment come by a bulk copy
 * into a place in shared memory of the warp's own, asked for when those of the piece before are
 * multiplied: so both are on their way while it waits for an input. Who brings inputs polls, norms,
 * and makes attention's stand-in; nobody else loads what is not constant, so that no wait for an
 * input is one for weights.
 *
 * Words, polls and who waits for whom: layer_chain.cuh. An input is brought into the place of one
 * before it when all its words are there, so everybody has long multiplied that: this order is that
 * of words in device memory, which no tool that looks for races sees.
 */
#ifndef SL_LAB_LAYER_DIRECT_CUH
#define SL_LAB_LAYER_DIRECT_CUH

#include "layer_chain.cuh"

#define DIRECT_WARPS  16
#define DIRECT_LAYERS 32 /* most of a launch */
#define DIRECT_GROUP  4  /* steps of 64 columns that are asked for one behind the other */

enum direct_kind { DIRECT_QKV, DIRECT_O, DIRECT_GATE_UP, DIRECT_DOWN, DIRECT_KINDS };

/* TAIL: steps of a segment that come through shared memory. D: of a head. */
template <class F, int TAIL, int D> struct direct {
    static constexpr int subs = F::unit_k / 64, bring_threads = 32 * CHAIN_WIDE;
    static constexpr int tail_bytes = TAIL / subs * F::unit_bytes;
    static constexpr int group_bytes = DIRECT_GROUP / subs * F::unit_bytes;
    static constexpr int page_bytes = 16 * D, pages_bytes = CHAIN_WIDE * 8 * page_bytes;
    static constexpr int input_at = 0, tail_bar_at = 64, norm_at = 192, table_at = 256;
    static constexpr int swap_at = table_at + DIRECT_LAYERS * static_cast<int>(sizeof(chain_layer));
    static constexpr int sums_at = swap_at + 2 * DIRECT_KINDS * DIRECT_WARPS * 64;
    static constexpr int header = sums_at + CHAIN_SUMS(D) * 4;

    static __device__ __forceinline__ uint64_t *bar(uint8_t *smem, int at, int i)
    {
        return reinterpret_cast<uint64_t *>(smem + at) + i;
    }
    static __device__ __forceinline__ const chain_layer &layer_of(const uint8_t *smem, int i)
    {
        return reinterpret_cast<const chain_layer *>(smem + table_at)[i];
    }
    static __device__ __forceinline__ const chain_product &product(const chain_args &a, int kind)
    {
        return a.product[kind == DIRECT_QKV ? CHAIN_QKV : kind + 1];
    }
    static __device__ __forceinline__ void stamp(const chain_args &a, int row, int i)
    {
        chain_stamp(a, row, i, 2);
    }
    static __device__ __forceinline__ int step_of(int layer, int kind)
    {
        return layer * CHAIN_STEPS + (kind == DIRECT_QKV ? 0 : kind + 1);
    }

    /* -------------------------------------------------------------- a warp's way */

    static __device__ __forceinline__ int team_of(const chain_args &a, int kind)
    {
        return kind == DIRECT_GATE_UP ? 2 : product(a, kind).n_segs;
    }

    static __device__ __forceinline__ int n_items(const chain_args &a, int kind)
    {
        const int32_t *n = product(a, kind).blocks;
        return n[0] + n[1] + n[2];
    }

    /* A piece of a segment, the same in all layers. */
    struct segment {
        int kind, item;
        int which;            /* matrix */
        uint32_t offset;      /* in it, of 16 bytes */
        int16_t lead, tail;   /* steps of 64 columns: by registers, then through shared memory */
        int16_t starts, ends; /* it is the first, the last piece of its segment */
        int column;           /* the first */
        int turn;             /* of the kind */
    };
    static __device__ __forceinline__ segment *list_of(const chain_args &a, uint8_t *smem, int warp)
    {
        return reinterpret_cast<segment *>(smem + a.list) + warp * a.n_list;
    }
    static __device__ __forceinline__ segment segment_of(const chain_args &a, int kind, int item,
                                                         int warp, int *steps)
    {
        const chain_product &p = product(a, kind);
        segment s = {};
        int block = item, seg = 0, n = p.n_k;
        s.kind = kind, s.item = item;
        s.which = kind == DIRECT_GATE_UP ? 4 + warp % 2 : kind == DIRECT_O ? 3 : 6;
        if (kind != DIRECT_GATE_UP) {
            seg = warp % p.n_segs;
            n = min(p.seg_k, p.n_k - seg * p.seg_k);
        }
        if (kind == DIRECT_QKV)
            for (s.which = 0; block >= p.blocks[s.which]; s.which++)
                block -= p.blocks[s.which];
        s.offset = static_cast<uint32_t>(
            (static_cast<int64_t>(block) * p.row_bytes + seg * p.seg_k * F::unit_bytes) / 16);
        s.column = seg * p.seg_k * F::unit_k;
        *steps = n * subs;
        return s;
    }
    /* How many pieces there are. */
    static __device__ int make_list(const chain_args &a, uint8_t *smem, int warp)
    {
        int n = 0;
        segment *list = list_of(a, smem, warp);
        for (int kind = 0; kind < DIRECT_KINDS; kind++) {
            const int size = team_of(a, kind), teams = DIRECT_WARPS / size, team = warp / size;
            int item = team * static_cast<int>(gridDim.x) + static_cast<int>(blockIdx.x);
            for (int turn = 0; team < teams && item < n_items(a, kind);
                 item += teams * static_cast<int>(gridDim.x), turn++) {
                int steps;
                segment s = segment_of(a, kind, item, warp, &steps);
                s.turn = turn % 2;
                for (int at = 0; at < steps; at += a.piece) {
                    const int size = min(a.piece, steps - at), tail = min(TAIL, size);
                    s.lead = static_cast<int16_t>(size - tail);
                    s.tail = static_cast<int16_t>(tail);
                    s.starts = at == 0;
                    s.ends = at + size == steps;
                    if (threadIdx.x % 32 == 0)
                        list[n] = s;
                    n++;
                    s.offset += static_cast<uint32_t>(size / subs * F::unit_bytes / 16);
                    s.column += size * 64;
                }
            }
        }
        __syncwarp();
        return n;
    }

    /* A warp's way through its list, layer by layer. */
    struct place {
        const segment *list;
        int n, i, layer;

        __device__ __forceinline__ const segment &at() const
        {
            return list[i];
        }
        __device__ __forceinline__ void next()
        {
            if (++i == n) {
                i = 0;
                layer++;
            }
        }
        __device__ __forceinline__ const uint8_t *weights(const uint8_t *smem) const
        {
            return layer_of(smem, layer).w[at().which] + static_cast<int64_t>(at().offset) * 16;
        }
    };

    /* What registers are asked for next. */
    struct fetch {
        place p;
        const uint8_t *src;
        int left, n_layers;

        __device__ __forceinline__ void enter(const uint8_t *smem)
        {
            while (p.layer < n_layers) {
                src = p.weights(smem);
                left = p.at().lead;
                if (left > 0)
                    return;
                p.next();
            }
            src -= group_bytes; /* once more what was last, for nobody */
            left = DIRECT_GROUP;
        }
        __device__ __forceinline__ void pass(const uint8_t *smem)
        {
            src += group_bytes;
            left -= DIRECT_GROUP;
            if (left > 0)
                return;
            if (p.layer < n_layers)
                p.next();
            enter(smem);
        }
    };

    struct group {
        typename F::raw r[DIRECT_GROUP];

        __device__ __forceinline__ void load(const uint8_t *src, int i)
        {
            F::template load<true>(r[i], src + i / subs * F::unit_bytes, i % subs,
                                   static_cast<int>(threadIdx.x % 32));
        }
    };

    static __device__ __forceinline__ void product_of(float (&acc)[4], const typename F::raw &r,
                                                      const uint8_t *x)
    {
#pragma unroll
        for (int half = 0; half < 2; half++) {
            uint32_t b[4];
            sl_ldmatrix_x4(b, x + 64 * half);
            sl_stream_mma<F>(acc, r, half, b);
        }
    }

    static __device__ __forceinline__ void multiply(float (&acc)[4], group &g, const uint8_t *x,
                                                    const uint8_t *src)
    {
#pragma unroll
        for (int i = 0; i < DIRECT_GROUP; i++) {
            product_of(acc, g.r[i], x + 128 * i);
            g.load(src, i);
        }
    }

    /* -------------------------------------------------------------- the tail */

    static __device__ __forceinline__ void ask_tail(const chain_args &a, uint8_t *smem,
                                                    const place &p, int warp)
    {
        if (threadIdx.x % 32 == 0) {
            const uint32_t bytes = static_cast<uint32_t>(p.at().tail / subs * F::unit_bytes);
            uint64_t *full = bar(smem, tail_bar_at, warp);
            sl_mbar_expect_tx(full, bytes);
            sl_bulk_load_once(smem + a.ring + warp * tail_bytes,
                              p.weights(smem) + p.at().lead / subs * F::unit_bytes, bytes, full);
        }
        __syncwarp();
    }

    static __device__ __forceinline__ void tail(float (&acc)[4], const uint8_t *at,
                                                const uint8_t *x, int n)
    {
        const int lane = static_cast<int>(threadIdx.x % 32);
        typename F::raw r[2];
        sl_wf_load<F>(r[0], at, 0, lane);
#pragma unroll 1
        for (; n > 0; n -= DIRECT_GROUP, x += 128 * DIRECT_GROUP, at += group_bytes) {
#pragma unroll
            for (int i = 0; i < DIRECT_GROUP; i++) {
                if (i + 1 < DIRECT_GROUP || n > DIRECT_GROUP)
                    sl_wf_load<F>(r[(i + 1) % 2], at + (i + 1) / subs * F::unit_bytes,
                                  (i + 1) % subs, lane);
                product_of(acc, r[i % 2], x + 128 * i);
            }
        }
    }

    /* -------------------------------------------------------------- ends */

    static __device__ __forceinline__ void leave(float (&acc)[4], float *swap)
    {
        const int lane = static_cast<int>(threadIdx.x % 32);
        float sum[1][4] = {{acc[0], acc[1], acc[2], acc[3]}};
        sl_wf_restore<F>(sum);
        if (lane % 4 == 0) {
            swap[lane / 4] = sum[0][0];
            swap[lane / 4 + 8] = sum[0][2];
        }
    }

    static __device__ __forceinline__ uint32_t look(const uint32_t *p)
    {
        return *const_cast<const volatile uint32_t *>(p);
    }

    /* Where a plain product's row goes, and what is added there. */
    static __device__ __forceinline__ uint32_t *target_of(const chain_args &a, int layer,
                                                          const segment &s, const uint32_t **old)
    {
        const int row = s.item * 16 + static_cast<int>(threadIdx.x % 16);
        uint32_t *w = chain_words_of(a, layer);
        *old = nullptr;
        if (s.kind == DIRECT_QKV)
            return w + a.at.qkv + row;
        if (s.kind == DIRECT_DOWN) {
            *old = w + a.at.x1 + row;
            return w + a.at.x2 + row;
        }
        *old = chain_input_of(a, layer) + row;
        return w + a.at.x1 + row;
    }

    static __device__ __forceinline__ void tell_gate_up(const chain_args &a, int layer, int item,
                                                        const float *swap)
    {
        const int lane = static_cast<int>(threadIdx.x % 32), row = lane % 16;
        float v = __fmul_rn(sl_act(SL_ACT_SILU, swap[row]), swap[16 + row]);
        float next = __shfl_down_sync(0xffffffffu, v, 1);
        if (lane % 2 == 0 && lane < 16)
            chain_tell(chain_words_of(a, layer) + a.at.g + (item * 16 + row) / 2,
                       sl_pack_bf16(v, next));
    }

    static __device__ __forceinline__ void tell_plain(int n, const float *swap, uint32_t *to,
                                                      bool adds, uint32_t old)
    {
        const int lane = static_cast<int>(threadIdx.x % 32);
        if (lane >= 16)
            return;
        float sum = swap[lane];
        for (int s = 1; s < n; s++)
            sum = __fadd_rn(sum, swap[16 * s + lane]);
        if (adds)
            sum = sl_add_ftz(__uint_as_float(old), sum);
        chain_tell(to, __float_as_uint(sum));
    }

    /* The life of a warp that multiplies. */
    static __device__ void consume(const chain_args &a, uint8_t *smem, int warp)
    {
        const int lane = static_cast<int>(threadIdx.x % 32);
        const int n_list = make_list(a, smem, warp);
        if (n_list == 0)
            return;
        place p = {list_of(a, smem, warp), n_list, 0, 0};
        fetch f = {p, nullptr, 0, a.n_layers};
        group even, odd;
        bool second = false;
        uint32_t parity = 0;
        float acc[4] = {};
        f.enter(smem);
#pragma unroll
        for (int i = 0; i < DIRECT_GROUP; i++)
            even.load(f.src, i);
        f.pass(smem);
#pragma unroll
        for (int i = 0; i < DIRECT_GROUP; i++)
            odd.load(f.src, i);
        f.pass(smem);
        if (TAIL > 0)
            ask_tail(a, smem, p, warp);
#pragma unroll 1
        while (p.layer < a.n_layers) {
            const segment s = p.at();
            const int layer = p.layer, team = team_of(a, s.kind), in_team = warp & (team - 1);
            float *swap = reinterpret_cast<float *>(smem + swap_at) +
                          ((2 * s.kind + s.turn) * DIRECT_WARPS + warp) * 16;
            const uint8_t *x = smem + a.acts[s.kind % 2] + 2 * s.column + lane / 8 * 16;
            if (s.starts && a.fault != nullptr)
                lab_wait(bar(smem, input_at, s.kind), static_cast<uint32_t>(layer % 2), 4, a.fault);
            uint32_t *to = nullptr, old = 0;
            const uint32_t *from = nullptr;
            if (s.ends && in_team == 0 && s.kind != DIRECT_GATE_UP) {
                to = target_of(a, layer, s, &from);
                if (from != nullptr)
                    old = look(from);
            }
#pragma unroll 1
            for (int n = s.lead; n > 0; n -= DIRECT_GROUP) {
                if (!second)
                    multiply(acc, even, x, f.src);
                else
                    multiply(acc, odd, x, f.src);
                second = !second;
                x += 128 * DIRECT_GROUP;
                f.pass(smem);
            }
            p.next();
            if (TAIL > 0) {
                lab_wait(bar(smem, tail_bar_at, warp), parity, 5, a.fault);
                parity ^= 1;
                tail(acc, smem + a.ring + warp * tail_bytes, x, s.tail);
                if (p.layer < a.n_layers) {
                    sl_fence_proxy_async();
                    __syncwarp();
                    ask_tail(a, smem, p, warp);
                }
            }
            if (!s.ends)
                continue;
            leave(acc, swap);
            const int id = (s.kind == DIRECT_GATE_UP ? 5 : team > 4 ? 13 : 1) + warp / team;
            sl_bar_sync(id, 32 * team);
            if (in_team == 0) {
                if (s.kind == DIRECT_GATE_UP)
                    tell_gate_up(a, layer, s.item, swap);
                else
                    tell_plain(team, swap, to, from != nullptr, old);
                if (lane == 0) {
                    chain_count(chain_count_of(a, layer, step_of(0, s.kind)));
                    stamp(a, step_of(layer, s.kind), 1);
                }
            }
            acc[0] = acc[1] = acc[2] = acc[3] = 0.0f;
        }
    }

    /* -------------------------------------------------------------- inputs */

    /* One warp asks for all: many that read one word wait for each other. */
    static __device__ __forceinline__ void nearly(const chain_args &a, int layer, int step)
    {
        int n = step == CHAIN_ATTEND ? a.product[CHAIN_QKV].blocks[1] * 16 / D
                                     : n_items(a, step == CHAIN_QKV ? 0 : step - 1);
        if (a.early == 0)
            return;
        if (threadIdx.x / 32 == DIRECT_WARPS)
            chain_nearly(chain_count_of(a, layer, step), n, a.early, 10, a.fault);
        sl_bar_sync(15, bring_threads);
    }

    static __device__ __forceinline__ void bring_normed(const chain_args &a, const uint32_t *x,
                                                        const float *weights, uint8_t *smem,
                                                        int warp, int layer, int step)
    {
        constexpr int parts = SL_NORM_WARPS / CHAIN_WIDE, n = parts * SL_NORM_QUADS;
        constexpr int apart = 4 * bring_threads;
        float *sums = reinterpret_cast<float *>(smem + norm_at);
        const int from = sl_norm_part::column(warp, 0);
        float4 w[n];
        uint4 v[n];
#pragma unroll
        for (int i = 0; i < n; i++)
            w[i] = from + i * apart < a.h
                       ? __ldg(reinterpret_cast<const float4 *>(weights + from + i * apart))
                       : make_float4(0, 0, 0, 0);
        if (layer >= 0)
            nearly(a, layer, step);
        chain_poll<n>(v, x + from, apart, SL_CEIL_DIV(a.h - from, apart), 2, a.fault);
#pragma unroll
        for (int part = 0; part < parts; part++) {
            float s = 0.0f;
#pragma unroll
            for (int k = 0; k < SL_NORM_QUADS; k++)
                s = sl_norm_squares(s, chain_float4(v[parts * k + part]));
            s = sl_norm_sum_warp(s);
            if (threadIdx.x % 32 == 0)
                sums[warp + CHAIN_WIDE * part] = s;
        }
        sl_bar_sync(15, bring_threads);
        const float scale = sl_norm_scale_of(sums, a.eps, a.h);
#pragma unroll
        for (int i = 0; i < n; i++)
            if (from + i * apart < a.h)
                *reinterpret_cast<sl_norm_quad *>(smem + a.acts[0] + 2 * (from + i * apart)) =
                    sl_norm_of(chain_float4(v[i]), w[i], scale);
        sl_bar_sync(15, bring_threads); /* the sums are read */
    }

    /* n words as they are; or floats, of which `keep` go to BF16. */
    template <int N, bool ROUND>
    static __device__ __forceinline__ void bring_plain(const chain_args &a, const uint32_t *x,
                                                       int n_words, int keep, uint8_t *smem,
                                                       int thread)
    {
        for (int i = thread; 4 * i < n_words; i += N * bring_threads) {
            uint4 v[N];
            int n = SL_CEIL_DIV(n_words / 4 - i, bring_threads);
            chain_poll<N>(v, x + 4 * i, 4 * bring_threads, n, 3, a.fault);
#pragma unroll
            for (int k = 0; k < N; k++) {
                const int at = i + k * bring_threads;
                uint8_t *to = smem + a.acts[1] + (ROUND ? 8 : 16) * at;
                float4 f = chain_float4(v[k]);
                if (4 * at >= keep)
                    continue;
                if (ROUND)
                    *reinterpret_cast<uint2 *>(to) =
                        make_uint2(sl_pack_bf16(f.x, f.y), sl_pack_bf16(f.z, f.w));
                else
                    *reinterpret_cast<uint4 *>(to) = v[k];
            }
        }
    }

    /* -------------------------------------------------------------- attention's stand-in */

    struct pages {
        const uint8_t *at;
        __device__ __forceinline__ const uint8_t *enter(int i) const
        {
            return at + i * page_bytes;
        }
        __device__ __forceinline__ void leave(int) const
        {
        }
    };

    static __device__ __forceinline__ int n_splits(const chain_args &a)
    {
        return a.product[CHAIN_ATTEND].blocks[0];
    }
    /* The last blocks have the least to do before. */
    static __device__ __forceinline__ int first_split()
    {
        return static_cast<int>(gridDim.x - 1 - blockIdx.x);
    }

    /* A warp's part of a split's pages. */
    static __device__ __forceinline__ void ask_pages(const chain_args &a, uint8_t *smem, int layer,
                                                     int item, int warp)
    {
        if (layer < a.n_layers && item < n_splits(a)) {
            const uint8_t *src = layer_of(smem, layer).pages +
                                 static_cast<int64_t>(CHAIN_WIDE * item + warp) * (8 * page_bytes);
            uint8_t *to = smem + a.pages + warp * 8 * page_bytes;
            for (int i = 16 * static_cast<int>(threadIdx.x % 32); i < 8 * page_bytes; i += 512)
                sl_cp_async16(to + i, src + i, true);
        }
        sl_cp_async_commit();
    }

    static __device__ void attend(const chain_args &a, uint8_t *smem, int layer, int warp,
                                  int thread)
    {
        const int n_heads = a.product[CHAIN_QKV].blocks[1] * 16 / D;
        uint32_t *w = chain_words_of(a, layer);
        const uint32_t *qkv = w + a.at.qkv;
        for (int item = first_split(); item < n_splits(a); item += static_cast<int>(gridDim.x)) {
            const int head = item / CHAIN_SPLITS;
            const bool last = item + static_cast<int>(gridDim.x) >= n_splits(a);
            const chain_rows rows = {qkv + CHAIN_GROUP * D * head, qkv + a.h + D * head,
                                     qkv + a.h + D * (n_heads + head)};
            float out[D / 8][2];
            pages at = {smem + a.pages + warp * 8 * page_bytes};
            sl_cp_async_wait<0>();
            __syncwarp();
            nearly(a, layer, CHAIN_QKV);
            chain_attend<D>(out, rows, at, 5, a.fault);
            chain_attend_tell<D>(out, reinterpret_cast<float *>(smem + sums_at),
                                 w + a.at.part + item * CHAIN_GROUP * D, warp, 15);
            ask_pages(a, smem, last ? layer + 1 : layer,
                      last ? first_split() : item + static_cast<int>(gridDim.x), warp);
            if (item % CHAIN_SPLITS == CHAIN_SPLITS - 1) {
                chain_join<D>(w + a.at.part + head * CHAIN_SPLITS * CHAIN_GROUP * D,
                              w + a.at.att + head * CHAIN_GROUP * D / 2, thread, 6, a.fault);
                if (thread == 0) {
                    chain_count(chain_count_of(a, layer, CHAIN_ATTEND));
                    stamp(a, layer * CHAIN_STEPS + CHAIN_ATTEND, 1);
                }
            }
        }
    }

    /* The life of a warp that brings inputs. */
    static __device__ void bring(const chain_args &a, uint8_t *smem, int warp)
    {
        const int thread = static_cast<int>(threadIdx.x) - 32 * DIRECT_WARPS;
        ask_pages(a, smem, 0, first_split(), warp);
        for (int layer = 0; layer < a.n_layers; layer++) {
            const chain_layer &l = layer_of(smem, layer);
            const uint32_t *w = chain_words_of(a, layer);
            for (int kind = 0; kind < DIRECT_KINDS; kind++) {
                if (kind == DIRECT_QKV) {
                    bring_normed(a, chain_input_of(a, layer), l.norm[0], smem, warp, layer - 1,
                                 CHAIN_DOWN);
                } else if (kind == DIRECT_GATE_UP) {
                    bring_normed(a, w + a.at.x1, l.norm[1], smem, warp, layer, CHAIN_O);
                } else if (kind == DIRECT_DOWN) {
                    nearly(a, layer, CHAIN_GATE_UP);
                    bring_plain<14, false>(a, w + a.at.g, a.inner / 2, a.inner / 2, smem, thread);
                } else if (n_splits(a) > 0) {
                    attend(a, smem, layer, warp, thread);
                    nearly(a, layer, CHAIN_ATTEND);
                    bring_plain<4, false>(a, w + a.at.att, a.h / 2, a.h / 2, smem, thread);
                } else {
                    nearly(a, layer, CHAIN_QKV);
                    bring_plain<6, true>(a, w + a.at.qkv, a.at.part - a.at.qkv, a.h, smem, thread);
                }
                sl_mbar_arrive_warp(bar(smem, input_at, kind));
                if (thread == 0)
                    stamp(a, step_of(layer, kind), 0);
            }
            if (a.fault != nullptr)
                chain_clear(a, layer, thread, bring_threads);
        }
        sl_cp_async_wait<0>();
    }
};

template <class F, int TAIL, int D>
__global__ void __launch_bounds__(32 * (DIRECT_WARPS + CHAIN_WIDE), 1)
    direct_kernel(const __grid_constant__ chain_args a)
{
    SL_SMEM(uint8_t, smem);
    typedef direct<F, TAIL, D> C;
    const int warp = __shfl_sync(0xffffffffu, static_cast<int>(threadIdx.x / 32), 0);
    if (threadIdx.x == 0) {
        C::stamp(a, a.n_layers * CHAIN_STEPS, 0);
        C::stamp(a, a.n_layers * CHAIN_STEPS, 1);
    }
    sl_mbar_init_all(C::bar(smem, C::input_at, 0), DIRECT_KINDS, CHAIN_WIDE * SL_WARP_ARRIVALS);
    sl_mbar_init_all(C::bar(smem, C::tail_bar_at, 0), DIRECT_WARPS, 1);
    sl_mbar_fence_init();
    sl_grid_wait();
    for (int i = static_cast<int>(threadIdx.x);
         i < a.n_layers * static_cast<int>(sizeof(chain_layer) / 8);
         i += 32 * (DIRECT_WARPS + CHAIN_WIDE))
        reinterpret_cast<uint64_t *>(smem + C::table_at)[i] =
            reinterpret_cast<const uint64_t *>(a.layer)[i];
    __syncthreads();
    if (warp >= DIRECT_WARPS)
        C::bring(a, smem, warp - DIRECT_WARPS);
    else
        C::consume(a, smem, warp);
}

/* ------------------------------------------------------------------ host */

template <class F, int TAIL, int D> static void direct_launch(chain_args a)
{
    typedef direct<F, TAIL, D> C;
    static bool asked;
    const uint32_t h = static_cast<uint32_t>(a.h), inner = static_cast<uint32_t>(a.inner);
    a.acts[0] = SL_ROUND_UP(C::header, 128u);
    a.acts[1] = a.acts[0] + 2 * h;
    a.ring = SL_ROUND_UP(a.acts[1] + 2 * std::max(h, inner), 128u);
    a.list = a.ring + DIRECT_WARPS * static_cast<uint32_t>(C::tail_bytes);
    for (int i : {CHAIN_QKV, CHAIN_O, CHAIN_GATE_UP, CHAIN_DOWN}) {
        const chain_product &p = a.product[i];
        const int team = i == CHAIN_GATE_UP ? 2 : p.n_segs;
        const int steps = (i == CHAIN_GATE_UP ? p.n_k : p.seg_k) * C::subs;
        const int rounds =
            SL_CEIL_DIV(p.blocks[0] + p.blocks[1] + p.blocks[2], DIRECT_WARPS / team * b.cu->n_sms);
        a.n_list += rounds * SL_CEIL_DIV(steps, a.piece);
    }
    a.pages = SL_ROUND_UP(a.list + DIRECT_WARPS * 32u * static_cast<uint32_t>(a.n_list), 128u);
    const uint32_t room = a.pages + C::pages_bytes;
    CHECK(room <= CHAIN_SMEM && a.n_layers <= DIRECT_LAYERS && a.piece % DIRECT_GROUP == 0,
          "%u bytes", room);
    for (int i : {CHAIN_QKV, CHAIN_O, CHAIN_DOWN}) {
        const chain_product &p = a.product[i];
        const int last = p.n_k - (p.n_segs - 1) * p.seg_k;
        CHECK(p.n_segs == 4 || p.n_segs == 8, "%d segments", p.n_segs);
        CHECK(p.seg_k * C::subs % DIRECT_GROUP == 0 && last * C::subs % DIRECT_GROUP == 0, "steps");
    }
    if (!asked)
        MUST(cudaFuncSetAttribute(direct_kernel<F, TAIL, D>,
                                  cudaFuncAttributeMaxDynamicSharedMemorySize, CHAIN_SMEM));
    asked = true;
    chain_launch_together(direct_kernel<F, TAIL, D>, a, 32 * (DIRECT_WARPS + CHAIN_WIDE));
}

#endif
