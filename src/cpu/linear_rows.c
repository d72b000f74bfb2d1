/* SPDX-License-Identifier: MIT
 * Matrix products y = W x straight from the file's rows, in floats.
 *
 * Up to four tokens: each thread streams its rows once, the kernel decodes them in registers
 * (gemv). The bound is memory: n_rows * row_bytes read.
 *
 * Many tokens: 8 rows x 512 columns are decoded to a panel of floats (16 KiB, in L1), against which
 * up to 64 tokens pass in register tiles; 32 rows share a block of activations while it is in L2.
 * The sixteen partial sums of each output wait in acc between blocks of columns, so blocking does
 * not touch their order. The bound is the processor's multiply-add rate.
 */
#include "base/check.h"
#include "cpu/linear.h"

#include <string.h>

#define X_IN_L2 (96 << 10) /* floats */

struct job {
    const struct sl_linear *l;
    int32_t rows_per_item[SL_MAX_LINEAR_PARTS];
    int64_t n_row_items[SL_MAX_LINEAR_PARTS]; /* items = row items x token blocks, tokens inner */
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

/* Columns k0 .. k0 + n - 1 of a row, decoded, times their scales. */
static void scale_row(const struct sl_cpu_kernels *k, const struct sl_weight *w, int64_t row,
                      int64_t k0, int n, float *out)
{
    for (int64_t at = k0, end; at < k0 + n; at = end) {
        end = SL_MIN((at / w->scales.cols + 1) * w->scales.cols, k0 + n);
        k->scale(out + (at - k0), sl_scale_at(&w->scales, w->n_cols, row, at), end - at);
    }
}

/* Columns k0 .. of rows g .. of the block: decode to the panel, multiply with every token. The same
 * columns of the next rows are asked for meanwhile: pieces of rows are too short for the hardware
 * to see a stream. */
static void linear_rows_panel(const struct sl_cpu_kernels *k, struct sl_cpu_scratch *s,
                              const struct block *b, int g, int64_t k0)
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
        if (b->w->scales.values != NULL)
            scale_row(k, b->w, b->row + g + r, k0, n_k, s->panel + r * SL_CPU_K);
    }
    k->gemm(s->panel, SL_CPU_K, rows, b->x + k0, b->ld_x, b->n, n_k,
            s->acc + g * b->n * SL_CPU_LANES, k0 == 0);
}

/* out[t, i] = row i of the block . x[t]. */
static void linear_rows_multiply_block(const struct sl_cpu_kernels *k, struct sl_cpu_scratch *s,
                                       const struct block *b, float *out, int64_t ld_out)
{
    /* Few tokens stay in L2 whole: then rows are best read from end to end. */
    bool by_rows = b->n * b->w->n_cols <= X_IN_L2;
    for (int64_t k0 = 0; k0 < b->w->n_cols && !by_rows; k0 += SL_CPU_K)
        for (int g = 0; g < b->n_rows; g += SL_CPU_ROWS)
            linear_rows_panel(k, s, b, g, k0);
    for (int g = 0; g < b->n_rows; g += SL_CPU_ROWS) {
        for (int64_t k0 = 0; k0 < b->w->n_cols && by_rows; k0 += SL_CPU_K)
            linear_rows_panel(k, s, b, g, k0);
        for (int t = 0; t < b->n; t++)
            k->reduce(s->acc + (g * b->n + t * SL_CPU_ROWS) * SL_CPU_LANES,
                      SL_MIN(b->n_rows - g, SL_CPU_ROWS), out + t * ld_out + g);
    }
}

void sl_linear_rows_tile(const struct sl_cpu_kernels *k, struct sl_cpu_scratch *s,
                         const struct sl_weight *w, int64_t r0, int n_r, const float *x,
                         int64_t ld_x, int n_t, float *out, int64_t ld_out)
{
    struct block b = {w, r0, n_r, x, ld_x, n_t};
    if (n_t <= SL_CPU_GEMV && k->gemv[w->dtype] != NULL && w->scales.values == NULL)
        k->gemv[w->dtype](row_at(w, r0), w->row_bytes, n_r, x, ld_x, n_t, w->n_cols, out, ld_out);
    else
        linear_rows_multiply_block(k, s, &b, out, ld_out);
}

