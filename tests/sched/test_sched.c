/* SPDX-License-Identifier: MIT
 * Tests of sched: the waiting queue against a sorted list, and one scenario per scheduling rule.
 * That the rules hold under random load is the simulator's part (tests/engine/test_sim.c).
 */
#include "base/check.h"
#include "base/rng.h"
#include "sched/sched.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

/* ------------------------------------------------------------------ waiting queue */

#define N_WAIT 64

static void waiting_queue_matches_a_sorted_list(void **state)
{
    (void)state;
    struct sl_rng r = {.seed = 3};
    static struct sl_seq seqs[N_WAIT];
    struct sl_wait w = {0};
    bool in[N_WAIT] = {false};
    int n = 0;
    for (int op = 0; op < 20000; op++) {
        int i = (int)sl_rng_below(&r, N_WAIT);
        if (!in[i]) {
            seqs[i] = (struct sl_seq){.priority = (int32_t)sl_rng_below(&r, 3) - 1,
                                      .arrival = sl_rng_below(&r, 10),
                                      .idx = i,
                                      .state = SL_SEQ_WAITING};
            sl_wait_push(&w, &seqs[i]);
            n++;
        } else {
            sl_wait_remove(&w, &seqs[i]);
            n--;
        }
        in[i] = !in[i];
        struct sl_seq *best = NULL;
        for (int j = 0; j < N_WAIT; j++)
            if (in[j] && (best == NULL || sl_seq_before(&seqs[j], best)))
                best = &seqs[j];
        assert_ptr_equal(sl_wait_best(&w), best);
        assert_int_equal(w.n, n);
        if (op % 16 == 0)
            assert_int_equal(sl_wait_check(&w, NULL), 0);
    }
}

/* ------------------------------------------------------------------ scenarios */

#define BLOCK 4
#define MAX   64

struct rig {
    struct sl_kv kv;
    struct sl_sched s;
    struct sl_kv_ns ns;
    struct item {
        struct sl_seq seq;
        int32_t prompt[MAX], out[MAX], nodes[MAX], pages[SL_MAX_KV_GROUPS][MAX];
    } items[8];
    int n;
};

static void rig_init_kv(struct rig *g, const struct sl_kv_config *kv, int32_t max_seqs,
                        int32_t max_tokens)
{
    memset(g, 0, sizeof *g);
    struct sl_sched_config cfg = {
        .max_seqs = max_seqs, .max_tokens = max_tokens, .max_logits = max_seqs + 2};
    assert_int_equal(sl_kv_init(&g->kv, kv, NULL), 0);
    assert_int_equal(sl_sched_init(&g->s, &cfg, &g->kv, NULL), 0);
}

static void rig_init(struct rig *g, int32_t n_pages, int32_t max_seqs, int32_t max_tokens)
{
    struct sl_kv_config kv = sl_kv_full(n_pages, BLOCK, true, 1);
    rig_init_kv(g, &kv, max_seqs, max_tokens);
}

static void check_all(struct rig *g)
{
    struct sl_error err;
    if (sl_sched_check(&g->s, &err) != 0)
        fail_msg("%s", err.msg);
}

static void rig_deinit(struct rig *g)
{
    for (int i = 0; i < g->n; i++)
        if (g->items[i].seq.state != SL_SEQ_FINISHED)
            sl_sched_finish(&g->s, &g->items[i].seq, false);
    check_all(g);
    assert_int_equal(sl_kv_n_available(&g->kv), g->kv.nodes.n_ids);
    sl_sched_deinit(&g->s);
    sl_kv_deinit(&g->kv);
}

