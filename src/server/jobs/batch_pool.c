/* SPDX-License-Identifier: MIT */
#include "server/jobs/batch_pool.h"

#include "base/check.h"
#include "base/limits.h"

#include <string.h>

#define MAX_TRIES 5   /* of a request whose connection broke */
#define RETRY_MS  200 /* after a 429 or 503 */

struct slot {
    struct sl_batch_pool *pool;
    struct sl_batch_job *job; /* NULL: free */
    struct sl_http_client *client;
    struct event *retry;
    struct sl_batch_request req;
    size_t line;
    struct sl_buf text, reply;
    int n_tries;
};

struct sl_batch_pool {
    const struct sl_batch_pool_events *events;
    void *arg;
    struct slot *slots;
    size_t n_slots;
    struct sl_batch_job *jobs[SL_MAX_BATCH_JOBS];
    size_t n_jobs, turn;
    struct event *work; /* there may be free slots, and lines for them, or jobs at their end */
};

static void batch_pool_wake(struct sl_batch_pool *p)
{
    event_active(p->work, EV_TIMEOUT, 0);
}

/* What a reply counts, without a parse of texts that may be long: members come once, and a quote
 * inside a string has a backslash. */
static int64_t batch_pool_count_of(const char *reply, const char *name)
{
    const char *at = strstr(reply, name);
    int64_t x = 0;
    for (at = at != NULL ? at + strlen(name) : NULL; at != NULL && *at >= '0' && *at <= '9'; at++)
        x = x < INT32_MAX ? x * 10 + (*at - '0') : x;
    return x;
}

static void release(struct slot *s)
{
    SL_ASSERT(s->job != NULL && s->job->n_open > 0);
    s->job->n_open--;
    s->job = NULL;
    sl_batch_request_deinit(&s->req);
    batch_pool_wake(s->pool);
}

/* status 0: why says what is wrong. */
static void batch_pool_answer(struct slot *s, int status, const struct sl_error *why)
{
    struct sl_batch_job *job = s->job;
    const struct sl_batch_pool_events *events = s->pool->events;
    const char *body = s->reply.n_bytes > 0 ? s->reply.data : "null";
    if (job->rc == 0 && events->coming != NULL)
        events->coming(s->pool->arg, job, s->reply.n_bytes);
    if (job->rc != 0) {
        release(s);
        return;
    }
    int rc = sl_batch_put(job->file, s->line, s->req.custom_id, status, body, strlen(body), why,
                          &job->err);
    if (status == 200) {
        job->n_prompt += batch_pool_count_of(body, "\"prompt_tokens\":") +
                         batch_pool_count_of(body, "\"input_tokens\":");
        job->n_output += batch_pool_count_of(body, "\"completion_tokens\":") +
                         batch_pool_count_of(body, "\"output_tokens\":");
    }
    job->rc = rc != 0 ? rc : job->rc;
    release(s);
    events->answered(s->pool->arg, job);
}

static void send_request(struct slot *s)
{
    sl_buf_clear(&s->reply);
    sl_http_client_send(s->client, s->req.url, s->job->api_key, s->text.data, s->text.n_bytes);
}

static void on_retry(evutil_socket_t fd, short what, void *arg)
{
    (void)fd;
    (void)what;
    send_request(arg);
}

static void batch_pool_on_body(void *arg, const char *data, size_t n)
{
    sl_buf_put(&((struct slot *)arg)->reply, data, n);
}

static void batch_pool_on_done(void *arg, int status, const char *error)
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
    batch_pool_answer(s, sl_buf_ok(&s->reply) ? status : 0, &why);
}

static int dump(const char *data, size_t n, void *arg)
{
    sl_buf_put(arg, data, n);
    return sl_buf_ok(arg) ? 0 : -1;
}

/* A line for a free slot; one that is no request is answered at once. */
static void batch_pool_take(struct slot *s, struct sl_batch_job *job)
{
    struct sl_error why;
    s->job = job;
    s->line = job->next++;
    s->n_tries = 0;
    job->n_open++;
    sl_buf_clear(&s->text);
    sl_buf_clear(&s->reply);
    int rc = sl_batch_read(job->file, s->line, &s->req, &why);
    if (rc == 0 && (json_dump_callback(s->req.body, dump, &s->text, JSON_COMPACT) != 0 ||
                    s->text.n_bytes > SL_MAX_HTTP_BODY))
        rc = sl_fail(&why, SL_ELIMIT, "body is larger than %u bytes", SL_MAX_HTTP_BODY);
    if (rc != 0)
        batch_pool_answer(s, 0, &why);
    else
        send_request(s);
}

