/* SPDX-License-Identifier: MIT */
#include "hub/fetch.h"

#include "base/check.h"
#include "base/sys.h"

#include <stdio.h>
#include <string.h>

#define POLL_MS 200 /* between looks at locks, waits and the progress */

static void fetch_tell(const struct sl_fetch *f, const struct sl_fetch_job *finished,
                       const char *note)
{
    if (f->opt->progress != NULL)
        f->opt->progress(f->opt->progress_arg, finished, note);
}

static int init_jobs(struct sl_fetch *f, struct sl_error *err)
{
    for (size_t i = 0; i < f->n_jobs; i++) {
        struct sl_fetch_job *job = &f->jobs[i];
        struct sl_buf b = {0};
        job->fetch = f;
        job->fd = job->lock_fd = -1;
        if (job->path == NULL)
            continue;
        sl_buf_printf(&b, "%s.incomplete", job->path);
        if ((job->partial_path = sl_buf_steal(&b, NULL)) == NULL)
            return sl_fail(err, SL_ENOMEM, "out of memory");
    }
    return 0;
}

static size_t fetch_count(const struct sl_fetch *f, enum sl_fetch_state state)
{
    size_t n = 0;
    for (size_t i = 0; i < f->n_jobs; i++)
        n += f->jobs[i].state == state;
    return n;
}

static void after(const struct sl_fetch *f, struct sl_fetch_job *job)
{
    if (job->state != SL_FETCH_DONE)
        return;
    sl_fetch_job_close(job); /* others may have the lock now */
    fetch_tell(f, job, NULL);
}

static int start_some(struct sl_fetch *f, struct sl_error *err)
{
    size_t n_running = fetch_count(f, SL_FETCH_RUNNING);
    for (size_t i = 0; i < f->n_jobs && n_running < (size_t)f->opt->n_parallel; i++) {
        struct sl_fetch_job *job = &f->jobs[i];
        bool waited = job->waits;
        char note[160];
        if (job->state != SL_FETCH_QUEUED || sl_now_ns() < job->retry_ns)
            continue;
        int rc = sl_fetch_job_start(job, err);
        if (rc != 0)
            return rc;
        if (job->waits && !waited) {
            snprintf(note, sizeof note, "%.100s: waiting for another process that fetches it",
                     job->label);
            fetch_tell(f, NULL, note);
        }
        n_running += job->state == SL_FETCH_RUNNING;
        after(f, job);
    }
    return 0;
}

static int take_ends(struct sl_fetch *f, struct sl_error *err)
{
    const struct sl_curl *c = f->curl;
    int n_left, rc = 0;
    for (CURLMsg *m; rc == 0 && (m = c->multi_info_read(f->multi, &n_left)) != NULL;) {
        char *job_of = NULL;
        CURLcode code = m->data.result;
        CURL *easy = m->easy_handle;
        if (m->msg != CURLMSG_DONE)
            continue;
        c->easy_getinfo(easy, CURLINFO_PRIVATE, &job_of);
        struct sl_fetch_job *job = (struct sl_fetch_job *)(void *)job_of;
        SL_ASSERT(job != NULL && job->easy == easy);
        c->multi_remove_handle(f->multi, easy);
        rc = sl_fetch_job_end(job, code, err);
        if (rc == 0)
            after(f, job);
    }
    return rc;
}

static int run_multi(struct sl_fetch *f, struct sl_error *err)
{
    int rc = 0, n_running;
    while (rc == 0 && fetch_count(f, SL_FETCH_DONE) < f->n_jobs) {
        if (f->opt->cancelled != NULL && f->opt->cancelled(f->opt->cancelled_arg))
            return sl_fail(err, SL_ECANCELED, "the download was cancelled");
        rc = start_some(f, err);
        CURLMcode code = rc == 0 ? f->curl->multi_perform(f->multi, &n_running) : CURLM_OK;
        if (rc == 0 && code == CURLM_OK)
            rc = take_ends(f, err);
        if (rc == 0 && fetch_count(f, SL_FETCH_DONE) < f->n_jobs) {
            if (code == CURLM_OK)
                code = f->curl->multi_poll(f->multi, NULL, 0, POLL_MS, NULL);
            fetch_tell(f, NULL, NULL);
        }
        if (rc == 0 && code != CURLM_OK)
            rc = sl_fail(err, SL_EIO, "libcurl: %s", f->curl->multi_strerror(code));
    }
    return rc;
}

int sl_fetch_run(const struct sl_fetch_options *opt, struct sl_fetch_job *jobs, size_t n_jobs,
                 struct sl_error *err)
{
    struct sl_fetch f = {.opt = opt, .jobs = jobs, .n_jobs = n_jobs};
    SL_ASSERT(opt->n_parallel > 0);
    int rc = sl_curl_load(&f.curl, err);
    if (rc != 0)
        return rc;
    f.multi = f.curl->multi_init();
    rc = f.multi != NULL ? init_jobs(&f, err) : sl_fail(err, SL_ENOMEM, "out of memory");
    if (rc == 0)
        rc = run_multi(&f, err);
    for (size_t i = 0; i < n_jobs; i++) {
        if (jobs[i].fetch == NULL)
            continue;
        if (jobs[i].easy != NULL)
            f.curl->multi_remove_handle(f.multi, jobs[i].easy);
        sl_fetch_job_close(&jobs[i]);
    }
    if (f.multi != NULL)
        f.curl->multi_cleanup(f.multi);
    return rc;
}

void sl_fetch_deinit_jobs(struct sl_fetch_job *jobs, size_t n_jobs)
{
    for (size_t i = 0; i < n_jobs; i++)
        sl_buf_deinit(&jobs[i].body);
}
