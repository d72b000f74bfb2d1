/* SPDX-License-Identifier: MIT
 * hash.h - 64- and 128-bit hashes (XXH3) for tables and for the chain that names cache blocks.
 */
#ifndef SL_BASE_HASH_H
#define SL_BASE_HASH_H

#include <stddef.h>
#include <stdint.h>

struct sl_hash128 {
    uint64_t lo, hi;
};

uint64_t sl_hash64(const void *data, size_t n, uint64_t seed);
struct sl_hash128 sl_hash128(const void *data, size_t n, uint64_t seed);

/* Mixes x so that every input bit reaches every output bit (the finaliser of SplitMix64). */
static inline uint64_t sl_mix64(uint64_t x)
{
    x ^= x >> 30;
    x *= 0xBF58476D1CE4E5B9u;
    x ^= x >> 27;
    x *= 0x94D049BB133111EBu;
    return x ^ (x >> 31);
}

#endif
