/* SPDX-License-Identifier: MIT
 * Recurrences in terms of the sixteen lanes of vec_*.h, included by recurrent_c.c, recurrent_avx2.c
 * and recurrent_avx512.c, which say how many vectors of columns are computed at once (REC_V).
 * Lanes are columns, which have nothing to do with one another; what is added up is added up in a
 * lane, token after token.
 *
 * Of more than one token, a block of columns of the state is kept in a buffer that the first level
 * of cache holds, and a token passes over it once: the delta rule adds what a token brings, reads
 * the output, and applies the next token's decay and reads what its key sees, in one pass. Of one
 * token the page is read once from memory, and written where it was read.
 */
#include "cpu/exp_tmpl.c"

/* ln(1 + exp(x)) = max(x, 0) + ln(1 + y), y = exp(-|x|): of s = y / (2 + y), which is at most 1/3,
 * twice the series of artanh up to s^15 / 15. NaN stays NaN. */
INLINE v16 v_softplus(v16 x)
{
    v16 y = v_exp(v_sub(v_set1(0.0f), v_abs(x)));
    v16 s = v_div(y, v_add(y, v_set1(2.0f))), z = v_mul(s, s), twice = v_add(s, s);
    v16 p = v_set1(1.0f / 15);
    p = v_fma(p, z, v_set1(1.0f / 13));
    p = v_fma(p, z, v_set1(1.0f / 11));
    p = v_fma(p, z, v_set1(1.0f / 9));
    p = v_fma(p, z, v_set1(1.0f / 7));
    p = v_fma(p, z, v_set1(1.0f / 5));
    p = v_fma(p, z, v_set1(1.0f / 3));
    return v_add(v_max(v_set1(0.0f), x), v_fma(v_mul(p, z), twice, twice));
}

/* x / (1 + exp(-g)) */
INLINE v16 v_gated(v16 x, v16 g)
{
    return v_div(x, v_add(v_set1(1.0f), v_exp(v_sub(v_set1(0.0f), g))));
}

/* Loops over vectors are compiled for whole ones (n is 16) and for the last one apart. */
INLINE v16 load_lanes(const float *p, const int n)
{
    return n == 16 ? v_load(p) : v_load_n(p, n);
}

INLINE void store_lanes(float *p, v16 x, const int n)
{
    if (n == 16)
        v_store(p, x);
    else
        v_store_n(p, x, n);
}

static int lanes_at(int64_t i, int64_t n)
{
    return n - i < 16 ? (int)(n - i) : 16;
}

/* ---------------------------------------------------------------- convolutions */

/* Weights of tap k of some channels, which a token's kernels have side by side. */
INLINE v16 conv_taps(const struct sl_op_short_conv *a, const int n_taps, const int lanes, int k,
                     int64_t row, int64_t channel)
{
    _Alignas(64) float w[16] = {0};
    if (a->kernels == NULL)
        return load_lanes(a->w + (int64_t)k * a->n_channels + channel, lanes);
    const int64_t first = row * (a->n_channels - a->n_plain) + channel - a->n_plain;
    for (int i = 0; i < lanes; i++)
        w[i] = a->kernels[(first + i) * n_taps + k];
    return v_load(w);
}

/* Columns i .. i + lanes of a part: in [n_taps] are rows of the part, the last yet to be made. */
INLINE void conv_lanes(const struct sl_op_short_conv *a, const int n_taps, const int lanes,
                       float *const *in, int64_t row, int64_t channel, int i)
{
    const int64_t at = row * a->ld + channel, out_at = row * a->n_channels + channel;
    v16 now = load_lanes(a->x + at, lanes);
    if (a->pre != NULL)
        now = v_mul(now, load_lanes(a->pre + at, lanes));
    v_store(in[n_taps - 1] + i, now);
    v16 sum = a->bias != NULL ? load_lanes(a->bias + channel, lanes) : v_set1(0.0f);
    for (int k = 0; k < n_taps; k++)
        sum = v_fma(conv_taps(a, n_taps, lanes, k, row, channel),
                    k < n_taps - 1 ? v_load(in[k] + i) : now, sum);
    if (a->silu)
        sum = v_gated(sum, sum);
    if (a->post != NULL)
        sum = v_mul(sum, load_lanes(a->post + at, lanes));
    store_lanes((a->out != NULL ? a->out : (float *)a->act) + out_at, sum, lanes);
}

