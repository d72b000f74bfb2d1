/* SPDX-License-Identifier: MIT
 * Request bodies: JSON as such (own cases and JSONTestSuite), then every field of the two
 * generation endpoints against a row of right and wrong values.
 */
#include "base/buf.h"
#include "base/check.h"
#include "base/limits.h"
#include "base/str.h"
#include "base/sys.h"
#include "server/api/params.h"
#include "server/api/prompt.h"

#include <dirent.h>
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#define N_VOCAB 1000

static int n_checked;

/* ---- JSON */

static int parse(const char *text, size_t n, struct sl_refusal *r)
{
    json_t *root;
    memset(r, 0, sizeof *r);
    int rc = sl_json_parse_object(text, n, &root, r);
    assert_true((rc == 0) == (root != NULL));
    json_decref(root);
    n_checked++;
    return rc;
}

static void test_json(void **state)
{
    (void)state;
    static const struct {
        const char *text;
        int code;
    } rows[] = {
        {"{}", 0},
        {" \t\r\n{ } ", 0},
        {"{\"a\":1,\"a\":2}", 0}, /* the last one counts */
        {"{\"a\":\"\\u0000\"}", 0},
        {"{\"a\":\"\\ud83d\\ude00\"}", 0},
        {"{\"a\":-0}", 0},
        {"{\"a\":-0.0e-0}", 0},
        {"{\"a\":1e308}", 0},
        {"{\"a\":1e-400}", 0},
        {"{\"a\":9223372036854775807}", 0},
        {"{\"a\":9223372036854775808}", 0}, /* a real number then */
        {"{\"a\":-9223372036854775809,\"b\":[\"99999999999999999999\\\"\"]}", 0},
        {"{\"a\":00000000000000000000}", SL_EFORMAT},
        {"{\"a\":1234567890123456789012x}", SL_EFORMAT},
        {"{\"a\":1e400}", SL_EFORMAT},
        {"{\"a\":-1e400}", SL_EFORMAT},
        {"{\"a\":NaN}", SL_EFORMAT},
        {"{\"a\":Infinity}", SL_EFORMAT},
        {"{\"a\":-Infinity}", SL_EFORMAT},
        {"{\"a\":01}", SL_EFORMAT},
        {"{\"a\":+1}", SL_EFORMAT},
        {"{\"a\":.5}", SL_EFORMAT},
        {"{\"a\":5.}", SL_EFORMAT},
        {"{\"a\":0x10}", SL_EFORMAT},
        {"{\"a\":1_000}", SL_EFORMAT},
        {"{\"a\":\"\\ud800\"}", SL_EFORMAT},
        {"{\"a\":\"\\ud800\\u0041\"}", SL_EFORMAT},
        {"{\"a\":\"\\udc00\"}", SL_EFORMAT},
        {"{\"a\":\"\xff\"}", SL_EFORMAT},
        {"{\"a\":\"\xc0\x80\"}", SL_EFORMAT},
        {"{\"a\":\"\xed\xa0\x80\"}", SL_EFORMAT},
        {"{\"a\":\"\xf4\x90\x80\x80\"}", SL_EFORMAT},
        {"{\"a\":\"\n\"}", SL_EFORMAT},
        {"{\"a\":\"\\x41\"}", SL_EFORMAT},
        {"{\"a\":'b'}", SL_EFORMAT},
        {"{a:1}", SL_EFORMAT},
        {"{\"a\":1,}", SL_EFORMAT},
        {"{\"a\" 1}", SL_EFORMAT},
        {"{\"a\":1 \"b\":2}", SL_EFORMAT},
        {"{\"a\":True}", SL_EFORMAT},
        {"{\"a\":1}//", SL_EFORMAT},
        {"{\"a\":1}{}", SL_EFORMAT},
        {"{\"a\":1", SL_EFORMAT},
        {"{", SL_EFORMAT},
        {"", SL_EFORMAT},
        {" ", SL_EFORMAT},
        {"[]", SL_EFORMAT},
        {"[{}]", SL_EFORMAT},
        {"null", SL_EFORMAT},
        {"1", SL_EFORMAT},
        {"\"a\"", SL_EFORMAT},
        {"\xef\xbb\xbf{}", SL_EFORMAT},
        {"a=b", SL_EFORMAT},
    };
    struct sl_refusal r;
    for (size_t i = 0; i < SL_COUNT(rows); i++) {
        int rc = parse(rows[i].text, strlen(rows[i].text), &r);
        if (rc != rows[i].code)
            fail_msg("%s gives %s: %s", rows[i].text, sl_code_name(rc), r.err.msg);
    }
    assert_int_equal(parse("{}\0", 3, &r), SL_EFORMAT);
    assert_int_equal(parse("{\"a\":1\0}", 8, &r), SL_EFORMAT);
    assert_int_equal(parse(NULL, 0, &r), SL_EFORMAT);
}

static void put_nested(struct sl_buf *b, const char *open, const char *close, int depth)
{
    sl_buf_clear(b);
    sl_buf_puts(b, "{\"a\":");
    for (int i = 0; i < depth - 1; i++)
        sl_buf_puts(b, open);
    sl_buf_puts(b, "1");
    for (int i = 0; i < depth - 1; i++)
        sl_buf_puts(b, close);
    sl_buf_puts(b, "}");
    assert_true(sl_buf_ok(b));
}

static void test_depth(void **state)
{
    (void)state;
    static const int deep[] = {65, 66, 100, 2048, 5000, 100000, 1000000};
    struct sl_buf b = {0};
    struct sl_refusal r;
    put_nested(&b, "[", "]", SL_MAX_JSON_DEPTH);
    assert_int_equal(parse(b.data, b.n_bytes, &r), 0);
    put_nested(&b, "{\"b\":", "}", SL_MAX_JSON_DEPTH);
    assert_int_equal(parse(b.data, b.n_bytes, &r), 0);
    for (size_t i = 0; i < SL_COUNT(deep); i++) {
        put_nested(&b, "[", "]", deep[i]);
        assert_int_equal(parse(b.data, b.n_bytes, &r), SL_ELIMIT);
        put_nested(&b, "{\"b\":", "}", deep[i]);
        assert_int_equal(parse(b.data, b.n_bytes, &r), SL_ELIMIT);
    }
    sl_buf_clear(&b); /* brackets inside strings are text */
    sl_buf_puts(&b, "{\"a\":\"\\\"");
    for (int i = 0; i < 1000; i++)
        sl_buf_puts(&b, "[{");
    sl_buf_puts(&b, "\"}");
    assert_int_equal(parse(b.data, b.n_bytes, &r), 0);
    assert_int_equal(sl_json_depth("]]]][[", 6, 64), 2);
    sl_buf_deinit(&b);
}

