/* SPDX-License-Identifier: MIT
 * Several engines that share the memory of their pages: worlds drawn from seeds, on one thread.
 * Each device keeps the tokens that its pages hold and makes the next token from all that it reads
 * back, and a page whose memory was given back holds garbage, so a page that goes while it is
 * needed changes an answer. An engine gets a turn only when its own thread would be awake. After
 * every turn the books are checked: no page lost, no byte held twice, floors kept.
 */
#include "base/check.h"
#include "base/hash.h"
#include "base/rng.h"
#include "base/sys.h"
#include "engine/core.h"
#include "engine/host_runner.h"

#include <poll.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#define BLOCK      4
#define VOCAB      64
#define MAX_LEN    64
#define MAX_ENGINE 4
#define MAX_OPEN   12
#define GARBAGE    (-9)

struct client {
    struct sl_request *req;
    int32_t prompt[MAX_LEN], n_prompt, max_tokens;
    int32_t got[MAX_LEN], n_got, n_read;
    bool cancelled;
};

struct device {
    struct sl_engine *eng;
    struct sl_host_runner *host;
    struct sl_share *share;
    struct client clients[MAX_OPEN];
    int32_t *page_token; /* [n_pages, BLOCK] */
    float rows[MAX_OPEN * VOCAB];
    uint64_t key, n_turns, n_wrong;
    int32_t n_pages;
    bool dead; /* the next step says so */
};

struct world {
    struct sl_budget budget;
    struct device devices[MAX_ENGINE];
    int n;
    struct sl_rng rng;
    bool full;     /* requests are as long as may be */
    bool threaded; /* engines have their own threads */
};

static struct {
    _Atomic uint64_t n_tokens, n_given, n_preempted, n_cached;
} total;

static int32_t draw(struct world *w, int32_t from, int32_t to)
{
    return from + (int32_t)(sl_rng_next(&w->rng) % (uint64_t)(to - from + 1));
}

static uint64_t hash_of(uint64_t h, int32_t token)
{
    return sl_mix64(h ^ (uint64_t)(uint32_t)token * 0x9E3779B97F4A7C15u);
}

static int32_t token_of(uint64_t h)
{
    return (int32_t)(sl_mix64(h ^ 5) % VOCAB);
}

/* Writes the step's tokens to their pages and makes each row from what the table leads to. */
static int step(void *ctx, const struct sl_batch *b, const float **logits, struct sl_error *err)
{
    struct device *d = ctx;
    for (int32_t i = 0; i < b->n_spans; i++) {
        const struct sl_span *s = &b->spans[i];
        for (int32_t k = 0; k < s->n; k++) {
            int32_t pos = s->pos + k, page = b->block_tables[s->table_idx + pos / BLOCK];
            d->page_token[page * BLOCK + pos % BLOCK] = b->tokens[s->first + k];
        }
    }
    for (int32_t r = 0, i = 0; r < b->n_logits; r++) {
        int32_t at = b->logit_rows[r];
        while (at >= b->spans[i].first + b->spans[i].n)
            i++;
        uint64_t h = d->key;
        for (int32_t pos = 0; pos <= b->spans[i].pos + at - b->spans[i].first; pos++) {
            int32_t page = b->block_tables[b->spans[i].table_idx + pos / BLOCK];
            int32_t token = d->page_token[page * BLOCK + pos % BLOCK];
            d->n_wrong += token == GARBAGE;
            h = hash_of(h, token);
        }
        for (int32_t id = 0; id < VOCAB; id++)
            d->rows[r * VOCAB + id] = id == token_of(h) ? 1.0f : 0.0f;
    }
    *logits = d->rows;
    return d->dead ? sl_fail(err, SL_EDEVICE, "simulated fault") : 0;
}

static void discard(void *user, int32_t page)
{
    struct device *d = user;
    for (int32_t i = 0; i < BLOCK; i++)
        d->page_token[page * BLOCK + i] = GARBAGE;
}

/* ---- clients */

static void submit(struct world *w, struct device *d, struct client *c)
{
    struct sl_error err;
    int32_t longest = sl_engine_info(d->eng)->max_model_len, n_same = draw(w, 0, longest / 2);
    *c = (struct client){.n_prompt = draw(w, 1, longest - 4)};
    if (w->full)
        c->n_prompt = longest - 4;
    c->max_tokens = w->full ? 4 : draw(w, 1, longest - c->n_prompt);
    for (int32_t i = 0; i < c->n_prompt; i++) /* beginnings are alike, so that the cache is used */
        c->prompt[i] = i < n_same ? i % VOCAB : draw(w, 0, VOCAB - 1);
    struct sl_request_desc desc = {.prompt = c->prompt, .n_prompt = c->n_prompt};
    sl_sampling_default(&desc.sampling);
    desc.sampling.temperature = 0;
    desc.sampling.max_tokens = c->max_tokens;
    desc.sampling.ignore_eos = true;
    if (sl_request_submit(d->eng, &desc, &c->req, &err) != 0)
        fail_msg("submit: %s", err.msg);
}

