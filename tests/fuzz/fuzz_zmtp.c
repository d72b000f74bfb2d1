/* SPDX-License-Identifier: MIT
 * What a ZeroMQ peer sends. Fed whole and byte by byte it means the same frames and the same end,
 * and both are what a plain walk over the bytes finds. Commands, properties and subscriptions of
 * every frame are read, and what is found lies inside the frame.
 */
#include "fuzz.h"
#include "server/events/zmtp.h"

#include <string.h>

struct meaning {
    uint64_t digest;
    size_t n_frames, used;
    bool greeted, bad;
};

static void add(struct meaning *m, const void *data, size_t n)
{
    for (size_t i = 0; i < n; i++)
        m->digest = (m->digest ^ ((const uint8_t *)data)[i]) * UINT64_C(0x100000001B3);
    m->digest = m->digest * 31 + n;
}

static void look_at(const struct sl_zmtp *z)
{
    const struct sl_str topic = {"kv@a", 4};
    struct sl_str name, rest, value;
    const char *body = (const char *)z->body;
    int way = sl_zmtp_subscription(z, topic);
    SL_ASSERT(way >= -1 && way <= 1);
    if (!sl_zmtp_command(z, &name, &rest))
        return;
    SL_ASSERT(z->flags & SL_ZMTP_COMMAND);
    SL_ASSERT(name.p == body + 1 && rest.p == name.p + name.n &&
              rest.p + rest.n == body + z->length);
    if (sl_zmtp_property(rest, "socket-type", &value))
        SL_ASSERT(value.p >= rest.p && value.p + value.n <= rest.p + rest.n);
}

static struct meaning read_all(const uint8_t *data, size_t n, size_t step)
{
    static struct sl_zmtp z;
    struct meaning m = {.digest = 1};
    memset(&z, 0, sizeof z);
    for (size_t at = 0; at < n && !m.bad;) {
        size_t end = at + step < n ? at + step : n;
        while (at < end && !m.bad) {
            size_t took = sl_zmtp_feed(&z, data + at, end - at);
            SL_ASSERT(took > 0 && took <= end - at);
            at += took;
            m.bad = z.state == SL_ZMTP_BAD;
            m.greeted |= z.state == SL_ZMTP_GREETED;
            if (z.state != SL_ZMTP_FRAME)
                continue;
            look_at(&z);
            m.n_frames++;
            add(&m, &z.flags, 1);
            add(&m, z.body, z.length);
            m.used = at;
        }
    }
    return m;
}

/* The same by plain indexes, the greeting taken for good if the reader said so. */
static struct meaning walk(const uint8_t *data, size_t n)
{
    struct meaning m = {.digest = 1};
    for (size_t at = SL_ZMTP_GREETING; at + 2 <= n;) {
        uint8_t flags = data[at];
        size_t n_head = flags & SL_ZMTP_LONG ? 9 : 2;
        uint64_t length = 0;
        if (at + n_head > n)
            break;
        for (size_t i = 1; i < n_head; i++)
            length = length << 8 | data[at + i];
        if (flags > 7 || (flags & 5) == 5 || length > SL_ZMTP_MAX_FRAME) {
            m.bad = true;
            break;
        }
        if (length > n - at - n_head)
            break;
        m.n_frames++;
        add(&m, &flags, 1);
        add(&m, data + at + n_head, (size_t)length);
        at += n_head + (size_t)length;
        m.used = at;
    }
    return m;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct meaning whole = read_all(data, size, size + 1), single = read_all(data, size, 1);
    SL_ASSERT(whole.digest == single.digest && whole.n_frames == single.n_frames &&
              whole.bad == single.bad && whole.greeted == single.greeted);
    if (whole.greeted) {
        struct meaning model = walk(data, size);
        SL_ASSERT(whole.digest == model.digest && whole.n_frames == model.n_frames &&
                  whole.bad == model.bad && whole.used == model.used);
    }
    return 0;
}
