/* SPDX-License-Identifier: MIT
 * One forward step: embedding, the layers, the head. All buffers are cut from one block made at
 * creation, so a step allocates nothing.
 *
 * What stands between two sublayers (attention, MLP) is one operation: the output of the first is
 * added to the residual stream, before or after its own norm, and becomes the normed input of the
 * second. Which norms there are is the layers' (enum sl_norm_place), so that decoders and encoders
 * are the same walk. In the last layer, once attention has read all tokens of the step, only the
 * rows whose logits are wanted go on: during a prefill that leaves out the last output projection,
 * MLP, norm and head of every other token, and a chunk without wanted logits stops there. A row's
 * bits do not depend on which rows go with it.
 */
#include "base/check.h"
#include "models/internal.h"

#include <string.h>

static int check_taps(const struct sl_model *m, const struct sl_run_config *cfg,
                      struct sl_error *err)
{
    if (cfg->n_taps == 0)
        return 0;
    SL_ASSERT(cfg->n_taps <= SL_MAX_TAPS && m->facts.task == SL_TASK_GENERATE);
    for (int32_t i = 0; i < cfg->n_taps; i++)
        SL_ASSERT(cfg->taps[i] == SL_TAP_NORMED || cfg->taps[i] == SL_TAP_STREAMS ||
                  (cfg->taps[i] >= 0 && cfg->taps[i] <= m->hp.n_layers));
    if (m->hp.n_hyper > 0 && cfg->n_taps == 1 && cfg->taps[0] == SL_TAP_STREAMS)
        return 0;
    if (m->hp.n_streams > 0 || m->hp.n_hyper > 0)
        return sl_fail(err, SL_EUNSUPPORTED,
                       "a model of several residual streams has no hidden rows that a "
                       "drafter could read");
    return 0;
}

/* States of a chain before its first draft. */
static int put_zeros(struct sl_run *r, struct sl_error *err)
{
    const size_t n = (size_t)r->m->hp.draft.chain_rank;
    if (n == 0)
        return 0;
    float *zeros = sl_calloc(n, sizeof *zeros);
    if (zeros == NULL)
        return sl_fail(err, SL_ENOMEM, "out of memory for a run");
    r->m->be->vt->upload(r->m->be, r->chain_zero, zeros, n * sizeof *zeros);
    sl_free(zeros);
    return 0;
}

int sl_run_create(const struct sl_model *m, const struct sl_run_config *cfg, struct sl_run **out,
                  struct sl_error *err)
{
    *out = NULL;
    SL_ASSERT(m->be != NULL);
    SL_ASSERT(cfg->kv.n_groups > 0 && cfg->kv.block_size % SL_KV_TILE == 0);
    SL_ASSERT(m->n_ranks == 1 || (cfg->comm != NULL && m->be->vt->all_gather != NULL));
    if (cfg->max_tokens < 1 || cfg->max_tokens > SL_MAX_STEP_TOKENS)
        return sl_fail(err, SL_EINVAL, "max-num-batched-tokens is %d, must be 1 to %d",
                       cfg->max_tokens, SL_MAX_STEP_TOKENS);
    if (cfg->max_logits < 1 || cfg->max_logits > SL_MAX_STEP_TOKENS)
        return sl_fail(err, SL_EINVAL, "rows of logits of a step are %d, must be 1 to %d",
                       cfg->max_logits, SL_MAX_STEP_TOKENS);
    int rc = check_taps(m, cfg, err);
    if (rc != 0)
        return rc;
    struct sl_run *r = sl_calloc(1, sizeof *r);
    if (r == NULL)
        return sl_fail(err, SL_ENOMEM, "out of memory for a run");
    r->m = m;
    r->cfg = *cfg;
    sl_kv_layout_part(&r->cfg.kv, m->n_ranks); /* heads divide evenly: sl_model_set_rank */
    r->cfg.kv.n_ranks = m->kv_ranks;
    r->cfg.kv.rank = m->rank % m->kv_ranks;
    if (m->n_stages > 1)
        sl_kv_layout_stage(&r->cfg.kv, sl_stage_first(m), sl_stage_end(m));
    r->rank = (struct sl_rank){.comm = cfg->comm, .idx = m->rank};
    r->mem_bytes = (size_t)sl_run_bytes(m, m->be, cfg);
    r->mem = m->be->vt->alloc(m->be, r->mem_bytes);
    if (r->mem == NULL) {
        rc = sl_fail(err, SL_ENOMEM,
                     "out of memory for activations: %zu bytes for steps of %d tokens",
                     r->mem_bytes, cfg->max_tokens);
        sl_free(r);
        return rc;
    }
    sl_run_cut(r, cfg);
    for (int i = 0; i < 2 && cfg->rank_room[i] != NULL; i++)
        r->rank.room[i] = cfg->rank_room[i];
    r->pooled = r->logits;
    rc = sl_places_counts(m, &r->expert_counts, err);
    if (rc == 0)
        rc = put_zeros(r, err);
    if (rc == 0)
        rc = sl_host_create(r, err);
    if (rc != 0) {
        sl_run_destroy(r);
        return rc;
    }
    *out = r;
    return 0;
}

