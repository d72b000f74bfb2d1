/* SPDX-License-Identifier: MIT
 * bf16.h - BF16 matrices on processors whose dot instructions take BF16 pairs.
 *
 * Activations are rounded to BF16 (nearest even) and every product of two BF16 is exact; how the
 * sums are rounded is the instruction's own affair, so AVX512_BF16 and AMX give different bits,
 * each the same for one token or a thousand. Without either instruction BF16 weights are multiplied
 * as floats (linear_f32.c).
 *
 * Packed weights: sixteen rows make a panel (rows behind the end are zero). "Pair" i of a panel is
 * 64 bytes: the two columns 2 i, 2 i + 1 of row 0, of row 1, ... Columns are rounded up to 32 with
 * zeros, so that sixteen pairs are one AMX tile.
 */
#ifndef SL_CPU_BF16_H
#define SL_CPU_BF16_H

#include "ops/ops.h"

#define SL_BF16_PANEL  16
#define SL_BF16_PANELS 4   /* panels worked on together */
#define SL_BF16_TOKENS 256 /* tokens of a block */
#define SL_BF16_K      32  /* columns are rounded up to this */
#define SL_BF16_PAIR   64  /* bytes of two columns of a panel */

struct sl_bf16_kernels {
    const char *name; /* "bf16-dot", "bf16-amx"; NULL: no kernel, multiply as floats */
    /* n floats to n_padded >= n numbers, zeros behind. A subnormal float becomes zero of its sign,
     * as the dot instructions would take it anyway; a NaN stays one. */
    void (*round)(const float *x, int64_t n, int64_t n_padded, uint16_t *out);
    /* The same for token t of n_tok into a block of k columns, rounded up to SL_BF16_K; the block
     * has room for n_tok rounded up to 16. How they lie in it is the kernels' own affair. */
    void (*place)(const float *x, int64_t k, int t, int n_tok, uint16_t *block);
    /* acc [n_tok, SL_BF16_PANELS * 16] = n_panels <= SL_BF16_PANELS panels (panel_bytes apart) of
     * k columns times the block of k columns; first: else added to what acc holds. Sixteen columns
     * of acc per panel are written, the others left alone; where there are more than 16 tokens acc
     * has room for n_tok rounded up to 16, and what is behind the last is anything. */
    void (*dot)(const uint8_t *panels, size_t panel_bytes, int n_panels, int64_t k,
                const uint16_t *x, int n_tok, float *acc, bool first);
};

static inline size_t sl_bf16_panel_bytes(int64_t n_cols)
{
    return (size_t)((n_cols + SL_BF16_K - 1) / SL_BF16_K * SL_BF16_K) * 2 * SL_BF16_PANEL;
}

/* Packs panel p of the file's rows. */
void sl_bf16_pack(int64_t n_rows, int64_t n_cols, const uint8_t *rows, int64_t p, uint8_t *panel);

void sl_bf16_kernels_avx512bf16(struct sl_bf16_kernels *k);
void sl_bf16_kernels_amx(struct sl_bf16_kernels *k);

#endif
