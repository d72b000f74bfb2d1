/* SPDX-License-Identifier: MIT
 * The kinds of remote tiers that there are.
 */
#include "tier/redis.h"
#include "tier/redis_url.h"

int sl_remote_find(const char *url, const struct sl_remote_kind **out, struct sl_error *err)
{
    struct sl_redis_url parsed;
    *out = &sl_remote_redis;
    if (!sl_redis_url_is(url))
        return sl_fail(err, SL_EINVAL,
                       "kv-remote-url: must be redis://[user:password@]host[:port][/db]");
    return sl_redis_url_parse(url, &parsed, err);
}
