/* SPDX-License-Identifier: MIT
 * Tests of what drafts cost: a scripted model and a scripted drafter whose steps take the time that
 * a price list says, on a clock of our own. However rarely drafts come out, and whoever makes them,
 * everything takes at most 2 % longer than without; where they come out, it takes much less.
 */
#include "engine_rig.h"

#include "base/check.h"
#include "base/rng.h"
#include "engine/turn.h"

#define N_OUT    300
#define N_PROMPT 40
#define MAX_REQS 192
#define N_ROWS   128 /* of drafts, in a step */
#define N_CLASS  6   /* tokens 1 to 6 are those of good texts, 7 to 12 of others */

struct prices { /* of a step, in nanoseconds */
    const char *name;
    double base, row;
    double wide;         /* of one with drafts, beside its rows */
    double host, notice; /* of a runner that computes while the next step is planned: what the host
                            needs for a step, and until it knows that one is over */
};

static const struct prices profiles[] = {
    {"reads weights", 10e6, 0.1e6, 0, 0, 0},
    {"between both", 6e6, 2e6, 0, 0, 0},
    {"computes", 0.5e6, 5e6, 0, 0, 0},
};

/* What the host needs shows only where nothing is in flight. */
static const struct prices ahead_prices = {"one step ahead", 4e6, 0.02e6, 0.5e6, 250e3, 50e3};
/* A small model on a large device. */
static const struct prices short_prices = {"short steps", 0.28e6, 3e3, 20e3, 60e3, 20e3};
#define SEARCH_NS 16000u /* in a text; measured there */
#define PERIOD    120    /* of a text that repeats itself */

struct world {
    struct rig rig;
    struct prices prices;
    double draft_part; /* what a step of the drafter takes of one of the model */
    int32_t right[2];  /* of a hundred drafts, in good texts and in others */
    int32_t from;      /* before this position no draft is */
    int32_t period;    /* the text repeats itself, without regard to tokens; 0: it does not */
    float *rows;
    uint64_t n_draws;
    bool ahead, text;
    struct late_runner late;
    uint64_t step_ns, free_ns; /* of the step submitted last: what it takes, and when it is over */
    uint64_t over_ns[SL_MAX_FLIGHTS];
    uint64_t n_submitted, n_collected;
};

static uint64_t clock_ns;

static uint64_t virtual_now(void)
{
    return clock_ns;
}

/* A step takes some percent more or less than it should. */
static uint64_t time_of(struct world *w, const struct sl_batch *b, double part)
{
    const double noise = 0.95 + 0.1 * sl_rng_unit(sl_rng_at(7, w->n_draws++));
    const double wide = b->n_logits > b->n_spans ? w->prices.wide : 0;
    return (uint64_t)((w->prices.base + w->prices.row * b->n_tokens + wide) * part * noise);
}

/* Of a text whose drafts are found in it. */
static int32_t text_token(const struct world *w, int32_t pos)
{
    const uint64_t r = sl_rng_at(11, (uint64_t)(w->period > 0 ? pos % w->period : pos));
    return 1 + (int32_t)(r >> 40) % (T_N - 1);
}

static int32_t class_of(int32_t token)
{
    return token <= N_CLASS ? 0 : 1;
}

/* A text keeps to its class. */
static int32_t next_token(int32_t token, int32_t pos)
{
    const uint64_t r = sl_rng_at((uint64_t)token, (uint64_t)pos);
    return 1 + N_CLASS * class_of(token) + (int32_t)(r >> 40) % N_CLASS;
}

/* What a drafter says after a token: now and then the right one, else one that never comes. */
static int32_t draft_after(const struct world *w, int32_t token, int32_t pos)
{
    const uint64_t r = sl_rng_at((uint64_t)token + 100, (uint64_t)pos);
    const int32_t hundred = (int32_t)(r >> 20 & 0xfffff) % 100;
    return token != T_EOS && pos >= w->from && hundred < w->right[class_of(token)]
               ? next_token(token, pos)
               : T_EOS;
}

static int target_step(void *ctx, const struct sl_batch *b, const float **rows,
                       struct sl_error *err)
{
    struct world *w = ctx;
    (void)err;
    for (int32_t r = 0; r < b->n_logits; r++) {
        const int32_t i = b->logit_rows[r], token = b->tokens[i];
        for (int32_t id = 0; id < T_N; id++)
            w->rows[r * T_N + id] = 0;
        if (w->text)
            w->rows[r * T_N + text_token(w, b->positions[i] + 1)] = 1;
        else
            w->rows[r * T_N + (token == T_EOS ? 1 : next_token(token, b->positions[i]))] = 1;
    }
    w->step_ns = time_of(w, b, 1);
    clock_ns += w->ahead ? 0 : w->step_ns;
    *rows = w->rows;
    return 0;
}

