/* SPDX-License-Identifier: MIT
 * redis_url.h - redis://[user[:password]@]host[:port][/db], also with valkey:// in front.
 *
 * User and password may have characters as %XX. Errors name what is wrong and never quote the URL.
 */
#ifndef SL_TIER_REDIS_URL_H
#define SL_TIER_REDIS_URL_H

#include "base/err.h"

#define SL_REDIS_TEXT 256 /* bytes of a host, a user, a password, with its end */

struct sl_redis_url {
    char host[SL_REDIS_TEXT], port[8];
    char user[SL_REDIS_TEXT], password[SL_REDIS_TEXT]; /* "": none */
    int32_t db;
};

/* Is this a URL of Redis at all? */
bool sl_redis_url_is(const char *url);
/* SL_EINVAL, SL_EUNSUPPORTED. */
SL_MUST_CHECK int sl_redis_url_parse(const char *url, struct sl_redis_url *out,
                                     struct sl_error *err);

#endif
