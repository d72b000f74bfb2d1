/* SPDX-License-Identifier: MIT
 * Latent attention (MLA): of a token one row is kept for all heads, c (normed) and behind it the
 * part of the keys that is rotated. A head's keys would be K c and its values V c. Here K is
 * applied to the query, V to what attention gives: q . (K c) = (K' q) . c and sum p (V c) = V sum p
 * c. So attention has one key head, whose keys are whole rows and whose values are c, for prompts
 * as for single tokens: a token has the same bits however its text was cut into steps. Ranks have
 * some heads each, and all of what is kept of a token, or of some tokens where they divide those.
 */
#include "base/check.h"
#include "models/internal.h"
#include "models/tables.h"

#include <math.h>

/* ---------------------------------------------------------------- plan */

static double mixer_mla_mscale(double factor, double m)
{
    return factor <= 1 ? 1 : 0.1 * m * log(factor) + 1;
}

void sl_plan_mla(const struct sl_hparams *hp, struct sl_layer_desc *l)
{
    const struct sl_rope_params *rope = &hp->ropes[0];
    const double sharper = rope->scaling == SL_ROPE_YARN && rope->mscale_all_dim != 0
                               ? mixer_mla_mscale(rope->factor, rope->mscale_all_dim)
                               : 1;
    sl_plan_mixer(SL_MIX_MLA, l);
    l->mla = (struct sl_mla_desc){
        .q_rank = hp->q_rank,
        .rank = hp->kv_rank,
        .nope_dim = hp->nope_dim,
        .rope_dim = hp->rope_dims,
        .v_dim = hp->value_dim,
        .norm_eps = hp->mla_norm_eps != 0 ? (float)hp->mla_norm_eps : 1e-6f,
    };
    l->n_kv_heads = 1;
    l->head_dim = l->mla.rank + l->mla.rope_dim;
    l->v_dim = l->mla.rank;
    l->attn_scale = (float)(sharper * sharper / sqrt((double)(l->mla.nope_dim + l->mla.rope_dim)));
}

/* ---------------------------------------------------------------- load */

static int create_stack(struct sl_model *m, int32_t layer, enum sl_slot slot,
                        struct sl_weight *mats, struct sl_stack *out, struct sl_error *err)
{
    const struct sl_rows own = sl_rank_heads(m, layer, m->rank);
    const int32_t n = (int32_t)own.n;
    for (int32_t h = 0; h < n; h++)
        mats[h] = sl_param(m, layer, slot)[own.first + h].mat;
    return m->be->vt->stack_create(m->be, mats, n, out, err);
}

int sl_mla_create(struct sl_model *m, struct sl_error *err)
{
    int rc = 0;
    if (sl_layers_max(&m->hp, m->layers, SL_DIM_MLA_RANK) == 0 &&
        sl_layers_max(&m->hp, m->layers, SL_DIM_O_GROUPS) == 0)
        return 0;
    m->heads = sl_calloc((size_t)m->hp.n_layers, sizeof *m->heads);
    if (m->heads == NULL)
        return sl_fail(err, SL_ENOMEM, "out of memory for matrices of heads");
    for (int32_t l = sl_stage_first(m); l < sl_stage_end(m) && rc == 0; l++) {
        struct sl_head_stacks *s = &m->heads[l];
        const size_t n = (size_t)m->layers[l].n_heads;
        if (m->layers[l].mixer == SL_MIX_ROWS)
            rc = sl_rows_create(m, l, err);
        if (m->layers[l].mixer != SL_MIX_MLA)
            continue;
        s->mats = sl_calloc(2 * n, sizeof *s->mats);
        if (s->mats == NULL)
            return sl_fail(err, SL_ENOMEM, "out of memory for matrices of %zu heads", n);
        rc = create_stack(m, l, SL_SLOT_MLA_K_UP, s->mats, &s->k_up, err);
        if (rc == 0)
            rc = create_stack(m, l, SL_SLOT_MLA_V_UP, s->mats + n, &s->v_up, err);
    }
    return rc;
}

void sl_mla_destroy(struct sl_model *m)
{
    for (int32_t l = 0; m->heads != NULL && l < m->hp.n_layers; l++) {
        struct sl_head_stacks *s = &m->heads[l];
        struct sl_stack *stacks[] = {&s->k_up, &s->v_up};
        for (size_t k = 0; k < SL_COUNT(stacks); k++)
            if (stacks[k]->mats != NULL)
                m->be->vt->stack_destroy(m->be, stacks[k]);
        sl_free(s->mats);
    }
    sl_free(m->heads);
    m->heads = NULL;
}

