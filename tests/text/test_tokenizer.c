/* SPDX-License-Identifier: MIT
 * test_tokenizer.c - ids against published cases, goldens of the reference libraries, properties.
 *
 * Vocabularies come from the test material; what is absent is skipped by name. The small
 * vocabularies for added tokens, components and hostile files are made here.
 */

#include "base/buf.h"
#include "base/check.h"
#include "base/json_load.h"
#include "base/limits.h"
#include "base/rng.h"
#include "base/str.h"
#include "base/sys.h"
#include "sluice.h"
#include "text/tokenizer/tokenizer.h"

#include <jansson.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include <cmocka.h>

#define DATA "build/testdata/tokenizers/"

static struct sl_tokenizer *open_or_skip(const char *file)
{
    struct sl_tokenizer *t = NULL;
    struct sl_error err = {0};
    char path[256];
    (void)snprintf(path, sizeof(path), DATA "%s", file);
    int rc = sl_tokenizer_open(path, &t, &err);
    if (rc == SL_ENOTFOUND || rc == SL_EIO) {
        printf("skip: %s is not there\n", path);
        return NULL;
    }
    if (rc != 0)
        fail_msg("%s: %s", path, err.msg);
    return t;
}

static struct sl_ids encode(const struct sl_tokenizer *t, const char *s, size_t n, unsigned flags)
{
    struct sl_ids ids = {0};
    struct sl_error err = {0};
    if (sl_tokenizer_encode_into(t, s, n, flags, &ids, &err) != 0)
        fail_msg("encode: %s", err.msg);
    return ids;
}

static void expect_ids(const struct sl_tokenizer *t, const char *s, size_t n, unsigned flags,
                       const int32_t *want, size_t n_want, const char *what)
{
    struct sl_ids ids = encode(t, s, n, flags);
    bool same = ids.n == n_want && (n_want == 0 || memcmp(ids.data, want, n_want * 4) == 0);
    if (!same) {
        printf("%s: \"%.*s\"\n  ours:", what, (int)n, s);
        for (size_t i = 0; i < ids.n; i++)
            printf(" %d", ids.data[i]);
        printf("\n  want:");
        for (size_t i = 0; i < n_want; i++)
            printf(" %d", want[i]);
        printf("\n");
    }
    sl_free(ids.data);
    assert_true(same);
}

/* ---------------------------------------------------------------- published cases */

static size_t parse_ids(const char *s, size_t n, int32_t *out, size_t max)
{
    size_t k = 0;
    for (size_t i = 0; i < n;) {
        size_t from = i;
        while (i < n && s[i] >= '0' && s[i] <= '9')
            i++;
        uint64_t v;
        if (i > from && k < max && sl_parse_u64(s + from, i - from, &v))
            out[k++] = (int32_t)v;
        if (i == from)
            i++;
    }
    return k;
}

static void run_pair(const char *pair, const char *vocab)
{
    static const char mark[] = "\n__ggml_vocab_test__\n";
    struct sl_tokenizer *t = open_or_skip(vocab);
    struct sl_map in = {0}, out = {0};
    char path[256];
    int32_t want[4096];
    size_t n_cases = 0;
    if (t == NULL)
        return;
    (void)snprintf(path, sizeof(path), DATA "gguf-vocab/ggml-vocab-%s.gguf.inp", pair);
    assert_int_equal(sl_map_open(&in, path, NULL), 0);
    (void)snprintf(path, sizeof(path), DATA "gguf-vocab/ggml-vocab-%s.gguf.out", pair);
    assert_int_equal(sl_map_open(&out, path, NULL), 0);
    const char *s = (const char *)in.data, *end = s + in.n_bytes;
    const char *o = (const char *)out.data, *o_end = o + out.n_bytes;
    while (s < end) {
        const char *stop = memmem(s, (size_t)(end - s), mark, strlen(mark));
        const char *line = memchr(o, '\n', (size_t)(o_end - o));
        if (stop == NULL)
            break;
        assert_non_null(line);
        size_t n = parse_ids(o, (size_t)(line - o), want, SL_COUNT(want));
        expect_ids(t, s, (size_t)(stop - s), 0, want, n, pair);
        s = stop + strlen(mark);
        o = line + 1;
        n_cases++;
    }
    assert_true(n_cases >= 46);
    sl_map_close(&in);
    sl_map_close(&out);
    sl_tokenizer_destroy(t);
}

static void test_gguf_pairs(void **state)
{
    (void)state;
    static const char *const pairs[][2] = {
        {"bert-bge", "gguf-vocab/ggml-vocab-bert-bge.gguf"},
        {"deepseek-coder", "gguf-vocab/ggml-vocab-deepseek-coder.gguf"},
        {"deepseek-llm", "gguf-vocab/ggml-vocab-deepseek-llm.gguf"},
        {"falcon", "gguf-vocab/ggml-vocab-falcon.gguf"},
        {"gpt-2", "gguf-vocab/ggml-vocab-gpt-2.gguf"},
        {"llama-spm", "gguf-vocab/ggml-vocab-llama-spm.gguf"},
        {"phi-3", "gguf-vocab/ggml-vocab-phi-3.gguf"},
        {"starcoder", "gguf-vocab/ggml-vocab-starcoder.gguf"},
        {"llama-bpe", "tiktoken/llama3.tiktoken"},
        {"qwen2", "tiktoken/qwen.tiktoken"},
    };
    for (size_t i = 0; i < SL_COUNT(pairs); i++)
        run_pair(pairs[i][0], pairs[i][1]);
    printf("skip: pairs command-r and gemma-4: no vocabulary in the test material\n");
}

