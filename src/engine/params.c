/* SPDX-License-Identifier: MIT
 * What a request may ask for. Comparisons are written so that NaN fails them.
 */
#include "base/str.h"
#include "engine/request.h"

#include <math.h>
#include <string.h>

void sl_sampling_default(struct sl_sampling *s)
{
    *s = (struct sl_sampling){.temperature = 1.0f,
                              .top_p = 1.0f,
                              .repetition_penalty = 1.0f,
                              .n = 1,
                              .logprobs = -1,
                              .prompt_logprobs = -1};
}

static int check_floats(const struct sl_sampling *s, struct sl_error *err)
{
    if (!(s->temperature >= 0.0f && isfinite(s->temperature)))
        return sl_fail(err, SL_EINVAL, "temperature must be a number of at least 0, not %g",
                       (double)s->temperature);
    if (!(s->top_p > 0.0f && s->top_p <= 1.0f))
        return sl_fail(err, SL_EINVAL, "top_p must be in (0, 1], not %g", (double)s->top_p);
    if (!(s->min_p >= 0.0f && s->min_p <= 1.0f))
        return sl_fail(err, SL_EINVAL, "min_p must be in [0, 1], not %g", (double)s->min_p);
    if (!(s->repetition_penalty > 0.0f && isfinite(s->repetition_penalty)))
        return sl_fail(err, SL_EINVAL, "repetition_penalty must be greater than 0, not %g",
                       (double)s->repetition_penalty);
    if (!(s->presence_penalty >= -2.0f && s->presence_penalty <= 2.0f))
        return sl_fail(err, SL_EINVAL, "presence_penalty must be in [-2, 2], not %g",
                       (double)s->presence_penalty);
    if (!(s->frequency_penalty >= -2.0f && s->frequency_penalty <= 2.0f))
        return sl_fail(err, SL_EINVAL, "frequency_penalty must be in [-2, 2], not %g",
                       (double)s->frequency_penalty);
    return 0;
}

static int check_ints(const struct sl_sampling *s, struct sl_error *err)
{
    if (s->top_k < -1)
        return sl_fail(err, SL_EINVAL, "top_k must be -1, 0 (off) or positive, not %d", s->top_k);
    if (s->n < 1 || s->n > SL_MAX_N)
        return sl_fail(err, SL_EINVAL, "n must be in [1, %d], not %d", SL_MAX_N, s->n);
    if (s->min_tokens < 0)
        return sl_fail(err, SL_EINVAL, "min_tokens must be at least 0, not %d", s->min_tokens);
    if (s->max_tokens > 0 && s->min_tokens > s->max_tokens)
        return sl_fail(err, SL_EINVAL, "min_tokens (%d) is greater than max_tokens (%d)",
                       s->min_tokens, s->max_tokens);
    if (s->logprobs < -1 || s->logprobs > SL_MAX_LOGPROBS)
        return sl_fail(err, SL_EINVAL, "logprobs must be in [-1, %d], not %d", SL_MAX_LOGPROBS,
                       s->logprobs);
    if (s->prompt_logprobs < -1 || s->prompt_logprobs > SL_MAX_LOGPROBS)
        return sl_fail(err, SL_EINVAL, "prompt_logprobs must be in [-1, %d], not %d",
                       SL_MAX_LOGPROBS, s->prompt_logprobs);
    return 0;
}

static int check_stops(const struct sl_sampling *s, const struct sl_request_limits *lim,
                       struct sl_error *err)
{
    if (s->n_stop < 0 || s->n_stop > SL_MAX_STOPS || (s->n_stop > 0 && s->stop == NULL))
        return sl_fail(err, SL_EINVAL, "stop may hold at most %d strings, not %d", SL_MAX_STOPS,
                       s->n_stop);
    if (s->n_stop > 0 && !lim->has_tokenizer)
        return sl_fail(err, SL_EUNSUPPORTED, "stop: this model has no tokenizer");
    for (int32_t i = 0; i < s->n_stop; i++) {
        size_t n = s->stop[i] != NULL ? strnlen(s->stop[i], SL_MAX_STOP_BYTES + 1) : 0;
        if (n == 0 || n > SL_MAX_STOP_BYTES)
            return sl_fail(err, SL_EINVAL, "stop[%d] must have 1 to %d bytes", i,
                           SL_MAX_STOP_BYTES);
        for (size_t at = 0, len; at < n; at += len) {
            len = sl_utf8_valid_len(s->stop[i] + at, n - at);
            SL_ASSERT(len <= n - at);
            if (len == 0)
                return sl_fail(err, SL_EINVAL, "stop[%d] is not valid UTF-8", i);
        }
    }
    if (s->n_stop_token_ids < 0 || s->n_stop_token_ids > SL_MAX_STOP_IDS ||
        (s->n_stop_token_ids > 0 && s->stop_token_ids == NULL))
        return sl_fail(err, SL_EINVAL, "stop_token_ids may hold at most %d ids, not %d",
                       SL_MAX_STOP_IDS, s->n_stop_token_ids);
    for (int32_t i = 0; i < s->n_stop_token_ids; i++)
        if (s->stop_token_ids[i] < 0 || s->stop_token_ids[i] >= lim->n_logits)
            return sl_fail(err, SL_EINVAL, "stop_token_ids[%d] = %d is not in [0, %d)", i,
                           s->stop_token_ids[i], lim->n_logits);
    return 0;
}

