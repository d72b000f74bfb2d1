/* SPDX-License-Identifier: MIT
 * Victims beside hostile neighbours inside the engine, on a small random model with the real
 * kernels. Neighbours abuse every parameter, cancel, exhaust the pages, share prefixes, and the
 * worst of them are poisoned: the runner below makes their logits NaN or infinite and fills their
 * KV pages with NaN, which the next owner of a page then finds there. Whatever they do, a victim's
 * tokens, text and log probabilities must be the bits it gives alone.
 *
 *     test_isolation [--victims N] [--seed S]
 */
#include "base/check.h"
#include "base/hash.h"
#include "base/limits.h"
#include "engine/core.h"
#include "engine/late_runner.h"
#include "engine/load/load_text.h"
#include "models/model_rig.h"
#include "synth/synth.h"

#include <math.h>
#include <poll.h>
#include <stdlib.h>
#include <unistd.h>

enum {
    CONTEXT = 320,
    VOCAB = 512,
    BLOCK = 16,
    PAGES = 48, /* two contexts and a bit: long neighbours run out of them */
    SEATS = 8,
    MAX_LOGITS = SEATS + 24,
    MAX_OUT = 24,
    N_TOP = 3,
    N_DISTINCT = 96, /* different victims */
    N_VICTIMS_AT_ONCE = 6,
    N_NEIGHBOURS = 10,
    MAGIC = 500, /* the first token of a poisoned neighbour's prompt is MAGIC + its poison */
};

enum poison { P_NAN_ROW, P_NAN_ONE, P_INF, P_NEG_INF, P_LATE, P_PAGES, N_POISONS };

/* ---- the runner that poisons */

struct poisoner {
    struct rig rig;
    int poison_of[PAGES]; /* by the first page of a sequence; -1: none */
    uint64_t n_rows, n_pages;
};

static int poison_of_span(struct poisoner *p, const struct sl_batch *b, const struct sl_span *s)
{
    int32_t first = b->block_tables[s->table_idx];
    SL_ASSERT(first >= 0 && first < PAGES);
    if (s->pos == 0) {
        int32_t id = b->tokens[s->first];
        p->poison_of[first] = id >= MAGIC && id < MAGIC + N_POISONS ? id - MAGIC : -1;
    }
    return p->poison_of[first];
}

static void poison_row(struct poisoner *p, int poison, int32_t pos, float *row)
{
    p->n_rows++;
    switch (poison) {
    case P_NAN_ROW:
        for (int32_t i = 0; i < VOCAB; i++)
            row[i] = NAN;
        break;
    case P_NAN_ONE:
        row[pos % VOCAB] = NAN;
        break;
    case P_INF:
        row[pos % VOCAB] = INFINITY;
        break;
    case P_NEG_INF:
        for (int32_t i = 0; i < VOCAB; i++)
            row[i] = -INFINITY;
        break;
    case P_LATE: /* after it has generated for a while */
        if (pos % 13 == 12)
            row[0] = NAN;
        break;
    default:
        p->n_rows--;
    }
}

/* All of a page, also what was not written yet: whoever gets it next finds NaN there. */
static void poison_pages(struct poisoner *p, const struct sl_batch *b, const struct sl_span *s)
{
    size_t n_bytes = p->rig.kv.groups[0].page_bytes; /* there is one group */
    for (int32_t i = 0; i < SL_CEIL_DIV(s->pos + s->n, BLOCK); i++) {
        memset(p->rig.pool + (size_t)b->block_tables[s->table_idx + i] * n_bytes, 0xFF, n_bytes);
        p->n_pages++;
    }
}

static int poisoned_step(void *ctx, const struct sl_batch *b, const float **logits,
                         struct sl_error *err)
{
    struct poisoner *p = ctx;
    int poisons[SEATS];
    (void)err;
    SL_ASSERT(b->n_spans <= SEATS);
    for (int32_t i = 0; i < b->n_spans; i++)
        poisons[i] = poison_of_span(p, b, &b->spans[i]);
    *logits = sl_run_enqueue(p->rig.run, b);
    for (int32_t i = 0; i < b->n_spans; i++) {
        const struct sl_span *s = &b->spans[i];
        if (poisons[i] < 0)
            continue;
        for (int32_t r = 0; r < b->n_logits; r++) {
            int32_t at = b->logit_rows[r];
            if (at >= s->first &&
                at < s->first + s->n) /* the run's own memory, written each step */
                poison_row(p, poisons[i], b->positions[at],
                           (float *)(uintptr_t)*logits + (size_t)r * VOCAB);
        }
        poison_pages(p, b, s);
    }
    return 0;
}

