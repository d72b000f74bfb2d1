/* SPDX-License-Identifier: MIT
 * One connection with a page service: how it begins, and its deadlines. Nothing here blocks.
 */
#include "base/check.h"
#include "base/sys.h"
#include "tier/peer_impl.h"

#include <errno.h>
#include <poll.h>
#include <string.h>
#include <sys/socket.h>

#define MS UINT64_C(1000000)

enum { CONNECTING, HELLO, WELCOME, METADATA, PULLING };

short sl_peer_conn_events(const struct sl_peer_conn *c)
{
    switch (c->state) {
    case CONNECTING:
    case HELLO:
        return POLLOUT;
    case WELCOME:
    case METADATA:
        return POLLIN;
    default:
        return (short)(POLLIN | (c->sent < c->n_out ? POLLOUT : 0));
    }
}

void sl_peer_conn_close(struct sl_peer *p, struct sl_peer_conn *c)
{
    const bool lost = c->n_asked > 0 || c->n_again > 0;
    SL_ASSERT(c->fd >= 0 && c->job != NULL);
    sl_peer_lose_asked(p, c);
    if (c->remote != NULL)
        sl_nixl_part(p->cfg.nixl, c->remote);
    if (lost) {
        pthread_mutex_lock(&p->lock);
        p->stats.n_lost++;
        pthread_mutex_unlock(&p->lock);
    }
    sl_peer_conn_gone(c->job);
    sl_sys->close(c->fd);
    sl_free(c->metadata);
    sl_free(c);
}

/* ---- the beginning */

static int finish_connect(struct sl_peer *p, struct sl_peer_conn *c)
{
    struct pollfd poll_fd = {.fd = c->fd, .events = POLLOUT};
    int error = 0;
    socklen_t n = sizeof error;
    SL_ASSERT(c->state == CONNECTING && c->sent == 0 && c->got == 0);
    if (poll(&poll_fd, 1, 0) == 0)
        return 0;
    if (getsockopt(c->fd, SOL_SOCKET, SO_ERROR, &error, &n) != 0 || error != 0) {
        sl_peer_tell(p, c->job, error == ECONNREFUSED ? "does not listen" : "cannot be reached");
        return -1;
    }
    const struct sl_peer_job *j = c->job;
    const uint64_t now = sl_now_ns();
    size_t n_own;
    const bool nixl = p->cfg.nixl != NULL && sl_nixl_metadata(p->cfg.nixl, &n_own) != NULL;
    c->hello = (struct sl_peer_hello){
        .magic = SL_PEER_MAGIC,
        .root = p->cfg.layout.root,
        .id = j->id,
        .block_size = p->cfg.layout.block_size,
        .n_blocks = j->n_blocks,
        .wait_ms = (uint32_t)(now < j->deadline_ns ? (j->deadline_ns - now) / MS : 0),
        .carrier = nixl ? SL_CARRIER_NIXL : SL_CARRIER_STREAM};
    c->state = HELLO;
    return 1;
}

static int send_hello(const struct sl_peer *p, struct sl_peer_conn *c)
{
    const size_t n_head = sizeof c->hello;
    const size_t n_body =
        (size_t)c->job->n_blocks * (size_t)p->cfg.layout.block_size * sizeof *c->job->tokens;
    SL_ASSERT(c->state == HELLO && n_body > 0);
    while (c->sent < n_head + n_body) {
        const size_t head = SL_MIN(c->sent, n_head), body = c->sent - head;
        ssize_t n = sl_peer_send(c->fd, (const uint8_t *)&c->hello + head, n_head - head,
                                 (const uint8_t *)c->job->tokens + body, n_body - body);
        if (n <= 0)
            return (int)n;
        c->sent += (size_t)n;
    }
    c->sent = 0;
    c->state = WELCOME;
    return 1;
}

int sl_peer_conn_take(struct sl_peer_conn *c, void *to, size_t n, uint64_t now)
{
    SL_ASSERT(c->got <= n);
    while (c->got < n) {
        ssize_t got = sl_peer_recv(c->fd, (uint8_t *)to + c->got, n - c->got);
        if (got <= 0)
            return (int)got;
        c->heard_ns = now;
        c->got += (size_t)got;
    }
    c->got = 0;
    return 1;
}

