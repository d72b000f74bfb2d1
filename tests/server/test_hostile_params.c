/* SPDX-License-Identifier: MIT
 * Request fields against each other. A table says of every field which values it takes; from it and
 * a few rules about fields that depend on each other the outcome of any combination is computed:
 * accepted, or refused with the name of the first field at fault. Every pair of values of every
 * pair of fields goes through the reader of the fields; every single value and some thousand random
 * combinations go through a server with the bundled model.
 *
 * "First" is: text that is not JSON; then single values in the order of the body; then structured
 * values and rules about several fields in the order of late_rules; then the model's name, the
 * prompt, and what only the engine knows.
 */
#include "server/hostile.h"

#include "base/rng.h"
#include "server/api/params.h"

#include <math.h>

#define MAX_MODEL_LEN 64
#define VOCAB         4096 /* width of the bundled model's logits */
#define LONG_TEXT     5000
#define CHAT          1u
#define COMPLETION    2u
#define BOTH          3u
#define MAX_VALUES    40
#define MAX_ITEMS     12

enum type { T_NULL, T_BOOL, T_INT, T_REAL, T_STR, T_ARRAY, T_OBJECT, T_BROKEN };

struct value {
    const char *json;
    enum type type;
    double num; /* of numbers; 1 = true; bytes of a string */
    bool ok;    /* of structured fields: the value alone is right */
};

enum rule {
    R_BOOL,
    R_INT,        /* whole number in [min, max] */
    R_NUMBER,     /* in [min, max] */
    R_ABOVE,      /* in (min, max] */
    R_TEXT,       /* at most max bytes */
    R_ANY,        /* says nothing about the output */
    R_NEVER,      /* would change the output and cannot be honoured */
    R_ONLY_FALSE, /* likewise but for false */
    R_ONLY_EMPTY, /* likewise but for what is empty */
    R_LATER       /* structured: value.ok, looked at by late_rules */
};

/* Which of the common values a structured field takes. */
enum {
    A_STR = 1,
    A_EMPTY = 2,
    A_LONG = 4,
    A_ARRAY0 = 8,
    A_ARRAY1 = 16,
    A_OBJECT0 = 32,
    A_OBJECT1 = 64,
    A_BOOL = 128,
    A_ZERO = 256,
    A_SCHEMA = A_STR | A_EMPTY | A_LONG | A_OBJECT0 | A_OBJECT1 | A_BOOL
};

struct field {
    const char *name;
    unsigned endpoints;
    enum rule rule;
    double min, max;
    unsigned takes;
    const char *good[6], *bad[8]; /* further values of structured fields */
};

#define MESSAGE "[{\"role\":\"user\",\"content\":\"a\"}]"

