/* SPDX-License-Identifier: MIT
 * The buffers of a run: one block, cut by what the widest layer of a model needs. Before a model is
 * loaded the memory plan asks for the same.
 */
#include "base/check.h"
#include "models/internal.h"

#include <string.h>

enum { ALIGN = 64 };

struct cut {       /* one buffer of the block */
    size_t offset; /* of the pointer in struct sl_run */
    uint64_t n_bytes;
};

/* Floats of a token that a layer's MLP has before its activation, where that is apart. */
static uint64_t up_floats(const struct sl_model *m, const struct sl_backend *be)
{
    uint64_t most = 0;
    for (int32_t i = 0; i < m->hp.n_layers; i++) {
        const struct sl_layer_desc *l = &m->layers[i];
        uint64_t n = (uint64_t)l->intermediate;
        if (l->ffn == SL_FFN_PLAIN && be->vt->act_dtype != SL_DTYPE_F32) /* else in ffn */
            most = SL_MAX(most, n);
        if (l->ffn == SL_FFN_GATED && !sl_run_gates(be, l))
            most = SL_MAX(most, 2 * n);
        if (l->mixer == SL_MIX_BLOCK)
            most = SL_MAX(most, 2 * n);
        if (l->shared_intermediate > 0 && !sl_run_gates(be, l))
            most = SL_MAX(most, 2 * (uint64_t)l->shared_intermediate);
        if (l->plain_experts && be->vt->act_dtype != SL_DTYPE_F32)
            most = SL_MAX(most, (uint64_t)l->shared_intermediate);
    }
    return most;
}

enum {
    N_DRAFT_CUTS = 14,
    N_MLA_CUTS = 15,
    N_ROWS_CUTS = 11,
    N_STATE_CUTS = 18,
    N_OTHER_CUTS = N_DRAFT_CUTS + N_MLA_CUTS + N_ROWS_CUTS + N_STATE_CUTS
};
enum { N_CUTS = 47 + N_OTHER_CUTS + SL_MAX_ROPES };

/* Logits of a token that open what attention gives. */
static uint64_t out_gate_rows(const struct sl_model *m)
{
    int64_t most = 0;
    for (int32_t i = 0; i < m->hp.n_layers; i++)
        if ((m->layers[i].has & SL_HAS_OUT_GATE) != 0)
            most = SL_MAX(most, sl_param(m, i, SL_SLOT_OUT_GATE)->n_rows);
    return (uint64_t)most;
}
/* What the layer's experts that wants most of it works in. */
static uint64_t expert_room(const struct sl_model *m, struct sl_backend *be, int32_t n)
{
    uint64_t most = 0;
    for (int32_t i = 0; i < m->hp.n_layers; i++) {
        const struct sl_layer_desc *l = &m->layers[i];
        uint64_t room =
            l->n_experts == 0 || sl_experts_on_host(m, i)
                ? 0
                : be->vt->experts_bytes(be, n, l->n_experts, l->top_experts,
                                        sl_layer_dim(&m->hp, l, SL_DIM_EXPERT_H), l->intermediate);
        most = SL_MAX(most, room);
    }
    return most;
}

/* The same of the delta rule. */
static uint64_t delta_room(const struct sl_model *m, struct sl_backend *be, int32_t n)
{
    uint64_t most = 0;
    for (int32_t i = 0; i < m->hp.n_layers; i++) {
        const struct sl_state_desc *s = &m->layers[i].state;
        if (m->layers[i].mixer != SL_MIX_DELTA)
            continue;
        const uint64_t room = be->vt->delta_room(n, s->n_heads, s->n_groups, s->k_dim, s->by_row);
        most = SL_MAX(most, room);
    }
    return most;
}

static uint64_t top_experts(const struct sl_model *m)
{
    int32_t most = 0;
    for (int32_t i = 0; i < m->hp.n_layers; i++)
        most = SL_MAX(most, m->layers[i].top_experts);
    return (uint64_t)most;
}

/* Rows of which there is an output, of a step. */
static uint64_t n_pooled_rows(const struct sl_model *m, const struct sl_run_config *cfg)
{
    return (uint64_t)(m->facts.task == SL_TASK_TOKEN_EMBED ? cfg->max_tokens : cfg->max_logits);
}

