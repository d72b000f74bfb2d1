/* SPDX-License-Identifier: MIT
 * test_hostile_grammar.c - grammars that bring engines down: each is refused with a message or
 * served, in bounded time and memory, and another grammar is not the worse for it.
 */
#include "base/buf.h"
#include "grammar_rig.h"

static void repeat(struct sl_buf *b, const char *s, int n)
{
    for (int i = 0; i < n; i++)
        sl_buf_puts(b, s);
}

/* Each makes a text; what is made of it is up to the engine, but not how long it takes. */
static void nested_groups(struct sl_buf *b)
{
    repeat(b, "(", 60000);
}

static void many_values(struct sl_buf *b)
{
    sl_buf_puts(b, "{\"enum\":[");
    for (int i = 0; i < 100000; i++)
        sl_buf_printf(b, "%s\"value %d\"", i > 0 ? "," : "", i * 7919);
    sl_buf_puts(b, "]}");
}

static void many_numbers(struct sl_buf *b)
{
    sl_buf_puts(b, "{\"enum\":[");
    for (int i = 0; i < 3000; i++)
        sl_buf_printf(b, "%s%d.%d", i > 0 ? "," : "", i * 31, i);
    sl_buf_puts(b, "]}");
}

static void many_properties(struct sl_buf *b)
{
    sl_buf_puts(b, "{\"type\":\"object\",\"properties\":{");
    for (int i = 0; i < 5000; i++)
        sl_buf_printf(b, "%s\"p%d\":{\"type\":\"string\",\"maxLength\":%d}", i > 0 ? "," : "", i,
                      i);
    sl_buf_puts(b, "}}");
}

static void deep_schema(struct sl_buf *b)
{
    repeat(b, "{\"items\":", 5000);
    sl_buf_puts(b, "{}");
    repeat(b, "}", 5000);
}

static void ref_chain(struct sl_buf *b)
{
    sl_buf_puts(b, "{\"$ref\":\"#/$defs/d0\",\"$defs\":{");
    for (int i = 0; i < 5000; i++)
        sl_buf_printf(b, "\"d%d\":{\"$ref\":\"#/$defs/d%d\"},", i, i + 1);
    sl_buf_puts(b, "\"d5000\":{\"type\":\"null\"}}}");
}

static void ref_loop(struct sl_buf *b)
{
    sl_buf_puts(b,
                "{\"$ref\":\"#/$defs/a\",\"$defs\":{\"a\":{\"$ref\":\"#/$defs/b\"},\"b\":{\"$ref\":"
                "\"#/$defs/a\"}}}");
}

static void endless_object(struct sl_buf *b)
{
    sl_buf_puts(b,
                "{\"$defs\":{\"a\":{\"type\":\"object\",\"required\":[\"x\"],\"properties\":{\"x\":"
                "{\"$ref\":\"#/$defs/a\"}}}},\"$ref\":\"#/$defs/a\"}");
}

static void wide_alternatives(struct sl_buf *b)
{
    sl_buf_puts(b, "{\"oneOf\":[");
    for (int i = 0; i < 500; i++)
        sl_buf_printf(b, "%s{\"properties\":{\"k%d\":{\"const\":%d}},\"required\":[\"k%d\"]}",
                      i > 0 ? "," : "", i % 50, i, i % 50);
    sl_buf_puts(b, "]}");
}

static void huge_counts(struct sl_buf *b)
{
    sl_buf_puts(b, "{\"type\":\"array\",\"minItems\":2147483648,\"maxItems\":4294967296,\"items\":{"
                   "\"type\":\"string\",\"minLength\":2147483647,\"maxLength\":2147483648}}");
}

static void rule_chain(struct sl_buf *b)
{
    sl_buf_puts(b, "root ::= r0\n");
    for (int i = 0; i < 5000; i++)
        sl_buf_printf(b, "r%d ::= \"a\" r%d | \"(\" root \")\"\n", i, i + 1);
    sl_buf_puts(b, "r5000 ::= \"b\"\n");
}

static void ambiguous(struct sl_buf *b)
{
    sl_buf_puts(b, "root ::= \"a\" root root | \"a\" root root root | \"a\"\n");
}

static void empty_loops(struct sl_buf *b)
{
    sl_buf_puts(b, "root ::= (x* y*)* \"a\" root?\nx ::= (y | \"\")*\ny ::= \"\" | \"b\"*\n");
}

static void exponential(struct sl_buf *b)
{
    sl_buf_puts(b, "((a|aa|[ab]*b){0,500}){0,500}(a|b)*a(a|b){30}c");
}

static void conjunction(struct sl_buf *b)
{
    sl_buf_puts(b, "{\"allOf\":[");
    for (int i = 0; i < 12; i++)
        sl_buf_printf(b, "%s{\"pattern\":\"[a-c]%d.*(a|b){%d}x\"}", i > 0 ? "," : "", i % 3,
                      20 + i);
    sl_buf_puts(b, "]}");
}

