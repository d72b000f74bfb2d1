/* SPDX-License-Identifier: MIT
 * Tests of the engine's public contract on a scripted model, driven step by step: text and stop
 * strings, ends, log probabilities, the prefix cache as users see it, failures, bounds, statistics.
 */
#include "engine_rig.h"

#include "engine/core.h"
#include "engine/stats.h"

static const int32_t ten[] = {1, 2, 3, 4, 1, 2, 3, 4, 1, 2};

static struct sl_request_desc desc_of(int32_t n_prompt, int32_t max_tokens)
{
    struct sl_request_desc d = {.prompt = ten, .n_prompt = n_prompt};
    sl_sampling_default(&d.sampling);
    d.sampling.temperature = 0.0f;
    d.sampling.max_tokens = max_tokens;
    return d;
}

static struct sl_request *submit(struct rig *g, const struct sl_request_desc *d)
{
    struct sl_request *req = NULL;
    struct sl_error err;
    if (sl_request_submit(g->eng, d, &req, &err) != 0)
        fail_msg("refused: %s", err.msg);
    return req;
}

/* Runs to the end, reading after every step; checks the caches on the way. */
static void run(struct rig *g, struct sl_request *req, struct rig_out *outs)
{
    for (int i = 0; i < 3 * RIG_LEN && !sl_request_done(req); i++) {
        sl_engine_step(g->eng);
        rig_read(req, outs);
        struct sl_error err;
        if (sl_engine_check(g->eng, &err) != 0)
            fail_msg("%s", err.msg);
    }
    assert_true(sl_request_done(req));
}

static const struct sl_engine_parts stepwise = {.no_thread = true, .seed = 1};

/* ------------------------------------------------------------------ text */

static void text_is_exact_whatever_the_cuts(void **state)
{
    (void)state;
    static const int32_t ids[] = {T_ABC, T_SPACE, T_C3, T_A9, T_EACUTE, T_C3, T_B, T_USER, T_EOS};
    struct rig g = {0};
    static struct rig_out out;
    rig_start(&g, &stepwise);
    rig_script(&g, 3, ids, SL_COUNT(ids));
    for (int every = 1; every <= 10; every++) {
        struct sl_request_desc d = desc_of(3, 50);
        struct sl_request *req = submit(&g, &d);
        memset(&out, 0, sizeof out);
        for (int i = 0; !sl_request_done(req); i++) {
            sl_engine_step(g.eng);
            if (i % every == 0)
                rig_read(req, &out);
        }
        assert_string_equal(out.text, "abc \xc3\xa9\xc3\xa9\xef\xbf\xbd"
                                      "bUser:");
        assert_int_equal(out.n, SL_COUNT(ids));
        assert_memory_equal(out.ids, ids, sizeof ids);
        assert_int_equal(out.finish, SL_FINISH_STOP);
        assert_int_equal(out.stop_token_id, -1);
        assert_null(out.stop_str);
        sl_request_release(req);
    }
    rig_stop(&g);
}

/* A reader who comes late gets the tokens in pieces, of which one may end inside a stop string. */
static void tokens_say_where_their_text_ends(void **state)
{
    (void)state;
    static const char *const stop[] = {"abc"};
    struct rig g = {0};
    static struct rig_out out;
    int32_t ids[SL_CHUNK_TOKENS + 2];
    rig_start(&g, &stepwise);
    for (int32_t i = 0; i < SL_CHUNK_TOKENS - 1; i++)
        ids[i] = T_X;
    memcpy(ids + SL_CHUNK_TOKENS - 1, (int32_t[]){T_A, T_B, T_C}, 3 * sizeof *ids);
    rig_script(&g, 3, ids, SL_COUNT(ids));
    for (int late = 0; late < 2; late++) {
        struct sl_request_desc d = desc_of(3, 100);
        d.sampling.stop = stop;
        d.sampling.n_stop = 1;
        struct sl_request *req = submit(&g, &d);
        memset(&out, 0, sizeof out);
        while (sl_engine_step(g.eng))
            if (late == 0)
                rig_read(req, &out);
        rig_read(req, &out);
        assert_int_equal(out.n, SL_COUNT(ids));
        assert_int_equal(out.n_text, SL_CHUNK_TOKENS - 1);
        for (int32_t i = 0; i < out.n; i++)
            assert_int_equal(out.tokens[i].text_end, i + 1);
        sl_request_release(req);
    }
    rig_stop(&g);
}

static void half_a_character_at_the_end(void **state)
{
    (void)state;
    static const int32_t ids[] = {T_A, T_C3};
    struct rig g = {0};
    static struct rig_out out;
    rig_start(&g, &stepwise);
    rig_script(&g, 2, ids, 2);
    struct sl_request_desc d = desc_of(2, 2);
    struct sl_request *req = submit(&g, &d);
    memset(&out, 0, sizeof out);
    run(&g, req, &out);
    assert_string_equal(out.text, "a\xef\xbf\xbd");
    assert_int_equal(out.finish, SL_FINISH_LENGTH);
    sl_request_release(req);
    rig_stop(&g);
}

