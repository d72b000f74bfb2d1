/* SPDX-License-Identifier: MIT
 * batch.c - `sluice batch IN OUT [MODEL]`: the requests of a file, offline.
 *
 * The server runs in this process and is asked over a socket in a folder of its own, so that a
 * request means here what it means there, and no other way through the program exists. One thread
 * keeps so many requests open that steps are full.
 */
#include "base/check.h"
#include "base/fs.h"
#include "base/limits.h"
#include "base/log.h"
#include "base/sys.h"
#include "cmd/batch_file.h"
#include "cmd/flags.h"
#include "cmd/http_client.h"
#include "cmd/model.h"
#include "server/server.h"

#include <event2/event.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <unistd.h>

#define MAX_TRIES 5   /* of a request whose connection broke */
#define RETRY_MS  200 /* after a 429 or 503 */
#define READY_MS  10000
#define REPORT_S  2

struct batch_flags {
    int32_t concurrency;
};

static const struct sl_flag flags[] = {
    {SL_FLAG_HEADING, 0, NULL, NULL, 0, 0, 0, NULL, "Batch"},
    {SL_FLAG_INT, 0, "concurrency", "max-concurrency", offsetof(struct batch_flags, concurrency), 1,
     4096, "N", "requests at a time (default: twice --max-num-seqs)"},
};

struct host { /* the server, and where it listens */
    struct sl_server_config cfg;
    struct sl_engine *eng;
    pthread_t thread;
    bool started;
    char folder[64], uds[96], url[112];
    int rc;
    struct sl_error err;
};

struct run;

struct slot {
    struct run *run;
    struct sl_http_client *client;
    struct event *retry;
    struct sl_batch_request req;
    size_t line;
    struct sl_buf text, reply;
    int n_tries;
    bool busy;
};

struct run {
    struct sl_batch_file *file;
    struct event_base *base;
    struct sl_http_url url;
    struct slot *slots;
    size_t n_slots, next; /* next: the first line that was not looked at */
    size_t n_before, n_failed;
    uint64_t t_start_ns;
    int64_t n_prompt, n_output; /* tokens */
    int rc;
    struct sl_error err;
    bool interrupted;
};

/* ---- the server */

static void *host_main(void *arg)
{
    struct host *h = arg;
    h->rc = sl_server_run(&h->cfg, h->eng, &h->err);
    return NULL;
}

static int host_start(struct host *h, struct sl_error *err)
{
    snprintf(h->folder, sizeof h->folder, "%.32s/sluice-batch-XXXXXX", P_tmpdir);
    if (mkdtemp(h->folder) == NULL) {
        h->folder[0] = '\0';
        return sl_fail(err, SL_EIO, "cannot make a folder in %s", P_tmpdir);
    }
    snprintf(h->uds, sizeof h->uds, "%s/socket", h->folder);
    snprintf(h->url, sizeof h->url, "unix:%s", h->uds);
    sl_server_config_default(&h->cfg);
    h->cfg.host = NULL;
    h->cfg.uds = h->uds;
    h->cfg.no_webui = true;
    h->cfg.priority_scheduling = true; /* lines may say which go first */
    h->cfg.handle_signals = false;
    h->cfg.stop_fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    if (h->cfg.stop_fd < 0)
        return sl_fail(err, SL_EIO, "cannot make an eventfd");
    int rc = sl_thread_create(&h->thread, host_main, h, "sl-http", err);
    if (rc != 0)
        return rc;
    h->started = true;
    for (int ms = 0; ms < READY_MS && !sl_exists(h->uds); ms++)
        usleep(1000);
    return sl_exists(h->uds) ? 0 : sl_fail(err, SL_EIO, "the server does not listen");
}

