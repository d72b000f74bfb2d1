/* SPDX-License-Identifier: MIT
 * Layers, not models, carry shape: every layer gets what the hyper-parameters say of all alike,
 * then the family's plan() changes what differs. Who binds, loads, runs or writes a model reads the
 * layer.
 */
#include "base/check.h"
#include "models/internal.h"
#include "models/tables.h"

#include <math.h>

/* Who reads another layer's keys finds them as its own would be. */
static void check_source(const struct sl_layer_desc *layers, int32_t idx)
{
    const struct sl_layer_desc *l = &layers[idx], *from = &layers[l->kv_source];
    SL_ASSERT(l->kv_source >= 0 && l->kv_source <= idx);
    if (!l->shares_kv)
        return;
    SL_ASSERT(l->kv_source < idx && from->kv_source == l->kv_source && !from->shares_kv);
    SL_ASSERT(l->n_kv_heads == from->n_kv_heads && l->head_dim == from->head_dim &&
              l->v_dim == from->v_dim && l->window == from->window && l->chunks == from->chunks &&
              l->whole == from->whole);
}

/* Experts whose sum the next layer adds, which has an MLP alone. */
static void plan_check_late(const struct sl_hparams *hp, const struct sl_layer_desc *layers,
                            int32_t idx)
{
    const struct sl_layer_desc *l = &layers[idx];
    SL_ASSERT(l->n_pass == 0 || (l->late_experts && l->n_experts > 0));
    if (!l->late_experts)
        return;
    SL_ASSERT(idx + 1 < hp->n_layers && layers[idx + 1].ffn == SL_FFN_GATED);
    SL_ASSERT((l->has & SL_HAS_SHARED) != 0 && (l->has & SL_HAS_SHARED_GATE) == 0);
    SL_ASSERT(l->latent == 0 && hp->n_streams == 0 && hp->n_hyper == 0);
    for (int32_t i = idx; i < idx + 2; i++)
        SL_ASSERT(layers[i].norms == SL_NORM_IN && !layers[i].parallel);
}

/* A layer with an index, or one that takes another's choice. */
static void plan_check_index(const struct sl_layer_desc *layers, int32_t idx)
{
    const struct sl_layer_desc *l = &layers[idx];
    const struct sl_index_desc *x = &l->index;
    if (x->top_k == 0)
        return;
    if (x->block > 0) {
        SL_ASSERT(l->mixer == SL_MIX_GQA && x->n_heads == l->n_kv_heads && x->n_local > 0 &&
                  x->n_local <= x->top_k && x->dim > 0 && sl_index_block_fits(x->block));
        SL_ASSERT(l->window == 0 && !l->whole && l->softcap == 0 && (l->has & SL_HAS_SINKS) == 0 &&
                  !l->shares_kv && !l->joined);
        return;
    }
    SL_ASSERT(l->mla.q_rank > 0 && x->top_k > 0);
    if (l->mixer == SL_MIX_MLA && l->rows.ratio > 0) {
        SL_ASSERT(l->rows.ratio >= 2 && !l->rows.overlap && x->n_heads > 0 && x->norm_eps > 0);
        return;
    }
    if (l->mixer == SL_MIX_ROWS) {
        SL_ASSERT(l->rows.ratio > 0 && x->n_heads > 0 && x->dim >= l->mla.rope_dim);
        return;
    }
    SL_ASSERT(l->mixer == SL_MIX_MLA);
    SL_ASSERT(x->n_heads >= 0 && (x->n_heads > 0 || idx > 0));
    SL_ASSERT(x->rope_from >= 0 &&
              x->rope_from + l->mla.rope_dim <= SL_MAX(x->dim, l->mla.rope_dim));
    SL_ASSERT(x->n_heads > 0 ? x->dim >= l->mla.rope_dim && x->norm_eps > 0
                             : layers[idx - 1].index.top_k == x->top_k);
}

