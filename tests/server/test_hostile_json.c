/* SPDX-License-Identifier: MIT
 * Hostile JSON against the whole server: values that are JSON and values that are not, each as a
 * whole body, in a field, in what templates see, in the text of a tool call; nesting, sizes, names,
 * and the memory that a body may make the server take.
 */
#include "server/hostile.h"

#define TEXT(s)    s, sizeof(s) - 1
#define CHAT       "/v1/chat/completions"
#define COMPLETION "/v1/completions"
#define GOOD_REST  "\"prompt\":[5],\"max_tokens\":1}"
#define USER       "\"messages\":[{\"role\":\"user\",\"content\":\"a\"}],\"max_tokens\":1"

static int start(void **state)
{
    static const struct host_options options = {.max_model_len = 256};
    (void)state;
    host_start(&host, &options);
    return 0;
}

/* ---- values */

enum verdict { YES, NO, TOO_BIG }; /* JSON; not JSON; JSON, but a number that cannot be held */

static const struct value {
    const char *text;
    size_t n;
    enum verdict verdict;
} values[] = {
    {TEXT("null"), YES},
    {TEXT("true"), YES},
    {TEXT("false"), YES},
    {TEXT("0"), YES},
    {TEXT("-0"), YES},
    {TEXT("-0.0"), YES},
    {TEXT("0e0"), YES},
    {TEXT("0E+1"), YES},
    {TEXT("1E-2"), YES},
    {TEXT("123e65"), YES},
    {TEXT("1e308"), YES},
    {TEXT("-1e308"), YES},
    {TEXT("1.7976931348623157e308"), YES},
    {TEXT("1e-400"), YES},
    {TEXT("5e-324"), YES},
    {TEXT("0.00000000000000000000000000000000000000000000000000000000000000000000000001"), YES},
    {TEXT("9223372036854775807"), YES},
    {TEXT("-9223372036854775808"), YES},
    {TEXT("9007199254740993"), YES},
    {TEXT("9223372036854775808"), YES},
    {TEXT("-9223372036854775809"), YES},
    {TEXT("18446744073709551616"), YES},
    {TEXT("100000000000000000000000000000000000000000"), YES},
    {TEXT("1e309"), TOO_BIG},
    {TEXT("1e400"), TOO_BIG},
    {TEXT("-1e400"), TOO_BIG},
    {TEXT("1.0e999999999999999999999"), TOO_BIG},
    {TEXT("1e-999999999999999999999"), YES},
    {TEXT("\"\""), YES},
    {TEXT("\"a\""), YES},
    {TEXT("\"\\\"\\\\\\/\\b\\f\\n\\r\\t\""), YES},
    {TEXT("\"\\u0041\\u00e9\\u20ac\""), YES},
    {TEXT("\"\\ud83d\\ude00\""), YES},
    {TEXT("\"\\uD834\\uDd1e\""), YES},
    {TEXT("\"\\uffff\\ufffe\\ufdd0\""), YES},
    {TEXT("\"\\u2028\\u2029\xe2\x80\xa8\""), YES},
    {TEXT("\"\x7f\""), YES},
    {TEXT("\"\xc3\xa9\xe2\x82\xac\xf0\x9f\x98\x80\""), YES},
    {TEXT("\"\xf4\x8f\xbf\xbf\""), YES},
    {TEXT("\"\xef\xbb\xbf\""), YES},
    {TEXT("\"/* a */ // b\""), YES},
    {TEXT("\"[[[[{{{{\""), YES},
    {TEXT("[]"), YES},
    {TEXT("{}"), YES},
    {TEXT("[null]"), YES},
    {TEXT("[ 1 , 2\t,\r\n3 ]"), YES},
    {TEXT("{\"\":0}"), YES},
    {TEXT("{\"a\":{\"a\":[{}]}}"), YES},
    {TEXT("{\"a\":1,\"b\":2}"), YES},
    {TEXT("{\"__proto__\":{\"a\":1}}"), YES},
    {TEXT("{\"\\u00e9\":1}"), YES},
    {TEXT(" \t\r\n1"), YES},
    {TEXT(""), NO},
    {TEXT(" "), NO},
    {TEXT("nul"), NO},
    {TEXT("Null"), NO},
    {TEXT("NULL"), NO},
    {TEXT("nullx"), NO},
    {TEXT("True"), NO},
    {TEXT("TRUE"), NO},
    {TEXT("None"), NO},
    {TEXT("undefined"), NO},
    {TEXT("NaN"), NO},
    {TEXT("nan"), NO},
    {TEXT("-NaN"), NO},
    {TEXT("Infinity"), NO},
    {TEXT("-Infinity"), NO},
    {TEXT("+Infinity"), NO},
    {TEXT("inf"), NO},
    {TEXT("1#INF"), NO},
    {TEXT("+1"), NO},
    {TEXT("++1"), NO},
    {TEXT("--1"), NO},
    {TEXT("-"), NO},
    {TEXT("- 1"), NO},
    {TEXT("01"), NO},
    {TEXT("-01"), NO},
    {TEXT("00"), NO},
    {TEXT(".5"), NO},
    {TEXT("-.5"), NO},
    {TEXT("5."), NO},
    {TEXT("1.e1"), NO},
    {TEXT("1e"), NO},
    {TEXT("1e+"), NO},
    {TEXT("1E-"), NO},
    {TEXT("1eE2"), NO},
    {TEXT("1.2.3"), NO},
    {TEXT("1 000"), NO},
    {TEXT("1_000"), NO},
    {TEXT("1,000"), NO},
    {TEXT("0x10"), NO},
    {TEXT("0b1"), NO},
    {TEXT("0o7"), NO},
    {TEXT("1f"), NO},
    {TEXT("1L"), NO},
    {TEXT("1/2"), NO},
    {TEXT("\xef\xbc\x91"), NO}, /* a wide digit */
    {TEXT("1\xc2\xa0"), NO},    /* a space that is none of JSON's */
    {TEXT("1\x0c"), NO},
    {TEXT("1\x0b"), NO},
    {TEXT("1\x00"), NO},
    {TEXT("\x00"), NO},
    {TEXT("\"\x00\""), NO},
    {TEXT("\"a"), NO},
    {TEXT("a\""), NO},
    {TEXT("'a'"), NO},
    {TEXT("`a`"), NO},
    {TEXT("\xe2\x80\x9c\x61\xe2\x80\x9d"), NO},
    {TEXT("\"\\\""), NO},
    {TEXT("\"\\a\""), NO},
    {TEXT("\"\\x41\""), NO},
    {TEXT("\"\\0\""), NO},
    {TEXT("\"\\U0041\""), NO},
    {TEXT("\"\\u\""), NO},
    {TEXT("\"\\u00\""), NO},
    {TEXT("\"\\u004\""), NO},
    {TEXT("\"\\u00g1\""), NO},
    {TEXT("\"\\u{41}\""), NO},
    {TEXT("\"\\u+041\""), NO},
    {TEXT("\"\\ud800\""), NO},
    {TEXT("\"\\ud800x\""), NO},
    {TEXT("\"\\ud800\\n\""), NO},
    {TEXT("\"\\ud800\\u0041\""), NO},
    {TEXT("\"\\ud800\\ud800\""), NO},
    {TEXT("\"\\udbff\\udbff\""), NO},
    {TEXT("\"\\udc00\""), NO},
    {TEXT("\"\\udfff\\ud800\""), NO},
    {TEXT("\"\\ud83d\\u\""), NO},
    {TEXT("\"\\ud83d\\ude0\""), NO},
    {TEXT("\"\n\""), NO},
    {TEXT("\"\t\""), NO},
    {TEXT("\"\x1f\""), NO},
    {TEXT("\"\x80\""), NO},
    {TEXT("\"\xff\""), NO},
    {TEXT("\"\xc0\x80\""), NO},
    {TEXT("\"\xc0\xaf\""), NO},
    {TEXT("\"\xc1\xbf\""), NO},
    {TEXT("\"\xe0\x80\x80\""), NO},
    {TEXT("\"\xe0\x9f\xbf\""), NO},
    {TEXT("\"\xed\xa0\x80\""), NO},
    {TEXT("\"\xed\xbf\xbf\""), NO},
    {TEXT("\"\xf0\x80\x80\x80\""), NO},
    {TEXT("\"\xf4\x90\x80\x80\""), NO},
    {TEXT("\"\xf5\x80\x80\x80\""), NO},
    {TEXT("\"\xf8\x88\x80\x80\x80\""), NO},
    {TEXT("\"\xc3\""), NO},
    {TEXT("\"\xe2\x82\""), NO},
    {TEXT("\"\xf0\x9f\x98\""), NO},
    {TEXT("\"\xc3\x28\""), NO},
    {TEXT("\xc3\xa9"), NO},
    {TEXT("["), NO},
    {TEXT("]"), NO},
    {TEXT("{"), NO},
    {TEXT("}"), NO},
    {TEXT("[}"), NO},
    {TEXT("{]"), NO},
    {TEXT("[1"), NO},
    {TEXT("[1,"), NO},
    {TEXT("[1,]"), NO},
    {TEXT("[,1]"), NO},
    {TEXT("[,]"), NO},
    {TEXT("[1,,2]"), NO},
    {TEXT("[1 2]"), NO},
    {TEXT("[1:2]"), NO},
    {TEXT("[1;2]"), NO},
    {TEXT("[1]]"), NO},
    {TEXT("(1)"), NO},
    {TEXT("[...]"), NO},
    {TEXT("{\"a\""), NO},
    {TEXT("{\"a\":"), NO},
    {TEXT("{\"a\":1"), NO},
    {TEXT("{\"a\":1,"), NO},
    {TEXT("{\"a\":1,}"), NO},
    {TEXT("{,\"a\":1}"), NO},
    {TEXT("{\"a\"}"), NO},
    {TEXT("{\"a\",1}"), NO},
    {TEXT("{\"a\":}"), NO},
    {TEXT("{:1}"), NO},
    {TEXT("{\"a\"::1}"), NO},
    {TEXT("{\"a\":1:2}"), NO},
    {TEXT("{\"a\" 1}"), NO},
    {TEXT("{\"a\":1 \"b\":2}"), NO},
    {TEXT("{\"a\":1;\"b\":2}"), NO},
    {TEXT("{\"a\"=1}"), NO},
    {TEXT("{a:1}"), NO},
    {TEXT("{'a':1}"), NO},
    {TEXT("{1:1}"), NO},
    {TEXT("{null:1}"), NO},
    {TEXT("{[]:1}"), NO},
    {TEXT("{\"a\":1}}"), NO},
    {TEXT("{\"\\ud800\":1}"), NO},
    {TEXT("{\"\xff\":1}"), NO},
    {TEXT("{\"a\\u0000b\":1}"), NO}, /* names are C strings here: one with a NUL is refused */
    {TEXT("1 // a"), NO},
    {TEXT("1 /* a */"), NO},
    {TEXT("/**/1"), NO},
    {TEXT("# a\n1"), NO},
    {TEXT("<a/>"), NO},
    {TEXT("\\u0031"), NO},
    {TEXT("1\\n"), NO},
    {TEXT("\xef\xbb\xbf"
          "1"),
     NO},
    {TEXT("\xff\xfe"
          "1\x00"),
     NO},
    {TEXT("\x00"
          "1"),
     NO},
    {TEXT("\x1e"
          "1\n"),
     NO},
    {TEXT("*"), NO},
    {TEXT("@"), NO},
    {TEXT("\x1b[0m"), NO},
};

