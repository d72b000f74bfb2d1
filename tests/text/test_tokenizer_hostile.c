/* SPDX-License-Identifier: MIT
 * test_tokenizer_hostile.c - malformed and malicious vocabularies: each is refused with a message
 * that names what is wrong, or read in the documented way; and running out of memory anywhere in
 * loading and encoding ends in SL_ENOMEM without a leak.
 */

#include "base/buf.h"
#include "base/check.h"
#include "base/limits.h"
#include "base/str.h"
#include "base/sys.h"
#include "sluice.h"
#include "text/tokenizer/tokenizer.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#define MODEL(rest) "{\"model\":{\"type\":\"BPE\"," rest "}"
#define GOOD        "\"vocab\":{\"a\":0,\"b\":1,\"ab\":2},\"merges\":[\"a b\"]}"

#define TEKKEN(size, vocab, specials)                                                              \
    "{\"config\":{\"pattern\":\".\",\"default_num_special_tokens\":1,\"default_vocab_size\":" size \
    "},\"vocab\":" vocab ",\"special_tokens\":" specials "}"

struct json_case {
    const char *json;
    int code;
    const char *names; /* a part of the message */
};

static const struct json_case json_cases[] = {
    {"", SL_EFORMAT, "object"},
    {"[]", SL_EFORMAT, "object"},
    {"{}", SL_EFORMAT, "model"},
    {"{\"model\":3}", SL_EFORMAT, "object"},
    {"{\"model\":{}}", SL_EFORMAT, "vocab"},
    {"{\"model\":null}", SL_EFORMAT, "object"},
    {"{\"model\":{\"vocab\":{}", SL_EFORMAT, "byte"},
    {MODEL("\"vocab\":{},\"merges\":[]}"), SL_EFORMAT, "empty"},
    {MODEL("\"vocab\":[],\"merges\":[]}"), SL_EFORMAT, "vocab"},
    {MODEL("\"vocab\":{\"a\":0}}"), SL_EFORMAT, "merges"},
    {MODEL("\"vocab\":{\"a\":-1},\"merges\":[]}"), SL_EFORMAT, "\"a\""},
    {MODEL("\"vocab\":{\"a\":1.5},\"merges\":[]}"), SL_EFORMAT, "\"a\""},
    {MODEL("\"vocab\":{\"a\":\"0\"},\"merges\":[]}"), SL_EFORMAT, "\"a\""},
    {MODEL("\"vocab\":{\"a\":99999999999999999999},\"merges\":[]}"), SL_EFORMAT, "\"a\""},
    {MODEL("\"vocab\":{\"a\":4294967296},\"merges\":[]}"), SL_ELIMIT, "\"a\""},
    {MODEL("\"vocab\":{\"a\":4194304},\"merges\":[]}"), SL_ELIMIT, "4194304"},
    {MODEL("\"vocab\":{\"a\":0,\"b\":0},\"merges\":[]}"), SL_EFORMAT, "\"b\""},
    {MODEL("\"vocab\":{\"a\":0,\"a\":1},\"merges\":[]}"), SL_EFORMAT, "\"a\""},
    {MODEL("\"vocab\":{\"a\":0,\"a\":1},\"merges\":[]}"), SL_EFORMAT, "with the ids 0 and 1"},
    {MODEL("\"vocab\":{\"a\":0,\"b\":0},\"merges\":[]}"), SL_EFORMAT,
     "\"a\" and \"b\" both have the id 0"},
    /* What a no-break space that became a space makes of a merge: which pair is it? */
    {MODEL("\"vocab\":{\" \":0,\"  \":1,\"    \":2},\"merges\":[\"    \"]}"), SL_EFORMAT,
     "merge 0 \"    \" is not one pair"},
    {MODEL("\"vocab\":{\"a\":0,},\"merges\":[]}"), SL_EFORMAT, "byte"},
    {"{\"config\":{},\"vocab\":[]}", SL_EFORMAT, "default_vocab_size"},
    {TEKKEN("\"x\"", "[]", "[]"), SL_EFORMAT, "default_vocab_size"},
    {TEKKEN("3", "[]", "[]"), SL_EFORMAT, "no entry has rank 0 of 2"},
    {TEKKEN("1", "[]", "[]"), SL_EFORMAT, "1 special tokens in a vocabulary of 1"},
    {TEKKEN("3", "{}", "[]"), SL_EFORMAT, "vocab is not an array"},
    {TEKKEN("2", "[{\"rank\":0,\"token_bytes\":\"YQ=\"}]", "[]"), SL_EFORMAT, "base64"},
    {TEKKEN("2", "[{\"rank\":-1,\"token_bytes\":\"YQ==\"}]", "[]"), SL_EFORMAT, "rank -1"},
    {TEKKEN("2", "[{\"rank\":0}]", "[]"), SL_EFORMAT, "vocab[0]"},
    {TEKKEN("2", "[3]", "[]"), SL_EFORMAT, "vocab[0]"},
    {TEKKEN("2", "[{\"rank\":0,\"token_bytes\":\"YQ==\"},{\"rank\":0,\"token_bytes\":\"Yg==\"}]",
            "[]"),
     SL_EFORMAT, "both have the id 1"},
    {TEKKEN("2", "[{\"rank\":0,\"token_bytes\":\"YQ==\"}]", "[{\"rank\":1,\"token_str\":\"b\"}]"),
     SL_EFORMAT, "special_tokens[0]"},
    {TEKKEN("2", "[{\"rank\":0,\"token_bytes\":\"YQ==\"}]", "[{\"rank\":0,\"token_str\":\"a\"}]"),
     SL_EFORMAT, "listed twice"},
    {TEKKEN("2", "[{\"rank\":0,\"token_bytes\":\"YQ==\"}]", "3"), SL_EFORMAT, "special_tokens"},
    {MODEL("\"vocab\":{\"\\ud800\":0},\"merges\":[]}"), SL_EFORMAT, "escape"},
    {MODEL("\"vocab\":{\"\\udc00\":0},\"merges\":[]}"), SL_EFORMAT, "escape"},
    {MODEL("\"vocab\":{\"\\x\":0},\"merges\":[]}"), SL_EFORMAT, "escape"},
    {MODEL("\"vocab\":{\"\xFF\":0},\"merges\":[]}"), SL_EFORMAT, "UTF-8"},
    {MODEL("\"vocab\":{\"a\":0},\"merges\":{}}"), SL_EFORMAT, "merges"},
    {MODEL("\"vocab\":{\"a\":0},\"merges\":[3]}"), SL_EFORMAT, "string"},
    {MODEL("\"vocab\":{\"a\":0},\"merges\":[\"a\"]}"), SL_EFORMAT, "merge 0"},
    {MODEL("\"vocab\":{\"a\":0},\"merges\":[\"a x\"]}"), SL_EFORMAT, "merge 0: \"x\""},
    {MODEL("\"vocab\":{\"a\":0,\"b\":1},\"merges\":[\"a b\"]}"), SL_EFORMAT, "merge 0"},
    {MODEL("\"vocab\":{\"a\":0},\"merges\":[[\"a\"]]}"), SL_EFORMAT, "pair"},
    {MODEL("\"vocab\":{\"a\":0},\"merges\":[[\"a\",\"a\",\"a\"]]}"), SL_EFORMAT, "pair"},
    {MODEL("\"dropout\":0.1," GOOD), SL_EUNSUPPORTED, "dropout"},
    {MODEL("\"fuse_unk\":1," GOOD), SL_EFORMAT, "fuse_unk"},
    {MODEL("\"unk_token\":1," GOOD), SL_EFORMAT, "unk_token"},
    {"{\"model\":{\"type\":\"Magic\"," GOOD "}", SL_EUNSUPPORTED, "Magic"},
    {"{\"model\":{\"type\":\"Unigram\",\"vocab\":[[\"a\"]]}}", SL_EFORMAT, "score"},
    {"{\"model\":{\"type\":\"Unigram\",\"vocab\":[[\"a\",\"b\"]]}}", SL_EFORMAT, "score"},
    {"{\"model\":{\"type\":\"Unigram\",\"vocab\":[[\"a\",1e999]]}}", SL_EFORMAT, "score"},
    {"{\"model\":{\"type\":\"Unigram\",\"unk_id\":7,\"vocab\":[[\"a\",-1]]}}", SL_EFORMAT,
     "unk_id"},
    {"{\"normalizer\":{\"type\":\"Rot13\"},\"model\":{\"type\":\"BPE\"," GOOD "}", SL_EUNSUPPORTED,
     "Rot13"},
    {"{\"pre_tokenizer\":{\"type\":\"UnicodeScripts\"},\"model\":{\"type\":\"BPE\"," GOOD "}",
     SL_EUNSUPPORTED, "UnicodeScripts"},
    {"{\"decoder\":{\"type\":\"CTC\"},\"model\":{\"type\":\"BPE\"," GOOD "}", SL_EUNSUPPORTED,
     "CTC"},
    {"{\"post_processor\":{\"type\":\"New\"},\"model\":{\"type\":\"BPE\"," GOOD "}",
     SL_EUNSUPPORTED, "New"},
    {"{\"pre_tokenizer\":[],\"model\":{\"type\":\"BPE\"," GOOD "}", SL_EFORMAT, "pre_tokenizer"},
    {"{\"pre_tokenizer\":{\"type\":\"Split\",\"pattern\":{\"Regex\":\"[a&&[^b]]\"}},"
     "\"model\":{\"type\":\"BPE\"," GOOD "}",
     SL_EUNSUPPORTED, "class"},
    {"{\"pre_tokenizer\":{\"type\":\"Split\",\"pattern\":{\"Regex\":\"(\"}},"
     "\"model\":{\"type\":\"BPE\"," GOOD "}",
     SL_EUNSUPPORTED, "pattern"},
    {"{\"pre_tokenizer\":{\"type\":\"Split\",\"pattern\":{\"Regex\":\"a\"},\"behavior\":\"Odd\"},"
     "\"model\":{\"type\":\"BPE\"," GOOD "}",
     SL_EUNSUPPORTED, "Odd"},
    {"{\"pre_tokenizer\":{\"type\":\"Sequence\"},\"model\":{\"type\":\"BPE\"," GOOD "}", SL_EFORMAT,
     "pretokenizers"},
    {"{\"normalizer\":{\"type\":\"Precompiled\",\"precompiled_charsmap\":\"!!\"},"
     "\"model\":{\"type\":\"BPE\"," GOOD "}",
     SL_EFORMAT, "base64"},
    {"{\"normalizer\":{\"type\":\"Precompiled\",\"precompiled_charsmap\":\"/////w==\"},"
     "\"model\":{\"type\":\"BPE\"," GOOD "}",
     SL_EFORMAT, "charsmap"},
    {"{\"added_tokens\":{},\"model\":{\"type\":\"BPE\"," GOOD "}", SL_EFORMAT, "added_tokens"},
    {"{\"added_tokens\":[{\"content\":\"x\"}],\"model\":{\"type\":\"BPE\"," GOOD "}", SL_EFORMAT,
     "added_tokens[0]"},
    {"{\"added_tokens\":[{\"id\":1,\"content\":\"x\"}],\"model\":{\"type\":\"BPE\"," GOOD "}",
     SL_EFORMAT, "\"x\""},
    {"{\"added_tokens\":[{\"id\":9999999,\"content\":\"x\"}],\"model\":{\"type\":\"BPE\"," GOOD "}",
     SL_ELIMIT, "\"x\""},
    {"{\"added_tokens\":[{\"id\":5}],\"model\":{\"type\":\"BPE\"," GOOD "}", SL_EFORMAT, "content"},
    {"{\"post_processor\":{\"type\":\"BertProcessing\",\"cls\":[\"c\",99],\"sep\":[\"s\",0]},"
     "\"model\":{\"type\":\"BPE\"," GOOD "}",
     SL_EFORMAT, "out of range"},
    {"{\"post_processor\":{\"type\":\"TemplateProcessing\",\"single\":[{\"SpecialToken\":{\"id\":"
     "\"x\"}}],\"special_tokens\":{}},\"model\":{\"type\":\"BPE\"," GOOD "}",
     SL_EFORMAT, "\"x\""},
    {"{\"decoder\":{\"type\":\"Sequence\",\"decoders\":[{\"type\":\"Fuse\"},{\"type\":\"Replace\","
     "\"pattern\":{\"String\":\"ab\"},\"content\":\"\"}]},\"model\":{\"type\":\"BPE\"," GOOD "}",
     SL_EUNSUPPORTED, "Replace"},
};