static void test_huge_key(void **state)
{
    (void)state;
    struct sl_buf b = {0};
    struct sl_refusal r;
    sl_buf_puts(&b, "{\"");
    for (int i = 0; i < 10 << 10; i++) {
        char block[1024];
        memset(block, 'k', sizeof block);
        sl_buf_put(&b, block, sizeof block);
    }
    sl_buf_puts(&b, "\":1}");
    assert_true(sl_buf_ok(&b));
    assert_int_equal(parse(b.data, b.n_bytes, &r), 0);
    sl_buf_deinit(&b);
}

/* y_ must parse, n_ must not, i_ may do either; none may crash. Bare values are put into an object,
 * since a body must be one. */
static void test_suite(void **state)
{
    (void)state;
    static const char folder[] = "build/testdata/structured/structured/JSONTestSuite";
    static const char *const known[] = {folder, "build/testdata/structured/JSONTestSuite"};
    DIR *dir = NULL;
    const char *used = NULL;
    for (size_t i = 0; dir == NULL && i < SL_COUNT(known); i++) {
        char with_sub[200];
        snprintf(with_sub, sizeof with_sub, "%s/test_parsing", known[i]);
        used = known[i];
        dir = opendir(with_sub);
        if (dir != NULL)
            closedir(dir);
        dir = opendir(dir != NULL ? with_sub : known[i]);
    }
    if (dir == NULL) {
        print_message("skip: JSONTestSuite is not unpacked\n");
        return;
    }
    int n = 0;
    for (struct dirent *e; (e = readdir(dir)) != NULL;) {
        char path[600];
        char *text = NULL;
        size_t n_text = 0;
        struct sl_buf body = {0};
        struct sl_refusal r;
        if (!sl_ends_with(e->d_name, ".json") || e->d_name[1] != '_')
            continue;
        snprintf(path, sizeof path, "%s/test_parsing/%s", used, e->d_name);
        if (sl_read_file(path, 1 << 20, &text, &n_text, NULL) != 0) {
            snprintf(path, sizeof path, "%s/%s", used, e->d_name);
            assert_int_equal(sl_read_file(path, 1 << 20, &text, &n_text, NULL), 0);
        }
        sl_buf_puts(&body, "{\"v\":");
        sl_buf_put(&body, text, n_text);
        sl_buf_puts(&body, "}");
        int rc = parse(body.data, body.n_bytes, &r);
        /* Wrapped, a text that ends inside a string or comment may swallow the brace: still bad. */
        /* Keys are C strings here: one with a NUL inside is refused, by intent. */
        bool nul_key = strcmp(e->d_name, "y_object_escaped_null_in_key.json") == 0;
        if (e->d_name[0] == 'y' && rc != 0 && !nul_key)
            fail_msg("%s must parse: %s", e->d_name, r.err.msg);
        if (e->d_name[0] == 'n' && rc == 0)
            fail_msg("%s must not parse", e->d_name);
        sl_buf_deinit(&body);
        sl_free(text);
        n++;
    }
    closedir(dir);
    print_message("%d files of JSONTestSuite\n", n);
    assert_true(n > 300);
}

/* ---- fields */

enum type { BOOL, INT, FLOAT, STRING, IGNORED, REFUSED, REFUSED_TRUE, REFUSED_FILLED, SPECIAL };

