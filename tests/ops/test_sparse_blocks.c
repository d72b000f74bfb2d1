/* SPDX-License-Identifier: MIT
 * Sparse attention by an index that chooses blocks. What each query chooses is compared with the
 * largest products made in double, wherever these are further apart than rounding; equal ones must
 * go to the lowest blocks. Attention over the chosen must have the bits of attention over a text of
 * their positions alone, one key head at a time; of rows that see everything those of attention.
 */
#include "base/check.h"
#include "base/rng.h"
#include "base/sys.h"
#include "cpu/backend.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

enum { N = 330, KV = 2, GROUP = 3, HEADS = KV * GROUP, DIM = 40, PAGE = 32, PAGES = 12 };
enum { D = 24, TURNED = 8, MOST_TOP = 4 }; /* of the index */

static const char *const isas[] = {"c", "avx2", "avx512", "avx512-bf16"};

/* How many blocks a row sees, of how many positions, the last of them in any case. */
struct shape {
    int32_t top_k, block, n_local;
};
static const struct shape shapes[] = {{4, 16, 1}, {3, 32, 2}, {2, 64, 1}, {1, 256, 1}};

static struct sl_backend *open_isa(const char *name, int n_threads)
{
    struct sl_cpu_config cfg = {.n_threads = n_threads};
    struct sl_error err = {0};
    struct sl_backend *be;
    if (sl_cpu_isa_parse(name, &cfg.isa, &err) != 0)
        return NULL;
    if (sl_cpu_create(&cfg, &be, &err) != 0)
        fail_msg("%s: %s", name, err.msg);
    return be;
}

static float *numbers(uint64_t seed, size_t n)
{
    struct sl_rng rng = {seed, 0};
    float *p = sl_malloc(n * sizeof *p);
    assert_non_null(p);
    for (size_t i = 0; i < n; i++)
        p[i] = (float)sl_rng_normal(&rng);
    return p;
}

/* Rows at .. at + n - 1 of one sequence. */
struct step {
    struct sl_batch batch;
    struct sl_span span;
    int32_t table[PAGES], positions[N];
};

static void make_step(struct step *s, int at, int n)
{
    for (int i = 0; i < PAGES; i++)
        s->table[i] = (i * 7 + 3) % PAGES;
    for (int i = 0; i < n; i++)
        s->positions[i] = at + i;
    s->span = (struct sl_span){.n = n, .pos = at};
    s->batch = (struct sl_batch){.n_tokens = n,
                                 .n_spans = 1,
                                 .positions = s->positions,
                                 .spans = &s->span,
                                 .block_tables = s->table,
                                 .n_tables = 1};
}

/* ---------------------------------------------------------------- the choice */

static const float freqs[] = {1, 0.5f, 0.2f, 0.05f};
static const struct sl_rope rope = {TURNED, SL_ROPE_HALF, freqs, 1};

struct index {
    float *q, *k, *q_norm, *k_norm;
};

static void open_index(struct index *x)
{
    *x = (struct index){.q = numbers(1, N * KV * D),
                        .k = numbers(2, N * D),
                        .q_norm = numbers(3, D),
                        .k_norm = numbers(4, D)};
}

static void close_index(struct index *x)
{
    sl_free(x->q);
    sl_free(x->k);
    sl_free(x->q_norm);
    sl_free(x->k_norm);
}

/* Choices [N, KV, top_k] of all rows in steps of `first`, then of `chunk`, with room for the scores
 * of so many rows. turned: with positions. */
