/* SPDX-License-Identifier: MIT */
#include "base/netlist.h"

#include "base/check.h"
#include "base/str.h"

#include <arpa/inet.h>
#include <netinet/in.h>
#include <string.h>
#include <sys/socket.h>

#define LOOPBACK "127.0.0.0/8,::1"
#define V4_BITS  96 /* that all IPv4 addresses have in front */

static const uint8_t v4_prefix[V4_BITS / 8] = {[10] = 0xFF, [11] = 0xFF};

static bool parse_addr(const char *text, uint8_t out[16], bool *v4)
{
    memcpy(out, v4_prefix, sizeof v4_prefix);
    *v4 = inet_pton(AF_INET, text, out + sizeof v4_prefix) == 1;
    return *v4 || inet_pton(AF_INET6, text, out) == 1;
}

static bool parse_net(const char *text, size_t n, struct sl_net *out)
{
    char addr[INET6_ADDRSTRLEN];
    const char *slash = memchr(text, '/', n);
    size_t n_addr = slash != NULL ? (size_t)(slash - text) : n;
    uint64_t bits;
    bool v4;
    if (n == 1 && text[0] == '*') {
        *out = (struct sl_net){.n_bits = 0};
        return true;
    }
    if (n_addr >= sizeof addr)
        return false;
    memcpy(addr, text, n_addr);
    addr[n_addr] = '\0';
    if (strcmp(addr, "localhost") == 0)
        memcpy(addr, "127.0.0.1", sizeof "127.0.0.1");
    if (!parse_addr(addr, out->addr, &v4))
        return false;
    out->n_bits = 128;
    if (slash == NULL)
        return true;
    if (!sl_parse_u64(slash + 1, n - n_addr - 1, &bits) || bits > (v4 ? 32u : 128u))
        return false;
    out->n_bits = (int)bits + (v4 ? V4_BITS : 0);
    return true;
}

int sl_netlist_read(const char *text, const char *flag, struct sl_netlist *out,
                    struct sl_error *err)
{
    *out = (struct sl_netlist){.n = 0};
    for (const char *at = text != NULL ? text : LOOPBACK;; at++) {
        size_t n = strcspn(at, ",");
        if (out->n == SL_MAX_NETS)
            return sl_fail(err, SL_ELIMIT, "%s: more than %d addresses", flag, SL_MAX_NETS);
        if (!parse_net(at, n, &out->nets[out->n++]))
            return sl_fail(err, SL_EINVAL,
                           "%s: '%.*s' is not an address such as 10.0.0.7 or 10.0.0.0/8", flag,
                           (int)SL_MIN(n, 60), at);
        at += n;
        if (*at == '\0')
            return 0;
    }
}

static bool same_bits(const uint8_t *a, const uint8_t *b, int n)
{
    SL_ASSERT(n >= 0 && n <= 128);
    const int whole = n / 8, rest = n % 8;
    return memcmp(a, b, (size_t)whole) == 0 &&
           (rest == 0 || (a[whole] ^ b[whole]) >> (8 - rest) == 0);
}

static bool has(const struct sl_netlist *l, const uint8_t addr[16])
{
    for (int i = 0; i < l->n; i++)
        if (same_bits(l->nets[i].addr, addr, l->nets[i].n_bits))
            return true;
    return false;
}

bool sl_netlist_has(const struct sl_netlist *l, const struct sockaddr *addr)
{
    uint8_t bytes[16];
    memcpy(bytes, v4_prefix, sizeof v4_prefix);
    if (addr->sa_family == AF_UNIX)
        return true;
    if (addr->sa_family == AF_INET)
        memcpy(bytes + sizeof v4_prefix,
               &((const struct sockaddr_in *)(const void *)addr)->sin_addr, 4);
    else if (addr->sa_family == AF_INET6)
        memcpy(bytes, &((const struct sockaddr_in6 *)(const void *)addr)->sin6_addr, sizeof bytes);
    else
        return false;
    return has(l, bytes);
}

bool sl_netlist_has_text(const struct sl_netlist *l, const char *addr)
{
    uint8_t bytes[16];
    bool v4;
    return parse_addr(addr, bytes, &v4) && has(l, bytes);
}
