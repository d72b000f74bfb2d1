/* SPDX-License-Identifier: MIT
 *
 * The best oracle of a format is the template that writes it: what each public chat template makes
 * of an assistant's message with calls, rendered by the template engine, must be recognised by the
 * template's text and must parse back to the message. Skipped where the testdata is not there.
 */
#include "test_output_util.h"
#include "test_template_util.h"

#include "base/check.h"
#include "base/json_load.h"

#define TEMPLATES "build/testdata/templates/jinja/"

enum {
    ONE = 1,       /* the template takes one call a message */
    IDS = 2,       /* it writes ids */
    THINKS = 4,    /* and reasoning */
    KIMI_IDS = 8,  /* functions.NAME:INDEX */
    NUMBERED = 16, /* 0, 1, ... whatever the message says */
    SILENT = 32,   /* it does not write content beside calls */
    APART = 64,    /* it refuses content beside reasoning */
};

static const struct row {
    const char *file, *tools, *reasoning, *end; /* end: what follows the model's own text */
    unsigned flags;
} rows[] = {
    {"Apertus-8B-Instruct", "apertus", "apertus", NULL, 0},
    {"Apriel-1.6-15b-Thinker-fixed", "jamba", "apriel", "\n<|end|>", THINKS},
    {"Bielik-11B-v3.0-Instruct", "hermes", "qwen3", "<|im_end|>", THINKS},
    {"CohereForAI-c4ai-command-r7b-12-2024-tool_use", "cohere_command3", "cohere_command3",
     "<|END_OF_TURN_TOKEN|>", NUMBERED | THINKS | SILENT},
    {"GLM-4.6", "glm45", "glm45", NULL, THINKS},
    {"GigaChat3-10B-A1.8B", "gigachat3", NULL, NULL, ONE},
    {"GigaChat3.1-10B-A1.8B", "gigachat3", NULL, NULL, ONE},
    {"MiniMax-M2", "minimax_m2", "minimax_m2", "[e~[", THINKS},
    {"Mistral-Small-3.2-24B-Instruct-2506", "mistral", NULL, "</s>", IDS | SILENT},
    {"NVIDIA-Nemotron-3-Nano-30B-A3B-BF16", "qwen3_coder", "qwen3", "<|im_end|>", THINKS},
    {"NousResearch-Hermes-2-Pro-Llama-3-8B-tool_use", "hermes", NULL, "<|im_end|>", SILENT},
    {"NousResearch-Hermes-3-Llama-3.1-8B-tool_use", "hermes", NULL, "<|im_end|>", SILENT},
    {"Qwen-QwQ-32B", "hermes", "qwen3", "<|im_end|>", 0},
    {"Qwen-Qwen3-0.6B", "hermes", "qwen3", "<|im_end|>", THINKS},
    {"Qwen3-Coder", "qwen3_coder", NULL, "<|im_end|>", 0},
    {"Qwen3.5-4B", "qwen3_coder", "qwen3", "<|im_end|>", THINKS},
    {"StepFun3.5-Flash", "qwen3_coder", "qwen3", "<|im_end|>", THINKS},
    {"deepseek-ai-DeepSeek-R1-Distill-Qwen-32B", "deepseek_v3", "deepseek_r1",
     "<｜end▁of▁sentence｜>", SILENT},
    {"fireworks-ai-llama-3-firefunction-v2", "phi4_mini_json", NULL, "<|eot_id|>", 0},
    {"CohereForAI-c4ai-command-r-plus-tool_use", "command_r", NULL, "\n<|START_OF_TURN_TOKEN|>", 0},
    {"deepseek-ai-DeepSeek-V3.2", "deepseek_v32", "deepseek_v4", "<｜end▁of▁sentence｜>", 0},
    {"google-gemma-4-31B-it", "gemma4", "gemma4", "<|tool_response>", THINKS},
    {"ibm-granite-granite-4.0", "hermes", NULL, "<|end_of_text|>", 0},
    {"meetkai-functionary-medium-v3.1", "functionary_v3.1", NULL, "<|eom_id|>", 0},
    {"meta-llama-Llama-3.2-3B-Instruct", "llama3_json", NULL, "<|eot_id|>", ONE | SILENT},
    {"meta-llama-Llama-3.3-70B-Instruct", "llama3_json", NULL, "<|eot_id|>", ONE | SILENT},
    {"mistralai-Mistral-Nemo-Instruct-2407", "mistral", NULL, "</s>", IDS | SILENT},
    {"moonshotai-Kimi-K2", "kimi_k2", NULL, "<|im_end|>", KIMI_IDS},
    {"openai-gpt-oss-120b", "openai", "openai_gptoss", NULL, ONE | THINKS | APART},
    {"unsloth-Apriel-1.5", "jamba", NULL, "\n<|end|>", 0},
    {"unsloth-mistral-Devstral-Small-2507", "mistral", NULL, "</s>", 0},
    {"upstage-Solar-Open-100B", "solar_open", "solar_open", NULL, IDS | SILENT},
};

