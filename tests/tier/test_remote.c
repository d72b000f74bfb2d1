/* SPDX-License-Identifier: MIT
 * test_remote.c - the remote tier: stores that share pages through a peer (fake_redis.h) get right
 * bytes or none, whatever the peer does, at whatever point, and never wait for it beyond a bound.
 * With redis-server on this machine the same through that.
 */
#include "tier/fake_redis.h"
#include "tier/redis_url.h"
#include "tier/remote.h"
#include "tier/tier_rig.h"

#include <signal.h>
#include <sys/prctl.h>
#include <sys/wait.h>

#define MS      UINT64_C(1000000)
#define N_PAGES 24
#define TIMEOUT 150 /* ms that a question may take */

static struct peer peer;
static char url[128];

/* ---- a store with a remote tier ---- */

static struct rig far_rig(uint64_t n_pages)
{
    struct rig r = rig_plain(n_pages);
    r.cfg.n_groups = 2;
    r.cfg.page_bytes[0] = 3000;
    r.cfg.page_bytes[1] = 200;
    r.cfg.remote_url = url;
    r.cfg.remote_timeout_ms = TIMEOUT;
    r.cfg.remote_store_after = 1;
    r.cfg.remote_ttl_s = 600;
    return r;
}

static void use_peer(int port)
{
    snprintf(url, sizeof url, "redis://127.0.0.1:%d/2", port);
}

static struct sl_store_stats far_stats(struct rig *r)
{
    return rig_stats(r, SL_TIER_REMOTE);
}

static void far_settle(struct rig *r, uint64_t n)
{
    const uint64_t end = sl_now_ns() + 20000 * MS;
    struct sl_store_stats st;
    do {
        usleep(200);
        st = far_stats(r);
    } while (st.stored + st.dropped < n && sl_now_ns() < end);
    assert_int_equal(st.stored + st.dropped, n);
}

static bool far_up(struct rig *r, bool up, uint64_t ms)
{
    const uint64_t end = sl_now_ns() + ms * MS;
    while (far_stats(r).up != up && sl_now_ns() < end)
        usleep(1000);
    return far_stats(r).up == up;
}

/* As rig_get, from the remote tier too. */
static int far_get(struct rig *r, uint64_t id, int32_t group)
{
    struct sl_store_get get = {.key = rig_key(id, group), .remote = true};
    sl_store_begin(r->store, &get);
    const int32_t state = rig_await(&get);
    assert_int_not_equal(state, SL_STORE_PENDING);
    if (state == SL_STORE_HERE)
        assert_true(rig_same(r, &get.key, get.page));
    sl_store_end(r->store, &get);
    return state == SL_STORE_HERE;
}

/* What the remote says of pages 0 to n - 1: how many it has; -1: it was not asked, -2: no answer in
 * time. */
static int far_ask(struct rig *r, int n, int32_t ends)
{
    const uint64_t start = sl_now_ns();
    struct sl_store_probe *p = sl_store_probe_take(r->store);
    int n_found = 0;
    if (p == NULL)
        return -1;
    for (int i = 0; i < n; i++) {
        const struct sl_store_key key = rig_key((uint64_t)i, i % 2);
        assert_true(sl_store_probe_add(p, &key, i == 0));
    }
    sl_store_probe_send(r->store, p, ends);
    while (!sl_store_probe_over(p))
        usleep(100);
    assert_true(sl_now_ns() - start < (TIMEOUT + 1000) * MS);
    for (int i = 0; i < n; i++)
        n_found += sl_store_probe_found(p, i);
    sl_store_probe_give(r->store, p);
    return n_found > 0 ? n_found : -2;
}

/* The same, until it says what it should: a machine may be too busy to answer in time. */
static void far_ask_until(struct rig *r, int n, int want)
{
    int got = -1;
    for (int i = 0; i < 100 && got != want; i++) {
        if (i > 0)
            usleep(100000);
        got = far_ask(r, n, -1);
    }
    assert_int_equal(got, want);
}

