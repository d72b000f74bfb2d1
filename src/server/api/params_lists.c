/* SPDX-License-Identifier: MIT
 *
 * The fields that are lists: stop strings, token ids, biases, words.
 */
#include "base/check.h"
#include "base/limits.h"
#include "base/str.h"
#include "base/sys.h"
#include "server/api/params.h"

#include <string.h>

#define MAX_WORDS      (SL_MAX_BAD_WORDS / 2) /* each is tokenised in two ways */
#define MAX_WORD_BYTES 256

static int parse_stop(struct sl_params *p, struct sl_refusal *r)
{
    const json_t *v = p->stop;
    const char *name = p->endpoint == SL_ENDPOINT_MESSAGES ? "stop_sequences" : "stop";
    if (v == NULL)
        return 0;
    if (!json_is_string(v) && !json_is_array(v))
        return sl_refuse(r, SL_EINVAL, name, "%s must be a string or an array of strings", name);
    size_t n = json_is_array(v) ? json_array_size(v) : 1;
    if (n > SL_MAX_STOPS)
        return sl_refuse(r, SL_ELIMIT, name, "%s has more than %d strings", name, SL_MAX_STOPS);
    const char **list = sl_arena_array(&p->arena, n + 1, sizeof *list);
    if (list == NULL)
        return sl_refuse(r, SL_ENOMEM, name, "out of memory");
    for (size_t i = 0; i < n; i++) {
        const json_t *item = json_is_array(v) ? json_array_get(v, i) : v;
        int rc = sl_json_cstr(item, name, SL_MAX_STOP_BYTES, &list[i], r);
        if (rc != 0)
            return rc;
        if (list[i][0] == '\0')
            return sl_refuse(r, SL_EINVAL, name, "%s must not contain an empty string", name);
    }
    p->sampling.stop = list;
    p->sampling.n_stop = (int32_t)n;
    return 0;
}

struct ids {
    const char *name;
    const json_t *v;
    int32_t max;
    const int32_t **list;
    int32_t *n;
};

static int params_lists_parse_ids(struct sl_params *p, const struct ids *f, int32_t n_vocab,
                                  struct sl_refusal *r)
{
    if (f->v == NULL)
        return 0;
    if (!json_is_array(f->v))
        return sl_refuse(r, SL_EINVAL, f->name, "%s must be an array of integers", f->name);
    size_t n = json_array_size(f->v);
    if (n > (size_t)f->max)
        return sl_refuse(r, SL_ELIMIT, f->name, "%s has more than %d ids", f->name, f->max);
    int32_t *ids = sl_arena_array(&p->arena, n + 1, sizeof *ids);
    if (ids == NULL)
        return sl_refuse(r, SL_ENOMEM, f->name, "out of memory");
    for (size_t i = 0; i < n; i++) {
        int64_t id;
        int rc = sl_json_int(json_array_get(f->v, i), f->name, 0, n_vocab - 1, &id, r);
        if (rc != 0)
            return rc;
        ids[i] = (int32_t)id;
    }
    *f->list = ids;
    *f->n = (int32_t)n;
    SL_ASSERT(*f->n <= f->max);
    return 0;
}

static int parse_all_ids(struct sl_params *p, int32_t n_vocab, struct sl_refusal *r)
{
    struct sl_sampling *s = &p->sampling;
    const struct ids fields[] = {
        {"stop_token_ids", p->stop_token_ids, SL_MAX_STOP_IDS, &s->stop_token_ids,
         &s->n_stop_token_ids},
        {"allowed_token_ids", p->allowed_token_ids, n_vocab, &s->allowed_token_ids,
         &s->n_allowed_token_ids},
        {"logprob_token_ids", p->logprob_token_ids, SL_MAX_LOGPROB_IDS, &s->logprob_token_ids,
         &s->n_logprob_token_ids},
    };
    for (size_t i = 0; i < SL_COUNT(fields); i++) {
        int rc = params_lists_parse_ids(p, &fields[i], n_vocab, r);
        if (rc != 0)
            return rc;
        if (i > 0 && fields[i].v != NULL && *fields[i].n == 0)
            return sl_refuse(r, SL_EINVAL, fields[i].name, "%s must not be empty", fields[i].name);
    }
    return 0;
}

