/* SPDX-License-Identifier: MIT */
#include "tier/host.h"

#include "base/check.h"
#include "base/sys.h"

#define MOST_CHUNK                                                                                \
    (16u << 20)                /* bytes, where one page allows it: small, so that shares are fine \
                                */
#define MIN_ARENA (256u << 10) /* from here on memory begins at a page of the system */

int sl_host_open(struct sl_host *h, const struct sl_store_config *cfg, struct sl_error *err)
{
    uint64_t stride[SL_MAX_KV_GROUPS];
    int32_t n_per_chunk[SL_MAX_KV_GROUPS];
    *h = (struct sl_host){0};
    for (int32_t g = 0; g < cfg->n_groups; g++) {
        h->stride[g] = SL_ROUND_UP(cfg->page_bytes[g], SL_TIER_ALIGN);
        stride[g] = h->stride[g];
    }
    h->chunk_bytes = sl_chunk_bytes(cfg->n_groups, stride, cfg->host_bytes, MOST_CHUNK);
    for (int32_t g = 0; g < cfg->n_groups; g++)
        n_per_chunk[g] = (int32_t)SL_MIN(h->chunk_bytes / stride[g], SL_MAX_TIER_PAGES);
    uint64_t n_chunks = cfg->host_bytes / h->chunk_bytes;
    int rc = sl_slots_init(&h->slots, cfg->n_groups, n_per_chunk, n_chunks, err);
    if (rc != 0)
        return sl_error_prefix(err, rc, "%llu bytes of host memory for KV pages: ",
                               (unsigned long long)cfg->host_bytes);
    rc = cfg->policy == SL_POLICY_ARC ? sl_slots_use_arc(&h->slots, err) : 0;
    if (rc != 0) {
        sl_host_close(h);
        return rc;
    }
    h->n_arena = SL_MAX((size_t)n_chunks * h->chunk_bytes, MIN_ARENA);
    h->arena = sl_aligned_alloc(h->n_arena);
    if (h->arena == NULL) {
        rc = sl_fail(err, SL_ENOMEM, "out of memory for %zu bytes of KV pages", h->n_arena);
        sl_host_close(h);
        return rc;
    }
    SL_ASSERT((uintptr_t)h->arena % SL_TIER_ALIGN == 0);
    return 0;
}

void sl_host_close(struct sl_host *h)
{
    if (!h->left)
        sl_aligned_free(h->arena, h->n_arena);
    sl_slots_deinit(&h->slots);
    *h = (struct sl_host){0};
}

uint8_t *sl_host_page(const struct sl_host *h, int32_t slot)
{
    int32_t chunk = sl_slot_chunk(&h->slots, slot), group = sl_slot_group(&h->slots, slot);
    SL_ASSERT(group >= 0 && group < h->slots.n_groups);
    size_t i = (size_t)(slot - chunk * h->slots.n_stride);
    return h->arena + (size_t)chunk * h->chunk_bytes + i * h->stride[group];
}

int32_t sl_host_slot(const struct sl_host *h, const uint8_t *page)
{
    SL_ASSERT(page >= h->arena && page < h->arena + h->n_arena);
    size_t at = (size_t)(page - h->arena);
    int32_t chunk = (int32_t)(at / h->chunk_bytes), group = h->slots.chunks[chunk].group;
    SL_ASSERT(group >= 0 && group < h->slots.n_groups);
    int32_t slot = chunk * h->slots.n_stride + (int32_t)(at % h->chunk_bytes / h->stride[group]);
    SL_ASSERT(sl_host_page(h, slot) == page);
    return slot;
}
