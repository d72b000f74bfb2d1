/* SPDX-License-Identifier: MIT
 * Matrix products y = W x, one token or many.
 *
 * Up to four tokens: each thread streams its rows once, the kernel decodes them in registers
 * (gemv). The bound is memory: n_rows * row_bytes read.
 *
 * Many tokens: 8 rows x 512 columns are decoded to a panel of floats (16 KiB, in L1), against which
 * up to 64 tokens pass in register tiles; 32 rows share a block of activations while it is in L2.
 * The sixteen partial sums of each output wait in acc between blocks of columns, so blocking does
 * not touch their order. The bound is the processor's multiply-add rate.
 */
#include "cpu/backend.h"

#include "base/check.h"

#include <string.h>

/* Weights of one item with few tokens: long enough that few lines prefetched for the next rows go
 * to another thread's item, short enough that threads finish together. */
#define GEMV_ITEM_MIN (64u << 10)
#define GEMV_ITEM_MAX (1u << 20)
#define GEMV_ITEMS    4 /* of a thread */

#define X_IN_L2 (96 << 10) /* floats */

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

struct block {
    const struct sl_weight *w;
    int64_t row; /* its first */
    int n_rows;  /* <= SL_CPU_SUPER */
    const float *x;
    int64_t ld_x;
    int n; /* tokens <= SL_CPU_TOKENS */
};

/* Columns k0 .. of rows g .. of the block: decode to the panel, multiply with every token. The same
 * columns of the next rows are asked for meanwhile: pieces of rows are too short for the hardware
 * to see a stream. */
static void panel(const struct sl_cpu_kernels *k, struct sl_cpu_scratch *s, const struct block *b,
                  int g, int64_t k0)
{
    const struct sl_dtype_info *info = sl_dtype_info(b->w->dtype);
    int n_k = (int)SL_MIN(b->w->n_cols - k0, SL_CPU_K), rows = SL_MIN(b->n_rows - g, SL_CPU_ROWS);
    size_t offset = (size_t)(k0 / info->block_elems) * info->block_bytes;
    size_t n_bytes = SL_CEIL_DIV((size_t)n_k, info->block_elems) * info->block_bytes;
    for (int r = 0; r < rows; r++) {
        const uint8_t *src = row_at(b->w, b->row + g + r) + offset;
        for (size_t i = 0; i < n_bytes; i += 64)
            __builtin_prefetch(src + SL_CPU_ROWS * b->w->row_bytes + i, 0, 2);
        k->decode[b->w->dtype](src, s->panel + r * SL_CPU_K, n_k);
    }
    k->gemm(s->panel, SL_CPU_K, rows, b->x + k0, b->ld_x, b->n, n_k,
            s->acc + g * b->n * SL_CPU_LANES, k0 == 0);
}

/* out[t, i] = row i of the block . x[t]. */
static void multiply_block(const struct sl_cpu_kernels *k, struct sl_cpu_scratch *s,
                           const struct block *b, float *out, int64_t ld_out)
{
    /* Few tokens stay in L2 whole: then rows are best read from end to end. */
    bool by_rows = b->n * b->w->n_cols <= X_IN_L2;
    for (int64_t k0 = 0; k0 < b->w->n_cols && !by_rows; k0 += SL_CPU_K)
        for (int g = 0; g < b->n_rows; g += SL_CPU_ROWS)
            panel(k, s, b, g, k0);
    for (int g = 0; g < b->n_rows; g += SL_CPU_ROWS) {
        for (int64_t k0 = 0; k0 < b->w->n_cols && by_rows; k0 += SL_CPU_K)
            panel(k, s, b, g, k0);
        for (int t = 0; t < b->n; t++)
            k->reduce(s->acc + (g * b->n + t * SL_CPU_ROWS) * SL_CPU_LANES,
                      SL_MIN(b->n_rows - g, SL_CPU_ROWS), out + t * ld_out + g);
    }
}

/* The same, straight from the format where there is a kernel for that. */
static void rows_times_tokens(const struct sl_cpu_kernels *k, struct sl_cpu_scratch *s,
                              const struct sl_weight *w, int64_t r0, int n_r, const float *x,
                              int64_t ld_x, int n_t, float *out, int64_t ld_out)
{
    struct block b = {w, r0, n_r, x, ld_x, n_t};
    if (n_t <= SL_CPU_GEMV && k->gemv[w->dtype] != NULL)
        k->gemv[w->dtype](row_at(w, r0), w->row_bytes, n_r, x, ld_x, n_t, w->n_cols, out, ld_out);
    else
        multiply_block(k, s, &b, out, ld_out);
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
    j->rows_per_item = j->n <= SL_CPU_GEMV ? gemv_item_rows(j) : SL_CPU_SUPER;
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
