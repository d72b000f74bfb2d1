/* SPDX-License-Identifier: MIT
 * Ranks in processes that divide experts alone: their bits are those of one rank, and where the
 * experts of a lost one have replicas the others go on without it. Processes are killed, stopped
 * and stuck under load: what ran fails once and soon, what comes then has the same bits, and when
 * the lost one is back it is let in under load, for which nothing fails.
 *
 *   test_rank_spared --kills N [SEED]    N more of them in each layout, and what they took
 */
#include "engine/rank_processes.h"

#define N_SPARED 3

/* So many of the ranks, within so many seconds. */
static void without(struct sl_engine *eng, int n, double seconds)
{
    const uint64_t end = sl_now_ns() + (uint64_t)(seconds * (double)SECOND);
    struct sl_stats s;
    struct sl_error err = {0};
    int rc;
    do {
        (void)poll(NULL, 0, 2);
        rc = sl_engine_health(eng, &err);
        sl_engine_stats(eng, &s);
        if (sl_now_ns() > end)
            fail_msg("%d of %d ranks are done without, not %d: %s", s.ranks.n_absent, s.ranks.n, n,
                     err.msg);
    } while (rc != 0 || s.ranks.n_absent != n);
    assert_int_equal(strstr(err.msg, "steps do without") != NULL, n > 0);
}

struct took { /* seconds, of so many kills */
    int n;
    double go_on, go_on_most; /* from the kill until the others can */
    double back, back_most;   /* from when the process was started until all can */
};

static void add_time(double *sum, double *most, uint64_t since_ns)
{
    const double s = (double)(sl_now_ns() - since_ns) * 1e-9;
    *sum += s;
    *most = s > *most ? s : *most;
}

/* As strike, where the others go on by themselves. */
static int strike_spared(struct sl_engine *eng, pid_t pid, int after_us, struct took *took)
{
    struct sl_request *reqs[N_LOADED];
    int n_failed = 0;
    for (int i = 0; i < N_LOADED; i++)
        assert_non_null(reqs[i] = submit(eng, i, 300));
    usleep((useconds_t)after_us);
    kill(pid, SIGKILL);
    const uint64_t t0 = sl_now_ns();
    for (int i = 0; i < N_LOADED; i++)
        n_failed += outlive(reqs[i]);
    assert_int_equal(end_of(pid), 128 + SIGKILL);
    without(eng, 1, 5 - (double)(sl_now_ns() - t0) * 1e-9);
    add_time(&took->go_on, &took->go_on_most, t0);
    return n_failed;
}

/* The ranks of n, from 1 on, are killed in turns under load. Each time the others go on soon with
 * the same bits; when it is back it is let in under load, for which no request fails. */
static int spare(const char *model, enum parts parts, int n_nodes, const char *transport, int n,
                 const struct outcome *want, struct sl_rng *rng)
{
    struct outcome got;
    struct follower f[8] = {{.model = NULL}};
    pid_t pids[8];
    struct sl_stats s;
    struct took took = {0};
    const int port = free_port();
    for (int i = 1; i < n_nodes; i++) {
        f[i] = (struct follower){.model = model,
                                 .port = port,
                                 .nodes = digits[n_nodes],
                                 .rank = digits[i],
                                 .parts = parts};
        pids[i] = follow(&f[i]);
    }
    struct sl_engine *eng = start_with(model, n_nodes, parts, port, transport, LONG_S);
    int n_failed = 0;
    for (int k = 0; k < n; k++) {
        const int i = 1 + k % (n_nodes - 1);
        run_all(eng, &got);
        must_equal(&got, want, "with all ranks");
        n_failed += strike_spared(eng, pids[i], (int)sl_rng_below(rng, 60000), &took);
        run_all(eng, &got);
        must_equal(&got, want, "without one");
        pids[i] = follow(&f[i]);
        const uint64_t t0 = sl_now_ns();
        for (int round = 0, there = 0; !there; round++) {
            run_all(eng, &got);
            must_equal(&got, want, "while one is let in");
            sl_engine_stats(eng, &s);
            there = s.ranks.n_absent == 0;
            assert_true(round < 2000);
        }
        without(eng, 0, 5);
        add_time(&took.back, &took.back_most, t0);
        took.n++;
    }
    printf(
        "%d processes, %s: %d kills met %d of %d requests; the others went on after %.3f s (most "
        "%.3f), it was let in %.3f s after its start (most %.3f)\n",
        n_nodes, transport, n, n_failed, n * N_LOADED, took.go_on / took.n, took.go_on_most,
        took.back / took.n, took.back_most);
    sl_engine_stats(eng, &s);
    assert_int_equal(s.ranks.n_there, n_nodes);
    assert_int_equal(s.step_mallocs, 0);
    assert_int_equal(s.invariant_violations, 0);
    sl_engine_destroy(eng);
    for (int i = 1; i < n_nodes; i++)
        assert_int_equal(end_of(pids[i]), 0);
    return n_failed;
}

