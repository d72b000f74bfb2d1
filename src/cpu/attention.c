/* SPDX-License-Identifier: MIT
 * Attention over pages: causal, or of every row over all keys of its span; with a window over those
 * that are near.
 *
 * Keys are cut into splits of 256 at absolute positions. In a split all scores of a query are made,
 * then their maximum m, then p = exp(score - m) and its sum l, then o = sum of p v with the keys in
 * ascending order. Splits join in ascending order by one formula (merge). A query's bits therefore
 * depend on its position, its vector and the keys and values it sees, and on nothing else.
 *
 * Work is cut into blocks of up to 64 query vectors (rows of one span x heads that share a key
 * head), so that a key comes out of the cache once for all of them. Rows that are few take all key
 * heads into one block, because the tiles of a page's heads lie behind each other and memory gives
 * long runs faster than scattered tiles. A block walks its splits by itself when there are blocks
 * enough for the threads; when there are few (decode with long context) the splits of all blocks
 * are items of their own, leave (m, l, o) in cpu->partials and are joined afterwards, query by
 * query on all threads, in the same order by the same formula.
 *
 * Products are made for whole tiles of 16 positions. What a row may not see of a tile gets p = 0,
 * and zero times any finite value adds nothing; a tile with something else in it (a slot nobody
 * has written, a NaN) is replaced by a cleaned copy for each row. Tiles that all queries of a key
 * head leave out (skip-softmax) are not read.
 *
 * Where ranks have the same key heads and divide the positions, each makes (m, l, o) of its splits
 * for the query heads of all, in rounds, and joins those of its own heads from where all ranks'
 * lie, in the same order again.
 */
#include "cpu/backend.h"

#include "base/check.h"

#include <math.h>
#include <string.h>

_Static_assert(SL_KV_STRETCH == SL_CPU_SPLIT, "a split has one rank");

#define FEW_QUERIES   8 /* of a key head: several heads make a block */
#define FETCHED_TILES 8 /* of values, while probabilities are made */
/* Items of a thread, at least, before several key heads make a block. Xeon with AMX, 16 threads, a
 * layer of 8 key heads of 128 behind 16,384 positions: 800 us with 4, 687 with 8, 692 with 16. */
#define MIN_ITEMS 8
/* Ranks cut their work alike, whatever threads each has. */
#define RANK_THREADS 4

struct job {
    struct sl_cpu *cpu;
    const struct sl_op_attention *a;
    const struct sl_cpu_blocks *blocks; /* NULL: rows see what lies in their pages */
    const struct sl_span *spans;        /* at most SL_MAX_SEQS of the batch */
    int32_t n_spans;
    int32_t dim, v_dim; /* of keys and values, padded to whole vectors, zeros behind */
    enum sl_dtype keys, values;
    size_t k_tile_bytes, v_tile_bytes;
    int32_t n_group;               /* query heads of a key head */
    int32_t n_block_heads;         /* of them in one block */
    int32_t n_block_rows;          /* rows of a span in one block */
    int32_t n_block_kv;            /* key heads in one block; several only with all their heads */
    int32_t n_block_queries;       /* at most, of all that */
    int32_t n_chunks;              /* blocks the heads of one key head make */
    int32_t n_kv_blocks;           /* blocks the key heads make */
    int32_t n_blocks;              /* row blocks x key head blocks x chunks */
    size_t slot_floats;            /* partials of one (block, split): o, then (m, l) pairs */
    int32_t splits_from, splits_n; /* splits of this round, counted from each block's first */
    bool skips;                    /* tiles that count for nothing (skip-softmax) */
    int32_t n_ranks;               /* that divide the positions, 1: there are none */
    int32_t own_head, n_own_heads; /* whose output this rank makes */
    int32_t block_from;            /* of ranks: the first block of this round, */
    float *part;                   /* what its splits give here, */
    const float *parts[SL_MAX_RANKS]; /* and on each of these ranks */
};

struct block {
    const int32_t *pages;
    int32_t token, pos, n_rows; /* first token's index, its position */
    int32_t kv_head, n_kv;      /* key heads */
    int32_t head, n_heads;      /* of the first of them */
    int32_t split_from, split_to;
    int32_t n_keys; /* positions of the whole span and what was before it */
    bool is_decode; /* the span is one token */
};

/* Query vectors of one key head; the next one's lie behind them. */
static int per_kv(const struct block *b)
{
    return b->n_rows * b->n_heads;
}

/* The position behind the last one that a row at `pos` sees. */
static int32_t seen_to(const struct job *j, const struct block *b, int32_t pos)
{
    const struct sl_op_attention *a = j->a;
    if (!a->whole)
        return pos + 1;
    return a->window > 0 ? SL_MIN(pos + a->window, b->n_keys) : b->n_keys;
}

/* The first position that a row at `pos` sees. */
static int32_t seen_from(const struct job *j, int32_t pos)
{
    const struct sl_op_attention *a = j->a;
    if (a->window == 0)
        return 0;
    return a->chunks ? pos - pos % a->window : SL_MAX(pos - a->window + 1, 0);
}

/* Positions of a split, relative to its start, that row r of the block sees; empty when lo >= hi.
 */