const void *sl_run_activations(const struct sl_run *r, const float *x, int32_t n, int32_t h,
                               void *out)
{
    struct sl_backend *be = r->m->be;
    if (be->vt->act_dtype == SL_DTYPE_F32)
        return x;
    be->vt->copy_rows(
        be, &(struct sl_op_copy_rows){
                .x = x, .ld_x = h, .n = n, .h = h, .out_act = true, .out = out, .ld_out = h});
    return out;
}

void sl_run_destroy(struct sl_run *r)
{
    if (r == NULL)
        return;
    sl_host_destroy(r);
    sl_free(r->expert_counts);
    r->m->be->vt->free(r->m->be, r->mem, r->mem_bytes);
    sl_free(r);
}

#ifdef SL_DEBUG
/* Every block that a row of the span sees has a page in each group. */
static void check_tables(const struct sl_run *r, const struct sl_batch *b, const struct sl_span *s)
{
    const struct sl_kv_layout *l = &r->cfg.kv;
    for (int32_t g = 0; g < l->n_groups; g++) {
        const int32_t window = l->groups[g].window;
        int32_t first = window > 0 ? SL_MAX(s->pos - window + 1, 0) / l->block_size : 0;
        if (l->groups[g].state) {
            const int32_t *table = sl_batch_tables(b, g) + s->table_idx;
            SL_DCHECK(s->pos == 0 || table[(s->pos - 1) / l->block_size] >= 0);
            SL_DCHECK(table[(s->pos + s->n - s->n_drafts - 1) / l->block_size] >= 0);
            for (int32_t i = 0; i < s->n_drafts; i++)
                SL_DCHECK(table[SL_CEIL_DIV(s->pos + s->n, l->block_size) + i] >= 0);
            continue;
        }
        for (int32_t p = first; p * l->block_size < s->pos + s->n; p++)
            SL_DCHECK(sl_batch_tables(b, g)[s->table_idx + p] >= 0);
    }
}
#endif

/* A batch comes from the scheduler, so what is wrong with it is a bug. */
static void check_batch(const struct sl_run *r, const struct sl_batch *b)
{
    SL_ASSERT(b->n_tokens >= 1 && b->n_tokens <= r->cfg.max_tokens);
    SL_ASSERT(b->n_logits >= 0 && b->n_logits <= r->cfg.max_logits);
#ifdef SL_DEBUG
    if (r->m->be->vt->device != NULL) /* arrays of a device */
        return;
    int32_t next = 0;
    for (int32_t i = 0; i < b->n_spans; i++) {
        const struct sl_span *s = &b->spans[i];
        SL_DCHECK(s->first == next && s->n >= 1 && s->pos >= 0 && s->table_idx >= 0);
        SL_DCHECK(s->n_drafts >= 0 && s->n_drafts < s->n);
        check_tables(r, b, s);
        for (int32_t t = 0; t < s->n; t++)
            SL_DCHECK(b->positions[s->first + t] == s->pos + t + r->m->facts.draft_borrows);
        next += s->n;
    }
    SL_DCHECK(next == b->n_tokens);
    for (int32_t t = 0; t < b->n_tokens; t++)
        SL_DCHECK(b->tokens[t] >= 0 && b->tokens[t] < r->m->hp.n_vocab);
    for (int32_t i = 0; i < b->n_logits; i++)
        SL_DCHECK(b->logit_rows[i] > (i ? b->logit_rows[i - 1] : -1) &&
                  b->logit_rows[i] < b->n_tokens);
#endif
}

/* ---------------------------------------------------------------- between sublayers */

/* A layer's sublayers, in order; the last is its own input, which few models have. */
enum part { ATTN, FFN, INPUT };

static const struct norm_slots {
    enum sl_slot w, bias, out;
} norm_slots[] = {
    [ATTN] = {SL_SLOT_ATTN_NORM, SL_SLOT_ATTN_NORM_BIAS, SL_SLOT_ATTN_OUT_NORM},
    [FFN] = {SL_SLOT_FFN_NORM, SL_SLOT_FFN_NORM_BIAS, SL_SLOT_FFN_OUT_NORM},
    [INPUT] = {.out = SL_SLOT_INPUT_OUT_NORM},
};

/* 0: the layer has none */
static float layer_scale(const struct sl_run *r, int32_t layer)
{
    return sl_param(r->m, layer, SL_SLOT_LAYER_SCALE)->first_value;
}

struct norm {
    enum sl_norm_kind kind;
    const float *w, *b; /* w NULL: there is none */
};

/* The norm of a sublayer's input, if that is not the residual stream. Behind the last layer: of the
 * head. */
