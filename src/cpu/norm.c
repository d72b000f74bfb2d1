/* SPDX-License-Identifier: MIT
 * Operations on whole rows: embedding, norms, gather, pooling. Each row is one item.
 */
#include "cpu/backend.h"

#include "base/check.h"

#include <string.h>

struct embed_job {
    const struct sl_cpu *cpu;
    const struct sl_op_embed *a;
};

struct norm_job {
    const struct sl_cpu *cpu;
    float *sum;         /* NULL: plain norm; else x + y goes here first */
    const float *x, *w; /* w NULL: no norm */
    float *y;
    const float *w_y; /* NULL: y is not normed */
    float y_scale;    /* 0: 1 */
    float eps, scale; /* of the sum; 0: none */
    int32_t h;
    float *out;
};

static void embed_row(void *arg, uint32_t t, int thread_idx)
{
    const struct embed_job *j = arg;
    const struct sl_weight *w = j->a->w;
    (void)thread_idx;
    float *out = j->a->out + (int64_t)t * w->n_cols;
    j->cpu->k.decode[w->dtype]((const uint8_t *)w->data + (size_t)j->a->ids[t] * w->row_bytes, out,
                               w->n_cols);
    for (int64_t i = 0; i < w->n_cols && j->a->scale != 1.0f; i++)
        out[i] *= j->a->scale;
}

void sl_cpu_embed(struct sl_backend *be, const struct sl_op_embed *a)
{
    struct embed_job j = {sl_cpu(be), a};
    sl_cpu_run(sl_cpu(be), embed_row, &j, a->n, a->n * a->w->n_cols);
}

static void norm_row(void *arg, uint32_t t, int thread_idx)
{
    const struct norm_job *j = arg;
    (void)thread_idx;
    int64_t at = (int64_t)t * j->h;
    if (j->w_y != NULL)
        j->cpu->k.rmsnorm(j->y + at, j->w_y, j->eps, j->h, j->y + at);
    if (j->y_scale != 0)
        j->cpu->k.scale(j->y + at, j->y_scale, j->h);
    if (j->sum != NULL)
        j->cpu->k.add(j->sum + at, j->y + at, j->h);
    if (j->scale != 0)
        j->cpu->k.scale(j->sum + at, j->scale, j->h);
    if (j->w != NULL)
        j->cpu->k.rmsnorm(j->x + at, j->w, j->eps, j->h, j->out + at);
    else if (j->out != NULL && j->out != j->x)
        memcpy(j->out + at, j->x + at, (size_t)j->h * sizeof *j->out);
}

static void norm_in_place(void *arg, uint32_t t, int thread_idx)
{
    const struct norm_job *j = arg;
    (void)thread_idx;
    float *x = (float *)j->x + (int64_t)t * j->h;
    j->cpu->k.rmsnorm(x, j->w, j->eps, j->h, x);
}

void sl_cpu_rmsnorm(struct sl_backend *be, const struct sl_op_rmsnorm *a)
{
    struct norm_job j = {
        .cpu = sl_cpu(be), .x = a->x, .w = a->w, .eps = a->eps, .h = a->h, .out = a->out};
    sl_cpu_run(sl_cpu(be), a->out != NULL ? norm_row : norm_in_place, &j, a->n,
               (int64_t)a->n * a->h);
}

void sl_cpu_add_rmsnorm(struct sl_backend *be, const struct sl_op_add_rmsnorm *a)
{
    struct norm_job j = {.cpu = sl_cpu(be),
                         .sum = a->x,
                         .x = a->x,
                         .y = a->y,
                         .w = a->w,
                         .w_y = a->w_y,
                         .y_scale = a->y_scale,
                         .eps = a->eps,
                         .scale = a->x_scale,
                         .h = a->h,
                         .out = a->out};
    sl_cpu_run(sl_cpu(be), norm_row, &j, a->n, (int64_t)a->n * a->h);
}

