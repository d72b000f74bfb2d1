/* SPDX-License-Identifier: MIT
 * Tests of base: strict numbers, UTF-8, typo hints, arena, buffer, queue, checked ranges, files.
 */
#include "base/arena.h"
#include "base/buf.h"
#include "base/check.h"
#include "base/queue.h"
#include "base/rng.h"
#include "base/str.h"
#include "base/sys.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

static void numbers_are_strict(void **state)
{
    (void)state;
    static const char *const bad_u64[] = {
        "", "-1", "+1", " 1", "1 ", "0x5", "5_0", "1.0", "18446744073709551616", "a"};
    uint64_t u;
    int64_t i;
    double d;
    for (size_t k = 0; k < SL_COUNT(bad_u64); k++)
        assert_false(sl_parse_u64(bad_u64[k], strlen(bad_u64[k]), &u));
    assert_true(sl_parse_u64("18446744073709551615", 20, &u) && u == UINT64_MAX);
    assert_true(sl_parse_i64("-9223372036854775808", 20, &i) && i == INT64_MIN);
    assert_false(sl_parse_i64("9223372036854775808", 19, &i));
    assert_false(sl_parse_i64("-9223372036854775809", 20, &i));
    static const char *const bad_double[] = {"",  ".5", "5.", "1e",    "1e+",   "nan", "inf",
                                             "-", "01", "+1", "1e400", "0x1p3", "1 ",  "--1"};
    for (size_t k = 0; k < SL_COUNT(bad_double); k++)
        assert_false(sl_parse_double(bad_double[k], strlen(bad_double[k]), &d));
    assert_true(sl_parse_double("-0.25e-1", 8, &d) && d == -0.025);
    assert_true(sl_parse_human_u64("25.6k", 5, &u) && u == 25600);
    assert_true(sl_parse_human_u64("2G", 2, &u) && u == 2147483648u);
    assert_false(sl_parse_human_u64("1e300G", 6, &u));
    assert_false(sl_parse_human_u64("k", 1, &u));
    assert_true(sl_parse_hex_u64("FfFfFfFfFfFfFfFf", 16, &u) && u == UINT64_MAX);
    assert_false(sl_parse_hex_u64("-1", 2, &u));
    assert_false(sl_parse_hex_u64("10000000000000000", 17, &u));
}

/* Every code point survives encoding and decoding; every two-byte string is judged as RFC 3629
 * does. */
static void utf8_round_trip(void **state)
{
    (void)state;
    char s[4];
    for (uint32_t cp = 0; cp <= 0x110000; cp++) {
        uint32_t back = 0;
        size_t n = sl_utf8_encode(cp, s);
        bool valid = cp <= 0x10FFFF && !(cp >= 0xD800 && cp <= 0xDFFF);
        assert_int_equal(n > 0, valid);
        if (valid) {
            assert_int_equal(sl_utf8_decode(s, n, &back), n);
            assert_int_equal(back, cp);
            for (size_t k = 1; k < n; k++) /* a cut character is a tail that can be completed */
                assert_int_equal(sl_utf8_incomplete_tail(s, k), k);
            assert_int_equal(sl_utf8_incomplete_tail(s, n), 0);
        }
    }
    static const char *const invalid[] = {
        "\xC0\x80",         "\xE0\x80\x80", "\xED\xA0\x80", "\xF4\x90\x80\x80",
        "\xF8\x88\x80\x80", "\x80",         "\xFF",         "\xC3("};
    for (size_t k = 0; k < SL_COUNT(invalid); k++)
        assert_int_equal(sl_utf8_valid_len(invalid[k], strlen(invalid[k])), 0);
    assert_int_equal(sl_utf8_incomplete_tail("ab\xED\xA0", 4), 0); /* a surrogate never completes */
    assert_int_equal(sl_utf8_incomplete_tail("ab\xE2\x82", 4), 2);
}

static void typos_find_their_flag(void **state)
{
    (void)state;
    static const char *const flags[] = {"max-model-len", "max-num-seqs", "port", "host"};
    assert_string_equal(sl_nearest("max-modle-len", flags, 4), "max-model-len");
    assert_string_equal(sl_nearest("prot", flags, 4), "port"); /* neighbours exchanged */
    assert_string_equal(sl_nearest("pors", flags, 4), "port");
    assert_null(sl_nearest("completely-different", flags, 4));
    assert_null(sl_nearest("", flags, 4));
}