static void build(struct sl_buf *b, const char *before, const char *text, size_t n,
                  const char *after)
{
    sl_buf_clear(b);
    sl_buf_puts(b, before);
    sl_buf_put(b, text, n);
    sl_buf_puts(b, after);
    assert_true(sl_buf_ok(b));
}

static void post(const char *path, const struct sl_buf *b, int status, const char *param,
                 const char *text)
{
    host_json(&host, path, b->data, b->n_bytes, status, param, text);
}

/* Where a value may stand; status of a good one there. */
static const struct place {
    const char *path, *before, *after;
    int status;
    const char *param; /* of the refusal of a good one */
} places[] = {
    {COMPLETION, "{\"metadata\":", "," GOOD_REST, 200, NULL},
    {COMPLETION, "{\"never_heard_of\":", "," GOOD_REST, 200, NULL},
    {COMPLETION, "{\"user\":[{\"a\":", "}]," GOOD_REST, 200, NULL},
    {COMPLETION, "{\"prompt\":{\"a\":", "},\"max_tokens\":1}", 400, "prompt"},
    {CHAT, "{\"documents\":[", "]," USER "}", 200, NULL},
    {CHAT, "{\"chat_template_kwargs\":{\"x\":", "}," USER "}", 200, NULL},
    {CHAT, "{\"tools\":[{\"type\":\"function\",\"function\":{\"name\":\"f\",\"parameters\":{\"a\":",
     "}}}]," USER "}", 200, NULL},
    {"/tokenize", "{\"prompt\":\"a\",\"x\":", "}", 200, NULL},
    {"/detokenize", "{\"tokens\":[5],\"x\":", "}", 200, NULL},
    {"/v1/completions/render", "{\"prompt\":\"a\",\"x\":", "}", 200, NULL},
    {"/v1/chat/completions/render", "{\"metadata\":", "," USER "}", 200, NULL},
    {"/apply-template", "{\"documents\":[", "]," USER "}", 200, NULL},
};

