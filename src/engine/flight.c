/* SPDX-License-Identifier: MIT
 * Builds the batch of a plan, hands it to the runner, and gets the tokens. Nothing here allocates
 * after init.
 */
#include "engine/flight.h"

#include "base/check.h"
#include "base/sys.h"
#include "engine/core.h"

#include <string.h>

static int init_lora(struct sl_flight *f, const struct sl_engine *eng, struct sl_error *err)
{
    const struct sl_model_info *i = &eng->info;
    f->lora = sl_calloc(1, sizeof *f->lora);
    if (f->lora == NULL)
        return sl_fail(err, SL_ENOMEM, "out of memory for the adapters of a step");
    return sl_flight_lora_init(f->lora, sl_adapters_config(eng->adapters)->max_active,
                               i->max_num_batched_tokens, eng->runner.max_logits, i->max_num_seqs,
                               err);
}

int sl_flight_init(struct sl_flight *f, const struct sl_engine *eng, struct sl_error *err)
{
    const struct sl_model_info *i = &eng->info;
    size_t n_tokens = (size_t)i->max_num_batched_tokens, n_seqs = (size_t)i->max_num_seqs;
    size_t n_rows = (size_t)eng->runner.max_logits;
    size_t n_table = n_seqs * (size_t)SL_CEIL_DIV(i->max_model_len, i->block_size) + n_rows;
    SL_ASSERT(n_rows >= n_seqs && n_tokens >= n_seqs);
    *f = (struct sl_flight){0};
    if (n_table > INT32_MAX / SL_MAX_KV_GROUPS)
        return sl_fail(err, SL_ELIMIT,
                       "max_num_seqs = %d with max_model_len = %d needs too much memory",
                       i->max_num_seqs, i->max_model_len);
    f->table_stride = (int32_t)n_table;
    f->tables_bytes = (size_t)eng->info.n_kv_groups * n_table * sizeof *f->tables;
    f->tokens = sl_calloc(n_tokens, sizeof *f->tokens);
    f->positions = sl_calloc(n_tokens, sizeof *f->positions);
    f->spans = sl_calloc(n_seqs, sizeof *f->spans);
    f->tables = sl_aligned_alloc(f->tables_bytes);
    f->logit_rows = sl_calloc(n_rows, sizeof *f->logit_rows);
    f->picks = sl_calloc(n_rows, sizeof *f->picks);
    f->picked = sl_calloc(n_rows, sizeof *f->picked);
    f->seqs = sl_calloc(n_seqs, sizeof *f->seqs);
    f->second_from = sl_calloc(n_seqs, sizeof *f->second_from);
    int rc = eng->adapters != NULL ? init_lora(f, eng, err) : 0;
    if (rc != 0) {
        sl_flight_deinit(f);
        return rc;
    }
    if (f->tokens != NULL && f->positions != NULL && f->spans != NULL && f->tables != NULL &&
        f->logit_rows != NULL && f->picks != NULL && f->picked != NULL && f->seqs != NULL &&
        f->second_from != NULL)
        return 0;
    sl_flight_deinit(f);
    return sl_fail(err, SL_ENOMEM, "out of memory for a batch of %zu tokens", n_tokens);
}

void sl_flight_deinit(struct sl_flight *f)
{
    if (f->lora != NULL)
        sl_flight_lora_deinit(f->lora);
    sl_free(f->lora);
    sl_free(f->second_from);
    sl_free(f->seqs);
    sl_free(f->picked);
    sl_free(f->picks);
    sl_free(f->logit_rows);
    sl_aligned_free(f->tables, f->tables_bytes);
    sl_free(f->spans);
    sl_free(f->positions);
    sl_free(f->tokens);
    *f = (struct sl_flight){0};
}

void sl_flight_forget(struct sl_flight *f, const struct sl_rseq *rs)
{
    for (int32_t i = 0; i < f->n_seqs; i++)
        if (f->seqs[i].rs == rs)
            f->seqs[i].rs = NULL;
}

/* ------------------------------------------------------------------ batch */

/* Does the row at position pos of a sequence choose a token? The row of the last known token does,
 * and the rows of its drafts. */
static bool is_pick(const struct sl_seq *seq, int32_t pos)
{
    return pos + 1 + seq->n_drafted >= sl_seq_n_tokens(seq);
}

