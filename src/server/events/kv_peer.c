/* SPDX-License-Identifier: MIT
 * kv_peer.c - one peer of the publisher of KV events: a subscriber, or a reader of replays.
 */
#include "server/events/kv_peer.h"

#include "base/check.h"
#include "base/sys.h"

#include <errno.h>
#include <string.h>

#define READY_NS    10000000000u /* from the connection to the peer's READY */
#define OUT_BYTES   (64u << 10)  /* unsent bytes above which no batch is added */
#define READ_ROUNDS 16           /* of 1 KB each, before others have their turn */

struct sl_kv_peer *sl_kv_peer_create(int fd, const struct sl_kv_socket *s,
                                     const struct sl_kv_kept *kept, uint64_t now_ns)
{
    struct sl_kv_peer *p = sl_calloc(1, sizeof *p);
    if (p == NULL)
        return NULL;
    p->socket = s;
    p->fd = fd;
    p->at = kept->end;
    p->deadline_ns = now_ns + READY_NS;
    sl_zmtp_put_greeting(&p->out);
    return p;
}

void sl_kv_peer_destroy(struct sl_kv_peer *p)
{
    sl_sys->close(p->fd);
    sl_buf_deinit(&p->out);
    sl_free(p);
}

/* ---- what it says */

static bool speaks_with_us(const struct sl_kv_peer *p, struct sl_str type)
{
    static const char *const subscribers[] = {"SUB", "XSUB"}, *const readers[] = {"DEALER", "REQ"};
    const char *const *types = strcmp(p->socket->type, "PUB") == 0 ? subscribers : readers;
    return sl_str_equals(type, types[0]) || sl_str_equals(type, types[1]);
}

static bool take_ready(struct sl_kv_peer *p)
{
    struct sl_str name, rest, type;
    if (!sl_zmtp_command(&p->in, &name, &rest) || !sl_str_equals(name, "READY") ||
        !sl_zmtp_property(rest, "socket-type", &type) || !speaks_with_us(p, type))
        return false;
    p->ready = true;
    return true;
}

/* A subscription counts from now on: what was published before is not for it. */
static void take_subscription(struct sl_kv_peer *p, const struct sl_kv_kept *kept,
                              const char *topic)
{
    int way = sl_zmtp_subscription(&p->in, (struct sl_str){topic, strlen(topic)});
    if (way > 0 && p->n_matching == 0)
        p->at = kept->end;
    if (way > 0 ? p->n_matching < INT32_MAX : p->n_matching > 0)
        p->n_matching += way;
}

/* ["", start_seq]: eight bytes. Anything else is passed over. */
static void take_request(struct sl_kv_peer *p, const struct sl_kv_kept *kept)
{
    const struct sl_zmtp *z = &p->in;
    bool last = !(z->flags & SL_ZMTP_MORE);
    if (p->n_frames == 0)
        p->request_bad = z->length != 0 || last;
    else
        p->request_bad |= p->n_frames > 1 || z->length != 8 || !last;
    p->n_frames = SL_MIN(p->n_frames + 1, 2);
    if (!last)
        return;
    p->n_frames = 0;
    if (p->request_bad || p->replaying) /* one at a time: a second one is a peer's mistake */
        return;
    p->start_seq = 0;
    for (int i = 0; i < 8; i++)
        p->start_seq = p->start_seq << 8 | z->body[i];
    p->replaying = true;
    p->n_replays++;
    p->at = kept->first;
    p->replay_end = kept->end;
}

static bool take_frame(struct sl_kv_peer *p, const struct sl_kv_kept *kept, const char *topic)
{
    struct sl_str name, rest;
    if (!p->ready)
        return take_ready(p);
    if (sl_zmtp_command(&p->in, &name, &rest) && sl_str_equals(name, "PING")) {
        if (rest.n >= 2 && rest.n <= 18 &&
            p->out.n_bytes - p->out_sent < OUT_BYTES) /* time, context */
            sl_zmtp_put_pong(&p->out, (struct sl_str){rest.p + 2, rest.n - 2});
        return true;
    }
    if (strcmp(p->socket->type, "PUB") == 0)
        take_subscription(p, kept, topic);
    else if (!(p->in.flags & SL_ZMTP_COMMAND))
        take_request(p, kept);
    return true;
}

