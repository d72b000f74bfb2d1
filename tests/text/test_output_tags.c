/* SPDX-License-Identifier: MIT
 *
 * What the structural tag of a format allows, the format's parser takes for calls, and their
 * arguments match the tool's schema: random walks through the grammar of every format, over a
 * vocabulary of bytes and of the format's markers, once as text and once as special tokens.
 */
#include "grammar/grammar_rig.h"
#include "test_output_util.h"

#include "base/json_load.h"
#include "base/rng.h"
#include "text/output/output.h"
#include "text/output/output_tags.h"

enum { MAX_MARKS = 40, WALK = 4000, WALKS = 40 };

static const char tools_text[] =
    "[{\"type\":\"function\",\"function\":{\"name\":\"weather\",\"strict\":true,\"parameters\":{"
    "\"type\":\"object\",\"properties\":{\"city\":{\"type\":\"string\",\"maxLength\":5},"
    "\"days\":{\"type\":\"integer\",\"enum\":[1,2,30]},\"kind\":{\"enum\":[\"hot\",\"cold\"]},"
    "\"metric\":{\"type\":\"boolean\"}},\"required\":[\"kind\",\"city\"],"
    "\"additionalProperties\":false}}},{\"type\":\"function\",\"function\":{\"name\":\"now\","
    "\"strict\":true,\"parameters\":{\"type\":\"object\",\"properties\":{},"
    "\"additionalProperties\":false}}},{\"type\":\"function\",\"function\":{\"name\":\"patch\","
    "\"strict\":true,\"parameters\":{\"type\":\"object\",\"properties\":{\"input\":{\"type\":"
    "\"string\",\"maxLength\":9}},\"required\":[\"input\"],\"additionalProperties\":false}}}]";

/* Text that has all that formats escape, trim or take for marks. */
static const char lark_text[] = "start: \"*\" word LF line~1..3 \"***\"?\n"
                                "line: (\"+\" | \"\\\"\" | \"\\\\\" | \" \") /[^\\n]{0,20}/ LF\n"
                                "word: /[a-z<\"'\\\\\\t]{1,4}/\n"
                                "%import common.LF\n";
/* Rules that lead back to themselves, whose parts make up marks only together. */
static const char deep_text[] = "start: item+ \"\\n\"?\n"
                                "item: \"(\" item \")\" | /[a-z<][^()\\na-z<]{0,3}/\n";
static const char regex_text[] = "[\\n\"]?[*'](.{0,20}[\\n\\\\]){1,3}([*]{3})?";

struct marks {
    const char *text[MAX_MARKS];
    int n;
};

static void add_mark(struct marks *m, const char *s)
{
    if (s == NULL || s[0] == '\0')
        return;
    for (int i = 0; i < m->n; i++)
        if (strcmp(m->text[i], s) == 0)
            return;
    assert_true(m->n < MAX_MARKS);
    m->text[m->n++] = s;
}

static struct marks marks_of(const struct out_tools *t)
{
    struct marks m = {.n = 0};
    for (int i = 0; i < OUT_PAIRS; i++) {
        add_mark(&m, t->pairs[i].open);
        add_mark(&m, t->pairs[i].close);
    }
    const char *const more[] = {t->call_open,      t->call_close,    t->id_end,
                                t->name_end,       t->name_more,     t->quote,
                                t->param.key_open, t->param.key_end, t->param.open,
                                t->param.type_end, t->param.close};
    for (size_t i = 0; i < SL_COUNT(more); i++)
        add_mark(&m, more[i]);
    add_mark(&m, "{\"name\": \""); /* of calls without a marker */
    add_mark(&m, "[weather(");
    if (t->body == OUT_HARMONY) {
        static const char *const words[] = {"<|message|>", "<|constrain|>", "<|end|>", "<|start|>",
                                            "to=functions."};
        for (size_t i = 0; i < SL_COUNT(words); i++)
            add_mark(&m, words[i]);
    }
    return m;
}

static bool is_special(const char *s)
{
    return s[0] == '<' && s[strlen(s) - 1] == '>' && strchr(s, '"') == NULL;
}

struct walker {
    struct sl_vocab *vocab;
    struct marks marks;
    bool special;
    struct sl_grammar *grammar, *schema, *text; /* text: of the tool that takes text; NULL: any */
    json_t *tools;
};

static void make_vocab(struct walker *w)
{
    static char bytes[256];
    struct sl_vocab_token t[256 + MAX_MARKS + 1] = {{0}};
    struct sl_error err;
    int32_t end = 256 + w->marks.n;
    for (size_t i = 0; i < 256; i++) {
        bytes[i] = (char)i;
        t[i] = (struct sl_vocab_token){&bytes[i], 1, false};
    }
    for (int i = 0; i < w->marks.n; i++) {
        const char *s = w->marks.text[i];
        t[256 + i] = (struct sl_vocab_token){s, strlen(s), w->special && is_special(s)};
    }
    t[end] = (struct sl_vocab_token){"</s>", 4, true};
    assert_int_equal(sl_vocab_create(t, (uint32_t)end + 1, &end, 1, &w->vocab, &err), 0);
}