static void attention_visible(const struct job *j, const struct block *b, int32_t r, int32_t split,
                              int *lo, int *hi)
{
    int32_t start = split * SL_CPU_SPLIT, pos = b->pos + r;
    *lo = SL_MAX(seen_from(j, pos) - start, 0);
    *hi = SL_MIN(seen_to(j, b, pos) - start, SL_CPU_SPLIT);
}

static void block_at(const struct job *j, uint32_t item, struct block *b)
{
    int32_t per_rows = j->n_kv_blocks * j->n_chunks;
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
    b->token = span->first + row;
    b->pos = span->pos + row;
    b->n_rows = SL_MIN(j->n_block_rows, span->n - row);
    b->kv_head = rest / j->n_chunks * j->n_block_kv;
    b->n_kv = SL_MIN(j->n_block_kv, j->a->n_kv_heads - b->kv_head);
    b->pages = sl_batch_tables(j->a->batch, j->a->kv.group) + span->table_idx +
               (int64_t)b->kv_head * j->a->head_stride;
    int32_t chunk = rest % j->n_chunks;
    b->head = b->kv_head * j->n_group + chunk * j->n_block_heads;
    b->n_heads = SL_MIN(j->n_block_heads, j->n_group - chunk * j->n_block_heads);
    b->split_from = seen_from(j, b->pos) / SL_CPU_SPLIT;
    b->n_keys = span->pos + span->n;
    b->is_decode = span->n == 1;
    b->split_to = (seen_to(j, b, b->pos + b->n_rows - 1) - 1) / SL_CPU_SPLIT + 1;
}

/* The token and the head of query vector i. */
static int64_t attention_row_of(const struct block *b, int32_t i)
{
    return b->token + i % per_kv(b) / b->n_heads;
}

static int32_t attention_head_of(const struct job *j, const struct block *b, int32_t i)
{
    return b->head + i / per_kv(b) * j->n_group + i % b->n_heads;
}

static void load_queries(const struct job *j, const struct block *b, struct sl_attn_scratch *s)
{
    int32_t hd = j->a->head_dim, ld16 = SL_ATTN_LD16(j->dim);
    bool narrow = j->cpu->attn.query16[sl_attn_format(j->a->kv.dtype)];
    float *query = s->query;
    uint16_t *query16 = s->query16;
    s->shape = 0;
    for (int32_t i = 0; i < b->n_kv * per_kv(b); i++, query += j->dim, query16 += ld16) {
        const float *q = j->a->q + attention_row_of(b, i) * j->a->ld_q +
                         (int64_t)attention_head_of(j, b, i) * hd;
        memcpy(query, q, (size_t)hd * sizeof(float));
        memset(query + hd, 0, (size_t)(j->dim - hd) * sizeof(float));
        if (sl_attn_rotated(j->keys)) /* as the keys are */
            sl_kv4_rotate(query, j->dim);
        if (narrow) {
            j->cpu->attn.narrow(query, j->dim, query16);
            memset(query16 + j->dim, 0, (size_t)(ld16 - j->dim) * sizeof *query16);
        }
    }
}

/* ---------------------------------------------------------------- one split */

/* What a block needs of a split is read by groups of tiles: the group of one key head, then the
 * same of the next. A few tiles make a group if there are several heads, else all of them. */
struct split_tiles { /* of the block's first key head */
    /* keys, and behind them where the next split starts */
    const uint8_t *key[SL_ATTN_TILES + SL_ATTN_AHEAD];
    const uint8_t *value[SL_ATTN_TILES];
    int first, n;        /* tiles of the split: first .. first + n - 1 */
    int group, n_groups; /* tiles of a group; groups of keys, and as many of values */
};

struct tile_group {
    const uint8_t *ptr[SL_ATTN_TILES + SL_ATTN_AHEAD];
    int at, n; /* tiles at .. at + n - 1 of what is read */
};

static size_t tile_bytes(const struct job *j, bool values)
{
    return values ? j->v_tile_bytes : j->k_tile_bytes;
}

/* Bytes from the tiles of one key head to those of the next in a page. */
static size_t head_bytes(const struct job *j, bool values)
{
    return (size_t)(sl_kv_own_size(&j->a->kv) / SL_KV_TILE) * tile_bytes(j, values);
}

/* Where in the sequence a position of chosen blocks is. */
static int32_t attention_chosen(const struct job *j, const struct block *b, int32_t pos)
{
    const struct sl_cpu_blocks *c = j->blocks;
    const int32_t *top = c->top + ((int64_t)b->token * j->a->n_kv_heads + b->kv_head) * c->top_k;
    SL_DCHECK(b->n_rows == 1 && b->n_kv == 1 && pos / c->block < c->top_k);
    return top[pos / c->block] * c->block + pos % c->block;
}

static const uint8_t *tile_at(const struct job *j, const struct block *b, bool values, int32_t pos)
{
    const struct sl_kv_view *kv = &j->a->kv;
    if (j->blocks != NULL)
        pos = attention_chosen(j, b, pos);
    const size_t tile = (size_t)(sl_kv_slot(kv, pos) / SL_KV_TILE);
    return kv->pool + (size_t)b->pages[pos / kv->block_size] * kv->page_bytes +
           (values ? kv->v_offset : kv->k_offset) + (size_t)b->kv_head * head_bytes(j, values) +
           tile * tile_bytes(j, values);
}

