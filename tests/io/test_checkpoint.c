/* SPDX-License-Identifier: MIT
 * Checkpoints as users have them: folders with one or many shards, GGUF files and split sets, real
 * files where they are at hand, and each way in which a folder can be wrong.
 */
#include "craft.h"
#include "fault.h"
#include "folder.h"

#include "base/buf.h"
#include "base/check.h"
#include "io/bundle.h"
#include "io/checkpoint.h"
#include "io/files.h"
#include "io/json.h"
#include "io/safetensors.h"

#include <setjmp.h>
#include <sys/stat.h>

#include <cmocka.h>

#define CONFIG "{\"model_type\":\"llama\",\"hidden_size\":64}"
#define INDEX  "model.safetensors.index.json"

static struct folder dir;
static int n_index_cases;

static int make_dir(void **state)
{
    (void)state;
    return folder_make(&dir) ? 0 : -1;
}

static int remove_dir(void **state)
{
    (void)state;
    folder_remove(&dir);
    return 0;
}

static int clear_dir(void **state)
{
    (void)state;
    folder_clear(&dir);
    return 0;
}

static void expect(const char *path, int code, const char *named)
{
    struct sl_error err = {0};
    struct sl_ckpt *c = NULL;
    fault_arm(-1, 0);
    int rc = sl_ckpt_open(path, &c, &err);
    if (rc != code)
        fail_msg("%s: code %d (%s), expected %d", named, rc, err.msg, code);
    for (const char *s = err.msg; *s != '\0'; s++)
        assert_true((unsigned char)*s >= 0x20); /* nothing that could move a terminal's cursor */
    if (rc != 0 && strstr(err.msg, named) == NULL)
        fail_msg("message \"%s\" does not name \"%s\"", err.msg, named);
    sl_ckpt_close(c);
    if (!fault_clean())
        fail_msg("%s: %d blocks, %d files, %d maps left", named, (int)fault.blocks,
                 (int)fault.files, (int)fault.maps);
    sl_sys = &sl_sys_real;
}

static float first_value(const struct sl_ckpt *c, const char *name)
{
    const struct sl_ckpt_tensor *t = sl_ckpt_find(c, name);
    float x = -1;
    if (t != NULL)
        memcpy(&x, t->data, sizeof x);
    return x;
}

static void single_file_folder(void **state)
{
    struct sl_error err;
    (void)state;
    struct sl_ckpt *c;
    const char *text;
    size_t n;
    assert_true(folder_text(&dir, "config.json", CONFIG));
    assert_true(folder_text(&dir, "tokenizer.json", "{\"x\":1}"));
    assert_true(folder_text(&dir, "empty.txt", ""));
    assert_true(folder_shard(&dir, "model.safetensors", "a,b,c"));
    assert_int_equal(sl_ckpt_open(dir.path, &c, NULL), 0);
    assert_int_equal(sl_ckpt_kind(c), SL_CKPT_HF);
    assert_string_equal(sl_ckpt_path(c), dir.path);
    assert_int_equal(sl_ckpt_n_tensors(c), 3);
    assert_string_equal(sl_ckpt_tensor_at(c, 1)->name, "b");
    const struct sl_ckpt_tensor *t = sl_ckpt_find(c, "c");
    assert_non_null(t);
    assert_true(t->dtype == SL_DTYPE_F32 && t->n_dims == 1 && t->dims[0] == 2);
    assert_true(t->dims[1] == 1 && t->dims[2] == 1 && t->dims[3] == 1);
    assert_int_equal(t->n_bytes, 8);
    assert_true(first_value(c, "a") == 0 && first_value(c, "c") == 20);
    assert_null(sl_ckpt_find(c, "d"));
    assert_null(sl_ckpt_unsupported(c, "a"));
    assert_null(sl_ckpt_unsupported(c, "d"));
    assert_null(sl_ckpt_gguf(c));
    assert_int_equal(json_integer_value(json_object_get(sl_ckpt_config(c), "hidden_size")), 64);
    assert_null(sl_ckpt_generation_config(c));
    assert_true(sl_ckpt_file(c, "tokenizer.json", &text, &n, &err) == 1);
    assert_true(n == 7 && memcmp(text, "{\"x\":1}", 7) == 0);
    const char *again;
    assert_true(sl_ckpt_file(c, "tokenizer.json", &again, &n, &err) == 1 && again == text);
    assert_true(sl_ckpt_file(c, "empty.txt", &text, &n, &err) == 1 && n == 0);
    assert_true(sl_ckpt_file(c, "absent.json", &text, &n, &err) != 1);
    assert_true(sl_ckpt_file(c, "../x", &text, &n, &err) != 1);
    sl_ckpt_close(c);
    assert_true(folder_text(&dir, "generation_config.json", "{\"top_k\":5}"));
    char slash[256];
    snprintf(slash, sizeof slash, "%s//", dir.path);
    assert_int_equal(sl_ckpt_open(slash, &c, NULL), 0);
    assert_non_null(json_object_get(sl_ckpt_generation_config(c), "top_k"));
    sl_ckpt_close(c);
}

static void only_plain_names_are_looked_up(void **state)
{
    (void)state;
    static const char *const names[] = {"",     ".",   "..",  "/etc/passwd", "../x",
                                        "a\\b", "./a", "a\n", "\xFF",        "sub/..",
                                        "a//b", "/a",  "a/",  "a/b/c",       "a/../b"};
    struct sl_files *f;
    const uint8_t *data;
    size_t n;
    assert_int_equal(sl_files_open(dir.path, &f, NULL), 0);
    for (size_t i = 0; i < SL_COUNT(names); i++)
        assert_int_equal(sl_files_get(f, names[i], &data, &n, NULL), SL_EINVAL);
    char name[300];
    memset(name, 'a', sizeof name);
    name[256] = '\0';
    assert_int_equal(sl_files_get(f, name, &data, &n, NULL), SL_EINVAL);
    name[255] = '\0';
    assert_int_equal(sl_files_get(f, name, &data, &n, NULL), 0); /* possible, but not there */
    assert_int_equal(sl_files_get(f, "...", &data, &n, NULL), 0);
    assert_int_equal(sl_files_get(f, ".hidden", &data, &n, NULL), 0);
    assert_int_equal(sl_files_get(f, "1_Pooling/config.json", &data, &n, NULL), 0);
    sl_files_close(f);
}

