/* SPDX-License-Identifier: MIT
 *
 * Parsers of model output. The cases of output_cases.txt: format, answer, events; each must give
 * the same events whole, byte by byte, cut in two at every byte and cut at random, and must survive
 * every allocation that fails. Every format must have cases.
 */
#include "base/check.h"
#include "base/rng.h"
#include "base/sys.h"
#include "test_output_util.h"
#include "text/output/output.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

#define CASES "tests/text/output_cases.txt"

struct a_case {
    char title[200], tools[64], reasoning[64];
    enum sl_output_start start;
    bool no_schema;
    char *text, *want;
    size_t n_text;
};

static char *file;
static struct a_case cases[512];
static size_t n_cases;
static json_t *schema;

static const char *const starts[] = {"auto", "reasoning", "content"};

/* "word rest" -> rest */
static char *after(char *line, const char *word)
{
    size_t n = strlen(word);
    return strncmp(line, word, n) == 0 && line[n] == ' ' ? line + n + 1 : NULL;
}

static char *next_line(char **at)
{
    char *line = *at, *end = strchr(line, '\n');
    if (end == NULL) {
        *at = line + strlen(line);
        return line;
    }
    *end = '\0';
    *at = end + 1;
    return line;
}

static void read_head(struct a_case *c, char *line)
{
    char *s;
    if ((s = after(line, "tools")) != NULL) {
        snprintf(c->tools, sizeof c->tools, "%s", s);
    } else if ((s = after(line, "reasoning")) != NULL) {
        snprintf(c->reasoning, sizeof c->reasoning, "%s", s);
    } else if ((s = after(line, "start")) != NULL) {
        for (int i = 0; i < 3; i++)
            if (strcmp(s, starts[i]) == 0)
                c->start = (enum sl_output_start)i;
    } else if (strcmp(line, "no schema") == 0) {
        c->no_schema = true;
    } else if (line[0] != '\0' && line[0] != '#') {
        fail_msg("%s: %s: what is \"%s\"?", CASES, c->title, line);
    }
}

/* The text stands between the lines ---- and ====, without its last newline; events follow up to
 * an empty line. */
static void read_case(struct a_case *c, char **at)
{
    char *line;
    while (**at != '\0' && strcmp(line = next_line(at), "----") != 0)
        read_head(c, line);
    char *end = **at == '=' ? *at - 1 : strstr(*at, "\n====\n");
    if (end == NULL)
        fail_msg("%s: %s has no ====", CASES, c->title);
    c->text = *at;
    c->n_text = end < *at ? 0 : (size_t)(end - *at);
    *at = end + 6;
    c->want = *at;
    end = strstr(*at, "\n\n");
    *at = end != NULL ? end + 2 : *at + strlen(*at);
    if (end != NULL)
        end[1] = '\0';
}

static int read_cases(void **state)
{
    (void)state;
    size_t n;
    struct sl_error err;
    json_error_t why;
    if (sl_read_file(CASES, 1u << 20, &file, &n, &err) != 0)
        return -1;
    char *at = file;
    while (*at != '\0') {
        char *title = after(next_line(&at), "==");
        if (title == NULL)
            continue;
        assert_true(n_cases < sizeof cases / sizeof *cases);
        snprintf(cases[n_cases].title, sizeof cases[n_cases].title, "%s", title);
        read_case(&cases[n_cases++], &at);
    }
    schema = json_loads(
        "[{\"type\":\"function\",\"function\":{\"name\":\"weather\",\"parameters\":{\"type\":"
        "\"object\",\"properties\":{\"city\":{\"type\":\"string\"},\"days\":{\"type\":\"integer\"},"
        "\"lat\":{\"type\":\"number\"},\"metric\":{\"type\":\"boolean\"},\"opts\":{\"type\":"
        "\"object\"},\"tags\":{\"type\":\"array\"},\"note\":{\"type\":[\"string\",\"null\"]},"
        "\"level\":{\"enum\":[1,\"high\"]},\"either\":{\"anyOf\":[{\"type\":\"object\"},"
        "{\"type\":\"string\"}]}}}}},{\"type\":\"function\",\"function\":{\"name\":\"now\"}}]",
        0, &why);
    return schema != NULL ? 0 : -1;
}