/* lo, hi: what any row of the block sees. */
static void find_tiles(const struct job *j, const struct block *b, int32_t split, int lo, int hi,
                       struct split_tiles *t)
{
    int32_t start = split * SL_CPU_SPLIT;
    int32_t next = start + SL_CPU_SPLIT * j->n_ranks; /* where this rank goes on */
    int32_t last = seen_to(j, b, b->pos + b->n_rows - 1) - 1;
    t->first = lo / SL_KV_TILE;
    t->n = SL_CEIL_DIV(hi, SL_KV_TILE) - t->first;
    t->group = b->n_kv > 1 ? SL_ATTN_GROUP : SL_ATTN_TILES;
    t->n_groups = SL_CEIL_DIV(t->n, t->group);
    for (int i = 0; i < t->n; i++) {
        t->key[i] = tile_at(j, b, false, start + (t->first + i) * SL_KV_TILE);
        t->value[i] =
            j->a->v_in_k ? t->key[i] : tile_at(j, b, true, start + (t->first + i) * SL_KV_TILE);
    }
    for (int i = 0; i < SL_ATTN_AHEAD; i++)
        t->key[t->n + i] = tile_at(j, b, false, SL_MIN(next + i * SL_KV_TILE, last));
}

/* Group g of key head kv, of keys or of values, and the tiles that are read after it. */
static void find_group(const struct job *j, const struct block *b, const struct split_tiles *t,
                       bool values, int g, int kv, struct tile_group *out)
{
    const uint8_t *const *from = values ? t->value : t->key;
    size_t off = (size_t)kv * head_bytes(j, values);
    out->at = g * t->group;
    out->n = SL_MIN(t->n - out->at, t->group);
    for (int i = 0; i < out->n; i++)
        out->ptr[i] = from[out->at + i] + off;
    int next = out->at, end = t->n;
    if (kv + 1 < b->n_kv) {
        off += head_bytes(j, values);
    } else if (g + 1 < t->n_groups) {
        next += t->group;
        off = 0;
    } else { /* behind keys the values, behind values the keys of the next split */
        from = values ? t->key : t->value;
        next = values ? t->n : 0;
        end += values ? SL_ATTN_AHEAD : 0;
        off = 0;
    }
    for (int i = 0; i < SL_ATTN_AHEAD; i++)
        out->ptr[out->n + i] = from[SL_MIN(next + i, end - 1)] + off;
}

/* Probabilities read no pages. With few queries memory would wait for them, so each asks for its
 * share of the values that come first, but of what it skips. */
static void fetch_values(const struct job *j, const struct block *b, const struct split_tiles *t,
                         int32_t q, uint32_t skip)
{
    const size_t off = (size_t)(q / per_kv(b)) * head_bytes(j, true);
    const int n = SL_MIN(t->n, FETCHED_TILES);
    for (int i = q % per_kv(b); i < n; i += per_kv(b)) {
        if (skip >> (t->first + i) * SL_KV_TILE / SL_SKIP_TILE & 1)
            continue;
        for (size_t at = 0; at < j->v_tile_bytes; at += 64)
            __builtin_prefetch(t->value[i] + off + at, 0, 2);
    }
}

/* The tiles of the split that query q leaves out, of the keys before hi; the others are wanted. */
static uint32_t skip_tiles(const struct job *j, const struct block *b, struct sl_attn_scratch *s,
                           int32_t q, int hi)
{
    uint32_t *wanted = &s->wanted[q / per_kv(b)], skip = 0;
    const uint32_t all = (1u << SL_CEIL_DIV(hi, SL_SKIP_TILE)) - 1;
    const int32_t pos = b->pos + q % per_kv(b) / b->n_heads;
    if (j->skips) {
        const float reach = sl_attn_skip_reach(j->a->skip_factor, pos);
        skip = sl_attn_skip_tiles(s->score + q * SL_CPU_SPLIT, hi, s->best[q], reach, j->a->scale,
                                  j->a->softcap);
        if (j->a->skip_counts != NULL && reach > -INFINITY) {
            struct sl_skip_counts *c = &j->a->skip_counts[b->is_decode];
            __atomic_fetch_add(&c->tiles, (uint64_t)__builtin_popcount(all), __ATOMIC_RELAXED);
            __atomic_fetch_add(&c->skipped, (uint64_t)__builtin_popcount(skip), __ATOMIC_RELAXED);
        }
    }
    *wanted |= all & ~skip;
    return skip;
}

/* Scores of the block to probabilities, in every column of the split's tiles; (m, l) of the rows
 * that see any of it. */
