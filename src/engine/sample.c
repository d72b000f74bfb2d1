/* SPDX-License-Identifier: MIT
 * Nothing here sorts, and every sum is one of integers (sl_weight), so neither has an order.
 * The passes over whole rows are in sample_rows_tmpl.c. Without top_k and top_p one makes the sums
 * of blocks, and the draw walks them. With one of these a probability is found above which all lies
 * that can be kept (by top_k from the maxima of groups of 16 elements, by top_p from the mass that
 * may be left out); what lies above it, usually some hundreds or thousands, is narrowed down digit
 * by digit to the last token that is kept.
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

#define SUM_BLOCK SL_ROW_BLOCK
#define N_DIGITS  1024 /* of a key: its bits from 19, then from 9, then from 0 on */
#define KEY_ZERO  0x3FFFFFFFu

int sl_sampler_init(struct sl_sampler *s, int32_t n_vocab, struct sl_error *err)
{
    SL_ASSERT(n_vocab > 0 && n_vocab <= SL_MAX_VOCAB);
    size_t n = (size_t)n_vocab;
    *s = (struct sl_sampler){.n_vocab = n_vocab, .k = sl_row_kernels()};
    s->logits = sl_calloc(n, sizeof *s->logits);
    s->sums = sl_calloc(n / SUM_BLOCK + 1, sizeof *s->sums);
    s->group_max = sl_calloc((n / SUM_BLOCK + 1) * SL_ROW_GROUPS, sizeof *s->group_max);
    s->group_prob = sl_calloc((n / SUM_BLOCK + 1) * SL_ROW_GROUPS, sizeof *s->group_prob);
    s->cands = sl_calloc(n, sizeof *s->cands);
    s->cands_part = sl_calloc(n, sizeof *s->cands_part);
    if (s->logits == NULL || s->sums == NULL || s->group_max == NULL || s->group_prob == NULL ||
        s->cands == NULL || s->cands_part == NULL) {
        sl_sampler_deinit(s);
        return sl_fail(err, SL_ENOMEM, "out of memory for sampling over %d tokens", n_vocab);
    }
    return 0;
}

void sl_sampler_deinit(struct sl_sampler *s)
{
    sl_free(s->cands_part);
    sl_free(s->cands);
    sl_free(s->group_prob);
    sl_free(s->group_max);
    sl_free(s->sums);
    sl_free(s->logits);
    *s = (struct sl_sampler){0};
}

bool sl_sampling_has_penalty(const struct sl_sampling *p)
{
    return p->repetition_penalty != 1.0f || p->presence_penalty != 0.0f ||
           p->frequency_penalty != 0.0f;
}

/* Of single elements, besides what is allowed. */
static bool changes_row(const struct sl_sample_args *a)
{
    return a->n_banned[0] > 0 || a->n_banned[1] > 0 || a->sampling->n_logit_bias > 0 ||
           a->counts != NULL;
}

static void penalise_one(float *row, const struct sl_sampling *p, int32_t id, int32_t n_out)
{
    SL_DCHECK(id >= 0 && p->repetition_penalty > 0.0f);
    float x = row[id];
    x = x > 0.0f ? x / p->repetition_penalty : x * p->repetition_penalty;
    if (n_out > 0) {
        x -= p->frequency_penalty * (float)n_out;
        x -= p->presence_penalty;
    }
    row[id] = SL_MIN(x, FLT_MAX); /* a tiny penalty must not make the row invalid */
}

static int32_t times_in(const int32_t *ids, int32_t n, int32_t id)
{
    int32_t n_times = 0;
    for (int32_t i = 0; i < n; i++)
        n_times += ids[i] == id;
    return n_times;
}

static void penalise(float *row, const struct sl_sample_args *a)
{
    const struct sl_counts *counts = a->counts;
    SL_ASSERT(a->n_ahead == 0 || a->ahead != NULL);
    for (int32_t i = 0; i < counts->n; i++) {
        const struct sl_count *c = &counts->entries[i];
        penalise_one(row, a->sampling, c->id, c->n_out + times_in(a->ahead, a->n_ahead, c->id));
    }
    for (int32_t i = 0; i < a->n_ahead; i++) {
        int32_t id = a->ahead[i];
        if (times_in(a->ahead, i, id) == 0 && !sl_counts_has(counts, id))
            penalise_one(row, a->sampling, id, times_in(a->ahead, a->n_ahead, id));
    }
}

static void change_row(struct sl_sampler *s, const struct sl_sample_args *a)
{
    for (int list = 0; list < 2; list++)
        for (int32_t i = 0; i < a->n_banned[list]; i++)
            s->logits[a->banned[list][i]] = -INFINITY;
    for (int32_t i = 0; i < a->sampling->n_logit_bias; i++)
        s->logits[a->sampling->logit_bias[i].id] += a->sampling->logit_bias[i].bias;
    if (a->counts != NULL)
        penalise(s->logits, a);
}