/* With prompt_logprobs every row that predicts a prompt token is wanted too. */
static bool wants_row(const struct sl_seq *seq, int32_t pos)
{
    return is_pick(seq, pos) || (seq->all_logits && pos + 1 < seq->n_prompt);
}

/* The span's part of each group's table: the pages of its blocks, and those for the states behind
 * its drafts. Returns how many ids it has. */
static int32_t put_tables(const struct sl_engine *eng, const struct sl_seq *seq, int32_t n_drafts,
                          int32_t *tables, int32_t stride)
{
    const struct sl_kv_blocks *b = &seq->blocks;
    const int32_t n_blocks = SL_CEIL_DIV(seq->n_computed + seq->n_step, eng->info.block_size);
    for (int32_t g = 0; g < eng->info.n_kv_groups; g++, tables += stride) {
        memcpy(tables, b->pages[g], (size_t)n_blocks * sizeof *tables);
        const bool states = eng->kv.groups[g].cfg.kind == SL_GROUP_STATE;
        for (int32_t i = 0; i < n_drafts; i++)
            tables[n_blocks + i] = states ? b->drafts[i] : SL_NO_PAGE;
    }
    return n_blocks + n_drafts;
}

static void build_batch(struct sl_engine *eng, struct sl_flight *f)
{
    int32_t n_tokens = 0, n_table = 0, n_rows = 0;
    struct sl_flight_lora *lora = f->lora;
    if (lora != NULL)
        sl_flight_lora_order(lora, &eng->sched);
    for (int32_t i = 0; i < eng->sched.n_plan; i++) {
        struct sl_seq *seq = eng->sched.plan[i];
        const int32_t n_drafts = seq->blocks.n_drafts; /* where there are states */
        f->seqs[i] = (struct sl_flight_seq){.rs = sl_rseq_of(seq),
                                            .pos = seq->n_computed,
                                            .n = seq->n_step,
                                            .row = n_rows,
                                            .epoch = seq->n_preempted};
        f->spans[i] = (struct sl_span){.first = n_tokens,
                                       .n = seq->n_step,
                                       .pos = seq->n_computed,
                                       .table_idx = n_table,
                                       .n_drafts = n_drafts};
        SL_ASSERT(seq->state == SL_SEQ_RUNNING && seq->n_step > n_drafts && !seq->waits);
        SL_ASSERT(n_drafts == (sl_sched_has_states(&eng->sched) ? seq->n_drafted : 0));
        const int32_t second = sl_rseq_of(seq)->req->second_from;
        f->second_from[i] = second > 0 ? second : INT32_MAX;
        n_table += put_tables(eng, seq, n_drafts, f->tables + n_table, f->table_stride);
        for (int32_t j = 0; j < seq->n_step; j++, n_tokens++) {
            int32_t pos = seq->n_computed + j;
            f->tokens[n_tokens] = sl_seq_token(seq, pos);
            SL_DCHECK(f->tokens[n_tokens] >= 0 || seq->n_pending > 0 || seq->n_drafted > 0);
            f->positions[n_tokens] = pos;
            f->seqs[i].n_picks += is_pick(seq, pos);
            if (wants_row(seq, pos))
                f->logit_rows[n_rows++] = n_tokens;
        }
        f->seqs[i].n_rows = n_rows - f->seqs[i].row;
        if (lora == NULL)
            continue;
        sl_flight_lora_put(lora, &lora->tokens, f->spans[i].first, seq->n_step, &eng->sched, i);
        sl_flight_lora_put(lora, &lora->logits, f->seqs[i].row, f->seqs[i].n_rows, &eng->sched, i);
    }
    SL_ASSERT(n_rows <= eng->sched.cfg.max_logits);
    SL_ASSERT(n_tokens == eng->sched.n_plan_tokens && n_tokens <= eng->sched.cfg.max_tokens);
    SL_ASSERT(n_table <= f->table_stride);
    f->n_seqs = eng->sched.n_plan;
    f->batch = (struct sl_batch){.n_tokens = n_tokens,
                                 .n_spans = eng->sched.n_plan,
                                 .n_logits = n_rows,
                                 .slot = eng->sched.group,
                                 .tokens = f->tokens,
                                 .positions = f->positions,
                                 .spans = f->spans,
                                 .block_tables = f->tables,
                                 .n_tables = eng->info.n_kv_groups,
                                 .table_stride = f->table_stride,
                                 .logit_rows = f->logit_rows,
                                 .second_from = eng->limits.pairs ? f->second_from : NULL};
    if (lora != NULL) {
        f->batch.lora = sl_flight_lora_rows(lora, &lora->tokens);
        f->batch.logit_lora = sl_flight_lora_rows(lora, &lora->logits);
    }
}