static int free_cases(void **state)
{
    (void)state;
    json_decref(schema);
    sl_free(file);
    return 0;
}

static struct sl_output_options options(const struct a_case *c)
{
    return (struct sl_output_options){.tools_format = c->tools,
                                      .reasoning_format = c->reasoning,
                                      .tools = c->no_schema ? NULL : schema,
                                      .start = c->start};
}

static bool at_one(void *arg, size_t i)
{
    return i == *(size_t *)arg;
}

static bool at_random(void *arg, size_t i)
{
    uint64_t *x = arg;
    (void)i;
    *x = *x * 6364136223846793005u + 1442695040888963407u;
    return (*x >> 60) < 5;
}

static bool always(void *arg, size_t i)
{
    (void)arg;
    (void)i;
    return true;
}

static bool run(const struct a_case *c, bool (*cut)(void *arg, size_t i), void *arg, bool show)
{
    struct events e = {0};
    assert_int_equal(events_run(&e, options(c), c->text, c->n_text, cut, arg), 0);
    const char *have = e.lines.data != NULL ? e.lines.data : "";
    bool ok = !e.bad && strcmp(have, c->want) == 0;
    if (!ok && show)
        print_error("%s (%s, %s)%s\n%.*s\n  want:\n%s  have:\n%s\n", c->title, c->tools,
                    c->reasoning, e.bad ? ": events out of order or bad arguments" : "",
                    (int)c->n_text, c->text, c->want, have);
    events_deinit(&e);
    return ok;
}

static void whole(void **state)
{
    (void)state;
    size_t n_bad = 0;
    for (size_t i = 0; i < n_cases; i++)
        n_bad += !run(&cases[i], NULL, NULL, true);
    print_message("%zu cases\n", n_cases);
    assert_int_equal(n_bad, 0);
}

static void cut(void **state)
{
    (void)state;
    for (size_t i = 0; i < n_cases; i++) {
        uint64_t x = i;
        bool ok = run(&cases[i], always, NULL, true);
        for (size_t at = 0; at < cases[i].n_text && ok; at++)
            ok = run(&cases[i], at_one, &at, true);
        for (int k = 0; k < 50 && ok; k++)
            ok = run(&cases[i], at_random, &x, true);
        assert_true(ok);
    }
}

/* Every prefix of an answer is an answer too: same events in one piece and byte by byte, calls that
 * are ended, arguments that are whole or said not to be. */
static void prefixes(void **state)
{
    (void)state;
    for (size_t i = 0; i < n_cases; i++)
        for (size_t n = 0; n <= cases[i].n_text; n++) {
            struct events a = {0}, b = {0};
            assert_int_equal(events_run(&a, options(&cases[i]), cases[i].text, n, NULL, NULL), 0);
            assert_int_equal(events_run(&b, options(&cases[i]), cases[i].text, n, always, NULL), 0);
            if (a.bad || b.bad || a.lines.n_bytes != b.lines.n_bytes ||
                (a.lines.n_bytes > 0 && memcmp(a.lines.data, b.lines.data, a.lines.n_bytes) != 0))
                fail_msg("%s, first %zu bytes:\n%s\n%s", cases[i].title, n, a.lines.data,
                         b.lines.data);
            events_deinit(&a);
            events_deinit(&b);
        }
}