static void test_values_in_fields(void **state)
{
    (void)state;
    struct sl_buf b = {0};
    for (size_t i = 0; i < SL_COUNT(values); i++) {
        const struct value *v = &values[i];
        for (size_t k = 0; k < SL_COUNT(places); k++) {
            const struct place *p = &places[k];
            build(&b, p->before, v->text, v->n, p->after);
            bool swallowed = v->n == strspn(v->text, " ") && sl_ends_with(p->before, "[");
            if (v->verdict == YES || swallowed) /* nothing between brackets is an empty array */
                post(p->path, &b, p->status, p->param, NULL);
            else
                post(p->path, &b, 400, "", "body is not valid JSON");
        }
    }
    sl_buf_deinit(&b);
}

/* A body is a JSON object and nothing else. */
static void test_values_as_bodies(void **state)
{
    (void)state;
    struct sl_buf b = {0};
    for (size_t i = 0; i < SL_COUNT(values); i++) {
        const struct value *v = &values[i];
        bool object = v->verdict == YES && v->text[0] == '{';
        const char *why = v->n == 0           ? "body is empty"
                          : v->verdict != YES ? "body is not valid JSON"
                          : strpbrk(v->text, "[{") != NULL && v->text[0] != '"'
                              ? (object ? NULL : "body must be a JSON object")
                              : "body"; /* jansson's own word for a bare value */
        host_json(&host, COMPLETION, v->text, v->n, 400, object ? "prompt" : "", why);
        host_json(&host, CHAT, v->text, v->n, 400, object ? "messages" : "", why);
        host_json(&host, "/tokenize", v->text, v->n, 400, object ? "prompt" : "", why);
        host_json(&host, "/detokenize", v->text, v->n, 400, object ? "tokens" : "", why);
        if (v->n > 0) { /* after a whole object nothing may follow but blanks */
            bool blank = strspn(v->text, " ") == v->n;
            build(&b, "{" GOOD_REST, v->text, v->n, "");
            post(COMPLETION, &b, blank ? 200 : 400, "", NULL);
            build(&b, "", v->text, v->n, "{" GOOD_REST);
            post(COMPLETION, &b, blank ? 200 : 400, "", NULL);
        }
    }
    sl_buf_deinit(&b);
}

