/* SPDX-License-Identifier: MIT
 * RWKV-7 in terms of the sixteen lanes of vec_*.h, included by recurrent_tmpl.c. Lanes are columns
 * of a head's state, or channels; sums over a head's channels are made as in recurrent_tmpl.c.
 */

/* ---------------------------------------------------------------- tokens mixed with the last one
 */

INLINE void shift_lanes(const struct sl_op_token_shift *a, const int lanes, int64_t row, int32_t n,
                        int32_t channel, const float *begin, float *end)
{
    const float *x = (const float *)a->x;
    v16 before = begin != NULL ? load_lanes(begin + channel, lanes) : v_set1(0.0f);
    for (int32_t t = 0; t < n; t++) {
        const int64_t at = (row + t) * a->n_channels + channel;
        const v16 now = load_lanes(x + at, lanes), delta = v_sub(before, now);
        for (int32_t i = 0; i < a->n_outs; i++) {
            v16 w = load_lanes(a->w + (int64_t)i * a->n_channels + channel, lanes);
            store_lanes((float *)a->out + i * a->ld_out + at, v_fma(delta, w, now), lanes);
        }
        before = now;
    }
    store_lanes(end + channel, before, lanes);
}

static void k_shift(const struct sl_op_token_shift *a, int64_t row, int32_t n, int32_t first,
                    int32_t n_channels, const float *begin, float *end)
{
    const int32_t to = first + n_channels;
    int32_t c = first;
    for (; c + 16 <= to; c += 16)
        shift_lanes(a, 16, row, n, c, begin, end);
    if (c < to)
        shift_lanes(a, to - c, row, n, c, begin, end);
}

/* ---------------------------------------------------------------- the recurrence */

#define WKV_DECAY (-0.6065306597126334f) /* -exp(-1/2) */

/* Channels i .. i + lanes of a head, behind the sum of squares. */
INLINE void wkv_lanes(const struct sl_op_wkv7 *a, const int lanes, int64_t at, int64_t channel,
                      v16 by)
{
    v16 k = load_lanes(a->k + at, lanes), one = v_set1(1.0f);
    v16 rate = v_gated(one, load_lanes(a->a + at, lanes));
    v16 kk = v_mul(v_mul(k, load_lanes(a->k_k + channel, lanes)), by);
    store_lanes(a->kk + at, kk, lanes);
    store_lanes(a->a + at, v_mul(kk, rate), lanes);
    k = v_fma(v_mul(k, v_sub(rate, one)), load_lanes(a->k_a + channel, lanes), k);
    store_lanes(a->k + at, k, lanes);
    v16 decay = v_exp(v_gated(v_set1(WKV_DECAY), load_lanes(a->w + at, lanes)));
    store_lanes(a->w + at, decay, lanes);
    if (a->v_mix == NULL)
        return;
    v16 v = load_lanes(a->v + at, lanes), first = load_lanes(a->v_first + at, lanes);
    v = v_fma(v_sub(first, v), v_gated(one, load_lanes(a->v_mix + at, lanes)), v);
    store_lanes(a->v + at, v, lanes);
}

static void k_wkv_inputs(const struct sl_op_wkv7 *a, int64_t row)
{
    const int n = a->head_dim;
    for (int32_t h = 0; h < a->n_heads; h++) {
        const int64_t channel = (int64_t)h * n, at = row * a->n_heads * n + channel;
        v16 acc = v_set1(0.0f);
        for (int i = 0; i < n; i += 16) {
            const int m = lanes_at(i, n);
            v16 kk = v_mul(v_load_n(a->k + at + i, m), v_load_n(a->k_k + channel + i, m));
            acc = v_fma_n(kk, kk, acc, m);
        }
        const float length = sqrtf(v_sum(acc));
        v16 by = v_set1(1.0f / (length > 1e-12f ? length : 1e-12f));
        int i = 0;
        for (; i + 16 <= n; i += 16)
            wkv_lanes(a, 16, at + i, channel + i, by);
        if (i < n)
            wkv_lanes(a, n - i, at + i, channel + i, by);
    }
}

struct wkv_token { /* of a head */
    const float *r, *w, *k, *v, *b, *kk;
};

INLINE struct wkv_token wkv_token(const struct sl_op_wkv7 *a, int64_t row, int32_t head)
{
    const int64_t at = (row * a->n_heads + head) * a->head_dim;
    return (struct wkv_token){a->r + at, a->w + at, a->k + at, a->v + at, a->a + at, a->kk + at};
}

/* seen = kk S */
INLINE void wkv_read(const int n_v, const int lanes, const float *s, int64_t ld, int n,
                     const float *kk, v16 *seen)
{
    for (int v = 0; v < n_v; v++)
        seen[v] = v_set1(0.0f);
    for (int i = 0; i < n; i++)
        for (int v = 0; v < n_v; v++)
            seen[v] = v_fma(v_set1(kk[i]), load_lanes(s + i * ld + 16 * v, lanes), seen[v]);
}

/* S = w S - b seen + k v, out = r S; then, where there is a next token, seen is what its kk sees.
 */
