/* SPDX-License-Identifier: MIT */
#include "server/loop.h"

#include "base/check.h"
#include "base/sys.h"
#include "server/api/call.h"
#include "server/api/pull.h"
#include "server/api/task.h"
#include "server/conn.h"
#include "text/tokenizer/tokenizer.h"

#include <sched.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <unistd.h>

#define TURN_NS        200000 /* of an HTTP thread, before others are looked at */
#define INBOX_CAP      4096
#define ABORT_GRACE_MS 1000 /* for the last events of aborted requests to leave */

void sl_loop_enter(struct sl_loop *loop)
{
    loop->now_ns = sl_now_ns();
}

void sl_loop_mark(struct sl_loop *loop, struct sl_conn *c)
{
    if (c->is_dirty)
        return;
    c->is_dirty = true;
    c->next_dirty = loop->dirty;
    loop->dirty = c;
}

/* Draining is over when no generation runs and no reply waits for its client. */
static bool is_drained(const struct sl_loop *loop)
{
    if (loop->drain_seen == SL_SERVING || loop->n_calls > 0)
        return false;
    for (const struct sl_conn *c = loop->conns; c != NULL; c = c->next) {
        if (sl_conn_unsent(c) > 0 || c->busy)
            return false;
    }
    /* The first thread accepts probes until the others are done. */
    return loop != loop->server->loops || atomic_load(&loop->server->n_running) == 1;
}

void sl_loop_flush(struct sl_loop *loop)
{
    while (loop->dirty != NULL) {
        struct sl_conn *c = loop->dirty;
        loop->dirty = c->next_dirty;
        /* is_dirty stays set: what the flush itself appends is sent in its own rounds */
        if (sl_conn_flush(c))
            c->is_dirty = false;
        else
            sl_conn_destroy(c);
    }
    if (loop->drain_seen != SL_SERVING && is_drained(loop))
        event_base_loopbreak(loop->base);
}

static void on_outbox(evutil_socket_t fd, short what, void *arg)
{
    struct sl_loop *loop = arg;
    struct sl_request *req;
    (void)fd;
    (void)what;
    sl_loop_enter(loop);
    while ((req = sl_outbox_next(loop->outbox)) != NULL)
        sl_call_news(sl_request_user(req));
    sl_loop_flush(loop);
}

static void on_abort_grace(evutil_socket_t fd, short what, void *arg)
{
    struct sl_loop *loop = arg;
    (void)fd;
    (void)what;
    loop->rc = SL_ETIMEOUT;
    event_base_loopbreak(loop->base);
}

static void follow_drain(struct sl_loop *loop)
{
    int drain = atomic_load(&loop->server->drain);
    if (drain == loop->drain_seen)
        return;
    loop->drain_seen = drain;
    for (struct sl_conn *c = loop->conns; c != NULL; c = c->next)
        sl_conn_begin_drain(c);
    if (drain != SL_ABORTING)
        return;
    const struct timeval grace = {ABORT_GRACE_MS / 1000, ABORT_GRACE_MS % 1000 * 1000};
    if (loop->n_calls > 0)
        loop->rc = SL_ETIMEOUT;
    for (struct sl_call *call = loop->calls; call != NULL; call = call->next)
        sl_call_abort(call);
    if (event_base_once(loop->base, -1, EV_TIMEOUT, on_abort_grace, loop, &grace) != 0)
        event_base_loopbreak(loop->base);
}

/* ---- descriptors on their way: never NULL, the last bit says whose they are */

static int fd_of(const void *item)
{
    return (int)((intptr_t)item >> 1) - 1;
}

static bool is_background(const void *item)
{
    return ((intptr_t)item & 1) != 0;
}

bool sl_loop_hand_over(struct sl_loop *loop, int fd, bool background)
{
    return sl_queue_try_push(&loop->inbox, (void *)((((intptr_t)fd + 1) << 1) | background));
}

struct sl_loop *sl_loop_least_loaded(struct sl_server *s)
{
    struct sl_loop *best = &s->loops[0];
    if (atomic_load(&s->drain) != SL_SERVING)
        return best; /* the others may have ended */
    for (int i = 1; i < s->n_loops; i++) {
        if (atomic_load(&s->loops[i].n_conns) < atomic_load(&best->n_conns))
            best = &s->loops[i];
    }
    return best;
}

int sl_loop_dial(struct sl_server *server)
{
    int ends[2];
    if (atomic_load(&server->drain) != SL_SERVING ||
        socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0, ends) != 0)
        return -1;
    struct sl_loop *loop = sl_loop_least_loaded(server);
    sl_loop_count(loop, 1, true);
    if (sl_loop_hand_over(loop, ends[0], true))
        return ends[1];
    sl_loop_count(loop, -1, true);
    sl_sys->close(ends[0]);
    sl_sys->close(ends[1]);
    return -1;
}

static void on_inbox(evutil_socket_t fd, short what, void *arg)
{
    struct sl_loop *loop = arg;
    void *item;
    (void)fd;
    (void)what;
    sl_loop_enter(loop);
    sl_queue_wait(&loop->inbox, 0); /* takes back a wake-up that came without an item */
    while ((item = sl_queue_pop(&loop->inbox)) != NULL)
        sl_conn_create(loop, fd_of(item),
                       is_background(item) ? SL_CONN_BACKGROUND : SL_CONN_CLIENT);
    sl_task_collect(loop);
    sl_pull_collect(loop);
    for (struct sl_call *call = loop->calls; call != NULL; call = call->next)
        sl_call_look(call);
    follow_drain(loop);
    sl_loop_flush(loop);
}

