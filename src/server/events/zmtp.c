/* SPDX-License-Identifier: MIT */
#include "server/events/zmtp.h"

#include "base/check.h"

#include <string.h>
#include <strings.h>

#define VERSION_AT   10 /* of the greeting: major, minor, mechanism [20], as-server, filler */
#define MECHANISM_AT 12
#define N_MECHANISM  20
#define N_SIGNATURE  10

static const uint8_t signature[N_SIGNATURE] = {0xFF, 0, 0, 0, 0, 0, 0, 0, 0, 0x7F};
static const uint8_t null_mechanism[N_MECHANISM] = "NULL";

static size_t zmtp_fail(struct sl_zmtp *z, size_t took)
{
    z->state = SL_ZMTP_BAD;
    return took;
}

/* What may be known already: a peer that speaks something else is not waited for. The eight bytes
 * between the ends of the signature are a length that older peers would send. */
static bool greeting_may_be(const struct sl_zmtp *z)
{
    SL_DCHECK(z->n_head > 0 && z->n_head <= SL_ZMTP_GREETING);
    if (z->head[0] != signature[0])
        return false;
    if (z->n_head >= N_SIGNATURE && z->head[N_SIGNATURE - 1] != signature[N_SIGNATURE - 1])
        return false;
    if (z->n_head > VERSION_AT && z->head[VERSION_AT] < 3)
        return false;
    return z->n_head < SL_ZMTP_GREETING ||
           memcmp(z->head + MECHANISM_AT, null_mechanism, N_MECHANISM) == 0;
}

static size_t feed_greeting(struct sl_zmtp *z, const uint8_t *data, size_t n)
{
    size_t took = SL_MIN(n, SL_ZMTP_GREETING - z->n_head);
    SL_ASSERT(z->n_head < SL_ZMTP_GREETING && took > 0);
    memcpy(z->head + z->n_head, data, took);
    z->n_head += took;
    if (!greeting_may_be(z))
        return zmtp_fail(z, took);
    if (z->n_head == SL_ZMTP_GREETING) {
        z->state = SL_ZMTP_GREETED;
        z->n_head = 0;
    }
    return took;
}

/* Flags, then a length of one or eight bytes. */
static bool head_is_whole(struct sl_zmtp *z)
{
    size_t n_length = z->head[0] & SL_ZMTP_LONG ? 8 : 1;
    if (z->n_head < 1 + n_length)
        return false;
    SL_ASSERT(z->n_head == 1 + n_length);
    z->flags = z->head[0];
    uint64_t length = 0;
    for (size_t i = 1; i < z->n_head; i++)
        length = length << 8 | z->head[i];
    bool good = (z->flags & ~(SL_ZMTP_MORE | SL_ZMTP_LONG | SL_ZMTP_COMMAND)) == 0 &&
                (~z->flags & (SL_ZMTP_MORE | SL_ZMTP_COMMAND)) != 0 && length <= SL_ZMTP_MAX_FRAME;
    z->length = good ? (size_t)length : 0;
    z->n_body = 0;
    if (!good)
        z->state = SL_ZMTP_BAD;
    return true;
}

static size_t feed_frame(struct sl_zmtp *z, const uint8_t *data, size_t n)
{
    size_t at = 0;
    bool whole = z->n_head > 0 && z->n_head == (z->head[0] & SL_ZMTP_LONG ? 9u : 2u);
    while (!whole && at < n) {
        z->head[z->n_head++] = data[at++];
        whole = head_is_whole(z);
    }
    if (!whole || z->state == SL_ZMTP_BAD)
        return at;
    size_t took = SL_MIN(n - at, z->length - z->n_body);
    SL_ASSERT(z->n_body + took <= z->length && z->length <= sizeof z->body);
    if (took > 0)
        memcpy(z->body + z->n_body, data + at, took);
    z->n_body += took;
    if (z->n_body == z->length) {
        z->state = SL_ZMTP_FRAME;
        z->n_head = 0;
    }
    return at + took;
}

size_t sl_zmtp_feed(struct sl_zmtp *z, const void *data, size_t n)
{
    if (n == 0 || z->state == SL_ZMTP_BAD)
        return 0;
    if (z->state == SL_ZMTP_NEW)
        return feed_greeting(z, data, n);
    z->state = SL_ZMTP_PART;
    return feed_frame(z, data, n);
}

bool sl_zmtp_command(const struct sl_zmtp *z, struct sl_str *name, struct sl_str *rest)
{
    SL_ASSERT(z->state == SL_ZMTP_FRAME);
    if (!(z->flags & SL_ZMTP_COMMAND) || z->n_body < 1 || z->body[0] > z->n_body - 1)
        return false;
    const char *body = (const char *)z->body;
    *name = (struct sl_str){body + 1, z->body[0]};
    *rest = (struct sl_str){body + 1 + name->n, z->n_body - 1 - name->n};
    return name->n > 0;
}

