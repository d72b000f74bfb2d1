/* SPDX-License-Identifier: MIT
 * linear_small.cuh - the versions of lab/linear_small.cu: ways to decode, in one kernel.
 *
 * A decode takes `cols` columns of 16 rows (raw, as they lie in registers after 16-byte loads) and
 * adds their products with the tokens to the sums, 64 columns at a time.
 */
#ifndef SL_LAB_LINEAR_SMALL_CUH
#define SL_LAB_LINEAR_SMALL_CUH

#include "cuda/gemm/weight_format.cuh"
#include "lab.h"

#define SMALL_WARPS 16

/* What the products of 64 columns need besides weights, tiles of 8 tokens. */
template <int T> struct small_x {
    uint32_t b[T][4][2]; /* tile, k16 */
    float2 sum[T][2];    /* of the lane's two tokens over 32 columns each; only if asked for */
};

static __device__ __forceinline__ uint32_t small_bf16x2(float v)
{
    return sl_pack_bf16(v, v);
}

/* a * b + c of two pairs of bf16, one rounding each. */
static __device__ __forceinline__ uint32_t small_fma2(uint32_t a, uint32_t b, uint32_t c)
{
#ifdef SL_CUDA_SIM
    uint32_t r = 0;
    for (int i = 0; i < 32; i += 16) {
        double v = static_cast<double>(__uint_as_float(a >> i << 16)) *
                       static_cast<double>(__uint_as_float(b >> i << 16)) +
                   static_cast<double>(__uint_as_float(c >> i << 16));
        r |= static_cast<uint32_t>(__bfloat16_as_ushort(__float2bfloat16_rn(static_cast<float>(v))))
             << i;
    }
    return r;
#else
    uint32_t d;
    asm("fma.rn.bf16x2 %0, %1, %2, %3;" : "=r"(d) : "r"(a), "r"(b), "r"(c));
    return d;
#endif
}

/* (w & mask) | bits in one instruction. */
static __device__ __forceinline__ uint32_t small_put(uint32_t w, uint32_t mask, uint32_t bits)
{
#ifdef SL_CUDA_SIM
    return (w & mask) | bits;
#else
    uint32_t d;
    asm("lop3.b32 %0, %1, %2, %3, 0xEA;" : "=r"(d) : "r"(w), "r"(mask), "r"(bits));
    return d;
#endif
}

static __device__ __forceinline__ uint32_t small_rotl4(uint32_t w)
{
    return w << 4 | w >> 28;
}

template <int T>
static __device__ __forceinline__ void small_mma(float (&acc)[T][4], const uint32_t (&a)[4],
                                                 const small_x<T> &x, int j)
{
#pragma unroll
    for (int t = 0; t < T; t++)
        sl_mma_bf16(acc[t], a, x.b[t][j]);
}

/* ------------------------------------------------------------------ as src/cuda has them */

template <class F, int COLS> struct small_plain {
    static constexpr int unit_k = F::unit_k, unit_bytes = F::unit_bytes, cols = COLS;
    static constexpr bool sums = false;
    struct raw {
        typename F::raw r[COLS / 64];
    };
    static __device__ __forceinline__ void load(raw &r, const uint8_t *p, int lane)
    {
#pragma unroll
        for (int i = 0; i < COLS / 64; i++)
            F::load(r.r[i], p + i / (unit_k / 64) * unit_bytes, i % (unit_k / 64), lane);
    }
    template <int T>
    static __device__ __forceinline__ void step(float (&acc)[T][4], const raw &r, int i,
                                                const small_x<T> &x)
    {
#pragma unroll
        for (int j = 0; j < 4; j++) {
            uint32_t a[4];
            F::frag(r.r[i], j, a);
            small_mma<T>(acc, a, x, j);
        }
    }
};

/* ------------------------------------------------------------------ Q4_K */

enum q4k_way {
    Q4K_FOLD,  /* fma(r, 128 + q, -(128 r + m)): a little different where that sum is not exact */
    Q4K_BF16,  /* r and m rounded to bf16, q exact: fma of pairs */
    Q4K_AFTER, /* codes as bf16, 16 + q; scales behind the products of 32 columns, in float */
};

/* Values r and m of a row's two runs of 32 columns. */
struct q4k_scales {
    float r[2], m[2];
};