/* tag: prompts with the same tag begin with the same tokens */
static struct sl_seq *add(struct rig *g, int32_t n_prompt, int32_t priority, int32_t tag)
{
    struct item *it = &g->items[g->n++];
    for (int32_t i = 0; i < n_prompt; i++)
        it->prompt[i] = tag * 1000 + i;
    it->seq = (struct sl_seq){.priority = priority,
                              .arrival = (uint64_t)g->n,
                              .prompt = it->prompt,
                              .n_prompt = n_prompt,
                              .max_out = (int32_t)sl_sched_limit(&g->s) - n_prompt,
                              .out = it->out,
                              .blocks = {.nodes = it->nodes},
                              .ns = &g->ns,
                              .publish = true};
    for (int k = 0; k < SL_MAX_KV_GROUPS; k++)
        it->seq.blocks.pages[k] = it->pages[k];
    sl_sched_add(&g->s, &it->seq);
    return &it->seq;
}

/* One step: what is computed to its end gets a token. */
static void step(struct rig *g)
{
    sl_sched_plan(&g->s);
    check_all(g);
    for (int32_t i = 0; i < g->s.n_plan; i++) {
        struct sl_seq *seq = g->s.plan[i];
        sl_sched_advance(&g->s, seq);
        sl_sched_publish(&g->s, seq, seq->n_computed);
        if (seq->n_computed == sl_seq_n_tokens(seq))
            seq->out[seq->n_out++] = 7;
    }
    check_all(g);
}

static void decodes_go_before_prompts_and_prompts_are_cut(void **state)
{
    (void)state;
    struct rig g;
    rig_init(&g, 32, 4, 10);
    struct sl_seq *a = add(&g, 3, 0, 1), *b = add(&g, 25, 0, 2), *c = add(&g, 5, 0, 3);
    sl_sched_plan(&g.s);
    assert_int_equal(a->n_step, 3);
    assert_int_equal(b->n_step, 7); /* what is left of the budget */
    assert_int_equal(c->state, SL_SEQ_WAITING);
    step(&g);
    assert_int_equal(a->n_out, 1);
    sl_sched_plan(&g.s);
    assert_int_equal(a->n_step, 1);
    assert_int_equal(b->n_step, 9);
    step(&g);
    step(&g); /* b: 7 + 9 + 9 = 25 */
    assert_int_equal(b->n_out, 1);
    sl_sched_plan(&g.s);
    assert_int_equal(c->n_step, 5);
    assert_ptr_equal(g.s.plan[0], a);
    rig_deinit(&g);
}

static void every_running_prompt_gets_a_token(void **state)
{
    (void)state;
    struct rig g;
    rig_init(&g, 60, 4, 12);
    struct sl_seq *a = add(&g, 4, 0, 1), *b = add(&g, 40, 0, 2), *c;
    step(&g); /* 4 + 8 */
    g.s.cfg.max_tokens = 40;
    c = add(&g, 60, 0, 3);
    step(&g); /* 1 + 32 + 7 */
    assert_int_equal(b->n_out, 1);
    assert_int_equal(c->n_computed, 7);
    struct sl_seq *d = add(&g, 40, -1, 4); /* better, but c is not starved by it */
    step(&g);
    assert_int_equal(c->n_computed, 45);
    g.s.cfg.max_tokens = 64;
    step(&g);
    g.s.cfg.max_tokens = 4;
    sl_sched_plan(&g.s);
    for (int32_t i = 0; i < g.s.n_running; i++)
        assert_true(g.s.running[i]->n_step >= 1);
    assert_int_equal(a->n_step, 1);
    assert_int_equal(d->state, SL_SEQ_RUNNING);
    rig_deinit(&g);
}

static void nobody_overtakes_the_head_of_the_line(void **state)
{
    (void)state;
    struct rig g;
    rig_init(&g, 8, 4, 64);
    struct sl_seq *a = add(&g, 16, 0, 1), *b = add(&g, 28, 0, 2), *c = add(&g, 2, 0, 3);
    step(&g);
    assert_int_equal(a->state, SL_SEQ_RUNNING);
    assert_int_equal(b->state, SL_SEQ_WAITING); /* 7 pages of 4 free */
    assert_int_equal(c->state, SL_SEQ_WAITING); /* would fit, but b came first */
    sl_sched_finish(&g.s, a, false);
    step(&g);
    assert_int_equal(b->state, SL_SEQ_RUNNING);
    rig_deinit(&g);
}

