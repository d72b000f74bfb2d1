/* SPDX-License-Identifier: MIT
 * sim_math.h - CUDA's integer and float intrinsics. Included by sim_device.h. The _rn functions
 * are exact IEEE operations as on the device; rsqrtf and the __fast ones are not the device's bits.
 */
#ifndef SL_SIM_MATH_H
#define SL_SIM_MATH_H

template <typename To, typename From> static inline To sl_sim_bits(From v)
{
    static_assert(sizeof(To) == sizeof(From), "same size");
    To r;
    memcpy(&r, &v, sizeof r);
    return r;
}
static inline unsigned __float_as_uint(float v)
{
    return sl_sim_bits<unsigned>(v);
}
static inline int __float_as_int(float v)
{
    return sl_sim_bits<int>(v);
}
static inline float __uint_as_float(unsigned v)
{
    return sl_sim_bits<float>(v);
}
static inline float __int_as_float(int v)
{
    return sl_sim_bits<float>(v);
}
static inline long long __double_as_longlong(double v)
{
    return sl_sim_bits<long long>(v);
}
static inline double __longlong_as_double(long long v)
{
    return sl_sim_bits<double>(v);
}

static inline int __popc(unsigned v)
{
    return __builtin_popcount(v);
}
static inline int __popcll(unsigned long long v)
{
    return __builtin_popcountll(v);
}
static inline int __clz(int v)
{
    return v ? __builtin_clz(static_cast<unsigned>(v)) : 32;
}
static inline int __clzll(long long v)
{
    return v ? __builtin_clzll(static_cast<unsigned long long>(v)) : 64;
}
static inline int __ffs(int v)
{
    return __builtin_ffs(v);
}
static inline int __ffsll(long long v)
{
    return __builtin_ffsll(v);
}
static inline unsigned __brev(unsigned v)
{
    unsigned r = 0;
    for (int i = 0; i < 32; i++)
        r |= (v >> i & 1u) << (31 - i);
    return r;
}
static inline unsigned __byte_perm(unsigned a, unsigned b, unsigned s)
{
    uint64_t both = static_cast<uint64_t>(b) << 32 | a;
    unsigned r = 0;
    for (int i = 0; i < 4; i++) {
        unsigned sel = s >> (4 * i) & 15u;
        unsigned byte = static_cast<unsigned>(both >> (8 * (sel & 7u))) & 255u;
        if (sel & 8u)
            byte = byte & 128u ? 255u : 0u;
        r |= byte << (8 * i);
    }
    return r;
}
static inline int __dp4a(int a, int b, int c)
{
    unsigned sum = static_cast<unsigned>(c);
    for (int i = 0; i < 4; i++)
        sum += static_cast<unsigned>(static_cast<int8_t>(static_cast<unsigned>(a) >> (8 * i)) *
                                     static_cast<int8_t>(static_cast<unsigned>(b) >> (8 * i)));
    return static_cast<int>(sum);
}
static inline unsigned __dp4a(unsigned a, unsigned b, unsigned c)
{
    for (int i = 0; i < 4; i++)
        c += (a >> (8 * i) & 255u) * (b >> (8 * i) & 255u);
    return c;
}
static inline int __mulhi(int a, int b)
{
    return static_cast<int>(static_cast<int64_t>(a) * b >> 32);
}
static inline unsigned __umulhi(unsigned a, unsigned b)
{
    return static_cast<unsigned>(static_cast<uint64_t>(a) * b >> 32);
}
static inline unsigned long long __umul64hi(unsigned long long a, unsigned long long b)
{
    return static_cast<unsigned long long>(static_cast<unsigned __int128>(a) * b >> 64);
}
static inline unsigned __funnelshift_l(unsigned lo, unsigned hi, unsigned n)
{
    return static_cast<unsigned>(((static_cast<uint64_t>(hi) << 32 | lo) << (n & 31u)) >> 32);
}
static inline unsigned __funnelshift_r(unsigned lo, unsigned hi, unsigned n)
{
    return static_cast<unsigned>((static_cast<uint64_t>(hi) << 32 | lo) >> (n & 31u));
}

