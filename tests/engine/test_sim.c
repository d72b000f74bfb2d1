/* SPDX-License-Identifier: MIT
 * A deterministic simulator of the engine: the real scheduler, caches, sampler and delivery on one
 * thread, under a virtual clock, on a device that computes nothing.
 *
 * The device stores each token with its position in the page and slot the block table names. For a
 * row of logits it hashes everything it reads back through the table, from position 0 on, and makes
 * the logits from the hash. A page that is wrong, stale, freed too early, shared by mistake or only
 * half computed therefore changes the answer. The oracle computes the same logits from the
 * request's own tokens and knows nothing of pages. Each seed draws a configuration and a load:
 * shared prefixes, conversations that go on, cancellations, slow readers, several sequences,
 * priorities, pools so small that sequences are preempted, failing steps, rows that hold no number.
 *
 * After every step the integrity of pool, tree, tables and queues is walked.
 *
 *   test_sim --seeds N [--first S]    runs seeds S .. S + N - 1 (default: 200 from 1)
 *   test_sim --seed S                 runs one and prints what happens
 */
#include "base/check.h"
#include "base/rng.h"
#include "base/str.h"
#include "base/sys.h"
#include "engine/core.h"
#include "engine/late_runner.h"

#include <math.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define MAX_VOCAB    48
#define MAX_CLIENTS  48
#define MAX_LEN      192
#define MAX_SIM_N    4
#define MAX_PAGES    128
#define N_BASES      4
#define EOS_ID       1
#define STEP_NS      10000000u
#define CLIENT_STOPS 2

struct client_seq {
    uint64_t hash, seed;
    int32_t tokens[MAX_LEN];
    int32_t n;
    bool ended;
};

struct client {
    struct sl_request *req; /* NULL: the place is free */
    struct sl_request_desc desc;
    int32_t prompt[MAX_LEN];
    int32_t stop_ids[CLIENT_STOPS];
    int32_t max_out;
    bool cancelled, ended;
    int read_every; /* steps between reads */
    struct client_seq seqs[MAX_SIM_N];
    int32_t n_preempted[MAX_SIM_N]; /* after the last step */
    bool was_running[MAX_SIM_N];
};

struct config {
    int32_t n_vocab, n_pages, block_size, max_seqs, max_tokens, extra_rows, max_len, max_queued;
    int32_t n_requests, n_priorities, max_n, arrival_pct, cancel_pct, nan_every, fail_every;
    bool caching, salts, sampling, late, penalties;
};

struct world {
    uint64_t seed_no;
    struct sl_rng rng;
    struct config cfg;
    struct sl_engine *eng;
    uint64_t hash_key;

    /* device */
    int32_t *page_token, *page_pos; /* [n_pages, block_size] */
    const char **page_salt;         /* [n_pages] of the request that wrote it */
    float *rows;
    struct late_runner late;
    uint64_t n_steps, n_preemptions;
    bool orphans; /* a request was released before its end: its salt is not known any more */

    struct client clients[MAX_CLIENTS];
    int32_t bases[N_BASES][MAX_LEN];
    int32_t last[MAX_LEN]; /* a conversation that may go on */
    int32_t n_last;
    int32_t n_submitted, n_seqs_accepted, n_cancelled;
    uint64_t n_ended[5];
};

static uint64_t virtual_ns, current_seed;
static bool trace, fail_alloc;
static uint64_t total_steps, total_preemptions, total_hits, total_tokens, total_overlaps;

static uint64_t virtual_now(void)
{
    return virtual_ns;
}

static void *failing_alloc(size_t n)
{
    return fail_alloc ? NULL : sl_sys_real.alloc(n);
}

/* The engine logs every failed step, which is every minute here. */
static ssize_t quiet_write(int fd, const void *buf, size_t n)
{
    return fd == STDERR_FILENO && !trace ? (ssize_t)n : sl_sys_real.write(fd, buf, n);
}

__attribute__((format(printf, 2, 3), noreturn)) static void violation(const struct world *w,
                                                                      const char *fmt, ...)
{
    va_list ap;
    va_start(ap, fmt);
    printf("sim: seed %llu, step %llu: ", (unsigned long long)w->seed_no,
           (unsigned long long)w->n_steps);
    vprintf(fmt, ap);
    va_end(ap);
    printf("\nreplay: make sim SEED=%llu\n", (unsigned long long)w->seed_no);
    exit(1);
}

__attribute__((format(printf, 1, 2))) static void say(const char *fmt, ...)
{
    if (!trace)
        return;
    va_list ap;
    va_start(ap, fmt);
    vprintf(fmt, ap);
    va_end(ap);
}

static int32_t below(struct world *w, int32_t n)
{
    return (int32_t)sl_rng_below(&w->rng, (uint64_t)n);
}

