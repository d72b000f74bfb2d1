/* SPDX-License-Identifier: MIT
 * sched_model.h - the scheduler of sched/sched.h with every list searched and sorted anew, on the
 * blocks of kv_model.h. What belongs to a sequence's owner (its text, its bounds) is read from the
 * real struct sl_seq, what belongs to the scheduler is kept here a second time.
 */
#ifndef SL_FUZZ_SCHED_MODEL_H
#define SL_FUZZ_SCHED_MODEL_H

#include "kv_model.h"
#include "sched/sched.h"

#define MODEL_SEQS 6

struct model_seq {
    const struct sl_seq *owner;
    int32_t ns, priority;
    enum sl_seq_state state;
    struct model_blocks b;
    int32_t n_published, n_computed, n_cached, n_preempted;
    bool stalled; /* the step in flight must land first */
    uint64_t blocked_at;
    int32_t tokens[MODEL_TOKENS]; /* what is known of its text, when it was needed last */
};

struct model_sched {
    struct sl_sched_config cfg;
    struct model_kv kv;
    struct model_seq seqs[MODEL_SEQS];
    int32_t plan[MODEL_SEQS], n_step[MODEL_SEQS], n_plan, n_tokens; /* n_step: by sequence */
    uint64_t n_preemptions, n_stops;
};

static inline int32_t model_n_tokens(const struct model_seq *q)
{
    return q->owner->n_prompt + q->owner->n_out + q->owner->n_pending;
}

static inline int32_t model_n_need(const struct model_sched *m, const struct model_seq *q)
{
    return (model_n_tokens(q) + m->kv.block - 1) / m->kv.block;
}

static inline bool model_is_held(const struct model_seq *q)
{
    const struct sl_seq *o = q->owner;
    return o->waits || q->stalled || (o->n_pending > 0 && o->n_out + o->n_pending >= o->max_out);
}

static inline const int32_t *model_text(struct model_seq *q)
{
    const struct sl_seq *o = q->owner;
    for (int32_t i = 0; i < o->n_prompt + o->n_out; i++)
        q->tokens[i] = i < o->n_prompt ? o->prompt[i] : o->out[i - o->n_prompt];
    return q->tokens;
}

static inline bool model_before(const struct model_seq *a, const struct model_seq *b)
{
    const int64_t ka[] = {a->priority, (int64_t)a->owner->arrival, a->owner->idx};
    const int64_t kb[] = {b->priority, (int64_t)b->owner->arrival, b->owner->idx};
    for (size_t i = 0; i < SL_COUNT(ka); i++)
        if (ka[i] != kb[i])
            return ka[i] < kb[i];
    SL_ASSERT(false && "two sequences of one rank");
}

/* Sequences in a state, best first; returns how many. */
static inline int32_t model_sorted(struct model_sched *m, enum sl_seq_state state,
                                   struct model_seq **out)
{
    int32_t n = 0;
    for (int32_t i = 0; i < MODEL_SEQS; i++) {
        struct model_seq *q = &m->seqs[i];
        if (q->state != state)
            continue;
        int32_t at = n++;
        for (; at > 0 && model_before(q, out[at - 1]); at--)
            out[at] = out[at - 1];
        out[at] = q;
    }
    return n;
}

static inline void model_stop(struct model_sched *m, struct model_seq *q, bool forget)
{
    m->n_stops++;
    model_give(&m->kv, &q->b, 0, forget);
    q->n_published = q->n_computed = 0;
    q->stalled = false;
}

static inline void model_preempt(struct model_sched *m, struct model_seq *q, bool forget)
{
    model_stop(m, q, forget);
    q->state = SL_SEQ_WAITING;
    q->blocked_at = 0;
    q->n_preempted++;
    m->n_preemptions++;
}

static inline void model_finish(struct model_sched *m, struct model_seq *q, bool forget)
{
    if (q->state == SL_SEQ_RUNNING)
        model_stop(m, q, forget);
    q->state = SL_SEQ_FINISHED;
}

