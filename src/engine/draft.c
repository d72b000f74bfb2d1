/* SPDX-License-Identifier: MIT
 * Which sequences a model drafts for, how far, and the batch of that.
 *
 * A draft costs a row of the next step and a token of a step of the drafter. The first step of a
 * pass has what the drafter lacks of the texts; the second one a token of each sequence that wants
 * two drafts, and so on. Of all drafts, the likeliest first, as many are made as give the most
 * tokens a second, by the prices learnt from steps of both models (sched/cost.h), and as can be
 * paid (fund.h).
 */
#include "engine/draft.h"

#include "base/check.h"
#include "base/log.h"
#include "base/sys.h"
#include "engine/turn.h"

#include <string.h>

/* What the drafter lacks at first, a whole prompt, is paid for by the drafts of as many tokens. */
#define LACKS_USUALLY 16 /* tokens */
#define SPREAD        64
/* Tokens' time that is lent to show what drafts are worth, after what the drafter lacked. */
#define TRIAL      1
#define TRIAL_ROWS 2

/* For what is written behind a sequence's blocks: all drafts of a pass, and one token more where
 * drafts are masks behind a token of the text, or a device makes spans even (device_draft.c). */
static int32_t spare_pages(int32_t n_drafts, int32_t block_size)
{
    return SL_CEIL_DIV(n_drafts + 1, block_size);
}

int32_t sl_drafter_n_pages(int32_t n_pages, int32_t max_seqs, int32_t n_drafts, int32_t block_size)
{
    return n_pages + 1 + max_seqs * spare_pages(n_drafts, block_size);
}

/* Tables of a pass's batches. */
static size_t n_tables(const struct sl_engine *eng)
{
    return eng->runner.draft_borrows ? (size_t)eng->info.n_kv_groups : 1;
}

int sl_drafter_init(struct sl_engine *eng, struct sl_error *err)
{
    const struct sl_model_info *i = &eng->info;
    const size_t n_seqs = (size_t)i->max_num_seqs, n_tokens = (size_t)i->max_num_batched_tokens;
    const struct sl_kv_group *g = &eng->kv.groups[0];
    SL_ASSERT(eng->runner.draft != NULL);
    SL_ASSERT(g->cfg.kind == SL_GROUP_FULL && eng->runner.n_draft_vocab > 0);
    struct sl_drafter *d = eng->drafter = sl_calloc(1, sizeof *d);
    if (d == NULL)
        return sl_fail(err, SL_ENOMEM, "out of memory for drafts");
    d->n_spare = eng->runner.draft_borrows
                     ? 0
                     : spare_pages(eng->speculative.num_speculative_tokens, i->block_size);
    SL_ASSERT(eng->runner.draft_rows || !eng->runner.draft_borrows);
    SL_ASSERT(eng->runner.draft_block <= eng->speculative.num_speculative_tokens + 1);
    const size_t n_table = (size_t)(SL_CEIL_DIV(i->max_model_len, i->block_size) + d->n_spare);
    d->pages = sl_calloc((size_t)g->cfg.n_pages, sizeof *d->pages);
    d->tokens = sl_calloc(n_tokens, sizeof *d->tokens);
    d->positions = sl_calloc(n_tokens, sizeof *d->positions);
    d->spans = sl_calloc(n_seqs, sizeof *d->spans);
    d->logit_rows = sl_calloc(n_seqs, sizeof *d->logit_rows);
    d->sources = sl_calloc(n_tokens, sizeof *d->sources);
    d->wanted = sl_calloc(n_seqs, sizeof *d->wanted);
    d->drafts = sl_calloc(n_seqs, SL_MAX_DRAFTED * sizeof *d->drafts);
    d->odds = sl_calloc(n_seqs, SL_MAX_DRAFTED * sizeof *d->odds);
    d->of = sl_calloc(n_seqs, sizeof(struct sl_rseq *));
    d->tables = sl_calloc(n_tables(eng) * n_seqs, n_table * sizeof *d->tables);
    d->table_stride = (int32_t)(n_seqs * n_table);
    if (d->pages == NULL || d->tokens == NULL || d->positions == NULL || d->sources == NULL ||
        d->spans == NULL || d->logit_rows == NULL || d->wanted == NULL || d->drafts == NULL ||
        d->odds == NULL || d->of == NULL || d->tables == NULL)
        return sl_fail(err, SL_ENOMEM, "out of memory for drafts of %zu sequences", n_seqs);
    return 0;
}

void sl_drafter_deinit(struct sl_engine *eng)
{
    struct sl_drafter *d = eng->drafter;
    if (d == NULL)
        return;
    sl_free(d->tables);
    sl_free(d->of);
    sl_free(d->odds);
    sl_free(d->drafts);
    sl_free(d->wanted);
    sl_free(d->logit_rows);
    sl_free(d->spans);
    sl_free(d->positions);
    sl_free(d->sources);
    sl_free(d->tokens);
    sl_free(d->pages);
    sl_free(d);
    eng->drafter = NULL;
}