static int32_t between(struct world *w, int32_t lo, int32_t hi)
{
    return lo + below(w, hi - lo + 1);
}

static bool chance(struct world *w, int32_t pct)
{
    return below(w, 100) < pct;
}

/* ------------------------------------------------------------------ device and oracle */

static uint64_t hash_token(uint64_t h, int32_t token, int32_t pos)
{
    h ^= (uint64_t)(uint32_t)token << 32 | (uint32_t)pos;
    h *= 0x9FB21C651E98DF25u;
    return h ^ h >> 29;
}

static void make_row(const struct world *w, uint64_t hash, float *row)
{
    for (int32_t i = 0; i < w->cfg.n_vocab; i++)
        row[i] = (float)(sl_mix64(hash + (uint64_t)i * 0x9E3779B97F4A7C15u) >> 44) * 0x1p-17f;
    if (w->cfg.nan_every > 0 && sl_mix64(hash ^ 77) % (uint64_t)w->cfg.nan_every == 0)
        row[hash % (uint64_t)w->cfg.n_vocab] = NAN;
}

static const char *salt_of(const struct world *w, int32_t span)
{
    const struct sl_rseq *rs = sl_rseq_of(w->eng->sched.plan[span]);
    const char *salt = NULL;
    for (int32_t i = 0; i < MAX_CLIENTS; i++)
        if (w->clients[i].req == rs->req)
            salt = w->clients[i].desc.cache_salt;
    return salt;
}

static void write_span(struct world *w, const struct sl_batch *b, const struct sl_span *s)
{
    int32_t bs = w->cfg.block_size;
    const char *salt = salt_of(w, (int32_t)(s - b->spans));
    const struct sl_seq *seq = w->eng->sched.plan[s - b->spans];
    if (s->pos + s->n >= seq->n_prompt + seq->max_out)
        violation(w, "the last token is computed, though nothing follows it");
    for (int32_t j = 0; j < s->n; j++) {
        int32_t pos = s->pos + j, page = b->block_tables[s->table_idx + pos / bs];
        if (b->positions[s->first + j] != pos)
            violation(w, "token %d of a span has position %d, not %d", j,
                      b->positions[s->first + j], pos);
        if (page < 0 || page >= w->cfg.n_pages)
            violation(w, "block table names page %d", page);
        if (w->eng->kv.tree.nodes[page].in_tree)
            violation(w, "a page of the prefix tree is written");
        w->page_token[page * bs + pos % bs] = b->tokens[s->first + j];
        w->page_pos[page * bs + pos % bs] = pos;
        w->page_salt[page] = salt;
    }
}

static uint64_t read_back(const struct world *w, const struct sl_batch *b, const struct sl_span *s,
                          int32_t pos)
{
    int32_t bs = w->cfg.block_size;
    const int32_t *table = b->block_tables + s->table_idx;
    const char *salt = salt_of(w, (int32_t)(s - b->spans));
    uint64_t h = w->hash_key;
    for (int32_t p = 0; p <= pos; p++) {
        if (w->page_salt[table[p / bs]] != salt && !w->orphans)
            violation(w, "a page of another cache_salt is read");
        int32_t at = table[p / bs] * bs + p % bs;
        h = hash_token(h, w->page_token[at], w->page_pos[at]);
    }
    return h;
}

static void check_plan(struct world *w, const struct sl_batch *b);

static int device_step(void *ctx, const struct sl_batch *b, const float **logits,
                       struct sl_error *err)
{
    struct world *w = ctx;
    w->n_steps++;
    virtual_ns += STEP_NS;
    check_plan(w, b);
    for (int32_t i = 0; i < b->n_spans; i++)
        write_span(w, b, &b->spans[i]);
    for (int32_t r = 0, i = 0; r < b->n_logits; r++) {
        int32_t at = b->logit_rows[r];
        while (at >= b->spans[i].first + b->spans[i].n)
            i++;
        const struct sl_span *s = &b->spans[i];
        make_row(w, read_back(w, b, s, s->pos + at - s->first), w->rows + r * w->cfg.n_vocab);
    }
    *logits = w->rows;
    if (w->cfg.fail_every == 0 || below(w, w->cfg.fail_every) != 0)
        return 0;
    /* The step fails half way: pages that only its sequences hold are garbage now, those found in
     * the cache included, and nobody may read them again. */
    int32_t bs = w->cfg.block_size;
    for (int32_t i = 0; i < b->n_spans; i++)
        for (int32_t p = 0; p < SL_CEIL_DIV(b->spans[i].pos + b->spans[i].n, bs); p++) {
            int32_t page = b->block_tables[b->spans[i].table_idx + p];
            for (int32_t j = 0; j < bs && w->eng->kv.pool.refs[page] == 1; j++)
                w->page_token[page * bs + j] = -7;
        }
    say("  the step fails\n");
    return sl_fail(err, SL_EINTERNAL, "simulated fault");
}

