/* SPDX-License-Identifier: MIT */
#include "cpu/block.h"

#include "base/check.h"
#include "cpu/linear.h"

#include <string.h>

_Static_assert(SL_I8_PANEL == SL_BF16_PANEL && SL_I8_PANELS == SL_BF16_PANELS &&
                   SL_I8_TOKENS == SL_BF16_TOKENS,
               "one loop serves both layouts");
_Static_assert(SL_ITEM_ROWS % SL_CPU_SUPER == 0, "and rows of the file");

/* ---------------------------------------------------------------- activations */

static bool block_wants(const struct sl_block *b, enum sl_cpu_layout layout)
{
    return (b->wants & 1u << layout) != 0;
}

void sl_block_meet(struct sl_block *b, const struct sl_weight *w)
{
    const struct sl_i8_kernels *k = &b->cpu->i8;
    SL_ASSERT(b->n_t > 0 && b->n_t <= SL_I8_TOKENS);
    b->wants |= 1u << w->layout;
    b->tiles =
        b->tiles || (k->tiles != NULL && w->layout == SL_LAYOUT_I8 && k->tiles(w->dtype, b->n_t));
}

static size_t i8_bytes(const struct sl_block *b)
{
    const int64_t n_t = SL_ROUND_UP(b->n_t, b->tiles ? 16 : 1);
    return (size_t)(SL_CEIL_DIV(b->n_k, SL_I8_GROUP) * n_t) * sizeof *b->x_i8;
}

static size_t bf16_bytes(const struct sl_block *b, int64_t unit)
{
    return (size_t)(SL_ROUND_UP(b->n_k, unit) * SL_ROUND_UP(b->n_t, 16)) * sizeof *b->x_bf16;
}

size_t sl_block_bytes(const struct sl_block *b)
{
    return (block_wants(b, SL_LAYOUT_I8) ? i8_bytes(b) : 0) +
           (block_wants(b, SL_LAYOUT_BF16) ? bf16_bytes(b, SL_BF16_K) : 0) +
           (block_wants(b, SL_LAYOUT_FP8) ? bf16_bytes(b, SL_FP8_GROUP) : 0);
}

void sl_block_cut(struct sl_block *b, void *room)
{
    uint8_t *at = room;
    if (block_wants(b, SL_LAYOUT_I8)) {
        b->x_i8 = (struct sl_i8_x *)(void *)at;
        at += i8_bytes(b);
    }
    if (block_wants(b, SL_LAYOUT_BF16)) {
        b->x_bf16 = (uint16_t *)(void *)at;
        at += bf16_bytes(b, SL_BF16_K);
    }
    if (block_wants(b, SL_LAYOUT_FP8))
        b->x_fp8 = (uint16_t *)(void *)at;
}

/* Group i of the part, for all tokens. */
static uint16_t *fp8_block(const struct sl_block *b, int64_t i)
{
    return b->x_fp8 + i * SL_FP8_GROUP * SL_ROUND_UP(b->n_t, 16);
}

void sl_block_place(const struct sl_block *b, int t, const float *x)
{
    const struct sl_cpu *cpu = b->cpu;
    if (b->x_i8 != NULL)
        cpu->i8.place(x, b->n_k, t, b->n_t, b->tiles, b->x_i8);
    if (b->x_bf16 != NULL)
        cpu->bf16.place(x, b->n_k, t, b->n_t, b->x_bf16);
    for (int64_t k = 0; b->x_fp8 != NULL && k < b->n_k; k += SL_FP8_GROUP)
        cpu->bf16.place(x + k, SL_MIN(b->n_k - k, SL_FP8_GROUP), t, b->n_t,
                        fp8_block(b, k / SL_FP8_GROUP));
}

/* ---------------------------------------------------------------- products */

static void dot_i8(const struct sl_block *b, const struct sl_weight *w, int64_t p, int n_panels,
                   struct sl_aside *aside, float *acc, int thread_idx)
{
    const struct sl_cpu *cpu = b->cpu;
    struct sl_i8_part a = {.w = w,
                           .g0 = b->k0 / SL_I8_GROUP,
                           .n_groups = SL_CEIL_DIV(b->n_k, SL_I8_GROUP),
                           .x = b->x_i8,
                           .n_tok = b->n_t,
                           .tiles = b->tiles,
                           .ahead = cpu->i8.ahead,
                           .shape = cpu->i8.shape,
                           .aside = aside};
    cpu->i8.dot(&a, p, n_panels, acc,
                (void *)(cpu->i8_scratch + (size_t)thread_idx * cpu->i8_scratch_bytes));
}

static void dot_bf16(const struct sl_block *b, const struct sl_weight *w, int64_t p, int n_panels,
                     struct sl_aside *aside, float *acc)
{
    const struct sl_bf16_kernels *k = &b->cpu->bf16;
    struct sl_bf16_part a = {.panel_bytes = sl_bf16_panel_bytes(w->n_cols),
                             .n_panels = n_panels,
                             .k = b->n_k,
                             .x = b->x_bf16,
                             .n_tok = b->n_t,
                             .first = b->k0 == 0,
                             .shape = k->shape,
                             .aside = aside};
    a.panels = (const uint8_t *)w->data + (size_t)p * a.panel_bytes + b->k0 / 2 * SL_BF16_PAIR;
    k->dot(&a, acc);
}

