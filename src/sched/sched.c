/* SPDX-License-Identifier: MIT */
#include "sched/sched.h"

#include "base/check.h"
#include "base/sys.h"

#include <string.h>

#define LEAST_CHUNK 16 /* tokens */

int sl_sched_init(struct sl_sched *s, const struct sl_sched_config *cfg, struct sl_kv *kv,
                  struct sl_error *err)
{
    SL_ASSERT(cfg->max_seqs > 0 && cfg->max_tokens >= cfg->max_seqs);
    SL_ASSERT(cfg->max_logits >= cfg->max_seqs);
    *s = (struct sl_sched){.cfg = *cfg, .kv = kv};
    s->running = sl_calloc((size_t)cfg->max_seqs, sizeof(struct sl_seq *));
    s->plan = sl_calloc((size_t)cfg->max_seqs, sizeof(struct sl_seq *));
    s->expected_refs = sl_calloc((size_t)kv->pool.n_pages, sizeof *s->expected_refs);
    if (s->running == NULL || s->plan == NULL || s->expected_refs == NULL) {
        sl_sched_deinit(s);
        return sl_fail(err, SL_ENOMEM, "out of memory for a scheduler of %d sequences",
                       cfg->max_seqs);
    }
    return 0;
}

void sl_sched_deinit(struct sl_sched *s)
{
    sl_free(s->expected_refs);
    sl_free(s->plan);
    sl_free(s->running);
    *s = (struct sl_sched){0};
}

int64_t sl_sched_limit(const struct sl_sched *s)
{
    return (int64_t)s->kv->pool.n_pages * s->kv->block_size;
}

static int32_t pages_for(const struct sl_sched *s, int32_t n_tokens)
{
    return SL_CEIL_DIV(n_tokens, s->kv->block_size);
}

void sl_sched_add(struct sl_sched *s, struct sl_seq *seq)
{
    SL_ASSERT(seq->state == SL_SEQ_NEW && seq->n_prompt > 0);
    SL_ASSERT(sl_seq_n_tokens(seq) <= sl_sched_limit(s));
    seq->state = SL_SEQ_WAITING;
    seq->n_cached = -1;
    sl_wait_push(&s->wait, seq);
}

static int32_t running_index(const struct sl_sched *s, const struct sl_seq *seq)
{
    int32_t i = 0;
    while (s->running[i] != seq) {
        i++;
        SL_ASSERT(i < s->n_running);
    }
    return i;
}

/* Takes seq off the running list and its pages away. */
static void stop_running(struct sl_sched *s, struct sl_seq *seq, bool forget)
{
    SL_ASSERT(seq->state == SL_SEQ_RUNNING);
    int32_t i = running_index(s, seq);
    memmove(s->running + i, s->running + i + 1,
            (size_t)(s->n_running - i - 1) * sizeof(struct sl_seq *));
    s->n_running--;
    s->n_stops++;
    sl_kv_give(s->kv, seq->pages, seq->n_pages, forget);
    seq->n_pages = seq->n_published = seq->n_computed = seq->n_step = 0;
}

void sl_sched_finish(struct sl_sched *s, struct sl_seq *seq, bool forget)
{
    if (seq->state == SL_SEQ_WAITING)
        sl_wait_remove(&s->wait, seq);
    else if (seq->state == SL_SEQ_RUNNING)
        stop_running(s, seq, forget);
    seq->state = SL_SEQ_FINISHED;
}

static void preempt(struct sl_sched *s, struct sl_seq *seq, bool forget)
{
    stop_running(s, seq, forget);
    if (seq->n_pending == 0) /* else a step in flight has the drafts */
        seq->n_drafted = 0;
    seq->state = SL_SEQ_WAITING;
    seq->blocked_at = 0;
    seq->n_preempted++;
    s->n_preemptions++;
    sl_wait_push(&s->wait, seq);
}

void sl_sched_requeue(struct sl_sched *s, struct sl_seq *seq)
{
    if (seq->state == SL_SEQ_RUNNING)
        preempt(s, seq, true);
}

void sl_sched_raise(struct sl_sched *s, struct sl_seq *seq)
{
    SL_ASSERT(seq->state == SL_SEQ_WAITING);
    sl_wait_remove(&s->wait, seq);
    seq->priority = INT32_MIN;
    sl_wait_push(&s->wait, seq);
}

