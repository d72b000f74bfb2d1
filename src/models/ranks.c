/* SPDX-License-Identifier: MIT
 * Tensor parallelism: a model divided among ranks by the rows of its matrices.
 *
 * A row of a matrix gives one column of what it makes, and one rank computes it whole, so that
 * every value has the bits it has on one device. What a product needs whole is gathered before it:
 * the heads of attention, what goes into the residual stream, the middle of an MLP, the logits.
 * Norms, the embedding and routers are on every rank, and so is the residual stream. Columns are
 * divided on devices alone, for few tokens, beside rows (columns.c).
 *
 * Ranks that follow one another may have the same key heads, and of their pages some positions each
 * (decode context parallelism): attention then has the query heads of all of them, gathered before
 * it, on the positions of each (struct sl_op_attention).
 *
 * Experts are divided by rows, too, or each rank has some of them (expert parallelism): it adds up
 * what its own give, and the sums of all ranks are added in the order of one (SL_EXPERT_LEAVES). Or
 * they are placed by their load (places.c). Where experts alone are divided every rank has all rows
 * of the rest and all key heads, as one that is alone (row_ranks is 1), and what ranks exchange is
 * what experts give.
 */
#include "base/check.h"
#include "models/internal.h"
#include "ops/device.h"
#include "quant/int4_repack.h"

/* Rows are cut at multiples of this, which no packed layout divides; of many, of this, which no
 * block of scales does. */
#define CUT_ROWS      16
#define CUT_MANY_ROWS 128

#define BEST_ALIGN 16 /* of what lies behind a part of logits */

static int64_t first_row(enum sl_shard shard, int64_t n_rows, int32_t rank, int32_t n_ranks)
{
    const int64_t row = n_rows * rank / n_ranks; /* of heads: whole ones, as they divide evenly */
    const int64_t cut = n_rows / n_ranks < 8 * CUT_MANY_ROWS ? CUT_ROWS : CUT_MANY_ROWS;
    return shard == SL_SHARD_ROWS && rank < n_ranks ? row / cut * cut : row;
}

struct sl_rows sl_rank_rows(const struct sl_model *m, enum sl_shard shard, int64_t n_rows,
                            int32_t rank)
{
    int32_t n_ranks = m->row_ranks;
    if (shard == SL_SHARD_NONE || n_ranks == 1)
        return (struct sl_rows){0, n_rows};
    if (shard == SL_SHARD_KV_HEADS) { /* those that divide positions have the same */
        rank /= m->kv_ranks;
        n_ranks /= m->kv_ranks;
    }
    const int64_t first = first_row(shard, n_rows, rank, n_ranks);
    return (struct sl_rows){first, first_row(shard, n_rows, rank + 1, n_ranks) - first};
}

struct sl_rows sl_rank_heads(const struct sl_model *m, int32_t layer, int32_t rank)
{
    const int64_t n = m->layers[layer].n_heads / m->row_ranks;
    return (struct sl_rows){m->row_ranks > 1 ? n * rank : 0, n};
}

struct sl_rows sl_rank_experts(const struct sl_model *m, int32_t layer, int32_t rank)
{
    const int64_t n = m->layers[layer].n_experts;
    if (!sl_sums_experts(m))
        return (struct sl_rows){0, n};
    const int64_t first = n * rank / m->n_ranks; /* where leaves begin (SL_EXPERT_LEAF) */
    return (struct sl_rows){first, n * (rank + 1) / m->n_ranks - first};
}

bool sl_rank_has_expert(const struct sl_model *m, int32_t layer, int32_t expert, int32_t rank)
{
    const struct sl_rows own = sl_rank_experts(m, layer, rank);
    return m->places != NULL ? sl_places_have(m, layer, expert, rank)
                             : expert >= own.first && expert < own.first + own.n;
}

/* Whether a tensor is of one expert, or of each. */
static bool is_expert_mat(enum sl_slot slot)
{
    return slot == SL_SLOT_EXPERTS_GATE || slot == SL_SLOT_EXPERTS_UP ||
           slot == SL_SLOT_EXPERTS_DOWN;
}

