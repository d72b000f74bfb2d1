/* SPDX-License-Identifier: MIT
 * The kinds of remote tiers that there are.
 */
#include "base/check.h"
#include "tier/redis.h"
#include "tier/redis_url.h"
#include "tier/s3.h"
#include "tier/s3_url.h"

int sl_remote_find(const char *url, const struct sl_remote_kind **out, struct sl_error *err)
{
    struct sl_redis_url redis;
    struct sl_s3_url s3;
    SL_ASSERT(url != NULL);
    *out = sl_s3_url_is(url) ? &sl_remote_s3 : &sl_remote_redis;
    if (sl_s3_url_is(url))
        return sl_s3_url_parse(url, &s3, err);
    if (sl_redis_url_is(url))
        return sl_redis_url_parse(url, &redis, err);
    return sl_fail(err, SL_EINVAL,
                   "kv-remote-url: must be redis://[user:password@]host[:port][/db] or "
                   "s3://bucket[/prefix]");
}