static void check_stop_case(struct rig *g, const int32_t *ids, int32_t n_ids, const char *stop,
                            bool include, int32_t min_tokens, const char *want, bool stops)
{
    static struct rig_out out;
    const char *list[] = {"never seen", stop};
    rig_script(g, 2, ids, n_ids);
    struct sl_request_desc d = desc_of(2, n_ids);
    d.sampling.stop = list;
    d.sampling.n_stop = 2;
    d.sampling.include_stop_str_in_output = include;
    d.sampling.min_tokens = min_tokens;
    struct sl_request *req = submit(g, &d);
    memset(&out, 0, sizeof out);
    for (int i = 0; i < 100 && !sl_request_done(req); i++) {
        sl_engine_step(g->eng);
        rig_read(req, &out);
        /* Never more than may stay, whatever comes. */
        assert_true(out.n_text <= strlen(want));
        assert_memory_equal(out.text, want, out.n_text);
    }
    assert_string_equal(out.text, want);
    assert_int_equal(out.finish, stops ? SL_FINISH_STOP : SL_FINISH_LENGTH);
    if (stops)
        assert_string_equal(out.stop_str, stop);
    else
        assert_null(out.stop_str);
    sl_request_release(req);
}

static void stop_strings_over_every_token_border(void **state)
{
    (void)state;
    struct rig g = {0};
    rig_start(&g, &stepwise);
    /* "xabcx" in four tokenisations, stop strings that begin and end inside tokens */
    static const int32_t cuts[4][6] = {{T_X, T_A, T_B, T_C, T_X, T_X},
                                       {T_X, T_AB, T_C, T_X, T_X, T_X},
                                       {T_X, T_A, T_BC, T_X, T_X, T_X},
                                       {T_X, T_ABC, T_X, T_X, T_X, T_X}};
    for (int i = 0; i < 4; i++) {
        check_stop_case(&g, cuts[i], 6, "abc", false, 0, "x", true);
        check_stop_case(&g, cuts[i], 6, "b", false, 0, "xa", true);
        check_stop_case(&g, cuts[i], 6, "ab", true, 0, "xab", true);
        check_stop_case(&g, cuts[i], 6, "cx", false, 0, "xab", true);
        check_stop_case(&g, cuts[i], 6, "xabcx", false, 0, "", true);
        check_stop_case(&g, cuts[i], 6, "xabcx", true, 0, "xabcx", true);
    }
    static const int32_t near[] = {T_A, T_B, T_A, T_B, T_X};
    check_stop_case(&g, near, 5, "abc", false, 0, "ababx", false); /* held back, then shown */
    static const int32_t twice[] = {T_AB, T_C, T_AB, T_C, T_X};
    check_stop_case(&g, twice, 5, "abc", false, 2, "abc", true); /* the first is too early */
    static const int32_t half[] = {T_A, T_C3, T_A9, T_B};
    check_stop_case(&g, half, 4, "\xc3\xa9", false, 0, "a", true);
    check_stop_case(&g, half, 4, "\xc3\xa9", true, 0, "a\xc3\xa9", true);
    static const int32_t open[] = {T_X, T_AB};
    check_stop_case(&g, open, 2, "abc", false, 0, "xab", false); /* the end frees what was held */
    rig_stop(&g);
}

static void stop_ids_and_end_of_turn(void **state)
{
    (void)state;
    static const int32_t ids[] = {T_A, T_B, T_EOS, T_C, T_B};
    static const int32_t stop_b[] = {T_B};
    struct rig g = {0};
    static struct rig_out out;
    rig_start(&g, &stepwise);
    rig_script(&g, 2, ids, 5);
    static const struct {
        bool ignore_eos, use_stop, include;
        int32_t min_tokens, max_tokens, n, stop_id;
        enum sl_finish finish;
        const char *text;
    } cases[] = {
        {false, false, false, 0, 9, 3, -1, SL_FINISH_STOP, "ab"},
        {true, false, false, 0, 5, 5, -1, SL_FINISH_LENGTH, "abcb"},
        {false, true, false, 0, 9, 2, T_B, SL_FINISH_STOP, "a"},
        {false, true, true, 0, 9, 2, T_B, SL_FINISH_STOP, "ab"},
        {false, false, false, 0, 2, 2, -1, SL_FINISH_LENGTH, "ab"},
        {false, false, false, 0, 3, 3, -1, SL_FINISH_STOP, "ab"}, /* a stop goes before a length */
    };
    for (size_t i = 0; i < SL_COUNT(cases); i++) {
        struct sl_request_desc d = desc_of(2, cases[i].max_tokens);
        d.sampling.ignore_eos = cases[i].ignore_eos;
        d.sampling.stop_token_ids = stop_b;
        d.sampling.n_stop_token_ids = cases[i].use_stop;
        d.sampling.include_stop_str_in_output = cases[i].include;
        struct sl_request *req = submit(&g, &d);
        memset(&out, 0, sizeof out);
        run(&g, req, &out);
        assert_int_equal(out.n, cases[i].n);
        assert_int_equal(out.finish, cases[i].finish);
        assert_int_equal(out.stop_token_id, cases[i].stop_id);
        assert_string_equal(out.text, cases[i].text);
        sl_request_release(req);
    }
    /* Before min_tokens the end is not chosen, however likely. */
    struct sl_request_desc d = desc_of(2, 9);
    d.sampling.min_tokens = 4;
    struct sl_request *req = submit(&g, &d);
    memset(&out, 0, sizeof out);
    run(&g, req, &out);
    assert_int_equal(out.n, 9);
    assert_true(out.ids[2] != T_EOS);
    sl_request_release(req);
    rig_stop(&g);
}

