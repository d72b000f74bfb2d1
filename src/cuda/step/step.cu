/* SPDX-License-Identifier: MIT
 * A step on the device: its arrays travel as one block in one copy, its operations are enqueued or
 * replayed, its ids come back in one copy (a second one if somebody wants what else the sampler
 * says), an event ends it. Four calls of the runtime for a replayed step, none of which waits. Of a
 * step in two parts only the first is recorded: the second is one copy and a kernel or two.
 *
 * The host runs at most one step ahead. The block on the device is one, since the stream orders the
 * next copy behind the operations that read it; the pinned blocks are two, because the host fills
 * one while the copy of the other may still be under way.
 *
 * A step in which every sequence has the same few tokens (one, and what is drafted behind it) and
 * wants all their rows is a decode step. Its number of spans is padded to the next rung of a ladder
 * (1, 2, 4, 8, then by 8 to 256, by 32 above) with spans at position 0 of the scratch page, so that
 * few sizes are recorded. Padding wastes at most 7 spans up to 256, where a step's time is that of
 * reading the weights. It changes no bit of a real row: no row's result depends on its mates
 * (docs/DETERMINISM.md).
 */
#include "cuda/step/step.h"

#include "cuda/attention/attention.h"
#include "cuda/comm/pipe.h"
#include "cuda/gemm/linear.h"
#include "cuda/gemm/lora.h"

#include "base/log.h"

#include <string.h>

int32_t sl_cuda_rung(int32_t n, int32_t max_rung)
{
    int32_t rung = 1;
    if (n > 256)
        rung = SL_ROUND_UP(n, 32);
    else if (n > SL_CUDA_PAD_MIN)
        rung = SL_ROUND_UP(n, 8);
    else
        while (rung < n)
            rung *= 2;
    return SL_MIN(rung, max_rung);
}

static size_t place(size_t *at, size_t n_bytes)
{
    size_t offset = *at;
    *at += SL_ROUND_UP(n_bytes, static_cast<size_t>(SL_CUDA_ALIGN));
    return offset;
}

static struct sl_cuda_block_layout layout_of(int32_t n_tokens, int32_t n_spans, int32_t n_logits,
                                             int32_t n_table, size_t param_bytes, bool pairs,
                                             bool adapters, bool host)
{
    struct sl_cuda_block_layout l;
    size_t at = 0, tokens = static_cast<size_t>(n_tokens), rows = static_cast<size_t>(n_logits);
    l.n_pad = place(&at, host ? sizeof(int32_t) : 0);
    l.tokens = place(&at, tokens * sizeof(int32_t));
    l.positions = place(&at, tokens * sizeof(int32_t));
    l.spans = place(&at, static_cast<size_t>(n_spans) * sizeof(struct sl_span));
    l.second_from = place(&at, pairs ? static_cast<size_t>(n_spans) * sizeof(int32_t) : 0);
    l.logit_rows = place(&at, rows * sizeof(int32_t));
    l.params = place(&at, rows * param_bytes);
    l.adapters = place(&at, adapters ? tokens * sizeof(int32_t) : 0);
    l.scales = place(&at, adapters ? tokens * sizeof(float) : 0);
    l.tables = at;
    l.n_bytes = at + static_cast<size_t>(n_table) * sizeof(int32_t);
    return l;
}

/* Page ids from one group's table to the next: the most there can be, and padding's. */
static int32_t table_stride(const struct sl_step_limits *lim)
{
    return lim->max_table + 1;
}

static void sizes_of(const struct sl_step_limits *lim, size_t *in_bytes, size_t *result_offset,
                     size_t *out_bytes)
{
    *in_bytes =
        layout_of(lim->max_tokens, lim->max_spans, lim->max_logits, table_stride(lim),
                  lim->param_bytes, lim->whole, lim->adapter_bytes > 0, lim->host_hidden > 0)
            .n_bytes +
        static_cast<size_t>(SL_MAX(lim->n_groups, 1) - 1) * static_cast<size_t>(table_stride(lim)) *
            sizeof(int32_t);
    const size_t ids = static_cast<size_t>(lim->max_logits) * sizeof(int32_t);
    *result_offset = SL_ROUND_UP(SL_MAX(ids, sl_cuda_kept_bytes(lim)), /* either, in a slot */
                                 static_cast<size_t>(SL_CUDA_ALIGN));
    *out_bytes = *result_offset +
                 static_cast<size_t>(lim->max_logits) * static_cast<size_t>(lim->result_bytes);
}

/* As attention.h has it. */
static int32_t kv_heads_of(const struct sl_heads *h)
{
    return h->latent != 0 ? 0 : h->n_kv_heads;
}

static size_t workspace_bytes(const struct sl_cuda *cu, const struct sl_step_limits *lim)
{
    size_t most = 0;
    for (int32_t i = 0; i < lim->n_kinds; i++) {
        const struct sl_heads *h = &lim->heads[i];
        if (h->latent == SL_HEADS_ROWS)
            continue;
        /* Where an index chooses, tokens are planned as spans of their own (sparse.cu). */
        const int32_t n_spans = h->latent != 0 ? lim->max_tokens : lim->max_spans;
        const struct sl_cuda_attention_limits a = {
            lim->max_tokens, n_spans, lim->max_context, h->n_heads, kv_heads_of(h), h->head_dim};
        const size_t n = sl_cuda_attention_workspace(cu, &a);
        most = SL_MAX(most, n);
    }
    return most;
}