static void json_escapes(void **state)
{
    (void)state;
    static const struct {
        const char *in;
        size_t n;
        const char *out;
    } cases[] = {
        {"plain", 5, "\"plain\""},
        {"a\"b\\c\n\t\r", 8, "\"a\\\"b\\\\c\\n\\t\\r\""},
        {"\x01\x1f", 2, "\"\\u0001\\u001f\""},
        {"a\0b", 3, "\"a\\u0000b\""},
        {"\xC3\xA9\xFF", 3, "\"\xC3\xA9\xEF\xBF\xBD\""},
        {"\xE2\x82", 2, "\"\xEF\xBF\xBD\xEF\xBF\xBD\""},
        {"", 0, "\"\""},
        {NULL, 0, "\"\""},
    };
    for (size_t i = 0; i < SL_COUNT(cases); i++) {
        struct sl_buf b = {0};
        sl_buf_json_string(&b, cases[i].in, cases[i].n);
        assert_string_equal(b.data, cases[i].out);
        sl_buf_deinit(&b);
    }
    struct sl_rng rng = {.seed = 7};
    for (int i = 0; i < 20000; i++) { /* what is printed reads back as the same double */
        uint64_t bits = sl_rng_next(&rng);
        double x, y;
        memcpy(&x, &bits, sizeof x);
        struct sl_buf b = {0};
        sl_buf_json_double(&b, x);
        if (strcmp(b.data, "null") != 0) {
            assert_true(sl_parse_double(b.data, b.n_bytes, &y));
            assert_true(x == y);
        }
        sl_buf_deinit(&b);
    }
}

static void *failing_realloc(void *p, size_t n)
{
    (void)p;
    (void)n;
    return NULL;
}

static void buffer_remembers_failure(void **state)
{
    (void)state;
    struct sl_sys broken = *sl_sys;
    struct sl_buf b = {0};
    sl_buf_puts(&b, "kept");
    broken.realloc = failing_realloc;
    const struct sl_sys *saved = sl_sys;
    sl_sys = &broken;
    for (int i = 0; i < 100; i++)
        sl_buf_puts(&b, "this does not fit any more");
    sl_sys = saved;
    assert_false(sl_buf_ok(&b));
    assert_null(sl_buf_steal(&b, NULL));
    struct sl_buf bounded = {.max_bytes = 10};
    sl_buf_puts(&bounded, "0123456789");
    assert_true(sl_buf_ok(&bounded));
    sl_buf_putc(&bounded, 'x');
    assert_false(sl_buf_ok(&bounded));
    sl_buf_deinit(&bounded);
}

static void arena_is_bounded_and_zeroed(void **state)
{
    (void)state;
    struct sl_arena a = {.max_bytes = 100000};
    struct sl_rng rng = {.seed = 3};
    size_t total = 0;
    for (;;) {
        size_t n = (size_t)sl_rng_below(&rng, 3000);
        uint8_t *p = sl_arena_alloc(&a, n);
        if (p == NULL)
            break;
        assert_int_equal((uintptr_t)p % 16, 0);
        for (size_t i = 0; i < n; i++)
            assert_int_equal(p[i], 0);
        memset(p, 0xAB, n);
        total += n;
    }
    assert_true(total > 90000 && total <= 100000);
    assert_null(sl_arena_array(&a, SIZE_MAX / 2, 3));
    assert_null(sl_arena_strndup(&a, "", SIZE_MAX));
    sl_arena_deinit(&a);
}

struct traffic {
    struct sl_queue queue;
    int per_writer;
};

static void *writer(void *arg)
{
    struct traffic *t = arg;
    for (int i = 0; i < t->per_writer; i++) {
        while (!sl_queue_try_push(&t->queue, &t->per_writer))
            sched_yield();
    }
    return NULL;
}