static void folders_that_lack_something(void **state)
{
    (void)state;
    expect(dir.path, SL_ENOTFOUND, "config.json");
    assert_true(folder_text(&dir, "config.json", CONFIG));
    expect(dir.path, SL_ENOTFOUND, "model.safetensors");
    expect(folder_path(&dir, "absent"), SL_ENOTFOUND, "absent");
    expect(folder_path(&dir, "config.json"), SL_EUNSUPPORTED, "not a GGUF file");
    assert_true(folder_shard(&dir, "model.safetensors", "a"));
    expect(folder_path(&dir, "model.safetensors"), SL_EUNSUPPORTED, "name the folder");
    expect("", SL_ENOTFOUND, "No such file");
    char longer[600];
    memset(longer, 'x', sizeof longer); /* the end of a long path, and the reason, are told */
    for (size_t i = 40; i < sizeof longer; i += 40)
        longer[i] = '/';
    snprintf(longer + sizeof longer - 10, 10, "/the.gguf");
    expect(longer, SL_ENOTFOUND, "/the.gguf: No such file");
    expect(longer, SL_ENOTFOUND, "xxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxx/");
    assert_int_equal(mkdir(folder_path(&dir, "model.gguf"), 0755), 0);
    expect(dir.file, SL_ENOTFOUND, "config.json");
    assert_int_equal(mkdir(folder_path(&dir, "generation_config.json"), 0755), 0);
    expect(dir.path, SL_EIO, "generation_config.json");
}

static void bad_config(void **state)
{
    (void)state;
    char deep[400], deeper[400], quoted[400] = "{\"a\":\"x\\\"";
    memset(quoted + 9, '[', 200); /* in a string they do not count */
    memcpy(quoted + 209, "\"}", 3);
    for (int i = 0; i < 2; i++) {
        char *s = i == 0 ? deep : deeper;
        int n = 63 + i; /* brackets inside the object: 64 levels are the limit */
        memcpy(s, "{\"a\":", 5);
        memset(s + 5, '[', (size_t)n);
        memset(s + 5 + n, ']', (size_t)n);
        memcpy(s + 5 + 2 * n, "}", 2);
    }
    const struct {
        const char *text;
        int code;
        const char *named;
    } cases[] = {
        {"{}", 0, ""},
        {"\n{\"a\":\"[[[[{{{{\\\"[[\"}\n", 0, ""},
        {deep, 0, ""},
        {quoted, 0, ""},
        {deeper, SL_ELIMIT, "config.json"},
        {"", SL_EFORMAT, "config.json"},
        {"[]", SL_EFORMAT, "not an object"},
        {"null", SL_EFORMAT, "config.json"},
        {"1", SL_EFORMAT, "config.json"},
        {"{", SL_EFORMAT, "config.json"},
        {"{}x", SL_EFORMAT, "config.json"},
        {"{\"a\":1,\"a\":2}", SL_EFORMAT, "duplicate"},
        {"{\"a\":{\"b\":1,\"b\":1}}", SL_EFORMAT, "duplicate"},
        {"{\"a\":NaN}", SL_EFORMAT, "line 1"},
        {"{\"a\":01}", SL_EFORMAT, "line 1"},
        {"{\"a\":1e999}", SL_EFORMAT, "line 1"},
        {"{\"a\":99999999999999999999}", SL_EFORMAT, "line 1"},
        {"{\"a\":\"\\u0000\"}", SL_EFORMAT, "line 1"},
        {"{\"a\":\"\xFF\"}", SL_EFORMAT, "config.json"},
        {"{\"a\":\"\\ud800\"}", SL_EFORMAT, "line 1"},
        {"{'a':1}", SL_EFORMAT, "line 1"},
        {"{\"a\":1,}", SL_EFORMAT, "line 1"},
        {"\n\n{\"a\":tru}", SL_EFORMAT, "line 3"},
        {"{\"a\":\"x", SL_EFORMAT, "line 1"},
        {"]]]]{\"a\":1}", SL_EFORMAT, "line 1"},
    };
    assert_true(folder_shard(&dir, "model.safetensors", "a"));
    for (size_t i = 0; i < SL_COUNT(cases); i++) {
        assert_true(folder_text(&dir, "config.json", cases[i].text));
        expect(dir.path, cases[i].code, cases[i].named);
    }
    assert_true(folder_text(&dir, "config.json", CONFIG));
    assert_true(folder_text(&dir, "generation_config.json", "{\"a\":"));
    expect(dir.path, SL_EFORMAT, "generation_config.json");
    char *big = sl_malloc(SL_JSON_MAX_CONFIG + 2);
    memset(big, ' ', SL_JSON_MAX_CONFIG + 1);
    memcpy(big, "{}", 2);
    big[SL_JSON_MAX_CONFIG + 1] = '\0';
    assert_true(folder_text(&dir, "generation_config.json", big));
    expect(dir.path, SL_ELIMIT, "generation_config.json");
    big[SL_JSON_MAX_CONFIG] = '\0';
    assert_true(folder_text(&dir, "generation_config.json", big));
    expect(dir.path, 0, "");
    sl_free(big);
}

static void sharded_folder(void **state)
{
    (void)state;
    struct sl_ckpt *c;
    assert_true(folder_text(&dir, "config.json", CONFIG));
    assert_true(folder_shard(&dir, "m-1.safetensors", "a,b"));
    assert_true(folder_shard(&dir, "m-2.safetensors", "c,d,e"));
    assert_true(folder_text(&dir, INDEX,
                            "{\"metadata\":{\"total_size\":40},\"weight_map\":{"
                            "\"d\":\"m-2.safetensors\",\"a\":\"m-1.safetensors\","
                            "\"b\":\"m-1.safetensors\",\"c\":\"m-2.safetensors\","
                            "\"e\":\"m-2.safetensors\"}}"));
    assert_int_equal(sl_ckpt_open(dir.path, &c, NULL), 0);
    assert_int_equal(sl_ckpt_n_tensors(c), 5);
    assert_true(first_value(c, "b") == 10 && first_value(c, "e") == 20);
    sl_ckpt_close(c);
    /* a tensor that the index forgets is there all the same */
    assert_true(folder_text(&dir, INDEX,
                            "{\"weight_map\":{\"a\":\"m-1.safetensors\","
                            "\"c\":\"m-2.safetensors\"}}"));
    assert_int_equal(sl_ckpt_open(dir.path, &c, NULL), 0);
    assert_true(first_value(c, "d") == 10);
    sl_ckpt_close(c);
    /* as in transformers, the single file wins */
    assert_true(folder_shard(&dir, "model.safetensors", "only"));
    assert_int_equal(sl_ckpt_open(dir.path, &c, NULL), 0);
    assert_int_equal(sl_ckpt_n_tensors(c), 1);
    sl_ckpt_close(c);
}

