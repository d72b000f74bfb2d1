/* SPDX-License-Identifier: MIT
 * Attention over the pages whose bounds promise most (ops/ops.h has the rule), and these bounds.
 *
 * Bounds are made when the last row of a page is stored, from what the page then holds, so that
 * they are a function of the page: one that comes from the prefix cache or from a tier brings its
 * own, and one that drafts had filled gets others when it is filled again. A row needs those of
 * pages before its own alone, and all of these are full.
 *
 * A choice is a list of pages for each row and key head. Attention runs over the list as it would
 * over a table of pages, at the positions that the rows have there, so that nothing is copied and
 * all its kernels serve. Rows that see no more pages than the list has go to attention as they are.
 */
#include "cpu/backend.h"

#include "base/check.h"
#include "cpu/place.h"
#include "quant/fp8_e4m3.h"

#include <math.h>
#include <string.h>

/* ---------------------------------------------------------------- bounds */

struct bounds_job {
    const struct sl_op_page_bounds *a;
    const int32_t *pages; /* that are full */
};

/* Dimension d of a tile's keys (struct sl_kv_view). */
static void read_keys(enum sl_dtype dtype, const uint8_t *tile, int dim, int d,
                      float out[SL_KV_TILE])
{
    const uint8_t *pair =
        tile + (d / 2 * SL_KV_TILE * 2 + d % 2) * (dtype == SL_DTYPE_Q8_0 ? 1 : 2);
    const uint8_t *scales = tile + SL_KV_TILE * dim;
    for (int i = 0; i < SL_KV_TILE; i++)
        if (dtype == SL_DTYPE_F32)
            memcpy(&out[i], tile + (d * SL_KV_TILE + i) * 4, 4);
        else if (dtype == SL_DTYPE_BF16)
            out[i] = sl_bf16_to_f32(sl_load_u16(pair + i * 4));
        else if (dtype == SL_DTYPE_F16)
            out[i] = sl_f16_to_f32(sl_load_u16(pair + i * 4));
        else if (dtype == SL_DTYPE_Q8_0)
            out[i] = (float)(int8_t)pair[i * 2] *
                     sl_f16_to_f32(sl_load_u16(scales + (d / SL_KV_SCALE * SL_KV_TILE + i) * 2));
        else
            out[i] = sl_fp8_e4m3_to_f32(tile[d * SL_KV_TILE + i]) *
                     sl_bf16_to_f32(sl_load_u16(scales + i * 2));
}

static void write_bound(enum sl_dtype dtype, float x, uint8_t *at, int d)
{
    if (dtype == SL_DTYPE_F32)
        memcpy(at + d * 4, &x, 4);
    else
        sl_store_u16(at + d * 2, sl_f32_to_bf16(x));
}

static void head_bounds(void *arg, uint32_t item, int thread_idx)
{
    const struct bounds_job *j = arg;
    const struct sl_op_page_bounds *a = j->a;
    const int32_t head = (int32_t)item % a->n_kv_heads, dim = sl_kv_padded_dim(a->head_dim);
    const int n_tiles = a->kv.block_size / SL_KV_TILE;
    const size_t tile_bytes = sl_kv_tile_bytes(a->kv.dtype, a->head_dim);
    const size_t bytes = sl_page_bounds_bytes(a->kv.dtype, 1, a->head_dim);
    uint8_t *page = a->kv.pool + (size_t)j->pages[(int32_t)item / a->n_kv_heads] * a->kv.page_bytes;
    const uint8_t *keys = page + a->kv.k_offset + (size_t)(head * n_tiles) * tile_bytes;
    uint8_t *largest = page + a->bounds_offset + (size_t)head * bytes,
            *smallest = largest + bytes / 2;
    (void)thread_idx;
    for (int d = 0; d < dim; d++) {
        float most = -INFINITY, least = INFINITY, x[SL_KV_TILE];
        for (int t = 0; t < n_tiles; t++) {
            read_keys(a->kv.dtype, keys + (size_t)t * tile_bytes, dim, d, x);
            for (int i = 0; i < SL_KV_TILE; i++) {
                most = x[i] > most ? x[i] : most;
                least = x[i] < least ? x[i] : least;
            }
        }
        const float quarter = 0.25f * (most - least);
        write_bound(a->kv.dtype, most - quarter, largest, d);
        write_bound(a->kv.dtype, least + quarter, smallest, d);
    }
}