static __device__ __forceinline__ float small_magic(uint32_t w, int i)
{
    return __uint_as_float(__byte_perm(w, 0x4B000000u, 0x7650u | static_cast<uint32_t>(i)));
}

static __device__ __forceinline__ q4k_scales small_scales(const uint4 &row, int sub)
{
    uint32_t f = sl_qk_fields(row, sub);
    float d = sl_half_bits(row.x), dm = sl_half_bits(row.x >> 16);
    float cd = __fmul_rn(d, -8388608.0f), cm = __fmul_rn(dm, -8388608.0f);
    q4k_scales s;
#pragma unroll
    for (int i = 0; i < 2; i++) { /* exact: 17 bits */
        s.r[i] = __fmaf_rn(d, small_magic(f, i), cd);
        s.m[i] = __fmaf_rn(dm, small_magic(f, 2 + i), cm);
    }
    return s;
}

template <q4k_way WAY> struct small_q4k {
    static constexpr int unit_k = 256, unit_bytes = 2304, cols = 256;
    static constexpr bool sums = WAY == Q4K_AFTER;
    struct raw {
        uint4 q[4], row[2];
    };
    static __device__ __forceinline__ void load(raw &r, const uint8_t *p, int lane)
    {
#pragma unroll
        for (int i = 0; i < 4; i++)
            r.q[i] = sl_ldg_stream16(p + 512 * i + 16 * lane);
#pragma unroll
        for (int i = 0; i < 2; i++)
            r.row[i] = sl_ldg_stream16(p + 2048 + 16 * ((lane >> 2) + 8 * i));
    }
    /* Codes of a step as bf16 pairs, 16 + q: nibble p at bit 3 + 4 p, pairs four apart. */
    static __device__ __forceinline__ void codes16(uint32_t w, uint32_t a[4])
    {
        a[0] = small_put(w, 0x00780078u, 0x41804180u);
        a[1] = small_put(w >> 4, 0x00780078u, 0x41804180u);
        a[2] = small_put(w >> 8, 0x00780078u, 0x41804180u);
        a[3] = small_put(small_rotl4(w), 0x00780078u, 0x41804180u);
    }
    template <int T>
    static __device__ __forceinline__ void step(float (&acc)[T][4], const raw &r, int i,
                                                const small_x<T> &x)
    {
        q4k_scales s[2] = {small_scales(r.row[0], i), small_scales(r.row[1], i)};
#pragma unroll
        for (int half = 0; half < 2; half++) {
            if (WAY == Q4K_AFTER)
                after<T>(acc, r.q[i], half, s, x);
            else
                before<T>(acc, r.q[i], half, s, x);
        }
    }
    template <int T>
    static __device__ __forceinline__ void after(float (&acc)[T][4], const uint4 &q, int half,
                                                 const q4k_scales (&s)[2], const small_x<T> &x)
    {
        float g[T][4] = {};
#pragma unroll
        for (int j = 2 * half; j < 2 * half + 2; j++) {
            uint32_t a[4];
            codes16(sl_word(q, j), a);
            small_mma<T>(g, a, x, j);
        }
#pragma unroll
        for (int row = 0; row < 2; row++) {
            float v = s[row].r[half], c = __fmaf_rn(v, -16.0f, -s[row].m[half]);
#pragma unroll
            for (int t = 0; t < T; t++) {
                float *to = acc[t] + 2 * row;
                to[0] = __fmaf_rn(c, x.sum[t][half].x, __fmaf_rn(v, g[t][2 * row], to[0]));
                to[1] = __fmaf_rn(c, x.sum[t][half].y, __fmaf_rn(v, g[t][2 * row + 1], to[1]));
            }
        }
    }
    template <int T>
    static __device__ __forceinline__ void before(float (&acc)[T][4], const uint4 &q, int half,
                                                  const q4k_scales (&s)[2], const small_x<T> &x)
    {
        float r[2], c[2];
        uint32_t r2[2], m2[2];
#pragma unroll
        for (int row = 0; row < 2; row++) {
            r[row] = s[row].r[half];
            c[row] = __fmaf_rn(r[row], -128.0f, -s[row].m[half]);
            r2[row] = small_bf16x2(r[row]);
            m2[row] = small_bf16x2(-s[row].m[half]);
        }
#pragma unroll
        for (int j = 2 * half; j < 2 * half + 2; j++) {
            uint32_t a[4], w = sl_word(q, j);
#pragma unroll
            for (int i = 0; i < 4; i++) {
                if (WAY == Q4K_BF16) { /* nibbles four apart, from bit 0 on */
                    uint32_t v = small_put(w >> 4 * i, 0x000F000Fu, 0x43004300u);
                    v = small_fma2(v, 0x3F803F80u, 0xC300C300u);
                    a[i] = small_fma2(v, r2[i & 1], m2[i & 1]);
                } else {
                    uint32_t n = sl_nibbles(w, i >> 1);
                    int byte = 2 * (i & 1);
                    a[i] = sl_pack_bf16(__fmaf_rn(r[i & 1], sl_code128(n, byte), c[i & 1]),
                                        __fmaf_rn(r[i & 1], sl_code128(n, byte + 1), c[i & 1]));
                }
            }
            small_mma<T>(acc, a, x, j);
        }
    }
};