static void the_latest_of_the_worst_priority_is_preempted(void **state)
{
    (void)state;
    struct rig g;
    rig_init(&g, 6, 4, 64);
    struct sl_seq *a = add(&g, 4, 0, 1), *b = add(&g, 4, 0, 2), *c = add(&g, 4, 0, 3);
    step(&g); /* 3 pages; 3 are free, and each will soon need one more */
    assert_int_equal(g.s.n_running, 3);
    for (int i = 0; i < 4; i++)
        step(&g);
    assert_int_equal(g.s.n_preemptions, 0);
    step(&g); /* the third page each */
    assert_int_equal(c->state, SL_SEQ_WAITING);
    assert_int_equal(c->n_preempted, 1);
    assert_int_equal(c->n_out, 5); /* keeps its tokens */
    assert_int_equal(a->state, SL_SEQ_RUNNING);
    assert_int_equal(b->state, SL_SEQ_RUNNING);
    sl_sched_finish(&g.s, a, false);
    sl_sched_finish(&g.s, b, false);
    step(&g);
    assert_int_equal(c->state, SL_SEQ_RUNNING);
    assert_int_equal(c->n_out, 6);
    rig_deinit(&g);
}

static void a_better_priority_takes_a_seat(void **state)
{
    (void)state;
    struct rig g;
    rig_init(&g, 32, 2, 64);
    struct sl_seq *a = add(&g, 4, 5, 1), *b = add(&g, 4, 5, 2);
    step(&g);
    struct sl_seq *same = add(&g, 4, 5, 3), *better = add(&g, 4, -1, 4);
    step(&g);
    assert_int_equal(better->state, SL_SEQ_RUNNING);
    assert_int_equal(a->state, SL_SEQ_RUNNING);
    assert_int_equal(b->state, SL_SEQ_WAITING);
    assert_int_equal(same->state, SL_SEQ_WAITING);
    sl_sched_finish(&g.s, better, false);
    step(&g);
    assert_int_equal(b->state, SL_SEQ_RUNNING); /* before the one that came later */
    rig_deinit(&g);
}

static void a_cached_prompt_recomputes_its_last_page(void **state)
{
    (void)state;
    for (int32_t n = 11; n <= 13; n++) {
        struct rig g;
        rig_init(&g, 16, 4, 64);
        struct sl_seq *a = add(&g, n, 0, 1);
        step(&g);
        sl_sched_finish(&g.s, a, false);
        struct sl_seq *b = add(&g, n, 0, 1);
        sl_sched_plan(&g.s);
        int32_t hit = (n - 1) / BLOCK * BLOCK;
        assert_int_equal(b->n_cached, hit);
        assert_int_equal(b->n_step, n - hit);
        step(&g);
        assert_int_equal(b->n_published, n / BLOCK);
        /* Nothing is kept twice: 12 tokens are three pages, whoever computed them. */
        sl_sched_finish(&g.s, b, false);
        assert_int_equal(sl_kv_n_cached(&g.kv), n / BLOCK);
        rig_deinit(&g);
    }
}

static void wanted_rows_limit_the_chunk(void **state)
{
    (void)state;
    struct rig g;
    rig_init(&g, 32, 4, 64); /* 4 + 2 rows */
    struct sl_seq *a = add(&g, 20, 0, 1), *b = add(&g, 20, 0, 2), *c = add(&g, 20, 0, 3);
    a->all_logits = b->all_logits = true;
    sl_sched_plan(&g.s);
    assert_int_equal(a->n_step, 3);
    assert_int_equal(b->n_step, 1);
    assert_int_equal(c->n_step, 20);
    rig_deinit(&g);
}

static void why(const struct rig *g, const struct sl_seq *seq, const char *part)
{
    char text[200];
    sl_sched_why(&g->s, seq, text, sizeof text);
    if (strstr(text, part) == NULL)
        fail_msg("'%s' does not say '%s'", text, part);
}

