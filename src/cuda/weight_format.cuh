/* SPDX-License-Identifier: MIT
 * weight_format.cuh - the weight-load traits: from a unit of a packed row block (weight.h) to A
 * fragments of mma.m16n8k16, once for every kernel.
 *
 * A trait has the unit's size, `raw` (what a lane holds of 64 columns before decoding), load() from
 * shared or global memory and frag(), which decodes step j of the four; j is a constant after
 * unrolling. Arithmetic is chosen so that a value is rounded exactly as the reference decode and
 * then to bf16: an integer code is put into the mantissa of a power of two by one byte permutation,
 * and one fma both removes that power and scales, because all products of it are exact in float:
 *
 *   q8_0  x = 32768 + b, w = fma(d, x, -32896 d)   32896 = 2^7 257, d has 11 bits: 20 bits
 *   q4_0  x = 128 + q,   w = fma(d, x, -136 d)     15 bits
 *   int4  x = 128 + q,   w = fma(s, x, -(128 + z) s)   s has 16 bits: 24 bits, as has (128 + z) s
 *   q6_k  x = 128 + q,   w = fma(r, x, -160 r)     r = d * scale exact in 18 bits: 21 bits
 *   q4_k  w = fma(r, x - 128, -m), q5_k too        r and m exact; one rounding, as the reference
 *   fp8   w = x s, x the code as f16               one rounding, as the reference
 *
 * Instructions a weight, by count: 2.5 (q8_0), 2.9 (q4_0, int4), 4.7 (q4_k), 5.2 (q5_k), 4.3 (q6_k,
 * fp8), with 128 lanes a clock and multiprocessor to spend on at most 20 bytes of weights a clock.
 */
#ifndef SL_CUDA_WEIGHT_FORMAT_CUH
#define SL_CUDA_WEIGHT_FORMAT_CUH

#include "cuda/ptx.cuh"
#include "cuda/weight.h"

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

static __device__ __forceinline__ uint4 sl_load16(const uint8_t *p)
{
    return *reinterpret_cast<const uint4 *>(p);
}

