/* SPDX-License-Identifier: MIT
 * test_detok.c - decoders on small vocabularies with known answers, and the stream against them.
 */
#include "base/buf.h"
#include "base/check.h"
#include "base/str.h"
#include "base/sys.h"
#include "sluice.h"
#include "text/tokenizer/tokenizer.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

/* 0 hello, 1 ▁hello, 2 ##lo, 3 wor</w>, 4 </w>, 5 <0xE4>, 6 <0xBD>, 7 <0xA0>, 8 " ", 9 "", 10 <s>,
 * 11 ▁, 12 ".", 13 "n't", 14 Ġhe, 15 ä (byte E4), 16 ½ (byte BD), 17 ł (byte A0) */
#define VOCAB                                                                                     \
    "\"added_tokens\":[{\"id\":10,\"content\":\"<s>\",\"special\":true}],\"model\":{\"type\":"    \
    "\"WordLevel\",\"unk_token\":\"hello\",\"vocab\":{\"hello\":0,\"\\u2581hello\":1,\"##lo\":2," \
    "\"wor</w>\":3,\"</w>\":4,\"<0xE4>\":5,\"<0xBD>\":6,\"<0xA0>\":7,\" \":8,\"\":9,"             \
    "\"\\u2581\":11,\".\":12,\"n't\":13,\"\\u0120he\":14,\"\\u00e4\":15,\"\\u00bd\":16,"          \
    "\"\\u0142\":17}}}"
#define DECODER(d) "{\"decoder\":" d "," VOCAB

#define LLAMA(stop)                                                                              \
    "{\"type\":\"Sequence\",\"decoders\":[{\"type\":\"Replace\",\"pattern\":{\"String\":"        \
    "\"\\u2581\"},\"content\":\" \"},{\"type\":\"ByteFallback\"},{\"type\":\"Fuse\"},{\"type\":" \
    "\"Strip\",\"content\":\" \",\"start\":1,\"stop\":" stop "}]}"

struct row {
    const char *json;
    int32_t ids[8];
    size_t n;
    const char *text;
};

static const struct row rows[] = {
    {"{" VOCAB, {0, 0}, 2, "hello hello"},
    {"{" VOCAB, {}, 0, ""},
    {DECODER(LLAMA("0")), {1, 1}, 2, "hello hello"},
    {DECODER(LLAMA("0")), {11, 1}, 2, " hello"},
    {DECODER(LLAMA("0")), {9, 1}, 2, "hello"},
    {DECODER(LLAMA("0")), {10, 1}, 2, "<s> hello"},
    {DECODER(LLAMA("0")), {5, 6, 7}, 3, "\xE4\xBD\xA0"},
    {DECODER(LLAMA("0")), {5, 6, 0}, 3, "\xEF\xBF\xBDhello"},
    {DECODER(LLAMA("0")), {5, 6}, 2, "\xEF\xBF\xBD"},
    {DECODER(LLAMA("0")), {6, 5, 6, 7, 7}, 5, "\xEF\xBF\xBD\xE4\xBD\xA0\xEF\xBF\xBD"},
    {DECODER(LLAMA("1")), {1, 8, 8}, 3, "hello "},
    {DECODER(LLAMA("1")), {1, 8, 0, 8}, 4, "hello hello"},
    {DECODER(LLAMA("2")), {0, 8, 5}, 3, "hello \xEF\xBF\xBD"},
    {DECODER("{\"type\":\"Metaspace\",\"replacement\":\"\\u2581\",\"prepend_scheme\":\"always\"}"),
     {1, 1, 11},
     3,
     "hello hello "},
    {DECODER("{\"type\":\"Metaspace\",\"replacement\":\"\\u2581\",\"prepend_scheme\":\"never\"}"),
     {1},
     1,
     " hello"},
    {DECODER("{\"type\":\"WordPiece\",\"prefix\":\"##\",\"cleanup\":true}"),
     {0, 2, 0, 12, 13},
     5,
     "hellolo hello.n't"},
    {DECODER("{\"type\":\"WordPiece\",\"prefix\":\"##\",\"cleanup\":false}"),
     {2, 0, 12},
     3,
     "##lo hello ."},
    {DECODER("{\"type\":\"BPEDecoder\",\"suffix\":\"</w>\"}"), {3, 0, 3}, 3, "wor hellowor"},
    {DECODER("{\"type\":\"BPEDecoder\",\"suffix\":\"</w>\"}"), {3, 4}, 2, "wor "},
    {DECODER("{\"type\":\"ByteLevel\"}"), {0, 14, 15, 16, 17, 8}, 6, "hello he\xE4\xBD\xA0 "},
    {DECODER("{\"type\":\"ByteLevel\"}"), {15, 16}, 2, "\xEF\xBF\xBD"},
    {DECODER("{\"type\":\"ByteLevel\"}"), {17, 0}, 2, "\xEF\xBF\xBDhello"},
};