static const char tools_text[] =
    "[{\"type\":\"function\",\"function\":{\"name\":\"get_weather\",\"description\":\"d\","
    "\"parameters\":"
    "{\"type\":\"object\",\"properties\":{\"city\":{\"type\":\"string\",\"description\":\"x\"},"
    "\"days\":{\"type\":"
    "\"integer\",\"description\":\"x\"},\"lat\":{\"type\":\"number\",\"description\":\"x\"},"
    "\"metric\":{\"type\":\"boolean\","
    "\"description\":\"x\"},\"opts\":{\"type\":\"object\",\"description\":\"x\",\"properties\":{},"
    "\"additionalProperties\":{\"type\":\"string\"}},\"tags\":{\"type\":\"array\",\"description\":"
    "\"x\","
    "\"items\":{\"type\":\"string\"}}},\"required\":[\"city\"]}}},{\"type\":\"function\","
    "\"function\":"
    "{\"name\":\"now\",\"description\":\"n\",\"parameters\":{\"type\":\"object\",\"properties\":{}}"
    "}}]";

/* Arguments of get_weather; of those with a second set, two calls are made. */
static const char *const sets[][2] = {
    {"{\"city\": \"Rome\"}", NULL},
    {"{\"city\": \"K\\u00f6ln \\\"x\\\" <b> 'y' \\\\ {z} \\ud83d\\ude00\", \"days\": 3}", NULL},
    {"{\"city\": \"a\\n b\\n\\nc\", \"lat\": -1.5, \"metric\": true}", "{\"city\": \"Rome\"}"},
    {"{\"opts\": {\"a\": [1, 2.5, true], \"b\": {\"c\": \"d\"}}, \"city\": \"\"}",
     "{\"city\": \"3\", \"metric\": false}"},
    {"{\"city\": \"12\", \"days\": -7, \"tags\": [\"x\", \"y\"]}",
     "{\"tags\": [], \"city\": \"z\"}"},
};

struct setting {
    const struct row *row;
    const char *const *set;
    const char *content;
    bool as_text; /* arguments as a string, as clients send them, for templates that want it */
};

static json_t *make_call(const struct setting *s, int i)
{
    json_t *arguments = json_loads(s->set[i], 0, NULL);
    char id[40];
    assert_non_null(arguments);
    snprintf(id, sizeof id, s->row->flags & KIMI_IDS ? "functions.get_weather:%d" : "abcdefgh%d",
             i);
    if (s->as_text) {
        json_decref(arguments);
        arguments = json_string(s->set[i]);
    }
    return json_pack("{s:s,s:s,s:{s:s,s:o}}", "id", id, "type", "function", "function", "name",
                     "get_weather", "arguments", arguments);
}

static json_t *make_vars(const struct setting *s, bool answered)
{
    json_t *tools = json_loads(tools_text, 0, NULL);
    json_t *user = json_pack("{s:s,s:s}", "role", "user", "content", "Hi?");
    json_t *vars = json_pack("{s:[o],s:o,s:b,s:s,s:s,s:s,s:s}", "messages", user, "tools", tools,
                             "add_generation_prompt", !answered, "bos_token", "<s>", "eos_token",
                             "</s>", "functions", tools_text, "datetime", "now");
    if (answered) {
        json_t *calls = json_array();
        for (int i = 0; i < 2 && s->set[i] != NULL; i++)
            json_array_append_new(calls, make_call(s, i));
        json_t *m = json_pack("{s:s,s:s,s:o}", "role", "assistant", "content", s->content,
                              "tool_calls", calls);
        if (s->row->flags & THINKS) {
            json_object_set_new(m, "reasoning_content", json_string("I think"));
            json_object_set_new(m, "thinking", json_string("I think"));
            json_object_set_new(m, "reasoning", json_string("I think"));
        }
        json_array_append_new(json_object_get(vars, "messages"), m);
    }
    return vars;
}

