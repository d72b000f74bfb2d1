/* SPDX-License-Identifier: MIT
 * What ranks give of the same rows, added up: each has the sum of its own experts (ops.h).
 */
#include "base/check.h"
#include "cpu/backend.h"

void sl_cpu_add_shared(const struct sl_cpu *cpu, const float *shared, const float *logit, int64_t n,
                       float *out)
{
    const float scale = logit != NULL ? 1 / (1 + cpu->k.exp(-*logit)) : 1;
    for (int64_t k = 0; k < n; k++)
        out[k] = scale * shared[k] + out[k];
}

struct parts_job {
    const struct sl_cpu *cpu;
    const struct sl_op_sum_parts *a;
};

static void sum_row(void *arg, uint32_t t, int thread_idx)
{
    const struct parts_job *j = arg;
    const struct sl_op_sum_parts *a = j->a;
    const int64_t h = a->h;
    const float *part = a->parts + (int64_t)t * a->n_parts * h;
    float *out = a->out + (int64_t)t * h;
    (void)thread_idx;
    for (int64_t k = 0; k < h; k++) {
        float v[SL_EXPERT_LEAVES];
        for (int32_t i = 0; i < a->n_parts; i++)
            v[i] = part[i * h + k];
        for (int32_t n = a->n_parts / 2; n > 0; n /= 2)
            for (int32_t i = 0; i < n; i++)
                v[i] = v[2 * i] + v[2 * i + 1];
        out[k] = v[0];
    }
    if (a->shared != NULL)
        sl_cpu_add_shared(j->cpu, a->shared + (int64_t)t * h,
                          a->shared_logit != NULL ? &a->shared_logit[t] : NULL, h, out);
}

void sl_cpu_sum_parts(struct sl_backend *be, const struct sl_op_sum_parts *a)
{
    struct parts_job j = {sl_cpu(be), a};
    SL_ASSERT(a->n_parts == 2 || a->n_parts == 4 || a->n_parts == 8);
    SL_ASSERT(a->shared != NULL || a->shared_logit == NULL);
    sl_cpu_run(sl_cpu(be), sum_row, &j, a->n, (int64_t)a->n * a->n_parts * a->h);
}
