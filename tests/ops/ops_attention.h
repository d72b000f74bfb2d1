/* SPDX-License-Identifier: MIT
 * ops_attention.h - sequences in pages for the checks of qk_norm_rope_kv_store and attention: the
 * same queries, keys and values run through any chunking, page size and page order.
 */
#ifndef TESTS_OPS_ATTENTION_H
#define TESTS_OPS_ATTENTION_H

#include "ops_util.h"

struct att_case {
    const char *name;
    int n_tokens, n_heads, n_kv_heads, head_dim;
    enum sl_dtype kv;
    int window;
    float softcap;
    bool sinks, norms;
    int rope_dims;
    enum sl_rope_pairing pairing;
};

struct att_data {
    const struct att_case *c;
    float *q, *k, *v; /* [T, heads, hd], what the projections would give */
    float *q_norm, *k_norm, *sinks, *inv_freq;
    struct sl_rope rope;
};

struct att_way { /* how the tokens get there: nothing of this may show in the result */
    int isa, n_threads, block_size;
    int chunk;     /* tokens a step */
    bool scramble; /* page ids */
    int n_mates;   /* one-token spans of another sequence in front in each step */
};

static struct att_data att_make(struct sl_rng *rng, const struct att_case *c)
{
    size_t T = (size_t)c->n_tokens, hd = (size_t)c->head_dim;
    struct att_data d = {.c = c};
    d.q = floats(rng, T * (size_t)c->n_heads * hd, 1.5);
    d.k = floats(rng, T * (size_t)c->n_kv_heads * hd, 1.5);
    d.v = floats(rng, T * (size_t)c->n_kv_heads * hd, 1.0);
    d.q_norm = floats(rng, hd, 1.0);
    d.k_norm = floats(rng, hd, 1.0);
    d.sinks = floats(rng, (size_t)c->n_heads, 2.0);
    d.inv_freq = sl_malloc((size_t)(c->rope_dims / 2 + 1) * sizeof(float));
    assert_non_null(d.inv_freq);
    for (int i = 0; i < c->rope_dims / 2; i++)
        d.inv_freq[i] = (float)pow(10000.0, -2.0 * i / c->rope_dims);
    d.rope = (struct sl_rope){c->rope_dims, c->pairing, d.inv_freq, 1.25f};
    return d;
}

static void att_free(struct att_data *d)
{
    sl_free(d->q);
    sl_free(d->k);
    sl_free(d->v);
    sl_free(d->q_norm);
    sl_free(d->k_norm);
    sl_free(d->sinks);
    sl_free(d->inv_freq);
}

#define ATT_EPS 1e-6f

static float att_scale(const struct att_case *c)
{
    return 1.0f / sqrtf((float)c->head_dim);
}

/* One step over a batch: n_mates spans of one token (copies of the sequence's first token, with
 * pages of their own), then the chunk. out [chunk, nq * hd]. */
struct att_step {
    struct sl_backend *be;
    const struct att_data *d;
    struct sl_kv_view view;
    int32_t *table; /* mates' pages, then the sequence's */
    int n_mates, first, n;
};

