/* SPDX-License-Identifier: MIT */
#include "server/activity.h"

#include "base/check.h"
#include "base/log.h"
#include "base/sys.h"

#include "sluice.h"

struct seen { /* of a model, when its last line was due */
    uint64_t prompt_tokens, generation_tokens, prefix_queries, prefix_hits, steps;
};

struct sl_activity {
    const struct sl_server *server;
    struct event *timer;
    uint64_t last_ns;
    struct seen *seen; /* [n_models] */
};

static struct seen seen_of(const struct sl_stats *st)
{
    return (struct seen){.prompt_tokens = st->prompt_tokens,
                         .generation_tokens = st->generation_tokens,
                         .prefix_queries = st->prefix_queries,
                         .prefix_hits = st->prefix_hits,
                         .steps = st->steps};
}

static double percent(double part, double whole)
{
    return whole > 0 ? 100 * part / whole : 0;
}

static void log_model(const struct sl_activity *a, int32_t i, double seconds)
{
    const struct sl_server *s = a->server;
    struct seen *last = &a->seen[i];
    struct sl_stats st;
    sl_engine_stats(s->models[i].eng, &st);
    const struct seen now = seen_of(&st), was = *last;
    *last = now;
    if (now.steps == was.steps && st.n_running == 0 && st.n_waiting == 0)
        return;
    const double prompt = (double)(now.prompt_tokens - was.prompt_tokens) / seconds;
    const double generation = (double)(now.generation_tokens - was.generation_tokens) / seconds;
    sl_log(SL_LOG_INFO,
           "%s%sAvg prompt throughput: %.1f tokens/s, Avg generation throughput: %.1f tokens/s, "
           "Running: %d reqs, Waiting: %d reqs, KV cache usage: %.1f%%, "
           "Prefix cache hit rate: %.1f%%",
           s->n_models > 1 ? s->models[i].label : "", s->n_models > 1 ? ": " : "", prompt,
           generation, st.n_running, st.n_waiting,
           percent(st.n_pages - st.n_pages_free - st.n_pages_cached, st.n_pages),
           percent((double)(now.prefix_hits - was.prefix_hits),
                   (double)(now.prefix_queries - was.prefix_queries)));
}

static void activity_on_timer(evutil_socket_t fd, short what, void *arg)
{
    struct sl_activity *a = arg;
    const uint64_t now = sl_now_ns();
    const double seconds = (double)(now - a->last_ns) * 1e-9;
    (void)fd;
    (void)what;
    a->last_ns = now;
    for (int32_t i = 0; i < a->server->n_models && seconds > 0; i++)
        log_model(a, i, seconds);
}

int sl_activity_start(const struct sl_server *s, struct event_base *base, int32_t interval_s,
                      struct sl_activity **out, struct sl_error *err)
{
    const struct timeval interval = {interval_s, 0};
    struct sl_activity *a = sl_calloc(1, sizeof *a);
    SL_ASSERT(interval_s > 0);
    *out = a;
    if (a == NULL)
        return sl_fail(err, SL_ENOMEM, "out of memory for the log of throughput");
    a->server = s;
    a->last_ns = sl_now_ns();
    a->seen = sl_calloc((size_t)s->n_models, sizeof *a->seen);
    a->timer = event_new(base, -1, EV_TIMEOUT | EV_PERSIST, activity_on_timer, a);
    if (a->seen != NULL && a->timer != NULL && event_add(a->timer, &interval) == 0)
        return 0;
    sl_activity_stop(a);
    *out = NULL;
    return sl_fail(err, SL_ENOMEM, "out of memory for the log of throughput");
}

void sl_activity_stop(struct sl_activity *a)
{
    if (a == NULL)
        return;
    if (a->timer != NULL)
        event_free(a->timer);
    sl_free(a->seen);
    sl_free(a);
}
