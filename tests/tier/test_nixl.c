/* SPDX-License-Identifier: MIT
 * Tests of pages that NIXL carries between two processes, with the real library: over shared
 * memory, and again over UCX's TCP. Whatever happens to it or to the other process, a job ends in
 * time and the store has right pages only.
 *
 * The other process is this program, too: it has the pages, and does what it is told.
 */
#include "peer_rig.h"

#include "tier/nixl_impl.h"

#include <pthread.h>
#include <signal.h>
#include <sys/wait.h>

#define N_LEASES 24 /* of the same pages: the first one's number is that of a pair */

static char own_path[4096];

/* ---- the process that has the pages */

static volatile sig_atomic_t held;

/* The agent's thread stands still while the rest of the process goes on. */
static void hold(int signal)
{
    (void)signal;
    while (held)
        usleep(1000);
}

static void spoil(struct pair *t)
{
    size_t n;
    uint8_t *p = sl_store_memory(t->p.store, &n);
    for (size_t i = 0; i < n; i += 512)
        p[i] ^= 1;
}

static struct sl_nixl *open_agent(struct sl_store *store)
{
    const struct sl_nixl_config cfg = {.store = store, .backend = "UCX"};
    struct sl_nixl *n = NULL;
    struct sl_error err;
    size_t n_bytes;
    assert_int_equal(sl_nixl_open(&cfg, &n, &err), 0);
    const uint64_t end = sl_now_ns() + 60000 * MS;
    while (sl_nixl_metadata(n, &n_bytes) == NULL && sl_now_ns() < end)
        usleep(1000);
    assert_non_null(sl_nixl_metadata(n, &n_bytes));
    return n;
}

static void say(const void *p, size_t n)
{
    assert_int_equal(write(STDOUT_FILENO, p, n), (ssize_t)n);
}

static int serve_main(bool nixl)
{
    struct pair t = {.lease_ms = 600000};
    struct sl_serve_stats st;
    struct sl_lease *leases[N_LEASES];
    size_t n = 0;
    char what;
    pair_init(&t);
    t.nixl_p = nixl ? open_agent(t.p.store) : NULL;
    put_all(&t);
    open_serve(&t, 0);
    for (int i = 0; i < N_LEASES; i++, t.id.lo++) {
        leases[i] = sl_serve_lease(t.serve, &t.id, N_BLOCKS, t.names_p, t.tokens);
        assert_non_null(leases[i]);
        sl_lease_over(leases[i], 0, false);
    }
    signal(SIGUSR1, hold);
    say(&t.port, sizeof t.port);
    while (read(STDIN_FILENO, &what, 1) == 1) {
        if (what == 'h') {
            held = 1;
            pthread_kill(t.nixl_p->thread, SIGUSR1);
        } else if (what == 'r') {
            held = 0;
        } else if (what == 'x') {
            spoil(&t);
        } else if (what == 'm') {
            const void *metadata = sl_nixl_metadata(t.nixl_p, &n);
            say(&n, sizeof n);
            say(metadata, n);
        }
        sl_serve_stats(t.serve, &st);
        say(&st, sizeof st);
    }
    held = 0;
    sl_serve_close(t.serve);
    assert_true(sl_nixl_close(t.nixl_p));
    for (int i = 0; i < N_LEASES; i++)
        sl_lease_unref(leases[i]);
    rig_close(&t.p);
    rig_close(&t.d);
    return 0;
}

struct other {
    pid_t pid;
    int to, from; /* pipes */
    int port;
};

static void hear(const struct other *o, void *p, size_t n)
{
    for (size_t at = 0; at < n;) {
        ssize_t got = read(o->from, (char *)p + at, n - at);
        assert_true(got > 0);
        at += (size_t)got;
    }
}

static struct other start_other(bool nixl)
{
    int to[2], from[2];
    struct other o;
    assert_int_equal(pipe(to), 0);
    assert_int_equal(pipe(from), 0);
    o.pid = fork();
    assert_true(o.pid >= 0);
    if (o.pid == 0) {
        (void)dup2(to[0], STDIN_FILENO);
        (void)dup2(from[1], STDOUT_FILENO);
        for (int fd = 3; fd < 256; fd++)
            close(fd);
        execl(own_path, own_path, nixl ? "serve" : "serve-tcp", (char *)NULL);
        _exit(127);
    }
    close(to[0]);
    close(from[1]);
    o.to = to[1];
    o.from = from[0];
    hear(&o, &o.port, sizeof o.port);
    return o;
}

static struct sl_serve_stats tell(const struct other *o, char what)
{
    struct sl_serve_stats st;
    assert_int_equal(write(o->to, &what, 1), 1);
    hear(o, &st, sizeof st);
    return st;
}

static void forget(const struct other *o)
{
    close(o->to);
    close(o->from);
}