static void far_put_all(struct rig *r)
{
    for (int i = 0; i < N_PAGES; i++)
        assert_true(rig_put(r, (uint64_t)i, i % 2));
}

static int far_get_all(struct rig *r)
{
    int n = 0;
    for (int i = 0; i < N_PAGES; i++)
        n += far_get(r, (uint64_t)i, i % 2);
    return n;
}

/* A peer with all pages. */
static void fill_peer(void)
{
    struct rig a = far_rig(64);
    memset(&peer, 0, sizeof peer);
    peer_start(&peer, 0);
    use_peer(peer.port);
    rig_open(&a);
    far_put_all(&a);
    far_settle(&a, N_PAGES);
    assert_int_equal(far_stats(&a).stored, N_PAGES);
    rig_close(&a);
}

static void end_peer(void)
{
    peer_stop(&peer);
    peer_clear(&peer);
}

/* ---- sharing ---- */

static void share(void)
{
    struct rig a = far_rig(64), b = far_rig(64), other = far_rig(64);
    other.cfg.root.lo++;
    rig_open(&a);
    rig_open(&b);
    rig_open(&other);
    assert_true(far_stats(&a).there && far_stats(&a).up);
    assert_true(sl_store_seed(a.store) == sl_store_seed(b.store));
    assert_true(sl_store_seed(a.store) != sl_store_seed(other.store));
    assert_int_equal(far_ask(&b, N_PAGES, -1), 1); /* what it knows itself */
    far_put_all(&a);
    far_settle(&a, N_PAGES);
    assert_int_equal(far_stats(&a).stored, N_PAGES);
    assert_int_equal(far_stats(&a).stored_bytes, N_PAGES / 2 * 3200);
    assert_int_equal(far_ask(&b, N_PAGES + 10, 0), N_PAGES);
    assert_int_equal(far_ask(&other, N_PAGES, -1), 1);
    assert_false(rig_has(&b, 3, 1)); /* looks at memory only */
    assert_int_equal(rig_get(&b, 3, 1), 0);
    assert_int_equal(far_get_all(&b), N_PAGES);
    assert_int_equal(far_stats(&b).hits, N_PAGES);
    assert_int_equal(far_stats(&b).loaded_bytes, N_PAGES / 2 * 3200);
    assert_true(sl_store_remote_rate(b.store) > 0);
    assert_true(rig_has(&b, 3, 1)); /* now it is in memory */
    assert_int_equal(far_get_all(&other), 0);
    assert_int_equal(far_stats(&other).misses, N_PAGES);
    far_put_all(&other);
    far_settle(&other, N_PAGES);
    rig_restart(&b);
    assert_int_equal(far_get_all(&b), N_PAGES);
    assert_int_equal(far_stats(&b).corrupt + far_stats(&b).io_errors, 0);
    rig_close(&a);
    rig_close(&b);
    rig_close(&other);
}

static void stores_of_a_root_share_pages(void **state)
{
    (void)state;
    memset(&peer, 0, sizeof peer);
    peer_start(&peer, 0);
    use_peer(peer.port);
    share();
    end_peer();
}

/* What another store has written is not written again; what was read is not either. */
static void pages_are_written_once(void **state)
{
    (void)state;
    fill_peer();
    struct rig b = far_rig(64);
    rig_open(&b);
    assert_int_equal(far_get(&b, 0, 0), 1);
    for (int i = 1; i < N_PAGES; i++)
        assert_true(rig_put(&b, (uint64_t)i, i % 2));
    rig_close(&b); /* waits for what is to be written */
    b = far_rig(64);
    rig_open(&b);
    assert_int_equal(far_get_all(&b), N_PAGES);
    assert_int_equal(far_stats(&b).stored, 0);
    rig_close(&b);
    end_peer();
}

