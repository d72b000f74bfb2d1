/* SPDX-License-Identifier: MIT
 * test_grammar.c - grammars of every notation against texts; masks against a matcher that tries
 * each token; rollback, forced bytes, ends; what is refused and how it says so.
 */
#include "base/rng.h"
#include "grammar_rig.h"

static const struct {
    enum sl_grammar_kind kind;
    const char *text, *yes[8], *no[8];
} table[] = {
    {SL_GRAMMAR_REGEX, "[a-z]+\\d?", {"abc", "a1"}, {"", "1", "ab12"}},
    {SL_GRAMMAR_CHOICE, "[\"yes\", \"no\", \"yes sir\"]", {"yes", "no", "yes sir"}, {"y", "yes "}},
    {SL_GRAMMAR_JSON_OBJECT,
     "",
     {"{}", "{\"a\":1}", "{ \"a\" : [1, 2e5, -0.5,\n null] }", "{\"\\u0041\\/\":\"\\uD800\"}"},
     {"[]", "1", "{,}", "{\"a\":01}", "{\"a\" 1}", "{} "}},
    {SL_GRAMMAR_JSON_SCHEMA,
     "{\"type\":\"object\",\"properties\":{\"a\":{\"type\":\"integer\"},\"b\":{\"enum\":[\"x\","
     "\"yy\"]}},\"required\":[\"a\",\"b\"],\"additionalProperties\":false}",
     {"{\"a\":1,\"b\":\"x\"}", "{\"b\": \"yy\", \"a\": -7}"},
     {"{\"a\":1}", "{\"a\":1,\"b\":\"x\",\"c\":1}", "{\"a\":1,\"a\":1,\"b\":\"x\"}",
      "{\"\\u0061\":1,\"b\":\"x\"}", "{\"a\":1.5,\"b\":\"x\"}", "{\"a\":1,\"b\":\"xx\"}"}},
    {SL_GRAMMAR_JSON_SCHEMA,
     "{\"anyOf\":[{\"properties\":{\"k\":{\"const\":\"a\"},\"v\":{\"type\":\"integer\"}},"
     "\"required\":[\"k\",\"v\"]},{\"properties\":{\"k\":{\"const\":\"b\"},\"v\":{\"type\":"
     "\"string\"}},\"required\":[\"k\",\"v\"]}],\"type\":\"object\"}",
     {"{\"k\":\"a\",\"v\":1}", "{\"v\":\"s\",\"k\":\"b\"}"},
     {"{\"k\":\"a\",\"v\":\"s\"}", "{\"v\":1,\"k\":\"b\"}", "{\"k\":\"c\",\"v\":1}",
      "{\"v\":\"s\",\"k\":\"b\",\"z\":0}"}},
    {SL_GRAMMAR_JSON_SCHEMA,
     "{\"$defs\":{\"n\":{\"type\":\"object\",\"properties\":{\"next\":{\"anyOf\":[{\"$ref\":"
     "\"#/$defs/"
     "n\"},{\"type\":\"null\"}]}},\"required\":[\"next\"],\"additionalProperties\":false}},"
     "\"$ref\":\"#/$defs/n\"}",
     {"{\"next\":null}", "{\"next\":{\"next\":{\"next\":null}}}"},
     {"{}", "{\"next\":1}", "{\"next\":{}}"}},
    {SL_GRAMMAR_JSON_SCHEMA,
     "{\"type\":\"number\",\"minimum\":-1.5,\"exclusiveMaximum\":20,\"multipleOf\":0.5}",
     {"0", "-0", "-1.5", "19.5", "7.0", "2.50"},
     {"20", "-2", "0.25", "19.75", "07", "1e0"}},
    {SL_GRAMMAR_JSON_SCHEMA,
     "{\"type\":\"string\",\"minLength\":2,\"maxLength\":3,\"pattern\":\"^a\"}",
     {"\"ab\"", "\"a\\\"é\"", "\"a日本\""},
     {"\"a\"", "\"abcd\"", "\"ba\"", "\"a\\u0062\""}},
    {SL_GRAMMAR_JSON_SCHEMA,
     "{\"type\":\"array\",\"prefixItems\":[{\"type\":\"string\"}],\"items\":{\"type\":\"integer\"},"
     "\"minItems\":2,\"maxItems\":3}",
     {"[\"a\",1]", "[ \"a\" , 1, 2 ]"},
     {"[\"a\"]", "[1,1]", "[\"a\",1,2,3]", "[\"a\",\"b\"]"}},
    {SL_GRAMMAR_JSON_SCHEMA,
     "{\"type\":\"object\",\"minProperties\":2,\"additionalProperties\":{\"type\":\"null\"}}",
     {"{\"a\":null,\"b\":null}"},
     {"{\"a\":null}", "{\"a\":null,\"a\":null}", "{\"a\":null,\"b\":1}"}},
    {SL_GRAMMAR_JSON_SCHEMA,
     "{\"type\":\"array\",\"items\":{\"type\":\"string\"},\"uniqueItems\":true}",
     {"[]", "[\"a\",\"ab\",\"\"]", "[\"\\n\",\"n\"]"},
     {"[\"a\",\"a\"]", "[\"a\",\"b\",\"a\"]", "[\"\\n\",\"\\u000a\"]", "[\"\",\"\"]",
      "[\"\\u000a\",\"\\n\"]", "[\"x\\u000A\",\"x\\u000a\"]"}},
    {SL_GRAMMAR_JSON_SCHEMA, /* any values, by value: order of names, spelling of numbers and text
                              */
     "{\"type\":\"array\",\"uniqueItems\":true}",
     {"[1,2,{\"a\":1},{\"a\":2},{\"a\":1,\"b\":[]},[],[1],[[1]],{},{\"b\":[1]},true,{\"a\":true}]",
      "[[1,[2]],[1,[2,3]],[1]]", "[{\"x\":{\"y\":1}},{\"x\":{\"y\":2}}]", "[[],{},[[]],[{}]]"},
     {"[1,1]", "[[],[]]", "[{},{}]", "[{\"a\":1},{\"a\":1.0}]", "[[1,[2]],[1,[2]]]",
      "[{\"a\":[1,2],\"b\":3},{\"b\":3,\"a\":[1,2]}]", "[{\"x\":{\"y\":1}},{\"x\":{\"y\":1}}]",
      "[{\"v\":\"\\u000a\"},{\"v\":\"\\n\"}]"}},
    {SL_GRAMMAR_JSON_SCHEMA,
     "{\"type\":\"array\",\"uniqueItems\":true,\"minItems\":2,\"items\":{\"type\":\"object\","
     "\"properties\":{\"k\":{\"enum\":[\"x\",\"y\"]},\"v\":{\"type\":\"boolean\"}},\"required\":["
     "\"k\"]}}",
     {"[{\"k\":\"x\"},{\"k\":\"y\"}]",
      "[{\"k\":\"x\"},{\"k\":\"x\",\"v\":true},{\"v\":false,\"k\":\"x\"}]"},
     {"[{\"k\":\"x\"}]", "[{\"k\":\"x\"},{\"k\":\"x\"}]",
      "[{\"k\":\"x\",\"v\":true},{\"v\":true,\"k\":\"x\"}]"}},
    {SL_GRAMMAR_JSON_SCHEMA, /* inside an item too, and where another schema decides */
     "{\"type\":\"array\",\"uniqueItems\":true,\"items\":{\"oneOf\":[{\"type\":\"array\","
     "\"uniqueItems\":"
     "true,\"items\":{\"type\":\"integer\"}},{\"type\":\"object\",\"properties\":{\"t\":{\"const\":"
     "1}},"
     "\"required\":[\"t\"],\"additionalProperties\":{\"type\":\"null\"}},{\"type\":\"string\"}]}}",
     {"[[1,2],[2,1],[1],\"a\",{\"t\":1},{\"t\":1,\"x\":null},{\"y\":null,\"t\":1}]", "[]"},
     {"[[1,1]]", "[[1,2],[1,2]]", "[{\"t\":1},{\"t\":1}]", "[\"a\",\"a\"]",
      "[{\"t\":1,\"x\":null},{\"x\":null,\"t\":1}]"}},
    {SL_GRAMMAR_JSON_SCHEMA,
     "{\"type\":\"array\",\"items\":{\"type\":[\"number\",\"boolean\"]},\"uniqueItems\":true}",
     {"[1,true,1.5,15,0.1,10,100]", "[12345678901234567890,12345678901234567891]"},
     {"[1,2,1.0]", "[0,-0]", "[0.5,0.50]", "[true,false,true]", "[0.1,0.10000000000000000001]"}},
    {SL_GRAMMAR_JSON_SCHEMA,
     "{\"type\":\"array\",\"items\":{\"enum\":[\"a\",\"ab\",1,null]},\"uniqueItems\":true,"
     "\"minItems\":3}",
     {"[\"a\",\"ab\",1]", "[null,1,\"ab\",\"a\"]"},
     {"[\"a\",\"a\",1]", "[1,null]", "[1,null,1.0]"}},
    {SL_GRAMMAR_JSON_SCHEMA, /* wherever one of the schemas that may apply wants it */
     "{\"anyOf\":[{\"uniqueItems\":true,\"items\":{\"type\":\"integer\"}},{\"items\":{\"enum\":["
     "\"a\","
     "\"b\"]}}],\"type\":\"array\",\"items\":{\"type\":[\"integer\",\"string\"]}}",
     {"[1,2]", "[\"a\",\"b\"]"},
     {"[1,1]", "[1,\"a\"]"}},
    {SL_GRAMMAR_JSON_SCHEMA, /* integers beyond 64 bits, to the last digit */
     "{\"type\":\"integer\",\"minimum\":18446744073709551617,\"exclusiveMaximum\":"
     "18446744073709551620}",
     {"18446744073709551617", "18446744073709551619"},
     {"18446744073709551616", "18446744073709551620", "1"}},
    {SL_GRAMMAR_JSON_SCHEMA,
     "{\"enum\":[-123456789012345678901234567890,[99999999999999999999]]}",
     {"-123456789012345678901234567890", "[99999999999999999999]"},
     {"-123456789012345678901234567891", "[99999999999999999998]", "[100000000000000000000]"}},
    {SL_GRAMMAR_JSON_SCHEMA, /* of draft 4 $id is no keyword, id is */
     "{\"$schema\":\"http://json-schema.org/draft-04/schema#\",\"$id\":\"http://a/"
     "b\",\"definitions\":{\"n\":"
     "{\"id\":\"http://c/d\",\"type\":\"integer\"}},\"allOf\":[{\"$ref\":\"http://c/d\"},{\"$ref\":"
     "\"#/definitions/n\"}]}",
     {"1"},
     {"\"x\""}},
    {SL_GRAMMAR_JSON_SCHEMA, /* what may not both hold is known before the second begins */
     "{\"type\":\"object\",\"properties\":{\"a\":{\"type\":\"null\"},\"b\":{\"type\":\"null\"}},"
     "\"additionalProperties\":false,\"oneOf\":[{\"required\":[\"a\"]},{\"required\":[\"b\"]}]}",
     {"{\"a\":null}", "{\"b\":null}"},
     {"{}", "{\"a\":null,\"b\":null}"}},
    {SL_GRAMMAR_JSON_SCHEMA, /* a value that no object could go on behind */
     "{\"type\":\"object\",\"properties\":{\"k\":{\"enum\":[\"x\",\"xy\"]},\"a\":{\"type\":"
     "\"null\"}},"
     "\"required\":[\"k\"],\"additionalProperties\":false,\"if\":{\"properties\":{\"k\":{\"const\":"
     "\"x\"}}},"
     "\"then\":{\"properties\":{\"a\":false}}}",
     {"{\"k\":\"x\"}", "{\"a\":null,\"k\":\"xy\"}"},
     {"{\"a\":null,\"k\":\"x\"}"}},
    {SL_GRAMMAR_JSON_SCHEMA,
     "{\"type\":\"array\",\"prefixItems\":[true],\"contains\":{\"type\":\"string\"},"
     "\"unevaluatedItems\":{\"type\":\"null\"}}",
     {"[1,\"a\",null]", "[\"a\"]"},
     {"[1,2,\"a\"]", "[1]"}},
    {SL_GRAMMAR_JSON_SCHEMA, /* a string that looks like what stands for such an integer */
     "{\"enum\":[\"\\u0000integer x\",123456789012345678901]}",
     {"\"\\u0000integer x\"", "123456789012345678901"},
     {"0", "\"\\u0000integer 123456789012345678901\""}},
    {SL_GRAMMAR_JSON_SCHEMA,
     "{\"type\":\"string\",\"format\":\"regex\"}",
     {"\"^(a|[a-f0-9]{2,3})*$\"", "\"\\\\d+\\\\.\"", "\"(?=(x|y)z?).\"", "\"\""},
     {"\"(a\"", "\"[z-a]\"", "\"a{3,2}\"", "\"a**\"", "\"\\\\\"", "\"*\""}},
    {SL_GRAMMAR_JSON_SCHEMA,
     "{\"type\":\"string\",\"format\":\"uri-template\"}",
     {"\"http://a/{+path}/{id:3}{?q,list*}\"", "\"\"", "\"x%20y\""},
     {"\"{\"", "\"{a\"", "\"{}\"", "\"a b\"", "\"{a:}\"", "\"%2\""}},
    {SL_GRAMMAR_JSON_SCHEMA,
     "{\"type\":\"string\",\"format\":\"idn-email\"}",
     {"\"a@b.c\"", "\"\u7528\u6237@\u4f8b\u5b50.cn\"", "\"o'x@a-b.de\""},
     {"\"a\"", "\"@b\"", "\"a@\"", "\"a@-b\"", "\"a b@c\""}},
    {SL_GRAMMAR_JSON_SCHEMA, /* the year 0 is none that checkers of dates know */
     "{\"type\":\"string\",\"format\":\"date\"}",
     {"\"0001-01-01\"", "\"2024-02-29\""},
     {"\"0000-01-01\"", "\"2023-02-29\""}},
    {SL_GRAMMAR_JSON_SCHEMA, /* a subschema where no keyword says that there is one */
     "{\"$ref\":\"#/x/y\",\"x\":{\"y\":{\"type\":\"integer\",\"maximum\":7}}}",
     {"5"},
     {"\"a\"", "8", "1.5"}},
    {SL_GRAMMAR_EBNF, "root ::= \"a\" root \"b\" | \"\"", {"", "ab", "aaabbb"}, {"a", "ba", "aab"}},
    {SL_GRAMMAR_EBNF,
     "root  ::= (expr \"=\" term \"\\n\")+ # sums\nexpr  ::= term ([-+*/] term)*\n"
     "term  ::= [0-9]+ | \"(\" expr \")\"\n",
     {"1+2=3\n", "(1+(2*3))=7\n1=1\n"},
     {"1+=3\n", "(1=1\n", "1=1"}},
    {SL_GRAMMAR_EBNF, "root ::= [^\\n\\x41]{2,3} .", {"abc", "bcde"}, {"ab", "A\nb", "bcdef"}},
    {SL_GRAMMAR_EBNF,
     "start: sum\n?sum: sum \"+\" item | item -> x\nitem: NUMBER | \"(\" sum \")\"\n"
     "NUMBER: /[0-9]+/ // digits\n%ignore \" \"\n",
     {"1+2+3", " ( 1 + 22 ) + 3 "},
     {"1+", "1 2", "(1", "1 + + 2"}},
    {SL_GRAMMAR_EBNF,
     "start: \"a\" \"b\"\n%ignore \" \"\n%ignore \"x\" | \"y\" | \"z\"\n",
     {"ab", "a b", "axb", "ayb", "z a xyb"},
     {"a", "avb"}},
    {SL_GRAMMAR_EBNF, "start: \"a\"i~2..3 [\"x\"] \"0\"..\"9\"", {"aA0", "aaax9"}, {"a0", "aaaa1"}},
    {SL_GRAMMAR_EBNF,
     "%import common.ESCAPED_STRING -> TEXT\n%import common (SIGNED_NUMBER, CNAME)\n"
     "start: CNAME \"=\" (TEXT | SIGNED_NUMBER) # as in Lark 1.2\n%import common.WS\n%ignore WS\n",
     {"a_1 = \"x\\\"y\"", "b=-1.5e+3\n", "c=.5", "d = 7."},
     {"1=2", "a=\"x\\\"", "a=\"x\"y\"", "a=1 2", "a=\"x\ny\""}},
    {SL_GRAMMAR_EBNF,
     "start: C_COMMENT NEWLINE\n%import common (C_COMMENT, NEWLINE)",
     {"/* a * b **/\n", "/***/\r\n\n"},
     {"/* a */ */\n", "/* a\n", "/*/\n"}},
    {SL_GRAMMAR_EBNF, /* what cannot be finished is not begun */
     "start: \"x\" rest | \"y\"\nrest: rest \"z\"\n",
     {"y"},
     {"x", "xz"}},
    {SL_GRAMMAR_EBNF,
     "start: \"call\" %json {\"type\":\"array\",\"items\":{\"type\":\"integer\"}} \";\"",
     {"call[];", "call[1, 2];"},
     {"call;", "call[\"x\"];"}},
    {SL_GRAMMAR_EBNF, /* as guidance sends it */
     "%llguidance {}\n\nstart: \"It is \" a b[\".\"]\na[capture]: A\n\nA: /[0-9]{2}/\n"
     "     | \"no\"\nb[ capture = \"x:\" , capture]: \"!\"",
     {"It is 12!", "It is no!."},
     {"It is 1!", "It is no"}},
    {SL_GRAMMAR_STRUCTURAL,
     "{\"type\":\"structural_tag\",\"structures\":[{\"begin\":\"<f=a>\",\"schema\":{\"type\":"
     "\"object\",\"properties\":{\"x\":{\"type\":\"integer\"}},\"additionalProperties\":false},"
     "\"end\":\"</f>\"}],\"triggers\":[\"<f=\"]}",
     {"", "text <f <b>", "see <f=a>{\"x\": 1}</f> and <f=a>{}</f>."},
     {"<f=b>{}</f>", "<f=", "<f=a>{\"y\":1}</f>", "<f=a>{}</f", "<f=a>{} </f>"}},
    {SL_GRAMMAR_STRUCTURAL, /* as xgrammar has it */
     "{\"format\":{\"type\":\"grammar\",\"grammar\":\"root ::= [a-c]+ | \\\"(\\\" root "
     "\\\")\\\"\"}}",
     {"abc", "((a))"},
     {"", "(a", "d"}},
    {SL_GRAMMAR_STRUCTURAL, /* the content of a JSON string */
     "{\"format\":{\"type\":\"grammar\",\"spelling\":\"json\",\"syntax\":\"lark\",\"grammar\":"
     "\"start: "
     "\\\"a\\\\\\\"\\\\n\\\" start | /[\\u00e9-\\u00ff\\\\\\\\]/ | \\\"::=\\\"i\\n\"}}",
     {"\u00e9", "a\\\"\\n\\\\", "a\\\"\\u000aa\\\"\\n::="},
     {"\\", "a\"\n\u00e9", "a\\\"\\n", "\\u00e9", "e"}},
    {SL_GRAMMAR_STRUCTURAL, /* a mark that only several parts make up is left out */
     "{\"format\":{\"type\":\"sequence\",\"elements\":[{\"type\":\"grammar\",\"excludes\":[\"</"
     "p>\"],"
     "\"syntax\":\"lark\",\"grammar\":\"start: (A | B | \\\"(\\\" start \\\")\\\")+\\nA: "
     "/[<p]{1,2}/\\nB: /[\\\\/>(]/\\n\"},{\"type\":\"const_string\",\"value\":\"</p>\"}]}}",
     {"p</p>", "</p</p>", "(</p)></p>", "<</p</p>", "(</)p></p>"},
     {"</p>", "</p></p>", "(</p>)</p>", "p<(/)p></p></p>", "<</p></p>"}},
    {SL_GRAMMAR_STRUCTURAL,
     "{\"format\":{\"type\":\"grammar\",\"syntax\":\"regex\",\"grammar\":\"[ab]{1,3}\","
     "\"excludes\":["
     "\"aa\"],\"pattern\":\"^b\"}}",
     {"b", "ba", "bab"},
     {"a", "baa", "", "bbbb"}},
};