static void end_other(const struct other *o)
{
    int status = 0;
    forget(o);
    assert_int_equal(waitpid(o->pid, &status, 0), o->pid);
    assert_true(WIFEXITED(status) && WEXITSTATUS(status) == 0);
}

static void kill_other(const struct other *o)
{
    kill(o->pid, SIGKILL);
    assert_int_equal(waitpid(o->pid, NULL, 0), o->pid);
    forget(o);
}

/* ---- this one */

static void open_asking(struct pair *t, const struct other *o)
{
    pair_init(t);
    t->nixl_d = open_agent(t->d.store);
    t->port = o->port;
    open_peer(t);
}

static struct sl_nixl_stats nixl_stats(struct pair *t)
{
    struct sl_nixl_stats st;
    sl_nixl_stats(t->nixl_d, &st);
    return st;
}

static void await_none_kept(struct pair *t)
{
    const uint64_t end = sl_now_ns() + 20000 * MS;
    while (nixl_stats(t).n_kept > 0 && sl_now_ns() < end)
        usleep(1000);
    assert_int_equal(nixl_stats(t).n_kept, 0);
}

static void close_asking(struct pair *t)
{
    sl_peer_close(t->peer);
    await_none_kept(t);
    assert_true(sl_nixl_close(t->nixl_d));
    rig_close(&t->p);
    rig_close(&t->d);
}

/* Pages of a prompt, right or not there. */
static int n_came(struct pair *t)
{
    int n = 0;
    for (int32_t i = 0; i < N_BLOCKS; i++)
        for (int32_t g = 0; g < N_GROUPS; g++)
            n += came(t, i, g);
    return n;
}

static void pages_are_read_by_nixl(void **state)
{
    (void)state;
    struct other o = start_other(true);
    struct pair t = {0};
    const uint64_t n_wanted = N_BLOCKS + 1 + 3;
    open_asking(&t, &o);
    struct sl_peer_want w = want_of(&t);
    ask(&t, &w);
    check_depth(&t, N_BLOCKS - 2);
    const struct sl_nixl_stats st = nixl_stats(&t);
    if (st.n_late == 0) /* a busy machine may be slow at times */
        assert_int_equal(st.n_reads, n_wanted);
    assert_true(st.n_reads > 0);
    assert_int_equal(st.n_failed, 0);
    const uint64_t end = sl_now_ns() + 5000 * MS;
    while (tell(&o, 's').n_pages < n_wanted && sl_now_ns() < end)
        usleep(1000);
    assert_int_equal(tell(&o, 's').n_pages, n_wanted); /* it is told of each of them */
    close_asking(&t);
    end_other(&o);
}

/* It has no NIXL, or does not want it: the same pages come over TCP. */
static void one_of_two_is_not_enough(void **state)
{
    (void)state;
    struct other o = start_other(false);
    struct pair t = {0};
    open_asking(&t, &o);
    struct sl_peer_want w = want_of(&t);
    ask(&t, &w);
    check_depth(&t, N_BLOCKS - 2);
    assert_int_equal(nixl_stats(&t).n_reads, 0);
    close_asking(&t);
    end_other(&o);

    o = start_other(true);
    t = (struct pair){0};
    pair_init(&t);
    t.port = o.port;
    open_peer(&t);
    w = want_of(&t);
    ask(&t, &w);
    check_depth(&t, N_BLOCKS - 2);
    sl_peer_close(t.peer);
    rig_close(&t.p);
    rig_close(&t.d);
    end_other(&o);
}

/* The other agent does not answer: TCP brings the pages, and what comes late harms nothing. */
static void what_is_late_comes_over_tcp(void **state)
{
    (void)state;
    struct other o = start_other(true);
    struct pair t = {0};
    open_asking(&t, &o);
    tell(&o, 'h');
    struct sl_peer_want w = want_of(&t);
    assert_in_range(ask(&t, &w), SL_NIXL_SILENT_MS / 2, 15000);
    check_depth(&t, N_BLOCKS - 2);
    struct sl_nixl_stats st = nixl_stats(&t);
    assert_true(st.n_late > 0);
    assert_true(st.n_kept > 0); /* those places are out of use */
    tell(&o, 'r');
    await_none_kept(&t); /* written to now, or their connection is gone */
    check_depth(&t, N_BLOCKS - 2);
    close_asking(&t);
    end_other(&o);
}

/* Reads that have begun and are not over. */
static int32_t n_under_way(struct pair *t)
{
    int32_t n = 0;
    pthread_mutex_lock(&t->nixl_d->lock);
    for (int i = 0; i < SL_MAX_NIXL_REMOTES; i++)
        n += t->nixl_d->remotes[i] != NULL ? t->nixl_d->remotes[i]->n_reads : 0;
    pthread_mutex_unlock(&t->nixl_d->lock);
    return n;
}

