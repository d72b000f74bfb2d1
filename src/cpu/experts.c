/* SPDX-License-Identifier: MIT
 * Mixtures of experts: the products of rows grouped by expert (route.c chooses the experts).
 *
 * Pairs of a row and an expert are sorted by expert, so that each expert that is hit reads its
 * matrices once for a block of rows. As many experts as the scratch has room for are a wave, which
 * takes four jobs of the pool, whatever their number:
 *
 *   place x    the rows of each block, as its gate and up want them
 *   gate, up   items are panels of one block; to mid, in the order of the pairs
 *   place mid  as the downs want it
 *   down       items are panels of all blocks, one expert after the other: each adds its part to
 *              the sums of its rows while they are in the cache
 *
 * A row's bits do not depend on the rows in its block, and it adds its experts by leaves (ops.h),
 * whoever shares them; at the end what its shared expert gave. Of one row (decoding) the first and
 * the third job are not worth waking a thread, so that two are left.
 */
#include "cpu/experts.h"

#include "base/check.h"
#include "cpu/block.h"
#include "cpu/linear.h"

#include <string.h>

#define ALIGN      64
#define X_BYTES    (1280 << 10) /* activations of a block, in a core's L2 cache */
#define WAVE_BYTES (8 << 20)    /* of a wave's placed rows, in one form */
#define MIN_ROWS   32           /* of a block, if the expert has so many */
#define AHEAD      4096         /* bytes of the next matrix that are asked for */

/* ------------------------------------------------------------------ stacks */

int sl_cpu_stack_create(struct sl_backend *be, const struct sl_weight *mats, int32_t n,
                        struct sl_stack *out, struct sl_error *err)
{
    (void)be;
    (void)err;
    for (int32_t i = 1; i < n; i++)
        SL_ASSERT(mats[i].n_rows == mats[0].n_rows && mats[i].n_cols == mats[0].n_cols);
    *out = (struct sl_stack){.mats = mats, .n = n};
    return 0;
}

void sl_cpu_stack_destroy(struct sl_backend *be, struct sl_stack *s)
{
    (void)be;
    *s = (struct sl_stack){0};
}

/* ------------------------------------------------------------------ scratch */

/* Rows of an expert that are multiplied together. */
struct group {
    struct sl_block b;     /* of x, then of mid */
    int32_t expert, first; /* first: its first pair, of the wave's */
    float *gathered;       /* x for matrices as in the file, or NULL */
};

struct room {        /* the scratch of a call, in its parts */
    int32_t *first;  /* [E + 1] where an expert's pairs begin */
    int32_t *pairs;  /* [T * top_k] row * top_k + place, by expert, then ascending */
    uint8_t *adds;   /* [T * top_k] of each pair: how it is added, see find_adds */
    float *sums;     /* [3, T, H] of a leaf, of two, of four; out has that of all */
    int32_t *of;     /* [sl_expert_room_pairs] the group of each pair of the wave */
    struct group *g; /* of the wave */
    float *mid;      /* [sl_expert_room_pairs, I] */
    uint8_t *placed;
    size_t placed_bytes, n_bytes;
    const uint8_t
        *ranks; /* [T * top_k] of pairs: those of `own` are here; NULL: as the call says */
    uint8_t own;
    float *
        kept; /* [pairs that are here, H] what each gives, in place of sums; NULL: they are added */
};

static size_t experts_carve(struct room *r, size_t n_bytes)
{
    size_t at = r->n_bytes;
    r->n_bytes += SL_ROUND_UP(n_bytes, (size_t)ALIGN);
    return at;
}

/* Bytes of so many rows in all forms at once. */
static size_t most_bytes(int64_t n_rows, int64_t n_cols)
{
    const size_t rows = (size_t)SL_ROUND_UP(n_rows, 16);
    const size_t i8 = (size_t)SL_CEIL_DIV(n_cols, SL_I8_GROUP) * sizeof(struct sl_i8_x);
    const size_t bf16 = (size_t)SL_ROUND_UP(n_cols, SL_BF16_K) * sizeof(uint16_t);
    const size_t fp8 = (size_t)SL_ROUND_UP(n_cols, SL_FP8_GROUP) * sizeof(uint16_t);
    return rows * (i8 + bf16 + fp8) + rows * (size_t)n_cols * sizeof(float);
}

static int32_t most_groups(int32_t n_pairs, int32_t n_experts)
{
    return SL_MIN(n_pairs, n_experts + SL_CEIL_DIV(n_pairs, MIN_ROWS));
}

