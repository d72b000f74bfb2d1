/* SPDX-License-Identifier: MIT
 * ops_attention.h - sequences in pages for the checks of qk_norm_rope_kv_store and attention: the
 * same queries, keys and values run through any chunking, page size and page order, and what must
 * come out: in double for the meaning, in float step by step for the bits.
 */
#ifndef TESTS_OPS_ATTENTION_H
#define TESTS_OPS_ATTENTION_H

#include "base/check.h"
#include "base/rng.h"
#include "base/sys.h"
#include "cpu/backend.h"
#include "quant/fp8_e4m3.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#define ATT_PATTERN    0x7FC0DEADu /* a NaN nothing computes; in halves a NaN of F16 and of BF16 */
#define ATT_ZONE       64          /* floats of it on both sides of a buffer */
#define ATT_EPS        1e-6f
#define ATT_SCALES(hd) (((size_t)(hd) + 31) / 32)

struct att_case {
    const char *name;
    int n_tokens, n_heads, n_kv_heads, head_dim;
    enum sl_dtype kv;
    int window;
    float softcap;
    bool sinks, norms;
    int rope_dims;
    enum sl_rope_pairing pairing;
    float skip; /* factor of skip-softmax */
    bool norm_after;
    struct sl_q_temperature temperature;
    float clip;
    bool chunks, norm_bare;
};

struct att_data {
    const struct att_case *c;
    float *q, *k, *v; /* [T, heads, hd], what the projections would give */
    float *q_norm, *k_norm, *sinks, *inv_freq;
    struct sl_rope rope;
    uint8_t *skipped; /* [T, heads, tiles of SL_SKIP_TILE], what att_bits left out */
};

static size_t att_tiles(const struct att_case *c)
{
    return (size_t)SL_CEIL_DIV(c->n_tokens, SL_SKIP_TILE);
}

struct att_way { /* how the tokens get there: nothing of this may show in the result */
    struct sl_backend *be;
    int block_size;
    int chunk;     /* tokens a step */
    bool scramble; /* page ids */
    int n_mates;   /* one-token spans of another sequence in front in each step */
};

struct att_result {
    float *q;                 /* [T, nq * hd] normed and rotated */
    float *k, *v;             /* [T, nkv * hd] as the pages hold them */
    float *k_scale, *v_scale; /* [T, nkv, ATT_SCALES(hd)] of Q8_0 */
    float *out;               /* [T, nq * hd] */
};

static float *att_floats(struct sl_rng *rng, size_t n, double scale)
{
    float *p = sl_malloc((n + 1) * sizeof(float));
    assert_non_null(p);
    for (size_t i = 0; i < n; i++)
        p[i] = (float)(scale * sl_rng_normal(rng));
    return p;
}

static struct att_data att_make(const struct att_case *c)
{
    struct sl_rng random = {(uint64_t)c->n_tokens, 3}, *rng = &random;
    size_t T = (size_t)c->n_tokens, hd = (size_t)c->head_dim;
    struct att_data d = {.c = c};
    d.q = att_floats(rng, T * (size_t)c->n_heads * hd, 1.5);
    d.k = att_floats(rng, T * (size_t)c->n_kv_heads * hd, 1.5);
    d.v = att_floats(rng, T * (size_t)c->n_kv_heads * hd, 1.0);
    d.q_norm = att_floats(rng, hd, 1.0);
    d.k_norm = att_floats(rng, hd, 1.0);
    d.sinks = att_floats(rng, (size_t)c->n_heads, 2.0);
    d.inv_freq = att_floats(rng, (size_t)c->rope_dims / 2, 1.0);
    for (int i = 0; i < c->rope_dims / 2; i++)
        d.inv_freq[i] = (float)pow(10000.0, -2.0 * i / c->rope_dims);
    d.rope = (struct sl_rope){c->rope_dims, c->pairing, d.inv_freq, 1.25f};
    d.skipped = sl_calloc(T * (size_t)c->n_heads * att_tiles(c), 1);
    assert_non_null(d.skipped);
    for (size_t i = 0; i < 16 * (size_t)c->n_kv_heads * hd && c->skip > 0; i++)
        d.k[i] *= 1.6f; /* the first keys are met best, as in language models */
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
    sl_free(d->skipped);
}