/* What only test_cut looks at: every escape, a regular expression, a range of strings. */
static const char *const cut[] = {
    "start: /a\\/[/]\\w/is \"\\x41\\u0042\\U00000043\\n\" // end\n",
    "start: \"a\"..\"\\u0066\" %json {\"type\": \"null\"} x~1..2\nx.2: \"\\x41\"",
    "root ::= [\\x41-\\u0043^\\]] \"\\U0001F600\\\\\" # end",
};

static void test_table(void **state)
{
    (void)state;
    for (size_t i = 0; i < SL_COUNT(table); i++) {
        struct sl_grammar *g = rig_compile(table[i].kind, table[i].text, NULL);
        for (size_t k = 0; k < SL_COUNT(table[i].yes) && table[i].yes[k] != NULL; k++)
            if (!rig_matches(g, table[i].yes[k]))
                fail_msg("%s\n does not match '%s'", table[i].text, table[i].yes[k]);
        for (size_t k = 0; k < SL_COUNT(table[i].no) && table[i].no[k] != NULL; k++)
            if (rig_matches(g, table[i].no[k]))
                fail_msg("%s\n matches '%s'", table[i].text, table[i].no[k]);
        sl_grammar_destroy(g);
    }
}

static bool bit(const uint32_t *mask, int32_t id)
{
    return (mask[id / 32] >> (id & 31) & 1) != 0;
}

