/* SPDX-License-Identifier: MIT */
#include "tier/peer.h"

#include "base/check.h"
#include "base/log.h"
#include "base/sys.h"
#include "tier/peer_impl.h"

#include <errno.h>
#include <netdb.h>
#include <poll.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>

#define CONN_BYTES (UINT64_C(32) << 20) /* of a job: one connection more */
#define LOOK_MS    1                    /* between looks for what another connection was answered */
#define REST_MS    100                  /* between looks at deadlines */
#define TELL_NS    UINT64_C(10000000000)

void sl_peer_tell(struct sl_peer *p, const struct sl_peer_job *j, const char *what)
{
    const uint64_t now = sl_now_ns();
    SL_ASSERT(what != NULL && j->peer == p);
    pthread_mutex_lock(&p->lock);
    const bool tell = p->told_ns == 0 || now - p->told_ns > TELL_NS;
    if (tell)
        p->told_ns = now;
    pthread_mutex_unlock(&p->lock);
    if (tell)
        sl_log(SL_LOG_WARN, "KV pages of %.80s port %d: it %s; prompts are computed here", j->host,
               j->port, what);
}

void sl_peer_tell_stream(struct sl_peer *p, const struct sl_peer_job *j, enum sl_peer_why why)
{
    static const char *const reasons[] = {"it has no NIXL", "NIXL knows too many servers",
                                          "reads by NIXL fail or take too long"};
    SL_ASSERT(why < SL_COUNT(reasons) && p->cfg.nixl != NULL);
    pthread_mutex_lock(&p->lock);
    const bool told = (p->told & 1u << why) != 0;
    p->told |= 1u << why;
    pthread_mutex_unlock(&p->lock);
    if (!told)
        sl_log(SL_LOG_WARN, "KV pages of %.80s port %d come over TCP: %s", j->host, j->port,
               reasons[why]);
}

/* ---- dialling: a thread of its own, as looking up a name may take long */

static struct addrinfo *look_up(struct sl_peer *p, const struct sl_peer_job *j)
{
    const struct addrinfo hints = {.ai_socktype = SOCK_STREAM, .ai_flags = AI_NUMERICSERV};
    struct addrinfo *all = NULL;
    char service[16];
    snprintf(service, sizeof service, "%d", j->port);
    const char *host = strcmp(j->host, "localhost") == 0 ? "127.0.0.1" : j->host;
    int rc = getaddrinfo(host, service, &hints, &all);
    if (rc != 0) {
        sl_peer_tell(p, j, "cannot be resolved");
        return NULL;
    }
    if (sl_netlist_has(&p->cfg.peers, all->ai_addr))
        return all;
    sl_peer_tell(p, j, "is not one of --kv-transfer-peers");
    freeaddrinfo(all);
    return NULL;
}

/* Bytes of a prompt's pages, roughly: what is asked for may be less. */
static uint64_t job_bytes(const struct sl_peer *p, const struct sl_peer_job *j)
{
    uint64_t n = 0;
    for (int32_t g = 0; g < p->cfg.layout.n_groups; g++)
        n += p->cfg.layout.state[g] ? 0 : p->cfg.layout.page_bytes[g];
    return n * (uint64_t)j->n_blocks;
}

