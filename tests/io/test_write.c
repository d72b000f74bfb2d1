/* SPDX-License-Identifier: MIT
 * What the writers write, the readers read; misuse and failing writes are reported.
 */
#include "fault.h"
#include "folder.h"

#include "base/check.h"
#include "base/limits.h"
#include "base/rng.h"
#include "io/gguf.h"
#include "io/safetensors.h"

#include <setjmp.h>

#include <cmocka.h>

static struct folder dir;

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

static void gguf_every_kind_of_value(void **state)
{
    (void)state;
    struct sl_gguf_writer *w;
    struct sl_map map;
    struct sl_gguf *g;
    struct sl_error err = {0};
    const char *tokens[] = {"a", "", "b\0c"};
    const uint32_t n_tokens[] = {1, 0, 3};
    const char *path = folder_path(&dir, "kinds.gguf");
    assert_int_equal(sl_gguf_writer_create(path, &w, &err), 0);
    sl_gguf_writer_add_u16(w, "u16", 65535);
    sl_gguf_writer_add_u32(w, "u32", UINT32_MAX);
    sl_gguf_writer_add_i32(w, "i32", -5);
    sl_gguf_writer_add_u64(w, "u64", UINT64_MAX);
    sl_gguf_writer_add_f32(w, "f32", 0.1f);
    sl_gguf_writer_add_bool(w, "bool", true);
    sl_gguf_writer_add_str(w, "str", "text");
    sl_gguf_writer_add_arr_str(w, "strs", tokens, n_tokens, 3);
    sl_gguf_writer_add_arr_str(w, "cstrs", tokens, NULL, 2);
    sl_gguf_writer_add_arr_f32(w, "f32s", (float[]){1, -2}, 2);
    sl_gguf_writer_add_arr_i32(w, "i32s", (int32_t[]){-7, 8, 9}, 3);
    assert_int_equal(sl_gguf_writer_begin_data(w, &err), 0);
    assert_int_equal(sl_gguf_writer_finish(w, &err), 0);
    assert_int_equal(sl_map_open(&map, path, &err), 0);
    if (sl_gguf_open(map.data, map.n_bytes, path, &g, &err) != 0)
        fail_msg("%s", err.msg);
    uint64_t u;
    int64_t i;
    double d;
    bool b;
    const char *s;
    size_t n;
    struct sl_gguf_array a;
    assert_int_equal(sl_gguf_n_kv(g), 11);
    assert_string_equal(sl_gguf_key_at(g, 0, NULL), "u16");
    assert_true(sl_gguf_u64(g, "u16", &u, &err) == 1 && u == 65535);
    assert_true(sl_gguf_u64(g, "u32", &u, &err) == 1 && u == UINT32_MAX);
    assert_true(sl_gguf_i64(g, "i32", &i, &err) == 1 && i == -5);
    assert_true(sl_gguf_u64(g, "u64", &u, &err) == 1 && u == UINT64_MAX);
    assert_true(sl_gguf_f64(g, "f32", &d, &err) == 1 && (float)d == 0.1f);
    assert_true(sl_gguf_bool(g, "bool", &b, &err) == 1 && b);
    assert_true(sl_gguf_str(g, "str", &s, &n, &err) == 1 && n == 4 && memcmp(s, "text", 4) == 0);
    assert_int_equal(sl_gguf_array(g, "strs", SL_GGUF_STRING, &a, &err), 1);
    uint64_t pos = 0;
    for (int k = 0; k < 3; k++) {
        assert_true(sl_gguf_array_next_str(&a, &pos, &s, &n));
        assert_true(n == n_tokens[k] && memcmp(s, tokens[k], n) == 0);
    }
    assert_false(sl_gguf_array_next_str(&a, &pos, &s, &n));
    assert_int_equal(sl_gguf_array(g, "i32s", SL_GGUF_ARRAY, &a, &err), 1);
    assert_true(sl_gguf_array_i64(&a, 0, &i) && i == -7);
    sl_gguf_close(g);
    sl_map_close(&map);
}

