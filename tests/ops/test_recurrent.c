/* SPDX-License-Identifier: MIT
 * Layers with a recurrent state on the CPU. A text computed whole by plain C is compared with a
 * count in double from the formulas of ops.h, then cut into steps, beside other texts, with pages
 * for few blocks or shared, by every instruction set and thread count: the bits are the same.
 */
#include "ops_util.h"
#include "recurrent_golden.h"

enum { MAX_IN = 9, MAX_TEXT = 64, N_SEQS = 4, MAX_BATCH = N_SEQS * MAX_TEXT };
enum { MAX_BLOCKS = 64, PAGE_RED = 16, PAGES = 96 };

struct rec {
    const char *name;
    int n_in[MAX_IN]; /* floats of a row of each input; 0: there is none */
    int n_out, n_state;
    double spread; /* of inputs */
    const float *w[5];
    void (*run)(const struct rec *c, struct sl_backend *be, const struct sl_batch *b,
                struct sl_state_view view, float *const *in, float *out);
    void (*count)(const struct rec *c, float *const *in, int n, double *out, double *state);
    const void *shape;
};

struct conv_shape {
    int n_channels, n_taps;
    bool bias, silu, gates, act;
};

struct delta_shape {
    int n_heads, n_k_heads, k_dim, v_dim;
    bool by_row, tiled;
    float beta_scale, bound;
};

struct ssm_shape {
    int n_heads, n_groups, head_dim, n_state;
    bool by_state, bias, d;
    float dt_min, dt_max;
};

/* ---------------------------------------------------------------- the three operations */

static void conv_run(const struct rec *c, struct sl_backend *be, const struct sl_batch *b,
                     struct sl_state_view view, float *const *in, float *out)
{
    const struct conv_shape *s = c->shape;
    be->vt->short_conv(
        be, &(struct sl_op_short_conv){.batch = b,
                                       .x = in[0],
                                       .pre = s->gates ? in[0] + s->n_channels : NULL,
                                       .post = s->gates ? in[0] + 2 * s->n_channels : NULL,
                                       .ld = c->n_in[0],
                                       .w = c->w[0],
                                       .bias = s->bias ? c->w[1] : NULL,
                                       .n_channels = s->n_channels,
                                       .n_taps = s->n_taps,
                                       .silu = s->silu,
                                       .state = view,
                                       .out = s->act ? NULL : out,
                                       .act = s->act ? out : NULL});
}

static double logistic(double x)
{
    return 1 / (1 + exp(-x));
}

static void conv_count(const struct rec *c, float *const *in, int n, double *out, double *state)
{
    const struct conv_shape *s = c->shape;
    const int C = s->n_channels;
    for (int ch = 0; ch < C; ch++) {
        double x[MAX_TEXT];
        for (int t = 0; t < n; t++) {
            const float *row = in[0] + t * c->n_in[0];
            x[t] = (double)row[ch] * (s->gates ? (double)row[C + ch] : 1);
        }
        for (int t = 0; t < n; t++) {
            double sum = s->bias ? (double)c->w[1][ch] : 0;
            for (int i = 0; i < s->n_taps && i <= t; i++)
                sum += (double)c->w[0][(s->n_taps - 1 - i) * C + ch] * x[t - i];
            if (s->silu)
                sum *= logistic(sum);
            out[t * C + ch] = sum * (s->gates ? (double)in[0][t * c->n_in[0] + 2 * C + ch] : 1);
        }
        for (int i = 0; i < s->n_taps - 1; i++) {
            const int t = n - (s->n_taps - 1) + i;
            state[i * C + ch] = t >= 0 ? x[t] : 0;
        }
    }
}

static void delta_run(const struct rec *c, struct sl_backend *be, const struct sl_batch *b,
                      struct sl_state_view view, float *const *in, float *out)
{
    const struct delta_shape *s = c->shape;
    const int keys = s->n_k_heads * s->k_dim;
    be->vt->delta_rule(be, &(struct sl_op_delta_rule){.batch = b,
                                                      .q = in[0],
                                                      .k = in[0] + keys,
                                                      .v = in[0] + 2 * keys,
                                                      .ld = c->n_in[0],
                                                      .decay_in = in[1],
                                                      .beta_in = in[2],
                                                      .a = c->w[0],
                                                      .dt_bias = c->w[1],
                                                      .by_row = s->by_row,
                                                      .bound = s->bound,
                                                      .tiled = s->tiled,
                                                      .l2_eps = 1e-6f,
                                                      .scale = 1 / sqrtf((float)s->k_dim),
                                                      .beta_scale = s->beta_scale,
                                                      .n_heads = s->n_heads,
                                                      .n_k_heads = s->n_k_heads,
                                                      .k_dim = s->k_dim,
                                                      .v_dim = s->v_dim,
                                                      .state = view,
                                                      .out = out});
}

static double soft(double x)
{
    return x > 30 ? x : log1p(exp(x));
}

static double inverse_length(const float *x, int n)
{
    double sum = 1e-6f;
    for (int i = 0; i < n; i++)
        sum += (double)x[i] * (double)x[i];
    return 1 / sqrt(sum);
}

/* One token of a head, from the matrix form: S = (I - beta k k') diag(decay) S + beta k v'. */
static void delta_token(const struct rec *c, const float *q, const float *k, const float *v,
                        const float *gate, double beta, int h, double *S, double *out)
{
    const struct delta_shape *s = c->shape;
    const int kd = s->k_dim, vd = s->v_dim;
    const double by_k = inverse_length(k, kd), by_q = inverse_length(q, kd) / sqrt(kd);
    const double rate = (double)c->w[0][h], bound = (double)s->bound;
    for (int d = 0; d < vd; d++) {
        double seen = 0, sum = 0;
        for (int i = 0; i < kd; i++) {
            const int g = s->by_row ? i : 0;
            const double x = (double)gate[g] + (double)c->w[1][s->by_row ? h * kd + i : h];
            S[i * vd + d] *= exp(bound != 0 ? bound * logistic(-rate * x) : rate * soft(x));
            seen += (double)k[i] * by_k * S[i * vd + d];
        }
        for (int i = 0; i < kd; i++) {
            S[i * vd + d] += beta * (double)k[i] * by_k * ((double)v[d] - seen);
            sum += (double)q[i] * by_q * S[i * vd + d];
        }
        out[d] = sum;
    }
}

