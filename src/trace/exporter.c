/* SPDX-License-Identifier: MIT */
#include "trace/exporter.h"

#include "base/check.h"
#include "base/log.h"
#include "base/rng.h"
#include "base/sys.h"
#include "sluice.h"
#include "trace/post.h"

#include <errno.h>
#include <stdatomic.h>
#include <string.h>
#include <sys/eventfd.h>
#include <time.h>

#define MAX_QUEUED_BYTES (16u << 20)
#define MAX_BATCH_BYTES  (4u << 20) /* collectors take 20 MB unless told otherwise */
#define MS               UINT64_C(1000000)
#define FIRST_WAIT_NS    (1000 * MS)
#define MAX_WAIT_NS      (16000 * MS)
#define TRIES_FOR_NS     (60000 * MS) /* then a batch is given up */

struct item { /* the spans of one request */
    char *json;
    size_t n_bytes;
    int32_t n_spans;
};

struct sl_exporter {
    const struct sl_trace_settings *settings;
    struct sl_post *post; /* its thread's */
    pthread_mutex_t lock;
    pthread_cond_t cond;
    struct item *items; /* lock: a ring of max_queue */
    size_t head, n_items, n_bytes;
    int32_t n_spans;
    uint64_t oldest_ns; /* when the queue became not empty */
    bool stopping;
    _Atomic uint64_t deadline_ns; /* of the end; UINT64_MAX: there is none yet */
    int wake_fd;                  /* readable from the stop on */
    struct sl_rng rng;
    pthread_t thread;
    bool started, failing; /* failing: the last batch could not be sent, and the log says so */
    _Atomic uint64_t n_exported, n_rejected, n_dropped, n_failed, n_attempts;
};

/* ---- the queue */

void sl_exporter_add(struct sl_exporter *x, struct sl_buf *spans, int n_spans)
{
    size_t n;
    SL_ASSERT(n_spans > 0);
    char *json = sl_buf_steal(spans, &n);
    pthread_mutex_lock(&x->lock);
    /* The spans of one request go together, so that a queue of 1 has room for one request. */
    bool room = x->n_items == 0 || x->n_spans + n_spans <= x->settings->max_queue;
    bool fits = json != NULL && !x->stopping && room && x->n_bytes + n <= MAX_QUEUED_BYTES;
    if (fits) {
        if (x->n_items == 0)
            x->oldest_ns = sl_now_ns();
        SL_ASSERT(x->n_items < (size_t)x->settings->max_queue); /* each has a span at least */
        size_t at = (x->head + x->n_items) % (size_t)x->settings->max_queue;
        x->items[at] = (struct item){json, n, n_spans};
        x->n_items++;
        x->n_bytes += n;
        int32_t before = x->n_spans;
        x->n_spans += n_spans;
        /* The thread sleeps until the first is old enough, or they are a batch. */
        if (before == 0 ||
            (before < x->settings->max_batch && x->n_spans >= x->settings->max_batch))
            pthread_cond_signal(&x->cond);
    }
    pthread_mutex_unlock(&x->lock);
    if (fits)
        return;
    sl_free(json);
    atomic_fetch_add(&x->n_dropped, (uint64_t)n_spans);
}

/* Until a time, or a signal. With the lock. */
static void wait_until(struct sl_exporter *x, uint64_t until_ns)
{
    struct timespec ts = {(time_t)(until_ns / 1000000000u), (long)(until_ns % 1000000000u)};
    pthread_cond_timedwait(&x->cond, &x->lock, &ts);
}

