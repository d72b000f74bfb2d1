/* SPDX-License-Identifier: MIT
 * weight_format.cuh - the weight-load traits: from a unit of a packed row block (weight.h) to A
 * fragments of mma.m16n8k16, once for every kernel.
 *
 * A trait has the unit's size, `raw` (what a lane holds of 64 columns before decoding), load() from
 * shared memory, or from device memory (FAR) that is read once, and frag(), which decodes step j of
 * the four; j is a constant after unrolling. Arithmetic is chosen so that a value is rounded
 * exactly as weight.h says: an integer code is put into the mantissa of a power of two by one byte
 * permutation, and one fma both removes that power and scales, because all products of it are exact
 * in float:
 *
 *   q8_0  x = 32768 + b, w = fma(d, x, -32896 d)   32896 = 2^7 257, d has 11 bits: 20 bits
 *   q4_0  x = 128 + q,   w = fma(d, x, -136 d)     15 bits
 *   q6_k  x = 128 + q,   w = fma(r, x, -160 r)     r = d * scale exact in 18 bits: 21 bits
 *   q5_k  w = fma(r, x - 128, -m)                  r and m exact; one rounding, as the reference
 *
 * or in pairs of bf16, two weights an instruction, where one logic instruction makes the pair x and
 * fma takes subnormal numbers as they are: codes in the lowest eight bits of a bf16 are 2^-133 of
 * what they count, without an offset, and those of FP8 at their place 2^-120:
 *
 *   q4_k, int4  w' = fma(x, s, m)       s scale, m value of code 0
 *   fp8         w' = fma(x, hi, x lo)
 *   mxfp4       w' = x s            codes at 2^-126, s a power of two
 *
 * w' = 2^-32 w, so that no scale below 2^27 that makes up for those powers is too large for a bf16
 * (a file's F16 ends at 2^16); the sums of products are as much smaller, and made whole at their
 * end.
 *
 * Instructions a weight, by count: 2.5 (q8_0), 2.9 (q4_0), 5.2 (q5_k), 4.3 (q6_k), 1.3 (q4_k,
 * int4), 2.3 (fp8), 2.2 (mxfp4), with 128 lanes a clock and SM to spend on at most 20
 * bytes of weights a clock. Of logic and permutations it is 64 lanes.
 */
#ifndef SL_CUDA_WEIGHT_FORMAT_CUH
#define SL_CUDA_WEIGHT_FORMAT_CUH

#include "cuda/gemm/weight.h"
#include "cuda/ptx_pair.cuh"

/* Fragments of some formats are so much smaller than the weights. */
#define SL_WF_FACTOR 0x1p32f
#define SL_WF_CODE   0x1p101f /* 2^133 / factor: the lowest bit of a bf16 counts 2^-133 */

static __device__ __forceinline__ float sl_half_bits(uint32_t h)
{
    return __half2float(__ushort_as_half(static_cast<unsigned short>(h & 0xFFFFu)));
}

static __device__ __forceinline__ uint32_t sl_pack_bf16(float lo, float hi)
{
    __nv_bfloat162 v = __floats2bfloat162_rn(lo, hi);
    return static_cast<uint32_t>(__bfloat16_as_ushort(v.x)) |
           static_cast<uint32_t>(__bfloat16_as_ushort(v.y)) << 16;
}

/* 128 + byte i of w, which is below 128. */
static __device__ __forceinline__ float sl_code128(uint32_t w, int i)
{
    return __uint_as_float(__byte_perm(w, 0x43000000u, 0x7054u | static_cast<uint32_t>(i) << 8));
}

/* 32768 + byte i of w. */
static __device__ __forceinline__ float sl_code32768(uint32_t w, int i)
{
    return __uint_as_float(__byte_perm(w, 0x47000000u, 0x7504u | static_cast<uint32_t>(i) << 4));
}

/* Codes: 16 bytes. FAR: of device memory, constant and read once. */
template <bool FAR = false> static __device__ __forceinline__ uint4 sl_load16(const uint8_t *p)
{
    if constexpr (FAR)
        return sl_load16_once(p);
    return *reinterpret_cast<const uint4 *>(p);
}