/* Random sets of tensors, written in pieces of random length. */
static void gguf_tensors_round_trip(void **state)
{
    (void)state;
    struct sl_rng rng = {.seed = 3};
    for (int round = 0; round < 30; round++) {
        struct sl_gguf_writer *w;
        struct sl_error err = {0};
        const char *path = folder_path(&dir, "tensors.gguf");
        enum sl_dtype dtype[8];
        uint64_t n_bytes[8];
        int n = (int)sl_rng_below(&rng, 8);
        assert_int_equal(sl_gguf_writer_create(path, &w, &err), 0);
        for (int k = 0; k < n; k++) {
            char name[16];
            do
                dtype[k] = (enum sl_dtype)sl_rng_below(&rng, SL_DTYPE_COUNT);
            while (sl_dtype_info(dtype[k])->gguf_id < 0);
            int64_t be = sl_dtype_info(dtype[k])->block_elems;
            int64_t dims[3] = {(int64_t)sl_rng_below(&rng, 3) + 1,
                               (int64_t)sl_rng_below(&rng, 5) + 1,
                               be * ((int64_t)sl_rng_below(&rng, 3) + 1)};
            snprintf(name, sizeof name, "t%d", k);
            sl_gguf_writer_add_tensor(w, name, dtype[k], 3, dims);
            assert_true(
                sl_dtype_bytes(dtype[k], (uint64_t)(dims[0] * dims[1] * dims[2]), &n_bytes[k]));
        }
        assert_int_equal(sl_gguf_writer_begin_data(w, &err), 0);
        for (int k = 0; k < n; k++) {
            for (uint64_t done = 0; done < n_bytes[k];) {
                uint8_t piece[1000];
                uint64_t len = sl_rng_below(&rng, SL_MIN(n_bytes[k] - done, 1000u)) + 1;
                memset(piece, k + 1, sizeof piece);
                assert_int_equal(sl_gguf_writer_write_tensor_data(w, piece, len, &err), 0);
                done += len;
            }
        }
        assert_int_equal(sl_gguf_writer_write_tensor_data(w, "x", 1, &err), SL_EINVAL);
        assert_int_equal(sl_gguf_writer_finish(w, &err), 0);
        struct sl_map map;
        struct sl_gguf *g;
        assert_int_equal(sl_map_open(&map, path, &err), 0);
        if (sl_gguf_open(map.data, map.n_bytes, path, &g, &err) != 0)
            fail_msg("%s", err.msg);
        assert_int_equal(sl_gguf_n_tensors(g), n);
        for (int k = 0; k < n; k++) {
            const struct sl_gguf_tensor *t = sl_gguf_tensor_at(g, (size_t)k);
            assert_int_equal(sl_dtype_from_gguf(t->gguf_type), dtype[k]);
            assert_true(t->n_bytes == n_bytes[k] && t->offset % 32 == 0);
            for (uint64_t at = 0; at < t->n_bytes; at++)
                assert_int_equal(map.data[t->offset + at], k + 1);
        }
        sl_gguf_close(g);
        sl_map_close(&map);
    }
}

static void gguf_misuse(void **state)
{
    (void)state;
    static const struct {
        enum sl_dtype dtype;
        int32_t n_dims;
        int64_t dims[5];
        const char *named;
    } bad[] = {
        {SL_DTYPE_F32, 0, {0}, "bad.w"},
        {SL_DTYPE_F32, 5, {1, 1, 1, 1, 1}, "bad.w"},
        {SL_DTYPE_F32, 2, {1, 0}, "bad.w"},
        {SL_DTYPE_F32, 1, {-4}, "bad.w"},
        {SL_DTYPE_Q8_0, 2, {32, 16}, "bad.w"},
        {SL_DTYPE_Q6_K, 1, {255}, "bad.w"},
        {SL_DTYPE_F32, 3, {INT64_MAX, INT64_MAX, 2}, "bad.w"},
        {SL_DTYPE_F32, 1, {INT64_MAX}, "bad.w"},
        {SL_DTYPE_FP8_E4M3, 1, {1}, "bad.w"},
        {SL_DTYPE_COUNT, 1, {1}, "bad.w"},
    };
    for (size_t i = 0; i < SL_COUNT(bad); i++) {
        struct sl_gguf_writer *w;
        struct sl_error err = {0};
        assert_int_equal(sl_gguf_writer_create(folder_path(&dir, "bad.gguf"), &w, &err), 0);
        sl_gguf_writer_add_tensor(w, "bad.w", bad[i].dtype, bad[i].n_dims, bad[i].dims);
        assert_true(sl_gguf_writer_begin_data(w, &err) < 0);
        assert_non_null(strstr(err.msg, bad[i].named));
        err.msg[0] = '\0';
        assert_true(sl_gguf_writer_finish(w, &err) < 0);
        assert_non_null(strstr(err.msg, bad[i].named));
    }
    struct sl_gguf_writer *w;
    struct sl_error err = {0};
    assert_int_equal(sl_gguf_writer_create(folder_path(&dir, "bad.gguf"), &w, &err), 0);
    sl_gguf_writer_add_tensor(w, "a", SL_DTYPE_F32, 1, (int64_t[]){2});
    assert_int_equal(sl_gguf_writer_write_tensor_data(w, "x", 1, &err), SL_EINVAL);
    assert_int_equal(sl_gguf_writer_begin_data(w, &err), 0);
    assert_int_equal(sl_gguf_writer_begin_data(w, &err), SL_EINVAL);
    assert_int_equal(sl_gguf_writer_write_tensor_data(w, "123456789", 9, &err), SL_EINVAL);
    assert_int_equal(sl_gguf_writer_write_tensor_data(w, "1234", 4, &err), 0);
    assert_int_equal(sl_gguf_writer_finish(w, &err), SL_EINVAL); /* half a tensor */
    assert_non_null(strstr(err.msg, "no data"));
    assert_int_equal(sl_gguf_writer_create(folder_path(&dir, "bad.gguf"), &w, &err), 0);
    assert_int_equal(sl_gguf_writer_begin_data(w, &err), 0);
    sl_gguf_writer_add_u32(w, "late.key", 1);
    assert_int_equal(sl_gguf_writer_finish(w, &err), SL_EINVAL);
    assert_non_null(strstr(err.msg, "late.key"));
    assert_int_equal(sl_gguf_writer_create("absent-folder/x.gguf", &w, &err), SL_EIO);
    assert_int_equal(sl_gguf_writer_create(folder_path(&dir, "bad.gguf"), &w, &err), 0);
    sl_gguf_writer_destroy(w);
    sl_gguf_writer_destroy(NULL);
}

