/* SPDX-License-Identifier: MIT
 * What only models of whole texts use: attention of every row over all keys, layernorm, activations
 * without a gate, pooling, the sum of three embeddings. Against double, with the same bits for
 * every instruction set and number of threads, and nothing written beyond the outputs.
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

static const enum sl_cpu_isa isas[] = {SL_ISA_C, SL_ISA_AVX2, SL_ISA_AVX512};
enum { N_WAYS = 6, MARK = 0x7FC0DEAD, ZONE = 16 };

/* Way i: an instruction set with 1 or 3 threads; NULL: not on this processor. */
static struct sl_backend *open_way(int i)
{
    struct sl_cpu_config cfg = {.n_threads = i % 2 ? 3 : 1, .isa = isas[i / 2]};
    struct sl_backend *be = NULL;
    struct sl_error err;
    if (sl_cpu_create(&cfg, &be, &err) != 0)
        printf("skipped: way %d: %s\n", i, err.msg);
    return be;
}

static float *floats(uint64_t seed, size_t n, double scale, double shift)
{
    struct sl_rng rng = {seed, 1};
    float *p = sl_malloc((n + 1) * sizeof *p);
    assert_non_null(p);
    for (size_t i = 0; i < n; i++)
        p[i] = (float)(scale * sl_rng_normal(&rng) + shift);
    return p;
}

/* n floats with marks behind them. */
static float *marked(size_t n)
{
    float *p = sl_malloc((n + ZONE) * sizeof *p);
    assert_non_null(p);
    for (size_t i = 0; i < n + ZONE; i++)
        p[i] = sl_f32_of_bits(MARK);
    return p;
}

/* The output of a way: near what double says, the bits of the first way, marks untouched. */
static void check(const char *what, const float *have, size_t n, const double *want, double tol,
                  float **first)
{
    for (size_t i = n; i < n + ZONE; i++)
        if (sl_f32_bits(have[i]) != MARK)
            fail_msg("%s: wrote behind the end", what);
    for (size_t i = 0; i < n; i++)
        if (!(fabs((double)have[i] - want[i]) <= tol * (1 + fabs(want[i]))))
            fail_msg("%s: value %zu is %.9g, should be %.9g", what, i, (double)have[i], want[i]);
    if (*first == NULL) {
        *first = sl_malloc(n * sizeof **first);
        assert_non_null(*first);
        memcpy(*first, have, n * sizeof **first);
    }
    if (memcmp(*first, have, n * sizeof **first) != 0)
        fail_msg("%s: other bits than the first way", what);
}

/* The norm of a sublayer's input: the stream keeps the sum. normed: of x + y, by w and b. */
static void layernorm_before(struct sl_backend *be, const float *x, const float *y, const float *w,
                             const float *b, size_t n, int h, const float *normed)
{
    enum { T = 5 };
    float *sum = marked(n), *scaled = marked(n), *out = marked(n), *alone = marked(n);
    memcpy(sum, x, n * sizeof *x);
    memcpy(scaled, y, n * sizeof *y);
    be->vt->layernorm(be, &(struct sl_op_layernorm){sum, scaled, w, b, 1e-5f, T, h, out, 0, false});
    for (size_t i = 0; i < n; i++)
        assert_true(sl_f32_bits(sum[i]) == sl_f32_bits(x[i] + y[i]));
    assert_memory_equal(out, normed, n * sizeof *out);
    /* y times something; without a bias; of what stands in the stream alone */
    float *zeros = sl_calloc((size_t)h, sizeof *zeros);
    memcpy(sum, x, n * sizeof *x);
    be->vt->layernorm(be,
                      &(struct sl_op_layernorm){sum, scaled, w, zeros, 1e-5f, T, h, out, 3, false});
    for (size_t i = 0; i < n; i++) {
        const float product = 3 * y[i];
        assert_true(sl_f32_bits(sum[i]) == sl_f32_bits(x[i] + product));
    }
    memcpy(scaled, sum, n * sizeof *sum);
    be->vt->layernorm(be,
                      &(struct sl_op_layernorm){sum, NULL, w, NULL, 1e-5f, T, h, alone, 0, false});
    assert_memory_equal(sum, scaled, n * sizeof *sum);
    assert_memory_equal(out, alone, n * sizeof *out);
    sl_free(sum);
    sl_free(scaled);
    sl_free(out);
    sl_free(alone);
    sl_free(zeros);
}