/* What a model once wrote as arguments need not be JSON: it is opened or stays text. */
static void test_values_as_arguments(void **state)
{
    (void)state;
    struct sl_buf b = {0};
    for (size_t i = 0; i < SL_COUNT(values); i++) {
        for (int wrap = 0; wrap < 2; wrap++) {
            struct sl_buf text = {0};
            build(&text, wrap ? "{\"a\":" : "", values[i].text, values[i].n, wrap ? "}" : "");
            build(&b, "{\"max_tokens\":1,\"messages\":[{\"role\":\"assistant\",\"tool_calls\":[{",
                  "", 0, "\"function\":{\"name\":\"f\",\"arguments\":");
            sl_buf_json_string(&b, text.data != NULL ? text.data : "", text.n_bytes);
            sl_buf_puts(&b, "}}]}]}");
            post(CHAT, &b, 200, NULL, NULL);
            sl_buf_deinit(&text);
        }
    }
    sl_buf_deinit(&b);
}

/* Without escapes, as it stands in the body. */
static bool is_visible_ascii(const char *s, size_t n)
{
    for (size_t i = 0; i < n; i++) {
        if (s[i] <= 0x20 || s[i] >= 0x7F || s[i] == '\\')
            return false;
    }
    return true;
}

/* Strings of the table as text that the model is given, as names and as stop strings. */
static void test_strings(void **state)
{
    (void)state;
    struct sl_buf b = {0};
    for (size_t i = 0; i < SL_COUNT(values); i++) {
        const struct value *v = &values[i];
        if (v->n < 2 || v->text[0] != '"')
            continue;
        bool ok = v->verdict == YES, empty = v->n == 2;
        build(&b, "{\"max_tokens\":1,\"prompt\":", v->text, v->n, "}"); /* "" is one BOS */
        post(COMPLETION, &b, ok ? 200 : 400, "", NULL);
        build(&b, "{\"max_tokens\":1,\"messages\":[{\"role\":\"user\",\"content\":", v->text, v->n,
              "}]}");
        post(CHAT, &b, ok ? 200 : 400, "", NULL);
        build(&b, "{\"prompt\":", v->text, v->n, "}");
        post("/tokenize", &b, ok ? 200 : 400, "", NULL);
        build(&b, "{\"stop\":[", v->text, v->n, "]," GOOD_REST);
        post(COMPLETION, &b, ok && !empty ? 200 : 400, ok && empty ? "stop" : "", NULL);
        build(&b, "{", v->text, v->n, ":1," GOOD_REST);
        post(COMPLETION, &b, ok ? 200 : 400, "", NULL);
        build(&b, "{\"logit_bias\":{", v->text, v->n, ":1}," GOOD_REST);
        post(COMPLETION, &b, 400, ok ? "logit_bias" : "", NULL);
        build(&b, "{\"model\":", v->text, v->n, "," GOOD_REST);
        post(COMPLETION, &b, ok ? 404 : 400, ok ? "model" : "", NULL);
        build(&b, "{\"request_id\":", v->text, v->n, "," GOOD_REST);
        bool accepted = ok && (empty || is_visible_ascii(v->text + 1, v->n - 2));
        post(COMPLETION, &b, accepted ? 200 : 400, accepted || !ok ? "" : "request_id", NULL);
    }
    sl_buf_deinit(&b);
}

