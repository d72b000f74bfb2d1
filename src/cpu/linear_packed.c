/* SPDX-License-Identifier: MIT
 * Matrix products with packed weights (i8.h, bf16.h, fp8.h).
 *
 * A block of tokens is first brought to the form the weights want, once for all rows of all
 * matrices; then items of row panels run on the pool, each a stream of its own through the weights.
 *
 * Every item goes over all activations of the block, which must therefore lie in a core's L2 cache;
 * weights come from memory once a block, so that the more tokens it has the better. Where both
 * cannot be had, with many columns, a block is worked on in parts of the columns, and the outputs
 * wait in between. That is for plain products: a gated activation has nowhere to keep the second
 * matrix' outputs and takes fewer tokens instead.
 *
 * Kernels of tiles leave the vector units idle. With many tokens each thread therefore puts an
 * item's outputs where they belong, activated where they are a gate's, while it multiplies its next
 * item; what is left when there is none is done by a short job at the end.
 *
 * Matrices of one job may be kept differently. A block then has half as many tokens, or a third, so
 * that all its forms fit where the widest one would.
 */
#include "cpu/linear.h"

#include "base/check.h"
#include "cpu/block.h"

#include <string.h>

#define ITEM_ROWS SL_ITEM_ROWS

#define ASK 2 /* tokens ahead whose adapters are asked for */

/* What the activations of a block may take of the L2 cache. */
#define X_BYTES (1280 << 10)

struct late; /* outputs of a thread's last item */

struct job {
    const struct sl_linear *l;
    struct late *late; /* [n_threads], or NULL: outputs are put at once */
    struct sl_block b; /* the tokens and columns that are worked on */
    int t0;            /* the block's first token */
    int64_t n_panels[SL_MAX_LINEAR_PARTS], n_items[SL_MAX_LINEAR_PARTS];
    int32_t panels_per_item[SL_MAX_LINEAR_PARTS];
};

static bool linear_packed_wants(const struct sl_linear *l, enum sl_cpu_layout layout)
{
    bool any = l->up != NULL && l->up->layout == (int)layout;
    for (int i = 0; i < l->n_parts; i++)
        any = any || l->part[i].w->layout == (int)layout;
    return any;
}

/* ---------------------------------------------------------------- activations */

static void prepare_token(void *arg, uint32_t t, int thread_idx)
{
    const struct job *j = arg;
    (void)thread_idx;
    sl_block_place(&j->b, (int)t, j->b.x + t * j->b.ld_x + j->b.k0);
}

/* The block's tokens, then A x of adapters. */
static void prepare_item(void *arg, uint32_t item, int thread_idx)
{
    const struct job *j = arg;
    if (item < (uint32_t)j->b.n_t)
        prepare_token(arg, item, thread_idx);
    else
        sl_lora_item(j->l, (int64_t)item - j->b.n_t, thread_idx);
}

static void linear_packed_prepare(struct job *j)
{
    struct sl_cpu *cpu = j->l->cpu;
    struct sl_block *b = &j->b;
    if (j->l->up != NULL)
        sl_block_meet(b, j->l->up);
    for (int i = 0; i < j->l->n_parts; i++)
        sl_block_meet(b, j->l->part[i].w);
    SL_ASSERT(sl_block_bytes(b) <= cpu->x_packed_bytes);
    sl_block_cut(b, cpu->x_packed);
    if (j->l->lora != NULL && j->t0 == 0 && j->b.k0 == 0)
        sl_cpu_run(cpu, prepare_item, j, j->b.n_t + sl_lora_n_items(j->l),
                   j->b.n_k * j->b.n_t + sl_lora_work(j->l));
    else
        sl_cpu_run(cpu, prepare_token, j, j->b.n_t, j->b.n_k * j->b.n_t);
}

/* ---------------------------------------------------------------- outputs */

/* What an item computes: rows of a part for all tokens of the block. */
struct outputs {
    const struct sl_linear_part *to;
    int64_t row;
    int n_rows;
    float *acc[2]; /* [n_t, ITEM_ROWS]; of the gate and the up */
};

struct late {
    _Alignas(64) struct sl_aside aside;
    const struct job *j;
    struct outputs o;
    int t;   /* tokens before are done */
    int set; /* the room o.acc is in */
};

