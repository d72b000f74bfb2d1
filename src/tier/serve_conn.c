/* SPDX-License-Identifier: MIT
 * One connection of the page service: what a peer wants to know, then pages in the order in which
 * it asks for them. Nothing here blocks.
 */
#include "base/check.h"
#include "base/sys.h"
#include "tier/serve_impl.h"

#include <string.h>

#define MS          UINT64_C(1000000)
#define HELLO_MS    5000  /* for a peer to say who it is */
#define IDLE_MS     30000 /* between asks, and for one to be sent */
#define PAGES_AT_GO 4     /* then other connections have their turn */

enum { HELLO, TOKENS, FIND, SERVING, ENDING };

/* The first page that was granted was read, or it will not be. Under the lock. */
static void end_grant(struct sl_serve *s, struct sl_serve_conn *c)
{
    SL_ASSERT(c->by_nixl && c->n_granted > 0 && c->lease != NULL);
    sl_lease_read(c->lease, c->granted[c->first_granted]);
    c->first_granted = (c->first_granted + 1) % SL_MAX_PEER_WINDOW;
    c->n_granted--;
    sl_nixl_serve(s->cfg.nixl, 0, -1);
}

void sl_serve_conn_close(struct sl_serve *s, struct sl_serve_conn *c)
{
    if (c->lease != NULL) {
        pthread_mutex_lock(&s->lock);
        if (c->page_idx >= 0)
            sl_lease_read(c->lease, c->page_idx);
        while (c->n_granted > 0)
            end_grant(s, c);
        sl_lease_leave(c->lease);
        pthread_mutex_unlock(&s->lock);
    }
    if (c->by_nixl)
        sl_nixl_serve(s->cfg.nixl, -1, 0);
    sl_sys->close(c->fd);
    sl_free(c->tokens);
    sl_free(c);
}

/* ---- sending */

static void welcome(struct sl_serve *s, struct sl_serve_conn *c, enum sl_peer_status status,
                    int32_t n_blocks)
{
    struct sl_peer_welcome w = {.status = (uint32_t)status, .n_blocks = n_blocks};
    SL_ASSERT(c->n_head == 0 && c->page == NULL);
    if (status == SL_PEER_OK && c->hello.carrier == SL_CARRIER_NIXL && s->cfg.nixl != NULL)
        c->page = sl_nixl_metadata(s->cfg.nixl, &c->n_page);
    if (c->page != NULL) {
        c->by_nixl = true;
        w.n_metadata = (uint32_t)c->n_page;
        sl_nixl_serve(s->cfg.nixl, 1, 0);
    }
    memcpy(&c->head, &w, sizeof w);
    c->n_head = sizeof w;
    c->state = status == SL_PEER_OK ? SERVING : ENDING;
    if (status != SL_PEER_OK) {
        pthread_mutex_lock(&s->lock);
        s->stats.n_refused++;
        pthread_mutex_unlock(&s->lock);
    }
}

/* The lease is still waited for. */
static void welcome_later(struct sl_serve_conn *c, uint64_t now)
{
    const struct sl_peer_welcome w = {.status = SL_PEER_BEAT};
    SL_ASSERT(c->n_head == 0 && c->state == FIND);
    if (now < c->beat_ns)
        return;
    memcpy(&c->head, &w, sizeof w);
    c->n_head = sizeof w;
    c->beat_ns = now + SL_PEER_BEAT_MS * MS;
}

static void answer(struct sl_serve_conn *c, enum sl_peer_status status,
                   const struct sl_peer_ask *ask)
{
    SL_ASSERT(c->n_head == 0 && c->page == NULL);
    c->head =
        (struct sl_peer_page){.status = (uint32_t)status, .block = ask->block, .group = ask->group};
    c->n_head = sizeof c->head;
}

/* What was being sent is gone: its page may go too. */
static void sent_all(struct sl_serve *s, struct sl_serve_conn *c)
{
    if (c->page_idx >= 0) {
        pthread_mutex_lock(&s->lock);
        s->stats.n_pages++;
        s->stats.n_bytes += c->n_page;
        sl_lease_read(c->lease, c->page_idx);
        pthread_mutex_unlock(&s->lock);
    }
    SL_ASSERT(c->sent == c->n_head + c->n_page);
    c->n_head = c->n_page = c->sent = 0;
    c->page = NULL;
    c->page_idx = -1;
}

/* 1: all is sent; 0: not yet; -1: the connection is over. */
static int flush(struct sl_serve *s, struct sl_serve_conn *c, uint64_t now)
{
    while (c->n_head > 0) {
        const size_t head = SL_MIN(c->sent, c->n_head), body = c->sent - head;
        SL_ASSERT(c->sent < c->n_head + c->n_page && body <= c->n_page);
        ssize_t n = sl_peer_send(c->fd, (const uint8_t *)&c->head + head, c->n_head - head,
                                 c->page != NULL ? c->page + body : NULL, c->n_page - body);
        if (n <= 0)
            return (int)n;
        c->sent += (size_t)n;
        c->deadline_ns = now + IDLE_MS * MS;
        if (c->sent == c->n_head + c->n_page)
            sent_all(s, c);
    }
    return 1;
}

