/* SPDX-License-Identifier: MIT
 * Rows made of several tokens (struct sl_op_compress), included by recurrent_tmpl.c. Lanes are
 * columns. A sum is kept as softmax is made in one pass: its largest gate so far, the sum of the
 * weights exp(gate - largest), and the sum of these times kv. One that is empty has a largest gate
 * of minus infinity, whose weight is exp(-104), which is 0.
 */

struct pooled {
    v16 max, weights, sum;
};

INLINE struct pooled pooled_none(void)
{
    const v16 zero = v_set1(0.0f);
    return (struct pooled){v_set1(-INFINITY), zero, zero};
}

/* state: [3, W] from the column on. */
INLINE struct pooled pooled_load(const float *state, int64_t w, const int m)
{
    return (struct pooled){load_lanes(state, m), load_lanes(state + w, m),
                           load_lanes(state + 2 * w, m)};
}

INLINE void pooled_store(struct pooled p, float *state, int64_t w, const int m)
{
    store_lanes(state, p.max, m);
    store_lanes(state + w, p.weights, m);
    store_lanes(state + 2 * w, p.sum, m);
}

INLINE struct pooled pooled_add(struct pooled p, v16 gate, v16 kv)
{
    const v16 max = v_max(p.max, gate), old = v_exp(v_sub(p.max, max)),
              new = v_exp(v_sub(gate, max));
    return (struct pooled){max, v_fma(p.weights, old, new), v_fma(p.sum, old, v_mul(new, kv))};
}

/* Lanes from column c on; m is a constant where there are all sixteen. */
INLINE void compress_lanes(const struct sl_op_compress *a, int64_t row, int32_t n, int32_t pos,
                           int32_t c, const int m, const float *begin, float *end)
{
    const int64_t w = (int64_t)a->dim * (a->overlap ? 2 : 1), own = w - a->dim + c;
    struct pooled now = pooled_none(), next = pooled_none();
    if (begin != NULL) {
        now = pooled_load(begin + own, w, m);
        next = a->overlap ? pooled_load(begin + c, w, m) : next;
    }
    for (int32_t t = 0; t < n; t++) {
        const int32_t at = (pos + t) % a->ratio;
        float *kv = a->kv + (row + t) * w;
        const float *gate = a->gate + (row + t) * w, *bias = a->bias + at * w;
        now = pooled_add(now, v_add(load_lanes(gate + own, m), load_lanes(bias + own, m)),
                         load_lanes(kv + own, m));
        if (a->overlap)
            next = pooled_add(next, v_add(load_lanes(gate + c, m), load_lanes(bias + c, m)),
                              load_lanes(kv + c, m));
        if (at < a->ratio - 1)
            continue;
        store_lanes(kv + c, v_div(now.sum, now.weights), m);
        now = next;
        next = pooled_none();
    }
    pooled_store(now, end + own, w, m);
    if (a->overlap)
        pooled_store(next, end + c, w, m);
}

static void k_compress(const struct sl_op_compress *a, int64_t row, int32_t n, int32_t pos,
                       int32_t first, int32_t n_columns, const float *begin, float *end)
{
    int32_t c = 0;
    for (; c + 16 <= n_columns; c += 16)
        compress_lanes(a, row, n, pos, first + c, 16, begin, end);
    if (c < n_columns)
        compress_lanes(a, row, n, pos, first + c, n_columns - c, begin, end);
}
