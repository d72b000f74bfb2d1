/* SPDX-License-Identifier: MIT
 * Matrix products with packed weights (i8.h, bf16.h).
 *
 * A block of tokens is first brought to the form the weights want, once for all rows; then items of
 * row panels run on the pool, each a stream of its own through the weights.
 *
 * Every item goes over all activations of the block, which must therefore lie in a core's L2 cache;
 * weights come from memory once a block, so that the more tokens it has the better. Where both
 * cannot be had, with many columns, a block is worked on in parts of the columns, and the outputs
 * wait in between. That is for plain products: a gated activation has nowhere to keep the second
 * matrix' outputs and takes fewer tokens instead.
 *
 * The two matrices of a gated activation may be kept differently. A block then has half as many
 * tokens, so that both forms of it fit where the wider one would.
 */
#include "cpu/linear.h"

#include "base/check.h"

#include <string.h>

#define ITEM_ROWS (SL_I8_PANELS * SL_I8_PANEL)
_Static_assert(SL_I8_PANEL == SL_BF16_PANEL && SL_I8_PANELS == SL_BF16_PANELS &&
                   SL_I8_TOKENS == SL_BF16_TOKENS,
               "one loop serves both layouts");
_Static_assert(ITEM_ROWS % SL_CPU_SUPER == 0, "and rows of the file");

/* What the activations of a block may take of the L2 cache. */
#define X_BYTES (1280 << 10)

struct job {
    struct sl_linear l;
    struct sl_i8_x *x_i8; /* the block as the kernels want it, or NULL */
    uint16_t *x_bf16;     /* likewise */
    bool tiles;           /* how x_i8 is placed */
    int t0, n_t;          /* tokens of the block */
    int64_t k0, n_k;      /* columns of the part */
    int64_t n_panels;
    int32_t panels_per_item;
};

static bool wants(const struct sl_linear *l, enum sl_cpu_layout layout)
{
    return l->w->layout == (int)layout || (l->up != NULL && l->up->layout == (int)layout);
}

/* ---------------------------------------------------------------- activations */

static void prepare_token(void *arg, uint32_t t, int thread_idx)
{
    const struct job *j = arg;
    const struct sl_cpu *cpu = j->l.cpu;
    const float *x = j->l.x + (j->t0 + (int64_t)t) * j->l.ld_x + j->k0;
    (void)thread_idx;
    if (j->x_i8 != NULL)
        cpu->i8.place(x, j->n_k, (int)t, j->n_t, j->tiles, j->x_i8);
    if (j->x_bf16 != NULL)
        cpu->bf16.place(x, j->n_k, (int)t, j->n_t, j->x_bf16);
}

static bool wants_tiles(const struct job *j)
{
    const struct sl_i8_kernels *k = &j->l.cpu->i8;
    const struct sl_weight *w[2] = {j->l.w, j->l.up};
    bool any = false;
    for (int i = 0; i < 2 && k->tiles != NULL; i++)
        any =
            any || (w[i] != NULL && w[i]->layout == SL_LAYOUT_I8 && k->tiles(w[i]->dtype, j->n_t));
    return any;
}

static void prepare(struct job *j)
{
    struct sl_cpu *cpu = j->l.cpu;
    const int64_t n_t = SL_ROUND_UP(j->n_t, 16);
    uint8_t *at = cpu->x_packed;
    if (wants(&j->l, SL_LAYOUT_I8)) {
        j->tiles = wants_tiles(j);
        j->x_i8 = (struct sl_i8_x *)(void *)at;
        at += (size_t)(SL_CEIL_DIV(j->n_k, SL_I8_GROUP) * n_t) * sizeof *j->x_i8;
    }
    if (wants(&j->l, SL_LAYOUT_BF16)) {
        j->x_bf16 = (uint16_t *)(void *)at;
        at += (size_t)(SL_ROUND_UP(j->n_k, SL_BF16_K) * n_t) * sizeof *j->x_bf16;
    }
    SL_DCHECK(at <= (uint8_t *)cpu->x_packed + cpu->x_packed_bytes);
    sl_cpu_run(cpu, prepare_token, j, j->n_t, j->n_k * j->n_t);
}