static void bad_index(void **state)
{
    (void)state;
    static const struct {
        const char *text;
        int code;
        const char *named;
    } cases[] = {
        {"{\"weight_map\":{\"a\":\"s1.safetensors\"}}", 0, ""},
        {"", SL_EFORMAT, INDEX},
        {"{", SL_EFORMAT, INDEX},
        {"[]", SL_EFORMAT, INDEX},
        {"{}", SL_EFORMAT, "weight_map"},
        {"{\"weight_map\":{}}", SL_EFORMAT, "weight_map"},
        {"{\"weight_map\":null}", SL_EFORMAT, "weight_map"},
        {"{\"weight_map\":[]}", SL_EFORMAT, "weight_map"},
        {"{\"weight_map\":\"x\"}", SL_EFORMAT, "weight_map"},
        {"{\"weight_map\":{},\"weight_map\":{}}", SL_EFORMAT, "duplicate"},
        {"{\"weight_map\":{\"a\":\"s1.safetensors\",\"a\":\"s2.safetensors\"}}", SL_EFORMAT,
         "duplicate"},
        {"{\"weight_map\":{\"a\":1}}", SL_EFORMAT, "of a:"},
        {"{\"weight_map\":{\"a\":null}}", SL_EFORMAT, "of a:"},
        {"{\"weight_map\":{\"a\":[\"s1.safetensors\"]}}", SL_EFORMAT, "of a:"},
        {"{\"weight_map\":{\"a\":{}}}", SL_EFORMAT, "of a:"},
        {"{\"weight_map\":{\"a\":\"\"}}", SL_EFORMAT, "of a:"},
        {"{\"weight_map\":{\"a\":\".\"}}", SL_EFORMAT, "of a:"},
        {"{\"weight_map\":{\"a\":\"..\"}}", SL_EFORMAT, "of a:"},
        {"{\"weight_map\":{\"a\":\"../s1.safetensors\"}}", SL_EFORMAT, "../s1.safetensors"},
        {"{\"weight_map\":{\"a\":\"x/../s1.safetensors\"}}", SL_EFORMAT, "of a:"},
        {"{\"weight_map\":{\"a\":\"/etc/passwd\"}}", SL_EFORMAT, "/etc/passwd"},
        {"{\"weight_map\":{\"a\":\"/s1.safetensors\"}}", SL_EFORMAT, "of a:"},
        {"{\"weight_map\":{\"a\":\"sub/s1.safetensors\"}}", SL_EFORMAT, "of a:"},
        {"{\"weight_map\":{\"a\":\"./s1.safetensors\"}}", SL_EFORMAT, "of a:"},
        {"{\"weight_map\":{\"a\":\"..\\\\s1.safetensors\"}}", SL_EFORMAT, "of a:"},
        {"{\"weight_map\":{\"a\":\"s1.safetensors\\n\"}}", SL_EFORMAT, "of a:"},
        {"{\"weight_map\":{\"a\":\"s1.safetensors\\u0000\"}}", SL_EFORMAT, INDEX},
        {"{\"weight_map\":{\"a\":\"x\\u001b[2J\"}}", SL_EFORMAT, "of a: x?[2J"},
        {"{\"weight_map\":{\"a\":\"x\\u009b2J\"}}", SL_EFORMAT, "of a: x"},
        {"{\"weight_map\":{\"b\\n2026\":\"s1.safetensors\"}}", SL_EFORMAT, "tensor b?2026"},
        {"{\"weight_map\":{\"a\":\"config.json\"}}", SL_EUNSUPPORTED, "config.json"},
        {"{\"weight_map\":{\"a\":\"m.bin\"}}", SL_EUNSUPPORTED, "m.bin"},
        {"{\"weight_map\":{\"a\":\"s1.SAFETENSORS\"}}", SL_EUNSUPPORTED, "of a:"},
        {"{\"weight_map\":{\"a\":\"s9.safetensors\"}}", SL_ENOTFOUND, "s9.safetensors"},
        {"{\"weight_map\":{\"a\":\"s1.safetensors\",\"z\":\"s9.safetensors\"}}", SL_ENOTFOUND,
         "s9.safetensors"},
        {"{\"weight_map\":{\"nope\":\"s1.safetensors\"}}", SL_EFORMAT, "nope"},
        {"{\"weight_map\":{\"c\":\"s1.safetensors\"}}", SL_EFORMAT, "tensor c is not in s1"},
        {"{\"weight_map\":{\"a\":\"s2.safetensors\",\"c\":\"s1.safetensors\"}}", SL_EFORMAT,
         "tensor a is not in s2"},
        {"{\"weight_map\":{\"a\":\"s1.safetensors\",\"c\":\"dup.safetensors\"}}", SL_EFORMAT,
         "tensor a is in s1.safetensors and in dup.safetensors"},
        {"{\"weight_map\":{\"a\":\"broken.safetensors\"}}", SL_EFORMAT, "broken.safetensors"},
        {"{\"weight_map\":{\"a\":\"empty.safetensors\"}}", SL_EFORMAT, "empty.safetensors"},
        {"{\"weight_map\":{\"a\":\"folder.safetensors\"}}", SL_EIO, "folder.safetensors"},
    };
    assert_true(folder_text(&dir, "config.json", CONFIG));
    assert_true(folder_shard(&dir, "s1.safetensors", "a,b"));
    assert_true(folder_shard(&dir, "s2.safetensors", "c"));
    assert_true(folder_shard(&dir, "dup.safetensors", "c,a"));
    assert_true(folder_text(&dir, "broken.safetensors", "\x20\0\0\0\0\0\0\0{}"));
    assert_true(folder_text(&dir, "empty.safetensors", ""));
    assert_int_equal(mkdir(folder_path(&dir, "folder.safetensors"), 0755), 0);
    for (size_t i = 0; i < SL_COUNT(cases); i++, n_index_cases++) {
        assert_true(folder_text(&dir, INDEX, cases[i].text));
        expect(dir.path, cases[i].code, cases[i].named);
    }
    /* more shards than there may be: refused before any is opened */
    struct sl_buf b = {0};
    sl_buf_puts(&b, "{\"weight_map\":{");
    for (int i = 0; i <= SL_MAX_SHARDS; i++)
        sl_buf_printf(&b, "%s\"t%d\":\"s%d.safetensors\"", i > 0 ? "," : "", i, i);
    sl_buf_puts(&b, "}}");
    assert_true(folder_text(&dir, INDEX, b.data));
    expect(dir.path, SL_ELIMIT, "shards");
    sl_buf_deinit(&b);
    print_message("%d index cases\n", n_index_cases + 1);
}