static const struct field fields[] = {
    {"add_generation_prompt", CHAT, R_BOOL, 0, 0, 0, {0}, {0}},
    {"add_special_tokens", BOTH, R_BOOL, 0, 0, 0, {0}, {0}},
    {"allowed_token_ids",
     BOTH,
     R_LATER,
     0,
     0,
     A_ARRAY1,
     {"[4095,0]"},
     {"[4096]", "[-1]", "[1.5]", "[\"1\"]", "[4294967296]", "[null]", "[[1]]"}},
    {"audio", CHAT, R_NEVER, 0, 0, 0, {0}, {0}},
    {"bad_words",
     BOTH,
     R_LATER,
     0,
     0,
     A_ARRAY0,
     {"[\"a\"]", "[\" the\",\"a b\"]", "[\"\\u00e9\\ud83d\\ude00\"]"},
     {"[\"\"]", "[\" \"]", "[null]", "[[\"a\"]]", "[\"a\\u0000\"]", "[1,\"a\"]"}},
    {"best_of", BOTH, R_INT, 1, SL_MAX_N, 0, {0}, {0}},
    {"bootstrap_host", BOTH, R_ANY, 0, 0, 0, {0}, {0}}, /* without rooms nobody asks */
    {"bootstrap_port", BOTH, R_ANY, 0, 0, 0, {0}, {0}},
    {"bootstrap_room", BOTH, R_ANY, 0, 0, 0, {0}, {0}},
    {"cache_hit_threshold", BOTH, R_NUMBER, 0, 1, 0, {0}, {0}},
    {"cache_salt", BOTH, R_TEXT, 0, SL_MAX_CACHE_SALT, 0, {0}, {0}},
    {"chat_template", CHAT, R_TEXT, 0, SL_MAX_TEMPLATE, 0, {0}, {0}},
    {"chat_template_kwargs", CHAT, R_LATER, 0, 0, A_OBJECT0 | A_OBJECT1, {0}, {0}},
    {"continue_final_message", CHAT, R_BOOL, 0, 0, 0, {0}, {0}},
    {"custom_logit_processor", BOTH, R_ONLY_EMPTY, 0, 0, 0, {0}, {0}},
    {"documents", CHAT, R_LATER, 0, 0, A_ARRAY0 | A_ARRAY1, {0}, {0}},
    {"ebnf", BOTH, R_LATER, 0, 0, A_STR | A_EMPTY | A_LONG, {"\"root ::= [a-z]\""}, {0}},
    {"ec_transfer_params", BOTH, R_ONLY_EMPTY, 0, 0, 0, {0}, {0}},
    {"echo", BOTH, R_BOOL, 0, 0, 0, {0}, {0}},
    {"frequency_penalty", BOTH, R_NUMBER, -2, 2, 0, {0}, {0}},
    {"function_call", CHAT, R_NEVER, 0, 0, 0, {0}, {0}},
    {"functions", CHAT, R_ONLY_EMPTY, 0, 0, 0, {0}, {0}},
    {"grammar", BOTH, R_LATER, 0, 0, A_STR | A_EMPTY | A_LONG, {"\"root ::= [a-z]\""}, {0}},
    {"guided_choice", BOTH, R_LATER, 0, 0, A_ARRAY0 | A_ARRAY1, {"[\"a\",\"bc\"]"}, {0}},
    {"guided_decoding_backend", BOTH, R_ANY, 0, 0, 0, {0}, {0}},
    {"guided_grammar", BOTH, R_LATER, 0, 0, A_STR | A_EMPTY | A_LONG, {"\"root ::= [a-z]\""}, {0}},
    {"guided_json", BOTH, R_LATER, 0, 0, A_SCHEMA, {"{\"type\":\"integer\"}"}, {"[{}]"}},
    {"guided_json_object", BOTH, R_BOOL, 0, 0, 0, {0}, {0}},
    {"guided_regex", BOTH, R_LATER, 0, 0, A_STR | A_EMPTY | A_LONG, {"\"[0-9]+\""}, {0}},
    {"guided_whitespace_pattern", BOTH, R_TEXT, 0, SL_MAX_SPACE_PATTERN, 0, {"\"[ ]?\""}, {0}},
    {"ignore_eos", BOTH, R_BOOL, 0, 0, 0, {0}, {0}},
    {"include_reasoning", CHAT, R_BOOL, 0, 0, 0, {0}, {0}},
    {"include_stop_str_in_output", BOTH, R_BOOL, 0, 0, 0, {0}, {0}},
    {"json_schema", BOTH, R_LATER, 0, 0, A_SCHEMA, {"{\"type\":\"null\"}"}, {"[]"}},
    {"kv_transfer_params", BOTH, R_ONLY_EMPTY, 0, 0, 0, {0}, {0}},
    {"length_penalty", BOTH, R_ANY, 0, 0, 0, {0}, {0}},
    {"logit_bias",
     BOTH,
     R_LATER,
     0,
     0,
     A_OBJECT0,
     {"{\"0\":100,\"4095\":-100}", "{\"1\":0.5}"},
     {"{\"4096\":1}", "{\"-1\":1}", "{\"1\":100.5}", "{\"1\":\"1\"}", "{\"1\":null}",
      "{\"18446744073709551617\":1}", "{\"1.0\":1}", "{\"1\":1e308}"}},
    {"logprob_token_ids",
     BOTH,
     R_LATER,
     0,
     0,
     A_ARRAY1,
     {"[4095,0,0]"},
     {"[4096]", "[-1]", "[1.5]", "[null]"}},
    {"logprobs", CHAT, R_LATER, 0, 0, A_BOOL, {0}, {0}},
    {"logprobs", COMPLETION, R_LATER, 0, 0, A_ZERO, {"1", "20", "5.0"}, {"21", "2147483648"}},
    {"lora_scale", BOTH, R_NUMBER, -SL_MAX_ADAPTER_SCALE, SL_MAX_ADAPTER_SCALE, 0, {0}, {0}},
    {"max_completion_tokens", CHAT, R_INT, 1, INT32_MAX, 0, {0}, {0}},
    {"max_tokens", BOTH, R_INT, 0, INT32_MAX, 0, {0}, {0}},
    {"media_io_kwargs", CHAT, R_ANY, 0, 0, 0, {0}, {0}},
    {"messages",
     CHAT,
     R_LATER,
     0,
     0,
     0,
     {MESSAGE, "[{\"role\":\"assistant\"}]"},
     {"[{\"role\":\"user\"}]", "[{\"content\":\"a\"}]", "[[]]",
      "[{\"role\":\"user\",\"content\":[{\"type\":\"image_url\"}]}]",
      "[{\"role\":\"\",\"content\":\"\"}]"}},
    {"metadata", BOTH, R_ANY, 0, 0, 0, {0}, {0}},
    {"min_p", BOTH, R_NUMBER, 0, 1, 0, {0}, {0}},
    {"min_tokens", BOTH, R_INT, 0, INT32_MAX, 0, {0}, {0}},
    {"mm_processor_kwargs", CHAT, R_ANY, 0, 0, 0, {0}, {0}},
    {"modalities", CHAT, R_LATER, 0, 0, A_ARRAY0, {"[\"text\"]"}, {"[\"audio\"]", "[\"text\",1]"}},
    {"model", BOTH, R_TEXT, 0, 4096, 0, {0}, {0}},
    {"n", BOTH, R_INT, 1, SL_MAX_N, 0, {0}, {0}},
    {"nvext", BOTH, R_ANY, 0, 0, 0, {0}, {0}},
    {"parallel_tool_calls", CHAT, R_BOOL, 0, 0, 0, {0}, {0}},
    {"prediction",
     CHAT,
     R_LATER,
     0,
     0,
     0,
     {"{\"type\":\"content\",\"content\":\"a b\"}",
      "{\"type\":\"content\",\"content\":[{\"type\":\"text\",\"text\":\"a\"}]}"},
     {"{\"type\":\"content\"}", "{\"type\":\"content\",\"content\":[1]}", "{\"content\":\"a\"}",
      "{\"type\":\"audio\",\"content\":\"a\"}"}},
    {"presence_penalty", BOTH, R_NUMBER, -2, 2, 0, {0}, {0}},
    {"priority", BOTH, R_INT, INT32_MIN, INT32_MAX, 0, {0}, {0}},
    {"prompt",
     COMPLETION,
     R_LATER,
     0,
     0,
     A_STR | A_EMPTY | A_LONG | A_ARRAY1,
     {"[4095,0]", "[[5],[6,7]]", "[\"a\",\"b\",\"c\"]"},
     {"[4096]", "[-1]", "[5,\"a\"]", "[\"a\",1]", "[[]]", "[[4096]]", "[1.5]", "[null]"}},
    {"prompt_cache_key", BOTH, R_ANY, 0, 0, 0, {0}, {0}},
    {"prompt_cache_options", BOTH, R_ANY, 0, 0, 0, {0}, {0}},
    {"prompt_cache_retention", BOTH, R_ANY, 0, 0, 0, {0}, {0}},
    {"prompt_embeds", COMPLETION, R_NEVER, 0, 0, 0, {0}, {0}},
    {"prompt_logprobs", BOTH, R_INT, 0, SL_MAX_LOGPROBS, 0, {0}, {0}},
    {"reasoning_effort", CHAT, R_TEXT, 0, 64, 0, {0}, {0}},
    {"regex", BOTH, R_LATER, 0, 0, A_STR | A_EMPTY | A_LONG, {"\"[0-9]+\""}, {0}},
    {"repetition_detection",
     BOTH,
     R_LATER,
     0,
     0,
     A_OBJECT0,
     {"{\"max_pattern_size\":1024,\"min_pattern_size\":0,\"min_count\":1024}",
      "{\"max_pattern_size\":0}"},
     {"{\"max_pattern_size\":1025,\"min_count\":2}", "{\"max_pattern_size\":2,\"min_count\":1}",
      "{\"min_pattern_size\":2,\"max_pattern_size\":1,\"min_count\":2}",
      "{\"max_pattern_size\":-1}", "{\"min_count\":null}", "{\"min_count\":\"2\"}"}},
    {"repetition_penalty", BOTH, R_ABOVE, 0, 100, 0, {0}, {0}},
    {"request_id", BOTH, R_TEXT, 0, 128, 0, {0}, {0}},
    {"response_format",
     BOTH,
     R_LATER,
     0,
     0,
     0,
     {"{\"type\":\"text\"}", "{\"type\":\"json_object\"}"},
     {"{\"type\":\"xml\"}", "{\"type\":null}", "{\"type\":[]}"}},
    {"return_prompt_text", CHAT, R_BOOL, 0, 0, 0, {0}, {0}},
    {"return_token_ids", BOTH, R_BOOL, 0, 0, 0, {0}, {0}},
    {"return_tokens_as_token_ids", BOTH, R_BOOL, 0, 0, 0, {0}, {0}},
    {"safety_identifier", BOTH, R_ANY, 0, 0, 0, {0}, {0}},
    {"seed", BOTH, R_INT, (double)INT64_MIN, (double)INT64_MAX, 0, {0}, {0}},
    {"service_tier", BOTH, R_ANY, 0, 0, 0, {0}, {0}},
    {"session_id", BOTH, R_ANY, 0, 0, 0, {0}, {0}},
    {"skip_special_tokens", BOTH, R_BOOL, 0, 0, 0, {0}, {0}},
    {"spaces_between_special_tokens", BOTH, R_ANY, 0, 0, 0, {0}, {0}},
    {"stop",
     BOTH,
     R_LATER,
     0,
     0,
     A_STR | A_ARRAY0,
     {"[\"a\",\"b\"]", "[\"1\",\"2\",\"3\",\"4\",\"5\",\"6\",\"7\",\"8\",\"9\",\"a\",\"b\",\"c\","
                       "\"d\",\"e\",\"f\",\"g\"]"},
     {"[\"\"]", "[null]", "[[\"a\"]]",
      "[\"1\",\"2\",\"3\",\"4\",\"5\",\"6\",\"7\",\"8\",\"9\","
      "\"a\",\"b\",\"c\",\"d\",\"e\",\"f\",\"g\",\"h\"]"}},
    {"stop_regex", BOTH, R_ONLY_EMPTY, 0, 0, 0, {0}, {0}},
    {"stop_token_ids",
     BOTH,
     R_LATER,
     0,
     0,
     A_ARRAY0 | A_ARRAY1,
     {"[0,4095]"},
     {"[4096]", "[-1]", "[1.5]", "[\"1\"]", "[2147483648]", "[4294967296]", "[null]"}},
    {"store", BOTH, R_BOOL, 0, 0, 0, {0}, {0}},
    {"stream", BOTH, R_BOOL, 0, 0, 0, {0}, {0}},
    {"stream_interval", BOTH, R_INT, 1, SL_MAX_STREAM_INTERVAL, 0, {0}, {0}},
    {"stream_options",
     BOTH,
     R_LATER,
     0,
     0,
     A_OBJECT0 | A_OBJECT1,
     {"{\"include_usage\":true}", "{\"continuous_usage_stats\":true}", "{\"include_usage\":null}"},
     {"{\"include_usage\":1}", "{\"continuous_usage_stats\":\"true\"}"}},
    {"structured_outputs",
     BOTH,
     R_LATER,
     0,
     0,
     0,
     {"{\"regex\":\"a+\"}", "{\"json_object\":true}"},
     {"{\"json_object\":false}", "{\"json\":1}"}},
    {"structural_tag",
     BOTH,
     R_LATER,
     0,
     0,
     A_STR | A_EMPTY | A_LONG | A_OBJECT0 | A_OBJECT1,
     {0},
     {"[]"}},
    {"suffix", COMPLETION, R_ONLY_EMPTY, 0, 0, 0, {0}, {0}},
    {"temperature", BOTH, R_NUMBER, 0, 100, 0, {0}, {0}},
    {"thinking_token_budget", BOTH, R_INT, -1, INT32_MAX, 0, {0}, {0}},
    {"timings_per_token", BOTH, R_BOOL, 0, 0, 0, {0}, {0}},
    {"tool_choice",
     CHAT,
     R_LATER,
     0,
     0,
     0,
     {"\"none\"", "\"auto\"", "\"required\"",
      "{\"type\":\"function\",\"function\":{\"name\":\"f\"}}"},
     {"{\"type\":\"function\"}", "{\"type\":\"function\",\"function\":[]}",
      "{\"type\":\"custom\",\"function\":{\"name\":\"f\"}}"}},
    {"tools",
     CHAT,
     R_LATER,
     0,
     0,
     A_ARRAY0,
     {"[{\"type\":\"function\",\"function\":{\"name\":\"f\"}}]",
      "[{\"function\":{\"name\":\"f\",\"strict\":true,\"parameters\":{\"properties\":{}}}}]"},
     {"[{}]", "[null]", "[{\"function\":1}]", "[{\"function\":{\"name\":\"(\"}}]",
      "[{\"function\":{\"name\":\"f\",\"strict\":0}}]", "[{\"type\":\"f\"}]"}},
    {"top_k", BOTH, R_INT, -1, INT32_MAX, 0, {0}, {0}},
    {"top_logprobs", CHAT, R_INT, 0, SL_MAX_LOGPROBS, 0, {0}, {0}},
    {"top_p", BOTH, R_ABOVE, 0, 1, 0, {0}, {0}},
    {"truncate_prompt_tokens", BOTH, R_INT, -1, INT32_MAX, 0, {0}, {0}},
    {"truncation_side",
     BOTH,
     R_LATER,
     0,
     0,
     0,
     {"\"left\"", "\"right\""},
     {"\"LEFT\"", "\"middle\""}},
    {"use_beam_search", BOTH, R_ONLY_FALSE, 0, 0, 0, {0}, {0}},
    {"user", BOTH, R_ANY, 0, 0, 0, {0}, {0}},
    {"verbosity", CHAT, R_ANY, 0, 0, 0, {0}, {0}},
    {"vllm_xargs", BOTH, R_ONLY_EMPTY, 0, 0, 0, {0}, {0}},
    {"watermarking", BOTH, R_ONLY_FALSE, 0, 0, 0, {0}, {0}},
    {"web_search_options", CHAT, R_NEVER, 0, 0, 0, {0}, {0}},
};