/* base NULL: only n_bytes counts. */
static struct room experts_room_of(uint8_t *base, int32_t n, int32_t n_experts, int32_t top_k,
                                   int64_t h, int64_t i)
{
    struct room r = {0};
    const int32_t n_pairs = sl_expert_room_pairs(n, top_k, i);
    const int64_t cols = SL_MAX(h, i);
    const size_t one = most_bytes(SL_MIN(n, MIN_ROWS), cols);
    r.placed_bytes = SL_MIN((size_t)n_pairs * one, SL_MAX(one, (size_t)WAVE_BYTES));
    const size_t first = experts_carve(&r, (size_t)(n_experts + 1) * sizeof *r.first);
    const size_t pairs = experts_carve(&r, (size_t)n * (size_t)top_k * sizeof *r.pairs);
    const size_t adds = experts_carve(&r, (size_t)n * (size_t)top_k * sizeof *r.adds);
    const size_t sums = experts_carve(&r, 3 * (size_t)n * (size_t)h * sizeof *r.sums);
    const size_t of = experts_carve(&r, (size_t)n_pairs * sizeof *r.of);
    const size_t g = experts_carve(&r, (size_t)most_groups(n_pairs, n_experts) * sizeof *r.g);
    const size_t mid = experts_carve(&r, (size_t)n_pairs * (size_t)i * sizeof *r.mid);
    const size_t placed = experts_carve(&r, r.placed_bytes);
    if (base == NULL)
        return r;
    r.first = (int32_t *)(void *)(base + first);
    r.pairs = (int32_t *)(void *)(base + pairs);
    r.adds = base + adds;
    r.sums = (float *)(void *)(base + sums);
    r.of = (int32_t *)(void *)(base + of);
    r.g = (struct group *)(void *)(base + g);
    r.mid = (float *)(void *)(base + mid);
    r.placed = base + placed;
    return r;
}

size_t sl_cpu_experts_bytes(struct sl_backend *be, int32_t n, int32_t n_experts, int32_t top_k,
                            int64_t hidden, int64_t intermediate)
{
    (void)be;
    return experts_room_of(NULL, n, n_experts, top_k, hidden, intermediate).n_bytes;
}

/* The experts that are here. */
static bool is_here(const struct sl_op_experts *a, int32_t expert)
{
    return a->until == 0 || (expert >= a->from && expert < a->until);
}

static bool pair_is_here(const struct sl_op_experts *a, const struct room *r, int32_t pair)
{
    return r->ranks != NULL ? r->ranks[pair] == r->own : is_here(a, a->experts[pair]);
}

/* A counting sort of the pairs that are here by their experts, which keeps the order of rows.
 * Returns how many they are. */
static int32_t sort_pairs(const struct sl_op_experts *a, const struct room *r)
{
    const int32_t n_pairs = a->n * a->top_k, n_experts = a->gate->n;
    memset(r->first, 0, (size_t)(n_experts + 1) * sizeof *r->first);
    for (int32_t p = 0; p < n_pairs; p++) {
        const bool here = pair_is_here(a, r, p);
        SL_ASSERT(a->experts[p] >= 0 && (a->experts[p] < n_experts || !here));
        if (here)
            r->first[a->experts[p] + 1]++;
    }
    for (int32_t e = 0; e < n_experts; e++)
        r->first[e + 1] += r->first[e];
    for (int32_t p = 0; p < n_pairs; p++)
        if (pair_is_here(a, r, p))
            r->pairs[r->first[a->experts[p]]++] = p;
    for (int32_t e = n_experts; e > 0; e--)
        r->first[e] = r->first[e - 1];
    r->first[0] = 0;
    return r->first[n_experts];
}

/* ------------------------------------------------------------------ waves */

struct wave {
    const struct sl_op_experts *a;
    struct sl_cpu *cpu;
    const struct room *r;
    int32_t from, n_pairs; /* of the sorted pairs */
    int32_t n_groups;
    bool one_x;       /* all groups are of one row, which is placed once */
    float *part;      /* [n_pairs, I'] mid, or what this rank has of it */
    int64_t n_panels; /* of a matrix of the job that runs */
    int64_t n_items;  /* of a group's gate and up; of all downs */
    int32_t panels_per_item;
};

static const struct sl_weight *gate_of(const struct wave *w, const struct group *g)
{
    return &w->a->gate->mats[g->expert];
}

