/* SPDX-License-Identifier: MIT
 * The kernels in terms of the sixteen lanes of vec_*.h, included by kernels_c.c, kernels_avx2.c and
 * kernels_avx512.c. What is added to what, in which order, is written here once for all of them:
 * docs/DETERMINISM.md is its description.
 */
#include "cpu/exp_tmpl.c"

/* ---------------------------------------------------------------- elementary functions */

/* tanh by an odd polynomial (Cephes) where 1 - exp(-2|x|) would cancel. */
INLINE v16 v_tanh(v16 x)
{
    v16 a = v_abs(x), one = v_set1(1.0f);
    v16 e = v_exp(v_mul(a, v_set1(-2.0f)));
    v16 big = v_copysign(v_div(v_sub(one, e), v_add(one, e)), x);
    v16 s = v_mul(x, x);
    v16 p = v_set1(-5.70498872745e-3f);
    p = v_fma(p, s, v_set1(2.06390887954e-2f));
    p = v_fma(p, s, v_set1(-5.37397155531e-2f));
    p = v_fma(p, s, v_set1(1.33314422036e-1f));
    p = v_fma(p, s, v_set1(-3.33332819422e-1f));
    return v_select_lt(a, v_set1(0.625f), v_fma(v_mul(p, s), x, x), big);
}

/* x times the normal distribution function of x. That of -|x| is exp(-x^2 / 2) times a polynomial
 * in t = 1 / (1 + 0.3 |x|), fitted to a relative error of 2.4e-8 where it matters, so that nothing
 * cancels on either side. */
INLINE v16 v_gelu_erf(v16 x)
{
    v16 a = v_abs(x), one = v_set1(1.0f);
    v16 t = v_div(one, v_fma(a, v_set1(0.3f), one));
    v16 p = v_set1(0.0353813326f);
    p = v_fma(p, t, v_set1(-0.155027298f));
    p = v_fma(p, t, v_set1(0.200596332f));
    p = v_fma(p, t, v_set1(-0.0461001683f));
    p = v_fma(p, t, v_set1(0.123041309f));
    p = v_fma(p, t, v_set1(0.102161103f));
    p = v_fma(p, t, v_set1(0.12027737f));
    p = v_fma(p, t, v_set1(0.119670032f));
    p = v_mul(v_mul(p, t), v_exp(v_mul(v_mul(a, a), v_set1(-0.5f))));
    return v_mul(x, v_select_lt(x, v_set1(0.0f), p, v_sub(one, p)));
}

/* silu or gelu_tanh */
INLINE v16 v_logistic_act(enum sl_act act, v16 g)
{
    v16 z = g; /* g times the logistic function of z */
    if (act == SL_ACT_GELU_TANH) {
        /* (1 + tanh(y)) / 2 is the logistic function of 2 y, y = sqrt(2 / pi) (g + 0.044715 g^3) */
        v16 g3 = v_mul(v_mul(g, g), g);
        z = v_mul(v_fma(g3, v_set1(0.044715f), g), v_set1(1.5957691216057308f));
    }
    return v_div(g, v_add(v_set1(1.0f), v_exp(v_sub(v_set1(0.0f), z))));
}

INLINE v16 v_act(enum sl_act act, v16 x)
{
    v16 positive = v_max(v_set1(0.0f), x); /* NaN stays */
    switch (act) {
    case SL_ACT_GELU_ERF:
        return v_gelu_erf(x);
    case SL_ACT_TANH:
        return v_tanh(x);
    case SL_ACT_RELU:
        return positive;
    case SL_ACT_RELU2:
        return v_mul(positive, positive);
    case SL_ACT_SIGMOID:
        return v_div(v_set1(1.0f), v_add(v_set1(1.0f), v_exp(v_sub(v_set1(0.0f), x))));
    default:
        return v_logistic_act(act, x);
    }
}

static float k_exp(float x)
{
    float out[16];
    v_store(out, v_exp(v_set1(x)));
    return out[0];
}

/* ---------------------------------------------------------------- rows */

