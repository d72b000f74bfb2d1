/* SPDX-License-Identifier: MIT
 * Layers with a recurrent state: projections, a short convolution, and a recurrence whose output is
 * normed and gated; then the output projection, apart as that of attention is. A layer's part of a
 * page holds the convolution's last inputs, then the state of its heads.
 */
#include "base/check.h"
#include "models/internal.h"

int64_t sl_conv_channels(const struct sl_layer_desc *l, int64_t hidden)
{
    const struct sl_state_desc *s = &l->state;
    const int64_t keys = (int64_t)s->n_groups * s->k_dim, rows = (int64_t)s->n_heads * s->v_dim;
    if (!sl_has_state(l) || l->rows.ratio > 0)
        return 0;
    if (l->mixer == SL_MIX_CONV || l->mixer == SL_MIX_WKV)
        return hidden;
    return s->dt_rank > 0 || l->mixer == SL_MIX_LRU ? rows : rows + 2 * keys;
}

int64_t sl_conv_tapped(const struct sl_layer_desc *l, int64_t hidden)
{
    const struct sl_state_desc *s = &l->state;
    return s->conv_rank > 0 ? (int64_t)s->n_heads * s->v_dim : sl_conv_channels(l, hidden);
}

/* Of the convolution's part of the state. */
static size_t tail_bytes(const struct sl_layer_desc *l, int64_t hidden)
{
    const size_t n = (size_t)(l->state.n_taps - 1) * (size_t)sl_conv_tapped(l, hidden);
    return SL_ROUND_UP(n * sizeof(float), (size_t)SL_STATE_ALIGN);
}

size_t sl_mixer_state_bytes(const struct sl_model *m, const struct sl_backend *be,
                            const struct sl_layer_desc *l)
{
    const struct sl_state_desc *s = &l->state;
    size_t n = (size_t)s->n_heads * (size_t)s->k_dim * (size_t)s->v_dim * sizeof(float);
    if (l->mixer == SL_MIX_ROWS || l->mixer == SL_MIX_MLA)
        return sl_rows_state_bytes(l);
    if (l->mixer == SL_MIX_WKV)
        return sl_wkv_state_bytes(l, m->hp.hidden);
    if (l->mixer == SL_MIX_CONV)
        n = 0;
    else if (l->mixer == SL_MIX_DELTA && be != NULL)
        n = be->vt->delta_bytes(s->n_heads, s->k_dim, s->v_dim, s->by_row);
    return tail_bytes(l, m->hp.hidden) + n;
}

static struct sl_state_view tail_view(const struct sl_run *r, int32_t layer)
{
    return sl_state_view(&r->cfg.kv, r->cfg.kv_pool, layer);
}

static struct sl_state_view heads_view(const struct sl_run *r, int32_t layer)
{
    struct sl_state_view v = tail_view(r, layer);
    v.offset += tail_bytes(&r->m->layers[layer], r->m->hp.hidden);
    return v;
}

static void mixer_state_scale(struct sl_run *r, float *x, int64_t n, float by)
{
    if (by != 0)
        r->m->be->vt->scale_logits(r->m->be,
                                   &(struct sl_op_scale_logits){.x = x, .n = n, .scale = by});
}

static void mixer_state_flush(struct sl_run *r, struct sl_op_linear_multi *a)
{
    r->m->be->vt->linear_multi(r->m->be, a);
    a->n_parts = 0;
}

/* The second half of a projection by way of a row of low_rank, which is activations. */
static void raise_low(struct sl_run *r, int32_t layer, enum sl_slot slot, const void *low,
                      int32_t n, float *out)
{
    const struct sl_weight *w = sl_run_mat(r, layer, slot);
    r->m->be->vt->linear(r->m->be, &(struct sl_op_linear){.x = low,
                                                          .ld_x = w->n_cols,
                                                          .w = w,
                                                          .bias = NULL,
                                                          .n = n,
                                                          .out = out,
                                                          .ld_out = w->n_rows});
}