void sl_cpu_page_bounds(struct sl_backend *be, const struct sl_op_page_bounds *a)
{
    const int32_t bs = a->kv.block_size;
    SL_ASSERT(a->head_dim <= SL_MAX_HEAD_DIM && bs % SL_KV_TILE == 0 && a->n_kv_heads > 0);
    for (int32_t i = 0; i < a->batch->n_spans; i++) {
        const struct sl_span *s = &a->batch->spans[i];
        const int32_t first = s->pos / bs, n = (s->pos + s->n) / bs - first;
        struct bounds_job j = {.a = a};
        if (n == 0)
            continue;
        j.pages = sl_batch_tables(a->batch, a->kv.group) + s->table_idx + first;
        sl_cpu_run(sl_cpu(be), head_bounds, &j, (int64_t)n * a->n_kv_heads,
                   (int64_t)n * bs * a->n_kv_heads * a->head_dim);
    }
}

/* ---------------------------------------------------------------- choice */

enum { CHUNK = 256 }; /* pages whose bounds are an item */

struct choice_job {
    struct sl_cpu *cpu;
    const struct sl_op_page_attention *a;
    struct sl_span *spans; /* [n_most] what attention is asked for */
    int32_t *lists;        /* [n_most, n_kv_heads, top_pages] pages */
    float *scores;         /* [n_most, n_kv_heads, ld] of pages behind the first ones */
    int32_t n, n_most, ld, n_chunks;
    int32_t dim; /* padded */
};

/* Pages between those at both ends that every row sees. */
static int32_t n_between(const struct choice_job *j, int32_t pos)
{
    return pos / j->a->all.kv.block_size + 1 - SL_TOP_PAGES_FIRST - SL_TOP_PAGES_LAST;
}

/* A row that chooses: its position, and the table of its sequence. */
static int32_t row_at(const struct choice_job *j, int32_t row, const int32_t **table)
{
    const struct sl_batch *b = j->a->all.batch;
    const int32_t t = j->spans[row].first;
    const struct sl_span *span = span_of(b, t);
    *table = sl_batch_tables(b, j->a->all.kv.group) + span->table_idx;
    return span->pos + (t - span->first);
}

/* n queries of a token from head h on, as page_scores wants them. */
static void split_queries(const struct choice_job *j, int32_t t, int32_t h, int32_t n, float *out)
{
    const struct sl_op_attention *all = &j->a->all;
    const int32_t dim = all->head_dim;
    memset(out, 0, (size_t)n * 2 * (size_t)j->dim * sizeof *out);
    for (int32_t i = 0; i < n; i++, out += 2 * j->dim) {
        const float *q = all->q + t * all->ld_q + (int64_t)(h + i) * dim;
        for (int32_t d = 0; d < dim; d++) {
            out[d] = q[d] > 0.0f ? q[d] : 0.0f;
            out[j->dim + d] = q[d] > 0.0f ? 0.0f : q[d];
        }
    }
}

/* Bounds of all key heads of a page lie behind each other, so that some pages at a time are read by
 * all of their heads: at 131,072 positions and 8 heads one head after another takes about twice as
 * long. */