static const struct sl_weight *up_of(const struct wave *w, const struct group *g)
{
    return &w->a->up->mats[g->expert];
}

static const struct sl_weight *down_of(const struct wave *w, const struct group *g)
{
    return &w->a->down->mats[g->expert];
}

static const float *experts_row_of(const struct wave *w, int32_t pair)
{
    return (const float *)w->a->x +
           w->r->pairs[w->from + pair] / w->a->top_k * w->a->gate->mats[0].n_cols;
}

/* Several rows for matrices as in the file must lie together; weighed rows are an expert's own. */
static size_t gathered_bytes(const struct wave *w, const struct group *g)
{
    const bool rows = (g->b.wants & 1u << SL_LAYOUT_ROWS) != 0 && g->b.n_t > 1;
    const bool gathers = rows || w->a->weigh_input;
    return gathers ? SL_ROUND_UP((size_t)(g->b.n_t * g->b.n_k) * sizeof(float), (size_t)ALIGN) : 0;
}

static struct sl_block experts_block_of(const struct wave *w, int32_t n_t,
                                        const struct sl_weight *mat, const struct sl_weight *other)
{
    struct sl_block b = {.cpu = w->cpu, .n_t = n_t, .n_k = mat->n_cols};
    sl_block_meet(&b, mat);
    if (other != NULL)
        sl_block_meet(&b, other);
    return b;
}

/* Rows of an expert that has n, in blocks of about the same size that stay in the cache. */
static int32_t rows_of_block(const struct wave *w, int32_t e, int32_t n)
{
    const struct sl_i8_shape *i8 = w->cpu->i8.shape;
    const struct sl_bf16_shape *bf16 = w->cpu->bf16.shape;
    const struct sl_weight *gate = &w->a->gate->mats[e], *down = &w->a->down->mats[e];
    const bool bytes = gate->layout == SL_LAYOUT_I8 && down->layout == SL_LAYOUT_I8;
    const int64_t row = SL_MAX(gate->n_cols, down->n_cols) * (bytes ? 1 : 2);
    int32_t most = bytes ? (i8 != NULL ? i8->tokens : SL_I8_BLOCK)
                         : (bf16 != NULL ? SL_MIN(bf16->tokens, SL_I8_BLOCK) : SL_I8_BLOCK);
    most = (int32_t)SL_MAX(SL_MIN(most, X_BYTES / row / 32 * 32), 2 * MIN_ROWS);
    return SL_MIN(n, SL_ROUND_UP(SL_CEIL_DIV(n, SL_CEIL_DIV(n, most)), 32));
}

/* Adds the next rows of expert e, `left` of them still to do, to the wave. 0: the wave is full. */
static int32_t add_group(struct wave *w, int32_t e, int32_t left, int32_t most_pairs,
                         size_t *used_x, size_t *used_mid)
{
    const struct room *r = w->r;
    const int32_t rest = most_pairs - w->n_pairs;
    struct group *g = &r->g[w->n_groups];
    int32_t n = rows_of_block(w, e, left);
    size_t x, mid;
    if (n > rest && w->n_groups > 0)
        return 0;
    for (n = SL_MIN(n, rest);; n = SL_MAX(n / 2, MIN_ROWS)) {
        *g = (struct group){.expert = e, .first = w->n_pairs};
        g->b = experts_block_of(w, n, down_of(w, g), NULL);
        mid = sl_block_bytes(&g->b);
        g->b = experts_block_of(w, n, gate_of(w, g), up_of(w, g));
        x = sl_block_bytes(&g->b) + gathered_bytes(w, g);
        if (*used_x + x <= r->placed_bytes && *used_mid + mid <= r->placed_bytes)
            break;
        if (w->n_groups > 0)
            return 0;
        SL_ASSERT(n > MIN_ROWS); /* so many always fit */
    }
    for (int32_t t = 0; t < n; t++)
        r->of[w->n_pairs + t] = w->n_groups;
    *used_x += x;
    *used_mid += mid;
    w->n_groups++;
    w->n_pairs += n;
    return n;
}

/* The experts from pair `from` on that the scratch has room for; *e: where to look for the first.
 */