/* ---------------------------------------------------------------- products */

static void dot_i8(const struct job *j, const struct sl_weight *w, int64_t p, int n_panels,
                   float *acc, int thread_idx)
{
    const struct sl_cpu *cpu = j->l.cpu;
    struct sl_i8_scratch *s =
        (void *)(cpu->i8_scratch + (size_t)thread_idx * cpu->i8_scratch_bytes);
    struct sl_i8_part a = {.w = w,
                           .g0 = j->k0 / SL_I8_GROUP,
                           .n_groups = SL_CEIL_DIV(j->n_k, SL_I8_GROUP),
                           .x = j->x_i8,
                           .n_tok = j->n_t,
                           .tiles = j->tiles};
    cpu->i8.dot(&a, p, n_panels, acc, s);
}

static void dot_bf16(const struct job *j, const struct sl_weight *w, int64_t p, int n_panels,
                     float *acc)
{
    size_t panel_bytes = sl_bf16_panel_bytes(w->n_cols);
    const uint8_t *panels = (const uint8_t *)w->data + (size_t)p * panel_bytes;
    j->l.cpu->bf16.dot(panels + j->k0 / 2 * SL_BF16_PAIR, panel_bytes, n_panels, j->n_k, j->x_bf16,
                       j->n_t, acc, j->k0 == 0);
}

static void dot_rows(const struct job *j, const struct sl_weight *w, int64_t p, int n_panels,
                     float *acc, struct sl_cpu_scratch *s)
{
    const struct sl_linear *l = &j->l;
    int64_t first = p * SL_I8_PANEL, end = SL_MIN(first + n_panels * SL_I8_PANEL, w->n_rows);
    for (int64_t r = first; r < end; r += SL_CPU_SUPER)
        for (int t = 0; t < j->n_t; t += SL_CPU_TOKENS)
            sl_linear_rows_tile(&l->cpu->k, s, w, r, (int)SL_MIN(end - r, SL_CPU_SUPER),
                                l->x + (j->t0 + t) * l->ld_x, l->ld_x,
                                SL_MIN(j->n_t - t, SL_CPU_TOKENS),
                                acc + t * ITEM_ROWS + (r - first), ITEM_ROWS);
}

/* acc [n_t, ITEM_ROWS] = the rows of n_panels panels from p on, times the block's tokens. */
static void dot(const struct job *j, const struct sl_weight *w, int64_t p, int n_panels, float *acc,
                int thread_idx)
{
    switch ((enum sl_cpu_layout)w->layout) {
    case SL_LAYOUT_I8:
        dot_i8(j, w, p, n_panels, acc, thread_idx);
        break;
    case SL_LAYOUT_BF16:
        dot_bf16(j, w, p, n_panels, acc);
        break;
    case SL_LAYOUT_ROWS:
        dot_rows(j, w, p, n_panels, acc, &j->l.cpu->scratch[thread_idx]);
        break;
    }
}

