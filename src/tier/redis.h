/* SPDX-License-Identifier: MIT
 * redis.h - a remote tier in Redis or Valkey, spoken to in RESP2.
 *
 * A page is the string of its key (remote.h), with a time after which it is forgotten there if that
 * is wanted. Which pages are evicted before is the server's policy (maxmemory-policy).
 *
 * hiredis is not used: it has every answer in memory of its own first, from which a page would be
 * copied; it allocates what a peer says that an answer will have before that has come; and its
 * patience is for each read, so a slow peer has no end.
 */
#ifndef SL_TIER_REDIS_H
#define SL_TIER_REDIS_H

#include "tier/remote.h"

extern const struct sl_remote_kind sl_remote_redis;

#endif