static void test_known_answers(void **state)
{
    (void)state;
    for (size_t i = 0; i < SL_COUNT(rows); i++) {
        struct sl_tokenizer *t = NULL;
        struct sl_error err = {0};
        struct sl_detok d;
        struct sl_buf b = {0};
        char *text = NULL, piece[1024];
        size_t n = 0;
        if (sl_tokenizer_from_json(rows[i].json, strlen(rows[i].json), NULL, 0, &t, &err) != 0)
            fail_msg("row %zu: %s", i, err.msg);
        assert_int_equal(sl_tokenizer_decode(t, rows[i].ids, rows[i].n, false, &text, &n, NULL), 0);
        if (strcmp(text, rows[i].text) != 0 || n != strlen(rows[i].text))
            fail_msg("row %zu: \"%s\", not \"%s\"", i, text, rows[i].text);
        assert_true(sl_detok_max_bytes(t) <= sizeof(piece));
        sl_detok_init(&d, t, false);
        for (size_t k = 0; k <= rows[i].n; k++) {
            size_t m = k < rows[i].n ? sl_detok_push(&d, rows[i].ids[k], piece)
                                     : sl_detok_finish(&d, piece);
            for (size_t j = 0, len; j < m; j += len)
                assert_true((len = sl_utf8_valid_len(piece + j, m - j)) > 0);
            sl_buf_put(&b, piece, m);
        }
        assert_int_equal(b.n_bytes, n);
        assert_true(n == 0 || memcmp(b.data, text, n) == 0);
        sl_buf_deinit(&b);
        sl_free(text);
        sl_tokenizer_destroy(t);
    }
}

/* A token by itself: as between others, whatever the decoder does at the ends of a text. */
static void test_one_token(void **state)
{
    static const struct {
        const char *json;
        int32_t id;
        const char *bytes;
    } cases[] = {
        {"{" VOCAB, 0, " hello"},
        {DECODER(LLAMA("0")), 1, " hello"},
        {DECODER(LLAMA("0")), 11, " "},
        {DECODER(LLAMA("2")), 8, " "},
        {DECODER(LLAMA("0")), 10, "<s>"},
        {DECODER(LLAMA("0")), 5, "\xE4"},
        {DECODER(LLAMA("0")), 6, "\xBD"},
        {DECODER(LLAMA("0")), 18, ""},
        {DECODER(LLAMA("0")), -1, ""},
        {DECODER(
             "{\"type\":\"Metaspace\",\"replacement\":\"\\u2581\",\"prepend_scheme\":\"always\"}"),
         1, " hello"},
        {DECODER("{\"type\":\"WordPiece\",\"prefix\":\"##\",\"cleanup\":true}"), 2, "lo"},
        {DECODER("{\"type\":\"BPEDecoder\",\"suffix\":\"</w>\"}"), 3, "wor "},
        {DECODER("{\"type\":\"ByteLevel\"}"), 14, " he"},
        {DECODER("{\"type\":\"ByteLevel\"}"), 17, "\xA0"},
    };
    (void)state;
    for (size_t i = 0; i < SL_COUNT(cases); i++) {
        struct sl_tokenizer *t = NULL;
        char out[1024];
        assert_int_equal(
            sl_tokenizer_from_json(cases[i].json, strlen(cases[i].json), NULL, 0, &t, NULL), 0);
        assert_true(sl_detok_max_bytes(t) <= sizeof(out));
        size_t n = sl_detok_token(t, cases[i].id, out);
        if (n != strlen(cases[i].bytes) || memcmp(out, cases[i].bytes, n) != 0)
            fail_msg("case %zu: \"%.*s\"", i, (int)n, out);
        sl_tokenizer_destroy(t);
    }
}

static void test_ids(void **state)
{
    (void)state;
    static const char json[] = "{" VOCAB;
    static const int32_t special[] = {10, 0}, bad[] = {0, 18}, negative[] = {-1};
    struct sl_tokenizer *t = NULL;
    struct sl_detok d;
    char *text = NULL, piece[1024];
    size_t n = 0;
    assert_int_equal(sl_tokenizer_from_json(json, strlen(json), NULL, 0, &t, NULL), 0);
    assert_int_equal(sl_tokenizer_decode(t, special, 2, true, &text, &n, NULL), 0);
    assert_string_equal(text, "hello");
    sl_free(text);
    assert_int_equal(sl_tokenizer_decode(t, bad, 2, false, &text, &n, NULL), SL_EINVAL);
    assert_int_equal(sl_tokenizer_decode(t, negative, 1, false, &text, &n, NULL), SL_EINVAL);
    sl_detok_init(&d, t, true); /* the stream has no way to fail: such ids are no text */
    assert_int_equal(sl_detok_push(&d, 18, piece), 0);
    assert_int_equal(sl_detok_push(&d, -5, piece), 0);
    assert_int_equal(sl_detok_push(&d, 0, piece), 5);
    sl_tokenizer_destroy(t);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_known_answers),
        cmocka_unit_test(test_one_token),
        cmocka_unit_test(test_ids),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
