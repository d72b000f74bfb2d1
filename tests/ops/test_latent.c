/* SPDX-License-Identifier: MIT
 * Latent attention: pages that hold one row for keys and values. The yardstick is attention over
 * pages with keys and values apart that hold the same numbers: the bits must be the same, for every
 * instruction set, format of pages and cutting into steps. What is stored is compared with the
 * norm's own operation and a rotation written out here.
 */
#include "base/check.h"
#include "base/rng.h"
#include "base/sys.h"
#include "cpu/backend.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

enum { N = 300, HEADS = 6, BLOCK = 32, PAGES = 10, MOST = 96 };

static const char *const isas[] = {"c", "avx2", "avx512", "avx512-bf16", "amx"};
static const enum sl_dtype formats[] = {SL_DTYPE_F32, SL_DTYPE_F16, SL_DTYPE_BF16, SL_DTYPE_Q8_0,
                                        SL_DTYPE_FP8_E4M3};

struct scene {
    struct sl_backend *be;
    enum sl_dtype kv;
    int rank, rope;
    float *q, *c, *k_rope, *norm; /* [N, HEADS, rank + rope], [N, rank], [N, rope], [rank] */
};

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

static float *numbers(uint64_t seed, int n, float scale)
{
    struct sl_rng rng = {seed, 0};
    float *p = sl_malloc((size_t)n * sizeof *p);
    assert_non_null(p);
    for (int i = 0; i < n; i++)
        p[i] = (float)sl_rng_normal(&rng) * scale;
    return p;
}

/* Rotated dimensions are small, so that a scale of FP8 for a whole row is that of c alone. */
static void open_scene(struct scene *s, struct sl_backend *be, enum sl_dtype kv, int rank, int rope)
{
    *s = (struct scene){.be = be, .kv = kv, .rank = rank, .rope = rope};
    s->q = numbers(1, N * HEADS * (rank + rope), 1);
    s->c = numbers(2, N * rank, 1);
    s->k_rope = numbers(3, N * rope, 0.1f);
    s->norm = numbers(4, rank, 1);
}

static void close_scene(struct scene *s)
{
    sl_free(s->q);
    sl_free(s->c);
    sl_free(s->k_rope);
    sl_free(s->norm);
}

/* A step's batch: rows at .. at + n - 1 of one sequence. */
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

static struct sl_kv_view view_of(const struct scene *s, uint8_t *pool, bool latent)
{
    const size_t n_tiles = BLOCK / SL_KV_TILE, k = sl_kv_tile_bytes(s->kv, s->rank + s->rope);
    const size_t v = latent ? 0 : sl_kv_tile_bytes(s->kv, s->rank);
    return (struct sl_kv_view){.pool = pool,
                               .page_bytes = n_tiles * (k + v),
                               .v_offset = n_tiles * k,
                               .dtype = s->kv,
                               .block_size = BLOCK};
}

/* Rows with keys and values apart; c is normed already. */
static void store_apart(const struct scene *s, const struct step *st, const float *c, int at,
                        struct sl_kv_view kv)
{
    static float key[N * MOST], q[N * HEADS * MOST];
    const int n = st->batch.n_tokens, dim = s->rank + s->rope;
    for (int i = 0; i < n; i++) {
        memcpy(key + i * dim, c + (at + i) * s->rank, (size_t)s->rank * sizeof *key);
        memcpy(key + i * dim + s->rank, s->k_rope + (at + i) * s->rope,
               (size_t)s->rope * sizeof *key);
    }
    memset(q, 0, sizeof q);
    s->be->vt->qk_norm_rope_kv_store(s->be,
                                     &(struct sl_op_qk_norm_rope_kv_store){.batch = &st->batch,
                                                                           .q = q,
                                                                           .k = key,
                                                                           .v = c + at * s->rank,
                                                                           .ld_q = HEADS * dim,
                                                                           .ld_k = dim,
                                                                           .ld_v = s->rank,
                                                                           .n_heads = HEADS,
                                                                           .n_kv_heads = 1,
                                                                           .head_dim = dim,
                                                                           .v_dim = s->rank,
                                                                           .kv = kv});
}