static int check_markers(const struct sl_sampling *s, struct sl_error *err)
{
    if (s->n_marker_ids < 0 || s->n_marker_ids > SL_MAX_MARKER_IDS ||
        (s->n_marker_ids > 0 && s->marker_ids == NULL))
        return sl_fail(err, SL_EINVAL, "marker_ids may hold at most %d ids, not %d",
                       SL_MAX_MARKER_IDS, s->n_marker_ids);
    for (int32_t i = 1; i < s->n_marker_ids; i++)
        if (s->marker_ids[i] <= s->marker_ids[i - 1])
            return sl_fail(err, SL_EINVAL, "marker_ids must be ascending");
    return 0;
}

static int check_bias(const struct sl_sampling *s, const struct sl_request_limits *lim,
                      struct sl_error *err)
{
    if (s->n_logit_bias < 0 || s->n_logit_bias > SL_MAX_LOGIT_BIAS ||
        (s->n_logit_bias > 0 && s->logit_bias == NULL))
        return sl_fail(err, SL_EINVAL, "logit_bias may hold at most %d entries, not %d",
                       SL_MAX_LOGIT_BIAS, s->n_logit_bias);
    for (int32_t i = 0; i < s->n_logit_bias; i++) {
        const struct sl_logit_bias *b = &s->logit_bias[i];
        if (b->id < 0 || b->id >= lim->n_logits)
            return sl_fail(err, SL_EINVAL, "logit_bias: id %d is not in [0, %d)", b->id,
                           lim->n_logits);
        if (!(b->bias >= -100.0f && b->bias <= 100.0f))
            return sl_fail(err, SL_EINVAL, "logit_bias of id %d must be in [-100, 100], not %g",
                           b->id, (double)b->bias);
    }
    return 0;
}

static int check_choice(const struct sl_sampling *s, const struct sl_request_limits *lim,
                        struct sl_error *err)
{
    if (s->n_allowed_token_ids < 0 || (s->n_allowed_token_ids > 0 && s->allowed_token_ids == NULL))
        return sl_fail(err, SL_EINVAL, "allowed_token_ids is not a list of %d ids",
                       s->n_allowed_token_ids);
    for (int32_t i = 0; i < s->n_allowed_token_ids; i++)
        if (s->allowed_token_ids[i] < 0 || s->allowed_token_ids[i] >= lim->n_logits)
            return sl_fail(err, SL_EINVAL, "allowed_token_ids[%d] = %d is not in [0, %d)", i,
                           s->allowed_token_ids[i], lim->n_logits);
    if (s->n_bad_words < 0 || s->n_bad_words > SL_MAX_BAD_WORDS ||
        (s->n_bad_words > 0 && s->bad_words == NULL))
        return sl_fail(err, SL_EINVAL, "bad_words may hold at most %d token sequences, not %d",
                       SL_MAX_BAD_WORDS, s->n_bad_words);
    if (s->n_logprob_token_ids < 0 || s->n_logprob_token_ids > SL_MAX_LOGPROB_IDS ||
        (s->n_logprob_token_ids > 0 && (s->logprob_token_ids == NULL || s->logprobs < 0)))
        return sl_fail(err, SL_EINVAL,
                       "logprob_token_ids may hold at most %d ids, and needs logprobs",
                       SL_MAX_LOGPROB_IDS);
    if (s->n_logprob_token_ids > 0 && !lim->has_top_ids)
        return sl_fail(err, SL_EUNSUPPORTED,
                       "logprob_token_ids: not on a device that chooses tokens itself");
    for (int32_t i = 0; i < s->n_logprob_token_ids; i++)
        if (s->logprob_token_ids[i] < 0 || s->logprob_token_ids[i] >= lim->n_logits)
            return sl_fail(err, SL_EINVAL, "logprob_token_ids[%d] = %d is not in [0, %d)", i,
                           s->logprob_token_ids[i], lim->n_logits);
    for (int32_t i = 0; i < s->n_bad_words; i++) {
        const struct sl_bad_word *w = &s->bad_words[i];
        if (w->n_ids < 1 || w->n_ids > SL_MAX_BAD_WORD_IDS || w->ids == NULL)
            return sl_fail(err, SL_EINVAL, "bad_words: a word must have 1 to %d tokens, not %d",
                           SL_MAX_BAD_WORD_IDS, w->n_ids);
        for (int32_t k = 0; k < w->n_ids; k++)
            if (w->ids[k] < 0 || w->ids[k] >= lim->n_logits)
                return sl_fail(err, SL_EINVAL, "bad_words: token %d is not in [0, %d)", w->ids[k],
                               lim->n_logits);
    }
    return 0;
}