/* Random texts through each grammar: at every step the mask is what trying each token says, tokens
 * that were allowed keep a way to the end, and rolling back gives the same masks again. */
static void test_masks(void **state)
{
    (void)state;
    struct sl_vocab *v = rig_vocab();
    struct sl_rng r = {11, 0};
    uint32_t mask[(RIG_TOKENS + 31) / 32], again[(RIG_TOKENS + 31) / 32];
    int n_ended = 0;
    for (size_t i = 0; i < SL_COUNT(table); i++) {
        struct sl_grammar *g = rig_compile(table[i].kind, table[i].text, v);
        for (int round = 0; round < 12; round++) {
            struct sl_matcher *m;
            struct sl_error err;
            bool ok = true;
            assert_int_equal(sl_matcher_create(g, 64, &m, &err), 0);
            for (int step = 0; step < 50 && !sl_matcher_ended(m); step++) {
                assert_int_equal(sl_matcher_mask(m, mask, &err), 0);
                int32_t n = 0, pick = -1;
                for (int32_t id = 0; id < RIG_TOKENS; id++) {
                    assert_int_equal(sl_matcher_accept(m, id, &ok, &err), 0);
                    if (ok != bit(mask, id))
                        fail_msg("%s: token %d at step %d: %d", table[i].text, id, step, ok);
                    if (ok)
                        sl_matcher_rollback(m, 1);
                    if (ok && sl_rng_below(&r, (uint64_t)++n) == 0)
                        pick = id;
                }
                assert_int_equal(bit(mask, RIG_EOS), sl_matcher_complete(m));
                assert_false(bit(mask, RIG_SPECIAL));
                assert_int_equal(bit(mask, RIG_TWIN), bit(mask, 256 + 22));
                if (pick < 0)
                    fail_msg("%s: a dead end", table[i].text);
                assert_int_equal(sl_matcher_accept(m, pick, &ok, &err), 0);
                sl_matcher_rollback(m, 1);
                assert_int_equal(sl_matcher_mask(m, again, &err), 0);
                assert_memory_equal(mask, again, sizeof mask);
                assert_int_equal(sl_matcher_accept(m, pick, &ok, &err), 0);
                assert_true(ok);
            }
            n_ended += sl_matcher_ended(m);
            sl_matcher_destroy(m);
        }
        sl_grammar_destroy(g);
    }
    assert_in_range(n_ended, 30, 100000);
    sl_vocab_destroy(v);
}

