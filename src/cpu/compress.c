/* SPDX-License-Identifier: MIT
 * Attention to a window and to rows that stand for several tokens each (DeepSeek V4). Rows lie in
 * their pages one behind the other; what a position attends to is copied side by side into tiles of
 * keys, over which attention runs as over any other keys, so that all its kernels and its order of
 * sums serve. A copy moves 2 D bytes of a row, in which each of 64 heads multiplies 2 D numbers.
 *
 * Each number of a row that several tokens make depends on these tokens and the row's place alone
 * (compress_tmpl.c), and so does a score of the index; equal scores are chosen from the lowest row
 * on.
 */
#include "base/check.h"
#include "cpu/backend.h"
#include "cpu/pieces.h"
#include "cpu/place.h"

#include <math.h>
#include <string.h>

struct compress_job {
    struct sl_cpu *cpu;
    const void *a;
    uint32_t n_parts; /* items of a span */
    int32_t part;     /* columns of an item */
};

/* x: the dimensions of a head that are rotated, neighbours in pairs. */
static void tail_turn(const float *angles, int32_t n_dims, bool back, float *x)
{
    for (int32_t i = 0; i < n_dims; i += 2) {
        const float c = angles[i], s = back ? -angles[i + 1] : angles[i + 1];
        const float p = x[i], q = x[i + 1];
        x[i] = p * c - q * s;
        x[i + 1] = q * c + p * s;
    }
}

static void check_tail(const struct sl_rope *rope, int32_t dim)
{
    SL_ASSERT(rope != NULL && rope->pairing == SL_ROPE_INTERLEAVED && rope->n_dims % 2 == 0);
    SL_ASSERT(rope->n_dims <= dim && dim <= SL_MAX_HEAD_DIM);
}

static void tails_row(void *arg, uint32_t t, int thread_idx)
{
    const struct compress_job *j = arg;
    const struct sl_op_turn_tails *a = j->a;
    const int32_t n_dims = a->rope->n_dims;
    (void)thread_idx;
    for (int32_t h = 0; h < a->n_heads; h++) {
        float *x = a->x + ((int64_t)t * a->n_heads + h) * a->dim;
        if (a->norm)
            j->cpu->k.rmsnorm(x, NULL, a->eps, a->dim, x);
        tail_turn(a->angles + (int64_t)t * n_dims, n_dims, false, x + a->dim - n_dims);
    }
}

void sl_cpu_turn_tails(struct sl_backend *be, const struct sl_op_turn_tails *a)
{
    struct compress_job j = {.cpu = sl_cpu(be), .a = a};
    check_tail(a->rope, a->dim);
    sl_cpu_run(sl_cpu(be), tails_row, &j, a->n, 2 * (int64_t)a->n * a->n_heads * a->dim);
}

/* ---------------------------------------------------------------- rows in pages */

/* The row of the tokens up to position pos, of which `ratio` make one. */
static uint8_t *row_at(const struct sl_rows_view *v, const int32_t *table, int32_t ratio,
                       size_t row_bytes, int32_t pos)
{
    const int32_t page = table[pos / v->block_size];
    SL_DCHECK(page >= 0);
    return v->pool + (size_t)page * v->page_bytes + v->offset +
           (size_t)(pos % v->block_size / ratio) * row_bytes;
}

static const int32_t *rows_table(const struct sl_batch *b, const struct sl_rows_view *v,
                                 const struct sl_span *span)
{
    return sl_batch_tables(b, v->group) + span->table_idx;
}

/* A row of dim floats, of which `room` has more, to the pages. */
static void row_encode(const struct sl_cpu *cpu, enum sl_dtype dtype, float *row, int32_t dim,
                       uint8_t *to)
{
    const int32_t padded = sl_kv_padded_dim(dim);
    memset(row + dim, 0, (size_t)(padded - dim) * sizeof *row);
    if (dtype == SL_DTYPE_F32)
        memcpy(to, row, (size_t)padded * sizeof *row);
    else
        cpu->k.encode[dtype](row, to, padded);
}

static void store_near(void *arg, uint32_t t, int thread_idx)
{
    const struct compress_job *j = arg;
    const struct sl_op_row_store *a = j->a;
    const struct sl_span *span = span_of(a->batch, (int32_t)t);
    const int32_t pos = span->pos + ((int32_t)t - span->first), n_dims = a->rope->n_dims;
    float *row = j->cpu->attn_scratch[thread_idx].query;
    j->cpu->k.rmsnorm(a->x + (int64_t)t * a->dim, a->norm, a->eps, a->dim, row);
    tail_turn(a->angles + (int64_t)t * n_dims, n_dims, false, row + a->dim - n_dims);
    row_encode(j->cpu, a->rows.dtype, row, a->dim,
               row_at(&a->rows, rows_table(a->batch, &a->rows, span), 1,
                      sl_row_bytes(a->rows.dtype, a->dim), pos));
}