/* Formats this build cannot read are listed and explained, not found. */
static void unsupported_tensors(void **state)
{
    (void)state;
    static const char header[] =
        "{\"ids\":{\"dtype\":\"I64\",\"shape\":[1,1,1,1],\"data_offsets\":[0,8]},"
        "\"conv\":{\"dtype\":\"BF16\",\"shape\":[2,3,1,1,2],\"data_offsets\":[8,32]},"
        "\"none\":{\"dtype\":\"F32\",\"shape\":[0,2],\"data_offsets\":[32,32]},"
        "\"new\":{\"dtype\":\"F2\",\"shape\":[4],\"data_offsets\":[32,33]},"
        "\"scalar\":{\"dtype\":\"F32\",\"shape\":[],\"data_offsets\":[33,37]}}";
    struct sl_buf b = {0};
    struct sl_ckpt *c;
    uint64_t n = sizeof header - 1;
    static const char zeros[37];
    sl_buf_put(&b, &n, 8);
    sl_buf_put(&b, header, n);
    sl_buf_put(&b, zeros, sizeof zeros);
    assert_true(folder_text(&dir, "config.json", CONFIG));
    assert_int_equal(sl_write_file(folder_path(&dir, "model.safetensors"), b.data, b.n_bytes, NULL),
                     0);
    sl_buf_deinit(&b);
    assert_int_equal(sl_ckpt_open(dir.path, &c, NULL), 0);
    assert_int_equal(sl_ckpt_n_tensors(c), 5);
    assert_string_equal(sl_ckpt_unsupported(c, "ids"), "I64");
    assert_string_equal(sl_ckpt_unsupported(c, "conv"), "BF16 with 5 dimensions");
    assert_string_equal(sl_ckpt_unsupported(c, "none"), "F32 without elements");
    assert_string_equal(sl_ckpt_unsupported(c, "new"), "F2");
    assert_null(sl_ckpt_find(c, "ids"));
    assert_null(sl_ckpt_find(c, "conv"));
    const struct sl_ckpt_tensor *conv = sl_ckpt_tensor_at(c, 1);
    assert_int_equal(conv->dtype, SL_DTYPE_COUNT);
    assert_true(conv->n_dims == 4 && conv->dims[0] == 6 && conv->dims[3] == 2);
    const struct sl_ckpt_tensor *scalar = sl_ckpt_find(c, "scalar");
    assert_true(scalar != NULL && scalar->n_dims == 0 && scalar->dims[0] == 1);
    assert_int_equal(((uintptr_t)scalar->data - (uintptr_t)conv->data) % 2, 1); /* unaligned */
    sl_ckpt_close(c);
}

static void gguf_file(void **state)
{
    struct sl_error err;
    (void)state;
    struct sl_ckpt *c;
    const char *text;
    size_t n;
    assert_true(folder_gguf(&dir, "m.gguf", "x,y", 0, 0, 0));
    assert_int_equal(sl_ckpt_open(folder_path(&dir, "m.gguf"), &c, NULL), 0);
    assert_int_equal(sl_ckpt_kind(c), SL_CKPT_GGUF);
    assert_int_equal(sl_ckpt_n_tensors(c), 2);
    const struct sl_ckpt_tensor *t = sl_ckpt_find(c, "y");
    assert_true(t != NULL && t->n_dims == 2 && t->dims[0] == 1 && t->dims[1] == 2);
    assert_true(t->dims[2] == 1 && t->dims[3] == 1);
    assert_true(first_value(c, "y") == 10);
    assert_int_equal(sl_gguf_str(sl_ckpt_gguf(c), "general.architecture", &text, &n, NULL), 1);
    assert_true(n == 5 && memcmp(text, "llama", 5) == 0);
    assert_null(sl_ckpt_config(c));
    assert_true(sl_ckpt_file(c, "m.gguf", &text, &n, &err) != 1);
    sl_ckpt_close(c);
    /* the name does not matter when the content says what it is */
    assert_true(folder_gguf(&dir, "sha256-0123", "x", 0, 0, 0));
    expect(folder_path(&dir, "sha256-0123"), 0, "");
    assert_true(folder_text(&dir, "e.gguf", ""));
    expect(folder_path(&dir, "e.gguf"), SL_EFORMAT, "e.gguf");
}

static void unsupported_gguf_types(void **state)
{
    (void)state;
    struct craft b = {0};
    struct sl_ckpt *c;
    craft_head(&b, 3, 3, 0);
    craft_tensor(&b, "iq", 1, (uint64_t[]){256}, 42, 0);
    craft_tensor(&b, "new", 1, (uint64_t[]){5}, 77, 96);
    craft_tensor(&b, "good", 1, (uint64_t[]){4}, 0, 128);
    craft_data(&b, 32, 144);
    const char *path = folder_path(&dir, "u.gguf");
    assert_int_equal(sl_write_file(path, b.b.data, b.b.n_bytes, NULL), 0);
    assert_int_equal(sl_ckpt_open(path, &c, NULL), 0);
    assert_int_equal(sl_ckpt_n_tensors(c), 3);
    assert_string_equal(sl_ckpt_unsupported(c, "iq"), "Q2_0");
    assert_string_equal(sl_ckpt_unsupported(c, "new"), "type 77");
    assert_null(sl_ckpt_unsupported(c, "good"));
    assert_null(sl_ckpt_find(c, "iq"));
    assert_non_null(sl_ckpt_find(c, "good"));
    assert_int_equal(sl_ckpt_tensor_at(c, 0)->dtype, SL_DTYPE_COUNT);
    sl_ckpt_close(c);
    craft_deinit(&b);
}

