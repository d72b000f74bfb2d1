/* SPDX-License-Identifier: MIT
 * Hostile request parameters: each refused with the right code and the name of the field, or
 * accepted when it is exactly at the limit. Nothing reaches the engine.
 */
#include "base/check.h"
#include "engine/request.h"

#include <float.h>
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

#define V       100
#define MAX_LEN 50

static const struct sl_request_limits limits = {.n_vocab = V,
                                                .n_logits = V + 20,
                                                .max_model_len = MAX_LEN,
                                                .has_tokenizer = true,
                                                .has_logits = true};

static const int32_t prompt[MAX_LEN + 2] = {1, 2, 3, V - 1};

static struct sl_request_desc good(void)
{
    struct sl_request_desc d = {.prompt = prompt, .n_prompt = 4};
    sl_sampling_default(&d.sampling);
    return d;
}

static void expect(const struct sl_request_desc *d, int code, const char *field)
{
    struct sl_error err = {.code = 0};
    int rc = sl_request_check(d, &limits, &err);
    if (rc != code)
        fail_msg("%s: code %d, not %d (%s)", field, rc, code, err.msg);
    if (code != 0 && strstr(err.msg, field) == NULL)
        fail_msg("the message does not name %s: %s", field, err.msg);
}

static void floats(void **state)
{
    (void)state;
    static const struct {
        const char *name;
        size_t offset;
        float ok[4], bad[4]; /* up to the first 12345 */
    } fields[] = {
        {"temperature",
         offsetof(struct sl_sampling, temperature),
         {0, 1e-9f, 2, FLT_MAX},
         {-1e-9f, -1, 12345}},
        {"top_p",
         offsetof(struct sl_sampling, top_p),
         {FLT_MIN, 1, 12345},
         {0, -0.1f, 1.0001f, 1e38f}},
        {"min_p", offsetof(struct sl_sampling, min_p), {0, 1, 12345}, {-0.0001f, 1.0001f, 12345}},
        {"repetition_penalty",
         offsetof(struct sl_sampling, repetition_penalty),
         {FLT_MIN, 1, 9, 12345},
         {0, -1, 12345}},
        {"presence_penalty",
         offsetof(struct sl_sampling, presence_penalty),
         {-2, 2, 12345},
         {-2.001f, 2.001f, 1e38f, 12345}},
        {"frequency_penalty",
         offsetof(struct sl_sampling, frequency_penalty),
         {-2, 2, 12345},
         {-2.001f, 2.001f, 1e38f, 12345}},
    };
    static const float never[] = {NAN, -NAN, INFINITY, -INFINITY};
    for (size_t f = 0; f < SL_COUNT(fields); f++) {
        struct sl_request_desc d = good();
        float *x = (float *)(void *)((char *)&d.sampling + fields[f].offset);
        for (int i = 0; i < 4 && fields[f].ok[i] != 12345; i++) {
            *x = fields[f].ok[i];
            expect(&d, 0, fields[f].name);
        }
        for (int i = 0; i < 4 && fields[f].bad[i] != 12345; i++) {
            *x = fields[f].bad[i];
            expect(&d, SL_EINVAL, fields[f].name);
        }
        for (int i = 0; i < 4; i++) {
            *x = never[i];
            expect(&d, SL_EINVAL, fields[f].name);
        }
    }
}

