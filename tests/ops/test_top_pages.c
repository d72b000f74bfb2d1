/* SPDX-License-Identifier: MIT
 * Attention over the pages with the most promising bounds. Bounds are compared with those of the
 * keys that were stored; the choice with a sort of bounds that are made in
 * double, wherever these are further apart than rounding; what a row gets with the bits of
 * attention over a table of just the pages that it is to choose. All of that by chunks of several
 * sizes, threads and sizes of the room, which must not change a bit.
 */
#include "base/check.h"
#include "base/rng.h"
#include "base/sys.h"
#include "cpu/backend.h"
#include "quant/float.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

enum { N = 500, KV = 3, GROUP = 5, HEADS = KV * GROUP, DIM = 40, V_DIM = 24, MOST_PAGES = 48 };
enum { TOP = 11, MIDDLE = TOP - SL_TOP_PAGES_FIRST - SL_TOP_PAGES_LAST };

static const char *const isas[] = {"c", "avx2", "avx512", "avx512-bf16", "amx"};
static const enum sl_dtype formats[] = {SL_DTYPE_F32, SL_DTYPE_F16, SL_DTYPE_BF16, SL_DTYPE_Q8_0,
                                        SL_DTYPE_FP8_E4M3};

static struct sl_backend *open_isa(const char *name, int n_threads)
{
    struct sl_cpu_config cfg = {.n_threads = n_threads};
    struct sl_error err = {0};
    struct sl_backend *be;
    if (sl_cpu_isa_parse(name, &cfg.isa, &err) != 0 || sl_cpu_create(&cfg, &be, &err) != 0)
        return NULL;
    return be;
}

static float *numbers(uint64_t seed, int n)
{
    struct sl_rng rng = {seed, 0};
    float *p = sl_malloc((size_t)n * sizeof *p);
    assert_non_null(p);
    for (int i = 0; i < n; i++)
        p[i] = (float)sl_rng_normal(&rng);
    return p;
}

struct scene {
    struct sl_backend *be;
    struct sl_kv_view kv;
    size_t bounds_offset, pool_bytes;
    float *q, *k, *v; /* of N rows */
    float *sinks;
    int32_t table[MOST_PAGES], block;
};

static void open_scene(struct scene *s, struct sl_backend *be, enum sl_dtype dtype, int32_t block)
{
    const size_t k_bytes = (size_t)(KV * block / SL_KV_TILE) * sl_kv_tile_bytes(dtype, DIM);
    const size_t v_bytes = (size_t)(KV * block / SL_KV_TILE) * sl_kv_tile_bytes(dtype, V_DIM);
    const int n_pages = SL_CEIL_DIV(N, block);
    *s = (struct scene){.be = be,
                        .bounds_offset = k_bytes + v_bytes,
                        .q = numbers(1, N * HEADS * DIM),
                        .k = numbers(2, N * KV * DIM),
                        .v = numbers(3, N * KV * V_DIM),
                        .sinks = numbers(4, HEADS),
                        .block = block};
    for (int i = 0; i < N; i++) /* pages differ in what they are about */
        for (int d = 0; d < KV * DIM; d++)
            s->k[i * KV * DIM + d] += 2.0f * sinf((float)(i / block * 37 + d * 11));
    s->kv =
        (struct sl_kv_view){.page_bytes = k_bytes + v_bytes + sl_page_bounds_bytes(dtype, KV, DIM),
                            .v_offset = k_bytes,
                            .dtype = dtype,
                            .block_size = block};
    s->pool_bytes = (size_t)n_pages * s->kv.page_bytes;
    s->kv.pool = sl_aligned_alloc(s->pool_bytes);
    assert_non_null(s->kv.pool);
    memset(s->kv.pool, 0xFF, s->pool_bytes); /* what nobody has written is NaN */
    for (int i = 0; i < n_pages; i++)
        s->table[i] = (i * 7 + 2) % n_pages;
}

