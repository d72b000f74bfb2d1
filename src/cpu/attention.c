/* SPDX-License-Identifier: MIT
 * Causal attention over pages.
 *
 * Keys are cut into splits of 256 at absolute positions. In a split all scores of a query are made,
 * then their maximum m, then p = exp(score - m) and its sum l, then o = sum of p v with the keys in
 * ascending order. Splits join in ascending order by one formula (merge). A query's bits therefore
 * depend on its position, its vector and the keys and values it sees, and on nothing else.
 *
 * Work is cut into blocks of up to 64 query vectors (rows of one span x heads that share a key
 * head), so that a key comes out of the cache once for all of them. A block walks its splits by
 * itself when there are blocks enough for the threads; when there are few (decode with long
 * context) the splits of all blocks are items of their own, leave (m, l, o) in cpu->partials and
 * are joined afterwards, in the same order by the same formula.
 *
 * Products are made for whole tiles of 16 positions. What a row may not see of a tile gets p = 0,
 * and zero times any finite value adds nothing; a tile with something else in it (a slot nobody
 * has written, a NaN) is replaced by a cleaned copy for each row.
 */
#include "cpu/backend.h"

#include "base/check.h"

#include <math.h>
#include <string.h>

struct job {
    struct sl_cpu *cpu;
    const struct sl_op_attention *a;
    const struct sl_span *spans; /* at most SL_MAX_SEQS of the batch */
    int32_t n_spans;
    int32_t dim; /* head_dim padded to whole vectors, zeros behind */
    size_t tile_bytes;
    int32_t n_group;               /* query heads of a key head */
    int32_t n_block_heads;         /* of them in one block */
    int32_t n_block_rows;          /* rows of a span in one block */
    int32_t n_chunks;              /* blocks the heads of one key head make */
    int32_t n_blocks;              /* row blocks x key heads x chunks */
    size_t slot_floats;            /* partials of one (block, split): o, then (m, l) pairs */
    int32_t splits_from, splits_n; /* splits of this round, counted from each block's first */
};

struct block {
    const int32_t *pages;
    int32_t token, pos, n_rows; /* first token's index, its position */
    int32_t kv_head, head, n_heads;
    int32_t split_from, split_to;
};

/* Positions of a split, relative to its start, that the row at pos sees; empty when lo >= hi. */
static void visible(const struct job *j, int32_t pos, int32_t split, int *lo, int *hi)
{
    int32_t start = split * SL_CPU_SPLIT, from = 0;
    if (j->a->window > 0 && pos >= j->a->window)
        from = pos - j->a->window + 1;
    *lo = SL_MAX(from - start, 0);
    *hi = SL_MIN(pos + 1 - start, SL_CPU_SPLIT);
}

static void block_at(const struct job *j, uint32_t item, struct block *b)
{
    int32_t per_rows = j->a->n_kv_heads * j->n_chunks;
    int32_t rows = (int32_t)item / per_rows, rest = (int32_t)item % per_rows;
    int32_t lo = 0, hi = j->n_spans - 1;
    while (lo < hi) { /* the last span whose first rows are not behind ours */
        int32_t mid = lo + (hi - lo + 1) / 2;
        if (j->cpu->first_block[mid] <= rows)
            lo = mid;
        else
            hi = mid - 1;
    }
    const struct sl_span *span = &j->spans[lo];
    int32_t row = (rows - j->cpu->first_block[lo]) * j->n_block_rows;
    b->pages = j->a->batch->block_tables + span->table_idx;
    b->token = span->first + row;
    b->pos = span->pos + row;
    b->n_rows = SL_MIN(j->n_block_rows, span->n - row);
    b->kv_head = rest / j->n_chunks;
    int32_t chunk = rest % j->n_chunks;
    b->head = b->kv_head * j->n_group + chunk * j->n_block_heads;
    b->n_heads = SL_MIN(j->n_block_heads, j->n_group - chunk * j->n_block_heads);
    int32_t from = j->a->window > 0 ? SL_MAX(b->pos - j->a->window + 1, 0) : 0;
    b->split_from = from / SL_CPU_SPLIT;
    b->split_to = (b->pos + b->n_rows - 1) / SL_CPU_SPLIT + 1;
}