/* Of attention over what key heads have chosen, to which each of a token is a span (chosen.cu). */
static size_t chosen_bytes(const struct sl_cuda *cu, const struct sl_step_limits *lim)
{
    size_t most = 0;
    for (int32_t i = 0; i < lim->n_kinds; i++) {
        const struct sl_heads *h = &lim->heads[i];
        if (h->chosen == 0)
            continue;
        const int32_t n = lim->max_tokens * h->n_kv_heads;
        const struct sl_cuda_attention_limits a = {
            n, n, SL_MIN(h->chosen, lim->max_context), h->n_heads / h->n_kv_heads, 1, h->head_dim};
        const size_t n_bytes = sl_cuda_attention_workspace(cu, &a);
        most = SL_MAX(most, n_bytes);
    }
    return most;
}

uint64_t sl_cuda_steps_bytes(struct sl_backend *be, const struct sl_step_limits *lim)
{
    size_t in_bytes, result_offset, out_bytes;
    sizes_of(lim, &in_bytes, &result_offset, &out_bytes);
    return in_bytes + out_bytes + lim->extra_bytes + workspace_bytes(sl_cuda(be), lim) +
           chosen_bytes(sl_cuda(be), lim) + sl_cuda_again_bytes(lim) + sl_cuda_kept_bytes(lim) +
           SL_LIN_BYTES + lim->adapter_bytes + sl_cuda_lora_rows_bytes(lim->adapter_mats) +
           (lim->host_hidden > 0 ? SL_CUDA_ALIGN : 0);
}

/* ------------------------------------------------------------------ start and end */

static int init_slot(struct sl_cuda *cu, const struct sl_cuda_steps *s, struct sl_cuda_slot *slot,
                     struct sl_error *err)
{
    void *p = NULL;
    size_t n_bytes = 0, in_at = place(&n_bytes, s->in_bytes),
           out_at = place(&n_bytes, s->out_bytes), extra_at = place(&n_bytes, s->extra_bytes),
           again_at = place(&n_bytes, s->again_bytes);
    cudaError_t e = cudaMallocHost(&p, n_bytes);
    if (e != cudaSuccess) {
        cudaGetLastError();
        return sl_fail(err, SL_ENOMEM, "cuda:%d: no pinned memory for steps: wanted %zu bytes: %s",
                       cu->device, n_bytes, cudaGetErrorString(e));
    }
    cu->counts.host_allocs++;
    memset(p, 0, n_bytes);
    slot->in = static_cast<uint8_t *>(p) + in_at;
    slot->out = static_cast<uint8_t *>(p) + out_at;
    slot->extra = static_cast<uint8_t *>(p) + extra_at;
    slot->again = static_cast<uint8_t *>(p) + again_at;
    e = cudaEventCreateWithFlags(&slot->done, cudaEventBlockingSync | cudaEventDisableTiming);
    if (e == cudaSuccess)
        return 0;
    slot->done = NULL;
    sl_cuda_check(cu, e, "cudaEventCreateWithFlags");
    return sl_cuda_report(cu, err);
}

#define CLOCK_EVENTS 6

static cudaEvent_t *clock_event(struct sl_cuda_clock *c, int i)
{
    cudaEvent_t *events[CLOCK_EVENTS] = {&c->begun, &c->held,   &c->freed,
                                         &c->done,  &c->paused, &c->resumed};
    return events[i];
}

static int32_t n_clocks(const struct sl_cuda_steps *s)
{
    return s->depth + 2;
}

/* Of the step with that ticket. */
static struct sl_cuda_clock *clock_of(struct sl_cuda_steps *s, uint64_t ticket)
{
    return &s->clock[ticket % static_cast<uint64_t>(n_clocks(s))];
}

static struct sl_cuda_slot *slot_of(struct sl_cuda_steps *s, uint64_t ticket)
{
    return &s->slot[(ticket - 1) % static_cast<uint64_t>(s->depth)];
}

static int init_clocks(struct sl_cuda *cu, struct sl_cuda_steps *s, struct sl_error *err)
{
    for (int i = 0; i < CLOCK_EVENTS * n_clocks(s); i++) {
        cudaEvent_t *event = clock_event(&s->clock[i / CLOCK_EVENTS], i % CLOCK_EVENTS);
        cudaError_t e = cudaEventCreateWithFlags(event, cudaEventDefault);
        if (e == cudaSuccess)
            continue;
        *event = NULL;
        sl_cuda_check(cu, e, "cudaEventCreateWithFlags");
        return sl_cuda_report(cu, err);
    }
    return 0;
}

static int check_limits(const struct sl_step_limits *lim, struct sl_error *err)
{
    if (lim->max_tokens < 1 || lim->max_spans < 1 || lim->max_logits < 1 || lim->max_table < 1 ||
        lim->block_size < 1 || lim->max_table == INT32_MAX)
        return sl_fail(err, SL_EINVAL, "steps of %d tokens, %d spans, %d rows, %d page ids",
                       lim->max_tokens, lim->max_spans, lim->max_logits, lim->max_table);
    return 0;
}