static void want_calls(struct events *e, const struct setting *s)
{
    for (int i = 0; i < 2 && s->set[i] != NULL; i++) {
        json_t *arguments = json_loads(s->set[i], 0, NULL);
        char *text = json_dumps(arguments, JSON_COMPACT | JSON_SORT_KEYS);
        sl_buf_printf(&e->lines, "get_weather %s\n", text);
        sl_json_free_text(text);
        json_decref(arguments);
    }
}

/* Calls, content and reasoning, each gathered. */
struct answer {
    struct sl_buf calls, ids, content, reasoning, args;
    bool cut;
};

static void gather(void *arg, const struct sl_output_event *ev)
{
    struct answer *a = arg;
    switch (ev->kind) {
    case SL_OUTPUT_REASONING:
        sl_buf_put(&a->reasoning, ev->text, ev->n_text);
        return;
    case SL_OUTPUT_CONTENT:
        sl_buf_put(&a->content, ev->text, ev->n_text);
        return;
    case SL_OUTPUT_CALL_BEGIN:
        sl_buf_printf(&a->calls, "%s ", ev->text);
        sl_buf_printf(&a->ids, "%s;", ev->id);
        sl_buf_clear(&a->args);
        return;
    case SL_OUTPUT_CALL_ARGS:
        sl_buf_put(&a->args, ev->text, ev->n_text);
        return;
    case SL_OUTPUT_CALL_END:
        break;
    }
    json_t *j = json_loadb(a->args.data, a->args.n_bytes, 0, NULL);
    char *text = j != NULL ? json_dumps(j, JSON_COMPACT | JSON_SORT_KEYS) : NULL;
    sl_buf_printf(&a->calls, "%s\n", text != NULL ? text : "not JSON");
    if (ev->n_id > 0)
        sl_buf_printf(&a->ids, "%s;", ev->id);
    sl_json_free_text(text);
    json_decref(j);
    a->cut |= !ev->whole;
}

static const char *text_of(const struct sl_buf *b)
{
    return b->n_bytes > 0 ? b->data : "";
}

static bool ids_fit(const struct answer *a, const struct setting *s)
{
    struct sl_buf want = {0};
    unsigned flags = s->row->flags;
    if (!(flags & (IDS | KIMI_IDS | NUMBERED)))
        return true;
    for (int i = 0; i < 2 && s->set[i] != NULL; i++)
        sl_buf_printf(&want,
                      flags & KIMI_IDS ? "functions.get_weather:%d;"
                      : flags & IDS    ? "abcdefgh%d;"
                                       : "%d;",
                      i);
    struct sl_buf have = {0}; /* an id that comes late leaves an empty one before it */
    for (size_t i = 0; i < a->ids.n_bytes; i++)
        if (a->ids.data[i] != ';' || (have.n_bytes > 0 && have.data[have.n_bytes - 1] != ';'))
            sl_buf_putc(&have, a->ids.data[i]);
    bool ok = strcmp(text_of(&have), text_of(&want)) == 0;
    sl_buf_deinit(&have);
    sl_buf_deinit(&want);
    return ok;
}

/* Where prompt and answer part in the middle of a marker, the answer begins with it. */
static size_t marker_begin(const char *s, size_t at)
{
    for (size_t k = at; k > 0 && s[k - 1] != '>'; k--)
        if (s[k - 1] == '<')
            return k - 1;
    return at;
}