static void split_gguf(void **state)
{
    (void)state;
    struct sl_ckpt *c;
    assert_true(folder_gguf(&dir, "m-00001-of-00003.gguf", "", 0, 3, 3));
    assert_true(folder_gguf(&dir, "m-00002-of-00003.gguf", "a,b", 1, 3, 3));
    assert_true(folder_gguf(&dir, "m-00003-of-00003.gguf", "c", 2, 3, 3));
    assert_int_equal(sl_ckpt_open(folder_path(&dir, "m-00001-of-00003.gguf"), &c, NULL), 0);
    assert_int_equal(sl_ckpt_n_tensors(c), 3);
    assert_true(first_value(c, "b") == 10 && first_value(c, "c") == 0);
    sl_ckpt_drop(c, sl_ckpt_find(c, "c"));
    assert_true(first_value(c, "c") == 0); /* its pages come back from the file */
    struct sl_ckpt_tensor foreign = *sl_ckpt_find(c, "a");
    foreign.data = (void *)&foreign;
    sl_ckpt_drop(c, &foreign); /* in none of the files: left alone */
    sl_ckpt_close(c);
    expect(folder_path(&dir, "m-00002-of-00003.gguf"), SL_EINVAL, "open the first file");
    /* wrong total */
    assert_true(folder_gguf(&dir, "m-00001-of-00003.gguf", "", 0, 3, 4));
    expect(folder_path(&dir, "m-00001-of-00003.gguf"), SL_EFORMAT, "split.tensors.count = 4");
    assert_true(folder_gguf(&dir, "m-00001-of-00003.gguf", "", 0, 3, -1));
    expect(folder_path(&dir, "m-00001-of-00003.gguf"), SL_EFORMAT, "split.tensors.count");
    /* count and name disagree */
    assert_true(folder_gguf(&dir, "m-00001-of-00003.gguf", "", 0, 4, 3));
    expect(folder_path(&dir, "m-00001-of-00003.gguf"), SL_EFORMAT, "-00001-of-00004");
    assert_true(folder_gguf(&dir, "plain.gguf", "", 0, 3, 3));
    expect(folder_path(&dir, "plain.gguf"), SL_EFORMAT, "-00001-of-00003");
    assert_true(folder_gguf(&dir, "m-00001-of-00003.gguf", "", 0, 60000, 3));
    expect(folder_path(&dir, "m-00001-of-00003.gguf"), SL_ELIMIT, "split.count");
    assert_true(folder_gguf(&dir, "m-00001-of-00003.gguf", "", 0, 3, 3));
    /* siblings: swapped, of another set, without the keys, doubled tensor, missing */
    assert_true(folder_gguf(&dir, "m-00002-of-00003.gguf", "a,b", 2, 3, 3));
    expect(folder_path(&dir, "m-00001-of-00003.gguf"), SL_EFORMAT, "m-00002-of-00003.gguf");
    assert_true(folder_gguf(&dir, "m-00002-of-00003.gguf", "a,b", 1, 5, 3));
    expect(folder_path(&dir, "m-00001-of-00003.gguf"), SL_EFORMAT, "m-00002-of-00003.gguf");
    assert_true(folder_gguf(&dir, "m-00002-of-00003.gguf", "a,b", 0, 0, 0));
    expect(folder_path(&dir, "m-00001-of-00003.gguf"), SL_EFORMAT, "m-00002-of-00003.gguf");
    assert_true(folder_gguf(&dir, "m-00002-of-00003.gguf", "a,c", 1, 3, 3));
    expect(folder_path(&dir, "m-00001-of-00003.gguf"), SL_EFORMAT, "tensor c is in");
    assert_true(folder_text(&dir, "m-00002-of-00003.gguf", "GGUF"));
    expect(folder_path(&dir, "m-00001-of-00003.gguf"), SL_EFORMAT, "m-00002-of-00003.gguf");
    assert_int_equal(unlink(folder_path(&dir, "m-00002-of-00003.gguf")), 0);
    expect(folder_path(&dir, "m-00001-of-00003.gguf"), SL_ENOTFOUND,
           "m-00002-of-00003.gguf: file 2 of 3");
    /* one file that says so is a set of one */
    assert_true(folder_gguf(&dir, "one.gguf", "a", 0, 1, 1));
    expect(folder_path(&dir, "one.gguf"), 0, "");
}

static void names_of_split_files(void **state)
{
    (void)state;
    static const char *const names[] = {
        "m-00001-of_00003.gguf", "m-00001-of-0000x.gguf", "m-00001-of-00003.ggux",
        "m+00001-of-00003.gguf", "m-0000x-of-00003.gguf", "s.gguf",
    };
    char here[4096];
    assert_non_null(getcwd(here, sizeof here));
    assert_int_equal(chdir(dir.path), 0); /* a path as short as its name */
    for (size_t i = 0; i < SL_COUNT(names); i++) {
        assert_true(folder_gguf(&dir, names[i], "", 0, 3, 3));
        expect(names[i], SL_EFORMAT, "-00001-of-00003");
    }
    assert_int_equal(chdir(here), 0);
    assert_true(folder_text(&dir, "short.bin", "GGU"));
    expect(folder_path(&dir, "short.bin"), SL_EUNSUPPORTED, "not a GGUF file");
}

/* Fails each call of each kind in turn, while opening `path`, until opening succeeds without the
 * failure having been reached. Nothing may be left behind, and the code must fit the cause (code 0:
 * not asked). */
static void sweep(const char *path, int kind, int code)
{
    for (uint64_t k = 0;; k++) {
        struct sl_error err = {0};
        struct sl_ckpt *c = NULL;
        fault_arm(kind, k);
        int rc = sl_ckpt_open(path, &c, &err);
        bool struck = fault.struck;
        fault_disarm();
        if (rc == 0)
            sl_ckpt_close(c);
        if (!fault_clean())
            fail_msg("kind %d, call %d: %d blocks, %d files, %d maps left (%s)", kind, (int)k,
                     (int)fault.blocks, (int)fault.files, (int)fault.maps, err.msg);
        sl_sys = &sl_sys_real;
        if (struck && code != 0 && (rc != code || err.msg[0] == '\0'))
            fail_msg("kind %d, call %d: code %d (%s), expected %d", kind, (int)k, rc, err.msg,
                     code);
        if (!struck) {
            assert_int_equal(rc, 0);
            assert_true(k > 0 || kind == FAULT_WRITE);
            return;
        }
    }
}

static void every_failing_call_is_survived(void **state)
{
    (void)state;
    assert_true(folder_text(&dir, "config.json", CONFIG));
    assert_true(folder_text(&dir, "generation_config.json", "{\"a\":[1,{\"b\":\"c\"}]}"));
    assert_true(folder_shard(&dir, "m-1.safetensors", "a,b"));
    assert_true(folder_shard(&dir, "m-2.safetensors", "c"));
    assert_true(folder_text(&dir, INDEX,
                            "{\"weight_map\":{\"a\":\"m-1.safetensors\","
                            "\"b\":\"m-1.safetensors\",\"c\":\"m-2.safetensors\"}}"));
    assert_true(folder_gguf(&dir, "m-00001-of-00002.gguf", "a", 0, 2, 2));
    assert_true(folder_gguf(&dir, "m-00002-of-00002.gguf", "b", 1, 2, 2));
    static const int code[] = {
        [FAULT_ALLOC] = SL_ENOMEM, [FAULT_OPEN] = SL_EIO, [FAULT_SIZE] = SL_EIO,
        [FAULT_MAP] = SL_EIO,      [FAULT_WRITE] = 0,     [FAULT_CLOSE] = 0,
    };
    for (int kind = 0; kind < FAULT_KINDS; kind++) {
        sweep(dir.path, kind, code[kind]);
        sweep(folder_path(&dir, "m-00001-of-00002.gguf"), kind, code[kind]);
    }
    assert_true(folder_shard(&dir, "model.safetensors", "a"));
    for (int kind = 0; kind < FAULT_KINDS; kind++)
        sweep(dir.path, kind, code[kind]);
    /* With the JSON library's memory failing as well: it takes some of its failures for bad syntax
     * or a shorter string, so only that nothing breaks or leaks is asked for. */
    assert_int_equal(unlink(folder_path(&dir, "model.safetensors")), 0);
    json_set_alloc_funcs(sl_malloc, sl_free);
    sweep(dir.path, FAULT_ALLOC, 0);
    json_set_alloc_funcs(malloc, free);
}