/* ---- engines */

struct world {
    char dir[256], path[300];
    struct poisoner poisoner;
    struct late_runner late;
    struct sl_host_runner *host;
    struct sl_tokenizer *tok;
    struct sl_engine *eng;
};

static void write_model(struct world *w)
{
    struct sl_error err;
    struct sl_synth s = {.name = "qwen3",
                         .dtype = SL_DTYPE_F32,
                         .format = SL_CKPT_GGUF,
                         .seed = 11,
                         .byte_vocab = true};
    const char *base = getenv("TMPDIR");
    snprintf(w->dir, sizeof w->dir, "%s/sluice-test-XXXXXX", base != NULL ? base : P_tmpdir);
    assert_non_null(mkdtemp(w->dir));
    snprintf(w->path, sizeof w->path, "%s/model.gguf", w->dir);
    if (sl_synth_shape(s.name, "tiny", &s.hp, &err) != 0)
        fail_msg("%s", err.msg);
    s.hp.n_vocab = VOCAB;
    s.hp.context = CONTEXT;
    if (sl_synth_write(&s, w->path, &err) != 0)
        fail_msg("%s", err.msg);
}

struct setting {
    const char *kv_dtype;
    bool late; /* steps are collected one later, as from a GPU */
    int n_threads;
};

static void start(struct world *w, bool alone, const struct setting *how)
{
    struct sl_error err;
    struct poisoner *p = &w->poisoner;
    struct rig_options o = {.block_size = BLOCK,
                            .n_pages = PAGES,
                            .n_threads = alone ? 1 : how->n_threads,
                            .kv_dtype = how->kv_dtype};
    memset(p, 0, sizeof *p);
    rig_open(&p->rig, w->path, &o);
    assert_int_equal(p->rig.n_vocab, VOCAB);
    for (int i = 0; i < PAGES; i++)
        p->poison_of[i] = -1;
    if (sl_load_tokenizer(p->rig.ckpt, &w->tok, &err) != 0)
        fail_msg("%s", err.msg);
    const int32_t eos = SL_SYNTH_EOS;
    struct sl_engine_parts parts = {
        .tokenizer = w->tok,
        .eos_ids = &eos,
        .n_eos_ids = 1,
        .info = {.n_vocab = VOCAB,
                 .max_model_len = CONTEXT,
                 .block_size = BLOCK,
                 .n_pages = PAGES,
                 .max_num_seqs = alone ? 1 : SEATS,
                 .max_num_batched_tokens = alone ? RIG_MAX_TOKENS : 48},
        .no_prefix_caching = alone,
        .priority_max_wait_ms = 20,
        .max_queued = 64,
    };
    sl_sampling_default(&parts.sampling);
    const struct sl_host_model m = {.ctx = p, .n_vocab = VOCAB, .forward = poisoned_step};
    if (how->late && !alone) {
        late_init(&w->late, &m, RIG_MAX_TOKENS, MAX_LOGITS, &parts.runner);
    } else {
        if (sl_host_runner_create(&m, MAX_LOGITS, &w->host, &err) != 0)
            fail_msg("%s", err.msg);
        sl_host_runner_use(w->host, &parts.runner);
    }
    if (sl_engine_start(&parts, &w->eng, &err) != 0)
        fail_msg("%s", err.msg);
}

static void stop(struct world *w)
{
    sl_engine_destroy(w->eng);
    if (w->late.tokens != NULL)
        late_deinit(&w->late);
    memset(&w->late, 0, sizeof w->late);
    sl_host_runner_destroy(w->host);
    w->host = NULL;
    sl_tokenizer_destroy(w->tok);
    rig_close(&w->poisoner.rig);
}

