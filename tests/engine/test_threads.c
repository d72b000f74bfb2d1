/* SPDX-License-Identifier: MIT
 * Tests of the engine thread: many threads submit, read, wait, cancel and release at once. Every
 * sequence must end exactly once with the right tokens; under the thread sanitizer this is also the
 * proof that the hand-over between engine and readers is free of races.
 */
#include "engine_rig.h"

#include "base/rng.h"
#include "engine/core.h"

#include <poll.h>
#include <pthread.h>
#include <stdlib.h>
#include <time.h>

#define N_CLIENTS  4
#define N_REQUESTS 120
#define N_OPEN     10

static const int32_t prompt[] = {1, 2, 3, 4, 1, 2, 3, 4, 1, 2};

struct client {
    pthread_t thread;
    struct rig *rig;
    uint64_t seed;
    int n_tokens, n_aborted, n_refused;
};

static struct sl_request_desc random_desc(struct sl_rng *r)
{
    static const char *const stops[] = {"xxxxxxxxxxxxx"};
    struct sl_request_desc d = {.prompt = prompt, .n_prompt = 1 + (int32_t)sl_rng_below(r, 10)};
    sl_sampling_default(&d.sampling);
    d.sampling.temperature = 0.0f;
    d.sampling.max_tokens = 1 + (int32_t)sl_rng_below(r, 12);
    d.sampling.n = sl_rng_below(r, 5) == 0 ? 3 : 1;
    d.sampling.logprobs = sl_rng_below(r, 4) == 0 ? 1 : -1;
    d.sampling.stop = stops;
    d.sampling.n_stop = sl_rng_below(r, 3) == 0;
    return d;
}

