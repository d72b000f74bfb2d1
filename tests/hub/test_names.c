/* SPDX-License-Identifier: MIT
 *
 * What is decided without a network: names of the hub, which files a model needs, header lines.
 */
#include "base/sys.h"
#include "hub/fetch.h"
#include "hub/files.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

static void test_names(void **state)
{
    static const struct {
        const char *text, *repo, *quant, *file; /* repo NULL: no name of the hub */
    } cases[] = {
        {"Qwen/Qwen3-0.6B", "Qwen/Qwen3-0.6B", "", ""},
        {"a/b:Q4_K_M", "a/b", "Q4_K_M", ""},
        {"a/b/c.gguf", "a/b", "", "c.gguf"},
        {"a/b/sub/c-00001-of-00002.gguf", "a/b", "", "sub/c-00001-of-00002.gguf"},
        {"01-ai/Yi_1.5", "01-ai/Yi_1.5", "", ""},
        {"gpt2", NULL, NULL, NULL},
        {"/a/b", NULL, NULL, NULL},
        {"./a/b", NULL, NULL, NULL},
        {"../a", NULL, NULL, NULL},
        {"a/", NULL, NULL, NULL},
        {"a/b/", NULL, NULL, NULL},
        {"a//b", NULL, NULL, NULL},
        {"a/b:", NULL, NULL, NULL},
        {"a/b:../x", NULL, NULL, NULL},
        {"a/b/c.safetensors", NULL, NULL, NULL},
        {"a/b/../c.gguf", NULL, NULL, NULL},
        {"a/b/.././c.gguf", NULL, NULL, NULL},
        {"a--b/c", NULL, NULL, NULL},
        {"a/b..c", NULL, NULL, NULL},
        {"a/b.", NULL, NULL, NULL},
        {"-a/b", NULL, NULL, NULL},
        {"a/b c", NULL, NULL, NULL},
        {"a/b\x1b", NULL, NULL, NULL},
        {"", NULL, NULL, NULL},
    };
    struct sl_hub_name n;
    (void)state;
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        bool is = sl_hub_name_parse(cases[i].text, &n);
        if (is != (cases[i].repo != NULL))
            fail_msg("%s", cases[i].text);
        if (is) {
            assert_string_equal(n.repo, cases[i].repo);
            assert_string_equal(n.quant, cases[i].quant);
            assert_string_equal(n.file, cases[i].file);
        }
    }
    char longest[400];
    memset(longest, 'x', sizeof longest);
    longest[sizeof longest - 1] = '\0';
    assert_false(sl_hub_name_parse(longest, &n));
    longest[96] = '/';
    longest[96 + 1 + 96] = '\0';
    assert_true(sl_hub_name_parse(longest, &n));
    assert_string_equal(n.repo, longest);
}

static void test_revisions(void **state)
{
    (void)state;
    assert_true(sl_hub_revision_safe("main") && sl_hub_revision_safe("refs/pr/1"));
    static const char *const bad[] = {"", "..", "a/..", "/a", "a/", "-f", "a\nb", "a//b"};
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++)
        assert_false(sl_hub_revision_safe(bad[i]));
}

/* Picks from a list of paths with spaces between them; "" stands for an error. */
static void check_pick(const char *paths, const char *ask, bool text_only, const char *index,
                       const char *wanted, const char *main_file)
{
    struct sl_hub_files f = {0};
    struct sl_hub_name name;
    struct sl_hub_pick pick = {.text_only = text_only};
    struct sl_hub_file *file;
    struct sl_error err = {0};
    struct sl_buf got = {0};
    assert_true(sl_hub_name_parse(ask, &name));
    for (const char *p = paths; *p != '\0'; p += strspn(p, " ")) {
        size_t n = strcspn(p, " ");
        assert_int_equal(sl_hub_files_add(&f, p, n, &file, &err), 0);
        p += n;
    }
    pick.index = index;
    pick.n_index = index != NULL ? strlen(index) : 0;
    int rc = sl_hub_files_pick(&f, &name, &pick, &err);
    for (size_t i = 0; rc == 0 && i < f.n; i++) {
        if (f.items[i].wanted)
            sl_buf_printf(&got, "%s%s", got.n_bytes > 0 ? " " : "", f.items[i].path);
    }
    assert_string_equal(got.data != NULL ? got.data : "", wanted);
    assert_true(rc == 0 || err.msg[0] != '\0');
    if (rc == 0)
        assert_string_equal(pick.main != NULL ? pick.main : "", main_file);
    sl_buf_deinit(&got);
    sl_hub_files_deinit(&f);
}