static void the_context_ends(void **state)
{
    (void)state;
    struct rig g = {0};
    static struct rig_out out;
    struct sl_engine_parts p = stepwise;
    p.info.n_pages = 5; /* 20 tokens, less than max_model_len */
    rig_start(&g, &p);
    rig_script(&g, 10, NULL, 0);
    assert_int_equal(sl_engine_info(g.eng)->max_model_len, 20);
    struct sl_request_desc d = desc_of(10, 0);
    struct sl_request *req = submit(&g, &d);
    memset(&out, 0, sizeof out);
    run(&g, req, &out);
    assert_int_equal(out.n, 10);
    assert_int_equal(out.finish, SL_FINISH_LENGTH);
    sl_request_release(req);
    /* What can never run is refused, and nobody waits behind it. */
    struct sl_error err;
    d = desc_of(25, 1);
    assert_int_equal(sl_request_submit(g.eng, &d, &req, &err), SL_ELIMIT);
    assert_non_null(strstr(err.msg, "25 tokens"));
    /* More than there is room for is not more than that. */
    d = desc_of(10, 1000);
    req = submit(&g, &d);
    memset(&out, 0, sizeof out);
    run(&g, req, &out);
    assert_int_equal(out.n, 10);
    assert_int_equal(out.finish, SL_FINISH_LENGTH);
    sl_request_release(req);
    rig_stop(&g);
}

/* ------------------------------------------------------------------ log probabilities */

static void logprobs_come_with_the_tokens(void **state)
{
    (void)state;
    struct rig g = {0};
    static struct rig_out out;
    rig_start(&g, &stepwise);
    static const int32_t ids[] = {T_A, T_B, T_C};
    for (int32_t i = 0; i <= RIG_LEN; i++)
        g.script[i] = i < 10 ? ten[i] : ids[i % 3];
    for (int pass = 0; pass < 2;
         pass++) { /* the second finds the prompt cached, and must not care */
        struct sl_request_desc d = desc_of(10, 3);
        d.sampling.logprobs = 2;
        d.sampling.prompt_logprobs = 3;
        struct sl_request *req = submit(&g, &d);
        memset(&out, 0, sizeof out);
        assert_null(sl_request_prompt_logprobs(req));
        run(&g, req, &out);
        const struct sl_token *p = sl_request_prompt_logprobs(req);
        assert_non_null(p);
        assert_int_equal(p[0].rank, 0);
        assert_int_equal(p[0].id, 1);
        for (int i = 1; i < 10; i++) {
            assert_int_equal(p[i].id, ten[i]);
            assert_int_equal(p[i].rank, 1);
            assert_int_equal(p[i].n_top, 3);
            assert_int_equal(p[i].top[0].id, ten[i]);
            assert_true(p[i].top[0].logprob == p[i].logprob && p[i].top[1].logprob < -5.0f);
        }
        for (int i = 0; i < 3; i++) {
            assert_int_equal(out.tokens[i].rank, 1);
            assert_int_equal(out.tokens[i].n_top, 2);
            assert_int_equal(out.tokens[i].top[0].id, out.ids[i]);
            assert_true(out.tokens[i].logprob < 0.0f && out.tokens[i].logprob > -0.01f);
        }
        struct sl_usage u;
        sl_request_usage(req, &u);
        assert_int_equal(u.n_cached, 0);
        sl_request_release(req);
    }
    rig_stop(&g);
}

/* ------------------------------------------------------------------ prefix cache */

static int32_t cached_of(struct rig *g, int32_t n_prompt, const char *salt, int32_t n)
{
    static struct rig_out outs[8];
    struct sl_request_desc d = desc_of(n_prompt, 2);
    d.cache_salt = salt;
    d.sampling.n = n;
    struct sl_request *req = submit(g, &d);
    memset(outs, 0, sizeof outs);
    run(g, req, outs);
    struct sl_usage u;
    sl_request_usage(req, &u);
    assert_int_equal(u.n_output, 2 * n);
    for (int32_t i = 0; i < n; i++)
        assert_int_equal(outs[i].n_ends, 1);
    sl_request_release(req);
    return u.n_cached;
}

static void prefix_hits_as_users_see_them(void **state)
{
    (void)state;
    struct rig g = {0};
    rig_start(&g, &stepwise);
    rig_script(&g, 10, NULL, 0);
    assert_int_equal(cached_of(&g, 10, NULL, 1), 0);
    assert_int_equal(cached_of(&g, 10, NULL, 1), 8);
    assert_int_equal(cached_of(&g, 9, NULL, 1), 8);
    assert_int_equal(cached_of(&g, 8, NULL, 1), 4); /* the last page is computed again */
    assert_int_equal(cached_of(&g, 5, NULL, 1), 4);
    assert_int_equal(cached_of(&g, 4, NULL, 1), 0);
    assert_int_equal(cached_of(&g, 10, "mine", 1), 0);
    assert_int_equal(cached_of(&g, 10, "mine", 1), 8);
    struct sl_stats s;
    sl_engine_stats(g.eng, &s);
    assert_int_equal(s.prefix_queries, 10 + 10 + 9 + 8 + 5 + 4 + 10 + 10);
    assert_int_equal(s.prefix_hits, 8 + 8 + 4 + 4 + 8);
    assert_int_equal(s.n_pages_cached, 4); /* 2 full pages in 2 name spaces */
    rig_stop(&g);
}