static struct att_result att_result_make(const struct att_case *c)
{
    size_t q = (size_t)(c->n_tokens * c->n_heads * c->head_dim);
    size_t kv = (size_t)(c->n_tokens * c->n_kv_heads * c->head_dim);
    size_t scales = (size_t)(c->n_tokens * c->n_kv_heads) * ATT_SCALES(c->head_dim);
    struct sl_rng rng = {0, 0};
    return (struct att_result){att_floats(&rng, q, 0),      att_floats(&rng, kv, 0),
                               att_floats(&rng, kv, 0),     att_floats(&rng, scales, 0),
                               att_floats(&rng, scales, 0), att_floats(&rng, q, 0)};
}

static void att_result_free(struct att_result *r)
{
    sl_free(r->q);
    sl_free(r->k);
    sl_free(r->v);
    sl_free(r->k_scale);
    sl_free(r->v_scale);
    sl_free(r->out);
}

/* The first position that a row sees. */
static int att_from(const struct att_case *c, int pos)
{
    return c->window == 0 ? 0
           : c->chunks    ? pos / c->window * c->window
                          : SL_MAX(pos - c->window + 1, 0);
}

static float att_scale(const struct att_case *c)
{
    return 1.0f / sqrtf((float)c->head_dim);
}

/* ---------------------------------------------------------------- buffers between red zones */

static float *att_red_alloc(size_t n)
{
    float *p = sl_malloc((n + 2 * ATT_ZONE) * sizeof(float));
    assert_non_null(p);
    for (size_t i = 0; i < n + 2 * ATT_ZONE; i++)
        p[i] = sl_f32_of_bits(ATT_PATTERN);
    return p + ATT_ZONE;
}

static void att_red_free(float *p, size_t n, const char *what)
{
    for (size_t i = 0; i < ATT_ZONE; i++)
        if (sl_f32_bits((p - ATT_ZONE)[i]) != ATT_PATTERN || sl_f32_bits(p[n + i]) != ATT_PATTERN)
            fail_msg("%s: wrote outside of its %zu floats", what, n);
    sl_free(p - ATT_ZONE);
}

/* ---------------------------------------------------------------- through the operations */

/* One step over a batch: n_mates spans of one token (copies of the sequence's first token, with
 * pages of their own), then the chunk. */
struct att_step {
    struct sl_backend *be;
    const struct att_data *d;
    struct sl_kv_view view;
    int32_t *table; /* mates' pages, then the sequence's */
    int n_mates, first, n;
};

static void att_step_ops(const struct att_step *s, const struct sl_batch *batch, float *q, float *k,
                         float *v, float *angles, float *o)
{
    const struct att_case *c = s->d->c;
    struct sl_backend *be = s->be;
    int64_t q_row = c->n_heads * c->head_dim, kv_row = c->n_kv_heads * c->head_dim;
    struct sl_op_rope_angles ra = {batch->positions, batch->n_tokens, &s->d->rope, angles};
    be->vt->rope_angles(be, &ra);
    struct sl_op_qk_norm_rope_kv_store st = {.batch = batch,
                                             .q = q,
                                             .k = k,
                                             .v = v,
                                             .ld_q = q_row,
                                             .ld_k = kv_row,
                                             .ld_v = kv_row,
                                             .n_heads = c->n_heads,
                                             .n_kv_heads = c->n_kv_heads,
                                             .head_dim = c->head_dim,
                                             .q_norm = c->norms ? s->d->q_norm : NULL,
                                             .k_norm = c->norms ? s->d->k_norm : NULL,
                                             .norm_after = c->norm_after,
                                             .norm_bare = c->norm_bare,
                                             .clip = c->clip,
                                             .temperature = c->temperature,
                                             .eps = ATT_EPS,
                                             .rope = c->rope_dims > 0 ? &s->d->rope : NULL,
                                             .angles = angles,
                                             .kv = s->view};
    be->vt->qk_norm_rope_kv_store(be, &st);
    struct sl_op_attention at = {.batch = batch,
                                 .q = q,
                                 .ld_q = q_row,
                                 .n_heads = c->n_heads,
                                 .n_kv_heads = c->n_kv_heads,
                                 .head_dim = c->head_dim,
                                 .scale = att_scale(c),
                                 .window = c->window,
                                 .chunks = c->chunks,
                                 .softcap = c->softcap,
                                 .sinks = c->sinks ? s->d->sinks : NULL,
                                 .skip_factor = c->skip,
                                 .kv = s->view,
                                 .out = o,
                                 .ld_out = q_row};
    be->vt->attention(be, &at);
}