/* What opens the output and the decays, of both rows of low_rank that r->state_x has. */
static void mixer_state_raise(struct sl_run *r, int32_t layer, int32_t n)
{
    const int32_t rank = r->m->layers[layer].state.low_rank;
    struct sl_backend *be = r->m->be;
    const size_t width = sl_dtype_info(be->vt->act_dtype)->block_bytes;
    const uint8_t *rows = (const uint8_t *)r->state_x;
    if (be->vt->act_dtype != SL_DTYPE_F32) {
        be->vt->rmsnorm(be, &(struct sl_op_rmsnorm){
                                .x = r->state_x, .n = 2 * n, .h = rank, .out = r->state_low});
        rows = r->state_low;
    }
    raise_low(r, layer, SL_SLOT_STATE_GATE, rows, n, r->state_gate);
    raise_low(r, layer, SL_SLOT_STATE_DT, rows + (size_t)n * (size_t)rank * width, n, r->state_dt);
}

/* Every projection of r->norm that the layer has. */
static void mixer_state_project(struct sl_run *r, int32_t layer, int32_t n)
{
    const struct sl_state_desc *s = &r->m->layers[layer].state;
    const bool low = s->low_rank > 0;
    float *gate_low = r->state_x, *dt_low = r->state_x + (int64_t)n * s->low_rank;
    const struct {
        enum sl_slot w, bias;
        float *out;
    } all[] = {
        {SL_SLOT_STATE_IN, SL_SLOT_STATE_IN_BIAS, r->state_in},
        {low ? SL_SLOT_STATE_GATE_DOWN : SL_SLOT_STATE_GATE, SL_SLOT_STATE_GATE_BIAS,
         low ? gate_low : r->state_gate},
        {low ? SL_SLOT_STATE_DT_DOWN : SL_SLOT_STATE_DT, SL_SLOT_STATE_DT_IN_BIAS,
         low ? dt_low : r->state_dt},
        {SL_SLOT_STATE_BETA, SL_SLOT_COUNT, r->state_beta},
    };
    struct sl_op_linear_multi a = {.x = r->norm, .ld_x = r->m->hp.hidden, .n = n};
    for (size_t i = 0; i < SL_COUNT(all); i++) {
        const struct sl_param *w = sl_param(r->m, layer, all[i].w);
        const float *bias = all[i].bias != SL_SLOT_COUNT ? sl_run_vec(r, layer, all[i].bias) : NULL;
        const int32_t n_mats = w->loaded ? sl_params_n(r->m, w->desc, layer) : 0;
        int64_t first = 0, ld = 0;
        for (int32_t k = 0; k < n_mats; k++)
            ld += w[k].mat.n_rows;
        for (int32_t k = 0; k < n_mats; first += w[k++].mat.n_rows) {
            if (a.n_parts == SL_MAX_LINEAR_PARTS)
                mixer_state_flush(r, &a);
            a.part[a.n_parts++] = (struct sl_linear_part){
                &w[k].mat, bias != NULL ? bias + first : NULL, all[i].out + first, ld};
        }
    }
    mixer_state_flush(r, &a);
    if (low)
        mixer_state_raise(r, layer, n);
    mixer_state_scale(r, r->state_gate, n * (int64_t)s->n_heads * s->v_dim, s->gate_scale);
    mixer_state_scale(r, r->state_dt, n * (int64_t)s->n_heads, s->dt_scale);
}

/* Each token's own taps. */
static const float *make_kernels(struct sl_run *r, int32_t layer, int32_t n)
{
    const struct sl_weight *down = sl_run_mat(r, layer, SL_SLOT_CONV_DOWN),
                           *up = sl_run_mat(r, layer, SL_SLOT_CONV_UP);
    struct sl_backend *be = r->m->be;
    void *low = be->vt->act_dtype != SL_DTYPE_F32 ? r->state_low : r->state_x;
    be->vt->linear(be, &(struct sl_op_linear){.x = r->norm,
                                              .ld_x = down->n_cols,
                                              .w = down,
                                              .n = n,
                                              .out = r->state_x,
                                              .ld_out = down->n_rows});
    be->vt->activate(be,
                     &(struct sl_op_activate){
                         .x = r->state_x, .act = SL_ACT_SILU, .n = n * down->n_rows, .out = low});
    be->vt->linear(be, &(struct sl_op_linear){.x = low,
                                              .ld_x = up->n_cols,
                                              .w = up,
                                              .bias = sl_run_vec(r, layer, SL_SLOT_CONV_UP_BIAS),
                                              .n = n,
                                              .out = r->conv_kernels,
                                              .ld_out = up->n_rows});
    return r->conv_kernels;
}

