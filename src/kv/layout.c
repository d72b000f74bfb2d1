/* SPDX-License-Identifier: MIT */
#include "kv/layout.h"

#include "base/check.h"

int sl_kv_layout_add(struct sl_kv_layout *l, int32_t layer, int32_t window, int32_t n_kv_heads,
                     int32_t head_dim, int32_t v_dim, struct sl_error *err)
{
    SL_ASSERT(layer >= 0 && layer < SL_MAX_LAYERS && l->block_size % SL_KV_TILE == 0);
    const size_t n_tiles = (size_t)n_kv_heads * (size_t)(l->block_size / SL_KV_TILE);
    const enum sl_dtype dtype = sl_kv_layer_dtype(l, layer);
    const size_t keys = n_tiles * sl_kv_tile_bytes(sl_kv_keys(dtype), head_dim);
    const size_t values = v_dim > 0 ? n_tiles * sl_kv_tile_bytes(sl_kv_values(dtype), v_dim) : 0;
    int32_t i = 0;
    SL_ASSERT(l->n_groups == 0 || !l->groups[l->n_groups - 1].state);
    while (i < l->n_groups && l->groups[i].window != window)
        i++;
    if (i == SL_MAX_KV_GROUPS)
        return sl_fail(err, SL_EUNSUPPORTED, "layers with more than %d different windows",
                       SL_MAX_KV_GROUPS);
    SL_ASSERT(window > 0 || i == 0);
    struct sl_kv_layer_group *g = &l->groups[i];
    if (i == l->n_groups)
        l->groups[l->n_groups++] = (struct sl_kv_layer_group){.window = window};
    if (g->page_bytes + keys + values > UINT32_MAX)
        return sl_fail(err, SL_ELIMIT, "a KV page of %d tokens has more than 4 GB", l->block_size);
    l->places[layer] = (struct sl_kv_place){.group = (uint8_t)i,
                                            .k_offset = (uint32_t)g->page_bytes,
                                            .v_offset = (uint32_t)(g->page_bytes + keys),
                                            .n_bytes = (uint32_t)(keys + values)};
    g->page_bytes += keys + values;
    g->n_layers++;
    return 0;
}

/* Room for n_bytes more of a layer, behind all that its group has: where. */
static int add_plane(struct sl_kv_layout *l, int32_t layer, size_t n_bytes, uint32_t *offset,
                     struct sl_error *err)
{
    struct sl_kv_place *p = &l->places[layer];
    struct sl_kv_layer_group *g = &l->groups[p->group];
    SL_ASSERT(p->group < l->n_groups && g->page_bytes > 0 && *offset == 0);
    if (g->page_bytes + n_bytes > UINT32_MAX)
        return sl_fail(err, SL_ELIMIT, "a KV page of %d tokens has more than 4 GB", l->block_size);
    *offset = (uint32_t)g->page_bytes;
    p->n_bytes += (uint32_t)n_bytes;
    g->page_bytes += n_bytes;
    return 0;
}

int sl_kv_layout_add_rows(struct sl_kv_layout *l, int32_t layer, int32_t ratio, int32_t dim,
                          int32_t index_dim, struct sl_error *err)
{
    SL_ASSERT(layer >= 0 && layer < SL_MAX_LAYERS && ratio >= 2 && dim + index_dim > 0);
    SL_ASSERT(l->n_groups == 0 || (l->n_groups == 1 && sl_kv_layers_full(&l->groups[0])));
    const size_t n = (size_t)sl_rows_of_block(l->block_size, ratio);
    const size_t own = n * sl_row_bytes(l->dtype, dim);
    const size_t index = index_dim > 0 ? n * sl_row_bytes(sl_index_dtype(l->dtype), index_dim) : 0;
    struct sl_kv_layer_group *g = &l->groups[0];
    l->n_groups = 1;
    if (g->page_bytes + own + index > UINT32_MAX)
        return sl_fail(err, SL_ELIMIT, "a KV page of %d tokens has more than 4 GB", l->block_size);
    l->rows[layer] = (struct sl_rows_place){.offset = (uint32_t)g->page_bytes,
                                            .index_offset = (uint32_t)(g->page_bytes + own),
                                            .n_bytes = (uint32_t)(own + index)};
    g->page_bytes += own + index;
    g->n_layers += dim > 0; /* else the layer has a place of its own there */
    return 0;
}

int sl_kv_layout_add_bounds(struct sl_kv_layout *l, int32_t layer, int32_t n_kv_heads,
                            int32_t head_dim, struct sl_error *err)
{
    SL_ASSERT(layer >= 0 && layer < SL_MAX_LAYERS && n_kv_heads > 0 && head_dim > 0);
    return add_plane(l, layer, sl_page_bounds_bytes(l->dtype, n_kv_heads, head_dim),
                     &l->places[layer].bounds_offset, err);
}

