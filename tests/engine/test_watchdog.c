/* SPDX-License-Identifier: MIT
 * Tests of the watchdog: a runner that hangs, under the real clock and with the real thread; what
 * counts as moving, under a virtual clock.
 */
#include "engine_rig.h"

#include "base/log.h"
#include "engine/core.h"

#include <poll.h>
#include <stdatomic.h>
#include <stdio.h>
#include <unistd.h>

static const int32_t prompt[] = {1, 2, 3, 4, 1, 2};

static struct sl_request *submit(struct rig *g, int *rc, struct sl_error *err)
{
    struct sl_request_desc d = {.prompt = prompt, .n_prompt = 6};
    struct sl_request *req = NULL;
    sl_sampling_default(&d.sampling);
    d.sampling.temperature = 0.0f;
    d.sampling.max_tokens = 4;
    *rc = sl_request_submit(g->eng, &d, &req, err);
    return *rc == 0 ? req : NULL;
}

static struct sl_request *submit_ok(struct rig *g)
{
    struct sl_error err;
    int rc;
    struct sl_request *req = submit(g, &rc, &err);
    if (req == NULL)
        fail_msg("refused: %s", err.msg);
    return req;
}

/* ------------------------------------------------------------------ the log */

static pthread_mutex_t log_lock = PTHREAD_MUTEX_INITIALIZER;
static char log_text[1 << 15];
static size_t n_log;

static ssize_t keep_log(int fd, const void *buf, size_t n)
{
    if (fd != STDERR_FILENO)
        return sl_sys_real.write(fd, buf, n);
    pthread_mutex_lock(&log_lock);
    size_t room = sizeof log_text - 1 - n_log, take = n < room ? n : room;
    memcpy(log_text + n_log, buf, take);
    n_log += take;
    log_text[n_log] = '\0';
    pthread_mutex_unlock(&log_lock);
    return (ssize_t)n;
}

static bool logged(const char *text)
{
    pthread_mutex_lock(&log_lock);
    bool found = strstr(log_text, text) != NULL;
    pthread_mutex_unlock(&log_lock);
    return found;
}

static uint64_t virtual_ns;

static uint64_t virtual_now(void)
{
    return virtual_ns;
}

static struct sl_sys sys;

static void watch_log(bool virtual_clock)
{
    sys = sl_sys_real;
    sys.write = keep_log;
    if (virtual_clock)
        sys.now_ns = virtual_now;
    virtual_ns = 1000000000;
    n_log = 0;
    log_text[0] = '\0';
    sl_sys = &sys;
}

/* ------------------------------------------------------------------ a runner that hangs */

static atomic_bool hang;

static int hanging_step(void *ctx, const struct sl_batch *b, const float **logits,
                        struct sl_error *err)
{
    while (atomic_load(&hang))
        poll(NULL, 0, 1);
    return rig_step(ctx, b, logits, err);
}

static void start_hanging(struct rig *g, int32_t watchdog_s)
{
    struct sl_engine_parts p = {.watchdog_s = watchdog_s, .seed = 1};
    p.info.max_num_seqs = 1;
    g->model = (struct sl_host_model){.ctx = g, .n_vocab = T_N, .forward = hanging_step};
    rig_start(g, &p);
    rig_script(g, 6, NULL, 0);
}

static void wait_for(struct rig *g, bool healthy)
{
    for (int i = 0; i < 20000 && sl_engine_healthy(g->eng) != healthy; i++)
        poll(NULL, 0, 1);
    assert_int_equal(sl_engine_healthy(g->eng), healthy);
}

static void wait_for_step(struct rig *g)
{
    for (int i = 0; i < 10000 && atomic_load(&g->eng->phase) != SL_PHASE_RUNNER; i++)
        poll(NULL, 0, 1);
    assert_int_equal(atomic_load(&g->eng->phase), SL_PHASE_RUNNER);
}

static void finish(struct sl_request *req)
{
    static struct rig_out outs[1];
    memset(outs, 0, sizeof outs);
    while (!sl_request_done(req)) {
        sl_request_wait(req, 10000);
        rig_read(req, outs);
    }
    assert_int_equal(outs[0].finish, SL_FINISH_LENGTH);
    assert_int_equal(outs[0].n, 4);
    sl_request_release(req);
}