/* Words over a few characters, so that the tree has branches that masks take whole. */
static struct sl_vocab *word_vocab(uint32_t n)
{
    static const char *const parts[] = {
        "a",  "b",  "c",        "0", "1", "-", ".", " ", "@", "é", "я", "日", "\xE3\x80\x80",
        "\"", "\\", "\xE6\x97", ":", "f", "g", "A", "Z"};
    struct sl_vocab_token *t = sl_calloc(n, sizeof *t);
    char(*bytes)[64] = sl_calloc(n, sizeof *bytes);
    struct sl_rng r = {5, 0};
    struct sl_vocab *v;
    struct sl_error err;
    const int32_t end = (int32_t)n - 1;
    assert_true(t != NULL && bytes != NULL);
    for (uint32_t i = 0; i < n; i++) {
        uint64_t few = sl_rng_below(&r, 3) > 0 ? 6 : SL_COUNT(parts);
        for (uint64_t k = 1 + sl_rng_below(&r, i % 50 == 0 ? 12 : 4); k > 0; k--)
            strcat(bytes[i], parts[sl_rng_below(&r, few)]);
        t[i] = (struct sl_vocab_token){bytes[i], strlen(bytes[i]), i + 1 == n};
    }
    assert_int_equal(sl_vocab_create(t, n, &end, 1, &v, &err), 0);
    sl_free(t);
    sl_free(bytes);
    return v;
}

/* What lets many characters come, in several ways: with and without anchors, counted, two rules on
 * one string, names, values of several schemas, text around a tag, rules. Then what masks may walk
 * by shapes (shape.h): letters of one kind, hexadecimal digits apart; and what they may not, though
 * it looks alike: one letter apart, one character beyond ASCII apart, characters that are counted
 * by their bytes; also behind a token that ends inside a character. */
