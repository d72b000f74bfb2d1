/* SPDX-License-Identifier: MIT
 * No part of this sorts the vocabulary. The passes over whole rows are in sample_rows_tmpl.c.
 * Without a filter one makes the probabilities and partial sums, and the draw walks the sums. With
 * top_k, top_p or min_p a histogram over the distance from the maximum, made of the maxima of
 * groups of 16 elements, finds a cut that surely keeps enough; what lies above it, usually some
 * hundred candidates in as many groups, is sorted (by radix, stable, so ties stay in order of id)
 * and filtered exactly.
 */
#include "engine/sample.h"

#include "base/check.h"
#include "base/limits.h"
#include "base/rng.h"
#include "base/sys.h"
#include "engine/sample_exp.h"

#include <float.h>
#include <math.h>
#include <string.h>

#define SUM_BLOCK   SL_ROW_BLOCK
#define N_BUCKETS   1024
#define INSERT_SORT 48 /* shorter lists are sorted by insertion */

int sl_sampler_init(struct sl_sampler *s, int32_t n_vocab, struct sl_error *err)
{
    SL_ASSERT(n_vocab > 0 && n_vocab <= SL_MAX_VOCAB);
    size_t n = (size_t)n_vocab;
    *s = (struct sl_sampler){.n_vocab = n_vocab, .k = sl_row_kernels()};
    s->logits = sl_calloc(n, sizeof *s->logits);
    s->probs = sl_calloc(n, sizeof *s->probs);
    s->sums = sl_calloc(n / SUM_BLOCK + 1, sizeof *s->sums);
    s->group_max = sl_calloc((n / SUM_BLOCK + 1) * SL_ROW_GROUPS, sizeof *s->group_max);
    s->cands = sl_calloc(n, sizeof *s->cands);
    s->cands_swap = sl_calloc(n, sizeof *s->cands_swap);
    if (s->logits == NULL || s->probs == NULL || s->sums == NULL || s->group_max == NULL ||
        s->cands == NULL || s->cands_swap == NULL) {
        sl_sampler_deinit(s);
        return sl_fail(err, SL_ENOMEM, "out of memory for sampling over %d tokens", n_vocab);
    }
    return 0;
}