static void att_step(const struct att_step *s, struct att_result *r)
{
    const struct att_case *c = s->d->c;
    size_t n_tok = (size_t)(s->n_mates + s->n);
    size_t q_row = (size_t)(c->n_heads * c->head_dim);
    size_t kv_row = (size_t)(c->n_kv_heads * c->head_dim), n_angles = n_tok * (size_t)c->rope_dims;
    int32_t *positions = sl_calloc(n_tok, sizeof *positions);
    struct sl_span *spans = sl_calloc((size_t)s->n_mates + 1, sizeof *spans);
    float *q = att_red_alloc(n_tok * q_row), *o = att_red_alloc(n_tok * q_row);
    float *k = att_red_alloc(n_tok * kv_row), *v = att_red_alloc(n_tok * kv_row);
    float *angles = att_red_alloc(n_angles);
    assert_true(positions != NULL && spans != NULL);
    for (size_t t = 0; t < n_tok; t++) {
        size_t src = t < (size_t)s->n_mates ? 0 : (size_t)s->first + t - (size_t)s->n_mates;
        positions[t] = (int32_t)src;
        memcpy(q + t * q_row, s->d->q + src * q_row, q_row * sizeof(float));
        memcpy(k + t * kv_row, s->d->k + src * kv_row, kv_row * sizeof(float));
        memcpy(v + t * kv_row, s->d->v + src * kv_row, kv_row * sizeof(float));
    }
    for (int i = 0; i < s->n_mates; i++)
        spans[i] = (struct sl_span){.first = i, .n = 1, .table_idx = i};
    spans[s->n_mates] = (struct sl_span){s->n_mates, s->n, s->first, s->n_mates, 0};
    struct sl_batch batch = {.n_tokens = (int32_t)n_tok,
                             .n_spans = s->n_mates + 1,
                             .positions = positions,
                             .spans = spans,
                             .block_tables = s->table};
    att_step_ops(s, &batch, q, k, v, angles, o);
    size_t skip = (size_t)s->n_mates * q_row, n = (size_t)s->n * q_row;
    memcpy(r->out + (size_t)s->first * q_row, o + skip, n * sizeof(float));
    memcpy(r->q + (size_t)s->first * q_row, q + skip, n * sizeof(float));
    att_red_free(q, n_tok * q_row, "queries");
    att_red_free(o, n_tok * q_row, "outputs");
    att_red_free(k, n_tok * kv_row, "keys");
    att_red_free(v, n_tok * kv_row, "values");
    att_red_free(angles, n_angles, "angles");
    sl_free(positions);
    sl_free(spans);
}

static float att_read_scale(int hd, const uint8_t *tile, int slot, int block)
{
    return sl_f16_to_f32(sl_load_u16(tile + 16 * ((hd + 15) / 16 * 16) + 2 * (block * 16 + slot)));
}

/* The number of dimension d at a position of a tile of keys or values, by the text of ops.h. */
static float att_read(enum sl_dtype t, int hd, const uint8_t *tile, bool is_v, int slot, int d)
{
    int D = (hd + 15) / 16 * 16,
        i = is_v ? (slot / 2 * D + d) * 2 + slot % 2 : (d / 2 * 16 + slot) * 2 + d % 2;
    float x;
    switch (t) {
    case SL_DTYPE_F32:
        memcpy(&x, tile + 4 * (is_v ? slot * D + d : d * 16 + slot), 4);
        return x;
    case SL_DTYPE_F16:
        return sl_f16_to_f32(sl_load_u16(tile + 2 * i));
    case SL_DTYPE_BF16:
        return sl_bf16_to_f32(sl_load_u16(tile + 2 * i));
    case SL_DTYPE_FP8_E4M3:
        return sl_fp8_e4m3_to_f32(tile[is_v ? slot * D + d : d * 16 + slot]) *
               sl_bf16_to_f32(sl_load_u16(tile + 16 * D + 2 * slot));
    default:
        return (float)(int8_t)tile[i] * att_read_scale(hd, tile, slot, d / 32);
    }
}