static void att_step(const struct att_step *s, float *out)
{
    const struct att_case *c = s->d->c;
    struct sl_backend *be = s->be;
    int n_tok = s->n_mates + s->n;
    size_t q_row = (size_t)(c->n_heads * c->head_dim);
    size_t kv_row = (size_t)(c->n_kv_heads * c->head_dim);
    int32_t *positions = sl_calloc((size_t)n_tok, sizeof *positions);
    struct sl_span *spans = sl_calloc((size_t)s->n_mates + 1, sizeof *spans);
    struct red_buf q = red_alloc((size_t)n_tok * q_row), o = red_alloc((size_t)n_tok * q_row);
    float *k = sl_malloc((size_t)n_tok * kv_row * sizeof(float));
    float *v = sl_malloc((size_t)n_tok * kv_row * sizeof(float));
    struct red_buf angles = red_alloc((size_t)(n_tok * c->rope_dims));
    assert_true(positions != NULL && spans != NULL && k != NULL && v != NULL);
    for (int t = 0; t < n_tok; t++) {
        int src = t < s->n_mates ? 0 : s->first + t - s->n_mates;
        positions[t] = src;
        memcpy(q.p + (size_t)t * q_row, s->d->q + (size_t)src * q_row, q_row * sizeof(float));
        memcpy(k + (size_t)t * kv_row, s->d->k + (size_t)src * kv_row, kv_row * sizeof(float));
        memcpy(v + (size_t)t * kv_row, s->d->v + (size_t)src * kv_row, kv_row * sizeof(float));
    }
    for (int i = 0; i < s->n_mates; i++)
        spans[i] = (struct sl_span){i, 1, 0, i};
    spans[s->n_mates] = (struct sl_span){s->n_mates, s->n, s->first, s->n_mates};
    struct sl_batch batch = {.n_tokens = n_tok,
                             .n_spans = s->n_mates + 1,
                             .positions = positions,
                             .spans = spans,
                             .block_tables = s->table};
    struct sl_op_rope_angles ra = {positions, n_tok, &s->d->rope, angles.p};
    be->vt->rope_angles(be, &ra);
    red_check(&angles, true, "rope_angles");
    struct sl_op_qk_norm_rope_kv_store st = {.batch = &batch,
                                             .q = q.p,
                                             .k = k,
                                             .v = v,
                                             .ld_q = (int64_t)q_row,
                                             .ld_k = (int64_t)kv_row,
                                             .ld_v = (int64_t)kv_row,
                                             .n_heads = c->n_heads,
                                             .n_kv_heads = c->n_kv_heads,
                                             .head_dim = c->head_dim,
                                             .q_norm = c->norms ? s->d->q_norm : NULL,
                                             .k_norm = c->norms ? s->d->k_norm : NULL,
                                             .eps = ATT_EPS,
                                             .rope = c->rope_dims > 0 ? &s->d->rope : NULL,
                                             .angles = angles.p,
                                             .kv = s->view};
    be->vt->qk_norm_rope_kv_store(be, &st);
    red_check(&q, true, "qk_norm_rope_kv_store");
    struct sl_op_attention at = {.batch = &batch,
                                 .q = q.p,
                                 .ld_q = (int64_t)q_row,
                                 .n_heads = c->n_heads,
                                 .n_kv_heads = c->n_kv_heads,
                                 .head_dim = c->head_dim,
                                 .scale = att_scale(c),
                                 .window = c->window,
                                 .softcap = c->softcap,
                                 .sinks = c->sinks ? s->d->sinks : NULL,
                                 .kv = s->view,
                                 .out = o.p,
                                 .ld_out = (int64_t)q_row};
    be->vt->attention(be, &at);
    red_check(&o, true, "attention");
    memcpy(out, o.p + (size_t)s->n_mates * q_row, (size_t)s->n * q_row * sizeof(float));
    red_free(&q);
    red_free(&o);
    red_free(&angles);
    sl_free(k);
    sl_free(v);
    sl_free(positions);
    sl_free(spans);
}

/* The whole sequence that way; out [T, nq * hd]. The page pool is filled with NaN before, and
 * stands between red zones. */
static void att_run(const struct att_data *d, const struct att_way *way, float *out)
{
    const struct att_case *c = d->c;
    int bs = way->block_size, n_pages = SL_CEIL_DIV(c->n_tokens, bs) + way->n_mates;
    size_t plane = (size_t)(c->n_kv_heads * bs * c->head_dim) * sl_dtype_info(c->kv)->block_bytes;
    /* a page holds another layer's planes before and behind this one's */
    size_t page_bytes = SL_ROUND_UP(6 * plane, sizeof(float));
    struct red_buf pool = red_alloc((size_t)n_pages * page_bytes / sizeof(float));
    struct att_step s = {.be = backend(way->isa, way->n_threads), .d = d, .n_mates = way->n_mates};
    s.view = (struct sl_kv_view){(uint8_t *)pool.p, page_bytes, 2 * plane, 3 * plane, c->kv, bs};
    s.table = sl_malloc((size_t)n_pages * sizeof *s.table);
    assert_non_null(s.table);
    for (int i = 0; i < n_pages; i++)
        s.table[i] = i;
    struct sl_rng rng = {77, 0};
    for (int i = n_pages - 1; way->scramble && i > 0; i--) {
        int j = (int)sl_rng_below(&rng, (uint64_t)i + 1);
        int32_t t = s.table[i];
        s.table[i] = s.table[j];
        s.table[j] = t;
    }
    for (s.first = 0; s.first < c->n_tokens; s.first += s.n) {
        s.n = SL_MIN(way->chunk, c->n_tokens - s.first);
        att_step(&s, out + (size_t)s.first * (size_t)(c->n_heads * c->head_dim));
    }
    red_check(&pool, false, "KV pool");
    for (int p = 0; p < n_pages; p++) { /* planes of the other layers */
        const uint8_t *page = (const uint8_t *)pool.p + (size_t)p * page_bytes;
        for (size_t i = 0; i + 4 <= page_bytes; i += 4) {
            uint32_t word;
            memcpy(&word, page + i, sizeof word);
            if ((i + 4 <= 2 * plane || i >= 4 * plane) && word != RED_PATTERN)
                fail_msg("KV pool: page %d written at byte %zu", p, i);
        }
    }
    sl_free(s.table);
    red_free(&pool);
}