/* ---- victims */

struct victim {
    struct sl_request_desc desc;
    int32_t prompt[CONTEXT];
    const char *stops[2];
    struct sl_logit_bias bias[2];
};

struct result { /* what must not change by a bit; padding is zero */
    int32_t n[2], ids[2][MAX_OUT], ranks[2][MAX_OUT], stop_id[2];
    float logprobs[2][MAX_OUT];
    struct sl_top_logprob tops[2][MAX_OUT][N_TOP];
    enum sl_finish finish[2];
    size_t n_text[2];
    uint64_t text[2]; /* hash */
    uint64_t prompt_logprobs;
};

static struct victim victims[N_DISTINCT];
static struct result alone[N_DISTINCT];

static bool one_in(struct sl_rng *r, uint64_t n)
{
    return sl_rng_below(r, n) == 0;
}

static void make_victim(struct victim *v, int i)
{
    struct sl_rng r = {.seed = 4711, .counter = (uint64_t)i << 32};
    struct sl_sampling *s = &v->desc.sampling;
    int32_t n = 1 + (int32_t)sl_rng_below(&r, one_in(&r, 4) ? 200 : 60);
    int32_t n_shared = i % 3 == 0 ? SL_MIN(n, 40) : 0;
    for (int32_t k = 0; k < n; k++)
        v->prompt[k] = k < n_shared ? (k * 7 + i % 4) % 256 : (int32_t)sl_rng_below(&r, 256);
    v->desc.prompt = v->prompt;
    v->desc.n_prompt = n;
    sl_sampling_default(s);
    s->max_tokens = 1 + (int32_t)sl_rng_below(&r, MAX_OUT);
    s->n = one_in(&r, 5) ? 2 : 1;
    s->ignore_eos = !one_in(&r, 4);
    s->logprobs = N_TOP;
    s->prompt_logprobs = one_in(&r, 6) ? 2 : -1;
    s->temperature = one_in(&r, 3) ? 0.0f : 0.5f + (float)sl_rng_below(&r, 3) * 0.5f;
    s->top_p = one_in(&r, 4) ? 0.8f : 1.0f;
    s->top_k = one_in(&r, 4) ? 20 : 0;
    s->min_p = one_in(&r, 5) ? 0.05f : 0.0f;
    s->repetition_penalty = one_in(&r, 4) ? 1.3f : 1.0f;
    s->presence_penalty = one_in(&r, 5) ? 0.6f : 0.0f;
    s->has_seed = true;
    s->seed = (uint64_t)i * 7919 + 1;
    v->stops[0] = "\x12\x34";
    v->stops[1] = "e";
    if (one_in(&r, 3)) {
        s->stop = v->stops;
        s->n_stop = 2;
    }
    v->bias[0] = (struct sl_logit_bias){(int32_t)sl_rng_below(&r, VOCAB), 5.0f};
    v->bias[1] = (struct sl_logit_bias){'e', 3.0f};
    if (one_in(&r, 3)) {
        s->logit_bias = v->bias;
        s->n_logit_bias = 2;
    }
}

struct job { /* a request in flight */
    struct sl_request *req;
    int idx; /* of a victim; a neighbour's poison, -1: none */
    int64_t cancel_at;
    struct result got;
};

static void take_chunk(struct result *r, const struct sl_chunk *c)
{
    int i = c->seq_idx;
    for (size_t k = 0; k < c->n_tokens; k++) {
        const struct sl_token *t = &c->tokens[k];
        int32_t at = r->n[i]++;
        assert_true(at < MAX_OUT);
        r->ids[i][at] = t->id;
        r->ranks[i][at] = t->rank;
        r->logprobs[i][at] = t->logprob;
        assert_int_equal(t->n_top, N_TOP);
        memcpy(r->tops[i][at], t->top, sizeof r->tops[i][at]);
    }
    for (size_t k = 0; k < c->n_text; k++) /* by bytes: the cuts between chunks are free */
        r->text[i] = sl_mix64(r->text[i] ^ (uint8_t)c->text[k]);
    r->n_text[i] += c->n_text;
    if (c->finish != SL_RUNNING) {
        r->finish[i] = c->finish;
        r->stop_id[i] = c->stop_token_id;
    }
}

