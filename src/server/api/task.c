/* SPDX-License-Identifier: MIT */
#include "server/api/task.h"

#include "base/check.h"
#include "base/limits.h"
#include "base/sys.h"
#include "server/api/kv_transfer.h"
#include "server/http/reply.h"
#include "server/http/route.h"
#include "server/replicas.h"

#define MAX_TASKS 256 /* that wait for a worker */

struct sl_workers {
    pthread_mutex_t lock;
    pthread_cond_t cond;
    struct sl_task *waiting, *waiting_tail, *done; /* lock */
    int n_waiting;                                 /* lock */
    bool stopping;                                 /* lock */
    int n_threads;
    pthread_t threads[SL_MAX_HTTP_THREADS];
};

static void deinit_task(struct sl_task *t)
{
    if (t->extra != NULL)
        t->free_extra(t);
    sl_call_free_prompts(t->prompts, t->n_prompts);
    sl_params_deinit(&t->params);
    sl_adapter_release(t->adapter);
    sl_formats_deinit(&t->formats);
    json_decref(t->root);
    sl_buf_deinit(&t->out);
    sl_buf_deinit(&t->owned_body);
}

static void refuse(struct sl_conn *c, const struct sl_task *t)
{
    if (t->served != NULL) /* a model's task, unlike that of the whole server */
        sl_transfers_refused(t->served->eng, t->root);
    sl_reply_refusal(c, &t->refusal);
}

static void task_finish(struct sl_conn *c, struct sl_task *t)
{
    atomic_fetch_add_explicit(&c->loop->stats.unknown_fields, (uint64_t)t->params.n_unknown,
                              memory_order_relaxed);
    sl_conn_set_ignored(c, t->params.unknown);
    if (t->rc == 0)
        t->kind->finish(c, t);
    else
        refuse(c, t);
}

static bool task_push(struct sl_workers *w, struct sl_task *t)
{
    pthread_mutex_lock(&w->lock);
    bool room = w->n_waiting < MAX_TASKS;
    if (room) {
        t->next = NULL;
        if (w->waiting_tail != NULL)
            w->waiting_tail->next = t;
        else
            w->waiting = t;
        w->waiting_tail = t;
        w->n_waiting++;
        pthread_cond_signal(&w->cond);
    }
    pthread_mutex_unlock(&w->lock);
    return room;
}

static void start_large(struct sl_conn *c, const struct sl_task_kind *kind,
                        struct sl_served *served, void *extra,
                        void (*free_extra)(struct sl_task *t))
{
    struct sl_task *t = sl_calloc(1, sizeof *t);
    struct sl_refusal r = {0};
    if (t == NULL) {
        struct sl_task none = {.extra = extra};
        if (extra != NULL)
            free_extra(&none);
        (void)sl_refuse(&r, SL_ENOMEM, NULL, "out of memory");
        sl_reply_refusal(c, &r);
        return;
    }
    t->kind = kind;
    t->extra = extra;
    t->free_extra = free_extra;
    t->server = c->loop->server;
    t->served = served;
    t->conn = c;
    t->loop = c->loop;
    t->key = c->key;
    t->rank = sl_replicas_rank(sl_http_header(c->parser, SL_RANK_HEADER));
    t->owned_body = c->parser->body;
    c->parser->body = (struct sl_buf){.max_bytes = t->owned_body.max_bytes};
    t->body = (struct sl_str){t->owned_body.data, t->owned_body.n_bytes};
    c->task = t;
    c->task_bytes = t->body.n;
    if (task_push(c->loop->server->workers, t))
        return;
    c->task = NULL;
    deinit_task(t);
    sl_free(t);
    (void)sl_refuse(&r, SL_ENOMEM, NULL,
                    "too many large requests, or grammars to compile, at once");
    sl_reply_refusal(c, &r);
}

void sl_task_start_later(struct sl_conn *c, const struct sl_task_kind *kind, void *extra,
                         void (*free_extra)(struct sl_task *t))
{
    start_large(c, kind, &c->loop->server->models[0], extra, free_extra);
}

void sl_task_start(struct sl_conn *c, const struct sl_task_kind *kind)
{
    sl_task_start_for(c, kind, &c->loop->server->models[0]);
}