static const struct {
    enum sl_grammar_kind kind;
    const char *text;
} wide[] = {
    {SL_GRAMMAR_REGEX, "[a-c0-9.-]+@[a-c]{2,9}(\\.[a-c]+)*"},
    {SL_GRAMMAR_REGEX, "\\S+ \\S+"},
    {SL_GRAMMAR_JSON_SCHEMA, "{\"type\":\"string\",\"pattern\":\"[ab]{3}\"}"},
    {SL_GRAMMAR_JSON_SCHEMA, "{\"type\":\"string\",\"maxLength\":9}"},
    {SL_GRAMMAR_JSON_SCHEMA,
     "{\"type\":\"string\",\"minLength\":3,\"maxLength\":14,\"pattern\":\"^[^\\\\s0][ab].*1\"}"},
    {SL_GRAMMAR_JSON_SCHEMA,
     "{\"type\":\"string\",\"pattern\":\"^[^,:]+:[^:]*$\",\"not\":{\"pattern\":\"ab|я\"}}"},
    {SL_GRAMMAR_JSON_SCHEMA,
     "{\"type\":\"object\",\"minProperties\":2,\"properties\":{\"ab\":{\"type\":\"string\"},"
     "\"abc\":{}},"
     "\"patternProperties\":{\"^a\":{\"type\":\"string\"},\"0$\":{\"minLength\":2}},"
     "\"additionalProperties\":{\"type\":\"string\"}}"},
    {SL_GRAMMAR_JSON_SCHEMA, "{\"type\":\"array\",\"minItems\":2,\"items\":{\"type\":\"string\"},"
                             "\"contains\":{\"pattern\":\"^a.*b$\"}}"},
    {SL_GRAMMAR_JSON_SCHEMA, "{\"type\":\"string\",\"pattern\":\"^[a-zA-Z0-9_-]{3,9}$\"}"},
    {SL_GRAMMAR_JSON_SCHEMA, "{\"type\":\"string\",\"pattern\":\"[A-Z]$\",\"maxLength\":7}"},
    {SL_GRAMMAR_JSON_SCHEMA, "{\"type\":\"string\",\"pattern\":\"^([a-f0-9]{2}-?){2,4}[^-]*$\"}"},
    {SL_GRAMMAR_JSON_SCHEMA, "{\"type\":\"string\",\"maxLength\":12,\"pattern\":\"^[^.@\\\\s]{1,4}("
                             "\\\\.[^.@]{1,3}){1,2}$\"}"},
    {SL_GRAMMAR_JSON_SCHEMA, "{\"type\":\"string\",\"pattern\":\"^[^b]{1,6}$\"}"},
    {SL_GRAMMAR_JSON_SCHEMA, "{\"type\":\"string\",\"pattern\":\"^[a-eA-Z]{1,6}[^0]*$\"}"},
    {SL_GRAMMAR_JSON_SCHEMA, "{\"type\":\"string\",\"pattern\":\"^[^я]{2,5}$\"}"},
    {SL_GRAMMAR_JSON_SCHEMA, "{\"type\":\"string\",\"pattern\":\"^(日|[^é]{2})+$\"}"},
    {SL_GRAMMAR_JSON_SCHEMA, "{\"type\":\"string\",\"pattern\":\"^[\\u0080-\\u07ff0-9]{1,5}$\"}"},
    {SL_GRAMMAR_JSON_SCHEMA, "{\"type\":\"string\",\"maxLength\":6,\"not\":{\"pattern\":\"^[a-z]{2}"
                             "[^a-z]\"}}"},
    {SL_GRAMMAR_JSON_SCHEMA,
     "{\"anyOf\":[{\"type\":\"string\",\"maxLength\":8},{\"type\":\"string\","
     "\"pattern\":\"^[a-z]+$\"},{\"enum\":[\"abcabcabcabc\",\"ббб\"]}]}"},
    {SL_GRAMMAR_JSON_SCHEMA, "{\"type\":\"string\",\"pattern\":\"a[bc]-.*:\",\"minLength\":5}"},
    {SL_GRAMMAR_JSON_SCHEMA, "{\"type\":\"string\",\"pattern\":\"a[bc]-.*:\",\"maxLength\":12}"},
    {SL_GRAMMAR_JSON_SCHEMA,
     "{\"type\":\"string\",\"pattern\":\"(ab|c)0{1,2}\",\"minLength\":6,\"maxLength\":9}"},
    {SL_GRAMMAR_JSON_SCHEMA, "{\"allOf\":[{\"pattern\":\"ab\"},{\"pattern\":\"b.?1\"}],\"type\":"
                             "\"string\",\"maxLength\":8}"},
    {SL_GRAMMAR_JSON_SCHEMA,
     "{\"type\":\"object\",\"if\":{\"properties\":{\"a\":{\"pattern\":"
     "\"^[a-z]{1,3}$\"}}},\"then\":{\"required\":[\"b\"]},\"properties\":{\"a\":{"
     "\"type\":\"string\",\"maxLength\":5}}}"},
    {SL_GRAMMAR_EBNF, "root ::= [^a]* \"a\" word+\nword ::= [a-c]+ \" \" | \"(\" word \")\""},
    {SL_GRAMMAR_STRUCTURAL, "{\"type\":\"structural_tag\",\"structures\":[{\"begin\":\"ab@\","
                            "\"schema\":{\"type\":\"string\"},"
                            "\"end\":\".\"}],\"triggers\":[\"ab@\"]}"},
};

static void test_wide_masks(void **state)
{
    (void)state;
    enum { N = 3000, WORDS = (N + 31) / 32 };
    struct sl_vocab *v = word_vocab(N);
    struct sl_rng r = {12, 0};
    uint32_t mask[WORDS];
    for (size_t i = 0; i < SL_COUNT(wide); i++) {
        struct sl_grammar *g = rig_compile(wide[i].kind, wide[i].text, v);
        for (int round = 0; round < 4; round++) {
            struct sl_matcher *m;
            struct sl_error err;
            bool ok = true;
            assert_int_equal(sl_matcher_create(g, 16, &m, &err), 0);
            for (int step = 0; step < 10 && !sl_matcher_ended(m); step++) {
                assert_int_equal(sl_matcher_mask(m, mask, &err), 0);
                int32_t n = 0, pick = -1;
                for (int32_t id = 0; id < N; id++) {
                    assert_int_equal(sl_matcher_accept(m, id, &ok, &err), 0);
                    if (ok != bit(mask, id))
                        fail_msg("%s: token %d '%.*s' at step %d: %d", wide[i].text, id,
                                 (int)(v->start[id + 1] - v->start[id]), v->bytes + v->start[id],
                                 step, ok);
                    if (ok)
                        sl_matcher_rollback(m, 1);
                    if (ok && sl_rng_below(&r, (uint64_t)++n) == 0)
                        pick = id;
                }
                if (pick < 0)
                    break; /* these words cannot spell all that a grammar may ask for */
                assert_int_equal(sl_matcher_accept(m, pick, &ok, &err), 0);
            }
            sl_matcher_destroy(m);
        }
        sl_grammar_destroy(g);
    }
    sl_vocab_destroy(v);
}

/* Every byte, "},{ and two letters or digits with a quote behind them. */
static struct sl_vocab *quote_vocab(uint32_t *n_tokens)
{
    static const char letters[] = "abcdefghijklmnopqrstuvwxyz0123456789";
    enum { N = 36, TOKENS = 256 + N * N + 2 };
    struct sl_vocab_token *t = sl_calloc(TOKENS, sizeof *t);
    char(*bytes)[8] = sl_calloc(TOKENS, sizeof *bytes);
    const int32_t end = TOKENS - 1;
    struct sl_vocab *v;
    struct sl_error err;
    assert_true(t != NULL && bytes != NULL);
    for (uint32_t i = 0; i < TOKENS; i++) {
        size_t k = i < 256 ? 0 : (i - 256) / N % N, l = i < 256 ? 0 : (i - 256) % N;
        snprintf(bytes[i], sizeof bytes[i], "%c%c\"", letters[k], letters[l]);
        if (i < 256)
            bytes[i][0] = (char)i;
        else if (i >= 256 + N * N)
            strcpy(bytes[i], "\"},{");
        t[i] = (struct sl_vocab_token){bytes[i], i < 256 ? 1 : strlen(bytes[i]), i + 1 == TOKENS};
    }
    assert_int_equal(sl_vocab_create(t, TOKENS, &end, 1, &v, &err), 0);
    sl_free(t);
    sl_free(bytes);
    *n_tokens = TOKENS;
    return v;
}

/* Is each token's bit of the mask what taking the token says? */
static void check_mask(struct sl_matcher *m, const struct sl_vocab *v, const uint32_t *mask)
{
    struct sl_error err;
    bool ok;
    for (int32_t id = 0; id < (int32_t)v->n_tokens; id++) {
        assert_int_equal(sl_matcher_accept(m, id, &ok, &err), 0);
        if (ok != bit(mask, id))
            fail_msg("token %d: %d", id, ok);
        if (ok)
            sl_matcher_rollback(m, 1);
    }
}

/* Masks whose state is the first that is asked for, so that nothing is known from the states
 * before: characters that lead back to it, and one that ends the string. */