static const char *refusal_of(uint32_t status)
{
    switch (status) {
    case SL_PEER_GONE:
        return "has no such pages, or not any more";
    case SL_PEER_ROOT:
        return "has another model, version, instruction set or context length";
    case SL_PEER_OTHER:
        return "has pages of another prompt";
    case SL_PEER_FAILED:
        return "refused the request";
    default:
        return "speaks another protocol";
    }
}

static int take_welcome(struct sl_peer *p, struct sl_peer_conn *c, uint64_t now)
{
    int r;
    SL_ASSERT(c->state == WELCOME && c->n_asked == 0);
    do {
        r = sl_peer_conn_take(c, &c->in.welcome, sizeof c->in.welcome, now);
        if (r <= 0)
            return r;
    } while (c->in.welcome.status == SL_PEER_BEAT);
    const struct sl_peer_welcome w = c->in.welcome;
    if (w.status != SL_PEER_OK || w.n_blocks < 1) {
        if (c->first) {
            sl_peer_tell(p, c->job, refusal_of(w.status));
            pthread_mutex_lock(&p->lock);
            p->stats.n_refused++;
            pthread_mutex_unlock(&p->lock);
        }
        return -1;
    }
    const bool offered = c->hello.carrier == SL_CARRIER_NIXL;
    if (w.n_metadata > (offered ? SL_MAX_NIXL_METADATA : 0u))
        return -1;
    if (offered && w.n_metadata == 0)
        sl_peer_tell_stream(p, c->job, SL_WHY_NO_NIXL);
    sl_peer_welcomed(c->job, w.n_blocks);
    c->metadata = w.n_metadata > 0 ? sl_malloc(w.n_metadata) : NULL;
    c->state = w.n_metadata > 0 ? METADATA : PULLING;
    return w.n_metadata == 0 || c->metadata != NULL ? 1 : -1;
}

/* How to read the peer's memory. */
static int take_metadata(struct sl_peer *p, struct sl_peer_conn *c, uint64_t now)
{
    const size_t n = c->in.welcome.n_metadata;
    SL_ASSERT(c->state == METADATA && c->remote == NULL);
    int r = sl_peer_conn_take(c, c->metadata, n, now);
    if (r <= 0)
        return r;
    c->remote = sl_nixl_meet(p->cfg.nixl, c->metadata, n);
    if (c->remote == NULL)
        sl_peer_tell_stream(p, c->job, SL_WHY_TOO_MANY);
    sl_free(c->metadata);
    c->metadata = NULL;
    c->state = PULLING;
    return 1;
}

/* Tells the peer that its pages may go. It may not hear it: then they go when their time is over.
 */
static void say_end(struct sl_peer_conn *c)
{
    const struct sl_peer_ask end = {.block = SL_PEER_ASK_END};
    SL_ASSERT(c->sent <= c->n_out);
    if (c->first && c->state == PULLING && c->sent == c->n_out)
        (void)sl_peer_send(c->fd, &end, sizeof end, NULL, 0);
}

bool sl_peer_conn_go(struct sl_peer *p, struct sl_peer_conn *c, uint64_t now)
{
    int r = 1;
    if (atomic_load(&c->job->cancelled)) {
        say_end(c);
        return false;
    }
    if (c->state == CONNECTING)
        r = finish_connect(p, c);
    if (r > 0 && c->state == HELLO)
        r = send_hello(p, c);
    if (r > 0 && c->state == WELCOME)
        r = take_welcome(p, c, now);
    if (r > 0 && c->state == METADATA)
        r = take_metadata(p, c, now);
    if (r > 0 && c->state == PULLING)
        r = sl_peer_pull(p, c, now);
    const bool waits = c->state != PULLING || c->n_asked > 0;
    if (r < 0 || (waits && now > c->heard_ns && now - c->heard_ns > SL_PEER_SILENT_MS * MS))
        return false;
    if (now < c->job->deadline_ns)
        return true;
    pthread_mutex_lock(&p->lock);
    p->stats.n_late += c->first;
    pthread_mutex_unlock(&p->lock);
    return false;
}
