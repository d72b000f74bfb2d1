/* SPDX-License-Identifier: MIT
 * netlist.h - a list of network addresses that may do something: "127.0.0.1,10.0.0.0/8,fd00::/8",
 * or "*" for any. Read once; any thread may look things up afterwards.
 */
#ifndef SL_BASE_NETLIST_H
#define SL_BASE_NETLIST_H

#include "base/err.h"
#include "base/limits.h"

struct sockaddr;

struct sl_net { /* IPv4 addresses as IPv6 has them: ::ffff:a.b.c.d */
    uint8_t addr[16];
    int n_bits;
};

struct sl_netlist {
    struct sl_net nets[SL_MAX_NETS];
    int n;
};

/* NULL: this machine itself. SL_EINVAL: the message names flag and entry. */
SL_MUST_CHECK int sl_netlist_read(const char *text, const char *flag, struct sl_netlist *out,
                                  struct sl_error *err);
/* A peer over a UNIX socket is on the list: the file's permissions let it in. */
bool sl_netlist_has(const struct sl_netlist *l, const struct sockaddr *addr);
/* Of an address in digits; a name is on no list. */
bool sl_netlist_has_text(const struct sl_netlist *l, const char *addr);

#endif