static void load_queries(const struct job *j, const struct block *b, struct sl_attn_scratch *s)
{
    int32_t hd = j->a->head_dim, ld16 = SL_ATTN_LD16(j->dim);
    bool narrow = j->cpu->attn.bf16[j->a->kv.dtype];
    float *query = s->query;
    uint16_t *query16 = s->query16;
    for (int32_t r = 0; r < b->n_rows; r++)
        for (int32_t h = 0; h < b->n_heads; h++, query += j->dim, query16 += ld16) {
            const float *q = j->a->q + (b->token + r) * j->a->ld_q + (int64_t)(b->head + h) * hd;
            memcpy(query, q, (size_t)hd * sizeof(float));
            memset(query + hd, 0, (size_t)(j->dim - hd) * sizeof(float));
            if (narrow) {
                j->cpu->attn.narrow(query, j->dim, query16);
                memset(query16 + j->dim, 0, (size_t)(ld16 - j->dim) * sizeof *query16);
            }
        }
}

/* ---------------------------------------------------------------- one split */

/* The tiles of keys, then of values, that a block needs of a split, then what comes next. */
struct split_tiles {
    const uint8_t *ptr[2 * SL_ATTN_TILES + SL_ATTN_AHEAD];
    int first, n; /* tiles of the split: first .. first + n - 1 */
};

static const uint8_t *tile_at(const struct job *j, const struct block *b, size_t offset,
                              int32_t pos)
{
    const struct sl_kv_view *kv = &j->a->kv;
    int32_t tile = b->kv_head * (kv->block_size / SL_KV_TILE) + pos % kv->block_size / SL_KV_TILE;
    return kv->pool + (size_t)b->pages[pos / kv->block_size] * kv->page_bytes + offset +
           (size_t)tile * j->tile_bytes;
}

/* lo, hi: what any row of the block sees. */
static void find_tiles(const struct job *j, const struct block *b, int32_t split, int lo, int hi,
                       struct split_tiles *t)
{
    const struct sl_kv_view *kv = &j->a->kv;
    int32_t start = split * SL_CPU_SPLIT, last = b->pos + b->n_rows - 1;
    t->first = lo / SL_KV_TILE;
    t->n = SL_CEIL_DIV(hi, SL_KV_TILE) - t->first;
    for (int i = 0; i < t->n; i++) {
        int32_t pos = start + (t->first + i) * SL_KV_TILE;
        t->ptr[i] = tile_at(j, b, kv->k_offset, pos);
        t->ptr[t->n + i] = tile_at(j, b, kv->v_offset, pos);
    }
    for (int i = 0; i < SL_ATTN_AHEAD; i++) {
        int32_t pos = SL_MIN(start + SL_CPU_SPLIT + i * SL_KV_TILE, last);
        t->ptr[2 * t->n + i] = tile_at(j, b, kv->k_offset, pos);
    }
}

/* Scores of the block to probabilities, in every column of the split's tiles; (m, l) of the rows
 * that see any of it. */