/* Scales, which several lanes read. */
template <bool FAR, class T> static __device__ __forceinline__ T sl_load_scales(const uint8_t *p)
{
    if constexpr (FAR)
        return __ldg(reinterpret_cast<const T *>(p));
    return *reinterpret_cast<const T *>(p);
}

/* Word i of v; i is a constant after unrolling. */
static __device__ __forceinline__ uint32_t sl_word(const uint4 &v, int i)
{
    return i == 0 ? v.x : i == 1 ? v.y : i == 2 ? v.z : v.w;
}

/* The bytes of nibbles 0..3 and 4..7 of a step's word. */
static __device__ __forceinline__ uint32_t sl_nibbles(uint32_t w, int upper)
{
    return (upper ? w >> 4 : w) & 0x0F0F0F0Fu;
}

/* Rows 0 to 7 first, then 8 to 15, [half][8 columns][row][16 bytes]: wgmma reads units in shared
 * memory as they lie (linear_tile.cuh), and ldmatrix makes fragments of them. */
struct sl_wf_bf16 {
    static constexpr int layout = SL_CUDA_BF16;
    static constexpr int unit_k = 64, unit_bytes = 2048, stage_units = 2;
    static constexpr bool coded = false;
    static constexpr float factor = 1.0f;
    static constexpr int half_bytes = 1024, column_bytes = 128;
    struct raw {
        uint32_t w[4][4]; /* steps */
    };
    /* Eight rows, in shared memory, as rows 0 to 7 (to 0) or 8 to 15 (1). */
    static __device__ __forceinline__ void load_half(raw &r, int to, const uint8_t *half, int lane)
    {
#pragma unroll
        for (int j = 0; j < 4; j += 2) {
            uint32_t v[4];
            sl_ldmatrix_x4(v, half + 2 * column_bytes * j + 16 * lane);
#pragma unroll
            for (int i = 0; i < 4; i++)
                r.w[j + i / 2][to + 2 * (i % 2)] = v[i];
        }
    }
    static __device__ __forceinline__ void load_shared(raw &r, const uint8_t *unit, int lane)
    {
        const uint8_t *at =
            unit + half_bytes * (lane >> 3 & 1) + column_bytes * (lane >> 4) + 16 * (lane & 7);
#pragma unroll
        for (int j = 0; j < 4; j++)
            sl_ldmatrix_x4(r.w[j], at + 2 * column_bytes * j);
    }
    template <bool FAR = false>
    static __device__ __forceinline__ void load(raw &r, const uint8_t *unit, int, int lane)
    {
#pragma unroll
        for (int i = 0; i < 16; i++)
            r.w[i / 4][i % 4] = *reinterpret_cast<const uint32_t *>(
                unit + half_bytes * (i % 2) + column_bytes * (i / 2) + 4 * lane);
    }
    static __device__ __forceinline__ void frag(const raw &r, int j, uint32_t a[4])
    {
#pragma unroll
        for (int i = 0; i < 4; i++)
            a[i] = r.w[j][i];
    }
};

/* Sums of products of such fragments, made whole. Exact, as the powers of two in them were. */
template <class F, int N, int M>
static __device__ __forceinline__ void sl_wf_restore(float (&sum)[N][M])
{
    if constexpr (F::factor != 1.0f) {
#pragma unroll
        for (int i = 0; i < N * M; i++)
            sum[i / M][i % M] = __fmul_rn(sum[i / M][i % M], F::factor);
    }
}

/* From shared memory. */
template <class F>
static __device__ __forceinline__ void sl_wf_load(typename F::raw &r, const uint8_t *unit, int sub,
                                                  int lane)
{
    if constexpr (F::coded)
        F::load(r, unit, sub, lane);
    else
        F::load_shared(r, unit, lane);
}