#define N_FIELDS SL_COUNT(fields)

static struct value values[N_FIELDS][MAX_VALUES];
static int n_values[N_FIELDS];
static struct sl_buf texts[N_FIELDS * 4]; /* of the values that are made here */
static char long_text[LONG_TEXT + 3];
static long n_pairs, n_accepted;
/* ---- the values of each field */

static void add(size_t f, const char *json, enum type type, double num, bool ok)
{
    assert_true(n_values[f] < MAX_VALUES);
    values[f][n_values[f]++] = (struct value){json, type, num, ok};
}

static enum type type_of(const char *json)
{
    return json[0] == '"'   ? T_STR
           : json[0] == '[' ? T_ARRAY
           : json[0] == '{' ? T_OBJECT
           : json[0] == 't' ? T_BOOL
                            : T_INT;
}

static void add_number(size_t f, struct sl_buf *text, double x)
{
    sl_buf_printf(text, "%.0f", x);
    assert_true(sl_buf_ok(text));
    add(f, text->data, fabs(x) >= 0x1p63 && x != -0x1p63 ? T_BROKEN : T_INT, x, false);
}

static void add_string(size_t f, struct sl_buf *text, size_t n)
{
    sl_buf_putc(text, '"');
    for (size_t i = 0; i < n; i++)
        sl_buf_putc(text, 'a');
    sl_buf_putc(text, '"');
    assert_true(sl_buf_ok(text));
    add(f, text->data, T_STR, (double)n, false);
}

