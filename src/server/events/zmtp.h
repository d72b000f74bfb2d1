/* SPDX-License-Identifier: MIT
 * zmtp.h - what travels between ZeroMQ sockets over a stream: ZMTP 3.0 and 3.1 with the NULL
 * mechanism (rfc.zeromq.org/spec/23 and 37). A reader of a peer's bytes, and the bytes to send.
 *
 * The reader takes bytes as they come and stops behind each frame. A peer of a publisher or of a
 * replay socket has little to say, so that a frame has a small bound; what is longer, out of order
 * or of an older protocol is bad for good.
 */
#ifndef SL_SERVER_ZMTP_H
#define SL_SERVER_ZMTP_H

#include "base/buf.h"
#include "server/http/http_parse.h"

#include <stdint.h>

#define SL_ZMTP_GREETING  64
#define SL_ZMTP_MAX_FRAME 1024 /* bytes of a peer's frame */

enum sl_zmtp_flag { SL_ZMTP_MORE = 1, SL_ZMTP_LONG = 2, SL_ZMTP_COMMAND = 4 };

enum sl_zmtp_state {
    SL_ZMTP_NEW,     /* the greeting is coming */
    SL_ZMTP_GREETED, /* it has come just now */
    SL_ZMTP_PART,    /* inside a frame, or before one */
    SL_ZMTP_FRAME,   /* one has come just now */
    SL_ZMTP_BAD
};

struct sl_zmtp {
    enum sl_zmtp_state state;
    uint8_t head[SL_ZMTP_GREETING]; /* of the greeting, or flags and length */
    size_t n_head;
    size_t length, n_body; /* of the frame, and what is there of it */
    uint8_t flags;
    uint8_t body[SL_ZMTP_MAX_FRAME];
};

/* Returns how many bytes were taken; less than n after GREETED, FRAME and BAD, which the next call
 * leaves behind. Zeroed memory is a reader at the beginning. */
size_t sl_zmtp_feed(struct sl_zmtp *z, const void *data, size_t n);
/* The frame as a command: its name, and what follows. False: it is none, or broken. */
bool sl_zmtp_command(const struct sl_zmtp *z, struct sl_str *name, struct sl_str *rest);
/* A property of a READY command's metadata. False: it is not there, or the metadata are broken. */
bool sl_zmtp_property(struct sl_str metadata, const char *name, struct sl_str *value);
/* Does the frame open (1) or close (-1) a subscription that prefixes topic? 0: neither. */
int sl_zmtp_subscription(const struct sl_zmtp *z, struct sl_str topic);

void sl_zmtp_put_greeting(struct sl_buf *b);
void sl_zmtp_put_ready(struct sl_buf *b, const char *socket_type);
void sl_zmtp_put_pong(struct sl_buf *b, struct sl_str context);
void sl_zmtp_put_frame(struct sl_buf *b, const void *data, size_t n, bool more);

#endif