/* Zeroed device memory, none for 0 bytes. */
static int take(struct sl_cuda *cu, uint8_t **out, size_t n_bytes, const char *what,
                struct sl_error *err)
{
    if (n_bytes == 0)
        return 0;
    *out = static_cast<uint8_t *>(sl_cuda_alloc(cu, n_bytes));
    if (*out == NULL)
        return sl_cuda_no_memory(cu, n_bytes, what, err);
    sl_cuda_check(cu, cudaMemsetAsync(*out, 0, n_bytes, cu->stream), "cudaMemsetAsync");
    return 0;
}

int sl_cuda_steps_init(struct sl_backend *be, const struct sl_step_limits *lim,
                       struct sl_error *err)
{
    struct sl_cuda *cu = sl_cuda(be);
    SL_ASSERT(cu->steps == NULL);
    sl_cuda_use(cu);
    int rc = check_limits(lim, err);
    if (rc != 0)
        return rc;
    struct sl_cuda_steps *s =
        static_cast<struct sl_cuda_steps *>(sl_calloc(1, sizeof(struct sl_cuda_steps)));
    if (s == NULL)
        return sl_fail(err, SL_ENOMEM, "cuda:%d: out of memory for steps", cu->device);
    cu->steps = s;
    s->lim = *lim;
    s->depth = lim->depth != 0 ? lim->depth : 2;
    SL_ASSERT(s->depth >= 2 && s->depth <= SL_DEVICE_DEPTH);
    if (lim->scratch_pages[0] != 0)
        s->max_width = SL_MIN(SL_MAX(lim->max_width, 1), lim->block_size);
    sizes_of(lim, &s->in_bytes, &s->result_offset, &s->out_bytes);
    s->extra_bytes = static_cast<size_t>(lim->extra_bytes);
    s->again_bytes = sl_cuda_again_bytes(lim);
    s->kept_bytes = sl_cuda_kept_bytes(lim);
    for (int i = 0; i < s->depth && rc == 0; i++)
        rc = init_slot(cu, s, &s->slot[i], err);
    if (rc == 0)
        rc = init_clocks(cu, s, err);
    cu->workspace_bytes = workspace_bytes(cu, lim);
    cu->chosen.workspace_bytes = chosen_bytes(cu, lim);
    if (rc == 0)
        rc = take(cu, &s->in, s->in_bytes, "a step's arrays", err);
    if (rc == 0)
        rc = take(cu, &s->out, s->out_bytes, "a step's results", err);
    if (rc == 0)
        rc = take(cu, &s->extra, s->extra_bytes, "a step's lists", err);
    if (rc == 0)
        rc = take(cu, &s->again, s->again_bytes, "the steps behind a step", err);
    if (rc == 0)
        rc = take(cu, &s->kept, s->kept_bytes, "drafts", err);
    if (rc == 0)
        rc = take(cu, &cu->workspace, cu->workspace_bytes, "the workspace of attention", err);
    if (rc == 0)
        rc = take(cu, &cu->chosen.workspace, cu->chosen.workspace_bytes,
                  "the workspace of attention over what is chosen", err);
    if (rc == 0)
        rc = take(cu, &s->products, SL_LIN_BYTES, "the workspace of products", err);
    if (rc == 0)
        rc = take(cu, &s->mixed, s->lim.adapter_bytes, "gate and up beside adapters", err);
    if (rc == 0)
        rc =
            take(cu, &s->by_row, sl_cuda_lora_rows_bytes(lim->adapter_mats), "rows' adapters", err);
    if (rc == 0 && lim->host_hidden > 0)
        rc = sl_cuda_host_create(cu, lim, &s->host, err);
    if (rc == 0) {
        sl_cuda_linear_memory(cu, s->products);
        if (s->lim.adapter_bytes > SL_LIN_MIXED_BYTES) {
            cu->lin_mixed = reinterpret_cast<float *>(s->mixed);
            cu->lin_mixed_bytes = static_cast<int64_t>(s->lim.adapter_bytes);
        }
        (void)sl_cuda_stager_ready(cu); /* steps go on beside uploads */
        rc = sl_cuda_report(cu, err);
    }
    if (rc != 0) {
        sl_cuda_steps_deinit(cu);
        return rc;
    }
    cu->ids = reinterpret_cast<int32_t *>(s->out);
    cu->ids_prev = cu->pipe != NULL ? cu->pipe->ids : cu->ids;
    return 0;
}