/* Text is passed on in the call that brings it, unless it may become a marker. */
static void at_once(void **state)
{
    (void)state;
    static const struct {
        const char *tools, *reasoning, *text, *now;
    } rows[] = {
        {"hermes", NULL, "Hello", "content Hello|\n"},
        {"hermes", NULL, "a <", "content a|\n"},
        {"hermes", NULL, "a <b", "content a <b|\n"},
        {"hermes", NULL, "<tool_call", ""},
        {"hermes", NULL, "<tool_call>{\"name\": \"weather\", \"arguments\": {\"ci",
         "call weather\nargs {\"ci|\n"},
        {"qwen3_coder", NULL, "<tool_call><function=now><parameter=a>x y </para",
         "call now\nargs {\"a\": \"x y |\n"},
        {NULL, "deepseek_r1", "I think</th", "reasoning I think|\n"},
        {NULL, NULL, " <think> ", "content  <think> |\n"},
        {"openai", NULL, "<|channel|>analysis<|message|>Hm", "reasoning Hm|\n"},
    };
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        struct events e = {0};
        struct sl_output *p;
        struct sl_error err;
        struct sl_output_options o = {.tools_format = rows[i].tools,
                                      .reasoning_format = rows[i].reasoning,
                                      .tools = schema,
                                      .fn = events_add,
                                      .arg = &e};
        assert_int_equal(sl_output_create(&o, &p, &err), 0);
        assert_int_equal(sl_output_push(p, rows[i].text, strlen(rows[i].text)), 0);
        events_flush(&e);
        assert_string_equal(e.lines.data != NULL ? e.lines.data : "", rows[i].now);
        sl_output_destroy(p);
        events_deinit(&e);
    }
}

static void forced_close(void **state)
{
    (void)state;
    static const struct {
        const char *before, *behind, *want;
    } rows[] = {
        {"I thi", "</think>\n\nYes", "reasoning I thi|\ncontent Yes|\n"},
        {"I thi", "Yes</think>", "reasoning I thi|\ncontent Yes</think>|\n"},
        {"I </th", "\nYes", "reasoning I </th|\ncontent Yes|\n"},
        {"I<tool_call>{\"na", "Yes", "reasoning I<tool_call>{\"na|\ncontent Yes|\n"},
        {"I</think>No", "Yes", "reasoning I|\ncontent NoYes|\n"},
    };
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        struct events e = {0};
        struct sl_output *p;
        struct sl_error err;
        struct sl_output_options o = {
            .tools_format = "hermes", .reasoning_format = "qwen3", .fn = events_add, .arg = &e};
        assert_int_equal(sl_output_create(&o, &p, &err), 0);
        assert_true(sl_output_in_reasoning(p));
        assert_int_equal(sl_output_push(p, rows[i].before, strlen(rows[i].before)), 0);
        assert_int_equal(sl_output_end_reasoning(p), 0);
        assert_false(sl_output_in_reasoning(p));
        assert_int_equal(sl_output_push(p, rows[i].behind, strlen(rows[i].behind)), 0);
        assert_int_equal(sl_output_finish(p), 0);
        events_flush(&e);
        assert_string_equal(e.lines.data, rows[i].want);
        sl_output_destroy(p);
        events_deinit(&e);
    }
}

/* ---------------------------------------------------------------- names */

static void names(void **state)
{
    (void)state;
    struct sl_output *p = NULL;
    struct sl_error err;
    struct sl_output_options o = {.tools_format = "hermse", .fn = events_add};
    assert_int_equal(sl_output_create(&o, &p, &err), SL_EINVAL);
    assert_string_equal(err.msg, "unknown tool call parser \"hermse\", did you mean \"hermes\"?");
    o = (struct sl_output_options){.reasoning_format = "quantum mechanics", .fn = events_add};
    assert_int_equal(sl_output_create(&o, &p, &err), SL_EINVAL);
    assert_string_equal(err.msg, "unknown reasoning parser \"quantum mechanics\"");
    o = (struct sl_output_options){
        .tools_format = "none", .reasoning_format = "", .fn = events_add};
    assert_int_equal(sl_output_create(&o, &p, &err), 0);
    sl_output_destroy(p);
    assert_string_equal(sl_output_reasoning_close("qwen3"), "</think>");
    assert_null(sl_output_reasoning_open("no such"));
}

/* A name as a word of the first names of a format that has a case. */
static bool has_case(const char *list, bool tools)
{
    for (size_t i = 0; i < n_cases; i++) {
        const char *name = tools ? cases[i].tools : cases[i].reasoning;
        size_t n = strlen(name);
        const char *s = n > 0 ? strstr(list, name) : NULL;
        if (s != NULL && (s == list || s[-1] == ' ') && (s[n] == ' ' || s[n] == '\0'))
            return true;
    }
    return false;
}