static struct sl_seq *worst_running(const struct sl_sched *s)
{
    return s->n_running > 0 ? s->running[s->n_running - 1] : NULL;
}

/* What admitted sequences may soon need: one page each. Keeping it free when admitting prevents
 * admitting a prompt only to preempt it a few steps later. */
static int32_t reserve(const struct sl_sched *s)
{
    return s->n_running;
}

/* An adapter is counted where it stands first in the list of what runs. */
bool sl_sched_adapter_fits(const struct sl_sched *s, const struct sl_seq *seq)
{
    int32_t n = 0;
    if (seq->adapter == 0)
        return true;
    for (int32_t i = 0; i < s->n_running; i++) {
        const uint64_t id = s->running[i]->adapter;
        if (id == seq->adapter)
            return true;
        int32_t j = 0;
        while (s->running[j]->adapter != id)
            j++;
        n += id != 0 && j == i;
    }
    return n < s->cfg.max_adapters;
}

/* A better priority does not wait for a worse one to finish: it takes its seat and its pages. */
static void make_way(struct sl_sched *s)
{
    struct sl_seq *best = sl_wait_best(&s->wait), *worst;
    if (best == NULL)
        return;
    while ((worst = worst_running(s)) != NULL && worst->priority > best->priority) {
        int32_t need = pages_for(s, sl_seq_n_tokens(best)) + reserve(s);
        if (s->n_running < s->cfg.max_seqs && sl_kv_ensure(s->kv, need) &&
            sl_sched_adapter_fits(s, best))
            break;
        preempt(s, worst, false);
    }
}

static void plan_add(struct sl_sched *s, struct sl_seq *seq, int32_t n)
{
    SL_ASSERT(n > 0 && seq->n_computed + n <= sl_seq_n_tokens(seq));
    SL_ASSERT(seq->n_computed + n <= seq->n_pages * s->kv->block_size);
    SL_ASSERT(s->n_plan < s->cfg.max_seqs && s->n_plan_tokens + n <= s->cfg.max_tokens);
    s->work = sl_work_add(s->work, seq->n_computed, n);
    seq->n_step = n;
    s->plan[s->n_plan++] = seq;
    s->n_plan_tokens += n;
}

/* Gives seq pages for its new tokens; preempts from the end of the list. False: seq itself was the
 * last and had to go. */
static bool extend(struct sl_sched *s, struct sl_seq *seq)
{
    while (sl_seq_n_tokens(seq) > seq->n_pages * s->kv->block_size) {
        int32_t page = sl_kv_take(s->kv, SL_EVICT_OUTPUT);
        if (page != SL_NO_PAGE) {
            seq->pages[seq->n_pages++] = page;
            continue;
        }
        if (seq->n_drafted > 0) { /* nobody goes for the sake of a guess */
            int32_t room = seq->n_pages * s->kv->block_size - sl_seq_n_known(seq);
            seq->n_drafted = SL_MAX(room, 0);
            continue;
        }
        struct sl_seq *worst = worst_running(s);
        preempt(s, worst, false);
        if (worst == seq)
            return false;
    }
    return true;
}

/* Victims stand behind the current sequence, so none that is planned already is preempted. What has
 * got several tokens at once needs pages here too, and its chunk later. */
static void plan_decodes(struct sl_sched *s)
{
    for (int32_t i = 0; i < s->n_running; i++) {
        struct sl_seq *seq = s->running[i];
        if (!sl_seq_held(seq) && extend(s, seq) && sl_seq_decodes(seq))
            plan_add(s, seq, 1 + seq->n_drafted);
    }
}

/* What generates waits for the whole step. Where decodes alone take more than half of max_step_s,
 * chunks may double the step, so that a prompt does not wait for ever for those that came before
 * it. For this the decodes' time must have been measured: were it estimated, an estimate too high
 * would make steps longer, which then seem to confirm it. False: this step is to measure it. */