static void mixer_state_convolve(struct sl_run *r, int32_t layer, const struct sl_batch *batch)
{
    const struct sl_layer_desc *l = &r->m->layers[layer];
    const int32_t h = r->m->hp.hidden;
    const bool gated = l->mixer == SL_MIX_CONV; /* state_in: what opens it, what opens the end, x */
    struct sl_op_short_conv a = {.batch = batch,
                                 .x = r->state_in + (gated ? 2 * h : 0),
                                 .pre = gated ? r->state_in : NULL,
                                 .post = gated ? r->state_in + h : NULL,
                                 .w = sl_run_vec(r, layer, SL_SLOT_CONV),
                                 .bias = sl_run_vec(r, layer, SL_SLOT_CONV_BIAS),
                                 .n_channels = (int32_t)sl_conv_channels(l, h),
                                 .n_taps = l->state.n_taps,
                                 .silu = !gated && l->mixer != SL_MIX_LRU,
                                 .state = tail_view(r, layer),
                                 .out = gated ? NULL : r->conv_out,
                                 .act = gated ? r->att : NULL};
    a.ld = gated ? 3 * (int64_t)h : a.n_channels;
    if (l->state.conv_rank > 0) {
        a.kernels = make_kernels(r, layer, batch->n_tokens);
        a.n_plain = a.n_channels - (int32_t)sl_conv_tapped(l, h);
    }
    r->m->be->vt->short_conv(r->m->be, &a);
}

static void delta_rule(struct sl_run *r, int32_t layer, const struct sl_batch *batch)
{
    const struct sl_layer_desc *l = &r->m->layers[layer];
    const struct sl_state_desc *s = &l->state;
    const int64_t keys = (int64_t)s->n_groups * s->k_dim;
    r->m->be->vt->delta_rule(r->m->be, &(struct sl_op_delta_rule){
                                           .batch = batch,
                                           .q = r->conv_out,
                                           .k = r->conv_out + keys,
                                           .v = r->conv_out + 2 * keys,
                                           .ld = sl_conv_channels(l, r->m->hp.hidden),
                                           .decay_in = r->state_dt,
                                           .beta_in = r->state_beta,
                                           .a = sl_run_vec(r, layer, SL_SLOT_STATE_A),
                                           .dt_bias = sl_run_vec(r, layer, SL_SLOT_STATE_DT_BIAS),
                                           .by_row = s->by_row,
                                           .bound = s->bound,
                                           .tiled = s->tiled,
                                           .l2_eps = 1e-6f,
                                           .scale = l->attn_scale,
                                           .beta_scale = s->beta_scale,
                                           .n_heads = s->n_heads,
                                           .n_k_heads = s->n_groups,
                                           .k_dim = s->k_dim,
                                           .v_dim = s->v_dim,
                                           .state = heads_view(r, layer),
                                           .scratch = r->delta_room,
                                           .out = r->state_out,
                                       });
}

/* Where dt, b and c of Mamba 1 are, of all rows of a step. */
struct low {
    float *part[3]; /* [T, dt_rank], [T, k_dim] twice */
    int32_t dim[3];
    void *dt; /* [T, dt_rank] activations */
};

static struct low low_of(const struct sl_run *r, const struct sl_state_desc *s)
{
    const int64_t t = r->cfg.max_tokens;
    float *at = r->state_x;
    return (struct low){{at, at + t * s->dt_rank, at + t * (s->dt_rank + s->k_dim)},
                        {s->dt_rank, s->k_dim, s->k_dim},
                        at + t * (s->dt_rank + 2 * s->k_dim)};
}

