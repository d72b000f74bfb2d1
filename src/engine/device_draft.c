/* SPDX-License-Identifier: MIT
 * A pass's first step has what the drafter lacks of the texts. Where that is a few tokens of each
 * sequence, its spans are made equally long, so that it is one of few recorded steps: what is added
 * behind a sequence's last token lies where the drafts will, and is overwritten by them before any
 * row sees it. The steps behind it have a token of each sequence, whoever wants fewer drafts: at
 * these sizes a step takes as long as its weights are read.
 *
 * A drafter of blocks (DFlash) has two steps: of the text's rows, made even likewise, then of all
 * blocks, of which all rows are wanted where there is room for them: a row of logits more costs
 * nothing beside the matrix that is read, and such steps are recorded. Where a draft of a block
 * depends on the one before it (DSpark), the second step goes on draft by draft: what was chosen is
 * looked up and changes the next row of logits.
 */
#include "engine/device_draft.h"

#include "base/check.h"
#include "base/log.h"
#include "base/sys.h"

#include <string.h>

#define EVEN_TOKENS 64  /* a step of more takes longer for each, */
#define EVEN_BLOCKS 256 /* one that makes keys and values alone not before that */
#define PAD_SPANS   32  /* that a backend may add to a step (sl_step_limits.scratch_pages) */

struct draft_step { /* of a pass: the one that gives ids */
    uint64_t ticket, from_ns;
    int32_t n_again;
    struct sl_device_times before;
};

struct sl_device_draft {
    struct sl_device_draft_config cfg;
    struct draft_step late; /* of a pass that nobody has waited for yet */
    struct sl_backend *be;
    const struct sl_device_vt *dev;
    bool reads_rows;
    int32_t n_row, n_choice; /* logits of a row; of those the first that may be chosen */
    void *scratch;           /* device, of the sampler */
    size_t scratch_bytes;
    struct sl_sample_row *rows; /* device: [max_rows] greedy */
    int32_t *idx;               /* device: [max_rows] columns that were chosen, */
    int32_t *map;               /* device: [1 + n_row] and their tokens, behind that of -1 */
    uint64_t n_passes, n_late, n_again; /* with drafts, of them late; steps behind their first, */
    double first_s, again_s;            /* and what these took */
    /* The first step with even spans; then that of blocks. */
    int32_t n_even;                        /* tokens of the first, at most */
    int32_t *tokens, *positions, *sources; /* [n_even], or of all blocks */
    struct sl_span *spans;
    int32_t *logit_rows;
    int32_t *firsts; /* of each sequence the wanted row that says its first draft */
    /* Device, of drafts that depend on those before them, n_chains sequences side by side; NULL:
     * they do not. */
    int32_t n_chains;
    int32_t *anchors;      /* [n_chains] the tokens of the batch that blocks begin with, */
    int32_t *chain_prev;   /* what they are; */
    int32_t *chain_rows;   /* [block, n_chains] rows of logits of draft k; */
    int32_t *chain_chosen; /* [block, n_chains] what was chosen, */
    int32_t *chain_order;  /* [n_chains, block] and where the row of a block finds its own */
};

static size_t rows_bytes(const struct sl_device_draft_config *cfg)
{
    return (size_t)cfg->max_rows * sizeof(struct sl_sample_row);
}

static size_t idx_bytes(const struct sl_device_draft_config *cfg)
{
    return (size_t)cfg->max_rows * sizeof(int32_t);
}

static size_t map_bytes(const struct sl_device_draft_config *cfg)
{
    return ((size_t)sl_model_facts(cfg->model)->n_row + 1) * sizeof(int32_t);
}

/* Sequences whose drafts are made one behind another in a step. */
static int32_t n_chains(const struct sl_device_draft_config *cfg)
{
    return sl_model_facts(cfg->model)->draft_chain ? cfg->max_rows / cfg->block : 0;
}

/* anchors, chain_prev, chain_rows, chain_chosen and chain_order, in one piece. */
static size_t chain_bytes(const struct sl_device_draft_config *cfg)
{
    return (size_t)n_chains(cfg) * (2 + 3 * (size_t)cfg->block) * sizeof(int32_t);
}

