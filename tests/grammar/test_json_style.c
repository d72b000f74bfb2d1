/* SPDX-License-Identifier: MIT
 * test_json_style.c - how constrained JSON is written: whitespace, objects that are closed unless
 * they say otherwise, whole numbers; and the options for each.
 */
#include "grammar_rig.h"

#define ANY_SPACE "[ \\t\\r\\n]*"
#define OPEN                          \
    {                                 \
        .additional_properties = true \
    }

static const char two[] = "{\"type\":\"object\",\"properties\":{\"a\":{\"type\":\"integer\"},\"b\":"
                          "{\"type\":\"array\",\"items\":{\"type\":\"integer\"}}},"
                          "\"required\":[\"a\"]}";

static const struct {
    struct sl_json_style style;
    const char *schema, *yes[8], *no[10];
} table[] = {
    /* what json.dumps writes, with and without indent, and other printers */
    {{0},
     two,
     {"{\"a\":1,\"b\":[1,2]}", "{\"a\": 1, \"b\": [1, 2]}", "{ \"a\" : 1, \"b\": [ ] }",
      "{\n  \"a\": 1,\n  \"b\": [\n    1,\n    2\n  ]\n}",
      "{\n\t\"b\": [\n\t\t1\n\t],\n\t\"a\": 1\n}",
      "{\n    \"a\": 1,\n    \"b\": [\n        1\n    ]\n}", "{\"a\":1 , \"b\":[]}"},
     {"{  \"a\":1}", "{\n\n\"a\":1}", "{\n     \"a\":1}", "{\t\"a\":1}", "{\"a\":\n1}",
      "{\"a\"\n:1}", "{\"a\":1\n,\"b\":[]}", "{\"a\":1\n     }", "{\"b\":[\n         1],\"a\":1}",
      "{\n \t\"a\":1}"}},
    {{.whitespace = ""},
     two,
     {"{\"a\":1,\"b\":[1,2]}"},
     {"{\"a\": 1}", "{\n\"a\":1}", "{\"a\":1 }"}},
    {{.whitespace = "[ \\n]?"},
     two,
     {"{\"a\":1,\"b\":[1,2]}", "{\n\"a\": 1 }", "{\"a\"\n:\n1\n,\n\"b\":[]}"},
     {"{  \"a\":1}", "{\t\"a\":1}"}},
    {{.whitespace = " "}, two, {"{ \"a\" : 1 }"}, {"{\"a\":1}", "{ \"a\": 1 }"}},
    {{.whitespace = "\\s*"}, two, {"{\r\n\n\n   \"a\"\t:\n1}"}, {"{\xC2\xA0\"a\":1}"}},
    {{.whitespace = ANY_SPACE},
     two,
     {"{\r\n\n\n      \"a\"\t:\n1\n,\"b\"\n: [\n]   }"},
     {"{\"a\":1\v}"}},

    /* closed: the names that are known */
    {{0}, two, {"{\"a\":1}"}, {"{\"a\":1,\"c\":2}", "{}", "{\"b\":[]}"}},
    {OPEN, two, {"{\"a\":1}", "{\"a\":1,\"c\":2}"}, {"{}", "{\"c\":2}"}},
    {{0}, "{\"type\":\"object\"}", {"{}", "{\"x\":{\"y\":[1]}}"}, {"[]"}},
    {{0}, "{\"type\":\"object\",\"properties\":{}}", {"{}"}, {"{\"x\":1}"}},
    {{0},
     "{\"type\":\"object\",\"properties\":{\"a\":{}},\"additionalProperties\":{\"type\":\"null\"}}",
     {"{\"a\":1}", "{\"z\":null}"},
     {"{\"z\":1}"}},
    {{0},
     "{\"type\":\"object\",\"properties\":{\"a\":{}},\"additionalProperties\":true}",
     {"{\"z\":1}"},
     {"[]"}},
    {{0},
     "{\"type\":\"object\",\"properties\":{\"a\":{}},\"unevaluatedProperties\":true}",
     {"{\"z\":1}"},
     {"[]"}},
    {{0},
     "{\"type\":\"object\",\"patternProperties\":{\"^x\":{\"type\":\"integer\"}}}",
     {"{}", "{\"x1\":1}"},
     {"{\"y\":1}", "{\"x1\":\"\"}"}},
    /* a name that is only required */
    {{0},
     "{\"type\":\"object\",\"properties\":{\"a\":{}},\"required\":[\"b\"]}",
     {"{\"b\":{\"c\":1}}", "{\"a\":1,\"b\":2}"},
     {"{\"a\":1}", "{\"b\":1,\"c\":1}"}},
    {{0}, "{\"type\":\"object\",\"required\":[\"b\"]}", {"{\"b\":1,\"c\":1}"}, {"{}"}},
    /* more members than names: a map */
    {{0},
     "{\"type\":\"object\",\"properties\":{\"a\":{}},\"minProperties\":2}",
     {"{\"a\":1,\"b\":2}"},
     {"{\"a\":1}"}},
    /* all that is said of one value counts together */
    {{0},
     "{\"allOf\":[{\"properties\":{\"a\":{\"type\":\"integer\"}}},{\"properties\":{\"b\":{}}}],"
     "\"properties\":{\"c\":{}},\"type\":\"object\"}",
     {"{\"a\":1,\"b\":2,\"c\":3}", "{}"},
     {"{\"d\":1}", "{\"a\":\"\"}"}},
    {{0},
     "{\"$defs\":{\"p\":{\"type\":\"object\",\"properties\":{\"a\":{}}}},\"allOf\":[{\"$ref\":"
     "\"#/$defs/p\"},{\"properties\":{\"b\":{\"$ref\":\"#/$defs/p\"}}}]}",
     {"{\"a\":1,\"b\":{\"a\":1}}"},
     {"{\"b\":{\"b\":1}}", "{\"c\":1}"}},
    {{0},
     "{\"anyOf\":[{\"type\":\"object\",\"properties\":{\"a\":{}}},{\"type\":\"object\","
     "\"properties\":{\"b\":{}}},{\"type\":\"null\"}]}",
     {"{\"a\":1}", "{\"b\":1}", "null"},
     {"{\"a\":1,\"b\":1}", "{\"c\":1}"}},
    {{0},
     "{\"type\":\"object\",\"properties\":{\"k\":{}},\"oneOf\":[{\"properties\":{\"k\":{\"const\":"
     "1},\"a\":{}},\"required\":[\"k\"]},{\"properties\":{\"k\":{\"const\":2},\"b\":{}},"
     "\"required\":[\"k\"]}]}",
     {"{\"k\":1,\"a\":0}", "{\"b\":0,\"k\":2}"},
     {"{\"k\":1,\"b\":0}", "{\"k\":2,\"a\":0}", "{\"k\":1,\"z\":0}", "{\"k\":3}"}},
    /* open, both alternatives hold, and so oneOf does not; closing must not change that */
    {{0},
     "{\"oneOf\":[{\"type\":\"object\",\"properties\":{\"a\":{}}},{\"type\":\"object\","
     "\"properties\":{\"b\":{}}}]}",
     {NULL},
     {"{\"a\":1}", "{\"b\":1}", "{}"}},
    {{0},
     "{\"type\":\"object\",\"properties\":{\"a\":{}},\"if\":{\"properties\":{\"a\":{\"const\":1}},"
     "\"required\":[\"a\"]},\"then\":{\"properties\":{\"b\":{}},\"required\":[\"b\"]}}",
     {"{\"a\":2}", "{\"a\":1,\"b\":1}", "{}"},
     {"{\"a\":1}", "{\"a\":2,\"b\":1}", "{\"a\":1,\"b\":1,\"c\":1}"}},
    {{0},
     "{\"type\":\"object\",\"properties\":{\"a\":{},\"b\":{}},\"not\":{\"properties\":{\"a\":"
     "{\"const\":1}},\"required\":[\"a\"]}}",
     {"{\"a\":2,\"b\":1}", "{}"},
     {"{\"a\":1,\"b\":1}", "{\"c\":1}"}},
    {{0}, /* draft 7: nothing beside $ref */
     "{\"$schema\":\"http://json-schema.org/draft-07/schema#\",\"definitions\":{\"p\":{\"type\":"
     "\"object\",\"properties\":{\"a\":{}}}},\"$ref\":\"#/definitions/"
     "p\",\"properties\":{\"q\":{}}}",
     {"{\"a\":1}"},
     {"{\"q\":1}"}},

    /* whole numbers */
    {{0}, "{\"type\":\"integer\"}", {"28", "-7", "0"}, {"28.0", "28.000", "2e1", "01", "-0"}},
    {{.whole_floats = true}, "{\"type\":\"integer\"}", {"28", "28.0", "28.000"}, {"28.5"}},
    {{0}, "{\"type\":[\"integer\",\"null\"],\"minimum\":3}", {"3", "null"}, {"3.0", "2"}},
    {{0}, "{\"type\":\"integer\",\"multipleOf\":4}", {"8", "-12"}, {"8.0", "6"}},
    {{0}, "{\"type\":\"number\"}", {"28", "28.0", "2.5e3"}, {"+1"}},
    {{0}, "{\"enum\":[1,2.5,0,-3.0]}", {"1", "2.5", "0", "-3"}, {"1.0", "2.50", "-0", "-3.00"}},
    {{.whole_floats = true}, "{\"const\":1}", {"1", "1.0"}, {"1.5"}},
};

