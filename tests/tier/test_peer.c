/* SPDX-License-Identifier: MIT
 * Tests of pages between servers: two stores of one process, one of which offers a prompt's pages
 * over loopback, and the other asks for them. Whatever goes wrong, a job ends and the store has
 * right pages only.
 */
#include "peer_rig.h"

#include <arpa/inet.h>
#include <netinet/in.h>
#include <pthread.h>
#include <sys/socket.h>

/* ---- what goes well */

static void pages_come_over(void **state)
{
    (void)state;
    struct pair t = {0};
    pair_open(&t);
    put_all(&t);
    offer(&t);
    sl_lease_over(t.lease, 0, false);
    struct sl_peer_want w = want_of(&t);
    ask(&t, &w);
    check_depth(&t, N_BLOCKS - 2);
    assert_int_equal(atomic_load(&t.d.n_wakes), 1);
    const uint64_t n = peer_stats(&t).n_pages;
    assert_int_equal(n, N_BLOCKS + 1 + 3);
    for (int i = 0; i < 1000 && serve_stats(&t).n_pages < n; i++)
        usleep(1000); /* the last one is counted when all of it has been sent */
    assert_int_equal(serve_stats(&t).n_pages, n);
    ask(&t, &w); /* all of it is there: nothing is asked for, whether the lease is there or not */
    assert_int_equal(serve_stats(&t).n_pages, n);
    pair_close(&t);
}

static void *prefill(void *arg)
{
    struct pair *t = arg;
    usleep(20000);
    offer(t);
    for (int32_t i = 0; i < N_BLOCKS; i++) {
        usleep(2000);
        assert_true(put(t, i, FULL));
        assert_true(put(t, i, SLIDING));
        sl_serve_stored(t->serve, (uint64_t)i);
    }
    assert_true(put(t, N_BLOCKS - 1, STATE));
    sl_lease_over(t->lease, N_BLOCKS, false);
    sl_serve_stored(t->serve, N_BLOCKS);
    return NULL;
}

/* Who decodes asks before there is a lease, and reads while pages are computed. */
static void a_room_is_waited_for(void **state)
{
    (void)state;
    struct pair t = {0};
    pthread_t thread;
    pair_open(&t);
    t.id = (struct sl_lease_id){.lo = 12345, .is_room = 1};
    struct sl_peer_want w = want_of(&t);
    assert_int_equal(pthread_create(&thread, NULL, prefill, &t), 0);
    struct sl_peer_job *j = sl_peer_begin(t.peer, &w);
    bool early = false;
    while (!sl_peer_over(j)) {
        early |= peer_stats(&t).n_pages > 0 && !sl_peer_over(j);
        usleep(200);
    }
    pthread_join(thread, NULL);
    assert_true(early);
    sl_peer_unref(j);
    check_depth(&t, N_BLOCKS);
    assert_int_equal(peer_stats(&t).n_whole, 1);
    pair_close(&t);
}

static void many_jobs_at_once(void **state)
{
    (void)state;
    struct pair t = {0};
    struct sl_peer_job *jobs[100];
    struct sl_hash128 names[100][N_BLOCKS];
    pair_open(&t);
    put_all(&t);
    offer(&t);
    struct sl_peer_want w = want_of(&t);
    for (int k = 0; k < 100; k++) { /* others' prompts have names of their own */
        for (int i = 0; i < N_BLOCKS; i++)
            names[k][i] = rig_key((uint64_t)(10000 + (k % 10) * 100 + i), 0).name;
        w.names = names[k];
        jobs[k] = sl_peer_begin(t.peer, &w);
        assert_non_null(jobs[k]);
    }
    sl_lease_over(t.lease, 0, false);
    for (int k = 0; k < 100; k++) {
        await(jobs[k]);
        sl_peer_unref(jobs[k]);
    }
    assert_int_equal(peer_stats(&t).n_jobs, 100);
    pair_close(&t);
}