struct sl_wf_q8_0 {
    static constexpr int layout = SL_CUDA_Q8_0;
    static constexpr int unit_k = 64, unit_bytes = 1088, stage_units = 2;
    static constexpr bool coded = true;
    static constexpr float factor = 1.0f;
    struct raw {
        uint4 q[2];
        uint2 d; /* rows g and g + 8, two blocks each */
    };
    template <bool FAR = false>
    static __device__ __forceinline__ void load(raw &r, const uint8_t *unit, int, int lane)
    {
        r.q[0] = sl_load16<FAR>(unit + 16 * lane);
        r.q[1] = sl_load16<FAR>(unit + 16 * lane + 512);
        r.d = sl_load_scales<FAR, uint2>(unit + 8 * (lane >> 2) + 1024);
    }
    static __device__ __forceinline__ void frag(const raw &r, int j, uint32_t a[4])
    {
        int shift = 16 * (j >> 1);
        float d[2] = {sl_half_bits(r.d.x >> shift), sl_half_bits(r.d.y >> shift)};
        float c[2] = {__fmul_rn(d[0], -32896.0f), __fmul_rn(d[1], -32896.0f)};
#pragma unroll
        for (int i = 0; i < 4; i++) {
            uint32_t w = sl_word(r.q[j >> 1], 2 * (j & 1) + (i >> 1));
            int row = i & 1, byte = 2 * (i & 1);
            a[i] = sl_pack_bf16(__fmaf_rn(d[row], sl_code32768(w, byte), c[row]),
                                __fmaf_rn(d[row], sl_code32768(w, byte + 1), c[row]));
        }
    }
};

struct sl_wf_q4_0 {
    static constexpr int layout = SL_CUDA_Q4_0;
    static constexpr int unit_k = 64, unit_bytes = 576, stage_units = 4;
    static constexpr bool coded = true;
    static constexpr float factor = 1.0f;
    struct raw {
        uint4 q;
        uint2 d;
    };
    template <bool FAR = false>
    static __device__ __forceinline__ void load(raw &r, const uint8_t *unit, int, int lane)
    {
        r.q = sl_load16<FAR>(unit + 16 * lane);
        r.d = sl_load_scales<FAR, uint2>(unit + 8 * (lane >> 2) + 512);
    }
    static __device__ __forceinline__ void frag(const raw &r, int j, uint32_t a[4])
    {
        int shift = 16 * (j >> 1);
        float d[2] = {sl_half_bits(r.d.x >> shift), sl_half_bits(r.d.y >> shift)};
        float c[2] = {__fmul_rn(d[0], -136.0f), __fmul_rn(d[1], -136.0f)};
#pragma unroll
        for (int i = 0; i < 4; i++) {
            uint32_t w = sl_nibbles(sl_word(r.q, j), i >> 1);
            int row = i & 1, byte = 2 * (i & 1);
            a[i] = sl_pack_bf16(__fmaf_rn(d[row], sl_code128(w, byte), c[row]),
                                __fmaf_rn(d[row], sl_code128(w, byte + 1), c[row]));
        }
    }
};

/* Step j of codes in pairs, pair i at bits 4 i and 16 after it. One of odd i is left where it is,
 * 16 times as large: its row has no other. Heads: m, and above it the scale. */
static __device__ __forceinline__ void sl_nibble_frag(uint32_t w, const uint32_t heads[2],
                                                      uint32_t a[4])
{
    const uint32_t upper = w >> 8;
#pragma unroll
    for (int i = 0; i < 4; i++)
        a[i] = sl_fma_pair((i < 2 ? w : upper) & (i & 1 ? 0x00F000F0u : 0x000F000Fu),
                           sl_twice(heads[i & 1], 1), sl_twice(heads[i & 1], 0));
}

struct sl_wf_int4_g128 {
    static constexpr int layout = SL_CUDA_INT4_G128;
    static constexpr int unit_k = 128, unit_bytes = 1088, stage_units = 2;
    static constexpr bool coded = true;
    static constexpr float factor = SL_WF_FACTOR;
    struct raw {
        uint4 q;
        uint2 h;
    };
    template <bool FAR = false>
    static __device__ __forceinline__ void load(raw &r, const uint8_t *unit, int sub, int lane)
    {
        r.q = sl_load16<FAR>(unit + 16 * lane + 512 * sub);
        r.h = sl_load_scales<FAR, uint2>(unit + 8 * (lane >> 2) + 1024);
    }
    static __device__ __forceinline__ void frag(const raw &r, int j, uint32_t a[4])
    {
        const uint32_t heads[2] = {r.h.x, r.h.y};
        sl_nibble_frag(sl_word(r.q, j), heads, a);
    }
};