/* The common values, the edges of the range, and what the row lists. */
static void make_values(size_t f)
{
    const struct field *d = &fields[f];
    unsigned t = d->takes;
    add(f, "null", T_NULL, 0, true);
    add(f, "true", T_BOOL, 1, t & A_BOOL);
    add(f, "false", T_BOOL, 0, t & A_BOOL);
    add(f, "0", T_INT, 0, t & A_ZERO);
    add(f, "-1", T_INT, -1, false);
    add(f, "-0.0", T_INT, 0, t & A_ZERO); /* whole, whatever way it is written */
    add(f, "10e-1", T_INT, 1, t & A_ZERO);
    add(f, "4294967297", T_INT, 4294967297.0, false); /* 1 if it were cut to 32 bits */
    add(f, "1.5", T_REAL, 1.5, false);
    add(f, "1e308", T_REAL, 1e308, false);
    add(f, "-1e308", T_REAL, -1e308, false);
    add(f, "\"a\"", T_STR, 1, t & A_STR);
    add(f, "\"\"", T_STR, 0, t & A_EMPTY);
    add(f, "\"NaN\"", T_STR, 3, t & A_STR);
    add(f, long_text, T_STR, LONG_TEXT, t & A_LONG);
    add(f, "[]", T_ARRAY, 0, t & A_ARRAY0);
    add(f, "[1]", T_ARRAY, 1, t & A_ARRAY1);
    add(f, "{}", T_OBJECT, 0, t & A_OBJECT0);
    add(f, "{\"a\":1}", T_OBJECT, 1, t & A_OBJECT1);
    add(f, "NaN", T_BROKEN, 0, false);
    add(f, "-Infinity", T_BROKEN, 0, false);
    add(f, "1e400", T_BROKEN, 0, false);
    add(f, "99999999999999999999", T_REAL, 1e20, false);
    if (d->rule == R_INT || d->rule == R_NUMBER || d->rule == R_ABOVE) {
        bool wide = d->max > 1e15; /* doubles have no whole number next to it */
        add_number(f, &texts[4 * f], d->min);
        if (wide)
            add(f, "9223372036854775807", T_INT, d->max, false);
        else
            add_number(f, &texts[4 * f + 1], d->max);
        if (wide)
            add(f, "9223372036854775808", T_REAL, 0x1p63, false);
        else
            add_number(f, &texts[4 * f + 2], d->max + 1);
        if (!wide)
            add_number(f, &texts[4 * f + 3], d->min - 1);
    }
    if (d->rule == R_TEXT && d->max <= 4096) {
        add_string(f, &texts[4 * f], (size_t)d->max);
        add_string(f, &texts[4 * f + 1], (size_t)d->max + 1);
    }
    for (size_t i = 0; i < SL_COUNT(d->good) && d->good[i] != NULL; i++)
        add(f, d->good[i], type_of(d->good[i]), (double)i + 2, true);
    for (size_t i = 0; i < SL_COUNT(d->bad) && d->bad[i] != NULL; i++)
        add(f, d->bad[i], type_of(d->bad[i]), (double)i + 2, false);
}

static int start(void **state)
{
    static const struct host_options options = {.real_model = true, .max_model_len = MAX_MODEL_LEN};
    (void)state;
    memset(long_text, 'a', sizeof long_text - 1);
    long_text[0] = long_text[LONG_TEXT + 1] = '"';
    for (size_t f = 0; f < N_FIELDS; f++)
        make_values(f);
    host_start(&host, &options);
    assert_int_equal(sl_engine_info(host.eng)->n_vocab, VOCAB);
    return 0;
}

static int stop_and_free(void **state)
{
    for (size_t i = 0; i < SL_COUNT(texts); i++)
        sl_buf_deinit(&texts[i]);
    return stop(state);
}

/* ---- what must come of a body */

struct item {
    const struct field *field;
    const struct value *value;
};

struct body {
    unsigned endpoint;
    struct item items[MAX_ITEMS];
    int n;
};

static const struct value *get(const struct body *b, const char *name)
{
    for (int i = 0; i < b->n; i++) {
        const struct item *it = &b->items[i];
        if ((it->field->endpoints & b->endpoint) && strcmp(it->field->name, name) == 0)
            return it->value->type == T_NULL ? NULL : it->value;
    }
    return NULL;
}

static bool get_bool(const struct body *b, const char *name, bool otherwise)
{
    const struct value *v = get(b, name);
    return v != NULL ? v->num != 0 : otherwise;
}

static double get_num(const struct body *b, const char *name, double otherwise)
{
    const struct value *v = get(b, name);
    return v != NULL ? v->num : otherwise;
}

