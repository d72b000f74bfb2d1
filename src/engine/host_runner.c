/* SPDX-License-Identifier: MIT */
#include "engine/host_runner.h"

#include "base/check.h"
#include "base/sys.h"

#include <string.h>

#define MAX_SAMPLERS        8 /* rows chosen from at once; each has a workspace of some megabytes */
#define MIN_PARALLEL_LOGITS 32768 /* fewer are looked at sooner than a thread wakes */
#define MAX_TOPS            SL_MAX(SL_MAX_LOGPROBS, SL_MAX_LOGPROB_IDS)

/* Steps of a model that drafts, behind the first one of a pass: a token for each sequence. */
struct host_drafts {
    int32_t tokens[SL_MAX_SEQS], positions[SL_MAX_SEQS], rows[SL_MAX_SEQS];
    struct sl_span spans[SL_MAX_SEQS];
    int32_t of[SL_MAX_SEQS], n; /* the row of the first step that each goes back to */
    int32_t sources[SL_MAX_SEQS];
};

struct sl_host_runner {
    struct sl_host_model m;
    struct host_drafts *drafts; /* NULL: the model has none */
    int32_t max_logits;
    struct sl_sampler samplers[MAX_SAMPLERS];
    int32_t n_samplers;
    const float *rows;           /* of the step that is not collected, */
    int32_t n_rows;              /* so many */
    struct sl_picked *picked;    /* [max_logits] of it */
    struct sl_top_logprob *tops; /* [max_logits, MAX_TOPS] */
    /* what choose is at */
    const struct sl_pick *picks;
    int32_t n_items;
};

/* False: the row is not made of numbers. */
static bool read_logprobs(const struct sl_host_runner *h, const struct sl_pick *pick,
                          const float *row, struct sl_picked *out, struct sl_top_logprob *top)
{
    if (pick->top_ids == NULL)
        return sl_logprobs(row, h->m.n_vocab, out->id, pick->n_top, &out->lp, top);
    SL_ASSERT(pick->n_top <= SL_MAX_LOGPROB_IDS);
    for (int32_t i = 0; i < pick->n_top; i++)
        top[i].id = pick->top_ids[i];
    return sl_logprobs_of(row, h->m.n_vocab, out->id, pick->n_top, &out->lp, top);
}

static void host_choose_row(struct sl_host_runner *h, struct sl_sampler *sampler, int32_t i)
{
    const struct sl_pick *pick = &h->picks[i];
    const float *row = h->rows + (size_t)i * (size_t)h->m.n_vocab;
    struct sl_top_logprob *top = h->tops + (size_t)i * MAX_TOPS;
    struct sl_picked *out = &h->picked[i];
    *out = (struct sl_picked){.id = pick->given, .top = top};
    SL_ASSERT(pick->n_top <= MAX_TOPS);
    if (pick->skip)
        return;
    if (pick->given < 0) {
        struct sl_sample_args args = pick->how;
        args.logits = row;
        out->id = sl_sample(sampler, &args);
    } else if (pick->given >= h->m.n_vocab) {
        out->id = 0; /* no row knows such a token; the others' probabilities are wanted */
    }
    if (out->id >= 0 && pick->n_top >= 0 && !read_logprobs(h, pick, row, out, top))
        out->id = -1;
}

/* Every n_items-th row. */
static void choose_some(void *arg, uint32_t item, int thread_idx)
{
    struct sl_host_runner *h = arg;
    (void)thread_idx;
    SL_ASSERT(item < (uint32_t)h->n_items && item < (uint32_t)h->n_samplers); /* its own */
    for (int32_t i = (int32_t)item; i < h->n_rows; i += h->n_items)
        host_choose_row(h, &h->samplers[item], i);
}