struct inputs_job {
    const struct sl_cpu *cpu;
    const struct sl_op_layer_inputs *a;
};

static void inputs_row(void *arg, uint32_t t, int thread_idx)
{
    const struct inputs_job *j = arg;
    const struct sl_op_layer_inputs *a = j->a;
    const struct sl_weight *table = a->table;
    const struct sl_dtype_info *info = sl_dtype_info(table->dtype);
    const int64_t id = a->ids[t] < table->n_rows ? a->ids[t] : 0;
    const uint8_t *row = (const uint8_t *)table->data + (size_t)id * table->row_bytes;
    float *piece = j->cpu->scratch[thread_idx].panel;
    /* a piece is whole blocks of the format, which layers need not be */
    for (int64_t at = 0, n; at < table->n_cols; at += n) {
        n = SL_MIN(table->n_cols - at, SL_CPU_ROWS * SL_CPU_K);
        j->cpu->k.decode[table->dtype](row + (size_t)(at / info->block_elems) * info->block_bytes,
                                       piece, n);
        for (int64_t k = 0; k < n; k++) {
            const int64_t layer = (at + k) / a->h, d = (at + k) % a->h;
            a->out[layer * a->ld_out + (int64_t)t * a->h + d] = piece[k] * a->row_scale;
        }
    }
    for (int32_t l = 0; l < a->n_layers; l++) {
        float *x = a->x + ((int64_t)t * a->n_layers + l) * a->h;
        float *out = a->out + l * a->ld_out + (int64_t)t * a->h;
        j->cpu->k.rmsnorm(x, a->w, a->eps, a->h, x);
        j->cpu->k.add(out, x, a->h);
        j->cpu->k.scale(out, a->scale, a->h);
    }
}

void sl_cpu_layer_inputs(struct sl_backend *be, const struct sl_op_layer_inputs *a)
{
    struct inputs_job j = {sl_cpu(be), a};
    sl_cpu_run(sl_cpu(be), inputs_row, &j, a->n, 4 * (int64_t)a->n * a->table->n_cols);
}

void sl_cpu_gather_rows(struct sl_backend *be, const struct sl_op_gather_rows *a)
{
    const uint8_t *x = a->x;
    uint8_t *out = a->out;
    (void)be;
    for (int32_t i = 0; i < a->n; i++)
        memcpy(out + (size_t)i * a->row_bytes, x + (size_t)a->rows[i] * a->row_bytes, a->row_bytes);
}

void sl_cpu_copy_rows(struct sl_backend *be, const struct sl_op_copy_rows *a)
{
    (void)be;
    const float *x = a->x; /* activations are floats too */
    float *out = a->out;
    for (int32_t i = 0; i < a->n; i++) {
        const int32_t from = a->rows != NULL ? a->rows[i] : i;
        SL_DCHECK(from >= 0 || a->other != NULL);
        memcpy(out + i * a->ld_out, from >= 0 ? x + from * a->ld_x : a->other,
               (size_t)a->h * sizeof *out);
    }
}

struct read_job {
    const struct sl_cpu *cpu;
    const void *a;
};

/* out += row id of w, a piece of it after the other. */
static void add_row(const struct sl_cpu *cpu, const struct sl_weight *w, int64_t id, float *piece,
                    float *out)
{
    const struct sl_dtype_info *info = sl_dtype_info(w->dtype);
    const uint8_t *src = (const uint8_t *)w->data + (size_t)id * w->row_bytes;
    for (int64_t k = 0, n; k < w->n_cols; k += n) {
        n = SL_MIN(w->n_cols - k, SL_CPU_ROWS * SL_CPU_K);
        cpu->k.decode[w->dtype](src + (size_t)(k / info->block_elems) * info->block_bytes, piece,
                                n);
        cpu->k.add(out + k, piece, n);
    }
}