static void att_read_pages(const struct att_step *s, struct att_result *r)
{
    const struct att_case *c = s->d->c;
    size_t tile_bytes = sl_kv_tile_bytes(c->kv, c->head_dim), i = 0, n_scales = 0;
    int bs = s->view.block_size;
    for (int t = 0; t < c->n_tokens; t++)
        for (int h = 0; h < c->n_kv_heads; h++) {
            const uint8_t *page =
                s->view.pool + (size_t)s->table[s->n_mates + t / bs] * s->view.page_bytes;
            size_t at = (size_t)(h * (bs / 16) + t % bs / 16) * tile_bytes;
            const uint8_t *k = page + s->view.k_offset + at, *v = page + s->view.v_offset + at;
            for (int d = 0; d < c->head_dim; d++, i++) {
                r->k[i] = att_read(c->kv, c->head_dim, k, false, t % 16, d);
                r->v[i] = att_read(c->kv, c->head_dim, v, true, t % 16, d);
            }
            for (int b = 0; c->kv == SL_DTYPE_Q8_0 && b < (int)ATT_SCALES(c->head_dim); b++) {
                r->k_scale[n_scales] = att_read_scale(c->head_dim, k, t % 16, b);
                r->v_scale[n_scales++] = att_read_scale(c->head_dim, v, t % 16, b);
            }
        }
}

/* The whole sequence that way. The page pool is filled with NaN before, and stands between red
 * zones; a page holds another layer's planes before and behind this one's. */
static void att_run(const struct att_data *d, const struct att_way *way, struct att_result *r)
{
    const struct att_case *c = d->c;
    int bs = way->block_size, n_pages = SL_CEIL_DIV(c->n_tokens, bs) + way->n_mates;
    size_t plane = (size_t)(c->n_kv_heads * (bs / 16)) * sl_kv_tile_bytes(c->kv, c->head_dim);
    size_t page_bytes = 6 * plane, n_floats = (size_t)n_pages * page_bytes / sizeof(float);
    float *pool = att_red_alloc(n_floats);
    struct att_step s = {.be = way->be, .d = d, .n_mates = way->n_mates};
    s.view =
        (struct sl_kv_view){(uint8_t *)pool, page_bytes, 2 * plane, 3 * plane, c->kv, bs, 0, 0, 0};
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
        att_step(&s, r);
    }
    att_read_pages(&s, r);
    for (int p = 0; p < n_pages; p++) { /* planes of the other layers */
        const uint8_t *page = (const uint8_t *)pool + (size_t)p * page_bytes;
        for (size_t i = 0; i + 4 <= page_bytes; i += 4) {
            uint32_t word;
            memcpy(&word, page + i, sizeof word);
            if ((i < 2 * plane || i >= 4 * plane) && word != ATT_PATTERN)
                fail_msg("KV pool: page %d written at byte %zu", p, i);
        }
    }
    sl_free(s.table);
    att_red_free(pool, n_floats, "KV pool");
}

/* ---------------------------------------------------------------- what it means, in double */

static void oracle_norm(const float *norm, int hd, double *x)
{
    double ss = 0;
    for (int i = 0; i < hd; i++)
        ss += x[i] * x[i];
    for (int i = 0; i < hd; i++)
        x[i] = x[i] / sqrt(ss / hd + (double)ATT_EPS) * (norm != NULL ? (double)norm[i] : 1);
}

static double oracle_clip(const struct att_case *c, double x)
{
    return c->clip > 0 ? fmax(fmin(x, (double)c->clip), -(double)c->clip) : x;
}

static void oracle_head(const struct att_data *d, const float *x, const float *norm, int pos,
                        double *out)
{
    const struct att_case *c = d->c;
    const float *weights = c->norm_bare ? NULL : norm;
    const bool normed = c->norms || c->norm_bare;
    int hd = c->head_dim, half = c->rope_dims / 2;
    for (int i = 0; i < hd; i++)
        out[i] = (double)x[i];
    if (normed && !c->norm_after)
        oracle_norm(weights, hd, out);
    for (int i = 0; i < hd; i++)
        out[i] = oracle_clip(c, out[i]);
    for (int i = 0; i < half; i++) {
        int a = c->pairing == SL_ROPE_HALF ? i : 2 * i;
        int b = c->pairing == SL_ROPE_HALF ? i + half : 2 * i + 1;
        double w = (double)((float)pos * d->inv_freq[i]), p = out[a], q = out[b];
        out[a] = (p * cos(w) - q * sin(w)) * (double)d->rope.attn_factor;
        out[b] = (q * cos(w) + p * sin(w)) * (double)d->rope.attn_factor;
    }
    if (normed && c->norm_after)
        oracle_norm(weights, hd, out);
    if (norm != d->q_norm || c->temperature.beta == 0)
        return;
    double spans = floor((pos + c->temperature.first) / (double)c->temperature.span);
    for (int i = 0; i < hd; i++)
        out[i] *= 1 + (double)c->temperature.beta * log(1 + spans);
}

