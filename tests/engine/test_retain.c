/* SPDX-License-Identifier: MIT
 * Programs that call tools, on a clock of the test's own: what they go on from outlives a flood of
 * other prompts for as long as the tool usually takes, and no longer; leases never keep anybody
 * from running; a program keeps its place in the queue, and nobody waits for ever for it.
 */
#include "engine_rig.h"

#include "base/rng.h"
#include "engine/core.h"

#define N_PAGES 64
#define BLOCK   4
#define LONG    40 /* tokens of a prompt */
#define MS      UINT64_C(1000000)

static struct sl_sys clock_sys;
static uint64_t clock_ns;

static uint64_t virtual_now(void)
{
    return clock_ns;
}

static void start(struct rig *g, double retention, int32_t seats, int32_t max_wait_ms)
{
    struct sl_engine_parts parts = {.no_thread = true,
                                    .seed = 1,
                                    .kv_retention = retention,
                                    .priority_max_wait_ms = max_wait_ms};
    memset(g, 0, sizeof *g);
    clock_sys = sl_sys_real;
    clock_sys.now_ns = virtual_now;
    sl_sys = &clock_sys;
    clock_ns = 1000 * 1000 * MS;
    parts.info.max_num_seqs = seats;
    parts.info.n_pages = N_PAGES;
    rig_start(g, &parts);
    rig_script(g, LONG, NULL, 0);
}

static void stop(struct rig *g)
{
    rig_stop(g);
    sl_sys = &sl_sys_real;
}

static void turn(struct rig *g)
{
    struct sl_error err;
    sl_engine_step(g->eng);
    clock_ns += MS;
    if (sl_engine_check(g->eng, &err) != 0)
        fail_msg("%s", err.msg);
}

/* A prompt that shares no block with those of other numbers. */
static void make_prompt(int32_t *ids, int32_t n, int32_t number)
{
    struct sl_rng r = {.seed = (uint64_t)number};
    for (int32_t i = 0; i < n; i++)
        ids[i] = 1 + (int32_t)sl_rng_below(&r, 12);
}

static struct sl_request *submit(struct rig *g, const int32_t *ids, int32_t n, int32_t n_out,
                                 uint64_t session)
{
    struct sl_request_desc d = {.prompt = ids, .n_prompt = n, .session = session};
    struct sl_request *req = NULL;
    struct sl_error err;
    sl_sampling_default(&d.sampling);
    d.sampling.max_tokens = n_out;
    if (sl_request_submit(g->eng, &d, &req, &err) != 0)
        fail_msg("refused: %s", err.msg);
    return req;
}

static bool is_over(struct sl_request *req)
{
    struct sl_chunk chunk;
    while (sl_request_read(req, &chunk) == 1)
        assert_int_not_equal(chunk.finish, SL_FINISH_ERROR);
    return sl_request_done(req);
}

static void run(struct rig *g, struct sl_request *req)
{
    for (int i = 0; i < 1000; i++) {
        if (is_over(req))
            return;
        turn(g);
    }
    fail_msg("it does not end");
}

/* Runs a prompt; it ends with a call of this tool, 0: with none. Returns how much was cached. */
static int32_t run_one(struct rig *g, const int32_t *ids, int32_t n, uint64_t tool)
{
    struct sl_usage u;
    struct sl_request *req = submit(g, ids, n, 2, 0);
    run(g, req);
    sl_request_usage(req, &u);
    if (tool != 0)
        sl_request_calls(req, 0, tool);
    sl_request_release(req);
    turn(g);
    return u.n_cached;
}

/* Twice as many pages as there are go through the cache. */
static void flood(struct rig *g, int32_t first)
{
    int32_t ids[LONG];
    for (int32_t i = 0; i < 2 * N_PAGES * BLOCK / LONG; i++) {
        make_prompt(ids, LONG, first + i);
        assert_int_equal(run_one(g, ids, LONG, 0), 0);
    }
}

/* A conversation of 40 tokens, a tool, so many milliseconds, a flood, and how much of the
 * conversation is cached when it goes on. */
static int32_t go_on(struct rig *g, int32_t number, uint64_t tool, uint64_t ms)
{
    int32_t ids[LONG + 6];
    make_prompt(ids, LONG, number);
    run_one(g, ids, LONG, tool);
    clock_ns += ms * MS;
    flood(g, number + 1);
    ids[LONG] = ids[LONG + 1] = T_X; /* what was generated */
    for (int32_t i = LONG + 2; i < LONG + 6; i++)
        ids[i] = T_B;
    return run_one(g, ids, LONG + 6, 0);
}

