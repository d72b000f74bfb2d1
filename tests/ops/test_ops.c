/* SPDX-License-Identifier: MIT
 * The operations of the CPU backend in floats: plain C against a double-precision oracle, every
 * instruction set against plain C bit for bit, and each row against itself in other batches and
 * thread counts bit for bit. test_i8, test_bf16 and test_attention have the other products.
 *
 *   test_ops            checks
 *   test_ops --bench    measures the kernels and the machine's ceilings
 *   test_ops --support  prints which kernel runs which format
 */
#include "ops_util.h"

#include "ops_bench.h"

#include "cpu/kernels.h"

#include <time.h>

/* Sanitizers slow the plain C kernels down by ten; the large cases add no new code paths. */
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
#define QUICK 1
#elif defined(__has_feature)
#if __has_feature(address_sanitizer) || __has_feature(thread_sanitizer)
#define QUICK 1
#endif
#endif
#ifndef QUICK
#define QUICK 0
#endif

static char what[160]; /* the case at hand, for messages */

/* ---------------------------------------------------------------- linear */

struct linear_case {
    int64_t n_rows, n_cols; /* columns are rounded up to whole blocks */
    int n;
    int pad; /* floats between rows of x and out */
    bool bias;
};

static const struct linear_case linear_cases[] = {
    {1, 1, 1, 0, false},    {8, 16, 1, 0, true},     {8, 16, 3, 0, false},   {3, 7, 2, 5, true},
    {17, 33, 4, 0, true},   {33, 256, 5, 3, false},  {64, 512, 6, 0, true},  {40, 513, 7, 0, false},
    {70, 1040, 1, 0, true}, {70, 1040, 66, 1, true}, {9, 2304, 2, 0, true},  {1000, 96, 1, 0, true},
    {31, 768, 64, 0, true}, {100, 80, 131, 0, true}, {13, 1100, 3, 2, true}, {6, 130, 4, 0, true},
};

static void linear_run(struct sl_backend *be, int isa, bool exact, const struct matrix *m,
                       const float *x, int64_t ld_x, const float *bias, int n, int64_t ld_out,
                       float *out)
{
    struct sl_weight w = weight_of(be, m);
    char want[32];
    expected_route(isa, exact, m->dtype, want, sizeof want);
    assert_string_equal(be->vt->weight_route(be, &w), want);
    struct sl_op_linear a = {
        .x = x, .ld_x = ld_x, .w = &w, .bias = bias, .n = n, .out = out, .ld_out = ld_out};
    be->vt->linear(be, &a);
    be->vt->weight_destroy(be, &w);
}

/* Every format as the floats it stands for; test_i8 and test_bf16 check the other routes. */
static void check_linear(enum sl_dtype t, const struct linear_case *c)
{
    struct sl_rng rng = {(uint64_t)c->n_rows * 131 + (uint64_t)c->n, 0};
    int64_t n_cols = SL_ROUND_UP(c->n_cols, (int64_t)sl_dtype_info(t)->block_elems);
    int64_t ld_x = n_cols + c->pad, ld_out = c->n_rows + c->pad;
    struct matrix m = matrix_make(&rng, t, c->n_rows, n_cols);
    matrix_scale_some(&rng, &m, (uint64_t)(c - linear_cases));
    float *x = floats(&rng, (size_t)(c->n * ld_x), 1.0);
    float *bias = floats(&rng, (size_t)c->n_rows, 1.0), *ref = NULL;
    double *want = sl_malloc((size_t)(c->n * c->n_rows) * sizeof *want), power = 0;
    float *dense = sl_malloc((size_t)(c->n * c->n_rows) * sizeof *dense);
    assert_true(want != NULL && dense != NULL);
    for (int64_t i = 0; i < c->n * c->n_rows; i++) {
        int64_t tok = i / c->n_rows, row = i % c->n_rows;
        want[i] = c->bias ? (double)bias[row] : 0.0;
        power += want[i] * want[i];
        for (int64_t k = 0; k < n_cols; k++) {
            const double term = (double)x[tok * ld_x + k] * (double)m.f32[row * n_cols + k];
            want[i] += term;
            power += term * term;
        }
    }
    for (int isa = 0; isa < N_FLOAT_ISAS; isa++) {
        for (int th = 1; isa_available(isa) && th <= 3; th += 2) {
            snprintf(what, sizeof what, "linear %s %s %lldx%lld T=%d threads=%d",
                     sl_dtype_info(t)->name, isa_names[isa], (long long)c->n_rows,
                     (long long)n_cols, c->n, th);
            struct red_buf out = red_alloc((size_t)(c->n * ld_out - c->pad));
            linear_run(backend_of(isa, th, true), isa, true, &m, x, ld_x, c->bias ? bias : NULL,
                       c->n, ld_out, out.p);
            red_check(&out, c->pad == 0, what);
            for (int r = 0; r < c->n; r++)
                memcpy(dense + r * c->n_rows, out.p + r * ld_out,
                       (size_t)c->n_rows * sizeof(float));
            if (ref == NULL) {
                /* Against the squares of what is summed: a single output may be the small
                 * difference of large terms, which is no measure of its error. */
                const double err = square_error(dense, want, (size_t)(c->n * c->n_rows));
                if (!(err <= 1e-12 * power))
                    fail_msg("%s: NMSE %g above 1e-12", what, err / power);
                ref = sl_malloc((size_t)(c->n * c->n_rows) * sizeof *ref);
                assert_non_null(ref);
                memcpy(ref, dense, (size_t)(c->n * c->n_rows) * sizeof *ref);
            }
            same_bits(dense, ref, (size_t)(c->n * c->n_rows), what);
            red_free(&out);
        }
    }
    matrix_free(&m);
    sl_free(x);
    sl_free(bias);
    sl_free(ref);
    sl_free(dense);
    sl_free(want);
}