static void probabilities(const struct job *j, const struct block *b, struct sl_attn_scratch *s,
                          int32_t split, const struct split_tiles *t, float *ml)
{
    const int from = t->first * SL_KV_TILE, to = from + t->n * SL_KV_TILE;
    for (int32_t r = 0; r < b->n_rows; r++) {
        int lo, hi;
        visible(j, b->pos + r, split, &lo, &hi);
        for (int q = r * b->n_heads; q < (r + 1) * b->n_heads; q++) {
            float *score = s->score + q * SL_CPU_SPLIT;
            int some_from = to, some_to = to; /* the columns softmax writes */
            if (lo < hi) {
                some_from = lo / 16 * 16;
                some_to = SL_ROUND_UP(hi, 16);
                j->cpu->k.softmax(score, lo, hi, j->a->scale, j->a->softcap, &ml[2 * q],
                                  &ml[2 * q + 1]);
            }
            memset(score + from, 0, (size_t)(some_from - from) * sizeof *score);
            memset(score + some_to, 0, (size_t)(to - some_to) * sizeof *score);
            if (j->cpu->attn.bf16[j->a->kv.dtype])
                j->cpu->attn.narrow(score + from, to - from, s->p16 + q * SL_CPU_SPLIT + from);
        }
    }
}

static void add_values(const struct job *j, struct sl_attn_scratch *s, const uint8_t *const *tiles,
                       int column, int n_tiles, int q, int n_q, float *o)
{
    enum sl_dtype dtype = j->a->kv.dtype;
    struct sl_attn_tiles t = {tiles, n_tiles, j->dim, s->kv};
    int at = q * SL_CPU_SPLIT + column;
    const void *p = j->cpu->attn.bf16[dtype] ? (const void *)(s->p16 + at) : s->score + at;
    j->cpu->attn.values[dtype](&t, p, n_q, o + q * j->dim);
}

/* A tile that holds something p = 0 does not silence, row by row. */
static void add_unclean(const struct job *j, const struct block *b, struct sl_attn_scratch *s,
                        int32_t split, const uint8_t *tile, int column, float *o)
{
    const uint8_t *clean[1 + SL_ATTN_AHEAD];
    for (int i = 0; i <= SL_ATTN_AHEAD; i++)
        clean[i] = (const uint8_t *)s->clean;
    for (int32_t r = 0; r < b->n_rows; r++) {
        int lo, hi;
        visible(j, b->pos + r, split, &lo, &hi);
        if (SL_MAX(lo, column) >= SL_MIN(hi, column + SL_KV_TILE))
            continue;
        sl_attn_clean(j->a->kv.dtype, tile, j->dim, lo - column, hi - column, (uint8_t *)s->clean);
        add_values(j, s, clean, column, 1, r * b->n_heads, b->n_heads, o);
    }
}

static void split_values(const struct job *j, const struct block *b, struct sl_attn_scratch *s,
                         int32_t split, const struct split_tiles *t, float *o)
{
    int n_q = b->n_rows * b->n_heads, all_lo, all_hi, unused, done = 0;
    const uint8_t *const *tiles = t->ptr + t->n;
    visible(j, b->pos, split, &unused, &all_hi);
    visible(j, b->pos + b->n_rows - 1, split, &all_lo, &unused);
    memset(o, 0, (size_t)(n_q * j->dim) * sizeof(float));
    for (int i = 0; i < t->n; i++) {
        int column = (t->first + i) * SL_KV_TILE;
        if ((all_lo <= column && column + SL_KV_TILE <= all_hi) ||
            sl_attn_finite(j->a->kv.dtype, tiles[i], j->dim))
            continue;
        if (done < i)
            add_values(j, s, tiles + done, (t->first + done) * SL_KV_TILE, i - done, 0, n_q, o);
        add_unclean(j, b, s, split, tiles[i], column, o);
        done = i + 1;
    }
    if (done < t->n)
        add_values(j, s, tiles + done, (t->first + done) * SL_KV_TILE, t->n - done, 0, n_q, o);
}