/* Does the output end in all of a bad word but its last token? */
static bool word_is_due(const struct sl_seq *seq, const struct sl_bad_word *w, int32_t n_ahead)
{
    int32_t n = w->n_ids - 1, n_out = seq->n_out + n_ahead;
    bool due = n <= n_out;
    for (int32_t i = 0; i < n && due; i++)
        due = sl_seq_token(seq, seq->n_prompt + n_out - n + i) == w->ids[i];
    return due;
}

/* Into bans: stop ids while they may not end the text, and ends of bad words. */
static int32_t collect_bans(const struct sl_rseq *rs, bool stops, int32_t n_ahead, int32_t *bans)
{
    const struct sl_sampling *p = &rs->req->sampling;
    int32_t n = stops ? p->n_stop_token_ids : 0;
    for (int32_t i = 0; i < n; i++)
        bans[i] = p->stop_token_ids[i];
    for (int32_t i = 0; i < p->n_bad_words; i++)
        if (word_is_due(&rs->seq, &p->bad_words[i], n_ahead))
            bans[n++] = p->bad_words[i].ids[p->bad_words[i].n_ids - 1];
    SL_ASSERT(n <= rs->req->n_bans);
    return n;
}

static const uint32_t *mask_of(const struct sl_engine *eng, const struct sl_rseq *rs, int32_t pos)
{
    const int32_t i = pos - rs->mask_at;
    SL_ASSERT(i >= 0 && i <= rs->n_masked);
    return rs->mask + (size_t)i * (size_t)SL_CEIL_DIV(eng->limits.n_logits, 32);
}

struct sl_sample_args sl_flight_args(const struct sl_engine *eng, struct sl_rseq *rs, int32_t pos,
                                     int32_t n_ahead)
{
    const struct sl_sampling *p = &rs->req->sampling;
    const bool ban = pos - rs->seq.n_prompt < p->min_tokens;
    SL_ASSERT(pos >= rs->seq.n_prompt);
    SL_ASSERT(n_ahead >= 0 && n_ahead <= eng->speculative.num_speculative_tokens);
    int32_t *bans = rs->bans != NULL ? rs->bans + n_ahead * rs->req->n_bans : NULL;
    int32_t n_stops = bans != NULL ? collect_bans(rs, ban, n_ahead, bans)
                      : ban        ? p->n_stop_token_ids
                                   : 0;
    return (struct sl_sample_args){
        .sampling = p,
        .seed = rs->seed,
        .pos = (uint64_t)pos,
        .counts = rs->counts.slots != NULL ? &rs->counts : NULL,
        .ahead = rs->drafts,
        .n_ahead = n_ahead,
        .allowed = rs->mask != NULL ? mask_of(eng, rs, pos) : rs->req->allowed,
        .banned = {bans != NULL ? bans : p->stop_token_ids, eng->eos_ids},
        .n_banned = {n_stops, ban && !p->ignore_eos ? eng->n_eos_ids : 0},
    };
}

static void skip_all(struct sl_flight *f)
{
    for (int32_t i = 0; i < f->batch.n_logits; i++)
        f->picks[i] = (struct sl_pick){.given = -1, .n_top = -1, .skip = true};
}

/* Rows of sequences that have ended, and rows that were rolled back, are skipped. */
static void build_picks(struct sl_engine *eng, struct sl_flight *f)
{
    skip_all(f);
    for (int32_t i = 0; i < f->n_seqs; i++) {
        const struct sl_flight_seq *fs = &f->seqs[i];
        if (fs->rs == NULL)
            continue;
        const struct sl_request *req = fs->rs->req;
        SL_ASSERT(fs->n_picks <= fs->n_rows && fs->row + fs->n_rows <= f->batch.n_logits);
        struct sl_pick *pick = f->picks + fs->row;
        for (int32_t j = 0; j < fs->n_rows - fs->n_picks; j++, pick++)
            *pick =
                (struct sl_pick){.given = req->prompt[fs->pos + j + 1], .n_top = req->n_prompt_top};
        for (int32_t j = 0; j < fs->n_picks; j++, pick++)
            *pick = (struct sl_pick){.how = sl_flight_args(eng, fs->rs, sl_flight_first(fs) + j, j),
                                     .given = -1,
                                     .n_top = fs->rs->logprobs != NULL ? req->n_top : -1,
                                     .top_ids = req->sampling.n_logprob_token_ids > 0
                                                    ? req->sampling.logprob_token_ids
                                                    : NULL};
    }
}