static struct norm norm_of_input(const struct sl_run *r, int32_t layer, enum part part)
{
    const struct sl_layer_desc *layers = r->m->layers;
    if (layer == r->m->hp.n_layers)
        return (struct norm){layers[layer - 1].norm, sl_run_vec(r, 0, SL_SLOT_FINAL_NORM),
                             sl_run_vec(r, 0, SL_SLOT_FINAL_NORM_BIAS)};
    if ((layers[layer].norms & SL_NORM_IN) == 0 || layer == sl_stage_end(r->m))
        return (struct norm){.kind = SL_NORM_RMS}; /* the next stage norms its input itself */
    if (part == FFN && layers[layer].parallel && !sl_param(r->m, layer, norm_slots[FFN].w)->loaded)
        part = ATTN; /* one norm for both */
    return (struct norm){layers[layer].norm, sl_run_vec(r, layer, norm_slots[part].w),
                         sl_run_vec(r, layer, norm_slots[part].bias)};
}

/* r->norm = norm(x), x = x + y or y NULL; keep: x is that as well. */
static void run_layernorm(struct sl_run *r, float *x, float *y, float y_scale, struct norm norm,
                          bool keep, int32_t n)
{
    const struct sl_model *m = r->m;
    m->be->vt->layernorm(m->be, &(struct sl_op_layernorm){
                                    .x = x,
                                    .y = y,
                                    .w = norm.w,
                                    .b = norm.b,
                                    .eps = (float)m->hp.norm_eps,
                                    .n = n,
                                    .h = m->hp.hidden,
                                    .out = r->norm,
                                    .y_scale = y_scale,
                                    .keep = keep,
                                });
}

/* What is behind a sublayer of a layer: r->norm is the input of that. */
static struct norm norm_behind(const struct sl_run *r, int32_t layer, enum part part)
{
    const bool has_input = (r->m->layers[layer].has & SL_HAS_LAYER_INPUTS) != 0;
    switch (part) {
    case ATTN:
        if (r->m->layers[layer].ffn != SL_FFN_NONE)
            return norm_of_input(r, layer, FFN);
        return norm_of_input(r, layer + 1, ATTN);
    case FFN:
        return has_input ? (struct norm){.kind = SL_NORM_RMS} : norm_of_input(r, layer + 1, ATTN);
    case INPUT:
        break;
    }
    return norm_of_input(r, layer + 1, ATTN);
}

/* r->norm = norm(x), or x */
static void norm_alone(struct sl_run *r, float *x, struct norm norm, int32_t n)
{
    const struct sl_model *m = r->m;
    if (norm.kind == SL_NORM_LAYER) {
        run_layernorm(r, x, NULL, 0, norm, false, n);
        return;
    }
    m->be->vt->rmsnorm(m->be, &(struct sl_op_rmsnorm){
                                  .x = x,
                                  .w = norm.w,
                                  .eps = (float)m->hp.norm_eps,
                                  .n = n,
                                  .h = m->hp.hidden,
                                  .out = r->norm,
                              });
}

/* x = (x + y * scale) * x_scale, y or its norm; out = norm(x), or x */
static void run_add(struct sl_run *r, float scale, float *x, const float *w_y, struct norm norm,
                    float x_scale, int32_t n, void *out)
{
    const struct sl_model *m = r->m;
    const float y_scale = scale != 1 ? scale : 0;
    if (norm.kind == SL_NORM_LAYER) {
        SL_ASSERT(x_scale == 0);
        run_layernorm(r, x, r->y, y_scale, norm, false, n);
        return;
    }
    m->be->vt->add_rmsnorm(m->be, &(struct sl_op_add_rmsnorm){
                                      .x = x,
                                      .y = r->y,
                                      .w_y = w_y,
                                      .w = norm.w,
                                      .eps = (float)m->hp.norm_eps,
                                      .n = n,
                                      .h = m->hp.hidden,
                                      .out = out,
                                      .y_scale = y_scale,
                                      .x_scale = x_scale,
                                  });
}

/* r->y, what a sublayer gives, to the residual stream x, and r->norm, the input of the next one. */
static void add_to_stream(struct sl_run *r, int32_t layer, enum part part, float *x, int32_t n)
{
    const struct sl_layer_desc *l = &r->m->layers[layer];
    const struct norm_slots *s = &norm_slots[part];
    const enum part last = (l->has & SL_HAS_LAYER_INPUTS) != 0 ? INPUT
                           : l->ffn == SL_FFN_NONE             ? ATTN
                                                               : FFN;
    if (l->norms == SL_NORM_SUM) {
        const struct norm norm = {l->norm, sl_run_vec(r, layer, s->w),
                                  sl_run_vec(r, layer, s->bias)};
        run_layernorm(r, x, r->y, 0, norm, true, n);
        return;
    }
    const bool out = (l->norms & SL_NORM_OUT) != 0 || part == INPUT;
    const float scale = l->residual_scale * (part == FFN ? l->mlp_scale : l->value_scale);
    run_add(r, scale, x, out ? sl_run_vec(r, layer, s->out) : NULL, norm_behind(r, layer, part),
            part == last   ? layer_scale(r, layer)
            : part == ATTN ? l->attn_end_scale
                           : 0,
            n, r->norm);
}