static void test_linear(void **state)
{
    (void)state;
    for (int t = 0; t < SL_DTYPE_COUNT; t++)
        for (size_t i = 0; i < SL_COUNT(linear_cases); i++)
            if (!QUICK ||
                linear_cases[i].n_rows * linear_cases[i].n_cols * linear_cases[i].n < 1000000)
                check_linear((enum sl_dtype)t, &linear_cases[i]);
}

/* A row alone and the same row at every place of larger batches, on 1, 2, 3 and 8 threads. */
static void test_linear_rows_alone(void **state)
{
    (void)state;
    enum { N = 75, T = 64 };
    static const int batches[] = {2, 3, 5, 8, 13, 64}, threads[] = {1, 2, 3, 8};
    for (int t = 0; t < SL_DTYPE_COUNT; t++) {
        struct sl_rng rng = {(uint64_t)t, 0};
        const int64_t K = 768;
        struct matrix m = matrix_make(&rng, (enum sl_dtype)t, N, K);
        matrix_scale_some(&rng, &m, 3);
        float *x = floats(&rng, (size_t)(T * K), 1.0), *bias = floats(&rng, N, 1.0);
        float *alone = sl_malloc(T * N * sizeof(float)), *out = sl_malloc(T * N * sizeof(float));
        assert_true(alone != NULL && out != NULL);
        for (int isa = 1; isa < N_ISAS; isa++) { /* plain C equals them: test_linear, test_i8 */
            for (int r = 0; isa_available(isa) && r < T; r++)
                linear_run(backend(isa, 1), isa, false, &m, x + r * K, K, bias, 1, N,
                           alone + r * N);
            for (size_t i = 0; isa_available(isa) && i < SL_COUNT(batches) * 4; i++) {
                int n = batches[i / 4], first = (int)sl_rng_below(&rng, (uint64_t)(T - n + 1));
                snprintf(what, sizeof what, "linear %s %s row of %d", sl_dtype_info(m.dtype)->name,
                         isa_names[isa], n);
                linear_run(backend(isa, threads[i % 4]), isa, false, &m, x + first * K, K, bias, n,
                           N, out);
                same_bits(out, alone + first * N, (size_t)(n * N), what);
            }
        }
        matrix_free(&m);
        sl_free(x);
        sl_free(bias);
        sl_free(alone);
        sl_free(out);
    }
}