/* Pages that are there come without a wait for anybody's clock, however many they are. */
static void no_number_of_pages_waits(void **state)
{
    (void)state;
    struct pair t = {0};
    uint64_t least = UINT64_MAX, ns;
    pair_open(&t);
    put_all(&t);
    for (int32_t n = 1; n <= N_BLOCKS; n++) {
        t.id.lo++;
        offer(&t);
        sl_lease_over(t.lease, 0, false);
        for (int i = 0; i < N_BLOCKS; i++)
            t.names_d[i].hi = (uint64_t)(n * 1000 + i);
        struct sl_peer_want w = want_of(&t);
        w.n_blocks = n;
        ns = sl_now_ns();
        ask(&t, &w);
        least = SL_MIN(least, sl_now_ns() - ns);
        const bool slow = sl_now_ns() - ns > 80 * MS; /* a busy machine may be slow at times */
        for (int again = 0; slow && again < 3; again++) {
            for (int i = 0; i < N_BLOCKS; i++)
                t.names_d[i].lo++;
            sl_lease_unref(t.lease);
            t.id.lo++;
            offer(&t);
            sl_lease_over(t.lease, 0, false);
            w = want_of(&t);
            w.n_blocks = n;
            ns = sl_now_ns();
            ask(&t, &w);
            if (sl_now_ns() - ns < 80 * MS)
                break;
            assert_true(again < 2);
        }
        sl_lease_unref(t.lease);
        t.lease = NULL;
    }
    assert_true(least < 80 * MS);
    pair_close(&t);
}

/* ---- what does not */

static void what_is_missing_ends_it(void **state)
{
    (void)state;
    struct pair t = {0};
    pair_open(&t);
    for (int32_t i = 0; i < N_BLOCKS; i++) {
        if (i != 9)
            assert_true(put(&t, i, FULL));
        assert_true(put(&t, i, SLIDING));
        if (has_state(i))
            assert_true(put(&t, i, STATE));
    }
    offer(&t);
    struct sl_peer_want w = want_of(&t);
    struct sl_peer_job *j = sl_peer_begin(t.peer, &w);
    usleep(50000);
    assert_false(sl_peer_over(j)); /* it may still come */
    sl_serve_stored(t.serve, 5);
    sl_lease_over(t.lease, 5, false); /* it will not */
    await(j);
    sl_peer_unref(j);
    check_depth(&t, 4);
    assert_false(came(&t, 9, FULL));
    assert_int_equal(peer_stats(&t).n_whole, 0);
    pair_close(&t);
}

static void of_other_tokens_the_common_ones_come(void **state)
{
    (void)state;
    struct pair t = {0};
    pair_open(&t);
    put_all(&t);
    offer(&t);
    sl_lease_over(t.lease, 0, false);
    t.tokens[10 * BLOCK + 3] ^= 1;
    struct sl_peer_want w = want_of(&t);
    ask(&t, &w);
    check_depth(&t, 4);
    assert_false(came(&t, 10, FULL));
    t.tokens[0] ^= 1;
    for (int i = 0; i < N_BLOCKS; i++)
        t.names_d[i].hi ^= 1; /* another prompt */
    ask(&t, &w);
    assert_int_equal(peer_stats(&t).n_refused, 1);
    pair_close(&t);
}

static void others_are_refused_at_once(void **state)
{
    (void)state;
    struct pair t = {0};
    pair_open(&t);
    put_all(&t);
    offer(&t);
    struct sl_peer_want w = want_of(&t);
    w.id.hi++;
    w.wait_ms = 100; /* no such lease */
    assert_in_range(ask(&t, &w), 0, 2000);
    w = want_of(&t);
    w.id = (struct sl_lease_id){.lo = 5, .is_room = 1};
    sl_serve_refuse_room(t.serve, 5);
    assert_in_range(ask(&t, &w), 0, 2000);
    assert_int_equal(peer_stats(&t).n_refused, 2);
    w = want_of(&t);
    w.host = "127.0.0.2"; /* nobody listens there */
    assert_in_range(ask(&t, &w), 0, 2000);
    w.host = "192.0.2.1"; /* not to be asked */
    assert_in_range(ask(&t, &w), 0, 2000);
    for (int i = 0; i < N_BLOCKS; i++)
        assert_false(came(&t, i, FULL));
    pair_close(&t);
}