/* As add_to_stream behind attention, where the MLP reads the stream as it was before. Its norm is
 * that of attention, still in r->norm, unless it has its own or only some rows go on. */
static void add_parallel(struct sl_run *r, int32_t layer, float *x, int32_t n, bool gathered)
{
    if (gathered || sl_param(r->m, layer, norm_slots[FFN].w)->loaded)
        norm_alone(r, x, norm_of_input(r, layer, FFN), n);
    const struct sl_layer_desc *l = &r->m->layers[layer];
    run_add(r, l->residual_scale * l->value_scale, x, NULL, (struct norm){.kind = SL_NORM_RMS}, 0,
            n, NULL);
}

/* ---------------------------------------------------------------- the beginning */

static void run_embed(struct sl_run *r, const struct sl_batch *b)
{
    const struct sl_model *m = r->m;
    const struct sl_backend_vt *vt = m->be->vt;
    const struct sl_weight *words = sl_run_mat(r, 0, SL_SLOT_EMBED);
    const struct sl_param *places = sl_param(m, 0, SL_SLOT_POSITIONS);
    const struct sl_param *types = sl_param(m, 0, SL_SLOT_TYPES);
    if (!places->loaded && !types->loaded) {
        vt->embed(m->be, &(struct sl_op_embed){.ids = b->tokens,
                                               .n = b->n_tokens,
                                               .w = words,
                                               .scale = m->embed_scale,
                                               .out = m->hp.draft.borrows ? r->taps_wide : r->x});
        return;
    }
    vt->embed_positions(m->be, &(struct sl_op_embed_positions){
                                   .batch = b,
                                   .word = words,
                                   .position = places->loaded ? &places->mat : NULL,
                                   .type = types->loaded ? &types->mat : NULL,
                                   .first = sl_first_place(m->desc, &m->hp),
                                   .one_type = m->desc->behind_pad || m->hp.n_types < 2,
                                   .out = r->x,
                               });
}

/* r->layer_inputs, of the embeddings x, which go through r->norm as activations. */
static void make_layer_inputs(struct sl_run *r, const struct sl_batch *b)
{
    const struct sl_model *m = r->m;
    const struct sl_backend_vt *vt = m->be->vt;
    const struct sl_weight *proj = sl_run_mat(r, 0, SL_SLOT_LAYER_PROJ);
    const int32_t h = m->hp.hidden, w = m->hp.layer_width;
    const size_t act = sl_dtype_info(vt->act_dtype)->block_bytes;
    vt->rmsnorm(m->be,
                &(struct sl_op_rmsnorm){.x = r->x, .n = b->n_tokens, .h = h, .out = r->norm});
    for (int32_t at = 0, n; at < b->n_tokens; at += n) {
        n = SL_MIN(b->n_tokens - at, SL_LAYER_ROWS);
        vt->linear(m->be, &(struct sl_op_linear){
                              .x = (const uint8_t *)r->norm + (size_t)at * (size_t)h * act,
                              .ld_x = h,
                              .w = proj,
                              .n = n,
                              .out = r->layer_proj,
                              .ld_out = proj->n_rows,
                          });
        /* the model norms the projection divided by sqrt(h); the norm takes that back, all but its
         * eps */
        vt->layer_inputs(m->be, &(struct sl_op_layer_inputs){
                                    .ids = b->tokens + at,
                                    .n = n,
                                    .n_layers = m->hp.n_layers,
                                    .h = w,
                                    .table = sl_run_mat(r, 0, SL_SLOT_LAYER_EMBED),
                                    .row_scale = m->layer_embed_scale,
                                    .scale = 0.70710678f,
                                    .x = r->layer_proj,
                                    .w = sl_run_vec(r, 0, SL_SLOT_LAYER_PROJ_NORM),
                                    .eps = (float)(m->hp.norm_eps * h),
                                    .out = r->layer_inputs + (int64_t)at * w,
                                    .ld_out = (int64_t)b->n_tokens * w,
                                });
    }
}

void sl_run_begin(struct sl_run *r, const struct sl_batch *b)
{
    const struct sl_model *m = r->m;
    check_batch(r, b);
    r->n_tokens = b->n_tokens;
    r->tokens = b->tokens;
    r->positions = b->positions;
    r->row_of = NULL;
    for (int32_t i = 0; i < m->desc->n_ropes; i++)
        if (sl_rope_used(m, i))
            m->be->vt->rope_angles(m->be, &(struct sl_op_rope_angles){.positions = b->positions,
                                                                      .n = b->n_tokens,
                                                                      .rope = &m->ropes[i],
                                                                      .out = r->angles[i]});
}

