/* SPDX-License-Identifier: MIT */
#include "sched/sched.h"

#include "base/check.h"
#include "base/sys.h"

#include <string.h>

#define LEAST_CHUNK  16 /* tokens */
#define UNEVEN_SHARE 8  /* a group may be larger than another by one of so many members */

int sl_sched_init(struct sl_sched *s, const struct sl_sched_config *cfg, struct sl_kv *kv,
                  struct sl_error *err)
{
    SL_ASSERT(cfg->max_seqs > 0 && cfg->max_tokens >= cfg->max_seqs);
    SL_ASSERT(cfg->max_logits >= cfg->max_seqs);
    *s = (struct sl_sched){.cfg = *cfg, .kv = kv};
    s->cfg.n_groups = SL_MAX(cfg->n_groups, 1);
    SL_ASSERT(s->cfg.n_groups <= SL_MAX_STAGES);
    s->running = sl_calloc((size_t)cfg->max_seqs, sizeof(struct sl_seq *));
    s->plan = sl_calloc((size_t)cfg->max_seqs, sizeof(struct sl_seq *));
    s->expected =
        sl_calloc((size_t)kv->nodes.n_ids, (size_t)(1 + kv->n_groups) * sizeof *s->expected);
    if (s->running == NULL || s->plan == NULL || s->expected == NULL) {
        sl_sched_deinit(s);
        return sl_fail(err, SL_ENOMEM, "out of memory for a scheduler of %d sequences",
                       cfg->max_seqs);
    }
    return 0;
}

void sl_sched_deinit(struct sl_sched *s)
{
    sl_free(s->expected);
    sl_free(s->plan);
    sl_free(s->running);
    *s = (struct sl_sched){0};
}

int64_t sl_sched_limit(const struct sl_sched *s)
{
    return (int64_t)s->kv->nodes.n_ids * s->kv->block_size;
}

static int32_t blocks_for(const struct sl_sched *s, int32_t n_tokens)
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