static int draft_step(void *ctx, const struct sl_batch *b, const int32_t *sources, bool own,
                      const float **rows, struct sl_error *err)
{
    struct world *w = ctx;
    (void)err;
    for (int32_t r = 0; r < b->n_logits; r++) {
        const int32_t i = b->logit_rows[r];
        const int32_t pos = b->positions[i] + (w->rig.model.draft_rows ? 1 : 0);
        for (int32_t id = 0; id < T_N; id++)
            w->rows[r * T_N + id] = 0;
        w->rows[r * T_N + draft_after(w, b->tokens[i], pos)] = 1;
    }
    (void)sources;
    (void)own;
    clock_ns += time_of(w, b, w->draft_part);
    *rows = w->rows;
    return 0;
}

static int ahead_submit(void *ctx, const struct sl_batch *b, const struct sl_pick *picks,
                        struct sl_error *err)
{
    struct world *w = ctx;
    clock_ns += (uint64_t)w->prices.host;
    const int rc = late_submit(&w->late, b, picks, err);
    w->free_ns = SL_MAX(w->free_ns, clock_ns) + w->step_ns;
    w->over_ns[w->n_submitted++ % SL_MAX_FLIGHTS] = w->free_ns;
    return rc;
}

static int ahead_choose(void *ctx, const struct sl_pick *picks, struct sl_error *err)
{
    struct world *w = ctx;
    return late_choose(&w->late, picks, err);
}

static int ahead_collect(void *ctx, struct sl_picked *out, struct sl_error *err)
{
    struct world *w = ctx;
    const uint64_t over_ns = w->over_ns[w->n_collected++ % SL_MAX_FLIGHTS];
    clock_ns = SL_MAX(clock_ns, over_ns + (uint64_t)w->prices.notice);
    return late_collect(&w->late, out, err);
}

static int ahead_draft(void *ctx, struct sl_draft_pass *pass, struct sl_error *err)
{
    struct world *w = ctx;
    return late_draft(&w->late, pass, err);
}

/* A device behind what computes in the call. */
static void go_ahead(struct world *w, int32_t max_tokens, int32_t max_logits, struct sl_runner *r)
{
    const struct sl_runner host = *r;
    late_init(&w->late, &w->rig.model, max_tokens, max_logits, r);
    if (w->rig.model.draft != NULL) {
        late_drafts(&w->late, &host, r);
        r->draft = ahead_draft;
        r->draft_end = NULL; /* a pass is over when the call is, by this clock */
    }
    r->ctx = w;
    r->submit = ahead_submit;
    r->choose = ahead_choose;
    r->collect = ahead_collect;
}

/* As a search in the text would find them. */
static int32_t look_up(struct sl_engine *eng, struct sl_rseq *rs, int32_t n)
{
    const struct world *w = (const struct world *)((char *)rig_open - offsetof(struct world, rig));
    int32_t pos = sl_seq_n_known(&rs->seq) - 1, token = sl_seq_token(&rs->seq, pos);
    (void)eng;
    for (int32_t i = 0; i < n; i++, pos++)
        token = rs->drafts[i] = draft_after(w, token, pos);
    return n;
}

static const struct sl_mode look_up_mode = {.propose = look_up, .consume = sl_generate_consume};

/* A search, which takes time once behind each text. */
static int32_t search(struct sl_engine *eng, struct sl_rseq *rs, int32_t n)
{
    const int32_t found_at = rs->found_at;
    n = sl_mode_suffix.propose(eng, rs, n);
    clock_ns += rs->found_at != found_at ? SEARCH_NS : 0;
    return n;
}

static const struct sl_mode search_mode = {.propose = search, .consume = sl_generate_consume};

/* ------------------------------------------------------------------ a run */

enum drafter { NONE, LOOK_UP, MODEL, ROWS, SEARCH };

struct how {
    enum drafter who;
    struct prices prices;
    int32_t conc, right[2], n_reqs, from;
    double draft_part;
    bool ahead, text; /* text: of text_token */
    int32_t period;
};

