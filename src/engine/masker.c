/* SPDX-License-Identifier: MIT */
#include "engine/masker.h"

#include "base/check.h"
#include "base/sys.h"
#include "engine/constrain.h"
#include "engine/core.h"
#include "engine/stats.h"
#include "engine/turn.h"

#include <string.h>
#include <time.h>

#define THREADS_PER_MASKER    8 /* compute threads */
#define PROCESSORS_PER_MASKER 4
#define QUICK_NS              100000  /* less than a thread needs to wake, and to be waited for */
#define SLOW_NS               1000000 /* what others would notice in their step */

/* ------------------------------------------------------------------ one mask */

/* All sequences of a request begin alike. */
static int masker_begin(struct sl_request *req, struct sl_error *err)
{
    int rc = 0;
    for (int32_t i = 0; i < req->n_seqs && rc == 0 && req->constraint != NULL; i++)
        if (req->seqs[i].matcher == NULL)
            rc = sl_constraint_match(req->constraint, (uint32_t)req->max_out, &req->seqs[i].matcher,
                                     err);
    return rc;
}

static void set_bit(uint32_t *mask, int32_t id)
{
    SL_DCHECK(id >= 0);
    mask[id / 32] |= 1u << (id & 31);
}

static void clear_ends(uint32_t *mask, const struct sl_vocab *v)
{
    for (uint32_t i = 0; i < v->n_ends; i++)
        mask[(uint32_t)v->ends[i] / 32] &= ~(1u << (v->ends[i] & 31));
}

/* Tokens that end the sequence: where the text is complete, and only there, they may come. */
static int finish_mask(struct sl_rseq *rs, struct sl_error *err)
{
    const struct sl_sampling *p = &rs->req->sampling;
    const struct sl_vocab *v = sl_constraint_vocab(rs->req->constraint);
    const uint32_t *ends = sl_constraint_ends(rs->req->constraint);
    bool complete = sl_matcher_complete(rs->matcher);
    bool any = false;
    SL_ASSERT((int32_t)v->n_words == SL_CEIL_DIV(rs->req->eng->limits.n_logits, 32));
    for (uint32_t i = 0; i < v->n_words && !any; i++)
        any = (rs->mask[i] & ~ends[i]) != 0;
    rs->mask_ends = !any && complete;
    if (!any && !complete)
        return sl_fail(err, SL_ELIMIT, "structured output: no token can continue the text");
    if (p->ignore_eos) /* the text goes on as long as it can */
        clear_ends(rs->mask, v);
    for (int32_t i = 0; i < p->n_stop_token_ids && complete; i++)
        set_bit(rs->mask, p->stop_token_ids[i]);
    return 0;
}

/* Are some of these tokens ends of the request's own? Then all are the model's to choose: what
 * comes first decides what else may come. */
static bool has_own_ends(const struct sl_sampling *p, const int32_t *ids, int32_t n)
{
    bool named = false;
    for (int32_t i = 0; i < n && !named; i++)
        for (int32_t k = 0; k < p->n_stop_token_ids && !named; k++)
            named = ids[i] == p->stop_token_ids[k];
    return named;
}

/* The tokens forced after n_out tokens of output, of which the matcher has the last ones. */
static int find_forced(struct sl_rseq *rs, int32_t n_out, int32_t *forced, int32_t *n_forced,
                       struct sl_error *err)
{
    struct sl_request *req = rs->req;
    uint32_t n_last = SL_MIN(sl_matcher_n_tokens(rs->matcher), SL_JUMP_CONTEXT), n = 0;
    int32_t left = req->max_out - n_out;
    SL_ASSERT(left > 0 && n_last <= (uint32_t)n_out); /* what the matcher has read was put out */
    const struct sl_jump how = {.tok = req->eng->tokenizer,
                                .vocab = sl_constraint_vocab(req->constraint),
                                .mask = rs->mask,
                                .last = rs->out + n_out - n_last,
                                .n_last = n_last};
    int rc = sl_jump_find(rs->matcher, &how, forced, (uint32_t)SL_MIN(left, SL_MAX_JUMP), &n, err);
    SL_ASSERT(rc != 0 || n <= (uint32_t)SL_MIN(left, SL_MAX_JUMP));
    *n_forced = has_own_ends(&req->sampling, forced, (int32_t)n) ? 0 : (int32_t)n;
    return rc;
}

