/* SPDX-License-Identifier: MIT
 * Priorities under a load that never ends, on a clock of the test's own: a better one goes first,
 * nobody waits for ever, and the seats kept for those who waited long do not become everybody's.
 */
#include "engine_rig.h"

#include "engine/core.h"

#define STEP_NS    UINT64_C(1000000) /* of virtual time per step */
#define MAX_WAIT   100               /* milliseconds, hence steps, before a turn is due */
#define SEATS      8
#define N_OUT      5
#define MAX_ACTIVE 256

static struct sl_sys clock_sys;
static uint64_t clock_ns;

static uint64_t virtual_now(void)
{
    return clock_ns;
}

struct load {
    struct rig rig;
    struct sl_request *reqs[MAX_ACTIVE];
    int n;
    uint64_t slowest_ns; /* of the requests that ended */
    int n_ended;
};

static void start(struct load *l, int32_t max_wait_ms)
{
    struct sl_engine_parts parts = {
        .no_thread = true, .seed = 1, .priority_max_wait_ms = max_wait_ms};
    memset(l, 0, sizeof *l);
    clock_sys = sl_sys_real;
    clock_sys.now_ns = virtual_now;
    sl_sys = &clock_sys;
    clock_ns = 1000 * STEP_NS;
    parts.info.max_num_seqs = SEATS;
    rig_start(&l->rig, &parts);
    rig_script(&l->rig, 3, NULL, 0);
}

static struct sl_request *submit(struct load *l, int32_t priority)
{
    static const int32_t prompt[] = {1, 2, 3};
    struct sl_request_desc d = {.prompt = prompt, .n_prompt = 3, .priority = priority};
    struct sl_request *req = NULL;
    struct sl_error err;
    sl_sampling_default(&d.sampling);
    d.sampling.max_tokens = N_OUT;
    if (sl_request_submit(l->rig.eng, &d, &req, &err) != 0)
        fail_msg("refused: %s", err.msg);
    return req;
}

static void add(struct load *l, int32_t priority)
{
    assert_true(l->n < MAX_ACTIVE);
    l->reqs[l->n++] = submit(l, priority);
}

static void drain(struct sl_request *req)
{
    struct sl_chunk chunk;
    while (sl_request_read(req, &chunk) == 1)
        assert_int_not_equal(chunk.finish, SL_FINISH_ERROR);
}

/* A step; what has ended is released and measured. */
static void step(struct load *l)
{
    struct sl_error err;
    sl_engine_step(l->rig.eng);
    clock_ns += STEP_NS;
    if (sl_engine_check(l->rig.eng, &err) != 0)
        fail_msg("%s", err.msg);
    assert_true(l->rig.eng->n_raised >= 0 && l->rig.eng->n_raised <= l->rig.eng->max_raised);
    for (int i = 0; i < l->n; i++) {
        struct sl_usage u;
        drain(l->reqs[i]);
        if (!sl_request_done(l->reqs[i]))
            continue;
        sl_request_usage(l->reqs[i], &u);
        l->slowest_ns = SL_MAX(l->slowest_ns, clock_ns - u.t_submit_ns);
        l->n_ended++;
        sl_request_release(l->reqs[i]);
        l->reqs[i--] = l->reqs[--l->n];
    }
}

static void finish(struct load *l)
{
    for (int i = 0; i < l->n; i++)
        sl_request_release(l->reqs[i]);
    sl_engine_step(l->rig.eng);
    assert_int_equal(l->rig.eng->n_raised, 0);
    assert_null(l->rig.eng->live_oldest);
    rig_stop(&l->rig);
    sl_sys = &sl_sys_real;
}

/* More of the better priority than there are seats, for ever. Returns the steps until req ended, or
 * n_steps. */
static int run_flooded(struct load *l, int32_t priority, struct sl_request *req, int n_steps)
{
    for (int i = 0; i < n_steps; i++) {
        while (l->n < 2 * SEATS)
            add(l, priority);
        step(l);
        drain(req);
        if (sl_request_done(req))
            return i;
    }
    return n_steps;
}

