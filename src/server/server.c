/* SPDX-License-Identifier: MIT
 *
 * The calling thread accepts all connections and hands each to the thread with the fewest. On the
 * first signal the server drains: idle connections close, work in flight goes on, probes are still
 * answered (with 503 from /health, so that a router looks elsewhere). It ends when nothing is in
 * flight, after the time limit, or on the second signal.
 */
#include "server/server.h"

#include "base/check.h"
#include "base/limits.h"
#include "base/log.h"
#include "base/sys.h"
#include "server/activity.h"
#include "server/api/pull.h"
#include "server/api/request_log.h"
#include "server/api/task.h"
#include "server/conn.h"
#include "server/events/kv_publisher.h"
#include "server/http/listen.h"
#include "server/http/tls.h"
#include "server/jobs/batches.h"
#include "server/jobs/response_store.h"
#include "server/loop.h"
#include "server/notify.h"
#include "server/page/history.h"
#include "server/replicas.h"
#include "trace/exporter.h"

#include <errno.h>
#include <signal.h>
#include <string.h>
#include <sys/socket.h>

#define ACCEPTS_AT_ONCE 64
#define ACCEPT_PAUSE_MS 100 /* when descriptors have run out */
#define SPARE_FDS       64  /* kept from connections: files, events, what libraries open */
#define MAX_TURNED_AWAY 64  /* connections beyond the limit that are told so in peace */

struct acceptor { /* what only the first thread needs */
    struct sl_server server;
    struct event *listeners[SL_MAX_LISTENERS];
    int n_listeners;
    struct sl_listeners own, *listening; /* own, or those of the configuration */
    struct event *resume, *deadline, *stop, *signals[2], *hangup;
    struct sl_activity *activity;
    struct sl_watchdog_timer *watchdog;
    int n_threads_started;
    uint64_t t_drain_ns; /* when the first signal came; 0: none did */
};

void sl_server_config_default(struct sl_server_config *cfg)
{
    static const char *const any_origin[] = {"*"};
    *cfg = (struct sl_server_config){
        .host = "127.0.0.1",
        .port = 8000,
        .allowed_origins = any_origin,
        .n_allowed_origins = 1,
        .n_http_threads = 1,
        .max_connections = SL_MAX_CONNECTIONS,
        .header_timeout_ms = 15000,
        .body_timeout_ms = 30000,
        .idle_timeout_ms = 75000,
        .write_timeout_ms = 60000,
        .sse_ping_ms = 5000,
        .shutdown_timeout_ms = 30000,
        .max_body_bytes = SL_MAX_HTTP_BODY,
        .max_held_bytes = 1u << 30,
        .max_stored_bytes = 64u << 20,
        .max_file_bytes = UINT64_C(10) << 30,
        .log_stats_s = 10,
        .handle_signals = true,
        .stop_fd = -1,
    };
}

/* ---- accepting */

static void refuse_connection(struct sl_server *s, int fd)
{
    static const char reply[] = "HTTP/1.1 503 Service Unavailable\r\nContent-Length: 0\r\n"
                                "Connection: close\r\nRetry-After: 1\r\n\r\n";
    ssize_t n = sl_sys->write(fd, reply, sizeof reply - 1);
    (void)n;
    atomic_fetch_add(&s->n_refused_conns, 1);
    sl_sys->close(fd);
}

static void server_place(struct acceptor *a, int fd)
{
    struct sl_server *s = &a->server;
    int n_conns = atomic_load(&s->n_conns);
    if (n_conns >= s->max_conns + MAX_TURNED_AWAY) {
        refuse_connection(s, fd);
        return;
    }
    bool one_too_many = n_conns >= s->max_conns;
    struct sl_loop *loop = one_too_many ? &s->loops[0] : sl_loop_least_loaded(s);
    /* Counted here, not by its thread: a burst of connections must spread and stay in the limit. */
    sl_loop_count(loop, 1, false);
    if (one_too_many)
        atomic_fetch_add(&s->n_refused_conns, 1);
    if (loop == &s->loops[0]) {
        sl_conn_create(loop, fd, one_too_many ? SL_CONN_REFUSED : SL_CONN_CLIENT);
    } else if (!sl_loop_hand_over(loop, fd, false)) {
        sl_loop_count(loop, -1, false);
        refuse_connection(s, fd);
    }
}