static void test_json(void **state)
{
    (void)state;
    for (size_t i = 0; i < SL_COUNT(json_cases); i++) {
        const struct json_case *c = &json_cases[i];
        struct sl_tokenizer *t = NULL;
        struct sl_error err = {0};
        int rc = sl_tokenizer_from_json(c->json, strlen(c->json), NULL, 0, &t, &err);
        if (rc != c->code || strstr(err.msg, c->names) == NULL)
            fail_msg("%s\n  gave %s \"%s\", not %s with %s", c->json, sl_code_name(rc), err.msg,
                     sl_code_name(c->code), c->names);
    }
}

/* 1,000 open brackets must not become 1,000 frames. */
static void test_depth(void **state)
{
    (void)state;
    struct sl_buf b = {0};
    struct sl_tokenizer *t = NULL;
    struct sl_error err = {0};
    sl_buf_puts(&b, "{\"x\":");
    for (int i = 0; i < 100000; i++)
        sl_buf_putc(&b, '[');
    assert_int_equal(sl_tokenizer_from_json(b.data, b.n_bytes, NULL, 0, &t, &err), SL_EFORMAT);
    assert_non_null(strstr(err.msg, "deep"));
    sl_buf_deinit(&b);
}

static void test_giant_entry(void **state)
{
    (void)state;
    struct sl_buf b = {0};
    struct sl_tokenizer *t = NULL;
    struct sl_error err = {0};
    sl_buf_puts(&b, "{\"model\":{\"type\":\"BPE\",\"vocab\":{\"");
    for (int i = 0; i < 70000; i++)
        sl_buf_putc(&b, 'a');
    sl_buf_puts(&b, "\":0},\"merges\":[]}}");
    assert_int_equal(sl_tokenizer_from_json(b.data, b.n_bytes, NULL, 0, &t, &err), SL_ELIMIT);
    assert_non_null(strstr(err.msg, "70000 bytes"));
    sl_buf_deinit(&b);
}

