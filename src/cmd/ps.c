/* SPDX-License-Identifier: MIT
 * ps.c - `sluice ps` and `sluice stop`: the servers of this machine.
 */
#include "base/check.h"
#include "base/str.h"
#include "base/sys.h"
#include "cmd/ask.h"
#include "cmd/flags.h"
#include "cmd/running.h"
#include "cmd/scrape.h"

#include <errno.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>

#define MAX_SERVERS 64
#define ASK_MS      1000

/* ---- ps */

struct ps_options {
    bool json;
};

static const struct sl_flag ps_flags[] = {
    {SL_FLAG_SWITCH, 0, "json", NULL, offsetof(struct ps_options, json), 0, 0, NULL,
     "print one JSON object per server"},
};

struct state {
    char status[24], models[200];
    double running, waiting;
};

static bool ps_get(const struct sl_running *r, const char *path, int *status, struct sl_buf *body)
{
    const struct sl_cli_ask ask = {.url = r->url, .path = path, .timeout_ms = ASK_MS};
    struct sl_error ignored;
    return sl_cli_ask(&ask, status, body, &ignored) == 0;
}

static void ask_state(const struct sl_running *r, struct state *st)
{
    static struct sl_scrape scrape; /* large */
    struct sl_buf body = {0};
    int status = 0;
    *st = (struct state){.status = "no answer"};
    if (r->url[0] != '\0' && ps_get(r, "/health", &status, &body)) {
        bool loading = body.data != NULL && strstr(body.data, "Loading") != NULL;
        bool draining = body.data != NULL && strstr(body.data, "draining") != NULL;
        snprintf(st->status, sizeof st->status, "%s",
                 status == 200 ? "ready"
                 : loading     ? "loading"
                 : draining    ? "draining"
                               : "failed");
    }
    if (status != 0 && ps_get(r, "/metrics", &status, &body) && status == 200 &&
        body.data != NULL) {
        sl_scrape_read(&scrape, body.data);
        for (int i = 0; i < scrape.n; i++) {
            size_t at = strlen(st->models);
            snprintf(st->models + at, sizeof st->models - at, "%s%s", i > 0 ? "," : "",
                     scrape.models[i].name);
            st->running += scrape.models[i].running;
            st->waiting += scrape.models[i].waiting;
        }
    }
    sl_buf_deinit(&body);
}

static void print_up(char out[16], double s)
{
    if (s < 120)
        snprintf(out, 16, "%.0f s", s);
    else if (s < 7200)
        snprintf(out, 16, "%.0f min", s / 60);
    else if (s < 172800)
        snprintf(out, 16, "%.1f h", s / 3600);
    else
        snprintf(out, 16, "%.1f d", s / 86400);
}

static void ps_print_json(const struct sl_running *r, const struct state *st)
{
    struct sl_buf b = {0};
    sl_buf_printf(&b, "{\"pid\": %d, \"url\": ", (int)r->pid);
    sl_buf_json_string(&b, r->url, strlen(r->url));
    sl_buf_puts(&b, ", \"status\": ");
    sl_buf_json_string(&b, st->status, strlen(st->status));
    sl_buf_puts(&b, ", \"models\": [");
    for (const char *at = st->models; *at != '\0';) {
        size_t n = strcspn(at, ",");
        sl_buf_puts(&b, at > st->models ? ", " : "");
        sl_buf_json_string(&b, at, n);
        at += n + (at[n] == ',');
    }
    sl_buf_printf(
        &b, "], \"running\": %.0f, \"waiting\": %.0f, \"memory_bytes\": %llu, \"up_s\": %.0f}\n",
        st->running, st->waiting, (unsigned long long)r->memory_bytes, r->up_s);
    fputs(sl_buf_ok(&b) ? b.data : "", stdout);
    sl_buf_deinit(&b);
}

static int ps_main(int argc, char **argv)
{
    struct ps_options opt = {0};
    struct sl_error err = {0};
    struct sl_flag_group groups[] = {{ps_flags, (int)SL_COUNT(ps_flags), &opt, 0}};
    struct sl_running all[MAX_SERVERS];
    int n_positional;
    int rc = sl_flags_parse(&sl_cmd_ps, groups, 1, argc, argv, NULL, 0, &n_positional, &err);
    if (rc == SL_FLAGS_HELP)
        return SL_EXIT_OK;
    if (rc != 0)
        return sl_command_fail(&sl_cmd_ps, &err);
    int n = sl_running_find(all, MAX_SERVERS);
    if (!opt.json)
        printf("%-8s %-28s %-9s %7s %7s %9s %8s  %s\n", "PID", "URL", "STATUS", "RUNNING",
               "WAITING", "MEMORY", "UP", "MODEL");
    for (int i = 0; i < n; i++) {
        struct state st;
        char up[16];
        ask_state(&all[i], &st);
        print_up(up, all[i].up_s);
        if (opt.json)
            ps_print_json(&all[i], &st);
        else
            printf("%-8d %-28s %-9s %7.0f %7.0f %6.0f MB %8s  %s\n", (int)all[i].pid, all[i].url,
                   st.status, st.running, st.waiting, (double)all[i].memory_bytes / 1e6, up,
                   st.models);
    }
    return SL_EXIT_OK;
}

