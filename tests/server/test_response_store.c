/* SPDX-License-Identifier: MIT
 * test_response_store.c - conversations of many turns: all messages in order, in time that grows as
 * the conversation does.
 */
#include "base/buf.h"
#include "base/check.h"
#include "server/jobs/response_store.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include <time.h>

#include <cmocka.h>

static struct sl_buf text_of(const char *s)
{
    struct sl_buf b = {0};
    sl_buf_puts(&b, s);
    return b;
}

/* The turn of one more response, which goes on from parent. */
static struct sl_response_turn *go_on(struct sl_response_store *s, int i,
                                      struct sl_response_turn *parent)
{
    char id[32], messages[64];
    struct sl_buf running = text_of("{}"), body = text_of("{}"), turn;
    snprintf(id, sizeof id, "resp_%d", i);
    snprintf(messages, sizeof messages, "[{\"role\":\"user\",\"content\":\"%d\"}]", i);
    turn = text_of(messages);
    struct sl_stored *e = sl_responses_begin(s, id, 0, NULL, &running);
    assert_non_null(e);
    sl_responses_finish(s, e, &body, &turn, parent);
    return sl_responses_turn(s, id, 0);
}

/* Processor time for the messages of n turns. */
static double read_turns(int n)
{
    struct sl_response_store *s;
    struct sl_error err;
    struct sl_response_turn *last = NULL;
    struct timespec from, to;
    json_t *out = json_array();
    assert_int_equal(sl_responses_create(64u << 20, &s, &err), 0);
    for (int i = 0; i < n; i++)
        last = go_on(s, i, last);
    assert_true(sl_response_turn_bytes(last) > (size_t)n * 30);
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &from);
    assert_int_equal(sl_response_turn_messages(last, out), 0);
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &to);
    assert_int_equal(json_array_size(out), n);
    for (int i = 0; i < n; i++) {
        char want[16];
        snprintf(want, sizeof want, "%d", i);
        const json_t *content = json_object_get(json_array_get(out, (size_t)i), "content");
        assert_string_equal(json_string_value(content), want);
    }
    json_decref(out);
    sl_response_turn_unref(s, last);
    sl_responses_destroy(s);
    return (double)(to.tv_sec - from.tv_sec) + (double)(to.tv_nsec - from.tv_nsec) * 1e-9;
}

static void test_many_turns(void **state)
{
    (void)state;
    (void)read_turns(1);
    double few = read_turns(500), many = read_turns(16 * 500);
    if (many > 80 * SL_MAX(few, 1e-4)) /* 16 times, not 256 times */
        fail_msg("500 turns %.6f s, 8,000 turns %.6f s", few, many);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_many_turns),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
