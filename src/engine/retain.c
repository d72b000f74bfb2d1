/* SPDX-License-Identifier: MIT */
#include "engine/retain.h"

#include "base/check.h"
#include "base/sys.h"
#include "engine/stats.h"
#include "engine/turn.h"

#include <math.h>
#include <string.h>

#define SESSION_WAYS 8                            /* places that a session may have */
#define SESSION_S    600                          /* without a request, then it is a new one */
#define MOST_S       60.0                         /* a lease */
#define FORGOTTEN_NS (UINT64_C(600) * 1000000000) /* a mark: the conversation does not go on */
#define PRICE_S      10.0                         /* what happened then counts a third */

int sl_retain_init(struct sl_engine *eng, double share, struct sl_error *err)
{
    struct sl_retain *r = &eng->retain;
    const int32_t n_nodes = eng->kv.nodes.n_ids;
    SL_ASSERT(share >= 0 && share < 1 && n_nodes > 0 && r->sessions == NULL);
    for (int32_t i = 0; i < SL_MAX_KV_LEASES; i++)
        r->marks[i].leaf = SL_NO_NODE;
    r->sessions = sl_calloc(SL_MAX_SESSIONS, sizeof *r->sessions);
    r->mark_of = sl_calloc((size_t)n_nodes, sizeof *r->mark_of);
    if (r->sessions == NULL || r->mark_of == NULL) {
        sl_retain_deinit(eng);
        return sl_fail(err, SL_ENOMEM, "out of memory for %d sessions", SL_MAX_SESSIONS);
    }
    for (int32_t i = 0; i < n_nodes; i++)
        r->mark_of[i] = -1;
    sl_kv_allow_leases(&eng->kv, (int32_t)(share * n_nodes));
    return 0;
}

void sl_retain_deinit(struct sl_engine *eng)
{
    sl_free(eng->retain.sessions);
    sl_free(eng->retain.mark_of);
    eng->retain.sessions = NULL;
    eng->retain.mark_of = NULL;
}

/* ------------------------------------------------------------------ sessions */

static struct sl_session *session_places(struct sl_retain *r, uint64_t key)
{
    _Static_assert(SL_MAX_SESSIONS % SESSION_WAYS == 0, "sets of places are whole");
    return &r->sessions[key % (SL_MAX_SESSIONS / SESSION_WAYS) * SESSION_WAYS];
}

static struct sl_session *session_find(struct sl_retain *r, uint64_t key)
{
    struct sl_session *set = session_places(r, key);
    for (int i = 0; i < SESSION_WAYS && key != 0; i++)
        if (set[i].used > 0 && set[i].key == key)
            return &set[i];
    return NULL;
}

/* NULL: the places that it may have are those of sessions with open requests. */
static struct sl_session *session_make(struct sl_retain *r, uint64_t key)
{
    struct sl_session *set = session_places(r, key), *best = NULL;
    for (int i = 0; i < SESSION_WAYS; i++)
        if (set[i].n_open == 0 && (best == NULL || set[i].used < best->used))
            best = &set[i];
    if (best != NULL)
        *best = (struct sl_session){.key = key};
    return best;
}

/* The request's place in the queue is its session's, if that has no other request open. */
static void session_enter(struct sl_engine *eng, struct sl_request *req)
{
    struct sl_retain *r = &eng->retain;
    struct sl_seq *seq = &req->seqs[0].seq;
    struct sl_session *s = session_find(r, req->session);
    if (req->session == 0)
        return;
    if (s != NULL && s->n_open == 0 && eng->now_ns > s->used + (uint64_t)SESSION_S * 1000000000u)
        s->arrival = seq->arrival;
    if (s == NULL && (s = session_make(r, req->session)) != NULL)
        s->arrival = seq->arrival;
    if (s == NULL) {
        req->session = 0; /* not one that is followed */
        return;
    }
    SL_ASSERT(s->key == req->session && s->n_open >= 0);
    if (s->n_open++ == 0)
        seq->arrival = SL_MIN(seq->arrival, s->arrival);
    s->used = SL_MAX(eng->now_ns, 1);
}

static void session_leave(struct sl_engine *eng, struct sl_request *req)
{
    struct sl_session *s = session_find(&eng->retain, req->session);
    if (s == NULL)
        return;
    SL_ASSERT(s->n_open > 0);
    s->n_open--;
    s->used = SL_MAX(eng->now_ns, 1);
}

/* ------------------------------------------------------------------ marks */

/* Does the node still hold the text that it held then? */
static bool is_there(const struct sl_engine *eng, int32_t leaf, const struct sl_hash128 *name)
{
    const struct sl_kv_node *n = &eng->kv.tree.nodes[leaf];
    return n->in_tree && !n->dead && n->name.lo == name->lo && n->name.hi == name->hi;
}

