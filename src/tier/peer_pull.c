/* SPDX-License-Identifier: MIT
 * The pages of one connection with a page service: they are asked for, some at a time, and come in
 * that order. Their bytes follow in the stream, or this side reads them where they lie, by NIXL;
 * a page that cannot be read so is asked for again, by the stream. Nothing here blocks.
 */
#include "base/check.h"
#include "base/sys.h"
#include "tier/peer_impl.h"

#include <string.h>

#define PAGES_AT_GO 4 /* then other connections have their turn */

/* Of the pages that were asked for, the one at `at`. */
static struct sl_peer_got *asked(struct sl_peer_conn *c, int32_t at)
{
    SL_ASSERT(at >= 0 && at < SL_MAX_PEER_WINDOW);
    return &c->asked[(c->first_asked + at) % SL_MAX_PEER_WINDOW];
}

/* Takes the first one out. */
static struct sl_peer_got pop(struct sl_peer_conn *c)
{
    const struct sl_peer_got got = *asked(c, 0);
    SL_ASSERT(c->n_asked > 0 && c->n_heads <= c->n_asked);
    c->first_asked = (c->first_asked + 1) % SL_MAX_PEER_WINDOW;
    c->n_asked--;
    c->n_heads -= c->n_heads > 0;
    return got;
}

static void lose(struct sl_peer *p, struct sl_peer_conn *c, const struct sl_peer_got *got)
{
    SL_ASSERT(got->room != NULL);
    if (got->read != NULL)
        sl_nixl_give_up(p->cfg.nixl, got->read);
    else
        sl_store_cancel(p->cfg.store, got->room);
    sl_peer_answered(c->job, got, false);
}

void sl_peer_lose_asked(struct sl_peer *p, struct sl_peer_conn *c)
{
    while (c->n_asked > 0) {
        const struct sl_peer_got got = pop(c);
        lose(p, c, &got);
    }
    while (c->n_again > 0)
        lose(p, c, &c->again[--c->n_again]);
}

/* ---- asking */

/* The next page to be asked for, to be read by *carrier; as sl_peer_next. */
static int next_page(struct sl_peer *p, struct sl_peer_conn *c, struct sl_peer_got *got,
                     enum sl_peer_carrier *carrier)
{
    *carrier = SL_CARRIER_STREAM;
    if (c->n_again > 0) {
        *got = c->again[--c->n_again];
        return 1;
    }
    if (c->remote != NULL && sl_nixl_usable(p->cfg.nixl, c->remote))
        *carrier = SL_CARRIER_NIXL;
    return sl_peer_next(c->job, got);
}

