/* SPDX-License-Identifier: MIT
 * No part of this sorts the vocabulary. Without a filter one pass makes the probabilities and
 * partial sums, and the draw walks the sums. With top_k, top_p or min_p a histogram over the
 * distance from the maximum finds a cut that surely keeps enough; what lies above it, usually some
 * hundred candidates, is sorted (by radix, stable, so ties stay in order of id) and filtered
 * exactly.
 */
#include "engine/sample.h"

#include "base/check.h"
#include "base/limits.h"
#include "base/rng.h"
#include "base/sys.h"

#include <float.h>
#include <math.h>
#include <string.h>

#define SUM_BLOCK   256
#define N_BUCKETS   1024
#define EXP_MIN     (-87.0f) /* below, exp is taken as 0: 1e-38 of the maximum */
#define INSERT_SORT 48       /* shorter lists are sorted by insertion */

int sl_sampler_init(struct sl_sampler *s, int32_t n_vocab, struct sl_error *err)
{
    SL_ASSERT(n_vocab > 0 && n_vocab <= SL_MAX_VOCAB);
    size_t n = (size_t)n_vocab;
    *s = (struct sl_sampler){.n_vocab = n_vocab};
    s->logits = sl_calloc(n, sizeof *s->logits);
    s->probs = sl_calloc(n, sizeof *s->probs);
    s->sums = sl_calloc(n / SUM_BLOCK + 1, sizeof *s->sums);
    s->cands = sl_calloc(n, sizeof *s->cands);
    s->cands_swap = sl_calloc(n, sizeof *s->cands_swap);
    if (s->logits == NULL || s->probs == NULL || s->sums == NULL || s->cands == NULL ||
        s->cands_swap == NULL) {
        sl_sampler_deinit(s);
        return sl_fail(err, SL_ENOMEM, "out of memory for sampling over %d tokens", n_vocab);
    }
    return 0;
}

void sl_sampler_deinit(struct sl_sampler *s)
{
    sl_free(s->cands_swap);
    sl_free(s->cands);
    sl_free(s->sums);
    sl_free(s->probs);
    sl_free(s->logits);
    *s = (struct sl_sampler){0};
}

bool sl_sampling_has_penalty(const struct sl_sampling *p)
{
    return p->repetition_penalty != 1.0f || p->presence_penalty != 0.0f ||
           p->frequency_penalty != 0.0f;
}

union bits {
    float f;
    int32_t i;
};

/* exp(x) for x <= 0, error below 2 ulp: x = n ln 2 + r, a polynomial in r (Cephes' coefficients),
 * and n into the exponent. Rounding is by the magic number, limit and zero are chosen on the bits
 * of -x, which order as integers: no branch, so that loops over it become vectors. */
static inline float exp_neg(float x)
{
    const union bits limit = {.f = -EXP_MIN};
    union bits y = {.f = 0.0f - x}; /* 0 - 0 is +0 */
    int32_t alive = -(int32_t)(y.i < limit.i);
    y.i = y.i < limit.i ? y.i : limit.i;
    float n = (y.f * -1.44269504089f + 12582912.0f) - 12582912.0f;
    float r = (-y.f - n * 0.693359375f) + n * 2.12194440e-4f;
    float p = 1.9875691500e-4f;
    p = p * r + 1.3981999507e-3f;
    p = p * r + 8.3334519073e-3f;
    p = p * r + 4.1665795894e-2f;
    p = p * r + 1.6666665459e-1f;
    p = p * r + 5.0000001201e-1f;
    p = p * (r * r) + r + 1.0f;
    union bits scale = {.i = (((int32_t)n + 127) * (1 << 23)) & alive};
    return p * scale.f;
}

/* False: NaN or +infinity somewhere, or nothing finite. Four maxima, because one would wait for
 * itself. */
static bool row_max(const float *x, int32_t n, float *max)
{
    float m[4] = {-INFINITY, -INFINITY, -INFINITY, -INFINITY};
    int32_t n_bad = 0, i = 0;
    for (; i + 4 <= n; i += 4) {
        for (int j = 0; j < 4; j++) {
            float v = x[i + j];
            n_bad += !(v <= FLT_MAX);
            m[j] = v > m[j] ? v : m[j];
        }
    }
    for (; i < n; i++) {
        n_bad += !(x[i] <= FLT_MAX);
        m[0] = x[i] > m[0] ? x[i] : m[0];
    }
    float a = m[0] > m[1] ? m[0] : m[1], b = m[2] > m[3] ? m[2] : m[3];
    *max = a > b ? a : b;
    return n_bad == 0 && *max >= -FLT_MAX;
}