static inline int32_t model_min(int32_t a, int32_t b)
{
    return a < b ? a : b;
}

static inline bool model_is_scarce(const struct model_sched *m, int32_t g)
{
    return m->kv.group[g].n_pages < m->kv.n_nodes;
}

/* Pages of group g that q needs to have when it computes its last token; of states: where a step
 * begins and where it ends. */
static inline int32_t model_page_count(const struct model_sched *m, const struct model_seq *q,
                                       int32_t g)
{
    const struct model_group *group = &m->kv.group[g];
    int32_t n = model_n_need(m, q), most = m->kv.n_nodes;
    if (group->state)
        n = (q->owner->n_prompt + q->owner->max_out + m->kv.block - 1) / m->kv.block;
    if (group->window > 0)
        most = group->state ? 2 : (group->window + m->kv.block - 2) / m->kv.block + 2;
    return model_min(model_min(n, most), m->kv.n_nodes);
}

/* Of those, the ones that it has not. */
static inline int32_t model_page_need(const struct model_sched *m, const struct model_seq *q,
                                      int32_t g)
{
    int32_t n = model_page_count(m, q, g);
    for (int32_t i = q->b.first[g]; i < q->b.end[g]; i++)
        n -= !m->kv.group[g].state || q->b.has_state[i];
    return n > 0 ? n : 0;
}

static inline bool model_group_fits(struct model_sched *m, const struct model_seq *q, int32_t g)
{
    struct model_seq *r[MODEL_SEQS];
    int32_t n = model_sorted(m, SL_SEQ_RUNNING, r), count = model_page_count(m, q, g);
    int32_t need = model_page_need(m, q, g) + (m->kv.group[g].state ? 0 : n);
    for (int32_t i = 0; i < n; i++) {
        need += model_page_need(m, r[i], g);
        count += model_page_count(m, r[i], g);
    }
    if (m->kv.group[g].state && count > m->kv.group[g].n_pages)
        return false;
    return need <= model_room(&m->kv, g);
}

static inline bool model_pages_fit(struct model_sched *m, const struct model_seq *q)
{
    for (int32_t g = 0; g < m->kv.n_groups; g++)
        if (model_is_scarce(m, g) && !model_group_fits(m, q, g))
            return false;
    return true;
}

/* ---- pages of states */

/* Do others own the state that q has behind this block, too? */
static inline bool model_shares(const struct model_sched *m, const struct model_seq *q, int32_t idx)
{
    const int32_t g = model_states(&m->kv);
    return idx >= 0 && idx < q->b.end[g] && q->b.has_state[idx] &&
           m->kv.node[q->b.nodes[idx]].page[g].owners > 1;
}

/* That no running sequence may need: those it has not yet, and one in place of each that it shares
 * with others. */
static inline int32_t model_spare(struct model_sched *m)
{
    struct model_seq *r[MODEL_SEQS];
    const int32_t g = model_states(&m->kv), n = model_sorted(m, SL_SEQ_RUNNING, r);
    int32_t spare = model_room(&m->kv, g);
    for (int32_t i = 0; i < n; i++) {
        const int32_t first = r[i]->b.first[g], last = r[i]->b.end[g] - 1;
        spare -= model_page_need(m, r[i], g) + model_shares(m, r[i], first);
        spare -= last != first && model_shares(m, r[i], last);
    }
    return spare;
}

static inline bool model_may_take(struct model_sched *m, const struct model_seq *q)
{
    const int32_t g = model_states(&m->kv);
    return (model_page_need(m, q, g) > 0 ? model_room(&m->kv, g) : model_spare(m)) > 0;
}

