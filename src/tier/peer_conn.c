/* SPDX-License-Identifier: MIT
 * One connection with a page service: says what is wanted, then asks for pages and reads them into
 * their places in the store. Nothing here blocks.
 */
#include "base/check.h"
#include "base/sys.h"
#include "tier/peer_impl.h"

#include <errno.h>
#include <poll.h>
#include <string.h>
#include <sys/socket.h>

#define MS          UINT64_C(1000000)
#define PAGES_AT_GO 4 /* then other connections have their turn */

enum { CONNECTING, HELLO, WELCOME, PULLING };

short sl_peer_conn_events(const struct sl_peer_conn *c)
{
    switch (c->state) {
    case CONNECTING:
    case HELLO:
        return POLLOUT;
    case WELCOME:
        return POLLIN;
    default:
        return (short)(POLLIN | (c->sent < c->n_out ? POLLOUT : 0));
    }
}

static void lose_asked(struct sl_peer *p, struct sl_peer_conn *c)
{
    while (c->n_asked > 0) {
        const struct sl_peer_got *got = &c->asked[c->first_asked];
        SL_ASSERT(got->room != NULL);
        sl_store_cancel(p->cfg.store, got->room);
        sl_peer_answered(c->job, got, false);
        c->first_asked = (c->first_asked + 1) % SL_MAX_PEER_WINDOW;
        c->n_asked--;
    }
}

void sl_peer_conn_close(struct sl_peer *p, struct sl_peer_conn *c)
{
    const bool lost = c->n_asked > 0;
    SL_ASSERT(c->fd >= 0 && c->job != NULL);
    lose_asked(p, c);
    if (lost) {
        pthread_mutex_lock(&p->lock);
        p->stats.n_lost++;
        pthread_mutex_unlock(&p->lock);
    }
    sl_peer_conn_gone(c->job);
    sl_sys->close(c->fd);
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
    c->hello = (struct sl_peer_hello){
        .magic = SL_PEER_MAGIC,
        .root = p->cfg.layout.root,
        .id = j->id,
        .block_size = p->cfg.layout.block_size,
        .n_blocks = j->n_blocks,
        .wait_ms = (uint32_t)(now < j->deadline_ns ? (j->deadline_ns - now) / MS : 0)};
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

/* 1: all of it is there. */
static int take(struct sl_peer_conn *c, void *to, size_t n, uint64_t now)
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
        r = take(c, &c->in.welcome, sizeof c->in.welcome, now);
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
    sl_peer_welcomed(c->job, w.n_blocks);
    c->state = PULLING;
    return 1;
}

/* ---- pages */

/* -1: there is nothing more to ask for. */
static int fill_asks(struct sl_peer_conn *c, uint64_t now)
{
    int got = 0;
    SL_ASSERT(c->sent == c->n_out && c->n_asked <= SL_MAX_PEER_WINDOW);
    c->sent = c->n_out = 0;
    for (int32_t i = 0; c->n_asked < SL_MAX_PEER_WINDOW; i++) {
        const int32_t at = (c->first_asked + c->n_asked) % SL_MAX_PEER_WINDOW;
        got = sl_peer_next(c->job, &c->asked[at]);
        if (got <= 0)
            break;
        if (c->n_asked == 0)
            c->heard_ns = now; /* from now on the peer has something to say */
        c->n_asked++;
        c->out[i] = (struct sl_peer_ask){c->asked[at].block, c->asked[at].group};
        c->n_out += sizeof c->out[i];
    }
    c->rests = c->n_asked == 0;
    return got;
}

static int send_asks(struct sl_peer_conn *c)
{
    while (c->sent < c->n_out) {
        ssize_t n =
            sl_peer_send(c->fd, (const uint8_t *)c->out + c->sent, c->n_out - c->sent, NULL, 0);
        if (n <= 0)
            return (int)n;
        c->sent += (size_t)n;
    }
    return 1;
}