void sl_sampler_deinit(struct sl_sampler *s)
{
    sl_free(s->cands_swap);
    sl_free(s->cands);
    sl_free(s->group_max);
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

static bool changes_row(const struct sl_sample_args *a)
{
    return a->n_banned[0] > 0 || a->n_banned[1] > 0 || a->sampling->n_logit_bias > 0 ||
           a->counts != NULL || a->allowed != NULL;
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
    for (int32_t i = 0; i < s->n_vocab && a->allowed != NULL; i++)
        if ((a->allowed[i / 32] >> (i & 31) & 1) == 0)
            s->logits[i] = -INFINITY;
    for (int list = 0; list < 2; list++)
        for (int32_t i = 0; i < a->n_banned[list]; i++)
            s->logits[a->banned[list][i]] = -INFINITY;
    for (int32_t i = 0; i < a->sampling->n_logit_bias; i++)
        s->logits[a->sampling->logit_bias[i].id] += a->sampling->logit_bias[i].bias;
    if (a->counts != NULL)
        penalise(s->logits, a->sampling, a->counts);
    return s->logits;
}

/* The lowest id of the maximum: in the first block with a group that has it. */
static int32_t first_max(const struct sl_sampler *s, const float *row, float max)
{
    int32_t g = 0, n_groups = SL_CEIL_DIV(s->n_vocab, SUM_BLOCK) * SL_ROW_GROUPS;
    while (g < n_groups - 1 && s->group_max[g] != max)
        g++;
    int32_t i = g / SL_ROW_GROUPS * SUM_BLOCK;
    while (i < s->n_vocab - 1 && row[i] != max)
        i++;
    return i;
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

/* The bucket by which n groups have an element: so many elements, at least, lie in it or above.
 * N_BUCKETS - 1 when there are not as many groups. */
static int32_t cut_by_groups(const struct sl_sampler *s, const struct filter *f, int32_t n)
{
    uint32_t count[N_BUCKETS] = {0};
    int32_t n_groups = SL_CEIL_DIV(s->n_vocab, SUM_BLOCK) * SL_ROW_GROUPS, b = 0;
    for (int32_t i = 0; i < n_groups; i++) {
        float y = (s->group_max[i] - f->max) * f->inv_t;
        if (y >= f->floor)
            count[bucket_of(f, y)]++;
    }
    for (int64_t seen = count[0]; seen < n && b < N_BUCKETS - 1;)
        seen += count[++b];
    return b;
}

/* The bucket by which all elements down to it are k, or have the given mass (s->probs). The slow
 * way, for filters that keep thousands. */
static int32_t cut_by_elements(const struct sl_sampler *s, const float *row, const struct filter *f,
                               double mass)
{
    uint32_t count[N_BUCKETS] = {0};
    double in[N_BUCKETS] = {0}, sum = 0;
    for (int32_t i = 0; i < s->n_vocab; i++) {
        float y = (row[i] - f->max) * f->inv_t;
        if (!(y >= f->floor))
            continue;
        int32_t b = bucket_of(f, y);
        count[b]++;
        in[b] += f->k > 0 ? 0.0 : (double)s->probs[i];
    }
    int64_t n = 0;
    for (int32_t b = 0; b < N_BUCKETS; b++) {
        n += count[b];
        sum += in[b];
        if (f->k > 0 ? n >= f->k : sum > mass)
            return b;
    }
    return N_BUCKETS - 1;
}

/* The elements down to a bucket, in order of id, into s->cands. Only groups whose maximum lies
 * there are looked at; the bits of a block put its groups' elements into order. */
static int32_t collect(struct sl_sampler *s, const float *row, const struct filter *f, int32_t cut)
{
    int32_t n = 0;
    for (int32_t first = 0; first < s->n_vocab; first += SUM_BLOCK) {
        const float *group_max = s->group_max + first / SUM_BLOCK * SL_ROW_GROUPS;
        int32_t n_block = SL_MIN(SUM_BLOCK, s->n_vocab - first);
        uint64_t hit[SUM_BLOCK / 64] = {0}, any = 0;
        for (int32_t g = 0; g < SL_ROW_GROUPS; g++) {
            float top = (group_max[g] - f->max) * f->inv_t;
            if (!(top >= f->floor && bucket_of(f, top) <= cut))
                continue;
            for (int32_t i = g; i < n_block; i += SL_ROW_GROUPS) {
                float y = (row[first + i] - f->max) * f->inv_t;
                uint64_t in = y >= f->floor && bucket_of(f, y) <= cut;
                hit[i / 64] |= in << (i % 64);
                any |= in;
            }
        }
        for (int32_t w = 0; any != 0 && w < SUM_BLOCK / 64; w++) {
            for (; hit[w] != 0; hit[w] &= hit[w] - 1) {
                int32_t id = first + w * 64 + __builtin_ctzll(hit[w]);
                s->cands[n++] = (struct sl_cand){key_of((row[id] - f->max) * f->inv_t), id};
            }
        }
    }
    return n;
}

/* Candidates for top_p alone: few are enough nearly always. The margin covers the other order of
 * summing of the exact pass. */
static int32_t collect_mass(struct sl_sampler *s, const float *row, const struct filter *f,
                            double total)
{
    double mass = f->p * total * (1 + 1e-9);
    for (int32_t n_groups = 64; n_groups <= 1024; n_groups *= 4) {
        int32_t n = collect(s, row, f, cut_by_groups(s, f, n_groups));
        double sum = 0;
        for (int32_t i = 0; i < n; i++)
            sum += (double)s->probs[s->cands[i].id];
        if (sum > mass)
            return n;
    }
    return collect(s, row, f, cut_by_elements(s, row, f, mass));
}

/* top_p is a share of the mass that min_p and top_k leave. */
static int32_t draw_filtered(struct sl_sampler *s, const float *row, const struct filter *f,
                             double u)
{
    double total = -1, part = 0, kept = 0;
    int32_t n, m = 0, i = 0;
    if (f->k > 0) {
        bool few = f->k <= s->n_vocab / 64; /* else groups say too little */
        n = collect(s, row, f, few ? cut_by_groups(s, f, f->k) : cut_by_elements(s, row, f, 0));
    } else if (f->p < 1.0 && f->floor <= SL_EXP_MIN) {
        total = s->k->softmax(row, s->n_vocab, f->max, f->inv_t, s->probs, s->sums);
        n = collect_mass(s, row, f, total);
    } else {
        n = collect(s, row, f, N_BUCKETS - 1);
    }
    const struct sl_cand *c = sort_cands(s->cands, s->cands_swap, n);
    if (f->k > 0)
        n = SL_MIN(n, f->k);
    for (int32_t j = 0; j < n; j++) {
        s->probs[j] = sl_exp_neg(y_of(c[j].key));
        part += (double)s->probs[j];
    }
    if (total < 0)
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
    if (!s->k->scan(row, s->n_vocab, s->group_max, &max))
        return -1;
    if (changes_row(a)) {
        row = changed_row(s, a);
        if (!s->k->scan(row, s->n_vocab, s->group_max, &max))
            return -1;
    }
    if (p->temperature < SL_GREEDY_BELOW)
        return first_max(s, row, max);
    double u = sl_rng_unit(sl_rng_at(a->seed, a->pos));
    struct filter f = {.max = max,
                       .inv_t = 1.0f / p->temperature,
                       .floor = SL_EXP_MIN,
                       .k = p->top_k > 0 && p->top_k < s->n_vocab ? p->top_k : 0,
                       .p = (double)p->top_p};
    if (f.k == 0 && f.p >= 1.0 && p->min_p <= 0.0f)
        return draw_any(s, s->k->softmax(row, s->n_vocab, max, f.inv_t, s->probs, s->sums), u);
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
    const struct sl_row_kernels *k = sl_row_kernels();
    if (!k->scan(logits, n_vocab, NULL, &max))
        return false;
    int32_t n_before;
    double lse = (double)max + log(k->logprob(logits, n_vocab, max, id, &n_before));
    *out = (struct sl_logprob){.logprob = (float)((double)logits[id] - lse), .rank = n_before + 1};
    if (n_top > 0)
        top_of(logits, n_vocab, n_top, top);
    for (int32_t i = 0; i < n_top; i++)
        top[i].logprob = (float)((double)top[i].logprob - lse);
    return true;
}