static void store_latent(const struct scene *s, const struct step *st, float *q, int at,
                         const struct sl_rope *rope, const float *angles,
                         struct sl_q_temperature temperature, struct sl_kv_view kv)
{
    const int dim = s->rank + s->rope;
    s->be->vt->latent_store(s->be, &(struct sl_op_latent_store){
                                       .batch = &st->batch,
                                       .c = s->c + at * s->rank,
                                       .k_rope = s->k_rope + at * s->rope,
                                       .norm = s->norm,
                                       .eps = 1e-6f,
                                       .q_rope = s->q + at * HEADS * dim + s->rank,
                                       .ld_q_rope = HEADS * dim,
                                       .step_q_rope = dim,
                                       .q = q,
                                       .n_heads = HEADS,
                                       .rank = s->rank,
                                       .rope_dim = s->rope,
                                       .rope = rope,
                                       .angles = angles,
                                       .temperature = temperature,
                                       .kv = kv,
                                   });
}

/* Attention of all rows in steps of `first`, then of `chunk`: out [N, HEADS, rank]. */
static void attend(const struct scene *s, bool latent, int first, int chunk, float *out)
{
    const int dim = s->rank + s->rope;
    const struct sl_kv_view shape = view_of(s, NULL, latent);
    uint8_t *pool = sl_aligned_alloc(PAGES * shape.page_bytes);
    float *c = sl_malloc((size_t)(N * s->rank) * sizeof *c);
    float *q = sl_malloc((size_t)(N * HEADS * dim) * sizeof *q);
    memset(pool, 0xFF, PAGES * shape.page_bytes); /* slots that nobody has written are NaN */
    const struct sl_kv_view kv = view_of(s, pool, latent);
    s->be->vt->rmsnorm(s->be,
                       &(struct sl_op_rmsnorm){
                           .x = s->c, .w = s->norm, .eps = 1e-6f, .n = N, .h = s->rank, .out = c});
    for (int at = 0, n; at < N; at += n) {
        struct step st;
        n = SL_MIN(at == 0 ? first : chunk, N - at);
        make_step(&st, at, n);
        memcpy(q, s->q + at * HEADS * dim, (size_t)(n * HEADS * dim) * sizeof *q);
        if (latent)
            store_latent(s, &st, q, at, NULL, NULL, (struct sl_q_temperature){0}, kv);
        else
            store_apart(s, &st, c, at, kv);
        s->be->vt->attention(s->be, &(struct sl_op_attention){.batch = &st.batch,
                                                              .q = q,
                                                              .ld_q = HEADS * dim,
                                                              .n_heads = HEADS,
                                                              .n_kv_heads = 1,
                                                              .head_dim = dim,
                                                              .v_dim = s->rank,
                                                              .v_in_k = latent,
                                                              .scale = 0.2f,
                                                              .kv = kv,
                                                              .out = out + at * HEADS * s->rank,
                                                              .ld_out = HEADS * s->rank});
    }
    sl_aligned_free(pool, PAGES * shape.page_bytes);
    sl_free(c);
    sl_free(q);
}

static void check_attention(const char *isa, int n_threads, enum sl_dtype kv, int rank, int rope)
{
    struct sl_backend *be = open_isa(isa, n_threads);
    struct scene s;
    const size_t n = (size_t)(N * HEADS * rank);
    if (be == NULL)
        return;
    open_scene(&s, be, kv, rank, rope);
    float *want = sl_malloc(n * sizeof *want), *have = sl_malloc(n * sizeof *have);
    attend(&s, false, N, N, want);
    for (size_t i = 0; i < n; i++)
        assert_true(isfinite(want[i]));
    static const int ways[][2] = {{N, N}, {270, 1}, {5, 33}};
    for (size_t w = 0; w < SL_COUNT(ways); w++) {
        memset(have, 0xFF, n * sizeof *have);
        attend(&s, true, ways[w][0], ways[w][1], have);
        for (size_t i = 0; i < n; i++)
            if (memcmp(&have[i], &want[i], sizeof *have) != 0)
                fail_msg("%s, %s, %d + %d, steps of %d: value %zu is %a instead of %a", isa,
                         sl_dtype_info(kv)->name, rank, rope, ways[w][1], i, (double)have[i],
                         (double)want[i]);
    }
    sl_free(want);
    sl_free(have);
    close_scene(&s);
    be->vt->destroy(be);
}

static void values_are_a_part_of_keys(void **state)
{
    (void)state;
    for (size_t i = 0; i < SL_COUNT(isas); i++)
        for (size_t f = 0; f < SL_COUNT(formats); f++) {
            check_attention(isas[i], 1 + (int)(f % 3), formats[f], 64, 16);
            if (formats[f] != SL_DTYPE_Q8_0) /* else the last block of c has k_rope in it */
                check_attention(isas[i], 2, formats[f], 40, 10);
        }
}

