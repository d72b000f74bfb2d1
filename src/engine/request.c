/* SPDX-License-Identifier: MIT
 * The life of a request: built by the submitter in one block, shared with the engine, released by
 * whoever lets go last. The block holds everything the request may ever need; what a large
 * max_tokens reserves is not touched, hence costs no memory, before tokens come.
 */
#include "base/check.h"
#include "base/rng.h"
#include "base/sys.h"
#include "engine/adapters.h"
#include "engine/core.h"
#include "engine/transfer.h"

#include <errno.h>
#include <string.h>
#include <time.h>

#define MAX_QUEUED_TOKENS (INT64_C(1) << 26) /* prompts that wait: 256 MB of ids */

/* Lays out arrays one after the other: once without memory to learn the size, once for real. */
struct carver {
    uint8_t *base; /* NULL: only measure */
    size_t used;
    bool overflow;
};

static void *request_carve(struct carver *c, int64_t n, size_t size)
{
    size_t n_bytes, end;
    SL_ASSERT(n >= 0 && c->used % 16 == 0);
    if (!sl_mul_size((size_t)n, size, &n_bytes) || !sl_add_size(n_bytes, 15, &n_bytes) ||
        !sl_add_size(c->used, n_bytes & ~(size_t)15, &end)) {
        c->overflow = true;
        return NULL;
    }
    void *p = c->base != NULL ? c->base + c->used : NULL;
    c->used = end;
    return p;
}

struct request_sizes { /* sizes that follow from the request's description */
    int32_t n_load;    /* blocks of the prompt that may be found outside the pool */
    int32_t n_seqs, n_prompt, max_out, n_blocks, n_groups, n_top, n_prompt_top, n_pooled;
    uint32_t n_slots; /* of the penalties' table, 0: none */
    int32_t n_mask;   /* words of a mask, 0: none */
    int32_t n_runs;   /* sizes of what may be repeated, 0: that is not looked at */
    int32_t n_bans;   /* ids that one choice may exclude, 0: no bad words */
    int32_t n_drafts; /* most that may be drafted at once */
    bool odds;        /* drafts say how likely they are */
    int32_t n_suffix; /* tokens whose places are linked, 0: drafts do not come from there */
    int32_t n_prediction;
    int32_t n_allowed; /* words of the mask of allowed_token_ids, 0: none */
    int64_t n_bad_ids;
    size_t text_cap;
    bool logprobs, prompt_logprobs, think;
    size_t stop_bytes; /* of all stop strings with their ends */
};

