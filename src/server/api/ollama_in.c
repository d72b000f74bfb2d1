/* SPDX-License-Identifier: MIT */
#include "server/api/ollama_in.h"

#include "base/check.h"
#include "server/api/to_chat.h"
#include "server/http/json_tree.h"

#include <stdio.h>
#include <string.h>

/* A member that says something; null counts as absent. */
static json_t *ollama_in_member(const json_t *v, const char *name)
{
    json_t *m = json_object_get(v, name);
    return m == NULL || json_is_null(m) ? NULL : m;
}

static int set_new(json_t *root, const char *name, json_t *v, struct sl_refusal *r)
{
    return json_object_set_new(root, name, v) == 0 ? 0 : sl_chat_no_memory(r, name);
}

static void ollama_in_drop(json_t *root, const char *const *names)
{
    for (size_t i = 0; names[i] != NULL; i++)
        (void)json_object_del(root, names[i]);
}

static bool is_empty(const json_t *v)
{
    return v == NULL || json_is_null(v) || (json_is_string(v) && json_string_length(v) == 0) ||
           (json_is_array(v) && json_array_size(v) == 0);
}

/* ---- options */

enum option_kind {
    O_SAME,  /* a field of that name is read from it */
    O_LIMIT, /* num_predict: what is not above 0 is no limit */
    O_PENALTY,
    O_LOAD,   /* how Ollama lays out its memory or trims its context: this server is started with it
               */
    O_NEUTRAL /* a sampler that is not here: only the value that turns it off */
};

static const struct option {
    const char *name;
    enum option_kind kind;
    double neutral;
} options[] = {
    {"temperature", O_SAME, 0},
    {"top_k", O_SAME, 0},
    {"top_p", O_SAME, 0},
    {"min_p", O_SAME, 0},
    {"seed", O_SAME, 0},
    {"stop", O_SAME, 0},
    {"presence_penalty", O_SAME, 0},
    {"frequency_penalty", O_SAME, 0},
    {"num_predict", O_LIMIT, 0},
    {"repeat_penalty", O_PENALTY, 0},
    {"num_ctx", O_LOAD, 0},
    {"num_keep", O_LOAD, 0},
    {"num_batch", O_LOAD, 0},
    {"num_gpu", O_LOAD, 0},
    {"main_gpu", O_LOAD, 0},
    {"num_thread", O_LOAD, 0},
    {"numa", O_LOAD, 0},
    {"low_vram", O_LOAD, 0},
    {"f16_kv", O_LOAD, 0},
    {"logits_all", O_LOAD, 0},
    {"vocab_only", O_LOAD, 0},
    {"use_mmap", O_LOAD, 0},
    {"use_mlock", O_LOAD, 0},
    {"embedding_only", O_LOAD, 0},
    {"penalize_newline", O_LOAD, 0},
    {"mirostat_tau", O_LOAD, 0}, /* of mirostat, which is refused */
    {"mirostat_eta", O_LOAD, 0},
    {"mirostat", O_NEUTRAL, 0},
    {"tfs_z", O_NEUTRAL, 1},
    {"typical_p", O_NEUTRAL, 1},
};

static int ollama_in_read_limit(json_t *root, json_t *v, struct sl_refusal *r)
{
    int64_t n;
    int rc = sl_json_int(v, "options.num_predict", INT32_MIN, INT32_MAX, &n, r);
    return rc != 0 || n <= 0 ? rc : set_new(root, "max_tokens", json_integer(n), r);
}

static int read_penalty(json_t *root, json_t *v, struct sl_refusal *r)
{
    static const char field[] = "options.repeat_penalty";
    double x;
    int rc = sl_json_number(v, field, 0, 100, &x, r);
    if (rc == 0 && (float)x <= 0)
        rc = sl_refuse(r, SL_EINVAL, field, "%s must be above 0, got %g", field, x);
    return rc != 0 ? rc : set_new(root, "repetition_penalty", json_incref(v), r);
}