/* Has it a numbering of tokens of its own? */
static bool maps(const struct sl_model *m)
{
    return sl_model_facts(m)->draft_width > 0;
}

static void add_kinds(const struct sl_model *m, struct sl_step_limits *lim)
{
    struct sl_heads kinds[SL_MAX_HEAD_KINDS];
    const int32_t n = SL_MIN(sl_model_heads(m, kinds, SL_MAX_HEAD_KINDS), SL_MAX_HEAD_KINDS);
    for (int32_t i = 0; i < n; i++) {
        int32_t at = 0;
        while (at < lim->n_kinds && memcmp(&lim->heads[at], &kinds[i], sizeof kinds[i]) != 0)
            at++;
        if (at == SL_MAX_HEAD_KINDS) /* refused when it was loaded */
            continue;
        lim->heads[at] = kinds[i];
        lim->n_kinds = SL_MAX(lim->n_kinds, at + 1);
        if (i == 0)
            lim->draft_kind = at;
    }
}

void sl_device_draft_limits(const struct sl_device_draft_config *cfg, struct sl_step_limits *lim)
{
    if (cfg->model == NULL)
        return;
    const int64_t ahead = cfg->max_drafts + 1;
    const int64_t each =
        SL_CEIL_DIV(cfg->max_model_len, lim->block_size) + SL_CEIL_DIV(ahead, lim->block_size);
    add_kinds(cfg->model, lim);
    lim->max_again = cfg->block > 0 ? 0 : cfg->max_drafts - 1;
    lim->max_block_rows = cfg->block > 0 ? cfg->max_rows : 0;
    lim->max_tokens = SL_MAX(lim->max_tokens, cfg->max_tokens);
    lim->max_logits = SL_MAX(lim->max_logits, cfg->max_rows);
    lim->max_context = (int32_t)SL_MIN(cfg->max_model_len + ahead, INT32_MAX);
    lim->max_table = (int32_t)SL_MIN(SL_MAX(lim->max_table, cfg->max_seqs * each), INT32_MAX - 1);
    if (maps(cfg->model))
        lim->extra_bytes = SL_MAX(lim->extra_bytes, (uint64_t)cfg->max_tokens * sizeof(int32_t));
}

uint64_t sl_device_draft_bytes(const struct sl_device_draft_config *cfg, struct sl_backend *be)
{
    if (cfg->model == NULL)
        return 0;
    return be->vt->device->sample_scratch(be, cfg->max_rows, sl_model_facts(cfg->model)->n_row) +
           rows_bytes(cfg) + chain_bytes(cfg) +
           (maps(cfg->model) ? map_bytes(cfg) + idx_bytes(cfg) : 0);
}

/* ------------------------------------------------------------------ start and end */

static int put_map(struct sl_device_draft *d, struct sl_error *err)
{
    int32_t *ids = sl_calloc((size_t)d->n_row + 1, sizeof *ids); /* the first is of no column */
    if (ids == NULL)
        return sl_fail(err, SL_ENOMEM, "out of memory for the tokens of a drafter");
    for (int32_t i = 0; i < d->n_row; i++)
        ids[i + 1] = sl_model_draft_token(d->cfg.model, i);
    d->be->vt->upload(d->be, d->map, ids, map_bytes(&d->cfg));
    sl_free(ids);
    return 0;
}

static int put_rows(struct sl_device_draft *d, struct sl_error *err)
{
    struct sl_sample_row *rows = sl_calloc((size_t)d->cfg.max_rows, sizeof *rows);
    if (rows == NULL)
        return sl_fail(err, SL_ENOMEM, "out of memory for drafts of %d sequences", d->cfg.max_seqs);
    for (int32_t i = 0; i < d->cfg.max_rows; i++)
        rows[i] = (struct sl_sample_row){.n_top = -1, .top_p = 1, .repetition_penalty = 1};
    d->be->vt->upload(d->be, d->rows, rows, rows_bytes(&d->cfg));
    sl_free(rows);
    return 0;
}

/* The row of a block that says the first draft. */
static int32_t first_row(const struct sl_device_draft *d)
{
    return sl_model_facts(d->cfg.model)->draft_from_anchor ? 0 : 1;
}

