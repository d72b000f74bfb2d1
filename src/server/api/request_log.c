/* SPDX-License-Identifier: MIT */
#include "server/api/request_log.h"

#include "base/check.h"
#include "base/log.h"
#include "base/sys.h"
#include "server/http/keys.h"
#include "server/http/route.h"
#include "server/http/sse.h"

#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

int sl_request_log_open(const char *path, int *fd, struct sl_error *err)
{
    *fd = -1;
    if (path == NULL)
        return 0;
    if (strcmp(path, "-") == 0) {
        *fd = STDOUT_FILENO;
        return 0;
    }
    *fd = sl_sys->open(path, O_WRONLY | O_CREAT | O_APPEND, 0640);
    return *fd >= 0 ? 0 : sl_fail(err, SL_EIO, "--request-log: %s: %s", path, strerror(errno));
}

void sl_request_log_close(int fd)
{
    if (fd > STDERR_FILENO)
        sl_sys->close(fd);
}

/* 2026-11-22T10:00:00.000Z */
static void request_log_put_time(struct sl_buf *b, int64_t wall_ns)
{
    char text[32];
    time_t secs = (time_t)(wall_ns / 1000000000);
    struct tm tm;
    gmtime_r(&secs, &tm);
    strftime(text, sizeof text, "%Y-%m-%dT%H:%M:%S", &tm);
    sl_buf_printf(b, "\"%s.%03dZ\"", text, (int)(wall_ns / 1000000 % 1000));
}

static void request_log_put_text(struct sl_buf *b, const char *name, const char *text)
{
    sl_buf_printf(b, ",\"%s\":", name);
    sl_buf_json_string(b, text, strlen(text));
}

static void request_log_put_int(struct sl_buf *b, const char *name, int64_t x)
{
    sl_buf_printf(b, ",\"%s\":%lld", name, (long long)x);
}

/* The time from one event to another; null if one of them did not come. */
static void request_log_put_span(struct sl_buf *b, const char *name, uint64_t from_ns,
                                 uint64_t to_ns)
{
    sl_buf_printf(b, ",\"%s\":", name);
    if (from_ns == 0 || to_ns < from_ns)
        SL_PUT(b, "null");
    else
        sl_buf_printf(b, "%.6f", (double)(to_ns - from_ns) * 1e-9);
}

static void request_log_put_finish(struct sl_buf *b, const struct sl_call *call)
{
    static const char *const names[] = {"null",      "\"stop\"",  "\"length\"",
                                        "\"abort\"", "\"error\"", "\"cache_threshold\""};
    SL_PUT(b, ",\"finish\":[");
    for (int32_t i = 0; i < call->n_prompts * call->n; i++) {
        if (i > 0)
            sl_buf_putc(b, ',');
        sl_buf_puts(b, names[call->choices[i].finish]);
    }
    sl_buf_putc(b, ']');
}

void sl_request_log_put(const struct sl_call *call)
{
    struct sl_server *s = call->conn->loop->server;
    struct sl_buf b = {0};
    struct sl_usage u;
    if (s->request_log_fd < 0)
        return;
    sl_call_usage(call, &u);
    SL_PUT(&b, "{\"time\":");
    request_log_put_time(&b, sl_wall_ns());
    request_log_put_text(&b, "id", call->id);
    request_log_put_text(&b, "path", call->conn->route->path);
    request_log_put_text(&b, "model", call->model);
    if (s->cfg->key_rules != NULL)
        request_log_put_text(&b, "key", s->cfg->key_rules[call->key].name);
    else if (s->cfg->n_api_keys > 0)
        request_log_put_int(&b, "key", call->key); /* its place in the list, from 0 */
    else
        SL_PUT(&b, ",\"key\":null");
    /* A connection that is still busy with this call is being closed. */
    request_log_put_int(&b, "status", call->conn->busy ? 499 : call->conn->status);
    sl_buf_puts(&b, call->stream ? ",\"stream\":true" : ",\"stream\":false");
    request_log_put_int(&b, "choices", (int64_t)call->n * call->n_prompts);
    request_log_put_finish(&b, call);
    request_log_put_int(&b, "prompt_tokens", u.n_prompt);
    request_log_put_int(&b, "cached_tokens", u.n_cached);
    request_log_put_int(&b, "output_tokens", u.n_output);
    request_log_put_int(&b, "preemptions", u.n_preemptions);
    request_log_put_span(&b, "queue_s", u.t_submit_ns, u.t_scheduled_ns);
    request_log_put_span(&b, "ttft_s", u.t_submit_ns, u.t_first_ns);
    request_log_put_span(&b, "e2e_s", u.t_submit_ns, sl_now_ns());
    SL_PUT(&b, "}\n");
    bool ok =
        sl_buf_ok(&b) && sl_sys->write(s->request_log_fd, b.data, b.n_bytes) == (ssize_t)b.n_bytes;
    if (!ok && !atomic_exchange(&s->request_log_failed, true))
        sl_log(SL_LOG_WARN, "--request-log: lines are lost: %s", strerror(errno));
    sl_buf_deinit(&b);
}