/* Returns the seconds that all requests take, conc of them at once. */
static double run(const struct how *h, struct sl_stats *s)
{
    static struct world w;
    static struct sl_request *reqs[MAX_REQS];
    static struct rig_out outs[1];
    struct sl_sys sys = sl_sys_real;
    struct sl_error err;
    memset(&w, 0, sizeof w);
    w.prices = h->prices;
    w.from = h->from;
    w.ahead = h->ahead;
    w.text = h->text;
    w.period = h->period;
    w.draft_part = h->draft_part;
    memcpy(w.right, h->right, sizeof w.right);
    w.rows = sl_calloc((size_t)(h->conc + N_ROWS), T_N * sizeof *w.rows);
    w.rig.model = (struct sl_host_model){.ctx = &w, .n_vocab = T_N, .forward = target_step};
    if (h->who == MODEL || h->who == ROWS) {
        w.rig.model.draft = draft_step;
        w.rig.model.n_draft_vocab = T_N;
        w.rig.model.draft_context = RIG_LEN;
        w.rig.model.draft_rows = h->who == ROWS;
    }
    const enum sl_draft_method methods[] = {SL_DRAFT_NONE, SL_DRAFT_NGRAM, SL_DRAFT_MODEL,
                                            SL_DRAFT_EAGLE3, SL_DRAFT_SUFFIX};
    struct sl_host_runner *host;
    struct sl_engine_parts p = {.no_thread = true,
                                .seed = 1,
                                .max_itl_ms = 1000,
                                .info = {.max_num_seqs = h->conc,
                                         .n_pages = 24 * h->conc,
                                         .block_size = 16,
                                         .max_num_batched_tokens = SL_MAX(512, 4 * h->conc)},
                                .speculative = {.method = methods[h->who],
                                                .num_speculative_tokens = h->who == SEARCH ? 24
                                                                          : h->who != NONE ? 4
                                                                                           : 0,
                                                .prompt_lookup_min = 1,
                                                .prompt_lookup_max = 1,
                                                .suffix_max_tree_depth = 24,
                                                .suffix_max_spec_factor = 1,
                                                .suffix_min_token_prob = 0.1f}};
    clock_ns = 1000000000;
    sys.now_ns = virtual_now;
    sl_sys = &sys;
    if (sl_host_runner_create(&w.rig.model, h->conc + N_ROWS, &host, &err) != 0)
        fail_msg("%s", err.msg);
    sl_host_runner_use(host, &p.runner);
    if (h->ahead)
        go_ahead(&w, p.info.max_num_batched_tokens, h->conc + N_ROWS, &p.runner);
    rig_start(&w.rig, &p);
    if (h->who == LOOK_UP)
        w.rig.eng->drafting = &look_up_mode;
    if (h->who == SEARCH)
        w.rig.eng->drafting = &search_mode;
    const uint64_t t0 = clock_ns;
    for (int32_t i = 0; i < h->n_reqs; i++) {
        int32_t prompt[N_PROMPT];
        struct sl_request_desc desc = {.prompt = prompt, .n_prompt = N_PROMPT};
        for (int32_t k = 0; k < N_PROMPT; k++)
            prompt[k] = h->text ? text_token(&w, k) : 1 + N_CLASS * (i % 2) + (i + k * k) % N_CLASS;
        prompt[0] = 1 + i % (T_N - 1);
        sl_sampling_default(&desc.sampling);
        desc.sampling.temperature = 0;
        desc.sampling.max_tokens = N_OUT;
        desc.sampling.ignore_eos = true;
        if (sl_request_submit(w.rig.eng, &desc, &reqs[i], &err) != 0)
            fail_msg("refused: %s", err.msg);
    }
    while (sl_engine_step(w.rig.eng)) {
    }
    const double seconds = (double)(clock_ns - t0) / 1e9;
    for (int32_t i = 0; i < h->n_reqs; i++) {
        memset(outs, 0, sizeof outs);
        rig_read(reqs[i], outs);
        assert_int_equal(outs[0].n, N_OUT);
        sl_request_release(reqs[i]);
    }
    sl_engine_stats(w.rig.eng, s);
    if (h->ahead && h->who == NONE) /* what drafts are compared with */
        assert_true(10 * w.late.n_overlaps > 9 * s->steps);
    rig_stop(&w.rig);
    if (h->ahead)
        late_deinit(&w.late);
    sl_host_runner_destroy(host);
    sl_sys = &sl_sys_real;
    sl_free(w.rows);
    return seconds;
}

/* How many times as fast as without drafts. */
static double factor(struct how h)
{
    static const char *const names[] = {"none", "look-up", "model", "rows", "search"};
    struct sl_stats s, plain_s;
    struct how none = h;
    none.who = NONE;
    const double plain = run(&none, &plain_s), drafted = run(&h, &s);
    printf("%-8s %-14s %2d at once, %3d and %3d %% right: %.3f x, %llu of %llu drafts, %llu steps, "
           "%.3f s\n",
           names[h.who], h.prices.name, h.conc, h.right[0], h.right[1], plain / drafted,
           (unsigned long long)s.n_accepted_tokens, (unsigned long long)s.n_draft_tokens,
           (unsigned long long)s.steps, plain);
    assert_int_equal(plain_s.n_draft_tokens, 0);
    assert_int_equal(s.step_mallocs, 0);
    return plain / drafted;
}