static struct sl_grammar *compile(size_t i, const struct sl_vocab *v)
{
    struct sl_grammar_spec spec = {.kind = SL_GRAMMAR_JSON_SCHEMA,
                                   .text = table[i].schema,
                                   .n = strlen(table[i].schema),
                                   .style = table[i].style};
    struct sl_grammar *g = NULL;
    struct sl_error err;
    int rc = sl_grammar_compile(&spec, v, &g, &err);
    if (rc != 0 && (table[i].yes[0] != NULL || strstr(err.msg, "no text satisfies it") == NULL))
        fail_msg("%s: %s", table[i].schema, err.msg);
    return g;
}

static void test_table(void **state)
{
    (void)state;
    for (size_t i = 0; i < SL_COUNT(table); i++) {
        struct sl_grammar *g = compile(i, NULL);
        for (size_t k = 0; k < SL_COUNT(table[i].yes) && table[i].yes[k] != NULL; k++)
            if (!rig_matches(g, table[i].yes[k]))
                fail_msg("row %zu, %s\n does not match '%s'", i, table[i].schema, table[i].yes[k]);
        for (size_t k = 0; k < SL_COUNT(table[i].no) && table[i].no[k] != NULL && g != NULL; k++)
            if (rig_matches(g, table[i].no[k]))
                fail_msg("row %zu, %s\n matches '%s'", i, table[i].schema, table[i].no[k]);
        sl_grammar_destroy(g);
    }
}