static bool is_expert_bias(enum sl_slot slot)
{
    return slot == SL_SLOT_EXPERTS_GATE_BIAS || slot == SL_SLOT_EXPERTS_UP_BIAS ||
           slot == SL_SLOT_EXPERTS_DOWN_BIAS;
}

bool sl_rank_has(const struct sl_model *m, const struct sl_param *p, int32_t rank)
{
    const enum sl_slot slot = p->desc->slot;
    const bool of_head = slot == SL_SLOT_MLA_K_UP || slot == SL_SLOT_MLA_V_UP;
    const int32_t layer = (int32_t)(p->layer - m->layers);
    if (!is_expert_mat(slot) && !of_head)
        return true;
    if (!of_head)
        return sl_rank_has_expert(m, layer, p->stack_idx, rank);
    const struct sl_rows own = sl_rank_heads(m, layer, rank);
    return p->stack_idx >= own.first && p->stack_idx < own.first + own.n;
}

struct sl_rows sl_rank_param_rows(const struct sl_model *m, const struct sl_param *p, int32_t rank)
{
    const enum sl_slot slot = p->desc->slot;
    if (sl_sums_experts(m) && (is_expert_mat(slot) || is_expert_bias(slot)))
        return (struct sl_rows){0, p->n_rows}; /* biases are small: every rank has those of all */
    return sl_rank_rows(m, p->desc->shard, p->n_rows, rank);
}

struct sl_ckpt_tensor sl_rank_part(const struct sl_ckpt_tensor *t, struct sl_rows rows)
{
    struct sl_ckpt_tensor part = *t;
    const uint64_t row_bytes = t->n_bytes / (uint64_t)t->dims[0]; /* rows are whole blocks */
    SL_ASSERT(rows.first >= 0 && rows.n > 0 && rows.first + rows.n <= t->dims[0]);
    part.dims[0] = rows.n;
    part.n_bytes = (uint64_t)rows.n * row_bytes;
    if (t->data != NULL)
        part.data = t->data + (size_t)rows.first * (size_t)row_bytes;
    return part;
}

/* ---------------------------------------------------------------- what cannot be divided */

static int ranks_check_layer(const struct sl_model *m, int32_t layer, struct sl_error *err)
{
    const struct sl_layer_desc *l = &m->layers[layer];
    if (l->index.top_k > 0 || l->mixer == SL_MIX_ROWS)
        return sl_fail(err, SL_EUNSUPPORTED,
                       "tensor_parallel_size: sparse attention of %s cannot be divided among ranks "
                       "yet",
                       m->name->id);
    if ((l->mixer == SL_MIX_MLA || m->kv_ranks > 1) && l->n_heads % m->row_ranks != 0)
        return sl_fail(err, SL_EINVAL,
                       "tensor_parallel_size: %d does not divide the %d heads of layer %d",
                       m->n_ranks, l->n_heads, layer);
    if (m->kv_ranks > 1 && l->mixer != SL_MIX_MLA && l->n_kv_heads % sl_rank_groups(m) != 0)
        return sl_fail(err, SL_EINVAL,
                       "decode_context_parallel_size: the %d key heads of layer %d cannot be "
                       "divided among %d groups of %d ranks",
                       l->n_kv_heads, layer, sl_rank_groups(m), m->kv_ranks);
    if (l->mixer != SL_MIX_MLA && m->kv_ranks == 1 &&
        (l->n_heads % m->row_ranks != 0 || l->n_kv_heads % m->row_ranks != 0))
        return sl_fail(err, SL_EINVAL,
                       "tensor_parallel_size: %d does not divide the %d heads and %d key heads of "
                       "layer %d",
                       m->n_ranks, l->n_heads, l->n_kv_heads, layer);
    if (sl_has_state(l)) /* each rank would have all of a state, in pages for a share of it */
        return sl_fail(err, SL_EUNSUPPORTED,
                       "tensor_parallel_size: the recurrent state of %s cannot be divided among "
                       "ranks yet",
                       m->name->id);
    if ((l->has & SL_HAS_BRANCHES) != 0)
        return sl_fail(err, SL_EUNSUPPORTED,
                       "tensor_parallel_size: experts of %s are normed as a whole row, which ranks "
                       "cannot do yet",
                       m->name->id);
    if (l->late_experts)
        return sl_fail(err, SL_EUNSUPPORTED,
                       "tensor_parallel_size: experts of %s are added behind the next layer, which "
                       "ranks cannot do yet",
                       m->name->id);
    if (l->qk_norm == SL_QK_NORM_ROWS && m->row_ranks > 1)
        return sl_fail(err, SL_EUNSUPPORTED,
                       "tensor_parallel_size: q and k of %s are normed over all heads, which ranks "
                       "cannot do yet",
                       m->name->id);
    return 0;
}

