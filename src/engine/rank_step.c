/* SPDX-License-Identifier: MIT */
#include "engine/rank_step.h"

#include "base/check.h"
#include "base/sys.h"
#include "engine/rank_lora.h"

#include <string.h>

/* Then spans, tokens, positions, rows of logits, a table for each group; if tokens have adapters,
 * segments of rows and the factor of each row, of tokens and of logits. */
struct head {
    int32_t kind, n_tokens, n_spans, n_logits, n_tables, n_ids, n_segs[2];
    uint64_t span_sizes;
};

static int64_t blocks_of(const struct sl_rank_bounds *b, const struct sl_span *s)
{
    return SL_CEIL_DIV((int64_t)s->pos + s->n, (int64_t)b->block_size);
}

/* Ids of a group's table at most. */
static size_t most_ids(const struct sl_rank_bounds *b)
{
    return (size_t)b->max_seqs * (size_t)SL_CEIL_DIV(b->max_model_len, b->block_size);
}

size_t sl_rank_step_bytes(const struct sl_rank_bounds *b)
{
    const size_t adapted = (size_t)b->max_tokens + (size_t)b->max_logits;
    return sizeof(struct head) + (size_t)b->max_seqs * sizeof(struct sl_span) +
           (2 * (size_t)b->max_tokens + (size_t)b->max_logits + (size_t)b->n_groups * most_ids(b)) *
               sizeof(int32_t) +
           (b->max_loras > 0 ? adapted * (sizeof(struct sl_lora_seg) + sizeof(float)) : 0);
}

/* Of struct sl_batch, without what generated text has not. */
_Static_assert(sizeof(struct head) % sizeof(int64_t) == 0, "no padding goes to another process");
_Static_assert(sizeof(struct sl_span) == 5 * sizeof(int32_t), "likewise");
_Static_assert(sizeof(struct sl_lora_seg) == 3 * sizeof(int32_t), "likewise");

static uint8_t *put(uint8_t *at, const void *data, size_t n)
{
    memcpy(at, data, n);
    return at + n;
}

/* Adapters by their slots. */
static uint8_t *put_lora(uint8_t *at, const struct sl_lora_rows *rows, int32_t n_rows,
                         const int32_t *slots)
{
    SL_ASSERT(slots != NULL && rows->n_segs <= n_rows);
    for (int32_t i = 0; i < rows->n_segs; i++) {
        struct sl_lora_seg seg = rows->segs[i];
        seg.adapter = slots[seg.adapter];
        at = put(at, &seg, sizeof seg);
    }
    return n_rows > 0 ? put(at, rows->scale, (size_t)n_rows * sizeof *rows->scale) : at;
}

size_t sl_rank_step_put(const struct sl_rank_bounds *b, const struct sl_batch *batch,
                        const int32_t *slots, uint8_t *out)
{
    const size_t id = sizeof(int32_t);
    struct head h = {.kind = SL_RANK_STEP,
                     .n_tokens = batch->n_tokens,
                     .n_spans = batch->n_spans,
                     .n_logits = batch->n_logits,
                     .n_tables = batch->n_tables,
                     .span_sizes = batch->span_sizes};
    SL_ASSERT((batch->lora == NULL) == (batch->logit_lora == NULL));
    SL_ASSERT(batch->n_tables == b->n_groups && (batch->lora == NULL || b->max_loras > 0));
    SL_ASSERT(batch->n_tokens <= b->max_tokens && batch->n_spans <= b->max_seqs);
    for (int32_t i = 0; i < batch->n_spans; i++)
        h.n_ids =
            SL_MAX(h.n_ids, batch->spans[i].table_idx + (int32_t)blocks_of(b, &batch->spans[i]));
    for (int i = 0; i < 2 && batch->lora != NULL; i++)
        h.n_segs[i] = (i == 0 ? batch->lora : batch->logit_lora)->n_segs;
    uint8_t *at = put(out, &h, sizeof h);
    at = put(at, batch->spans, (size_t)h.n_spans * sizeof *batch->spans);
    at = put(at, batch->tokens, (size_t)h.n_tokens * id);
    at = put(at, batch->positions, (size_t)h.n_tokens * id);
    if (h.n_logits > 0)
        at = put(at, batch->logit_rows, (size_t)h.n_logits * id);
    for (int32_t g = 0; g < h.n_tables; g++)
        at = put(at, sl_batch_tables(batch, g), (size_t)h.n_ids * id);
    if (h.n_segs[0] > 0) {
        at = put_lora(at, batch->lora, h.n_tokens, slots);
        at = put_lora(at, batch->logit_lora, h.n_logits, slots);
    }
    SL_ASSERT((size_t)(at - out) <= sl_rank_step_bytes(b));
    return (size_t)(at - out);
}