/* Is stored what a head vector x rounds to? */
static void oracle_stored(enum sl_dtype t, const double *x, const float *got, int n)
{
    for (int i = 0; i < n; i++) {
        double bound = fabs(x[i]) * 0x1p-20 + 1e-6;
        if (t == SL_DTYPE_F16 || t == SL_DTYPE_BF16)
            bound += fabs(x[i]) * (t == SL_DTYPE_F16 ? 0x1p-11 : 0x1p-8) + 0x1p-25;
        if (t == SL_DTYPE_Q8_0) {
            double top = 0;
            for (int j = i / 32 * 32; j < SL_MIN(i / 32 * 32 + 32, n); j++)
                top = fmax(top, fabs(x[j]));
            bound +=
                top / 127 * (0.5 + 127 * 0x1p-11); /* half a code, and a scale that is rounded */
        }
        if (t == SL_DTYPE_FP8_E4M3) { /* four bits, or half the smallest number times the scale */
            double top = 0;
            for (int j = 0; j < n; j++)
                top = fmax(top, fabs(x[j]));
            bound += fabs(x[i]) * 0x1p-4 + top / 224 * 0x1p-10;
        }
        if (!(fabs((double)got[i] - x[i]) <= bound))
            fail_msg("%s page: element %d is %g, not %g", sl_dtype_info(t)->name, i, (double)got[i],
                     x[i]);
    }
}

/* Attention over the keys and values that the pages hold. */
static void att_oracle(const struct att_data *d, const struct att_result *r, double *out)
{
    const struct att_case *c = d->c;
    size_t hd = (size_t)c->head_dim, T = (size_t)c->n_tokens;
    size_t nkv = (size_t)c->n_kv_heads, nq = (size_t)c->n_heads;
    double *s = sl_malloc(T * sizeof(double)), *q = sl_malloc(hd * sizeof(double));
    assert_true(s != NULL && q != NULL);
    for (size_t i = 0; i < T * nkv; i++) {
        oracle_head(d, d->k + i * hd, d->k_norm, (int)(i / nkv), q);
        oracle_stored(c->kv, q, r->k + i * hd, (int)hd);
        for (size_t j = 0; j < hd; j++)
            q[j] = oracle_clip(c, (double)d->v[i * hd + j]);
        oracle_stored(c->kv, q, r->v + i * hd, (int)hd);
    }
    for (size_t t = 0; t < T; t++)
        for (size_t h = 0; h < nq; h++) {
            size_t kh = h / (nq / nkv);
            const size_t from = (size_t)att_from(c, (int)t);
            double top = c->sinks ? (double)d->sinks[h] : -INFINITY, sum = 0;
            oracle_head(d, d->q + (t * nq + h) * hd, d->q_norm, (int)t, q);
            for (size_t j = from; j <= t; j++) {
                double dot = 0;
                for (size_t i = 0; i < hd; i++)
                    dot += q[i] * (double)r->k[(j * nkv + kh) * hd + i];
                dot *= (double)att_scale(c);
                s[j] = c->softcap > 0 ? (double)c->softcap * tanh(dot / (double)c->softcap) : dot;
                top = fmax(top, s[j]);
            }
            const uint8_t *skipped = d->skipped + (t * nq + h) * att_tiles(c);
            for (size_t j = from; j <= t; j++)
                sum += s[j] = skipped[j / SL_SKIP_TILE] ? 0.0 : exp(s[j] - top);
            sum += c->sinks ? exp((double)d->sinks[h] - top) : 0.0;
            for (size_t i = 0; i < hd; i++) {
                double o = 0;
                for (size_t j = from; j <= t; j++)
                    o += s[j] * (double)r->v[(j * nkv + kh) * hd + i];
                out[(t * nq + h) * hd + i] = o / sum;
            }
        }
    sl_free(s);
    sl_free(q);
}