static int host_choose(void *ctx, const struct sl_pick *picks, struct sl_error *err)
{
    struct sl_host_runner *h = ctx;
    (void)err;
    SL_ASSERT(h->picks == NULL && picks != NULL && h->m.n_pooled == 0);
    h->picks = picks;
    h->n_items = SL_MIN(h->n_samplers, h->n_rows);
    if (h->n_items > 1 && (int64_t)h->n_rows * h->m.n_vocab >= MIN_PARALLEL_LOGITS) {
        h->m.run_items(h->m.ctx, choose_some, h, (uint32_t)h->n_items);
    } else {
        h->n_items = 1;
        choose_some(h, 0, 0);
    }
    h->picks = NULL;
    return 0;
}

static int host_submit(void *ctx, const struct sl_batch *batch, const struct sl_pick *picks,
                       struct sl_error *err)
{
    struct sl_host_runner *h = ctx;
    SL_ASSERT(batch->n_logits <= h->max_logits);
    h->n_rows = batch->n_logits;
    int rc = h->m.forward(h->m.ctx, batch, &h->rows, err);
    if (rc != 0)
        return rc;
    SL_ASSERT(!h->m.per_token || batch->n_spans == h->n_rows); /* a text is a span */
    for (int32_t i = 0; i < h->n_rows && h->m.n_pooled > 0; i++) {
        const int32_t row = h->m.per_token ? batch->spans[i].first : i;
        h->picked[i] = (struct sl_picked){.pooled = h->rows + (size_t)row * (size_t)h->m.n_pooled};
    }
    return picks != NULL ? host_choose(ctx, picks, err) : 0;
}

static int host_collect(void *ctx, struct sl_picked *out, struct sl_error *err)
{
    const struct sl_host_runner *h = ctx;
    (void)err;
    SL_ASSERT(h->picks == NULL && h->n_rows <= h->max_logits);
    memcpy(out, h->picked, (size_t)h->n_rows * sizeof *out);
    return 0;
}

/* ------------------------------------------------------------------ drafts */

/* The most likely id of both vocabularies; where the row is not made of numbers, any. */
static int32_t most_likely(const struct sl_host_runner *h, const float *row)
{
    const bool maps = h->m.draft_token != NULL;
    const int32_t n = maps ? h->m.n_draft_row : SL_MIN(h->m.n_vocab, h->m.n_draft_vocab);
    float max;
    int32_t id = 0;
    if (!sl_row_kernels()->scan(row, n, NULL, &max))
        return 0;
    while (row[id] != max)
        id++;
    SL_ASSERT(id < n);
    return maps ? h->m.draft_token(h->m.ctx, id) : id;
}

/* The i-th draft of each sequence from the rows of a step. */
static void take_drafts(const struct sl_host_runner *h, struct sl_draft_pass *p, int32_t i,
                        const float *rows)
{
    const int32_t width = h->m.draft_token != NULL ? h->m.n_draft_row : h->m.n_draft_vocab;
    for (int32_t k = 0; k < h->drafts->n; k++)
        p->drafts[h->drafts->of[k] * SL_MAX_DRAFTED + i] =
            most_likely(h, rows + (size_t)k * (size_t)width);
}

/* Those that want more than i drafts go on from their last one. */
static struct sl_batch next_drafts(struct host_drafts *d, const struct sl_draft_pass *p, int32_t i)
{
    int32_t n = 0;
    for (int32_t k = 0; k < d->n; k++) {
        const int32_t row = d->of[k];
        if (p->wanted[row] <= i)
            continue;
        const struct sl_span *s = &p->batch.spans[row];
        d->tokens[n] = p->drafts[row * SL_MAX_DRAFTED + i - 1];
        d->positions[n] = s->pos + s->n - 1 + i;
        d->spans[n] =
            (struct sl_span){.first = n, .n = 1, .pos = d->positions[n], .table_idx = s->table_idx};
        d->sources[n] = k;
        d->rows[n] = n;
        d->of[n++] = row;
    }
    d->n = n;
    struct sl_batch b = p->batch;
    b.n_tokens = b.n_spans = b.n_logits = n;
    b.tokens = d->tokens;
    b.positions = d->positions;
    b.spans = d->spans;
    b.logit_rows = d->rows;
    return b;
}