static void who_waits_is_told_why(void **state)
{
    (void)state;
    struct rig g;
    rig_init(&g, 5, 2, 16);
    struct sl_seq *a = add(&g, 9, 0, 1), *b = add(&g, 8, 0, 2), *c = add(&g, 3, 0, 3);
    why(&g, a, "nothing");
    a->blocked_at = sl_sched_room(&g.s);
    why(&g, a, "nothing was given back since it did not fit");
    a->blocked_at = 0;
    sl_sched_requeue(&g.s, a, true); /* waits already */
    assert_int_equal(a->state, SL_SEQ_WAITING);
    a->waits = true;
    sl_sched_plan(&g.s); /* the first in line is held, and nobody overtakes it */
    assert_int_equal(g.s.n_plan, 0);
    a->waits = false;
    step(&g);
    assert_int_equal(b->state, SL_SEQ_WAITING);
    why(&g, b,
        "needs 2 blocks less what is cached, and 1 stay free for those that run; 2 can be had");
    why(&g, c, "behind sequence 2.0");
    sl_sched_finish(&g.s, b, false);
    step(&g);
    assert_int_equal(c->state, SL_SEQ_RUNNING);
    struct sl_seq *d = add(&g, 1, 0, 4);
    step(&g);
    why(&g, d, "all 2 seats are taken");
    d->waits = true;
    why(&g, d, "or what may follow it, is not known");
    d->waits = false;
    rig_deinit(&g);
}

/* ------------------------------------------------------------------ windows */

enum { LONG = 32768, CHUNK = 512, WINDOW = 1024, PAGE = 16 };

static int32_t owned(const struct sl_kv *kv, int32_t group)
{
    const struct sl_id_pool *p = &kv->groups[group].pool;
    return p->n_ids - p->n_free - sl_kv_n_cached_pages(kv, group);
}

/* A context of 32k tokens: windowed layers hold the window and the chunks under way, and once it is
 * computed the window alone; a prompt that repeats it is found to its end. */
static void a_long_context_holds_its_window(void **state)
{
    (void)state;
    struct rig g;
    static int32_t tokens[LONG + 1], nodes[LONG / PAGE], pages[2][LONG / PAGE];
    struct sl_kv_config kv = sl_kv_full(2 * LONG / PAGE, PAGE, true, 1);
    kv.groups[kv.n_groups++] = (struct sl_kv_group_config){
        .kind = SL_GROUP_WINDOW, .window = WINDOW, .n_pages = 2 * (WINDOW + 2 * CHUNK) / PAGE};
    for (int32_t i = 0; i <= LONG; i++)
        tokens[i] = i;
    rig_init_kv(&g, &kv, 2, CHUNK);
    struct sl_seq seq = {.prompt = tokens,
                         .n_prompt = LONG - 16,
                         .max_out = 8,
                         .out = tokens + LONG - 16,
                         .blocks = {.nodes = nodes, .pages = {pages[0], pages[1]}},
                         .ns = &g.ns,
                         .publish = true};
    int32_t most = 0;
    sl_sched_add(&g.s, &seq);
    for (int n = 0; seq.n_out < 4; n++) {
        assert_true(n < 2 * LONG / CHUNK);
        step(&g);
        most = SL_MAX(most, owned(&g.kv, 1));
    }
    assert_int_equal(owned(&g.kv, 0), LONG / PAGE);
    assert_true(owned(&g.kv, 1) <= WINDOW / PAGE + 1);
    assert_true(most <= (WINDOW + CHUNK) / PAGE + 1);
    sl_sched_finish(&g.s, &seq, false);
    seq = (struct sl_seq){.arrival = 1,
                          .prompt = tokens,
                          .n_prompt = LONG - 16,
                          .max_out = 8,
                          .out = tokens + LONG - 16,
                          .blocks = {.nodes = nodes, .pages = {pages[0], pages[1]}},
                          .ns = &g.ns,
                          .publish = true};
    sl_sched_add(&g.s, &seq);
    sl_sched_plan(&g.s);
    assert_int_equal(seq.n_cached, LONG - 32); /* all but the block whose logits are wanted */
    sl_sched_finish(&g.s, &seq, false);
    rig_deinit(&g);
}