static void close_scene(struct scene *s)
{
    sl_aligned_free(s->kv.pool, s->pool_bytes);
    sl_free(s->q);
    sl_free(s->k);
    sl_free(s->v);
    sl_free(s->sinks);
}

/* Rows at .. at + n - 1 of the sequence, which are rows 0 .. of the batch. */
static struct sl_batch batch_of(const struct scene *s, struct sl_span *span, int at, int n)
{
    *span = (struct sl_span){.n = n, .pos = at};
    return (struct sl_batch){
        .n_tokens = n, .n_spans = 1, .spans = span, .block_tables = s->table, .n_tables = 1};
}

static void store_rows(const struct scene *s, const float *k, int at, int n)
{
    struct sl_span span;
    const struct sl_batch b = batch_of(s, &span, at, n);
    float *copy = sl_malloc((size_t)(n * KV * DIM) * sizeof *copy);
    assert_non_null(copy);
    memcpy(copy, k + at * KV * DIM, (size_t)(n * KV * DIM) * sizeof *copy);
    s->be->vt->qk_norm_rope_kv_store(
        s->be, &(struct sl_op_qk_norm_rope_kv_store){.batch = &b,
                                                     .k = copy,
                                                     .v = s->v + at * KV * V_DIM,
                                                     .ld_k = KV * DIM,
                                                     .ld_v = KV * V_DIM,
                                                     .n_kv_heads = KV,
                                                     .head_dim = DIM,
                                                     .v_dim = V_DIM,
                                                     .kv = s->kv});
    s->be->vt->page_bounds(s->be, &(struct sl_op_page_bounds){.batch = &b,
                                                              .n_kv_heads = KV,
                                                              .head_dim = DIM,
                                                              .bounds_offset = s->bounds_offset,
                                                              .kv = s->kv});
    sl_free(copy);
}

static struct sl_op_attention all_of(const struct scene *s, const struct sl_batch *b, int at,
                                     float *out)
{
    return (struct sl_op_attention){.batch = b,
                                    .q = s->q + at * HEADS * DIM,
                                    .ld_q = HEADS * DIM,
                                    .n_heads = HEADS,
                                    .n_kv_heads = KV,
                                    .head_dim = DIM,
                                    .v_dim = V_DIM,
                                    .scale = 0.15f,
                                    .sinks = s->sinks,
                                    .kv = s->kv,
                                    .out = out,
                                    .ld_out = HEADS * V_DIM};
}

/* ---------------------------------------------------------------- bounds */

static float bound_at(const struct scene *s, int page, int head, bool smallest, int d)
{
    const size_t at = (size_t)((head * 2 + smallest) * sl_kv_padded_dim(DIM) + d);
    const uint8_t *p = s->kv.pool + (size_t)s->table[page] * s->kv.page_bytes + s->bounds_offset;
    if (s->kv.dtype == SL_DTYPE_F32)
        return ((const float *)(const void *)p)[at];
    return sl_bf16_to_f32(((const uint16_t *)(const void *)p)[at]);
}

/* How far a number may be from what was stored, as a share of the largest of its key. */
static float slack_of(enum sl_dtype dtype)
{
    return dtype == SL_DTYPE_F32        ? 0.0f
           : dtype == SL_DTYPE_FP8_E4M3 ? 0.07f
           : dtype == SL_DTYPE_Q8_0     ? 0.01f
                                        : 0.005f;
}