static bool reads(const struct field *f, const struct value *v)
{
    bool number = v->type == T_INT || v->type == T_REAL;
    bool whole = v->type == T_INT;
    bool in = v->num >= f->min && v->num <= f->max;
    switch (f->rule) {
    case R_BOOL:
        return v->type == T_BOOL;
    case R_INT:
        return whole && in;
    case R_NUMBER:
        return number && in;
    case R_ABOVE:
        return number && in && v->num > f->min;
    case R_TEXT:
        return v->type == T_STR && v->num <= f->max;
    case R_NEVER:
        return false;
    case R_ONLY_FALSE:
        return v->type == T_BOOL && v->num == 0;
    case R_ONLY_EMPTY:
        return (v->type == T_STR || v->type == T_ARRAY || v->type == T_OBJECT) && v->num == 0;
    case R_ANY:
    case R_LATER:
        return true;
    }
    return false;
}

/* Is this a structured field whose value is wrong by itself? */
static bool wrong(const struct body *b, const char *name)
{
    const struct value *v = get(b, name);
    return v != NULL && !v->ok;
}

/* required, or a name: the last of the good values */
static bool needs_tools(const struct body *b)
{
    const struct value *v = get(b, "tool_choice");
    return v != NULL && v->ok && v->num >= 4;
}

static const char *late_chat_rules(const struct body *b)
{
    if (get(b, "chat_template") != NULL)
        return "chat_template";
    if (wrong(b, "chat_template_kwargs"))
        return "chat_template_kwargs";
    if (wrong(b, "documents"))
        return "documents";
    if (get_bool(b, "continue_final_message", false) && get_bool(b, "add_generation_prompt", true))
        return "continue_final_message";
    static const char *const own[] = {"modalities", "tools", "tool_choice"};
    for (size_t i = 0; i < SL_COUNT(own); i++)
        if (wrong(b, own[i]))
            return own[i];
    if (needs_tools(b) && get_num(b, "tools", 0) < 2)
        return "tool_choice";
    return NULL;
}

/* The tokens asked for; -1: as many as there is room for. */
static double max_tokens(const struct body *b)
{
    double given = get_num(b, "max_tokens", b->endpoint == CHAT ? -1 : 16);
    if (b->endpoint == CHAT)
        given = get_num(b, "max_completion_tokens", given);
    return given == 0 && get_bool(b, "echo", false) ? 1 : given;
}

/* Does the value ask for an output of some form? It may be one that cannot be compiled. */
static bool constrains(const struct body *b, const char *name)
{
    const struct value *v = get(b, name);
    if (strcmp(name, "guided_json_object") == 0) /* no structured field: a switch */
        return get_bool(b, name, false);
    if (v == NULL || !v->ok)
        return false;
    if (strcmp(name, "response_format") == 0)
        return v->num != 2; /* text */
    return strcmp(name, "grammar") != 0 || v->num != 0;
}

static const char *const forms[] = {"response_format", "structured_outputs",
                                    "guided_json",     "guided_regex",
                                    "guided_choice",   "guided_grammar",
                                    "grammar",         "json_schema",
                                    "regex",           "ebnf",
                                    "structural_tag",  "guided_json_object"};

/* Names of one kind of constraint: vLLM's old one, llama.cpp's, SGLang's. */
static int kind_of(const char *name)
{
    static const char *const kinds[][3] = {{"guided_json", "json_schema"},
                                           {"guided_regex", "regex"},
                                           {"guided_grammar", "grammar", "ebnf"}};
    for (size_t k = 0; k < SL_COUNT(kinds); k++)
        for (size_t i = 0; i < SL_COUNT(kinds[k]) && kinds[k][i] != NULL; i++)
            if (strcmp(kinds[k][i], name) == 0)
                return (int)k;
    return -1;
}

/* The same constraint by two names is one. */
static bool is_twin(const struct body *b, const char *first, const char *name)
{
    return first != NULL && kind_of(name) >= 0 && kind_of(name) == kind_of(first) &&
           strcmp(get(b, name)->json, get(b, first)->json) == 0;
}

static const char *wrong_form(const struct body *b)
{
    const char *first = NULL;
    int n = 0;
    for (size_t i = 0; i < SL_COUNT(forms); i++) {
        if (constrains(b, forms[i]) && !wrong(b, forms[i]) && is_twin(b, first, forms[i]))
            continue;
        if (constrains(b, forms[i]) && first == NULL)
            first = forms[i];
        n += constrains(b, forms[i]);
        bool is_switch = strcmp(forms[i], "guided_json_object") == 0;
        if ((!is_switch && wrong(b, forms[i])) || (n > 1 && constrains(b, forms[i])))
            return forms[i];
    }
    return NULL;
}

/* Read well, but no grammar: the values of the other fields that all fields are tried with. */
static const char *compiles_not(const struct body *b)
{
    const struct value *space = get(b, "guided_whitespace_pattern"), *tools = get(b, "tools");
    bool no_space = space != NULL && (space->json[1] == 'a' || space->json[1] == 'N');
    for (size_t i = 0; i < SL_COUNT(forms); i++) {
        const struct value *v = get(b, forms[i]);
        bool text = constrains(b, forms[i]) && v->type == T_STR;
        bool no_choice = constrains(b, forms[i]) && v->type == T_ARRAY && v->num < 2;
        bool nothing = constrains(b, forms[i]) && v->type == T_BOOL && v->num == 0;
        bool regex = strstr(forms[i], "regex") != NULL;
        bool no_tag = constrains(b, forms[i]) && strcmp(forms[i], "structural_tag") == 0;
        if ((text && !regex && v->json[1] != 'r') || no_choice || nothing || no_tag ||
            (no_space && constrains(b, forms[i])))
            return forms[i];
    }
    if (no_space && b->endpoint == CHAT && tools != NULL && needs_tools(b))
        return "tools";
    return NULL;
}

