/* SPDX-License-Identifier: MIT
 * history.c - figures are taken over the last ten seconds: a sample keeps a copy of the counters,
 * and a point is what they counted since the sample of ten seconds before.
 */
#include "server/page/history.h"

#include "base/check.h"
#include "base/sys.h"
#include "server/http/sse.h"
#include "server/page/process.h"

#include "sluice.h"

#include <math.h>

#define INTERVAL_S 1
#define WINDOW_S   10
#define N_POINTS   3600 /* one hour */
#define N_RECENT   120  /* of them are told one by one, of older ones each tenth */
#define N_SAMPLES  (WINDOW_S / INTERVAL_S + 1)

struct sample {
    uint64_t t_ns;
    double cpu_s; /* of the process */
    struct sl_stats st;
};

enum { /* of a point; times in us are -1 where nothing was counted */
       AT_MS,
       WINDOW_MS,
       RUNNING,
       WAITING,
       GENERATED, /* tokens in the window, as the next two */
       PROMPT,
       CACHED,
       TTFT_MEAN_US,
       TTFT_P95_US,
       ITL_MEAN_US,
       ITL_P95_US,
       N_VALUES
};

static const char *const names[N_VALUES] = {"at_ms",         "window_ms",         "running",
                                            "waiting",       "generation_tokens", "prompt_tokens",
                                            "cached_tokens", "ttft_mean_us",      "ttft_p95_us",
                                            "itl_mean_us",   "itl_p95_us"};

struct point {
    int64_t values[N_VALUES];
};

struct model {
    struct sample samples[N_SAMPLES]; /* number i lies at i % N_SAMPLES */
    struct point points[N_POINTS];
    uint64_t n_samples, n_points; /* that there have been; the numbers of points begin with 1 */
};

struct sl_history {
    const struct sl_server *server;
    struct event *timer;
    pthread_mutex_t lock;
    struct model *models; /* [server->n_models], with the lock */
};

/* The newest sample, and the one that figures are counted from: itself at the very start. */
static const struct sample *window(const struct model *m, const struct sample **from)
{
    const struct sample *last = &m->samples[(m->n_samples - 1) % N_SAMPLES];
    uint64_t i = m->n_samples > N_SAMPLES ? m->n_samples - N_SAMPLES : 0;
    while (last->t_ns - m->samples[i % N_SAMPLES].t_ns >
           (WINDOW_S * 1000 + 500) * UINT64_C(1000000))
        i++;
    *from = &m->samples[i % N_SAMPLES];
    return last;
}

static uint64_t history_count_of(const struct sl_hist *h)
{
    uint64_t n = 0;
    for (size_t i = 0; i < SL_COUNT(h->counts); i++)
        n += h->counts[i];
    return n;
}

static double mean(const struct sl_hist *a, const struct sl_hist *b)
{
    uint64_t n = history_count_of(b) - history_count_of(a);
    return n > 0 ? (b->sum - a->sum) / (double)n : NAN;
}

static int64_t us(double seconds)
{
    return isfinite(seconds) ? (int64_t)llround(seconds * 1e6) : -1;
}

static void add_point(struct model *m)
{
    const struct sample *from, *to = window(m, &from);
    const struct sl_stats *a = &from->st, *b = &to->st;
    struct point *p = &m->points[m->n_points++ % N_POINTS];
    p->values[AT_MS] = (int64_t)(to->t_ns / 1000000);
    p->values[WINDOW_MS] = (int64_t)((to->t_ns - from->t_ns) / 1000000);
    p->values[RUNNING] = b->n_running;
    p->values[WAITING] = b->n_waiting;
    p->values[GENERATED] = (int64_t)(b->generation_tokens - a->generation_tokens);
    p->values[PROMPT] = (int64_t)(b->prompt_tokens - a->prompt_tokens);
    p->values[CACHED] = (int64_t)(b->prompt_tokens_cached - a->prompt_tokens_cached);
    p->values[TTFT_MEAN_US] = us(mean(&a->ttft_s, &b->ttft_s));
    p->values[TTFT_P95_US] = us(sl_fine_quantile(&a->ttft_fine, &b->ttft_fine, .95));
    p->values[ITL_MEAN_US] = us(mean(&a->itl_s, &b->itl_s));
    p->values[ITL_P95_US] = us(sl_fine_quantile(&a->itl_fine, &b->itl_fine, .95));
}

static void take_samples(struct sl_history *h)
{
    struct sl_process process;
    sl_process_read(&process);
    pthread_mutex_lock(&h->lock);
    for (int32_t i = 0; i < h->server->n_models; i++) {
        struct model *m = &h->models[i];
        struct sample *s = &m->samples[m->n_samples++ % N_SAMPLES];
        s->t_ns = sl_now_ns();
        s->cpu_s = process.cpu_s;
        sl_engine_stats(h->server->models[i].eng, &s->st);
        if (m->n_samples > 1)
            add_point(m);
    }
    pthread_mutex_unlock(&h->lock);
}

static void history_on_timer(evutil_socket_t fd, short what, void *arg)
{
    (void)fd;
    (void)what;
    take_samples(arg);
}