/* ------------------------------------------------------------------ what the drafter has */

/* A sequence that runs again has other pages. */
static void drafter_meet(struct sl_drafter *d, struct sl_rseq *rs)
{
    struct sl_draft_seq *m = &rs->model;
    if (m->writer != 0 && m->epoch == rs->seq.n_preempted)
        return;
    m->writer = ++d->n_writers;
    m->epoch = rs->seq.n_preempted;
    m->n_fed = m->n = 0;
}

/* Tokens of the text, as it is now, that passes for this sequence have left. Drafts were fed too,
 * all but the last one: as far as they came out they are text. */
static int32_t tokens_fed(const struct sl_rseq *rs)
{
    const struct sl_draft_seq *m = &rs->model;
    const int32_t n_known = sl_seq_n_known(&rs->seq);
    int32_t n = m->n_fed;
    SL_ASSERT(n >= 0 && n <= n_known);
    for (int32_t i = 0; n == m->at + i && i + 1 < m->n && n < n_known; i++)
        n += sl_seq_token(&rs->seq, n) == rs->drafts[i];
    return n;
}

/* How many tokens of the text the drafter has in the sequence's pages, the last one not counted,
 * from which it goes on. */
static int32_t drafter_has(struct sl_engine *eng, struct sl_rseq *rs)
{
    struct sl_drafter *d = eng->drafter;
    const struct sl_kv_group *g = &eng->kv.groups[0];
    const struct sl_kv_blocks *b = &rs->seq.blocks;
    drafter_meet(d, rs);
    const int32_t bs = eng->info.block_size, n_last = sl_seq_n_known(&rs->seq) - 1;
    const int32_t n_fed = tokens_fed(rs);
    int32_t n = 0;
    for (int32_t i = 0; i < b->n; i++) {
        const int32_t page = b->pages[0][i];
        struct sl_draft_page *p = &d->pages[page];
        const bool same = p->n_taken == g->n_taken[page];
        const bool own = same && p->writer == rs->model.writer;
        p->full = same && (p->full || (own && n_fed >= (i + 1) * bs));
        if (!p->full) {
            n = own ? SL_MAX(n, n_fed) : n;
            break;
        }
        n = (i + 1) * bs;
    }
    return SL_MIN(n, n_last);
}

/* Tokens up to n_fed, from position from on, were written; behind those of the text drafts. */
static void drafter_wrote(struct sl_engine *eng, struct sl_rseq *rs, int32_t from, int32_t n_fed)
{
    struct sl_drafter *d = eng->drafter;
    const struct sl_kv_group *g = &eng->kv.groups[0];
    const int32_t bs = eng->info.block_size;
    for (int32_t i = from / bs; i < rs->seq.blocks.n; i++) {
        const int32_t page = rs->seq.blocks.pages[0][i];
        d->pages[page] = (struct sl_draft_page){
            .writer = rs->model.writer, .n_taken = g->n_taken[page], .full = (i + 1) * bs <= n_fed};
    }
    rs->model.n_fed = SL_MIN(n_fed, rs->seq.blocks.n * bs);
}

/* ------------------------------------------------------------------ how many drafts */

/* Drafts that a sequence may have, as far as its own text goes. */
static int32_t drafts_most(const struct sl_engine *eng, const struct sl_rseq *rs)
{
    const struct sl_seq *seq = &rs->seq;
    const int32_t n_known = sl_seq_n_known(seq);
    if (rs->req->mode->propose == NULL || seq->all_logits || seq->n_pending > 0 ||
        seq->n_computed + 1 != n_known)
        return 0;
    const int32_t limit = eng->speculative.max_model_len;
    const int32_t context =
        limit > 0 ? SL_MIN(limit, eng->runner.draft_context) : eng->runner.draft_context;
    const int32_t room = context - n_known + 1;
    const int32_t most = SL_MIN(room, sl_sched_max_drafts(&eng->sched, seq));
    return SL_MAX(SL_MIN(sl_engine_n_drafts(eng, rs), most), 0);
}

/* Nothing is made of the others. */
static void keep_last_row(struct sl_draft_seq *m)
{
    if (m->n_rows == 0)
        return;
    m->row += m->n_rows - 1;
    m->pos += m->n_rows - 1;
    m->n_rows = 1;
}

