/* SPDX-License-Identifier: MIT */
#include "tier/s3_url.h"

#include "base/check.h"
#include "base/fs.h"
#include "base/str.h"

#include <stdio.h>
#include <string.h>

#define MOST_PREFIX   200
#define MOST_ENDPOINT 255

bool sl_s3_url_is(const char *url)
{
    return sl_starts_with(url, "s3:");
}

static bool is_plain(const char *s, size_t n, const char *besides)
{
    SL_ASSERT(s != NULL && besides != NULL);
    for (size_t i = 0; i < n; i++) {
        const bool letter = (s[i] >= 'a' && s[i] <= 'z') || (s[i] >= '0' && s[i] <= '9');
        if (!letter && (s[i] == '\0' || strchr(besides, s[i]) == NULL))
            return false;
    }
    return true;
}

static const char *first_of(const char *a, const char *b)
{
    const char *value = sl_environment(a);
    return value != NULL ? value : sl_environment(b);
}

static int find_region(struct sl_s3_url *out, struct sl_error *err)
{
    const char *region = first_of("AWS_REGION", "AWS_DEFAULT_REGION");
    if (region == NULL)
        region = "us-east-1";
    if (strlen(region) >= sizeof out->region || !is_plain(region, strlen(region), "-"))
        return sl_fail(err, SL_EINVAL, "AWS_REGION: is not the name of a region");
    snprintf(out->region, sizeof out->region, "%s", region);
    return 0;
}

/* "http://host:port", nothing else. */
static int check_endpoint(const char *url, struct sl_error *err)
{
    const char *host = sl_starts_with(url, "http://")    ? url + 7
                       : sl_starts_with(url, "https://") ? url + 8
                                                         : NULL;
    size_t n = host != NULL ? strlen(host) : 0;
    n -= n > 0 && host[n - 1] == '/';
    if (n == 0 || n > MOST_ENDPOINT || !is_plain(host, n, "ABCDEFGHIJKLMNOPQRSTUVWXYZ.-:[]"))
        return sl_fail(err, SL_EINVAL,
                       "AWS_ENDPOINT_URL: must be http://HOST[:PORT] or https://HOST[:PORT]");
    return 0;
}

int sl_s3_url_parse(const char *url, struct sl_s3_url *out, struct sl_error *err)
{
    *out = (struct sl_s3_url){0};
    const char *endpoint = first_of("AWS_ENDPOINT_URL_S3", "AWS_ENDPOINT_URL");
    const char *bucket = sl_starts_with(url, "s3://") ? url + 5 : "";
    const size_t n_bucket = strcspn(bucket, "/");
    const char *prefix = bucket[n_bucket] == '/' ? bucket + n_bucket + 1 : "";
    size_t n_prefix = strlen(prefix);
    if (n_bucket < 3 || n_bucket > 63 || !is_plain(bucket, n_bucket, ".-"))
        return sl_fail(err, SL_EINVAL,
                       "kv-remote-url: must be s3://BUCKET[/PREFIX], the bucket 3 to 63 of a-z, "
                       "0-9, . and -");
    n_prefix -= n_prefix > 0 && prefix[n_prefix - 1] == '/';
    if (n_prefix > MOST_PREFIX || !is_plain(prefix, n_prefix, "ABCDEFGHIJKLMNOPQRSTUVWXYZ/_-") ||
        prefix[0] == '/' || strstr(prefix, "//") != NULL)
        return sl_fail(err, SL_EINVAL,
                       "kv-remote-url: the prefix must be %d of A-Z, a-z, 0-9, /, _ and - at most",
                       MOST_PREFIX);
    int rc = find_region(out, err);
    if (rc == 0 && endpoint != NULL)
        rc = check_endpoint(endpoint, err);
    if (rc != 0)
        return rc;
    int n = endpoint != NULL
                ? snprintf(out->base, SL_S3_BASE, "%.*s/%.*s/", (int)strcspn(endpoint + 8, "/") + 8,
                           endpoint, (int)n_bucket, bucket)
                : snprintf(out->base, SL_S3_BASE, "https://%.*s.s3.%s.amazonaws.com/",
                           (int)n_bucket, bucket, out->region);
    SL_ASSERT(n > 0 && n + MOST_PREFIX + 1 < SL_S3_BASE);
    if (n_prefix > 0)
        snprintf(out->base + n, (size_t)(SL_S3_BASE - n), "%.*s/", (int)n_prefix, prefix);
    return 0;
}