static void pause_accepting(struct acceptor *a)
{
    const struct timeval tv = {0, ACCEPT_PAUSE_MS * 1000};
    sl_log(SL_LOG_WARN, "out of file descriptors: not accepting for %d ms", ACCEPT_PAUSE_MS);
    if (event_add(a->resume, &tv) != 0)
        return; /* no memory for the end of the pause: then none, which costs less than no end */
    for (int i = 0; i < a->n_listeners; i++)
        event_del(a->listeners[i]);
}

static void server_on_resume(evutil_socket_t fd, short what, void *arg)
{
    const struct timeval tv = {0, ACCEPT_PAUSE_MS * 1000};
    struct acceptor *a = arg;
    bool ok = true;
    (void)fd;
    (void)what;
    for (int i = 0; i < a->n_listeners; i++)
        ok &= event_add(a->listeners[i], NULL) == 0;
    if (!ok) /* room for this timer there is: it was just taken out */
        (void)event_add(a->resume, &tv);
}

static void on_accept(evutil_socket_t listener, short what, void *arg)
{
    struct acceptor *a = arg;
    struct sl_loop *loop = &a->server.loops[0];
    (void)what;
    sl_loop_enter(loop);
    for (int i = 0; i < ACCEPTS_AT_ONCE; i++) {
        int fd = accept4((int)listener, NULL, NULL, SOCK_NONBLOCK | SOCK_CLOEXEC);
        if (fd >= 0) {
            server_place(a, fd);
            continue;
        }
        if (errno == EMFILE || errno == ENFILE || errno == ENOBUFS || errno == ENOMEM)
            pause_accepting(a);
        else if (errno == EINTR || errno == ECONNABORTED)
            continue;
        break;
    }
    sl_loop_flush(loop);
}

/* ---- stopping */

static void set_drain(struct acceptor *a, int drain)
{
    atomic_store(&a->server.drain, drain);
    sl_batches_stop(a->server.batches); /* what they ask is asked again by the next server */
    for (int i = 0; a->server.loops != NULL && i < a->server.n_loops; i++) {
        if (a->server.loops[i].server != NULL) /* else it was never set up */
            sl_loop_wake(&a->server.loops[i]);
    }
}

static void stop(struct acceptor *a, const char *why)
{
    int32_t limit_ms = a->server.cfg->shutdown_timeout_ms;
    const struct timeval tv = {limit_ms / 1000, limit_ms % 1000 * 1000};
    if (atomic_load(&a->server.drain) != SL_SERVING) {
        sl_log(SL_LOG_WARN, "%s again: aborting what is in flight", why);
        set_drain(a, SL_ABORTING);
        return;
    }
    sl_log(SL_LOG_INFO, "%s: draining for at most %g s", why, limit_ms / 1e3);
    a->t_drain_ns = sl_now_ns();
    sl_notify("STOPPING=1");
    set_drain(a, SL_DRAINING);
    if (event_add(a->deadline, &tv) != 0) {
        sl_log(SL_LOG_WARN, "no memory for the time limit: aborting what is in flight");
        set_drain(a, SL_ABORTING);
    }
}

static void on_deadline(evutil_socket_t fd, short what, void *arg)
{
    (void)fd;
    (void)what;
    sl_log(SL_LOG_WARN, "drain took too long: aborting what is in flight");
    set_drain(arg, SL_ABORTING);
}

static void server_on_signal(evutil_socket_t sig, short what, void *arg)
{
    (void)what;
    stop(arg, sig == SIGINT ? "SIGINT" : "SIGTERM");
}

static void on_hangup(evutil_socket_t sig, short what, void *arg)
{
    struct acceptor *a = arg;
    struct sl_error err;
    (void)sig;
    (void)what;
    if (sl_tls_reload(a->server.tls, &err) != 0)
        sl_log(SL_LOG_ERROR, "SIGHUP: keeping the old certificate: %s", err.msg);
    else
        sl_log(SL_LOG_INFO, "SIGHUP: certificate and key reloaded");
}

static void on_stop_fd(evutil_socket_t fd, short what, void *arg)
{
    uint64_t count;
    (void)what;
    if (sl_sys->read((int)fd, &count, sizeof count) == (ssize_t)sizeof count)
        stop(arg, "stop");
}

/* ---- setting up */

static int add_listener(struct acceptor *a, int fd, struct sl_error *err)
{
    int i = a->n_listeners++;
    a->listeners[i] = event_new(a->server.loops[0].base, fd, EV_READ | EV_PERSIST, on_accept, a);
    if (a->listeners[i] == NULL || event_add(a->listeners[i], NULL) != 0)
        return sl_fail(err, SL_ENOMEM, "cannot watch a listening socket");
    return 0;
}