static struct request_sizes request_sizes_of(const struct sl_engine *eng,
                                             const struct sl_request_desc *d)
{
    const struct sl_sampling *p = &d->sampling;
    struct request_sizes s = {.n_seqs = p->n, .n_prompt = d->n_prompt};
    int32_t room = eng->limits.max_model_len - d->n_prompt;
    SL_ASSERT(d->n_prompt >= 1 && p->n >= 1 && (d->pooling ? room >= 0 : room >= 1));
    s.max_out = p->max_tokens > 0 ? SL_MIN(p->max_tokens, room) : room;
    if (d->pooling) {
        s.n_pooled = eng->limits.n_pooled * (eng->limits.per_token ? d->n_prompt : 1);
        s.max_out = 0;
    }
    s.n_blocks = SL_CEIL_DIV(d->n_prompt + s.max_out, eng->info.block_size);
    s.n_groups = eng->info.n_kv_groups;
    s.logprobs = p->logprobs >= 0;
    s.prompt_logprobs = p->prompt_logprobs >= 0;
    if (eng->tiers.store != NULL && !s.prompt_logprobs) /* its last token is computed again */
        s.n_load = (d->n_prompt - 1) / eng->info.block_size;
    s.n_top = SL_MIN(SL_MAX(p->logprobs, 0), eng->limits.n_logits);
    if (p->n_logprob_token_ids > 0)
        s.n_top = p->n_logprob_token_ids;
    s.n_prompt_top = SL_MIN(SL_MAX(p->prompt_logprobs, 0), eng->limits.n_logits);
    if (eng->limits.has_logits && sl_sampling_has_penalty(p))
        s.n_slots = sl_counts_slots((int64_t)d->n_prompt + s.max_out, eng->limits.n_vocab);
    s.think = d->thinking != NULL;
    s.n_mask = d->constraint != NULL || s.think ? SL_CEIL_DIV(eng->limits.n_logits, 32) : 0;
    if (p->n_allowed_token_ids > 0)
        s.n_allowed = SL_CEIL_DIV(eng->limits.n_logits, 32);
    if (p->repetition.max_size > 0)
        s.n_runs = p->repetition.max_size - p->repetition.min_size + 1;
    SL_ASSERT(s.n_runs >= 0 && s.n_runs <= SL_MAX_REPETITION);
    if (p->n_bad_words > 0)
        s.n_bans = p->n_stop_token_ids + p->n_bad_words;
    if (eng->drafting != NULL && !d->pooling)
        s.n_drafts = eng->speculative.num_speculative_tokens;
    s.odds = s.n_drafts > 0 && eng->runner.draft_odds;
    if (s.n_drafts > 0 && eng->speculative.method == SL_DRAFT_SUFFIX)
        s.n_suffix = d->n_prompt + s.max_out;
    if (s.n_suffix > 0) /* what is longer than the output cannot come */
        s.n_prediction = SL_MIN(d->n_prediction, s.max_out);
    for (int32_t i = 0; i < p->n_bad_words; i++)
        s.n_bad_ids += p->bad_words[i].n_ids;
    for (int32_t i = 0; i < p->n_stop; i++)
        s.stop_bytes += strlen(p->stop[i]) + 1;
    if (eng->tokenizer != NULL && !d->pooling)
        s.text_cap = SL_MAX_STOP_BYTES + SL_MAX(2 * sl_detok_max_bytes(eng->tokenizer), 512);
    return s;
}

static void carve_seq(struct carver *c, const struct request_sizes *s, struct sl_rseq *rs)
{
    struct sl_rseq nowhere; /* while measuring */
    rs = rs != NULL ? rs : &nowhere;
    rs->out = request_carve(c, s->max_out, sizeof(int32_t));
    rs->seq.blocks.nodes = request_carve(c, s->n_blocks, sizeof(int32_t));
    for (int32_t g = 0; g < s->n_groups; g++)
        rs->seq.blocks.pages[g] = request_carve(c, s->n_blocks, sizeof(int32_t));
    rs->logprobs = s->logprobs ? request_carve(c, s->max_out, sizeof(struct sl_logprob)) : NULL;
    rs->tops = s->n_top > 0
                   ? request_carve(c, (int64_t)s->max_out * s->n_top, sizeof(struct sl_top_logprob))
                   : NULL;
    rs->mask = s->n_mask > 0
                   ? request_carve(c, (int64_t)(1 + s->n_drafts) * s->n_mask, sizeof(uint32_t))
                   : NULL;
    rs->runs = s->n_runs > 0 ? request_carve(c, s->n_runs, sizeof(int32_t)) : NULL;
    rs->bans =
        s->n_bans > 0 ? request_carve(c, (1 + s->n_drafts) * s->n_bans, sizeof(int32_t)) : NULL;
    rs->drafts = s->n_drafts > 0 ? request_carve(c, s->n_drafts, sizeof(int32_t)) : NULL;
    rs->share = s->n_suffix > 0 || s->odds ? request_carve(c, s->n_drafts, sizeof(float)) : NULL;
    rs->links.heads =
        s->n_suffix > 0 ? request_carve(c, sl_suffix_words(s->n_suffix), sizeof(uint32_t)) : NULL;
    rs->think.text = s->think ? request_carve(c, (int64_t)s->text_cap, 1) : NULL;
    rs->r_held = s->stop_bytes > 0 ? request_carve(c, SL_MAX_STOP_BYTES, 1) : NULL;
    if (s->n_slots > 0) {
        int32_t *slots = request_carve(c, s->n_slots, sizeof(int32_t));
        struct sl_count *entries = request_carve(c, s->n_slots / 2 + 1, sizeof *entries);
        if (c->base != NULL)
            sl_counts_init(&rs->counts, entries, slots, s->n_slots);
    }
}