static void choose(struct sl_backend *be, const struct index *x, enum sl_dtype dtype,
                   const struct shape *shape, bool turned, const int way[3], int32_t *top)
{
    const size_t page = PAGE / SL_KV_TILE * sl_kv_tile_bytes(dtype, D), n_bytes = PAGES * page;
    const int64_t n_scores = way[2] * sl_index_block_scores(N, shape->block, KV);
    uint8_t *pool = sl_aligned_alloc(n_bytes);
    float *q = sl_malloc(N * KV * D * sizeof *q), *k = sl_malloc(N * D * sizeof *k);
    float *scores = sl_malloc((size_t)n_scores * sizeof *scores), angles[N * TURNED];
    const struct sl_kv_view kv = {pool, page, 0, 0, dtype, PAGE, 0, 0, 0};
    memset(pool, 0xFF, n_bytes); /* slots that nobody has written are NaN */
    memcpy(q, x->q, N * KV * D * sizeof *q);
    memcpy(k, x->k, N * D * sizeof *k);
    for (int at = 0, n; at < N; at += n) {
        struct step st;
        n = SL_MIN(at == 0 ? way[0] : way[1], N - at);
        make_step(&st, at, n);
        be->vt->rope_angles(be,
                            &(struct sl_op_rope_angles){
                                .positions = st.positions, .n = n, .rope = &rope, .out = angles});
        be->vt->index_store(be, &(struct sl_op_index_store){.batch = &st.batch,
                                                            .q = q + at * KV * D,
                                                            .k = k + at * D,
                                                            .norm = x->k_norm,
                                                            .q_norm = x->q_norm,
                                                            .eps = 1e-6f,
                                                            .n_heads = KV,
                                                            .dim = D,
                                                            .rope = turned ? &rope : NULL,
                                                            .angles = turned ? angles : NULL,
                                                            .kv = kv});
        be->vt->index_select(be, &(struct sl_op_index_select){.batch = &st.batch,
                                                              .q = q + at * KV * D,
                                                              .n_heads = KV,
                                                              .dim = D,
                                                              .top_k = shape->top_k,
                                                              .block = shape->block,
                                                              .n_local = shape->n_local,
                                                              .kv = kv,
                                                              .scores = scores,
                                                              .n_scores = n_scores,
                                                              .top = top + at * KV * shape->top_k});
    }
    sl_aligned_free(pool, n_bytes);
    sl_free(scores);
    sl_free(q);
    sl_free(k);
}

/* x normed and turned by its position, in double. */
static void prepare(const float *x, const float *norm, int pos, double *out)
{
    double squares = 0;
    for (int d = 0; d < D; d++)
        squares += (double)x[d] * (double)x[d] / D;
    for (int d = 0; d < D; d++)
        out[d] = (double)x[d] / sqrt(squares + 1e-6) * (double)norm[d];
    for (int i = 0; i < TURNED / 2; i++) {
        const double a = (double)pos * (double)freqs[i], p = out[i], r = out[TURNED / 2 + i];
        out[i] = p * cos(a) - r * sin(a);
        out[TURNED / 2 + i] = r * cos(a) + p * sin(a);
    }
}

/* None that is left out is better than one that is chosen by more than rounding. */
static void check_row(const struct index *x, const struct shape *shape, int t, int h,
                      double (*keys)[D], const int32_t *top, double rounding)
{
    double score[N / 16 + 1], q[D], least = INFINITY, size = 0;
    bool in[N / 16 + 1] = {false};
    const int own = t / shape->block;
    prepare(x->q + (t * KV + h) * D, x->q_norm, t, q);
    for (int b = 0; b <= own; b++)
        score[b] = -INFINITY;
    for (int s = 0; s <= t; s++) {
        double dot = 0;
        for (int d = 0; d < D; d++)
            dot += q[d] * keys[s][d];
        score[s / shape->block] = fmax(score[s / shape->block], dot);
        size = fmax(size, fabs(dot));
    }
    for (int i = 0; i < shape->top_k; i++) {
        assert_true(top[i] >= 0 && top[i] <= own && (i == 0 || top[i] > top[i - 1]));
        in[top[i]] = true;
        if (top[i] <= own - shape->n_local)
            least = fmin(least, score[top[i]]);
    }
    for (int b = 0; b <= own; b++) {
        if (b > own - shape->n_local && !in[b])
            fail_msg("row %d: block %d, one of its own, is left out", t, b);
        if (!in[b] && score[b] > least + rounding * size)
            fail_msg("row %d: block %d has %g, but one with %g is chosen", t, b, score[b], least);
    }
}