/* Blocks of which nothing is allowed: the scan left them out. */
static void fill_gaps(struct sl_sampler *s)
{
    for (int32_t first = 0; first < s->n_vocab; first += SUM_BLOCK) {
        const float *group_max = s->group_max + first / SUM_BLOCK * SL_ROW_GROUPS;
        bool gap = true;
        for (int32_t g = 0; g < SL_ROW_GROUPS && gap; g++)
            gap = group_max[g] == -INFINITY;
        for (int32_t i = first; i < SL_MIN(first + SUM_BLOCK, s->n_vocab) && gap; i++)
            s->logits[i] = -INFINITY;
    }
}

/* The row to choose from, and its maxima: where those of a block are -infinity the row may hold
 * anything. NULL: there is nothing to choose, or it is no number. */
static const float *sample_row(struct sl_sampler *s, const struct sl_sample_args *a, float *max)
{
    size_t n_bytes = (size_t)s->n_vocab * sizeof *s->logits;
    bool ok = a->allowed != NULL ? s->k->scan_allowed(a->logits, s->n_vocab, a->allowed, s->logits,
                                                      s->group_max, max)
                                 : s->k->scan(a->logits, s->n_vocab, s->group_max, max);
    if (!ok)
        return NULL;
    SL_ASSERT(*max >= -FLT_MAX && *max <= FLT_MAX);
    if (!changes_row(a))
        return a->allowed != NULL ? s->logits : a->logits;
    if (a->allowed == NULL)
        memcpy(s->logits, a->logits, n_bytes);
    else
        fill_gaps(s);
    change_row(s, a);
    return s->k->scan(s->logits, s->n_vocab, s->group_max, max) ? s->logits : NULL;
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
    SL_ASSERT(row[i] == max);
    return i;
}

/* total * fraction / 2^64 without what is less than one, which is left in rest. */
static uint64_t sample_share(uint64_t total, uint64_t fraction, uint64_t *rest)
{
    unsigned __int128 wide = (unsigned __int128)total * fraction;
    *rest = (uint64_t)wide;
    return (uint64_t)(wide >> 64);
}

/* The probabilities of one block; 0 after the end of the row. */
static void block_probs(const struct sl_sampler *s, const float *row, const struct sl_row_scale *y,
                        int32_t first, float p[SUM_BLOCK])
{
    int32_t n = SL_MIN(SUM_BLOCK, s->n_vocab - first);
    SL_ASSERT(n > 0 && first % SUM_BLOCK == 0);
    s->k->probs(row + first, n, y, p);
    for (int32_t i = n; i < SUM_BLOCK; i++)
        p[i] = 0.0f;
}

/* The first id whose running sum is above `at`, which is below the sum of all. */
static int32_t draw_any(const struct sl_sampler *s, const float *row, const struct sl_row_scale *y,
                        uint64_t at)
{
    float p[SUM_BLOCK];
    int32_t b = 0, i = 0;
    while (at >= s->sums[b])
        at -= s->sums[b++];
    SL_ASSERT(b < SL_CEIL_DIV(s->n_vocab, SUM_BLOCK));
    block_probs(s, row, y, b * SUM_BLOCK, p);
    while (at >= sl_weight(p[i]))
        at -= sl_weight(p[i++]);
    SL_ASSERT(b * SUM_BLOCK + i < s->n_vocab && i < SUM_BLOCK);
    return b * SUM_BLOCK + i;
}

/* ------------------------------------------------------------------ candidates */

static inline uint32_t sample_key(float p)
{
    const union sl_float_bits k = {.f = p};
    SL_DCHECK(p >= 0.0f && (uint32_t)k.i <= KEY_ZERO);
    return KEY_ZERO - (uint32_t)k.i;
}

static inline uint64_t weight_of(uint32_t key)
{
    const union sl_float_bits k = {.i = (int32_t)(KEY_ZERO - key)};
    return sl_weight(k.f);
}

/* What is more likely than cut, in order of id, into s->cands. As exp never rises when its argument
 * falls, the maximum of a block says whether it has any. */
