/* SPDX-License-Identifier: MIT
 * JSON under refused allocations: strings of every length, so that every byte, the closing quote
 * too, is once the one for which the lexer's text has to grow; and every allocation of each. A
 * build without the sanitizer sees what is lost or freed twice by counting.
 */
#include "base/json_load.h"

#include "base/sys.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

static int64_t blocks, n_seen, refuse_from, refuse_to;

static void *counting_alloc(size_t n)
{
    n_seen++;
    if (n_seen >= refuse_from && n_seen <= refuse_to)
        return NULL;
    blocks++;
    return sl_sys_real.alloc(n);
}

static void counting_free(void *p)
{
    blocks -= p != NULL;
    sl_sys_real.free(p);
}

static bool loads(const char *text, int64_t from, int64_t to)
{
    json_error_t why;
    n_seen = 0;
    refuse_from = from;
    refuse_to = to;
    json_t *root = sl_json_load(text, strlen(text), 0, &why);
    bool struck = n_seen >= from;
    if (root == NULL) {
        assert_true(sl_json_no_memory(&why));
        assert_true(struck);
    } else {
        assert_false(struck);
        json_decref(root);
    }
    assert_int_equal(blocks, 0);
    return root != NULL;
}

static void every_allocation_of_every_length(void **state)
{
    (void)state;
    struct sl_sys sys = sl_sys_real;
    sys.alloc = counting_alloc;
    sys.free = counting_free;
    sl_sys = &sys;
    char text[400];
    for (int len = 0; len < 300; len++) {
        char *at = text;
        at += sprintf(at, "{\"key\":[1.5,\"");
        for (int i = 0; i < len; i++)
            *at++ = i % 7 == 6 ? '\\' : i % 7 == 0 && i > 0 ? '\\' : 'x';
        at -= len % 7 == 0 && len > 0; /* not in the middle of an escape */
        strcpy(at, "\"]}");
        for (int64_t k = 1; !loads(text, k, k); k++) {
        }
        for (int64_t k = 1; !loads(text, k, INT64_MAX); k++) {
        }
    }
    sl_sys = &sl_sys_real;
}

/* What was parsed lives on without the parse, and may be freed in any order. */
static void trees_outlive_their_parse(void **state)
{
    (void)state;
    json_error_t why;
    json_t *a = sl_json_load("{\"a\":[1,{\"b\":\"text\"}]}", 22, 0, &why);
    json_t *b = sl_json_load("[[],{},\"x\"]", 11, 0, &why);
    assert_non_null(a);
    assert_non_null(b);
    json_t *inner = json_incref(json_array_get(json_object_get(a, "a"), 1));
    json_decref(a);
    assert_string_equal(json_string_value(json_object_get(inner, "b")), "text");
    json_object_set_new(inner, "c", json_integer(7)); /* memory outside a parse */
    json_decref(b);
    json_decref(inner);
    assert_null(sl_json_load("[1,", 3, 0, &why));
    assert_false(sl_json_no_memory(&why));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_allocation_of_every_length),
        cmocka_unit_test(trees_outlive_their_parse),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
