/* SPDX-License-Identifier: MIT */
#include "engine/host_runner.h"

#include "base/check.h"
#include "base/sys.h"

#include <string.h>

#define MAX_SAMPLERS        8 /* rows chosen from at once; each has a workspace of some megabytes */
#define MIN_PARALLEL_LOGITS 32768 /* fewer are looked at sooner than a thread wakes */
#define MAX_TOPS            SL_MAX(SL_MAX_LOGPROBS, SL_MAX_LOGPROB_IDS)

/* The step of a pass whose drafts come all at once. */
struct host_blocks {
    int32_t *tokens, *positions, *sources; /* [draft_tokens] */
    int32_t rows[SL_MAX_SEQS * SL_MAX_DRAFTED];
    struct sl_span spans[SL_MAX_SEQS];
    struct sl_batch batch;
    int32_t seqs[SL_MAX_SEQS], chain_rows[SL_MAX_SEQS], prev[SL_MAX_SEQS]; /* of a chain */
    float odds[SL_MAX_SEQS];
};

/* Steps of a model that drafts, behind the first one of a pass: a token for each sequence. */
struct host_drafts {
    int32_t tokens[SL_MAX_SEQS], positions[SL_MAX_SEQS], rows[SL_MAX_SEQS];
    struct sl_span spans[SL_MAX_SEQS];
    int32_t of[SL_MAX_SEQS], n; /* the row of the first step that each goes back to */
    int32_t sources[SL_MAX_SEQS];
};

