/* SPDX-License-Identifier: MIT
 * Sparse attention by an index. What is chosen is compared with a sort of scores made in double,
 * wherever these are further apart than rounding; the choice among given scores, ties and NaN among
 * them, with a sort by rank. Attention of rows that see everything must have the bits of latent
 * attention; of others those of latent attention over a text of the chosen positions alone, or of
 * chosen groups of them and what is behind the last whole group.
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

enum { N = 600, HEADS = 5, RANK = 40, ROPE = 16, DIM = RANK + ROPE, BLOCK = 32, PAGES = 20 };
enum { Q = 18, D = 24, TOP = 70 }; /* of the index: queries, their values; what a row sees */
enum { RATIO = 6, SEEN = TOP * RATIO + RATIO - 1 }; /* where it sees groups of so many positions */

static const char *const isas[] = {"c", "avx2", "avx512", "avx512-bf16", "amx"};
static const enum sl_dtype formats[] = {SL_DTYPE_F32, SL_DTYPE_F16, SL_DTYPE_BF16, SL_DTYPE_Q8_0,
                                        SL_DTYPE_FP8_E4M3};

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

static float *numbers(uint64_t seed, int n)
{
    struct sl_rng rng = {seed, 0};
    float *p = sl_malloc((size_t)n * sizeof *p);
    assert_non_null(p);
    for (int i = 0; i < n; i++)
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

static struct sl_kv_view view_of(uint8_t *pool, enum sl_dtype dtype, int dim)
{
    return (struct sl_kv_view){.pool = pool,
                               .page_bytes = BLOCK / SL_KV_TILE * sl_kv_tile_bytes(dtype, dim),
                               .dtype = dtype,
                               .block_size = BLOCK};
}

/* ---------------------------------------------------------------- the choice among scores */

struct ranked {
    float score;
    int32_t pos;
};

/* Larger first, of equal ones the lower position, NaN last. */
static int by_rank(const void *a, const void *b)
{
    const struct ranked *x = a, *y = b;
    const bool nan_x = isnan(x->score), nan_y = isnan(y->score);
    if (nan_x != nan_y)
        return nan_x ? 1 : -1;
    if (!nan_x && x->score != y->score)
        return x->score > y->score ? -1 : 1;
    return x->pos < y->pos ? -1 : 1;
}

static void check_top(const float *x, int n, int top_k)
{
    struct ranked *r = sl_malloc((size_t)n * sizeof *r);
    int32_t *top = sl_malloc((size_t)top_k * sizeof *top);
    bool *want = sl_calloc((size_t)n, sizeof *want);
    for (int i = 0; i < n; i++)
        r[i] = (struct ranked){x[i], i};
    qsort(r, (size_t)n, sizeof *r, by_rank);
    for (int i = 0; i < top_k; i++)
        want[r[i].pos] = true;
    sl_cpu_index_top(x, n, top_k, top);
    for (int i = 0; i < top_k; i++) {
        assert_true(top[i] >= 0 && top[i] < n && (i == 0 || top[i] > top[i - 1]));
        if (!want[top[i]])
            fail_msg("%d of %d: position %d, score %g, is chosen", top_k, n, top[i],
                     (double)x[top[i]]);
    }
    sl_free(want);
    sl_free(top);
    sl_free(r);
}

static void largest_are_chosen(void **state)
{
    static const float odd[] = {0.0f, -0.0f, INFINITY, -INFINITY, NAN, 1e-42f, -1e-42f, 3e38f};
    struct sl_rng rng = {17, 0};
    float x[N];
    (void)state;
    for (int round = 0; round < 400; round++) {
        const int n = 2 + (int)(sl_rng_next(&rng) % (N - 1)),
                  top_k = 1 + (int)(sl_rng_next(&rng) % (uint64_t)(n - 1));
        for (int i = 0; i < n; i++) {
            const float r = (float)sl_rng_normal(&rng);
            x[i] = round % 4 == 0   ? r
                   : round % 4 == 1 ? roundf(r)                  /* many are the same */
                   : round % 4 == 2 ? (r > 0.5f ? r : -0.0f * r) /* most are zeros, of both signs */
                                    : odd[sl_rng_next(&rng) % SL_COUNT(odd)];
        }
        check_top(x, n, top_k);
    }
    for (int i = 0; i < N; i++)
        x[i] = 0; /* the first of all */
    check_top(x, N, 100);
}

/* ---------------------------------------------------------------- scores */

struct index {
    float *q, *k, *w, *norm, *bias;
};

static void open_index(struct index *x)
{
    *x = (struct index){.q = numbers(1, N * Q * D),
                        .k = numbers(2, N * D),
                        .w = numbers(3, N * Q),
                        .norm = numbers(4, D),
                        .bias = numbers(5, D)};
}

static void close_index(struct index *x)
{
    sl_free(x->q);
    sl_free(x->k);
    sl_free(x->w);
    sl_free(x->norm);
    sl_free(x->bias);
}

/* Choices of all rows in steps of `first`, then of `chunk`, with room for so many scores. */
static void choose(struct sl_backend *be, const struct index *x, enum sl_dtype dtype,
                   const struct sl_rope *rope, int first, int chunk, int64_t n_scores, int32_t *top)
{
    const size_t n_bytes = PAGES * view_of(NULL, dtype, D).page_bytes;
    uint8_t *pool = sl_aligned_alloc(n_bytes);
    float *q = sl_malloc(N * Q * D * sizeof *q), *k = sl_malloc(N * D * sizeof *k);
    float *scores = sl_malloc((size_t)n_scores * sizeof *scores), angles[N * D];
    const struct sl_kv_view kv = view_of(pool, dtype, D);
    memset(pool, 0xFF, n_bytes); /* slots that nobody has written are NaN */
    memcpy(q, x->q, N * Q * D * sizeof *q);
    memcpy(k, x->k, N * D * sizeof *k);
    for (int at = 0, n; at < N; at += n) {
        struct step st;
        n = SL_MIN(at == 0 ? first : chunk, N - at);
        make_step(&st, at, n);
        be->vt->rope_angles(be,
                            &(struct sl_op_rope_angles){
                                .positions = st.positions, .n = n, .rope = rope, .out = angles});
        be->vt->index_store(be, &(struct sl_op_index_store){.batch = &st.batch,
                                                            .q = q + at * Q * D,
                                                            .k = k + at * D,
                                                            .norm = x->norm,
                                                            .norm_bias = x->bias,
                                                            .eps = 1e-6f,
                                                            .n_heads = Q,
                                                            .dim = D,
                                                            .rope = rope,
                                                            .angles = angles,
                                                            .kv = kv});
        be->vt->index_select(be, &(struct sl_op_index_select){.batch = &st.batch,
                                                              .q = q + at * Q * D,
                                                              .w = x->w + at * Q,
                                                              .n_heads = Q,
                                                              .dim = D,
                                                              .top_k = TOP,
                                                              .kv = kv,
                                                              .scores = scores,
                                                              .n_scores = n_scores,
                                                              .top = top + at * TOP});
    }
    sl_aligned_free(pool, n_bytes);
    sl_free(scores);
    sl_free(q);
    sl_free(k);
}

/* The first dimensions of a row turned by its position. */
static void turn(const struct sl_rope *rope, int pos, double *x)
{
    const int n = rope->n_dims / 2;
    for (int i = 0; i < n; i++) {
        const double a = (double)pos * (double)rope->inv_freq[i];
        double *p = rope->pairing == SL_ROPE_HALF ? x + i : x + 2 * i,
               *r = rope->pairing == SL_ROPE_HALF ? x + n + i : x + 2 * i + 1;
        const double p0 = *p, r0 = *r;
        *p = p0 * cos(a) - r0 * sin(a);
        *r = r0 * cos(a) + p0 * sin(a);
    }
}

/* Scores of all positions that a row sees, in double. */
static void scores_of_row(const struct index *x, const struct sl_rope *rope, int t,
                          const double *keys, double *score)
{
    double q[Q][D];
    for (int h = 0; h < Q; h++) {
        for (int d = 0; d < D; d++)
            q[h][d] = (double)x->q[(t * Q + h) * D + d];
        turn(rope, t, q[h]);
    }
    for (int s = 0; s <= t; s++) {
        score[s] = 0;
        for (int h = 0; h < Q; h++) {
            double dot = 0;
            for (int d = 0; d < D; d++)
                dot += q[h][d] * keys[s * D + d];
            score[s] += (double)x->w[t * Q + h] * fmax(dot, 0);
        }
    }
}

static void normed_key(const struct index *x, const struct sl_rope *rope, int s, double *out)
{
    double mean = 0, squares = 0;
    for (int d = 0; d < D; d++)
        mean += (double)x->k[s * D + d] / D;
    for (int d = 0; d < D; d++)
        squares += pow((double)x->k[s * D + d] - mean, 2) / D;
    for (int d = 0; d < D; d++)
        out[d] = ((double)x->k[s * D + d] - mean) / sqrt(squares + 1e-6) * (double)x->norm[d] +
                 (double)x->bias[d];
    turn(rope, s, out);
}

/* None that is left out is better than one that is chosen by more than rounding. */
static void check_choice(const struct index *x, const struct sl_rope *rope, const int32_t *top,
                         double rounding)
{
    double *keys = sl_malloc(N * D * sizeof *keys), score[N];
    for (int s = 0; s < N; s++)
        normed_key(x, rope, s, keys + s * D);
    for (int t = TOP; t < N; t++) {
        bool in[N] = {false};
        double least = INFINITY, size = 0;
        scores_of_row(x, rope, t, keys, score);
        for (int i = 0; i < TOP; i++) {
            in[top[t * TOP + i]] = true;
            least = fmin(least, score[top[t * TOP + i]]);
        }
        for (int s = 0; s <= t; s++)
            size = fmax(size, fabs(score[s]));
        for (int s = 0; s <= t; s++)
            if (!in[s] && score[s] > least + rounding * size)
                fail_msg("row %d: position %d has %g, but one with %g is chosen", t, s, score[s],
                         least);
    }
    sl_free(keys);
}

/* One instruction set: its choices are right and the same however the text is cut; those of `c`
 * are `same`, where bits must be (NULL: they may differ). */
static void check_index(const char *isa, int n_threads, const struct index *x, enum sl_dtype dtype,
                        const struct sl_rope *rope, const int32_t *same, int32_t *out)
{
    static const int ways[][3] = {{270, 1, 1}, {5, 33, 3}}; /* first, chunk, rows of scores */
    const size_t seen = (N - TOP) * TOP * sizeof *out;
    struct sl_backend *be = open_isa(isa, n_threads);
    int32_t *other = sl_calloc(N * TOP, sizeof *other);
    if (be == NULL) {
        sl_free(other);
        return;
    }
    choose(be, x, dtype, rope, N, N, (int64_t)N * sl_index_scores(N), out);
    check_choice(x, rope, out, dtype == SL_DTYPE_F32 ? 1e-5 : 2e-2);
    if (same != NULL && memcmp(out + TOP * TOP, same + TOP * TOP, seen) != 0)
        fail_msg("%s chooses other rows than c", isa);
    for (size_t w = 0; w < SL_COUNT(ways); w++) {
        choose(be, x, dtype, rope, ways[w][0], ways[w][1], ways[w][2] * sl_index_scores(N), other);
        if (memcmp(other + TOP * TOP, out + TOP * TOP, seen) != 0)
            fail_msg("%s: way %zu chooses other rows than one step", isa, w);
    }
    sl_free(other);
    be->vt->destroy(be);
}

static void index_chooses(void **state)
{
    static const float freqs[] = {1, 0.5f, 0.2f, 0.05f};
    struct index x;
    int32_t *c = sl_calloc(N * TOP, sizeof *c), *out = sl_calloc(N * TOP, sizeof *out);
    (void)state;
    open_index(&x);
    for (int pairing = 0; pairing < 2; pairing++)
        for (int f = 0; f < 2; f++) {
            const enum sl_dtype dtype = f == 0 ? SL_DTYPE_F32 : SL_DTYPE_BF16;
            const struct sl_rope rope = {8, pairing ? SL_ROPE_INTERLEAVED : SL_ROPE_HALF, freqs, 1};
            check_index("c", 1, &x, dtype, &rope, NULL, c);
            for (size_t i = 1; i < SL_COUNT(isas); i++)
                check_index(isas[i], 1 + (int)i % 3, &x, dtype, &rope,
                            i < 3 || dtype == SL_DTYPE_F32 ? c : NULL, out);
        }
    close_index(&x);
    sl_free(c);
    sl_free(out);
}

/* ---------------------------------------------------------------- attention */

struct scene {
    struct sl_backend *be;
    enum sl_dtype kv;
    float *q, *c, *k_rope, *norm;
    int32_t ratio; /* 0, or what is chosen are groups of RATIO positions */
    int32_t *top;  /* [N, TOP] some positions of each row, or groups */
};

static void open_scene(struct scene *s, struct sl_backend *be, enum sl_dtype kv, int32_t ratio)
{
    struct sl_rng rng = {9, 0};
    *s = (struct scene){.be = be, .kv = kv, .ratio = ratio};
    s->q = numbers(1, N * HEADS * DIM);
    s->c = numbers(2, N * RANK);
    s->k_rope = numbers(3, N * ROPE);
    s->norm = numbers(4, RANK);
    s->top = sl_calloc(N * TOP, sizeof *s->top);
    for (int t = sl_sparse_seen(TOP, ratio); t < N; t++) { /* different ones, ascending */
        const int n = ratio > 0 ? (t + 1) / ratio : t + 1;
        int left = TOP, at = 0;
        for (int i = 0; i < n; i++)
            if (sl_rng_next(&rng) % (uint64_t)(n - i) < (uint64_t)left) {
                s->top[t * TOP + at++] = i;
                left--;
            }
        assert_int_equal(at, TOP);
    }
}

/* The positions that row t sees. */
static int seen_by(const struct scene *s, int t, int32_t seen[SEEN])
{
    const int each = SL_MAX(s->ratio, 1), n_rest = s->ratio > 0 ? (t + 1) % s->ratio : 0;
    int n = 0;
    if (t < sl_sparse_seen(TOP, s->ratio)) {
        while (n <= t)
            seen[n] = n, n++;
        return n;
    }
    for (int i = 0; i < TOP * each; i++)
        seen[n++] = s->top[t * TOP + i / each] * each + i % each;
    for (int pos = t + 1 - n_rest; pos <= t; pos++)
        seen[n++] = pos;
    return n;
}

static void close_scene(struct scene *s)
{
    sl_free(s->q);
    sl_free(s->c);
    sl_free(s->k_rope);
    sl_free(s->norm);
    sl_free(s->top);
}

/* Rows of the text `from` (NULL: all of it, in order) to the pages; q becomes what is asked. */
static void store(const struct scene *s, const struct step *st, const int32_t *from, bool by_row,
                  float *q, struct sl_kv_view kv)
{
    const int n = st->batch.n_tokens;
    float *c = sl_malloc((size_t)(n * RANK) * sizeof *c);
    float *k_rope = sl_malloc((size_t)(n * ROPE) * sizeof *k_rope);
    for (int i = 0; i < n; i++) {
        const int row = from != NULL ? from[i] : st->positions[i];
        memcpy(c + i * RANK, s->c + row * RANK, RANK * sizeof *c);
        memcpy(k_rope + i * ROPE, s->k_rope + row * ROPE, ROPE * sizeof *k_rope);
    }
    s->be->vt->latent_store(s->be, &(struct sl_op_latent_store){.batch = &st->batch,
                                                                .c = c,
                                                                .k_rope = k_rope,
                                                                .norm = s->norm,
                                                                .eps = 1e-6f,
                                                                .q_rope = q + RANK,
                                                                .ld_q_rope = HEADS * DIM,
                                                                .step_q_rope = DIM,
                                                                .q = q,
                                                                .n_heads = HEADS,
                                                                .rank = RANK,
                                                                .rope_dim = ROPE,
                                                                .by_row = by_row,
                                                                .kv = kv});
    sl_free(c);
    sl_free(k_rope);
}

static struct sl_op_attention all_of(const struct sl_batch *batch, const float *q,
                                     struct sl_kv_view kv, float *out)
{
    return (struct sl_op_attention){.batch = batch,
                                    .q = q,
                                    .ld_q = HEADS * DIM,
                                    .n_heads = HEADS,
                                    .n_kv_heads = 1,
                                    .head_dim = DIM,
                                    .v_dim = RANK,
                                    .v_in_k = true,
                                    .scale = 0.2f,
                                    .kv = kv,
                                    .out = out,
                                    .ld_out = HEADS * RANK};
}

/* Sparse attention of all rows in steps of `first`, then of `chunk`, with room for n_room rows. */
static void attend(const struct scene *s, int top_k, int first, int chunk, int n_room, float *out)
{
    const size_t n_bytes = PAGES * view_of(NULL, s->kv, DIM).page_bytes;
    const size_t room_bytes = sl_sparse_room(s->kv, DIM, sl_sparse_seen(top_k, s->ratio), n_room);
    uint8_t *pool = sl_aligned_alloc(n_bytes), *room = sl_aligned_alloc(room_bytes);
    float *q = sl_malloc(N * HEADS * DIM * sizeof *q);
    const struct sl_kv_view kv = view_of(pool, s->kv, DIM);
    memset(pool, 0xFF, n_bytes);
    memset(room, 0xFF, room_bytes); /* worse than zeros, as are all slots behind a row's last */
    memcpy(q, s->q, N * HEADS * DIM * sizeof *q);
    for (int at = 0, n; at < N; at += n) {
        struct step st;
        n = SL_MIN(at == 0 ? first : chunk, N - at);
        make_step(&st, at, n);
        store(s, &st, NULL, true, q + at * HEADS * DIM, kv);
        s->be->vt->sparse_attention(
            s->be, &(struct sl_op_sparse_attention){
                       .all = all_of(&st.batch, q + at * HEADS * DIM, kv, out + at * HEADS * RANK),
                       .top = s->top + at * TOP,
                       .top_k = top_k,
                       .ratio = s->ratio,
                       .room = room,
                       .room_bytes = room_bytes});
    }
    sl_aligned_free(pool, n_bytes);
    sl_aligned_free(room, room_bytes);
    sl_free(q);
}

/* Latent attention of row t over a text of the n positions `from`. */
static void dense_row(const struct scene *s, int t, const int32_t *from, int n, float *out)
{
    const size_t n_bytes = PAGES * view_of(NULL, s->kv, DIM).page_bytes;
    uint8_t *pool = sl_aligned_alloc(n_bytes);
    float *q = sl_malloc((size_t)(n * HEADS * DIM) * sizeof *q);
    float *all = sl_malloc((size_t)(n * HEADS * RANK) * sizeof *all);
    const struct sl_kv_view kv = view_of(pool, s->kv, DIM);
    struct step st;
    memset(pool, 0, n_bytes);
    for (int i = 0; i < n; i++)
        memcpy(q + i * HEADS * DIM, s->q + t * HEADS * DIM, HEADS * DIM * sizeof *q);
    make_step(&st, 0, n);
    store(s, &st, from, false, q, kv);
    const struct sl_op_attention a = all_of(&st.batch, q, kv, all);
    s->be->vt->attention(s->be, &a);
    memcpy(out, all + (n - 1) * HEADS * RANK, HEADS * RANK * sizeof *out);
    sl_aligned_free(pool, n_bytes);
    sl_free(q);
    sl_free(all);
}

static void check_rows(const char *isa, int n_threads, enum sl_dtype kv, int32_t ratio)
{
    static const int ways[][3] = {{N, N, N}, {N, N, 1}, {90, 1, 2}, {5, 33, 7}};
    struct sl_backend *be = open_isa(isa, n_threads);
    struct scene s;
    float *have = sl_malloc(N * HEADS * RANK * sizeof *have), want[HEADS * RANK];
    if (be == NULL) {
        sl_free(have);
        return;
    }
    open_scene(&s, be, kv, ratio);
    for (size_t w = 0; w < SL_COUNT(ways); w++) {
        memset(have, 0xFF, N * HEADS * RANK * sizeof *have);
        attend(&s, TOP, ways[w][0], ways[w][1], ways[w][2], have);
        for (int t = 0; t < N; t += t < 80 ? 7 : 61) {
            int32_t seen[SEEN];
            const int n = seen_by(&s, t, seen);
            dense_row(&s, t, seen, n, want);
            if (memcmp(have + t * HEADS * RANK, want, sizeof want) != 0)
                fail_msg("%s, %s, way %zu: row %d differs", isa, sl_dtype_info(kv)->name, w, t);
        }
    }
    close_scene(&s);
    sl_free(have);
    be->vt->destroy(be);
}

static void chosen_rows_are_attended_to(void **state)
{
    (void)state;
    for (size_t i = 0; i < SL_COUNT(isas); i++)
        for (size_t f = 0; f < SL_COUNT(formats); f++)
            check_rows(isas[i], 1 + (int)(f % 3), formats[f], 0);
}

static void chosen_groups_are_attended_to(void **state)
{
    (void)state;
    check_rows("c", 1, SL_DTYPE_F32, RATIO);
    check_rows("avx2", 3, SL_DTYPE_BF16, RATIO); /* of any format the same copies */
}

/* Rows that see everything: the whole of dense attention, in one step. */
static void all_rows_are_dense(void **state)
{
    (void)state;
    for (size_t f = 0; f < SL_COUNT(formats); f++) {
        struct sl_backend *be = open_isa("avx2", 2);
        struct scene s;
        if (be == NULL)
            return;
        open_scene(&s, be, formats[f], 0);
        const size_t n_bytes = PAGES * view_of(NULL, s.kv, DIM).page_bytes;
        uint8_t *pool = sl_aligned_alloc(n_bytes);
        float *q = sl_malloc(N * HEADS * DIM * sizeof *q);
        float *want = sl_malloc(N * HEADS * RANK * sizeof *want),
              *have = sl_malloc(N * HEADS * RANK * sizeof *have);
        const struct sl_kv_view kv = view_of(pool, s.kv, DIM);
        struct step st;
        memset(pool, 0xFF, n_bytes);
        memcpy(q, s.q, N * HEADS * DIM * sizeof *q);
        make_step(&st, 0, N);
        store(&s, &st, NULL, false, q, kv);
        const struct sl_op_attention a = all_of(&st.batch, q, kv, want);
        be->vt->attention(be, &a);
        attend(&s, N, 100, 50, 1, have);
        assert_memory_equal(have, want, N * HEADS * RANK * sizeof *have);
        sl_aligned_free(pool, n_bytes);
        sl_free(q);
        sl_free(want);
        sl_free(have);
        close_scene(&s);
        be->vt->destroy(be);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(largest_are_chosen),
        cmocka_unit_test(index_chooses),
        cmocka_unit_test(chosen_rows_are_attended_to),
        cmocka_unit_test(chosen_groups_are_attended_to),
        cmocka_unit_test(all_rows_are_dense),
    };
    return cmocka_run_group_tests_name("sparse attention", tests, NULL, NULL);
}