static const struct variant only_skewed = {.name = "gpt-oss", .dtype = SL_DTYPE_BF16, .skew = 5};

static void test_spared(void **state)
{
    (void)state;
    struct outcome want;
    struct sl_rng rng = {.seed = 30};
    const char *model = write_model(&only_skewed);
    one_rank(model, &want);
    int n_failed = spare(model, ONLY, 2, "auto", N_SPARED, &want, &rng);
    n_failed += spare(model, ONLY, 4, "tcp", N_SPARED, &want, &rng);
    assert_true(n_failed >= N_SPARED); /* most came in time */
}

/* Ranks 2 and 3 of four have the experts that 0 and 1 have, too. Without both steps go on, but not
 * without 1 as well; it is enough then that 1 comes back. */
static void test_spared_twice(void **state)
{
    (void)state;
    struct outcome want, got;
    const char *model = write_model(&only_skewed);
    one_rank(model, &want);
    struct follower f[4];
    pid_t pids[4];
    const int port = free_port();
    for (int i = 1; i < 4; i++) {
        f[i] = (struct follower){
            .model = model, .port = port, .nodes = "4", .rank = digits[i], .parts = ONLY_STILL};
        pids[i] = follow(&f[i]);
    }
    struct sl_engine *eng = start_with(model, 4, ONLY_STILL, port, "auto", SHORT_S);
    kill(pids[2], SIGSTOP); /* it keeps its connection: silence says that it is lost */
    without(eng, 1, 5);
    run_all(eng, &got);
    must_equal(&got, &want, "without one that was stopped");
    kill(pids[3], SIGKILL);
    assert_int_equal(end_of(pids[3]), 128 + SIGKILL);
    without(eng, 2, 5);
    run_all(eng, &got);
    must_equal(&got, &want, "without two");
    kill(pids[1], SIGKILL);
    assert_int_equal(end_of(pids[1]), 128 + SIGKILL);
    assert_true(becomes(eng, SL_ERANK, 5));
    assert_false(becomes(eng, 0, 0.5));
    assert_null(submit(eng, 0, 1));
    pids[1] = follow(&f[1]);
    without(eng, 2, 20);
    run_all(eng, &got);
    must_equal(&got, &want, "without two, one of them back");
    kill(pids[2], SIGCONT);
    pids[3] = follow(&f[3]);
    without(eng, 0, 20); /* nobody asks meanwhile */
    run_all(eng, &got);
    must_equal(&got, &want, "with all again");
    sl_engine_destroy(eng);
    for (int i = 1; i < 4; i++)
        assert_int_equal(end_of(pids[i]), 0);
}

/* Where each rank has all experts rank 0 goes on alone, after any number of steps. */
static void test_spared_alone(void **state)
{
    (void)state;
    struct outcome want, got;
    const char *model = write_model(&only_skewed);
    one_rank(model, &want);
    struct follower f[4];
    pid_t pids[4];
    const int port = free_port();
    for (int i = 1; i < 4; i++) {
        f[i] = (struct follower){
            .model = model, .port = port, .nodes = "4", .rank = digits[i], .parts = ONLY_ALL};
        pids[i] = follow(&f[i]);
    }
    struct sl_engine *eng = start_with(model, 4, ONLY_ALL, port, "tcp", LONG_S);
    for (int i = 1; i < 4; i++) {
        run_all(eng, &got);
        must_equal(&got, &want, "with fewer and fewer");
        kill(pids[i], SIGKILL);
        assert_int_equal(end_of(pids[i]), 128 + SIGKILL);
        without(eng, i, 5);
    }
    run_all(eng, &got);
    must_equal(&got, &want, "alone");
    sl_engine_destroy(eng);
}