/* What was cached when the request came may be gone when its turn comes. */
static void a_share_must_be_cached_when_it_counts(void **state)
{
    (void)state;
    static const int32_t other[] = {T_C, T_C, T_C};
    struct rig g = {0};
    static struct rig_out a, b;
    struct sl_engine_parts p = stepwise;
    p.info.max_num_seqs = 1;
    p.info.n_pages = 8;
    rig_start(&g, &p);
    rig_script(&g, 10, NULL, 0);
    assert_int_equal(cached_of(&g, 10, NULL, 1), 0);
    for (int evicts = 0; evicts < 2; evicts++) {
        struct sl_request_desc db = desc_of(3, evicts ? 29 : 5), da = desc_of(10, 2);
        db.prompt = other;
        da.cache_hit_threshold = 0.8f;
        struct sl_request *rb = submit(&g, &db), *ra = submit(&g, &da);
        struct sl_usage u;
        memset(&a, 0, sizeof a);
        memset(&b, 0, sizeof b);
        run(&g, rb, &b);
        run(&g, ra, &a);
        sl_request_usage(ra, &u);
        assert_int_equal(a.finish, evicts ? SL_FINISH_CACHE : SL_FINISH_LENGTH);
        assert_int_equal(a.n, evicts ? 0 : 2);
        assert_int_equal(u.n_cached, evicts ? 0 : 8);
        sl_request_release(ra);
        sl_request_release(rb);
    }
    assert_int_equal(cached_of(&g, 10, NULL, 1), 0); /* nothing was computed */
    rig_stop(&g);
}

static void several_sequences_compute_the_prompt_once(void **state)
{
    (void)state;
    for (int off = 0; off < 2; off++) {
        struct rig g = {0};
        struct sl_engine_parts p = stepwise;
        p.no_prefix_caching = off != 0;
        rig_start(&g, &p);
        rig_script(&g, 10, NULL, 0);
        assert_int_equal(cached_of(&g, 10, NULL, 4), 0);
        struct sl_stats s;
        sl_engine_stats(g.eng, &s);
        /* 10 tokens once, then per sequence the last two of the prompt again; 1 token each. */
        assert_true(s.step_tokens.sum == 10 + 1 + 3 * (2 + 1));
        assert_int_equal(cached_of(&g, 10, NULL, 1), off ? 0 : 8);
        sl_engine_stats(g.eng, &s);
        assert_int_equal(s.n_pages_cached, off ? 0 : 2);
        rig_stop(&g);
    }
}

static void seeds_separate_the_sequences(void **state)
{
    (void)state;
    struct rig g = {0};
    static struct rig_out first[3], again[3], single;
    rig_start(&g, &stepwise);
    rig_script(&g, 4, NULL, 0);
    struct sl_request_desc d = desc_of(4, 30);
    d.sampling.temperature = 50.0f;
    d.sampling.ignore_eos = true;
    d.sampling.has_seed = true;
    d.sampling.seed = 99;
    d.sampling.n = 3;
    struct rig_out *into[] = {first, again};
    for (int i = 0; i < 2; i++) {
        struct sl_request *req = submit(&g, &d);
        memset(into[i], 0, sizeof first);
        run(&g, req, into[i]);
        sl_request_release(req);
    }
    d.sampling.n = 1;
    struct sl_request *req = submit(&g, &d);
    memset(&single, 0, sizeof single);
    run(&g, req, &single);
    sl_request_release(req);
    for (int i = 0; i < 3; i++)
        assert_memory_equal(first[i].ids, again[i].ids, 30 * sizeof(int32_t));
    assert_memory_equal(first[0].ids, single.ids, 30 * sizeof(int32_t));
    assert_memory_not_equal(first[0].ids, first[1].ids, 30 * sizeof(int32_t));
    assert_memory_not_equal(first[1].ids, first[2].ids, 30 * sizeof(int32_t));
    rig_stop(&g);
}

/* ------------------------------------------------------------------ failures */

static void a_row_without_numbers_ends_one_request(void **state)
{
    (void)state;
    struct rig g = {.nan_pos = 12};
    static struct rig_out a, b;
    rig_start(&g, &stepwise);
    rig_script(&g, 10, NULL, 0);
    static const int32_t other[] = {T_C, T_C, T_C};
    struct sl_request_desc da = desc_of(10, 8), db = desc_of(3, 5);
    db.prompt = other;
    struct sl_request *ra = submit(&g, &da), *rb = submit(&g, &db);
    memset(&a, 0, sizeof a);
    memset(&b, 0, sizeof b);
    run(&g, ra, &a);
    run(&g, rb, &b);
    assert_int_equal(a.finish, SL_FINISH_ERROR);
    assert_int_equal(a.n, 3); /* positions 10, 11, 12 were chosen before */
    assert_int_equal(sl_request_error(ra)->code, SL_EINTERNAL);
    assert_int_equal(b.finish, SL_FINISH_LENGTH);
    assert_int_equal(b.n, 5);
    sl_request_release(ra);
    sl_request_release(rb);
    g.nan_pos = -1;
    assert_int_equal(cached_of(&g, 10, NULL, 1), 0); /* its pages were not kept */
    assert_true(sl_engine_healthy(g.eng));
    rig_stop(&g);
}

