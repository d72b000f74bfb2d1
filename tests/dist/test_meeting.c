/* SPDX-License-Identifier: MIT
 * Ranks that meet over TCP, as threads of this program: one that computes for longer than others
 * would be waited for is waited for by all as long as what it computes moves, also by those to whom
 * rank 0 only passes on what it has; and by nobody once it does not.
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

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_slow), cmocka_unit_test(test_stuck)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
