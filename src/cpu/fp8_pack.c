/* SPDX-License-Identifier: MIT
 * fp8_pack.c - rows of an FP8 matrix to panels. Runs once per matrix, on any processor.
 */
#include "cpu/fp8.h"

#include "base/check.h"

#include <math.h>
#include <string.h>

/* Column c of row r in a group's codes. */
static size_t code_at(int64_t r, int64_t c)
{
    return (size_t)(c / 4 * 64 + r / 4 * 16 + c / 2 % 2 * 8 + r % 4 * 2 + c % 2);
}

/* Columns of a row to its group; is one of them NaN? */
static bool pack_row(const uint8_t *src, int64_t n, int64_t r, uint8_t *group)
{
    bool nan = false;
    for (int64_t c = 0; c < n; c++) {
        group[code_at(r, c)] = src[c];
        nan = nan || (src[c] & 0x7F) == 0x7F;
    }
    return nan;
}

void sl_fp8_pack(int64_t n_rows, int64_t n_cols, const uint8_t *rows,
                 const struct sl_scales *scales, int64_t p, uint8_t *panel)
{
    const int64_t n_here = SL_MIN(n_rows - p * SL_BF16_PANEL, SL_BF16_PANEL);
    for (int64_t k = 0; k < n_cols; k += SL_FP8_GROUP, panel += SL_FP8_GROUP_BYTES) {
        const int64_t n = SL_MIN(n_cols - k, SL_FP8_GROUP);
        float scale[SL_BF16_PANEL];
        memset(panel, 0, SL_FP8_GROUP_BYTES);
        for (int64_t r = 0; r < SL_BF16_PANEL; r++) {
            const int64_t row = p * SL_BF16_PANEL + r;
            scale[r] = 1.0f;
            if (r >= n_here)
                continue;
            scale[r] = sl_scale_at(scales, n_cols, row, k);
            if (pack_row(rows + (size_t)(row * n_cols + k), n, r, panel))
                scale[r] = NAN;
        }
        memcpy(panel + SL_FP8_CODES, scale, sizeof scale);
    }
}