static void a_room_may_be_used_again(void **state)
{
    (void)state;
    struct pair t = {0};
    pair_open(&t);
    put_all(&t);
    t.id = (struct sl_lease_id){.lo = 5, .is_room = 1};
    sl_serve_refuse_room(t.serve, 5);
    offer(&t); /* the router tries again */
    assert_null(sl_serve_lease(t.serve, &t.id, N_BLOCKS, t.names_p, t.tokens)); /* it is taken */
    sl_lease_over(t.lease, 0, false);
    struct sl_peer_want w = want_of(&t);
    ask(&t, &w);
    check_depth(&t, N_BLOCKS - 2);
    pair_close(&t);
}

static void another_root_has_nothing(void **state)
{
    (void)state;
    struct pair t = {0};
    pair_open(&t);
    put_all(&t);
    offer(&t);
    sl_serve_close(t.serve);
    sl_lease_unref(t.lease);
    t.layout.root.lo++;
    open_serve(&t, 0);
    offer(&t);
    struct sl_peer_want w = want_of(&t);
    assert_in_range(ask(&t, &w), 0, 2000);
    assert_int_equal(peer_stats(&t).n_refused, 1);
    assert_false(came(&t, 0, FULL));
    pair_close(&t);
}

static void strangers_are_not_served(void **state)
{
    (void)state;
    struct pair t = {.peers_p = "10.0.0.0/8,fd00::/8"};
    pair_open(&t);
    put_all(&t);
    offer(&t);
    struct sl_peer_want w = want_of(&t);
    assert_in_range(ask(&t, &w), 0, 2000);
    assert_int_equal(serve_stats(&t).n_pages, 0);
    assert_true(serve_stats(&t).n_refused > 0);
    pair_close(&t);
}

/* The service ends at every point of a transfer, and is there again for the next one. */
static void a_lost_peer_ends_it(void **state)
{
    (void)state;
    for (useconds_t us = 0; us < 6000; us += 150) {
        struct pair t = {0};
        pair_open(&t);
        put_all(&t);
        offer(&t);
        struct sl_peer_want w = want_of(&t);
        struct sl_peer_job *j = sl_peer_begin(t.peer, &w);
        usleep(us);
        sl_serve_close(t.serve);
        t.serve = NULL;
        await(j);
        sl_peer_unref(j);
        bool all = true;
        for (int32_t i = 0; i < N_BLOCKS; i++)
            for (int32_t g = 0; g < N_GROUPS; g++)
                all &= came(&t, i, g); /* right, or not there */
        assert_false(all);
        pair_close(&t);
    }
}

static void a_job_may_be_cancelled(void **state)
{
    (void)state;
    for (useconds_t us = 0; us < 6000; us += 300) {
        struct pair t = {0};
        pair_open(&t);
        for (int32_t i = 0; i < N_BLOCKS; i += 1 + i / 8) /* some never come */
            assert_true(put(&t, i, FULL));
        offer(&t);
        struct sl_peer_want w = want_of(&t);
        struct sl_peer_job *j = sl_peer_begin(t.peer, &w);
        usleep(us);
        sl_peer_cancel(j);
        if (us % 600 == 0)
            await(j);
        sl_peer_unref(j);
        pair_close(&t);
    }
}

static void a_deadline_ends_it(void **state)
{
    (void)state;
    struct pair t = {0};
    pair_open(&t);
    for (int32_t i = 0; i < 4; i++)
        assert_true(put(&t, i, FULL));
    offer(&t); /* the rest does not come, and nobody says so */
    struct sl_peer_want w = want_of(&t);
    w.wait_ms = 300;
    assert_in_range(ask(&t, &w), 250, 3000);
    for (int32_t i = 0; i < N_BLOCKS; i++)
        assert_int_equal(came(&t, i, FULL), i < 4);
    pair_close(&t);
}

/* ---- leases */

