/* SPDX-License-Identifier: MIT
 * s3_url.h - s3://bucket[/prefix], and where the bucket is: AWS_ENDPOINT_URL_S3 or
 * AWS_ENDPOINT_URL, with the bucket as first part of the path; else Amazon's address of the bucket.
 * AWS_REGION or AWS_DEFAULT_REGION is the region, us-east-1 if there is none. These are the names
 * that Amazon's own tools read.
 */
#ifndef SL_TIER_S3_URL_H
#define SL_TIER_S3_URL_H

#include "base/err.h"

#define SL_S3_BASE 768 /* bytes of what keys are put behind, with its end */

struct sl_s3_url {
    char base[SL_S3_BASE]; /* http[s]://address/.../ */
    char region[64];
};

bool sl_s3_url_is(const char *url);
/* SL_EINVAL. The environment is read. */
SL_MUST_CHECK int sl_s3_url_parse(const char *url, struct sl_s3_url *out, struct sl_error *err);

#endif