/* cmocka can only fail its own thread. */
#define CHECK(cond)                                                                  \
    do {                                                                             \
        if (!(cond)) {                                                               \
            fprintf(stderr, "%s:%d: check failed: %s\n", __FILE__, __LINE__, #cond); \
            abort();                                                                 \
        }                                                                            \
    } while (0)

struct open_request {
    struct sl_request *req;
    struct sl_request_desc desc;
    int n_ends, n_tokens;
    size_t n_text;
    bool cancelled;
};

/* Reads what is there. True: done, and released. */
static bool read_some(struct client *c, struct open_request *o)
{
    struct sl_chunk chunk;
    while (sl_request_read(o->req, &chunk)) {
        for (size_t i = 0; i < chunk.n_tokens; i++)
            CHECK(chunk.tokens[i].id == T_X);
        o->n_tokens += (int)chunk.n_tokens;
        o->n_text += chunk.n_text;
        o->n_ends += chunk.finish != SL_RUNNING;
        c->n_aborted += chunk.finish == SL_FINISH_ABORT;
        CHECK(o->cancelled || chunk.finish != SL_FINISH_ABORT);
    }
    if (!sl_request_done(o->req))
        return false;
    CHECK(o->n_ends == o->desc.sampling.n);
    if (!o->cancelled) {
        struct sl_usage u;
        sl_request_usage(o->req, &u);
        CHECK(o->n_tokens == o->desc.sampling.n * o->desc.sampling.max_tokens);
        CHECK(o->n_text == (size_t)o->n_tokens);
        CHECK(u.n_output == o->n_tokens);
        CHECK(u.t_submit_ns <= u.t_scheduled_ns && u.t_first_ns <= u.t_last_ns);
    }
    c->n_tokens += o->n_tokens;
    sl_request_release(o->req);
    o->req = NULL;
    return true;
}

static bool submit_into(struct client *c, struct open_request *o, struct sl_rng *r,
                        struct sl_outbox *box)
{
    *o = (struct open_request){.desc = random_desc(r)};
    o->desc.outbox = box;
    o->desc.user = o;
    struct sl_error err;
    int rc = sl_request_submit(c->rig->eng, &o->desc, &o->req, &err);
    CHECK(rc == 0 || rc == SL_EBUSY);
    c->n_refused += rc != 0;
    if (rc != 0)
        o->req = NULL;
    else if (sl_rng_below(r, 6) == 0) {
        o->cancelled = true;
        sl_request_cancel(o->req);
    }
    return rc == 0;
}

/* One event loop over an outbox, as an HTTP thread has it. */
static void *outbox_client(void *arg)
{
    struct client *c = arg;
    struct sl_rng r = {.seed = c->seed};
    struct open_request open[N_OPEN] = {{0}};
    struct sl_outbox *box;
    struct sl_error err;
    CHECK(sl_outbox_create(&box, &err) == 0);
    int n_sent = 0, n_open = 0;
    while (n_sent < N_REQUESTS || n_open > 0) {
        for (int i = 0; i < N_OPEN && n_sent < N_REQUESTS; i++)
            if (open[i].req == NULL && ++n_sent)
                n_open += submit_into(c, &open[i], &r, box);
        struct pollfd p = {.fd = sl_outbox_fd(box), .events = POLLIN};
        if (n_open > 0)
            poll(&p, 1, 10000);
        for (struct sl_request *req; (req = sl_outbox_next(box)) != NULL;) {
            struct open_request *o = sl_request_user(req);
            if (o->req == NULL) /* told before submit returned */
                o->req = req;
            n_open -= read_some(c, o);
        }
        int at = (int)sl_rng_below(&r, N_OPEN * 8);
        if (at < N_OPEN && open[at].req != NULL) { /* leaves without a word */
            sl_request_release(open[at].req);
            open[at].req = NULL;
            n_open--;
        }
    }
    sl_outbox_destroy(box);
    return NULL;
}

/* One request after the other, as a command-line tool reads. */
static void *waiting_client(void *arg)
{
    struct client *c = arg;
    struct sl_rng r = {.seed = c->seed};
    for (int i = 0; i < N_REQUESTS; i++) {
        struct open_request o;
        if (!submit_into(c, &o, &r, NULL))
            continue;
        while (!read_some(c, &o))
            sl_request_wait(o.req, i % 2 ? -1 : 10000);
    }
    return NULL;
}

static void many_threads_share_the_engine(void **state)
{
    (void)state;
    struct rig g = {0};
    static struct client clients[N_CLIENTS];
    struct sl_engine_parts p = {.info = {.n_pages = 24, .max_num_seqs = 5}, .max_queued = 30};
    rig_start(&g, &p);
    for (int32_t i = 0; i <= RIG_LEN; i++)
        g.script[i] = T_X;
    for (int i = 0; i < N_CLIENTS; i++) {
        clients[i] = (struct client){.rig = &g, .seed = (uint64_t)i + 1};
        assert_int_equal(pthread_create(&clients[i].thread, NULL,
                                        i % 2 ? waiting_client : outbox_client, &clients[i]),
                         0);
    }
    for (int i = 0; i < 20; i++) { /* a scrape meanwhile */
        struct sl_stats s;
        sl_engine_stats(g.eng, &s);
        assert_true(s.n_pages_free + s.n_pages_cached <= s.n_pages);
        assert_true(sl_engine_healthy(g.eng));
        poll(NULL, 0, 1);
    }
    int n_tokens = 0, n_refused = 0;
    for (int i = 0; i < N_CLIENTS; i++) {
        pthread_join(clients[i].thread, NULL);
        n_tokens += clients[i].n_tokens;
        n_refused += clients[i].n_refused;
    }
    struct sl_stats s;
    for (int i = 0; i < 2000; i++) { /* what was released early may still be on its way */
        sl_engine_stats(g.eng, &s);
        if (s.n_running + s.n_waiting == 0)
            break;
        poll(NULL, 0, 1);
    }
    assert_int_equal(s.n_running + s.n_waiting, 0);
    assert_int_equal(s.n_pages_free + s.n_pages_cached, s.n_pages);
    assert_int_equal(s.step_mallocs, 0);
    assert_true(n_tokens > 0 && (uint64_t)n_tokens <= s.generation_tokens);
    assert_true(n_refused < N_CLIENTS * N_REQUESTS);
    rig_stop(&g);
}

static void an_idle_engine_costs_nothing(void **state)
{
    (void)state;
    struct rig g = {0};
    struct sl_engine_parts p = {.seed = 1};
    rig_start(&g, &p);
    for (int32_t i = 0; i <= RIG_LEN; i++)
        g.script[i] = T_X;
    struct client c = {.rig = &g, .seed = 5};
    waiting_client(&c);
    struct timespec before, after;
    clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &before);
    poll(NULL, 0, 300);
    clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &after);
    double ms = (double)(after.tv_sec - before.tv_sec) * 1e3 +
                (double)(after.tv_nsec - before.tv_nsec) * 1e-6;
    assert_true(ms < 30.0);
    assert_true(sl_engine_healthy(g.eng));
    rig_stop(&g);
}