/* What does not change of the arrays of a chain. Rows of blocks that say no draft have the first
 * one's. */
static int put_chain(struct sl_device_draft *d, struct sl_error *err)
{
    const int32_t n = d->n_chains, block = d->cfg.block, first = first_row(d);
    SL_ASSERT(n > 0 && block > first);
    int32_t *all = sl_calloc(1, chain_bytes(&d->cfg));
    if (all == NULL)
        return sl_fail(err, SL_ENOMEM, "out of memory for drafts of %d sequences", n);
    int32_t *rows = all + 2 * n, *order = all + (2 + 2 * block) * n;
    for (int32_t i = 0; i < n; i++) {
        all[i] = i * block;
        for (int32_t k = 0; k < block; k++) {
            const int32_t draft = SL_MAX(k - first, 0);
            rows[draft * n + i] = i * block + first + draft;
            order[i * block + k] = draft * n + i;
        }
    }
    d->be->vt->upload(d->be, d->anchors, all, chain_bytes(&d->cfg));
    sl_free(all);
    return 0;
}

/* Where there is no chain nothing is taken. */
static int take_chain_memory(struct sl_device_draft *d, struct sl_error *err)
{
    const int32_t n = d->n_chains = n_chains(&d->cfg);
    if (n == 0)
        return 0;
    d->anchors = d->be->vt->alloc(d->be, chain_bytes(&d->cfg));
    if (d->anchors == NULL)
        return sl_fail(err, SL_ENOMEM, "out of device memory for drafts of %d sequences", n);
    d->chain_prev = d->anchors + n;
    d->chain_rows = d->chain_prev + n;
    d->chain_chosen = d->chain_rows + (int64_t)n * d->cfg.block;
    d->chain_order = d->chain_chosen + (int64_t)n * d->cfg.block;
    return put_chain(d, err);
}

static int take_device_memory(struct sl_device_draft *d, struct sl_error *err)
{
    const struct sl_backend_vt *vt = d->be->vt;
    d->scratch_bytes = d->dev->sample_scratch(d->be, d->cfg.max_rows, d->n_row);
    d->scratch = vt->alloc(d->be, d->scratch_bytes);
    d->rows = vt->alloc(d->be, rows_bytes(&d->cfg));
    d->idx = d->reads_rows ? vt->alloc(d->be, idx_bytes(&d->cfg)) : NULL;
    d->map = d->reads_rows ? vt->alloc(d->be, map_bytes(&d->cfg)) : NULL;
    if (d->scratch == NULL || d->rows == NULL ||
        (d->reads_rows && (d->idx == NULL || d->map == NULL)))
        return sl_fail(err, SL_ENOMEM, "out of device memory for drafts of %d sequences",
                       d->cfg.max_seqs);
    int rc = put_rows(d, err);
    if (rc == 0 && d->reads_rows)
        rc = put_map(d, err);
    return rc == 0 ? take_chain_memory(d, err) : rc;
}

int sl_device_draft_create(const struct sl_device_draft_config *cfg, struct sl_backend *be,
                           struct sl_device_draft **out, struct sl_error *err)
{
    *out = NULL;
    if (cfg->model == NULL)
        return 0;
    SL_ASSERT(cfg->run != NULL && cfg->target_run != NULL && be->vt->device != NULL);
    SL_ASSERT(cfg->max_drafts >= 1 && cfg->max_drafts <= SL_MAX_DRAFTED);
    struct sl_device_draft *d = sl_calloc(1, sizeof *d);
    if (d == NULL)
        return sl_fail(err, SL_ENOMEM, "out of memory for a model that drafts");
    const struct sl_model_facts *f = sl_model_facts(cfg->model);
    d->cfg = *cfg;
    d->be = be;
    d->dev = be->vt->device;
    d->reads_rows = maps(cfg->model);
    d->n_row = f->n_row;
    d->n_choice = d->reads_rows ? f->n_row : SL_MIN(cfg->n_vocab, f->n_row);
    d->n_even = SL_MIN(cfg->block > 0 ? EVEN_BLOCKS : EVEN_TOKENS, cfg->max_tokens);
    const size_t room = (size_t)(cfg->block > 0 ? cfg->max_tokens : d->n_even);
    d->tokens = sl_calloc(room, sizeof *d->tokens);
    d->positions = sl_calloc(room, sizeof *d->positions);
    d->sources = sl_calloc(room, sizeof *d->sources);
    d->logit_rows = sl_calloc(room, sizeof *d->logit_rows);
    d->spans = sl_calloc(room, sizeof *d->spans);
    d->firsts = sl_calloc((size_t)cfg->max_seqs, sizeof *d->firsts);
    int rc = d->firsts != NULL && d->tokens != NULL && d->positions != NULL && d->sources != NULL &&
                     d->logit_rows != NULL && d->spans != NULL
                 ? take_device_memory(d, err)
                 : sl_fail(err, SL_ENOMEM, "out of memory for a model that drafts");
    if (rc != 0) {
        sl_device_draft_destroy(d);
        return rc;
    }
    *out = d;
    return 0;
}