static void test_plans(void **state)
{
    (void)state;
    static const char *const names[][2] = {{"cl100k_base", "tiktoken/cl100k_base.tiktoken"},
                                           {"o200k_base", "tiktoken/o200k_base.tiktoken"},
                                           {"r50k_base", "gguf-vocab/ggml-vocab-gpt-2.gguf"}};
    struct sl_map plans = {0};
    static int32_t want[20000];
    if (sl_map_open(&plans, DATA "tiktoken/TestPlans.txt", NULL) != 0) {
        printf("skip: TestPlans.txt is not there\n");
        return;
    }
    printf("skip: plans of p50k_base and p50k_edit: no vocabulary in the test material\n");
    for (size_t k = 0; k < SL_COUNT(names); k++) {
        struct sl_tokenizer *t = open_or_skip(names[k][1]);
        size_t n_cases = 0;
        char head[64];
        (void)snprintf(head, sizeof(head), "EncodingName: %s\n", names[k][0]);
        const char *p = (const char *)plans.data, *end = p + plans.n_bytes;
        while (t != NULL && (p = memmem(p, (size_t)(end - p), head, strlen(head))) != NULL) {
            p += strlen(head);
            if (memcmp(p, "Sample: ", 8) != 0)
                fail_msg("TestPlans.txt: no sample");
            p += 8;
            const char *stop = memmem(p, (size_t)(end - p), "\nEncoded: [", 11);
            assert_non_null(stop);
            const char *ids = stop + 11, *close = memchr(ids, ']', (size_t)(end - ids));
            assert_non_null(close);
            size_t n = parse_ids(ids, (size_t)(close - ids), want, SL_COUNT(want));
            size_t n_text = (size_t)(stop - p);
            if (n_text > 0 && p[n_text - 1] == '\r')
                n_text--;
            expect_ids(t, p, n_text, 0, want, n, names[k][0]);
            n_cases++;
        }
        assert_true(t == NULL || n_cases > 50);
        sl_tokenizer_destroy(t);
    }
    sl_map_close(&plans);
}

/* Files of tests/text/tok_oracle.py --golden: strings and the ids of the reference library. */
static void run_golden(const char *name)
{
    char path[128];
    (void)snprintf(path, sizeof(path), "tests/golden/tokenizer/%s.json", name);
    json_t *root = json_load_file(path, JSON_ALLOW_NUL, NULL);
    assert_non_null(root);
    struct sl_tokenizer *t = open_or_skip(json_string_value(json_object_get(root, "file")));
    const json_t *cases = json_object_get(root, "cases");
    unsigned flags = (unsigned)json_integer_value(json_object_get(root, "flags"));
    assert_true(json_array_size(cases) > 100);
    for (size_t i = 0; t != NULL && i < json_array_size(cases); i++) {
        const json_t *c = json_array_get(cases, i), *s = json_array_get(c, 0);
        const json_t *ids = json_array_get(c, 1);
        int32_t want[2048];
        size_t n = json_array_size(ids);
        assert_true(n <= SL_COUNT(want));
        for (size_t k = 0; k < n; k++)
            want[k] = (int32_t)json_integer_value(json_array_get(ids, k));
        expect_ids(t, json_string_value(s), json_string_length(s), flags, want, n, name);
    }
    json_decref(root);
    sl_tokenizer_destroy(t);
}

static void test_golden(void **state)
{
    (void)state;
    static const char *const names[] = {"phi-2",      "llama2",      "t5-small",   "llama3",
                                        "qwen",       "cl100k_base", "o200k_base", "spm-llama2",
                                        "unigram_en", "unigram_ja",  "bert-bge"};
    for (size_t i = 0; i < SL_COUNT(names); i++)
        run_golden(names[i]);
}

/* Steps of a pipeline against the tokenizers library, at the characters that Unicode versions know
 * differently (tests/text/tok_oracle.py --golden). A byte has one id where a word begins and
 * another inside it, so that the ids show the text and its cuts. Of the ids there is a hash. */
static uint32_t hash_of_ids(const struct sl_ids *ids)
{
    uint32_t h = 2166136261u;
    for (size_t i = 0; i < ids->n; i++) {
        for (int shift = 0; shift < 16; shift += 8)
            h = (h ^ ((uint32_t)ids->data[i] >> shift & 0xFF)) * 16777619u;
    }
    return h;
}

static void run_code_points(const json_t *vocab, const json_t *set, const char *chars, size_t n)
{
    const char *name = json_string_value(json_object_get(set, "name"));
    json_t *root = json_pack("{s:O?,s:O?,s:{s:s,s:s,s:O,s:[]}}", "normalizer",
                             json_object_get(set, "normalizer"), "pre_tokenizer",
                             json_object_get(set, "pre_tokenizer"), "model", "type", "BPE",
                             "continuing_subword_prefix", "##", "vocab", vocab, "merges");
    assert_non_null(root);
    char *text = json_dumps(root, 0);
    struct sl_tokenizer *t = NULL;
    struct sl_error err = {0};
    if (sl_tokenizer_from_json(text, strlen(text), NULL, 0, &t, &err) != 0)
        fail_msg("%s: %s", name, err.msg);
    const json_t *hashes = json_object_get(set, "hashes");
    size_t k = 0, n_bad = 0;
    for (size_t i = 0, len; i < n; i += len, k++) {
        struct sl_buf b = {0};
        char c[5] = {0};
        len = sl_utf8_valid_len(chars + i, n - i);
        assert_true(len > 0 && len < sizeof c);
        memcpy(c, chars + i, len);
        sl_buf_printf(&b,
                      "a%s %s%s1%sa\n%s.%s\xCC\x81"
                      "b\xCC\xA3%s\xE4\xB8\xAD%sA%s\xCC\x81 a%sb  %s",
                      c, c, c, c, c, c, c, c, c, c, c);
        struct sl_ids ids = encode(t, b.data, b.n_bytes, 0);
        if (hash_of_ids(&ids) != json_integer_value(json_array_get(hashes, k)) && n_bad++ < 5)
            printf("%s: other ids beside \"%s\" (%zu)\n", name, c, k);
        sl_free(ids.data);
        sl_buf_deinit(&b);
    }
    assert_int_equal(k, json_array_size(hashes));
    if (n_bad > 0)
        fail_msg("%s: %zu of %zu characters give other ids", name, n_bad, k);
    sl_tokenizer_destroy(t);
    sl_json_free_text(text);
    json_decref(root);
}

static void test_code_points(void **state)
{
    (void)state;
    json_t *root = json_load_file("tests/golden/tokenizer/code_points.json", 0, NULL);
    const json_t *chars = json_object_get(root, "chars"), *sets = json_object_get(root, "sets");
    assert_true(json_string_length(chars) > 1000 && json_array_size(sets) > 10);
    for (size_t i = 0; i < json_array_size(sets); i++)
        run_code_points(json_object_get(root, "vocab"), json_array_get(sets, i),
                        json_string_value(chars), json_string_length(chars));
    json_decref(root);
}