/* Two sequences want more pages than there are: the second one waits, and is told why. */
static void windows_are_not_overbooked(void **state)
{
    (void)state;
    struct rig g;
    struct sl_kv_config kv = sl_kv_full(32, BLOCK, true, 1);
    kv.groups[kv.n_groups++] =
        (struct sl_kv_group_config){.kind = SL_GROUP_WINDOW, .window = 8, .n_pages = 5};
    rig_init_kv(&g, &kv, 4, 64);
    struct sl_seq *a = add(&g, 30, 0, 1), *b = add(&g, 30, 0, 2);
    step(&g);
    assert_int_equal(a->state, SL_SEQ_RUNNING);
    assert_int_equal(a->n_computed, 16); /* one page stays for the next token */
    assert_int_equal(b->state, SL_SEQ_WAITING);
    why(&g, b, "pages of windowed or recurrent layers are short beside 1 sequences");
    for (int i = 0; i < 8; i++)
        step(&g);
    assert_true(a->n_out > 4);
    assert_int_equal(g.s.n_preemptions, 0);
    sl_sched_finish(&g.s, a, false);
    step(&g);
    assert_int_equal(b->state, SL_SEQ_RUNNING);
    rig_deinit(&g);
}

/* ------------------------------------------------------------------ invariants */

static void names(struct rig *g, const char *what)
{
    struct sl_error err = {.msg = "nothing"};
    assert_int_equal(sl_sched_check(&g->s, &err), SL_EINTERNAL);
    if (strstr(err.msg, what) == NULL)
        fail_msg("'%s' does not say '%s'", err.msg, what);
}

/* Puts a wrong value, looks, and puts the right one back. */
#define BROKEN(lvalue, wrong, what)    \
    do {                               \
        __auto_type right_ = (lvalue); \
        (lvalue) = (wrong);            \
        names(&g, what);               \
        (lvalue) = right_;             \
        check_all(&g);                 \
    } while (0)

static void what_runs_is_watched(void **state)
{
    (void)state;
    struct rig g;
    rig_init(&g, 16, 2, 64);
    struct sl_seq *a = add(&g, 10, 0, 1), *b = add(&g, 9, 0, 2);
    step(&g);
    assert_int_equal(a->n_published, 2);
    assert_int_equal(a->blocks.n, 3);
    assert_int_equal(a->n_computed, 10);
    BROKEN(g.s.n_running, -1, "I6: -1 sequences run on 2 seats");
    BROKEN(g.s.n_running, 3, "I6: 3 sequences run on 2 seats");
    BROKEN(a->state, SL_SEQ_FINISHED, "I6: running sequence 1.0 is in state");
    BROKEN(a->n_computed, 11, "I7: sequence 1.0 computed 11 tokens of 11");
    BROKEN(a->blocks.n, 2, "I1: sequence 1.0 has 2 blocks of 4 for 11 tokens, 10 computed");
    BROKEN(a->blocks.n, 4, "I1: sequence 1.0 has 4 blocks of 4");
    BROKEN(a->max_out, 0, "I5: sequence 1.0 has 1 + 0 tokens of at most 0");
    BROKEN(a->n_computed, 7, "I8: 2 blocks of sequence 1.0 are published, 7 tokens computed");
    BROKEN(a->n_published, 1, "in the tree: 1");
    BROKEN(a->blocks.nodes[0], -1, "I1: sequence 1.0 names node -1 of 16");
    BROKEN(a->blocks.nodes[2], 16, "I1: sequence 1.0 names node 16 of 16");
    BROKEN(g.kv.tree.nodes[a->blocks.nodes[0]].parent, 5, "hangs below node 5, not -1");
    BROKEN(g.kv.tree.nodes[a->blocks.nodes[1]].parent, 9, "hangs below node 9, not");
    BROKEN(g.kv.tree.tokens[a->blocks.nodes[1] * BLOCK + 1], 3, "holds token 3 at position 5");
    BROKEN(b->arrival, 0, "I6: running sequence 0.0 is out of order");
    BROKEN(g.kv.nodes.refs[a->blocks.nodes[2]], 2, "has 2 owners, 1 sequences hold it");
    BROKEN(g.kv.groups[0].pool.refs[a->blocks.pages[0][2]], 2, "has 2 owners, its node");
    BROKEN(a->blocks.pages[0][1], 0, "names page 0 of group 0 for block 1 of 0 to 3");
    BROKEN(a->blocks.end[0], 2, "has pages of group 0 for blocks 0 to 2");
    BROKEN(a->blocks.first[0], 1, "has pages of group 0 for blocks 1 to 3");

    int32_t published = a->n_published, n_blocks = a->blocks.n; /* more published than there are */
    a->blocks.n = 1;
    a->n_computed = 4;
    names(&g, "I8: 2 blocks of sequence 1.0 are published, 4 tokens computed");
    a->blocks.n = n_blocks;
    a->n_computed = 10;
    a->n_published = published;
    a->n_out = 2; /* fewer than none are on the way */
    a->n_pending = -1;
    names(&g, "I5: sequence 1.0 has 2 + -1 tokens");
    a->n_out = 1;
    a->n_pending = 0;
    rig_deinit(&g);
}