static void test_layernorm(void **state)
{
    (void)state;
    static const int widths[] = {1, 15, 16, 17, 48, 384, 1000};
    enum { T = 5 };
    for (size_t c = 0; c < SL_COUNT(widths); c++) {
        const int h = widths[c];
        const size_t n = (size_t)T * (size_t)h;
        float *x = floats(1, n, 2, 30), *y = floats(2, n, 1, 0), *first = NULL;
        float *w = floats(3, (size_t)h, 1, 0), *b = floats(4, (size_t)h, 1, 0);
        double *want = sl_calloc(n, sizeof *want);
        for (int t = 0; t < T; t++) {
            double mean = 0, var = 0;
            for (int i = 0; i < h; i++)
                mean += (double)(x[t * h + i] + y[t * h + i]) / h;
            for (int i = 0; i < h; i++)
                var += pow((double)(x[t * h + i] + y[t * h + i]) - mean, 2) / h;
            for (int i = 0; i < h; i++)
                want[t * h + i] = ((double)(x[t * h + i] + y[t * h + i]) - mean) /
                                      sqrt(var + 1e-5) * (double)w[i] +
                                  (double)b[i];
        }
        for (int i = 0; i < N_WAYS; i++) {
            struct sl_backend *be = open_way(i);
            float *in = marked(n), *out = marked(n);
            if (be == NULL)
                continue;
            memcpy(in, x, n * sizeof *x);
            struct sl_op_layernorm a = {in, y, w, b, 1e-5f, T, h, out, 0, true};
            be->vt->layernorm(be, &a);
            check("layernorm", out, n, want, 2e-5, &first);
            check("layernorm in place", in, n, want, 2e-5, &first);
            layernorm_before(be, x, y, w, b, n, h, out);
            sl_free(in);
            sl_free(out);
            be->vt->destroy(be);
        }
        sl_free(x);
        sl_free(y);
        sl_free(w);
        sl_free(b);
        sl_free(want);
        sl_free(first);
    }
}

static const struct sl_xielu xielu = {
    .alpha_p = 0.8f, .alpha_n = 1.3f, .beta = 0.5f, .eps = -1e-6f};

static double act_of(enum sl_act act, double x)
{
    switch (act) {
    case SL_ACT_SILU:
        return x / (1 + exp(-x));
    case SL_ACT_GELU_TANH:
        return x / (1 + exp(-2 * sqrt(2 / M_PI) * (x + 0.044715 * x * x * x)));
    case SL_ACT_GELU_ERF:
        return x * 0.5 * erfc(-x * M_SQRT1_2);
    case SL_ACT_TANH:
        return tanh(x);
    case SL_ACT_RELU:
        return fmax(x, 0);
    case SL_ACT_RELU2:
        return fmax(x, 0) * fmax(x, 0);
    case SL_ACT_XIELU:
        return x > 0 ? (double)xielu.alpha_p * x * x + (double)xielu.beta * x
                     : (expm1(fmin(x, (double)xielu.eps)) - x) * (double)xielu.alpha_n +
                           (double)xielu.beta * x;
    case SL_ACT_SIGMOID:
        return 1 / (1 + exp(-x));
    case SL_ACT_COUNT:
        break;
    }
    return NAN;
}