static void a_lease_keeps_its_pages(void **state)
{
    (void)state;
    struct pair t = {.lease_ms = 300, .pages_p = 512};
    pair_open(&t);
    put_all(&t);
    offer(&t);
    sl_lease_over(t.lease, 0, false);
    usleep(100000);
    for (uint64_t i = 0; i < 400; i++) /* enough to evict all that may be */
        rig_put(&t.p, 20000 + i, FULL);
    assert_true(rig_has(&t.p, NAMES_P, FULL));
    assert_true(rig_has(&t.p, NAMES_P + N_BLOCKS - 1, FULL));
    usleep(1500000);
    assert_int_equal(serve_stats(&t).n_expired, 1);
    for (uint64_t i = 0; i < 400; i++)
        rig_put(&t.p, 30000 + i, FULL);
    assert_false(rig_has(&t.p, NAMES_P, FULL));
    struct sl_peer_want w = want_of(&t);
    w.wait_ms = 50;
    ask(&t, &w); /* gone: nothing comes, nothing breaks */
    assert_false(came(&t, 0, FULL));
    pair_close(&t);
}

static void what_was_read_may_go(void **state)
{
    (void)state;
    struct pair t = {.pages_p = 512};
    pair_open(&t);
    put_all(&t);
    offer(&t);
    sl_lease_over(t.lease, 0, false);
    struct sl_peer_want w = want_of(&t);
    ask(&t, &w);
    usleep(1500000);
    assert_int_equal(serve_stats(&t).n_expired, 0);
    for (uint64_t i = 0; i < 400; i++)
        rig_put(&t.p, 20000 + i, FULL);
    assert_false(rig_has(&t.p, NAMES_P, FULL));
    pair_close(&t);
}

/* ---- peers that do not keep to it */

static int dial(int port)
{
    struct sockaddr_in a = {.sin_family = AF_INET, .sin_port = htons((uint16_t)port)};
    a.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    assert_int_equal(connect(fd, (struct sockaddr *)&a, sizeof a), 0);
    return fd;
}

static void strange_bytes_harm_nobody(void **state)
{
    (void)state;
    struct pair t = {0};
    pair_open(&t);
    put_all(&t);
    offer(&t);
    for (uint64_t k = 0; k < 300; k++) {
        struct {
            struct sl_peer_hello hello;
            int32_t tokens[N_BLOCKS * BLOCK];
            struct sl_peer_ask asks[4];
        } all = {.hello = {.magic = SL_PEER_MAGIC,
                           .root = t.layout.root,
                           .id = t.id,
                           .block_size = BLOCK,
                           .n_blocks = N_BLOCKS}};
        memcpy(all.tokens, t.tokens, sizeof all.tokens);
        for (int i = 0; i < 4; i++)
            all.asks[i] = (struct sl_peer_ask){.block = (int32_t)(sl_mix64(k + 77) % 40) * 2 - 40,
                                               .group = i - 1};
        uint8_t *bytes = (uint8_t *)&all;
        for (uint64_t i = 0; i < k % 4; i++) /* of the head, mostly */
            bytes[sl_mix64(k * 9 + i) % (i == 0 ? sizeof all : sizeof all.hello)] ^=
                (uint8_t)sl_mix64(k + i);
        int fd = dial(sl_serve_port(t.serve));
        size_t n = k % 3 == 0 ? sizeof all : sl_mix64(k) % sizeof all;
        assert_int_equal(send(fd, bytes, n, MSG_NOSIGNAL), (ssize_t)n);
        shutdown(fd, SHUT_WR);
        if (k % 2 == 0)
            (void)!read(fd, bytes, 16);
        close(fd);
    }
    struct sl_peer_want w = want_of(&t);
    sl_lease_over(t.lease, 0, false);
    ask(&t, &w);
    check_depth(&t, N_BLOCKS - 2);
    pair_close(&t);
}