/* The tokens that the constraint forces after its last one; the matcher advances over them. Which
 * these are must not depend on how they are computed. */
static int jump(struct sl_rseq *rs, struct sl_error *err)
{
    bool allowed = true;
    int32_t n_free;
    SL_ASSERT(rs->n_forced == 0);
    int rc = find_forced(rs, rs->seq.n_out, rs->forced, &n_free, err);
    for (; rc == 0 && allowed && rs->n_forced < n_free; rs->n_forced += allowed)
        rc = sl_matcher_accept(rs->matcher, rs->forced[rs->n_forced], &allowed, err);
    SL_ASSERT(rc != 0 || allowed);
    if (rc == 0 && rs->n_forced > 0)
        rc = sl_matcher_mask(rs->matcher, rs->mask, err);
    return rc;
}

/* Forced tokens have log probabilities too: each is chosen by a mask that allows nothing else. */
static void force_one(struct sl_rseq *rs)
{
    SL_ASSERT(rs->at_forced >= 0 && rs->at_forced < rs->n_forced);
    memset(rs->mask, 0, sl_constraint_vocab(rs->req->constraint)->n_words * sizeof *rs->mask);
    set_bit(rs->mask, rs->forced[rs->at_forced++]);
}

/* What a client has a say on is not forced. */
static bool may_jump(const struct sl_rseq *rs)
{
    const struct sl_sampling *p = &rs->req->sampling;
    bool own_rules = p->n_logit_bias > 0 || p->n_bad_words > 0 || rs->req->allowed != NULL;
    return rs->req->eng->jump_forward && !own_rules && rs->runs == NULL;
}

/* By the constraint. n_own: of the new tokens, those that belong to it. */
static int match(struct sl_rseq *rs, int32_t n_own, struct sl_error *err)
{
    bool allowed = true, steps = rs->logprobs != NULL;
    int rc = 0;
    SL_ASSERT(rs->matcher != NULL && rs->n_forced <= SL_MAX_JUMP);
    if (rs->at_forced < rs->n_forced) {
        force_one(rs);
        return 0;
    }
    bool known = rs->n_forced > 0; /* the token was forced: the matcher has it */
    rs->n_forced = rs->at_forced = 0;
    for (int32_t i = n_own; i > 0 && !known && rc == 0 && allowed; i--)
        rc = sl_matcher_accept(rs->matcher, rs->out[rs->seq.n_out - i], &allowed, err);
    if (rc == 0 && !allowed)
        rc = sl_fail(err, SL_EINTERNAL, "structured output: token %d was chosen but is not allowed",
                     rs->mask_token);
    if (rc == 0)
        rc = sl_matcher_mask(rs->matcher, rs->mask, err);
    if (rc == 0 && n_own > 0 && !known && may_jump(rs))
        rc = jump(rs, err);
    if (rc == 0 && rs->n_forced > 0 && steps) {
        force_one(rs);
        return 0;
    }
    return rc == 0 ? finish_mask(rs, err) : rc;
}

/* Of the n new tokens, those that belong to the answer. */
static int32_t take_thoughts(struct sl_rseq *rs, int32_t n)
{
    int32_t n_own = n;
    SL_ASSERT(n >= 0 && n <= rs->seq.n_out);
    for (int32_t i = n; i > 0; i--) {
        sl_think_take(&rs->req->think, &rs->think, rs->out[rs->seq.n_out - i]);
        if (rs->think.state != SL_THINK_OVER)
            n_own = i - 1;
    }
    return n_own;
}

/* While it thinks; false: the answer's own rules say what may come. */
static bool think_mask(struct sl_rseq *rs)
{
    struct sl_request *req = rs->req;
    const bool thinks = req->think.on &&
                        sl_think_mask(&req->think, &rs->think, rs->mask, req->eng->limits.n_logits);
    if (thinks && req->constraint != NULL) /* an answer is to come */
        clear_ends(rs->mask, sl_constraint_vocab(req->constraint));
    return thinks;
}

/* What the request allows besides. Tokens that end the text stay: the constraint alone says when.
 */