static void plan_check_rows(const struct sl_layer_desc *l)
{
    SL_ASSERT(l->n_kv_heads == 1 && l->v_dim == l->head_dim && l->window > 0 && !l->chunks);
    SL_ASSERT(l->mla.q_rank > 0 && l->mla.rope_dim > 0 && l->mla.rope_dim <= l->head_dim);
    SL_ASSERT(l->rows.o_groups > 0 && l->n_heads % l->rows.o_groups == 0 && l->rows.o_rank > 0);
    SL_ASSERT((l->rows.ratio == 0 || l->rows.ratio >= 2) && l->rope >= 0 && !l->whole);
    SL_ASSERT((l->has & SL_HAS_SINKS) != 0 && l->softcap == 0 && l->clip == 0);
}

static void plan_check_state(const struct sl_layer_desc *l)
{
    const struct sl_state_desc *s = &l->state;
    SL_ASSERT(s->n_taps >= 2 && s->n_taps <= SL_MAX_CONV_TAPS);
    if (l->mixer == SL_MIX_CONV)
        return;
    SL_ASSERT(s->n_heads > 0 && s->n_groups > 0 && s->n_heads % s->n_groups == 0);
    SL_ASSERT(s->k_dim > 0 && s->k_dim <= SL_MAX_STATE_DIM && s->v_dim > 0 &&
              s->v_dim <= SL_MAX_STATE_DIM);
    SL_ASSERT(s->norm || !s->norm_heads);
    SL_ASSERT(l->mixer != SL_MIX_DELTA || s->beta_scale > 0);
    SL_ASSERT((l->mixer != SL_MIX_SSM && l->mixer != SL_MIX_BOTH && l->mixer != SL_MIX_BLOCK) ||
              s->dt_max > s->dt_min);
    SL_ASSERT(l->mixer != SL_MIX_WKV || (s->k_dim == s->v_dim && s->n_taps == 2));
    SL_ASSERT(l->mixer != SL_MIX_LRU || (s->k_dim == 1 && s->n_groups == s->n_heads));
}

