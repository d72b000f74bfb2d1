/* SPDX-License-Identifier: MIT
 * Models with windowed or recurrent layers in the engine, with few pages for them: the tokens are
 * those that the model gives with pages for everything, alone and beside others, with the
 * prefix cache hit and missed, a step ahead and not, with drafts and without. Before each step
 * every free page is filled with NaN, so that a page that is read after it was given up is noticed
 * at once.
 */
#include "base/check.h"
#include "engine/core.h"
#include "engine/late_runner.h"
#include "engine/turn.h"
#include "models/model_rig.h"

enum {
    CONTEXT = 256,
    BLOCK = 16,
    N_BLOCKS = 64,
    SEATS = 4,
    N_OUT = 40,
    N_PROMPTS = 10,
    ROUNDS = 3,
    MAX_DRAFTS = 6,
    DRAFT_PAGES = 14 /* fewer than four sequences could draft */
};

struct prompt {
    int32_t ids[CONTEXT], n;
    int32_t want[N_OUT];
};

struct world {
    struct rig rig;
    struct sl_engine *eng;
    struct late_runner late;
    struct sl_host_runner *host;
    struct prompt prompts[N_PROMPTS];
    int32_t n_drafts;                     /* behind a sequence */
    int32_t most_owned[SL_MAX_KV_GROUPS]; /* pages, of a group */
};

static int32_t argmax(const float *row, int32_t n)
{
    int32_t best = 0;
    for (int32_t i = 1; i < n; i++)
        best = row[i] > row[best] ? i : best;
    return best;
}

/* The tokens of one prompt, with pages for everything. */
static void compute_alone(struct rig *g, struct prompt *p)
{
    static float logits[CONTEXT * 1024];
    int32_t tokens[CONTEXT], pages[CONTEXT / BLOCK];
    rig_pages(pages, CONTEXT / BLOCK, 0, true);
    memcpy(tokens, p->ids, (size_t)p->n * sizeof *tokens);
    assert_true(g->n_vocab <= 1024 && p->n + N_OUT <= CONTEXT);
    for (int32_t n = 0; n < N_OUT; n++) {
        struct seq s = {tokens, p->n + n, pages, logits};
        struct piece piece = {&s, n == 0 ? 0 : p->n + n - 1, n == 0 ? p->n : 1, true};
        rig_step(g, &piece, 1);
        p->want[n] = argmax(logits + (size_t)(p->n + n - 1) * (size_t)g->n_vocab, g->n_vocab);
        tokens[p->n + n] = p->want[n];
    }
}

/* Every third prompt goes on where an answer ended; others share a beginning. */
static void make_prompts(struct world *w)
{
    for (int i = 0; i < N_PROMPTS; i++) {
        struct prompt *p = &w->prompts[i];
        if (i % 3 == 2) {
            const struct prompt *before = &w->prompts[i - 1];
            memcpy(p->ids, before->ids, (size_t)before->n * sizeof *p->ids);
            memcpy(p->ids + before->n, before->want, N_OUT * sizeof *p->ids);
            p->n = before->n + N_OUT;
        } else {
            p->n = 17 + 13 * i;
            rig_tokens(p->ids, p->n, w->rig.n_vocab, 5 + (uint64_t)i);
            rig_tokens(p->ids, SL_MIN(p->n, 48), w->rig.n_vocab, 3);
        }
        compute_alone(&w->rig, p);
    }
}

static void poison_free_pages(struct world *w)
{
    for (int32_t g = 0; g < w->eng->kv.n_groups; g++) {
        const struct sl_id_pool *pool = &w->eng->kv.groups[g].pool;
        const size_t n_bytes = w->rig.kv.groups[g].page_bytes;
        uint8_t *pools[SL_MAX_KV_GROUPS];
        int32_t n_owned = -w->eng->kv.groups[g].cfg.n_drafts;
        sl_kv_pools(&w->rig.kv, w->rig.pool, w->rig.n_pages, pools);
        for (int32_t page = 0; page < pool->n_ids; page++) {
            n_owned += pool->refs[page] > 0;
            if (pool->is_free[page])
                memset(pools[g] + (size_t)page * n_bytes, 0xFF, n_bytes);
        }
        for (int32_t i = 0; i < w->eng->kv.groups[g].n_drafts; i++)
            memset(pools[g] + (size_t)w->eng->kv.groups[g].drafts[i] * n_bytes, 0xFF, n_bytes);
        w->most_owned[g] = SL_MAX(w->most_owned[g], n_owned);
    }
}

