/* SPDX-License-Identifier: MIT
 * Rotary positions, per-head norms, and the way of keys and values into the pages.
 *
 * The angle is rounded to float before its cosine is taken, as the models were trained; cosine and
 * sine come from the C library in double and are rounded once. One code path for every instruction
 * set: multiply, multiply, add, without fusing.
 */
#include "cpu/backend.h"
#include "cpu/place.h"

#include <math.h>
#include <string.h>

void sl_cpu_angles_row(const struct sl_op_rope_angles *a, uint32_t t)
{
    int32_t n = a->rope->n_dims / 2;
    float *out = a->out + (int64_t)t * 2 * n, pos = (float)a->positions[t];
    for (int32_t i = 0; i < n; i++) {
        double angle = (double)(pos * a->rope->inv_freq[i]);
        out[2 * i] = (float)cos(angle) * a->rope->attn_factor;
        out[2 * i + 1] = (float)sin(angle) * a->rope->attn_factor;
    }
}

static void angles_row(void *arg, uint32_t t, int thread_idx)
{
    (void)thread_idx;
    sl_cpu_angles_row(arg, t);
}

void sl_cpu_rope_angles(struct sl_backend *be, const struct sl_op_rope_angles *a)
{
    /* a sine costs about as much as 50 multiplications */
    sl_cpu_run(sl_cpu(be), angles_row, (void *)(uintptr_t)a, a->n,
               (int64_t)a->n * a->rope->n_dims * 50);
}

static void rope_rotate(const struct sl_rope *rope, const float *cs, float *x)
{
    int32_t n = rope->n_dims / 2;
    if (rope->pairing == SL_ROPE_HALF) {
        float *restrict a = x, *restrict b = x + n;
        for (int32_t i = 0; i < n; i++) {
            float c = cs[2 * i], s = cs[2 * i + 1], p = a[i], q = b[i];
            a[i] = p * c - q * s;
            b[i] = q * c + p * s;
        }
        return;
    }
    for (int32_t i = 0; i < 2 * n; i += 2) {
        float c = cs[i], s = cs[i + 1], p = x[i], q = x[i + 1];
        x[i] = p * c - q * s;
        x[i + 1] = q * c + p * s;
    }
}

static void rope_warm(const struct sl_q_temperature *t, int32_t pos, float *q, int32_t n)
{
    const float spans = floorf((float)(pos + t->first) / t->span);
    const float factor = 1.0f + t->beta * (float)log(1.0 + (double)spans);
    for (int32_t i = 0; i < n; i++)
        q[i] *= factor;
}

static void rope_clip(float limit, float *x, int32_t n)
{
    for (int32_t i = 0; i < n && limit != 0; i++)
        x[i] = x[i] < -limit ? -limit : x[i] > limit ? limit : x[i];
}

struct store_job {
    struct sl_cpu *cpu;
    const struct sl_op_qk_norm_rope_kv_store *a;
};

/* A head vector [dim] as the page stores it; others than floats are made by the store. */
static const void *rope_encode(const struct sl_cpu *cpu, enum sl_dtype dtype, const float *x,
                               int32_t dim, void *out)
{
    if (dtype != SL_DTYPE_F16 && dtype != SL_DTYPE_BF16)
        return x;
    cpu->k.encode[dtype](x, out, dim);
    return out;
}

/* The keys and values of row t: each head is made in scratch, then goes to its tile. */
static void store_kv(const struct store_job *j, uint32_t t, const float *cs,
                     struct sl_attn_scratch *scratch)
{
    const struct sl_op_qk_norm_rope_kv_store *a = j->a;
    const struct sl_cpu_kernels *k = &j->cpu->k;
    const int32_t hd = a->head_dim, vd = sl_v_dim(hd, a->v_dim), bs = sl_kv_own_size(&a->kv);
    const int32_t k_dim = sl_kv_padded_dim(hd), v_dim = sl_kv_padded_dim(vd);
    const enum sl_dtype keys = sl_kv_keys(a->kv.dtype), values = sl_kv_values(a->kv.dtype);
    const size_t k_bytes = sl_kv_tile_bytes(keys, hd), v_bytes = sl_kv_tile_bytes(values, vd);
    const struct row_place place = place_of(a->batch, &a->kv, (int32_t)t);
    float *head = scratch->query;
    for (int32_t h = 0; h < a->n_kv_heads && place.page != NULL; h++) {
        const size_t tile = (size_t)(h * (bs / SL_KV_TILE) + place.tile);
        const float *key = a->k + t * a->ld_k + (int64_t)h * hd;
        const bool normed = a->norm_bare || (a->k_norm != NULL && !a->norm_rows);
        if (normed && !a->norm_after)
            k->rmsnorm(key, a->k_norm, a->eps, hd, head);
        else
            memcpy(head, key, (size_t)hd * sizeof(float));
        rope_clip(a->clip, head, hd);
        if (cs != NULL)
            rope_rotate(a->rope, cs, head);
        if (normed && a->norm_after)
            k->rmsnorm(head, a->k_norm, a->eps, hd, head);
        memset(head + hd, 0, (size_t)(k_dim - hd) * sizeof(float));
        sl_attn_store_k(keys, rope_encode(j->cpu, keys, head, k_dim, scratch->query16), k_dim,
                        place.page + a->kv.k_offset + tile * k_bytes, place.slot);
        const float *value = a->v + t * a->ld_v + (int64_t)h * vd;
        if (a->norm_v)
            k->rmsnorm(value, NULL, a->eps, vd, head);
        else
            memcpy(head, value, (size_t)vd * sizeof(float));
        rope_clip(a->clip, head, vd);
        memset(head + vd, 0, (size_t)(v_dim - vd) * sizeof(float));
        sl_attn_store_v(values, rope_encode(j->cpu, values, head, v_dim, scratch->query16), v_dim,
                        place.page + a->kv.v_offset + tile * v_bytes, place.slot);
    }
}