static void a_call_is_kept_for_its_time(void **state)
{
    static struct rig g;
    (void)state;
    start(&g, 0.5, 8, 0);
    assert_int_equal(go_on(&g, 1000, 0, 0), 0);    /* no tool: the flood takes it */
    assert_int_equal(go_on(&g, 2000, 7, 0), LONG); /* it is kept */
    assert_int_equal(go_on(&g, 3000, 7, 6000), 0); /* not for ever: nobody knows the tool yet */
    assert_int_equal(g.eng->kv.leases.n, 0);
    assert_int_equal(g.eng->retain.n_marks, 1); /* the flood took what the last one left */
    stop(&g);
    start(&g, 0, 8, 0);
    assert_int_equal(go_on(&g, 2000, 7, 0), 0); /* nothing may be kept */
    stop(&g);
}

/* The template writes the call otherwise than the model did; the same prompt again does not go on.
 */
static void the_prompt_is_enough(void **state)
{
    static struct rig g;
    int32_t ids[LONG + 20];
    (void)state;
    start(&g, 0.5, 8, 0);
    make_prompt(ids, LONG, 1);
    struct sl_request *req = submit(&g, ids, LONG, 13, 0);
    run(&g, req);
    sl_request_calls(req, 0, 7);
    sl_request_release(req);
    turn(&g);
    assert_int_equal(g.eng->kv.leases.n, 1);
    run_one(&g, ids, LONG, 0);
    assert_int_equal(g.eng->stats.tool_returns, 0);
    for (int32_t i = LONG; i < LONG + 20; i++)
        ids[i] = T_C; /* not what was generated */
    assert_int_equal(run_one(&g, ids, LONG + 20, 0), LONG);
    assert_int_equal(g.eng->stats.tool_returns, 1);
    assert_int_equal(g.eng->kv.leases.n, 0);
    stop(&g);
}

/* The time that a tool takes is learnt, by its name. */
static void times_are_learnt(void **state)
{
    static struct rig g;
    int32_t ids[LONG + 6];
    (void)state;
    start(&g, 0.5, 8, 0);
    for (int32_t i = 0; i < 12; i++) {
        make_prompt(ids, LONG, i);
        run_one(&g, ids, LONG, 1 + (uint64_t)i % 2);
        clock_ns += (i % 2 == 0 ? 300 : 20000) * MS;
        for (int32_t k = LONG; k < LONG + 6; k++)
            ids[k] = T_X;
        run_one(&g, ids, LONG + 6, 0);
    }
    assert_int_equal(g.eng->kv.leases.n, 0);
    for (uint64_t tool = 1; tool <= 2; tool++) {
        make_prompt(ids, LONG, 100 + (int32_t)tool);
        const uint64_t before_ns = clock_ns;
        run_one(&g, ids, LONG, tool);
        const struct sl_kv_lease *l = &g.eng->kv.leases.list[tool - 1];
        assert_int_not_equal(l->leaf, SL_NO_NODE);
        const double s = (double)(l->end_ns - before_ns) / 1e9;
        assert_true(tool == 1 ? s > 0.3 && s < 0.6 : s > 20 && s < 40);
    }
    stop(&g);
}

/* All pages are leased: who comes runs at once, and what runs is not preempted for them. */
static void leases_keep_nobody_waiting(void **state)
{
    static struct rig g;
    int32_t ids[200];
    (void)state;
    start(&g, 0.99, 8, 0);
    for (int32_t i = 0; i < 6; i++) {
        make_prompt(ids, LONG, i);
        run_one(&g, ids, LONG, 7);
    }
    assert_int_equal(g.eng->kv.leases.n, 6);
    assert_true(g.eng->kv.leases.n_kept >= 6 * LONG / BLOCK);
    make_prompt(ids, LONG, 50);
    struct sl_request *req = submit(&g, ids, LONG, N_PAGES * BLOCK - LONG - 1, 0);
    turn(&g);
    turn(&g);
    assert_int_equal(g.eng->sched.n_running, 1);
    run(&g, req);
    struct sl_usage u;
    sl_request_usage(req, &u);
    assert_int_equal(u.n_preemptions, 0);
    assert_int_equal(u.n_output, N_PAGES * BLOCK - LONG - 1);
    assert_int_equal(g.eng->kv.leases.n_fell, 6);
    sl_request_release(req);
    turn(&g);
    stop(&g);
}