static void embed_span(void *arg, uint32_t s, int thread_idx)
{
    const struct read_job *j = arg;
    const struct sl_op_embed_positions *a = j->a;
    const struct sl_span *span = &a->batch->spans[s];
    const int32_t second = a->batch->second_from != NULL ? a->batch->second_from[s] : INT32_MAX;
    float *piece = j->cpu->scratch[thread_idx].panel;
    for (int32_t i = 0; i < span->n; i++) {
        const struct sl_weight *w = a->word;
        float *out = a->out + (int64_t)(span->first + i) * w->n_cols;
        size_t id = (size_t)a->batch->tokens[span->first + i];
        j->cpu->k.decode[w->dtype]((const uint8_t *)w->data + id * w->row_bytes, out, w->n_cols);
        if (a->type != NULL)
            add_row(j->cpu, a->type, !a->one_type && span->pos + i >= second, piece, out);
        if (a->position != NULL)
            add_row(j->cpu, a->position, a->first + span->pos + i, piece, out);
    }
}

void sl_cpu_embed_positions(struct sl_backend *be, const struct sl_op_embed_positions *a)
{
    struct read_job j = {sl_cpu(be), a};
    sl_cpu_run(sl_cpu(be), embed_span, &j, a->batch->n_spans,
               3 * a->batch->n_tokens * a->word->n_cols);
}

static void layernorm_row(void *arg, uint32_t t, int thread_idx)
{
    const struct read_job *j = arg;
    const struct sl_op_layernorm *a = j->a;
    const int64_t at = (int64_t)t * a->h;
    float *x = a->x + at, *out = (float *)a->out + at;
    (void)thread_idx;
    if (a->y != NULL && a->y_scale != 0)
        j->cpu->k.scale(a->y + at, a->y_scale, a->h);
    if (a->y != NULL)
        j->cpu->k.add(x, a->y + at, a->h);
    j->cpu->k.layernorm(x, a->w, a->b, a->eps, a->h, out);
    if (a->keep && out != x)
        memcpy(x, out, (size_t)a->h * sizeof *x);
}

void sl_cpu_layernorm(struct sl_backend *be, const struct sl_op_layernorm *a)
{
    struct read_job j = {sl_cpu(be), a};
    sl_cpu_run(sl_cpu(be), layernorm_row, &j, a->n, (int64_t)a->n * a->h);
}

#define ACT_ITEM 4096 /* values, a multiple of the lanes */

static void activate_piece(void *arg, uint32_t i, int thread_idx)
{
    const struct read_job *j = arg;
    const struct sl_op_activate *a = j->a;
    const int64_t at = (int64_t)i * ACT_ITEM;
    (void)thread_idx;
    const int64_t n = SL_MIN(a->n - at, ACT_ITEM);
    if (a->up != NULL && a->swiglu.limit > 0)
        j->cpu->k.swiglu(&a->swiglu, a->x + at, a->up + at, (int)n, (float *)a->out + at);
    else if (a->act == SL_ACT_XIELU)
        j->cpu->k.xielu(&a->xielu, a->x + at, n, (float *)a->out + at);
    else if (a->up != NULL)
        j->cpu->k.act(a->act, a->x + at, a->up + at, (int)n, (float *)a->out + at);
    else
        j->cpu->k.act_alone(a->act, a->x + at, n, (float *)a->out + at);
}

void sl_cpu_activate(struct sl_backend *be, const struct sl_op_activate *a)
{
    struct read_job j = {sl_cpu(be), a};
    sl_cpu_run(sl_cpu(be), activate_piece, &j, SL_CEIL_DIV(a->n, ACT_ITEM), 16 * a->n);
}

/* ln(1 + exp(x)), by the series of v_softplus (recurrent_tmpl.c). */
static float norm_softplus(const struct sl_cpu *cpu, float x)
{
    const float y = cpu->k.exp(x > 0 ? -x : x), s = y / (y + 2), z = s * s;
    float p = 1.0f / 15;
    for (int i = 13; i > 1; i -= 2)
        p = p * z + 1.0f / (float)i;
    return (0.0f > x ? 0.0f : x) + 2 * s * (p * z + 1);
}