struct arrays { /* inside struct sl_sampling, whose pointers are to const */
    int32_t *stop_ids, *marker_ids, *bad_ids, *logprob_ids;
    struct sl_bad_word *bad_words;
    struct sl_logit_bias *bias;
    char *stop_text;
    uint16_t *stop_fail;
};

/* The same calls in the same order, measuring or for real. */
static struct sl_request *carve_all(struct carver *c, const struct request_sizes *s,
                                    const struct sl_request_desc *d, struct arrays *a)
{
    struct sl_request *req = request_carve(c, 1, sizeof *req), nowhere;
    struct sl_request *r = c->base != NULL ? req : &nowhere;
    if (c->base != NULL)
        memset(req, 0, sizeof *req);
    r->seqs = request_carve(c, s->n_seqs, sizeof *r->seqs);
    if (c->base != NULL)
        memset(r->seqs, 0, (size_t)s->n_seqs * sizeof *r->seqs);
    r->prompt = request_carve(c, s->n_prompt, sizeof(int32_t));
    r->r_text = request_carve(c, (int64_t)s->text_cap, 1);
    r->prompt_logprobs =
        s->prompt_logprobs ? request_carve(c, s->n_prompt, sizeof(struct sl_token)) : NULL;
    r->prompt_tops = s->n_prompt_top > 0 ? request_carve(c, (int64_t)s->n_prompt * s->n_prompt_top,
                                                         sizeof(struct sl_top_logprob))
                                         : NULL;
    r->pooled = s->n_pooled > 0 ? request_carve(c, s->n_pooled, sizeof(float)) : NULL;
    a->stop_ids = request_carve(c, d->sampling.n_stop_token_ids, sizeof(int32_t));
    a->marker_ids = request_carve(c, d->sampling.n_marker_ids, sizeof(int32_t));
    a->bias = request_carve(c, d->sampling.n_logit_bias, sizeof(struct sl_logit_bias));
    a->logprob_ids = request_carve(c, d->sampling.n_logprob_token_ids, sizeof(int32_t));
    a->bad_words = request_carve(c, d->sampling.n_bad_words, sizeof(struct sl_bad_word));
    a->bad_ids = request_carve(c, s->n_bad_ids, sizeof(int32_t));
    r->allowed = s->n_allowed > 0 ? request_carve(c, s->n_allowed, sizeof(uint32_t)) : NULL;
    a->stop_text = request_carve(c, (int64_t)s->stop_bytes, 1);
    a->stop_fail = request_carve(c, (int64_t)s->stop_bytes, sizeof(uint16_t));
    r->load.names = request_carve(c, s->n_load, sizeof *r->load.names);
    r->load.asks = request_carve(c, s->n_load > 0 ? SL_MAX_TIER_ASKED : 0, sizeof *r->load.asks);
    r->prediction = request_carve(c, s->n_prediction, sizeof(int32_t));
    if (s->n_prediction > 0)
        r->predicted.heads =
            request_carve(c, sl_suffix_words(s->n_prompt + s->n_prediction), sizeof(uint32_t));
    for (int32_t i = 0; i < s->n_seqs; i++)
        carve_seq(c, s, c->base != NULL ? &r->seqs[i] : NULL);
    return req;
}

