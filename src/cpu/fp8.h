/* SPDX-License-Identifier: MIT
 * fp8.h - FP8 E4M3 matrices on processors whose dot instructions take BF16 pairs.
 *
 * Every number of the format is a BF16 number, so codes are widened to panels of BF16 as bf16.h has
 * them, a group of 128 columns at a time in the L1 cache, and multiplied by its kernels. A group's
 * sums are chains of their own, from zero; they join the output times the scale of row and group,
 * in ascending order: acc = fma(sum, scale, acc). Weights stay at a byte in memory, which is what a
 * decode reads.
 *
 * Packed: sixteen rows make a panel, of groups of SL_FP8_GROUP_BYTES: 64 pairs of columns, two
 * pairs in 64 bytes (rows 4 i .. 4 i + 3 of both in the 16 bytes i: first pair, second pair, each
 * the two columns of a row after the other), then the sixteen rows' scales as floats. Rows and
 * columns behind the end are zeros. Where a row has a NaN in a group the scale is NaN and what the
 * code widens to does not matter.
 */
#ifndef SL_CPU_FP8_H
#define SL_CPU_FP8_H

#include "cpu/bf16.h"

#define SL_FP8_GROUP       128 /* columns; every block of scales is whole groups wide */
#define SL_FP8_CODES       (SL_FP8_GROUP * SL_BF16_PANEL)
#define SL_FP8_GROUP_BYTES (SL_FP8_CODES + SL_BF16_PANEL * 4)
_Static_assert(SL_FP8_GROUP == SL_SCALE_COLS && SL_FP8_GROUP % SL_BF16_K == 0, "groups");

#define SL_FP8_FEW 8 /* tokens whose products need no widened panels */

/* A group of some panels, panel_bytes apart, and few tokens. */
struct sl_fp8_part {
    const uint8_t *group, *next; /* next: what will be wanted soon */
    size_t panel_bytes;
    int n_panels, n_tok; /* <= SL_BF16_PANELS, SL_FP8_FEW */
    int n_cols;          /* rounded up to SL_BF16_K */
    const uint16_t *x;   /* [n_tok, n_cols] */
};

struct sl_fp8_kernels {
    const char *name; /* "fp8-dot", "fp8-amx"; NULL: multiply as floats */
    /* The codes of a group to SL_FP8_CODES numbers of BF16, a panel of 128 columns; next: the group
     * that will be wanted soon, of which nothing is read but asked for. */
    void (*widen)(const uint8_t *group, const uint8_t *next, uint16_t *panel);
    /* acc[t] = fma(sum[t], scales, acc[t]): sixteen floats of each of n_tok rows, SL_BF16_PANELS *
     * 16 floats apart in both. */
    void (*add_scaled)(const float *sum, const float *scales, int n_tok, float *acc);
    /* acc [n_tok, SL_BF16_PANELS * 16] = fma(products, scales, acc), without widened panels. NULL:
     * there is none. Tokens lie as VDPBF16PS wants them, one after the other. */
    void (*few)(const struct sl_fp8_part *a, float *acc);
};

static inline size_t sl_fp8_panel_bytes(int64_t n_cols)
{
    return (size_t)((n_cols + SL_FP8_GROUP - 1) / SL_FP8_GROUP) * SL_FP8_GROUP_BYTES;
}

static inline const float *sl_fp8_scales(const uint8_t *group)
{
    return (const float *)(const void *)(group + SL_FP8_CODES);
}

/* Packs panel p of the file's rows. scales->values may be NULL. */
void sl_fp8_pack(int64_t n_rows, int64_t n_cols, const uint8_t *rows,
                 const struct sl_scales *scales, int64_t p, uint8_t *panel);

void sl_fp8_kernels_avx512(struct sl_fp8_kernels *k); /* all but a name */
void sl_fp8_kernels_avx512bf16(struct sl_fp8_kernels *k);

#endif