struct sl_host_runner {
    struct sl_host_model m;
    struct host_drafts *drafts; /* NULL: the model has none, or drafts in blocks: */
    struct host_blocks *blocks;
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
static struct sl_batch next_drafts(const struct sl_host_runner *h, const struct sl_draft_pass *p,
                                   int32_t i)
{
    struct host_drafts *d = h->drafts;
    const int32_t ahead = h->m.draft_borrows ? 0 : i;
    int32_t n = 0;
    for (int32_t k = 0; k < d->n; k++) {
        const int32_t row = d->of[k];
        if (p->wanted[row] <= i)
            continue;
        const struct sl_span *s = &p->batch.spans[row];
        d->tokens[n] = p->drafts[row * SL_MAX_DRAFTED + i - 1];
        d->spans[n] = (struct sl_span){
            .first = n, .n = 1, .pos = s->pos + s->n - 1 + ahead, .table_idx = s->table_idx};
        d->positions[n] = d->spans[n].pos + h->m.draft_borrows;
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
        b = next_drafts(h, p, i + 1);
    }
    return rc;
}

static void add_token(const struct sl_host_runner *h, int32_t token, int32_t source)
{
    struct host_blocks *o = h->blocks;
    struct sl_span *span = &o->spans[o->batch.n_spans - 1];
    const int32_t i = o->batch.n_tokens++;
    SL_ASSERT(i < h->m.draft_tokens);
    o->tokens[i] = token;
    o->sources[i] = source;
    o->positions[i] = span->pos + span->n++;
}

/* What sequence i of the pass wants: rows of logits from token `first` of its span on. */
static void add_logits(struct host_blocks *o, const struct sl_draft_pass *p, int32_t i,
                       int32_t first)
{
    for (int32_t k = 0; k < p->wanted[i]; k++)
        o->rows[o->batch.n_logits++] = o->spans[i].first + first + k;
}

/* A block behind the text of each sequence that wants drafts: what is known of it last, and masks.
 * It is as long as the drafter is used to, however many drafts are wanted. */
static void add_block(const struct sl_host_runner *h, const struct sl_draft_pass *p, int32_t i)
{
    const struct sl_span *s = &p->batch.spans[i];
    const int32_t first = h->m.draft_from_anchor ? 0 : 1;
    SL_ASSERT(p->wanted[i] >= 1 && first + p->wanted[i] <= h->m.draft_block);
    h->blocks->spans[i].pos = s->pos + s->n;
    add_token(h, p->batch.tokens[s->first + s->n - 1], 0);
    for (int32_t k = 1; k < h->m.draft_block; k++)
        add_token(h, h->m.draft_mask, 0);
    add_logits(h->blocks, p, i, first);
}

/* The text of a sequence, and a mask for each draft that it wants but the first. */
static void add_text(const struct sl_host_runner *h, const struct sl_draft_pass *p, int32_t i)
{
    const struct sl_span *s = &p->batch.spans[i];
    h->blocks->spans[i].pos = s->pos;
    for (int32_t k = s->first; k < s->first + s->n; k++)
        add_token(h, p->batch.tokens[k], p->sources[k]);
    if (i >= p->batch.n_logits)
        return;
    for (int32_t k = 1; k < p->wanted[i]; k++)
        add_token(h, h->m.draft_mask, -1);
    add_logits(h->blocks, p, i, s->n - 1);
}

static const struct sl_batch *make_blocks(const struct sl_host_runner *h,
                                          const struct sl_draft_pass *p)
{
    struct host_blocks *o = h->blocks;
    const int32_t n = h->m.draft_apart ? p->batch.n_logits : p->batch.n_spans;
    SL_ASSERT(n <= SL_MAX_SEQS);
    o->batch = p->batch;
    o->batch.n_tokens = o->batch.n_logits = o->batch.n_spans = 0;
    o->batch.tokens = o->tokens;
    o->batch.positions = o->positions;
    o->batch.spans = o->spans;
    o->batch.logit_rows = o->rows;
    for (int32_t i = 0; i < n; i++) {
        o->spans[i] =
            (struct sl_span){.first = o->batch.n_tokens, .table_idx = p->batch.spans[i].table_idx};
        o->batch.n_spans++;
        if (h->m.draft_apart)
            add_block(h, p, i);
        else
            add_text(h, p, i);
    }
    return &o->batch;
}

/* Draft k of the blocks that want so many, each behind the one before it. Returns how many. */
static int32_t chain_drafts(struct sl_host_runner *h, struct sl_draft_pass *p, int32_t k)
{
    struct host_blocks *o = h->blocks;
    struct sl_draft_chain c = {.seqs = o->seqs,
                               .rows = o->chain_rows,
                               .prev = o->prev,
                               .first = k == 0,
                               .odds = h->m.draft_odds ? o->odds : NULL};
    const float *row = NULL;
    for (int32_t i = 0, first = 0; i < p->batch.n_logits; first += p->wanted[i++]) {
        if (p->wanted[i] <= k)
            continue;
        o->seqs[c.n] = i;
        o->chain_rows[c.n] = first + k;
        o->prev[c.n++] =
            k == 0 ? o->tokens[o->spans[i].first] : p->drafts[i * SL_MAX_DRAFTED + k - 1];
    }
    if (c.n == 0)
        return 0;
    h->m.draft_chain(h->m.ctx, &c, &row);
    for (int32_t i = 0; i < c.n; i++, row += h->m.n_draft_row) {
        const int32_t at = o->seqs[i] * SL_MAX_DRAFTED + k;
        p->drafts[at] = most_likely(h, row);
        if (h->m.draft_odds)
            p->odds[at] = o->odds[i];
    }
    return c.n;
}

static int host_draft_blocks(void *ctx, struct sl_draft_pass *p, struct sl_error *err)
{
    struct sl_host_runner *h = ctx;
    const float *row = NULL;
    int rc = 0;
    if (h->m.draft_apart) {
        struct sl_batch text = p->batch;
        text.n_logits = 0;
        rc = h->m.draft(h->m.ctx, &text, p->sources, false, &row, err);
        if (rc != 0 || p->batch.n_logits == 0)
            return rc;
    }
    const uint64_t t0 = sl_now_ns();
    rc = h->m.draft(h->m.ctx, make_blocks(h, p), h->m.draft_apart ? NULL : h->blocks->sources,
                    false, &row, err);
    SL_ASSERT(h->m.draft_chain == NULL || h->m.draft_apart);
    for (int32_t k = 0; rc == 0 && h->m.draft_chain != NULL && chain_drafts(h, p, k) > 0; k++)
        ;
    for (int32_t i = 0; i < p->batch.n_logits && rc == 0 && h->m.draft_chain == NULL; i++)
        for (int32_t k = 0; k < p->wanted[i]; k++, row += h->m.n_draft_row)
            p->drafts[i * SL_MAX_DRAFTED + k] = most_likely(h, row);
    p->seconds[0] = (double)(sl_now_ns() - t0) / 1e9;
    return rc;
}

static int create_blocks(struct sl_host_runner *h, struct sl_error *err)
{
    const size_t n = (size_t)h->m.draft_tokens;
    struct host_blocks *o = h->blocks = sl_calloc(1, sizeof *o);
    if (o == NULL || (o->tokens = sl_calloc(3 * n, sizeof *o->tokens)) == NULL)
        return sl_fail(err, SL_ENOMEM, "out of memory for drafts");
    o->positions = o->tokens + n;
    o->sources = o->positions + n;
    return 0;
}

static int host_page_out(void *ctx, int32_t group, int32_t page, uint8_t *dst, struct sl_error *err)
{
    const struct sl_host_runner *h = ctx;
    if (h->m.page_out != NULL)
        return h->m.page_out(h->m.ctx, group, page, dst, err);
    for (int32_t i = 0; i < SL_MAX(h->m.n_page_parts, 1); i++) {
        size_t n_bytes;
        const uint8_t *src = h->m.page(h->m.ctx, group, page, i, &n_bytes);
        memcpy(dst, src, n_bytes);
        dst += n_bytes;
    }
    return 0;
}

static int host_page_in(void *ctx, int32_t group, int32_t page, const uint8_t *src,
                        struct sl_error *err)
{
    const struct sl_host_runner *h = ctx;
    if (h->m.page_in != NULL)
        return h->m.page_in(h->m.ctx, group, page, src, err);
    for (int32_t i = 0; i < SL_MAX(h->m.n_page_parts, 1); i++) {
        size_t n_bytes;
        uint8_t *dst = h->m.page(h->m.ctx, group, page, i, &n_bytes);
        memcpy(dst, src, n_bytes);
        src += n_bytes;
    }
    return 0;
}

static void host_top_pages(const void *ctx, struct sl_top_page_counts *out)
{
    const struct sl_host_runner *h = ctx;
    SL_ASSERT(h->m.top_pages != NULL);
    h->m.top_pages(h->m.ctx, out);
}

static void host_eplb(const void *ctx, struct sl_eplb_stats *out)
{
    const struct sl_host_runner *h = ctx;
    h->m.eplb(h->m.ctx, out);
}

static uint64_t host_progress(const void *ctx)
{
    const struct sl_host_runner *h = ctx;
    return h->m.progress(h->m.ctx);
}

static int host_health(void *ctx, struct sl_error *err)
{
    const struct sl_host_runner *h = ctx;
    return h->m.health(h->m.ctx, err);
}

static void host_ranks(const void *ctx, struct sl_rank_stats *out)
{
    const struct sl_host_runner *h = ctx;
    h->m.ranks(h->m.ctx, out);
}

static enum sl_renewal host_renew(void *ctx)
{
    const struct sl_host_runner *h = ctx;
    return h->m.renew(h->m.ctx);
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
    if (m->draft != NULL && m->draft_block > 0)
        rc = create_blocks(h, err);
    else if (m->draft != NULL)
        h->drafts = sl_calloc(1, sizeof *h->drafts);
    if (rc == 0 && (h->picked == NULL || h->tops == NULL ||
                    (m->draft != NULL && h->drafts == NULL && h->blocks == NULL)))
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
    if (h->blocks != NULL)
        sl_free(h->blocks->tokens);
    sl_free(h->blocks);
    sl_free(h->drafts);
    sl_free(h->tops);
    sl_free(h->picked);
    sl_free(h);
}

void sl_host_runner_use(struct sl_host_runner *h, struct sl_runner *r)
{
    const bool moves = h->m.page != NULL || h->m.page_out != NULL;
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
                            .draft = h->m.draft == NULL  ? NULL
                                     : h->blocks != NULL ? host_draft_blocks
                                                         : host_draft,
                            .n_draft_vocab = h->m.n_draft_vocab,
                            .draft_context = h->m.draft_context,
                            .draft_rows = h->m.draft_rows,
                            .draft_odds = h->m.draft_odds,
                            .draft_borrows = h->m.draft_borrows,
                            .draft_at_once = h->blocks != NULL,
                            .draft_block = h->m.draft_apart ? h->m.draft_block : 0,
                            .page_out = moves ? host_page_out : NULL,
                            .page_in = moves ? host_page_in : NULL,
                            .top_pages = h->m.top_pages != NULL ? host_top_pages : NULL,
                            .eplb = h->m.eplb != NULL ? host_eplb : NULL,
                            .progress = h->m.progress != NULL ? host_progress : NULL,
                            .health = h->m.health != NULL ? host_health : NULL,
                            .ranks = h->m.ranks != NULL ? host_ranks : NULL,
                            .renew = h->m.renew != NULL ? host_renew : NULL};
}