/* The page's bytes change between its digest and its reading. False: it was too late for that. */
static bool spoil_what_is_read(void)
{
    struct other o = start_other(true);
    struct pair t = {0};
    open_asking(&t, &o);
    tell(&o, 'h');
    struct sl_peer_want w = want_of(&t);
    struct sl_peer_job *j = sl_peer_begin(t.peer, &w);
    assert_non_null(j);
    while (n_under_way(&t) == 0 && !sl_peer_over(j)) /* it is told where the first pages lie */
        usleep(200);
    tell(&o, 'x');
    tell(&o, 'r');
    await(j);
    sl_peer_unref(j);
    const bool in_time = nixl_stats(&t).n_late == 0;
    if (in_time) {
        assert_true(peer_stats(&t).n_corrupt > 0);
        assert_int_equal(n_came(&t), 0);
    }
    close_asking(&t);
    end_other(&o);
    return in_time;
}

static void wrong_bytes_are_not_believed(void **state)
{
    (void)state;
    bool done = false;
    for (int i = 0; !done && i < 10; i++) /* a busy machine may be slow at times */
        done = spoil_what_is_read();
    assert_true(done);
}

static void a_killed_peer_ends_it(void **state)
{
    (void)state;
    for (useconds_t us = 500; us < 200000; us *= 3) {
        struct other o = start_other(true);
        struct pair t = {0};
        open_asking(&t, &o);
        struct sl_peer_want w = want_of(&t);
        const uint64_t at = sl_now_ns();
        struct sl_peer_job *j = sl_peer_begin(t.peer, &w);
        assert_non_null(j);
        usleep(us);
        kill_other(&o);
        await(j);
        sl_peer_unref(j);
        assert_true(sl_now_ns() - at < 15000 * MS);
        (void)n_came(&t);
        close_asking(&t);
    }
}

/* It stands still, with all of its connections, and goes on after it was given up. */
static void a_stopped_peer_is_given_up(void **state)
{
    (void)state;
    struct other o = start_other(true);
    struct pair t = {0};
    open_asking(&t, &o);
    struct sl_peer_want w = want_of(&t);
    w.wait_ms = 4000;
    kill(o.pid, SIGSTOP);
    assert_in_range(ask(&t, &w), 0, 15000);
    assert_int_equal(n_came(&t), 0);
    kill(o.pid, SIGCONT);
    w = want_of(&t);
    ask(&t, &w);
    check_depth(&t, N_BLOCKS - 2);
    close_asking(&t);
    end_other(&o);
}

/* Jobs that nobody wants any more, at all points of a transfer. */
static void reads_may_be_cancelled(void **state)
{
    (void)state;
    struct other o = start_other(true);
    struct pair t = {0};
    open_asking(&t, &o);
    for (uint64_t k = 0; k <= 20; k++, t.id.lo++) {  /* that ends a lease */
        for (int i = 0; k < 20 && i < N_BLOCKS; i++) /* others' prompts */
            t.names_d[i] = rig_key(20000 + k * 100 + (uint64_t)i, 0).name;
        for (int i = 0; k == 20 && i < N_BLOCKS; i++)
            t.names_d[i] = rig_key((uint64_t)(NAMES_D + i), 0).name;
        struct sl_peer_want w = want_of(&t);
        struct sl_peer_job *j = sl_peer_begin(t.peer, &w);
        assert_non_null(j);
        usleep((useconds_t)(sl_mix64(k) % 20000));
        if (k < 20)
            sl_peer_cancel(j);
        await(j);
        sl_peer_unref(j);
    }
    check_depth(&t, N_BLOCKS - 2);
    close_asking(&t);
    end_other(&o);
}

/* ---- what a peer may say */

static enum sl_nixl_state read_at(struct pair *t, struct sl_nixl_remote *r, uint64_t addr,
                                  uint8_t *room)
{
    enum sl_nixl_state state = SL_NIXL_PENDING;
    int bell;
    struct sl_error err;
    assert_int_equal(sl_peer_bell(&bell, &err), 0);
    struct sl_nixl_read *read = sl_nixl_begin(t->nixl_d, r, addr, room, 4096, bell);
    assert_non_null(read);
    while (state == SL_NIXL_PENDING) {
        usleep(500);
        state = sl_nixl_look(t->nixl_d, read, sl_now_ns());
    }
    if (state == SL_NIXL_DONE)
        sl_nixl_end(t->nixl_d, read);
    else
        sl_nixl_give_up(t->nixl_d, read);
    close(bell);
    return state;
}

static uint8_t *room_of(struct pair *t, uint64_t id)
{
    struct sl_store_key key = rig_key(id, FULL);
    uint8_t *room = sl_store_reserve(t->d.store, &key);
    assert_non_null(room);
    return room;
}