static const struct field {
    const char *name;
    unsigned endpoints; /* 1 chat, 2 completions */
    enum type type;
    double min, max;
    bool above_min;
} fields[] = {
    {"add_generation_prompt", 1, BOOL, 0, 0, false},
    {"add_special_tokens", 3, BOOL, 0, 0, false},
    {"allowed_token_ids", 3, SPECIAL, 0, 0, false},
    {"audio", 1, REFUSED, 0, 0, false},
    {"bad_words", 3, SPECIAL, 0, 0, false},
    {"best_of", 1, INT, 1, 1, false}, /* more is refused as unsupported */
    {"best_of", 2, INT, 1, SL_MAX_N, false},
    {"cache_hit_threshold", 3, FLOAT, 0, 1, false},
    {"cache_salt", 3, STRING, 0, SL_MAX_CACHE_SALT, false},
    {"chat_template", 1, SPECIAL, 0, 0, false},
    {"chat_template_kwargs", 1, SPECIAL, 0, 0, false},
    {"continue_final_message", 1, SPECIAL, 0, 0, false},
    {"documents", 1, SPECIAL, 0, 0, false},
    {"ec_transfer_params", 3, REFUSED_FILLED, 0, 0, false},
    {"echo", 3, BOOL, 0, 0, false},
    {"frequency_penalty", 3, FLOAT, -2, 2, false},
    {"function_call", 1, REFUSED, 0, 0, false},
    {"functions", 1, REFUSED_FILLED, 0, 0, false},
    {"grammar", 3, SPECIAL, 0, 0, false},
    {"guided_choice", 3, SPECIAL, 0, 0, false},
    {"guided_decoding_backend", 3, IGNORED, 0, 0, false},
    {"guided_grammar", 3, SPECIAL, 0, 0, false},
    {"guided_json", 3, SPECIAL, 0, 0, false},
    {"guided_json_object", 3, BOOL, 0, 0, false},
    {"regex", 3, SPECIAL, 0, 0, false},
    {"ebnf", 3, SPECIAL, 0, 0, false},
    {"structural_tag", 3, SPECIAL, 0, 0, false},
    {"guided_regex", 3, SPECIAL, 0, 0, false},
    {"guided_whitespace_pattern", 3, STRING, 0, SL_MAX_SPACE_PATTERN, false},
    {"ignore_eos", 3, BOOL, 0, 0, false},
    {"include_reasoning", 1, BOOL, 0, 0, false},
    {"include_stop_str_in_output", 3, BOOL, 0, 0, false},
    {"json_schema", 3, SPECIAL, 0, 0, false},
    {"kv_transfer_params", 3, REFUSED_FILLED, 0, 0, false},
    {"bootstrap_host", 3, SPECIAL, 0, 0, false},
    {"bootstrap_port", 3, SPECIAL, 0, 0, false},
    {"bootstrap_room", 3, SPECIAL, 0, 0, false},
    {"length_penalty", 3, IGNORED, 0, 0, false},
    {"logit_bias", 3, SPECIAL, 0, 0, false},
    {"logprob_token_ids", 3, SPECIAL, 0, 0, false},
    {"logprobs", 1, BOOL, 0, 0, false},
    {"logprobs", 2, INT, 0, SL_MAX_LOGPROBS, false},
    {"max_completion_tokens", 1, INT, 1, INT32_MAX, false},
    {"max_tokens", 3, INT, 1, INT32_MAX, false},
    {"media_io_kwargs", 1, IGNORED, 0, 0, false},
    {"messages", 1, SPECIAL, 0, 0, false},
    {"metadata", 3, IGNORED, 0, 0, false},
    {"min_p", 3, FLOAT, 0, 1, false},
    {"min_tokens", 1, INT, 0, INT32_MAX, false},
    {"min_tokens", 2, INT, 0, 16, false}, /* max_tokens is 16 there unless given */
    {"mm_processor_kwargs", 1, IGNORED, 0, 0, false},
    {"modalities", 1, SPECIAL, 0, 0, false},
    {"model", 3, STRING, 0, 4096, false},
    {"n", 3, INT, 1, SL_MAX_N, false},
    {"nvext", 3, IGNORED, 0, 0, false},
    {"parallel_tool_calls", 1, BOOL, 0, 0, false},
    {"prediction", 1, SPECIAL, 0, 0, false},
    {"presence_penalty", 3, FLOAT, -2, 2, false},
    {"priority", 3, INT, INT32_MIN, INT32_MAX, false},
    {"prompt", 2, SPECIAL, 0, 0, false},
    {"prompt_cache_key", 3, IGNORED, 0, 0, false},
    {"prompt_cache_options", 3, IGNORED, 0, 0, false},
    {"prompt_cache_retention", 3, IGNORED, 0, 0, false},
    {"prompt_embeds", 2, REFUSED, 0, 0, false},
    {"prompt_logprobs", 3, INT, 0, SL_MAX_LOGPROBS, false},
    {"reasoning_effort", 1, STRING, 0, 64, false},
    {"repetition_detection", 3, SPECIAL, 0, 0, false},
    {"repetition_penalty", 3, FLOAT, 0, 100, true},
    {"request_id", 3, STRING, 0, 128, false},
    {"response_format", 3, SPECIAL, 0, 0, false},
    {"return_prompt_text", 1, BOOL, 0, 0, false},
    {"return_token_ids", 3, BOOL, 0, 0, false},
    {"return_tokens_as_token_ids", 3, BOOL, 0, 0, false},
    {"safety_identifier", 3, IGNORED, 0, 0, false},
    {"seed", 3, INT, (double)INT64_MIN, 9223372036854774784.0, false},
    {"service_tier", 3, IGNORED, 0, 0, false},
    {"session_id", 3, IGNORED, 0, 0, false},
    {"skip_special_tokens", 3, BOOL, 0, 0, false},
    {"spaces_between_special_tokens", 3, IGNORED, 0, 0, false},
    {"stop", 3, SPECIAL, 0, 0, false},
    {"stop_token_ids", 3, SPECIAL, 0, 0, false},
    {"store", 3, BOOL, 0, 0, false},
    {"stream", 3, BOOL, 0, 0, false},
    {"stream_interval", 3, INT, 1, SL_MAX_STREAM_INTERVAL, false},
    {"stream_options", 3, SPECIAL, 0, 0, false},
    {"structured_outputs", 3, SPECIAL, 0, 0, false},
    {"stop_regex", 3, REFUSED_FILLED, 0, 0, false},
    {"custom_logit_processor", 3, REFUSED_FILLED, 0, 0, false},
    {"suffix", 2, REFUSED_FILLED, 0, 0, false},
    {"temperature", 3, FLOAT, 0, 100, false},
    {"lora_scale", 3, FLOAT, -SL_MAX_ADAPTER_SCALE, SL_MAX_ADAPTER_SCALE, false},
    {"thinking_token_budget", 1, INT, -1, INT32_MAX, false},
    {"thinking_token_budget", 2, INT, -1, -1, false}, /* more is refused: nothing is parsed */
    {"timings_per_token", 3, BOOL, 0, 0, false},
    {"tool_choice", 1, SPECIAL, 0, 0, false},
    {"tools", 1, SPECIAL, 0, 0, false},
    {"top_k", 3, INT, -1, INT32_MAX, false},
    {"top_logprobs", 1, SPECIAL, 0, 0, false},
    {"top_p", 3, FLOAT, 0, 1, true},
    {"truncate_prompt_tokens", 3, INT, -1, INT32_MAX, false},
    {"truncation_side", 3, SPECIAL, 0, 0, false},
    {"use_beam_search", 3, REFUSED_TRUE, 0, 0, false},
    {"user", 3, IGNORED, 0, 0, false},
    {"verbosity", 1, IGNORED, 0, 0, false},
    {"vllm_xargs", 3, REFUSED_FILLED, 0, 0, false},
    {"watermarking", 3, REFUSED_TRUE, 0, 0, false},
    {"web_search_options", 1, REFUSED, 0, 0, false},
};

/* Reads the fields of one body; 0 or the code, with the parameter in r. */
static int read_body(const char *body, enum sl_endpoint endpoint, struct sl_refusal *r)
{
    struct sl_params p = {0};
    struct sl_sampling defaults = {.temperature = 1, .top_p = 1, .repetition_penalty = 1, .n = 1};
    const struct sl_param_limits limits = {.n_vocab = N_VOCAB};
    json_t *root;
    memset(r, 0, sizeof *r);
    int rc = sl_json_parse_object(body, strlen(body), &root, r);
    if (rc == 0)
        rc = sl_params_parse(&p, endpoint, root, &defaults, &limits, r);
    if (rc == 0) { /* what is accepted must be usable */
        const struct sl_sampling *s = &p.sampling;
        assert_true(isfinite(s->temperature) && s->temperature >= 0);
        assert_true(s->top_p > 0 && s->top_p <= 1 && s->repetition_penalty > 0);
        assert_true(s->n >= 1 && s->n <= SL_MAX_N && s->logprobs <= SL_MAX_LOGPROBS);
        assert_true(s->n_stop <= SL_MAX_STOPS && s->n_logit_bias <= SL_MAX_LOGIT_BIAS);
    }
    sl_params_deinit(&p);
    json_decref(root);
    n_checked++;
    return rc;
}

static void check_body(const char *body, enum sl_endpoint endpoint, bool ok, const char *param)
{
    struct sl_refusal r;
    int rc = read_body(body, endpoint, &r);
    if ((rc == 0) != ok)
        fail_msg("%.200s: %s %s", body, sl_code_name(rc), r.err.msg);
    if (ok)
        return;
    int status = sl_code_http(rc);
    if (status != 400)
        fail_msg("%.200s: status %d", body, status);
    if (strcmp(r.param, param) != 0)
        fail_msg("%.200s: blames '%s' instead of '%s': %s", body, r.param, param, r.err.msg);
    if (param[0] != '\0' && strstr(r.err.msg, param) == NULL)
        fail_msg("%.200s: the message does not name %s: %s", body, param, r.err.msg);
}

