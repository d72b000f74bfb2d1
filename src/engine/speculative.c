/* SPDX-License-Identifier: MIT */
#include "engine/speculative.h"

#include "base/check.h"
#include "base/limits.h"
#include "sluice.h"

#include <jansson.h>
#include <stdio.h>
#include <string.h>

enum { MAX_KEYS = 8 };

#define ALONE "5" /* tokens, with a model and nothing else */

struct method {
    const char *name;
    enum sl_draft_method id;
    const char *keys[MAX_KEYS]; /* besides those that all methods take */
    /* Reads them, and sets what is not given. */
    int (*read)(const json_t *o, struct sl_speculative *out, struct sl_error *err);
};

static const char *const common_keys[] = {"method", "num_speculative_tokens",
                                          "rejection_sample_method", "synthetic_acceptance_rates",
                                          "synthetic_acceptance_length"};

static int read_int(const json_t *o, const char *key, int32_t min, int32_t max, int32_t *out,
                    struct sl_error *err)
{
    const json_t *v = json_object_get(o, key);
    if (v == NULL || json_is_null(v))
        return 0;
    const json_int_t n = json_integer_value(v);
    if (!json_is_integer(v) || n < min || n > max)
        return sl_fail(err, SL_EINVAL, "speculative-config: %s must be an integer from %d to %d",
                       key, min, max);
    *out = (int32_t)n;
    return 0;
}

static int read_float(const json_t *o, const char *key, double max, float *out,
                      struct sl_error *err)
{
    const json_t *v = json_object_get(o, key);
    if (v == NULL || json_is_null(v))
        return 0;
    const double x = json_number_value(v);
    if (!json_is_number(v) || !(x >= 0 && x <= max))
        return sl_fail(err, SL_EINVAL, "speculative-config: %s must be a number from 0 to %g", key,
                       max);
    *out = (float)x;
    return 0;
}