static void strange_metadata_and_addresses_fail(void **state)
{
    (void)state;
    struct other o = start_other(true);
    struct pair t = {0};
    uint8_t metadata[4096];
    size_t n = 0;
    struct sl_serve_stats st;
    open_asking(&t, &o);
    assert_int_equal(write(o.to, "m", 1), 1);
    hear(&o, &n, sizeof n);
    assert_in_range(n, 1, sizeof metadata);
    hear(&o, metadata, n);
    hear(&o, &st, sizeof st);
    struct sl_nixl_remote *r = sl_nixl_meet(t.nixl_d, metadata, n);
    assert_non_null(r);
    assert_int_equal(read_at(&t, r, 4096, room_of(&t, 70000)), SL_NIXL_FAILED);
    assert_false(sl_nixl_usable(t.nixl_d, r)); /* for a while */
    await_none_kept(&t);
    sl_nixl_part(t.nixl_d, r);
    for (uint64_t k = 0; k < 40; k++) { /* cut, or changed */
        uint8_t bad[4096];
        const size_t n_bad = k % 2 == 0 ? 1 + sl_mix64(k) % n : n;
        memcpy(bad, metadata, n);
        if (k % 2 != 0)
            bad[sl_mix64(k) % SL_MIN(n, 64)] ^= (uint8_t)(1 + k);
        r = sl_nixl_meet(t.nixl_d, bad, n_bad);
        assert_non_null(r);
        if (sl_nixl_usable(t.nixl_d, r))
            (void)read_at(&t, r, 4096, room_of(&t, 80000 + k));
        sl_nixl_part(t.nixl_d, r);
    }
    await_none_kept(&t);
    assert_null(sl_nixl_meet(t.nixl_d, metadata, 0));
    close_asking(&t);
    end_other(&o);
}

/* The table is full of servers in use; then one of them goes for another one. */
static void too_many_servers_are_refused(void **state)
{
    (void)state;
    struct pair t = {0};
    struct sl_nixl_remote *all[SL_MAX_NIXL_REMOTES];
    pair_init(&t);
    t.nixl_d = open_agent(t.d.store);
    for (int i = 0; i < SL_MAX_NIXL_REMOTES; i++) {
        all[i] = sl_nixl_meet(t.nixl_d, &i, sizeof i);
        assert_non_null(all[i]);
    }
    int one_more = SL_MAX_NIXL_REMOTES;
    assert_null(sl_nixl_meet(t.nixl_d, &one_more, sizeof one_more));
    assert_ptr_equal(sl_nixl_meet(t.nixl_d, &(int){3}, sizeof(int)), all[3]);
    sl_nixl_part(t.nixl_d, all[3]);
    for (int i = 0; i < SL_MAX_NIXL_REMOTES; i++)
        sl_nixl_part(t.nixl_d, all[i]);
    struct sl_nixl_remote *r = NULL;
    const uint64_t end = sl_now_ns() + 5000 * MS;
    while (r == NULL && sl_now_ns() < end) {
        r = sl_nixl_meet(t.nixl_d, &one_more, sizeof one_more);
        usleep(1000);
    }
    assert_non_null(r);
    sl_nixl_part(t.nixl_d, r);
    assert_true(sl_nixl_close(t.nixl_d));
    rig_close(&t.p);
    rig_close(&t.d);
}

int main(int argc, char **argv)
{
    const struct sl_nixl_lib *lib;
    struct sl_error err;
    const char *what = argc > 1 ? argv[1] : "";
    sl_log_set_level(SL_LOG_ERROR);
    if (strncmp(what, "serve", 5) == 0)
        return serve_main(strcmp(what, "serve") == 0);
    if (sl_nixl_load(&lib, &err) != 0) {
        printf("skipped: %s\n", err.msg);
        return 0;
    }
    assert_true(readlink("/proc/self/exe", own_path, sizeof own_path - 1) > 0);
    signal(SIGPIPE, SIG_IGN);
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(pages_are_read_by_nixl),
        cmocka_unit_test(one_of_two_is_not_enough),
        cmocka_unit_test(what_is_late_comes_over_tcp),
        cmocka_unit_test(wrong_bytes_are_not_believed),
        cmocka_unit_test(a_killed_peer_ends_it),
        cmocka_unit_test(a_stopped_peer_is_given_up),
        cmocka_unit_test(reads_may_be_cancelled),
        cmocka_unit_test(strange_metadata_and_addresses_fail),
        cmocka_unit_test(too_many_servers_are_refused),
    };
    const int n_failed = cmocka_run_group_tests(tests, NULL, NULL);
    if (n_failed > 0 || strcmp(what, "tcp") == 0)
        return n_failed;
    setenv("UCX_TLS", "tcp", 1); /* read when the library is loaded */
    execl(own_path, own_path, "tcp", (char *)NULL);
    return 1;
}