static void check_gated(enum sl_dtype tg, enum sl_dtype tu, enum sl_act act, int64_t n_rows, int n)
{
    struct sl_rng rng = {99, (uint64_t)n};
    const int64_t K = 512;
    struct matrix g = matrix_make(&rng, tg, n_rows, K), u = matrix_make(&rng, tu, n_rows, K);
    matrix_scale_some(&rng, &g, 2);
    matrix_scale_some(&rng, &u, 3);
    float *x = floats(&rng, (size_t)(n * K), 1.0), *ref = NULL;
    size_t n_out = (size_t)(n * n_rows);
    double *want = sl_malloc(n_out * sizeof *want);
    assert_non_null(want);
    for (size_t i = 0; i < n_out; i++) {
        double a = 0, b = 0;
        for (int64_t k = 0; k < K; k++) {
            double xk = (double)x[(int64_t)(i / (size_t)n_rows) * K + k];
            a += xk * (double)g.f32[(int64_t)(i % (size_t)n_rows) * K + k];
            b += xk * (double)u.f32[(int64_t)(i % (size_t)n_rows) * K + k];
        }
        double y = act == SL_ACT_SILU
                       ? a / (1 + exp(-a))
                       : 0.5 * a * (1 + tanh(sqrt(2 / M_PI) * (a + 0.044715 * a * a * a)));
        want[i] = y * b;
    }
    for (int isa = 0; isa < N_FLOAT_ISAS; isa++)
        for (int th = 1; isa_available(isa) && th <= 2; th++) {
            struct sl_backend *be = backend_of(isa, th, true);
            struct red_buf out = red_alloc(n_out);
            struct sl_weight wg = weight_of(be, &g), wu = weight_of(be, &u);
            struct sl_op_linear_gated_act a = {
                .x = x, .ld_x = K, .gate = &wg, .up = &wu, .act = act, .n = n, .out = out.p};
            snprintf(what, sizeof what, "linear_gated_act %s N=%lld T=%d", isa_names[isa],
                     (long long)n_rows, n);
            be->vt->linear_gated_act(be, &a);
            red_check(&out, true, what);
            if (ref == NULL) {
                near_oracle(out.p, want, n_out, 2e-11, what);
                ref = sl_malloc(n_out * sizeof *ref);
                assert_non_null(ref);
                memcpy(ref, out.p, n_out * sizeof *ref);
            }
            same_bits(out.p, ref, n_out, what);
            red_free(&out);
        }
    matrix_free(&g);
    matrix_free(&u);
    sl_free(x);
    sl_free(ref);
    sl_free(want);
}

static void test_linear_gated_act(void **state)
{
    (void)state;
    static const int rows[] = {1, 16, 45, 200}, ns[] = {1, 2, 7, 65};
    for (size_t i = 0; i < SL_COUNT(rows); i++)
        for (size_t j = 0; j < SL_COUNT(ns); j++) {
            check_gated(SL_DTYPE_F32, SL_DTYPE_F32, SL_ACT_SILU, rows[i], ns[j]);
            check_gated(SL_DTYPE_Q4_K, SL_DTYPE_Q6_K, SL_ACT_GELU_TANH, rows[i], ns[j]);
        }
}

static void test_weight_errors(void **state)
{
    (void)state;
    struct sl_backend *be = backend(0, 1);
    struct sl_weight w;
    struct sl_error err;
    uint8_t data[64] = {0};
    assert_int_equal(
        be->vt->weight_create(be, SL_USE_LINEAR, SL_DTYPE_Q4_K, 2, 255, data, NULL, &w, &err),
        SL_EFORMAT);
    assert_non_null(strstr(err.msg, "255"));
    assert_int_equal(
        be->vt->weight_create(be, SL_USE_LINEAR, SL_DTYPE_F32, 0, 4, data, NULL, &w, &err),
        SL_EFORMAT);
    assert_int_equal(
        be->vt->weight_create(be, SL_USE_LINEAR, SL_DTYPE_F32, 4, -1, data, NULL, &w, &err),
        SL_EFORMAT);
    assert_int_equal(
        be->vt->weight_create(be, SL_USE_LINEAR, SL_DTYPE_COUNT, 1, 1, data, NULL, &w, &err),
        SL_EUNSUPPORTED);
    assert_int_equal(be->vt->weight_create(be, SL_USE_LINEAR, SL_DTYPE_F32, INT64_MAX, 1 << 20,
                                           data, NULL, &w, &err),
                     SL_ELIMIT);
    assert_int_equal(
        be->vt->weight_create(be, SL_USE_LINEAR, SL_DTYPE_F32, 1, INT64_MAX, data, NULL, &w, &err),
        SL_ELIMIT);
}

/* ---------------------------------------------------------------- rows */