/* Names of n tensors, long enough that tables and names outgrow the first piece of memory at every
 * place for some n. */
static void many_names(char *out, size_t cap, int n, char prefix)
{
    struct sl_buf b = {.max_bytes = cap - 1};
    for (int i = 0; i < n; i++)
        sl_buf_printf(&b, "%s%c.layers.%d.a_rather_long_name.weight", i > 0 ? "," : "", prefix, i);
    snprintf(out, cap, "%s", b.data != NULL ? b.data : "");
    sl_buf_deinit(&b);
}

static void memory_runs_out_at_any_size(void **state)
{
    (void)state;
    char *a = sl_malloc(16384), *b = sl_malloc(16384);
    assert_true(a != NULL && b != NULL);
    assert_true(folder_text(&dir, "config.json", CONFIG));
    for (int n = 1; n < 120; n += 1 + n / 40) {
        many_names(a, 16384, n, 'a');
        many_names(b, 16384, n, 'b');
        assert_true(folder_shard(&dir, "model.safetensors", a));
        sweep(dir.path, FAULT_ALLOC, SL_ENOMEM);
        assert_true(folder_gguf(&dir, "m-00001-of-00002.gguf", a, 0, 2, 2 * n));
        assert_true(folder_gguf(&dir, "m-00002-of-00002.gguf", b, 1, 2, 2 * n));
        sweep(folder_path(&dir, "m-00001-of-00002.gguf"), FAULT_ALLOC, SL_ENOMEM);
    }
    sl_free(b);
    sl_free(a);
}

/* Opens with each allocation failing in turn, until none does; the file may be wrong otherwise. */
static void starve(const char *path)
{
    bool struck = true;
    for (uint64_t k = 0; struck; k++) {
        struct sl_error err = {0};
        struct sl_ckpt *c = NULL;
        fault_arm(FAULT_ALLOC, k);
        int rc = sl_ckpt_open(path, &c, &err);
        struck = fault.struck;
        fault_disarm();
        if (rc == 0)
            sl_ckpt_close(c);
        assert_true(fault_clean());
        sl_sys = &sl_sys_real;
        assert_true(struck ? rc == SL_ENOMEM : rc == 0 || rc == SL_ENOTFOUND || rc == SL_EFORMAT);
    }
}

/* Tables as large as a piece of memory, so that each is an allocation of its own. */
static void memory_runs_out_in_every_table(void **state)
{
    (void)state;
    char name[300];
    for (int n = 60; n < 300; n += 12) { /* sets of files of which only the first is there */
        snprintf(name, sizeof name, "m-00001-of-%05d.gguf", n);
        assert_true(folder_gguf(&dir, name, "a", 0, (uint16_t)n, 1));
        starve(folder_path(&dir, name));
        folder_clear(&dir);
    }
    for (int pad = 0; pad < 160; pad += 16) { /* names that fill a piece */
        memset(name, 'm', sizeof name);
        for (int i = 1; i <= 40; i++) {
            snprintf(name + pad, sizeof name - (size_t)pad, "-%05d-of-00040.gguf", i);
            assert_true(folder_gguf(&dir, name, i == 1 ? "a" : "", (uint16_t)(i - 1), 40, 1));
        }
        snprintf(name + pad, sizeof name - (size_t)pad, "-%05d-of-00040.gguf", 1);
        starve(folder_path(&dir, name));
        folder_clear(&dir);
    }
    for (int n = 1; n < 80; n += 3) { /* types that nobody knows */
        struct craft b = {0};
        craft_head(&b, 3, (uint64_t)n, 0);
        for (int i = 0; i < n; i++) {
            snprintf(name, sizeof name, "a_rather_long_name_of_a_tensor.%d", i);
            craft_tensor(&b, name, 1, (uint64_t[]){5}, 77, 32 * (uint64_t)i);
        }
        craft_data(&b, 32, 32 * (size_t)n);
        const char *path = folder_path(&dir, "u.gguf");
        assert_int_equal(sl_write_file(path, b.b.data, b.b.n_bytes, NULL), 0);
        starve(path);
        craft_deinit(&b);
    }
    folder_clear(&dir);
    assert_true(folder_text(&dir, "config.json", CONFIG));
    for (int n = 200; n < 600; n += 6) {
        struct sl_buf index = {0};
        sl_buf_puts(&index, "{\"weight_map\":{");
        for (int i = 0; i < n; i++)
            sl_buf_printf(&index, "%s\"t%d\":\"%d.safetensors\"", i > 0 ? "," : "", i, i);
        sl_buf_puts(&index, "}}");
        assert_true(folder_text(&dir, INDEX, index.data));
        starve(dir.path);
        sl_buf_deinit(&index);
    }
}

/* An index whose names fill pieces of the largest size; few allocations come after its tables, so
 * only the last ones fail. */
static void memory_runs_out_behind_long_names(void **state)
{
    (void)state;
    assert_true(folder_text(&dir, "config.json", CONFIG));
    for (int n = 700; n <= SL_MAX_SHARDS; n += 20) {
        struct sl_buf index = {0};
        sl_buf_puts(&index, "{\"weight_map\":{");
        for (int i = 0; i < n; i++)
            sl_buf_printf(&index, "%s\"t%d\":\"%0240d.safetensors\"", i > 0 ? "," : "", i, i);
        sl_buf_puts(&index, "}}");
        assert_true(folder_text(&dir, INDEX, index.data));
        sl_buf_deinit(&index);
        fault_arm(FAULT_ALLOC, UINT32_MAX);
        struct sl_ckpt *c = NULL;
        assert_int_equal(sl_ckpt_open(dir.path, &c, NULL), SL_ENOTFOUND);
        uint64_t n_allocs = UINT32_MAX - fault.left;
        fault_disarm();
        sl_sys = &sl_sys_real;
        for (uint64_t k = n_allocs - 12; k < n_allocs; k++) {
            fault_arm(FAULT_ALLOC, k);
            assert_int_equal(sl_ckpt_open(dir.path, &c, NULL), SL_ENOMEM);
            assert_true(fault.struck);
            fault_disarm();
            assert_true(fault_clean());
            sl_sys = &sl_sys_real;
        }
    }
}

/* A header of metadata, escaped or not, before tensors of a type that nobody knows; the first value
 * moves the end of the first piece of memory over everything behind it. */
