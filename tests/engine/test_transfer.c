/* SPDX-License-Identifier: MIT
 * Pages between two engines, one of which computes prompts for the other: with full, windowed,
 * recurrent and latent layers, the tokens are those that the model gives alone, and what the first
 * one has is not computed again.
 */
#include "engine/tier_world.h"

#include "base/log.h"

#include <unistd.h>

struct pair {
    struct world p, d;
};

static void start(struct world *w, int32_t few_pages, bool first)
{
    struct sl_error err;
    struct sl_engine_parts parts;
    world_parts(w, few_pages, &parts);
    parts.tiers.transfer.serves = first;
    parts.tiers.transfer.asks = !first;
    assert_int_equal(sl_netlist_read(NULL, "peers", &parts.tiers.transfer.peers, &err), 0);
    world_runner(w, &parts.runner);
    if (sl_engine_start(&parts, &w->eng, &err) != 0)
        fail_msg("%s", err.msg);
}

static void open_one(struct world *w, const char *model, int32_t few_pages, bool first)
{
    char path[128];
    memset(w, 0, sizeof *w);
    snprintf(path, sizeof path, "tests/golden/models/%s", model);
    rig_open(&w->rig, path, &(struct rig_options){.n_pages = N_BLOCKS});
    sl_kv_pools(&w->rig.kv, w->rig.pool, w->rig.n_pages, w->pools);
    make_prompts(w);
    start(w, few_pages, first);
}

static void close_one(struct world *w)
{
    struct sl_stats s;
    sl_engine_stats(w->eng, &s);
    assert_int_equal(s.step_mallocs, 0);
    assert_int_equal(s.invariant_violations, 0);
    sl_engine_destroy(w->eng);
    sl_host_runner_destroy(w->host);
    rig_close(&w->rig);
}

static struct sl_request *submit(struct world *w, const struct prompt *p, int32_t n_out,
                                 const struct sl_kv_transfer *t)
{
    struct sl_error err;
    struct sl_request *req = NULL;
    struct sl_request_desc desc = {.prompt = p->ids, .n_prompt = p->n, .transfer = t};
    sl_sampling_default(&desc.sampling);
    desc.sampling.max_tokens = n_out;
    desc.sampling.temperature = 0;
    if (sl_request_submit(w->eng, &desc, &req, &err) != 0)
        fail_msg("%s", err.msg);
    return req;
}

/* To its end, while threads bring pages. Returns the tokens of the prompt that were not computed.
 */
static int32_t finish(struct world *w, struct sl_request *req, const struct prompt *p,
                      int32_t n_out, const char *what)
{
    const uint64_t end = sl_now_ns() + 40 * UINT64_C(1000000000);
    struct sl_chunk c;
    struct sl_usage u;
    int32_t n = 0;
    while (!sl_request_done(req)) {
        (void)sl_engine_step(w->eng);
        while (sl_request_read(req, &c))
            for (size_t i = 0; i < c.n_tokens; i++, n++)
                if (c.tokens[i].id != p->want[n])
                    fail_msg("%s: token %d behind %d is %d, not %d", what, n, p->n, c.tokens[i].id,
                             p->want[n]);
        assert_true(sl_now_ns() < end);
        usleep(20);
    }
    assert_int_equal(n, n_out);
    sl_request_usage(req, &u);
    return u.n_cached;
}

static struct sl_kv_transfer from(struct world *p, const struct sl_request *req)
{
    struct sl_kv_transfer t = {.host = "127.0.0.1", .port = sl_engine_transfer(p->eng)->port};
    assert_true(sl_request_offer(req, t.id) > 0);
    return t;
}

/* Prompt i by both; returns how many of its tokens the second one did not compute. */
static int32_t both(struct pair *t, int i, const char *what)
{
    const struct sl_kv_transfer offer = {.host = NULL};
    const struct prompt *p = &t->p.prompts[i];
    struct sl_request *first = submit(&t->p, p, 1, &offer);
    finish(&t->p, first, p, 1, what);
    const struct sl_kv_transfer there = from(&t->p, first);
    while (sl_engine_step(t->p.eng)) /* stores what there is */
        usleep(20);
    sl_kv_clear(&t->d.eng->kv);
    struct sl_request *second = submit(&t->d, p, N_OUT, &there);
    const int32_t n = finish(&t->d, second, p, N_OUT, what);
    sl_request_release(first);
    sl_request_release(second);
    return n;
}