void sl_cpu_row_store(struct sl_backend *be, const struct sl_op_row_store *a)
{
    struct compress_job j = {.cpu = sl_cpu(be), .a = a};
    check_tail(a->rope, a->dim);
    sl_cpu_run(sl_cpu(be), store_near, &j, a->batch->n_tokens,
               4 * (int64_t)a->batch->n_tokens * a->dim);
}

static void compress_part(void *arg, uint32_t item, int thread_idx)
{
    const struct compress_job *j = arg;
    const struct sl_op_compress *a = j->a;
    const int32_t first = (int32_t)(item % j->n_parts) * j->part;
    struct sl_rest r = sl_rest_of(a->batch, &a->state, item / j->n_parts);
    (void)thread_idx;
    while (sl_next_piece(&r))
        j->cpu->rec.compress(a, r.row, r.n, r.pos, first, SL_MIN(a->dim - first, j->part), r.begin,
                             r.end);
}

/* By the position of its first token. */
static void turn_far(const struct sl_op_compress *a, int32_t pos, float *row)
{
    const int32_t n_dims = a->rope->n_dims;
    float angles[SL_MAX_HEAD_DIM];
    const struct sl_op_rope_angles of_first = {
        .positions = &pos, .n = 1, .rope = a->rope, .out = angles};
    sl_cpu_angles_row(&of_first, 0);
    tail_turn(angles, n_dims, false, row + a->dim - n_dims);
}

/* The row that ends with token t, if one does. */
static void store_far(void *arg, uint32_t t, int thread_idx)
{
    const struct compress_job *j = arg;
    const struct sl_op_compress *a = j->a;
    const struct sl_span *span = span_of(a->batch, (int32_t)t);
    const int32_t pos = span->pos + ((int32_t)t - span->first);
    const int64_t w = (int64_t)a->dim * (a->overlap ? 2 : 1);
    float *row = j->cpu->attn_scratch[thread_idx].query;
    if ((pos + 1) % a->ratio != 0)
        return;
    if (a->norm != NULL)
        j->cpu->k.rmsnorm(a->kv + t * w, a->norm, a->eps, a->dim, row);
    else
        memcpy(row, a->kv + t * w, (size_t)a->dim * sizeof *row);
    if (a->rope != NULL)
        turn_far(a, pos + 1 - a->ratio, row);
    row_encode(j->cpu, a->rows.dtype, row, a->dim,
               row_at(&a->rows, rows_table(a->batch, &a->rows, span), a->ratio,
                      sl_row_bytes(a->rows.dtype, a->dim), pos));
}

void sl_cpu_compress(struct sl_backend *be, const struct sl_op_compress *a)
{
    struct compress_job j = {.cpu = sl_cpu(be), .a = a};
    const int64_t n = a->batch->n_tokens;
    SL_ASSERT(a->ratio >= 2 && a->dim <= SL_MAX_HEAD_DIM);
    if (a->rope != NULL)
        check_tail(a->rope, a->dim);
    j.part = sl_part_of(j.cpu, a->batch->n_spans, a->dim, SL_REC_ROWS);
    j.n_parts = (uint32_t)SL_CEIL_DIV(a->dim, j.part);
    sl_cpu_run(j.cpu, compress_part, &j, (uint32_t)a->batch->n_spans * j.n_parts,
               n * a->dim * (a->overlap ? 64 : 32));
    sl_cpu_run(j.cpu, store_far, &j, n,
               n / a->ratio * (4 * a->dim + (a->rope != NULL ? 50 * a->rope->n_dims : 0)));
}

/* ---------------------------------------------------------------- the index */

struct select_job {
    struct sl_cpu *cpu;
    const struct sl_op_compressed_select *a;
    int32_t first, n_splits; /* token; splits of the longest */
    int64_t ld;              /* of scores */
};

/* Rows that the position of token t sees. */
static int32_t rows_seen(const struct sl_batch *b, int32_t t, int32_t ratio)
{
    const struct sl_span *span = span_of(b, t);
    return (span->pos + (t - span->first) + 1) / ratio;
}