static void a_failed_step_ends_its_batch_only(void **state)
{
    (void)state;
    struct rig g = {.fail_code = SL_EINTERNAL};
    static struct rig_out a;
    rig_start(&g, &stepwise);
    rig_script(&g, 10, NULL, 0);
    struct sl_request_desc d = desc_of(10, 8);
    struct sl_request *req = submit(&g, &d);
    sl_engine_step(g.eng);
    atomic_store(&g.fail_step, 2);
    memset(&a, 0, sizeof a);
    run(&g, req, &a);
    assert_int_equal(a.finish, SL_FINISH_ERROR);
    assert_string_equal(sl_request_error(req)->msg, "scripted failure");
    sl_request_release(req);
    assert_int_equal(cached_of(&g, 10, NULL, 1), 0);
    assert_int_equal(cached_of(&g, 10, NULL, 1), 8);
    rig_stop(&g);
}

/* Who is not in it goes on, and what ran before it is collected first. */
static void a_refused_step_ends_its_batch_only(void **state)
{
    (void)state;
    struct rig g = {0};
    static struct rig_out a, b;
    struct sl_engine_parts parts = stepwise;
    parts.info.max_num_seqs = 1;
    for (int32_t at = 1; at <= 4; at++) {
        memset(&a, 0, sizeof a);
        memset(&b, 0, sizeof b);
        rig_start(&g, &parts);
        rig_script(&g, 10, NULL, 0);
        struct sl_request_desc d = desc_of(10, 8);
        struct sl_request *ra = submit(&g, &d), *rb = submit(&g, &d);
        g.late.refuse_at = at;
        run(&g, ra, &a);
        run(&g, rb, &b);
        assert_int_equal(a.finish, SL_FINISH_ERROR);
        assert_string_equal(sl_request_error(ra)->msg, "no memory for a step");
        assert_int_equal(b.finish, SL_FINISH_LENGTH);
        sl_request_release(ra);
        sl_request_release(rb);
        rig_stop(&g);
        g = (struct rig){0};
    }
}

static void a_dead_device_ends_everything_once(void **state)
{
    (void)state;
    struct rig g = {.fail_code = SL_EDEVICE};
    static struct rig_out a;
    rig_start(&g, &stepwise);
    rig_script(&g, 10, NULL, 0);
    struct sl_request_desc d = desc_of(10, 0);
    d.priority = -1;
    struct sl_request *ra = submit(&g, &d);
    d.priority = 3;
    d.sampling.n = 2;
    struct sl_request *rb = submit(&g, &d), *late = NULL;
    atomic_store(&g.fail_step, 3);
    static struct rig_out bs[2];
    memset(&a, 0, sizeof a);
    memset(bs, 0, sizeof bs);
    run(&g, ra, &a);
    run(&g, rb, bs);
    assert_int_equal(a.finish, SL_FINISH_ERROR);
    assert_int_equal(bs[0].finish, SL_FINISH_ERROR);
    assert_int_equal(bs[1].finish, SL_FINISH_ERROR);
    assert_false(sl_engine_healthy(g.eng));
    struct sl_error err;
    assert_int_equal(sl_request_submit(g.eng, &d, &late, &err), SL_EDEVICE);
    sl_request_release(ra);
    sl_request_release(rb);
    rig_stop(&g);
}

/* ------------------------------------------------------------------ cancellation and bounds */

static void cancel_at_any_time(void **state)
{
    (void)state;
    for (int when = 0; when < 6; when++) {
        struct rig g = {0};
        static struct rig_out outs[3];
        rig_start(&g, &stepwise);
        rig_script(&g, 10, NULL, 0);
        struct sl_request_desc d = desc_of(10, 3);
        d.sampling.n = 3;
        struct sl_request *req = submit(&g, &d);
        for (int i = 0; i < when; i++)
            sl_engine_step(g.eng);
        sl_request_cancel(req);
        sl_request_cancel(req);
        sl_engine_step(g.eng);
        memset(outs, 0, sizeof outs);
        rig_read(req, outs);
        assert_true(sl_request_done(req)); /* within one step */
        for (int i = 0; i < 3; i++) {
            assert_int_equal(outs[i].n_ends, 1);
            assert_true(outs[i].finish == SL_FINISH_ABORT || outs[i].n == 3);
        }
        sl_request_cancel(req);
        sl_request_wait(req, -1); /* nothing to wait for: returns */
        struct sl_stats s;
        sl_engine_stats(g.eng, &s);
        assert_int_equal(s.n_pages_free + s.n_pages_cached, s.n_pages);
        assert_int_equal(s.finished[SL_FINISH_ABORT] + s.finished[SL_FINISH_LENGTH], 3);
        sl_request_release(req);
        rig_stop(&g);
    }
}