static bool changes_row(const struct sl_sample_args *a)
{
    return a->n_banned[0] > 0 || a->n_banned[1] > 0 || a->sampling->n_logit_bias > 0 ||
           a->counts != NULL;
}

static void penalise(float *row, const struct sl_sampling *p, const struct sl_counts *counts)
{
    for (int32_t i = 0; i < counts->n; i++) {
        const struct sl_count *c = &counts->entries[i];
        float x = row[c->id];
        x = x > 0.0f ? x / p->repetition_penalty : x * p->repetition_penalty;
        if (c->n_out > 0) {
            x -= p->frequency_penalty * (float)c->n_out;
            x -= p->presence_penalty;
        }
        row[c->id] = SL_MIN(x, FLT_MAX); /* a tiny penalty must not make the row invalid */
    }
}

static const float *changed_row(struct sl_sampler *s, const struct sl_sample_args *a)
{
    memcpy(s->logits, a->logits, (size_t)s->n_vocab * sizeof *s->logits);
    for (int list = 0; list < 2; list++)
        for (int32_t i = 0; i < a->n_banned[list]; i++)
            s->logits[a->banned[list][i]] = -INFINITY;
    for (int32_t i = 0; i < a->sampling->n_logit_bias; i++)
        s->logits[a->sampling->logit_bias[i].id] += a->sampling->logit_bias[i].bias;
    if (a->counts != NULL)
        penalise(s->logits, a->sampling, a->counts);
    return s->logits;
}

static int32_t first_of(const float *row, int32_t n, float value)
{
    int32_t i = 0;
    while (i < n - 1 && row[i] != value)
        i++;
    return i;
}

/* p = exp((x - max) / T) of a whole block: a constant count, so that the compiler uses vectors. */
static void exp_block(const float *restrict x, float *restrict p, float max, float inv_t)
{
    for (int i = 0; i < SUM_BLOCK; i++)
        p[i] = exp_neg((x[i] - max) * inv_t);
}

static double sum_block(const float *p)
{
    double s[4] = {0, 0, 0, 0};
    for (int i = 0; i < SUM_BLOCK; i += 4)
        for (int j = 0; j < 4; j++)
            s[j] += (double)p[i + j];
    return (s[0] + s[1]) + (s[2] + s[3]);
}

/* The same for the last, shorter block: what is missing counts as probability 0. */
static void exp_tail(const float *x, int32_t n, float *p, float max, float inv_t)
{
    float padded[SUM_BLOCK], out[SUM_BLOCK];
    for (int32_t i = 0; i < SUM_BLOCK; i++)
        padded[i] = i < n ? x[i] : -INFINITY;
    exp_block(padded, out, max, inv_t);
    memcpy(p, out, (size_t)n * sizeof *p);
}

static void exp_row(const float *x, int32_t n_vocab, float *p, float max, float inv_t)
{
    int32_t first = 0;
    for (; first + SUM_BLOCK <= n_vocab; first += SUM_BLOCK)
        exp_block(x + first, p + first, max, inv_t);
    if (first < n_vocab)
        exp_tail(x + first, n_vocab - first, p + first, max, inv_t);
}

/* Probabilities, not normalised, with a sum per block; returns the whole sum. */
static double all_probs(struct sl_sampler *s, const float *row, float max, float inv_t)
{
    double total = 0;
    exp_row(row, s->n_vocab, s->probs, max, inv_t);
    for (int32_t first = 0; first < s->n_vocab; first += SUM_BLOCK) {
        double sum = 0;
        if (first + SUM_BLOCK <= s->n_vocab)
            sum = sum_block(s->probs + first);
        else
            for (int32_t i = first; i < s->n_vocab; i++)
                sum += (double)s->probs[i];
        s->sums[first / SUM_BLOCK] = sum;
        total += sum;
    }
    return total;
}

/* Walks the blocks, then the block. Rounding may leave a remainder at a block's end: then the last
 * token seen with a probability is taken, so a token of probability 0 never is. */
