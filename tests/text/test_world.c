/* SPDX-License-Identifier: MIT
 * RWKV's World vocabulary: ids are those of the rwkv package's tokenizer, from the file and from a
 * GGUF's literals, and become the text again. Lines and literals that are malformed are refused.
 */
#include "base/check.h"
#include "base/sys.h"
#include "sluice.h"
#include "text/tokenizer/tokenizer.h"
#include "world_golden.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

static void check_texts(const struct sl_tokenizer *t)
{
    for (size_t i = 0; i < SL_COUNT(world_texts); i++) {
        struct sl_ids ids = {0};
        char *text = NULL;
        size_t n_text = 0;
        assert_int_equal(
            sl_tokenizer_encode_into(t, world_texts[i].text, world_texts[i].n_text, 0, &ids, NULL),
            0);
        assert_int_equal(ids.n, world_texts[i].n);
        for (size_t k = 0; k < ids.n; k++)
            assert_int_equal(ids.data[k], world_texts[i].ids[k]);
        assert_int_equal(sl_tokenizer_decode(t, ids.data, ids.n, false, &text, &n_text, NULL), 0);
        assert_int_equal(n_text, world_texts[i].n_text);
        assert_memory_equal(text, world_texts[i].text, n_text);
        sl_free(text);
        sl_free(ids.data);
    }
}

static void test_file(void **state)
{
    struct sl_tokenizer *t;
    struct sl_error err = {0};
    (void)state;
    if (sl_tokenizer_from_bytes(world_file, sizeof world_file - 1, NULL, 0, &t, &err) != 0)
        fail_msg("%s", err.msg);
    check_texts(t);
    assert_int_equal(sl_tokenizer_find(t, "<|endoftext|>", 13), 0);
    sl_tokenizer_destroy(t);
}

static int from_gguf(const char *const *literals, uint32_t n, struct sl_tokenizer **t,
                     struct sl_error *err)
{
    const char *tokens[SL_COUNT(world_gguf) + 2] = {"<s>"};
    uint32_t n_bytes[SL_COUNT(world_gguf) + 2] = {3};
    int32_t types[SL_COUNT(world_gguf) + 2] = {3};
    for (uint32_t i = 0; i < n; i++) {
        tokens[i + 1] = literals[i];
        n_bytes[i + 1] = (uint32_t)strlen(literals[i]);
        types[i + 1] = 1;
    }
    tokens[n + 1] = "[PAD1]";
    n_bytes[n + 1] = 6;
    types[n + 1] = 5;
    return sl_tokenizer_from_gguf(&(struct sl_vocab_gguf){.model = "rwkv",
                                                          .n_tokens = n + 2,
                                                          .tokens = tokens,
                                                          .token_bytes = n_bytes,
                                                          .types = types,
                                                          .bos = 0,
                                                          .eos = 0,
                                                          .unk = -1,
                                                          .sep = -1,
                                                          .pad = -1,
                                                          .cls = -1,
                                                          .mask = -1,
                                                          .eot = -1,
                                                          .add_bos = -1,
                                                          .add_eos = -1},
                                  t, err);
}

static void test_gguf(void **state)
{
    static const char *const bad[] = {"a\\", "\\x4", "\\xg0", "\\u3000", "\\q", ""};
    struct sl_tokenizer *t;
    struct sl_error err = {0};
    (void)state;
    if (from_gguf(world_gguf, SL_COUNT(world_gguf), &t, &err) != 0)
        fail_msg("%s", err.msg);
    check_texts(t);
    sl_tokenizer_destroy(t);
    for (size_t i = 0; i < SL_COUNT(bad); i++) {
        assert_int_equal(from_gguf(&bad[i], 1, &t, &err), SL_EFORMAT);
        assert_non_null(strstr(err.msg, "tokens[1] is no literal of bytes"));
    }
}

static void test_malformed(void **state)
{
    static const struct {
        const char *line, *message;
    } bad[] = {
        {"1 'a' 2\n", "line 1: the literal is malformed"},
        {"1 'a' 1\n2 b'\\xff\\xf' 2\n", "line 2: the literal is malformed"},
        {"1 'a' 1\nx 'b' 1\n", "line 2: not \"id literal length\""},
        {"1 'a' 1\n2 'b\" 1\n", "line 2: not \"id literal length\""},
        {"1 'a' 1\n2 b 1\n", "line 2: not \"id literal length\""},
        {"1 'a' 1\n2 '' 0\n", "line 2: the literal is malformed"},
        {"1 'a' 1\n99999999 'b' 1\n", "line 2"},
        {"1 '\\U00110000' 4\n", "line 1: the literal is malformed"},
    };
    (void)state;
    for (size_t i = 0; i < SL_COUNT(bad); i++) {
        struct sl_tokenizer *t;
        struct sl_error err = {0};
        assert_int_not_equal(
            sl_tokenizer_from_bytes(bad[i].line, strlen(bad[i].line), NULL, 0, &t, &err), 0);
        if (strstr(err.msg, bad[i].message) == NULL)
            fail_msg("case %zu: %s", i, err.msg);
    }
}

/* A byte without a token is an error of the text, not of the program. */
static void test_missing_byte(void **state)
{
    struct sl_tokenizer *t;
    struct sl_error err = {0};
    struct sl_ids ids = {0};
    (void)state;
    assert_int_equal(sl_tokenizer_from_world("1 'a' 1\n", 8, &t, &err), 0);
    assert_int_equal(sl_tokenizer_encode_into(t, "ab", 2, 0, &ids, &err), SL_EFORMAT);
    assert_string_equal(err.msg, "World: byte 98 is no token");
    sl_free(ids.data);
    sl_tokenizer_destroy(t);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_file),
        cmocka_unit_test(test_gguf),
        cmocka_unit_test(test_malformed),
        cmocka_unit_test(test_missing_byte),
    };
    return cmocka_run_group_tests_name("world", tests, NULL, NULL);
}
