/* SPDX-License-Identifier: MIT
 * Requests whose outputs must match a grammar, on a runner that computes in the call and on one
 * that is a step behind, with masks made in the call and by threads.
 */
#include "engine/engine_rig.h"

#include "base/rng.h"
#include "engine/core.h"
#include "grammar/grammar.h"

#include <poll.h>

static bool threads;

struct run {
    struct sl_request *req;
    struct sl_request_desc desc;
    int32_t prompt[4];
    struct rig_out outs[4];
};

static void start(struct rig *g)
{
    static const struct sl_engine_parts stepwise = {.no_thread = true, .seed = 1},
                                        threaded = {.seed = 1};
    memset(g, 0, sizeof *g);
    rig_script(g, 0, NULL, 0); /* x is by far the likeliest */
    rig_start(g, threads ? &threaded : &stepwise);
}

static struct sl_constraint *open_it(struct rig *g, enum sl_grammar_kind kind, const char *text)
{
    struct sl_error err;
    struct sl_constraint *c = NULL;
    struct sl_constraint_desc d = {.kind = kind, .text = text, .n_text = strlen(text)};
    if (sl_constraint_open(g->eng, &d, &c, &err) != 0)
        fail_msg("%s: %s", text, err.msg);
    return c;
}

static void make(struct run *r, struct sl_constraint *c, uint64_t seed)
{
    memset(r, 0, sizeof *r);
    for (int i = 0; i < 4; i++)
        r->prompt[i] = (int32_t)(1 + (seed + (uint64_t)i) % 9);
    sl_sampling_default(&r->desc.sampling);
    r->desc.prompt = r->prompt;
    r->desc.n_prompt = 4;
    r->desc.constraint = c;
    r->desc.sampling.seed = seed;
    r->desc.sampling.has_seed = true;
    r->desc.sampling.temperature = 1;
    r->desc.sampling.max_tokens = 200;
}

static void submit(struct rig *g, struct run *r)
{
    struct sl_error err;
    if (sl_request_submit(g->eng, &r->desc, &r->req, &err) != 0)
        fail_msg("%s", err.msg);
}

static void finish_all(struct rig *g, struct run *runs, int n)
{
    struct sl_error err;
    for (int turn = 0; !threads && turn < 4000; turn++) {
        bool work = sl_engine_step(g->eng);
        if (sl_engine_check(g->eng, &err) != 0)
            fail_msg("%s", err.msg);
        for (int i = 0; i < n; i++)
            rig_read(runs[i].req, runs[i].outs);
        if (!work)
            break;
    }
    for (int i = 0; i < n; i++) {
        while (!sl_request_done(runs[i].req)) {
            assert_true(threads);
            sl_request_wait(runs[i].req, 1000);
            rig_read(runs[i].req, runs[i].outs);
        }
        for (int k = 0; k < runs[i].desc.sampling.n; k++)
            runs[i].outs[k].text[runs[i].outs[k].n_text] = '\0';
    }
}

static void release(struct run *runs, int n)
{
    for (int i = 0; i < n; i++)
        sl_request_release(runs[i].req);
}

static bool accepts(enum sl_grammar_kind kind, const char *text, const struct rig_out *o)
{
    struct sl_grammar *g = NULL;
    struct sl_error err;
    struct sl_grammar_spec spec = {.kind = kind, .text = text, .n = strlen(text)};
    bool yes = false;
    size_t at;
    assert_int_equal(sl_grammar_compile(&spec, NULL, &g, &err), 0);
    assert_int_equal(sl_grammar_matches(g, o->text, o->n_text, &yes, &at, &err), 0);
    sl_grammar_destroy(g);
    return yes;
}

static const struct {
    enum sl_grammar_kind kind;
    const char *text;
} grammars[] = {
    {SL_GRAMMAR_REGEX, "(a|bc){1,9}"},
    {SL_GRAMMAR_REGEX, "a b c\\n[abc]{2,5}\u00e9?"},
    {SL_GRAMMAR_REGEX, "(User:(a|b)\\n){1,4}"},
    {SL_GRAMMAR_CHOICE, "[\"ab\",\"abc\",\"cab\",\"\u00e9\u00e9\"]"},
    {SL_GRAMMAR_EBNF, "root ::= \"a\" root \"b\" | \"c\""},
    {SL_GRAMMAR_EBNF, "start: \"ab\" /[ab]{1,3}/ | \"c\" \" \" \"x\""},
};