/* Values of a row in front of Dense modules, or behind them. */
static uint64_t dense_width(const struct sl_model *m)
{
    uint64_t most = 0;
    for (int32_t i = 0; i < m->pool.n_dense; i++)
        most = SL_MAX(most, (uint64_t)SL_MAX(m->pool.dense[i].n_in, m->pool.dense[i].n_out));
    return most;
}

/* A drafter's: of an embedding and a hidden row, or of one of its target's. */
static uint64_t norm_width(const struct sl_model *m)
{
    const int32_t h = m->hp.hidden;
    return (uint64_t)(sl_is_draft(m) ? SL_MAX(2 * h, m->hp.draft.target_hidden) : h);
}

/* Of latent attention, of which two are there only where activations are no floats, and of gates of
 * norms. */
static void list_mla_cuts(const struct sl_model *m, struct sl_backend *be,
                          const struct sl_run_config *cfg, struct cut cuts[N_MLA_CUTS])
{
    const uint64_t act = sl_dtype_info(be->vt->act_dtype)->block_bytes, f = sizeof(float);
    const uint64_t t = (uint64_t)cfg->max_tokens;
    const uint64_t index_q = (uint64_t)sl_layers_max(&m->hp, m->layers, SL_DIM_INDEX_Q),
                   index_k = (uint64_t)sl_layers_max(&m->hp, m->layers, SL_DIM_INDEX_K),
                   index_w = (uint64_t)sl_layers_max(&m->hp, m->layers, SL_DIM_INDEX_HEADS);
    const uint64_t q_rank = (uint64_t)sl_layers_max(&m->hp, m->layers, SL_DIM_MLA_Q_RANK),
                   q_in = (uint64_t)sl_layers_max(&m->hp, m->layers, SL_DIM_MLA_Q_IN),
                   q = (uint64_t)sl_layers_max(&m->hp, m->layers, SL_DIM_MLA_Q),
                   latent = (uint64_t)sl_layers_max(&m->hp, m->layers, SL_DIM_MLA_ATT),
                   att = (uint64_t)sl_layers_max(&m->hp, m->layers, SL_DIM_ATT);
    const uint64_t gate = (uint64_t)SL_MAX(sl_layers_max(&m->hp, m->layers, SL_DIM_ATTN_NORM_RANK),
                                           sl_layers_max(&m->hp, m->layers, SL_DIM_FFN_NORM_RANK));
    const bool narrow = be->vt->act_dtype != SL_DTYPE_F32;
    const struct cut list[] = {
        {offsetof(struct sl_run, latent_q), t * q_rank * f},
        {offsetof(struct sl_run, latent_q_norm), t * q_rank * act},
        {offsetof(struct sl_run, latent_q_both), q_in > q_rank ? t * q_in * act : 0},
        {offsetof(struct sl_run, head_q), t * q * f},
        {offsetof(struct sl_run, head_q_act), narrow ? t * q * act : 0},
        {offsetof(struct sl_run, latent_att), t * latent * act},
        {offsetof(struct sl_run, head_v), narrow && latent > 0 ? t * att * f : 0},
        {offsetof(struct sl_run, index_q), t * index_q * f},
        {offsetof(struct sl_run, index_k), t * index_k * f},
        {offsetof(struct sl_run, index_w), t * index_w * f},
        {offsetof(struct sl_run, index_scores),
         (uint64_t)sl_index_n_scores(m, be, cfg->max_tokens) * f},
        {offsetof(struct sl_run, index_top), t * (uint64_t)sl_index_top(m) * sizeof(int32_t)},
        {offsetof(struct sl_run, sparse_room), sl_index_room(m, be, &cfg->kv, cfg->max_tokens)},
        {offsetof(struct sl_run, norm_low), t * gate * f},
        {offsetof(struct sl_run, norm_low_act), t * gate * act},
    };
    _Static_assert(SL_COUNT(list) == N_MLA_CUTS, "a cut is missing");
    memcpy(cuts, list, sizeof list);
}

/* Values of a token that some layers have, of the widest. */
struct widths {
    uint64_t low, wkv, wkv_low;
    uint64_t block, use; /* heads of a shared block; its widest matrix */
    bool both;
    bool late; /* late_experts */
};