void sl_cuda_steps_deinit(struct sl_cuda *cu)
{
    struct sl_cuda_steps *s = cu->steps;
    if (s == NULL)
        return;
    cudaStreamSynchronize(cu->stream);
    if (s->n_idle > 0)
        sl_log(SL_LOG_INFO, "cuda:%d: idle for %.3f ms before each of %llu passes that draft",
               cu->device, s->idle_ms / (double)s->n_idle, (unsigned long long)s->n_idle);
    sl_cuda_pages_deinit(cu, s);
    sl_cuda_graphs_deinit(s);
    sl_cuda_host_destroy(cu, s->host);
    for (int i = 0; i < s->depth; i++) {
        if (s->slot[i].done != NULL)
            cudaEventDestroy(s->slot[i].done);
        if (s->slot[i].in != NULL)
            cudaFreeHost(s->slot[i].in);
    }
    for (int i = 0; i < CLOCK_EVENTS * n_clocks(s); i++) {
        cudaEvent_t *event = clock_event(&s->clock[i / CLOCK_EVENTS], i % CLOCK_EVENTS);
        if (*event != NULL)
            cudaEventDestroy(*event);
    }
    sl_cuda_free(cu, s->in, s->in_bytes);
    sl_cuda_free(cu, s->out, s->out_bytes);
    sl_cuda_free(cu, s->extra, s->extra_bytes);
    sl_cuda_free(cu, s->again, s->again_bytes);
    sl_cuda_free(cu, s->kept, s->kept_bytes);
    sl_cuda_free(cu, cu->workspace, cu->workspace_bytes);
    sl_cuda_free(cu, s->products, SL_LIN_BYTES);
    sl_cuda_free(cu, s->mixed, s->lim.adapter_bytes);
    sl_cuda_free(cu, s->by_row, sl_cuda_lora_rows_bytes(s->lim.adapter_mats));
    sl_cuda_free(cu, cu->chosen.workspace, cu->chosen.workspace_bytes);
    cu->workspace = NULL;
    cu->workspace_bytes = 0;
    cu->chosen = {};
    cu->ids = NULL;
    cu->ids_prev = NULL;
    cu->steps = NULL;
    sl_free(s);
}

/* ------------------------------------------------------------------ the block */

/* Rows that are wanted of each span of a decode step of that width. */
static int32_t wanted_each(const struct sl_step *step, int32_t width)
{
    if (step->blocks)
        return step->batch.n_logits > 0 ? width : 0;
    return step->drafts ? 1 : width;
}

/* Tokens of each span of a decode step: the same few of all, all rows of which are wanted; or, of a
 * model that drafts, one of each or none. 0: it is none, or it may not be padded. */
static int32_t decode_width(const struct sl_cuda_steps *s, const struct sl_step *step)
{
    const struct sl_batch *b = &step->batch;
    const int32_t width = b->spans[0].n;
    if (width > s->max_width || b->n_tokens != b->n_spans * width ||
        b->n_logits != b->n_spans * wanted_each(step, width))
        return 0;
    for (int32_t i = 1; i < b->n_spans; i++)
        if (b->spans[i].n != width)
            return 0;
    for (int32_t i = 0; i < b->n_logits; i++)
        if (b->logit_rows[i] != i && (!step->drafts || step->blocks))
            return 0;
    return width;
}

/* Spans that a decode step of this width is padded to. */
static int32_t padded_spans(const struct sl_cuda_steps *s, const struct sl_step *step,
                            int32_t width)
{
    const int32_t each = wanted_each(step, width),
                  rows = step->blocks ? s->lim.max_block_rows : s->lim.max_logits;
    int32_t most = SL_MIN(s->lim.max_tokens / width, s->lim.max_spans);
    if (each > 0)
        most = SL_MIN(most, rows / each);
    return sl_cuda_rung(step->batch.n_spans, most);
}

static void put(uint8_t *to, const void *from, int32_t n, size_t each)
{
    if (n > 0 && each > 0)
        memcpy(to, from, static_cast<size_t>(n) * each);
}

/* What the step tells the sampler of each row. */
static size_t params_each(const struct sl_cuda_steps *s, const struct sl_step *step)
{
    return step->part == SL_STEP_FORWARD || step->drafts ? 0 : s->lim.param_bytes;
}

/* Writes spans of padding from first on. */
static void pad_spans(const struct sl_cuda_steps *s, const struct sl_step *step,
                      const struct sl_cuda_block_layout *l, int32_t first, int32_t n, int32_t width,
                      int32_t table_idx, uint8_t *in)
{
    const size_t each = params_each(s, step);
    int32_t *tokens = reinterpret_cast<int32_t *>(in + l->tokens);
    int32_t *positions = reinterpret_cast<int32_t *>(in + l->positions);
    int32_t *rows = reinterpret_cast<int32_t *>(in + l->logit_rows);
    struct sl_span *spans = reinterpret_cast<struct sl_span *>(in + l->spans);
    for (int32_t i = first; i < first + n; i++)
        spans[i] = {i * width, width, 0, table_idx, 0};
    for (int32_t i = first * width; i < (first + n) * width; i++) {
        tokens[i] = 0;
        positions[i] = i % width;
    }
    const int32_t each_rows = wanted_each(step, width);
    for (int32_t i = first * each_rows; i < (first + n) * each_rows; i++) {
        rows[i] = each_rows == 1 ? i * width : i;
        put(in + l->params + static_cast<size_t>(i) * each, step->params_pad, 1, each);
    }
}

static int32_t table_len(const struct sl_batch *b, int32_t block_size)
{
    int32_t n = 0;
    for (int32_t i = 0; i < b->n_spans; i++) {
        const struct sl_span *s = &b->spans[i];
        n = SL_MAX(n, s->table_idx + SL_CEIL_DIV(s->pos + s->n, block_size) + s->n_drafts);
    }
    return n;
}

/* Zeroes behind n elements up to padded ones. */
static void pad(uint8_t *to, int32_t n, int32_t padded, size_t each)
{
    memset(to + static_cast<size_t>(n) * each, 0, static_cast<size_t>(padded - n) * each);
}