INLINE void conv_token(const struct sl_op_short_conv *a, const int n_taps, float *const *in,
                       int64_t row, int32_t first, int32_t n)
{
    int i = 0;
    for (; i + 16 <= n; i += 16)
        conv_lanes(a, n_taps, 16, in, row, first + i, i);
    if (i < n)
        conv_lanes(a, n_taps, n - i, in, row, first + i, i);
}

static void k_conv(const struct sl_op_short_conv *a, int64_t row, int32_t n, int32_t first,
                   int32_t n_channels, const float *begin, float *end)
{
    _Alignas(64) float ring[SL_MAX_CONV_TAPS][SL_REC_CONV];
    float *in[SL_MAX_CONV_TAPS]; /* the oldest first */
    const int32_t taps = a->n_taps;
    const int64_t width = a->n_channels - a->n_plain, column = first - a->n_plain;
    for (int32_t k = 0; k < taps; k++) {
        in[k] = ring[k];
        for (int32_t i = 0; i < n_channels && k < taps - 1; i += 16)
            v_store(in[k] + i, begin == NULL ? v_set1(0.0f)
                                             : v_load_n(begin + k * width + column + i,
                                                        lanes_at(i, n_channels)));
    }
    for (int32_t t = 0; t < n; t++) {
        switch (taps) {
        case 4:
            conv_token(a, 4, in, row + t, first, n_channels);
            break;
        case 3:
            conv_token(a, 3, in, row + t, first, n_channels);
            break;
        default:
            conv_token(a, taps, in, row + t, first, n_channels);
        }
        float *oldest = in[0];
        memmove(in, in + 1, (size_t)(taps - 1) * sizeof *in);
        in[taps - 1] = oldest;
    }
    for (int32_t k = 0; k < taps - 1; k++)
        memcpy(end + k * width + column, in[k], (size_t)n_channels * sizeof *end);
}

/* ---------------------------------------------------------------- the gated delta rule */

/* x of length 1, times scale. */
static void unit(float *x, int n, float eps, float scale)
{
    v16 acc = v_set1(0.0f);
    for (int i = 0; i < n; i += 16) {
        const int m = lanes_at(i, n);
        v16 v = v_load_n(x + i, m);
        acc = v_fma_n(v, v, acc, m);
    }
    v16 by = v_set1(scale / sqrtf(v_sum(acc) + eps));
    for (int i = 0; i < n; i += 16) {
        const int m = lanes_at(i, n);
        v_store_n(x + i, v_mul(v_load_n(x + i, m), by), m);
    }
}

/* exp(a softplus(in + bias)), a that of each or, by 0, the same of all */
static void decays(float *in, const float *bias, const float *a, int by, int n)
{
    for (int i = 0; i < n; i += 16) {
        const int m = lanes_at(i, n);
        v16 dt = v_softplus(v_add(v_load_n(in + i, m), v_load_n(bias + i, m)));
        v16 rate = by != 0 ? v_load_n(a + i, m) : v_set1(*a);
        v_store_n(in + i, v_exp(v_mul(rate, dt)), m);
    }
}

/* exp(bound sigmoid(rate (in + bias))) */
static void bounded_decays(float *in, const float *bias, float rate, float bound, int n)
{
    for (int i = 0; i < n; i += 16) {
        const int m = lanes_at(i, n);
        v16 x = v_mul(v_set1(rate), v_add(v_load_n(in + i, m), v_load_n(bias + i, m)));
        v_store_n(in + i, v_exp(v_gated(v_set1(bound), x)), m);
    }
}

/* The decays of a head's rows. */
static void row_decays(const struct sl_op_delta_rule *a, int64_t row, int h)
{
    float *in = a->decay_in + (row * a->n_heads + h) * a->k_dim;
    const float *bias = a->dt_bias + h * a->k_dim;
    if (a->bound != 0)
        bounded_decays(in, bias, -a->a[h], a->bound, a->k_dim);
    else
        decays(in, bias, a->a + h, 0, a->k_dim);
}

