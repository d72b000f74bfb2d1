/* SPDX-License-Identifier: MIT */
#include "engine/ngram.h"

#include "base/check.h"
#include "base/limits.h"
#include "sluice.h"

#include <jansson.h>
#include <string.h>

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

/* ------------------------------------------------------------------ configuration */

static int speculative_int(const json_t *o, const char *key, int32_t max, int32_t *out,
                           struct sl_error *err)
{
    const json_t *v = json_object_get(o, key);
    if (v == NULL || json_is_null(v))
        return 0;
    const json_int_t n = json_integer_value(v);
    if (!json_is_integer(v) || n < 1 || n > max)
        return sl_fail(err, SL_EINVAL, "speculative-config: %s must be an integer from 1 to %d",
                       key, max);
    *out = (int32_t)n;
    return 0;
}

static int speculative_keys(const json_t *o, struct sl_error *err)
{
    static const char *const known[] = {"method", "num_speculative_tokens", "prompt_lookup_max",
                                        "prompt_lookup_min"};
    const char *key;
    const json_t *v;
    json_object_foreach((json_t *)(uintptr_t)o, key, v)
    {
        bool found = false;
        for (size_t i = 0; i < SL_COUNT(known) && !found; i++)
            found = strcmp(key, known[i]) == 0;
        if (!found)
            return sl_fail(err, SL_EINVAL,
                           "speculative-config: '%.40s' is not one of: method, "
                           "num_speculative_tokens, prompt_lookup_max, prompt_lookup_min",
                           key);
    }
    return 0;
}

static int speculative_read(const json_t *o, struct sl_speculative *out, struct sl_error *err)
{
    const json_t *method = json_object_get(o, "method");
    int rc = speculative_keys(o, err);
    if (rc != 0)
        return rc;
    if (method != NULL && (!json_is_string(method) || strcmp(json_string_value(method), "ngram")))
        return sl_fail(err, SL_EUNSUPPORTED,
                       "speculative-config: method '%.40s' is not one of: ngram",
                       json_is_string(method) ? json_string_value(method) : "?");
    rc = speculative_int(o, "num_speculative_tokens", SL_MAX_DRAFTED, &out->num_speculative_tokens,
                         err);
    if (rc == 0)
        rc = speculative_int(o, "prompt_lookup_max", SL_MAX_NGRAM, &out->prompt_lookup_max, err);
    if (rc == 0)
        rc = speculative_int(o, "prompt_lookup_min", SL_MAX_NGRAM, &out->prompt_lookup_min, err);
    if (rc != 0)
        return rc;
    if (out->num_speculative_tokens == 0)
        return sl_fail(err, SL_EINVAL, "speculative-config: num_speculative_tokens is missing");
    if (out->prompt_lookup_max == 0) /* as vLLM: one alone is both, and neither is 5 */
        out->prompt_lookup_max = out->prompt_lookup_min != 0 ? out->prompt_lookup_min : 5;
    if (out->prompt_lookup_min == 0)
        out->prompt_lookup_min = out->prompt_lookup_max;
    if (out->prompt_lookup_min > out->prompt_lookup_max)
        return sl_fail(err, SL_EINVAL,
                       "speculative-config: prompt_lookup_min %d is greater than "
                       "prompt_lookup_max %d",
                       out->prompt_lookup_min, out->prompt_lookup_max);
    return 0;
}

int sl_speculative_parse(const char *json, struct sl_speculative *out, struct sl_error *err)
{
    json_error_t why;
    *out = (struct sl_speculative){0};
    json_t *o = json_loads(json, JSON_REJECT_DUPLICATES, &why);
    if (!json_is_object(o)) {
        json_decref(o);
        return sl_fail(err, SL_EINVAL,
                       "speculative-config: '%.40s' is not a JSON object such as "
                       "{\"method\": \"ngram\", \"num_speculative_tokens\": 5, "
                       "\"prompt_lookup_max\": 4, \"prompt_lookup_min\": 2}",
                       json);
    }
    int rc = speculative_read(o, out, err);
    SL_ASSERT(rc != 0 || (out->num_speculative_tokens >= 1 && out->prompt_lookup_min >= 1));
    SL_ASSERT(rc != 0 || (out->prompt_lookup_min <= out->prompt_lookup_max));
    json_decref(o);
    return rc;
}