static struct widths widths_of(const struct sl_model *m)
{
    struct widths w = {0};
    for (int32_t i = 0; i < m->hp.n_layers; i++) {
        const struct sl_layer_desc *l = &m->layers[i];
        w.both = w.both || l->mixer == SL_MIX_BOTH;
        w.late = w.late || l->late_experts;
        if (l->mixer == SL_MIX_BLOCK) {
            const uint64_t q = (uint64_t)sl_layer_dim(&m->hp, l, SL_DIM_Q);
            w.block = SL_MAX(w.block, q);
            w.use = SL_MAX(w.use, SL_MAX(q, (uint64_t)l->intermediate));
        }
        sl_wkv_room(l, &w.wkv, &w.wkv_low);
        w.low = SL_MAX(w.low, (uint64_t)SL_MAX(l->state.low_rank, l->state.conv_rank));
        if (l->state.dt_rank > 0)
            w.low = SL_MAX(w.low, (uint64_t)sl_layer_dim(&m->hp, l, SL_DIM_STATE_X));
    }
    return w;
}

/* Of drafters, and of the models that they draft for. */
static void list_draft_cuts(const struct sl_model *m, struct sl_backend *be,
                            const struct sl_run_config *cfg, struct cut cuts[N_DRAFT_CUTS])
{
    const struct sl_draft_hparams *d = &m->hp.draft;
    const uint64_t t = (uint64_t)cfg->max_tokens, h = (uint64_t)m->hp.hidden, f = sizeof(float);
    const uint64_t rows = (uint64_t)cfg->max_logits, n_row = (uint64_t)m->facts.n_row,
                   chains = (uint64_t)cfg->max_chains, chain = (uint64_t)d->chain_rank;
    const uint64_t act = sl_dtype_info(be->vt->act_dtype)->block_bytes;
    const uint64_t wide = t * (uint64_t)m->facts.draft_width;
    const uint64_t tap = m->hp.n_hyper > 0 ? (uint64_t)m->hp.n_hyper * h : h; /* all streams */
    const bool spreads = sl_draft_norms_taps(m) || d->borrows || (sl_is_draft(m) && tap > h);
    const struct cut list[N_DRAFT_CUTS] = {
        {offsetof(struct sl_run, taps), t * (uint64_t)cfg->n_taps * tap * f},
        {offsetof(struct sl_run, taps_in), (d->borrows ? 2 : 1) * wide * act},
        {offsetof(struct sl_run, taps_wide), spreads ? wide * f : 0},
        {offsetof(struct sl_run, cluster_scores), rows * (uint64_t)m->hp.n_clusters * f},
        {offsetof(struct sl_run, cluster_top),
         rows * (uint64_t)m->hp.top_clusters * sizeof(int32_t)},
        {offsetof(struct sl_run, hidden), rows * (uint64_t)m->facts.draft_hidden * f},
        {offsetof(struct sl_run, chain_prev), chains * chain * f},
        {offsetof(struct sl_run, chain_act), chains * chain * act},
        {offsetof(struct sl_run, chain_in), chain > 0 ? chains * (2 * chain + h) * act : 0},
        {offsetof(struct sl_run, chain_mix), chains * 3 * chain * f},
        {offsetof(struct sl_run, chain_state), chains * chain * f},
        {offsetof(struct sl_run, chain_zero), chain * f},
        {offsetof(struct sl_run, chain_logits), chain > 0 ? chains * n_row * f : 0},
        {offsetof(struct sl_run, chain_base), chain > 0 ? chains * n_row * f : 0},
    };
    memcpy(cuts, list, sizeof list);
}

