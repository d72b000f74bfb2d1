/* SPDX-License-Identifier: MIT
 * Rotary positions, per-head norms, and the way of keys and values into the pages.
 *
 * The angle is rounded to float before its cosine is taken, as the models were trained; cosine and
 * sine come from the C library in double and are rounded once. One code path for every instruction
 * set: multiply, multiply, add, without fusing.
 */
#include "cpu/backend.h"

#include <math.h>
#include <string.h>

static void angles_row(void *arg, uint32_t t, int thread_idx)
{
    const struct sl_op_rope_angles *a = arg;
    (void)thread_idx;
    int32_t n = a->rope->n_dims / 2;
    float *out = a->out + (int64_t)t * 2 * n, pos = (float)a->positions[t];
    for (int32_t i = 0; i < n; i++) {
        double angle = (double)(pos * a->rope->inv_freq[i]);
        out[2 * i] = (float)cos(angle) * a->rope->attn_factor;
        out[2 * i + 1] = (float)sin(angle) * a->rope->attn_factor;
    }
}

void sl_cpu_rope_angles(struct sl_backend *be, const struct sl_op_rope_angles *a)
{
    /* a sine costs about as much as 50 multiplications */
    sl_cpu_run(sl_cpu(be), angles_row, (void *)(uintptr_t)a, a->n,
               (int64_t)a->n * a->rope->n_dims * 50);
}

static void rotate(const struct sl_rope *rope, const float *cs, float *x)
{
    int32_t n = rope->n_dims / 2;
    bool half = rope->pairing == SL_ROPE_HALF;
    for (int32_t i = 0; i < n; i++) {
        float *a = half ? x + i : x + 2 * i, *b = half ? a + n : a + 1;
        float c = cs[2 * i], s = cs[2 * i + 1], p = *a, q = *b;
        *a = p * c - q * s;
        *b = q * c + p * s;
    }
}

struct store_job {
    struct sl_cpu *cpu;
    const struct sl_op_qk_norm_rope_kv_store *a;
};

/* The span that holds token t. */
static const struct sl_span *span_of(const struct sl_batch *b, int32_t t)
{
    int32_t lo = 0, hi = b->n_spans - 1;
    while (lo < hi) {
        int32_t mid = lo + (hi - lo + 1) / 2;
        if (b->spans[mid].first <= t)
            lo = mid;
        else
            hi = mid - 1;
    }
    return &b->spans[lo];
}

static void store_row(void *arg, uint32_t t, int thread_idx)
{
    const struct store_job *j = arg;
    const struct sl_op_qk_norm_rope_kv_store *a = j->a;
    const struct sl_cpu_kernels *k = &j->cpu->k;
    const int32_t hd = a->head_dim, bs = a->kv.block_size;
    const struct sl_span *span = span_of(a->batch, (int32_t)t);
    const float *cs = a->rope != NULL ? a->angles + (int64_t)t * a->rope->n_dims : NULL;
    float *head = j->cpu->scratch[thread_idx].query;

    for (int32_t h = 0; h < a->n_heads; h++) {
        float *q = a->q + t * a->ld_q + (int64_t)h * hd;
        if (a->q_norm != NULL)
            k->rmsnorm(q, a->q_norm, a->eps, hd, q);
        if (cs != NULL)
            rotate(a->rope, cs, q);
    }
    int32_t pos = span->pos + ((int32_t)t - span->first);
    int32_t page = a->batch->block_tables[span->table_idx + pos / bs];
    uint8_t *base = a->kv.pool + (size_t)page * a->kv.page_bytes;
    size_t head_bytes = (size_t)hd * sl_dtype_info(a->kv.dtype)->block_bytes;
    for (int32_t h = 0; h < a->n_kv_heads; h++) {
        size_t at = ((size_t)h * (size_t)bs + (size_t)(pos % bs)) * head_bytes;
        const float *key = a->k + t * a->ld_k + (int64_t)h * hd;
        if (a->k_norm != NULL)
            k->rmsnorm(key, a->k_norm, a->eps, hd, head);
        else
            memcpy(head, key, (size_t)hd * sizeof(float));
        if (cs != NULL)
            rotate(a->rope, cs, head);
        k->encode[a->kv.dtype](head, base + a->kv.k_offset + at, hd);
        k->encode[a->kv.dtype](a->v + t * a->ld_v + (int64_t)h * hd, base + a->kv.v_offset + at,
                               hd);
    }
}

void sl_cpu_qk_norm_rope_kv_store(struct sl_backend *be,
                                  const struct sl_op_qk_norm_rope_kv_store *a)
{
    SL_ASSERT(a->head_dim <= SL_MAX_HEAD_DIM);
    struct store_job j = {sl_cpu(be), a};
    int64_t work = (int64_t)a->batch->n_tokens * (a->n_heads + 2 * a->n_kv_heads) * a->head_dim;
    sl_cpu_run(sl_cpu(be), store_row, &j, a->batch->n_tokens, 2 * work);
}