static void integers(void **state)
{
    (void)state;
    static const struct {
        const char *name;
        size_t offset;
        int32_t lo, hi;
    } fields[] = {
        {"top_k", offsetof(struct sl_sampling, top_k), -1, INT32_MAX},
        {"n", offsetof(struct sl_sampling, n), 1, SL_MAX_N},
        {"logprobs", offsetof(struct sl_sampling, logprobs), -1, SL_MAX_LOGPROBS},
        {"prompt_logprobs", offsetof(struct sl_sampling, prompt_logprobs), -1, SL_MAX_LOGPROBS},
        {"max_tokens", offsetof(struct sl_sampling, max_tokens), INT32_MIN, INT32_MAX},
        {"min_tokens", offsetof(struct sl_sampling, min_tokens), 0, MAX_LEN - 4},
    };
    for (size_t f = 0; f < SL_COUNT(fields); f++) {
        struct sl_request_desc d = good();
        int32_t *x = (int32_t *)(void *)((char *)&d.sampling + fields[f].offset);
        *x = fields[f].lo;
        expect(&d, 0, fields[f].name);
        *x = fields[f].hi;
        expect(&d, 0, fields[f].name);
        if (fields[f].lo > INT32_MIN) {
            *x = fields[f].lo - 1;
            expect(&d, SL_EINVAL, fields[f].name);
            *x = INT32_MIN;
            expect(&d, SL_EINVAL, fields[f].name);
        }
        if (fields[f].hi < INT32_MAX) {
            int code = strcmp(fields[f].name, "min_tokens") == 0 ? SL_ELIMIT : SL_EINVAL;
            *x = fields[f].hi + 1;
            expect(&d, code, fields[f].name);
            *x = INT32_MAX;
            expect(&d, code, fields[f].name);
        }
    }
    struct sl_request_desc d = good();
    d.sampling.max_tokens = 5;
    d.sampling.min_tokens = 5;
    expect(&d, 0, "min_tokens");
    d.sampling.min_tokens = 6;
    expect(&d, SL_EINVAL, "min_tokens");
}

static void prompts(void **state)
{
    (void)state;
    struct sl_request_desc d = good();
    d.n_prompt = 0;
    expect(&d, SL_EINVAL, "prompt");
    d.n_prompt = -1;
    expect(&d, SL_EINVAL, "prompt");
    d = good();
    d.prompt = NULL;
    expect(&d, SL_EINVAL, "prompt");
    d = good();
    d.n_prompt = MAX_LEN - 1;
    expect(&d, 0, "prompt");
    d.n_prompt = MAX_LEN; /* no room for a single token */
    expect(&d, SL_ELIMIT, "prompt");
    d.n_prompt = INT32_MAX;
    expect(&d, SL_ELIMIT, "prompt");
    static const int32_t bad_ids[] = {-1, V, V + 1, INT32_MAX, INT32_MIN};
    for (size_t i = 0; i < SL_COUNT(bad_ids); i++) {
        int32_t ids[] = {1, bad_ids[i]};
        d = good();
        d.prompt = ids;
        d.n_prompt = 2;
        expect(&d, SL_EINVAL, "prompt[1]");
    }
}

static void lists(void **state)
{
    (void)state;
    static char long_stop[SL_MAX_STOP_BYTES + 2];
    memset(long_stop, 'x', SL_MAX_STOP_BYTES);
    static const char *bad_stops[] = {"", NULL, "\xff", "\xc3", "a\xed\xa0\x80", NULL};
    for (size_t i = 0; i < SL_COUNT(bad_stops); i++) {
        const char *stops[] = {"fine", bad_stops[i]};
        struct sl_request_desc d = good();
        d.sampling.stop = stops;
        d.sampling.n_stop = 2;
        expect(&d, SL_EINVAL, "stop[1]");
    }
    const char *stops[SL_MAX_STOPS + 1];
    for (int i = 0; i <= SL_MAX_STOPS; i++)
        stops[i] = long_stop;
    struct sl_request_desc d = good();
    d.sampling.stop = stops;
    d.sampling.n_stop = SL_MAX_STOPS;
    expect(&d, 0, "stop");
    d.sampling.n_stop++;
    expect(&d, SL_EINVAL, "stop");
    d.sampling.n_stop = -1;
    expect(&d, SL_EINVAL, "stop");
    d.sampling.n_stop = 1;
    long_stop[SL_MAX_STOP_BYTES] = 'x';
    expect(&d, SL_EINVAL, "stop[0]");
    d.sampling.stop = NULL;
    expect(&d, SL_EINVAL, "stop");

    int32_t ids[SL_MAX_STOP_IDS + 1] = {0};
    d = good();
    d.sampling.stop_token_ids = ids;
    d.sampling.n_stop_token_ids = SL_MAX_STOP_IDS;
    expect(&d, 0, "stop_token_ids");
    d.sampling.n_stop_token_ids++;
    expect(&d, SL_EINVAL, "stop_token_ids");
    d.sampling.n_stop_token_ids = 1;
    ids[0] = V + 19; /* as wide as the logits */
    expect(&d, 0, "stop_token_ids");
    ids[0] = V + 20;
    expect(&d, SL_EINVAL, "stop_token_ids[0]");
    ids[0] = -1;
    expect(&d, SL_EINVAL, "stop_token_ids[0]");
    d.sampling.stop_token_ids = NULL;
    expect(&d, SL_EINVAL, "stop_token_ids");
}