static void queue_loses_nothing(void **state)
{
    (void)state;
    struct traffic t = {.per_writer = 20000};
    pthread_t threads[3];
    struct sl_error err;
    int got = 0;
    assert_int_equal(sl_queue_init(&t.queue, 64, &err), 0);
    for (size_t i = 0; i < SL_COUNT(threads); i++)
        assert_int_equal(sl_thread_create(&threads[i], writer, &t, "writer", &err), 0);
    while (got < 3 * t.per_writer) {
        sl_queue_wait(&t.queue, 1000);
        while (sl_queue_pop(&t.queue) != NULL)
            got++;
    }
    for (size_t i = 0; i < SL_COUNT(threads); i++)
        pthread_join(threads[i], NULL);
    assert_null(sl_queue_pop(&t.queue));
    sl_queue_wake(&t.queue); /* returns at once, and only once */
    uint64_t before = sl_now_ns();
    sl_queue_wait(&t.queue, 5000);
    assert_true(sl_now_ns() - before < 1000000000u);
    sl_queue_wait(&t.queue, 20);
    assert_true(sl_now_ns() - before >= 15000000u);
    sl_queue_deinit(&t.queue);
}

static void files_name_what_is_wrong(void **state)
{
    (void)state;
    struct sl_error err;
    struct sl_map map;
    char *text;
    size_t n;
    assert_int_equal(sl_map_open(&map, "/nonexistent/file", &err), SL_ENOTFOUND);
    assert_non_null(strstr(err.msg, "/nonexistent/file"));
    assert_int_equal(sl_map_open(&map, "/", &err), SL_EIO);
    assert_int_equal(sl_read_file("Makefile", 10, &text, &n, &err), SL_ETOOBIG);
    assert_int_equal(sl_read_file("Makefile", 1 << 20, &text, &n, &err), 0);
    assert_int_equal(sl_map_open(&map, "Makefile", &err), 0);
    assert_int_equal(map.n_bytes, n);
    assert_memory_equal(map.data, text, n);
    sl_map_close(&map);
    sl_free(text);
    assert_int_equal(sl_error_prefix(&err, SL_EIO, "%s", "outer"), SL_EIO);
    assert_true(sl_starts_with(err.msg, "outer: "));
}

static void ranges_do_not_wrap(void **state)
{
    (void)state;
    uint64_t x;
    assert_true(sl_range_ok(10, 0, 10));
    assert_false(sl_range_ok(11, 0, 10));
    assert_false(sl_range_ok(1, UINT64_MAX, 10));
    assert_false(sl_range_ok(UINT64_MAX, 2, 10));
    assert_false(sl_align_u64(UINT64_MAX, 32, &x));
    assert_true(sl_align_u64(33, 32, &x) && x == 64);
    assert_false(sl_is_pow2(0));
    assert_null(sl_calloc(SIZE_MAX, 2));
}

static const char *limit_text;

/* Gives the container's limit through a pipe; every other file is absent. */
static int open_limit(const char *path, int flags, int mode)
{
    int fds[2];
    (void)flags;
    (void)mode;
    if (strcmp(path, "/sys/fs/cgroup/memory.max") != 0 || pipe(fds) != 0)
        return -1;
    assert_int_equal(write(fds[1], limit_text, strlen(limit_text)), (ssize_t)strlen(limit_text));
    close(fds[1]);
    return fds[0];
}

static void a_container_has_less_memory(void **state)
{
    (void)state;
    struct sl_sys sys = sl_sys_real;
    const struct sl_sys *saved = sl_sys;
    sys.open = open_limit;
    sl_sys = &sys;
    limit_text = "max\n";
    uint64_t all = sl_ram_bytes();
    limit_text = "104857600\n";
    uint64_t some = sl_ram_bytes();
    limit_text = "9223372036854771712\n";
    uint64_t huge = sl_ram_bytes();
    sl_sys = saved;
    assert_true(all > 104857600u);
    assert_true(some == 104857600u);
    assert_true(huge == all);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(numbers_are_strict),       cmocka_unit_test(utf8_round_trip),
        cmocka_unit_test(typos_find_their_flag),    cmocka_unit_test(json_escapes),
        cmocka_unit_test(buffer_remembers_failure), cmocka_unit_test(arena_is_bounded_and_zeroed),
        cmocka_unit_test(queue_loses_nothing),      cmocka_unit_test(files_name_what_is_wrong),
        cmocka_unit_test(ranges_do_not_wrap),       cmocka_unit_test(a_container_has_less_memory),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