static int32_t sample_collect(struct sl_sampler *s, const float *row, const struct sl_row_scale *y,
                              float cut)
{
    int32_t n = 0;
    for (int32_t first = 0; first < s->n_vocab; first += SUM_BLOCK) {
        const float *group_max = s->group_max + first / SUM_BLOCK * SL_ROW_GROUPS;
        float top = group_max[0], p[SUM_BLOCK];
        for (int32_t g = 1; g < SL_ROW_GROUPS; g++)
            top = group_max[g] > top ? group_max[g] : top;
        if (!(sl_exp_neg((top - y->max) * y->inv_t) > cut))
            continue;
        uint64_t hits[SUM_BLOCK / 64];
        block_probs(s, row, y, first, p);
        if (!s->k->above(p, cut, hits))
            continue;
        for (int32_t w = 0; w < SUM_BLOCK / 64; w++) {
            for (; hits[w] != 0; hits[w] &= hits[w] - 1) {
                int32_t i = w * 64 + __builtin_ctzll(hits[w]);
                s->cands[n++] = (struct sl_cand){sample_key(p[i]), first + i};
            }
        }
    }
    SL_ASSERT(n <= s->n_vocab);
    return n;
}

/* The k most likely are above this, as k groups have an element there. */
static float cut_by_groups(struct sl_sampler *s, const struct sl_row_scale *y, int32_t k)
{
    uint32_t count[N_DIGITS] = {0}, d = 0;
    int32_t n_groups = SL_CEIL_DIV(s->n_vocab, SUM_BLOCK) * SL_ROW_GROUPS;
    SL_ASSERT(k > 0 && k < s->n_vocab);
    if (k > n_groups)
        return SL_WEIGHT_ALIVE;
    s->k->probs(s->group_max, n_groups, y, s->group_prob);
    for (int32_t i = 0; i < n_groups; i++)
        if (s->group_prob[i] > SL_WEIGHT_ALIVE)
            count[sample_key(s->group_prob[i]) >> 19]++;
    for (int64_t seen = count[0]; seen < k && d < N_DIGITS - 1;)
        seen += count[++d];
    const union sl_float_bits edge = {.i = (int32_t)(KEY_ZERO - ((d + 1) << 19))};
    return SL_MAX(edge.f, SL_WEIGHT_ALIVE);
}

/* What is not above this weighs at most `spare` in all, however many there are. */
static float cut_by_mass(const struct sl_sampler *s, uint64_t spare)
{
    double each = ((double)spare / s->n_vocab - 1.0) / (double)SL_WEIGHT_ONE;
    float cut = (float)(each * 0.999);
    return SL_MAX(cut, SL_WEIGHT_ALIVE);
}

/* ------------------------------------------------------------------ filters */

struct prefix { /* of the tokens by probability, ties by id: up to this key, and of it to this id */
    uint32_t key;
    int32_t id;
    uint64_t mass;
};

/* The shortest prefix of the candidates that has `want` tokens or, by_mass, weighs as much; all of
 * them when they come to less. Digit by digit: digits of more likely tokens are in, and those with
 * the digit where the sum is reached go on to the next. */
static struct prefix shortest(struct sl_sampler *s, int32_t n, uint64_t want, bool by_mass)
{
    const struct sl_cand *from = s->cands;
    uint64_t before = 0;
    SL_ASSERT(want > 0 && n <= s->n_vocab);
    for (int shift = 19; shift >= 0; shift = shift == 9 ? 0 : shift - 10) {
        uint32_t count[N_DIGITS] = {0}, mask = shift > 0 ? N_DIGITS - 1 : 511, d = 0;
        uint64_t mass[N_DIGITS] = {0};
        for (int32_t i = 0; i < n; i++) {
            uint32_t digit = (from[i].key >> shift) & mask;
            count[digit]++;
            mass[digit] += weight_of(from[i].key);
        }
        for (; d <= mask && want > (by_mass ? mass[d] : count[d]); d++) {
            want -= by_mass ? mass[d] : count[d];
            before += mass[d];
        }
        if (d > mask) /* only of the first digit */
            return (struct prefix){UINT32_MAX, INT32_MAX, before};
        int32_t m = 0;
        for (int32_t i = 0; i < n; i++)
            if (((from[i].key >> shift) & mask) == d)
                s->cands_part[m++] = from[i];
        from = s->cands_part;
        SL_ASSERT(m > 0); /* `want` is reached in this digit */
        n = m;
    }
    uint64_t each = weight_of(from[0].key), n_in = by_mass ? SL_CEIL_DIV(want, each) : want;
    SL_ASSERT(n_in >= 1 && n_in <= (uint64_t)n);
    return (struct prefix){from[0].key, from[n_in - 1].id, before + n_in * each};
}

struct filter {
    int32_t k;         /* 0 = off */
    uint64_t fraction; /* top_p of 2^64; 0 = off */
};

