/* SPDX-License-Identifier: MIT
 * Hyper-connections: what a sublayer reads of several residual streams, and where what it gives
 * goes. The weights of a row are a few dozen numbers, made here in one order of plain C; what is
 * done with the streams themselves are kernels.
 */
#include "base/check.h"
#include "cpu/backend.h"

#include <math.h>

struct hyper_job {
    const struct sl_cpu *cpu;
    const void *a;
};

static float hyper_sigmoid(const struct sl_cpu *cpu, float x)
{
    return 1.0f / (1.0f + cpu->k.exp(-x));
}

/* Each of n lists of n values, `step` apart and its values `apart`, divided by its sum + eps. */
static void hyper_divide(float *mix, int32_t n, int32_t step, int32_t apart, float eps)
{
    for (int32_t i = 0; i < n; i++) {
        float sum = 0;
        for (int32_t j = 0; j < n; j++)
            sum += mix[i * step + j * apart];
        for (int32_t j = 0; j < n; j++)
            mix[i * step + j * apart] /= sum + eps;
    }
}

/* Softmax by rows, then rows and columns in turns. */
static void hyper_balance(const struct sl_cpu *cpu, float *mix, int32_t n, int32_t n_iters,
                          float eps)
{
    for (int32_t i = 0; i < n; i++) {
        float *row = mix + i * n, max = row[0], sum = 0;
        for (int32_t j = 1; j < n; j++)
            max = row[j] > max ? row[j] : max;
        for (int32_t j = 0; j < n; j++)
            sum += row[j] = cpu->k.exp(row[j] - max);
        for (int32_t j = 0; j < n; j++)
            row[j] = row[j] / sum + eps;
    }
    hyper_divide(mix, n, 1, n, eps);
    for (int32_t i = 1; i < n_iters; i++) {
        hyper_divide(mix, n, n, 1, eps);
        hyper_divide(mix, n, 1, n, eps);
    }
}

/* Every stream is itself. */
static void hyper_keep(float *mix, int32_t n)
{
    for (int32_t i = 0; i < n * n; i++)
        mix[i] = i / n == i % n ? 1 : 0;
}

static void hyper_read_row(void *arg, uint32_t t, int thread_idx)
{
    const struct hyper_job *j = arg;
    const struct sl_op_hyper_read *a = j->a;
    const int32_t n = a->n_streams, step = a->last ? n : sl_hyper_weights(n);
    const int32_t n_w = a->last || a->n_iters > 0 ? step : 2 * n;
    const bool mixes = !a->last && a->n_iters > 0;
    const float *x = a->x + (int64_t)t * n * a->h;
    const float post = a->n_iters > 0 ? 2 : a->post_scale, more = a->n_iters > 0 ? 0 : a->eps;
    float *w = a->w + (int64_t)t * step;
    (void)thread_idx;
    if (a->scale == NULL) {
        for (int32_t i = 0; i < n; i++)
            w[i] = 1.0f / (float)n;
        j->cpu->k.hyper_read(x, w, n, a->h, a->out + (int64_t)t * a->h);
        return;
    }
    const float mean = j->cpu->k.squares(x, (int64_t)n * a->h) / (float)((int64_t)n * a->h);
    const float rms = 1.0f / sqrtf(mean + a->norm_eps);
    for (int32_t i = 0; i < n_w; i++) {
        w[i] = w[i] * rms * a->scale[i < n ? 0 : i < 2 * n ? 1 : 2] + a->base[i];
        if (i < 2 * n)
            w[i] = i < n ? hyper_sigmoid(j->cpu, w[i]) + a->eps
                         : post * hyper_sigmoid(j->cpu, w[i]) + more;
    }
    if (!mixes && !a->last)
        hyper_keep(w + 2 * n, n);
    if (mixes)
        hyper_balance(j->cpu, w + 2 * n, n, a->n_iters, a->eps);
    j->cpu->k.hyper_read(x, w, n, a->h, a->out + (int64_t)t * a->h);
}

void sl_cpu_hyper_read(struct sl_backend *be, const struct sl_op_hyper_read *a)
{
    struct hyper_job j = {sl_cpu(be), a};
    SL_ASSERT(a->n_streams >= 2 && a->n_streams <= SL_MAX_STREAMS && a->h > 0);
    SL_ASSERT(a->n_iters >= 1 || (a->n_iters == 0 && a->post_scale > 0));
    SL_ASSERT(a->scale != NULL || a->last);
    sl_cpu_run(sl_cpu(be), hyper_read_row, &j, a->n, 2 * (int64_t)a->n * a->n_streams * a->h);
}

static void hyper_write_row(void *arg, uint32_t t, int thread_idx)
{
    const struct hyper_job *j = arg;
    const struct sl_op_hyper_write *a = j->a;
    const int32_t n = a->n_streams;
    const float *w = a->w + (int64_t)t * sl_hyper_weights(n);
    (void)thread_idx;
    j->cpu->k.hyper_write(a->x + (int64_t)t * n * a->h, a->y + (int64_t)t * a->h, w + n, w + 2 * n,
                          n, a->h);
}

void sl_cpu_hyper_write(struct sl_backend *be, const struct sl_op_hyper_write *a)
{
    struct hyper_job j = {sl_cpu(be), a};
    SL_ASSERT(a->n_streams >= 2 && a->n_streams <= SL_MAX_STREAMS && a->h > 0);
    sl_cpu_run(sl_cpu(be), hyper_write_row, &j, a->n,
               (int64_t)a->n * a->n_streams * (a->n_streams + 1) * a->h);
}