/* ------------------------------------------------------------------ Q8_0 */

enum q8_way {
    Q8_BF16,  /* d rounded to bf16, codes exact: a product of pairs */
    Q8_AFTER, /* codes as bf16, d behind the products of 32 columns, in float */
};

/* Codes are two's complement here: 128 + the low seven bits, minus 128, or 256 with the sign. */
template <q8_way WAY> struct small_q8 {
    static constexpr int unit_k = 64, unit_bytes = 1088, cols = 256;
    static constexpr bool sums = false;
    struct raw {
        uint4 q[4][2];
        uint2 d[4];
    };
    static __device__ __forceinline__ void load(raw &r, const uint8_t *p, int lane)
    {
#pragma unroll
        for (int i = 0; i < 4; i++) {
            r.q[i][0] = sl_ldg_stream16(p + i * 1088 + 16 * lane);
            r.q[i][1] = sl_ldg_stream16(p + i * 1088 + 512 + 16 * lane);
            r.d[i] = *reinterpret_cast<const uint2 *>(p + i * 1088 + 1024 + 8 * (lane >> 2));
        }
    }
    template <int T>
    static __device__ __forceinline__ void step(float (&acc)[T][4], const raw &r, int i,
                                                const small_x<T> &x)
    {
#pragma unroll
        for (int half = 0; half < 2; half++) {
            float d[2] = {sl_half_bits(r.d[i].x >> 16 * half), sl_half_bits(r.d[i].y >> 16 * half)};
            uint32_t d2[2] = {small_bf16x2(d[0]), small_bf16x2(d[1])};
            float g[T][4] = {};
#pragma unroll
            for (int j = 0; j < 2; j++) {
                uint32_t a[4];
#pragma unroll
                for (int e = 0; e < 4; e++) { /* bytes 0 and 2, then 1 and 3 */
                    uint32_t w = sl_word(r.q[i][half], 2 * j + (e >> 1)) >> 8 * (e & 1);
                    uint32_t v = small_fma2(small_put(w, 0x007F007Fu, 0x43004300u), 0x3F803F80u,
                                            small_put(w, 0x00800080u, 0xC300C300u));
                    a[e] = WAY == Q8_BF16 ? small_fma2(v, d2[e & 1], 0x80008000u) : v;
                }
                small_mma<T>(WAY == Q8_BF16 ? acc : g, a, x, 2 * half + j);
            }
            if constexpr (WAY != Q8_BF16) {
#pragma unroll
                for (int t = 0; t < T; t++)
#pragma unroll
                    for (int e = 0; e < 4; e++)
                        acc[t][e] = __fmaf_rn(d[e >> 1], g[t][e], acc[t][e]);
            }
        }
    }
};

/* ------------------------------------------------------------------ the kernel */

struct small_args {
    const uint8_t *w;
    const __nv_bfloat16 *x;
    float *out;
    int32_t n_rows, n_cols, n_tokens, n_segs, seg_cols;
    uint32_t zeros, sums, swap; /* offsets in shared memory */
};

/* A block a multiprocessor, all tokens in its shared memory. A warp takes a segment of a row block
 * at a time; what it reads next is under way while it multiplies, over the ends of row blocks too,
 * and the first weights before the kernel ahead has ended. */