enum { N_RUNS = 40 };

/* Every output of a batch of all kinds is a text of its grammar. */
static void outputs_match(void **state)
{
    static struct rig g;
    struct run runs[N_RUNS];
    struct sl_constraint *c[SL_COUNT(grammars)];
    (void)state;
    start(&g);
    for (size_t k = 0; k < SL_COUNT(grammars); k++)
        c[k] = open_it(&g, grammars[k].kind, grammars[k].text);
    int n_stop = 0;
    for (uint64_t round = 0; round < 6; round++) {
        for (int i = 0; i < N_RUNS; i++) {
            make(&runs[i], c[(size_t)i % SL_COUNT(c)], round * N_RUNS + (uint64_t)i);
            runs[i].desc.sampling.temperature = i % 3 == 0 ? 0.0f : 4.0f;
            runs[i].desc.sampling.n = 1 + i % 3;
            submit(&g, &runs[i]);
        }
        finish_all(&g, runs, N_RUNS);
        for (int i = 0; i < N_RUNS; i++)
            for (int k = 0; k < 1 + i % 3; k++) {
                const struct rig_out *o = &runs[i].outs[k];
                size_t at = (size_t)i % SL_COUNT(c);
                assert_int_equal(o->n_ends, 1);
                n_stop += o->finish == SL_FINISH_STOP;
                if (o->finish == SL_FINISH_STOP &&
                    !accepts(grammars[at].kind, grammars[at].text, o))
                    fail_msg("%s: %s", grammars[at].text, o->text);
            }
        release(runs, N_RUNS);
    }
    assert_true(n_stop > 400); /* a recursive rule may run into max_tokens */
    struct sl_stats s;
    sl_engine_stats(g.eng, &s);
    assert_int_equal(s.n_matchers, 0);
    assert_int_equal(s.n_grammars, SL_COUNT(grammars));
    assert_true(s.grammar_masks > 1000);
    if (!threads)
        assert_int_equal(s.step_mallocs, 0);
    for (size_t k = 0; k < SL_COUNT(c); k++)
        sl_constraint_release(c[k]);
    rig_stop(&g);
}

/* Neighbours get the tokens they get alone. */
static void neighbours_do_not_change(void **state)
{
    static struct rig g;
    struct run alone[8], with[16];
    (void)state;
    start(&g);
    struct sl_constraint *c = open_it(&g, SL_GRAMMAR_REGEX, "(a|bc|x ){3,12}");
    for (int i = 0; i < 8; i++) {
        make(&alone[i], i < 4 ? NULL : c, (uint64_t)i);
        alone[i].desc.sampling.temperature = 3;
        alone[i].desc.sampling.max_tokens = 30;
        alone[i].desc.sampling.logprobs = 2;
        submit(&g, &alone[i]);
        finish_all(&g, &alone[i], 1);
    }
    for (int i = 0; i < 16; i++) {
        make(&with[i], i % 8 < 4 ? NULL : c, (uint64_t)i % 8);
        with[i].desc.sampling.temperature = 3;
        with[i].desc.sampling.max_tokens = 30;
        with[i].desc.sampling.logprobs = 2;
        submit(&g, &with[i]);
    }
    finish_all(&g, with, 16);
    for (int i = 0; i < 16; i++) {
        const struct rig_out *a = &alone[i % 8].outs[0], *b = &with[i].outs[0];
        assert_int_equal(a->n, b->n);
        assert_memory_equal(a->ids, b->ids, (size_t)a->n * sizeof a->ids[0]);
        for (int k = 0; k < a->n; k++)
            assert_true(a->tokens[k].logprob == b->tokens[k].logprob);
    }
    release(alone, 8);
    release(with, 16);
    sl_constraint_release(c);
    rig_stop(&g);
}