static void delta_count(const struct rec *c, float *const *in, int n, double *out, double *state)
{
    const struct delta_shape *s = c->shape;
    const int kd = s->k_dim, vd = s->v_dim, keys = s->n_k_heads * kd, n_gate = s->by_row ? kd : 1;
    memset(state, 0, (size_t)c->n_state * sizeof *state);
    for (int t = 0; t < n; t++)
        for (int h = 0; h < s->n_heads; h++) {
            const float *row = in[0] + t * c->n_in[0];
            const int kh = s->tiled ? h % s->n_k_heads : h * s->n_k_heads / s->n_heads;
            const double beta = (double)s->beta_scale * logistic((double)in[2][t * s->n_heads + h]);
            delta_token(c, row + kh * kd, row + keys + kh * kd, row + 2 * keys + h * vd,
                        in[1] + (t * s->n_heads + h) * n_gate, beta, h, state + h * kd * vd,
                        out + (t * s->n_heads + h) * vd);
        }
}

static void ssm_run(const struct rec *c, struct sl_backend *be, const struct sl_batch *b,
                    struct sl_state_view view, float *const *in, float *out)
{
    const struct ssm_shape *s = c->shape;
    const int rows = s->n_heads * s->head_dim, keys = s->n_groups * s->n_state;
    be->vt->ssm(be, &(struct sl_op_ssm){.batch = b,
                                        .x = in[0],
                                        .ld_x = c->n_in[0],
                                        .b = in[0] + rows,
                                        .c = in[0] + rows + keys,
                                        .ld_bc = c->n_in[0],
                                        .dt_in = in[1],
                                        .ld_dt = c->n_in[1],
                                        .a = c->w[0],
                                        .dt_bias = s->bias ? c->w[1] : NULL,
                                        .d = s->d ? c->w[2] : NULL,
                                        .dt_min = s->dt_min,
                                        .dt_max = s->dt_max,
                                        .n_heads = s->n_heads,
                                        .n_groups = s->n_groups,
                                        .head_dim = s->head_dim,
                                        .n_state = s->n_state,
                                        .by_state = s->by_state,
                                        .state = view,
                                        .out = out});
}

static void ssm_count(const struct rec *c, float *const *in, int n, double *out, double *state)
{
    const struct ssm_shape *s = c->shape;
    const int dim = s->head_dim, rows = s->n_heads * dim, ns = s->n_state;
    for (int ch = 0; ch < rows; ch++) {
        const int h = ch / dim, g = h * s->n_groups / s->n_heads;
        double hs[256] = {0};
        for (int t = 0; t < n; t++) {
            const float *row = in[0] + t * c->n_in[0], *b = row + rows + g * ns;
            const float *cs = b + s->n_groups * ns;
            double dt =
                soft((double)in[1][t * c->n_in[1] + h] + (s->bias ? (double)c->w[1][h] : 0));
            dt = fmin(fmax(dt, (double)s->dt_min), (double)s->dt_max);
            double sum = s->d ? (double)c->w[2][h] * (double)row[ch] : 0;
            for (int i = 0; i < ns; i++) {
                const double a = (double)c->w[0][s->by_state ? i * s->n_heads + h : h];
                hs[i] = exp(dt * a) * hs[i] + dt * (double)b[i] * (double)row[ch];
                sum += hs[i] * (double)cs[i];
            }
            out[t * rows + ch] = sum;
        }
        for (int i = 0; i < ns; i++)
            state[i * rows + ch] = hs[i];
    }
}

struct lru_shape {
    int n_channels;
};

static void lru_run(const struct rec *c, struct sl_backend *be, const struct sl_batch *b,
                    struct sl_state_view view, float *const *in, float *out)
{
    const struct lru_shape *s = c->shape;
    be->vt->rglru(be, &(struct sl_op_rglru){.batch = b,
                                            .x = in[0],
                                            .in_gate = in[1],
                                            .decay_gate = in[2],
                                            .a = c->w[0],
                                            .n_channels = s->n_channels,
                                            .state = view,
                                            .out = out});
}

static void lru_count(const struct rec *c, float *const *in, int n, double *out, double *state)
{
    const int C = c->n_out;
    for (int ch = 0; ch < C; ch++) {
        double h = 0;
        for (int t = 0; t < n; t++) {
            const int at = t * C + ch;
            const double decay = (double)c->w[0][ch] * logistic((double)in[2][at]);
            const double x = (double)in[0][at] * logistic((double)in[1][at]);
            h = exp(decay) * h + (t > 0 ? sqrt(-expm1(2 * decay)) : 1) * x;
            out[at] = h;
        }
        state[ch] = h;
    }
}

/* ---------------------------------------------------------------- RWKV-7 */

struct shift_shape {
    int n_channels, n_outs;
};

static void shift_run(const struct rec *c, struct sl_backend *be, const struct sl_batch *b,
                      struct sl_state_view view, float *const *in, float *out)
{
    const struct shift_shape *s = c->shape;
    const int64_t block = (int64_t)b->n_tokens * s->n_channels;
    float *outs = sl_malloc((size_t)(block * s->n_outs) * sizeof *outs);
    assert_non_null(outs);
    be->vt->token_shift(be, &(struct sl_op_token_shift){.batch = b,
                                                        .x = in[0],
                                                        .w = c->w[0],
                                                        .n_channels = s->n_channels,
                                                        .n_outs = s->n_outs,
                                                        .state = view,
                                                        .out = outs,
                                                        .ld_out = block});
    for (int t = 0; t < b->n_tokens; t++) /* a token's outputs side by side */
        for (int i = 0; i < s->n_outs; i++)
            memcpy(out + t * c->n_out + i * s->n_channels, outs + i * block + t * s->n_channels,
                   (size_t)s->n_channels * sizeof *out);
    sl_free(outs);
}

static void shift_count(const struct rec *c, float *const *in, int n, double *out, double *state)
{
    const struct shift_shape *s = c->shape;
    const int C = s->n_channels;
    for (int t = 0; t < n; t++)
        for (int k = 0; k < c->n_out; k++) {
            const double now = (double)in[0][t * C + k % C];
            const double before = t > 0 ? (double)in[0][(t - 1) * C + k % C] : 0;
            const double w = (double)c->w[0][k];
            out[t * c->n_out + k] = (1 - w) * now + w * before;
        }
    for (int ch = 0; ch < C; ch++)
        state[ch] = (double)in[0][(n - 1) * C + ch];
}

struct wkv_shape {
    int n_heads, dim;
    bool mixes;
};
enum { WKV_R, WKV_W, WKV_K, WKV_V, WKV_A, WKV_KK, WKV_FIRST, WKV_MIX, WKV_G };