static const char *late_rules(const struct body *b)
{
    const char *name = b->endpoint == CHAT ? late_chat_rules(b) : NULL;
    static const char *const own[] = {
        "stop",      "stop_token_ids", "allowed_token_ids",    "logprob_token_ids", "logit_bias",
        "bad_words", "prediction",     "repetition_detection", "logprobs"};
    for (size_t i = 0; name == NULL && i < SL_COUNT(own); i++)
        name = wrong(b, own[i]) ? own[i] : NULL;
    if (name != NULL)
        return name;
    if (b->endpoint == CHAT && get_num(b, "top_logprobs", 0) > 0 && !get_bool(b, "logprobs", false))
        return "top_logprobs";
    bool logprobs =
        b->endpoint == CHAT ? get_bool(b, "logprobs", false) : get(b, "logprobs") != NULL;
    if (get(b, "logprob_token_ids") != NULL && !logprobs)
        return "logprob_token_ids";
    if (wrong(b, "stream_options") ||
        (get(b, "stream_options") != NULL && !get_bool(b, "stream", false)))
        return "stream_options";
    if (wrong_form(b) != NULL)
        return wrong_form(b);
    double n = get_num(b, "n", 1), best_of = get_num(b, "best_of", 0);
    if (b->endpoint == CHAT
            ? best_of > 1
            : best_of > 0 && (best_of < n || (best_of > n && get_bool(b, "stream", false))))
        return "best_of";
    if (b->endpoint == COMPLETION && get_num(b, "thinking_token_budget", -1) >= 0)
        return "thinking_token_budget";
    double most = max_tokens(b);
    if (most == 0)
        return "max_tokens";
    if (most > 0 && get_num(b, "min_tokens", 0) > most)
        return "min_tokens";
    if (get_bool(b, "stream", false) && get(b, "prompt_logprobs") != NULL &&
        (b->endpoint == CHAT || !get_bool(b, "echo", false)))
        return "prompt_logprobs";
    const struct value *salt = get(b, "cache_salt");
    if (salt != NULL && salt->num == 0)
        return "cache_salt";
    return wrong(b, "truncation_side") ? "truncation_side" : NULL;
}

/* The field that the reader of the fields must name: NULL = accepted, "" = the text is no JSON. */
static const char *offender(const struct body *b)
{
    for (int i = 0; i < b->n; i++)
        if (b->items[i].value->type == T_BROKEN)
            return "";
    for (int i = 0; i < b->n; i++) {
        const struct item *it = &b->items[i];
        if ((it->field->endpoints & b->endpoint) && it->value->type != T_NULL &&
            !reads(it->field, it->value))
            return it->field->name;
    }
    return late_rules(b);
}

/* The same of the whole server, and the status. */
static const char *server_offender(const struct body *b, int *status)
{
    const char *name = offender(b);
    const struct value *prompt = get(b, b->endpoint == CHAT ? "messages" : "prompt");
    *status = 400;
    if (name != NULL)
        return name;
    if (get(b, "model") == NULL && (float)get_num(b, "lora_scale", 1) != 1.0f)
        return "lora_scale";       /* the model is no adapter */
    if (get(b, "model") != NULL) { /* none of the values is the model's name */
        *status = 404;
        return "model";
    }
    if (get_num(b, "thinking_token_budget", -1) >= 0) /* the bundled model does not reason */
        return "thinking_token_budget";
    for (size_t i = 0; i < SL_COUNT(forms); i++)
        if (b->endpoint == CHAT && needs_tools(b) && constrains(b, forms[i]))
            return forms[i];
    if (compiles_not(b) != NULL)
        return compiles_not(b);
    if (prompt == NULL || !prompt->ok)
        return b->endpoint == CHAT ? "messages" : "prompt";
    if (prompt->type == T_STR && prompt->num == 0 && !get_bool(b, "add_special_tokens", true))
        return "prompt"; /* no token at all */
    if (prompt->num == LONG_TEXT && get_num(b, "truncate_prompt_tokens", 0) == 0)
        return "prompt";
    if (get_num(b, "min_tokens", 0) > MAX_MODEL_LEN)
        return "min_tokens";
    *status = 200;
    return NULL;
}

static void write_body(const struct body *b, struct sl_buf *out)
{
    sl_buf_clear(out);
    for (int i = 0; i < b->n; i++) {
        sl_buf_puts(out, i == 0 ? "{\"" : ",\"");
        sl_buf_puts(out, b->items[i].field->name);
        sl_buf_puts(out, "\":");
        sl_buf_puts(out, b->items[i].value->json);
    }
    sl_buf_puts(out, b->n > 0 ? "}" : "{}");
    assert_true(sl_buf_ok(out));
}

static bool blames(const char *blamed, const char *name)
{
    size_t n = strlen(name);
    return strncmp(blamed, name, n) == 0 &&
           (blamed[n] == '\0' || (n > 0 && (blamed[n] == '.' || blamed[n] == '[')));
}

/* ---- the reader of the fields */

static void check_reader(const struct body *b, struct sl_buf *text)
{
    struct sl_params p = {0};
    struct sl_refusal r = {0};
    struct sl_sampling defaults;
    const struct sl_param_limits limits = {.n_vocab = VOCAB};
    json_t *root;
    const char *want = offender(b);
    write_body(b, text);
    sl_sampling_default(&defaults);
    int rc = sl_json_parse_object(text->data, text->n_bytes, &root, &r);
    if (rc == 0)
        rc = sl_params_parse(&p, (enum sl_endpoint)b->endpoint, root, &defaults, &limits, &r);
    bool same = want == NULL ? rc == 0
                             : rc != 0 && sl_code_http(rc) == 400 && blames(r.param, want) &&
                                   strstr(r.err.msg, want) != NULL;
    if (!same)
        fail_msg("%s\n  endpoint %u must %s %s, not %s '%s' %s",
                 host_show(text->data, text->n_bytes), b->endpoint,
                 want == NULL ? "accept" : "blame", want != NULL ? want : "it",
                 rc == 0 ? "accept" : "blame", r.param, r.err.msg);
    if (rc == 0) {
        n_accepted++;
        assert_true(p.sampling.n >= 1 && p.sampling.n <= SL_MAX_N);
        assert_true(p.sampling.temperature >= 0 && p.sampling.temperature <= 100);
        assert_true(p.sampling.top_p > 0 && p.sampling.top_p <= 1);
        assert_true(p.sampling.repetition_penalty > 0 && p.sampling.repetition_penalty <= 100);
        assert_true(p.sampling.max_tokens == -1 || p.sampling.max_tokens >= 1);
    }
    sl_params_deinit(&p);
    json_decref(root);
    n_pairs++;
}

/* Of the pairs of values so many are left out for each one taken, other ones for each two fields;
 * --all takes every pair, which are 1.8 million. */
#ifdef SL_DEBUG
static size_t stride = 40;
#else
static size_t stride = 8;
#endif

static void pairs_of(unsigned endpoint, size_t f, size_t g, struct sl_buf *text)
{
    for (int i = 0; i < n_values[f]; i++) {
        for (int k = 0; k < n_values[g]; k++) {
            if (((size_t)(i * n_values[g] + k) + f + g) % stride != 0)
                continue;
            bool swap = (i + k) / 2 % 2 != 0;
            struct body b = {.endpoint = endpoint, .n = 2};
            b.items[swap] = (struct item){&fields[f], &values[f][i]};
            b.items[!swap] = (struct item){&fields[g], &values[g][k]};
            check_reader(&b, text);
        }
    }
}