static void attention_probabilities(const struct job *j, const struct block *b,
                                    struct sl_attn_scratch *s, int32_t split,
                                    const struct split_tiles *t, float *ml)
{
    const int from = t->first * SL_KV_TILE, to = from + t->n * SL_KV_TILE;
    memset(s->wanted, 0, (size_t)b->n_kv * sizeof *s->wanted);
    for (int32_t q = 0; q < b->n_kv * per_kv(b); q++) {
        int lo, hi, some_from = to, some_to = to; /* the columns softmax writes */
        float *score = s->score + q * SL_CPU_SPLIT;
        attention_visible(j, b, q % per_kv(b) / b->n_heads, split, &lo, &hi);
        const uint32_t skip = lo < hi ? skip_tiles(j, b, s, q, hi) : 0;
        if (per_kv(b) <= FEW_QUERIES)
            fetch_values(j, b, t, q, skip);
        ml[2 * q] = -INFINITY;
        ml[2 * q + 1] = 0.0f;
        if (lo < hi && skip != (1u << SL_CEIL_DIV(hi, SL_SKIP_TILE)) - 1) {
            some_from = lo / 16 * 16;
            some_to = SL_ROUND_UP(hi, 16);
            j->cpu->k.softmax(score, lo, hi, skip, j->a->scale, j->a->softcap, &ml[2 * q],
                              &ml[2 * q + 1]);
        }
        memset(score + from, 0, (size_t)(some_from - from) * sizeof *score);
        memset(score + some_to, 0, (size_t)(to - some_to) * sizeof *score);
        if (j->cpu->attn.p16[sl_attn_format(j->a->kv.dtype)])
            j->cpu->attn.narrow(score + from, to - from, s->p16 + q * SL_CPU_SPLIT + from);
    }
}

static void add_values(const struct job *j, struct sl_attn_scratch *s, const uint8_t *const *tiles,
                       int column, int n_tiles, int q, int n_q, float *o)
{
    const struct sl_attn_kernels *k = &j->cpu->attn;
    enum sl_dtype dtype = sl_attn_format(j->a->kv.dtype);
    struct sl_attn_tiles t = {tiles, n_tiles, j->v_dim, s->kv, &s->shape};
    int at = q * SL_CPU_SPLIT + column;
    const void *p = k->p16[dtype] ? (const void *)(s->p16 + at) : s->score + at;
    if (sl_attn_coded(j->values))
        sl_attn_coded_values(k, j->values, &t, s->wide, p, n_q, o + q * j->v_dim);
    else
        k->values[dtype](&t, p, n_q, o + q * j->v_dim);
}

/* A tile that holds something p = 0 does not silence, row by row. */
static void add_unclean(const struct job *j, const struct block *b, struct sl_attn_scratch *s,
                        int32_t split, int kv, const uint8_t *tile, int column, float *o)
{
    const uint8_t *clean[1 + SL_ATTN_AHEAD];
    for (int i = 0; i <= SL_ATTN_AHEAD; i++)
        clean[i] = (const uint8_t *)s->clean;
    for (int32_t r = 0; r < b->n_rows; r++) {
        int lo, hi;
        attention_visible(j, b, r, split, &lo, &hi);
        if (SL_MAX(lo, column) >= SL_MIN(hi, column + SL_KV_TILE))
            continue;
        sl_attn_clean(j->values, tile, j->v_dim, lo - column, hi - column, (uint8_t *)s->clean);
        add_values(j, s, clean, column, 1, kv * per_kv(b) + r * b->n_heads, b->n_heads, o);
    }
}

/* The values of one group times the probabilities of key head kv. */
static void group_values(const struct job *j, const struct block *b, struct sl_attn_scratch *s,
                         int32_t split, int kv, const struct split_tiles *t,
                         const struct tile_group *g, float *o)
{
    int n_q = per_kv(b), q = kv * n_q, all_lo, all_hi, unused, done = 0;
    const int column = (t->first + g->at) * SL_KV_TILE;
    attention_visible(j, b, 0, split, &unused, &all_hi);
    attention_visible(j, b, b->n_rows - 1, split, &all_lo, &unused);
    for (int i = 0; i < g->n; i++) {
        int at = column + i * SL_KV_TILE;
        bool wanted = s->wanted[kv] >> at / SL_SKIP_TILE & 1;
        if ((wanted && all_lo <= at && at + SL_KV_TILE <= all_hi) ||
            (wanted && sl_attn_finite(j->values, g->ptr[i], j->v_dim)))
            continue;
        if (done < i)
            add_values(j, s, g->ptr + done, column + done * SL_KV_TILE, i - done, q, n_q, o);
        if (wanted)
            add_unclean(j, b, s, split, kv, g->ptr[i], at, o);
        done = i + 1;
    }
    if (done < g->n)
        add_values(j, s, g->ptr + done, column + done * SL_KV_TILE, g->n - done, q, n_q, o);
}