/* A byte token is "<0x" and two upper-case digits; everything else is a piece like others. */
static void test_byte_spellings(void **state)
{
    (void)state;
    static const char json[] =
        "{\"model\":{\"type\":\"BPE\",\"byte_fallback\":true,\"unk_token\":\"u\",\"vocab\":{\"u\":"
        "0,"
        "\"<0x-1>\":1,\"<0x1>\":2,\"<0xGG>\":3,\"<0x0041>\":4,\"<0x41>\":5,\"<0x>\":6},\"merges\":"
        "[]},\"decoder\":{\"type\":\"ByteFallback\"}}";
    struct sl_tokenizer *t = NULL;
    struct sl_ids ids = {0};
    char *text = NULL;
    size_t n = 0;
    static const int32_t all[] = {1, 2, 3, 4, 5, 6};
    assert_int_equal(sl_tokenizer_from_json(json, strlen(json), NULL, 0, &t, NULL), 0);
    assert_int_equal(sl_tokenizer_encode_into(t, "A\x01", 2, 0, &ids, NULL), 0);
    assert_int_equal(ids.n, 2);
    assert_int_equal(ids.data[0], 5);
    assert_int_equal(ids.data[1], 0);
    assert_int_equal(sl_tokenizer_decode(t, all, 6, false, &text, &n, NULL), 0);
    assert_string_equal(text, "<0x-1><0x1><0xGG><0x0041>A<0x>");
    sl_free(text);
    sl_free(ids.data);
    sl_tokenizer_destroy(t);
}