/* Two keywords that fill one list. */
static void two_lists(struct sl_buf *b)
{
    sl_buf_puts(b, "{\"prefixItems\":[true");
    for (int i = 0; i < 60000; i++)
        sl_buf_puts(b, ",true");
    sl_buf_puts(b, "],\"items\":[{\"type\":\"integer\"}]}");
}

/* The place of each of 400 subschemas is 3 MB long. */
static void long_name(struct sl_buf *b)
{
    sl_buf_puts(b, "{\"properties\":{\"");
    for (int i = 0; i < 3000000; i++)
        sl_buf_putc(b, 'k');
    sl_buf_puts(b, "\":{\"properties\":{\"p\":{}");
    for (int i = 0; i < 400; i++)
        sl_buf_printf(b, ",\"p%d\":{\"properties\":{\"q\":{\"type\":\"string\"}}}", i);
    sl_buf_puts(b, "}}}}");
}

/* 60,000 relative references against a base of 900 bytes. */
static void long_uris(struct sl_buf *b)
{
    sl_buf_printf(b, "{\"$id\":\"u://h/%0900d/\",\"$defs\":{\"a\":{}", 0);
    for (int i = 0; i < 60000; i++)
        sl_buf_printf(b, ",\"d%d\":{\"$id\":\"d%d\"}", i, i);
    sl_buf_puts(b, "}}");
}

/* Each of 40 schemas applies the one before it twice. */
static void doubled_refs(struct sl_buf *b)
{
    sl_buf_puts(b, "{\"$ref\":\"#/$defs/d40\",\"$defs\":{\"d0\":{\"required\":[\"x\"]}");
    for (int i = 0; i < 40; i++)
        sl_buf_printf(
            b, ",\"d%d\":{\"anyOf\":[{\"$ref\":\"#/$defs/d%d\"},{\"$ref\":\"#/$defs/d%d\"}]}",
            i + 1, i, i);
    sl_buf_puts(b, "}}");
}

static void dependency_loop(struct sl_buf *b)
{
    sl_buf_puts(b, "{\"dependentSchemas\":{\"a\":{\"$ref\":\"#\"},\"b\":{\"$ref\":\"#\"}}}");
}

/* Whether a is evaluated asks what follows from a, which asks whether a is evaluated. */
static void unevaluated_loop(struct sl_buf *b)
{
    sl_buf_puts(b, "{\"dependentSchemas\":{\"a\":{\"$ref\":\"#/$defs/p\"}},\"$ref\":\"#/$defs/q\","
                   "\"$defs\":{\"p\":{\"unevaluatedProperties\":{\"type\":\"string\"},\"oneOf\":"
                   "[{\"$ref\":\"#\"}]},\"q\":{\"unevaluatedProperties\":{\"type\":\"array\"}}}}");
}

static void deep_objects(struct sl_buf *b)
{
    sl_buf_puts(b, "{\"$ref\":\"#/$defs/d0\",\"$defs\":{");
    for (int i = 0; i < 25000; i++)
        sl_buf_printf(b, "\"d%d\":{\"properties\":{\"x\":{\"$ref\":\"#/$defs/d%d\"}}},", i, i + 1);
    sl_buf_puts(b, "\"d25000\":{\"type\":\"null\"}}}");
}

static void many_required(struct sl_buf *b)
{
    sl_buf_puts(b, "{\"type\":\"object\",\"required\":[\"p0\"");
    for (int i = 1; i < 3000; i++)
        sl_buf_printf(b, ",\"p%d\"", i);
    sl_buf_puts(b, "]}");
}

static void many_anchors(struct sl_buf *b)
{
    sl_buf_puts(b, "{\"$defs\":{\"d\":{}");
    for (int i = 0; i < 6000; i++)
        sl_buf_printf(b, ",\"d%d\":{\"$anchor\":\"a%d\"}", i, i);
    sl_buf_puts(b, "},\"anyOf\":[{}");
    for (int i = 6000; i-- > 0;)
        sl_buf_printf(b, ",{\"$ref\":\"#a%d\"}", i);
    sl_buf_puts(b, "]}");
}