/* allowed_token_ids become a mask, as what a constraint allows is one. */
static void copy_choice(struct sl_request *req, const struct sl_sampling *p,
                        const struct request_sizes *s, const struct arrays *a)
{
    int32_t *at = a->bad_ids;
    SL_ASSERT((req->allowed != NULL) == (p->n_allowed_token_ids > 0));
    if (req->allowed != NULL)
        memset(req->allowed, 0, (size_t)s->n_allowed * sizeof *req->allowed);
    for (int32_t i = 0; i < p->n_allowed_token_ids; i++) {
        int32_t id = p->allowed_token_ids[i];
        req->allowed[id / 32] |= 1u << (id & 31);
    }
    for (int32_t i = 0; i < p->n_bad_words; i++) {
        const struct sl_bad_word *w = &p->bad_words[i];
        memcpy(at, w->ids, (size_t)w->n_ids * sizeof *at);
        a->bad_words[i] = (struct sl_bad_word){at, w->n_ids};
        req->long_bad_words |= w->n_ids > 1;
        at += w->n_ids;
    }
    SL_ASSERT(s->n_bad_ids == 0 || at == a->bad_ids + s->n_bad_ids);
    if (p->n_logprob_token_ids > 0)
        memcpy(a->logprob_ids, p->logprob_token_ids,
               (size_t)p->n_logprob_token_ids * sizeof *a->logprob_ids);
    req->sampling.logprob_token_ids = a->logprob_ids;
    req->sampling.allowed_token_ids = NULL; /* they are in req->allowed */
    req->sampling.n_allowed_token_ids = 0;
    req->sampling.bad_words = a->bad_words;
}

static void copy_sampling(struct sl_request *req, const struct sl_sampling *p,
                          const struct arrays *a)
{
    req->sampling = *p;
    if (p->n_stop_token_ids > 0)
        memcpy(a->stop_ids, p->stop_token_ids, (size_t)p->n_stop_token_ids * sizeof *a->stop_ids);
    if (p->n_logit_bias > 0)
        memcpy(a->bias, p->logit_bias, (size_t)p->n_logit_bias * sizeof *a->bias);
    if (p->n_marker_ids > 0)
        memcpy(a->marker_ids, p->marker_ids, (size_t)p->n_marker_ids * sizeof *a->marker_ids);
    req->sampling.stop_token_ids = a->stop_ids;
    req->sampling.marker_ids = a->marker_ids;
    req->sampling.logit_bias = a->bias;
    req->sampling.stop = NULL; /* the strings are in req->stops */
    SL_ASSERT(p->n_stop >= 0 && p->n_stop <= SL_MAX_STOPS);
    req->stops.n = p->n_stop;
    size_t at = 0;
    for (int32_t i = 0; i < p->n_stop; i++) {
        size_t n = strlen(p->stop[i]);
        memcpy(a->stop_text + at, p->stop[i], n + 1);
        sl_stop_prepare(a->stop_text + at, (int32_t)n, a->stop_fail + at);
        req->stops.list[i] = (struct sl_stop){a->stop_text + at, a->stop_fail + at, (int32_t)n};
        at += n + 1;
    }
}

static void set_namespace(struct sl_request *req, const struct sl_request_desc *d, bool caching,
                          uint64_t number)
{
    struct sl_kv_ns *ns = &req->ns;
    if (!caching) {
        ns->is_private = 1;
        ns->n_bytes = sizeof number;
        memcpy(ns->bytes, &number, sizeof number);
        return;
    }
    size_t n = d->cache_salt != NULL ? strlen(d->cache_salt) : 0;
    uint8_t *adapter = ns->bytes + SL_KV_NS_TENANT, *salt = adapter + SL_KV_NS_ADAPTER;
    SL_ASSERT(n <= SL_MAX_CACHE_SALT);
    memcpy(ns->bytes, &d->cache_tenant, SL_KV_NS_TENANT);
    if (req->adapter != NULL) {
        uint64_t id = sl_adapter_weights(req->adapter)->id;
        _Static_assert(sizeof id + sizeof req->adapter_scale == SL_KV_NS_ADAPTER, "both fit");
        memcpy(adapter, &id, sizeof id);
        memcpy(adapter + sizeof id, &req->adapter_scale, sizeof req->adapter_scale);
    }
    if (n > 0)
        memcpy(salt, d->cache_salt, n);
    _Static_assert(SL_KV_NS_TENANT + SL_KV_NS_ADAPTER + SL_MAX_CACHE_SALT <= UINT8_MAX,
                   "n_bytes has 8 bits");
    SL_ASSERT(SL_KV_NS_TENANT + SL_KV_NS_ADAPTER + n <= sizeof ns->bytes);
    ns->n_bytes = (uint8_t)(SL_KV_NS_TENANT + SL_KV_NS_ADAPTER + n);
}