static bool near(double a, double b)
{
    return fabs(a - b) <= 1e-5 * (1 + fabs(b));
}

/* Value d of the row at pos in pages of F32. */
static float stored(const struct sl_kv_view *kv, const struct step *st, int pos, int d, int dim)
{
    const size_t tile = (size_t)(pos % BLOCK / SL_KV_TILE);
    const uint8_t *at = kv->pool + (size_t)st->table[pos / BLOCK] * kv->page_bytes +
                        tile * sl_kv_tile_bytes(SL_DTYPE_F32, dim);
    float x;
    memcpy(&x, at + (size_t)(d * SL_KV_TILE + pos % SL_KV_TILE) * sizeof x, sizeof x);
    return x;
}

/* (x, y) of a pair turned by the angle of position pos. */
static void turned(const float *x, int pos, int pair, int rope, double out[2])
{
    const double a = pos * pow(100, -2.0 * pair / rope);
    out[0] = (double)x[2 * pair] * cos(a) - (double)x[2 * pair + 1] * sin(a);
    out[1] = (double)x[2 * pair + 1] * cos(a) + (double)x[2 * pair] * sin(a);
}

static void rows_are_normed_and_rotated(void **state)
{
    enum { RANK = 24, ROPE = 8, DIM = RANK + ROPE, AT = 40, ROWS = 30 };
    const struct sl_q_temperature temperature = {.beta = 0.5f, .span = 16};
    struct sl_backend *be = open_isa("c", 1);
    float freqs[ROPE / 2], angles[ROWS * ROPE], q[ROWS * HEADS * DIM];
    const struct sl_rope rope = {ROPE, SL_ROPE_INTERLEAVED, freqs, 1};
    struct scene s;
    struct step st;
    (void)state;
    open_scene(&s, be, SL_DTYPE_F32, RANK, ROPE);
    make_step(&st, AT, ROWS);
    for (int i = 0; i < ROPE / 2; i++)
        freqs[i] = (float)pow(100, -2.0 * i / ROPE);
    be->vt->rope_angles(be,
                        &(struct sl_op_rope_angles){
                            .positions = st.positions, .n = ROWS, .rope = &rope, .out = angles});
    const size_t n_bytes = PAGES * view_of(&s, NULL, true).page_bytes;
    uint8_t *pool = sl_aligned_alloc(n_bytes);
    const struct sl_kv_view kv = view_of(&s, pool, true);
    memcpy(q, s.q + AT * HEADS * DIM, sizeof q);
    store_latent(&s, &st, q, AT, &rope, angles, temperature, kv);
    for (int t = 0; t < ROWS; t++) {
        const int pos = AT + t;
        const float *c = s.c + pos * RANK, *from = s.q + pos * HEADS * DIM;
        const double warm = 1 + 0.5 * log(1 + floor(pos / 16.0));
        double squares = 0, two[2];
        for (int d = 0; d < RANK; d++)
            squares += (double)c[d] * (double)c[d];
        for (int d = 0; d < RANK; d++)
            assert_true(near((double)stored(&kv, &st, pos, d, DIM),
                             (double)c[d] * (double)s.norm[d] / sqrt(squares / RANK + 1e-6)));
        for (int i = 0; i < ROPE / 2; i++) {
            turned(s.k_rope + pos * ROPE, pos, i, ROPE, two);
            for (int k = 0; k < 2; k++)
                assert_true(near((double)stored(&kv, &st, pos, RANK + 2 * i + k, DIM), two[k]));
        }
        for (int h = 0; h < HEADS; h++) {
            for (int d = 0; d < RANK; d++)
                assert_true(
                    near((double)q[(t * HEADS + h) * DIM + d], warm * (double)from[h * DIM + d]));
            for (int i = 0; i < ROPE / 2; i++) {
                turned(from + h * DIM + RANK, pos, i, ROPE, two);
                for (int k = 0; k < 2; k++)
                    assert_true(
                        near((double)q[(t * HEADS + h) * DIM + RANK + 2 * i + k], warm * two[k]));
            }
        }
    }
    sl_aligned_free(pool, n_bytes);
    close_scene(&s);
    be->vt->destroy(be);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(values_are_a_part_of_keys),
        cmocka_unit_test(rows_are_normed_and_rotated),
    };
    return cmocka_run_group_tests_name("latent", tests, NULL, NULL);
}