/* Sleeps until there is something to send. Moves it to body; the number of spans, 0: the end. */
static int32_t take_batch(struct sl_exporter *x, struct sl_buf *body)
{
    const struct sl_trace_settings *s = x->settings;
    int32_t n = 0;
    pthread_mutex_lock(&x->lock);
    while (!x->stopping && x->n_spans < s->max_batch) {
        uint64_t due = x->oldest_ns + (uint64_t)s->delay_ms * MS;
        if (x->n_items == 0)
            pthread_cond_wait(&x->cond, &x->lock);
        else if (sl_now_ns() < due)
            wait_until(x, due);
        else
            break;
    }
    while (x->n_items > 0) {
        struct item *it = &x->items[x->head];
        if (n > 0 &&
            (n + it->n_spans > s->max_batch || body->n_bytes + it->n_bytes > MAX_BATCH_BYTES))
            break;
        if (n > 0)
            sl_buf_putc(body, ',');
        sl_buf_put(body, it->json, it->n_bytes);
        n += it->n_spans;
        x->n_spans -= it->n_spans;
        x->n_bytes -= it->n_bytes;
        sl_free(it->json);
        x->head = (x->head + 1) % (size_t)s->max_queue;
        x->n_items--;
    }
    SL_ASSERT((x->n_items == 0) == (x->n_spans == 0) && x->n_spans >= 0);
    pthread_mutex_unlock(&x->lock);
    return n;
}

/* ---- sending */

static uint64_t deadline(void *arg)
{
    struct sl_exporter *x = arg;
    return atomic_load(&x->deadline_ns);
}

/* The time of the next attempt, 0: none. A collector that says when is taken at its word; else the
 * distances grow, and no two servers keep in step. */
static uint64_t next_attempt(struct sl_exporter *x, int n_tried, uint64_t t0_ns,
                             const struct sl_post_reply *reply)
{
    uint64_t now = sl_now_ns(), wait = FIRST_WAIT_NS;
    for (int i = 1; i < n_tried && wait < MAX_WAIT_NS; i++)
        wait *= 2;
    wait = wait / 2 + sl_rng_below(&x->rng, wait / 2 + 1);
    if (reply->retry_after_s > 0)
        wait = (uint64_t)reply->retry_after_s * 1000 * MS;
    uint64_t at = now + wait;
    return at < t0_ns + TRIES_FOR_NS && at < deadline(x) ? at : 0;
}

static void exporter_tell(struct sl_exporter *x, bool failing, int32_t n, const char *why)
{
    if (failing && !x->failing)
        sl_log(SL_LOG_WARN, "traces: %d spans are lost, %s: %s (the next loss is only counted)", n,
               x->settings->endpoint, why);
    else if (!failing && x->failing)
        sl_log(SL_LOG_INFO, "traces: %s accepts spans again", x->settings->endpoint);
    x->failing = failing;
}

static void deliver(struct sl_exporter *x, const struct sl_buf *body, int32_t n)
{
    struct sl_post_reply reply = {0};
    uint64_t t0 = sl_now_ns();
    enum sl_post_end end = SL_POST_REFUSED;
    for (int n_tried = 1; sl_buf_ok(body); n_tried++) {
        atomic_fetch_add(&x->n_attempts, 1);
        end = sl_post_send(x->post, body->data, body->n_bytes, x->wake_fd, deadline, x, &reply);
        uint64_t at = end == SL_POST_RETRY ? next_attempt(x, n_tried, t0, &reply) : 0;
        if (at == 0)
            break;
        pthread_mutex_lock(&x->lock);
        bool was_stopping = x->stopping; /* a stop is a reason to try at once */
        while (sl_now_ns() < at && x->stopping == was_stopping)
            wait_until(x, at);
        pthread_mutex_unlock(&x->lock);
    }
    exporter_tell(x, end != SL_POST_DONE, n, sl_buf_ok(body) ? reply.why : "out of memory");
    if (end != SL_POST_DONE) {
        atomic_fetch_add(&x->n_failed, (uint64_t)n);
        return;
    }
    uint64_t rejected = SL_MIN((uint64_t)reply.n_rejected, (uint64_t)n);
    atomic_fetch_add(&x->n_rejected, rejected);
    atomic_fetch_add(&x->n_exported, (uint64_t)n - rejected);
    if (reply.why[0] != '\0')
        sl_log(SL_LOG_DEBUG, "traces: the collector says: %s", reply.why);
}

static void *exporter_main(void *arg)
{
    struct sl_exporter *x = arg;
    for (;;) {
        struct sl_buf body = {0};
        sl_buf_puts(&body, "{\"resourceSpans\":[{\"resource\":{\"attributes\":[");
        sl_buf_put(&body, x->settings->resource.data, x->settings->resource.n_bytes);
        sl_buf_puts(
            &body,
            "]},\"scopeSpans\":[{\"scope\":{\"name\":\"sluice\",\"version\":\"" SLUICE_VERSION
            "\"},\"spans\":[");
        int32_t n = take_batch(x, &body);
        sl_buf_puts(&body, "]}]}]}");
        if (n > 0)
            deliver(x, &body, n);
        sl_buf_deinit(&body);
        if (n == 0 || sl_now_ns() >= deadline(x))
            return NULL;
    }
}