static void test_activate(void **state)
{
    (void)state;
    enum { N = 9001 };
    for (enum sl_act act = 0; act < SL_ACT_COUNT; act++) {
        float *x = floats(5, N, 3, 0), *up = floats(6, N, 1, 0), *first = NULL;
        double *want = sl_calloc(N, sizeof *want);
        x[0] = 0.0f;
        x[1] = -30.0f;
        x[2] = 30.0f;
        x[3] = -1e-7f;
        x[4] = -0.4999f;
        x[5] = -100.0f;
        for (size_t i = 0; i < N; i++)
            want[i] = act_of(act, (double)x[i]);
        for (int i = 0; i < N_WAYS; i++) {
            struct sl_backend *be = open_way(i);
            float *out = marked(N);
            if (be == NULL)
                continue;
            struct sl_op_activate a = {.x = x, .act = act, .n = N, .out = out, .xielu = xielu};
            be->vt->activate(be, &a);
            check("activate", out, N, want, act == SL_ACT_GELU_TANH ? 3e-6 : 5e-7, &first);
            if (act == SL_ACT_XIELU) { /* of no gate */
                sl_free(out);
                be->vt->destroy(be);
                continue;
            }
            float *gated = marked(N);
            a.out = gated;
            a.up = up;
            be->vt->activate(be, &a);
            for (size_t k = 0; k < N; k++)
                assert_true(sl_f32_bits(gated[k]) == sl_f32_bits(out[k] * up[k]));
            a.swiglu = (struct sl_swiglu){.limit = 0.5f, .late = true};
            be->vt->activate(be, &a);
            for (size_t k = 0; k < N && act == SL_ACT_SILU; k++)
                assert_true(sl_f32_bits(gated[k]) ==
                            sl_f32_bits(SL_MIN(out[k], 0.5f) * SL_MIN(SL_MAX(up[k], -0.5f), 0.5f)));
            sl_free(gated);
            sl_free(out);
            be->vt->destroy(be);
        }
        sl_free(x);
        sl_free(up);
        sl_free(want);
        sl_free(first);
    }
}

static void test_gate_heads(void **state)
{
    (void)state;
    enum { T = 37, HEADS = 5, DIM = 24, N = T * HEADS * DIM };
    for (int way = 0; way < 4; way++) {
        const bool by_head = way % 2 != 0, softplus = way >= 2;
        float *x = floats(5, N, 3, 0), *gate = floats(6, N, 4, 0), *first = NULL;
        double *want = sl_calloc(N, sizeof *want);
        gate[0] = softplus ? 80 : INFINITY;
        gate[1] = -INFINITY;
        for (size_t i = 0; i < N; i++) {
            const double g = (double)gate[by_head ? i / DIM : i];
            want[i] = (double)x[i] * (softplus ? log1p(exp(g)) : 1 / (1 + exp(-g)));
        }
        for (int i = 0; i < N_WAYS; i++) {
            struct sl_backend *be = open_way(i);
            float *out = marked(N);
            if (be == NULL)
                continue;
            memcpy(out, x, N * sizeof *out);
            be->vt->gate_heads(
                be, &(struct sl_op_gate_heads){out, gate, T, HEADS, DIM, by_head, softplus});
            check("gate_heads", out, N, want, 5e-7, &first);
            sl_free(out);
            be->vt->destroy(be);
        }
        sl_free(x);
        sl_free(gate);
        sl_free(want);
        sl_free(first);
    }
}

static const struct sl_span spans[] = {{0, 1, 0, 0, 0}, {1, 300, 0, 1, 0}, {301, 37, 0, 20, 0}};
enum { N_SPANS = 3, N_ROWS = 338, N_PAGES = 24 };

static void test_pool(void **state)
{
    (void)state;
    enum { H = 37 };
    for (int kind = 0; kind < SL_POOL_COUNT; kind++)
        for (int unit = 0; unit < 2; unit++) {
            float *x = floats(6, N_ROWS * H, 1, 0.5), *first = NULL;
            double want[N_SPANS * H];
            for (int s = 0; s < N_SPANS; s++) {
                double length = 0, *row = want + s * H;
                for (int i = 0; i < H; i++) {
                    row[i] = kind == SL_POOL_MAX ? -INFINITY : 0;
                    for (int t = 0; t < spans[s].n; t++) {
                        double v = (double)x[(spans[s].first + t) * H + i];
                        if (kind == SL_POOL_MEAN)
                            row[i] += v / spans[s].n;
                        else if (kind == SL_POOL_MAX)
                            row[i] = fmax(row[i], v);
                        else if (t == (kind == SL_POOL_CLS ? 0 : spans[s].n - 1))
                            row[i] = v;
                    }
                    length += row[i] * row[i];
                }
                for (int i = 0; i < H && unit; i++)
                    row[i] /= sqrt(length);
            }
            for (int i = 0; i < N_WAYS; i++) {
                struct sl_backend *be = open_way(i);
                float *out = marked(N_SPANS * H);
                if (be == NULL)
                    continue;
                struct sl_op_pool a = {x, spans, N_SPANS, H, (enum sl_pool_kind)kind, unit, out};
                be->vt->pool(be, &a);
                check("pool", out, N_SPANS * H, want, 2e-6, &first);
                sl_free(out);
                be->vt->destroy(be);
            }
            sl_free(x);
            sl_free(first);
        }
}

