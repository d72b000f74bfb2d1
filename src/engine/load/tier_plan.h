/* SPDX-License-Identifier: MIT
 * tier_plan.h - where copies of KV pages are kept outside the pool, as the configuration asks for
 * it: with vLLM's names for host memory, with sluice's own for a folder and a remote store.
 */
#ifndef SL_ENGINE_TIER_PLAN_H
#define SL_ENGINE_TIER_PLAN_H

#include "base/netlist.h"
#include "sluice.h"
#include "tier/store.h"

struct sl_tier_plan {
    uint64_t host_bytes; /* 0: there are no tiers */
    bool arc;            /* what goes is chosen by ARC, not by its last use alone */
    int32_t store_threshold,
        max_tracker_size; /* blocks are stored when so many requests had them */
    const char *dir;      /* the configuration's; NULL: no disk */
    uint64_t disk_bytes;
    enum sl_coding coding;
    const char *remote_url, *remote_password; /* NULL: no remote store; no password besides */
    uint32_t remote_timeout_ms, remote_store_after, remote_ttl_s;
    bool always_load;  /* from there, also where to compute is expected to be faster */
    bool serves, asks; /* pages between servers */
    struct sl_netlist peers;
    const char *nixl; /* back end of NIXL that carries those; NULL: TCP does */
};

/* SL_EINVAL, SL_EUNSUPPORTED: the message names the key. */
SL_MUST_CHECK int sl_tier_plan_read(const struct sl_engine_config *cfg, struct sl_tier_plan *out,
                                    struct sl_error *err);

#endif