/* What the request must have given, from nothing but its prompt. */
static void check_answer(const struct device *d, const struct client *c)
{
    uint64_t h = d->key;
    for (int32_t i = 0; i < c->n_prompt; i++)
        h = hash_of(h, c->prompt[i]);
    for (int32_t i = 0; i < c->n_got; i++) {
        assert_int_equal(c->got[i], token_of(h));
        h = hash_of(h, c->got[i]);
    }
    assert_true(c->cancelled || c->n_got == c->max_tokens);
}

static void read_all(struct device *d, struct client *c)
{
    struct sl_chunk chunk;
    struct sl_usage u;
    while (c->req != NULL && sl_request_read(c->req, &chunk)) {
        for (size_t i = 0; i < chunk.n_tokens; i++)
            c->got[c->n_got++] = chunk.tokens[i].id;
        if (chunk.finish == SL_RUNNING)
            continue;
        assert_true(chunk.finish == SL_FINISH_LENGTH ||
                    (c->cancelled && chunk.finish == SL_FINISH_ABORT) ||
                    (d->dead && chunk.finish == SL_FINISH_ERROR));
        c->cancelled |= chunk.finish == SL_FINISH_ERROR; /* what came is right all the same */
        check_answer(d, c);
        sl_request_usage(c->req, &u);
        total.n_tokens += (uint64_t)c->n_got;
        total.n_preempted += (uint64_t)u.n_preemptions;
        total.n_cached += (uint64_t)u.n_cached;
        sl_request_release(c->req);
        c->req = NULL;
    }
}

static int32_t n_open(const struct device *d)
{
    int32_t n = 0;
    for (int i = 0; i < MAX_OPEN; i++)
        n += d->clients[i].req != NULL;
    return n;
}

/* ---- turns */

static bool is_awake(const struct device *d)
{
    struct pollfd p = {.fd = d->eng->inbox.event_fd, .events = POLLIN};
    return !sl_sched_idle(&d->eng->sched) || poll(&p, 1, 0) == 1;
}

static bool turn(struct world *w, struct device *d)
{
    struct sl_error err;
    if (!is_awake(d))
        return false;
    (void)sl_engine_step(d->eng);
    d->n_turns++;
    for (int i = 0; i < w->n; i++) /* each walks its own pages, and the sums of all */
        if (sl_engine_check(w->devices[i].eng, &err) != 0)
            fail_msg("engine %d: %s", i, err.msg);
    assert_int_equal(d->n_wrong, 0);
    for (int i = 0; i < MAX_OPEN; i++)
        read_all(d, &d->clients[i]);
    return true;
}

static void open_device(struct world *w, struct device *d, int32_t page_bytes, int32_t len,
                        int32_t n_pages, int32_t max_seqs, bool cache)
{
    struct sl_error err;
    d->n_pages = n_pages;
    d->key = sl_rng_next(&w->rng);
    d->page_token = sl_calloc((size_t)n_pages * BLOCK, sizeof *d->page_token);
    assert_non_null(d->page_token);
    for (int32_t page = 0; page < n_pages; page++)
        discard(d, page);
    if (sl_share_open(&w->budget, 0, (uint64_t)page_bytes, SL_CEIL_DIV(len, BLOCK), &d->share,
                      &err) != 0)
        fail_msg("%s", err.msg);
    struct sl_engine_parts p = {.info = {.model_path = "sim",
                                         .n_vocab = VOCAB,
                                         .max_model_len = len,
                                         .block_size = BLOCK,
                                         .n_pages = n_pages,
                                         .max_num_seqs = max_seqs,
                                         .max_num_batched_tokens = w->full ? 512 : 16},
                                .no_prefix_caching = !cache,
                                .no_thread = !w->threaded,
                                .watchdog_s = -1,
                                .seed = 1,
                                .share = d->share,
                                .discard = discard,
                                .user = d};
    const struct sl_host_model m = {.ctx = d, .n_vocab = VOCAB, .forward = step};
    if (sl_host_runner_create(&m, MAX_OPEN, &d->host, &err) != 0)
        fail_msg("runner: %s", err.msg);
    sl_host_runner_use(d->host, &p.runner);
    sl_sampling_default(&p.sampling);
    if (sl_engine_start(&p, &d->eng, &err) != 0)
        fail_msg("engine: %s", err.msg);
}