/* Padding has no adapter. */
static void put_adapters(struct sl_cuda_steps *s, const struct sl_batch *b,
                         const struct sl_cuda_block_layout *l, int32_t n_pad, uint8_t *in,
                         struct sl_batch *dev)
{
    if (b->lora == NULL)
        return;
    SL_ASSERT(s->lim.adapter_bytes > 0);
    put(in + l->adapters, b->lora->adapter, b->n_tokens, sizeof *b->lora->adapter);
    put(in + l->scales, b->lora->scale, b->n_tokens, sizeof *b->lora->scale);
    int32_t *adapter = reinterpret_cast<int32_t *>(in + l->adapters);
    for (int32_t i = b->n_tokens; i < b->n_tokens + n_pad; i++)
        adapter[i] = -1;
    pad(in + l->scales, b->n_tokens, b->n_tokens + n_pad, sizeof *b->lora->scale);
    s->lora = *b->lora;
    s->lora.adapter = reinterpret_cast<const int32_t *>(s->in + l->adapters);
    s->lora.scale = reinterpret_cast<const float *>(s->in + l->scales);
    dev->lora = dev->logit_lora = &s->lora;
}

/* Groups of pages that the step has. */
static int32_t n_tables_of(const struct sl_cuda_steps *s, const struct sl_step *step)
{
    return step->drafts && !step->borrows ? 1 : SL_MAX(s->lim.n_groups, 1);
}

/* Tokens that are not known yet are those of the step's slot. */
static void put_tokens(const struct sl_cuda_steps *s, const struct sl_batch *b, uint8_t *to)
{
    int32_t *tokens = reinterpret_cast<int32_t *>(to);
    put(to, b->tokens, b->n_tokens, sizeof *b->tokens);
    for (int32_t i = 0; b->slot > 0 && i < b->n_tokens; i++)
        tokens[i] -= tokens[i] < 0 ? b->slot * s->lim.max_logits : 0;
}

/* Each group's page ids, and behind them the page of its padding. */
static void put_tables(const struct sl_cuda_steps *s, const struct sl_step *step, int32_t n_table,
                       int32_t *tables)
{
    const struct sl_batch *b = &step->batch;
    for (int32_t g = 0; g < n_tables_of(s, step); g++, tables += table_stride(&s->lim)) {
        const int32_t *from = sl_batch_tables(b, g);
        memcpy(tables, from, static_cast<size_t>(n_table) * sizeof *tables);
        tables[n_table] = s->lim.scratch_pages[g];
    }
}

/* Writes the step's block and sets dev to its parts on the device. Returns the block's bytes, with
 * the first group's table; those of other groups lie a table_stride behind each other. */
static size_t fill_block(struct sl_cuda_steps *s, const struct sl_step *step, uint8_t *in,
                         struct sl_step *dev)
{
    const struct sl_batch *b = &step->batch;
    const size_t each = params_each(s, step);
    int32_t n_table = table_len(b, s->lim.block_size), n_pad = 0;
    const int32_t width = decode_width(s, step);
    SL_ASSERT(b->n_tokens >= 1 && b->n_tokens <= s->lim.max_tokens);
    SL_ASSERT(b->n_spans >= 1 && b->n_spans <= s->lim.max_spans);
    SL_ASSERT(b->n_logits >= 0 && b->n_logits <= s->lim.max_logits && n_table <= s->lim.max_table);
    if (width > 0)
        n_pad = padded_spans(s, step, width) - b->n_spans;
    const int32_t pad_rows = n_pad * width, pad_logits = n_pad * wanted_each(step, width);
    struct sl_cuda_block_layout l =
        layout_of(b->n_tokens + pad_rows, b->n_spans + n_pad, b->n_logits + pad_logits, n_table + 1,
                  each, b->second_from != NULL, b->lora != NULL, s->host != NULL);
    SL_ASSERT(b->second_from == NULL || (s->lim.whole && n_pad == 0));
    if (s->host != NULL)
        memcpy(in + l.n_pad, &pad_rows, sizeof pad_rows);
    s->n_pad = reinterpret_cast<const int32_t *>(s->in + l.n_pad);
    put_tokens(s, b, in + l.tokens);
    put(in + l.positions, b->positions, b->n_tokens, sizeof *b->positions);
    put(in + l.spans, b->spans, b->n_spans, sizeof *b->spans);
    if (b->second_from != NULL)
        put(in + l.second_from, b->second_from, b->n_spans, sizeof *b->second_from);
    put(in + l.logit_rows, b->logit_rows, b->n_logits, sizeof *b->logit_rows);
    put(in + l.params, step->params, b->n_logits, each);
    put_tables(s, step, n_table, reinterpret_cast<int32_t *>(in + l.tables));
    if (n_pad > 0)
        pad_spans(s, step, &l, b->n_spans, n_pad, width, n_table, in);
    dev->batch.n_tokens = b->n_tokens + pad_rows;
    dev->batch.n_spans = b->n_spans + n_pad;
    dev->batch.n_logits = b->n_logits + pad_logits;
    dev->batch.span_sizes = sl_batch_sizes_of(b->spans, b->n_spans); /* padding has no other */
    dev->batch.n_long =
        sl_batch_n_long(b->spans, b->n_spans) + (width > SL_BATCH_SHORT ? n_pad : 0);
    dev->batch.tokens = reinterpret_cast<const int32_t *>(s->in + l.tokens);
    dev->batch.positions = reinterpret_cast<const int32_t *>(s->in + l.positions);
    dev->batch.spans = reinterpret_cast<const struct sl_span *>(s->in + l.spans);
    if (b->second_from != NULL)
        dev->batch.second_from = reinterpret_cast<const int32_t *>(s->in + l.second_from);
    dev->batch.logit_rows = reinterpret_cast<const int32_t *>(s->in + l.logit_rows);
    dev->batch.block_tables = reinterpret_cast<const int32_t *>(s->in + l.tables);
    dev->batch.n_tables = n_tables_of(s, step);
    dev->batch.table_stride = table_stride(&s->lim);
    put_adapters(s, b, &l, pad_rows, in, &dev->batch);
    dev->params = each > 0 ? s->in + l.params : NULL;
    dev->extra = s->extra;
    dev->variant = step->variant;
    dev->part = step->part;
    dev->drafts = step->drafts;
    dev->blocks = step->blocks;
    dev->borrows = step->borrows;
    dev->ids = reinterpret_cast<int32_t *>(s->out);
    dev->results = s->lim.result_bytes > 0 ? s->out + s->result_offset : NULL;
    return l.n_bytes;
}