static int masker_narrow(struct sl_rseq *rs, struct sl_error *err)
{
    const struct sl_request *req = rs->req;
    const uint32_t *ends = req->constraint != NULL ? sl_constraint_ends(req->constraint) : NULL;
    uint32_t any = 0;
    for (int32_t i = 0; i < SL_CEIL_DIV(req->eng->limits.n_logits, 32); i++) {
        rs->mask[i] &= req->allowed[i] | (ends != NULL ? ends[i] : 0);
        any |= rs->mask[i];
    }
    if (any == 0 && !rs->mask_ends)
        return sl_fail(err, SL_ELIMIT, "allowed_token_ids: the grammar allows none of them here");
    return 0;
}

/* ------------------------------------------------------------------ masks of drafts */

/* Does the mask before a draft allow it, and does the text go on after it? */
static bool is_draft_free(const struct sl_rseq *rs, int32_t id)
{
    const struct sl_constraint *c = rs->req->constraint;
    const uint32_t end = c != NULL ? sl_constraint_ends(c)[id / 32] : 0;
    return ((rs->mask[id / 32] & ~end) >> (id & 31) & 1) != 0 &&
           !has_own_ends(&rs->req->sampling, &id, 1);
}

/* The mask of an answer of n_out tokens whose last one is a draft; own: it belongs to the answer.
 * False: it is not allowed, the text ends with it, or tokens are forced after it, which take no
 * step. */
static bool answer_after(struct sl_rseq *rs, int32_t id, bool own, int32_t n_out)
{
    struct sl_error err;
    int32_t forced[SL_MAX_JUMP], n_forced = 0;
    bool allowed = true;
    if (rs->req->constraint == NULL) {
        memset(rs->mask, 0xFF,
               (size_t)SL_CEIL_DIV(rs->req->eng->limits.n_logits, 32) * sizeof *rs->mask);
        return true;
    }
    if ((own && sl_matcher_accept(rs->matcher, id, &allowed, &err) != 0) || !allowed ||
        sl_matcher_mask(rs->matcher, rs->mask, &err) != 0)
        return false;
    if (own && may_jump(rs) && (find_forced(rs, n_out, forced, &n_forced, &err) != 0))
        return false;
    return n_forced == 0 && finish_mask(rs, &err) == 0 && !rs->mask_ends;
}

/* Goes on by draft idx and makes the mask after it. */
static bool mask_after(struct sl_rseq *rs, int32_t idx, uint32_t *mask)
{
    struct sl_error err;
    const struct sl_think *t = &rs->req->think;
    const int32_t id = rs->drafts[idx], n_out = rs->seq.n_out + idx + 1;
    SL_ASSERT(n_out < rs->req->max_out);
    if (!is_draft_free(rs, id))
        return false;
    rs->mask = mask;
    rs->out[n_out - 1] = id; /* nobody reads there before it is known */
    if (t->on)
        sl_think_take(t, &rs->think, id);
    const bool own = !t->on || rs->think.state == SL_THINK_OVER;
    if (!think_mask(rs) && !answer_after(rs, id, own, n_out))
        return false;
    return rs->req->allowed == NULL || masker_narrow(rs, &err) == 0;
}

/* Goes on by the drafts as far as they may come, and back. */
static void mask_drafts(struct sl_rseq *rs)
{
    struct sl_engine *eng = rs->req->eng;
    const size_t n_words = (size_t)SL_CEIL_DIV(eng->limits.n_logits, 32);
    const uint32_t n_tokens = rs->matcher != NULL ? sl_matcher_n_tokens(rs->matcher) : 0;
    const struct sl_think_seq thoughts = rs->think;
    const bool ends = rs->mask_ends;
    uint32_t *first = rs->mask;
    int32_t n = rs->n_forced > 0 || ends ? 0 : sl_engine_n_drafts(eng, rs), i = 0;
    n = n > 0 ? rs->req->mode->propose(eng, rs, n) : 0;
    while (i < n && mask_after(rs, i, first + (size_t)(i + 1) * n_words))
        i++;
    rs->n_masked = i;
    rs->mask = first;
    rs->mask_ends = ends;
    rs->think = thoughts;
    if (rs->matcher != NULL)
        sl_matcher_rollback(rs->matcher, sl_matcher_n_tokens(rs->matcher) - n_tokens);
    SL_ASSERT(i <= n);
}