static struct wave next_wave(const struct sl_op_experts *a, struct sl_cpu *cpu,
                             const struct room *r, int32_t from, int32_t end, int32_t *e)
{
    struct wave w = {.a = a, .cpu = cpu, .r = r, .from = from};
    const int32_t most = sl_expert_room_pairs(a->n, a->top_k, a->down->mats[0].n_cols);
    size_t used_x = 0, used_mid = 0;
    for (int32_t p = from, n; p < end; p += n) {
        while (r->first[*e + 1] <= p)
            (*e)++;
        n = w.n_pairs < most ? add_group(&w, *e, r->first[*e + 1] - p, most, &used_x, &used_mid)
                             : 0;
        if (n == 0)
            break;
    }
    SL_ASSERT(w.n_groups > 0 && w.n_pairs <= most);
    return w;
}

/* ------------------------------------------------------------------ placing */

static void place_x(void *arg, uint32_t i, int thread_idx)
{
    const struct wave *w = arg;
    const struct group *g = &w->r->g[w->r->of[i]];
    const int32_t t = (int32_t)i - g->first;
    const float *x = experts_row_of(w, (int32_t)i);
    (void)thread_idx;
    if (g->gathered != NULL) {
        float *to = g->gathered + t * g->b.n_k;
        memcpy(to, x, (size_t)g->b.n_k * sizeof *x);
        if (w->a->weigh_input)
            w->cpu->k.scale(to, w->a->weights[w->r->pairs[w->from + (int32_t)i]], g->b.n_k);
        x = to;
    }
    sl_block_place(&g->b, t, x);
}

static void place_mid(void *arg, uint32_t i, int thread_idx)
{
    const struct wave *w = arg;
    const struct group *g = &w->r->g[w->r->of[i]];
    (void)thread_idx;
    sl_block_place(&g->b, (int)i - g->first, w->r->mid + i * g->b.n_k);
}

/* Places of the groups' forms, of x for gate and up. */
static void cut_x(struct wave *w)
{
    uint8_t *at = w->r->placed;
    struct group *first = w->r->g;
    w->one_x = w->a->n == 1 && !w->a->weigh_input;
    for (int32_t k = 0; k < w->n_groups; k++) {
        struct group *g = &w->r->g[k];
        g->b.x = experts_row_of(w, g->first);
        g->b.ld_x = g->b.n_k;
        sl_block_cut(&g->b, at);
        at += sl_block_bytes(&g->b);
        if (gathered_bytes(w, g) > 0)
            g->b.x = g->gathered = (float *)(void *)at;
        at += gathered_bytes(w, g);
        w->one_x = w->one_x && g->b.wants == first->b.wants && g->b.tiles == first->b.tiles;
    }
    for (int32_t k = 1; k < w->n_groups && w->one_x; k++)
        w->r->g[k].b = first->b;
}

static void cut_mid(struct wave *w)
{
    uint8_t *at = w->r->placed;
    for (int32_t k = 0; k < w->n_groups; k++) {
        struct group *g = &w->r->g[k];
        g->b = experts_block_of(w, g->b.n_t, down_of(w, g), NULL);
        g->b.ld_x = g->b.n_k;
        g->b.x = w->r->mid + g->first * g->b.n_k;
        sl_block_cut(&g->b, at);
        at += sl_block_bytes(&g->b);
    }
}

/* ------------------------------------------------------------------ products */

static const float *of_expert(const float *biases, int32_t e, int64_t n, int64_t row)
{
    return biases == NULL ? NULL : biases + e * n + row;
}

/* Asks for the beginning of panels that are read soon: a stream starts late. */
static void experts_ask(const struct sl_weight *w, int64_t p)
{
    const size_t panel = w->n_bytes / (size_t)SL_CEIL_DIV(w->n_rows, SL_I8_PANEL);
    const uint8_t *at = (const uint8_t *)w->data + (size_t)p * panel;
    for (size_t i = 0; i < AHEAD && w->layout != SL_LAYOUT_ROWS; i += 64)
        __builtin_prefetch(at + i, 0, 2);
}