static void check_choices(const struct index *x, const struct shape *shape, const int32_t *top,
                          double rounding)
{
    double(*keys)[D] = sl_malloc(N * sizeof *keys);
    for (int s = 0; s < N; s++)
        prepare(x->k + s * D, x->k_norm, s, keys[s]);
    for (int t = shape->top_k * shape->block; t < N; t++)
        for (int h = 0; h < KV; h++)
            check_row(x, shape, t, h, keys, top + (t * KV + h) * shape->top_k, rounding);
    sl_free(keys);
}

/* One instruction set: its choices are right and the same however the text is cut; `same`: and
 * those of another (NULL: they may differ). */
static void check_index(const char *isa, int n_threads, const struct index *x, enum sl_dtype dtype,
                        const struct shape *shape, const int32_t *same, int32_t *out)
{
    static const int ways[][3] = {{N, N, N}, {270, 1, 1}, {5, 33, 3}}; /* first, chunk, rows */
    const size_t from = (size_t)(shape->top_k * shape->block * KV * shape->top_k),
                 n = N * KV * (size_t)shape->top_k;
    struct sl_backend *be = open_isa(isa, n_threads);
    int32_t *other = sl_calloc(n, sizeof *other);
    for (size_t w = 0; be != NULL && w < SL_COUNT(ways); w++) {
        choose(be, x, dtype, shape, true, ways[w], w == 0 ? out : other);
        if (w > 0 && memcmp(other + from, out + from, (n - from) * sizeof *out) != 0)
            fail_msg("%s: way %zu chooses other blocks than one step", isa, w);
    }
    if (be != NULL) {
        check_choices(x, shape, out, dtype == SL_DTYPE_F32 ? 1e-5 : 2e-2);
        if (same != NULL && memcmp(out + from, same + from, (n - from) * sizeof *out) != 0)
            fail_msg("%s chooses other blocks than c", isa);
        be->vt->destroy(be);
    }
    sl_free(other);
}

static void blocks_are_chosen(void **state)
{
    struct index x;
    int32_t *c = sl_calloc(N * KV * MOST_TOP, sizeof *c);
    int32_t *out = sl_calloc(N * KV * MOST_TOP, sizeof *out);
    (void)state;
    open_index(&x);
    for (size_t s = 0; s < SL_COUNT(shapes); s++)
        for (int f = 0; f < 2; f++) {
            const enum sl_dtype dtype = f == 0 ? SL_DTYPE_F32 : SL_DTYPE_BF16;
            check_index("c", 1, &x, dtype, &shapes[s], NULL, c);
            for (size_t i = 1; i < SL_COUNT(isas); i++)
                check_index(isas[i], 1 + (int)i % 3, &x, dtype, &shapes[s],
                            i < 3 || dtype == SL_DTYPE_F32 ? c : NULL, out);
        }
    close_index(&x);
    sl_free(c);
    sl_free(out);
}

/* Of equal scores the lowest blocks: all keys are the same, or not a number. */
static void ties_go_to_the_lowest(void **state)
{
    static const int way[3] = {N, N, N};
    struct sl_backend *be = open_isa("c", 2);
    struct index x;
    (void)state;
    open_index(&x);
    for (int nan = 0; nan < 2; nan++) {
        for (int i = 0; i < N * D; i++)
            x.k[i] = nan ? NAN : x.k[i % D];
        for (size_t s = 0; s < SL_COUNT(shapes); s++) {
            const struct shape *p = &shapes[s];
            int32_t top[N * KV * MOST_TOP];
            choose(be, &x, SL_DTYPE_F32, p, false, way, top);
            for (int t = p->top_k * p->block; t < N; t++)
                for (int i = 0; i < KV * p->top_k; i++) {
                    const int k = i % p->top_k, last = p->top_k - p->n_local;
                    const int want = k < last ? k : t / p->block - (p->top_k - 1 - k);
                    assert_int_equal(top[t * KV * p->top_k + i], want);
                }
        }
    }
    close_index(&x);
    be->vt->destroy(be);
}

/* ---------------------------------------------------------------- attention */