/* ---- start and end */

static int init_cond(struct sl_exporter *x, struct sl_error *err)
{
    pthread_condattr_t attr;
    pthread_condattr_init(&attr);
    pthread_condattr_setclock(&attr, CLOCK_MONOTONIC);
    int rc = pthread_cond_init(&x->cond, &attr);
    pthread_condattr_destroy(&attr);
    return rc == 0 ? 0 : sl_fail(err, SL_ENOMEM, "out of memory");
}

int sl_exporter_start(const struct sl_trace_settings *settings, struct sl_exporter **out,
                      struct sl_error *err)
{
    struct sl_exporter *x = sl_calloc(1, sizeof *x);
    *out = NULL;
    if (x == NULL)
        return sl_fail(err, SL_ENOMEM, "out of memory");
    x->settings = settings;
    atomic_store(&x->deadline_ns, UINT64_MAX);
    pthread_mutex_init(&x->lock, NULL);
    int rc = init_cond(x, err);
    if (rc != 0) {
        pthread_mutex_destroy(&x->lock);
        sl_free(x);
        return rc;
    }
    x->wake_fd = eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC);
    if (x->wake_fd < 0)
        rc = sl_fail(err, SL_EIO, "eventfd: %s", strerror(errno));
    x->items = sl_calloc((size_t)settings->max_queue, sizeof *x->items);
    if (rc == 0 && x->items == NULL)
        rc = sl_fail(err, SL_ENOMEM, "out of memory");
    if (rc == 0)
        rc = sl_random(&x->rng.seed, sizeof x->rng.seed, err);
    if (rc == 0)
        rc = sl_post_create(settings, &x->post, err);
    if (rc == 0)
        rc = sl_thread_create(&x->thread, exporter_main, x, "sl-traces", err);
    x->started = rc == 0;
    if (rc != 0) {
        sl_exporter_stop(x);
        return rc;
    }
    sl_log(SL_LOG_INFO, "traces: to %s", settings->endpoint);
    *out = x;
    return 0;
}

void sl_exporter_stop(struct sl_exporter *x)
{
    if (x == NULL)
        return;
    if (x->started) {
        uint64_t one = 1;
        atomic_store(&x->deadline_ns, sl_now_ns() + (uint64_t)x->settings->flush_ms * MS);
        pthread_mutex_lock(&x->lock);
        x->stopping = true;
        pthread_cond_signal(&x->cond);
        pthread_mutex_unlock(&x->lock);
        ssize_t n = sl_sys->write(x->wake_fd, &one, sizeof one);
        (void)n; /* an eventfd that nobody wrote before takes it */
        pthread_join(x->thread, NULL);
        if (x->n_spans > 0)
            sl_log(SL_LOG_WARN, "traces: %d spans could not be sent in %d ms", x->n_spans,
                   x->settings->flush_ms);
    }
    for (; x->n_items > 0; x->n_items--, x->head++)
        sl_free(x->items[x->head % (size_t)x->settings->max_queue].json);
    sl_post_destroy(x->post);
    sl_free(x->items);
    if (x->wake_fd >= 0)
        sl_sys->close(x->wake_fd);
    pthread_cond_destroy(&x->cond);
    pthread_mutex_destroy(&x->lock);
    sl_free(x);
}

void sl_exporter_stats(struct sl_exporter *x, struct sl_exporter_stats *out)
{
    pthread_mutex_lock(&x->lock);
    int32_t n_queued = x->n_spans;
    pthread_mutex_unlock(&x->lock);
    *out = (struct sl_exporter_stats){
        .n_exported = atomic_load(&x->n_exported),
        .n_rejected = atomic_load(&x->n_rejected),
        .n_dropped = atomic_load(&x->n_dropped),
        .n_failed = atomic_load(&x->n_failed),
        .n_attempts = atomic_load(&x->n_attempts),
        .n_queued = n_queued,
    };
}