/* Panels p .. of a group's gate and up, to mid. */
static void gated_panels(const struct wave *w, const struct group *g, int64_t p, int n_panels,
                         int thread_idx)
{
    const struct sl_op_experts *a = w->a;
    const struct sl_cpu_kernels *k = &w->cpu->k;
    const int64_t n_rows = gate_of(w, g)->n_rows, row = p * SL_I8_PANEL;
    const int n = (int)SL_MIN(n_rows - row, n_panels * SL_I8_PANEL);
    const float *gate_bias = of_expert(a->gate_bias, g->expert, n_rows, row);
    const float *up_bias = of_expert(a->up_bias, g->expert, n_rows, row);
    float *gate = w->cpu->scratch[thread_idx].packed[0];
    float *up = w->cpu->scratch[thread_idx].packed[1];
    sl_block_dot(&g->b, gate_of(w, g), p, n_panels, NULL, gate, thread_idx);
    if (a->gate != a->up)
        sl_block_dot(&g->b, up_of(w, g), p, n_panels, NULL, up, thread_idx);
    else
        memcpy(up, gate, (size_t)g->b.n_t * SL_ITEM_ROWS * sizeof *up);
    for (int t = 0; t < g->b.n_t; t++, gate += SL_ITEM_ROWS, up += SL_ITEM_ROWS) {
        float *out = w->part + (g->first + t) * n_rows + row;
        if (gate_bias != NULL) {
            k->add(gate, gate_bias, n);
            k->add(up, up_bias, n);
        }
        if (a->swiglu.limit > 0)
            k->swiglu(&a->swiglu, gate, up, n, out);
        else
            k->act(a->act, gate, up, n, out);
    }
}

static void gated_item(void *arg, uint32_t item, int thread_idx)
{
    const struct wave *w = arg;
    const struct group *g = &w->r->g[item / w->n_items];
    const int64_t first = item % w->n_items * w->panels_per_item;
    const int64_t end = SL_MIN(first + w->panels_per_item, w->n_panels);
    experts_ask(up_of(w, g), first);
    for (int64_t p = first; p < end; p += SL_I8_PANELS)
        gated_panels(w, g, p, (int)SL_MIN(end - p, SL_I8_PANELS), thread_idx);
}

void sl_cpu_expert_add(const struct sl_cpu_kernels *k, unsigned how, float *y, float *sums[4],
                       int n)
{
    const unsigned to = how >> SL_ADD_TO & 3;
    for (unsigned i = 0; i < to; i++)
        if ((how >> i & 1) != 0)
            k->add(y, sums[i], n);
    if ((how >> SL_ADD_FIRST & 1) == 0) {
        k->add(sums[to], y, n);
        return;
    }
    for (int i = 0; i < n; i++)
        sums[to][i] = y[i] + 0.0F; /* of -0, which no sum is, +0 */
}

/* One expert's y, n values from `at` on of [T, H] sums. */
static void add_expert(const struct wave *w, int32_t pair, int64_t at, float *y, int n)
{
    const struct sl_op_experts *a = w->a;
    const int64_t step = a->n * a->down->mats[0].n_rows;
    float *leaf = w->r->sums + at, *two = leaf + step, *four = two + step;
    sl_cpu_expert_add(&w->cpu->k, w->r->adds[pair], y, (float *[]){leaf, two, four, a->out + at},
                      n);
}

/* Panels p .. of a group's down, added to the sums of its rows. */
static void down_panels(const struct wave *w, const struct group *g, int64_t p, int n_panels,
                        int thread_idx)
{
    const struct sl_op_experts *a = w->a;
    const struct sl_cpu_kernels *k = &w->cpu->k;
    const int64_t n_rows = down_of(w, g)->n_rows, row = p * SL_I8_PANEL;
    const int n = (int)SL_MIN(n_rows - row, n_panels * SL_I8_PANEL);
    const float *bias = of_expert(a->down_bias, g->expert, n_rows, row);
    float *y = w->cpu->scratch[thread_idx].packed[0];
    sl_block_dot(&g->b, down_of(w, g), p, n_panels, NULL, y, thread_idx);
    for (int t = 0; t < g->b.n_t; t++, y += SL_ITEM_ROWS) {
        const int32_t at = w->from + g->first + t, pair = w->r->pairs[at];
        if (bias != NULL)
            k->add(y, bias, n);
        if (!a->weigh_input)
            k->scale(y, a->weights[pair], n);
        if (w->r->kept != NULL)
            memcpy(w->r->kept + at * n_rows + row, y, (size_t)n * sizeof *y);
        else
            add_expert(w, pair, pair / a->top_k * n_rows + row, y, n);
    }
}