/* Merges in a circle, and merges of rank below those that make their parts. */
static void test_odd_merges(void **state)
{
    (void)state;
    static const char json[] =
        "{\"model\":{\"type\":\"BPE\",\"vocab\":{\"\":0,\"a\":1,\"aa\":2,\"aaa\":3,\"aaaa\":4},"
        "\"merges\":[\"aa aa\",\"aa a\",\"a aa\",\"a a\",[\"a\",\"\"],[\"\",\"a\"]]}}";
    struct sl_tokenizer *t = NULL;
    struct sl_buf b = {0};
    assert_int_equal(sl_tokenizer_from_json(json, strlen(json), NULL, 0, &t, NULL), 0);
    for (size_t n = 1; n < 400; n++) {
        /* whatever the order, what comes out spells what went in */
        struct sl_ids ids = {0};
        size_t total = 0, len;
        sl_buf_putc(&b, 'a');
        assert_int_equal(sl_tokenizer_encode_into(t, b.data, n, 0, &ids, NULL), 0);
        for (size_t i = 0; i < ids.n; i++) {
            assert_non_null(sl_tokenizer_piece(t, ids.data[i], &len));
            total += len;
        }
        assert_int_equal(total, n);
        sl_free(ids.data);
    }
    sl_buf_deinit(&b);
    sl_tokenizer_destroy(t);
}