/* ------------------------------------------------------------------ the step */

/* The pinned block of the step `depth` before this one. Its results were waited for, as the
 * contract wants, or are waited for now. */
static struct sl_cuda_slot *take_slot(struct sl_cuda *cu, struct sl_cuda_steps *s)
{
    struct sl_cuda_slot *slot = slot_of(s, s->n_steps + 1);
    if (slot->ticket != 0 && !slot->waited) {
        cu->counts.late_waits++;
        sl_cuda_check(cu, cudaEventSynchronize(slot->done), "cudaEventSynchronize");
        slot->waited = true;
    }
    return slot;
}

/* May steps follow it? Then what it chose is kept, whether any do or not. */
static bool follows(const struct sl_cuda_steps *s, const struct sl_step *step)
{
    return step->drafts && step->batch.n_logits > 0 && s->lim.max_again > 0;
}

void sl_cuda_forward(struct sl_cuda *cu, const struct sl_step *dev, sl_forward_fn forward,
                     void *arg)
{
    const struct sl_step_limits *lim = &cu->steps->lim;
    const struct sl_heads *heads = &lim->heads[dev->drafts ? lim->draft_kind : 0];
    if (dev->part == SL_STEP_CHOICE) {
        forward(arg, dev);
        return;
    }
    sl_cuda_fuse_begin(cu, &cu->steps->fuse);
    cu->lora_rows = NULL;
    if (dev->batch.lora != NULL)
        sl_cuda_lora_resolve(cu, dev->batch.lora, dev->batch.n_tokens, cu->steps->by_row);
    if (lim->n_kinds > 0 && heads->latent != SL_HEADS_ROWS)
        sl_cuda_attention_plan(cu, &dev->batch, heads->n_heads, kv_heads_of(heads), heads->head_dim,
                               lim->whole || dev->blocks);
    forward(arg, dev);
    sl_cuda_fuse_end(cu);
    if (follows(cu->steps, dev))
        sl_cuda_again_keep(cu, dev);
}

static void send_extra(struct sl_cuda *cu, const struct sl_cuda_steps *s,
                       const struct sl_cuda_slot *slot, const struct sl_step *step)
{
    if (step->extra_bytes == 0)
        return;
    SL_ASSERT(step->extra_bytes <= s->extra_bytes);
    if (step->extra != slot->extra)
        memcpy(slot->extra, step->extra, step->extra_bytes);
    sl_cuda_small_copy(cu, SL_PAGES_IN, s->extra, slot->extra, step->extra_bytes,
                       "cudaMemcpyAsync of a step's lists");
}

static void send_block(struct sl_cuda *cu, const struct sl_cuda_steps *s,
                       const struct sl_cuda_slot *slot, size_t n_bytes, const struct sl_batch *dev)
{
    const size_t tables =
        static_cast<size_t>(reinterpret_cast<const uint8_t *>(dev->block_tables) - s->in);
    const size_t stride = static_cast<size_t>(dev->table_stride) * sizeof(int32_t);
    sl_cuda_small_copy(cu, SL_PAGES_IN, s->in, slot->in, n_bytes,
                       "cudaMemcpyAsync of a step's arrays");
    for (int32_t g = 1; g < dev->n_tables; g++) {
        const size_t at = tables + static_cast<size_t>(g) * stride;
        sl_cuda_small_copy(cu, SL_PAGES_IN, s->in + at, slot->in + at, n_bytes - tables,
                           "cudaMemcpyAsync of a step's tables");
    }
}

/* And of what it leaves. */
static void fetch(struct sl_cuda *cu, const struct sl_cuda_steps *s, struct sl_cuda_slot *slot,
                  const struct sl_step *step)
{
    size_t n = static_cast<size_t>(step->batch.n_logits);
    if (n == 0 || (cu->pipe != NULL && !sl_pipe_is_last(cu->pipe, cu->stage)))
        return;
    if (cu->pipe != NULL)
        sl_cuda_pipe_chosen(cu, step->batch.slot, step->batch.n_logits);
    const bool kept = follows(s, step);
    const size_t n_ids = kept ? n * (1 + static_cast<size_t>(step->n_again)) : n;
    sl_cuda_small_copy(cu, SL_PAGES_OUT, slot->out, kept ? s->kept : s->out,
                       n_ids * sizeof(int32_t), "cudaMemcpyAsync of ids");
    if (s->lim.result_bytes > 0 && step->want_results)
        sl_cuda_small_copy(cu, SL_PAGES_OUT, slot->out + s->result_offset,
                           s->out + s->result_offset, n * s->lim.result_bytes,
                           "cudaMemcpyAsync of results");
}