static void every_format_has_cases(void **state)
{
    (void)state;
    size_t n_missing = 0, n_tools = 0, n_reasoning = 0;
    for (; sl_output_tools_names(n_tools) != NULL; n_tools++)
        if (!has_case(sl_output_tools_names(n_tools), true)) {
            print_error("no case: tools %s\n", sl_output_tools_names(n_tools));
            n_missing++;
        }
    for (; sl_output_reasoning_names(n_reasoning) != NULL; n_reasoning++)
        if (!has_case(sl_output_reasoning_names(n_reasoning), false)) {
            print_error("no case: reasoning %s\n", sl_output_reasoning_names(n_reasoning));
            n_missing++;
        }
    print_message("%zu formats of tool calls, %zu of reasoning\n", n_tools, n_reasoning);
    assert_int_equal(n_missing, 0);
}

/* The first name of a list. */
static const char *first_name(const char *list, char out[64])
{
    snprintf(out, 64, "%.*s", (int)strcspn(list, " "), list);
    return out;
}

/* What is searched for at the same time: no marker begins another one, or it would hide it. */
static void no_marker_begins_another(void **state)
{
    (void)state;
    for (size_t t = 0; sl_output_tools_names(t) != NULL; t++)
        for (size_t r = 0; sl_output_reasoning_names(r) != NULL; r++) {
            char tools[64], reasoning[64];
            struct sl_output *p;
            struct sl_error err;
            struct sl_output_options o = {
                .tools_format = first_name(sl_output_tools_names(t), tools),
                .reasoning_format = first_name(sl_output_reasoning_names(r), reasoning),
                .fn = events_add};
            assert_int_equal(sl_output_create(&o, &p, &err), 0);
            for (int i = 0; i < p->n_lits * p->n_lits; i++) {
                const struct out_literal *a = &p->lits[i / p->n_lits], *b = &p->lits[i % p->n_lits];
                assert_false(a->n == 0 || out_is_space(a->text[0]));
                if (a->n < b->n && memcmp(a->text, b->text, a->n) == 0)
                    fail_msg("%s, %s: %s begins %s", tools, reasoning, a->text, b->text);
                assert_true(sl_output_is_marker(p, a->text, a->n));
            }
            assert_false(sl_output_is_marker(p, "<|im_end|>", 10));
            sl_output_destroy(p);
        }
}

static void special_tokens(void **state)
{
    (void)state;
    static const struct {
        const char *tools, *token;
        bool is;
    } rows[] = {
        {"kimi_k2", "<|tool_call_end|>", true},
        {"kimi_k2", "<|im_end|>", false},
        {"kimi_k3", "<|sep|>", true},
        {"kimi_k3", "<|open|>", true},
        {"openai", "<|constrain|>", true},
        {"openai", "<|return|>", true},
        {"gemma4", "<|\"|>", true},
        {"gemma4", "<turn|>", false},
        {"deepseek_v3", "<｜tool▁sep｜>", true},
        {"deepseek_v32", "｜DSML｜", true},
        {"none", "<tool_call>", false},
        {"hermes", "", false},
    };
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        struct sl_output *p;
        struct sl_error err;
        struct sl_output_options o = {.tools_format = rows[i].tools, .fn = events_add};
        assert_int_equal(sl_output_create(&o, &p, &err), 0);
        assert_int_equal(sl_output_is_marker(p, rows[i].token, strlen(rows[i].token)), rows[i].is);
        sl_output_destroy(p);
    }
}

