/* SPDX-License-Identifier: MIT
 * compat.c - functions of newer C libraries that a static library asks for.
 *
 * libevent calls arc4random, which glibc has since 2.36. With these in the program it runs with
 * glibc 2.34, so also on Ubuntu 22.04 and RHEL 9. libevent wants random bytes for its DNS
 * client, which sluice does not use.
 */
#include "base/sys.h"

uint32_t arc4random(void);
void arc4random_buf(void *buf, size_t n);

void arc4random_buf(void *buf, size_t n)
{
    struct sl_error err;
    int rc = sl_random(buf, n, &err);
    SL_ASSERT(rc == 0); /* the caller cannot be told, and must not go on with what is no secret */
}

uint32_t arc4random(void)
{
    uint32_t x;
    arc4random_buf(&x, sizeof x);
    return x;
}
