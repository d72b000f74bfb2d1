/* SPDX-License-Identifier: MIT
 * wire.h - a TCP connection whose calls end at a deadline of sl_now_ns, however slowly the peer
 * sends or takes bytes.
 *
 * Errors: SL_EIO, the connection is lost or was never there; SL_ETIMEOUT; SL_EFORMAT, a line that
 * is longer than any should be. After one of them the connection is of no use. One thread; nothing
 * allocates after create but the resolver.
 */
#ifndef SL_TIER_WIRE_H
#define SL_TIER_WIRE_H

#include "base/err.h"

#include <sys/uio.h>

#define SL_WIRE_ROOM 16384 /* bytes that are received ahead; a line is shorter */

struct sl_wire {
    int fd; /* -1: not open */
    uint32_t at, n;
    uint8_t room[SL_WIRE_ROOM];
};

/* Resolving the name may take longer than the deadline. */
SL_MUST_CHECK int sl_wire_open(struct sl_wire *w, const char *host, const char *port,
                               uint64_t deadline, struct sl_error *err);
void sl_wire_close(struct sl_wire *w);
/* Sends all; changes the vector. */
SL_MUST_CHECK int sl_wire_send(struct sl_wire *w, struct iovec *iov, int n, uint64_t deadline,
                               struct sl_error *err);
/* A line without its CR LF, which stays there until the next call. */
SL_MUST_CHECK int sl_wire_line(struct sl_wire *w, const char **line, size_t *n, uint64_t deadline,
                               struct sl_error *err);
/* Exactly n bytes. dst NULL: they are skipped. */
SL_MUST_CHECK int sl_wire_read(struct sl_wire *w, void *dst, size_t n, uint64_t deadline,
                               struct sl_error *err);

#endif