static void pages_are_written_when_they_were_seen_often_enough(void **state)
{
    struct peer_value *v;
    (void)state;
    memset(&peer, 0, sizeof peer);
    peer_start(&peer, 0);
    use_peer(peer.port);
    struct rig a = far_rig(64);
    a.cfg.remote_store_after = 3;
    rig_open(&a);
    far_put_all(&a);
    const struct sl_store_key key = rig_key(5, 1), unknown = rig_key(77, 1);
    sl_store_saw(a.store, &key);
    sl_store_saw(a.store, &unknown);
    usleep(50000);
    assert_int_equal(peer_pages(&peer, &v), 0);
    sl_store_saw(a.store, &key);
    far_settle(&a, 1);
    assert_int_equal(peer_pages(&peer, &v), 1);
    sl_store_saw(a.store, &key);
    usleep(50000);
    assert_int_equal(far_stats(&a).stored, 1);
    rig_close(&a);
    end_peer();
}

/* A folder's pages are found with the secret of the peer, and by who starts without it. */
static void a_folder_takes_the_secret(void **state)
{
    (void)state;
    fill_peer();
    struct rig a = far_rig(64), b = far_rig(64);
    rig_add_disk(&b, 64);
    b.cfg.disk_bytes = 4 << 20;
    rig_open(&a);
    rig_open(&b);
    const uint64_t seed = sl_store_seed(a.store);
    assert_true(sl_store_seed(b.store) == seed);
    assert_int_equal(far_get_all(&b), N_PAGES);
    rig_settle(&b, N_PAGES); /* what was read is written to the disk too */
    rig_close(&a);
    rig_close(&b);
    end_peer();
    rig_open(&b); /* nobody is there */
    assert_false(far_stats(&b).up);
    assert_true(sl_store_seed(b.store) == seed);
    assert_int_equal(far_get_all(&b), N_PAGES);
    assert_int_equal(rig_stats(&b, SL_TIER_DISK).hits, N_PAGES);
    rig_close(&b);
    rig_remove_disk(&b);
}

/* A store that could not ask at its start and one that could have different secrets. */
static void pages_of_another_secret_are_not_asked_for(void **state)
{
    (void)state;
    memset(&peer, 0, sizeof peer);
    peer_start(&peer, 0);
    const int port = peer.port;
    use_peer(port);
    peer_stop(&peer);
    struct rig a = far_rig(64);
    rig_open(&a);
    assert_false(far_stats(&a).up);
    assert_int_equal(far_ask(&a, 4, -1), -1);
    peer_start(&peer, port);
    struct rig b = far_rig(64);
    rig_open(&b);
    assert_true(far_stats(&b).up);
    assert_false(far_up(&a, true, 3000));
    rig_close(&a);
    a = far_rig(64); /* its next start */
    rig_open(&a);
    assert_true(far_stats(&a).up && sl_store_seed(a.store) == sl_store_seed(b.store));
    rig_close(&a);
    rig_close(&b);
    end_peer();
}

/* ---- wrong values ---- */

static void check_corrupt(struct rig *r, struct peer_value *v)
{
    const uint64_t before = far_stats(r).corrupt;
    struct peer_value *first;
    const int n = peer_pages(&peer, &first);
    const int32_t group = v->n > 1000 ? 0 : 1;
    uint64_t id = 0;
    while (rig_key(id, group).name.lo != strtoull(v->key + strlen(v->key) - 16, NULL, 16))
        id++;
    assert_int_equal(far_get(r, id, group), 0);
    assert_int_equal(far_stats(r).corrupt, before + 1);
    assert_int_equal(peer_pages(&peer, &first), n - 1);
}

static struct peer_value *small_page(void)
{
    for (int i = 0; i < PEER_VALUES; i++)
        if (peer.values[i].n == 264)
            return &peer.values[i];
    fail();
    return NULL;
}

static void every_byte_of_a_value_counts(void **state)
{
    (void)state;
    fill_peer();
    struct rig b = far_rig(64);
    rig_open(&b);
    for (size_t i = 0; i < 264; i++) {
        struct peer_value *v = small_page(), was = *v;
        was.bytes = malloc(v->n);
        memcpy(was.bytes, v->bytes, v->n);
        v->bytes[i] ^= (uint8_t)(1u << (i % 8));
        check_corrupt(&b, v);
        *v = was;
    }
    assert_int_equal(far_stats(&b).io_errors, 0);
    assert_int_equal(far_get_all(&b), N_PAGES);
    rig_close(&b);
    end_peer();
}

