/* SPDX-License-Identifier: MIT
 * Mixtures of experts on the CPU: products and what a shared expert gave against double, and each
 * row against itself alone and against the sum of ranks that have some of the experts each, bit for
 * bit, for every instruction set and number of threads.
 */
#include "ops_util.h"

/* ---------------------------------------------------------------- experts */

struct model {
    int32_t n_experts, top_k, n;
    int64_t h, i;
    struct matrix *mat[3]; /* gate, up, down of each expert */
    float *bias[3];        /* of each expert; NULL: none */
    struct sl_swiglu swiglu;
    bool weigh_input;
    float *x, *weights;
    float *shared, *shared_logit; /* NULL: none */
    int32_t *experts;
};

/* Biases, and SwiGLU with limits that most of the gates and ups are over: of gates, or of what
 * becomes of them. */
enum limits { NO_LIMITS, LIMITS, LATE_LIMITS };

static struct model model_of(const enum sl_dtype t[3], int32_t n_experts, int32_t top_k, int32_t n,
                             int64_t h, int64_t i, enum limits limits)
{
    struct sl_rng rng = {(uint64_t)t[0] + 1, (uint64_t)n};
    struct model m = {.n_experts = n_experts, .top_k = top_k, .n = n, .h = h, .i = i};
    for (int k = 0; k < 3; k++) {
        m.mat[k] = sl_malloc((size_t)m.n_experts * sizeof *m.mat[k]);
        assert_non_null(m.mat[k]);
        for (int32_t e = 0; e < m.n_experts; e++) {
            m.mat[k][e] = matrix_make(&rng, t[k], k < 2 ? i : h, k < 2 ? h : i);
            matrix_scale_some(&rng, &m.mat[k][e], t[k] == SL_DTYPE_FP8_E4M3 ? 1 : 0);
        }
        if (limits != NO_LIMITS)
            m.bias[k] = floats(&rng, (size_t)(m.n_experts * (k < 2 ? i : h)), 1.0);
    }
    if (limits != NO_LIMITS)
        m.swiglu = limits == LATE_LIMITS
                       ? (struct sl_swiglu){.limit = 0.75f, .late = true}
                       : (struct sl_swiglu){.limit = 0.75f, .alpha = 1.702f, .up_plus = 1};
    m.x = floats(&rng, (size_t)(n * h), 1.0);
    m.weights = floats(&rng, (size_t)(n * m.top_k), 1.0);
    m.shared = n % 3 != 1 ? floats(&rng, (size_t)(n * h), 1.0) : NULL;
    m.shared_logit = n % 3 == 2 ? floats(&rng, (size_t)n, 1.0) : NULL;
    m.experts = sl_malloc((size_t)(n * m.top_k) * sizeof *m.experts);
    assert_non_null(m.experts);
    return m;
}

static struct model model_make(const enum sl_dtype t[3], int32_t n, int64_t h, int64_t i,
                               enum limits limits)
{
    struct model m = model_of(t, 6, 3, n, h, i, limits);
    struct sl_rng rng = {(uint64_t)t[0] + 77, (uint64_t)n};
    for (int32_t r = 0; r < n; r++) /* expert 5 gets no row of the first half */
        for (int32_t s = 0; s < m.top_k; s++)
            m.experts[r * m.top_k + s] =
                (int32_t)((sl_rng_below(&rng, 2) + (uint64_t)s * 2) % (r < n / 2 ? 5 : 6));
    for (int32_t r = 0; r < n; r++) { /* different ones in a row */
        int32_t *e = m.experts + r * m.top_k;
        while (e[1] == e[0])
            e[1] = (e[1] + 1) % 5;
        while (e[2] == e[0] || e[2] == e[1])
            e[2] = (e[2] + 1) % 5;
    }
    return m;
}

static void model_free(struct model *m)
{
    for (int k = 0; k < 3; k++) {
        for (int32_t e = 0; e < m->n_experts; e++)
            matrix_free(&m->mat[k][e]);
        sl_free(m->mat[k]);
        sl_free(m->bias[k]);
    }
    sl_free(m->x);
    sl_free(m->weights);
    sl_free(m->shared);
    sl_free(m->shared_logit);
    sl_free(m->experts);
}

/* Rows [from, from + n) of the model's input; of rank `rank` of n_ranks only its experts, without
 * what the shared expert gave. */