static struct sl_grammar *compile(const struct walker *w, enum sl_grammar_kind kind, json_t *doc)
{
    char *text = json_dumps(doc, JSON_COMPACT);
    struct sl_grammar *g;
    struct sl_error err;
    struct sl_grammar_spec spec = {.kind = kind, .text = text, .n = strlen(text)};
    if (sl_grammar_compile(&spec, w->vocab, &g, &err) != 0)
        fail_msg("%s: %s", text, err.msg);
    sl_json_free_text(text);
    json_decref(doc);
    return g;
}

static void start(struct walker *w, const char *format, const struct sl_output_calls *how,
                  bool special)
{
    struct sl_output_calls calls = *how;
    json_t *map = json_object(), *doc;
    struct sl_error err;
    *w = (struct walker){.marks = marks_of(out_find_tools(format)), .special = special};
    w->tools = json_loads(tools_text, 0, NULL);
    make_vocab(w);
    for (int i = 0; i < w->marks.n && special; i++)
        if (is_special(w->marks.text[i]))
            json_object_set_new(map, w->marks.text[i], json_integer(256 + i));
    calls.tools_format = format;
    calls.tools = w->tools;
    calls.special_tokens = map;
    if (sl_output_tags(&calls, &doc, &err) != 0)
        fail_msg("%s: %s", format, err.msg);
    w->grammar = compile(w, SL_GRAMMAR_STRUCTURAL, doc);
    json_t *fn = json_object_get(json_array_get(w->tools, 0), "function");
    w->schema = compile(w, SL_GRAMMAR_JSON_SCHEMA, json_incref(json_object_get(fn, "parameters")));
    json_decref(map);
    const json_t *own = json_object_get(how->grammars, "patch");
    const char *syntax = json_string_value(json_object_get(own, "syntax"));
    if (own != NULL)
        w->text = rig_compile(strcmp(syntax, "lark") == 0 ? SL_GRAMMAR_EBNF : SL_GRAMMAR_REGEX,
                              json_string_value(json_object_get(own, "definition")), w->vocab);
}

static void stop(struct walker *w)
{
    sl_grammar_destroy(w->grammar);
    sl_grammar_destroy(w->schema);
    sl_grammar_destroy(w->text);
    sl_vocab_destroy(w->vocab);
    json_decref(w->tools);
}

/* One token that may come: markers and the end are more likely than a byte. */
static int32_t choose(const struct walker *w, const uint32_t *mask, struct sl_rng *rng)
{
    int32_t list[256 + MAX_MARKS + 1], n = 0, end = 256 + w->marks.n;
    bool may_end = mask[end / 32] >> (end & 31) & 1;
    for (int32_t i = 256; i < end; i++)
        if (mask[i / 32] >> (i & 31) & 1)
            list[n++] = i;
    if (may_end && sl_rng_below(rng, 3) == 0)
        return end;
    if (n > 0 && sl_rng_below(rng, 2) == 0)
        return list[sl_rng_below(rng, (uint64_t)n)];
    for (int32_t i = 0; i < 256; i++)
        if ((mask[i / 32] >> (i & 31) & 1) && (i < 128 || sl_rng_below(rng, 4) == 0))
            list[n++] = i;
    if (n == 0)
        for (int32_t i = 128; i < 256; i++)
            if (mask[i / 32] >> (i & 31) & 1)
                list[n++] = i;
    if (n == 0 && may_end)
        return end;
    assert_true(n > 0);
    return list[sl_rng_below(rng, (uint64_t)n)];
}

/* False: no end within so many tokens. */
static bool walk(const struct walker *w, struct sl_rng *rng, struct sl_buf *out)
{
    uint32_t mask[16];
    struct sl_matcher *m;
    struct sl_error err;
    bool allowed = true, ended = false;
    assert_true(w->vocab->n_words <= SL_COUNT(mask));
    assert_int_equal(sl_matcher_create(w->grammar, WALK + 1, &m, &err), 0);
    for (int i = 0; i < WALK && !ended; i++) {
        if (sl_matcher_mask(m, mask, &err) != 0)
            fail_msg("%s", err.msg);
        int32_t token = choose(w, mask, rng);
        if (sl_matcher_accept(m, token, &allowed, &err) != 0)
            fail_msg("%s", err.msg);
        assert_true(allowed);
        ended = token == 256 + w->marks.n;
        if (token < 256)
            sl_buf_putc(out, (char)token);
        else if (!ended)
            sl_buf_puts(out, w->marks.text[token - 256]);
    }
    sl_matcher_destroy(m);
    return ended;
}