static int32_t draw_any(const struct sl_sampler *s, double total, double u)
{
    double left = u * total;
    int32_t b = 0, n_blocks = SL_CEIL_DIV(s->n_vocab, SUM_BLOCK), chosen = -1;
    while (b < n_blocks - 1 && left >= s->sums[b])
        left -= s->sums[b++];
    int32_t end = SL_MIN((b + 1) * SUM_BLOCK, s->n_vocab);
    for (int32_t i = b * SUM_BLOCK; i < end && left >= 0; i++) {
        if (s->probs[i] > 0.0f)
            chosen = i;
        left -= (double)s->probs[i];
    }
    for (int32_t i = b * SUM_BLOCK; chosen < 0 && i-- > 0;)
        chosen = s->probs[i] > 0.0f ? i : -1;
    return chosen;
}

static void sort_short(struct sl_cand *c, int32_t n)
{
    for (int32_t i = 1; i < n; i++) {
        struct sl_cand x = c[i];
        int32_t j = i;
        for (; j > 0 && c[j - 1].key > x.key; j--)
            c[j] = c[j - 1];
        c[j] = x;
    }
}

/* Stable, ascending by key: three passes over 11, 11 and 10 bits. The result may lie in the other
 * array. */
static struct sl_cand *sort_cands(struct sl_cand *a, struct sl_cand *b, int32_t n)
{
    if (n <= INSERT_SORT) {
        sort_short(a, n);
        return a;
    }
    for (int shift = 0; shift < 32; shift += 11) {
        uint32_t start[2049] = {0};
        for (int32_t i = 0; i < n; i++)
            start[((a[i].key >> shift) & 2047) + 1]++;
        for (int i = 0; i < 2048; i++)
            start[i + 1] += start[i];
        for (int32_t i = 0; i < n; i++)
            b[start[(a[i].key >> shift) & 2047]++] = a[i];
        struct sl_cand *t = a;
        a = b;
        b = t;
    }
    return a;
}

static inline uint32_t key_of(float y)
{
    union {
        float f;
        uint32_t u;
    } k = {.f = 0.0f - y}; /* y <= 0: the bits of -y are ordered like -y, and 0 - 0 is +0 */
    return k.u;
}

static inline float y_of(uint32_t key)
{
    union {
        uint32_t u;
        float f;
    } k = {.u = key};
    return -k.f;
}

struct filter {
    float max, inv_t;
    float floor; /* of y = (x - max) / T: below it nothing is kept */
    float scale; /* bucket of y = -y * scale */
    int32_t k;   /* 0 = off */
    double p;    /* >= 1: off */
};

static inline int32_t bucket_of(const struct filter *f, float y)
{
    int32_t b = (int32_t)(-y * f->scale);
    return b < N_BUCKETS - 1 ? b : N_BUCKETS - 1;
}

/* The last bucket needed. With top_k: when all tokens up to it are k; top_p is then a share of the
 * mass of those k. Without: when they have the mass of top_p, a share of *total. */
static int32_t cut_bucket(struct sl_sampler *s, const float *row, const struct filter *f,
                          double *total)
{
    uint32_t count[N_BUCKETS] = {0};
    double mass[N_BUCKETS] = {0}, sum = 0;
    bool by_mass = f->k == 0 && f->p < 1.0;
    if (by_mass)
        exp_row(row, s->n_vocab, s->probs, f->max, f->inv_t);
    for (int32_t i = 0; i < s->n_vocab; i++) {
        float y = (row[i] - f->max) * f->inv_t;
        if (!(y >= f->floor))
            continue;
        int32_t b = bucket_of(f, y);
        count[b]++;
        if (by_mass)
            mass[b] += (double)s->probs[i];
    }
    *total = 0;
    for (int b = 0; b < N_BUCKETS; b++)
        *total += mass[b];
    int64_t n = 0;
    for (int32_t b = 0; b < N_BUCKETS; b++) {
        n += count[b];
        sum += mass[b];
        /* The margin covers the other order of summing of the exact pass. */
        if (f->k > 0 ? n >= f->k : by_mass && sum > f->p * *total * (1 + 1e-9))
            return b;
    }
    return N_BUCKETS - 1;
}