static void run_rank(struct sl_backend *be, const struct model *m, int32_t from, int32_t n,
                     int rank, int n_ranks, float *out)
{
    const int32_t first = m->n_experts * rank / n_ranks;
    const int32_t end = m->n_experts * (rank + 1) / n_ranks;
    struct sl_weight *w[3], *here[3];
    struct sl_stack s[3];
    struct sl_error err;
    for (int k = 0; k < 3; k++) {
        w[k] = sl_malloc((size_t)m->n_experts * sizeof *w[k]);
        assert_non_null(w[k]);
        for (int32_t e = 0; e < m->n_experts; e++)
            w[k][e] = weight_of(be, &m->mat[k][e]);
        struct sl_weight *seen = sl_malloc((size_t)m->n_experts * sizeof *seen);
        assert_non_null(seen);
        for (int32_t e = 0; e < m->n_experts; e++) {
            seen[e] = w[k][e];
            if (e < first || e >= end)
                seen[e].data = NULL;
        }
        here[k] = seen;
        assert_int_equal(be->vt->stack_create(be, seen, m->n_experts, &s[k], &err), 0);
    }
    void *scratch =
        sl_aligned_alloc(be->vt->experts_bytes(be, n, m->n_experts, m->top_k, m->h, m->i));
    assert_non_null(scratch);
    const float *shared = n_ranks == 1 ? m->shared : NULL;
    const float *logit = n_ranks == 1 ? m->shared_logit : NULL;
    be->vt->experts(be, &(struct sl_op_experts){.x = m->x + from * m->h,
                                                .n = n,
                                                .top_k = m->top_k,
                                                .experts = m->experts + from * m->top_k,
                                                .weights = m->weights + from * m->top_k,
                                                .weigh_input = m->weigh_input,
                                                .gate = &s[0],
                                                .up = &s[1],
                                                .down = &s[2],
                                                .from = n_ranks > 1 ? first : 0,
                                                .until = n_ranks > 1 ? end : 0,
                                                .gate_bias = m->bias[0],
                                                .up_bias = m->bias[1],
                                                .down_bias = m->bias[2],
                                                .act = SL_ACT_SILU,
                                                .swiglu = m->swiglu,
                                                .shared = shared ? shared + from * m->h : NULL,
                                                .shared_logit = logit ? logit + from : NULL,
                                                .scratch = scratch,
                                                .out = out});
    sl_aligned_free(scratch, be->vt->experts_bytes(be, n, m->n_experts, m->top_k, m->h, m->i));
    for (int k = 0; k < 3; k++) {
        be->vt->stack_destroy(be, &s[k]);
        for (int32_t e = 0; e < m->n_experts; e++)
            be->vt->weight_destroy(be, &w[k][e]);
        sl_free(w[k]);
        sl_free(here[k]);
    }
}

static void run_rows(struct sl_backend *be, const struct model *m, int32_t from, int32_t n,
                     float *out)
{
    run_rank(be, m, from, n, 0, 1, out);
}

/* All rows, of ranks one after another, whose parts are then added. */
static void check_ranks(struct sl_backend *be, const struct model *m, int n_ranks,
                        const float *want, const char *what)
{
    const size_t h = (size_t)m->h, n = (size_t)m->n, ranks = (size_t)n_ranks;
    float *part = sl_malloc(n * h * sizeof *part), *sum = sl_malloc(n * h * sizeof *sum);
    float *parts = sl_malloc(ranks * n * h * sizeof *parts);
    assert_true(part != NULL && sum != NULL && parts != NULL);
    for (size_t i = 0; i < ranks; i++) {
        run_rank(be, m, 0, m->n, (int)i, n_ranks, part);
        for (size_t t = 0; t < n; t++)
            memcpy(parts + (t * ranks + i) * h, part + t * h, h * sizeof *part);
    }
    be->vt->sum_parts(be, &(struct sl_op_sum_parts){.parts = parts,
                                                    .n = m->n,
                                                    .n_parts = n_ranks,
                                                    .h = (int32_t)m->h,
                                                    .shared = m->shared,
                                                    .shared_logit = m->shared_logit,
                                                    .out = sum});
    same_bits(sum, want, n * h, what);
    sl_free(parts);
    sl_free(sum);
    sl_free(part);
}