/* ---------------------------------------------------------------- its bits, step by step */

/* ATT_BF16_CODES: the dot route where the pages are Q8_0. */
enum att_route { ATT_FLOAT, ATT_BF16_DOT, ATT_BF16_CODES, ATT_BF16_AMX, ATT_ROUTES };

static float att_flush(float x)
{
    return fabsf(x) < 0x1p-126f ? copysignf(0.0f, x) : x;
}

/* An operand of a route's products. */
static float att_operand(enum att_route route, float x)
{
    return route == ATT_FLOAT ? x : sl_bf16_to_f32(sl_f32_to_bf16(att_flush(x)));
}

/* One tile instruction: a chain of the even and one of the odd elements. */
static float att_tile_step(const float *a, const float *b, int n)
{
    float even = 0.0f, odd = 0.0f;
    for (int i = 0; i < n; i += 2) {
        even = att_flush(fmaf(a[i], b[i], even));
        odd = att_flush(fmaf(a[i + 1], b[i + 1], odd));
    }
    return att_flush(even + odd);
}

/* The sum of a[i] b[i], operands, n even; step: elements of a tile instruction. */
static float att_chain(enum att_route route, const float *a, const float *b, int n, int step)
{
    float c = 0.0f;
    for (int i = 0; i < n && route == ATT_BF16_AMX; i += step)
        c = att_flush(c + att_tile_step(a + i, b + i, SL_MIN(step, n - i)));
    for (int i = 0; i < n && route != ATT_BF16_AMX; i++) {
        if (route == ATT_FLOAT)
            c = fmaf(a[i], b[i], c);
        else /* of a pair, the second product first */
            c = att_flush(fmaf(a[i ^ 1], b[i ^ 1], c));
    }
    return c;
}

/* Keys and values of one key head, [T, ld], and their scales [T, n_scales], rows ld_scales apart.
 * Keys have zeros behind the head. Numbers are codes in ATT_BF16_CODES. */
struct att_head {
    const float *k, *v, *k_scale, *v_scale;
    size_t ld, ld_scales;
};

static float att_score(enum att_route route, const struct att_head *h, const float *q, size_t t)
{
    const float *key = h->k + t * h->ld;
    float score = 0.0f;
    if (route != ATT_BF16_CODES)
        return att_chain(route, q, key, (int)h->ld, 32);
    for (int d = 0; d < (int)h->ld; d += 32)
        score = fmaf(att_chain(route, q + d, key + d, SL_MIN(32, (int)h->ld - d), 32),
                     h->k_scale[t * h->ld_scales + (size_t)d / 32], score);
    return score;
}

static float att_scaled(const struct att_case *c, float x)
{
    return c->softcap > 0 ? c->softcap * tanhf(x * att_scale(c) / c->softcap) : x * att_scale(c);
}

/* The tiles of a split that skip-softmax leaves out of `hi` scores, from DETERMINISM.md. best: the
 * largest score of the first keys. */
static uint32_t att_skip(const struct att_case *c, int pos, const float *score, int hi, float best,
                         uint8_t *skipped)
{
    uint32_t skip = 0;
    if (c->skip == 0 || pos < 512 || c->skip >= (float)(pos + 1))
        return 0;
    for (int t = 0; t * 64 < hi; t++) {
        float top = -INFINITY;
        for (int i = t * 64; i < SL_MIN(t * 64 + 64, hi); i++)
            top = fmaxf(top, score[i]);
        skipped[t] = att_scaled(c, top) < best + logf(c->skip / (float)(pos + 1));
        skip |= (uint32_t)skipped[t] << t;
        best = fmaxf(best, att_scaled(c, top));
    }
    return skip;
}