/* Takes seq off the running list and its blocks away. */
static void stop_running(struct sl_sched *s, struct sl_seq *seq, bool forget)
{
    SL_ASSERT(seq->state == SL_SEQ_RUNNING);
    int32_t i = running_index(s, seq);
    memmove(s->running + i, s->running + i + 1,
            (size_t)(s->n_running - i - 1) * sizeof(struct sl_seq *));
    s->n_running--;
    s->n_members[seq->group]--;
    s->n_stops++;
    sl_kv_give(s->kv, &seq->blocks, 0, forget);
    seq->n_published = seq->n_computed = seq->n_step = 0;
    seq->stalled = false;
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

void sl_sched_requeue(struct sl_sched *s, struct sl_seq *seq, bool forget)
{
    if (seq->state == SL_SEQ_RUNNING)
        preempt(s, seq, forget);
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

/* What admitted sequences may soon need: one block each. Keeping it free when admitting prevents
 * admitting a prompt only to preempt it a few steps later. */
static int32_t sched_reserve(const struct sl_sched *s)
{
    return s->n_running;
}

/* A WINDOW or STATE group that may lack a page for a block that somebody holds. */
static bool is_scarce(const struct sl_sched *s, const struct sl_kv_group *g)
{
    return g->cfg.kind != SL_GROUP_FULL && g->cfg.n_pages < s->kv->nodes.n_ids;
}

/* Pages of such a group that seq counts with: of a WINDOW, once it computes its last token, of
 * states, ever. */
static int32_t page_count(const struct sl_sched *s, const struct sl_kv_group *g,
                          const struct sl_seq *seq)
{
    const bool states = g->cfg.kind == SL_GROUP_STATE;
    const int32_t n_tokens = states ? seq->n_prompt + seq->max_out : sl_seq_n_tokens(seq);
    return SL_MIN(blocks_for(s, n_tokens),
                  sl_group_least(&g->cfg, s->kv->nodes.n_ids, s->kv->block_size));
}

/* Of those, the ones that it does not have. */
static int32_t page_need(const struct sl_sched *s, const struct sl_kv_group *g,
                         const struct sl_seq *seq)
{
    return SL_MAX(page_count(s, g, seq) - seq->blocks.n_owned[g - s->kv->groups], 0);
}

/* Pages of states that seq shares with others: where it began, or where equal texts are. */
static int32_t n_shared(const struct sl_sched *s, const struct sl_kv_group *g,
                        const struct sl_seq *seq)
{
    const int32_t i = (int32_t)(g - s->kv->groups);
    const int32_t at[] = {seq->blocks.first[i], seq->blocks.end[i] - 1};
    int32_t n = 0;
    for (size_t k = 0; k < SL_COUNT(at) && at[k] >= 0 && (k == 0 || at[1] != at[0]); k++) {
        const int32_t page = at[k] < seq->blocks.end[i] ? seq->blocks.pages[i][at[k]] : SL_NO_PAGE;
        n += page != SL_NO_PAGE && g->pool.refs[page] > 1;
    }
    return n;
}

/* Pages of states that no running sequence may need soon: what others have, too, is no help to a
 * sequence that goes on from there. */
static int32_t n_spare(const struct sl_sched *s, const struct sl_kv_group *g)
{
    int32_t n = sl_group_n_room(g);
    for (int32_t k = 0; k < s->n_running; k++)
        n -= page_need(s, g, s->running[k]) + n_shared(s, g, s->running[k]);
    return n;
}

int32_t sl_sched_n_counted(const struct sl_sched *s, const struct sl_kv_group *g)
{
    int32_t n = 0;
    for (int32_t k = 0; k < s->n_running; k++)
        n += page_count(s, g, s->running[k]);
    return n;
}

/* Of states those that are owned more than once are there all the same when they are needed: each
 * sequence has at most as many as it counts with. */
static bool group_fits(const struct sl_sched *s, const struct sl_kv_group *g,
                       const struct sl_seq *seq)
{
    const bool states = g->cfg.kind == SL_GROUP_STATE;
    int32_t need = page_need(s, g, seq) + (states ? 0 : sched_reserve(s));
    for (int32_t k = 0; k < s->n_running; k++)
        need += page_need(s, g, s->running[k]);
    if (states && sl_sched_n_counted(s, g) + page_count(s, g, seq) > g->cfg.n_pages)
        return false;
    return need <= sl_group_n_room(g);
}

bool sl_sched_pages_fit(const struct sl_sched *s, const struct sl_seq *seq)
{
    bool fits = true;
    for (int32_t i = 0; i < s->kv->n_groups && fits; i++)
        fits = !is_scarce(s, &s->kv->groups[i]) || group_fits(s, &s->kv->groups[i], seq);
    return fits;
}

/* Can seq get another page of states: one that it counts with, or one that is to spare? */
static bool may_take_state(const struct sl_sched *s, const struct sl_kv_group *g,
                           const struct sl_seq *seq)
{
    return (page_need(s, g, seq) > 0 ? sl_group_n_room(g) : n_spare(s, g)) > 0;
}

/* Does the next token need a page of states that seq does not count with, while none is to spare?
 * Then it has two, and a step in flight begins at one of them, which its landing frees. */
static bool must_land(const struct sl_sched *s, const struct sl_seq *seq)
{
    const int32_t i = s->kv->n_groups - 1;
    const struct sl_kv_group *g = &s->kv->groups[i];
    return g->cfg.kind == SL_GROUP_STATE && is_scarce(s, g) &&
           seq->n_computed / s->kv->block_size >= seq->blocks.end[i] && page_need(s, g, seq) == 0 &&
           !may_take_state(s, g, seq);
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

/* Can seq have n blocks, if need be of leases? While it waits of those that come after it in the
 * queue; of any where nothing runs that could give some back, or whoever runs would go for it. What
 * running sequences may soon need may be leased meanwhile: leases fall for it. */
static bool claim_blocks(struct sl_sched *s, const struct sl_seq *seq, int32_t n, bool any)
{
    const struct sl_kv_claim claim = {
        .any = any || s->n_running == 0, .priority = seq->priority, .arrival = seq->arrival};
    const int32_t spare = SL_MAX(sched_reserve(s) - s->kv->leases.n_kept, 0);
    return sl_kv_ensure(s->kv, n + spare) || sl_kv_fall(s->kv, n + spare, &claim);
}

/* A better priority does not wait for a worse one to finish: it takes its seat and its blocks. */
static void make_way(struct sl_sched *s)
{
    struct sl_seq *best = sl_wait_best(&s->wait), *worst;
    if (best == NULL)
        return;
    while ((worst = worst_running(s)) != NULL && worst->priority > best->priority) {
        int32_t need = blocks_for(s, sl_seq_n_tokens(best));
        if (s->n_running < s->cfg.max_seqs && claim_blocks(s, best, need, true) &&
            sl_sched_pages_fit(s, best) && sl_sched_adapter_fits(s, best))
            break;
        preempt(s, worst, false);
    }
}

/* Wanted checkpoints that n more tokens pass by, as far as no running sequence needs their pages.
 */
static void add_checkpoints(struct sl_sched *s, struct sl_seq *seq, int32_t n)
{
    const int32_t from = seq->n_computed;
    int32_t n_wanted = sl_kv_n_wanted(s->kv, &seq->blocks, from, from + n);
    if (n_wanted > 0 && seq->publish)
        sl_kv_checkpoint(s->kv, &seq->blocks, from, from + n,
                         n_spare(s, &s->kv->groups[s->kv->n_groups - 1]));
}

static void plan_add(struct sl_sched *s, struct sl_seq *seq, int32_t n)
{
    SL_ASSERT(n > 0 && seq->n_computed + n <= sl_seq_n_tokens(seq));
    SL_ASSERT(seq->n_computed + n <= seq->blocks.n * s->kv->block_size);
    SL_ASSERT(s->n_plan < s->cfg.max_seqs && s->n_plan_tokens + n <= s->cfg.max_tokens);
    const bool covered =
        sl_kv_cover(s->kv, &seq->blocks, seq->n_computed, blocks_for(s, seq->n_computed + n));
    SL_ASSERT(covered);
    add_checkpoints(s, seq, n);
    s->work = sl_work_add(s->work, seq->n_computed, n);
    seq->n_step = n;
    s->plan[s->n_plan++] = seq;
    s->n_plan_tokens += n;
}

/* Nobody goes for the sake of a guess: as many drafts are dropped as blocks are missing, or all
 * where it is pages of windows that are. */
static void drop_drafts(struct sl_sched *s, struct sl_seq *seq, bool short_of_blocks)
{
    const int32_t room = seq->blocks.n * s->kv->block_size - sl_seq_n_known(seq);
    SL_ASSERT(seq->n_pending == 0 && (!short_of_blocks || room < seq->n_drafted));
    seq->n_drafted = short_of_blocks ? SL_MAX(room, 0) : 0;
    int32_t n_need = blocks_for(s, sl_seq_n_tokens(seq));
    sl_kv_give(s->kv, &seq->blocks, SL_MIN(n_need, seq->blocks.n), false);
}

/* Gives seq a block for each of its new tokens, and pages for the next one to be computed and its
 * drafts, of which those remain whose states have room; preempts from the end of the list. False:
 * seq itself was the last and had to go, or it has to wait for a step in flight. */
static bool extend(struct sl_sched *s, struct sl_seq *seq)
{
    seq->stalled = must_land(s, seq);
    seq->n_drafted = SL_MIN(seq->n_drafted, sl_sched_max_drafts(s, seq));
    while (!seq->stalled) {
        const int32_t n_next = 1 + (sl_seq_decodes(seq) ? seq->n_drafted : 0);
        const bool enough = seq->blocks.n >= blocks_for(s, sl_seq_n_tokens(seq));
        if (enough && sl_kv_cover(s->kv, &seq->blocks, seq->n_computed,
                                  blocks_for(s, seq->n_computed + n_next)))
            return true;
        if (!enough && sl_kv_take(s->kv, &seq->blocks, SL_EVICT_OUTPUT))
            continue;
        if (seq->n_drafted > 0) {
            drop_drafts(s, seq, !enough);
            continue;
        }
        struct sl_seq *worst = worst_running(s);
        preempt(s, worst, false);
        if (worst == seq)
            break;
    }
    return false;
}

/* Is nothing of seq to be planned in this group's step? A pending token is found in the slot of the
 * group whose step chooses it. */
static bool is_away(const struct sl_sched *s, const struct sl_seq *seq)
{
    return sl_seq_held(seq) || (seq->n_pending > 0 && seq->pending_slot != s->group);
}

/* Victims come after the current sequence, so none that is planned already is preempted. What has
 * got several tokens at once needs blocks here too, and its chunk later. */
static void plan_decodes(struct sl_sched *s)
{
    for (int32_t i = 0; i < s->n_running; i++) {
        struct sl_seq *seq = s->running[i];
        if (seq->group != s->group || is_away(s, seq) || !extend(s, seq))
            continue;
        SL_ASSERT(seq->state == SL_SEQ_RUNNING && s->running[i] == seq);
        if (!sl_seq_decodes(seq))
            continue;
        if (seq->n_drafted > 0 && sl_sched_has_states(s))
            sl_kv_draft(s->kv, &seq->blocks, seq->n_drafted);
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

/* Blocks of seq for which a scarce group has pages, if each running sequence keeps one of a WINDOW,
 * and those it counts with of states: there one page more is enough for any number of blocks. */
static int64_t blocks_with_pages(const struct sl_sched *s, const struct sl_seq *seq, int32_t i)
{
    const struct sl_kv_group *g = &s->kv->groups[i];
    const int64_t end = seq->blocks.end[i];
    if (g->cfg.kind == SL_GROUP_WINDOW)
        return end + SL_MAX(sl_group_n_room(g) - sched_reserve(s), 0);
    const bool unused = (end - 1) * s->kv->block_size >= seq->n_computed; /* it moves there */
    return unused || may_take_state(s, g, seq) ? INT32_MAX : end;
}

/* Tokens of seq for which there are pages. */
static int32_t page_tokens(const struct sl_sched *s, const struct sl_seq *seq)
{
    int64_t n_blocks = INT32_MAX;
    for (int32_t i = 0; i < s->kv->n_groups; i++)
        if (is_scarce(s, &s->kv->groups[i]))
            n_blocks = SL_MIN(n_blocks, blocks_with_pages(s, seq, i));
    int64_t n = n_blocks * s->kv->block_size - seq->n_computed;
    return (int32_t)SL_MIN(SL_MAX(n, 1), INT32_MAX);
}

/* The next chunk of a prompt. A seat is a token and a row of logits that nobody else can use, so
 * the chunk is never empty, and a step's first has LEAST_CHUNK tokens whatever they cost. */
static int32_t chunk_of(struct sl_sched *s, const struct sl_seq *seq, int32_t n_unplanned,
                        int32_t *spare_rows)
{
    int32_t n = sl_seq_n_tokens(seq) - seq->n_computed;
    n = SL_MIN(n, s->cfg.max_tokens - s->n_plan_tokens - (n_unplanned - 1));
    n = SL_MIN(n, page_tokens(s, seq));
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

static bool wants_chunk(const struct sl_sched *s, const struct sl_seq *seq)
{
    return seq->group == s->group && seq->n_step == 0 && !is_away(s, seq);
}

static void plan_prefills(struct sl_sched *s, int32_t *spare_rows)
{
    int32_t n_unplanned = 0;
    for (int32_t i = 0; i < s->n_running; i++)
        n_unplanned += wants_chunk(s, s->running[i]);
    for (int32_t i = 0; i < s->n_running; i++) {
        struct sl_seq *seq = s->running[i];
        if (wants_chunk(s, seq))
            plan_add(s, seq, chunk_of(s, seq, n_unplanned--, spare_rows));
    }
}

/* Takes the blocks of all tokens of seq, found in the cache as far as possible. At least one token
 * is left to compute, since its logits are wanted: a prompt that is cached to its end and ends with
 * a block recomputes that whole block into one of its own (blocks in the tree are never written),
 * and publishing it finds the cached twin again. */
static bool take_blocks(struct sl_sched *s, struct sl_seq *seq)
{
    struct sl_kv_blocks *b = &seq->blocks;
    int32_t n_tokens = sl_seq_n_tokens(seq), n_need = blocks_for(s, n_tokens), n_hit;
    const int32_t max_hit = (n_tokens - 1) / s->kv->block_size;
    int32_t n_known = 0;
    if (!seq->all_logits) {
        struct sl_kv_text text = sl_seq_text(seq);
        n_known = sl_kv_match(s->kv, seq->ns, &text, max_hit, b);
    }
    sl_kv_want(s->kv, b, max_hit, n_known);
    n_hit = b->n;
    bool enough = claim_blocks(s, seq, n_need - n_hit, false);
    if (!enough || !sl_sched_pages_fit(s, seq)) {
        s->n_short = enough ? 0 : n_need - n_hit + sched_reserve(s) - sl_kv_n_available(s->kv);
        sl_kv_give(s->kv, b, 0, false);
        seq->blocked_at =
            enough ? 0 : sl_sched_room(s); /* pages of windows and states come with any step */
        return false;
    }
    while (b->n < n_need) {
        bool taken = sl_kv_take(s->kv, b, SL_EVICT_PROMPT);
        SL_ASSERT(taken);
    }
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
    seq->group = s->group;
    s->n_members[s->group]++;
}

bool sl_sched_is_long(const struct sl_sched *s)
{
    return s->limit_s > 0 && s->n_chunks > 0 &&
           sl_cost_chunk(&s->cost, s->work, 0, LEAST_CHUNK, s->limit_s) < LEAST_CHUNK;
}

/* Most members of a group, if everything runs that has a seat. */
static int32_t group_share(const struct sl_sched *s)
{
    const int32_t n = SL_MIN(s->cfg.max_seqs, s->n_running + s->wait.n);
    return SL_CEIL_DIV(n, s->cfg.n_groups);
}

static void plan_admissions(struct sl_sched *s, int32_t *spare_rows)
{
    struct sl_seq *seq;
    const int32_t share = group_share(s);
    int32_t n_short = s->n_short;
    s->n_short = 0;
    while (s->n_running < s->cfg.max_seqs && s->n_plan_tokens < s->cfg.max_tokens &&
           s->n_members[s->group] < share && (seq = sl_wait_best(&s->wait)) != NULL) {
        if (is_away(s, seq) || (s->n_running > 0 && seq->blocked_at == sl_sched_room(s))) {
            s->n_short = n_short; /* as before */
            break;
        }
        if (s->cfg.whole_prompts && sl_seq_n_tokens(seq) > s->cfg.max_tokens - s->n_plan_tokens)
            break; /* first in the next step, which it has to itself if need be */
        if (sl_sched_is_long(s))
            break;
        if (!sl_sched_adapter_fits(s, seq) || !take_blocks(s, seq))
            break;
        sl_wait_remove(&s->wait, seq);
        start_running(s, seq);
        plan_add(s, seq, chunk_of(s, seq, 1, spare_rows));
    }
}

/* Something could be planned but for a step in flight, or for what has to come. */
static bool someone_held(const struct sl_sched *s)
{
    const struct sl_seq *best = sl_wait_best(&s->wait);
    bool held = best != NULL && (sl_seq_held(best) || best->n_pending > 0);
    for (int32_t i = 0; i < s->n_running && !held; i++)
        held = sl_seq_held(s->running[i]) || s->running[i]->n_pending > 0;
    return held;
}

/* A group that has lost many members leaves its stages idle: some of this group's, the last ones,
 * go to the smallest. Each misses a step for it. */
static void even_out(struct sl_sched *s)
{
    int32_t to = 0;
    for (int32_t g = 1; g < s->cfg.n_groups; g++)
        if (s->n_members[g] < s->n_members[to])
            to = g;
    const int32_t more = s->n_members[s->group] - s->n_members[to];
    if (more < 2 + s->n_members[s->group] / UNEVEN_SHARE)
        return;
    int32_t n = more / 2;
    for (int32_t i = s->n_running - 1; i >= 0 && n > 0; i--) {
        struct sl_seq *seq = s->running[i];
        if (seq->group != s->group || seq->n_pending == 0) /* of a prompt chunks are under way */
            continue;
        seq->group = to;
        s->n_members[s->group]--;
        s->n_members[to]++;
        n--;
    }
}

static void plan_group(struct sl_sched *s)
{
    even_out(s);
    make_way(s);
    uint64_t n_preemptions = s->n_preemptions;
    plan_decodes(s);
    int32_t spare_rows = s->cfg.max_logits - s->cfg.max_seqs - (s->n_plan_tokens - s->n_plan);
    bool short_of_blocks = s->n_preemptions != n_preemptions;
    if (limit_chunks(s)) {
        plan_prefills(s, &spare_rows);
        /* Admitting in the step that preempted would take the blocks just won. */
        if (!short_of_blocks)
            plan_admissions(s, &spare_rows);
    }
    s->n_short =
        SL_MAX(s->n_short, sched_reserve(s) - s->kv->leases.n_kept - sl_kv_n_available(s->kv));
}

void sl_sched_plan(struct sl_sched *s)
{
    const int32_t last = s->group;
    bool passed_over = false;
    s->n_plan = s->n_plan_tokens = s->n_chunks = 0;
    s->work = (struct sl_work){0};
    for (int32_t i = 0; i < s->n_running; i++) {
        s->running[i]->n_step = 0;
        s->running[i]->stalled = false;
    }
    for (int32_t i = 1; i <= s->cfg.n_groups && s->n_plan == 0; i++) {
        s->group = (last + i) % s->cfg.n_groups;
        if (s->n_in_flight[s->group] > 1)
            passed_over = true;
        else
            plan_group(s);
    }
    SL_ASSERT(s->n_plan > 0 || passed_over || sl_sched_idle(s) || someone_held(s));
}

void sl_sched_advance(struct sl_sched *s, struct sl_seq *seq)
{
    SL_ASSERT(seq->state == SL_SEQ_RUNNING && seq->n_step > 0);
    seq->n_computed += seq->n_step;
    seq->n_step = 0;
    SL_ASSERT(seq->n_computed <= seq->blocks.n * s->kv->block_size);
}

/* The last n computed tokens are to be computed again. */
static void take_back(struct sl_sched *s, struct sl_seq *seq, int32_t n)
{
    SL_ASSERT(seq->state == SL_SEQ_RUNNING && seq->n_step == 0);
    SL_ASSERT(n >= 0 && n <= seq->n_computed);
    seq->n_computed -= n;
    SL_ASSERT(seq->n_published * s->kv->block_size <= seq->n_computed);
    for (int32_t i = 0; i < s->kv->n_groups; i++)
        SL_ASSERT(seq->blocks.first[i] <= sl_group_first_seen(&s->kv->groups[i], seq->n_computed));
    const int32_t n_need = blocks_for(s, SL_MAX(sl_seq_n_tokens(seq), seq->n_computed));
    sl_kv_give(s->kv, &seq->blocks, SL_MIN(n_need, seq->blocks.n), false);
}

void sl_sched_rollback(struct sl_sched *s, struct sl_seq *seq, int32_t n)
{
    SL_ASSERT(!sl_sched_has_states(s));
    take_back(s, seq, n);
}

void sl_sched_settle(struct sl_sched *s, struct sl_seq *seq, int32_t n, int32_t n_right)
{
    SL_ASSERT(n_right >= 0 && n_right <= n);
    if (sl_sched_has_states(s))
        sl_kv_settle(s->kv, &seq->blocks, seq->n_computed - n, n_right);
    take_back(s, seq, n - n_right);
}

void sl_sched_publish(struct sl_sched *s, struct sl_seq *seq, int32_t n_done)
{
    SL_ASSERT(seq->state == SL_SEQ_RUNNING && n_done <= seq->n_computed);
    SL_ASSERT(n_done <= seq->n_prompt + seq->n_out);
    struct sl_kv_text text = sl_seq_text(seq);
    while (seq->publish && (seq->n_published + 1) * s->kv->block_size <= n_done)
        sl_kv_publish(s->kv, seq->ns, &text, &seq->blocks, seq->n_published++);
    sl_kv_pass(s->kv, &seq->blocks, n_done);
}