static void test_every_pair(void **state)
{
    (void)state;
    struct sl_buf text = {0};
    for (unsigned e = 1; e <= 2; e++) {
        for (size_t f = 0; f < N_FIELDS; f++) {
            for (size_t g = f + 1; g < N_FIELDS; g++) {
                if ((fields[f].endpoints & e) && (fields[g].endpoints & e))
                    pairs_of(e, f, g, &text);
            }
        }
    }
    sl_buf_deinit(&text);
    print_message("%ld pairs, %ld accepted\n", n_pairs, n_accepted);
    assert_true(n_pairs > 40000 && n_accepted > 2000);
}

/* The table above and the server's own must list the same fields. */
static void test_every_field_is_here(void **state)
{
    (void)state;
    unsigned n_rows = 0;
    for (int i = 0; i < sl_params_n_fields(); i++) {
        unsigned endpoints, seen = 0;
        const char *name = sl_params_field(i, &endpoints);
        endpoints &= BOTH; /* of the others: test_hostile_protocols.c */
        if (endpoints == 0)
            continue;
        for (size_t f = 0; f < N_FIELDS; f++)
            seen |= strcmp(fields[f].name, name) == 0 ? fields[f].endpoints : 0;
        if (seen != endpoints)
            fail_msg("%s is for endpoints %u, the table says %u", name, endpoints, seen);
        n_rows++;
    }
    assert_int_equal(n_rows, N_FIELDS - 1); /* logprobs has two rows */
}

/* ---- the server */

static bool has(const struct body *b, const char *name)
{
    for (int i = 0; i < b->n; i++)
        if (strcmp(b->items[i].field->name, name) == 0)
            return true;
    return false;
}

/* A body that says nothing of it asks for one token of a small prompt. */
static void complete_body(struct body *b)
{
    static const struct value one = {"1", T_INT, 1, true}, user = {MESSAGE, T_ARRAY, 2, true},
                              ids = {"[5]", T_ARRAY, 2, true};
    static const struct field max = {"max_tokens", BOTH, R_INT, 0, INT32_MAX, 0, {0}, {0}},
                              messages = {"messages", CHAT, R_LATER, 0, 0, 0, {0}, {0}},
                              prompt = {"prompt", COMPLETION, R_LATER, 0, 0, 0, {0}, {0}};
    bool chat = b->endpoint == CHAT;
    if (!has(b, "max_tokens"))
        b->items[b->n++] = (struct item){&max, &one};
    if (!has(b, chat ? "messages" : "prompt"))
        b->items[b->n++] = (struct item){chat ? &messages : &prompt, chat ? &user : &ids};
    assert_true(b->n <= MAX_ITEMS);
}

static void check_reply(const struct body *b, const struct answer *a, const char *text)
{
    if (get_bool(b, "stream", false)) {
        if (a->body.n_bytes < 14 || !sl_ends_with(a->body.data, "data: [DONE]\n\n"))
            fail_msg("%s: a stream without its end", text);
        return;
    }
    const struct value *prompt = get(b, "prompt");
    bool several = prompt != NULL && prompt->type == T_ARRAY && strpbrk(prompt->json + 1, "[\"");
    size_t n_prompts = !several ? 1 : strchr(prompt->json + 1, '[') != NULL ? 2 : 3;
    size_t want = n_prompts * (size_t)get_num(b, "n", 1);
    json_t *root = json_loadb(a->body.data, a->body.n_bytes, 0, NULL);
    size_t n = json_array_size(json_object_get(root, "choices"));
    if (n != want)
        fail_msg("%s: %zu choices, not %zu", text, n, want);
    json_decref(root);
}

static void check_server(struct client *c, struct body *b, struct sl_buf *text)
{
    struct answer a;
    int want_status;
    complete_body(b);
    const char *want = server_offender(b, &want_status);
    write_body(b, text);
    int status = client_post(c, b->endpoint == CHAT ? "/v1/chat/completions" : "/v1/completions",
                             NULL, text->data, text->n_bytes, &a);
    json_t *root = status < 400 ? NULL : json_loadb(a.body.data, a.body.n_bytes, 0, NULL);
    const char *message = error_member(root, "message"), *blamed = error_member(root, "param");
    /* What the engine refuses for its length is blamed by its code and in words. */
    bool by_length = strcmp(error_member(root, "code"), "context_length_exceeded") == 0;
    if (status != want_status || a.says_close ||
        (want != NULL && (strstr(message, want) == NULL || !(by_length || blames(blamed, want)))))
        fail_msg("%s\n  endpoint %u: %d '%s' %s\n  not %d '%s'",
                 host_show(text->data, text->n_bytes), b->endpoint, status, blamed, message,
                 want_status, want != NULL ? want : "");
    if (status == 200)
        check_reply(b, &a, text->data);
    json_decref(root);
    answer_free(&a);
    host.n_cases++;
}

static void test_every_value(void **state)
{
    (void)state;
    struct client c;
    struct sl_buf text = {0};
    client_open(&c, &host);
    for (unsigned e = 1; e <= 2; e++) {
        for (size_t f = 0; f < N_FIELDS; f++) { /* fields of the other endpoint are ignored */
            if (strcmp(fields[f].name, "logprobs") == 0 && !(fields[f].endpoints & e))
                continue;
            for (int i = -1; i < n_values[f]; i++) {
                struct body b = {.endpoint = e, .n = i >= 0}; /* -1: the field is missing */
                b.items[0] = (struct item){&fields[f], &values[f][SL_MAX(i, 0)]};
                check_server(&c, &b, &text);
            }
        }
        host_good(&host);
    }
    client_close(&c);
    sl_buf_deinit(&text);
}

/* Mostly right values, so that many bodies are accepted and the others have few faults. */
static void random_body(struct sl_rng *r, unsigned endpoint, struct body *b)
{
    int n = 2 + (int)sl_rng_below(r, 7);
    *b = (struct body){.endpoint = endpoint};
    while (b->n < n) {
        size_t f = sl_rng_below(r, N_FIELDS);
        if (strcmp(fields[f].name, "logprobs") == 0 && !(fields[f].endpoints & endpoint))
            continue; /* a field of both, with a row for each */
        const struct value *v = &values[f][sl_rng_below(r, (uint32_t)n_values[f])];
        for (int tries = 0; tries < 30 && sl_rng_below(r, 8) != 0; tries++) {
            struct body one = {.endpoint = endpoint, .items = {{&fields[f], v}}, .n = 1};
            int status;
            complete_body(&one);
            if (server_offender(&one, &status) == NULL)
                break;
            v = &values[f][sl_rng_below(r, (uint32_t)n_values[f])];
        }
        if (!has(b, fields[f].name))
            b->items[b->n++] = (struct item){&fields[f], v};
        else
            n--;
    }
}

