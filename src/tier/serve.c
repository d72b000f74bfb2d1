/* SPDX-License-Identifier: MIT */
#include "tier/serve.h"

#include "base/check.h"
#include "base/log.h"
#include "base/sys.h"
#include "tier/serve_impl.h"

#include <poll.h>
#include <string.h>
#include <sys/socket.h>

#define MS       UINT64_C(1000000)
#define LOOK_MS  1    /* between looks for pages that are to come: nobody tells of them */
#define REST_MS  1000 /* between looks for leases that have expired */
#define HELLO_MS 5000

/* ---- connections */

/* Connections go to the thread that has the fewest. */
static bool may_accept(const struct sl_serve_thread *t)
{
    const struct sl_serve *s = t->serve;
    const int n = atomic_load(&t->n_conns);
    SL_ASSERT(n >= 0 && n <= SL_MAX_PEER_CONNS);
    for (int i = 0; i < s->n_threads; i++)
        if (atomic_load(&s->threads[i].n_conns) < n)
            return false;
    return n < SL_MAX_PEER_CONNS;
}

static void accept_one(struct sl_serve_thread *t, uint64_t now)
{
    struct sl_serve *s = t->serve;
    struct sockaddr_storage from = {0};
    socklen_t n = sizeof from;
    int fd = accept4(s->listen_fd, (struct sockaddr *)&from, &n, SOCK_NONBLOCK | SOCK_CLOEXEC);
    if (fd < 0)
        return;
    const bool may = sl_netlist_has(&s->cfg.peers, (struct sockaddr *)&from);
    struct sl_serve_conn *c = may ? sl_calloc(1, sizeof *c) : NULL;
    if (c == NULL) {
        pthread_mutex_lock(&s->lock);
        s->stats.n_refused++;
        pthread_mutex_unlock(&s->lock);
        sl_sys->close(fd);
        return;
    }
    sl_peer_tune(fd);
    c->fd = fd;
    c->page_idx = -1;
    c->deadline_ns = now + HELLO_MS * MS;
    int i = 0;
    while (t->conns[i] != NULL)
        i++;
    SL_ASSERT(i < SL_MAX_PEER_CONNS);
    t->conns[i] = c;
    atomic_fetch_add(&t->n_conns, 1);
}

static void drop_conn(struct sl_serve_thread *t, int i)
{
    SL_ASSERT(t->conns[i] != NULL && atomic_load(&t->n_conns) > 0);
    sl_serve_conn_close(t->serve, t->conns[i]);
    t->conns[i] = NULL;
    atomic_fetch_sub(&t->n_conns, 1);
}

/* ---- threads */

/* What a connection is polled for: asks, where there is room for them. */
static short events_of(const struct sl_serve_conn *c)
{
    const bool reads = c->n_head == 0 && sl_serve_conn_reads(c);
    return (short)(POLLRDHUP | (c->n_head > 0 ? POLLOUT : 0) | (reads ? POLLIN : 0));
}

/* The bell and the listener are the first. */
static int fill_polls(struct sl_serve_thread *t, struct pollfd *polls, int *which)
{
    int n = 0;
    polls[n++] = (struct pollfd){.fd = t->bell, .events = POLLIN};
    polls[n++] = (struct pollfd){.fd = may_accept(t) ? t->serve->listen_fd : -1, .events = POLLIN};
    for (int i = 0; i < SL_MAX_PEER_CONNS; i++) {
        if (t->conns[i] == NULL)
            continue;
        SL_ASSERT(n < 2 + SL_MAX_PEER_CONNS);
        which[n] = i;
        polls[n++] = (struct pollfd){.fd = t->conns[i]->fd, .events = events_of(t->conns[i])};
    }
    return n;
}

/* Peers that have gone, where nothing is read that would tell. */
static void drop_gone(struct sl_serve_thread *t, const struct pollfd *polls, const int *which,
                      int n)
{
    for (int i = 2; i < n; i++)
        if ((polls[i].revents & (POLLERR | POLLHUP | POLLRDHUP)) != 0 &&
            (polls[i].events & POLLIN) == 0)
            drop_conn(t, which[i]);
}

static void go_all(struct sl_serve_thread *t)
{
    const uint64_t now = sl_now_ns();
    for (int i = 0; i < SL_MAX_PEER_CONNS; i++)
        if (t->conns[i] != NULL && !sl_serve_conn_go(t->serve, t->conns[i], now))
            drop_conn(t, i);
}

