/* SPDX-License-Identifier: MIT
 * int4_repack.h - matrices of four-bit codes as checkpoints have them, to blocks of int4.h.
 *
 * Words are 32 bits, little endian, of eight codes, the first in the lowest bits. For a matrix of
 * n_rows x n_cols = N x K and G groups along K:
 *
 *            codes                               zeros                         scales
 *   GPTQ     [K / 8, N], eight columns of a row  [G, N / 8], eight rows        [G, N]
 *   AWQ      [K, N / 8], eight rows in the       [G, N / 8], in the same order [G, N]
 *            order 0, 2, 4, 6, 1, 3, 5, 7
 *   ROWS     [N, K / 8], eight columns of a row  [ceil(N / 8), G], eight rows  [N, G]
 *
 * ROWS is what compressed-tensors packs. Where there are no zeros the zero point is 8. GPTQ files
 * of the first version (less_one) have 0x11111111 taken from every word of zeros, borrows between
 * nibbles included, and it is added back in the same way.
 */
#ifndef SL_QUANT_INT4_REPACK_H
#define SL_QUANT_INT4_REPACK_H

#include "quant/dtype.h"

#include <stdint.h>

#define SL_INT4_WORD 8 /* codes of one; n_rows must be a multiple in GPTQ and AWQ */

enum sl_int4_order { SL_INT4_GPTQ, SL_INT4_AWQ, SL_INT4_ROWS };

struct sl_int4_src { /* a view; data at any alignment */
    enum sl_int4_order order;
    int64_t n_rows, n_cols; /* n_cols a multiple of group */
    int64_t group;          /* columns; a multiple of the block's elements */
    const uint8_t *codes;
    const uint8_t *zeros; /* or NULL */
    bool less_one;
    const uint8_t *scales;
    enum sl_dtype scale_dtype; /* F16 or BF16 */
};

/* Rows row .. row + n (row a multiple of 8) as blocks of dtype, INT4_G128 or INT4_G32. Returns -1,
 * or a row whose scale is not a finite number below 2^100. */
int64_t sl_int4_repack(const struct sl_int4_src *s, enum sl_dtype dtype, int64_t row, int64_t n,
                       uint8_t *out);

#endif
