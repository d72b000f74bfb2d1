/* SPDX-License-Identifier: MIT
 * Causal attention over pages.
 *
 * Keys are cut into splits of 256 at absolute positions. In a split all scores of a query are made,
 * then their maximum m, then p = exp(score - m) and its sum l, then o = sum of p v with the keys in
 * ascending order. Splits join in ascending order by one formula (merge). A query's bits therefore
 * depend on its position, its vector and the keys and values it sees, and on nothing else.
 *
 * Work is cut into tiles of up to 32 query vectors (rows of one span x heads that share a key
 * head), so that 32 keys are converted to float once (in L1) for all of them. A tile walks its
 * splits by itself when there are tiles enough for the threads; when there are few (decode with
 * long context) the splits of all tiles are items of their own, leave (m, l, o) in cpu->partials
 * and are joined afterwards, in the same order by the same formula.
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
    int32_t ld;                    /* head_dim rounded up to whole vectors, zeros behind */
    int32_t n_group;               /* query heads of a key head */
    int32_t n_tile_heads;          /* of them in one tile */
    int32_t n_tile_rows;           /* rows of a span in one tile */
    int32_t n_chunks;              /* tiles the heads of one key head make */
    int32_t n_tiles;               /* row blocks x key heads x chunks */
    size_t slot_floats;            /* partials of one (tile, split): o, then (m, l) pairs */
    int32_t splits_from, splits_n; /* splits of this round, counted from each tile's first */
};