int sl_kv_layout_add_index(struct sl_kv_layout *l, int32_t layer, int32_t dim, struct sl_error *err)
{
    SL_ASSERT(layer >= 0 && layer < SL_MAX_LAYERS && dim > 0);
    const size_t n_bytes =
        (size_t)(l->block_size / SL_KV_TILE) * sl_kv_tile_bytes(sl_index_dtype(l->dtype), dim);
    return add_plane(l, layer, n_bytes, &l->places[layer].index_offset, err);
}

int sl_kv_layout_add_state(struct sl_kv_layout *l, int32_t layer, size_t n_bytes,
                           struct sl_error *err)
{
    SL_ASSERT(layer >= 0 && layer < SL_MAX_LAYERS && n_bytes > 0);
    if (l->n_groups == 0 || !l->groups[l->n_groups - 1].state) {
        if (l->n_groups == SL_MAX_KV_GROUPS)
            return sl_fail(err, SL_EUNSUPPORTED,
                           "layers with %d different windows, and with a recurrent state",
                           SL_MAX_KV_GROUPS);
        l->groups[l->n_groups++] = (struct sl_kv_layer_group){.state = true};
    }
    struct sl_kv_layer_group *g = &l->groups[l->n_groups - 1];
    n_bytes = SL_ROUND_UP(n_bytes, SL_STATE_ALIGN);
    l->states[layer] =
        (struct sl_state_place){.in = true, .offset = g->page_bytes, .n_bytes = n_bytes};
    g->page_bytes += n_bytes;
    g->n_layers++;
    return 0;
}

int sl_kv_layout_merge(struct sl_kv_layout *l, struct sl_error *err)
{
    size_t begin[SL_MAX_KV_GROUPS], n_bytes = 0;
    int32_t n_layers = 0;
    for (int32_t i = 0; i < l->n_groups; i++) {
        SL_ASSERT(!l->groups[i].state); /* so there are no rows of several tokens either */
        begin[i] = n_bytes;
        n_bytes += l->groups[i].page_bytes;
        n_layers += l->groups[i].n_layers;
    }
    SL_ASSERT(l->n_groups > 0);
    if (n_bytes > UINT32_MAX)
        return sl_fail(err, SL_ELIMIT, "a KV page of %d tokens has more than 4 GB", l->block_size);
    for (int32_t i = 0; i < SL_MAX_LAYERS; i++) {
        struct sl_kv_place *p = &l->places[i];
        p->k_offset += (uint32_t)begin[p->group];
        p->v_offset += (uint32_t)begin[p->group];
        p->index_offset += p->index_offset > 0 ? (uint32_t)begin[p->group] : 0;
        p->bounds_offset += p->bounds_offset > 0 ? (uint32_t)begin[p->group] : 0;
        p->group = 0;
    }
    l->n_groups = 1;
    l->groups[0] = (struct sl_kv_layer_group){.n_layers = n_layers, .page_bytes = n_bytes};
    return 0;
}

/* In pages of a group the layers lie in their order, so those of a stage are one piece. */
static void cut_pages(struct sl_kv_layout *l, int32_t group, int32_t first, int32_t end)
{
    struct sl_kv_layer_group *g = &l->groups[group];
    size_t begin = 0, n_bytes = 0;
    int32_t n_layers = 0;
    for (int32_t i = 0; i < end; i++) {
        const size_t of_state = l->states[i].n_bytes;
        const size_t of_keys = l->places[i].group == group ? l->places[i].n_bytes : 0;
        const size_t n = g->state ? of_state : of_keys;
        SL_ASSERT(l->rows[i].n_bytes == 0); /* stages.c */
        begin += i < first ? n : 0;
        n_bytes += i < first ? 0 : n;
        n_layers += i >= first && n > 0;
    }
    SL_ASSERT(begin + n_bytes <= g->page_bytes);
    for (int32_t i = first; i < end; i++) {
        struct sl_kv_place *p = &l->places[i];
        if (g->state && l->states[i].in) {
            l->states[i].offset -= begin;
        } else if (!g->state && p->n_bytes > 0 && p->group == group) {
            p->k_offset -= (uint32_t)begin;
            p->v_offset -= (uint32_t)begin;
            p->index_offset -= p->index_offset > 0 ? (uint32_t)begin : 0;
            p->bounds_offset -= p->bounds_offset > 0 ? (uint32_t)begin : 0;
        }
    }
    g->page_bytes = n_bytes;
    g->n_layers = n_layers;
}

void sl_kv_layout_stage(struct sl_kv_layout *l, int32_t first, int32_t end)
{
    SL_ASSERT(first >= 0 && first < end && end <= SL_MAX_LAYERS);
    for (int32_t g = 0; g < l->n_groups; g++)
        cut_pages(l, g, first, end);
}
