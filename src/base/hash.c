/* SPDX-License-Identifier: MIT */
#include "base/hash.h"

#include <xxhash.h>

uint64_t sl_hash64(const void *data, size_t n, uint64_t seed)
{
    return XXH3_64bits_withSeed(data, n, seed);
}

struct sl_hash128 sl_hash128(const void *data, size_t n, uint64_t seed)
{
    XXH128_hash_t h = XXH3_128bits_withSeed(data, n, seed);
    return (struct sl_hash128){h.low64, h.high64};
}