/* Once per request: every sequence has the same prompt. An id beyond the rows of logits cannot be
 * penalised. */
static void count_prompt(struct sl_request *req, struct sl_rseq *rs)
{
    if (rs != req->seqs) {
        sl_counts_copy(&rs->counts, &req->seqs[0].counts);
        return;
    }
    for (int32_t j = 0; j < req->n_prompt; j++)
        if (req->prompt[j] < req->eng->limits.n_logits)
            sl_counts_add(&rs->counts, req->prompt[j], 0);
}

static void init_seq(struct sl_request *req, int32_t i, const struct sl_request_desc *d,
                     uint64_t seed)
{
    struct sl_rseq *rs = &req->seqs[i];
    const struct sl_engine *eng = req->eng;
    SL_ASSERT(i < req->n_seqs && rs->seq.state == SL_SEQ_NEW && rs->seq.n_out == 0);
    rs->req = req;
    rs->seed = i == 0 ? seed : sl_rng_at(~seed, (uint64_t)i);
    rs->seq.idx = i;
    rs->seq.priority = d->priority;
    rs->seq.prompt = req->prompt;
    rs->seq.n_prompt = rs->mask_at = req->n_prompt;
    rs->seq.out = rs->out;
    rs->seq.drafts = rs->drafts;
    rs->seq.max_out = req->max_out;
    rs->seq.ns = &req->ns;
    rs->seq.adapter = req->adapter != NULL ? sl_adapter_weights(req->adapter)->id : 0;
    rs->seq.publish = eng->prefix_caching || req->n_seqs > 1;
    rs->seq.all_logits = i == 0 && req->prompt_logprobs != NULL;
    const struct sl_repetition *rep = &req->sampling.repetition;
    if (rs->runs != NULL)
        memset(rs->runs, 0, (size_t)(rep->max_size - rep->min_size + 1) * sizeof *rs->runs);
    rs->stop_token_id = rs->stop_idx = -1;
    rs->leaf = SL_NO_NODE;
    atomic_init(&rs->text_limit, req->stops.n > 0 ? 0 : UINT64_MAX);
    atomic_init(&rs->published, 0);
    if (rs->links.heads != NULL)
        sl_suffix_init(&rs->links, req->n_prompt + req->max_out, rs->links.heads);
    if (rs->counts.slots != NULL)
        count_prompt(req, rs);
    if (eng->tokenizer != NULL) {
        sl_detok_init(&rs->detok, eng->tokenizer, !req->sampling.keep_special_tokens);
        sl_detok_init(&rs->r_detok, eng->tokenizer, !req->sampling.keep_special_tokens);
        rs->detok.shown = rs->r_detok.shown = req->sampling.marker_ids;
        sl_think_begin(&req->think, &rs->think, eng->tokenizer);
        rs->detok.n_shown = rs->r_detok.n_shown = req->sampling.n_marker_ids;
    }
}

static void copy_prediction(struct sl_request *req, const struct sl_request_desc *d, int32_t n)
{
    req->n_prediction = n;
    if (n == 0)
        return;
    memcpy(req->prediction, d->prediction, (size_t)n * sizeof *req->prediction);
    const struct sl_suffix_text t = {req->prompt, req->prediction, req->n_prompt,
                                     req->n_prompt + n};
    sl_suffix_init(&req->predicted, t.n, req->predicted.heads);
    sl_suffix_extend(&req->predicted, &t);
}