static void what_waits_is_watched(void **state)
{
    (void)state;
    struct rig g;
    rig_init(&g, 8, 1, 64);
    struct sl_seq *w[3];
    (void)add(&g, 10, 0, 1);
    step(&g);
    for (int i = 0; i < 3; i++)
        w[i] = add(&g, 3, 0, 2 + i);
    assert_int_equal(g.s.wait.n, 3);
    assert_ptr_equal(g.s.wait.root, w[0]);
    struct sl_seq *child = w[0]->heap_child; /* the other two hang below the first, side by side */
    assert_non_null(child);
    assert_non_null(child->heap_next);
    BROKEN(g.s.wait.n, 2, "I6: member 3 of a queue of 2");
    BROKEN(g.s.wait.n, 4, "I6: 3 members in a queue of 4");
    BROKEN(w[0]->state, SL_SEQ_RUNNING, "I6: member 1 of a queue of 3 is in state");
    BROKEN(w[0]->arrival, 99, "I6: the queue is out of order at member 1 of 3");
    BROKEN(child->heap_prev, NULL, "I6: the queue is out of order at member 1");
    BROKEN(child->heap_next->heap_prev, NULL, "I6: the queue is out of order at member 2");
    BROKEN(w[0]->max_out, 30, "I6: sequence 2.0 may need 33 tokens, the empty cache holds 32");
    BROKEN(w[0]->blocks.n, 1, "holds 1 blocks (0 published, 0 tokens computed)");
    BROKEN(w[0]->n_published, 1, "holds 0 blocks (1 published, 0 tokens computed)");
    BROKEN(w[0]->n_computed, 1, "holds 0 blocks (0 published, 1 tokens computed)");
    rig_deinit(&g);
}

static void the_largest_sequence_runs_alone(void **state)
{
    (void)state;
    struct rig g;
    rig_init(&g, 5, 4, 16);
    struct sl_seq *small = add(&g, 2, 0, 2), *big = add(&g, 18, 0, 1);
    assert_int_equal(sl_sched_limit(&g.s), 20);
    for (int i = 0; i < 6; i++)
        step(&g);
    assert_int_equal(big->state, SL_SEQ_WAITING); /* the pool is its own, once it is free */
    sl_sched_finish(&g.s, small, false);
    for (int i = 0; i < 3; i++)
        step(&g);
    assert_int_equal(sl_seq_n_tokens(big), 20);
    assert_int_equal(big->blocks.n, 5);
    rig_deinit(&g);
}

/* A step of whatever group has its turn begins: its sequences' next tokens are pending. Returns the
 * group, -1: nothing was planned. */