static void close_world(struct world *w)
{
    struct sl_share_view v;
    for (int i = 0; i < w->n; i++) {
        struct device *d = &w->devices[i];
        sl_share_look(d->share, &v);
        total.n_given += v.n_given;
        sl_engine_destroy(d->eng);
        sl_host_runner_destroy(d->host);
        sl_share_close(d->share);
        sl_free(d->page_token);
    }
    sl_budget_deinit(&w->budget);
}

static void start_world(struct world *w, uint64_t seed, uint64_t n_bytes)
{
    *w = (struct world){.n = 0};
    w->rng.seed = seed;
    sl_budget_init(&w->budget, n_bytes);
}

static void run_seed(uint64_t seed)
{
    static struct world w;
    int32_t page_bytes[MAX_ENGINE], len[MAX_ENGINE], floors = 0;
    start_world(&w, seed, 0);
    int n = draw(&w, 2, MAX_ENGINE);
    for (int i = 0; i < n; i++) {
        page_bytes[i] = draw(&w, 1, 7);
        len[i] = draw(&w, 6, MAX_LEN - 2);
        floors += page_bytes[i] * SL_CEIL_DIV(len[i], BLOCK);
    }
    w.budget.total = (uint64_t)(floors + draw(&w, 0, 3) * draw(&w, 0, floors));
    for (int i = 0; i < n; i++, w.n++) {
        int32_t most = (int32_t)(w.budget.total / (uint64_t)page_bytes[i]);
        open_device(&w, &w.devices[i], page_bytes[i], len[i], most, draw(&w, 1, 6),
                    draw(&w, 0, 4) > 0);
    }
    int busy = 0;
    for (int round = 0; round < 400; round++) {
        busy = draw(&w, 0, 20) == 0 ? draw(&w, 0, n - 1) : busy; /* load moves about */
        struct device *d = &w.devices[draw(&w, 0, 3) > 0 ? busy : draw(&w, 0, n - 1)];
        struct client *c = &d->clients[draw(&w, 0, MAX_OPEN - 1)];
        if (c->req == NULL) {
            submit(&w, d, c);
        } else if (draw(&w, 0, 30) == 0) {
            c->cancelled = true;
            sl_request_cancel(c->req);
        }
        for (int k = draw(&w, 0, 3); k > 0; k--)
            (void)turn(&w, &w.devices[draw(&w, 0, n - 1)]);
    }
    int32_t n_left = 1;
    for (int round = 0; n_left > 0; round++) { /* nothing new comes: all must end */
        assert_true(round < 20000);
        bool moved = false;
        n_left = 0;
        for (int i = 0; i < n; i++)
            moved |= turn(&w, &w.devices[i]);
        for (int i = 0; i < n; i++)
            n_left += n_open(&w.devices[i]);
        assert_true(moved || n_left == 0); /* who sleeps has nothing to do */
    }
    close_world(&w);
}

static void test_seeds(void **state)
{
    (void)state;
    const char *n = getenv("SHARED_SEEDS"), *first = getenv("SHARED_FIRST");
    uint64_t from = first != NULL ? strtoull(first, NULL, 10) : 1;
    uint64_t count = n != NULL ? strtoull(n, NULL, 10) : 60;
    for (uint64_t seed = from; seed < from + count; seed++) {
        run_seed(seed);
    }
    print_message("%llu seeds: %llu tokens, %llu pages given to others, %llu preemptions, %llu "
                  "tokens from the cache\n",
                  (unsigned long long)count, (unsigned long long)total.n_tokens,
                  (unsigned long long)total.n_given, (unsigned long long)total.n_preempted,
                  (unsigned long long)total.n_cached);
    assert_true(total.n_given > 0 && total.n_cached > 0);
}

/* ---- what users see: pages move to who needs them */

static void fill(struct world *w, struct device *d, int32_t n)
{
    for (int32_t i = 0; i < n; i++)
        submit(w, d, &d->clients[i]);
}

static void run_until_idle(struct world *w)
{
    for (int round = 0, n = 1; n > 0; round++) {
        assert_true(round < 20000);
        n = 0;
        for (int i = 0; i < w->n; i++) {
            (void)turn(w, &w->devices[i]);
            n += n_open(&w->devices[i]);
        }
    }
}

static uint64_t held(const struct device *d)
{
    struct sl_share_view v;
    sl_share_look(d->share, &v);
    return v.held / d->share->page_bytes;
}