/* n rows from `from` on, as tiles of keys in `tiles`. */
static void rows_to_tiles(const struct sl_rows_view *v, const int32_t *table, int32_t ratio,
                          int32_t dim, int32_t from, int32_t n, uint8_t *tiles)
{
    static const uint8_t slots[SL_KV_TILE] = {0};
    const size_t row_bytes = sl_row_bytes(v->dtype, dim);
    for (int32_t at = 0; at < n; at += SL_KV_TILE) {
        const int32_t n_rows = SL_MIN(n - at, SL_KV_TILE);
        const uint8_t *rows[SL_KV_TILE] = {NULL};
        for (int32_t i = 0; i < n_rows; i++)
            rows[i] = row_at(v, table, ratio, row_bytes, (from + at + i + 1) * ratio - 1);
        sl_attn_keys_of_rows(v->dtype, rows, slots, n_rows, sl_kv_padded_dim(dim),
                             tiles + (size_t)(at / SL_KV_TILE) * SL_KV_TILE * row_bytes);
    }
}

/* Queries h to h + n - 1 of a token, as the kernels want them. */
static const void *select_queries(const struct select_job *j, int32_t t, int32_t h, int32_t n,
                                  struct sl_attn_scratch *s)
{
    const int32_t dim = j->a->dim, padded = sl_kv_padded_dim(dim), ld16 = SL_ATTN_LD16(padded);
    const bool narrow = j->cpu->attn.query16[j->a->rows.dtype];
    for (int32_t i = 0; i < n; i++) {
        float *query = s->query + (int64_t)i * padded;
        uint16_t *query16 = s->query16 + (int64_t)i * ld16;
        memcpy(query, j->a->q + ((int64_t)t * j->a->n_heads + h + i) * dim,
               (size_t)dim * sizeof *query);
        memset(query + dim, 0, (size_t)(padded - dim) * sizeof *query);
        if (!narrow)
            continue;
        j->cpu->attn.narrow(query, padded, query16);
        memset(query16 + padded, 0, (size_t)(ld16 - padded) * sizeof *query16);
    }
    return narrow ? (const void *)s->query16 : s->query;
}

/* Scores of up to SL_ATTN_GROUP tiles of rows, whose keys fit in `latent`. */
static void select_tiles(const struct select_job *j, int32_t t, int32_t from, int32_t n,
                         float *scores, struct sl_attn_scratch *s)
{
    const struct sl_op_compressed_select *a = j->a;
    const struct sl_span *span = span_of(a->batch, t);
    const int32_t dim = sl_kv_padded_dim(a->dim), n_tiles = SL_CEIL_DIV(n, SL_KV_TILE);
    const size_t tile_bytes = sl_kv_tile_bytes(a->rows.dtype, a->dim);
    const int32_t most = SL_MIN(SL_ATTN_QUERY, SL_ATTN_FLOATS / dim);
    const uint8_t *tiles[SL_ATTN_GROUP + SL_ATTN_AHEAD];
    uint8_t *keys = (uint8_t *)s->latent;
    for (int i = 0; i < n_tiles + SL_ATTN_AHEAD; i++)
        tiles[i] = keys + (size_t)SL_MIN(i, n_tiles - 1) * tile_bytes;
    memset(keys, 0, (size_t)n_tiles * tile_bytes);
    rows_to_tiles(&a->rows, rows_table(a->batch, &a->rows, span), a->ratio, a->dim, from, n, keys);
    const struct sl_attn_tiles all = {tiles, n_tiles, dim, s->kv, &s->shape};
    for (int32_t h = 0; h < a->n_heads; h += most) {
        const int32_t n_h = SL_MIN(most, a->n_heads - h);
        j->cpu->attn.scores[a->rows.dtype](&all, select_queries(j, t, h, n_h, s), n_h, s->score);
        j->cpu->k.index_sum(s->score, a->w + (int64_t)t * a->n_heads + h, n_h, n_tiles * SL_KV_TILE,
                            h > 0, scores);
    }
}