static void score_pages(void *arg, uint32_t item, int thread_idx)
{
    const struct choice_job *j = arg;
    const struct sl_op_attention *all = &j->a->all;
    const int32_t row = (int32_t)item / j->n_chunks, from = (int32_t)item % j->n_chunks * CHUNK;
    const int32_t n_group = all->n_heads / all->n_kv_heads, t = j->spans[row].first;
    const size_t bytes = sl_page_bounds_bytes(all->kv.dtype, 1, all->head_dim);
    float *query = j->cpu->attn_scratch[thread_idx].query;
    const uint8_t *bounds[CHUNK + SL_PAGES_AHEAD];
    const int32_t *table, n = SL_MIN(n_between(j, row_at(j, row, &table)) - from, CHUNK);
    const int32_t most = SL_ATTN_FLOATS / (2 * j->dim), per_head = SL_MIN(most, n_group);
    for (int32_t i = 0; n > 0 && i < n + SL_PAGES_AHEAD; i++)
        bounds[i] =
            all->kv.pool +
            (size_t)table[SL_TOP_PAGES_FIRST + from + SL_MIN(i, n - 1)] * all->kv.page_bytes +
            j->a->bounds_offset;
    for (int32_t kv = 0, n_kv; kv < all->n_kv_heads && n > 0; kv += n_kv) {
        n_kv = SL_MIN(most / per_head, all->n_kv_heads - kv); /* 1, if not all queries fit */
        for (int32_t h = 0; h < n_group; h += per_head) {
            const int32_t n_q = SL_MIN(per_head, n_group - h);
            split_queries(j, t, kv * n_group + h, n_kv * n_q, query);
            for (int32_t i = 0; i < n; i += SL_PAGES_AHEAD)
                for (int32_t k = 0; k < n_kv; k++)
                    j->cpu->k.page_scores[sl_index_dtype(all->kv.dtype)](
                        bounds + i, (size_t)(kv + k) * bytes, SL_MIN(n - i, SL_PAGES_AHEAD),
                        query + (int64_t)k * n_q * 2 * j->dim, n_q, j->dim, h > 0,
                        j->scores + ((int64_t)row * all->n_kv_heads + kv + k) * j->ld + from + i);
        }
    }
}

static void choose_pages(void *arg, uint32_t pair, int thread_idx)
{
    const struct choice_job *j = arg;
    const int32_t n_top = j->a->top_pages, middle = n_top - SL_TOP_PAGES_FIRST - SL_TOP_PAGES_LAST;
    int32_t *list = j->lists + (int64_t)pair * n_top;
    const int32_t *table;
    const int32_t n = n_between(j, row_at(j, (int32_t)pair / j->a->all.n_kv_heads, &table));
    (void)thread_idx;
    memcpy(list, table, SL_TOP_PAGES_FIRST * sizeof *list);
    list += SL_TOP_PAGES_FIRST;
    table += SL_TOP_PAGES_FIRST;
    sl_cpu_index_top(j->scores + (int64_t)pair * j->ld, n, middle, list);
    for (int32_t i = 0; i < middle; i++)
        list[i] = table[list[i]];
    memcpy(list + middle, table + n, SL_TOP_PAGES_LAST * sizeof *list);
}

/* ---------------------------------------------------------------- attention */

/* Of the spans so far; chosen: each is a row with lists of its own. */
static void page_attend(struct choice_job *j, bool chosen)
{
    const int32_t n_kv = j->a->all.n_kv_heads;
    struct sl_op_attention all = j->a->all;
    struct sl_batch batch = *all.batch;
    if (j->n == 0)
        return;
    batch.n_spans = j->n;
    batch.spans = j->spans;
    all.batch = &batch;
    if (chosen) {
        const int64_t pairs = (int64_t)j->n * n_kv;
        sl_cpu_run(j->cpu, score_pages, j, (int64_t)j->n * j->n_chunks,
                   (int64_t)j->n * j->ld * 2 * j->dim * all.n_heads);
        sl_cpu_run(j->cpu, choose_pages, j, pairs, 8 * pairs * j->ld);
        batch.block_tables = j->lists;
        batch.n_tables = 1;
        all.kv.group = 0;
        all.head_stride = j->a->top_pages;
    }
    sl_cpu_attention(&j->cpu->base, &all);
    j->n = 0;
}

static void page_add_span(struct choice_job *j, bool chosen, struct sl_span span)
{
    if (j->n == j->n_most)
        page_attend(j, chosen);
    if (chosen)
        span.table_idx = j->n * j->a->all.n_kv_heads * j->a->top_pages;
    j->spans[j->n++] = span;
}