static void check_bounds(const struct scene *s)
{
    for (int page = 0; page < N / s->block; page++)
        for (int i = 0; i < KV * DIM; i++) {
            float most = -INFINITY, least = INFINITY, top = 0;
            for (int r = page * s->block; r < (page + 1) * s->block; r++) {
                most = fmaxf(most, s->k[r * KV * DIM + i]);
                least = fminf(least, s->k[r * KV * DIM + i]);
                for (int d = 0; d < DIM; d++)
                    top = fmaxf(top, fabsf(s->k[(r * KV + i / DIM) * DIM + d]));
            }
            const float quarter = (most - least) / 4;
            most -= quarter;
            least += quarter;
            const float slack = 1e-6f + slack_of(s->kv.dtype) * top;
            const float have[] = {bound_at(s, page, i / DIM, false, i % DIM),
                                  bound_at(s, page, i / DIM, true, i % DIM)};
            if (!(fabsf(have[0] - most) <= slack && fabsf(have[1] - least) <= slack))
                fail_msg("%s: page %d, head %d, dimension %d: %g, %g, not %g, %g",
                         sl_dtype_info(s->kv.dtype)->name, page, i / DIM, i % DIM, (double)have[0],
                         (double)have[1], (double)most, (double)least);
        }
}

/* In chunks; and with rows that drafts had left, which others are written over. */
static void bounds_are_those_of_keys(void **state)
{
    (void)state;
    for (size_t f = 0; f < SL_COUNT(formats); f++)
        for (int block = 16; block <= 64; block += 16) {
            struct sl_backend *be = open_isa("auto", 1 + block / 32);
            struct scene s;
            assert_non_null(be);
            open_scene(&s, be, formats[f], block);
            float *wrong = numbers(9, N * KV * DIM);
            uint8_t *once = sl_malloc(s.pool_bytes);
            assert_non_null(once);
            store_rows(&s, s.k, 0, N);
            check_bounds(&s);
            memcpy(once, s.kv.pool, s.pool_bytes);
            for (int at = 0, n; at < N; at += n) {
                n = SL_MIN(1 + at * 7 % 45, N - at);
                store_rows(&s, wrong, at, SL_MIN(N - at, 70));
                store_rows(&s, s.k, at, n);
            }
            assert_memory_equal(once, s.kv.pool, s.pool_bytes);
            sl_free(once);
            sl_free(wrong);
            close_scene(&s);
            be->vt->destroy(be);
        }
}

/* ---------------------------------------------------------------- choice */

struct ranked {
    double score;
    int32_t page;
};

static int by_rank(const void *a, const void *b)
{
    const struct ranked *x = a, *y = b;
    if (x->score != y->score)
        return x->score > y->score ? -1 : 1;
    return x->page < y->page ? -1 : 1;
}

static int by_number(const void *a, const void *b)
{
    return *(const int32_t *)a - *(const int32_t *)b;
}

/* The pages that key head kv of row t is to see; false: rounding may decide otherwise. */
static bool pages_of(const struct scene *s, int t, int kv, int32_t *list)
{
    struct ranked r[MOST_PAGES];
    const int own = t / s->block, n = own + 1 - SL_TOP_PAGES_FIRST - SL_TOP_PAGES_LAST;
    assert_true(n > MIDDLE);
    for (int i = 0; i < n; i++) {
        r[i] = (struct ranked){-INFINITY, SL_TOP_PAGES_FIRST + i};
        for (int h = 0; h < GROUP; h++) {
            const float *q = s->q + (t * HEADS + kv * GROUP + h) * DIM;
            double sum = 0;
            for (int d = 0; d < DIM; d++)
                sum += (double)q[d] * (double)bound_at(s, r[i].page, kv, q[d] < 0, d);
            r[i].score = fmax(r[i].score, sum);
        }
    }
    qsort(r, (size_t)n, sizeof *r, by_rank);
    list[0] = 0;
    for (int i = 0; i < MIDDLE; i++)
        list[1 + i] = r[i].page;
    qsort(list + 1, MIDDLE, sizeof *list, by_number);
    for (int i = 0; i < SL_TOP_PAGES_LAST; i++)
        list[1 + MIDDLE + i] = own - SL_TOP_PAGES_LAST + 1 + i;
    return r[MIDDLE - 1].score - r[MIDDLE].score > 1e-4;
}

/* ---------------------------------------------------------------- attention */