static int read_option(json_t *root, const char *name, json_t *v, struct sl_refusal *r)
{
    char field[96];
    snprintf(field, sizeof field, "options.%.64s", name);
    for (size_t i = 0; i < SL_COUNT(options); i++) {
        const struct option *o = &options[i];
        if (strcmp(name, o->name) != 0)
            continue;
        if (o->kind == O_SAME)
            return set_new(root, name, json_incref(v), r);
        if (o->kind == O_LIMIT)
            return ollama_in_read_limit(root, v, r);
        if (o->kind == O_PENALTY)
            return read_penalty(root, v, r);
        if (o->kind == O_LOAD || (json_is_number(v) && json_number_value(v) == o->neutral))
            return 0;
        return sl_refuse(r, SL_EUNSUPPORTED, field, "not supported: %s other than %g", field,
                         o->neutral);
    }
    return set_new(root, field, json_incref(v),
                   r); /* unknown to the table as well, which says so */
}

static int check_options(const json_t *v, struct sl_refusal *r)
{
    return v == NULL || json_is_object(v)
               ? 0
               : sl_refuse(r, SL_EINVAL, "options", "options must be an object, not %s",
                           sl_json_type_name(v));
}

static int read_options(json_t *root, struct sl_refusal *r)
{
    json_t *all = ollama_in_member(root, "options"), *v;
    const char *name;
    int rc = check_options(all, r);
    json_object_foreach(all, name, v)
    {
        if (rc == 0 && !json_is_null(v))
            rc = read_option(root, name, v, r);
    }
    return rc;
}

int sl_ollama_drop_options(json_t *root, struct sl_refusal *r)
{
    int rc = check_options(ollama_in_member(root, "options"), r);
    (void)json_object_del(root, "options");
    return rc;
}

/* ---- fields that both have */

/* Go's durations: numbers with units, one behind the other; all of them 0 is 0. */
static bool read_duration(const char *s, bool *zero)
{
    static const char *const units[] = {"ns", "us", "\xC2\xB5s", "ms", "s", "m", "h"};
    bool any = false;
    *zero = true;
    s += *s == '-' || *s == '+';
    if (strcmp(s, "0") == 0)
        return true;
    while (*s != '\0') {
        size_t digits = strspn(s, "0123456789."), n_unit = 0;
        for (size_t i = 0; i < digits; i++)
            *zero = *zero && (s[i] == '0' || s[i] == '.');
        s += digits;
        for (size_t i = 0; i < SL_COUNT(units); i++) {
            size_t n = strlen(units[i]);
            if (n > n_unit && strncmp(s, units[i], n) == 0)
                n_unit = n;
        }
        if (digits == 0 || n_unit == 0)
            return false;
        s += n_unit;
        any = true;
    }
    return any;
}

int sl_ollama_keep_alive(json_t *root, bool *zero, struct sl_refusal *r)
{
    static const char field[] = "keep_alive";
    const json_t *v = ollama_in_member(root, field);
    const char *text = NULL;
    int rc = json_is_string(v) ? sl_json_cstr(v, field, 64, &text, r) : 0;
    *zero = json_is_number(v) && json_number_value(v) == 0;
    if (rc == 0 && text != NULL && !read_duration(text, zero))
        rc = sl_refuse(
            r, SL_EINVAL, field,
            "keep_alive must be a number of seconds or a duration such as 5m, not '%.40s'", text);
    else if (v != NULL && !json_is_string(v) && !json_is_number(v))
        rc = sl_refuse(r, SL_EINVAL, field,
                       "keep_alive must be a number of seconds or a duration such as 5m, not %s",
                       sl_json_type_name(v));
    (void)json_object_del(root, field);
    return rc;
}

static int ollama_in_read_format(json_t *root, struct sl_refusal *r)
{
    json_t *v = ollama_in_member(root, "format"), *out;
    const char *word = NULL;
    int rc = json_is_string(v) ? sl_json_cstr(v, "format", 16, &word, r) : 0;
    if (rc != 0 || v == NULL || (word != NULL && word[0] == '\0'))
        return rc;
    if (json_is_object(v))
        out = json_pack("{s:s, s:{s:s, s:O}}", "type", "json_schema", "json_schema", "name",
                        "format", "schema", v);
    else if (word != NULL && strcmp(word, "json") == 0)
        out = json_pack("{s:s}", "type", "json_object");
    else
        return sl_refuse(r, SL_EINVAL, "format", "format must be \"json\" or a JSON schema");
    return set_new(root, "response_format", out, r);
}

