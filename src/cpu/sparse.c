/* SPDX-License-Identifier: MIT
 * Sparse attention by an index: what a row sees is chosen, then attended to.
 *
 * Scores of an index are the product of attention's scores (attn.h), in splits of 256 keys at
 * absolute positions; then the sum over its queries, in their order. Every number of it depends on
 * the row and the key alone. The largest are found by three passes over their bits, which makes the
 * choice exact: a sparse_threshold, and how many of those equal to it are taken, lowest positions
 * first.
 *
 * The chosen rows are copied side by side into tiles of keys and attention runs over these, so that
 * there is one order of sums for both, and all its kernels serve. Rows of a span that see no more
 * than top_k positions share one copy of these. A copy moves 2 D bytes of a row, in which each head
 * multiplies about 2 D numbers: with 16 heads and more it is less than a tenth of the time.
 *
 * Where blocks are chosen, a score is the largest of the block's products, which needs no order,
 * and whole tiles lie side by side already: attention reads them where they are.
 */
#include "cpu/backend.h"

#include "base/check.h"
#include "cpu/place.h"

#include <float.h>
#include <math.h>
#include <string.h>

/* ---------------------------------------------------------------- scores */

_Static_assert(SL_INDEX_BLOCK == SL_CPU_SPLIT, "blocks lie in one split");

struct score_job {
    struct sl_cpu *cpu;
    const struct sl_op_index_select *a;
    int32_t first, n_splits; /* token; splits of the longest row */
    int64_t ld;              /* of scores */
    int32_t dim;             /* padded */
    size_t tile_bytes;
};

/* Whether a row at `pos` sees all there is up to its own position. */
static bool sparse_sees_all(int32_t top_k, int32_t block, int32_t pos)
{
    return pos / SL_MAX(block, 1) < top_k;
}

static int32_t sparse_pos_of(const struct sl_batch *b, int32_t t)
{
    const struct sl_span *span = span_of(b, t);
    return span->pos + (t - span->first);
}

static void sparse_find_tiles(const struct score_job *j, const struct sl_span *span, int32_t from,
                              int n, const uint8_t **tiles)
{
    const struct sl_kv_view *kv = &j->a->kv;
    const int32_t *table = sl_batch_tables(j->a->batch, kv->group) + span->table_idx;
    for (int i = 0; i < n + SL_ATTN_AHEAD; i++) {
        const int32_t at = from + SL_MIN(i, n - 1) * SL_KV_TILE;
        tiles[i] = kv->pool + (size_t)table[at / kv->block_size] * kv->page_bytes + kv->k_offset +
                   (size_t)(at % kv->block_size / SL_KV_TILE) * j->tile_bytes;
    }
}

/* n queries of a token from h on, as the kernels want them. */
static const void *sparse_load_queries(const struct score_job *j, int32_t t, int32_t h, int32_t n,
                                       struct sl_attn_scratch *s)
{
    const int32_t dim = j->a->dim, ld16 = SL_ATTN_LD16(j->dim);
    const bool narrow = j->cpu->attn.query16[j->a->kv.dtype];
    for (int32_t i = 0; i < n; i++) {
        float *query = s->query + (int64_t)i * j->dim;
        uint16_t *query16 = s->query16 + (int64_t)i * ld16;
        memcpy(query, j->a->q + ((int64_t)t * j->a->n_heads + h + i) * dim,
               (size_t)dim * sizeof *query);
        memset(query + dim, 0, (size_t)(j->dim - dim) * sizeof *query);
        if (!narrow)
            continue;
        j->cpu->attn.narrow(query, j->dim, query16);
        memset(query16 + j->dim, 0, (size_t)(ld16 - j->dim) * sizeof *query16);
    }
    return narrow ? (const void *)s->query16 : s->query;
}

/* The largest of n numbers, NaN being none: in any order the same. A zero of either sign is taken
 * as the same by those who compare. */