struct scene {
    struct sl_backend *be;
    enum sl_dtype dtype;
    float *q, *k, *v;
    int32_t *top;
};

static struct sl_kv_view view_of(uint8_t *pool, enum sl_dtype dtype, int n_kv)
{
    const size_t keys = (size_t)n_kv * PAGE / SL_KV_TILE * sl_kv_tile_bytes(dtype, DIM);
    return (struct sl_kv_view){pool, 2 * keys, 0, keys, dtype, PAGE, 0, 0, 0};
}

/* Positions `from` of the text (NULL: in order) to the pages, of n_kv key heads from `head` on. */
static void store(const struct scene *s, const struct step *st, const int32_t *from, int head,
                  int n_kv, struct sl_kv_view kv)
{
    const int n = st->batch.n_tokens, width = n_kv * DIM;
    float *k = sl_malloc((size_t)(n * width) * sizeof *k);
    float *v = sl_malloc((size_t)(n * width) * sizeof *v);
    for (int i = 0; i < n; i++) {
        const int at = ((from != NULL ? from[i] : st->positions[i]) * KV + head) * DIM;
        memcpy(k + i * width, s->k + at, (size_t)width * sizeof *k);
        memcpy(v + i * width, s->v + at, (size_t)width * sizeof *v);
    }
    s->be->vt->qk_norm_rope_kv_store(s->be,
                                     &(struct sl_op_qk_norm_rope_kv_store){.batch = &st->batch,
                                                                           .k = k,
                                                                           .v = v,
                                                                           .ld_k = width,
                                                                           .ld_v = width,
                                                                           .n_kv_heads = n_kv,
                                                                           .head_dim = DIM,
                                                                           .v_dim = DIM,
                                                                           .kv = kv});
    sl_free(k);
    sl_free(v);
}

static struct sl_op_attention all_of(const struct sl_batch *batch, const float *q, int n_kv,
                                     struct sl_kv_view kv, float *out)
{
    return (struct sl_op_attention){.batch = batch,
                                    .q = q,
                                    .ld_q = HEADS * DIM,
                                    .n_heads = n_kv * GROUP,
                                    .n_kv_heads = n_kv,
                                    .head_dim = DIM,
                                    .v_dim = DIM,
                                    .scale = 0.2f,
                                    .kv = kv,
                                    .out = out,
                                    .ld_out = HEADS * DIM};
}

/* Attention of all rows in steps of `first`, then of `chunk`; shape NULL: over everything. */
static void attend(const struct scene *s, const struct shape *shape, int first, int chunk,
                   float *out)
{
    const struct sl_kv_view pages = view_of(NULL, s->dtype, KV);
    const size_t n_bytes = PAGES * pages.page_bytes;
    uint8_t *pool = sl_aligned_alloc(n_bytes);
    struct sl_span room[N];
    const struct sl_kv_view kv = view_of(pool, s->dtype, KV);
    memset(pool, 0xFF, n_bytes);
    for (int at = 0, n; at < N; at += n) {
        struct step st;
        n = SL_MIN(at == 0 ? first : chunk, N - at);
        make_step(&st, at, n);
        store(s, &st, NULL, 0, KV, kv);
        const struct sl_op_attention all =
            all_of(&st.batch, s->q + at * HEADS * DIM, KV, kv, out + at * HEADS * DIM);
        if (shape == NULL)
            s->be->vt->attention(s->be, &all);
        else
            s->be->vt->sparse_attention(
                s->be, &(struct sl_op_sparse_attention){.all = all,
                                                        .top = s->top + at * KV * shape->top_k,
                                                        .top_k = shape->top_k,
                                                        .block = shape->block,
                                                        .room = room,
                                                        .room_bytes = (size_t)n * sizeof *room});
    }
    sl_aligned_free(pool, n_bytes);
}