/* What a family may not say, whatever the file says. */
static void plan_check_layer(const struct sl_model_desc *desc, const struct sl_hparams *hp,
                             const struct sl_layer_desc *layers, int32_t idx)
{
    const struct sl_layer_desc *l = &layers[idx];
    if (l->mixer == SL_MIX_ROWS)
        plan_check_rows(l);
    else if (sl_has_state(l) && l->rows.ratio == 0)
        plan_check_state(l);
    plan_check_index(layers, idx);
    plan_check_late(hp, layers, idx);
    SL_ASSERT(l->mixer != SL_MIX_NONE || l->ffn != SL_FFN_NONE);
    SL_ASSERT(l->mixer != SL_MIX_BLOCK || (l->intermediate > 0 && l->v_dim == l->head_dim));
    SL_ASSERT((l->mixer == SL_MIX_MLA) == (l->mla.rank > 0));
    SL_ASSERT(l->mixer != SL_MIX_MLA ||
              (l->n_kv_heads == 1 && l->v_dim == l->mla.rank &&
               l->head_dim == l->mla.rank + l->mla.rope_dim && !l->whole && l->window == 0 &&
               l->mla.nope_dim > 0 && l->mla.rope_dim >= 0 && l->mla.v_dim > 0 &&
               l->mla.norm_eps > 0 && l->qk_norm == SL_QK_NORM_NONE && l->clip == 0));
    SL_ASSERT(l->tied_to >= 0 && l->tied_to <= idx && layers[l->tied_to].tied_to == l->tied_to);
    if (sl_has_attention(l))
        SL_ASSERT(l->n_kv_heads > 0 && l->n_heads % l->n_kv_heads == 0 && l->head_dim > 0 &&
                  l->v_dim > 0);
    SL_ASSERT((l->ffn == SL_FFN_NONE || l->intermediate > 0) && l->window >= 0);
    SL_ASSERT(l->rope >= -1 && l->rope < desc->n_ropes);
    SL_ASSERT((l->has & SL_HAS_LAYER_INPUTS) == 0 || l->norm == SL_NORM_RMS);
    SL_ASSERT(!l->v_is_k || (l->v_dim == l->head_dim && l->qk_norm != SL_QK_NORM_ROWS));
    check_source(layers, idx);
    /* what there are ops for */
    SL_ASSERT(l->norm == SL_NORM_LAYER ? l->norms == SL_NORM_IN || l->norms == SL_NORM_SUM
                                       : l->norms != SL_NORM_SUM);
    SL_ASSERT(!l->parallel || l->norms == SL_NORM_IN);
    SL_ASSERT((l->attn_norm_rank == 0 && l->ffn_norm_rank == 0) ||
              ((l->norms & SL_NORM_IN) != 0 && !l->parallel && l->ffn != SL_FFN_NONE));
    SL_ASSERT(!l->mla.both_q || (l->mixer == SL_MIX_MLA && l->mla.q_rank > 0));
    SL_ASSERT((l->ffn == SL_FFN_EXPERTS) == (l->n_experts > 0));
    SL_ASSERT(((l->has & SL_HAS_SHARED) != 0) == (l->shared_intermediate > 0));
    SL_ASSERT(l->latent >= 0 && (l->latent == 0 || l->ffn == SL_FFN_EXPERTS));
    SL_ASSERT(!l->plain_experts || (l->act == SL_ACT_RELU2 && (l->has & SL_HAS_MLP_BIAS) == 0));
    SL_ASSERT(l->n_experts == 0 ||
              sl_route_fits(l->n_experts + l->n_pass, l->top_experts, &l->route));
    SL_ASSERT(!l->qk_norm_after || l->qk_norm == SL_QK_NORM_HEADS || l->qk_norm == SL_QK_NORM_BARE);
    SL_ASSERT(!l->chunks || (l->window > 0 && !l->whole));
    SL_ASSERT(l->value_scale > 0 && (l->value_scale == 1 || (l->has & SL_HAS_O_BIAS) == 0));
    SL_ASSERT(l->temperature.beta == 0 || l->temperature.span > 0);
    SL_ASSERT(l->norms != 0 && l->attn_scale > 0 && l->softcap >= 0 && l->residual_scale > 0 &&
              l->mlp_scale > 0);
    SL_ASSERT(l->norms != SL_NORM_SUM || l->residual_scale * l->mlp_scale * l->value_scale == 1);
}

int sl_plan(const struct sl_model_desc *desc, const struct sl_model_name *name,
            const struct sl_hparams *hp, struct sl_layer_desc *layers, struct sl_error *err)
{
    for (int32_t i = 0; i < hp->n_layers; i++)
        layers[i] = (struct sl_layer_desc){
            .has = hp->has,
            .mixer = SL_MIX_GQA,
            .ffn = SL_FFN_GATED,
            .act = hp->act,
            .norm = SL_NORM_RMS,
            .norms = SL_NORM_IN,
            .qk_norm = (hp->has & SL_HAS_QK_NORM) != 0 ? SL_QK_NORM_HEADS : SL_QK_NORM_NONE,
            .n_heads = hp->n_heads,
            .n_kv_heads = hp->n_kv_heads,
            .head_dim = hp->head_dim,
            .v_dim = hp->head_dim,
            .intermediate = hp->intermediate,
            .rope = desc->n_ropes > 0 ? 0 : -1,
            .kv_source = i,
            .tied_to = i,
            .attn_scale =
                (float)(hp->attn_scale != 0 ? hp->attn_scale
                                            : 1.0 / sqrt((double)SL_MAX(hp->head_dim, 1))),
            .softcap = (float)hp->attn_softcap,
            .residual_scale = hp->residual_scale != 0 ? (float)hp->residual_scale : 1,
            .mlp_scale = 1,
            .value_scale = 1,
        };
    int rc = desc->plan(name, hp, layers, err);
    for (int32_t i = 0; i < hp->n_layers && rc == 0; i++)
        plan_check_layer(desc, hp, layers, i);
    return rc;
}

