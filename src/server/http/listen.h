/* SPDX-License-Identifier: MIT
 * listen.h - listening sockets: TCP addresses and UNIX paths. Names are not looked up.
 */
#ifndef SL_SERVER_LISTEN_H
#define SL_SERVER_LISTEN_H

#include "base/err.h"

struct sl_server_config;

#define SL_MAX_LISTENERS 9

struct sl_listeners { /* zero-initialise: none */
    int fds[SL_MAX_LISTENERS];
    char hosts[SL_MAX_LISTENERS][64]; /* "": the UNIX socket, which is the first if there is one */
    const char *uds;
    int n;
    int port; /* of all that are TCP */
};

/* Opens all that the configuration asks for: from here on nobody else can have the port. */
SL_MUST_CHECK int sl_listeners_open(const struct sl_server_config *cfg, struct sl_listeners *l,
                                    struct sl_error *err);
void sl_listeners_close(struct sl_listeners *l); /* also when they are closed already */

/* host: a numeric IPv4 or IPv6 address or "localhost". *port 0 becomes the port that was free. The
 * socket is non-blocking and listens. */
SL_MUST_CHECK int sl_listen_tcp(const char *host, int *port, int *fd, struct sl_error *err);
/* Replaces a socket file that nobody serves any more. */
SL_MUST_CHECK int sl_listen_unix(const char *path, int *fd, struct sl_error *err);
/* And removes the socket file, unless another server has taken its place. */
void sl_listen_close_unix(const char *path, int fd);
/* Writes the port so that a reader sees nothing or all of it. */
SL_MUST_CHECK int sl_listen_check_port_file(const char *path, struct sl_error *err);
SL_MUST_CHECK int sl_listen_write_port(const char *path, int port, struct sl_error *err);
uint64_t sl_listen_raise_fd_limit(void); /* as many descriptors as the system allows: how many */

#endif