static void k_rmsnorm(const float *x, const float *w, float eps, int n, float *out)
{
    v16 acc = v_set1(0.0f);
    int k = 0;
    for (; k + 16 <= n; k += 16) {
        v16 a = v_load(x + k);
        acc = v_fma(a, a, acc);
    }
    if (k < n) {
        v16 a = v_load_n(x + k, n - k);
        acc = v_fma_n(a, a, acc, n - k);
    }
    float mean = v_sum(acc) / (float)n;
    v16 scale = v_set1(1.0f / sqrtf(mean + eps));
    if (w == NULL) {
        for (k = 0; k < n; k += 16) {
            int m = n - k < 16 ? n - k : 16;
            v_store_n(out + k, v_mul(v_load_n(x + k, m), scale), m);
        }
        return;
    }
    for (k = 0; k + 16 <= n; k += 16)
        v_store(out + k, v_mul(v_mul(v_load(x + k), scale), v_load(w + k)));
    if (k < n) {
        v16 a = v_mul(v_mul(v_load_n(x + k, n - k), scale), v_load_n(w + k, n - k));
        v_store_n(out + k, a, n - k);
    }
}

/* Mean, then variance around it: the square of a large mean would eat the variance's digits. */
static void k_layernorm(const float *x, const float *w, const float *b, float eps, int n,
                        float *out)
{
    v16 sum = v_set1(0.0f), squares = v_set1(0.0f);
    int k = 0;
    for (; k + 16 <= n; k += 16)
        sum = v_add(sum, v_load(x + k));
    if (k < n)
        sum = v_add(sum, v_load_n(x + k, n - k));
    v16 mean = v_set1(v_sum(sum) / (float)n);
    for (k = 0; k + 16 <= n; k += 16) {
        v16 d = v_sub(v_load(x + k), mean);
        squares = v_fma(d, d, squares);
    }
    if (k < n) {
        v16 d = v_sub(v_load_n(x + k, n - k), mean);
        squares = v_fma_n(d, d, squares, n - k);
    }
    v16 scale = v_set1(1.0f / sqrtf(v_sum(squares) / (float)n + eps));
    for (k = 0; k < n; k += 16) {
        int m = n - k < 16 ? n - k : 16;
        v16 d = v_mul(v_sub(v_load_n(x + k, m), mean), scale);
        v16 bias = b != NULL ? v_load_n(b + k, m) : v_set1(0.0f);
        v_store_n(out + k, v_fma(d, v_load_n(w + k, m), bias), m);
    }
}

static void k_act_alone(enum sl_act act, const float *x, int64_t n, float *out)
{
    int64_t k = 0;
    for (; k + 16 <= n; k += 16)
        v_store(out + k, v_act(act, v_load(x + k)));
    if (k < n)
        v_store_n(out + k, v_act(act, v_load_n(x + k, (int)(n - k))), (int)(n - k));
}

/* exp(x) - 1 - x: near 0 by its series up to x^9 / 9!, where the difference would lose its digits.
 */
INLINE v16 v_exp_less_line(v16 x)
{
    v16 far = v_sub(v_sub(v_exp(x), v_set1(1.0f)), x), p = v_set1(0x1.71de3ap-19f);
    p = v_fma(p, x, v_set1(0x1.a01a02p-16f));
    p = v_fma(p, x, v_set1(0x1.a01a02p-13f));
    p = v_fma(p, x, v_set1(0x1.6c16c2p-10f));
    p = v_fma(p, x, v_set1(0x1.111112p-7f));
    p = v_fma(p, x, v_set1(0x1.555556p-5f));
    p = v_fma(p, x, v_set1(0x1.555556p-3f));
    p = v_fma(p, x, v_set1(0.5f));
    return v_select_lt(x, v_set1(-0.5f), far, v_mul(v_mul(x, x), p));
}

INLINE v16 v_xielu(const struct sl_xielu *s, v16 x)
{
    v16 beta = v_set1(s->beta), low = v_min(v_set1(s->eps), x); /* NaN stays */
    v16 above = v_mul(v_fma(v_set1(s->alpha_p), x, beta), x);
    v16 rest = v_add(v_exp_less_line(low), v_sub(low, x));
    v16 below = v_fma(rest, v_set1(s->alpha_n), v_mul(beta, x));
    return v_select_lt(v_set1(0.0f), x, above, below);
}

static void k_xielu(const struct sl_xielu *s, const float *x, int64_t n, float *out)
{
    int64_t k = 0;
    for (; k + 16 <= n; k += 16)
        v_store(out + k, v_xielu(s, v_load(x + k)));
    if (k < n)
        v_store_n(out + k, v_xielu(s, v_load_n(x + k, (int)(n - k))), (int)(n - k));
}