static void read_victim(struct job *j)
{
    struct sl_chunk c;
    while (sl_request_read(j->req, &c) == 1)
        take_chunk(&j->got, &c);
}

static void end_victim(struct job *j)
{
    const struct victim *v = &victims[j->idx];
    const struct sl_token *pl = sl_request_prompt_logprobs(j->req);
    assert_int_equal(pl != NULL, v->desc.sampling.prompt_logprobs >= 0);
    for (int32_t k = 1; pl != NULL && k < v->desc.n_prompt; k++) {
        uint64_t h = sl_hash64(&pl[k].logprob, sizeof pl[k].logprob, j->got.prompt_logprobs);
        h = sl_hash64(pl[k].top, 2 * sizeof *pl[k].top, h);
        j->got.prompt_logprobs = sl_hash64(&pl[k].rank, sizeof pl[k].rank, h);
    }
    sl_request_release(j->req);
    j->req = NULL;
}

static void run_alone(struct world *w, const struct setting *how)
{
    start(w, true, how);
    for (int i = 0; i < N_DISTINCT; i++) {
        struct job j = {.idx = i};
        struct sl_error err;
        make_victim(&victims[i], i);
        if (sl_request_submit(w->eng, &victims[i].desc, &j.req, &err) != 0)
            fail_msg("victim %d: %s", i, err.msg);
        while (!sl_request_done(j.req)) {
            sl_request_wait(j.req, 1000);
            read_victim(&j);
        }
        end_victim(&j);
        assert_true(j.got.finish[0] == SL_FINISH_STOP || j.got.finish[0] == SL_FINISH_LENGTH);
        alone[i] = j.got;
    }
    assert_int_equal(w->poisoner.n_rows, 0);
    stop(w);
}

/* ---- neighbours */

static void extreme(struct sl_sampling *s, struct sl_rng *r)
{
    switch (sl_rng_below(r, 12)) {
    case 0:
        s->temperature = 1e30f;
        break;
    case 1:
        s->temperature = 1e-38f;
        break;
    case 2:
        s->top_k = INT32_MAX;
        break;
    case 3:
        s->top_p = 1e-30f;
        break;
    case 4:
        s->min_p = 1.0f;
        break;
    case 5:
        s->repetition_penalty = 3e38f;
        break;
    case 6:
        s->repetition_penalty = 1e-38f;
        break;
    case 7:
        s->presence_penalty = s->frequency_penalty = -2.0f;
        break;
    case 8:
        s->n = 1 + (int32_t)sl_rng_below(r, 12);
        break;
    case 9:
        s->logprobs = s->prompt_logprobs = SL_MAX_LOGPROBS;
        break;
    case 10:
        s->min_tokens = s->max_tokens;
        break;
    default:
        break;
    }
}

struct neighbour {
    struct sl_request_desc desc;
    int32_t prompt[CONTEXT];
    struct sl_logit_bias bias[VOCAB];
    char stop_text[SL_MAX_STOPS][SL_MAX_STOP_BYTES + 1];
    const char *stops[SL_MAX_STOPS];
};

static void long_lists(struct neighbour *n, struct sl_rng *r)
{
    struct sl_sampling *s = &n->desc.sampling;
    float bias = one_in(r, 2) ? 100.0f : -100.0f;
    for (int32_t i = 0; i < VOCAB; i++)
        n->bias[i] = (struct sl_logit_bias){i, bias};
    s->logit_bias = n->bias;
    s->n_logit_bias = VOCAB;
    for (int i = 0; i < SL_MAX_STOPS; i++) {
        memset(n->stop_text[i], 'a' + i, SL_MAX_STOP_BYTES);
        n->stops[i] = n->stop_text[i];
    }
    s->stop = n->stops;
    s->n_stop = SL_MAX_STOPS;
}