/* ---- the beginning */

/* 1: all of it is there. */
static int take(struct sl_serve_conn *c, void *to, size_t n)
{
    SL_ASSERT(c->got <= n);
    while (c->got < n) {
        ssize_t got = sl_peer_recv(c->fd, (uint8_t *)to + c->got, n - c->got);
        if (got <= 0)
            return (int)got;
        c->got += (size_t)got;
    }
    c->got = 0;
    return 1;
}

static int take_hello(struct sl_serve *s, struct sl_serve_conn *c)
{
    const struct sl_page_layout *y = &s->cfg.layout;
    const struct sl_peer_hello *h = &c->hello;
    int r = take(c, &c->hello, sizeof c->hello);
    if (r <= 0)
        return r;
    if (h->magic != SL_PEER_MAGIC || h->n_blocks < 1 || h->n_blocks > SL_MAX_LEASE_BLOCKS)
        return -1;
    if (memcmp(&h->root, &y->root, sizeof h->root) != 0 || h->block_size != y->block_size) {
        welcome(s, c, SL_PEER_ROOT, 0);
        return 1;
    }
    c->tokens = sl_calloc((size_t)h->n_blocks, (size_t)y->block_size * sizeof *c->tokens);
    c->state = TOKENS;
    return c->tokens != NULL ? 1 : -1;
}

static int32_t same_blocks(const struct sl_serve *s, const struct sl_serve_conn *c)
{
    const size_t n_bytes = (size_t)s->cfg.layout.block_size * sizeof *c->tokens;
    const int32_t most = SL_MIN(c->hello.n_blocks, c->lease->n_blocks);
    int32_t n = 0;
    SL_ASSERT(c->hello.block_size == s->cfg.layout.block_size);
    while (n < most &&
           memcmp((const uint8_t *)c->tokens + (size_t)n * n_bytes,
                  (const uint8_t *)c->lease->tokens + (size_t)n * n_bytes, n_bytes) == 0)
        n++;
    return n;
}

static void find_lease(struct sl_serve *s, struct sl_serve_conn *c, uint64_t now)
{
    SL_ASSERT(c->lease == NULL && c->tokens != NULL);
    pthread_mutex_lock(&s->lock);
    struct sl_lease *l = sl_lease_find(s, &c->hello.id);
    const bool failed = l != NULL && l->failed && l->n_blocks == 0;
    if (l != NULL && !failed) {
        l->n_users++;
        c->lease = l;
    }
    pthread_mutex_unlock(&s->lock);
    c->waits = l == NULL && c->hello.id.is_room != 0; /* it may come before its request does */
    if (c->waits && now < c->wait_until_ns) {
        welcome_later(c, now);
        return;
    }
    c->waits = false;
    c->n_same = c->lease != NULL ? same_blocks(s, c) : 0;
    welcome(s, c,
            failed           ? SL_PEER_FAILED
            : l == NULL      ? SL_PEER_GONE
            : c->n_same == 0 ? SL_PEER_OTHER
                             : SL_PEER_OK,
            c->n_same);
    sl_free(c->tokens);
    c->tokens = NULL;
}

/* ---- pages */

/* -1: it is none. */
static int take_ask(struct sl_serve *s, struct sl_serve_conn *c, uint64_t now)
{
    const struct sl_peer_ask *a = &c->ask;
    SL_ASSERT(c->n_asks < SL_MAX_PEER_WINDOW);
    if (a->block == SL_PEER_ASK_READ && c->n_granted > 0) {
        const int32_t group = c->granted[c->first_granted] % s->cfg.layout.n_groups;
        pthread_mutex_lock(&s->lock);
        s->stats.n_pages += a->carrier == SL_CARRIER_NIXL;
        s->stats.n_bytes += a->carrier == SL_CARRIER_NIXL ? s->cfg.layout.page_bytes[group] : 0;
        end_grant(s, c);
        pthread_mutex_unlock(&s->lock);
        return 1;
    }
    if (a->block < 0 || a->block >= c->n_same || a->group < 0 ||
        a->group >= s->cfg.layout.n_groups ||
        a->carrier > (c->by_nixl ? SL_CARRIER_NIXL : SL_CARRIER_STREAM) ||
        c->n_asks + c->n_granted >= SL_MAX_PEER_WINDOW)
        return -1;
    if (c->n_asks == 0)
        c->deadline_ns = now + IDLE_MS * MS;
    c->asks[(c->first_ask + c->n_asks++) % SL_MAX_PEER_WINDOW] = *a;
    return 1;
}