/* r->x and r->norm before the first layer. */
static void run_begin(struct sl_run *r, const struct sl_batch *b)
{
    const struct sl_model *m = r->m;
    if (m->stage > 0) { /* r->x came from the stage before */
        norm_alone(r, r->x, norm_of_input(r, sl_stage_first(m), ATTN), b->n_tokens);
        return;
    }
    run_embed(r, b);
    const float *w = sl_run_vec(r, 0, SL_SLOT_EMBED_NORM);
    if (w != NULL) {
        const struct norm norm = {SL_NORM_LAYER, w, sl_run_vec(r, 0, SL_SLOT_EMBED_NORM_BIAS)};
        run_layernorm(r, r->x, NULL, 0, norm, true, b->n_tokens);
        const struct norm next = norm_of_input(r, 0, ATTN);
        if (next.w != NULL)
            norm_alone(r, r->x, next, b->n_tokens);
        return;
    }
    if ((m->hp.has & SL_HAS_LAYER_INPUTS) != 0)
        make_layer_inputs(r, b);
    if (m->hp.n_shared_blocks > 0)
        sl_shared_block_begin(r, b->n_tokens);
    if (m->hp.n_streams > 0) {
        sl_streams_begin(r, b->n_tokens);
        return;
    }
    if (m->hp.n_hyper > 0) {
        sl_is_draft(m) ? sl_hyper_begin_draft(r, b->n_tokens) : sl_hyper_begin(r, b->n_tokens);
        return;
    }
    if (sl_is_draft(m) && !m->hp.draft.context)
        sl_draft_begin(r, b->n_tokens);
    if (!m->layers[0].joined)
        norm_alone(r, r->x, norm_of_input(r, 0, ATTN), b->n_tokens);
}

/* ---------------------------------------------------------------- the layers */

static void run_gather(struct sl_run *r, const struct sl_batch *b, const void *x, size_t row_bytes,
                       void *out)
{
    r->m->be->vt->gather_rows(r->m->be, &(struct sl_op_gather_rows){
                                            .x = x,
                                            .rows = b->logit_rows,
                                            .n = b->n_logits,
                                            .row_bytes = row_bytes,
                                            .out = out,
                                        });
}

const struct sl_op_lora *sl_run_lora(const struct sl_run *r, int32_t layer,
                                     enum sl_lora_layer_mat mat, struct sl_op_lora *room)
{
    if (r->lora_rows == NULL)
        return NULL;
    *room = (struct sl_op_lora){.rows = r->lora_rows,
                                .gathered = r->lora_gathered,
                                .mat = layer * SL_LORA_LAYER_MATS + (int32_t)mat,
                                .max_rank = r->cfg.max_lora_rank,
                                .s = r->lora,
                                .n_s = (int64_t)r->cfg.max_tokens * 3 * r->cfg.max_lora_rank};
    return room;
}

/* r->norm times the gate that comes of it, where the layer has one; down: its first matrix, behind
 * which is the second. r->y is free. */
static void gate_norm(struct sl_run *r, int32_t layer, enum sl_slot down, int32_t n)
{
    struct sl_backend *be = r->m->be;
    const struct sl_weight *first = sl_run_mat(r, layer, down);
    const struct sl_weight *second = sl_run_mat(r, layer, (enum sl_slot)(down + 1));
    const int32_t h = r->m->hp.hidden;
    if (!sl_param(r->m, layer, down)->loaded)
        return;
    be->vt->linear(be, &(struct sl_op_linear){.x = r->norm,
                                              .ld_x = h,
                                              .w = first,
                                              .n = n,
                                              .out = r->norm_low,
                                              .ld_out = first->n_rows});
    be->vt->activate(be, &(struct sl_op_activate){.x = r->norm_low,
                                                  .act = SL_ACT_SILU,
                                                  .n = (int64_t)n * first->n_rows,
                                                  .out = r->norm_low_act});
    be->vt->linear(be, &(struct sl_op_linear){.x = r->norm_low_act,
                                              .ld_x = first->n_rows,
                                              .w = second,
                                              .n = n,
                                              .out = r->y,
                                              .ld_out = h});
    be->vt->gate_heads(
        be, &(struct sl_op_gate_heads){.x = r->norm, .gate = r->y, .n = n, .n_heads = 1, .dim = h});
}