static void a_step_that_hangs_is_noticed(void **state)
{
    (void)state;
    struct rig g = {0};
    struct sl_error err;
    struct sl_stats s;
    int rc;
    watch_log(false);
    start_hanging(&g, 1);
    finish(submit_ok(&g));
    assert_int_equal(sl_engine_health(g.eng, &err), 0);
    atomic_store(&hang, true);
    struct sl_request *a = submit_ok(&g);
    wait_for_step(&g);
    struct sl_request *b = submit_ok(&g); /* waits in the inbox: the engine thread is in the step */
    wait_for(&g, false);
    assert_int_equal(sl_engine_health(g.eng, &err), SL_ESTALLED);
    assert_non_null(strstr(err.msg, "2 requests are open"));
    assert_null(submit(&g, &rc, &err));
    assert_int_equal(rc, SL_ESTALLED);
    assert_int_equal(sl_code_http(rc), 503);
    sl_engine_stats(g.eng, &s);
    assert_int_equal(s.watchdog_stalls, 1);
    for (int i = 0; i < 5000 && !logged("running"); i++)
        poll(NULL, 0, 1);
    assert_true(logged("2 requests open, 1 of them never scheduled, 1 not even taken"));
    assert_true(logged("the engine thread is in a step of the runner"));
    assert_true(logged("1 of 1 seats taken, 0 waiting"));
    assert_true(
        logged("running 2.0: priority 0, 6 + 0 tokens of at most 10, 4 computed, 2 in the"));
    atomic_store(&hang, false);
    finish(a);
    finish(b);
    wait_for(&g, true);
    finish(submit_ok(&g));
    sl_engine_stats(g.eng, &s);
    assert_int_equal(s.watchdog_stalls, 1);
    rig_stop(&g);
    sl_sys = &sl_sys_real;
}

/* What a thread that hangs uses cannot be freed; the process must come to an end all the same. */
static void destroy_leaves_a_hanging_thread(void **state)
{
    (void)state;
    struct rig g = {0};
    watch_log(false);
    start_hanging(&g, 1);
    atomic_store(&hang, true);
    struct sl_request *req = submit_ok(&g);
    wait_for_step(&g);
    sl_engine_destroy(g.eng); /* returns once the watchdog has found the standstill */
    assert_true(logged("the engine thread hangs"));
    atomic_store(&hang, false);
    rig_stop(&g); /* again, and now it ends */
    sl_request_release(req);
    sl_sys = &sl_sys_real;
}

static void never_means_never(void **state)
{
    (void)state;
    struct rig g = {0};
    watch_log(true);
    start_hanging(&g, -1);
    atomic_store(&hang, true);
    struct sl_request *req = submit_ok(&g);
    poll(NULL, 0, 20);
    assert_true(sl_engine_healthy(g.eng));
    assert_false(g.eng->watchdog.started);
    atomic_store(&hang, false);
    finish(req);
    rig_stop(&g);
    sl_sys = &sl_sys_real;
}

/* ------------------------------------------------------------------ what counts as moving */

static uint64_t n_progress;

static uint64_t progress(const void *ctx)
{
    (void)ctx;
    return n_progress;
}

static void start_virtual(struct rig *g)
{
    struct sl_engine_parts p = {.no_thread = true, .watchdog_s = 30, .seed = 1};
    p.info.max_num_seqs = 1;
    g->model =
        (struct sl_host_model){.ctx = g, .n_vocab = T_N, .forward = rig_step, .progress = progress};
    watch_log(true);
    rig_start(g, &p);
    rig_script(g, 6, NULL, 0);
    sl_watchdog_poll(g->eng);
}

static void pass(struct rig *g, int seconds)
{
    for (int i = 0; i < 2 * seconds; i++) {
        virtual_ns += 500000000;
        sl_watchdog_poll(g->eng);
    }
}

static void drain(struct rig *g, struct sl_request *req)
{
    static struct rig_out outs[1];
    memset(outs, 0, sizeof outs);
    while (sl_engine_step(g->eng)) {
    }
    rig_read(req, outs);
    assert_true(sl_request_done(req));
    sl_request_release(req);
}