static float sparse_max(const float *x, int n)
{
    float most[SL_KV_TILE], all = -INFINITY;
    for (int i = 0; i < SL_KV_TILE; i++)
        most[i] = -INFINITY;
    int at = 0;
    for (; at + SL_KV_TILE <= n; at += SL_KV_TILE)
        for (int i = 0; i < SL_KV_TILE; i++)
            most[i] = x[at + i] > most[i] ? x[at + i] : most[i];
    for (; at < n; at++)
        most[0] = x[at] > most[0] ? x[at] : most[0];
    for (int i = 0; i < SL_KV_TILE; i++)
        all = SL_MAX(all, most[i]);
    return all;
}

/* Of the scores of n_h queries from h on in a split: those of its blocks, as the row at `pos` sees
 * them. */
static void sparse_score_blocks(const struct score_job *j, int32_t row, int32_t h, int32_t n_h,
                                int32_t from, int32_t pos, const float *score)
{
    const struct sl_op_index_select *a = j->a;
    const int64_t ld = j->ld / a->n_heads;
    const int32_t n = SL_MIN(pos + 1 - from, SL_CPU_SPLIT), own = pos / a->block;
    for (int32_t i = 0; i < n_h; i++)
        for (int32_t at = 0; at < n; at += a->block) {
            const int32_t block = (from + at) / a->block;
            const float most = sparse_max(score + i * SL_CPU_SPLIT + at, SL_MIN(a->block, n - at));
            a->scores[row * j->ld + (h + i) * ld + block] =
                block > own - a->n_local ? INFINITY : SL_MIN(most, FLT_MAX);
        }
}

static void sparse_score(void *arg, uint32_t item, int thread_idx)
{
    const struct score_job *j = arg;
    const struct sl_op_index_select *a = j->a;
    const int32_t row = (int32_t)item / j->n_splits, t = j->first + row;
    const int32_t from = (int32_t)item % j->n_splits * SL_CPU_SPLIT,
                  pos = sparse_pos_of(a->batch, t);
    struct sl_attn_scratch *s = &j->cpu->attn_scratch[thread_idx];
    const uint8_t *tiles[SL_ATTN_TILES + SL_ATTN_AHEAD];
    if (from > pos || sparse_sees_all(a->top_k, a->block, pos))
        return;
    const int n = SL_CEIL_DIV(SL_MIN(pos + 1 - from, SL_CPU_SPLIT), SL_KV_TILE);
    const int32_t most = SL_MIN(SL_ATTN_QUERY, SL_ATTN_FLOATS / j->dim);
    sparse_find_tiles(j, span_of(a->batch, t), from, n, tiles);
    const struct sl_attn_tiles keys = {tiles, n, j->dim, s->kv, &s->shape};
    s->shape = 0;
    for (int32_t h = 0; h < a->n_heads; h += most) {
        const int32_t n_h = SL_MIN(most, a->n_heads - h);
        j->cpu->attn.scores[a->kv.dtype](&keys, sparse_load_queries(j, t, h, n_h, s), n_h,
                                         s->score);
        if (a->block > 0)
            sparse_score_blocks(j, row, h, n_h, from, pos, s->score);
        else
            j->cpu->k.index_sum(s->score, a->w + (int64_t)t * a->n_heads + h, n_h, n * SL_KV_TILE,
                                h > 0, a->scores + row * j->ld + from);
    }
    if (j->cpu->attn.end != NULL)
        j->cpu->attn.end(&s->shape);
}

/* ---------------------------------------------------------------- the largest */

#define DIGIT_BITS 11
#define DIGITS     (1 << DIGIT_BITS)

/* In the order of the numbers: zeros of both signs are one, NaN is less than all. */
static uint32_t sparse_order(float x)
{
    uint32_t u;
    x += 0.0f;
    memcpy(&u, &x, sizeof u);
    if ((u & 0x7FFFFFFFu) > 0x7F800000u)
        return 0;
    return (u >> 31) != 0 ? ~u : u | 0x80000000u;
}