/* Both operations: the recurrence, and what comes out. */
static void wkv_run(const struct rec *c, struct sl_backend *be, const struct sl_batch *b,
                    struct sl_state_view view, float *const *in, float *out)
{
    const struct wkv_shape *s = c->shape;
    float *x = sl_malloc((size_t)(b->n_tokens * c->n_out) * sizeof *x);
    assert_non_null(x);
    be->vt->wkv7(be, &(struct sl_op_wkv7){.batch = b,
                                          .r = in[WKV_R],
                                          .w = in[WKV_W],
                                          .k = in[WKV_K],
                                          .v = in[WKV_V],
                                          .a = in[WKV_A],
                                          .kk = in[WKV_KK],
                                          .v_first = in[WKV_FIRST],
                                          .v_mix = s->mixes ? in[WKV_MIX] : NULL,
                                          .k_k = c->w[0],
                                          .k_a = c->w[1],
                                          .n_heads = s->n_heads,
                                          .head_dim = s->dim,
                                          .state = view,
                                          .out = x});
    be->vt->wkv7_out(be, &(struct sl_op_wkv7_out){.x = x,
                                                  .r = in[WKV_R],
                                                  .k = in[WKV_K],
                                                  .v = in[WKV_V],
                                                  .g = in[WKV_G],
                                                  .r_k = c->w[2],
                                                  .w = c->w[3],
                                                  .b = c->w[4],
                                                  .eps = 1e-3f,
                                                  .n = b->n_tokens,
                                                  .n_heads = s->n_heads,
                                                  .head_dim = s->dim,
                                                  .out = out});
    sl_free(x);
}

/* One token of a head, from the matrix form: S = diag(w) S - kk' (a kk)' S + k v'. at: of its
 * values in a row, by: of its factors. */
static void wkv_count_token(const struct rec *c, float *const *in, int at, int by, double *S,
                            double *out)
{
    const struct wkv_shape *s = c->shape;
    const int D = s->dim;
    double kk[SL_MAX_STATE_DIM], k[SL_MAX_STATE_DIM], v[SL_MAX_STATE_DIM], x[SL_MAX_STATE_DIM];
    double length = 0, mean = 0, variance = 0, bonus = 0;
    for (int i = 0; i < D; i++) {
        const double rate = logistic((double)in[WKV_A][at + i]);
        kk[i] = (double)in[WKV_K][at + i] * (double)c->w[0][by + i];
        length += kk[i] * kk[i];
        k[i] = (double)in[WKV_K][at + i] * (1 + (rate - 1) * (double)c->w[1][by + i]);
        v[i] = (double)in[WKV_V][at + i];
        if (s->mixes)
            v[i] += ((double)in[WKV_FIRST][at + i] - v[i]) * logistic((double)in[WKV_MIX][at + i]);
        bonus += (double)in[WKV_R][at + i] * k[i] * (double)c->w[2][by + i];
    }
    for (int d = 0; d < D; d++) {
        double seen = 0;
        x[d] = 0;
        for (int i = 0; i < D; i++)
            seen += kk[i] / sqrt(length) * S[i * D + d];
        for (int i = 0; i < D; i++) {
            const double rate = logistic((double)in[WKV_A][at + i]);
            S[i * D + d] *= exp(-exp(-0.5) * logistic((double)in[WKV_W][at + i]));
            S[i * D + d] += k[i] * v[d] - kk[i] / sqrt(length) * rate * seen;
            x[d] += (double)in[WKV_R][at + i] * S[i * D + d];
        }
        mean += x[d] / D;
    }
    for (int d = 0; d < D; d++)
        variance += (x[d] - mean) * (x[d] - mean) / D;
    for (int d = 0; d < D; d++) {
        const double normed = (x[d] - mean) / sqrt(variance + (double)1e-3f);
        out[d] = normed * (double)c->w[3][by + d] + (double)c->w[4][by + d] + bonus * v[d];
        out[d] *= (double)in[WKV_G][at + d];
    }
}

static void wkv_count(const struct rec *c, float *const *in, int n, double *out, double *state)
{
    const struct wkv_shape *s = c->shape;
    const int D = s->dim;
    memset(state, 0, (size_t)c->n_state * sizeof *state);
    for (int t = 0; t < n; t++)
        for (int h = 0; h < s->n_heads; h++)
            wkv_count_token(c, in, (t * s->n_heads + h) * D, h * D, state + h * D * D,
                            out + (t * s->n_heads + h) * D);
}

/* ---------------------------------------------------------------- texts, pages, steps */

struct text {
    int n;
    float *in[MAX_IN];
    float *out;                 /* [n, n_out] */
    float *pages[MAX_TEXT + 1]; /* the state behind each token, by the reference */
};

struct seq {
    const struct text *text;
    int pos;
    int32_t table[MAX_BLOCKS];
    float *out;
};

struct world {
    const struct rec *c;
    struct sl_backend *be;
    struct sl_state_view view;
    struct red_buf pool;
    bool used[PAGES];
    int keep_every; /* blocks whose page stays: multiples of this; 1: every block has one */
    char what[160];
};

static size_t page_floats(const struct rec *c)
{
    return SL_ROUND_UP((size_t)c->n_state + 2 * PAGE_RED, 16);
}

static float *page_at(struct world *w, int32_t page)
{
    return w->pool.p + (size_t)page * page_floats(w->c);
}

static void world_open(struct world *w, const struct rec *c, struct sl_backend *be, int block,
                       int keep_every, const char *how)
{
    *w = (struct world){.c = c, .be = be, .keep_every = keep_every};
    snprintf(w->what, sizeof w->what, "%s, %s", c->name, how);
    w->pool = red_alloc(PAGES * page_floats(c));
    w->view = (struct sl_state_view){.pool = (uint8_t *)w->pool.p,
                                     .page_bytes = page_floats(c) * sizeof(float),
                                     .offset = PAGE_RED * sizeof(float),
                                     .block_size = block,
                                     .group = 1};
}

/* Nothing was written but the state of pages in use. */
static void world_close(struct world *w)
{
    red_check(&w->pool, false, w->what);
    for (int i = 0; i < PAGES; i++) {
        const float *p = page_at(w, i);
        for (size_t k = 0; k < page_floats(w->c); k++) {
            const bool state = k >= PAGE_RED && k < PAGE_RED + (size_t)w->c->n_state;
            const bool red = sl_f32_bits(p[k]) == RED_PATTERN;
            if (state && w->used[i] && red)
                fail_msg("%s: page %d has not all of a state", w->what, i);
            if ((!state || !w->used[i]) && !red)
                fail_msg("%s: wrote float %zu of page %d", w->what, k, i);
        }
    }
    red_free(&w->pool);
}

static int32_t page_new(struct world *w)
{
    for (int32_t i = PAGES - 1; i >= 0; i--)
        if (!w->used[i]) {
            w->used[i] = true;
            return i;
        }
    fail_msg("%s: no page left", w->what);
    return -1;
}