static void check_value(const struct field *f, enum sl_endpoint e, const char *value, bool ok,
                        const char *param)
{
    char body[600];
    snprintf(body, sizeof body, "{\"%s\":%s}", f->name, value);
    check_body(body, e, ok, param);
}

static void check_number(const struct field *f, enum sl_endpoint e, double x)
{
    char value[64];
    bool whole = x == floor(x);
    snprintf(value, sizeof value, whole && fabs(x) < 0x1p63 ? "%.0f" : "%.17g", x);
    bool in = x >= f->min && x <= f->max && !(f->above_min && x <= f->min);
    check_value(f, e, value, in && (f->type == FLOAT || whole), f->name);
}

static void check_numbers(const struct field *f, enum sl_endpoint e)
{
    const double probes[] = {-1,         0,          1,         1.5,    1e-300,  -1e-300,
                             1e300,      -1e300,     f->min,    f->max, -2.0001, 2.0001,
                             f->max + 1, f->min - 1, 1000000.5, 1e17};
    for (size_t i = 0; i < SL_COUNT(probes); i++) {
        if (fabs(probes[i]) >= 0x1p63 && probes[i] == floor(probes[i]) && fabs(probes[i]) < 1e20)
            continue; /* beyond what JSON integers hold: the body does not parse */
        if (f->max > 1e15 && fabs(probes[i]) < 1e300 && fabs(probes[i]) > 1e15)
            continue; /* not exact as a double */
        if (f->above_min && probes[i] > 0 && probes[i] < 1e-45)
            check_value(f, e, "1e-300", false, f->name); /* zero once it is a float */
        else
            check_number(f, e, probes[i]);
    }
}

static void check_field(const struct field *f, enum sl_endpoint e)
{
    bool ignored = f->type == IGNORED;
    bool tail = f->type == REFUSED_FILLED; /* empty values say nothing */
    check_value(f, e, "null", true, "");
    check_value(f, e, "1e400", false, "");
    check_value(f, e, "-1e400", false, "");
    check_value(f, e, "NaN", false, "");
    if (f->type == SPECIAL)
        return;
    check_value(f, e, "true", f->type == BOOL || ignored, f->name);
    check_value(f, e, "false", f->type == BOOL || f->type == REFUSED_TRUE || ignored, f->name);
    check_value(f, e, "\"NaN\"", f->type == STRING || ignored, f->name);
    check_value(f, e, "\"\"",
                (f->type == STRING && strcmp(f->name, "cache_salt") != 0) || ignored || tail,
                f->name);
    check_value(f, e, "[]", ignored || tail, f->name);
    check_value(f, e, "{}", ignored || tail, f->name);
    check_value(f, e, "[1]", ignored, f->name);
    check_value(f, e, "{\"a\":1}", ignored, f->name);
    if (f->type == INT || f->type == FLOAT)
        check_numbers(f, e);
    else
        check_value(f, e, "1", ignored, f->name);
    if (f->type == STRING) {
        char value[5000];
        size_t max = (size_t)f->max;
        for (size_t n = max; n <= max + 1; n++) {
            memset(value, 'a', sizeof value);
            value[0] = value[n + 1] = '"';
            value[n + 2] = '\0';
            struct sl_buf body = {0};
            sl_buf_printf(&body, "{\"%s\":%s}", f->name, value);
            check_body(body.data, e, n <= max, f->name);
            sl_buf_deinit(&body);
        }
        check_value(f, e, "\"a\\u0000b\"", false, f->name);
    }
}

static void test_every_field(void **state)
{
    (void)state;
    for (size_t i = 0; i < SL_COUNT(fields); i++) {
        for (unsigned e = 1; e <= 2; e++) {
            if (fields[i].endpoints & e)
                check_field(&fields[i], (enum sl_endpoint)e);
        }
    }
}

/* A field that is added without a row above fails here; so does a table out of order. */
static void test_table_is_complete(void **state)
{
    (void)state;
    const char *before = "";
    for (int i = 0; i < sl_params_n_fields(); i++) {
        unsigned endpoints, seen = 0;
        const char *name = sl_params_field(i, &endpoints);
        assert_true(strcmp(before, name) < 0);
        before = name;
        endpoints &= SL_ENDPOINT_CHAT | SL_ENDPOINT_COMPLETIONS; /* of the others:
                                                                    test_hostile_protocols.c */
        for (size_t k = 0; k < SL_COUNT(fields); k++)
            seen |= strcmp(fields[k].name, name) == 0 ? fields[k].endpoints : 0;
        if (seen != endpoints)
            fail_msg("%s is for endpoints %u, tested for %u", name, endpoints, seen);
    }
}

#define C SL_ENDPOINT_CHAT
#define T SL_ENDPOINT_COMPLETIONS

#define F "{\"type\":\"function\",\"function\":{\"name\":\"f\""