void sl_task_start_for(struct sl_conn *c, const struct sl_task_kind *kind, struct sl_served *served)
{
    const struct sl_buf *body = &c->parser->body;
    if (body->n_bytes >= SL_LARGE_BODY) {
        start_large(c, kind, served, NULL, NULL);
        return;
    }
    struct sl_task t = {.kind = kind,
                        .server = c->loop->server,
                        .served = served,
                        .body = {body->data, body->n_bytes},
                        .key = c->key,
                        .rank = sl_replicas_rank(sl_http_header(c->parser, SL_RANK_HEADER)),
                        .at_once = true};
    kind->prepare(&t);
    if (!t.later)
        task_finish(c, &t);
    deinit_task(&t);
    if (t.later) /* from the start: what was read so far took microseconds */
        start_large(c, kind, served, NULL, NULL);
}

void sl_task_abandon(struct sl_task *t)
{
    t->conn = NULL;
    atomic_store(&t->abandoned, true);
}

int sl_task_parse(struct sl_task *t)
{
    int rc =
        t->root != NULL ? 0 : sl_json_parse_object(t->body.p, t->body.n, &t->root, &t->refusal);
    if (rc == 0 && t->server->replicas != NULL)
        return sl_replicas_pick(t->server->replicas, t->root, t->rank, &t->served, &t->refusal);
    return rc != 0 ? rc : sl_served_pick(t->server, t->root, "model", &t->served, &t->refusal);
}

int sl_task_params(struct sl_task *t, enum sl_endpoint endpoint)
{
    const struct sl_server *s = t->server;
    const struct sl_engine *eng = t->served->eng;
    const struct sl_kv_transfer_info *pair = sl_engine_transfer(eng);
    struct sl_param_limits limits = {.transfers = pair->serves || pair->asks,
                                     .n_vocab = sl_engine_info(eng)->n_vocab,
                                     .trust_request_chat_template =
                                         s->cfg->trust_request_chat_template,
                                     .body = t->body.p,
                                     .n_body = t->body.n,
                                     .refuse_unknown = s->cfg->refuse_unknown && !t->other_fields,
                                     .json_style = s->cfg->json_style};
    int rc =
        sl_params_parse(&t->params, endpoint, t->root, &t->served->defaults, &limits, &t->refusal);
    if (rc == 0)
        rc = sl_params_words(&t->params, sl_engine_tokenizer(eng), &limits, &t->refusal);
    if (rc == 0 && sl_engine_info(eng)->num_speculative_tokens > 0)
        rc = sl_params_prediction(&t->params, sl_engine_tokenizer(eng), &t->refusal);
    return rc;
}

int sl_task_generates(struct sl_task *t)
{
    const struct sl_model_info *info = sl_engine_info(t->served->eng);
    if (info->n_pooled == 0)
        return 0;
    return sl_refuse(
        &t->refusal, SL_EUNSUPPORTED, "model", "this model does not generate text: it gives %s",
        info->task == SL_TASK_EMBED         ? "embeddings (/v1/embeddings)"
        : info->task == SL_TASK_TOKEN_EMBED ? "a vector for each token (/pooling, /rerank, /score)"
                                            : "scores (/rerank, /score)");
}

int sl_task_read(struct sl_task *t, enum sl_endpoint endpoint)
{
    int rc = sl_task_parse(t);
    if (rc == 0)
        rc = sl_task_generates(t);
    return rc != 0 ? rc : sl_task_params(t, endpoint);
}

int sl_task_model(struct sl_task *t)
{
    const struct sl_params *p = &t->params;
    int rc = sl_served_check(t->server, t->served, p->model, &t->model, &t->refusal);
    if (rc == 0 && p->lora_scale != 1.0f)
        return sl_refuse(&t->refusal, SL_EINVAL, "lora_scale",
                         "lora_scale: the model `%s` is not an adapter", t->model);
    if (rc != SL_ENOTFOUND)
        return rc;
    struct sl_refusal r = {0};
    int found = sl_adapter_open(t->served->eng, p->model, !t->at_once, &t->adapter, &r.err);
    if (found == SL_ENOTFOUND)
        return rc; /* as said */
    if (found != 0) {
        sl_refusal_param(&r, "model");
        r.code = found == SL_EBUSY ? "rate_limit_exceeded" : NULL;
        t->refusal = r;
        return found;
    }
    t->later = t->adapter == NULL;
    t->model = t->later ? NULL : sl_adapter_name(t->adapter);
    return 0;
}

int sl_task_formats(struct sl_task *t)
{
    const struct sl_server *s = t->server;
    const struct sl_formats *formats = &t->served->formats;
    if (t->params.chat_template != NULL) {
        formats = &t->formats;
        int rc =
            sl_formats_init(&t->formats, t->served->eng, s->cfg->tool_call_parser,
                            s->cfg->reasoning_parser, t->params.chat_template, &t->refusal.err);
        if (rc != 0)
            return rc;
    }
    return sl_params_formats(&t->params, formats, t->served->eng, &t->refusal);
}