/* What waits of the outputs to acc. */
static void fetch_waiting(const struct job *j, const struct outputs *o)
{
    for (int t = 0; t < j->b.n_t && j->b.k0 > 0; t++)
        memcpy(o->acc[0] + t * ITEM_ROWS, o->to->out + (j->t0 + t) * o->to->ld_out + o->row,
               (size_t)o->n_rows * sizeof *o->acc[0]);
}

static void put_outputs(const struct job *j, const struct outputs *o, int t, int n)
{
    const struct sl_linear *l = j->l;
    const struct sl_cpu_kernels *k = &l->cpu->k;
    const bool last = j->b.k0 + j->b.n_k == l->n_cols, biased = o->to->bias != NULL && last;
    const bool adapted = l->lora != NULL && last;
    const int part = (int)(o->to - l->part);
    for (; n > 0; t++, n--) {
        float *out = o->to->out + (j->t0 + t) * o->to->ld_out + o->row;
        float *acc = o->acc[0] + t * ITEM_ROWS;
        if (l->up != NULL) {
            float *up = o->acc[1] + t * ITEM_ROWS;
            sl_linear_bias_gate(l, o->row, o->n_rows, acc, up);
            if (adapted) {
                sl_lora_ask(l, 0, j->t0 + t + ASK, o->row, o->n_rows);
                sl_lora_ask(l, 1, j->t0 + t + ASK, o->row, o->n_rows);
                sl_lora_add(l, 0, j->t0 + t, o->row, o->n_rows, acc);
                sl_lora_add(l, 1, j->t0 + t, o->row, o->n_rows, up);
            }
            sl_linear_join_gate(l, acc, up, o->n_rows, out);
            continue;
        }
        memcpy(out, acc, (size_t)o->n_rows * sizeof *out);
        if (biased)
            k->add(out, o->to->bias + o->row, o->n_rows);
        if (adapted) {
            sl_lora_ask(l, part, j->t0 + t + ASK, o->row, o->n_rows);
            sl_lora_add(l, part, j->t0 + t, o->row, o->n_rows, out);
        }
    }
}

/* The lines of rows to come are asked for, so that no store that waits for one holds up those of
 * the products behind it. */
static void late_run(struct sl_aside *a, int n)
{
    struct late *late = (struct late *)(void *)a;
    const struct outputs *o = &late->o;
    const int ahead = SL_MIN(2 * n, late->j->b.n_t - late->t - n);
    for (int i = 0; i < ahead; i++) {
        const float *out = o->to->out + (late->j->t0 + late->t + n + i) * o->to->ld_out + o->row;
        for (int r = 0; r < o->n_rows; r += 16)
            __builtin_prefetch(out + r, 1, 3);
    }
    put_outputs(late->j, o, late->t, n);
    late->t += n;
}

static void late_end(struct late *late)
{
    if (late->j != NULL)
        put_outputs(late->j, &late->o, late->t, late->j->b.n_t - late->t);
    late->j = NULL;
}

static void late_item(void *arg, uint32_t item, int thread_idx)
{
    const struct job *j = arg;
    (void)thread_idx;
    late_end(&j->late[item]);
}

/* Of what is late, the share 1 / n to do beside a product. */
static struct sl_aside *share_of(struct late *late, int n)
{
    if (late == NULL || late->j == NULL)
        return NULL;
    late->aside.n = SL_CEIL_DIV(late->j->b.n_t - late->t, n);
    return &late->aside;
}