bool sl_plan_attends(const struct sl_hparams *hp, int32_t idx, bool otherwise)
{
    if (hp->from_gguf)
        return (hp->layer_has[idx] & SL_HAS_STATE) == 0;
    return hp->attn_layers[idx] == SL_LAYER_BY_INDEX ? otherwise
                                                     : hp->attn_layers[idx] == SL_LAYER_ON;
}

void sl_plan_mixer(enum sl_mixer mixer, struct sl_layer_desc *l)
{
    const unsigned of_attention = SL_HAS_ATTN | SL_HAS_QKV_BIAS | SL_HAS_O_BIAS | SL_HAS_QK_NORM |
                                  SL_HAS_OUT_GATE | SL_HAS_SINKS;
    const unsigned of_state =
        SL_HAS_STATE | SL_HAS_CONV_BIAS | SL_HAS_STATE_BIAS | SL_HAS_STATE_NORM;
    l->mixer = mixer;
    SL_ASSERT(mixer != SL_MIX_ROWS); /* rows.c */
    if (mixer != SL_MIX_BOTH)
        l->has &= ~(mixer == SL_MIX_GQA || mixer == SL_MIX_MLA ? of_state : of_attention);
    if (mixer == SL_MIX_NONE)
        l->has &= ~of_state;
    else
        l->has |= mixer == SL_MIX_GQA || mixer == SL_MIX_MLA ? SL_HAS_ATTN
                  : mixer == SL_MIX_BOTH                     ? SL_HAS_ATTN | SL_HAS_STATE
                                                             : SL_HAS_STATE;
}

int sl_plan_share_keys(const struct sl_hparams *hp, int32_t idx, struct sl_layer_desc *layers,
                       struct sl_error *err)
{
    struct sl_layer_desc *l = &layers[idx];
    int32_t from = hp->n_layers - hp->n_shared_layers - 1;
    while (from >= 0 && layers[from].rope != l->rope)
        from--;
    if (from < 0)
        return sl_fail(err, SL_EFORMAT,
                       "layer %d shares keys with a layer of its kind, but none of the first %d is "
                       "one",
                       idx, hp->n_layers - hp->n_shared_layers);
    l->shares_kv = true;
    l->kv_source = from;
    l->n_kv_heads = layers[from].n_kv_heads;
    l->head_dim = layers[from].head_dim;
    l->has &= ~(unsigned)(SL_HAS_K | SL_HAS_V);
    l->v_is_k = layers[from].v_is_k;
    return 0;
}

static bool is_of_mla(enum sl_dim dim)
{
    return dim >= SL_DIM_MLA_Q_RANK && dim <= SL_DIM_INDEX_HEADS;
}

/* Of latent attention. */
static int64_t mla_dim(const struct sl_layer_desc *l, enum sl_dim dim)
{
    const struct sl_mla_desc *a = &l->mla;
    const int64_t q = a->rank > 0 ? (int64_t)l->n_heads * (a->nope_dim + a->rope_dim) : 0;
    switch (dim) {
    case SL_DIM_MLA_Q_RANK:
        return a->q_rank;
    case SL_DIM_MLA_Q_IN:
        return (a->both_q ? 2 : 1) * (int64_t)a->q_rank;
    case SL_DIM_MLA_RANK:
        return a->rank;
    case SL_DIM_MLA_NOPE:
        return a->nope_dim;
    case SL_DIM_MLA_ROPE:
        return a->rope_dim;
    case SL_DIM_MLA_V:
        return a->v_dim;
    case SL_DIM_MLA_Q:
        return q;
    case SL_DIM_MLA_Q_ALONE:
        return a->q_rank > 0 ? 0 : q;
    case SL_DIM_MLA_ATT:
        return (int64_t)l->n_heads * a->rank;
    case SL_DIM_INDEX_Q:
        return (int64_t)l->index.n_heads * l->index.dim;
    case SL_DIM_INDEX_K:
        return l->index.n_heads > 0 ? l->index.dim : 0;
    default:
        SL_ASSERT(dim == SL_DIM_INDEX_HEADS);
        return l->index.n_heads;
    }
}