static int32_t draw_filtered(struct sl_sampler *s, const float *row, const struct filter *f,
                             double u)
{
    double total, part = 0, kept = 0;
    int32_t cut = cut_bucket(s, row, f, &total), n = 0, m = 0, i = 0;
    for (int32_t id = 0; id < s->n_vocab; id++) {
        float y = (row[id] - f->max) * f->inv_t;
        if (y >= f->floor && bucket_of(f, y) <= cut)
            s->cands[n++] = (struct sl_cand){key_of(y), id};
    }
    const struct sl_cand *c = sort_cands(s->cands, s->cands_swap, n);
    if (f->k > 0)
        n = SL_MIN(n, f->k);
    for (int32_t j = 0; j < n; j++) {
        s->probs[j] = exp_neg(y_of(c[j].key));
        part += (double)s->probs[j];
    }
    if (f->k > 0 || f->p >= 1.0)
        total = part;
    while (m < n && (m == 0 || kept < f->p * total))
        kept += (double)s->probs[m++];
    double left = u * kept;
    while (i < m - 1 && left >= (double)s->probs[i])
        left -= (double)s->probs[i++];
    while (i > 0 && s->probs[i] <= 0.0f)
        i--;
    return c[i].id;
}

int32_t sl_sample(struct sl_sampler *s, const struct sl_sample_args *a)
{
    const struct sl_sampling *p = a->sampling;
    const float *row = a->logits;
    float max;
    if (!row_max(row, s->n_vocab, &max))
        return -1;
    if (changes_row(a)) {
        row = changed_row(s, a);
        if (!row_max(row, s->n_vocab, &max))
            return -1;
    }
    if (p->temperature < SL_GREEDY_BELOW)
        return first_of(row, s->n_vocab, max);
    double u = sl_rng_unit(sl_rng_at(a->seed, a->pos));
    struct filter f = {.max = max,
                       .inv_t = 1.0f / p->temperature,
                       .floor = EXP_MIN,
                       .k = p->top_k > 0 && p->top_k < s->n_vocab ? p->top_k : 0,
                       .p = (double)p->top_p};
    if (f.k == 0 && f.p >= 1.0 && p->min_p <= 0.0f)
        return draw_any(s, all_probs(s, row, max, f.inv_t), u);
    if (p->min_p > 0.0f)
        f.floor = SL_MAX(f.floor, logf(p->min_p));
    f.scale = (float)N_BUCKETS / SL_MAX(-f.floor, 1e-3f);
    return draw_filtered(s, row, &f, u);
}

static bool better(float a, int32_t a_id, float b, int32_t b_id)
{
    return a > b || (a == b && a_id < b_id);
}

static void top_of(const float *x, int32_t n_vocab, int32_t n_top, struct sl_top_logprob *top)
{
    int32_t n = 0;
    for (int32_t i = 0; i < n_vocab; i++) {
        if (n == n_top && !(x[i] > top[n - 1].logprob))
            continue;
        int32_t j = n < n_top ? n++ : n - 1;
        for (; j > 0 && better(x[i], i, top[j - 1].logprob, top[j - 1].id); j--)
            top[j] = top[j - 1];
        top[j] = (struct sl_top_logprob){.id = i, .logprob = x[i]};
    }
}

bool sl_logprobs(const float *logits, int32_t n_vocab, int32_t id, int32_t n_top,
                 struct sl_logprob *out, struct sl_top_logprob *top)
{
    float max;
    SL_ASSERT(id >= 0 && id < n_vocab && n_top >= 0 && n_top <= n_vocab);
    if (!row_max(logits, n_vocab, &max))
        return false;
    double sum = 0;
    int32_t rank = 1;
    float x = logits[id];
    for (int32_t first = 0; first < n_vocab; first += SUM_BLOCK) {
        int32_t n = SL_MIN(SUM_BLOCK, n_vocab - first);
        float p[SUM_BLOCK] = {0};
        exp_row(logits + first, n, p, max, 1.0f);
        sum += sum_block(p);
        for (int32_t i = first; i < first + n; i++)
            rank += (logits[i] > x) + (logits[i] == x && i < id);
    }
    double lse = (double)max + log(sum);
    *out = (struct sl_logprob){.logprob = (float)((double)x - lse), .rank = rank};
    if (n_top > 0)
        top_of(logits, n_vocab, n_top, top);
    for (int32_t i = 0; i < n_top; i++)
        top[i].logprob = (float)((double)top[i].logprob - lse);
    return true;
}
