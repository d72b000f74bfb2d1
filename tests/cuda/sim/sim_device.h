/* SPDX-License-Identifier: MIT
 * sim_device.h - what kernels call besides memory: indices, barriers, warp collectives, atomics,
 * arithmetic. Included by cuda_runtime.h. The default arguments SL_SIM_AT tell the simulator the
 * line of the call, with which it finds lanes that meet at different places.
 */
#ifndef SL_SIM_DEVICE_H
#define SL_SIM_DEVICE_H

extern uint3 threadIdx, blockIdx;
extern dim3 blockDim, gridDim;
static constexpr int warpSize = 32;

/* A place in the source. */
struct sl_sim_at {
    const char *file;
    int line;
};
#define SL_SIM_AT   const char *sl_file = __builtin_FILE(), int sl_line = __builtin_LINE()
#define SL_SIM_HERE (sl_sim_at{sl_file, sl_line})

enum sl_sim_kind {
    SL_SIM_SYNCWARP,
    SL_SIM_SHFL_IDX,
    SL_SIM_SHFL_UP,
    SL_SIM_SHFL_DOWN,
    SL_SIM_SHFL_XOR,
    SL_SIM_BALLOT,
    SL_SIM_ANY,
    SL_SIM_ALL,
    SL_SIM_MATCH_ANY,
    SL_SIM_ADD_S32,
    SL_SIM_MIN_S32,
    SL_SIM_MAX_S32,
    SL_SIM_ADD_U32,
    SL_SIM_MIN_U32,
    SL_SIM_MAX_U32,
    SL_SIM_AND_U32,
    SL_SIM_OR_U32,
    SL_SIM_XOR_U32,
    SL_SIM_LDMATRIX_X1,
    SL_SIM_LDMATRIX_X2,
    SL_SIM_LDMATRIX_X4,
    SL_SIM_LDMATRIX_X1_TRANS,
    SL_SIM_LDMATRIX_X2_TRANS,
    SL_SIM_LDMATRIX_X4_TRANS,
    SL_SIM_MMA_BF16,
    SL_SIM_MMA_F16,
    SL_SIM_KINDS,
};

/* One lane's part of a collective; what is used depends on the kind. */
struct sl_sim_part {
    uint64_t value, result;
    uint32_t lane_arg, width;
    const void *row;   /* ldmatrix */
    const void *pc;    /* ldmatrix: for messages */
    uint32_t *regs;    /* ldmatrix */
    float *c;          /* mma */
    const uint32_t *a; /* mma */
    const uint32_t *b; /* mma */
};
void sl_sim_collective(sl_sim_kind kind, uint32_t mask, sl_sim_part *part, sl_sim_at at);
void sl_sim_barrier(int id, int n_threads, sl_sim_at at);
void sl_sim_fence_proxy();
void sl_sim_preempt();    /* now and then lets another thread run */
void sl_sim_let_others(); /* at once: of a thread that polls */
uint32_t sl_sim_active_mask();
void sl_sim_by_wgmma(bool begin); /* what lies between are reads of wgmma's */
void sl_sim_atomic(bool begin);   /* what lies between is one atomic operation */

static inline void __syncthreads(SL_SIM_AT)
{
    sl_sim_barrier(0, -1, SL_SIM_HERE);
}

static inline void __syncwarp(uint32_t mask = 0xffffffffu, SL_SIM_AT)
{
    sl_sim_part p = {};
    sl_sim_collective(SL_SIM_SYNCWARP, mask, &p, SL_SIM_HERE);
}

static inline void __threadfence()
{
    sl_sim_preempt();
}
static inline void __threadfence_block()
{
    sl_sim_preempt();
}
static inline void __threadfence_system()
{
    sl_sim_preempt();
}
static inline void __nanosleep(unsigned)
{
    sl_sim_preempt();
}
static inline uint32_t __activemask()
{
    return sl_sim_active_mask();
}

template <typename T>
static inline T sl_sim_shfl(sl_sim_kind kind, uint32_t mask, T v, uint32_t arg, int width,
                            sl_sim_at at)
{
    static_assert(sizeof(T) <= 8 && std::is_trivially_copyable<T>::value, "shuffle type");
    sl_sim_part p = {};
    memcpy(&p.value, &v, sizeof v);
    p.lane_arg = arg;
    p.width = static_cast<uint32_t>(width);
    sl_sim_collective(kind, mask, &p, at);
    memcpy(&v, &p.result, sizeof v);
    return v;
}

template <typename T>
static inline T __shfl_sync(uint32_t mask, T v, int lane, int width = 32, SL_SIM_AT)
{
    return sl_sim_shfl(SL_SIM_SHFL_IDX, mask, v, static_cast<uint32_t>(lane), width, SL_SIM_HERE);
}
template <typename T>
static inline T __shfl_up_sync(uint32_t mask, T v, unsigned d, int width = 32, SL_SIM_AT)
{
    return sl_sim_shfl(SL_SIM_SHFL_UP, mask, v, d, width, SL_SIM_HERE);
}
template <typename T>
static inline T __shfl_down_sync(uint32_t mask, T v, unsigned d, int width = 32, SL_SIM_AT)
{
    return sl_sim_shfl(SL_SIM_SHFL_DOWN, mask, v, d, width, SL_SIM_HERE);
}
template <typename T>
static inline T __shfl_xor_sync(uint32_t mask, T v, int lane_mask, int width = 32, SL_SIM_AT)
{
    return sl_sim_shfl(SL_SIM_SHFL_XOR, mask, v, static_cast<uint32_t>(lane_mask), width,
                       SL_SIM_HERE);
}