/* x to length 1; what is shorter than 1e-12 is divided by that. */
static void k_unit(float *x, int n)
{
    v16 acc = v_set1(0.0f);
    int k = 0;
    for (; k + 16 <= n; k += 16) {
        v16 a = v_load(x + k);
        acc = v_fma(a, a, acc);
    }
    if (k < n) {
        v16 a = v_load_n(x + k, n - k);
        acc = v_fma_n(a, a, acc, n - k);
    }
    float length = sqrtf(v_sum(acc));
    v16 by = v_set1(length > 1e-12f ? length : 1e-12f);
    for (k = 0; k < n; k += 16) {
        int m = n - k < 16 ? n - k : 16;
        v_store_n(x + k, v_div(v_load_n(x + k, m), by), m);
    }
}

static void k_max(float *x, const float *y, int n)
{
    for (int k = 0; k < n; k += 16) {
        int m = n - k < 16 ? n - k : 16;
        v_store_n(x + k, v_max(v_load_n(y + k, m), v_load_n(x + k, m)), m);
    }
}

static void k_add(float *x, const float *y, int64_t n)
{
    int64_t k = 0;
    for (; k + 16 <= n; k += 16)
        v_store(x + k, v_add(v_load(x + k), v_load(y + k)));
    for (; k < n; k++)
        x[k] += y[k];
}

static void k_scale(float *x, float s, int64_t n)
{
    int64_t k = 0;
    for (; k + 16 <= n; k += 16)
        v_store(x + k, v_mul(v_load(x + k), v_set1(s)));
    for (; k < n; k++)
        x[k] *= s;
}

static void k_softcap(float *x, float cap, int64_t n)
{
    const v16 c = v_set1(cap);
    int64_t k = 0;
    for (; k + 16 <= n; k += 16)
        v_store(x + k, v_mul(v_tanh(v_div(v_load(x + k), c)), c));
    if (k < n) {
        const int m = (int)(n - k);
        v_store_n(x + k, v_mul(v_tanh(v_div(v_load_n(x + k, m), c)), c), m);
    }
}

static void k_act(enum sl_act act, const float *gate, const float *up, int n, float *out)
{
    int k = 0;
    if (act == SL_ACT_SILU || act == SL_ACT_GELU_TANH) /* of most models: without the switch */
        for (; k + 16 <= n; k += 16)
            v_store(out + k, v_mul(v_logistic_act(act, v_load(gate + k)), v_load(up + k)));
    for (; k + 16 <= n; k += 16)
        v_store(out + k, v_mul(v_act(act, v_load(gate + k)), v_load(up + k)));
    if (k < n) {
        v16 g = v_load_n(gate + k, n - k), u = v_load_n(up + k, n - k);
        v_store_n(out + k, v_mul(v_act(act, g), u), n - k);
    }
}

INLINE v16 v_swiglu(const struct sl_swiglu *s, v16 gate, v16 up)
{
    v16 limit = v_set1(s->limit); /* the order of operands keeps NaN */
    v16 g = v_min(limit, gate), u = v_max(v_set1(-s->limit), v_min(limit, up));
    v16 e = v_exp(v_sub(v_set1(0.0f), v_mul(g, v_set1(s->alpha))));
    return v_mul(v_div(g, v_add(v_set1(1.0f), e)), v_add(u, v_set1(s->up_plus)));
}

INLINE v16 v_swiglu_late(const struct sl_swiglu *s, v16 gate, v16 up)
{
    v16 limit = v_set1(s->limit);
    return v_mul(v_min(limit, v_act(SL_ACT_SILU, gate)),
                 v_max(v_set1(-s->limit), v_min(limit, up)));
}

static void k_swiglu(const struct sl_swiglu *s, const float *gate, const float *up, int n,
                     float *out)
{
    int k = 0;
    for (; k + 16 <= n && s->late; k += 16)
        v_store(out + k, v_swiglu_late(s, v_load(gate + k), v_load(up + k)));
    for (; k + 16 <= n; k += 16)
        v_store(out + k, v_swiglu(s, v_load(gate + k), v_load(up + k)));
    if (k < n) {
        v16 g = v_load_n(gate + k, n - k), u = v_load_n(up + k, n - k);
        v_store_n(out + k, s->late ? v_swiglu_late(s, g, u) : v_swiglu(s, g, u), n - k);
    }
}

/* ---------------------------------------------------------------- matrices */