const struct sl_command sl_cmd_ps = {
    .name = "ps",
    .usage = "[FLAGS]",
    .summary = "list the servers that run on this machine",
    .examples = "  sluice ps\n"
                "  sluice ps --json | jq -r .url\n",
    .details = "Servers of other users are listed for root only. `no answer`: the server takes TLS "
               "only, or hangs.\n",
    .run = ps_main,
};

/* ---- stop */

struct stop_options {
    bool all, now;
    int32_t timeout_s;
};

#define STOP(field) offsetof(struct stop_options, field)

static const struct sl_flag stop_flags[] = {
    {SL_FLAG_SWITCH, 'a', "all", NULL, STOP(all), 0, 0, NULL, "stop all your servers"},
    {SL_FLAG_SWITCH, 0, "now", NULL, STOP(now), 0, 0, NULL,
     "abort requests in flight instead of waiting"},
    {SL_FLAG_INT, 0, "timeout", NULL, STOP(timeout_s), 0, 86400, "S",
     "how long to wait for the server to end (default: 60)"},
};

/* A handle, not the number: a number may be another process's by the time a signal is sent. */
static int stop_one(const struct sl_running *r, const struct stop_options *opt,
                    struct sl_error *err)
{
    int fd = (int)syscall(SYS_pidfd_open, r->pid, 0);
    if (fd < 0)
        return errno == ESRCH
                   ? 0
                   : sl_fail(err, SL_EIO, "process %d: %s", (int)r->pid, strerror(errno));
    int rc = 0;
    for (int i = 0; i <= opt->now && rc == 0; i++) { /* the second signal aborts */
        if (syscall(SYS_pidfd_send_signal, fd, SIGTERM, NULL, 0) != 0 && errno != ESRCH)
            rc = sl_fail(err, SL_EIO, "process %d: %s", (int)r->pid, strerror(errno));
        struct pollfd gone = {.fd = fd, .events = POLLIN};
        int ms = opt->now && i == 0 ? 200 : opt->timeout_s * 1000;
        int n = rc == 0 ? poll(&gone, 1, ms) : 0;
        if (n > 0)
            break;
        if (rc == 0 && i == opt->now)
            rc = sl_fail(err, SL_ETIMEOUT,
                         "process %d still finishes its requests; --now aborts them", (int)r->pid);
    }
    sl_sys->close(fd);
    if (rc == 0)
        printf("stopped %d (%s)\n", (int)r->pid, r->url);
    return rc;
}

static int stop_main(int argc, char **argv)
{
    struct stop_options opt = {.timeout_s = 60};
    struct sl_error err = {0};
    struct sl_flag_group groups[] = {{stop_flags, (int)SL_COUNT(stop_flags), &opt, 0}};
    struct sl_running all[MAX_SERVERS];
    const char *target = NULL;
    int n_positional, n = 1;
    int rc = sl_flags_parse(&sl_cmd_stop, groups, 1, argc, argv, &target, 1, &n_positional, &err);
    if (rc == SL_FLAGS_HELP)
        return SL_EXIT_OK;
    if (rc == 0 && opt.all && target != NULL)
        rc = sl_fail(&err, SL_EINVAL, "--all and '%.40s' cannot be combined", target);
    if (rc == 0 && opt.all)
        n = sl_running_find(all, MAX_SERVERS);
    else if (rc == 0)
        rc = sl_running_pick(target, &all[0], &err);
    for (int i = 0; i < n && rc == 0; i++)
        rc = stop_one(&all[i], &opt, &err);
    return rc == 0 ? SL_EXIT_OK : sl_command_fail(&sl_cmd_stop, &err);
}

const struct sl_command sl_cmd_stop = {
    .name = "stop",
    .usage = "[PID | PORT | URL] [FLAGS]",
    .summary = "stop a server of this machine when its requests are done",
    .examples = "  sluice stop            the only one that runs\n"
                "  sluice stop 8000       the one at this port\n"
                "  sluice stop --all\n",
    .details =
        "The server gets SIGTERM: it takes no new requests, finishes those it has (up to its\n"
        "--shutdown-timeout) and ends.\n",
    .run = stop_main,
};