/* What a step gathers. */
static bool must_divide(enum sl_slot slot)
{
    static const enum sl_slot slots[] = {
        SL_SLOT_Q,           SL_SLOT_K,          SL_SLOT_V,
        SL_SLOT_O,           SL_SLOT_OUT_GATE,   SL_SLOT_GATE,
        SL_SLOT_UP,          SL_SLOT_DOWN,       SL_SLOT_EXPERTS_GATE,
        SL_SLOT_HEAD,        SL_SLOT_EXPERTS_UP, SL_SLOT_EXPERTS_DOWN,
        SL_SLOT_SHARED_GATE, SL_SLOT_SHARED_UP,  SL_SLOT_SHARED_DOWN};
    for (size_t i = 0; i < SL_COUNT(slots); i++)
        if (slots[i] == slot)
            return true;
    return false;
}

static int check_param(const struct sl_model *m, const struct sl_param *p, struct sl_error *err)
{
    if (p->src == NULL)
        return 0;
    SL_ASSERT(!sl_slot_is_rows(p->desc->slot) || p->desc->shard == SL_SHARD_NONE);
    if (m->row_ranks == 1) /* experts stay whole, too */
        return 0;
    if (must_divide(p->desc->slot) && p->desc->shard == SL_SHARD_NONE)
        return sl_fail(err, SL_EUNSUPPORTED,
                       "tensor_parallel_size: models of %s cannot be divided among ranks",
                       m->name->id);
    for (int32_t i = 0; i < m->n_ranks; i++) {
        const struct sl_rows rows = sl_rank_param_rows(m, p, i);
        if (rows.n == 0 || (p->int4 != NULL && rows.first % SL_INT4_WORD != 0))
            return sl_fail(err, SL_EUNSUPPORTED,
                           "tensor_parallel_size: the %lld rows of tensor \"%s\" cannot be divided "
                           "among %d ranks",
                           (long long)p->n_rows, p->src->name, m->n_ranks);
    }
    return 0;
}

void sl_model_divide_experts(struct sl_model *m)
{
    SL_ASSERT(m->be == NULL);
    m->own_experts = true;
}

void sl_model_divide_only_experts(struct sl_model *m)
{
    SL_ASSERT(m->be == NULL && m->own_experts);
    m->only_experts = true;
}

void sl_model_divide_positions(struct sl_model *m, int32_t n_ranks)
{
    SL_ASSERT(m->be == NULL && n_ranks >= 1 && n_ranks <= SL_MAX_RANKS);
    m->kv_ranks = m->facts.kv_ranks = n_ranks;
}

/* Ranks that have whole leaves of experts each. */
static int check_experts(const struct sl_model *m, struct sl_error *err)
{
    bool some = false;
    if (SL_EXPERT_LEAVES % m->n_ranks != 0)
        return sl_fail(err, SL_EINVAL,
                       "enable_expert_parallel: experts are divided among 2, 4 or 8 ranks, not %d",
                       m->n_ranks);
    for (int32_t l = 0; l < m->hp.n_layers; l++) {
        const struct sl_layer_desc *d = &m->layers[l];
        if (d->ffn != SL_FFN_EXPERTS)
            continue;
        some = true;
        if (d->n_experts < m->n_ranks)
            return sl_fail(err, SL_EINVAL,
                           "enable_expert_parallel: layer %d has %d experts for %d ranks", l,
                           d->n_experts, m->n_ranks);
    }
    return some ? 0
                : sl_fail(err, SL_EINVAL, "enable_expert_parallel: models of %s have no experts",
                          m->name->id);
}