/* By the answer's rules; maybe: its first token may be the marker that begins the thinking. */
static int answer_mask(struct sl_rseq *rs, int32_t n_own, bool maybe, struct sl_error *err)
{
    const struct sl_request *req = rs->req;
    int rc = 0;
    if (req->constraint != NULL) {
        rc = match(rs, n_own, err);
    } else {
        memset(rs->mask, 0xFF,
               (size_t)SL_CEIL_DIV(req->eng->limits.n_logits, 32) * sizeof *rs->mask);
        rs->mask_free = !maybe;
    }
    if (rc == 0 && maybe) {
        set_bit(rs->mask, req->think.open_id);
        rs->mask_ends = false;
    }
    return rc;
}

static int make_mask(struct sl_rseq *rs, struct sl_error *err)
{
    struct sl_request *req = rs->req;
    const int32_t n_words = SL_CEIL_DIV(req->eng->limits.n_logits, 32);
    const bool first = rs->mask_token < 0,
               maybe = first && req->think.on && rs->think.state == SL_THINK_MAYBE;
    int32_t n_own = first ? 0 : rs->n_new;
    SL_ASSERT(rs->mask != NULL && (req->constraint != NULL || req->think.on));
    SL_ASSERT(!first || rs == req->seqs); /* the others get a copy of its mask */
    int rc = first ? masker_begin(req, err) : 0;
    if (rc == 0 && req->think.on)
        n_own = take_thoughts(rs, n_own);
    if (rc == 0 && !think_mask(rs))
        rc = answer_mask(rs, n_own, maybe, err);
    if (rc == 0 && req->allowed != NULL)
        rc = masker_narrow(rs, err);
    rs->n_masked = 0;
    if (rc == 0 && !first && !rs->mask_free && req->mode->propose != NULL)
        mask_drafts(rs);
    for (int32_t i = 1; i < req->n_seqs && first && rc == 0; i++) {
        memcpy(req->seqs[i].mask, rs->mask, (size_t)n_words * sizeof *rs->mask);
        req->seqs[i].think.state = rs->think.state;
        req->seqs[i].mask_free = rs->mask_free;
    }
    return rc;
}

/* The lock is held. Does the engine wait for it, or will it? */
static bool is_awaited(const struct sl_masker *m, const struct sl_rseq *rs)
{
    return rs->mask_token >= 0 && rs->mask_round == m->round;
}

static void work_on(struct sl_masker *m, struct sl_rseq *rs)
{
    uint64_t t0 = sl_now_ns();
    rs->mask_error.code = 0;
    rs->mask_ends = false;
    if (!atomic_load(&rs->req->over) && make_mask(rs, &rs->mask_error) != 0 &&
        rs->mask_error.code != SL_ENOMEM && rs->mask_error.code != SL_EINTERNAL)
        rs->mask_error.code = SL_ELIMIT;
    rs->mask_ns = sl_now_ns() - t0;
    rs->mask_slow = rs->mask_slow || (rs->mask_token >= 0 && rs->mask_ns > SLOW_NS);
    pthread_mutex_lock(&m->lock);
    sl_hist_add(&m->mask_s, SL_BOUNDS_GRAMMAR, (double)rs->mask_ns * 1e-9);
    m->n_masks++;
    rs->mask_next = m->done;
    m->done = rs;
    SL_ASSERT(m->n_busy > 0 && m->n_awaited <= m->n_busy);
    SL_ASSERT(!is_awaited(m, rs) || m->n_awaited > 0);
    m->n_busy--;
    if (is_awaited(m, rs) && --m->n_awaited == 0)
        pthread_cond_signal(&m->idle);
    pthread_mutex_unlock(&m->lock);
}

/* ------------------------------------------------------------------ queues, under the lock */

static void put_last(struct sl_masker_queue *q, struct sl_rseq *rs)
{
    SL_ASSERT((q->first == NULL) == (q->last == NULL) && q->last != rs);
    rs->mask_next = NULL;
    if (q->last != NULL)
        q->last->mask_next = rs;
    else
        q->first = rs;
    q->last = rs;
}

static struct sl_rseq *take_from(struct sl_masker_queue *q)
{
    struct sl_rseq *rs = q->first;
    if (rs == NULL)
        return NULL;
    SL_ASSERT((rs == q->last) == (rs->mask_next == NULL));
    q->first = rs->mask_next;
    if (q->first == NULL)
        q->last = NULL;
    return rs;
}

