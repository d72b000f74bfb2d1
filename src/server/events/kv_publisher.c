/* SPDX-License-Identifier: MIT */
#include "server/events/kv_publisher.h"

#include "base/check.h"
#include "base/log.h"
#include "base/sys.h"
#include "server/events/kv_batch.h"
#include "server/events/kv_peer.h"

#include <errno.h>
#include <poll.h>
#include <stdatomic.h>
#include <stdio.h>
#include <string.h>
#include <sys/eventfd.h>

#define MAX_EVENTS       256         /* of a batch */
#define MAX_BATCHES      64          /* read at a time */
#define MAX_PEERS        96          /* subscribers and readers of replays together */
#define TIER_EVENT_BYTES 16          /* a hash, and its part of what an event has besides */
#define KEPT_BYTES       (32u << 20) /* of batches, and twice what a snapshot may take */
#define TICK_MS          1000        /* between looks at peers that say nothing and at connecting */
#define MAX_ATTEMPTS     64          /* connections accepted at a time */

enum { FD_STOP, FD_EVENTS, FD_PUB, FD_REPLAY, N_FIXED };

struct sl_kv_publisher {
    struct sl_kv_events_config cfg;
    struct sl_engine *eng;
    struct sl_kv_kept kept;
    struct sl_kv_socket pub, replay;
    struct sl_kv_peer *peers[MAX_PEERS];
    int n_peers;
    uint64_t seq;                 /* of the next batch */
    uint64_t retry_ns, accept_ns; /* when to connect, and to accept, again */
    bool may_renumber, renumbering;
    int stop_fd;
    bool started;
    pthread_t thread;
    struct sl_kv_event events[MAX_EVENTS];
    _Atomic uint64_t n_batches, n_dropped, n_replays, n_renumbered;
    atomic_int n_subscribers;
};

/* ---- batches */

static uint64_t max_batch_bytes(const struct sl_model_info *i)
{
    uint64_t page = (uint64_t)i->block_size * 5 + 2 * 300 + 32; /* tokens, adapter twice, hash */
    return 256 + MAX_EVENTS * (page + 200);
}

/* A replay begins at 0 for who knows nothing. When the batch numbered 0 would be forgotten, the
 * numbers begin anew with everything there is, so that 0 is always there. */
static void renumber(struct sl_kv_publisher *p)
{
    sl_kv_kept_clear(&p->kept);
    sl_engine_kv_events_again(p->eng);
    p->seq = 0;
    atomic_fetch_add(&p->n_renumbered, 1);
}

/* Leaves out the events of tiers. */
static int32_t of_pool(struct sl_kv_event *e, int32_t n)
{
    int32_t n_kept = 0;
    for (int32_t i = 0; i < n; i++)
        if (e[i].medium == SL_KV_ON_DEVICE)
            e[n_kept++] = e[i];
    return n_kept;
}

static void read_events(struct sl_kv_publisher *p)
{
    int32_t n;
    for (int i = 0; i < MAX_BATCHES; i++) { /* then peers have their turn */
        n = sl_engine_kv_events(p->eng, p->events, MAX_EVENTS);
        if (n == 0)
            return;
        struct sl_buf b = {0};
        if (p->may_renumber && sl_kv_kept_is_full(&p->kept)) {
            renumber(p);
            continue; /* what was just read is told again */
        }
        if (!p->cfg.tiers)
            n = of_pool(p->events, n);
        if (n > 0 && sl_kv_batch_put(&b, p->events, n, sl_engine_info(p->eng),
                                     (double)sl_wall_ns() * 1e-9, p->cfg.arrays) > 0) {
            /* Out of memory: the numbers show that something is missing. */
            sl_kv_kept_push(&p->kept, p->seq++, &b);
            atomic_fetch_add(&p->n_batches, 1);
        }
        sl_buf_deinit(&b);
    }
}

/* ---- peers */

static void drop_peer(struct sl_kv_publisher *p, int i)
{
    sl_kv_peer_destroy(p->peers[i]);
    p->peers[i] = p->peers[--p->n_peers];
}

static void add_peer(struct sl_kv_publisher *p, int fd, struct sl_kv_socket *s)
{
    struct sl_kv_peer *peer =
        p->n_peers < MAX_PEERS ? sl_kv_peer_create(fd, s, &p->kept, sl_now_ns()) : NULL;
    if (peer != NULL) {
        p->peers[p->n_peers++] = peer;
        return;
    }
    sl_log(SL_LOG_WARN, "KV events: a connection was refused, %d are open", p->n_peers);
    sl_sys->close(fd);
}

