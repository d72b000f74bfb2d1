/* SPDX-License-Identifier: MIT */
#include "server/notify.h"

#include "base/check.h"
#include "base/fs.h"
#include "base/str.h"
#include "base/sys.h"

#include "sluice.h"

#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

void sl_notify(const char *state)
{
    const char *path = sl_environment("NOTIFY_SOCKET");
    struct sockaddr_un addr = {.sun_family = AF_UNIX};
    const size_t n = path != NULL ? strlen(path) : 0;
    /* an absolute path, or an abstract name, which is written with @ for its zero byte */
    if (n < 2 || n >= sizeof addr.sun_path || (path[0] != '/' && path[0] != '@'))
        return;
    memcpy(addr.sun_path, path, n);
    if (path[0] == '@')
        addr.sun_path[0] = '\0';
    const int fd = socket(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC, 0);
    if (fd < 0)
        return;
    const socklen_t n_addr = (socklen_t)(offsetof(struct sockaddr_un, sun_path) + n);
    const ssize_t sent =
        sendto(fd, state, strlen(state), MSG_NOSIGNAL, (const struct sockaddr *)&addr, n_addr);
    (void)sent;
    sl_sys->close(fd);
}

struct sl_watchdog_timer {
    const struct sl_server *server;
    struct event *timer;
};

static void notify_on_timer(evutil_socket_t fd, short what, void *arg)
{
    const struct sl_watchdog_timer *t = arg;
    bool alive = true;
    (void)fd;
    (void)what;
    for (int32_t i = 0; i < t->server->n_models; i++) {
        const int rc = sl_engine_health(t->server->models[i].eng, NULL);
        alive &= rc == 0 || rc == SL_ERANK; /* a lost rank is another process's */
    }
    if (alive)
        sl_notify("WATCHDOG=1");
}

/* Microseconds between two signs of life, 0: nobody waits for any. */
static uint64_t interval_us(void)
{
    const char *us = sl_environment("WATCHDOG_USEC"), *pid = sl_environment("WATCHDOG_PID");
    uint64_t interval, whose;
    if (us == NULL || !sl_parse_u64(us, strlen(us), &interval))
        return 0;
    if (pid != NULL && (!sl_parse_u64(pid, strlen(pid), &whose) || whose != (uint64_t)getpid()))
        return 0;
    return interval;
}

int sl_watchdog_timer_start(const struct sl_server *s, struct event_base *base,
                            struct sl_watchdog_timer **out, struct sl_error *err)
{
    const uint64_t half = interval_us() / 2;
    const struct timeval tv = {(time_t)(half / 1000000), (suseconds_t)(half % 1000000)};
    *out = NULL;
    if (half == 0)
        return 0;
    struct sl_watchdog_timer *t = sl_calloc(1, sizeof *t);
    if (t == NULL)
        return sl_fail(err, SL_ENOMEM, "out of memory for the watchdog");
    t->server = s;
    t->timer = event_new(base, -1, EV_TIMEOUT | EV_PERSIST, notify_on_timer, t);
    if (t->timer == NULL || event_add(t->timer, &tv) != 0) {
        sl_watchdog_timer_stop(t);
        return sl_fail(err, SL_ENOMEM, "out of memory for the watchdog");
    }
    *out = t;
    return 0;
}

void sl_watchdog_timer_stop(struct sl_watchdog_timer *t)
{
    if (t == NULL)
        return;
    if (t->timer != NULL)
        event_free(t->timer);
    sl_free(t);
}