/* ---------------------------------------------------------------- SentencePiece's user pieces */

static void put_piece(struct sl_buf *b, const char *s, float score, char type)
{
    char *bits = (char *)&score;
    size_t n = strlen(s);
    sl_buf_putc(b, 0x0A);
    sl_buf_putc(b, (char)(n + 9));
    sl_buf_putc(b, 0x0A);
    sl_buf_putc(b, (char)n);
    sl_buf_puts(b, s);
    sl_buf_putc(b, 0x15);
    sl_buf_put(b, bits, 4);
    sl_buf_putc(b, 0x18);
    sl_buf_putc(b, type);
}

/* A user-defined piece of n bytes scores 0.1 * (n - 1), whatever the others score; just below, its
 * parts win. Thresholds of sentencepiece 0.2.3. */
static void test_user_pieces(void **state)
{
    (void)state;
    static const struct {
        const char *user, *left, *right;
        float threshold;
    } cases[] = {{"xy", "x", "y", 0.1f},
                 {"xyw", "xy", "w", 0.2f},
                 {"\xD0\xB6\xD0\xB7", "\xD0\xB6", "\xD0\xB7", 0.3f},
                 {"\xE4\xB8\xAD\xE6\x96\x87", "\xE4\xB8\xAD", "\xE6\x96\x87", 0.5f}};
    for (size_t i = 0; i < SL_COUNT(cases); i++) {
        for (int above = 0; above < 2; above++) {
            struct sl_buf b = {0};
            struct sl_tokenizer *t = NULL;
            struct sl_error err = {0};
            put_piece(&b, "<unk>", 0, 2);
            put_piece(&b, cases[i].left, cases[i].threshold + (above ? 0.01f : -0.01f), 1);
            put_piece(&b, cases[i].right, 0, 1);
            put_piece(&b, "z", 5, 1);
            put_piece(&b, cases[i].user, 0, 4);
            sl_buf_put(&b, "\x1A\x04\x18\x00\x20\x00", 6); /* no dummy prefix, spaces stay */
            if (sl_tokenizer_from_spm(b.data, b.n_bytes, &t, &err) != 0)
                fail_msg("%s", err.msg);
            static const int32_t whole[] = {4}, parts[] = {1, 2};
            expect_ids(t, cases[i].user, strlen(cases[i].user), 0, above ? parts : whole,
                       above ? 2 : 1, "user-defined piece");
            sl_tokenizer_destroy(t);
            sl_buf_deinit(&b);
        }
    }
}

/* ---------------------------------------------------------------- formats by content */

/* tekken.json: special tokens first, the rest of the list cut off. */
static void test_tekken(void **state)
{
    (void)state;
    static const char json[] =
        "{\"vocab\":[{\"rank\":0,\"token_bytes\":\"YQ==\",\"token_str\":\"a\"},"
        "{\"rank\":1,\"token_bytes\":\"Yg==\"},{\"rank\":2,\"token_bytes\":\"YWI=\"},"
        "{\"rank\":3,\"token_bytes\":\"YWJh\"}],\"config\":{\"pattern\":\"\\\\w+|\\\\W\","
        "\"default_vocab_size\":8,\"default_num_special_tokens\":5}}";
    static const int32_t want[] = {1, 7, 2, 6, 4};
    struct sl_tokenizer *t = NULL;
    struct sl_error err = {0};
    if (sl_tokenizer_from_bytes(json, sizeof json - 1, NULL, 0, &t, &err) != 0)
        fail_msg("%s", err.msg);
    assert_int_equal(sl_tokenizer_n_vocab(t), 8);
    expect_ids(t, "ab</s>b[/INST]", 14, SL_ENCODE_ADD_SPECIAL | SL_ENCODE_PARSE_SPECIAL, want, 5,
               "tekken");
    assert_int_equal(sl_tokenizer_eos(t), 2);
    sl_tokenizer_destroy(t);
    assert_int_equal(sl_tokenizer_from_bytes("hello\n", 6, NULL, 0, &t, &err), SL_EUNSUPPORTED);
    assert_int_equal(sl_tokenizer_from_bytes("", 0, NULL, 0, &t, &err), SL_EUNSUPPORTED);
}

/* ---------------------------------------------------------------- round trip and streaming */

static const char *const files[] = {
    "tiktoken/llama3.tiktoken",
    "hf/phi-2/tokenizer.json",
    "hf/llama2/tokenizer.json",
    "hf/t5-small/tokenizer.json",
    "sentencepiece/llama2.model",
    "sentencepiece/unigram_en.model",
    "gguf-vocab/ggml-vocab-bert-bge.gguf",
    "gguf-vocab/ggml-vocab-llama-spm.gguf",
    "gguf-vocab/ggml-vocab-gpt-2.gguf",
    "gguf-vocab/ggml-vocab-falcon.gguf",
};

/* Random bytes, valid or not, in runs. */
static size_t random_bytes(struct sl_rng *r, char *s, size_t max)
{
    static const char *const bits[] = {
        "\xE4\xBD\xA0", "\xF0\x9F\x98\x80", "\xC3\xA9",    " the", "\n",
        "  ",           "\xE2\x96\x81",     "'S",          "123",  "\xFF",
        "\xE4\xBD",     "\xF0\x9F",         "\xED\xA0\x80"};
    size_t n = sl_rng_below(r, max), k = 0;
    while (k < n) {
        const char *b = bits[sl_rng_below(r, SL_COUNT(bits))];
        if (sl_rng_below(r, 3) == 0) {
            s[k++] = (char)sl_rng_next(r);
        } else if (k + strlen(b) <= n) {
            memcpy(s + k, b, strlen(b));
            k += strlen(b);
        } else {
            s[k++] = 'x';
        }
    }
    return n;
}