/* ---------------------------------------------------------------- reading */

static bool init_lora(struct sl_rank_rows *l, int32_t n_rows)
{
    l->segs = sl_calloc((size_t)n_rows, sizeof *l->segs);
    l->adapter = sl_calloc((size_t)n_rows, sizeof *l->adapter);
    l->scale = sl_calloc((size_t)n_rows, sizeof *l->scale);
    return l->segs != NULL && l->adapter != NULL && l->scale != NULL;
}

int sl_rank_step_init(struct sl_rank_step *s, const struct sl_rank_bounds *b, struct sl_error *err)
{
    SL_ASSERT(b->max_seqs > 0 && b->max_tokens > 0 && b->block_size > 0 && b->n_groups > 0);
    *s = (struct sl_rank_step){.bounds = *b};
    s->spans = sl_calloc((size_t)b->max_seqs, sizeof *s->spans);
    s->tokens = sl_calloc((size_t)b->max_tokens, sizeof *s->tokens);
    s->positions = sl_calloc((size_t)b->max_tokens, sizeof *s->positions);
    s->logit_rows = sl_calloc((size_t)b->max_logits, sizeof *s->logit_rows);
    s->tables = sl_calloc((size_t)b->n_groups * most_ids(b), sizeof *s->tables);
    bool good = s->spans != NULL && s->tokens != NULL && s->positions != NULL &&
                s->logit_rows != NULL && s->tables != NULL;
    for (int i = 0; i < 2 && b->max_loras > 0; i++)
        good = init_lora(&s->lora[i], i == 0 ? b->max_tokens : b->max_logits) && good;
    if (good)
        return 0;
    sl_rank_step_deinit(s);
    return sl_fail(err, SL_ENOMEM, "out of memory for steps");
}

void sl_rank_step_deinit(struct sl_rank_step *s)
{
    for (int i = 0; i < 2; i++) {
        sl_free(s->lora[i].segs);
        sl_free(s->lora[i].adapter);
        sl_free(s->lora[i].scale);
    }
    sl_free(s->spans);
    sl_free(s->tokens);
    sl_free(s->positions);
    sl_free(s->logit_rows);
    sl_free(s->tables);
    *s = (struct sl_rank_step){.spans = NULL};
}

static int wrong(const char *what, int32_t i, int64_t value, struct sl_error *err)
{
    return sl_fail(err, SL_EFORMAT, "rank 0 sent a step whose %s %d is %lld", what, i,
                   (long long)value);
}

static int check_counts(const struct sl_rank_bounds *b, const struct head *h, size_t n,
                        struct sl_error *err)
{
    if (h->n_tokens < 1 || h->n_tokens > b->max_tokens)
        return wrong("number of tokens", 0, h->n_tokens, err);
    if (h->n_spans < 1 || h->n_spans > b->max_seqs || h->n_spans > h->n_tokens)
        return wrong("number of sequences", 0, h->n_spans, err);
    if (h->n_logits < 0 || h->n_logits > b->max_logits || h->n_logits > h->n_tokens)
        return wrong("number of logits", 0, h->n_logits, err);
    if (h->n_tables != b->n_groups || h->n_ids < 1 || (size_t)h->n_ids > most_ids(b))
        return wrong("number of pages", h->n_tables, h->n_ids, err);
    if (h->n_segs[0] < 0 || h->n_segs[0] > h->n_tokens || h->n_segs[1] < 0 ||
        h->n_segs[1] > h->n_logits || (h->n_segs[0] == 0 && h->n_segs[1] > 0) ||
        (h->n_segs[0] > 0 && b->max_loras == 0))
        return wrong("number of segments", h->n_segs[1], h->n_segs[0], err);
    const size_t n_ids =
        2 * (size_t)h->n_tokens + (size_t)h->n_logits + (size_t)h->n_tables * (size_t)h->n_ids;
    const size_t n_lora =
        h->n_segs[0] == 0
            ? 0
            : ((size_t)h->n_segs[0] + (size_t)h->n_segs[1]) * sizeof(struct sl_lora_seg) +
                  ((size_t)h->n_tokens + (size_t)h->n_logits) * sizeof(float);
    if (n !=
        sizeof *h + (size_t)h->n_spans * sizeof(struct sl_span) + n_ids * sizeof(int32_t) + n_lora)
        return wrong("size", 0, (int64_t)n, err);
    return 0;
}

