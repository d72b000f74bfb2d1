/* SPDX-License-Identifier: MIT
 * Matrix products y = W x, one token or many.
 *
 * One token: each thread streams its rows once, the kernel decodes them in registers (gemv). The
 * bound is memory: n_rows * row_bytes read.
 *
 * Many tokens: 8 rows x 512 columns are decoded to a panel of floats (16 KiB, in L1), against which
 * up to 64 tokens pass in register tiles; 32 rows share a block of activations while it is in L2.
 * The sixteen partial sums of each output wait in acc between blocks of columns, so blocking does
 * not touch their order. The bound is the processor's multiply-add rate.
 */
#include "cpu/backend.h"

#include "base/check.h"

#include <string.h>

/* Weights of one item with one token: long enough that few lines prefetched for the next rows go to
 * another thread's item, short enough that threads finish together. */
#define GEMV_ITEM_MIN (64u << 10)
#define GEMV_ITEM_MAX (1u << 20)
#define GEMV_ITEMS    4 /* of a thread */

struct job {
    struct sl_cpu *cpu;
    const struct sl_weight *w, *up; /* up NULL: plain linear */
    const float *bias;
    enum sl_act act;
    const float *x;
    int64_t ld_x;
    int32_t n;
    float *out;
    int64_t ld_out;
    int32_t rows_per_item;
    uint32_t n_row_items; /* items = row items x token blocks, tokens inner */
    uint32_t n_token_items;
};

static const uint8_t *row_at(const struct sl_weight *w, int64_t row)
{
    return (const uint8_t *)w->data + (size_t)row * w->row_bytes;
}

/* out[t, i] = row r0 + i of w . x[t] for n_r <= SL_CPU_SUPER rows and n_t <= SL_CPU_TOKENS. */
static void block(const struct sl_cpu_kernels *k, struct sl_cpu_scratch *s,
                  const struct sl_weight *w, int64_t r0, int n_r, const float *x, int64_t ld_x,
                  int n_t, float *out, int64_t ld_out)
{
    const struct sl_dtype_info *info = sl_dtype_info(w->dtype);
    const int group_acc = n_t * SL_CPU_ROWS * SL_CPU_LANES;
    for (int64_t k0 = 0; k0 < w->n_cols; k0 += SL_CPU_K) {
        int n_k = (int)SL_MIN(w->n_cols - k0, SL_CPU_K);
        size_t offset = (size_t)(k0 / info->block_elems) * info->block_bytes;
        for (int g = 0; g < n_r; g += SL_CPU_ROWS) {
            int rows = SL_MIN(n_r - g, SL_CPU_ROWS);
            for (int r = 0; r < rows; r++)
                k->decode[w->dtype](row_at(w, r0 + g + r) + offset, s->panel + r * SL_CPU_K, n_k);
            k->gemm(s->panel, SL_CPU_K, rows, x + k0, ld_x, n_t, n_k,
                    s->acc + g / SL_CPU_ROWS * group_acc, k0 == 0);
        }
    }
    for (int g = 0; g < n_r; g += SL_CPU_ROWS) {
        const float *acc = s->acc + g / SL_CPU_ROWS * group_acc;
        for (int t = 0; t < n_t; t++)
            k->reduce(acc + t * SL_CPU_ROWS * SL_CPU_LANES, SL_MIN(n_r - g, SL_CPU_ROWS),
                      out + t * ld_out + g);
    }
}

/* The same, straight from the format where there is a kernel for that. */
static void rows_times_tokens(const struct sl_cpu_kernels *k, struct sl_cpu_scratch *s,
                              const struct sl_weight *w, int64_t r0, int n_r, const float *x,
                              int64_t ld_x, int n_t, float *out, int64_t ld_out)
{
    if (n_t == 1 && k->gemv[w->dtype] != NULL)
        k->gemv[w->dtype](row_at(w, r0), w->row_bytes, n_r, x, w->n_cols, out);
    else
        block(k, s, w, r0, n_r, x, ld_x, n_t, out, ld_out);
}