static struct sl_rseq *take_first(struct sl_masker *m)
{
    return take_from(m->running.first != NULL ? &m->running : &m->starting);
}

static void masker_refuse(struct sl_masker *m, struct sl_rseq *rs)
{
    (void)sl_fail(&rs->mask_error, SL_ESHUTDOWN, "the engine is shutting down");
    rs->mask_next = m->done;
    m->done = rs;
}

bool sl_masker_work(struct sl_engine *eng)
{
    struct sl_masker *m = &eng->masker;
    pthread_mutex_lock(&m->lock);
    struct sl_rseq *rs = take_first(m);
    pthread_mutex_unlock(&m->lock);
    if (rs != NULL)
        work_on(m, rs);
    return rs != NULL;
}

/* ------------------------------------------------------------------ threads */

static void *masker_main(void *arg)
{
    struct sl_engine *eng = arg;
    struct sl_masker *m = &eng->masker;
    pthread_mutex_lock(&m->lock);
    while (!m->stopping) {
        struct sl_rseq *rs = take_first(m);
        if (rs == NULL) {
            pthread_cond_wait(&m->work, &m->lock);
            continue;
        }
        pthread_mutex_unlock(&m->lock);
        work_on(m, rs);
        sl_inbox_wake(&eng->inbox); /* the engine may have nothing else to do */
        pthread_mutex_lock(&m->lock);
    }
    pthread_mutex_unlock(&m->lock);
    return NULL;
}

int sl_masker_start(struct sl_engine *eng, struct sl_error *err)
{
    struct sl_masker *m = &eng->masker;
    pthread_condattr_t attr;
    pthread_mutex_init(&m->lock, NULL);
    pthread_cond_init(&m->work, NULL);
    pthread_condattr_init(&attr);
    pthread_condattr_setclock(&attr, CLOCK_MONOTONIC);
    pthread_cond_init(&m->idle, &attr);
    pthread_condattr_destroy(&attr);
    if (!eng->threaded || eng->constraints == NULL)
        return 0;
    /* Where a device computes, the host's processors have little else to do. */
    bool device = eng->max_flights > 1;
    int32_t share = device ? PROCESSORS_PER_MASKER : THREADS_PER_MASKER;
    int32_t have = device ? sl_cpu_count() : eng->info.n_threads;
    int32_t n = SL_MIN(1 + have / share, SL_MAX_MASKERS);
    SL_ASSERT(m->n_threads == 0);
    while (m->n_threads < SL_MAX(n, 1)) {
        int rc = sl_thread_create(&m->threads[m->n_threads], masker_main, eng, "sl-masker", err);
        if (rc != 0) {
            sl_masker_stop(eng);
            sl_masker_deinit(eng);
            return rc;
        }
        m->n_threads++;
    }
    return 0;
}

void sl_masker_stop(struct sl_engine *eng)
{
    struct sl_masker *m = &eng->masker;
    pthread_mutex_lock(&m->lock);
    m->stopping = true;
    pthread_cond_broadcast(&m->work);
    pthread_mutex_unlock(&m->lock);
    while (m->n_threads > 0)
        pthread_join(m->threads[--m->n_threads], NULL);
    struct sl_rseq *rs;
    while ((rs = take_from(&m->quick)) != NULL || (rs = take_first(m)) != NULL) {
        masker_refuse(m, rs);
        m->n_busy--;
    }
    SL_ASSERT(m->n_busy == 0); /* nobody works any more, and nothing is queued */
    m->n_awaited = 0;
}

void sl_masker_deinit(struct sl_engine *eng)
{
    struct sl_masker *m = &eng->masker;
    SL_ASSERT(m->n_open == 0 && m->n_busy == 0 && m->done == NULL);
    pthread_cond_destroy(&m->idle);
    pthread_cond_destroy(&m->work);
    pthread_mutex_destroy(&m->lock);
}

/* ------------------------------------------------------------------ the engine's side */

/* Where the engine would only wait it makes masks itself, if the sequence's last one was quick: no
 * thread has to wake, and none takes a processor from those that compute. That says little about
 * the next one; when that is slow all feel it, but once, as the sequence is the threads' from then
 * on.
 */