static void the_queue_is_bounded(void **state)
{
    (void)state;
    struct rig g = {0};
    struct sl_engine_parts p = stepwise;
    p.max_queued = 3;
    p.info.max_num_seqs = 1;
    rig_start(&g, &p);
    rig_script(&g, 4, NULL, 0);
    struct sl_request_desc d = desc_of(4, 5);
    struct sl_request *reqs[4], *extra = NULL;
    struct sl_error err;
    for (int i = 0; i < 3; i++)
        reqs[i] = submit(&g, &d);
    assert_int_equal(sl_request_submit(g.eng, &d, &extra, &err), SL_EBUSY);
    sl_engine_step(g.eng); /* the first runs */
    reqs[3] = submit(&g, &d);
    assert_int_equal(sl_request_submit(g.eng, &d, &extra, &err), SL_EBUSY);
    sl_request_cancel(reqs[2]);
    sl_engine_step(g.eng);
    extra = submit(&g, &d);
    struct sl_stats s;
    sl_engine_stats(g.eng, &s);
    assert_int_equal(s.n_running, 1);
    assert_int_equal(s.n_waiting, 3);
    sl_request_release(extra);
    for (int i = 0; i < 4; i++)
        sl_request_release(reqs[i]);
    rig_stop(&g);
}

static void requests_survive_the_engine(void **state)
{
    (void)state;
    struct rig g = {0};
    rig_start(&g, &stepwise);
    rig_script(&g, 4, NULL, 0);
    struct sl_request_desc d = desc_of(4, 5);
    struct sl_request *a = submit(&g, &d), *b = submit(&g, &d);
    sl_engine_step(g.eng);
    struct sl_request *c = submit(&g, &d);
    sl_request_cancel(b);
    rig_stop(&g);
    sl_request_release(a);
    sl_request_release(b);
    sl_request_release(c);
}

/* ------------------------------------------------------------------ delivery and statistics */

static void an_outbox_names_each_request_once(void **state)
{
    (void)state;
    struct rig g = {0};
    static struct rig_out a, b;
    struct sl_outbox *box;
    struct sl_error err;
    rig_start(&g, &stepwise);
    rig_script(&g, 4, NULL, 0);
    assert_int_equal(sl_outbox_create(&box, &err), 0);
    struct sl_request_desc d = desc_of(4, 5);
    int mark;
    d.outbox = box;
    d.user = &mark;
    struct sl_request *ra = submit(&g, &d), *rb = submit(&g, &d);
    assert_ptr_equal(sl_request_user(ra), &mark);
    assert_null(sl_outbox_next(box));
    for (int i = 0; i < 3 + rig_late; i++)
        sl_engine_step(g.eng); /* three tokens each, one entry each */
    struct sl_request *first = sl_outbox_next(box), *second = sl_outbox_next(box);
    assert_true((first == ra && second == rb) || (first == rb && second == ra));
    assert_null(sl_outbox_next(box));
    memset(&a, 0, sizeof a);
    memset(&b, 0, sizeof b);
    rig_read(ra, &a);
    assert_int_equal(a.n, 3);
    sl_engine_step(g.eng);
    sl_request_release(rb); /* on the list, and leaves it */
    assert_ptr_equal(sl_outbox_next(box), ra);
    assert_null(sl_outbox_next(box));
    while (sl_engine_step(g.eng)) {
    }
    assert_ptr_equal(sl_outbox_next(box), ra);
    rig_read(ra, &a);
    assert_int_equal(a.n_ends, 1);
    sl_request_release(ra);
    rig_stop(&g);
    sl_outbox_destroy(box);
}

static uint64_t hist_n(const struct sl_hist *h)
{
    uint64_t n = 0;
    for (int i = 0; i <= SL_HIST_MAX; i++)
        n += h->counts[i];
    return n;
}

static void statistics_add_up(void **state)
{
    (void)state;
    struct rig g = {0};
    rig_start(&g, &stepwise);
    rig_script(&g, 10, NULL, 0);
    cached_of(&g, 10, NULL, 1);
    cached_of(&g, 10, NULL, 2);
    struct sl_stats s;
    sl_engine_stats(g.eng, &s);
    assert_int_equal(s.finished[SL_FINISH_LENGTH], 3);
    assert_int_equal(s.prompt_tokens, 20);
    assert_int_equal(s.generation_tokens, 6);
    assert_int_equal(s.prompt_tokens_cached, 8);
    assert_int_equal(s.steps, hist_n(&s.step_tokens));
    assert_int_equal(hist_n(&s.ttft_s), 2);
    assert_int_equal(hist_n(&s.itl_s), 3);
    uint64_t n_itl = 0, n_ttft = 0;
    for (int i = 0; i < SL_FINE_MAX; i++) {
        n_itl += s.itl_fine.counts[i];
        n_ttft += s.ttft_fine.counts[i];
    }
    assert_true(n_itl == 3 && n_ttft == 2);
    assert_int_equal(hist_n(&s.e2e_s), 2);
    assert_int_equal(hist_n(&s.queue_s), 2);
    assert_int_equal(hist_n(&s.decode_s), 2);
    assert_int_equal(hist_n(&s.output_len), 3);
    assert_true(s.prompt_len.sum == 20 && s.output_len.sum == 6);
    assert_int_equal(s.step_mallocs, 0);
    int n;
    const double *b = sl_hist_bounds(offsetof(struct sl_stats, step_tokens), &n);
    assert_true(n == 13 && b[0] == 1 && b[1] == 8 && b[12] == 16384);
    b = sl_hist_bounds(offsetof(struct sl_stats, ttft_s), &n);
    assert_true(n == 22 && b[0] == 0.001 && b[21] == 2560);
    assert_null(sl_hist_bounds(1, &n));
    rig_stop(&g);
}

