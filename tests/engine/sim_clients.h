/* SPDX-License-Identifier: MIT
 * sim_clients.h - clients in the process, which use the engine through sluice.h: they submit, read
 * at their own pace, cancel, or let go without a word.
 */
#ifndef SL_TESTS_SIM_CLIENTS_H
#define SL_TESTS_SIM_CLIENTS_H

#include "engine/sim_oracle.h"

static void check_logprobs(struct world *w, const struct oracle *o, const struct oracle_seq *s,
                           const struct sl_token *t, const float *row)
{
    struct sl_logprob lp;
    struct sl_top_logprob top[SL_MAX_LOGPROBS];
    int32_t k = o->desc.sampling.logprobs;
    if (k < 0)
        return;
    if (!sl_logprobs(row, w->cfg.n_vocab, t->id, k, &lp, top) ||
        memcmp(&lp.logprob, &t->logprob, sizeof lp.logprob) != 0 || lp.rank != t->rank ||
        t->n_top != SL_MIN(k, w->cfg.n_vocab) ||
        (t->n_top > 0 && memcmp(top, t->top, (size_t)t->n_top * sizeof *top) != 0))
        violation(w, "I11: token %d has other log probabilities", s->n);
}

static void check_prompt_logprobs(struct world *w, const struct client *cl)
{
    const struct oracle *o = &cl->o;
    const struct sl_token *t = sl_request_prompt_logprobs(cl->req);
    int32_t k = o->desc.sampling.prompt_logprobs;
    if (k < 0 || o->seqs[0].n == 0)
        return;
    if (t == NULL)
        violation(w, "no prompt_logprobs though a token came");
    uint64_t h = w->hash_key;
    for (int32_t i = 1; i < o->desc.n_prompt; i++) {
        float row[MAX_VOCAB];
        struct sl_logprob lp;
        struct sl_top_logprob top[SL_MAX_LOGPROBS];
        h = hash_token(h, o->prompt[i - 1], i - 1);
        make_row(w, oracle_hash(w, o, &o->seqs[0], h, i - 1), row);
        if (!sl_logprobs(row, w->cfg.n_vocab, o->prompt[i], k, &lp, top))
            violation(w, "prompt row %d holds no number, but the request went on", i);
        if (t[i].id != o->prompt[i] || t[i].rank != lp.rank ||
            memcmp(&t[i].logprob, &lp.logprob, sizeof lp.logprob) != 0 ||
            (k > 0 && memcmp(t[i].top, top, (size_t)k * sizeof *top) != 0))
            violation(w, "I11: prompt token %d has other log probabilities", i);
    }
}

static void release(struct world *w, struct client *cl)
{
    struct sl_usage u;
    sl_request_usage(cl->req, &u);
    if (sl_request_done(cl->req)) {
        int32_t n = 0;
        for (int32_t i = 0; i < cl->req->n_seqs; i++)
            n += cl->o.seqs[i].n;
        if (u.n_output != n || u.n_prompt != cl->o.desc.n_prompt || u.n_cached >= u.n_prompt)
            violation(w, "I5: usage says %d + %d tokens (%d cached), delivered %d", u.n_prompt,
                      u.n_output, u.n_cached, n);
        check_prompt_logprobs(w, cl);
    }
    total.hits += (uint64_t)u.n_cached;
    total.tokens += (uint64_t)u.n_output;
    w->own = false;
    sl_request_release(cl->req);
    w->own = true;
    cl->req = NULL;
}

static void keep_conversation(struct world *w, const struct oracle *o, uint64_t purpose)
{
    const struct oracle_seq *s = &o->seqs[0];
    if (o->desc.n_prompt + s->n >= w->cfg.max_len - 4 || noise(w, purpose, 2) == 0)
        return;
    w->n_last = o->desc.n_prompt + s->n;
    memcpy(w->last, o->prompt, (size_t)o->desc.n_prompt * sizeof(int32_t));
    memcpy(w->last + o->desc.n_prompt, s->tokens, (size_t)s->n * sizeof(int32_t));
}

/* Once all was read: a request fails only for a row without a number, or with a failed step. */
static void check_error(struct world *w, struct client *cl)
{
    const struct sl_error *err = sl_request_error(cl->req);
    bool no_memory = cl->o.constrained && err->code == SL_ENOMEM && w->n_alloc_faults > 0;
    if (!steps_may_fail(w) && !no_memory && !oracle_may_fail(w, &cl->o))
        violation(w, "a request failed without a reason: %s", err->msg);
}

