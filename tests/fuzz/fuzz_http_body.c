/* SPDX-License-Identifier: MIT
 * Bodies of /v1/chat/completions and /v1/completions: JSON to struct sl_params. What is accepted
 * holds the values the body has and nothing else, and the engine's own check accepts it too; what
 * is refused names a field of the body.
 */
#include "base/limits.h"
#include "base/sys.h"
#include "engine/request.h"
#include "fuzz.h"
#include "server/api/params.h"
#include "server/api/prompt.h"

#include <string.h>

#define N_VOCAB 1000

struct field {
    const char *name;
    enum { BOOL, INT, FLOAT, STRING } kind;
    size_t offset;
};

#define P(field) offsetof(struct sl_params, field)
#define S(field) offsetof(struct sl_params, sampling.field)

/* Fields that are copied as they are. */
static const struct field fields[] = {
    {"temperature", FLOAT, S(temperature)},
    {"top_p", FLOAT, S(top_p)},
    {"min_p", FLOAT, S(min_p)},
    {"top_k", INT, S(top_k)},
    {"repetition_penalty", FLOAT, S(repetition_penalty)},
    {"presence_penalty", FLOAT, S(presence_penalty)},
    {"frequency_penalty", FLOAT, S(frequency_penalty)},
    {"min_tokens", INT, S(min_tokens)},
    {"ignore_eos", BOOL, S(ignore_eos)},
    {"include_stop_str_in_output", BOOL, S(include_stop_str_in_output)},
    {"stream", BOOL, P(stream)},
    {"priority", INT, P(priority)},
    {"stream_interval", INT, P(stream_interval)},
    {"timings_per_token", BOOL, P(timings_per_token)},
    {"truncate_prompt_tokens", INT, P(truncate_prompt_tokens)},
    {"return_token_ids", BOOL, P(return_token_ids)},
    {"skip_special_tokens", BOOL, P(skip_special_tokens)},
    {"add_special_tokens", BOOL, P(add_special_tokens)},
    {"model", STRING, P(model)},
    {"cache_salt", STRING, P(cache_salt)},
};

static void check_field(const struct field *f, const json_t *v, const struct sl_params *got,
                        const struct sl_params *defaults)
{
    const char *at = (const char *)got + f->offset, *def = (const char *)defaults + f->offset;
    if (v == NULL || json_is_null(v)) {
        static const size_t sizes[] = {sizeof(bool), sizeof(int32_t), sizeof(float),
                                       sizeof(char *)};
        SL_ASSERT(memcmp(at, def, sizes[f->kind]) == 0);
        return;
    }
    switch (f->kind) {
    case BOOL:
        SL_ASSERT(json_is_boolean(v) && *(const bool *)at == json_is_true(v));
        return;
    case INT:
        SL_ASSERT(*(const int32_t *)at == json_number_value(v));
        return;
    case FLOAT:
        SL_ASSERT(*(const float *)at == (float)json_number_value(v));
        return;
    case STRING:
        SL_ASSERT(strcmp(*(const char *const *)at, json_string_value(v)) == 0);
        return;
    }
}

static void check_lists(const struct sl_params *p, const json_t *root)
{
    const struct sl_sampling *s = &p->sampling;
    const json_t *stop = json_object_get(root, "stop");
    size_t n = json_is_array(stop) ? json_array_size(stop) : json_is_string(stop);
    SL_ASSERT((size_t)s->n_stop == n);
    for (size_t i = 0; i < n; i++) {
        const json_t *v = json_is_array(stop) ? json_array_get(stop, i) : stop;
        SL_ASSERT(strcmp(s->stop[i], json_string_value(v)) == 0);
    }
    const json_t *ids = json_object_get(root, "stop_token_ids");
    SL_ASSERT((size_t)s->n_stop_token_ids == json_array_size(ids));
    for (size_t i = 0; i < json_array_size(ids); i++)
        SL_ASSERT(s->stop_token_ids[i] == json_number_value(json_array_get(ids, i)));
    const json_t *n_given = json_object_get(root, "n");
    int32_t n_shown = p->n_best > 0 ? p->n_best : s->n;
    SL_ASSERT(n_shown == (json_is_number(n_given) ? json_number_value(n_given) : 1));
    SL_ASSERT(s->n >= n_shown && s->n <= SL_MAX_N);
    SL_ASSERT((size_t)s->n_allowed_token_ids ==
              json_array_size(json_object_get(root, "allowed_token_ids")));
    SL_ASSERT((size_t)s->n_logprob_token_ids ==
              json_array_size(json_object_get(root, "logprob_token_ids")));
    SL_ASSERT((size_t)s->n_logit_bias == json_object_size(json_object_get(root, "logit_bias")));
    if (json_object_get(root, "seed") == NULL)
        SL_ASSERT(!s->has_seed);
}