/* n_r x n_c sums in registers; both are constants after inlining. */
INLINE void tile(const int n_r, const int n_c, const float *w, int64_t ld_w, const float *x,
                 int64_t ld_x, int n_k, float *acc, bool first)
{
    v16 a[TILE_C][TILE_R];
    for (int c = 0; c < n_c; c++)
        for (int r = 0; r < n_r; r++)
            a[c][r] = first ? v_set1(0.0f) : v_load(acc + (c * SL_CPU_ROWS + r) * SL_CPU_LANES);
    int k = 0;
    for (; k + 16 <= n_k; k += 16) {
        v16 xv[TILE_C];
        for (int c = 0; c < n_c; c++)
            xv[c] = v_load(x + c * ld_x + k);
        for (int r = 0; r < n_r; r++) {
            v16 wv = v_load(w + r * ld_w + k);
            for (int c = 0; c < n_c; c++)
                a[c][r] = v_fma(wv, xv[c], a[c][r]);
        }
    }
    if (k < n_k) {
        int n = n_k - k;
        for (int r = 0; r < n_r; r++) {
            v16 wv = v_load_n(w + r * ld_w + k, n);
            for (int c = 0; c < n_c; c++)
                a[c][r] = v_fma_n(wv, v_load_n(x + c * ld_x + k, n), a[c][r], n);
        }
    }
    for (int c = 0; c < n_c; c++)
        for (int r = 0; r < n_r; r++)
            v_store(acc + (c * SL_CPU_ROWS + r) * SL_CPU_LANES, a[c][r]);
}

/* All tokens against n_r rows. */
INLINE void strip(const int n_r, const float *w, int64_t ld_w, const float *x, int64_t ld_x,
                  int n_tok, int n_k, float *acc, bool first)
{
    int t = 0;
#if TILE_C == 3
    for (; t + 3 <= n_tok && n_tok - t != 4; t += 3)
        tile(n_r, 3, w, ld_w, x + t * ld_x, ld_x, n_k, acc + t * SL_CPU_ROWS * SL_CPU_LANES, first);
    for (; t + 2 <= n_tok; t += 2)
        tile(n_r, 2, w, ld_w, x + t * ld_x, ld_x, n_k, acc + t * SL_CPU_ROWS * SL_CPU_LANES, first);
#endif
    for (; t < n_tok; t++)
        tile(n_r, 1, w, ld_w, x + t * ld_x, ld_x, n_k, acc + t * SL_CPU_ROWS * SL_CPU_LANES, first);
}

static void k_gemm(const float *w, int64_t ld_w, int n_rows, const float *x, int64_t ld_x,
                   int n_tok, int n_k, float *acc, bool first)
{
    int r = 0;
    for (; r + TILE_R <= n_rows; r += TILE_R)
        strip(TILE_R, w + r * ld_w, ld_w, x, ld_x, n_tok, n_k, acc + r * SL_CPU_LANES, first);
    for (; r < n_rows; r++)
        strip(1, w + r * ld_w, ld_w, x, ld_x, n_tok, n_k, acc + r * SL_CPU_LANES, first);
}

static void k_reduce(const float *acc, int n, float *out)
{
    if (n == SL_CPU_ROWS) {
        v_sum8(acc, out);
        return;
    }
    for (int i = 0; i < n; i++)
        out[i] = v_sum(v_load(acc + i * SL_CPU_LANES));
}

/* ---------------------------------------------------------------- attention */

/* -inf in the lanes of a whose position, from j on, is not in [lo, hi). */
static v16 only_seen(v16 a, int j, int lo, int hi)
{
    float s[16];
    v_store(s, a);
    for (int i = 0; i < 16; i++)
        if (j + i < lo || j + i >= hi)
            s[i] = -INFINITY;
    return v_load(s);
}

static void k_softmax(float *s, int lo, int hi, uint32_t skip, float scale, float softcap,
                      float *max, float *sum)
{
    int from = lo & ~15, to = (hi + 15) & ~15;
    v16 top = v_set1(-INFINITY), l = v_set1(0.0f), cap = v_set1(softcap);
    for (int j = from; j < to; j += 16) {
        v16 a = v_mul(v_load(s + j), v_set1(scale));
        if (softcap > 0.0f)
            a = v_mul(v_tanh(v_div(a, cap)), cap);
        if (j < lo || j + 16 > hi)
            a = only_seen(a, j, lo, hi);
        if (skip >> j / SL_SKIP_TILE & 1)
            a = v_set1(-INFINITY);
        v_store(s + j, a);
        top = v_max(a, top);
    }
    float m = v_hmax(top);
    for (int j = from; j < to; j += 16) {
        v16 p = v_exp(v_sub(v_load(s + j), v_set1(m)));
        v_store(s + j, p);
        l = v_add(l, p);
    }
    *max = m;
    *sum = v_sum(l);
}