/* One that speaks and does not compute is done without, too. */
static void test_spared_stuck(void **state)
{
    (void)state;
    struct outcome want, got;
    const char *model = write_model(&only_skewed);
    one_rank(model, &want);
    struct follower f = {.model = model, .port = free_port(), .parts = ONLY_STILL, .stuck = true};
    pid_t pid = follow(&f);
    struct sl_engine *eng = start_with(model, 2, ONLY_STILL, f.port, "tcp", SHORT_S);
    struct sl_request *req = submit(eng, 2, 20);
    assert_true(outlive(req));
    without(eng, 1, 2);
    run_all(eng, &got);
    must_equal(&got, &want, "without one that is stuck");
    kill(pid, SIGKILL);
    assert_int_equal(end_of(pid), 128 + SIGKILL);
    f.stuck = false;
    pid = follow(&f);
    without(eng, 0, 20);
    run_all(eng, &got);
    must_equal(&got, &want, "with another in its place");
    sl_engine_destroy(eng);
    assert_int_equal(end_of(pid), 0);
}

/* Latent attention, layers without experts, a shared expert: whole on all ranks. Experts without
 * replicas are waited for. */
static void test_only_experts(void **state)
{
    static const struct variant some[] = {
        {.name = "deepseek_v2", .dtype = SL_DTYPE_BF16, .skew = 5},
        {.name = "qwen2moe", .dtype = SL_DTYPE_Q8_0, .skew = 5},
        {.name = "olmoe", .dtype = SL_DTYPE_BF16, .skew = 5}}; /* norms over all heads */
    (void)state;
    for (size_t v = 0; v < SL_COUNT(some); v++) {
        struct outcome want;
        const char *model = write_model(&some[v]);
        one_rank(model, &want);
        bits_of(model, 2, ONLY, v == 0 ? "tcp" : "auto", &want);
        if (v > 0)
            continue;
        bits_of(model, 4, ONLY, "auto", &want);
        struct follower f = {.model = model, .port = free_port(), .parts = ONLY_ONCE};
        pid_t pid = follow(&f);
        struct sl_engine *eng = start_with(model, 2, ONLY_ONCE, f.port, "auto", LONG_S);
        (void)strike(eng, pid, SIGKILL, 20000, 5);
        (void)end_of(pid);
        assert_false(becomes(eng, 0, 1));
        must_say(&(struct follower){.model = model, .port = f.port, .parts = PLACED},
                 "tokens, only experts by rank (");
        pid = follow(&f);
        assert_true(becomes(eng, 0, 20));
        sl_engine_destroy(eng);
        assert_int_equal(end_of(pid), 0);
    }
}

/* No part of CI: it takes minutes. */
static int kill_many(int n, uint64_t seed)
{
    struct outcome want;
    struct sl_rng rng = {.seed = seed};
    const char *model = write_model(&only_skewed);
    one_rank(model, &want);
    for (int n_nodes = 2; n_nodes <= 4; n_nodes *= 2) {
        (void)spare(model, ONLY, n_nodes, "auto", n, &want, &rng);
        (void)spare(model, ONLY, n_nodes, "tcp", n, &want, &rng);
    }
    return 0;
}

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_only_experts), cmocka_unit_test(test_spared),
        cmocka_unit_test(test_spared_twice), cmocka_unit_test(test_spared_stuck),
        cmocka_unit_test(test_spared_alone),
    };
    signal(SIGPIPE, SIG_IGN);
    if (argc == 2)
        cmocka_set_test_filter(argv[1]);
    if (argc == 9)
        return follower_main(argv);
    if (argc >= 3 && strcmp(argv[1], "--kills") == 0)
        return kill_many(atoi(argv[2]), argc > 3 ? strtoull(argv[3], NULL, 10) : 31);
    return cmocka_run_group_tests(tests, NULL, NULL);
}