static int check_repetition(const struct sl_repetition *r, struct sl_error *err)
{
    _Static_assert((int64_t)SL_MAX_REPETITION * SL_MAX_REPETITION <= INT32_MAX, "append.c");
    if (r->max_size == 0)
        return 0;
    if (r->min_size < 1 || r->min_size > r->max_size || r->max_size > SL_MAX_REPETITION ||
        r->min_count < 2 || r->min_count > SL_MAX_REPETITION)
        return sl_fail(
            err, SL_EINVAL,
            "repetition_detection: %d to %d tokens %d times, where at most %d tokens and "
            "times are possible, and 2 times at least",
            r->min_size, r->max_size, r->min_count, SL_MAX_REPETITION);
    return 0;
}

static int check_logits(const struct sl_sampling *s, bool constrained,
                        const struct sl_request_limits *lim, struct sl_error *err)
{
    if (lim->has_logits)
        return 0;
    if (constrained)
        return sl_fail(err, SL_EUNSUPPORTED, "structured output: this model gives no logits");
    if (s->logprobs >= 0 || s->prompt_logprobs >= 0)
        return sl_fail(err, SL_EUNSUPPORTED, "%s: this model gives no logits",
                       s->logprobs >= 0 ? "logprobs" : "prompt_logprobs");
    return 0;
}

static int check_prompt(const struct sl_request_desc *desc, const struct sl_request_limits *lim,
                        struct sl_error *err)
{
    if (desc->prompt == NULL || desc->n_prompt < 1)
        return sl_fail(err, SL_EINVAL, "prompt must have at least one token");
    /* Clients tell this error by its words: OpenAI's and vLLM's "maximum context length is", and
     * Anthropic's "prompt is too long: N tokens > N maximum". */
    if (desc->pooling && desc->n_prompt > lim->max_model_len)
        return sl_fail(err, SL_ELIMIT,
                       "this model's maximum context length is %d tokens, but the input has %d: "
                       "shorten it or set truncate_prompt_tokens",
                       lim->max_model_len, desc->n_prompt);
    if (lim->per_token && desc->n_prompt > INT32_MAX / lim->n_pooled)
        return sl_fail(err, SL_ELIMIT, "prompt has %d tokens, too many for a vector of each",
                       desc->n_prompt);
    if (!desc->pooling && desc->n_prompt >= lim->max_model_len)
        return sl_fail(err, SL_ELIMIT,
                       "this model's maximum context length is %d tokens, output included; prompt "
                       "is too long: %d tokens > %d maximum",
                       lim->max_model_len, desc->n_prompt, lim->max_model_len - 1);
    for (int32_t i = 0; i < desc->n_prompt; i++)
        if (desc->prompt[i] < 0 || desc->prompt[i] >= lim->n_vocab)
            return sl_fail(err, SL_EINVAL, "prompt[%d] = %d is not a token id in [0, %d)", i,
                           desc->prompt[i], lim->n_vocab);
    SL_ASSERT(desc->n_prompt >= 1 && lim->n_vocab > 0);
    if (desc->n_prediction < 0 || (desc->n_prediction > 0 && desc->prediction == NULL))
        return sl_fail(err, SL_EINVAL, "prediction must have 0 or more tokens, not %d",
                       desc->n_prediction);
    for (int32_t i = 0; i < desc->n_prediction; i++)
        if (desc->prediction[i] < 0 || desc->prediction[i] >= lim->n_vocab)
            return sl_fail(err, SL_EINVAL, "prediction[%d] = %d is not a token id in [0, %d)", i,
                           desc->prediction[i], lim->n_vocab);
    if (desc->sampling.min_tokens > lim->max_model_len - desc->n_prompt)
        return sl_fail(err, SL_ELIMIT,
                       "min_tokens is %d, but after the prompt there is room for %d tokens",
                       desc->sampling.min_tokens, lim->max_model_len - desc->n_prompt);
    SL_ASSERT(desc->n_prompt <= lim->max_model_len); /* in both cases above */
    if (desc->cache_salt != NULL) {
        size_t n = strnlen(desc->cache_salt, SL_MAX_CACHE_SALT + 1);
        if (n == 0 || n > SL_MAX_CACHE_SALT)
            return sl_fail(err, SL_EINVAL, "cache_salt must have 1 to %d bytes", SL_MAX_CACHE_SALT);
    }
    return 0;
}