void sl_device_draft_destroy(struct sl_device_draft *d)
{
    if (d == NULL)
        return;
    const struct sl_backend_vt *vt = d->be->vt;
    if (d->n_passes > 0)
        sl_log(SL_LOG_INFO,
               "drafts: %llu passes, %llu of them with the way to the host and back; their first "
               "steps %.3f ms each; %llu steps behind those, %.3f ms each",
               (unsigned long long)d->n_passes, (unsigned long long)(d->n_passes - d->n_late),
               1e3 * d->first_s / (double)d->n_passes, (unsigned long long)d->n_again,
               d->n_again > 0 ? 1e3 * d->again_s / (double)d->n_again : 0.0);
    d->dev->forget(d->be, d);
    if (d->anchors != NULL)
        vt->free(d->be, d->anchors, chain_bytes(&d->cfg));
    if (d->map != NULL)
        vt->free(d->be, d->map, map_bytes(&d->cfg));
    if (d->idx != NULL)
        vt->free(d->be, d->idx, idx_bytes(&d->cfg));
    if (d->rows != NULL)
        vt->free(d->be, d->rows, rows_bytes(&d->cfg));
    if (d->scratch != NULL)
        vt->free(d->be, d->scratch, d->scratch_bytes);
    sl_free(d->firsts);
    sl_free(d->spans);
    sl_free(d->logit_rows);
    sl_free(d->sources);
    sl_free(d->positions);
    sl_free(d->tokens);
    sl_free(d);
}

/* ------------------------------------------------------------------ a pass */

/* The most likely ones of n rows of logits: their tokens, to ids. */
static void choose(struct sl_device_draft *d, const float *logits, int32_t n, int32_t *ids)
{
    SL_ASSERT(n > 0 && n <= d->cfg.max_rows);
    d->dev->sample(d->be, &(struct sl_op_sample){.logits = logits,
                                                 .ld = d->n_row,
                                                 .n = n,
                                                 .n_vocab = d->n_choice,
                                                 .rows = d->rows,
                                                 .ids = d->reads_rows ? d->idx : ids,
                                                 .scratch = d->scratch,
                                                 .max_n = d->cfg.max_rows});
    if (d->reads_rows)
        d->be->vt->gather_rows(
            d->be,
            &(struct sl_op_gather_rows){
                .x = d->map + 1, .rows = d->idx, .n = n, .row_bytes = sizeof *d->map, .out = ids});
}

/* Of a step of blocks all of whose rows are wanted: draft after draft, each behind the one before
 * it, and in the end to step->ids, block by block. */
static void choose_chain(struct sl_device_draft *d, const struct sl_step *step)
{
    const int32_t n = step->batch.n_spans, n_drafts = d->cfg.block - first_row(d);
    SL_ASSERT(n <= d->n_chains && step->batch.n_logits == n * d->cfg.block);
    d->be->vt->gather_rows(d->be, &(struct sl_op_gather_rows){.x = step->batch.tokens,
                                                              .rows = d->anchors,
                                                              .n = n,
                                                              .row_bytes = sizeof *d->anchors,
                                                              .out = d->chain_prev});
    const int32_t *prev = d->chain_prev;
    for (int32_t k = 0; k < n_drafts; k++) {
        const struct sl_draft_chain c = {
            .n = n, .rows = d->chain_rows + k * d->n_chains, .prev = prev, .first = k == 0};
        int32_t *chosen = d->chain_chosen + k * d->n_chains;
        choose(d, sl_run_draft_chain(d->cfg.run, &c), n, chosen);
        prev = chosen;
    }
    d->be->vt->gather_rows(d->be, &(struct sl_op_gather_rows){.x = d->chain_chosen,
                                                              .rows = d->chain_order,
                                                              .n = step->batch.n_logits,
                                                              .row_bytes = sizeof *d->anchors,
                                                              .out = step->ids});
}