static void the_length_of_a_value_counts(void **state)
{
    static const size_t sizes[] = {0, 1, 63, 64, 65, 263, 265, 3264, 100000};
    (void)state;
    fill_peer();
    struct rig b = far_rig(64);
    rig_open(&b);
    for (size_t i = 0; i < SL_COUNT(sizes); i++) {
        struct peer_value *v = small_page();
        uint8_t *was = v->bytes, *other = calloc(1, sizes[i] + 1);
        memcpy(other, was, SL_MIN(sizes[i], (size_t)264));
        const struct peer_value kept = *v;
        v->bytes = other;
        v->n = sizes[i];
        uint64_t id = 1;
        while (rig_key(id, 1).name.lo != strtoull(kept.key + strlen(kept.key) - 16, NULL, 16))
            id += 2;
        assert_int_equal(far_get(&b, id, 1), 0);
        assert_int_equal(far_stats(&b).corrupt, i + 1);
        assert_true(v->key[0] == '\0');
        *v = kept;
    }
    /* a page under the name of another one, and of another group */
    struct peer_value *v = small_page(), *w = v + 1;
    while (w->n != 264)
        w++;
    memcpy(v->bytes, w->bytes, 264);
    check_corrupt(&b, v);
    assert_int_equal(far_stats(&b).io_errors, 0);
    rig_close(&b);
    end_peer();
}

/* ---- a peer that does wrong ---- */

/* Everything that is asked of it is over in time, and the pages of this store stay right. */
static void suffer(enum peer_fault fault, const char *command)
{
    struct rig b = far_rig(64);
    rig_open(&b);
    assert_true(far_stats(&b).up);
    peer_fails(&peer, fault, command);
    const uint64_t start = sl_now_ns();
    for (int i = N_PAGES; i < N_PAGES + 8; i++)
        assert_true(rig_put(&b, (uint64_t)i, i % 2));
    assert_true(sl_now_ns() - start < 5 * TIMEOUT * MS); /* nobody waits for the peer, 8 times */
    (void)far_ask(&b, N_PAGES, -1);
    for (int i = 0; i < 4; i++)
        (void)far_get(&b, (uint64_t)i, i % 2);
    assert_true(sl_now_ns() - start < 6000 * MS);
    for (int i = N_PAGES; i < N_PAGES + 8; i++)
        assert_int_equal(rig_get(&b, (uint64_t)i, i % 2), 1);
    rig_close(&b);
    assert_true(sl_now_ns() - start < 15000 * MS);
    peer_fails(&peer, PEER_WELL, "");
}

static void whatever_the_peer_does_no_page_is_wrong(void **state)
{
    static const char *const commands[] = {"GET", "EXISTS", "SET", "DEL", ""};
    (void)state;
    for (size_t c = 0; c < SL_COUNT(commands); c++) {
        fill_peer();
        for (int fault = PEER_HANGS; fault < PEER_N_FAULTS; fault++)
            suffer((enum peer_fault)fault, commands[c]);
        end_peer();
    }
}

/* Each of these at the start: the store opens, and goes on without it. */
static void whatever_the_peer_does_a_store_opens(void **state)
{
    static const char *const commands[] = {"SELECT", "SET", "GET"};
    (void)state;
    memset(&peer, 0, sizeof peer);
    peer_start(&peer, 0);
    use_peer(peer.port);
    for (size_t c = 0; c < SL_COUNT(commands); c++) {
        for (int fault = PEER_CLOSES; fault < PEER_N_FAULTS; fault++) {
            struct rig b = far_rig(64);
            peer_fails(&peer, (enum peer_fault)fault, commands[c]);
            const uint64_t start = sl_now_ns();
            rig_open(&b);
            assert_true(sl_now_ns() - start < 3000 * MS);
            assert_true(!far_stats(&b).up || (fault == PEER_LOSES && c == 1));
            assert_true(rig_put(&b, 1, 1));
            assert_int_equal(far_get(&b, 1, 1), 1);
            rig_close(&b);
        }
    }
    end_peer();
}