/* -1: there is nothing more to ask for. */
static int fill_asks(struct sl_peer *p, struct sl_peer_conn *c, uint64_t now)
{
    int got = 0;
    int32_t n = 0;
    SL_ASSERT(c->sent == c->n_out && c->n_asked + c->n_again <= SL_MAX_PEER_WINDOW);
    for (int32_t i = 0; i < c->n_read; i++)
        c->out[n++] = (struct sl_peer_ask){
            .block = SL_PEER_ASK_READ, .carrier = c->read[i] ? SL_CARRIER_NIXL : SL_CARRIER_STREAM};
    c->n_read = 0;
    while (c->n_asked < SL_MAX_PEER_WINDOW) {
        struct sl_peer_got *g = asked(c, c->n_asked);
        enum sl_peer_carrier carrier;
        got = next_page(p, c, g, &carrier);
        if (got <= 0)
            break;
        if (c->n_asked == 0)
            c->heard_ns = now; /* from now on the peer has something to say */
        c->n_asked++;
        c->out[n++] = (struct sl_peer_ask){g->block, g->group, (uint32_t)carrier};
    }
    if (got < 0 && c->n_asked == 0 && c->first)
        c->out[n++] = (struct sl_peer_ask){.block = SL_PEER_ASK_END};
    SL_ASSERT(n <= (int32_t)SL_COUNT(c->out));
    c->sent = 0;
    c->n_out = (size_t)n * sizeof c->out[0];
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

/* ---- answers */

/* The bytes of a page are in its room. False: they are others than the peer has. */
static bool accept_page(struct sl_peer *p, struct sl_peer_conn *c, const struct sl_peer_got *got)
{
    const struct sl_page_layout *y = &p->cfg.layout;
    const struct sl_peer_job *j = c->job;
    const size_t n = y->page_bytes[got->group];
    const struct sl_hash128 digest =
        sl_peer_digest(&y->root, &j->id, got->block, got->group, got->room, n);
    const bool good = memcmp(&digest, &got->digest, sizeof digest) == 0;
    SL_ASSERT(got->read == NULL && got->room != NULL);
    pthread_mutex_lock(&p->lock);
    p->stats.n_corrupt += !good;
    p->stats.n_pages += good;
    p->stats.n_bytes += good ? n : 0;
    pthread_mutex_unlock(&p->lock);
    if (!good)
        return false;
    const struct sl_hash128 before =
        sl_tail_before(got->block > 0 ? &j->names[got->block - 1] : NULL, &j->names[got->block]);
    p->cfg.put_tail(got->room + n, &before, j->tokens + (size_t)got->block * (size_t)y->block_size,
                    y->block_size);
    return true;
}

/* The first page that was asked for is here. */
static void settle(struct sl_peer *p, struct sl_peer_conn *c)
{
    const struct sl_peer_got got = pop(c);
    sl_store_commit(p->cfg.store, got.room);
    sl_peer_answered(c->job, &got, true);
}

/* The head of the next answer: pages that are read elsewhere, or will not come, are settled in
 * their turn (settle_heads). */
static int take_head(struct sl_peer *p, struct sl_peer_conn *c, uint64_t now)
{
    SL_ASSERT(!c->in_page);
    int r = sl_peer_conn_take(c, &c->in.page, sizeof c->in.page, now);
    if (r <= 0)
        return r;
    const struct sl_peer_page *h = &c->in.page;
    struct sl_peer_got *got = asked(c, c->n_heads % SL_MAX_PEER_WINDOW);
    if (c->n_heads == c->n_asked || h->block != got->block || h->group != got->group)
        return -1;
    if (h->status == SL_PEER_BEAT)
        return 1;
    got->gone = h->status == SL_PEER_GONE;
    got->digest = h->digest;
    if (got->gone) {
        c->n_heads++;
        return 1;
    }
    if (h->status != SL_PEER_OK || h->n_bytes != p->cfg.layout.page_bytes[h->group])
        return -1;
    c->in_page = h->carrier == SL_CARRIER_STREAM;
    if (c->in_page)
        return 1;
    if (c->remote == NULL)
        return -1;
    got->read =
        sl_nixl_begin(p->cfg.nixl, c->remote, h->addr, got->room, (size_t)h->n_bytes, c->bell);
    c->n_heads++;
    return 1;
}

static int take_body(struct sl_peer *p, struct sl_peer_conn *c, uint64_t now)
{
    const struct sl_peer_got *got = asked(c, 0);
    SL_ASSERT(c->in_page && c->n_asked > 0 && c->n_heads == 0 && got->room != NULL);
    int r = sl_peer_conn_take(c, got->room, p->cfg.layout.page_bytes[got->group], now);
    if (r <= 0)
        return r;
    c->in_page = false;
    if (!accept_page(p, c, got))
        return -1;
    settle(p, c);
    return 1;
}

/* ---- pages that are read by NIXL */

/* The first page could not be read: the stream is to bring it. Its room may still be written to. */
static void ask_again(struct sl_peer *p, struct sl_peer_conn *c)
{
    struct sl_peer_got got = pop(c);
    if (got.read != NULL) {
        sl_peer_tell_stream(p, c->job, SL_WHY_FAILED);
        sl_nixl_give_up(p->cfg.nixl, got.read);
        got.read = NULL;
        got.room = sl_peer_another_room(c->job, &got);
    }
    SL_ASSERT(c->n_again < SL_MAX_PEER_WINDOW);
    if (got.room != NULL)
        c->again[c->n_again++] = got;
    else
        sl_peer_answered(c->job, &got, false);
}

/* 1: the first answer, which did not come by the stream, is settled; 0: not yet; -1: the
 * connection is over. */
static int settle_head(struct sl_peer *p, struct sl_peer_conn *c, uint64_t now)
{
    struct sl_peer_got *got = asked(c, 0);
    enum sl_nixl_state state = SL_NIXL_FAILED;
    SL_ASSERT(c->n_heads > 0 && c->n_read < SL_MAX_PEER_WINDOW);
    if (got->gone) {
        const struct sl_peer_got gone = pop(c);
        lose(p, c, &gone);
        return 1;
    }
    if (got->read != NULL)
        state = sl_nixl_look(p->cfg.nixl, got->read, now);
    if (state == SL_NIXL_PENDING)
        return 0;
    c->heard_ns = now;
    c->read[c->n_read++] = state == SL_NIXL_DONE;
    if (state == SL_NIXL_FAILED) {
        ask_again(p, c);
        return 1;
    }
    sl_nixl_end(p->cfg.nixl, got->read);
    got->read = NULL;
    if (!accept_page(p, c, got))
        return -1;
    settle(p, c);
    return 1;
}

/* 1: some were; none that is ready is left, as nothing more would tell of it. */
static int settle_heads(struct sl_peer *p, struct sl_peer_conn *c, uint64_t now)
{
    int n = 0, r = 1;
    while (c->n_heads > 0 && r > 0) {
        r = settle_head(p, c, now);
        n += r > 0;
    }
    return r < 0 ? -1 : n > 0;
}

static int take_next(struct sl_peer *p, struct sl_peer_conn *c, uint64_t now)
{
    int r = c->in_page ? 1 : take_head(p, c, now);
    if (r > 0 && c->in_page) /* in the order of the asks */
        r = c->n_heads == 0 ? take_body(p, c, now) : 0;
    return r;
}

int sl_peer_pull(struct sl_peer *p, struct sl_peer_conn *c, uint64_t now)
{
    int r = 1;
    /* With nothing asked for, nothing would come that wakes it: it goes on. */
    for (int i = 0; r > 0 && (i < PAGES_AT_GO || c->n_asked == 0); i++) {
        int more = c->sent == c->n_out ? fill_asks(p, c, now) : 1;
        if (send_asks(c) < 0 || (more < 0 && c->n_asked == 0))
            return -1;
        if (c->n_asked == 0)
            return 0;
        r = settle_heads(p, c, now);
        if (r == 0 && c->n_heads < c->n_asked)
            r = take_next(p, c, now);
        if (r > 0 && settle_heads(p, c, now) < 0) /* that one will not come */
            r = -1;
    }
    return r;
}
