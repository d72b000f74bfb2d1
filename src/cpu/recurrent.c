/* SPDX-License-Identifier: MIT
 * Layers with a recurrent state: causal convolutions, the gated delta rule, state space models,
 * linear recurrent units, and the norm with a gate behind them. Token after token, in the order
 * that ops.h gives, so that a text's bits do not depend on how it is cut into steps. Here spans are
 * cut where a state is stored, and into items of columns; what is done with those is in
 * recurrent_tmpl.c.
 */
#include "base/check.h"
#include "cpu/backend.h"
#include "cpu/pieces.h"

struct rec_job {
    const struct sl_cpu *cpu;
    const void *a;
    uint32_t n_parts; /* items of a span */
    int32_t part;     /* columns of an item */
    int32_t n_whole;  /* parts of a head or group */
};

/* ---------------------------------------------------------------- operations */

static void conv_part(void *arg, uint32_t item, int thread_idx)
{
    const struct rec_job *j = arg;
    const struct sl_op_short_conv *a = j->a;
    const int32_t first = a->n_plain + (int32_t)(item % j->n_parts) * j->part;
    struct sl_rest r = sl_rest_of(a->batch, &a->state, item / j->n_parts);
    (void)thread_idx;
    while (sl_next_piece(&r))
        j->cpu->rec.conv(a, r.row, r.n, first, SL_MIN(a->n_channels - first, j->part), r.begin,
                         r.end);
}

static void plain_row(void *arg, uint32_t row, int thread_idx)
{
    const struct rec_job *j = arg;
    const struct sl_op_short_conv *a = j->a;
    (void)thread_idx;
    j->cpu->k.act_alone(SL_ACT_SILU, a->x + row * a->ld, a->n_plain,
                        a->out + (int64_t)row * a->n_channels);
}

void sl_cpu_short_conv(struct sl_backend *be, const struct sl_op_short_conv *a)
{
    struct rec_job j = {.cpu = sl_cpu(be), .a = a};
    const int32_t n = a->n_channels - a->n_plain;
    SL_ASSERT(a->n_taps >= 2 && a->n_taps <= SL_MAX_CONV_TAPS);
    SL_ASSERT(a->n_plain >= 0 && (a->n_plain == 0 || (a->kernels != NULL && a->silu)));
    SL_ASSERT(n > 0 && (a->kernels == NULL || (a->pre == NULL && a->bias == NULL)));
    j.part = sl_part_of(j.cpu, a->batch->n_spans, n, SL_REC_CONV);
    j.n_parts = (uint32_t)SL_CEIL_DIV(n, j.part);
    sl_cpu_run(sl_cpu(be), conv_part, &j, (uint32_t)a->batch->n_spans * j.n_parts,
               (int64_t)a->batch->n_tokens * n * (a->n_taps + 8));
    if (a->n_plain > 0)
        sl_cpu_run(sl_cpu(be), plain_row, &j, a->batch->n_tokens,
                   (int64_t)a->batch->n_tokens * a->n_plain * 8);
}

static void delta_row(void *arg, uint32_t row, int thread_idx)
{
    const struct rec_job *j = arg;
    (void)thread_idx;
    j->cpu->rec.delta_inputs(j->a, row);
}

static void delta_part(void *arg, uint32_t item, int thread_idx)
{
    const struct rec_job *j = arg;
    const struct sl_op_delta_rule *a = j->a;
    const int32_t part = (int32_t)(item % j->n_parts);
    const int32_t head = part / j->n_whole, first = part % j->n_whole * j->part;
    struct sl_rest r = sl_rest_of(a->batch, &a->state, item / j->n_parts);
    (void)thread_idx;
    while (sl_next_piece(&r))
        j->cpu->rec.delta(a, r.row, r.n, head, first, SL_MIN(a->v_dim - first, j->part), r.begin,
                          r.end);
}

size_t sl_cpu_delta_bytes(int32_t n_heads, int32_t k_dim, int32_t v_dim, bool by_row)
{
    (void)by_row;
    return sizeof(float) * (size_t)n_heads * (size_t)k_dim * (size_t)v_dim;
}

size_t sl_cpu_delta_room(int32_t n, int32_t n_heads, int32_t n_k_heads, int32_t k_dim, bool by_row)
{
    (void)n, (void)n_heads, (void)n_k_heads, (void)k_dim, (void)by_row;
    return 0; /* q, k, decay_in and beta_in have room */
}