void *sl_cuda_extra(struct sl_backend *be)
{
    return sl_cuda(be)->steps->extra;
}

/* Of the step that was enqueued last. */
static struct sl_cuda_slot *last_slot(struct sl_cuda_steps *s)
{
    return slot_of(s, s->n_steps + static_cast<uint64_t>(s->depth));
}

void *sl_cuda_extra_host(struct sl_backend *be)
{
    struct sl_cuda *cu = sl_cuda(be);
    sl_cuda_use(cu);
    return cu->steps->half ? last_slot(cu->steps)->extra : take_slot(cu, cu->steps)->extra;
}

/* All of the step is enqueued: what it leaves, and the events that end it. */
static void finish(struct sl_cuda *cu, struct sl_cuda_steps *s, struct sl_cuda_slot *slot,
                   const struct sl_step *step)
{
    struct sl_cuda_clock *clock = clock_of(s, slot->ticket);
    fetch(cu, s, slot, step);
    sl_cuda_check(cu, cudaEventRecord(clock->done, cu->stream), "cudaEventRecord");
    sl_cuda_check(cu, cudaEventRecord(slot->done, cu->stream), "cudaEventRecord");
}

/* A stage waits for the one before it, which is no work of its own. */
static void await_stage(struct sl_cuda *cu, const struct sl_cuda_clock *clock,
                        const struct sl_step *step, int32_t n_rows)
{
    if (cu->pipe == NULL)
        return;
    sl_cuda_check(cu, cudaEventRecord(clock->held, cu->stream), "cudaEventRecord");
    sl_cuda_pipe_await(cu, &step->batch);
    sl_cuda_check(cu, cudaEventRecord(clock->freed, cu->stream), "cudaEventRecord");
    sl_cuda_pipe_take(cu, n_rows);
}

/* By its graph, if there is one. Returns whether one should be made. */
static bool enqueue(struct sl_cuda *cu, const struct sl_step *dev, bool same, sl_forward_fn forward,
                    void *arg)
{
    struct sl_cuda_steps *s = cu->steps;
    const struct sl_cuda_graph *g = same ? sl_cuda_graph_find(s, dev, forward, arg) : NULL;
    if (g != NULL && g->exec != NULL) {
        sl_cuda_host_expect(s->host, g->n_host_calls);
        sl_cuda_check(cu, cudaGraphLaunch(g->exec, cu->stream), "cudaGraphLaunch");
        cu->counts.replayed++;
    } else {
        sl_cuda_forward(cu, dev, forward, arg);
        cu->counts.eager++;
    }
    return same && g == NULL;
}

int sl_cuda_step(struct sl_backend *be, const struct sl_step *step, sl_forward_fn forward,
                 void *arg, uint64_t *ticket, struct sl_error *err)
{
    struct sl_cuda *cu = sl_cuda(be);
    struct sl_cuda_steps *s = cu->steps;
    SL_ASSERT(s != NULL && !s->half && step->part != SL_STEP_CHOICE);
    SL_ASSERT(step->n_again == 0 || follows(s, step));
    sl_cuda_use(cu);
    struct sl_cuda_slot *slot = take_slot(cu, s);
    int rc = sl_cuda_report(cu, err);
    if (rc != 0)
        return rc;
    struct sl_step dev = {}, again = {};
    size_t n_bytes = fill_block(s, step, slot->in, &dev);
    const struct sl_cuda_slot *before = last_slot(s);
    struct sl_cuda_clock *clock = clock_of(s, s->n_steps + 1);
    clock->follows = before->ticket != 0 && !before->waited;
    clock->in_parts = step->part == SL_STEP_FORWARD;
    clock->n_again = step->n_again;
    clock->drafts = step->drafts && step->batch.n_logits > 0;
    slot->alone = !clock->follows || (before->passes && before->alone);
    slot->passes = step->drafts || step->batch.n_logits == 0;
    slot->kind = sl_cuda_wait_kind(step);
    slot->sent_ns = sl_now_ns();
    sl_cuda_check(cu, cudaEventRecord(clock->begun, cu->stream), "cudaEventRecord");
    send_block(cu, s, slot, n_bytes, &dev.batch);
    send_extra(cu, s, slot, step);
    if (follows(s, step))
        sl_cuda_again_send(cu, step, slot->again, &again);
    await_stage(cu, clock, step, dev.batch.n_tokens);
    const bool record = enqueue(cu, &dev, decode_width(s, step) > 0, forward, arg);
    if (cu->pipe != NULL)
        sl_cuda_pipe_send(cu, dev.batch.n_tokens);
    slot->ticket = *ticket = ++s->n_steps;
    slot->waited = false;
    s->half = clock->in_parts;
    if (s->half || step->n_again > 0)
        sl_cuda_check(cu, cudaEventRecord(clock->paused, cu->stream), "cudaEventRecord");
    bool record_again = false;
    for (int32_t i = 0; i < step->n_again; i++)
        record_again = enqueue(cu, &again, s->max_width > 0, forward, arg);
    if (step->n_again > 0)
        sl_cuda_again_leave(cu, step);
    if (!s->half)
        finish(cu, s, slot, step);
    /* While the device runs the step, which loaded every kernel it needs. */
    s->later = {};
    if (record && step->record_later)
        s->later = {dev, forward, arg};
    else if (record && cu->error == cudaSuccess)
        sl_cuda_graph_record(cu, &dev, forward, arg);
    if (record_again && cu->error == cudaSuccess)
        sl_cuda_graph_record(cu, &again, forward, arg);
    rc = sl_cuda_report(cu, err);
    s->half = s->half && rc == 0;
    return rc;
}