static const struct {
    const char *name;
    enum sl_grammar_kind kind;
    void (*make)(struct sl_buf *b);
    const char *says, *yes; /* part of the refusal, or a text that is accepted */
} table[] = {
    {"60,000 groups", SL_GRAMMAR_REGEX, nested_groups, "nested too deeply", NULL},
    {"60,000 groups in a rule", SL_GRAMMAR_EBNF, nested_groups, "a rule", NULL},
    {"100,000 values", SL_GRAMMAR_JSON_SCHEMA, many_values, NULL, "\"value 791892081\""},
    {"3,000 numbers", SL_GRAMMAR_JSON_SCHEMA, many_numbers, NULL, "31.1"},
    {"5,000 properties", SL_GRAMMAR_JSON_SCHEMA, many_properties, NULL, "{\"p4999\": \"a\"}"},
    {"5,000 levels", SL_GRAMMAR_JSON_SCHEMA, deep_schema, "not JSON", NULL},
    {"5,000 references", SL_GRAMMAR_JSON_SCHEMA, ref_chain, "nested too deeply", NULL},
    {"a loop of references", SL_GRAMMAR_JSON_SCHEMA, ref_loop, "leads back to itself", NULL},
    {"no finite object", SL_GRAMMAR_JSON_SCHEMA, endless_object, NULL, NULL},
    {"500 alternatives", SL_GRAMMAR_JSON_SCHEMA, wide_alternatives, "more than 64", NULL},
    {"counts of 2^31", SL_GRAMMAR_JSON_SCHEMA, huge_counts, NULL, NULL},
    {"5,000 rules", SL_GRAMMAR_EBNF, rule_chain, NULL, NULL},
    {"ambiguous rules", SL_GRAMMAR_EBNF, ambiguous, NULL, "aaaaaa"},
    {"empty loops", SL_GRAMMAR_EBNF, empty_loops, NULL, "bbba"},
    {"exponential regex", SL_GRAMMAR_REGEX, exponential, NULL, NULL},
    {"two lists of items", SL_GRAMMAR_JSON_SCHEMA, two_lists, "beside prefixItems", NULL},
    {"a name of 3 MB", SL_GRAMMAR_JSON_SCHEMA, long_name, NULL, "{}"},
    {"60,000 URIs", SL_GRAMMAR_JSON_SCHEMA, long_uris, "too large", NULL},
    {"40 doubled references", SL_GRAMMAR_JSON_SCHEMA, doubled_refs, "more time", NULL},
    {"a loop of dependencies", SL_GRAMMAR_JSON_SCHEMA, dependency_loop, "leads back", NULL},
    {"a loop of unevaluated", SL_GRAMMAR_JSON_SCHEMA, unevaluated_loop, "leads back", NULL},
    {"25,000 nested objects", SL_GRAMMAR_JSON_SCHEMA, deep_objects, NULL, "{\"x\": {}}"},
    {"3,000 required names", SL_GRAMMAR_JSON_SCHEMA, many_required, NULL, NULL},
    {"6,000 anchors", SL_GRAMMAR_JSON_SCHEMA, many_anchors, "more time", NULL},
    {"twelve patterns at once", SL_GRAMMAR_JSON_SCHEMA, conjunction, NULL, NULL},
};

/* Masks and tokens for a while; a limit may end it, with a message. */
static void use(struct sl_grammar *g, const struct sl_vocab *v, const char *name)
{
    struct sl_matcher *m;
    struct sl_error err = {0};
    uint32_t *mask = sl_malloc(v->n_words * sizeof *mask);
    assert_non_null(mask);
    assert_int_equal(sl_matcher_create(g, 300, &m, &err), 0);
    for (int step = 0; step < 200 && !sl_matcher_ended(m); step++) {
        bool ok = false;
        if (sl_matcher_mask(m, mask, &err) != 0) {
            assert_int_equal(err.code, SL_ELIMIT);
            break;
        }
        for (int32_t i = 0; i < RIG_TOKENS && !ok; i++) {
            int32_t id = (i + step * 7) % RIG_TOKENS;
            if ((mask[id / 32] >> (id & 31) & 1) == 0)
                continue;
            if (sl_matcher_accept(m, id, &ok, &err) != 0)
                break;
            if (!ok)
                fail_msg("%s: the mask allows token %d, the matcher does not", name, id);
        }
        if (!ok)
            break;
    }
    sl_matcher_destroy(m);
    sl_free(mask);
}

static void test_hostile(void **state)
{
    (void)state;
    struct sl_vocab *v = rig_vocab();
    for (size_t i = 0; i < SL_COUNT(table); i++) {
        struct sl_buf b = {0};
        struct sl_grammar *g = NULL;
        struct sl_error err = {0};
        table[i].make(&b);
        struct sl_grammar_spec spec = {.kind = table[i].kind, .text = b.data, .n = b.n_bytes};
        uint64_t t0 = sl_now_ns();
        int rc = sl_grammar_compile(&spec, v, &g, &err);
        uint64_t t1 = sl_now_ns();
        if (table[i].says != NULL && (rc == 0 || strstr(err.msg, table[i].says) == NULL))
            fail_msg("%s: %d \"%s\" does not say \"%s\"", table[i].name, rc, err.msg,
                     table[i].says);
        if (table[i].yes != NULL && (rc != 0 || !rig_matches(g, table[i].yes)))
            fail_msg("%s: '%s' is not accepted: %s", table[i].name, table[i].yes, err.msg);
        if (rc == 0)
            use(g, v, table[i].name);
        print_message("%-26s compile %7.1f ms, use %7.1f ms  %.100s\n", table[i].name,
                      (double)(t1 - t0) / 1e6, (double)(sl_now_ns() - t1) / 1e6,
                      rc != 0 ? err.msg : "");
        assert_in_range(sl_now_ns() - t0, 0, 60000000000u);
        sl_grammar_destroy(g);
        sl_buf_deinit(&b);
    }
    sl_vocab_destroy(v);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_hostile)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