struct sl_wf_int4_g32 {
    static constexpr int layout = SL_CUDA_INT4_G32;
    static constexpr int unit_k = 64, unit_bytes = 640, stage_units = 4;
    static constexpr bool coded = true;
    static constexpr float factor = SL_WF_FACTOR;
    struct raw {
        uint4 q;
        uint4 h; /* row g: two groups, row g + 8 */
    };
    template <bool FAR = false>
    static __device__ __forceinline__ void load(raw &r, const uint8_t *unit, int, int lane)
    {
        r.q = sl_load16<FAR>(unit + 16 * lane);
        r.h = sl_load_scales<FAR, uint4>(unit + 16 * (lane >> 2) + 512);
    }
    static __device__ __forceinline__ void frag(const raw &r, int j, uint32_t a[4])
    {
        const uint32_t heads[2] = {j < 2 ? r.h.x : r.h.y, j < 2 ? r.h.z : r.h.w};
        sl_nibble_frag(sl_word(r.q, j), heads, a);
    }
};

struct sl_wf_q4_k {
    static constexpr int layout = SL_CUDA_Q4_K;
    static constexpr int unit_k = 256, unit_bytes = 2560, stage_units = 1;
    static constexpr bool coded = true;
    static constexpr float factor = SL_WF_FACTOR;
    struct raw {
        uint4 q;
        uint4 h; /* row g: two runs, row g + 8 */
    };
    template <bool FAR = false>
    static __device__ __forceinline__ void load(raw &r, const uint8_t *unit, int sub, int lane)
    {
        r.q = sl_load16<FAR>(unit + 16 * lane + 512 * sub);
        r.h = sl_load_scales<FAR, uint4>(unit + 16 * (lane >> 2) + 2048 + 128 * sub);
    }
    static __device__ __forceinline__ void frag(const raw &r, int j, uint32_t a[4])
    {
        const uint32_t heads[2] = {j < 2 ? r.h.x : r.h.y, j < 2 ? r.h.z : r.h.w};
        sl_nibble_frag(sl_word(r.q, j), heads, a);
    }
};

/* Scales and minima of a row's two runs of 32 columns: byte 0 and 1 the scales, 2 and 3 the minima.
 * The 16 bytes of a row are d and dmin, then three words. Word s < 3 has the fields of columns
 * 64 s .. 64 s + 63 in the low six bits of its bytes; those of the last 64 columns lie in the upper
 * two bits of all three, lowest bits in the first. */
static __device__ __forceinline__ uint32_t sl_qk_fields(const uint4 &row, int sub)
{
    if (sub == 3)
        return (row.y >> 6 & 0x03030303u) | (row.z >> 4 & 0x0C0C0C0Cu) | (row.w >> 2 & 0x30303030u);
    return (sub == 0 ? row.y : sub == 1 ? row.z : row.w) & 0x3F3F3F3Fu;
}

struct sl_qk_rows { /* of rows g and g + 8 */
    uint32_t d[2], fields[2];
};

template <bool FAR>
static __device__ __forceinline__ void sl_qk_load_rows(sl_qk_rows &r, const uint8_t *rows, int sub,
                                                       int lane)
{
#pragma unroll
    for (int i = 0; i < 2; i++) {
        uint4 v = sl_load_scales<FAR, uint4>(rows + 16 * ((lane >> 2) + 8 * i));
        r.d[i] = v.x;
        r.fields[i] = sl_qk_fields(v, sub);
    }
}

static __device__ __forceinline__ float sl_byte_float(uint32_t w, int i)
{
    return static_cast<float>(w >> 8 * i & 0xFFu);
}

/* Step j of codes in bytes: lo has elements 0..3, hi 4..7. */
static __device__ __forceinline__ void sl_qk_frag(const sl_qk_rows &r, int j, uint32_t lo,
                                                  uint32_t hi, uint32_t a[4])
{
    float d[2], m[2];
#pragma unroll
    for (int i = 0; i < 2; i++) {
        d[i] = __fmul_rn(sl_half_bits(r.d[i]), sl_byte_float(r.fields[i], j >> 1));
        m[i] = __fmul_rn(sl_half_bits(r.d[i] >> 16), sl_byte_float(r.fields[i], 2 + (j >> 1)));
    }
#pragma unroll
    for (int i = 0; i < 4; i++) {
        uint32_t w = i < 2 ? lo : hi;
        int row = i & 1, byte = 2 * (i & 1);
        float q0 = __fadd_rn(sl_code128(w, byte), -128.0f);
        float q1 = __fadd_rn(sl_code128(w, byte + 1), -128.0f);
        a[i] = sl_pack_bf16(__fmaf_rn(d[row], q0, -m[row]), __fmaf_rn(d[row], q1, -m[row]));
    }
}