static void accept_peers(struct sl_kv_publisher *p, struct sl_kv_socket *s)
{
    for (int i = 0; i < MAX_ATTEMPTS; i++) {
        int fd = sl_kv_socket_accept(s);
        if (fd >= 0) {
            add_peer(p, fd, s);
            continue;
        }
        /* Who waits stays there, and poll would say so again and again. */
        if (errno == EMFILE || errno == ENFILE || errno == ENOBUFS || errno == ENOMEM)
            p->accept_ns = sl_now_ns() + (uint64_t)TICK_MS * 1000000u;
        return;
    }
}

/* Where the other side listens, we keep trying. */
static void connect_again(struct sl_kv_publisher *p, uint64_t now)
{
    if (p->pub.listens || now < p->retry_ns)
        return;
    for (int i = 0; i < p->n_peers; i++)
        if (p->peers[i]->socket == &p->pub)
            return;
    p->retry_ns = now + (uint64_t)TICK_MS * 1000000u;
    int fd = sl_kv_socket_connect(&p->pub);
    if (fd >= 0)
        add_peer(p, fd, &p->pub);
}

static void serve_peers(struct sl_kv_publisher *p, const struct pollfd *fds, int n_fds)
{
    uint64_t now = sl_now_ns(), dropped = 0;
    int n_subscribers = 0;
    for (int i = p->n_peers - 1; i >= 0; i--) {
        struct sl_kv_peer *peer = p->peers[i];
        uint64_t replays = peer->n_replays;
        bool readable =
            N_FIXED + i < n_fds && (fds[N_FIXED + i].revents & (POLLIN | POLLHUP | POLLERR)) != 0;
        bool good = sl_kv_peer_serve(peer, &p->kept, p->cfg.topic, p->cfg.hwm, readable, now);
        dropped += peer->n_dropped;
        peer->n_dropped = 0;
        atomic_fetch_add(&p->n_replays, peer->n_replays - replays);
        n_subscribers += good && peer->n_matching > 0;
        if (!good)
            drop_peer(p, i);
    }
    atomic_fetch_add(&p->n_dropped, dropped);
    atomic_store(&p->n_subscribers, n_subscribers);
}

static int fill_poll(struct sl_kv_publisher *p, struct pollfd *fds, bool accepts)
{
    fds[FD_STOP] = (struct pollfd){.fd = p->stop_fd, .events = POLLIN};
    fds[FD_EVENTS] = (struct pollfd){.fd = sl_engine_kv_events_fd(p->eng), .events = POLLIN};
    fds[FD_PUB] = (struct pollfd){.fd = accepts ? p->pub.fd : -1, .events = POLLIN};
    fds[FD_REPLAY] = (struct pollfd){.fd = accepts ? p->replay.fd : -1, .events = POLLIN};
    for (int i = 0; i < p->n_peers; i++)
        fds[N_FIXED + i] = (struct pollfd){
            .fd = p->peers[i]->fd,
            .events = (short)(POLLIN | (sl_kv_peer_unsent(p->peers[i]) ? POLLOUT : 0))};
    return N_FIXED + p->n_peers;
}

static void *publisher_main(void *arg)
{
    struct sl_kv_publisher *p = arg;
    struct pollfd fds[N_FIXED + MAX_PEERS];
    for (;;) {
        bool accepts = sl_now_ns() >= p->accept_ns;
        bool ticks = p->n_peers > 0 || !p->pub.listens || !accepts;
        int n_fds = fill_poll(p, fds, accepts);
        int rc = poll(fds, (nfds_t)n_fds, ticks ? TICK_MS : -1);
        if (rc < 0 && errno != EINTR)
            (void)poll(NULL, 0, TICK_MS); /* no memory for it */
        if (rc < 0)
            continue;
        if (fds[FD_STOP].revents != 0)
            return NULL;
        if (fds[FD_EVENTS].revents != 0)
            read_events(p);
        serve_peers(p, fds, n_fds);
        if (fds[FD_PUB].revents != 0)
            accept_peers(p, &p->pub);
        if (fds[FD_REPLAY].revents != 0)
            accept_peers(p, &p->replay);
        connect_again(p, sl_now_ns());
    }
}

/* ---- start and end */

/* Pages that the tiers have at most; they come without tokens. */
static uint64_t tier_pages(const struct sl_kv_publisher *p, const struct sl_model_info *i)
{
    uint64_t least = UINT64_MAX, n_bytes = 0;
    struct sl_stats st;
    if (!p->cfg.tiers)
        return 0;
    sl_engine_stats(p->eng, &st);
    for (int32_t g = 0; g < SL_MAX(i->n_kv_groups, 1); g++)
        least = SL_MIN(least, SL_MAX(i->kv_groups[g].page_bytes, 1u));
    n_bytes += st.kv_tiers[SL_KV_TIER_HOST].capacity_bytes;
    n_bytes += st.kv_tiers[SL_KV_TIER_DISK].capacity_bytes;
    return n_bytes / least;
}