static void test_first_masks(void **state)
{
    (void)state;
    static const char *const texts[][2] = {
        {"{\"type\":\"string\",\"pattern\":\"^[^x]+x$\"}", "\"na"},
        {"{\"type\":\"string\",\"pattern\":\"^[^x]+x$\"}", "\""},
        {"{\"type\":\"string\",\"pattern\":\"^([^x]{2})*x[^x]?$\"}", "\"nam"},
        {"{\"patternProperties\":{\"^[^x]+x$\":{}},\"additionalProperties\":false}", "{\"na"},
        {"{\"type\":\"string\",\"maxLength\":40,\"pattern\":\"oo.*n[^x]x\"}", "\"foofoofoo"},
        {"{\"type\":\"string\",\"maxLength\":7,\"pattern\":\"a[ab]c?\"}", "\"foo"},
    };
    struct sl_vocab *v = rig_vocab();
    for (size_t i = 0; i < SL_COUNT(texts); i++) {
        struct sl_grammar *g = rig_compile(SL_GRAMMAR_JSON_SCHEMA, texts[i][0], v);
        uint32_t mask[(RIG_TOKENS + 31) / 32];
        struct sl_matcher *m;
        struct sl_error err;
        bool ok;
        assert_int_equal(sl_matcher_create(g, 100, &m, &err), 0);
        for (const char *c = texts[i][1]; *c != 0; c++) {
            assert_int_equal(sl_matcher_accept(m, (uint8_t)*c, &ok, &err), 0);
            assert_true(ok);
        }
        assert_int_equal(sl_matcher_mask(m, mask, &err), 0);
        check_mask(m, v, mask);
        sl_matcher_destroy(m);
        sl_grammar_destroy(g);
    }
    sl_vocab_destroy(v);
}

/* Objects that differ, each of strings that begin like those of earlier ones: what masks need of
 * the automaton's memory must not grow with the vocabulary. */
static void test_many_unlike(void **state)
{
    (void)state;
    enum { OBJECTS = 300 };
    static const char *const schemas[] = {
        "{\"type\":\"array\",\"uniqueItems\":true,\"items\":{\"type\":\"object\",\"properties\":{"
        "\"k\":{\"type\":\"string\"},\"v\":{\"type\":\"string\"}},\"required\":[\"k\",\"v\"],"
        "\"additionalProperties\":false}}",
        "{\"type\":\"array\",\"uniqueItems\":true,\"items\":{\"type\":\"object\","
        "\"additionalProperties\":{\"type\":\"string\"}}}"};
    uint32_t n;
    struct sl_vocab *v = quote_vocab(&n);
    uint32_t *mask = sl_calloc(v->n_words, sizeof *mask);
    assert_non_null(mask);
    for (size_t s = 0; s < SL_COUNT(schemas); s++) {
        struct sl_grammar *g = rig_compile(SL_GRAMMAR_JSON_SCHEMA, schemas[s], v);
        struct sl_matcher *m;
        struct sl_error err;
        uint32_t n_masks = 0;
        bool ok;
        assert_int_equal(sl_matcher_create(g, OBJECTS * 32, &m, &err), 0);
        for (int i = 0; i < OBJECTS; i++) {
            char text[64];
            snprintf(text, sizeof text, "%s{\"k\":\"%c%d\",\"v\":\"a%d\"}", i == 0 ? "[" : ",",
                     'a' + i % 3, i / 4, i % 4);
            for (const char *c = text; *c != 0; c++) {
                if (sl_matcher_mask(m, mask, &err) != 0)
                    fail_msg("object %d: %s", i, err.msg);
                if (++n_masks % 211 == 0)
                    check_mask(m, v, mask);
                assert_true(bit(mask, (uint8_t)*c));
                assert_int_equal(sl_matcher_accept(m, (uint8_t)*c, &ok, &err), 0);
                assert_true(ok);
            }
        }
        sl_matcher_destroy(m);
        sl_grammar_destroy(g);
    }
    sl_free(mask);
    sl_vocab_destroy(v);
}

static void test_forced(void **state)
{
    (void)state;
    struct sl_vocab *v = rig_vocab();
    struct sl_grammar *g = rig_compile(SL_GRAMMAR_JSON_SCHEMA,
                                       "{\"type\":\"object\",\"properties\":{\"naïve\":{\"enum\":["
                                       "true]}},\"required\":[\"naïve\"],"
                                       "\"additionalProperties\":false}",
                                       v);
    struct sl_matcher *m;
    struct sl_error err;
    char out[64];
    size_t n;
    bool ok;
    assert_int_equal(sl_matcher_create(g, 64, &m, &err), 0);
    assert_int_equal(sl_matcher_forced(m, out, sizeof out, &n, &err), 0);
    assert_int_equal(n, 1); /* "{": then whitespace may come */
    assert_int_equal(sl_matcher_accept(m, '{', &ok, &err), 0);
    assert_int_equal(sl_matcher_accept(m, '"', &ok, &err), 0);
    assert_int_equal(sl_matcher_forced(m, out, sizeof out, &n, &err), 0);
    assert_int_equal(n, strlen("naïve\""));
    assert_memory_equal(out, "naïve\"", n);
    assert_int_equal(sl_matcher_forced(m, out, 3, &n, &err), 0);
    assert_int_equal(n, 2); /* never half a character */
    sl_matcher_destroy(m);
    sl_grammar_destroy(g);
    sl_vocab_destroy(v);
}