/* The fifth bits: group 2 j + (e >> 2) of four elements has bit `group` of every byte. */
struct sl_wf_q5_k {
    static constexpr int layout = SL_CUDA_Q5_K;
    static constexpr int unit_k = 256, unit_bytes = 2816, stage_units = 1;
    static constexpr bool coded = true;
    static constexpr float factor = 1.0f;
    struct raw {
        uint4 q;
        uint32_t h;
        sl_qk_rows rows;
    };
    template <bool FAR = false>
    static __device__ __forceinline__ void load(raw &r, const uint8_t *unit, int sub, int lane)
    {
        r.q = sl_load16<FAR>(unit + 16 * lane + 512 * sub);
        r.h = sl_load_scales<FAR, uint32_t>(unit + 4 * lane + 2048 + 128 * sub);
        sl_qk_load_rows<FAR>(r.rows, unit + 2560, sub, lane);
    }
    static __device__ __forceinline__ uint32_t fifth(uint32_t h, int group)
    {
        return (group < 4 ? h << (4 - group) : h >> (group - 4)) & 0x10101010u;
    }
    static __device__ __forceinline__ void frag(const raw &r, int j, uint32_t a[4])
    {
        uint32_t w = sl_word(r.q, j);
        sl_qk_frag(r.rows, j, sl_nibbles(w, 0) | fifth(r.h, 2 * j),
                   sl_nibbles(w, 1) | fifth(r.h, 2 * j + 1), a);
    }
};

/* The upper pairs of bits: group 2 j + (e >> 2) has bits 2 (group & 3) of every byte of word
 * group >> 2. A step has one scale a row. */
struct sl_wf_q6_k {
    static constexpr int layout = SL_CUDA_Q6_K;
    static constexpr int unit_k = 256, unit_bytes = 3360, stage_units = 1;
    static constexpr bool coded = true;
    static constexpr float factor = 1.0f;
    struct raw {
        uint4 q;
        uint2 h;
        uint32_t scale[2], d[2];
    };
    template <bool FAR = false>
    static __device__ __forceinline__ void load(raw &r, const uint8_t *unit, int sub, int lane)
    {
        r.q = sl_load16<FAR>(unit + 16 * lane + 512 * sub);
        r.h = sl_load_scales<FAR, uint2>(unit + 8 * lane + 2048 + 256 * sub);
#pragma unroll
        for (int i = 0; i < 2; i++) {
            int row = (lane >> 2) + 8 * i;
            r.scale[i] = sl_load_scales<FAR, uint32_t>(unit + 3072 + 16 * row + 4 * sub);
            r.d[i] = sl_load_scales<FAR, uint16_t>(unit + 3328 + 2 * row);
        }
    }
    static __device__ __forceinline__ uint32_t upper(const uint2 &h, int group)
    {
        uint32_t w = group < 4 ? h.x : h.y;
        int bit = 2 * (group & 3);
        return (bit < 4 ? w << (4 - bit) : w >> (bit - 4)) & 0x30303030u;
    }
    static __device__ __forceinline__ void frag(const raw &r, int j, uint32_t a[4])
    {
        float d[2], c[2];
#pragma unroll
        for (int i = 0; i < 2; i++) {
            float f = sl_half_bits(r.d[i]);
            d[i] = __fmaf_rn(f, sl_code32768(r.scale[i], j), __fmul_rn(f, -32896.0f));
            c[i] = __fmul_rn(d[i], -160.0f);
        }
        uint32_t w = sl_word(r.q, j);
        uint32_t lo = sl_nibbles(w, 0) | upper(r.h, 2 * j);
        uint32_t hi = sl_nibbles(w, 1) | upper(r.h, 2 * j + 1);
#pragma unroll
        for (int i = 0; i < 4; i++) {
            uint32_t q = i < 2 ? lo : hi;
            int row = i & 1, byte = 2 * (i & 1);
            a[i] = sl_pack_bf16(__fmaf_rn(d[row], sl_code128(q, byte), c[row]),
                                __fmaf_rn(d[row], sl_code128(q, byte + 1), c[row]));
        }
    }
};