/* Does the choice of some token depend on one that a step in flight chooses? */
static bool needs_pending(const struct sl_engine *eng, const struct sl_flight *f)
{
    for (int32_t i = 0; i < f->n_seqs; i++) {
        const struct sl_rseq *rs = f->seqs[i].rs;
        bool depends = rs->mask != NULL || rs->req->long_bad_words ||
                       (rs->counts.slots != NULL && eng->runner.forget == NULL);
        if (f->seqs[i].n_picks > 0 && depends && rs->seq.n_pending > 0)
            return true;
    }
    return false;
}

int sl_flight_launch(struct sl_engine *eng, struct sl_flight *f, struct sl_error *err)
{
    const struct sl_runner *r = &eng->runner;
    build_batch(eng, f);
    /* Where a step computes in the call, nothing is gained by saying before it what is wanted. */
    f->undecided = !r->blind && (eng->max_flights == 1 || needs_pending(eng, f));
    const bool picks = !r->blind && !f->undecided;
    if (picks)
        build_picks(eng, f);
    sl_engine_part(eng, SL_PART_DEVICE);
    sl_engine_leave(eng);
    int rc = r->submit(r->ctx, &f->batch, picks ? f->picks : NULL, err);
    sl_engine_return(eng);
    sl_engine_part(eng, SL_PART_HOST);
    return rc;
}

static int choose_picks(struct sl_engine *eng, struct sl_flight *f, struct sl_error *err)
{
    SL_ASSERT(f->undecided);
    f->undecided = false;
    sl_engine_part(eng, SL_PART_SAMPLE);
    sl_engine_leave(eng);
    int rc = eng->runner.choose(eng->runner.ctx, f->picks, err);
    sl_engine_return(eng);
    sl_engine_part(eng, SL_PART_HOST);
    return rc;
}

int sl_flight_choose(struct sl_engine *eng, struct sl_flight *f, struct sl_error *err)
{
    build_picks(eng, f);
    return choose_picks(eng, f, err);
}

static void drop_pick(struct sl_flight_seq *fs)
{
    struct sl_seq *seq = &fs->rs->seq;
    SL_ASSERT(fs->n_picks == 1 && fs->epoch == seq->n_preempted);
    SL_ASSERT(seq->n_pending > 0 && fs->n > 0 && fs->n_rows > 0);
    seq->n_pending--;
    fs->n_rows--;
    fs->n_picks = 0;
}

void sl_flight_rollback(struct sl_engine *eng, struct sl_flight_seq *fs)
{
    struct sl_seq *seq = &fs->rs->seq;
    drop_pick(fs);
    if (sl_sched_has_states(&eng->sched)) {
        sl_sched_requeue(&eng->sched, seq, false);
        /* What its next token is chosen by is late: not to come to that again. */
        SL_ASSERT(!fs->rs->never_ahead);
        seq->holds = fs->rs->never_ahead = true;
        return;
    }
    sl_sched_rollback(&eng->sched, seq, 1);
    fs->n--;
}

void sl_flight_unpick(struct sl_engine *eng, struct sl_flight_seq *fs)
{
    if (sl_sched_has_states(&eng->sched))
        drop_pick(fs);
    else
        sl_flight_rollback(eng, fs);
}

int sl_flight_land(struct sl_engine *eng, struct sl_flight *f, struct sl_error *err)
{
    int rc = 0;
    if (f->undecided) { /* the step before it failed, so nobody wants its tokens */
        skip_all(f);
        rc = choose_picks(eng, f, err);
    }
    if (rc != 0)
        return rc;
    sl_engine_part(eng, SL_PART_DEVICE);
    sl_engine_leave(eng);
    rc = eng->runner.collect(eng->runner.ctx, f->picked, err);
    sl_engine_return(eng);
    return rc;
}