static void linear_item(void *arg, uint32_t item, int thread_idx)
{
    const struct job *j = arg;
    const struct sl_linear *l = j->l;
    const struct sl_cpu_kernels *k = &l->cpu->k;
    struct sl_cpu_scratch *s = &l->cpu->scratch[thread_idx];
    int64_t row_item = item / j->n_token_items;
    const int part = sl_linear_part_at(j->n_row_items, l->n_parts, &row_item);
    const struct sl_linear_part *to = &l->part[part];
    int64_t first = row_item * j->rows_per_item[part];
    int64_t end = SL_MIN(first + j->rows_per_item[part], to->w->n_rows);
    int t0 = (int)(item % j->n_token_items) * SL_CPU_TOKENS;
    int n_t = SL_MIN(l->n - t0, SL_CPU_TOKENS);
    const float *x = l->x + t0 * l->ld_x;
    for (int64_t r = first; r < end; r += SL_CPU_SUPER) {
        int n_r = (int)SL_MIN(end - r, SL_CPU_SUPER);
        float *out = to->out + t0 * to->ld_out + r;
        if (l->up == NULL) {
            sl_linear_rows_tile(k, s, to->w, r, n_r, x, l->ld_x, n_t, out, to->ld_out);
            for (int t = 0; t < n_t && to->bias != NULL; t++)
                k->add(out + t * to->ld_out, to->bias + r, n_r);
            for (int t = 0; t < n_t && l->lora != NULL; t++)
                sl_lora_add(l, part, t0 + t, r, n_r, out + t * to->ld_out);
            continue;
        }
        sl_linear_rows_tile(k, s, to->w, r, n_r, x, l->ld_x, n_t, s->gate, SL_CPU_SUPER);
        sl_linear_rows_tile(k, s, l->up, r, n_r, x, l->ld_x, n_t, s->up, SL_CPU_SUPER);
        for (int t = 0; t < n_t; t++) {
            float *gate = s->gate + t * SL_CPU_SUPER, *up = s->up + t * SL_CPU_SUPER;
            sl_linear_bias_gate(l, r, n_r, gate, up);
            if (l->lora != NULL) {
                sl_lora_add(l, 0, t0 + t, r, n_r, gate);
                sl_lora_add(l, 1, t0 + t, r, n_r, up);
            }
            sl_linear_join_gate(l, gate, up, n_r, out + t * to->ld_out);
        }
    }
}

static int32_t gemv_item_rows(const struct sl_linear *l, const struct sl_weight *w)
{
    size_t n = sl_linear_item_bytes(l->cpu, sl_linear_bytes(l)) / w->row_bytes + 1;
    return (int32_t)SL_MIN(SL_ROUND_UP(n, SL_CPU_SUPER), 1u << 20);
}

static void lora_item(void *arg, uint32_t item, int thread_idx)
{
    const struct job *j = arg;
    sl_lora_item(j->l, item, thread_idx);
}

void sl_linear_rows(const struct sl_linear *l)
{
    struct job j = {.l = l, .n_token_items = (uint32_t)SL_CEIL_DIV(l->n, SL_CPU_TOKENS)};
    int64_t n = 0;
    for (int i = 0; i < l->n_parts; i++) {
        const struct sl_weight *w = l->part[i].w;
        j.rows_per_item[i] = l->n <= SL_CPU_GEMV ? gemv_item_rows(l, w) : SL_CPU_SUPER;
        j.n_row_items[i] = SL_CEIL_DIV(w->n_rows, j.rows_per_item[i]);
        n += j.n_row_items[i];
    }
    if (l->lora != NULL)
        sl_cpu_run(l->cpu, lora_item, &j, sl_lora_n_items(l), sl_lora_work(l));
    sl_cpu_run(l->cpu, linear_item, &j, n * j.n_token_items,
               sl_linear_rows_of(l) * l->n_cols * l->n);
}