static void gate_row(void *arg, uint32_t t, int thread_idx)
{
    const struct read_job *j = arg;
    const struct sl_op_gate_heads *a = j->a;
    const int64_t n = (int64_t)a->n_heads * a->dim, n_gate = a->by_head ? a->n_heads : n;
    float *x = (float *)a->x + (int64_t)t * n, open = 0;
    const float *gate = a->gate + (int64_t)t * n_gate;
    (void)thread_idx;
    for (int64_t i = 0; i < n; i++) {
        const float g = gate[a->by_head ? i / a->dim : i];
        if (!a->by_head || i % a->dim == 0)
            open = a->softplus ? norm_softplus(j->cpu, g) : 1 / (1 + j->cpu->k.exp(-g));
        x[i] *= open;
    }
}

void sl_cpu_gate_heads(struct sl_backend *be, const struct sl_op_gate_heads *a)
{
    struct read_job j = {sl_cpu(be), a};
    sl_cpu_run(sl_cpu(be), gate_row, &j, a->n, 16 * (int64_t)a->n * a->n_heads * a->dim);
}

static void scale_piece(void *arg, uint32_t i, int thread_idx)
{
    const struct read_job *j = arg;
    const struct sl_op_scale_logits *a = j->a;
    const int64_t at = (int64_t)i * ACT_ITEM, n = SL_MIN(a->n - at, ACT_ITEM);
    (void)thread_idx;
    if (a->scale != 1.0f)
        j->cpu->k.scale(a->x + at, a->scale, n);
    if (a->cap > 0)
        j->cpu->k.softcap(a->x + at, a->cap, n);
}

void sl_cpu_scale_logits(struct sl_backend *be, const struct sl_op_scale_logits *a)
{
    struct read_job j = {sl_cpu(be), a};
    sl_cpu_run(sl_cpu(be), scale_piece, &j, SL_CEIL_DIV(a->n, ACT_ITEM), 16 * a->n);
}

/* Rows in ascending order, so that what is pooled depends on nothing else. */
static void pool_span(void *arg, uint32_t s, int thread_idx)
{
    const struct read_job *j = arg;
    const struct sl_op_pool *a = j->a;
    const struct sl_span one = {.first = (int32_t)s, .n = 1};
    const struct sl_span *span = a->spans != NULL ? &a->spans[s] : &one;
    const bool several = a->kind == SL_POOL_MEAN || a->kind == SL_POOL_MAX;
    const int32_t from = span->first + (a->kind == SL_POOL_LAST ? span->n - 1 : 0);
    const float *x = (const float *)a->x + (int64_t)from * a->h;
    float *out = a->out + (int64_t)s * a->h;
    (void)thread_idx;
    memcpy(out, x, (size_t)a->h * sizeof *out);
    for (int32_t i = 1; several && i < span->n; i++) {
        if (a->kind == SL_POOL_MEAN)
            j->cpu->k.add(out, x + (int64_t)i * a->h, a->h);
        else
            j->cpu->k.max(out, x + (int64_t)i * a->h, a->h);
    }
    if (a->kind == SL_POOL_MEAN && span->n > 1)
        j->cpu->k.scale(out, 1.0f / (float)span->n, a->h);
    if (a->normalize)
        j->cpu->k.unit(out, a->h);
}

void sl_cpu_pool(struct sl_backend *be, const struct sl_op_pool *a)
{
    struct read_job j = {sl_cpu(be), a};
    int64_t n_rows = a->n;
    if (a->spans != NULL && a->n > 0)
        n_rows = a->spans[a->n - 1].first + a->spans[a->n - 1].n;
    sl_cpu_run(sl_cpu(be), pool_span, &j, a->n, n_rows * a->h);
}