static void page_drop(struct world *w, int32_t page)
{
    float *p = page_at(w, page);
    for (size_t k = 0; k < page_floats(w->c); k++)
        p[k] = sl_f32_of_bits(RED_PATTERN);
    w->used[page] = false;
}

static void seq_open(struct seq *s, const struct world *w, const struct text *text)
{
    *s = (struct seq){.text = text};
    for (int i = 0; i < MAX_BLOCKS; i++)
        s->table[i] = -1;
    s->out = sl_malloc((size_t)(text->n * w->c->n_out) * sizeof *s->out);
    assert_non_null(s->out);
}

/* Pages for the next n tokens: of their last block, and of those that are kept. */
static void seq_pages(struct world *w, struct seq *s, int n)
{
    const int bs = w->view.block_size, last = (s->pos + n - 1) / bs;
    for (int b = s->pos / bs; b <= last; b++)
        if (s->table[b] < 0 && (b == last || b % w->keep_every == 0))
            s->table[b] = page_new(w);
}

/* A page that is neither kept nor the one to go on from. */
static void seq_tidy(struct world *w, struct seq *s, const struct seq *other)
{
    const int bs = w->view.block_size;
    for (int b = 0; b < (s->pos - 1) / bs; b++)
        if (s->table[b] >= 0 && b % w->keep_every != 0 &&
            (other == NULL || other->table[b] != s->table[b])) {
            page_drop(w, s->table[b]);
            s->table[b] = -1;
        }
}

/* Drafts of a step, so many of the last tokens of each sequence; of them, the first n_right are
 * right. */
struct drafts {
    int n[N_SEQS], n_right[N_SEQS];
    int32_t pages[N_SEQS][MAX_TEXT];
};

/* Each draft left its state in its page. Those of right ones become their blocks', the others go.
 */
static void seq_settle(struct world *w, struct seq *s, int n, int n_right, const int32_t *pages)
{
    const int bs = w->view.block_size, first = s->pos - n;
    for (int i = 0; i < n; i++)
        same_bits(page_at(w, pages[i]) + PAGE_RED, s->text->pages[first + i + 1],
                  (size_t)w->c->n_state, w->what);
    for (int i = 0; i < n; i++) {
        const int b = (first + i) / bs;
        if (i >= n_right || ((first + i + 1) % bs != 0 && i + 1 < n_right)) {
            page_drop(w, pages[i]);
            continue;
        }
        if (s->table[b] >= 0)
            page_drop(w, s->table[b]);
        s->table[b] = pages[i];
    }
    s->pos -= n - n_right;
}

/* One step: n[i] tokens of sequence i, 0: it is not in the batch. d: NULL: none is a draft. */
static void step_with(struct world *w, struct seq *seqs, int n_seqs, const int *n, struct drafts *d)
{
    enum { STRIDE = N_SEQS * MAX_BLOCKS };
    const struct rec *c = w->c;
    int32_t tables[2 * STRIDE + MAX_BATCH], positions[MAX_BATCH];
    struct sl_span spans[N_SEQS];
    struct sl_batch b = {.positions = positions,
                         .spans = spans,
                         .block_tables = tables,
                         .n_tables = 2,
                         .table_stride = STRIDE};
    for (size_t i = 0; i < SL_COUNT(tables); i++)
        tables[i] = 1 << 30; /* of a group that is another's, and between tables */
    for (int i = 0, at = 0; i < n_seqs; i++) {
        const int blocks = SL_CEIL_DIV(seqs[i].pos + n[i], w->view.block_size);
        if (n[i] == 0)
            continue;
        const int n_drafts = d != NULL ? d->n[i] : 0;
        seq_pages(w, &seqs[i], n[i] - n_drafts);
        memcpy(tables + STRIDE + at, seqs[i].table, (size_t)blocks * sizeof *tables);
        spans[b.n_spans++] = (struct sl_span){b.n_tokens, n[i], seqs[i].pos, at, n_drafts};
        for (int t = 0; t < n[i]; t++)
            positions[b.n_tokens++] = seqs[i].pos + t;
        at += blocks;
        for (int k = 0; k < n_drafts; k++)
            tables[STRIDE + at++] = d->pages[i][k] = page_new(w);
    }
    struct red_buf in[MAX_IN] = {{0}}, out = red_alloc((size_t)(b.n_tokens * c->n_out));
    float *rows[MAX_IN] = {0};
    for (int k = 0; k < MAX_IN && c->n_in[k] > 0; k++) {
        in[k] = red_alloc((size_t)(b.n_tokens * c->n_in[k]));
        rows[k] = in[k].p;
        for (int i = 0, at = 0; i < n_seqs; at += n[i++] * c->n_in[k])
            memcpy(in[k].p + at, seqs[i].text->in[k] + seqs[i].pos * c->n_in[k],
                   (size_t)(n[i] * c->n_in[k]) * sizeof(float));
    }
    c->run(c, w->be, &b, w->view, rows, out.p);
    red_check(&out, true, w->what);
    for (int i = 0, at = 0; i < n_seqs; at += n[i++] * c->n_out) {
        memcpy(seqs[i].out + seqs[i].pos * c->n_out, out.p + at,
               (size_t)(n[i] * c->n_out) * sizeof(float));
        seqs[i].pos += n[i];
        if (d != NULL)
            seq_settle(w, &seqs[i], d->n[i], d->n_right[i], d->pages[i]);
    }
    for (int k = 0; k < MAX_IN && c->n_in[k] > 0; k++) {
        red_check(&in[k], false, w->what);
        red_free(&in[k]);
    }
    red_free(&out);
}

static void step(struct world *w, struct seq *seqs, int n_seqs, const int *n)
{
    step_with(w, seqs, n_seqs, n, NULL);
}

/* What was computed of a sequence, and its pages, are those of the text. */
static void seq_check(struct world *w, struct seq *s)
{
    const int bs = w->view.block_size;
    same_bits(s->out, s->text->out, (size_t)(s->pos * w->c->n_out), w->what);
    for (int b = 0; b <= (s->pos - 1) / bs; b++)
        if (s->table[b] >= 0)
            same_bits(page_at(w, s->table[b]) + PAGE_RED,
                      s->text->pages[SL_MIN((b + 1) * bs, s->pos)], (size_t)w->c->n_state, w->what);
}