/* The same of values that are a part of keys: some tiles at a time become tiles of values. */
static void latent_values(const struct job *j, const struct block *b, struct sl_attn_scratch *s,
                          int32_t split, const struct split_tiles *t, const struct tile_group *g,
                          float *o)
{
    struct tile_group some;
    for (int i = 0; i < g->n; i += some.n) {
        some.at = g->at + i;
        some.n = SL_MIN(SL_ATTN_GROUP, g->n - i);
        for (int k = 0; k < some.n + SL_ATTN_AHEAD; k++)
            some.ptr[k] =
                (const uint8_t *)s->latent + (size_t)SL_MIN(k, some.n - 1) * j->v_tile_bytes;
        for (int k = 0; k < some.n; k++)
            sl_attn_values_of_keys(j->a->kv.dtype, g->ptr[i + k], j->dim, j->v_dim,
                                   (uint8_t *)s->latent + (size_t)k * j->v_tile_bytes);
        group_values(j, b, s, split, 0, t, &some, o);
    }
}

/* n_q queries from q on times some tiles of keys, to columns from `column` on. */
static void group_scores(const struct job *j, struct sl_attn_scratch *s,
                         const struct sl_attn_tiles *keys, int q, int n_q, int column)
{
    const struct sl_attn_kernels *k = &j->cpu->attn;
    const enum sl_dtype dtype = sl_attn_format(j->a->kv.dtype);
    const void *query = k->query16[dtype] ? (const void *)(s->query16 + q * SL_ATTN_LD16(j->dim))
                                          : s->query + q * j->dim;
    float *score = s->score + q * SL_CPU_SPLIT + column;
    if (sl_attn_coded(j->keys))
        sl_attn_coded_scores(k, j->keys, keys, s->wide, query, n_q, score);
    else
        k->scores[dtype](keys, query, n_q, score);
}

/* What skip-softmax compares with: each query's best of the sequence's first keys. */
static void load_best(const struct job *j, const struct block *b, struct sl_attn_scratch *s)
{
    const uint8_t *tiles[1 + SL_ATTN_AHEAD];
    if (!j->skips)
        return;
    for (int k = 0; k < b->n_kv; k++) {
        for (int i = 0; i <= SL_ATTN_AHEAD; i++)
            tiles[i] = tile_at(j, b, false, 0) + (size_t)k * head_bytes(j, false);
        struct sl_attn_tiles keys = {tiles, 1, j->dim, s->kv, &s->shape};
        group_scores(j, s, &keys, k * per_kv(b), per_kv(b), 0);
    }
    for (int32_t q = 0; q < b->n_kv * per_kv(b); q++) {
        const int32_t pos = b->pos + q % per_kv(b) / b->n_heads;
        if (pos >= SL_SKIP_FROM) /* else nobody asks, and it may not see them all */
            s->best[q] = sl_attn_skip_best(s->score + q * SL_CPU_SPLIT, SL_SKIP_FIRST, j->a->scale,
                                           j->a->softcap);
    }
}

static void count_units(const struct job *j, const struct block *b, const struct sl_attn_scratch *s,
                        int n_keys)
{
    const int32_t last = b->pos + b->n_rows - 1;
    const uint32_t all = (1u << SL_CEIL_DIV(n_keys, SL_SKIP_TILE)) - 1;
    if (!j->skips || j->a->skip_counts == NULL ||
        sl_attn_skip_reach(j->a->skip_factor, last) == -INFINITY)
        return;
    struct sl_skip_counts *c = &j->a->skip_counts[b->is_decode];
    for (int k = 0; k < b->n_kv; k++) {
        __atomic_fetch_add(&c->units, (uint64_t)__builtin_popcount(all), __ATOMIC_RELAXED);
        __atomic_fetch_add(&c->units_skipped, (uint64_t)__builtin_popcount(all & ~s->wanted[k]),
                           __ATOMIC_RELAXED);
    }
}

/* (m, l, o) of every query of the block over one split; of queries that see none of it nothing. */
static void attend_split(const struct job *j, const struct block *b, struct sl_attn_scratch *s,
                         int32_t split, float *o, float *ml)
{
    int lo, hi, unused, n_q = per_kv(b);
    attention_visible(j, b, 0, split, &lo, &unused);
    attention_visible(j, b, b->n_rows - 1, split, &unused, &hi);
    struct split_tiles t;
    struct tile_group group;
    find_tiles(j, b, split, lo, hi, &t);
    for (int g = 0; g < t.n_groups; g++)
        for (int kv = 0; kv < b->n_kv; kv++) {
            find_group(j, b, &t, false, g, kv, &group);
            struct sl_attn_tiles keys = {group.ptr, group.n, j->dim, s->kv, &s->shape};
            group_scores(j, s, &keys, kv * n_q, n_q, (t.first + group.at) * SL_KV_TILE);
        }
    attention_probabilities(j, b, s, split, &t, ml);
    count_units(j, b, s, hi);
    memset(o, 0, (size_t)(b->n_kv * n_q * j->v_dim) * sizeof(float));
    for (int g = 0; g < t.n_groups; g++)
        for (int kv = 0; kv < b->n_kv; kv++) {
            find_group(j, b, &t, !j->a->v_in_k, g, kv, &group);
            if (j->a->v_in_k)
                latent_values(j, b, s, split, &t, &group, o);
            else
                group_values(j, b, s, split, kv, &t, &group, o);
        }
}

static void query_init(const struct job *j, int32_t q, float *state, float *ml)
{
    memset(state + q * j->v_dim, 0, (size_t)j->v_dim * sizeof(float));
    ml[2 * q] = -INFINITY;
    ml[2 * q + 1] = 0.0f;
}