/* Only where names last are the prompt's blocks outside the pool. */
static void init_load(struct sl_request *req, int32_t n_names)
{
    struct sl_tier_load *l = &req->load;
    if (n_names == 0 || !sl_kv_ns_lasts(&req->ns)) {
        l->names = NULL;
        return;
    }
    l->n_names = n_names;
    l->n_asks = SL_MAX_TIER_ASKED;
    sl_radix_names(&req->eng->kv.tree, &req->ns, req->prompt, n_names, l->names);
}

static void init_sync(struct sl_request *req)
{
    pthread_condattr_t attr;
    pthread_condattr_init(&attr);
    pthread_condattr_setclock(&attr, CLOCK_MONOTONIC);
    pthread_cond_init(&req->cond, &attr);
    pthread_condattr_destroy(&attr);
    pthread_mutex_init(&req->lock, NULL);
    atomic_init(&req->refs, 2);
    atomic_init(&req->cancelled, false);
    atomic_init(&req->over, false);
    atomic_init(&req->called, false);
    atomic_init(&req->prompt_logprobs_ready, false);
}

/* A tenant's sessions are its own. */
static uint64_t session_of(const struct sl_engine *eng, const struct sl_request_desc *d)
{
    const uint64_t tenant = sl_mix64(eng->seed ^ d->cache_tenant);
    return d->session != 0 ? SL_MAX(sl_mix64(tenant ^ d->session), 1) : 0;
}

int sl_request_create(struct sl_engine *eng, const struct sl_request_desc *d, uint64_t seed,
                      uint64_t number, struct sl_request **out, struct sl_error *err)
{
    struct request_sizes s = request_sizes_of(eng, d);
    struct arrays a;
    struct carver c = {0};
    carve_all(&c, &s, d, &a);
    if (c.overflow || c.used > SL_MAX_REQUEST_BYTES)
        return sl_fail(err, SL_ELIMIT,
                       "n = %d sequences of up to %d tokens take more than %u MB with the logprobs "
                       "asked for: lower n, max_tokens or logprobs",
                       s.n_seqs, s.max_out, SL_MAX_REQUEST_BYTES >> 20);
    c.base = sl_malloc(c.used);
    if (c.base == NULL)
        return sl_fail(err, SL_ENOMEM, "out of memory for a request of %d + %d tokens", s.n_prompt,
                       s.max_out);
    const size_t n_bytes = c.used;
    c.used = 0;
    struct sl_request *req = carve_all(&c, &s, d, &a);
    SL_ASSERT(c.used == n_bytes); /* as it was measured */
    req->eng = eng;
    req->user = d->user;
    req->box = d->outbox;
    req->n_prompt = s.n_prompt;
    req->max_out = s.max_out;
    req->session = session_of(eng, d);
    req->mark = -1;
    req->n_top = s.n_top;
    req->n_prompt_top = s.n_prompt_top;
    req->n_seqs = s.n_seqs;
    req->n_pooled = s.n_pooled;
    req->mode = s.n_pooled > 0 ? &sl_mode_pool : s.n_drafts > 0 ? eng->drafting : &sl_mode_generate;
    SL_ASSERT((req->mode->propose != NULL) == (s.n_drafts > 0));
    req->n_bans = s.n_bans;
    req->second_from = d->second_from;
    req->text_cap = s.text_cap;
    memcpy(req->prompt, d->prompt, (size_t)s.n_prompt * sizeof *req->prompt);
    copy_prediction(req, d, s.n_prediction);
    copy_sampling(req, &d->sampling, &a);
    copy_choice(req, &d->sampling, &s, &a);
    if (d->constraint != NULL)
        req->constraint = sl_constraint_ref(d->constraint);
    req->cache_hit_threshold = d->cache_hit_threshold;
    if (d->adapter != NULL && d->adapter_scale != 0) {
        req->adapter = sl_adapter_ref(d->adapter);
        req->adapter_scale = d->adapter_scale;
    }
    set_namespace(req, d, eng->prefix_caching, number);
    init_load(req, s.n_load);
    sl_transfer_begin(eng, req, d->transfer);
    init_sync(req);
    sl_think_init(&req->think, d->thinking);
    for (int32_t i = 0; i < s.n_seqs; i++)
        init_seq(req, i, d, seed);
    req->usage_now.n_prompt = s.n_prompt;
    req->usage_now.t_submit_ns = sl_now_ns();
    req->usage = req->usage_now;
    *out = req;
    return 0;
}