static void test_embed_positions(void **state)
{
    (void)state;
    enum { H = 40, V = 11, P = 300 };
    float *word = floats(7, V * H, 1, 0), *place = floats(8, P * H, 1, 0);
    float *type = floats(9, 2 * H, 1, 0), *first = NULL;
    double *want = sl_calloc(N_ROWS * H, sizeof *want);
    int32_t tokens[N_ROWS], second[N_SPANS] = {INT32_MAX, 100, 1};
    for (int t = 0; t < N_ROWS; t++)
        tokens[t] = t % V;
    for (int s = 0; s < N_SPANS; s++)
        for (int t = 0; t < spans[s].n; t++)
            for (int i = 0; i < H; i++)
                want[(spans[s].first + t) * H + i] =
                    (double)word[tokens[spans[s].first + t] * H + i] + (double)place[t * H + i] +
                    (double)type[(t >= second[s]) * H + i];
    for (int i = 0; i < N_WAYS; i++) {
        struct sl_backend *be = open_way(i);
        float *out = marked(N_ROWS * H);
        struct sl_error err;
        struct sl_weight w[3];
        if (be == NULL)
            continue;
        const float *data[] = {word, place, type};
        const int64_t rows[] = {V, P, 2};
        for (int k = 0; k < 3; k++)
            assert_int_equal(be->vt->weight_create(be, SL_USE_ROWS, SL_DTYPE_F32, rows[k], H,
                                                   data[k], NULL, &w[k], &err),
                             0);
        struct sl_batch b = {.n_tokens = N_ROWS,
                             .n_spans = N_SPANS,
                             .tokens = tokens,
                             .spans = spans,
                             .second_from = second};
        struct sl_op_embed_positions a = {
            .batch = &b, .word = &w[0], .position = &w[1], .type = &w[2], .out = out};
        be->vt->embed_positions(be, &a);
        check("embed_positions", out, N_ROWS * H, want, 1e-6, &first);
        sl_free(out);
        be->vt->destroy(be);
    }
    sl_free(word);
    sl_free(place);
    sl_free(type);
    sl_free(want);
    sl_free(first);
}

/* ---------------------------------------------------------------- attention */

enum { HEADS = 3, HD = 20, Q = HEADS * HD };

static void attention_of_double(const float *q, const float *k, const float *v, int window,
                                double *want)
{
    double p[N_ROWS];
    for (int s = 0; s < N_SPANS; s++)
        for (int i = 0; i < spans[s].n * HEADS; i++) {
            const int head = i % HEADS * HD, from = spans[s].first, n = spans[s].n;
            const size_t row = (size_t)(from + i / HEADS) * Q + (size_t)head;
            const int lo = window > 0 ? SL_MAX(i / HEADS - window + 1, 0) : 0;
            const int hi = window > 0 ? SL_MIN(i / HEADS + window, n) : n;
            double max = -INFINITY, sum = 0;
            for (int j = lo; j < hi; j++) {
                p[j] = 0;
                for (int d = 0; d < HD; d++)
                    p[j] += (double)q[row + (size_t)d] * (double)k[(from + j) * Q + head + d] * 0.3;
                max = fmax(max, p[j]);
            }
            for (int j = lo; j < hi; j++)
                sum += p[j] = exp(p[j] - max);
            for (int d = 0; d < HD; d++) {
                want[row + (size_t)d] = 0;
                for (int j = lo; j < hi; j++)
                    want[row + (size_t)d] += p[j] / sum * (double)v[(from + j) * Q + head + d];
            }
        }
}