/* Reads asks while there is room for them. -1: the connection is over. */
static int take_asks(struct sl_serve *s, struct sl_serve_conn *c, uint64_t now)
{
    int r = 1;
    SL_ASSERT(c->lease != NULL && c->n_asks >= 0 && c->n_same <= c->lease->n_blocks);
    while (c->n_asks < SL_MAX_PEER_WINDOW && (r = take(c, &c->ask, sizeof c->ask)) > 0) {
        if (c->ask.block == SL_PEER_ASK_END) {
            pthread_mutex_lock(&s->lock);
            c->lease->read = true;
            pthread_mutex_unlock(&s->lock);
            sl_peer_ring(s->threads[0].bell);
            return -1;
        }
        if (take_ask(s, c, now) < 0)
            return -1;
    }
    return r;
}

static void send_page(struct sl_serve *s, struct sl_serve_conn *c, const struct sl_peer_ask *ask)
{
    const struct sl_page_layout *y = &s->cfg.layout;
    SL_ASSERT(c->page_idx >= 0);
    const uint8_t *page = c->lease->pages[c->page_idx].get.page;
    const size_t n = y->page_bytes[ask->group];
    answer(c, SL_PEER_OK, ask);
    c->head.carrier = ask->carrier;
    c->head.n_bytes = n;
    c->head.digest = sl_peer_digest(&y->root, &c->lease->id, ask->block, ask->group, page, n);
    if (ask->carrier == SL_CARRIER_NIXL) {
        SL_ASSERT(c->by_nixl && c->n_granted < SL_MAX_PEER_WINDOW);
        c->head.addr = (uintptr_t)page;
        c->granted[(c->first_granted + c->n_granted++) % SL_MAX_PEER_WINDOW] = c->page_idx;
        c->page_idx = -1;
        sl_nixl_serve(s->cfg.nixl, 0, 1);
        return;
    }
    c->page = page;
    c->n_page = n;
}

/* Begins to answer the first ask. False: its page has not come yet. */
static bool answer_next(struct sl_serve *s, struct sl_serve_conn *c, uint64_t now)
{
    const struct sl_peer_ask ask = c->asks[c->first_ask];
    SL_ASSERT(c->n_asks > 0 && c->page_idx < 0);
    pthread_mutex_lock(&s->lock);
    enum sl_store_state state = sl_lease_look(c->lease, ask.block, ask.group);
    if (state == SL_STORE_HERE) {
        c->page_idx = ask.block * s->cfg.layout.n_groups + ask.group;
        c->lease->pages[c->page_idx].n_readers++;
    }
    s->stats.n_missed += state == SL_STORE_MISS;
    pthread_mutex_unlock(&s->lock);
    if (state == SL_STORE_PENDING) {
        if (!c->waits || now >= c->beat_ns) {
            if (c->waits)
                answer(c, SL_PEER_BEAT, &ask);
            c->beat_ns = now + SL_PEER_BEAT_MS * MS;
        }
        c->waits = true;
        c->deadline_ns = now + IDLE_MS * MS; /* who asks decides how long it waits */
        return c->n_head > 0;
    }
    c->waits = false;
    c->first_ask = (c->first_ask + 1) % SL_MAX_PEER_WINDOW;
    c->n_asks--;
    if (state == SL_STORE_HERE)
        send_page(s, c, &ask);
    else
        answer(c, SL_PEER_GONE, &ask);
    return true;
}

static int serve_pages(struct sl_serve *s, struct sl_serve_conn *c, uint64_t now)
{
    for (int i = 0; i < PAGES_AT_GO; i++) {
        if (take_asks(s, c, now) < 0)
            return -1;
        if (c->n_asks == 0 || !answer_next(s, c, now))
            return 0;
        int r = flush(s, c, now);
        if (r <= 0)
            return r;
    }
    return 0;
}

bool sl_serve_conn_reads(const struct sl_serve_conn *c)
{
    return c->state == HELLO || c->state == TOKENS ||
           (c->state == SERVING && c->n_asks < SL_MAX_PEER_WINDOW);
}

bool sl_serve_conn_go(struct sl_serve *s, struct sl_serve_conn *c, uint64_t now)
{
    int r = flush(s, c, now);
    if (r > 0 && c->state == HELLO)
        r = take_hello(s, c);
    if (r > 0 && c->state == TOKENS)
        r = take(c, c->tokens,
                 (size_t)c->hello.n_blocks * (size_t)c->hello.block_size * sizeof *c->tokens);
    if (r > 0 && c->state == TOKENS) {
        c->state = FIND;
        c->wait_until_ns = now + SL_MIN(c->hello.wait_ms, IDLE_MS) * MS;
        c->deadline_ns = c->wait_until_ns + IDLE_MS * MS;
        c->beat_ns = now + SL_PEER_BEAT_MS * MS;
    }
    if (r > 0 && c->state == FIND)
        find_lease(s, c, now);
    if (r > 0 && c->n_head > 0)
        r = flush(s, c, now);
    if (r > 0 && c->state == SERVING)
        r = serve_pages(s, c, now);
    if (r > 0 && c->state == ENDING) /* what there was to say is said */
        return false;
    return r >= 0 && now < c->deadline_ns;
}