static const struct {
    const char *body;
    enum sl_endpoint endpoint;
    const char *param; /* NULL = accepted */
} special_rows[] = {
    {"{\"stop\":\"a\"}", C, NULL},
    {"{\"stop\":[]}", C, NULL},
    {"{\"stop\":[\"a\",\"b\"]}", C, NULL},
    {"{\"stop\":\"\"}", C, "stop"},
    {"{\"stop\":[\"a\",\"\"]}", C, "stop"},
    {"{\"stop\":[\"a\",1]}", C, "stop"},
    {"{\"stop\":1}", C, "stop"},
    {"{\"stop\":{\"a\":1}}", C, "stop"},
    {"{\"stop\":\"a\\u0000\"}", C, "stop"},
    {"{\"stop\":[\"1\",\"2\",\"3\",\"4\",\"5\",\"6\",\"7\",\"8\",\"9\",\"a\",\"b\",\"c\","
     "\"d\",\"e\",\"f\",\"g\"]}",
     T, NULL},
    {"{\"stop\":[\"1\",\"2\",\"3\",\"4\",\"5\",\"6\",\"7\",\"8\",\"9\",\"a\",\"b\",\"c\","
     "\"d\",\"e\",\"f\",\"g\",\"h\"]}",
     T, "stop"},
    {"{\"stop_token_ids\":[0,999]}", C, NULL},
    {"{\"stop_token_ids\":[1000]}", C, "stop_token_ids"},
    {"{\"stop_token_ids\":[-1]}", C, "stop_token_ids"},
    {"{\"stop_token_ids\":[\"1\"]}", C, "stop_token_ids"},
    {"{\"stop_token_ids\":1}", C, "stop_token_ids"},
    {"{\"stop_token_ids\":[1.5]}", C, "stop_token_ids"},
    {"{\"logit_bias\":{}}", C, NULL},
    {"{\"logit_bias\":{\"0\":-100,\"999\":100}}", C, NULL},
    {"{\"logit_bias\":{\"1000\":1}}", C, "logit_bias"},
    {"{\"logit_bias\":{\"-1\":1}}", C, "logit_bias"},
    {"{\"logit_bias\":{\"a\":1}}", C, "logit_bias"},
    {"{\"logit_bias\":{\"\":1}}", C, "logit_bias"},
    {"{\"logit_bias\":{\" 1\":1}}", C, "logit_bias"},
    {"{\"logit_bias\":{\"1\":100.1}}", C, "logit_bias"},
    {"{\"logit_bias\":{\"1\":-100.1}}", C, "logit_bias"},
    {"{\"logit_bias\":{\"1\":\"1\"}}", C, "logit_bias"},
    {"{\"logit_bias\":{\"1\":null}}", C, "logit_bias"},
    {"{\"logit_bias\":[1]}", C, "logit_bias"},
    {"{\"logprobs\":true,\"top_logprobs\":20}", C, NULL},
    {"{\"logprobs\":true,\"top_logprobs\":21}", C, "top_logprobs"},
    {"{\"logprobs\":true,\"top_logprobs\":-1}", C, "top_logprobs"},
    {"{\"top_logprobs\":1}", C, "top_logprobs"},
    {"{\"top_logprobs\":0}", C, NULL},
    {"{\"logprobs\":false,\"top_logprobs\":2}", C, "top_logprobs"},
    {"{\"logprobs\":5}", C, "logprobs"},
    {"{\"logprobs\":true}", T, "logprobs"},
    {"{\"max_tokens\":0}", T, "max_tokens"},
    {"{\"max_tokens\":0,\"echo\":true}", T, NULL},
    {"{\"echo\":true,\"logprobs\":2,\"prompt_logprobs\":3}", T, NULL},
    {"{\"echo\":true,\"logprobs\":3,\"prompt_logprobs\":2}", T, NULL},
    {"{\"max_tokens\":5,\"min_tokens\":5}", C, NULL},
    {"{\"max_tokens\":5,\"min_tokens\":6}", C, "min_tokens"},
    {"{\"max_tokens\":16.0}", T, NULL},
    {"{\"stream\":true,\"stream_options\":{}}", C, NULL},
    {"{\"stream\":true,\"stream_options\":{\"include_usage\":true}}", C, NULL},
    {"{\"stream\":true,\"stream_options\":{\"include_usage\":null}}", C, NULL},
    {"{\"stream\":true,\"stream_options\":{\"include_usage\":1}}", C,
     "stream_options.include_usage"},
    {"{\"stream\":true,\"stream_options\":{\"continuous_usage_stats\":\"a\"}}", C,
     "stream_options.continuous_usage_stats"},
    {"{\"stream\":true,\"stream_options\":[]}", C, "stream_options"},
    {"{\"stream_options\":{\"include_usage\":true}}", C, "stream_options"},
    {"{\"stream\":true,\"prompt_logprobs\":1}", C, "prompt_logprobs"},
    {"{\"response_format\":{\"type\":\"text\"}}", C, NULL},
    {"{\"response_format\":{\"type\":\"json_object\"}}", C, NULL},
    {"{\"response_format\":{\"type\":\"json_object\",\"schema\":{}}}", T, NULL},
    {"{\"response_format\":{\"type\":\"json_object\",\"schema\":1}}", T, "response_format.schema"},
    {"{\"response_format\":{\"type\":\"json_schema\"}}", C, "response_format.json_schema.schema"},
    {"{\"response_format\":{\"type\":\"json_schema\",\"json_schema\":{}}}", C,
     "response_format.json_schema.schema"},
    {"{\"response_format\":{\"type\":\"json_schema\",\"json_schema\":[]}}", C,
     "response_format.json_schema"},
    {"{\"response_format\":{\"type\":\"json_schema\",\"json_schema\":{\"name\":\"a\",\"strict\":"
     "true,"
     "\"schema\":{\"type\":\"object\"}}}}",
     C, NULL},
    {"{\"response_format\":{\"type\":\"structural_tag\",\"structures\":[],\"triggers\":[]}}", C,
     NULL},
    {"{\"response_format\":{\"type\":\"xml\"}}", C, "response_format.type"},
    {"{\"structured_outputs\":{\"json\":{}}}", C, NULL},
    {"{\"structured_outputs\":{\"json\":\"{}\"}}", C, NULL},
    {"{\"structured_outputs\":{\"json\":[]}}", C, "structured_outputs.json"},
    {"{\"structured_outputs\":{\"regex\":\"a\"}}", T, NULL},
    {"{\"structured_outputs\":{\"regex\":1}}", T, "structured_outputs.regex"},
    {"{\"structured_outputs\":{\"choice\":[\"a\"]}}", T, NULL},
    {"{\"structured_outputs\":{\"choice\":\"a\"}}", T, "structured_outputs.choice"},
    {"{\"structured_outputs\":{\"grammar\":\"root ::= x\"}}", T, NULL},
    {"{\"structured_outputs\":{\"grammar\":{}}}", T, "structured_outputs.grammar"},
    {"{\"structured_outputs\":{\"json_object\":true}}", T, NULL},
    {"{\"structured_outputs\":{\"json_object\":false}}", T, "structured_outputs"},
    {"{\"structured_outputs\":{\"json_object\":1}}", T, "structured_outputs.json_object"},
    {"{\"structured_outputs\":{\"structural_tag\":\"{}\"}}", T, NULL},
    {"{\"structured_outputs\":{\"structural_tag\":1}}", T, "structured_outputs.structural_tag"},
    {"{\"structured_outputs\":{\"json\":{},\"disable_any_whitespace\":true}}", T, NULL},
    {"{\"structured_outputs\":{\"json\":{},\"disable_any_whitespace\":1}}", T,
     "structured_outputs.disable_any_whitespace"},
    {"{\"structured_outputs\":{\"json\":{},\"disable_fallback\":true,\"regex\":null}}", T, NULL},
    {"{\"structured_outputs\":{\"json\":{},\"whitespace_pattern\":\" \"}}", T, NULL},
    {"{\"structured_outputs\":{\"json\":{},\"whitespace_pattern\":1}}", T,
     "structured_outputs.whitespace_pattern"},
    {"{\"structured_outputs\":{\"json\":{},\"whitespace_pattern\":\" \","
     "\"disable_any_whitespace\":true}}",
     T, "structured_outputs.whitespace_pattern"},
    {"{\"guided_whitespace_pattern\":\"\",\"structured_outputs\":{\"json\":{},"
     "\"disable_any_whitespace\":true}}",
     T, "structured_outputs.disable_any_whitespace"},
    {"{\"guided_whitespace_pattern\":\"\",\"structured_outputs\":{\"json\":{},"
     "\"whitespace_pattern\":\"\"}}",
     T, "structured_outputs.whitespace_pattern"},
    {"{\"guided_whitespace_pattern\":\" ?\",\"structured_outputs\":{\"json\":{},"
     "\"disable_any_whitespace\":false,\"whitespace_pattern\":null}}",
     T, NULL},
    {"{\"guided_json\":{},\"guided_whitespace_pattern\":\" ?\"}", T, NULL},
    {"{\"guided_json\":{},\"guided_whitespace_pattern\":[]}", T, "guided_whitespace_pattern"},
    {"{\"structured_outputs\":{\"json\":{},\"disable_additional_properties\":true}}", T, NULL},
    {"{\"structured_outputs\":{\"json\":{},\"disable_additional_properties\":\"no\"}}", T,
     "structured_outputs.disable_additional_properties"},
    {"{\"structured_outputs\":{\"json\":{},\"regex\":\"a\"}}", T, "structured_outputs.regex"},
    {"{\"structured_outputs\":{}}", T, "structured_outputs"},
    {"{\"structured_outputs\":{\"disable_any_whitespace\":true}}", C, "structured_outputs"},
    {"{\"tools\":[" F "}}],\"structured_outputs\":{\"disable_any_whitespace\":true}}", C, NULL},
    {"{\"tools\":[" F "}}],\"structured_outputs\":{}}", C, "structured_outputs"},
    {"{\"structured_outputs\":\"a\"}", T, "structured_outputs"},
    {"{\"guided_json\":{}}", C, NULL},
    {"{\"guided_json\":\"{}\"}", C, NULL},
    {"{\"guided_json\":1}", C, "guided_json"},
    {"{\"guided_regex\":\"a\"}", C, NULL},
    {"{\"regex\":[]}", C, "regex"},
    {"{\"ebnf\":{}}", T, "ebnf"},
    {"{\"structural_tag\":[]}", C, "structural_tag"},
    {"{\"guided_json_object\":true,\"ebnf\":\"a\"}", T, "guided_json_object"},
    {"{\"seed\":9223372036854775808}", C, "seed"},
    {"{\"max_tokens\":-99999999999999999999999}", T, "max_tokens"},
    {"{\"guided_regex\":[]}", C, "guided_regex"},
    {"{\"guided_choice\":[\"a\"]}", C, NULL},
    {"{\"guided_choice\":{}}", C, "guided_choice"},
    {"{\"guided_grammar\":\"root ::= x\"}", C, NULL},
    {"{\"guided_grammar\":true}", C, "guided_grammar"},
    {"{\"grammar\":\"root ::= x\"}", T, NULL},
    {"{\"grammar\":\"\"}", T, NULL},
    {"{\"grammar\":{}}", T, "grammar"},
    {"{\"json_schema\":{}}", T, NULL},
    {"{\"json_schema\":7}", T, "json_schema"},
    {"{\"grammar\":\"\",\"json_schema\":{}}", T, NULL},
    {"{\"grammar\":\"a\",\"json_schema\":{}}", T, "json_schema"},
    {"{\"guided_json\":{},\"guided_regex\":\"a\"}", T, "guided_regex"},
    {"{\"response_format\":{\"type\":\"json_object\"},\"structured_outputs\":{\"regex\":\"a\"}}", T,
     "structured_outputs.regex"},
    {"{\"response_format\":{\"type\":\"text\"},\"guided_regex\":\"a\"}", T, NULL},
    {"{\"response_format\":{\"type\":1}}", C, "response_format.type"},
    {"{\"response_format\":{}}", C, "response_format.type"},
    {"{\"response_format\":\"text\"}", C, "response_format"},
    {"{\"tools\":[]}", C, NULL},
    {"{\"tools\":{}}", C, "tools"},
    {"{\"tools\":[1]}", C, "tools[0]"},
    {"{\"tools\":[{}]}", C, "tools[0].function"},
    {"{\"tools\":[{\"type\":\"function\",\"function\":{\"name\":\"f\"}}]}", C, NULL},
    {"{\"tool_choice\":\"none\"}", C, NULL},
    {"{\"tool_choice\":\"auto\"}", C, NULL},
    {"{\"tool_choice\":\"required\"}", C, "tool_choice"},
    {"{\"tool_choice\":{\"type\":\"function\"}}", C, "tool_choice.function"},
    {"{\"tool_choice\":\"x\"}", C, "tool_choice"},
    {"{\"tool_choice\":1}", C, "tool_choice"},
    {"{\"modalities\":[\"text\"]}", C, NULL},
    {"{\"modalities\":[\"text\",\"audio\"]}", C, "modalities"},
    {"{\"modalities\":\"text\"}", C, "modalities"},
    {"{\"chat_template\":\"x\"}", C, "chat_template"},
    {"{\"chat_template_kwargs\":{\"a\":1}}", C, NULL},
    {"{\"chat_template_kwargs\":[]}", C, "chat_template_kwargs"},
    {"{\"documents\":[]}", C, NULL},
    {"{\"documents\":1}", C, "documents"},
    {"{\"continue_final_message\":true}", C, "continue_final_message"},
    {"{\"continue_final_message\":true,\"add_generation_prompt\":false}", C, NULL},
    {"{\"continue_final_message\":1}", C, "continue_final_message"},
    {"{\"tools\":[{\"type\":\"function\",\"function\":{}}],\"tool_choice\":\"none\"}", C,
     "tools[0].function"},
    {"{\"tools\":[" F "}}],\"tool_choice\":\"required\"}", C, NULL},
    {"{\"tools\":[" F "}}],\"tool_choice\":" F "}}}", C, NULL},
    {"{\"tools\":[" F "}}],\"tool_choice\":{\"type\":\"function\",\"function\":{\"name\":\"g\"}}}",
     C, "tool_choice.function"},
    {"{\"tools\":[" F "}}],\"tool_choice\":{\"type\":\"function\"}}", C, "tool_choice.function"},
    {"{\"tools\":[" F "}}],\"tool_choice\":{\"type\":\"custom\"}}", C, "tool_choice.custom"},
    {"{\"tools\":[" F "}}],\"tool_choice\":{}}", C, "tool_choice.type"},
    {"{\"tools\":[" F "}},{\"type\":\"web_search\"}]}", C, "tools[1]"},
    {"{\"tools\":[" F "}},{\"type\":1}]}", C, "tools[1]"},
    {"{\"tools\":[" F "}}," F "}}]}", C, "tools[1].function"},
    {"{\"tools\":[" F ",\"parameters\":[]}}]}", C, "tools[0].function.parameters"},
    {"{\"tools\":[" F ",\"parameters\":{\"a\":1}}}]}", C, NULL},
    {"{\"tools\":[" F ",\"strict\":1}}]}", C, "tools[0].function.strict"},
    {"{\"tools\":[" F ",\"strict\":true}}]}", C, NULL},
    {"{\"tools\":[" F ",\"strict\":null,\"parameters\":null}}]}", C, NULL},
    {"{\"tools\":[" F ",\"description\":{}}}]}", C, "tools[0].function.description"},
    {"{\"tools\":[{\"type\":\"function\",\"function\":{\"name\":\"a b\"}}]}", C,
     "tools[0].function.name"},
    {"{\"tools\":[{\"type\":\"function\",\"function\":{\"name\":\"\"}}]}", C,
     "tools[0].function.name"},
    {"{\"tools\":[{\"type\":\"function\",\"function\":{\"name\":1}}]}", C,
     "tools[0].function.name"},
    {"{\"best_of\":2}", T, NULL},
    {"{\"best_of\":2}", C, "best_of"},
    {"{\"best_of\":2,\"n\":3}", T, "best_of"},
    {"{\"best_of\":2,\"n\":2,\"stream\":true}", T, NULL},
    {"{\"best_of\":2,\"stream\":true}", T, "best_of"},
    {"{\"allowed_token_ids\":[0,99]}", C, NULL},
    {"{\"allowed_token_ids\":[]}", C, "allowed_token_ids"},
    {"{\"allowed_token_ids\":[1000]}", C, "allowed_token_ids"},
    {"{\"allowed_token_ids\":{}}", C, "allowed_token_ids"},
    {"{\"bad_words\":[\"a\",\" b c\"]}", C, NULL},
    {"{\"bad_words\":[]}", C, NULL},
    {"{\"bad_words\":\"a\"}", C, "bad_words"},
    {"{\"bad_words\":[\"  \"]}", C, "bad_words"},
    {"{\"bad_words\":[\"a\\u0000\"]}", C, "bad_words"},
    {"{\"logprob_token_ids\":[1,2]}", C, "logprob_token_ids"},
    {"{\"logprob_token_ids\":[1,2]}", T, "logprob_token_ids"},
    {"{\"logprob_token_ids\":[1,2],\"logprobs\":0}", T, NULL},
    {"{\"logprob_token_ids\":[1,2],\"logprobs\":true}", C, NULL},
    {"{\"logprob_token_ids\":[],\"logprobs\":true}", C, "logprob_token_ids"},
    {"{\"repetition_detection\":{}}", C, NULL},
    {"{\"repetition_detection\":{\"max_pattern_size\":3,\"min_count\":2}}", C, NULL},
    {"{\"repetition_detection\":{\"max_pattern_size\":3}}", C, "repetition_detection"},
    {"{\"repetition_detection\":{\"min_pattern_size\":3}}", C, "repetition_detection"},
    {"{\"repetition_detection\":{\"max_pattern_size\":1025,\"min_count\":2}}", C,
     "repetition_detection"},
    {"{\"repetition_detection\":{\"max\":3}}", C, "repetition_detection"},
    {"{\"repetition_detection\":3}", C, "repetition_detection"},
    {"{\"truncation_side\":\"left\"}", C, NULL},
    {"{\"truncation_side\":\"right\"}", T, NULL},
    {"{\"truncation_side\":\"middle\"}", T, "truncation_side"},
    {"{\"truncation_side\":\"\"}", T, "truncation_side"},
    {"{\"echo\":true,\"stream\":true,\"prompt_logprobs\":1}", C, "prompt_logprobs"},
    {"{\"echo\":true,\"stream\":true,\"prompt_logprobs\":1}", T, NULL},
    {"{\"request_id\":\"a b\"}", T, "request_id"},
    {"{\"request_id\":\"a\\n\"}", T, "request_id"},
    {"{\"request_id\":\"\xc3\xa9\"}", T, "request_id"},
    {"{\"never_heard_of\":{\"a\":[1]}}", C, NULL},
    {"{\"prompt\":\"x\"}", C, NULL}, /* not a field of conversations: ignored */
    {"{\"messages\":1}", T, NULL},
};

