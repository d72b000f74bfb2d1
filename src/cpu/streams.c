/* SPDX-License-Identifier: MIT
 * What models with several residual streams need (AltUp of Gemma 3n), and a gate that lets only the
 * largest values of a row through. Plain C with sums in one fixed order, so that every instruction
 * set has the same bits; the products beside them take far longer.
 */
#include "base/check.h"
#include "cpu/backend.h"

#include <math.h>

#define LANES 16 /* of a sum, added up in pairs */

static float add_lanes(float lanes[LANES])
{
    for (int n = LANES / 2; n > 0; n /= 2)
        for (int i = 0; i < n; i++)
            lanes[i] += lanes[i + n];
    return lanes[0];
}

static float sum_of(const float *x, int32_t n)
{
    float lanes[LANES] = {0};
    int32_t i = 0;
    for (; i + LANES <= n; i += LANES)
        for (int k = 0; k < LANES; k++)
            lanes[k] += x[i + k];
    for (; i < n; i++)
        lanes[i % LANES] += x[i];
    return add_lanes(lanes);
}

/* Of the squares of x - mean. */
static float squares_of(const float *x, float mean, int32_t n)
{
    float lanes[LANES] = {0};
    int32_t i = 0;
    for (; i + LANES <= n; i += LANES)
        for (int k = 0; k < LANES; k++)
            lanes[k] += (x[i + k] - mean) * (x[i + k] - mean);
    for (; i < n; i++)
        lanes[i % LANES] += (x[i] - mean) * (x[i] - mean);
    return add_lanes(lanes);
}

static void mix_row(void *arg, uint32_t t, int thread_idx)
{
    const struct sl_op_mix_streams *a = arg;
    const int32_t n = a->n_streams;
    const float *c = a->coefs + (int64_t)t * n * n;
    float *x[SL_MAX_STREAMS], *keep = a->keep + (int64_t)t * a->h;
    (void)thread_idx;
    x[0] = a->x + (int64_t)t * a->h;
    for (int32_t i = 1; i < n; i++)
        x[i] = a->others + (i - 1) * a->ld_others + (int64_t)t * a->h;
    for (int32_t d = 0; d < a->h; d++) {
        float in[SL_MAX_STREAMS];
        for (int32_t j = 0; j < n; j++)
            in[j] = x[j][d];
        for (int32_t i = 0; i < n; i++) {
            float sum = 0;
            for (int32_t j = 0; j < n; j++)
                sum += c[i * n + j] * in[j];
            x[i][d] = in[i] + sum;
        }
        keep[d] = x[0][d];
    }
}

void sl_cpu_mix_streams(struct sl_backend *be, const struct sl_op_mix_streams *a)
{
    struct sl_op_mix_streams own = *a;
    SL_ASSERT(a->n_streams >= 2 && a->n_streams <= SL_MAX_STREAMS);
    sl_cpu_run(sl_cpu(be), mix_row, &own, a->n, (int64_t)a->n * a->h * a->n_streams * a->n_streams);
}

static void correct_row(void *arg, uint32_t t, int thread_idx)
{
    const struct sl_op_correct_streams *a = arg;
    const int64_t at = (int64_t)t * a->h;
    const float *c = a->coefs + (int64_t)t * a->n_streams, *keep = a->keep + at;
    float *x = a->x + at, *out = (float *)a->out + at;
    (void)thread_idx;
    for (int32_t d = 0; d < a->h; d++) {
        const float change = x[d] - keep[d];
        for (int32_t i = 1; i < a->n_streams; i++)
            a->others[(i - 1) * a->ld_others + at + d] += change * (c[i] + 1);
        x[d] = keep[d] + change * (c[0] + 1);
        out[d] = a->w != NULL ? x[d] * a->w[d] : x[d];
    }
}

void sl_cpu_correct_streams(struct sl_backend *be, const struct sl_op_correct_streams *a)
{
    struct sl_op_correct_streams own = *a;
    sl_cpu_run(sl_cpu(be), correct_row, &own, a->n, (int64_t)a->n * a->h * a->n_streams * 2);
}

static void match_row(void *arg, uint32_t t, int thread_idx)
{
    const struct sl_op_match_rms *a = arg;
    const float *x = a->x + (int64_t)t * a->h;
    float *y = a->y + (int64_t)t * a->h;
    (void)thread_idx;
    const float want = sqrtf(squares_of(x, 0, a->h) / (float)a->h);
    const float have = sqrtf(fmaxf(squares_of(y, 0, a->h) / (float)a->h, a->min));
    for (int32_t d = 0; d < a->h; d++)
        y[d] = y[d] * want / have;
}

void sl_cpu_match_rms(struct sl_backend *be, const struct sl_op_match_rms *a)
{
    struct sl_op_match_rms own = *a;
    sl_cpu_run(sl_cpu(be), match_row, &own, a->n, 4 * (int64_t)a->n * a->h);
}

static void cut_row(void *arg, uint32_t t, int thread_idx)
{
    const struct sl_op_cut_gate *a = arg;
    float *x = a->x + (int64_t)t * a->h;
    (void)thread_idx;
    const float mean = sum_of(x, a->h) / (float)a->h;
    const float cut = mean + sqrtf(squares_of(x, mean, a->h) / (float)a->h) * a->deviations;
    for (int32_t d = 0; d < a->h; d++)
        x[d] = fmaxf(x[d] - cut, 0);
}

void sl_cpu_cut_gate(struct sl_backend *be, const struct sl_op_cut_gate *a)
{
    struct sl_op_cut_gate own = *a;
    sl_cpu_run(sl_cpu(be), cut_row, &own, a->n, 4 * (int64_t)a->n * a->h);
}