static void check_stream(const struct sl_tokenizer *t, const int32_t *ids, size_t n, bool skip)
{
    struct sl_detok d;
    struct sl_buf b = {0};
    char *text = NULL, *piece = sl_malloc(sl_detok_max_bytes(t));
    size_t n_text = 0;
    assert_int_equal(sl_tokenizer_decode(t, ids, n, skip, &text, &n_text, NULL), 0);
    sl_detok_init(&d, t, skip);
    for (size_t i = 0; i <= n; i++) {
        size_t k = i < n ? sl_detok_push(&d, ids[i], piece) : sl_detok_finish(&d, piece);
        assert_true(k <= sl_detok_max_bytes(t));
        for (size_t j = 0, len; j < k; j += len) { /* whole characters in every step */
            len = sl_utf8_valid_len(piece + j, k - j);
            assert_true(len > 0);
        }
        sl_buf_put(&b, piece, k);
    }
    assert_int_equal(b.n_bytes, n_text);
    assert_true(n_text == 0 || memcmp(b.data, text, n_text) == 0);
    sl_buf_deinit(&b);
    sl_free(piece);
    sl_free(text);
}

static void test_stream(void **state)
{
    (void)state;
    struct sl_rng r = {.seed = 5};
    for (size_t f = 0; f < SL_COUNT(files); f++) {
        struct sl_tokenizer *t = open_or_skip(files[f]);
        for (int i = 0; t != NULL && i < 300; i++) {
            int32_t ids[64];
            size_t n = sl_rng_below(&r, SL_COUNT(ids));
            for (size_t k = 0; k < n; k++) /* half from the bytes at the front of the vocabulary */
                ids[k] = (int32_t)sl_rng_below(&r, k % 2 ? 300 : (uint64_t)sl_tokenizer_n_vocab(t));
            check_stream(t, ids, n, i % 2);
        }
        sl_tokenizer_destroy(t);
    }
}

/* Byte-level vocabularies: every byte string comes back, split anywhere by the text's own rules. */
static void test_bytes_round_trip(void **state)
{
    (void)state;
    static const char *const names[] = {"tiktoken/llama3.tiktoken", "tiktoken/o200k_base.tiktoken",
                                        "hf/phi-2/tokenizer.json",
                                        "gguf-vocab/ggml-vocab-deepseek-coder.gguf"};
    struct sl_rng r = {.seed = 9};
    for (size_t f = 0; f < SL_COUNT(names); f++) {
        struct sl_tokenizer *t = open_or_skip(names[f]);
        for (int i = 0; t != NULL && i < 400; i++) {
            char s[200];
            size_t n = random_bytes(&r, s, sizeof(s)), at = 0;
            struct sl_ids ids = encode(t, s, n, 0);
            for (size_t k = 0; k < ids.n; k++) {
                char *one = NULL;
                size_t n_one = 0;
                assert_int_equal(sl_tokenizer_decode(t, &ids.data[k], 1, false, &one, &n_one, NULL),
                                 0);
                /* a token that is not UTF-8 by itself decodes to replacements: then only count */
                bool whole = memmem(one, n_one, "\xEF\xBF\xBD", 3) == NULL;
                assert_true(!whole || (at + n_one <= n && memcmp(s + at, one, n_one) == 0));
                at = whole ? at + n_one : SIZE_MAX / 2;
                sl_free(one);
                if (!whole)
                    break;
            }
            assert_true(at == n || at == SIZE_MAX / 2);
            check_stream(t, ids.data, ids.n, false);
            if (sl_utf8_valid_len(s, n) > 0) {
                char *text = NULL;
                size_t n_text = 0;
                assert_int_equal(
                    sl_tokenizer_decode(t, ids.data, ids.n, false, &text, &n_text, NULL), 0);
                sl_free(text);
            }
            sl_free(ids.data);
        }
        sl_tokenizer_destroy(t);
    }
}

/* Kinds that see characters: an invalid part is one U+FFFD, whatever surrounds it. */
static void test_invalid_as_replacement(void **state)
{
    (void)state;
    static const char *const names[] = {"hf/llama2/tokenizer.json", "hf/t5-small/tokenizer.json",
                                        "sentencepiece/unigram_en.model",
                                        "gguf-vocab/ggml-vocab-bert-bge.gguf"};
    static const char bad[] = "a\xE4\xBD"
                              "b\xFF\xFE c\xF0\x9F\x98",
                      good[] = "a\xEF\xBF\xBD"
                               "b\xEF\xBF\xBD\xEF\xBF\xBD c\xEF\xBF\xBD";
    for (size_t f = 0; f < SL_COUNT(names); f++) {
        struct sl_tokenizer *t = open_or_skip(names[f]);
        if (t == NULL)
            continue;
        struct sl_ids a = encode(t, good, strlen(good), 0);
        expect_ids(t, bad, strlen(bad), 0, a.data, a.n, names[f]);
        sl_free(a.data);
        sl_tokenizer_destroy(t);
    }
}

static void test_special_is_text(void **state)
{
    (void)state;
    struct sl_tokenizer *t = open_or_skip("tiktoken/llama3.tiktoken");
    static const char s[] = "a<|eot_id|>b";
    if (t == NULL)
        return;
    struct sl_ids plain = encode(t, s, strlen(s), 0);
    struct sl_ids parsed = encode(t, s, strlen(s), SL_ENCODE_PARSE_SPECIAL | SL_ENCODE_ADD_SPECIAL);
    for (size_t i = 0; i < plain.n; i++)
        assert_false(sl_tokenizer_attr(t, plain.data[i]) & SL_TOKEN_SPECIAL);
    assert_int_equal(parsed.n, 4);
    assert_int_equal(parsed.data[0], sl_tokenizer_bos(t));
    assert_int_equal(parsed.data[2], sl_tokenizer_eot(t));
    assert_int_equal(sl_tokenizer_find(t, "<|eot_id|>", 10), sl_tokenizer_eot(t));
    sl_free(plain.data);
    sl_free(parsed.data);
    sl_tokenizer_destroy(t);
}

/* ---------------------------------------------------------------- time grows with the text */

/* Time of this thread: the machine may have other work. */
static uint64_t cpu_ns(void)
{
    struct timespec ts;
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &ts);
    return (uint64_t)ts.tv_sec * 1000000000u + (uint64_t)ts.tv_nsec;
}

