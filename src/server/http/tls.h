/* SPDX-License-Identifier: MIT
 * tls.h - TLS 1.2 and 1.3 on the server's connections, by OpenSSL.
 *
 * A connection's bytes pass through sl_tls_read and sl_tls_write, which return what read(2) and
 * write(2) would: nothing blocks, and a handshake that is not over looks like bytes that have not
 * come. Certificate and key may be read again while serving; connections keep what they began
 * with. Any thread.
 */
#ifndef SL_SERVER_TLS_H
#define SL_SERVER_TLS_H

#include "base/err.h"

#include <sys/types.h>

struct sl_tls;         /* of a server */
struct sl_tls_session; /* of a connection */

SL_MUST_CHECK int sl_tls_create(const char *cert_file, const char *key_file, struct sl_tls **out,
                                struct sl_error *err);
void sl_tls_destroy(struct sl_tls *t); /* NULL is fine */
/* Reads the files again. On failure the old ones stay. */
SL_MUST_CHECK int sl_tls_reload(struct sl_tls *t, struct sl_error *err);

struct sl_tls_session *sl_tls_accept(struct sl_tls *t, int fd); /* NULL: out of memory */
void sl_tls_end(struct sl_tls_session *s);
/* Bytes, 0 at the peer's end, or -1 with errno: EAGAIN, or EPROTO for what is no TLS. */
ssize_t sl_tls_read(struct sl_tls_session *s, void *buf, size_t n);
ssize_t sl_tls_write(struct sl_tls_session *s, const void *buf, size_t n);
bool sl_tls_is_open(const struct sl_tls_session *s); /* the handshake is over */
/* Reading goes on when the socket can be written. */
bool sl_tls_wants_write(const struct sl_tls_session *s);
void sl_tls_say_goodbye(struct sl_tls_session *s); /* nothing more will be written */

#endif