static void safetensors_round_trip(void **state)
{
    (void)state;
    struct sl_st_writer *w;
    struct sl_st *st;
    struct sl_map map;
    struct sl_error err = {0};
    const char *path = folder_path(&dir, "w.safetensors");
    assert_int_equal(sl_st_writer_create(path, &w, &err), 0);
    sl_st_writer_add_metadata(w, "format", "pt");
    sl_st_writer_add_metadata(w, "quote\"", "line\n\xC3\xA9");
    sl_st_writer_add_tensor(w, "none", SL_DTYPE_F32, 2, (int64_t[]){0, 3});
    sl_st_writer_add_tensor(w, "scalar", SL_DTYPE_BF16, 0, NULL);
    sl_st_writer_add_tensor(w, "empty", SL_DTYPE_F32, 1, (int64_t[]){0});
    sl_st_writer_add_tensor(w, "matrix", SL_DTYPE_F16, 2, (int64_t[]){2, 3});
    assert_int_equal(sl_st_writer_begin_data(w, &err), 0);
    assert_int_equal(sl_st_writer_write_tensor_data(w, "ab", 2, &err), 0);
    assert_int_equal(sl_st_writer_write_tensor_data(w, "0123456789ABC", 13, &err), SL_EINVAL);
    assert_int_equal(sl_st_writer_write_tensor_data(w, "01234", 5, &err), 0);
    assert_int_equal(sl_st_writer_write_tensor_data(w, "", 0, &err), 0);
    assert_int_equal(sl_st_writer_write_tensor_data(w, "56789AB", 7, &err), 0);
    assert_int_equal(sl_st_writer_write_tensor_data(w, "x", 1, &err), SL_EINVAL);
    assert_int_equal(sl_st_writer_finish(w, &err), 0);
    assert_int_equal(sl_map_open(&map, path, &err), 0);
    if (sl_st_open(map.data, map.n_bytes, path, &st, &err) != 0)
        fail_msg("%s", err.msg);
    assert_int_equal(sl_st_n_tensors(st), 4);
    const struct sl_st_tensor *t = sl_st_find(st, "matrix");
    assert_true(t->n_dims == 2 && t->dims[0] == 2 && t->dims[1] == 3 && t->n_bytes == 12);
    assert_memory_equal(map.data + t->offset, "0123456789AB", 12);
    t = sl_st_find(st, "scalar");
    assert_true(t->n_dims == 0 && t->offset % 8 == 0);
    assert_string_equal(sl_st_metadata(st, "quote\""), "line\n\xC3\xA9");
    sl_st_close(st);
    sl_map_close(&map);
    /* nothing at all is a valid file, too */
    assert_int_equal(sl_st_writer_create(path, &w, &err), 0);
    assert_int_equal(sl_st_writer_begin_data(w, &err), 0);
    assert_int_equal(sl_st_writer_finish(w, &err), 0);
    assert_int_equal(sl_map_open(&map, path, &err), 0);
    assert_int_equal(sl_st_open(map.data, map.n_bytes, path, &st, &err), 0);
    sl_st_close(st);
    sl_map_close(&map);
}