static int open_all(struct sl_kv_publisher *p, struct sl_error *err)
{
    const struct sl_model_info *i = sl_engine_info(p->eng);
    const uint64_t n_tiers = tier_pages(p, i);
    uint64_t n_pages = (uint64_t)i->n_pages; /* or the sum of the groups' */
    for (int32_t g = i->n_kv_groups - 1; g > 0; g--)
        n_pages += (uint64_t)i->kv_groups[g].n_pages;
    uint64_t n_snapshot = SL_CEIL_DIV(n_pages, MAX_EVENTS) + 1;
    uint64_t max_bytes =
        KEPT_BYTES + 2 * n_snapshot * max_batch_bytes(i) + 2 * n_tiers * TIER_EVENT_BYTES;
    n_snapshot += SL_CEIL_DIV(n_tiers, MAX_EVENTS);
    int rc = sl_kv_kept_init(&p->kept, (size_t)p->cfg.buffer_steps, max_bytes, err);
    if (rc == 0)
        rc = sl_kv_socket_open(&p->pub, p->cfg.endpoint, "PUB", err);
    if (rc == 0 && p->cfg.replay_endpoint[0] != '\0')
        rc = sl_kv_socket_open(&p->replay, p->cfg.replay_endpoint, "ROUTER", err);
    if (rc != 0)
        return rc;
    bool fits = (uint64_t)p->cfg.buffer_steps >= 2 * n_snapshot;
    p->may_renumber = p->cfg.renumber && p->replay.fd >= 0 && fits;
    if (p->cfg.renumber && p->replay.fd >= 0 && !fits)
        sl_log(SL_LOG_WARN,
               "KV events: buffer_steps is less than %llu, so that a replay from 0 is soon "
               "impossible",
               (unsigned long long)(2 * n_snapshot));
    p->stop_fd = eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC);
    return p->stop_fd >= 0 ? 0 : sl_fail(err, SL_EIO, "eventfd: %s", strerror(errno));
}

int sl_kv_publisher_start(const struct sl_kv_events_config *cfg, struct sl_engine *eng,
                          struct sl_kv_publisher **out, struct sl_error *err)
{
    struct sl_kv_publisher *p = sl_calloc(1, sizeof *p);
    *out = p;
    if (p == NULL)
        return sl_fail(err, SL_ENOMEM, "out of memory");
    p->cfg = *cfg;
    p->eng = eng;
    p->stop_fd = p->pub.fd = p->replay.fd = -1;
    int rc = open_all(p, err);
    if (rc == 0)
        rc = sl_thread_create(&p->thread, publisher_main, p, "sl-kv-events", err);
    p->started = rc == 0;
    if (rc != 0) {
        sl_kv_publisher_stop(p);
        *out = NULL;
        return rc;
    }
    sl_log(SL_LOG_INFO, "KV events: %s %s%s%s", p->pub.listens ? "publishing on" : "connecting to",
           p->pub.name, p->replay.fd >= 0 ? ", replay on " : "",
           p->replay.fd >= 0 ? p->replay.name : "");
    return 0;
}

void sl_kv_publisher_stop(struct sl_kv_publisher *p)
{
    if (p == NULL)
        return;
    if (p->started) {
        uint64_t one = 1;
        ssize_t n = sl_sys->write(p->stop_fd, &one, sizeof one);
        (void)n; /* an eventfd that nobody wrote before takes it */
        pthread_join(p->thread, NULL);
    }
    while (p->n_peers > 0)
        drop_peer(p, p->n_peers - 1);
    sl_kv_socket_close(&p->pub);
    sl_kv_socket_close(&p->replay);
    if (p->stop_fd >= 0)
        sl_sys->close(p->stop_fd);
    sl_kv_kept_deinit(&p->kept);
    sl_free(p);
}

void sl_kv_publisher_stats(const struct sl_kv_publisher *p, struct sl_kv_publisher_stats *out)
{
    *out = (struct sl_kv_publisher_stats){
        .n_batches = atomic_load(&p->n_batches),
        .n_dropped = atomic_load(&p->n_dropped),
        .n_replays = atomic_load(&p->n_replays),
        .n_renumbered = atomic_load(&p->n_renumbered),
        .n_subscribers = atomic_load(&p->n_subscribers),
    };
}