/* The top_k-th largest of n > top_k, in that order; *n_equal: how many equal to it are taken. */
static uint32_t sparse_threshold(const float *x, int32_t n, int32_t top_k, int32_t *n_equal)
{
    uint32_t known = 0, mask = 0;
    int32_t wanted = top_k;
    for (int shift = 32 - DIGIT_BITS; mask != UINT32_MAX; shift = SL_MAX(shift - DIGIT_BITS, 0)) {
        int32_t count[DIGITS] = {0}, d = DIGITS - 1;
        const uint32_t low = shift == 0 ? ~mask : DIGITS - 1; /* the last has fewer bits */
        for (int32_t i = 0; i < n; i++) {
            const uint32_t u = sparse_order(x[i]);
            if ((u & mask) == known)
                count[u >> shift & low]++;
        }
        while (count[d] < wanted)
            wanted -= count[d--];
        known |= (uint32_t)d << shift;
        mask |= low << shift;
    }
    *n_equal = wanted;
    return known;
}

void sl_cpu_index_top(const float *x, int32_t n, int32_t top_k, int32_t *top)
{
    int32_t n_equal, at = 0;
    SL_ASSERT(top_k > 0 && n > top_k);
    const uint32_t least = sparse_threshold(x, n, top_k, &n_equal);
    for (int32_t i = 0; i < n && at < top_k; i++) {
        const uint32_t u = sparse_order(x[i]);
        if (u < least || (u == least && n_equal-- <= 0))
            continue;
        top[at++] = i;
    }
    SL_ASSERT(at == top_k);
}

static void sparse_choose(void *arg, uint32_t row, int thread_idx)
{
    const struct score_job *j = arg;
    const int32_t t = j->first + (int32_t)row, pos = sparse_pos_of(j->a->batch, t), k = j->a->top_k;
    (void)thread_idx;
    if (!sparse_sees_all(k, 0, pos))
        sl_cpu_index_top(j->a->scores + row * j->ld, pos + 1, k, j->a->top + (int64_t)t * k);
}

static void sparse_choose_blocks(void *arg, uint32_t row, int thread_idx)
{
    const struct score_job *j = arg;
    const struct sl_op_index_select *a = j->a;
    const int32_t t = j->first + (int32_t)row, pos = sparse_pos_of(a->batch, t);
    (void)thread_idx;
    for (int32_t h = 0; h < a->n_heads && !sparse_sees_all(a->top_k, a->block, pos); h++)
        sl_cpu_index_top(a->scores + row * j->ld + h * (j->ld / a->n_heads), pos / a->block + 1,
                         a->top_k, a->top + ((int64_t)t * a->n_heads + h) * a->top_k);
}

void sl_cpu_index_select(struct sl_backend *be, const struct sl_op_index_select *a)
{
    struct score_job j = {.cpu = sl_cpu(be), .a = a};
    int32_t longest = 0, n;
    SL_ASSERT(a->kv.dtype == sl_index_dtype(a->kv.dtype) && a->dim <= SL_MAX_HEAD_DIM);
    SL_ASSERT(a->block == 0 ||
              (sl_index_block_fits(a->block) && a->n_local > 0 && a->n_local <= a->top_k));
    j.dim = sl_kv_padded_dim(a->dim);
    j.tile_bytes = sl_kv_tile_bytes(a->kv.dtype, a->dim);
    for (int32_t i = 0; i < a->batch->n_spans; i++)
        longest = SL_MAX(longest, a->batch->spans[i].pos + a->batch->spans[i].n);
    if (sparse_sees_all(a->top_k, a->block, longest - 1))
        return;
    j.n_splits = (int32_t)(sl_index_scores(longest) / SL_CPU_SPLIT);
    j.ld = a->block > 0 ? sl_index_block_scores(longest, a->block, a->n_heads)
                        : sl_index_scores(longest);
    SL_ASSERT(a->n_scores >= j.ld);
    for (j.first = 0; j.first < a->batch->n_tokens; j.first += n) {
        n = (int32_t)SL_MIN(a->batch->n_tokens - j.first, a->n_scores / j.ld);
        n = SL_MIN(n, INT32_MAX / j.n_splits);
        sl_cpu_run(j.cpu, sparse_score, &j, (int64_t)n * j.n_splits,
                   n * sl_index_scores(longest) * a->n_heads * j.dim);
        sl_cpu_run(j.cpu, a->block > 0 ? sparse_choose_blocks : sparse_choose, &j, n, 8 * n * j.ld);
    }
}