static void memory_runs_out_in_every_header(void **state)
{
    (void)state;
    assert_true(folder_text(&dir, "config.json", CONFIG));
    for (int pad = 1; pad < 4096; pad += 16) {
        struct sl_buf h = {0}, b = {0};
        sl_buf_printf(&h, "{\"__metadata__\":{\"a\":\"%0*d\"", pad, 0);
        for (int i = 0; i < 8; i++)
            sl_buf_printf(&h, ",\"k%s%d\":\"v%s\"", i % 3 == 0 ? "\\n" : "", i,
                          i % 2 == 0 ? "\\t" : "");
        sl_buf_putc(&h, '}');
        int n_tensors = 1 + pad / 32;
        for (int i = 0; i < n_tensors; i++)
            sl_buf_printf(&h, ",\"t%d\":{\"dtype\":\"F2\",\"shape\":[4],\"data_offsets\":[%d,%d]}",
                          i, i, i + 1);
        sl_buf_putc(&h, '}');
        uint64_t n = h.n_bytes;
        sl_buf_put(&b, &n, sizeof n);
        sl_buf_put(&b, h.data, h.n_bytes);
        for (int i = 0; i < n_tensors; i++)
            sl_buf_putc(&b, (char)i);
        assert_int_equal(
            sl_write_file(folder_path(&dir, "model.safetensors"), b.data, b.n_bytes, NULL), 0);
        starve(dir.path);
        sl_buf_deinit(&h);
        sl_buf_deinit(&b);
    }
    for (int n = 10; n < 260; n += 10) {
        struct craft b = {0};
        char name[32];
        craft_head(&b, 3, 0, (uint64_t)n);
        for (int i = 0; i < n; i++) {
            snprintf(name, sizeof name, "a.key.%d", i);
            craft_kv(&b, name, SL_GGUF_U8, 1, 1);
        }
        const char *path = folder_path(&dir, "k.gguf");
        assert_int_equal(sl_write_file(path, b.b.data, b.b.n_bytes, NULL), 0);
        starve(path);
        craft_deinit(&b);
    }
}

static bool folder_header(const char *name, const struct sl_buf *header, size_t n_data)
{
    struct sl_buf b = {0};
    uint64_t n = header->n_bytes;
    sl_buf_put(&b, &n, 8);
    sl_buf_put(&b, header->data, header->n_bytes);
    for (size_t i = 0; i < n_data; i++)
        sl_buf_putc(&b, 0);
    bool ok = sl_write_file(folder_path(&dir, name), b.data, b.n_bytes, NULL) == 0;
    sl_buf_deinit(&b);
    return ok;
}

static void limits_over_all_shards(void **state)
{
    (void)state;
    struct sl_buf h = {0};
    const int half = SL_MAX_TENSORS / 2 + 1;
    assert_true(folder_text(&dir, "config.json", CONFIG));
    for (char shard = 'a'; shard <= 'b'; shard++) {
        sl_buf_clear(&h);
        for (int i = 0; i < half; i++)
            sl_buf_printf(&h, "%c\"%c%d\":{\"dtype\":\"U8\",\"shape\":[0],\"data_offsets\":[0,0]}",
                          i > 0 ? ',' : '{', shard, i);
        sl_buf_putc(&h, '}');
        char name[16] = "x.safetensors";
        name[0] = shard;
        assert_true(folder_header(name, &h, 0));
    }
    assert_true(folder_text(&dir, INDEX, "{\"weight_map\":{\"a0\":\"a.safetensors\"}}"));
    expect(dir.path, 0, "");
    assert_true(folder_text(&dir, INDEX,
                            "{\"weight_map\":{\"a0\":\"a.safetensors\","
                            "\"b0\":\"b.safetensors\"}}"));
    expect(dir.path, SL_ELIMIT, "tensors");
    for (int extra = 0; extra < 2; extra++) {
        sl_buf_clear(&h);
        for (int i = 0; i < SL_MAX_GGUF_KV + extra; i++)
            sl_buf_printf(&h, "%s\"%d\":\"\"", i > 0 ? "," : "{\"__metadata__\":{", i);
        sl_buf_puts(&h, "}}");
        assert_true(folder_header("model.safetensors", &h, 0));
        expect(dir.path, extra ? SL_ELIMIT : 0, "__metadata__");
    }
    sl_buf_deinit(&h);
}

static void a_folder_of_very_many_files(void **state)
{
    (void)state;
    struct sl_files *f;
    struct sl_error err = {0};
    const uint8_t *data;
    size_t n;
    char name[32];
    assert_int_equal(sl_files_open(dir.path, &f, &err), 0);
    for (int i = 0; i <= SL_MAX_FILES; i++) {
        snprintf(name, sizeof name, "%d", i);
        assert_true(folder_text(&dir, name, ""));
        int rc = sl_files_get(f, name, &data, &n, &err);
        assert_int_equal(rc, i < SL_MAX_FILES ? 1 : SL_ELIMIT);
    }
    assert_int_equal(sl_files_get(f, "0", &data, &n, &err), 1); /* what is open stays open */
    sl_files_close(f);
}

static void *ask_for_files(void *arg)
{
    struct sl_error err;
    struct sl_ckpt *c = arg;
    for (int i = 0; i < 200; i++) {
        char name[32];
        const char *text;
        size_t n;
        snprintf(name, sizeof name, "file-%d", i % 20);
        bool found = sl_ckpt_file(c, name, &text, &n, &err) == 1;
        if (found != (i % 20 < 10) || (found && (n != 4 || memcmp(text, "text", 4) != 0)))
            return c; /* wrong */
    }
    return NULL;
}

static void any_thread_may_ask_for_files(void **state)
{
    (void)state;
    struct sl_ckpt *c;
    pthread_t threads[4];
    assert_true(folder_text(&dir, "config.json", CONFIG));
    assert_true(folder_shard(&dir, "model.safetensors", "a"));
    for (int i = 0; i < 10; i++) {
        char name[32];
        snprintf(name, sizeof name, "file-%d", i);
        assert_true(folder_text(&dir, name, "text"));
    }
    assert_int_equal(sl_ckpt_open(dir.path, &c, NULL), 0);
    for (size_t i = 0; i < SL_COUNT(threads); i++)
        assert_int_equal(sl_thread_create(&threads[i], ask_for_files, c, "reader", NULL), 0);
    for (size_t i = 0; i < SL_COUNT(threads); i++) {
        void *wrong;
        pthread_join(threads[i], &wrong);
        assert_null(wrong);
    }
    sl_ckpt_close(c);
}

static const char *testdata(void)
{
    const char *s = getenv("SLUICE_TESTDATA");
    return s != NULL ? s : "../shared/testdata";
}

static bool present(const char *path)
{
    return access(path, R_OK) == 0;
}