/* Counts the text in double, and computes it by plain C in one step with a page for each token. */
static void text_make(struct text *t, const struct rec *c, struct sl_rng *rng, int n)
{
    struct world w;
    struct seq s;
    *t = (struct text){.n = n};
    for (int k = 0; k < MAX_IN && c->n_in[k] > 0; k++)
        t->in[k] = floats(rng, (size_t)(n * c->n_in[k]), c->spread);
    world_open(&w, c, backend(0, 1), 1, 1, "whole, plain C");
    seq_open(&s, &w, t);
    step(&w, &s, 1, &n);
    t->out = s.out;
    for (int i = 0; i < n; i++) {
        t->pages[i + 1] = sl_malloc((size_t)c->n_state * sizeof(float));
        assert_non_null(t->pages[i + 1]);
        memcpy(t->pages[i + 1], page_at(&w, s.table[i]) + PAGE_RED,
               (size_t)c->n_state * sizeof(float));
    }
    world_close(&w);
    double *out = sl_malloc((size_t)(n * c->n_out) * sizeof *out);
    double *state = sl_malloc((size_t)c->n_state * sizeof *state);
    assert_true(out != NULL && state != NULL);
    c->count(c, t->in, n, out, state);
    near_oracle(t->out, out, (size_t)(n * c->n_out), 2e-12, w.what);
    near_oracle(t->pages[n], state, (size_t)c->n_state, 2e-12, w.what);
    sl_free(out);
    sl_free(state);
}

static void text_free(struct text *t)
{
    for (int k = 0; k < MAX_IN; k++)
        sl_free(t->in[k]);
    for (int i = 0; i <= MAX_TEXT; i++)
        sl_free(t->pages[i]);
    sl_free(t->out);
}

/* ---------------------------------------------------------------- checks */

/* All texts side by side, `chunk` tokens of each in a step (0: some number, or none), the last of
 * them one at a time. */
static void check_cut(const struct rec *c, const struct text *texts, struct sl_backend *be,
                      const char *how, int chunk, int block, int keep_every)
{
    struct sl_rng rng = {77, 0};
    struct world w;
    struct seq seqs[N_SEQS];
    char what[100];
    snprintf(what, sizeof what, "%s, steps of %d, blocks of %d, every %d. kept", how, chunk, block,
             keep_every);
    world_open(&w, c, be, block, keep_every, what);
    for (int i = 0; i < N_SEQS; i++)
        seq_open(&seqs[i], &w, &texts[i]);
    for (bool more = true; more;) {
        int n[N_SEQS];
        more = false;
        for (int i = 0; i < N_SEQS; i++) {
            const int want = i == N_SEQS - 1 ? 1 : chunk > 0 ? chunk : (int)sl_rng_below(&rng, 9);
            n[i] = SL_MIN(want, texts[i].n - seqs[i].pos);
            more |= n[i] > 0;
        }
        if (!more)
            for (int i = 0; i < N_SEQS; i++) { /* by chance nobody had a turn, or all have ended */
                n[i] = SL_MIN(1, texts[i].n - seqs[i].pos);
                more |= n[i] > 0;
            }
        if (more)
            step(&w, seqs, N_SEQS, n);
        for (int i = 0; i < N_SEQS && more; i++)
            seq_tidy(&w, &seqs[i], NULL);
    }
    for (int i = 0; i < N_SEQS; i++) {
        seq_check(&w, &seqs[i]);
        sl_free(seqs[i].out);
    }
    world_close(&w);
}

/* All texts side by side, each with up to most drafts behind a token or two of its own. What wrong
 * ones left is gone: a page that is dropped holds nothing. */
static void check_drafts(const struct rec *c, const struct text *texts, struct sl_backend *be,
                         const char *how, int most, int block)
{
    struct sl_rng rng = {(uint64_t)(most * 31 + block), 0};
    struct world w;
    struct seq seqs[N_SEQS];
    char what[100];
    snprintf(what, sizeof what, "%s, %d drafts, blocks of %d", how, most, block);
    world_open(&w, c, be, block, 2, what);
    for (int i = 0; i < N_SEQS; i++)
        seq_open(&seqs[i], &w, &texts[i]);
    for (bool more = true; more;) {
        struct drafts d = {{0}, {0}, {{0}}};
        int n[N_SEQS];
        more = false;
        for (int i = 0; i < N_SEQS; i++) {
            const int left = texts[i].n - seqs[i].pos, own = 1 + (int)sl_rng_below(&rng, 2);
            const int drafts = (int)sl_rng_below(&rng, (uint64_t)most + 1);
            n[i] = SL_MIN(own, left);
            d.n[i] = SL_MIN(drafts, left - n[i]);
            d.n_right[i] = (int)sl_rng_below(&rng, (uint64_t)d.n[i] + 1);
            n[i] += d.n[i];
            more |= n[i] > 0;
        }
        if (more)
            step_with(&w, seqs, N_SEQS, n, &d);
        for (int i = 0; i < N_SEQS && more; i++)
            seq_tidy(&w, &seqs[i], NULL);
    }
    for (int i = 0; i < N_SEQS; i++) {
        seq_check(&w, &seqs[i]);
        sl_free(seqs[i].out);
    }
    world_close(&w);
}

/* Two sequences of one text go on from one page in one step; then the first is taken back to it.
 * The page stays what it is. */
static void check_shared(const struct rec *c, const struct text *t, struct sl_backend *be,
                         const char *how)
{
    enum { BLOCK = 8, AT = 16 };
    const size_t n_bytes = page_floats(c) * sizeof(float);
    struct world w;
    struct seq s[2];
    world_open(&w, c, be, BLOCK, 2, how);
    seq_open(&s[0], &w, t);
    seq_open(&s[1], &w, t);
    step(&w, s, 2, (int[]){AT, 0});
    memcpy(s[1].table, s[0].table, sizeof s[1].table);
    memcpy(s[1].out, s[0].out, (size_t)(AT * c->n_out) * sizeof(float));
    s[1].pos = AT;
    float *before = sl_malloc(n_bytes);
    assert_non_null(before);
    memcpy(before, page_at(&w, s[0].table[1]), n_bytes);
    step(&w, s, 2, (int[]){5, 1}); /* both in block 2, each with a page of its own */
    assert_int_not_equal(s[0].table[2], s[1].table[2]);
    step(&w, s, 2, (int[]){t->n - AT - 5, 9});
    assert_memory_equal(before, page_at(&w, s[0].table[1]), n_bytes);
    seq_check(&w, &s[0]);
    seq_check(&w, &s[1]);
    for (int b = AT / BLOCK; b < MAX_BLOCKS; b++)
        if (s[0].table[b] >= 0) {
            page_drop(&w, s[0].table[b]);
            s[0].table[b] = -1;
        }
    s[0].pos = AT;
    step(&w, s, 2, (int[]){t->n - AT, 0});
    assert_memory_equal(before, page_at(&w, s[0].table[1]), n_bytes);
    seq_check(&w, &s[0]);
    sl_free(before);
    sl_free(s[0].out);
    sl_free(s[1].out);
    world_close(&w);
}