static int parse_logit_bias(struct sl_params *p, const struct sl_param_limits *limits,
                            struct sl_refusal *r)
{
    static const char name[] = "logit_bias";
    const json_t *v = p->logit_bias, *value;
    const char *key;
    if (v == NULL)
        return 0;
    if (!json_is_object(v))
        return sl_refuse(r, SL_EINVAL, name, "%s must be an object of token id to bias", name);
    size_t n = json_object_size(v), i = 0;
    if (n > SL_MAX_LOGIT_BIAS)
        return sl_refuse(r, SL_ELIMIT, name, "%s has more than %d entries", name,
                         SL_MAX_LOGIT_BIAS);
    struct sl_logit_bias *list = sl_arena_array(&p->arena, n + 1, sizeof *list);
    if (list == NULL)
        return sl_refuse(r, SL_ENOMEM, name, "out of memory");
    json_object_foreach((json_t *)(uintptr_t)v, key, value)
    {
        uint64_t id;
        double bias = 0;
        if (!sl_parse_u64(key, strlen(key), &id) || id >= (uint64_t)limits->n_vocab)
            return sl_refuse(r, SL_EINVAL, name, "%s: key '%.32s' is not a token id below %d", name,
                             key, limits->n_vocab);
        int rc = sl_json_number(value, name, -100, 100, &bias, r);
        if (rc != 0)
            return rc;
        list[i++] = (struct sl_logit_bias){(int32_t)id, (float)bias};
    }
    SL_ASSERT(i == n);
    p->sampling.logit_bias = list;
    p->sampling.n_logit_bias = (int32_t)n;
    return 0;
}

/* {"max_pattern_size": 20, "min_pattern_size": 1, "min_count": 4} */
static int parse_repetition(struct sl_params *p, struct sl_refusal *r)
{
    static const char name[] = "repetition_detection";
    const json_t *v = p->repetition_detection, *value;
    struct sl_repetition *out = &p->sampling.repetition;
    const char *key;
    if (v == NULL)
        return 0;
    if (!json_is_object(v))
        return sl_refuse(r, SL_EINVAL, name, "%s must be an object", name);
    json_object_foreach((json_t *)(uintptr_t)v, key, value)
    {
        int32_t *field = strcmp(key, "max_pattern_size") == 0   ? &out->max_size
                         : strcmp(key, "min_pattern_size") == 0 ? &out->min_size
                         : strcmp(key, "min_count") == 0        ? &out->min_count
                                                                : NULL;
        int64_t x = 0;
        if (field == NULL)
            return sl_refuse(r, SL_EINVAL, name, "%s: unknown member '%.32s'", name, key);
        int rc = sl_json_int(value, name, 0, SL_MAX_REPETITION, &x, r);
        if (rc != 0)
            return rc;
        *field = (int32_t)x;
    }
    if (out->min_size > out->max_size)
        return sl_refuse(r, SL_EINVAL, name, "%s: min_pattern_size is above max_pattern_size",
                         name);
    if (out->max_size > 0 && out->min_count < 2)
        return sl_refuse(r, SL_EINVAL, name, "%s: min_count must be at least 2", name);
    out->min_size = out->max_size > 0 ? SL_MAX(out->min_size, 1) : 0;
    return 0;
}

/* Their types; what tokens they are follows from the model. */
static int check_words(const struct sl_params *p, struct sl_refusal *r)
{
    static const char name[] = "bad_words";
    const json_t *v = p->bad_words;
    const char *word;
    if (v == NULL)
        return 0;
    if (!json_is_array(v))
        return sl_refuse(r, SL_EINVAL, name, "%s must be an array of strings", name);
    if (json_array_size(v) > MAX_WORDS)
        return sl_refuse(r, SL_ELIMIT, name, "%s has more than %d strings", name, MAX_WORDS);
    for (size_t i = 0; i < json_array_size(v); i++) {
        int rc = sl_json_cstr(json_array_get(v, i), name, MAX_WORD_BYTES, &word, r);
        if (rc != 0)
            return rc;
        if (word[strspn(word, " ")] == '\0')
            return sl_refuse(r, SL_EINVAL, name, "%s must not contain an empty string", name);
    }
    return 0;
}

/* OpenAI's predicted outputs: {"type": "content", "content": text or parts of text}. */
static int check_prediction(const struct sl_params *p, struct sl_refusal *r)
{
    const json_t *v = p->prediction, *content = json_object_get(v, "content"),
                 *type = json_object_get(v, "type");
    if (v == NULL || json_is_null(v))
        return 0;
    if (!json_is_string(type) || strcmp(json_string_value(type), "content") != 0)
        return sl_refuse(r, SL_EINVAL, "prediction",
                         "prediction must be an object with the type 'content'");
    bool ok = json_is_string(content) || json_is_array(content);
    for (size_t i = 0; ok && i < json_array_size(content); i++)
        ok = json_is_string(json_object_get(json_array_get(content, i), "text"));
    return ok ? 0
              : sl_refuse(r, SL_EINVAL, "prediction",
                          "prediction.content must be a string or an array of text parts");
}