/* What min_tokens, ignore_eos, stop ids and stop strings mean to a constrained text. */
static void ends(void **state)
{
    static struct rig g;
    struct run r[7];
    static const int32_t x[] = {T_X}, eos[] = {T_EOS};
    static const char *const b[] = {"b"};
    (void)state;
    start(&g);
    struct sl_constraint *ab = open_it(&g, SL_GRAMMAR_CHOICE, "[\"ab\"]");
    struct sl_constraint *as = open_it(&g, SL_GRAMMAR_REGEX, "a{2,20}");
    struct sl_constraint *none = open_it(&g, SL_GRAMMAR_REGEX, "");
    for (int i = 0; i < 7; i++)
        make(&r[i], i < 2 ? ab : as, (uint64_t)i);
    r[0].desc.sampling.min_tokens = 50; /* cannot be had: the text is over before */
    r[1].desc.sampling.stop = b;
    r[1].desc.sampling.n_stop = 1;
    r[2].desc.sampling.min_tokens = 15;
    r[3].desc.sampling.ignore_eos = true;
    r[4].desc.sampling.stop_token_ids = x; /* the likeliest token by far, allowed from aa on */
    r[4].desc.sampling.n_stop_token_ids = 1;
    r[5].desc.constraint = none;
    r[6].desc.sampling.ignore_eos = true; /* named as the request's own, the end of turn is one */
    r[6].desc.sampling.stop_token_ids = eos;
    r[6].desc.sampling.n_stop_token_ids = 1;
    r[6].desc.sampling.logit_bias = &(struct sl_logit_bias){T_EOS, 100};
    r[6].desc.sampling.n_logit_bias = 1;
    for (int i = 0; i < 7; i++)
        submit(&g, &r[i]);
    finish_all(&g, r, 7);
    for (int i = 0; i < 7; i++)
        assert_int_equal(r[i].outs[0].finish, SL_FINISH_STOP);
    assert_string_equal(r[0].outs[0].text, "ab");
    assert_string_equal(r[1].outs[0].text, "a");
    assert_string_equal(r[1].outs[0].stop_str, "b");
    assert_true(r[2].outs[0].n >= 15);
    assert_int_equal(r[3].outs[0].n_text, 20);
    assert_string_equal(r[4].outs[0].text, "aa");
    assert_int_equal(r[4].outs[0].stop_token_id, T_X);
    assert_int_equal(r[5].outs[0].n, 0);
    assert_string_equal(r[6].outs[0].text, "aa");
    release(r, 7);
    sl_constraint_release(ab);
    sl_constraint_release(as);
    sl_constraint_release(none);
    rig_stop(&g);
}

/* The only text there is ends it too early. That is not the model's fault. */
static void min_tokens_may_leave_nothing(void **state)
{
    static struct rig g;
    struct run r;
    struct sl_stats s;
    static const int32_t x[] = {T_X};
    (void)state;
    start(&g);
    struct sl_constraint *only = open_it(&g, SL_GRAMMAR_CHOICE, "[\"xx\"]");
    make(&r, only, 1);
    r.desc.sampling.min_tokens = 2;
    r.desc.sampling.stop_token_ids = x;
    r.desc.sampling.n_stop_token_ids = 1;
    submit(&g, &r);
    finish_all(&g, &r, 1);
    assert_int_equal(r.outs[0].finish, SL_FINISH_ERROR);
    assert_int_equal(sl_request_error(r.req)->code, SL_ELIMIT);
    assert_non_null(strstr(sl_request_error(r.req)->msg, "min_tokens"));
    sl_engine_stats(g.eng, &s);
    assert_int_equal(s.corrupted, 0);
    release(&r, 1);
    sl_constraint_release(only);
    rig_stop(&g);
}