template <class D, int T> struct small_warp {
    const small_args &a;
    uint8_t *smem;
    int lane, warp, seg, teams, iters, stride;
    int64_t block_bytes;

    __device__ __forceinline__ small_warp(const small_args &args, uint8_t *s)
        : a(args), smem(s), lane(static_cast<int>(threadIdx.x % 32)),
          warp(static_cast<int>(threadIdx.x / 32)), seg(warp % args.n_segs),
          teams(SMALL_WARPS / args.n_segs),
          iters(min(args.seg_cols, args.n_cols - seg * args.seg_cols) / D::cols),
          stride(args.n_cols * 2 + 16),
          block_bytes(static_cast<int64_t>(args.n_cols / D::unit_k) * D::unit_bytes)
    {
    }
    /* Row block of turn i; they go round over the multiprocessors. */
    __device__ __forceinline__ int block(int i) const
    {
        int team = i * teams + warp / a.n_segs;
        return team * static_cast<int>(gridDim.x) + static_cast<int>(blockIdx.x);
    }
    __device__ __forceinline__ const uint8_t *from(int i) const
    {
        return a.w + block(i) * block_bytes +
               static_cast<int64_t>(seg * a.seg_cols / D::unit_k) * D::unit_bytes;
    }
    __device__ __forceinline__ void x_of(small_x<T> &x, int col) const
    {
#pragma unroll
        for (int t = 0; t < T; t++) {
            int token = 8 * t + (lane & 7);
            const uint8_t *row = smem + token * stride + (lane >> 3) * 16 + col * 2;
            bool live = token < a.n_tokens;
#pragma unroll
            for (int i = 0; i < 2; i++) {
                uint32_t v[4];
                sl_ldmatrix_x4(v, live ? row + 64 * i : smem + a.zeros);
                x.b[t][2 * i][0] = v[0];
                x.b[t][2 * i][1] = v[1];
                x.b[t][2 * i + 1][0] = v[2];
                x.b[t][2 * i + 1][1] = v[3];
                if (D::sums)
                    x.sum[t][i] = *reinterpret_cast<const float2 *>(
                        smem + a.sums + ((col / 32 + i) * T + t) * 32 + (lane & 3) * 8);
            }
        }
    }
    __device__ __forceinline__ void multiply(float (&acc)[T][4], const typename D::raw &r, int col)
    {
#pragma unroll
        for (int i = 0; i < D::cols / 64; i++) {
            small_x<T> x;
            x_of(x, col + 64 * i);
            D::template step<T>(acc, r, i, x);
        }
    }
    __device__ __forceinline__ void finish(float (&acc)[T][4], int i)
    {
        int team = warp / a.n_segs;
        float4 *swap = reinterpret_cast<float4 *>(smem + a.swap) + warp * T * 32 + lane;
        if (a.n_segs > 1) {
#pragma unroll
            for (int t = 0; t < T; t++)
                swap[t * 32] = make_float4(acc[t][0], acc[t][1], acc[t][2], acc[t][3]);
            sl_bar_sync(1 + team, 32 * a.n_segs);
            for (int s = 1; seg == 0 && s < a.n_segs; s++)
#pragma unroll
                for (int t = 0; t < T; t++) {
                    float4 v = swap[(s * T + t) * 32];
                    acc[t][0] = __fadd_rn(acc[t][0], v.x);
                    acc[t][1] = __fadd_rn(acc[t][1], v.y);
                    acc[t][2] = __fadd_rn(acc[t][2], v.z);
                    acc[t][3] = __fadd_rn(acc[t][3], v.w);
                }
            sl_bar_sync(1 + team, 32 * a.n_segs);
        }
#pragma unroll
        for (int t = 0; t < T; t++)
#pragma unroll
            for (int e = 0; e < 4; e++) {
                int row = block(i) * 16 + (lane >> 2) + 8 * (e >> 1);
                int token = 8 * t + 2 * (lane & 3) + (e & 1);
                if (seg == 0 && row < a.n_rows && token < a.n_tokens)
                    a.out[static_cast<int64_t>(token) * a.n_rows + row] = acc[t][e];
                acc[t][e] = 0.0f;
            }
    }
};