struct tile {
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

static void tile_at(const struct job *j, uint32_t item, struct tile *t)
{
    int32_t per_block = j->a->n_kv_heads * j->n_chunks;
    int32_t block = (int32_t)item / per_block, rest = (int32_t)item % per_block;
    int32_t lo = 0, hi = j->n_spans - 1;
    while (lo < hi) { /* the last span whose first block is not behind ours */
        int32_t mid = lo + (hi - lo + 1) / 2;
        if (j->cpu->first_block[mid] <= block)
            lo = mid;
        else
            hi = mid - 1;
    }
    const struct sl_span *span = &j->spans[lo];
    int32_t row = (block - j->cpu->first_block[lo]) * j->n_tile_rows;
    t->pages = j->a->batch->block_tables + span->table_idx;
    t->token = span->first + row;
    t->pos = span->pos + row;
    t->n_rows = SL_MIN(j->n_tile_rows, span->n - row);
    t->kv_head = rest / j->n_chunks;
    int32_t chunk = rest % j->n_chunks;
    t->head = t->kv_head * j->n_group + chunk * j->n_tile_heads;
    t->n_heads = SL_MIN(j->n_tile_heads, j->n_group - chunk * j->n_tile_heads);
    int32_t from = j->a->window > 0 ? SL_MAX(t->pos - j->a->window + 1, 0) : 0;
    t->split_from = from / SL_CPU_SPLIT;
    t->split_to = (t->pos + t->n_rows - 1) / SL_CPU_SPLIT + 1;
}

static void load_queries(const struct job *j, const struct tile *t, float *query)
{
    int32_t hd = j->a->head_dim;
    for (int32_t r = 0; r < t->n_rows; r++)
        for (int32_t h = 0; h < t->n_heads; h++, query += j->ld) {
            const float *q = j->a->q + (t->token + r) * j->a->ld_q + (int64_t)(t->head + h) * hd;
            memcpy(query, q, (size_t)hd * sizeof(float));
            memset(query + hd, 0, (size_t)(j->ld - hd) * sizeof(float));
        }
}

/* Keys (or values, by offset) of positions pos .. pos + n - 1 as float rows ld apart. */
static void load_kv(const struct job *j, const struct tile *t, size_t offset, int32_t pos, int n,
                    float *out)
{
    const struct sl_kv_view *kv = &j->a->kv;
    int32_t hd = j->a->head_dim, bs = kv->block_size;
    size_t head_bytes = (size_t)hd * sl_dtype_info(kv->dtype)->block_bytes;
    while (n > 0) {
        int32_t slot = pos % bs;
        int run = SL_MIN(n, bs - slot);
        const uint8_t *src = kv->pool + (size_t)t->pages[pos / bs] * kv->page_bytes + offset +
                             ((size_t)t->kv_head * (size_t)bs + (size_t)slot) * head_bytes;
        if (hd == j->ld) {
            j->cpu->k.decode[kv->dtype](src, out, (int64_t)run * hd);
        } else {
            for (int i = 0; i < run; i++) {
                j->cpu->k.decode[kv->dtype](src + (size_t)i * head_bytes, out + i * j->ld, hd);
                memset(out + i * j->ld + hd, 0, (size_t)(j->ld - hd) * sizeof(float));
            }
        }
        out += run * j->ld;
        pos += run;
        n -= run;
    }
}

/* Asks for what load_kv will read: pages lie anywhere, so the hardware cannot guess the next one.
 */
static void prefetch_kv(const struct job *j, const struct tile *t, size_t offset, int32_t pos,
                        int n)
{
    const struct sl_kv_view *kv = &j->a->kv;
    int32_t bs = kv->block_size;
    size_t head_bytes = (size_t)j->a->head_dim * sl_dtype_info(kv->dtype)->block_bytes;
    for (int run; n > 0; n -= run, pos += run) {
        int32_t slot = pos % bs;
        run = SL_MIN(n, bs - slot);
        const uint8_t *src = kv->pool + (size_t)t->pages[pos / bs] * kv->page_bytes + offset +
                             ((size_t)t->kv_head * (size_t)bs + (size_t)slot) * head_bytes;
        for (size_t i = 0; i < (size_t)run * head_bytes; i += 64)
            __builtin_prefetch(src + i, 0, 2);
    }
}

static void split_scores(const struct job *j, const struct tile *t, struct sl_cpu_scratch *s,
                         int32_t start, int lo, int hi)
{
    const struct sl_cpu_kernels *k = &j->cpu->k;
    int n_q = t->n_rows * t->n_heads;
    for (int key = lo; key < hi; key += SL_CPU_KEYS) {
        int n = SL_MIN(hi - key, SL_CPU_KEYS);
        load_kv(j, t, j->a->kv.k_offset, start + key, n, s->kv);
        for (int g = 0; g < n; g += SL_CPU_ROWS) {
            int rows = SL_MIN(n - g, SL_CPU_ROWS), next = key + g + SL_CPU_KEYS;
            if (next < hi)
                prefetch_kv(j, t, j->a->kv.k_offset, start + next, SL_MIN(hi - next, SL_CPU_ROWS));
            else /* the values come next */
                prefetch_kv(j, t, j->a->kv.v_offset, start + lo + g, SL_MIN(hi - lo - g, rows));
            k->gemm(s->kv + g * j->ld, j->ld, rows, s->query, j->ld, n_q, j->ld, s->acc, true);
            for (int q = 0; q < n_q; q++)
                k->reduce(s->acc + q * SL_CPU_ROWS * SL_CPU_LANES, rows,
                          s->score + q * SL_CPU_SPLIT + key + g);
        }
    }
}

static void split_values(const struct job *j, const struct tile *t, struct sl_cpu_scratch *s,
                         int32_t split, int lo, int hi, float *o)
{
    const struct sl_cpu_kernels *k = &j->cpu->k;
    int n_q = t->n_rows * t->n_heads, first_lo, first_hi, last_lo, last_hi;
    visible(j, t->pos, split, &first_lo, &first_hi);
    visible(j, t->pos + t->n_rows - 1, split, &last_lo, &last_hi);
    memset(o, 0, (size_t)(n_q * j->ld) * sizeof(float));
    for (int key = lo; key < hi; key += SL_CPU_KEYS) {
        int end = SL_MIN(hi, key + SL_CPU_KEYS);
        load_kv(j, t, j->a->kv.v_offset, split * SL_CPU_SPLIT + key, end - key, s->kv);
        if (end < hi)
            prefetch_kv(j, t, j->a->kv.v_offset, split * SL_CPU_SPLIT + end,
                        SL_MIN(hi - end, SL_CPU_KEYS));
        if (last_lo <= key && end <= first_hi) { /* every row sees all of them */
            k->pv(s->score + key, SL_CPU_SPLIT, n_q, s->kv, end - key, j->ld, o, j->ld);
            continue;
        }
        for (int32_t r = 0; r < t->n_rows; r++) {
            int row_lo, row_hi;
            visible(j, t->pos + r, split, &row_lo, &row_hi);
            row_lo = SL_MAX(row_lo, key);
            row_hi = SL_MIN(row_hi, end);
            if (row_lo < row_hi)
                k->pv(s->score + r * t->n_heads * SL_CPU_SPLIT + row_lo, SL_CPU_SPLIT, t->n_heads,
                      s->kv + (row_lo - key) * j->ld, row_hi - row_lo, j->ld,
                      o + r * t->n_heads * j->ld, j->ld);
        }
    }
}

/* (m, l, o) of every query of the tile over one split; queries that see none of it are left out. */
static void attend_split(const struct job *j, const struct tile *t, struct sl_cpu_scratch *s,
                         int32_t split, float *o, float *ml)
{
    int lo, hi, unused;
    visible(j, t->pos, split, &lo, &unused);
    visible(j, t->pos + t->n_rows - 1, split, &unused, &hi);
    split_scores(j, t, s, split * SL_CPU_SPLIT, lo, hi);
    for (int32_t r = 0; r < t->n_rows; r++) {
        int row_lo, row_hi;
        visible(j, t->pos + r, split, &row_lo, &row_hi);
        for (int q = r * t->n_heads; row_lo < row_hi && q < (r + 1) * t->n_heads; q++)
            j->cpu->k.softmax(s->score + q * SL_CPU_SPLIT, row_lo, row_hi, j->a->scale,
                              j->a->softcap, &ml[2 * q], &ml[2 * q + 1]);
    }
    split_values(j, t, s, split, lo, hi, o);
}

static void state_init(const struct job *j, const struct tile *t, float *state, float *ml)
{
    int n_q = t->n_rows * t->n_heads;
    memset(state, 0, (size_t)(n_q * j->ld) * sizeof(float));
    for (int q = 0; q < n_q; q++) {
        ml[2 * q] = -INFINITY;
        ml[2 * q + 1] = 0.0f;
    }
}

static void state_merge(const struct job *j, const struct tile *t, int32_t split, float *state,
                        float *state_ml, const float *o, const float *ml)
{
    for (int32_t r = 0; r < t->n_rows; r++) {
        int lo, hi;
        visible(j, t->pos + r, split, &lo, &hi);
        for (int q = r * t->n_heads; lo < hi && q < (r + 1) * t->n_heads; q++)
            j->cpu->k.merge(state_ml + 2 * q, state + q * j->ld, ml[2 * q], ml[2 * q + 1],
                            o + q * j->ld, j->ld);
    }
}

static void state_finish(const struct job *j, const struct tile *t, float *state, float *ml)
{
    const struct sl_op_attention *a = j->a;
    int q = 0;
    for (int32_t r = 0; r < t->n_rows; r++)
        for (int32_t h = t->head; h < t->head + t->n_heads; h++, q++)
            j->cpu->k.finish(ml + 2 * q, state + q * j->ld, a->sinks != NULL ? a->sinks + h : NULL,
                             a->head_dim,
                             a->out + (t->token + r) * a->ld_out + (int64_t)h * a->head_dim);
}

static void whole_tile(void *arg, uint32_t item, int thread_idx)
{
    const struct job *j = arg;
    struct sl_cpu_scratch *s = &j->cpu->scratch[thread_idx];
    struct tile t;
    tile_at(j, item, &t);
    load_queries(j, &t, s->query);
    state_init(j, &t, s->state, s->state_ml);
    for (int32_t split = t.split_from; split < t.split_to; split++) {
        attend_split(j, &t, s, split, s->o, s->split_ml);
        state_merge(j, &t, split, s->state, s->state_ml, s->o, s->split_ml);
    }
    state_finish(j, &t, s->state, s->state_ml);
}

/* ---------------------------------------------------------------- splits as items */

static float *slot_at(const struct job *j, int64_t slot)
{
    return j->cpu->partials + (size_t)slot * j->slot_floats;
}

static size_t ml_offset(const struct job *j)
{
    return (size_t)(j->n_tile_rows * j->n_tile_heads * j->ld);
}

static void one_split(void *arg, uint32_t item, int thread_idx)
{
    const struct job *j = arg;
    struct sl_cpu_scratch *s = &j->cpu->scratch[thread_idx];
    struct tile t;
    tile_at(j, item / (uint32_t)j->splits_n, &t);
    int32_t split = t.split_from + j->splits_from + (int32_t)(item % (uint32_t)j->splits_n);
    if (split >= t.split_to)
        return;
    load_queries(j, &t, s->query);
    float *slot = slot_at(j, j->n_tiles + (int64_t)item);
    attend_split(j, &t, s, split, slot, slot + ml_offset(j));
}

static void join_splits(void *arg, uint32_t item, int thread_idx)
{
    const struct job *j = arg;
    (void)thread_idx;
    struct tile t;
    tile_at(j, item, &t);
    float *state = slot_at(j, item), *state_ml = state + ml_offset(j);
    if (j->splits_from == 0)
        state_init(j, &t, state, state_ml);
    int32_t n = t.split_to - t.split_from - j->splits_from;
    for (int32_t i = 0; i < SL_MIN(n, j->splits_n); i++) {
        const float *slot = slot_at(j, j->n_tiles + (int64_t)item * j->splits_n + i);
        state_merge(j, &t, t.split_from + j->splits_from + i, state, state_ml, slot,
                    slot + ml_offset(j));
    }
    if (n > 0 && n <= j->splits_n)
        state_finish(j, &t, state, state_ml);
}

static void by_splits(struct job *j, int32_t max_splits, int32_t splits_per_round, int64_t work)
{
    j->splits_n = SL_MIN(splits_per_round, max_splits);
    for (j->splits_from = 0; j->splits_from < max_splits; j->splits_from += j->splits_n) {
        sl_cpu_run(j->cpu, one_split, j, (int64_t)j->n_tiles * j->splits_n, work);
        sl_cpu_run(j->cpu, join_splits, j, j->n_tiles, work);
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
    j->n_tile_rows = SL_MIN(SL_MAX(SL_CPU_QUERY / j->n_tile_heads, 1), max_rows);
    for (int32_t i = 0; i < j->n_spans; i++) {
        const struct sl_span *s = &j->spans[i];
        int32_t splits = (s->pos + s->n - 1) / SL_CPU_SPLIT + 1;
        j->cpu->first_block[i] = n_blocks;
        n_blocks += SL_CEIL_DIV(s->n, j->n_tile_rows);
        max_splits = SL_MAX(max_splits, splits);
        work += (int64_t)s->n * (s->pos + s->n) * a->n_heads * a->head_dim;
    }
    j->n_tiles = n_blocks * a->n_kv_heads * j->n_chunks;
    j->slot_floats = (size_t)(j->n_tile_rows * j->n_tile_heads * (j->ld + 2));
    int n_threads = j->cpu->n_threads;
    int64_t per_round = (int64_t)(j->cpu->n_partials / j->slot_floats) / j->n_tiles - 1;
    if (n_threads > 1 && j->n_tiles < 4 * n_threads && max_splits > 1 && per_round > 0)
        by_splits(j, max_splits, (int32_t)SL_MIN(per_round, INT32_MAX / j->n_tiles), work);
    else
        sl_cpu_run(j->cpu, whole_tile, j, j->n_tiles, work);
}

void sl_cpu_attention(struct sl_backend *be, const struct sl_op_attention *a)
{
    SL_ASSERT(a->head_dim <= SL_MAX_HEAD_DIM && a->n_heads % a->n_kv_heads == 0);
    struct job j = {.cpu = sl_cpu(be), .a = a};
    j.ld = SL_ROUND_UP(a->head_dim, SL_CPU_LANES);
    j.n_group = a->n_heads / a->n_kv_heads;
    j.n_tile_heads = SL_MIN(j.n_group, SL_CPU_QUERY);
    j.n_chunks = SL_CEIL_DIV(j.n_group, j.n_tile_heads);
    for (int32_t i = 0; i < a->batch->n_spans; i += SL_MAX_SEQS) {
        j.spans = a->batch->spans + i;
        j.n_spans = SL_MIN(a->batch->n_spans - i, SL_MAX_SEQS);
        attend_spans(&j);
    }
}
