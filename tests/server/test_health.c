/* SPDX-License-Identifier: MIT
 * What a server says of itself while a step hangs: over real sockets, with the real watchdog.
 */
#include "hostile.h"

#include "engine/core.h"

static atomic_bool hang;
static int (*null_submit)(void *ctx, const struct sl_batch *batch, const struct sl_pick *picks,
                          struct sl_error *err);

static int hanging_submit(void *ctx, const struct sl_batch *batch, const struct sl_pick *picks,
                          struct sl_error *err)
{
    while (atomic_load(&hang))
        poll(NULL, 0, 1);
    return null_submit(ctx, batch, picks, err);
}

static int start(void **state)
{
    static const struct host_options options = {.watchdog_s = 1};
    (void)state;
    host_start(&host, &options);
    null_submit = host.eng->runner.submit; /* nothing runs yet */
    host.eng->runner.submit = hanging_submit;
    return 0;
}

static void send_text(struct client *c, const char *text)
{
    assert_true(client_send(c, text, strlen(text)));
}

static const char completion[] = "POST /v1/completions HTTP/1.1\r\n" HOST_LINE
                                 "Content-Length: 32\r\n\r\n{\"prompt\":[1,2],\"max_tokens\":4} ";

/* One request on a connection of its own; the body holds what part says. */
static int ask(const char *request, const char *part, bool *retry_after)
{
    struct client c;
    struct answer a = {0};
    client_open(&c, &host);
    send_text(&c, request);
    assert_true(client_answer(&c, false, &a));
    if (part != NULL && (a.body.data == NULL || strstr(a.body.data, part) == NULL))
        fail_msg("'%s' is not in '%.300s'", part, a.body.data != NULL ? a.body.data : "");
    if (retry_after != NULL)
        *retry_after = answer_header(&a, "Retry-After", NULL);
    int status = a.status;
    answer_free(&a);
    client_close(&c);
    return status;
}

static const char health[] = "GET /health HTTP/1.1\r\n" HOST_LINE "\r\n";
static const char metrics[] = "GET /metrics HTTP/1.1\r\n" HOST_LINE "\r\n";

static int wait_for_health(int want)
{
    int status = 0;
    for (int ms = 0; ms < HOST_WAIT_MS && status != want; ms += 10) {
        status = ask(health, NULL, NULL);
        poll(NULL, 0, 10);
    }
    return status;
}

static void a_standstill_is_red_and_refused(void **state)
{
    struct client waiting;
    struct answer a = {0};
    bool retry_after = false;
    (void)state;
    assert_int_equal(ask(health, NULL, NULL), 200);
    assert_int_equal(ask(completion, "\"finish_reason\":\"length\"", NULL), 200);
    atomic_store(&hang, true);
    client_open(&waiting, &host);
    send_text(&waiting, completion);
    assert_int_equal(wait_for_health(503), 503);
    assert_int_equal(ask(health, "the engine makes no progress, 1 requests are open", &retry_after),
                     503);
    assert_true(retry_after);
    retry_after = false;
    assert_int_equal(ask(completion, "the engine makes no progress", &retry_after), 503);
    assert_true(retry_after);
    assert_int_equal(ask(metrics, "sluice:watchdog_stalls_total{engine=\"0\",", NULL), 200);
    assert_int_equal(ask("GET /v1/models HTTP/1.1\r\n" HOST_LINE "\r\n", "storyteller", NULL), 200);
    atomic_store(&hang, false);
    assert_true(client_answer(&waiting, false, &a)); /* it was only late */
    assert_int_equal(a.status, 200);
    answer_free(&a);
    client_close(&waiting);
    assert_int_equal(wait_for_health(200), 200);
    assert_int_equal(ask(completion, "\"finish_reason\":\"length\"", NULL), 200);
    struct sl_stats st;
    sl_engine_stats(host.eng, &st);
    assert_int_equal(st.watchdog_stalls, 1);
    assert_int_equal(st.invariant_violations, 0);
}

/* ---- one of two models */

static atomic_bool dead;

static int failing_submit(void *ctx, const struct sl_batch *batch, const struct sl_pick *picks,
                          struct sl_error *err)
{
    return atomic_load(&dead) ? sl_fail(err, SL_EDEVICE, "scripted failure")
                              : hanging_submit(ctx, batch, picks, err);
}

static int start_two(void **state)
{
    static const struct host_options options = {.watchdog_s = 1, .two = true};
    (void)state;
    host_start(&host, &options);
    null_submit = host.eng->runner.submit;
    host.eng->runner.submit = failing_submit;
    return 0;
}

static const char of_first[] =
    "POST /v1/completions HTTP/1.1\r\n" HOST_LINE "Content-Length: 47\r\n\r\n"
    "{\"prompt\":[1,2],\"max_tokens\":4,\"model\":\"first\"}";
static const char of_second[] =
    "POST /v1/completions HTTP/1.1\r\n" HOST_LINE "Content-Length: 48\r\n\r\n"
    "{\"prompt\":[1,2],\"max_tokens\":4,\"model\":\"second\"}";

/* The other one answers, whatever happens to the first; /health says which it is. */
static void a_model_fails_alone(void **state)
{
    static const char fine[] = "\"finish_reason\":\"length\"";
    struct client waiting;
    struct answer a = {0};
    (void)state;
    assert_int_equal(ask(of_first, fine, NULL), 200);
    assert_int_equal(ask(of_second, fine, NULL), 200);
    assert_int_equal(ask(completion, "name one of `first`, `second`", NULL), 400);
    atomic_store(&hang, true);
    client_open(&waiting, &host);
    send_text(&waiting, of_first);
    assert_int_equal(wait_for_health(503), 503);
    assert_int_equal(ask(health, "first: the engine makes no progress", NULL), 503);
    assert_int_equal(ask(of_first, "the engine makes no progress", NULL), 503);
    assert_int_equal(ask(of_second, fine, NULL), 200);
    atomic_store(&hang, false);
    assert_true(client_answer(&waiting, false, &a));
    assert_int_equal(a.status, 200);
    answer_free(&a);
    client_close(&waiting);
    assert_int_equal(wait_for_health(200), 200);
    atomic_store(&dead, true);
    assert_int_equal(ask(of_first, "scripted failure", NULL), 500);
    assert_int_equal(ask(health, "first: the device failed", NULL), 503);
    assert_int_equal(ask(of_second, fine, NULL), 200);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_standstill_is_red_and_refused),
    };
    const struct CMUnitTest two[] = {
        cmocka_unit_test(a_model_fails_alone),
    };
    int rc = cmocka_run_group_tests(tests, start, stop);
    return rc + cmocka_run_group_tests(two, start_two, stop);
}
