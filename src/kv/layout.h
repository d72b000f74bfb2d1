/* SPDX-License-Identifier: MIT
 * layout.h - where the keys and values of a model's layers lie in pages.
 *
 * Layers that need the same positions form a group, which has a pool of pages of its own (group.h).
 * A page is one block of tokens of all layers of its group, contiguous, so that it moves between
 * tiers as one piece: in it, layer by layer, the tiles of K then of V (struct sl_kv_view). Layers
 * with a recurrent state are a group too, whose page holds the state of all of them behind the last
 * token computed in its block (struct sl_state_view).
 */
#ifndef SL_KV_LAYOUT_H
#define SL_KV_LAYOUT_H

#include "base/check.h"
#include "base/err.h"
#include "base/limits.h"
#include "ops/ops.h"

struct sl_kv_place { /* of a layer, in the pages of its group */
    uint8_t group;
    uint32_t k_offset, v_offset;
    uint32_t index_offset;  /* of the keys of its index, if it has one (sl_kv_layout_add_index) */
    uint32_t bounds_offset; /* of the bounds of its keys (sl_kv_layout_add_bounds); 0: none */
    uint32_t n_bytes;       /* of all; 0: the layer has no place of its own */
};

struct sl_rows_place { /* of rows made of several tokens, in pages of the first group */
    uint32_t offset, index_offset;
    uint32_t n_bytes; /* of both; 0: the layer has none */
};

struct sl_state_place { /* of a layer, in the pages of the group with states */
    bool in;
    size_t offset, n_bytes;
};

struct sl_kv_layer_group {
    bool state;       /* of recurrent layers; window is 0 */
    int32_t window;   /* positions that a row sees, its own included; 0: all before it */
    int32_t n_layers; /* with a place of their own */
    size_t page_bytes;
    bool chunks; /* rows see those of their chunk of `window` positions */
};

struct sl_kv_layout {
    int32_t block_size;    /* tokens of a page, whole tiles */
    int32_t n_ranks, rank; /* as struct sl_kv_view has them; of one rank's own layout alone */
    enum sl_dtype dtype;
    enum sl_dtype exempt_dtype; /* of the layers that are exempt from it */
    int32_t n_exempt;           /* of those with keys */
    bool exempt[SL_MAX_LAYERS];
    int32_t n_groups; /* a group without a window is the first, one of states the last */
    struct sl_kv_layer_group groups[SL_MAX_KV_GROUPS];
    struct sl_kv_place places[SL_MAX_LAYERS]; /* of the model's layers */
    struct sl_rows_place rows[SL_MAX_LAYERS];
    struct sl_state_place states[SL_MAX_LAYERS];
};

/* Does a row see every position before it? */
static inline bool sl_kv_layers_full(const struct sl_kv_layer_group *g)
{
    return g->window == 0 && !g->state;
}

static inline enum sl_dtype sl_kv_layer_dtype(const struct sl_kv_layout *l, int32_t layer)
{
    return l->exempt[layer] ? l->exempt_dtype : l->dtype;
}

/* Gives a layer a place. v_dim 0: its keys are all it has (latent attention). Layers without a
 * window come first; SL_EUNSUPPORTED: more different windows than there can be groups. */
SL_MUST_CHECK int sl_kv_layout_add(struct sl_kv_layout *l, int32_t layer, int32_t window,
                                   int32_t n_kv_heads, int32_t head_dim, int32_t v_dim,
                                   struct sl_error *err);
/* Gives a layer with a place one for an index of its keys too: one key of dim values for each
 * token, behind all that its group has. */
SL_MUST_CHECK int sl_kv_layout_add_index(struct sl_kv_layout *l, int32_t layer, int32_t dim,
                                         struct sl_error *err);
/* Gives a layer a place for rows of which `ratio` tokens make one each, of dim values (0: none),
 * and of index_dim (0: none) for an index of them (struct sl_rows_view), before all places of
 * layers with a window. */
SL_MUST_CHECK int sl_kv_layout_add_rows(struct sl_kv_layout *l, int32_t layer, int32_t ratio,
                                        int32_t dim, int32_t index_dim, struct sl_error *err);
/* Gives a layer with a place one for the bounds of a page's keys too (struct sl_op_page_bounds),
 * behind all that its group has. */
SL_MUST_CHECK int sl_kv_layout_add_bounds(struct sl_kv_layout *l, int32_t layer, int32_t n_kv_heads,
                                          int32_t head_dim, struct sl_error *err);
/* Gives a layer a place for n_bytes of state, after all places of keys. */
SL_MUST_CHECK int sl_kv_layout_add_state(struct sl_kv_layout *l, int32_t layer, size_t n_bytes,
                                         struct sl_error *err);