static int listen_all(struct acceptor *a, struct sl_error *err)
{
    const struct sl_server_config *cfg = a->server.cfg;
    int rc = cfg->listeners == NULL ? sl_listeners_open(cfg, &a->own, err) : 0;
    for (int i = 0; rc == 0 && i < a->listening->n; i++) {
        rc = add_listener(a, a->listening->fds[i], err);
        if (rc != 0)
            break;
        if (a->listening->hosts[i][0] == '\0')
            sl_log(SL_LOG_INFO, "listening on unix:%s", cfg->uds);
        else
            sl_log(SL_LOG_INFO, "listening on http%s://%s:%d", a->server.tls != NULL ? "s" : "",
                   a->listening->hosts[i], a->listening->port);
    }
    if (rc == 0 && cfg->port_file != NULL && cfg->host != NULL)
        rc = sl_listen_write_port(cfg->port_file, a->listening->port, err);
    return rc;
}

static atomic_int unwatched; /* the last signal that came while the loop did not watch for it */

static void on_unwatched(int sig)
{
    atomic_store(&unwatched, sig);
}

/* The loop's handlers are there only while its events are. Before and after them, this one keeps a
 * signal from ending the process: one that came early is handed to the loop, and one that comes
 * while the server is torn down asks for what is happening already. */
static void catch_unwatched(int sig)
{
    struct sigaction sa = {.sa_handler = on_unwatched, .sa_flags = SA_RESTART};
    (void)sigaction(sig, &sa, NULL);
}

static int watch_stops(struct acceptor *a, struct sl_error *err)
{
    static const int signals[2] = {SIGTERM, SIGINT};
    struct event_base *base = a->server.loops[0].base;
    bool ok = (a->resume = evtimer_new(base, server_on_resume, a)) != NULL &&
              (a->deadline = evtimer_new(base, on_deadline, a)) != NULL;
    if (ok && a->server.cfg->stop_fd >= 0) {
        a->stop = event_new(base, a->server.cfg->stop_fd, EV_READ | EV_PERSIST, on_stop_fd, a);
        ok = a->stop != NULL && event_add(a->stop, NULL) == 0;
    }
    for (int i = 0; ok && a->server.cfg->handle_signals && i < 2; i++) {
        a->signals[i] = evsignal_new(base, signals[i], server_on_signal, a);
        catch_unwatched(signals[i]);
        ok = a->signals[i] != NULL && event_add(a->signals[i], NULL) == 0;
    }
    int early = atomic_exchange(&unwatched, 0);
    if (ok && early != 0)
        event_active(a->signals[early == SIGTERM ? 0 : 1], EV_SIGNAL, 1);
    if (ok && a->server.cfg->handle_signals && a->server.tls != NULL) {
        a->hangup = evsignal_new(base, SIGHUP, on_hangup, a);
        ok = a->hangup != NULL && event_add(a->hangup, NULL) == 0;
    }
    return ok ? 0 : sl_fail(err, SL_ENOMEM, "cannot watch for signals");
}

static void *server_thread_main(void *arg)
{
    sl_loop_run(arg);
    return NULL;
}

static bool is_taken(const struct sl_server *s, const char *name)
{
    for (int32_t i = 0; i < s->n_models; i++) {
        if (sl_served_shows(&s->models[i], name) || sl_adapter_known(s->models[i].eng, name))
            return true;
    }
    return false;
}

static void label(struct sl_served *m, int32_t rank)
{
    m->label = m->name;
    if (rank < 0)
        return;
    snprintf(m->replica, sizeof m->replica, "%.260s@%d", m->name, rank);
    m->label = m->replica;
}

static int start_replicas(struct sl_server *s, struct sl_error *err)
{
    if (!s->cfg->replicas)
        return 0;
    s->replicas = sl_replicas_create(s->models, s->n_models);
    return s->replicas != NULL ? 0 : sl_fail(err, SL_ENOMEM, "out of memory");
}

