/* SPDX-License-Identifier: MIT
 * Heads whose keys and values differ: in size, or made of one projection, or read from another
 * layer. The yardstick is the plain operation on the same numbers, with zeros where a head is
 * shorter: the bits must be the same, for every instruction set and format of pages.
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

enum { N = 270, WHOLE = 260, HEADS = 4, KV = 2, BLOCK = 32, PAGES = 9, MOST = 192 };

static const char *const isas[] = {"c", "avx2", "avx512", "avx512-bf16", "amx"};
static const enum sl_dtype formats[] = {SL_DTYPE_F32, SL_DTYPE_F16, SL_DTYPE_BF16, SL_DTYPE_Q8_0,
                                        SL_DTYPE_FP8_E4M3};

struct rig {
    struct sl_backend *be;
    enum sl_dtype kv;
    float *q, *k, *v; /* [N, HEADS, MOST], [N, KV, MOST] twice: what is used of a head lies first */
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

static float *numbers(uint64_t seed, int n_heads)
{
    struct sl_rng rng = {seed, 0};
    float *p = sl_malloc((size_t)(N * n_heads * MOST) * sizeof *p);
    assert_non_null(p);
    for (int i = 0; i < N * n_heads * MOST; i++)
        p[i] = (float)sl_rng_normal(&rng);
    return p;
}

/* Heads of `has` dimensions, of which `used` are numbers and the rest zeros. */
static float *heads_of(const float *from, int n_heads, int has, int used)
{
    float *p = sl_calloc((size_t)(N * n_heads * has), sizeof *p);
    assert_non_null(p);
    for (int i = 0; i < N * n_heads; i++)
        memcpy(p + i * has, from + i * MOST, (size_t)used * sizeof *p);
    return p;
}

struct shape {
    int k_has, k_used, v_has, v_used;
    bool norm_v;
};

/* Attention of all rows, the first WHOLE of them in one step, the others in steps of `chunk`: out
 * [N, HEADS, v_has]. */
static float *attend(const struct rig *g, const struct shape *s, int chunk)
{
    float *q = heads_of(g->q, HEADS, s->k_has, s->k_used);
    float *k = heads_of(g->k, KV, s->k_has, s->k_used);
    float *v = heads_of(g->v, KV, s->v_has, s->v_used);
    float *out = sl_malloc((size_t)(N * HEADS * s->v_has) * sizeof *out);
    const size_t n_tiles = KV * (BLOCK / SL_KV_TILE);
    const size_t k_bytes = n_tiles * sl_kv_tile_bytes(g->kv, s->k_has);
    const size_t page_bytes = k_bytes + n_tiles * sl_kv_tile_bytes(g->kv, s->v_has);
    uint8_t *pool = sl_aligned_alloc(PAGES * page_bytes);
    int32_t table[PAGES], positions[N];
    assert_true(out != NULL && pool != NULL);
    memset(pool, 0xFF, PAGES * page_bytes); /* NaN */
    for (int i = 0; i < PAGES; i++)
        table[i] = PAGES - 1 - i;
    for (int i = 0; i < N; i++)
        positions[i] = i;
    for (int at = 0, n; at < N; at += n) {
        n = at == 0 ? WHOLE : SL_MIN(chunk, N - at);
        struct sl_span span = {.n = n, .pos = at};
        struct sl_batch b = {.n_tokens = n,
                             .n_spans = 1,
                             .positions = positions + at,
                             .spans = &span,
                             .block_tables = table};
        struct sl_kv_view view = {pool, page_bytes, 0, k_bytes, g->kv, BLOCK, 0, 0, 0};
        struct sl_op_qk_norm_rope_kv_store store = {.batch = &b,
                                                    .q = q + at * HEADS * s->k_has,
                                                    .k = k + at * KV * s->k_has,
                                                    .v = v + at * KV * s->v_has,
                                                    .ld_q = HEADS * s->k_has,
                                                    .ld_k = KV * s->k_has,
                                                    .ld_v = KV * s->v_has,
                                                    .n_heads = HEADS,
                                                    .n_kv_heads = KV,
                                                    .head_dim = s->k_has,
                                                    .v_dim = s->v_has,
                                                    .norm_v = s->norm_v,
                                                    .eps = 1e-6f,
                                                    .kv = view};
        struct sl_op_attention a = {.batch = &b,
                                    .q = store.q,
                                    .ld_q = store.ld_q,
                                    .n_heads = HEADS,
                                    .n_kv_heads = KV,
                                    .head_dim = s->k_has,
                                    .v_dim = s->v_has,
                                    .scale = 0.1f,
                                    .kv = view,
                                    .out = out + at * HEADS * s->v_has,
                                    .ld_out = HEADS * s->v_has};
        g->be->vt->qk_norm_rope_kv_store(g->be, &store);
        g->be->vt->attention(g->be, &a);
    }
    sl_aligned_free(pool, PAGES * page_bytes);
    sl_free(q);
    sl_free(k);
    sl_free(v);
    return out;
}