/* window 0: every row sees all of its text; else what is less than that far away, both ways. */
static void check_attention(int window)
{
    const size_t n = (size_t)N_ROWS * Q;
    float *q = floats(10, n, 1.5, 0), *k = floats(11, n, 1.5, 0), *v = floats(12, n, 1, 0);
    float *first = NULL;
    double *want = sl_calloc(n, sizeof *want);
    int32_t tables[N_PAGES], positions[N_ROWS];
    for (int i = 0; i < N_PAGES; i++)
        tables[i] = N_PAGES - 1 - i;
    for (int s = 0; s < N_SPANS; s++)
        for (int t = 0; t < spans[s].n; t++)
            positions[spans[s].first + t] = t;
    attention_of_double(q, k, v, window, want);
    const size_t tiles = HEADS * sl_kv_tile_bytes(SL_DTYPE_F32, HD);
    for (int i = 0; i < N_WAYS; i++) {
        struct sl_backend *be = open_way(i);
        float *out = marked(n), *rotated = sl_malloc(n * sizeof *rotated);
        if (be == NULL)
            continue;
        uint8_t *pool = be->vt->alloc(be, 2 * tiles * N_PAGES);
        assert_non_null(pool);
        memset(pool, 0xFF, 2 * tiles * N_PAGES); /* NaN behind every text's end */
        memcpy(rotated, q, n * sizeof *q);
        struct sl_batch b = {.n_tokens = N_ROWS,
                             .n_spans = N_SPANS,
                             .positions = positions,
                             .spans = spans,
                             .block_tables = tables};
        struct sl_kv_view kv = {pool, 2 * tiles, 0, tiles, SL_DTYPE_F32, 16, 0, 0, 0};
        struct sl_op_qk_norm_rope_kv_store store = {.batch = &b,
                                                    .q = rotated,
                                                    .k = k,
                                                    .v = v,
                                                    .ld_q = Q,
                                                    .ld_k = Q,
                                                    .ld_v = Q,
                                                    .n_heads = HEADS,
                                                    .n_kv_heads = HEADS,
                                                    .head_dim = HD,
                                                    .kv = kv};
        struct sl_op_attention a = {.batch = &b,
                                    .q = rotated,
                                    .ld_q = Q,
                                    .n_heads = HEADS,
                                    .n_kv_heads = HEADS,
                                    .head_dim = HD,
                                    .scale = 0.3f,
                                    .whole = true,
                                    .window = window,
                                    .kv = kv,
                                    .out = out,
                                    .ld_out = Q};
        be->vt->qk_norm_rope_kv_store(be, &store);
        be->vt->attention(be, &a);
        check("attention", out, n, want, 5e-6, &first);
        /* one text alone has the same bits: alone its splits may be items of their own */
        b.n_tokens = b.n_spans = 1;
        b.spans = &(struct sl_span){.n = spans[1].n, .table_idx = spans[1].table_idx};
        b.n_tokens = spans[1].n;
        a.q = rotated + (size_t)spans[1].first * Q;
        for (size_t j = 0; j < n; j++)
            out[j] = sl_f32_of_bits(MARK);
        be->vt->attention(be, &a);
        assert_memory_equal(out, first + (size_t)spans[1].first * Q,
                            (size_t)spans[1].n * Q * sizeof *out);
        be->vt->free(be, pool, 2 * tiles * N_PAGES);
        sl_free(rotated);
        sl_free(out);
        be->vt->destroy(be);
    }
    sl_free(q);
    sl_free(k);
    sl_free(v);
    sl_free(want);
    sl_free(first);
}

static void test_attention(void **state)
{
    static const int windows[] = {0, 1, 5, 33, 300};
    (void)state;
    for (size_t i = 0; i < SL_COUNT(windows); i++)
        check_attention(windows[i]);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_layernorm),       cmocka_unit_test(test_activate),
        cmocka_unit_test(test_gate_heads),      cmocka_unit_test(test_pool),
        cmocka_unit_test(test_embed_positions), cmocka_unit_test(test_attention),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