/* Mamba 1: dt, b and c of what left the convolution. r->att is free until the output is gated. */
static void project_low(struct sl_run *r, int32_t layer, int32_t n)
{
    static const enum sl_slot slots[] = {SL_SLOT_STATE_X, SL_SLOT_STATE_B, SL_SLOT_STATE_C};
    static const enum sl_slot norms[] = {SL_SLOT_STATE_RANK_NORM, SL_SLOT_STATE_B_NORM,
                                         SL_SLOT_STATE_C_NORM};
    const struct sl_state_desc *s = &r->m->layers[layer].state;
    const struct sl_weight *up = sl_run_mat(r, layer, SL_SLOT_STATE_DT_UP);
    struct sl_backend *be = r->m->be;
    const struct low low = low_of(r, s);
    struct sl_op_linear_multi a = {.x = sl_run_activations(r, r->conv_out, n, s->n_heads, r->att),
                                   .ld_x = s->n_heads,
                                   .n = n,
                                   .n_parts = 3};
    for (int i = 0; i < 3; i++)
        a.part[i] =
            (struct sl_linear_part){sl_run_mat(r, layer, slots[i]), NULL, low.part[i], low.dim[i]};
    be->vt->linear_multi(be, &a);
    for (int i = 0; i < 3 && s->norm_x; i++)
        be->vt->rmsnorm(be, &(struct sl_op_rmsnorm){.x = low.part[i],
                                                    .w = sl_run_vec(r, layer, norms[i]),
                                                    .eps = s->norm_eps,
                                                    .n = n,
                                                    .h = low.dim[i]});
    be->vt->linear(be, &(struct sl_op_linear){
                           .x = sl_run_activations(r, low.part[0], n, s->dt_rank, low.dt),
                           .ld_x = up->n_cols,
                           .w = up,
                           .n = n,
                           .out = r->state_dt,
                           .ld_out = up->n_rows,
                       });
}

static void mixer_state_ssm(struct sl_run *r, int32_t layer, const struct sl_batch *batch)
{
    const struct sl_layer_desc *l = &r->m->layers[layer];
    const struct sl_state_desc *s = &l->state;
    const int64_t rows = (int64_t)s->n_heads * s->v_dim, keys = (int64_t)s->n_groups * s->k_dim;
    const int64_t ld = sl_conv_channels(l, r->m->hp.hidden);
    const bool first = s->dt_rank > 0; /* Mamba 1 */
    const struct low low = low_of(r, s);
    if (first)
        project_low(r, layer, batch->n_tokens);
    r->m->be->vt->ssm(r->m->be, &(struct sl_op_ssm){
                                    .batch = batch,
                                    .x = r->conv_out,
                                    .ld_x = ld,
                                    .b = first ? low.part[1] : r->conv_out + rows,
                                    .c = first ? low.part[2] : r->conv_out + rows + keys,
                                    .ld_bc = first ? keys : ld,
                                    .by_state = first,
                                    .dt_in = r->state_dt,
                                    .ld_dt = s->n_heads,
                                    .a = sl_run_vec(r, layer, SL_SLOT_STATE_A),
                                    .dt_bias = sl_run_vec(r, layer, SL_SLOT_STATE_DT_BIAS),
                                    .d = sl_run_vec(r, layer, SL_SLOT_STATE_D),
                                    .dt_min = s->dt_min,
                                    .dt_max = s->dt_max,
                                    .n_heads = s->n_heads,
                                    .n_groups = s->n_groups,
                                    .head_dim = s->v_dim,
                                    .n_state = s->k_dim,
                                    .state = heads_view(r, layer),
                                    .out = r->state_out,
                                });
}

/* Gates by head of what left the convolution, the unit, and what gates it. r->att is free until the
 * end. */