static double fit_exponent(const struct sl_tokenizer *t, const char *unit, size_t from, size_t to)
{
    char *s = sl_malloc(to);
    size_t k = strlen(unit);
    double t_from = 0, t_to = 0;
    for (size_t i = 0; i < to; i++)
        s[i] = unit[i % k];
    for (size_t n = from; n <= to; n = n == from ? to : to + 1) {
        uint64_t best = UINT64_MAX;
        for (int rep = 0; rep < (n == from ? 15 : 2); rep++) {
            uint64_t t0 = cpu_ns();
            struct sl_ids ids = encode(t, s, n, 0);
            best = SL_MIN(best, cpu_ns() - t0);
            sl_free(ids.data);
        }
        *(n == from ? &t_from : &t_to) = (double)best;
    }
    sl_free(s);
    return log(t_to / t_from) / log((double)to / (double)from);
}

/* Sanitizers and their quarantine cost time of their own: there the test only tells linear from
 * quadratic. Caches make a long text dearer per byte than a short one, hence not 1.0. */
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
enum { N_SHORT = 4 << 10, N_LONG = 64 << 10 };
#define MAX_EXPONENT 1.8
#else
enum { N_SHORT = 1 << 10, N_LONG = 1 << 20 };
#define MAX_EXPONENT 1.2
#endif

static void test_linear(void **state)
{
    (void)state;
    static const char *const names[] = {"tiktoken/llama3.tiktoken",
                                        "tiktoken/o200k_base.tiktoken",
                                        "hf/phi-2/tokenizer.json",
                                        "hf/llama2/tokenizer.json",
                                        "sentencepiece/llama2.model",
                                        "hf/t5-small/tokenizer.json",
                                        "gguf-vocab/ggml-vocab-deepseek-llm.gguf"};
    static const char *const units[] = {
        "a",    " ",  "\n",           "\r\n", "ab",           " \n",
        "A",    "1",  "<|",           "'s",   "\xE4\xBD\xA0", "\xCC\x81",
        "\xFF", "aA", "\xE2\x96\x81", "zqxj", "<|endoftext|"};
    double worst = 0;
    for (size_t f = 0; f < SL_COUNT(names); f++) {
        struct sl_tokenizer *t = open_or_skip(names[f]);
        for (size_t u = 0; t != NULL && u < SL_COUNT(units); u++) {
            double x = fit_exponent(t, units[u], N_SHORT, N_LONG);
            if (getenv("TOKENIZER_VERBOSE") != NULL)
                printf("%s \"%s\" %.2f\n", names[f], units[u], x);
            for (int again = 0; x > MAX_EXPONENT && again < 2; again++)
                x = fit_exponent(t, units[u], N_SHORT, N_LONG); /* the machine may have been busy */
            if (x > MAX_EXPONENT)
                fail_msg("%s on runs of \"%s\": time grows as n^%.2f", names[f], units[u], x);
            worst = SL_MAX(worst, x);
        }
        sl_tokenizer_destroy(t);
    }
    printf("largest exponent %.2f\n", worst);
}

/* ---------------------------------------------------------------- small vocabularies */

static struct sl_tokenizer *from_json(const char *json)
{
    struct sl_tokenizer *t = NULL;
    struct sl_error err = {0};
    if (sl_tokenizer_from_json(json, strlen(json), NULL, 0, &t, &err) != 0)
        fail_msg("%s", err.msg);
    return t;
}

#define ABC      "\"a\":0,\"b\":1,\"c\":2,\" \":3,\"ab\":4,\"abc\":5,\"<unk>\":6,\"\\u2581\":7"
#define BPE_TAIL "\"vocab\":{" ABC "},\"merges\":[\"a b\",[\"ab\",\"c\"]]}"
#define ADDED(flags) \
    "{\"added_tokens\":[{\"id\":10,\"content\":\"<x>\",\"special\":false" flags "}],"

static void test_added_tokens(void **state)
{
    (void)state;
    static const struct {
        const char *json, *text;
        int32_t ids[8];
        size_t n;
    } cases[] = {
        {ADDED("") "\"model\":{\"type\":\"BPE\"," BPE_TAIL "}", "a<x>abc", {0, 10, 5}, 3},
        {ADDED(",\"lstrip\":true") "\"model\":{\"type\":\"BPE\"," BPE_TAIL "}",
         "a  <x> b",
         {0, 10, 3, 1},
         4},
        {ADDED(",\"rstrip\":true") "\"model\":{\"type\":\"BPE\"," BPE_TAIL "}",
         "a <x>  b",
         {0, 3, 10, 1},
         4},
        {"{\"added_tokens\":[{\"id\":10,\"content\":\"ab\",\"special\":false,\"single_word\":true}]"
         ","
         "\"model\":{\"type\":\"BPE\",\"vocab\":{\"a\":0,\"b\":1,\"c\":2,\" \":3},\"merges\":[]}}",
         "abc ab cab",
         {0, 1, 2, 3, 10, 3, 2, 0},
         9},
        {"{\"added_tokens\":[{\"id\":10,\"content\":\"<x>\",\"special\":true},"
         "{\"id\":11,\"content\":\"<x><x>\",\"special\":false}],"
         "\"model\":{\"type\":\"BPE\"," BPE_TAIL "}",
         "<x><x>a",
         {11, 0},
         2},
        /* what the tokenizers library makes of spaces that two tokens want */
        {"{\"added_tokens\":[{\"id\":10,\"content\":\"<x>\",\"special\":false,\"rstrip\":true},"
         "{\"id\":11,\"content\":\"  \",\"special\":false}],\"model\":{\"type\":\"BPE\"," BPE_TAIL
         "}",
         "a<x>   b",
         {0, 10, 11, 3, 1},
         5},
        {"{\"added_tokens\":[{\"id\":10,\"content\":\"  \",\"special\":false,\"lstrip\":true,"
         "\"rstrip\":true}],\"model\":{\"type\":\"BPE\"," BPE_TAIL "}",
         "a      b",
         {0, 10, 1},
         3},
    };
    for (size_t i = 0; i < SL_COUNT(cases); i++) {
        struct sl_tokenizer *t = from_json(cases[i].json);
        struct sl_ids ids = encode(t, cases[i].text, strlen(cases[i].text), 0);
        assert_int_equal(ids.n, cases[i].n);
        assert_memory_equal(ids.data, cases[i].ids, SL_MIN(cases[i].n, 8u) * 4);
        sl_free(ids.data);
        sl_tokenizer_destroy(t);
    }
}