/* What the model would have written: behind the prompt, before the end of the turn. */
static bool parse_back(const struct setting *s, const char *source, size_t n_source,
                       const struct rendering *prompt, const struct rendering *full)
{
    struct answer a = {0};
    struct events want = {0};
    const char *tools, *reasoning;
    size_t at = 0, n = full->out.n_bytes;
    while (at < n && at < prompt->out.n_bytes && full->out.data[at] == prompt->out.data[at])
        at++;
    if (at < prompt->out.n_bytes)
        at = marker_begin(full->out.data, at);
    const char *text = full->out.data + at, *end = NULL;
    if (sl_starts_with(text, "<|CHATBOT_TOKEN|>")) { /* a prompt that went another way */
        at += 17;
        text += 17;
    }
    if (s->row->end != NULL)
        end = strstr(text, s->row->end);
    size_t n_text = end != NULL ? (size_t)(end - text) : n - at;
    sl_output_detect(source, n_source, &tools, &reasoning);
    const char *close = reasoning != NULL ? sl_output_reasoning_close(reasoning) : NULL;
    enum sl_output_start start =
        sl_output_prompt_start(reasoning != NULL ? reasoning : "", full->out.data, at);
    if (close != NULL && strncmp(text, close, strlen(close)) == 0)
        start = SL_OUTPUT_START_REASONING; /* the template closes a block that it need not open */
    else if (!(s->row->flags & THINKS))
        start = SL_OUTPUT_START_CONTENT;
    json_t *list = json_loads(tools_text, 0, NULL);
    struct sl_output_options o = {tools, reasoning, list, start, gather, &a};
    struct sl_output *p;
    struct sl_error err;
    assert_int_equal(sl_output_create(&o, &p, &err), 0);
    for (size_t i = 0; i < n_text; i++)
        assert_int_equal(sl_output_push(p, text + i, 1), 0);
    assert_int_equal(sl_output_finish(p), 0);
    want_calls(&want, s);
    const char *content = s->row->flags & SILENT ? "" : s->content;
    bool ok = !a.cut && strcmp(text_of(&a.calls), text_of(&want.lines)) == 0 && ids_fit(&a, s) &&
              strcmp(text_of(&a.content), content) == 0;
    bool thought = strcmp(text_of(&a.reasoning), s->row->flags & THINKS ? "I think" : "") == 0;
    if (!ok || !thought)
        print_error("%s (%s, %s)\n  text: %.*s\n  want:\n%s  have:\n%s  content: %s\n  reasoning: "
                    "%s\n  ids: %s\n",
                    s->row->file, tools, reasoning, (int)n_text, text, text_of(&want.lines),
                    text_of(&a.calls), text_of(&a.content), text_of(&a.reasoning), text_of(&a.ids));
    sl_output_destroy(p);
    json_decref(list);
    events_deinit(&want);
    sl_buf_deinit(&a.calls);
    sl_buf_deinit(&a.ids);
    sl_buf_deinit(&a.content);
    sl_buf_deinit(&a.reasoning);
    sl_buf_deinit(&a.args);
    return ok && thought;
}

static bool round_trip(struct setting s, const char *source, size_t n)
{
    struct rendering full = {.code = -1}, prompt = {0};
    json_t *vars = make_vars(&s, false);
    prompt = render(source, n, vars, NULL);
    json_decref(vars);
    for (int k = 0; k < 2 && full.code != 0; k++) {
        s.as_text = k == 1;
        vars = make_vars(&s, true);
        full = render(source, n, vars, NULL);
        json_decref(vars);
    }
    if (prompt.code != 0 || full.code != 0)
        print_error("%s: %s\n", s.row->file, prompt.code != 0 ? prompt.err.msg : full.err.msg);
    bool ok = prompt.code == 0 && full.code == 0 && parse_back(&s, source, n, &prompt, &full);
    sl_buf_deinit(&prompt.out);
    sl_buf_deinit(&full.out);
    return ok;
}

static bool same_name(const char *a, const char *b)
{
    return a == NULL || b == NULL ? a == b : strcmp(a, b) == 0;
}

static void templates(void **state)
{
    (void)state;
    size_t n_bad = 0, n_done = 0, n_rows = 0;
    for (size_t i = 0; i < SL_COUNT(rows); i++) {
        char path[300], *source;
        const char *tools, *reasoning;
        size_t n, bad = 0;
        struct sl_error err;
        snprintf(path, sizeof path, "%s%s.jinja", TEMPLATES, rows[i].file);
        if (sl_read_file(path, 1u << 20, &source, &n, &err) != 0) {
            print_message("skip: %s is not there\n", path);
            continue;
        }
        sl_output_detect(source, n, &tools, &reasoning);
        if (!same_name(tools, rows[i].tools) || !same_name(reasoning, rows[i].reasoning)) {
            print_error("%s: found %s, %s\n", rows[i].file, tools, reasoning);
            bad++;
        }
        for (size_t k = 0; k < SL_COUNT(sets) * 2; k++) {
            struct setting s = {&rows[i], sets[k / 2], k % 2 == 0 ? "" : "Let me look.", false};
            if ((s.set[1] != NULL && (rows[i].flags & ONE)) ||
                (s.content[0] != '\0' && (rows[i].flags & APART)))
                continue;
            bad += !round_trip(s, source, n);
            n_done++;
        }
        n_bad += bad;
        n_rows++;
        sl_free(source);
    }
    print_message("%zu messages of %zu templates\n", n_done, n_rows);
    assert_int_equal(n_bad, 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(templates)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