static void the_cache_is_shared_and_bounded(void **state)
{
    static struct rig g;
    struct sl_stats s;
    struct sl_error err;
    char text[32];
    (void)state;
    start(&g);
    struct sl_constraint *a = open_it(&g, SL_GRAMMAR_REGEX, "a+"), *b;
    struct sl_constraint_desc d = {.kind = SL_GRAMMAR_REGEX, .text = "a+", .n_text = 2};
    b = sl_constraint_find(g.eng, &d);
    assert_ptr_equal(a, b);
    d.kind = SL_GRAMMAR_EBNF;
    assert_null(sl_constraint_find(g.eng, &d));
    assert_int_equal(sl_constraint_open(g.eng, &d, &b, &err), SL_EINVAL);
    d.n_text = SL_MAX_GRAMMAR_TEXT + 1;
    assert_int_equal(sl_constraint_open(g.eng, &d, &b, &err), SL_ELIMIT);
    for (int i = 0; i < SL_MAX_GRAMMARS + 10; i++) {
        snprintf(text, sizeof text, "a{%d}", i + 1);
        sl_constraint_release(open_it(&g, SL_GRAMMAR_REGEX, text));
    }
    d = (struct sl_constraint_desc){.kind = SL_GRAMMAR_REGEX, .text = "a+", .n_text = 2};
    assert_null(sl_constraint_find(g.eng, &d));
    sl_engine_stats(g.eng, &s);
    assert_int_equal(s.n_grammars, SL_MAX_GRAMMARS);
    assert_int_equal(s.grammar_hits, 1);
    assert_int_equal(s.grammar_failed, 1);
    struct run r;
    make(&r, a, 3); /* out of the cache, but held */
    r.desc.sampling.max_tokens = 5;
    submit(&g, &r);
    sl_constraint_release(a);
    sl_constraint_release(a);
    finish_all(&g, &r, 1);
    assert_true(r.outs[0].text[0] == 'a');
    rig_stop(&g);
    release(&r, 1); /* after the engine, as any request may */
}

static void cancelled_at_any_time(void **state)
{
    static struct rig g;
    struct run r[24];
    (void)state;
    start(&g);
    struct sl_constraint *c = open_it(&g, SL_GRAMMAR_REGEX, "(a|b|c){100,150}");
    for (int i = 0; i < 24; i++) {
        make(&r[i], i % 4 == 0 ? NULL : c, (uint64_t)i);
        r[i].desc.sampling.n = 1 + i % 2;
        submit(&g, &r[i]);
        for (int k = 0; k < i % 5 && !threads; k++)
            (void)sl_engine_step(g.eng);
        if (i % 3 == 0)
            sl_request_cancel(r[i].req);
        if (i % 7 == 0 && i > 0)
            sl_request_cancel(r[i - 1].req);
    }
    finish_all(&g, r, 24);
    release(r, 24);
    struct sl_stats s;
    int turns = 0;
    do { /* a thread may be at work on a sequence that has ended */
        if (!threads)
            (void)sl_engine_step(g.eng);
        (void)poll(NULL, 0, 1);
        sl_engine_stats(g.eng, &s);
    } while (s.n_matchers > 0 && ++turns < 3000);
    assert_int_equal(s.n_matchers, 0);
    for (int i = 0; i < 6; i++) { /* and the engine ends in the middle */
        make(&r[i], c, (uint64_t)i);
        submit(&g, &r[i]);
    }
    for (int k = 0; k < 5 && !threads; k++)
        (void)sl_engine_step(g.eng);
    sl_constraint_release(c);
    rig_stop(&g);
    release(r, 6);
}

/* Pages for half of what runs: sequences are preempted and computed again. */
static void preemption_keeps_the_place(void **state)
{
    static struct rig g;
    struct run r[12];
    struct sl_stats s;
    (void)state;
    memset(&g, 0, sizeof g);
    rig_script(&g, 0, NULL, 0);
    struct sl_engine_parts parts = {.no_thread = !threads, .seed = 1};
    parts.info.n_pages = 24;
    rig_start(&g, &parts);
    struct sl_constraint *c = open_it(&g, SL_GRAMMAR_REGEX, "(a|bc){15,20}");
    for (int i = 0; i < 12; i++) {
        make(&r[i], c, (uint64_t)i);
        submit(&g, &r[i]);
    }
    finish_all(&g, r, 12);
    for (int i = 0; i < 12; i++)
        assert_true(accepts(SL_GRAMMAR_REGEX, "(a|bc){15,20}", &r[i].outs[0]));
    sl_engine_stats(g.eng, &s);
    assert_true(s.preemptions > 0);
    release(r, 12);
    sl_constraint_release(c);
    rig_stop(&g);
}