/* The engine may refuse only what depends on the prompt's length or on UTF-8 in stop strings. */
static void check_engine(const struct sl_params *p)
{
    static const int32_t prompt[] = {1, 2, 3};
    const struct sl_request_limits limits = {.n_vocab = N_VOCAB,
                                             .n_logits = N_VOCAB,
                                             .max_model_len = 1 << 20,
                                             .has_tokenizer = true,
                                             .has_top_ids = true,
                                             .has_logits = true};
    struct sl_error err = {.code = 0};
    struct sl_request_desc desc = {.prompt = prompt,
                                   .n_prompt = SL_COUNT(prompt),
                                   .sampling = p->sampling,
                                   .priority = p->priority,
                                   .cache_salt = p->cache_salt};
    int rc = sl_request_check(&desc, &limits, &err);
    SL_ASSERT(rc == 0 || (rc == SL_ELIMIT && strncmp(err.msg, "min_tokens", 10) == 0));
}

static void check_refusal(const struct sl_refusal *r, int rc, const json_t *root)
{
    char name[sizeof r->param];
    SL_ASSERT(rc < 0 && r->err.code == rc && r->err.msg[0] != '\0');
    size_t n = strcspn(r->param, ".[");
    memcpy(name, r->param, n);
    name[n] = '\0';
    SL_ASSERT(n == 0 || json_object_get(root, name) != NULL || strcmp(name, "messages") == 0 ||
              strcmp(name, "continue_final_message") == 0);
}

static void check_messages(json_t *messages)
{
    for (size_t i = 0; i < json_array_size(messages); i++) {
        const json_t *m = json_array_get(messages, i);
        SL_ASSERT(json_is_string(json_object_get(m, "role")));
        SL_ASSERT(json_is_string(json_object_get(m, "content")));
    }
}

static void read_body(const char *text, size_t n, enum sl_endpoint endpoint)
{
    const struct sl_param_limits limits = {
        .n_vocab = N_VOCAB, .trust_request_chat_template = endpoint == SL_ENDPOINT_CHAT};
    struct sl_sampling defaults;
    struct sl_refusal r = {0};
    struct sl_params p = {0}, none = {0};
    json_t *root, *empty;
    sl_sampling_default(&defaults);
    if (sl_json_parse_object(text, n, &root, &r) != 0)
        return;
    int rc = sl_json_parse_object("{}", 2, &empty, &r);
    SL_ASSERT(rc == 0 && sl_params_parse(&none, endpoint, empty, &defaults, &limits, &r) == 0);
    rc = sl_params_parse(&p, endpoint, root, &defaults, &limits, &r);
    if (rc == 0) {
        for (size_t i = 0; i < SL_COUNT(fields); i++)
            check_field(&fields[i], json_object_get(root, fields[i].name), &p, &none);
        check_lists(&p, root);
        check_engine(&p);
        rc = sl_messages_normalise(json_object_get(root, "messages"), false, &r);
        if (rc == 0)
            check_messages(json_object_get(root, "messages"));
    }
    if (rc != 0)
        check_refusal(&r, rc, root);
    sl_params_deinit(&p);
    sl_params_deinit(&none);
    json_decref(root);
    json_decref(empty);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    const char *text = (const char *)data;
    read_body(text, size, SL_ENDPOINT_CHAT);
    read_body(text, size, SL_ENDPOINT_COMPLETIONS);
    return 0;
}