/* In steps of `first`, then of `chunk`, with room for n_room rows. */
static void attend(const struct scene *s, int first, int chunk, int n_room, float *out,
                   struct sl_top_page_counts *counts)
{
    const size_t room_bytes = (size_t)n_room * sl_page_room(KV, TOP, SL_CEIL_DIV(N, s->block));
    void *room = sl_aligned_alloc(room_bytes);
    assert_non_null(room);
    memset(room, 0xFF, room_bytes);
    memset(s->kv.pool, 0xFF, s->pool_bytes);
    for (int at = 0, n; at < N; at += n) {
        struct sl_span span;
        n = SL_MIN(at == 0 ? first : chunk, N - at);
        const struct sl_batch b = batch_of(s, &span, at, n);
        store_rows(s, s->k, at, n);
        s->be->vt->page_attention(s->be, &(struct sl_op_page_attention){
                                             .all = all_of(s, &b, at, out + at * HEADS * V_DIM),
                                             .top_pages = TOP,
                                             .bounds_offset = s->bounds_offset,
                                             .counts = counts,
                                             .room = room,
                                             .room_bytes = room_bytes});
    }
    sl_aligned_free(room, room_bytes);
}

/* Row t of the sequence over the n positions of a list of its pages, the last its own. */
static void row_over(const struct scene *s, int t, const int32_t *list, int n, float *out)
{
    int32_t pages[MOST_PAGES];
    const struct sl_span span = {.n = 1, .pos = n - 1};
    for (int i = 0; i < SL_CEIL_DIV(n, s->block); i++)
        pages[i] = s->table[list[i]];
    const struct sl_batch b = {
        .n_tokens = 1, .n_spans = 1, .spans = &span, .block_tables = pages, .n_tables = 1};
    const struct sl_op_attention a = all_of(s, &b, t, out);
    s->be->vt->attention(s->be, &a);
}

static void check_row(const struct scene *s, int t, const float *have, int *n_compared)
{
    float want[HEADS * V_DIM];
    int32_t list[MOST_PAGES];
    for (int i = 0; i < MOST_PAGES; i++)
        list[i] = i;
    if (t / s->block + 1 <= TOP) { /* all of them */
        row_over(s, t, list, t + 1, want);
        if (memcmp(have, want, sizeof want) != 0)
            fail_msg("row %d is not dense", t);
        return;
    }
    for (int kv = 0; kv < KV; kv++) {
        const int from = kv * GROUP * V_DIM;
        if (!pages_of(s, t, kv, list))
            continue;
        row_over(s, t, list, (TOP - 1) * s->block + t % s->block + 1, want);
        if (memcmp(have + from, want + from, GROUP * V_DIM * sizeof *want) != 0)
            fail_msg("row %d, key head %d differs", t, kv);
        ++*n_compared;
    }
}

static void check_rows(const char *isa, int n_threads, enum sl_dtype dtype, int32_t block)
{
    static const int ways[][3] = {{N, N, N}, {N, N, 1}, {190, 1, 2}, {5, 33, 7}};
    struct sl_backend *be = open_isa(isa, n_threads);
    struct scene s;
    float *have = sl_malloc(N * HEADS * V_DIM * sizeof *have);
    float *once = sl_malloc(N * HEADS * V_DIM * sizeof *once);
    int n = 0;
    assert_true(have != NULL && once != NULL);
    for (size_t w = 0; be != NULL && w < SL_COUNT(ways); w += isa[0] == 'c' ? 3 : 1) {
        struct sl_top_page_counts counts = {0};
        open_scene(&s, be, dtype, block);
        memset(have, 0xFF, N * HEADS * V_DIM * sizeof *have);
        attend(&s, ways[w][0], ways[w][1], ways[w][2], w == 0 ? once : have, &counts);
        for (int t = 0; w == 0 && t < N; t += t < TOP * block ? 31 : 17)
            check_row(&s, t, once + t * HEADS * V_DIM, &n);
        if (w > 0 && memcmp(have, once, N * HEADS * V_DIM * sizeof *have) != 0)
            fail_msg("%s, %s, way %zu: bits differ", isa, sl_dtype_info(dtype)->name, w);
        uint64_t read = 0, dense = 0;
        for (int t = 0; t < N; t++) {
            dense += (uint64_t)(KV * (t / block + 1));
            read += (uint64_t)(KV * SL_MIN(t / block + 1, TOP));
        }
        assert_true(counts.read == read && counts.dense == dense && read < dense);
        close_scene(&s);
    }
    assert_true(be == NULL || n > 20);
    sl_free(have);
    sl_free(once);
    if (be != NULL)
        be->vt->destroy(be);
}

