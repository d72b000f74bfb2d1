/* SPDX-License-Identifier: MIT */
#include "engine/transfer.h"

#include "base/check.h"
#include "base/log.h"
#include "base/sys.h"
#include "engine/core.h"

#include <stdio.h>
#include <string.h>

#define LEASE_MS 30000

/* ------------------------------------------------------------------ start and end */

static void put_hex(char out[33], const struct sl_hash128 *h)
{
    snprintf(out, 33, "%016llx%016llx", (unsigned long long)h->hi, (unsigned long long)h->lo);
}

static void put_tail(uint8_t *tail, const struct sl_hash128 *before, const int32_t *tokens,
                     int32_t block_size)
{
    SL_ASSERT(block_size > 0);
    memcpy(tail, before, sizeof *before);
    memcpy(tail + offsetof(struct sl_tier_tail, tokens), tokens,
           (size_t)block_size * sizeof *tokens);
}

static void wake_up(void *arg)
{
    struct sl_engine *eng = arg;
    sl_inbox_wake(&eng->inbox);
}

static void fill_layout(const struct sl_engine *eng, const struct sl_tiers_config *cfg,
                        struct sl_page_layout *y)
{
    y->root = cfg->store.root;
    y->block_size = eng->kv.block_size;
    y->n_groups = eng->kv.n_groups;
    SL_ASSERT(y->n_groups >= 1 && y->n_groups <= SL_MAX_KV_GROUPS);
    for (int32_t g = 0; g < y->n_groups; g++) {
        const struct sl_kv_group_config *c = &eng->kv.groups[g].cfg;
        y->page_bytes[g] = cfg->page_bytes[g];
        y->state[g] = c->kind == SL_GROUP_STATE;
        y->window[g] = c->kind == SL_GROUP_WINDOW ? c->window : 0;
    }
}

static int open_serve(struct sl_engine *eng, const struct sl_tiers_config *cfg,
                      struct sl_error *err)
{
    struct sl_tiers *t = &eng->tiers;
    struct sl_serve_config serve = {.store = t->store,
                                    .nixl = t->nixl,
                                    .host = t->info.host,
                                    .port = cfg->transfer.port,
                                    .peers = cfg->transfer.peers,
                                    .host_bytes = cfg->store.host_bytes,
                                    .lease_ms = LEASE_MS};
    fill_layout(eng, cfg, &serve.layout);
    int rc = sl_serve_open(&serve, &t->serve, err);
    if (rc != 0)
        return rc;
    t->info.port = sl_serve_port(t->serve);
    sl_log(SL_LOG_INFO, "KV pages are read at %s port %d", t->info.host, (int)t->info.port);
    return 0;
}

int sl_transfer_init(struct sl_engine *eng, const struct sl_tiers_config *cfg, struct sl_error *err)
{
    struct sl_tiers *t = &eng->tiers;
    const struct sl_transfer_config *c = &cfg->transfer;
    struct sl_kv_transfer_info *info = &t->info;
    struct sl_hash128 id;
    if (!c->serves && !c->asks)
        return 0;
    int rc = sl_random(&id, sizeof id, err);
    if (rc != 0)
        return rc;
    const char *host = c->host != NULL ? c->host : "127.0.0.1";
    if (strlen(host) >= sizeof info->host)
        return sl_fail(err, SL_EINVAL, "kv-transfer-host: longer than %zu bytes",
                       sizeof info->host - 1);
    if (c->serves && (strcmp(host, "0.0.0.0") == 0 || strcmp(host, "::") == 0))
        return sl_fail(err, SL_EINVAL,
                       "kv-transfer-host: others are told this address, so %s will not do", host);
    t->peers = c->peers;
    *info = (struct sl_kv_transfer_info){
        .serves = c->serves, .asks = c->asks, .bootstrap_port = c->bootstrap_port};
    memcpy(info->host, host, strlen(host) + 1);
    put_hex(info->engine_id, &id);
    put_hex(info->root, &cfg->store.root);
    const struct sl_nixl_config nixl = {.store = t->store, .backend = c->nixl};
    if (c->nixl != NULL)
        rc = sl_nixl_open(&nixl, &t->nixl, err);
    if (rc != 0)
        return sl_error_prefix(err, rc, "kv-transfer-config: backends: ");
    if (c->serves)
        rc = open_serve(eng, cfg, err);
    if (rc != 0 || !c->asks)
        return rc;
    struct sl_peer_config peer = {.store = t->store,
                                  .nixl = t->nixl,
                                  .peers = c->peers,
                                  .put_tail = put_tail,
                                  .wake = wake_up,
                                  .wake_arg = eng};
    fill_layout(eng, cfg, &peer.layout);
    return sl_peer_open(&peer, &t->peer, err);
}

void sl_transfer_deinit(struct sl_engine *eng)
{
    sl_serve_close(eng->tiers.serve);
    sl_peer_close(eng->tiers.peer);
    if (!sl_nixl_close(eng->tiers.nixl))
        sl_store_leave(eng->tiers.store);
    eng->tiers.serve = NULL;
    eng->tiers.peer = NULL;
    eng->tiers.nixl = NULL;
}

/* ------------------------------------------------------------------ requests */