static int32_t launch(struct rig *g)
{
    sl_sched_plan(&g->s);
    check_all(g);
    for (int32_t i = 0; i < g->s.n_plan; i++) {
        struct sl_seq *seq = g->s.plan[i];
        assert_int_equal(seq->group, g->s.group);
        sl_sched_advance(&g->s, seq);
        seq->n_pending++;
        seq->pending_slot = g->s.group;
    }
    g->s.n_in_flight[g->s.group] += g->s.n_plan > 0;
    return g->s.n_plan > 0 ? g->s.group : -1;
}

/* The oldest step of a group has landed. */
static void land(struct rig *g, int32_t group)
{
    g->s.n_in_flight[group]--;
    for (int i = 0; i < g->n; i++) {
        struct sl_seq *seq = &g->items[i].seq;
        if (seq->n_pending == 0 || seq->pending_slot != group)
            continue;
        seq->n_pending--;
        seq->out[seq->n_out++] = 7;
    }
}

static void groups_take_turns(void **state)
{
    (void)state;
    struct rig g;
    rig_init(&g, 32, 8, 32);
    g.s.cfg.n_groups = 2;
    for (int32_t i = 0; i < 6; i++)
        add(&g, 3, 0, i);
    assert_int_equal(launch(&g), 1);
    assert_int_equal(g.s.n_plan, 3); /* its share */
    assert_int_equal(launch(&g), 0);
    assert_int_equal(g.s.n_plan, 3);
    assert_int_equal(launch(&g), 1); /* with tokens that are pending */
    assert_int_equal(launch(&g), 0);
    assert_int_equal(launch(&g), -1); /* each has two steps in flight */
    land(&g, 1);
    assert_int_equal(launch(&g), 1);
    land(&g, 1);
    land(&g, 0);
    land(&g, 0);
    assert_int_equal(launch(&g), 0);
    rig_deinit(&g);
}

/* One group has lost all its members: some of the other's go there, each when its token is known.
 */
static void groups_are_evened_out(void **state)
{
    (void)state;
    struct rig g;
    rig_init(&g, 32, 8, 32);
    g.s.cfg.n_groups = 2;
    for (int32_t i = 0; i < 6; i++)
        add(&g, 3, 0, i);
    assert_int_equal(launch(&g), 1);
    assert_int_equal(launch(&g), 0);
    for (int i = 0; i < 6; i++)
        if (g.items[i].seq.group == 0)
            sl_sched_finish(&g.s, &g.items[i].seq, false);
    g.s.n_in_flight[0] = 0;
    assert_int_equal(g.s.n_members[0], 0);
    assert_int_equal(launch(&g), 1);
    assert_int_equal(g.s.n_plan, 2); /* the third has changed sides, and its token is pending */
    assert_int_equal(g.s.n_members[0], 1);
    assert_int_equal(launch(&g), -1);
    land(&g, 1); /* its token, and those of the first step */
    assert_int_equal(launch(&g), 0);
    assert_int_equal(g.s.n_plan, 1);
    rig_deinit(&g);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(waiting_queue_matches_a_sorted_list),
        cmocka_unit_test(decodes_go_before_prompts_and_prompts_are_cut),
        cmocka_unit_test(every_running_prompt_gets_a_token),
        cmocka_unit_test(nobody_overtakes_the_head_of_the_line),
        cmocka_unit_test(the_latest_of_the_worst_priority_is_preempted),
        cmocka_unit_test(a_better_priority_takes_a_seat),
        cmocka_unit_test(a_cached_prompt_recomputes_its_last_page),
        cmocka_unit_test(wanted_rows_limit_the_chunk),
        cmocka_unit_test(who_waits_is_told_why),
        cmocka_unit_test(what_runs_is_watched),
        cmocka_unit_test(what_waits_is_watched),
        cmocka_unit_test(the_largest_sequence_runs_alone),
        cmocka_unit_test(a_long_context_holds_its_window),
        cmocka_unit_test(windows_are_not_overbooked),
        cmocka_unit_test(groups_take_turns),
        cmocka_unit_test(groups_are_evened_out),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