static void test_bpe_options(void **state)
{
    (void)state;
    static const struct {
        const char *json, *text;
        int32_t ids[8];
        size_t n;
    } cases[] = {
        {"{\"model\":{\"type\":\"BPE\"," BPE_TAIL "}", "abcab", {5, 4}, 2},
        {"{\"model\":{\"type\":\"BPE\",\"unk_token\":\"<unk>\"," BPE_TAIL "}", "xxa", {6, 6, 0}, 3},
        {"{\"model\":{\"type\":\"BPE\",\"unk_token\":\"<unk>\",\"fuse_unk\":true," BPE_TAIL "}",
         "xya",
         {6, 0},
         2},
        {"{\"model\":{\"type\":\"BPE\"," BPE_TAIL "}", "xax", {0}, 1},
        {"{\"model\":{\"type\":\"BPE\",\"ignore_merges\":true,\"vocab\":{\"a\":0,\"aa\":1},"
         "\"merges\":[]}}",
         "aa",
         {1},
         1},
        {"{\"model\":{\"type\":\"BPE\",\"continuing_subword_prefix\":\"##\",\"vocab\":{\"a\":0,"
         "\"##b\":1,\"ab\":2},\"merges\":[\"a ##b\"]}}",
         "ab",
         {2},
         1},
        {"{\"model\":{\"type\":\"BPE\",\"end_of_word_suffix\":\"</w>\",\"vocab\":{\"a\":0,"
         "\"b</w>\":1,\"ab</w>\":2},\"merges\":[\"a b</w>\"]}}",
         "ab",
         {2},
         1},
        {"{\"model\":{\"type\":\"BPE\",\"byte_fallback\":true,\"vocab\":{\"a\":0,\"<0xC3>\":1,"
         "\"<0xA9>\":2},\"merges\":[]}}",
         "\xC3\xA9"
         "a",
         {1, 2, 0},
         3},
        {"{\"model\":{\"type\":\"WordLevel\",\"unk_token\":\"?\",\"vocab\":{\"?\":0,\"ab\":1}},"
         "\"pre_tokenizer\":{\"type\":\"WhitespaceSplit\"}}",
         "ab x  ab",
         {1, 0, 1},
         3},
    };
    for (size_t i = 0; i < SL_COUNT(cases); i++) {
        struct sl_tokenizer *t = from_json(cases[i].json);
        struct sl_ids ids = encode(t, cases[i].text, strlen(cases[i].text), 0);
        if (ids.n != cases[i].n)
            fail_msg("case %zu: %zu ids", i, ids.n);
        assert_memory_equal(ids.data, cases[i].ids, cases[i].n * 4);
        sl_free(ids.data);
        sl_tokenizer_destroy(t);
    }
}

/* tokenizer_config.json says which tokens surround the text. */
static void test_config(void **state)
{
    (void)state;
    static const char json[] =
        "{\"added_tokens\":[{\"id\":10,\"content\":\"<s>\",\"special\":true},{\"id\":11,"
        "\"content\":"
        "\"</s>\",\"special\":true}],\"model\":{\"type\":\"BPE\"," BPE_TAIL "}";
    static const char config[] =
        "{\"bos_token\":{\"content\":\"<s>\"},\"eos_token\":\"</s>\",\"add_bos_token\":true,"
        "\"add_eos_token\":true,\"added_tokens_decoder\":{\"12\":{\"content\":\"<t>\"}}}";
    struct sl_tokenizer *t = NULL;
    static const int32_t want[] = {10, 0, 12, 11};
    assert_int_equal(sl_tokenizer_from_json(json, strlen(json), config, strlen(config), &t, NULL),
                     0);
    expect_ids(t, "a<t>", 4, SL_ENCODE_ADD_SPECIAL, want, 4, "config");
    assert_int_equal(sl_tokenizer_bos(t), 10);
    assert_int_equal(sl_tokenizer_eos(t), 11);
    assert_int_equal(sl_tokenizer_attr(t, 8), SL_TOKEN_UNUSED);
    assert_null(sl_tokenizer_piece(t, 8, NULL));
    sl_tokenizer_destroy(t);
}

/* ---------------------------------------------------------------- against plain algorithms */

/* Characters whose class Unicode 14 (the regex library) and 16 (our tables) agree on. */
static void put_old_char(struct sl_rng *r, struct sl_buf *b)
{
    static const struct {
        uint32_t from, to;
    } blocks[] = {{0x20, 0x7E},     {0xA1, 0x377},      {0x400, 0x52F},     {0x905, 0x939},
                  {0x93E, 0x94D},   {0x300, 0x36F},     {0x2000, 0x2060},   {0x3041, 0x3096},
                  {0x4E00, 0x9FA5}, {0xAC00, 0xD7A3},   {0x10400, 0x1044F}, {0x1F600, 0x1F64F},
                  {0x2160, 0x2188}, {0x1D400, 0x1D454}, {0x180B, 0x180E},   {0x660, 0x669},
                  {0x1C4, 0x1CC},   {0x2B0, 0x2C1}};
    static const char *const bits[] = {"'s",   "'LL", "'ve",  "'\xC5\xBF", "\r\n",
                                       "\n\n", "  ",  " ",    "\t",        "\xC2\xA0",
                                       "/",    "'",   "\xFF", "\xE4\xBD"};
    char utf8[4];
    uint64_t k = sl_rng_below(r, 3);
    if (k == 0) {
        sl_buf_puts(b, bits[sl_rng_below(r, SL_COUNT(bits))]);
    } else if (k == 1) {
        sl_buf_putc(b, "abcABC019 .-\n"[sl_rng_below(r, 13)]);
    } else {
        uint64_t i = sl_rng_below(r, SL_COUNT(blocks));
        uint32_t cp =
            blocks[i].from + (uint32_t)sl_rng_below(r, blocks[i].to - blocks[i].from + 1u);
        sl_buf_put(b, utf8, sl_utf8_encode(cp, utf8));
    }
}