/* Of a drafter, or of a layer that reads two rows side by side. */
static int64_t draft_dim(const struct sl_hparams *hp, const struct sl_layer_desc *l,
                         enum sl_dim dim)
{
    const struct sl_draft_hparams *d = &hp->draft;
    const int64_t states = d->chain == SL_CHAIN_RNN ? 1 : 0;
    switch (dim) {
    case SL_DIM_2H:
        return 2 * (int64_t)hp->hidden;
    case SL_DIM_MIX_IN:
        return (l->joined ? 2 : 1) * (int64_t)hp->hidden;
    case SL_DIM_TARGET_H:
        return d->target_hidden;
    case SL_DIM_TARGET_2H:
        return 2 * (int64_t)d->target_hidden;
    case SL_DIM_CLUSTERS:
        return hp->n_clusters;
    case SL_DIM_TAP_COUNT:
        return d->n_taps;
    case SL_DIM_TAPS_H:
        return (int64_t)d->n_taps * d->target_hidden;
    case SL_DIM_DRAFT_V:
        return d->n_vocab;
    case SL_DIM_CHAIN:
        return d->chain_rank;
    case SL_DIM_CHAIN_IN:
        return hp->hidden + (1 + states) * d->chain_rank;
    case SL_DIM_CHAIN_MIX:
        return (1 + 2 * states) * d->chain_rank;
    default:
        SL_ASSERT(dim == SL_DIM_CHAIN_ODDS);
        return hp->hidden + (d->odds_prev ? d->chain_rank : 0);
    }
}

/* Of a recurrent layer. */
static int64_t state_dim(const struct sl_hparams *hp, const struct sl_layer_desc *l,
                         enum sl_dim dim)
{
    switch (dim) {
    case SL_DIM_STATE_HEADS:
        return l->state.n_heads;
    case SL_DIM_STATE_GROUPS:
        return l->state.n_groups;
    case SL_DIM_STATE_DT:
        if (l->mixer == SL_MIX_LRU)
            return (int64_t)l->state.n_heads * l->state.v_dim;
        return (int64_t)l->state.n_heads * (l->state.by_row ? l->state.k_dim : 1);
    case SL_DIM_STATE_ROWS:
        return (int64_t)l->state.n_heads * l->state.v_dim;
    case SL_DIM_STATE_KEYS:
        return (int64_t)l->state.n_groups * l->state.k_dim;
    case SL_DIM_STATE_K:
        return l->state.k_dim;
    case SL_DIM_STATE_V:
        return l->state.v_dim;
    case SL_DIM_STATE_LOW:
        return l->state.low_rank;
    case SL_DIM_CONV_RANK:
        return l->state.conv_rank;
    case SL_DIM_CONV_KERNEL:
        return l->state.conv_rank > 0 ? sl_conv_tapped(l, hp->hidden) * l->state.n_taps : 0;
    case SL_DIM_STATE_RANK:
        return l->state.dt_rank;
    case SL_DIM_SHIFTS:
        return SL_MAX_SHIFTS * (int64_t)hp->hidden;
    case SL_DIM_WKV_DECAY:
    case SL_DIM_WKV_RATE:
    case SL_DIM_WKV_VALUE:
    case SL_DIM_WKV_GATE:
        return l->state.ranks[dim - SL_DIM_WKV_DECAY];
    case SL_DIM_WKV_VALUE_BIAS:
        return l->state.ranks[SL_DIM_WKV_VALUE - SL_DIM_WKV_DECAY] > 0
                   ? (int64_t)l->state.n_heads * l->state.v_dim
                   : 0;
    default:
        SL_ASSERT(dim == SL_DIM_STATE_X);
        return l->state.dt_rank + 2 * (int64_t)l->state.k_dim;
    }
}