static void test_special_fields(void **state)
{
    (void)state;
    for (size_t i = 0; i < SL_COUNT(special_rows); i++)
        check_body(special_rows[i].body, special_rows[i].endpoint, special_rows[i].param == NULL,
                   special_rows[i].param);
}

static void test_list_limits(void **state)
{
    (void)state;
    struct sl_buf b = {0};
    for (int over = 0; over <= 1; over++) {
        sl_buf_clear(&b);
        sl_buf_puts(&b, "{\"stop_token_ids\":[0");
        for (int i = 1; i < SL_MAX_STOP_IDS + over; i++)
            sl_buf_puts(&b, ",1");
        sl_buf_puts(&b, "]}");
        check_body(b.data, SL_ENDPOINT_CHAT, !over, "stop_token_ids");
        sl_buf_clear(&b);
        sl_buf_puts(&b, "{\"logit_bias\":{\"0\":1");
        for (int i = 1; i < SL_MAX_LOGIT_BIAS + over; i++) /* leading zeros make keys differ */
            sl_buf_printf(&b, ",\"%0*d\":1", i / 500 + 4, i % 500 + 1);
        sl_buf_puts(&b, "}}");
        check_body(b.data, SL_ENDPOINT_CHAT, !over, "logit_bias");
        sl_buf_clear(&b);
        sl_buf_puts(&b, "{\"stop\":\"");
        for (int i = 0; i < SL_MAX_STOP_BYTES + over; i++)
            sl_buf_putc(&b, 's');
        sl_buf_puts(&b, "\"}");
        check_body(b.data, SL_ENDPOINT_CHAT, !over, "stop");
    }
    sl_buf_deinit(&b);
}