static int forward(void *ctx, const struct sl_batch *b, const float **logits, struct sl_error *err)
{
    struct world *w = ctx;
    (void)err;
    SL_ASSERT(sl_sched_check(&w->eng->sched, NULL) == 0);
    poison_free_pages(w);
    *logits = sl_run_enqueue(w->rig.run, b);
    return 0;
}

static struct world *drafting; /* whose answers a drafter knows */

/* What will come, but for a wrong token now and then, in any place. */
static int32_t propose(struct sl_engine *eng, struct sl_rseq *rs, int32_t n)
{
    const struct sl_seq *seq = &rs->seq;
    const struct prompt *p = drafting->prompts;
    (void)eng;
    while (p->n != seq->n_prompt || memcmp(p->ids, seq->prompt, (size_t)p->n * sizeof *p->ids) != 0)
        p++;
    n = SL_MIN(n, N_OUT - seq->n_out);
    for (int32_t i = 0; i < n; i++) {
        const int32_t id = p->want[seq->n_out + i];
        rs->drafts[i] =
            (7 * (seq->n_out + i) + p->n) % 5 == 0 ? (id + 1) % drafting->rig.n_vocab : id;
    }
    return n;
}

static const struct sl_mode drafted = {.propose = propose, .consume = sl_generate_consume};

static void start(struct world *w, bool late, int32_t window_pages)
{
    const int32_t n_rows = SEATS + SEATS * w->n_drafts;
    struct sl_error err;
    struct sl_engine_parts parts = {
        .info = {.n_vocab = w->rig.n_vocab,
                 .max_model_len = CONTEXT,
                 .block_size = BLOCK,
                 .n_pages = N_BLOCKS,
                 .n_kv_groups = w->rig.kv.n_groups,
                 .max_num_seqs = SEATS,
                 .max_num_batched_tokens = 40},
        .speculative = {.method = w->n_drafts > 0 ? SL_DRAFT_NGRAM : SL_DRAFT_NONE,
                        .num_speculative_tokens = w->n_drafts},
        .no_thread = true,
        .seed = 1};
    for (int32_t g = 0; g < w->rig.kv.n_groups; g++) {
        const struct sl_kv_layer_group *layers = &w->rig.kv.groups[g];
        parts.info.kv_groups[g] = (struct sl_kv_group_info){
            .state = layers->state,
            .window = layers->window,
            .n_draft_pages = layers->state && w->n_drafts > 0 ? DRAFT_PAGES : 0,
            .n_pages = sl_kv_layers_full(layers) ? N_BLOCKS : window_pages};
    }
    sl_sampling_default(&parts.sampling);
    const struct sl_host_model m = {.ctx = w, .n_vocab = w->rig.n_vocab, .forward = forward};
    if (late) {
        late_init(&w->late, &m, RIG_MAX_TOKENS, n_rows, &parts.runner);
    } else {
        if (sl_host_runner_create(&m, n_rows, &w->host, &err) != 0)
            fail_msg("%s", err.msg);
        sl_host_runner_use(w->host, &parts.runner);
    }
    if (sl_engine_start(&parts, &w->eng, &err) != 0)
        fail_msg("%s", err.msg);
    drafting = w;
    if (w->n_drafts > 0)
        w->eng->drafting = &drafted;
}

static struct sl_request *submit(struct world *w, const struct prompt *p)
{
    struct sl_error err;
    struct sl_request *req = NULL;
    struct sl_request_desc desc = {.prompt = p->ids, .n_prompt = p->n};
    sl_sampling_default(&desc.sampling);
    desc.sampling.max_tokens = N_OUT;
    desc.sampling.temperature = 0;
    if (sl_request_submit(w->eng, &desc, &req, &err) != 0)
        fail_msg("%s", err.msg);
    return req;
}

static void compare(struct sl_request *req, const struct prompt *p, const char *what)
{
    struct sl_chunk c;
    int32_t n = 0;
    while (sl_request_read(req, &c))
        for (size_t i = 0; i < c.n_tokens; i++, n++)
            if (c.tokens[i].id != p->want[n])
                fail_msg("%s: token %d behind %d is %d, not %d", what, n, p->n, c.tokens[i].id,
                         p->want[n]);
    assert_int_equal(n, N_OUT);
    assert_true(sl_request_done(req));
    sl_request_release(req);
}

static void run_all(struct world *w, const char *what)
{
    struct sl_request *reqs[N_PROMPTS];
    for (int i = 0; i < N_PROMPTS; i++)
        reqs[i] = submit(w, &w->prompts[i]);
    while (sl_engine_step(w->eng)) {
    }
    for (int i = 0; i < N_PROMPTS; i++)
        compare(reqs[i], &w->prompts[i], what);
}