static void prompt_start(void **state)
{
    (void)state;
    static const struct {
        const char *format, *prompt;
        enum sl_output_start start;
    } rows[] = {
        {"qwen3", "<|im_start|>assistant\n<think>\n", SL_OUTPUT_START_REASONING},
        {"qwen3", "<think>\n\n</think>\n\n", SL_OUTPUT_START_CONTENT},
        {"qwen3", "<think>x</think>a<|im_end|>\n<|im_start|>assistant\n", SL_OUTPUT_START_AUTO},
        {"gemma4", "<|channel>thought\n", SL_OUTPUT_START_REASONING},
        {"gemma4", "<|channel>thought\n<channel|>", SL_OUTPUT_START_CONTENT},
        {"openai_gptoss", "<|end|><|start|>assistant", SL_OUTPUT_START_AUTO},
        {"no such", "<think>", SL_OUTPUT_START_AUTO},
        {"qwen3", "", SL_OUTPUT_START_AUTO},
    };
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++)
        assert_int_equal(
            sl_output_prompt_start(rows[i].format, rows[i].prompt, strlen(rows[i].prompt)),
            rows[i].start);
}

/* ---------------------------------------------------------------- memory */

static int64_t n_left; /* allocations that succeed */

static void *scarce_alloc(size_t n)
{
    return n_left-- > 0 ? sl_sys_real.alloc(n) : NULL;
}

static void *scarce_realloc(void *p, size_t n)
{
    return n_left-- > 0 ? sl_sys_real.realloc(p, n) : NULL;
}

static void ignore(void *arg, const struct sl_output_event *ev)
{
    (void)arg;
    (void)ev;
}

/* Pieces go in until one is refused; what follows is refused too. */
static int push_all(const struct a_case *c, int64_t n_allocs)
{
    struct sl_sys scarce = sl_sys_real;
    struct sl_output_options o = options(c);
    struct sl_output *p = NULL;
    struct sl_error err;
    o.fn = ignore;
    scarce.alloc = scarce_alloc;
    scarce.realloc = scarce_realloc;
    n_left = n_allocs;
    sl_sys = &scarce;
    int code = sl_output_create(&o, &p, &err);
    for (size_t i = 0; i < c->n_text && code == 0; i++)
        code = sl_output_push(p, c->text + i, 1);
    if (code == 0)
        code = sl_output_finish(p);
    n_left = 1000;
    if (p != NULL && code != 0)
        assert_int_equal(sl_output_push(p, "x", 1), SL_ENOMEM);
    sl_output_destroy(p);
    sl_sys = &sl_sys_real;
    return code;
}

static void no_memory(void **state)
{
    (void)state;
    for (size_t i = 0; i < n_cases; i++) {
        int code = SL_ENOMEM;
        for (int64_t n = 0; code != 0; n++) {
            code = push_all(&cases[i], n);
            assert_true(code == 0 || code == SL_ENOMEM);
            assert_true(n < 1000);
        }
    }
}

/* ---------------------------------------------------------------- size */

static double seconds(void)
{
    return (double)sl_now_ns() * 1e-9;
}

static void large(void **state)
{
    (void)state;
    static const struct {
        const char *tools, *head, *body, *tail;
        int n_whole;
    } rows[] = {
        {"hermes", "<tool_call>{\"name\":\"weather\",\"arguments\":{\"city\":\"", "x",
         "\"}}</tool_call>", 1},
        {"qwen3_coder", "<tool_call><function=weather><parameter=city>", "\n",
         "</parameter></function></tool_call>", 1},
        {"qwen3_coder", "<tool_call><function=weather><parameter=tags>[1", ",1",
         "]</parameter></function></tool_call>", 1},
        {"qwen3_coder", "<tool_call><function=weather><parameter=either>{", "x",
         "</parameter></function></tool_call>", 1},
        {"gemma4", "<|tool_call>call:weather{city:<|\"|>", "<|", "<|\"|>}<tool_call|>", 1},
        {"hermes", "", "<tool_call>", "", 0},
        {"hermes", "", "<tool_call>{\"arguments\":{\"a\":[", "", 0},
        {"hermes", "", " ", "", 0},
        {"hermes", "<tool_call>{\"arguments\":{\"city\":\"", "<tool_call>{", "\"}}", 0},
        {"pythonic", "", "[", "", 0},
        {"openai", "", "<|start|>", "", 0},
        {"glm45", "", "<tool_call>x", "", 0},
    };
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        struct sl_buf b = {0};
        struct events e = {0};
        sl_buf_puts(&b, rows[i].head);
        while (b.n_bytes < 1u << 20)
            sl_buf_puts(&b, rows[i].body);
        sl_buf_puts(&b, rows[i].tail);
        double t = seconds();
        struct sl_output_options o = {.tools_format = rows[i].tools, .tools = schema};
        assert_int_equal(events_run(&e, o, b.data, b.n_bytes, NULL, NULL), 0);
        t = seconds() - t;
        if (t > 5 || e.n_whole != rows[i].n_whole || e.bad)
            fail_msg("%s: %.1f s, %d whole calls\n%.300s", rows[i].body, t, e.n_whole,
                     e.lines.data);
        events_deinit(&e);
        sl_buf_deinit(&b);
    }
}