static void read_client(struct world *w, struct client *cl)
{
    struct sl_chunk c;
    float row[MAX_VOCAB];
    while (sl_request_read(cl->req, &c)) {
        struct oracle_seq *s = &cl->o.seqs[c.seq_idx];
        if (c.n_text == 0 && c.n_tokens == 0 && c.finish == SL_RUNNING)
            violation(w, "an empty chunk");
        for (size_t i = 0; i < c.n_tokens; i++) {
            oracle_take(w, &cl->o, s, c.tokens[i].id, row);
            check_logprobs(w, &cl->o, s, &c.tokens[i], row);
        }
        take_text(w, s, c.text, c.n_text);
        if (c.finish == SL_FINISH_ABORT && !cl->cancelled)
            violation(w, "I3: aborted, but nobody cancelled");
        if (c.finish == SL_FINISH_ERROR && sl_request_error(cl->req)->code == 0)
            violation(w, "a failed sequence has no error");
        if (c.finish != SL_RUNNING)
            oracle_finish(w, &cl->o, s, c.finish);
    }
    if (!sl_request_done(cl->req))
        return;
    if (sl_request_error(cl->req)->code != 0)
        check_error(w, cl);
    keep_conversation(w, &cl->o, 100);
    if (w->cfg.retain_pct > 0 && noise(w, 101, 3) > 0)
        sl_request_calls(cl->req, noise(w, 102, cl->req->n_seqs), 1 + (uint64_t)noise(w, 103, 3));
    say("  client %d done\n", (int)(cl - w->clients));
    release(w, cl);
}

/* ------------------------------------------------------------------ acts */

static void act_request(struct world *w, uint64_t seed)
{
    struct sl_rng r = {.seed = seed};
    struct client *cl = NULL;
    for (int32_t i = 0; i < MAX_CLIENTS && cl == NULL; i++)
        cl = w->clients[i].req == NULL ? &w->clients[i] : NULL;
    if (cl == NULL)
        return;
    memset(cl, 0, sizeof *cl);
    oracle_make(w, &r, &cl->o, false);
    cl->read_every = chance(&r, 70) ? 1 : between(&r, 2, 30);
    if (w->cfg.n_sessions > 0)
        cl->o.desc.session = sl_mix64(seed) % (uint64_t)(w->cfg.n_sessions + 1);
    struct sl_error err;
    uint64_t n_faults = w->n_alloc_faults;
    w->own = false;
    const char *text = cl->o.forcing ? SIM_FORCING : SIM_FREE;
    const struct sl_constraint_desc regex = {
        .kind = SL_GRAMMAR_REGEX, .text = text, .n_text = strlen(text)};
    int rc = 0;
    if (cl->o.constrained)
        rc = sl_constraint_open(w->eng, &regex, &cl->o.desc.constraint, &err);
    if (rc == 0)
        rc = sl_request_submit(w->eng, &cl->o.desc, &cl->req, &err);
    sl_constraint_release(cl->o.desc.constraint);
    w->own = true;
    if (rc != 0) {
        bool why = (rc == SL_EBUSY && w->cfg.max_queued < 100) ||
                   (rc == SL_EDEVICE && has_act(w, ACT_DEVICE_DIES)) ||
                   (rc == SL_ESTALLED && has_act(w, ACT_HANG)) ||
                   (rc == SL_ENOMEM && w->n_alloc_faults > n_faults);
        if (!why)
            violation(w, "a request is refused: %s", err.msg);
        cl->req = NULL;
        return;
    }
    w->n_seqs_accepted += cl->o.desc.sampling.n;
    say("client %d: prompt %d, max_tokens %d, n %d, priority %d\n", (int)(cl - w->clients),
        cl->o.desc.n_prompt, cl->o.desc.sampling.max_tokens, cl->o.desc.sampling.n,
        cl->o.desc.priority);
}