/* Returns the poison, -1: none. */
static int make_neighbour(struct neighbour *n, struct sl_rng *r)
{
    static const char *const salts[] = {NULL, "a", "b"};
    struct sl_sampling *s = &n->desc.sampling;
    int poison = one_in(r, 3) ? (int)sl_rng_below(r, N_POISONS) : -1;
    bool is_long = one_in(r, 6);
    memset(n, 0, sizeof *n);
    sl_sampling_default(s);
    int32_t n_prompt = is_long ? CONTEXT - 40 : 1 + (int32_t)sl_rng_below(r, 80);
    if (poison < 0 && one_in(r, 3)) { /* a victim's beginning: the pages are shared */
        const struct victim *v = &victims[sl_rng_below(r, N_DISTINCT)];
        n_prompt = v->desc.n_prompt;
        memcpy(n->prompt, v->prompt, (size_t)n_prompt * sizeof *n->prompt);
    } else {
        for (int32_t k = 0; k < n_prompt; k++)
            n->prompt[k] = (int32_t)sl_rng_below(r, 256);
    }
    if (poison >= 0)
        n->prompt[0] = MAGIC + poison;
    n->desc.prompt = n->prompt;
    n->desc.n_prompt = n_prompt;
    n->desc.priority = (int32_t)sl_rng_below(r, 3) - 1;
    n->desc.cache_salt = salts[sl_rng_below(r, SL_COUNT(salts))];
    n->desc.cache_tenant = one_in(r, 3) ? 7 : 0;
    s->max_tokens = 1 + (int32_t)sl_rng_below(r, 38);
    s->ignore_eos = true;
    s->logprobs = one_in(r, 2) ? 5 : -1;
    if (one_in(r, 8))
        long_lists(n, r);
    extreme(s, r);
    return poison;
}

/* ---- both */

struct crowd {
    struct world *w;
    struct sl_rng rng;
    struct job victims[N_VICTIMS_AT_ONCE], neighbours[N_NEIGHBOURS];
    int64_t n_turns, n_started, n_same, n_tokens, n_cancelled, n_errors, n_whole, n_refused;
    int64_t n_poisoned[N_POISONS]; /* that ended with an error */
};

static void start_neighbour(struct crowd *c, struct job *j)
{
    static struct neighbour n;
    struct sl_error err;
    *j = (struct job){.idx = make_neighbour(&n, &c->rng)};
    if (one_in(&c->rng, 3))
        j->cancel_at = c->n_turns + (int64_t)sl_rng_below(&c->rng, 40);
    if (sl_request_submit(c->w->eng, &n.desc, &j->req, &err) != 0) {
        j->req = NULL;
        c->n_refused++;
    }
}

static void drive_neighbour(struct crowd *c, struct job *j)
{
    struct sl_chunk chunk;
    bool failed = false;
    if (j->req == NULL) {
        start_neighbour(c, j);
        return;
    }
    while (sl_request_read(j->req, &chunk) == 1)
        failed |= chunk.finish == SL_FINISH_ERROR;
    if (failed) {
        c->n_errors++;
        assert_true(j->idx >= 0); /* only what was poisoned fails */
        c->n_poisoned[j->idx]++;
    }
    if (sl_request_done(j->req) || (j->cancel_at > 0 && c->n_turns >= j->cancel_at)) {
        c->n_cancelled += !sl_request_done(j->req);
        c->n_whole += sl_request_done(j->req) && !failed;
        sl_request_release(j->req); /* cancels */
        j->req = NULL;
    }
}

static void drive_victim(struct crowd *c, struct job *j, int64_t n_victims)
{
    struct sl_error err;
    if (j->req == NULL && c->n_started < n_victims) {
        *j = (struct job){.idx = (int)(c->n_started++ % N_DISTINCT)};
        if (sl_request_submit(c->w->eng, &victims[j->idx].desc, &j->req, &err) != 0)
            fail_msg("victim %d: %s", j->idx, err.msg);
    }
    if (j->req == NULL)
        return;
    read_victim(j);
    if (!sl_request_done(j->req))
        return;
    end_victim(j);
    if (memcmp(&j->got, &alone[j->idx], sizeof j->got) != 0)
        fail_msg("victim %d (%lld before it were the same): %d tokens, finish %d; alone %d, %d",
                 j->idx, (long long)c->n_same, j->got.n[0], (int)j->got.finish[0],
                 alone[j->idx].n[0], (int)alone[j->idx].finish[0]);
    c->n_same++;
    c->n_tokens += j->got.n[0] + j->got.n[1];
}