/* ---------------------------------------------------------------- run */

static struct sl_linear_part mixer_mla_part(const struct sl_run *r, int32_t layer,
                                            enum sl_slot slot, float *out)
{
    const struct sl_weight *mat = sl_run_mat(r, layer, slot);
    return (struct sl_linear_part){mat, NULL, out, mat->n_rows};
}

/* r->latent_q_both, of the row that queries are made of: as it is normed, then as it was. */
static void mixer_mla_join(struct sl_run *r, int32_t q_rank, int32_t n)
{
    struct sl_backend *be = r->m->be;
    const size_t act = sl_dtype_info(be->vt->act_dtype)->block_bytes;
    struct sl_op_copy_rows copy = {.x = r->latent_q_norm,
                                   .ld_x = q_rank,
                                   .n = n,
                                   .h = q_rank,
                                   .x_act = true,
                                   .out_act = true,
                                   .out = r->latent_q_both,
                                   .ld_out = 2 * (int64_t)q_rank};
    be->vt->copy_rows(be, &copy);
    copy.x = r->latent_q;
    copy.x_act = false;
    copy.out = (uint8_t *)r->latent_q_both + (size_t)q_rank * act;
    be->vt->copy_rows(be, &copy);
}

const void *sl_mixer_mla_q_row(const struct sl_run *r, int32_t layer)
{
    return r->m->layers[layer].mla.both_q ? r->latent_q_both : r->latent_q_norm;
}

/* r->head_q, r->v (c) and r->k (what is rotated of the keys), of r->norm. */
static void mixer_mla_project(struct sl_run *r, int32_t layer, int32_t n)
{
    const struct sl_mla_desc *a = &r->m->layers[layer].mla;
    struct sl_backend *be = r->m->be;
    const bool down = a->q_rank > 0;
    struct sl_op_lora lora;
    be->vt->linear_multi(
        be, &(struct sl_op_linear_multi){
                .x = r->norm,
                .ld_x = r->m->hp.hidden,
                .n = n,
                .n_parts = a->rope_dim > 0 ? 3 : 2,
                .part = {down ? mixer_mla_part(r, layer, SL_SLOT_MLA_Q_DOWN, r->latent_q)
                              : mixer_mla_part(r, layer, SL_SLOT_Q, r->head_q),
                         mixer_mla_part(r, layer, SL_SLOT_MLA_C, r->v),
                         mixer_mla_part(r, layer, SL_SLOT_MLA_K_ROPE, r->k)},
                .lora = down ? NULL : sl_run_lora(r, layer, SL_LORA_Q, &lora),
            });
    if (!down)
        return;
    be->vt->rmsnorm(be, &(struct sl_op_rmsnorm){.x = r->latent_q,
                                                .w = sl_run_vec(r, layer, SL_SLOT_MLA_Q_NORM),
                                                .eps = a->norm_eps,
                                                .n = n,
                                                .h = a->q_rank,
                                                .out = r->latent_q_norm});
    if (a->both_q)
        mixer_mla_join(r, a->q_rank, n);
    const struct sl_weight *q = sl_run_mat(r, layer, SL_SLOT_Q);
    be->vt->linear(be, &(struct sl_op_linear){.x = sl_mixer_mla_q_row(r, layer),
                                              .ld_x = q->n_cols,
                                              .w = q,
                                              .n = n,
                                              .out = r->head_q,
                                              .ld_out = q->n_rows,
                                              .lora = sl_run_lora(r, layer, SL_LORA_Q, &lora)});
}

/* Floats as activations, where these are something else. */
static void to_activations(struct sl_run *r, const float *x, int32_t n, int64_t width, void *out)
{
    if (x != out)
        r->m->be->vt->rmsnorm(
            r->m->be, &(struct sl_op_rmsnorm){.x = x, .n = n, .h = (int32_t)width, .out = out});
}