int sl_model_set_rank(struct sl_model *m, int32_t rank, int32_t n_ranks, struct sl_error *err)
{
    int rc = 0;
    SL_ASSERT(m->be == NULL && rank >= 0 && rank < n_ranks && n_ranks <= SL_MAX_RANKS);
    m->rank = m->facts.rank = rank;
    m->n_ranks = m->facts.n_ranks = n_ranks;
    m->row_ranks = m->only_experts ? 1 : n_ranks;
    m->facts.only_experts = m->only_experts && n_ranks > 1;
    if (n_ranks % m->kv_ranks != 0)
        return sl_fail(err, SL_EINVAL,
                       "decode_context_parallel_size: %d does not divide the %d ranks "
                       "(tensor_parallel_size)",
                       m->kv_ranks, n_ranks);
    if (n_ranks == 1)
        return 0;
    if (m->facts.task != SL_TASK_GENERATE)
        return sl_fail(err, SL_EUNSUPPORTED,
                       "tensor_parallel_size: models of embeddings and scores cannot be divided "
                       "among ranks yet");
    if (m->hp.n_vocab < CUT_ROWS * m->row_ranks)
        return sl_fail(err, SL_EUNSUPPORTED,
                       "tensor_parallel_size: a vocabulary of %d cannot be divided among %d ranks",
                       m->hp.n_vocab, n_ranks);
    if (m->own_experts)
        rc = check_experts(m, err);
    if (rc == 0 && m->balanced)
        rc = sl_places_create(m, err);
    for (int32_t l = 0; l < m->hp.n_layers && rc == 0; l++)
        rc = ranks_check_layer(m, l, err);
    for (size_t i = 0; i < m->n_params && rc == 0; i++)
        rc = check_param(m, &m->params[i], err);
    return rc;
}

/* ---------------------------------------------------------------- in a step */

/* Columns of its part, of what is `width` wide. */
static size_t most_columns(const struct sl_model *m, int64_t width)
{
    return (size_t)(width / m->row_ranks + CUT_MANY_ROWS);
}

/* Heads and the middles of MLPs are activations; the rest is floats. */
size_t sl_rank_room_bytes(const struct sl_model *m, const struct sl_backend *be, int32_t max_tokens,
                          int32_t max_logits)
{
    static const enum sl_dim dims[] = {SL_DIM_I, SL_DIM_S, SL_DIM_ATT};
    const size_t act = sl_dtype_info(be->vt->act_dtype)->block_bytes;
    size_t of_row = sl_sums_experts(m) ? (size_t)m->hp.hidden * sizeof(float)
                                       : most_columns(m, m->hp.hidden) * sizeof(float);
    if (m->n_ranks == 1)
        return 0;
    if (m->row_ranks == 1)
        return SL_MAX((size_t)max_tokens * of_row, sl_places_room_bytes(m, max_tokens));
    for (size_t i = 0; i < SL_COUNT(dims); i++) {
        const size_t n = act * most_columns(m, sl_layers_max(&m->hp, m->layers, dims[i]));
        of_row = SL_MAX(of_row, n);
    }
    if (m->kv_ranks > 1) {
        const int64_t q = sl_layers_max(&m->hp, m->layers, SL_DIM_Q);
        of_row = SL_MAX(of_row, (size_t)(q / m->n_ranks) * sizeof(float));
    }
    const size_t of_layer = (size_t)max_tokens * of_row;
    size_t of_experts = 0;
    for (int32_t l = 0; l < m->hp.n_layers; l++) {
        const struct sl_layer_desc *d = &m->layers[l];
        if (d->n_experts == 0 || sl_sums_experts(m))
            continue;
        const int32_t n_pairs =
            be->vt->device != NULL
                ? SL_MIN(max_tokens, SL_DEVICE_EXPERT_ROWS) * d->top_experts
                : sl_expert_room_pairs(max_tokens, d->top_experts, d->intermediate);
        const size_t room = (size_t)n_pairs * most_columns(m, d->intermediate) * act;
        of_experts = SL_MAX(of_experts, room);
    }
    const size_t of_logits =
        (size_t)max_logits * (most_columns(m, m->hp.n_vocab) * sizeof(float) + SL_BEST_ROOM) +
        BEST_ALIGN;
    const size_t of_sums =
        SL_MAX(sl_columns_room_bytes(m, be, max_tokens), sl_places_room_bytes(m, max_tokens));
    const size_t of_splits = m->kv_ranks > 1 ? SL_KV_RANK_ROOM : 0;
    return SL_MAX(SL_MAX(SL_MAX(of_layer, of_splits), of_experts), SL_MAX(of_logits, of_sums));
}

