/* SPDX-License-Identifier: MIT
 * The steps of one token each that follow a step of a model that drafts.
 *
 * They have a block of their own on the device, which is sent once, before the first of them.
 * Behind each one a kernel moves it on by a position, unless all stay at one (sl_step.borrows), and
 * keeps what was chosen, so that no step waits for the host or for a copy, and the ids of all go
 * back in one copy. Each of them is the same graph.
 */
#include "cuda/step/step.h"

#include "cuda/launch.cuh"
#include "cuda/ptx.cuh"

#include <string.h>

#define AGAIN_THREADS 256

/* What lies before the arrays of their block. */
struct again_head {
    int32_t n;    /* sequences, without padding */
    int32_t done; /* steps, the first one among them */
};

struct again_args {
    struct again_head *head;
    const int32_t *ids; /* chosen by the step before */
    int32_t *kept;      /* [steps, n] by all */
    int32_t *positions; /* NULL: they stay */
    struct sl_span *spans;
};

/* One block. Behind a step: keeps what it chose, and moves the block to the next position, unless
 * that was the first step, which has a block of its own. */
static __global__ void __launch_bounds__(AGAIN_THREADS) again_kernel(again_args a)
{
    sl_grid_wait();
    const int32_t n = a.head->n, done = a.head->done;
    __syncthreads();
    for (int32_t i = static_cast<int32_t>(threadIdx.x); i < n; i += AGAIN_THREADS) {
        a.kept[done * n + i] = a.ids[i];
        if (done > 0 && a.positions != nullptr) {
            a.positions[i]++;
            a.spans[i].pos++;
        }
    }
    if (threadIdx.x == 0)
        a.head->done = done + 1;
}

struct again_layout {
    size_t tokens, positions, spans, logit_rows, tables, n_bytes;
};

static struct again_layout again_layout_of(int32_t n_spans, int32_t n_table)
{
    const size_t each = SL_ROUND_UP(static_cast<size_t>(n_spans) * sizeof(int32_t),
                                    static_cast<size_t>(SL_CUDA_ALIGN));
    struct again_layout l;
    l.tokens = SL_CUDA_ALIGN; /* behind the head */
    l.positions = l.tokens + each;
    l.logit_rows = l.positions + each;
    l.spans = l.logit_rows + each;
    l.tables = l.spans + SL_ROUND_UP(static_cast<size_t>(n_spans) * sizeof(struct sl_span),
                                     static_cast<size_t>(SL_CUDA_ALIGN));
    l.n_bytes = l.tables + static_cast<size_t>(n_table) * sizeof(int32_t);
    return l;
}

size_t sl_cuda_again_bytes(const struct sl_step_limits *lim)
{
    const int32_t n_table = SL_MAX(lim->n_groups, 1) * (lim->max_table + 1);
    return lim->max_again > 0 ? again_layout_of(lim->max_spans, n_table).n_bytes : 0;
}

size_t sl_cuda_kept_bytes(const struct sl_step_limits *lim)
{
    return lim->max_again > 0 ? (static_cast<size_t>(lim->max_again) + 1) *
                                    static_cast<size_t>(lim->max_spans) * sizeof(int32_t)
                              : 0;
}

/* Page ids that the sequences use up to the last of the steps. */
static int32_t again_n_table(const struct sl_cuda_steps *s, const struct sl_step *first)
{
    const struct sl_batch *b = &first->batch;
    int32_t n = 0;
    for (int32_t i = 0; i < b->n_logits; i++) {
        const int32_t end = first->borrows ? b->spans[i].pos + 1
                                           : b->positions[b->logit_rows[i]] + first->n_again + 1;
        n = SL_MAX(n, b->spans[i].table_idx + SL_CEIL_DIV(end, s->lim.block_size));
    }
    return n;
}

/* Page ids of each group lie as far apart whatever a pass has, since the steps are recorded. */
static int32_t again_stride(const struct sl_cuda_steps *s)
{
    return s->lim.max_table + 1;
}

/* Each group's page ids and the page of its padding, n_table + 1 in all; then the block is sent. */
static void again_send_block(struct sl_cuda *cu, const struct sl_step *first, int32_t n_tables,
                             int32_t n_table, const struct again_layout *l, uint8_t *in)
{
    const struct sl_cuda_steps *s = cu->steps;
    const size_t each = (static_cast<size_t>(n_table) + 1) * sizeof(int32_t);
    for (int32_t g = 0; g < n_tables; g++) {
        const size_t at =
            l->tables + static_cast<size_t>(g) * static_cast<size_t>(again_stride(s)) * 4;
        int32_t *tables = reinterpret_cast<int32_t *>(in + at);
        memcpy(tables, sl_batch_tables(&first->batch, g), each - sizeof *tables);
        tables[n_table] = s->lim.scratch_pages[g];
        const size_t from = g == 0 ? 0 : at;
        sl_cuda_check(cu,
                      cudaMemcpyAsync(s->again + from, in + from, at + each - from,
                                      cudaMemcpyHostToDevice, cu->stream),
                      "cudaMemcpyAsync of the steps behind a step");
    }
}