static bool is_quick(const struct sl_engine *eng, const struct sl_rseq *rs, int32_t token)
{
    return eng->masker.n_threads > 0 && eng->max_flights == 1 && token >= 0 &&
           rs->mask_ns < QUICK_NS && !rs->mask_slow;
}

void sl_masker_push(struct sl_engine *eng, struct sl_rseq *rs, int32_t token, int32_t n_new)
{
    struct sl_masker *m = &eng->masker;
    SL_ASSERT(!rs->seq.waits);
    rs->seq.waits = true;
    rs->mask_token = token;
    rs->n_new = n_new;
    rs->mask_round = m->round;
    SL_ASSERT(rs->mask != NULL && rs->seq.state != SL_SEQ_FINISHED);
    SL_ASSERT((token >= 0) == (rs->seq.n_out > 0));
    SL_ASSERT(token < 0 || (n_new >= 1 && n_new <= rs->seq.n_out));
    int refs = atomic_fetch_add_explicit(&rs->req->refs, 1, memory_order_relaxed);
    SL_ASSERT(refs > 0);
    m->n_open++;
    m->n_awaited_most += token >= 0;
    m->pushed_ns = eng->now_ns;
    bool quick = is_quick(eng, rs, token);
    pthread_mutex_lock(&m->lock);
    if (m->stopping) {
        masker_refuse(m, rs);
    } else if (quick) {
        m->n_busy++;
        m->n_awaited++;
        put_last(&m->quick, rs);
    } else {
        m->n_busy++;
        m->n_awaited += token >= 0;
        put_last(token >= 0 ? &m->running : &m->starting, rs);
        pthread_cond_signal(&m->work);
    }
    pthread_mutex_unlock(&m->lock);
}

static bool work_on_quick(struct sl_engine *eng)
{
    struct sl_masker *m = &eng->masker;
    pthread_mutex_lock(&m->lock);
    struct sl_rseq *rs = take_from(&m->quick);
    pthread_mutex_unlock(&m->lock);
    if (rs != NULL)
        work_on(m, rs);
    return rs != NULL;
}

static void work_in_the_call(struct sl_engine *eng)
{
    struct sl_masker *m = &eng->masker;
    sl_alloc_guard_arm(false);
    if (m->simulate != NULL) {
        m->simulate(m->simulate_ctx, eng);
    } else {
        while (m->n_threads > 0 ? work_on_quick(eng) : sl_masker_work(eng)) {
        }
    }
    sl_alloc_guard_arm(true);
}

void sl_masker_wait(struct sl_engine *eng, uint64_t until_ns)
{
    struct sl_masker *m = &eng->masker;
    struct timespec until = {.tv_sec = (time_t)(until_ns / 1000000000u),
                             .tv_nsec = (long)(until_ns % 1000000000u)};
    int rc = 0;
    sl_engine_leave(eng);
    work_in_the_call(eng);
    pthread_mutex_lock(&m->lock);
    while (m->n_threads > 0 && m->n_awaited > 0 && rc == 0)
        rc = pthread_cond_timedwait(&m->idle, &m->lock, &until);
    SL_ASSERT(m->n_awaited >= 0 && m->n_awaited <= m->n_awaited_most);
    m->n_late += (uint64_t)m->n_awaited;
    m->n_awaited = 0;
    m->round++;
    pthread_mutex_unlock(&m->lock);
    m->n_awaited_most = 0;
    sl_engine_return(eng);
}

struct sl_rseq *sl_masker_take(struct sl_engine *eng)
{
    struct sl_masker *m = &eng->masker;
    if (m->n_open == 0)
        return NULL;
    pthread_mutex_lock(&m->lock);
    struct sl_rseq *list = m->done;
    m->done = NULL;
    pthread_mutex_unlock(&m->lock);
    for (struct sl_rseq *rs = list; rs != NULL; rs = rs->mask_next) {
        SL_ASSERT(rs->seq.waits && m->n_open > 0);
        rs->seq.waits = false;
        m->n_open--;
    }
    return list;
}

void sl_masker_stats(struct sl_engine *eng, struct sl_stats *out)
{
    struct sl_masker *m = &eng->masker;
    pthread_mutex_lock(&m->lock);
    out->grammar_masks = m->n_masks;
    out->grammar_mask_s = m->mask_s;
    pthread_mutex_unlock(&m->lock);
}