bool sl_zmtp_property(struct sl_str metadata, const char *name, struct sl_str *value)
{
    const uint8_t *p = (const uint8_t *)metadata.p;
    size_t left = metadata.n;
    bool found = false;
    SL_ASSERT(metadata.n <= SL_ZMTP_MAX_FRAME);
    while (left > 0) {
        size_t n_name = p[0];
        if (n_name + 5 > left)
            return false;
        struct sl_str key = {(const char *)p + 1, n_name};
        const uint8_t *length = p + 1 + n_name;
        uint64_t n_value = (uint64_t)length[0] << 24 | (uint64_t)length[1] << 16 |
                           (uint64_t)length[2] << 8 | length[3];
        if (n_value > left - n_name - 5)
            return false;
        if (sl_str_equals_nocase(key, name)) {
            *value = (struct sl_str){(const char *)length + 4, (size_t)n_value};
            found = true;
        }
        left -= n_name + 5 + (size_t)n_value;
        p = length + 4 + n_value;
        SL_DCHECK(p == (const uint8_t *)metadata.p + metadata.n - left);
    }
    return found;
}

int sl_zmtp_subscription(const struct sl_zmtp *z, struct sl_str topic)
{
    struct sl_str name, prefix;
    int way;
    SL_ASSERT(z->state == SL_ZMTP_FRAME && z->n_body <= sizeof z->body);
    if (sl_zmtp_command(z, &name, &prefix)) { /* 3.1 */
        way = sl_str_equals(name, "SUBSCRIBE") ? 1 : sl_str_equals(name, "CANCEL") ? -1 : 0;
    } else { /* 3.0: a message of one frame */
        if (z->flags & (SL_ZMTP_COMMAND | SL_ZMTP_MORE) || z->n_body < 1 || z->body[0] > 1)
            return 0;
        way = z->body[0] == 1 ? 1 : -1;
        prefix = (struct sl_str){(const char *)z->body + 1, z->n_body - 1};
    }
    bool matches =
        prefix.n <= topic.n && (prefix.n == 0 || memcmp(prefix.p, topic.p, prefix.n) == 0);
    return matches ? way : 0;
}

/* ---- to send */

void sl_zmtp_put_greeting(struct sl_buf *b)
{
    static const uint8_t rest[SL_ZMTP_GREETING - MECHANISM_AT - N_MECHANISM];
    static const uint8_t version[2] = {3, 0}; /* 3.0: peers subscribe by messages */
    sl_buf_put(b, signature, sizeof signature);
    sl_buf_put(b, version, sizeof version);
    sl_buf_put(b, null_mechanism, sizeof null_mechanism);
    sl_buf_put(b, rest, sizeof rest);
}

static void zmtp_put_head(struct sl_buf *b, unsigned flags, size_t n)
{
    uint8_t head[9] = {(uint8_t)flags};
    if (n < 256) {
        head[1] = (uint8_t)n;
        sl_buf_put(b, head, 2);
        return;
    }
    head[0] |= SL_ZMTP_LONG;
    for (int i = 0; i < 8; i++)
        head[8 - i] = (uint8_t)((uint64_t)n >> (8 * i));
    sl_buf_put(b, head, sizeof head);
}

void sl_zmtp_put_frame(struct sl_buf *b, const void *data, size_t n, bool more)
{
    zmtp_put_head(b, more ? SL_ZMTP_MORE : 0, n);
    if (n > 0)
        sl_buf_put(b, data, n);
}

void sl_zmtp_put_ready(struct sl_buf *b, const char *socket_type)
{
    static const char name[] = "Socket-Type";
    size_t n_name = sizeof name - 1, n_type = strlen(socket_type);
    const uint8_t length[4] = {0, 0, 0, (uint8_t)n_type};
    zmtp_put_head(b, SL_ZMTP_COMMAND, 6 + 1 + n_name + 4 + n_type);
    sl_buf_put(b, "\5READY", 6);
    sl_buf_putc(b, (char)n_name);
    sl_buf_put(b, name, n_name);
    sl_buf_put(b, length, sizeof length);
    sl_buf_put(b, socket_type, n_type);
}

void sl_zmtp_put_pong(struct sl_buf *b, struct sl_str context)
{
    zmtp_put_head(b, SL_ZMTP_COMMAND, 5 + context.n);
    sl_buf_put(b, "\4PONG", 5);
    if (context.n > 0)
        sl_buf_put(b, context.p, context.n);
}