static void nobody_starves(void **state)
{
    static struct load l;
    (void)state;
    start(&l, MAX_WAIT);
    for (int i = 0; i < 2 * SEATS; i++)
        add(&l, -1);
    struct sl_request *low = submit(&l, 5);
    int took = run_flooded(&l, -1, low, 10 * MAX_WAIT);
    assert_in_range(took, MAX_WAIT, MAX_WAIT + 2 * N_OUT);
    assert_true(l.n_ended > 100); /* the flood went on */
    sl_request_release(low);
    finish(&l);
}

/* The same load without the turn: the test above cannot pass by itself. */
static void without_a_turn_it_starves(void **state)
{
    static struct load l;
    (void)state;
    start(&l, 1000 * MAX_WAIT);
    for (int i = 0; i < 2 * SEATS; i++)
        add(&l, -1);
    struct sl_request *low = submit(&l, 5);
    assert_int_equal(run_flooded(&l, -1, low, 10 * MAX_WAIT), 10 * MAX_WAIT);
    sl_request_release(low);
    finish(&l);
}

/* Many that wait too long get turns one after the other, while the better priority keeps all seats
 * but one and its times. */
static void turns_are_few(void **state)
{
    static struct load l;
    (void)state;
    start(&l, MAX_WAIT);
    struct sl_request *low[40];
    for (size_t i = 0; i < SL_COUNT(low); i++)
        low[i] = submit(&l, 1);
    int n_done = 0, n_before = 0;
    for (int i = 0; i < 8 * MAX_WAIT; i++) {
        while (l.n < SEATS - 1)
            add(&l, 0);
        step(&l);
        n_before = n_done;
        n_done = 0;
        for (size_t k = 0; k < SL_COUNT(low); k++) {
            drain(low[k]);
            n_done += sl_request_done(low[k]);
        }
        assert_true(n_done - n_before <= 1 || i < MAX_WAIT);
    }
    assert_int_equal(n_done, SL_COUNT(low));
    /* A better request waited for no seat at any time: a step for each token and one to be taken.
     */
    assert_in_range(l.slowest_ns, N_OUT * STEP_NS, (N_OUT + 1) * STEP_NS);
    for (size_t k = 0; k < SL_COUNT(low); k++)
        sl_request_release(low[k]);
    finish(&l);
}

/* A turn that its request no longer wants is given to another. */
static void a_cancelled_turn_comes_back(void **state)
{
    static struct load l;
    (void)state;
    start(&l, MAX_WAIT);
    for (int round = 0; round < 3; round++) {
        for (int i = 0; i < 2 * SEATS; i++)
            add(&l, -1);
        struct sl_request *low = submit(&l, 5);
        for (int i = 0; i < 2 * MAX_WAIT && l.rig.eng->n_raised == 0; i++) {
            while (l.n < 2 * SEATS)
                add(&l, -1);
            step(&l);
        }
        assert_int_equal(l.rig.eng->n_raised, 1);
        sl_request_release(low);
        step(&l);
        assert_int_equal(l.rig.eng->n_raised, 0);
    }
    finish(&l);
}

/* In order of arrival nobody is passed over, so nobody needs a turn, however long it takes. */
static void equals_wait_in_line(void **state)
{
    static struct load l;
    (void)state;
    start(&l, 1);
    for (int i = 0; i < 100; i++)
        add(&l, 0);
    while (l.n > 0) {
        step(&l);
        assert_int_equal(l.rig.eng->n_raised, 0);
    }
    assert_true(l.slowest_ns > 10 * STEP_NS);
    finish(&l);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(nobody_starves),      cmocka_unit_test(without_a_turn_it_starves),
        cmocka_unit_test(turns_are_few),       cmocka_unit_test(a_cancelled_turn_comes_back),
        cmocka_unit_test(equals_wait_in_line),
    };
    rig_late = false;
    int n_failed = cmocka_run_group_tests_name("priority", tests, NULL, NULL);
    rig_late = true;
    return n_failed + cmocka_run_group_tests_name("priority, late runner", tests, NULL, NULL);
}
