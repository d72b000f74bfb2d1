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

#include "cpu/linear_aside.h"
#include "ops/ops.h"

#define SL_BF16_PANEL  16
#define SL_BF16_PANELS 4   /* panels worked on together */
#define SL_BF16_TOKENS 512 /* tokens of a block, at most */
#define SL_BF16_BLOCK  256 /* as a rule */
#define SL_BF16_K      32  /* columns are rounded up to this */
#define SL_BF16_PAIR   64  /* bytes of two columns of a panel */

/* How products by tiles are ordered and what they ask for ahead; bf16_amx_tmpl.c says why. */
struct sl_bf16_shape {
    int tokens;   /* of a block, at most SL_BF16_TOKENS */
    int span;     /* tokens that share a part of the weights before the next part */
    int strips;   /* of a part: 32 columns each */
    bool wide;    /* sixteen tokens times four panels, else 32 times two */
    int ahead;    /* strips operands are fetched ahead to the L1 cache; 0: not */
    bool weights; /* the next part's weights are fetched to the L2 cache */
    bool late;    /* outputs of an item are put while the next one runs (linear_packed.c) */
};

/* Some panels, panel_bytes apart, and a block of tokens; k columns of both. */
struct sl_bf16_part {
    const uint8_t *panels;
    size_t panel_bytes;
    int n_panels; /* <= SL_BF16_PANELS */
    int64_t k;
    const uint16_t *x;
    int n_tok;
    bool first;                        /* the sums start at zero, else at what acc holds */
    const struct sl_bf16_shape *shape; /* or NULL: the kernel's own */
    struct sl_aside *aside;            /* kernels of tiles may do some of it meanwhile; or NULL */
};

struct sl_bf16_kernels {
    const char *name; /* "bf16-dot", "bf16-amx"; NULL: no kernel, multiply as floats */
    const struct sl_bf16_shape *shape; /* of products by tiles; NULL: there are none */
    /* n floats to n_padded >= n numbers, zeros behind. A subnormal float becomes zero of its sign,
     * as the dot instructions would take it anyway; a NaN stays one. */
    void (*round)(const float *x, int64_t n, int64_t n_padded, uint16_t *out);
    /* The same for token t of n_tok into a block of k columns, rounded up to SL_BF16_K; the block
     * has room for n_tok rounded up to 16. How they lie in it is the kernels' own affair. */
    void (*place)(const float *x, int64_t k, int t, int n_tok, uint16_t *block);
    /* acc [n_tok, SL_BF16_PANELS * 16] = the panels times the block. Sixteen columns of acc per
     * panel are written, the others left alone; where there are more than 16 tokens acc has room
     * for n_tok rounded up to 16, and what is behind the last is anything. */
    void (*dot)(const struct sl_bf16_part *a, float *acc);
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