static void store_row(void *arg, uint32_t t, int thread_idx)
{
    const struct store_job *j = arg;
    const struct sl_op_qk_norm_rope_kv_store *a = j->a;
    const struct sl_cpu_kernels *k = &j->cpu->k;
    const int32_t hd = a->head_dim;
    const float *cs = a->rope != NULL ? a->angles + (int64_t)t * a->rope->n_dims : NULL;
    const bool heads = a->norm_bare || (a->q_norm != NULL && !a->norm_rows); /* are normed */

    if (a->norm_rows) {
        float *q = a->q + t * a->ld_q, *key = a->k + t * a->ld_k;
        k->rmsnorm(q, a->q_norm, a->eps, a->n_heads * hd, q);
        k->rmsnorm(key, a->k_norm, a->eps, a->n_kv_heads * hd, key);
    }
    for (int32_t h = 0; h < a->n_heads; h++) {
        float *q = a->q + t * a->ld_q + (int64_t)h * hd;
        if (heads && !a->norm_after)
            k->rmsnorm(q, a->q_norm, a->eps, hd, q);
        rope_clip(a->clip, q, hd);
        if (cs != NULL)
            rope_rotate(a->rope, cs, q);
        if (heads && a->norm_after)
            k->rmsnorm(q, a->q_norm, a->eps, hd, q);
        if (a->temperature.beta != 0)
            rope_warm(&a->temperature, a->batch->positions[t], q, hd);
    }
    if (a->k != NULL)
        store_kv(j, t, cs, &j->cpu->attn_scratch[thread_idx]);
}

void sl_cpu_qk_norm_rope_kv_store(struct sl_backend *be,
                                  const struct sl_op_qk_norm_rope_kv_store *a)
{
    SL_ASSERT(a->head_dim <= SL_MAX_HEAD_DIM && a->v_dim <= SL_MAX_HEAD_DIM);
    SL_ASSERT(!a->norm_rows || (a->k != NULL && a->v != a->k));
    SL_ASSERT(!a->norm_rows || !a->norm_after);
    SL_ASSERT(!a->norm_bare || (a->q_norm == NULL && a->k_norm == NULL && !a->norm_rows));
    struct store_job j = {sl_cpu(be), a};
    int64_t work = (int64_t)a->batch->n_tokens * (a->n_heads + 2 * a->n_kv_heads) * a->head_dim;
    sl_cpu_run(sl_cpu(be), store_row, &j, a->batch->n_tokens, 2 * work);
}

/* ---------------------------------------------------------------- latent attention */

struct latent_job {
    struct sl_cpu *cpu;
    const struct sl_op_latent_store *a;
};

static void store_latent(const struct latent_job *j, uint32_t t, const float *cs,
                         struct sl_attn_scratch *scratch)
{
    const struct sl_op_latent_store *a = j->a;
    const int32_t n = a->rank + a->rope_dim, dim = sl_kv_padded_dim(n);
    const struct row_place place = place_of(a->batch, &a->kv, (int32_t)t);
    float *row = scratch->query;
    if (place.page == NULL)
        return;
    j->cpu->k.rmsnorm(a->c + (int64_t)t * a->rank, a->norm, a->eps, a->rank, row);
    if (a->rope_dim > 0)
        memcpy(row + a->rank, a->k_rope + (int64_t)t * a->rope_dim,
               (size_t)a->rope_dim * sizeof *row);
    if (cs != NULL)
        rope_rotate(a->rope, cs, row + a->rank);
    memset(row + n, 0, (size_t)(dim - n) * sizeof *row);
    const void *stored = rope_encode(j->cpu, a->kv.dtype, row, dim, scratch->query16);
    uint8_t *tile =
        place.page + a->kv.k_offset + (size_t)place.tile * sl_kv_tile_bytes(a->kv.dtype, n);
    if (a->by_row)
        sl_attn_store_row(a->kv.dtype, stored, dim, tile, place.slot);
    else
        sl_attn_store_k(a->kv.dtype, stored, dim, tile, place.slot);
}