static bool limit_chunks(struct sl_sched *s)
{
    bool generates = false;
    for (int32_t i = 0; i < s->n_running && !generates; i++) {
        const struct sl_seq *seq = s->running[i];
        generates = seq->n_out + seq->n_pending > 0 &&
                    sl_seq_n_tokens(seq) - seq->n_computed <= 1 + seq->n_drafted;
    }
    s->limit_s = 0;
    if (!generates || s->cfg.max_step_s == 0 || s->cfg.whole_prompts)
        return true;
    s->limit_s = s->cfg.max_step_s;
    const double estimated = sl_cost_of(&s->cost, s->work);
    if (s->n_plan == 0 || 2 * estimated <= s->cfg.max_step_s)
        return true;
    const double measured = sl_cost_measured(&s->cost, s->work);
    s->limit_s = SL_MAX(s->limit_s, 2 * SL_MIN(estimated, measured));
    return measured > 0;
}

/* The next chunk of a prompt. A seat is a token and a row of logits that nobody else can use, so
 * the chunk is never empty, and a step's first has LEAST_CHUNK tokens whatever they cost. */
static int32_t chunk_of(struct sl_sched *s, const struct sl_seq *seq, int32_t n_unplanned,
                        int32_t *spare_rows)
{
    int32_t n = sl_seq_n_tokens(seq) - seq->n_computed;
    n = SL_MIN(n, s->cfg.max_tokens - s->n_plan_tokens - (n_unplanned - 1));
    if (s->limit_s > 0) {
        int32_t least = SL_MIN(n, s->n_chunks == 0 ? LEAST_CHUNK : 1);
        n = sl_cost_chunk(&s->cost, s->work, seq->n_computed, n, s->limit_s);
        n = SL_MAX(n, least);
    }
    s->n_chunks++;
    if (seq->all_logits) {
        n = SL_MIN(n, 1 + *spare_rows);
        *spare_rows -= n - 1;
    }
    return n;
}

static bool wants_chunk(const struct sl_seq *seq)
{
    return seq->n_step == 0 && !sl_seq_held(seq);
}

static void plan_prefills(struct sl_sched *s, int32_t *spare_rows)
{
    int32_t n_unplanned = 0;
    for (int32_t i = 0; i < s->n_running; i++)
        n_unplanned += wants_chunk(s->running[i]);
    for (int32_t i = 0; i < s->n_running; i++) {
        struct sl_seq *seq = s->running[i];
        if (wants_chunk(seq))
            plan_add(s, seq, chunk_of(s, seq, n_unplanned--, spare_rows));
    }
}

/* Pages for all tokens of seq: cached ones first, then fresh ones. At least one token is left to
 * compute, because nothing else gives its logits: a prompt that is cached to its end and ends with
 * a page recomputes that whole page into one of its own (pages in the tree are never written), and
 * publishing it finds the cached twin again. */
static bool take_pages(struct sl_sched *s, struct sl_seq *seq)
{
    int32_t n_tokens = sl_seq_n_tokens(seq), n_need = pages_for(s, n_tokens), n_hit = 0;
    if (!seq->all_logits) {
        struct sl_kv_text text = sl_seq_text(seq);
        int32_t max_hit = (n_tokens - 1) / s->kv->block_size;
        n_hit = sl_kv_match(s->kv, seq->ns, &text, max_hit, seq->pages);
    }
    if (!sl_kv_ensure(s->kv, n_need - n_hit + reserve(s))) {
        s->n_short = n_need - n_hit + reserve(s) - sl_kv_n_available(s->kv);
        sl_kv_give(s->kv, seq->pages, n_hit, false);
        seq->blocked_at = sl_sched_room(s);
        return false;
    }
    for (int32_t i = n_hit; i < n_need; i++) {
        seq->pages[i] = sl_kv_take(s->kv, SL_EVICT_PROMPT);
        SL_ASSERT(seq->pages[i] != SL_NO_PAGE);
    }
    seq->n_pages = n_need;
    seq->n_published = n_hit;
    seq->n_computed = n_hit * s->kv->block_size;
    if (seq->n_cached < 0)
        seq->n_cached = seq->n_computed;
    return true;
}

static void start_running(struct sl_sched *s, struct sl_seq *seq)
{
    int32_t i = s->n_running++;
    for (; i > 0 && sl_seq_before(seq, s->running[i - 1]); i--)
        s->running[i] = s->running[i - 1];
    s->running[i] = seq;
    seq->state = SL_SEQ_RUNNING;
}