static void begin_offer(struct sl_engine *eng, struct sl_request *req,
                        const struct sl_kv_transfer *t)
{
    struct sl_tier_load *l = &req->load;
    struct sl_lease_id id = {.lo = t->id[0], .is_room = t->is_room};
    SL_ASSERT(t->host == NULL && l->names != NULL);
    if (!t->is_room && sl_random(&id, offsetof(struct sl_lease_id, is_room), NULL) != 0)
        return;
    l->lease = sl_serve_lease(eng->tiers.serve, &id, l->n_names, l->names, req->prompt);
    req->offer[0] = id.lo;
    req->offer[1] = id.hi;
}

void sl_transfer_begin(struct sl_engine *eng, struct sl_request *req,
                       const struct sl_kv_transfer *t)
{
    struct sl_tier_load *l = &req->load;
    if (t == NULL || l->names == NULL) { /* too short, or not to be found by anybody */
        if (t != NULL && t->host == NULL && t->is_room && eng->tiers.serve != NULL)
            sl_serve_refuse_room(eng->tiers.serve, t->id[0]);
        return;
    }
    SL_ASSERT(l->n_names > 0 && l->lease == NULL && l->job == NULL);
    if (t->host == NULL && eng->tiers.serve != NULL)
        begin_offer(eng, req, t);
    if (t->host == NULL || eng->tiers.peer == NULL)
        return;
    const struct sl_peer_want want = {
        .host = t->host,
        .port = t->port,
        .id = {.lo = t->id[0], .hi = t->is_room ? 0 : t->id[1], .is_room = t->is_room},
        .n_blocks = l->n_names,
        .names = l->names,
        .tokens = req->prompt,
        .wait_ms = (uint32_t)(SL_TRANSFER_WAIT_NS / 1000000)};
    l->job = sl_peer_begin(eng->tiers.peer, &want);
}

void sl_transfer_abandon(struct sl_request *req)
{
    struct sl_tier_load *l = &req->load;
    SL_ASSERT(!l->waits); /* the engine has not seen it */
    if (l->lease != NULL)
        sl_lease_over(l->lease, 0, true);
    sl_transfer_drop(req);
}

bool sl_transfer_over(const struct sl_request *req)
{
    return req->load.job == NULL || sl_peer_over(req->load.job);
}

void sl_transfer_drop(struct sl_request *req)
{
    if (req->load.job != NULL)
        sl_peer_cancel(req->load.job);
}

void sl_transfer_end(struct sl_engine *eng, struct sl_request *req, bool failed)
{
    struct sl_tier_load *l = &req->load;
    sl_transfer_drop(req);
    if (l->lease == NULL)
        return;
    SL_ASSERT(eng->tiers.serve != NULL);
    if (!failed)
        sl_tiers_offer(eng, req);
    sl_lease_over(l->lease, eng->tiers.n_todos, failed);
}

void sl_transfer_release(struct sl_request *req)
{
    SL_ASSERT(!req->load.waits);
    sl_lease_unref(req->load.lease);
    sl_peer_unref(req->load.job);
    req->load.lease = NULL;
    req->load.job = NULL;
}

int32_t sl_request_offer(const struct sl_request *req, uint64_t *id)
{
    id[0] = req->offer[0];
    id[1] = req->offer[1];
    return req->load.lease != NULL ? req->load.n_names * req->eng->info.block_size : 0;
}

/* ------------------------------------------------------------------ from outside */

const struct sl_kv_transfer_info *sl_engine_transfer(const struct sl_engine *eng)
{
    return &eng->tiers.info;
}

bool sl_engine_knows_peer(const struct sl_engine *eng, const char *addr)
{
    return sl_netlist_has_text(&eng->tiers.peers, addr);
}

void sl_engine_refuse_room(struct sl_engine *eng, uint64_t room)
{
    if (eng->tiers.serve != NULL)
        sl_serve_refuse_room(eng->tiers.serve, room);
}

void sl_transfer_stats(const struct sl_engine *eng, struct sl_kv_transfer_stats *out)
{
    struct sl_serve_stats s = {0};
    struct sl_peer_stats p = {0};
    struct sl_nixl_stats n = {0};
    if (eng->tiers.serve != NULL)
        sl_serve_stats(eng->tiers.serve, &s);
    if (eng->tiers.peer != NULL)
        sl_peer_stats(eng->tiers.peer, &p);
    if (eng->tiers.nixl != NULL)
        sl_nixl_stats(eng->tiers.nixl, &n);
    *out = (struct sl_kv_transfer_stats){.on = eng->tiers.serve != NULL || eng->tiers.peer != NULL,
                                         .n_offers = s.n_leases,
                                         .n_expired = s.n_expired,
                                         .n_sent_pages = s.n_pages,
                                         .n_sent_bytes = s.n_bytes,
                                         .n_asked = p.n_jobs,
                                         .n_whole = p.n_whole,
                                         .n_read_pages = p.n_pages,
                                         .n_read_bytes = p.n_bytes,
                                         .read_s = (double)p.job_ns * 1e-9,
                                         .n_refused = s.n_refused + p.n_refused,
                                         .n_lost = p.n_lost,
                                         .n_late = p.n_late,
                                         .n_corrupt = p.n_corrupt,
                                         .nixl = eng->tiers.nixl != NULL,
                                         .nixl_bytes = n.registered_bytes,
                                         .n_nixl_pages = n.n_reads,
                                         .n_nixl_bytes = n.n_bytes,
                                         .n_nixl_failed = n.n_failed,
                                         .n_nixl_late = n.n_late,
                                         .n_nixl_kept = n.n_kept};
}