#define GPT2_OPEN  "'s|'t|'re|'ve|'m|'ll|'d| ?\\p{L}+| ?\\p{N}+| ?[^\\s\\p{L}\\p{N}]+|\\s+(?!\\S)"
#define LLAMA_OPEN "(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\\r\\n\\p{L}\\p{N}]?\\p{L}+|"
#define LLAMA_END  "| ?[^\\s\\p{L}\\p{N}]+[\\r\\n]*|\\s*[\\r\\n]+|\\s+(?!\\S)|\\s+"
#define CASED(s)                                                                                  \
    "[^\\r\\n\\p{L}\\p{N}]?[\\p{Lu}\\p{Lt}\\p{Lm}\\p{Lo}\\p{M}]*[\\p{Ll}\\p{Lm}\\p{Lo}\\p{M}]+" s \
    "|[^\\r\\n\\p{L}\\p{N}]?[\\p{Lu}\\p{Lt}\\p{Lm}\\p{Lo}\\p{M}]+[\\p{Ll}\\p{Lm}\\p{Lo}\\p{M}]*" s
#define CASED_END "| ?[^\\s\\p{L}\\p{N}]+[\\r\\n/]*|\\s*[\\r\\n]+|\\s+(?!\\S)|\\s+"

/* A byte-level tokenizer that tells where words begin: a byte has one id there and another inside a
 * word. The pattern as files spell it has a hand-written matcher, the same in a group has none. */
/* What the tokenizers library makes of "ab" and "cab" with these. */
static void test_two_texts(void **state)
{
#define WORDS                                                                                \
    "\"model\":{\"type\":\"BPE\",\"merges\":[],\"vocab\":{\"<s>\":0,\"<pad>\":1,\"</s>\":2," \
    "\"a\":3,\"b\":4,\"c\":5}}}"
#define ENDS    "\"sep\":[\"</s>\",2],\"cls\":[\"<s>\",0]},"
#define TEXT(s) "{\"Sequence\":{\"id\":\"" s "\",\"type_id\":0}},"
#define BEGIN   "{\"SpecialToken\":{\"id\":\"<s>\",\"type_id\":0}},"
#define END     "{\"SpecialToken\":{\"id\":\"</s>\",\"type_id\":0}}"
#define TEMPLATE(between)                                                                   \
    "{\"post_processor\":{\"type\":\"TemplateProcessing\",\"single\":[" BEGIN TEXT("A") END \
        "],\"pair\":[" BEGIN TEXT("A") between TEXT("B") END                                \
        "],\"special_tokens\":{\"<s>\":{"                                                   \
        "\"id\":\"<s>\",\"ids\":[0]},\"</s>\":{\"id\":\"</s>\",\"ids\":[2]}}}," WORDS
    static const struct {
        const char *json;
        int32_t ids[9], n, second_from;
    } cases[] = {
        {"{\"post_processor\":{\"type\":\"RobertaProcessing\"," ENDS WORDS,
         {0, 3, 4, 2, 2, 5, 3, 4, 2},
         9,
         5},
        {"{\"post_processor\":{\"type\":\"BertProcessing\"," ENDS WORDS,
         {0, 3, 4, 2, 5, 3, 4, 2},
         8,
         4},
        {TEMPLATE(END "," END ","), {0, 3, 4, 2, 2, 5, 3, 4, 2}, 9, 5},
        {TEMPLATE(END ","), {0, 3, 4, 2, 5, 3, 4, 2}, 8, 4},
    };
    (void)state;
    for (size_t i = 0; i < SL_COUNT(cases); i++) {
        struct sl_tokenizer *t = from_json(cases[i].json);
        struct sl_error err = {0};
        int32_t *ids, second_from;
        size_t n;
        for (int32_t most = 0; most < 9; most += 8) { /* cut to 8: the longer text loses one */
            assert_int_equal(
                sl_tokenizer_encode_input(t, "ab", 2, "cab", 3, most, &ids, &n, &second_from, &err),
                0);
            bool cut = most > 0 && cases[i].n > most;
            assert_int_equal(n, cut ? most : cases[i].n);
            assert_int_equal(second_from, cases[i].second_from);
            assert_memory_equal(ids, cases[i].ids, (n - 1 - cut) * sizeof *ids);
            assert_int_equal(ids[n - 1], 2);
            sl_free(ids);
        }
        sl_tokenizer_close(t);
    }
}

static struct sl_tokenizer *marked_words(const char *pattern)
{
    struct sl_buf b = {0};
    struct sl_tokenizer *t = NULL;
    struct sl_error err = {0};
    sl_buf_puts(&b,
                "{\"pre_tokenizer\":{\"type\":\"Sequence\",\"pretokenizers\":[{\"type\":\"Split\","
                "\"pattern\":{\"Regex\":");
    sl_buf_json_string(&b, pattern, strlen(pattern));
    sl_buf_puts(&b,
                "},\"behavior\":\"Isolated\"},{\"type\":\"ByteLevel\",\"add_prefix_space\":false,"
                "\"use_regex\":false}]},\"model\":{\"type\":\"BPE\",\"continuing_subword_prefix\":"
                "\"##\",\"merges\":[],\"vocab\":{");
    for (uint32_t i = 0; i < 256; i++) { /* the alphabet of byte-level files */
        uint32_t cp = (i >= 0x21 && i <= 0x7E) || (i >= 0xA1 && i != 0xAD) ? i
                      : i <= 0x20                                          ? 0x100 + i
                      : i <= 0xA0                                          ? 0x121 + i - 0x7F
                                                                           : 0x143;
        char utf8[8] = "##";
        size_t n = sl_utf8_encode(cp, utf8 + 2);
        sl_buf_puts(&b, i > 0 ? "," : "");
        sl_buf_json_string(&b, utf8 + 2, n);
        sl_buf_printf(&b, ":%u,", i);
        sl_buf_json_string(&b, utf8, n + 2);
        sl_buf_printf(&b, ":%u", i + 256);
    }
    sl_buf_puts(&b, "}}}");
    if (sl_tokenizer_from_json(b.data, b.n_bytes, NULL, 0, &t, &err) != 0)
        fail_msg("%s", err.msg);
    sl_buf_deinit(&b);
    return t;
}