/* Of rows made of several tokens, and of hyper-connections. */
static int64_t rows_dim(const struct sl_hparams *hp, const struct sl_layer_desc *l, enum sl_dim dim)
{
    const struct sl_rows_desc *r = &l->rows;
    const int64_t halves = r->overlap ? 2 : 1,
                  row = r->ratio > 0 && l->mixer == SL_MIX_ROWS ? l->head_dim : 0;
    const int64_t index = r->ratio > 0 && l->index.n_heads > 0 ? l->index.dim : 0;
    switch (dim) {
    case SL_DIM_O_GROUPS:
        return r->o_groups;
    case SL_DIM_O_IN:
        return r->o_groups > 0 ? (int64_t)l->n_heads * l->head_dim / r->o_groups : 0;
    case SL_DIM_O_RANK:
        return r->o_rank;
    case SL_DIM_O_LOW:
        return (int64_t)r->o_groups * r->o_rank;
    case SL_DIM_ROWS_KV:
        return halves * row;
    case SL_DIM_ROWS_BIAS:
        return r->ratio * halves * row;
    case SL_DIM_ROWS:
        return row;
    case SL_DIM_INDEX_ROWS_KV:
        return halves * index;
    case SL_DIM_INDEX_ROWS_BIAS:
        return r->ratio * halves * index;
    case SL_DIM_INDEX_ROWS:
        return index;
    case SL_DIM_HYPER:
        return hp->n_hyper;
    case SL_DIM_HYPER_H:
        return (int64_t)hp->n_hyper * hp->hidden;
    case SL_DIM_HYPER_W:
        return hp->hyper_iters > 0 ? sl_hyper_weights(hp->n_hyper) : 2 * (int64_t)hp->n_hyper;
    default:
        SL_ASSERT(dim == SL_DIM_HYPER_SCALES);
        return hp->hyper_iters > 0 ? 3 : 2;
    }
}

static bool is_of_rows(enum sl_dim dim)
{
    return dim >= SL_DIM_O_GROUPS && dim <= SL_DIM_HYPER_SCALES;
}

/* Of these dimensions 0 means that there is none. */
static bool is_none(const struct sl_hparams *hp, const struct sl_layer_desc *l, enum sl_dim dim)
{
    return (dim == SL_DIM_LATENT || dim == SL_DIM_WKV_VALUE || dim == SL_DIM_WKV_VALUE_BIAS ||
            dim == SL_DIM_TYPES || dim == SL_DIM_CLUSTERS || dim == SL_DIM_ATTN_NORM_RANK ||
            dim == SL_DIM_FFN_NORM_RANK || is_of_mla(dim) || is_of_rows(dim)) &&
           sl_layer_dim(hp, l, dim) == 0;
}

bool sl_weight_is_absent(const struct sl_hparams *hp, const struct sl_layer_desc *l,
                         const struct sl_weight_desc *w)
{
    return is_none(hp, l, w->rows) || is_none(hp, l, w->cols);
}

