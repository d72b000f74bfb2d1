/* SPDX-License-Identifier: MIT */
#include "server/api/pull.h"

#include "base/check.h"
#include "base/sys.h"
#include "server/api/ollama_out.h"
#include "server/http/reply.h"
#include "server/http/route.h"
#include "server/http/sse.h"

#include <stdio.h>
#include <string.h>

#define MAX_NAME 256

enum state { IDLE, RUNNING, ENDED };

struct sl_puller {
    struct sl_server *server;
    pthread_mutex_t lock;
    enum state state;         /* lock */
    bool news;                /* lock; progress that was not written yet */
    uint64_t n_done, n_total; /* lock; bytes */
    char note[200];           /* lock; "": none */
    int rc;                   /* lock; of what ended */
    struct sl_error err;      /* lock; likewise */
    atomic_bool stop;
    char name[MAX_NAME];
    /* of the thread of the connection */
    struct sl_loop *loop;
    struct sl_conn *conn; /* NULL: it left */
    bool stream;
    bool joinable;
    pthread_t thread;
};

int sl_puller_create(struct sl_server *s, struct sl_puller **out, struct sl_error *err)
{
    struct sl_puller *p = sl_calloc(1, sizeof *p);
    if (p == NULL)
        return sl_fail(err, SL_ENOMEM, "out of memory");
    p->server = s;
    pthread_mutex_init(&p->lock, NULL);
    *out = p;
    return 0;
}

void sl_puller_destroy(struct sl_puller *p)
{
    if (p == NULL)
        return;
    atomic_store(&p->stop, true);
    if (p->joinable)
        pthread_join(p->thread, NULL);
    pthread_mutex_destroy(&p->lock);
    sl_free(p);
}

/* ---- the download's thread */

static bool is_cancelled(void *arg)
{
    const struct sl_puller *p = arg;
    return atomic_load(&p->stop) || atomic_load(&p->server->drain) != SL_SERVING;
}

static void pull_on_progress(void *arg, const struct sl_hub_progress *progress)
{
    struct sl_puller *p = arg;
    pthread_mutex_lock(&p->lock);
    p->news = p->news || progress->note != NULL || p->n_done != progress->done_bytes ||
              p->n_total != progress->total_bytes;
    p->n_done = progress->done_bytes;
    p->n_total = progress->total_bytes;
    if (progress->note != NULL)
        snprintf(p->note, sizeof p->note, "%s", progress->note);
    if (p->news)
        sl_loop_wake(p->loop);
    pthread_mutex_unlock(&p->lock);
}

static void *pull_main(void *arg)
{
    struct sl_puller *p = arg;
    struct sl_hub_config cfg = *p->server->cfg->pull;
    struct sl_error err = {0};
    char *path = NULL;
    cfg.refresh = true;
    cfg.progress = pull_on_progress;
    cfg.cancelled = is_cancelled;
    cfg.progress_arg = cfg.cancelled_arg = p;
    int rc = sl_model_find(p->name, &cfg, &path, &err);
    if (rc == 0 && strcmp(path, p->name) == 0) /* no name of the hub, or a path that exists here */
        rc = sl_fail(&err, SL_ENOTFOUND, "%.100s is not the name of a model of the hub", p->name);
    if (rc == SL_ECANCELED)
        rc = sl_fail(&err, SL_ESHUTDOWN, "the download was cancelled: the server is stopping");
    sl_free(path);
    pthread_mutex_lock(&p->lock);
    p->state = ENDED;
    p->rc = rc;
    p->err = err;
    sl_loop_wake(p->loop); /* with the lock: after it the loop may be gone */
    pthread_mutex_unlock(&p->lock);
    return NULL;
}

/* ---- the connection's thread */

static void put_status(struct sl_conn *c, const char *status)
{
    struct sl_buf *b = sl_conn_stream_buf(c);
    SL_PUT(b, "{\"status\":");
    sl_buf_json_string(b, status, strlen(status));
    SL_PUT(b, "}\n");
}

/* Ollama's clients draw one bar per digest: here there is one for all files, by the model's name.
 */
static void put_progress(struct sl_conn *c, const struct sl_puller *p, uint64_t n_done,
                         uint64_t n_total)
{
    struct sl_buf *b = sl_conn_stream_buf(c);
    char status[MAX_NAME + 16];
    snprintf(status, sizeof status, "pulling %s", p->name);
    SL_PUT(b, "{\"status\":");
    sl_buf_json_string(b, status, strlen(status));
    SL_PUT(b, ",\"digest\":");
    sl_buf_json_string(b, p->name, strlen(p->name));
    SL_PUT(b, ",\"total\":");
    sl_put_u64(b, n_total);
    SL_PUT(b, ",\"completed\":");
    sl_put_u64(b, n_done);
    SL_PUT(b, "}\n");
}

static void reply_end(struct sl_conn *c, bool stream, int rc, const struct sl_error *err)
{
    static const char ok[] = "{\"status\":\"success\"}";
    struct sl_refusal r = {0};
    if (rc != 0)
        r.err = *err;
    if (!stream && rc == 0) {
        sl_reply(c, 200, "application/json", NULL, ok, sizeof ok - 1);
    } else if (!stream) {
        sl_reply_refusal(c, &r);
    } else {
        if (rc == 0) {
            put_status(c, "success");
        } else {
            struct sl_buf *b = sl_conn_stream_buf(c);
            sl_reply_error_json(b, &r, sl_code_http(rc), SL_PROTOCOL_OLLAMA);
            sl_buf_putc(b, '\n');
        }
        sl_conn_stream_end(c);
    }
}