/* ---------------------------------------------------------------- attention */

struct gather_job {
    struct sl_cpu *cpu;
    const struct sl_op_sparse_attention *a;
    struct sl_span *spans; /* of what is gathered: span i has page i, */
    int32_t *table;        /* as the table says */
    uint8_t *pages;
    int32_t n, n_most;
    int32_t n_seen;  /* positions that rows see which do not see all, at most */
    int32_t n_tiles; /* of a page */
    size_t tile_bytes;
};

/* Positions that a row at pos sees, which does not see all. */
static int32_t sparse_n_chosen(const struct sl_op_sparse_attention *a, int32_t pos)
{
    return a->ratio > 0 ? a->top_k * a->ratio + (pos + 1) % a->ratio : a->top_k;
}

/* The k-th of these, of what the row has chosen. */
static int32_t sparse_chosen(const struct sl_op_sparse_attention *a, const int32_t *top,
                             int32_t pos, int32_t k)
{
    if (a->ratio == 0)
        return top[k];
    if (k < a->top_k * a->ratio)
        return top[k / a->ratio] * a->ratio + k % a->ratio;
    return pos + 1 - sparse_n_chosen(a, pos) + k;
}

/* A tile of keys of what a span of the gathered sees. */
static void sparse_gather(void *arg, uint32_t item, int thread_idx)
{
    const struct gather_job *j = arg;
    const struct sl_op_attention *all = &j->a->all;
    const int32_t i = (int32_t)item / j->n_tiles, tile = (int32_t)item % j->n_tiles;
    const struct sl_span *to = &j->spans[i], *span = span_of(all->batch, to->first);
    const int32_t *table = sl_batch_tables(all->batch, all->kv.group) + span->table_idx;
    const int32_t *top = j->a->top + (int64_t)to->first * j->a->top_k;
    const int32_t n_seen = to->pos + to->n, from = tile * SL_KV_TILE;
    const int32_t own = span->pos + (to->first - span->first);
    const bool chosen = own >= j->n_seen;
    const uint8_t *tiles[SL_KV_TILE];
    uint8_t slots[SL_KV_TILE];
    (void)thread_idx;
    const int n = SL_MIN(n_seen - from, SL_KV_TILE);
    for (int k = 0; k < n; k++) {
        const int32_t pos = chosen ? sparse_chosen(j->a, top, own, from + k) : from + k;
        const int32_t bs = all->kv.block_size;
        tiles[k] = all->kv.pool + (size_t)table[pos / bs] * all->kv.page_bytes + all->kv.k_offset +
                   (size_t)(pos % bs / SL_KV_TILE) * j->tile_bytes;
        slots[k] = (uint8_t)(pos % SL_KV_TILE);
    }
    if (n > 0)
        sl_attn_keys_of_rows(all->kv.dtype, tiles, slots, n, sl_kv_padded_dim(all->head_dim),
                             j->pages + (size_t)item * j->tile_bytes);
}

static void sparse_attend(struct gather_job *j)
{
    const struct sl_batch batch = {
        .n_spans = j->n, .spans = j->spans, .block_tables = j->table, .n_tables = 1};
    struct sl_op_attention all = j->a->all;
    const int64_t moved = (int64_t)j->n * j->n_tiles * (int64_t)j->tile_bytes;
    sl_cpu_run(j->cpu, sparse_gather, j, (int64_t)j->n * j->n_tiles, moved);
    all.batch = &batch;
    all.kv.pool = j->pages;
    all.kv.page_bytes = (size_t)j->n_tiles * j->tile_bytes;
    all.kv.k_offset = all.kv.v_offset = 0;
    all.kv.block_size = j->n_tiles * SL_KV_TILE;
    all.kv.group = 0;
    all.skip_factor = 0;
    sl_cpu_attention(&j->cpu->base, &all);
    j->n = 0;
}