static void down_item(void *arg, uint32_t item, int thread_idx)
{
    const struct wave *w = arg;
    const int64_t first = (int64_t)item * w->panels_per_item;
    const int64_t end = SL_MIN(first + w->panels_per_item, w->n_panels);
    for (int32_t k = 0; k < w->n_groups; k++) {
        if (k + 1 < w->n_groups)
            experts_ask(down_of(w, &w->r->g[k + 1]), first);
        for (int64_t p = first; p < end; p += SL_I8_PANELS)
            down_panels(w, &w->r->g[k], p, (int)SL_MIN(end - p, SL_I8_PANELS), thread_idx);
    }
}

/* Items of one job over panels of all groups together, or of each. With few rows what counts is
 * that all threads read to the end, with many that panels share the activations. */
static void cut_items(struct wave *w, const struct sl_weight *mat, int32_t n_mats, bool by_group)
{
    const int64_t n_panels = SL_CEIL_DIV(mat->n_rows, SL_I8_PANEL);
    const int64_t n_parts = by_group ? w->n_groups : 1;
    int64_t n = SL_I8_PANELS;
    if (w->n_pairs <= SL_I8_STREAM * w->n_groups) {
        const size_t all = mat->n_bytes * (size_t)(n_mats * w->n_groups);
        const size_t panel =
            mat->n_bytes / (size_t)n_panels * (size_t)(n_mats * (by_group ? 1 : w->n_groups));
        n = (int64_t)(sl_linear_item_bytes(w->cpu, all) / (panel + 1)) + 1;
    } else {
        while (n > 1 && n_panels * n_parts < 2 * n * w->cpu->n_threads)
            n /= 2;
    }
    w->n_panels = n_panels;
    w->panels_per_item = (int32_t)SL_MIN(n, n_panels);
    w->n_items = SL_CEIL_DIV(n_panels, w->panels_per_item);
}

/* Of weights on a disk: all that the wave reads is asked for at once, in the order of its jobs, so
 * that the disk has a queue in place of one page at a time, and `down` while gates are computed. */
static void wave_ask(const struct wave *w)
{
    const struct sl_weight_stream *s = w->cpu->weights;
    for (int32_t k = 0; s != NULL && k < w->n_groups; k++) {
        sl_weight_stream_ask(s, gate_of(w, &w->r->g[k])->data);
        sl_weight_stream_ask(s, up_of(w, &w->r->g[k])->data);
    }
    for (int32_t k = 0; s != NULL && k < w->n_groups; k++)
        sl_weight_stream_ask(s, down_of(w, &w->r->g[k])->data);
}

static void run_wave(struct sl_backend *be, struct wave *w)
{
    const struct sl_op_experts *a = w->a;
    const struct sl_weight *gate = &a->gate->mats[0], *down = &a->down->mats[0];
    const int64_t n_gated = gate->n_rows * gate->n_cols, n_down = down->n_rows * down->n_cols;
    w->part = a->rank != NULL ? sl_rank_room(a->rank) : w->r->mid;
    wave_ask(w);
    cut_x(w);
    sl_cpu_run(w->cpu, place_x, w, w->one_x ? 1 : w->n_pairs, w->n_pairs * gate->n_cols);
    cut_items(w, gate, 2, true);
    sl_cpu_run(w->cpu, gated_item, w, w->n_items * w->n_groups, 2 * n_gated * w->n_pairs);
    if (a->rank != NULL)
        sl_cpu_all_gather(
            be, &(struct sl_op_all_gather){.rank = a->rank,
                                           .part = w->part,
                                           .part_bytes = (size_t)gate->n_rows * sizeof *w->part,
                                           .n = w->n_pairs,
                                           .out = w->r->mid});
    cut_mid(w);
    sl_cpu_run(w->cpu, place_mid, w, w->n_pairs, w->n_pairs * down->n_cols);
    cut_items(w, down, 1, false);
    sl_cpu_run(w->cpu, down_item, w, w->n_items, n_down * w->n_pairs);
}

struct row_job {
    const struct sl_cpu *cpu;
    const struct sl_op_experts *a;
    const struct room *r;
    int64_t h;
};

int32_t sl_cpu_next_expert(const struct sl_op_experts *a, const int32_t *experts, int32_t before)
{
    int32_t next = -1;
    for (int32_t s = 0; s < a->top_k; s++)
        if (is_here(a, experts[s]) && experts[s] > before &&
            (next < 0 || experts[s] < experts[next]))
            next = s;
    return next;
}

/* Each expert ends so many sums as the next one is not in (SL_EXPERT_ENDS), the last one all. What
 * an ended sum has is added to the expert, which goes on to the lowest sum that goes on: as its
 * first term, or beside what is there. Sums that have nothing are left out, which is as good as
 * adding +0. */