static void chosen_pages_are_attended_to(void **state)
{
    (void)state;
    for (size_t i = 0; i < SL_COUNT(isas); i++)
        for (size_t f = 0; f < SL_COUNT(formats); f++)
            check_rows(isas[i], 1 + (int)(f % 3), formats[f], f % 2 == 0 ? 16 : 32);
}

/* The float routes: the same choice, and the same bits, in every instruction set. */
static void instruction_sets_agree(void **state)
{
    static float have[3][N * HEADS * V_DIM];
    (void)state;
    for (int i = 0, n = 0; i < 3; i++) {
        struct sl_backend *be = open_isa(isas[i], 2);
        struct scene s;
        if (be == NULL)
            continue;
        open_scene(&s, be, SL_DTYPE_F16, 16);
        attend(&s, 300, 100, 50, have[n], NULL);
        if (n > 0)
            assert_memory_equal(have[n], have[0], sizeof have[0]);
        n++;
        close_scene(&s);
        be->vt->destroy(be);
    }
}

/* Sequences of a batch, some long enough to choose and some not, each with a chunk of its own. */
static void sequences_do_not_meet(void **state)
{
    enum { SEQS = 4 };
    static const int at[SEQS] = {450, 100, 499, 170}, n[SEQS] = {3, 9, 1, 40};
    static float alone[SEQS][64 * HEADS * V_DIM], together[128 * HEADS * V_DIM];
    static float q[128 * HEADS * DIM];
    struct sl_backend *be = open_isa("auto", 2);
    struct scene s;
    struct sl_span spans[SEQS];
    const size_t room_bytes = 16 * sl_page_room(KV, TOP, MOST_PAGES);
    uint8_t *room = sl_aligned_alloc(room_bytes);
    int first = 0;
    (void)state;
    assert_true(be != NULL && room != NULL);
    open_scene(&s, be, SL_DTYPE_BF16, 16);
    store_rows(&s, s.k, 0, N);
    struct sl_op_page_attention op = {
        .top_pages = TOP, .bounds_offset = s.bounds_offset, .room = room, .room_bytes = room_bytes};
    for (int i = 0; i < SEQS; first += n[i], i++) {
        const struct sl_batch b = batch_of(&s, &spans[i], at[i], n[i]);
        op.all = all_of(&s, &b, at[i], alone[i]);
        be->vt->page_attention(be, &op);
        memcpy(q + first * HEADS * DIM, op.all.q, (size_t)(n[i] * HEADS * DIM) * sizeof *q);
        spans[i].first = first;
    }
    const struct sl_batch b = {
        .n_tokens = first, .n_spans = SEQS, .spans = spans, .block_tables = s.table, .n_tables = 1};
    op.all = all_of(&s, &b, 0, together);
    op.all.q = q;
    be->vt->page_attention(be, &op);
    for (int i = 0; i < SEQS; i++)
        assert_memory_equal(together + spans[i].first * HEADS * V_DIM, alone[i],
                            (size_t)(n[i] * HEADS * V_DIM) * sizeof *together);
    sl_aligned_free(room, room_bytes);
    close_scene(&s);
    be->vt->destroy(be);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(bounds_are_those_of_keys),
        cmocka_unit_test(chosen_pages_are_attended_to),
        cmocka_unit_test(instruction_sets_agree),
        cmocka_unit_test(sequences_do_not_meet),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