static void run_mix(struct sl_run *r, int32_t layer, const struct sl_batch *b)
{
    gate_norm(r, layer, SL_SLOT_ATTN_NORM_DOWN, b->n_tokens);
    switch (r->m->layers[layer].mixer) {
    case SL_MIX_GQA:
        sl_mixer_gqa_attend(r, layer, b);
        break;
    case SL_MIX_MLA:
        sl_mixer_mla_attend(r, layer, b);
        break;
    case SL_MIX_CONV:
    case SL_MIX_DELTA:
    case SL_MIX_SSM:
    case SL_MIX_LRU:
        sl_mixer_state(r, layer, b);
        break;
    case SL_MIX_BOTH:
        sl_mixer_state(r, layer, b);
        sl_mixer_gqa_attend(r, layer, b);
        break;
    case SL_MIX_WKV:
        sl_mixer_wkv(r, layer, b);
        break;
    case SL_MIX_BLOCK:
        sl_shared_block(r, layer, b);
        sl_mixer_state(r, layer, b);
        break;
    case SL_MIX_ROWS:
        sl_mixer_rows_attend(r, layer, b);
        break;
    case SL_MIX_NONE:
        break;
    }
}

/* Of both mixers side by side: what is added to the stream, but for value_scale. */
static void both_outputs(struct sl_run *r, int32_t layer, const void *att, const void *state,
                         int32_t n)
{
    const struct sl_layer_desc *l = &r->m->layers[layer];
    sl_mixer_state_output(r, layer, state, n, r->state_y);
    sl_mixer_gqa_output(r, layer, att, n, r->y);
    r->m->be->vt->add_rmsnorm(
        r->m->be, &(struct sl_op_add_rmsnorm){.x = r->y,
                                              .y = r->state_y,
                                              .y_scale = l->state.out_scale / l->value_scale,
                                              .n = n,
                                              .h = r->m->hp.hidden});
}

/* state: of a mixer beside attention. */
static void mix_output(struct sl_run *r, int32_t layer, const void *att, const void *state,
                       int32_t n)
{
    switch (r->m->layers[layer].mixer) {
    case SL_MIX_GQA:
    case SL_MIX_MLA:
        sl_mixer_gqa_output(r, layer, att, n, r->y);
        break;
    case SL_MIX_CONV:
    case SL_MIX_DELTA:
    case SL_MIX_SSM:
    case SL_MIX_LRU:
    case SL_MIX_WKV:
    case SL_MIX_BLOCK:
        sl_mixer_state_output(r, layer, att, n, r->y);
        break;
    case SL_MIX_BOTH:
        both_outputs(r, layer, att, state, n);
        break;
    case SL_MIX_ROWS:
        sl_mixer_rows_output(r, layer, n, r->y);
        break;
    case SL_MIX_NONE:
        break;
    }
}

static void run_feed_forward(struct sl_run *r, int32_t layer, const struct sl_batch *b,
                             const float *x, int32_t n)
{
    gate_norm(r, layer, SL_SLOT_FFN_NORM_DOWN, n);
    switch (r->m->layers[layer].ffn) {
    case SL_FFN_GATED:
        sl_ffn_gated(r, layer, r->norm, n, r->y);
        break;
    case SL_FFN_PLAIN:
        sl_ffn_plain(r, layer,
                     r->m->layers[layer].shifts_ffn ? sl_wkv_ffn_input(r, layer, b) : r->norm, n,
                     r->y);
        break;
    case SL_FFN_EXPERTS:
        if ((r->m->layers[layer].has & SL_HAS_BRANCHES) != 0)
            sl_ffn_branches(r, layer, x, n, r->y);
        else
            sl_ffn_experts(r, layer, r->norm, n, r->y);
        break;
    case SL_FFN_NONE:
        break;
    }
}

void sl_run_scale_logits(struct sl_run *r, float *logits, int64_t n)
{
    const struct sl_model *m = r->m;
    const float cap = (float)m->hp.logit_softcap;
    if (m->logit_scale != 1 || cap > 0)
        m->be->vt->scale_logits(
            m->be,
            &(struct sl_op_scale_logits){.x = logits, .n = n, .scale = m->logit_scale, .cap = cap});
}

/* inputs: the layer's own, a row for each of r->norm. */
void sl_run_layer_input(struct sl_run *r, int32_t layer, const float *inputs, int32_t n)
{
    struct sl_backend *be = r->m->be;
    const struct sl_weight *gate = sl_run_mat(r, layer, SL_SLOT_INPUT_GATE);
    const struct sl_weight *out = sl_run_mat(r, layer, SL_SLOT_INPUT_OUT);
    be->vt->linear(be, &(struct sl_op_linear){
                           .x = r->norm,
                           .ld_x = gate->n_cols,
                           .w = gate,
                           .n = n,
                           .out = r->input_gate,
                           .ld_out = gate->n_rows,
                       });
    be->vt->activate(be, &(struct sl_op_activate){
                             .x = r->input_gate,
                             .act = r->m->layers[layer].act,
                             .n = (int64_t)n * gate->n_rows,
                             .out = r->gated_input,
                             .up = inputs,
                         });
    be->vt->linear(be, &(struct sl_op_linear){
                           .x = r->gated_input,
                           .ld_x = out->n_cols,
                           .w = out,
                           .n = n,
                           .out = r->y,
                           .ld_out = out->n_rows,
                       });
}