void sl_request_unref(struct sl_request *req)
{
    int before = atomic_fetch_sub_explicit(&req->refs, 1, memory_order_acq_rel);
    SL_ASSERT(before > 0);
    if (before > 1)
        return;
    SL_ASSERT(!req->on_box && !req->has_news);
    SL_ASSERT(req->live_prev == NULL && req->live_next == NULL);
    for (int32_t i = 0; i < req->n_seqs && req->constraint != NULL; i++)
        sl_constraint_unmatch(req->constraint, req->seqs[i].matcher);
    sl_constraint_release(req->constraint);
    sl_adapter_release(req->adapter);
    sl_transfer_release(req);
    pthread_cond_destroy(&req->cond);
    pthread_mutex_destroy(&req->lock);
    sl_free(req);
}

bool sl_engine_is_full(const struct sl_engine *eng)
{
    return atomic_load_explicit(&eng->n_queued, memory_order_relaxed) >= eng->max_queued ||
           atomic_load_explicit(&eng->n_queued_tokens, memory_order_relaxed) >= MAX_QUEUED_TOKENS;
}

int32_t sl_engine_n_open(const struct sl_engine *eng)
{
    const int n = atomic_load_explicit(&eng->n_open, memory_order_relaxed);
    SL_ASSERT(n >= 0);
    return n;
}

void sl_engine_unqueue(struct sl_engine *eng, int32_t n_prompt)
{
    int n = atomic_fetch_sub(&eng->n_queued, 1);
    int64_t n_tokens = atomic_fetch_sub(&eng->n_queued_tokens, n_prompt);
    SL_ASSERT(n > 0 && n_tokens >= n_prompt);
}

/* Waiting requests have a bound in number and in memory. */
static int enqueue(struct sl_engine *eng, int32_t n_prompt, struct sl_error *err)
{
    int32_t n = atomic_fetch_add(&eng->n_queued, 1);
    int64_t n_tokens = atomic_fetch_add(&eng->n_queued_tokens, n_prompt);
    if (n < eng->max_queued && n_tokens < MAX_QUEUED_TOKENS)
        return 0;
    sl_engine_unqueue(eng, n_prompt);
    return sl_fail(err, SL_EBUSY, "%d requests are waiting already", n);
}

int sl_request_submit(struct sl_engine *eng, const struct sl_request_desc *desc,
                      struct sl_request **out, struct sl_error *err)
{
    int rc = sl_request_check(desc, &eng->limits, err);
    if (rc != 0)
        return rc;
    rc = sl_engine_health(eng, err);
    if (rc != 0)
        return rc;
    if (atomic_load(&eng->sleep_wanted))
        return sl_engine_is_asleep(err);
    rc = enqueue(eng, desc->n_prompt, err);
    if (rc != 0)
        return rc;
    uint64_t number = atomic_fetch_add(&eng->n_numbers, 1);
    const struct sl_sampling *p = &desc->sampling;
    uint64_t seed = p->has_seed ? p->seed : sl_rng_at(eng->seed, number);
    struct sl_request *req;
    rc = sl_request_create(eng, desc, seed, number, &req, err);
    if (rc != 0) {
        sl_engine_unqueue(eng, desc->n_prompt);
        return rc;
    }
    SL_ASSERT(req->n_prompt + req->max_out <= eng->limits.max_model_len);
    *out = req; /* before the engine can tell the reader about it */
    atomic_fetch_add(&eng->n_open, 1);
    /* Who puts the engine to sleep says so first and counts then: one of us sees the other. */
    bool asleep = atomic_load(&eng->sleep_wanted);
    if (!asleep && sl_inbox_submit(&eng->inbox, req))
        return 0;
    *out = NULL;
    atomic_fetch_sub(&eng->n_open, 1);
    sl_engine_unqueue(eng, desc->n_prompt);
    sl_transfer_abandon(req);
    sl_request_unref(req);
    sl_request_unref(req);
    return asleep ? sl_engine_is_asleep(err)
                  : sl_fail(err, SL_ESHUTDOWN, "the engine is shutting down");
}