static void k_delta_inputs(const struct sl_op_delta_rule *a, int64_t row)
{
    float *beta = a->beta_in + row * a->n_heads;
    for (int h = 0; h < a->n_k_heads; h++) {
        unit(a->q + row * a->ld + (int64_t)h * a->k_dim, a->k_dim, a->l2_eps, a->scale);
        unit(a->k + row * a->ld + (int64_t)h * a->k_dim, a->k_dim, a->l2_eps, 1);
    }
    for (int h = 0; h < a->n_heads && a->by_row; h++)
        row_decays(a, row, h);
    if (!a->by_row)
        decays(a->decay_in + row * a->n_heads, a->dt_bias, a->a, 1, a->n_heads);
    for (int i = 0; i < a->n_heads; i += 16) {
        const int m = lanes_at(i, a->n_heads);
        v_store_n(beta + i, v_gated(v_set1(a->beta_scale), v_load_n(beta + i, m)), m);
    }
}

/* A token of a head. */
struct delta_token {
    const float *q, *k, *decay;
    int64_t by; /* from a row's decay to the next */
};

INLINE struct delta_token delta_token(const struct sl_op_delta_rule *a, int64_t row, int32_t head)
{
    const int32_t k_head = a->tiled ? head % a->n_k_heads : head / (a->n_heads / a->n_k_heads);
    const int64_t k_at = row * a->ld + (int64_t)k_head * a->k_dim, at = row * a->n_heads + head;
    return (struct delta_token){a->q + k_at, a->k + k_at,
                                a->decay_in + (a->by_row ? at * a->k_dim : at), a->by_row};
}

/* seen = k (decay S) */
INLINE void delta_read(const int n_v, const int lanes, const float *s, int64_t ld, int n,
                       const struct delta_token *t, v16 *seen)
{
    for (int v = 0; v < n_v; v++)
        seen[v] = v_set1(0.0f);
    for (int i = 0; i < n; i++) {
        v16 k = v_set1(t->k[i]), decay = v_set1(t->decay[i * t->by]);
        for (int v = 0; v < n_v; v++)
            seen[v] = v_fma(k, v_mul(decay, load_lanes(s + i * ld + 16 * v, lanes)), seen[v]);
    }
}

/* S = (decayed ? S : decay S) + k delta, out = q S; then, where there is a next token, S is stored
 * decayed for it, and delta is what its key sees. */
INLINE void delta_step(const int n_v, const int lanes, const bool decayed, const float *from,
                       int64_t ld_from, float *to, int64_t ld_to, int n,
                       const struct delta_token *t, const bool more, const struct delta_token *next,
                       v16 *delta, v16 *out)
{
    v16 seen[REC_V];
    for (int v = 0; v < n_v; v++)
        out[v] = seen[v] = v_set1(0.0f);
    for (int i = 0; i < n; i++) {
        v16 k = v_set1(t->k[i]), q = v_set1(t->q[i]), decay = v_set1(t->decay[i * t->by]);
        for (int v = 0; v < n_v; v++) {
            v16 s = load_lanes(from + i * ld_from + 16 * v, lanes);
            s = v_fma(k, delta[v], decayed ? s : v_mul(decay, s));
            out[v] = v_fma(q, s, out[v]);
            if (more) {
                s = v_mul(v_set1(next->decay[i * next->by]), s);
                seen[v] = v_fma(v_set1(next->k[i]), s, seen[v]);
            }
            store_lanes(to + i * ld_to + 16 * v, s, lanes);
        }
    }
    for (int v = 0; v < n_v && more; v++)
        delta[v] = seen[v];
}

/* delta = beta (v - what is seen) */
INLINE void delta_error(const struct sl_op_delta_rule *a, const int n_v, const int lanes,
                        int64_t row, int32_t head, int32_t first, v16 *delta)
{
    const float *v = a->v + row * a->ld + (int64_t)head * a->v_dim + first;
    v16 beta = v_set1(a->beta_in[row * a->n_heads + head]);
    for (int i = 0; i < n_v; i++)
        delta[i] = v_mul(beta, v_sub(load_lanes(v + 16 * i, lanes), delta[i]));
}