/* What begins with reasoning: any text up to the marker, then what the constraint says. */
static void check_thoughts(const struct rig_out *o, int32_t budget, const char *regex)
{
    int32_t n = 0;
    while (n < o->n && o->ids[n] != T_USER)
        n++;
    if (n == o->n) { /* no end came */
        assert_true(budget < 0 && o->finish == SL_FINISH_LENGTH);
        return;
    }
    const char *answer = strstr(o->text, "User:");
    assert_true(answer != NULL && (budget < 0 || n <= budget));
    answer += strlen("User:");
    struct rig_out rest = {.n_text = o->n_text - (size_t)(answer - o->text)};
    memcpy(rest.text, answer, rest.n_text);
    if (regex == NULL) {
        assert_int_equal(o->finish, SL_FINISH_LENGTH);
    } else {
        assert_int_equal(o->finish, SL_FINISH_STOP);
        if (!accepts(SL_GRAMMAR_REGEX, regex, &rest))
            fail_msg("'%s' behind '%s'", answer, o->text);
    }
}

static void masks_while_thinking(void **state)
{
    static const int32_t forced[] = {T_USER};
    static const char regex[] = "(a|bc){2,6}";
    static struct rig g;
    struct run r[16];
    (void)state;
    start(&g);
    struct sl_constraint *c = open_it(&g, SL_GRAMMAR_REGEX, regex);
    struct sl_logit_bias no_end = {T_EOS, -100}, user = {T_USER, 10};
    struct sl_thinking think[16];
    for (int i = 0; i < 16; i++) {
        /* by turns: cut by a budget, or ended by the model; with a constraint behind it or none */
        think[i] = (struct sl_thinking){.close = "User:",
                                        .open_id = -1,
                                        .inside = true,
                                        .budget = i % 4 == 3 ? -1 : i,
                                        .forced = forced,
                                        .n_forced = 1};
        make(&r[i], i % 2 == 0 ? c : NULL, (uint64_t)i);
        r[i].desc.thinking = &think[i];
        r[i].desc.sampling.max_tokens = 60;
        r[i].desc.sampling.temperature = 2;
        r[i].desc.sampling.n = 1 + i % 3;
        r[i].desc.sampling.logit_bias = i % 4 == 3 ? &user : &no_end;
        r[i].desc.sampling.n_logit_bias = 1;
        r[i].desc.sampling.ignore_eos = true;
        submit(&g, &r[i]);
    }
    finish_all(&g, r, 16);
    for (int i = 0; i < 16; i++)
        for (int k = 0; k < 1 + i % 3; k++)
            check_thoughts(&r[i].outs[k], think[i].budget, i % 2 == 0 ? regex : NULL);
    release(r, 16);
    struct sl_stats before, after;
    sl_engine_stats(g.eng, &before);
    make(&r[0], NULL, 1); /* once it has thought, nothing needs a mask */
    r[0].desc.thinking = &think[2];
    r[0].desc.sampling.max_tokens = 100;
    r[0].desc.sampling.ignore_eos = true;
    submit(&g, &r[0]);
    finish_all(&g, r, 1);
    sl_engine_stats(g.eng, &after);
    assert_int_equal(r[0].outs[0].n, 100);
    assert_true(after.grammar_masks - before.grammar_masks <= 6);
    release(r, 1);
    /* The first token opens the block, or begins the answer. */
    int n_thought = 0;
    for (int i = 0; i < 8; i++) {
        think[i] = (struct sl_thinking){
            .close = "User:", .open_id = T_X, .budget = 5, .forced = forced, .n_forced = 1};
        make(&r[i], c, (uint64_t)i);
        r[i].desc.thinking = &think[i];
        r[i].desc.sampling.logit_bias = &(struct sl_logit_bias){T_X, i % 2 == 0 ? 0.0f : -100.0f};
        r[i].desc.sampling.n_logit_bias = 1;
        submit(&g, &r[i]);
    }
    finish_all(&g, r, 8);
    for (int i = 0; i < 8; i++) {
        const struct rig_out *o = &r[i].outs[0];
        bool thought = o->ids[0] == T_X;
        n_thought += thought;
        assert_true(thought == (i % 2 == 0));
        if (thought)
            check_thoughts(o, 7, regex);
        else
            assert_true(accepts(SL_GRAMMAR_REGEX, regex, o));
    }
    assert_int_equal(n_thought, 4);
    release(r, 8);
    sl_constraint_release(c);
    rig_stop(&g);
}