/* Rows of the step that has landed, of tokens whose next one is known. */
static void find_rows(struct sl_engine *eng, const struct sl_flight *f, int32_t n_seqs)
{
    const struct sl_sched *sched = &eng->sched;
    for (int32_t i = 0; i < sched->n_running; i++)
        sl_rseq_of(sched->running[i])->model.n_rows = 0;
    for (int32_t i = 0; i < n_seqs; i++) {
        const struct sl_flight_seq *fs = &f->seqs[i];
        struct sl_rseq *rs = fs->rs;
        if (rs == NULL || rs->seq.state != SL_SEQ_RUNNING || rs->seq.n_preempted != fs->epoch)
            continue;
        const int32_t end = SL_MIN(fs->pos + fs->n, sl_seq_n_known(&rs->seq) - 1);
        SL_ASSERT(f->spans[i].n >= fs->n && f->spans[i].pos == fs->pos); /* a row rolled back */
        rs->model.row = f->spans[i].first;
        rs->model.pos = fs->pos;
        rs->model.n_rows = SL_MAX(end - fs->pos, 0);
        if (eng->runner.draft_borrows)
            keep_last_row(&rs->model);
    }
}

/* Would a draft that comes out make the next step faster? known: steps of that size were measured.
 */
static bool drafter_could_pay(const struct sl_engine *eng, const struct sl_rseq *rs, bool *known)
{
    const struct sl_cost *c = &eng->sched.cost;
    const struct sl_drafting plain = sl_engine_next_step(eng);
    const int32_t n = sl_seq_n_known(&rs->seq);
    const struct sl_work with = sl_work_extend(plain.work, n - 1, 1);
    const double seconds = sl_cost_of(c, with) +
                           sl_cost_of(&eng->drafter->cost, sl_work_add((struct sl_work){0}, n, 1));
    *known = sl_cost_knows(c, with);
    return !*known || (plain.tokens + 1) * sl_cost_of(c, plain.work) > plain.tokens * seconds;
}

/* n tokens from `has` on are given to the drafter before it drafts, and then it shows in the time
 * of `tokens` what its drafts are worth: what that costs is lent. */
static bool drafter_would_lend(const struct sl_engine *eng, const struct sl_rseq *rs, int32_t has,
                               int32_t n, double trial, double *seconds)
{
    const struct sl_fund *f = &eng->fund;
    bool known;
    *seconds = trial + eng->ahead.late_s +
               sl_cost_of(&eng->drafter->cost, sl_work_add((struct sl_work){0}, has, n));
    if (f->step_s == 0)
        return f->seconds == 0;
    return drafter_could_pay(eng, rs, &known) &&
           (known || sl_fund_most(f, rs->credit) >= *seconds) &&
           sl_fund_lends(f, rs->credit, *seconds);
}

static bool drafter_lends(struct sl_engine *eng, struct sl_rseq *rs, int32_t has, int32_t n,
                          double tokens)
{
    struct sl_fund *f = &eng->fund;
    const double trial = tokens * f->token_s;
    double seconds;
    if (!drafter_would_lend(eng, rs, has, n, trial, &seconds))
        return false;
    if (f->step_s == 0)
        return true;
    if (rs->after == 0)
        rs->after = rs->credit + trial;
    return sl_fund_lend(f, &rs->credit, seconds);
}

/* Can what the drafter lacks, n tokens, be paid? */
static bool drafter_affords(struct sl_engine *eng, struct sl_rseq *rs, int32_t n)
{
    if (!sl_engine_prices_drafts(eng))
        return true;
    return n <= LACKS_USUALLY ? sl_fund_most(&eng->fund, rs->credit) > 0
                              : drafter_lends(eng, rs, rs->model.has, n, TRIAL);
}

/* Rows are there until the next step: those that nobody pays for now are left out. A sequence that
 * was left out begins again when it can be lent a trial; what lies in its pages for the tokens
 * between makes worse drafts. */
static void choose_rows(struct sl_engine *eng)
{
    const struct sl_sched *s = &eng->sched;
    for (int32_t i = 0; i < s->n_running && sl_engine_prices_drafts(eng); i++) {
        struct sl_rseq *rs = sl_rseq_of(s->running[i]);
        struct sl_draft_seq *m = &rs->model;
        if (m->n_rows == 0)
            continue;
        drafter_meet(eng->drafter, rs);
        const int32_t n = sl_seq_n_known(&rs->seq) - 1 - m->pos;
        const bool goes_on = m->pos > 0 && m->n_fed == m->pos;
        if (goes_on && (eng->fund.step_s == 0 || sl_fund_most(&eng->fund, rs->credit) > 0))
            continue;
        if (goes_on || !drafter_lends(eng, rs, m->pos, n, TRIAL_ROWS))
            m->n_rows = 0;
    }
}

/* A drafter of hidden rows goes on from the row of the last token but one. */
static bool drafter_may(const struct sl_engine *eng, const struct sl_rseq *rs)
{
    const struct sl_draft_seq *m = &rs->model;
    return !eng->runner.draft_rows ||
           (m->n_rows > 0 && m->pos + m->n_rows == sl_seq_n_known(&rs->seq) - 1);
}

/* Tokens that the drafter is to be given before it drafts for rs. */
static int32_t drafter_lacks(const struct sl_rseq *rs)
{
    return sl_seq_n_known(&rs->seq) - rs->model.has;
}