/* Spans follow one another, and so do their parts of the tables. */
static int check_spans(const struct sl_rank_step *s, const struct head *h, struct sl_error *err)
{
    int64_t n = 0;
    for (int32_t i = 0; i < h->n_spans; i++) {
        const struct sl_span *span = &s->spans[i];
        if (span->first != n || span->n < 1 || span->n > h->n_tokens - n || span->n_drafts != 0)
            return wrong("sequence", i, span->first, err);
        if (span->pos < 0 || (int64_t)span->pos + span->n > s->bounds.max_model_len)
            return wrong("position", i, span->pos, err);
        if (span->table_idx < 0 || span->table_idx + blocks_of(&s->bounds, span) > h->n_ids)
            return wrong("table", i, span->table_idx, err);
        n += span->n;
    }
    return n == h->n_tokens ? 0 : wrong("number of tokens", 0, n, err);
}

/* The first position that a row of the span sees, of keys. */
static int64_t first_seen(const struct sl_rank_bounds *b, int32_t g, const struct sl_span *s)
{
    if (b->window[g] == 0)
        return 0;
    return b->chunks[g] ? s->pos / b->window[g] * b->window[g]
                        : SL_MAX((int64_t)s->pos - b->window[g] + 1, 0);
}

/* Is the page of the span's block needed? A state is there where the span begins, and goes to where
 * it ends; to blocks between only if they have a page (struct sl_state_view). */
static bool needs_page(const struct sl_rank_bounds *b, int32_t g, const struct sl_span *s,
                       int32_t block)
{
    if (!b->states[g])
        return block >= first_seen(b, g, s) / b->block_size;
    return block == (s->pos + s->n - 1) / b->block_size ||
           (s->pos > 0 && block == (s->pos - 1) / b->block_size);
}

/* Below 0 stands for a page of a block that no row needs. */
static int check_pages(const struct sl_rank_step *s, const struct head *h, int32_t g,
                       struct sl_error *err)
{
    const struct sl_rank_bounds *b = &s->bounds;
    const int32_t *table = s->tables + (size_t)g * (size_t)h->n_ids;
    for (int32_t i = 0; i < h->n_spans; i++) {
        const struct sl_span *span = &s->spans[i];
        for (int32_t k = 0; k < (int32_t)blocks_of(b, span); k++) {
            const int32_t page = table[span->table_idx + k];
            if (page >= b->n_pages[g] || (page < 0 && needs_page(b, g, span, k)))
                return wrong("page", span->table_idx + k, page, err);
        }
    }
    return 0;
}

static int check_tokens(const struct sl_rank_step *s, const struct head *h, struct sl_error *err)
{
    const struct sl_rank_bounds *b = &s->bounds;
    for (int32_t i = 0; i < h->n_spans; i++)
        for (int32_t k = 0; k < s->spans[i].n; k++)
            if (s->positions[s->spans[i].first + k] != s->spans[i].pos + k)
                return wrong("position", i, s->positions[s->spans[i].first + k], err);
    for (int32_t i = 0; i < h->n_tokens; i++)
        if (s->tokens[i] < 0 || s->tokens[i] >= b->n_vocab)
            return wrong("token", i, s->tokens[i], err);
    for (int32_t i = 0; i < h->n_logits; i++)
        if (s->logit_rows[i] < 0 || s->logit_rows[i] >= h->n_tokens ||
            (i > 0 && s->logit_rows[i] <= s->logit_rows[i - 1]))
            return wrong("row of logits", i, s->logit_rows[i], err);
    return 0;
}

