/* SPDX-License-Identifier: MIT
 * Ranks that meet over TCP, as threads of this program: one that computes for longer than others
 * would be waited for is waited for by all as long as what it computes moves, also by those to whom
 * rank 0 only passes on what it has; and by nobody once it does not. And those that others do
 * without, until they are back.
 */
#include "base/check.h"
#include "base/sys.h"
#include "dist/leader.h"
#include "dist/member.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

#include <pthread.h>

enum { N_RANKS = 3, N_BYTES = 32, TIMEOUT_MS = 1000, COMPUTES_MS = 3000 };

struct rank {
    pthread_t thread;
    int rank, port, rc;
    bool moves;
    atomic_uint_fast64_t progress;
    uint8_t out[N_BYTES];
};

static struct sl_rank_identity identity(void)
{
    struct sl_rank_identity id;
    memset(&id, 0, sizeof id);
    snprintf(id.version, sizeof id.version, "test");
    id.n_ranks = N_RANKS;
    return id;
}

static uint64_t progress_of(const void *arg)
{
    const struct rank *r = arg;
    return atomic_load(&r->progress);
}

/* Rank 1 has bytes for rank 2. */
static int pass_on(struct sl_link *link, uint8_t *out)
{
    struct sl_link_part parts[SL_MAX_RANKS];
    const int rank = link->cfg.rank;
    uint8_t part[N_BYTES];
    memset(part, 7, sizeof part);
    const struct sl_link_gather g = {.part = part,
                                     .part_bytes = rank == 1 ? N_BYTES : 0,
                                     .n = 1,
                                     .out = rank == 1 ? NULL : out,
                                     .first_only = true,
                                     .also = 2};
    return sl_link_all_gather(link, &g, parts);
}

static void *member_main(void *arg)
{
    struct rank *r = arg;
    struct sl_error err = {0};
    struct sl_member *m = NULL;
    struct sl_link *link = NULL;
    void *room[2];
    const struct sl_member_config cfg = {
        .addr = "127.0.0.1", .port = r->port, .rank = r->rank, .id = identity()};
    r->rc = sl_member_connect(&cfg, &m, &err);
    if (r->rc == 0)
        r->rc = sl_member_await(m, N_BYTES, N_BYTES, room, &err);
    if (r->rc == 0) {
        sl_member_watch(m, progress_of, r);
        r->rc = sl_member_ready(m, &link, &err);
    }
    for (int i = 0; i < COMPUTES_MS / 20 && r->rank == 1 && r->rc == 0; i++) {
        usleep(20000);
        atomic_fetch_add(&r->progress, r->moves);
    }
    if (r->rc == 0)
        r->rc = pass_on(link, r->out);
    usleep(100000); /* rank 0 says first that it is over */
    sl_member_close(m);
    return NULL;
}

/* Returns what rank 0's step ends with. */
static int step(struct rank ranks[N_RANKS], bool moves, struct sl_error *err)
{
    struct sl_leader *l = NULL;
    struct sl_link *link = NULL;
    uint64_t plan = 0;
    const struct sl_leader_config cfg = {.addr = "127.0.0.1",
                                         .id = identity(),
                                         .plan = &plan,
                                         .n_plan = sizeof plan,
                                         .max_message = N_BYTES,
                                         .room_bytes = N_BYTES,
                                         .timeout_ms = TIMEOUT_MS,
                                         .only_tcp = true};
    assert_int_equal(sl_leader_open(&cfg, &l, err), 0);
    for (int i = 1; i < N_RANKS; i++) {
        ranks[i].rank = i;
        ranks[i].port = sl_leader_port(l);
        ranks[i].moves = moves;
        assert_int_equal(pthread_create(&ranks[i].thread, NULL, member_main, &ranks[i]), 0);
    }
    assert_int_equal(sl_leader_wait(l, 10000, err), 0);
    assert_int_equal(sl_leader_begin(l, &link, err), 0);
    const int passed = pass_on(link, ranks[0].out);
    const int rc = sl_leader_end(l, err);
    assert_int_equal(passed, rc);
    for (int i = 1; i < N_RANKS; i++)
        pthread_join(ranks[i].thread, NULL);
    sl_leader_close(l);
    return rc;
}

static void test_slow(void **state)
{
    (void)state;
    struct rank ranks[N_RANKS] = {{.rank = 0}};
    struct sl_error err = {0};
    if (step(ranks, true, &err) != 0)
        fail_msg("%s", err.msg);
    assert_int_equal(ranks[1].rc, 0);
    assert_int_equal(ranks[2].rc, 0);
    for (int i = 0; i < N_BYTES; i++)
        assert_int_equal(ranks[2].out[i], 7);
}

static void test_stuck(void **state)
{
    (void)state;
    struct rank ranks[N_RANKS] = {{.rank = 0}};
    struct sl_error err = {0};
    const uint64_t t0 = sl_now_ns();
    assert_int_equal(step(ranks, false, &err), SL_ERANK);
    assert_non_null(strstr(err.msg, "rank 1 makes no progress"));
    assert_int_equal(ranks[2].rc, SL_ERANK);
    assert_true(sl_now_ns() - t0 < 10000000000u);
}

/* ---------------------------------------------------------------- without some */

struct visitor { /* a rank that comes to one meeting after another, until it is told to go */
    pthread_t thread;
    struct sl_member_config cfg;
    atomic_bool gone;
    atomic_uint absent; /* of the last one */
    atomic_int n_met;
};