/* The bits of a code in a bf16 are 2^-120 of its value, subnormal ones too. A word has a pair as it
 * is, and one that fills what that leaves free: sign in bit 11, the exponent's upper bits in 12 to
 * 14, the rest in 0 to 3 of both halves. A scale is the sum of two bf16, the larger one below. */
struct sl_wf_fp8 {
    static constexpr int layout = SL_CUDA_FP8;
    static constexpr int unit_k = 128, unit_bytes = 2112, stage_units = 1;
    static constexpr bool coded = true;
    static constexpr float factor = SL_WF_FACTOR;
    struct raw {
        uint4 q[2];
        uint2 s; /* rows g and g + 8 */
    };
    template <bool FAR = false>
    static __device__ __forceinline__ void load(raw &r, const uint8_t *unit, int sub, int lane)
    {
        r.q[0] = sl_load16<FAR>(unit + 16 * lane + 1024 * sub);
        r.q[1] = sl_load16<FAR>(unit + 16 * lane + 1024 * sub + 512);
        r.s = sl_load_scales<FAR, uint2>(unit + 8 * (lane >> 2) + 2048);
    }
    static __device__ __forceinline__ uint32_t pair(uint32_t w, int i)
    {
        if (i == 0)
            return w & 0x87F087F0u;
        return sl_mask_or(w << 4, 0x80F080F0u, w >> 4 & 0x07000700u);
    }
    static __device__ __forceinline__ void frag(const raw &r, int j, uint32_t a[4])
    {
#pragma unroll
        for (int i = 0; i < 4; i++) {
            uint32_t s = i & 1 ? r.s.y : r.s.x;
            uint32_t x = pair(sl_word(r.q[j >> 1], 2 * (j & 1) + (i >> 1)), i & 1);
            a[i] = sl_fma_pair(x, sl_twice(s, 0), sl_mul_pair(x, sl_twice(s, 1)));
        }
    }
};

/* A code's sign, exponent and mantissa are those of a bf16 that is 2^-126 of its value, subnormal
 * ones too, at bits 15 and 8 to 6. A half of a word has four codes, of pair i:
 *
 *   0  where they belong      1  three bits lower      2  six bits lower
 *   3  what that leaves: sign in bit 14, exponent in 13 and 11, mantissa in 10
 *
 * Exponents are those of bf16, so that scales reach from 2^-127 to 2^33; larger ones count as 2^33.
 * A product below 2^-101 may be rounded. */
struct sl_wf_mxfp4 {
    static constexpr int layout = SL_CUDA_MXFP4;
    static constexpr int unit_k = 64, unit_bytes = 544, stage_units = 4;
    static constexpr bool coded = true;
    static constexpr float factor = SL_WF_FACTOR;
    static constexpr int bias =
        126 - 32; /* of an exponent: the codes' power without the factor's */
    struct raw {
        uint4 q;
        uint32_t h; /* row g: two blocks, row g + 8 */
    };
    template <bool FAR = false>
    static __device__ __forceinline__ void load(raw &r, const uint8_t *unit, int, int lane)
    {
        r.q = sl_load16<FAR>(unit + 16 * lane);
        r.h = sl_load_scales<FAR, uint32_t>(unit + 4 * (lane >> 2) + 512);
    }
    static __device__ __forceinline__ uint32_t pair(uint32_t w, int i)
    {
        if (i < 3)
            return w << 3 * i & 0x81C081C0u;
        return sl_mask_or(w << 1, 0x80008000u,
                          sl_mask_or(w >> 5, 0x01000100u, w >> 4 & 0x00C000C0u));
    }
    static __device__ __forceinline__ void frag(const raw &r, int j, uint32_t a[4])
    {
        uint32_t scale[2];
#pragma unroll
        for (int i = 0; i < 2; i++) /* byte j / 2 of the row's two, in both halves */
            scale[i] =
                __byte_perm(r.h, 0, 0x4040u + 0x0101u * static_cast<uint32_t>(2 * i + (j >> 1)))
                << 7;
#pragma unroll
        for (int i = 0; i < 4; i++)
            a[i] = sl_mul_pair(pair(sl_word(r.q, j), i), scale[i & 1]);
    }
};

#endif