static void mixer_state_rglru(struct sl_run *r, int32_t layer, const struct sl_batch *batch)
{
    const struct sl_layer_desc *l = &r->m->layers[layer];
    const struct sl_state_desc *s = &l->state;
    const int32_t n = s->n_heads * s->v_dim;
    const enum sl_slot mats[] = {SL_SLOT_LRU_IN, SL_SLOT_LRU_DECAY};
    const enum sl_slot biases[] = {SL_SLOT_LRU_IN_BIAS, SL_SLOT_LRU_DECAY_BIAS};
    float *const gates[] = {r->state_in, r->state_dt};
    struct sl_backend *be = r->m->be;
    const size_t width = sl_dtype_info(be->vt->act_dtype)->block_bytes;
    const uint8_t *x = sl_run_activations(r, r->conv_out, batch->n_tokens, n, r->att);
    for (int32_t h = 0, at = 0; h < s->n_heads; h++, at += s->v_dim) {
        struct sl_op_linear_multi a = {
            .x = x + (size_t)at * width, .ld_x = n, .n = batch->n_tokens};
        for (; a.n_parts < 2; a.n_parts++)
            a.part[a.n_parts] = (struct sl_linear_part){
                &sl_param(r->m, layer, mats[a.n_parts])[h].mat,
                sl_run_vec(r, layer, biases[a.n_parts]) + at, gates[a.n_parts] + at, n};
        be->vt->linear_multi(be, &a);
    }
    be->vt->rglru(be, &(struct sl_op_rglru){.batch = batch,
                                            .x = r->conv_out,
                                            .in_gate = gates[0],
                                            .decay_gate = gates[1],
                                            .a = sl_run_vec(r, layer, SL_SLOT_STATE_A),
                                            .n_channels = n,
                                            .state = heads_view(r, layer),
                                            .out = r->state_out});
    be->vt->activate(be, &(struct sl_op_activate){.x = r->state_gate,
                                                  .act = l->act,
                                                  .n = (int64_t)batch->n_tokens * n,
                                                  .out = r->att,
                                                  .up = r->state_out});
}

static void norm_and_gate(struct sl_run *r, int32_t layer, int32_t n)
{
    const struct sl_state_desc *s = &r->m->layers[layer].state;
    const int32_t n_groups = s->norm_heads ? s->n_heads : s->n_groups;
    const int64_t rows = (int64_t)s->n_heads * s->v_dim;
    const bool gated = sl_param(r->m, layer, SL_SLOT_STATE_GATE)->loaded;
    const bool beside = r->m->layers[layer].mixer == SL_MIX_BOTH;
    r->m->be->vt->gated_norm(r->m->be, &(struct sl_op_gated_norm){
                                           .x = r->state_out,
                                           .gate = gated ? r->state_gate : NULL,
                                           .ld_gate = rows,
                                           .w = sl_run_vec(r, layer, SL_SLOT_STATE_NORM),
                                           .shared_w = s->norm_heads,
                                           .gate_first = s->gate_first,
                                           .bare = !s->norm,
                                           .sigmoid = s->sigmoid_gate,
                                           .eps = s->norm_eps,
                                           .n = n,
                                           .n_groups = n_groups,
                                           .dim = (int32_t)(rows / n_groups),
                                           .out = beside ? r->state_att : r->att,
                                           .ld_out = rows,
                                       });
}

void sl_mixer_state(struct sl_run *r, int32_t layer, const struct sl_batch *batch)
{
    mixer_state_project(r, layer, batch->n_tokens);
    mixer_state_convolve(r, layer, batch);
    switch (r->m->layers[layer].mixer) {
    case SL_MIX_DELTA:
        delta_rule(r, layer, batch);
        break;
    case SL_MIX_SSM:
    case SL_MIX_BOTH:
    case SL_MIX_BLOCK:
        mixer_state_ssm(r, layer, batch);
        break;
    case SL_MIX_LRU:
        mixer_state_rglru(r, layer, batch);
        return;
    case SL_MIX_CONV:
    case SL_MIX_GQA:
    case SL_MIX_MLA:
    case SL_MIX_NONE:
    case SL_MIX_ROWS: /* mixer_rows.c */
    case SL_MIX_WKV:  /* mixer_wkv.c */
        return;
    }
    norm_and_gate(r, layer, batch->n_tokens);
}

void sl_mixer_state_output(struct sl_run *r, int32_t layer, const void *att, int32_t n, float *y)
{
    const struct sl_weight *mat = sl_run_mat(r, layer, SL_SLOT_STATE_OUT);
    r->m->be->vt->linear(r->m->be, &(struct sl_op_linear){
                                       .x = att,
                                       .ld_x = mat->n_cols,
                                       .w = mat,
                                       .bias = sl_run_vec(r, layer, SL_SLOT_STATE_OUT_BIAS),
                                       .n = n,
                                       .out = y,
                                       .ld_out = mat->n_rows,
                                   });
}