/* A message of the engine names its field first; then that field is at fault. */
static void test_blame(void **state)
{
    (void)state;
    static const char name[] = "abcdefghijklmnopqrstuvwxyz_abcdefghijklmnopqrstuvwxyz_abcdefghijk";
    static const struct {
        const char *message, *param;
    } rows[] = {
        {"temperature must be a number", "temperature"},
        {"stop[3] must have 1 to 256 bytes", "stop"},
        {"prompt", "prompt"},
        {"42 tokens", ""},
        {"", ""},
        {"out of memory", ""},
        {"temperatures", ""},
        {name, ""},
    };
    for (size_t i = 0; i < SL_COUNT(rows); i++) {
        struct sl_refusal r = {0};
        (void)sl_fail(&r.err, SL_EINVAL, "%s", rows[i].message);
        sl_params_blame(&r);
        assert_string_equal(r.param, rows[i].param);
        n_checked++;
    }
}

static int fails_at, n_allocs;

static void *failing_alloc(size_t n)
{
    return ++n_allocs == fails_at ? NULL : sl_sys_real.alloc(n);
}

/* Lists need memory of their own: none of it may fail without a word. */
static void test_lists_without_memory(void **state)
{
    (void)state;
    static struct sl_sys failing;
    static const char *const bodies[] = {"{\"stop\":[\"a\",\"b\"]}", "{\"stop_token_ids\":[1,2]}",
                                         "{\"logit_bias\":{\"1\":1}}"};
    static const char *const params[] = {"stop", "stop_token_ids", "logit_bias"};
    const struct sl_param_limits limits = {.n_vocab = N_VOCAB};
    struct sl_sampling defaults;
    sl_sampling_default(&defaults);
    failing = sl_sys_real;
    failing.alloc = failing_alloc;
    for (size_t i = 0; i < SL_COUNT(bodies); i++) {
        struct sl_refusal r = {0};
        struct sl_params p;
        json_t *root;
        assert_int_equal(sl_json_parse_object(bodies[i], strlen(bodies[i]), &root, &r), 0);
        n_allocs = 0;
        fails_at = 1;
        sl_sys = &failing;
        int rc = sl_params_parse(&p, SL_ENDPOINT_COMPLETIONS, root, &defaults, &limits, &r);
        sl_sys = &sl_sys_real;
        assert_int_equal(rc, SL_ENOMEM);
        assert_string_equal(r.param, params[i]);
        sl_params_deinit(&p);
        json_decref(root);
        n_checked++;
    }
}

