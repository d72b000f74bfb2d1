/* SPDX-License-Identifier: MIT
 * batch.c - `sluice batch IN OUT [MODEL]`: the requests of a file, offline.
 *
 * The server runs in this process and is asked over a socket in a folder of its own, so that a
 * request means here what it means there, and no other way through the program exists. One thread
 * keeps so many requests open that steps are full.
 */
#include "base/check.h"
#include "base/fs.h"
#include "base/log.h"
#include "base/sys.h"
#include "cmd/flags.h"
#include "cmd/model.h"
#include "server/jobs/batch_pool.h"
#include "server/server.h"

#include <event2/event.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <unistd.h>

#define READY_MS 10000
#define REPORT_S 2

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
    atomic_bool ended; /* rc and err say how */
    char folder[64], uds[96], url[112];
    int rc;
    struct sl_error err;
};

struct run {
    struct sl_batch_file *file;
    struct sl_batch_job job;
    struct event_base *base;
    struct sl_http_url url;
    size_t n_before, n_good_before;
    uint64_t t_start_ns;
    bool interrupted;
};

/* ---- the server */

static void *host_main(void *arg)
{
    struct host *h = arg;
    h->rc = sl_server_run(&h->cfg, h->eng, &h->err);
    atomic_store(&h->ended, true);
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
    for (int ms = 0; ms < READY_MS && !sl_exists(h->uds) && !atomic_load(&h->ended); ms++)
        usleep(1000);
    if (atomic_load(&h->ended) && h->rc != 0) {
        *err = h->err;
        return h->rc;
    }
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

static void batch_report(const struct run *run, bool end)
{
    double s = (double)(sl_now_ns() - run->t_start_ns) * 1e-9;
    size_t now = run->file->n_done - run->n_before;
    double rate = s > 0 ? (double)now / s : 0;
    size_t left = run->file->n_lines - run->file->n_done;
    fprintf(
        stderr, "batch: %zu of %zu done, %zu failed, %.1f requests/s, %.0f tokens/s in, %.0f out",
        run->file->n_done, run->file->n_lines, now - (run->file->n_good - run->n_good_before), rate,
        s > 0 ? (double)run->job.n_prompt / s : 0, s > 0 ? (double)run->job.n_output / s : 0);
    if (end)
        fprintf(stderr, ", %.1f s\n", s);
    else
        fprintf(stderr, rate > 0 ? ", %.0f s left\n" : "\n", (double)left / (rate > 0 ? rate : 1));
}

static void on_report(evutil_socket_t fd, short what, void *arg)
{
    (void)fd;
    (void)what;
    batch_report(arg, false);
}

/* ---- the run */

static void on_answered(void *arg, struct sl_batch_job *job)
{
    (void)arg;
    (void)job;
}

static void on_ended(void *arg, struct sl_batch_job *job)
{
    (void)job;
    event_base_loopbreak(((struct run *)arg)->base);
}

static void on_signal(evutil_socket_t sig, short what, void *arg)
{
    struct run *run = arg;
    (void)sig;
    (void)what;
    run->interrupted = true;
    event_base_loopbreak(run->base);
}

static int work(struct run *run, size_t concurrency, struct sl_error *err)
{
    static const struct sl_batch_pool_events events = {.answered = on_answered, .ended = on_ended};
    const struct timeval every = {REPORT_S, 0};
    struct sl_batch_pool *pool = NULL;
    struct event *ticks = event_new(run->base, -1, EV_PERSIST, on_report, run);
    struct event *stops[2] = {evsignal_new(run->base, SIGINT, on_signal, run),
                              evsignal_new(run->base, SIGTERM, on_signal, run)};
    int rc = ticks != NULL && event_add(ticks, &every) == 0 && stops[0] != NULL &&
                     stops[1] != NULL && event_add(stops[0], NULL) == 0 &&
                     event_add(stops[1], NULL) == 0
                 ? 0
                 : sl_fail(err, SL_ENOMEM, "cannot set up the event loop");
    if (rc == 0)
        rc = sl_batch_pool_create(run->base, &run->url, concurrency, &events, run, &pool, err);
    if (rc == 0) {
        sl_batch_pool_add(pool, &run->job);
        (void)event_base_dispatch(run->base);
    }
    sl_batch_pool_destroy(pool);
    struct event *all[] = {ticks, stops[0], stops[1]};
    for (size_t i = 0; i < SL_COUNT(all); i++)
        if (all[i] != NULL)
            event_free(all[i]);
    if (rc == 0 && run->job.rc != 0) {
        *err = run->job.err;
        rc = run->job.rc;
    }
    return rc;
}

static int batch(struct sl_engine_config *engine, const struct batch_flags *f,
                 struct sl_batch_file *file, const char *out, struct sl_error *err)
{
    struct host h = {.cfg = {.stop_fd = -1}};
    struct run run = {.file = file,
                      .job = {.file = file},
                      .n_before = file->n_done,
                      .n_good_before = file->n_good};
    if (file->n_done > 0)
        fprintf(stderr, "batch: going on after %zu of %zu lines\n", file->n_done, file->n_lines);
    int rc = sl_engine_create(engine, &h.eng, err);
    if (rc != 0)
        return rc;
    int32_t n = f->concurrency > 0 ? f->concurrency : 2 * sl_engine_info(h.eng)->max_num_seqs;
    rc = host_start(&h, err);
    if (rc == 0)
        rc = sl_http_url_parse(h.url, &run.url, err);
    run.url.patient = true;
    run.base = rc == 0 ? event_base_new() : NULL;
    if (rc == 0 && run.base == NULL)
        rc = sl_fail(err, SL_ENOMEM, "cannot set up the event loop");
    run.t_start_ns = sl_now_ns();
    if (rc == 0)
        rc = work(&run, SL_MIN((size_t)n, file->n_lines), err);
    if (rc == 0)
        batch_report(&run, true);
    if (run.base != NULL)
        event_base_free(run.base);
    host_stop(&h);
    sl_engine_destroy(h.eng);
    if (rc == 0 && run.interrupted && file->n_done < file->n_lines)
        rc = sl_fail(err, SL_ECANCELED,
                     "interrupted; run the same command again to continue from %s", file->part);
    if (rc == 0)
        rc = sl_batch_write(file, SL_BATCH_ALL, out, err);
    if (rc != 0)
        return rc;
    sl_remove_file(file->part);
    size_t n_failed = file->n_done - file->n_good;
    if (n_failed > 0) /* OUT is complete all the same; SL_EIO: exit status 1 */
        return sl_fail(err, SL_EIO, "%zu of %zu requests failed; %.150s says why", n_failed,
                       file->n_lines, out);
    return 0;
}

static int batch_open_files(const char *in, const char *out, struct sl_batch_file *file,
                            struct sl_error *err)
{
    if (sl_exists(out))
        return sl_fail(err, SL_EINVAL,
                       "%s exists already: it is complete, or not a result of this command", out);
    struct sl_buf part = {0};
    sl_buf_printf(&part, "%s.part", out);
    int rc = sl_buf_ok(&part) ? sl_batch_open(in, part.data, SIZE_MAX, file, err)
                              : sl_fail(err, SL_ENOMEM, "out of memory");
    sl_buf_deinit(&part);
    return rc;
}

static int run_batch(int argc, char **argv)
{
    struct batch_flags f = {0};
    struct sl_engine_config engine = {.max_itl_ms = -1}; /* nobody reads along */
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
        rc = batch_open_files(names[0], names[1], &file, &err);
    if (rc == 0)
        rc = sl_cli_find_model(&model, names[2], &err);
    engine.model = model.path;
    if (rc == 0)
        rc = sl_cli_find_draft(&model, &engine, &err);
    sl_log_set_level(SL_LOG_WARN);
    if (rc == 0)
        rc = batch(&engine, &f, &file, names[1], &err);
    sl_batch_close(&file);
    sl_cli_model_deinit(&model);
    return rc == 0 ? SL_EXIT_OK : sl_command_fail(&sl_cmd_batch, &err);
}

const struct sl_command sl_cmd_batch = {
    .name = "batch",
    .usage = "IN.jsonl OUT.jsonl [MODEL] [FLAGS]",
    .summary = "answer the requests of a file, in OpenAI's batch format",
    .examples = "  sluice batch in.jsonl out.jsonl Qwen/Qwen3-0.6B\n",
    .brief = "concurrency threads max-model-len max-num-seqs max-num-batched-tokens "
             "kv-cache-memory-bytes kv-cache-dtype device revision download-dir offline",
    .details =
        "A line of IN is {\"custom_id\": ..., \"method\": \"POST\", \"url\":\n"
        "\"/v1/chat/completions\", \"body\": {...}}; the same line of OUT has the\n"
        "reply, or the error. Replies are appended to OUT.part until all are there: if a run\n"
        "was killed, the same command continues from that file. Progress is on stderr.\n"
        "The exit status is 0 when every request got a reply with status 200, 1 when some\n"
        "failed (OUT says why), 2 when the command line or IN was wrong.\n",
    .run = run_batch,
};