static void forward(void *arg, const struct sl_step *step)
{
    struct sl_device_draft *d = arg;
    const bool own = step->part == SL_STEP_AGAIN;
    if (!d->reads_rows || (step->blocks && step->batch.n_logits > 0))
        (void)sl_run_enqueue(d->cfg.run, &step->batch);
    else if (own)
        (void)sl_run_enqueue_draft(d->cfg.run, &step->batch, sl_run_hidden(d->cfg.run), NULL, true);
    else
        (void)sl_run_enqueue_draft(d->cfg.run, &step->batch, sl_run_taps(d->cfg.target_run),
                                   step->extra, false);
    if (step->batch.n_logits == 0)
        return;
    if (d->n_chains > 0)
        choose_chain(d, step);
    else
        choose(d, sl_run_logits(d->cfg.run), step->batch.n_logits, step->ids);
}

/* Tokens that each span gets; 0: they stay as they are. Two lengths, so that few steps are
 * recorded. */
static int32_t even_width(const struct sl_device_draft *d, const struct sl_batch *b)
{
    const int32_t most = d->cfg.max_drafts + 1;
    int32_t n = 0;
    for (int32_t i = 0; i < b->n_spans; i++)
        n = SL_MAX(n, b->spans[i].n);
    /* rows of the text alone are made even whoever wants drafts */
    if (n > most || (int64_t)b->n_spans * most > d->n_even ||
        (d->cfg.block == 0 && (b->n_logits != b->n_spans || n <= 1)))
        return 0;
    return most;
}

/* What is added to a span is token 0 beside the hidden row of the span's last token. */
static struct sl_batch even_spans(struct sl_device_draft *d, const struct sl_draft_pass *p,
                                  int32_t width)
{
    struct sl_batch b = p->batch;
    for (int32_t i = 0; i < b.n_spans; i++) {
        const struct sl_span *s = &b.spans[i];
        const int32_t first = i * width;
        SL_ASSERT(i >= b.n_logits || b.logit_rows[i] == s->first + s->n - 1);
        SL_ASSERT(first + width <= d->n_even);
        for (int32_t k = 0; k < width; k++) {
            const int32_t from = s->first + SL_MIN(k, s->n - 1);
            d->tokens[first + k] = k < s->n ? b.tokens[from] : 0;
            d->positions[first + k] = s->pos + k;
            d->sources[first + k] = p->sources != NULL ? p->sources[from] : 0;
        }
        d->spans[i] =
            (struct sl_span){.first = first, .n = width, .pos = s->pos, .table_idx = s->table_idx};
        d->logit_rows[i] = first + s->n - 1;
    }
    b.n_tokens = b.n_spans * width;
    b.tokens = d->tokens;
    b.positions = d->positions;
    b.spans = d->spans;
    b.logit_rows = d->logit_rows;
    return b;
}

/* Hidden rows travel by number, in what is extra; those of padding are the first one's. */
static void put_sources(struct sl_device_draft *d, const int32_t *sources, struct sl_step *step)
{
    const int32_t n = step->batch.n_tokens;
    const int32_t n_pad = SL_MIN(PAD_SPANS * step->batch.spans[0].n, d->cfg.max_tokens - n);
    int32_t *to = d->dev->extra_host(d->be);
    SL_ASSERT(n >= 1 && n_pad >= 0);
    memcpy(to, sources, (size_t)n * sizeof *to);
    memset(to + n, 0, (size_t)n_pad * sizeof *to);
    step->extra = to;
    step->extra_bytes = (size_t)(n + n_pad) * sizeof *to;
}