INLINE void delta_columns(const struct sl_op_delta_rule *a, const int n_v, const int lanes,
                          int64_t row, int32_t n, int32_t head, int32_t first, const float *begin,
                          float *end)
{
    _Alignas(64) float buf[SL_MAX_STATE_DIM * 16 * REC_V];
    const int64_t at = (int64_t)head * a->k_dim * a->v_dim + first, ld = a->v_dim,
                  ld_buf = 16 * n_v;
    const int kd = a->k_dim;
    v16 delta[REC_V], out[REC_V];
    struct delta_token now = delta_token(a, row, head);
    const float *from = begin + at;
    int64_t ld_from = ld;
    if (begin == NULL) {
        memset(buf, 0, (size_t)(kd * ld_buf) * sizeof *buf);
        from = buf;
        ld_from = ld_buf;
    }
    delta_read(n_v, lanes, from, ld_from, kd, &now, delta);
    for (int32_t t = 0; t < n; t++) {
        const struct delta_token next =
            t + 1 < n ? delta_token(a, row + t + 1, head) : now; /* unused where there is none */
        float *o = a->out + ((row + t) * a->n_heads + head) * ld + first;
        delta_error(a, n_v, lanes, row + t, head, first, delta);
        if (n == 1)
            delta_step(n_v, lanes, false, from, ld_from, end + at, ld, kd, &now, false, &now, delta,
                       out);
        else if (t == 0)
            delta_step(n_v, lanes, false, from, ld_from, buf, ld_buf, kd, &now, true, &next, delta,
                       out);
        else if (t + 1 < n)
            delta_step(n_v, lanes, true, buf, ld_buf, buf, ld_buf, kd, &now, true, &next, delta,
                       out);
        else
            delta_step(n_v, lanes, true, buf, ld_buf, end + at, ld, kd, &now, false, &now, delta,
                       out);
        for (int v = 0; v < n_v; v++)
            store_lanes(o + 16 * v, out[v], lanes);
        now = next;
    }
}

static void k_delta(const struct sl_op_delta_rule *a, int64_t row, int32_t n, int32_t head,
                    int32_t first, int32_t n_columns, const float *begin, float *end)
{
    const int32_t to = first + n_columns;
    int32_t c = first;
    for (; c + 16 * REC_V <= to; c += 16 * REC_V)
        delta_columns(a, REC_V, 16, row, n, head, c, begin, end);
    for (; c + 16 <= to; c += 16)
        delta_columns(a, 1, 16, row, n, head, c, begin, end);
    if (c < to)
        delta_columns(a, 1, to - c, row, n, head, c, begin, end);
}

/* ---------------------------------------------------------------- state space models */

/* The step of each channel of a part: dt and, but by_state, exp(dt a). */
static void ssm_steps(const struct sl_op_ssm *a, int64_t row, int32_t first, int32_t n, float *dt,
                      float *decay)
{
    float by_head[2][SL_REC_SSM];
    const int32_t h0 = first / a->head_dim, h1 = (first + n - 1) / a->head_dim + 1;
    for (int32_t h = h0; h < h1; h += 16) {
        const int m = lanes_at(h, h1);
        v16 x = v_load_n(a->dt_in + row * a->ld_dt + h, m);
        if (a->dt_bias != NULL)
            x = v_add(x, v_load_n(a->dt_bias + h, m));
        /* this order of operands keeps NaN */
        x = v_min(v_set1(a->dt_max), v_max(v_set1(a->dt_min), v_softplus(x)));
        v_store_n(by_head[0] + h - h0, x, m);
        if (!a->by_state)
            v_store_n(by_head[1] + h - h0, v_exp(v_mul(x, v_load_n(a->a + h, m))), m);
    }
    for (int32_t i = 0, h = 0, left = (h0 + 1) * a->head_dim - first; i < n; h++) {
        for (const int32_t to = SL_MIN(n, i + left); i < to; i++) {
            dt[i] = by_head[0][h];
            decay[i] = a->by_state ? 0 : by_head[1][h];
        }
        left = a->head_dim;
    }
}

struct ssm_part {
    const float *from; /* [n_state], rows ld_from apart */
    float *to;
    int64_t ld_from, ld_to;
    const float *b, *c, *a; /* a: by_state, of the first channel */
    const float *x, *dt, *decay, *d;
    float *out;
};