/* ------------------------------------------------------------------ tests */

static void nothing_comes_out(void **state)
{
    static const int32_t conc[] = {1, 16, 64};
    (void)state;
    for (enum drafter who = LOOK_UP; who <= ROWS; who++)
        for (size_t i = 0; i < SL_COUNT(profiles); i++)
            for (size_t k = 0; k < SL_COUNT(conc); k++)
                assert_true(factor((struct how){.who = who,
                                                .prices = profiles[i],
                                                .conc = conc[k],
                                                .n_reqs = conc[k] > 1 ? 3 * conc[k] : 4,
                                                .draft_part = 0.15}) > 0.98);
}

/* Nor if a step that waits for drafts keeps the next one from running ahead. */
static void nothing_is_kept_from_running_ahead(void **state)
{
    static const int32_t conc[] = {1, 4, 16, 64};
    (void)state;
    for (enum drafter who = LOOK_UP; who <= ROWS; who++)
        for (size_t k = 0; k < SL_COUNT(conc); k++)
            assert_true(factor((struct how){.who = who,
                                            .prices = ahead_prices,
                                            .conc = conc[k],
                                            .n_reqs = conc[k] > 1 ? 3 * conc[k] : 4,
                                            .draft_part = 0.1,
                                            .ahead = true}) > 0.98);
}

static void what_comes_out_pays_one_step_ahead(void **state)
{
    (void)state;
    for (enum drafter who = LOOK_UP; who <= ROWS; who++) {
        struct how h = {.who = who,
                        .prices = ahead_prices,
                        .conc = 1,
                        .n_reqs = 6,
                        .right = {80, 80},
                        .draft_part = 0.05,
                        .ahead = true};
        assert_true(factor(h) > 2.0);
        h.conc = 16;
        h.n_reqs = 32;
        assert_true(factor(h) > 1.2);
    }
}

static void most_come_out(void **state)
{
    (void)state;
    for (enum drafter who = LOOK_UP; who <= ROWS; who++) {
        struct how h = {.who = who,
                        .prices = profiles[0],
                        .conc = 1,
                        .n_reqs = 6,
                        .right = {80, 80},
                        .draft_part = 0.05};
        assert_true(factor(h) > (who == LOOK_UP ? 2.9 : 2.4));
        h.conc = 16;
        h.n_reqs = 32;
        assert_true(factor(h) > (who == ROWS ? 1.3 : 1.7));
    }
}

/* Texts that are drafted well beside others. */
static void some_texts_pay(void **state)
{
    (void)state;
    for (enum drafter who = LOOK_UP; who <= ROWS; who++) {
        const struct how h = {.who = who,
                              .prices = profiles[0],
                              .conc = 8,
                              .n_reqs = 32,
                              .right = {85, 0},
                              .draft_part = 0.05};
        assert_true(factor(h) > 1.03);
    }
}

/* Who found nothing for half of a text finds the rest, a drafter of hidden rows too, whose pages
 * lack what it was not given. */
static void texts_begin_to_pay(void **state)
{
    (void)state;
    for (enum drafter who = LOOK_UP; who <= ROWS; who++) {
        const struct how h = {.who = who,
                              .prices = profiles[0],
                              .conc = 1,
                              .n_reqs = 3,
                              .right = {90, 90},
                              .from = N_PROMPT + N_OUT / 2,
                              .draft_part = 0.05};
        assert_true(factor(h) > 1.2);
    }
}

/* Short steps, where a search takes a good part of one: short matches, which are wrong, do not use
 * up what a long one needs, nor does searching. */
static void searches_pay(void **state)
{
    (void)state;
    struct how h = {.who = SEARCH,
                    .prices = short_prices,
                    .conc = 1,
                    .n_reqs = 4,
                    .ahead = true,
                    .text = true,
                    .period = PERIOD};
    assert_true(factor(h) > 1.8);
    h.period = 0; /* nothing comes again */
    assert_true(factor(h) > 0.98);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(nothing_comes_out),
        cmocka_unit_test(nothing_is_kept_from_running_ahead),
        cmocka_unit_test(what_comes_out_pays_one_step_ahead),
        cmocka_unit_test(most_come_out),
        cmocka_unit_test(some_texts_pay),
        cmocka_unit_test(texts_begin_to_pay),
        cmocka_unit_test(searches_pay),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