void sl_cpu_delta_rule(struct sl_backend *be, const struct sl_op_delta_rule *a)
{
    struct rec_job j = {.cpu = sl_cpu(be), .a = a};
    const int64_t n = a->batch->n_tokens, n_heads = a->n_heads;
    SL_ASSERT(a->k_dim <= SL_MAX_STATE_DIM && a->v_dim <= SL_MAX_STATE_DIM &&
              a->n_heads % a->n_k_heads == 0);
    sl_cpu_run(sl_cpu(be), delta_row, &j, (uint32_t)n,
               n * (2 * a->n_k_heads * a->k_dim + 40 * n_heads * (a->by_row ? a->k_dim : 1)));
    j.part = sl_part_of(j.cpu, a->batch->n_spans * n_heads, a->v_dim, a->v_dim);
    j.n_whole = SL_CEIL_DIV(a->v_dim, j.part);
    j.n_parts = (uint32_t)(n_heads * j.n_whole);
    sl_cpu_run(sl_cpu(be), delta_part, &j, (uint32_t)a->batch->n_spans * j.n_parts,
               n * n_heads * a->k_dim * a->v_dim * 4);
}

static void ssm_part(void *arg, uint32_t item, int thread_idx)
{
    const struct rec_job *j = arg;
    const struct sl_op_ssm *a = j->a;
    const int32_t n_group = a->n_heads / a->n_groups * a->head_dim;
    const int32_t part = (int32_t)(item % j->n_parts), in_group = part % j->n_whole * j->part;
    struct sl_rest r = sl_rest_of(a->batch, &a->state, item / j->n_parts);
    (void)thread_idx;
    while (sl_next_piece(&r))
        j->cpu->rec.ssm(a, r.row, r.n, part / j->n_whole * n_group + in_group,
                        SL_MIN(n_group - in_group, j->part), r.begin, r.end);
}

void sl_cpu_ssm(struct sl_backend *be, const struct sl_op_ssm *a)
{
    struct rec_job j = {.cpu = sl_cpu(be), .a = a};
    const int32_t n_group = a->n_heads / a->n_groups * a->head_dim;
    SL_ASSERT(a->n_heads % a->n_groups == 0 && (!a->by_state || a->head_dim == 1) &&
              a->n_state <= SL_MAX_STATE_DIM);
    j.part = sl_part_of(j.cpu, a->batch->n_spans * a->n_groups, n_group, SL_REC_SSM);
    j.n_whole = SL_CEIL_DIV(n_group, j.part);
    j.n_parts = (uint32_t)(a->n_groups * j.n_whole);
    sl_cpu_run(sl_cpu(be), ssm_part, &j, (uint32_t)a->batch->n_spans * j.n_parts,
               (int64_t)a->batch->n_tokens * a->n_heads * a->head_dim * a->n_state * 4);
}

static void rglru_part(void *arg, uint32_t item, int thread_idx)
{
    const struct rec_job *j = arg;
    const struct sl_op_rglru *a = j->a;
    const int32_t first = (int32_t)(item % j->n_parts) * j->part;
    struct sl_rest r = sl_rest_of(a->batch, &a->state, item / j->n_parts);
    (void)thread_idx;
    while (sl_next_piece(&r))
        j->cpu->rec.rglru(a, r.row, r.n, first, SL_MIN(a->n_channels - first, j->part), r.begin,
                          r.end);
}

void sl_cpu_rglru(struct sl_backend *be, const struct sl_op_rglru *a)
{
    struct rec_job j = {.cpu = sl_cpu(be), .a = a};
    j.part = sl_part_of(j.cpu, a->batch->n_spans, a->n_channels, SL_REC_LRU);
    j.n_parts = (uint32_t)SL_CEIL_DIV(a->n_channels, j.part);
    sl_cpu_run(sl_cpu(be), rglru_part, &j, (uint32_t)a->batch->n_spans * j.n_parts,
               60 * (int64_t)a->batch->n_tokens * a->n_channels);
}

static void shift_part(void *arg, uint32_t item, int thread_idx)
{
    const struct rec_job *j = arg;
    const struct sl_op_token_shift *a = j->a;
    const int32_t first = (int32_t)(item % j->n_parts) * j->part;
    struct sl_rest r = sl_rest_of(a->batch, &a->state, item / j->n_parts);
    (void)thread_idx;
    while (sl_next_piece(&r))
        j->cpu->rec.shift(a, r.row, r.n, first, SL_MIN(a->n_channels - first, j->part), r.begin,
                          r.end);
}