static int host_draft(void *ctx, struct sl_draft_pass *p, struct sl_error *err)
{
    struct sl_host_runner *h = ctx;
    struct host_drafts *d = h->drafts;
    const float *rows = NULL;
    struct sl_batch b = p->batch;
    int rc = 0;
    SL_ASSERT(b.n_logits <= SL_MAX_SEQS && b.n_logits <= b.n_spans);
    for (d->n = 0; d->n < b.n_logits; d->n++)
        d->of[d->n] = d->n;
    for (int32_t i = 0; rc == 0 && b.n_tokens > 0; i++) {
        const uint64_t t0 = sl_now_ns();
        SL_ASSERT(i < SL_MAX_DRAFTED);
        rc = h->m.draft(h->m.ctx, &b, i == 0 ? p->sources : d->sources, i > 0, &rows, err);
        if (rc == 0)
            take_drafts(h, p, i, rows);
        p->seconds[i] = (double)(sl_now_ns() - t0) / 1e9;
        b = next_drafts(d, p, i + 1);
    }
    return rc;
}

static uint64_t host_progress(const void *ctx)
{
    const struct sl_host_runner *h = ctx;
    return h->m.progress(h->m.ctx);
}

int sl_host_runner_create(const struct sl_host_model *m, int32_t max_logits,
                          struct sl_host_runner **out, struct sl_error *err)
{
    int32_t n_samplers = m->run_items != NULL ? SL_MIN(m->n_threads, MAX_SAMPLERS) : 1;
    int rc = 0;
    SL_ASSERT(m->forward != NULL && m->n_vocab > 0 && max_logits > 0);
    *out = NULL;
    struct sl_host_runner *h = sl_calloc(1, sizeof *h);
    if (h == NULL)
        return sl_fail(err, SL_ENOMEM, "out of memory for a runner");
    h->m = *m;
    h->max_logits = max_logits;
    h->picked = sl_calloc((size_t)max_logits, sizeof *h->picked);
    h->tops = sl_calloc((size_t)max_logits, MAX_TOPS * sizeof *h->tops);
    h->drafts = m->draft != NULL ? sl_calloc(1, sizeof *h->drafts) : NULL;
    if (h->picked == NULL || h->tops == NULL || (m->draft != NULL && h->drafts == NULL))
        rc = sl_fail(err, SL_ENOMEM, "out of memory for a runner of %d rows", max_logits);
    while (rc == 0 && m->n_pooled == 0 && h->n_samplers < SL_MAX(n_samplers, 1)) {
        rc = sl_sampler_init(&h->samplers[h->n_samplers], m->n_vocab, err);
        h->n_samplers += rc == 0;
    }
    if (rc != 0) {
        sl_host_runner_destroy(h);
        return rc;
    }
    *out = h;
    return 0;
}

void sl_host_runner_destroy(struct sl_host_runner *h)
{
    if (h == NULL)
        return;
    for (int32_t i = 0; i < h->n_samplers; i++)
        sl_sampler_deinit(&h->samplers[i]);
    sl_free(h->drafts);
    sl_free(h->tops);
    sl_free(h->picked);
    sl_free(h);
}

void sl_host_runner_use(struct sl_host_runner *h, struct sl_runner *r)
{
    *r = (struct sl_runner){.ctx = h,
                            .n_vocab = h->m.n_vocab,
                            .max_logits = h->max_logits,
                            .max_flights = 1,
                            .blind = h->m.n_pooled > 0,
                            .n_pooled = h->m.n_pooled,
                            .per_token = h->m.per_token,
                            .whole = h->m.whole,
                            .top_ids = true,
                            .submit = host_submit,
                            .choose = host_choose,
                            .collect = host_collect,
                            .draft = h->m.draft != NULL ? host_draft : NULL,
                            .n_draft_vocab = h->m.n_draft_vocab,
                            .draft_context = h->m.draft_context,
                            .draft_rows = h->m.draft_rows,
                            .progress = h->m.progress != NULL ? host_progress : NULL};
}