static double dot(const struct matrix *m, int64_t row, const double *x)
{
    double sum = 0;
    for (int64_t k = 0; k < m->n_cols; k++)
        sum += (double)m->f32[row * m->n_cols + k] * x[k];
    return sum;
}

static double bias_of(const struct model *m, int k, int64_t e, int64_t i)
{
    return m->bias[k] != NULL ? (double)m->bias[k][e * m->mat[k][0].n_rows + i] : 0;
}

static double gated(const struct sl_swiglu *s, double gate, double up)
{
    const double limit = (double)s->limit;
    if (limit <= 0)
        return gate / (1 + exp(-gate)) * up;
    up = fmin(fmax(up, -limit), limit);
    if (s->late)
        return fmin(gate / (1 + exp(-gate)), limit) * up;
    gate = fmin(gate, limit);
    return gate / (1 + exp(-(double)s->alpha * gate)) * (up + (double)s->up_plus);
}

static void oracle_row(const struct model *m, int32_t r, double *out)
{
    double *x = sl_malloc((size_t)(m->h + m->i) * sizeof *x), *mid = x + m->h;
    assert_non_null(x);
    for (int64_t k = 0; k < m->h; k++) {
        x[k] = (double)m->x[r * m->h + k];
        out[k] = m->shared != NULL ? (double)m->shared[r * m->h + k] : 0;
        if (m->shared_logit != NULL)
            out[k] /= 1 + exp(-(double)m->shared_logit[r]);
    }
    for (int32_t s = 0; s < m->top_k; s++) {
        const int32_t e = m->experts[r * m->top_k + s];
        const double w = (double)m->weights[r * m->top_k + s], in = m->weigh_input ? w : 1;
        for (int64_t i = 0; i < m->i; i++) {
            const double gate = in * dot(&m->mat[0][e], i, x) + bias_of(m, 0, e, i);
            mid[i] = gated(&m->swiglu, gate, in * dot(&m->mat[1][e], i, x) + bias_of(m, 1, e, i));
        }
        for (int64_t k = 0; k < m->h; k++)
            out[k] += (m->weigh_input ? 1 : w) * (dot(&m->mat[2][e], k, mid) + bias_of(m, 2, e, k));
    }
    sl_free(x);
}

static void check_model(const struct model *m, const char *what, double max_nmse)
{
    const size_t n_out = (size_t)(m->n * m->h);
    double *want = sl_malloc(n_out * sizeof *want);
    float *alone = sl_malloc((size_t)m->h * sizeof *alone);
    assert_true(want != NULL && alone != NULL);
    for (int32_t r = 0; r < m->n; r++)
        oracle_row(m, r, want + r * m->h);
    for (int isa = 0; isa < N_ISAS; isa++) {
        for (int n_threads = 1; isa_available(isa) && n_threads <= 3; n_threads += 2) {
            struct red_buf out = red_alloc(n_out);
            struct sl_backend *be = backend(isa, n_threads);
            run_rows(be, m, 0, m->n, out.p);
            red_check(&out, true, what);
            near_oracle(out.p, want, n_out, max_nmse, what);
            for (int32_t r = 0; r < m->n; r += SL_MAX(m->n / 5, 1)) {
                run_rows(be, m, r, 1, alone);
                same_bits(alone, out.p + r * m->h, (size_t)m->h, what);
            }
            for (int n_ranks = 2; n_ranks <= m->n_experts && n_ranks <= 8; n_ranks *= 2)
                check_ranks(be, m, n_ranks, out.p, what);
            red_free(&out);
        }
    }
    sl_free(alone);
    sl_free(want);
}

static void test_experts(void **state)
{
    static const struct {
        enum sl_dtype dtype;
        double max_nmse, with_limits; /* which bend the error of a code that is near one */
    } formats[] = {{SL_DTYPE_F32, 1e-11, 1e-11}, {SL_DTYPE_BF16, 1e-4, 1e-4},
                   {SL_DTYPE_Q8_0, 2e-3, 3e-3},  {SL_DTYPE_Q4_K, 2e-3, 4e-3},
                   {SL_DTYPE_MXFP4, 2e-3, 3e-3}, {SL_DTYPE_FP8_E4M3, 1e-3, 1e-3}};
    (void)state;
    for (size_t f = 0; f < SL_COUNT(formats); f++)
        for (int32_t i = 0; i < 8; i++) {
            static const char *const names[] = {"", ", with limits", ", with late limits"};
            const enum limits limits = i % 2 == 0 ? NO_LIMITS : i % 4 == 1 ? LIMITS : LATE_LIMITS;
            const int32_t n = 1 + i / 2 * 13;
            const enum sl_dtype t = formats[f].dtype, all[3] = {t, t, t};
            struct model m = model_make(all, n, 256, 256, limits);
            char what[64];
            snprintf(what, sizeof what, "%s, %d rows%s", sl_dtype_info(formats[f].dtype)->name, n,
                     names[limits]);
            check_model(&m, what,
                        limits != NO_LIMITS ? formats[f].with_limits : formats[f].max_nmse);
            model_free(&m);
        }
}