static void destroy_ends_what_is_left(void **state)
{
    (void)state;
    for (int round = 0; round < 20; round++) {
        struct rig g = {0};
        struct sl_engine_parts p = {.seed = 1};
        struct sl_request *reqs[12];
        struct sl_error err;
        struct sl_rng r = {.seed = (uint64_t)round};
        rig_start(&g, &p);
        for (int32_t i = 0; i <= RIG_LEN; i++)
            g.script[i] = T_X;
        for (int i = 0; i < 12; i++) {
            struct sl_request_desc d = random_desc(&r);
            d.sampling.max_tokens = 0;
            assert_int_equal(sl_request_submit(g.eng, &d, &reqs[i], &err), 0);
        }
        for (int i = 0; i < 12; i += 3)
            sl_request_cancel(reqs[i]);
        rig_stop(&g);
        for (int i = 0; i < 12; i++)
            sl_request_release(reqs[i]);
    }
}

static void waiting_ends_in_time(void **state)
{
    (void)state;
    struct rig g = {0};
    struct sl_engine_parts p = {.no_thread = true};
    rig_start(&g, &p);
    struct client c = {.rig = &g, .seed = 5};
    struct open_request o;
    struct sl_rng r = {.seed = 3};
    assert_true(submit_into(&c, &o, &r, NULL));
    uint64_t t = sl_now_ns();
    sl_request_wait(o.req, 0);
    sl_request_wait(o.req, 30);
    t = sl_now_ns() - t;
    assert_true(t > 25000000 && t < 5000000000u);
    sl_request_release(o.req);
    rig_stop(&g);
}

struct listener {
    int n_texts, stop_at, n_behind;
};

static int listen_to(void *arg, const char *text, size_t n_text)
{
    struct listener *l = arg;
    (void)text;
    l->n_behind += l->n_texts >= l->stop_at;
    l->n_texts += n_text > 0;
    return l->n_texts >= l->stop_at;
}

/* The engine runs on until it hears of it, so tokens come behind the end as often as not. */
static void who_stops_hears_no_more(void **state)
{
    (void)state;
    struct rig g = {0};
    struct sl_engine_parts p = {.seed = 1};
    struct sl_sampling sampling;
    struct sl_error err;
    rig_start(&g, &p);
    rig_script(&g, 3, NULL, 0);
    sl_sampling_default(&sampling);
    sampling.temperature = 0.0f;
    for (int i = 0; i < 300; i++) {
        struct listener l = {.stop_at = 1 + i % 3};
        struct sl_generate_desc d = {
            .prompt = "abc", .n_prompt = 3, .sampling = &sampling, .on_text = listen_to, .arg = &l};
        enum sl_finish finish = SL_RUNNING;
        sampling.max_tokens = i % 2 == 0 ? 400 : l.stop_at; /* also with the last text there is */
        if (sl_generate(g.eng, &d, &finish, NULL, &err) != 0)
            fail_msg("generate: %s", err.msg);
        assert_int_equal(l.n_behind, 0);
        assert_int_equal(finish, l.n_texts == l.stop_at ? SL_FINISH_ABORT : SL_FINISH_LENGTH);
    }
    rig_stop(&g);
}