static void select_score(void *arg, uint32_t item, int thread_idx)
{
    const struct select_job *j = arg;
    const int32_t row = (int32_t)item / j->n_splits, t = j->first + row;
    const int32_t n_seen = rows_seen(j->a->batch, t, j->a->ratio);
    const int32_t begin = (int32_t)item % j->n_splits * SL_CPU_SPLIT,
                  end = SL_MIN(n_seen, begin + SL_CPU_SPLIT);
    struct sl_attn_scratch *s = &j->cpu->attn_scratch[thread_idx];
    if (n_seen <= j->a->top_k)
        return;
    s->shape = 0;
    for (int32_t at = begin; at < end; at += SL_ATTN_GROUP * SL_KV_TILE)
        select_tiles(j, t, at, SL_MIN(end - at, SL_ATTN_GROUP * SL_KV_TILE),
                     j->a->scores + row * j->ld + at, s);
    if (j->cpu->attn.end != NULL)
        j->cpu->attn.end(&s->shape);
}

static void select_choose(void *arg, uint32_t row, int thread_idx)
{
    const struct select_job *j = arg;
    const int32_t t = j->first + (int32_t)row, k = j->a->top_k;
    const int32_t n_seen = rows_seen(j->a->batch, t, j->a->ratio);
    (void)thread_idx;
    if (n_seen > k)
        sl_cpu_index_top(j->a->scores + row * j->ld, n_seen, k, j->a->top + (int64_t)t * k);
}

void sl_cpu_compressed_select(struct sl_backend *be, const struct sl_op_compressed_select *a)
{
    struct select_job j = {.cpu = sl_cpu(be), .a = a};
    int32_t longest = 0, n;
    SL_ASSERT(a->rows.dtype == sl_index_dtype(a->rows.dtype) && a->dim <= SL_MAX_HEAD_DIM);
    SL_ASSERT(a->ratio >= 2 && a->top_k >= 1);
    for (int32_t i = 0; i < a->batch->n_spans; i++)
        longest = SL_MAX(longest, (a->batch->spans[i].pos + a->batch->spans[i].n) / a->ratio);
    if (longest <= a->top_k)
        return;
    j.ld = sl_index_scores(longest);
    j.n_splits = (int32_t)(j.ld / SL_CPU_SPLIT);
    SL_ASSERT(a->n_scores >= j.ld);
    for (j.first = 0; j.first < a->batch->n_tokens; j.first += n) {
        n = (int32_t)SL_MIN(a->batch->n_tokens - j.first, a->n_scores / j.ld);
        n = SL_MIN(n, INT32_MAX / j.n_splits);
        sl_cpu_run(j.cpu, select_score, &j, (int64_t)n * j.n_splits,
                   n * j.ld * a->n_heads * a->dim);
        sl_cpu_run(j.cpu, select_choose, &j, n, 8 * n * j.ld);
    }
}

/* ---------------------------------------------------------------- attention */

struct attend_job {
    struct sl_cpu *cpu;
    const struct sl_op_compressed_attention *a;
    int32_t first, n; /* tokens that are worked on */
    int32_t n_tiles;  /* of a token */
    size_t tile_bytes;
    uint8_t *pages;
    struct sl_span *spans;
    int32_t *table;
};

/* Rows made of several tokens that token t attends to. */
static int32_t attend_n_far(const struct sl_op_compressed_attention *a, int32_t t)
{
    const int32_t n = a->ratio > 0 ? rows_seen(a->batch, t, a->ratio) : 0;
    return a->top != NULL ? SL_MIN(n, a->top_k) : n;
}

/* Where what token t attends to lies: row i of it. */
static const uint8_t *attend_row(const struct sl_op_compressed_attention *a, int32_t t,
                                 const struct sl_span *span, int32_t n_far, int32_t i)
{
    const int32_t pos = span->pos + (t - span->first);
    const size_t near = sl_row_bytes(a->near.dtype, a->dim);
    if (i >= n_far) {
        const int32_t from = SL_MAX(pos - a->window + 1, 0);
        return row_at(&a->near, rows_table(a->batch, &a->near, span), 1, near, from + i - n_far);
    }
    const bool chosen = a->top != NULL && rows_seen(a->batch, t, a->ratio) > a->top_k;
    const int32_t row = chosen ? a->top[(int64_t)t * a->top_k + i] : i;
    return row_at(&a->far, rows_table(a->batch, &a->far, span), a->ratio,
                  sl_row_bytes(a->far.dtype, a->dim), (row + 1) * a->ratio - 1);
}

