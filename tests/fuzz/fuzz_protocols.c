/* SPDX-License-Identifier: MIT
 * Bodies of protocols that are brought into the shape of chat completions. What is accepted has
 * messages and tools of that shape, with every text and every call of the body in them, once and in
 * order; what is refused names a field.
 */
#include "base/limits.h"
#include "fuzz.h"
#include "server/api/anthropic_in.h"
#include "server/api/params.h"
#include "server/api/prompt.h"
#include "server/api/responses_in.h"

#include <string.h>

#define N_VOCAB 1000

static void put(struct sl_buf *b, const json_t *text)
{
    if (!json_is_string(text) || json_string_length(text) == 0) /* says nothing anywhere */
        return;
    sl_buf_put(b, json_string_value(text), json_string_length(text));
    sl_buf_putc(b, '|');
}

/* Every text of a content, behind each other. */
static void put_content(struct sl_buf *b, const json_t *content, const char *skip)
{
    const json_t *block;
    size_t i;
    put(b, content);
    json_array_foreach(content, i, block)
    {
        const json_t *text = json_object_get(block, "text");
        bool skipped = skip != NULL && json_is_string(text) &&
                       strncmp(json_string_value(text), skip, strlen(skip)) == 0;
        if (!skipped)
            put(b, text);
    }
}

/* The texts and calls of an Anthropic body, in the order in which a model is to see them. */
static void anthropic_texts(struct sl_buf *b, const json_t *root)
{
    const json_t *m, *block;
    size_t i, k;
    put_content(b, json_object_get(root, "system"), "x-anthropic-billing-header");
    json_array_foreach(json_object_get(root, "messages"), i, m)
    {
        const json_t *content = json_object_get(m, "content");
        put(b, content);
        json_array_foreach(content, k, block)
        {
            const char *type = json_string_value(json_object_get(block, "type"));
            if (strcmp(type, "text") == 0) {
                put(b, json_object_get(block, "text"));
            } else if (strcmp(type, "tool_result") == 0) {
                put(b, json_object_get(block, "tool_use_id"));
                put_content(b, json_object_get(block, "content"), NULL);
            }
        }
        json_array_foreach(content, k, block)
        {
            if (strcmp(json_string_value(json_object_get(block, "type")), "tool_use") == 0)
                put(b, json_object_get(block, "name"));
        }
    }
}

/* Of a body of responses. What the system says is joined there, and left out here. */
static void responses_texts(struct sl_buf *b, const json_t *root)
{
    const json_t *input = json_object_get(root, "input"), *item;
    size_t i;
    put(b, input);
    json_array_foreach(input, i, item)
    {
        const char *type = json_string_value(json_object_get(item, "type"));
        const char *role = json_string_value(json_object_get(item, "role"));
        if (type != NULL && strcmp(type, "function_call") == 0) {
            put(b, json_object_get(item, "name"));
        } else if (type != NULL && strcmp(type, "function_call_output") == 0) {
            put(b, json_object_get(item, "call_id"));
            put_content(b, json_object_get(item, "output"), NULL);
        } else if (type == NULL || strcmp(type, "message") == 0) {
            if (strcmp(role, "system") != 0 && strcmp(role, "developer") != 0)
                put_content(b, json_object_get(item, "content"), NULL);
        }
    }
}

static void chat_texts(struct sl_buf *b, const json_t *messages, bool with_system)
{
    const json_t *m, *call;
    size_t i, k;
    json_array_foreach(messages, i, m)
    {
        const char *role = json_string_value(json_object_get(m, "role"));
        SL_ASSERT(role != NULL &&
                  (strcmp(role, "tool") == 0) == (json_object_get(m, "tool_call_id") != NULL));
        if (!with_system && strcmp(role, "system") == 0)
            continue;
        put(b, json_object_get(m, "tool_call_id"));
        put_content(b, json_object_get(m, "content"), NULL);
        json_array_foreach(json_object_get(m, "tool_calls"), k, call)
        {
            const json_t *function = json_object_get(call, "function");
            SL_ASSERT(json_is_string(json_object_get(function, "arguments")));
            put(b, json_object_get(function, "name"));
        }
    }
}

struct protocol {
    enum sl_endpoint endpoint;
    int (*to_chat)(json_t *root, struct sl_refusal *r);
    void (*texts)(struct sl_buf *b, const json_t *root);
    const char *messages, *schema; /* what holds the messages; a tool's member */
};

static int responses_to_chat(json_t *root, struct sl_refusal *r)
{
    struct sl_responses_in in = {.compact = false};
    int rc = sl_responses_to_chat(root, &in, r);
    sl_tool_map_deinit(&in.tools);
    return rc;
}

static const struct protocol protocols[] = {
    {SL_ENDPOINT_MESSAGES, sl_anthropic_to_chat, anthropic_texts, "messages", "input_schema"},
    {SL_ENDPOINT_RESPONSES, responses_to_chat, responses_texts, "input", "parameters"},
};