static void real_llama_gguf(void **state)
{
    (void)state;
    char path[512];
    snprintf(path, sizeof path, "%s/gguf/llama-2-tiny-random-f16.gguf", testdata());
    if (!present(path)) {
        print_message("skip: %s is not there\n", path);
        return;
    }
    struct sl_ckpt *c;
    uint64_t v;
    assert_int_equal(sl_ckpt_open(path, &c, NULL), 0);
    assert_int_equal(sl_ckpt_n_tensors(c), 12);
    const struct sl_ckpt_tensor *t = sl_ckpt_find(c, "token_embd.weight");
    assert_true(t != NULL && t->dtype == SL_DTYPE_F16 && t->dims[0] == 32000 && t->dims[1] == 8);
    assert_int_equal(t->n_bytes, 512000);
    const struct sl_gguf *g = sl_ckpt_gguf(c);
    assert_int_equal(sl_gguf_u64(g, "llama.block_count", &v, NULL), 1);
    assert_int_equal(v, 1);
    struct sl_gguf_array a;
    assert_int_equal(sl_gguf_array(g, "tokenizer.ggml.tokens", SL_GGUF_STRING, &a, NULL), 1);
    assert_int_equal(a.n, 32000);
    uint64_t pos = 0, n = 0;
    const char *s;
    for (size_t len; sl_gguf_array_next_str(&a, &pos, &s, &len); n++)
        assert_true(len < 100);
    assert_true(n == a.n && pos == a.n_bytes);
    sl_ckpt_close(c);
}

static void real_vocabularies(void **state)
{
    (void)state;
    const char *folder = "build/testdata/tokenizers/gguf-vocab";
    DIR *d = opendir(folder);
    if (d == NULL) {
        print_message("skip: %s is not there\n", folder);
        return;
    }
    int n_files = 0;
    for (struct dirent *e = readdir(d); e != NULL; e = readdir(d)) {
        char path[512];
        size_t len = strlen(e->d_name);
        if (len < 5 || strcmp(e->d_name + len - 5, ".gguf") != 0)
            continue;
        snprintf(path, sizeof path, "%s/%s", folder, e->d_name);
        struct sl_error err = {0};
        struct sl_ckpt *c;
        if (sl_ckpt_open(path, &c, &err) != 0)
            fail_msg("%s", err.msg);
        assert_int_equal(sl_ckpt_n_tensors(c), 0);
        struct sl_gguf_array a;
        assert_int_equal(
            sl_gguf_array(sl_ckpt_gguf(c), "tokenizer.ggml.tokens", SL_GGUF_STRING, &a, &err), 1);
        assert_true(a.n > 1000);
        sl_ckpt_close(c);
        n_files++;
    }
    closedir(d);
    assert_true(n_files >= 8);
}

static void real_lora_safetensors(void **state)
{
    (void)state;
    char path[512];
    snprintf(path, sizeof path, "%s/gguf/lora-adapter-llama3-8b-qv-r8.safetensors", testdata());
    if (!present(path)) {
        print_message("skip: %s is not there\n", path);
        return;
    }
    struct sl_map map;
    struct sl_st *st;
    struct sl_error err = {0};
    assert_int_equal(sl_map_open(&map, path, &err), 0);
    if (sl_st_open(map.data, map.n_bytes, path, &st, &err) != 0)
        fail_msg("%s", err.msg);
    assert_true(sl_st_n_tensors(st) > 0);
    uint64_t n_bytes = 0;
    for (size_t i = 0; i < sl_st_n_tensors(st); i++)
        n_bytes += sl_st_tensor_at(st, i)->n_bytes;
    assert_true(n_bytes < map.n_bytes && n_bytes > map.n_bytes / 2);
    sl_st_close(st);
    sl_map_close(&map);
}

/* The table of this build may be empty; then opening says so. */
static void bundled_model(void **state)
{
    (void)state;
    struct sl_files *f = NULL;
    struct sl_error err = {0};
    const uint8_t *data;
    size_t n;
    int rc = sl_files_open(NULL, &f, &err);
    assert_int_equal(rc, sl_bundle_table[0].name != NULL ? 0 : SL_ENOTFOUND);
    if (rc != 0) {
        assert_non_null(strstr(err.msg, "bundled"));
        print_message("skip: this build carries no bundled model\n");
        return;
    }
    assert_string_equal(sl_files_path(f), "(bundled)");
    assert_int_equal(sl_files_get(f, "config.json", &data, &n, &err), 1);
    assert_true(n > 2 && data[0] == '{' && (uintptr_t)data % 64 == 0);
    assert_int_equal(sl_files_get(f, "absent", &data, &n, &err), 0);
    assert_int_equal(sl_files_get(f, "../config.json", &data, &n, &err), SL_EINVAL);
    if (sl_files_get(f, "model.safetensors", &data, &n, &err) == 1) {
        struct sl_ckpt *c;
        assert_int_equal(sl_ckpt_open(NULL, &c, &err), 0);
        assert_string_equal(sl_ckpt_path(c), "(bundled)");
        assert_true(sl_ckpt_n_tensors(c) > 0);
        sl_ckpt_close(c);
    } else {
        expect(NULL, SL_ENOTFOUND, "model.safetensors");
    }
    sl_files_close(f);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_teardown(single_file_folder, clear_dir),
        cmocka_unit_test_teardown(only_plain_names_are_looked_up, clear_dir),
        cmocka_unit_test_teardown(folders_that_lack_something, clear_dir),
        cmocka_unit_test_teardown(bad_config, clear_dir),
        cmocka_unit_test_teardown(sharded_folder, clear_dir),
        cmocka_unit_test_teardown(bad_index, clear_dir),
        cmocka_unit_test_teardown(unsupported_tensors, clear_dir),
        cmocka_unit_test_teardown(gguf_file, clear_dir),
        cmocka_unit_test_teardown(split_gguf, clear_dir),
        cmocka_unit_test_teardown(names_of_split_files, clear_dir),
        cmocka_unit_test_teardown(every_failing_call_is_survived, clear_dir),
        cmocka_unit_test_teardown(unsupported_gguf_types, clear_dir),
        cmocka_unit_test_teardown(memory_runs_out_at_any_size, clear_dir),
        cmocka_unit_test_teardown(memory_runs_out_in_every_table, clear_dir),
        cmocka_unit_test_teardown(memory_runs_out_in_every_header, clear_dir),
        cmocka_unit_test_teardown(memory_runs_out_behind_long_names, clear_dir),
        cmocka_unit_test_teardown(limits_over_all_shards, clear_dir),
        cmocka_unit_test_teardown(a_folder_of_very_many_files, clear_dir),
        cmocka_unit_test_teardown(any_thread_may_ask_for_files, clear_dir),
        cmocka_unit_test(real_llama_gguf),
        cmocka_unit_test(real_vocabularies),
        cmocka_unit_test(real_lora_safetensors),
        cmocka_unit_test(bundled_model),
    };
    return cmocka_run_group_tests(tests, make_dir, remove_dir);
}