static bool has_line(struct sl_batch_job *job)
{
    const struct sl_batch_file *f = job->file;
    while (job->next < f->n_lines && f->lines[job->next].n_reply > 0)
        job->next++;
    return job->rc == 0 && job->next < f->n_lines;
}

/* The job whose turn it is; NULL: none has a line left. */
static struct sl_batch_job *next_job(struct sl_batch_pool *p)
{
    for (size_t i = 0; i < p->n_jobs; i++) {
        struct sl_batch_job *job = p->jobs[p->turn++ % p->n_jobs];
        if (has_line(job))
            return job;
    }
    return NULL;
}

static void end_jobs(struct sl_batch_pool *p)
{
    for (size_t i = 0; i < p->n_jobs;) {
        struct sl_batch_job *job = p->jobs[i];
        if (job->rc == 0 && (job->file->n_done < job->file->n_lines || job->n_open > 0)) {
            i++;
            continue;
        }
        sl_batch_pool_remove(p, job);
        p->events->ended(p->arg, job);
    }
}

static void on_work(evutil_socket_t fd, short what, void *arg)
{
    struct sl_batch_pool *p = arg;
    struct sl_batch_job *job;
    (void)fd;
    (void)what;
    for (size_t i = 0; i < p->n_slots; i++) {
        while (p->slots[i].job == NULL && (job = next_job(p)) != NULL)
            batch_pool_take(&p->slots[i], job);
    }
    end_jobs(p);
}

void sl_batch_pool_add(struct sl_batch_pool *p, struct sl_batch_job *job)
{
    SL_ASSERT(p->n_jobs < SL_MAX_BATCH_JOBS);
    job->next = job->n_open = 0;
    p->jobs[p->n_jobs++] = job;
    batch_pool_wake(p);
}

void sl_batch_pool_remove(struct sl_batch_pool *p, struct sl_batch_job *job)
{
    for (size_t i = 0; i < p->n_slots; i++) {
        struct slot *s = &p->slots[i];
        if (s->job != job)
            continue;
        event_del(s->retry);
        sl_http_client_abort(s->client);
        release(s);
    }
    for (size_t i = 0; i < p->n_jobs; i++) {
        if (p->jobs[i] == job)
            p->jobs[i--] = p->jobs[--p->n_jobs];
    }
    SL_ASSERT(job->n_open == 0);
}

size_t sl_batch_pool_n(const struct sl_batch_pool *p)
{
    return p->n_jobs;
}

static int make_slot(struct sl_batch_pool *p, struct event_base *base,
                     const struct sl_http_url *url, struct sl_error *err)
{
    static const struct sl_http_client_events events = {batch_pool_on_body, batch_pool_on_done};
    struct slot *s = &p->slots[p->n_slots];
    s->pool = p;
    s->retry = evtimer_new(base, on_retry, s);
    if (s->retry == NULL)
        return sl_fail(err, SL_ENOMEM, "out of memory");
    int rc = sl_http_client_create(base, url, &events, s, &s->client, err);
    if (rc != 0)
        event_free(s->retry);
    else
        p->n_slots++;
    return rc;
}

int sl_batch_pool_create(struct event_base *base, const struct sl_http_url *url, size_t n_slots,
                         const struct sl_batch_pool_events *events, void *arg,
                         struct sl_batch_pool **out, struct sl_error *err)
{
    struct sl_batch_pool *p = sl_calloc(1, sizeof *p);
    if (p == NULL)
        return sl_fail(err, SL_ENOMEM, "out of memory");
    p->events = events;
    p->arg = arg;
    p->slots = sl_calloc(n_slots, sizeof *p->slots);
    p->work = evtimer_new(base, on_work, p);
    int rc = p->slots == NULL || p->work == NULL ? sl_fail(err, SL_ENOMEM, "out of memory") : 0;
    while (rc == 0 && p->n_slots < n_slots)
        rc = make_slot(p, base, url, err);
    if (rc != 0)
        sl_batch_pool_destroy(p);
    else
        *out = p;
    return rc;
}

void sl_batch_pool_destroy(struct sl_batch_pool *p)
{
    if (p == NULL)
        return;
    for (size_t i = 0; i < p->n_slots; i++) {
        struct slot *s = &p->slots[i];
        sl_http_client_destroy(s->client);
        event_free(s->retry);
        sl_batch_request_deinit(&s->req);
        sl_buf_deinit(&s->text);
        sl_buf_deinit(&s->reply);
    }
    if (p->work != NULL)
        event_free(p->work);
    sl_free(p->slots);
    sl_free(p);
}