static bool read_in(struct sl_kv_peer *p, const struct sl_kv_kept *kept, const char *topic)
{
    uint8_t data[SL_ZMTP_MAX_FRAME];
    for (int round = 0; round < READ_ROUNDS; round++) {
        ssize_t n = sl_sys->read(p->fd, data, sizeof data);
        if (n < 0)
            return errno == EAGAIN || errno == EWOULDBLOCK || errno == EINTR;
        if (n == 0)
            return false;
        for (size_t at = 0; at < (size_t)n;) {
            at += sl_zmtp_feed(&p->in, data + at, (size_t)n - at);
            if (p->in.state == SL_ZMTP_BAD)
                return false;
            if (p->in.state == SL_ZMTP_GREETED)
                sl_zmtp_put_ready(&p->out, p->socket->type);
            if (p->in.state == SL_ZMTP_FRAME && !take_frame(p, kept, topic))
                return false;
        }
    }
    return true;
}

/* ---- what it is told */

static void put_batch(struct sl_buf *b, const struct sl_kv_kept_batch *batch, const char *topic,
                      bool reply)
{
    uint8_t seq[8];
    for (int i = 0; i < 8; i++)
        seq[7 - i] = (uint8_t)(batch->seq >> (8 * i));
    if (reply)
        sl_zmtp_put_frame(b, "", 0, true);
    sl_zmtp_put_frame(b, topic, strlen(topic), true);
    sl_zmtp_put_frame(b, seq, sizeof seq, true);
    sl_zmtp_put_frame(b, batch->data, batch->n_bytes, false);
}

static void skip_lost(struct sl_kv_peer *p, uint64_t first)
{
    if (p->at < first) {
        p->n_dropped += first - p->at;
        p->at = first;
    }
}

static void put_live(struct sl_kv_peer *p, const struct sl_kv_kept *kept, const char *topic,
                     int64_t hwm)
{
    if (p->n_matching == 0)
        return;
    skip_lost(p, kept->first);
    if (hwm > 0 && kept->end - p->at > (uint64_t)hwm)
        skip_lost(p, kept->end - (uint64_t)hwm);
    while (p->at < kept->end && p->out.n_bytes - p->out_sent < OUT_BYTES)
        put_batch(&p->out, &kept->ring[p->at++ % kept->cap], topic, false);
}

static void put_replay(struct sl_kv_peer *p, const struct sl_kv_kept *kept, const char *topic)
{
    static const struct sl_kv_kept_batch end = {.seq = UINT64_MAX};
    if (!p->replaying)
        return;
    skip_lost(p, kept->first);
    for (; p->at < p->replay_end && p->out.n_bytes - p->out_sent < OUT_BYTES; p->at++) {
        const struct sl_kv_kept_batch *batch = &kept->ring[p->at % kept->cap];
        if (batch->seq >= p->start_seq)
            put_batch(&p->out, batch, topic, true);
    }
    if (p->at >= p->replay_end) {
        put_batch(&p->out, &end, "", true);
        p->replaying = false;
    }
}

/* Forgets what is sent, so that a byte moves once on average. */
static void close_gap(struct sl_kv_peer *p)
{
    size_t left = p->out.n_bytes - p->out_sent;
    if (p->out_sent < SL_MAX(OUT_BYTES / 4, left))
        return;
    memmove(p->out.data, p->out.data + p->out_sent, left);
    p->out.n_bytes = left;
    p->out_sent = 0;
}

static bool kv_peer_write_out(struct sl_kv_peer *p)
{
    if (!sl_buf_ok(&p->out))
        return false;
    while (sl_kv_peer_unsent(p)) {
        ssize_t n = sl_sys->write(p->fd, p->out.data + p->out_sent, p->out.n_bytes - p->out_sent);
        if (n < 0 && errno == EINTR)
            continue;
        if (n < 0 && (errno == EAGAIN || errno == EWOULDBLOCK || errno == ENOTCONN)) {
            close_gap(p);
            return true;
        }
        if (n <= 0)
            return false;
        p->out_sent += (size_t)n;
    }
    p->out_sent = 0;
    if (p->out.cap_bytes > 2 * OUT_BYTES)
        sl_buf_deinit(&p->out);
    else
        sl_buf_clear(&p->out);
    return true;
}

bool sl_kv_peer_serve(struct sl_kv_peer *p, const struct sl_kv_kept *kept, const char *topic,
                      int64_t hwm, bool readable, uint64_t now_ns)
{
    if (readable && !read_in(p, kept, topic))
        return false;
    if (!p->ready)
        return now_ns < p->deadline_ns && kv_peer_write_out(p);
    for (;;) {
        size_t unsent = p->out.n_bytes - p->out_sent;
        if (strcmp(p->socket->type, "PUB") == 0)
            put_live(p, kept, topic, hwm);
        else
            put_replay(p, kept, topic);
        if (p->out.n_bytes - p->out_sent == unsent && unsent == 0)
            return true;
        if (!kv_peer_write_out(p))
            return false;
        if (sl_kv_peer_unsent(p))
            return true;
    }
}
