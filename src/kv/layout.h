/* SPDX-License-Identifier: MIT
 * layout.h - the byte layout of a KV page: one block of tokens of all layers of a group,
 * contiguous, so that a page moves between tiers as one piece. In it, layer by layer, the tiles of
 * K then of V (struct sl_kv_view).
 */
#ifndef SL_KV_LAYOUT_H
#define SL_KV_LAYOUT_H

#include "ops/ops.h"

struct sl_kv_layout {
    int32_t n_layers; /* layers of this group */
    int32_t n_kv_heads, head_dim;
    int32_t block_size; /* tokens of a page, whole tiles */
    enum sl_dtype dtype;
};

static inline size_t sl_kv_plane_bytes(const struct sl_kv_layout *l)
{
    return (size_t)l->n_kv_heads * (size_t)(l->block_size / SL_KV_TILE) *
           sl_kv_tile_bytes(l->dtype, l->head_dim);
}

static inline size_t sl_kv_page_bytes(const struct sl_kv_layout *l)
{
    return 2 * (size_t)l->n_layers * sl_kv_plane_bytes(l);
}

static inline struct sl_kv_view sl_kv_view(const struct sl_kv_layout *l, uint8_t *pool, int layer)
{
    size_t plane = sl_kv_plane_bytes(l);
    struct sl_kv_view v;
    v.pool = pool;
    v.page_bytes = sl_kv_page_bytes(l);
    v.k_offset = 2 * (size_t)layer * plane;
    v.v_offset = v.k_offset + plane;
    v.dtype = l->dtype;
    v.block_size = l->block_size;
    return v;
}

#endif