static void host_stop(struct host *h)
{
    const uint64_t one = 1;
    if (h->started) {
        (void)!write(h->cfg.stop_fd, &one, sizeof one);
        (void)!write(h->cfg.stop_fd, &one, sizeof one); /* what runs is given up */
        pthread_join(h->thread, NULL);
    }
    if (h->cfg.stop_fd > 0)
        close(h->cfg.stop_fd);
    if (h->folder[0] != '\0')
        (void)rmdir(h->folder);
}

/* ---- progress */

static void report(const struct run *run, bool end)
{
    double s = (double)(sl_now_ns() - run->t_start_ns) * 1e-9;
    size_t now = run->file->n_done - run->n_before;
    double rate = s > 0 ? (double)now / s : 0;
    size_t left = run->file->n_lines - run->file->n_done;
    fprintf(stderr,
            "batch: %zu of %zu done, %zu failed, %.1f requests/s, %.0f tokens/s in, %.0f out",
            run->file->n_done, run->file->n_lines, run->n_failed, rate,
            s > 0 ? (double)run->n_prompt / s : 0, s > 0 ? (double)run->n_output / s : 0);
    if (end)
        fprintf(stderr, ", %.1f s\n", s);
    else
        fprintf(stderr, rate > 0 ? ", %.0f s left\n" : "\n", (double)left / (rate > 0 ? rate : 1));
}

static void on_report(evutil_socket_t fd, short what, void *arg)
{
    (void)fd;
    (void)what;
    report(arg, false);
}

/* ---- requests */

static void fill(struct slot *s);

static void give_up(struct run *run)
{
    event_base_loopbreak(run->base);
}

/* What a reply counts, without a parse of texts that may be long: members come once. */
static int64_t count_of(const char *reply, const char *name)
{
    const char *at = reply != NULL ? strstr(reply, name) : NULL;
    int64_t x = 0;
    for (at = at != NULL ? at + strlen(name) : NULL; at != NULL && *at >= '0' && *at <= '9'; at++)
        x = x < INT32_MAX ? x * 10 + (*at - '0') : x;
    return x;
}

/* status 0: why says what is wrong. */
static void answer(struct slot *s, int status, const struct sl_error *why)
{
    struct run *run = s->run;
    const char *body = s->reply.n_bytes > 0 ? s->reply.data : "null";
    int rc = sl_batch_put(run->file, s->line, s->req.custom_id, status, body, strlen(body), why,
                          &run->err);
    run->n_failed += status != 200;
    if (status == 200) {
        run->n_prompt += count_of(body, "\"prompt_tokens\":") + count_of(body, "\"input_tokens\":");
        run->n_output +=
            count_of(body, "\"completion_tokens\":") + count_of(body, "\"output_tokens\":");
    }
    sl_batch_request_deinit(&s->req);
    s->busy = false;
    if (rc != 0) {
        run->rc = rc;
        give_up(run);
    }
}

static void send_request(struct slot *s)
{
    sl_buf_clear(&s->reply);
    sl_http_client_send(s->client, s->req.url, NULL, s->text.data, s->text.n_bytes);
}

static void on_retry(evutil_socket_t fd, short what, void *arg)
{
    (void)fd;
    (void)what;
    send_request(arg);
}

static void on_body(void *arg, const char *data, size_t n)
{
    sl_buf_put(&((struct slot *)arg)->reply, data, n);
}

static void on_done(void *arg, int status, const char *error)
{
    struct slot *s = arg;
    const struct timeval wait = {0, RETRY_MS * 1000};
    struct sl_error why = {0};
    bool busy = status == 429 || status == 503; /* lasts until others have ended */
    if ((busy || (status == 0 && ++s->n_tries < MAX_TRIES)) && event_add(s->retry, &wait) == 0)
        return;
    if (status == 0)
        (void)sl_fail(&why, SL_EIO, "no reply: %s", error);
    else if (!sl_buf_ok(&s->reply))
        (void)sl_fail(&why, SL_EIO, "out of memory for the reply");
    answer(s, sl_buf_ok(&s->reply) ? status : 0, &why);
    fill(s);
}

