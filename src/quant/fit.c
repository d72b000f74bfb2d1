/* SPDX-License-Identifier: MIT
 *
 * Quantising is a search for few parameters: try a number of step sizes around the obvious one,
 * round with each, solve for the parameters that are best in the least-squares sense given those
 * codes, keep the attempt with the smallest squared error. About 20 attempts take most of what an
 * exhaustive search would find.
 */
#include "quant/fit.h"

#include "quant/float.h"

#include <float.h>
#include <math.h>

#define FIT_MAX_N 32

int sl_fit_round(float x, int lo, int hi)
{
    if (!(x > (float)lo))
        return lo;
    if (x >= (float)hi)
        return hi;
    return (int)roundf(x);
}

uint16_t sl_fit_scale_f16(float x)
{
    uint16_t h = sl_f32_to_f16(x);
    if ((h & 0x7C00u) == 0x7C00u) /* infinity or NaN: the largest finite value of its sign */
        h = (uint16_t)((h & 0x8000u) | 0x7BFFu);
    return h;
}

float sl_fit_inverse(float x)
{
    float inv = 1.0f / (x != 0 ? x : INFINITY);
    return isfinite(inv) ? inv : 0.0f;
}

/* Codes for one step size, then the best (scale, min) for these codes by the 2x2 normal equations.
 * Returns the squared error. */
static float affine_try(const float *x, int n, int q_max, float lo, float inv, float *scale,
                        float *min)
{
    int q[FIT_MAX_N];
    float sq = 0, sqq = 0, sx = 0, sxq = 0;
    for (int i = 0; i < n; i++) {
        q[i] = sl_fit_round((x[i] - lo) * inv, 0, q_max);
        float f = (float)q[i];
        sq += f;
        sqq += f * f;
        sx += x[i];
        sxq += x[i] * f;
    }
    float count = (float)n, det = count * sqq - sq * sq;
    *scale = 0;
    *min = -lo;
    if (det > 0) {
        *scale = (count * sxq - sx * sq) / det;
        *min = (sq * sxq - sqq * sx) / det;
    }
    if (det <= 0 || *min < 0) { /* the format has no negative minimum: fit the scale alone */
        *min = det > 0 ? 0 : *min;
        *scale = sqq > 0 ? (sxq + *min * sq) / sqq : 0;
    }
    float error = 0;
    for (int i = 0; i < n; i++) {
        float diff = *scale * (float)q[i] - *min - x[i];
        error += diff * diff;
    }
    return *scale >= 0 ? error : FLT_MAX;
}

void sl_fit_affine(const float *x, int n, int q_max, float *scale, float *min)
{
    float lo = 0, hi = 0;
    for (int i = 0; i < n; i++) {
        lo = fminf(lo, x[i]);
        hi = fmaxf(hi, x[i]);
    }
    float range = hi - lo;
    *scale = range / (float)q_max;
    *min = 0 - lo; /* not -lo: no negative zero */
    if (!(range > 0) || !isfinite(range))
        return;
    float best = FLT_MAX;
    for (int step = -6; step <= 14; step++) {
        float s, m, inv = ((float)q_max + 0.1f * (float)step) / range;
        if (!isfinite(inv))
            return;
        float error = affine_try(x, n, q_max, lo, inv, &s, &m);
        if (error < best) {
            best = error;
            *scale = s;
            *min = m;
        }
    }
}

float sl_fit_symmetric(const float *x, int n, int q_range)
{
    float peak = 0; /* signed: it is given the code with the larger magnitude, -q_range */
    for (int i = 0; i < n; i++)
        peak = fabsf(x[i]) > fabsf(peak) ? x[i] : peak;
    if (peak == 0 || !isfinite(peak))
        return 0;
    float best = -1, scale = -peak / (float)q_range;
    for (int step = -9; step <= 9; step++) {
        float inv = -((float)q_range + 0.1f * (float)step) / peak, sxq = 0, sqq = 0;
        if (!isfinite(inv))
            return scale;
        for (int i = 0; i < n; i++) {
            float q = (float)sl_fit_round(x[i] * inv, -q_range, q_range - 1);
            sxq += x[i] * q;
            sqq += q * q;
        }
        /* With the best scale sxq / sqq the error is |x|^2 - gain. */
        float gain = sqq > 0 ? sxq * sxq / sqq : 0;
        if (gain > best) {
            best = gain;
            scale = sqq > 0 ? sxq / sqq : 0;
        }
    }
    return scale;
}
