/* SPDX-License-Identifier: MIT
 * Tests of the invariants: each is broken by hand in a running engine, and the walk must name it
 * with its numbers. What nothing running would leave behind is found and repaired in release
 * builds.
 */
#include "engine_rig.h"

#include "base/log.h"
#include "engine/core.h"

#include <stdio.h>
#include <unistd.h>

static const int32_t prompt[] = {1, 2, 3, 4, 1, 2, 3, 4, 1, 2};

static struct sl_request *submit(struct rig *g, int32_t n)
{
    struct sl_request_desc d = {.prompt = prompt, .n_prompt = 10};
    struct sl_request *req = NULL;
    struct sl_error err;
    sl_sampling_default(&d.sampling);
    d.sampling.temperature = 0.0f;
    d.sampling.max_tokens = 20;
    d.sampling.n = n;
    if (sl_request_submit(g->eng, &d, &req, &err) != 0)
        fail_msg("refused: %s", err.msg);
    return req;
}

static void start(struct rig *g)
{
    struct sl_engine_parts p = {.no_thread = true, .watchdog_s = -1, .seed = 1};
    p.info.max_num_seqs = 2;
    rig_start(g, &p);
    rig_script(g, 10, NULL, 0);
}

static void names(struct rig *g, const char *what)
{
    struct sl_error err = {.msg = "nothing"};
    assert_int_equal(sl_engine_check(g->eng, &err), SL_EINTERNAL);
    if (strstr(err.msg, what) == NULL)
        fail_msg("'%s' does not name '%s'", err.msg, what);
}

static void whole(struct rig *g)
{
    struct sl_error err;
    if (sl_engine_check(g->eng, &err) != 0)
        fail_msg("%s", err.msg);
}

/* Puts a wrong value, looks, and puts the right one back. */
#define BROKEN(lvalue, wrong, what)    \
    do {                               \
        __auto_type right_ = (lvalue); \
        (lvalue) = (wrong);            \
        names(&g, what);               \
        (lvalue) = right_;             \
        whole(&g);                     \
    } while (0)

static void every_invariant_is_named(void **state)
{
    (void)state;
    struct rig g = {0};
    start(&g);
    /* Two run, two sequences and a request wait. */
    struct sl_request *a = submit(&g, 2), *b = submit(&g, 1), *c = submit(&g, 2);
    for (int i = 0; i < 4; i++)
        sl_engine_step(g.eng);
    struct sl_engine *eng = g.eng;
    struct sl_kv *kv = &eng->kv;
    struct sl_seq *s = &a->seqs[0].seq, *w = &c->seqs[0].seq;
    assert_int_equal(eng->sched.n_running, 2);
    assert_int_equal(eng->sched.wait.n, 2);
    assert_int_equal(s->state, SL_SEQ_RUNNING);
    assert_int_equal(w->state, SL_SEQ_WAITING);
    assert_int_equal(s->n_published, 3);
    whole(&g);

    const int32_t *nodes = s->blocks.nodes, *pages = s->blocks.pages[0];
    struct sl_id_pool *pool = &kv->groups[0].pool;
    BROKEN(kv->nodes.refs[nodes[0]], 9, "I1: node");
    BROKEN(kv->nodes.n_free, kv->nodes.n_free - 1, "I1: ");
    BROKEN(kv->nodes.free_list[0], nodes[0], "I1: place 0 of the free list");
    BROKEN(kv->nodes.is_free[nodes[2]], 1, "I1: ");
    BROKEN(pool->refs[pages[0]], 9, "I1: page");
    BROKEN(pool->n_free, pool->n_free - 1, "I1: ");
    BROKEN(pool->free_list[0], pages[0], "I1: place 0 of the free list");
    BROKEN(pool->is_free[pages[2]], 1, "I1: ");
    BROKEN(kv->groups[0].slots[nodes[1]].page, pages[2], "names page");
    BROKEN(kv->tree.nodes[nodes[0]].n_children, 5, "counts 5 children");
    BROKEN(s->blocks.nodes[2], nodes[1], "I8: node");
    BROKEN(s->blocks.nodes[2], 999, "names node 999 of 64");
    BROKEN(s->blocks.n, s->blocks.n - 1, "I1: ");
    BROKEN(s->blocks.first[0], 1, "I14: sequence 1.0 holds pages of group 0 from block 1 on");
    BROKEN(w->blocks.n, 1, "I1: sequence 3.0 in state 1 holds 1 blocks");
    BROKEN(s->state, SL_SEQ_FINISHED, "I3: sequence 1.0 is in state 3");
    BROKEN(a->n_ended, 1, "I3: 0 of 2 sequences");
    BROKEN(eng->stats.finished[SL_FINISH_STOP], 1, "I3: 5 sequences were accepted");
    BROKEN(eng->n_seqs_taken, 4, "I3: 4 sequences were accepted, 0 ended and 5 are open");
    BROKEN(eng->live->live_prev, a, "I3: the list");
    BROKEN(s->n_out, s->n_out + 1, "I4: sequence 1.0");
    BROKEN(a->usage_now.n_output, 100, "I5: request 1");
    BROKEN(s->max_out, 1, "I5: sequence 1.0");
    BROKEN(w->max_out, 1000, "I6: sequence 3.0 may need 1010 tokens");
    BROKEN(eng->sched.wait.n, 3, "I3: ");
    BROKEN(s->n_computed, sl_seq_n_tokens(s), "I7: sequence 1.0");
    BROKEN(s->n_pending, 1, "I7: ");
    BROKEN(eng->n_flights, 2, "I7: 2 steps in flight");
    BROKEN(s->n_published, 1, "I8: node");
    BROKEN(kv->tree.nodes[nodes[1]].parent, SL_NO_NODE, "I8: node");
    BROKEN(kv->tree.nodes[nodes[1]].in_tree, false, "I8: node");
    BROKEN(kv->tree.n_in_tree, kv->tree.n_in_tree + 1, "I8: ");
    BROKEN(kv->tree.tokens[nodes[0] * 4 + 1], 3, "I9: node");
    BROKEN(kv->tree.lru.head, nodes[0], "I1: the list of cached nodes");

    struct sl_request *reqs[] = {a, b, c};
    for (int i = 0; i < 3; i++)
        sl_request_release(reqs[i]);
    while (sl_engine_step(eng)) {
    }
    whole(&g);
    rig_stop(&g);
}

