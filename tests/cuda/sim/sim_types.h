/* SPDX-License-Identifier: MIT
 * sim_types.h - CUDA's vector types, aligned as on the device so that UBSan sees a misaligned
 * vector access. Included by cuda_runtime.h.
 */
#ifndef SL_SIM_TYPES_H
#define SL_SIM_TYPES_H

#define SL_SIM_VEC(T, name, align2, align4)                  \
    struct name##1                                           \
    {                                                        \
        T x;                                                 \
    };                                                       \
    struct __attribute__((aligned(align2))) name##2          \
    {                                                        \
        T x, y;                                              \
    };                                                       \
    struct name##3                                           \
    {                                                        \
        T x, y, z;                                           \
    };                                                       \
    struct __attribute__((aligned(align4))) name##4          \
    {                                                        \
        T x, y, z, w;                                        \
    };                                                       \
    static inline name##1 make_##name##1(T x)                \
    {                                                        \
        return {x};                                          \
    }                                                        \
    static inline name##2 make_##name##2(T x, T y)           \
    {                                                        \
        return {x, y};                                       \
    }                                                        \
    static inline name##3 make_##name##3(T x, T y, T z)      \
    {                                                        \
        return {x, y, z};                                    \
    }                                                        \
    static inline name##4 make_##name##4(T x, T y, T z, T w) \
    {                                                        \
        return {x, y, z, w};                                 \
    }

SL_SIM_VEC(signed char, char, 2, 4)
SL_SIM_VEC(unsigned char, uchar, 2, 4)
SL_SIM_VEC(short, short, 4, 8)
SL_SIM_VEC(unsigned short, ushort, 4, 8)
SL_SIM_VEC(int, int, 8, 16)
SL_SIM_VEC(unsigned int, uint, 8, 16)
SL_SIM_VEC(float, float, 8, 16)
SL_SIM_VEC(long long, longlong, 16, 16)
SL_SIM_VEC(unsigned long long, ulonglong, 16, 16)
SL_SIM_VEC(double, double, 16, 16)
#undef SL_SIM_VEC

struct dim3 {
    unsigned int x, y, z;
    constexpr dim3(unsigned int x_ = 1, unsigned int y_ = 1, unsigned int z_ = 1)
        : x(x_), y(y_), z(z_)
    {
    }
    constexpr dim3(uint3 v) : x(v.x), y(v.y), z(v.z)
    {
    }
};

#endif