static int check_adapter(const struct sl_request_desc *desc, const struct sl_request_limits *lim,
                         struct sl_error *err)
{
    const float hits = desc->cache_hit_threshold;
    if (!(hits >= 0 && hits <= 1))
        return sl_fail(err, SL_EINVAL, "cache_hit_threshold must be in [0, 1], not %g",
                       (double)hits);
    const float scale = desc->adapter_scale;
    if (desc->adapter != NULL && !lim->has_adapters)
        return sl_fail(err, SL_EUNSUPPORTED, "adapter: this engine was started without adapters");
    if (!(scale >= -SL_MAX_ADAPTER_SCALE && scale <= SL_MAX_ADAPTER_SCALE))
        return sl_fail(err, SL_EINVAL, "lora_scale must be in [-%g, %g], not %g",
                       SL_MAX_ADAPTER_SCALE, SL_MAX_ADAPTER_SCALE, (double)scale);
    return 0;
}

/* What the model is for, and what is asked of it. */
static int params_check_task(const struct sl_request_desc *desc,
                             const struct sl_request_limits *lim, struct sl_error *err)
{
    const struct sl_sampling *s = &desc->sampling;
    SL_ASSERT(lim->n_pooled >= 0 && (lim->n_pooled == 0 || !lim->has_logits));
    if (desc->pooling != (lim->n_pooled > 0))
        return sl_fail(err, SL_EUNSUPPORTED,
                       desc->pooling ? "this model generates text: it gives no embeddings or scores"
                                     : "this model gives embeddings or scores: it does not "
                                       "generate text");
    if (desc->second_from != 0 &&
        (!lim->pairs || desc->second_from < 0 || desc->second_from > desc->n_prompt))
        return sl_fail(err, SL_EINVAL, "second_from is %d: this model takes %s", desc->second_from,
                       lim->pairs ? "a place in the prompt" : "no pairs");
    if (desc->pooling && (s->n != 1 || s->n_stop != 0 || s->prompt_logprobs >= 0 ||
                          s->logprobs >= 0 || desc->constraint != NULL || desc->thinking != NULL))
        return sl_fail(err, SL_EINVAL, "a pooling request cannot have generation parameters");
    return 0;
}

int sl_request_check(const struct sl_request_desc *desc, const struct sl_request_limits *lim,
                     struct sl_error *err)
{
    const struct sl_sampling *s = &desc->sampling;
    SL_ASSERT(lim->n_vocab > 0 && lim->n_logits > 0 && lim->max_model_len > 0);
    int rc = params_check_task(desc, lim, err);
    if (rc == 0)
        rc = check_floats(s, err);
    if (rc == 0)
        rc = check_ints(s, err);
    if (rc == 0)
        rc = check_stops(s, lim, err);
    if (rc == 0)
        rc = check_markers(s, err);
    if (rc == 0)
        rc = check_bias(s, lim, err);
    if (rc == 0)
        rc = check_choice(s, lim, err);
    if (rc == 0)
        rc = check_repetition(&s->repetition, err);
    if (rc == 0)
        rc = check_logits(s, desc->constraint != NULL, lim, err);
    if (rc == 0 && desc->thinking != NULL && !(lim->has_logits && lim->has_tokenizer))
        rc = sl_fail(err, SL_EUNSUPPORTED,
                     "thinking: this model has no tokenizer or gives no logits");
    if (rc == 0 && desc->thinking != NULL)
        rc = sl_think_check(desc->thinking, lim->n_logits, err);
    if (rc == 0)
        rc = check_adapter(desc, lim, err);
    if (rc == 0)
        rc = check_prompt(desc, lim, err);
    return rc;
}