/* Does its next token need a state's page that only a landing gives? */
static inline bool model_must_land(struct model_sched *m, const struct model_seq *q)
{
    const int32_t g = model_states(&m->kv);
    return g >= 0 && model_is_scarce(m, g) && q->n_computed / m->kv.block >= q->b.end[g] &&
           model_page_need(m, q, g) == 0 && !model_may_take(m, q);
}

/* ---- a plan */

static inline void model_plan_add(struct model_sched *m, struct model_seq *q, int32_t n)
{
    SL_ASSERT(n > 0);
    bool covered = model_cover(&m->kv, &q->b, q->n_computed,
                               (q->n_computed + n + m->kv.block - 1) / m->kv.block);
    SL_ASSERT(covered);
    if (model_states(&m->kv) >= 0 && q->owner->publish)
        model_checkpoint(&m->kv, &q->b, q->n_computed, q->n_computed + n, model_spare(m));
    m->plan[m->n_plan++] = (int32_t)(q - m->seqs);
    m->n_step[q - m->seqs] = n;
    m->n_tokens += n;
}

/* A better priority takes seats and blocks of worse ones until it fits. */
static inline void model_make_way(struct model_sched *m)
{
    struct model_seq *w[MODEL_SEQS], *r[MODEL_SEQS];
    if (model_sorted(m, SL_SEQ_WAITING, w) == 0)
        return;
    for (;;) {
        int32_t n = model_sorted(m, SL_SEQ_RUNNING, r);
        bool fits = n < m->cfg.max_seqs && model_available(&m->kv) >= model_n_need(m, w[0]) + n &&
                    model_pages_fit(m, w[0]);
        if (n == 0 || r[n - 1]->priority <= w[0]->priority || fits)
            return;
        model_preempt(m, r[n - 1], false);
    }
}

static inline void model_decodes(struct model_sched *m)
{
    struct model_seq *r[MODEL_SEQS];
    for (int32_t i = 0; i < model_sorted(m, SL_SEQ_RUNNING, r); i++) {
        struct model_seq *q = r[i];
        if (model_is_held(q) || (q->stalled = model_must_land(m, q)))
            continue;
        while (q->state == SL_SEQ_RUNNING) {
            bool enough = q->b.n == model_n_need(m, q);
            if (enough &&
                model_cover(&m->kv, &q->b, q->n_computed, q->n_computed / m->kv.block + 1))
                break;
            if (enough || !model_take(&m->kv, &q->b))
                model_preempt(m, r[model_sorted(m, SL_SEQ_RUNNING, r) - 1], false);
        }
        if (q->state == SL_SEQ_RUNNING && model_n_tokens(q) - q->n_computed == 1)
            model_plan_add(m, q, 1);
    }
}

/* Tokens of q for which a scarce group has pages: one of a window is left to each running sequence,
 * of states one more is enough for any number of tokens. */
static inline int32_t model_page_tokens(struct model_sched *m, const struct model_seq *q, int32_t g)
{
    struct model_seq *r[MODEL_SEQS];
    int32_t room = 0;
    if (!m->kv.group[g].state)
        room = model_room(&m->kv, g) - model_sorted(m, SL_SEQ_RUNNING, r);
    else if (model_unused(&m->kv, &q->b, q->n_computed) >= 0 || model_may_take(m, q))
        room = MODEL_TOKENS;
    room = (q->b.end[g] + (room > 0 ? room : 0)) * m->kv.block - q->n_computed;
    return room > 0 ? room : 1;
}

static inline int32_t model_chunk(struct model_sched *m, const struct model_seq *q, int32_t n_after,
                                  int32_t *spare)
{
    int32_t n = model_n_tokens(q) - q->n_computed, room = m->cfg.max_tokens - m->n_tokens - n_after;
    n = model_min(n, room);
    for (int32_t g = 0; g < m->kv.n_groups; g++)
        if (model_is_scarce(m, g))
            n = model_min(n, model_page_tokens(m, q, g));
    if (q->owner->all_logits) {
        n = n < 1 + *spare ? n : 1 + *spare;
        *spare -= n - 1;
    }
    return n;
}