/* Tokens into shared memory, and their sums over 32 columns. */
template <class D, int T>
static __device__ __forceinline__ void small_bring(const small_args &a, uint8_t *smem)
{
    int n = a.n_cols / 8, stride = a.n_cols * 2 + 16, thread = static_cast<int>(threadIdx.x);
    for (int i = thread; i < a.n_tokens * n; i += 32 * SMALL_WARPS)
        sl_cp_async16(smem + i / n * stride + i % n * 16,
                      a.x + static_cast<int64_t>(i / n) * a.n_cols + i % n * 8, true);
    sl_cp_async_commit();
    if (thread < 4)
        reinterpret_cast<uint32_t *>(smem + a.zeros)[thread] = 0;
    sl_cp_async_wait<0>();
    __syncthreads();
    if constexpr (D::sums) {
        for (int i = thread; i < 8 * T * (a.n_cols / 32); i += 32 * SMALL_WARPS) {
            int token = i % (8 * T), group = i / (8 * T);
            const uint4 *from = reinterpret_cast<const uint4 *>(smem + token * stride + group * 64);
            float s = 0.0f;
            for (int j = 0; j < 16 && token < a.n_tokens; j++) {
                uint32_t v = sl_word(from[j / 4], j % 4);
                s = __fadd_rn(s, __uint_as_float(v << 16));
                s = __fadd_rn(s, __uint_as_float(v & 0xFFFF0000u));
            }
            reinterpret_cast<float *>(smem + a.sums)[i] = s;
        }
        __syncthreads();
    }
}

template <class D, int T>
__global__ void __launch_bounds__(32 * SMALL_WARPS, 1)
    small_kernel(const __grid_constant__ small_args a)
{
    SL_SMEM(uint8_t, smem);
    small_warp<D, T> w(a, smem);
    const int n_blocks = SL_CEIL_DIV(a.n_rows, 16), bytes = D::cols / D::unit_k * D::unit_bytes;
    int turn = 0, ahead = 0, left = w.iters; /* turns computed and fetched; iterations to fetch */
    bool more = w.block(0) < n_blocks;
    const uint8_t *next = w.from(0);
    typename D::raw even, odd;
    auto fetch = [&](typename D::raw &r) {
        if (!more)
            return;
        D::load(r, next, w.lane);
        next += bytes;
        if (--left == 0) {
            left = w.iters;
            more = w.block(++ahead) < n_blocks;
            next = w.from(ahead);
        }
    };
    fetch(even);
    fetch(odd);
    sl_grid_launch_dependents();
    sl_grid_wait();
    small_bring<D, T>(a, smem);
    float acc[T][4] = {};
    int k = 0, col0 = w.seg * a.seg_cols;
    auto pass = [&]() { /* true: no more */
                        if (++k < w.iters)
                            return false;
                        k = 0;
                        w.finish(acc, turn);
                        return w.block(++turn) >= n_blocks;
    };
    if (w.block(0) >= n_blocks)
        return;
#pragma unroll 1
    for (;;) {
        w.multiply(acc, even, col0 + k * D::cols);
        fetch(even);
        if (pass())
            break;
        w.multiply(acc, odd, col0 + k * D::cols);
        fetch(odd);
        if (pass())
            break;
    }
}

struct small_product {
    const void *w, *x;
    float *out;
    int n_rows, n_cols, n_tokens, n_segs;
};

/* False: the tokens do not fit. */
template <class D, int T> static bool small_run(const small_product &p)
{
    small_args a = {};
    a.w = (const uint8_t *)p.w;
    a.x = (const __nv_bfloat16 *)p.x;
    a.out = p.out;
    a.n_rows = p.n_rows;
    a.n_cols = p.n_cols;
    a.n_tokens = p.n_tokens;
    a.seg_cols = SL_ROUND_UP(SL_CEIL_DIV(p.n_cols, p.n_segs), 256);
    a.n_segs = SL_CEIL_DIV(p.n_cols, a.seg_cols);
    a.zeros = static_cast<uint32_t>(p.n_tokens * (p.n_cols * 2 + 16));
    a.sums = a.zeros + 16;
    a.swap = a.sums + (D::sums ? static_cast<uint32_t>(p.n_cols / 32 * T * 32) : 0u);
    size_t smem = a.swap + (a.n_segs > 1 ? SMALL_WARPS * T * 512u : 0u);
    if (smem > 232448)
        return false;
    sl_launch(&lab_cu, small_kernel<D, T>, dim3(static_cast<unsigned>(lab_cu.n_sms)),
              dim3(32 * SMALL_WARPS), smem, a);
    return true;
}

#endif