struct draft_sum { /* a step of the target with drafts, and the pass that makes them */
    struct sl_drafting step;
    struct sl_work passes[SL_MAX_DRAFTED]; /* its first step, its second one, ... */
    double draft_s;                        /* of these */
};

static double sum_seconds(const struct sl_engine *eng, const struct draft_sum *s)
{
    SL_ASSERT(s->draft_s >= 0);
    return sl_cost_of(&eng->sched.cost, s->step.work) + s->draft_s;
}

static double sum_rate(const struct sl_engine *eng, const struct draft_sum *s)
{
    const double seconds = sum_seconds(eng, s);
    return seconds > 0 ? s->step.tokens / seconds : 0;
}

/* One draft more for a sequence that has k. Returns whether the prices of both are known. */
static bool sum_add(const struct sl_engine *eng, struct draft_sum *s, const struct sl_rseq *rs,
                    int32_t k)
{
    const struct sl_cost *c = &eng->drafter->cost;
    struct sl_work *w = &s->passes[eng->runner.draft_at_once ? 0 : k];
    const int32_t n_last = sl_seq_n_known(&rs->seq) - 1, n_lacks = drafter_lacks(rs);
    const double before = w->tokens > 0 ? sl_cost_of(c, *w) : 0;
    SL_ASSERT(k < SL_MAX_DRAFTED && n_lacks > 0);
    if (eng->runner.draft_block > 0 && k == 0) /* the first draft pays for all */
        *w = sl_work_add(*w, n_last, eng->runner.draft_block);
    else if (eng->runner.draft_block == 0 && k > 0)
        *w = sl_work_add(*w, n_last + k, 1);
    else if (k == 0)
        *w = sl_work_add(*w, rs->model.has,
                         SL_MIN(n_lacks, LACKS_USUALLY) +
                             SL_MAX(n_lacks - LACKS_USUALLY, 0) / SPREAD);
    s->draft_s += sl_cost_of(c, *w) - before;
    s->step.work = sl_work_extend(s->step.work, n_last, k + 1);
    s->step.tokens += (double)rs->comes;
    return (n_lacks > LACKS_USUALLY || sl_cost_knows(c, *w)) && sl_cost_of(c, *w) > 0 &&
           sl_cost_knows(&eng->sched.cost, s->step.work);
}

/* A draft more of rs, if it can be paid. known: the prices of both models are. */
static bool give_one(const struct sl_engine *eng, struct draft_sum *sum, struct sl_fund *left,
                     struct sl_rseq *rs, bool *known)
{
    const double before = sum_seconds(eng, sum), draft_s = sum->draft_s;
    const struct sl_drafting step = sum->step;
    const struct sl_work pass = sum->passes[rs->n_worth];
    *known = sum_add(eng, sum, rs, rs->n_worth);
    if (sl_engine_afford_draft(eng, left, rs, sum_seconds(eng, sum) - before))
        return true;
    sum->step = step;
    sum->draft_s = draft_s;
    sum->passes[rs->n_worth] = pass;
    return false;
}

/* Gives sequences drafts, the likeliest first, up to `most` of all. Returns after how many of them
 * the step makes the most tokens a second; what nothing was learnt from is tried. */
static int32_t give_drafts(struct sl_engine *eng, int32_t most)
{
    const struct sl_sched *sched = &eng->sched;
    struct draft_sum sum = {.step = sl_engine_next_step(eng)};
    struct sl_fund left = eng->fund;
    bool known;
    double best = sum_rate(eng, &sum);
    int32_t n = 0, n_best = 0;
    sum.draft_s = eng->ahead.late_s; /* what goes without drafts may be one step ahead */
    for (int32_t i = 0; i < sched->n_running; i++) {
        struct sl_rseq *rs = sl_rseq_of(sched->running[i]);
        rs->comes = sl_engine_draft_comes(eng, rs->each);
        rs->left = rs->credit;
        rs->n_worth = 0;
    }
    for (float least = 1; least > SL_DRAFT_LEAST && n < most; least *= SL_DRAFT_LESS)
        for (int32_t i = 0; i < sched->n_running; i++) {
            struct sl_rseq *rs = sl_rseq_of(sched->running[i]);
            while (n < most && rs->n_worth < rs->model.most && rs->comes >= least &&
                   give_one(eng, &sum, &left, rs, &known)) {
                const double rate = sum_rate(eng, &sum);
                n++;
                if (!known || rate > best)
                    n_best = n, best = SL_MAX(best, rate);
                rs->comes = sl_engine_draft_comes(eng, rs->comes * rs->each);
                rs->n_worth++;
            }
        }
    return n_best;
}