/* Patterns that would run for ever end with an error in seconds. */
static void test_hostile_patterns(void **state)
{
    (void)state;
    static const char *const patterns[] = {"(a+)+b", "(a|aa)+$b", "a*a*a*a*a*a*a*a*b",
                                           "(?:a?){60}a{60}c"};
    struct sl_buf text = {0};
    for (int i = 0; i < 300000; i++)
        sl_buf_putc(&text, 'a');
    for (size_t i = 0; i < SL_COUNT(patterns); i++) {
        struct sl_tokenizer *t = NULL;
        struct sl_ids ids = {0};
        struct sl_error err = {0};
        static const char ranks[] = "YQ== 0\nYg== 1\n";
        assert_int_equal(sl_tokenizer_from_tiktoken(ranks, strlen(ranks), patterns[i], &t, &err),
                         0);
        uint64_t t0 = sl_now_ns();
        int rc = sl_tokenizer_encode_into(t, text.data, text.n_bytes, 0, &ids, &err);
        assert_true(rc == SL_ELIMIT || rc == 0);
        assert_true(sl_now_ns() - t0 < 20u * 1000000000u);
        sl_free(ids.data);
        sl_tokenizer_destroy(t);
    }
    sl_buf_deinit(&text);
}

static void test_tiktoken(void **state)
{
    (void)state;
    static const struct {
        const char *data;
        int code;
        const char *names;
    } cases[] = {
        {"", SL_EUNSUPPORTED, "0 ranks"},
        {"YQ==", SL_EFORMAT, "line 1"},
        {"YQ== x", SL_EFORMAT, "line 1"},
        {"YQ== 0\nYQ== 1", SL_EFORMAT, "line 2"},
        {"YQ== 0\nYg== 0", SL_EFORMAT, "line 2"},
        {"Y=== 0", SL_EFORMAT, "base64"},
        {"YQ= 0", SL_EFORMAT, "base64"},
        {"Y!== 0", SL_EFORMAT, "base64"},
        {"YQ== 99999999", SL_ELIMIT, "line 1"},
        {" 0", SL_EFORMAT, "base64"},
        {"YQ== 0\r\nYg== 1\r\n", SL_EUNSUPPORTED, "2 ranks"},
    };
    for (size_t i = 0; i < SL_COUNT(cases); i++) {
        struct sl_tokenizer *t = NULL;
        struct sl_error err = {0};
        int rc = sl_tokenizer_from_tiktoken(cases[i].data, strlen(cases[i].data), NULL, &t, &err);
        if (rc != cases[i].code || strstr(err.msg, cases[i].names) == NULL)
            fail_msg("case %zu gave %s \"%s\"", i, sl_code_name(rc), err.msg);
    }
}