int sl_history_start(const struct sl_server *s, struct event_base *base, struct sl_history **out,
                     struct sl_error *err)
{
    const struct timeval interval = {INTERVAL_S, 0};
    struct sl_history *h = sl_calloc(1, sizeof *h);
    *out = h;
    if (h == NULL)
        return sl_fail(err, SL_ENOMEM, "out of memory for the page's history");
    h->server = s;
    pthread_mutex_init(&h->lock, NULL);
    h->models = sl_calloc((size_t)s->n_models, sizeof *h->models);
    h->timer = event_new(base, -1, EV_TIMEOUT | EV_PERSIST, history_on_timer, h);
    if (h->models != NULL && h->timer != NULL && event_add(h->timer, &interval) == 0) {
        take_samples(h);
        return 0;
    }
    sl_history_stop(h);
    *out = NULL;
    return sl_fail(err, SL_ENOMEM, "out of memory for the page's history");
}

void sl_history_stop(struct sl_history *h)
{
    if (h == NULL)
        return;
    if (h->timer != NULL)
        event_free(h->timer);
    pthread_mutex_destroy(&h->lock);
    sl_free(h->models);
    sl_free(h);
}

/* ---- as JSON */

static void history_put_latency(struct sl_buf *b, const char *name, const struct sl_hist *a,
                                const struct sl_hist *z, const struct sl_fine_hist *fine_a,
                                const struct sl_fine_hist *fine_z)
{
    sl_buf_puts(b, name);
    SL_PUT(b, "{\"count\":");
    sl_put_u64(b, history_count_of(z) - history_count_of(a));
    SL_PUT(b, ",\"mean\":");
    sl_buf_json_double(b, mean(a, z));
    static const struct {
        const char *name;
        double q;
    } quantiles[] = {{",\"p50\":", .5}, {",\"p95\":", .95}, {",\"p99\":", .99}};
    for (size_t i = 0; fine_a != NULL && i < SL_COUNT(quantiles); i++) {
        sl_buf_puts(b, quantiles[i].name);
        sl_buf_json_double(b, sl_fine_quantile(fine_a, fine_z, quantiles[i].q));
    }
    sl_buf_putc(b, '}');
}

/* What the point does not have, of the same samples. */
static void put_window(struct sl_buf *b, const struct model *m)
{
    static const char *const parts[] = {"host", "device", "sample", "output", "masks"};
    _Static_assert(SL_COUNT(parts) == SL_N_PARTS, "every part has a name");
    const struct sample *from, *to = window(m, &from);
    const struct sl_stats *a = &from->st, *z = &to->st;
    SL_PUT(b, "\"window\":{\"seconds\":");
    sl_buf_json_double(b, (double)(to->t_ns - from->t_ns) * 1e-9);
    SL_PUT(b, ",\"steps\":");
    sl_put_u64(b, z->steps - a->steps);
    SL_PUT(b, ",\"cpu_s\":");
    sl_buf_json_double(b, to->cpu_s - from->cpu_s);
    SL_PUT(b, ",\"device_busy_s\":");
    sl_buf_json_double(b, z->device_busy_s - a->device_busy_s);
    SL_PUT(b, ",\"device_gap_s\":");
    sl_buf_json_double(b, z->device_gap_s - a->device_gap_s);
    history_put_latency(b, ",\"ttft\":", &a->ttft_s, &z->ttft_s, &a->ttft_fine, &z->ttft_fine);
    history_put_latency(b, ",\"itl\":", &a->itl_s, &z->itl_s, &a->itl_fine, &z->itl_fine);
    history_put_latency(b, ",\"queue\":", &a->queue_s, &z->queue_s, NULL, NULL);
    for (size_t i = 0; i < SL_COUNT(parts); i++) {
        sl_buf_puts(b, i == 0 ? ",\"step_s\":{\"" : ",\"");
        sl_buf_puts(b, parts[i]);
        SL_PUT(b, "\":");
        sl_buf_json_double(b, (double)(z->part_ns[i] - a->part_ns[i]) * 1e-9);
    }
    SL_PUT(b, "}}");
}

void sl_history_put(struct sl_history *h, int32_t model, uint64_t since, struct sl_buf *b)
{
    SL_ASSERT(model >= 0 && model < h->server->n_models);
    pthread_mutex_lock(&h->lock);
    const struct model *m = &h->models[model];
    const uint64_t last = m->n_points;
    uint64_t i = last > N_POINTS ? last - N_POINTS + 1 : 1;
    if (since <= last)
        i = SL_MAX(i, since + 1);
    put_window(b, m);
    SL_PUT(b, ",\"history\":{\"last\":");
    sl_put_u64(b, last);
    SL_PUT(b, ",\"recent\":");
    sl_put_u64(b, N_RECENT);
    SL_PUT(b, ",\"names\":[\"number");
    for (size_t k = 0; k < N_VALUES; k++) {
        SL_PUT(b, "\",\"");
        sl_buf_puts(b, names[k]);
    }
    SL_PUT(b, "\"],\"points\":[");
    for (bool first = true; i <= last; i++) {
        if (i + N_RECENT <= last && i % WINDOW_S != 0)
            continue;
        const struct point *p = &m->points[(i - 1) % N_POINTS];
        sl_buf_puts(b, first ? "[" : ",[");
        sl_put_u64(b, i);
        for (size_t k = 0; k < N_VALUES; k++) {
            sl_buf_putc(b, ',');
            sl_put_i64(b, p->values[k]);
        }
        sl_buf_putc(b, ']');
        first = false;
    }
    SL_PUT(b, "]}");
    pthread_mutex_unlock(&h->lock);
}