/* top_p is a share of the mass that min_p and top_k leave; total: of all that min_p leaves. */
static int32_t draw_filtered(struct sl_sampler *s, const float *row, const struct sl_row_scale *y,
                             const struct filter *f, uint64_t total, uint64_t random)
{
    struct prefix kept = {UINT32_MAX, INT32_MAX, total};
    uint64_t rest = 0, want = 0;
    int32_t n = 0;
    if (f->k > 0) {
        n = sample_collect(s, row, y, cut_by_groups(s, y, f->k));
        kept = shortest(s, n, (uint64_t)f->k, false);
    }
    if (f->fraction > 0) {
        want = sample_share(kept.mass, f->fraction, &rest);
        want += rest > 0;
        if (f->k == 0)
            n = sample_collect(s, row, y, cut_by_mass(s, total - want));
        kept = shortest(s, n, want, true);
    }
    uint64_t at = sample_share(kept.mass, random, &rest);
    for (const struct sl_cand *c = s->cands;; c++) {
        SL_DCHECK(c < s->cands + n); /* `at` is below the mass of what is kept */
        if (c->key > kept.key || (c->key == kept.key && c->id > kept.id))
            continue;
        uint64_t w = weight_of(c->key);
        if (at < w)
            return c->id;
        at -= w;
    }
}

/* top_p as a share of 2^64; never 0, which would be off. */
static uint64_t fraction_of(float p)
{
    double scaled = (double)SL_MAX(p, 0.0f) * 0x1p64;
    return SL_MAX((uint64_t)scaled, 1);
}

int32_t sl_sample(struct sl_sampler *s, const struct sl_sample_args *a)
{
    const struct sl_sampling *p = a->sampling;
    float max;
    const float *row = sample_row(s, a, &max);
    if (row == NULL)
        return -1;
    if (p->temperature < SL_GREEDY_BELOW)
        return first_max(s, row, max);
    uint64_t random = sl_rng_at(a->seed, a->pos), rest, total = 0;
    struct sl_row_scale y = {.max = max, .inv_t = 1.0f / p->temperature, .floor = SL_EXP_MIN};
    struct filter f = {.k = p->top_k > 0 && p->top_k < s->n_vocab ? p->top_k : 0,
                       .fraction = p->top_p < 1.0f ? fraction_of(p->top_p) : 0};
    if (p->min_p > 0.0f)
        y.floor = SL_MAX(y.floor, logf(p->min_p));
    if (f.k == 0)
        total = s->k->weigh(row, s->n_vocab, &y, s->group_max, s->sums);
    SL_ASSERT(f.k != 0 || total > 0); /* the most likely one weighs something */
    if (f.k == 0 && f.fraction == 0)
        return draw_any(s, row, &y, sample_share(total, random, &rest));
    return draw_filtered(s, row, &y, &f, total, random);
}

static bool better(float a, int32_t a_id, float b, int32_t b_id)
{
    return a > b || (a == b && a_id < b_id);
}

static void sample_top(const float *x, int32_t n_vocab, int32_t n_top, struct sl_top_logprob *top)
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
    SL_ASSERT(n == n_top);
}

/* top[i].logprob is a logit at first: of the best, or of the ids that are there. */
static bool logprobs(const float *logits, int32_t n_vocab, int32_t id, int32_t n_top, bool best,
                     struct sl_logprob *out, struct sl_top_logprob *top)
{
    float max;
    SL_ASSERT(id >= 0 && id < n_vocab && n_top >= 0);
    const struct sl_row_kernels *k = sl_row_kernels();
    if (!k->scan(logits, n_vocab, NULL, &max))
        return false;
    int32_t n_before;
    uint64_t sum = k->logprob(logits, n_vocab, max, id, &n_before);
    SL_ASSERT(sum > 0 && n_before >= 0 && n_before < n_vocab);
    double lse = (double)max + log((double)sum / (double)SL_WEIGHT_ONE);
    *out = (struct sl_logprob){.logprob = (float)((double)logits[id] - lse), .rank = n_before + 1};
    if (best && n_top > 0)
        sample_top(logits, n_vocab, n_top, top);
    for (int32_t i = 0; i < n_top; i++)
        top[i].logprob = (float)((double)(best ? top[i].logprob : logits[top[i].id]) - lse);
    return true;
}

bool sl_logprobs(const float *logits, int32_t n_vocab, int32_t id, int32_t n_top,
                 struct sl_logprob *out, struct sl_top_logprob *top)
{
    SL_ASSERT(n_top <= n_vocab);
    return logprobs(logits, n_vocab, id, n_top, true, out, top);
}

bool sl_logprobs_of(const float *logits, int32_t n_vocab, int32_t id, int32_t n_top,
                    struct sl_logprob *out, struct sl_top_logprob *top)
{
    return logprobs(logits, n_vocab, id, n_top, false, out, top);
}