/* Row t of one key head over a text of its blocks alone. */
static void check_blocks(const struct scene *s, const struct shape *shape, int t, int h,
                         const float *out)
{
    const struct sl_kv_view pages = view_of(NULL, s->dtype, 1);
    const size_t n_bytes = PAGES * pages.page_bytes;
    uint8_t *pool = sl_aligned_alloc(n_bytes);
    const struct sl_kv_view kv = view_of(pool, s->dtype, 1);
    const int32_t *top = s->top + (t * KV + h) * shape->top_k;
    int32_t from[N], n = 0;
    float want[HEADS * DIM];
    struct step st;
    for (int i = 0; i < shape->top_k; i++)
        for (int p = 0; p < shape->block && top[i] * shape->block + p <= t; p++)
            from[n++] = top[i] * shape->block + p;
    memset(pool, 0xFF, n_bytes);
    make_step(&st, 0, n);
    store(s, &st, from, h, 1, kv);
    make_step(&st, n - 1, 1);
    const struct sl_op_attention a =
        all_of(&st.batch, s->q + (t * HEADS + h * GROUP) * DIM, 1, kv, want);
    s->be->vt->attention(s->be, &a);
    if (memcmp(out + (t * HEADS + h * GROUP) * DIM, want, GROUP * DIM * sizeof *want) != 0)
        fail_msg("row %d, key head %d: other bits than of its blocks alone", t, h);
    sl_aligned_free(pool, n_bytes);
}

/* Any blocks, ascending, the row's own the last. */
static void random_blocks(const struct shape *shape, int32_t *top)
{
    struct sl_rng rng = {9, 0};
    for (int t = shape->top_k * shape->block; t < N; t++)
        for (int h = 0; h < KV; h++) {
            int left = shape->top_k - 1, at = (t * KV + h) * shape->top_k;
            const int own = t / shape->block;
            for (int b = 0; b < own; b++)
                if (sl_rng_next(&rng) % (uint64_t)(own - b) < (uint64_t)left) {
                    top[at++] = b;
                    left--;
                }
            top[at] = own;
        }
}

static void check_attention(struct scene *s, const struct shape *shape)
{
    const int n_all = shape->top_k * shape->block;
    const size_t n = N * HEADS * DIM;
    float *out = sl_malloc(n * sizeof *out), *other = sl_malloc(n * sizeof *other);
    random_blocks(shape, s->top);
    attend(s, shape, N, N, out);
    attend(s, NULL, N, N, other);
    if (memcmp(out, other, (size_t)SL_MIN(n_all, N) * HEADS * DIM * sizeof *out) != 0)
        fail_msg("rows that see all have other bits than those of attention");
    attend(s, shape, 61, 1, other);
    if (memcmp(out, other, n * sizeof *out) != 0)
        fail_msg("steps of one row have other bits than one of all");
    for (int t = n_all; t < N; t += 1 + t % 5) /* at all places in a block */
        for (int h = 0; h < KV; h++)
            check_blocks(s, shape, t, h, out);
    sl_free(out);
    sl_free(other);
}

static void chosen_blocks_are_attended_to(void **state)
{
    static const enum sl_dtype formats[] = {SL_DTYPE_F32, SL_DTYPE_F16, SL_DTYPE_BF16,
                                            SL_DTYPE_Q8_0, SL_DTYPE_FP8_E4M3};
    struct scene s = {.q = numbers(1, N * HEADS * DIM),
                      .k = numbers(2, N * KV * DIM),
                      .v = numbers(3, N * KV * DIM),
                      .top = sl_calloc(N * KV * MOST_TOP, sizeof *s.top)};
    (void)state;
    for (size_t i = 0; i < SL_COUNT(isas); i++) {
        s.be = open_isa(isas[i], 1 + (int)i % 3);
        for (size_t f = 0; s.be != NULL && f < SL_COUNT(formats); f++)
            for (size_t p = (f + i) % 2; p < SL_COUNT(shapes); p += 2) {
                s.dtype = formats[f];
                check_attention(&s, &shapes[p]);
            }
        if (s.be != NULL)
            s.be->vt->destroy(s.be);
    }
    sl_free(s.q);
    sl_free(s.k);
    sl_free(s.v);
    sl_free(s.top);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(blocks_are_chosen),
        cmocka_unit_test(ties_go_to_the_lowest),
        cmocka_unit_test(chosen_blocks_are_attended_to),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