/* How many drafts each sequence gets, into n_worth. */
static void choose_drafts(struct sl_engine *eng)
{
    const struct sl_sched *sched = &eng->sched;
    int32_t n_asking = 0;
    const bool plain = sl_engine_is_plain(eng);
    for (int32_t i = 0; i < sched->n_running; i++) {
        struct sl_rseq *rs = sl_rseq_of(sched->running[i]);
        rs->model.most = plain || !drafter_may(eng, rs) ? 0 : drafts_most(eng, rs);
        if (rs->model.most > 0) /* rows that are paid for are given, drafts or not */
            rs->model.has =
                eng->runner.draft_rows ? sl_seq_n_known(&rs->seq) - 1 : drafter_has(eng, rs);
        if (rs->model.most > 0 && (!eng->runner.draft_rows || eng->runner.draft_borrows) &&
            !drafter_affords(eng, rs, drafter_lacks(rs)))
            rs->model.most = 0;
        n_asking += rs->model.most > 0;
        rs->each = sl_engine_draft_odds(eng, rs);
        rs->n_worth = 0;
    }
    if (n_asking > 0)
        (void)give_drafts(eng, give_drafts(eng, sl_engine_draft_room(eng)));
}

/* ------------------------------------------------------------------ a pass */

/* The pages of rs, and of a drafter that has its own what lies behind them; i: of so many spans. */
static void add_table(struct sl_engine *eng, const struct sl_rseq *rs, int32_t i)
{
    struct sl_drafter *d = eng->drafter;
    const struct sl_kv_blocks *b = &rs->seq.blocks;
    const int32_t n_own = eng->kv.groups[0].cfg.n_pages + 1; /* that one is of a device's padding */
    const int32_t n_blocks =
        eng->runner.draft_borrows ? SL_CEIL_DIV(rs->seq.n_computed, eng->info.block_size) : b->n;
    SL_ASSERT(n_blocks <= b->n);
    for (size_t g = 0; g < n_tables(eng); g++)
        memcpy(d->tables + (int64_t)g * d->table_stride + d->n_table, b->pages[g],
               (size_t)n_blocks * sizeof *d->tables);
    for (int32_t k = 0; k < d->n_spare; k++)
        d->tables[d->n_table + n_blocks + k] = n_own + i * d->n_spare + k;
    d->n_table += n_blocks + d->n_spare;
}

/* The tokens of rs from position `from` on, n of them; those behind them, of a drafter of hidden
 * rows. */
static void add_span(struct sl_engine *eng, struct sl_rseq *rs, int32_t from, int32_t n)
{
    struct sl_drafter *d = eng->drafter;
    struct sl_batch *b = &d->pass.batch;
    const struct sl_seq *seq = &rs->seq;
    const int32_t i = b->n_spans++;
    SL_ASSERT(n > 0 && b->n_tokens + n <= eng->info.max_num_batched_tokens);
    d->of[i] = rs;
    d->spans[i] =
        (struct sl_span){.first = b->n_tokens, .n = n, .pos = from, .table_idx = d->n_table};
    add_table(eng, rs, i);
    for (int32_t k = 0; k < n; k++, b->n_tokens++) {
        const int32_t id = sl_seq_token(seq, from + k + eng->runner.draft_rows);
        SL_ASSERT(id >= 0);
        d->sources[b->n_tokens] = rs->model.row + k;
        d->tokens[b->n_tokens] = id < eng->runner.n_draft_vocab ? id : 0;
        d->positions[b->n_tokens] = from + k + eng->runner.draft_borrows;
    }
}

/* How many of the n tokens that rs lacks the step takes. Others wait meanwhile, so that a whole
 * prompt comes in pieces, as it does in the target's steps. */
static int32_t span_fits(const struct sl_engine *eng, const struct sl_rseq *rs, struct sl_work w,
                         int32_t n)
{
    const struct sl_drafter *d = eng->drafter;
    const double max_s = eng->sched.cfg.max_step_s;
    n = SL_MIN(n, eng->info.max_num_batched_tokens - d->pass.batch.n_tokens);
    if (n <= LACKS_USUALLY || max_s == 0)
        return n;
    return SL_MAX(sl_cost_chunk(&d->cost, w, rs->model.has, n, max_s), LACKS_USUALLY);
}

/* All rows of the step; first of those sequences that get drafts. */
static void add_rows(struct sl_engine *eng, bool drafts)
{
    struct sl_drafter *d = eng->drafter;
    struct sl_batch *b = &d->pass.batch;
    for (int32_t i = 0; i < eng->sched.n_running; i++) {
        struct sl_rseq *rs = sl_rseq_of(eng->sched.running[i]);
        const struct sl_draft_seq *m = &rs->model;
        SL_ASSERT(m->n_rows >= 0 && (m->n_rows > 0 || rs->n_worth == 0));
        if (m->n_rows == 0 || (rs->n_worth > 0) != drafts)
            continue;
        if (!drafts && eng->runner.draft_borrows)
            continue;
        add_span(eng, rs, m->pos, m->n_rows);
        if (!drafts)
            continue;
        d->wanted[b->n_logits] = rs->n_worth;
        d->logit_rows[b->n_logits++] = b->n_tokens - 1;
    }
}