static const struct {
    enum sl_grammar_kind kind;
    const char *text, *says;
} refused[] = {
    {SL_GRAMMAR_REGEX, "(", "')' is missing"},
    {SL_GRAMMAR_CHOICE, "[]", "at least one"},
    {SL_GRAMMAR_CHOICE, "[1]", "choice[0]"},
    {SL_GRAMMAR_JSON_SCHEMA, "{", "not JSON"},
    {SL_GRAMMAR_JSON_SCHEMA, "{\"type\":\"stsring\"}", "/type: not the name of a type"},
    {SL_GRAMMAR_JSON_SCHEMA, "{\"properties\":{\"a\":{\"pattern\":\"(?<=x)a\"}}}",
     "/properties/a/pattern: regex: look-behind"},
    {SL_GRAMMAR_JSON_SCHEMA, "{\"$ref\":\"#/nowhere\"}", "leads nowhere"},
    {SL_GRAMMAR_JSON_SCHEMA,
     "{\"type\":\"array\",\"items\":{\"type\":\"boolean\"},\"uniqueItems\":true,\"minItems\":3}",
     "no text satisfies it"},
    {SL_GRAMMAR_JSON_SCHEMA, /* such arrays have at most 32 items */
     "{\"type\":\"array\",\"contains\":{\"const\":1},\"unevaluatedItems\":{\"type\":\"null\"},"
     "\"minItems\":33}",
     "no text satisfies it"},
    {SL_GRAMMAR_JSON_SCHEMA, "{\"items\":{\"uniqueItems\":true,\"minItems\":1025}}",
     "schema: /items/minItems: more than 1024 items that differ"},
    {SL_GRAMMAR_JSON_SCHEMA, /* there are four such objects */
     "{\"type\":\"array\",\"uniqueItems\":true,\"minItems\":5,\"items\":{\"type\":\"object\","
     "\"properties\":{\"a\":{\"type\":\"boolean\"},\"b\":{\"type\":\"boolean\"}},\"required\":["
     "\"a\","
     "\"b\"],\"additionalProperties\":false}}",
     "no text satisfies it"},
    {SL_GRAMMAR_JSON_SCHEMA, "{\"$ref\":\"#\"}", "leads back to itself"},
    {SL_GRAMMAR_JSON_SCHEMA, "{\"allOf\":[{\"$ref\":\"#\"}]}", "leads back to itself"},
    {SL_GRAMMAR_JSON_SCHEMA, "{\"items\":{\"format\":\"idn-hostname\"}}",
     "/items/format: \"idn-hostname\""},
    {SL_GRAMMAR_JSON_SCHEMA, "{\"$recursiveRef\":\"#\"}", "$recursiveRef"},
    {SL_GRAMMAR_JSON_SCHEMA, "false", "no text satisfies it"},
    {SL_GRAMMAR_JSON_SCHEMA, "{\"type\":\"string\",\"minLength\":3,\"maxLength\":2}", "no text"},
    {SL_GRAMMAR_JSON_SCHEMA,
     "{\"type\":\"object\",\"properties\":{\"a\":false},\"required\":[\"a\"]}", "no text"},
    {SL_GRAMMAR_EBNF, "root ::= foo", "no such rule: foo"},
    {SL_GRAMMAR_EBNF, "root ::= a\n\nb ::= \"c\"", "line 1: no such rule: a"},
    {SL_GRAMMAR_EBNF, "x ::= \"a\"", "no such rule: root"},
    {SL_GRAMMAR_EBNF, "root ::= a \"x\"\na ::= b \"y\" | \"z\"\nb ::= a \"w\" | \"v\"",
     "left recursion"},
    {SL_GRAMMAR_EBNF, "root ::= (\"a\"", "missing )"},
    {SL_GRAMMAR_EBNF, "root ::= \"a\" \"b", "does not end"},
    {SL_GRAMMAR_EBNF, "root ::= \"x\" root", "no text"},
    {SL_GRAMMAR_EBNF, "start: \"a\"\n%declare X\n", "line 2: not supported: % declare"},
    {SL_GRAMMAR_EBNF, "start: NAME\n%import python.NAME\n", "line 2: %import knows"},
    {SL_GRAMMAR_EBNF, "start: NAME\n\n%import common.NAME\n",
     "line 3: module common has no terminal NAME"},
    {SL_GRAMMAR_EBNF, "%import common (LF, CR\nstart: LF", "line 2: missing )"},
    {SL_GRAMMAR_EBNF, "LF: \"x\"\nstart: LF\n%import common.LF\n", "defined twice: LF"},
    {SL_GRAMMAR_EBNF, "start: \"\\uD83D\"\n", "line 1: half of a surrogate pair"},
    {SL_GRAMMAR_EBNF, "start: \"x\" rest\nrest: rest \"y\"\n", "line 1: no text"},
    {SL_GRAMMAR_STRUCTURAL,
     "{\"format\":{\"type\":\"grammar\",\"grammar\":\"root ::= \\\"a\\\"\\n | "
     "b\\n\",\"label\":\"here\"}}",
     "here: grammar: line 2: no such rule: b"},
    {SL_GRAMMAR_STRUCTURAL,
     "{\"format\":{\"type\":\"grammar\",\"grammar\":\"root ::= \\\"a\\\" root | "
     "\\\"\\\"\",\"pattern\":"
     "\"^a$\"}}",
     "rules that lead back to themselves"},
    {SL_GRAMMAR_STRUCTURAL,
     "{\"format\":{\"type\":\"grammar\",\"grammar\":\"root ::= "
     "\\\"a</p>\\\"\",\"excludes\":[\"</p>\"]}}",
     "line 1: no text satisfies it without </p>"},
    {SL_GRAMMAR_STRUCTURAL,
     "{\"format\":{\"type\":\"grammar\",\"syntax\":\"lark\",\"grammar\":\"start: \\\"<\\\" %json "
     "{}\","
     "\"excludes\":[\"</p>\"]}}",
     "%json where a text may not have </p>"},
    {SL_GRAMMAR_STRUCTURAL,
     "{\"format\":{\"type\":\"grammar\",\"spelling\":\"json\",\"grammar\":\"start: %json {}\"}}",
     "%json is not supported in the content of a JSON string"},
    {SL_GRAMMAR_STRUCTURAL,
     "{\"format\":{\"type\":\"grammar\",\"grammar\":\"\",\"syntax\":\"abnf\"}}", "syntax abnf"},
    {SL_GRAMMAR_STRUCTURAL, "{\"format\":{\"type\":\"grammar\"}}", "a grammar is not a string"},
    {SL_GRAMMAR_EBNF, "%llguidance {\"a\": 1}\nstart: \"a\"", "options are not supported"},
    {SL_GRAMMAR_EBNF, "start: a\na[capture, max_tokens=9]: /.*/",
     "line 2: attribute is not supported: max_tokens"},
    {SL_GRAMMAR_EBNF, "start: a\na[capture=9]: /.*/", "value must be a string"},
    {SL_GRAMMAR_EBNF, "start: a\na[capture b]: /.*/", "] is expected after the attributes"},
    {SL_GRAMMAR_STRUCTURAL, "{\"format\":{}}", "a format is not an object with a type"},
    {SL_GRAMMAR_STRUCTURAL, "{\"format\":{\"type\":\"magic\"}}", "type magic"},
    {SL_GRAMMAR_STRUCTURAL, "{\"format\":{\"type\":\"ref\",\"name\":\"x\"}}",
     "no such rule before: x"},
    {SL_GRAMMAR_STRUCTURAL,
     "{\"format\":{\"type\":\"json_schema\",\"label\":\"here\",\"json_schema\":{\"properties\":{"
     "\"a\":{"
     "\"format\":\"iri\"}}}}}",
     "here: schema: /properties/a/format: \"iri\" is not supported"},
    {SL_GRAMMAR_EBNF, "start: %json {\"properties\":{\"a\":{\"format\":\"iri\"}}}", "iri"},
    {SL_GRAMMAR_STRUCTURAL,
     "{\"structures\":[{\"begin\":\"<a>\",\"end\":\"\",\"schema\":{\"properties\":{\"a\":{"
     "\"format\":\"iri\"}}}}],\"triggers\":[\"<a\"]}",
     "iri"},
    {SL_GRAMMAR_STRUCTURAL,
     "{\"structures\":[{\"begin\":\"<a>\",\"schema\":{},\"end\":\"\"}],"
     "\"triggers\":[\"<b\"]}",
     "no trigger"},
};

/* Numbers whose remainders are too many to be searched: what may go on, and what may not, against
 * all multiples written out. */
static const struct {
    const char *schema;
    int64_t k, min, max; /* in units of the last digit that counts */
    int scale;           /* digits behind the point that count */
} multiples[] = {
    {"{\"type\":\"integer\",\"multipleOf\":10007,\"minimum\":0,\"maximum\":999999}", 10007, 0,
     999999, 0},
    {"{\"type\":\"integer\",\"multipleOf\":1009,\"minimum\":31000,\"maximum\":40100}", 1009, 31000,
     40100, 0},
    {"{\"multipleOf\":12.34567,\"type\":\"number\",\"minimum\":5,\"exclusiveMaximum\":2000.5}",
     1234567, 500000, 200049999, 5},
    {"{\"multipleOf\":0.0123,\"type\":\"number\",\"minimum\":0,\"maximum\":7}", 123, 0, 70000, 4},
    {"{\"multipleOf\":0.1237,\"type\":\"number\",\"minimum\":0.2,\"maximum\":31.05}", 1237, 2000,
     310500, 4},
};