static void query_merge(const struct job *j, const struct block *b, int32_t q, int32_t split,
                        float *state, float *state_ml, const float *o, const float *ml)
{
    int lo, hi;
    attention_visible(j, b, q % per_kv(b) / b->n_heads, split, &lo, &hi);
    if (lo < hi)
        j->cpu->k.merge(state_ml + 2 * q, state + q * j->v_dim, ml[2 * q], ml[2 * q + 1],
                        o + q * j->v_dim, j->v_dim);
}

static void query_finish(const struct job *j, const struct block *b, int32_t q, float *state,
                         float *ml)
{
    const struct sl_op_attention *a = j->a;
    const int32_t n = sl_v_dim(a->head_dim, a->v_dim);
    int64_t head = attention_head_of(j, b, q) - j->own_head;
    if (sl_attn_rotated(j->values))
        sl_kv4_rotate_back(state + q * j->v_dim, j->v_dim);
    j->cpu->k.finish(ml + 2 * q, state + q * j->v_dim, a->sinks != NULL ? a->sinks + head : NULL, n,
                     (float *)a->out + attention_row_of(b, q) * a->ld_out + head * n);
}

static void end_item(const struct job *j, struct sl_attn_scratch *s)
{
    if (j->cpu->attn.end != NULL)
        j->cpu->attn.end(&s->shape);
}

static void whole_block(void *arg, uint32_t item, int thread_idx)
{
    const struct job *j = arg;
    struct sl_attn_scratch *s = &j->cpu->attn_scratch[thread_idx];
    struct block b;
    block_at(j, item, &b);
    load_queries(j, &b, s);
    load_best(j, &b, s);
    const int32_t n_q = b.n_kv * per_kv(&b);
    for (int32_t q = 0; q < n_q; q++)
        query_init(j, q, s->state, s->state_ml);
    for (int32_t split = b.split_from; split < b.split_to; split++) {
        attend_split(j, &b, s, split, s->o, s->split_ml);
        for (int32_t q = 0; q < n_q; q++)
            query_merge(j, &b, q, split, s->state, s->state_ml, s->o, s->split_ml);
    }
    end_item(j, s);
    for (int32_t q = 0; q < n_q; q++)
        query_finish(j, &b, q, s->state, s->state_ml);
}

/* ---------------------------------------------------------------- splits as items */

static float *slot_at(const struct job *j, int64_t slot)
{
    return j->cpu->partials + (size_t)slot * j->slot_floats;
}

static size_t ml_offset(const struct job *j)
{
    return (size_t)(j->n_block_queries * j->v_dim);
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
    load_best(j, &b, s);
    float *slot = slot_at(j, j->n_blocks + (int64_t)item);
    attend_split(j, &b, s, split, slot, slot + ml_offset(j));
    end_item(j, s);
}

/* The splits of one query. At 16,384 positions and 32 heads of 128 they are a megabyte that other
 * threads have written. */
static void join_query(void *arg, uint32_t item, int thread_idx)
{
    const struct job *j = arg;
    (void)thread_idx;
    struct block b;
    const uint32_t block = item / (uint32_t)j->n_block_queries;
    const int32_t q = (int32_t)(item % (uint32_t)j->n_block_queries);
    block_at(j, block, &b);
    if (q >= b.n_kv * per_kv(&b))
        return;
    float *state = slot_at(j, block), *state_ml = state + ml_offset(j);
    if (j->splits_from == 0)
        query_init(j, q, state, state_ml);
    int32_t n = b.split_to - b.split_from - j->splits_from;
    for (int32_t i = 0; i < SL_MIN(n, j->splits_n); i++) {
        const float *slot = slot_at(j, j->n_blocks + (int64_t)block * j->splits_n + i);
        query_merge(j, &b, q, b.split_from + j->splits_from + i, state, state_ml, slot,
                    slot + ml_offset(j));
    }
    if (n > 0 && n <= j->splits_n)
        query_finish(j, &b, q, state, state_ml);
}

static void by_splits(struct job *j, int32_t max_splits, int32_t splits_per_round, int64_t work)
{
    j->splits_n = SL_MIN(splits_per_round, max_splits);
    for (j->splits_from = 0; j->splits_from < max_splits; j->splits_from += j->splits_n) {
        sl_cpu_run(j->cpu, one_split, j, (int64_t)j->n_blocks * j->splits_n, work);
        sl_cpu_run(j->cpu, join_query, j, (int64_t)j->n_blocks * j->n_block_queries, work);
    }
}

/* ---------------------------------------------------------------- positions among ranks */

/* A block's splits in groups of one for each rank: the number of its first group. */
static int32_t first_group(const struct job *j, const struct block *b)
{
    return b->split_from / j->n_ranks;
}

