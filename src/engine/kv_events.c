/* SPDX-License-Identifier: MIT
 * kv_events.c - events of the prefix cache for their reader: adds the names of adapters.
 */
#include "base/check.h"
#include "base/sys.h"
#include "engine/core.h"

#include <string.h>

#define MAX_EVENTS 256

struct sl_kv_event_data { /* what the events of the last call point to */
    struct sl_feed_event events[MAX_EVENTS];
    struct sl_kv_event unsorted[MAX_EVENTS];
    char salts[MAX_EVENTS][SL_MAX_CACHE_SALT + 1];
    char adapters[MAX_EVENTS][SL_MAX_ADAPTER_NAME + 1];
    struct sl_store_event tiers[MAX_EVENTS];
    int32_t tokens[]; /* [MAX_EVENTS, block_size] */
};

int sl_engine_feed_init(struct sl_engine *eng, struct sl_error *err)
{
    SL_ASSERT(eng->feed == NULL && eng->event_data == NULL);
    size_t n_tokens = (size_t)MAX_EVENTS * (size_t)eng->info.block_size;
    eng->event_data =
        sl_calloc(1, sizeof *eng->event_data + n_tokens * sizeof *eng->event_data->tokens);
    if (eng->event_data == NULL)
        return sl_fail(err, SL_ENOMEM, "out of memory for KV events");
    int rc = sl_feed_create(eng->kv.nodes.n_ids, eng->kv.n_groups, eng->info.block_size, &eng->feed,
                            err);
    sl_kv_set_feed(&eng->kv, eng->feed);
    return rc;
}

void sl_engine_feed_deinit(struct sl_engine *eng)
{
    sl_kv_set_feed(&eng->kv, NULL);
    sl_feed_destroy(eng->feed);
    sl_free(eng->event_data);
    eng->feed = NULL;
    eng->event_data = NULL;
}

int sl_engine_kv_events_fd(const struct sl_engine *eng)
{
    return eng->feed != NULL ? eng->feed->event_fd : -1;
}

/* n events of one kind, group by group: then pages of a prompt follow one another. */
static void by_group(struct sl_kv_event *e, int32_t n, struct sl_kv_event *room, int32_t n_groups)
{
    int32_t at = 0;
    if (n == 0 || n_groups == 1)
        return;
    memcpy(room, e, (size_t)n * sizeof *e);
    for (int32_t g = 0; g < n_groups; g++)
        for (int32_t i = 0; i < n; i++)
            if (room[i].group == g)
                e[at++] = room[i];
    SL_ASSERT(at == n);
}

/* News of the tiers, behind those of the tree: who is told of a page there knows its tokens. */
static int32_t of_tiers(struct sl_engine *eng, struct sl_kv_event *out, int32_t max)
{
    struct sl_store_event *e = eng->event_data->tiers;
    if (eng->tiers.store == NULL || max == 0)
        return 0;
    const int32_t n = sl_store_events(eng->tiers.store, e, max);
    for (int32_t i = 0; i < n; i++)
        out[i] = (struct sl_kv_event){.kind = e[i].removed ? SL_KV_REMOVED : SL_KV_STORED,
                                      .medium =
                                          e[i].tier == SL_TIER_HOST ? SL_KV_IN_HOST : SL_KV_ON_DISK,
                                      .group = e[i].key.group,
                                      .hash = sl_feed_name(&e[i].key.name)};
    for (int32_t i = 0, k; i < n; i += k) {
        k = 1;
        while (i + k < n && out[i + k].kind == out[i].kind && out[i + k].medium == out[i].medium)
            k++;
        by_group(out + i, k, eng->event_data->unsorted, eng->kv.n_groups);
    }
    return n;
}

int32_t sl_engine_kv_events(struct sl_engine *eng, struct sl_kv_event *out, int32_t max)
{
    struct sl_kv_event_data *t = eng->event_data;
    SL_ASSERT(eng->feed != NULL && max > 0);
    max = SL_MIN(max, MAX_EVENTS);
    int32_t n = sl_feed_read(eng->feed, t->events, t->tokens, max);
    int32_t n_before = 0; /* others than pages stored */
    SL_ASSERT(n >= 0 && n <= max);
    for (int32_t i = 0; i < n; i++) {
        const struct sl_feed_event *e = &t->events[i];
        out[i] = (struct sl_kv_event){
            .kind = e->kind, .group = e->group, .hash = e->name, .parent = e->parent_name};
        if (e->kind != SL_KV_STORED) {
            SL_ASSERT(n_before == i);
            n_before++;
            if (e->kind == SL_KV_CLEARED && eng->tiers.store != NULL)
                sl_store_events_again(eng->tiers.store);
            continue;
        }
        out[i].tokens = t->tokens + (size_t)i * (size_t)eng->info.block_size;
        SL_ASSERT(e->n_salt >= 0 && e->n_salt <= SL_MAX_CACHE_SALT);
        if (e->n_salt > 0) {
            memcpy(t->salts[i], e->salt, (size_t)e->n_salt);
            t->salts[i][e->n_salt] = '\0';
            out[i].salt = t->salts[i];
        }
        /* Of an adapter that was unloaded meanwhile no request finds the pages; "" is no name. */
        if (e->adapter != 0) {
            SL_ASSERT(eng->adapters != NULL);
            t->adapters[i][0] = '\0';
            (void)sl_adapters_name(eng->adapters, e->adapter, t->adapters[i]);
            out[i].adapter = t->adapters[i];
        }
    }
    by_group(out + n_before, n - n_before, t->unsorted, eng->kv.n_groups);
    return n + of_tiers(eng, out + n, max - n);
}

void sl_engine_kv_events_again(struct sl_engine *eng)
{
    SL_ASSERT(eng->feed != NULL);
    sl_feed_again(eng->feed);
}