static void packed_rows(const struct job *j, const struct sl_linear_part *to, int64_t p,
                        int n_panels, int thread_idx)
{
    const struct sl_linear *l = j->l;
    struct sl_cpu_scratch *s = &l->cpu->scratch[thread_idx];
    struct sl_i8_scratch *other =
        (void *)(l->cpu->i8_scratch + (size_t)thread_idx * l->cpu->i8_scratch_bytes);
    struct late *late = j->late != NULL ? &j->late[thread_idx] : NULL;
    const int set = late != NULL && late->j != NULL ? !late->set : 0;
    struct outputs o = {.to = to, .row = p * SL_I8_PANEL};
    o.n_rows = (int)SL_MIN(to->w->n_rows - o.row, n_panels * SL_I8_PANEL);
    for (int i = 0; i < 2; i++)
        o.acc[i] = set == 0 ? s->packed[i] : other->outputs[i];
    fetch_waiting(j, &o);
    sl_block_dot(&j->b, to->w, p, n_panels, share_of(late, l->up != NULL ? 2 : 1), o.acc[0],
                 thread_idx);
    if (l->up != NULL)
        sl_block_dot(&j->b, l->up, p, n_panels, share_of(late, 1), o.acc[1], thread_idx);
    if (late == NULL) {
        put_outputs(j, &o, 0, j->b.n_t);
        return;
    }
    late_end(late);
    *late = (struct late){.aside.run = late_run, .j = j, .o = o, .set = set};
}

static void packed_item(void *arg, uint32_t item, int thread_idx)
{
    const struct job *j = arg;
    const struct sl_linear *l = j->l;
    int64_t i = item;
    const int part = sl_linear_part_at(j->n_items, l->n_parts, &i);
    const struct sl_linear_part *to = &l->part[part];
    if (to->w->layout == SL_LAYOUT_ROWS && j->b.k0 + j->b.n_k < l->n_cols && l->up == NULL)
        return; /* takes all columns at once, with the last part */
    int64_t first = i * j->panels_per_item[part];
    int64_t end = SL_MIN(first + j->panels_per_item[part], j->n_panels[part]);
    for (int64_t p = first; p < end; p += SL_I8_PANELS)
        packed_rows(j, to, p, (int)SL_MIN(end - p, SL_I8_PANELS), thread_idx);
}

/* Blocks of about the same size, as one with few tokens costs nearly as much as a full one. */
static int even_block(int32_t n, int most)
{
    return SL_MIN(SL_ROUND_UP(SL_CEIL_DIV(n, SL_CEIL_DIV(n, most)), 32), most);
}

/* Tokens of a block where the cache holds them all. */
static int most_tokens(const struct sl_linear *l, bool i8, bool bf16, bool fp8)
{
    const struct sl_i8_shape *si = l->cpu->i8.shape;
    const struct sl_bf16_shape *sb = l->cpu->bf16.shape;
    int n_i8 = si != NULL ? si->tokens : SL_I8_BLOCK;
    int n_bf16 = sb != NULL ? sb->tokens : SL_BF16_BLOCK;
    SL_ASSERT(n_i8 >= 32 && n_i8 <= SL_I8_TOKENS && n_bf16 >= 32 && n_bf16 <= SL_BF16_TOKENS);
    const int n_forms = i8 + bf16 + fp8;
    const int most = !i8 ? n_bf16 : bf16 || fp8 ? SL_MIN(n_i8, n_bf16) : n_i8;
    return n_forms > 1 ? most / n_forms / 32 * 32 : most;
}

/* Tokens of a block and columns of a part of it. */
static void choose_part(const struct sl_linear *l, int *n_t, int64_t *n_k)
{
    const bool i8 = linear_packed_wants(l, SL_LAYOUT_I8),
               bf16 = linear_packed_wants(l, SL_LAYOUT_BF16);
    const bool fp8 = linear_packed_wants(l, SL_LAYOUT_FP8);
    const int64_t col_bytes = i8 ? 1 : 2; /* about; with several a block is smaller anyway */
    const int most = most_tokens(l, i8, bf16, fp8);
    *n_t = SL_MIN(l->n, even_block(l->n, most));
    *n_k = l->n_cols;
    if (*n_t * l->n_cols * col_bytes <= X_BYTES)
        return;
    if (l->up == NULL) { /* parts of about the same size */
        int64_t n_parts = SL_CEIL_DIV(*n_t * l->n_cols * col_bytes, X_BYTES);
        *n_k = SL_ROUND_UP(SL_CEIL_DIV(l->n_cols, n_parts), SL_I8_GROUP);
    } else {
        int64_t fit = X_BYTES / (l->n_cols * col_bytes) / 32 * 32;
        *n_t = SL_MIN(*n_t, even_block(l->n, (int)SL_MAX(fit, 64)));
    }
}

/* With few tokens what counts is that all threads read to the end; with many, that panels share the
 * activations, two at least, unless there are too few panels for the threads. */
