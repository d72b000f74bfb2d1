/* SPDX-License-Identifier: MIT */
#include "cmd/ask.h"

#include "base/str.h"
#include "server/http/http_client.h"

#include <event2/event.h>
#include <stdio.h>
#include <string.h>

#define MAX_BODY (16u << 20)

struct answer {
    struct event_base *base;
    struct sl_buf *body;
    int status;
    char error[120];
};

static void ask_on_body(void *arg, const char *data, size_t n)
{
    sl_buf_put(((struct answer *)arg)->body, data, n);
}

static void ask_on_done(void *arg, int status, const char *error)
{
    struct answer *a = arg;
    a->status = status;
    snprintf(a->error, sizeof a->error, "%s", error != NULL ? error : "no reply");
    event_base_loopbreak(a->base);
}

int sl_cli_ask(const struct sl_cli_ask *ask, int *status, struct sl_buf *body, struct sl_error *err)
{
    static const struct sl_http_client_events events = {ask_on_body, ask_on_done};
    const struct timeval limit = {ask->timeout_ms / 1000, ask->timeout_ms % 1000 * 1000};
    struct answer a = {.body = body, .error = "no reply in time"};
    struct sl_http_url where;
    struct sl_http_client *client = NULL;
    sl_buf_clear(body);
    body->max_bytes = MAX_BODY;
    int rc = sl_http_url_parse(ask->url, &where, err);
    if (rc != 0) {
        if (sl_starts_with(err->msg, "--")) /* "--url: ...": here it is an argument */
            memmove(err->msg, err->msg + 2, strlen(err->msg) - 1);
        return rc;
    }
    a.base = event_base_new();
    if (a.base == NULL)
        return sl_fail(err, SL_ENOMEM, "cannot set up the event loop");
    rc = sl_http_client_create(a.base, &where, &events, &a, &client, err);
    if (rc == 0) {
        sl_http_client_send(client, ask->path, ask->api_key,
                            ask->post != NULL ? ask->post->data : NULL,
                            ask->post != NULL ? ask->post->n_bytes : 0);
        (void)event_base_loopexit(a.base, &limit);
        (void)event_base_dispatch(a.base);
        if (a.status == 0)
            rc = sl_fail(err, SL_EIO, "%.120s: %s", ask->url, a.error);
        else if (!sl_buf_ok(body))
            rc = sl_fail(err, SL_EIO, "%.120s: the reply is too large", ask->url);
        sl_http_client_destroy(client);
    }
    event_base_free(a.base);
    *status = a.status;
    return rc;
}