int sl_params_prediction(struct sl_params *p, const struct sl_tokenizer *tok, struct sl_refusal *r)
{
    const json_t *content = json_object_get(p->prediction, "content");
    struct sl_buf b = {0};
    if (json_is_string(content))
        sl_buf_put(&b, json_string_value(content), json_string_length(content));
    for (size_t i = 0; i < json_array_size(content); i++) {
        const json_t *text = json_object_get(json_array_get(content, i), "text");
        sl_buf_put(&b, json_string_value(text), json_string_length(text));
    }
    int rc = b.failed ? sl_refuse(r, SL_ENOMEM, "prediction", "out of memory") : 0;
    if (rc == 0 && b.n_bytes > 0)
        rc =
            sl_tokenizer_encode(tok, b.data, b.n_bytes, 0, &p->predicted, &p->n_predicted, &r->err);
    sl_buf_deinit(&b);
    return rc;
}

int sl_params_lists(struct sl_params *p, const struct sl_param_limits *limits, struct sl_refusal *r)
{
    int rc = parse_stop(p, r);
    if (rc == 0)
        rc = parse_all_ids(p, limits->n_vocab, r);
    if (rc == 0)
        rc = parse_logit_bias(p, limits, r);
    if (rc == 0)
        rc = check_words(p, r);
    if (rc == 0)
        rc = check_prediction(p, r);
    return rc != 0 ? rc : parse_repetition(p, r);
}

/* Into the arena; *out keeps its size 0 where the text gives no tokens. */
static int params_lists_encode_word(struct sl_params *p, const struct sl_tokenizer *tok,
                                    const char *text, int32_t n_vocab, struct sl_bad_word *out,
                                    struct sl_refusal *r)
{
    int32_t *ids = NULL;
    size_t n = 0;
    int rc = sl_tokenizer_encode(tok, text, strlen(text), 0, &ids, &n, &r->err);
    int32_t *kept = rc == 0 ? sl_arena_array(&p->arena, n + 1, sizeof *kept) : NULL;
    if (rc == 0 && kept == NULL)
        rc = sl_refuse(r, SL_ENOMEM, "bad_words", "out of memory");
    if (rc == 0 && (n == 0 || n > SL_MAX_BAD_WORD_IDS))
        rc = sl_refuse(r, SL_ELIMIT, "bad_words", "bad_words: '%.40s' has %zu tokens, not 1 to %d",
                       text, n, SL_MAX_BAD_WORD_IDS);
    for (size_t i = 0; rc == 0 && i < n; i++) {
        kept[i] = ids[i];
        if (ids[i] >= n_vocab)
            rc = sl_refuse(r, SL_EINVAL, "bad_words", "bad_words: '%.40s' is not among the logits",
                           text);
    }
    sl_free(ids);
    if (rc == 0)
        *out = (struct sl_bad_word){kept, (int32_t)n};
    return rc;
}

/* As vLLM: a word at the beginning of a text and, where it makes another first token and as many,
 * behind a space. */
int sl_params_words(struct sl_params *p, const struct sl_tokenizer *tok,
                    const struct sl_param_limits *limits, struct sl_refusal *r)
{
    size_t n = json_array_size(p->bad_words);
    int32_t n_words = 0;
    if (n == 0)
        return 0;
    struct sl_bad_word *words = sl_arena_array(&p->arena, 2 * n, sizeof *words);
    if (words == NULL)
        return sl_refuse(r, SL_ENOMEM, "bad_words", "out of memory");
    for (size_t i = 0; i < n; i++) {
        const char *word = json_string_value(json_array_get(p->bad_words, i));
        char spaced[MAX_WORD_BYTES + 2] = " ";
        SL_ASSERT(word != NULL && strlen(word) <= MAX_WORD_BYTES);
        word += strspn(word, " ");
        memcpy(spaced + 1, word, strlen(word) + 1);
        struct sl_bad_word *plain = &words[n_words++], *behind = &words[n_words];
        int rc = params_lists_encode_word(p, tok, word, limits->n_vocab, plain, r);
        if (rc == 0)
            rc = params_lists_encode_word(p, tok, spaced, limits->n_vocab, behind, r);
        if (rc != 0)
            return rc;
        n_words += behind->ids[0] != plain->ids[0] && behind->n_ids == plain->n_ids;
    }
    p->sampling.bad_words = words;
    p->sampling.n_bad_words = n_words;
    SL_ASSERT(n_words <= SL_MAX_BAD_WORDS);
    return 0;
}
