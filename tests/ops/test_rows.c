/* SPDX-License-Identifier: MIT
 * Hyper-connections, and attention to a window and to rows made of several tokens each: against
 * their formulas in double, in steps of several lengths, whose bits must be those of one step, as
 * must those of every instruction set that computes in float32.
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

enum { N = 150, BLOCK = 48, PAGES = 4, DIM = 40, TURNED = 12, HEADS = 5, WINDOW = 21, TOP = 7 };
enum { PAGE = 64 << 10, MANY = 333 }; /* rows, more than a split of the index' scores */

static const char *const isas[] = {"c", "avx2", "avx512"};
static const int steps[] = {N, 1, 7, 64};

static struct sl_backend *open_isa(const char *name, int n_threads)
{
    struct sl_cpu_config cfg = {.n_threads = n_threads};
    struct sl_error err = {0};
    struct sl_backend *be;
    if (sl_cpu_isa_parse(name, &cfg.isa, &err) != 0 || sl_cpu_create(&cfg, &be, &err) != 0)
        return NULL; /* not on this processor */
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

static void near_enough(double have, double want, const char *what, int64_t i)
{
    if (!(fabs(have - want) <= 2e-5 * (1 + fabs(want))))
        fail_msg("%s: value %lld is %.9g, want %.9g", what, (long long)i, have, want);
}

/* ---------------------------------------------------------------- hyper-connections */

enum { S = 4, H = 52, ROWS = 6, ITERS = 9, W = (2 + S) * S };
enum form { MIXED, AT_LAST, APART, N_FORMS }; /* APART: streams are not mixed */
#define EPS  1e-4
#define POST 1.5

/* out [H] and w [W], or [S] if it is the last, of a row. */
static void hyper_formula(const float *x, const float *m, const float *base, const float *scale,
                          enum form form, double *w, double *out)
{
    double sum = 0;
    for (int i = 0; i < S * H; i++)
        sum += (double)x[i] * (double)x[i];
    const double rms = sqrt(sum / (S * H) + 1e-5);
    for (int i = 0; i < (form == AT_LAST ? S : W); i++) {
        const int kind = i < S ? 0 : i < 2 * S ? 1 : 2;
        w[i] = (double)m[i] / rms * (double)scale[kind] + (double)base[i];
        if (kind < 2)
            w[i] = (kind == 0       ? 1
                    : form == APART ? POST
                                    : 2) /
                       (1 + exp(-w[i])) +
                   (kind == 0 || form == APART ? EPS : 0);
    }
    for (int i = 0; i < S * S && form == APART; i++)
        w[2 * S + i] = i / S == i % S;
    for (int i = 0; i < S && form == MIXED; i++) {
        double *row = w + 2 * S + i * S, all = 0;
        for (int j = 0; j < S; j++)
            all += exp(row[j]);
        for (int j = 0; j < S; j++)
            row[j] = exp(row[j]) / all + EPS;
    }
    for (int k = 1; k < 2 * ITERS && form == MIXED; k++) /* columns, rows, columns, .. */
        for (int i = 0; i < S; i++) {
            double *mix = w + 2 * S, all = EPS;
            for (int j = 0; j < S; j++)
                all += k % 2 == 1 ? mix[j * S + i] : mix[i * S + j];
            for (int j = 0; j < S; j++)
                mix[k % 2 == 1 ? j * S + i : i * S + j] /= all;
        }
    for (int d = 0; d < H; d++) {
        out[d] = 0;
        for (int j = 0; j < S; j++)
            out[d] += w[j] * (double)x[j * H + d];
    }
}

static void check_hyper(struct sl_backend *be, enum form form, float *want)
{
    const int n_w = form == AT_LAST ? S : W;
    float *x = numbers(1, ROWS * S * H), *m = numbers(2, ROWS * W), *base = numbers(3, W),
          *y = numbers(4, ROWS * H), out[ROWS * H], w[ROWS * W];
    const float scale[] = {0.7f, 1.2f, 0.9f};
    memcpy(w, m, sizeof w);
    be->vt->hyper_read(be, &(struct sl_op_hyper_read){.x = x,
                                                      .w = w,
                                                      .base = base,
                                                      .scale = scale,
                                                      .last = form == AT_LAST,
                                                      .norm_eps = 1e-5f,
                                                      .eps = (float)EPS,
                                                      .n_iters = form == APART ? 0 : ITERS,
                                                      .post_scale = (float)POST,
                                                      .n = ROWS,
                                                      .n_streams = S,
                                                      .h = H,
                                                      .out = out});
    for (int t = 0; t < ROWS; t++) {
        double of[W], sum[H];
        hyper_formula(x + t * S * H, m + t * n_w, base, scale, form, of, sum);
        for (int i = 0; i < n_w; i++)
            near_enough((double)w[t * n_w + i], of[i], "weights", i);
        for (int d = 0; d < H; d++)
            near_enough((double)out[t * H + d], sum[d], "what is read", d);
    }
    if (form != AT_LAST) {
        float *before = sl_malloc(ROWS * S * H * sizeof *before);
        memcpy(before, x, ROWS * S * H * sizeof *before);
        be->vt->hyper_write(be, &(struct sl_op_hyper_write){
                                    .x = x, .y = y, .w = w, .n = ROWS, .n_streams = S, .h = H});
        for (int64_t i = 0; i < ROWS * S * H; i++) {
            const int64_t t = i / (S * H), to = i / H % S, d = i % H;
            const float *of = w + t * W;
            double sum = (double)of[S + to] * (double)y[t * H + d];
            for (int j = 0; j < S; j++)
                sum += (double)of[2 * S + j * S + to] * (double)before[(t * S + j) * H + d];
            near_enough((double)x[i], sum, "streams", i);
        }
        sl_free(before);
    }
    memcpy(want, out, sizeof out);
    memcpy(want + ROWS * H, x, ROWS * S * H * sizeof *x);
    sl_free(x), sl_free(m), sl_free(base), sl_free(y);
}

static void test_hyper(void **state)
{
    float first[N_FORMS][ROWS * H * (1 + S)], have[ROWS * H * (1 + S)];
    (void)state;
    for (size_t i = 0; i < SL_COUNT(isas); i++) {
        struct sl_backend *be = open_isa(isas[i], 2);
        for (int form = 0; form < N_FORMS && be != NULL; form++) {
            check_hyper(be, (enum form)form, i == 0 ? first[form] : have);
            if (i > 0)
                assert_memory_equal(have, first[form], sizeof have);
        }
        if (be != NULL)
            be->vt->destroy(be);
    }
}

/* ---------------------------------------------------------------- steps of a text */

/* Rows at .. at + n - 1 of one sequence; states lie in the pages of the rows, behind them. */
struct step {
    struct sl_batch batch;
    struct sl_span span;
    int32_t table[PAGES], positions[N];
};

static void make_step(struct step *s, int at, int n)
{
    for (int i = 0; i < PAGES; i++)
        s->table[i] = (i * 3 + 1) % PAGES;
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

static struct sl_rows_view rows_of(uint8_t *pool, size_t offset)
{
    return (struct sl_rows_view){.pool = pool,
                                 .page_bytes = PAGE,
                                 .offset = offset,
                                 .dtype = SL_DTYPE_F32,
                                 .block_size = BLOCK};
}

static float inv_freq[TURNED / 2];
static const struct sl_rope rope = {
    .n_dims = TURNED, .pairing = SL_ROPE_INTERLEAVED, .inv_freq = inv_freq, .attn_factor = 1};

static void turn(double *row, int dim, double pos)
{
    for (int i = 0; i < TURNED; i += 2) {
        double *x = row + dim - TURNED + i;
        const double angle = pos * (double)inv_freq[i / 2], p = x[0], q = x[1];
        x[0] = p * cos(angle) - q * sin(angle);
        x[1] = q * cos(angle) + p * sin(angle);
    }
}

static void norm_of(const double *x, const float *w, int dim, double *out)
{
    double sum = 0;
    for (int d = 0; d < dim; d++)
        sum += x[d] * x[d];
    for (int d = 0; d < dim; d++)
        out[d] = x[d] / sqrt(sum / dim + 1e-5) * (double)w[d];
}

struct rows_case {
    int dim, ratio;
    bool overlap;
};

/* Row r of dim values, by the formula. */
static void row_formula(const struct rows_case *c, const float *kv, const float *gate,
                        const float *bias, const float *norm, int r, double *out)
{
    const int w = c->dim * (c->overlap ? 2 : 1), from = c->overlap && r > 0 ? -c->ratio : 0;
    double mean[SL_MAX_HEAD_DIM];
    for (int d = 0; d < c->dim; d++) {
        double sum = 0, all = 0;
        for (int i = from; i < c->ratio; i++) {
            const int t = r * c->ratio + i, at = (i + c->ratio) % c->ratio;
            const int col = d + (c->overlap && i >= 0 ? c->dim : 0);
            const double e = exp((double)(gate[t * w + col] + bias[at * w + col]));
            all += e;
            sum += e * (double)kv[t * w + col];
        }
        mean[d] = sum / all;
    }
    norm_of(mean, norm, c->dim, out);
    turn(out, c->dim, (double)(r * c->ratio));
}

/* All rows of N tokens, made in steps of `chunk`; pool is filled. */
static void make_rows(struct sl_backend *be, const struct rows_case *c, const float *kv,
                      const float *gate, const float *bias, const float *norm, int chunk,
                      uint8_t *pool)
{
    const size_t w = (size_t)c->dim * (c->overlap ? 2 : 1);
    float *own = sl_malloc(N * w * sizeof *own);
    for (int at = 0, n; at < N; at += n) {
        struct step s;
        n = SL_MIN(chunk, N - at);
        make_step(&s, at, n);
        memcpy(own, kv + (size_t)at * w, (size_t)n * w * sizeof *own);
        be->vt->compress(
            be, &(struct sl_op_compress){
                    .batch = &s.batch,
                    .kv = own,
                    .gate = gate + (size_t)at * w,
                    .bias = bias,
                    .norm = norm,
                    .eps = 1e-5f,
                    .dim = c->dim,
                    .ratio = c->ratio,
                    .overlap = c->overlap,
                    .rope = &rope,
                    .state = {.pool = pool, .page_bytes = PAGE, .offset = 0, .block_size = BLOCK},
                    .rows = rows_of(pool, sl_compress_state(c->dim, c->overlap)),
                });
    }
    sl_free(own);
}

static const float *row_in(const uint8_t *pool, size_t offset, int dim, int ratio, int r)
{
    const int last = (r + 1) * ratio - 1, page = (last / BLOCK * 3 + 1) % PAGES;
    return (const float *)(const void *)(pool + (size_t)page * PAGE + offset +
                                         (size_t)(last % BLOCK / ratio) *
                                             sl_row_bytes(SL_DTYPE_F32, dim));
}

static void check_rows(struct sl_backend *be, const struct rows_case *c, int chunk, float *all)
{
    const size_t w = (size_t)c->dim * (c->overlap ? 2 : 1);
    float *kv = numbers(11, N * w), *gate = numbers(12, N * w),
          *bias = numbers(13, (size_t)c->ratio * w), *norm = numbers(14, (size_t)c->dim);
    uint8_t *pool = sl_aligned_alloc((size_t)PAGES * PAGE);
    memset(pool, 0xFF, (size_t)PAGES * PAGE); /* NaN, where nothing may be read */
    make_rows(be, c, kv, gate, bias, norm, chunk, pool);
    for (int r = 0; r < N / c->ratio; r++) {
        double want[SL_MAX_HEAD_DIM];
        const float *have =
            row_in(pool, sl_compress_state(c->dim, c->overlap), c->dim, c->ratio, r);
        row_formula(c, kv, gate, bias, norm, r, want);
        for (int d = 0; d < c->dim; d++)
            near_enough((double)have[d], want[d], "rows", r * c->dim + d);
        memcpy(all + r * c->dim, have, (size_t)c->dim * sizeof *all);
    }
    sl_aligned_free(pool, (size_t)PAGES * PAGE);
    sl_free(kv), sl_free(gate), sl_free(bias), sl_free(norm);
}

static void test_compress(void **state)
{
    static const struct rows_case cases[] = {
        {DIM, 4, true}, {DIM, 20, false}, {12, 4, true}, {128, 64, false}, {33 + 3, 5, true}};
    (void)state;
    for (size_t c = 0; c < SL_COUNT(cases); c++) {
        const size_t n = (size_t)(N / cases[c].ratio * cases[c].dim) * sizeof(float);
        float *first = sl_malloc(n), *have = sl_malloc(n);
        bool any = false;
        for (size_t i = 0; i < SL_COUNT(isas); i++) {
            struct sl_backend *be = open_isa(isas[i], 1 + (int)(i % 2));
            for (size_t k = 0; k < SL_COUNT(steps) && be != NULL; k++, any = true) {
                check_rows(be, &cases[c], steps[k], any ? have : first);
                if (any)
                    assert_memory_equal(have, first, n);
            }
            if (be != NULL)
                be->vt->destroy(be);
        }
        sl_free(first), sl_free(have);
    }
}

/* ---------------------------------------------------------------- the index, and attention */

/* A text's rows: near ones at offset 0 of a page, far ones of `ratio` tokens behind them. */
#define FAR (BLOCK * DIM * 2 * sizeof(float))

static void put_rows(uint8_t *pool, const float *near, const float *far, int ratio)
{
    const size_t n = DIM * sizeof(float), pad = sl_row_bytes(SL_DTYPE_F32, DIM) - n;
    for (int t = 0; t < N; t++) {
        uint8_t *row = (uint8_t *)(uintptr_t)row_in(pool, 0, DIM, 1, t);
        memcpy(row, near + t * DIM, n);
        memset(row + n, 0, pad);
    }
    for (int r = 0; r < N / ratio; r++) {
        uint8_t *row = (uint8_t *)(uintptr_t)row_in(pool, FAR, DIM, ratio, r);
        memcpy(row, far + r * DIM, n);
        memset(row + n, 0, pad);
    }
}

static void attend_formula(const float *q, const float *const *rows, int n, float sink, double *out)
{
    double all = exp((double)sink);
    memset(out, 0, DIM * sizeof *out);
    for (int i = 0; i < n; i++) {
        double dot = 0;
        for (int d = 0; d < DIM; d++)
            dot += (double)q[d] * (double)rows[i][d];
        const double e = exp(0.2 * dot);
        all += e;
        for (int d = 0; d < DIM; d++)
            out[d] += e * (double)rows[i][d];
    }
    for (int d = 0; d < DIM; d++)
        out[d] /= all;
}

static double index_score(const float *q, const float *w, const float *row)
{
    double score = 0;
    for (int h = 0; h < HEADS; h++) {
        double dot = 0;
        for (int d = 0; d < DIM; d++)
            dot += (double)q[h * DIM + d] * (double)row[d];
        score += (double)w[h] * fmax(dot, 0);
    }
    return score;
}

/* The rows a position has chosen must be the best ones, equal ones from the lowest on. */
static void check_choice(const float *q, const float *w, const float *far, int n,
                         const int32_t *top)
{
    bool in[MANY] = {false};
    for (int k = 0; k < TOP; k++) {
        assert_true(top[k] >= 0 && top[k] < n && (k == 0 || top[k] > top[k - 1]));
        in[top[k]] = true;
    }
    for (int a = 0; a < n; a++)
        for (int b = 0; b < n; b++) {
            const double x = index_score(q, w, far + a * DIM), y = index_score(q, w, far + b * DIM);
            if (in[a] && !in[b] && !(x > y - 1e-4 && (x > y || x < y || a < b)))
                fail_msg("row %d is chosen with %.6g, row %d is not with %.6g", a, x, b, y);
        }
}

struct text {
    float *near, *far, *q, *w, *sinks;
    int ratio; /* 0: the window alone */
    bool chooses;
};

static void attend_steps(struct sl_backend *be, const struct text *x, int chunk, uint8_t *pool,
                         float *out, int32_t *top)
{
    const int n_most = WINDOW + (x->ratio == 0 ? 0 : x->chooses ? TOP : N / x->ratio);
    const size_t room_bytes = sl_compressed_room(SL_DTYPE_F32, DIM, n_most, 3);
    void *room = sl_aligned_alloc(room_bytes);
    float scores[2 * 256], angles[N * TURNED];
    memset(room, 0, room_bytes);
    for (int at = 0, n; at < N; at += n) {
        struct step s;
        n = SL_MIN(chunk, N - at);
        make_step(&s, at, n);
        be->vt->rope_angles(be,
                            &(struct sl_op_rope_angles){
                                .positions = s.positions, .n = n, .rope = &rope, .out = angles});
        if (x->chooses)
            be->vt->compressed_select(
                be, &(struct sl_op_compressed_select){.batch = &s.batch,
                                                      .q = x->q + at * HEADS * DIM,
                                                      .w = x->w + at * HEADS,
                                                      .n_heads = HEADS,
                                                      .dim = DIM,
                                                      .top_k = TOP,
                                                      .ratio = x->ratio,
                                                      .rows = rows_of(pool, FAR),
                                                      .scores = scores,
                                                      .n_scores = 2 * 256,
                                                      .top = top + at * TOP});
        be->vt->compressed_attention(
            be, &(struct sl_op_compressed_attention){.batch = &s.batch,
                                                     .q = x->q + at * HEADS * DIM,
                                                     .n_heads = HEADS,
                                                     .dim = DIM,
                                                     .window = WINDOW,
                                                     .scale = 0.2f,
                                                     .sinks = x->sinks,
                                                     .near = rows_of(pool, 0),
                                                     .ratio = x->ratio,
                                                     .far = rows_of(pool, FAR),
                                                     .top = x->chooses ? top + at * TOP : NULL,
                                                     .top_k = TOP,
                                                     .room = room,
                                                     .room_bytes = room_bytes,
                                                     .n_most = n_most,
                                                     .rope = &rope,
                                                     .angles = angles,
                                                     .out = out + at * HEADS * DIM});
    }
    sl_aligned_free(room, room_bytes);
}

static void check_attention(struct sl_backend *be, const struct text *x, int chunk, float *out)
{
    uint8_t *pool = sl_aligned_alloc((size_t)PAGES * PAGE);
    int32_t *top = sl_calloc(N * TOP, sizeof *top);
    memset(pool, 0xFF, (size_t)PAGES * PAGE);
    put_rows(pool, x->near, x->far, SL_MAX(x->ratio, 2));
    attend_steps(be, x, chunk, pool, out, top);
    for (int t = 0; t < N; t++) {
        const int seen = x->ratio > 0 ? (t + 1) / x->ratio : 0;
        const bool chosen = x->chooses && seen > TOP;
        const float *rows[2 * N];
        int n = 0;
        if (chosen)
            check_choice(x->q + t * HEADS * DIM, x->w + t * HEADS, x->far, seen, top + t * TOP);
        for (int i = 0; i < (chosen ? TOP : seen); i++)
            rows[n++] = x->far + (chosen ? top[t * TOP + i] : i) * DIM;
        for (int i = SL_MAX(t - WINDOW + 1, 0); i <= t; i++)
            rows[n++] = x->near + i * DIM;
        for (int h = 0; h < HEADS; h++) {
            double want[DIM];
            attend_formula(x->q + (t * HEADS + h) * DIM, rows, n, x->sinks[h], want);
            turn(want, DIM, -t);
            for (int d = 0; d < DIM; d++)
                near_enough((double)out[(t * HEADS + h) * DIM + d], want[d], "attention", t);
        }
    }
    sl_aligned_free(pool, (size_t)PAGES * PAGE);
    sl_free(top);
}

static void test_attention(void **state)
{
    static const struct {
        int ratio;
        bool chooses;
    } cases[] = {{0, false}, {20, false}, {4, true}, {4, false}};
    struct text x = {.near = numbers(21, N * DIM),
                     .far = numbers(22, N * DIM),
                     .q = numbers(23, N * HEADS * DIM),
                     .w = numbers(24, N * HEADS),
                     .sinks = numbers(25, HEADS)};
    const size_t n = (size_t)N * HEADS * DIM * sizeof(float);
    float *first = sl_malloc(n), *have = sl_malloc(n);
    (void)state;
    memcpy(x.far + 9 * DIM, x.far + 3 * DIM, DIM * sizeof *x.far); /* equal scores */
    for (size_t c = 0; c < SL_COUNT(cases); c++) {
        bool any = false;
        x.ratio = cases[c].ratio;
        x.chooses = cases[c].chooses;
        for (size_t i = 0; i < SL_COUNT(isas); i++) {
            struct sl_backend *be = open_isa(isas[i], 2);
            for (size_t k = 0; k < SL_COUNT(steps) && be != NULL; k++, any = true) {
                check_attention(be, &x, steps[k], any ? have : first);
                if (any)
                    assert_memory_equal(have, first, n);
            }
            if (be != NULL)
                be->vt->destroy(be);
        }
    }
    sl_free(first), sl_free(have);
    sl_free(x.near), sl_free(x.far), sl_free(x.q), sl_free(x.w), sl_free(x.sinks);
}

/* Rows of two tokens in more than one split, of which the last is not whole. */
static void test_many_rows(void **state)
{
    enum { N_PAGES = SL_CEIL_DIV(2 * MANY, BLOCK), LAST = 4 };
    float *far = numbers(41, MANY * DIM), *q = numbers(42, LAST * HEADS * DIM),
          *w = numbers(43, LAST * HEADS), scores[2 * 512];
    uint8_t *pool = sl_aligned_alloc((size_t)N_PAGES * PAGE);
    int32_t table[N_PAGES], top[2][LAST * TOP];
    (void)state;
    memset(pool, 0xFF, (size_t)N_PAGES * PAGE);
    for (int i = 0; i < N_PAGES; i++)
        table[i] = (i * 5 + 2) % N_PAGES;
    memcpy(far + 300 * DIM, far + 17 * DIM, DIM * sizeof *far); /* equal scores in two splits */
    for (int r = 0; r < MANY; r++) {
        const int last = 2 * r + 1;
        uint8_t *row = pool + (size_t)table[last / BLOCK] * PAGE +
                       (size_t)(last % BLOCK / 2) * sl_row_bytes(SL_DTYPE_F32, DIM);
        memset(row, 0, sl_row_bytes(SL_DTYPE_F32, DIM));
        memcpy(row, far + r * DIM, DIM * sizeof *far);
    }
    for (size_t i = 0; i < SL_COUNT(isas); i++) {
        struct sl_backend *be = open_isa(isas[i], 3);
        const struct sl_span span = {.n = LAST, .pos = 2 * MANY - LAST};
        const struct sl_batch batch = {
            .n_tokens = LAST, .n_spans = 1, .spans = &span, .block_tables = table, .n_tables = 1};
        if (be == NULL)
            continue;
        be->vt->compressed_select(be, &(struct sl_op_compressed_select){.batch = &batch,
                                                                        .q = q,
                                                                        .w = w,
                                                                        .n_heads = HEADS,
                                                                        .dim = DIM,
                                                                        .top_k = TOP,
                                                                        .ratio = 2,
                                                                        .rows = rows_of(pool, 0),
                                                                        .scores = scores,
                                                                        .n_scores = 2 * 512,
                                                                        .top = top[i > 0]});
        for (int t = 0; t < LAST; t++)
            check_choice(q + t * HEADS * DIM, w + t * HEADS, far, (2 * MANY - LAST + t + 1) / 2,
                         top[i > 0] + t * TOP);
        assert_memory_equal(top[i > 0], top[0], sizeof top[0]);
        be->vt->destroy(be);
    }
    sl_aligned_free(pool, (size_t)N_PAGES * PAGE);
    sl_free(far), sl_free(q), sl_free(w);
}

/* A row's own norm and rotation, and what turns a head and turns it back. */
static void test_tails(void **state)
{
    float *x = numbers(31, N * DIM), *norm = numbers(32, DIM), *angles = sl_malloc(N * TURNED * 4);
    uint8_t *pool = sl_aligned_alloc((size_t)PAGES * PAGE);
    struct sl_backend *be = open_isa("c", 1);
    struct step s;
    (void)state;
    make_step(&s, 0, N);
    be->vt->rope_angles(be, &(struct sl_op_rope_angles){
                                .positions = s.positions, .n = N, .rope = &rope, .out = angles});
    be->vt->row_store(be, &(struct sl_op_row_store){.batch = &s.batch,
                                                    .x = x,
                                                    .norm = norm,
                                                    .eps = 1e-5f,
                                                    .dim = DIM,
                                                    .rope = &rope,
                                                    .angles = angles,
                                                    .rows = rows_of(pool, 0)});
    for (int t = 0; t < N; t++) {
        double in[DIM], want[DIM];
        for (int d = 0; d < DIM; d++)
            in[d] = (double)x[t * DIM + d];
        norm_of(in, norm, DIM, want);
        turn(want, DIM, t);
        for (int d = 0; d < DIM; d++)
            near_enough((double)row_in(pool, 0, DIM, 1, t)[d], want[d], "near rows", d);
    }
    float *y = sl_malloc(N * DIM * sizeof *y);
    memcpy(y, x, N * DIM * sizeof *y);
    struct sl_op_turn_tails a = {
        .x = y, .n = N / 5, .n_heads = 5, .dim = DIM, .rope = &rope, .angles = angles};
    be->vt->turn_tails(be, &a);
    double in[DIM];
    for (int d = 0; d < DIM; d++)
        in[d] = (double)x[7 * 5 * DIM + d];
    turn(in, DIM, 7);
    for (int d = 0; d < DIM; d++)
        near_enough((double)y[7 * 5 * DIM + d], in[d], "tails", d);
    be->vt->destroy(be);
    sl_aligned_free(pool, (size_t)PAGES * PAGE);
    sl_free(x), sl_free(y), sl_free(norm), sl_free(angles);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_hyper),     cmocka_unit_test(test_compress),
        cmocka_unit_test(test_attention), cmocka_unit_test(test_many_rows),
        cmocka_unit_test(test_tails),
    };
    for (int i = 0; i < TURNED / 2; i++)
        inv_freq[i] = (float)pow(50, -2.0 * i / TURNED);
    return cmocka_run_group_tests(tests, NULL, NULL);
}