/* It rests after a failure, so that who asks next does not wait; then it is asked again. */
static void a_peer_that_hung_is_asked_again_later(void **state)
{
    (void)state;
    fill_peer();
    struct rig b = far_rig(64);
    rig_open(&b);
    peer_fails(&peer, PEER_HANGS, "");
    assert_int_equal(far_ask(&b, N_PAGES, -1), -2);
    assert_true(far_up(&b, false, 1000));
    const uint64_t start = sl_now_ns();
    for (int i = 0; i < 100; i++) {
        assert_int_equal(far_ask(&b, N_PAGES, -1), -1);
        assert_int_equal(far_get(&b, 1, 1), 0);
    }
    assert_true(sl_now_ns() - start < 10 * TIMEOUT * MS); /* 100 times */
    assert_int_equal(far_stats(&b).probes, 1);
    assert_int_equal(far_stats(&b).unanswered, 1);
    peer_fails(&peer, PEER_WELL, "");
    assert_true(far_up(&b, true, 10000));
    far_ask_until(&b, N_PAGES, N_PAGES);
    assert_int_equal(far_get_all(&b), N_PAGES);
    rig_close(&b);
    end_peer();
}

/* Killed and started again, on the same port, with or without its pages. */
static void a_peer_comes_and_goes(void **state)
{
    (void)state;
    fill_peer();
    const int port = peer.port;
    struct rig b = far_rig(64);
    rig_open(&b);
    assert_int_equal(far_get(&b, 1, 1), 1);
    peer_stop(&peer);
    assert_int_equal(far_get(&b, 2, 0), 0);
    assert_false(far_stats(&b).up);
    peer_start(&peer, port);
    assert_true(far_up(&b, true, 10000));
    assert_int_equal(far_get(&b, 2, 0), 1);
    peer_stop(&peer);
    peer_start(&peer, port); /* old connections are dead, which is no failure */
    assert_int_equal(far_get(&b, 3, 1), 1);
    assert_true(far_stats(&b).up);
    peer_stop(&peer);
    peer_clear(&peer);
    peer_start(&peer, port);
    assert_int_equal(far_get(&b, 4, 0), 0);
    assert_true(far_stats(&b).up);
    rig_close(&b);
    end_peer();
}

static void a_full_peer_still_serves(void **state)
{
    (void)state;
    fill_peer();
    struct rig b = far_rig(64);
    rig_open(&b);
    peer_fails(&peer, PEER_IS_FULL, "SET");
    for (int i = N_PAGES; i < N_PAGES + 8; i++)
        assert_true(rig_put(&b, (uint64_t)i, i % 2));
    far_settle(&b, 8);
    assert_int_equal(far_stats(&b).dropped, 8);
    assert_true(far_stats(&b).up);
    assert_int_equal(far_get_all(&b), N_PAGES);
    peer_fails(&peer, PEER_WELL, "");
    sleep(1); /* it is not written to at once */
    for (int i = N_PAGES; i < N_PAGES + 8; i++) {
        const struct sl_store_key key = rig_key((uint64_t)i, i % 2);
        sl_store_saw(b.store, &key);
    }
    far_settle(&b, 16);
    assert_int_equal(far_stats(&b).stored, 8);
    rig_close(&b);
    end_peer();
}

/* A password is needed, of the URL or besides it, and appears nowhere. */
static void a_password_is_given(void **state)
{
    (void)state;
    memset(&peer, 0, sizeof peer);
    snprintf(peer.password, sizeof peer.password, "open: sesame/?");
    peer_fails(&peer, PEER_WELL, "");
    peer_start(&peer, 0);
    struct rig b = far_rig(64);
    snprintf(url, sizeof url, "redis://me:open%%3A%%20sesame%%2f%%3F@127.0.0.1:%d", peer.port);
    rig_open(&b);
    assert_true(far_stats(&b).up);
    rig_close(&b);
    b.cfg.remote_password = "open: sesame/?";
    snprintf(url, sizeof url, "redis://localhost:%d", peer.port);
    rig_open(&b);
    assert_true(far_stats(&b).up);
    rig_close(&b);
    end_peer();
}