/* Of hyper-connections, and of rows made of several tokens. */
static void list_rows_cuts(const struct sl_model *m, const struct sl_backend *be,
                           const struct sl_run_config *cfg, struct cut cuts[N_ROWS_CUTS])
{
    const uint64_t t = (uint64_t)cfg->max_tokens, f = sizeof(float);
    const bool narrow = be->vt->act_dtype != SL_DTYPE_F32;
    const uint64_t act = narrow ? sl_dtype_info(be->vt->act_dtype)->block_bytes : 0; /* besides */
    const uint64_t wide = (uint64_t)m->hp.n_hyper * (uint64_t)m->hp.hidden;
    const uint64_t weights = (uint64_t)sl_hyper_weights(m->hp.n_hyper);
    const int64_t own = sl_layers_max(&m->hp, m->layers, SL_DIM_ROWS_KV),
                  index = sl_layers_max(&m->hp, m->layers, SL_DIM_INDEX_ROWS_KV),
                  low = sl_layers_max(&m->hp, m->layers, SL_DIM_O_LOW);
    const uint64_t kv = (uint64_t)SL_MAX(own, index);
    const struct cut list[N_ROWS_CUTS] = {
        {offsetof(struct sl_run, hyper), t * wide * f},
        {offsetof(struct sl_run, hyper_w), t * weights * f},
        {offsetof(struct sl_run, hyper_rows), (uint64_t)cfg->max_logits * wide * f},
        {offsetof(struct sl_run, hyper_act), t * wide * act},
        {offsetof(struct sl_run, hyper_rows_act), (uint64_t)cfg->max_logits * wide * act},
        {offsetof(struct sl_run, rows_kv), t * kv * f},
        {offsetof(struct sl_run, rows_gate), t * kv * f},
        {offsetof(struct sl_run, rows_low), t * (uint64_t)low * f},
        {offsetof(struct sl_run, rows_low_act), t * (uint64_t)low * act},
        {offsetof(struct sl_run, rows_seen), narrow && low > 0 ? t * sizeof(int32_t) : 0},
        {offsetof(struct sl_run, rows_room), sl_rows_room(m, be, cfg->kv.dtype, cfg->max_tokens)},
    };
    memcpy(cuts, list, sizeof list);
}

static void list_state_cuts(const struct sl_model *m, struct sl_backend *be,
                            const struct sl_run_config *cfg, struct cut cuts[N_STATE_CUTS])
{
    const struct sl_hparams *hp = &m->hp;
    const uint64_t t = (uint64_t)cfg->max_tokens, h = (uint64_t)hp->hidden, f = sizeof(float);
    const uint64_t act = sl_dtype_info(be->vt->act_dtype)->block_bytes;
    const uint64_t conv = (uint64_t)sl_layers_max(hp, m->layers, SL_DIM_CONV),
                   conv_in = (uint64_t)sl_layers_max(hp, m->layers, SL_DIM_CONV_IN),
                   state = (uint64_t)sl_layers_max(hp, m->layers, SL_DIM_STATE_ROWS),
                   dt = (uint64_t)sl_layers_max(hp, m->layers, SL_DIM_STATE_DT);
    const struct widths of = widths_of(m);
    const struct cut list[] = {
        {offsetof(struct sl_run, state_in), t * conv_in * f},
        {offsetof(struct sl_run, conv_out), t * conv * f},
        {offsetof(struct sl_run, conv_kernels),
         t * (uint64_t)sl_layers_max(hp, m->layers, SL_DIM_CONV_KERNEL) * f},
        {offsetof(struct sl_run, state_gate), t * state * f},
        {offsetof(struct sl_run, state_out), t * state * f},
        {offsetof(struct sl_run, state_dt), t * dt * f},
        {offsetof(struct sl_run, state_beta),
         t * (uint64_t)sl_layers_max(hp, m->layers, SL_DIM_STATE_HEADS) * f},
        {offsetof(struct sl_run, delta_room), delta_room(m, be, cfg->max_tokens)},
        {offsetof(struct sl_run, state_x), 2 * t * of.low * f},
        {offsetof(struct sl_run, state_low), act != f ? 2 * t * of.low * act : 0},
        {offsetof(struct sl_run, wkv), t * of.wkv * f},
        {offsetof(struct sl_run, wkv_low), t * of.wkv_low * act},
        {offsetof(struct sl_run, v_first), of.wkv > 0 ? t * state * f : 0},
        {offsetof(struct sl_run, shifted), of.wkv > 0 ? SL_MAX_SHIFTS * t * h * act : 0},
        {offsetof(struct sl_run, state_att), of.both ? t * state * act : 0},
        {offsetof(struct sl_run, state_y), of.both || of.block > 0 ? t * h * f : 0},
        {offsetof(struct sl_run, pair), of.block > 0 ? 2 * t * h * f : 0},
        {offsetof(struct sl_run, pair_norm), of.block > 0 ? 2 * t * h * act : 0},
    };
    _Static_assert(SL_COUNT(list) == N_STATE_CUTS, "a cut is missing");
    memcpy(cuts, list, sizeof list);
}

size_t sl_run_room_bytes(const struct sl_model *m, const struct sl_backend *be,
                         const struct sl_run_config *cfg)
{
    return sl_rank_room_bytes(m, be, cfg->max_tokens, cfg->max_logits);
}