float *sl_run_own_queries(struct sl_run *r)
{
    return r->m->kv_ranks > 1 ? sl_rank_room(&r->rank) : r->q;
}

void sl_run_share_queries(struct sl_run *r, struct sl_op_attention *a)
{
    const struct sl_model *m = r->m;
    const int32_t n_own = a->n_heads, group = m->rank / m->kv_ranks;
    if (m->kv_ranks == 1)
        return;
    SL_ASSERT(a->q != r->q && a->ld_q == (int64_t)n_own * a->head_dim && sl_kv_divided(&a->kv));
    sl_run_gather(r, a->q, a->ld_q, sizeof(float), a->batch->n_tokens, r->q);
    a->n_heads = n_own * m->kv_ranks;
    a->q = r->q + (int64_t)group * a->n_heads * a->head_dim;
    a->ld_q *= m->n_ranks;
    a->rank = &r->rank;
    a->others = r->kv_others;
}

void sl_run_keep_parts(struct sl_run *r, bool keep)
{
    SL_ASSERT(!keep || (r->m->n_ranks > 1 && r->m->be->vt->device != NULL));
    r->parts = keep;
}

void sl_run_best(struct sl_run *r, int32_t n, struct sl_best_ids *out)
{
    /* as the matrix is divided, be it a tied one */
    const struct sl_rows rows = sl_rank_rows(r->m, SL_SHARD_ROWS, r->m->hp.n_vocab, r->m->rank);
    float *part = r->part;
    SL_ASSERT(r->parts && part != NULL);
    SL_ASSERT(rows.n == sl_param(r->m, 0, SL_SLOT_HEAD)->mat.n_rows);
    const size_t n_bytes = (size_t)n * (size_t)rows.n * sizeof *part;
    *out = (struct sl_best_ids){
        .rank = &r->rank,
        .logits = part,
        .n = n,
        .n_cols = (int32_t)rows.n,
        .first = (int32_t)rows.first,
        .room = (uint8_t *)part + SL_ROUND_UP(n_bytes, (size_t)BEST_ALIGN), /* behind the part */
    };
}

/* A recorded step has the addresses of its rooms in it, so that on a device every step begins with
 * the same one. */
void sl_rank_begin(struct sl_run *r)
{
    r->rank.lost = false;
    if (r->m->be->vt->device != NULL)
        r->rank.turn = 0;
}

/* The first room of the next step is free when a gather behind the last one that used it has ended.
 * Behind logits that is the choice, for which all wait. A step without them ends with a gather that
 * is too small to be read in its room. */
void sl_rank_end(struct sl_run *r, int32_t n_logits)
{
    const int32_t n_bytes = 16;
    if (r->m->n_ranks == 1 || r->m->be->vt->device == NULL || n_logits > 0)
        return;
    SL_ASSERT(r->m->hp.hidden * (int32_t)sizeof(float) >= n_bytes * r->m->n_ranks);
    sl_run_gather(r, sl_rank_room(&r->rank), n_bytes, 1, 1, r->y);
}

void *sl_run_part(struct sl_run *r, void *whole)
{
    return r->m->row_ranks > 1 ? sl_rank_room(&r->rank) : whole;
}