/* What the plan must be like, seen from the device. */
static void check_plan(struct world *w, const struct sl_batch *b)
{
    const struct sl_sched *s = &w->eng->sched;
    if (b->n_tokens > w->cfg.max_tokens || b->n_spans > w->cfg.max_seqs ||
        b->n_logits > w->cfg.max_seqs + w->cfg.extra_rows || b->n_tokens < 1)
        violation(w, "batch of %d tokens, %d sequences, %d rows is over budget or empty",
                  b->n_tokens, b->n_spans, b->n_logits);
    int32_t next = 0;
    for (int32_t i = 0; i < b->n_spans; i++) {
        if (b->spans[i].first != next || b->spans[i].n < 1)
            violation(w, "the spans do not cover the batch");
        next += b->spans[i].n;
        say("  %s%d+%d", i == 0 ? "step: " : "", b->spans[i].pos, b->spans[i].n);
    }
    say("\n");
    if (next != b->n_tokens)
        violation(w, "the spans do not cover the batch");
    for (int32_t i = 0; i < s->n_running; i++)
        if (s->running[i]->n_step < 1 && !sl_seq_held(s->running[i]))
            violation(w, "a running sequence is left out of the step");
    const char *bad = sl_sched_check(&w->eng->sched);
    if (bad != NULL)
        violation(w, "in the plan: %s", bad);
    const struct sl_seq *best = sl_wait_best(&s->wait);
    if (best != NULL && !sl_seq_held(best) && s->n_preemptions == w->n_preemptions &&
        s->n_running < w->cfg.max_seqs && s->n_plan_tokens < w->cfg.max_tokens &&
        sl_kv_n_available(s->kv) >=
            SL_CEIL_DIV(sl_seq_n_tokens(best), w->cfg.block_size) + s->n_running)
        violation(w, "a sequence waits though there is room");
    w->n_preemptions = s->n_preemptions;
}