static void the_null_model_counts(void **state)
{
    (void)state;
    struct rig g = {0};
    static struct rig_out out;
    struct sl_engine_parts p = stepwise;
    static struct sl_null_runner null;
    sl_null_runner_init(&null, T_N, &p.runner);
    rig_start(&g, &p);
    struct sl_request_desc d = desc_of(3, 20); /* the prompt ends with 3 */
    d.sampling.ignore_eos = true;
    for (int nap = 0; nap < 2; nap++) { /* it has nothing to give up, and counts on afterwards */
        struct sl_request *req = submit(&g, &d);
        memset(&out, 0, sizeof out);
        run(&g, req, &out);
        assert_int_equal(out.n, 20);
        for (int i = 0; i < 20; i++)
            assert_int_equal(out.ids[i], (4 + i) % T_N);
        sl_request_release(req);
        assert_int_equal(sl_engine_sleep(g.eng, 2, false, 0, NULL), 0);
        assert_int_equal(sl_engine_wake(g.eng, NULL), 0);
    }
    rig_stop(&g);
}

/* ------------------------------------------------------------------ start */

/* 128 sequences of half a million tokens, each with its likeliest alternatives: never, whatever
 * memory the machine promises. Four tokens of each are fine. */
static void one_request_may_not_take_all_memory(void **state)
{
    (void)state;
    static struct rig g;
    struct sl_engine_parts p = stepwise;
    struct sl_request *req = NULL;
    struct sl_error err;
    p.info = (struct sl_model_info){.max_model_len = 1 << 19, .block_size = 256, .n_pages = 2048};
    rig_script(&g, 3, ten, 10);
    rig_start(&g, &p);
    struct sl_request_desc d = desc_of(3, 0);
    d.sampling.n = 128;
    d.sampling.logprobs = T_N;
    assert_int_equal(sl_request_submit(g.eng, &d, &req, &err), SL_ELIMIT);
    assert_non_null(strstr(err.msg, "max_tokens"));
    d.sampling.max_tokens = 4;
    assert_int_equal(sl_request_submit(g.eng, &d, &req, &err), 0);
    sl_request_release(req);
    rig_stop(&g);
}

#define NARROW 6

static int narrow_step(void *ctx, const struct sl_batch *b, const float **logits,
                       struct sl_error *err)
{
    float *rows = ctx;
    (void)err;
    for (int32_t i = 0; i < b->n_logits * NARROW; i++)
        rows[i] = i % NARROW == T_X ? 9.0f : 0.0f;
    *logits = rows;
    return 0;
}

/* A prompt may hold ids for which the model has embeddings but no logits. */
static void penalties_pass_over_ids_without_logits(void **state)
{
    (void)state;
    static struct rig g;
    static float rows[16 * NARROW];
    g.model = (struct sl_host_model){.ctx = rows, .n_vocab = NARROW, .forward = narrow_step};
    rig_start(&g, &stepwise);
    const int32_t prompt[] = {T_A, T_USER, T_EACUTE};
    struct sl_request_desc d = desc_of(3, 4);
    d.prompt = prompt;
    d.sampling.repetition_penalty = 2.0f;
    struct rig_out out = {0};
    struct sl_request *req = submit(&g, &d);
    assert_int_equal(req->seqs[0].counts.n, 1); /* T_A */
    run(&g, req, &out);
    assert_int_equal(out.n, 4);
    assert_int_equal(out.ids[3], T_X);
    sl_request_release(req);
    rig_stop(&g);
}

static int allocs_left;

static void *counted_alloc(size_t n)
{
    return allocs_left-- > 0 ? sl_sys_real.alloc(n) : NULL;
}

static void memory_may_run_out(void **state)
{
    (void)state;
    struct sl_sys sys = sl_sys_real;
    sys.alloc = counted_alloc;
    struct sl_engine_parts p = stepwise;
    p.info = (struct sl_model_info){.n_vocab = 8,
                                    .max_model_len = 40,
                                    .block_size = 4,
                                    .n_pages = 16,
                                    .max_num_seqs = 2,
                                    .max_num_batched_tokens = 8};
    const struct sl_host_model model = {.n_vocab = 8, .forward = rig_step};
    sl_sampling_default(&p.sampling);
    sl_sys = &sys;
    int rc = SL_ENOMEM;
    for (int n = 0; rc != 0; n++) {
        struct sl_host_runner *host;
        struct sl_engine *eng = NULL;
        struct sl_error err;
        allocs_left = n;
        rc = sl_host_runner_create(&model, 2, &host, &err);
        if (rc == 0) {
            sl_host_runner_use(host, &p.runner);
            rc = sl_engine_start(&p, &eng, &err);
        }
        assert_true(rc == 0 || rc == SL_ENOMEM);
        allocs_left = 0;
        struct sl_request_desc d = desc_of(3, 2);
        struct sl_request *req = NULL;
        if (rc == 0)
            assert_int_equal(sl_request_submit(eng, &d, &req, &err), SL_ENOMEM);
        sl_engine_destroy(eng);
        sl_host_runner_destroy(host);
        assert_true(n < 100);
    }
    sl_sys = &sl_sys_real;
}