/* Many pages at once, some of which nobody waits for any more. */
static void pages_that_nobody_wants_any_more(void **state)
{
    static struct sl_store_get gets[N_PAGES];
    (void)state;
    fill_peer();
    for (int round = 0; round < 40; round++) {
        struct rig b = far_rig(8); /* less room than pages */
        int n_here = 0;
        rig_open(&b);
        for (int i = 0; i < N_PAGES; i++) {
            gets[i] = (struct sl_store_get){.key = rig_key((uint64_t)i, i % 2), .remote = true};
            sl_store_begin(b.store, &gets[i]);
        }
        usleep((unsigned)(round * 37));
        for (int i = round % 3; i < N_PAGES; i += 3)
            sl_store_end(b.store, &gets[i]);
        for (int i = 0; i < N_PAGES; i++) {
            if (i % 3 == round % 3)
                continue;
            if (rig_await(&gets[i]) == SL_STORE_HERE) {
                n_here++;
                assert_true(rig_same(&b, &gets[i].key, gets[i].page));
            }
            sl_store_end(b.store, &gets[i]);
        }
        assert_true(n_here > 0);
        rig_close(&b);
    }
    end_peer();
}

/* ---- URLs ---- */

static void urls_are_understood_or_refused(void **state)
{
    static const char *const good[] = {"redis://h",
                                       "redis://h:1/0",
                                       "valkey://h/15",
                                       "redis://[::1]:6380/",
                                       "redis://u@h",
                                       "redis://:p@h",
                                       "redis://a%40b:c%2Fd@h:65535",
                                       "s3://bucket",
                                       "s3://buc.ket-1/",
                                       "s3://bucket/a/B_9"};
    static const char *const bad[] = {"",
                                      "h:6379",
                                      "redis:h",
                                      "redis:/h",
                                      "redis://",
                                      "redis://:6379",
                                      "redis://h:0",
                                      "redis://h:65536",
                                      "redis://h:x",
                                      "redis://h:",
                                      "redis://h/x",
                                      "redis://h/-1",
                                      "redis://h/99999",
                                      "redis://u:secret%@h",
                                      "redis://u:secret%0@h",
                                      "redis://u:secret%00@h",
                                      "redis://u:secret@h?x=1",
                                      "redis://u:sec ret@h",
                                      "redis://[::1",
                                      "redis://[::1]6379",
                                      "rediss://u:secret@h",
                                      "http://u:secret@h",
                                      "s3:bucket",
                                      "s3://b",
                                      "s3://Bucket",
                                      "s3://u:secret@bucket",
                                      "s3://bucket//a",
                                      "s3://bucket/a%20b"};
    struct sl_redis_url u;
    struct sl_error err;
    const struct sl_remote_kind *kind;
    (void)state;
    for (size_t i = 0; i < SL_COUNT(good); i++)
        assert_int_equal(sl_remote_find(good[i], &kind, &err), 0);
    for (size_t i = 0; i < SL_COUNT(bad); i++) {
        assert_true(sl_remote_find(bad[i], &kind, &err) < 0);
        assert_non_null(strstr(err.msg, "kv-remote-url"));
        assert_null(strstr(err.msg, "secret"));
    }
    assert_int_equal(sl_redis_url_parse(good[6], &u, &err), 0);
    assert_string_equal(u.user, "a@b");
    assert_string_equal(u.password, "c/d");
    assert_string_equal(u.host, "h");
    assert_string_equal(u.port, "65535");
    assert_int_equal(sl_redis_url_parse(good[3], &u, &err), 0);
    assert_string_equal(u.host, "::1");
    assert_int_equal(sl_redis_url_parse(good[2], &u, &err), 0);
    assert_string_equal(u.port, "6379");
    assert_int_equal(u.db, 15);
}