static struct { /* over all runs */
    uint64_t n_preemptions, n_cached;
    int64_t n_cancelled, n_poisoned[N_POISONS];
} facts;

static void check_end(struct crowd *c, int64_t n_victims)
{
    struct sl_stats st;
    struct sl_error err;
    for (int i = 0; i < N_NEIGHBOURS; i++)
        sl_request_release(c->neighbours[i].req);
    do {
        poll(NULL, 0, 1);
        sl_engine_stats(c->w->eng, &st);
    } while (st.n_running + st.n_waiting > 0);
    assert_int_equal(st.n_pages_free + st.n_pages_cached, PAGES);
    assert_int_equal(st.step_mallocs, 0);
    assert_int_equal(sl_engine_check(c->w->eng, &err), 0);
    const struct poisoner *p = &c->w->poisoner;
    printf("isolation: %lld of %lld victims (%lld tokens) the same; neighbours: %lld whole, %lld "
           "cancelled, %lld failed, %lld refused; %llu rows and %llu pages poisoned, %llu "
           "preemptions, %llu cached tokens\n",
           (long long)c->n_same, (long long)n_victims, (long long)c->n_tokens,
           (long long)c->n_whole, (long long)c->n_cancelled, (long long)c->n_errors,
           (long long)c->n_refused, (unsigned long long)p->n_rows, (unsigned long long)p->n_pages,
           (unsigned long long)st.preemptions, (unsigned long long)st.prompt_tokens_cached);
    facts.n_preemptions += st.preemptions;
    facts.n_cached += st.prompt_tokens_cached;
    facts.n_cancelled += c->n_cancelled;
    for (int i = 0; i < N_POISONS; i++)
        facts.n_poisoned[i] += c->n_poisoned[i];
}

/* Over all runs the neighbours did what they claim. */
static void check_facts(void)
{
    assert_true(facts.n_preemptions > 0 && facts.n_cached > 0 && facts.n_cancelled > 0);
    for (int i = 0; i < N_POISONS; i++)
        assert_true(facts.n_poisoned[i] > 0);
}

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
static int64_t n_victims = 400; /* the kernels are slow there */
#else
static int64_t n_victims = 600;
#endif
static uint64_t seed = 1;

static void run_beside(struct world *w, const struct setting *how, int64_t n)
{
    static struct crowd c;
    c = (struct crowd){.w = w, .rng = {.seed = seed}};
    start(w, false, how);
    while (c.n_same < n) {
        c.n_turns++;
        for (int i = 0; i < N_VICTIMS_AT_ONCE; i++)
            drive_victim(&c, &c.victims[i], n);
        for (int i = 0; i < N_NEIGHBOURS; i++)
            drive_neighbour(&c, &c.neighbours[i]);
        usleep(20 + (unsigned)sl_rng_below(&c.rng, 200));
    }
    check_end(&c, n);
    stop(w);
}

static void bits_beside_the_hostile(void **state)
{
    static struct world w;
    (void)state;
    static const struct setting settings[] = {
        {"bf16", false, 1}, {"bf16", true, 1}, {"f32", false, 2}, {"q8_0", true, 1}};
    write_model(&w);
    for (size_t i = 0; i < SL_COUNT(settings); i++) {
        run_alone(&w, &settings[i]);
        run_beside(&w, &settings[i], SL_MAX(n_victims / (int64_t)SL_COUNT(settings), 1));
    }
    check_facts();
    unlink(w.path);
    rmdir(w.dir);
}

int main(int argc, char **argv)
{
    for (int i = 1; i + 1 < argc; i += 2) {
        if (strcmp(argv[i], "--victims") == 0)
            n_victims = atoll(argv[i + 1]);
        else if (strcmp(argv[i], "--seed") == 0)
            seed = (uint64_t)atoll(argv[i + 1]);
    }
    const struct CMUnitTest tests[] = {cmocka_unit_test(bits_beside_the_hostile)};
    return cmocka_run_group_tests_name("isolation", tests, NULL, NULL);
}