static void packed_item(void *arg, uint32_t item, int thread_idx)
{
    const struct job *j = arg;
    const struct sl_linear *l = &j->l;
    const struct sl_cpu_kernels *k = &l->cpu->k;
    struct sl_cpu_scratch *s = &l->cpu->scratch[thread_idx];
    int64_t first = (int64_t)item * j->panels_per_item;
    int64_t end = SL_MIN(first + j->panels_per_item, j->n_panels);
    for (int64_t p = first; p < end; p += SL_I8_PANELS) {
        int n_panels = (int)SL_MIN(end - p, SL_I8_PANELS);
        int64_t row = p * SL_I8_PANEL;
        int n_rows = (int)SL_MIN(l->w->n_rows - row, n_panels * SL_I8_PANEL);
        for (int t = 0; t < j->n_t && j->k0 > 0; t++)
            memcpy(s->packed[0] + t * ITEM_ROWS, l->out + (j->t0 + t) * l->ld_out + row,
                   (size_t)n_rows * sizeof *l->out);
        dot(j, l->w, p, n_panels, s->packed[0], thread_idx);
        if (l->up != NULL)
            dot(j, l->up, p, n_panels, s->packed[1], thread_idx);
        for (int t = 0; t < j->n_t; t++) {
            float *out = l->out + (j->t0 + t) * l->ld_out + row;
            const float *acc = s->packed[0] + t * ITEM_ROWS;
            if (l->up != NULL) {
                k->act(l->act, acc, s->packed[1] + t * ITEM_ROWS, n_rows, out);
                continue;
            }
            memcpy(out, acc, (size_t)n_rows * sizeof *out);
            if (l->bias != NULL && j->k0 + j->n_k == l->w->n_cols)
                k->add(out, l->bias + row, n_rows);
        }
    }
}

/* Tokens of a block and columns of a part of it. */
static void choose_part(struct job *j, int *n_t, int64_t *n_k)
{
    const struct sl_linear *l = &j->l;
    const int64_t n_cols = l->w->n_cols;
    const bool i8 = wants(l, SL_LAYOUT_I8), bf16 = wants(l, SL_LAYOUT_BF16);
    const int64_t col_bytes = i8 ? 1 : 2; /* about; with both a block is halved anyway */
    const int most = i8 && bf16 ? SL_I8_TOKENS / 2 : SL_I8_TOKENS;
    *n_t = SL_MIN(l->n, most);
    *n_k = n_cols;
    if (*n_t * n_cols * col_bytes <= X_BYTES)
        return;
    if (l->up == NULL) { /* parts of about the same size */
        int64_t n_parts = SL_CEIL_DIV(*n_t * n_cols * col_bytes, X_BYTES);
        *n_k = SL_ROUND_UP(SL_CEIL_DIV(n_cols, n_parts), SL_I8_GROUP);
    } else {
        int64_t fit = X_BYTES / (n_cols * col_bytes) / 32 * 32;
        *n_t = (int)SL_MIN(*n_t, SL_MAX(fit, 64));
    }
}

/* With few tokens what counts is that all threads read to the end; with many, that panels share the
 * activations, two at least, unless there are too few panels for the threads. */
static int32_t panels_per_item(const struct sl_linear *l, int64_t n_panels)
{
    if (l->n <= SL_I8_STREAM) {
        size_t panel_bytes = l->w->n_bytes / (size_t)n_panels + 1;
        return (int32_t)SL_MIN(sl_linear_item_bytes(l) / panel_bytes + 1, 1u << 16);
    }
    int32_t n = SL_I8_PANELS;
    while (n > 2 && n_panels < 2 * (int64_t)n * l->cpu->n_threads)
        n /= 2;
    return n;
}

void sl_linear_packed(const struct sl_linear *l)
{
    struct job j = {.l = *l, .n_panels = SL_CEIL_DIV(l->w->n_rows, SL_I8_PANEL)};
    int block;
    int64_t part;
    choose_part(&j, &block, &part);
    j.panels_per_item = panels_per_item(l, j.n_panels);
    for (j.t0 = 0; j.t0 < l->n; j.t0 += block) {
        j.n_t = SL_MIN(l->n - j.t0, block);
        for (j.k0 = 0; j.k0 < l->w->n_cols; j.k0 += part) {
            j.n_k = SL_MIN(l->w->n_cols - j.k0, part);
            prepare(&j);
            sl_cpu_run(l->cpu, packed_item, &j, SL_CEIL_DIV(j.n_panels, j.panels_per_item),
                       l->w->n_rows * j.n_k * j.n_t);
        }
    }
}