void sl_cpu_token_shift(struct sl_backend *be, const struct sl_op_token_shift *a)
{
    struct rec_job j = {.cpu = sl_cpu(be), .a = a};
    j.part = sl_part_of(j.cpu, a->batch->n_spans, a->n_channels, SL_REC_CONV);
    j.n_parts = (uint32_t)SL_CEIL_DIV(a->n_channels, j.part);
    sl_cpu_run(sl_cpu(be), shift_part, &j, (uint32_t)a->batch->n_spans * j.n_parts,
               (int64_t)a->batch->n_tokens * a->n_channels * (2 * a->n_outs + 2));
}

static void wkv_row(void *arg, uint32_t row, int thread_idx)
{
    const struct rec_job *j = arg;
    (void)thread_idx;
    j->cpu->rec.wkv_inputs(j->a, row);
}

static void wkv_part(void *arg, uint32_t item, int thread_idx)
{
    const struct rec_job *j = arg;
    const struct sl_op_wkv7 *a = j->a;
    const int32_t part = (int32_t)(item % j->n_parts);
    const int32_t head = part / j->n_whole, first = part % j->n_whole * j->part;
    struct sl_rest r = sl_rest_of(a->batch, &a->state, item / j->n_parts);
    (void)thread_idx;
    while (sl_next_piece(&r))
        j->cpu->rec.wkv(a, r.row, r.n, head, first, SL_MIN(a->head_dim - first, j->part), r.begin,
                        r.end);
}

void sl_cpu_wkv7(struct sl_backend *be, const struct sl_op_wkv7 *a)
{
    struct rec_job j = {.cpu = sl_cpu(be), .a = a};
    const int64_t n = a->batch->n_tokens, n_heads = a->n_heads;
    SL_ASSERT(a->head_dim <= SL_MAX_STATE_DIM);
    sl_cpu_run(sl_cpu(be), wkv_row, &j, (uint32_t)n, n * n_heads * a->head_dim * 80);
    j.part = sl_part_of(j.cpu, a->batch->n_spans * n_heads, a->head_dim, a->head_dim);
    j.n_whole = SL_CEIL_DIV(a->head_dim, j.part);
    j.n_parts = (uint32_t)(n_heads * j.n_whole);
    sl_cpu_run(sl_cpu(be), wkv_part, &j, (uint32_t)a->batch->n_spans * j.n_parts,
               n * n_heads * a->head_dim * a->head_dim * 5);
}

static void wkv_out_part(void *arg, uint32_t item, int thread_idx)
{
    const struct rec_job *j = arg;
    const struct sl_op_wkv7_out *a = j->a;
    (void)thread_idx;
    for (int32_t h = 0; h < a->n_heads; h++)
        j->cpu->rec.wkv_out(a, item, h);
}

void sl_cpu_wkv7_out(struct sl_backend *be, const struct sl_op_wkv7_out *a)
{
    struct rec_job j = {.cpu = sl_cpu(be), .a = a};
    sl_cpu_run(sl_cpu(be), wkv_out_part, &j, (uint32_t)a->n,
               12 * (int64_t)a->n * a->n_heads * a->head_dim);
}

#define NORM_ITEM 1024 /* values, about */

static void gated_part(void *arg, uint32_t item, int thread_idx)
{
    const struct rec_job *j = arg;
    const struct sl_op_gated_norm *a = j->a;
    const int32_t first = (int32_t)(item % j->n_parts) * j->part;
    (void)thread_idx;
    for (int32_t g = first; g < SL_MIN(first + j->part, a->n_groups); g++)
        j->cpu->rec.gated_norm(a, item / j->n_parts, g);
}

void sl_cpu_gated_norm(struct sl_backend *be, const struct sl_op_gated_norm *a)
{
    struct rec_job j = {.cpu = sl_cpu(be), .a = a, .part = SL_CEIL_DIV(NORM_ITEM, a->dim)};
    j.n_parts = (uint32_t)SL_CEIL_DIV(a->n_groups, j.part);
    sl_cpu_run(sl_cpu(be), gated_part, &j, a->n * (int64_t)j.n_parts,
               24 * (int64_t)a->n * a->n_groups * a->dim);
}
