/* SPDX-License-Identifier: MIT
 * Pages outside the pool: the tokens are those that the model gives without, whatever was evicted,
 * restarted, lost, late or corrupt, with windows, states and latent attention; and what was stored
 * is found.
 */
#include "engine/fake_store.h"
#include "engine/late_pages.h"
#include "engine/tier_world.h"

static bool is_late; /* engines that are started copy beside their steps */
static bool asks_what_is_worth;
static int32_t threshold, tracker; /* they store blocks when so many requests had them */
static bool is_far; /* they have a remote tier, where all pages are that the pool has lost */

static void start(struct world *w, int32_t few_pages)
{
    struct sl_error err;
    struct sl_engine_parts parts;
    world_parts(w, few_pages, &parts);
    if (is_far) {
        parts.tiers.store.remote_url = "redis://there";
        parts.tiers.always_load = !asks_what_is_worth;
        parts.max_itl_ms = asks_what_is_worth ? 1000 : 0; /* else nobody learns what steps take */
    }
    parts.tiers.store_threshold = threshold;
    parts.tiers.max_tracker_size = tracker;
    world_runner(w, &parts.runner);
    if (is_late)
        late_pages_use(&parts.runner, 5, NULL);
    if (sl_engine_start(&parts, &w->eng, &err) != 0)
        fail_msg("%s", err.msg);
}

static void stop(struct world *w)
{
    struct sl_stats s;
    sl_engine_stats(w->eng, &s);
    assert_int_equal(s.step_mallocs, 0);
    assert_int_equal(s.invariant_violations, 0);
    sl_engine_destroy(w->eng);
    sl_host_runner_destroy(w->host);
}

static void open_world(struct world *w, const char *model, int32_t few_pages)
{
    char path[128];
    memset(w, 0, sizeof *w);
    memset(&fake_faults, 0, sizeof fake_faults);
    fake_clear();
    snprintf(path, sizeof path, "tests/golden/models/%s", model);
    rig_open(&w->rig, path, &(struct rig_options){.n_pages = N_BLOCKS});
    sl_kv_pools(&w->rig.kv, w->rig.pool, w->rig.n_pages, w->pools);
    make_prompts(w);
    start(w, few_pages);
}