void sl_pull_collect(struct sl_loop *loop)
{
    struct sl_puller *p = loop->server->puller;
    if (p == NULL)
        return;
    pthread_mutex_lock(&p->lock);
    bool mine = p->state != IDLE && p->loop == loop, ended = mine && p->state == ENDED;
    bool news = mine && p->news;
    uint64_t n_done = p->n_done, n_total = p->n_total;
    struct sl_conn *c = mine ? p->conn : NULL;
    struct sl_error err = p->err;
    char note[sizeof p->note];
    int rc = p->rc;
    snprintf(note, sizeof note, "%s", p->note);
    if (mine) {
        p->news = false;
        p->note[0] = '\0';
    }
    if (ended) {
        p->state = IDLE;
        p->conn = NULL;
    }
    pthread_mutex_unlock(&p->lock);
    if (c == NULL)
        return;
    if (news && p->stream && sl_conn_unsent(c) < SL_OUT_HIGH) {
        if (note[0] != '\0')
            put_status(c, note);
        put_progress(c, p, n_done, n_total);
    }
    if (ended) {
        c->pulls = false;
        reply_end(c, p->stream, rc, &err);
    }
    sl_loop_mark(loop, c);
}

void sl_pull_leave(struct sl_conn *c)
{
    struct sl_puller *p = c->loop->server->puller;
    c->pulls = false;
    pthread_mutex_lock(&p->lock);
    if (p->conn == c) {
        p->conn = NULL;
        atomic_store(&p->stop, true);
    }
    pthread_mutex_unlock(&p->lock);
}

/* Takes the one place there is, and begins. */
static int pull_begin(struct sl_puller *p, struct sl_conn *c, const char *name, bool stream,
                      struct sl_refusal *r)
{
    pthread_mutex_lock(&p->lock);
    bool free_place = p->state == IDLE;
    if (free_place) {
        p->state = RUNNING;
        p->news = false;
        p->n_done = p->n_total = 0;
        p->note[0] = '\0';
        p->loop = c->loop;
        p->conn = c;
        p->stream = stream;
        atomic_store(&p->stop, false);
        snprintf(p->name, sizeof p->name, "%s", name);
    }
    pthread_mutex_unlock(&p->lock);
    if (!free_place)
        return sl_refuse(r, SL_EBUSY, NULL, "another model is being downloaded");
    if (p->joinable) /* it has ended */
        pthread_join(p->thread, NULL);
    int rc = sl_thread_create(&p->thread, pull_main, p, "sl-pull", &r->err);
    p->joinable = rc == 0;
    if (rc != 0) {
        pthread_mutex_lock(&p->lock);
        p->state = IDLE;
        p->conn = NULL;
        pthread_mutex_unlock(&p->lock);
    }
    return rc;
}

/* ORG/NAME[:QUANT] or ORG/NAME/FILE.gguf, and no path: its first part begins with a letter or a
 * digit. What else a name may be is the hub's to say. */
static bool may_be_name(const char *name)
{
    const char *slash = strchr(name, '/');
    return slash != NULL && slash > name && slash[1] != '\0' && name[0] != '.' && name[0] != '~' &&
           strstr(name, "..") == NULL && strstr(name, "//") == NULL;
}

/* ---- requests */

static int pull_read_request(struct sl_task *t)
{
    const char *name = NULL;
    const json_t *v, *stream;
    bool stays = true;
    int rc =
        t->root != NULL ? 0 : sl_json_parse_object(t->body.p, t->body.n, &t->root, &t->refusal);
    if (rc == 0)
        rc = sl_ollama_name(t);
    if (rc != 0)
        return rc;
    v = json_object_get(t->root, "model");
    if (v == NULL || json_is_null(v))
        return sl_refuse(&t->refusal, SL_EINVAL, "model", "model is missing");
    rc = sl_json_cstr(v, "model", MAX_NAME - 1, &name, &t->refusal);
    stream = json_object_get(t->root, "stream");
    if (rc == 0 && stream != NULL && !json_is_null(stream))
        rc = sl_json_bool(stream, "stream", &stays, &t->refusal);
    if (rc != 0)
        return rc;
    t->params.stream = stays;
    t->model = name;
    if (sl_served_find(t->server, name) != NULL)
        return 0; /* it is here */
    if (t->server->puller == NULL)
        return sl_refuse(&t->refusal, SL_ENOTFOUND, "model",
                         "%.100s is not served here, and this server was not told to let clients "
                         "download models (--allow-pull)",
                         name);
    rc = sl_sleep_scope(t->server->cfg, t->key, &t->refusal);
    if (rc == 0 && !may_be_name(name))
        rc = sl_refuse(&t->refusal, SL_ENOTFOUND, "model",
                       "%.100s is not the name of a model of the hub: org/name, org/name:QUANT or "
                       "org/name/FILE.gguf (names of Ollama's registry are not known)",
                       name);
    return rc;
}

static void pull_prepare(struct sl_task *t)
{
    t->rc = pull_read_request(t);
}

static void pull_finish(struct sl_conn *c, struct sl_task *t)
{
    bool stream = t->params.stream, here = sl_served_find(t->server, t->model) != NULL;
    int rc = here ? 0 : pull_begin(t->server->puller, c, t->model, stream, &t->refusal);
    if (rc != 0) {
        sl_reply_refusal(c, &t->refusal);
        return;
    }
    c->pulls = !here;
    if (stream) {
        sl_reply_stream(c, SL_NDJSON);
        put_status(c, "pulling manifest");
    }
    if (here)
        reply_end(c, stream, 0, NULL);
}

void sl_api_ollama_pull(struct sl_conn *c)
{
    static const struct sl_task_kind kind = {pull_prepare, pull_finish};
    sl_task_start(c, &kind);
}
