/* SPDX-License-Identifier: MIT
 * tile_amx.h - the tile instructions the kernels use, by thin names. tests/ops/tile_sim.h has the
 * same names in plain C, so that the kernels also run where there are no tiles.
 *
 * Eight registers of up to 16 rows of 64 bytes. Their configuration belongs to the thread; a kernel
 * makes it at its entry and releases it at its end. Released tiles are in their initial state, in
 * which a context switch saves nothing of their 8 KiB. Permission is asked for in isa.c.
 */
#ifndef SL_CPU_TILE_AMX_H
#define SL_CPU_TILE_AMX_H

#include <immintrin.h>
#include <stdint.h>

/* The operand of LDTILECFG. */
struct tile_config {
    uint8_t palette, start_row, reserved[14];
    uint16_t row_bytes[16];
    uint8_t rows[16];
};

/* The compilers' intrinsic names only eight bytes of the operand as read, or none. */
static inline void tile_configure(const struct tile_config *c)
{
    __asm__ volatile("ldtilecfg %0" ::"m"(*c));
}

/* Tile numbers must be literals. Not every compiler knows that a tile load reads memory: what the
 * same function wrote before is published by tile_fence(). */
#define tile_release()              _tile_release()
#define tile_fence()                __asm__ volatile("" ::: "memory")
#define tile_zero(t)                _tile_zero(t)
#define tile_load(t, p, row_bytes)  _tile_loadd(t, p, row_bytes)
#define tile_store(t, p, row_bytes) _tile_stored(t, p, row_bytes)

/* c += a b: a [rows, quads or pairs], b [quads or pairs, 16], sums of products of bytes in int32
 * (a signed and b unsigned; both signed) or of BF16 pairs in float. */
#define tile_dot_s8_u8(c, a, b) _tile_dpbsud(c, a, b)
#define tile_dot_s8_s8(c, a, b) _tile_dpbssd(c, a, b)
#define tile_dot_bf16(c, a, b)  _tile_dpbf16ps(c, a, b)

#endif