/* What waits does not take what an older program will go on from, while something else runs. */
static void an_older_program_is_not_evicted_for_a_new_one(void **state)
{
    static struct rig g;
    int32_t ids[LONG], other[160];
    (void)state;
    start(&g, 0.5, 8, 0);
    make_prompt(ids, LONG, 1);
    run_one(&g, ids, LONG, 7);
    make_prompt(other, 160, 2);
    struct sl_request *runs = submit(&g, other, 160, 30, 0), *waits;
    turn(&g);
    make_prompt(other, 60, 3);
    waits = submit(&g, other, 60, 2, 0); /* 15 of 24 pages: 10 are leased */
    for (int i = 0; i < 10; i++)
        turn(&g);
    assert_int_equal(g.eng->sched.n_running, 1);
    assert_int_equal(g.eng->sched.wait.n, 1);
    assert_int_equal(g.eng->kv.leases.n, 1);
    run(&g, runs);
    run(&g, waits);
    assert_int_equal(g.eng->kv.leases.n, 1); /* there was room without it in the end */
    sl_request_release(runs);
    sl_request_release(waits);
    turn(&g);
    stop(&g);
}

/* Of a flood of programs each has a lease only while their share lasts. */
static void the_share_is_kept(void **state)
{
    static struct rig g;
    int32_t ids[LONG];
    (void)state;
    start(&g, 0.4, 8, 0);
    for (int32_t i = 0; i < 40; i++) {
        make_prompt(ids, LONG, i);
        run_one(&g, ids, LONG, 1 + (uint64_t)i);
        assert_true(g.eng->kv.leases.n_leased <= (int32_t)(0.4 * N_PAGES));
    }
    assert_int_equal(g.eng->kv.leases.n, 2);
    stop(&g);
}

static void a_request_that_does_not_run_lets_go(void **state)
{
    static struct rig g;
    int32_t ids[LONG + 6], other[LONG];
    (void)state;
    start(&g, 0.5, 1, 0);
    make_prompt(ids, LONG, 1);
    run_one(&g, ids, LONG, 7);
    make_prompt(other, LONG, 2);
    struct sl_request *runs = submit(&g, other, LONG, 60, 0);
    turn(&g);
    for (int32_t k = LONG; k < LONG + 6; k++)
        ids[k] = T_X;
    struct sl_request *back = submit(&g, ids, LONG + 6, 2, 0);
    clock_ns += 4000 * MS;
    turn(&g);
    clock_ns += 60000 * MS; /* it waits longer than the lease had been for */
    turn(&g);
    assert_int_equal(g.eng->kv.leases.n, 1);
    assert_int_equal(g.eng->retain.tools.all.sum, 1);
    sl_request_cancel(back);
    turn(&g);
    assert_int_equal(g.eng->kv.leases.n, 0);
    assert_int_equal(g.eng->retain.n_marks, 0);
    sl_request_release(back);
    run(&g, runs);
    sl_request_release(runs);
    turn(&g);
    stop(&g);
}

/* One seat. Returns which of the requests ends first. */
static int first_to_end(struct rig *g, struct sl_request **reqs, int n)
{
    for (int i = 0; i < 500; i++) {
        turn(g);
        for (int k = 0; k < n; k++)
            if (is_over(reqs[k]))
                return k;
    }
    return -1;
}

static void release_all(struct rig *g, struct sl_request **reqs, int n)
{
    for (int i = 0; i < n; i++)
        sl_request_release(reqs[i]);
    turn(g);
    turn(g);
}

static void a_program_keeps_its_place(void **state)
{
    static struct rig g;
    int32_t ids[4][8];
    (void)state;
    for (int named = 0; named < 3; named++) { /* a session; a session of the text alone; neither */
        start(&g, 0.5, 1, 0);
        for (int32_t i = 0; i < 4; i++)
            make_prompt(ids[i], 8, 10 * i + 1);
        struct sl_request *req = submit(&g, ids[0], 6, 2, named == 0 ? 5 : 0);
        run(&g, req);
        if (named == 1)
            sl_request_calls(req, 0, 7);
        sl_request_release(req);
        turn(&g);
        ids[0][6] = ids[0][7] = T_X;
        struct sl_request *all[4] = {submit(&g, ids[1], 8, 4, 0), submit(&g, ids[2], 8, 4, 0)};
        turn(&g); /* the first one runs */
        all[2] = submit(&g, ids[0], 8, 4, named == 0 ? 5 : 0);
        all[3] = submit(&g, ids[3], 8, 4, named == 0 ? 5 : 0); /* a second one at a time */
        run(&g, all[0]);
        struct sl_request *rest[3] = {all[1], all[2], all[3]};
        assert_int_equal(first_to_end(&g, rest, 3), named < 2 ? 1 : 0);
        run(&g, named < 2 ? all[1] : all[2]);
        assert_false(is_over(all[3]));
        release_all(&g, all, 4);
        stop(&g);
    }
}

