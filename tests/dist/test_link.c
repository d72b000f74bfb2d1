/* SPDX-License-Identifier: MIT
 * Links between ranks: what each gathers, over TCP and in shared memory, is compared byte for byte
 * with what all ranks made; steps arrive whole and in order; a rank that is lost or says nonsense
 * ends every wait. Ranks are threads here; tests/server/test_ranks.py has processes.
 */
#include "base/check.h"
#include "base/hash.h"
#include "base/shm.h"
#include "base/sys.h"
#include "dist/link.h"

#include <pthread.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cmocka.h>

enum { MAX_ROWS = 40, MAX_WIDTH = 3000, ROOM = MAX_ROWS * MAX_WIDTH, STEP = 5000, N_ROUNDS = 300 };

struct world {
    int n_ranks;
    uint32_t absent;
    bool shm;
    void *memory;
    size_t n_memory;
    int fds[SL_MAX_RANKS][2]; /* [i]: rank 0's end and rank i's */
};

struct member {
    struct world *w;
    struct sl_link *link;
    struct sl_link_config cfg;
    int rank, rc;
    char what[120];
};

static struct sl_link_config config_of(const struct world *w, int rank)
{
    return (struct sl_link_config){.rank = rank,
                                   .n_ranks = w->n_ranks,
                                   .absent = w->absent,
                                   .max_message = STEP,
                                   .room_bytes = ROOM};
}

static void world_open(struct world *w, int n_ranks, bool shm)
{
    struct sl_error err = {0};
    const struct sl_link_config cfg = {.n_ranks = n_ranks, .max_message = STEP, .room_bytes = ROOM};
    int fd;
    *w = (struct world){.n_ranks = n_ranks, .shm = shm};
    for (int i = 1; i < n_ranks && !shm; i++)
        assert_int_equal(socketpair(AF_UNIX, SOCK_STREAM, 0, w->fds[i]), 0);
    if (!shm)
        return;
    w->n_memory = sl_link_shm_bytes(&cfg);
    assert_int_equal(sl_shm_create(w->n_memory, &fd, &err), 0);
    assert_int_equal(sl_shm_map(fd, w->n_memory, NULL, &w->memory, &err), 0);
    close(fd);
}

static struct sl_link *link_open(struct world *w, const struct sl_link_config *cfg)
{
    struct sl_error err = {0};
    struct sl_link *link = NULL;
    int fds[SL_MAX_RANKS];
    for (int i = 1; i < w->n_ranks; i++)
        fds[i - 1] = w->fds[i][0];
    if (cfg->rank > 0)
        fds[0] = w->fds[cfg->rank][1];
    int rc = w->shm ? sl_link_shm_open(cfg, w->memory, &link, &err)
                    : sl_link_tcp_open(cfg, fds, &link, &err);
    if (rc != 0)
        fail_msg("%s", err.msg);
    return link;
}

/* What byte k of row t of rank r is in round i. */
static uint8_t byte_of(int i, int r, size_t t, size_t k)
{
    return (uint8_t)sl_mix64((uint64_t)i << 40 ^ (uint64_t)r << 32 ^ (uint64_t)t << 16 ^ k);
}

static size_t width_of(const struct member *m, int i, int r)
{
    if ((m->w->absent >> r & 1) != 0)
        return 0;
    return 1 + sl_mix64((uint64_t)i * 8 + (uint64_t)r) % (MAX_WIDTH / (size_t)m->w->n_ranks);
}

static int gather_once(struct member *m, int i, uint8_t *room, uint8_t *out)
{
    struct sl_link_part parts[SL_MAX_RANKS];
    const size_t n = 1 + sl_mix64((uint64_t)i) % MAX_ROWS, w = width_of(m, i, m->rank);
    const bool first_only = i % 7 == 0;
    const int also = first_only && i % 2 == 0 ? i % m->w->n_ranks : 0; /* 0: rank 0 alone */
    for (size_t t = 0; t < n; t++)
        for (size_t k = 0; k < w; k++)
            room[t * w + k] = byte_of(i, m->rank, t, k);
    memset(out, 0xee, ROOM);
    const struct sl_link_gather g = {.part = room,
                                     .part_bytes = w,
                                     .n = (int32_t)n,
                                     .out =
                                         first_only && m->rank > 0 && m->rank != also ? NULL : out,
                                     .first_only = first_only,
                                     .also = also};
    int rc = sl_link_all_gather(m->link, &g, parts);
    size_t row = 0, before = 0;
    if (rc != 0 || g.out == NULL)
        return rc;
    for (int r = 0; r < m->w->n_ranks; r++)
        row += parts[r].bytes;
    for (int r = 0; r < m->w->n_ranks; before += parts[r++].bytes) {
        if (parts[r].bytes != width_of(m, i, r))
            return 1;
        for (size_t t = 0; t < n; t++) {
            uint8_t *at = out + t * row + before;
            if (parts[r].rows != NULL)
                memcpy(at, parts[r].rows + t * parts[r].bytes, parts[r].bytes);
            for (size_t k = 0; k < parts[r].bytes; k++)
                if (at[k] != byte_of(i, r, t, k))
                    return snprintf(m->what, sizeof m->what,
                                    "round %d: rank %d has another byte %zu of row %zu of rank %d",
                                    i, m->rank, k, t, r);
        }
    }
    return 0;
}