void sl_request_cancel(struct sl_request *req)
{
    if (atomic_load(&req->over) || atomic_exchange(&req->cancelled, true))
        return;
    int before = atomic_fetch_add_explicit(&req->refs, 1, memory_order_relaxed);
    SL_ASSERT(before > 0);
    sl_inbox_cancel(&req->eng->inbox, req);
}

void sl_request_calls(struct sl_request *req, int32_t seq_idx, uint64_t tool)
{
    SL_ASSERT(seq_idx >= 0 && seq_idx < req->n_seqs);
    if (atomic_exchange(&req->called, true))
        return;
    req->calling = seq_idx;
    req->tool = tool;
    int before = atomic_fetch_add_explicit(&req->refs, 1, memory_order_relaxed);
    SL_ASSERT(before > 0);
    sl_inbox_call(&req->eng->inbox, req);
}

void sl_request_release(struct sl_request *req)
{
    if (req == NULL)
        return;
    sl_request_cancel(req);
    pthread_mutex_lock(&req->lock);
    if (req->box != NULL)
        sl_outbox_remove(req->box, req);
    req->box = NULL;
    pthread_mutex_unlock(&req->lock);
    sl_request_unref(req);
}

const float *sl_request_pooled(const struct sl_request *req, int32_t *n)
{
    uint64_t pub = atomic_load_explicit(&req->seqs[0].published, memory_order_acquire);
    SL_ASSERT((req->pooled != NULL) == (req->n_pooled > 0));
    *n = req->n_pooled;
    return req->pooled != NULL && sl_pub_finish(pub) == SL_FINISH_STOP ? req->pooled : NULL;
}

void sl_request_deliver(struct sl_request *req)
{
    pthread_mutex_lock(&req->lock);
    SL_ASSERT(req->usage_now.n_output >= req->usage.n_output); /* it only grows */
    req->usage = req->usage_now;
    req->news = true;
    pthread_cond_signal(&req->cond);
    if (req->box != NULL)
        sl_outbox_push(req->box, req);
    pthread_mutex_unlock(&req->lock);
}

void sl_request_wait(struct sl_request *req, int timeout_ms)
{
    uint64_t end_ns = sl_now_ns() + (uint64_t)SL_MAX(timeout_ms, 0) * 1000000u;
    struct timespec end = {.tv_sec = (time_t)(end_ns / 1000000000u),
                           .tv_nsec = (long)(end_ns % 1000000000u)};
    int rc = 0;
    pthread_mutex_lock(&req->lock);
    while (!req->news && !atomic_load(&req->over) && rc != ETIMEDOUT)
        rc = timeout_ms < 0 ? pthread_cond_wait(&req->cond, &req->lock)
                            : pthread_cond_timedwait(&req->cond, &req->lock, &end);
    req->news = false;
    pthread_mutex_unlock(&req->lock);
}

const struct sl_error *sl_request_error(const struct sl_request *req)
{
    return &req->error;
}

void sl_request_usage(const struct sl_request *req, struct sl_usage *out)
{
    struct sl_request *r = (struct sl_request *)(uintptr_t)req; /* only its lock changes */
    pthread_mutex_lock(&r->lock);
    *out = r->usage;
    pthread_mutex_unlock(&r->lock);
}

void *sl_request_user(const struct sl_request *req)
{
    return req->user;
}