static void impossible_parts_are_refused(void **state)
{
    (void)state;
    struct sl_engine_parts good = stepwise, p;
    good.info = (struct sl_model_info){.n_vocab = 8,
                                       .max_model_len = 40,
                                       .block_size = 4,
                                       .n_pages = 16,
                                       .max_num_seqs = 2,
                                       .max_num_batched_tokens = 8};
    static struct sl_null_runner null;
    sl_null_runner_init(&null, 8, &good.runner);
    struct sl_engine *eng = NULL;
    struct sl_error err;
#define REFUSED(field, value) \
    p = good;                 \
    p.field = (value);        \
    assert_int_equal(sl_engine_start(&p, &eng, &err), SL_EINVAL)
    REFUSED(info.n_vocab, 0);
    REFUSED(info.max_model_len, 1);
    REFUSED(info.max_model_len, INT32_MAX);
    REFUSED(info.block_size, 0);
    REFUSED(info.block_size, SL_MAX_BLOCK_SIZE + 1);
    REFUSED(info.n_pages, 0);
    REFUSED(info.n_pages, INT32_MAX);
    REFUSED(info.max_num_seqs, 0);
    REFUSED(info.max_num_seqs, SL_MAX_SEQS + 1);
    REFUSED(info.max_num_batched_tokens, 1);
    REFUSED(info.max_num_batched_tokens, SL_MAX_STEP_TOKENS + 1);
    REFUSED(runner.max_logits, 1);
#undef REFUSED
    assert_null(eng);
}

static int in_time(void **state)
{
    (void)state;
    rig_late = false;
    return 0;
}

static int one_step_late(void **state)
{
    (void)state;
    rig_late = true;
    return 0;
}

/* Quantiles beside the sorted values themselves, from 10 us to 100 s. */
static void fine_quantiles(void **state)
{
    (void)state;
    struct sl_fine_hist before = {{0}}, now = {{0}};
    static uint64_t ns[1001];
    assert_true(isnan(sl_fine_quantile(NULL, &now, .5)));
    for (int i = 1; i < SL_FINE_MAX; i++)
        assert_true(sl_fine_bound(i) > sl_fine_bound(i - 1));
    assert_true(isinf(sl_fine_bound(SL_FINE_MAX - 1)));
    for (int i = 0; i < 500; i++)
        sl_fine_add(&before, 77); /* not of the time that is asked about */
    now = before;
    for (int i = 0; i <= 1000; i++) { /* ascending */
        ns[i] = (uint64_t)(20e3 * pow(10, i / 1000.0 * 6.5));
        sl_fine_add(&now, ns[i]);
    }
    for (int q = 1; q < 20; q++) {
        double want = (double)ns[q * 50] * 1e-9, got = sl_fine_quantile(&before, &now, q / 20.0);
        if (fabs(got / want - 1) > .0625)
            fail_msg("%d/20: %g, not %g", q, got, want);
    }
    memset(&now, 0, sizeof now); /* what the first bucket of itl_s held: 4.7 ms of 10 */
    for (int i = 0; i < 1000; i++)
        sl_fine_add(&now, 3000000 + (uint64_t)i * 1700);
    assert_true(fabs(sl_fine_quantile(NULL, &now, .95) / .004615 - 1) < .0625);
    sl_fine_add(&now, 0);
    sl_fine_add(&now, UINT64_MAX);
    assert_true(sl_fine_quantile(NULL, &now, 1) == sl_fine_bound(SL_FINE_MAX - 2));
}

/* With a runner that computes in the call, and with one that is a step behind. */
#define BOTH(f)                                   \
    {#f, f, in_time, NULL, NULL},                 \
    {                                             \
#f ", late", f, one_step_late, NULL, NULL \
    }

int main(void)
{
    const struct CMUnitTest tests[] = {
        BOTH(text_is_exact_whatever_the_cuts),
        BOTH(tokens_say_where_their_text_ends),
        BOTH(half_a_character_at_the_end),
        BOTH(stop_strings_over_every_token_border),
        BOTH(stop_ids_and_end_of_turn),
        BOTH(the_context_ends),
        BOTH(logprobs_come_with_the_tokens),
        BOTH(prefix_hits_as_users_see_them),
        BOTH(a_share_must_be_cached_when_it_counts),
        BOTH(several_sequences_compute_the_prompt_once),
        BOTH(seeds_separate_the_sequences),
        BOTH(a_row_without_numbers_ends_one_request),
        BOTH(a_failed_step_ends_its_batch_only),
        cmocka_unit_test_setup(a_refused_step_ends_its_batch_only, one_step_late),
        BOTH(a_dead_device_ends_everything_once),
        BOTH(cancel_at_any_time),
        BOTH(the_queue_is_bounded),
        BOTH(requests_survive_the_engine),
        BOTH(an_outbox_names_each_request_once),
        BOTH(statistics_add_up),
        cmocka_unit_test_setup(the_null_model_counts, in_time),
        BOTH(one_request_may_not_take_all_memory),
        BOTH(penalties_pass_over_ids_without_logits),
        BOTH(memory_may_run_out),
        cmocka_unit_test_setup(impossible_parts_are_refused, in_time),
        cmocka_unit_test_setup(fine_quantiles, in_time),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