static void k_merge(float *ml, float *acc, float m, float l, const float *o, int n_d)
{
    float top = m > ml[0] ? m : ml[0];
    float a = k_exp(ml[0] - top), b = k_exp(m - top);
    v16 va = v_set1(a), vb = v_set1(b);
    ml[0] = top;
    ml[1] = fmaf(l, b, ml[1] * a);
    for (int d = 0; d < n_d; d += 16)
        /* + 0: what a sum of zeros is worth must not depend on how many of them there were */
        v_store(acc + d, v_fma(v_add(v_load(o + d), v_set1(0.0f)), vb, v_mul(v_load(acc + d), va)));
}

static void k_finish(float *ml, float *acc, const float *sink, int n, float *out)
{
    float a = 1.0f, l = ml[1];
    if (sink != NULL) {
        float top = *sink > ml[0] ? *sink : ml[0];
        a = k_exp(ml[0] - top);
        l = fmaf(l, a, k_exp(*sink - top));
    }
    v16 va = v_set1(a), vl = v_set1(l);
    int d = 0;
    for (; d + 16 <= n; d += 16)
        v_store(out + d, v_div(v_mul(v_load(acc + d), va), vl));
    if (d < n)
        v_store_n(out + d, v_div(v_mul(v_load_n(acc + d, n - d), va), vl), n - d);
}

static void k_index_sum(const float *score, const float *w, int n_h, int n, bool add, float *out)
{
    for (int c = 0; c < n; c += 16) {
        v16 sum = add ? v_load(out + c) : v_set1(0.0f);
        for (int h = 0; h < n_h; h++)
            sum =
                v_fma(v_set1(w[h]), v_max(v_load(score + h * SL_CPU_SPLIT + c), v_set1(0.0f)), sum);
        v_store(out + c, sum);
    }
}

static float k_squares(const float *x, int64_t n)
{
    v16 acc = v_set1(0.0f);
    int64_t k = 0;
    for (; k + 16 <= n; k += 16)
        acc = v_fma(v_load(x + k), v_load(x + k), acc);
    if (k < n) {
        v16 a = v_load_n(x + k, (int)(n - k));
        acc = v_fma_n(a, a, acc, (int)(n - k));
    }
    return v_sum(acc);
}

static void k_hyper_read(const float *x, const float *w, int n_streams, int h, float *out)
{
    for (int d = 0; d < h; d += 16) {
        const int m = h - d < 16 ? h - d : 16;
        v16 sum = v_mul(v_set1(w[0]), v_load_n(x + d, m));
        for (int j = 1; j < n_streams; j++)
            sum = v_fma(v_set1(w[j]), v_load_n(x + (int64_t)j * h + d, m), sum);
        v_store_n(out + d, sum, m);
    }
}

static void k_hyper_write(float *x, const float *y, const float *post, const float *mix,
                          int n_streams, int h)
{
    SL_DCHECK(n_streams <= SL_MAX_STREAMS);
    for (int d = 0; d < h; d += 16) {
        const int m = h - d < 16 ? h - d : 16;
        v16 in[SL_MAX_STREAMS], added = v_load_n(y + d, m);
        for (int j = 0; j < n_streams; j++)
            in[j] = v_load_n(x + (int64_t)j * h + d, m);
        for (int i = 0; i < n_streams; i++) {
            v16 sum = v_mul(v_set1(post[i]), added);
            for (int j = 0; j < n_streams; j++)
                sum = v_fma(v_set1(mix[j * n_streams + i]), in[j], sum);
            v_store_n(x + (int64_t)i * h + d, sum, m);
        }
    }
}

static void fill_kernels(struct sl_cpu_kernels *k)
{
    k->squares = k_squares;
    k->hyper_read = k_hyper_read;
    k->hyper_write = k_hyper_write;
    k->index_sum = k_index_sum;
    k->gemm = k_gemm;
    k->reduce = k_reduce;
    k->rmsnorm = k_rmsnorm;
    k->layernorm = k_layernorm;
    k->act_alone = k_act_alone;
    k->xielu = k_xielu;
    k->unit = k_unit;
    k->max = k_max;
    k->add = k_add;
    k->scale = k_scale;
    k->softcap = k_softcap;
    k->act = k_act;
    k->swiglu = k_swiglu;
    k->softmax = k_softmax;
    k->merge = k_merge;
    k->finish = k_finish;
    k->exp = k_exp;
}