/* The engine the server is run with is the first of its models. */
static int init_models(struct sl_server *s, struct sl_engine *eng, struct sl_error *err)
{
    const struct sl_server_config *cfg = s->cfg;
    int32_t n = 1 + cfg->n_more;
    s->models = sl_calloc((size_t)n, sizeof *s->models);
    if (s->models == NULL)
        return sl_fail(err, SL_ENOMEM, "out of memory");
    for (int rc; s->n_models < n; s->n_models++) {
        const struct sl_server_model *m = s->n_models > 0 ? &cfg->more[s->n_models - 1] : NULL;
        rc = m == NULL
                 ? sl_served_init(&s->models[0], cfg, eng, cfg->served_names, cfg->n_served_names,
                                  err)
                 : sl_served_init(&s->models[s->n_models], cfg, m->eng, m->names, m->n_names, err);
        if (rc != 0)
            return rc;
        struct sl_served *served = &s->models[s->n_models];
        if (!cfg->replicas && served->n_names == 0 && is_taken(s, served->name))
            sl_served_use_path(served); /* two folders of one name */
        for (int32_t i = 0; i < sl_served_n_names(served) && !cfg->replicas; i++) {
            const char *name = sl_served_name_at(served, i);
            if (is_taken(s, name)) { /* by those before it */
                rc = sl_fail(err, SL_EINVAL, "two models have the name '%.150s'", name);
                sl_served_deinit(served); /* it is not counted yet; name may be its own */
                return rc;
            }
        }
        label(served, cfg->replicas ? s->n_models : -1);
    }
    return 0;
}

static int start_publishers(struct sl_server *s, struct sl_error *err)
{
    int rc = 0;
    for (int32_t i = 0; i < s->n_models && rc == 0 && s->cfg->kv_events != NULL; i++) {
        struct sl_kv_events_config cfg;
        rc = sl_kv_events_config_of(s->cfg->kv_events, i, &cfg, err);
        if (rc == 0)
            rc = sl_kv_publisher_start(&cfg, s->models[i].eng, &s->models[i].kv_publisher, err);
    }
    return rc;
}

/* Rather fewer connections than some that fail, or batches that cannot connect. */
static void limit_conns(struct sl_server *s)
{
    uint64_t n_fds = sl_listen_raise_fd_limit(), spare = SPARE_FDS + MAX_TURNED_AWAY;
    if (s->batches != NULL)
        spare += sl_batches_n_fds(s->batches);
    s->max_conns = s->cfg->max_connections;
    if (n_fds < (uint64_t)s->max_conns + spare) {
        s->max_conns = (int)(SL_MAX(n_fds, spare + 1) - spare);
        sl_log(SL_LOG_WARN, "%llu file descriptors are allowed: at most %d connections",
               (unsigned long long)n_fds, s->max_conns);
    }
}

static int init_server(struct acceptor *a, const struct sl_server_config *cfg,
                       struct sl_engine *eng, struct sl_error *err)
{
    struct sl_server *s = &a->server;
    s->cfg = cfg;
    s->t_created_s = sl_wall_ns() / 1000000000;
    s->request_log_fd = -1;
    int rc = sl_request_log_open(cfg->request_log, &s->request_log_fd, err);
    if (rc != 0)
        return rc;
    if (cfg->ssl_certfile != NULL)
        rc = sl_tls_create(cfg->ssl_certfile, cfg->ssl_keyfile, &s->tls, err);
    if (rc != 0)
        return rc;
    rc = init_models(s, eng, err);
    if (rc == 0)
        rc = start_replicas(s, err);
    if (rc != 0)
        return rc;
    rc = sl_responses_create(cfg->max_stored_bytes, &s->responses, err);
    if (rc != 0)
        return rc;
    if (cfg->file_storage != NULL)
        rc = sl_file_store_open(cfg->file_storage, cfg->max_file_bytes, &s->files, err);
    if (rc == 0 && s->files != NULL)
        rc = sl_batches_open(s, s->files, &s->batches, err);
    if (rc != 0)
        return rc;
    rc = cfg->pull != NULL ? sl_puller_create(s, &s->puller, err) : 0;
    if (rc != 0)
        return rc;
    limit_conns(s);
    s->n_loops = SL_MIN(SL_MAX(cfg->n_http_threads, 1), SL_MAX_HTTP_THREADS);
    s->loops = sl_calloc((size_t)s->n_loops, sizeof *s->loops);
    if (s->loops == NULL)
        return sl_fail(err, SL_ENOMEM, "out of memory");
    for (int i = 0; i < s->n_loops; i++) {
        rc = sl_loop_init(&s->loops[i], s, err);
        if (rc != 0)
            return rc;
    }
    return 0;
}

static int start_threads(struct acceptor *a, struct sl_error *err)
{
    struct sl_server *s = &a->server;
    atomic_store(&s->n_running, 1);
    for (int i = 1; i < s->n_loops; i++) {
        atomic_fetch_add(&s->n_running, 1);
        int rc =
            sl_thread_create(&s->loops[i].thread, server_thread_main, &s->loops[i], "sl-http", err);
        if (rc != 0) {
            atomic_fetch_sub(&s->n_running, 1);
            return rc;
        }
        a->n_threads_started++;
    }
    return 0;
}