/* x: activations */
static void run_head(struct sl_run *r, const void *x, int32_t n)
{
    const struct sl_model *m = r->m;
    const struct sl_weight *w = &sl_param(m, 0, SL_SLOT_HEAD)->mat;
    float *part = sl_run_part(r, r->logits);
    if (m->row_ranks == 1 && m->rank > 0) /* rank 0 has all of the matrix, and alone reads them */
        return;
    m->be->vt->linear(m->be, &(struct sl_op_linear){
                                 .x = x,
                                 .ld_x = w->n_cols,
                                 .w = w,
                                 .bias = sl_run_vec(r, 0, SL_SLOT_HEAD_BIAS),
                                 .n = n,
                                 .out = part,
                                 .ld_out = w->n_rows,
                             });
    if (r->parts) {
        r->part = part;
        sl_run_scale_logits(r, part, (int64_t)n * w->n_rows);
        return;
    }
    sl_run_gather_first(r, part, w->n_rows, sizeof *part, n, r->logits);
    if (m->rank == 0)
        sl_run_scale_logits(r, r->logits, (int64_t)n * m->facts.n_row);
}

uint64_t sl_run_progress(const struct sl_run *r)
{
    return atomic_load_explicit(&r->n_parts, memory_order_relaxed);
}

struct sl_rank *sl_run_rank(struct sl_run *r)
{
    return &r->rank;
}

bool sl_run_lost(const struct sl_run *r)
{
    return r->rank.lost;
}

/* Does the layer add what the experts of the one before it gave? */
static bool adds_late(const struct sl_model *m, int32_t layer)
{
    return layer > 0 && m->layers[layer - 1].late_experts;
}

/* Adds that to r->y. */
static void add_late(struct sl_run *r, float *late, int32_t n)
{
    r->m->be->vt->add_rmsnorm(
        r->m->be, &(struct sl_op_add_rmsnorm){.x = r->y, .y = late, .n = n, .h = r->m->hp.hidden});
}

/* In the last layer, once attention has read all tokens: the rows whose logits are wanted, to
 * r->rows, and what goes with them. */
static void gather_last(struct sl_run *r, int32_t layer, const struct sl_batch *batch,
                        const void **att, const void **state, const float **inputs)
{
    const struct sl_model *m = r->m;
    const struct sl_layer_desc *l = &m->layers[layer];
    const size_t act_bytes = sl_dtype_info(m->be->vt->act_dtype)->block_bytes;
    size_t att_bytes = (size_t)sl_layer_dim(&m->hp, l, SL_DIM_ATT) * act_bytes;
    if (sl_run_by_columns(r, layer, SL_SLOT_O))
        att_bytes /= (size_t)m->n_ranks;
    run_gather(r, batch, r->x, (size_t)m->hp.hidden * sizeof(float), r->rows);
    if (l->mixer == SL_MIX_NONE) {
        norm_alone(r, r->rows, norm_of_input(r, layer, ATTN), batch->n_logits);
    } else {
        run_gather(r, batch, r->att, att_bytes, r->q);
        *att = r->q;
    }
    if (l->mixer == SL_MIX_BOTH) {
        size_t n_state = (size_t)sl_layer_dim(&m->hp, l, SL_DIM_STATE_ROWS);
        run_gather(r, batch, r->state_att, n_state * act_bytes, r->conv_out);
        *state = r->conv_out;
    }
    if (adds_late(m, layer))
        run_gather(r, batch, r->late, (size_t)m->hp.hidden * sizeof(float), r->passed);
    if (*inputs != NULL) {
        run_gather(r, batch, *inputs, (size_t)m->hp.layer_width * sizeof(float), r->layer_rows);
        *inputs = r->layer_rows;
    }
    r->lora_rows = batch->logit_lora;
    r->lora_gathered = batch->logit_rows;
    r->row_of = batch->logit_rows;
}

/* A layer of hyper-connections, of all rows. */
static void run_hyper_layer(struct sl_run *r, int32_t layer, const struct sl_batch *b)
{
    sl_hyper_read(r, layer, false, b->n_tokens);
    run_mix(r, layer, b);
    sl_run_next_part(r);
    mix_output(r, layer, r->att, NULL, b->n_tokens);
    sl_hyper_write(r, b->n_tokens);
    sl_run_next_part(r);
    sl_hyper_read(r, layer, true, b->n_tokens);
    run_feed_forward(r, layer, b, r->x, b->n_tokens);
    sl_hyper_write(r, b->n_tokens);
}