static void *visitor_main(void *arg)
{
    struct visitor *v = arg;
    struct sl_error err;
    uint8_t step[N_BYTES], out[N_RANKS * 4];
    while (!atomic_load(&v->gone)) {
        struct sl_member *m = NULL;
        struct sl_link *link = NULL;
        void *room[2];
        size_t n;
        struct sl_link_part parts[SL_MAX_RANKS];
        const uint8_t own[4] = {(uint8_t)v->cfg.rank, 1, 2, 3};
        const struct sl_link_gather g = {.part = own, .part_bytes = 4, .n = 1, .out = out};
        int rc = sl_member_connect(&v->cfg, &m, &err);
        if (rc == 0)
            rc = sl_member_await(m, N_BYTES, N_BYTES, room, &err);
        if (rc == 0)
            rc = sl_member_ready(m, &link, &err);
        if (rc == 0) {
            atomic_store(&v->absent, link->cfg.absent);
            atomic_fetch_add(&v->n_met, 1);
        }
        while (rc == 0 && (rc = sl_link_recv(link, step, sizeof step, &n)) == 0) {
            if (step[0] == v->cfg.rank) /* it is to go in the middle of a step */
                atomic_store(&v->gone, true);
            rc = atomic_load(&v->gone) ? SL_ERANK : sl_link_all_gather(link, &g, parts);
        }
        sl_member_close(m);
        usleep(5000);
    }
    return NULL;
}

static void visit(struct visitor *v, int port, int rank)
{
    *v = (struct visitor){
        .cfg = {.addr = "127.0.0.1", .port = port, .rank = rank, .id = identity()}};
    assert_int_equal(pthread_create(&v->thread, NULL, visitor_main, v), 0);
}

/* Steps go on without rank 2 alone. */
static bool covers_2(const void *arg, uint32_t absent)
{
    (void)arg;
    return absent == 1u << 2;
}

/* A step that rank `ends` leaves, 0: none. Returns what it ends with. */
static int visited_step(struct sl_leader *l, uint8_t ends, uint32_t *without, struct sl_error *err)
{
    struct sl_link *link = NULL;
    struct sl_link_part parts[SL_MAX_RANKS];
    uint8_t own[4] = {0, 1, 2, 3}, out[N_RANKS * 4];
    const struct sl_link_gather g = {.part = own, .part_bytes = 4, .n = 1, .out = out};
    int rc = sl_leader_begin(l, &link, err);
    if (rc != 0)
        return rc;
    *without = link->cfg.absent;
    if (sl_link_send(link, &ends, 1) == 0)
        (void)!sl_link_all_gather(link, &g, parts);
    for (int i = 0; i < N_RANKS && !atomic_load(&link->lost); i++)
        assert_int_equal(parts[i].bytes, (*without >> i & 1) != 0 ? 0 : 4);
    return sl_leader_end(l, err);
}

/* Until steps work. */
static enum sl_leader_news await_steps(struct sl_leader *l, uint32_t want)
{
    enum sl_leader_news news = SL_LEADER_NOTHING;
    struct sl_error err;
    uint32_t without = 0;
    for (int i = 0; i < 500; i++) {
        const enum sl_leader_news now = sl_leader_renew(l);
        news = now != SL_LEADER_NOTHING ? now : news;
        if (sl_leader_health(l, &without, &err) == 0 && without == want &&
            visited_step(l, 0, &without, &err) == 0 && without == want)
            return news;
        usleep(10000);
    }
    fail_msg("steps are not without %x: %s", want, err.msg);
    return news;
}

static void test_without(void **state)
{
    (void)state;
    struct visitor v[N_RANKS];
    struct sl_leader *l = NULL;
    struct sl_error err = {0};
    uint64_t plan = 0;
    uint32_t without;
    for (int tcp = 0; tcp <= 1; tcp++) {
        const struct sl_leader_config cfg = {.addr = "127.0.0.1",
                                             .id = identity(),
                                             .plan = &plan,
                                             .n_plan = sizeof plan,
                                             .max_message = N_BYTES,
                                             .room_bytes = N_BYTES,
                                             .timeout_ms = TIMEOUT_MS,
                                             .only_tcp = tcp != 0,
                                             .covers = covers_2};
        assert_int_equal(sl_leader_open(&cfg, &l, &err), 0);
        for (int i = 1; i < N_RANKS; i++)
            visit(&v[i], sl_leader_port(l), i);
        assert_int_equal(sl_leader_wait(l, 10000, &err), 0);
        assert_int_equal(await_steps(l, 0), SL_LEADER_NOTHING);
        assert_int_equal(visited_step(l, 2, &without, &err), SL_ERANK);
        assert_int_equal(await_steps(l, 1u << 2), SL_LEADER_LOST);
        assert_int_equal(atomic_load(&v[1].absent), 1u << 2);
        pthread_join(v[2].thread, NULL);
        visit(&v[2], sl_leader_port(l), 2);
        assert_int_equal(await_steps(l, 0), SL_LEADER_JOINED);
        assert_int_equal(sl_leader_n_there(l), N_RANKS);
        assert_int_equal(visited_step(l, 1, &without, &err), SL_ERANK); /* not without rank 1 */
        pthread_join(v[1].thread, NULL);
        usleep(300000);
        assert_int_equal(sl_leader_health(l, &without, &err), SL_ERANK);
        visit(&v[1], sl_leader_port(l), 1);
        assert_int_equal(await_steps(l, 0), SL_LEADER_LOST);
        for (int i = 1; i < N_RANKS; i++)
            atomic_store(&v[i].gone, true);
        sl_leader_close(l);
        for (int i = 1; i < N_RANKS; i++)
            pthread_join(v[i].thread, NULL);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_slow), cmocka_unit_test(test_stuck),
                                       cmocka_unit_test(test_without)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