/* First those that get drafts, then one that lacks more than this step takes. */
static void build_pass(struct sl_engine *eng)
{
    struct sl_drafter *d = eng->drafter;
    const struct sl_sched *s = &eng->sched;
    struct sl_rseq *late = NULL;
    struct sl_work work = {0};
    struct sl_batch *b = &d->pass.batch;
    *b = (struct sl_batch){.tokens = d->tokens,
                           .positions = d->positions,
                           .spans = d->spans,
                           .block_tables = d->tables,
                           .n_tables = (int32_t)n_tables(eng),
                           .table_stride = d->table_stride,
                           .logit_rows = d->logit_rows};
    d->n_table = 0;
    d->pass.sources = eng->runner.draft_rows ? d->sources : NULL;
    if (eng->runner.draft_rows) {
        add_rows(eng, true);
        add_rows(eng, false);
        return;
    }
    for (int32_t i = 0; i < s->n_running; i++) {
        struct sl_rseq *rs = sl_rseq_of(s->running[i]);
        const int32_t n = rs->n_worth > 0 ? drafter_lacks(rs) : 0;
        const bool fits = span_fits(eng, rs, work, n) == n;
        if (!fits && late == NULL)
            late = rs;
        if (n == 0 || !fits)
            continue;
        add_span(eng, rs, rs->model.has, n);
        work = sl_work_add(work, rs->model.has, n);
        d->wanted[b->n_logits] = rs->n_worth;
        d->logit_rows[b->n_logits++] = b->n_tokens - 1;
    }
    const int32_t n = late != NULL ? span_fits(eng, late, work, drafter_lacks(late) - 1) : 0;
    if (n > 0)
        add_span(eng, late, late->model.has, n);
}

/* What step k of a pass had. Of blocks apart from the text, they alone: the text is given to the
 * drafter anyway. */
static struct sl_work step_work(const struct sl_engine *eng, int32_t k)
{
    const struct sl_drafter *d = eng->drafter;
    const struct sl_batch *b = &d->pass.batch;
    const bool at_once = eng->runner.draft_at_once;
    const int32_t block = eng->runner.draft_block;
    struct sl_work w = {0};
    if (at_once && k > 0)
        return w;
    for (int32_t i = 0; i < b->n_spans && k == 0 && block == 0; i++)
        w = sl_work_add(w, b->spans[i].pos, b->spans[i].n);
    for (int32_t i = 0; i < b->n_logits; i++) {
        const int32_t end = b->spans[i].pos + b->spans[i].n;
        if (block > 0)
            w = sl_work_add(w, end, block);
        else if (at_once && d->wanted[i] > 1)
            w = sl_work_add(w, end, d->wanted[i] - 1);
        else if (k > 0 && d->wanted[i] > k)
            w = sl_work_add(w, end - 1 + k, 1);
    }
    return w;
}

static void learn_pass(struct sl_engine *eng)
{
    struct sl_drafter *d = eng->drafter;
    for (int32_t k = 0; k < SL_MAX_DRAFTED; k++) {
        const struct sl_work w = step_work(eng, k);
        if (w.tokens == 0)
            return;
        if (d->pass.seconds[k] > 0)
            sl_cost_learn(&d->cost, w, d->pass.seconds[k]);
    }
}

/* Each sequence pays for its part: of the first step by tokens, of later ones alike. */
static void pay_pass(struct sl_engine *eng)
{
    struct sl_drafter *d = eng->drafter;
    const struct sl_batch *b = &d->pass.batch;
    int32_t n_wanting[SL_MAX_DRAFTED] = {0};
    SL_ASSERT(b->n_tokens > 0 && b->n_logits <= b->n_spans);
    for (int32_t i = 0; i < b->n_logits; i++)
        for (int32_t k = 1; k < d->wanted[i]; k++)
            n_wanting[k]++;
    for (int32_t i = 0; i < b->n_spans; i++) {
        double seconds = d->pass.seconds[0] * b->spans[i].n / b->n_tokens;
        if (d->of[i] == NULL) /* it has ended */
            continue;
        for (int32_t k = 1; i < b->n_logits && k < d->wanted[i]; k++)
            seconds += d->pass.seconds[k] / n_wanting[k];
        sl_fund_pay(&eng->fund, &d->of[i]->credit, seconds);
        d->of[i]->drafted_at = eng->n_proposals;
        if (i < b->n_logits && d->of[i]->after > 0) { /* it has all that it lacked */
            sl_fund_keep(&eng->fund, &d->of[i]->credit, d->of[i]->after);
            d->of[i]->after = 0;
        }
    }
}