static inline void model_prefills(struct model_sched *m, int32_t *spare)
{
    struct model_seq *r[MODEL_SEQS];
    int32_t n = model_sorted(m, SL_SEQ_RUNNING, r), left = 0;
    for (int32_t i = 0; i < n; i++)
        left += m->n_step[r[i] - m->seqs] == 0 && !model_is_held(r[i]);
    for (int32_t i = 0; i < n; i++)
        if (m->n_step[r[i] - m->seqs] == 0 && !model_is_held(r[i]))
            model_plan_add(m, r[i], model_chunk(m, r[i], --left, spare));
}

static inline bool model_admit(struct model_sched *m, struct model_seq *q, int32_t n_running)
{
    const int32_t n_need = model_n_need(m, q), most = (model_n_tokens(q) - 1) / m->kv.block;
    int32_t n_hit, n_known = 0;
    q->b = (struct model_blocks){.n = 0};
    if (!q->owner->all_logits) {
        while (n_known < most &&
               model_find(&m->kv, q->ns, model_text(q), (n_known + 1) * m->kv.block) != SL_NO_NODE)
            n_known++;
        model_match(&m->kv, q->ns, model_text(q), most, &q->b);
    }
    q->b.wanted[0] = most; /* where the same text can go on, and where one that shares this much */
    q->b.wanted[1] = n_known;
    n_hit = q->b.n;
    bool enough = model_available(&m->kv) >= n_need - n_hit + n_running;
    if (!enough || !model_pages_fit(m, q)) {
        model_give(&m->kv, &q->b, 0, false);
        q->blocked_at = enough ? 0 : m->kv.n_releases + m->n_stops + 1;
        return false;
    }
    while (q->b.n < n_need) {
        bool taken = model_take(&m->kv, &q->b);
        SL_ASSERT(taken);
    }
    q->state = SL_SEQ_RUNNING;
    q->n_published = n_hit;
    q->n_computed = n_hit * m->kv.block;
    if (q->n_cached < 0)
        q->n_cached = q->n_computed;
    return true;
}

static inline void model_admissions(struct model_sched *m, int32_t *spare)
{
    struct model_seq *w[MODEL_SEQS], *r[MODEL_SEQS];
    for (;;) {
        int32_t n = model_sorted(m, SL_SEQ_RUNNING, r);
        if (n == m->cfg.max_seqs || m->n_tokens == m->cfg.max_tokens ||
            model_sorted(m, SL_SEQ_WAITING, w) == 0 || model_is_held(w[0]))
            return;
        /* nothing was given back and nobody stopped since it did not fit: not tried again while
         * others run */
        if (n > 0 && w[0]->blocked_at == m->kv.n_releases + m->n_stops + 1)
            return;
        if (!model_admit(m, w[0], n))
            return;
        model_plan_add(m, w[0], model_chunk(m, w[0], 0, spare));
    }
}

static inline void model_plan(struct model_sched *m)
{
    int32_t spare = m->cfg.max_logits - m->cfg.max_seqs;
    m->n_plan = m->n_tokens = 0;
    memset(m->n_step, 0, sizeof m->n_step);
    for (int32_t i = 0; i < MODEL_SEQS; i++)
        m->seqs[i].stalled = false;
    model_make_way(m);
    uint64_t before = m->n_preemptions;
    model_decodes(m);
    bool scarce = m->n_preemptions != before;
    model_prefills(m, &spare);
    if (!scarce)
        model_admissions(m, &spare);
}

static inline void model_sched_publish(struct model_sched *m, struct model_seq *q, int32_t n_done)
{
    while (q->owner->publish && (q->n_published + 1) * m->kv.block <= n_done) {
        model_publish(&m->kv, q->ns, model_text(q), &q->b, q->n_published);
        q->n_published++;
    }
    model_pass(&m->kv, &q->b, n_done);
}

#endif