/* What comes when a peer that shows the tokens of n blocks asks for one: 0 is the end. */
static ssize_t ask_after(struct pair *t, int32_t n, int32_t block, struct sl_peer_page *page)
{
    struct {
        struct sl_peer_hello hello;
        int32_t tokens[N_BLOCKS * BLOCK];
    } all = {.hello = {.magic = SL_PEER_MAGIC,
                       .root = t->layout.root,
                       .id = t->id,
                       .block_size = BLOCK,
                       .n_blocks = n}};
    const struct sl_peer_ask ask = {.block = block};
    const size_t n_all = offsetof(__typeof__(all), tokens) + (size_t)(n * BLOCK) * sizeof(int32_t);
    struct sl_peer_welcome w;
    int fd = dial(sl_serve_port(t->serve));
    memcpy(all.tokens, t->tokens, sizeof all.tokens);
    assert_int_equal(send(fd, &all, n_all, MSG_NOSIGNAL), (ssize_t)n_all);
    assert_int_equal(send(fd, &ask, sizeof ask, MSG_NOSIGNAL), (ssize_t)sizeof ask);
    assert_int_equal(recv(fd, &w, sizeof w, MSG_WAITALL), (ssize_t)sizeof w);
    assert_int_equal(w.status, SL_PEER_OK);
    assert_int_equal(w.n_blocks, n);
    ssize_t got = recv(fd, page, sizeof *page, MSG_WAITALL);
    close(fd);
    return got;
}

static void only_what_was_shown_is_served(void **state)
{
    (void)state;
    struct pair t = {0};
    struct sl_peer_page page;
    pair_open(&t);
    put_all(&t);
    offer(&t);
    assert_int_equal(ask_after(&t, 5, 4, &page), (ssize_t)sizeof page);
    assert_int_equal(page.status, SL_PEER_OK);
    assert_int_equal(page.block, 4);
    assert_true(ask_after(&t, 5, 5, &page) <= 0);
    assert_true(ask_after(&t, 5, N_BLOCKS - 1, &page) <= 0);
    sl_lease_over(t.lease, 0, false);
    pair_close(&t);
}

/* Stands between the two and changes one byte of what the service says, or cuts it there. */
struct between {
    int listen_fd, port, to_port;
    uint64_t at; /* of the bytes it says */
    bool cut;
};

static void *stand_between(void *arg)
{
    struct between *b = arg;
    int down = accept(b->listen_fd, NULL, NULL), up = dial(b->to_port);
    fd_set set;
    uint8_t buf[4096];
    uint64_t n_said = 0;
    for (;;) {
        FD_ZERO(&set);
        FD_SET(down, &set);
        FD_SET(up, &set);
        if (select(SL_MAX(up, down) + 1, &set, NULL, NULL, NULL) < 0)
            break;
        int from = FD_ISSET(up, &set) ? up : down;
        ssize_t n = read(from, buf, sizeof buf);
        if (n <= 0)
            break;
        bool here = from == up && b->at >= n_said && b->at < n_said + (uint64_t)n;
        if (here && b->cut)
            break;
        if (here)
            buf[b->at - n_said] ^= 0x10;
        n_said += from == up ? (uint64_t)n : 0;
        if (send(from == up ? down : up, buf, (size_t)n, MSG_NOSIGNAL) != n)
            break;
    }
    close(down);
    close(up);
    return NULL;
}

static void open_between(struct between *b)
{
    struct sockaddr_in a = {.sin_family = AF_INET};
    socklen_t n = sizeof a;
    a.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    b->listen_fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    assert_int_equal(bind(b->listen_fd, (struct sockaddr *)&a, sizeof a), 0);
    assert_int_equal(listen(b->listen_fd, 8), 0);
    assert_int_equal(getsockname(b->listen_fd, (struct sockaddr *)&a, &n), 0);
    b->port = ntohs(a.sin_port);
}

