/* SPDX-License-Identifier: MIT
 * fit.h - least-squares choice of a scale (and minimum) for a short run of values, shared by the
 * quantisers. Deterministic: plain loops in one order. Non-finite values give defined but useless
 * codes, never undefined behaviour.
 */
#ifndef SL_QUANT_FIT_H
#define SL_QUANT_FIT_H

#include <stdint.h>

/* Rounds to nearest (ties away from zero) into [lo, hi]; NaN becomes lo. */
int sl_fit_round(float x, int lo, int hi);

/* The f16 nearest to x, kept finite: a scale of infinity would turn the block into NaN. */
uint16_t sl_fit_scale_f16(float x);

/* x[i] ~ scale * q - min with q in 0..q_max, scale >= 0, min >= 0, for n <= 32 values. */
void sl_fit_affine(const float *x, int n, int q_max, float *scale, float *min);

/* x[i] ~ scale * q with q in -q_range .. q_range - 1, for n <= 32 values; scale may be negative. */
float sl_fit_symmetric(const float *x, int n, int q_range);

/* 1 / x, or 0 where that is not a finite number. */
float sl_fit_inverse(float x);

#endif