/* A text of NaN beside it changes nothing of a text. */
static void check_mate(const struct rec *c, const struct text *t, struct sl_backend *be,
                       const char *how)
{
    struct text bad = {.n = t->n};
    struct world w;
    struct seq s[3];
    for (int k = 0; k < MAX_IN && c->n_in[k] > 0; k++) {
        bad.in[k] = sl_malloc((size_t)(t->n * c->n_in[k]) * sizeof(float));
        assert_non_null(bad.in[k]);
        for (int i = 0; i < t->n * c->n_in[k]; i++)
            bad.in[k][i] = i % 3 == 0 ? INFINITY : NAN;
    }
    world_open(&w, c, be, 8, 3, how);
    seq_open(&s[0], &w, &bad);
    seq_open(&s[1], &w, t);
    seq_open(&s[2], &w, &bad);
    step(&w, s, 3, (int[]){1, 10, 7});
    step(&w, s, 3, (int[]){5, 1, 1});
    step(&w, s, 3, (int[]){1, t->n - 11, 2});
    seq_check(&w, &s[1]);
    world_close(&w);
    for (int i = 0; i < 3; i++)
        sl_free(s[i].out);
    for (int k = 0; k < MAX_IN; k++)
        sl_free(bad.in[k]);
}

static void check(const struct rec *c)
{
    static const int lengths[N_SEQS] = {37, 26, 3, 5};
    static const int cuts[][3] = {{64, 8, 1},  {64, 8, 3}, {1, 4, 2}, {2, 16, 1},
                                  {5, 5, 100}, {7, 8, 2},  {0, 8, 2}, {16, 8, 100}};
    struct sl_rng rng = {(uint64_t)c->n_out, 0};
    struct text texts[N_SEQS];
    for (int i = 0; i < N_SEQS; i++)
        text_make(&texts[i], c, &rng, lengths[i]);
    for (int isa = 0; isa < N_FLOAT_ISAS; isa++) {
        for (int threads = 1; threads <= 4 && isa_available(isa); threads += isa == 0 ? 3 : 1) {
            struct sl_backend *be = backend(isa, threads);
            char how[60];
            snprintf(how, sizeof how, "%s, %d threads", isa_names[isa], threads);
            for (size_t i = (size_t)(threads - 1) % 2; i<SL_COUNT(cuts); i += threads> 2 ? 2 : 1)
                check_cut(c, texts, be, how, cuts[i][0], cuts[i][1], cuts[i][2]);
            check_drafts(c, texts, be, how, threads % 2 != 0 ? 3 : 12, threads % 2 != 0 ? 8 : 5);
            check_shared(c, &texts[0], be, how);
            check_mate(c, &texts[0], be, how);
        }
    }
    for (int i = 0; i < N_SEQS; i++)
        text_free(&texts[i]);
}

static const float *weights(struct sl_rng *rng, int n, double scale, double shift)
{
    float *w = floats(rng, (size_t)n, scale);
    for (int i = 0; i < n; i++)
        w[i] += (float)shift;
    return w;
}

static void weights_free(const struct rec *c)
{
    for (size_t i = 0; i < SL_COUNT(c->w); i++)
        sl_free((void *)(uintptr_t)c->w[i]);
}

static void test_conv(void **state)
{
    static const struct conv_shape shapes[] = {
        {64, 4, true, true, false, false},   {70, 4, false, true, false, false},
        {33, 3, false, false, true, true},   {16, 2, true, false, false, true},
        {129, 8, true, true, false, false},  {1, 7, false, true, true, false},
        {200, 5, true, false, true, false},  {15, 6, true, true, true, true},
        {1100, 4, false, true, false, false}};
    (void)state;
    for (size_t i = 0; i < SL_COUNT(shapes); i++) {
        const struct conv_shape *s = &shapes[i];
        struct sl_rng rng = {i, 0};
        char name[80];
        snprintf(name, sizeof name, "conv %d x %d", s->n_channels, s->n_taps);
        struct rec c = {.name = name,
                        .n_in = {s->n_channels * (s->gates ? 3 : 1) + (s->gates ? 5 : 0)},
                        .n_out = s->n_channels,
                        .n_state = s->n_channels * (s->n_taps - 1),
                        .spread = 1,
                        .w = {weights(&rng, s->n_channels * s->n_taps, 0.5, 0),
                              weights(&rng, s->n_channels, 0.5, 0)},
                        .run = conv_run,
                        .count = conv_count,
                        .shape = s};
        check(&c);
        weights_free(&c);
    }
}

/* -exp of something, as a is in a model. */
static const float *rates(struct sl_rng *rng, int n)
{
    float *w = floats(rng, (size_t)n, 1);
    for (int i = 0; i < n; i++)
        w[i] = -expf(w[i]);
    return w;
}

static void test_delta(void **state)
{
    static const struct delta_shape shapes[] = {
        {4, 2, 17, 24, false, false, 1, 0}, {2, 2, 128, 128, false, false, 1, 0},
        {3, 1, 64, 64, false, false, 2, 0}, {2, 1, 5, 7, false, false, 1, 0},
        {4, 4, 32, 40, true, false, 1, 0},  {1, 1, 256, 256, false, false, 1, 0},
        {2, 1, 96, 80, true, false, 2, 0},  {1, 1, 33, 200, true, false, 1, 0},
        {6, 3, 16, 16, false, true, 1, 0},  {2, 2, 20, 33, true, false, 1, -5}};
    (void)state;
    for (size_t i = 0; i < SL_COUNT(shapes); i++) {
        const struct delta_shape *s = &shapes[i];
        const int n_gates = s->n_heads * (s->by_row ? s->k_dim : 1);
        struct sl_rng rng = {i, 0};
        char name[80];
        snprintf(name, sizeof name, "delta rule %d/%d, %d x %d%s, bound %g", s->n_heads,
                 s->n_k_heads, s->k_dim, s->v_dim, s->by_row ? " by rows" : "", (double)s->bound);
        struct rec c = {
            .name = name,
            .n_in = {2 * s->n_k_heads * s->k_dim + s->n_heads * s->v_dim + 3, n_gates, s->n_heads},
            .n_out = s->n_heads * s->v_dim,
            .n_state = s->n_heads * s->k_dim * s->v_dim,
            .spread = 2,
            .w = {rates(&rng, s->n_heads), weights(&rng, n_gates, 1, -2)},
            .run = delta_run,
            .count = delta_count,
            .shape = s};
        check(&c);
        weights_free(&c);
    }
}