static void test_spm(void **state)
{
    (void)state;
    static const struct {
        const char *data;
        size_t n;
    } cases[] = {
        {"", 0},
        {"\x0A", 1},             /* length missing */
        {"\x0A\x05\x0A\x01", 4}, /* length beyond the end */
        {"\x0A\x03\x0A\x01"
         "a",
         5},                                                      /* no unknown piece */
        {"\x08\x01", 2},                                          /* pieces of another wire type */
        {"\x0A\x80\x80\x80\x80\x80\x80\x80\x80\x80\x80\x01", 12}, /* varint too long */
        {"\x0A\x02\x18\x63", 4},                                  /* no text, type 99 */
        {"\x0B\x00", 2},                                          /* group */
        {"\x0A\x03\x0A\x01"
         "a\x0A\x03\x0A\x01"
         "a",
         10},                                              /* twice */
        {"\x12\x02\x18\x03\x0A\x05\x0A\x01u\x18\x02", 11}, /* model type 3 */
    };
    for (size_t i = 0; i < SL_COUNT(cases); i++) {
        struct sl_tokenizer *t = NULL;
        struct sl_error err = {0};
        int rc = sl_tokenizer_from_spm(cases[i].data, cases[i].n, &t, &err);
        if (rc != SL_EFORMAT && rc != SL_EUNSUPPORTED)
            fail_msg("case %zu gave %s", i, sl_code_name(rc));
        assert_true(err.msg[0] != '\0');
    }
}

static void test_gguf(void **state)
{
    (void)state;
    static const char *const tokens[] = {"<unk>", "a", "b"};
    static const uint32_t lens[] = {5, 1, 1};
    static const float scores[] = {0, -1, -2}, nan_scores[] = {0, 0.0f / 0.0f, 0};
    static const char *const merges[] = {"ab", "a c"};
    static const uint32_t merge_lens[] = {2, 3};
    const struct sl_vocab_gguf base = {.model = "gpt2",
                                       .pre = "gpt-2",
                                       .n_tokens = 3,
                                       .tokens = tokens,
                                       .token_bytes = lens,
                                       .bos = -1,
                                       .eos = -1,
                                       .unk = -1,
                                       .sep = -1,
                                       .pad = -1,
                                       .cls = -1,
                                       .mask = -1,
                                       .eot = -1,
                                       .add_bos = -1,
                                       .add_eos = -1,
                                       .add_space_prefix = -1,
                                       .remove_extra_whitespaces = -1};
    struct sl_vocab_gguf v[8] = {base, base, base, base, base, base, base, base};
    v[0].model = "plamo2";
    v[1].pre = "unheard-of";
    v[2].bos = 3;
    v[3].model = "llama"; /* no scores */
    v[4].model = "t5";
    v[4].scores = nan_scores;
    v[5].n_merges = 1;
    v[5].merges = merges;
    v[5].merge_bytes = merge_lens;
    v[6].n_merges = 1;
    v[6].merges = merges + 1;
    v[6].merge_bytes = merge_lens + 1;
    v[7].eos = -7;
    static const char *const names[] = {"plamo2",    "unheard-of", "bos_token_id", "scores",
                                        "scores[1]", "merges[0]",  "merge 0",      "eos_token_id"};
    for (size_t i = 0; i < SL_COUNT(v); i++) {
        struct sl_tokenizer *t = NULL;
        struct sl_error err = {0};
        int rc = sl_tokenizer_from_gguf(&v[i], &t, &err);
        if (rc == 0 || strstr(err.msg, names[i]) == NULL)
            fail_msg("case %zu gave %s \"%s\"", i, sl_code_name(rc), err.msg);
    }
    struct sl_vocab_gguf good = base;
    struct sl_tokenizer *t = NULL;
    good.model = "llama";
    good.scores = scores;
    good.pre = NULL;
    assert_int_equal(sl_tokenizer_from_gguf(&good, &t, NULL), 0);
    sl_tokenizer_destroy(t);
}