/* ------------------------------------------------------------------ forced tokens */

#define FORCING "(a|b)(caabbccaab|baccaabbccaab)[abc]{1,3}(xx|x)caca"

/* An engine with room for few tokens, or one that does not jump. */
static void start_with(struct rig *g, int32_t n_pages, bool no_jump)
{
    struct sl_engine_parts parts = {.no_thread = !threads, .seed = 1, .no_jump_forward = no_jump};
    memset(g, 0, sizeof *g);
    rig_script(g, 0, NULL, 0);
    parts.info.n_pages = n_pages;
    rig_start(g, &parts);
}

static void make_forced(struct run *r, struct sl_constraint *c, int i)
{
    make(r, c, (uint64_t)i);
    r->desc.sampling.temperature = i % 4 == 0 ? 0.0f : 3.0f;
    r->desc.sampling.n = 1 + i % 3;
    r->desc.sampling.logprobs = i % 2 == 0 ? -1 : 1;
    r->desc.sampling.frequency_penalty = i % 5 == 0 ? 0.5f : 0.0f;
    r->desc.sampling.max_tokens = i % 7 == 6 ? 9 : 100;
    r->desc.sampling.prompt_logprobs = i % 9 == 8 ? 1 : -1;
}

/* Whether log probabilities are wanted, what runs beside it, preemption and the kind of runner
 * decide how forced tokens are computed, never which they are. */
static void forced_tokens_are_the_same(void **state)
{
    enum { N = 16 };
    static struct rig g;
    struct run alone[N], r[N];
    struct sl_stats s;
    (void)state;
    start_with(&g, 64, false);
    struct sl_constraint *c = open_it(&g, SL_GRAMMAR_REGEX, FORCING);
    for (int i = 0; i < N; i++) {
        make_forced(&alone[i], c, i);
        alone[i].desc.sampling.logprobs = 1;
        submit(&g, &alone[i]);
        finish_all(&g, &alone[i], 1);
    }
    sl_engine_stats(g.eng, &s);
    assert_int_equal(s.grammar_forced, 0); /* each was chosen, as the only one that may be */
    release(alone, N);
    sl_constraint_release(c);
    rig_stop(&g);
    start_with(&g, 20, false);
    c = open_it(&g, SL_GRAMMAR_REGEX, FORCING);
    for (int i = 0; i < N; i++) {
        make_forced(&r[i], c, i);
        submit(&g, &r[i]);
    }
    finish_all(&g, r, N);
    sl_engine_stats(g.eng, &s);
    assert_true(s.grammar_forced > 100);
    if (!threads)
        assert_true(s.preemptions > 0 && s.step_mallocs == 0);
    for (int i = 0; i < N; i++)
        for (int k = 0; k < 1 + i % 3; k++) {
            const struct rig_out *a = &alone[i].outs[k], *b = &r[i].outs[k];
            assert_int_equal(a->n, b->n);
            assert_memory_equal(a->ids, b->ids, (size_t)a->n * sizeof a->ids[0]);
            assert_int_equal(a->finish, b->finish);
            assert_int_equal(b->finish, i % 7 == 6 ? SL_FINISH_LENGTH : SL_FINISH_STOP);
            if (b->finish == SL_FINISH_STOP)
                assert_true(accepts(SL_GRAMMAR_REGEX, FORCING, b));
            for (int t = 0; t < b->n && i % 2 == 1; t++)
                assert_true(a->tokens[t].rank > 0 && a->tokens[t].logprob == b->tokens[t].logprob);
        }
    release(r, N);
    sl_constraint_release(c);
    rig_stop(&g);
}