static int step_once(struct member *m, int i)
{
    uint8_t data[STEP], want[STEP];
    size_t n = 0, n_want = 1 + sl_mix64((uint64_t)i) % STEP;
    for (size_t k = 0; k < n_want; k++)
        want[k] = byte_of(i, 0, 99, k);
    if (m->rank == 0)
        return sl_link_send(m->link, want, n_want);
    int rc = sl_link_recv(m->link, data, sizeof data, &n);
    return rc != 0 ? rc : n != n_want || memcmp(data, want, n) != 0;
}

static void *member_main(void *arg)
{
    struct member *m = arg;
    uint8_t *own = sl_malloc(ROOM), *out = sl_malloc(ROOM);
    for (int i = 0; i < N_ROUNDS && m->rc == 0; i++) {
        /* in turns where others can read it, as models do, and elsewhere, as experts do */
        uint8_t *room =
            m->w->shm && i % 3 != 0 ? sl_link_shm_room(&m->cfg, m->w->memory, i % 2) : own;
        if (i % 5 == 0)
            m->rc = step_once(m, i);
        if (m->rc == 0)
            m->rc = gather_once(m, i, room, out);
    }
    sl_free(own);
    sl_free(out);
    return NULL;
}

static void gathers_of(int n_ranks, uint32_t absent, bool shm)
{
    struct world w;
    struct member m[SL_MAX_RANKS];
    pthread_t threads[SL_MAX_RANKS];
    world_open(&w, n_ranks, shm);
    w.absent = absent;
    for (int i = 0; i < n_ranks; i++) {
        m[i] = (struct member){.w = &w, .rank = i};
        if ((absent >> i & 1) != 0) /* what it would read stays there, and it sends nothing */
            continue;
        m[i].cfg = config_of(&w, i);
        m[i].link = link_open(&w, &m[i].cfg);
    }
    for (int i = 0; i < n_ranks; i++)
        if (m[i].link != NULL)
            assert_int_equal(pthread_create(&threads[i], NULL, member_main, &m[i]), 0);
    for (int i = 0; i < n_ranks; i++)
        if (m[i].link != NULL)
            pthread_join(threads[i], NULL);
    for (int i = 0; i < n_ranks; i++)
        if (m[i].rc != 0)
            fail_msg("%s of %d ranks without %x, rank %d: %d %s %s", shm ? "memory" : "tcp",
                     n_ranks, absent, i, m[i].rc, m[i].what, m[i].link->error.msg);
    for (int i = 0; i < n_ranks; i++)
        sl_link_close(m[i].link);
    for (int i = 1; i < n_ranks && !shm; i++)
        if ((absent >> i & 1) != 0) {
            close(w.fds[i][0]);
            close(w.fds[i][1]);
        }
    sl_shm_unmap(w.memory, w.n_memory);
}

static void test_gathers(void **state)
{
    (void)state;
    for (int n = 2; n <= 5; n++) {
        gathers_of(n, 0, false);
        gathers_of(n, 0, true);
    }
    for (int shm = 0; shm <= 1; shm++) {
        gathers_of(4, 1u << 2, shm != 0);
        gathers_of(4, 1u << 1 | 1u << 3, shm != 0);
        gathers_of(2, 1u << 1, shm != 0); /* rank 0 is alone */
    }
}

/* ---------------------------------------------------------------- losses */

static bool two_tenths(void *arg, int rank, uint64_t waited_ns)
{
    *(int *)arg = rank;
    return waited_ns < 200000000u;
}

static void *lose_soon(void *arg)
{
    usleep(100000);
    sl_link_lose(arg);
    return NULL;
}

