/* SPDX-License-Identifier: MIT */
#include "engine/ngram.h"

#include "base/check.h"

#define LOOK 32 /* tokens compared at once */

struct ngram_text {
    const int32_t *a, *b;
    int32_t n_a, n; /* of a, of both */
};

static int32_t ngram_token(const struct ngram_text *t, int32_t i)
{
    SL_DCHECK(i >= 0 && i < t->n);
    return i < t->n_a ? t->a[i] : t->b[i - t->n_a];
}

/* The last place of a token before `end`, -1: none. */
static int32_t ngram_last(const int32_t *ids, int32_t end, int32_t id)
{
    SL_DCHECK(end >= 0);
    while (end >= LOOK) {
        int32_t any = 0;
        for (int32_t i = end - LOOK; i < end; i++)
            any |= ids[i] == id;
        if (any != 0)
            break;
        end -= LOOK;
    }
    do
        end--;
    while (end >= 0 && ids[end] != id);
    return end;
}

/* Likewise in both parts. */
static int32_t ngram_before(const struct ngram_text *t, int32_t end, int32_t id)
{
    SL_DCHECK(end >= 0 && end < t->n);
    int32_t i = end > t->n_a ? ngram_last(t->b, end - t->n_a, id) : -1;
    return i >= 0 ? t->n_a + i : ngram_last(t->a, SL_MIN(end, t->n_a), id);
}

/* How many tokens up to the one at i are the text's last ones; at most max. */
static int32_t ngram_match(const struct ngram_text *t, int32_t i, int32_t max)
{
    int32_t n = 0;
    while (n < max && i - n >= 0 && ngram_token(t, i - n) == ngram_token(t, t->n - 1 - n))
        n++;
    return n;
}

int32_t sl_ngram_find(const struct sl_speculative *how, const int32_t *a, int32_t n_a,
                      const int32_t *b, int32_t n_b, int32_t n, int32_t *out)
{
    const struct ngram_text t = {a, b, n_a, n_a + n_b};
    int32_t best = -1, n_best = how->prompt_lookup_min - 1;
    SL_ASSERT(how->prompt_lookup_min >= 1 && how->prompt_lookup_min <= how->prompt_lookup_max);
    SL_ASSERT(n_a >= 0 && n_b >= 0);
    if (t.n < 2 || n < 1)
        return 0;
    const int32_t last = ngram_token(&t, t.n - 1);
    for (int32_t i = ngram_before(&t, t.n - 1, last);
         i >= how->prompt_lookup_min - 1 && n_best < how->prompt_lookup_max;
         i = ngram_before(&t, i, last)) {
        int32_t m = ngram_match(&t, i, how->prompt_lookup_max);
        if (m > n_best) {
            n_best = m;
            best = i;
        }
    }
    if (best < 0)
        return 0;
    SL_ASSERT(best < t.n - 1);        /* so that something follows */
    for (int32_t i = 0; i < n; i++) { /* a text that repeats itself goes on so */
        int32_t from = best + 1 + i;
        out[i] = from < t.n ? ngram_token(&t, from) : out[from - t.n];
    }
    return n;
}
