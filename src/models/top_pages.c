/* SPDX-License-Identifier: MIT
 * Attention over the pages whose bounds promise most (--sparse-topk-pages, ops/ops.h): which layers
 * have it, where their bounds lie, and the room that a step's choices take.
 *
 * The first layers see everything, as in Quest: what is looked for there is spread over the text.
 * So do layers with a window, which read little anyway.
 */
#include "base/check.h"
#include "models/internal.h"

/* Bytes of choices made together: on a device of more rows, which has to have work for all of it.
 */
enum { DENSE_LAYERS = 2, ROOM = 32 * (1 << 20), DEVICE_ROOM = 256 * (1 << 20) };
/* Heads of a key head whose queries a device has place for. */
enum { MOST_GROUP = 128 };

bool sl_top_pages_layer(const struct sl_model *m, int32_t layer)
{
    const struct sl_layer_desc *l = &m->layers[layer];
    return m->top_pages > 0 && layer >= DENSE_LAYERS && sl_has_attention(l) &&
           l->mixer != SL_MIX_MLA && l->mixer != SL_MIX_ROWS && l->window == 0 && !l->whole &&
           l->index.top_k == 0;
}

bool sl_top_pages_bounds(const struct sl_model *m, int32_t layer)
{
    for (int32_t i = layer; i < m->hp.n_layers; i++)
        if (m->layers[i].kv_source == layer && sl_top_pages_layer(m, i))
            return true;
    return false;
}

int sl_model_set_top_pages(struct sl_model *m, int32_t n, struct sl_error *err)
{
    int32_t n_layers = 0;
    SL_ASSERT(m->be == NULL);
    if (n == 0)
        return 0;
    if (n < SL_TOP_PAGES_MIN || n > SL_MAX_TOP_PAGES)
        return sl_fail(err, SL_EINVAL, "sparse_topk_pages: %d is not between %d and %d", n,
                       SL_TOP_PAGES_MIN, SL_MAX_TOP_PAGES);
    if (m->kv_ranks > 1)
        return sl_fail(err, SL_EUNSUPPORTED,
                       "sparse_topk_pages: ranks that divide positions "
                       "(decode_context_parallel_size) cannot choose pages yet");
    m->top_pages = n;
    for (int32_t i = 0; i < m->hp.n_layers; i++) {
        if (m->layers[i].mixer == SL_MIX_MLA)
            return sl_fail(err, SL_EUNSUPPORTED,
                           "sparse_topk_pages: layers with latent attention (MLA) keep one row for "
                           "all heads, which has no bounds yet");
        n_layers += sl_top_pages_layer(m, i);
    }
    if (n_layers == 0)
        return sl_fail(err, SL_EUNSUPPORTED,
                       "sparse_topk_pages: no layer behind the first %d of this model attends to "
                       "all positions before a token",
                       DENSE_LAYERS);
    return 0;
}

int sl_model_top_pages_device(const struct sl_model *m, struct sl_error *err)
{
    for (int32_t i = 0; i < m->hp.n_layers; i++) {
        if (!sl_top_pages_layer(m, i))
            continue;
        if (sl_param(m, i, SL_SLOT_SINKS)->src != NULL)
            return sl_fail(err, SL_EUNSUPPORTED,
                           "sparse_topk_pages: attention with sinks has no choice of pages on this "
                           "device: choose device cpu");
        if (m->layers[i].n_heads / m->layers[i].n_kv_heads > MOST_GROUP)
            return sl_fail(err, SL_EUNSUPPORTED,
                           "sparse_topk_pages: more than %d heads of a key head have no choice of "
                           "pages on this device: choose device cpu",
                           MOST_GROUP);
    }
    return 0;
}

int sl_top_pages_place(const struct sl_model *m, struct sl_kv_layout *l, int32_t layer,
                       struct sl_error *err)
{
    const struct sl_layer_desc *d = &m->layers[layer];
    const enum sl_dtype t = l->dtype;
    if (!sl_top_pages_bounds(m, layer))
        return 0;
    if (t != SL_DTYPE_F32 && t != SL_DTYPE_F16 && t != SL_DTYPE_BF16 && t != SL_DTYPE_Q8_0 &&
        t != SL_DTYPE_FP8_E4M3)
        return sl_fail(err, SL_EUNSUPPORTED,
                       "sparse_topk_pages: pages of this kv-cache-dtype have no bounds yet (choose "
                       "bf16, f16, f32, q8_0 or fp8)");
    return sl_kv_layout_add_bounds(l, layer, d->n_kv_heads, d->head_dim, err);
}

size_t sl_top_pages_room(const struct sl_model *m, const struct sl_backend *be,
                         const struct sl_run_config *cfg)
{
    const int32_t bs = cfg->kv.block_size;
    const bool device = be->vt->device != NULL;
    const size_t all = device ? DEVICE_ROOM : ROOM;
    size_t one = 0;
    for (int32_t i = 0; i < m->hp.n_layers; i++) {
        const int32_t n_kv_heads = m->layers[i].n_kv_heads / m->row_ranks;
        size_t n = sl_page_room(n_kv_heads, m->top_pages, SL_CEIL_DIV(m->hp.context, bs));
        if (device)
            n += sl_chosen_room(n_kv_heads, m->top_pages, bs, bs);
        if (sl_top_pages_layer(m, i))
            one = SL_MAX(one, n);
    }
    return one * SL_MIN(SL_MAX(all / SL_MAX(one, 1), 1), (size_t)cfg->max_tokens);
}

void sl_top_pages_store(struct sl_run *r, int32_t layer, const struct sl_batch *batch)
{
    const struct sl_model *m = r->m;
    const struct sl_layer_desc *l = &m->layers[layer];
    if (l->shares_kv || !sl_top_pages_bounds(m, layer))
        return;
    m->be->vt->page_bounds(m->be, &(struct sl_op_page_bounds){
                                      .batch = batch,
                                      .n_kv_heads = l->n_kv_heads / m->row_ranks,
                                      .head_dim = l->head_dim,
                                      .bounds_offset = r->cfg.kv.places[layer].bounds_offset,
                                      .kv = sl_kv_view(&r->cfg.kv, r->cfg.kv_pool, layer),
                                  });
}

void sl_top_pages_attend(struct sl_run *r, int32_t layer, const struct sl_op_attention *all)
{
    const struct sl_model *m = r->m;
    const struct sl_kv_place *p = &r->cfg.kv.places[m->layers[layer].kv_source];
    const bool device = m->be->vt->device != NULL; /* which cannot reach the counts */
    m->be->vt->page_attention(m->be, &(struct sl_op_page_attention){
                                         .all = *all,
                                         .top_pages = m->top_pages,
                                         .bounds_offset = p->bounds_offset,
                                         .counts = device ? NULL : &r->top_page_counts,
                                         .room = r->page_room,
                                         .room_bytes = sl_top_pages_room(m, m->be, &r->cfg),
                                         .n_most = m->hp.context,
                                     });
}

void sl_run_top_pages(const struct sl_run *r, struct sl_top_page_counts *out)
{
    out->read = __atomic_load_n(&r->top_page_counts.read, __ATOMIC_RELAXED);
    out->dense = __atomic_load_n(&r->top_page_counts.dense, __ATOMIC_RELAXED);
}