/* What the parser reported, by other rules than test_output_util.h's lines. */
struct seen {
    const struct walker *w;
    struct sl_buf content, args;
    char name[64];
    int n_calls, n_texts;
    const char *wrong;
};

/* The text of a call, as a client gets it. */
static void see_text(struct seen *s)
{
    json_t *args = json_loads(s->args.data != NULL ? s->args.data : "", JSON_ALLOW_NUL, NULL);
    const json_t *input = json_object_get(args, "input");
    bool yes = false;
    size_t at;
    struct sl_error err;
    if (json_object_size(args) != 1 || !json_is_string(input) ||
        sl_grammar_matches(s->w->text, json_string_value(input), json_string_length(input), &yes,
                           &at, &err) != 0 ||
        !yes)
        s->wrong = "the text is not of its grammar";
    s->n_texts++;
    json_decref(args);
}

static void see(void *arg, const struct sl_output_event *e)
{
    struct seen *s = arg;
    switch (e->kind) {
    case SL_OUTPUT_REASONING:
        return;
    case SL_OUTPUT_CONTENT:
        sl_buf_put(&s->content, e->text, e->n_text);
        return;
    case SL_OUTPUT_CALL_BEGIN:
        sl_buf_clear(&s->args);
        snprintf(s->name, sizeof s->name, "%s", e->text);
        s->n_calls++;
        return;
    case SL_OUTPUT_CALL_ARGS:
        sl_buf_put(&s->args, e->text, e->n_text);
        return;
    case SL_OUTPUT_CALL_END:
        if (!e->whole)
            s->wrong = "a call is not whole";
        else if (strcmp(s->name, "weather") == 0 && !rig_matches(s->w->schema, s->args.data))
            s->wrong = "the arguments do not match the schema";
        else if (strcmp(s->name, "patch") == 0 && s->w->text != NULL)
            see_text(s);
        else if (strcmp(s->name, "weather") != 0 && strcmp(s->name, "now") != 0 &&
                 strcmp(s->name, "patch") != 0)
            s->wrong = "no such tool";
    }
}

static struct seen parse(const struct walker *w, const char *format, const struct sl_buf *text)
{
    struct seen s = {.w = w};
    struct sl_output *p;
    struct sl_error err;
    struct sl_output_options o = {.tools_format = format,
                                  .tools = w->tools,
                                  .start = SL_OUTPUT_START_CONTENT,
                                  .fn = see,
                                  .arg = &s};
    assert_int_equal(sl_output_create(&o, &p, &err), 0);
    assert_int_equal(sl_output_push(p, text->data != NULL ? text->data : "", text->n_bytes), 0);
    assert_int_equal(sl_output_finish(p), 0);
    sl_output_destroy(p);
    return s;
}

static void first_name(size_t i, char *out)
{
    const char *names = sl_output_tools_names(i);
    size_t n = strcspn(names, " ");
    memcpy(out, names, n);
    out[n] = '\0';
}

static void walk_format(const char *format, const struct sl_output_calls *how, bool special,
                        int *n_ended, int *n_called)
{
    struct walker w;
    struct sl_rng rng = {.seed = 11 + special};
    start(&w, format, how, special);
    for (int i = 0; i < WALKS; i++) {
        struct sl_buf text = {0};
        bool ended = walk(&w, &rng, &text);
        struct seen s = parse(&w, format, &text);
        if (ended && how->must && s.wrong == NULL && s.n_calls == 0)
            s.wrong = "no call";
        if (ended && how->must && s.wrong == NULL && s.content.n_bytes > 0)
            s.wrong = "text beside the calls";
        if (how->one && s.n_calls > 1)
            s.wrong = "more than one call";
        if (ended && s.wrong != NULL)
            fail_msg("%s: %s\ncontent: %s\ntext: %s", format, s.wrong,
                     s.content.data != NULL ? s.content.data : "", text.data);
        *n_ended += ended;
        *n_called += ended && (w.text != NULL ? s.n_texts : s.n_calls) > 0;
        sl_buf_deinit(&s.content);
        sl_buf_deinit(&s.args);
        sl_buf_deinit(&text);
    }
    stop(&w);
}