/* The output of one query, from DETERMINISM.md. */
static void att_bits_row(const struct att_case *c, const struct sl_cpu_kernels *k,
                         const float *sink, enum att_route route, int pos, const float *q,
                         const struct att_head *h, uint8_t *skipped, float *out)
{
    float best = -INFINITY;
    float score[SL_CPU_SPLIT], p[SL_CPU_SPLIT], val[SL_CPU_SPLIT], o[SL_MAX_HEAD_DIM] = {0};
    float state[SL_MAX_HEAD_DIM] = {0}, ml[2] = {-INFINITY, 0.0f}, m, l;
    int from = att_from(c, pos);
    for (int start = from / SL_CPU_SPLIT * SL_CPU_SPLIT; start <= pos; start += SL_CPU_SPLIT) {
        int lo = SL_MAX(from - start, 0), hi = SL_MIN(pos + 1 - start, SL_CPU_SPLIT);
        int first = lo / 16 * 16; /* tiles of zeros add nothing */
        for (int j = lo; j < hi; j++)
            score[j] = att_score(route, h, q, (size_t)(start + j));
        for (int j = 0; start == 0 && j < SL_MIN(hi, 16); j++)
            best = fmaxf(best, att_scaled(c, score[j]));
        uint32_t skip = att_skip(c, pos, score, hi, best, skipped + start / 64);
        if (skip == (1u << SL_CEIL_DIV(hi, 64)) - 1)
            continue; /* of a split that is left out nothing joins */
        k->softmax(score, lo, hi, skip, att_scale(c), c->softcap, &m, &l);
        memset(score, 0, (size_t)lo * sizeof *score);
        memset(score + hi, 0, (size_t)(SL_CPU_SPLIT - hi) * sizeof *score);
        memset(val, 0, sizeof val);
        for (int d = 0; d < c->head_dim; d++) {
            for (int j = first; j < SL_ROUND_UP(hi, 16) && d % 32 == 0; j++) {
                bool scaled = route == ATT_BF16_CODES && lo <= j && j < hi;
                size_t at = (size_t)(start + j) * h->ld_scales + (size_t)d / 32;
                p[j] = att_operand(route, scaled ? score[j] * h->v_scale[at] : score[j]);
            }
            for (int j = lo; j < hi; j++)
                val[j] = h->v[(size_t)(start + j) * h->ld + (size_t)d];
            o[d] =
                att_chain(route, p + first, val + first, SL_ROUND_UP(hi, 16) - first, SL_KV_TILE);
        }
        k->merge(ml, state, m, l, o, SL_ROUND_UP(c->head_dim, 16));
    }
    k->finish(ml, state, sink, c->head_dim, out);
}

/* n numbers of a head vector as operands; codes, which are whole numbers, are what was multiplied
 * with their scale. */
static void att_head_row(enum att_route route, const float *x, const float *scale, size_t n,
                         float *out)
{
    for (size_t i = 0; i < n; i++)
        out[i] = att_operand(route,
                             route == ATT_BF16_CODES && x[i] != 0.0f ? x[i] / scale[i / 32] : x[i]);
}

/* out [T, nq * hd] from the queries and pages of r. */
static void att_bits(const struct att_data *d, const struct att_result *r,
                     const struct sl_cpu_kernels *k, enum att_route route, float *out)
{
    const struct att_case *c = d->c;
    size_t hd = (size_t)c->head_dim, T = (size_t)c->n_tokens, ld = SL_ROUND_UP(hd, 2);
    size_t nkv = (size_t)c->n_kv_heads, nq = (size_t)c->n_heads, ns = ATT_SCALES(hd);
    float *keys = sl_calloc(T * ld, sizeof *keys), *values = sl_calloc(T * ld, sizeof *values);
    float q[SL_MAX_HEAD_DIM + 32];
    assert_true(keys != NULL && values != NULL);
    for (size_t h = 0; h < nq; h++) {
        size_t kh = h / (nq / nkv);
        struct att_head head = {keys, values,  r->k_scale + kh * ns, r->v_scale + kh * ns,
                                ld,   nkv * ns};
        for (size_t t = 0; t < T; t++) {
            size_t at = t * nkv + kh;
            att_head_row(route, r->k + at * hd, r->k_scale + at * ns, hd, keys + t * ld);
            att_head_row(route, r->v + at * hd, r->v_scale + at * ns, hd, values + t * ld);
        }
        for (size_t t = 0; t < T; t++) {
            memset(q, 0, sizeof q);
            for (size_t i = 0; i < hd; i++)
                q[i] = att_operand(route, r->q[(t * nq + h) * hd + i]);
            att_bits_row(c, k, c->sinks ? d->sinks + h : NULL, route, (int)t, q, &head,
                         d->skipped + (t * nq + h) * att_tiles(c), out + (t * nq + h) * hd);
        }
    }
    sl_free(keys);
    sl_free(values);
}

#endif