static int stop_and_break(void *arg, const char *text, size_t n_text)
{
    struct rig *g = arg;
    (void)text;
    if (n_text == 0)
        return 0;
    atomic_store(&g->fail_step, atomic_load(&g->n_steps) + 1);
    return 1;
}

/* A step that fails before the engine hears of it is nothing to who has stopped. */
static void who_stops_hears_of_no_failure(void **state)
{
    (void)state;
    struct rig g = {.fail_code = SL_ENOMEM};
    struct sl_engine_parts p = {.seed = 1};
    struct sl_sampling sampling;
    struct sl_error err;
    rig_start(&g, &p);
    rig_script(&g, 3, NULL, 0);
    sl_sampling_default(&sampling);
    sampling.temperature = 0.0f;
    struct sl_generate_desc d = {.prompt = "abc",
                                 .n_prompt = 3,
                                 .sampling = &sampling,
                                 .on_text = stop_and_break,
                                 .arg = &g};
    for (int i = 0; i < 20; i++) {
        enum sl_finish finish = SL_RUNNING;
        atomic_store(&g.fail_step, 0);
        if (sl_generate(g.eng, &d, &finish, NULL, &err) != 0)
            fail_msg("generate: %s", err.msg);
        assert_int_equal(finish, SL_FINISH_ABORT);
    }
    rig_stop(&g);
}

static atomic_bool in_step, may_go_on;

static int gated_step(void *ctx, const struct sl_batch *b, const float **logits,
                      struct sl_error *err)
{
    atomic_store(&in_step, true);
    while (!atomic_load(&may_go_on))
        poll(NULL, 0, 1);
    return rig_step(ctx, b, logits, err);
}

/* Who has seen the end of a request finds it counted, however long the counting takes. */
static void an_end_is_counted_first(void **state)
{
    (void)state;
    struct rig g = {0};
    static struct rig_out out;
    struct sl_engine_parts p = {.seed = 1};
    struct sl_request_desc d = {.prompt = prompt, .n_prompt = 10};
    struct sl_request *req = NULL;
    struct sl_error err;
    struct sl_stats s;
    g.model = (struct sl_host_model){.ctx = &g, .n_vocab = T_N, .forward = gated_step};
    rig_start(&g, &p);
    rig_script(&g, 0, NULL, 0);
    sl_sampling_default(&d.sampling);
    d.sampling.max_tokens = 1;
    assert_int_equal(sl_request_submit(g.eng, &d, &req, &err), 0);
    while (!atomic_load(&in_step))
        poll(NULL, 0, 1);
    pthread_mutex_lock(&g.eng->stats_lock); /* the turn cannot tell what it has counted */
    atomic_store(&may_go_on, true);
    poll(NULL, 0, 50);
    rig_read(req, &out);
    const bool early = sl_request_done(req);
    pthread_mutex_unlock(&g.eng->stats_lock);
    while (!sl_request_done(req)) {
        sl_request_wait(req, 1000);
        rig_read(req, &out);
    }
    sl_engine_stats(g.eng, &s);
    sl_request_release(req);
    rig_stop(&g);
    assert_false(early);
    assert_int_equal(s.finished[SL_FINISH_LENGTH], 1);
    assert_int_equal(s.generation_tokens, 1);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(many_threads_share_the_engine),
        cmocka_unit_test(an_idle_engine_costs_nothing),
        cmocka_unit_test(destroy_ends_what_is_left),
        cmocka_unit_test(waiting_ends_in_time),
        cmocka_unit_test(who_stops_hears_no_more),
        cmocka_unit_test(who_stops_hears_of_no_failure),
        cmocka_unit_test(an_end_is_counted_first),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