/* skip: flags of formats that are left out. */
static void walk_formats(const struct sl_output_calls *how, unsigned skip)
{
    for (size_t i = 0; sl_output_tools_names(i) != NULL; i++) {
        char format[64];
        int n_ended = 0, n_called = 0;
        first_name(i, format);
        if ((out_find_tools(format)->flags & skip) != 0)
            continue;
        for (int special = 0; special < 2; special++)
            walk_format(format, how, special == 1, &n_ended, &n_called);
        if (n_ended < WALKS / 4 || n_called == 0)
            fail_msg("%s: of %d walks %d ended, %d with calls", format, 2 * WALKS, n_ended,
                     n_called);
    }
}

static void walk_all(const struct sl_output_calls *how)
{
    walk_formats(how, 0);
}

static void calls_are_certain(void **state)
{
    (void)state;
    walk_all(&(struct sl_output_calls){.must = true});
}

static void one_call(void **state)
{
    (void)state;
    walk_all(&(struct sl_output_calls){.must = true, .one = true});
}

static void named_tool(void **state)
{
    (void)state;
    walk_all(&(struct sl_output_calls){.must = true, .one = true, .name = "weather"});
}

static void calls_in_text(void **state)
{
    (void)state;
    walk_all(&(struct sl_output_calls){.must = false});
}

/* The text of a tool that takes text is of its grammar, however the format spells it. */
static void texts_of_grammars(void **state)
{
    const char *const of[][2] = {{"lark", lark_text}, {"regex", regex_text}, {"lark", deep_text}};
    (void)state;
    for (size_t i = 0; i < SL_COUNT(of); i++) {
        json_t *grammars =
            json_pack("{s:{s:s, s:s}}", "patch", "syntax", of[i][0], "definition", of[i][1]);
        struct sl_output_calls how = {
            .must = true, .one = true, .name = "patch", .grammars = grammars};
        walk_formats(&how, of[i][1] == deep_text ? OUT_TRIM_SPACE : 0);
        if (i == 0)
            walk_all(&(struct sl_output_calls){.grammars = grammars});
        json_decref(grammars);
    }
}

/* What cannot be spelled is refused with its name. */
static void refusals(void **state)
{
    static const struct {
        const char *format, *schema, *word;
    } rows[] = {
        {"hermes", "{\"type\":\"array\"}", "type other than object"},
        {"qwen3_coder", "{\"properties\":{},\"minProperties\":1}", "minProperties"},
        {"qwen3_coder", "{\"properties\":{\"a\":{\"type\":\"string\",\"format\":\"date\"}}}",
         "format"},
        {"qwen3_coder", "{\"properties\":{\"a\":{}},\"required\":[\"b\"]}", "property b"},
        {"qwen3_coder", "{\"properties\":{\"a\":{\"enum\":[\"</parameter>\"]}}}", "</parameter>"},
        {"qwen3_coder", "{\"additionalProperties\":{\"type\":\"string\"}}", "additionalProperties"},
        {"qwen3_coder", "{\"properties\":{\"a\":{\"type\":\"array\",\"items\":{\"$ref\":\"#\"}}}}",
         "$ref to #"},
        {"gemma4", "{\"properties\":{\"a\":{\"type\":\"array\",\"minItems\":2}}}", "minItems"},
        {"pythonic", "{\"properties\":{\"a b\":{\"type\":\"null\"}}}", "name a b"},
        {"llama9", "{}", "llama9"},
    };
    (void)state;
    for (size_t i = 0; i < SL_COUNT(rows); i++) {
        struct sl_error err;
        json_t *doc = NULL, *schema = json_loads(rows[i].schema, 0, NULL);
        json_t *tools = json_pack("[{s:{s:s,s:o}}]", "function", "name", "f", "parameters", schema);
        struct sl_output_calls calls = {
            .tools_format = rows[i].format, .tools = tools, .must = true};
        assert_non_null(schema);
        assert_int_not_equal(sl_output_tags(&calls, &doc, &err), 0);
        assert_null(doc);
        if (strstr(err.msg, rows[i].word) == NULL)
            fail_msg("%s: '%s' does not say %s", rows[i].format, err.msg, rows[i].word);
        json_decref(tools);
    }
}

/* Out of memory anywhere is an error and leaks nothing. */
static void without_memory(void **state)
{
    (void)state;
    for (size_t i = 0; sl_output_tools_names(i) != NULL; i++) {
        char format[64];
        json_t *tools = json_loads(tools_text, 0, NULL), *doc;
        struct sl_error err;
        first_name(i, format);
        struct sl_output_calls calls = {.tools_format = format, .tools = tools, .must = i % 2 == 0};
        assert_int_equal(sl_output_tags(&calls, &doc, &err), 0);
        json_decref(doc);
        json_decref(tools);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(calls_are_certain), cmocka_unit_test(one_call),
        cmocka_unit_test(named_tool),        cmocka_unit_test(calls_in_text),
        cmocka_unit_test(texts_of_grammars), cmocka_unit_test(refusals),
        cmocka_unit_test(without_memory),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