int sl_task_compile(struct sl_task *t)
{
    return sl_params_compile(&t->params, t->served->eng, !t->at_once, &t->later, &t->refusal);
}

void sl_task_call(struct sl_conn *c, struct sl_task *t, const struct sl_call_api *api)
{
    struct sl_prompt *prompts = t->prompts;
    int32_t n_prompts = t->n_prompts;
    t->prompts = NULL; /* the call's from now on, also if it fails */
    t->n_prompts = 0;
    struct sl_adapter *adapter = t->adapter;
    t->adapter = NULL; /* likewise */
    if (sl_call_start(c, api, &t->params, t->served, t->model, adapter, prompts, n_prompts,
                      t->extra, &t->refusal) != 0)
        refuse(c, t);
    else
        t->extra = NULL;
}

void sl_task_collect(struct sl_loop *loop)
{
    struct sl_workers *w = loop->server->workers;
    struct sl_task *mine = NULL;
    pthread_mutex_lock(&w->lock);
    for (struct sl_task **at = &w->done; *at != NULL;) {
        struct sl_task *t = *at;
        if (t->loop != loop) {
            at = &t->next;
            continue;
        }
        *at = t->next;
        t->next = mine;
        mine = t;
    }
    pthread_mutex_unlock(&w->lock);
    while (mine != NULL) {
        struct sl_task *t = mine;
        struct sl_conn *c = t->conn;
        mine = t->next;
        if (c != NULL) {
            c->task = NULL;
            task_finish(c, t);
            sl_loop_mark(loop, c);
        }
        deinit_task(t);
        sl_free(t);
    }
}

/* A tree of millions of values takes long to free as well: the large members go here. */
static void drop_bulk(struct sl_task *t)
{
    static const char *const members[] = {"prompt", "messages", "input", "tokens"};
    for (size_t i = 0; t->root != NULL && i < SL_COUNT(members); i++)
        (void)json_object_del(t->root, members[i]);
    t->params.prompt = t->params.messages = NULL;
    sl_buf_deinit(&t->owned_body);
}

static void *task_worker_main(void *arg)
{
    struct sl_workers *w = arg;
    pthread_mutex_lock(&w->lock);
    while (!w->stopping) {
        struct sl_task *t = w->waiting;
        if (t == NULL) {
            pthread_cond_wait(&w->cond, &w->lock);
            continue;
        }
        w->waiting = t->next;
        if (w->waiting == NULL)
            w->waiting_tail = NULL;
        w->n_waiting--;
        pthread_mutex_unlock(&w->lock);
        if (!atomic_load(&t->abandoned))
            t->kind->prepare(t);
        drop_bulk(t);
        pthread_mutex_lock(&w->lock);
        t->next = w->done;
        w->done = t;
        sl_loop_wake(t->loop); /* with the lock: after it the loop may be gone */
    }
    pthread_mutex_unlock(&w->lock);
    return NULL;
}

static void free_list(struct sl_task *t)
{
    while (t != NULL) {
        struct sl_task *next = t->next;
        deinit_task(t);
        sl_free(t);
        t = next;
    }
}

void sl_workers_stop(struct sl_workers *w)
{
    if (w == NULL)
        return;
    pthread_mutex_lock(&w->lock);
    w->stopping = true;
    pthread_cond_broadcast(&w->cond);
    pthread_mutex_unlock(&w->lock);
    for (int i = 0; i < w->n_threads; i++)
        pthread_join(w->threads[i], NULL);
    free_list(w->waiting);
    free_list(w->done);
    pthread_cond_destroy(&w->cond);
    pthread_mutex_destroy(&w->lock);
    sl_free(w);
}

int sl_workers_start(struct sl_workers **out, int n_threads, struct sl_error *err)
{
    struct sl_workers *w = sl_calloc(1, sizeof *w);
    if (w == NULL)
        return sl_fail(err, SL_ENOMEM, "out of memory");
    pthread_mutex_init(&w->lock, NULL);
    pthread_cond_init(&w->cond, NULL);
    SL_ASSERT(n_threads <= SL_MAX_HTTP_THREADS);
    while (w->n_threads < n_threads) {
        int rc =
            sl_thread_create(&w->threads[w->n_threads], task_worker_main, w, "sl-prepare", err);
        if (rc != 0) {
            sl_workers_stop(w);
            return rc;
        }
        w->n_threads++;
    }
    *out = w;
    return 0;
}