/* n rows from token t on, which see n_seen positions of a page, the last of them. */
static void sparse_add_span(struct gather_job *j, int32_t t, int32_t n, int32_t n_seen)
{
    if (j->n == j->n_most)
        sparse_attend(j);
    j->spans[j->n] = (struct sl_span){.first = t, .n = n, .pos = n_seen - n, .table_idx = j->n};
    j->table[j->n] = j->n;
    j->n++;
}

/* Rows that see all of their pages, with the bits of attention; then each of the others by itself,
 * over its blocks. Both sorts of spans take turns in the room, which has one for each row. */
static void sparse_attend_blocks(struct sl_cpu *cpu, const struct sl_op_sparse_attention *a)
{
    const int32_t n_all = a->top_k * a->block;
    const struct sl_cpu_blocks blocks = {a->top, a->top_k, a->block};
    struct sl_span *spans = a->room;
    struct sl_batch batch = *a->all.batch;
    struct sl_op_attention all = a->all;
    all.batch = &batch;
    all.skip_factor = 0;
    batch.spans = spans;
    for (int some = 0; some < 2; some++) {
        batch.n_spans = 0;
        for (int32_t i = 0; i < a->all.batch->n_spans; i++) {
            struct sl_span s = a->all.batch->spans[i];
            const int32_t n = SL_MIN(SL_MAX(n_all - s.pos, 0), s.n), pos = s.pos, rows = s.n;
            s.n = some ? 1 : n;
            if (!some && n > 0)
                spans[batch.n_spans++] = s;
            for (int32_t r = n; some && r < rows; r++) {
                s.first = a->all.batch->spans[i].first + r;
                s.pos = n_all - a->block + (pos + r) % a->block; /* of all blocks but the last */
                spans[batch.n_spans++] = s;
            }
        }
        SL_ASSERT((size_t)batch.n_spans * sizeof *spans <= a->room_bytes);
        if (batch.n_spans > 0)
            sl_cpu_attend(cpu, &all, some ? &blocks : NULL);
    }
}

void sl_cpu_sparse_attention(struct sl_backend *be, const struct sl_op_sparse_attention *a)
{
    const struct sl_op_attention *all = &a->all;
    const int32_t n_seen = sl_sparse_seen(a->top_k, a->ratio);
    const size_t one = sl_sparse_room(all->kv.dtype, all->head_dim, n_seen, 1);
    struct gather_job j = {.cpu = sl_cpu(be), .a = a, .n_seen = n_seen};
    if (a->block > 0) {
        sparse_attend_blocks(sl_cpu(be), a);
        return;
    }
    SL_ASSERT(all->v_in_k && all->window == 0 && !all->whole);
    SL_ASSERT(a->top_k > 0 && a->room_bytes >= one);
    j.n_most = (int32_t)SL_MIN(a->room_bytes / one, (size_t)SL_MAX_STEP_TOKENS);
    j.tile_bytes = sl_kv_tile_bytes(all->kv.dtype, all->head_dim);
    j.n_tiles = SL_CEIL_DIV(n_seen, SL_KV_TILE);
    j.pages = a->room;
    j.spans =
        (struct sl_span *)(void *)(j.pages + (size_t)j.n_most * (size_t)j.n_tiles * j.tile_bytes);
    j.table = (int32_t *)(void *)(j.spans + j.n_most);
    for (int32_t i = 0; i < all->batch->n_spans; i++) {
        const struct sl_span *s = &all->batch->spans[i];
        const int32_t n_all = SL_MIN(SL_MAX(n_seen - s->pos, 0), s->n); /* rows that see all */
        if (n_all > 0)
            sparse_add_span(&j, s->first, n_all, s->pos + n_all);
        for (int32_t t = n_all; t < s->n; t++)
            sparse_add_span(&j, s->first + t, 1, sparse_n_chosen(a, s->pos + t));
    }
    if (j.n > 0)
        sparse_attend(&j);
}