static void act_cancel(struct world *w, uint64_t seed)
{
    struct sl_rng r = {.seed = seed};
    int32_t first = below(&r, MAX_CLIENTS);
    struct client *cl = NULL;
    for (int32_t i = 0; i < MAX_CLIENTS && cl == NULL; i++) {
        struct client *at = &w->clients[(first + i) % MAX_CLIENTS];
        cl = at->req != NULL && !at->cancelled ? at : NULL;
    }
    if (cl == NULL)
        return;
    say("client %d cancels\n", (int)(cl - w->clients));
    sl_request_cancel(cl->req);
    cl->cancelled = true;
    cl->cancelled_turn = w->n_turns_engine;
    if (chance(&r, 30))
        release(w, cl); /* never looks again */
}

/* ------------------------------------------------------------------ after every turn */

static void check_order(struct world *w)
{
    const struct sl_sched *s = &w->eng->sched;
    /* Steps behind one that fails are done again, which leaves alone who was not in them: one of
     * them, or of groups as many as are in flight. */
    const uint64_t behind = (uint64_t)SL_MAX(w->eng->max_flights - 1, 1);
    bool redone = w->failed_turn != 0 && w->n_turns_engine <= w->failed_turn + behind;
    for (int32_t c = 0; c < MAX_CLIENTS; c++) {
        struct client *cl = &w->clients[c];
        for (int32_t i = 0; cl->req != NULL && i < cl->req->n_seqs; i++) {
            const struct sl_seq *seq = &cl->req->seqs[i].seq;
            bool preempted = seq->n_preempted > cl->n_preempted[i];
            bool late = w->cfg.state_pages > 0 && seq->holds; /* its mask was */
            if (seq->state == SL_SEQ_WAITING && preempted && !redone && !late && s->n_running > 0 &&
                sl_seq_before(seq, s->running[s->n_running - 1]))
                violation(w, "a sequence was preempted though a worse one runs");
            cl->n_preempted[i] = seq->n_preempted;
            bool admitted = seq->state == SL_SEQ_RUNNING && !cl->was_running[i];
            const struct sl_seq *best = sl_wait_best(&s->wait);
            if (admitted && best != NULL && best->n_preempted == 0 && best->blocked_at != 0 &&
                sl_seq_before(best, seq))
                violation(w, "a sequence overtook a better one that waits");
            cl->was_running[i] = seq->state == SL_SEQ_RUNNING;
        }
    }
}

/* In the turn in which a sequence ends well, its first page can be found by the next one. */
static void check_kept(struct world *w, struct client *cl)
{
    if (cl->ended || !atomic_load(&cl->req->over))
        return;
    cl->ended = true;
    const struct sl_seq *seq = &cl->req->seqs[0].seq;
    if (!w->cfg.caching || w->cfg.nan_every > 0 || steps_may_fail(w) || cl->cancelled ||
        cl->req->n_seqs > 1 || seq->n_prompt < w->cfg.block_size)
        return;
    /* With masks a sequence may end before the turn's step is planned, which takes pages. */
    if (cl->o.constrained || (w->cfg.late && w->eng->masker.n_masks > 0))
        return;
    if (cl->o.desc.sampling.n_bad_words + cl->o.desc.sampling.n_allowed_token_ids > 0)
        return;                              /* it may have failed: nothing could come */
    if (w->cfg.late && seq->n_preempted > 0) /* perhaps while its last step ran */
        return;
    if (sl_radix_find(&w->eng->kv.tree, SL_NO_PAGE, seq->ns, seq->prompt) == SL_NO_PAGE)
        violation(w, "the first page of a prompt was not kept");
}

static void check_clients(struct world *w)
{
    check_order(w);
    for (int32_t i = 0; i < MAX_CLIENTS; i++) {
        struct client *cl = &w->clients[i];
        if (cl->req == NULL)
            continue;
        check_kept(w, cl);
        if (cl->cancelled && cl->cancelled_turn < w->n_turns_engine && !atomic_load(&cl->req->over))
            violation(w, "I3: client %d cancelled and still runs", i);
    }
}

static int32_t n_clients(const struct world *w)
{
    int32_t n = 0;
    for (int32_t i = 0; i < MAX_CLIENTS; i++)
        n += w->clients[i].req != NULL;
    return n;
}

static void read_clients(struct world *w)
{
    for (int32_t i = 0; i < MAX_CLIENTS; i++) {
        struct client *cl = &w->clients[i];
        if (cl->req != NULL && (w->calm || w->turn % (uint64_t)cl->read_every == 0))
            read_client(w, cl);
    }
}

#endif