/* (m, l, o) of every query of the block over one split; of queries that see none of it nothing. */
static void attend_split(const struct job *j, const struct block *b, struct sl_attn_scratch *s,
                         int32_t split, float *o, float *ml)
{
    int lo, hi, unused;
    visible(j, b->pos, split, &lo, &unused);
    visible(j, b->pos + b->n_rows - 1, split, &unused, &hi);
    struct split_tiles t;
    find_tiles(j, b, split, lo, hi, &t);
    enum sl_dtype dtype = j->a->kv.dtype;
    struct sl_attn_tiles keys = {t.ptr, t.n, j->dim, s->kv};
    const void *query =
        j->cpu->attn.bf16[dtype] ? (const void *)s->query16 : (const void *)s->query;
    j->cpu->attn.scores[dtype](&keys, query, b->n_rows * b->n_heads,
                               s->score + t.first * SL_KV_TILE);
    probabilities(j, b, s, split, &t, ml);
    split_values(j, b, s, split, &t, o);
}

static void state_init(const struct job *j, const struct block *b, float *state, float *ml)
{
    int n_q = b->n_rows * b->n_heads;
    memset(state, 0, (size_t)(n_q * j->dim) * sizeof(float));
    for (int q = 0; q < n_q; q++) {
        ml[2 * q] = -INFINITY;
        ml[2 * q + 1] = 0.0f;
    }
}

static void state_merge(const struct job *j, const struct block *b, int32_t split, float *state,
                        float *state_ml, const float *o, const float *ml)
{
    for (int32_t r = 0; r < b->n_rows; r++) {
        int lo, hi;
        visible(j, b->pos + r, split, &lo, &hi);
        for (int q = r * b->n_heads; lo < hi && q < (r + 1) * b->n_heads; q++)
            j->cpu->k.merge(state_ml + 2 * q, state + q * j->dim, ml[2 * q], ml[2 * q + 1],
                            o + q * j->dim, j->dim);
    }
}

static void state_finish(const struct job *j, const struct block *b, float *state, float *ml)
{
    const struct sl_op_attention *a = j->a;
    int q = 0;
    for (int32_t r = 0; r < b->n_rows; r++)
        for (int32_t h = b->head; h < b->head + b->n_heads; h++, q++)
            j->cpu->k.finish(ml + 2 * q, state + q * j->dim, a->sinks != NULL ? a->sinks + h : NULL,
                             a->head_dim,
                             a->out + (b->token + r) * a->ld_out + (int64_t)h * a->head_dim);
}

static void whole_block(void *arg, uint32_t item, int thread_idx)
{
    const struct job *j = arg;
    struct sl_attn_scratch *s = &j->cpu->attn_scratch[thread_idx];
    struct block b;
    block_at(j, item, &b);
    load_queries(j, &b, s);
    state_init(j, &b, s->state, s->state_ml);
    for (int32_t split = b.split_from; split < b.split_to; split++) {
        attend_split(j, &b, s, split, s->o, s->split_ml);
        state_merge(j, &b, split, s->state, s->state_ml, s->o, s->split_ml);
    }
    state_finish(j, &b, s->state, s->state_ml);
}

/* ---------------------------------------------------------------- splits as items */

static float *slot_at(const struct job *j, int64_t slot)
{
    return j->cpu->partials + (size_t)slot * j->slot_floats;
}

static size_t ml_offset(const struct job *j)
{
    return (size_t)(j->n_block_rows * j->n_block_heads * j->dim);
}

static void one_split(void *arg, uint32_t item, int thread_idx)
{
    const struct job *j = arg;
    struct sl_attn_scratch *s = &j->cpu->attn_scratch[thread_idx];
    struct block b;
    block_at(j, item / (uint32_t)j->splits_n, &b);
    int32_t split = b.split_from + j->splits_from + (int32_t)(item % (uint32_t)j->splits_n);
    if (split >= b.split_to)
        return;
    load_queries(j, &b, s);
    float *slot = slot_at(j, j->n_blocks + (int64_t)item);
    attend_split(j, &b, s, split, slot, slot + ml_offset(j));
}