/* ---- redis-server ---- */

static pid_t start_redis(int port)
{
    char text[16];
    snprintf(text, sizeof text, "%d", port);
    const pid_t pid = fork();
    if (pid == 0) {
        (void)prctl(PR_SET_PDEATHSIG, SIGKILL); /* it does not outlive the test */
        if (freopen("/dev/null", "w", stdout) == NULL || dup2(1, 2) != 2)
            _exit(126);
        (void)execlp("redis-server", "redis-server", "--port", text, "--bind", "127.0.0.1",
                     "--save", "", "--requirepass", "sesame", "--maxmemory", "8mb", (char *)NULL);
        _exit(127);
    }
    return pid;
}

static int free_port(void)
{
    struct peer p = {0};
    peer_start(&p, 0);
    peer_stop(&p);
    return p.port;
}

static void likewise_through_redis_server(void **state)
{
    const int port = free_port();
    int status;
    (void)state;
    pid_t pid = start_redis(port);
    snprintf(url, sizeof url, "redis://:sesame@127.0.0.1:%d/3", port);
    struct rig a = far_rig(64);
    const uint64_t end = sl_now_ns() + 20000 * MS;
    for (bool up = false; !up;) {
        if (waitpid(pid, &status, WNOHANG) == pid) {
            print_message("redis-server cannot be started: skipped\n");
            skip();
        }
        assert_true(sl_now_ns() < end);
        usleep(50000);
        rig_open(&a);
        up = far_stats(&a).up;
        rig_close(&a);
    }
    share();
    struct rig b = far_rig(64);
    rig_open(&b);
    kill(pid, SIGSTOP); /* it hangs */
    assert_int_equal(far_ask(&b, N_PAGES, -1), -2);
    kill(pid, SIGCONT);
    assert_true(far_up(&b, true, 10000));
    far_ask_until(&b, N_PAGES, N_PAGES);
    kill(pid, SIGKILL);
    assert_int_equal(waitpid(pid, &status, 0), pid);
    assert_int_equal(far_get_all(&b), 0);
    pid = start_redis(port); /* it has forgotten everything */
    assert_true(far_up(&b, true, 35000));
    far_ask_until(&b, N_PAGES, 1);
    far_put_all(&b);
    far_settle(&b, N_PAGES);
    a = far_rig(64);
    rig_open(&a);
    assert_true(sl_store_seed(a.store) == sl_store_seed(b.store)); /* it was put back */
    assert_int_equal(far_get_all(&a), N_PAGES);
    rig_close(&a);
    rig_close(&b);
    kill(pid, SIGKILL);
    assert_int_equal(waitpid(pid, &status, 0), pid);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(stores_of_a_root_share_pages),
        cmocka_unit_test(pages_are_written_once),
        cmocka_unit_test(pages_are_written_when_they_were_seen_often_enough),
        cmocka_unit_test(a_folder_takes_the_secret),
        cmocka_unit_test(pages_of_another_secret_are_not_asked_for),
        cmocka_unit_test(every_byte_of_a_value_counts),
        cmocka_unit_test(the_length_of_a_value_counts),
        cmocka_unit_test(whatever_the_peer_does_no_page_is_wrong),
        cmocka_unit_test(whatever_the_peer_does_a_store_opens),
        cmocka_unit_test(a_peer_that_hung_is_asked_again_later),
        cmocka_unit_test(a_peer_comes_and_goes),
        cmocka_unit_test(a_full_peer_still_serves),
        cmocka_unit_test(a_password_is_given),
        cmocka_unit_test(pages_that_nobody_wants_any_more),
        cmocka_unit_test(urls_are_understood_or_refused),
        cmocka_unit_test(likewise_through_redis_server),
    };
    sl_log_set_level(SL_LOG_ERROR);
    return cmocka_run_group_tests(tests, NULL, NULL);
}
