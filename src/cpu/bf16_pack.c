/* SPDX-License-Identifier: MIT
 * bf16_pack.c - rows of a BF16 matrix to panels. Runs once per matrix, on any processor.
 */
#include "cpu/bf16.h"

#include "base/check.h"

#include <string.h>

void sl_bf16_pack(int64_t n_rows, int64_t n_cols, const uint8_t *rows, int64_t p, uint8_t *panel)
{
    size_t row_bytes = (size_t)n_cols * sizeof(uint16_t);
    size_t n_pairs = sl_bf16_panel_bytes(n_cols) / SL_BF16_PAIR, n_whole = (size_t)n_cols / 2;
    int64_t n_here = SL_MIN(n_rows - p * SL_BF16_PANEL, SL_BF16_PANEL);
    const uint8_t *src = rows + (size_t)(p * SL_BF16_PANEL) * row_bytes;

    if (n_here < SL_BF16_PANEL)
        memset(panel, 0, n_pairs * SL_BF16_PAIR);
    else
        memset(panel + n_whole * SL_BF16_PAIR, 0, (n_pairs - n_whole) * SL_BF16_PAIR);
    /* Sixteen rows are read side by side so that the panel is written from end to end. */
    for (size_t i = 0; i < n_whole; i++)
        for (size_t r = 0; r < (size_t)n_here; r++)
            memcpy(panel + i * SL_BF16_PAIR + 4 * r, src + r * row_bytes + 4 * i, 4);
    if (n_cols % 2 != 0)
        for (size_t r = 0; r < (size_t)n_here; r++)
            memcpy(panel + n_whole * SL_BF16_PAIR + 4 * r, src + r * row_bytes + 4 * n_whole, 2);
}
