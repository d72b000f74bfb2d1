/* SPDX-License-Identifier: MIT
 * Matrix products with packed weights (i8.h, bf16.h).
 *
 * A block of tokens is first brought to the form the weights want, once for all rows; then items of
 * row panels run on the pool, each a stream of its own through the weights. With few tokens a panel
 * is read from end to end, so that memory sees one long stream; with many, four panels share each
 * group of the activations while it is near.
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

struct job {
    struct sl_linear l;
    struct sl_i8_x *x_i8; /* [groups, n_t]: a group of all tokens lies together; NULL: not wanted */
    uint16_t *x_bf16;     /* [n_t, ld_bf16] or NULL */
    int64_t ld_bf16;
    int t0, n_t; /* tokens of the block */
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
    const float *x = j->l.x + (j->t0 + (int64_t)t) * j->l.ld_x;
    int64_t n_cols = j->l.w->n_cols;
    (void)thread_idx;
    for (int64_t k = 0; j->x_i8 != NULL && k < n_cols; k += SL_I8_GROUP)
        cpu->i8.quantize(x + k, SL_MIN(n_cols - k, SL_I8_GROUP),
                         &j->x_i8[k / SL_I8_GROUP * j->n_t + t]);
    if (j->x_bf16 != NULL)
        cpu->bf16.round(x, n_cols, j->ld_bf16, j->x_bf16 + t * j->ld_bf16);
}

static void prepare(struct job *j)
{
    struct sl_cpu *cpu = j->l.cpu;
    int64_t n_cols = j->l.w->n_cols, n_groups = SL_CEIL_DIV(n_cols, SL_I8_GROUP);
    uint8_t *at = cpu->x_packed;
    j->ld_bf16 = SL_ROUND_UP(n_cols, SL_BF16_K);
    if (wants(&j->l, SL_LAYOUT_I8)) {
        j->x_i8 = (struct sl_i8_x *)(void *)at;
        at += (size_t)(n_groups * j->n_t) * sizeof *j->x_i8;
    }
    if (wants(&j->l, SL_LAYOUT_BF16)) {
        j->x_bf16 = (uint16_t *)(void *)at;
        at += (size_t)(j->ld_bf16 * j->n_t) * sizeof *j->x_bf16;
    }
    SL_DCHECK(at <= (uint8_t *)cpu->x_packed + cpu->x_packed_bytes);
    sl_cpu_run(cpu, prepare_token, j, j->n_t, n_cols * j->n_t);
}

/* ---------------------------------------------------------------- products */

static void dot_i8(const struct job *j, const struct sl_weight *w, int64_t p, int n_panels,
                   float *acc, int thread_idx)
{
    const struct sl_cpu *cpu = j->l.cpu;
    int64_t n_groups = SL_CEIL_DIV(w->n_cols, SL_I8_GROUP);
    struct sl_i8_scratch *s =
        (void *)(cpu->i8_scratch + (size_t)thread_idx * cpu->i8_scratch_bytes);
    int step = j->n_t <= SL_I8_STREAM ? 1 : n_panels;
    for (int i = 0; i < n_panels; i += step) {
        for (int64_t g = 0; g < n_groups; g++) {
            /* dot adds g to x for tokens that lie one by one; here groups do */
            const struct sl_i8_x *x = j->x_i8 + g * (j->n_t - 1);
            cpu->i8.dot(w, p + i, step, g, x, 1, j->n_t, acc + i * SL_I8_PANEL, g == 0, s);
        }
    }
}

static void dot_bf16(const struct job *j, const struct sl_weight *w, int64_t p, int n_panels,
                     float *acc)
{
    size_t panel_bytes = sl_bf16_panel_bytes(w->n_cols);
    const uint8_t *panels = (const uint8_t *)w->data + (size_t)p * panel_bytes;
    j->l.cpu->bf16.dot(panels, panel_bytes, n_panels, j->ld_bf16, j->x_bf16, j->ld_bf16, j->n_t,
                       acc);
}

static void dot_rows(const struct job *j, const struct sl_weight *w, int64_t p, float *acc,
                     struct sl_cpu_scratch *s)
{
    const struct sl_linear *l = &j->l;
    int64_t first = p * SL_I8_PANEL, end = SL_MIN(first + ITEM_ROWS, w->n_rows);
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
        dot_rows(j, w, p, acc, &j->l.cpu->scratch[thread_idx]);
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
        int n_rows = (int)SL_MIN(l->w->n_rows - row, ITEM_ROWS);
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
            if (l->bias != NULL)
                k->add(out, l->bias + row, n_rows);
        }
    }
}

void sl_linear_packed(const struct sl_linear *l)
{
    struct job j = {.l = *l, .n_panels = SL_CEIL_DIV(l->w->n_rows, SL_I8_PANEL)};
    bool both = wants(l, SL_LAYOUT_I8) && wants(l, SL_LAYOUT_BF16);
    int block = both ? SL_I8_TOKENS / 2 : SL_I8_TOKENS;
    j.panels_per_item = SL_I8_PANELS;
    if (l->n <= SL_I8_STREAM) {
        size_t panel_bytes = l->w->n_bytes / (size_t)j.n_panels + 1;
        size_t n = SL_MIN(sl_linear_item_bytes(l) / panel_bytes + 1, 1u << 16);
        j.panels_per_item = (int32_t)SL_ROUND_UP(n, SL_I8_PANELS);
    }
    for (j.t0 = 0; j.t0 < l->n; j.t0 += block) {
        j.n_t = SL_MIN(l->n - j.t0, block);
        prepare(&j);
        sl_cpu_run(l->cpu, packed_item, &j, SL_CEIL_DIV(j.n_panels, j.panels_per_item),
                   l->w->n_rows * l->w->n_cols * j.n_t);
    }
}