/* Bytes of a block's pages in all groups. */
static inline size_t sl_kv_block_bytes(const struct sl_kv_layout *l)
{
    size_t n = 0;
    for (int32_t i = 0; i < l->n_groups; i++)
        n += l->groups[i].page_bytes;
    return n;
}

/* All layers see everything as far as pages go: one group without a window, whose page has the
 * places of all groups. There are no states. */
SL_MUST_CHECK int sl_kv_layout_merge(struct sl_kv_layout *l, struct sl_error *err);

/* n_pages of each group, in one piece of memory. */
static inline void sl_kv_pools(const struct sl_kv_layout *l, uint8_t *memory, int32_t n_pages,
                               uint8_t *pools[SL_MAX_KV_GROUPS])
{
    for (int32_t i = 0; i < l->n_groups; i++) {
        pools[i] = memory;
        memory += (size_t)n_pages * l->groups[i].page_bytes;
    }
}

/* The layout of one of n ranks, of which each has as many of every layer's heads, or of a page's
 * positions. */
static inline void sl_kv_layout_part(struct sl_kv_layout *l, int32_t n)
{
    for (int32_t i = 0; i < l->n_groups; i++)
        l->groups[i].page_bytes /= (size_t)n;
    for (int32_t i = 0; i < SL_MAX_LAYERS; i++) {
        l->places[i].k_offset /= (uint32_t)n;
        l->places[i].v_offset /= (uint32_t)n;
        l->places[i].bounds_offset /= (uint32_t)n;
        l->places[i].n_bytes /= (uint32_t)n;
        SL_ASSERT(n == 1 || (l->places[i].index_offset == 0 && l->rows[i].n_bytes == 0));
    }
}

/* The layout of a stage, which has the layers from first to before end: it has their places, in
 * pages of their own. A group of which it has no layer has pages of no bytes. */
void sl_kv_layout_stage(struct sl_kv_layout *l, int32_t first, int32_t end);

/* pools: the first page of each group. */
static inline struct sl_kv_view sl_kv_view(const struct sl_kv_layout *l, uint8_t *const *pools,
                                           int layer)
{
    const struct sl_kv_place *p = &l->places[layer];
    struct sl_kv_view v;
    v.pool = pools[p->group];
    v.page_bytes = l->groups[p->group].page_bytes;
    v.k_offset = p->k_offset;
    v.v_offset = p->v_offset;
    v.dtype = sl_kv_layer_dtype(l, layer);
    v.block_size = l->block_size;
    v.group = p->group;
    v.n_ranks = l->n_ranks;
    v.rank = l->rank;
    return v;
}

/* The keys of its index. */
static inline struct sl_kv_view sl_kv_index_view(const struct sl_kv_layout *l,
                                                 uint8_t *const *pools, int layer)
{
    struct sl_kv_view v = sl_kv_view(l, pools, layer);
    SL_ASSERT(l->places[layer].index_offset > 0);
    v.k_offset = v.v_offset = l->places[layer].index_offset;
    v.dtype = sl_index_dtype(l->dtype);
    return v;
}

/* A layer's own row of each token, where its pages hold rows. */
static inline struct sl_rows_view sl_kv_near_rows(const struct sl_kv_layout *l,
                                                  uint8_t *const *pools, int layer)
{
    const struct sl_kv_place *p = &l->places[layer];
    struct sl_rows_view v;
    v.pool = pools[p->group];
    v.page_bytes = l->groups[p->group].page_bytes;
    v.offset = p->k_offset;
    v.dtype = l->dtype;
    v.block_size = l->block_size;
    v.group = p->group;
    return v;
}

/* Those made of several tokens, or of their index. */
static inline struct sl_rows_view sl_kv_far_rows(const struct sl_kv_layout *l,
                                                 uint8_t *const *pools, int layer, bool index)
{
    const struct sl_rows_place *p = &l->rows[layer];
    struct sl_rows_view v;
    SL_ASSERT(index ? p->offset + p->n_bytes > p->index_offset : p->index_offset > p->offset);
    v.pool = pools[0];
    v.page_bytes = l->groups[0].page_bytes;
    v.offset = index ? p->index_offset : p->offset;
    v.dtype = index ? sl_index_dtype(l->dtype) : l->dtype;
    v.block_size = l->block_size;
    v.group = 0;
    return v;
}

static inline struct sl_state_view sl_state_view(const struct sl_kv_layout *l,
                                                 uint8_t *const *pools, int layer)
{
    const int32_t group = l->n_groups - 1;
    struct sl_state_view v;
    v.pool = pools[group];
    v.page_bytes = l->groups[group].page_bytes;
    v.offset = l->states[layer].offset;
    v.block_size = l->block_size;
    v.group = group;
    return v;
}

#endif