/* Rows that see no more than the lists have. */
static int32_t n_dense_rows(const struct sl_op_page_attention *a, const struct sl_span *s)
{
    const int64_t to = (int64_t)a->top_pages * a->all.kv.block_size;
    return (int32_t)SL_MIN(SL_MAX(to - s->pos, 0), s->n);
}

static void count_pages(const struct sl_op_page_attention *a)
{
    const int32_t bs = a->all.kv.block_size;
    uint64_t read = 0, dense = 0;
    if (a->counts == NULL)
        return;
    for (int32_t i = 0; i < a->all.batch->n_spans; i++) {
        const struct sl_span *s = &a->all.batch->spans[i];
        for (int32_t pos = s->pos; pos < s->pos + s->n; pos++) {
            dense += (uint64_t)(pos / bs + 1);
            read += (uint64_t)SL_MIN(pos / bs + 1, a->top_pages);
        }
    }
    __atomic_fetch_add(&a->counts->read, read * (uint64_t)a->all.n_kv_heads, __ATOMIC_RELAXED);
    __atomic_fetch_add(&a->counts->dense, dense * (uint64_t)a->all.n_kv_heads, __ATOMIC_RELAXED);
}

/* Cuts the room into spans, lists and scores of as many rows as it has place for, one behind the
 * other (tools/page_recall.c reads the lists). */
static bool cut_room(struct choice_job *j)
{
    const struct sl_op_attention *all = &j->a->all;
    int32_t longest = 0;
    for (int32_t i = 0; i < all->batch->n_spans; i++)
        longest = SL_MAX(longest, all->batch->spans[i].pos + all->batch->spans[i].n);
    j->ld = (longest - 1) / all->kv.block_size + 1;
    if (j->ld <= j->a->top_pages)
        return false;
    const size_t one = sl_page_room(all->n_kv_heads, j->a->top_pages, j->ld);
    SL_ASSERT(j->a->room_bytes >= one);
    j->n_most = (int32_t)SL_MIN(j->a->room_bytes / one, (size_t)SL_MAX_STEP_TOKENS);
    j->n_chunks = SL_CEIL_DIV(j->ld, CHUNK);
    j->n_most = SL_MAX(SL_MIN(j->n_most, INT32_MAX / all->n_kv_heads / j->n_chunks), 1);
    j->n_most = SL_MAX(SL_MIN(j->n_most, INT32_MAX / all->n_kv_heads / j->a->top_pages), 1);
    j->spans = j->a->room;
    j->lists = (int32_t *)(void *)(j->spans + j->n_most);
    j->scores =
        (float *)(void *)(j->lists + (int64_t)j->n_most * all->n_kv_heads * j->a->top_pages);
    return true;
}

void sl_cpu_page_attention(struct sl_backend *be, const struct sl_op_page_attention *a)
{
    const struct sl_op_attention *all = &a->all;
    struct choice_job j = {.cpu = sl_cpu(be), .a = a, .dim = sl_kv_padded_dim(all->head_dim)};
    SL_ASSERT(!all->whole && !all->v_in_k && all->window == 0 && all->skip_factor == 0.0f);
    SL_ASSERT(a->top_pages >= SL_TOP_PAGES_MIN && a->bounds_offset > 0);
    count_pages(a);
    if (!cut_room(&j)) {
        sl_cpu_attention(be, all);
        return;
    }
    for (int32_t i = 0; i < all->batch->n_spans; i++) {
        struct sl_span s = all->batch->spans[i];
        s.n = n_dense_rows(a, &s);
        if (s.n > 0)
            page_add_span(&j, false, s);
    }
    page_attend(&j, false);
    for (int32_t i = 0; i < all->batch->n_spans; i++) {
        const struct sl_span *s = &all->batch->spans[i];
        for (int32_t k = n_dense_rows(a, s); k < s->n; k++) {
            const int32_t slot = (s->pos + k) % all->kv.block_size;
            const int32_t pos = (a->top_pages - 1) * all->kv.block_size + slot;
            page_add_span(&j, true, (struct sl_span){.first = s->first + k, .n = 1, .pos = pos});
        }
    }
    page_attend(&j, true);
}