/* NUL, which JSON can spell: part of a text, never of a name, a setting or a stop string. */
static void test_escaped_nul(void **state)
{
    (void)state;
    static const struct {
        const char *path, *body, *param; /* param NULL = accepted */
    } rows[] = {
        {COMPLETION, "{\"prompt\":\"a\\u0000b\",\"max_tokens\":1}", NULL},
        {COMPLETION, "{\"metadata\":\"\\u0000\"," GOOD_REST, NULL},
        {"/tokenize", "{\"prompt\":\"\\u0000\"}", NULL},
        {COMPLETION, "{\"stop\":\"a\\u0000\"," GOOD_REST, "stop"},
        {COMPLETION, "{\"model\":\"storyteller\\u0000\"," GOOD_REST, "model"},
        {COMPLETION, "{\"request_id\":\"\\u0000\"," GOOD_REST, "request_id"},
        {COMPLETION, "{\"cache_salt\":\"a\\u0000b\"," GOOD_REST, "cache_salt"},
        {COMPLETION, "{\"a\\u0000\":1," GOOD_REST, ""},
        {COMPLETION, "{\"prompt\\u0000\":1," GOOD_REST, ""},
        {COMPLETION, "{\"logit_bias\":{\"1\\u0000\":1}," GOOD_REST, ""},
        {CHAT, "{\"reasoning_effort\":\"\\u0000\"," USER "}", "reasoning_effort"},
    };
    static const char *const chats[] = {
        "{\"max_tokens\":1,\"messages\":[{\"role\":\"user\",\"content\":\"a\\u0000b\"}]}",
        "{\"max_tokens\":1,\"messages\":[{\"role\":\"u\\u0000r\",\"content\":\"a\"}]}",
        "{\"documents\":[\"\\u0000\"]," USER "}",
        "{\"chat_template_kwargs\":{\"x\":\"\\u0000\"}," USER "}",
    };
    for (size_t i = 0; i < SL_COUNT(rows); i++)
        host_json(&host, rows[i].path, rows[i].body, strlen(rows[i].body),
                  rows[i].param == NULL ? 200 : 400, rows[i].param, NULL);
    for (size_t i = 0; i < SL_COUNT(chats); i++)
        host_json(&host, CHAT, chats[i], strlen(chats[i]), 200, NULL, NULL);
}

/* ---- names */

/* Of a name that comes twice the last value counts, as in every client's own parser. */
static void test_duplicates(void **state)
{
    (void)state;
    static const struct {
        const char *body;
        int status;
        const char *param;
    } rows[] = {
        {"{\"prompt\":1," GOOD_REST, 200, NULL},
        {"{\"prompt\":[5],\"prompt\":1,\"max_tokens\":1}", 400, "prompt"},
        {"{\"n\":0,\"n\":1," GOOD_REST, 200, NULL},
        {"{\"n\":1,\"n\":0," GOOD_REST, 400, "n"},
        {"{\"n\":1,\"n\":null," GOOD_REST, 200, NULL},
        {"{\"n\":0,\"n\":null," GOOD_REST, 200, NULL},
        {"{\"\\u006e\":0," GOOD_REST, 400, "n"}, /* the same name, spelt otherwise */
        {"{\"n\":1,\"\\u006e\":0," GOOD_REST, 400, "n"},
        {"{\"N\":0," GOOD_REST, 200, NULL}, /* another name */
        {"{\" n\":0," GOOD_REST, 200, NULL},
        {"{\"n \":0," GOOD_REST, 200, NULL},
        {"{\"\":0," GOOD_REST, 200, NULL},
        {"{\"stop\":[\"\"],\"stop\":\"a\"," GOOD_REST, 200, NULL},
        {"{\"logit_bias\":{\"1\":1,\"1\":\"a\"}," GOOD_REST, 400, "logit_bias"},
        {"{\"logit_bias\":{\"1\":\"a\",\"1\":1}," GOOD_REST, 200, NULL},
    };
    for (size_t i = 0; i < SL_COUNT(rows); i++)
        host_json(&host, COMPLETION, rows[i].body, strlen(rows[i].body), rows[i].status,
                  rows[i].param, NULL);
}

/* ---- depth */

static void put_nested(struct sl_buf *b, const char *open, int depth, const char *inside,
                       const char *close)
{
    for (int i = 0; i < depth; i++)
        sl_buf_puts(b, open);
    sl_buf_puts(b, inside);
    for (int i = 0; i < depth; i++)
        sl_buf_puts(b, close);
}

static void test_depth(void **state)
{
    (void)state;
    static const struct {
        const char *open, *inside, *close;
    } kinds[] = {{"[", "1", "]"},         {"{\"a\":", "1", "}"}, {"[{\"a\":", "1", "}]"},
                 {"[[],", "1", "]"},      {"[1,", "2", "]"},     {" [\n", "", " ]"},
                 {"[\"]\",", "1", "]"},   {"[", "", ""},         {"{\"a\":", "", ""},
                 {"[\"\\\"\",", "1", "]"}};
    static const int depths[] = {1,    2,    31,   32,    60,      61,     62,
                                 63,   64,   65,   66,    100,     500,    2047,
                                 2048, 2049, 5000, 10000, 1 << 16, 100000, 1000000};
    struct sl_buf b = {0};
    for (size_t k = 0; k < SL_COUNT(kinds); k++) {
        int per = kinds[k].open[1] == '{' || kinds[k].open[1] == '[' ? 2 : 1;
        if (strcmp(kinds[k].open, " [\n") == 0 || strcmp(kinds[k].open, "[[],") == 0)
            per = 1;
        for (size_t i = 0; i < SL_COUNT(depths); i++) {
            int d = depths[i], deepest = d * per + 1;
            deepest += strcmp(kinds[k].open, "[[],") == 0; /* the empty array inside */
            sl_buf_clear(&b);
            sl_buf_puts(&b, "{\"metadata\":");
            put_nested(&b, kinds[k].open, d, kinds[k].inside, kinds[k].close);
            sl_buf_puts(&b, "," GOOD_REST);
            bool closed = kinds[k].close[0] != '\0';
            if (deepest > SL_MAX_JSON_DEPTH)
                post(COMPLETION, &b, 400, "", "nested deeper than 64");
            else
                post(COMPLETION, &b, closed ? 200 : 400, "", NULL);
            sl_buf_clear(&b); /* the same inside a string is text */
            sl_buf_puts(&b, "{\"metadata\":\"");
            for (int j = 0; j < d; j++)
                sl_buf_puts(&b, "[{");
            sl_buf_puts(&b, "\\\"\"," GOOD_REST);
            post(COMPLETION, &b, 200, NULL, NULL);
        }
    }
    sl_buf_deinit(&b);
}