/* The first page that was asked for is answered. */
static void settle(struct sl_peer *p, struct sl_peer_conn *c, bool here)
{
    const struct sl_peer_got got = c->asked[c->first_asked];
    SL_ASSERT(c->n_asked > 0);
    if (here)
        sl_store_commit(p->cfg.store, got.room);
    else
        sl_store_cancel(p->cfg.store, got.room);
    c->first_asked = (c->first_asked + 1) % SL_MAX_PEER_WINDOW;
    c->n_asked--;
    c->in_page = false;
    sl_peer_answered(c->job, &got, here);
}

static int take_head(struct sl_peer *p, struct sl_peer_conn *c, uint64_t now)
{
    SL_ASSERT(!c->in_page);
    int r = take(c, &c->in.page, sizeof c->in.page, now);
    if (r <= 0)
        return r;
    const struct sl_peer_page *h = &c->in.page;
    const struct sl_peer_got *got = &c->asked[c->first_asked];
    if (c->n_asked == 0 || h->block != got->block || h->group != got->group)
        return -1;
    if (h->status == SL_PEER_BEAT)
        return 1;
    if (h->status == SL_PEER_GONE) {
        settle(p, c, false);
        return 1;
    }
    c->in_page = true;
    return h->status == SL_PEER_OK && h->n_bytes == p->cfg.layout.page_bytes[h->group] ? 1 : -1;
}

static int take_body(struct sl_peer *p, struct sl_peer_conn *c, uint64_t now)
{
    const struct sl_peer_got *got = &c->asked[c->first_asked];
    const struct sl_page_layout *y = &p->cfg.layout;
    const struct sl_peer_job *j = c->job;
    const size_t n = y->page_bytes[got->group];
    SL_ASSERT(c->in_page && c->n_asked > 0 && got->room != NULL);
    int r = take(c, got->room, n, now);
    if (r <= 0)
        return r;
    const struct sl_hash128 digest =
        sl_peer_digest(&y->root, &j->id, got->block, got->group, got->room, n);
    const bool good = memcmp(&digest, &c->in.page.digest, sizeof digest) == 0;
    pthread_mutex_lock(&p->lock);
    p->stats.n_corrupt += !good;
    p->stats.n_pages += good;
    p->stats.n_bytes += good ? n : 0;
    pthread_mutex_unlock(&p->lock);
    if (!good)
        return -1;
    const struct sl_hash128 before =
        sl_tail_before(got->block > 0 ? &j->names[got->block - 1] : NULL, &j->names[got->block]);
    p->cfg.put_tail(got->room + n, &before, j->tokens + (size_t)got->block * (size_t)y->block_size,
                    y->block_size);
    settle(p, c, true);
    return 1;
}

/* Tells the peer that its pages may go. It may not hear it: then they go when their time is over.
 */
static void say_end(struct sl_peer_conn *c)
{
    const struct sl_peer_ask end = {-1, 0};
    SL_ASSERT(c->sent <= c->n_out);
    if (c->first && c->state == PULLING && c->sent == c->n_out)
        (void)sl_peer_send(c->fd, &end, sizeof end, NULL, 0);
}

static int pull(struct sl_peer *p, struct sl_peer_conn *c, uint64_t now)
{
    int r = 1;
    /* With nothing asked for, nothing would come that wakes it: it goes on. */
    for (int i = 0; r > 0 && (i < PAGES_AT_GO || c->n_asked == 0); i++) {
        int more = c->sent == c->n_out ? fill_asks(c, now) : 1;
        if (more < 0 && c->n_asked == 0) {
            say_end(c);
            return -1;
        }
        if (send_asks(c) < 0)
            return -1;
        if (c->n_asked == 0)
            return 0;
        r = c->in_page ? 1 : take_head(p, c, now);
        if (r > 0 && c->in_page)
            r = take_body(p, c, now);
    }
    return r;
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
    if (r > 0 && c->state == PULLING)
        r = pull(p, c, now);
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