int sl_cuda_choose(struct sl_backend *be, const struct sl_step *step, sl_forward_fn forward,
                   void *arg, struct sl_error *err)
{
    struct sl_cuda *cu = sl_cuda(be);
    struct sl_cuda_steps *s = cu->steps;
    SL_ASSERT(s != NULL && s->half && step->part == SL_STEP_CHOICE);
    sl_cuda_use(cu);
    struct sl_cuda_slot *slot = last_slot(s);
    struct sl_cuda_clock *clock = clock_of(s, slot->ticket);
    struct sl_step dev = *step;
    s->half = false;
    sl_cuda_check(cu, cudaEventRecord(clock->resumed, cu->stream), "cudaEventRecord");
    send_extra(cu, s, slot, step);
    dev.extra = dev.params = s->extra;
    dev.ids = reinterpret_cast<int32_t *>(s->out);
    dev.results = s->lim.result_bytes > 0 ? s->out + s->result_offset : NULL;
    sl_cuda_forward(cu, &dev, forward, arg);
    finish(cu, s, slot, step);
    return sl_cuda_report(cu, err);
}

void sl_cuda_times(struct sl_backend *be, struct sl_device_times *out)
{
    const struct sl_cuda_steps *s = sl_cuda(be)->steps;
    *out = s->times;
    sl_cuda_host_times(s->host, out);
}

#define IDLE_MOST_MS 10.0f /* longer is a time in which nobody asked for anything */

/* How long nothing ran before the pass that the step is of, or its second step. */
static void count_idle(struct sl_cuda_steps *s, uint64_t ticket)
{
    const struct sl_cuda_clock *now = clock_of(s, ticket);
    const uint64_t first = ticket - (now->follows ? 1 : 0);
    float idle;
    if (first < 2)
        return;
    if (cudaEventElapsedTime(&idle, clock_of(s, first - 1)->done, clock_of(s, first)->begun) !=
        cudaSuccess) {
        cudaGetLastError();
    } else if (idle < IDLE_MOST_MS) {
        s->n_idle++;
        s->idle_ms += (double)idle;
    }
}

/* The step is done, and so is the one ahead of it. A failure here is no failure of a step. */
static void count_times(const struct sl_cuda *cu, struct sl_cuda_steps *s, uint64_t ticket)
{
    const struct sl_cuda_clock *now = clock_of(s, ticket);
    const struct sl_cuda_clock *before = clock_of(s, ticket - 1);
    float busy, gap, pause = 0, held = 0, again, first;
    if (now->drafts) {
        count_idle(s, ticket);
        if (cudaEventElapsedTime(&first, now->begun, now->n_again > 0 ? now->paused : now->done) ==
            cudaSuccess)
            s->times.draft_ms += (double)first;
        else
            cudaGetLastError();
    }
    if (now->n_again > 0) {
        if (cudaEventElapsedTime(&again, now->paused, now->done) == cudaSuccess) {
            s->times.n_again += static_cast<uint64_t>(now->n_again);
            s->times.again_ms += (double)again;
        } else {
            cudaGetLastError();
        }
    }
    if (!now->follows)
        return;
    if (cudaEventElapsedTime(&busy, now->begun, now->done) != cudaSuccess ||
        cudaEventElapsedTime(&gap, before->done, now->begun) != cudaSuccess ||
        (cu->pipe != NULL && cudaEventElapsedTime(&held, now->held, now->freed) != cudaSuccess) ||
        (now->in_parts && cudaEventElapsedTime(&pause, now->paused, now->resumed) != cudaSuccess)) {
        cudaGetLastError();
        return;
    }
    s->times.n_steps++;
    s->times.busy_ms += (double)busy - (double)pause - (double)held;
    s->times.gap_ms += (double)gap + (double)pause + (double)held;
}

int sl_cuda_wait(struct sl_backend *be, uint64_t ticket, const int32_t **ids, const void **results,
                 struct sl_error *err)
{
    struct sl_cuda *cu = sl_cuda(be);
    struct sl_cuda_steps *s = cu->steps;
    SL_ASSERT(s != NULL && ticket >= 1);
    struct sl_cuda_slot *slot = slot_of(s, ticket);
    SL_ASSERT(slot->ticket == ticket && !(s->half && ticket == s->n_steps));
    sl_cuda_await(cu, s, slot);
    if (cu->error == cudaSuccess)
        count_times(cu, s, ticket);
    if (ids != NULL)
        *ids = reinterpret_cast<const int32_t *>(slot->out);
    if (results != NULL)
        *results = s->lim.result_bytes > 0 ? slot->out + s->result_offset : NULL;
    return sl_cuda_report(cu, err);
}