int64_t sl_layer_dim(const struct sl_hparams *hp, const struct sl_layer_desc *l, enum sl_dim dim)
{
    switch (dim) {
    case SL_DIM_H:
        return hp->hidden;
    case SL_DIM_ADAPTER:
        return hp->adapter_rank;
    case SL_DIM_I:
        return l->intermediate;
    case SL_DIM_E:
        return l->n_experts;
    case SL_DIM_ROUTED:
        return l->n_experts + l->n_pass;
    case SL_DIM_S:
        return l->shared_intermediate;
    case SL_DIM_EXPERT_H:
        return l->latent > 0 ? l->latent : hp->hidden;
    case SL_DIM_LATENT:
        return l->latent;
    case SL_DIM_ATTN_NORM_RANK:
        return l->attn_norm_rank;
    case SL_DIM_FFN_NORM_RANK:
        return l->ffn_norm_rank;
    case SL_DIM_V:
        return hp->n_vocab;
    case SL_DIM_Q:
        return (int64_t)l->n_heads * l->head_dim;
    case SL_DIM_K:
        return (int64_t)l->n_kv_heads * l->head_dim;
    case SL_DIM_VALUES:
        return (int64_t)l->n_kv_heads * l->v_dim;
    case SL_DIM_ATT:
        if (!sl_has_attention(l) || l->mixer == SL_MIX_BLOCK)
            return l->mixer == SL_MIX_CONV ? hp->hidden
                                           : (int64_t)l->state.n_heads * l->state.v_dim;
        return (int64_t)l->n_heads * (l->mixer == SL_MIX_MLA ? l->mla.v_dim : l->v_dim);
    case SL_DIM_HD:
        return l->head_dim;
    case SL_DIM_HEADS:
        return l->n_heads;
    case SL_DIM_KV_HEADS:
        return l->n_kv_heads;
    case SL_DIM_MODEL_KV_HEADS:
        return hp->n_kv_heads;
    case SL_DIM_ROPE:
        return (hp->ropes[0].n_dims != 0 ? hp->ropes[0].n_dims : hp->head_dim) / 2;
    case SL_DIM_FULL_HD_HALF:
        return (hp->full_head_dim != 0 ? hp->full_head_dim : hp->head_dim) / 2;
    case SL_DIM_W:
        return hp->layer_width;
    case SL_DIM_LAYERS_W:
        return (int64_t)hp->n_layers * hp->layer_width;
    case SL_DIM_STREAMS:
        return hp->n_streams;
    case SL_DIM_STREAMS_2:
        return (int64_t)hp->n_streams * hp->n_streams;
    case SL_DIM_MORE_STREAMS:
        return hp->n_streams - 1;
    case SL_DIM_LAUREL:
        return hp->laurel_rank;
    case SL_DIM_V_LAYERS:
        return hp->n_layer_vocab;
    case SL_DIM_CONV:
        return sl_conv_channels(l, hp->hidden);
    case SL_DIM_CONV_IN:
        return (l->mixer == SL_MIX_CONV ? 3 : 1) * sl_conv_channels(l, hp->hidden);
    case SL_DIM_TAPS:
        return l->state.n_taps;
    case SL_DIM_2H:
    case SL_DIM_MIX_IN:
    case SL_DIM_TARGET_H:
    case SL_DIM_TARGET_2H:
    case SL_DIM_CLUSTERS:
    case SL_DIM_TAP_COUNT:
    case SL_DIM_TAPS_H:
    case SL_DIM_DRAFT_V:
    case SL_DIM_CHAIN:
    case SL_DIM_CHAIN_IN:
    case SL_DIM_CHAIN_MIX:
    case SL_DIM_CHAIN_ODDS:
        return draft_dim(hp, l, dim);
    case SL_DIM_CONTEXT:
        return hp->context;
    case SL_DIM_TYPES:
        return hp->n_types;
    case SL_DIM_LABELS:
        return hp->n_labels;
    case SL_DIM_ONE:
    case SL_DIM_NONE:
        return 1;
    default:
        return is_of_mla(dim)    ? mla_dim(l, dim)
               : is_of_rows(dim) ? rows_dim(hp, l, dim)
                                 : state_dim(hp, l, dim);
    }
}

/* All layers of a table have heads of one size. */
int32_t sl_rope_dims(const struct sl_hparams *hp, const struct sl_layer_desc *layers, int32_t idx)
{
    if (hp->ropes[idx].n_dims != 0)
        return hp->ropes[idx].n_dims;
    for (int32_t i = 0; i < hp->n_layers; i++)
        if (layers[i].rope == idx)
            return layers[i].head_dim;
    return hp->head_dim; /* of a table that no layer has */
}

int64_t sl_layers_max(const struct sl_hparams *hp, const struct sl_layer_desc *layers,
                      enum sl_dim dim)
{
    int64_t most = 0;
    for (int32_t i = 0; i < hp->n_layers; i++) {
        int64_t n = sl_layer_dim(hp, &layers[i], dim);
        most = SL_MAX(most, n);
    }
    return most;
}