static bool some_begins_with(size_t i, const char *prefix)
{
    char text[64];
    int64_t unit = 1;
    for (int s = 0; s < multiples[i].scale; s++)
        unit *= 10;
    for (int64_t v = 0; v <= multiples[i].max; v += multiples[i].k) {
        if (v < multiples[i].min)
            continue;
        if (unit > 1)
            snprintf(text, sizeof text, "%lld.%0*lld000000000", (long long)(v / unit),
                     multiples[i].scale, (long long)(v % unit));
        else
            snprintf(text, sizeof text, "%lld.000000000", (long long)v);
        if (strncmp(text, prefix, strlen(prefix)) == 0)
            return true;
    }
    return false;
}

static void test_multiples(void **state)
{
    (void)state;
    for (size_t i = 0; i < SL_COUNT(multiples); i++) {
        struct sl_grammar_spec spec = {.kind = SL_GRAMMAR_JSON_SCHEMA,
                                       .text = multiples[i].schema,
                                       .n = strlen(multiples[i].schema),
                                       .style.whole_floats = true};
        struct sl_grammar *g = NULL;
        struct sl_error err;
        struct sl_rng r = {.seed = 5 + i};
        size_t n_yes = 0;
        assert_int_equal(sl_grammar_compile(&spec, NULL, &g, &err), 0);
        for (int round = 0; round < 600; round++) {
            char text[16] = "";
            /* along some multiple, then one byte that may be another */
            for (size_t n = 0; n < 10; n++) {
                text[n] = "0123456789."[sl_rng_below(&r, 11)];
                text[n + 1] = '\0';
                bool yes, want = some_begins_with(i, text);
                size_t at = 0;
                assert_int_equal(sl_grammar_matches(g, text, n + 1, &yes, &at, &err), 0);
                if ((at == n + 1) != want)
                    fail_msg("%s: %s: %zu bytes may come, %s", multiples[i].schema, text, at,
                             want ? "all should" : "not all should");
                n_yes += want;
                if (!want && round % 4 != 0)
                    n--; /* another one in its place, mostly */
                else if (!want)
                    break;
                if (sl_rng_below(&r, 40) == 0)
                    break;
            }
        }
        assert_true(n_yes > 1000);
        sl_grammar_destroy(g);
    }
}

/* Patterns that may match anywhere in a string of bounded length: any text may come as long as
 * there is room for the shortest match behind it, though the states of the two are too many to
 * search. */
static const struct {
    const char *pattern, *shortest;
} anywhere[] = {
    {"arn:aws[A-Za-z0-9-]{0,64}:cloudformation:[A-Za-z0-9-]{1,64}:[0-9]{12}:type/.+",
     "arn:aws:cloudformation:a:123456789012:type/x"},
    {"([a-z]{2,40}::){2}[A-Z0-9]{3,40}(::M)?", "ab::ab::A00"},
    {"(\\\\d{3}-?){2}[^a-z]{4,}\\u00e9", "123456....\xC3\xA9"},
};

static void test_lengths(void **state)
{
    (void)state;
    enum { MAX = 1024 };
    for (size_t i = 0; i < SL_COUNT(anywhere); i++) {
        char schema[300], text[MAX + 100];
        struct sl_error err;
        bool yes;
        size_t at = 0, n = strlen(anywhere[i].shortest), n_chars = 0;
        for (const char *c = anywhere[i].shortest; *c != 0; c++)
            n_chars += ((uint8_t)*c & 0xC0) != 0x80;
        snprintf(schema, sizeof schema, "{\"type\":\"string\",\"maxLength\":%d,\"pattern\":\"%s\"}",
                 MAX, anywhere[i].pattern);
        struct sl_grammar *g = rig_compile(SL_GRAMMAR_JSON_SCHEMA, schema, NULL);
        for (size_t room = n_chars + 2; room-- > n_chars - 2;) {
            const size_t before = MAX - room; /* characters, an opening quote before them */
            text[0] = '"';
            memset(text + 1, '~', before);
            snprintf(text + 1 + before, sizeof text - 1 - before, "%s\"", anywhere[i].shortest);
            assert_int_equal(sl_grammar_matches(g, text, before + n + 2, &yes, &at, &err), 0);
            if (yes != (room >= n_chars) || (!yes && at != 1 + MAX - n_chars))
                fail_msg("%s, of %zu characters, %zu left: %s, at byte %zu", anywhere[i].pattern,
                         n_chars, room, yes ? "matches" : "does not match", at);
        }
        sl_grammar_destroy(g);
    }
}

static void test_refused(void **state)
{
    (void)state;
    for (size_t i = 0; i < SL_COUNT(refused); i++) {
        struct sl_grammar_spec spec = {
            .kind = refused[i].kind, .text = refused[i].text, .n = strlen(refused[i].text)};
        struct sl_grammar *g = NULL;
        struct sl_error err = {0};
        int rc = sl_grammar_compile(&spec, NULL, &g, &err);
        if (rc == 0)
            fail_msg("%s is not refused", refused[i].text);
        if (strstr(err.msg, refused[i].says) == NULL)
            fail_msg("%s: \"%s\" does not say \"%s\"", refused[i].text, err.msg, refused[i].says);
        sl_grammar_destroy(g);
    }
}

/* Every grammar cut at every byte, in memory that ends with the text: it compiles or is refused,
 * and nothing behind the text is read. */
static void test_cut(void **state)
{
    (void)state;
    for (size_t i = 0; i < SL_COUNT(table) + SL_COUNT(cut); i++) {
        bool own = i >= SL_COUNT(table);
        const char *whole = own ? cut[i - SL_COUNT(table)] : table[i].text;
        for (size_t n = 0; n < strlen(whole); n++) {
            char *text = sl_malloc(n + (n == 0));
            assert_non_null(text);
            memcpy(text, whole, n);
            struct sl_grammar_spec spec = {
                .kind = own ? SL_GRAMMAR_EBNF : table[i].kind, .text = text, .n = n};
            struct sl_grammar *g = NULL;
            struct sl_error err = {0};
            int rc = sl_grammar_compile(&spec, NULL, &g, &err);
            assert_true(rc == 0 || (rc < 0 && err.msg[0] != '\0'));
            sl_grammar_destroy(g);
            sl_free(text);
        }
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_table),       cmocka_unit_test(test_cut),
        cmocka_unit_test(test_lengths),     cmocka_unit_test(test_first_masks),
        cmocka_unit_test(test_masks),       cmocka_unit_test(test_wide_masks),
        cmocka_unit_test(test_many_unlike), cmocka_unit_test(test_forced),
        cmocka_unit_test(test_refused),     cmocka_unit_test(test_multiples),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