static void biases_and_salts(void **state)
{
    (void)state;
    static const struct {
        struct sl_logit_bias bias;
        int code;
    } cases[] = {
        {{0, 100.0f}, 0},
        {{V + 19, -100.0f}, 0},
        {{V + 20, 0.0f}, SL_EINVAL},
        {{-1, 0.0f}, SL_EINVAL},
        {{0, 100.1f}, SL_EINVAL},
        {{0, -100.1f}, SL_EINVAL},
        {{0, NAN}, SL_EINVAL},
        {{0, INFINITY}, SL_EINVAL},
        {{0, -INFINITY}, SL_EINVAL},
        {{INT32_MIN, 1}, SL_EINVAL},
        {{INT32_MAX, 1}, SL_EINVAL},
    };
    for (size_t i = 0; i < SL_COUNT(cases); i++) {
        struct sl_request_desc d = good();
        d.sampling.logit_bias = &cases[i].bias;
        d.sampling.n_logit_bias = 1;
        expect(&d, cases[i].code, "logit_bias");
    }
    static struct sl_logit_bias many[SL_MAX_LOGIT_BIAS + 1];
    struct sl_request_desc d = good();
    d.sampling.logit_bias = many;
    d.sampling.n_logit_bias = SL_MAX_LOGIT_BIAS;
    expect(&d, 0, "logit_bias");
    d.sampling.n_logit_bias++;
    expect(&d, SL_EINVAL, "logit_bias");
    d.sampling.n_logit_bias = -1;
    expect(&d, SL_EINVAL, "logit_bias");

    char salt[SL_MAX_CACHE_SALT + 2] = "";
    d = good();
    d.cache_salt = salt;
    expect(&d, SL_EINVAL, "cache_salt");
    memset(salt, 's', SL_MAX_CACHE_SALT);
    expect(&d, 0, "cache_salt");
    salt[SL_MAX_CACHE_SALT] = 's';
    expect(&d, SL_EINVAL, "cache_salt");
}

/* Embeddings may have more rows than the logits: what counts is what is written to. */
static void ids_beyond_the_logits(void **state)
{
    (void)state;
    struct sl_request_limits lim = limits;
    struct sl_error err;
    lim.n_logits = V - 20;
    for (int32_t id = V - 23; id < V + 3; id++) {
        int code = id < lim.n_logits ? 0 : SL_EINVAL;
        struct sl_logit_bias bias = {id, -1.0f};
        struct sl_request_desc d = good();
        d.sampling.logit_bias = &bias;
        d.sampling.n_logit_bias = 1;
        if (sl_request_check(&d, &lim, &err) != code)
            fail_msg("logit_bias of id %d, %d logits: not %d", id, lim.n_logits, code);
        d = good();
        d.sampling.stop_token_ids = &id;
        d.sampling.n_stop_token_ids = 1;
        if (sl_request_check(&d, &lim, &err) != code)
            fail_msg("stop_token_ids with id %d, %d logits: not %d", id, lim.n_logits, code);
    }
}

static void what_the_model_cannot_give(void **state)
{
    (void)state;
    struct sl_request_limits lim = limits;
    struct sl_error err;
    struct sl_request_desc d = good();
    const char *stops[] = {"x"};
    lim.has_tokenizer = false;
    d.sampling.stop = stops;
    d.sampling.n_stop = 1;
    assert_int_equal(sl_request_check(&d, &lim, &err), SL_EUNSUPPORTED);
    lim = limits;
    lim.has_logits = false;
    d = good();
    assert_int_equal(sl_request_check(&d, &lim, &err), 0);
    d.sampling.logprobs = 0;
    assert_int_equal(sl_request_check(&d, &lim, &err), SL_EUNSUPPORTED);
    d = good();
    d.sampling.prompt_logprobs = 0;
    assert_int_equal(sl_request_check(&d, &lim, &err), SL_EUNSUPPORTED);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(floats),
        cmocka_unit_test(integers),
        cmocka_unit_test(prompts),
        cmocka_unit_test(lists),
        cmocka_unit_test(biases_and_salts),
        cmocka_unit_test(ids_beyond_the_logits),
        cmocka_unit_test(what_the_model_cannot_give),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
