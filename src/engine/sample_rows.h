/* SPDX-License-Identifier: MIT
 * sample_rows.h - the passes of sampling that read a whole row of logits, compiled for several
 * instruction sets from sample_rows_tmpl.c. They give the same bits: every element is computed by
 * itself without fused multiply-add, and sums are sums of integers (sl_weight).
 */
#ifndef SL_ENGINE_SAMPLE_ROWS_H
#define SL_ENGINE_SAMPLE_ROWS_H

#include "base/err.h"

#define SL_ROW_BLOCK  256 /* elements of a block */
#define SL_ROW_GROUPS 16  /* of a block: group j is its elements j, j + 16, j + 32, ... */

struct sl_row_scale { /* y = (x - max) * inv_t */
    float max, inv_t, floor;
};

struct sl_row_kernels {
    /* The maximum, and that of every group of every block (-infinity where a short last block has
     * no element) unless group_max is NULL. False: NaN or +infinity somewhere, or nothing finite.
     */
    bool (*scan)(const float *x, int32_t n, float *group_max, float *max);
    /* out = x where bit id % 32 of word id / 32 of allowed is set, elsewhere -infinity; the maxima
     * are those of out. Blocks of which nothing is allowed are not written: their maxima tell.
     * False also for NaN or +infinity that is not allowed. */
    bool (*scan_allowed)(const float *x, int32_t n, const uint32_t *allowed, float *out,
                         float *group_max, float *max);
    /* probs = exp(y) of the scale s, 0 below its floor. */
    void (*probs)(const float *x, int32_t n, const struct sl_row_scale *s, float *probs);
    /* sums = the weights of these probabilities by block; returns the whole sum. group_max: of x.
     */
    uint64_t (*weigh)(const float *x, int32_t n, const struct sl_row_scale *s,
                      const float *group_max, uint64_t *sums);
    /* Of one block of probabilities: bit i % 64 of word i / 64 says whether i is above cut. False:
     * none is. */
    bool (*above)(const float *probs, float cut, uint64_t hits[SL_ROW_BLOCK / 64]);
    /* The sum of the weights of exp(x - max), and how many elements go before element id: those
     * that are larger and, of its equals, the ones with a lower index. */
    uint64_t (*logprob)(const float *x, int32_t n, float max, int32_t id, int32_t *n_before);
};

extern const struct sl_row_kernels sl_row_kernels_c, sl_row_kernels_avx2;

/* The best that this processor runs. */
const struct sl_row_kernels *sl_row_kernels(void);

#endif