static void close_world(struct world *w)
{
    stop(w);
    rig_close(&w->rig);
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

static void step_all(struct world *w)
{
    for (int n = 0; sl_engine_step(w->eng); n++) {
        fake_tick();
        assert_true(n < 100000);
    }
}

/* Returns how many tokens of the prompt were not computed. */
static int32_t compare(struct sl_request *req, const struct prompt *p, const char *what)
{
    struct sl_chunk c;
    struct sl_usage u;
    int32_t n = 0;
    while (sl_request_read(req, &c))
        for (size_t i = 0; i < c.n_tokens; i++, n++)
            if (c.tokens[i].id != p->want[n])
                fail_msg("%s: token %d behind %d is %d, not %d", what, n, p->n, c.tokens[i].id,
                         p->want[n]);
    assert_int_equal(n, N_OUT);
    assert_true(sl_request_done(req));
    sl_request_usage(req, &u);
    sl_request_release(req);
    return u.n_cached;
}

/* Nothing of the pool is to be found any more. */
static void evict_all(struct world *w)
{
    sl_kv_clear(&w->eng->kv);
    assert_int_equal(sl_kv_n_cached(&w->eng->kv), 0);
    if (is_far)
        fake_move_away();
    poison_free_pages(w);
}

/* All prompts at once. */
static void run_all(struct world *w, const char *what)
{
    struct sl_request *reqs[N_PROMPTS];
    for (int i = 0; i < N_PROMPTS; i++)
        reqs[i] = submit(w, &w->prompts[i]);
    step_all(w);
    for (int i = 0; i < N_PROMPTS; i++)
        compare(reqs[i], &w->prompts[i], what);
}

/* One after another from an empty pool: what is found comes from the store, as far as the prompt
 * has whole blocks before its last token. */
static void run_each(struct world *w, const char *what)
{
    for (int i = 0; i < N_PROMPTS; i++) {
        const struct prompt *p = &w->prompts[i];
        evict_all(w);
        struct sl_request *req = submit(w, p);
        step_all(w);
        const int32_t n_cached = compare(req, p, what);
        if (n_cached != (p->n - 1) / BLOCK * BLOCK)
            fail_msg("%s: %d tokens of %d were found", what, n_cached, p->n);
    }
}

static void prompts_find_what_was_evicted_and_outlived(void **state)
{
    static struct world w;
    struct sl_stats s;
    char what[96];
    (void)state;
    for (size_t i = 0; i < SL_COUNT(models); i++) {
        snprintf(what, sizeof what, "%s, %d pages", models[i].name, models[i].few_pages);
        open_world(&w, models[i].name, models[i].few_pages);
        run_all(&w, what);
        run_each(&w, what);
        run_all(&w, what);
        sl_engine_stats(w.eng, &s);
        assert_true(s.tier_hits > 0 && s.tier_hits <= s.tier_queries && s.n_loading == 0);
        stop(&w);
        start(&w, models[i].few_pages); /* of the same store */
        run_each(&w, what);
        sl_engine_stats(w.eng, &s);
        assert_int_equal(s.tier_hits, s.tier_queries);
        assert_true(s.tier_hits == s.prompt_tokens_cached);
        fake_faults.delay = 5;
        run_each(&w, what);
        close_world(&w);
    }
}

static void what_is_lost_late_or_corrupt_is_computed(void **state)
{
    static struct world w;
    static const struct fake_faults faults[] = {{.lose = 300},     {.lose = 100, .delay = 8},
                                                {.refuse = 400},   {.corrupt = 300, .delay = 3},
                                                {.corrupt = 1000}, {.lose = 1000}};
    struct sl_stats s;
    char what[96];
    (void)state;
    for (size_t i = 0; i < SL_COUNT(models); i++) {
        for (size_t k = 0; k < SL_COUNT(faults); k++) {
            snprintf(what, sizeof what, "%s, %d pages, faults %zu", models[i].name,
                     models[i].few_pages, k);
            open_world(&w, models[i].name, models[i].few_pages);
            fake_faults = faults[k];
            for (int round = 0; round < 3; round++) {
                run_all(&w, what);
                evict_all(&w);
            }
            sl_engine_stats(w.eng, &s);
            if (faults[k].corrupt == 1000 || faults[k].lose == 1000)
                assert_int_equal(s.tier_hits, 0);
            close_world(&w);
        }
    }
}

/* Requests end at any time of the load, and give back what they asked for. */
static void a_request_that_loads_can_be_cancelled(void **state)
{
    static struct world w;
    (void)state;
    for (size_t i = 0; i < SL_COUNT(models); i++) {
        open_world(&w, models[i].name, models[i].few_pages);
        run_all(&w, models[i].name);
        fake_faults.delay = 6;
        for (int n_steps = 0; n_steps < 12; n_steps++) {
            struct sl_request *reqs[N_PROMPTS];
            evict_all(&w);
            for (int k = 0; k < N_PROMPTS; k++)
                reqs[k] = submit(&w, &w.prompts[k]);
            for (int k = 0; k < n_steps; k++) {
                (void)sl_engine_step(w.eng);
                fake_tick();
            }
            for (int k = 0; k < N_PROMPTS; k += 2)
                sl_request_cancel(reqs[k]);
            step_all(&w);
            for (int k = 0; k < N_PROMPTS; k++)
                if (k % 2 == 0)
                    sl_request_release(reqs[k]);
                else
                    compare(reqs[k], &w.prompts[k], models[i].name);
            assert_int_equal(fake.n_gets, 0);
        }
        close_world(&w);
    }
}

static void likewise_of_a_remote_tier(void **state)
{
    static struct world w;
    static const struct fake_faults faults[] = {
        {.silent = 1000}, {.silent = 300, .delay = 4}, {.far = 500, .lose = 200}, {.hang = true}};
    struct sl_stats s;
    is_far = true;
    prompts_find_what_was_evicted_and_outlived(state);
    what_is_lost_late_or_corrupt_is_computed(state);
    a_request_that_loads_can_be_cancelled(state);
    for (size_t i = 0; i < SL_COUNT(models); i++) {
        for (size_t k = 0; k < SL_COUNT(faults); k++) {
            open_world(&w, models[i].name, models[i].few_pages);
            fake_faults = faults[k];
            for (int round = 0; round < 3; round++) {
                run_all(&w, models[i].name);
                evict_all(&w);
            }
            sl_engine_stats(w.eng, &s);
            if (faults[k].silent == 1000 || faults[k].hang) /* nobody waits for pages */
                assert_int_equal(s.tier_hits, 0);
            close_world(&w);
        }
    }
    is_far = false;
}

/* Pages come from a remote tier only where that is faster than to compute them. */
static void a_slow_remote_tier_is_left_alone(void **state)
{
    static struct world w;
    (void)state;
    is_far = asks_what_is_worth = true;
    for (size_t i = 0; i < SL_COUNT(models); i++) {
        open_world(&w, models[i].name, models[i].few_pages);
        run_all(&w, models[i].name); /* from here on it is known what steps take */
        fake_faults.rate = 1;
        fake.n_asked = 0;
        for (int round = 0; round < 3; round++) {
            evict_all(&w);
            run_all(&w, models[i].name);
        }
        assert_true(fake.n_asked == 0 && fake.n_far == 0);
        fake_faults.rate = 1e15;
        evict_all(&w);
        run_all(&w, models[i].name);
        assert_true(fake.n_asked > 0 && fake.n_far > 0);
        close_world(&w);
    }
    is_far = asks_what_is_worth = false;
}

/* A block is stored when the third request had it, and then with all its pages; unless the table
 * that counts has no room for the blocks in between. */
static void what_few_ask_for_is_not_stored(void **state)
{
    static struct world w;
    (void)state;
    threshold = 3;
    for (size_t i = 0; i < SL_COUNT(models); i++) {
        for (int few = 0; few < 2; few++) {
            tracker = few ? 1 : 64000;
            open_world(&w, models[i].name, N_BLOCKS);
            const struct prompt *p = &w.prompts[1];
            const int32_t n_blocks = (p->n - 1) / BLOCK;
            assert_true(n_blocks > 1);
            for (int round = 0; round < 4; round++) {
                if (round == 3) /* comes from the store, or from nowhere */
                    evict_all(&w);
                struct sl_request *req = submit(&w, p);
                step_all(&w);
                const int32_t n_cached = compare(req, p, models[i].name);
                if (round < 2)
                    assert_int_equal(fake.n_pages, 0);
                if (round == 3 && few)
                    assert_int_equal(n_cached, 0);
                if (round == 3 && !few)
                    assert_int_equal(n_cached, n_blocks * BLOCK);
            }
            close_world(&w);
        }
    }
    threshold = 0;
}

static const struct sl_sys *real_sys;
static uint64_t ahead_ns;

static uint64_t late_clock(void)
{
    return real_sys->now_ns() + ahead_ns;
}

static void a_store_that_hangs_is_waited_for_so_long(void **state)
{
    static struct world w;
    static struct sl_sys sys;
    (void)state;
    open_world(&w, "qwen3", N_BLOCKS);
    run_all(&w, "qwen3");
    evict_all(&w);
    fake_faults.hang = true;
    real_sys = sl_sys;
    sys = *sl_sys;
    sys.now_ns = late_clock;
    sl_sys = &sys;
    struct sl_request *req = submit(&w, &w.prompts[1]);
    for (int i = 0; i < 50; i++)
        assert_true(sl_engine_step(w.eng));
    assert_false(sl_request_done(req));
    ahead_ns = UINT64_C(11000000000);
    step_all(&w);
    assert_int_equal(compare(req, &w.prompts[1], "qwen3"), 0);
    assert_int_equal(fake.n_gets, 0);
    sl_sys = real_sys;
    ahead_ns = 0;
    fake_faults.hang = false;
    close_world(&w);
}

/* As above, beside steps. */
static void likewise_of_a_device_that_copies_late(void **state)
{
    (void)state;
    is_late = true;
    prompts_find_what_was_evicted_and_outlived(NULL);
    what_is_lost_late_or_corrupt_is_computed(NULL);
    a_request_that_loads_can_be_cancelled(NULL);
    a_store_that_hangs_is_waited_for_so_long(NULL);
    assert_true(late_pages.n_awaited > 0 && late_pages.n_followed > 0);
    is_late = false;
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(prompts_find_what_was_evicted_and_outlived),
        cmocka_unit_test(what_is_lost_late_or_corrupt_is_computed),
        cmocka_unit_test(a_request_that_loads_can_be_cancelled),
        cmocka_unit_test(a_store_that_hangs_is_waited_for_so_long),
        cmocka_unit_test(what_few_ask_for_is_not_stored),
        cmocka_unit_test(likewise_of_a_remote_tier),
        cmocka_unit_test(a_slow_remote_tier_is_left_alone),
        cmocka_unit_test(likewise_of_a_device_that_copies_late),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