static void test_rmsnorm(void **state)
{
    (void)state;
    static const int hs[] = {1, 15, 16, 17, 64, 100, 768, 2560};
    for (size_t i = 0; i < SL_COUNT(hs); i++)
        for (int n = 1; n <= 65; n += 16) {
            int h = hs[i];
            size_t n_all = (size_t)(n * h);
            struct sl_rng rng = {(uint64_t)h, (uint64_t)n};
            float *x = floats(&rng, n_all, 3.0), *y = floats(&rng, n_all, 1.0);
            float *w = floats(&rng, (size_t)h, 1.0), *ref = NULL;
            double *want = sl_malloc(n_all * sizeof *want);
            assert_non_null(want);
            for (int t = 0; t < n; t++) {
                double ss = 0;
                for (int k = 0; k < h; k++) {
                    double s = (double)(x[t * h + k] + y[t * h + k]);
                    ss += s * s;
                }
                for (int k = 0; k < h; k++)
                    want[t * h + k] =
                        (double)(x[t * h + k] + y[t * h + k]) / sqrt(ss / h + 1e-5) * (double)w[k];
            }
            for (int isa = 0; isa < N_FLOAT_ISAS; isa++)
                for (int th = 1; isa_available(isa) && th <= 3; th += 2) {
                    struct sl_backend *be = backend(isa, th);
                    struct red_buf out = red_alloc(n_all), sum = red_alloc(n_all);
                    snprintf(what, sizeof what, "rmsnorm %s H=%d T=%d", isa_names[isa], h, n);
                    memcpy(sum.p, x, n_all * sizeof *x);
                    struct sl_op_add_rmsnorm a = {sum.p, y, w, 1e-5f, n, h, out.p, NULL, 0, 0};
                    be->vt->add_rmsnorm(be, &a);
                    red_check(&out, true, what);
                    red_check(&sum, true, what);
                    for (size_t k = 0; k < n_all; k++)
                        assert_true(sl_f32_bits(sum.p[k]) == sl_f32_bits(x[k] + y[k]));
                    /* the plain norm of that sum, in place, is the same */
                    struct sl_op_rmsnorm b = {sum.p, w, 1e-5f, n, h, sum.p};
                    be->vt->rmsnorm(be, &b);
                    same_bits(sum.p, out.p, n_all, what);
                    if (ref == NULL) {
                        near_oracle(out.p, want, n_all, 1e-12, what);
                        ref = sl_malloc(n_all * sizeof *ref);
                        assert_non_null(ref);
                        memcpy(ref, out.p, n_all * sizeof *ref);
                    }
                    same_bits(out.p, ref, n_all, what);
                    red_free(&out);
                    red_free(&sum);
                }
            sl_free(x);
            sl_free(y);
            sl_free(w);
            sl_free(ref);
            sl_free(want);
        }
}

/* Norms after a sublayer, before the next, both or none: as the norms of one kind one by one. Half
 * of them with a multiplier. */
static void test_norm_places(void **state)
{
    (void)state;
    enum { H = 100, T = 5 };
    struct sl_rng rng = {31, 0};
    float *x = floats(&rng, T * H, 3.0), *y = floats(&rng, T * H, 2.0);
    float *w = floats(&rng, H, 1.0), *w_y = floats(&rng, H, 1.0);
    for (int isa = 0; isa < N_FLOAT_ISAS; isa++)
        for (int k = 0; isa_available(isa) && k < 8; k++) {
            struct sl_backend *be = backend(isa, 1 + k % 2);
            const float by = k & 4 ? 0.22f : 1.0f;
            struct red_buf sum = red_alloc(T * H), in = red_alloc(T * H), out = red_alloc(T * H);
            float want_sum[T * H], want[T * H];
            snprintf(what, sizeof what, "norm places %d %s", k, isa_names[isa]);
            memcpy(sum.p, x, sizeof want);
            memcpy(in.p, y, sizeof want);
            memcpy(want, y, sizeof want);
            if (k & 1)
                be->vt->rmsnorm(be, &(struct sl_op_rmsnorm){y, w_y, 1e-5f, T, H, want});
            for (int i = 0; i < T * H; i++)
                want_sum[i] = x[i] + by * want[i];
            memcpy(want, want_sum, sizeof want);
            if (k & 2)
                be->vt->rmsnorm(be, &(struct sl_op_rmsnorm){want_sum, w, 1e-5f, T, H, want});
            be->vt->add_rmsnorm(
                be, &(struct sl_op_add_rmsnorm){sum.p, in.p, k & 2 ? w : NULL, 1e-5f, T, H, out.p,
                                                k & 1 ? w_y : NULL, k & 4 ? by : 0, 0});
            red_check(&out, true, what);
            same_bits(sum.p, want_sum, T * H, what);
            same_bits(out.p, want, T * H, what);
            be->vt->rmsnorm(be, &(struct sl_op_rmsnorm){x, NULL, 1e-5f, T, H, out.p});
            same_bits(out.p, x, T * H, what);
            /* the sum alone */
            memcpy(sum.p, x, sizeof want);
            memcpy(in.p, y, sizeof want);
            be->vt->add_rmsnorm(be,
                                &(struct sl_op_add_rmsnorm){sum.p, in.p, NULL, 1e-5f, T, H, NULL,
                                                            k & 1 ? w_y : NULL, k & 4 ? by : 0, 0});
            same_bits(sum.p, want_sum, T * H, what);
            red_free(&sum);
            red_free(&in);
            red_free(&out);
        }
    sl_free(x);
    sl_free(y);
    sl_free(w);
    sl_free(w_y);
}