void sl_cuda_again_send(struct sl_cuda *cu, const struct sl_step *first, uint8_t *in,
                        struct sl_step *dev)
{
    const struct sl_cuda_steps *s = cu->steps;
    const struct sl_batch *b = &first->batch;
    const int32_t n = b->n_logits, n_table = again_n_table(s, first);
    const int32_t padded =
        s->max_width > 0 ? sl_cuda_rung(n, SL_MIN(s->lim.max_spans, s->lim.max_logits)) : n;
    const struct again_layout l = again_layout_of(padded, n_table + 1);
    SL_ASSERT(n >= 1 && n <= b->n_spans && first->n_again <= s->lim.max_again);
    SL_ASSERT(n_table <= s->lim.max_table && padded <= s->lim.max_spans);
    struct again_head *head = reinterpret_cast<struct again_head *>(in);
    int32_t *tokens = reinterpret_cast<int32_t *>(in + l.tokens);
    int32_t *positions = reinterpret_cast<int32_t *>(in + l.positions);
    int32_t *rows = reinterpret_cast<int32_t *>(in + l.logit_rows);
    struct sl_span *spans = reinterpret_cast<struct sl_span *>(in + l.spans);
    *head = {n, 0};
    for (int32_t i = 0; i < padded; i++) {
        const bool real = i < n;
        SL_ASSERT(!real || (b->logit_rows[i] >= b->spans[i].first &&
                            b->logit_rows[i] < b->spans[i].first + b->spans[i].n));
        tokens[i] = real ? -1 - i : 0;
        positions[i] = real ? b->positions[b->logit_rows[i]] + !first->borrows : 0;
        rows[i] = i;
        spans[i] = {i, 1, real && first->borrows ? b->spans[i].pos : positions[i],
                    real ? b->spans[i].table_idx : n_table, 0};
    }
    const int32_t n_tables = first->borrows ? SL_MAX(s->lim.n_groups, 1) : 1;
    again_send_block(cu, first, n_tables, n_table, &l, in);
    dev->part = SL_STEP_AGAIN;
    dev->drafts = true;
    dev->borrows = first->borrows;
    dev->variant = first->variant;
    dev->batch.n_tokens = dev->batch.n_spans = dev->batch.n_logits = padded;
    dev->batch.span_sizes = sl_batch_sizes_of(spans, padded);
    dev->batch.tokens = reinterpret_cast<const int32_t *>(s->again + l.tokens);
    dev->batch.positions = reinterpret_cast<const int32_t *>(s->again + l.positions);
    dev->batch.logit_rows = reinterpret_cast<const int32_t *>(s->again + l.logit_rows);
    dev->batch.spans = reinterpret_cast<const struct sl_span *>(s->again + l.spans);
    dev->batch.block_tables = reinterpret_cast<const int32_t *>(s->again + l.tables);
    dev->batch.n_tables = n_tables;
    dev->batch.table_stride = again_stride(s);
    dev->extra = s->extra;
    dev->ids = reinterpret_cast<int32_t *>(s->out);
}

void sl_cuda_again_keep(struct sl_cuda *cu, const struct sl_step *dev)
{
    const struct sl_cuda_steps *s = cu->steps;
    again_args k = {};
    k.head = reinterpret_cast<struct again_head *>(s->again);
    k.ids = dev->ids;
    k.kept = reinterpret_cast<int32_t *>(s->kept);
    if (dev->part == SL_STEP_AGAIN && !dev->borrows) {
        k.positions = const_cast<int32_t *>(dev->batch.positions);
        k.spans = const_cast<struct sl_span *>(dev->batch.spans);
    }
    sl_launch(cu, again_kernel, dim3(1), dim3(AGAIN_THREADS), 0, k);
}

void sl_cuda_again_leave(struct sl_cuda *cu, const struct sl_step *first)
{
    const struct sl_cuda_steps *s = cu->steps;
    const size_t n = static_cast<size_t>(first->batch.n_logits) *
                     (1 + static_cast<size_t>(first->n_again)) * sizeof(int32_t);
    SL_ASSERT(first->n_again > 0 && n <= s->kept_bytes && n <= s->result_offset);
    sl_cuda_check(cu, cudaMemcpyAsync(s->out, s->kept, n, cudaMemcpyDeviceToDevice, cu->stream),
                  "cudaMemcpyAsync of drafts");
}