static void test_busy_takes_from_idle(void **state)
{
    static struct world w;
    struct device *a = &w.devices[0], *b = &w.devices[1];
    (void)state;
    start_world(&w, 99, 96 * 2); /* 96 pages, 16 of each kept */
    w.full = true;
    for (; w.n < 2; w.n++)
        open_device(&w, &w.devices[w.n], 2, MAX_LEN - 2, 96, 8, true);
    for (int i = 0; i < 12; i++) { /* a's prefixes fill all but b's floor */
        fill(&w, a, 8);
        run_until_idle(&w);
    }
    assert_int_equal(held(a), 80);
    assert_int_equal(held(b), 0);
    uint64_t most = 0;
    fill(&w, b, 8);
    while (n_open(b) > 0) {
        (void)turn(&w, b);
        (void)turn(&w, a); /* asleep but for being asked */
        most = SL_MAX(most, held(b));
        assert_true(held(a) + held(b) <= 96 && held(a) >= 16);
    }
    assert_true(most > 48); /* more than an even part */
    assert_true(a->n_turns > 0 && held(a) < 48);
    for (int i = 0; i < 12; i++) { /* what b keeps cached is newer than what a does */
        fill(&w, b, 8);
        run_until_idle(&w);
    }
    assert_int_equal(held(b), 80);
    assert_int_equal(held(a), 16);
    close_world(&w);
}

/* A model whose device fails loses its requests; its pages are the others' from then on. */
static void test_a_dead_one_gives_all(void **state)
{
    static struct world w;
    struct device *a = &w.devices[0], *b = &w.devices[1];
    (void)state;
    start_world(&w, 3, 96);
    w.full = true;
    for (; w.n < 2; w.n++)
        open_device(&w, &w.devices[w.n], 1, MAX_LEN - 2, 96, 8, true);
    fill(&w, a, 8);
    for (int i = 0; i < 3; i++)
        (void)turn(&w, a);
    assert_true(held(a) > 48 && n_open(a) > 0);
    a->dead = true;
    (void)turn(&w, a);
    assert_int_equal(n_open(a), 0);
    assert_false(sl_engine_healthy(a->eng));
    fill(&w, b, 8);
    uint64_t most = 0;
    for (int round = 0; n_open(b) > 0; round++) {
        assert_true(round < 2000);
        (void)turn(&w, b);
        (void)turn(&w, a);
        most = SL_MAX(most, held(b));
    }
    assert_true(most > 48 && sl_engine_healthy(b->eng));
    close_world(&w);
}

/* Both have more to do than memory for it: they meet in the middle, whoever came first. */
static void test_two_busy_share_evenly(void **state)
{
    static struct world w;
    struct device *a = &w.devices[0], *b = &w.devices[1];
    (void)state;
    start_world(&w, 7, 96);
    for (; w.n < 2; w.n++)
        open_device(&w, &w.devices[w.n], 1, MAX_LEN - 2, 96, 12, true);
    uint64_t sum_a = 0, sum_b = 0;
    for (int round = 0; round < 4000; round++) {
        for (int i = 0; i < MAX_OPEN; i++) {
            if (a->clients[i].req == NULL)
                submit(&w, a, &a->clients[i]);
            if (round > 500 && b->clients[i].req == NULL)
                submit(&w, b, &b->clients[i]);
        }
        (void)turn(&w, a);
        (void)turn(&w, b);
        sum_a += round >= 2000 ? held(a) : 0;
        sum_b += round >= 2000 ? held(b) : 0;
    }
    print_message("pages on average: %.1f and %.1f of 96\n", (double)sum_a / 2000,
                  (double)sum_b / 2000);
    assert_true(sum_b > 40 * 2000 && sum_a > 40 * 2000);
    for (int i = 0; i < MAX_OPEN; i++) {
        for (int k = 0; k < w.n; k++) {
            struct client *c = &w.devices[k].clients[i];
            c->cancelled = true;
            if (c->req != NULL)
                sl_request_cancel(c->req);
        }
    }
    run_until_idle(&w);
    close_world(&w);
}

/* ---- with threads */

struct crowd {
    struct device *d;
    struct world own; /* for what is drawn */
};

static void *crowd_main(void *arg)
{
    struct crowd *c = arg;
    for (int n = 0; n < 150; n++) {
        struct client *client = &c->d->clients[n % 6];
        while (client->req != NULL) {
            sl_request_wait(client->req, -1);
            read_all(c->d, client);
        }
        submit(&c->own, c->d, client);
        if (draw(&c->own, 0, 40) == 0)
            (void)poll(NULL, 0, 2); /* idle for a while: others take what it has cached */
    }
    for (int i = 0; i < MAX_OPEN; i++) {
        while (c->d->clients[i].req != NULL) {
            sl_request_wait(c->d->clients[i].req, -1);
            read_all(c->d, &c->d->clients[i]);
        }
    }
    return NULL;
}