static void test_fast_patterns(void **state)
{
    (void)state;
    static const char *const patterns[] = {
        GPT2_OPEN "|\\s+",
        "'(?:[sdmt]|ll|ve|re)| ?\\p{L}++| ?\\p{N}++| ?[^\\s\\p{L}\\p{N}]++|\\s++$|\\s+(?!\\S)|\\s",
        LLAMA_OPEN "\\p{N}{1,3}" LLAMA_END,
        LLAMA_OPEN "\\p{N}" LLAMA_END,
        "'(?i:[sdmt]|ll|ve|re)|[^\\r\\n\\p{L}\\p{N}]?+\\p{L}++|\\p{N}{1,3}+| ?[^\\s\\p{L}\\p{N}]++"
        "[\\r\\n]*+|\\s++$|\\s*[\\r\\n]|\\s+(?!\\S)|\\s",
        CASED("(?i:'s|'t|'re|'ve|'m|'ll|'d)?") "|\\p{N}{1,3}" CASED_END,
        CASED("") "|\\p{N}" CASED_END,
    };
    struct sl_rng r = {.seed = 3};
    for (size_t p = 0; p < SL_COUNT(patterns); p++) {
        char grouped[1024];
        (void)snprintf(grouped, sizeof(grouped), "(?:%s)", patterns[p]);
        struct sl_tokenizer *fast = marked_words(patterns[p]), *slow = marked_words(grouped);
        for (int i = 0; i < 4000; i++) {
            struct sl_buf b = {0};
            for (uint64_t k = sl_rng_below(&r, 24) + 1; k > 0; k--)
                put_old_char(&r, &b);
            struct sl_ids want = encode(slow, b.data, b.n_bytes, 0);
            assert_int_equal(want.n, b.n_bytes);
            expect_ids(fast, b.data, b.n_bytes, 0, want.data, want.n, patterns[p]);
            sl_free(want.data);
            sl_buf_deinit(&b);
        }
        sl_tokenizer_destroy(fast);
        sl_tokenizer_destroy(slow);
    }
}

#define MAX_MERGES 40

/* Random merges in random order of rank, so that some make pairs of lower rank than their own. */
static size_t random_merges(struct sl_rng *r, uint32_t (*merge)[3], struct sl_buf *json)
{
    char names[MAX_MERGES + 3][128] = {"a", "b", "c"};
    size_t n_names = 3, n = 0;
    for (int tries = 0; tries < 400 && n < MAX_MERGES; tries++) {
        uint32_t x = (uint32_t)sl_rng_below(r, n_names), y = (uint32_t)sl_rng_below(r, n_names);
        size_t id = 0;
        char joined[256];
        (void)snprintf(joined, sizeof(joined), "%s%s", names[x], names[y]);
        bool known = strlen(joined) > 100;
        for (size_t k = 0; k < n; k++)
            known |= merge[k][0] == x && merge[k][1] == y;
        while (id < n_names && strcmp(names[id], joined) != 0)
            id++;
        if (known)
            continue;
        if (id == n_names)
            memcpy(names[n_names++], joined, strlen(joined) + 1);
        size_t at = sl_rng_below(r, n + 1);
        memmove(merge[at + 1], merge[at], (n - at) * sizeof(*merge));
        merge[at][0] = x;
        merge[at][1] = y;
        merge[at][2] = (uint32_t)id;
        n++;
    }
    sl_buf_puts(json, "{\"model\":{\"type\":\"BPE\",\"vocab\":{");
    for (size_t k = 0; k < n_names; k++)
        sl_buf_printf(json, "%s\"%s\":%zu", k > 0 ? "," : "", names[k], k);
    sl_buf_puts(json, "},\"merges\":[");
    for (size_t k = 0; k < n; k++)
        sl_buf_printf(json, "%s\"%s %s\"", k > 0 ? "," : "", names[merge[k][0]],
                      names[merge[k][1]]);
    sl_buf_puts(json, "]}}");
    return n;
}

static size_t merge_plainly(uint32_t (*merge)[3], size_t n_merges, int32_t *v, size_t n)
{
    for (;;) {
        size_t best = n_merges, at = 0;
        for (size_t i = 0; i + 1 < n; i++) {
            for (size_t k = 0; k < best; k++) {
                if (merge[k][0] == (uint32_t)v[i] && merge[k][1] == (uint32_t)v[i + 1]) {
                    best = k;
                    at = i;
                }
            }
        }
        if (best == n_merges)
            return n;
        v[at] = (int32_t)merge[best][2];
        memmove(&v[at + 1], &v[at + 2], (n - at - 2) * sizeof(*v));
        n--;
    }
}

static void test_merge_order(void **state)
{
    (void)state;
    struct sl_rng r = {.seed = 11};
    for (int round = 0; round < 150; round++) {
        static uint32_t merge[MAX_MERGES + 1][3];
        struct sl_buf json = {0};
        size_t n_merges = random_merges(&r, merge, &json);
        struct sl_tokenizer *t = from_json(json.data);
        for (int i = 0; i < 12; i++) {
            char s[400];
            int32_t want[400];
            size_t n = 1 + sl_rng_below(&r, i % 2 ? 30 : 399);
            uint64_t letters = 1 + sl_rng_below(&r, 3);
            for (size_t k = 0; k < n; k++) {
                want[k] = (int32_t)sl_rng_below(&r, letters);
                s[k] = (char)('a' + want[k]);
            }
            size_t n_want = merge_plainly(merge, n_merges, want, n);
            expect_ids(t, s, n, 0, want, n_want, json.data);
        }
        sl_tokenizer_destroy(t);
        sl_buf_deinit(&json);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_gguf_pairs),
        cmocka_unit_test(test_plans),
        cmocka_unit_test(test_golden),
        cmocka_unit_test(test_code_points),
        cmocka_unit_test(test_user_pieces),
        cmocka_unit_test(test_tekken),
        cmocka_unit_test(test_stream),
        cmocka_unit_test(test_bytes_round_trip),
        cmocka_unit_test(test_invalid_as_replacement),
        cmocka_unit_test(test_special_is_text),
        cmocka_unit_test(test_linear),
        cmocka_unit_test(test_added_tokens),
        cmocka_unit_test(test_bpe_options),
        cmocka_unit_test(test_config),
        cmocka_unit_test(test_fast_patterns),
        cmocka_unit_test(test_merge_order),
        cmocka_unit_test(test_two_texts),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
