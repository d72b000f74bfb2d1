/* SPDX-License-Identifier: MIT
 * Skip-softmax: which tiles of a split add nothing to a row (ops/ops.h has the rule). Comparisons
 * of floats alone, so that every instruction set decides alike.
 */
#include "base/check.h"
#include "cpu/attn.h"

#include <math.h>

float sl_attn_skip_reach(float factor, int pos)
{
    float reach = pos < SL_SKIP_FROM ? 0.0f : logf(factor / (float)(pos + 1));
    return reach < 0.0f ? reach : -INFINITY;
}

float sl_attn_skip_best(const float *score, int n, float scale, float softcap)
{
    float top = -INFINITY;
    for (int i = 0; i < n; i++) {
        if (isnan(score[i]))
            return NAN;
        top = SL_MAX(top, score[i]);
    }
    return softcap > 0.0f ? softcap * tanhf(top * scale / softcap) : top * scale;
}

uint32_t sl_attn_skip_tiles(const float *score, int n, float best, float reach, float scale,
                            float softcap)
{
    uint32_t skip = 0;
    for (int t = 0; t * SL_SKIP_TILE < n; t++) {
        const int from = t * SL_SKIP_TILE;
        float top = sl_attn_skip_best(score + from, SL_MIN(n - from, SL_SKIP_TILE), scale, softcap);
        if (top < best + reach)
            skip |= 1u << t;
        if (top > best)
            best = top;
    }
    return skip;
}