/* A model that writes whitespace wherever it may, and of the rest what ends a value, ends. */
static void test_no_running_away(void **state)
{
    (void)state;
    static const char *const schemas[] = {
        two,
        "{\"type\":\"array\",\"minItems\":3,\"items\":{\"type\":\"array\",\"minItems\":2,"
        "\"items\":{\"enum\":[1,true]}}}",
        "{\"type\":\"object\",\"properties\":{\"a\":{\"type\":\"object\",\"properties\":{\"b\":"
        "{\"type\":\"string\"}},\"required\":[\"b\"]}},\"required\":[\"a\"]}",
    };
    struct sl_vocab *v = rig_vocab();
    uint32_t mask[(RIG_TOKENS + 31) / 32];
    for (size_t i = 0; i < SL_COUNT(schemas); i++) {
        struct sl_grammar *g = rig_compile(SL_GRAMMAR_JSON_SCHEMA, schemas[i], v);
        struct sl_matcher *m;
        struct sl_error err;
        uint32_t n_space = 0;
        bool in_string = false;
        assert_int_equal(sl_matcher_create(g, 400, &m, &err), 0);
        while (!sl_matcher_complete(m) && sl_matcher_n_tokens(m) < 400) {
            const char *want = in_string ? "\"" : "\n\t }]\"";
            int32_t pick = -1;
            bool ok = false;
            assert_int_equal(sl_matcher_mask(m, mask, &err), 0);
            for (const char *c = want; *c != 0 && pick < 0; c++)
                if ((mask[*c / 32] >> (*c & 31) & 1) != 0)
                    pick = *c;
            for (int32_t b = 0; b < 256 && pick < 0; b++)
                if ((mask[b / 32] >> (b & 31) & 1) != 0)
                    pick = b;
            assert_true(pick >= 0);
            in_string ^= pick == '"';
            n_space += pick == '\n' || pick == '\t' || pick == ' ';
            assert_int_equal(sl_matcher_accept(m, pick, &ok, &err), 0);
            assert_true(ok);
        }
        if (!sl_matcher_complete(m) || n_space > 40)
            fail_msg("%s: %u of %u tokens are whitespace", schemas[i], n_space,
                     sl_matcher_n_tokens(m));
        sl_matcher_destroy(m);
        sl_grammar_destroy(g);
    }
    sl_vocab_destroy(v);
}

static void test_refused_patterns(void **state)
{
    (void)state;
    static const struct {
        const char *pattern, *says;
    } bad[] = {{"[ x]*", "other text than whitespace"},
               {"\\u00A0", "no whitespace of JSON"},
               {"( ", "')'"},
               {"[^\\s\\S]", "no whitespace of JSON"}};
    for (size_t i = 0; i < SL_COUNT(bad); i++) {
        struct sl_grammar_spec spec = {.kind = SL_GRAMMAR_JSON_OBJECT,
                                       .style = {.whitespace = bad[i].pattern}};
        struct sl_grammar *g = NULL;
        struct sl_error err = {0};
        assert_int_equal(sl_grammar_compile(&spec, NULL, &g, &err), SL_EINVAL);
        if (strstr(err.msg, bad[i].says) == NULL || strstr(err.msg, "whitespace_pattern") == NULL)
            fail_msg("%s: %s", bad[i].pattern, err.msg);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_table),
        cmocka_unit_test(test_no_running_away),
        cmocka_unit_test(test_refused_patterns),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