static void join_splits(void *arg, uint32_t item, int thread_idx)
{
    const struct job *j = arg;
    (void)thread_idx;
    struct block b;
    block_at(j, item, &b);
    float *state = slot_at(j, item), *state_ml = state + ml_offset(j);
    if (j->splits_from == 0)
        state_init(j, &b, state, state_ml);
    int32_t n = b.split_to - b.split_from - j->splits_from;
    for (int32_t i = 0; i < SL_MIN(n, j->splits_n); i++) {
        const float *slot = slot_at(j, j->n_blocks + (int64_t)item * j->splits_n + i);
        state_merge(j, &b, b.split_from + j->splits_from + i, state, state_ml, slot,
                    slot + ml_offset(j));
    }
    if (n > 0 && n <= j->splits_n)
        state_finish(j, &b, state, state_ml);
}

static void by_splits(struct job *j, int32_t max_splits, int32_t splits_per_round, int64_t work)
{
    j->splits_n = SL_MIN(splits_per_round, max_splits);
    for (j->splits_from = 0; j->splits_from < max_splits; j->splits_from += j->splits_n) {
        sl_cpu_run(j->cpu, one_split, j, (int64_t)j->n_blocks * j->splits_n, work);
        sl_cpu_run(j->cpu, join_splits, j, j->n_blocks, work);
    }
}

/* ---------------------------------------------------------------- the operation */

static void attend_spans(struct job *j)
{
    const struct sl_op_attention *a = j->a;
    int32_t n_blocks = 0, max_splits = 0, max_rows = 1;
    int64_t work = 0;
    for (int32_t i = 0; i < j->n_spans; i++)
        max_rows = SL_MAX(max_rows, j->spans[i].n);
    int32_t most = SL_MIN(SL_ATTN_QUERY, SL_ATTN_FLOATS / j->dim);
    j->n_block_heads = SL_MIN(j->n_group, most);
    j->n_chunks = SL_CEIL_DIV(j->n_group, j->n_block_heads);
    j->n_block_rows = SL_MIN(most / j->n_block_heads, max_rows);
    for (int32_t i = 0; i < j->n_spans; i++) {
        const struct sl_span *s = &j->spans[i];
        int32_t splits = (s->pos + s->n - 1) / SL_CPU_SPLIT + 1;
        j->cpu->first_block[i] = n_blocks;
        n_blocks += SL_CEIL_DIV(s->n, j->n_block_rows);
        max_splits = SL_MAX(max_splits, splits);
        work += (int64_t)s->n * (s->pos + s->n) * a->n_heads * a->head_dim;
    }
    j->n_blocks = n_blocks * a->n_kv_heads * j->n_chunks;
    j->slot_floats = (size_t)(j->n_block_rows * j->n_block_heads * (j->dim + 2));
    int n_threads = j->cpu->n_threads;
    int64_t per_round = (int64_t)(j->cpu->n_partials / j->slot_floats) / j->n_blocks - 1;
    if (n_threads > 1 && j->n_blocks < 4 * n_threads && max_splits > 1 && per_round > 0)
        by_splits(j, max_splits, (int32_t)SL_MIN(per_round, INT32_MAX / j->n_blocks), work);
    else
        sl_cpu_run(j->cpu, whole_block, j, j->n_blocks, work);
}

void sl_cpu_attention(struct sl_backend *be, const struct sl_op_attention *a)
{
    SL_ASSERT(a->head_dim <= SL_MAX_HEAD_DIM && a->n_heads % a->n_kv_heads == 0 &&
              a->kv.block_size % SL_KV_TILE == 0);
    struct job j = {.cpu = sl_cpu(be), .a = a};
    j.dim = sl_kv_padded_dim(a->head_dim);
    j.tile_bytes = sl_kv_tile_bytes(a->kv.dtype, a->head_dim);
    j.n_group = a->n_heads / a->n_kv_heads;
    for (int32_t i = 0; i < a->batch->n_spans; i += SL_MAX_SEQS) {
        j.spans = a->batch->spans + i;
        j.n_spans = SL_MIN(a->batch->n_spans - i, SL_MAX_SEQS);
        attend_spans(&j);
    }
}