static struct sl_kv_lease *mark_lease(struct sl_engine *eng, const struct sl_mark *m)
{
    struct sl_kv_lease *l = m->lease >= 0 ? &eng->kv.leases.list[m->lease] : NULL;
    return l != NULL && l->leaf == m->leaf && l->serial == m->serial ? l : NULL;
}

static void mark_free(struct sl_engine *eng, struct sl_mark *m)
{
    struct sl_retain *r = &eng->retain;
    SL_ASSERT(m->leaf != SL_NO_NODE && r->n_marks > 0);
    if (mark_lease(eng, m) != NULL)
        sl_kv_end_lease(&eng->kv, m->lease);
    if (r->mark_of[m->base] == (int32_t)(m - r->marks))
        r->mark_of[m->base] = -1;
    m->leaf = SL_NO_NODE;
    r->n_marks--;
}

/* Nothing goes on from it any more. A lease that fell says nothing about whether anything would
 * have, one that came to its end does. */
static void mark_forget(struct sl_engine *eng, struct sl_mark *m)
{
    if (!m->returned && is_there(eng, m->leaf, &m->name))
        sl_tool_times_add(&eng->retain.tools, m->tool, -1);
    mark_free(eng, m);
}

/* The mark whose prompt this one begins with, the longest; NULL: none that is known. */
static struct sl_mark *mark_below(struct sl_engine *eng, struct sl_request *req)
{
    struct sl_retain *r = &eng->retain;
    const struct sl_kv_text text = {req->prompt, req->n_prompt, NULL, 0};
    int32_t node = sl_kv_deepest(&eng->kv, &req->ns, &text, req->n_prompt / eng->kv.block_size);
    for (; node != SL_NO_NODE; node = eng->kv.tree.nodes[node].parent) {
        if (r->mark_of[node] < 0)
            continue;
        struct sl_mark *m = &r->marks[r->mark_of[node]];
        SL_ASSERT(m->leaf != SL_NO_NODE && m->base == node);
        if (!m->returned && m->n_prompt < req->n_prompt && is_there(eng, node, &m->base_name))
            return m;
    }
    return NULL;
}

/* The mark that the request goes on from, by its text or what its session left; NULL: none. */
static struct sl_mark *mark_find(struct sl_engine *eng, struct sl_request *req)
{
    struct sl_retain *r = &eng->retain;
    struct sl_mark *m = r->n_marks > 0 ? mark_below(eng, req) : NULL;
    if (m != NULL || r->n_marks == 0)
        return m;
    for (int32_t i = 0; i < SL_MAX_KV_LEASES && req->session != 0; i++)
        if (r->marks[i].leaf != SL_NO_NODE && r->marks[i].session == req->session &&
            !r->marks[i].returned)
            return &r->marks[i];
    return NULL;
}

/* A free place, or that of the oldest mark; NULL: requests wait to go on from all of them. */
static struct sl_mark *mark_make(struct sl_engine *eng)
{
    struct sl_mark *oldest = NULL;
    for (int32_t i = 0; i < SL_MAX_KV_LEASES; i++) {
        struct sl_mark *m = &eng->retain.marks[i];
        if (m->leaf == SL_NO_NODE)
            return m;
        if (!m->returned && (oldest == NULL || m->ended_ns < oldest->ended_ns))
            oldest = m;
    }
    if (oldest != NULL)
        mark_forget(eng, oldest);
    return oldest;
}

/* ------------------------------------------------------------------ what a lease is worth */

/* The share of the cache that was given up in a second, lately. */
static double price_now(struct sl_engine *eng)
{
    struct sl_retain *r = &eng->retain;
    const struct sl_kv *kv = &eng->kv;
    const uint64_t n = kv->n_evicted[SL_EVICT_PROMPT] + kv->n_evicted[SL_EVICT_OUTPUT];
    const double seconds = sl_seconds(r->price_ns, eng->now_ns);
    if (r->price_ns == 0 || seconds > 0) {
        const double now = seconds > 0 && r->price_ns != 0
                               ? (double)(n - r->n_taken) / seconds / kv->nodes.n_ids
                               : 0;
        r->price += (now - r->price) * (1 - exp(-seconds / PRICE_S));
        r->price_ns = eng->now_ns;
        r->n_taken = n;
    }
    return SL_MAX(r->price, 0);
}

/* Seconds to compute so many tokens again, or what is proportional to them while nothing is known.
 */
static double compute_cost(const struct sl_engine *eng, int32_t n_tokens)
{
    const double s = sl_cost_of(&eng->sched.cost, sl_work_add((struct sl_work){0}, 0, n_tokens));
    return s > 0 ? s : 1e-6 * n_tokens;
}