static int read_ngram(const json_t *o, struct sl_speculative *out, struct sl_error *err)
{
    int rc = read_int(o, "prompt_lookup_max", 1, SL_MAX_NGRAM, &out->prompt_lookup_max, err);
    if (rc == 0)
        rc = read_int(o, "prompt_lookup_min", 1, SL_MAX_NGRAM, &out->prompt_lookup_min, err);
    if (rc != 0)
        return rc;
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

/* What vLLM's configurations say of any model that drafts. */
static int read_model_limits(const json_t *o, struct sl_speculative *out, struct sl_error *err)
{
    const json_t *tp = json_object_get(o, "draft_tensor_parallel_size");
    if (tp != NULL && !json_is_null(tp) && (!json_is_integer(tp) || json_integer_value(tp) != 1))
        return sl_fail(err, SL_EUNSUPPORTED,
                       "speculative-config: draft_tensor_parallel_size must be 1: a model that "
                       "drafts is not divided among ranks");
    return read_int(o, "max_model_len", 1, INT32_MAX, &out->max_model_len, err);
}

/* Who finds the model (cmd/model.c) takes the revision. */
static int check_revision(const json_t *o, struct sl_error *err)
{
    const json_t *v = json_object_get(o, "revision");
    if (v == NULL || json_is_null(v) || (json_is_string(v) && json_string_length(v) > 0))
        return 0;
    return sl_fail(err, SL_EINVAL,
                   "speculative-config: revision must be a branch, tag or commit of the model that "
                   "drafts");
}

static int read_path(const json_t *o, struct sl_speculative *out, struct sl_error *err)
{
    const json_t *v = json_object_get(o, "model");
    const size_t n = json_string_length(v);
    if (!json_is_string(v) || n == 0 || n >= sizeof out->model ||
        memchr(json_string_value(v), '\0', n) != NULL)
        return sl_fail(err, SL_EINVAL,
                       "speculative-config: model must be a folder, a GGUF file or the name of a "
                       "model of the hub, of up to %zu bytes",
                       sizeof out->model - 1);
    memcpy(out->model, json_string_value(v), n);
    return 0;
}

static int read_model(const json_t *o, struct sl_speculative *out, struct sl_error *err)
{
    int rc = read_path(o, out, err);
    if (rc == 0)
        rc = check_revision(o, err);
    return rc == 0 ? read_model_limits(o, out, err) : rc;
}

/* Defaults are vLLM's. */
static int read_suffix(const json_t *o, struct sl_speculative *out, struct sl_error *err)
{
    out->suffix_max_tree_depth = 24;
    out->suffix_max_cached_requests = 10000;
    out->suffix_corpus_tokens = 1 << 20;
    out->suffix_max_spec_factor = 1.0f;
    out->suffix_min_token_prob = 0.1f;
    int rc = read_int(o, "suffix_decoding_max_tree_depth", 2, SL_MAX_SUFFIX_DEPTH,
                      &out->suffix_max_tree_depth, err);
    if (rc == 0)
        rc = read_int(o, "suffix_decoding_max_cached_requests", 0, SL_MAX_SUFFIX_OUTPUTS,
                      &out->suffix_max_cached_requests, err);
    if (rc == 0)
        rc = read_int(o, "suffix_decoding_corpus_tokens", 1, SL_MAX_SUFFIX_CORPUS,
                      &out->suffix_corpus_tokens, err);
    if (rc == 0)
        rc = read_float(o, "suffix_decoding_max_spec_factor", SL_MAX_SUFFIX_DEPTH,
                        &out->suffix_max_spec_factor, err);
    if (rc == 0)
        rc = read_float(o, "suffix_decoding_min_token_prob", 1, &out->suffix_min_token_prob, err);
    if (out->num_speculative_tokens == 0)
        out->num_speculative_tokens = SL_MIN(out->suffix_max_tree_depth, SL_MAX_DRAFTED);
    return rc;
}

/* vLLM has to be told that a drafter makes all drafts in one step (P-EAGLE); here its checkpoint
 * says so, and this is compared with it. */
static int read_eagle3(const json_t *o, struct sl_speculative *out, struct sl_error *err)
{
    const json_t *v = json_object_get(o, "parallel_drafting");
    if (v != NULL && !json_is_null(v) && !json_is_boolean(v))
        return sl_fail(err, SL_EINVAL,
                       "speculative-config: parallel_drafting must be true or false");
    out->parallel_drafting = json_is_true(v);
    return read_model(o, out, err);
}

/* The model's own checkpoint has it. vLLM's configurations may name that, too. */
static int read_mtp(const json_t *o, struct sl_speculative *out, struct sl_error *err)
{
    const json_t *v = json_object_get(o, "model");
    int rc = v == NULL || json_is_null(v) ? 0 : read_path(o, out, err);
    return rc == 0 ? read_model_limits(o, out, err) : rc;
}

/* The first drafts are right, one sometimes, and no later one: the least variance of a step. */
static int read_synthetic_length(const json_t *v, struct sl_speculative *out, struct sl_error *err)
{
    const int32_t n = out->num_speculative_tokens;
    double rest = json_number_value(v) - 1;
    if (!json_is_number(v) || !(rest >= 0 && rest <= n))
        return sl_fail(err, SL_EINVAL,
                       "speculative-config: synthetic_acceptance_length must be a number from 1 to "
                       "%d, the tokens of a step with %d drafts",
                       n + 1, n);
    SL_ASSERT(n >= 1 && n <= SL_MAX_DRAFTED);
    for (int32_t i = 0; i < n; i++, rest = SL_MAX(rest - 1, 0))
        out->synthetic_rates[i] = (float)SL_MIN(rest, 1);
    return 0;
}

static int read_synthetic_rates(const json_t *v, struct sl_speculative *out, struct sl_error *err)
{
    const int32_t n = out->num_speculative_tokens;
    if (!json_is_array(v) || json_array_size(v) != (size_t)n)
        return sl_fail(err, SL_EINVAL,
                       "speculative-config: synthetic_acceptance_rates must be a list of %d "
                       "numbers, one for each draft",
                       n);
    for (int32_t i = 0; i < n; i++) {
        const json_t *rate = json_array_get(v, (size_t)i);
        const double x = json_number_value(rate);
        if (!json_is_number(rate) || !(x >= 0 && x <= 1) ||
            (i > 0 && (float)x > out->synthetic_rates[i - 1]))
            return sl_fail(err, SL_EINVAL,
                           "speculative-config: synthetic_acceptance_rates must be from 0 to 1, "
                           "and none greater than the one before it");
        out->synthetic_rates[i] = (float)x;
    }
    return 0;
}

/* By vLLM's names. */
static int read_synthetic(const json_t *o, struct sl_speculative *out, struct sl_error *err)
{
    const json_t *how = json_object_get(o, "rejection_sample_method");
    const json_t *rates = json_object_get(o, "synthetic_acceptance_rates"),
                 *length = json_object_get(o, "synthetic_acceptance_length");
    const char *name = json_is_string(how) ? json_string_value(how) : "";
    out->synthetic = strcmp(name, "synthetic") == 0;
    if (how != NULL && !out->synthetic && strcmp(name, "standard") != 0)
        return sl_fail(err, SL_EUNSUPPORTED,
                       "speculative-config: rejection_sample_method must be \"standard\" or "
                       "\"synthetic\"");
    if ((rates != NULL) + (length != NULL) != (out->synthetic ? 1 : 0))
        return sl_fail(err, SL_EINVAL,
                       "speculative-config: rejection_sample_method \"synthetic\" takes "
                       "synthetic_acceptance_rates or synthetic_acceptance_length, and no other "
                       "method does");
    if (!out->synthetic)
        return 0;
    return rates != NULL ? read_synthetic_rates(rates, out, err)
                         : read_synthetic_length(length, out, err);
}

#define MODEL_KEYS "max_model_len", "draft_tensor_parallel_size"

static const struct method methods[] = {
    {"ngram", SL_DRAFT_NGRAM, {"prompt_lookup_max", "prompt_lookup_min"}, read_ngram},
    {"draft_model", SL_DRAFT_MODEL, {"model", "revision", MODEL_KEYS}, read_model},
    {"suffix",
     SL_DRAFT_SUFFIX,
     {"suffix_decoding_max_tree_depth", "suffix_decoding_max_cached_requests",
      "suffix_decoding_corpus_tokens", "suffix_decoding_max_spec_factor",
      "suffix_decoding_min_token_prob"},
     read_suffix},
    {"mtp", SL_DRAFT_MTP, {"model", MODEL_KEYS}, read_mtp},
    {"eagle3",
     SL_DRAFT_EAGLE3,
     {"model", "revision", "parallel_drafting", MODEL_KEYS},
     read_eagle3},
    {"dflash", SL_DRAFT_DFLASH, {"model", "revision", MODEL_KEYS}, read_model},
    {"dspark", SL_DRAFT_DSPARK, {"model", "revision", MODEL_KEYS}, read_model},
};

/* vLLM's names of mtp by the family of the model. */
static const char *const mtp_names[] = {"deepseek_mtp", "glm4_moe_mtp", "qwen3_next_mtp",
                                        "qwen3_5_mtp",  "mimo_mtp",     "gemma4_mtp"};

static const char *usual_name(const char *name)
{
    for (size_t i = 0; i < SL_COUNT(mtp_names); i++)
        if (strcmp(name, mtp_names[i]) == 0)
            return "mtp";
    return name;
}

/* Where none is given, as vLLM has it: with a model that one drafts. */
static const struct method *default_method(const json_t *o)
{
    const json_t *model = json_object_get(o, "model");
    return model != NULL && !json_is_null(model) ? &methods[1] : &methods[0];
}

/* "a, b": what an error says may be given. */
static void join(char *out, size_t size, const char *name)
{
    const size_t n = strlen(out);
    SL_ASSERT(n + strlen(name) + sizeof ", " <= size);
    snprintf(out + n, size - n, "%s%s", n > 0 ? ", " : "", name);
}

static int find_method(const json_t *o, const struct method **out, struct sl_error *err)
{
    const json_t *given = json_object_get(o, "method");
    char names[200] = "";
    *out = default_method(o);
    if (given == NULL || json_is_null(given))
        return 0;
    for (size_t i = 0; i < SL_COUNT(methods); i++) {
        *out = &methods[i];
        if (json_is_string(given) &&
            strcmp(usual_name(json_string_value(given)), (*out)->name) == 0)
            return 0;
        join(names, sizeof names, (*out)->name);
    }
    return sl_fail(err, SL_EUNSUPPORTED, "speculative-config: method '%.40s' is not one of: %s",
                   json_is_string(given) ? json_string_value(given) : "?", names);
}

static int check_keys(const json_t *o, const struct method *m, struct sl_error *err)
{
    const char *key;
    const json_t *v;
    json_object_foreach((json_t *)(uintptr_t)o, key, v)
    {
        char names[500] = "";
        bool found = false;
        for (size_t i = 0; i < SL_COUNT(common_keys); i++) {
            found = found || strcmp(key, common_keys[i]) == 0;
            join(names, sizeof names, common_keys[i]);
        }
        for (size_t i = 0; i < MAX_KEYS && m->keys[i] != NULL; i++) {
            found = found || strcmp(key, m->keys[i]) == 0;
            join(names, sizeof names, m->keys[i]);
        }
        if (!found)
            return sl_fail(err, SL_EINVAL,
                           "speculative-config: '%.40s' is not one of what method %s takes: %s",
                           key, m->name, names);
    }
    return 0;
}

static int read_config(const json_t *o, struct sl_speculative *out, struct sl_error *err)
{
    const struct method *m = NULL;
    int rc = find_method(o, &m, err);
    if (rc == 0)
        rc = check_keys(o, m, err);
    if (rc == 0)
        rc = read_int(o, "num_speculative_tokens", 1, SL_MAX_DRAFTED, &out->num_speculative_tokens,
                      err);
    if (rc == 0)
        rc = m->read(o, out, err);
    if (rc != 0)
        return rc;
    SL_ASSERT(out->num_speculative_tokens <= SL_MAX_DRAFTED);
    if (out->num_speculative_tokens == 0)
        return sl_fail(err, SL_EINVAL, "speculative-config: num_speculative_tokens is missing");
    out->method = m->id;
    return read_synthetic(o, out, err);
}

int sl_speculative_parse(const char *json, const char *model, struct sl_speculative *out,
                         struct sl_error *err)
{
    json_error_t why;
    *out = (struct sl_speculative){0};
    if (json == NULL && model == NULL)
        return 0;
    if (json == NULL)
        json = "{\"num_speculative_tokens\": " ALONE "}";
    json_t *o = json_loads(json, JSON_REJECT_DUPLICATES, &why);
    if (json_is_object(o) && model != NULL &&
        json_object_set_new(o, "model", json_string(model)) != 0) {
        json_decref(o);
        return sl_fail(err, SL_EINVAL, "speculative-model: not a path in UTF-8");
    }
    if (!json_is_object(o)) {
        json_decref(o);
        return sl_fail(err, SL_EINVAL,
                       "speculative-config: '%.40s' is not a JSON object such as "
                       "{\"method\": \"ngram\", \"num_speculative_tokens\": 5, "
                       "\"prompt_lookup_max\": 4, \"prompt_lookup_min\": 2}",
                       json);
    }
    int rc = read_config(o, out, err);
    SL_ASSERT(rc != 0 || (out->num_speculative_tokens >= 1 && out->method != SL_DRAFT_NONE));
    json_decref(o);
    return rc;
}

const char *sl_speculative_name(const struct sl_speculative *s)
{
    size_t i = 0;
    while (i < SL_COUNT(methods) && methods[i].id != s->method)
        i++;
    SL_ASSERT(i < SL_COUNT(methods) || s->method == SL_DRAFT_NONE);
    return i < SL_COUNT(methods) ? methods[i].name : NULL;
}