bool sl_cpu_expert_adds(const struct sl_op_experts *a, int32_t t, uint8_t *adds)
{
    const int32_t *experts = a->experts + (int64_t)t * a->top_k;
    unsigned kept = 0; /* sums that have something */
    for (int32_t s = sl_cpu_next_expert(a, experts, -1), next; s >= 0; s = next) {
        const int32_t leaf = SL_EXPERT_LEAF(experts[s], a->gate->n);
        next = sl_cpu_next_expert(a, experts, experts[s]);
        const unsigned to =
            next < 0 ? 3
                     : (unsigned)SL_EXPERT_ENDS(leaf, SL_EXPERT_LEAF(experts[next], a->gate->n));
        const unsigned ended = kept & ((1U << to) - 1), first = (kept >> to & 1) == 0;
        adds[s] = (uint8_t)(ended | to << SL_ADD_TO | first << SL_ADD_FIRST);
        kept = (kept & ~ended) | 1U << to;
    }
    SL_DCHECK(kept == 0 || kept == 1U << 3);
    return kept != 0;
}

static void find_adds(void *arg, uint32_t t, int thread_idx)
{
    const struct row_job *j = arg;
    (void)thread_idx;
    if (!sl_cpu_expert_adds(j->a, (int32_t)t, j->r->adds + (int64_t)t * j->a->top_k))
        memset(j->a->out + (int64_t)t * j->h, 0, (size_t)j->h * sizeof *j->a->out);
}

static void add_shared(void *arg, uint32_t t, int thread_idx)
{
    const struct row_job *j = arg;
    const struct sl_op_experts *a = j->a;
    const int64_t at = (int64_t)t * j->h;
    (void)thread_idx;
    sl_cpu_add_shared(j->cpu, a->shared + at, a->shared_logit != NULL ? &a->shared_logit[t] : NULL,
                      j->h, a->out + at);
}

/* All pairs that are here, wave by wave. */
static void run_waves(struct sl_backend *be, const struct sl_op_experts *a, const struct room *r)
{
    const int32_t end = sort_pairs(a, r);
    for (int32_t from = 0, e = 0; from < end;) {
        struct wave w = next_wave(a, sl_cpu(be), r, from, end, &e);
        run_wave(be, &w);
        from += w.n_pairs;
    }
}

void sl_cpu_expert_products(struct sl_backend *be, const struct sl_op_experts *a,
                            const uint8_t *ranks, int32_t own, float *kept)
{
    struct room r = experts_room_of(a->scratch, a->n, a->gate->n, a->top_k, a->gate->mats[0].n_cols,
                                    a->down->mats[0].n_cols);
    SL_ASSERT(a->rank == NULL && a->until == 0 && kept != NULL);
    r.ranks = ranks;
    r.own = (uint8_t)own;
    r.kept = kept;
    run_waves(be, a, &r);
}

void sl_cpu_experts(struct sl_backend *be, const struct sl_op_experts *a)
{
    const struct sl_weight *gate = &a->gate->mats[0];
    const struct sl_weight *down = &a->down->mats[0];
    SL_ASSERT(a->gate->n == a->up->n && a->gate->n == a->down->n);
    SL_ASSERT(a->top_k >= 1 && a->top_k <= a->gate->n);
    SL_ASSERT(a->from >= 0 && a->until <= a->gate->n && (a->until == 0 || a->rank == NULL));
    SL_ASSERT((a->gate_bias != NULL) == (a->up_bias != NULL));
    SL_ASSERT(!a->weigh_input || (a->gate_bias == NULL && a->down_bias == NULL));
    SL_ASSERT((a->rank != NULL && a->places == NULL) ||
              (down->n_rows == gate->n_cols && down->n_cols == gate->n_rows));
    const struct room r =
        experts_room_of(a->scratch, a->n, a->gate->n, a->top_k, gate->n_cols, down->n_cols);
    struct row_job rows = {sl_cpu(be), a, &r, down->n_rows};
    if (a->places != NULL) {
        sl_cpu_experts_placed(be, a);
    } else {
        sl_cpu_run(sl_cpu(be), find_adds, &rows, a->n, (int64_t)a->n * a->top_k * a->top_k);
        run_waves(be, a, &r);
    }
    if (a->shared != NULL)
        sl_cpu_run(sl_cpu(be), add_shared, &rows, a->n, a->n * down->n_rows);
}