/* q, of r->head_q: queries in the space of what is kept; and this step's rows to the pages. */
static void mixer_mla_lift(struct sl_run *r, int32_t layer, const struct sl_batch *batch, float *q)
{
    const struct sl_model *m = r->m;
    const struct sl_layer_desc *l = &m->layers[layer];
    const int32_t width = l->mla.nope_dim + l->mla.rope_dim;
    const int32_t n_heads = l->n_heads / m->row_ranks;
    const int64_t ld = (int64_t)n_heads * width;
    const bool rotates = l->rope >= 0;
    to_activations(r, r->head_q, batch->n_tokens, ld, r->head_q_act);
    m->be->vt->heads_linear(m->be, &(struct sl_op_heads_linear){
                                       .x = r->head_q_act,
                                       .ld_x = ld,
                                       .step_x = width,
                                       .w = &m->heads[layer].k_up,
                                       .n = batch->n_tokens,
                                       .out = q,
                                       .ld_out = (int64_t)n_heads * l->head_dim,
                                       .step_out = l->head_dim,
                                   });
    m->be->vt->latent_store(m->be, &(struct sl_op_latent_store){
                                       .batch = batch,
                                       .c = r->v,
                                       .k_rope = r->k,
                                       .norm = sl_run_vec(r, layer, SL_SLOT_MLA_C_NORM),
                                       .eps = l->mla.norm_eps,
                                       .q_rope = r->head_q + l->mla.nope_dim,
                                       .ld_q_rope = ld,
                                       .step_q_rope = width,
                                       .q = q,
                                       .n_heads = n_heads,
                                       .rank = l->mla.rank,
                                       .rope_dim = l->mla.rope_dim,
                                       .rope = rotates ? &m->ropes[l->rope] : NULL,
                                       .angles = rotates ? r->angles[l->rope] : NULL,
                                       .temperature = l->temperature,
                                       .by_row = l->index.top_k > 0,
                                       .kv = sl_kv_view(&r->cfg.kv, r->cfg.kv_pool, layer),
                                   });
}

void sl_mixer_mla_attend(struct sl_run *r, int32_t layer, const struct sl_batch *batch)
{
    const struct sl_model *m = r->m;
    const struct sl_layer_desc *l = &m->layers[layer];
    const int32_t n_heads = l->n_heads / m->row_ranks;
    const int64_t ld_out = (int64_t)n_heads * l->v_dim, n_att = (int64_t)n_heads * l->mla.v_dim;
    SL_ASSERT(m->n_ranks == 1 || l->index.top_k == 0); /* sl_model_set_rank */
    float *q = sl_run_own_queries(r);
    mixer_mla_project(r, layer, batch->n_tokens);
    mixer_mla_lift(r, layer, batch, q);
    struct sl_op_attention all = {
        .batch = batch,
        .q = q,
        .ld_q = (int64_t)n_heads * l->head_dim,
        .n_heads = n_heads,
        .n_kv_heads = 1,
        .head_dim = l->head_dim,
        .v_dim = l->v_dim,
        .v_in_k = true,
        .scale = l->attn_scale,
        .sinks = sl_run_vec(r, layer, SL_SLOT_SINKS),
        .skip_factor = r->cfg.skip_softmax,
        .skip_counts = r->cfg.skip_counts,
        .kv = sl_kv_view(&r->cfg.kv, r->cfg.kv_pool, layer),
        .out = r->latent_att,
        .ld_out = ld_out,
    };
    sl_run_share_queries(r, &all);
    if (l->index.top_k > 0) {
        sl_index_choose(r, layer, batch);
        sl_index_attend(r, layer, &all);
    } else {
        m->be->vt->attention(m->be, &all);
    }
    void *att = sl_run_part(r, r->att);
    float *values = m->be->vt->act_dtype == SL_DTYPE_F32 ? att : r->head_v;
    m->be->vt->heads_linear(m->be, &(struct sl_op_heads_linear){
                                       .x = r->latent_att,
                                       .ld_x = ld_out,
                                       .step_x = l->v_dim,
                                       .w = &m->heads[layer].v_up,
                                       .n = batch->n_tokens,
                                       .out = values,
                                       .ld_out = n_att,
                                       .step_out = l->mla.v_dim,
                                   });
    to_activations(r, values, batch->n_tokens, n_att, att);
    if ((l->has & SL_HAS_OUT_GATE) != 0)
        sl_mixer_gate_heads(r, layer, n_heads, batch->n_tokens, att);
    sl_run_gather(r, att, n_att, sl_dtype_info(m->be->vt->act_dtype)->block_bytes, batch->n_tokens,
                  r->att);
}