static inline float __fmaf_rn(float a, float b, float c)
{
    return fmaf(a, b, c);
}
static inline float __fmul_rn(float a, float b)
{
    return a * b;
}
static inline float __fadd_rn(float a, float b)
{
    return a + b;
}
static inline float __fsub_rn(float a, float b)
{
    return a - b;
}
static inline float __fdiv_rn(float a, float b)
{
    return a / b;
}
static inline float __frcp_rn(float a)
{
    return 1.0f / a;
}
static inline float __fsqrt_rn(float a)
{
    return sqrtf(a);
}
static inline double __dmul_rn(double a, double b)
{
    return a * b;
}
static inline double __dadd_rn(double a, double b)
{
    return a + b;
}
static inline double __dsub_rn(double a, double b)
{
    return a - b;
}
static inline double __ddiv_rn(double a, double b)
{
    return a / b;
}
static inline double __fma_rn(double a, double b, double c)
{
    return fma(a, b, c);
}
static inline double __dsqrt_rn(double a)
{
    return sqrt(a);
}
static inline float rsqrtf(float a)
{
    return static_cast<float>(1.0 / sqrt(static_cast<double>(a)));
}
static inline float __frsqrt_rn(float a)
{
    return rsqrtf(a);
}
/* The C library declares functions of these names. */
#define __expf(x)  expf(x)
#define __exp2f(x) exp2f(x)
#define __logf(x)  logf(x)
#define __log2f(x) log2f(x)
static inline float __fdividef(float a, float b)
{
    return a / b;
}
static inline float __saturatef(float a)
{
    return a > 1.0f ? 1.0f : a > 0.0f ? a : 0.0f;
}

/* Conversions to integers clamp and take NaN to 0, as the device's do. */
template <typename I> static inline I sl_sim_to_int(double v)
{
    if (v != v)
        return 0;
    double lo = static_cast<double>(
        static_cast<I>(static_cast<I>(-1) < 0 ? I(1) << (sizeof(I) * 8 - 2) : 0));
    lo = static_cast<I>(-1) < 0 ? -2.0 * lo : 0.0;
    double hi = ldexp(1.0, static_cast<int>(sizeof(I) * 8) - (static_cast<I>(-1) < 0 ? 1 : 0));
    I max = static_cast<I>(-1) < 0
                ? static_cast<I>(~(static_cast<typename std::make_unsigned<I>::type>(1)
                                   << (sizeof(I) * 8 - 1)))
                : static_cast<I>(-1);
    if (v >= hi)
        return max;
    if (v <= lo)
        return static_cast<I>(lo);
    return static_cast<I>(v);
}
static inline int __float2int_rn(float v)
{
    return sl_sim_to_int<int>(nearbyint(static_cast<double>(v)));
}
static inline int __float2int_rz(float v)
{
    return sl_sim_to_int<int>(trunc(static_cast<double>(v)));
}
static inline int __float2int_rd(float v)
{
    return sl_sim_to_int<int>(floor(static_cast<double>(v)));
}
static inline int __float2int_ru(float v)
{
    return sl_sim_to_int<int>(ceil(static_cast<double>(v)));
}
static inline unsigned __float2uint_rn(float v)
{
    return sl_sim_to_int<unsigned>(nearbyint(static_cast<double>(v)));
}
static inline unsigned __float2uint_rz(float v)
{
    return sl_sim_to_int<unsigned>(trunc(static_cast<double>(v)));
}
static inline float __int2float_rn(int v)
{
    return static_cast<float>(v);
}
static inline float __uint2float_rn(unsigned v)
{
    return static_cast<float>(v);
}
static inline float __double2float_rn(double v)
{
    return static_cast<float>(v);
}
static inline int __double2int_rn(double v)
{
    return sl_sim_to_int<int>(nearbyint(v));
}
static inline long long __double2ll_rn(double v)
{
    return sl_sim_to_int<long long>(nearbyint(v));
}

template <typename A, typename B> static inline typename std::common_type<A, B>::type min(A a, B b)
{
    typedef typename std::common_type<A, B>::type T;
    if (std::is_floating_point<T>::value)
        return static_cast<T>(fmin(static_cast<double>(a), static_cast<double>(b)));
    return static_cast<T>(a) < static_cast<T>(b) ? static_cast<T>(a) : static_cast<T>(b);
}
template <typename A, typename B> static inline typename std::common_type<A, B>::type max(A a, B b)
{
    typedef typename std::common_type<A, B>::type T;
    if (std::is_floating_point<T>::value)
        return static_cast<T>(fmax(static_cast<double>(a), static_cast<double>(b)));
    return static_cast<T>(a) > static_cast<T>(b) ? static_cast<T>(a) : static_cast<T>(b);
}

#endif