static struct sl_peer_conn *dial(struct sl_peer_job *j, const struct addrinfo *a, bool first)
{
    struct sl_peer_conn *c = sl_calloc(1, sizeof *c);
    if (c == NULL)
        return NULL;
    c->fd = socket(a->ai_family, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
    if (c->fd < 0) {
        sl_free(c);
        return NULL;
    }
    sl_peer_tune(c->fd);
    if (connect(c->fd, a->ai_addr, a->ai_addrlen) != 0 && errno != EINPROGRESS) {
        sl_sys->close(c->fd);
        sl_free(c);
        return NULL;
    }
    c->job = j;
    c->first = first;
    c->heard_ns = sl_now_ns();
    return c;
}

/* Gives it to the next thread that has room. */
static bool hand_over(struct sl_peer *p, struct sl_peer_conn *c)
{
    bool done = false;
    pthread_mutex_lock(&p->lock);
    for (int i = 0; !done && i < p->n_threads; i++) {
        struct sl_peer_thread *t = &p->threads[p->next_thread++ % p->n_threads];
        done = t->n_conns < SL_MAX_PEER_CONNS;
        if (!done)
            continue;
        SL_ASSERT(t->n_incoming <= t->n_conns);
        t->n_conns++;
        t->incoming[t->n_incoming++] = c;
        sl_peer_ring(t->bell);
    }
    p->next_thread %= p->n_threads;
    pthread_mutex_unlock(&p->lock);
    return done;
}

static void dial_job(struct sl_peer *p, struct sl_peer_job *j)
{
    struct addrinfo *a = atomic_load(&j->cancelled) ? NULL : look_up(p, j);
    const uint64_t worth = p->cfg.conn_bytes > 0 ? p->cfg.conn_bytes : CONN_BYTES;
    const uint64_t most = SL_MIN(1 + job_bytes(p, j) / worth, (uint64_t)p->n_threads);
    int n = 0;
    SL_ASSERT(j->n_conns == 0 && j->phase == SL_PHASE_FULL);
    j->n_conns = 1; /* this one's, so that none of the others is the last */
    atomic_fetch_add(&j->refs, 1);
    for (uint64_t i = 0; a != NULL && i < most; i++) {
        struct sl_peer_conn *c = dial(j, a, i == 0);
        if (c == NULL)
            break;
        pthread_mutex_lock(&j->lock);
        j->n_conns++;
        pthread_mutex_unlock(&j->lock);
        atomic_fetch_add(&j->refs, 1);
        if (!hand_over(p, c)) {
            sl_peer_conn_close(p, c);
            break;
        }
        n++;
    }
    if (a != NULL && n == 0)
        sl_peer_tell(p, j, "cannot be reached, or too many pages are under way");
    if (a != NULL)
        freeaddrinfo(a);
    sl_peer_conn_gone(j);
}

static void *dial_main(void *arg)
{
    struct sl_peer *p = arg;
    pthread_mutex_lock(&p->lock);
    for (;;) {
        struct sl_peer_job *j = p->dials;
        if (j == NULL && atomic_load(&p->closing))
            break;
        if (j == NULL) {
            pthread_cond_wait(&p->to_dial, &p->lock);
            continue;
        }
        p->dials = j->next;
        j->next = NULL;
        pthread_mutex_unlock(&p->lock);
        if (atomic_load(&p->closing))
            sl_peer_job_over(j);
        else
            dial_job(p, j);
        pthread_mutex_lock(&p->lock);
    }
    pthread_mutex_unlock(&p->lock);
    return NULL;
}

/* ---- threads */

static void take_incoming(struct sl_peer_thread *t)
{
    pthread_mutex_lock(&t->peer->lock);
    for (int i = 0; t->n_incoming > 0; i++) {
        SL_ASSERT(i < SL_MAX_PEER_CONNS);
        if (t->conns[i] != NULL)
            continue;
        t->conns[i] = t->incoming[--t->n_incoming];
        t->conns[i]->bell = t->bell;
    }
    pthread_mutex_unlock(&t->peer->lock);
}

static void drop_conn(struct sl_peer_thread *t, int i)
{
    struct sl_peer_conn *c = t->conns[i];
    SL_ASSERT(c != NULL);
    t->conns[i] = NULL;
    sl_peer_conn_close(t->peer, c);
    pthread_mutex_lock(&t->peer->lock);
    SL_ASSERT(t->n_conns > 0);
    t->n_conns--;
    pthread_mutex_unlock(&t->peer->lock);
}

static void *peer_main(void *arg)
{
    struct sl_peer_thread *t = arg;
    struct sl_peer *p = t->peer;
    struct pollfd polls[1 + SL_MAX_PEER_CONNS];
    while (!atomic_load(&p->ending)) {
        int n = 0;
        bool soon = false;
        polls[n++] = (struct pollfd){.fd = t->bell, .events = POLLIN};
        for (int i = 0; i < SL_MAX_PEER_CONNS; i++) {
            if (t->conns[i] == NULL)
                continue;
            polls[n++] =
                (struct pollfd){.fd = t->conns[i]->fd, .events = sl_peer_conn_events(t->conns[i])};
            soon |= t->conns[i]->rests;
        }
        (void)poll(polls, (nfds_t)n, soon ? LOOK_MS : REST_MS);
        if ((polls[0].revents & POLLIN) != 0)
            sl_peer_hush(t->bell);
        take_incoming(t);
        const uint64_t now = sl_now_ns();
        for (int i = 0; i < SL_MAX_PEER_CONNS; i++)
            if (t->conns[i] != NULL && !sl_peer_conn_go(p, t->conns[i], now))
                drop_conn(t, i);
    }
    take_incoming(t);
    for (int i = 0; i < SL_MAX_PEER_CONNS; i++)
        if (t->conns[i] != NULL)
            drop_conn(t, i);
    return NULL;
}

/* ---- start and end */

static int start_threads(struct sl_peer *p, struct sl_error *err)
{
    int rc = 0;
    p->n_threads = sl_peer_n_threads(p->cfg.n_threads);
    for (int i = 0; i < SL_MAX_PEER_THREADS; i++)
        p->threads[i] = (struct sl_peer_thread){.peer = p, .bell = -1};
    for (int i = 0; rc == 0 && i < p->n_threads; i++)
        rc = sl_peer_bell(&p->threads[i].bell, err);
    for (int i = 0; rc == 0 && i < p->n_threads; i++) {
        rc = sl_thread_create(&p->threads[i].thread, peer_main, &p->threads[i], "kv-peer", err);
        p->n_started += rc == 0;
    }
    if (rc == 0)
        rc = sl_thread_create(&p->dialer, dial_main, p, "kv-dial", err);
    p->dials_started = rc == 0;
    return rc;
}

int sl_peer_open(const struct sl_peer_config *cfg, struct sl_peer **out, struct sl_error *err)
{
    SL_ASSERT(cfg->store != NULL && cfg->put_tail != NULL && cfg->layout.n_groups >= 1);
    *out = NULL;
    struct sl_peer *p = sl_calloc(1, sizeof *p);
    if (p == NULL)
        return sl_fail(err, SL_ENOMEM, "out of memory for pages of other servers");
    p->cfg = *cfg;
    pthread_mutex_init(&p->lock, NULL);
    pthread_cond_init(&p->to_dial, NULL);
    int rc = start_threads(p, err);
    if (rc != 0) {
        sl_peer_close(p);
        return rc;
    }
    *out = p;
    return 0;
}

void sl_peer_close(struct sl_peer *p)
{
    if (p == NULL)
        return;
    pthread_mutex_lock(&p->lock);
    atomic_store(&p->closing, true);
    pthread_cond_broadcast(&p->to_dial);
    pthread_mutex_unlock(&p->lock);
    if (p->dials_started)
        pthread_join(p->dialer, NULL);
    atomic_store(&p->ending, true); /* nobody hands over any more */
    for (int i = 0; i < p->n_started; i++) {
        sl_peer_ring(p->threads[i].bell);
        pthread_join(p->threads[i].thread, NULL);
    }
    for (int i = 0; i < SL_MAX_PEER_THREADS; i++)
        if (p->threads[i].peer != NULL && p->threads[i].bell >= 0)
            sl_sys->close(p->threads[i].bell);
    SL_ASSERT(p->n_jobs == 0);
    pthread_cond_destroy(&p->to_dial);
    pthread_mutex_destroy(&p->lock);
    sl_free(p);
}

void sl_peer_stats(struct sl_peer *p, struct sl_peer_stats *out)
{
    pthread_mutex_lock(&p->lock);
    *out = p->stats;
    pthread_mutex_unlock(&p->lock);
}