static void attend_gather(void *arg, uint32_t item, int thread_idx)
{
    static const uint8_t slots[SL_KV_TILE] = {0};
    const struct attend_job *j = arg;
    const int32_t i = (int32_t)item / j->n_tiles, from = (int32_t)item % j->n_tiles * SL_KV_TILE;
    const int32_t t = j->first + i, n_seen = j->spans[i].pos + 1;
    const int32_t n = SL_MIN(n_seen - from, SL_KV_TILE);
    const struct sl_span *span = span_of(j->a->batch, t);
    const int32_t n_far = attend_n_far(j->a, t);
    const uint8_t *rows[SL_KV_TILE] = {NULL};
    (void)thread_idx;
    for (int32_t k = 0; k < n; k++)
        rows[k] = attend_row(j->a, t, span, n_far, from + k);
    if (n > 0)
        sl_attn_keys_of_rows(j->a->near.dtype, rows, slots, n, sl_kv_padded_dim(j->a->dim),
                             j->pages + (size_t)item * j->tile_bytes);
}

static void attend_some(struct attend_job *j)
{
    const struct sl_op_compressed_attention *a = j->a;
    const struct sl_batch batch = {
        .n_spans = j->n, .spans = j->spans, .block_tables = j->table, .n_tables = 1};
    for (int32_t i = 0; i < j->n; i++) {
        const struct sl_span *span = span_of(a->batch, j->first + i);
        const int32_t pos = span->pos + (j->first + i - span->first);
        const int32_t n_seen = attend_n_far(a, j->first + i) + SL_MIN(pos + 1, a->window);
        SL_ASSERT(n_seen <= a->n_most);
        j->spans[i] =
            (struct sl_span){.first = j->first + i, .n = 1, .pos = n_seen - 1, .table_idx = i};
        j->table[i] = i;
    }
    sl_cpu_run(j->cpu, attend_gather, j, (int64_t)j->n * j->n_tiles,
               (int64_t)j->n * j->n_tiles * (int64_t)j->tile_bytes);
    const struct sl_op_attention all = {
        .batch = &batch,
        .q = a->q,
        .ld_q = (int64_t)a->n_heads * a->dim,
        .n_heads = a->n_heads,
        .n_kv_heads = 1,
        .head_dim = a->dim,
        .v_dim = a->dim,
        .v_in_k = true,
        .scale = a->scale,
        .sinks = a->sinks,
        .kv = {.pool = j->pages,
               .page_bytes = (size_t)j->n_tiles * j->tile_bytes,
               .dtype = a->near.dtype,
               .block_size = j->n_tiles * SL_KV_TILE},
        .out = a->out,
        .ld_out = (int64_t)a->n_heads * a->dim,
    };
    sl_cpu_attention(&j->cpu->base, &all);
}

static void attend_turn_back(void *arg, uint32_t t, int thread_idx)
{
    const struct compress_job *j = arg;
    const struct sl_op_compressed_attention *a = j->a;
    const int32_t n_dims = a->rope->n_dims;
    float *x = (float *)a->out + (int64_t)t * a->n_heads * a->dim + a->dim - n_dims;
    (void)thread_idx;
    for (int32_t h = 0; h < a->n_heads; h++, x += a->dim)
        tail_turn(a->angles + (int64_t)t * n_dims, n_dims, true, x);
}

void sl_cpu_compressed_attention(struct sl_backend *be, const struct sl_op_compressed_attention *a)
{
    struct attend_job j = {.cpu = sl_cpu(be), .a = a};
    struct compress_job back = {.cpu = sl_cpu(be), .a = a};
    const size_t one = sl_compressed_room(a->near.dtype, a->dim, a->n_most, 1);
    check_tail(a->rope, a->dim);
    SL_ASSERT(a->window >= 1 && a->room_bytes >= one && a->n_most >= 1);
    SL_ASSERT(a->ratio == 0 || a->near.dtype == a->far.dtype);
    j.tile_bytes = sl_kv_tile_bytes(a->near.dtype, a->dim);
    j.n_tiles = SL_CEIL_DIV(a->n_most, SL_KV_TILE);
    const int32_t most = (int32_t)SL_MIN(a->room_bytes / one, (size_t)SL_MAX_STEP_TOKENS);
    j.pages = a->room;
    j.spans = (struct sl_span *)(void *)(j.pages + (size_t)most * (size_t)j.n_tiles * j.tile_bytes);
    j.table = (int32_t *)(void *)(j.spans + most);
    for (j.first = 0; j.first < a->batch->n_tokens; j.first += j.n) {
        j.n = SL_MIN(a->batch->n_tokens - j.first, most);
        attend_some(&j);
    }
    sl_cpu_run(back.cpu, attend_turn_back, &back, a->batch->n_tokens,
               2 * (int64_t)a->batch->n_tokens * a->n_heads * a->rope->n_dims);
}