/* A token of n_v vectors of channels. */
INLINE void ssm_lanes(const struct sl_op_ssm *a, const int n_v, const int lanes,
                      const bool by_state, const struct ssm_part *p, int32_t i)
{
    v16 in[REC_V], decay[REC_V], sum[REC_V];
    for (int v = 0; v < n_v; v++) {
        decay[v] = load_lanes((by_state ? p->dt : p->decay) + i + 16 * v, lanes);
        in[v] = v_mul(load_lanes(p->dt + i + 16 * v, lanes), load_lanes(p->x + i + 16 * v, lanes));
        sum[v] = v_set1(0.0f);
    }
    for (int32_t s = 0; s < a->n_state; s++) {
        v16 b = v_set1(p->b[s]), c = v_set1(p->c[s]);
        for (int v = 0; v < n_v; v++) {
            const int64_t at = i + 16 * v;
            v16 by = decay[v];
            if (by_state)
                by = v_exp(v_mul(by, load_lanes(p->a + (int64_t)s * a->n_heads + at, lanes)));
            v16 h = v_fma(in[v], b, v_mul(by, load_lanes(p->from + s * p->ld_from + at, lanes)));
            store_lanes(p->to + s * p->ld_to + at, h, lanes);
            sum[v] = v_fma(h, c, sum[v]);
        }
    }
    for (int v = 0; v < n_v; v++) {
        const int64_t at = i + 16 * v;
        if (p->d != NULL)
            sum[v] = v_fma(load_lanes(p->d + at, lanes), load_lanes(p->x + at, lanes), sum[v]);
        store_lanes(p->out + at, sum[v], lanes);
    }
}

static void ssm_token(const struct sl_op_ssm *a, const struct ssm_part *p, int32_t n)
{
    int32_t i = 0;
    if (a->by_state) {
        for (; i + 16 <= n; i += 16)
            ssm_lanes(a, 1, 16, true, p, i);
        if (i < n)
            ssm_lanes(a, 1, n - i, true, p, i);
        return;
    }
    for (; i + 16 * REC_V <= n; i += 16 * REC_V)
        ssm_lanes(a, REC_V, 16, false, p, i);
    for (; i + 16 <= n; i += 16)
        ssm_lanes(a, 1, 16, false, p, i);
    if (i < n)
        ssm_lanes(a, 1, n - i, false, p, i);
}

static void k_ssm(const struct sl_op_ssm *a, int64_t row, int32_t n, int32_t first,
                  int32_t n_channels, const float *begin, float *end)
{
    _Alignas(64) float buf[SL_MAX_STATE_DIM * SL_REC_SSM];
    float dt[SL_REC_SSM], decay[SL_REC_SSM], d[SL_REC_SSM];
    const int64_t stride = (int64_t)a->n_heads * a->head_dim;
    const int32_t group = first / a->head_dim / (a->n_heads / a->n_groups);
    struct ssm_part p = {.from = begin + first, .ld_from = stride, .dt = dt, .decay = decay};
    p.a = a->by_state ? a->a + first : NULL;
    p.d = a->d != NULL ? d : NULL;
    for (int32_t i = 0; i < n_channels && a->d != NULL; i++)
        d[i] = a->d[(first + i) / a->head_dim];
    if (begin == NULL) {
        memset(buf, 0, (size_t)(a->n_state * SL_REC_SSM) * sizeof *buf);
        p.from = buf;
        p.ld_from = SL_REC_SSM;
    }
    for (int32_t t = 0; t < n; t++, row++) {
        p.to = t + 1 < n ? buf : end + first;
        p.ld_to = t + 1 < n ? SL_REC_SSM : stride;
        p.b = a->b + row * a->ld_bc + (int64_t)group * a->n_state;
        p.c = a->c + row * a->ld_bc + (int64_t)group * a->n_state;
        p.x = a->x + row * a->ld_x + first;
        p.out = a->out + row * stride + first;
        ssm_steps(a, row, first, n_channels, dt, decay);
        ssm_token(a, &p, n_channels);
        p.from = buf;
        p.ld_from = SL_REC_SSM;
    }
}

/* ---------------------------------------------------------------- linear recurrent units */

/* 1 - exp(x) of x <= 0: near 0 by its series up to x^7 / 5040, whose next term is below 2^-25 of
 * the sum; 1 minus an exponential near 1 would lose most of its digits. NaN stays NaN. */
INLINE v16 v_one_minus_exp(v16 x)
{
    v16 p = v_set1(0x1.a01a02p-13f);
    p = v_fma(p, x, v_set1(0x1.6c16c2p-10f));
    p = v_fma(p, x, v_set1(0x1.111112p-7f));
    p = v_fma(p, x, v_set1(0x1.555556p-5f));
    p = v_fma(p, x, v_set1(0x1.555556p-3f));
    p = v_fma(p, x, v_set1(0.5f));
    p = v_fma(p, x, v_set1(1.0f));
    return v_select_lt(x, v_set1(-0.375f), v_sub(v_set1(1.0f), v_exp(x)),
                       v_mul(p, v_sub(v_set1(0.0f), x)));
}