/* Widened, multiplied from zero, joined with the group's scales. */
static void dot_fp8_group(const struct sl_cpu *cpu, const struct sl_fp8_part *g,
                          struct sl_cpu_scratch *s, float *acc)
{
    struct sl_bf16_part a = {.panels = (const uint8_t *)s->fp8_panels,
                             .panel_bytes = SL_FP8_CODES * sizeof *s->fp8_panels,
                             .n_panels = g->n_panels,
                             .k = g->n_cols,
                             .x = g->x,
                             .n_tok = g->n_tok,
                             .first = true};
    for (int i = 0; i < g->n_panels; i++)
        cpu->fp8.widen(g->group + (size_t)i * g->panel_bytes, g->next + (size_t)i * g->panel_bytes,
                       s->fp8_panels + i * SL_FP8_CODES);
    cpu->bf16.dot(&a, s->fp8_sums);
    for (int i = 0; i < g->n_panels; i++)
        cpu->fp8.add_scaled(s->fp8_sums + i * SL_BF16_PANEL,
                            sl_fp8_scales(g->group + (size_t)i * g->panel_bytes), g->n_tok,
                            acc + i * SL_BF16_PANEL);
}

static void dot_fp8(const struct sl_block *b, const struct sl_weight *w, int64_t p, int n_panels,
                    float *acc, struct sl_cpu_scratch *s)
{
    const struct sl_cpu *cpu = b->cpu;
    struct sl_fp8_part g = {
        .panel_bytes = sl_fp8_panel_bytes(w->n_cols), .n_panels = n_panels, .n_tok = b->n_t};
    g.group = (const uint8_t *)w->data + (size_t)p * g.panel_bytes +
              (size_t)(b->k0 / SL_FP8_GROUP) * SL_FP8_GROUP_BYTES;
    if (b->k0 == 0)
        memset(acc, 0, (size_t)b->n_t * SL_ITEM_ROWS * sizeof *acc);
    for (int64_t k = 0; k < b->n_k; k += SL_FP8_GROUP, g.group += SL_FP8_GROUP_BYTES) {
        g.n_cols = (int)SL_ROUND_UP(SL_MIN(b->n_k - k, SL_FP8_GROUP), SL_BF16_K);
        g.x = fp8_block(b, k / SL_FP8_GROUP);
        g.next = g.group + SL_FP8_GROUP_BYTES;
        if (k + SL_FP8_GROUP >= b->n_k) /* the panels behind these, as a rule */
            g.next += (size_t)(n_panels - 1) * g.panel_bytes;
        if (b->n_t <= SL_FP8_FEW && cpu->fp8.few != NULL)
            cpu->fp8.few(&g, acc);
        else
            dot_fp8_group(cpu, &g, s, acc);
    }
}

static void dot_rows(const struct sl_block *b, const struct sl_weight *w, int64_t p, int n_panels,
                     float *acc, struct sl_cpu_scratch *s)
{
    int64_t first = p * SL_I8_PANEL, end = SL_MIN(first + n_panels * SL_I8_PANEL, w->n_rows);
    for (int64_t r = first; r < end; r += SL_CPU_SUPER)
        for (int t = 0; t < b->n_t; t += SL_CPU_TOKENS)
            sl_linear_rows_tile(&b->cpu->k, s, w, r, (int)SL_MIN(end - r, SL_CPU_SUPER),
                                b->x + t * b->ld_x, b->ld_x, SL_MIN(b->n_t - t, SL_CPU_TOKENS),
                                acc + t * SL_ITEM_ROWS + (r - first), SL_ITEM_ROWS);
}

void sl_block_dot(const struct sl_block *b, const struct sl_weight *w, int64_t p, int n_panels,
                  struct sl_aside *aside, float *acc, int thread_idx)
{
    SL_ASSERT(n_panels > 0 && n_panels <= SL_I8_PANELS &&
              block_wants(b, (enum sl_cpu_layout)w->layout));
    SL_ASSERT(p >= 0 && p + n_panels <= SL_CEIL_DIV(w->n_rows, SL_I8_PANEL));
    SL_ASSERT(b->k0 + b->n_k <= w->n_cols);
    switch ((enum sl_cpu_layout)w->layout) {
    case SL_LAYOUT_I8:
        dot_i8(b, w, p, n_panels, aside, acc, thread_idx);
        break;
    case SL_LAYOUT_BF16:
        dot_bf16(b, w, p, n_panels, aside, acc);
        break;
    case SL_LAYOUT_FP8:
        dot_fp8(b, w, p, n_panels, acc, &b->cpu->scratch[thread_idx]);
        break;
    case SL_LAYOUT_ROWS:
        dot_rows(b, w, p, n_panels, acc, &b->cpu->scratch[thread_idx]);
        break;
    }
}
