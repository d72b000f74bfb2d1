/* SPDX-License-Identifier: MIT
 * RWKV-7: time mixing, a recurrence whose inputs are products of a token mixed with the one before
 * it, some of them of low rank; and the mixture that its MLP reads. A layer's part of a page holds
 * the last token that time mixing read, the state of the heads, and the last token of the MLP.
 *
 * Values of all layers but the first are mixed with those of the first.
 */
#include "base/check.h"
#include "models/internal.h"

enum { R, W, K, V, A, G }; /* mixtures, in the order of STATE_SHIFT */

/* Buffers of r->wkv, each of as many rows as a step may have. */
struct wkv_room {
    float *v, *a, *kk, *v_mix, *low;
};

void sl_wkv_room(const struct sl_layer_desc *l, uint64_t *floats, uint64_t *low)
{
    const uint64_t c = (uint64_t)l->state.n_heads * (uint64_t)l->state.v_dim;
    uint64_t most = 0;
    if (l->mixer != SL_MIX_WKV)
        return;
    for (int i = 0; i < SL_WKV_RANKS; i++)
        most = SL_MAX(most, (uint64_t)l->state.ranks[i]);
    *floats = SL_MAX(*floats, 4 * c + most);
    *low = SL_MAX(*low, most);
}

static struct wkv_room mixer_wkv_room_of(const struct sl_run *r, int32_t layer)
{
    const struct sl_state_desc *s = &r->m->layers[layer].state;
    const int64_t n = (int64_t)r->cfg.max_tokens * s->n_heads * s->v_dim;
    float *at = r->wkv;
    return (struct wkv_room){at, at + n, at + 2 * n, at + 3 * n, at + 4 * n};
}

static size_t shift_bytes(int64_t hidden)
{
    return SL_ROUND_UP((size_t)hidden * sizeof(float), (size_t)SL_STATE_ALIGN);
}

size_t sl_wkv_state_bytes(const struct sl_layer_desc *l, int64_t hidden)
{
    const struct sl_state_desc *s = &l->state;
    return 2 * shift_bytes(hidden) +
           (size_t)s->n_heads * (size_t)s->k_dim * (size_t)s->v_dim * sizeof(float);
}

static struct sl_state_view view_at(const struct sl_run *r, int32_t layer, size_t offset)
{
    struct sl_state_view v = sl_state_view(&r->cfg.kv, r->cfg.kv_pool, layer);
    v.offset += offset;
    return v;
}

/* Mixture i of r->norm. */
static const void *mixer_wkv_mixture(const struct sl_run *r, const struct sl_batch *batch, int i)
{
    const size_t act = sl_dtype_info(r->m->be->vt->act_dtype)->block_bytes;
    return (const uint8_t *)r->shifted +
           (size_t)i * (size_t)batch->n_tokens * (size_t)r->m->hp.hidden * act;
}

static void mixer_wkv_shift(struct sl_run *r, int32_t layer, const struct sl_batch *batch,
                            enum sl_slot slot, int32_t n_outs, size_t offset)
{
    const int32_t h = r->m->hp.hidden;
    r->m->be->vt->token_shift(r->m->be, &(struct sl_op_token_shift){
                                            .batch = batch,
                                            .x = r->norm,
                                            .w = sl_run_vec(r, layer, slot),
                                            .n_channels = h,
                                            .n_outs = n_outs,
                                            .state = view_at(r, layer, offset),
                                            .out = r->shifted,
                                            .ld_out = (int64_t)batch->n_tokens * h,
                                        });
}

const void *sl_wkv_ffn_input(struct sl_run *r, int32_t layer, const struct sl_batch *batch)
{
    const int64_t h = r->m->hp.hidden;
    const size_t behind = sl_wkv_state_bytes(&r->m->layers[layer], h) - shift_bytes(h);
    mixer_wkv_shift(r, layer, batch, SL_SLOT_FFN_SHIFT, 1, behind);
    return r->shifted;
}

static void mixer_wkv_product(struct sl_run *r, int32_t layer, enum sl_slot w, enum sl_slot bias,
                              const void *x, int32_t n, float *out)
{
    const struct sl_weight *mat = sl_run_mat(r, layer, w);
    const float *b = bias != SL_SLOT_COUNT ? sl_run_vec(r, layer, bias) : NULL;
    r->m->be->vt->linear(r->m->be, &(struct sl_op_linear){.x = x,
                                                          .ld_x = mat->n_cols,
                                                          .w = mat,
                                                          .bias = b,
                                                          .n = n,
                                                          .out = out,
                                                          .ld_out = mat->n_rows});
}

/* A product of low rank: up(act(down x)) + bias; bare: there is no activation. */
struct low {
    enum sl_slot down, up, bias;
    int mixture;
    bool bare;
    enum sl_act act;
};