/* The row that gives draft k of sequence i, if each step gives one. */
static int32_t draft_row(const struct sl_draft_pass *p, int32_t i, int32_t k)
{
    return k * p->batch.n_logits + i;
}

/* ------------------------------------------------------------------ a pass of blocks */

/* A block behind the text of each sequence that wants drafts: what is known of it last, and masks.
 * It is as long as the drafter is used to, however many drafts are wanted. */
static void add_block(struct sl_device_draft *d, const struct sl_draft_pass *p, int32_t i)
{
    const int32_t mask = sl_model_facts(d->cfg.model)->draft_mask, first = i * d->cfg.block;
    const struct sl_span *text = &p->batch.spans[i];
    SL_ASSERT(first + d->cfg.block <= d->cfg.max_tokens && text->n >= 1);
    d->spans[i] = (struct sl_span){.first = first,
                                   .n = d->cfg.block,
                                   .pos = text->pos + text->n,
                                   .table_idx = text->table_idx};
    for (int32_t k = 0; k < d->cfg.block; k++) {
        d->tokens[first + k] = k == 0 ? p->batch.tokens[text->first + text->n - 1] : mask;
        d->positions[first + k] = text->pos + text->n + k;
    }
}

/* all: every row is wanted; else those of drafts. */
static struct sl_batch make_blocks(struct sl_device_draft *d, const struct sl_draft_pass *p,
                                   bool all)
{
    struct sl_batch b = p->batch;
    const int32_t from = all ? 0 : first_row(d);
    b.n_spans = p->batch.n_logits;
    b.n_tokens = b.n_spans * d->cfg.block;
    b.n_logits = 0;
    b.tokens = d->tokens;
    b.positions = d->positions;
    b.spans = d->spans;
    b.logit_rows = d->logit_rows;
    for (int32_t i = 0; i < b.n_spans; i++) {
        const int32_t n = all ? d->cfg.block : p->wanted[i];
        d->firsts[i] = b.n_logits + (all ? first_row(d) : 0);
        SL_ASSERT(p->wanted[i] >= 1 && first_row(d) + p->wanted[i] <= d->cfg.block);
        SL_ASSERT(b.n_logits + n <= d->cfg.max_rows);
        add_block(d, p, i);
        for (int32_t k = 0; k < n; k++)
            d->logit_rows[b.n_logits++] = i * d->cfg.block + from + k;
    }
    return b;
}

/* Keys and values of the rows of the text. */
static int send_text(struct sl_device_draft *d, const struct sl_draft_pass *p, uint64_t *ticket,
                     struct sl_error *err)
{
    struct sl_step step = {
        .batch = p->batch, .part = SL_STEP_WHOLE, .drafts = true, .blocks = true};
    const int32_t width = even_width(d, &p->batch);
    if (width > 0)
        step.batch = even_spans(d, p, width);
    step.batch.n_logits = 0;
    put_sources(d, width > 0 ? d->sources : p->sources, &step);
    return d->dev->step(d->be, &step, forward, d, ticket, err);
}

/* Both steps of a pass of blocks; text: the ticket of the first. */
static int send_blocks(struct sl_device_draft *d, struct sl_draft_pass *p, struct draft_step *out,
                       uint64_t *text, struct sl_error *err)
{
    struct sl_step step = {.part = SL_STEP_WHOLE, .drafts = true, .blocks = true};
    SL_ASSERT(p->sources != NULL && p->batch.n_logits <= p->batch.n_spans);
    int rc = send_text(d, p, text, err);
    if (rc != 0 || p->batch.n_logits == 0)
        return rc;
    const bool all = (int64_t)p->batch.n_logits * d->cfg.block <= d->cfg.max_rows;
    SL_ASSERT(all || d->n_chains == 0);
    step.batch = make_blocks(d, p, all);
    return d->dev->step(d->be, &step, forward, d, &out->ticket, err);
}

/* ------------------------------------------------------------------ any pass */

