/* SPDX-License-Identifier: MIT
 * pages.c - the state of the KV cache, block by block, for whoever wants to see it.
 */
#include "base/check.h"
#include "engine/core.h"

#define PAGES_AT_ONCE 4096 /* some 20 us in which the engine cannot begin a turn */

static void pages_look(const struct sl_kv *kv, int32_t i, struct sl_page *out)
{
    const struct sl_kv_node *node = &kv->tree.nodes[i];
    const struct sl_kv_group *last = &kv->groups[kv->n_groups - 1]; /* the one of states */
    const bool has_state = last->cfg.kind == SL_GROUP_STATE && sl_group_page(last, i) != SL_NO_PAGE;
    *out = (struct sl_page){.parent = node->in_tree ? node->parent : SL_NO_NODE,
                            .in_tree = node->in_tree,
                            .has_state = node->in_tree && has_state,
                            .use = kv->nodes.is_free[i]                      ? SL_PAGE_FREE
                                   : kv->nodes.refs[i] == kv->leases.n_of[i] ? SL_PAGE_CACHED
                                                                             : SL_PAGE_OWNED};
}

int sl_engine_pages(struct sl_engine *eng, struct sl_page *out, struct sl_error *err)
{
    int32_t n_pages = eng->info.n_pages;
    for (int32_t first = 0; first < n_pages; first += PAGES_AT_ONCE) {
        int32_t end = SL_MIN(first + PAGES_AT_ONCE, n_pages);
        if (!sl_engine_lock_turn(eng))
            return sl_fail(err, SL_ETIMEOUT, "the engine is busy");
        for (int32_t i = first; i < end; i++)
            pages_look(&eng->kv, i, &out[i]);
        pthread_mutex_unlock(&eng->turn_lock);
    }
    return 0;
}