static void test_scale_logits(void **state)
{
    (void)state;
    static const int sizes[] = {1, 15, 16, 17, 4096, 9000};
    static const float scales[] = {1.0f, 0.0625f, 3.5f}, caps[] = {0.0f, 2.0f, 30.0f};
    for (int c = 0; c < 3 * 3 * (int)SL_COUNT(sizes); c++) {
        const int n = sizes[c / 9];
        const float scale = scales[c / 3 % 3], cap = caps[c % 3];
        struct sl_rng rng = {17, (uint64_t)c};
        float *x = floats(&rng, (size_t)n, 9.0), *ref = NULL;
        double *want = sl_malloc((size_t)n * sizeof *want);
        assert_non_null(want);
        for (int i = 0; i < n; i++) {
            const double s = (double)x[i] * (double)scale;
            want[i] = cap > 0 ? (double)cap * tanh(s / (double)cap) : s;
        }
        for (int isa = 0; isa < N_FLOAT_ISAS; isa++) {
            if (!isa_available(isa))
                continue;
            struct sl_backend *be = backend(isa, 1 + c % 2);
            struct red_buf out = red_alloc((size_t)n);
            snprintf(what, sizeof what, "scale_logits %s n=%d scale=%g cap=%g", isa_names[isa], n,
                     (double)scale, (double)cap);
            memcpy(out.p, x, (size_t)n * sizeof *x);
            be->vt->scale_logits(be, &(struct sl_op_scale_logits){out.p, n, scale, cap});
            red_check(&out, true, what);
            near_oracle(out.p, want, (size_t)n, 1e-12, what);
            if (ref == NULL) {
                ref = sl_malloc((size_t)n * sizeof *ref);
                assert_non_null(ref);
                memcpy(ref, out.p, (size_t)n * sizeof *ref);
            }
            same_bits(out.p, ref, (size_t)n, what);
            red_free(&out);
        }
        sl_free(x);
        sl_free(ref);
        sl_free(want);
    }
}

static void test_embed_and_gather(void **state)
{
    (void)state;
    enum { V = 50, H = 512, T = 33 };
    struct sl_rng rng = {5, 0};
    int32_t ids[T];
    for (int i = 0; i < T; i++)
        ids[i] = (int32_t)sl_rng_below(&rng, V);
    for (int t = 0; t < SL_DTYPE_COUNT; t++) {
        struct matrix m = matrix_make(&rng, (enum sl_dtype)t, V, H);
        for (int isa = 0; isa < N_FLOAT_ISAS; isa++)
            for (int th = 1; isa_available(isa) && th <= 2; th++) {
                struct sl_backend *be = backend(isa, th);
                struct sl_weight w = weight_for(be, SL_USE_ROWS, &m);
                struct red_buf out = red_alloc(T * H), rows = red_alloc(T * H);
                struct sl_op_embed a = {ids, T, &w, th == 1 ? 1.0f : 22.6f, out.p};
                be->vt->embed(be, &a);
                red_check(&out, true, "embed");
                for (int i = 0; i < T * H; i++)
                    rows.p[i] = m.f32[ids[i / H] * H + i % H] * a.scale;
                same_bits(out.p, rows.p, T * H, "embed");
                struct sl_op_gather_rows g = {m.f32, ids, T, H * sizeof(float), out.p};
                poison(&out);
                be->vt->gather_rows(be, &g);
                red_check(&out, true, "gather_rows");
                for (int i = 0; i < T * H; i++)
                    rows.p[i] = m.f32[ids[i / H] * H + i % H];
                same_bits(out.p, rows.p, T * H, "gather_rows");
                red_free(&out);
                red_free(&rows);
            }
        matrix_free(&m);
    }
}

static void test_rope_angles(void **state)
{
    (void)state;
    static const int32_t pos[] = {0, 1, 2, 63, 1000, 4095, 131071, 16777215};
    static const float inv[] = {1.0f, 0.31622776f, 0.1f, 1e-4f, 5.3e-7f};
    struct sl_rope rope = {10, SL_ROPE_HALF, inv, 1.1f};
    for (int isa = 0; isa < N_FLOAT_ISAS; isa++) {
        if (!isa_available(isa))
            continue;
        struct red_buf out = red_alloc(SL_COUNT(pos) * 10);
        struct sl_op_rope_angles a = {pos, SL_COUNT(pos), &rope, out.p};
        backend(isa, 2)->vt->rope_angles(backend(isa, 2), &a);
        red_check(&out, true, "rope_angles");
        for (size_t t = 0; t < SL_COUNT(pos); t++)
            for (int i = 0; i < 5; i++) {
                float angle = (float)pos[t] * inv[i];
                float c = (float)cos((double)angle) * 1.1f, s = (float)sin((double)angle) * 1.1f;
                assert_true(out.p[t * 10 + 2 * (size_t)i] == c);
                assert_true(out.p[t * 10 + 2 * (size_t)i + 1] == s);
            }
        red_free(&out);
    }
}