static int read_think(json_t *root, const struct sl_ollama_model *m, struct sl_refusal *r)
{
    json_t *v = ollama_in_member(root, "think");
    if (v == NULL)
        return 0;
    if (!json_is_boolean(v) && !json_is_string(v))
        return sl_refuse(r, SL_EINVAL, "think",
                         "think must be true, false or an effort such as \"high\", not %s",
                         sl_json_type_name(v));
    bool off = json_is_false(v);
    if (!off && !m->thinks)
        return sl_refuse(r, SL_EUNSUPPORTED, "think", "\"%.100s\" does not support thinking",
                         m->name);
    int rc = sl_chat_set_thinking(root, !off, r);
    if (rc == 0 && json_is_string(v) && json_object_set(root, "reasoning_effort", v) != 0)
        rc = sl_chat_no_memory(r, "think");
    return rc;
}

static int refuse_images(const json_t *v, const char *at, struct sl_refusal *r)
{
    char field[64];
    snprintf(field, sizeof field, "%simages", at);
    return is_empty(v) ? 0
                       : sl_refuse(r, SL_EUNSUPPORTED, field,
                                   "not supported: %s (this server takes text alone)", field);
}

/* Streams unless told otherwise, which is the other way round than for OpenAI. */
static int ollama_in_read_stream(json_t *root, struct sl_refusal *r)
{
    return ollama_in_member(root, "stream") != NULL ? 0 : set_new(root, "stream", json_true(), r);
}

static int read_common(json_t *root, const struct sl_ollama_model *m, struct sl_ollama_request *out,
                       struct sl_refusal *r)
{
    int rc = sl_ollama_keep_alive(root, &out->unload, r);
    if (rc == 0)
        rc = read_options(root, r);
    if (rc == 0)
        rc = ollama_in_read_format(root, r);
    if (rc == 0)
        rc = read_think(root, m, r);
    return rc == 0 ? ollama_in_read_stream(root, r) : rc;
}

/* What is read by then. A prompt that does not fit the context is refused, which answers truncate
 * and shift. */
static const char *const common[] = {"options",  "format", "think", "name",
                                     "truncate", "shift",  NULL};

/* ---- messages */

struct reader {
    json_t *open; /* calls of the last message that have no result yet; owned */
    size_t n_calls;
    char at[48]; /* the message, as refusals name it */
    struct sl_refusal *r;
};

static int ollama_in_bad(struct reader *rd, const char *what, const char *must, const json_t *v)
{
    char field[96];
    snprintf(field, sizeof field, "%s.%s", rd->at, what);
    return sl_refuse(rd->r, SL_EINVAL, field, "%s must be %s%s%s", field, must,
                     v != NULL ? ", not " : "", v != NULL ? sl_json_type_name(v) : "");
}

/* Calls have no ids here unless the client made some: results follow in their order, or name the
 * function. Templates of some families want nine letters and digits. */
static int read_calls(struct reader *rd, json_t *m)
{
    json_t *calls = ollama_in_member(m, "tool_calls"), *call;
    size_t i;
    if (calls == NULL)
        return 0;
    if (!json_is_array(calls))
        return ollama_in_bad(rd, "tool_calls", "an array", calls);
    json_decref(rd->open);
    rd->open = json_array();
    json_array_foreach(calls, i, call)
    {
        char id[32];
        const json_t *function = ollama_in_member(call, "function");
        if (!json_is_object(function) || !json_is_string(ollama_in_member(function, "name")))
            return ollama_in_bad(rd, "tool_calls",
                                 "an array of objects with a function and its name", NULL);
        snprintf(id, sizeof id, "call%05zu", rd->n_calls++ % 100000);
        bool ok = json_is_string(ollama_in_member(call, "id")) ||
                  json_object_set_new(call, "id", json_string(id)) == 0;
        ok = ok && json_object_set_new(call, "type", json_string("function")) == 0 &&
             json_array_append(rd->open, call) == 0;
        if (!ok)
            return sl_chat_no_memory(rd->r, rd->at);
    }
    return 0;
}