static void mark_keep(struct sl_engine *eng, struct sl_mark *m, const struct sl_seq *seq)
{
    struct sl_retain *r = &eng->retain;
    const int32_t n_tokens = sl_seq_n_known(seq);
    const struct sl_tool_wait w = sl_tool_times_wait(&r->tools, m->tool, price_now(eng), MOST_S);
    const double waited = sl_seconds(m->ended_ns, eng->now_ns);
    SL_ASSERT(n_tokens > 0 && w.returns >= 0 && w.returns < 1.01);
    if (w.seconds <= waited)
        return;
    m->serial = ++r->n_serials;
    const struct sl_kv_lease what = {.serial = m->serial,
                                     .end_ns = m->ended_ns + (uint64_t)(w.seconds * 1e9),
                                     .worth = w.returns * compute_cost(eng, n_tokens) / n_tokens,
                                     .priority = seq->priority,
                                     .arrival = m->arrival};
    m->lease = sl_kv_lease(&eng->kv, m->leaf, &m->name, &what);
}

/* ------------------------------------------------------------------ events */

void sl_retain_begin(struct sl_engine *eng, struct sl_request *req)
{
    SL_ASSERT(req->mark < 0);
    session_enter(eng, req);
    struct sl_mark *m = mark_find(eng, req);
    if (m == NULL)
        return;
    sl_tool_times_add(&eng->retain.tools, m->tool,
                      sl_seconds(m->ended_ns, req->usage_now.t_submit_ns));
    req->mark = (int32_t)(m - eng->retain.marks);
    req->seqs[0].seq.arrival = SL_MIN(req->seqs[0].seq.arrival, m->arrival);
    m->returned = true;
    eng->stats.tool_returns++;
    struct sl_kv_lease *l = mark_lease(eng, m);
    if (l != NULL)
        l->end_ns = UINT64_MAX;
}

void sl_retain_started(struct sl_engine *eng, struct sl_request *req)
{
    if (req->mark < 0)
        return;
    SL_ASSERT(eng->retain.marks[req->mark].returned);
    mark_free(eng, &eng->retain.marks[req->mark]);
    req->mark = -1;
}

void sl_retain_end(struct sl_engine *eng, struct sl_request *req)
{
    sl_retain_started(eng, req);
    session_leave(eng, req);
}

void sl_retain_note(struct sl_engine *eng, struct sl_rseq *rs)
{
    const struct sl_seq *seq = &rs->seq;
    rs->leaf = SL_NO_NODE;
    if (seq->state != SL_SEQ_RUNNING || seq->n_published == 0)
        return;
    rs->leaf = seq->blocks.nodes[seq->n_published - 1];
    rs->leaf_name = eng->kv.tree.nodes[rs->leaf].name;
    const int32_t n = seq->n_prompt / eng->kv.block_size;
    rs->base = seq->blocks.nodes[SL_MIN(SL_MAX(n, 1), seq->n_published) - 1];
    rs->base_name = eng->kv.tree.nodes[rs->base].name;
    rs->ended_ns = eng->now_ns;
}

void sl_retain_call(struct sl_engine *eng, struct sl_request *req)
{
    struct sl_retain *r = &eng->retain;
    const struct sl_rseq *rs = &req->seqs[req->calling];
    if (rs->leaf == SL_NO_NODE || !is_there(eng, rs->leaf, &rs->leaf_name) ||
        !is_there(eng, rs->base, &rs->base_name))
        return;
    struct sl_mark *m = mark_make(eng);
    if (m == NULL)
        return;
    SL_ASSERT(m->leaf == SL_NO_NODE && req->calling < req->n_seqs);
    *m = (struct sl_mark){.leaf = rs->leaf,
                          .name = rs->leaf_name,
                          .base = rs->base,
                          .base_name = rs->base_name,
                          .n_prompt = rs->seq.n_prompt,
                          .tool = req->tool,
                          .session = req->session,
                          .arrival = rs->seq.arrival,
                          .ended_ns = rs->ended_ns,
                          .lease = -1};
    r->n_marks++;
    r->mark_of[m->base] = (int32_t)(m - r->marks);
    mark_keep(eng, m, &rs->seq);
}

void sl_retain_turn(struct sl_engine *eng)
{
    struct sl_retain *r = &eng->retain;
    if (eng->kv.leases.n > 0)
        sl_kv_end_leases(&eng->kv, eng->now_ns);
    if (r->n_marks == 0)
        return;
    r->looked_at = (r->looked_at + 1) % SL_MAX_KV_LEASES;
    struct sl_mark *m = &r->marks[r->looked_at];
    if (m->leaf != SL_NO_NODE && !m->returned && eng->now_ns > m->ended_ns + FORGOTTEN_NS)
        mark_forget(eng, m);
}