/* With steps in flight: pages of the tree that are not complete yet, tables that moved. */
static void steps_in_flight_are_watched(void **state)
{
    (void)state;
    struct rig g = {0};
    rig_late = true;
    start(&g);
    rig_late = false;
    struct sl_request *a = submit(&g, 1);
    for (int i = 0; i < 4; i++)
        sl_engine_step(g.eng);
    struct sl_engine *eng = g.eng;
    struct sl_seq *s = &a->seqs[0].seq;
    assert_int_equal(eng->n_flights, 1);
    struct sl_flight *f = &eng->flights[eng->first_flight];
    assert_ptr_equal(f->seqs[0].rs, &a->seqs[0]);
    whole(&g);
    BROKEN(f->seqs[0].n_picks, 0, "I7: sequence 1.0 waits for 1 tokens, steps in flight choose 0");
    BROKEN(f->seqs[0].pos, 30, "I8: ");
    BROKEN(f->tables[f->spans[0].table_idx + f->seqs[0].pos / 4], 7,
           "I10: a step in flight writes");
    BROKEN(s->n_pending, 0, "I7: ");
    sl_request_release(a);
    while (sl_engine_step(eng)) {
    }
    rig_stop(&g);
}

#ifndef SL_DEBUG
static char log_text[4096];

static ssize_t keep_log(int fd, const void *buf, size_t n)
{
    if (fd != STDERR_FILENO)
        return sl_sys_real.write(fd, buf, n);
    snprintf(log_text + strlen(log_text), sizeof log_text - strlen(log_text), "%.*s", (int)n,
             (const char *)buf);
    return (ssize_t)n;
}

static int32_t run_one(struct rig *g)
{
    static struct rig_out outs[1];
    memset(outs, 0, sizeof outs);
    struct sl_request *req = submit(g, 1);
    while (sl_engine_step(g->eng)) {
    }
    rig_read(req, outs);
    assert_true(sl_request_done(req));
    sl_request_release(req);
    return outs[0].finish == SL_FINISH_LENGTH ? outs[0].n : -1;
}

/* A block that nobody holds and nothing finds: the server goes on, without it if need be. */
static void a_lost_page_is_found_when_idle(void **state)
{
    (void)state;
    struct rig g = {0};
    struct sl_stats s;
    struct sl_sys sys = sl_sys_real;
    sys.write = keep_log;
    sl_sys = &sys;
    start(&g);
    assert_int_equal(run_one(&g), 20);
    int32_t node, page;
    struct sl_kv_blocks lost = {.nodes = &node, .pages = {&page}};
    assert_true(sl_kv_take(&g.eng->kv, &lost, SL_EVICT_PROMPT));
    assert_int_equal(run_one(&g), 20);
    assert_non_null(strstr(log_text, "I2: nothing runs, but of 64 nodes"));
    sl_engine_stats(g.eng, &s);
    assert_int_equal(s.invariant_violations, 1);
    assert_int_equal(s.n_pages_free, 64);
    assert_true(sl_engine_healthy(g.eng));
    whole(&g);
    assert_int_equal(run_one(&g), 20);
    sl_engine_stats(g.eng, &s);
    assert_int_equal(s.invariant_violations, 1);
    rig_stop(&g);
    sl_sys = &sl_sys_real;
}

/* What forgetting the cache does not mend ends the service, and says so. */
static void what_cannot_be_repaired_is_not_served(void **state)
{
    (void)state;
    struct rig g = {0};
    struct sl_sys sys = sl_sys_real;
    struct sl_error err;
    sys.write = keep_log;
    sl_sys = &sys;
    start(&g);
    assert_int_equal(run_one(&g), 20);
    g.eng->n_seqs_taken++;
    assert_int_equal(run_one(&g), 20);
    assert_int_equal(sl_engine_health(g.eng, &err), SL_EINTERNAL);
    assert_non_null(strstr(log_text, "the engine stops serving: I3: "));
    rig_stop(&g);
    sl_sys = &sl_sys_real;
}
#endif

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_invariant_is_named),
        cmocka_unit_test(steps_in_flight_are_watched),
#ifndef SL_DEBUG /* where the walk after every turn asserts */
        cmocka_unit_test(a_lost_page_is_found_when_idle),
        cmocka_unit_test(what_cannot_be_repaired_is_not_served),
#endif
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