static void linear_item(void *arg, uint32_t item, int thread_idx)
{
    const struct job *j = arg;
    const struct sl_cpu_kernels *k = &j->cpu->k;
    struct sl_cpu_scratch *s = &j->cpu->scratch[thread_idx];
    int64_t first = (int64_t)(item / j->n_token_items) * j->rows_per_item;
    int64_t end = SL_MIN(first + j->rows_per_item, j->w->n_rows);
    int t0 = (int)(item % j->n_token_items) * SL_CPU_TOKENS;
    int n_t = SL_MIN(j->n - t0, SL_CPU_TOKENS);
    const float *x = j->x + t0 * j->ld_x;
    if (j->n == 1 && j->up == NULL && k->gemv[j->w->dtype] != NULL) {
        k->gemv[j->w->dtype](row_at(j->w, first), j->w->row_bytes, (int)(end - first), x,
                             j->w->n_cols, j->out + first);
        if (j->bias != NULL)
            k->add(j->out + first, j->bias + first, end - first);
        return;
    }
    for (int64_t r = first; r < end; r += SL_CPU_SUPER) {
        int n_r = (int)SL_MIN(end - r, SL_CPU_SUPER);
        float *out = j->out + t0 * j->ld_out + r;
        if (j->up == NULL) {
            rows_times_tokens(k, s, j->w, r, n_r, x, j->ld_x, n_t, out, j->ld_out);
            for (int t = 0; t < n_t && j->bias != NULL; t++)
                k->add(out + t * j->ld_out, j->bias + r, n_r);
            continue;
        }
        rows_times_tokens(k, s, j->w, r, n_r, x, j->ld_x, n_t, s->gate, SL_CPU_SUPER);
        rows_times_tokens(k, s, j->up, r, n_r, x, j->ld_x, n_t, s->up, SL_CPU_SUPER);
        for (int t = 0; t < n_t; t++)
            k->act(j->act, s->gate + t * SL_CPU_SUPER, s->up + t * SL_CPU_SUPER, n_r,
                   out + t * j->ld_out);
    }
}

static int32_t gemv_item_rows(const struct job *j)
{
    size_t per_item = j->w->n_bytes / (size_t)(j->cpu->n_threads * GEMV_ITEMS);
    per_item = SL_MIN(SL_MAX(per_item, GEMV_ITEM_MIN), GEMV_ITEM_MAX);
    return (int32_t)SL_MIN(SL_ROUND_UP(per_item / j->w->row_bytes + 1, SL_CPU_SUPER), 1u << 20);
}

static void run(struct job *j)
{
    const struct sl_weight *w = j->w;
    int64_t work = w->n_rows * w->n_cols * j->n;
    if (j->n <= 0)
        return;
    j->rows_per_item = j->n == 1 ? gemv_item_rows(j) : SL_CPU_SUPER;
    j->n_token_items = (uint32_t)SL_CEIL_DIV(j->n, SL_CPU_TOKENS);
    j->n_row_items = (uint32_t)SL_CEIL_DIV(w->n_rows, j->rows_per_item);
    sl_cpu_run(j->cpu, linear_item, j, (int64_t)j->n_row_items * j->n_token_items, work);
}

void sl_cpu_linear(struct sl_backend *be, const struct sl_op_linear *a)
{
    struct job j = {.cpu = sl_cpu(be),
                    .w = a->w,
                    .bias = a->bias,
                    .x = a->x,
                    .ld_x = a->ld_x,
                    .n = a->n,
                    .out = a->out,
                    .ld_out = a->ld_out};
    run(&j);
}

void sl_cpu_linear_gated_act(struct sl_backend *be, const struct sl_op_linear_gated_act *a)
{
    SL_ASSERT(a->gate->n_rows == a->up->n_rows && a->gate->n_cols == a->up->n_cols);
    struct job j = {.cpu = sl_cpu(be),
                    .w = a->gate,
                    .up = a->up,
                    .act = a->act,
                    .x = a->x,
                    .ld_x = a->ld_x,
                    .n = a->n,
                    .out = a->out,
                    .ld_out = a->gate->n_rows};
    run(&j);
}