static void check_order(struct world *w)
{
    const struct sl_sched *s = &w->eng->sched;
    for (int32_t c = 0; c < MAX_CLIENTS; c++) {
        struct client *cl = &w->clients[c];
        if (cl->req == NULL)
            continue;
        for (int32_t i = 0; i < cl->req->n_seqs; i++) {
            const struct sl_seq *seq = &cl->req->seqs[i].seq;
            bool preempted = seq->n_preempted > cl->n_preempted[i];
            if (seq->state == SL_SEQ_WAITING && preempted && s->n_running > 0 &&
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

/* The tokens of a sequence so far, counted anew: NULL without penalties. */
static const struct sl_counts *count_all(const struct client *cl, const struct client_seq *cs)
{
    static struct sl_count entries[2 * MAX_LEN];
    static int32_t slots[4 * MAX_LEN];
    static struct sl_counts counts;
    if (!sl_sampling_has_penalty(&cl->desc.sampling))
        return NULL;
    sl_counts_init(&counts, entries, slots, sl_counts_slots(MAX_LEN, MAX_VOCAB));
    for (int32_t i = 0; i < cl->desc.n_prompt; i++)
        sl_counts_add(&counts, cl->prompt[i], 0);
    for (int32_t i = 0; i < cs->n; i++)
        sl_counts_add(&counts, cs->tokens[i], 1);
    return &counts;
}

/* The token that must come next, -1: the row holds no number. */
static int32_t expect_token(struct world *w, struct client *cl, struct client_seq *cs,
                            struct sl_sampler *sampler, float *row)
{
    const struct sl_sampling *p = &cl->desc.sampling;
    make_row(w, cs->hash, row);
    int32_t eos = EOS_ID;
    bool ban = cs->n < p->min_tokens;
    struct sl_sample_args args = {
        .logits = row,
        .sampling = p,
        .seed = cs->seed,
        .pos = (uint64_t)(cl->desc.n_prompt + cs->n),
        .counts = count_all(cl, cs),
        .banned = {cl->stop_ids, &eos},
        .n_banned = {ban ? p->n_stop_token_ids : 0, ban && !p->ignore_eos ? 1 : 0}};
    return sl_sample(sampler, &args);
}

static enum sl_finish expect_finish(const struct client *cl, const struct client_seq *cs)
{
    const struct sl_sampling *p = &cl->desc.sampling;
    int32_t id = cs->tokens[cs->n - 1];
    bool stop = id == EOS_ID && !p->ignore_eos;
    for (int32_t i = 0; i < p->n_stop_token_ids; i++)
        stop = stop || id == p->stop_token_ids[i];
    if (stop && cs->n > p->min_tokens)
        return SL_FINISH_STOP;
    return cs->n == cl->max_out ? SL_FINISH_LENGTH : SL_RUNNING;
}

/* ------------------------------------------------------------------ readers */

static void check_token(struct world *w, struct client *cl, struct client_seq *cs,
                        const struct sl_token *t, struct sl_sampler *sampler)
{
    float row[MAX_VOCAB];
    int32_t id = expect_token(w, cl, cs, sampler, row);
    if (cs->ended)
        violation(w, "a token after the end");
    if (t->id != id)
        violation(w, "client %d: token %d is %d, the oracle says %d", (int)(cl - w->clients), cs->n,
                  t->id, id);
    if (cl->desc.sampling.logprobs >= 0) {
        struct sl_logprob lp;
        struct sl_top_logprob top[SL_MAX_LOGPROBS];
        if (!sl_logprobs(row, w->cfg.n_vocab, id, cl->desc.sampling.logprobs, &lp, top) ||
            memcmp(&lp.logprob, &t->logprob, sizeof lp.logprob) != 0 || lp.rank != t->rank ||
            t->n_top != cl->desc.sampling.logprobs ||
            (t->n_top > 0 && memcmp(top, t->top, (size_t)t->n_top * sizeof *top) != 0))
            violation(w, "token %d has other log probabilities", cs->n);
    }
    if (cs->n > 0 && expect_finish(cl, cs) != SL_RUNNING)
        violation(w, "the sequence should have ended before token %d", cs->n);
    cs->hash = hash_token(cs->hash, id, cl->desc.n_prompt + cs->n);
    cs->tokens[cs->n++] = id;
}

static void check_end(struct world *w, struct client *cl, struct client_seq *cs,
                      const struct sl_chunk *c)
{
    if (cs->ended)
        violation(w, "a second end");
    cs->ended = true;
    w->n_ended[c->finish]++;
    if (c->finish == SL_FINISH_ABORT) {
        if (!cl->cancelled)
            violation(w, "aborted, but nobody cancelled");
    } else if (c->finish == SL_FINISH_ERROR) {
        if (sl_request_error(cl->req)->code == 0)
            violation(w, "a failed sequence has no error");
    } else if (cs->n == 0 || c->finish != expect_finish(cl, cs)) {
        violation(w, "ended with reason %d after %d tokens", (int)c->finish, cs->n);
    }
}

static void check_prompt_logprobs(struct world *w, const struct client *cl)
{
    const struct sl_token *t = sl_request_prompt_logprobs(cl->req);
    int32_t k = cl->desc.sampling.prompt_logprobs;
    if (k < 0 || cl->seqs[0].n == 0)
        return;
    if (t == NULL)
        violation(w, "no prompt_logprobs though a token came");
    uint64_t h = w->hash_key;
    for (int32_t i = 1; i < cl->desc.n_prompt; i++) {
        float row[MAX_VOCAB];
        struct sl_logprob lp;
        struct sl_top_logprob top[SL_MAX_LOGPROBS];
        h = hash_token(h, cl->prompt[i - 1], i - 1);
        make_row(w, h, row);
        if (!sl_logprobs(row, w->cfg.n_vocab, cl->prompt[i], k, &lp, top))
            violation(w, "prompt row %d holds no number, but the request went on", i);
        if (t[i].id != cl->prompt[i] || t[i].rank != lp.rank ||
            memcmp(&t[i].logprob, &lp.logprob, sizeof lp.logprob) != 0 ||
            (k > 0 && memcmp(t[i].top, top, (size_t)k * sizeof *top) != 0))
            violation(w, "prompt token %d has other log probabilities", i);
    }
}

/* Once all was read: a request fails only for a row without a number, or with a failed step. */
static void check_error(struct world *w, struct client *cl, struct sl_sampler *sampler)
{
    bool reason = w->cfg.fail_every > 0 || cl->desc.sampling.prompt_logprobs >= 0;
    for (int32_t i = 0; i < cl->req->n_seqs && !reason; i++) {
        float row[MAX_VOCAB];
        reason = expect_token(w, cl, &cl->seqs[i], sampler, row) < 0;
    }
    if (!reason)
        violation(w, "a request failed without a reason: %s", sl_request_error(cl->req)->msg);
}

static void release(struct world *w, struct client *cl)
{
    struct sl_usage u;
    sl_request_usage(cl->req, &u);
    if (sl_request_done(cl->req)) {
        int32_t n = 0;
        for (int32_t i = 0; i < cl->req->n_seqs; i++)
            n += cl->seqs[i].n;
        if (u.n_output != n || u.n_prompt != cl->desc.n_prompt || u.n_cached >= u.n_prompt)
            violation(w, "usage says %d + %d tokens (%d cached), delivered %d", u.n_prompt,
                      u.n_output, u.n_cached, n);
        check_prompt_logprobs(w, cl);
    }
    total_hits += (uint64_t)u.n_cached;
    total_tokens += (uint64_t)u.n_output;
    sl_request_release(cl->req);
    cl->req = NULL;
}

static void read_client(struct world *w, struct client *cl, struct sl_sampler *sampler)
{
    struct sl_chunk c;
    while (sl_request_read(cl->req, &c)) {
        struct client_seq *cs = &cl->seqs[c.seq_idx];
        if (c.n_text != 0 || (c.n_tokens == 0 && c.finish == SL_RUNNING))
            violation(w, "an empty chunk");
        for (size_t i = 0; i < c.n_tokens; i++)
            check_token(w, cl, cs, &c.tokens[i], sampler);
        if (c.finish != SL_RUNNING)
            check_end(w, cl, cs, &c);
    }
    if (!sl_request_done(cl->req))
        return;
    if (sl_request_error(cl->req)->code != 0)
        check_error(w, cl, sampler);
    const struct client_seq *cs = &cl->seqs[0];
    if (cl->desc.n_prompt + cs->n < w->cfg.max_len - 4 && chance(w, 50)) {
        w->n_last = cl->desc.n_prompt + cs->n;
        memcpy(w->last, cl->prompt, (size_t)cl->desc.n_prompt * sizeof(int32_t));
        memcpy(w->last + cl->desc.n_prompt, cs->tokens, (size_t)cs->n * sizeof(int32_t));
    }
    say("  client %d done\n", (int)(cl - w->clients));
    release(w, cl);
}

/* ------------------------------------------------------------------ load */

static void make_prompt(struct world *w, struct client *cl)
{
    int32_t max = w->cfg.max_len - 2, n = 0, len = between(w, 1, max);
    if (chance(w, 60))
        len = SL_MIN(len, between(w, 1, 40)); /* mostly short */
    if (chance(w, 30))                        /* ends with a page */
        len = SL_MAX(len / w->cfg.block_size, 1) * w->cfg.block_size;
    len = SL_MIN(len, max);
    if (w->n_last > 0 && w->n_last < max && chance(w, 25)) {
        n = w->n_last;
        memcpy(cl->prompt, w->last, (size_t)n * sizeof(int32_t));
        len = between(w, n, max);
        len = SL_MIN(len, n + 12);
    } else if (chance(w, 70)) {
        n = between(w, 1, len);
        memcpy(cl->prompt, w->bases[below(w, N_BASES)], (size_t)n * sizeof(int32_t));
    }
    for (; n < len; n++)
        cl->prompt[n] = below(w, w->cfg.n_vocab);
    cl->desc.prompt = cl->prompt;
    cl->desc.n_prompt = len;
}

static void make_sampling(struct world *w, struct client *cl)
{
    struct sl_sampling *p = &cl->desc.sampling;
    sl_sampling_default(p);
    p->temperature = w->cfg.sampling && chance(w, 50) ? 0.7f : 0.0f;
    if (p->temperature > 0 && chance(w, 50))
        p->top_p = 0.8f;
    if (w->cfg.penalties && chance(w, 50)) {
        p->repetition_penalty = 1.3f;
        p->presence_penalty = 0.5f;
        p->frequency_penalty = 0.25f;
    }
    p->has_seed = true;
    p->seed = sl_rng_next(&w->rng);
    p->n = chance(w, 25) ? between(w, 1, w->cfg.max_n) : 1;
    p->max_tokens = chance(w, 10) ? 0 : between(w, 1, chance(w, 20) ? 60 : 16);
    p->min_tokens = p->max_tokens > 0 && chance(w, 30) ? below(w, p->max_tokens + 1) : 0;
    p->min_tokens = SL_MIN(p->min_tokens, w->cfg.max_len - cl->desc.n_prompt);
    p->ignore_eos = chance(w, 40);
    p->logprobs = chance(w, 15) ? below(w, 4) : -1;
    p->prompt_logprobs = chance(w, 8) ? below(w, 3) : -1;
    p->n_stop_token_ids = chance(w, 30) ? between(w, 1, CLIENT_STOPS) : 0;
    for (int32_t i = 0; i < CLIENT_STOPS; i++)
        cl->stop_ids[i] = below(w, w->cfg.n_vocab);
    p->stop_token_ids = cl->stop_ids;
    int32_t room = w->cfg.max_len - cl->desc.n_prompt;
    cl->max_out = p->max_tokens > 0 ? SL_MIN(p->max_tokens, room) : room;
}

static void start_oracle(struct world *w, struct client *cl)
{
    uint64_t h = w->hash_key;
    for (int32_t i = 0; i < cl->desc.n_prompt; i++)
        h = hash_token(h, cl->prompt[i], i);
    for (int32_t i = 0; i < cl->desc.sampling.n; i++) {
        uint64_t seed = cl->desc.sampling.seed;
        cl->seqs[i].hash = h;
        cl->seqs[i].seed = i == 0 ? seed : sl_rng_at(~seed, (uint64_t)i);
    }
}

static void arrive(struct world *w)
{
    static const char *const salts[] = {NULL, "red", "blue"};
    struct client *cl = NULL;
    for (int32_t i = 0; i < MAX_CLIENTS && cl == NULL; i++)
        cl = w->clients[i].req == NULL ? &w->clients[i] : NULL;
    if (cl == NULL)
        return;
    memset(cl, 0, sizeof *cl);
    make_prompt(w, cl);
    make_sampling(w, cl);
    cl->desc.priority = below(w, w->cfg.n_priorities);
    cl->desc.cache_salt = w->cfg.salts ? salts[below(w, 3)] : NULL;
    cl->read_every = chance(w, 70) ? 1 : between(w, 2, 30);
    start_oracle(w, cl);
    w->n_submitted++;
    struct sl_error err;
    fail_alloc = chance(w, 2);
    int rc = sl_request_submit(w->eng, &cl->desc, &cl->req, &err);
    if (rc == SL_ENOMEM && fail_alloc) {
        cl->req = NULL;
    } else if (rc == SL_EBUSY) {
        cl->req = NULL;
    } else if (rc != 0) {
        violation(w, "a good request was refused: %s", err.msg);
    } else {
        w->n_seqs_accepted += cl->desc.sampling.n;
    }
    fail_alloc = false;
    say("  client %d: prompt %d, n %d, out %d, prio %d: rc %d\n", (int)(cl - w->clients),
        cl->desc.n_prompt, cl->desc.sampling.n, cl->max_out, cl->desc.priority, rc);
}

static void cancel_some(struct world *w)
{
    struct client *cl = &w->clients[below(w, MAX_CLIENTS)];
    if (cl->req == NULL)
        return;
    say("  client %d cancels\n", (int)(cl - w->clients));
    sl_request_cancel(cl->req);
    cl->cancelled = true;
    w->n_cancelled++;
    if (chance(w, 30)) {
        w->orphans = w->orphans || w->cfg.salts;
        release(w, cl); /* never looks again */
    }
}

/* ------------------------------------------------------------------ one seed */

static void draw_config(struct world *w)
{
    static const int32_t blocks[] = {1, 2, 3, 4, 5, 8, 16, 32};
    struct config *c = &w->cfg;
    c->n_vocab = between(w, 4, MAX_VOCAB);
    c->block_size = blocks[below(w, SL_COUNT(blocks))];
    c->max_len = between(w, 8, MAX_LEN);
    int32_t one = SL_CEIL_DIV(c->max_len, c->block_size); /* pages of the longest sequence */
    int32_t want = chance(w, 50) ? one + below(w, one + 1) : one * between(w, 1, 5);
    c->n_pages = SL_MIN(SL_MAX(want, 2), MAX_PAGES);
    c->max_len = SL_MIN(c->max_len, c->n_pages * c->block_size);
    c->max_seqs = between(w, 1, 10);
    c->max_tokens = c->max_seqs + (chance(w, 50) ? below(w, 8) : below(w, 200));
    c->extra_rows = chance(w, 50) ? 0 : below(w, 40);
    c->max_queued = chance(w, 20) ? between(w, 1, 4) : 100;
    c->n_requests = between(w, 4, 120);
    c->n_priorities = chance(w, 40) ? 3 : 1;
    c->max_n = MAX_SIM_N;
    c->arrival_pct = between(w, 3, 60);
    c->cancel_pct = chance(w, 50) ? 0 : between(w, 1, 15);
    c->nan_every = chance(w, 15) ? 300 : 0;
    c->fail_every = chance(w, 8) ? 60 : 0;
    c->caching = chance(w, 80);
    c->salts = chance(w, 20);
    c->sampling = chance(w, 40);
    c->late = chance(w, 50);
    c->penalties = chance(w, 30);
    say("vocab %d, %d pages of %d, max_len %d, %d seqs, %d tokens, +%d rows, caching %d, late %d\n",
        c->n_vocab, c->n_pages, c->block_size, c->max_len, c->max_seqs, c->max_tokens,
        c->extra_rows, c->caching, c->late);
}

static void start_world(struct world *w)
{
    static const int32_t eos[] = {EOS_ID};
    const struct config *c = &w->cfg;
    size_t n_slots = (size_t)c->n_pages * (size_t)c->block_size;
    w->page_token = calloc(n_slots, sizeof *w->page_token);
    w->page_pos = calloc(n_slots, sizeof *w->page_pos);
    w->page_salt = calloc((size_t)c->n_pages, sizeof *w->page_salt);
    w->rows = calloc((size_t)(c->max_seqs + c->extra_rows), (size_t)c->n_vocab * sizeof *w->rows);
    for (int32_t b = 0; b < N_BASES; b++)
        for (int32_t i = 0; i < MAX_LEN; i++)
            w->bases[b][i] = below(w, c->n_vocab);
    memcpy(w->bases[1], w->bases[0], 40 * sizeof(int32_t)); /* a common beginning */
    w->hash_key = sl_rng_next(&w->rng);
    struct sl_engine_parts parts = {
        .runner = {.ctx = w,
                   .n_vocab = c->n_vocab,
                   .max_logits = c->max_seqs + c->extra_rows,
                   .step = device_step},
        .eos_ids = eos,
        .n_eos_ids = 1,
        .info = {.n_vocab = c->n_vocab,
                 .max_model_len = c->max_len,
                 .block_size = c->block_size,
                 .n_pages = c->n_pages,
                 .max_num_seqs = c->max_seqs,
                 .max_num_batched_tokens = c->max_tokens},
        .max_queued = c->max_queued,
        .no_prefix_caching = !c->caching,
        .no_thread = true,
        .seed = sl_rng_next(&w->rng) | 1,
    };
    if (c->late) {
        struct sl_runner inner = parts.runner;
        late_init(&w->late, &inner, c->max_tokens, c->max_seqs + c->extra_rows, &parts.runner);
    }
    sl_sampling_default(&parts.sampling);
    struct sl_error err;
    if (w->page_token == NULL || w->page_pos == NULL || w->rows == NULL || w->page_salt == NULL ||
        sl_engine_start(&parts, &w->eng, &err) != 0)
        violation(w, "the engine does not start");
}

/* In the step in which a sequence ends well, its first page can be found by the next one. */
static void check_kept(struct world *w, struct client *cl)
{
    if (cl->ended || !atomic_load(&cl->req->over))
        return;
    cl->ended = true;
    const struct sl_seq *seq = &cl->req->seqs[0].seq;
    if (!w->cfg.caching || w->cfg.nan_every > 0 || w->cfg.fail_every > 0 || cl->cancelled ||
        cl->req->n_seqs > 1 || seq->n_prompt < w->cfg.block_size)
        return;
    if (w->cfg.late && seq->n_preempted > 0) /* perhaps while its last step ran */
        return;
    if (sl_radix_find(&w->eng->kv.tree, SL_NO_PAGE, seq->ns, seq->prompt) == SL_NO_PAGE)
        violation(w, "the first page of a prompt was not kept");
}

static void step_world(struct world *w, struct sl_sampler *sampler)
{
    /* A turn that only lands a step makes none. */
    bool work = w->eng->n_flights == 0 &&
                (!sl_sched_idle(&w->eng->sched) || sl_inbox_count(&w->eng->inbox) > 0);
    uint64_t before = w->n_steps;
    bool more = sl_engine_step(w->eng);
    if (work && w->n_steps == before && more)
        violation(w, "work is waiting, but no step was made");
    const char *bad = sl_sched_check(&w->eng->sched);
    if (bad != NULL)
        violation(w, "%s", bad);
    check_order(w);
    for (int32_t i = 0; i < MAX_CLIENTS; i++)
        if (w->clients[i].req != NULL)
            check_kept(w, &w->clients[i]);
    for (int32_t i = 0; i < MAX_CLIENTS; i++)
        if (w->clients[i].req != NULL && w->clients[i].cancelled &&
            !atomic_load(&w->clients[i].req->over))
            violation(w, "client %d cancelled and still runs", i);
    for (int32_t i = 0; i < MAX_CLIENTS; i++)
        if (w->clients[i].req != NULL && w->n_steps % (uint64_t)w->clients[i].read_every == 0)
            read_client(w, &w->clients[i], sampler);
}

static int32_t n_clients(const struct world *w)
{
    int32_t n = 0;
    for (int32_t i = 0; i < MAX_CLIENTS; i++)
        n += w->clients[i].req != NULL;
    return n;
}

static void check_drained(struct world *w)
{
    struct sl_stats s;
    sl_engine_stats(w->eng, &s);
    uint64_t n_finished = 0;
    for (int i = 0; i < 5; i++)
        n_finished += s.finished[i];
    if (n_finished != (uint64_t)w->n_seqs_accepted)
        violation(w, "%d sequences accepted, %llu ended", w->n_seqs_accepted,
                  (unsigned long long)n_finished);
    if (s.n_running != 0 || s.n_waiting != 0 || atomic_load(&w->eng->n_queued) != 0)
        violation(w, "drained, but %d run and %d wait", s.n_running, s.n_waiting);
    if (s.n_pages_free + s.n_pages_cached != w->cfg.n_pages)
        violation(w, "drained, but %d free and %d cached pages of %d", s.n_pages_free,
                  s.n_pages_cached, w->cfg.n_pages);
    if (!w->cfg.caching && s.n_pages_cached != 0)
        violation(w, "pages stay cached without prefix caching");
    if (s.step_mallocs != 0)
        violation(w, "the engine called the heap");
    if (s.finished[SL_FINISH_STOP] < w->n_ended[SL_FINISH_STOP])
        violation(w, "statistics lost an end");
    total_steps += w->n_steps;
    total_preemptions += s.preemptions;
}

static void run_seed(struct world *w, uint64_t seed)
{
    memset(w, 0, sizeof *w);
    w->seed_no = current_seed = seed;
    w->rng = (struct sl_rng){.seed = seed};
    virtual_ns = 1000000000;
    draw_config(w);
    start_world(w);
    struct sl_sampler sampler;
    struct sl_error err;
    if (sl_sampler_init(&sampler, w->cfg.n_vocab, &err) != 0)
        violation(w, "no sampler");
    while (w->n_submitted < w->cfg.n_requests) {
        for (int burst = chance(w, 10) ? 6 : 1; burst > 0; burst--)
            if (w->n_submitted < w->cfg.n_requests && chance(w, w->cfg.arrival_pct))
                arrive(w);
        if (chance(w, w->cfg.cancel_pct))
            cancel_some(w);
        step_world(w, &sampler);
    }
    /* Alone, one after the other, with every prompt computed token by token, it would take this. */
    uint64_t limit = w->n_steps + 2u * MAX_LEN * (uint64_t)(w->n_seqs_accepted + 1) + 100;
    for (uint64_t turn = w->n_steps; n_clients(w) > 0; turn++) {
        if (turn > limit)
            violation(w, "%d requests do not finish", n_clients(w));
        for (int32_t i = 0; i < MAX_CLIENTS; i++)
            w->clients[i].read_every = 1;
        if (chance(w, w->cfg.cancel_pct))
            cancel_some(w);
        step_world(w, &sampler);
    }
    while (sl_engine_step(w->eng)) { /* requests released before their end */
    }
    check_drained(w);
    sl_engine_destroy(w->eng);
    total_overlaps += w->late.n_overlaps;
    if (w->cfg.late)
        late_deinit(&w->late);
    sl_sampler_deinit(&sampler);
    free(w->rows);
    free(w->page_salt);
    free(w->page_pos);
    free(w->page_token);
}

/* An assertion of the engine failed: say which seed it was. */
static void on_abort(int sig)
{
    (void)sig;
    char line[96];
    int n = snprintf(line, sizeof line,
                     "sim: seed %llu: assertion failed\nreplay: make sim SEED=%llu\n",
                     (unsigned long long)current_seed, (unsigned long long)current_seed);
    ssize_t put = write(STDOUT_FILENO, line, (size_t)n);
    (void)put;
    _exit(1);
}

static bool number_arg(const char *s, uint64_t *out)
{
    return s != NULL && sl_parse_u64(s, strlen(s), out);
}

int main(int argc, char **argv)
{
    uint64_t n_seeds = 200, first = 1;
    for (int i = 1; i < argc; i += 2) {
        bool ok = false;
        if (strcmp(argv[i], "--seeds") == 0)
            ok = number_arg(argv[i + 1], &n_seeds);
        else if (strcmp(argv[i], "--first") == 0)
            ok = number_arg(argv[i + 1], &first);
        else if (strcmp(argv[i], "--seed") == 0)
            ok = number_arg(argv[i + 1], &first), n_seeds = 1, trace = true;
        if (!ok) {
            fprintf(stderr, "usage: test_sim [--seeds N] [--first S] | --seed S\n");
            return 2;
        }
    }
    signal(SIGABRT, on_abort);
    struct sl_sys sys = sl_sys_real;
    sys.now_ns = virtual_now;
    sys.alloc = failing_alloc;
    sys.write = quiet_write;
    sl_sys = &sys;
    struct world *w = calloc(1, sizeof *w);
    if (w == NULL)
        return 1;
    for (uint64_t s = first; s < first + n_seeds; s++)
        run_seed(w, s);
    free(w);
    say("%llu steps, %llu tokens, %llu preemptions, %llu prompt tokens from the cache, "
        "%llu steps planned ahead\n",
        (unsigned long long)total_steps, (unsigned long long)total_tokens,
        (unsigned long long)total_preemptions, (unsigned long long)total_hits,
        (unsigned long long)total_overlaps);
    printf("sim: %llu seeds, 0 violations\n", (unsigned long long)n_seeds);
    sl_sys = &sl_sys_real;
    return 0;
}