static __device__ __forceinline__ uint2 sl_load8(const uint8_t *p)
{
    return *reinterpret_cast<const uint2 *>(p);
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

/* Rows 0 to 7 first, then 8 to 15, [half][two k16][lane][16 bytes]: a warp may take the upper half
 * of one row block and the lower of another as its 16 rows (linear_wg.cuh). */
struct sl_wf_bf16 {
    static constexpr int layout = SL_CUDA_BF16;
    static constexpr int unit_k = 64, unit_bytes = 2048, stage_units = 2;
    static constexpr bool coded = false;
    static constexpr int half_bytes = 1024;
    struct raw {
        uint4 w[2][2];
    };
    static __device__ __forceinline__ void load_half(raw &r, int to, const uint8_t *half, int lane)
    {
#pragma unroll
        for (int i = 0; i < 2; i++)
            r.w[to][i] = sl_load16(half + 512 * i + 16 * lane);
    }
    static __device__ __forceinline__ void load(raw &r, const uint8_t *unit, int, int lane)
    {
        load_half(r, 0, unit, lane);
        load_half(r, 1, unit + half_bytes, lane);
    }
    /* Steps 2 h and 2 h + 1 of rows 0 to 7 and 8 to 15, at once. */
    static __device__ __forceinline__ void load_two(uint32_t (*a)[4], const uint8_t *low,
                                                    const uint8_t *high, int h, int lane)
    {
        const uint4 q[2] = {sl_load16(low + 512 * h + 16 * lane),
                            sl_load16(high + 512 * h + 16 * lane)};
#pragma unroll
        for (int i = 0; i < 8; i++)
            a[i / 4][i % 4] = sl_word(q[i & 1], 2 * (i / 4) + (i % 4 >> 1));
    }
    static __device__ __forceinline__ void frag(const raw &r, int j, uint32_t a[4])
    {
#pragma unroll
        for (int i = 0; i < 4; i++)
            a[i] = sl_word(r.w[i & 1][j >> 1], 2 * (j & 1) + (i >> 1));
    }
};

struct sl_wf_q8_0 {
    static constexpr int layout = SL_CUDA_Q8_0;
    static constexpr int unit_k = 64, unit_bytes = 1088, stage_units = 2;
    static constexpr bool coded = true;
    struct raw {
        uint4 q[2];
        uint2 d; /* rows g and g + 8, two blocks each */
    };
    static __device__ __forceinline__ void load(raw &r, const uint8_t *unit, int, int lane)
    {
        r.q[0] = sl_load16(unit + 16 * lane);
        r.q[1] = sl_load16(unit + 512 + 16 * lane);
        r.d = sl_load8(unit + 1024 + 8 * (lane >> 2));
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
    struct raw {
        uint4 q;
        uint2 d;
    };
    static __device__ __forceinline__ void load(raw &r, const uint8_t *unit, int, int lane)
    {
        r.q = sl_load16(unit + 16 * lane);
        r.d = sl_load8(unit + 512 + 8 * (lane >> 2));
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

/* Step j of groups of which heads says scale and zero point, of rows g and g + 8. */
static __device__ __forceinline__ void sl_int4_frag(uint32_t w, const uint32_t heads[2],
                                                    uint32_t a[4])
{
    float d[2], c[2];
#pragma unroll
    for (int i = 0; i < 2; i++) {
        d[i] = __uint_as_float(heads[i] & 0xFFFFFF00u);
        c[i] = -__fmul_rn(d[i], sl_code128(heads[i], 0));
    }
#pragma unroll
    for (int i = 0; i < 4; i++) {
        uint32_t q = sl_nibbles(w, i >> 1);
        int row = i & 1, byte = 2 * (i & 1);
        a[i] = sl_pack_bf16(__fmaf_rn(d[row], sl_code128(q, byte), c[row]),
                            __fmaf_rn(d[row], sl_code128(q, byte + 1), c[row]));
    }
}

struct sl_wf_int4_g128 {
    static constexpr int layout = SL_CUDA_INT4_G128;
    static constexpr int unit_k = 128, unit_bytes = 1088, stage_units = 2;
    static constexpr bool coded = true;
    struct raw {
        uint4 q;
        uint2 h;
    };
    static __device__ __forceinline__ void load(raw &r, const uint8_t *unit, int sub, int lane)
    {
        r.q = sl_load16(unit + 512 * sub + 16 * lane);
        r.h = sl_load8(unit + 1024 + 8 * (lane >> 2));
    }
    static __device__ __forceinline__ void frag(const raw &r, int j, uint32_t a[4])
    {
        const uint32_t heads[2] = {r.h.x, r.h.y};
        sl_int4_frag(sl_word(r.q, j), heads, a);
    }
};

struct sl_wf_int4_g32 {
    static constexpr int layout = SL_CUDA_INT4_G32;
    static constexpr int unit_k = 64, unit_bytes = 640, stage_units = 4;
    static constexpr bool coded = true;
    struct raw {
        uint4 q;
        uint4 h; /* row g: two groups, row g + 8 */
    };
    static __device__ __forceinline__ void load(raw &r, const uint8_t *unit, int, int lane)
    {
        r.q = sl_load16(unit + 16 * lane);
        r.h = sl_load16(unit + 512 + 16 * (lane >> 2));
    }
    static __device__ __forceinline__ void frag(const raw &r, int j, uint32_t a[4])
    {
        const uint32_t heads[2] = {j < 2 ? r.h.x : r.h.y, j < 2 ? r.h.z : r.h.w};
        sl_int4_frag(sl_word(r.q, j), heads, a);
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

static __device__ __forceinline__ void sl_qk_load_rows(sl_qk_rows &r, const uint8_t *rows, int sub,
                                                       int lane)
{
#pragma unroll
    for (int i = 0; i < 2; i++) {
        uint4 v = sl_load16(rows + 16 * ((lane >> 2) + 8 * i));
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

struct sl_wf_q4_k {
    static constexpr int layout = SL_CUDA_Q4_K;
    static constexpr int unit_k = 256, unit_bytes = 2304, stage_units = 1;
    static constexpr bool coded = true;
    struct raw {
        uint4 q;
        sl_qk_rows rows;
    };
    static __device__ __forceinline__ void load(raw &r, const uint8_t *unit, int sub, int lane)
    {
        r.q = sl_load16(unit + 512 * sub + 16 * lane);
        sl_qk_load_rows(r.rows, unit + 2048, sub, lane);
    }
    static __device__ __forceinline__ void frag(const raw &r, int j, uint32_t a[4])
    {
        uint32_t w = sl_word(r.q, j);
        sl_qk_frag(r.rows, j, sl_nibbles(w, 0), sl_nibbles(w, 1), a);
    }
};

/* The fifth bits: group 2 j + (e >> 2) of four elements has bit `group` of every byte. */
struct sl_wf_q5_k {
    static constexpr int layout = SL_CUDA_Q5_K;
    static constexpr int unit_k = 256, unit_bytes = 2816, stage_units = 1;
    static constexpr bool coded = true;
    struct raw {
        uint4 q;
        uint32_t h;
        sl_qk_rows rows;
    };
    static __device__ __forceinline__ void load(raw &r, const uint8_t *unit, int sub, int lane)
    {
        r.q = sl_load16(unit + 512 * sub + 16 * lane);
        r.h = *reinterpret_cast<const uint32_t *>(unit + 2048 + 128 * sub + 4 * lane);
        sl_qk_load_rows(r.rows, unit + 2560, sub, lane);
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
    struct raw {
        uint4 q;
        uint2 h;
        uint32_t scale[2], d[2];
    };
    static __device__ __forceinline__ void load(raw &r, const uint8_t *unit, int sub, int lane)
    {
        r.q = sl_load16(unit + 512 * sub + 16 * lane);
        r.h = sl_load8(unit + 2048 + 256 * sub + 8 * lane);
#pragma unroll
        for (int i = 0; i < 2; i++) {
            int row = (lane >> 2) + 8 * i;
            r.scale[i] = *reinterpret_cast<const uint32_t *>(unit + 3072 + 16 * row + 4 * sub);
            r.d[i] = *reinterpret_cast<const uint16_t *>(unit + 3328 + 2 * row);
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

/* With four more bits of fraction a code is the f16 number 2^-8 of its value, subnormal ones too;
 * the product of that and the scale times 2^8 is rounded as the reference's. */
struct sl_wf_fp8 {
    static constexpr int layout = SL_CUDA_FP8;
    static constexpr int unit_k = 128, unit_bytes = 2112, stage_units = 1;
    static constexpr bool coded = true;
    struct raw {
        uint4 q[2];
        float2 s; /* rows g and g + 8 */
    };
    static __device__ __forceinline__ void load(raw &r, const uint8_t *unit, int sub, int lane)
    {
        r.q[0] = sl_load16(unit + 1024 * sub + 16 * lane);
        r.q[1] = sl_load16(unit + 1024 * sub + 512 + 16 * lane);
        uint2 s = sl_load8(unit + 2048 + 8 * (lane >> 2));
        r.s = make_float2(__uint_as_float(s.x), __uint_as_float(s.y));
    }
    static __device__ __forceinline__ void frag(const raw &r, int j, uint32_t a[4])
    {
#pragma unroll
        for (int i = 0; i < 4; i++) {
            uint32_t w = sl_word(r.q[j >> 1], 2 * (j & 1) + (i >> 1)) << 8 * (i & 1);
            uint32_t h = (w & 0x80008000u) | (w >> 1 & 0x3F803F80u);
            float s = i & 1 ? r.s.y : r.s.x;
            a[i] = sl_pack_bf16(__fmul_rn(sl_half_bits(h), s), __fmul_rn(sl_half_bits(h >> 16), s));
        }
    }
};

#endif