static void test_ssm(void **state)
{
    static const struct ssm_shape shapes[] = {{4, 2, 8, 5, false, true, true, 0, INFINITY},
                                              {3, 1, 64, 128, false, true, true, 0, INFINITY},
                                              {6, 3, 24, 16, false, true, false, 0.1f, 1.5f},
                                              {2, 2, 17, 3, false, false, true, 0.001f, 0.1f},
                                              {8, 4, 80, 33, false, true, true, 0, 4},
                                              {70, 1, 1, 16, true, true, true, 0, INFINITY},
                                              {16, 1, 1, 5, true, false, true, 0, INFINITY},
                                              {300, 2, 1, 7, true, true, false, 0, INFINITY},
                                              {40, 8, 1, 6, false, true, true, 0, INFINITY},
                                              {5, 1, 256, 9, false, true, true, 0, INFINITY}};
    (void)state;
    for (size_t i = 0; i < SL_COUNT(shapes); i++) {
        const struct ssm_shape *s = &shapes[i];
        struct sl_rng rng = {i, 0};
        char name[80];
        snprintf(name, sizeof name, "ssm %d/%d, %d x %d%s", s->n_heads, s->n_groups, s->head_dim,
                 s->n_state, s->by_state ? " by state" : "");
        struct rec c = {
            .name = name,
            .n_in = {s->n_heads * s->head_dim + 2 * s->n_groups * s->n_state + 1, s->n_heads + 2},
            .n_out = s->n_heads * s->head_dim,
            .n_state = s->n_heads * s->head_dim * s->n_state,
            .spread = 1,
            .w = {rates(&rng, s->n_heads * (s->by_state ? s->n_state : 1)),
                  weights(&rng, s->n_heads, 1, -1), weights(&rng, s->n_heads, 1, 0)},
            .run = ssm_run,
            .count = ssm_count,
            .shape = s};
        check(&c);
        weights_free(&c);
    }
}

/* Rates down to a thousandth of what a model has, where all but a little of a state stays. */
static void test_lru(void **state)
{
    static const struct lru_shape shapes[] = {{64}, {1}, {17}, {100}, {560}, {33}};
    static const float scales[] = {1, 4, 0.001f, 0.1f, 1, 1e-6f};
    (void)state;
    for (size_t i = 0; i < SL_COUNT(shapes); i++) {
        const int n = shapes[i].n_channels;
        struct sl_rng rng = {i, 0};
        char name[80];
        float *rate = floats(&rng, (size_t)n, 1);
        for (int k = 0; k < n; k++)
            rate[k] = -scales[i] * expf(rate[k]);
        snprintf(name, sizeof name, "rg-lru of %d", n);
        struct rec c = {.name = name,
                        .n_in = {n, n, n},
                        .n_out = n,
                        .n_state = n,
                        .spread = 2,
                        .w = {rate},
                        .run = lru_run,
                        .count = lru_count,
                        .shape = &shapes[i]};
        check(&c);
        weights_free(&c);
    }
}

static void test_shift(void **state)
{
    static const struct shift_shape shapes[] = {{64, 6}, {1, 1}, {17, 2}, {560, 3}};
    (void)state;
    for (size_t i = 0; i < SL_COUNT(shapes); i++) {
        const int n = shapes[i].n_channels, n_outs = shapes[i].n_outs;
        struct sl_rng rng = {i, 0};
        char name[80];
        snprintf(name, sizeof name, "token shift of %d, %d times", n, n_outs);
        struct rec c = {.name = name,
                        .n_in = {n},
                        .n_out = n * n_outs,
                        .n_state = n,
                        .spread = 2,
                        .w = {weights(&rng, n * n_outs, 0.3, 0.5)},
                        .run = shift_run,
                        .count = shift_count,
                        .shape = &shapes[i]};
        check(&c);
        weights_free(&c);
    }
}

static void test_wkv(void **state)
{
    static const struct wkv_shape shapes[] = {
        {2, 64, true}, {3, 16, false}, {1, 20, true}, {5, 1, true}, {1, 100, false}};
    (void)state;
    for (size_t i = 0; i < SL_COUNT(shapes); i++) {
        const int n = shapes[i].n_heads * shapes[i].dim;
        struct sl_rng rng = {i, 0};
        char name[80];
        snprintf(name, sizeof name, "rwkv7, %d heads of %d", shapes[i].n_heads, shapes[i].dim);
        struct rec c = {.name = name,
                        .n_in = {n, n, n, n, n, n, n, n, n},
                        .n_out = n,
                        .n_state = n * shapes[i].dim,
                        .spread = 1,
                        .w = {weights(&rng, n, 0.3, 1), weights(&rng, n, 0.3, 1),
                              weights(&rng, n, 0.3, 0), weights(&rng, n, 0.2, 1),
                              weights(&rng, n, 0.3, 0)},
                        .run = wkv_run,
                        .count = wkv_count,
                        .shape = &shapes[i]};
        check(&c);
        weights_free(&c);
    }
}

/* ---------------------------------------------------------------- the functions of others */

/* Of tools/gen_golden_recurrent.py. */
static float golden_number(int i, int salt)
{
    uint32_t x = (uint32_t)i * 2654435761u + (uint32_t)salt * 40503u;
    x = (x ^ (x >> 15)) * 0x85EBCA6Bu;
    return (float)(x >> 8) / 8388608.0f - 1;
}

static float *golden_numbers(int salt, int n)
{
    float *p = sl_malloc((size_t)n * sizeof *p);
    assert_non_null(p);
    for (int i = 0; i < n; i++)
        p[i] = golden_number(i, salt);
    return p;
}

/* A text of the golden's numbers against what fla, and for the delta rule transformers, made of
 * them. */
static void check_golden(const struct rec *c, const double *out, const double *state)
{
    const struct delta_shape *s = c->shape;
    const int keys = s->n_k_heads * s->k_dim, rows = s->n_heads * s->v_dim, n = GOLDEN_T;
    float *q = golden_numbers(1, n * keys), *k = golden_numbers(2, n * keys);
    float *v = golden_numbers(3, n * rows);
    struct text t = {.n = n,
                     .in = {sl_malloc((size_t)(n * c->n_in[0]) * sizeof(float)),
                            golden_numbers(6, n * c->n_in[1]), golden_numbers(7, n * c->n_in[2])}};
    assert_non_null(t.in[0]);
    for (int i = 0; i < n; i++) {
        memcpy(t.in[0] + i * c->n_in[0], q + i * keys, (size_t)keys * sizeof *q);
        memcpy(t.in[0] + i * c->n_in[0] + keys, k + i * keys, (size_t)keys * sizeof *k);
        memcpy(t.in[0] + i * c->n_in[0] + 2 * keys, v + i * rows, (size_t)rows * sizeof *v);
    }
    for (int isa = 0; isa < N_FLOAT_ISAS && isa_available(isa); isa++) {
        struct world w;
        struct seq seq;
        world_open(&w, c, backend(isa, 1), 8, 1, isa_names[isa]);
        seq_open(&seq, &w, &t);
        step(&w, &seq, 1, &n);
        near_oracle(seq.out, out, (size_t)(n * c->n_out), 1e-12, w.what);
        near_oracle(page_at(&w, seq.table[(n - 1) / 8]) + PAGE_RED, state, (size_t)c->n_state,
                    1e-12, w.what);
        sl_free(seq.out);
        world_close(&w);
    }
    text_free(&t);
    sl_free(q);
    sl_free(k);
    sl_free(v);
}