/* Rank 1 never comes to the gather: patience ends, or another thread says so. */
static void silent(bool shm, bool lose)
{
    struct world w;
    int asked = -2;
    uint8_t part[8] = {0}, out[64];
    struct sl_link_part parts[SL_MAX_RANKS];
    pthread_t thread;
    world_open(&w, 2, shm);
    struct sl_link_config cfg = config_of(&w, 0);
    cfg.patience = lose ? NULL : two_tenths;
    cfg.arg = &asked;
    struct sl_link *l = link_open(&w, &cfg);
    const struct sl_link_gather g = {.part = part, .part_bytes = 8, .n = 1, .out = out};
    if (lose)
        assert_int_equal(pthread_create(&thread, NULL, lose_soon, l), 0);
    const uint64_t t0 = sl_now_ns();
    assert_int_equal(sl_link_all_gather(l, &g, parts), SL_ERANK);
    assert_true(sl_now_ns() - t0 < 2000000000u);
    if (lose)
        pthread_join(thread, NULL);
    else
        assert_int_equal(asked, 1);
    assert_int_equal(sl_link_all_gather(l, &g, parts), SL_ERANK); /* and for good */
    assert_int_equal(sl_link_send(l, part, 8), SL_ERANK);
    sl_link_close(l);
    sl_shm_unmap(w.memory, w.n_memory);
    if (!shm)
        close(w.fds[1][1]);
}

static void test_silent(void **state)
{
    (void)state;
    silent(false, false);
    silent(true, false);
    silent(false, true);
    silent(true, true);
}

/* A peer that sends anything else, or goes away in the middle of a message. */
static void test_nonsense(void **state)
{
    (void)state;
    for (int i = 0; i < 3; i++) {
        struct world w;
        uint8_t part[8] = {0}, out[64], junk[512];
        struct sl_link_part parts[SL_MAX_RANKS];
        world_open(&w, 2, false);
        const struct sl_link_config cfg = config_of(&w, 0);
        struct sl_link *l = link_open(&w, &cfg);
        memset(junk, i, sizeof junk);
        const size_t n = i == 2 ? 10 : sizeof junk;
        assert_int_equal(write(w.fds[1][1], junk, n), (ssize_t)n);
        if (i == 2)
            close(w.fds[1][1]);
        const struct sl_link_gather g = {.part = part, .part_bytes = 8, .n = 1, .out = out};
        assert_int_equal(sl_link_all_gather(l, &g, parts), SL_ERANK);
        assert_non_null(strstr(l->error.msg, i == 2 ? "rank 1: " : "rank 1 is out of step"));
        sl_link_close(l);
        if (i != 2)
            close(w.fds[1][1]);
    }
}

/* In shared memory: a part that would lie outside of it. */
static void test_outside(void **state)
{
    (void)state;
    struct world w;
    uint8_t part[8] = {0}, out[64];
    struct sl_link_part parts[SL_MAX_RANKS];
    world_open(&w, 2, true);
    const struct sl_link_config first = config_of(&w, 0), other = config_of(&w, 1);
    struct sl_link *l = link_open(&w, &first), *o = link_open(&w, &other);
    const struct sl_link_gather g = {
        .part = part, .part_bytes = 8, .n = 1, .out = out, .first_only = true};
    const struct sl_link_gather mine = {.part = part, .part_bytes = 8, .n = 1, .first_only = true};
    int asked;
    o->cfg.patience = two_tenths;
    o->cfg.arg = &asked;
    assert_int_equal(sl_link_all_gather(o, &mine, parts), SL_ERANK); /* it has published */
    /* rank 1 wrote another place over its own */
    uint64_t *words = w.memory;
    bool found = false;
    for (size_t k = 0; k < 4096 / sizeof *words && !found; k++)
        if (words[k] >= 4096 && words[k] < w.n_memory && words[k + 1] == 8) {
            words[k] = w.n_memory - 4;
            found = true;
        }
    assert_true(found);
    assert_int_equal(sl_link_all_gather(l, &g, parts), SL_ERANK);
    assert_non_null(strstr(l->error.msg, "rank 1 has 8 bytes of a row at"));
    sl_link_close(l);
    sl_link_close(o);
    sl_shm_unmap(w.memory, w.n_memory);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_gathers),
        cmocka_unit_test(test_silent),
        cmocka_unit_test(test_nonsense),
        cmocka_unit_test(test_outside),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