static int send_steps(struct sl_device_draft *d, struct sl_draft_pass *p, struct draft_step *out,
                      struct sl_error *err)
{
    struct sl_step step = {.batch = p->batch,
                           .part = SL_STEP_WHOLE,
                           .drafts = true,
                           .borrows = sl_model_facts(d->cfg.model)->draft_borrows};
    SL_ASSERT(d->reads_rows == (p->sources != NULL) && p->batch.n_logits <= p->batch.n_spans);
    for (int32_t i = 0; i < p->batch.n_logits; i++)
        step.n_again = SL_MAX(step.n_again, p->wanted[i] - 1);
    out->n_again = step.n_again;
    const int32_t width = even_width(d, &p->batch);
    if (width > 0)
        step.batch = even_spans(d, p, width);
    if (d->reads_rows)
        put_sources(d, width > 0 ? d->sources : p->sources, &step);
    return d->dev->step(d->be, &step, forward, d, &out->ticket, err);
}

/* Drafts by the ids of all rows; ids NULL: their places. */
static void take_drafts(const struct sl_device_draft *d, const struct sl_draft_pass *p,
                        const int32_t *ids)
{
    for (int32_t i = 0; i < p->batch.n_logits; i++) {
        SL_ASSERT(p->wanted[i] >= 1 && p->wanted[i] <= SL_MAX_DRAFTED);
        for (int32_t k = 0; k < p->wanted[i]; k++) {
            const int32_t row = d->cfg.block > 0 ? d->firsts[i] + k : draft_row(p, i, k);
            p->drafts[i * SL_MAX_DRAFTED + k] =
                ids == NULL ? -1 - row : SL_MAX(ids[row], 0); /* -1: no numbers */
        }
    }
}

/* seconds: with the way to the host and back if that is waited for. */
static void count_pass(struct sl_device_draft *d, struct sl_draft_pass *p,
                       const struct draft_step *s)
{
    struct sl_device_times after;
    d->dev->times(d->be, &after);
    const double behind = (after.again_ms - s->before.again_ms) / 1e3,
                 first = p->late ? (after.draft_ms - s->before.draft_ms) / 1e3
                                 : (double)(sl_now_ns() - s->from_ns) / 1e9 - behind;
    p->seconds[0] = SL_MAX(first, 0.0);
    for (int32_t k = 1; k <= s->n_again; k++)
        p->seconds[k] = behind / s->n_again;
    d->n_passes++;
    d->n_late += p->late;
    d->first_s += p->seconds[0];
    d->n_again += (uint64_t)s->n_again;
    d->again_s += behind;
}

static int await_drafts(struct sl_device_draft *d, struct sl_draft_pass *p,
                        const struct draft_step *s, struct sl_error *err)
{
    const int32_t *ids = NULL;
    int rc = d->dev->wait(d->be, s->ticket, &ids, NULL, err);
    if (rc != 0)
        return rc;
    take_drafts(d, p, ids);
    count_pass(d, p, s);
    return 0;
}

int sl_device_draft_run(struct sl_device_draft *d, struct sl_draft_pass *p, struct sl_error *err)
{
    struct draft_step s = {.from_ns = sl_now_ns()};
    const bool blocks = d->cfg.block > 0;
    uint64_t text = 0;
    memset(p->seconds, 0, sizeof p->seconds);
    d->dev->times(d->be, &s.before);
    int rc = blocks ? send_blocks(d, p, &s, &text, err) : send_steps(d, p, &s, err);
    if (rc != 0 || p->batch.n_logits == 0) /* then nobody waits for it */
        return rc;
    if (p->late) {
        d->late = s;
        take_drafts(d, p, NULL);
        return 0;
    }
    rc = await_drafts(d, p, &s, err);
    if (rc == 0 && blocks) /* over by now: its memory is free */
        rc = d->dev->wait(d->be, text, NULL, NULL, err);
    return rc;
}

int sl_device_draft_end(struct sl_device_draft *d, struct sl_draft_pass *p, struct sl_error *err)
{
    const struct draft_step s = d->late;
    SL_ASSERT(p->late && s.ticket != 0 && p->batch.n_logits > 0);
    d->late.ticket = 0;
    return await_drafts(d, p, &s, err);
}

uint64_t sl_device_draft_progress(const struct sl_device_draft *d)
{
    return d != NULL ? sl_run_progress(d->cfg.run) : 0;
}