static void stop(struct world *w, bool late)
{
    sl_engine_destroy(w->eng);
    if (late)
        late_deinit(&w->late);
    else
        sl_host_runner_destroy(w->host);
}

/* window_pages: of a windowed or recurrent group; fewer than all sequences want are preempted for.
 */
static void play(const char *model, bool late, int32_t window_pages, int32_t n_drafts)
{
    static struct world w;
    char path[128], what[160];
    struct sl_stats s;
    memset(&w, 0, sizeof w);
    snprintf(path, sizeof path, "tests/golden/models/%s", model);
    snprintf(what, sizeof what, "%s, %d pages, late %d, %d drafts", model, window_pages, late,
             n_drafts);
    w.n_drafts = n_drafts;
    rig_open(&w.rig, path, &(struct rig_options){.n_pages = N_BLOCKS + DRAFT_PAGES});
    make_prompts(&w);
    start(&w, late, window_pages);
    for (int round = 0; round < ROUNDS; round++)
        run_all(&w, what);
    sl_engine_stats(w.eng, &s);
    assert_true(s.prompt_tokens_cached > 0);
    assert_true(n_drafts == 0 || (s.n_accepted_tokens > ROUNDS * N_PROMPTS * N_OUT / 4 &&
                                  s.n_accepted_tokens < s.n_draft_tokens));
    assert_int_equal(s.step_mallocs, 0);
    int32_t windowed = w.rig.kv.n_groups - 1;
    assert_false(sl_kv_layers_full(&w.rig.kv.groups[windowed]));
    if (sl_kv_layers_full(&w.rig.kv.groups[0])) /* the context of four sequences against what they
                                                   see of it */
        assert_true(w.most_owned[0] > 2 * w.most_owned[windowed]);
    assert_int_equal(s.kv_groups[windowed].n_free + s.kv_groups[windowed].n_cached, window_pages);
    stop(&w, late);
    rig_close(&w.rig);
}

static void tokens_are_those_of_the_whole_context(void **state)
{
    (void)state;
    static const char *const models[] = {"mistral", "qwen2_window", "smollm3_window", "gemma3"};
    for (size_t i = 0; i < SL_COUNT(models); i++)
        for (int late = 0; late < 2; late++) {
            play(models[i], late != 0, 5, 0);  /* fewer than four sequences want */
            play(models[i], late != 0, 24, 0); /* and some that stay cached */
            play(models[i], late != 0, N_BLOCKS, 0);
        }
}

static void tokens_are_those_of_states_that_were_never_left(void **state)
{
    (void)state;
    static const char *const models[] = {
        "lfm2",         "mamba2",          "granitemoehybrid", "qwen3_5",     "lfm3",
        "olmo_hybrid",  "recurrent_gemma", "zamba2",           "kimi_linear", "rwkv7",
        "jet_nemotron", "deepseek_v4",     "glm5_next"};
    for (size_t i = 0; i < SL_COUNT(models); i++)
        for (int late = 0; late < 2; late++) {
            if (strcmp(models[i], "deepseek_v4") != 0 && strcmp(models[i], "lfm3") != 0 &&
                strcmp(models[i], "recurrent_gemma") != 0 && strcmp(models[i], "jet_nemotron") != 0)
                play(models[i], late != 0, 2, 0); /* one sequence; their windows need three */
            play(models[i], late != 0, 5, 0);     /* two */
            play(models[i], late != 0, 12, 0);    /* four, and some that stay cached */
            play(models[i], late != 0, N_BLOCKS, 0);
        }
}

/* Right drafts leave the states that the tokens leave one by one, wrong ones leave nothing; others
 * begin at those states in later rounds. */
static void drafts_leave_the_states_of_their_tokens(void **state)
{
    (void)state;
    static const char *const models[] = {"lfm2", "mamba2", "nemotron_h",  "qwen3_5",
                                         "lfm3", "rwkv7",  "deepseek_v4", "glm5_next"};
    for (size_t i = 0; i < SL_COUNT(models); i++)
        for (int late = 0; late < 2; late++) {
            play(models[i], late != 0, 5, MAX_DRAFTS);
            play(models[i], late != 0, 12, 1 + (int32_t)i);
        }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(tokens_are_those_of_states_that_were_never_left),
        cmocka_unit_test(drafts_leave_the_states_of_their_tokens),
        cmocka_unit_test(tokens_are_those_of_the_whole_context),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