/* Slots of a round are those of some blocks, of each of them as many splits of this rank. */
static void own_split(void *arg, uint32_t item, int thread_idx)
{
    const struct job *j = arg;
    struct sl_attn_scratch *s = &j->cpu->attn_scratch[thread_idx];
    struct block b;
    block_at(j, (uint32_t)j->block_from + item / (uint32_t)j->splits_n, &b);
    const int32_t group =
        first_group(j, &b) + j->splits_from + (int32_t)(item % (uint32_t)j->splits_n);
    const int32_t split = group * j->n_ranks + j->a->kv.rank;
    if (split < b.split_from || split >= b.split_to)
        return;
    load_queries(j, &b, s);
    float *slot = j->part + (size_t)item * j->slot_floats;
    attend_split(j, &b, s, split, slot, slot + ml_offset(j));
    end_item(j, s);
}

/* The splits of this round of one query, of all ranks in their order. */
static void join_ranks(void *arg, uint32_t item, int thread_idx)
{
    const struct job *j = arg;
    struct block b;
    const int32_t at = (int32_t)(item / (uint32_t)j->n_block_queries);
    const int32_t q = (int32_t)(item % (uint32_t)j->n_block_queries);
    (void)thread_idx;
    block_at(j, (uint32_t)(j->block_from + at), &b);
    if (q >= b.n_kv * per_kv(&b))
        return;
    const int32_t head = attention_head_of(j, &b, q) - j->own_head;
    if (head < 0 || head >= j->n_own_heads)
        return;
    float *state = slot_at(j, at), *state_ml = state + ml_offset(j);
    if (j->splits_from == 0)
        query_init(j, q, state, state_ml);
    const int32_t from = (first_group(j, &b) + j->splits_from) * j->n_ranks;
    const int32_t to = SL_MIN(b.split_to, from + j->splits_n * j->n_ranks);
    for (int32_t split = SL_MAX(from, b.split_from); split < to; split++) {
        const size_t slot = (size_t)(at * j->splits_n + (split - from) / j->n_ranks);
        const float *o = j->parts[split % j->n_ranks] + slot * j->slot_floats;
        query_merge(j, &b, q, split, state, state_ml, o, o + ml_offset(j));
    }
    if (j->splits_from < (b.split_to - 1) / j->n_ranks - first_group(j, &b) + 1 &&
        b.split_to <= from + j->splits_n * j->n_ranks)
        query_finish(j, &b, q, state, state_ml);
}

/* Groups of splits that a block of a span has at most. */
static int32_t most_groups(const struct job *j, const struct sl_span *s)
{
    const int32_t all = (s->pos + s->n - 1) / SL_CPU_SPLIT / j->n_ranks + 1;
    if (j->a->window == 0)
        return all;
    return SL_MIN(all, (j->a->window + j->n_block_rows) / (SL_CPU_SPLIT * j->n_ranks) + 2);
}

/* All ranks come here with the same spans and shapes, and so to the same rounds. */
static void by_ranks(struct job *j, int64_t work)
{
    struct sl_rank *rank = j->a->rank;
    const uint8_t *parts[SL_MAX_RANKS];
    int32_t n_groups = 1;
    for (int32_t i = 0; i < j->n_spans; i++)
        n_groups = SL_MAX(n_groups, most_groups(j, &j->spans[i]));
    const size_t slot_bytes = j->slot_floats * sizeof(float);
    const int32_t n_slots = (int32_t)(SL_KV_RANK_ROOM / slot_bytes);
    SL_ASSERT(n_slots > 0 && (size_t)n_slots * j->slot_floats <= j->cpu->n_partials);
    const int32_t most = SL_MIN(j->n_blocks, SL_MAX(n_slots / n_groups, 1));
    j->splits_n = SL_MIN(n_groups, n_slots / most);
    for (j->block_from = 0; j->block_from < j->n_blocks; j->block_from += most) {
        const int32_t n = SL_MIN(most, j->n_blocks - j->block_from);
        for (j->splits_from = 0; j->splits_from < n_groups; j->splits_from += j->splits_n) {
            const int64_t items = (int64_t)n * j->splits_n;
            j->part = sl_rank_room(rank);
            sl_cpu_run(j->cpu, own_split, j, items, work);
            sl_cpu_gather_splits(rank, j->part, (size_t)items * slot_bytes, j->a->others, parts);
            for (int32_t i = 0; i < j->n_ranks; i++)
                j->parts[i] = (const float *)(const void *)parts[rank->idx - j->a->kv.rank + i];
            sl_cpu_run(j->cpu, join_ranks, j, (int64_t)n * j->n_block_queries, work);
        }
    }
}

/* ---------------------------------------------------------------- the operation */