static void list_cuts(const struct sl_model *m, struct sl_backend *be,
                      const struct sl_run_config *cfg, struct cut cuts[N_CUTS])
{
    const struct sl_hparams *hp = &m->hp;
    uint64_t t = (uint64_t)cfg->max_tokens, h = (uint64_t)hp->hidden;
    uint64_t rows = (uint64_t)cfg->max_logits, f = sizeof(float);
    uint64_t act = sl_dtype_info(be->vt->act_dtype)->block_bytes;
    uint64_t n_out = (uint64_t)m->facts.n_row;
    uint64_t q = (uint64_t)sl_layers_max(hp, m->layers, SL_DIM_Q),
             k = (uint64_t)sl_layers_max(hp, m->layers, SL_DIM_K),
             v = (uint64_t)sl_layers_max(hp, m->layers, SL_DIM_VALUES),
             att = (uint64_t)sl_layers_max(hp, m->layers, SL_DIM_ATT),
             mid = (uint64_t)sl_layers_max(hp, m->layers, SL_DIM_I),
             shared = (uint64_t)sl_layers_max(hp, m->layers, SL_DIM_S),
             latent = (uint64_t)sl_layers_max(hp, m->layers, SL_DIM_LATENT);
    const uint64_t streams = (uint64_t)hp->n_streams;
    const struct widths of = widths_of(m);
    const uint64_t w = (uint64_t)hp->layer_width, layers = (uint64_t)hp->n_layers;
    const uint64_t room = cfg->rank_room[0] != NULL ? 0 : sl_run_room_bytes(m, be, cfg);
    const bool parts = sl_sums_experts(m), sums = m->n_ranks > 1 && top_experts(m) > 0 && !parts;
    const struct cut list[] = {
        {offsetof(struct sl_run, x), t * h * f},
        {offsetof(struct sl_run, y), t * h * f},
        {offsetof(struct sl_run, norm), t * norm_width(m) * act},
        {offsetof(struct sl_run, rows), rows * h * f},
        {offsetof(struct sl_run, q), t * SL_MAX(q, att) * f}, /* and of the last layer att */
        {offsetof(struct sl_run, k), t * k * f},
        {offsetof(struct sl_run, v), t * v * f},
        {offsetof(struct sl_run, att), t * SL_MAX(att, of.block) * act},
        {offsetof(struct sl_run, out_gate), t * out_gate_rows(m) * f},
        {offsetof(struct sl_run, up), t * up_floats(m, be) * f},
        {offsetof(struct sl_run, ffn), t * SL_MAX(mid, shared) * act},
        {offsetof(struct sl_run, route),
         t * (uint64_t)sl_layers_max(hp, m->layers, SL_DIM_ROUTED) * f},
        {offsetof(struct sl_run, passed), of.late ? t * h * f : 0},
        {offsetof(struct sl_run, late), of.late ? t * h * f : 0},
        {offsetof(struct sl_run, top), t * top_experts(m) * sizeof(int32_t)},
        {offsetof(struct sl_run, top_weight), t * top_experts(m) * f},
        {offsetof(struct sl_run, layer_proj), SL_MIN(t, (uint64_t)SL_LAYER_ROWS) * layers * w * f},
        {offsetof(struct sl_run, layer_inputs), t * layers * w * f},
        {offsetof(struct sl_run, layer_rows), rows * w * f},
        {offsetof(struct sl_run, input_gate), t * w * f},
        {offsetof(struct sl_run, gated_input), t * w * act},
        {offsetof(struct sl_run, streams), streams > 0 ? (streams - 1) * t * h * f : 0},
        {offsetof(struct sl_run, stream_keep), streams > 0 ? t * h * f : 0},
        {offsetof(struct sl_run, stream_route), t * streams * f},
        {offsetof(struct sl_run, stream_coefs), t * streams * streams * f},
        {offsetof(struct sl_run, laurel), t * (uint64_t)hp->laurel_rank * f},
        {offsetof(struct sl_run, expert_room), expert_room(m, be, cfg->max_tokens)},
        {offsetof(struct sl_run, shared), shared > 0 ? t * h * f : 0},
        {offsetof(struct sl_run, shared_logit), shared > 0 ? t * f : 0},
        {offsetof(struct sl_run, use_down), 3 * t * (uint64_t)hp->adapter_rank * f},
        {offsetof(struct sl_run, use_act), act != f ? 3 * t * (uint64_t)hp->adapter_rank * act : 0},
        {offsetof(struct sl_run, use_up), t * of.use * f},
        {offsetof(struct sl_run, latent_in), t * latent * f},
        {offsetof(struct sl_run, latent_out), t * latent * f},
        {offsetof(struct sl_run, latent_act), act != f ? t * latent * act : 0},
        {offsetof(struct sl_run, expert_sum), sums ? t * h * f : 0},
        {offsetof(struct sl_run, expert_parts),
         parts ? SL_MIN(t, (uint64_t)SL_SUM_ROWS) * (uint64_t)m->n_ranks * h * f : 0},
        {offsetof(struct sl_run, expert_exchange),
         sl_places_exchange_bytes(m, be, cfg->max_tokens)},
        {offsetof(struct sl_run, rank.room[0]), room},
        {offsetof(struct sl_run, rank.room[1]), room},
        {offsetof(struct sl_run, own_att),
         m->kv_ranks > 1 ? t * (att / (uint64_t)m->n_ranks) * act : 0},
        {offsetof(struct sl_run, kv_others),
         m->kv_ranks > 1 ? (uint64_t)m->n_ranks * SL_KV_RANK_ROOM : 0},
        {offsetof(struct sl_run, logits),
         m->rank == 0 && sl_stage_is_last(m) ? n_pooled_rows(m, cfg) * n_out * f : 0},
        {offsetof(struct sl_run, dense), n_pooled_rows(m, cfg) * dense_width(m) * f},
        {offsetof(struct sl_run, dense_in), n_pooled_rows(m, cfg) * dense_width(m) * act},
        {offsetof(struct sl_run, page_room), sl_top_pages_room(m, be, cfg)},
        {offsetof(struct sl_run, lora), t * 3 * (uint64_t)cfg->max_lora_rank * f},
    };
    _Static_assert(SL_COUNT(list) + N_OTHER_CUTS + SL_MAX_ROPES == N_CUTS, "a cut is missing");
    memcpy(cuts, list, sizeof list);
    list_mla_cuts(m, be, cfg, cuts + SL_COUNT(list));
    list_draft_cuts(m, be, cfg, cuts + SL_COUNT(list) + N_MLA_CUTS);
    list_rows_cuts(m, be, cfg, cuts + SL_COUNT(list) + N_MLA_CUTS + N_DRAFT_CUTS);
    list_state_cuts(m, be, cfg, cuts + SL_COUNT(list) + N_OTHER_CUTS - N_STATE_CUTS);
    for (int32_t i = 0; i < SL_MAX_ROPES; i++) {
        uint64_t dims = i < m->desc->n_ropes ? (uint64_t)sl_rope_dims(hp, m->layers, i) : 0;
        cuts[SL_COUNT(list) + N_OTHER_CUTS + (size_t)i] = (struct cut){
            offsetof(struct sl_run, angles) + (size_t)i * sizeof(float *), t * dims * f};
    }
}