static int32_t panels_per_item(const struct sl_linear *l, const struct sl_weight *w)
{
    if (l->n <= SL_I8_STREAM) {
        size_t panel_bytes = w->n_bytes / (size_t)SL_CEIL_DIV(w->n_rows, SL_I8_PANEL) + 1;
        return (int32_t)SL_MIN(sl_linear_item_bytes(l->cpu, sl_linear_bytes(l)) / panel_bytes + 1,
                               1u << 16);
    }
    const int64_t n_panels = SL_CEIL_DIV(sl_linear_rows_of(l), SL_I8_PANEL);
    int32_t n = SL_I8_PANELS;
    while (n > 2 && n_panels < 2 * (int64_t)n * l->cpu->n_threads)
        n /= 2;
    return n;
}

/* Whether outputs are put late: where products by tiles have enough tokens to do it beside. */
static bool puts_late(const struct job *j)
{
    const struct sl_cpu *cpu = j->l->cpu;
    const struct sl_i8_shape *i8 = cpu->i8.shape;
    const struct sl_bf16_shape *bf16 = cpu->bf16.shape;
    return j->b.n_t > 2 * SL_I8_STREAM && j->b.x_fp8 == NULL &&
           (j->b.x_i8 == NULL || (i8 != NULL && i8->late)) &&
           (j->b.x_bf16 == NULL || (bf16 != NULL && bf16->late));
}

/* With few tokens products are streams through the weights. */
static void tell_stream(const struct job *j)
{
    const struct sl_linear *l = j->l;
    struct sl_stream s = {.n_parts = l->n_parts, .up = l->up != NULL ? l->up->data : NULL};
    bool streams = l->n <= SL_I8_STREAM && (l->up == NULL || l->up->dtype == l->part[0].w->dtype);
    for (int i = 0; i < l->n_parts; i++) {
        const struct sl_weight *w = l->part[i].w;
        streams = streams && w->layout != SL_LAYOUT_ROWS;
        s.part[i] = (struct sl_stream_part){.panels = w->data,
                                            .panel_bytes = w->n_bytes / (size_t)j->n_panels[i],
                                            .n_panels = j->n_panels[i],
                                            .n_items = j->n_items[i],
                                            .panels_per_item = j->panels_per_item[i]};
    }
    sl_streams_run(&l->cpu->streams, streams ? &s : NULL);
}

static void run_part(struct job *j, int64_t n_items)
{
    const struct sl_linear *l = j->l;
    const int64_t work = sl_linear_rows_of(l) * j->b.n_k * j->b.n_t;
    struct late late[SL_MAX_THREADS];
    linear_packed_prepare(j);
    if (j->t0 == 0 && j->b.k0 == 0)
        tell_stream(j);
    j->late = puts_late(j) ? late : NULL;
    for (int i = 0; j->late != NULL && i < l->cpu->n_threads; i++)
        late[i].j = NULL;
    sl_cpu_run(l->cpu, packed_item, j, n_items, work);
    if (j->late != NULL)
        sl_cpu_run(l->cpu, late_item, j, l->cpu->n_threads, work);
}

void sl_linear_packed(const struct sl_linear *l)
{
    struct job j = {.l = l};
    int block;
    int64_t part, n_items = 0;
    choose_part(l, &block, &part);
    for (int i = 0; i < l->n_parts; i++) {
        j.n_panels[i] = SL_CEIL_DIV(l->part[i].w->n_rows, SL_I8_PANEL);
        j.panels_per_item[i] = panels_per_item(l, l->part[i].w);
        j.n_items[i] = SL_CEIL_DIV(j.n_panels[i], j.panels_per_item[i]);
        n_items += j.n_items[i];
    }
    for (j.t0 = 0; j.t0 < l->n; j.t0 += block)
        for (int64_t k0 = 0; k0 < l->n_cols; k0 += part) {
            j.b = (struct sl_block){.cpu = l->cpu,
                                    .x = l->x + j.t0 * l->ld_x,
                                    .ld_x = l->ld_x,
                                    .n_t = SL_MIN(l->n - j.t0, block),
                                    .k0 = k0,
                                    .n_k = SL_MIN(l->n_cols - k0, part)};
            run_part(&j, n_items);
        }
}