/* The few tokens that allowed_token_ids leaves may be none that a form, or min_tokens, lets come;
 * test_params.py looks at what happens then. */
static bool may_leave_nothing(const struct body *b)
{
    bool more = get_num(b, "min_tokens", 0) > 0;
    for (size_t i = 0; i < SL_COUNT(forms); i++)
        more |= constrains(b, forms[i]);
    return more && get(b, "allowed_token_ids") != NULL;
}

#ifdef SL_DEBUG
#define N_RANDOM 1000
#else
#define N_RANDOM 3000
#endif

static void test_combinations(void **state)
{
    (void)state;
    struct client c;
    struct sl_buf text = {0};
    struct sl_rng r = {.seed = 2026};
    int n_ok = 0;
    client_open(&c, &host);
    for (int i = 0; i < N_RANDOM; i++) {
        struct body b;
        int status;
        random_body(&r, 1 + (unsigned)i % 2, &b);
        if (may_leave_nothing(&b))
            continue;
        check_server(&c, &b, &text);
        n_ok += server_offender(&b, &status) == NULL;
        if (i % 50 == 0)
            host_good(&host);
    }
    client_close(&c);
    sl_buf_deinit(&text);
    print_message("%d of %d combinations are accepted\n", n_ok, N_RANDOM);
    assert_true(n_ok > N_RANDOM / 10 && n_ok < N_RANDOM * 9 / 10);
}

/* ---- lists: as many as allowed, and one more */

static void put_list(struct sl_buf *b, const char *before, const char *item, int n,
                     const char *after)
{
    sl_buf_puts(b, before);
    for (int i = 0; i < n; i++)
        sl_buf_printf(b, item, i > 0 ? "," : "", i);
    sl_buf_puts(b, after);
    assert_true(sl_buf_ok(b));
}

static void test_lists(void **state)
{
    (void)state;
    static const struct {
        unsigned endpoint;
        const char *before, *item, *after;
        int most;
        const char *param;
    } rows[] = {
        {COMPLETION, "{\"prompt\":[", "%s\"a%d\"", "],\"max_tokens\":1}", SL_MAX_PROMPTS, "prompt"},
        {COMPLETION, "{\"prompt\":[", "%s[%d]", "],\"max_tokens\":1,\"n\":8}", SL_MAX_PROMPTS,
         "prompt"},
        {COMPLETION, "{\"prompt\":[", "%s%d", "],\"max_tokens\":1}", MAX_MODEL_LEN - 1, NULL},
        {COMPLETION, "{\"stop\":[", "%s\"a%d\"", "],\"max_tokens\":1,\"prompt\":[5]}", SL_MAX_STOPS,
         "stop"},
        {COMPLETION, "{\"stop\":\"", "%.0sa", "\",\"max_tokens\":1,\"prompt\":[5]}",
         SL_MAX_STOP_BYTES, "stop"},
        {COMPLETION, "{\"stop_token_ids\":[", "%s%d", "],\"max_tokens\":1,\"prompt\":[5]}",
         SL_MAX_STOP_IDS, "stop_token_ids"},
        {COMPLETION, "{\"logit_bias\":{", "%s\"%d\":-1", "},\"max_tokens\":1,\"prompt\":[5]}",
         SL_MAX_LOGIT_BIAS, "logit_bias"},
        {COMPLETION, "{\"bad_words\":[", "%s\"a%d\"", "],\"max_tokens\":1,\"prompt\":[5]}",
         SL_MAX_BAD_WORDS / 2, "bad_words"},
        {COMPLETION, "{\"logprobs\":0,\"logprob_token_ids\":[", "%s%d",
         "],\"max_tokens\":1,\"prompt\":[5]}", SL_MAX_LOGPROB_IDS, "logprob_token_ids"},
        {COMPLETION, "{\"allowed_token_ids\":[", "%s%d", "],\"max_tokens\":1,\"prompt\":[5]}",
         VOCAB, "allowed_token_ids"},
        {CHAT, "{\"logit_bias\":{", "%s\"%d\":-1", "},\"max_tokens\":1,\"messages\":" MESSAGE "}",
         SL_MAX_LOGIT_BIAS, "logit_bias"},
    };
    struct sl_buf b = {0};
    for (size_t i = 0; i < SL_COUNT(rows); i++) {
        const int counts[] = {1, rows[i].most - 1, rows[i].most, rows[i].most + 1, 100000};
        for (size_t k = 0; k < SL_COUNT(counts); k++) {
            bool ok = counts[k] <= rows[i].most;
            sl_buf_clear(&b);
            put_list(&b, rows[i].before, rows[i].item, counts[k], rows[i].after);
            host_json(&host, rows[i].endpoint == CHAT ? "/v1/chat/completions" : "/v1/completions",
                      b.data, b.n_bytes, ok ? 200 : 400, ok ? "" : rows[i].param, NULL);
        }
    }
    sl_buf_clear(&b); /* a conversation that no context holds */
    put_list(&b, "{\"messages\":[", "%s{\"role\":\"user\",\"content\":\"%d\"}", 100000, "]}");
    host_json(&host, "/v1/chat/completions", b.data, b.n_bytes, 400, NULL, NULL);
    sl_buf_deinit(&b);
}

static void test_enough_cases(void **state)
{
    (void)state;
    print_message("hostile parameters: %ld pairs, %ld requests\n", n_pairs, host.n_cases);
    assert_true(host.n_cases >= 3000);
}

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_every_field_is_here),
        cmocka_unit_test(test_every_pair),
        cmocka_unit_test(test_every_value),
        cmocka_unit_test(test_combinations),
        cmocka_unit_test(test_lists),
        cmocka_unit_test(test_enough_cases),
    };
    if (argc == 2 && strcmp(argv[1], "--all") == 0)
        stride = 1;
    return cmocka_run_group_tests(tests, start, stop_and_free);
}