/* Depth of what a template sees, and of arguments, which are opened one inside the other. */
static void test_depth_elsewhere(void **state)
{
    (void)state;
    struct sl_buf b = {0}, text = {0};
    for (int d = 1; d <= 70; d++) {
        sl_buf_clear(&b);
        sl_buf_puts(&b, "{\"documents\":");
        put_nested(&b, "[", d, "", "]");
        sl_buf_puts(&b, "," USER "}");
        post(CHAT, &b, d < SL_MAX_JSON_DEPTH ? 200 : 400, "", NULL);
        sl_buf_clear(&text);
        put_nested(&text, "{\"a\":", d, "1", "}");
        build(&b, "{\"max_tokens\":1,\"messages\":[{\"role\":\"assistant\",\"tool_calls\":[{", "",
              0, "\"function\":{\"name\":\"f\",\"arguments\":");
        sl_buf_json_string(&b, text.data, text.n_bytes);
        sl_buf_puts(&b, "}}]}]}");
        post(CHAT, &b, 200, NULL, NULL);
    }
    sl_buf_deinit(&b);
    sl_buf_deinit(&text);
}

/* ---- sizes */

static void fill(struct sl_buf *b, char c, size_t n)
{
    char block[4096];
    memset(block, c, sizeof block);
    for (size_t i = 0; i < n; i += sizeof block)
        sl_buf_put(b, block, SL_MIN(n - i, sizeof block));
}

/* Refusals cut what they quote; the cut may not fall into a character. */
static void test_quoted_text(void **state)
{
    (void)state;
    static const struct {
        const char *path, *before, *after;
        int status;
        const char *param;
    } rows[] = {
        {COMPLETION, "{\"model\":\"", "\"," GOOD_REST, 404, "model"},
        {COMPLETION, "{\"logit_bias\":{\"", "\":1}," GOOD_REST, 400, "logit_bias"},
        {CHAT, "{\"response_format\":{\"type\":\"", "\"}," USER "}", 400, "response_format"},
        {CHAT, "{\"messages\":[{\"role\":\"user\",\"content\":[{\"type\":\"", "\"}]}]}", 400,
         "messages"},
        {COMPLETION, "{\"", "\":", 400, ""}, /* the decoder's own words */
    };
    static const char *const letters[] = {"\xc3\xa9", "\xe2\x82\xac", "\xf0\x9f\x98\x80"};
    struct sl_buf b = {0};
    for (size_t i = 0; i < SL_COUNT(rows); i++) {
        for (size_t k = 0; k < SL_COUNT(letters); k++) {
            for (int shift = 0; shift < 4; shift++) {
                sl_buf_clear(&b);
                sl_buf_puts(&b, rows[i].before);
                fill(&b, 'a', (size_t)shift);
                for (size_t n = 0; n < (i == 2 ? 15 : 300); n++)
                    sl_buf_puts(&b, letters[k]);
                sl_buf_puts(&b, rows[i].after);
                post(rows[i].path, &b, rows[i].status, rows[i].param, NULL);
            }
        }
    }
    sl_buf_deinit(&b);
}

