/* SPDX-License-Identifier: MIT
 * s3.h - a remote tier in a bucket of S3, or of a server that speaks its protocol.
 *
 * A page is an object, sluice/1/ROOT/GROUP/NAME. Requests are made by libcurl, which signs them
 * (AWS Signature Version 4) with AWS_ACCESS_KEY_ID, AWS_SECRET_ACCESS_KEY and AWS_SESSION_TOKEN; up
 * to 16 of a connection are under way at a time. Objects are removed by the bucket's rules, not by
 * kv-remote-ttl.
 */
#ifndef SL_TIER_S3_H
#define SL_TIER_S3_H

#include "tier/remote.h"

extern const struct sl_remote_kind sl_remote_s3;

#endif