static void plan_admissions(struct sl_sched *s, int32_t *spare_rows)
{
    struct sl_seq *seq;
    int32_t n_short = s->n_short;
    s->n_short = 0;
    while (s->n_running < s->cfg.max_seqs && s->n_plan_tokens < s->cfg.max_tokens &&
           (seq = sl_wait_best(&s->wait)) != NULL) {
        if (sl_seq_held(seq) || (s->n_running > 0 && seq->blocked_at == sl_sched_room(s))) {
            s->n_short = n_short; /* as before */
            break;
        }
        if (s->cfg.whole_prompts && sl_seq_n_tokens(seq) > s->cfg.max_tokens - s->n_plan_tokens)
            break; /* first in the next step, which it has to itself if need be */
        if (s->limit_s > 0 && s->n_chunks > 0 &&
            sl_cost_chunk(&s->cost, s->work, 0, LEAST_CHUNK, s->limit_s) < LEAST_CHUNK)
            break; /* this step is long enough */
        if (!sl_sched_adapter_fits(s, seq) || !take_pages(s, seq))
            break;
        sl_wait_remove(&s->wait, seq);
        start_running(s, seq);
        plan_add(s, seq, chunk_of(s, seq, 1, spare_rows));
    }
}

static bool someone_held(const struct sl_sched *s)
{
    const struct sl_seq *best = sl_wait_best(&s->wait);
    bool held = best != NULL && sl_seq_held(best);
    for (int32_t i = 0; i < s->n_running && !held; i++)
        held = sl_seq_held(s->running[i]);
    return held;
}

void sl_sched_plan(struct sl_sched *s)
{
    s->n_plan = s->n_plan_tokens = s->n_chunks = 0;
    s->work = (struct sl_work){0};
    for (int32_t i = 0; i < s->n_running; i++)
        s->running[i]->n_step = 0;
    make_way(s);
    uint64_t n_preemptions = s->n_preemptions;
    plan_decodes(s);
    int32_t spare_rows = s->cfg.max_logits - s->cfg.max_seqs - (s->n_plan_tokens - s->n_plan);
    bool short_of_pages = s->n_preemptions != n_preemptions;
    if (limit_chunks(s)) {
        plan_prefills(s, &spare_rows);
        /* Admitting in the step that preempted would take the pages just won. */
        if (!short_of_pages)
            plan_admissions(s, &spare_rows);
    }
    s->n_short = SL_MAX(s->n_short, reserve(s) - sl_kv_n_available(s->kv));
    SL_ASSERT(s->n_plan > 0 || sl_sched_idle(s) || someone_held(s));
}

void sl_sched_advance(struct sl_sched *s, struct sl_seq *seq)
{
    SL_ASSERT(seq->state == SL_SEQ_RUNNING && seq->n_step > 0);
    seq->n_computed += seq->n_step;
    seq->n_step = 0;
    SL_ASSERT(seq->n_computed <= seq->n_pages * s->kv->block_size);
}

void sl_sched_take_back(struct sl_sched *s, struct sl_seq *seq, int32_t n)
{
    SL_ASSERT(seq->state == SL_SEQ_RUNNING && seq->n_step == 0);
    SL_ASSERT(n >= 0 && n <= seq->n_computed);
    seq->n_computed -= n;
    SL_ASSERT(seq->n_published * s->kv->block_size <= seq->n_computed);
    int32_t n_need =
        SL_MIN(pages_for(s, SL_MAX(sl_seq_n_tokens(seq), seq->n_computed)), seq->n_pages);
    sl_kv_give(s->kv, seq->pages + n_need, seq->n_pages - n_need, false);
    seq->n_pages = n_need;
}

void sl_sched_publish(struct sl_sched *s, struct sl_seq *seq, int32_t n_done)
{
    SL_ASSERT(seq->state == SL_SEQ_RUNNING && n_done <= seq->n_computed);
    SL_ASSERT(n_done <= seq->n_prompt + seq->n_out);
    if (!seq->publish)
        return;
    struct sl_kv_text text = sl_seq_text(seq);
    while ((seq->n_published + 1) * s->kv->block_size <= n_done)
        sl_kv_publish(s->kv, seq->ns, &text, seq->pages, seq->n_published++);
}