/* Weights of what goes in are not weights of what comes out: the activation is in between
 * (Llama 4). */
static void test_weigh_input(void **state)
{
    static const enum sl_dtype formats[] = {SL_DTYPE_F32, SL_DTYPE_BF16, SL_DTYPE_Q8_0};
    (void)state;
    for (size_t f = 0; f < SL_COUNT(formats); f++) {
        const enum sl_dtype t = formats[f], all[3] = {t, t, t};
        struct model m = model_make(all, 27, 256, 256, NO_LIMITS);
        m.weigh_input = true;
        check_model(&m, "weighed before", f == 0 ? 1e-11 : f == 1 ? 1e-4 : 2e-3);
        model_free(&m);
    }
}

/* Matrices that want the rows in different forms; several groups of columns, the last not whole;
 * more panels than an item has, the last not whole. */
static void test_mixed(void **state)
{
    static const enum sl_dtype formats[][3] = {
        {SL_DTYPE_Q4_K, SL_DTYPE_Q8_0, SL_DTYPE_Q5_0},
        {SL_DTYPE_F32, SL_DTYPE_Q4_K, SL_DTYPE_BF16},
        {SL_DTYPE_BF16, SL_DTYPE_F16, SL_DTYPE_MXFP4},
    };
    (void)state;
    for (size_t f = 0; f < SL_COUNT(formats); f++)
        for (int32_t n = 1; n <= 76; n += 75) {
            char what[64];
            snprintf(what, sizeof what, "mixed formats %zu, %d rows", f, n);
            struct model m = model_make(formats[f], n, 768, 352, n > 1 ? LIMITS : NO_LIMITS);
            check_model(&m, what, 3e-3);
            model_free(&m);
        }
}

/* Experts of all leaves in a row, or of a few, in any order; leaves of two experts and of three. */
static void test_leaves(void **state)
{
    static const enum sl_dtype formats[] = {SL_DTYPE_F32, SL_DTYPE_BF16, SL_DTYPE_Q4_K,
                                            SL_DTYPE_MXFP4};
    (void)state;
    for (size_t f = 0; f < SL_COUNT(formats); f++)
        for (int32_t n = 1; n <= 41; n += 20) {
            const enum sl_dtype t = formats[f], all[3] = {t, t, t};
            struct model m = model_of(all, 19, 1 + 11 * n / 41, n, 256, 256, NO_LIMITS);
            struct sl_rng rng = {7, (uint64_t)n};
            for (int32_t r = 0; r < n; r++) {
                const int32_t first = (int32_t)sl_rng_below(&rng, 19);
                const int32_t step = 1 + (int32_t)sl_rng_below(&rng, 18);
                for (int32_t s = 0; s < m.top_k; s++)
                    m.experts[r * m.top_k + s] = (first + s * step) % 19;
            }
            check_model(&m, "leaves", f == 0 ? 1e-11 : 2e-3);
            model_free(&m);
        }
}

/* More rows of an expert, and more pairs, than it takes at a time. */
static void test_many_rows(void **state)
{
    static const enum sl_dtype f32[3] = {SL_DTYPE_F32, SL_DTYPE_F32, SL_DTYPE_F32};
    (void)state;
    struct model m = model_make(f32, 1100, 16, 32, LIMITS);
    check_model(&m, "1,100 rows", 1e-11);
    model_free(&m);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_experts),   cmocka_unit_test(test_weigh_input),
        cmocka_unit_test(test_mixed),     cmocka_unit_test(test_leaves),
        cmocka_unit_test(test_many_rows),
    };
    say_what_is_skipped();
    return cmocka_run_group_tests(tests, NULL, destroy_backends);
}