/* How the work is cut, from the longest span and what a block may hold. */
static void attention_cut(struct job *j, int32_t max_rows, int32_t max_splits)
{
    const int32_t n_kv = j->a->n_kv_heads;
    int32_t most = SL_MIN(SL_ATTN_QUERY, SL_ATTN_FLOATS / SL_MAX(j->dim, j->v_dim));
    j->n_block_heads = SL_MIN(j->n_group, most);
    j->n_chunks = SL_CEIL_DIV(j->n_group, j->n_block_heads);
    j->n_block_rows = SL_MIN(most / j->n_block_heads, max_rows);
    int32_t row_blocks = 0;
    for (int32_t i = 0; i < j->n_spans; i++) {
        j->cpu->first_block[i] = row_blocks;
        row_blocks += SL_CEIL_DIV(j->spans[i].n, j->n_block_rows);
    }
    /* several key heads in a block of few queries, as long as there are items for all threads */
    int32_t per_head = j->n_block_rows * j->n_block_heads;
    const bool several = per_head <= FEW_QUERIES && j->blocks == NULL && j->a->head_stride == 0;
    j->n_block_kv = several ? SL_MIN(most / per_head, n_kv) : 1;
    const int n_threads = j->n_ranks > 1 ? RANK_THREADS : j->cpu->n_threads;
    while (j->n_block_kv > 1 && n_threads > 1 &&
           (int64_t)row_blocks * SL_CEIL_DIV(n_kv, j->n_block_kv) * max_splits <
               MIN_ITEMS * n_threads)
        j->n_block_kv = (j->n_block_kv + 1) / 2;
    j->n_kv_blocks = SL_CEIL_DIV(n_kv, j->n_block_kv);
    j->n_blocks = row_blocks * j->n_kv_blocks * j->n_chunks;
    j->n_block_queries = j->n_block_kv * per_head;
    j->slot_floats = (size_t)(j->n_block_queries * (j->v_dim + 2));
}

static void attend_spans(struct job *j)
{
    const struct sl_op_attention *a = j->a;
    int32_t max_splits = 0, max_rows = 1;
    int64_t work = 0;
    for (int32_t i = 0; i < j->n_spans; i++) {
        const struct sl_span *s = &j->spans[i];
        max_rows = SL_MAX(max_rows, s->n);
        max_splits = SL_MAX(max_splits, (s->pos + s->n - 1) / SL_CPU_SPLIT + 1);
        work += (int64_t)s->n * (s->pos + s->n) * a->n_heads * a->head_dim;
    }
    attention_cut(j, max_rows, max_splits);
    int n_threads = j->cpu->n_threads;
    if (j->n_ranks > 1) {
        by_ranks(j, work);
        return;
    }
    int64_t per_round = (int64_t)(j->cpu->n_partials / j->slot_floats) / j->n_blocks - 1;
    if (n_threads > 1 && j->n_blocks < 4 * n_threads && max_splits > 1 && per_round > 0)
        by_splits(j, max_splits, (int32_t)SL_MIN(per_round, INT32_MAX / j->n_blocks), work);
    else
        sl_cpu_run(j->cpu, whole_block, j, j->n_blocks, work);
}

void sl_cpu_attend(struct sl_cpu *cpu, const struct sl_op_attention *a,
                   const struct sl_cpu_blocks *blocks)
{
    const int32_t v_dim = sl_v_dim(a->head_dim, a->v_dim);
    SL_ASSERT(a->head_dim <= SL_MAX_HEAD_DIM && v_dim <= SL_MAX_HEAD_DIM &&
              a->n_heads % a->n_kv_heads == 0 && a->kv.block_size % SL_KV_TILE == 0);
    SL_ASSERT(!a->chunks || (a->window > 0 && !a->whole));
    SL_ASSERT(!a->v_in_k || (a->n_kv_heads == 1 && v_dim <= a->head_dim));
    SL_ASSERT(blocks == NULL || (!a->whole && a->window == 0 && a->skip_factor == 0 &&
                                 blocks->block % SL_KV_TILE == 0));
    SL_ASSERT(!a->v_in_k || a->kv.dtype < SL_DTYPE_COUNT);
    SL_ASSERT(!sl_kv_divided(&a->kv) ||
              (a->rank != NULL && blocks == NULL && !a->whole && a->skip_factor == 0 &&
               a->head_stride == 0 && a->n_heads % a->kv.n_ranks == 0 &&
               a->kv.block_size % (SL_KV_STRETCH * a->kv.n_ranks) == 0));
    struct job j = {.cpu = cpu,
                    .a = a,
                    .blocks = blocks,
                    .keys = sl_kv_keys(a->kv.dtype),
                    .values = sl_kv_values(a->kv.dtype)};
    j.dim = sl_kv_padded_dim(a->head_dim);
    j.v_dim = sl_kv_padded_dim(v_dim);
    j.k_tile_bytes = sl_kv_tile_bytes(j.keys, a->head_dim);
    j.v_tile_bytes = sl_kv_tile_bytes(j.values, v_dim);
    j.n_group = a->n_heads / a->n_kv_heads;
    j.n_ranks = sl_kv_divided(&a->kv) ? a->kv.n_ranks : 1;
    j.n_own_heads = a->n_heads / j.n_ranks;
    j.own_head = sl_kv_divided(&a->kv) ? a->kv.rank * j.n_own_heads : 0;
    j.skips = a->skip_factor > 0.0f && !a->whole && a->window == 0;
    for (int32_t i = 0; i < a->batch->n_spans; i += SL_MAX_SEQS) {
        j.spans = a->batch->spans + i;
        j.n_spans = SL_MIN(a->batch->n_spans - i, SL_MAX_SEQS);
        attend_spans(&j);
    }
}

void sl_cpu_attention(struct sl_backend *be, const struct sl_op_attention *a)
{
    sl_cpu_attend(sl_cpu(be), a, NULL);
}
