/* SPDX-License-Identifier: MIT
 * top.c - `sluice top [URL]`: what a server does right now, from two looks at its /metrics.
 */
#include "base/check.h"
#include "base/sys.h"
#include "cmd/ask.h"
#include "cmd/common.h"
#include "cmd/running.h"
#include "cmd/scrape.h"

#include <math.h>
#include <poll.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#define ASK_MS 5000
#define TAIL   0.99

struct top_options {
    float interval_s;
    bool once;
    const char *api_key;
};

#define TOP(field) offsetof(struct top_options, field)

static const struct sl_flag top_flags[] = {
    {SL_FLAG_FLOAT, 'i', "interval", NULL, TOP(interval_s), 0.1, 3600, "S",
     "seconds between updates (default: 1)"},
    {SL_FLAG_SWITCH, '1', "once", NULL, TOP(once), 0, 0, NULL, "print one interval and end"},
    {SL_FLAG_STR, 0, "api-key", NULL, TOP(api_key), 0, 0, "KEY",
     "sent as bearer key; sluice's /metrics needs none"},
};

struct look {
    struct sl_scrape scrape;
    uint64_t at_ns;
};

static int top_take(const char *url, const struct top_options *opt, struct look *out,
                    struct sl_error *err)
{
    struct sl_buf body = {0};
    int status = 0;
    const struct sl_cli_ask ask = {
        .url = url, .path = "/metrics", .api_key = opt->api_key, .timeout_ms = ASK_MS};
    int rc = sl_cli_ask(&ask, &status, &body, err);
    out->at_ns = sl_now_ns();
    if (rc == 0 && status == 503 && body.data != NULL && strstr(body.data, "Loading") != NULL)
        rc = sl_fail(err, SL_EBUSY, "%.120s: the model is being loaded", url);
    else if (rc == 0 && status != 200)
        rc =
            sl_fail(err, SL_EIO, "%.120s/metrics: the server answered with status %d", url, status);
    if (rc == 0) {
        sl_scrape_read(&out->scrape, body.data != NULL ? body.data : "");
        if (out->scrape.n == 0)
            rc = sl_fail(err, SL_EFORMAT, "%.120s/metrics: no metrics of sluice or vLLM", url);
    }
    sl_buf_deinit(&body);
    return rc;
}

static const struct sl_scrape_model *top_find(const struct sl_scrape *s, const char *name)
{
    static const struct sl_scrape_model none;
    for (int i = 0; i < s->n; i++) {
        if (strcmp(s->models[i].name, name) == 0)
            return &s->models[i];
    }
    return &none;
}

static void print_head(void)
{
    printf("%-18s %4s %5s %6s %9s %9s %6s %5s  %-14s %s\n", "MODEL", "RUN", "WAIT", "KV",
           "OUT tok/s", "IN tok/s", "CACHED", "REQ/s", "TTFT ms (p99)", "ITL ms (p99)");
}

static void put_times(char out[32], const struct sl_scrape_times *before,
                      const struct sl_scrape_times *now)
{
    double mean, tail;
    if (!sl_scrape_between(before, now, TAIL, &mean, &tail))
        snprintf(out, 32, "-");
    else if (isfinite(tail))
        snprintf(out, 32, "%.*f (<=%.4g)", mean < 0.1 ? 1 : 0, mean * 1e3, tail * 1e3);
    else
        snprintf(out, 32, "%.0f (?)", mean * 1e3); /* above all buckets */
}

static void print_rows(const struct look *before, const struct look *now)
{
    double s = SL_MAX((double)(now->at_ns - before->at_ns) * 1e-9, 1e-3);
    for (int i = 0; i < now->scrape.n; i++) {
        const struct sl_scrape_model *m = &now->scrape.models[i];
        const struct sl_scrape_model *old = top_find(&before->scrape, m->name);
        char ttft[32], itl[32], cached[16] = "-";
        double in = SL_MAX(m->prompt_tokens - old->prompt_tokens, 0.0);
        double hits = SL_MAX(m->cached_tokens - old->cached_tokens, 0.0);
        put_times(ttft, &old->ttft, &m->ttft);
        put_times(itl, &old->itl, &m->itl);
        if (in > 0)
            snprintf(cached, sizeof cached, "%.0f%%", SL_MIN(100 * hits / in, 100.0));
        printf("%-18.18s %4.0f %5.0f %5.1f%% %9.1f %9.1f %6s %5.1f  %-14s %s\n", m->name,
               m->running, m->waiting, 100 * m->kv_use,
               SL_MAX(m->output_tokens - old->output_tokens, 0.0) / s, in / s, cached,
               SL_MAX(m->requests - old->requests, 0.0) / s, ttft, itl);
    }
    fflush(stdout);
}

static int watch(const char *url, const struct top_options *opt, struct sl_error *err)
{
    static struct look looks[2]; /* large */
    bool tty = isatty(STDOUT_FILENO) == 1 && !opt->once;
    int rc = top_take(url, opt, &looks[0], err);
    if (rc == 0 && !tty)
        print_head();
    for (int turn = 1; rc == 0; turn++) {
        struct look *before = &looks[(turn - 1) & 1], *now = &looks[turn & 1];
        (void)poll(NULL, 0, (int)(opt->interval_s * 1000)); /* Ctrl-C ends it */
        if (sl_cli_interrupted())
            break;
        rc = top_take(url, opt, now, err);
        if (rc != 0)
            break;
        if (tty) {
            printf("\x1b[H\x1b[Jsluice top %s, every %.3g s; Ctrl-C ends\n\n", url,
                   (double)opt->interval_s);
            print_head();
        }
        print_rows(before, now);
        if (opt->once)
            break;
    }
    return rc;
}

static int top_main(int argc, char **argv)
{
    struct top_options opt = {.interval_s = 1};
    struct sl_error err = {0};
    struct sl_flag_group groups[] = {{top_flags, (int)SL_COUNT(top_flags), &opt, 0}};
    struct sl_running only;
    const char *url = NULL;
    int n_positional;
    int rc = sl_flags_parse(&sl_cmd_top, groups, 1, argc, argv, &url, 1, &n_positional, &err);
    if (rc == SL_FLAGS_HELP)
        return SL_EXIT_OK;
    if (rc == 0 && (url == NULL || strstr(url, ":") == NULL)) { /* none, a process id or a port */
        rc = sl_running_pick(url, &only, &err);
        url = only.url;
    }
    sl_cli_catch_interrupt();
    if (rc == 0)
        rc = watch(url, &opt, &err);
    return rc == 0 ? SL_EXIT_OK : sl_command_fail(&sl_cmd_top, &err);
}

const struct sl_command sl_cmd_top = {
    .name = "top",
    .usage = "[URL | PORT | PID] [FLAGS]",
    .summary = "show the live load of a server",
    .examples = "  sluice top                              the only server of this machine\n"
                "  sluice top http://10.0.0.5:8000         another machine's, vLLM's too\n"
                "  sluice top --once                       one line per model, for scripts\n",
    .details = "RUN and WAIT: requests running and waiting. KV: share of the KV cache in use. "
               "CACHED: share\n"
               "of prompt tokens found in it. TTFT (time to first token) and ITL (time between two "
               "tokens):\n"
               "mean of the interval, and the upper bound of the histogram bucket of the 99th "
               "percentile.\n",
    .run = top_main,
};