static const uint8_t *get(const uint8_t *at, void *out, size_t n)
{
    memcpy(out, at, n);
    return at + n;
}

/* Segments follow one another, of adapters that are there. */
static int check_lora(const struct sl_rank_step *s, struct sl_rank_rows *l, int32_t n_rows,
                      const struct sl_lora_weights *const *weights, struct sl_error *err)
{
    int32_t end = 0;
    for (int32_t i = 0; i < n_rows; i++)
        l->adapter[i] = -1;
    l->rows.max_rank = 0;
    for (int32_t i = 0; i < l->rows.n_segs; i++) {
        const struct sl_lora_seg *seg = &l->segs[i];
        if (seg->first < end || seg->n < 1 || seg->n > SL_LORA_SEG || seg->first > n_rows - seg->n)
            return wrong("segment", i, seg->first, err);
        if (seg->adapter < 0 || seg->adapter >= s->bounds.max_loras ||
            weights[seg->adapter] == NULL)
            return wrong("adapter", i, seg->adapter, err);
        end = seg->first + seg->n;
        for (int32_t t = seg->first; t < end; t++)
            l->adapter[t] = seg->adapter;
        l->rows.max_rank = SL_MAX(l->rows.max_rank, weights[seg->adapter]->max_rank);
    }
    l->rows.segs = l->segs;
    l->rows.adapter = l->adapter;
    l->rows.scale = l->scale;
    l->rows.weights = weights;
    return 0;
}

/* Rows with adapters; returns what is behind them. */
static const uint8_t *get_lora(struct sl_rank_rows *l, const uint8_t *data, int32_t n_segs,
                               int32_t n_rows)
{
    l->rows = (struct sl_lora_rows){.n_segs = n_segs};
    data = get(data, l->segs, (size_t)n_segs * sizeof *l->segs);
    return get(data, l->scale, (size_t)n_rows * sizeof *l->scale);
}

int sl_rank_step_get(struct sl_rank_step *s, const uint8_t *data, size_t n,
                     const struct sl_lora_weights *const *weights, struct sl_error *err)
{
    const size_t id = sizeof(int32_t);
    struct head h;
    if (n < sizeof h)
        return wrong("size", 0, (int64_t)n, err);
    data = get(data, &h, sizeof h);
    int rc = check_counts(&s->bounds, &h, n, err);
    if (rc != 0)
        return rc;
    data = get(data, s->spans, (size_t)h.n_spans * sizeof *s->spans);
    data = get(data, s->tokens, (size_t)h.n_tokens * id);
    data = get(data, s->positions, (size_t)h.n_tokens * id);
    data = get(data, s->logit_rows, (size_t)h.n_logits * id);
    data = get(data, s->tables, (size_t)h.n_tables * (size_t)h.n_ids * id);
    const bool adapted = h.n_segs[0] > 0;
    for (int i = 0; i < 2 && adapted; i++)
        data = get_lora(&s->lora[i], data, h.n_segs[i], i == 0 ? h.n_tokens : h.n_logits);
    rc = check_spans(s, &h, err);
    if (rc == 0)
        rc = check_tokens(s, &h, err);
    for (int32_t g = 0; g < h.n_tables && rc == 0; g++)
        rc = check_pages(s, &h, g, err);
    for (int i = 0; i < 2 && adapted && rc == 0; i++)
        rc = check_lora(s, &s->lora[i], i == 0 ? h.n_tokens : h.n_logits, weights, err);
    SL_ASSERT(rc != 0 || h.n_ids > 0);
    s->batch = (struct sl_batch){.n_tokens = h.n_tokens,
                                 .n_spans = h.n_spans,
                                 .n_logits = h.n_logits,
                                 .tokens = s->tokens,
                                 .positions = s->positions,
                                 .spans = s->spans,
                                 .block_tables = s->tables,
                                 .n_tables = h.n_tables,
                                 .table_stride = h.n_ids,
                                 .logit_rows = s->logit_rows,
                                 .span_sizes = h.span_sizes,
                                 .lora = adapted ? &s->lora[0].rows : NULL,
                                 .logit_lora = adapted ? &s->lora[1].rows : NULL};
    return rc;
}