static void one_computes_for_the_other(void **state)
{
    static struct pair t;
    char what[96];
    (void)state;
    for (size_t i = 0; i < SL_COUNT(models); i++) {
        snprintf(what, sizeof what, "%s, %d pages", models[i].name, models[i].few_pages);
        open_one(&t.p, models[i].name, models[i].few_pages, true);
        open_one(&t.d, models[i].name, models[i].few_pages, false);
        for (int k = 0; k < N_PROMPTS; k++) {
            const int32_t n = both(&t, k, what), all = (t.p.prompts[k].n - 1) / BLOCK * BLOCK;
            if (n != all)
                fail_msg("%s: of %d tokens %d came", what, all, n);
        }
        close_one(&t.p);
        close_one(&t.d);
    }
}

/* In a room both begin at once; the second one waits for what the first one computes. */
static void both_begin_at_once(void **state)
{
    static struct pair t;
    (void)state;
    for (size_t i = 0; i < SL_COUNT(models); i++) {
        open_one(&t.p, models[i].name, models[i].few_pages, true);
        open_one(&t.d, models[i].name, models[i].few_pages, false);
        for (int k = 1; k < N_PROMPTS; k += 3) {
            const struct prompt *p = &t.p.prompts[k];
            const struct sl_kv_transfer room = {.is_room = true, .id = {(uint64_t)k, 0}};
            struct sl_kv_transfer there = room;
            there.host = "127.0.0.1";
            there.port = sl_engine_transfer(t.p.eng)->port;
            struct sl_request *second = submit(&t.d, p, N_OUT, &there);
            for (int n = 0; n < 20; n++)
                (void)sl_engine_step(t.d.eng);
            assert_false(sl_request_done(second));
            struct sl_request *first = submit(&t.p, p, 1, &room);
            finish(&t.p, first, p, 1, models[i].name);
            while (sl_engine_step(t.p.eng))
                usleep(20);
            const int32_t n = finish(&t.d, second, p, N_OUT, models[i].name);
            assert_int_equal(n, (p->n - 1) / BLOCK * BLOCK);
            sl_request_release(first);
            sl_request_release(second);
        }
        close_one(&t.p);
        close_one(&t.d);
    }
}

/* In every stage either is cancelled, or the first one ends. */
static void either_may_end(void **state)
{
    static struct pair t;
    (void)state;
    for (int k = 0; k < 12; k++) {
        const int m = k % 3 == 0 ? 0 : k % 3 == 1 ? 2 : 4;
        const struct sl_kv_transfer room = {.is_room = true, .id = {77, 0}};
        struct sl_kv_transfer there = room;
        open_one(&t.p, models[m].name, models[m].few_pages, true);
        open_one(&t.d, models[m].name, models[m].few_pages, false);
        const struct prompt *p = &t.p.prompts[7];
        there.host = "127.0.0.1";
        there.port = sl_engine_transfer(t.p.eng)->port;
        struct sl_request *first = submit(&t.p, p, 1, &room);
        struct sl_request *second = submit(&t.d, p, N_OUT, &there);
        for (int n = 0; n < k; n++) {
            (void)sl_engine_step(t.p.eng);
            (void)sl_engine_step(t.d.eng);
            usleep(300);
        }
        sl_request_release(first);
        if (k % 2 == 0) {
            close_one(&t.p);
            (void)finish(&t.d, second, &t.d.prompts[7], N_OUT, models[m].name);
        }
        sl_request_release(second);
        while (sl_engine_step(t.d.eng))
            usleep(20);
        close_one(&t.d);
        if (k % 2 != 0)
            close_one(&t.p);
    }
}

int main(void)
{
    sl_log_set_level(SL_LOG_ERROR);
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(one_computes_for_the_other),
        cmocka_unit_test(both_begin_at_once),
        cmocka_unit_test(either_may_end),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