static void a_changed_byte_is_never_believed(void **state)
{
    (void)state;
    uint64_t n_corrupt = 0;
    for (int k = 0; k < 60; k++) {
        struct pair t = {0};
        pthread_t thread;
        pair_open(&t);
        put_all(&t);
        offer(&t);
        sl_lease_over(t.lease, 0, false);
        struct between b = {.to_port = sl_serve_port(t.serve),
                            .at = k < 30 ? (uint64_t)k * 2 : sl_mix64((uint64_t)k) % 300000,
                            .cut = k % 5 == 4};
        open_between(&b);
        assert_int_equal(pthread_create(&thread, NULL, stand_between, &b), 0);
        struct sl_peer_want w = want_of(&t);
        w.port = b.port;
        w.wait_ms = 1500;
        ask(&t, &w);
        for (int32_t i = 0; i < N_BLOCKS; i++)
            for (int32_t g = 0; g < N_GROUPS; g++)
                (void)came(&t, i, g); /* right, or not there */
        n_corrupt += peer_stats(&t).n_corrupt;
        pthread_join(thread, NULL);
        close(b.listen_fd);
        pair_close(&t);
    }
    assert_true(n_corrupt > 10);
}

/* ---- addresses */

static void lists_of_addresses(void **state)
{
    (void)state;
    struct sl_netlist l;
    struct sl_error err;
    assert_int_equal(sl_netlist_read(NULL, "f", &l, &err), 0);
    assert_true(sl_netlist_has_text(&l, "127.0.0.1"));
    assert_true(sl_netlist_has_text(&l, "127.9.9.9"));
    assert_true(sl_netlist_has_text(&l, "::1"));
    assert_false(sl_netlist_has_text(&l, "128.0.0.1"));
    assert_false(sl_netlist_has_text(&l, "::2"));
    assert_false(sl_netlist_has_text(&l, "localhost"));
    assert_int_equal(sl_netlist_read("10.1.0.0/15,fd00::/8,192.168.1.7", "f", &l, &err), 0);
    assert_true(sl_netlist_has_text(&l, "10.0.0.1"));
    assert_true(sl_netlist_has_text(&l, "10.1.255.1"));
    assert_false(sl_netlist_has_text(&l, "10.2.0.1"));
    assert_true(sl_netlist_has_text(&l, "fd12::1"));
    assert_true(sl_netlist_has_text(&l, "::ffff:192.168.1.7"));
    assert_false(sl_netlist_has_text(&l, "192.168.1.8"));
    assert_false(sl_netlist_has_text(&l, "127.0.0.1"));
    assert_int_equal(sl_netlist_read("*", "f", &l, &err), 0);
    assert_true(sl_netlist_has_text(&l, "8.8.8.8"));
    static const char *const bad[] = {"",          "a",        "1.2.3",    "1.2.3.4/33",
                                      "::1/129",   "1.2.3.4,", "1.2.3.4/", "/8",
                                      "1.2.3.4/x", "*/8",      "1.2.3.4 "};
    for (size_t i = 0; i < SL_COUNT(bad); i++) {
        assert_int_equal(sl_netlist_read(bad[i], "flag", &l, &err), SL_EINVAL);
        assert_non_null(strstr(err.msg, "flag"));
    }
}

int main(void)
{
    sl_log_set_level(SL_LOG_ERROR);
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(lists_of_addresses),
        cmocka_unit_test(pages_come_over),
        cmocka_unit_test(a_room_is_waited_for),
        cmocka_unit_test(many_jobs_at_once),
        cmocka_unit_test(no_number_of_pages_waits),
        cmocka_unit_test(what_is_missing_ends_it),
        cmocka_unit_test(of_other_tokens_the_common_ones_come),
        cmocka_unit_test(others_are_refused_at_once),
        cmocka_unit_test(a_room_may_be_used_again),
        cmocka_unit_test(another_root_has_nothing),
        cmocka_unit_test(strangers_are_not_served),
        cmocka_unit_test(a_lost_peer_ends_it),
        cmocka_unit_test(a_job_may_be_cancelled),
        cmocka_unit_test(a_deadline_ends_it),
        cmocka_unit_test(a_lease_keeps_its_pages),
        cmocka_unit_test(what_was_read_may_go),
        cmocka_unit_test(strange_bytes_harm_nobody),
        cmocka_unit_test(only_what_was_shown_is_served),
        cmocka_unit_test(a_changed_byte_is_never_believed),
    };
    int n_failed = 0;
    for (n_threads = 1; n_threads <= 4; n_threads += 3)
        n_failed += cmocka_run_group_tests(tests, NULL, NULL);
    return n_failed;
}