static void test_golden(void **state)
{
    static const struct delta_shape shapes[] = {
        {GOLDEN_HV, GOLDEN_HK, GOLDEN_K, GOLDEN_V, false, false, 1, 0},
        {GOLDEN_HK, GOLDEN_HK, GOLDEN_K, GOLDEN_V, true, false, 1, 0}};
    static const char *const names[] = {"delta rule as fla has it", "KDA as fla has it"};
    (void)state;
    for (int i = 0; i < 2; i++) {
        const struct delta_shape *s = &shapes[i];
        const int n_gates = s->n_heads * (s->by_row ? s->k_dim : 1);
        float *rate = golden_numbers(4, s->n_heads);
        for (int h = 0; h < s->n_heads; h++)
            rate[h] = -expf(rate[h]);
        struct rec c = {
            .name = names[i],
            .n_in = {2 * s->n_k_heads * s->k_dim + s->n_heads * s->v_dim, n_gates, s->n_heads},
            .n_out = s->n_heads * s->v_dim,
            .n_state = s->n_heads * s->k_dim * s->v_dim,
            .w = {rate, golden_numbers(5, n_gates)},
            .run = delta_run,
            .shape = s};
        check_golden(&c, i == 0 ? golden_delta_out : golden_kda_out,
                     i == 0 ? golden_delta_state : golden_kda_state);
        weights_free(&c);
    }
}

/* ---------------------------------------------------------------- norms with a gate */

struct norm_shape {
    int n_groups, dim;
    bool gate, w, shared_w, gate_first, bare, sigmoid;
};

static void norm_count(const struct sl_op_gated_norm *a, double *out)
{
    for (int t = 0; t < a->n; t++)
        for (int g = 0; g < a->n_groups; g++) {
            double y[512], open[512], sum = 0;
            for (int i = 0; i < a->dim; i++) {
                const int at = g * a->dim + i;
                const double z = a->gate != NULL ? (double)a->gate[t * a->ld_gate + at] : 0;
                open[i] = a->gate == NULL ? 1 : logistic(z) * (a->sigmoid ? 1 : z);
                y[i] = (double)a->x[t * a->n_groups * a->dim + at];
                if (a->gate_first || a->bare)
                    y[i] *= open[i];
                sum += y[i] * y[i];
            }
            const double by = a->bare ? 1 : 1 / sqrt(sum / a->dim + (double)a->eps);
            for (int i = 0; i < a->dim; i++) {
                const int at = g * a->dim + i;
                double w = a->w != NULL && !a->bare ? (double)a->w[a->shared_w ? i : at] : 1;
                if (!a->gate_first && !a->bare)
                    w *= open[i];
                out[t * a->ld_out + at] = y[i] * by * w;
            }
        }
}

static void test_gated_norm(void **state)
{
    static const struct norm_shape shapes[] = {{4, 128, true, true, true, false, false, false},
                                               {2, 320, true, true, false, true, false, false},
                                               {3, 33, true, true, true, false, false, true},
                                               {1, 500, false, true, false, false, false, false},
                                               {5, 7, true, false, false, true, false, true},
                                               {2, 70, true, false, false, false, true, false},
                                               {1, 512, true, true, false, false, true, true}};
    enum { N = 9 };
    (void)state;
    for (size_t i = 0; i < SL_COUNT(shapes); i++) {
        const struct norm_shape *s = &shapes[i];
        const int row = s->n_groups * s->dim, ld_gate = row + 3, ld_out = row;
        struct sl_rng rng = {i, 0};
        float *x = floats(&rng, (size_t)(N * row), 2), *gate = floats(&rng, N * (size_t)ld_gate, 4);
        float *w = floats(&rng, (size_t)row, 1);
        double *want = sl_malloc((size_t)(N * ld_out) * sizeof *want);
        float *first = NULL;
        assert_non_null(want);
        for (int isa = 0; isa < N_FLOAT_ISAS; isa++)
            for (int threads = 1; threads <= 4 && isa_available(isa); threads += 3) {
                struct red_buf out = red_alloc((size_t)(N * ld_out));
                struct sl_op_gated_norm a = {.x = x,
                                             .gate = s->gate ? gate : NULL,
                                             .ld_gate = ld_gate,
                                             .w = s->w ? w : NULL,
                                             .shared_w = s->shared_w,
                                             .gate_first = s->gate_first,
                                             .bare = s->bare,
                                             .sigmoid = s->sigmoid,
                                             .eps = 1e-5f,
                                             .n = N,
                                             .n_groups = s->n_groups,
                                             .dim = s->dim,
                                             .out = out.p,
                                             .ld_out = ld_out};
                struct sl_backend *be = backend(isa, threads);
                be->vt->gated_norm(be, &a);
                red_check(&out, true, isa_names[isa]);
                if (first == NULL) {
                    norm_count(&a, want);
                    near_oracle(out.p, want, (size_t)(N * ld_out), 1e-12, "gated norm");
                    first = sl_malloc((size_t)(N * ld_out) * sizeof *first);
                    assert_non_null(first);
                    memcpy(first, out.p, (size_t)(N * ld_out) * sizeof *first);
                }
                same_bits(out.p, first, (size_t)(N * ld_out), isa_names[isa]);
                red_free(&out);
            }
        sl_free(first);
        sl_free(want);
        sl_free(x);
        sl_free(gate);
        sl_free(w);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_conv),   cmocka_unit_test(test_delta),
        cmocka_unit_test(test_lru),    cmocka_unit_test(test_shift),
        cmocka_unit_test(test_wkv),    cmocka_unit_test(test_ssm),
        cmocka_unit_test(test_golden), cmocka_unit_test(test_gated_norm),
    };
    say_what_is_skipped();
    return cmocka_run_group_tests_name("recurrent", tests, NULL, destroy_backends);
}