/* Twelve tokens for the price of one, counted as usage, and none where that is turned off. */
static void forced_tokens_take_no_step(void **state)
{
    static const char text[] = "aabbccaabbcc";
    static struct rig g;
    struct run r;
    struct sl_stats s;
    struct sl_usage u;
    (void)state;
    for (int off = 0; off < 2; off++) {
        start_with(&g, 64, off == 1);
        struct sl_constraint *c = open_it(&g, SL_GRAMMAR_CHOICE, "[\"aabbccaabbcc\"]");
        make(&r, c, 1);
        r.desc.sampling.temperature = 0;
        submit(&g, &r);
        finish_all(&g, &r, 1);
        sl_engine_stats(g.eng, &s);
        sl_request_usage(r.req, &u);
        assert_string_equal(r.outs[0].text, text);
        assert_int_equal(u.n_output, r.outs[0].n);
        assert_int_equal(s.generation_tokens, (uint64_t)r.outs[0].n);
        if (off == 0) {
            assert_int_equal(s.steps, rig_late ? 2 : 1); /* one may be under way already */
            assert_int_equal(s.grammar_forced + 1, (uint64_t)r.outs[0].n);
        } else {
            assert_true(s.steps >= (uint64_t)r.outs[0].n);
            assert_int_equal(s.grammar_forced, 0);
        }
        release(&r, 1);
        sl_constraint_release(c);
        rig_stop(&g);
    }
}

/* Forced tokens end a sequence as others do; where the request names one of them, all are chosen
 * as if nothing were forced. */
static void forced_tokens_end_it(void **state)
{
    static const char *const stop[] = {"cca"};
    static const int32_t stop_id[] = {T_C};
    enum { N = 6 };
    static struct rig g;
    static struct run all[2][N];
    struct sl_stats s;
    (void)state;
    for (int off = 0; off < 2; off++) {
        struct run *r = all[off];
        start_with(&g, 64, off == 1);
        struct sl_constraint *c = open_it(&g, SL_GRAMMAR_REGEX, "(a|b)aabbccaabbcc");
        for (int i = 0; i < N; i++) {
            make(&r[i], c, (uint64_t)i);
            r[i].desc.sampling.temperature = 0;
        }
        r[0].desc.sampling.stop = stop;
        r[0].desc.sampling.n_stop = 1;
        r[1].desc.sampling.max_tokens = 5;
        r[2].desc.sampling.stop_token_ids = stop_id;
        r[2].desc.sampling.n_stop_token_ids = 1;
        r[3].desc.sampling.stop_token_ids = stop_id;
        r[3].desc.sampling.n_stop_token_ids = 1;
        r[3].desc.sampling.temperature = 4;
        r[4].desc.sampling.min_tokens = 40;
        r[5].desc.sampling.logit_bias = &(struct sl_logit_bias){T_BC, 20};
        r[5].desc.sampling.n_logit_bias = 1;
        for (int i = 0; i < N; i++)
            submit(&g, &r[i]);
        finish_all(&g, r, N);
        assert_string_equal(r[0].outs[0].text + 1, "aabb");
        assert_string_equal(r[0].outs[0].stop_str, "cca");
        assert_int_equal(r[1].outs[0].finish, SL_FINISH_LENGTH);
        assert_int_equal(r[1].outs[0].n, 5);
        assert_string_equal(r[4].outs[0].text + 1, "aabbccaabbcc");
        sl_engine_stats(g.eng, &s);
        assert_true(off == 1 ? s.grammar_forced == 0 : s.grammar_forced > 15);
        release(r, N);
        sl_constraint_release(c);
        rig_stop(&g);
    }
    for (int i = 0; i < N; i++) {
        const struct rig_out *a = &all[0][i].outs[0], *b = &all[1][i].outs[0];
        bool same = a->n == b->n && memcmp(a->ids, b->ids, (size_t)a->n * sizeof a->ids[0]) == 0;
        assert_int_equal(a->finish, b->finish);
        assert_true(same || (i != 2 && i != 3 && i != 5));
    }
}