static int read_result(struct reader *rd, json_t *m)
{
    const json_t *name = ollama_in_member(m, "tool_name"), *call;
    size_t i, which = 0;
    if (name != NULL && !json_is_string(name))
        return ollama_in_bad(rd, "tool_name", "a string", name);
    if (name == NULL)
        name = ollama_in_member(m, "name");
    json_array_foreach(rd->open, i, call)
    {
        if (name != NULL && json_equal(json_object_get(json_object_get(call, "function"), "name"),
                                       (json_t *)(uintptr_t)name)) {
            which = i;
            break;
        }
    }
    call = json_array_get(rd->open, which);
    bool ok = true;
    if (name != NULL)
        ok = json_object_set(m, "name", (json_t *)(uintptr_t)name) == 0;
    if (ok && call != NULL && ollama_in_member(m, "tool_call_id") == NULL)
        ok = json_object_set(m, "tool_call_id", json_object_get(call, "id")) == 0;
    if (call != NULL)
        (void)json_array_remove(rd->open, which);
    (void)json_object_del(m, "tool_name");
    return ok ? 0 : sl_chat_no_memory(rd->r, rd->at);
}

static int ollama_in_read_message(struct reader *rd, json_t *m, size_t i)
{
    char dot[56];
    snprintf(rd->at, sizeof rd->at, "messages[%zu]", i);
    if (!json_is_object(m))
        return sl_refuse(rd->r, SL_EINVAL, rd->at, "%s must be an object, not %s", rd->at,
                         sl_json_type_name(m));
    const char *role = json_string_value(json_object_get(m, "role"));
    if (role == NULL || role[0] == '\0')
        return ollama_in_bad(rd, "role", "a string", json_object_get(m, "role"));
    const json_t *content = ollama_in_member(m, "content");
    if (content != NULL && !json_is_string(content))
        return ollama_in_bad(rd, "content", "a string", content);
    json_t *thinking = ollama_in_member(m, "thinking");
    if (thinking != NULL && !json_is_string(thinking))
        return ollama_in_bad(rd, "thinking", "a string", thinking);
    snprintf(dot, sizeof dot, "%s.", rd->at);
    int rc = refuse_images(json_object_get(m, "images"), dot, rd->r);
    if (rc == 0 && content == NULL)
        rc = set_new(m, "content", json_string(""), rd->r);
    if (rc == 0 && thinking != NULL)
        rc = set_new(m, "reasoning", json_incref(thinking), rd->r);
    ollama_in_drop(m, (const char *const[]){"thinking", "images", NULL});
    if (rc == 0 && strcmp(role, "tool") == 0)
        rc = read_result(rd, m);
    return rc == 0 ? read_calls(rd, m) : rc;
}

/* An answer that has begun goes on, unless it calls: then a result has to come first. */
static int ollama_in_go_on(json_t *root, struct sl_refusal *r)
{
    const json_t *messages = json_object_get(root, "messages");
    const json_t *last = json_array_get(messages, json_array_size(messages) - 1);
    const char *role = json_string_value(json_object_get(last, "role"));
    if (role == NULL || strcmp(role, "assistant") != 0 ||
        ollama_in_member(last, "tool_calls") != NULL || is_empty(ollama_in_member(last, "content")))
        return 0;
    return json_object_set_new(root, "continue_final_message", json_true()) == 0 &&
                   json_object_set_new(root, "add_generation_prompt", json_false()) == 0
               ? 0
               : sl_chat_no_memory(r, "messages");
}

int sl_ollama_chat(json_t *root, const struct sl_ollama_model *m, struct sl_ollama_request *out,
                   struct sl_refusal *r)
{
    json_t *messages = ollama_in_member(root, "messages"), *message;
    struct reader rd = {.r = r};
    size_t i;
    SL_ASSERT(json_is_object(root));
    *out = (struct sl_ollama_request){0};
    int rc = read_common(root, m, out, r);
    if (rc == 0 && messages != NULL && !json_is_array(messages))
        rc = sl_refuse(r, SL_EINVAL, "messages", "messages must be an array, not %s",
                       sl_json_type_name(messages));
    out->idle = json_array_size(messages) == 0;
    json_array_foreach(messages, i, message)
    {
        if (rc == 0)
            rc = ollama_in_read_message(&rd, message, i);
    }
    json_decref(rd.open);
    if (rc == 0)
        rc = ollama_in_go_on(root, r);
    if (is_empty(json_object_get(root, "tools")))
        (void)json_object_del(root, "tools");
    ollama_in_drop(root, common);
    return rc;
}