static void same(const float *have, int have_dim, const float *want, int want_dim, int n,
                 const char *what)
{
    for (int i = 0; i < N * HEADS; i++)
        for (int d = 0; d < n; d++)
            if (have[i * have_dim + d] != want[i * want_dim + d])
                fail_msg("%s: row %d, head %d, dimension %d: %.9g instead of %.9g", what, i / HEADS,
                         i % HEADS, d, (double)have[i * have_dim + d],
                         (double)want[i * want_dim + d]);
}

/* n_k dimensions of keys and n_v of values against as many of both. */
static void check_sizes(const struct rig *g, int n_k, int n_v, const char *isa)
{
    const int most = SL_MAX(n_k, n_v);
    const struct shape apart = {n_k, n_k, n_v, n_v, false}, padded = {most, n_k, most, n_v, false};
    char what[100];
    snprintf(what, sizeof what, "%s, %s, keys of %d and values of %d", isa,
             sl_dtype_info(g->kv)->name, n_k, n_v);
    float *want = attend(g, &padded, N), *have = attend(g, &apart, 1);
    same(have, n_v, want, most, n_v, what);
    sl_free(have);
    sl_free(want);
}

static void test_sizes(void **state)
{
    (void)state;
    struct rig g = {.q = numbers(1, HEADS), .k = numbers(2, KV), .v = numbers(3, KV)};
    for (size_t i = 0; i < SL_COUNT(isas); i++) {
        for (int threads = 1; threads <= 2; threads++) {
            g.be = open_isa(isas[i], threads);
            if (g.be == NULL) {
                printf("skip: %s: not on this processor\n", isas[i]);
                break;
            }
            for (size_t f = 0; f < SL_COUNT(formats); f++) {
                g.kv = formats[f];
                check_sizes(&g, MOST, 128, isas[i]);
                check_sizes(&g, 40, 72, isas[i]);
                check_sizes(&g, 64, 8, isas[i]);
            }
            g.be->vt->destroy(g.be);
        }
    }
    sl_free(g.q);
    sl_free(g.k);
    sl_free(g.v);
}

/* A norm of values without weights is one whose weights are 1. */
static void test_norm_v(void **state)
{
    (void)state;
    enum { HD = 40 };
    float ones[HD];
    for (int i = 0; i < HD; i++)
        ones[i] = 1;
    for (size_t i = 0; i < SL_COUNT(isas); i++) {
        struct rig g = {.be = open_isa(isas[i], 1),
                        .kv = SL_DTYPE_F32,
                        .q = numbers(1, HEADS),
                        .k = numbers(2, KV),
                        .v = numbers(3, KV)};
        const struct shape s = {HD, HD, HD, HD, true}, plain = {HD, HD, HD, HD, false};
        if (g.be != NULL) {
            float *have = attend(&g, &s, N);
            for (int h = 0; h < N * KV; h++)
                g.be->vt->rmsnorm(g.be, &(struct sl_op_rmsnorm){.x = g.v + h * MOST,
                                                                .w = ones,
                                                                .eps = 1e-6f,
                                                                .n = 1,
                                                                .h = HD,
                                                                .out = g.v + h * MOST});
            float *want = attend(&g, &plain, N);
            same(have, HD, want, HD, HD, isas[i]);
            sl_free(have);
            sl_free(want);
            g.be->vt->destroy(g.be);
        }
        sl_free(g.q);
        sl_free(g.k);
        sl_free(g.v);
    }
}

/* Without keys only queries change, and no page is written. */
static void test_queries_alone(void **state)
{
    (void)state;
    enum { HD = 32 };
    struct sl_backend *be = open_isa("c", 1);
    float *q = numbers(1, 1), *want = numbers(1, 1), angles[HD], freqs[HD / 2];
    uint8_t page[4096];
    const int32_t table = 0, position = 3;
    const struct sl_rope rope = {HD, SL_ROPE_HALF, freqs, 1};
    struct sl_span span = {.n = 1, .pos = 3};
    struct sl_batch b = {.n_tokens = 1,
                         .n_spans = 1,
                         .positions = &position,
                         .spans = &span,
                         .block_tables = &table};
    for (int i = 0; i < HD / 2; i++)
        freqs[i] = 1.0f / (float)(i + 1);
    be->vt->rope_angles(be, &(struct sl_op_rope_angles){&position, 1, &rope, angles});
    memset(page, 0xAB, sizeof page);
    be->vt->qk_norm_rope_kv_store(
        be, &(struct sl_op_qk_norm_rope_kv_store){
                .batch = &b,
                .q = q,
                .ld_q = HD,
                .n_heads = 1,
                .n_kv_heads = 1,
                .head_dim = HD,
                .rope = &rope,
                .angles = angles,
                .kv = {page, sizeof page, 0, sizeof page / 2, SL_DTYPE_F32, 16, 0}});
    for (size_t i = 0; i < sizeof page; i++)
        assert_int_equal(page[i], 0xAB);
    for (int i = 0; i < HD / 2; i++) {
        const float c = angles[2 * i], s = angles[2 * i + 1];
        assert_true(q[i] == want[i] * c - want[i + HD / 2] * s);
    }
    be->vt->destroy(be);
    sl_free(q);
    sl_free(want);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_sizes),
        cmocka_unit_test(test_norm_v),
        cmocka_unit_test(test_queries_alone),
    };
    return cmocka_run_group_tests_name("heads", tests, NULL, NULL);
}