static inline uint32_t sl_sim_vote(sl_sim_kind kind, uint32_t mask, uint32_t v, sl_sim_at at)
{
    sl_sim_part p = {};
    p.value = v;
    sl_sim_collective(kind, mask, &p, at);
    return static_cast<uint32_t>(p.result);
}
static inline uint32_t __ballot_sync(uint32_t mask, int pred, SL_SIM_AT)
{
    return sl_sim_vote(SL_SIM_BALLOT, mask, pred != 0, SL_SIM_HERE);
}
static inline int __any_sync(uint32_t mask, int pred, SL_SIM_AT)
{
    return static_cast<int>(sl_sim_vote(SL_SIM_ANY, mask, pred != 0, SL_SIM_HERE));
}
static inline int __all_sync(uint32_t mask, int pred, SL_SIM_AT)
{
    return static_cast<int>(sl_sim_vote(SL_SIM_ALL, mask, pred != 0, SL_SIM_HERE));
}
template <typename T> static inline uint32_t __match_any_sync(uint32_t mask, T v, SL_SIM_AT)
{
    sl_sim_part p = {};
    memcpy(&p.value, &v, sizeof v);
    sl_sim_collective(SL_SIM_MATCH_ANY, mask, &p, SL_SIM_HERE);
    return static_cast<uint32_t>(p.result);
}

#define SL_SIM_REDUCE(name, T, kind)                                                           \
    static inline T name(uint32_t mask, T v, SL_SIM_AT)                                        \
    {                                                                                          \
        return static_cast<T>(sl_sim_vote(kind, mask, static_cast<uint32_t>(v), SL_SIM_HERE)); \
    }
SL_SIM_REDUCE(__reduce_add_sync, int, SL_SIM_ADD_S32)
SL_SIM_REDUCE(__reduce_min_sync, int, SL_SIM_MIN_S32)
SL_SIM_REDUCE(__reduce_max_sync, int, SL_SIM_MAX_S32)
SL_SIM_REDUCE(__reduce_add_sync, unsigned, SL_SIM_ADD_U32)
SL_SIM_REDUCE(__reduce_min_sync, unsigned, SL_SIM_MIN_U32)
SL_SIM_REDUCE(__reduce_max_sync, unsigned, SL_SIM_MAX_U32)
SL_SIM_REDUCE(__reduce_and_sync, unsigned, SL_SIM_AND_U32)
SL_SIM_REDUCE(__reduce_or_sync, unsigned, SL_SIM_OR_U32)
SL_SIM_REDUCE(__reduce_xor_sync, unsigned, SL_SIM_XOR_U32)
#undef SL_SIM_REDUCE

/* One fiber runs at a time and is never interrupted inside one of these. */
#define SL_SIM_ATOMIC(name, T, expr) \
    static inline T name(T *p, T v)  \
    {                                \
        sl_sim_preempt();            \
        sl_sim_atomic(true);         \
        T old = *p;                  \
        *p = expr;                   \
        sl_sim_atomic(false);        \
        return old;                  \
    }
#define SL_SIM_ATOMICS(T)                                \
    SL_SIM_ATOMIC(atomicAdd, T, sl_sim_wrap_add(old, v)) \
    SL_SIM_ATOMIC(atomicMax, T, old > v ? old : v)       \
    SL_SIM_ATOMIC(atomicMin, T, old < v ? old : v)       \
    SL_SIM_ATOMIC(atomicAnd, T, old &v)                  \
    SL_SIM_ATOMIC(atomicOr, T, old | v)                  \
    SL_SIM_ATOMIC(atomicXor, T, old ^ v)                 \
    SL_SIM_ATOMIC(atomicExch, T, v)                      \
    static inline T atomicCAS(T *p, T expect, T v)       \
    {                                                    \
        sl_sim_preempt();                                \
        sl_sim_atomic(true);                             \
        T old = *p;                                      \
        if (old == expect)                               \
            *p = v;                                      \
        sl_sim_atomic(false);                            \
        return old;                                      \
    }
template <typename T> static inline T sl_sim_wrap_add(T a, T b)
{
    typedef typename std::make_unsigned<T>::type U;
    return static_cast<T>(static_cast<U>(a) + static_cast<U>(b));
}
SL_SIM_ATOMICS(int)
SL_SIM_ATOMICS(unsigned int)
SL_SIM_ATOMICS(unsigned long long)
#undef SL_SIM_ATOMICS
SL_SIM_ATOMIC(atomicInc, unsigned int, old >= v ? 0 : old + 1)
SL_SIM_ATOMIC(atomicSub, unsigned int, old - v)
static inline int atomicSub(int *p, int v)
{
    return atomicAdd(p, static_cast<int>(0u - static_cast<unsigned>(v)));
}
#undef SL_SIM_ATOMIC

template <typename T> static inline T __ldg(const T *p)
{
    return *p;
}
template <typename T> static inline T __ldcg(const T *p)
{
    return *p;
}
template <typename T> static inline T __ldcs(const T *p)
{
    return *p;
}
template <typename T> static inline void __stcg(T *p, T v)
{
    *p = v;
}
template <typename T> static inline void __stcs(T *p, T v)
{
    *p = v;
}

#include "sim_math.h"

#endif