static void test_picks(void **state)
{
    (void)state;
    check_pick("README.md config.json tokenizer.json model.safetensors pytorch_model.bin "
               "pytorch_model.bin.index.json tf_model.h5 vocab.txt logo.png onnx/config.json "
               "1_Pooling/config.json",
               "a/b", false, NULL,
               "config.json tokenizer.json model.safetensors vocab.txt 1_Pooling/config.json", "");
    check_pick("config.json tokenizer.json model.safetensors", "a/b", true, NULL,
               "config.json tokenizer.json", "");
    check_pick("config.json model.safetensors.index.json x-1.safetensors x-2.safetensors", "a/b",
               false, "{\"weight_map\": {\"t\": \"x-2.safetensors\"}}",
               "config.json model.safetensors.index.json x-2.safetensors", "");
    check_pick("adapter_config.json adapter_model.safetensors tokenizer.json", "a/b", false, NULL,
               "adapter_config.json adapter_model.safetensors tokenizer.json", "");
    check_pick("only-Q8_0.gguf mmproj-only-F16.gguf", "a/b", false, NULL, "only-Q8_0.gguf",
               "only-Q8_0.gguf");
    check_pick("a.Q4_K_M.gguf a.Q4_K_S.gguf", "a/b:Q4_K_M", false, NULL, "a.Q4_K_M.gguf",
               "a.Q4_K_M.gguf");
    check_pick("a.Q4_K_M.gguf", "a/b:K_M", false, NULL, "", "");
    check_pick("a-Q4_K_M.gguf a-Q8_0.gguf model.safetensors config.json", "a/b:q8_0", false, NULL,
               "a-Q8_0.gguf", "a-Q8_0.gguf");
    check_pick("a-F16-00001-of-00003.gguf a-F16-00003-of-00003.gguf", "a/b:F16", false, NULL, "",
               ""); /* a part is missing */
    check_pick("a-00001-of-00000.gguf", "a/b", false, NULL, "a-00001-of-00000.gguf",
               "a-00001-of-00000.gguf"); /* no part of anything */
    check_pick("", "a/b", false, NULL, "", "");
    check_pick("model.safetensors", "a/b", false, NULL, "", "");
}

static void test_list_of_files(void **state)
{
    static const char text[] =
        "{\"sha\": \"0123456789012345678901234567890123456789\", \"siblings\": ["
        "{\"rfilename\": \"a.json\", \"size\": 3,"
        " \"blobId\": \"aaaaaaaaaabbbbbbbbbbccccccccccdddddddddd\"},"
        "{\"rfilename\": \"../up\"}, {\"rfilename\": \"w\", \"blobId\": \"zz\","
        " \"lfs\": {\"size\": 7, \"sha256\": \"00112233445566778899aabbccddeeff"
        "00112233445566778899aabbccddeeff\"}}]}";
    struct sl_hub_files f = {0};
    struct sl_error err = {0};
    (void)state;
    assert_int_equal(sl_hub_files_parse(&f, text, sizeof text - 1, &err), 0);
    assert_int_equal(f.n, 2);
    assert_string_equal(f.items[0].id, "aaaaaaaaaabbbbbbbbbbccccccccccdddddddddd");
    assert_true(f.items[0].sized && f.items[0].n_bytes == 3 && f.items[1].n_bytes == 7);
    assert_int_equal(strlen(f.items[1].id), 64);
    sl_hub_files_deinit(&f);
}

static void put(struct sl_fetch_headers *h, const char *line)
{
    sl_fetch_header_line(h, line, strlen(line));
}

static void test_header_lines(void **state)
{
    struct sl_fetch_headers h = {0};
    (void)state;
    put(&h, "HTTP/1.1 302 Found\r\n");
    put(&h, "X-Linked-Etag: \"abc\"\r\n");
    put(&h, "x-linked-size: 12\r\n");
    put(&h, "ETag: W/\"first\"\r\n");
    put(&h, "HTTP/1.1 206 Partial\r\n");
    put(&h, "X-Linked-ETag: \"another\"\r\n"); /* of the store: the hub's word counts */
    put(&h, "Content-Range: bytes 5-9/10\r\n");
    put(&h, "etag: \"second\"\r\n");
    assert_string_equal(h.linked_etag, "abc");
    assert_string_equal(h.etag, "second");
    assert_true(h.has_linked_size && h.linked_size == 12);
    assert_true(h.has_range && h.range_start == 5);
    static const char *const bad[] = {"etag: \"../x\"", "etag: \"\"", "etag: .hidden", "etag: a/b",
                                      "etag:"};
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        put(&h, bad[i]);
        assert_string_equal(h.etag, "");
    }
    put(&h, "Content-Range: bytes -9/10");
    assert_false(h.has_range);
    put(&h, "X-Error-Message: a\x1b[2Jb");
    assert_string_equal(h.error_message, "a?[2Jb");
}

static void test_digests(void **state)
{
    struct sl_digest d;
    char hex[65];
    (void)state;
    sl_digest_begin(&d, SL_DIGEST_GIT, 6); /* printf 'hello\n' | git hash-object --stdin */
    sl_digest_put(&d, "hello\n", 6);
    sl_digest_end(&d, hex);
    assert_string_equal(hex, "ce013625030ba8dba906f756967f9e9ca394464a");
    sl_digest_begin(&d, SL_DIGEST_SHA256, 0); /* FIPS 180-2, appendix B.1 */
    sl_digest_put(&d, "ab", 2);
    sl_digest_put(&d, "c", 1);
    sl_digest_end(&d, hex);
    assert_string_equal(hex, "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad");
    assert_int_equal(sl_digest_kind_of(hex), SL_DIGEST_SHA256);
    assert_int_equal(sl_digest_kind_of("md5-abc"), SL_DIGEST_NONE);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_names),        cmocka_unit_test(test_revisions),
        cmocka_unit_test(test_picks),        cmocka_unit_test(test_list_of_files),
        cmocka_unit_test(test_header_lines), cmocka_unit_test(test_digests),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