static int allocs_left;

static void *counted_alloc(size_t n)
{
    return allocs_left-- > 0 ? sl_sys_real.alloc(n) : NULL;
}

static void *counted_realloc(void *p, size_t n)
{
    return allocs_left-- > 0 ? sl_sys_real.realloc(p, n) : NULL;
}

/* Without memory a grammar is not compiled, or its request ends; the next one is served. */
static void memory_may_run_out(void **state)
{
    static struct rig g;
    struct sl_error err;
    struct sl_sys sys = sl_sys_real;
    struct sl_constraint *c = NULL;
    struct sl_constraint_desc d = {.kind = SL_GRAMMAR_JSON_OBJECT};
    (void)state;
    start(&g);
    sys.alloc = counted_alloc;
    sys.realloc = counted_realloc;
    int n = 0;
    for (int rc = SL_ENOMEM; rc != 0; n++) {
        sl_sys = &sys;
        allocs_left = n;
        rc = sl_constraint_open(g.eng, &d, &c, &err);
        sl_sys = &sl_sys_real;
        if (rc != 0 && rc != SL_ENOMEM && rc != SL_ELIMIT)
            fail_msg("%d allocations: %s", n, err.msg);
    }
    assert_true(n > 10);
    sl_constraint_release(c);
    for (int k = 0; k < 60; k++) {
        struct run r;
        c = open_it(&g, SL_GRAMMAR_REGEX, "(ab|c){1,5}");
        make(&r, c, (uint64_t)k);
        submit(&g, &r);
        sl_sys = &sys;
        allocs_left = k;
        while (sl_engine_step(g.eng)) {
        }
        sl_sys = &sl_sys_real;
        finish_all(&g, &r, 1);
        assert_true(
            r.outs[0].finish == SL_FINISH_STOP ||
            (r.outs[0].finish == SL_FINISH_ERROR && sl_request_error(r.req)->code == SL_ENOMEM));
        assert_true(k > 0 || r.outs[0].finish == SL_FINISH_ERROR);
        release(&r, 1);
        sl_constraint_release(c);
    }
    rig_stop(&g);
}

static int in_time(void **state)
{
    (void)state;
    rig_late = threads = false;
    return 0;
}

static int one_step_late(void **state)
{
    (void)state;
    rig_late = true;
    threads = false;
    return 0;
}

static int with_threads(void **state)
{
    (void)state;
    rig_late = false;
    threads = true;
    return 0;
}

static int late_with_threads(void **state)
{
    (void)state;
    rig_late = threads = true;
    return 0;
}

#define ALL(f)                                                                       \
    {#f, f, in_time, rig_end, NULL}, {#f ", late", f, one_step_late, rig_end, NULL}, \
        {#f ", threads", f, with_threads, rig_end, NULL},                            \
    {                                                                                \
#f ", late, threads", f, late_with_threads, rig_end, NULL                    \
    }

int main(void)
{
    const struct CMUnitTest tests[] = {
        ALL(outputs_match),
        ALL(neighbours_do_not_change),
        ALL(ends),
        ALL(min_tokens_may_leave_nothing),
        ALL(the_cache_is_shared_and_bounded),
        ALL(cancelled_at_any_time),
        ALL(preemption_keeps_the_place),
        ALL(masks_while_thinking),
        ALL(forced_tokens_are_the_same),
        ALL(forced_tokens_take_no_step),
        ALL(forced_tokens_end_it),
        /* What the process allocates by is no other thread's to see changing. */
        {"memory_may_run_out", memory_may_run_out, in_time, NULL, NULL},
        {"memory_may_run_out, late", memory_may_run_out, one_step_late, NULL, NULL},
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