/* ---- a prompt */

static int optional_text(const json_t *root, const char *name, const json_t **out,
                         struct sl_refusal *r)
{
    *out = ollama_in_member(root, name);
    return *out == NULL || json_is_string(*out)
               ? 0
               : sl_refuse(r, SL_EINVAL, name, "%s must be a string, not %s", name,
                           sl_json_type_name(*out));
}

static int refuse_filled(const json_t *root, struct sl_refusal *r)
{
    static const char *const rows[][2] = {
        {"suffix", "filling in between two texts"},
        {"template", "Go templates; the model's chat template is used (--chat-template)"},
        {"context", "going on from token ids; send the conversation to /api/chat"},
    };
    for (size_t i = 0; i < SL_COUNT(rows); i++) {
        if (!is_empty(json_object_get(root, rows[i][0])))
            return sl_refuse(r, SL_EUNSUPPORTED, rows[i][0], "%s: not supported: %s", rows[i][0],
                             rows[i][1]);
    }
    return refuse_images(json_object_get(root, "images"), "", r);
}

static int set_messages(json_t *root, const json_t *system, const json_t *prompt,
                        struct sl_refusal *r)
{
    json_t *messages = json_array();
    int rc = messages != NULL ? 0 : sl_chat_no_memory(r, "prompt");
    if (rc == 0 && !is_empty(system))
        rc = sl_chat_append_message(messages, "system", system, "system", r);
    if (rc == 0)
        rc = sl_chat_append_message(messages, "user", prompt, "prompt", r);
    if (rc == 0)
        return set_new(root, "messages", messages, r);
    json_decref(messages);
    return rc;
}

/* Completions say by a number what conversations say by a switch and a number. */
static int raw_logprobs(json_t *root, struct sl_refusal *r)
{
    const json_t *on = ollama_in_member(root, "logprobs"),
                 *top = ollama_in_member(root, "top_logprobs");
    bool want = false;
    int64_t n = 0;
    int rc = on != NULL ? sl_json_bool(on, "logprobs", &want, r) : 0;
    if (rc == 0 && top != NULL)
        rc = sl_json_int(top, "top_logprobs", 0, 20, &n, r);
    ollama_in_drop(root, (const char *const[]){"logprobs", "top_logprobs", NULL});
    return rc == 0 && want ? set_new(root, "logprobs", json_integer(n), r) : rc;
}

int sl_ollama_generate(json_t *root, const struct sl_ollama_model *m, struct sl_ollama_request *out,
                       struct sl_refusal *r)
{
    const json_t *prompt = NULL, *system = NULL, *raw;
    SL_ASSERT(json_is_object(root));
    *out = (struct sl_ollama_request){0};
    int rc = read_common(root, m, out, r);
    if (rc == 0)
        rc = optional_text(root, "prompt", &prompt, r);
    if (rc == 0)
        rc = optional_text(root, "system", &system, r);
    if (rc == 0)
        rc = refuse_filled(root, r);
    if (rc == 0 && (raw = ollama_in_member(root, "raw")) != NULL)
        rc = sl_json_bool(raw, "raw", &out->raw, r);
    out->idle = is_empty(prompt);
    out->raw = out->raw || !m->has_template;
    if (rc == 0 && out->raw && !is_empty(system))
        rc = sl_refuse(r, SL_EINVAL, "system",
                       "system needs a chat template, which a raw prompt does without");
    if (rc == 0 && !out->idle)
        rc = out->raw ? raw_logprobs(root, r) : set_messages(root, system, prompt, r);
    if (!out->raw)
        (void)json_object_del(root, "prompt");
    ollama_in_drop(root, common);
    ollama_in_drop(root, (const char *const[]){"system", "raw", "suffix", "template", "context",
                                               "images", NULL});
    return rc;
}