/* What the pass made is there for the next plan. */
static void take_pass(struct sl_engine *eng)
{
    struct sl_drafter *d = eng->drafter;
    const struct sl_batch *b = &d->pass.batch;
    for (int32_t i = 0; i < b->n_spans; i++) {
        struct sl_rseq *rs = d->of[i];
        const struct sl_span *span = &b->spans[i];
        if (!eng->runner.draft_rows)
            drafter_wrote(eng, rs, span->pos, span->pos + span->n);
        else
            rs->model.n_fed = span->pos + span->n;
        rs->model.at = sl_seq_n_known(&rs->seq);
        rs->model.n = i < b->n_logits ? d->wanted[i] : 0;
        if (rs->model.n == 0)
            continue;
        memcpy(rs->drafts, d->drafts + (size_t)i * SL_MAX_DRAFTED,
               (size_t)d->wanted[i] * sizeof *rs->drafts);
        if (eng->runner.draft_odds)
            memcpy(rs->share, d->odds + (size_t)i * SL_MAX_DRAFTED,
                   (size_t)d->wanted[i] * sizeof *rs->share);
    }
}

/* Nothing that a span of the pass wrote counts as written, whoever has its pages by now: where
 * nobody waited for the pass its sequence may have given them back, and others may have found them.
 */
static void distrust(struct sl_drafter *d, const struct sl_span *s, int32_t bs, int32_t n_pages)
{
    const int32_t *table = d->tables + s->table_idx;
    SL_ASSERT(s->n > 0 && s->pos >= 0);
    for (int32_t i = s->pos / bs; i <= (s->pos + s->n - 1) / bs; i++)
        if (table[i] < n_pages) /* else it is a spare one */
            d->pages[table[i]] = (struct sl_draft_page){.writer = 0};
}

/* No output depends on it. */
static void lose_pass(struct sl_engine *eng, const struct sl_error *err)
{
    struct sl_drafter *d = eng->drafter;
    for (int32_t i = 0; i < d->pass.batch.n_spans; i++) {
        if (!eng->runner.draft_rows)
            distrust(d, &d->spans[i], eng->info.block_size, eng->kv.groups[0].cfg.n_pages);
        if (d->of[i] != NULL)
            d->of[i]->model.n = d->of[i]->model.n_fed = 0;
    }
    sl_log(SL_LOG_WARN, "drafts failed: %s", err->msg);
}

/* Is what it makes known early enough when the step behind it has landed? */
static bool may_be_late(const struct sl_engine *eng)
{
    const struct sl_drafter *d = eng->drafter;
    bool may = eng->runner.draft_end != NULL && d->pass.batch.n_logits > 0;
    for (int32_t i = 0; i < d->pass.batch.n_logits && may; i++) {
        const struct sl_rseq *rs = d->of[i];
        may = rs->mask == NULL && rs->counts.slots == NULL && rs->bans == NULL;
    }
    return may;
}

static void price_pass(struct sl_engine *eng)
{
    if (!sl_engine_prices_drafts(eng))
        return;
    learn_pass(eng);
    pay_pass(eng);
}

void sl_engine_draft_forget(struct sl_engine *eng, const struct sl_rseq *rs)
{
    struct sl_drafter *d = eng->drafter;
    if (d == NULL || !d->open)
        return;
    for (int32_t i = 0; i < d->pass.batch.n_spans; i++)
        if (d->of[i] == rs)
            d->of[i] = NULL;
}

double sl_engine_draft_end(struct sl_engine *eng)
{
    struct sl_drafter *d = eng->drafter;
    struct sl_error err;
    double seconds = 0;
    if (d == NULL || !d->open)
        return 0;
    d->open = false;
    sl_engine_leave(eng);
    const int rc = eng->runner.draft_end(eng->runner.ctx, &d->pass, &err);
    sl_engine_return(eng);
    if (rc != 0) {
        lose_pass(eng, &err);
        return 0;
    }
    price_pass(eng);
    for (int32_t i = 0; i < d->pass.batch.n_logits; i++) {
        if (d->of[i] == NULL)
            continue;
        SL_ASSERT(d->of[i]->seq.state != SL_SEQ_FINISHED);
        memcpy(d->of[i]->drafts, d->drafts + (size_t)i * SL_MAX_DRAFTED,
               (size_t)d->wanted[i] * sizeof *d->drafts);
    }
    for (int32_t k = 0; k < SL_MAX_DRAFTED; k++)
        seconds += d->pass.seconds[k];
    return seconds;
}

void sl_engine_draft_launch(struct sl_engine *eng)
{
    struct sl_drafter *d = eng->drafter;
    if (d != NULL && d->open && d->n_behind++ > 0)
        (void)sl_engine_draft_end(eng);
}

