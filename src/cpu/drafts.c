/* SPDX-License-Identifier: MIT
 * What only drafters need.
 *
 * Logits of the tokens of a few clusters: rows of a token are found one by one in the matrix, which
 * stays as the file has it, and multiplied some at a time.
 */
#include "base/check.h"
#include "cpu/backend.h"
#include "cpu/linear.h"

#include <float.h>
#include <math.h>

struct clusters_job {
    const struct sl_cpu *cpu;
    const struct sl_op_cluster_logits *a;
};

/* The clusters of row t, largest score first. */
static void choose_row(void *arg, uint32_t t, int thread_idx)
{
    const struct sl_op_cluster_logits *a = ((const struct clusters_job *)arg)->a;
    const float *s = a->scores + (int64_t)t * a->n_clusters;
    int32_t *top = a->top + (int64_t)t * a->top_k, n = 0;
    float *out = a->out + (int64_t)t * a->w->n_rows;
    (void)thread_idx;
    for (int32_t c = 0; c < a->n_clusters; c++) {
        if (n == a->top_k && !(s[c] > s[top[n - 1]]))
            continue;
        int32_t at = n < a->top_k ? n++ : n - 1;
        for (; at > 0 && s[c] > s[top[at - 1]]; at--)
            top[at] = top[at - 1];
        top[at] = c;
    }
    for (int64_t i = 0; i < a->w->n_rows; i++)
        out[i] = -FLT_MAX;
}

/* Tokens [n <= SL_CPU_ROWS] of a row. */
static void some_tokens(const struct clusters_job *j, struct sl_cpu_scratch *scratch,
                        const int32_t *tokens, int n, const float *x, float *out)
{
    const struct sl_cpu_kernels *k = &j->cpu->k;
    const struct sl_weight *w = j->a->w;
    const struct sl_dtype_info *info = sl_dtype_info(w->dtype);
    float sums[SL_CPU_ROWS];
    SL_ASSERT(n >= 1 && n <= SL_CPU_ROWS);
    for (int64_t at = 0, n_k; at < w->n_cols; at += n_k) {
        n_k = SL_MIN(w->n_cols - at, SL_CPU_K); /* whole blocks */
        for (int i = 0; i < n; i++)
            k->decode[w->dtype]((const uint8_t *)w->data + (size_t)tokens[i] * w->row_bytes +
                                    (size_t)(at / info->block_elems) * info->block_bytes,
                                scratch->panel + i * SL_CPU_K, n_k);
        k->gemm(scratch->panel, SL_CPU_K, n, x + at, w->n_cols, 1, (int)n_k, scratch->acc, at == 0);
    }
    k->reduce(scratch->acc, n, sums);
    for (int i = 0; i < n; i++)
        out[tokens[i]] = sums[i];
}

/* The tokens of one cluster of a row. */
static void multiply_cluster(void *arg, uint32_t item, int thread_idx)
{
    const struct clusters_job *j = arg;
    const struct sl_op_cluster_logits *a = j->a;
    const int64_t t = item / (uint32_t)a->top_k, size = a->w->n_rows / a->n_clusters;
    const int32_t *tokens = a->order + a->top[item] * size;
    for (int64_t i = 0; i < size; i += SL_CPU_ROWS)
        some_tokens(j, &j->cpu->scratch[thread_idx], tokens + i, (int)SL_MIN(size - i, SL_CPU_ROWS),
                    (const float *)a->x + t * a->w->n_cols, a->out + t * a->w->n_rows);
}

void sl_cpu_cluster_logits(struct sl_backend *be, const struct sl_op_cluster_logits *a)
{
    struct clusters_job j = {sl_cpu(be), a};
    const int64_t size = a->w->n_rows / a->n_clusters;
    SL_ASSERT(a->top_k >= 1 && a->top_k <= a->n_clusters);
    SL_ASSERT(size * a->n_clusters == a->w->n_rows);
    sl_cpu_run(sl_cpu(be), choose_row, &j, a->n, a->n * ((int64_t)a->n_clusters + a->w->n_rows));
    sl_cpu_run(sl_cpu(be), multiply_cluster, &j, a->n * a->top_k,
               (int64_t)a->n * a->top_k * size * a->w->n_cols);
}

static void step_state(void *arg, uint32_t i, int thread_idx)
{
    const struct sl_op_chain_state *a = arg;
    const float *mix = a->mix + (int64_t)i * 3 * a->width;
    float *state = a->state + (int64_t)(a->rows != NULL ? a->rows[i] : (int32_t)i) * a->width,
          *out = (float *)a->out + (int64_t)i * a->width;
    (void)thread_idx;
    for (int32_t k = 0; k < a->width; k++) {
        const float s = 1.0f / (1.0f + expf(-mix[k]));
        state[k] = s * (a->first ? 0 : state[k]) + (1.0f - s) * tanhf(mix[a->width + k]);
        out[k] = tanhf(mix[2 * a->width + k]);
    }
}

void sl_cpu_chain_state(struct sl_backend *be, const struct sl_op_chain_state *a)
{
    struct sl_op_chain_state args = *a;
    sl_cpu_run(sl_cpu(be), step_state, &args, a->n, 64 * (int64_t)a->n * a->width);
}