static void test_big_strings(void **state)
{
    (void)state;
    static const struct {
        const char *path, *before, *after;
        int status;
        const char *param;
    } rows[] = {
        {COMPLETION, "{\"", "\":1," GOOD_REST, 200, NULL},
        {COMPLETION, "{\"metadata\":\"", "\"," GOOD_REST, 200, NULL},
        {COMPLETION, "{\"metadata\":{\"", "\":{}}," GOOD_REST, 200, NULL},
        {COMPLETION, "{\"model\":\"", "\"," GOOD_REST, 400, "model"},
        {COMPLETION, "{\"stop\":\"", "\"," GOOD_REST, 400, "stop"},
        {COMPLETION, "{\"logit_bias\":{\"", "\":1}," GOOD_REST, 400, "logit_bias"},
        {COMPLETION, "{\"cache_salt\":\"", "\"," GOOD_REST, 400, "cache_salt"},
        {COMPLETION, "{\"request_id\":\"", "\"," GOOD_REST, 400, "request_id"},
        {CHAT, "{\"documents\":[{\"", "\":1}]," USER "}", 200, NULL},
        {CHAT, "{\"chat_template_kwargs\":{\"", "\":1}," USER "}", 200, NULL},
        {CHAT, "{\"messages\":[{\"role\":\"user\",\"content\":[{\"type\":\"", "\"}]}]}", 400,
         "messages"},
        {CHAT, "{\"tool_choice\":\"", "\"," USER "}", 400, "tool_choice"},
        {CHAT, "{\"reasoning_effort\":\"", "\"," USER "}", 400, "reasoning_effort"},
        {CHAT, "{\"response_format\":{\"type\":\"", "\"}," USER "}", 400, "response_format"},
    };
    struct sl_buf b = {0};
    for (size_t i = 0; i < SL_COUNT(rows); i++) {
        sl_buf_clear(&b);
        sl_buf_puts(&b, rows[i].before);
        fill(&b, 'k', (i < 3 ? 10u : 1u) << 20);
        sl_buf_puts(&b, rows[i].after);
        post(rows[i].path, &b, rows[i].status, rows[i].param, NULL);
    }
    for (size_t over = 0; over < 3; over++) { /* 32 MiB less one byte, exactly, and one more */
        sl_buf_clear(&b);
        sl_buf_puts(&b, "{\"metadata\":\"");
        fill(&b, 'k', SL_MAX_HTTP_BODY - 13 - sizeof(GOOD_REST) - 1 - 1 + over);
        sl_buf_puts(&b, "\"," GOOD_REST);
        assert_int_equal(b.n_bytes, SL_MAX_HTTP_BODY - 1 + over);
        post(COMPLETION, &b, over <= 1 ? 200 : 413, NULL, NULL);
    }
    sl_buf_clear(&b); /* digits without end, in a number and after it */
    sl_buf_puts(&b, "{\"metadata\":0.");
    fill(&b, '1', 1u << 20);
    sl_buf_puts(&b, "," GOOD_REST);
    post(COMPLETION, &b, 200, NULL, NULL);
    sl_buf_clear(&b);
    sl_buf_puts(&b, "{\"metadata\":1");
    fill(&b, '0', 1u << 20);
    sl_buf_puts(&b, "," GOOD_REST);
    post(COMPLETION, &b, 400, "", "not valid JSON");
    sl_buf_clear(&b);
    sl_buf_puts(&b, "{\"metadata\":");
    fill(&b, ' ', 8u << 20);
    sl_buf_puts(&b, "1," GOOD_REST);
    post(COMPLETION, &b, 200, NULL, NULL);
    sl_buf_deinit(&b);
}

/* ---- memory: what small values cost in memory is many times their text */

static atomic_llong json_bytes, json_peak;

static void *count_alloc(size_t n)
{
    size_t *p = sl_sys_real.alloc(n + 16);
    if (p == NULL)
        return NULL;
    *p = n;
    long long now = atomic_fetch_add(&json_bytes, (long long)n + 32) + (long long)n + 32;
    long long peak = atomic_load(&json_peak);
    while (now > peak && !atomic_compare_exchange_weak(&json_peak, &peak, now))
        ;
    return (char *)p + 16;
}

static void count_free(void *ptr)
{
    if (ptr == NULL)
        return;
    size_t *p = (size_t *)(void *)((char *)ptr - 16);
    atomic_fetch_sub(&json_bytes, (long long)*p + 32);
    sl_sys_real.free(p);
}

/* The memory one body makes the decoder take, whatever the answer is. */
static void check_memory(const char *unit, bool array, size_t n_units, int want)
{
    struct sl_buf b = {0};
    struct client c;
    struct answer a;
    sl_buf_puts(&b, array ? "{\"metadata\":[" : "{\"metadata\":{");
    for (size_t k = 0; k < n_units; k++) {
        char text[40];
        int n = array ? 0 : snprintf(text, sizeof text, unit, (unsigned)k);
        sl_buf_put(&b, array ? unit : text, array ? strlen(unit) : (size_t)n);
    }
    b.n_bytes--; /* the last comma */
    sl_buf_puts(&b, array ? "]," GOOD_REST : "}," GOOD_REST);
    assert_true(sl_buf_ok(&b));
    atomic_store(&json_peak, 0);
    client_open(&c, &host);
    int status = client_post(&c, COMPLETION, NULL, b.data, b.n_bytes, &a);
    long long peak = atomic_load(&json_peak) >> 20;
    if (status != want || peak > 320)
        fail_msg("%zu times %s: %d, %lld MiB", n_units, unit, status, peak);
    sl_buf_deinit(&b);
    answer_free(&a);
    client_close(&c);
    host_good(&host);
    host.n_cases++;
}