static void run_pass(struct sl_engine *eng)
{
    struct sl_drafter *d = eng->drafter;
    struct sl_error err;
    d->pass.wanted = d->wanted;
    d->pass.drafts = d->drafts;
    d->pass.odds = d->odds;
    d->pass.late = may_be_late(eng);
    SL_ASSERT(!d->open);
    SL_ASSERT(eng->n_flights == 0); /* what is known of each text is all of it */
    sl_engine_part(eng, SL_PART_DEVICE);
    sl_engine_leave(eng);
    const int rc = eng->runner.draft(eng->runner.ctx, &d->pass, &err);
    sl_engine_return(eng);
    sl_engine_part(eng, SL_PART_OUTPUT);
    eng->ahead.pass_s += (double)(sl_now_ns() - eng->now_ns) / 1e9;
    eng->now_ns = sl_now_ns();
    if (rc != 0) {
        lose_pass(eng, &err);
        return;
    }
    d->open = d->pass.late;
    d->n_behind = 0;
    if (!d->open)
        price_pass(eng);
    take_pass(eng);
}

/* Its drafts are there, or there are none. */
static void ask_masks(struct sl_engine *eng, struct sl_flight *f, int32_t n_seqs)
{
    for (int32_t i = 0; i < n_seqs; i++) {
        struct sl_rseq *rs = f->seqs[i].rs;
        if (rs == NULL || !rs->model.mask_due)
            continue;
        rs->model.mask_due = false;
        if (rs->seq.state != SL_SEQ_FINISHED)
            sl_masker_push(eng, rs, rs->mask_token, rs->n_new);
    }
}

void sl_engine_draft(struct sl_engine *eng, struct sl_flight *f, int32_t n_seqs)
{
    if (eng->drafter == NULL)
        return;
    if (eng->n_flights > 0) { /* nobody waited for f, and its rows may be gone */
        ask_masks(eng, f, n_seqs);
        return;
    }
    if (eng->runner.draft_rows) {
        find_rows(eng, f, n_seqs);
        if (!eng->runner.draft_borrows)
            choose_rows(eng);
    }
    choose_drafts(eng);
    build_pass(eng);
    if (eng->drafter->pass.batch.n_tokens > 0)
        run_pass(eng);
    ask_masks(eng, f, n_seqs);
}

/* As choose_rows will decide. */
static bool awaits_rows(const struct sl_engine *eng, const struct sl_flight_seq *fs)
{
    const struct sl_rseq *rs = fs->rs;
    const struct sl_draft_seq *m = &rs->model;
    const bool met = m->writer != 0 && m->epoch == rs->seq.n_preempted;
    double seconds;
    if (rs->seq.state != SL_SEQ_RUNNING || rs->seq.n_preempted != fs->epoch || fs->n == 0)
        return false;
    if (fs->pos > 0 && met && m->n_fed == fs->pos)
        return eng->fund.step_s == 0 || sl_fund_most(&eng->fund, rs->credit) > 0;
    return drafter_would_lend(eng, rs, fs->pos, fs->n, TRIAL_ROWS * eng->fund.token_s, &seconds);
}

/* As choose_drafts will, but for what the step is still to choose. */
static bool awaits_drafts(struct sl_engine *eng, const struct sl_flight_seq *fs)
{
    struct sl_rseq *rs = fs->rs;
    double seconds;
    if (rs->seq.state != SL_SEQ_RUNNING || rs->seq.n_preempted != fs->epoch || fs->n_picks == 0 ||
        rs->req->mode->propose == NULL || sl_engine_n_drafts(eng, rs) == 0)
        return false;
    if (!sl_engine_prices_drafts(eng))
        return true;
    if (eng->runner.draft_borrows)
        return sl_fund_most(&eng->fund, rs->credit) > 0;
    rs->model.has = drafter_has(eng, rs);
    const int32_t n = drafter_lacks(rs) + 1;
    return n <= LACKS_USUALLY
               ? sl_fund_most(&eng->fund, rs->credit) > 0
               : drafter_would_lend(eng, rs, rs->model.has, n, TRIAL * eng->fund.token_s, &seconds);
}

bool sl_engine_draft_awaits(struct sl_engine *eng, const struct sl_flight *f)
{
    const bool rows = eng->runner.draft_rows && !eng->runner.draft_borrows,
               priced = sl_engine_prices_drafts(eng);
    bool awaits = rows && !priced;
    SL_ASSERT(eng->drafter != NULL && eng->n_flights == 1);
    if (!rows && sl_engine_is_plain(eng))
        return false;
    for (int32_t i = 0; i < f->n_seqs && !awaits; i++)
        awaits = f->seqs[i].rs != NULL &&
                 (rows ? awaits_rows(eng, &f->seqs[i]) : awaits_drafts(eng, &f->seqs[i]));
    return awaits;
}

int32_t sl_draft_waiting(const struct sl_rseq *rs, int32_t n)
{
    const struct sl_draft_seq *m = &rs->model;
    return m->at == sl_seq_n_known(&rs->seq) && rs->seq.n_pending == 0 ? SL_MIN(n, m->n) : 0;
}

static int32_t propose_model(struct sl_engine *eng, struct sl_rseq *rs, int32_t n)
{
    (void)eng;
    return sl_draft_waiting(rs, n);
}

const struct sl_mode sl_mode_model = {.propose = propose_model, .consume = sl_generate_consume};