/* A session that comes back whenever it has ended overtakes a new request only for a while. */
static void a_new_one_has_its_turn(void **state)
{
    static struct rig g;
    int32_t ids[8];
    (void)state;
    start(&g, 0.5, 1, 100);
    make_prompt(ids, 8, 1);
    struct sl_request *a = submit(&g, ids, 8, 4, 5), *b = submit(&g, ids, 8, 4, 6), *waits;
    make_prompt(ids, 8, 2);
    waits = submit(&g, ids, 8, 4, 0);
    int n_turns = 0;
    make_prompt(ids, 8, 1);
    for (; !is_over(waits) && n_turns < 1000; n_turns++) {
        turn(&g);
        if (is_over(a)) {
            sl_request_release(a);
            a = submit(&g, ids, 8, 4, 5);
        }
        if (is_over(b)) {
            sl_request_release(b);
            b = submit(&g, ids, 8, 4, 6);
        }
    }
    assert_in_range(n_turns, 90, 130);
    sl_request_release(a);
    sl_request_release(b);
    sl_request_release(waits);
    turn(&g);
    turn(&g);
    stop(&g);
}

/* What it brings to wait until `end` for tools that took these times, the last one counting 1. */
static double gain_of(const double *x, int n, double price, double end)
{
    double gain = 0, sum = 0, w = 1;
    for (int i = n - 1; i >= 0; i--, w *= 0.97) {
        const double up = x[i] < 0 ? 1e9 : 0.01 * exp2(0.5 * ceil(2 * log2(x[i] / 0.01) - 1e-9));
        gain += w * ((up <= end * 1.0001) - price * SL_MIN(up, end));
        sum += w;
    }
    return gain / sum;
}

/* The time that is found is the best one, by sums over the times themselves. */
static void the_best_time_is_found(void **state)
{
    static struct sl_tool_times t;
    struct sl_rng r = {.seed = 3};
    int n_long = 0, n_none = 0;
    (void)state;
    for (int round = 0; round < 300; round++) {
        double x[40], best = 0;
        const double price = sl_rng_unit(sl_rng_next(&r)) * (round % 3 == 0 ? 0.01 : 2);
        const double scale = 8 * sl_rng_unit(sl_rng_next(&r)) - 4;
        const int n = 4 + (int)sl_rng_below(&r, 37);
        memset(&t, 0, sizeof t);
        for (int i = 0; i < n; i++) {
            x[i] = sl_rng_below(&r, 5) == 0 ? -1 : exp(scale + 3 * sl_rng_unit(sl_rng_next(&r)));
            sl_tool_times_add(&t, 9, x[i]);
        }
        for (int b = 0; b < SL_TOOL_BINS && 0.01 * exp2(0.5 * b) <= 60; b++)
            best = SL_MAX(best, gain_of(x, n, price, 0.01 * exp2(0.5 * b)));
        const struct sl_tool_wait wait = sl_tool_times_wait(&t, 9, price, 60);
        const double gain = wait.seconds > 0 ? gain_of(x, n, price, wait.seconds) : 0;
        if (fabs(gain - best) > 1e-5)
            fail_msg("round %d: %g s bring %g, another time %g", round, wait.seconds, gain, best);
        n_long += wait.seconds > 2;
        n_none += wait.seconds == 0;
    }
    assert_true(n_long > 30 && n_none > 30);
}

static void tools_are_forgotten_in_turn(void **state)
{
    static struct sl_tool_times t;
    (void)state;
    for (uint64_t name = 1; name <= 3 * SL_TOOL_NAMES; name++)
        for (int i = 0; i < 4; i++)
            sl_tool_times_add(&t, name, name > 2 * SL_TOOL_NAMES ? 0.1 : 10);
    for (uint64_t name = 2 * SL_TOOL_NAMES + 1; name <= 3 * SL_TOOL_NAMES; name++)
        assert_true(sl_tool_times_wait(&t, name, 0, 60).seconds < 0.2);
    for (int i = 0; i < 8; i++) /* of one that is new, what all say */
        sl_tool_times_add(&t, 1000000, 1);
    assert_true(sl_tool_times_wait(&t, 7777777, 0, 60).seconds > 0.9);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_teardown(a_call_is_kept_for_its_time, rig_end),
        cmocka_unit_test_teardown(the_prompt_is_enough, rig_end),
        cmocka_unit_test_teardown(times_are_learnt, rig_end),
        cmocka_unit_test_teardown(leases_keep_nobody_waiting, rig_end),
        cmocka_unit_test_teardown(an_older_program_is_not_evicted_for_a_new_one, rig_end),
        cmocka_unit_test_teardown(the_share_is_kept, rig_end),
        cmocka_unit_test_teardown(a_request_that_does_not_run_lets_go, rig_end),
        cmocka_unit_test_teardown(a_program_keeps_its_place, rig_end),
        cmocka_unit_test_teardown(a_new_one_has_its_turn, rig_end),
        cmocka_unit_test(the_best_time_is_found),
        cmocka_unit_test(tools_are_forgotten_in_turn),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