/* Three engines on threads of their own; what they share is two floors more than they must have. */
static void test_threads(void **state)
{
    static struct world w;
    static struct crowd crowds[3];
    pthread_t threads[3];
    struct sl_error err;
    (void)state;
    start_world(&w, 5, 5 * 16);
    w.threaded = true;
    for (; w.n < 3; w.n++)
        open_device(&w, &w.devices[w.n], 1, MAX_LEN - 2, 80, 5, true);
    for (int i = 0; i < 3; i++) {
        crowds[i] = (struct crowd){.d = &w.devices[i], .own.rng.seed = (uint64_t)i};
        assert_int_equal(sl_thread_create(&threads[i], crowd_main, &crowds[i], "crowd", &err), 0);
    }
    for (int i = 0; i < 3; i++) {
        pthread_join(threads[i], NULL);
        assert_int_equal(w.devices[i].n_wrong, 0);
    }
    close_world(&w);
}

/* ---- the ledger alone */

static void test_floors_must_fit(void **state)
{
    struct sl_budget b;
    struct sl_share *one, *two;
    struct sl_error err;
    (void)state;
    sl_budget_init(&b, 100);
    assert_int_equal(sl_share_open(&b, 0, 10, 6, &one, &err), 0);
    assert_int_equal(sl_share_open(&b, 0, 10, 5, &two, &err), SL_EINVAL);
    assert_non_null(strstr(err.msg, "leave 40"));
    assert_int_equal(sl_share_open(&b, 0, 10, 4, &two, &err), 0);
    assert_int_equal(sl_share_take(one, 7, 7), 0); /* the other's floor stays */
    assert_int_equal(sl_share_take(one, 0, 7), 6);
    assert_int_equal(sl_share_take(two, 4, 4), 4);
    assert_int_equal(sl_share_check(one, 6, &err), 0);
    assert_int_equal(sl_share_check(one, 5, &err), SL_EINTERNAL);
    sl_share_give(one, 2, false);
    assert_int_equal(sl_share_take(two, 1, 1), 0);
    sl_share_close(one);
    assert_int_equal(sl_share_take(two, 6, 9), 6);
    sl_share_close(two);
    sl_budget_deinit(&b);
}

static void count_wake(void *arg)
{
    ++*(int *)arg;
}

/* Who may not grow beyond its even part because another is short of its own may again once that one
 * has what it wanted, by whatever way. */
static void test_relief_is_told(void **state)
{
    (void)state;
    struct sl_budget b;
    struct sl_share *shorty, *big, *giver;
    struct sl_error err;
    int n_wakes = 0;
    sl_budget_init(&b, 15);
    assert_int_equal(sl_share_open(&b, 0, 1, 1, &shorty, &err), 0);
    assert_int_equal(sl_share_open(&b, 0, 1, 1, &big, &err), 0);
    assert_int_equal(sl_share_open(&b, 0, 1, 1, &giver, &err), 0);
    sl_share_set_wake(big, count_wake, &n_wakes);
    assert_int_equal(sl_share_take(big, 6, 6), 6);
    assert_int_equal(sl_share_take(giver, 6, 6), 6);
    sl_share_tell(shorty, &(struct sl_share_state){.n_wanted = 4}); /* three can be had */
    sl_share_tell(big, &(struct sl_share_state){.n_wanted = 1});
    sl_share_give(giver, 4, true);
    assert_int_equal(sl_share_take(big, 1, 1), 0);
    uint64_t refused_at = sl_share_returns(big);
    n_wakes = 0;
    assert_int_equal(sl_share_take(shorty, 4, 4), 4);
    assert_true(sl_share_returns(big) != refused_at && n_wakes > 0);
    assert_int_equal(sl_share_take(big, 1, 1), 1);
    sl_share_close(shorty);
    sl_share_close(big);
    sl_share_close(giver);
    sl_budget_deinit(&b);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_floors_must_fit),
        cmocka_unit_test(test_busy_takes_from_idle),
        cmocka_unit_test(test_a_dead_one_gives_all),
        cmocka_unit_test(test_two_busy_share_evenly),
        cmocka_unit_test(test_relief_is_told),
        cmocka_unit_test(test_threads),
        cmocka_unit_test(test_seeds),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