static void exchange(struct sl_run *r, const void *part, int64_t n_cols, size_t elem_bytes,
                     int32_t n, void *whole, bool first_only, bool even, bool open)
{
    SL_ASSERT(r->m->n_ranks > 1 && (whole == NULL) == (first_only && r->rank.idx > 0));
    r->m->be->vt->all_gather(r->m->be,
                             &(struct sl_op_all_gather){.rank = &r->rank,
                                                        .part = part,
                                                        .part_bytes = (size_t)n_cols * elem_bytes,
                                                        .n = n,
                                                        .out = whole,
                                                        .first_only = first_only,
                                                        .even = even,
                                                        .open = open});
}

/* Of what is divided by rows; else sl_run_part said to put it there. */
static void gather(struct sl_run *r, const void *part, int64_t n_cols, size_t elem_bytes, int32_t n,
                   void *whole, bool first_only, bool even, bool open)
{
    if (r->m->row_ranks > 1)
        exchange(r, part, n_cols, elem_bytes, n, whole, first_only, even, open);
}

void sl_run_exchange(struct sl_run *r, const void *part, int64_t n_cols, size_t elem_bytes,
                     int32_t n, void *whole)
{
    exchange(r, part, n_cols, elem_bytes, n, whole, false, false, false);
}

void sl_run_gather(struct sl_run *r, const void *part, int64_t n_cols, size_t elem_bytes, int32_t n,
                   void *whole)
{
    gather(r, part, n_cols, elem_bytes, n, whole, false, false, false);
}

void sl_run_gather_first(struct sl_run *r, const void *part, int64_t n_cols, size_t elem_bytes,
                         int32_t n, void *whole)
{
    gather(r, part, n_cols, elem_bytes, n, r->rank.idx == 0 ? whole : NULL, true, false, false);
}

/* Every rank has as many. */
static bool is_even(const struct sl_run *r, int64_t n_cols, int64_t of_cols)
{
    const int32_t n_ranks = r->m->n_ranks;
    bool even = n_cols * n_ranks == of_cols;
    for (int32_t i = 0; i < n_ranks && even; i++)
        even = first_row(SL_SHARD_ROWS, of_cols, i, n_ranks) == i * n_cols;
    return even;
}

void sl_run_gather_stream(struct sl_run *r, const float *part, int64_t n_cols, int32_t n,
                          float *whole)
{
    const bool alike = is_even(r, n_cols, r->m->hp.hidden);
    gather(r, part, n_cols, sizeof *part, n, whole, false, alike && n_cols % 4 == 0, alike);
}

void sl_run_gather_open(struct sl_run *r, const void *part, int64_t n_cols, int64_t of_cols,
                        size_t elem_bytes, int32_t n, void *whole)
{
    SL_ASSERT((uint8_t *)whole >= r->mem && (uint8_t *)whole < r->mem + r->mem_bytes);
    gather(r, part, n_cols, elem_bytes, n, whole, false, false, is_even(r, n_cols, of_cols));
}

const struct sl_spread *sl_run_spread(const struct sl_run *r, void *whole, int64_t n_cols,
                                      int64_t of_cols, size_t elem_bytes, struct sl_spread *room)
{
    const int32_t rank = r->m->rank;
    uint8_t *at = (uint8_t *)whole + (size_t)(rank * n_cols) * elem_bytes;
    if (r->m->row_ranks == 1 || r->rank.mem[rank] == NULL || !is_even(r, n_cols, of_cols) ||
        r->lora_rows != NULL) /* what adapters add comes behind the product */
        return NULL;
    SL_ASSERT((uint8_t *)whole >= r->mem && at < r->mem + r->mem_bytes);
    *room = (struct sl_spread){&r->rank, at, of_cols};
    return room;
}

void sl_run_meet(struct sl_run *const *runs, int32_t n)
{
    for (int32_t i = 0; i < n; i++) {
        SL_ASSERT(runs[i]->m->rank == i && runs[i]->m->n_ranks == n);
        SL_ASSERT(runs[i]->y - (float *)(void *)runs[i]->mem ==
                  runs[0]->y - (float *)(void *)runs[0]->mem);
        for (int32_t k = 0; k < n; k++)
            runs[i]->rank.mem[k] = runs[k]->mem;
    }
}