INLINE void rglru_lanes(const struct sl_op_rglru *a, const int lanes, int64_t row, int32_t n,
                        int32_t channel, const float *begin, float *end)
{
    const v16 rate = load_lanes(a->a + channel, lanes);
    v16 h = begin != NULL ? load_lanes(begin + channel, lanes) : v_set1(0.0f);
    for (int32_t t = 0; t < n; t++) {
        const int64_t at = (row + t) * a->n_channels + channel;
        v16 log = v_gated(rate, load_lanes(a->decay_gate + at, lanes));
        v16 in = v_gated(load_lanes(a->x + at, lanes), load_lanes(a->in_gate + at, lanes));
        if (t > 0 || begin != NULL)
            in = v_mul(in, v_sqrt(v_one_minus_exp(v_add(log, log))));
        h = v_fma(v_exp(log), h, in);
        store_lanes(a->out + at, h, lanes);
    }
    store_lanes(end + channel, h, lanes);
}

/* begin NULL: position 0. */
static void k_rglru(const struct sl_op_rglru *a, int64_t row, int32_t n, int32_t first,
                    int32_t n_channels, const float *begin, float *end)
{
    const int32_t to = first + n_channels;
    int32_t c = first;
    for (; c + 16 <= to; c += 16)
        rglru_lanes(a, 16, row, n, c, begin, end);
    if (c < to)
        rglru_lanes(a, to - c, row, n, c, begin, end);
}

/* ---------------------------------------------------------------- norms with a gate */

INLINE v16 gate_act(v16 x, v16 gate, const bool sigmoid)
{
    return v_gated(sigmoid ? x : v_mul(x, gate), gate);
}

/* out = x, or x act(gate); gives the sum of squares. */
INLINE float gated_squares(const float *x, const float *gate, const bool sigmoid, int n, float *out)
{
    v16 acc = v_set1(0.0f);
    for (int i = 0; i < n; i += 16) {
        const int m = lanes_at(i, n);
        v16 y = v_load_n(x + i, m);
        if (gate != NULL)
            y = gate_act(y, v_load_n(gate + i, m), sigmoid);
        v_store_n(out + i, y, m);
        acc = v_fma_n(y, y, acc, m);
    }
    return v_sum(acc);
}

static void k_gated_norm(const struct sl_op_gated_norm *a, int64_t row, int32_t group)
{
    const int64_t at = (int64_t)group * a->dim;
    const float *gate = a->gate != NULL ? a->gate + row * a->ld_gate + at : NULL;
    const float *w = a->w != NULL ? a->w + (a->shared_w ? 0 : at) : NULL;
    float *out = (float *)a->out + row * a->ld_out + at;
    const bool before = a->gate_first || a->bare;
    const float sum = gated_squares(a->x + row * a->n_groups * a->dim + at, before ? gate : NULL,
                                    a->sigmoid, a->dim, out);
    v16 scale = v_set1(1.0f / sqrtf(sum / (float)a->dim + a->eps));
    for (int i = 0; i < a->dim && !a->bare; i += 16) {
        const int m = lanes_at(i, a->dim);
        v16 y = v_mul(v_load_n(out + i, m), scale);
        if (w != NULL)
            y = v_mul(y, v_load_n(w + i, m));
        if (!before && gate != NULL)
            y = gate_act(y, v_load_n(gate + i, m), a->sigmoid);
        v_store_n(out + i, y, m);
    }
}

#include "cpu/wkv_tmpl.c"

#include "cpu/compress_tmpl.c"

static void fill_recurrent(struct sl_rec_kernels *k)
{
    k->conv = k_conv;
    k->delta_inputs = k_delta_inputs;
    k->delta = k_delta;
    k->ssm = k_ssm;
    k->rglru = k_rglru;
    k->gated_norm = k_gated_norm;
    k->shift = k_shift;
    k->wkv_inputs = k_wkv_inputs;
    k->wkv = k_wkv;
    k->wkv_out = k_wkv_out;
    k->compress = k_compress;
}