/* How long there is nothing to do but what poll tells of. */
static int rest_ms(const struct sl_serve_thread *t, bool tend)
{
    int ms = tend ? LOOK_MS : REST_MS;
    for (int i = 0; i < SL_MAX_PEER_CONNS; i++) {
        const struct sl_serve_conn *c = t->conns[i];
        if (c != NULL && c->waits)
            ms = SL_MIN(ms, LOOK_MS);
        else if (c != NULL && c->n_head == 0 && c->n_asks > 0)
            return 0; /* others had their turn */
    }
    return ms;
}

static void *serve_main(void *arg)
{
    struct sl_serve_thread *t = arg;
    struct sl_serve *s = t->serve;
    struct pollfd polls[2 + SL_MAX_PEER_CONNS];
    int which[2 + SL_MAX_PEER_CONNS];
    bool tend = false;
    while (!atomic_load(&s->closing)) {
        int n = fill_polls(t, polls, which);
        (void)poll(polls, (nfds_t)n, rest_ms(t, tend));
        drop_gone(t, polls, which, n);
        if ((polls[0].revents & POLLIN) != 0)
            sl_peer_hush(t->bell);
        if (polls[1].fd >= 0 && (polls[1].revents & POLLIN) != 0)
            accept_one(t, sl_now_ns());
        if (t == &s->threads[0]) {
            pthread_mutex_lock(&s->lock);
            tend = sl_leases_tend(s, sl_now_ns());
            pthread_mutex_unlock(&s->lock);
        }
        go_all(t);
    }
    for (int i = 0; i < SL_MAX_PEER_CONNS; i++)
        if (t->conns[i] != NULL)
            drop_conn(t, i);
    return NULL;
}

/* ---- start and end */

static int start_threads(struct sl_serve *s, struct sl_error *err)
{
    int rc = 0;
    s->n_threads = sl_peer_n_threads(s->cfg.n_threads);
    for (int i = 0; i < SL_MAX_PEER_THREADS; i++)
        s->threads[i] = (struct sl_serve_thread){.serve = s, .bell = -1};
    for (int i = 0; rc == 0 && i < s->n_threads; i++)
        rc = sl_peer_bell(&s->threads[i].bell, err);
    for (int i = 0; rc == 0 && i < s->n_threads; i++) {
        rc = sl_thread_create(&s->threads[i].thread, serve_main, &s->threads[i], "kv-serve", err);
        s->n_started += rc == 0;
    }
    return rc;
}

int sl_serve_open(const struct sl_serve_config *cfg, struct sl_serve **out, struct sl_error *err)
{
    SL_ASSERT(cfg->store != NULL && cfg->layout.n_groups >= 1 && cfg->layout.block_size >= 1);
    *out = NULL;
    struct sl_serve *s = sl_calloc(1, sizeof *s);
    if (s == NULL)
        return sl_fail(err, SL_ENOMEM, "out of memory for a service of KV pages");
    s->cfg = *cfg;
    s->port = cfg->port;
    pthread_mutex_init(&s->lock, NULL);
    int rc = sl_peer_listen(cfg->host, &s->port, &s->listen_fd, err);
    s->cfg.host = NULL; /* the caller's */
    if (rc == 0)
        rc = start_threads(s, err);
    if (rc != 0) {
        sl_serve_close(s);
        return rc;
    }
    *out = s;
    return 0;
}

void sl_serve_close(struct sl_serve *s)
{
    if (s == NULL)
        return;
    SL_ASSERT(s->n_started <= s->n_threads);
    atomic_store(&s->closing, true);
    for (int i = 0; i < s->n_started; i++) {
        sl_peer_ring(s->threads[i].bell);
        pthread_join(s->threads[i].thread, NULL);
    }
    for (int i = 0; i < SL_MAX_PEER_THREADS; i++)
        if (s->threads[i].serve != NULL && s->threads[i].bell >= 0)
            sl_sys->close(s->threads[i].bell);
    if (s->listen_fd >= 0)
        sl_sys->close(s->listen_fd);
    sl_leases_drop(s);
    pthread_mutex_destroy(&s->lock);
    sl_free(s);
}

int sl_serve_port(const struct sl_serve *s)
{
    return s->port;
}

void sl_serve_stats(struct sl_serve *s, struct sl_serve_stats *out)
{
    pthread_mutex_lock(&s->lock);
    *out = s->stats;
    pthread_mutex_unlock(&s->lock);
}