/* ---- messages */

static void test_messages(void **state)
{
    (void)state;
    static const struct {
        const char *text, *param, *after; /* param NULL = accepted */
    } rows[] = {
        {"[{\"role\":\"user\",\"content\":\"a\"}]", NULL, "a"},
        {"[{\"role\":\"user\",\"content\":\"\"}]", NULL, ""},
        {"[{\"role\":\"user\",\"content\":[]}]", NULL, ""},
        {"[{\"role\":\"user\",\"content\":[{\"type\":\"text\",\"text\":\"a\"}]}]", NULL, "a"},
        {"[{\"role\":\"user\",\"content\":[{\"type\":\"text\",\"text\":\"a\"},"
         "{\"type\":\"text\",\"text\":\"b\"}]}]",
         NULL, "a\nb"},
        {"[{\"role\":\"assistant\",\"content\":null}]", NULL, ""},
        {"[{\"role\":\"assistant\"}]", NULL, ""},
        {"[{\"role\":\"user\"}]", "messages[0].content", NULL},
        {"[{\"role\":\"user\",\"content\":null}]", "messages[0].content", NULL},
        {"[{\"role\":\"user\",\"content\":1}]", "messages[0].content", NULL},
        {"[{\"role\":\"user\",\"content\":{\"a\":1}}]", "messages[0].content", NULL},
        {"[{\"role\":\"user\",\"content\":[1]}]", "messages[0].content", NULL},
        {"[{\"role\":\"user\",\"content\":[{\"type\":\"image_url\",\"image_url\":{}}]}]",
         "messages[0].content", NULL},
        {"[{\"role\":\"user\",\"content\":[{\"type\":\"text\"}]}]", "messages[0].content", NULL},
        {"[{\"role\":\"user\",\"content\":[{\"text\":\"a\"}]}]", "messages[0].content", NULL},
        {"[{\"content\":\"a\"}]", "messages[0].role", NULL},
        {"[{\"role\":1,\"content\":\"a\"}]", "messages[0].role", NULL},
        {"[{\"role\":\"\",\"content\":\"a\"}]", "messages[0].role", NULL},
        {"[{\"role\":\"user\",\"content\":\"a\"},1]", "messages[1]", NULL},
        {"[null]", "messages[0]", NULL},
        {"[]", "messages", NULL},
        {"{}", "messages", NULL},
        {"\"a\"", "messages", NULL},
        {"[{\"role\":\"assistant\",\"tool_calls\":1}]", "messages[0].tool_calls", NULL},
        {"[{\"role\":\"assistant\",\"tool_calls\":[1]}]", "messages[0].tool_calls", NULL},
        {"[{\"role\":\"assistant\",\"tool_calls\":[{\"function\":{\"name\":\"f\","
         "\"arguments\":\"{\\\"x\\\":1}\"}}]}]",
         NULL, ""},
    };
    for (size_t i = 0; i < SL_COUNT(rows); i++) {
        struct sl_refusal r = {0};
        json_t *v = json_loads(rows[i].text, JSON_DECODE_ANY, NULL);
        assert_non_null(v);
        int rc = sl_messages_normalise(v, false, &r);
        if ((rc == 0) != (rows[i].param == NULL) || (rc != 0 && strcmp(r.param, rows[i].param)))
            fail_msg("%s: %s '%s' %s", rows[i].text, sl_code_name(rc), r.param, r.err.msg);
        if (rc == 0)
            assert_string_equal(json_string_value(json_object_get(json_array_get(v, 0), "content")),
                                rows[i].after);
        json_decref(v);
        n_checked++;
    }
}

static void test_arguments_are_opened(void **state)
{
    (void)state;
    struct sl_refusal r = {0};
    json_t *v = json_loads("[{\"role\":\"assistant\",\"tool_calls\":[{\"function\":{\"arguments\":"
                           "\"{\\\"x\\\":1}\"}},{\"function\":{\"arguments\":\"not json\"}}]}]",
                           0, NULL);
    assert_int_equal(sl_messages_normalise(v, false, &r), 0);
    const json_t *calls = json_object_get(json_array_get(v, 0), "tool_calls");
    const json_t *a =
        json_object_get(json_object_get(json_array_get(calls, 0), "function"), "arguments");
    const json_t *b =
        json_object_get(json_object_get(json_array_get(calls, 1), "function"), "arguments");
    assert_int_equal(json_integer_value(json_object_get(a, "x")), 1);
    assert_string_equal(json_string_value(b), "not json");
    json_decref(v);
}

static void test_enough_cases(void **state)
{
    (void)state;
    print_message("%d bodies checked\n", n_checked);
    assert_true(n_checked >= 650);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_json),           cmocka_unit_test(test_depth),
        cmocka_unit_test(test_huge_key),       cmocka_unit_test(test_suite),
        cmocka_unit_test(test_every_field),    cmocka_unit_test(test_table_is_complete),
        cmocka_unit_test(test_special_fields), cmocka_unit_test(test_list_limits),
        cmocka_unit_test(test_messages),       cmocka_unit_test(test_arguments_are_opened),
        cmocka_unit_test(test_blame),          cmocka_unit_test(test_lists_without_memory),
        cmocka_unit_test(test_enough_cases),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