static void test_memory(void **state)
{
    (void)state;
    static const struct {
        const char *unit;
        bool array;
        size_t most; /* accepted */
    } rows[] = {{"{},", true, 460000},          {"[],", true, 460000},
                {"1,", true, 4190000},          {"\"\",", true, 1390000},
                {"{\"\":{}},", true, 220000},   {"\"%07x\":{},", false, 370000},
                {"\"%07x\":1,", false, 1390000}};
    for (size_t i = 0; i < SL_COUNT(rows); i++) {
#ifdef SL_DEBUG
        if (i < 2) /* millions of values are slow under a sanitizer */
#endif
            check_memory(rows[i].unit, rows[i].array, rows[i].most, 200);
        check_memory(rows[i].unit, rows[i].array, rows[i].most + rows[i].most / 10, 400);
    }
}

/* Text that is opened as JSON is held to the same bound, over all of it together. */
static void test_memory_of_arguments(void **state)
{
    (void)state;
    static const struct {
        int n_calls, status;
        const char *param;
    } rows[] = {{1, 200, ""}, {20, 400, "messages"}, {80, 400, "messages"}};
    struct sl_buf b = {0}, text = {0};
    sl_buf_puts(&text, "\"{\\\"a\\\":[{}");
    for (int i = 0; i < 100000; i++)
        sl_buf_puts(&text, ",{}");
    sl_buf_puts(&text, "]}\"}}");
    for (size_t i = 0; i < SL_COUNT(rows); i++) {
        sl_buf_clear(&b);
        sl_buf_puts(&b, "{\"max_tokens\":1,\"messages\":[{\"role\":\"assistant\",\"tool_calls\":[");
        for (int k = 0; k < rows[i].n_calls; k++) {
            sl_buf_puts(&b, k > 0 ? "," : "");
            sl_buf_puts(&b, "{\"function\":{\"name\":\"f\",\"arguments\":");
            sl_buf_put(&b, text.data, text.n_bytes);
        }
        sl_buf_puts(&b, "]}]}");
        assert_true(sl_buf_ok(&b));
        atomic_store(&json_peak, 0);
        post(CHAT, &b, rows[i].status, rows[i].param, NULL);
        if (atomic_load(&json_peak) >> 20 > 320)
            fail_msg("%d calls take %lld MiB", rows[i].n_calls, atomic_load(&json_peak) >> 20);
    }
    sl_buf_deinit(&b);
    sl_buf_deinit(&text);
}

/* ---- JSONTestSuite, where it is unpacked */

static void test_suite(void **state)
{
    (void)state;
    static const char folder[] = "build/testdata/structured/JSONTestSuite/test_parsing";
    DIR *d = opendir(folder);
    struct sl_buf b = {0};
    int n = 0;
    if (d == NULL) {
        print_message("skip: JSONTestSuite is not unpacked\n");
        return;
    }
    for (struct dirent *e; (e = readdir(d)) != NULL;) {
        char path[500], *text;
        size_t n_text;
        if (!sl_ends_with(e->d_name, ".json") || e->d_name[1] != '_')
            continue;
        snprintf(path, sizeof path, "%s/%s", folder, e->d_name);
        assert_int_equal(sl_read_file(path, 1 << 20, &text, &n_text, NULL), 0);
        bool yes = e->d_name[0] == 'y' && strcmp(e->d_name, "y_object_escaped_null_in_key.json");
        host_json(&host, COMPLETION, text, n_text, 400, NULL, NULL); /* no prompt in any of them */
        for (size_t k = 0; k < 3; k++) {
            struct client c;
            struct answer a;
            const struct place *p = &places[k];
            build(&b, p->before, text, n_text, p->after);
            client_open(&c, &host);
            int status = client_post(&c, p->path, NULL, b.data, b.n_bytes, &a);
            bool may =
                e->d_name[0] == 'i' || !strcmp(e->d_name, "y_object_escaped_null_in_key.json");
            if (may ? status != 200 && status != 400 : status != (yes ? 200 : 400))
                fail_msg("%s gives %d %s", e->d_name, status, a.body.data);
            answer_free(&a);
            client_close(&c);
            host_good(&host);
            host.n_cases++;
        }
        sl_free(text);
        n++;
    }
    closedir(d);
    sl_buf_deinit(&b);
    print_message("%d files of JSONTestSuite\n", n);
    assert_true(n > 300);
}

static void test_enough_cases(void **state)
{
    (void)state;
    print_message("hostile JSON: %ld cases\n", host.n_cases);
    assert_true(host.n_cases >= 3000);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_values_in_fields),
        cmocka_unit_test(test_values_as_bodies),
        cmocka_unit_test(test_values_as_arguments),
        cmocka_unit_test(test_strings),
        cmocka_unit_test(test_escaped_nul),
        cmocka_unit_test(test_duplicates),
        cmocka_unit_test(test_depth),
        cmocka_unit_test(test_depth_elsewhere),
        cmocka_unit_test(test_quoted_text),
        cmocka_unit_test(test_big_strings),
        cmocka_unit_test(test_memory),
        cmocka_unit_test(test_memory_of_arguments),
        cmocka_unit_test(test_suite),
        cmocka_unit_test(test_enough_cases),
    };
    json_set_alloc_funcs(count_alloc, count_free); /* before any JSON value exists */
    return cmocka_run_group_tests(tests, start, stop);
}