static int dump(const char *data, size_t n, void *arg)
{
    sl_buf_put(arg, data, n);
    return sl_buf_ok(arg) ? 0 : -1;
}

/* The next line that waits; lines that are no request are answered here. */
static void fill(struct slot *s)
{
    struct run *run = s->run;
    while (run->rc == 0 && !s->busy && run->next < run->file->n_lines) {
        struct sl_error why;
        s->line = run->next++;
        if (run->file->lines[s->line].n_reply > 0)
            continue;
        s->busy = true;
        s->n_tries = 0;
        sl_buf_clear(&s->text);
        sl_buf_clear(&s->reply);
        int rc = sl_batch_read(run->file, s->line, &s->req, &why);
        if (rc == 0 && (json_dump_callback(s->req.body, dump, &s->text, JSON_COMPACT) != 0 ||
                        s->text.n_bytes > SL_MAX_HTTP_BODY))
            rc = sl_fail(&why, SL_ELIMIT, "body is larger than %u bytes", SL_MAX_HTTP_BODY);
        if (rc != 0)
            answer(s, 0, &why);
        else
            send_request(s);
    }
    if (run->file->n_done == run->file->n_lines)
        give_up(run);
}

static void on_signal(evutil_socket_t sig, short what, void *arg)
{
    struct run *run = arg;
    (void)sig;
    (void)what;
    run->interrupted = true;
    give_up(run);
}

/* ---- the run */

static int make_slots(struct run *run, size_t n, struct sl_error *err)
{
    static const struct sl_http_client_events events = {on_body, on_done};
    run->slots = sl_calloc(n, sizeof *run->slots);
    if (run->slots == NULL)
        return sl_fail(err, SL_ENOMEM, "out of memory");
    for (; run->n_slots < n; run->n_slots++) {
        struct slot *s = &run->slots[run->n_slots];
        s->run = run;
        s->retry = evtimer_new(run->base, on_retry, s);
        if (s->retry == NULL)
            return sl_fail(err, SL_ENOMEM, "out of memory");
        int rc = sl_http_client_create(run->base, &run->url, &events, s, &s->client, err);
        if (rc != 0) {
            event_free(s->retry);
            return rc;
        }
    }
    return 0;
}

static void free_slots(struct run *run)
{
    for (size_t i = 0; i < run->n_slots; i++) {
        struct slot *s = &run->slots[i];
        sl_http_client_destroy(s->client);
        event_free(s->retry);
        sl_batch_request_deinit(&s->req);
        sl_buf_deinit(&s->text);
        sl_buf_deinit(&s->reply);
    }
    sl_free(run->slots);
}

static int work(struct run *run, size_t concurrency, struct sl_error *err)
{
    const struct timeval every = {REPORT_S, 0};
    struct event *ticks = event_new(run->base, -1, EV_PERSIST, on_report, run);
    struct event *stops[2] = {evsignal_new(run->base, SIGINT, on_signal, run),
                              evsignal_new(run->base, SIGTERM, on_signal, run)};
    int rc = ticks != NULL && event_add(ticks, &every) == 0 && stops[0] != NULL &&
                     stops[1] != NULL && event_add(stops[0], NULL) == 0 &&
                     event_add(stops[1], NULL) == 0
                 ? make_slots(run, concurrency, err)
                 : sl_fail(err, SL_ENOMEM, "cannot set up the event loop");
    for (size_t i = 0; rc == 0 && i < run->n_slots; i++)
        fill(&run->slots[i]);
    if (rc == 0 && run->rc == 0 && run->file->n_done < run->file->n_lines)
        (void)event_base_dispatch(run->base);
    free_slots(run);
    struct event *all[] = {ticks, stops[0], stops[1]};
    for (size_t i = 0; i < SL_COUNT(all); i++)
        if (all[i] != NULL)
            event_free(all[i]);
    if (rc == 0 && run->rc != 0) {
        *err = run->err;
        rc = run->rc;
    }
    return rc;
}