/* ---------------------------------------------------------------- exponential */

static double ulps_off(float got, double want)
{
    double ulp = fmax(ldexp(1.0, ilogb(want) - 23), 0x1p-149);
    return fabs((double)got - want) / ulp;
}

static void test_exp(void **state)
{
    (void)state;
    struct sl_cpu_kernels k[N_FLOAT_ISAS];
    double worst = 0;
    memset(k, 0, sizeof k);
    sl_cpu_kernels_c(&k[0]);
    if (isa_available(1)) /* even filling the table may take wide instructions */
        sl_cpu_kernels_avx2(&k[1]);
    if (isa_available(2))
        sl_cpu_kernels_avx512(&k[2]);
    for (int i = 0; i < (QUICK ? 20000 : 50000); i++) {
        float x = (float)(i * (QUICK ? 0.01 : 0.004) - 110.0);
        if (x > 90)
            break;
        float e = k[0].exp(x);
        if (x >= -103.9f && x < 88.7f)
            worst = fmax(worst, ulps_off(e, exp((double)x)));
        for (int isa = 1; isa < N_FLOAT_ISAS; isa++)
            if (isa_available(isa))
                assert_true(sl_f32_bits(k[isa].exp(x)) == sl_f32_bits(e));
    }
    if (worst > 2)
        fail_msg("exp is %g ulp off", worst);
    for (int isa = 0; isa < N_FLOAT_ISAS; isa++) {
        if (!isa_available(isa))
            continue;
        assert_true(k[isa].exp(0.0f) == 1.0f && k[isa].exp(-0.0f) == 1.0f);
        assert_true(sl_f32_bits(k[isa].exp(-INFINITY)) == 0 &&
                    sl_f32_bits(k[isa].exp(-1e30f)) == 0);
        assert_true(k[isa].exp(INFINITY) == INFINITY && k[isa].exp(88.73f) == INFINITY);
        assert_true(isnan(k[isa].exp(NAN)));
    }
}

static void test_activation_range(void **state)
{
    (void)state;
    enum { N = 4000 };
    static float g[N], ref[2][N];
    struct matrix ones = {.dtype = SL_DTYPE_F32, .n_rows = N, .n_cols = 1};
    struct matrix gate = ones;
    static float one[N];
    for (int i = 0; i < N; i++) {
        g[i] = (float)(i - N / 2) * 0.06f;
        one[i] = 1.0f;
    }
    g[0] = -INFINITY;
    g[1] = INFINITY;
    g[2] = NAN;
    g[3] = -3e38f;
    g[4] = 1e-40f;
    gate.data = (uint8_t *)g;
    ones.data = (uint8_t *)one;
    float x = 1.0f;
    for (int isa = 0; isa < N_FLOAT_ISAS; isa++)
        for (int act = 0; isa_available(isa) && act < 2; act++) {
            struct sl_backend *be = backend(isa, 1);
            struct sl_weight wg = weight_of(be, &gate), wu = weight_of(be, &ones);
            struct red_buf out = red_alloc(N);
            struct sl_op_linear_gated_act a = {&x, 1,     &wg,  &wu, (enum sl_act)act,
                                               1,  out.p, NULL, NULL};
            be->vt->linear_gated_act(be, &a);
            red_check(&out, true, "activation");
            assert_true(isnan(out.p[2]) && out.p[1] == INFINITY);
            for (int i = 4; i < N; i++) {
                double v = (double)g[i];
                double y = act == SL_ACT_SILU ? v : 2 * sqrt(2 / M_PI) * (v + 0.044715 * v * v * v);
                double want = v / (1 + exp(-y));
                /* the rounding of y counts |y| times; exp(-y) overflows where the result is tiny */
                double tolerance = 2e-7 * (3 + fabs(y)) * fabs(want) + 1e-36;
                if (fabs((double)out.p[i] - want) > tolerance)
                    fail_msg("%s act %d (%g) = %g, want %g", isa_names[isa], act, v,
                             (double)out.p[i], want);
            }
            if (isa == 0)
                memcpy(ref[act], out.p, sizeof ref[act]);
            same_bits(out.p, ref[act], N, "activation");
            red_free(&out);
        }
}