static void check_texts(const struct protocol *p, const json_t *before, const json_t *after)
{
    struct sl_buf want = {0}, got = {0};
    p->texts(&want, before);
    chat_texts(&got, json_object_get(after, p->messages), p->endpoint == SL_ENDPOINT_MESSAGES);
    SL_ASSERT(want.n_bytes == got.n_bytes);
    SL_ASSERT(got.n_bytes == 0 || memcmp(want.data, got.data, got.n_bytes) == 0);
    sl_buf_deinit(&want);
    sl_buf_deinit(&got);
}

static void check_tools(const struct protocol *p, const json_t *before, const json_t *after)
{
    const json_t *old = json_object_get(before, "tools"), *new = json_object_get(after, "tools");
    size_t k = 0;
    for (size_t i = 0; i < json_array_size(old); i++) {
        const json_t *tool = json_array_get(old, i);
        const json_t *name = json_object_get(tool, "name"),
                     *schema = json_object_get(tool, p->schema);
        const json_t *f = json_object_get(json_array_get(new, k++), "function");
        SL_ASSERT(json_is_object(f));
        SL_ASSERT(name == NULL || json_is_null(name) ||
                  json_equal(name, json_object_get(f, "name")));
        SL_ASSERT(schema == NULL || json_is_null(schema) ||
                  json_equal(schema, json_object_get(f, "parameters")));
    }
    SL_ASSERT(!json_is_array(old) || k == json_array_size(new));
}

static void check_params(const struct protocol *protocol, json_t *root)
{
    const struct sl_param_limits limits = {.n_vocab = N_VOCAB};
    struct sl_sampling defaults;
    struct sl_refusal r = {0};
    struct sl_params p = {0};
    sl_sampling_default(&defaults);
    int rc = sl_params_parse(&p, protocol->endpoint, root, &defaults, &limits, &r);
    if (rc == 0) {
        SL_ASSERT(p.messages == json_object_get(root, protocol->messages) && p.sampling.n == 1);
        rc = sl_messages_normalise((json_t *)(uintptr_t)p.messages, false, &r);
        SL_ASSERT(rc == 0 || rc == SL_ELIMIT); /* whatever was accepted has the shape */
    }
    SL_ASSERT(rc == 0 || (r.err.code == rc && r.err.msg[0] != '\0'));
    sl_params_deinit(&p);
}

static bool is_one_of(const json_t *v, const char *const *words)
{
    const char *s = json_string_value(v);
    for (size_t i = 0; words[i] != NULL; i++) {
        if (s != NULL && strcmp(s, words[i]) == 0)
            return true;
    }
    return v == NULL || json_is_null(v);
}

/* Nothing that is shown to the model as something else: tools and items of other types. */
static bool is_plain(const struct protocol *p, const json_t *root)
{
    static const char *const functions[] = {"function", "custom", NULL};
    static const char *const items[] = {"message", "function_call", "function_call_output",
                                        "reasoning", NULL};
    static const char *const blocks[] = {"text",     "tool_result",       "tool_use",
                                         "thinking", "redacted_thinking", NULL};
    bool responses = p->endpoint == SL_ENDPOINT_RESPONSES, plain = true;
    const json_t *v, *block, *inner;
    size_t i, k, l;
    json_array_foreach(json_object_get(root, "tools"), i, v)
    {
        const json_t *type = json_object_get(v, "type");
        plain &= is_one_of(type, functions + (responses ? 0 : 1)) &&
                 (!responses || !is_one_of(type, functions + 1)) &&
                 json_object_get(v, "defer_loading") == NULL;
    }
    json_array_foreach(json_object_get(root, p->messages), i, v)
    {
        if (responses)
            plain &= is_one_of(json_object_get(v, "type"), items) &&
                     json_object_get(v, "namespace") == NULL &&
                     (json_object_get(v, "input") == NULL || json_object_get(v, "arguments"));
        json_array_foreach(json_object_get(v, "content"), k, block)
        {
            plain &= responses || is_one_of(json_object_get(block, "type"), blocks);
            json_array_foreach(json_object_get(block, "content"), l, inner) plain &=
                responses || is_one_of(json_object_get(inner, "type"), blocks);
        }
    }
    return plain;
}

static void read_body(const struct protocol *p, json_t *root)
{
    struct sl_refusal r = {0};
    json_t *before = json_deep_copy(root);
    SL_ASSERT(before != NULL);
    int rc = p->to_chat(root, &r);
    if (rc == 0) {
        if (is_plain(p, before)) {
            check_texts(p, before, root);
            check_tools(p, before, root);
        }
        check_params(p, root);
    } else {
        SL_ASSERT(r.err.code == rc && r.err.msg[0] != '\0');
        char name[sizeof r.param];
        size_t n = strcspn(r.param, ".[");
        memcpy(name, r.param, n);
        name[n] = '\0';
        SL_ASSERT(n > 0);
        SL_ASSERT(json_object_get(before, name) != NULL || strcmp(name, p->messages) == 0);
    }
    json_decref(before);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    for (size_t i = 0; i < SL_COUNT(protocols); i++) {
        struct sl_refusal r = {0};
        json_t *root;
        if (sl_json_parse_object((const char *)data, size, &root, &r) != 0)
            return 0;
        read_body(&protocols[i], root);
        json_decref(root);
    }
    return 0;
}