void sl_loop_wake(struct sl_loop *loop)
{
    sl_queue_wake(&loop->inbox);
}

static struct event_base *new_base(void)
{
    struct event_config *cfg = event_config_new();
    struct event_base *base = NULL;
    if (cfg == NULL)
        return NULL;
    if (event_config_set_flag(cfg, EVENT_BASE_FLAG_NOLOCK) == 0) /* one thread per base */
        base = event_base_new_with_config(cfg);
    event_config_free(cfg);
    return base;
}

int sl_loop_init(struct sl_loop *loop, struct sl_server *server, struct sl_error *err)
{
    loop->server = server;
    loop->inbox.event_fd = -1;
    pthread_mutex_init(&loop->calls_lock, NULL);
    int rc = sl_queue_init(&loop->inbox, INBOX_CAP, err);
    if (rc != 0)
        loop->inbox = (struct sl_queue){.event_fd = -1};
    if (rc == 0)
        rc = sl_outbox_create(&loop->outbox, err);
    if (rc == 0)
        rc = sl_random(loop->id_seed, sizeof loop->id_seed, err);
    if (rc != 0)
        return rc;
    for (int32_t i = 0; i < server->n_models; i++) {
        size_t n = sl_detok_max_bytes(sl_engine_tokenizer(server->models[i].eng)) + 16;
        loop->n_token_buf = SL_MAX(loop->n_token_buf, n);
    }
    loop->token_buf = sl_malloc(loop->n_token_buf);
    loop->read_buf = sl_malloc(SL_READ_BUF_BYTES);
    loop->base = new_base();
    if (loop->base == NULL || loop->read_buf == NULL || loop->token_buf == NULL)
        return sl_fail(err, SL_ENOMEM, "cannot set up an HTTP thread");
    loop->ev_inbox =
        event_new(loop->base, sl_queue_fd(&loop->inbox), EV_READ | EV_PERSIST, on_inbox, loop);
    loop->ev_outbox =
        event_new(loop->base, sl_outbox_fd(loop->outbox), EV_READ | EV_PERSIST, on_outbox, loop);
    if (loop->ev_inbox == NULL || loop->ev_outbox == NULL || event_add(loop->ev_inbox, NULL) != 0 ||
        event_add(loop->ev_outbox, NULL) != 0)
        return sl_fail(err, SL_ENOMEM, "cannot set up an HTTP thread");
    return 0;
}

/* Short turns of the processor that come soon: what happens here takes microseconds, while the
 * compute threads beside it take all they get. Linux 6.12 and later; others ignore the wish. */
static void ask_for_short_turns(void)
{
    const struct { /* struct sched_attr, version 0 */
        uint32_t size, policy;
        uint64_t flags;
        int32_t nice;
        uint32_t priority;
        uint64_t runtime_ns, deadline_ns, period_ns;
    } attr = {.size = sizeof attr,
              .policy = SCHED_OTHER,
              .nice = getpriority(PRIO_PROCESS, 0),
              .runtime_ns = TURN_NS};
    if (sched_getscheduler(0) == SCHED_OTHER)
        (void)syscall(SYS_sched_setattr, 0, &attr, 0);
}

void sl_loop_run(struct sl_loop *loop)
{
    ask_for_short_turns();
    (void)event_base_dispatch(loop->base);
    while (loop->conns != NULL)
        sl_conn_destroy(loop->conns);
    loop->dirty = NULL;
    atomic_fetch_sub(&loop->server->n_running, 1);
    if (loop != loop->server->loops)
        sl_loop_wake(loop->server->loops);
}

void sl_loop_deinit(struct sl_loop *loop)
{
    void *item;
    while (loop->conns != NULL)
        sl_conn_destroy(loop->conns);
    while (loop->inbox.items != NULL && (item = sl_queue_pop(&loop->inbox)) != NULL)
        sl_sys->close(fd_of(item));
    if (loop->spare_parser != NULL) {
        sl_http_parser_deinit(loop->spare_parser);
        sl_free(loop->spare_parser);
    }
    if (loop->ev_inbox != NULL)
        event_free(loop->ev_inbox);
    if (loop->ev_outbox != NULL)
        event_free(loop->ev_outbox);
    if (loop->base != NULL)
        event_base_free(loop->base);
    if (loop->outbox != NULL)
        sl_outbox_destroy(loop->outbox);
    sl_queue_deinit(&loop->inbox);
    sl_free(loop->read_buf);
    sl_free(loop->token_buf);
    pthread_mutex_destroy(&loop->calls_lock);
}

void sl_loop_count(struct sl_loop *loop, int change, bool background)
{
    atomic_fetch_add(&loop->n_conns, change);
    if (!background)
        atomic_fetch_add(&loop->server->n_conns, change);
}

struct sl_http_parser *sl_loop_parser(struct sl_loop *loop)
{
    struct sl_http_parser *p = loop->spare_parser;
    if (p != NULL) {
        loop->spare_parser = NULL;
        return p;
    }
    p = sl_malloc(sizeof *p);
    if (p != NULL)
        sl_http_parser_init(p, loop->server->cfg->max_body_bytes);
    return p;
}

void sl_loop_put_parser(struct sl_loop *loop, struct sl_http_parser *p)
{
    if (loop->spare_parser == NULL) {
        sl_http_parser_reset(p);
        loop->spare_parser = p;
        return;
    }
    sl_http_parser_deinit(p);
    sl_free(p);
}
