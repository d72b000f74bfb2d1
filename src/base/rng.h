/* SPDX-License-Identifier: MIT
 * rng.h - randomness that is a pure function of its key, so that a token drawn for (seed, position)
 * is the same whatever ran before it. sl_rng is a stream over the same mixing, for tests and tools.
 */
#ifndef SL_BASE_RNG_H
#define SL_BASE_RNG_H

#include "base/hash.h"

#include <math.h>
#include <stdint.h>

/* 64 random bits for (seed, counter): two rounds, so that neighbouring keys share nothing. */
static inline uint64_t sl_rng_at(uint64_t seed, uint64_t counter)
{
    return sl_mix64(sl_mix64(seed + 0x9E3779B97F4A7C15u) ^ (counter * 0xD1342543DE82EF95u + 1));
}

/* Uniform in [0, 1) with 53 bits. */
static inline double sl_rng_unit(uint64_t bits)
{
    return (double)(bits >> 11) * 0x1p-53;
}

struct sl_rng {
    uint64_t seed, counter;
};

static inline uint64_t sl_rng_next(struct sl_rng *r)
{
    return sl_rng_at(r->seed, r->counter++);
}

/* Uniform in [0, n), n > 0; the bias of the multiply is below n / 2^64. */
static inline uint64_t sl_rng_below(struct sl_rng *r, uint64_t n)
{
    return (uint64_t)(((unsigned __int128)sl_rng_next(r) * n) >> 64);
}

/* Standard normal by Box-Muller. */
static inline double sl_rng_normal(struct sl_rng *r)
{
    double u = 1.0 - sl_rng_unit(sl_rng_next(r)), v = sl_rng_unit(sl_rng_next(r));
    return sqrt(-2.0 * log(u)) * cos(6.283185307179586 * v);
}

#endif