static void test_linear_nan_stays_in_its_row(void **state)
{
    (void)state;
    enum { N = 40, K = 300, T = 9 };
    struct sl_rng rng = {4, 0};
    struct matrix m = matrix_make(&rng, SL_DTYPE_BF16, N, K);
    float *x = floats(&rng, T * K, 1.0), clean[T * N], out[T * N];
    for (int isa = 0; isa < N_ISAS; isa++) {
        if (!isa_available(isa))
            continue;
        linear_run(backend(isa, 1), isa, false, &m, x, K, NULL, T, N, clean);
        float keep[2] = {x[4 * K + 299], x[6 * K]};
        x[4 * K + 299] = NAN;
        x[6 * K] = INFINITY;
        linear_run(backend(isa, 1), isa, false, &m, x, K, NULL, T, N, out);
        x[4 * K + 299] = keep[0];
        x[6 * K] = keep[1];
        for (int i = 0; i < T * N; i++) {
            if (i / N == 4)
                assert_true(isnan(out[i]));
            else if (i / N == 6)
                assert_true(isnan(out[i]) || isinf(out[i]));
            else
                assert_true(sl_f32_bits(out[i]) == sl_f32_bits(clean[i]));
        }
    }
    matrix_free(&m);
    sl_free(x);
}

/* ---------------------------------------------------------------- backend */

static void test_isa_names(void **state)
{
    (void)state;
    enum sl_cpu_isa isa;
    struct sl_error err;
    assert_int_equal(sl_cpu_isa_parse("auto", &isa, &err), 0);
    assert_int_equal(isa, SL_ISA_AUTO);
    assert_int_equal(sl_cpu_isa_parse("c", &isa, &err), 0);
    assert_int_equal(isa, SL_ISA_C);
    assert_int_equal(sl_cpu_isa_parse("avx521", &isa, &err), SL_EINVAL);
    assert_non_null(strstr(err.msg, "avx512"));
    assert_int_equal(sl_cpu_isa_parse("", &isa, &err), SL_EINVAL);
    struct sl_backend *be;
    struct sl_cpu_config cfg = {.n_threads = -1, .isa = SL_ISA_C};
    assert_int_equal(sl_cpu_create(&cfg, &be, &err), SL_EINVAL);
    cfg.n_threads = SL_MAX_THREADS + 1;
    assert_int_equal(sl_cpu_create(&cfg, &be, &err), SL_EINVAL);
    assert_string_equal(backend(0, 2)->vt->isa(backend(0, 2)), "c");
    assert_int_equal(backend(0, 2)->vt->n_threads(backend(0, 2)), 2);
    assert_string_equal(sl_op_name(SL_OP_linear), "linear");
    assert_string_equal(sl_op_name(SL_OP_gather_rows), "gather_rows");
}

static int threads_left;

static int failing_thread_create(pthread_t *t, void *(*fn)(void *), void *arg)
{
    return threads_left-- > 0 ? sl_sys_real.thread_create(t, fn, arg) : 11;
}

static int allocs_left;

static void *failing_alloc(size_t n_bytes)
{
    return allocs_left-- > 0 ? sl_sys_real.alloc(n_bytes) : NULL;
}

static void test_create_failures(void **state)
{
    (void)state;
    struct sl_sys sys = sl_sys_real;
    struct sl_backend *be;
    struct sl_error err;
    sys.thread_create = failing_thread_create;
    sl_sys = &sys;
    for (int i = 0; i < 5; i++) {
        threads_left = i;
        int rc = sl_cpu_create(&(struct sl_cpu_config){.n_threads = 6}, &be, &err);
        assert_int_equal(rc, SL_ENOMEM);
        assert_null(be);
    }
    sys = sl_sys_real;
    sys.alloc = failing_alloc;
    int n = 0, rc = SL_ENOMEM;
    for (; rc != 0 && n < 100; n++) {
        allocs_left = n;
        rc = sl_cpu_create(&(struct sl_cpu_config){.n_threads = 2}, &be, &err);
        assert_true(rc == 0 || rc == SL_ENOMEM);
    }
    sl_sys = &sl_sys_real;
    assert_int_equal(rc, 0);
    assert_true(n > 1);
    be->vt->destroy(be);
}

static double cpu_seconds(void)
{
    struct timespec ts;
    clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &ts);
    return (double)ts.tv_sec + 1e-9 * (double)ts.tv_nsec;
}