INLINE void wkv_step(const int n_v, const int lanes, const float *from, int64_t ld_from, float *to,
                     int64_t ld_to, int n, const struct wkv_token *t, int32_t first,
                     const float *next_kk, v16 *seen, v16 *out)
{
    v16 minus[REC_V], value[REC_V];
    for (int v = 0; v < n_v; v++) {
        minus[v] = v_sub(v_set1(0.0f), seen[v]);
        value[v] = load_lanes(t->v + first + 16 * v, lanes);
        out[v] = seen[v] = v_set1(0.0f);
    }
    for (int i = 0; i < n; i++) {
        v16 r = v_set1(t->r[i]), w = v_set1(t->w[i]), b = v_set1(t->b[i]), k = v_set1(t->k[i]);
        v16 kk = v_set1(next_kk != NULL ? next_kk[i] : 0.0f);
        for (int v = 0; v < n_v; v++) {
            v16 s = v_mul(w, load_lanes(from + i * ld_from + 16 * v, lanes));
            s = v_fma(k, value[v], v_fma(b, minus[v], s));
            out[v] = v_fma(r, s, out[v]);
            seen[v] = v_fma(kk, s, seen[v]);
            store_lanes(to + i * ld_to + 16 * v, s, lanes);
        }
    }
}

INLINE void wkv_columns(const struct sl_op_wkv7 *a, const int n_v, const int lanes, int64_t row,
                        int32_t n, int32_t head, int32_t first, const float *begin, float *end)
{
    _Alignas(64) float buf[SL_MAX_STATE_DIM * 16 * REC_V];
    const int dim = a->head_dim;
    const int64_t at = (int64_t)head * dim * dim + first, ld_buf = 16 * n_v;
    v16 seen[REC_V], out[REC_V];
    const float *from = begin + at;
    int64_t ld_from = dim;
    if (begin == NULL) {
        memset(buf, 0, (size_t)(dim * ld_buf) * sizeof *buf);
        from = buf;
        ld_from = ld_buf;
    }
    struct wkv_token now = wkv_token(a, row, head);
    wkv_read(n_v, lanes, from, ld_from, dim, now.kk, seen);
    for (int32_t t = 0; t < n; t++) {
        const bool last = t + 1 == n;
        const struct wkv_token next = last ? now : wkv_token(a, row + t + 1, head);
        float *o = a->out + ((row + t) * a->n_heads + head) * dim + first;
        wkv_step(n_v, lanes, from, ld_from, last ? end + at : buf, last ? dim : ld_buf, dim, &now,
                 first, last ? NULL : next.kk, seen, out);
        for (int v = 0; v < n_v; v++)
            store_lanes(o + 16 * v, out[v], lanes);
        from = buf;
        ld_from = ld_buf;
        now = next;
    }
}

static void k_wkv(const struct sl_op_wkv7 *a, int64_t row, int32_t n, int32_t head, int32_t first,
                  int32_t n_columns, const float *begin, float *end)
{
    const int32_t to = first + n_columns;
    int32_t c = first;
    for (; c + 16 * REC_V <= to; c += 16 * REC_V)
        wkv_columns(a, REC_V, 16, row, n, head, c, begin, end);
    for (; c + 16 <= to; c += 16)
        wkv_columns(a, 1, 16, row, n, head, c, begin, end);
    if (c < to)
        wkv_columns(a, 1, to - c, row, n, head, c, begin, end);
}

/* ---------------------------------------------------------------- what comes out */

/* The sum of squares of x - mean. */
INLINE float wkv_squares(const float *x, int n, v16 mean)
{
    v16 acc = v_set1(0.0f);
    for (int i = 0; i < n; i += 16) {
        const int m = lanes_at(i, n);
        v16 d = v_sub(v_load_n(x + i, m), mean);
        acc = v_fma_n(d, d, acc, m);
    }
    return v_sum(acc);
}

static void k_wkv_out(const struct sl_op_wkv7_out *a, int64_t row, int32_t head)
{
    const int n = a->head_dim;
    const int64_t channel = (int64_t)head * n, at = row * a->n_heads * n + channel;
    v16 sum = v_set1(0.0f), bonus = v_set1(0.0f), one = v_set1(1.0f);
    for (int i = 0; i < n; i += 16) {
        const int m = lanes_at(i, n);
        v16 rk = v_mul(v_load_n(a->r + at + i, m), v_load_n(a->k + at + i, m));
        sum = v_fma_n(one, v_load_n(a->x + at + i, m), sum, m);
        bonus = v_fma_n(rk, v_load_n(a->r_k + channel + i, m), bonus, m);
    }
    const v16 mean = v_set1(v_sum(sum) / (float)n), more = v_set1(v_sum(bonus));
    const float squares = wkv_squares(a->x + at, n, mean);
    const v16 scale = v_set1(1.0f / sqrtf(squares / (float)n + a->eps));
    for (int i = 0; i < n; i += 16) {
        const int m = lanes_at(i, n);
        v16 y = v_mul(v_sub(v_load_n(a->x + at + i, m), mean), scale);
        y = v_fma(y, v_load_n(a->w + channel + i, m), v_load_n(a->b + channel + i, m));
        y = v_fma(more, v_load_n(a->v + at + i, m), y);
        v_store_n((float *)a->out + at + i, v_mul(y, v_load_n(a->g + at + i, m)), m);
    }
}