uint64_t sl_run_bytes(const struct sl_model *m, struct sl_backend *be,
                      const struct sl_run_config *cfg)
{
    struct cut cuts[N_CUTS];
    uint64_t total = 0;
    list_cuts(m, be, cfg, cuts);
    for (size_t i = 0; i < N_CUTS; i++)
        total += SL_ROUND_UP(cuts[i].n_bytes, ALIGN);
    return total;
}

void sl_run_cut(struct sl_run *r, const struct sl_run_config *cfg)
{
    const struct sl_model *m = r->m;
    struct cut cuts[N_CUTS];
    uint8_t *at = r->mem;
    list_cuts(m, m->be, cfg, cuts);
    for (size_t i = 0; i < N_CUTS; i++) {
        *(void **)(void *)((uint8_t *)r + cuts[i].offset) = at;
        at += SL_ROUND_UP(cuts[i].n_bytes, ALIGN);
    }
    if (up_floats(m, m->be) == 0)
        r->up = r->ffn;
    if (m->be->vt->act_dtype == SL_DTYPE_F32) {
        r->head_q_act = r->head_q;
        r->head_v = r->att;
        r->hyper_act = r->hyper;
        r->hyper_rows_act = r->hyper_rows;
        r->rows_low_act = r->rows_low;
    }
}