const float *sl_run_enqueue(struct sl_run *r, const struct sl_batch *batch)
{
    const struct sl_model *m = r->m;
    float *x = r->x;
    const void *att = r->att, *state = r->state_att;
    int32_t n = batch->n_tokens, last = m->hp.n_layers - 1;
    size_t act_bytes = sl_dtype_info(m->be->vt->act_dtype)->block_bytes;
    const bool streams = m->hp.n_streams > 0 ||
                         m->hp.n_hyper > 0; /* whose rows are gathered behind the last layer */
    /* all rows go through the last layer: to be pooled, for a drafter, or as its MLP mixes them */
    const bool keeps_end = sl_run_keeps_end(r) || m->layers[last].shifts_ffn,
               all = m->facts.whole || keeps_end;

    sl_run_begin(r, batch);
    SL_ASSERT(!m->facts.whole || batch->n_logits == batch->n_spans);
    SL_ASSERT(!sl_is_draft(m) || batch->lora == NULL);
    SL_ASSERT(!sl_is_draft(m) || (r->draft_rows == NULL) == m->hp.draft.context);
    SL_ASSERT(batch->lora == NULL || r->cfg.max_lora_rank > 0);
    r->lora_rows = batch->lora;
    r->lora_gathered = NULL;
    run_begin(r, batch);
    sl_rank_begin(r);
    for (int32_t l = sl_stage_first(m); l < sl_stage_end(m) && !r->rank.lost; l++) {
        sl_run_next_part(r);
        if (m->hp.n_hyper > 0) {
            run_hyper_layer(r, l, batch);
            continue;
        }
        sl_run_keep(r, l, x, n);
        if (streams)
            sl_streams_predict(r, l, n);
        run_mix(r, l, batch);
        if (streams)
            sl_streams_laurel(r, l, n);
        sl_run_next_part(r);
        const float *inputs = NULL;
        if ((m->layers[l].has & SL_HAS_LAYER_INPUTS) != 0)
            inputs = r->layer_inputs + (int64_t)l * batch->n_tokens * m->hp.layer_width;
        if (l == last && !all && !streams) {
            n = batch->n_logits;
            if (n == 0)
                break;
            x = r->rows;
            gather_last(r, l, batch, &att, &state, &inputs);
        }
        mix_output(r, l, att, state, n);
        if (m->layers[l].parallel)
            add_parallel(r, l, x, n, l == last && !all);
        else if (m->layers[l].mixer != SL_MIX_NONE)
            add_to_stream(r, l, ATTN, x, n);
        sl_run_next_part(r);
        if (m->layers[l].ffn != SL_FFN_NONE) {
            run_feed_forward(r, l, batch, x, n);
            if (adds_late(m, l))
                add_late(r, x == r->rows ? r->passed : r->late, n);
            add_to_stream(r, l, FFN, x, n);
        }
        if (streams) {
            sl_streams_correct(r, l, inputs, n);
        } else if (inputs != NULL) {
            sl_run_layer_input(r, l, inputs, n);
            add_to_stream(r, l, INPUT, x, n);
        }
    }
    if (!sl_stage_is_last(m))
        sl_rank_end(r, 0); /* its ranks meet at nothing else before their next step */
    if (r->rank.lost || !sl_stage_is_last(m))
        return r->logits;
    if (m->hp.n_hyper > 0 && r->cfg.n_taps > 0)
        sl_hyper_keep(r, batch->n_tokens);
    if (streams && (n = batch->n_logits) > 0)
        m->hp.n_hyper > 0 ? sl_hyper_end(r, batch) : sl_streams_end(r, batch);
    sl_run_next_part(r);
    const void *ends = r->norm;
    if (keeps_end) {
        sl_run_keep(r, last + 1, x, n);
        n = batch->n_logits;
        run_gather(r, batch, r->norm, (size_t)m->hp.hidden * act_bytes, r->y);
        ends = r->y;
    }
    r->ends = ends;
    if (m->facts.draft_hidden > 0)
        sl_draft_end(r, x, n);
    if (n > 0 && m->hp.n_clusters > 0)
        sl_clusters_head(r, ends, n);
    else if (n > 0 && m->facts.task == SL_TASK_GENERATE)
        run_head(r, ends, n);
    else if (n > 0)
        sl_run_pool(r, r->norm, all ? batch->spans : NULL,
                    m->facts.task == SL_TASK_TOKEN_EMBED ? n : batch->n_logits);
    sl_rank_end(r, batch->n_logits);
    sl_run_next_part(r);
    return r->logits;
}

void sl_run_set_pooled(struct sl_run *r, float *rows)
{
    SL_ASSERT(rows != NULL && r->m->be->vt->device != NULL);
    r->pooled = rows;
}

float *sl_run_stream(struct sl_run *r)
{
    return r->x;
}

const float *sl_run_logits(const struct sl_run *r)
{
    return r->logits;
}

void sl_run_items(struct sl_run *r, void (*fn)(void *arg, uint32_t item, int thread_idx), void *arg,
                  uint32_t n_items)
{
    r->m->be->vt->run_items(r->m->be, fn, arg, n_items);
}