static int batch(struct sl_engine_config *engine, const struct batch_flags *f,
                 struct sl_batch_file *file, struct sl_error *err)
{
    struct host h = {.cfg = {.stop_fd = -1}};
    struct run run = {.file = file, .n_before = file->n_done};
    if (file->n_done > 0)
        fprintf(stderr, "batch: going on after %zu of %zu lines\n", file->n_done, file->n_lines);
    int rc = sl_engine_create(engine, &h.eng, err);
    if (rc != 0)
        return rc;
    int32_t n = f->concurrency > 0 ? f->concurrency : 2 * sl_engine_info(h.eng)->max_num_seqs;
    rc = host_start(&h, err);
    if (rc == 0)
        rc = sl_http_url_parse(h.url, &run.url, err);
    run.base = rc == 0 ? event_base_new() : NULL;
    if (rc == 0 && run.base == NULL)
        rc = sl_fail(err, SL_ENOMEM, "cannot set up the event loop");
    run.t_start_ns = sl_now_ns();
    if (rc == 0)
        rc = work(&run, SL_MIN((size_t)n, file->n_lines), err);
    if (rc == 0)
        report(&run, true);
    if (run.base != NULL)
        event_base_free(run.base);
    host_stop(&h);
    sl_engine_destroy(h.eng);
    if (rc == 0 && run.interrupted && file->n_done < file->n_lines)
        rc =
            sl_fail(err, SL_ECANCELED, "interrupted; the same command goes on with %s", file->part);
    return rc != 0 ? rc : sl_batch_finish(file, err);
}

static int run_batch(int argc, char **argv)
{
    struct batch_flags f = {0};
    struct sl_engine_config engine = {0};
    struct sl_cli_model model = {0};
    struct sl_batch_file file = {.fd = -1};
    struct sl_error err = {0};
    const char *names[3] = {NULL, NULL, NULL};
    int n = 0;
    struct sl_flag_group groups[] = {
        {flags, (int)SL_COUNT(flags), &f, 0},
        {sl_flags_engine, sl_n_flags_engine, &engine, 0},
        {sl_flags_hub, sl_n_flags_hub, &model.hub, 0},
    };
    int rc = sl_flags_parse(&sl_cmd_batch, groups, (int)SL_COUNT(groups), argc, argv, names, 3, &n,
                            &err);
    if (rc == SL_FLAGS_HELP)
        return SL_EXIT_OK;
    if (rc == 0 && n < 2)
        rc = sl_fail(&err, SL_EINVAL, "a file of requests and one for the replies are needed");
    if (rc == 0)
        rc = sl_batch_open(names[0], names[1], &file, &err);
    if (rc == 0)
        rc = sl_cli_find_model(&model, names[2], &err);
    engine.model = model.path;
    sl_log_set_level(SL_LOG_WARN);
    if (rc == 0)
        rc = batch(&engine, &f, &file, &err);
    sl_batch_close(&file);
    sl_cli_model_deinit(&model);
    return rc == 0 ? SL_EXIT_OK : sl_command_fail(&sl_cmd_batch, &err);
}

const struct sl_command sl_cmd_batch = {
    .name = "batch",
    .usage = "IN.jsonl OUT.jsonl [MODEL] [FLAGS]",
    .summary = "answer the requests of a file, in OpenAI's batch format",
    .details = "A line of IN is {\"custom_id\": ..., \"method\": \"POST\", \"url\":\n"
               "\"/v1/chat/completions\", \"body\": {...}}; the line of OUT in its place has the\n"
               "reply, or says what was wrong with it. Replies gather in OUT.part: a run that was\n"
               "killed goes on there when the same command is given again. Progress is on stderr.\n"
               "  sluice batch in.jsonl out.jsonl Qwen/Qwen3-0.6B\n",
    .run = run_batch,
};