static void idle_is_healthy_and_waiting_is_not(void **state)
{
    (void)state;
    struct rig g = {0};
    start_virtual(&g);
    pass(&g, 1000);
    assert_true(sl_engine_healthy(g.eng));
    struct sl_request *req = submit_ok(&g); /* and nobody wakes the engine */
    pass(&g, 29);
    assert_true(sl_engine_healthy(g.eng));
    pass(&g, 2);
    assert_false(sl_engine_healthy(g.eng));
    assert_true(logged("1 requests open, 1 of them never scheduled, 1 not even taken"));
    assert_true(logged("the engine thread is asleep"));
    pass(&g, 1000);
    assert_int_equal(atomic_load(&g.eng->watchdog.n_fired), 1); /* once per standstill */
    drain(&g, req);
    assert_false(sl_engine_healthy(g.eng)); /* until it is looked at again */
    pass(&g, 1);
    assert_true(sl_engine_healthy(g.eng));
    rig_stop(&g);
    sl_sys = &sl_sys_real;
}

static void a_long_step_that_moves_is_legal(void **state)
{
    (void)state;
    struct rig g = {0};
    start_virtual(&g);
    struct sl_request *req = submit_ok(&g);
    for (int i = 0; i < 100; i++) {
        pass(&g, 29);
        n_progress++;
    }
    assert_true(sl_engine_healthy(g.eng));
    drain(&g, req);
    rig_stop(&g);
    sl_sys = &sl_sys_real;
}

/* A process that was stopped, a machine that slept: the engine had no chance to move. */
static void a_clock_that_jumps_is_no_standstill(void **state)
{
    (void)state;
    struct rig g = {0};
    start_virtual(&g);
    struct sl_request *req = submit_ok(&g);
    pass(&g, 10);
    virtual_ns += UINT64_C(3600000000000);
    sl_watchdog_poll(g.eng);
    assert_true(sl_engine_healthy(g.eng));
    drain(&g, req);
    rig_stop(&g);
    sl_sys = &sl_sys_real;
}

/* Others who queue behind the standstill do not hide it; when all gave up, there is none. */
static void coming_and_going_is_not_moving(void **state)
{
    (void)state;
    struct rig g = {0};
    struct sl_request *reqs[8];
    start_virtual(&g);
    for (int i = 0; i < 8; i++) {
        reqs[i] = submit_ok(&g);
        if (i > 0)
            sl_request_cancel(reqs[i]);
        pass(&g, 4);
    }
    assert_false(sl_engine_healthy(g.eng));
    for (int i = 0; i < 8; i++)
        sl_request_release(reqs[i]);
    while (sl_engine_step(g.eng)) {
    }
    assert_int_equal(atomic_load(&g.eng->n_open), 0);
    pass(&g, 1);
    assert_true(sl_engine_healthy(g.eng));
    rig_stop(&g);
    sl_sys = &sl_sys_real;
}

/* A scheduler that never admits what waits: the thread turns, nothing lands. */
static void the_dump_says_why_each_waits(void **state)
{
    (void)state;
    struct rig g = {0};
    start_virtual(&g);
    struct sl_request *reqs[3];
    for (int i = 0; i < 3; i++)
        reqs[i] = submit_ok(&g);
    sl_engine_step(g.eng); /* one seat: the first runs */
    sl_watchdog_dump(g.eng);
    assert_true(logged("running 1.0"));
    assert_true(logged("waiting 2.0"));
    assert_true(logged("all 1 seats are taken"));
    assert_true(logged("behind sequence 2.0"));
    for (int i = 0; i < 3; i++)
        drain(&g, reqs[i]);
    rig_stop(&g);
    sl_sys = &sl_sys_real;
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_step_that_hangs_is_noticed),
        cmocka_unit_test(destroy_leaves_a_hanging_thread),
        cmocka_unit_test(never_means_never),
        cmocka_unit_test(idle_is_healthy_and_waiting_is_not),
        cmocka_unit_test(a_long_step_that_moves_is_legal),
        cmocka_unit_test(a_clock_that_jumps_is_no_standstill),
        cmocka_unit_test(coming_and_going_is_not_moving),
        cmocka_unit_test(the_dump_says_why_each_waits),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