static void no_event(void *arg, const struct sl_output_event *event)
{
    (void)arg;
    (void)event;
}

/* Tokens of reasoning: the markers' own too, whichever way the text is cut. */
static void test_thoughts(void **state)
{
    static const struct {
        const char *format, *tokens[8];
        enum sl_output_start start;
        int64_t n;
    } rows[] = {
        {"deepseek_r1", {"a", " b", "</think>", "c", " d"}, SL_OUTPUT_START_REASONING, 3},
        {"deepseek_r1", {"a", "</th", "ink", ">", "c"}, SL_OUTPUT_START_REASONING, 4},
        {"deepseek_r1", {"a", "", "b", "</think>c", "", "d"}, SL_OUTPUT_START_REASONING, 3},
        {"deepseek_r1", {"a", "b"}, SL_OUTPUT_START_CONTENT, 0},
        {"qwen3", {"<think>", "a", "</think>", "", "b"}, SL_OUTPUT_START_CONTENT, 3},
        {"qwen3", {"a", "b", "c"}, SL_OUTPUT_START_REASONING, 3},
    };
    (void)state;
    for (size_t i = 0; i < SL_COUNT(rows); i++) {
        char text[128] = "";
        size_t ends[8], n_ends = 0;
        for (; n_ends < 8 && rows[i].tokens[n_ends] != NULL; n_ends++) {
            strcat(text, rows[i].tokens[n_ends]);
            ends[n_ends] = strlen(text);
        }
        size_t n = strlen(text);
        for (size_t cut = 0; cut <= n; cut++) {
            struct sl_output_options o = {
                .reasoning_format = rows[i].format, .start = rows[i].start, .fn = no_event};
            struct sl_output *p;
            struct sl_error err;
            int64_t n_thought = 0;
            size_t k = 0, rest[8];
            assert_int_equal(sl_output_create(&o, &p, &err), 0);
            while (k < n_ends && ends[k] <= cut)
                k++;
            for (size_t j = k; j < n_ends; j++)
                rest[j - k] = ends[j] - cut;
            assert_int_equal(sl_output_push_tokens(p, text, cut, ends, k, &n_thought), 0);
            assert_int_equal(
                sl_output_push_tokens(p, text + cut, n - cut, rest, n_ends - k, &n_thought), 0);
            assert_int_equal(sl_output_finish(p), 0);
            if (n_thought != rows[i].n)
                fail_msg("%s, cut at %zu: %lld tokens of reasoning, not %lld", text, cut,
                         (long long)n_thought, (long long)rows[i].n);
            sl_output_destroy(p);
        }
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_thoughts),
        cmocka_unit_test(whole),
        cmocka_unit_test(cut),
        cmocka_unit_test(prefixes),
        cmocka_unit_test(at_once),
        cmocka_unit_test(forced_close),
        cmocka_unit_test(names),
        cmocka_unit_test(every_format_has_cases),
        cmocka_unit_test(no_marker_begins_another),
        cmocka_unit_test(special_tokens),
        cmocka_unit_test(prompt_start),
        cmocka_unit_test(no_memory),
        cmocka_unit_test(large),
    };
    return cmocka_run_group_tests(tests, read_cases, free_cases);
}