static void latent_row(void *arg, uint32_t t, int thread_idx)
{
    const struct latent_job *j = arg;
    const struct sl_op_latent_store *a = j->a;
    const float *cs = a->rope != NULL ? a->angles + (int64_t)t * a->rope->n_dims : NULL;
    for (int32_t h = 0; h < a->n_heads; h++) {
        float *q = a->q + ((int64_t)t * a->n_heads + h) * (a->rank + a->rope_dim);
        memcpy(q + a->rank, a->q_rope + (int64_t)t * a->ld_q_rope + h * a->step_q_rope,
               (size_t)a->rope_dim * sizeof *q);
        if (cs != NULL)
            rope_rotate(a->rope, cs, q + a->rank);
        if (a->temperature.beta != 0)
            rope_warm(&a->temperature, a->batch->positions[t], q, a->rank + a->rope_dim);
    }
    store_latent(j, t, cs, &j->cpu->attn_scratch[thread_idx]);
}

void sl_cpu_latent_store(struct sl_backend *be, const struct sl_op_latent_store *a)
{
    SL_ASSERT(a->rank > 0 && a->rope_dim >= 0 && a->rank + a->rope_dim <= SL_MAX_HEAD_DIM);
    SL_ASSERT(a->rope == NULL || a->rope->n_dims == a->rope_dim);
    struct latent_job j = {sl_cpu(be), a};
    const int64_t work = (int64_t)a->batch->n_tokens * (a->n_heads * a->rope_dim + 2 * a->rank);
    sl_cpu_run(sl_cpu(be), latent_row, &j, a->batch->n_tokens, 2 * work);
}

/* ---------------------------------------------------------------- the keys of an index */

struct index_job {
    struct sl_cpu *cpu;
    const struct sl_op_index_store *a;
};

static void index_row(void *arg, uint32_t t, int thread_idx)
{
    const struct index_job *j = arg;
    const struct sl_op_index_store *a = j->a;
    const int32_t dim = sl_kv_padded_dim(a->dim);
    const float *cs = a->rope != NULL ? a->angles + (int64_t)t * a->rope->n_dims : NULL;
    const struct row_place place = place_of(a->batch, &a->kv, (int32_t)t);
    struct sl_attn_scratch *scratch = &j->cpu->attn_scratch[thread_idx];
    float *row = scratch->query;
    for (int32_t h = 0; h < a->n_heads; h++) {
        float *q = a->q + ((int64_t)t * a->n_heads + h) * a->dim;
        if (a->q_norm != NULL)
            j->cpu->k.rmsnorm(q, a->q_norm, a->eps, a->dim, q);
        if (cs != NULL)
            rope_rotate(a->rope, cs, q + a->rope_from);
    }
    const float *k = a->k + (int64_t)t * a->dim;
    if (a->norm_bias != NULL)
        j->cpu->k.layernorm(k, a->norm, a->norm_bias, a->eps, a->dim, row);
    else
        j->cpu->k.rmsnorm(k, a->norm, a->eps, a->dim, row);
    if (cs != NULL)
        rope_rotate(a->rope, cs, row + a->rope_from);
    memset(row + a->dim, 0, (size_t)(dim - a->dim) * sizeof *row);
    sl_attn_store_k(a->kv.dtype, rope_encode(j->cpu, a->kv.dtype, row, dim, scratch->query16), dim,
                    place.page + a->kv.k_offset +
                        (size_t)place.tile * sl_kv_tile_bytes(a->kv.dtype, a->dim),
                    place.slot);
}

void sl_cpu_index_store(struct sl_backend *be, const struct sl_op_index_store *a)
{
    SL_ASSERT(a->dim > 0 && a->dim <= SL_MAX_HEAD_DIM && a->n_heads >= 0);
    SL_ASSERT(a->rope == NULL || a->rope_from + a->rope->n_dims <= a->dim);
    struct index_job j = {sl_cpu(be), a};
    const int64_t work = (int64_t)a->batch->n_tokens * (a->n_heads + 4) * a->dim;
    sl_cpu_run(sl_cpu(be), index_row, &j, a->batch->n_tokens, 2 * work);
}