static void low_rank(struct sl_run *r, int32_t layer, const struct sl_batch *batch,
                     const struct low *p, float *room, float *out)
{
    struct sl_backend *be = r->m->be;
    const int32_t n = batch->n_tokens, rank = (int32_t)sl_run_mat(r, layer, p->down)->n_rows;
    mixer_wkv_product(r, layer, p->down, SL_SLOT_COUNT, mixer_wkv_mixture(r, batch, p->mixture), n,
                      room);
    if (p->bare)
        be->vt->rmsnorm(be,
                        &(struct sl_op_rmsnorm){.x = room, .n = n, .h = rank, .out = r->wkv_low});
    else
        be->vt->activate(be,
                         &(struct sl_op_activate){
                             .x = room, .act = p->act, .n = (int64_t)n * rank, .out = r->wkv_low});
    mixer_wkv_product(r, layer, p->up, p->bias, r->wkv_low, n, out);
}

static void mixer_wkv_project(struct sl_run *r, int32_t layer, const struct sl_batch *batch,
                              const struct wkv_room *to)
{
    static const struct low decay = {SL_SLOT_WKV_DECAY_DOWN,
                                     SL_SLOT_WKV_DECAY_UP,
                                     SL_SLOT_WKV_DECAY_BIAS,
                                     W,
                                     false,
                                     SL_ACT_TANH};
    static const struct low rate = {
        SL_SLOT_WKV_RATE_DOWN, SL_SLOT_WKV_RATE_UP, SL_SLOT_WKV_RATE_BIAS, A, true, SL_ACT_TANH};
    static const struct low value = {
        SL_SLOT_WKV_VALUE_DOWN, SL_SLOT_WKV_VALUE_UP, SL_SLOT_WKV_VALUE_BIAS, V, true, SL_ACT_TANH};
    static const struct low gate = {
        SL_SLOT_WKV_GATE_DOWN, SL_SLOT_WKV_GATE_UP, SL_SLOT_COUNT, G, false, SL_ACT_SIGMOID};
    const int32_t n = batch->n_tokens;
    mixer_wkv_product(r, layer, SL_SLOT_WKV_R, SL_SLOT_COUNT, mixer_wkv_mixture(r, batch, R), n,
                      r->state_in);
    mixer_wkv_product(r, layer, SL_SLOT_WKV_K, SL_SLOT_COUNT, mixer_wkv_mixture(r, batch, K), n,
                      r->conv_out);
    mixer_wkv_product(r, layer, SL_SLOT_WKV_V, SL_SLOT_COUNT, mixer_wkv_mixture(r, batch, V), n,
                      to->v);
    low_rank(r, layer, batch, &decay, to->low, r->state_dt);
    low_rank(r, layer, batch, &rate, to->low, to->a);
    low_rank(r, layer, batch, &gate, to->low, r->state_gate);
    if (sl_param(r->m, layer, SL_SLOT_WKV_VALUE_UP)->loaded)
        low_rank(r, layer, batch, &value, to->low, to->v_mix);
}

void sl_mixer_wkv(struct sl_run *r, int32_t layer, const struct sl_batch *batch)
{
    const struct sl_layer_desc *l = &r->m->layers[layer];
    const struct sl_state_desc *s = &l->state;
    const bool mixes = sl_param(r->m, layer, SL_SLOT_WKV_VALUE_UP)->loaded;
    struct sl_backend *be = r->m->be;
    struct wkv_room to = mixer_wkv_room_of(r, layer);
    if (!mixes)
        to.v = r->v_first;
    mixer_wkv_shift(r, layer, batch, SL_SLOT_STATE_SHIFT, SL_MAX_SHIFTS, 0);
    mixer_wkv_project(r, layer, batch, &to);
    be->vt->wkv7(be, &(struct sl_op_wkv7){
                         .batch = batch,
                         .r = r->state_in,
                         .w = r->state_dt,
                         .k = r->conv_out,
                         .v = to.v,
                         .a = to.a,
                         .kk = to.kk,
                         .v_first = r->v_first,
                         .v_mix = mixes ? to.v_mix : NULL,
                         .k_k = sl_run_vec(r, layer, SL_SLOT_WKV_K_K),
                         .k_a = sl_run_vec(r, layer, SL_SLOT_WKV_K_A),
                         .n_heads = s->n_heads,
                         .head_dim = s->v_dim,
                         .state = view_at(r, layer, shift_bytes(r->m->hp.hidden)),
                         .out = r->state_out,
                     });
    be->vt->wkv7_out(be, &(struct sl_op_wkv7_out){
                             .x = r->state_out,
                             .r = r->state_in,
                             .k = r->conv_out,
                             .v = to.v,
                             .g = r->state_gate,
                             .r_k = sl_run_vec(r, layer, SL_SLOT_WKV_R_K),
                             .w = sl_run_vec(r, layer, SL_SLOT_STATE_NORM),
                             .b = sl_run_vec(r, layer, SL_SLOT_STATE_NORM_BIAS),
                             .eps = s->norm_eps,
                             .n = batch->n_tokens,
                             .n_heads = s->n_heads,
                             .head_dim = s->v_dim,
                             .out = r->att,
                         });
}