/* Many threads on few cores, many short jobs; then nothing to do costs nothing. */
static void test_threads(void **state)
{
    (void)state;
    struct sl_error err;
    struct sl_rng rng = {6, 0};
    struct matrix m = matrix_make(&rng, SL_DTYPE_F16, 512, 256);
    float *x = floats(&rng, 8 * 256, 1.0);
    float *ref = sl_malloc(8 * 512 * sizeof *ref), *out = sl_malloc(8 * 512 * sizeof *out);
    assert_true(ref != NULL && out != NULL);
    static const int counts[] = {1, 2, 5, 24, SL_MAX_THREADS};
    for (size_t c = 0; c < SL_COUNT(counts); c++) {
        struct sl_backend *be;
        struct sl_cpu_config cfg = {.n_threads = counts[c]};
        if (sl_cpu_create(&cfg, &be, &err) != 0)
            fail_msg("%s", err.msg);
        struct sl_weight w = weight_of(be, &m);
        for (int i = 0; i < (counts[c] > 24 ? 20 : QUICK ? 100 : 300); i++) {
            struct sl_op_linear a = {x, 256, &w, NULL, 8, out, 512, NULL, NULL, false};
            memset(out, 0xFF, 8 * 512 * sizeof *out);
            be->vt->linear(be, &a);
            if (c == 0 && i == 0)
                memcpy(ref, out, 8 * 512 * sizeof *out);
            same_bits(out, ref, 8 * 512, "linear on many threads");
        }
        if (counts[c] == 5) {
            struct timespec ms20 = {0, 20000000}, ms200 = {0, 200000000};
            nanosleep(&ms20, NULL);
            double before = cpu_seconds();
            nanosleep(&ms200, NULL);
            assert_true(cpu_seconds() - before < 0.002);
        }
        be->vt->destroy(be);
    }
    matrix_free(&m);
    sl_free(x);
    sl_free(ref);
    sl_free(out);
}

static void test_no_allocation_in_ops(void **state)
{
    (void)state;
    struct sl_rng rng = {6, 0};
    struct matrix m = matrix_make(&rng, SL_DTYPE_Q4_K, 64, 256);
    float *x = floats(&rng, 8 * 256, 1.0), out[8 * 64];
    struct sl_backend *be = backend(0, 2);
    struct sl_weight w = weight_of(be, &m);
    struct sl_op_linear a = {x, 256, &w, NULL, 8, out, 64, NULL, NULL, false};
    uint64_t before = sl_alloc_guard_count();
    sl_alloc_guard_arm(true);
    be->vt->linear(be, &a);
    sl_alloc_guard_arm(false);
    assert_true(sl_alloc_guard_count() == before);
    be->vt->weight_destroy(be, &w);
    matrix_free(&m);
    sl_free(x);
}

static void print_support(void)
{
    static const uint8_t data[2048];
    printf("%-8s", "format");
    for (int isa = 0; isa < N_ISAS; isa++)
        printf(" %-16s", isa_names[isa]);
    printf("\n");
    for (int t = 0; t < SL_DTYPE_COUNT; t++) {
        printf("%-8s", sl_dtype_info((enum sl_dtype)t)->name);
        for (int isa = 0; isa < N_ISAS; isa++) {
            char route[32];
            expected_route(isa, false, (enum sl_dtype)t, route, sizeof route);
            if (isa_available(isa)) { /* else what test_linear wants where there is one */
                struct matrix m = {.data = (uint8_t *)(uintptr_t)data,
                                   .dtype = (enum sl_dtype)t,
                                   .n_rows = 1,
                                   .n_cols = 256};
                struct sl_backend *be = backend(isa, 1);
                struct sl_weight w = weight_of(be, &m);
                snprintf(route, sizeof route, "%s", be->vt->weight_route(be, &w));
                be->vt->weight_destroy(be, &w);
            }
            printf(" %-16s", route);
        }
        printf("\n");
    }
}

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_isa_names),
        cmocka_unit_test(test_create_failures),
        cmocka_unit_test(test_threads),
        cmocka_unit_test(test_weight_errors),
        cmocka_unit_test(test_rmsnorm),
        cmocka_unit_test(test_norm_places),
        cmocka_unit_test(test_scale_logits),
        cmocka_unit_test(test_embed_and_gather),
        cmocka_unit_test(test_rope_angles),
        cmocka_unit_test(test_exp),
        cmocka_unit_test(test_activation_range),
        cmocka_unit_test(test_linear),
        cmocka_unit_test(test_linear_rows_alone),
        cmocka_unit_test(test_linear_gated_act),
        cmocka_unit_test(test_linear_nan_stays_in_its_row),
        cmocka_unit_test(test_no_allocation_in_ops),
    };
    if (argc > 1 && strcmp(argv[1], "--support") == 0) {
        print_support();
        destroy_backends(NULL);
        return 0;
    }
    if (argc > 1 && strcmp(argv[1], "--bench") == 0) {
        run_bench(argc > 2 ? argv[2] : "");
        destroy_backends(NULL);
        return 0;
    }
    say_what_is_skipped();
    return cmocka_run_group_tests(tests, NULL, destroy_backends);
}