static void free_event(struct event *ev)
{
    if (ev != NULL)
        event_free(ev);
}

static void tear_down(struct acceptor *a)
{
    struct sl_server *s = &a->server;
    for (int32_t i = 0; i < s->n_models; i++)
        sl_kv_publisher_stop(s->models[i].kv_publisher);
    sl_batches_close(s->batches); /* before the loops that it asks */
    for (int i = 0; i < a->n_listeners; i++)
        free_event(a->listeners[i]);
    sl_listeners_close(a->listening);
    sl_activity_stop(a->activity);
    sl_history_stop(s->history);
    sl_watchdog_timer_stop(a->watchdog);
    free_event(a->resume);
    free_event(a->deadline);
    free_event(a->stop);
    free_event(a->signals[0]);
    free_event(a->signals[1]);
    free_event(a->hangup);
    for (int i = 0; s->loops != NULL && i < s->n_loops; i++) {
        if (s->loops[i].server != NULL)
            sl_loop_deinit(&s->loops[i]);
    }
    sl_free(s->loops);
    sl_exporter_stop(s->exporter); /* no thread adds to it any more */
    sl_replicas_destroy(s->replicas);
    for (int32_t i = 0; i < s->n_models; i++)
        sl_served_deinit(&s->models[i]);
    sl_free(s->models);
    sl_responses_destroy(s->responses);
    sl_file_store_close(s->files);
    sl_request_log_close(s->request_log_fd);
    sl_tls_destroy(s->tls);
    sl_free(a);
}

int sl_server_run(const struct sl_server_config *cfg, struct sl_engine *eng, struct sl_error *err)
{
    struct acceptor *a = sl_calloc(1, sizeof *a);
    if (a == NULL)
        return sl_fail(err, SL_ENOMEM, "out of memory");
    a->listening = cfg->listeners != NULL ? cfg->listeners : &a->own;
    signal(SIGPIPE, SIG_IGN);
    json_object_seed(0); /* before threads: the hash of object keys is keyed at random */
    int rc = init_server(a, cfg, eng, err);
    if (rc == 0)
        rc = watch_stops(a, err);
    if (rc == 0)
        rc = start_publishers(&a->server, err);
    if (rc == 0 && cfg->traces != NULL)
        rc = sl_exporter_start(cfg->traces, &a->server.exporter, err);
    if (rc == 0)
        rc = listen_all(a, err);
    if (rc == 0)
        rc = sl_workers_start(&a->server.workers, a->server.n_loops, err);
    if (rc == 0 && !cfg->no_webui)
        rc = sl_history_start(&a->server, a->server.loops[0].base, &a->server.history, err);
    if (rc == 0)
        rc = start_threads(a, err);
    if (rc == 0 && a->server.batches != NULL)
        rc = sl_batches_run(a->server.batches, err);
    struct event_base *base = rc == 0 ? a->server.loops[0].base : NULL;
    if (rc == 0 && cfg->log_stats_s > 0)
        rc = sl_activity_start(&a->server, base, cfg->log_stats_s, &a->activity, err);
    if (rc == 0)
        rc = sl_watchdog_timer_start(&a->server, base, &a->watchdog, err);
    if (rc == 0)
        sl_notify("READY=1");
    if (rc != 0) { /* threads that did start find an abort and end */
        set_drain(a, SL_ABORTING);
    } else {
        sl_loop_run(&a->server.loops[0]);
    }
    for (int i = 1; i <= a->n_threads_started; i++)
        pthread_join(a->server.loops[i].thread, NULL);
    for (int i = 0; rc == 0 && i < a->server.n_loops; i++) {
        if (a->server.loops[i].rc != 0)
            rc = sl_fail(err, a->server.loops[i].rc, "requests in flight were aborted");
    }
    if (a->t_drain_ns != 0)
        sl_log(rc == 0 ? SL_LOG_INFO : SL_LOG_WARN, "stopped %.2f s after the signal%s",
               (double)(sl_now_ns() - a->t_drain_ns) * 1e-9,
               rc == 0 ? ": every request was answered" : ": requests in flight were aborted");
    sl_workers_stop(a->server.workers);
    sl_puller_destroy(a->server.puller);
    tear_down(a);
    return rc;
}
