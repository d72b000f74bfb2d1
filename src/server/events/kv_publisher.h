/* SPDX-License-Identifier: MIT
 * kv_publisher.h - KV events for routers: a ZeroMQ PUB socket with what changes in the prefix
 * cache, and a ROUTER socket that replays what was published, as vLLM has them.
 *
 * One thread of its own reads the engine's events, keeps the last batches, and serves the peers.
 * Peers have no queues: each is at a place in the batches that are kept. Who falls too far behind
 * misses batches and sees it by their numbers; nobody is waited for.
 */
#ifndef SL_SERVER_KV_PUBLISHER_H
#define SL_SERVER_KV_PUBLISHER_H

#include "sluice.h"

#define SL_KV_MAX_ENDPOINT 256
#define SL_KV_MAX_TOPIC    512

/* --kv-events-config: vLLM's names, and three of our own at the end. */
struct sl_kv_events_config {
    bool enabled;
    char endpoint[SL_KV_MAX_ENDPOINT];        /* by default port 5557 of any address */
    char replay_endpoint[SL_KV_MAX_ENDPOINT]; /* "": none */
    char topic[SL_KV_MAX_TOPIC];
    int64_t buffer_steps; /* batches that are kept */
    int64_t hwm;          /* batches that a subscriber may be behind */
    bool arrays;          /* "format": "array": how vLLM wrote events before 0.26 */
    bool tiers;           /* "tiers": copies outside the pool too; by default of maps only */
    bool renumber;        /* "renumber": replay from 0 is always possible */
};

SL_MUST_CHECK int sl_kv_events_config_read(const char *json, struct sl_kv_events_config *cfg,
                                           struct sl_error *err);

/* Of a server's model idx: what listens or connects over TCP uses the port idx after the one that
 * is configured, as vLLM's ranks do. */
SL_MUST_CHECK int sl_kv_events_config_of(const struct sl_kv_events_config *cfg, int32_t idx,
                                         struct sl_kv_events_config *out, struct sl_error *err);

struct sl_kv_publisher;

struct sl_kv_publisher_stats {
    uint64_t n_batches, n_dropped, n_replays, n_renumbered;
    int32_t n_subscribers;
};

/* eng was made with kv_events; it outlives the publisher. */
SL_MUST_CHECK int sl_kv_publisher_start(const struct sl_kv_events_config *cfg,
                                        struct sl_engine *eng, struct sl_kv_publisher **out,
                                        struct sl_error *err);
void sl_kv_publisher_stop(struct sl_kv_publisher *p); /* NULL is fine */
void sl_kv_publisher_stats(const struct sl_kv_publisher *p, struct sl_kv_publisher_stats *out);

#endif
