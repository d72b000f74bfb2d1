/* SPDX-License-Identifier: MIT
 * check.h - checked arithmetic. Every size that depends on a file or request goes through these.
 * Each returns true when the result fits and is in *out; false leaves *out unspecified.
 */
#ifndef SL_BASE_CHECK_H
#define SL_BASE_CHECK_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

static inline bool sl_add_u64(uint64_t a, uint64_t b, uint64_t *out)
{
    return !__builtin_add_overflow(a, b, out);
}

static inline bool sl_mul_u64(uint64_t a, uint64_t b, uint64_t *out)
{
    return !__builtin_mul_overflow(a, b, out);
}

static inline bool sl_add_size(size_t a, size_t b, size_t *out)
{
    return !__builtin_add_overflow(a, b, out);
}

static inline bool sl_mul_size(size_t a, size_t b, size_t *out)
{
    return !__builtin_mul_overflow(a, b, out);
}

/* Is [off, off + len) inside [0, total)? */
static inline bool sl_range_ok(uint64_t off, uint64_t len, uint64_t total)
{
    return off <= total && len <= total - off;
}

/* align is a power of two */
static inline bool sl_align_u64(uint64_t x, uint64_t align, uint64_t *out)
{
    if (!sl_add_u64(x, align - 1, out))
        return false;
    *out &= ~(align - 1);
    return true;
}

static inline bool sl_is_pow2(uint64_t x)
{
    return x != 0 && (x & (x - 1)) == 0;
}

#define SL_MIN(a, b)      ((a) < (b) ? (a) : (b))
#define SL_MAX(a, b)      ((a) > (b) ? (a) : (b))
#define SL_COUNT(array)   (sizeof(array) / sizeof((array)[0]))
#define SL_CEIL_DIV(a, b) (((a) + (b)-1) / (b))
#define SL_ROUND_UP(a, b) (SL_CEIL_DIV(a, b) * (b))

#endif