static void safetensors_misuse(void **state)
{
    (void)state;
    struct sl_st_writer *w;
    struct sl_error err = {0};
    const char *path = folder_path(&dir, "bad.safetensors");
    assert_int_equal(sl_st_writer_create(path, &w, &err), 0);
    sl_st_writer_add_tensor(w, "quantised", SL_DTYPE_Q8_0, 1, (int64_t[]){32});
    assert_int_equal(sl_st_writer_begin_data(w, &err), SL_EUNSUPPORTED);
    assert_non_null(strstr(err.msg, "quantised"));
    assert_int_equal(sl_st_writer_finish(w, &err), SL_EUNSUPPORTED);
    assert_int_equal(sl_st_writer_create(path, &w, &err), 0);
    sl_st_writer_add_tensor(w, "huge", SL_DTYPE_F32, 2, (int64_t[]){INT64_MAX, 3});
    assert_true(sl_st_writer_finish(w, &err) < 0);
    assert_int_equal(sl_st_writer_create(path, &w, &err), 0);
    sl_st_writer_add_tensor(w, "a", SL_DTYPE_F32, 1, (int64_t[]){1});
    assert_int_equal(sl_st_writer_begin_data(w, &err), 0);
    assert_int_equal(sl_st_writer_finish(w, &err), SL_EINVAL);
    assert_int_equal(sl_st_writer_create(path, &w, &err), 0);
    sl_st_writer_add_tensor(w, "five", SL_DTYPE_F32, 5, (int64_t[]){1, 1, 1, 1, 1});
    sl_st_writer_add_tensor(w, "fine", SL_DTYPE_F32, 1, (int64_t[]){1}); /* the first one counts */
    assert_int_equal(sl_st_writer_write_tensor_data(w, "abcd", 4, &err), SL_EINVAL);
    assert_non_null(strstr(err.msg, "five"));
    sl_st_writer_destroy(w);
    assert_int_equal(sl_st_writer_create(path, &w, &err), 0);
    assert_int_equal(sl_st_writer_begin_data(w, &err), 0);
    assert_int_equal(sl_st_writer_begin_data(w, &err), SL_EINVAL);
    sl_st_writer_add_tensor(w, "late", SL_DTYPE_F32, 1, (int64_t[]){1});
    assert_int_equal(sl_st_writer_finish(w, &err), SL_EINVAL);
    assert_non_null(strstr(err.msg, "late"));
    assert_int_equal(sl_st_writer_create("absent-folder/x", &w, &err), SL_EIO);
    sl_st_writer_destroy(NULL);
}

/* Writes one file of each kind; true when both succeeded. */
static bool write_both(void)
{
    static const float x[2] = {1, 2};
    struct sl_gguf_writer *g;
    struct sl_st_writer *s;
    bool ok = true;
    if (sl_gguf_writer_create(folder_path(&dir, "f.gguf"), &g, NULL) == 0) {
        sl_gguf_writer_add_str(g, "k", "v");
        sl_gguf_writer_add_tensor(g, "t", SL_DTYPE_F32, 1, (int64_t[]){2});
        ok = sl_gguf_writer_begin_data(g, NULL) == 0 &&
             sl_gguf_writer_write_tensor_data(g, x, sizeof x, NULL) == 0;
        ok = sl_gguf_writer_finish(g, NULL) == 0 && ok;
    } else {
        ok = false;
    }
    if (sl_st_writer_create(folder_path(&dir, "f.safetensors"), &s, NULL) != 0)
        return false;
    sl_st_writer_add_metadata(s, "k", "v");
    sl_st_writer_add_tensor(s, "t", SL_DTYPE_F32, 1, (int64_t[]){2});
    bool st_ok = sl_st_writer_begin_data(s, NULL) == 0 &&
                 sl_st_writer_write_tensor_data(s, x, sizeof x, NULL) == 0;
    return sl_st_writer_finish(s, NULL) == 0 && st_ok && ok;
}

static void every_failing_call_is_reported(void **state)
{
    (void)state;
    static const int kinds[] = {FAULT_ALLOC, FAULT_OPEN, FAULT_WRITE, FAULT_CLOSE};
    for (size_t i = 0; i < SL_COUNT(kinds); i++) {
        for (uint64_t k = 0;; k++) {
            fault_arm(kinds[i], k);
            bool ok = write_both(), struck = fault.struck;
            bool clean = fault_clean();
            sl_sys = &sl_sys_real;
            assert_true(clean);
            assert_int_equal(ok, !struck);
            if (!struck) {
                assert_true(k >= 2);
                break;
            }
        }
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(gguf_every_kind_of_value),
        cmocka_unit_test(gguf_tensors_round_trip),
        cmocka_unit_test(gguf_misuse),
        cmocka_unit_test(safetensors_round_trip),
        cmocka_unit_test(safetensors_misuse),
        cmocka_unit_test(every_failing_call_is_reported),
    };
    return cmocka_run_group_tests(tests, make_dir, remove_dir);
}