/* ---------------------------------------------------------------- memory runs out */

static int allocs_left;

static void *failing_alloc(size_t n)
{
    return allocs_left-- > 0 ? malloc(n) : NULL;
}

static void *failing_realloc(void *p, size_t n)
{
    return allocs_left-- > 0 ? realloc(p, n) : NULL;
}

static const char pipeline[] =
    "{\"normalizer\":{\"type\":\"Sequence\",\"normalizers\":[{\"type\":\"NFKC\"},{\"type\":"
    "\"BertNormalizer\"},{\"type\":\"Replace\",\"pattern\":{\"Regex\":\"x+\"},\"content\":\"y\"}]},"
    "\"pre_tokenizer\":{\"type\":\"Sequence\",\"pretokenizers\":[{\"type\":\"Split\",\"pattern\":{"
    "\"Regex\":\"[b-d]+\"},\"behavior\":\"Isolated\"},{\"type\":\"Metaspace\",\"replacement\":"
    "\"_\",\"prepend_scheme\":\"first\"}]},\"added_tokens\":[{\"id\":9,\"content\":\"<x>\"}],"
    "\"decoder\":{\"type\":\"WordPiece\",\"prefix\":\"##\",\"cleanup\":true},"
    "\"model\":{\"type\":\"BPE\",\"unk_token\":\"u\",\"vocab\":{\"u\":0,\"a\":1,\"b\":2,\"ab\":3,"
    "\"_\":4},\"merges\":[\"a b\"]}}";

static int load_and_encode(struct sl_error *err)
{
    struct sl_tokenizer *t = NULL;
    struct sl_ids ids = {0};
    char *text = NULL;
    size_t n;
    static const char s[] = "ab abc<x>\xC3\xA9 bbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbabab\xFFxx";
    int rc = sl_tokenizer_from_json(pipeline, strlen(pipeline), NULL, 0, &t, err);
    if (rc == 0)
        rc = sl_tokenizer_encode_into(t, s, strlen(s), SL_ENCODE_ADD_SPECIAL, &ids, err);
    if (rc == 0)
        rc = sl_tokenizer_decode(t, ids.data, ids.n, false, &text, &n, err);
    sl_free(text);
    sl_free(ids.data);
    sl_tokenizer_destroy(t);
    return rc;
}

static void test_no_memory(void **state)
{
    (void)state;
    struct sl_sys sys = sl_sys_real;
    int rc = SL_ENOMEM, n = 0;
    sys.alloc = failing_alloc;
    sys.realloc = failing_realloc;
    sl_sys = &sys;
    for (; rc != 0 && n < 100000; n++) {
        struct sl_error err = {0};
        allocs_left = n;
        rc = load_and_encode(&err);
        if (rc != 0 && rc != SL_ENOMEM) {
            sl_sys = &sl_sys_real;
            fail_msg("allocation %d: %s \"%s\"", n, sl_code_name(rc), err.msg);
        }
    }
    sl_sys = &sl_sys_real;
    assert_int_equal(rc, 0);
    assert_true(n > 50);
    printf("%d allocations failed one by one\n", n - 1);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_json),        cmocka_unit_test(test_depth),
        cmocka_unit_test(test_giant_entry), cmocka_unit_test(test_byte_spellings),
        cmocka_unit_test(test_odd_merges),  cmocka_unit_test(test_hostile_patterns),
        cmocka_unit_test(test_tiktoken),    cmocka_unit_test(test_spm),
        cmocka_unit_test(test_gguf),        cmocka_unit_test(test_no_memory),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