/* ---------------------------------------------------------------- oracle in double */

static void oracle_head(const struct att_data *d, const float *x, const float *norm, int pos,
                        double *out)
{
    const struct att_case *c = d->c;
    int hd = c->head_dim, half = c->rope_dims / 2;
    double ss = 0;
    for (int i = 0; i < hd; i++)
        ss += (double)x[i] * (double)x[i];
    for (int i = 0; i < hd; i++)
        out[i] = c->norms ? (double)x[i] / sqrt(ss / hd + (double)ATT_EPS) * (double)norm[i]
                          : (double)x[i];
    for (int i = 0; i < half; i++) {
        int a = c->pairing == SL_ROPE_HALF ? i : 2 * i;
        int b = c->pairing == SL_ROPE_HALF ? i + half : 2 * i + 1;
        double w = (double)((float)pos * d->inv_freq[i]), p = out[a], q = out[b];
        out[a] = (p * cos(w) - q * sin(w)) * (double)d->rope.attn_factor;
        out[b] = (q * cos(w) + p * sin(w)) * (double)d->rope.attn_factor;
    }
}

/* Rounds to the cache's format, as what was stored is what is read. */
static void oracle_round(enum sl_dtype t, double *x, int n)
{
    for (int i = 0; i < n && t != SL_DTYPE_F32; i++) {
        float f = (float)x[i];
        uint16_t h;
        sl_dtype_info(t)->from_f32(&f, &h, 1);
        sl_dtype_info(t)->to_f32(&h, &f, 1);
        x[i] = (double)f;
    }
}

static void att_oracle(const struct att_data *d, double *out)
{
    const struct att_case *c = d->c;
    size_t hd = (size_t)c->head_dim, T = (size_t)c->n_tokens;
    size_t nkv = (size_t)c->n_kv_heads, nq = (size_t)c->n_heads;
    double *k = sl_malloc(T * nkv * hd * sizeof(double)), *v = sl_malloc(T * nkv * hd * sizeof *v);
    double *s = sl_malloc(T * sizeof(double)), *q = sl_malloc(hd * sizeof(double));
    assert_true(k != NULL && v != NULL && s != NULL && q != NULL);
    for (size_t i = 0; i < T * nkv; i++) {
        oracle_head(d, d->k + i * hd, d->k_norm, (int)(i / nkv), k + i * hd);
        for (size_t j = 0; j < hd; j++)
            v[i * hd + j] = (double)d->v[i * hd + j];
    }
    oracle_round(c->kv, k, (int)(T * nkv * hd));
    oracle_round(c->kv, v, (int)(T * nkv * hd));
    for (size_t t = 0; t < T; t++)
        for (size_t h = 0; h < nq; h++) {
            size_t kh = h / (nq / nkv);
            size_t from =
                c->window > 0 && t + 1 > (size_t)c->window ? t + 1 - (size_t)c->window : 0;
            double top = c->sinks ? (double)d->sinks[h] : -INFINITY, sum = 0;
            oracle_head(d, d->q + (t * nq + h) * hd, d->q_norm, (int)t, q);
            for (size_t j = from; j <= t; j++) {
                double dot = 0;
                for (size_t i = 0; i < hd; i++)
                    dot += q[i] * k[(j * nkv + kh) * hd + i];
                dot *= (double)att_scale(c);
                s[j] = c->softcap > 0 ? (double)c->softcap * tanh(dot / (double)c->softcap) : dot;
                top = fmax(top, s[j]);
            }
            for (size_t j = from; j <= t; j++)
                sum += s[j] = exp(s[j] - top);
            sum += c->sinks ? exp((double)d->sinks[h] - top) : 0.0;
            for (size_t i = 0; i < hd; i++) {
                double o = 0;
                for (size_t j = from; j <= t; j++)
                    o += s[j] * v[(j * nkv + kh) * hd + i];
                out[(t * nq + h) * hd + i] = o / sum;
            }
        }
    sl_free(k);
    sl_free(v);
    sl_free(s);
    sl_free(q);
}

#endif
